//! Which weights a model has, as a number that a file can carry.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use crate::llama::gguf::Metadata;

/// BLAKE3 over a sample of the files; see [`ModelFiles::identity`].
pub(super) type Identity = [u8; 32];

/// Blocks of each file's tensors that are read, evenly spaced from the first byte to the last.
const N_BLOCKS: u64 = 64;

/// Bytes of a block.
const BLOCK: u64 = 4096;

/// The files that a model was loaded from.
#[derive(Debug)]
pub(super) struct ModelFiles {
    parts: Vec<Part>,
    identity: OnceLock<Identity>,
}

#[derive(Debug, PartialEq, Eq)]
struct Part {
    path: PathBuf,
    n_bytes: u64,
    modified: Option<SystemTime>,
}

impl ModelFiles {
    /// The file at `path`, or all `n_parts` of the split model whose first part it is.
    ///
    /// # Errors
    /// If one of them is not there.
    pub(super) fn of(path: &Path, n_parts: u32) -> io::Result<Self> {
        let paths = (0..n_parts.max(1)).map(|part| part_path(path, part, n_parts));
        Ok(Self { parts: paths.map(Part::at).collect::<Result<_, _>>()?, identity: OnceLock::new() })
    }

    /// A hash of the files' headers and lengths and of a sample of their tensors, read at the first call: milliseconds, where a hash
    /// of everything would read gigabytes. Two files that people would call different models differ in their headers or in nearly
    /// every block.
    ///
    /// # Errors
    /// If a file cannot be read, or is no longer the one that was loaded.
    pub(super) fn identity(&self) -> io::Result<Identity> {
        if let Some(identity) = self.identity.get() {
            return Ok(*identity);
        }
        let mut hasher = blake3::Hasher::new();
        for part in &self.parts {
            if Part::at(part.path.clone())? != *part {
                let message = format!("the model's file {} has changed since it was loaded", part.path.display());
                return Err(io::Error::other(message));
            }
            part.add_to(&mut hasher)?;
        }
        let identity = *hasher.finalize().as_bytes();
        Ok(*self.identity.get_or_init(|| identity))
    }
}

impl Part {
    fn at(path: PathBuf) -> io::Result<Self> {
        let metadata = fs::metadata(&path)?;
        Ok(Self { n_bytes: metadata.len(), modified: metadata.modified().ok(), path })
    }

    fn add_to(&self, hasher: &mut blake3::Hasher) -> io::Result<()> {
        let n_header = Metadata::open(&self.path).map_err(io::Error::other)?.data_offset().min(self.n_bytes);
        hasher.update(&self.n_bytes.to_le_bytes());
        let mut file = File::open(&self.path)?;
        add_stretch(hasher, &mut file, n_header)?;
        let n_tensors = self.n_bytes - n_header;
        if n_tensors <= N_BLOCKS * BLOCK {
            return add_stretch(hasher, &mut file, n_tensors);
        }
        for block in 0..N_BLOCKS {
            let from_start = u128::from(n_tensors - BLOCK) * u128::from(block) / u128::from(N_BLOCKS - 1);
            let from_start = u64::try_from(from_start).expect("at most the length of the file");
            file.seek(SeekFrom::Start(n_header + from_start))?;
            add_stretch(hasher, &mut file, BLOCK)?;
        }
        Ok(())
    }
}

/// Hashes the next `n_bytes` of `file`.
fn add_stretch(hasher: &mut blake3::Hasher, file: &mut File, n_bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    let mut stretch = file.take(n_bytes);
    let mut n_left = n_bytes;
    while n_left > 0 {
        let n = stretch.read(&mut buffer)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        hasher.update(&buffer[..n]);
        n_left -= n as u64;
    }
    Ok(())
}

/// Where part `part`, counted from 0, of a model in `n_parts` parts lies: llama.cpp names them `name-00001-of-00003.gguf`.
fn part_path(first: &Path, part: u32, n_parts: u32) -> PathBuf {
    let name = first.file_name().unwrap_or_default().to_string_lossy();
    match name.strip_suffix(&format!("-00001-of-{n_parts:05}.gguf")) {
        Some(stem) => first.with_file_name(format!("{stem}-{:05}-of-{n_parts:05}.gguf", part + 1)),
        None => first.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_as_llama_cpp_names_them() {
        let first = Path::new("/models/big-00001-of-00012.gguf");
        assert_eq!(part_path(first, 0, 12), first);
        assert_eq!(part_path(first, 11, 12), Path::new("/models/big-00012-of-00012.gguf"));
        assert_eq!(part_path(Path::new("/models/one.gguf"), 0, 1), Path::new("/models/one.gguf"));
    }
}
