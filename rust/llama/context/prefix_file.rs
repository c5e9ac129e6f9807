//! Saved prefixes on disk, in a format of our own.
//!
//! A file belongs to the weights and cache formats that it was saved with. Nothing in it is used before its checksum is verified.
//!
//! Numbers are little-endian:
//!
//! | bytes | |
//! | --- | --- |
//! | 8 | `weftpref` |
//! | 4 | version of this format: 1, 2 if computed with adapters, or 3 if one of them is an activated one |
//! | 8 | length of the file |
//! | 32 | identity of the model, including overrides of its positions and its metadata |
//! | 4 + 4 | formats of K and V, by ggml's numbers |
//! | 4 + 4 + 4 | numbers of tokens, of saved states, of logits |
//! | 4 | number of adapters, in versions 2 and 3 |
//! | 32 + 4 each | identity of an adapter, and its scale |
//! | 4 | index of the token from which an activated adapter applies, only in version 3 |
//! | 4 each | tokens |
//! | 4 + 4 + 8 each | first token, end and size in bytes of a saved state |
//! | 4 each | logits, 32-bit floats |
//! | | bytes of the saved states |
//! | 32 | BLAKE3 of everything before |

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use crate::config::{KvType, Named, ResolvedConfig};
use crate::error::Error;
use crate::llama::context::{byte_reader::ByteReader, kv_size::ggml_type};
use crate::llama::model::identity::{Identity, with_change};
use crate::llama::{Adapter, Model};
use crate::request::{SavedPrefix, SavedRun, Token, is_in_vocabulary};

const MAGIC: [u8; 8] = *b"weftpref";
const VERSION: u32 = 1;
const VERSION_ADAPTED: u32 = 2;
const VERSION_ACTIVATED: u32 = 3;

const START_BYTES: usize = 8 + 4 + 8;
const HEADER_BYTES: usize = 32 + 5 * 4;
const CHECKSUM_BYTES: usize = 32;

#[derive(Debug, thiserror::Error)]
pub enum PrefixFileError {
    #[error("cannot {verb} {}: {source}", path.display())]
    Io { verb: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot identify the weights of the model: {source}")]
    Model { path: PathBuf, source: io::Error },
    /// [`Error::PrefixFile`]: it is not a saved prefix, is damaged, or belongs to another model or cache.
    #[error(transparent)]
    Refused(#[from] Error),
}

#[derive(Debug, Clone)]
pub struct PrefixFiles {
    model: Arc<Model>,
    type_k: KvType,
    type_v: KvType,
    positions: String,
    n_tokens: u32,
}

impl PrefixFiles {
    pub fn new(model: Arc<Model>, config: &ResolvedConfig) -> Self {
        // No sequence is longer than the number of positions, however large the context is.
        let n_tokens = config.limits.n_ctx.min(model.reach(&config.settings.rope));
        // Without rotations, overrides have no effect.
        let positions = if model.has_rotations() { config.settings.rope.describe() } else { String::new() };
        Self { model, type_k: config.settings.type_k, type_v: config.settings.type_v, positions, n_tokens }
    }

    /// Writes atomically; returns the number of bytes. Also removes partial files of ended processes that are over an hour old.
    pub fn write(&self, path: &Path, prefix: &SavedPrefix) -> Result<u64, PrefixFileError> {
        let failed = |source| PrefixFileError::Io { verb: "write", path: path.to_owned(), source };
        if path.file_name().is_none() {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "the path must end with a file name")));
        }
        let identity = self.identity()?;
        let adapters = if prefix.adapters.is_empty() { Vec::new() } else { self.adapter_identities()? };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        remove_stale(folder);
        let partial = partial_path(path);
        let result = self.write_partial(&partial, prefix, &identity, &adapters);
        let result = result.and_then(|n_bytes| fs::rename(&partial, path).map(|()| n_bytes));
        if result.is_err() {
            let _ = fs::remove_file(&partial);
        }
        let n_bytes = result.map_err(failed)?;
        // The new name survives a crash only once its folder is on the disk. Some systems cannot sync a folder.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        Ok(n_bytes)
    }

    /// Reads a file; also returns the number of bytes read. Temporarily needs twice the file's size in memory.
    pub fn read(&self, path: &Path) -> Result<(SavedPrefix, u64), PrefixFileError> {
        let bytes = read_checked(path, self.max_bytes())?;
        let identity = self.identity()?;
        let refuse = |reason| PrefixFileError::Refused(Error::PrefixFile { path: path.to_owned(), reason });
        let version = ByteReader(&bytes[MAGIC.len()..]).u32().expect("the length was checked");
        let adapters = if version == VERSION { Vec::new() } else { self.adapter_identities()? };
        let parsed = self.parse(&bytes[START_BYTES..bytes.len() - CHECKSUM_BYTES], version, &identity, &adapters);
        let prefix = parsed.map_err(refuse)?;
        Ok((prefix, bytes.len() as u64))
    }

    /// Maximum size of a file: twice an estimate, and 64 MiB. Longer files, which were not written here, allocate no memory.
    fn max_bytes(&self) -> u64 {
        let n_per_token = self.model.kv_bytes_per_token(self.type_k, self.type_v) + 128;
        // llama.cpp does not report the size of a state. It has fewer bytes than the weights that compute it.
        let n_state = if self.model.keeps_states() { self.model.size_bytes() } else { 0 };
        let n_logits = self.model.n_vocab() as u64 * 4;
        2 * (u64::from(self.n_tokens) * n_per_token + n_state + n_logits) + (64 << 20)
    }

    fn identity(&self) -> Result<Identity, PrefixFileError> {
        let identity = self.model.identity();
        let identity = identity.map_err(|source| PrefixFileError::Model { path: self.model.path().to_owned(), source })?;
        Ok(with_change(identity, &self.positions))
    }

    fn adapter_identities(&self) -> Result<Vec<Identity>, PrefixFileError> {
        let identity = |adapter: &Adapter| {
            adapter.identity().map_err(|source| PrefixFileError::Model { path: adapter.path.clone(), source })
        };
        self.model.adapters().iter().map(identity).collect()
    }

    fn write_partial(&self, path: &Path, prefix: &SavedPrefix, identity: &Identity, adapters: &[Identity]) -> io::Result<u64> {
        let header = self.build_header(prefix, identity, adapters)?;
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        let mut hasher = blake3::Hasher::new();
        let mut n_bytes = CHECKSUM_BYTES as u64;
        for bytes in std::iter::once(&header[..]).chain(prefix.runs.iter().map(|state| &state.bytes[..])) {
            file.write_all(bytes)?;
            hasher.update(bytes);
            n_bytes += bytes.len() as u64;
        }
        file.write_all(hasher.finalize().as_bytes())?;
        file.sync_all()?;
        Ok(n_bytes)
    }

    fn build_header(&self, prefix: &SavedPrefix, identity: &Identity, adapters: &[Identity]) -> io::Result<Vec<u8>> {
        let logits = prefix.logits.as_deref().unwrap_or_default();
        let number = |n: usize| {
            let too_many = || format!("the prefix has {n} items of one kind; the format supports fewer than 2³²");
            u32::try_from(n).map_err(|_| io::Error::other(too_many()))
        };
        let mut rest = Vec::new();
        rest.extend(identity);
        rest.extend(ggml_type(self.type_k).to_le_bytes());
        rest.extend(ggml_type(self.type_v).to_le_bytes());
        for n in [prefix.tokens.len(), prefix.runs.len(), logits.len()] {
            rest.extend(number(n)?.to_le_bytes());
        }
        let is_adapted = !prefix.adapters.is_empty();
        if is_adapted || prefix.invoked_at.is_some() {
            rest.extend(number(prefix.adapters.len())?.to_le_bytes());
        }
        for &(id, scale) in &prefix.adapters {
            let adapter = adapters.get(id as usize).ok_or_else(|| io::Error::other(format!("adapter {id} is not loaded")))?;
            rest.extend(adapter);
            rest.extend(scale.to_le_bytes());
        }
        rest.extend(prefix.invoked_at.iter().flat_map(|index| index.to_le_bytes()));
        rest.extend(prefix.tokens.iter().flat_map(|token| token.to_le_bytes()));
        for state in &prefix.runs {
            rest.extend(state.range.start.to_le_bytes());
            rest.extend(state.range.end.to_le_bytes());
            rest.extend((state.bytes.len() as u64).to_le_bytes());
        }
        rest.extend(logits.iter().flat_map(|logit| logit.to_le_bytes()));
        let n_state_bytes: usize = prefix.runs.iter().map(|state| state.bytes.len()).sum();
        let n_bytes = (START_BYTES + rest.len() + n_state_bytes + CHECKSUM_BYTES) as u64;
        let version = match prefix.invoked_at {
            Some(_) => VERSION_ACTIVATED,
            None if is_adapted => VERSION_ADAPTED,
            None => VERSION,
        };
        Ok([&MAGIC[..], &version.to_le_bytes(), &n_bytes.to_le_bytes(), &rest].concat())
    }

    /// Validates everything: the checksum does not prove that we wrote the bytes. `loaded`: the loaded adapters, from version 2 on.
    fn parse(&self, bytes: &[u8], version: u32, identity: &Identity, loaded: &[Identity]) -> Result<SavedPrefix, String> {
        let mut reader = ByteReader(bytes);
        if reader.take(32).ok_or(TOO_SHORT)? != identity {
            // Clients of a server read this: include the file's name, but not its folder.
            let name = self.model.path().file_name().unwrap_or_default().display();
            return Err(format!(
                "it was not computed by {name} with the same position encoding (--rope-…, --yarn-…) and metadata (--override-kv); load \
                 it with the model and the options that it was saved with"
            ));
        }
        for (what, own) in [("K", self.type_k), ("V", self.type_v)] {
            let found = reader.u32().ok_or(TOO_SHORT)?;
            if found != ggml_type(own) {
                let [found, own] = [found, ggml_type(own)].map(format_name);
                return Err(format!("the format of its {what} is {found}; that of this engine is {own}"));
            }
        }
        let [n_tokens, n_states, n_logits] =
            [reader.size().ok_or(TOO_SHORT)?, reader.size().ok_or(TOO_SHORT)?, reader.size().ok_or(TOO_SHORT)?];
        let adapters = if version == VERSION { Vec::new() } else { read_adapters(&mut reader, loaded)? };
        let invoked_at = if version == VERSION_ACTIVATED { Some(reader.u32().ok_or(TOO_SHORT)?) } else { None };
        let n_vocab = self.model.n_vocab();
        let tokens: Vec<Token> = read_numbers(&mut reader, n_tokens).ok_or(TOO_SHORT)?.map(Token::from_le_bytes).collect();
        if let Some(token) = tokens.iter().find(|&&token| !is_in_vocabulary(token, n_vocab)) {
            return Err(format!("token {token} is not in the vocabulary ({n_vocab} tokens)"));
        }
        let table = n_states.checked_mul(16).and_then(|n_bytes| reader.take(n_bytes)).map(ByteReader).ok_or(TOO_SHORT)?;
        let logits: Vec<f32> = read_numbers(&mut reader, n_logits).ok_or(TOO_SHORT)?.map(f32::from_le_bytes).collect();
        if ![0, n_vocab].contains(&n_logits) {
            return Err(format!("it has {n_logits} logits, but the vocabulary has {n_vocab} tokens"));
        }
        let states = read_states(table, n_states, &mut reader)?;
        let end = states.last().map_or(0, |state| state.range.end);
        if end as usize != n_tokens || n_tokens == 0 {
            return Err(format!("it has {n_tokens} tokens, but its saved states end at {end}"));
        }
        match reader.0.len() {
            0 => Ok(SavedPrefix { tokens, runs: states, logits: (n_logits > 0).then_some(logits), adapters, invoked_at }),
            n => Err(format!("it has {n} extra bytes at its end")),
        }
    }
}

fn read_adapters(reader: &mut ByteReader, loaded: &[Identity]) -> Result<Vec<(u32, f32)>, String> {
    let n = reader.size().ok_or(TOO_SHORT)?;
    let mut adapters = Vec::new();
    for _ in 0..n {
        let identity: Identity = reader.array().ok_or(TOO_SHORT)?;
        let scale = f32::from_le_bytes(reader.array().ok_or(TOO_SHORT)?);
        let id = (0..).zip(loaded).find(|(_, loaded)| **loaded == identity).map(|(id, _)| id);
        let id = id.ok_or("it was computed with an adapter that is not loaded here; start with the same --lora")?;
        if !scale.is_finite() || adapters.iter().any(|&(other, _)| other == id) {
            return Err("its list of adapters has a duplicate, or a scale that is not finite".to_owned());
        }
        adapters.push((id, scale));
    }
    Ok(adapters)
}

fn read_states(mut table: ByteReader, n_states: usize, reader: &mut ByteReader) -> Result<Vec<SavedRun>, String> {
    let mut states = Vec::with_capacity(n_states);
    let mut end = 0;
    for _ in 0..n_states {
        let range = table.u32().ok_or(TOO_SHORT)?..table.u32().ok_or(TOO_SHORT)?;
        if range.start != end || range.is_empty() {
            return Err(format!("a saved state has the tokens {range:?}, where it must start at {end}"));
        }
        end = range.end;
        let bytes = table.long_size().and_then(|n_bytes| reader.take(n_bytes)).ok_or(TOO_SHORT)?;
        states.push(SavedRun { range, bytes: bytes.into() });
    }
    Ok(states)
}

/// Describes the format of a foreign file. llama.cpp writes its magic numbers as 32-bit integers.
fn describe_other_format(start: &[u8; START_BYTES]) -> String {
    const SEQUENCE: u32 = u32::from_be_bytes(*b"ggsq");
    const SESSION: u32 = u32::from_be_bytes(*b"ggsn");
    let mut reader = ByteReader(start);
    let (magic, version) = (reader.u32().unwrap_or_default(), reader.u32().unwrap_or_default());
    let (what, writer) = match magic {
        SEQUENCE => ("a slot file of llama-server", "POST /slots/ID?action=save"),
        SESSION => ("a session file of llama.cpp", "--prompt-cache"),
        _ => return "it is not a saved prefix: it does not begin with \"weftpref\"".to_owned(),
    };
    format!(
        "it is {what}, format version {version}, written by {writer}; only saved prefixes of Weft, versions {VERSION} to \
         {VERSION_ACTIVATED}, can be read: compute the prompt again and save it with Weft"
    )
}

fn read_checked(path: &Path, max_bytes: u64) -> Result<Vec<u8>, PrefixFileError> {
    let failed = |source| PrefixFileError::Io { verb: "read", path: path.to_owned(), source };
    let refuse = |reason: String| Err(PrefixFileError::Refused(Error::PrefixFile { path: path.to_owned(), reason }));
    let mut file = open_to_read(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return refuse("it is not a regular file".to_owned());
    }
    let mut start = [0; START_BYTES];
    if metadata.len() < START_BYTES as u64 {
        return refuse(format!("it has {} bytes, too few for a saved prefix", metadata.len()));
    }
    file.read_exact(&mut start).map_err(failed)?;
    let mut reader = ByteReader(&start);
    if reader.array() != Some(MAGIC) {
        return refuse(describe_other_format(&start));
    }
    let (version, n_bytes) = (reader.u32().unwrap_or_default(), reader.array().map(u64::from_le_bytes).unwrap_or_default());
    if ![VERSION, VERSION_ADAPTED, VERSION_ACTIVATED].contains(&version) {
        let supported = format!("only versions {VERSION} to {VERSION_ACTIVATED} can be read");
        return refuse(format!("its format version is {version}; {supported}"));
    }
    if metadata.len() != n_bytes {
        let what = if metadata.len() < n_bytes { "it is truncated" } else { "it has extra bytes at its end" };
        return refuse(format!("{what}: it has {} bytes and should have {n_bytes}", metadata.len()));
    }
    if n_bytes < (START_BYTES + HEADER_BYTES + CHECKSUM_BYTES) as u64 {
        return refuse(format!("it has {n_bytes} bytes, too few for a saved prefix"));
    }
    if n_bytes > max_bytes {
        return refuse(format!("it has {n_bytes} bytes; a prefix of this model and context has at most {max_bytes}"));
    }
    // Bounded by the file's length, so no number in the file can request more memory than that.
    let mut bytes = Vec::new();
    let n_reserved = usize::try_from(n_bytes).map_err(|_| failed(io::ErrorKind::FileTooLarge.into()))?;
    bytes.try_reserve_exact(n_reserved).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
    bytes.extend(start);
    file.take(n_bytes - START_BYTES as u64).read_to_end(&mut bytes).map_err(failed)?;
    let n_hashed = bytes.len().saturating_sub(CHECKSUM_BYTES);
    if bytes.len() as u64 != n_bytes
        || blake3::hash(&bytes[..n_hashed]) != *<&[u8; 32]>::try_from(&bytes[n_hashed..]).unwrap_or(&[0; 32])
    {
        return refuse("it is damaged: its checksum does not match".to_owned());
    }
    Ok(bytes)
}

/// Does not block: opening a FIFO would otherwise wait for a writer.
fn open_to_read(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(libc::O_NONBLOCK);
    }
    options.open(path)
}

const PARTIAL: (&str, &str) = (".weft-", ".partial");

/// Distinguishes this process from an earlier one with the same id, as in containers with a single process.
static STARTED: LazyLock<u128> =
    LazyLock::new(|| SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since_epoch| since_epoch.as_nanos()));

/// In the same folder, under a short name, so that it fits even if `path` has a long name.
fn partial_path(path: &Path) -> PathBuf {
    static N_WRITTEN: AtomicU64 = AtomicU64::new(0);
    let (prefix, suffix) = PARTIAL;
    let number = N_WRITTEN.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!("{prefix}{}-{}-{number}{suffix}", process::id(), *STARTED))
}

fn remove_stale(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_stale(&entry.file_name().to_string_lossy())) {
        // Processes of another machine or container are not visible here; a file that is being written is younger than this.
        let age =
            entry.metadata().and_then(|metadata| metadata.modified()).map(|modified| modified.elapsed().unwrap_or_default());
        if age.is_ok_and(|age| age > Duration::from_secs(3600)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_stale(name: &str) -> bool {
    let (prefix, suffix) = PARTIAL;
    let parts = name.strip_prefix(prefix).and_then(|name| name.strip_suffix(suffix));
    let Some(parts) = parts.map(|parts| parts.split('-').collect::<Vec<_>>()) else { return false };
    let [process, started, _] = parts[..] else { return false };
    let (Ok(process), Ok(started)) = (process.parse::<u32>(), started.parse::<u128>()) else { return false };
    if process == process::id() {
        return started != *STARTED;
    }
    Path::new("/proc/self").exists() && !Path::new("/proc").join(process.to_string()).exists()
}

fn format_name(number: u32) -> String {
    let known = KvType::NAMES.iter().find(|(_, kv_type)| ggml_type(*kv_type) == number);
    known.map_or_else(|| format!("format {number}"), |(_, kv_type)| format!("{kv_type:?}"))
}

const TOO_SHORT: &str = "its sizes exceed its length";

fn read_numbers<'a>(reader: &mut ByteReader<'a>, n: usize) -> Option<impl Iterator<Item = [u8; 4]> + use<'a>> {
    let bytes = reader.take(n.checked_mul(4)?)?;
    Some(bytes.chunks_exact(4).map(|four| four.try_into().expect("chunks of four")))
}
