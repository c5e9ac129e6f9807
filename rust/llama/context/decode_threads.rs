//! The threads that compute the decodes of a context.

use std::time::Duration;

use llama_cpp_sys_2 as sys;

use crate::config::{EnabledKernels, ResolvedConfig, Threads};
use crate::engine::runner::Plan;
use crate::llama::context::raw_context::RawContext;
use crate::llama::host::contention::{ContentionTuner, ThreadShare};
use crate::llama::host::{affinity::AffinityGuard, priority::PriorityGuard, threads::ThreadPool};

/// Time for which the threads of a pool poll for the next graph before they sleep, in the unit of [`ThreadPool::new`].
///
/// Fastest steps of the demo model with 1, 8 and 32 rows on two cores, in µs: 588, 986 and 9,656 without a pool; 252, 743 and
/// 2,589 with threads that sleep immediately; 205, 659 and 2,394 with 1, and no less with 10 or 50. After the last decode, 1
/// polls for less than 10 ms, 50 for more than 100 ms.
const POLL: u32 = 1;

/// Index of the settings for decodes without and with prompt rows. llama.cpp would use the latter for every batch of two rows.
const DECODE: usize = 0;
const PROMPT: usize = 1;

pub(super) struct DecodeThreads {
    n_threads: [u32; 2],
    settings: [Threads; 2],
    enabled_kernels: EnabledKernels,
    /// The pool of the last decode is first.
    pools: Vec<AttachedPool>,
    priority: PriorityGuard,
    contention_tuner: Option<ContentionTuner>,
    affinity: AffinityGuard,
}

struct AttachedPool {
    n_threads: u32,
    settings: Threads,
    pool: ThreadPool,
}

impl DecodeThreads {
    /// Starts the threads of both kinds of decodes, and attaches them to `context`, which must be dropped before.
    pub(super) fn new(context: &RawContext, config: &ResolvedConfig) -> Self {
        let &ResolvedConfig { n_threads, n_threads_batch, .. } = config;
        let (threads, threads_batch) = (&config.settings.threads, &config.settings.threads_batch);
        let may_reduce = config.fewer_threads_under_contention && n_threads.min(n_threads_batch) > 1;
        let mut own = Self {
            n_threads: [n_threads, n_threads_batch],
            settings: [threads.clone(), threads_batch.clone()],
            enabled_kernels: config.kernels,
            pools: Vec::new(),
            priority: PriorityGuard::default(),
            contention_tuner: may_reduce.then(ContentionTuner::default),
            affinity: AffinityGuard::default(),
        };
        own.attach(context, n_threads_batch, PROMPT);
        own.attach(context, n_threads, DECODE);
        own
    }

    pub(super) fn set_number(&mut self, n_threads: u32) {
        self.n_threads = [n_threads; 2];
        self.contention_tuner = None;
    }

    pub(super) fn attach_for(&mut self, context: &RawContext, plan: &Plan) {
        let is_decoding = plan.rows.iter().all(|row| row.wants_logits);
        let kind = if is_decoding { DECODE } else { PROMPT };
        let n_threads = self.n_threads[kind];
        let share = self.contention_tuner.as_mut().map_or(ThreadShare::All, |tuner| tuner.thread_share(plan.rows.len()));
        let n_threads = if share == ThreadShare::Half { n_threads.div_ceil(2) } else { n_threads };
        self.attach(context, n_threads, kind);
        match self.pools[0].pool.caller_affinity() {
            Some(caller) => self.affinity.pin(caller),
            None => self.affinity.unpin(),
        }
    }

    pub(super) fn observe(&mut self, plan: &Plan, elapsed: Duration) {
        if let Some(tuner) = self.contention_tuner.as_mut().filter(|_| plan.media.is_empty()) {
            tuner.observe(plan.rows.len(), elapsed);
        }
    }

    /// Calls `compute`, which computes with `context`, on the threads of the last decode. They keep polling for a while after it, so
    /// threads of another pool would have to share the processors with them.
    ///
    /// # Safety
    /// `context` is dropped before this, or not used after it.
    pub(super) unsafe fn lend<T>(&self, context: &RawContext, kernels: EnabledKernels, compute: impl FnOnce() -> T) -> T {
        let AttachedPool { n_threads, pool, .. } = &self.pools[0];
        // SAFETY: the context is alive, and is not used after the pool is freed, as the caller guarantees.
        unsafe { attach_pool(context, pool, *n_threads) };
        pool.with_kernels(kernels, compute)
    }

    /// Attaches a pool of exactly `n_threads` threads: in a larger pool, threads without work would poll.
    fn attach(&mut self, context: &RawContext, n_threads: u32, kind: usize) {
        let settings = &self.settings[kind];
        let index = self.pools.iter().position(|pool| pool.n_threads == n_threads && pool.settings == *settings);
        if index == Some(0) {
            return;
        }
        // A pool's threads inherit the priority of the thread that starts them.
        self.priority.set(settings.priority);
        if let Some(index) = index {
            self.pools.swap(0, index);
        } else {
            // They may run on every processor that this thread may use, not only on the one it is pinned to.
            self.affinity.unpin();
            let pool = ThreadPool::new(n_threads, settings, POLL, self.enabled_kernels);
            self.pools.insert(0, AttachedPool { n_threads, settings: settings.clone(), pool });
        }
        // SAFETY: the context is alive, and is freed before the pool, as `new` requires.
        unsafe { attach_pool(context, &self.pools[0].pool, n_threads) };
    }
}

/// # Safety
/// `context` is not used after `pool` was dropped.
unsafe fn attach_pool(context: &RawContext, pool: &ThreadPool, n_threads: u32) {
    let (pool, n_threads) = (pool.as_ptr(), n_threads.cast_signed());
    // SAFETY: both are alive.
    unsafe {
        sys::llama_attach_threadpool(context.as_ptr(), pool, pool);
        sys::llama_set_n_threads(context.as_ptr(), n_threads, n_threads);
    }
}
