//! llama.cpp's `mtmd`, without raw pointers.

use std::ffi::c_char;
use std::ptr::{NonNull, null};
use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use crate::config::MediaConfig;
use crate::llama::media::{Modalities, media_file::Image};
use crate::llama::{host::threads, logging, model::gguf::c_path};
use crate::request::Token;

owned_pointer!(pub(super) struct RawProjector(sys::mtmd_context), freed by sys::mtmd_free);

// SAFETY: `mtmd` supports any number of threads that cut files while one encodes, which is always the encoder's.
unsafe impl Send for RawProjector {}
// SAFETY: as above.
unsafe impl Sync for RawProjector {}

pub(super) enum Piece {
    Tokens(Vec<Token>),
    Media(RawChunk, ChunkShape),
}

pub(super) struct ChunkShape {
    pub(super) n_tokens: u32,
    pub(super) n_positions: u32,
    /// Multi-dimensional positions (M-RoPE), if the model uses them.
    pub(super) grid: Option<Grid>,
    pub(super) sees_ahead: bool,
}

pub(super) struct Grid {
    pub(super) positions: Vec<[u32; 4]>,
    pub(super) steps: [u32; 4],
}

impl RawProjector {
    /// # Safety
    /// `model` is alive for as long as the projector.
    pub(super) unsafe fn load(config: &MediaConfig, model: *const sys::llama_model) -> Result<Self, String> {
        let path = c_path(&config.path)?;
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
        // Lines after the first only repeat that the file could not be loaded.
        NonNull::new(raw).map(Self).ok_or_else(|| logging::reason_or_default(&errors[..errors.len().min(1)]))
    }

    pub(super) fn modalities(&self) -> Modalities {
        // SAFETY: the projector is alive.
        unsafe { Modalities { vision: sys::mtmd_support_vision(self.as_ptr()), audio: sys::mtmd_support_audio(self.as_ptr()) } }
    }

    /// Sample rate of audio, in Hz; 0 if audio is not supported.
    pub(super) fn sample_rate(&self) -> u32 {
        // SAFETY: the projector is alive.
        unsafe { sys::mtmd_get_audio_sample_rate(self.as_ptr()) }.max(0).unsigned_abs()
    }

    pub(super) fn cut(&self, bitmap: &Bitmap) -> Result<Vec<Piece>, String> {
        // SAFETY: allocated here, and freed on drop.
        let chunks = Chunks(NonNull::new(unsafe { sys::mtmd_input_chunks_init() }).ok_or("there is not enough memory")?);
        let list = chunks.0.as_ptr();
        let part = sys::mtmd_input_part { text: null(), bitmap: bitmap.0.as_ptr() };
        let part = &raw const part;
        // SAFETY: everything is alive during the call, and only the list is changed.
        call_mtmd(|message, n_message_bytes| unsafe {
            weft_media_tokenize(self.as_ptr(), list, &raw const part, 1, message, n_message_bytes)
        })?;
        // SAFETY: the list is alive, and the indices are below its length.
        unsafe { (0..sys::mtmd_input_chunks_size(list)).map(|i| self.piece(sys::mtmd_input_chunks_get(list, i))).collect() }
    }

    /// # Safety
    /// `chunk` is alive.
    unsafe fn piece(&self, chunk: *const sys::mtmd_input_chunk) -> Result<Piece, String> {
        // SAFETY: projector and chunk are alive; a chunk of text has `n_tokens` tokens.
        unsafe {
            let kind = sys::mtmd_input_chunk_get_type(chunk);
            if kind == sys::MTMD_INPUT_CHUNK_TYPE_TEXT {
                let mut n_tokens = 0;
                let first = sys::mtmd_input_chunk_get_tokens_text(chunk, &raw mut n_tokens);
                let tokens = if first.is_null() { &[] } else { std::slice::from_raw_parts(first, n_tokens) };
                return Ok(Piece::Tokens(tokens.to_vec()));
            }
            let n_tokens = u32::try_from(sys::mtmd_input_chunk_get_n_tokens(chunk)).ok().filter(|&n| n > 0);
            let n_tokens = n_tokens.ok_or("it has no embeddings after preprocessing")?;
            let raw = NonNull::new(sys::mtmd_input_chunk_copy(chunk)).map(RawChunk).ok_or("there is not enough memory")?;
            let has_grid = kind == sys::MTMD_INPUT_CHUNK_TYPE_IMAGE && sys::mtmd_decode_use_mrope(self.as_ptr());
            let shape = ChunkShape {
                n_tokens,
                n_positions: u32::try_from(sys::mtmd_input_chunk_get_n_pos(chunk)).map_err(|_| "it has no positions")?,
                grid: has_grid.then(|| raw.grid(n_tokens)),
                sees_ahead: sys::mtmd_decode_use_non_causal(self.as_ptr(), chunk),
            };
            Ok(Piece::Media(raw, shape))
        }
    }

    /// Computes the `n_numbers` numbers of a chunk's embeddings. Only one thread may call this.
    pub(super) fn encode(&self, chunk: &RawChunk, n_numbers: usize) -> Result<Arc<[f32]>, String> {
        // SAFETY: both are alive, and no other thread encodes.
        call_mtmd(|message, n_message_bytes| unsafe {
            weft_media_encode(self.as_ptr(), chunk.0.as_ptr(), message, n_message_bytes)
        })?;
        // SAFETY: the output of the last chunk has `n_numbers` numbers, and is valid until the next chunk is encoded.
        Ok(unsafe { std::slice::from_raw_parts(sys::mtmd_get_output_embd(self.as_ptr()), n_numbers) }.into())
    }

    fn as_ptr(&self) -> *mut sys::mtmd_context {
        self.0.as_ptr()
    }
}

owned_pointer!(pub(super) struct Bitmap(sys::mtmd_bitmap), freed by sys::mtmd_bitmap_free);

impl Bitmap {
    pub(super) fn from_image(Image { width, height, rgb }: &Image) -> Option<Self> {
        assert_eq!(rgb.len() as u64, 3 * u64::from(*width) * u64::from(*height), "each pixel has three bytes");
        // SAFETY: llama.cpp copies `3 × width × height` bytes.
        NonNull::new(unsafe { sys::mtmd_bitmap_init(*width, *height, rgb.as_ptr()) }).map(Self)
    }

    pub(super) fn from_audio(samples: &[f32]) -> Option<Self> {
        // SAFETY: llama.cpp copies `samples.len()` numbers.
        NonNull::new(unsafe { sys::mtmd_bitmap_init_from_audio(samples.len(), samples.as_ptr()) }).map(Self)
    }
}

owned_pointer!(struct Chunks(sys::mtmd_input_chunks), freed by sys::mtmd_input_chunks_free);

owned_pointer!(pub(super) struct RawChunk(sys::mtmd_input_chunk), freed by sys::mtmd_input_chunk_free);

// SAFETY: it is only read.
unsafe impl Send for RawChunk {}
// SAFETY: as above.
unsafe impl Sync for RawChunk {}

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

fn call_mtmd(call: impl FnOnce(*mut c_char, usize) -> i32) -> Result<(), String> {
    let ((code, message), errors) = logging::errors_during(|| logging::with_exception_text(call));
    match code {
        0 => Ok(()),
        _ if message.is_empty() => Err(logging::reason_or_default(&errors)),
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
