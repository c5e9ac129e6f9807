//! Pictures and sounds → vectors, by llama.cpp's `mtmd` and the projector of a model.
//!
//! A file is decoded by [`media_file`] and cut into chunks where it is loaded, on whatever thread asks for it. The vectors of a chunk
//! are one long computation: a thread of its own makes them, one chunk after the other, and keeps those that were made last. Equal
//! chunks have equal ids, so that the prefix tree finds what is computed of them, and this store what is not.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString, c_char};
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
use crate::error::{Error, Result};
use crate::llama::gguf::Metadata;
use crate::llama::media_file::{self, MediaKind, Picture};
use crate::llama::{logging, memory, niceness, threads};
use crate::request::{Encoding, Media, Medium, Run, Token};

/// Bytes of vectors that are kept for prompts that come later.
pub const MAX_KEPT_BYTES: u64 = 256 << 20;

/// Most bytes of media that are loaded and not let go: the vectors of each, and what they are made of until they are there.
pub const MAX_LOADED_BYTES: u64 = 1 << 30;

/// Chunks whose ids are remembered. Then all are forgotten, and what comes again is computed again.
const MAX_NAMES: usize = 65_536;

/// The lowest id.
const LAST_ID: Token = Token::MIN / 2;

/// Above the next id that stands for a chunk, of whatever projector.
static LOWEST_ID: AtomicI32 = AtomicI32::new(0);

/// The next projector's number.
static N_PROJECTORS: AtomicU64 = AtomicU64::new(0);

/// How far the thread that makes vectors gives way: by five levels more than those that write texts.
const NICENESS: i32 = 5;

/// What a model's projector reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modalities {
    /// Pictures.
    pub vision: bool,
    /// Sounds.
    pub audio: bool,
}

/// What was done with pictures and sounds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MediaStats {
    /// Chunks whose vectors were made.
    pub n_encoded: u64,
    /// Chunks whose vectors had been kept.
    pub n_reused: u64,
    /// Seconds that making them took.
    pub encode_s: f64,
    /// Bytes of vectors that are kept.
    pub n_kept_bytes: u64,
    /// Bytes of chunks of requests that wait for the projector or are being encoded, and of the vectors that they will be.
    pub n_waiting_bytes: u64,
    /// Bytes of the projector's weights.
    pub n_projector_bytes: u64,
}

/// A loaded file: what stands for it in a prompt.
#[derive(Debug, Clone)]
pub struct LoadedMedia {
    /// Whether it is a picture or a sound.
    pub kind: MediaKind,
    /// BLAKE3 of the file, in hexadecimal digits.
    pub digest: String,
    /// The number of the projector that it was loaded for; no other one of the process has it.
    pub projector: u64,
    /// Bytes of the file.
    pub n_bytes: usize,
    /// Its chunks, and the tokens that the model wants around them.
    pub runs: Vec<Run>,
}

/// llama.cpp's projector. Files are cut into chunks by any thread, and one makes vectors.
struct RawProjector(NonNull<sys::mtmd_context>);

// SAFETY: `mtmd` lets any number of threads cut files into chunks while one makes vectors, which `Projector` sees to.
unsafe impl Send for RawProjector {}
// SAFETY: as above.
unsafe impl Sync for RawProjector {}

impl Drop for RawProjector {
    fn drop(&mut self) {
        // SAFETY: made by `mtmd_init_from_file` and freed only here.
        unsafe { sys::mtmd_free(self.0.as_ptr()) }
    }
}

/// The projector that was loaded beside a model. Lives no longer than the model.
pub struct Projector {
    number: u64,
    raw: Arc<RawProjector>,
    /// Samples a second that it hears.
    rate: u32,
    n_embd: usize,
    /// Bytes, for each place, of what a picture's vectors are made of; a sound has fewer.
    n_raw_bytes: u64,
    /// Of its weights.
    n_bytes: u64,
    path: PathBuf,
    modalities: Modalities,
    names: Mutex<ChunkIds>,
    shared: Arc<Shared>,
    wanted: Sender<Weak<Chunk>>,
}

impl fmt::Debug for Projector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Projector").field("path", &self.path).field("modalities", &self.modalities).finish_non_exhaustive()
    }
}

/// What chunks and the thread that makes vectors have in common.
#[derive(Debug, Default)]
struct Shared {
    kept: Mutex<EmbeddingCache>,
    n_encoded: AtomicU64,
    n_reused: AtomicU64,
    encode_us: AtomicU64,
    /// Of chunks that live.
    n_loaded_bytes: AtomicU64,
    /// Of those of them whose vectors are not there.
    n_waiting_bytes: AtomicU64,
}

impl Projector {
    /// Loads the projector that `config` names for `model`, whose vectors have `n_embd` numbers.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] says what is wrong with the file.
    ///
    /// # Safety
    /// `model` is alive, and so it is as long as the projector.
    pub(super) unsafe fn load(config: &MediaConfig, model: *const sys::llama_model, n_embd: usize) -> Result<Self> {
        let refuse = |reason: String| {
            let message = format!("cannot load the projector {}: {reason}", config.path.display());
            Error::InvalidConfig { param: "mmproj", message }
        };
        let path = path_of(&config.path).map_err(refuse)?;
        let file = Metadata::open(&config.path).map_err(refuse)?;
        check(&file).map_err(refuse)?;
        let n_raw_bytes = raw_bytes(&file);
        let n_bytes = file.tensors().map(|(_, n_bytes)| n_bytes).sum();
        check_memory(&config.path, config.offload).map_err(refuse)?;
        // SAFETY: plain data.
        let mut params = unsafe { sys::mtmd_context_params_default() };
        params.use_gpu = config.offload;
        params.print_timings = false;
        params.warmup = false;
        // Half of the cores: its threads wait for each other at full speed, as those of the decode do, which have all of them.
        params.n_threads = (threads::n_cores() / 2).max(1).cast_signed();
        let number = |n: Option<u32>| n.map_or(-1, |n| i32::try_from(n).unwrap_or(i32::MAX));
        (params.image_min_tokens, params.image_max_tokens) = (number(config.image_min_tokens), number(config.image_max_tokens));
        // SAFETY: path and parameters live during the call, and the caller vouches for the model.
        let (raw, errors) = logging::errors_during(|| unsafe { sys::mtmd_init_from_file(path.as_ptr(), model, params) });
        // What follows the reason is that the file could not be loaded for it.
        let errors = errors.first().cloned().into_iter().collect::<Vec<_>>();
        let raw = NonNull::new(raw)
            .map(RawProjector)
            .ok_or_else(|| refuse(logging::reason(&errors).unwrap_or_else(|| "llama.cpp does not say why".to_owned())))?;
        let context = raw.0.as_ptr();
        // SAFETY: the projector is alive.
        let modalities =
            unsafe { Modalities { vision: sys::mtmd_support_vision(context), audio: sys::mtmd_support_audio(context) } };
        // SAFETY: as above; it is below 0 where no sounds are read.
        let rate = unsafe { sys::mtmd_get_audio_sample_rate(context) }.max(0).unsigned_abs();
        let (raw, shared) = (Arc::new(raw), Arc::<Shared>::default());
        let (wanted, received) = mpsc::channel();
        let encoder = Encoder { raw: Arc::clone(&raw), shared: Arc::clone(&shared), n_embd };
        let thread = thread::Builder::new().name("weft-media".into()).spawn(move || encoder.run(&received));
        thread.map_err(|error| refuse(format!("no thread can be started: {error}")))?;
        let (number, path) = (N_PROJECTORS.fetch_add(1, Ordering::Relaxed), config.path.clone());
        Ok(Self { number, raw, rate, n_embd, n_raw_bytes, n_bytes, path, modalities, names: Mutex::default(), shared, wanted })
    }

    /// Which one of the process it is.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it reads.
    #[must_use]
    pub fn modalities(&self) -> Modalities {
        self.modalities
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> MediaStats {
        let Shared { kept, n_encoded, n_reused, encode_us, n_waiting_bytes, .. } = &*self.shared;
        MediaStats {
            n_encoded: n_encoded.load(Ordering::Relaxed),
            n_reused: n_reused.load(Ordering::Relaxed),
            #[expect(clippy::cast_precision_loss, reason = "microseconds of a process's life")]
            encode_s: encode_us.load(Ordering::Relaxed) as f64 * 1e-6,
            n_kept_bytes: lock(kept).n_bytes,
            n_waiting_bytes: n_waiting_bytes.load(Ordering::Relaxed),
            n_projector_bytes: self.n_bytes,
        }
    }

    /// Decodes `file` and cuts it into chunks, of which none is encoded yet.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] of `media` where it is no picture or sound that this projector reads, or too large;
    /// [`Error::QueueFull`] where as much is loaded as may be.
    pub fn read(&self, file: &[u8]) -> Result<LoadedMedia> {
        let refuse =
            |reason: String| Error::InvalidRequest { param: "media", message: format!("cannot read the medium: {reason}") };
        let kind = media_file::kind_of(file).map_err(refuse)?;
        let (is_read, what) = match kind {
            MediaKind::Image => (self.modalities.vision, "pictures"),
            MediaKind::Audio => (self.modalities.audio, "sounds"),
        };
        if !is_read {
            return Err(refuse(format!("{} does not read {what}", self.path.display())));
        }
        self.check_room()?;
        let decode = || match kind {
            MediaKind::Image => media_file::picture(file).map(|picture| Bitmap::of_picture(&picture)),
            MediaKind::Audio => media_file::sound(file, self.rate).map(|samples| Bitmap::of_sound(&samples)),
        };
        // A decoder that gives up in its own way has refused the file too.
        let bitmap = panic::catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|_| Err("its decoder failed".to_owned()));
        let bitmap = bitmap.map_err(refuse)?.ok_or_else(|| refuse("there is not enough memory".to_owned()))?;
        let chunks = self.cut(&bitmap).map_err(refuse)?;
        drop(bitmap);
        let digest = blake3::hash(file).to_hex().to_string();
        let runs = self.runs(&chunks, &digest).map_err(refuse)?;
        // After they are counted, since others are read at the same time.
        self.check_room()?;
        Ok(LoadedMedia { kind, digest, projector: self.number, n_bytes: file.len(), runs })
    }

    fn check_room(&self) -> Result<()> {
        let n_bytes = self.shared.n_loaded_bytes.load(Ordering::Relaxed);
        if n_bytes > MAX_LOADED_BYTES {
            let n_waiting = usize::try_from(n_bytes).unwrap_or(usize::MAX);
            return Err(Error::QueueFull { n_waiting, unit: "bytes of pictures and sounds" });
        }
        Ok(())
    }

    /// The chunks that `bitmap` is for the model.
    fn cut(&self, bitmap: &Bitmap) -> std::result::Result<Chunks, String> {
        // SAFETY: made and freed here.
        let chunks = Chunks(NonNull::new(unsafe { sys::mtmd_input_chunks_init() }).ok_or("there is not enough memory")?);
        let part = sys::mtmd_input_part { text: null(), bitmap: bitmap.0.as_ptr() };
        let parts = [&raw const part];
        let mut why = ExceptionText::default();
        // SAFETY: all is alive during the call, and only the list is changed.
        let (code, errors) = logging::errors_during(|| unsafe {
            weft_media_tokenize(self.raw.0.as_ptr(), chunks.0.as_ptr(), parts.as_ptr(), parts.len(), why.as_mut_ptr(), WHY_BYTES)
        });
        if code == 0 { Ok(chunks) } else { Err(why.in_words(&errors)) }
    }

    /// What stands for `chunks` of the file `digest` in a prompt.
    fn runs(&self, chunks: &Chunks, digest: &str) -> std::result::Result<Vec<Run>, String> {
        // SAFETY: the list is alive.
        let n = unsafe { sys::mtmd_input_chunks_size(chunks.0.as_ptr()) };
        let mut runs = Vec::with_capacity(n);
        for nth in 0..n {
            // SAFETY: the list is alive, and has so many.
            let chunk = unsafe { sys::mtmd_input_chunks_get(chunks.0.as_ptr(), nth) };
            // SAFETY: the chunk is alive as long as the list.
            let kind = unsafe { sys::mtmd_input_chunk_get_type(chunk) };
            if kind == sys::MTMD_INPUT_CHUNK_TYPE_TEXT {
                let mut n_tokens = 0;
                // SAFETY: as above; a chunk of text has so many tokens.
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
            let n_tokens = u32::try_from(n_tokens).ok().filter(|&n| n > 0).ok_or("nothing of it is left to see")?;
            let n_positions = u32::try_from(n_positions).map_err(|_| "it has no positions")?;
            // SAFETY: as above.
            let has_grid = kind == sys::MTMD_INPUT_CHUNK_TYPE_IMAGE && unsafe { sys::mtmd_decode_use_mrope(self.raw.0.as_ptr()) };
            let first_id = lock(&self.names).id(digest, nth, n_tokens)?;
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
                n_bytes: AtomicU64::new(n_bytes),
                n_waiting_bytes: AtomicU64::new(n_bytes),
                n_raw_bytes,
                state: Mutex::new(State::Unasked(copy)),
                shared: Arc::clone(&self.shared),
                wanted: self.wanted.clone(),
            });
            runs.push(Run::Media(Media(chunk)));
        }
        Ok(runs)
    }
}

/// The ids that stand for chunks.
#[derive(Debug, Default)]
struct ChunkIds {
    /// By the file's digest, the chunk's place in it, and its length.
    ids: HashMap<(String, usize, u32), Token>,
}

impl ChunkIds {
    fn id(&mut self, digest: &str, nth: usize, n_tokens: u32) -> std::result::Result<Token, String> {
        let key = (digest.to_owned(), nth, n_tokens);
        if let Some(&id) = self.ids.get(&key) {
            return Ok(id);
        }
        let n = Token::try_from(n_tokens).map_err(|_| "it has too many places".to_owned())?;
        // One more than it has, so that two that follow each other are told apart.
        let next = |lowest: Token| lowest.checked_sub(n + 1).filter(|&next| next > LAST_ID);
        let lowest = LOWEST_ID.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let lowest = lowest.map_err(|_| "this process has read so many that it has no names left; start it again".to_owned())?;
        if self.ids.len() >= MAX_NAMES {
            self.ids.clear();
        }
        self.ids.insert(key, lowest - 1);
        Ok(lowest - 1)
    }
}

/// Vectors that were made, those that were used last at the end.
#[derive(Debug, Default)]
struct EmbeddingCache {
    vectors: HashMap<Token, Arc<[f32]>>,
    order: VecDeque<Token>,
    n_bytes: u64,
}

impl EmbeddingCache {
    fn get(&mut self, id: Token) -> Option<Arc<[f32]>> {
        let found = self.vectors.get(&id).cloned()?;
        self.order.retain(|&other| other != id);
        self.order.push_back(id);
        Some(found)
    }

    fn put(&mut self, id: Token, vectors: Arc<[f32]>) {
        let n_bytes = |vectors: &Arc<[f32]>| size_of_val::<[f32]>(vectors) as u64;
        self.n_bytes += n_bytes(&vectors);
        self.order.retain(|&other| other != id);
        self.order.push_back(id);
        if let Some(before) = self.vectors.insert(id, vectors) {
            self.n_bytes -= n_bytes(&before);
        }
        while self.n_bytes > MAX_KEPT_BYTES {
            let Some(oldest) = self.order.pop_front() else { return };
            self.n_bytes -= self.vectors.remove(&oldest).as_ref().map_or(0, n_bytes);
        }
    }
}

/// A part of a picture or a sound that is encoded at once.
struct Chunk {
    own: Weak<Self>,
    first_id: Token,
    n_tokens: u32,
    n_positions: u32,
    /// Where rows and columns are counted.
    grid: Option<Grid>,
    sees_ahead: bool,
    /// What it counts as: its vectors, and what these are made of until they are there.
    n_bytes: AtomicU64,
    /// As many, until its vectors are there.
    n_waiting_bytes: AtomicU64,
    n_raw_bytes: u64,
    state: Mutex<State>,
    shared: Arc<Shared>,
    wanted: Sender<Weak<Self>>,
}

/// The positions of a picture's places.
struct Grid {
    /// Where the first is 0.
    places: Vec<[u32; 4]>,
    /// How far each of the four goes with the first.
    steps: [u32; 4],
}

enum State {
    Unasked(RawChunk),
    Asked(RawChunk),
    Ready(Arc<[f32]>),
    /// Who asks next lets it be tried again.
    Failed(RawChunk, String),
    /// While it is changed.
    Gone,
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first_id, n_tokens, n_positions, .. } = self;
        f.debug_struct("Chunk")
            .field("first_id", first_id)
            .field("n_tokens", n_tokens)
            .field("n_positions", n_positions)
            .finish_non_exhaustive()
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.shared.n_loaded_bytes.fetch_sub(*self.n_bytes.get_mut(), Ordering::Relaxed);
        self.wait_no_more();
    }
}

impl Chunk {
    /// Its vectors are there: what they are made of goes.
    fn ready(&self, vectors: Arc<[f32]>) -> State {
        self.n_bytes.fetch_sub(self.n_raw_bytes, Ordering::Relaxed);
        self.shared.n_loaded_bytes.fetch_sub(self.n_raw_bytes, Ordering::Relaxed);
        self.wait_no_more();
        State::Ready(vectors)
    }

    /// It is counted no longer among those that wait for the projector.
    fn wait_no_more(&self) {
        let n_bytes = self.n_waiting_bytes.swap(0, Ordering::Relaxed);
        self.shared.n_waiting_bytes.fetch_sub(n_bytes, Ordering::Relaxed);
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
        let Grid { places, steps } = self.grid.as_ref()?;
        let moved = |place: &[u32; 4]| std::array::from_fn(|dimension| place[dimension] + steps[dimension] * first);
        Some(places.iter().map(moved).collect())
    }

    fn sees_ahead(&self) -> bool {
        self.sees_ahead
    }

    fn n_bytes(&self) -> u64 {
        self.n_bytes.load(Ordering::Relaxed)
    }

    fn encoding(&self) -> Encoding {
        let mut state = lock(&self.state);
        let (next, encoding) = match std::mem::replace(&mut *state, State::Gone) {
            State::Unasked(raw) => match lock(&self.shared.kept).get(self.first_id) {
                Some(vectors) => {
                    self.shared.n_reused.fetch_add(1, Ordering::Relaxed);
                    (self.ready(vectors), Encoding::Ready)
                }
                None if self.wanted.send(self.own.clone()).is_ok() => (State::Asked(raw), Encoding::Pending),
                None => {
                    let reason = "the thread that reads pictures and sounds has ended".to_owned();
                    (State::Unasked(raw), Encoding::Failed(reason))
                }
            },
            State::Failed(raw, reason) => (State::Unasked(raw), Encoding::Failed(reason)),
            State::Ready(vectors) => (State::Ready(vectors), Encoding::Ready),
            other @ (State::Asked(_) | State::Gone) => (other, Encoding::Pending),
        };
        *state = next;
        encoding
    }

    fn vectors(&self) -> Option<Arc<[f32]>> {
        match &*lock(&self.state) {
            State::Ready(vectors) => Some(Arc::clone(vectors)),
            State::Unasked(_) | State::Asked(_) | State::Failed(..) | State::Gone => None,
        }
    }
}

/// The thread that makes vectors.
struct Encoder {
    raw: Arc<RawProjector>,
    shared: Arc<Shared>,
    n_embd: usize,
}

impl Encoder {
    /// Makes what is wanted, until nobody can want anything any more. What a request wanted that has gone is not begun.
    fn run(&self, wanted: &Receiver<Weak<Chunk>>) {
        niceness::compute(NICENESS);
        for chunk in wanted {
            let Some(chunk) = chunk.upgrade() else { continue };
            let raw = match std::mem::replace(&mut *lock(&chunk.state), State::Gone) {
                State::Asked(raw) => raw,
                other => {
                    *lock(&chunk.state) = other;
                    continue;
                }
            };
            let known = lock(&self.shared.kept).get(chunk.first_id);
            let made = match known {
                Some(vectors) => {
                    self.shared.n_reused.fetch_add(1, Ordering::Relaxed);
                    Ok(vectors)
                }
                None => self.encode(&chunk, &raw),
            };
            *lock(&chunk.state) = match made {
                Ok(vectors) => chunk.ready(vectors),
                Err(reason) => State::Failed(raw, reason),
            };
        }
    }

    fn encode(&self, chunk: &Chunk, raw: &RawChunk) -> std::result::Result<Arc<[f32]>, String> {
        let started = Instant::now();
        let (context, part) = (self.raw.0.as_ptr(), raw.0.as_ptr());
        let mut why = ExceptionText::default();
        // SAFETY: both are alive, and no other thread makes vectors.
        let (code, errors) = logging::errors_during(|| unsafe { weft_media_encode(context, part, why.as_mut_ptr(), WHY_BYTES) });
        if code != 0 {
            return Err(format!("cannot encode the medium: {}", why.in_words(&errors)));
        }
        let n = self.n_embd * chunk.n_tokens as usize;
        // SAFETY: the vectors of the last chunk are so many numbers, and stay until the next one is made.
        let vectors: Arc<[f32]> = unsafe { std::slice::from_raw_parts(sys::mtmd_get_output_embd(context), n) }.into();
        let took_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.shared.encode_us.fetch_add(took_us, Ordering::Relaxed);
        self.shared.n_encoded.fetch_add(1, Ordering::Relaxed);
        lock(&self.shared.kept).put(chunk.first_id, Arc::clone(&vectors));
        Ok(vectors)
    }
}

/// Bytes of the words of an exception.
const WHY_BYTES: usize = 256;

/// Where C++ writes the words of an exception.
struct ExceptionText([u8; WHY_BYTES]);

impl Default for ExceptionText {
    fn default() -> Self {
        Self([0; WHY_BYTES])
    }
}

impl ExceptionText {
    fn as_mut_ptr(&mut self) -> *mut c_char {
        self.0.as_mut_ptr().cast()
    }

    /// These words, or those of the log.
    fn in_words(&self, errors: &[String]) -> String {
        let own = CStr::from_bytes_until_nul(&self.0).ok().filter(|own| !own.is_empty());
        let own = own.map(|own| own.to_string_lossy().into_owned());
        own.or_else(|| logging::reason(errors)).unwrap_or_else(|| "llama.cpp does not say why".to_owned())
    }
}

unsafe extern "C" {
    fn weft_media_tokenize(
        projector: *const sys::mtmd_context,
        chunks: *mut sys::mtmd_input_chunks,
        parts: *const *const sys::mtmd_input_part,
        n: usize,
        why: *mut c_char,
        n_why: usize,
    ) -> i32;
    fn weft_media_encode(
        projector: *mut sys::mtmd_context,
        chunk: *const sys::mtmd_input_chunk,
        why: *mut c_char,
        n_why: usize,
    ) -> i32;
}

struct Bitmap(NonNull<sys::mtmd_bitmap>);

impl Bitmap {
    /// A copy of the pixels.
    fn of_picture(picture: &Picture) -> Option<Self> {
        let Picture { width, height, rgb } = picture;
        assert_eq!(rgb.len() as u64, 3 * u64::from(*width) * u64::from(*height), "each pixel has three bytes");
        // SAFETY: so many bytes are copied.
        NonNull::new(unsafe { sys::mtmd_bitmap_init(*width, *height, rgb.as_ptr()) }).map(Self)
    }

    /// A copy of the samples.
    fn of_sound(samples: &[f32]) -> Option<Self> {
        // SAFETY: so many numbers are copied.
        NonNull::new(unsafe { sys::mtmd_bitmap_init_from_audio(samples.len(), samples.as_ptr()) }).map(Self)
    }
}

impl Drop for Bitmap {
    fn drop(&mut self) {
        // SAFETY: freed only here.
        unsafe { sys::mtmd_bitmap_free(self.0.as_ptr()) }
    }
}

struct Chunks(NonNull<sys::mtmd_input_chunks>);

impl Drop for Chunks {
    fn drop(&mut self) {
        // SAFETY: freed only here.
        unsafe { sys::mtmd_input_chunks_free(self.0.as_ptr()) }
    }
}

/// A chunk that is never changed.
struct RawChunk(NonNull<sys::mtmd_input_chunk>);

impl RawChunk {
    /// The positions of a picture of `n_tokens` places.
    fn grid(&self, n_tokens: u32) -> Grid {
        let at = |first: i32, place: u32| {
            // SAFETY: the chunk is a picture and alive, and has so many places.
            let at = unsafe {
                let picture = sys::mtmd_input_chunk_get_tokens_image(self.0.as_ptr());
                sys::mtmd_image_tokens_get_decoder_pos(picture, first, place as usize)
            };
            [at.t, at.y, at.x, at.z]
        };
        let (from_0, from_1) = (at(0, 0), at(1, 0));
        let steps = std::array::from_fn(|dimension| from_1[dimension] - from_0[dimension]);
        Grid { places: (0..n_tokens).map(|place| at(0, place)).collect(), steps }
    }
}

// SAFETY: it is only read.
unsafe impl Send for RawChunk {}
// SAFETY: as above.
unsafe impl Sync for RawChunk {}

impl Drop for RawChunk {
    fn drop(&mut self) {
        // SAFETY: copied for us, and freed only here.
        unsafe { sys::mtmd_input_chunk_free(self.0.as_ptr()) }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn path_of(path: &Path) -> std::result::Result<CString, String> {
    // llama.cpp would wait for whoever writes to a pipe. What is not there, and a directory, its header is asked for.
    let is_other = std::fs::metadata(path).is_ok_and(|about| !about.is_file() && !about.is_dir());
    let path = path.to_str().filter(|_| !is_other).ok_or("it is not a regular file with a path in UTF-8")?;
    CString::new(path).map_err(|_| "its path holds a NUL byte".to_owned())
}

/// Refuses a file that there is no memory for: all of it is read, and Linux would grant the memory and end the process when it is
/// used.
fn check_memory(path: &Path, offload: bool) -> std::result::Result<(), String> {
    let n_bytes = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    // A device refuses what it has no room for.
    let n_free = if offload && !memory::gpus().is_empty() { u64::MAX } else { memory::free_on_host() };
    if n_bytes <= n_free {
        return Ok(());
    }
    Err(format!("it takes {n_bytes} bytes of memory, but {n_free} are free"))
}

/// Bytes of the pixels that one place is made of: three numbers of 32 bits for each.
fn raw_bytes(file: &Metadata) -> u64 {
    let patch = file.u32("clip.vision.patch_size").unwrap_or(16);
    let merge = ["clip.vision.projector.scale_factor", "clip.vision.spatial_merge_size"].iter().find_map(|key| file.u32(key));
    12 * u64::from(patch).pow(2) * u64::from(merge.unwrap_or(2)).pow(2)
}

/// Whether llama.cpp can read what the projector is for: it ends the process where it finds other vectors than it counted.
fn check(file: &Metadata) -> std::result::Result<(), String> {
    // What they make of a picture depends on the pictures or the tokens before it, which a shared one cannot know.
    const NOT_BY_THEMSELVES: [&str; 2] = ["deepseek4v", "hunyuanvl"];
    // Whisper makes 1,500 frames of 3,000.
    const N_FRAMES: u32 = 3_000;
    let architecture = file.string("general.architecture").unwrap_or_default();
    if architecture != "clip" {
        let what = "it is no projector, which is the mmproj-*.gguf beside the model";
        return Err(format!("{what}: its general.architecture is {architecture:?}, not \"clip\""));
    }
    let kinds = ["clip.projector_type", "clip.vision.projector_type", "clip.audio.projector_type"];
    let kinds: Vec<String> = kinds.iter().filter_map(|key| file.string(key)).collect();
    let is_one_of = |names: &[&str]| kinds.iter().find(|kind| names.contains(&kind.as_str()));
    if let Some(kind) = is_one_of(&NOT_BY_THEMSELVES) {
        return Err(format!(
            "projectors of the kind {kind} read no picture by itself, and so share none; they are not supported"
        ));
    }
    let Some(stack) = file.u32("clip.audio.projector.stack_factor") else { return Ok(()) };
    let joins_rounded_twice = is_one_of(&["ultravox", "voxtral", "meralion"]).is_some() && stack != 1;
    let joins_rounded_down = is_one_of(&["glma"]).is_some();
    if stack == 0 && (joins_rounded_twice || joins_rounded_down) {
        return Err("its stack factor is 0; it must be at least 1".to_owned());
    }
    // What is left over of the frames that are joined is filled up; the count rounds otherwise.
    let n_made = (N_FRAMES / 2).div_ceil(stack.max(1));
    let n_counted = if joins_rounded_twice {
        N_FRAMES.div_ceil(stack) / 2
    } else if joins_rounded_down {
        N_FRAMES / 2 / stack
    } else {
        n_made
    };
    if n_counted == n_made {
        return Ok(());
    }
    Err(format!("llama.cpp counts {n_counted} places for a sound of which this projector makes {n_made}, so it reads none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_that_were_used_last_are_kept_up_to_a_bound() {
        let mut kept = EmbeddingCache::default();
        let quarter = usize::try_from(MAX_KEPT_BYTES / 4 / 4).expect("some millions");
        let vectors: Arc<[f32]> = vec![0.0; quarter].into();
        for id in [-1, -2, -3, -4] {
            kept.put(id, Arc::clone(&vectors));
        }
        assert!(kept.get(-1).is_some());
        kept.put(-5, Arc::clone(&vectors));
        kept.put(-5, Arc::clone(&vectors));
        let there = [-1, -2, -3, -4, -5].map(|id| kept.get(id).is_some());
        assert_eq!((there, kept.n_bytes), ([true, false, true, true, true], MAX_KEPT_BYTES));
        assert_eq!((kept.order.len(), kept.vectors.len()), (4, 4));
    }

    #[test]
    fn equal_chunks_have_equal_ids_and_no_others_in_the_process() {
        let (mut one, mut other) = (ChunkIds::default(), ChunkIds::default());
        let first = one.id("a", 0, 10).expect("there are names");
        let rest = [one.id("a", 1, 10), one.id("b", 0, 10), other.id("a", 0, 10)].map(|id| id.expect("there are names"));
        assert_eq!(one.id("a", 0, 10), Ok(first));
        let mut places: Vec<Token> =
            rest.into_iter().chain([first]).flat_map(|id| (0..10).map(move |place| id - place)).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!((places.len(), places.iter().all(|&id| id < 0)), (40, true));
        for nth in 0..MAX_NAMES {
            one.id("c", nth, 1).expect("there are names");
        }
        assert!(one.ids.len() <= MAX_NAMES, "what was long ago is forgotten");
    }
}
