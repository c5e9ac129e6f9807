//! The context that computes embeddings: a second one on a model's weights, or the only one of an encoder.

use std::sync::{Arc, PoisonError};

use llama_cpp_sys_2 as sys;

use crate::config::{EnabledKernels, KvType, Named, Pooling, ResolvedConfig};
use crate::embedding::{Embedder, EmbedderShape, EncodedBatch, Encoder, ForkableMemory, PrefixCache};
use crate::engine::runner::{
    AdapterSchedule, AdapterSet, DefaultAdapters, KvSeqId, MediaRows, MemoryKind, Plan, Row, invoked_at,
};
use crate::error::{self, Error};
use crate::llama::context::batch::{Batch, Bounds};
use crate::llama::context::{RawContext, base_params, memory, positions::Positions, reason_of};
use crate::llama::host::{affinity::AffinityGuard, niceness, threads::ThreadPool};
use crate::llama::kernels::{self, DecodeHints};
use crate::llama::media::media_batch::{self, MediaBatch};
use crate::llama::model::{Model, adapters::Adapter, kinds::is_t5};
use crate::request::{AdapterScale, Prompt, Run, Token};

/// Maximum number of sequence ids for models where each id needs a whole state.
const MAX_STATES: u32 = 8;

/// Niceness relative to the threads that generate tokens; leaves the embedding threads about a third of a busy processor. With ten
/// more levels and permanently busy streams, a third as many embeddings were computed.
const NICENESS: i32 = 5;

/// Creates the embedding worker of `model`, which allocates nothing until the first request.
pub fn embedder(
    model: &Arc<Model>,
    config: &ResolvedConfig,
    adapters: DefaultAdapters,
    on_done: impl Fn() + Send + Sync + 'static,
) -> Embedder {
    let width = model.embedding_width(config.pooling);
    let n_ctx_max = model.reach(&config.settings.rope);
    let mut shape = EmbedderShape::new(config.pooling, width, model.n_vocab(), n_ctx_max, config.settings.n_ubatch);
    shape.takes_media = !model.is_encoder();
    if model.is_recurrent() || model.is_hybrid() {
        shape.n_sequences = MAX_STATES as usize;
    }
    let (model, config) = (Arc::clone(model), config.clone());
    let make = move || {
        let context = EmbeddingContext::new(&model, &config, shape, Arc::clone(&adapters))?;
        Ok(Box::new(context) as Box<dyn Encoder>)
    };
    Embedder::new(shape, make, on_done)
}

/// Returns whether the embedding of a text is bit-identical whatever is computed concurrently. Otherwise, on a CPU, the cosine of
/// two embeddings of one text is at least 0.999999; on GPUs nothing is promised.
pub fn has_repeatable_embeddings(model: &Model, config: &ResolvedConfig, engine_uses_own_kernels: bool) -> bool {
    let keeps_states = model.is_recurrent() || model.is_hybrid();
    // A prefix that left the window is recomputed from another cell on, so that its blocks begin elsewhere.
    let has_shared_windows = model.n_swa() > 0 && shares_prefixes(model, config.pooling);
    let is_mean_of_llama_cpp = config.pooling == Pooling::Mean && model.has_dense_layers;
    engine_uses_own_kernels
        && config.embedding_kernels == EnabledKernels::ALL
        && !model.is_encoder()
        && !(keeps_states || has_shared_windows || is_mean_of_llama_cpp)
}

/// Returns whether shared prefixes of texts are computed once: if an embedding depends on the last token's row alone.
fn shares_prefixes(model: &Model, pooling: Pooling) -> bool {
    let keeps_states = model.is_recurrent() || model.is_hybrid();
    !model.is_encoder() && !keeps_states && matches!(pooling, Pooling::Last | Pooling::Rank)
}

/// llama.cpp's fused kernel for CPUs sums V in 16 bits for up to 63 rows, and in 32 bits for more, so a large batch would change
/// the embedding of a text (cosine 0.9994; with quantised weights 0.99997 even without the fused kernel).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EmbeddingAttention {
    Own,
    /// llama.cpp's fused kernel with different 16-bit formats of K and V: then it uses no tiles and sums V in 32 bits.
    ByRow,
    /// Dense products. Sums depend on the position of a text in a batch.
    Dense,
    /// llama.cpp's choice for a GPU.
    Device,
}

impl EmbeddingAttention {
    fn new(model: &Model, enabled_kernels: EnabledKernels) -> Self {
        match enabled_kernels.attention {
            _ if memory::is_offloaded(model) => Self::Device,
            true => Self::Own,
            // Without a cache, K and V have the same format.
            false if model.is_encoder() => Self::Dense,
            false => Self::ByRow,
        }
    }
}

pub(super) struct EmbeddingContext {
    // Dropped first: it uses the threads.
    raw: RawContext,
    batch: Batch,
    media: MediaBatch,
    shape: EmbedderShape,
    /// llama.cpp would sum over all rows of a batch, so that rounding depends on the other texts.
    computes_mean: bool,
    /// The rounding of its attention would depend on other texts.
    is_single_text: bool,
    n_ctx: u32,
    enabled_kernels: EnabledKernels,
    /// T5's encoder has a KV memory too, and is computed by `llama_encode`.
    is_t5: bool,
    prefix_cache: Option<PrefixCache>,
    memory_kind: MemoryKind,
    seq_lens: Vec<u32>,
    adapters: DefaultAdapters,
    /// llama.cpp keeps buffers for as many rows.
    n_rows_max: usize,
    _pool: ThreadPool,
    _affinity: AffinityGuard,
}

impl EmbeddingContext {
    pub(super) fn new(
        model: &Arc<Model>,
        config: &ResolvedConfig,
        shape: EmbedderShape,
        adapters: DefaultAdapters,
    ) -> error::Result<Self> {
        let mut context = Self::make(model, config, shape, Arc::clone(&adapters))?;
        if !config.embedding_kernels.attention || memory::is_offloaded(model) || !context.leaves_attention()? {
            return Ok(context);
        }
        tracing::warn!("embeddings use llama.cpp's attention: Weft's kernels do not support every layer of this model");
        drop(context);
        let embedding_kernels = EnabledKernels { attention: false, ..config.embedding_kernels };
        Self::make(model, &ResolvedConfig { embedding_kernels, ..config.clone() }, shape, adapters)
    }

    fn leaves_attention(&mut self) -> error::Result<bool> {
        let token = self.raw.model.bos_token().unwrap_or(0);
        let (computed, counted) = kernels::counting(|| self.compute_rows(&[(KvSeqId(0), &[token, token])], token_index));
        computed.map_err(|reason| Error::Decode { reason })?;
        self.clear();
        Ok(counted.n_attentions_left > 0)
    }

    fn make(model: &Arc<Model>, config: &ResolvedConfig, shape: EmbedderShape, adapters: DefaultAdapters) -> error::Result<Self> {
        let (n_threads, enabled_kernels) = (config.n_threads_batch, config.embedding_kernels);
        niceness::compute(if model.is_encoder() { 0 } else { NICENESS });
        let shares = shares_prefixes(model, shape.pooling);
        let computes_mean = shape.pooling == Pooling::Mean && !model.has_dense_layers;
        let n_sequences = if shares { PrefixCache::n_ids(&shape) } else { shape.n_sequences };
        let n_ctx = if shares { PrefixCache::n_cells(&shape) } else { shape.n_batch };
        check_cells(model, config, n_ctx)?;
        let number = |n: usize| u32::try_from(n).expect("a shape is made of 32-bit numbers");
        let mut params = base_params(config);
        params.n_ctx = number(n_ctx);
        params.n_batch = number(shape.n_batch);
        // llama.cpp asserts that a batch fits in one `n_ubatch`, and outputs every row of it.
        (params.n_ubatch, params.n_outputs_max) = (params.n_batch, params.n_batch);
        params.n_seq_max = number(n_sequences);
        params.n_threads = n_threads.cast_signed();
        params.n_threads_batch = n_threads.cast_signed();
        params.embeddings = true;
        params.pooling_type = match shape.pooling {
            Pooling::None => sys::LLAMA_POOLING_TYPE_NONE,
            Pooling::Mean if computes_mean => sys::LLAMA_POOLING_TYPE_NONE,
            Pooling::Mean => sys::LLAMA_POOLING_TYPE_MEAN,
            Pooling::Cls => sys::LLAMA_POOLING_TYPE_CLS,
            Pooling::Last => sys::LLAMA_POOLING_TYPE_LAST,
            Pooling::Rank => sys::LLAMA_POOLING_TYPE_RANK,
        };
        let attention = EmbeddingAttention::new(model, enabled_kernels);
        params.flash_attn_type = match attention {
            EmbeddingAttention::Device => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
            EmbeddingAttention::Own | EmbeddingAttention::ByRow => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
            EmbeddingAttention::Dense => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        };
        if attention == EmbeddingAttention::ByRow {
            params.type_v = sys::GGML_TYPE_BF16;
        }
        let raw = RawContext::new(model, params)
            .map_err(|reason| Error::Decode { reason: format!("cannot create the context for embeddings: {reason}") })?;
        let pool = ThreadPool::new(n_threads, &config.settings.threads_batch, 0, enabled_kernels);
        let mut affinity = AffinityGuard::default();
        if let Some(cpus) = pool.caller_affinity() {
            affinity.pin(cpus);
        }
        // SAFETY: the context is alive, and the pool lives in `self` until after the context is freed.
        unsafe { sys::llama_attach_threadpool(raw.as_ptr(), pool.as_ptr(), pool.as_ptr()) };
        let bounds = Bounds {
            n_vocab: model.n_vocab(),
            n_seq_max: n_sequences,
            n_rows: shape.n_batch,
            n_outputs: shape.n_batch,
            is_by_id: false,
        };
        let media = MediaBatch::new(media_batch::Bounds {
            n_seq_max: n_sequences,
            n_rows: shape.n_batch,
            n_embd: model.n_embd_in(),
            n_positions: model.n_positions(),
            outputs_all: true,
        });
        let memory_kind = MemoryKind::for_embeddings(model.n_swa());
        let context = Self {
            raw,
            batch: Batch::new(bounds),
            media,
            shape,
            computes_mean,
            // T5 adds a bias to scores, which no fused attention supports.
            is_single_text: attention == EmbeddingAttention::Dense
                || is_t5(model.architecture()) && attention != EmbeddingAttention::Device,
            n_ctx: params.n_ctx,
            enabled_kernels,
            is_t5: is_t5(model.architecture()),
            prefix_cache: shares.then(|| PrefixCache::new(shape, memory_kind)),
            memory_kind,
            seq_lens: vec![0; n_sequences],
            adapters,
            n_rows_max: 0,
            _pool: pool,
            _affinity: affinity,
        };
        let EmbedderShape { pooling, width, n_longest, .. } = shape;
        tracing::info!(
            "embeddings: {width} numbers, pooling {}, texts of at most {n_longest} tokens, {} MiB",
            pooling.name(),
            context.n_bytes() >> 20
        );
        Ok(context)
    }

    fn active_adapters(&self) -> ActiveAdapters {
        let active = self.adapters.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ActiveAdapters::new(&active, self.raw.model.adapters())
    }

    fn compute_rows(&mut self, sequences: &[(KvSeqId, &[Token])], position_of: impl Fn(usize, u32) -> u32) -> Result<(), String> {
        let rows = sequences.iter().flat_map(|&(sequence, tokens)| {
            let seq_len = self.seq_lens[usize::from(sequence.0)];
            (seq_len..).zip(tokens).map(move |(position, &token)| Row { sequence, token, position, wants_logits: true })
        });
        let plan = Plan { rows: rows.collect(), ..Plan::default() };
        self.batch.fill(&plan, &self.seq_lens, position_of).map_err(|error| error.reason)?;
        let batch = self.batch.as_raw();
        // SAFETY: the memory lives as long as the context, and the batch is not changed before the decode has ended.
        let hints = unsafe { DecodeHints::new(self.batch.ids(), self.memory()) };
        self.run(plan.rows.len(), batch, Some(hints))?;
        for Row { sequence, .. } in plan.rows {
            self.seq_lens[usize::from(sequence.0)] += 1;
        }
        Ok(())
    }

    /// `hints` is `None` for rows of media that share positions.
    fn run(&mut self, n_rows: usize, batch: sys::llama_batch, hints: Option<DecodeHints>) -> Result<(), String> {
        self.check_memory(n_rows)?;
        self.n_rows_max = self.n_rows_max.max(n_rows);
        // SAFETY: the code that filled the batch checked every rule that llama.cpp asserts but one: all rows are outputs, and fit
        // in one `n_ubatch`. The arrays live in `self` and are only read.
        let compute = || unsafe {
            if self.is_t5 { sys::llama_encode(self.raw.as_ptr(), batch) } else { sys::llama_decode(self.raw.as_ptr(), batch) }
        };
        let computed = self.raw.compute(self.enabled_kernels, hints, compute);
        computed.map_err(|(code, errors)| reason_of(code, &errors, self.n_ctx, n_rows))
    }

    /// Rejects rows that would exceed free memory: Linux would grant it and end the process on use. Buffers stay after use.
    pub(super) fn check_memory(&self, n_rows: usize) -> Result<(), String> {
        if n_rows <= self.n_rows_max {
            return Ok(());
        }
        // A device's memory is allocated, or refused, when the context is created.
        // SAFETY: the context is alive.
        let n_compute = if memory::is_offloaded(&self.raw.model) { 0 } else { unsafe { weft_compute_bytes(self.raw.as_ptr()) } };
        let n_bytes_of = |n: usize| (n_compute / self.shape.n_batch * n) as u64 + self.n_output_bytes(n);
        check_free(n_bytes_of(n_rows) - n_bytes_of(self.n_rows_max), memory::free_on_host(), || {
            format!("a batch of {n_rows} tokens")
        })
    }

    /// Size of the output buffer, in bytes: llama.cpp reserves the logits of every row too, but an encoder never writes them.
    fn n_output_bytes(&self, n_rows: usize) -> u64 {
        let n_logits = if self.raw.model.is_encoder() { 0 } else { self.raw.model.n_vocab() };
        (n_rows * (n_logits + self.shape.width) * size_of::<f32>()) as u64
    }

    /// One decode per run, since a decode holds either tokens or media. Each run uses the adapters of its first token.
    fn compute_runs(&mut self, id: KvSeqId, prompt: &Prompt, schedule: &AdapterSchedule) -> Result<EncodedBatch, String> {
        let own = usize::from(id.0);
        let mut positions = vec![Positions::NONE; self.seq_lens.len()];
        let mut runs = Vec::new();
        for run in prompt.runs() {
            let (seq_len, n_rows) = (self.seq_lens[own], run.n_tokens());
            self.raw.use_adapters(schedule.at(seq_len))?;
            match run {
                Run::Tokens(tokens) => self.compute_rows(&[(id, tokens)], |id, index| positions[id].at(index))?,
                Run::Media(media) => {
                    let row_at = |(position, token)| Row { sequence: id, token, position, wants_logits: true };
                    let plan = Plan { rows: (seq_len..).zip(media.ids()).map(row_at).collect(), ..Plan::default() };
                    let whole = [MediaRows { rows: 0..n_rows, media: media.clone(), start: 0 }];
                    self.media.fill(&plan, &whole, &self.seq_lens, &positions)?;
                    let batch = self.media.as_raw();
                    // SAFETY: as for the batch of tokens.
                    let hints = unsafe { DecodeHints::new(self.media.ids(), self.memory()) };
                    // SAFETY: the context is alive, and its model uses causal attention by default.
                    unsafe { sys::llama_set_causal_attn(self.raw.as_ptr(), !media.sees_ahead()) };
                    let result = self.run(n_rows, batch, (!media.is_whole()).then_some(hints));
                    // SAFETY: as above.
                    unsafe { sys::llama_set_causal_attn(self.raw.as_ptr(), true) };
                    result?;
                    positions[own].push(seq_len, &**media);
                    self.seq_lens[own] += media.n_tokens();
                }
            }
            runs.push((n_rows, self.rows(id, 0, n_rows)));
        }
        Ok(EncodedBatch { embeddings: vec![pool(self.shape.pooling, runs)], n_computed: prompt.n_tokens() })
    }

    fn encode_alone(&mut self, texts: &[Vec<Token>]) -> Result<EncodedBatch, String> {
        let mut all = EncodedBatch::default();
        for texts in texts.chunks(if self.is_single_text { 1 } else { texts.len().max(1) }) {
            let sequences: Vec<(KvSeqId, &[Token])> = (0..).map(KvSeqId).zip(texts.iter().map(Vec::as_slice)).collect();
            self.compute_rows(&sequences, token_index)?;
            let mut first_row = 0;
            for (id, text) in sequences {
                all.embeddings.push(self.rows(id, first_row, text.len()));
                first_row += text.len();
            }
            all.n_computed += first_row;
            self.clear();
        }
        Ok(all)
    }

    fn encode_runs(&mut self, prompt: &Prompt, schedule: &AdapterSchedule) -> Result<EncodedBatch, String> {
        let prompt = &split_before(prompt, schedule.change());
        let Some(mut prefix_cache) = self.prefix_cache.take() else {
            let encoded = self.compute_runs(KvSeqId(0), prompt, schedule);
            self.clear();
            return encoded;
        };
        let id = prefix_cache.take_id(self, schedule.at(0));
        let encoded = self.compute_runs(id, prompt, schedule);
        prefix_cache.release_id(self, id);
        self.prefix_cache = Some(prefix_cache);
        encoded
    }

    /// Returns one row, or without pooling the `n` rows of the batch from `first` on.
    fn rows(&self, id: KvSeqId, first: usize, n: usize) -> Vec<f32> {
        let copy = |row: *mut f32| {
            assert!(!row.is_null(), "llama.cpp returned no embedding for a text that it has computed");
            // SAFETY: an embedding with this pooling has this width, and is not written before the next decode.
            unsafe { std::slice::from_raw_parts(row, self.shape.width) }
        };
        let number = |n: usize| i32::try_from(n).expect("a batch has fewer rows");
        // SAFETY: the last decode succeeded and output every row.
        let row = |row| copy(unsafe { sys::llama_get_embeddings_ith(self.raw.as_ptr(), number(row)) });
        if self.computes_mean {
            mean((first..first + n).map(row), self.shape.width)
        } else if self.shape.pooling == Pooling::None {
            (first..first + n).flat_map(row).copied().collect()
        } else {
            // SAFETY: the last decode succeeded and had rows of this sequence.
            copy(unsafe { sys::llama_get_embeddings_seq(self.raw.as_ptr(), i32::from(id.0)) }).to_vec()
        }
    }

    fn clear(&mut self) {
        let memory = self.memory();
        if !memory.is_null() {
            // SAFETY: the memory is alive.
            unsafe { sys::llama_memory_clear(memory, false) };
        }
        self.seq_lens.fill(0);
        if let Some(prefix_cache) = &mut self.prefix_cache {
            prefix_cache.clear();
        }
    }

    fn memory(&self) -> sys::llama_memory_t {
        self.raw.memory()
    }
}

impl ForkableMemory for EmbeddingContext {
    fn can_fork(&self, from: KvSeqId, seq_len: u32, n_tokens: u32) -> bool {
        // SAFETY: the context is alive, and the id is in range.
        let first = unsafe { sys::llama_memory_seq_pos_min(self.memory(), i32::from(from.0)) }.max(0).unsigned_abs();
        n_tokens <= seq_len && self.memory_kind.holds_window(first, n_tokens)
    }

    fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32) {
        let [seq_len, target_len] = [from, to].map(|id| self.seq_lens[usize::from(id.0)]);
        assert!(
            target_len == 0 && n_tokens <= seq_len,
            "cannot fork {n_tokens} of {seq_len} tokens to a sequence of {target_len}"
        );
        // SAFETY: both ids are in range, and the cache is unified, so that a part may be copied.
        unsafe { sys::llama_memory_seq_cp(self.memory(), i32::from(from.0), i32::from(to.0), 0, n_tokens.cast_signed()) };
        self.seq_lens[usize::from(to.0)] = n_tokens;
    }

    fn truncate(&mut self, id: KvSeqId, n_kept: u32) {
        let seq_len = &mut self.seq_lens[usize::from(id.0)];
        if n_kept >= *seq_len {
            return;
        }
        *seq_len = n_kept;
        let start = if n_kept == 0 { -1 } else { n_kept.cast_signed() };
        // SAFETY: the id is in range.
        let is_done = unsafe { sys::llama_memory_seq_rm(self.memory(), i32::from(id.0), start, -1) };
        assert!(is_done, "every memory can remove a whole sequence, and only memories that can be cut are cut");
    }

    fn compute(&mut self, rows: &[(KvSeqId, &[Token])]) -> Result<(), String> {
        self.compute_rows(rows, token_index)
    }

    fn embedding(&self, id: KvSeqId) -> Vec<f32> {
        self.rows(id, 0, 1)
    }
}

impl EmbeddingContext {
    fn encode_with(&mut self, adapter_set: &AdapterSet, texts: &[Vec<Token>]) -> Result<EncodedBatch, String> {
        self.raw.use_adapters(adapter_set)?;
        let Some(mut prefix_cache) = self.prefix_cache.take() else {
            return self.encode_alone(texts);
        };
        let encoded = prefix_cache.encode(self, adapter_set, texts);
        self.prefix_cache = Some(prefix_cache);
        encoded
    }

    fn encode_texts(&mut self, texts: &[Vec<Token>]) -> Result<EncodedBatch, String> {
        let active = self.active_adapters();
        let (invoking, others): (Vec<usize>, Vec<usize>) =
            (0..texts.len()).partition(|&i| active.schedule(texts[i].iter().copied()).change().is_some());
        if invoking.is_empty() {
            return self.encode_with(&active.unconditional, texts);
        }
        let mut all = EncodedBatch { embeddings: vec![Vec::new(); texts.len()], n_computed: 0 };
        if !others.is_empty() {
            let plain_texts: Vec<Vec<Token>> = others.iter().map(|&i| texts[i].clone()).collect();
            let encoded = self.encode_with(&active.unconditional, &plain_texts)?;
            all.n_computed += encoded.n_computed;
            others.into_iter().zip(encoded.embeddings).for_each(|(i, embedding)| all.embeddings[i] = embedding);
        }
        for i in invoking {
            let mut encoded =
                self.encode_runs(&Prompt::from_tokens(texts[i].clone()), &active.schedule(texts[i].iter().copied()))?;
            all.n_computed += encoded.n_computed;
            all.embeddings[i] = encoded.embeddings.swap_remove(0);
        }
        Ok(all)
    }
}

impl Encoder for EmbeddingContext {
    // A failure leaves the contents of the context unknown.
    fn encode(&mut self, texts: &[Vec<Token>]) -> Result<EncodedBatch, String> {
        self.encode_texts(texts).inspect_err(|_| self.clear())
    }

    fn encode_mixed(&mut self, prompt: &Prompt) -> Result<EncodedBatch, String> {
        let schedule = self.active_adapters().schedule(prompt.ids());
        self.encode_runs(prompt, &schedule).inspect_err(|_| self.clear())
    }

    fn n_bytes(&self) -> u64 {
        // SAFETY: the context is alive.
        let n_bytes = unsafe { weft_context_bytes(self.raw.as_ptr()) } as u64;
        n_bytes + self.n_output_bytes(self.n_rows_max)
    }
}

struct ActiveAdapters {
    unconditional: AdapterSet,
    /// All adapters and the invocation of the activated one (aLoRA); at most one is active.
    activated: Option<(AdapterSet, Vec<Token>)>,
}

impl ActiveAdapters {
    fn new(active: &[AdapterScale], loaded: &[Adapter]) -> Self {
        let invocation = |id: u32| loaded.get(id as usize).map_or(&[][..], |adapter| &adapter.invocation);
        let all = || active.iter().copied().filter(|&(_, scale)| scale != 0.0);
        let unconditional = AdapterSet::with_adapters(all().filter(|&(id, _)| invocation(id).is_empty()));
        let invoked = all().map(|(id, _)| invocation(id)).find(|invocation| !invocation.is_empty());
        Self { unconditional, activated: invoked.map(|invocation| (AdapterSet::with_adapters(all()), invocation.to_vec())) }
    }

    fn schedule(&self, tokens: impl IntoIterator<Item = Token>) -> AdapterSchedule {
        let invoked_at_index =
            self.activated.as_ref().and_then(|(with, invocation)| Some((invoked_at(tokens, invocation)?, with)));
        match invoked_at_index {
            Some((index, with)) => AdapterSchedule::changing(self.unconditional.clone(), index, with.clone()),
            None => self.unconditional.clone().into(),
        }
    }
}

fn split_before(prompt: &Prompt, index: Option<u32>) -> Prompt {
    let (mut parts, mut start) = (Prompt::default(), 0);
    for run in prompt.runs() {
        let offset = index.and_then(|index| (index as usize).checked_sub(start));
        match (run, offset) {
            (Run::Tokens(tokens), Some(n)) if n < tokens.len() => {
                parts.push(Run::Tokens(tokens[..n].to_vec()));
                parts.push(Run::Tokens(tokens[n..].to_vec()));
            }
            _ => parts.push(run.clone()),
        }
        start += run.n_tokens();
    }
    parts
}

fn token_index(_: usize, index: u32) -> u32 {
    index
}

#[expect(clippy::cast_possible_truncation, reason = "the mean of single-precision numbers is one")]
fn mean<'a>(rows: impl ExactSizeIterator<Item = &'a [f32]>, width: usize) -> Vec<f32> {
    let n_rows = u32::try_from(rows.len()).expect("a batch has fewer rows");
    let mut sums = vec![0.0_f64; width];
    for row in rows {
        sums.iter_mut().zip(row).for_each(|(sum, &number)| *sum += f64::from(number));
    }
    sums.into_iter().map(|sum| (sum / f64::from(n_rows)) as f32).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a context has fewer cells than 2²⁴")]
fn pool(pooling: Pooling, runs: Vec<(usize, Vec<f32>)>) -> Vec<f32> {
    let n: usize = runs.iter().map(|(n_rows, _)| n_rows).sum();
    let runs = runs.into_iter();
    match pooling {
        Pooling::None => runs.flat_map(|(_, rows)| rows).collect(),
        Pooling::Cls => runs.map(|(_, first)| first).next().unwrap_or_default(),
        Pooling::Last | Pooling::Rank => runs.map(|(_, last)| last).next_back().unwrap_or_default(),
        Pooling::Mean => {
            let mut sums = Vec::new();
            for (n_rows, mean) in runs {
                sums.resize(mean.len(), 0.0);
                sums.iter_mut().zip(mean).for_each(|(sum, mean)| *sum += mean * n_rows as f32);
            }
            sums.iter().map(|sum: &f32| sum / n as f32).collect()
        }
    }
}

fn check_cells(model: &Model, config: &ResolvedConfig, n_ctx: usize) -> error::Result<()> {
    // llama.cpp stores them in 16 bits by default. Of encoders, only T5 has cells.
    let has_cells = !model.is_encoder() || is_t5(model.architecture());
    let n_bytes_each = if has_cells { model.kv_bytes_per_token(KvType::F16, KvType::F16) } else { 0 };
    let n_free = memory::free_bytes(model, config.settings.offload_kqv);
    let result =
        check_free(n_bytes_each.saturating_mul(n_ctx as u64), n_free, || format!("a context of {n_ctx} tokens for embeddings"));
    result.map_err(|reason| Error::Decode { reason })
}

fn check_free(n_bytes: u64, n_free: u64, purpose: impl FnOnce() -> String) -> Result<(), String> {
    if n_bytes <= n_free {
        return Ok(());
    }
    let purpose = purpose();
    Err(format!("{purpose} needs {n_bytes} bytes of memory, but only {n_free} are free; set a smaller n_ctx or cache_ram"))
}

unsafe extern "C" {
    fn weft_context_bytes(context: *const sys::llama_context) -> usize;
    fn weft_compute_bytes(context: *const sys::llama_context) -> usize;
}
