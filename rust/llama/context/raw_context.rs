//! llama.cpp's context of a model, with the record of its sequences. Violations that make llama.cpp end the process are checked.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use llama_cpp_sys_2 as sys;

use crate::config::EnabledKernels;
use crate::engine::runner::{AdapterSet, DecodeError, KvSeqId, MediaRows, MemoryKind, Plan, StateError};
use crate::llama::context::batch::{Batch, BatchBounds};
use crate::llama::context::{params::reason_of, positions::Positions, sequence::KvSequence};
use crate::llama::kernels::{self, DecodeHints};
use crate::llama::logging;
use crate::llama::media::media_batch::{self, MediaBatch};
use crate::llama::model::{Model, kinds::is_t5};
use crate::lock::lock;

owned_pointer!(struct ContextPointer(sys::llama_context), freed by sys::llama_free);

/// Stays on the thread that made it: llama.cpp's context is not thread-safe. Attached thread pools must outlive it.
pub(crate) struct RawContext {
    // Dropped first: it uses the model.
    pointer: ContextPointer,
    pub(crate) model: Arc<Model>,
    active_adapters: AdapterSet,
    enabled_kernels: EnabledKernels,
    n_ctx: u32,
    sequences: Vec<KvSequence>,
    batch: Batch,
    media: MediaBatch,
}

impl RawContext {
    pub(crate) fn new(
        model: &Arc<Model>,
        params: sys::llama_context_params,
        enabled_kernels: EnabledKernels,
    ) -> Result<Self, String> {
        // Creating a context may write to the model, so contexts are created one at a time.
        static CREATION: Mutex<()> = Mutex::new(());
        let _creation = lock(&CREATION);
        // SAFETY: the model is alive, and the parameters are complete.
        let pointer = logging::non_null(|| unsafe { sys::llama_init_from_model(model.as_ptr(), params) })?;
        let n_rows = params.n_ubatch as usize;
        Ok(Self {
            pointer: ContextPointer(pointer),
            model: Arc::clone(model),
            active_adapters: AdapterSet::default(),
            enabled_kernels,
            n_ctx: params.n_ctx,
            sequences: vec![KvSequence::default(); params.n_seq_max as usize],
            batch: Batch::new(BatchBounds {
                n_vocab: model.n_vocab(),
                n_rows,
                n_outputs: params.n_outputs_max as usize,
                is_by_id: model.is_recurrent(),
            }),
            media: MediaBatch::new(media_batch::MediaBatchBounds {
                n_rows,
                n_embd: model.n_embd_in(),
                n_positions: model.n_positions(),
                outputs_all: params.embeddings,
            }),
        })
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::llama_context {
        self.pointer.0.as_ptr()
    }

    /// Returns the memory; null for an encoder without cells, which llama.cpp's functions of a memory accept.
    pub(crate) fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is alive.
        unsafe { sys::llama_get_memory(self.as_ptr()) }
    }

    /// Selects the adapters of the next decodes, for which llama.cpp rebuilds its graphs. After an error, nothing has changed.
    pub(crate) fn use_adapters(&mut self, adapter_set: &AdapterSet) -> Result<(), DecodeError> {
        if self.active_adapters == *adapter_set {
            return Ok(());
        }
        let loaded = self.model.adapters();
        let resolve = |(id, scale): (u32, f32)| {
            let adapter = loaded.get(id as usize).filter(|_| scale.is_finite());
            adapter.map(|adapter| (adapter.as_ptr(), scale)).ok_or_else(|| {
                let rule = format!("there are {} adapters, and scales must be finite", loaded.len());
                DecodeError { reason: format!("invalid plan: adapter {id} with scale {scale}; {rule}") }
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

    /// Computes the rows of `plan`: all tokens in one decode. If a row breaks a rule, nothing is computed.
    pub(crate) fn decode(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        self.use_adapters(&plan.adapter_set)?;
        self.decode_media(plan)?;
        if plan.is_of_media() {
            self.batch.clear();
            return Ok(());
        }
        self.decode_tokens(plan)
    }

    pub(crate) fn decode_tokens(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        self.batch.fill(plan, &self.sequences)?;
        let batch = self.batch.as_raw();
        let run = if is_t5(self.model.architecture()) { sys::llama_encode } else { sys::llama_decode };
        // SAFETY: `fill` checked every rule that llama.cpp asserts; the arrays live in `self.batch` and are only read.
        let run = || unsafe { run(self.as_ptr(), batch) };
        // SAFETY: the memory lives as long as the context, and the batch is not changed before the decode has ended.
        let hints = unsafe { DecodeHints::new(self.batch.ids(), self.memory()) };
        if let Err((code, errors)) = self.run(Some(hints), run) {
            let ids = self.batch.ids().to_vec();
            self.batch.clear();
            return Err(self.failed(&ids, code, &errors));
        }
        for (sequence, &len) in self.sequences.iter_mut().zip(self.batch.seq_lens_after()) {
            sequence.len = len;
        }
        Ok(())
    }

    /// Computes media: one decode per medium with non-causal attention, one for all others.
    pub(crate) fn decode_media(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        let (non_causal, others): (Vec<_>, Vec<_>) = plan.media.iter().cloned().partition(|rows| rows.media.sees_ahead());
        for media in non_causal {
            self.decode_group(plan, &[media], true)?;
        }
        if others.is_empty() { Ok(()) } else { self.decode_group(plan, &others, false) }
    }

    fn decode_group(&mut self, plan: &Plan, group: &[MediaRows], sees_ahead: bool) -> Result<(), DecodeError> {
        let result = self.media.fill(plan, group, &self.sequences);
        result.map_err(|reason| DecodeError { reason: format!("invalid plan: {reason}") })?;
        let batch = self.media.as_raw();
        // SAFETY: `fill` checked every rule that llama.cpp asserts; the arrays live in `self.media` and are only read. Where
        // attention is non-causal, all of a medium is in one `n_ubatch`.
        let run = || unsafe {
            sys::llama_set_causal_attn(self.as_ptr(), !sees_ahead);
            let code = sys::llama_decode(self.as_ptr(), batch);
            sys::llama_set_causal_attn(self.as_ptr(), true);
            code
        };
        // Rows of whole media see other tokens than those up to their own: our attention kernel reads the mask.
        let is_causal = group.iter().all(|rows| !rows.media.is_whole());
        // SAFETY: the memory lives as long as the context, and the batch is not changed before the decode has ended.
        let hints = is_causal.then(|| unsafe { DecodeHints::new(self.media.ids(), self.memory()) });
        if let Err((code, errors)) = self.run(hints, run) {
            let ids = self.media.ids().to_vec();
            return Err(self.failed(&ids, code, &errors));
        }
        for MediaRows { rows, media, start } in group {
            let sequence = &mut self.sequences[usize::from(plan.rows[rows.start].sequence.0)];
            if *start == 0 {
                sequence.positions.push(sequence.len, &**media);
            }
            sequence.len += u32::try_from(rows.len()).expect("a plan has fewer than 2³² rows");
        }
        Ok(())
    }

    /// Calls `run` with the enabled kernels, and waits for its result. The error is llama.cpp's code with its error lines.
    fn run(&self, hints: Option<DecodeHints>, run: impl FnOnce() -> i32) -> Result<(), (i32, Vec<String>)> {
        let (code, errors) = logging::errors_during(|| kernels::with_kernels(self.enabled_kernels, hints, run));
        if code != 0 {
            return Err((code, errors));
        }
        // Here rather than at the first read of the results, so that callers can measure the time of a decode.
        // SAFETY: the context is alive.
        unsafe { sys::llama_synchronize(self.as_ptr()) };
        Ok(())
    }

    /// Reads back the lengths of the sequences `ids` after a failed decode.
    fn failed(&mut self, ids: &[sys::llama_seq_id], code: i32, errors: &[String]) -> DecodeError {
        for &id in ids {
            // SAFETY: the id was checked when the batch was filled.
            let last = unsafe { sys::llama_memory_seq_pos_max(self.memory(), id) };
            let sequence = &mut self.sequences[id.unsigned_abs() as usize];
            sequence.truncate(sequence.positions.n_tokens((last + 1).unsigned_abs()));
        }
        DecodeError { reason: reason_of(code, errors, self.n_ctx, ids.len()) }
    }

    pub(crate) fn has_explicit_positions(&self) -> bool {
        // SAFETY: the memory lives as long as the context.
        unsafe { DecodeHints::new(&[], self.memory()) }.has_positions()
    }

    pub(crate) fn logits(&self, row: usize) -> &[f32] {
        let index = self.batch.output(row);
        let index = index.unwrap_or_else(|| panic!("row {row} of the last plan did not request logits"));
        let index = i32::try_from(index).expect("a plan has fewer rows than the device cache has cells");
        // SAFETY: the last decode succeeded, or the batch would be empty. llama.cpp expects the row's index in the batch.
        let logits = unsafe { sys::llama_get_logits_ith(self.as_ptr(), index) };
        assert!(!logits.is_null(), "llama.cpp returned no logits for row {row}, which requested them");
        // SAFETY: a row is as long as the vocabulary; it is not written before the next decode, which takes `self` mutably.
        unsafe { std::slice::from_raw_parts(logits, self.model.n_vocab()) }
    }

    pub(crate) fn seq_len(&self, id: KvSeqId) -> u32 {
        self.sequence(id).len
    }

    pub(crate) fn positions(&self, id: KvSeqId) -> &Positions {
        &self.sequence(id).positions
    }

    pub(crate) fn whole_from(&self, id: KvSeqId) -> u32 {
        // SAFETY: `checked` ensures that the id is in range.
        let first = unsafe { sys::llama_memory_seq_pos_min(self.memory(), self.checked(id)) }.max(0).unsigned_abs();
        first.max(self.sequence(id).whole_from)
    }

    /// Returns the first row of `plan` whose window in `memory` covers a hole that a reloaded state left.
    pub(crate) fn position_gap(&self, plan: &Plan, memory: MemoryKind) -> Option<usize> {
        plan.rows.iter().position(|row| {
            let whole_from = self.sequences.get(usize::from(row.sequence.0)).map_or(0, |sequence| sequence.whole_from);
            !memory.holds_window(whole_from, row.position)
        })
    }

    /// Shares the cells of `[0, n_tokens)` of `from` with `to`. Sharing part of a sequence requires a memory that allows it.
    pub(crate) fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32) {
        let seq_len = self.seq_len(from);
        assert!(from != to, "cannot fork sequence {} to itself", from.0);
        assert!(n_tokens <= seq_len, "cannot fork {n_tokens} tokens of sequence {}, which has {seq_len}", from.0);
        assert_eq!(self.seq_len(to), 0, "cannot fork to sequence {}, which is not empty", to.0);
        if n_tokens == 0 {
            return;
        }
        // For a whole sequence some memories accept only (-1, -1) and end the process otherwise.
        let end = self.positions(from).at(n_tokens);
        let (start, end) = if n_tokens == seq_len { (-1, -1) } else { (0, end.cast_signed()) };
        self.copy_cells(from, to, start, end);
        let mut sequence = self.sequence(from).clone();
        sequence.truncate(n_tokens);
        *self.sequence_mut(to) = sequence;
    }

    /// Returns false and removes nothing if the memory cannot do so, such as inside an image with two-dimensional positions.
    pub(crate) fn truncate(&mut self, id: KvSeqId, n_kept: u32) -> bool {
        let KvSequence { len, positions, .. } = self.sequence(id);
        if n_kept >= *len {
            self.sequence_mut(id).positions.truncate(n_kept);
            return true;
        }
        if positions.cuts(n_kept) {
            return false;
        }
        let start = if n_kept == 0 { -1 } else { positions.at(n_kept).cast_signed() };
        let is_done = self.remove_cells(id, start, -1);
        if is_done {
            self.sequence_mut(id).truncate(n_kept);
        }
        is_done
    }

    pub(crate) fn clear(&mut self) {
        // SAFETY: the memory is alive or null. The cells' bytes may stay: no sequence owns them.
        unsafe { sys::llama_memory_clear(self.memory(), false) };
        self.sequences.fill(KvSequence::default());
        self.batch.clear();
    }

    /// Shares the cells of `from` at the positions of `range` with `to`, without changing the record of `to`.
    pub(crate) fn share(&mut self, from: KvSeqId, to: KvSeqId, range: Range<u32>) {
        self.copy_cells(from, to, range.start.cast_signed(), range.end.cast_signed());
    }

    pub(crate) fn unshare(&mut self, id: KvSeqId, range: Range<u32>) {
        let is_done = self.remove_cells(id, range.start.cast_signed(), range.end.cast_signed());
        assert!(is_done, "the memory was found to support truncation when it was created");
    }

    /// Removes the cells of `id` from `position` on, without changing its record. Returns false if the memory cannot.
    pub(crate) fn cut(&mut self, id: KvSeqId, position: u32) -> bool {
        self.remove_cells(id, position.cast_signed(), -1)
    }

    /// Returns the tokens, positions and ids of the last decode of tokens, in llama.cpp's order; none if it failed.
    pub(crate) fn last_rows(&self) -> (&[sys::llama_token], &[sys::llama_pos], &[sys::llama_seq_id]) {
        self.batch.rows()
    }

    pub(crate) fn unshare_all(&mut self, id: KvSeqId) {
        self.remove_cells(id, -1, -1);
    }

    fn copy_cells(&mut self, from: KvSeqId, to: KvSeqId, start: sys::llama_pos, end: sys::llama_pos) {
        // SAFETY: both ids are in range, and the cache is unified, so that a part may be copied.
        unsafe { sys::llama_memory_seq_cp(self.memory(), self.checked(from), self.checked(to), start, end) };
    }

    fn remove_cells(&mut self, id: KvSeqId, start: sys::llama_pos, end: sys::llama_pos) -> bool {
        // SAFETY: the id is in range.
        unsafe { sys::llama_memory_seq_rm(self.memory(), self.checked(id), start, end) }
    }

    pub(crate) fn read_state(&mut self, id: KvSeqId) -> Result<Arc<[u8]>, StateError> {
        let id = self.checked(id);
        // SAFETY: the context is alive and the id in range.
        let (n_bytes, errors) = logging::errors_during(|| unsafe { sys::llama_state_seq_get_size(self.as_ptr(), id) });
        // Allocated in their final location, so that they are copied only once.
        let mut bytes = Arc::<[u8]>::new_uninit_slice(n_bytes);
        let buffer = Arc::get_mut(&mut bytes).expect("it is not shared yet").as_mut_ptr().cast();
        // SAFETY: as above, and llama.cpp writes at most the given number of bytes.
        let (n_written, more_errors) =
            logging::errors_during(|| unsafe { sys::llama_state_seq_get_data(self.as_ptr(), buffer, n_bytes, id) });
        if n_bytes == 0 || n_written != n_bytes {
            let errors = [errors, more_errors].concat();
            return Err(StateError::Refused(logging::explain("llama.cpp could not save the cells", &errors)));
        }
        // SAFETY: llama.cpp reported that it wrote `n_bytes` bytes, contiguously from the start.
        Ok(unsafe { bytes.assume_init() })
    }

    /// Replaces the state of `id` by `bytes`, without changing its record. After an error, a part may have been written.
    ///
    /// # Safety
    /// `bytes` were written by [`RawContext::read_state`] of a context of the same kind, or are indistinguishable from such bytes.
    pub(crate) unsafe fn write_state(&mut self, id: KvSeqId, bytes: &[u8]) -> Result<(), StateError> {
        let id = self.checked(id);
        // SAFETY: the context is alive, the id in range; the caller guarantees the bytes, which llama.cpp only reads.
        let (n_read, errors) =
            logging::errors_during(|| unsafe { sys::llama_state_seq_set_data(self.as_ptr(), bytes.as_ptr(), bytes.len(), id) });
        if n_read != bytes.len() {
            return Err(StateError::Refused(logging::explain("llama.cpp could not restore the cells", &errors)));
        }
        Ok(())
    }

    /// Positions and owners of every used cell, in cell order: llama.cpp's serialization of the whole memory.
    #[cfg(test)]
    pub(crate) fn whole_state(&mut self) -> Vec<u8> {
        // SAFETY: the context is alive, and llama.cpp writes at most the given number of bytes.
        unsafe {
            let mut bytes = vec![0; sys::llama_state_get_size(self.as_ptr())];
            let n_written = sys::llama_state_get_data(self.as_ptr(), bytes.as_mut_ptr(), bytes.len());
            assert_eq!(n_written, bytes.len());
            bytes
        }
    }

    pub(super) fn checked(&self, KvSeqId(id): KvSeqId) -> sys::llama_seq_id {
        assert!(usize::from(id) < self.sequences.len(), "sequence {id} does not exist; there are {}", self.sequences.len());
        sys::llama_seq_id::from(id)
    }

    fn sequence(&self, KvSeqId(id): KvSeqId) -> &KvSequence {
        &self.sequences[usize::from(id)]
    }

    pub(crate) fn sequence_mut(&mut self, KvSeqId(id): KvSeqId) -> &mut KvSequence {
        &mut self.sequences[usize::from(id)]
    }
}
