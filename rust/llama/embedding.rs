//! The context that makes vectors: a second one over the weights of a model, or the only one of an encoder.

use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};

use llama_cpp_sys_2 as sys;

use crate::config::{ComputeConfig, EnabledKernels, EngineConfig, KvType, Pooling};
use crate::embedding::{Embedder, EmbedderShape, EncodedBatch, Encoder, ForkableMemory, PrefixCache};
use crate::engine::runner::{
    AdapterSchedule, AdapterSet, DefaultAdapters, KvSeqId, MediaRows, MemoryKind, Plan, Row, invoked_at,
};
use crate::error::{Error, Result};
use crate::llama::adapters::{self, Adapter};
use crate::llama::affinity::AffinityGuard;
use crate::llama::batch::{Batch, Bounds};
use crate::llama::context::{make, reason_of};
use crate::llama::kernels;
use crate::llama::kinds::is_t5;
use crate::llama::logging;
use crate::llama::media_batch::{self, MediaBatch};
use crate::llama::memory;
use crate::llama::model::Model;
use crate::llama::niceness;
use crate::llama::positions::Positions;
use crate::llama::rope;
use crate::llama::start::machine;
use crate::llama::threads::{self, ThreadPool};
use crate::request::{AdapterScale, Prompt, Run, Token};

/// Sequence ids where each takes a whole state.
const MAX_STATES: u32 = 8;

/// How far the threads give way: by five levels more than those that write texts, which is about a third of a busy processor. With
/// ten more, a model whose streams never rest made a third as many vectors.
const NICENESS: i32 = 5;

/// Makes the worker for vectors of `model`. It takes nothing until it is first asked. `on_done` is called on its thread whenever
/// requests are answered. `adapters` are those of the engine that are on when a batch is computed.
///
/// # Errors
/// [`Error::InvalidConfig`] where the model cannot be pooled as `config` says.
pub fn embedder(
    model: &Arc<Model>,
    config: &EngineConfig,
    choice: &ComputeConfig,
    adapters: DefaultAdapters,
    on_done: impl Fn() + Send + Sync + 'static,
) -> Result<Embedder> {
    let pooling = config.pooling.unwrap_or_else(|| model.pooling());
    if pooling == Pooling::Rank && !model.has_head() {
        let message = "pooling is rank, but the model has no classifier that scores a text; load a reranker".to_owned();
        return Err(Error::InvalidConfig { param: "pooling", message });
    }
    let width = model.vector_width(pooling);
    let used = own_kernels(model, config);
    let mut shape = EmbedderShape::new(pooling, width, model.n_vocab(), model.reach(&config.rope), config.n_ubatch);
    shape.takes_media = !model.is_encoder();
    if model.is_recurrent() || model.is_hybrid() {
        shape.n_sequences = MAX_STATES as usize;
    }
    let (model, choice) = (Arc::clone(model), choice.clone());
    let config = EngineConfig { n_threads: Some(choice.n_threads_batch), used, ..config.clone() };
    let make = move || {
        let context = EmbeddingContext::new(Arc::clone(&model), &config, shape, Arc::clone(&adapters))?;
        Ok(Box::new(context) as Box<dyn Encoder>)
    };
    Ok(Embedder::new(shape, make, on_done))
}

/// Returns whether a text has the same embedding, bit by bit, whatever is computed concurrently. Elsewhere on a CPU the cosine of
/// two embeddings of one text is at least 0.999999; of GPUs nothing is promised. `engine_uses_own_kernels` is [`Engine::uses_own_kernels`] of an engine over the same
/// model with the same configuration.
///
/// [`Engine::uses_own_kernels`]: crate::engine::Engine::uses_own_kernels
#[must_use]
pub fn has_repeatable_embeddings(model: &Model, config: &EngineConfig, engine_uses_own_kernels: bool) -> bool {
    let pooling = config.pooling.unwrap_or_else(|| model.pooling());
    let keeps_states = model.is_recurrent() || model.is_hybrid();
    // A prefix that a window has left is computed again from another cell on, where its blocks begin elsewhere.
    let has_shared_windows = model.n_swa() > 0 && shares_prefixes(model, pooling);
    let is_mean_of_llama_cpp = pooling == Pooling::Mean && model.has_dense_layers();
    engine_uses_own_kernels
        && own_kernels(model, config) == EnabledKernels::ALL
        && !model.is_encoder()
        && !(keeps_states || has_shared_windows || is_mean_of_llama_cpp)
}

/// The kernels of ours that compute embeddings: those for text generation, over a cache of 16 bits.
fn own_kernels(model: &Model, config: &EngineConfig) -> EnabledKernels {
    let config = EngineConfig { type_k: KvType::F16, type_v: KvType::F16, ..config.clone() };
    config.used_for(&model.facts(config.type_k, config.type_v), &machine(model, &config))
}

/// Whether what texts begin with in common is computed once: where an embedding follows from the last token alone.
fn shares_prefixes(model: &Model, pooling: Pooling) -> bool {
    let keeps_states = model.is_recurrent() || model.is_hybrid();
    !model.is_encoder() && !keeps_states && matches!(pooling, Pooling::Last | Pooling::Rank)
}

/// What computes the attention of embeddings.
///
/// llama.cpp's fused kernel for CPUs sums V in 16 bits for up to 63 rows, and in tiles and 32 bits for more. So a large batch would
/// change the embedding of a text (cosine 0.9994). Where weights are quantised, activations are rounded to 8 bits, which amplifies
/// even differences in the last bit (cosine 0.99997 without the fused kernel).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttentionOfTexts {
    /// Ours, which computes each row by itself.
    Own,
    /// llama.cpp's fused kernel, with V of another 16-bit format than K: then it has no tiles, and sums V in 32 bits.
    ByRow,
    /// Dense products. Sums depend on where a text is in a batch.
    Dense,
    /// The choice of llama.cpp for a GPU.
    OfDevice,
}

impl AttentionOfTexts {
    fn new(model: &Model, used: EnabledKernels) -> Self {
        match used.attention {
            _ if memory::is_offloaded(model) => Self::OfDevice,
            true => Self::Own,
            // Without a cache the formats of K and V are the same.
            false if model.is_encoder() => Self::Dense,
            false => Self::ByRow,
        }
    }
}

/// A context whose decodes put out vectors. Stays on the thread that made it.
pub(super) struct EmbeddingContext {
    raw: NonNull<sys::llama_context>,
    batch: Batch,
    media: MediaBatch,
    shape: EmbedderShape,
    /// Whether the mean of a text's rows is computed here. llama.cpp sums over all rows of a batch, so that the rounding of a sum
    /// depends on the other texts.
    computes_mean: bool,
    /// Whether a decode has a single text, since the rounding of its attention would depend on the other texts.
    takes_texts_singly: bool,
    n_ctx: u32,
    used: EnabledKernels,
    /// T5's encoder has a memory as well, and a call of its own.
    encodes: bool,
    /// What the sequences hold, where they share cells of what they begin with.
    beginnings: Option<PrefixCache>,
    memory_kind: MemoryKind,
    /// How many tokens each sequence holds.
    n_held: Vec<u32>,
    /// The adapters that are on.
    variant: AdapterSet,
    adapters: DefaultAdapters,
    /// The most rows that were computed at once: llama.cpp keeps room for so many.
    n_rows_most: usize,
    // Dropped after `raw` is freed, which uses them.
    _threads: ThreadPool,
    /// Keeps the thread that made it, which is the one that computes, where none of the others is.
    _stay: AffinityGuard,
    model: Arc<Model>,
}

impl EmbeddingContext {
    /// With `n_threads` of `config`, which are where and how those of prompts are, but for their priority.
    pub(super) fn new(model: Arc<Model>, config: &EngineConfig, shape: EmbedderShape, adapters: DefaultAdapters) -> Result<Self> {
        let mut context = Self::make(Arc::clone(&model), config, shape, Arc::clone(&adapters))?;
        if !config.used.attention || memory::is_offloaded(&model) || !context.leaves_attention()? {
            return Ok(context);
        }
        tracing::warn!("weft's attention does not cover all of this model: llama.cpp computes that of embeddings");
        drop(context);
        let config = EngineConfig { used: EnabledKernels { attention: false, ..config.used }, ..config.clone() };
        Self::make(model, &config, shape, adapters)
    }

    /// Returns whether an attention of a short text is left to llama.cpp's fused kernel.
    fn leaves_attention(&mut self) -> Result<bool> {
        let token = self.model.bos_token().unwrap_or(0);
        let (computed, counted) = kernels::counting(|| self.compute_rows(&[(KvSeqId(0), &[token, token])]));
        computed.map_err(|reason| Error::Decode { reason })?;
        self.forget();
        Ok(counted.n_attentions_left > 0)
    }

    fn make(model: Arc<Model>, config: &EngineConfig, shape: EmbedderShape, adapters: DefaultAdapters) -> Result<Self> {
        let (used, n_threads) = (config.used, config.n_threads.unwrap_or_else(threads::n_cores));
        niceness::compute(if model.is_encoder() { 0 } else { NICENESS });
        let shares = shares_prefixes(&model, shape.pooling);
        let computes_mean = shape.pooling == Pooling::Mean && !model.has_dense_layers();
        let n_sequences = if shares { PrefixCache::n_ids(&shape) } else { shape.n_sequences };
        let n_ctx = if shares { PrefixCache::n_cells(&shape) } else { shape.n_batch };
        check_cells(&model, config, n_ctx)?;
        let number = |n: usize| u32::try_from(n).expect("a shape is made of 32-bit numbers");
        // SAFETY: plain data.
        let mut params = unsafe { sys::llama_context_default_params() };
        params.n_ctx = number(n_ctx);
        // llama.cpp asserts that all of a batch is computed at once, and puts out every row of it.
        (params.n_batch, params.n_ubatch, params.n_outputs_max) =
            (number(shape.n_batch), number(shape.n_batch), number(shape.n_batch));
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
        let attention = AttentionOfTexts::new(&model, used);
        params.flash_attn_type = match attention {
            AttentionOfTexts::OfDevice => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
            AttentionOfTexts::Own | AttentionOfTexts::ByRow => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
            AttentionOfTexts::Dense => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        };
        if attention == AttentionOfTexts::ByRow {
            params.type_v = sys::GGML_TYPE_BF16;
        }
        params.kv_unified = true;
        params.swa_full = true;
        params.no_perf = true;
        params.offload_kqv = config.offload_kqv;
        params.op_offload = config.op_offload;
        rope::apply(&config.rope, &mut params);
        let (raw, errors) = make(&model, params);
        let raw = raw.ok_or_else(|| {
            let reason = logging::reason(&errors).unwrap_or_else(|| "llama.cpp gave no reason".to_owned());
            Error::Decode { reason: format!("there is no context for vectors: {reason}") }
        })?;
        let threads = ThreadPool::new(n_threads, &config.threads_batch, 0, used);
        let mut stay = AffinityGuard::default();
        if let Some(place) = threads.place() {
            stay.at(place);
        }
        // SAFETY: the context is alive, and the pool lives in `self` until after the context is freed.
        unsafe { sys::llama_attach_threadpool(raw.as_ptr(), threads.as_ptr(), threads.as_ptr()) };
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
            puts_out: true,
        });
        let memory_kind = MemoryKind::for_embeddings(model.n_swa());
        let context = Self {
            raw,
            batch: Batch::new(bounds),
            media,
            shape,
            computes_mean,
            // T5 adds a bias to scores, which no fused attention can.
            takes_texts_singly: attention == AttentionOfTexts::Dense
                || is_t5(model.architecture()) && attention != AttentionOfTexts::OfDevice,
            n_ctx: params.n_ctx,
            used,
            encodes: is_t5(model.architecture()),
            beginnings: shares.then(|| PrefixCache::new(shape, memory_kind)),
            memory_kind,
            n_held: vec![0; n_sequences],
            variant: AdapterSet::default(),
            adapters,
            n_rows_most: 0,
            _threads: threads,
            _stay: stay,
            model,
        };
        let EmbedderShape { pooling, width, n_longest, .. } = shape;
        tracing::info!(
            "vectors: {width} numbers, pooling {}, texts of {n_longest} tokens, {} MiB",
            pooling.name(),
            context.n_bytes() >> 20
        );
        Ok(context)
    }

    /// The adapters that are on now.
    fn adapters_on(&self) -> ActiveAdapters {
        let on = self.adapters.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ActiveAdapters::of(&on, self.model.adapters())
    }

    /// Computes with these adapters from now on.
    fn use_variant(&mut self, variant: &AdapterSet) -> std::result::Result<(), String> {
        if *variant == self.variant {
            return Ok(());
        }
        // SAFETY: the context is alive, and of this model.
        unsafe { adapters::turn_on(self.raw, self.model.adapters(), variant) }?;
        self.variant = variant.clone();
        Ok(())
    }

    /// Computes tokens after what the sequences hold.
    fn compute_rows(&mut self, wanted: &[(KvSeqId, &[Token])]) -> std::result::Result<(), String> {
        let rows = wanted.iter().flat_map(|&(sequence, tokens)| {
            let n_held = self.n_held[usize::from(sequence.0)];
            (n_held..).zip(tokens).map(move |(position, &token)| Row { sequence, token, position, wants_logits: true })
        });
        let plan = Plan { rows: rows.collect(), ..Plan::default() };
        self.batch.fill(&plan, &self.n_held, |_, place| place).map_err(|error| error.reason)?;
        self.run_tokens(plan.rows.len())?;
        for Row { sequence, .. } in plan.rows {
            self.n_held[usize::from(sequence.0)] += 1;
        }
        Ok(())
    }

    /// Computes the `n_rows` tokens that the batch was filled with.
    fn run_tokens(&mut self, n_rows: usize) -> std::result::Result<(), String> {
        let batch = self.batch.as_raw();
        // SAFETY: the memory lives as long as the context, and the batch is not changed before the decode has ended.
        let known = unsafe { kernels::DecodeHints::new(self.batch.ids(), self.memory()) };
        self.run(n_rows, batch, Some(known))
    }

    /// Computes the `n_rows` of a batch. `known` describes these rows; `None` for rows of media that share positions.
    fn run(
        &mut self,
        n_rows: usize,
        batch: sys::llama_batch,
        known: Option<kernels::DecodeHints>,
    ) -> std::result::Result<(), String> {
        self.check_memory(n_rows)?;
        self.n_rows_most = self.n_rows_most.max(n_rows);
        // SAFETY: whoever filled the batch checked every rule that llama.cpp asserts but one: all rows are put out, and fit in one
        // `n_ubatch`. The arrays live in `self` and are only read.
        let compute = || unsafe {
            if self.encodes { sys::llama_encode(self.raw.as_ptr(), batch) } else { sys::llama_decode(self.raw.as_ptr(), batch) }
        };
        let (code, errors) = logging::errors_during(|| kernels::deciding(self.used, known, compute));
        if code != 0 {
            return Err(reason_of(code, &errors, self.n_ctx, n_rows));
        }
        // SAFETY: the context is alive.
        unsafe { sys::llama_synchronize(self.raw.as_ptr()) };
        Ok(())
    }

    /// Refuses rows that there is no memory for: Linux would grant it and end the process when it is used. What was used once stays.
    pub(super) fn check_memory(&self, n_rows: usize) -> std::result::Result<(), String> {
        if n_rows <= self.n_rows_most {
            return Ok(());
        }
        // A device's memory is taken when the context is made, or refused.
        // SAFETY: the context is alive.
        let n_compute = if memory::is_offloaded(&self.model) { 0 } else { unsafe { weft_compute_bytes(self.raw.as_ptr()) } };
        let n_bytes_of = |n: usize| (n_compute / self.shape.n_batch * n) as u64 + self.n_output_bytes(n);
        check(n_bytes_of(n_rows) - n_bytes_of(self.n_rows_most), memory::free_on_host(), || {
            format!("computing {n_rows} tokens of texts together")
        })
    }

    /// Bytes of the rows that are put out: llama.cpp keeps room for the logits of every row too; those of an encoder, which has none,
    /// are never touched.
    fn n_output_bytes(&self, n_rows: usize) -> u64 {
        let n_logits = if self.model.is_encoder() { 0 } else { self.model.n_vocab() };
        (n_rows * (n_logits + self.shape.width) * size_of::<f32>()) as u64
    }

    /// Computes a text in the sequence `id`, which holds nothing: run by run, as no decode takes both tokens and pictures. Each run is
    /// computed as its first token is. Puts together what each is pooled to.
    fn compute_runs(
        &mut self,
        id: KvSeqId,
        prompt: &Prompt,
        variants: &AdapterSchedule,
    ) -> std::result::Result<EncodedBatch, String> {
        let own = usize::from(id.0);
        let mut positions = vec![Positions::NONE; self.n_held.len()];
        let (mut rows, n) = (TextEmbedding::new(self.shape.pooling), prompt.n_tokens());
        for run in prompt.runs() {
            self.use_variant(variants.at(self.n_held[own]))?;
            let place = |token, position| Row { sequence: id, token, position, wants_logits: true };
            let tokens = match run {
                Run::Tokens(tokens) => tokens.clone(),
                Run::Media(media) => media.ids().collect(),
            };
            let plan = Plan {
                rows: tokens.into_iter().zip(self.n_held[own]..).map(|(token, at)| place(token, at)).collect(),
                ..Plan::default()
            };
            let n_rows = plan.rows.len();
            match run {
                Run::Tokens(_) => {
                    let filled = self.batch.fill(&plan, &self.n_held, |id, place| positions[id].at(place));
                    filled.map_err(|error| error.reason)?;
                    self.run_tokens(n_rows)?;
                }
                Run::Media(media) => {
                    let whole = [MediaRows { rows: 0..n_rows, media: media.clone(), start: 0 }];
                    self.media.fill(&plan, &whole, &self.n_held, &positions)?;
                    let batch = self.media.as_raw();
                    // SAFETY: as of the tokens of a batch.
                    let known = unsafe { kernels::DecodeHints::new(self.media.ids(), self.memory()) };
                    // SAFETY: the context is alive, and its model is one whose rows see none after them.
                    unsafe { sys::llama_set_causal_attn(self.raw.as_ptr(), !media.sees_ahead()) };
                    let ran = self.run(n_rows, batch, (!media.is_whole()).then_some(known));
                    // SAFETY: as above.
                    unsafe { sys::llama_set_causal_attn(self.raw.as_ptr(), true) };
                    ran?;
                    positions[own].push(self.n_held[own], &**media);
                }
            }
            self.n_held[own] += u32::try_from(n_rows).expect("it fits in the context");
            rows.add(n_rows, self.rows(id, 0, n_rows));
        }
        Ok(EncodedBatch { vectors: vec![rows.pooled(n)], n_computed: n })
    }

    /// Computes texts that share nothing, and forgets them.
    fn encode_alone(&mut self, texts: &[Vec<Token>]) -> std::result::Result<EncodedBatch, String> {
        let wanted: Vec<(KvSeqId, &[Token])> = (0..).map(KvSeqId).zip(texts.iter().map(Vec::as_slice)).collect();
        let computed = self.compute_rows(&wanted);
        let vectors = computed.map(|()| {
            let mut first_row = 0;
            let rows = wanted.iter().map(|&(id, text)| {
                let rows = self.rows(id, first_row, text.len());
                first_row += text.len();
                rows
            });
            rows.collect()
        });
        self.forget();
        Ok(EncodedBatch { vectors: vectors?, n_computed: texts.iter().map(Vec::len).sum() })
    }

    /// Computes one text per decode.
    fn encode_singly(&mut self, texts: &[Vec<Token>]) -> std::result::Result<EncodedBatch, String> {
        let mut all = EncodedBatch::default();
        for text in texts {
            let EncodedBatch { vectors, n_computed } = self.encode_alone(std::slice::from_ref(text))?;
            all.vectors.extend(vectors);
            all.n_computed += n_computed;
        }
        Ok(all)
    }

    /// Computes in a sequence of its own, and forgets that.
    fn encode_runs(&mut self, prompt: &Prompt, variants: &AdapterSchedule) -> std::result::Result<EncodedBatch, String> {
        let prompt = &cut(prompt, variants.change());
        let Some(mut beginnings) = self.beginnings.take() else {
            let encoded = self.compute_runs(KvSeqId(0), prompt, variants);
            self.forget();
            return encoded;
        };
        let id = beginnings.take_id(self, variants.at(0));
        let encoded = self.compute_runs(id, prompt, variants);
        beginnings.release_id(self, id);
        self.beginnings = Some(beginnings);
        encoded
    }

    /// The vectors of a text: one row, or `n` of the batch from `first` on where nothing is pooled.
    fn rows(&self, id: KvSeqId, first: usize, n: usize) -> Vec<f32> {
        let copy = |row: *mut f32| {
            assert!(!row.is_null(), "llama.cpp has no vector for a text that it has computed");
            // SAFETY: a vector of this pooling is as wide, and is not written before the next decode.
            unsafe { std::slice::from_raw_parts(row, self.shape.width) }
        };
        let number = |n: usize| i32::try_from(n).expect("a batch has fewer rows");
        // SAFETY: the last decode succeeded and put out every row.
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

    /// Forgets everything.
    fn forget(&mut self) {
        let memory = self.memory();
        if !memory.is_null() {
            // SAFETY: the memory is alive.
            unsafe { sys::llama_memory_clear(memory, false) };
        }
        self.n_held.fill(0);
        if let Some(beginnings) = &mut self.beginnings {
            beginnings.clear();
        }
    }

    /// Null for an encoder.
    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is alive.
        unsafe { sys::llama_get_memory(self.raw.as_ptr()) }
    }
}

impl ForkableMemory for EmbeddingContext {
    fn can_fork(&self, from: KvSeqId, n_held: u32, n_tokens: u32) -> bool {
        // SAFETY: the context is alive, and the id is in range.
        let first = unsafe { sys::llama_memory_seq_pos_min(self.memory(), i32::from(from.0)) }.max(0).unsigned_abs();
        n_tokens <= n_held && self.memory_kind.holds_window(first, n_tokens)
    }

    fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32) {
        let [n_held, n_held_of_new] = [from, to].map(|id| self.n_held[usize::from(id.0)]);
        assert!(n_held_of_new == 0 && n_tokens <= n_held, "a fork of what is there, to where nothing is");
        // SAFETY: both ids are in range, and the pool is unified, so that a part may be copied.
        unsafe { sys::llama_memory_seq_cp(self.memory(), i32::from(from.0), i32::from(to.0), 0, n_tokens.cast_signed()) };
        self.n_held[usize::from(to.0)] = n_tokens;
    }

    fn truncate(&mut self, id: KvSeqId, n_kept: u32) {
        let n_held = &mut self.n_held[usize::from(id.0)];
        if n_kept >= *n_held {
            return;
        }
        *n_held = n_kept;
        let start = if n_kept == 0 { -1 } else { n_kept.cast_signed() };
        // SAFETY: the id is in range.
        let is_done = unsafe { sys::llama_memory_seq_rm(self.memory(), i32::from(id.0), start, -1) };
        assert!(is_done, "every memory can forget a whole sequence, and only one that can be cut is told to cut");
    }

    fn compute(&mut self, rows: &[(KvSeqId, &[Token])]) -> std::result::Result<(), String> {
        self.compute_rows(rows)
    }

    fn vector(&self, id: KvSeqId) -> Vec<f32> {
        self.rows(id, 0, 1)
    }
}

impl EmbeddingContext {
    /// Computes texts with the same adapters from their beginnings to their ends.
    fn encode_alike(&mut self, variant: &AdapterSet, texts: &[Vec<Token>]) -> std::result::Result<EncodedBatch, String> {
        self.use_variant(variant)?;
        let Some(mut beginnings) = self.beginnings.take() else {
            return if self.takes_texts_singly { self.encode_singly(texts) } else { self.encode_alone(texts) };
        };
        let encoded = beginnings.encode(self, variant, texts);
        self.beginnings = Some(beginnings);
        encoded
    }

    /// Computes texts as each of them is to be, those that share their adapters together.
    fn encode_texts(&mut self, texts: &[Vec<Token>]) -> std::result::Result<EncodedBatch, String> {
        let on = self.adapters_on();
        let (invoking, others): (Vec<usize>, Vec<usize>) =
            (0..texts.len()).partition(|&i| on.variants(texts[i].iter().copied()).change().is_some());
        if invoking.is_empty() {
            return self.encode_alike(&on.plain, texts);
        }
        let mut all = EncodedBatch { vectors: vec![Vec::new(); texts.len()], n_computed: 0 };
        if !others.is_empty() {
            let alike: Vec<Vec<Token>> = others.iter().map(|&i| texts[i].clone()).collect();
            let encoded = self.encode_alike(&on.plain, &alike)?;
            all.n_computed += encoded.n_computed;
            others.into_iter().zip(encoded.vectors).for_each(|(i, vector)| all.vectors[i] = vector);
        }
        for i in invoking {
            let mut encoded = self.encode_runs(&Prompt::from_tokens(texts[i].clone()), &on.variants(texts[i].iter().copied()))?;
            all.n_computed += encoded.n_computed;
            all.vectors[i] = encoded.vectors.swap_remove(0);
        }
        Ok(all)
    }

    /// What it holds is no longer known where a decode has failed.
    fn checked(&mut self, encoded: std::result::Result<EncodedBatch, String>) -> std::result::Result<EncodedBatch, String> {
        if encoded.is_err() {
            self.forget();
        }
        encoded
    }
}

impl Encoder for EmbeddingContext {
    fn encode(&mut self, texts: &[Vec<Token>]) -> std::result::Result<EncodedBatch, String> {
        let encoded = self.encode_texts(texts);
        self.checked(encoded)
    }

    fn encode_mixed(&mut self, prompt: &Prompt) -> std::result::Result<EncodedBatch, String> {
        let variants = self.adapters_on().variants(prompt.ids());
        let encoded = self.encode_runs(prompt, &variants);
        self.checked(encoded)
    }

    fn n_bytes(&self) -> u64 {
        // SAFETY: the context is alive.
        let n_bytes = unsafe { weft_context_bytes(self.raw.as_ptr()) } as u64;
        n_bytes + self.n_output_bytes(self.n_rows_most)
    }
}

/// The adapters that are on, and from which tokens on an activated one of them counts.
struct ActiveAdapters {
    /// Those that count in every text.
    plain: AdapterSet,
    /// All of them with what invokes the activated one (aLoRA), of which there is at most one.
    activated: Option<(AdapterSet, Vec<Token>)>,
}

impl ActiveAdapters {
    /// Of those that are on, with their scales, among those that are `known`.
    fn of(on: &[AdapterScale], known: &[Adapter]) -> Self {
        let invocation = |id: u32| known.get(id as usize).map_or(&[][..], |adapter| &adapter.invocation);
        let all = || on.iter().copied().filter(|&(_, scale)| scale != 0.0);
        let plain = AdapterSet::with_adapters(all().filter(|&(id, _)| invocation(id).is_empty()));
        let invoked = all().map(|(id, _)| invocation(id)).find(|invocation| !invocation.is_empty());
        Self { plain, activated: invoked.map(|invocation| (AdapterSet::with_adapters(all()), invocation.to_vec())) }
    }

    /// How these tokens are computed.
    fn variants(&self, tokens: impl IntoIterator<Item = Token>) -> AdapterSchedule {
        let place = self.activated.as_ref().and_then(|(with, invocation)| Some((invoked_at(tokens, invocation)?, with)));
        match place {
            Some((place, with)) => AdapterSchedule::changing(self.plain.clone(), place, with.clone()),
            None => self.plain.clone().into(),
        }
    }
}

/// `prompt`, its run that has the token at `place` cut in two before it.
fn cut(prompt: &Prompt, place: Option<u32>) -> Prompt {
    let (mut parts, mut start) = (Prompt::default(), 0);
    for run in prompt.runs() {
        let within = place.and_then(|place| (place as usize).checked_sub(start));
        match (run, within) {
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

/// The mean of rows of `width` numbers.
#[expect(clippy::cast_possible_truncation, reason = "the mean of single-precision numbers is one")]
fn mean<'a>(rows: impl ExactSizeIterator<Item = &'a [f32]>, width: usize) -> Vec<f32> {
    let n_rows = u32::try_from(rows.len()).expect("a batch has fewer rows");
    let mut sums = vec![0.0_f64; width];
    for row in rows {
        sums.iter_mut().zip(row).for_each(|(sum, &number)| *sum += f64::from(number));
    }
    sums.into_iter().map(|sum| (sum / f64::from(n_rows)) as f32).collect()
}

/// The vectors of the runs of one text, on their way to what the whole text is pooled to.
struct TextEmbedding {
    pooling: Pooling,
    numbers: Vec<f32>,
}

impl TextEmbedding {
    fn new(pooling: Pooling) -> Self {
        Self { pooling, numbers: Vec::new() }
    }

    /// Takes what the next run of `n_rows` was pooled to.
    #[expect(clippy::cast_precision_loss, reason = "a context has fewer cells than 2²⁴")]
    fn add(&mut self, n_rows: usize, of_run: Vec<f32>) {
        match self.pooling {
            Pooling::None => self.numbers.extend(of_run),
            Pooling::Cls if !self.numbers.is_empty() => {}
            Pooling::Cls | Pooling::Last | Pooling::Rank => self.numbers = of_run,
            Pooling::Mean => {
                self.numbers.resize(of_run.len(), 0.0);
                self.numbers.iter_mut().zip(of_run).for_each(|(sum, mean)| *sum += mean * n_rows as f32);
            }
        }
    }

    /// What all `n` rows are pooled to.
    #[expect(clippy::cast_precision_loss, reason = "as above")]
    fn pooled(mut self, n: usize) -> Vec<f32> {
        if self.pooling == Pooling::Mean {
            self.numbers.iter_mut().for_each(|sum| *sum /= n as f32);
        }
        self.numbers
    }
}

/// Refuses a context whose cells there is no memory for, as [`EmbeddingContext::check_memory`] does its rows.
fn check_cells(model: &Model, config: &EngineConfig, n_ctx: usize) -> Result<()> {
    // llama.cpp keeps them in 16 bits unless told otherwise. Of encoders, T5's alone has any.
    let has_cells = !model.is_encoder() || is_t5(model.architecture());
    let n_bytes_each = if has_cells { model.facts(KvType::F16, KvType::F16).kv_bytes_per_token } else { 0 };
    let n_free = memory::free_bytes(model, config.offload_kqv);
    let checked = check(n_bytes_each.saturating_mul(n_ctx as u64), n_free, || format!("a context of {n_ctx} tokens for vectors"));
    checked.map_err(|reason| Error::Decode { reason })
}

/// Refuses `what` where it takes more than is free.
fn check(n_bytes: u64, n_free: u64, what: impl FnOnce() -> String) -> std::result::Result<(), String> {
    if n_bytes <= n_free {
        return Ok(());
    }
    let what = what();
    Err(format!("{what} takes {n_bytes} bytes of memory, but {n_free} are free; a smaller n_ctx or cache_ram leaves more"))
}

impl Drop for EmbeddingContext {
    fn drop(&mut self) {
        // SAFETY: made by `llama_init_from_model` and freed only here; threads and model are dropped after it.
        unsafe { sys::llama_free(self.raw.as_ptr()) }
    }
}

unsafe extern "C" {
    fn weft_context_bytes(context: *const sys::llama_context) -> usize;
    fn weft_compute_bytes(context: *const sys::llama_context) -> usize;
}
