//! Pictures and sounds → vectors, by llama.cpp's `mtmd` and the projector of a model.
//!
//! A file is cut into chunks where it is loaded, on whatever thread asks for it. The vectors of a chunk are one long computation: a
//! thread of its own makes them, one chunk after the other, and keeps those that were made last. Equal chunks have equal ids, so that
//! the prefix tree finds what is computed of them, and this store what is not.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Instant;

use llama_cpp_sys_2 as sys;

use crate::config::MediaConfig;
use crate::error::{Error, Result};
use crate::llama::gguf::Metadata;
use crate::llama::media_header::{self, MediaKind};
use crate::llama::niceness::{self, give_way};
use crate::llama::{logging, threads};
use crate::request::{Encoding, Media, Medium, Run, Token};

/// Bytes of vectors that are kept for prompts that come later.
pub const MAX_KEPT_BYTES: u64 = 256 << 20;

/// Most places of media that prompts may hold which wait or run. What is kept of one until its vectors are made is some tens of
/// kilobytes for each.
pub const MAX_PLACES_WAITING: u64 = 65_536;

/// Chunks whose ids are remembered. Then all are forgotten, and what comes again is computed again.
const MAX_NAMES: usize = 65_536;

/// The lowest id.
const LAST_ID: Token = Token::MIN / 2;

/// How far the thread that makes vectors gives way: by five levels more than those that write texts.
const NICENESS: i32 = niceness::NICENESS + 5;

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
}

/// A loaded file: what stands for it in a prompt.
#[derive(Debug, Clone)]
pub struct LoadedMedia {
    /// Whether it is a picture or a sound.
    pub kind: MediaKind,
    /// SHA-256 of the file, in hexadecimal digits.
    pub digest: String,
    /// Bytes of the file.
    pub n_bytes: usize,
    /// Its chunks, and the tokens that the model wants around them.
    pub runs: Vec<Run>,
}

/// llama.cpp's projector. Files are cut into chunks by any thread, and one makes vectors.
struct Raw(NonNull<sys::mtmd_context>);

// SAFETY: `mtmd` lets any number of threads cut files into chunks while one makes vectors, which `Projector` sees to.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: made by `mtmd_init_from_file` and freed only here.
        unsafe { sys::mtmd_free(self.0.as_ptr()) }
    }
}

/// The projector that was loaded beside a model. Lives no longer than the model.
pub struct Projector {
    raw: Arc<Raw>,
    path: PathBuf,
    modalities: Modalities,
    names: Mutex<Names>,
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
    kept: Mutex<Kept>,
    n_encoded: AtomicU64,
    n_reused: AtomicU64,
    encode_us: AtomicU64,
    /// Of chunks that live.
    n_places: AtomicU64,
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
        check(&Metadata::open(&config.path).map_err(refuse)?).map_err(refuse)?;
        // SAFETY: plain data.
        let mut params = unsafe { sys::mtmd_context_params_default() };
        params.use_gpu = config.offload;
        params.print_timings = false;
        params.warmup = false;
        params.n_threads = threads::n_cores().cast_signed();
        let number = |n: Option<u32>| n.map_or(-1, |n| i32::try_from(n).unwrap_or(i32::MAX));
        (params.image_min_tokens, params.image_max_tokens) = (number(config.image_min_tokens), number(config.image_max_tokens));
        // SAFETY: path and parameters live during the call, and the caller vouches for the model.
        let (raw, errors) = logging::errors_during(|| unsafe { sys::mtmd_init_from_file(path.as_ptr(), model, params) });
        let raw = NonNull::new(raw)
            .map(Raw)
            .ok_or_else(|| refuse(logging::reason(&errors).unwrap_or_else(|| "llama.cpp does not say why".to_owned())))?;
        let context = raw.0.as_ptr();
        // SAFETY: the projector is alive.
        let modalities =
            unsafe { Modalities { vision: sys::mtmd_support_vision(context), audio: sys::mtmd_support_audio(context) } };
        let (raw, shared) = (Arc::new(raw), Arc::<Shared>::default());
        let (wanted, received) = mpsc::channel();
        let encoder = Encoder { raw: Arc::clone(&raw), shared: Arc::clone(&shared), n_embd };
        let thread = thread::Builder::new().name("weft-media".into()).spawn(move || encoder.run(&received));
        thread.map_err(|error| refuse(format!("no thread can be started: {error}")))?;
        Ok(Self { raw, path: config.path.clone(), modalities, names: Mutex::default(), shared, wanted })
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
        let Shared { kept, n_encoded, n_reused, encode_us, .. } = &*self.shared;
        MediaStats {
            n_encoded: n_encoded.load(Ordering::Relaxed),
            n_reused: n_reused.load(Ordering::Relaxed),
            #[expect(clippy::cast_precision_loss, reason = "microseconds of a process's life")]
            encode_s: encode_us.load(Ordering::Relaxed) as f64 * 1e-6,
            n_kept_bytes: lock(kept).n_bytes,
        }
    }

    /// Decodes `file` and cuts it into chunks, of which none is encoded yet.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] of `media` where it is no picture or sound that this projector reads, or too large;
    /// [`Error::QueueFull`] where prompts that wait hold as much as they may.
    pub fn read(&self, file: &[u8]) -> Result<LoadedMedia> {
        let refuse =
            |reason: String| Error::InvalidRequest { param: "media", message: format!("cannot read the medium: {reason}") };
        let (kind, whole) = media_header::look(file).map_err(refuse)?;
        let (is_read, what) = match kind {
            MediaKind::Image => (self.modalities.vision, "pictures"),
            MediaKind::Audio => (self.modalities.audio, "sounds"),
        };
        if !is_read {
            return Err(refuse(format!("{} does not read {what}", self.path.display())));
        }
        let n_places = self.shared.n_places.load(Ordering::Relaxed);
        if n_places > MAX_PLACES_WAITING {
            return Err(Error::QueueFull { n_waiting: usize::try_from(n_places).unwrap_or(usize::MAX) });
        }
        let raw = self.raw.0.as_ptr();
        // SAFETY: the projector is alive, the bytes are only read, and a header was found that says how much memory they take.
        let (made, errors) = logging::errors_during(|| unsafe {
            sys::mtmd_helper_bitmap_init_from_buf(raw, whole.as_ptr(), whole.len(), false, sys::mtmd_helper_init_opt_default())
        });
        let reason = |errors: &[String]| refuse(logging::reason(errors).unwrap_or_else(|| "it is damaged".to_owned()));
        let bitmap = NonNull::new(made.bitmap).map(Bitmap).ok_or_else(|| reason(&errors))?;
        // SAFETY: the bitmap is alive. `mtmd` asserts that a sound has more than one sample.
        let n_decoded = unsafe { sys::mtmd_bitmap_get_n_bytes(bitmap.0.as_ptr()) };
        if n_decoded <= 2 * size_of::<f32>() && kind == MediaKind::Audio {
            return Err(refuse("the sound is empty".to_owned()));
        }
        // SAFETY: the bitmap is alive, and its name a NUL-terminated string.
        let digest = unsafe { text(sys::mtmd_bitmap_get_id(bitmap.0.as_ptr())) };
        // SAFETY: made and freed here.
        let chunks = Chunks(NonNull::new(unsafe { sys::mtmd_input_chunks_init() }).expect("memory for an empty list"));
        let part = sys::mtmd_input_part { text: null(), bitmap: bitmap.0.as_ptr() };
        let parts = [&raw const part];
        // SAFETY: all is alive during the call, and only the list is changed.
        let (code, errors) = logging::errors_during(|| unsafe {
            sys::mtmd_tokenize_from_parts(raw, chunks.0.as_ptr(), parts.as_ptr(), parts.len(), false)
        });
        if code != 0 {
            return Err(reason(&errors));
        }
        drop(bitmap);
        let runs = self.runs(&chunks, &digest).map_err(refuse)?;
        Ok(LoadedMedia { kind, digest, n_bytes: file.len(), runs })
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
            let chunk = Arc::new_cyclic(|own| Chunk {
                own: own.clone(),
                raw: copy,
                first_id,
                n_tokens,
                n_positions,
                has_grid,
                sees_ahead,
                state: Mutex::new(State::Unasked),
                shared: Arc::clone(&self.shared),
                wanted: self.wanted.clone(),
            });
            self.shared.n_places.fetch_add(n_tokens.into(), Ordering::Relaxed);
            runs.push(Run::Media(Media(chunk)));
        }
        Ok(runs)
    }
}

/// The ids that stand for chunks.
#[derive(Debug, Default)]
struct Names {
    /// By the file's digest, the chunk's place in it, and its length.
    ids: HashMap<(String, usize, u32), Token>,
    lowest: Token,
}

impl Names {
    fn id(&mut self, digest: &str, nth: usize, n_tokens: u32) -> std::result::Result<Token, String> {
        let key = (digest.to_owned(), nth, n_tokens);
        if let Some(&id) = self.ids.get(&key) {
            return Ok(id);
        }
        if self.lowest < LAST_ID {
            return Err("this process has read so many that it has no names left; start it again".to_owned());
        }
        if self.ids.len() >= MAX_NAMES {
            self.ids.clear();
        }
        let first = self.lowest - 1;
        self.lowest = first - n_tokens.cast_signed();
        self.ids.insert(key, first);
        Ok(first)
    }
}

/// Vectors that were made, those that were used last at the end.
#[derive(Debug, Default)]
struct Kept {
    vectors: HashMap<Token, Arc<[f32]>>,
    order: VecDeque<Token>,
    n_bytes: u64,
}

impl Kept {
    fn get(&mut self, id: Token) -> Option<Arc<[f32]>> {
        let found = self.vectors.get(&id).cloned()?;
        self.order.retain(|&other| other != id);
        self.order.push_back(id);
        Some(found)
    }

    fn put(&mut self, id: Token, vectors: Arc<[f32]>) {
        let n_bytes = |vectors: &Arc<[f32]>| size_of_val::<[f32]>(vectors) as u64;
        self.n_bytes += n_bytes(&vectors);
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
    raw: RawChunk,
    first_id: Token,
    n_tokens: u32,
    n_positions: u32,
    /// Whether rows and columns are counted.
    has_grid: bool,
    sees_ahead: bool,
    state: Mutex<State>,
    shared: Arc<Shared>,
    wanted: Sender<Weak<Self>>,
}

#[derive(Debug)]
enum State {
    Unasked,
    Asked,
    Ready(Arc<[f32]>),
    Failed(String),
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
        self.shared.n_places.fetch_sub(self.n_tokens.into(), Ordering::Relaxed);
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

    fn positions(&self, first: u32) -> Option<Vec<[u32; 4]>> {
        if !self.has_grid {
            return None;
        }
        let position = |place: u32| {
            // SAFETY: the chunk is a picture and alive, and has so many places.
            let at = unsafe {
                let picture = sys::mtmd_input_chunk_get_tokens_image(self.raw.0.as_ptr());
                sys::mtmd_image_tokens_get_decoder_pos(picture, first.cast_signed(), place as usize)
            };
            [at.t, at.y, at.x, at.z]
        };
        Some((0..self.n_tokens).map(position).collect())
    }

    fn sees_ahead(&self) -> bool {
        self.sees_ahead
    }

    fn encoding(&self) -> Encoding {
        let mut state = lock(&self.state);
        if let State::Unasked = &*state {
            *state = match lock(&self.shared.kept).get(self.first_id) {
                Some(vectors) => {
                    self.shared.n_reused.fetch_add(1, Ordering::Relaxed);
                    State::Ready(vectors)
                }
                None if self.wanted.send(self.own.clone()).is_ok() => State::Asked,
                None => State::Failed("the thread that reads pictures and sounds has ended".to_owned()),
            };
        }
        match &*state {
            State::Unasked | State::Asked => Encoding::Pending,
            State::Ready(_) => Encoding::Ready,
            State::Failed(reason) => Encoding::Failed(reason.clone()),
        }
    }

    fn vectors(&self) -> Option<Arc<[f32]>> {
        match &*lock(&self.state) {
            State::Ready(vectors) => Some(Arc::clone(vectors)),
            State::Unasked | State::Asked | State::Failed(_) => None,
        }
    }
}

/// The thread that makes vectors.
struct Encoder {
    raw: Arc<Raw>,
    shared: Arc<Shared>,
    n_embd: usize,
}

impl Encoder {
    /// Makes what is wanted, until nobody can want anything any more. What a request wanted that has gone is not begun.
    fn run(&self, wanted: &Receiver<Weak<Chunk>>) {
        give_way(NICENESS);
        for chunk in wanted {
            let Some(chunk) = chunk.upgrade() else { continue };
            let known = lock(&self.shared.kept).get(chunk.first_id);
            let made = match known {
                Some(vectors) => {
                    self.shared.n_reused.fetch_add(1, Ordering::Relaxed);
                    Ok(vectors)
                }
                None => self.encode(&chunk),
            };
            *lock(&chunk.state) = match made {
                Ok(vectors) => State::Ready(vectors),
                Err(reason) => State::Failed(reason),
            };
        }
    }

    fn encode(&self, chunk: &Chunk) -> std::result::Result<Arc<[f32]>, String> {
        let started = Instant::now();
        let (raw, part) = (self.raw.0.as_ptr(), chunk.raw.0.as_ptr());
        // SAFETY: both are alive, and no other thread makes vectors.
        let (code, errors) = logging::errors_during(|| unsafe { sys::mtmd_encode_chunk(raw, part) });
        if code != 0 {
            let reason = logging::reason(&errors).unwrap_or_else(|| "llama.cpp does not say why".to_owned());
            return Err(format!("cannot read the medium: {reason}"));
        }
        let n = self.n_embd * chunk.n_tokens as usize;
        // SAFETY: the vectors of the last chunk are so many numbers, and stay until the next one is made.
        let vectors: Arc<[f32]> = unsafe { std::slice::from_raw_parts(sys::mtmd_get_output_embd(raw), n) }.into();
        let took_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.shared.encode_us.fetch_add(took_us, Ordering::Relaxed);
        self.shared.n_encoded.fetch_add(1, Ordering::Relaxed);
        lock(&self.shared.kept).put(chunk.first_id, Arc::clone(&vectors));
        Ok(vectors)
    }
}

struct Bitmap(NonNull<sys::mtmd_bitmap>);

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
    // llama.cpp would wait for whoever writes to a pipe.
    let is_file = std::fs::metadata(path).map_err(|error| error.to_string())?.is_file();
    let path = path.to_str().filter(|_| is_file).ok_or("it is not a regular file with a path in UTF-8")?;
    CString::new(path).map_err(|_| "its path holds a NUL byte".to_owned())
}

/// Whether llama.cpp can read what the projector is for: it ends the process where it finds other vectors than it counted.
fn check(file: &Metadata) -> std::result::Result<(), String> {
    // Whisper makes 1,500 frames of 3,000. Projectors that join `stack` of them fill up the last; the count rounds twice.
    const N_FRAMES: u32 = 3_000;
    let joins = |of: &str| ["ultravox", "voxtral", "meralion"].contains(&of);
    let kind = |key: &str| file.string(key).is_some_and(|kind| joins(&kind));
    let stack = file.u32("clip.audio.projector.stack_factor").filter(|&stack| stack > 1);
    let Some(stack) = stack.filter(|_| kind("clip.projector_type") || kind("clip.audio.projector_type")) else { return Ok(()) };
    let (n_counted, n_made) = (N_FRAMES.div_ceil(stack) / 2, (N_FRAMES / 2).div_ceil(stack));
    if n_counted == n_made {
        return Ok(());
    }
    Err(format!("llama.cpp counts {n_counted} places for a sound of which this projector makes {n_made}, so it reads none"))
}

/// # Safety
/// `text` is null or a NUL-terminated string.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller vouches for it.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
