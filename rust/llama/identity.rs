//! Which weights a model has, as a number that a file can carry.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::time::SystemTime;

use llama_cpp_sys_2 as sys;

use crate::llama::gguf::Metadata;

/// BLAKE3 of the files, or of a sample of the large ones; see [`ModelFiles::identity`].
pub(super) type Identity = [u8; 32];

/// The identity of weights that compute something else since `change` was made; the same where it is empty.
pub(super) fn changed(identity: Identity, change: &str) -> Identity {
    if change.is_empty() {
        return identity;
    }
    *blake3::Hasher::new().update(&identity).update(change.as_bytes()).finalize().as_bytes()
}

/// Bytes of the largest file that is hashed as a whole: a second's work.
const N_WHOLE: u64 = 1 << 30;

/// Blocks of a larger file's tensors that are read wherever its tensors lie, evenly spaced from the first byte to the last.
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

    /// A hash of the files, read at the first call.
    ///
    /// Of a file of up to 1 GiB every byte counts. Of a larger one these count: its length, everything before the tensors, the first,
    /// the middle and the last 4 KiB of each tensor (all of it up to 12 KiB, so every norm and bias), and 64 blocks of 4 KiB evenly
    /// spaced. Training, merging or quantizing anew changes nearly every block; a change of single weights deep inside of large
    /// tensors of a large file goes unseen.
    ///
    /// # Errors
    /// If a file cannot be read, or is no longer the one that was loaded. The words name the file without its folder.
    pub(super) fn identity(&self) -> io::Result<Identity> {
        if let Some(identity) = self.identity.get() {
            return Ok(*identity);
        }
        let identity = self.hash(N_WHOLE)?;
        Ok(*self.identity.get_or_init(|| identity))
    }

    /// [`ModelFiles::identity`], where files of up to `n_whole` bytes are hashed as a whole.
    pub(super) fn hash(&self, n_whole: u64) -> io::Result<Identity> {
        let mut hasher = blake3::Hasher::new();
        for part in &self.parts {
            part.add_to(&mut hasher, n_whole).map_err(|error| {
                let name = part.path.file_name().unwrap_or_default().to_string_lossy();
                io::Error::new(error.kind(), format!("{name}: {error}"))
            })?;
        }
        Ok(*hasher.finalize().as_bytes())
    }
}

impl Part {
    fn at(path: PathBuf) -> io::Result<Self> {
        let metadata = fs::metadata(&path)?;
        Ok(Self { n_bytes: metadata.len(), modified: metadata.modified().ok(), path })
    }

    /// Hashes this file, which must be the one that was loaded from the first byte that is read to the last.
    fn add_to(&self, hasher: &mut blake3::Hasher, n_whole: u64) -> io::Result<()> {
        self.check()?;
        hasher.update(&self.n_bytes.to_le_bytes());
        let mut file = File::open(&self.path)?;
        if self.n_bytes <= n_whole {
            add_stretch(hasher, &mut file, 0..self.n_bytes)?;
        } else {
            let n_header = Metadata::open(&self.path).map_err(io::Error::other)?.data_offset().min(self.n_bytes);
            add_stretch(hasher, &mut file, 0..n_header)?;
            let blocks = tensors(&self.path, n_header)?.into_iter().flat_map(|tensor| blocks_of(&tensor, 3));
            for block in blocks.chain(blocks_of(&(n_header..self.n_bytes), N_BLOCKS)) {
                add_stretch(hasher, &mut file, block)?;
            }
        }
        self.check()
    }

    fn check(&self) -> io::Result<()> {
        if Self::at(self.path.clone())? == *self { Ok(()) } else { Err(io::Error::other("it has changed since it was loaded")) }
    }
}

/// `n` blocks of `stretch`, evenly spaced from its first byte to its last; all of it where it is no longer than they are.
fn blocks_of(stretch: &Range<u64>, n: u64) -> Vec<Range<u64>> {
    let n_bytes = stretch.end - stretch.start;
    if n_bytes <= n * BLOCK {
        return vec![stretch.clone()];
    }
    let start_of = |block: u64| {
        let from_start = u128::from(n_bytes - BLOCK) * u128::from(block) / u128::from(n - 1);
        stretch.start + u64::try_from(from_start).expect("at most the length of the file")
    };
    (0..n).map(|block| start_of(block)..start_of(block) + BLOCK).collect()
}

/// Where the bytes of each tensor lie in the file at `path`, whose metadata ends at `n_header`.
pub(super) fn tensors(path: &Path, n_header: u64) -> io::Result<Vec<Range<u64>>> {
    let path = CString::new(path.as_os_str().as_encoded_bytes())?;
    let params = sys::gguf_init_params { no_alloc: true, ctx: std::ptr::null_mut() };
    // SAFETY: the path is NUL-terminated, and with `no_alloc` and no place for tensors nothing but the metadata is read.
    let file = NonNull::new(unsafe { sys::gguf_init_from_file(path.as_ptr(), params) });
    let file = file.ok_or_else(|| io::Error::other("its metadata is damaged or cut short"))?;
    // SAFETY: the context is alive until it is freed below, only here, and each index is below the count.
    unsafe {
        let range = |index| {
            let start = n_header + sys::gguf_get_tensor_offset(file.as_ptr(), index) as u64;
            start..start + sys::gguf_get_tensor_size(file.as_ptr(), index) as u64
        };
        let ranges = (0..sys::gguf_get_n_tensors(file.as_ptr())).map(range).collect();
        sys::gguf_free(file.as_ptr());
        Ok(ranges)
    }
}

/// Hashes these bytes of `file`.
fn add_stretch(hasher: &mut blake3::Hasher, file: &mut File, stretch: Range<u64>) -> io::Result<()> {
    file.seek(SeekFrom::Start(stretch.start))?;
    let mut n_left = stretch.end - stretch.start;
    let mut buffer = vec![0; usize::try_from(n_left.min(1 << 18)).expect("at most 256 KiB")];
    while n_left > 0 {
        let n = buffer.len().min(usize::try_from(n_left).unwrap_or(usize::MAX));
        file.read_exact(&mut buffer[..n])?;
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

/// The other parts of the split model whose first part has this name.
pub(super) fn other_parts(first: &Path) -> Vec<PathBuf> {
    let name = first.file_name().unwrap_or_default().to_string_lossy();
    let n_parts = name.strip_suffix(".gguf").and_then(|stem| stem.rsplit_once("-00001-of-")?.1.parse().ok());
    (1..n_parts.unwrap_or(1)).map(|part| part_path(first, part, n_parts.unwrap_or(1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_models_other_parts_are_known_by_the_name_of_its_first() {
        let [first, second] = [1, 2].map(|part| PathBuf::from(format!("/models/big-0000{part}-of-00002.gguf")));
        assert_eq!(other_parts(&first), [second]);
        assert!(other_parts(Path::new("/models/one.gguf")).is_empty());
    }

    #[test]
    fn parts_are_named_as_llama_cpp_names_them() {
        let first = Path::new("/models/big-00001-of-00012.gguf");
        assert_eq!(part_path(first, 0, 12), first);
        assert_eq!(part_path(first, 11, 12), Path::new("/models/big-00012-of-00012.gguf"));
        assert_eq!(part_path(Path::new("/models/one.gguf"), 0, 1), Path::new("/models/one.gguf"));
    }
}
