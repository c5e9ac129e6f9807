//! llama.cpp's context under our names: decode, fork, truncate, drop.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use llama_cpp_sys_2 as sys;

use crate::config::{EnabledKernels, EngineConfig, FlashAttention, Limits, Threads};
use crate::engine::runner::{AdapterSet, DecodeError, KvSeqId, MediaRows, MemoryKind, Plan, StateError};
use crate::error::{Error, Result};
use crate::llama::adapters;
use crate::llama::affinity::AffinityGuard;
use crate::llama::batch::{Batch, Bounds, rows_of};
use crate::llama::contention::{ContentionTuner, ThreadShare};
use crate::llama::kernels;
use crate::llama::kv_size::ggml_type;
use crate::llama::logging;
use crate::llama::media_batch::{self, MediaBatch};
use crate::llama::model::Model;
use crate::llama::pages;
use crate::llama::positions::Positions;
use crate::llama::priority::PriorityGuard;
use crate::llama::rope;
use crate::llama::threads::{self, ThreadPool};
use crate::request::Token;

/// How long the threads of a pool wait for the next graph at full speed, in the unit of [`ThreadPool::new`].
///
/// Fastest steps of the demo model with 1, 8 and 32 rows on two cores, in µs: 588, 986 and 9,656 without a pool; 252, 743 and 2,589
/// with threads that sleep at once; 205, 659 and 2,394 with 1, and no less with 10 or 50. After the last decode 1 spins for less
/// than 10 ms, 50 for more than 100.
const POLL: u32 = 1;

/// A model's cells and what computes them. Stays on the thread that made it: llama.cpp's context is not thread-safe.
pub(super) struct Context {
    raw: NonNull<sys::llama_context>,
    batch: Batch,
    media: MediaBatch,
    /// Tokens that each sequence holds. llama.cpp knows too, but it would have to be asked for every row.
    n_held: Vec<u32>,
    /// From which position on each sequence has no hole in the cache of its sliding window. Restored pieces bring only the end of
    /// theirs, and llama.cpp knows the first position, not the holes above it. 0 for a memory without a window.
    whole_from: Vec<u32>,
    /// Which positions the places of each sequence have.
    positions: Vec<Positions>,
    n_ctx: u32,
    /// The adapters that are on.
    variant: AdapterSet,
    /// Threads of a decode in which every sequence computes one token, and of one with rows of prompts.
    n_threads: u32,
    n_threads_batch: u32,
    /// Where and how the former compute, and the latter where they do otherwise.
    how: Vec<Threads>,
    /// Which of our kernels compute.
    used: EnabledKernels,
    /// By their number, and which of `how` they are; that of the last decode first.
    // Dropped in this order, after `raw` is freed, which uses them.
    threads: Vec<((u32, usize), ThreadPool)>,
    standing: PriorityGuard,
    /// Where fewer of them may compute when others want the processors too.
    crowd: Option<ContentionTuner>,
    /// Keeps the thread that decodes where none of theirs is.
    stay: AffinityGuard,
    model: Arc<Model>,
}

impl Context {
    /// Makes the pool of `limits.n_ctx` cells for `n_seq_max` sequences.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] or [`Error::ModelLoad`] with llama.cpp's reason.
    pub(super) fn new(model: Arc<Model>, config: &EngineConfig, limits: &Limits, n_seq_max: u32) -> Result<Self> {
        let n_threads = config.n_threads.unwrap_or_else(threads::n_cores);
        let n_threads_batch = config.n_threads_batch.unwrap_or(n_threads);
        let mut params = params(config, limits, n_seq_max);
        params.n_threads = n_threads.cast_signed();
        params.n_threads_batch = n_threads_batch.cast_signed();
        let (raw, errors) = make(&model, params);
        let raw = raw.ok_or_else(|| refusal(&model, limits, &errors))?;
        let bounds = Bounds {
            n_vocab: model.n_vocab(),
            n_seq_max: n_seq_max as usize,
            n_rows: limits.n_ubatch as usize,
            n_outputs: limits.n_outputs as usize,
            is_by_id: model.is_recurrent(),
        };
        let (n_held, whole_from) = (vec![0; n_seq_max as usize], vec![0; n_seq_max as usize]);
        let (batch, n_ctx, used) = (Batch::new(bounds), limits.n_ctx, config.used);
        let media = MediaBatch::new(media_batch::Bounds {
            n_seq_max: bounds.n_seq_max,
            n_rows: bounds.n_rows,
            n_embd: model.n_embd_in(),
            n_positions: model.n_positions(),
            puts_out: false,
        });
        let threads = Vec::new();
        let mut how = vec![config.threads.clone(), config.threads_batch.clone()];
        how.dedup();
        let mut context = Self {
            raw,
            batch,
            media,
            n_held,
            whole_from,
            positions: vec![Positions::NONE; n_seq_max as usize],
            n_ctx,
            variant: AdapterSet::default(),
            n_threads,
            n_threads_batch,
            how,
            used,
            threads,
            crowd: None,
            standing: PriorityGuard::default(),
            stay: AffinityGuard::default(),
            model,
        };
        if context.memory().is_null() {
            let reason = "its architecture keeps no memory of a text, so it cannot continue one".to_owned();
            return Err(Error::ModelLoad { path: context.model.path().to_owned(), reason });
        }
        // SAFETY: the context is alive.
        let n_ctx_of_one = unsafe { sys::llama_n_ctx_seq(raw.as_ptr()) };
        assert_eq!(n_ctx_of_one, limits.n_ctx, "one sequence may use the whole pool, so the pool is unified");
        // SAFETY: the memory lives as long as the context, and is as llama.cpp has made it: zeros.
        unsafe { pages::give_back(context.memory()) };
        let may_be_fewer = config.fewer_threads_in_a_crowd && n_threads.min(n_threads_batch) > 1;
        context.crowd = may_be_fewer.then(ContentionTuner::default);
        context.use_threads(n_threads_batch, 1);
        context.use_threads(n_threads, 0);
        Ok(context)
    }

    /// Computes with `n_threads` from now on, few rows or many.
    pub(super) fn set_threads(&mut self, n_threads: u32) {
        (self.n_threads, self.n_threads_batch) = (n_threads, n_threads);
        self.crowd = None;
    }

    /// Gives `plan` its threads. By itself llama.cpp would take those for prompts wherever there are two rows.
    fn use_threads_for(&mut self, plan: &Plan) {
        let is_decoding = plan.rows.iter().all(|row| row.wants_logits);
        let (n_threads, kind) = if is_decoding { (self.n_threads, 0) } else { (self.n_threads_batch, 1) };
        let crew = self.crowd.as_mut().map_or(ThreadShare::All, |crowd| crowd.thread_share(plan.rows.len()));
        self.use_threads(if crew == ThreadShare::All { n_threads } else { half(n_threads) }, kind);
    }

    /// Computes with these adapters from now on. llama.cpp then makes its graphs anew, so it is told only where they change.
    ///
    /// # Errors
    /// [`DecodeError`] if one of them is not loaded; nothing changes then.
    fn use_adapters(&mut self, variant: &AdapterSet) -> std::result::Result<(), DecodeError> {
        if self.variant == *variant {
            return Ok(());
        }
        // SAFETY: the context is alive, and of this model.
        let turned = unsafe { adapters::turn_on(self.raw, self.model.adapters(), variant) };
        turned.map_err(|reason| DecodeError { reason })?;
        self.variant = variant.clone();
        Ok(())
    }

    /// Each number of threads has a pool of its own: in a larger one, those without work would wait at full speed. `kind` is 0 for a
    /// decode without rows of prompts, 1 for one with them.
    fn use_threads(&mut self, n_threads: u32, kind: usize) {
        let key = (n_threads, kind.min(self.how.len() - 1));
        if self.threads.first().is_some_and(|(known, _)| *known == key) {
            return;
        }
        let how = &self.how[key.1];
        // Threads that are started for a pool have the priority of who starts them.
        self.standing.take(how.priority);
        if let Some(place) = self.threads.iter().position(|(known, _)| *known == key) {
            self.threads.swap(0, place);
        } else {
            // They may run wherever this thread may, and not only where it stays.
            self.stay.leave();
            self.threads.insert(0, (key, ThreadPool::new(n_threads, how, POLL, self.used)));
        }
        let (pool, n_threads) = (self.threads[0].1.as_ptr(), n_threads.cast_signed());
        // SAFETY: the context is alive, and the pool lives in `self` until after the context is freed.
        unsafe { sys::llama_attach_threadpool(self.raw.as_ptr(), pool, pool) };
        // SAFETY: the context is alive. Two numbers are stored.
        unsafe { sys::llama_set_n_threads(self.raw.as_ptr(), n_threads, n_threads) };
    }

    /// Computes the rows of `plan` in one decode.
    ///
    /// # Errors
    /// [`DecodeError`] if a row breaks a rule (then nothing was computed) or llama.cpp failed.
    pub(super) fn decode(&mut self, plan: &Plan) -> std::result::Result<(), DecodeError> {
        self.use_adapters(&plan.variant)?;
        self.use_threads_for(plan);
        match self.threads[0].1.place() {
            Some(place) => self.stay.at(place),
            None => self.stay.leave(),
        }
        self.decode_media(plan)?;
        if plan.is_of_media() {
            self.batch.clear();
            return Ok(());
        }
        let positions = &self.positions;
        self.batch.fill(plan, &self.n_held, |id, place| positions[id].at(place))?;
        let batch = self.batch.as_raw();
        // SAFETY: `fill` checked every rule that llama.cpp asserts; the arrays live in `self.batch` and are only read.
        let decode = || unsafe { sys::llama_decode(self.raw.as_ptr(), batch) };
        // SAFETY: the memory lives as long as the context, and the batch is not changed before the decode has ended.
        let known = unsafe { kernels::DecodeHints::new(self.batch.ids(), self.memory()) };
        let started = Instant::now();
        let (code, errors) = logging::errors_during(|| kernels::deciding(self.used, Some(known), decode));
        if code != 0 {
            let ids = self.batch.ids().to_vec();
            self.batch.clear();
            return Err(self.failed(&ids, code, &errors));
        }
        // Waits here rather than at the first look at the logits, so that the time of a decode is the caller's to measure.
        // SAFETY: the context is alive.
        unsafe { sys::llama_synchronize(self.raw.as_ptr()) };
        if let Some(crowd) = self.crowd.as_mut().filter(|_| plan.media.is_empty()) {
            crowd.observe(plan.rows.len(), started.elapsed());
        }
        self.n_held.copy_from_slice(self.batch.n_held_after());
        Ok(())
    }

    /// Whether our attention is told the positions of this memory's cells.
    pub(super) fn has_explicit_positions(&self) -> bool {
        // SAFETY: the memory lives as long as the context.
        unsafe { kernels::DecodeHints::new(&[], self.memory()) }.has_positions()
    }

    /// Computes the rows of `plan` that vectors fill: those of each medium that sees ahead by themselves, all others together.
    fn decode_media(&mut self, plan: &Plan) -> std::result::Result<(), DecodeError> {
        let (ahead, others): (Vec<_>, Vec<_>) = plan.media.iter().cloned().partition(|of| of.media.sees_ahead());
        for media in ahead {
            self.decode_group(plan, &[media], true)?;
        }
        if others.is_empty() { Ok(()) } else { self.decode_group(plan, &others, false) }
    }

    fn decode_group(&mut self, plan: &Plan, group: &[MediaRows], sees_ahead: bool) -> std::result::Result<(), DecodeError> {
        let filled = self.media.fill(plan, group, &self.n_held, &self.positions);
        filled.map_err(|reason| DecodeError { reason: format!("the plan breaks a rule: {reason}") })?;
        let batch = self.media.as_raw();
        // Otherwise a row does not see what stands before it and that alone: our attention looks at the mask.
        let is_causal = group.iter().all(|of| !of.media.is_whole());
        // SAFETY: `fill` checked every rule that llama.cpp asserts; the arrays live in `self.media` and are only read. Of a model
        // whose rows see ahead, all of a medium is in one `n_ubatch`.
        let decode = || unsafe {
            sys::llama_set_causal_attn(self.raw.as_ptr(), !sees_ahead);
            let code = sys::llama_decode(self.raw.as_ptr(), batch);
            sys::llama_set_causal_attn(self.raw.as_ptr(), true);
            code
        };
        // SAFETY: the memory lives as long as the context, and the batch is not changed before the decode has ended.
        let known = is_causal.then(|| unsafe { kernels::DecodeHints::new(self.media.ids(), self.memory()) });
        let (code, errors) = logging::errors_during(|| kernels::deciding(self.used, known, decode));
        if code != 0 {
            let ids = self.media.ids().to_vec();
            return Err(self.failed(&ids, code, &errors));
        }
        // SAFETY: the context is alive.
        unsafe { sys::llama_synchronize(self.raw.as_ptr()) };
        for MediaRows { rows, media, start } in group {
            let id = usize::from(plan.rows[rows.start].sequence.0);
            if *start == 0 {
                self.positions[id].push(self.n_held[id], &**media);
            }
            self.n_held[id] += u32::try_from(rows.len()).expect("a plan has fewer than 2³² rows");
        }
        Ok(())
    }

    /// Finds out what the sequences `ids` of a failed batch hold, and puts `code` in words.
    fn failed(&mut self, ids: &[sys::llama_seq_id], code: i32, errors: &[String]) -> DecodeError {
        for &id in ids {
            // SAFETY: the id was checked when the batch was filled.
            let last = unsafe { sys::llama_memory_seq_pos_max(self.memory(), id) };
            let id = id.unsigned_abs() as usize;
            let n_held = self.positions[id].n_places((last + 1).unsigned_abs());
            self.n_held[id] = n_held;
            self.positions[id].truncate(n_held);
            self.whole_from[id] = self.whole_from[id].min(n_held);
        }
        DecodeError { reason: reason_of(code, errors, self.n_ctx, ids.len()) }
    }

    /// The logits after row `row` of the last plan.
    pub(super) fn logits(&self, row: usize) -> &[f32] {
        let place = self.batch.output(row);
        let place = place.unwrap_or_else(|| panic!("row {row} of the last plan did not want logits"));
        let index = i32::try_from(place).expect("a plan has fewer rows than the pool has cells");
        // SAFETY: the last decode succeeded, or its batch would have been forgotten. llama.cpp takes the index of the batch's row.
        let logits = unsafe { sys::llama_get_logits_ith(self.raw.as_ptr(), index) };
        assert!(!logits.is_null(), "llama.cpp has no logits for row {row}, which wanted them");
        // SAFETY: a row is as long as the vocabulary; it is not written before the next decode, which takes `self` mutably.
        unsafe { std::slice::from_raw_parts(logits, self.model.n_vocab()) }
    }

    /// How many tokens `id` holds.
    pub(super) fn n_held(&self, KvSeqId(id): KvSeqId) -> u32 {
        self.n_held[usize::from(id)]
    }

    /// The positions of what `id` holds.
    pub(super) fn positions(&self, id: KvSeqId) -> &Positions {
        &self.positions[usize::from(id.0)]
    }

    /// `id`, which holds nothing more than these tell of, has these positions.
    pub(super) fn set_positions(&mut self, id: KvSeqId, positions: Positions) {
        self.positions[usize::from(id.0)] = positions;
    }

    /// From which position on `id` holds everything that a sliding window may look at.
    pub(super) fn whole_from(&self, id: KvSeqId) -> u32 {
        // SAFETY: `checked` ensures that the id is in range.
        let first = unsafe { sys::llama_memory_seq_pos_min(self.memory(), self.checked(id)) }.max(0).unsigned_abs();
        first.max(self.whole_from[usize::from(id.0)])
    }

    /// The first row of `plan` that looks through the window of `memory` into a hole that a restored piece left.
    pub(super) fn position_gap(&self, plan: &Plan, memory: MemoryKind) -> Option<usize> {
        plan.rows.iter().position(|row| {
            let whole_from = self.whole_from.get(usize::from(row.sequence.0)).copied().unwrap_or(0);
            !memory.holds_window(whole_from, row.position)
        })
    }

    /// Gives the cells of `[0, n_tokens)` of `from` to `to` as well. Part of a sequence only where the memory allows it.
    pub(super) fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32) {
        let n_held = self.n_held(from);
        assert!(from != to, "sequence {} was forked to itself", from.0);
        assert!(n_tokens <= n_held, "{n_tokens} tokens of sequence {} were forked, which holds {n_held}", from.0);
        assert_eq!(self.n_held(to), 0, "sequence {} holds tokens already", to.0);
        if n_tokens == 0 {
            return;
        }
        // Some memories end the process unless all is asked for in these words.
        let end = self.positions[usize::from(from.0)].at(n_tokens);
        let (start, end) = if n_tokens == n_held { (-1, -1) } else { (0, end.cast_signed()) };
        // SAFETY: both ids are in range, and the pool is unified, so that a part may be copied.
        unsafe { sys::llama_memory_seq_cp(self.memory(), self.checked(from), self.checked(to), start, end) };
        self.n_held[usize::from(to.0)] = n_tokens;
        self.whole_from[usize::from(to.0)] = self.whole_from[usize::from(from.0)];
        let mut positions = self.positions[usize::from(from.0)].clone();
        positions.truncate(n_tokens);
        self.positions[usize::from(to.0)] = positions;
    }

    /// Forgets all but the first `n_kept` tokens of `id`; false where the memory cannot, as within a picture whose rows and columns
    /// are counted, and then nothing was forgotten.
    pub(super) fn truncate(&mut self, id: KvSeqId, n_kept: u32) -> bool {
        if n_kept >= self.n_held(id) {
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
            self.n_held[usize::from(id.0)] = n_kept;
            self.positions[usize::from(id.0)].truncate(n_kept);
        }
        if self.n_held(id) == 0 {
            self.whole_from[usize::from(id.0)] = 0;
        }
        is_done
    }

    /// How many of the first tokens of `id` share positions.
    pub(super) fn n_grouped(&self, KvSeqId(id): KvSeqId) -> u32 {
        self.positions[usize::from(id)].n_grouped()
    }

    /// Gives the tokens of `range` of `id`, which follow those that are grouped, a position for each `n` of them, and those after it
    /// the positions that follow. Their keys are turned when the next decode begins, those of all cells being looked at.
    pub(super) fn group(&mut self, id: KvSeqId, range: Range<u32>, n: u32) {
        let (n_grouped, n_held) = (self.n_grouped(id), self.n_held(id));
        assert!(range.start == n_grouped && range.end <= n_held, "tokens {range:?} follow {n_grouped} of {n_held}");
        assert!(range.start.is_multiple_of(n) && range.end.is_multiple_of(n), "groups of {n} in {range:?}");
        let place = u32::cast_signed;
        let (first, n_fewer, n_fewer_then) = (range.start / n, range.start - range.start / n, range.end - range.end / n);
        let (memory, id_of_theirs) = (self.memory(), self.checked(id));
        // SAFETY: the id is in range, and the memory was found to be one that can turn its keys. For a moment their positions are
        // their places, as in llama.cpp's tools.
        unsafe {
            sys::llama_memory_seq_add(memory, id_of_theirs, place(first), -1, place(n_fewer));
            // One by one, as `llama_memory_seq_div` would move them: that turns their keys by as much the other way. Fewer moves
            // of stretches cannot do it, since each changes the distance of two neighbours alone. All at once, since what is left
            // for later steps would make each of their decodes look through the keys of all cells again, which costs more.
            for at in range.clone() {
                sys::llama_memory_seq_add(memory, id_of_theirs, place(at), place(at) + 1, place(at / n) - place(at));
            }
            sys::llama_memory_seq_add(memory, id_of_theirs, place(range.end), -1, -place(n_fewer_then));
        }
        self.positions[usize::from(id.0)].group(range.end, n);
    }

    /// Whether keys can be turned to other positions, so that those that stay where they are keep every bit. `id` holds nothing
    /// before or after.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn try_group(&mut self, id: KvSeqId, token: Token) -> std::result::Result<(), String> {
        // SAFETY: the memory is alive.
        if !unsafe { sys::llama_memory_can_shift(self.memory()) } {
            return Err("this model's memory cannot move tokens to other positions".to_owned());
        }
        let failed = |error: DecodeError| error.reason;
        self.decode(&rows_of(id, 0, &[token, token, token])).map_err(failed)?;
        let before = self.read_state(id).map_err(|error| error.to_string())?;
        // SAFETY: the id is in range, and the memory can turn its keys: by nothing at all, here.
        unsafe {
            sys::llama_memory_seq_add(self.memory(), self.checked(id), 2, -1, 1);
            sys::llama_memory_seq_add(self.memory(), self.checked(id), 3, -1, -1);
        }
        self.decode(&rows_of(id, 3, &[token])).map_err(failed)?;
        assert!(self.truncate(id, 3), "a memory that moves tokens can be cut");
        let after = self.read_state(id).map_err(|error| error.to_string())?;
        self.clear();
        let is_kept = before == after;
        is_kept.then_some(()).ok_or_else(|| "tokens that stay where they are would change with every group (YaRN)".to_owned())
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        // SAFETY: the memory is alive. The cells' bytes may stay: no sequence owns them.
        unsafe { sys::llama_memory_clear(self.memory(), false) };
        self.n_held.fill(0);
        self.whole_from.fill(0);
        self.positions.fill(Positions::NONE);
        self.batch.clear();
    }

    /// Gives what `from` holds at the positions of `range` to `to`, without counting it as held.
    pub(super) fn lend(&mut self, from: KvSeqId, to: KvSeqId, range: Range<u32>) {
        let (start, end) = (range.start.cast_signed(), range.end.cast_signed());
        // SAFETY: both ids are in range, and the pool is unified, so that a part may be copied.
        unsafe { sys::llama_memory_seq_cp(self.memory(), self.checked(from), self.checked(to), start, end) };
    }

    /// Takes the positions of `range` from `id`, without counting them as lost. Only where the memory can be cut.
    pub(super) fn take_back(&mut self, id: KvSeqId, range: Range<u32>) {
        let (start, end) = (range.start.cast_signed(), range.end.cast_signed());
        // SAFETY: the id is in range.
        let is_done = unsafe { sys::llama_memory_seq_rm(self.memory(), self.checked(id), start, end) };
        assert!(is_done, "a memory that can be cut was found to be so when it was made");
    }

    /// Takes everything from `id`, counted or not.
    pub(super) fn take_all_back(&mut self, id: KvSeqId) {
        // SAFETY: the id is in range, and every memory can forget a whole sequence.
        unsafe { sys::llama_memory_seq_rm(self.memory(), self.checked(id), -1, -1) };
    }

    /// Counts `id` as holding `n_held` tokens, its window without a hole from `whole_from` on.
    pub(super) fn set_held(&mut self, id: KvSeqId, n_held: u32, whole_from: u32) {
        self.n_held[usize::from(id.0)] = n_held;
        self.positions[usize::from(id.0)].truncate(n_held);
        self.whole_from[usize::from(id.0)] = whole_from;
    }

    /// A copy of all that `id` holds, as llama.cpp writes it.
    ///
    /// # Errors
    /// llama.cpp's reason.
    pub(super) fn read_state(&mut self, id: KvSeqId) -> std::result::Result<Arc<[u8]>, StateError> {
        let id = self.checked(id);
        // SAFETY: the context is alive and the id in range.
        let (n_bytes, errors) = logging::errors_during(|| unsafe { sys::llama_state_seq_get_size(self.raw.as_ptr(), id) });
        // Where they stay as long as they are kept, so that they are copied once.
        let mut bytes = Arc::<[u8]>::new_uninit_slice(n_bytes);
        let place = Arc::get_mut(&mut bytes).expect("nobody else knows it yet").as_mut_ptr().cast();
        // SAFETY: as above, and llama.cpp writes at most the given number of bytes.
        let (n_written, more_errors) =
            logging::errors_during(|| unsafe { sys::llama_state_seq_get_data(self.raw.as_ptr(), place, n_bytes, id) });
        if n_bytes == 0 || n_written != n_bytes {
            return Err(state_error("llama.cpp could not copy the cells", &[errors, more_errors].concat()));
        }
        // SAFETY: llama.cpp says that it has written all of them, one after the other from the first on.
        Ok(unsafe { bytes.assume_init() })
    }

    /// Gives `id` all that `bytes` hold, in place of what it holds; nothing is counted.
    ///
    /// # Errors
    /// llama.cpp's reason; it may have given `id` a part.
    ///
    /// # Safety
    /// `bytes` were written by [`Context::read_state`] of a context of the same kind, or say only what such bytes could say.
    pub(super) unsafe fn write_state(&mut self, id: KvSeqId, bytes: &[u8]) -> std::result::Result<(), StateError> {
        let id = self.checked(id);
        // SAFETY: the context is alive, the id in range; the caller vouches for the bytes, which llama.cpp only reads.
        let (n_read, errors) = logging::errors_during(|| unsafe {
            sys::llama_state_seq_set_data(self.raw.as_ptr(), bytes.as_ptr(), bytes.len(), id)
        });
        if n_read != bytes.len() {
            return Err(state_error("llama.cpp could not place the cells", &errors));
        }
        Ok(())
    }

    /// Position and owners of every used cell, in the order of the cells, as llama.cpp writes the whole memory.
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

    /// llama.cpp's number of `id`, which is in range.
    fn checked(&self, KvSeqId(id): KvSeqId) -> sys::llama_seq_id {
        assert!(usize::from(id) < self.n_held.len(), "sequence {id} is none of the {}", self.n_held.len());
        sys::llama_seq_id::from(id)
    }

    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is alive.
        unsafe { sys::llama_get_memory(self.raw.as_ptr()) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made by `llama_init_from_model` and freed only here; threads and model are dropped after it.
        unsafe { sys::llama_free(self.raw.as_ptr()) }
    }
}

/// Threads that are left of `n` where others want the processors too.
const fn half(n: u32) -> u32 {
    n.div_ceil(2)
}

/// Makes a context of `model`, which must outlive it. Beside it the error lines that say why there is none.
pub(super) fn make(model: &Model, params: sys::llama_context_params) -> (Option<NonNull<sys::llama_context>>, Vec<String>) {
    // Making a context may write to the model, so two are never made at once.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the caller keeps the model alive for longer than the context; the parameters are complete.
    logging::errors_during(|| NonNull::new(unsafe { sys::llama_init_from_model(model.as_ptr(), params) }))
}

/// llama.cpp's parameters for `limits`; the threads are left out.
fn params(config: &EngineConfig, limits: &Limits, n_seq_max: u32) -> sys::llama_context_params {
    // SAFETY: plain data.
    let mut params = unsafe { sys::llama_context_default_params() };
    params.n_ctx = limits.n_ctx;
    // llama.cpp asserts that a decode has at most `n_batch` rows and `n_outputs_max` rows with logits, and that each sequence may
    // have one of them.
    params.n_batch = limits.n_ubatch.max(n_seq_max);
    params.n_ubatch = limits.n_ubatch;
    params.n_seq_max = n_seq_max;
    // llama.cpp keeps a row for each sequence in any case.
    params.n_outputs_max = limits.n_outputs.max(n_seq_max);
    params.flash_attn_type = match config.flash_attention {
        FlashAttention::Auto => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
        FlashAttention::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        FlashAttention::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
    };
    params.type_k = ggml_type(config.type_k);
    params.type_v = ggml_type(config.type_v);
    params.offload_kqv = config.offload_kqv;
    params.op_offload = config.op_offload;
    rope::apply(&config.rope, &mut params);
    params.kv_unified = true;
    // A sliding window's cache as large as the other one: a smaller one can be full while our count of cells says it is not.
    params.swa_full = true;
    params.no_perf = true;
    params
}

/// Why a decode of `n_rows` rows in a pool of `n_ctx` cells failed with `code`.
pub(super) fn reason_of(code: i32, errors: &[String], n_ctx: u32, n_rows: usize) -> String {
    let words = match code {
        1 => format!("the pool of {n_ctx} cells has no room for {n_rows} more"),
        2 => "the computation was aborted".to_owned(),
        -1 => "llama.cpp refused the batch".to_owned(),
        -2 => "there was not enough memory".to_owned(),
        -3 => "the backend failed to compute".to_owned(),
        code => format!("llama.cpp answered {code}"),
    };
    logging::reason(errors).map_or_else(|| words.clone(), |why| format!("{words}: {why}"))
}

fn state_error(words: &str, errors: &[String]) -> StateError {
    let reason = logging::reason(errors).map_or_else(|| words.to_owned(), |why| format!("{words}: {why}"));
    StateError::Refused(reason)
}

/// Why llama.cpp made no context, as an error that names what to change.
fn refusal(model: &Model, limits: &Limits, errors: &[String]) -> Error {
    let reason = logging::reason(errors).unwrap_or_else(|| "llama.cpp gave no reason".to_owned());
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
