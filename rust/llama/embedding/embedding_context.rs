//! Computes embeddings of batches of texts, and of texts with images or audio.

use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use crate::config::{EnabledKernels, Named, Pooling, ResolvedConfig};
use crate::embedding::prefix_cache::{ForkableMemory, PrefixCache};
use crate::embedding::{EmbedderShape, EncodedBatch, Encoder};
use crate::engine::runner::{AdapterSchedule, AdapterSet, DefaultAdapters, KvSeqId, MediaRows, MemoryKind, Plan, Row};
use crate::error::{self, Error};
use crate::llama::context::{memory, raw_context::RawContext};
use crate::llama::embedding::active_adapters::{ActiveAdapters, split_before};
use crate::llama::embedding::params::{EmbeddingAttention, computes_mean, params};
use crate::llama::embedding::pooling::{mean, pool};
use crate::llama::embedding::{memory_check, shares_prefixes};
use crate::llama::host::{affinity::AffinityGuard, niceness, threads::ThreadPool};
use crate::llama::kernels;
use crate::llama::model::{Model, kinds::is_t5};
use crate::lock::lock;
use crate::request::{Prompt, PromptRun, Token};

/// Leaves embeddings about a third of a processor that is busy with generation; ten more levels, a third as many embeddings.
const NICENESS: i32 = 5;

pub(crate) struct EmbeddingContext {
    // Dropped first: it uses the threads.
    raw: RawContext,
    shape: EmbedderShape,
    computes_mean: bool,
    /// True if a batch has only one text: the rounding of its attention would depend on others.
    is_single_text: bool,
    prefix_cache: Option<PrefixCache>,
    memory_kind: MemoryKind,
    adapters: DefaultAdapters,
    /// Maximum rows of a decode so far: llama.cpp keeps buffers for as many.
    n_rows_max: usize,
    _pool: ThreadPool,
    _affinity: AffinityGuard,
}

impl EmbeddingContext {
    pub(crate) fn new(
        model: &Arc<Model>,
        config: &ResolvedConfig,
        shape: EmbedderShape,
        adapters: DefaultAdapters,
    ) -> error::Result<Self> {
        let mut context = Self::create(model, config, shape, Arc::clone(&adapters))?;
        if !config.embedding_kernels.attention || memory::is_offloaded(model) || !context.leaves_attention()? {
            return Ok(context);
        }
        tracing::warn!("embeddings use llama.cpp's attention: Weft's kernels do not support every layer of this model");
        drop(context);
        let embedding_kernels = EnabledKernels { attention: false, ..config.embedding_kernels };
        Self::create(model, &ResolvedConfig { embedding_kernels, ..config.clone() }, shape, adapters)
    }

    fn leaves_attention(&mut self) -> error::Result<bool> {
        let token = self.raw.model.bos_token().unwrap_or(0);
        let (computed, counted) = kernels::count_operations(|| self.compute(&[(KvSeqId(0), &[token, token])]));
        computed.map_err(|reason| Error::Decode { reason })?;
        self.clear();
        Ok(counted.n_attentions_left > 0)
    }

    fn create(
        model: &Arc<Model>,
        config: &ResolvedConfig,
        shape: EmbedderShape,
        adapters: DefaultAdapters,
    ) -> error::Result<Self> {
        niceness::compute(if model.is_encoder() { 0 } else { NICENESS });
        let attention = EmbeddingAttention::new(model, config.embedding_kernels.attention);
        let params = params(model, config, &shape, attention);
        memory_check::check_cells(model, config, params.n_ctx)?;
        let raw = RawContext::new(model, params, config.embedding_kernels)
            .map_err(|reason| Error::Decode { reason: format!("cannot create the context for embeddings: {reason}") })?;
        let pool = ThreadPool::new(config.n_threads_batch, &config.settings.threads_batch, 0, config.embedding_kernels);
        let mut affinity = AffinityGuard::default();
        if let Some(cpus) = pool.caller_affinity() {
            affinity.pin(cpus);
        }
        // SAFETY: the context is alive, and the pool lives in `self` until after the context is freed.
        unsafe { sys::llama_attach_threadpool(raw.as_ptr(), pool.as_ptr(), pool.as_ptr()) };
        let memory_kind = MemoryKind::for_embeddings(model.n_swa());
        // T5 adds a bias to scores, which no fused attention supports.
        let is_biased = is_t5(model.architecture()) && attention != EmbeddingAttention::Device;
        let context = Self {
            raw,
            shape,
            computes_mean: computes_mean(model, &shape),
            is_single_text: attention == EmbeddingAttention::Dense || is_biased,
            prefix_cache: shares_prefixes(model, shape.pooling).then(|| PrefixCache::new(shape, memory_kind)),
            memory_kind,
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

    fn encode_texts(&mut self, texts: &[Vec<Token>]) -> Result<EncodedBatch, String> {
        let active = self.active_adapters();
        let schedules: Vec<AdapterSchedule> = texts.iter().map(|text| active.schedule(text.iter().copied())).collect();
        let (invoking, others): (Vec<usize>, Vec<usize>) = (0..texts.len()).partition(|&i| schedules[i].change().is_some());
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
            let mut encoded = self.encode_runs(&Prompt::from_tokens(texts[i].clone()), &schedules[i])?;
            all.n_computed += encoded.n_computed;
            all.embeddings[i] = encoded.embeddings.swap_remove(0);
        }
        Ok(all)
    }

    fn active_adapters(&self) -> ActiveAdapters {
        let active = lock(&self.adapters).clone();
        ActiveAdapters::new(&active, self.raw.model.adapters())
    }

    fn encode_with(&mut self, adapter_set: &AdapterSet, texts: &[Vec<Token>]) -> Result<EncodedBatch, String> {
        self.raw.use_adapters(adapter_set).map_err(|error| error.reason)?;
        let Some(mut prefix_cache) = self.prefix_cache.take() else {
            return self.encode_alone(texts);
        };
        let encoded = prefix_cache.encode(self, adapter_set, texts);
        self.prefix_cache = Some(prefix_cache);
        encoded
    }

    fn encode_alone(&mut self, texts: &[Vec<Token>]) -> Result<EncodedBatch, String> {
        let mut all = EncodedBatch::default();
        for texts in texts.chunks(if self.is_single_text { 1 } else { texts.len().max(1) }) {
            let sequences: Vec<(KvSeqId, &[Token])> = (0..).map(KvSeqId).zip(texts.iter().map(Vec::as_slice)).collect();
            self.compute(&sequences)?;
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

    /// One decode per run, since a decode holds either tokens or media. Each run uses the adapters of its first token.
    fn compute_runs(&mut self, id: KvSeqId, prompt: &Prompt, schedule: &AdapterSchedule) -> Result<EncodedBatch, String> {
        let mut runs = Vec::new();
        for run in prompt.runs() {
            let (seq_len, n_rows) = (self.raw.seq_len(id), run.n_tokens());
            self.raw.use_adapters(schedule.at(seq_len)).map_err(|error| error.reason)?;
            match run {
                PromptRun::Tokens(tokens) => self.compute(&[(id, tokens)])?,
                PromptRun::Media(media) => {
                    self.reserve_rows(n_rows)?;
                    let media = vec![MediaRows { rows: 0..n_rows, media: media.clone(), start: 0 }];
                    let rows = rows_of(id, seq_len, media[0].media.ids()).collect();
                    let plan = Plan { rows, media, ..Plan::default() };
                    self.raw.decode_media(&plan).map_err(|error| error.reason)?;
                }
            }
            runs.push((n_rows, self.rows(id, 0, n_rows)));
        }
        Ok(EncodedBatch { embeddings: vec![pool(self.shape.pooling, runs)], n_computed: prompt.n_tokens() })
    }

    /// Fails if the buffers of `n_rows` rows would exceed free memory. Buffers stay after use.
    pub(crate) fn check_memory(&self, n_rows: usize) -> Result<(), String> {
        if n_rows <= self.n_rows_max {
            return Ok(());
        }
        // A device's memory is allocated, or refused, when the context is created.
        // SAFETY: the context is alive.
        let n_compute = if memory::is_offloaded(&self.raw.model) { 0 } else { unsafe { weft_compute_bytes(self.raw.as_ptr()) } };
        let n_bytes_of = |n: usize| (n_compute / self.shape.n_batch * n) as u64 + self.n_output_bytes(n);
        let n_more = n_bytes_of(n_rows) - n_bytes_of(self.n_rows_max);
        memory_check::check(n_more, memory::free_on_host(), || format!("a batch of {n_rows} tokens"))
    }

    fn reserve_rows(&mut self, n_rows: usize) -> Result<(), String> {
        self.check_memory(n_rows)?;
        self.n_rows_max = self.n_rows_max.max(n_rows);
        Ok(())
    }

    /// Size of the output buffer, in bytes: llama.cpp reserves the logits of every row too, but an encoder never writes them.
    fn n_output_bytes(&self, n_rows: usize) -> u64 {
        let n_logits = if self.raw.model.is_encoder() { 0 } else { self.raw.model.n_vocab() };
        (n_rows * (n_logits + self.shape.width) * size_of::<f32>()) as u64
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
        self.raw.clear();
        if let Some(prefix_cache) = &mut self.prefix_cache {
            prefix_cache.clear();
        }
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

impl ForkableMemory for EmbeddingContext {
    fn can_fork(&self, from: KvSeqId, seq_len: u32, n_tokens: u32) -> bool {
        n_tokens <= seq_len && self.memory_kind.holds_window(self.raw.whole_from(from), n_tokens)
    }

    fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32) {
        self.raw.fork(from, to, n_tokens);
    }

    fn truncate(&mut self, id: KvSeqId, n_kept: u32) {
        let is_done = self.raw.truncate(id, n_kept);
        assert!(is_done, "every memory can remove a whole sequence, and only memories that can be cut are cut");
    }

    fn compute(&mut self, sequences: &[(KvSeqId, &[Token])]) -> Result<(), String> {
        let rows = sequences.iter().flat_map(|&(id, tokens)| rows_of(id, self.raw.seq_len(id), tokens.iter().copied()));
        let plan = Plan { rows: rows.collect(), ..Plan::default() };
        self.reserve_rows(plan.rows.len())?;
        self.raw.decode_tokens(&plan).map_err(|error| error.reason)
    }

    fn embedding(&self, id: KvSeqId) -> Vec<f32> {
        self.rows(id, 0, 1)
    }
}

/// Rows that continue `sequence` at `position`. All rows are outputs.
fn rows_of(sequence: KvSeqId, position: u32, tokens: impl Iterator<Item = Token>) -> impl Iterator<Item = Row> {
    (position..).zip(tokens).map(move |(position, token)| Row { sequence, token, position, wants_logits: true })
}

unsafe extern "C" {
    fn weft_context_bytes(context: *const sys::llama_context) -> usize;
    fn weft_compute_bytes(context: *const sys::llama_context) -> usize;
}
