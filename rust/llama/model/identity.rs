//! Identity of a model's weights, as a hash that files can carry.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::llama::model::gguf::Metadata;

pub(crate) type Identity = [u8; 32];

pub(crate) fn with_change(identity: Identity, change: &str) -> Identity {
    if change.is_empty() {
        return identity;
    }
    *blake3::Hasher::new().update(&identity).update(change.as_bytes()).finalize().as_bytes()
}

/// Maximum size of a file that is hashed completely: about one second of work.
const MAX_WHOLE_BYTES: u64 = 1 << 30;

const N_SAMPLED_BLOCKS: u64 = 64;

const BLOCK_BYTES: u64 = 4096;

#[derive(Debug)]
pub(crate) struct ModelFiles {
    files: Vec<ModelFile>,
    identity: OnceLock<Identity>,
}

#[derive(Debug, PartialEq, Eq)]
struct ModelFile {
    path: PathBuf,
    n_bytes: u64,
    modified: Option<SystemTime>,
}

impl ModelFiles {
    /// Opens the file at `path`, or all `n_parts` of the split model whose first part it is. Fails if one of them is missing.
    pub(crate) fn open(path: &Path, n_parts: u32) -> io::Result<Self> {
        let paths = (0..n_parts.max(1)).map(|part| part_path(path, part, n_parts));
        Ok(Self { files: paths.map(ModelFile::open).collect::<Result<_, _>>()?, identity: OnceLock::new() })
    }

    /// Returns a hash of the files, which are read at the first call.
    ///
    /// Covers every byte of a file of up to 1 GiB. Of a larger file: the length, everything before the tensors, the first, middle and
    /// last 4 KiB of each tensor (all of it up to 12 KiB), and 64 blocks evenly spaced. Training, merging or requantizing changes nearly
    /// every block. Fails if a file has changed since it was loaded.
    pub(crate) fn identity(&self) -> io::Result<Identity> {
        if let Some(identity) = self.identity.get() {
            return Ok(*identity);
        }
        let identity = self.hash(MAX_WHOLE_BYTES)?;
        Ok(*self.identity.get_or_init(|| identity))
    }

    pub(crate) fn hash(&self, n_whole: u64) -> io::Result<Identity> {
        let mut hasher = blake3::Hasher::new();
        for file in &self.files {
            file.hash_into(&mut hasher, n_whole).map_err(|error| {
                let name = file.path.file_name().unwrap_or_default().to_string_lossy();
                io::Error::new(error.kind(), format!("{name}: {error}"))
            })?;
        }
        Ok(*hasher.finalize().as_bytes())
    }
}

impl ModelFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        let metadata = fs::metadata(&path)?;
        Ok(Self { n_bytes: metadata.len(), modified: metadata.modified().ok(), path })
    }

    fn hash_into(&self, hasher: &mut blake3::Hasher, n_whole: u64) -> io::Result<()> {
        self.check()?;
        hasher.update(&self.n_bytes.to_le_bytes());
        let mut file = File::open(&self.path)?;
        if self.n_bytes <= n_whole {
            hash_range(hasher, &mut file, 0..self.n_bytes)?;
        } else {
            let metadata = Metadata::open(&self.path).map_err(io::Error::other)?;
            let n_header = metadata.data_offset().min(self.n_bytes);
            hash_range(hasher, &mut file, 0..n_header)?;
            let blocks = metadata.named_tensors().flat_map(|(_, tensor)| sample_blocks(&tensor.range(), 3));
            for block in blocks.chain(sample_blocks(&(n_header..self.n_bytes), N_SAMPLED_BLOCKS)) {
                hash_range(hasher, &mut file, block)?;
            }
        }
        self.check()
    }

    fn check(&self) -> io::Result<()> {
        if Self::open(self.path.clone())? == *self { Ok(()) } else { Err(io::Error::other("it has changed since it was loaded")) }
    }
}

fn sample_blocks(range: &Range<u64>, n: u64) -> Vec<Range<u64>> {
    let n_bytes = range.end - range.start;
    if n_bytes <= n * BLOCK_BYTES {
        return vec![range.clone()];
    }
    let start_of = |block: u64| {
        let from_start = u128::from(n_bytes - BLOCK_BYTES) * u128::from(block) / u128::from(n - 1);
        range.start + u64::try_from(from_start).expect("at most the length of the file")
    };
    (0..n).map(|block| start_of(block)..start_of(block) + BLOCK_BYTES).collect()
}

fn hash_range(hasher: &mut blake3::Hasher, file: &mut File, range: Range<u64>) -> io::Result<()> {
    file.seek(SeekFrom::Start(range.start))?;
    let mut n_remaining = range.end - range.start;
    let mut buffer = vec![0; usize::try_from(n_remaining.min(1 << 18)).expect("at most 256 KiB")];
    while n_remaining > 0 {
        let n = buffer.len().min(usize::try_from(n_remaining).unwrap_or(usize::MAX));
        file.read_exact(&mut buffer[..n])?;
        hasher.update(&buffer[..n]);
        n_remaining -= n as u64;
    }
    Ok(())
}

/// Path of part `part`, counted from 0, of a model in `n_parts` parts: llama.cpp names them `name-00001-of-00003.gguf`.
fn part_path(first: &Path, part: u32, n_parts: u32) -> PathBuf {
    let name = first.file_name().unwrap_or_default().to_string_lossy();
    match name.strip_suffix(&format!("-00001-of-{n_parts:05}.gguf")) {
        Some(stem) => first.with_file_name(format!("{stem}-{:05}-of-{n_parts:05}.gguf", part + 1)),
        None => first.to_owned(),
    }
}

pub(crate) fn other_parts(first: &Path) -> Vec<PathBuf> {
    let name = first.file_name().unwrap_or_default().to_string_lossy();
    let n_parts = name.strip_suffix(".gguf").and_then(|stem| stem.rsplit_once("-00001-of-")?.1.parse().ok());
    (1..n_parts.unwrap_or(1)).map(|part| part_path(first, part, n_parts.unwrap_or(1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_part_of_a_split_model_names_the_others() {
        let [first, second] = [1, 2].map(|part| PathBuf::from(format!("/models/big-0000{part}-of-00002.gguf")));
        assert_eq!(other_parts(&first), [second]);
        assert!(other_parts(Path::new("/models/one.gguf")).is_empty());
    }

    #[test]
    fn parts_follow_llama_cpps_naming_scheme() {
        let first = Path::new("/models/big-00001-of-00012.gguf");
        assert_eq!(part_path(first, 0, 12), first);
        assert_eq!(part_path(first, 11, 12), Path::new("/models/big-00012-of-00012.gguf"));
        assert_eq!(part_path(Path::new("/models/one.gguf"), 0, 1), Path::new("/models/one.gguf"));
    }
}
