//! Saved prefixes on disk, in a container of our own.
//!
//! A file belongs to the weights and the cache formats that it was saved with. All of it is held against its checksum before
//! anything in it is believed, so a file that is damaged, cut short or of another model is refused and loads nothing. How V lies
//! needs no word here: each piece says so itself, and [`Runner::restore`](crate::engine::runner::Runner::restore) turns what lies
//! the other way.
//!
//! Numbers are little-endian:
//!
//! | bytes | |
//! | --- | --- |
//! | 8 | `weftpref` |
//! | 4 | version of this format, 1 |
//! | 8 | length of the file |
//! | 32 | identity of the model |
//! | 4 + 4 | formats of K and V, by ggml's numbers |
//! | 4 + 4 + 4 | numbers of tokens, of pieces, of logits |
//! | 4 each | tokens |
//! | 4 + 4 + 8 each | first token, end and bytes of a piece |
//! | 4 each | logits, 32-bit floats |
//! | | the pieces' bytes |
//! | 32 | BLAKE3 of everything before |

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::{EngineConfig, KvType};
use crate::error::Error;
use crate::llama::Model;
use crate::llama::identity::Identity;
use crate::llama::kv_size::ggml_type;
use crate::request::{SavedPiece, SavedPrefix, Token};

const MAGIC: [u8; 8] = *b"weftpref";
const VERSION: u32 = 1;

/// Magic, version and length: read before the rest is.
const N_START: usize = 8 + 4 + 8;
/// From there to the tokens.
const N_HEADER: usize = 32 + 5 * 4;
const N_CHECKSUM: usize = 32;

/// Why a prefix was not written or read.
#[derive(Debug, thiserror::Error)]
pub enum PrefixFileError {
    /// The system refused.
    #[error("cannot {verb} {}: {source}", path.display())]
    Io {
        /// What was being done: `read` or `write`.
        verb: &'static str,
        /// The file: that of the prefix, or the model's own.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// [`Error::PrefixFile`]: it is no such file, it is damaged, or it belongs to another model or cache.
    #[error(transparent)]
    Refused(#[from] Error),
}

/// Writes and reads the prefixes of one model with one kind of cache. Every method may be called from any thread; it blocks.
#[derive(Debug, Clone)]
pub struct PrefixFiles {
    model: Arc<Model>,
    type_k: KvType,
    type_v: KvType,
}

impl PrefixFiles {
    /// For an engine of this model and configuration.
    #[must_use]
    pub fn new(model: Arc<Model>, config: &EngineConfig) -> Self {
        Self { model, type_k: config.type_k, type_v: config.type_v }
    }

    /// Writes `prefix` to `path`, whole or not at all: into another file of the same folder, which then takes its name.
    ///
    /// # Errors
    /// [`PrefixFileError::Io`].
    pub fn write(&self, path: &Path, prefix: &SavedPrefix) -> Result<(), PrefixFileError> {
        let identity = self.identity("write")?;
        let failed = |source| PrefixFileError::Io { verb: "write", path: path.to_owned(), source };
        let partial = partial_path(path);
        let written = self.write_partial(&partial, prefix, &identity).and_then(|()| fs::rename(&partial, path));
        if written.is_err() {
            // What matters is why the writing failed; there may be nothing to remove.
            let _ = fs::remove_file(&partial);
        }
        written.map_err(failed)?;
        // The new name survives a crash only once its folder is on the disk. Some systems cannot do that with a folder.
        if let Some(folder) = path.parent().and_then(|folder| File::open(folder).ok()) {
            let _ = folder.sync_all();
        }
        Ok(())
    }

    /// Reads what [`PrefixFiles::write`] has written. Takes twice the file's size in memory for a moment.
    ///
    /// # Errors
    /// [`PrefixFileError`]; nothing of such a file is used.
    pub fn read(&self, path: &Path) -> Result<SavedPrefix, PrefixFileError> {
        let bytes = read_checked(path)?;
        let identity = self.identity("read")?;
        let refuse = |reason| PrefixFileError::Refused(Error::PrefixFile { path: path.to_owned(), reason });
        self.parse(&bytes[N_START..bytes.len() - N_CHECKSUM], &identity).map_err(refuse)
    }

    fn identity(&self, verb: &'static str) -> Result<Identity, PrefixFileError> {
        let failed = |source| PrefixFileError::Io { verb, path: self.model.path().to_owned(), source };
        self.model.identity().map_err(failed)
    }

    fn write_partial(&self, path: &Path, prefix: &SavedPrefix, identity: &Identity) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        let mut out = Hashing { file, hasher: blake3::Hasher::new() };
        let header = self.header(prefix, identity)?;
        out.write_all(&header)?;
        for piece in &prefix.pieces {
            out.write_all(&piece.bytes)?;
        }
        let Hashing { mut file, hasher } = out;
        file.write_all(hasher.finalize().as_bytes())?;
        file.sync_all()
    }

    /// Everything before the pieces' bytes.
    fn header(&self, prefix: &SavedPrefix, identity: &Identity) -> io::Result<Vec<u8>> {
        let logits = prefix.logits.as_deref().unwrap_or_default();
        let number = |n: usize| u32::try_from(n).map_err(|_| io::Error::other(format!("{n} items do not fit into the format")));
        let mut rest = Vec::new();
        rest.extend(identity);
        rest.extend(ggml_type(self.type_k).to_le_bytes());
        rest.extend(ggml_type(self.type_v).to_le_bytes());
        for n in [prefix.tokens.len(), prefix.pieces.len(), logits.len()] {
            rest.extend(number(n)?.to_le_bytes());
        }
        rest.extend(prefix.tokens.iter().flat_map(|token| token.to_le_bytes()));
        for piece in &prefix.pieces {
            rest.extend(piece.range.start.to_le_bytes());
            rest.extend(piece.range.end.to_le_bytes());
            rest.extend((piece.bytes.len() as u64).to_le_bytes());
        }
        rest.extend(logits.iter().flat_map(|logit| logit.to_le_bytes()));
        let n_pieces: usize = prefix.pieces.iter().map(|piece| piece.bytes.len()).sum();
        let n_bytes = (N_START + rest.len() + n_pieces + N_CHECKSUM) as u64;
        Ok([&MAGIC[..], &VERSION.to_le_bytes(), &n_bytes.to_le_bytes(), &rest].concat())
    }

    /// Reads what lies between the start and the checksum, which has been verified. Still nothing is taken on trust: a checksum
    /// proves that the bytes are those that somebody wrote, not that we did.
    fn parse(&self, bytes: &[u8], identity: &Identity) -> Result<SavedPrefix, String> {
        let mut reader = Reader(bytes);
        if reader.take(32)? != identity {
            return Err(format!(
                "it was saved with other weights than those of {}; a prefix can be loaded only by the model that computed it",
                self.model.path().display()
            ));
        }
        for (what, own) in [("K", self.type_k), ("V", self.type_v)] {
            let found = reader.u32()?;
            if found != ggml_type(own) {
                return Err(format!("its {what} is {}; this engine's is {}", format_name(found), format_name(ggml_type(own))));
            }
        }
        let [n_tokens, n_pieces, n_logits] = [reader.size()?, reader.size()?, reader.size()?];
        let n_vocab = self.model.n_vocab();
        let tokens: Vec<Token> = reader.numbers(n_tokens)?.map(Token::from_le_bytes).collect();
        if let Some(token) = tokens.iter().find(|&&token| usize::try_from(token).map_or(true, |token| token >= n_vocab)) {
            return Err(format!("it holds token {token}, but the vocabulary has {n_vocab} pieces"));
        }
        let table = Reader(reader.take(n_pieces.checked_mul(16).ok_or(TOO_SHORT)?)?);
        let logits: Vec<f32> = reader.numbers(n_logits)?.map(f32::from_le_bytes).collect();
        if ![0, n_vocab].contains(&n_logits) {
            return Err(format!("it holds {n_logits} logits, but the vocabulary has {n_vocab} pieces"));
        }
        let pieces = read_pieces(table, n_pieces, &mut reader)?;
        let end = pieces.last().map_or(0, |piece| piece.range.end);
        if end as usize != n_tokens || n_tokens == 0 {
            return Err(format!("it holds {n_tokens} tokens, but its pieces end at {end}"));
        }
        match reader.0.len() {
            0 => Ok(SavedPrefix { tokens, pieces, logits: (n_logits > 0).then_some(logits) }),
            n => Err(format!("it holds {n} bytes that belong to nothing")),
        }
    }
}

/// Reads the pieces that `table` lists; they follow each other from 0 on.
fn read_pieces(mut table: Reader, n_pieces: usize, reader: &mut Reader) -> Result<Vec<SavedPiece>, String> {
    let mut pieces = Vec::with_capacity(n_pieces);
    let mut end = 0;
    for _ in 0..n_pieces {
        let range = table.u32()?..table.u32()?;
        if range.start != end || range.is_empty() {
            return Err(format!("a piece of tokens {range:?} follows the first {end}"));
        }
        end = range.end;
        let n_bytes = u64::from_le_bytes(table.array()?);
        let bytes = reader.take(usize::try_from(n_bytes).map_err(|_| TOO_SHORT)?)?;
        pieces.push(SavedPiece { range, bytes: bytes.into() });
    }
    Ok(pieces)
}

/// All bytes of the file, once they are known to be those that were written.
fn read_checked(path: &Path) -> Result<Vec<u8>, PrefixFileError> {
    let failed = |source| PrefixFileError::Io { verb: "read", path: path.to_owned(), source };
    let refuse = |reason: String| Err(PrefixFileError::Refused(Error::PrefixFile { path: path.to_owned(), reason }));
    let mut file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return refuse("it is not a regular file".to_owned());
    }
    let mut start = [0; N_START];
    if metadata.len() < N_START as u64 {
        return refuse(format!("it is {} bytes long, too short for a saved prefix", metadata.len()));
    }
    file.read_exact(&mut start).map_err(failed)?;
    let mut reader = Reader(&start);
    if reader.array() != Ok(MAGIC) {
        return refuse("it is no saved prefix: it does not begin with \"weftpref\"".to_owned());
    }
    let (version, n_bytes) = (reader.u32().unwrap_or_default(), reader.array().map(u64::from_le_bytes).unwrap_or_default());
    if version != VERSION {
        return refuse(format!("its format is version {version}; only version {VERSION} can be read"));
    }
    if metadata.len() != n_bytes {
        let what = if metadata.len() < n_bytes { "it is cut short" } else { "it has bytes too many" };
        return refuse(format!("{what}: it is {} bytes long and should be {n_bytes}", metadata.len()));
    }
    if n_bytes < (N_START + N_HEADER + N_CHECKSUM) as u64 {
        return refuse(format!("it is {n_bytes} bytes long, too short for a saved prefix"));
    }
    // As long as the file is, so no number in it can ask for more memory than that.
    let mut bytes = Vec::with_capacity(usize::try_from(n_bytes).map_err(|_| failed(io::ErrorKind::FileTooLarge.into()))?);
    bytes.extend(start);
    file.take(n_bytes - N_START as u64).read_to_end(&mut bytes).map_err(failed)?;
    let n_hashed = bytes.len().saturating_sub(N_CHECKSUM);
    if bytes.len() as u64 != n_bytes
        || blake3::hash(&bytes[..n_hashed]) != *<&[u8; 32]>::try_from(&bytes[n_hashed..]).unwrap_or(&[0; 32])
    {
        return refuse("it is damaged: its checksum is not that of its bytes".to_owned());
    }
    Ok(bytes)
}

/// Where a file is written until it is whole: in the same folder, under a short name, so that a long one still fits.
fn partial_path(path: &Path) -> PathBuf {
    static N_WRITTEN: AtomicU64 = AtomicU64::new(0);
    path.with_file_name(format!(".weft-{}-{}.partial", process::id(), N_WRITTEN.fetch_add(1, Ordering::Relaxed)))
}

/// ggml's name of a format, or its number.
fn format_name(number: u32) -> String {
    let known = [
        KvType::F32,
        KvType::F16,
        KvType::Bf16,
        KvType::Q8_0,
        KvType::Q4_0,
        KvType::Q4_1,
        KvType::Iq4Nl,
        KvType::Q5_0,
        KvType::Q5_1,
    ];
    let name = known.into_iter().find(|&kv_type| ggml_type(kv_type) == number).map(|kv_type| format!("{kv_type:?}"));
    name.unwrap_or_else(|| format!("format {number}"))
}

/// A file that hashes what is written to it.
struct Hashing {
    file: File,
    hasher: blake3::Hasher,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes)?;
        self.hasher.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

const TOO_SHORT: &str = "its numbers ask for more bytes than it has";

/// The bytes that are still to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(TOO_SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(self.take(N)?.try_into().expect("as many were taken"))
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn size(&mut self) -> Result<usize, String> {
        usize::try_from(self.u32()?).map_err(|_| TOO_SHORT.to_owned())
    }

    /// The next `n` numbers of four bytes.
    fn numbers(&mut self, n: usize) -> Result<impl Iterator<Item = [u8; 4]>, String> {
        let bytes = self.take(n.checked_mul(4).ok_or(TOO_SHORT)?)?;
        Ok(bytes.chunks_exact(4).map(|four| four.try_into().expect("chunks of four")))
    }
}
