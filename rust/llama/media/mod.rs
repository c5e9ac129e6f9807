//! Encodes images and audio into embeddings, with llama.cpp's `mtmd` and a model's projector.
//!
//! A file is decoded by [`media_file`] and cut into chunks on the thread that loads it. Encoding a chunk is one long computation: a
//! separate thread encodes one chunk after the other and caches the most recent embeddings. Equal chunks have equal ids, so that
//! the prefix tree matches their cached cells, and the embedding cache matches chunks that have no cells.

pub(super) mod media_batch;
pub(super) mod media_file;

use std::collections::{HashMap, VecDeque};
use std::ffi::c_char;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Instant;

use llama_cpp_sys_2 as sys;

use crate::config::MediaConfig;
use crate::error::{self, Error};
use crate::llama::host::{device::Device, niceness, threads};
use crate::llama::media::media_file::{Image, MediaKind};
use crate::llama::model::gguf::{Metadata, c_path};
use crate::llama::{context::memory, logging};
use crate::request::{Encoding, Media, Medium, Run, Token};

/// Limit of the embeddings cached for later prompts, in bytes.
pub const MAX_KEPT_BYTES: u64 = 256 << 20;

/// Limit of the media that are loaded and not yet dropped, in bytes: the embeddings of each, and until these exist their inputs.
pub const MAX_LOADED_BYTES: u64 = 1 << 30;

const MAX_CHUNK_IDS: usize = 65_536;

/// Ids are above this.
const LAST_ID: Token = Token::MIN / 2;

/// Ids below this are free, for all projectors.
static LOWEST_ID: AtomicI32 = AtomicI32::new(0);

static N_PROJECTORS: AtomicU64 = AtomicU64::new(0);

const NICENESS: i32 = 5;

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
    /// Number of the projector that it was loaded for, unique in the process.
    pub projector: u64,
    pub n_bytes: usize,
    /// Its chunks, and the tokens that the model expects around them.
    pub runs: Vec<Run>,
}

owned_pointer! {
    struct RawProjector(sys::mtmd_context), freed by sys::mtmd_free
}

// SAFETY: `mtmd` supports any number of threads that cut files into chunks while one encodes, which `Projector` ensures.
unsafe impl Send for RawProjector {}
// SAFETY: as above.
unsafe impl Sync for RawProjector {}

/// A projector loaded for a model. Must not outlive the model.
pub struct Projector {
    number: u64,
    raw: Arc<RawProjector>,
    rate: u32,
    n_embd: usize,
    /// Bytes of input per embedding of an image; audio needs fewer.
    n_raw_bytes: u64,
    n_bytes: u64,
    path: PathBuf,
    modalities: Modalities,
    chunk_ids: Mutex<ChunkIds>,
    shared: Arc<Shared>,
    queue: Sender<Weak<Chunk>>,
}

impl fmt::Debug for Projector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Projector").field("path", &self.path).field("modalities", &self.modalities).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Shared {
    cache: Mutex<EmbeddingCache>,
    n_encoded: AtomicU64,
    n_reused: AtomicU64,
    encode_us: AtomicU64,
    n_loaded_bytes: AtomicU64,
    n_waiting_bytes: AtomicU64,
}

impl Projector {
    /// # Safety
    /// `model` is alive for as long as the projector.
    pub(super) unsafe fn load(config: &MediaConfig, model: *const sys::llama_model, n_embd: usize) -> error::Result<Self> {
        let refuse = |reason: String| {
            let message = format!("cannot load the projector {}: {reason}", config.path.display());
            Error::InvalidConfig { param: "mmproj", message }
        };
        let file = Metadata::open_regular(&config.path).map_err(refuse)?;
        let path = c_path(&config.path).map_err(refuse)?;
        check(&file).map_err(refuse)?;
        let n_raw_bytes = raw_bytes(&file);
        let n_bytes = file.named_tensors().map(|(_, tensor)| tensor.n_bytes).sum();
        check_memory(&config.path, config.offload).map_err(refuse)?;
        // SAFETY: plain data.
        let mut params = unsafe { sys::mtmd_context_params_default() };
        params.use_gpu = config.offload;
        params.print_timings = false;
        params.warmup = false;
        // Half of the cores: its threads poll for each other, as the decode threads do, which have all cores.
        params.n_threads = (threads::n_cores() / 2).max(1).cast_signed();
        let number = |n: Option<u32>| n.map_or(-1, |n| i32::try_from(n).unwrap_or(i32::MAX));
        (params.image_min_tokens, params.image_max_tokens) = (number(config.image_min_tokens), number(config.image_max_tokens));
        // SAFETY: path and parameters live during the call, and the caller guarantees the model.
        let (raw, errors) = logging::errors_during(|| unsafe { sys::mtmd_init_from_file(path.as_ptr(), model, params) });
        // Later lines only repeat that the file could not be loaded.
        let errors: Vec<String> = errors.into_iter().take(1).collect();
        let raw = NonNull::new(raw).map(RawProjector).ok_or_else(|| refuse(logging::reason_or_none(&errors)))?;
        let context = raw.0.as_ptr();
        // SAFETY: the projector is alive.
        let modalities =
            unsafe { Modalities { vision: sys::mtmd_support_vision(context), audio: sys::mtmd_support_audio(context) } };
        // SAFETY: as above; negative if audio is not supported.
        let rate = unsafe { sys::mtmd_get_audio_sample_rate(context) }.max(0).unsigned_abs();
        let (raw, shared) = (Arc::new(raw), Arc::<Shared>::default());
        let (queue, receiver) = mpsc::channel();
        let encoder = Encoder { raw: Arc::clone(&raw), shared: Arc::clone(&shared), n_embd };
        let thread = thread::Builder::new().name("weft-media".into()).spawn(move || encoder.run(&receiver));
        thread.map_err(|error| refuse(format!("cannot start its thread: {error}")))?;
        let (number, path) = (N_PROJECTORS.fetch_add(1, Ordering::Relaxed), config.path.clone());
        Ok(Self { number, raw, rate, n_embd, n_raw_bytes, n_bytes, path, modalities, chunk_ids: Mutex::default(), shared, queue })
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn modalities(&self) -> Modalities {
        self.modalities
    }

    pub fn stats(&self) -> MediaStats {
        let Shared { cache, n_encoded, n_reused, encode_us, n_waiting_bytes, .. } = &*self.shared;
        MediaStats {
            n_encoded: n_encoded.load(Ordering::Relaxed),
            n_reused: n_reused.load(Ordering::Relaxed),
            #[expect(clippy::cast_precision_loss, reason = "microseconds of a process's life")]
            encode_s: encode_us.load(Ordering::Relaxed) as f64 * 1e-6,
            n_kept_bytes: lock(cache).n_bytes,
            n_waiting_bytes: n_waiting_bytes.load(Ordering::Relaxed),
            n_projector_bytes: self.n_bytes,
        }
    }

    /// Decodes `file` and cuts it into chunks, which are not encoded yet. [`Error::QueueFull`] if loaded media exceed
    /// [`MAX_LOADED_BYTES`].
    pub fn read(&self, file: &[u8]) -> error::Result<LoadedMedia> {
        let refuse =
            |reason: String| Error::InvalidRequest { param: "media", message: format!("cannot read the medium: {reason}") };
        let kind = media_file::kind_of(file).map_err(refuse)?;
        let (is_read, what) = match kind {
            MediaKind::Image => (self.modalities.vision, "images"),
            MediaKind::Audio => (self.modalities.audio, "audio"),
        };
        if !is_read {
            return Err(refuse(format!("the projector {} does not support {what}", self.path.display())));
        }
        self.check_loaded_bytes()?;
        let decode = || match kind {
            MediaKind::Image => media_file::decode_image(file).map(|image| Bitmap::from_image(&image)),
            MediaKind::Audio => media_file::decode_audio(file, self.rate).map(|samples| Bitmap::from_audio(&samples)),
        };
        // A decoder that panics has rejected the file too.
        let bitmap = panic::catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|_| Err("its decoder failed".to_owned()));
        let bitmap = bitmap.map_err(refuse)?.ok_or_else(|| refuse("there is not enough memory".to_owned()))?;
        let chunks = self.cut(&bitmap).map_err(refuse)?;
        drop(bitmap);
        let digest = blake3::hash(file).to_hex().to_string();
        let runs = self.runs(&chunks, &digest).map_err(refuse)?;
        // Checked again with the new chunks counted, since other threads load files concurrently.
        self.check_loaded_bytes()?;
        Ok(LoadedMedia { kind, digest, projector: self.number, n_bytes: file.len(), runs })
    }

    fn check_loaded_bytes(&self) -> error::Result<()> {
        let n_bytes = self.shared.n_loaded_bytes.load(Ordering::Relaxed);
        if n_bytes > MAX_LOADED_BYTES {
            let n_waiting = usize::try_from(n_bytes).unwrap_or(usize::MAX);
            return Err(Error::QueueFull { n_waiting, unit: "bytes of images and audio" });
        }
        Ok(())
    }

    fn cut(&self, bitmap: &Bitmap) -> Result<Chunks, String> {
        // SAFETY: allocated and freed here.
        let chunks = Chunks(NonNull::new(unsafe { sys::mtmd_input_chunks_init() }).ok_or("there is not enough memory")?);
        let part = sys::mtmd_input_part { text: null(), bitmap: bitmap.0.as_ptr() };
        let part = &raw const part;
        // SAFETY: everything is alive during the call, and only the list is changed.
        call_mtmd(|message, n_message_bytes| unsafe {
            weft_media_tokenize(self.raw.0.as_ptr(), chunks.0.as_ptr(), &raw const part, 1, message, n_message_bytes)
        })?;
        Ok(chunks)
    }

    fn runs(&self, chunks: &Chunks, digest: &str) -> Result<Vec<Run>, String> {
        // SAFETY: the list is alive.
        let n = unsafe { sys::mtmd_input_chunks_size(chunks.0.as_ptr()) };
        let mut runs = Vec::with_capacity(n);
        for index in 0..n {
            // SAFETY: the list is alive, and `index` is below its length.
            let chunk = unsafe { sys::mtmd_input_chunks_get(chunks.0.as_ptr(), index) };
            // SAFETY: the chunk is alive as long as the list.
            let kind = unsafe { sys::mtmd_input_chunk_get_type(chunk) };
            if kind == sys::MTMD_INPUT_CHUNK_TYPE_TEXT {
                let mut n_tokens = 0;
                // SAFETY: as above; a chunk of text has `n_tokens` tokens.
                let tokens = unsafe {
                    let first = sys::mtmd_input_chunk_get_tokens_text(chunk, &raw mut n_tokens);
                    if first.is_null() { &[] } else { std::slice::from_raw_parts(first, n_tokens) }
                };
                runs.push(Run::Tokens(tokens.to_vec()));
                continue;
            }
            // SAFETY: as above.
            let (n_tokens, n_positions, copy) = unsafe {
                let n_tokens = sys::mtmd_input_chunk_get_n_tokens(chunk);
                (n_tokens, sys::mtmd_input_chunk_get_n_pos(chunk), sys::mtmd_input_chunk_copy(chunk))
            };
            let copy = NonNull::new(copy).map(RawChunk).ok_or("there is not enough memory")?;
            // SAFETY: projector and chunk are alive.
            let sees_ahead = unsafe { sys::mtmd_decode_use_non_causal(self.raw.0.as_ptr(), chunk) };
            let n_tokens = u32::try_from(n_tokens).ok().filter(|&n| n > 0).ok_or("it has no embeddings after preprocessing")?;
            let n_positions = u32::try_from(n_positions).map_err(|_| "it has no positions")?;
            // SAFETY: as above.
            let has_grid = kind == sys::MTMD_INPUT_CHUNK_TYPE_IMAGE && unsafe { sys::mtmd_decode_use_mrope(self.raw.0.as_ptr()) };
            let first_id = lock(&self.chunk_ids).id(digest, index, n_tokens)?;
            let n_raw_bytes = u64::from(n_tokens) * self.n_raw_bytes;
            let n_bytes = u64::from(n_tokens) * self.n_embd as u64 * 4 + n_raw_bytes;
            self.shared.n_loaded_bytes.fetch_add(n_bytes, Ordering::Relaxed);
            self.shared.n_waiting_bytes.fetch_add(n_bytes, Ordering::Relaxed);
            let chunk = Arc::new_cyclic(|own| Chunk {
                own: own.clone(),
                first_id,
                n_tokens,
                n_positions,
                grid: has_grid.then(|| copy.grid(n_tokens)),
                sees_ahead,
                n_bytes,
                n_raw_bytes,
                state: Mutex::new(State::Idle(copy)),
                shared: Arc::clone(&self.shared),
                queue: self.queue.clone(),
            });
            runs.push(Run::Media(Media(chunk)));
        }
        Ok(runs)
    }
}

#[derive(Debug, Default)]
struct ChunkIds {
    /// Keys: digest of the file, index of the chunk in it, and number of its tokens.
    ids: HashMap<(String, usize, u32), Token>,
}

impl ChunkIds {
    fn id(&mut self, digest: &str, index: usize, n_tokens: u32) -> Result<Token, String> {
        let key = (digest.to_owned(), index, n_tokens);
        if let Some(&id) = self.ids.get(&key) {
            return Ok(id);
        }
        let n = Token::try_from(n_tokens).map_err(|_| "it has too many tokens".to_owned())?;
        // One id more than the chunk has tokens, to separate consecutive chunks.
        let next = |lowest: Token| lowest.checked_sub(n + 1).filter(|&next| next > LAST_ID);
        let lowest = LOWEST_ID.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let lowest = lowest.map_err(|_| "this process has used up the ids for media; restart it".to_owned())?;
        if self.ids.len() >= MAX_CHUNK_IDS {
            self.ids.clear();
        }
        self.ids.insert(key, lowest - 1);
        Ok(lowest - 1)
    }
}

#[derive(Debug, Default)]
struct EmbeddingCache {
    entries: VecDeque<(Token, Arc<[f32]>)>,
    n_bytes: u64,
}

impl EmbeddingCache {
    fn get(&mut self, id: Token) -> Option<Arc<[f32]>> {
        let embeddings = self.remove(id)?;
        self.put(id, Arc::clone(&embeddings));
        Some(embeddings)
    }

    fn put(&mut self, id: Token, embeddings: Arc<[f32]>) {
        self.remove(id);
        self.n_bytes += size_of_val(&*embeddings) as u64;
        self.entries.push_back((id, embeddings));
        while self.n_bytes > MAX_KEPT_BYTES {
            self.remove(self.entries[0].0);
        }
    }

    fn remove(&mut self, id: Token) -> Option<Arc<[f32]>> {
        let index = self.entries.iter().position(|(other, _)| *other == id)?;
        let (_, embeddings) = self.entries.remove(index)?;
        self.n_bytes -= size_of_val(&*embeddings) as u64;
        Some(embeddings)
    }
}

struct Chunk {
    own: Weak<Self>,
    first_id: Token,
    n_tokens: u32,
    n_positions: u32,
    /// Multi-dimensional positions (M-RoPE), if the model uses them.
    grid: Option<Grid>,
    sees_ahead: bool,
    n_bytes: u64,
    n_raw_bytes: u64,
    state: Mutex<State>,
    shared: Arc<Shared>,
    queue: Sender<Weak<Self>>,
}

struct Grid {
    positions: Vec<[u32; 4]>,
    steps: [u32; 4],
}

enum State {
    Idle(RawChunk),
    Queued(RawChunk),
    Ready(Arc<[f32]>),
    /// The next call of `encoding` returns the reason and permits another attempt.
    Failed(RawChunk, String),
    Taken,
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunk").field("first_id", &self.first_id).field("n_tokens", &self.n_tokens).finish_non_exhaustive()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.shared.n_loaded_bytes.fetch_sub(self.n_bytes(), Ordering::Relaxed);
        if self.embeddings().is_none() {
            self.shared.n_waiting_bytes.fetch_sub(self.n_bytes, Ordering::Relaxed);
        }
    }
}

impl Chunk {
    fn finish(&self, embeddings: Arc<[f32]>) -> State {
        self.shared.n_loaded_bytes.fetch_sub(self.n_raw_bytes, Ordering::Relaxed);
        self.shared.n_waiting_bytes.fetch_sub(self.n_bytes, Ordering::Relaxed);
        State::Ready(embeddings)
    }
}

impl Medium for Chunk {
    fn first_id(&self) -> Token {
        self.first_id
    }

    fn n_tokens(&self) -> u32 {
        self.n_tokens
    }

    fn n_positions(&self) -> u32 {
        self.n_positions
    }

    fn has_positions(&self) -> bool {
        self.grid.is_some()
    }

    fn positions(&self, first: u32) -> Option<Vec<[u32; 4]>> {
        let Grid { positions, steps } = self.grid.as_ref()?;
        let shifted = |position: &[u32; 4]| std::array::from_fn(|dimension| position[dimension] + steps[dimension] * first);
        Some(positions.iter().map(shifted).collect())
    }

    fn sees_ahead(&self) -> bool {
        self.sees_ahead
    }

    fn n_bytes(&self) -> u64 {
        let is_ready = matches!(*lock(&self.state), State::Ready(_));
        self.n_bytes - if is_ready { self.n_raw_bytes } else { 0 }
    }

    fn encoding(&self) -> Encoding {
        let mut state = lock(&self.state);
        let (next, encoding) = match std::mem::replace(&mut *state, State::Taken) {
            State::Idle(raw) => match lock(&self.shared.cache).get(self.first_id) {
                Some(embeddings) => {
                    self.shared.n_reused.fetch_add(1, Ordering::Relaxed);
                    (self.finish(embeddings), Encoding::Ready)
                }
                None if self.queue.send(self.own.clone()).is_ok() => (State::Queued(raw), Encoding::Pending),
                None => {
                    let reason = "the encoder thread for images and audio has ended; restart the process".to_owned();
                    (State::Idle(raw), Encoding::Failed(reason))
                }
            },
            State::Failed(raw, reason) => (State::Idle(raw), Encoding::Failed(reason)),
            State::Ready(embeddings) => (State::Ready(embeddings), Encoding::Ready),
            other @ (State::Queued(_) | State::Taken) => (other, Encoding::Pending),
        };
        *state = next;
        encoding
    }

    fn embeddings(&self) -> Option<Arc<[f32]>> {
        match &*lock(&self.state) {
            State::Ready(embeddings) => Some(Arc::clone(embeddings)),
            State::Idle(_) | State::Queued(_) | State::Failed(..) | State::Taken => None,
        }
    }
}

struct Encoder {
    raw: Arc<RawProjector>,
    shared: Arc<Shared>,
    n_embd: usize,
}

impl Encoder {
    fn run(&self, queue: &Receiver<Weak<Chunk>>) {
        niceness::compute(NICENESS);
        for chunk in queue {
            let Some(chunk) = chunk.upgrade() else { continue };
            let raw = match std::mem::replace(&mut *lock(&chunk.state), State::Taken) {
                State::Queued(raw) => raw,
                other => {
                    *lock(&chunk.state) = other;
                    continue;
                }
            };
            let cached = lock(&self.shared.cache).get(chunk.first_id);
            let result = match cached {
                Some(embeddings) => {
                    self.shared.n_reused.fetch_add(1, Ordering::Relaxed);
                    Ok(embeddings)
                }
                None => self.encode(&chunk, &raw),
            };
            *lock(&chunk.state) = match result {
                Ok(embeddings) => chunk.finish(embeddings),
                Err(reason) => State::Failed(raw, reason),
            };
        }
    }

    fn encode(&self, chunk: &Chunk, raw: &RawChunk) -> Result<Arc<[f32]>, String> {
        let started = Instant::now();
        let (context, part) = (self.raw.0.as_ptr(), raw.0.as_ptr());
        // SAFETY: both are alive, and no other thread encodes.
        call_mtmd(|message, n_message_bytes| unsafe { weft_media_encode(context, part, message, n_message_bytes) })
            .map_err(|reason| format!("cannot encode the medium: {reason}"))?;
        let n = self.n_embd * chunk.n_tokens as usize;
        // SAFETY: the output of the last chunk has `n` numbers, and is valid until the next chunk is encoded.
        let embeddings: Arc<[f32]> = unsafe { std::slice::from_raw_parts(sys::mtmd_get_output_embd(context), n) }.into();
        let elapsed_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.shared.encode_us.fetch_add(elapsed_us, Ordering::Relaxed);
        self.shared.n_encoded.fetch_add(1, Ordering::Relaxed);
        lock(&self.shared.cache).put(chunk.first_id, Arc::clone(&embeddings));
        Ok(embeddings)
    }
}

fn call_mtmd(call: impl FnOnce(*mut c_char, usize) -> i32) -> Result<(), String> {
    let ((code, message), errors) = logging::errors_during(|| logging::with_exception_text(call));
    match code {
        0 => Ok(()),
        _ if message.is_empty() => Err(logging::reason_or_none(&errors)),
        _ => Err(message),
    }
}

unsafe extern "C" {
    fn weft_media_tokenize(
        projector: *const sys::mtmd_context,
        chunks: *mut sys::mtmd_input_chunks,
        parts: *const *const sys::mtmd_input_part,
        n: usize,
        message: *mut c_char,
        n_message_bytes: usize,
    ) -> i32;
    fn weft_media_encode(
        projector: *mut sys::mtmd_context,
        chunk: *const sys::mtmd_input_chunk,
        message: *mut c_char,
        n_message_bytes: usize,
    ) -> i32;
}

owned_pointer!(struct Bitmap(sys::mtmd_bitmap), freed by sys::mtmd_bitmap_free);

impl Bitmap {
    fn from_image(image: &Image) -> Option<Self> {
        let Image { width, height, rgb } = image;
        assert_eq!(rgb.len() as u64, 3 * u64::from(*width) * u64::from(*height), "each pixel has three bytes");
        // SAFETY: llama.cpp copies `3 × width × height` bytes.
        NonNull::new(unsafe { sys::mtmd_bitmap_init(*width, *height, rgb.as_ptr()) }).map(Self)
    }

    fn from_audio(samples: &[f32]) -> Option<Self> {
        // SAFETY: llama.cpp copies `samples.len()` numbers.
        NonNull::new(unsafe { sys::mtmd_bitmap_init_from_audio(samples.len(), samples.as_ptr()) }).map(Self)
    }
}

owned_pointer!(struct Chunks(sys::mtmd_input_chunks), freed by sys::mtmd_input_chunks_free);

owned_pointer!(struct RawChunk(sys::mtmd_input_chunk), freed by sys::mtmd_input_chunk_free);

impl RawChunk {
    fn grid(&self, n_tokens: u32) -> Grid {
        let position = |first: i32, index: u32| {
            // SAFETY: the chunk is an alive image, and `index` is below the number of its tokens.
            let position = unsafe {
                let image = sys::mtmd_input_chunk_get_tokens_image(self.0.as_ptr());
                sys::mtmd_image_tokens_get_decoder_pos(image, first, index as usize)
            };
            [position.t, position.y, position.x, position.z]
        };
        let (from_0, from_1) = (position(0, 0), position(1, 0));
        let steps = std::array::from_fn(|dimension| from_1[dimension] - from_0[dimension]);
        Grid { positions: (0..n_tokens).map(|index| position(0, index)).collect(), steps }
    }
}

// SAFETY: it is only read.
unsafe impl Send for RawChunk {}
// SAFETY: as above.
unsafe impl Sync for RawChunk {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Rejects a file that exceeds free memory: it is read completely, and Linux would grant the memory and end the process on use.
fn check_memory(path: &Path, offload: bool) -> Result<(), String> {
    let n_bytes = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    // A device itself refuses allocations that exceed its memory.
    let n_free = if offload && Device::gpus().next().is_some() { u64::MAX } else { memory::free_on_host() };
    if n_bytes <= n_free {
        return Ok(());
    }
    Err(format!("it needs {n_bytes} bytes of memory, but only {n_free} are free"))
}

/// Bytes of the pixels per embedding: three 32-bit numbers per pixel.
fn raw_bytes(file: &Metadata) -> u64 {
    let patch = file.u32("clip.vision.patch_size").unwrap_or(16);
    let merge = ["clip.vision.projector.scale_factor", "clip.vision.spatial_merge_size"].iter().find_map(|key| file.u32(key));
    12 * u64::from(patch).pow(2) * u64::from(merge.unwrap_or(2)).pow(2)
}

/// Checks that llama.cpp can use the projector: it ends the process if the number of embeddings differs from its own count.
fn check(file: &Metadata) -> Result<(), String> {
    // Their encoding of an image depends on preceding images or tokens, which a shared image cannot have.
    const CONTEXT_DEPENDENT: [&str; 2] = ["deepseek4v", "hunyuanvl"];
    // Whisper reduces 3,000 frames to 1,500.
    const N_FRAMES: u32 = 3_000;
    let architecture = file.string("general.architecture").unwrap_or_default();
    if architecture != "clip" {
        return Err(format!(
            "it is not a projector: its general.architecture is {architecture:?}, not \"clip\"; give the model's mmproj-*.gguf"
        ));
    }
    let kinds = ["clip.projector_type", "clip.vision.projector_type", "clip.audio.projector_type"];
    let kinds: Vec<String> = kinds.iter().filter_map(|key| file.string(key)).collect();
    let is_one_of = |names: &[&str]| kinds.iter().find(|kind| names.contains(&kind.as_str()));
    if let Some(kind) = is_one_of(&CONTEXT_DEPENDENT) {
        return Err(format!(
            "projectors of the type {kind} are not supported: their encoding of an image depends on the text before it"
        ));
    }
    let Some(stack) = file.u32("clip.audio.projector.stack_factor") else { return Ok(()) };
    let rounds_twice = is_one_of(&["ultravox", "voxtral", "meralion"]).is_some() && stack != 1;
    let rounds_down = is_one_of(&["glma"]).is_some();
    if stack == 0 && (rounds_twice || rounds_down) {
        return Err("its clip.audio.projector.stack_factor is 0; it must be at least 1".to_owned());
    }
    // The projector pads the last group of stacked frames; llama.cpp's count rounds differently.
    let n_made = (N_FRAMES / 2).div_ceil(stack.max(1));
    let n_counted = if rounds_twice {
        N_FRAMES.div_ceil(stack) / 2
    } else if rounds_down {
        N_FRAMES / 2 / stack
    } else {
        n_made
    };
    if n_counted == n_made {
        return Ok(());
    }
    Err(format!("llama.cpp expects {n_counted} embeddings where this projector produces {n_made}, so it cannot encode audio"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedding_cache_evicts_the_least_recently_used_entries() {
        let mut cache = EmbeddingCache::default();
        let quarter = usize::try_from(MAX_KEPT_BYTES / 4 / 4).expect("some millions");
        let embeddings: Arc<[f32]> = vec![0.0; quarter].into();
        for id in [-1, -2, -3, -4] {
            cache.put(id, Arc::clone(&embeddings));
        }
        assert!(cache.get(-1).is_some());
        cache.put(-5, Arc::clone(&embeddings));
        cache.put(-5, Arc::clone(&embeddings));
        let is_cached = [-1, -2, -3, -4, -5].map(|id| cache.get(id).is_some());
        assert_eq!((is_cached, cache.n_bytes), ([true, false, true, true, true], MAX_KEPT_BYTES));
        assert_eq!(cache.entries.len(), 4);
    }

    #[test]
    fn ids_are_equal_for_equal_chunks_and_unique_otherwise() {
        let (mut first_ids, mut second_ids) = (ChunkIds::default(), ChunkIds::default());
        let first = first_ids.id("a", 0, 10).expect("ids are left");
        let rest =
            [first_ids.id("a", 1, 10), first_ids.id("b", 0, 10), second_ids.id("a", 0, 10)].map(|id| id.expect("ids are left"));
        assert_eq!(first_ids.id("a", 0, 10), Ok(first));
        let mut ids: Vec<Token> = rest.into_iter().chain([first]).flat_map(|id| (0..10).map(move |offset| id - offset)).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!((ids.len(), ids.iter().all(|&id| id < 0)), (40, true));
        for index in 0..MAX_CHUNK_IDS {
            first_ids.id("c", index, 1).expect("ids are left");
        }
        assert!(first_ids.ids.len() <= MAX_CHUNK_IDS, "the table of ids is bounded");
    }
}
