//! Encodes images and audio into embeddings, with llama.cpp's `mtmd` and a model's projector.
//!
//! A file is decoded by [`media_file`] and cut into chunks on the thread that loads it. Encoding a chunk is one long computation,
//! for which the [`encoder`] has a thread. Equal chunks have equal ids, so that the prefix tree matches their cached cells, and the
//! embedding cache matches chunks that have no cells.

mod chunk;
mod chunk_ids;
mod compatibility;
mod encoder;
pub(super) mod media_batch;
pub(super) mod media_file;
mod mtmd;

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use llama_cpp_sys_2 as sys;

use crate::config::MediaConfig;
use crate::error::{self, Error};
use crate::llama::media::chunk::MediaChunk;
use crate::llama::media::chunk_ids::ChunkIds;
use crate::llama::media::encoder::EncoderHandle;
use crate::llama::media::media_file::MediaKind;
use crate::llama::media::mtmd::{Bitmap, Piece, RawProjector};
use crate::llama::model::gguf::Metadata;
use crate::lock::lock;
use crate::request::{Media, PromptRun};

/// Limit of the media that are loaded and not yet dropped, in bytes: the embeddings of each, and until these exist their inputs.
const MAX_LOADED_BYTES: u64 = 1 << 30;

/// A projector loaded for a model. Must not outlive the model.
pub struct Projector {
    number: u64,
    raw: Arc<RawProjector>,
    /// Bytes of input per embedding of an image; audio needs fewer.
    n_raw_bytes: u64,
    n_bytes: u64,
    path: PathBuf,
    chunk_ids: Mutex<ChunkIds>,
    encoder: EncoderHandle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modalities {
    pub vision: bool,
    pub audio: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MediaStats {
    pub n_encoded: u64,
    pub n_reused: u64,
    pub encode_s: f64,
    pub n_kept_bytes: u64,
    /// Size of the chunks that requests wait for, queued or being encoded, with their future embeddings, in bytes.
    pub n_waiting_bytes: u64,
    pub n_projector_bytes: u64,
}

#[derive(Debug, Clone)]
pub struct LoadedMedia {
    pub kind: MediaKind,
    /// BLAKE3 of the file, in hexadecimal.
    pub digest: String,
    /// Number of the projector that it was loaded for.
    pub projector: u64,
    pub n_bytes: usize,
    /// Its chunks, and the tokens that the model expects around them.
    pub runs: Vec<PromptRun>,
}

impl Projector {
    /// # Safety
    /// `model` is alive for as long as the projector.
    pub(super) unsafe fn load(config: &MediaConfig, model: *const sys::llama_model, n_embd: usize) -> error::Result<Self> {
        static N_PROJECTORS: AtomicU64 = AtomicU64::new(0);
        let refuse = |reason: String| {
            let message = format!("cannot load the projector {}: {reason}", config.path.display());
            Error::InvalidConfig { param: "mmproj", message }
        };
        let file = Metadata::open_regular(&config.path).map_err(refuse)?;
        compatibility::check(&file).map_err(refuse)?;
        compatibility::check_memory(&config.path, config.offload).map_err(refuse)?;
        // SAFETY: the caller guarantees the model.
        let raw = Arc::new(unsafe { RawProjector::load(config, model) }.map_err(refuse)?);
        let encoder = EncoderHandle::start(Arc::clone(&raw), n_embd);
        Ok(Self {
            number: N_PROJECTORS.fetch_add(1, Ordering::Relaxed),
            raw,
            n_raw_bytes: raw_bytes(&file),
            n_bytes: file.named_tensors().map(|(_, tensor)| tensor.n_bytes).sum(),
            path: config.path.clone(),
            chunk_ids: Mutex::default(),
            encoder: encoder.map_err(|error| refuse(format!("cannot start its thread: {error}")))?,
        })
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn modalities(&self) -> Modalities {
        self.raw.modalities()
    }

    pub fn stats(&self) -> MediaStats {
        let encoder = self.encoder.state();
        MediaStats {
            n_encoded: encoder.n_encoded,
            n_reused: encoder.n_reused,
            encode_s: encoder.encode_time.as_secs_f64(),
            n_kept_bytes: encoder.cache.n_bytes,
            n_waiting_bytes: encoder.n_waiting_bytes,
            n_projector_bytes: self.n_bytes,
        }
    }

    /// Loads a file, whose chunks are not encoded yet. [`Error::QueueFull`] if loaded media exceed [`MAX_LOADED_BYTES`].
    pub fn read(&self, file: &[u8]) -> error::Result<LoadedMedia> {
        let refuse =
            |reason: String| Error::InvalidRequest { param: "media", message: format!("cannot read the medium: {reason}") };
        let kind = media_file::kind_of(file).map_err(refuse)?;
        let (is_supported, what) = match kind {
            MediaKind::Image => (self.modalities().vision, "images"),
            MediaKind::Audio => (self.modalities().audio, "audio"),
        };
        if !is_supported {
            return Err(refuse(format!("the projector {} does not support {what}", self.path.display())));
        }
        self.check_loaded_bytes()?;
        let decode = || match kind {
            MediaKind::Image => media_file::decode_image(file).map(|image| Bitmap::from_image(&image)),
            MediaKind::Audio => {
                media_file::decode_audio(file, self.raw.sample_rate()).map(|samples| Bitmap::from_audio(&samples))
            }
        };
        // A decoder that panics has rejected the file too.
        let bitmap = panic::catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|_| Err("its decoder failed".to_owned()));
        let bitmap = bitmap.map_err(refuse)?.ok_or_else(|| refuse("there is not enough memory".to_owned()))?;
        let pieces = self.raw.cut(&bitmap).map_err(refuse)?;
        drop(bitmap);
        let digest = blake3::hash(file).to_hex().to_string();
        let runs = pieces.into_iter().enumerate().map(|(index, piece)| self.run(piece, &digest, index));
        let runs = runs.collect::<Result<_, _>>().map_err(refuse)?;
        // Checked again with the new chunks counted, since other threads load files concurrently.
        self.check_loaded_bytes()?;
        Ok(LoadedMedia { kind, digest, projector: self.number, n_bytes: file.len(), runs })
    }

    fn check_loaded_bytes(&self) -> error::Result<()> {
        let n_bytes = self.encoder.state().n_loaded_bytes;
        if n_bytes > MAX_LOADED_BYTES {
            let n_waiting = usize::try_from(n_bytes).unwrap_or(usize::MAX);
            return Err(Error::QueueFull { n_waiting, unit: "bytes of images and audio" });
        }
        Ok(())
    }

    fn run(&self, piece: Piece, digest: &str, index: usize) -> Result<PromptRun, String> {
        Ok(match piece {
            Piece::Tokens(tokens) => PromptRun::Tokens(tokens),
            Piece::Media(raw, shape) => {
                let first_id = lock(&self.chunk_ids).id(digest, index, shape.n_tokens)?;
                PromptRun::Media(Media(MediaChunk::new(raw, shape, first_id, self.n_raw_bytes, self.encoder.clone())))
            }
        })
    }
}

impl fmt::Debug for Projector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Projector").field("path", &self.path).field("modalities", &self.modalities()).finish_non_exhaustive()
    }
}

/// Bytes of the pixels per embedding: three 32-bit numbers per pixel.
fn raw_bytes(file: &Metadata) -> u64 {
    let patch = file.u32("clip.vision.patch_size").unwrap_or(16);
    let merge = ["clip.vision.projector.scale_factor", "clip.vision.spatial_merge_size"].iter().find_map(|key| file.u32(key));
    12 * u64::from(patch).pow(2) * u64::from(merge.unwrap_or(2)).pow(2)
}
