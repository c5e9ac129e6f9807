//! Tests saved prefixes on disk: they round-trip, and every other file is rejected.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use super::runner::{prompt, try_start};
use super::tiny::{Kind, write_tiny};
use super::{demo, load};
use crate::config::{EngineConfig, FlashAttention, KvType, RopeConfig};
use crate::engine::runner::{KvSeqId, Runner};
use crate::error::Error;
use crate::llama::context::batch::rows_of;
use crate::llama::{Model, PrefixFileError, PrefixFiles, resolve};
use crate::request::{SavedPrefix, SavedRun};

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static N_MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("weft-prefixes-{}-{}", std::process::id(), N_MADE.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).expect("the temporary folder is writable");
        Self(folder)
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("it exists").map(|entry| entry.expect("it can be read").file_name());
        entries.map(|name| name.to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("it exists");
    }
}

fn files() -> PrefixFiles {
    files_of(demo(), &EngineConfig::default())
}

fn files_of(model: Arc<Model>, config: &EngineConfig) -> PrefixFiles {
    let config = resolve(&model, config, None).expect("the configuration is valid");
    PrefixFiles::new(model, &config)
}

/// Returns a prefix with arbitrary bytes as states, which the file format does not interpret.
fn prefix(n_tokens: u32, logits: Option<Vec<f32>>) -> SavedPrefix {
    let run = |range: std::ops::Range<u32>| SavedRun {
        bytes: range.clone().map(|i| u8::try_from(i * i % 251).expect("below 256")).collect(),
        range,
    };
    let runs = vec![run(0..n_tokens / 3), run(n_tokens / 3..n_tokens)];
    SavedPrefix { tokens: prompt(n_tokens as usize), runs, logits, ..SavedPrefix::default() }
}

#[track_caller]
fn refusal(files: &PrefixFiles, path: &Path) -> String {
    match files.read(path) {
        Err(PrefixFileError::Refused(Error::PrefixFile { path: named, reason })) => {
            assert_eq!(named, path);
            reason
        }
        other => panic!("{other:?} instead of a refusal"),
    }
}

#[track_caller]
fn io_error(outcome: Result<impl std::fmt::Debug, PrefixFileError>) -> std::io::ErrorKind {
    match outcome {
        Err(PrefixFileError::Io { source, .. }) => source.kind(),
        other => panic!("{other:?} instead of the system's error"),
    }
}

#[test]
fn prefixes_round_trip() {
    let (folder, files) = (Folder::new(), files());
    let path = folder.path_of("a.prefix");
    for prefix in [prefix(90, None), prefix(30, Some((0..2048_u16).map(f32::from).collect()))] {
        let n_written = files.write(&path, &prefix).expect("the folder is writable");
        assert_eq!(n_written, fs::metadata(&path).expect("it was just written").len());
        assert_eq!(files.read(&path).expect("it was just written"), (prefix, n_written));
        assert_eq!(folder.names(), ["a.prefix"], "the second one took the place of the first, and nothing else is left");
    }
}

#[test]
fn a_prefix_continues_from_its_file_with_the_other_attention_kernel() {
    let (folder, tokens) = (Folder::new(), prompt(120));
    let runner_with = |flash_attention| try_start(|config| config.flash_attention = flash_attention).expect("it runs").0;
    let mut expected = Vec::new();
    for (flash_attention, name) in [(FlashAttention::On, "on"), (FlashAttention::Off, "off")] {
        let mut runner = runner_with(flash_attention);
        runner.decode(&rows_of(KvSeqId(0), 0, &tokens[..100])).expect("the plan is valid");
        let runs =
            [0..70, 70..100].map(|range| SavedRun { bytes: runner.save(KvSeqId(0), range.clone()).expect("it is held"), range });
        let prefix = SavedPrefix { tokens: tokens[..100].to_vec(), runs: runs.into(), ..SavedPrefix::default() };
        files().write(&folder.path_of(name), &prefix).expect("the folder is writable");
        runner.decode(&rows_of(KvSeqId(0), 100, &tokens[100..])).expect("the plan is valid");
        expected.push(runner.logits(19).to_vec());
    }
    for (name, flash_attention) in [("on", FlashAttention::Off), ("off", FlashAttention::On), ("on", FlashAttention::On)] {
        let mut runner = runner_with(flash_attention);
        for run in files().read(&folder.path_of(name)).expect("it was just written").0.runs {
            runner.restore(KvSeqId(3), &run.bytes, run.range).expect("the run is whole");
        }
        runner.decode(&rows_of(KvSeqId(3), 100, &tokens[100..])).expect("the plan is valid");
        for expected in &expected {
            let distances = runner.logits(19).iter().zip(expected).map(|(a, b)| (a - b).abs());
            // As in the tests of the runner: two attention kernels, over 16-bit numbers.
            assert!(distances.fold(0.0, f32::max) < 0.25);
        }
    }
}

#[test]
fn damaged_files_are_rejected() {
    let (folder, files) = (Folder::new(), files());
    let path = folder.path_of("a.prefix");
    files.write(&path, &prefix(60, None)).expect("the folder is writable");
    let whole = fs::read(&path).expect("it was just written");
    let refusal_of = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("the folder is writable");
        refusal(&files, &path)
    };
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let reason = refusal_of(&damaged);
        let words = match bit / 8 {
            0..8 => "not a saved prefix",
            // One flipped bit gives another supported version.
            8..12 if damaged[8..12] != [3, 0, 0, 0] => "only versions 1 to 3",
            12..20 => "bytes",
            _ => "checksum",
        };
        assert!(reason.contains(words), "bit {bit}: {reason}");
    }
    for n_kept in 0..whole.len() {
        let reason = refusal_of(&whole[..n_kept]);
        let words = if n_kept < 20 { "too few for" } else { "truncated" };
        assert!(reason.contains(words), "{n_kept} bytes: {reason}");
    }
    assert!(refusal_of(&[&whole[..], &[0]].concat()).contains("extra bytes"));
    let mut of_next_version = whole.clone();
    of_next_version[8] = 4;
    assert_eq!(refusal_of(&of_next_version), "its format version is 4; only versions 1 to 3 can be read");
    fs::write(&path, &whole).expect("the folder is writable");
    files.read(&path).expect("it is whole again");
}

/// Inconsistent numbers under a valid checksum, as another program might write.
#[test]
fn inconsistent_numbers_are_rejected_despite_a_valid_checksum() {
    let (folder, files) = (Folder::new(), files());
    let path = folder.path_of("a.prefix");
    files.write(&path, &prefix(60, None)).expect("the folder is writable");
    let whole = fs::read(&path).expect("it was just written");
    let read_with = |offset: usize, bytes: &[u8]| {
        let mut changed = whole[..whole.len() - 32].to_vec();
        changed[offset..offset + bytes.len()].copy_from_slice(bytes);
        changed.extend(blake3::hash(&changed).as_bytes());
        fs::write(&path, changed).expect("the folder is writable");
        files.read(&path)
    };
    let (n_tokens, n_pieces, n_logits, tokens, table) = (60, 64, 68, 72, 72 + 60 * 4);
    for (offset, number) in [
        (n_tokens, 59),
        (n_tokens, 0),
        (n_tokens, u32::MAX),
        (n_pieces, 1),
        (n_pieces, 3),
        (n_pieces, u32::MAX),
        (n_logits, 1),
        (n_logits, 2048),
        (n_logits, u32::MAX),
        (tokens, 2048),
        (tokens, u32::MAX),
        (table, 1),
        (table + 4, 0),
        (table + 4, 21),
        (table + 8, 19),
        (table + 8, u32::MAX),
        (table + 12, u32::MAX),
        (table + 20, 61),
        (table + 24, 39),
    ] {
        let outcome = read_with(offset, &number.to_le_bytes());
        assert!(matches!(outcome, Err(PrefixFileError::Refused(_))), "{number} at {offset}: {outcome:?}");
    }
    read_with(n_tokens, &60_u32.to_le_bytes()).expect("nothing was changed");
}

#[test]
fn a_file_of_another_cache_or_model_is_rejected() {
    let folder = Folder::new();
    let path = folder.path_of("a.prefix");
    files().write(&path, &prefix(60, None)).expect("the folder is writable");
    let quantized = EngineConfig { type_v: KvType::Q8_0, ..EngineConfig::default() };
    let reason = refusal(&files_of(demo(), &quantized), &path);
    assert_eq!(reason, "the format of its V is F16; that of this engine is Q8_0");
    let model = write_tiny(Kind::Window);
    let other = load(&model).expect("the toy model loads");
    let other = files_of(other.into(), &EngineConfig::default());
    let reason = refusal(&other, &path);
    let name = model.file_name().expect("it is a file").to_string_lossy();
    assert!(reason.contains(&format!("not computed by {name} with the same ")), "{reason}");
    // The reverse: a file of the other model is rejected by this one.
    let saved = SavedPrefix { tokens: vec![1; 60], ..prefix(60, None) };
    other.write(&path, &saved).expect("the folder is writable");
    assert_eq!(other.read(&path).expect("it was just written").0, saved);
    refusal(&files(), &path);
    fs::remove_file(&model).expect("it exists");
}

#[test]
fn a_file_with_other_positions_is_rejected() {
    let folder = Folder::new();
    let path = folder.path_of("a.prefix");
    let with = |rope| files_of(demo(), &EngineConfig { rope, ..EngineConfig::default() });
    let scaled = with(RopeConfig { freq_scale: Some(0.5), ..RopeConfig::default() });
    for (one, other) in [(&files(), &scaled), (&scaled, &files())] {
        one.write(&path, &prefix(60, None)).expect("the folder is writable");
        let reason = refusal(other, &path);
        assert!(reason.contains("the same position encoding (--rope-…, --yarn-…) and metadata"), "{reason}");
        one.read(&path).expect("it was just written");
    }
    refusal(&with(RopeConfig { freq_scale: Some(0.25), ..RopeConfig::default() }), &path);
}

#[test]
fn system_errors_are_reported_as_such() {
    use std::io::ErrorKind;
    let (folder, files) = (Folder::new(), files());
    assert_eq!(io_error(files.read(&folder.path_of("none"))), ErrorKind::NotFound);
    assert_eq!(io_error(files.write(&folder.path_of("none/a.prefix"), &prefix(60, None))), ErrorKind::NotFound);
    for nameless in [Path::new("/"), Path::new(""), &folder.path_of("..")] {
        assert_eq!(io_error(files.write(nameless, &prefix(60, None))), ErrorKind::InvalidInput);
    }
    assert!(refusal(&files, &folder.0).contains("not a regular file"));
    // The path is a folder: the partial file beside it is removed again.
    fs::create_dir(folder.path_of("a.prefix")).expect("the folder is writable");
    io_error(files.write(&folder.path_of("a.prefix"), &prefix(60, None)));
    assert_eq!(folder.names(), ["a.prefix"]);
}

#[test]
fn problems_of_the_models_file_are_not_reported_as_the_prefixs() {
    let folder = Folder::new();
    let fails = |files: &PrefixFiles, model: &Path, words: &str| {
        files.write(&folder.path_of("b.prefix"), &prefix(60, None)).expect_err("the weights are unknown");
        self::files().write(&folder.path_of("a.prefix"), &prefix(60, None)).expect("the folder is writable");
        match files.read(&folder.path_of("a.prefix")) {
            Err(PrefixFileError::Model { path, source }) => {
                assert_eq!(path, model);
                let name = model.file_name().expect("it is a file").to_string_lossy();
                assert_eq!(source.to_string(), format!("{name}: {words}"));
            }
            other => panic!("{other:?} instead of the model's error"),
        }
        assert_eq!(folder.names(), ["a.prefix"]);
    };
    let path = write_tiny(Kind::Recurrent);
    let files = files_of(load(&path).expect("the toy model loads").into(), &EngineConfig::default());
    let longer = [&fs::read(&path).expect("it exists")[..], &[0]].concat();
    fs::write(&path, longer).expect("the folder is writable");
    fails(&files, &path, "it has changed since it was loaded");
    fs::remove_file(&path).expect("it exists");
    fails(&files, &path, "No such file or directory (os error 2)");
}

/// A sparse file of eight terabytes, which fits in no memory: with zeros at the start, and with a valid length.
#[test]
fn an_overlong_file_allocates_no_memory() {
    let (folder, files) = (Folder::new(), files());
    let path = folder.path_of("a.prefix");
    let file = fs::File::create(&path).expect("the folder is writable");
    file.set_len(1 << 43).expect("a hole takes no room");
    assert!(refusal(&files, &path).contains("not a saved prefix"));
    for n_bytes in [1_u64 << 43, 1 << 30] {
        file.set_len(n_bytes).expect("a hole takes no room");
        file.write_all_at(&[b"weftpref", &1_u32.to_le_bytes()[..], &n_bytes.to_le_bytes()].concat(), 0).expect("it is open");
        let reason = refusal(&files, &path);
        assert!(reason.starts_with(&format!("it has {n_bytes} bytes; a prefix of this model")), "{reason}");
    }
}

#[test]
fn a_prefix_may_fill_the_context() {
    let folder = Folder::new();
    let path = folder.path_of("a.prefix");
    for (type_k, n_ctx) in [(KvType::F32, None), (KvType::Q4_0, Some(512))] {
        let config = EngineConfig { type_k, type_v: type_k, n_ctx, ..EngineConfig::default() };
        let n_tokens = n_ctx.unwrap_or(1024);
        let n_bytes = usize::try_from(demo().kv_bytes_per_token(type_k, type_k)).expect("kilobytes") * n_tokens as usize;
        let runs = vec![SavedRun { range: 0..n_tokens, bytes: vec![1; n_bytes].into() }];
        let longest = SavedPrefix { tokens: vec![1; n_tokens as usize], runs, ..SavedPrefix::default() };
        let files = files_of(demo(), &config);
        files.write(&path, &longest).expect("the folder is writable");
        assert_eq!(files.read(&path).expect("it was just written").0, longest);
    }
}

#[test]
fn a_pipe_is_rejected_without_blocking() {
    let (folder, files) = (Folder::new(), files());
    let path = folder.path_of("a.prefix");
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs");
    assert!(made.success());
    let (done, outcome) = std::sync::mpsc::channel();
    let pipe = path.clone();
    std::thread::spawn(move || done.send(refusal(&files, &pipe)));
    assert_eq!(outcome.recv_timeout(Duration::from_secs(60)).expect("nothing waits for a writer"), "it is not a regular file");
}

#[test]
fn partial_files_of_ended_processes_are_removed() {
    let (folder, files) = (Folder::new(), files());
    let mut child = std::process::Command::new("true").spawn().expect("true runs");
    let (gone, own) = (child.id(), std::process::id());
    child.wait().expect("it ends");
    let old = SystemTime::now() - Duration::from_secs(4000);
    let make = |name: &str, modified| {
        let file = fs::File::create(folder.path_of(name)).expect("the folder is writable");
        file.set_modified(modified).expect("it is open");
    };
    make(&format!(".weft-{gone}-1-0.partial"), old);
    make(&format!(".weft-{own}-1-0.partial"), old);
    let parent = std::os::unix::process::parent_id();
    let mut remaining = [
        format!(".weft-{gone}-1-1.partial"),
        format!(".weft-{parent}-1-0.partial"),
        ".weft-mine.partial".to_owned(),
        format!(".weft-{gone}-1-0"),
    ];
    make(&remaining[0], SystemTime::now());
    remaining[1..].iter().for_each(|name| make(name, old));
    files.write(&folder.path_of("a.prefix"), &prefix(60, None)).expect("the folder is writable");
    let mut names = folder.names();
    names.retain(|name| name != "a.prefix");
    names.sort_unstable();
    remaining.sort_unstable();
    assert_eq!(names, remaining);
}
