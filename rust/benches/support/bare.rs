//! The reference: `llama_decode` in a loop, and nothing else.
//!
//! A step consists of the indispensable work: fill a batch with one row per sequence, decode it, wait for the logits. There is
//! no sampling (tokens are predetermined), no text, no event, no queue. The sequences have the same cells as the engine's, and
//! each step fills the same cells as the engine's step.
#![allow(unsafe_code, reason = "the yardstick is llama.cpp itself, called directly")]

use std::ops::Range;
use std::ptr;
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;

use super::bare_model::BareModel;
use super::kernels;
use super::setup::{Cells, Flash, Origin, Setup, Threads};
use super::shape::Shape;
use super::stretch::Stretch;

/// A context, and the rows of its next decode.
pub(crate) struct BareContext<'a> {
    context: *mut sys::llama_context,
    /// Null if threads are started for each graph.
    pool: sys::ggml_threadpool_t,
    rows: Rows,
    setup: Setup,
    _model: &'a BareModel,
}

impl<'a> BareContext<'a> {
    /// Creates the context. K and V are F16, the benchmark's format.
    ///
    /// # Errors
    /// A message, if llama.cpp cannot create it, usually for lack of memory.
    pub(crate) fn new(model: &'a BareModel, setup: &Setup, threads: Threads) -> Result<Self, String> {
        kernels::choose(setup.used);
        let n_threads = threads.n.cast_signed();
        // SAFETY: returns a plain struct.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = setup.n_cells;
        params.n_batch = setup.n_batch.max(setup.n_sequences);
        params.n_ubatch = setup.n_rows;
        params.n_seq_max = setup.n_sequences;
        params.n_outputs_max = setup.n_sequences;
        params.n_threads = n_threads;
        params.n_threads_batch = n_threads;
        params.kv_unified = setup.cells == Cells::Unified;
        params.no_perf = true;
        params.flash_attn_type = match setup.flash {
            Flash::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
            Flash::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        };
        // SAFETY: the model is alive and stays so for the life of the context, which borrows it.
        let context = unsafe { sys::llama_init_from_model(model.as_ptr(), params) };
        if context.is_null() {
            return Err(format!("llama.cpp cannot make a context of {} cells", setup.n_cells));
        }
        let pool = match threads.origin {
            Origin::Started => ptr::null_mut(),
            // SAFETY: the parameters are complete (an empty mask is any processor), and `drop` frees the pool after the context.
            Origin::Kept => unsafe {
                let mut params = sys::ggml_threadpool_params_default(n_threads);
                // The same polling time as in the engine.
                params.poll = 1;
                let pool = sys::ggml_threadpool_new(&raw mut params);
                sys::llama_attach_threadpool(context, pool, pool);
                pool
            },
        };
        Ok(Self { context, pool, rows: Rows::default(), setup: *setup, _model: model })
    }

    /// Clears the cache and gives each sequence the cells of `shape`. With streams, each sequence has its own copy of shared
    /// cells, and idle cells are omitted: they would be in streams that no decode reads.
    ///
    /// # Errors
    /// A message, if llama.cpp rejects the bytes.
    pub(crate) fn fill(&mut self, shape: Shape, stretch: &Stretch) -> Result<(), String> {
        self.clear();
        let is_unified = self.setup.cells == Cells::Unified;
        if is_unified && shape.n_idle > 0 {
            // First, so that running cells follow idle ones, as they do if the idle sequences ran earlier.
            self.restore(self.setup.n_sequences as usize - 1, &stretch.state(shape.n_idle, 1))?;
        }
        if shape.n_tokens == 0 {
            return Ok(());
        }
        let state = stretch.state(shape.n_tokens, self.setup.n_streams());
        let n_copies = if is_unified { shape.n_prompts() } else { shape.n_sequences };
        (0..n_copies).try_for_each(|sequence| self.restore(sequence, &state))?;
        (n_copies..shape.n_sequences).for_each(|branch| self.share_cells(0, branch));
        Ok(())
    }

    fn restore(&mut self, sequence: usize, state: &[u8]) -> Result<(), String> {
        // SAFETY: the bytes are made as llama.cpp writes them for a context of the same model and layout; the id is below
        // `n_seq_max`.
        let n_read = unsafe { sys::llama_state_seq_set_data(self.context, state.as_ptr(), state.len(), id(sequence)) };
        if n_read == 0 { Err(format!("llama.cpp does not restore sequence {sequence}")) } else { Ok(()) }
    }

    /// Times the decodes of this range of the prompt's tokens, whose predecessors are in sequence 0, with the logits of the
    /// last.
    ///
    /// # Errors
    /// llama.cpp's code, if a decode fails.
    pub(crate) fn time_prefill(&mut self, prompt: &[i32], range: Range<usize>) -> Result<Duration, String> {
        let started = Instant::now();
        let n_rows = self.setup.n_rows as usize;
        for (chunk, tokens) in prompt[range.clone()].chunks(n_rows).enumerate() {
            let positions = range.start + chunk * n_rows..;
            let row = |(position, &token)| Row { token, position, sequence: 0, wants_logits: position + 1 == range.end };
            self.decode_rows(positions.zip(tokens).map(row))?;
        }
        Ok(started.elapsed())
    }

    /// Times `n_steps` decodes of one row per sequence, and restores the sequences' lengths.
    ///
    /// # Errors
    /// llama.cpp's code, if a decode fails.
    pub(crate) fn time_steps(&mut self, tokens: &[i32], shape: Shape, n_steps: usize) -> Result<Duration, String> {
        let Shape { n_sequences, n_tokens, .. } = shape;
        let started = Instant::now();
        for step in 0..n_steps {
            let token = |sequence| tokens[(step * n_sequences + sequence) % tokens.len()];
            let position = n_tokens + step;
            let row = |sequence| Row { token: token(sequence), position, sequence, wants_logits: true };
            self.decode_rows((0..n_sequences).map(row))?;
        }
        let elapsed = started.elapsed();
        (0..n_sequences).for_each(|sequence| self.remove_from(sequence, n_tokens));
        Ok(elapsed)
    }

    /// Returns the state of sequence 0 as llama.cpp saves it.
    ///
    /// # Errors
    /// A message, if it saves fewer bytes than announced.
    pub(crate) fn save(&mut self) -> Result<Vec<u8>, String> {
        // SAFETY: the context is alive.
        let mut bytes = vec![0; unsafe { sys::llama_state_seq_get_size(self.context, 0) }];
        // SAFETY: the buffer is as long as it says.
        let n_written = unsafe { sys::llama_state_seq_get_data(self.context, bytes.as_mut_ptr(), bytes.len(), 0) };
        if n_written == bytes.len() { Ok(bytes) } else { Err(format!("{n_written} bytes of {} were saved", bytes.len())) }
    }

    /// Clears the cache.
    pub(crate) fn clear(&mut self) {
        // SAFETY: the memory belongs to the live context.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.context), false) };
    }

    /// Shares the cells of `from` with `to`.
    pub(crate) fn share_cells(&mut self, from: usize, to: usize) {
        // SAFETY: both ids are below `n_seq_max`, and the whole sequence is meant, which streams can copy too.
        unsafe { sys::llama_memory_seq_cp(sys::llama_get_memory(self.context), id(from), id(to), -1, -1) };
    }

    /// Removes the cells from position `start` on from `sequence`.
    pub(crate) fn remove_from(&mut self, sequence: usize, start: usize) {
        // SAFETY: the id is below `n_seq_max`, and the memory belongs to the live context.
        unsafe { sys::llama_memory_seq_rm(sys::llama_get_memory(self.context), id(sequence), id(start), -1) };
    }

    /// Decodes these rows, at most `n_batch`, and waits for their logits.
    ///
    /// # Errors
    /// llama.cpp's code, if the decode fails.
    pub(crate) fn decode_rows(&mut self, rows: impl IntoIterator<Item = Row>) -> Result<(), String> {
        self.rows.clear();
        rows.into_iter().for_each(|row| self.rows.push(row));
        kernels::choose(self.setup.used);
        // SAFETY: the batch points into `rows`, whose arrays are equally long and outlive the call; every id is below `n_seq_max`,
        // and the rows are at most `n_batch`.
        let code = unsafe { sys::llama_decode(self.context, self.rows.as_batch()) };
        if code != 0 {
            return Err(format!("llama_decode of {} rows gave {code}", self.rows.tokens.len()));
        }
        // SAFETY: the context is alive.
        unsafe { sys::llama_synchronize(self.context) };
        Ok(())
    }
}

impl Drop for BareContext<'_> {
    fn drop(&mut self) {
        // SAFETY: both were made by `new`, are freed once, and nothing else holds them; the context, which uses the pool, goes first.
        unsafe {
            sys::llama_free(self.context);
            if !self.pool.is_null() {
                sys::ggml_threadpool_free(self.pool);
            }
        }
    }
}

/// One token of a decode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) token: i32,
    pub(crate) position: usize,
    pub(crate) sequence: usize,
    pub(crate) wants_logits: bool,
}

/// The arrays that a `llama_batch` points to, one entry per row.
#[derive(Default)]
struct Rows {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    ids: Vec<i32>,
    /// One id per row.
    n_ids: Vec<i32>,
    /// Pointers into `ids`, created for each batch, because pushing moves the ids.
    id_pointers: Vec<*mut i32>,
    wants_logits: Vec<i8>,
}

impl Rows {
    fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.ids.clear();
        self.n_ids.clear();
        self.wants_logits.clear();
    }

    fn push(&mut self, row: Row) {
        self.tokens.push(row.token);
        self.positions.push(id(row.position));
        self.ids.push(id(row.sequence));
        self.n_ids.push(1);
        self.wants_logits.push(row.wants_logits.into());
    }

    fn as_batch(&mut self) -> sys::llama_batch {
        self.id_pointers.clear();
        self.id_pointers.extend(self.ids.iter_mut().map(ptr::from_mut));
        sys::llama_batch {
            n_tokens: id(self.tokens.len()),
            token: self.tokens.as_mut_ptr(),
            embd: ptr::null_mut(),
            pos: self.positions.as_mut_ptr(),
            n_seq_id: self.n_ids.as_mut_ptr(),
            seq_id: self.id_pointers.as_mut_ptr(),
            logits: self.wants_logits.as_mut_ptr(),
        }
    }
}

/// Converts to llama.cpp's signed 32-bit numbers.
fn id(number: usize) -> i32 {
    i32::try_from(number).expect("ids, positions and row counts of a bench are small")
}
