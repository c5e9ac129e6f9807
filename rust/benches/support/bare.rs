//! The yardstick: `llama_decode` in a loop, and nothing around it.
//!
//! A step is what no engine can leave out: fill a batch with one row per branch, decode it, wait until the logits are there. There
//! is no sampling (the tokens are fixed beforehand), no text, no event, no queue. The context has the engine's parameters, the
//! branches share the cells of one prompt as the engine's do, and each step fills the cells that the engine's step would.
#![allow(unsafe_code, reason = "the yardstick is llama.cpp itself, called directly")]

use std::ffi::CString;
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;
use weft::config::{EngineConfig, FlashAttention, Limits};

/// A model loaded once more, beside the engine's; where weights are mapped, both use the same memory.
pub(crate) struct BareModel(*mut sys::llama_model);

impl BareModel {
    /// Loads the file. llama.cpp must be initialised and its log be taken care of, as `weft::llama::Model::load` does.
    ///
    /// # Errors
    /// A message, when llama.cpp refuses the file.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let name = path.to_str().and_then(|path| CString::new(path).ok());
        let name = name.ok_or_else(|| format!("{} is no path that llama.cpp can be given", path.display()))?;
        // SAFETY: the default parameters hold no pointers that we would have to keep alive, and `name` outlives the call.
        let model = unsafe { sys::llama_model_load_from_file(name.as_ptr(), sys::llama_model_default_params()) };
        if model.is_null() { Err(format!("llama.cpp cannot load {}", path.display())) } else { Ok(Self(model)) }
    }

    /// Pieces in the vocabulary.
    pub(crate) fn n_vocab(&self) -> u32 {
        // SAFETY: the model is alive, and its vocabulary lives as long.
        unsafe { sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(self.0)) }.cast_unsigned()
    }

    /// Weights of the model.
    pub(crate) fn n_params(&self) -> u64 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_params(self.0) }
    }
}

impl Drop for BareModel {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, freed once, and every `BareContext` borrows the model, so none is left.
        unsafe { sys::llama_model_free(self.0) };
    }
}

/// Where the threads of a decode come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    /// One pool lives as long as the context, as the engine's does, and sleeps between decodes.
    Kept,
    /// llama.cpp starts and ends them for each graph, which is what it does unless told otherwise.
    Started,
}

/// A context with the engine's parameters, and the rows of its next decode.
pub(crate) struct BareContext<'a> {
    context: *mut sys::llama_context,
    /// Null where threads are started for each graph.
    pool: sys::ggml_threadpool_t,
    rows: Rows,
    n_ubatch: usize,
    _model: &'a BareModel,
}

impl<'a> BareContext<'a> {
    /// Makes the context that an engine of this configuration, settled to these limits, runs in. KV is f16, as the bench has it.
    ///
    /// # Errors
    /// A message, when llama.cpp cannot make it, for want of memory as a rule.
    pub(crate) fn new(model: &'a BareModel, config: &EngineConfig, limits: &Limits, threads: Threads) -> Result<Self, String> {
        let n_threads = config.n_threads.expect("the bench gives the number of threads").cast_signed();
        // SAFETY: returns a plain struct.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = limits.n_ctx;
        params.n_batch = limits.n_ubatch.max(limits.n_seq_max);
        params.n_ubatch = limits.n_ubatch;
        params.n_seq_max = limits.n_seq_max;
        params.n_outputs_max = limits.n_seq_max;
        params.n_threads = n_threads;
        params.n_threads_batch = n_threads;
        params.kv_unified = true;
        params.no_perf = true;
        params.flash_attn_type = match config.flash_attention {
            FlashAttention::Auto => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
            FlashAttention::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
            FlashAttention::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        };
        // SAFETY: the model is alive and stays so for the life of the context, which borrows it.
        let context = unsafe { sys::llama_init_from_model(model.0, params) };
        if context.is_null() {
            return Err(format!("llama.cpp cannot make a context of {} tokens", limits.n_ctx));
        }
        let pool = match threads {
            Threads::Started => ptr::null_mut(),
            // SAFETY: the parameters are complete (an empty mask is any processor), and `drop` frees the pool after the context.
            Threads::Kept => unsafe {
                let mut params = sys::ggml_threadpool_params_default(n_threads);
                params.poll = 0;
                let pool = sys::ggml_threadpool_new(&raw mut params);
                sys::llama_attach_threadpool(context, pool, pool);
                pool
            },
        };
        Ok(Self { context, pool, rows: Rows::default(), n_ubatch: limits.n_ubatch as usize, _model: model })
    }

    /// Forgets everything, computes `prompt` once and gives it to `n_branches` sequences.
    ///
    /// # Errors
    /// llama.cpp's code, when a decode fails.
    pub(crate) fn share_prompt(&mut self, prompt: &[i32], n_branches: usize) -> Result<(), String> {
        // SAFETY: the memory belongs to the live context.
        unsafe { sys::llama_memory_clear(sys::llama_get_memory(self.context), false) };
        for (chunk, tokens) in prompt.chunks(self.n_ubatch).enumerate() {
            self.rows.clear();
            for (offset, &token) in tokens.iter().enumerate() {
                self.rows.push(token, chunk * self.n_ubatch + offset, 0, false);
            }
            self.decode()?;
        }
        for branch in 1..n_branches {
            // SAFETY: both ids are below `n_seq_max`, and the pool is unified, so that this marks cells and copies nothing.
            unsafe { sys::llama_memory_seq_cp(sys::llama_get_memory(self.context), 0, id(branch), -1, -1) };
        }
        Ok(())
    }

    /// Times `n_steps` decodes of one row per branch, and takes the branches back to the end of their prompt of `n_prompt` tokens.
    ///
    /// # Errors
    /// llama.cpp's code, when a decode fails.
    pub(crate) fn time_steps(
        &mut self,
        tokens: &[i32],
        n_prompt: usize,
        n_branches: usize,
        n_steps: usize,
    ) -> Result<Duration, String> {
        let started = Instant::now();
        for step in 0..n_steps {
            self.rows.clear();
            for branch in 0..n_branches {
                self.rows.push(tokens[(step * n_branches + branch) % tokens.len()], n_prompt + step, branch, true);
            }
            self.decode()?;
        }
        let elapsed = started.elapsed();
        for branch in 0..n_branches {
            // SAFETY: the ids are below `n_seq_max`, and the memory belongs to the live context.
            unsafe { sys::llama_memory_seq_rm(sys::llama_get_memory(self.context), id(branch), id(n_prompt), -1) };
        }
        Ok(elapsed)
    }

    /// Decodes the rows and waits until their logits are there.
    fn decode(&mut self) -> Result<(), String> {
        // SAFETY: the batch points into `rows`, whose arrays are equally long and outlive the call; every id is below `n_seq_max`,
        // and the rows are at most `n_ubatch`, which `n_batch` is not below.
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

/// The arrays that a `llama_batch` points to, one entry per row.
#[derive(Default)]
struct Rows {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    ids: Vec<i32>,
    /// One id for each row.
    n_ids: Vec<i32>,
    /// Pointers into `ids`, made anew for each batch, since pushing moves the ids.
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

    fn push(&mut self, token: i32, position: usize, sequence: usize, wants_logits: bool) {
        self.tokens.push(token);
        self.positions.push(id(position));
        self.ids.push(id(sequence));
        self.n_ids.push(1);
        self.wants_logits.push(wants_logits.into());
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

/// llama.cpp counts everything in signed 32-bit numbers.
fn id(number: usize) -> i32 {
    i32::try_from(number).expect("ids, positions and row counts of a bench are small")
}
