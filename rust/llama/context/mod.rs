//! Safe wrapper of llama.cpp's context: decode, fork, truncate, drop.

pub(super) mod batch;
pub(super) mod kv_size;
pub(super) mod memory;
pub(super) mod pages;
pub(super) mod positions;
pub(super) mod prefix_file;
pub(super) mod reader;
pub(super) mod saved_state;
pub(super) mod state;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use llama_cpp_sys_2 as sys;

use crate::config::{EnabledKernels, FlashAttention, Limits, ResolvedConfig, Threads};
use crate::engine::runner::{AdapterSet, DecodeError, KvSeqId, MediaRows, MemoryKind, Plan, StateError};
use crate::error::{self, Error};
use crate::llama::context::batch::{Batch, Bounds, rows_of};
use crate::llama::context::{kv_size::ggml_type, positions::Positions};
use crate::llama::host::contention::{ContentionTuner, ThreadShare};
use crate::llama::host::{affinity::AffinityGuard, priority::PriorityGuard, threads::ThreadPool};
use crate::llama::kernels::{self, DecodeHints};
use crate::llama::logging;
use crate::llama::media::media_batch::{self, MediaBatch};
#[cfg(test)]
use crate::llama::memory_plan::{self, BufferUse};
use crate::llama::model::{Model, rope};
use crate::request::Token;

/// Time for which the threads of a pool poll for the next graph before they sleep, in the unit of [`ThreadPool::new`].
///
/// Fastest steps of the demo model with 1, 8 and 32 rows on two cores, in µs: 588, 986 and 9,656 without a pool; 252, 743 and
/// 2,589 with threads that sleep immediately; 205, 659 and 2,394 with 1, and no less with 10 or 50. After the last decode, 1
/// polls for less than 10 ms, 50 for more than 100 ms.
const POLL: u32 = 1;

owned_pointer!(struct ContextPointer(sys::llama_context), freed by sys::llama_free);

/// llama.cpp's context of a model. The thread pools that are attached to it must outlive it.
pub(super) struct RawContext {
    // Dropped first: it uses the model.
    pointer: ContextPointer,
    active_adapters: AdapterSet,
    pub(super) model: Arc<Model>,
}

impl RawContext {
    pub(super) fn new(model: &Arc<Model>, params: sys::llama_context_params) -> Result<Self, String> {
        // Creating a context may write to the model, so contexts are created one at a time.
        static MAKING: Mutex<()> = Mutex::new(());
        let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the model is alive, and the parameters are complete.
        let pointer = logging::non_null(|| unsafe { sys::llama_init_from_model(model.as_ptr(), params) })?;
        Ok(Self { pointer: ContextPointer(pointer), active_adapters: AdapterSet::default(), model: Arc::clone(model) })
    }

    pub(super) fn as_ptr(&self) -> *mut sys::llama_context {
        self.pointer.0.as_ptr()
    }

    pub(super) fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is alive.
        unsafe { sys::llama_get_memory(self.as_ptr()) }
    }

    /// Activates these adapters for the following decodes. llama.cpp then rebuilds its graphs, so it is called only when they
    /// change. If an adapter is not loaded, or its scale is not finite, nothing changes.
    pub(super) fn use_adapters(&mut self, adapter_set: &AdapterSet) -> Result<(), String> {
        if self.active_adapters == *adapter_set {
            return Ok(());
        }
        let loaded = self.model.adapters();
        let resolve = |(id, scale): (u32, f32)| {
            let adapter = loaded.get(id as usize).filter(|_| scale.is_finite());
            adapter.map(|adapter| (adapter.as_ptr(), scale)).ok_or_else(|| {
                let rule = format!("there are {} adapters, and scales must be finite", loaded.len());
                format!("invalid plan: adapter {id} with scale {scale}; {rule}")
            })
        };
        let adapters = adapter_set.adapters().map(resolve).collect::<Result<Vec<_>, _>>()?;
        let (mut adapters, mut scales): (Vec<_>, Vec<_>) = adapters.into_iter().unzip();
        let n = adapters.len();
        // SAFETY: the context is alive; the adapters belong to its model; both lists have `n` entries and are only read.
        let code = unsafe { sys::llama_set_adapters_lora(self.as_ptr(), adapters.as_mut_ptr(), n, scales.as_mut_ptr()) };
        assert_eq!(code, 0, "llama.cpp only stores which adapters are active");
        self.active_adapters = adapter_set.clone();
        Ok(())
    }

    /// Runs `decode` with these kernels, and waits for its result. The error is llama.cpp's code with its error lines.
    pub(super) fn compute(
        &self,
        enabled_kernels: EnabledKernels,
        hints: Option<DecodeHints>,
        decode: impl FnOnce() -> i32,
    ) -> Result<(), (i32, Vec<String>)> {
        let (code, errors) = logging::errors_during(|| kernels::deciding(enabled_kernels, hints, decode));
        if code != 0 {
            return Err((code, errors));
        }
        // Waits here rather than at the first read of the results, so that callers can measure the time of a decode.
        // SAFETY: the context is alive.
        unsafe { sys::llama_synchronize(self.as_ptr()) };
        Ok(())
    }
}

/// A model's device cache and the threads that compute it. Stays on the thread that made it: llama.cpp's context is not
/// thread-safe.
pub(super) struct Context {
    // Dropped first: it uses the pools.
    raw: RawContext,
    batch: Batch,
    media: MediaBatch,
    seq_lens: Vec<u32>,
    /// First position from which a sequence's sliding-window cache has no hole: reloaded states contain only the end of their
    /// window, and llama.cpp does not report holes. 0 without a window.
    whole_from: Vec<u32>,
    positions: Vec<Positions>,
    n_ctx: u32,
    n_threads: u32,
    n_threads_batch: u32,
    thread_configs: Vec<Threads>,
    enabled_kernels: EnabledKernels,
    /// Thread pools by number of threads and index into `thread_configs`; the pool of the last decode is first.
    thread_pools: Vec<((u32, usize), ThreadPool)>,
    priority: PriorityGuard,
    contention_tuner: Option<ContentionTuner>,
    affinity: AffinityGuard,
}

impl Context {
    /// Creates a device cache of `config.limits.n_ctx` cells for `n_seq_max` sequences.
    pub(super) fn new(model: &Arc<Model>, config: &ResolvedConfig, n_seq_max: u32) -> error::Result<Self> {
        let &ResolvedConfig { ref limits, n_threads, n_threads_batch, .. } = config;
        let params = params(config, n_seq_max);
        let raw = RawContext::new(model, params).map_err(|reason| refusal(model, limits, reason))?;
        let bounds = Bounds {
            n_vocab: model.n_vocab(),
            n_seq_max: n_seq_max as usize,
            n_rows: limits.n_ubatch as usize,
            n_outputs: limits.n_outputs as usize,
            is_by_id: model.is_recurrent(),
        };
        let n_sequences = bounds.n_seq_max;
        let media = MediaBatch::new(media_batch::Bounds {
            n_seq_max: bounds.n_seq_max,
            n_rows: bounds.n_rows,
            n_embd: model.n_embd_in(),
            n_positions: model.n_positions(),
            outputs_all: false,
        });
        let mut thread_configs = vec![config.settings.threads.clone(), config.settings.threads_batch.clone()];
        thread_configs.dedup();
        let mut context = Self {
            raw,
            batch: Batch::new(bounds),
            media,
            seq_lens: vec![0; n_sequences],
            whole_from: vec![0; n_sequences],
            positions: vec![Positions::NONE; n_sequences],
            n_ctx: limits.n_ctx,
            n_threads,
            n_threads_batch,
            thread_configs,
            enabled_kernels: config.kernels,
            thread_pools: Vec::new(),
            contention_tuner: None,
            priority: PriorityGuard::default(),
            affinity: AffinityGuard::default(),
        };
        if context.memory().is_null() {
            let reason = "its architecture has no KV cache or recurrent state, so it cannot generate text".to_owned();
            return Err(Error::ModelLoad { path: context.raw.model.path().to_owned(), reason });
        }
        // SAFETY: the context is alive.
        let n_ctx_of_one = unsafe { sys::llama_n_ctx_seq(context.raw.as_ptr()) };
        assert_eq!(n_ctx_of_one, limits.n_ctx, "the KV cache is unified: one sequence may use all of it");
        // SAFETY: the memory lives as long as the context, and is still as llama.cpp initialized it: zeros.
        unsafe { pages::release_zero_pages(context.memory()) };
        let may_reduce = config.fewer_threads_under_contention && n_threads.min(n_threads_batch) > 1;
        context.contention_tuner = may_reduce.then(ContentionTuner::default);
        context.use_threads(n_threads_batch, 1);
        context.use_threads(n_threads, 0);
        Ok(context)
    }

    pub(super) fn set_threads(&mut self, n_threads: u32) {
        (self.n_threads, self.n_threads_batch) = (n_threads, n_threads);
        self.contention_tuner = None;
    }

    /// By default llama.cpp would use the threads for prompts for every batch of two rows or more.
    fn use_threads_for(&mut self, plan: &Plan) {
        let is_decoding = plan.rows.iter().all(|row| row.wants_logits);
        let (n_threads, kind) = if is_decoding { (self.n_threads, 0) } else { (self.n_threads_batch, 1) };
        let share = self.contention_tuner.as_mut().map_or(ThreadShare::All, |tuner| tuner.thread_share(plan.rows.len()));
        let is_reduced = share == ThreadShare::Half;
        self.use_threads(if is_reduced { n_threads.div_ceil(2) } else { n_threads }, kind);
    }

    /// Attaches a pool of exactly `n_threads` threads: in a larger pool, threads without work would poll. `kind` is 0 for a decode
    /// without prompt rows, 1 for one with them.
    fn use_threads(&mut self, n_threads: u32, kind: usize) {
        let key = (n_threads, kind.min(self.thread_configs.len() - 1));
        if self.thread_pools.first().is_some_and(|(existing, _)| *existing == key) {
            return;
        }
        let thread_config = &self.thread_configs[key.1];
        // A pool's threads inherit the priority of the thread that starts them.
        self.priority.set(thread_config.priority);
        if let Some(index) = self.thread_pools.iter().position(|(existing, _)| *existing == key) {
            self.thread_pools.swap(0, index);
        } else {
            // They may run on every processor that this thread may use, not only on the one it is pinned to.
            self.affinity.unpin();
            self.thread_pools.insert(0, (key, ThreadPool::new(n_threads, thread_config, POLL, self.enabled_kernels)));
        }
        let (pool, n_threads) = (self.thread_pools[0].1.as_ptr(), n_threads.cast_signed());
        // SAFETY: the context is alive, and the pool lives in `self` until after the context is freed.
        unsafe { sys::llama_attach_threadpool(self.raw.as_ptr(), pool, pool) };
        // SAFETY: the context is alive; the call stores two numbers.
        unsafe { sys::llama_set_n_threads(self.raw.as_ptr(), n_threads, n_threads) };
    }

    /// Computes the rows of `plan` in one decode. If a row breaks a rule, nothing is computed.
    pub(super) fn decode(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        self.raw.use_adapters(&plan.adapter_set).map_err(|reason| DecodeError { reason })?;
        self.use_threads_for(plan);
        match self.thread_pools[0].1.caller_affinity() {
            Some(caller) => self.affinity.pin(caller),
            None => self.affinity.unpin(),
        }
        self.decode_media(plan)?;
        if plan.is_of_media() {
            self.batch.clear();
            return Ok(());
        }
        let positions = &self.positions;
        self.batch.fill(plan, &self.seq_lens, |id, index| positions[id].at(index))?;
        let batch = self.batch.as_raw();
        // SAFETY: `fill` checked every rule that llama.cpp asserts; the arrays live in `self.batch` and are only read.
        let decode = || unsafe { sys::llama_decode(self.raw.as_ptr(), batch) };
        // SAFETY: the memory lives as long as the context, and the batch is not changed before the decode has ended.
        let hints = unsafe { DecodeHints::new(self.batch.ids(), self.memory()) };
        let started = Instant::now();
        if let Err((code, errors)) = self.raw.compute(self.enabled_kernels, Some(hints), decode) {
            let ids = self.batch.ids().to_vec();
            self.batch.clear();
            return Err(self.failed(&ids, code, &errors));
        }
        if let Some(tuner) = self.contention_tuner.as_mut().filter(|_| plan.media.is_empty()) {
            tuner.observe(plan.rows.len(), started.elapsed());
        }
        self.seq_lens.copy_from_slice(self.batch.seq_lens_after());
        Ok(())
    }

    /// Returns whether our attention kernel receives the positions of this memory's cells.
    pub(super) fn has_explicit_positions(&self) -> bool {
        // SAFETY: the memory lives as long as the context.
        unsafe { DecodeHints::new(&[], self.memory()) }.has_positions()
    }

    /// Computes the rows of media: one decode per medium with non-causal attention, one for all others.
    fn decode_media(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        let (non_causal, others): (Vec<_>, Vec<_>) = plan.media.iter().cloned().partition(|rows| rows.media.sees_ahead());
        for media in non_causal {
            self.decode_group(plan, &[media], true)?;
        }
        if others.is_empty() { Ok(()) } else { self.decode_group(plan, &others, false) }
    }

    fn decode_group(&mut self, plan: &Plan, group: &[MediaRows], sees_ahead: bool) -> Result<(), DecodeError> {
        let result = self.media.fill(plan, group, &self.seq_lens, &self.positions);
        result.map_err(|reason| DecodeError { reason: format!("invalid plan: {reason}") })?;
        let batch = self.media.as_raw();
        // Some rows then see other tokens than those up to their own: our attention kernel reads the mask.
        let is_causal = group.iter().all(|rows| !rows.media.is_whole());
        // SAFETY: `fill` checked every rule that llama.cpp asserts; the arrays live in `self.media` and are only read. Where
        // attention is non-causal, all of a medium is in one `n_ubatch`.
        let decode = || unsafe {
            sys::llama_set_causal_attn(self.raw.as_ptr(), !sees_ahead);
            let code = sys::llama_decode(self.raw.as_ptr(), batch);
            sys::llama_set_causal_attn(self.raw.as_ptr(), true);
            code
        };
        // SAFETY: the memory lives as long as the context, and the batch is not changed before the decode has ended.
        let hints = is_causal.then(|| unsafe { DecodeHints::new(self.media.ids(), self.memory()) });
        if let Err((code, errors)) = self.raw.compute(self.enabled_kernels, hints, decode) {
            let ids = self.media.ids().to_vec();
            return Err(self.failed(&ids, code, &errors));
        }
        for MediaRows { rows, media, start } in group {
            let id = usize::from(plan.rows[rows.start].sequence.0);
            if *start == 0 {
                self.positions[id].push(self.seq_lens[id], &**media);
            }
            self.seq_lens[id] += u32::try_from(rows.len()).expect("a plan has fewer than 2³² rows");
        }
        Ok(())
    }

    /// Reads back the lengths of the sequences `ids` after a failed decode.
    fn failed(&mut self, ids: &[sys::llama_seq_id], code: i32, errors: &[String]) -> DecodeError {
        for &id in ids {
            // SAFETY: the id was checked when the batch was filled.
            let last = unsafe { sys::llama_memory_seq_pos_max(self.memory(), id) };
            let id = id.unsigned_abs() as usize;
            let seq_len = self.positions[id].n_tokens((last + 1).unsigned_abs());
            self.seq_lens[id] = seq_len;
            self.positions[id].truncate(seq_len);
            self.whole_from[id] = self.whole_from[id].min(seq_len);
        }
        DecodeError { reason: reason_of(code, errors, self.n_ctx, ids.len()) }
    }

    pub(super) fn logits(&self, row: usize) -> &[f32] {
        let index = self.batch.output(row);
        let index = index.unwrap_or_else(|| panic!("row {row} of the last plan did not request logits"));
        let index = i32::try_from(index).expect("a plan has fewer rows than the device cache has cells");
        // SAFETY: the last decode succeeded, or the batch would be empty. llama.cpp expects the row's index in the batch.
        let logits = unsafe { sys::llama_get_logits_ith(self.raw.as_ptr(), index) };
        assert!(!logits.is_null(), "llama.cpp returned no logits for row {row}, which requested them");
        // SAFETY: a row is as long as the vocabulary; it is not written before the next decode, which takes `self` mutably.
        unsafe { std::slice::from_raw_parts(logits, self.raw.model.n_vocab()) }
    }

    pub(super) fn seq_len(&self, KvSeqId(id): KvSeqId) -> u32 {
        self.seq_lens[usize::from(id)]
    }

    pub(super) fn positions(&self, id: KvSeqId) -> &Positions {
        &self.positions[usize::from(id.0)]
    }

    /// `id` must hold no tokens beyond these positions.
    pub(super) fn set_positions(&mut self, id: KvSeqId, positions: Positions) {
        self.positions[usize::from(id.0)] = positions;
    }

    /// Returns the position from which `id` holds everything that a sliding window may attend to.
    pub(super) fn whole_from(&self, id: KvSeqId) -> u32 {
        // SAFETY: `checked` ensures that the id is in range.
        let first = unsafe { sys::llama_memory_seq_pos_min(self.memory(), self.checked(id)) }.max(0).unsigned_abs();
        first.max(self.whole_from[usize::from(id.0)])
    }

    /// Returns the first row of `plan` whose window in `memory` covers a hole that a reloaded state left.
    pub(super) fn position_gap(&self, plan: &Plan, memory: MemoryKind) -> Option<usize> {
        plan.rows.iter().position(|row| {
            let whole_from = self.whole_from.get(usize::from(row.sequence.0)).copied().unwrap_or(0);
            !memory.holds_window(whole_from, row.position)
        })
    }

    /// Shares the cells of `[0, n_tokens)` of `from` with `to`. Sharing part of a sequence requires a memory that allows it.
    pub(super) fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32) {
        let seq_len = self.seq_len(from);
        assert!(from != to, "cannot fork sequence {} to itself", from.0);
        assert!(n_tokens <= seq_len, "cannot fork {n_tokens} tokens of sequence {}, which has {seq_len}", from.0);
        assert_eq!(self.seq_len(to), 0, "cannot fork to sequence {}, which is not empty", to.0);
        if n_tokens == 0 {
            return;
        }
        // For a whole sequence some memories accept only (-1, -1) and end the process otherwise.
        let end = self.positions[usize::from(from.0)].at(n_tokens);
        let (start, end) = if n_tokens == seq_len { (-1, -1) } else { (0, end.cast_signed()) };
        // SAFETY: both ids are in range, and the cache is unified, so that a part may be copied.
        unsafe { sys::llama_memory_seq_cp(self.memory(), self.checked(from), self.checked(to), start, end) };
        self.seq_lens[usize::from(to.0)] = n_tokens;
        self.whole_from[usize::from(to.0)] = self.whole_from[usize::from(from.0)];
        let mut positions = self.positions[usize::from(from.0)].clone();
        positions.truncate(n_tokens);
        self.positions[usize::from(to.0)] = positions;
    }

    /// Removes all but the first `n_kept` tokens of `id`. Returns false and removes nothing if the memory cannot do so, such as
    /// inside an image with two-dimensional positions.
    pub(super) fn truncate(&mut self, id: KvSeqId, n_kept: u32) -> bool {
        if n_kept >= self.seq_len(id) {
            self.positions[usize::from(id.0)].truncate(n_kept);
            return true;
        }
        let positions = &self.positions[usize::from(id.0)];
        if positions.cuts(n_kept) {
            return false;
        }
        let start = if n_kept == 0 { -1 } else { positions.at(n_kept).cast_signed() };
        // SAFETY: the id is in range.
        let is_done = unsafe { sys::llama_memory_seq_rm(self.memory(), self.checked(id), start, -1) };
        if is_done {
            self.seq_lens[usize::from(id.0)] = n_kept;
            self.positions[usize::from(id.0)].truncate(n_kept);
        }
        if self.seq_len(id) == 0 {
            self.whole_from[usize::from(id.0)] = 0;
        }
        is_done
    }

    pub(super) fn n_grouped(&self, KvSeqId(id): KvSeqId) -> u32 {
        self.positions[usize::from(id)].n_grouped()
    }

    /// Gives each `n` tokens of `range` of `id` one position, and the tokens after `range` the positions that follow. `range`
    /// must start where the grouped tokens end. The next decode rotates the keys, in a pass over all cells.
    pub(super) fn group(&mut self, id: KvSeqId, range: Range<u32>, n: u32) {
        let (n_grouped, seq_len) = (self.n_grouped(id), self.seq_len(id));
        assert!(
            range.start == n_grouped && range.end <= seq_len,
            "cannot group tokens {range:?} of {seq_len}, of which the first {n_grouped} are grouped"
        );
        assert!(range.start.is_multiple_of(n) && range.end.is_multiple_of(n), "{range:?} is not divisible into groups of {n}");
        let signed = u32::cast_signed;
        let (first, n_fewer, n_fewer_then) = (range.start / n, range.start - range.start / n, range.end - range.end / n);
        let (memory, raw_id) = (self.memory(), self.checked(id));
        // SAFETY: the id is in range, and [`Context::try_group`] found that the memory can rotate its keys. Temporarily,
        // positions equal token indices, as in llama.cpp's tools.
        unsafe {
            sys::llama_memory_seq_add(memory, raw_id, signed(first), -1, signed(n_fewer));
            // One call per token: `llama_memory_seq_div` would rotate the keys in the other direction, and moves of longer ranges
            // change the distance of only two neighbours. All in this step: otherwise later decodes scan all keys again.
            for index in range.clone() {
                sys::llama_memory_seq_add(memory, raw_id, signed(index), signed(index) + 1, signed(index / n) - signed(index));
            }
            sys::llama_memory_seq_add(memory, raw_id, signed(range.end), -1, -signed(n_fewer_then));
        }
        self.positions[usize::from(id.0)].group(range.end, n);
    }

    /// Checks that keys can be rotated to other positions without changing a bit of the keys that stay; the error is the reason
    /// why not. `id` is empty before and after.
    pub(super) fn try_group(&mut self, id: KvSeqId, token: Token) -> Result<(), String> {
        // SAFETY: the memory is alive.
        if !unsafe { sys::llama_memory_can_shift(self.memory()) } {
            return Err("the KV cache of this model cannot shift positions".to_owned());
        }
        let failed = |error: DecodeError| error.reason;
        self.decode(&rows_of(id, 0, &[token, token, token])).map_err(failed)?;
        let before = self.read_state(id).map_err(|error| error.to_string())?;
        // SAFETY: the id is in range, and the memory can rotate its keys: here by a total of zero.
        unsafe {
            sys::llama_memory_seq_add(self.memory(), self.checked(id), 2, -1, 1);
            sys::llama_memory_seq_add(self.memory(), self.checked(id), 3, -1, -1);
        }
        self.decode(&rows_of(id, 3, &[token])).map_err(failed)?;
        assert!(self.truncate(id, 3), "a KV cache that shifts positions can be truncated");
        let after = self.read_state(id).map_err(|error| error.to_string())?;
        self.clear();
        if before == after { Ok(()) } else { Err("with YaRN, grouping would change the keys of other tokens".to_owned()) }
    }

    pub(super) fn clear(&mut self) {
        // SAFETY: the memory is alive. The cells' bytes may stay: no sequence owns them.
        unsafe { sys::llama_memory_clear(self.memory(), false) };
        self.seq_lens.fill(0);
        self.whole_from.fill(0);
        self.positions.fill(Positions::NONE);
        self.batch.clear();
    }

    /// Shares the cells of `from` at the positions of `range` with `to`, without changing the length of `to`.
    pub(super) fn share(&mut self, from: KvSeqId, to: KvSeqId, range: Range<u32>) {
        let (start, end) = (range.start.cast_signed(), range.end.cast_signed());
        // SAFETY: both ids are in range, and the cache is unified, so that a part may be copied.
        unsafe { sys::llama_memory_seq_cp(self.memory(), self.checked(from), self.checked(to), start, end) };
    }

    pub(super) fn unshare(&mut self, id: KvSeqId, range: Range<u32>) {
        let (start, end) = (range.start.cast_signed(), range.end.cast_signed());
        // SAFETY: the id is in range.
        let is_done = unsafe { sys::llama_memory_seq_rm(self.memory(), self.checked(id), start, end) };
        assert!(is_done, "the memory was found to support truncation when it was created");
    }

    pub(super) fn unshare_all(&mut self, id: KvSeqId) {
        // SAFETY: the id is in range, and every memory can remove a whole sequence.
        unsafe { sys::llama_memory_seq_rm(self.memory(), self.checked(id), -1, -1) };
    }

    /// Records that `id` has `seq_len` tokens, and no hole in its window from position `whole_from` on.
    pub(super) fn set_len(&mut self, id: KvSeqId, seq_len: u32, whole_from: u32) {
        self.seq_lens[usize::from(id.0)] = seq_len;
        self.positions[usize::from(id.0)].truncate(seq_len);
        self.whole_from[usize::from(id.0)] = whole_from;
    }

    pub(super) fn read_state(&mut self, id: KvSeqId) -> Result<Arc<[u8]>, StateError> {
        let id = self.checked(id);
        // SAFETY: the context is alive and the id in range.
        let (n_bytes, errors) = logging::errors_during(|| unsafe { sys::llama_state_seq_get_size(self.raw.as_ptr(), id) });
        // Allocated in their final location, so that they are copied only once.
        let mut bytes = Arc::<[u8]>::new_uninit_slice(n_bytes);
        let buffer = Arc::get_mut(&mut bytes).expect("it is not shared yet").as_mut_ptr().cast();
        // SAFETY: as above, and llama.cpp writes at most the given number of bytes.
        let (n_written, more_errors) =
            logging::errors_during(|| unsafe { sys::llama_state_seq_get_data(self.raw.as_ptr(), buffer, n_bytes, id) });
        if n_bytes == 0 || n_written != n_bytes {
            return Err(StateError::Refused(logging::explain(
                "llama.cpp could not save the cells",
                &[errors, more_errors].concat(),
            )));
        }
        // SAFETY: llama.cpp reported that it wrote `n_bytes` bytes, contiguously from the start.
        Ok(unsafe { bytes.assume_init() })
    }

    /// Replaces the state of `id` by `bytes`, without changing its recorded length. After an error, a part may have been written.
    ///
    /// # Safety
    /// `bytes` were written by [`Context::read_state`] of a context of the same kind, or are indistinguishable from such bytes.
    pub(super) unsafe fn write_state(&mut self, id: KvSeqId, bytes: &[u8]) -> Result<(), StateError> {
        let id = self.checked(id);
        // SAFETY: the context is alive, the id in range; the caller guarantees the bytes, which llama.cpp only reads.
        let (n_read, errors) = logging::errors_during(|| unsafe {
            sys::llama_state_seq_set_data(self.raw.as_ptr(), bytes.as_ptr(), bytes.len(), id)
        });
        if n_read != bytes.len() {
            return Err(StateError::Refused(logging::explain("llama.cpp could not restore the cells", &errors)));
        }
        Ok(())
    }

    /// Positions and owners of every used cell, in cell order: llama.cpp's serialization of the whole memory.
    #[cfg(test)]
    pub(super) fn whole_state(&mut self) -> Vec<u8> {
        // SAFETY: the context is alive, and llama.cpp writes at most the given number of bytes.
        unsafe {
            let mut bytes = vec![0; sys::llama_state_get_size(self.raw.as_ptr())];
            let n_written = sys::llama_state_get_data(self.raw.as_ptr(), bytes.as_mut_ptr(), bytes.len());
            assert_eq!(n_written, bytes.len());
            bytes
        }
    }

    /// Memory that it uses, by buffer type.
    #[cfg(test)]
    pub(in crate::llama) fn buffers(&self) -> Vec<BufferUse> {
        memory_plan::buffers_of(&self.raw)
    }

    fn checked(&self, KvSeqId(id): KvSeqId) -> sys::llama_seq_id {
        assert!(usize::from(id) < self.seq_lens.len(), "sequence {id} does not exist; there are {}", self.seq_lens.len());
        sys::llama_seq_id::from(id)
    }

    fn memory(&self) -> sys::llama_memory_t {
        self.raw.memory()
    }
}

/// llama.cpp's parameters for a context of `config` with `n_seq_max` sequences.
pub(in crate::llama) fn params(config: &ResolvedConfig, n_seq_max: u32) -> sys::llama_context_params {
    let limits = &config.limits;
    let mut params = base_params(config);
    params.n_threads = config.n_threads.cast_signed();
    params.n_threads_batch = config.n_threads_batch.cast_signed();
    params.n_ctx = limits.n_ctx;
    // llama.cpp asserts that a decode has at most `n_batch` rows and `n_outputs_max` rows with logits, and that each sequence
    // may have one of them.
    params.n_batch = limits.n_ubatch.max(n_seq_max);
    params.n_ubatch = limits.n_ubatch;
    params.n_seq_max = n_seq_max;
    // llama.cpp allocates a row for each sequence in any case.
    params.n_outputs_max = limits.n_outputs.max(n_seq_max);
    params.flash_attn_type = match config.flash_attention {
        FlashAttention::Auto => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
        FlashAttention::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        FlashAttention::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
    };
    params.type_k = ggml_type(config.settings.type_k);
    params.type_v = ggml_type(config.settings.type_v);
    params
}

pub(super) fn base_params(config: &ResolvedConfig) -> sys::llama_context_params {
    // SAFETY: plain data.
    let mut params = unsafe { sys::llama_context_default_params() };
    params.offload_kqv = config.settings.offload_kqv;
    params.op_offload = config.settings.op_offload;
    rope::apply(&config.settings.rope, &mut params);
    params.kv_unified = true;
    // Makes a sliding window's cache as large as the other one: a smaller one can be full while our count of cells says
    // otherwise.
    params.swa_full = true;
    params.no_perf = true;
    params
}

pub(super) fn reason_of(code: i32, errors: &[String], n_ctx: u32, n_rows: usize) -> String {
    let words = match code {
        1 => format!("the KV cache of {n_ctx} cells has no room for {n_rows} more tokens"),
        2 => "the computation was aborted".to_owned(),
        -1 => "llama.cpp refused the batch".to_owned(),
        -2 => "there is not enough memory".to_owned(),
        -3 => "the backend failed".to_owned(),
        code => format!("llama.cpp returned the error code {code}"),
    };
    logging::explain(&words, errors)
}

/// Converts llama.cpp's failure to create a context to an error that names the setting to change.
pub(in crate::llama) fn refusal(model: &Model, limits: &Limits, reason: String) -> Error {
    let is_about = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    if is_about(&["V cache"]) {
        Error::InvalidConfig { param: "type_v", message: reason }
    } else if is_about(&["K cache", "cache types"]) {
        Error::InvalidConfig { param: "type_k", message: reason }
    } else if is_about(&["alloc", "reserve", "memory"]) {
        let message =
            format!("there is not enough memory for a context of {} tokens ({reason}); set a smaller n_ctx", limits.n_ctx);
        Error::InvalidConfig { param: "n_ctx", message }
    } else {
        Error::ModelLoad { path: model.path().to_owned(), reason }
    }
}
