//! llama.cpp's context: decode, fork, truncate, drop, save and restore.

pub(super) mod batch;
pub(super) mod byte_reader;
mod decode_threads;
mod grouping;
pub(super) mod kv_size;
pub(super) mod memory;
pub(super) mod pages;
pub(super) mod params;
pub(super) mod positions;
pub(super) mod prefix_file;
pub(super) mod raw_context;
pub(super) mod saved_state;
pub(super) mod sequence;
pub(super) mod state;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Instant;

use llama_cpp_sys_2 as sys;

use crate::config::{EnabledKernels, ResolvedConfig};
use crate::engine::runner::{DecodeError, Plan};
use crate::error;
use crate::llama::context::decode_threads::DecodeThreads;
use crate::llama::context::params::{params, refusal};
use crate::llama::context::raw_context::RawContext;
use crate::llama::model::Model;

pub(super) struct Context {
    // Dropped first: it uses the threads.
    raw: RawContext,
    threads: DecodeThreads,
}

impl Context {
    /// Creates a device cache of `config.limits.n_ctx` cells for `n_seq_max` sequences.
    pub(super) fn new(model: &Arc<Model>, config: &ResolvedConfig, n_seq_max: u32) -> error::Result<Self> {
        let raw = Self::without_threads(model, config, params(config, n_seq_max))?;
        let threads = DecodeThreads::new(&raw, config);
        Ok(Self { raw, threads })
    }

    /// As [`Context::new`], with parameters that differ from those of `config`, and without threads: those of another context compute
    /// with it, see [`Context::lend_threads`].
    pub(super) fn without_threads(
        model: &Arc<Model>,
        config: &ResolvedConfig,
        params: sys::llama_context_params,
    ) -> error::Result<RawContext> {
        let limits = &config.limits;
        let raw = RawContext::new(model, params, config.kernels);
        let raw = raw.map_err(|reason| refusal(model, limits, reason))?;
        if raw.memory().is_null() {
            return Err(model.load_error("its architecture has no KV cache or recurrent state, so it cannot generate text"));
        }
        // SAFETY: the context is alive.
        let n_ctx_of_one = unsafe { sys::llama_n_ctx_seq(raw.as_ptr()) };
        assert_eq!(n_ctx_of_one, limits.n_ctx, "the KV cache is unified: one sequence may use all of it");
        // SAFETY: the memory lives as long as the context, and is still as llama.cpp initialized it: zeros.
        unsafe { pages::release_zero_pages(raw.memory()) };
        Ok(raw)
    }

    /// Calls `compute`, which computes with another context, on the threads of this one.
    ///
    /// # Safety
    /// `context` is dropped before this, or not used after it.
    pub(super) unsafe fn lend_threads<T>(&self, context: &RawContext, kernels: EnabledKernels, compute: impl FnOnce() -> T) -> T {
        // SAFETY: the caller guarantees it.
        unsafe { self.threads.lend(context, kernels, compute) }
    }

    pub(super) fn set_threads(&mut self, n_threads: u32) {
        self.threads.set_number(n_threads);
    }

    /// As [`RawContext::decode`], on the threads for this kind of plan.
    pub(super) fn decode(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        self.threads.attach_for(&self.raw, plan);
        let started = Instant::now();
        self.raw.decode(plan)?;
        self.threads.observe(plan, started.elapsed());
        Ok(())
    }
}

impl Deref for Context {
    type Target = RawContext;

    fn deref(&self) -> &RawContext {
        &self.raw
    }
}

impl DerefMut for Context {
    fn deref_mut(&mut self) -> &mut RawContext {
        &mut self.raw
    }
}
