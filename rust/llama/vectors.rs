//! The context that makes vectors: a second one over the weights of a model, or the only one of an encoder.

use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};

use llama_cpp_sys_2 as sys;

use crate::config::{Choice, EngineConfig, KvType, Pooling, Used};
use crate::embedding::{self, Embedder, Encoded, Encoder, Group, MAX_SEQUENCES, Shape};
use crate::engine::runner::{DefaultAdapters, MediaRows, Plan, Row, SequenceId, Variant};
use crate::error::{Error, Result};
use crate::llama::adapters;
use crate::llama::affinity::Stay;
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
use crate::llama::threads::{self, ThreadPool};
use crate::request::{Prompt, Run, Token};

/// Sequence ids where each takes a whole state.
const MAX_STATES: u32 = 8;

/// How far the threads give way: by five levels more than those that write texts, which is about a third of a busy processor. With
/// ten more, a model whose streams never rest made a third as many vectors.
const NICENESS: i32 = 5;

/// Makes the worker for vectors of `model`. It takes nothing until it is first asked. `on_done` is called on its thread whenever
/// requests are answered. `adapters` are those of `engine` that are on when a batch is computed, but for activated ones (aLoRA),
/// which count after words that no text for a vector has.
///
/// # Errors
/// [`Error::InvalidConfig`] where the model cannot be pooled as `config` says.
pub fn embedder(
    model: &Arc<Model>,
    config: &EngineConfig,
    choice: &Choice,
    adapters: DefaultAdapters,
    on_done: impl Fn() + Send + Sync + 'static,
) -> Result<Embedder> {
    let pooling = config.pooling.unwrap_or_else(|| model.pooling());
    if pooling == Pooling::Rank && !model.has_head() {
        let message = "pooling is rank, but the model has no classifier that scores a text; load a reranker".to_owned();
        return Err(Error::InvalidConfig { param: "pooling", message });
    }
    let width = model.vector_width(pooling);
    let mut shape = Shape::new(pooling, width, model.n_vocab(), model.reach(&config.rope), config.n_ubatch);
    shape.takes_media = !model.is_encoder();
    if model.is_recurrent() || model.is_hybrid() {
        shape.n_sequences = MAX_STATES as usize;
    }
    let (model, choice) = (Arc::clone(model), choice.clone());
    let used = Used { attention: false, ..choice.used };
    let config = EngineConfig { n_threads: Some(choice.n_threads_batch), used, ..config.clone() };
    let make = move || {
        let context = VectorContext::new(Arc::clone(&model), &config, shape, Arc::clone(&adapters))?;
        Ok(Box::new(context) as Box<dyn Encoder>)
    };
    Ok(Embedder::new(shape, make, on_done))
}

/// A context whose decodes put out vectors. Stays on the thread that made it.
pub(super) struct VectorContext {
    raw: NonNull<sys::llama_context>,
    batch: Batch,
    media: MediaBatch,
    shape: Shape,
    n_ctx: u32,
    used: Used,
    /// T5's encoder has a memory as well, and a call of its own.
    encodes: bool,
    /// Whether sequences can share cells of what they begin with.
    shares: bool,
    /// What each sequence holds, computed with the adapters of `variant`.
    held: Vec<Vec<Token>>,
    variant: Variant,
    adapters: DefaultAdapters,
    /// The most rows that were computed at once: llama.cpp keeps room for so many.
    n_rows_most: usize,
    // Dropped after `raw` is freed, which uses them.
    _threads: ThreadPool,
    /// Keeps the thread that made it, which is the one that computes, where none of the others is.
    _stay: Stay,
    model: Arc<Model>,
}

impl VectorContext {
    /// With `n_threads` of `config`, which are where and how those of prompts are, but for their priority.
    pub(super) fn new(model: Arc<Model>, config: &EngineConfig, shape: Shape, adapters: DefaultAdapters) -> Result<Self> {
        let (used, n_threads) = (config.used, config.n_threads.unwrap_or_else(threads::n_cores));
        if !model.is_encoder() {
            niceness::compute(NICENESS);
        }
        let keeps_states = model.is_recurrent() || model.is_hybrid();
        let has_last = matches!(shape.pooling, Pooling::Last | Pooling::Rank);
        let shares = !model.is_encoder() && !keeps_states && model.n_swa() == 0 && has_last;
        // One more than a batch has texts, to keep one text for the next batch.
        let n_sequences = shape.n_sequences + usize::from(shares);
        let n_ctx = shape.n_batch + if shares { shape.n_longest } else { 0 };
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
            Pooling::Mean => sys::LLAMA_POOLING_TYPE_MEAN,
            Pooling::Cls => sys::LLAMA_POOLING_TYPE_CLS,
            Pooling::Last => sys::LLAMA_POOLING_TYPE_LAST,
            Pooling::Rank => sys::LLAMA_POOLING_TYPE_RANK,
        };
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
        let mut stay = Stay::default();
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
        let context = Self {
            raw,
            batch: Batch::new(bounds),
            media,
            shape,
            n_ctx: params.n_ctx,
            used,
            encodes: is_t5(model.architecture()),
            shares,
            held: vec![Vec::new(); n_sequences],
            variant: Variant::default(),
            adapters,
            n_rows_most: 0,
            _threads: threads,
            _stay: stay,
            model,
        };
        let Shape { pooling, width, n_longest, .. } = shape;
        tracing::info!(
            "vectors: {width} numbers, pooling {}, texts of {n_longest} tokens, {} MiB",
            pooling.name(),
            context.n_bytes() >> 20
        );
        Ok(context)
    }

    /// Computes with the adapters that are on now. What was computed with others is forgotten.
    fn use_adapters(&mut self) -> std::result::Result<(), String> {
        let known = self.model.adapters();
        let is_plain = |id: u32| known.get(id as usize).is_none_or(|adapter| adapter.invocation.is_empty());
        let on = self.adapters.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let variant = Variant::with_adapters(on.into_iter().filter(|&(id, _)| is_plain(id)));
        if variant == self.variant {
            return Ok(());
        }
        self.forget();
        // SAFETY: the context is alive, and of this model.
        unsafe { adapters::turn_on(self.raw, self.model.adapters(), &variant) }?;
        self.variant = variant;
        Ok(())
    }

    /// Computes the tokens from `n_held` on of what the sequences are to hold.
    fn compute(&mut self, wanted: &[(usize, &[Token])]) -> std::result::Result<(), String> {
        let rows = wanted.iter().flat_map(|(id, tokens)| {
            let sequence = SequenceId(u16::try_from(*id).expect("there are at most 256 sequences"));
            (0..).zip(*tokens).skip(self.held[*id].len()).map(move |(position, token)| Row {
                sequence,
                token: *token,
                position,
                wants_logits: true,
            })
        });
        let plan = Plan { rows: rows.collect(), ..Plan::default() };
        let n_held: Vec<u32> = self.held.iter().map(|held| u32::try_from(held.len()).expect("it fits in the context")).collect();
        self.batch.fill(&plan, &n_held, |_, place| place).map_err(|error| error.reason)?;
        self.run(plan.rows.len(), |context| context.batch.as_raw())?;
        for (id, tokens) in wanted {
            self.held[*id] = tokens.to_vec();
        }
        Ok(())
    }

    /// Computes the `n_rows` that a batch was filled with, which `batch` hands over.
    fn run(&mut self, n_rows: usize, batch: impl FnOnce(&mut Self) -> sys::llama_batch) -> std::result::Result<(), String> {
        self.check_memory(n_rows)?;
        self.n_rows_most = self.n_rows_most.max(n_rows);
        let batch = batch(self);
        // SAFETY: whoever filled the batch checked every rule that llama.cpp asserts but one: all rows are put out, and fit in one
        // `n_ubatch`. The arrays live in `self` and are only read.
        let compute = || unsafe {
            if self.encodes { sys::llama_encode(self.raw.as_ptr(), batch) } else { sys::llama_decode(self.raw.as_ptr(), batch) }
        };
        let (code, errors) = logging::errors_during(|| kernels::deciding(self.used, None, compute));
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

    /// Computes a text with pictures or sounds, run by run, as no decode takes both, and puts together what each is pooled to.
    fn compute_runs(&mut self, prompt: &Prompt) -> std::result::Result<Encoded, String> {
        let mut positions = vec![Positions::NONE; self.held.len()];
        let mut n_held = vec![0; self.held.len()];
        let (mut rows, n) = (Rows::new(self.shape.pooling), prompt.n_tokens());
        for run in prompt.runs() {
            let place = |token, position| Row { sequence: SequenceId(0), token, position, wants_logits: true };
            let tokens = match run {
                Run::Tokens(tokens) => tokens.clone(),
                Run::Media(media) => media.ids().collect(),
            };
            let plan = Plan {
                rows: tokens.into_iter().zip(n_held[0]..).map(|(token, at)| place(token, at)).collect(),
                ..Plan::default()
            };
            let n_rows = plan.rows.len();
            match run {
                Run::Tokens(_) => {
                    let filled = self.batch.fill(&plan, &n_held, |id, place| positions[id].at(place));
                    filled.map_err(|error| error.reason)?;
                    self.run(n_rows, |context| context.batch.as_raw())?;
                }
                Run::Media(media) => {
                    let whole = [MediaRows { rows: 0..n_rows, media: media.clone(), start: 0 }];
                    self.media.fill(&plan, &whole, &n_held, &positions)?;
                    // SAFETY: the context is alive, and its model is one whose rows see none after them.
                    unsafe { sys::llama_set_causal_attn(self.raw.as_ptr(), !media.sees_ahead()) };
                    let ran = self.run(n_rows, |context| context.media.as_raw());
                    // SAFETY: as above.
                    unsafe { sys::llama_set_causal_attn(self.raw.as_ptr(), true) };
                    ran?;
                    positions[0].push(n_held[0], &**media);
                }
            }
            n_held[0] += u32::try_from(n_rows).expect("it fits in the context");
            rows.add(n_rows, self.rows(0, 0, n_rows));
        }
        Ok(Encoded { vectors: vec![rows.pooled(n)], n_computed: n })
    }

    /// Computes texts that share nothing, and forgets them.
    fn encode_alone(&mut self, texts: &[Vec<Token>]) -> std::result::Result<Encoded, String> {
        let wanted: Vec<(usize, &[Token])> = texts.iter().map(Vec::as_slice).enumerate().collect();
        let computed = self.compute(&wanted);
        let vectors = computed.map(|()| {
            let mut first_row = 0;
            let rows = texts.iter().enumerate().map(|(id, text)| {
                let rows = self.rows(id, first_row, text.len());
                first_row += text.len();
                rows
            });
            rows.collect()
        });
        self.forget();
        Ok(Encoded { vectors: vectors?, n_computed: texts.iter().map(Vec::len).sum() })
    }

    /// Computes what texts begin with in common once, and keeps one of them for the next batch.
    fn encode_shared(&mut self, texts: &[Vec<Token>]) -> std::result::Result<Encoded, String> {
        let kept = self.held.iter().position(|held| !held.is_empty());
        // The texts take the ids in their order, but for that of the text that was kept.
        let ids: Vec<usize> = (0..self.held.len()).filter(|id| Some(*id) != kept).take(texts.len()).collect();
        let groups = embedding::groups(texts);
        for Group { texts: members, n_shared } in &groups {
            let first = members[0];
            let common = if *n_shared > 0 { &texts[first][..*n_shared] } else { &texts[first][..] };
            if let Some(kept) = kept {
                // A text on its own keeps its last token to compute; a group's texts have more than they share.
                let n = embedding::n_alike(&self.held[kept], &texts[first]).min(common.len());
                self.fork(kept, ids[first], n);
            }
        }
        let mut n_computed = 0;
        let shared: Vec<(usize, &[Token])> = groups
            .iter()
            .filter(|group| group.n_shared > self.held[ids[group.texts[0]]].len())
            .map(|group| (ids[group.texts[0]], &texts[group.texts[0]][..group.n_shared]))
            .collect();
        if !shared.is_empty() {
            n_computed += self.n_missing(&shared);
            self.compute(&shared)?;
        }
        for Group { texts: members, n_shared } in &groups {
            for member in &members[1..] {
                self.fork(ids[members[0]], ids[*member], *n_shared);
            }
        }
        let wanted: Vec<(usize, &[Token])> = ids.iter().copied().zip(texts.iter().map(Vec::as_slice)).collect();
        n_computed += self.n_missing(&wanted);
        self.compute(&wanted)?;
        let vectors = ids.iter().map(|id| self.rows(*id, 0, 1)).collect();
        let next = groups.iter().max_by_key(|group| group.texts.len()).map(|group| ids[group.texts[0]]);
        for id in (0..self.held.len()).filter(|id| Some(*id) != next) {
            self.drop_sequence(id);
        }
        Ok(Encoded { vectors, n_computed })
    }

    fn n_missing(&self, wanted: &[(usize, &[Token])]) -> usize {
        wanted.iter().map(|(id, tokens)| tokens.len() - self.held[*id].len()).sum()
    }

    /// The vectors of a text: one row, or `n` of the batch from `first` on where nothing is pooled.
    fn rows(&self, id: usize, first: usize, n: usize) -> Vec<f32> {
        let copy = |row: *mut f32| {
            assert!(!row.is_null(), "llama.cpp has no vector for a text that it has computed");
            // SAFETY: a vector of this pooling is as wide, and is not written before the next decode.
            unsafe { std::slice::from_raw_parts(row, self.shape.width) }
        };
        let number = |n: usize| i32::try_from(n).expect("a batch has fewer rows");
        if self.shape.pooling == Pooling::None {
            // SAFETY: the last decode succeeded and put out every row.
            let row = |row| copy(unsafe { sys::llama_get_embeddings_ith(self.raw.as_ptr(), number(row)) });
            (first..first + n).flat_map(row).copied().collect()
        } else {
            // SAFETY: the last decode succeeded and had rows of this sequence.
            copy(unsafe { sys::llama_get_embeddings_seq(self.raw.as_ptr(), number(id)) }).to_vec()
        }
    }

    /// Gives the first `n` tokens of `from` to `to` as well, which holds nothing.
    fn fork(&mut self, from: usize, to: usize, n: usize) {
        assert!(self.held[to].is_empty() && n <= self.held[from].len(), "a fork of what is there, to where nothing is");
        if n == 0 {
            return;
        }
        let number = |n: usize| i32::try_from(n).expect("it fits in the context");
        // SAFETY: both ids are in range, and the pool is unified, so that a part may be copied.
        unsafe { sys::llama_memory_seq_cp(self.memory(), number(from), number(to), 0, number(n)) };
        self.held[to] = self.held[from][..n].to_vec();
    }

    fn drop_sequence(&mut self, id: usize) {
        if !self.held[id].is_empty() {
            let id = i32::try_from(id).expect("there are at most 256 sequences");
            // SAFETY: the id is in range, and every memory can forget a whole sequence.
            unsafe { sys::llama_memory_seq_rm(self.memory(), id, -1, -1) };
        }
        self.held[id].clear();
    }

    /// Forgets everything.
    fn forget(&mut self) {
        let memory = self.memory();
        if !memory.is_null() {
            // SAFETY: the memory is alive.
            unsafe { sys::llama_memory_clear(memory, false) };
        }
        self.held.iter_mut().for_each(Vec::clear);
    }

    /// Null for an encoder.
    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is alive.
        unsafe { sys::llama_get_memory(self.raw.as_ptr()) }
    }
}

impl Encoder for VectorContext {
    fn encode(&mut self, texts: &[Vec<Token>]) -> std::result::Result<Encoded, String> {
        self.use_adapters()?;
        let encoded = if self.shares { self.encode_shared(texts) } else { self.encode_alone(texts) };
        if encoded.is_err() {
            self.forget();
        }
        encoded
    }

    fn encode_mixed(&mut self, prompt: &Prompt) -> std::result::Result<Encoded, String> {
        self.use_adapters()?;
        self.forget();
        let encoded = self.compute_runs(prompt);
        self.forget();
        encoded
    }

    fn n_bytes(&self) -> u64 {
        // SAFETY: the context is alive.
        let n_bytes = unsafe { weft_context_bytes(self.raw.as_ptr()) } as u64;
        n_bytes + self.n_output_bytes(self.n_rows_most)
    }
}

/// The vectors of the runs of one text, on their way to what the whole text is pooled to.
struct Rows {
    pooling: Pooling,
    numbers: Vec<f32>,
}

impl Rows {
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

/// Refuses a context whose cells there is no memory for, as [`VectorContext::check_memory`] does its rows.
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

impl Drop for VectorContext {
    fn drop(&mut self) {
        // SAFETY: made by `llama_init_from_model` and freed only here; threads and model are dropped after it.
        unsafe { sys::llama_free(self.raw.as_ptr()) }
    }
}

// As many sequences as llama.cpp has: `Batch` takes ids of 16 bits.
const _: () = assert!(MAX_SEQUENCES < 256);

unsafe extern "C" {
    fn weft_context_bytes(context: *const sys::llama_context) -> usize;
    fn weft_compute_bytes(context: *const sys::llama_context) -> usize;
}
