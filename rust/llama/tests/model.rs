//! Tests loading, and the properties of a loaded model.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::gguf_writer::Header;
use super::tiny::write_hollow;
use super::{demo, demo_path, load, resolve_llama_cpp};
use crate::config::{EngineConfig, KvType, LoadScope, ModelConfig, Numa, Placement, Split};
use crate::error::Error;
use crate::llama::Model;

struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, content: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("weft-{}-{name}", std::process::id()));
        fs::write(&path, content).expect("the temporary folder is writable");
        Self(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Returns the reason why the file at `path` cannot be loaded.
fn refusal(path: &Path) -> String {
    match load(path) {
        Err(Error::ModelLoad { path: named, reason }) => {
            assert_eq!(named, path);
            reason
        }
        Err(other) => panic!("{other:?}"),
        Ok(model) => panic!("{model:?} was loaded"),
    }
}

/// Returns the demo model with its architecture renamed to `name`, which must have the same length.
fn with_architecture(name: [u8; 5]) -> Vec<u8> {
    let mut bytes = fs::read(demo_path()).expect("the demo model exists");
    let key = b"general.architecture";
    let offset = bytes.windows(key.len()).position(|window| window == key).expect("every GGUF names its architecture");
    // The key is followed by the value's type (4 bytes) and length (8 bytes).
    let value = offset + key.len() + 12;
    assert_eq!(&bytes[value..value + 5], b"llama");
    bytes[value..value + 5].copy_from_slice(&name);
    bytes
}

#[test]
fn a_model_reports_its_metadata() {
    let model = demo();
    assert_eq!(model.path(), demo_path());
    assert_eq!(model.architecture(), "llama");
    assert_eq!((model.n_ctx_train(), model.n_vocab(), model.n_embd()), (1024, 2048, 192));
    assert_eq!(model.vocab_type(), 1);
    assert!((2_700_000..2_800_000).contains(&model.n_params()), "{}", model.n_params());
    assert!((2_900_000..3_000_000).contains(&model.size_bytes()), "{}", model.size_bytes());
    assert!(model.description().contains("llama"), "{}", model.description());
    assert!(model.chat_template().is_some_and(|template| template.contains("<|im_start|>")));
    assert!(model.metadata().iter().any(|(key, value)| key == "llama.context_length" && value == "1024"));
    assert!(!model.is_recurrent() && !model.is_hybrid() && model.n_swa() == 0);
    // 6 layers × 2 KV heads × 32 elements × 2 bytes, K and V.
    assert_eq!(model.kv_bytes_per_token(KvType::F16, KvType::F16), 1536);
}

#[test]
fn the_demo_models_default_cache_has_8192_cells() {
    let limits = resolve_llama_cpp(&demo(), &EngineConfig::default()).expect("the defaults are valid").limits;
    assert_eq!((limits.n_slots, limits.n_ctx, limits.n_ctx_slot), (8, 8192, 1024));
}

#[test]
fn end_tokens_agree_with_is_end() {
    let model = demo();
    assert!(!model.end_tokens().is_empty());
    assert!(model.is_end(model.eos_token().expect("the demo model has an EOS")));
    assert!(model.is_end(model.eot_token().expect("the demo model has an end of turn")));
    let by_asking: Vec<i32> = (0..2048).filter(|&token| model.is_end(token)).collect();
    assert_eq!(model.end_tokens(), by_asking);
    assert!(!model.is_end(-1) && !model.is_end(2048));
}

#[test]
fn texts_round_trip_through_tokens() {
    let model = demo();
    let texts: [&[u8]; 7] = [
        b"Once upon a time, there was a cow.",
        b"",
        b"\0",
        b"a\0b\0\0c",
        "naïve Ωμέγα 日本語 🦊👩‍👩‍👧".as_bytes(),
        b"  two  spaces  \n\n\ttab ",
        b"<|im_start|> as it is",
    ];
    for text in texts {
        let tokens = model.tokenize(text, false, false).unwrap();
        let back = model.detokenize(&tokens).expect("tokens of the vocabulary");
        assert_eq!(back.escape_ascii().to_string(), text.escape_ascii().to_string(), "{tokens:?}");
    }
}

#[test]
fn every_character_round_trips_through_tokens() {
    let model = demo();
    let text: String = (0..=0x10_FFFF).step_by(37).filter_map(char::from_u32).collect();
    let back = model.detokenize(&model.tokenize(text.as_bytes(), false, false).unwrap()).expect("tokens of the vocabulary");
    assert!(back == text.into_bytes());
}

#[test]
fn invalid_utf_8_is_tokenized() {
    let model = demo();
    // llama.cpp includes bytes after an incomplete character in it, so not all of these round-trip.
    let bytes: Vec<u8> = (0..=255).rev().collect();
    assert!(model.tokenize(&bytes, true, true).unwrap().len() > 200);
    let lonely = model.tokenize(b"\xc3", false, false).unwrap();
    assert_eq!(model.detokenize(&lonely).expect("tokens of the vocabulary"), b"\xc3");
}

#[test]
fn special_tokens_are_parsed_and_added_only_on_request() {
    let model = demo();
    let bos = model.bos_token().expect("the demo model has a BOS");
    assert_eq!(model.tokenize(b"cow", true, false).unwrap()[0], bos);
    assert!(!model.tokenize(b"cow", false, false).unwrap().contains(&bos));
    let parsed = model.tokenize(b"<|im_start|>", false, true).unwrap();
    assert_eq!(parsed.len(), 1);
    assert_eq!(model.detokenize(&parsed).expect("in the vocabulary"), b"<|im_start|>");
    assert_eq!(model.piece(parsed[0]), Some(&b"<|im_start|>"[..]));
    assert_eq!(model.text_piece(parsed[0]), Some(&b""[..]));
    assert!(model.tokenize(b"<|im_start|>", false, false).unwrap().len() > 1);
}

#[test]
fn a_token_outside_of_the_vocabulary_is_an_error() {
    let model = demo();
    for token in [-1, 2048, i32::MAX, i32::MIN] {
        assert!(matches!(model.detokenize(&[token]), Err(Error::InvalidRequest { param: "tokens", .. })), "{token}");
        assert_eq!((model.piece(token), model.text_piece(token)), (None, None));
    }
}

#[test]
fn loading_reports_progress_up_to_1() {
    let fractions = Arc::new(Mutex::new(Vec::new()));
    let config = ModelConfig { n_gpu_layers: Some(0), use_mmap: false, ..ModelConfig::at(demo_path()) };
    let writer = Arc::clone(&fractions);
    let model = Model::load(&config, move |fraction| writer.lock().expect("no thread panics").push(fraction));
    assert!(model.is_ok());
    let fractions = fractions.lock().expect("no thread panics");
    assert!(fractions.is_sorted() && fractions.last() == Some(&1.0), "{fractions:?}");
}

/// Returns the message with which a load of the demo model with this configuration is rejected.
fn refused(config: &ModelConfig) -> String {
    match Model::load(config, |_| {}) {
        Err(Error::ModelLoad { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

fn placed(placement: Placement) -> ModelConfig {
    ModelConfig { placement, ..ModelConfig::at(demo_path()) }
}

#[test]
fn a_model_loads_with_every_load_mode_and_placement() {
    let whole = ModelConfig::at(demo_path());
    let configs = [
        ModelConfig { use_mmap: false, use_mlock: true, ..whole.clone() },
        ModelConfig { use_mlock: true, ..whole.clone() },
        ModelConfig { use_direct_io: true, ..whole.clone() },
        ModelConfig { check_tensors: true, ..whole },
        placed(Placement { devices: Some(Vec::new()), ..Placement::default() }),
        placed(Placement { split: Split::Row, main_gpu: 1, tensor_split: vec![3.0, 1.0], ..Placement::default() }),
        placed(Placement { split: Split::None, ..Placement::default() }),
        placed(Placement { numa: Some(Numa::Distribute), ..Placement::default() }),
        placed(Placement { numa: Some(Numa::Distribute), ..Placement::default() }),
    ];
    for config in configs {
        let model = Model::load(&config, |_| {}).unwrap_or_else(|error| panic!("{config:?}: {error}"));
        assert_eq!(model.n_vocab(), demo().n_vocab());
    }
    // Threads are bound per process, so the rejection is tested here, after they were bound.
    let message = refused(&placed(Placement { numa: Some(Numa::Isolate), ..Placement::default() }));
    assert!(message.contains("numa cannot be changed to Isolate: this process already uses Distribute"), "{message}");
}

#[test]
fn an_impossible_placement_is_rejected() {
    let unknown = refused(&placed(Placement { devices: Some(vec!["Abacus0".to_owned()]), ..Placement::default() }));
    assert_eq!(unknown, "there is no device \"Abacus0\" other than the CPU");
    let cpu = refused(&placed(Placement { devices: Some(vec!["CPU".to_owned()]), ..Placement::default() }));
    assert_eq!(cpu, "there is no device \"CPU\" other than the CPU");
    let many = refused(&placed(Placement { tensor_split: vec![1.0; 1000], ..Placement::default() }));
    assert!(many.starts_with("tensor_split has 1000 entries; at most "), "{many}");
}

#[test]
fn nan_weights_are_detected_if_tensors_are_checked() {
    let mut whole = fs::read(demo_path()).expect("the demo model exists");
    // The file ends with weights: blocks of a 16-bit scale and 32 8-bit weights, and a scale of all ones is NaN.
    let from = whole.len() - 4096;
    whole[from..].fill(0xff);
    let file = TempFile::new("no-numbers", &whole);
    let config = ModelConfig::at(file.0.clone());
    assert!(Model::load(&config, |_| {}).is_ok());
    let reason = refused(&ModelConfig { check_tensors: true, ..config });
    assert!(reason.contains("invalid data"), "{reason}");
}

#[test]
fn an_invalid_file_is_rejected_with_the_reason() {
    assert!(refusal(Path::new("/nowhere/model.gguf")).contains("no such file"));
    assert!(refusal(&std::env::temp_dir()).contains("directory"));
    assert!(refusal(&TempFile::new("empty", b"").0).contains("empty"));
    let garbage = refusal(&TempFile::new("garbage", b"PK\x03\x04 and so on").0);
    assert!(garbage.contains("not a GGUF file") && garbage.contains("PK\\x03\\x04"), "{garbage}");
}

#[test]
fn a_truncated_file_is_reported_as_such() {
    let whole = fs::read(demo_path()).expect("the demo model exists");
    let in_tensors = refusal(&TempFile::new("cut-in-tensors", &whole[..whole.len() / 2]).0);
    assert!(in_tensors.contains("not within the file bounds"), "{in_tensors}");
    for length in [4, 20, 30, 1000, 20_000] {
        let in_metadata = refusal(&TempFile::new(&format!("cut-at-{length}"), &whole[..length]).0);
        assert!(in_metadata.contains("truncated"), "{in_metadata}");
    }
}

#[test]
fn an_unsupported_architecture_is_named() {
    let unknown = refusal(&TempFile::new("unknown", &with_architecture(*b"lemma")).0);
    assert!(unknown.contains("unknown model architecture: 'lemma'"), "{unknown}");
    let reason = refusal(&TempFile(write_hollow("clef", "llama")).0);
    assert!(reason.contains("architecture, clef, is a component of another model"), "{reason}");
}

#[test]
fn a_file_without_a_vocabulary_is_rejected() {
    let file = TempFile(write_hollow("llama", "no_vocab"));
    assert_eq!(refusal(&file.0), "it has no vocabulary, so it cannot process text");
}

/// Writes a part of a split model as llama.cpp does: all but the first contain only their number and tensors.
fn part(name: &str, number: u16, n_parts: u16) -> TempFile {
    let mut header = Header::default();
    header.u16("split.no", number - 1);
    header.u16("split.count", n_parts);
    TempFile::new(name, &header.to_bytes())
}

#[test]
fn a_later_part_of_a_split_model_is_rejected_with_the_first_parts_name() {
    let file = part("big-00002-of-00003.gguf", 2, 3);
    let first = file.0.file_name().expect("it has a name").to_string_lossy().replace("-00002-", "-00001-");
    let reason = refusal(&file.0);
    assert_eq!(reason, format!("it is part 2 of 3 of a model; give the first part, {first}, with the others in the same folder"));
    let reason = refusal(&part("renamed.gguf", 3, 3).0);
    assert!(reason.starts_with("it is part 3 of 3 of a model; give the first part, NAME-00001-of-00003.gguf"), "{reason}");
    let reason = refusal(&part("first.gguf", 1, 3).0);
    assert_eq!(reason, "it is part 1 of 3 of a model; name it NAME-00001-of-00003.gguf, and the other parts accordingly");
}

#[test]
fn a_file_that_complements_a_model_is_described() {
    for (key, value, expected) in [
        ("general.type", "adapter", "an adapter of a model (lora)"),
        ("general.type", "mmproj", "a projector that reads images or audio for a model (mmproj)"),
        ("general.architecture", "clip", "a projector that reads images or audio for a model (mmproj)"),
        ("general.type", "imatrix", "an importance matrix, for quantizing a model"),
        ("general.architecture", "controlvector", "a control vector of a model"),
    ] {
        let mut header = Header::default();
        header.string(key, value);
        let file = TempFile::new(&format!("{value}.gguf"), &header.to_bytes());
        assert_eq!(refusal(&file.0), format!("it is {expected}, not a model"));
    }
}

#[test]
fn two_threads_load_concurrently() {
    std::thread::scope(|scope| {
        let loads: Vec<_> = (0..2).map(|_| scope.spawn(|| load(&demo_path()).map(|model| model.n_vocab()))).collect();
        for handle in loads {
            assert_eq!(handle.join().expect("no panic"), Ok(2048));
        }
    });
}

#[test]
fn a_vocabulary_alone_tokenizes_but_does_not_run() {
    let config = ModelConfig { scope: LoadScope::Vocabulary, ..ModelConfig::at(demo_path()) };
    let model = Arc::new(Model::load(&config, |_| {}).expect("the demo model has a vocabulary"));
    let text = "Once upon a time, there was a fox.";
    assert_eq!(model.tokenize(text.as_bytes(), true, true).unwrap(), demo().tokenize(text.as_bytes(), true, true).unwrap());
    assert!(matches!(crate::llama::start(&model, &EngineConfig::default()), Err(Error::ModelLoad { .. })));
}
