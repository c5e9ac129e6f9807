//! A draft model: llama.cpp's `common_speculative`, with a context whose sequences follow those of the target.
//!
//! A model of its own (`draft-simple`) computes what it lacks when a draft is requested. The other kinds read hidden states of the
//! target, so they process each decode of the target; a sequence with a gap, such as restored tokens, continues from there without
//! its beginning. Drafts are then worse, never wrong: every drafted token is verified.

mod checks;
mod drafter;

use std::sync::Arc;
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;

use crate::config::{
    DraftKind, DraftMemory, DraftModelConfig, EnabledKernels, FlashAttention, LoadScope, ModelConfig, Named, ResolvedConfig,
    RopeConfig, SpeculationConfig,
};
use crate::engine::runner::{DraftModelInfo, DraftRequest, KvSeqId, ModelDrafts};
use crate::error::{Error, Result};
use crate::llama::context::raw_context::RawContext;
use crate::llama::context::{Context, params};
use crate::llama::draft::drafter::{Drafter, DrafterParams, DrafterRequest, number_of};
use crate::llama::model::Model;
use crate::llama::model::gguf::Metadata;
use crate::request::{Token, is_in_vocabulary};

/// Maximum rows of a decode of a draft model that outputs all of them, or whose output is as large as that of its rows.
const MAX_OUTPUT_ROWS: u32 = 64;

/// Default maximum length of drafts of EAGLE-3 and MTP: each drafts as many tokens as it may, and later ones are rarely accepted.
const FIXED_LENGTH: u32 = 4;

/// Created and used on the worker's thread.
pub(super) struct DraftModel {
    // Dropped first: it uses the contexts.
    drafter: Drafter,
    /// Computed on the threads of the target's context.
    context: RawContext,
    kind: DraftKind,
    kernels: EnabledKernels,
    /// Maximum rows of a decode, and sequences of a draft.
    n_batch: usize,
    n_group: usize,
    /// First position that the draft model has no embedding for.
    max_position: u32,
    sequences: Vec<DraftSequence>,
    read_time: Duration,
}

/// State of a sequence of the target in the draft context.
#[derive(Debug, Clone, Default)]
struct DraftSequence {
    /// Position after the last token that it has, or, for hidden states, has processed; 0 for an empty sequence.
    end: u32,
    /// Tokens of the last draft, whose cells follow `end`. Only of models of their own.
    drafted: Vec<Token>,
    /// First of the positions processed last, if the hidden states after them are known.
    processed_from: Option<u32>,
}

impl DraftModel {
    /// Creates the draft context of the target's draft model, if it has one.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if it cannot draft for this model; errors of [`Context::without_threads`].
    pub(super) fn new(target: &Context, config: &ResolvedConfig, n_seq_max: u32) -> Result<Option<Self>> {
        let Some(loaded) = target.model.draft_model() else { return Ok(None) };
        debug_assert!(config.draft.is_some(), "its memory is reserved wherever it may draft");
        let (kind, model) = (loaded.kind, loaded.model_of(target));
        let config = loaded.context_config(config);
        let context = Context::without_threads(model, &config, loaded.context_params(target, &config, n_seq_max))?;
        let params = DrafterParams {
            kind: number_of(kind),
            max_draft: max_draft(kind, config.limits.speculation).cast_signed(),
            min_p: loaded.config.min_p,
            n_seq: n_seq_max,
            target: target.as_ptr(),
            draft: context.as_ptr(),
        };
        // SAFETY: both contexts are alive and outlive the drafter, and the model was checked when it was loaded.
        let drafter = unsafe { Drafter::new(&params) }.map_err(|reason| refusal(model, &reason))?;
        let block = drafter.max_draft() as usize + 1;
        let is_block = matches!(kind, DraftKind::DFlash | DraftKind::DSpark);
        Ok(Some(Self {
            kind,
            kernels: config.kernels,
            n_batch: config.limits.n_ubatch as usize,
            n_group: if is_block { (MAX_OUTPUT_ROWS as usize / block).max(1) } else { usize::MAX },
            max_position: if model.has_position_table { model.n_ctx_train() } else { u32::MAX },
            sequences: vec![DraftSequence::default(); n_seq_max as usize],
            read_time: Duration::ZERO,
            drafter,
            context,
        }))
    }

    pub(super) fn info(&self) -> DraftModelInfo {
        DraftModelInfo { kind: self.kind, max_draft: self.drafter.max_draft(), has_fixed_cost: self.kind != DraftKind::Simple }
    }

    /// Returns the time of [`DraftModel::process`] since the start.
    pub(super) fn read_time(&self) -> Duration {
        self.read_time
    }

    /// Processes the rows of the target's last decode, in its order.
    pub(super) fn process(&mut self, target: &Context) {
        let (tokens, positions, ids) = target.last_rows();
        if self.kind == DraftKind::Simple || ids.is_empty() {
            return;
        }
        let started = Instant::now();
        let mut start = 0;
        for rows in ids.chunk_by(|a, b| a == b) {
            let (first, last) = (positions[start].unsigned_abs(), positions[start + rows.len() - 1].unsigned_abs());
            start += rows.len();
            let id = KvSeqId(u16::try_from(rows[0]).expect("llama.cpp has 256 sequence ids"));
            if self.sequence(id).end != first {
                self.clear(id);
            }
            *self.sequence_mut(id) = DraftSequence { end: last + 1, drafted: Vec::new(), processed_from: Some(first) };
        }
        if let Err(reason) = self.compute(target, |drafter| drafter.process(tokens, positions, ids)) {
            tracing::debug!("the draft model could not process a decode: {reason}");
            for &id in ids {
                self.clear(KvSeqId(u16::try_from(id).expect("llama.cpp has 256 sequence ids")));
            }
        }
        self.read_time += started.elapsed();
    }

    pub(super) fn draft(&mut self, target: &Context, requests: &[DraftRequest<'_>], max_caught_up: u32) -> ModelDrafts {
        let n_caught_up = if self.kind == DraftKind::Simple { self.catch_up(target, requests, max_caught_up) } else { 0 };
        let mut drafts = vec![Vec::new(); requests.len()];
        let ready: Vec<usize> = (0..requests.len()).filter(|&nth| self.is_ready(&requests[nth])).collect();
        for group in ready.chunks(self.n_group.min(ready.len().max(1))) {
            let raw: Vec<DrafterRequest> = group.iter().map(|&nth| raw_request(&requests[nth])).collect();
            match self.compute(target, |drafter| drafter.draft(&raw)) {
                Ok(found) => group.iter().zip(found).for_each(|(&nth, draft)| drafts[nth] = draft),
                Err(reason) => tracing::debug!("the draft model could not draft: {reason}"),
            }
            for &nth in group {
                self.settle(&requests[nth], &drafts[nth]);
                drafts[nth].truncate(requests[nth].max_draft as usize);
            }
        }
        ModelDrafts { drafts, n_caught_up }
    }

    pub(super) fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32) {
        let end = self.sequence(from).end.min(n_tokens);
        self.clear(to);
        if end > 0 {
            self.context.share(from, to, 0..end);
        }
        self.sequence_mut(to).end = end;
    }

    /// Follows a target that has `n_kept` tokens of `id` left, at as many positions.
    pub(super) fn truncate(&mut self, id: KvSeqId, n_kept: u32) {
        let is_of_states = self.kind != DraftKind::Simple;
        let sequence = self.sequence_mut(id);
        let n_drafted = u32::try_from(sequence.drafted.len()).expect("a draft is short");
        if n_kept >= sequence.end + n_drafted {
            return;
        }
        if n_kept == 0 {
            return self.clear(id);
        }
        sequence.drafted.truncate(n_kept.saturating_sub(sequence.end) as usize);
        if n_kept < sequence.end {
            sequence.end = n_kept;
            let accepted = sequence.processed_from.and_then(|first| n_kept.checked_sub(first + 1));
            let n_accepted = accepted.filter(|_| is_of_states).and_then(|n| u16::try_from(n).ok());
            if n_accepted.is_none() {
                sequence.processed_from = None;
            }
            if let Some(n) = n_accepted
                && !self.drafter.accept(i32::from(id.0), n)
            {
                self.sequence_mut(id).processed_from = None;
            }
        }
        // The cell of EAGLE-3 at a position depends on the next token too.
        let n_cells = n_kept - u32::from(self.kind == DraftKind::Eagle3);
        if !self.context.cut(id, n_cells) {
            self.clear(id);
        }
    }

    pub(super) fn clear(&mut self, id: KvSeqId) {
        self.context.unshare_all(id);
        *self.sequence_mut(id) = DraftSequence::default();
    }

    /// Computes tokens that the draft model lacks, at most `max_tokens` of all requests together. Returns their number.
    fn catch_up(&mut self, target: &Context, requests: &[DraftRequest<'_>], max_tokens: u32) -> u32 {
        let (mut tokens, mut positions, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for request in requests {
            self.keep_drafted(request);
            let (start, end) = (self.sequence(request.sequence).end, position(request).min(self.max_position));
            let n_left = max_tokens as usize - ids.len();
            let lacking: Vec<Token> =
                tokens_from(request, start).take((end.saturating_sub(start) as usize).min(n_left)).collect();
            // A prompt with media has ids that are not in the vocabulary.
            if lacking.iter().all(|&token| self.is_in_vocabulary(token)) {
                let n = u32::try_from(lacking.len()).expect("a sequence fits its context");
                positions.extend((start..start + n).map(u32::cast_signed));
                ids.extend(lacking.iter().map(|_| i32::from(request.sequence.0)));
                tokens.extend(lacking);
                self.sequence_mut(request.sequence).end += n;
            }
        }
        for start in (0..ids.len()).step_by(self.n_batch) {
            let range = start..ids.len().min(start + self.n_batch);
            let rows = (&tokens[range.clone()], &positions[range.clone()], &ids[range]);
            let compute_rows = |own: &mut Self| own.compute(target, |drafter| drafter.process(rows.0, rows.1, rows.2));
            if compute_rows(self).is_ok() {
                continue;
            }
            // The cells may be taken by sequences that no longer run.
            let is_requested = |id: usize| requests.iter().any(|request| usize::from(request.sequence.0) == id);
            for id in (0..self.sequences.len()).filter(|&id| !is_requested(id)) {
                self.clear(KvSeqId(u16::try_from(id).expect("llama.cpp has 256 sequence ids")));
            }
            if let Err(reason) = compute_rows(self) {
                tracing::debug!("the draft model could not compute a text: {reason}");
                for request in requests {
                    self.clear(request.sequence);
                }
                break;
            }
        }
        u32::try_from(ids.len()).expect("at most `max_tokens`")
    }

    /// Keeps the cells of the last draft that have the tokens of the sequence.
    fn keep_drafted(&mut self, request: &DraftRequest<'_>) {
        let id = request.sequence;
        let drafted = std::mem::take(&mut self.sequence_mut(id).drafted);
        let end = self.sequence(id).end;
        let n_computed = (position(request) - end.min(position(request))) as usize;
        let n_equal =
            tokens_from(request, end).take(n_computed).zip(&drafted).take_while(|(token, drafted)| token == *drafted).count();
        let end = end + u32::try_from(n_equal).expect("a draft is short");
        self.sequence_mut(id).end = end;
        if n_equal < drafted.len() && !self.context.cut(id, end) {
            self.clear(id);
        }
    }

    fn is_ready(&self, request: &DraftRequest<'_>) -> bool {
        let DraftSequence { end, processed_from, .. } = self.sequence(request.sequence);
        let has_states = processed_from.is_some() || !matches!(self.kind, DraftKind::Eagle3 | DraftKind::Mtp);
        let [.., last] = request.tokens.map(<[Token]>::last);
        let last = last.or(request.tokens[0].last());
        *end == position(request)
            && has_states
            && position(request) + self.drafter.max_draft() < self.max_position
            && last.is_some_and(|&token| self.is_in_vocabulary(token))
    }

    /// Removes the cells of a draft, but those that may be kept.
    fn settle(&mut self, request: &DraftRequest<'_>, draft: &[Token]) {
        let id = request.sequence;
        let mut n_kept = self.sequence(id).end;
        if self.kind == DraftKind::Simple && !draft.is_empty() {
            let last = tokens_from(request, position(request)).next().expect("a token was sampled");
            let drafted: Vec<Token> = std::iter::once(last).chain(draft[..draft.len() - 1].iter().copied()).collect();
            n_kept += u32::try_from(drafted.len()).expect("a draft is short");
            self.sequence_mut(id).drafted = drafted;
        }
        if !self.context.cut(id, n_kept) {
            self.clear(id);
        }
    }

    fn compute<T>(
        &mut self,
        target: &Context,
        call: impl FnOnce(&mut Drafter) -> std::result::Result<T, String>,
    ) -> std::result::Result<T, String> {
        let Self { drafter, context, kernels, .. } = self;
        // SAFETY: the runner drops the draft model before the context of the target.
        unsafe { target.lend_threads(context, *kernels, || call(drafter)) }
    }

    fn is_in_vocabulary(&self, token: Token) -> bool {
        is_in_vocabulary(token, self.context.model.n_vocab())
    }

    fn sequence(&self, KvSeqId(id): KvSeqId) -> &DraftSequence {
        &self.sequences[usize::from(id)]
    }

    fn sequence_mut(&mut self, KvSeqId(id): KvSeqId) -> &mut DraftSequence {
        &mut self.sequences[usize::from(id)]
    }
}

/// Logs that the draft model of `target`, if its settings name one, drafts nothing, and why.
pub(super) fn warn_unused(target: &Model, reason: &str) {
    if let Some(DraftModelConfig { path, .. }) = &target.config.draft {
        tracing::warn!("the draft model {} is not used: {reason}", path.as_deref().unwrap_or(target.path()).display());
    }
}

#[cfg(test)]
pub(super) fn layer_inputs() -> impl Iterator<Item = (&'static str, bool)> {
    checks::LAYER_INPUTS.into_iter()
}

/// A draft model that was loaded with its target.
pub(super) struct LoadedDraftModel {
    config: DraftModelConfig,
    kind: DraftKind,
    /// `None` for layers of the target.
    model: Option<Arc<Model>>,
}

impl LoadedDraftModel {
    /// Loads the draft model that `config` names, if any, and checks that it can draft for `target`. A target from whose cache
    /// rejected tokens cannot be removed has none.
    ///
    /// # Errors
    /// As [`Model::load`]; [`Error::InvalidConfig`] if it cannot draft for this model.
    pub(super) fn load(config: &ModelConfig, target: &Model) -> Result<Option<Self>> {
        let Some(settings) = config.draft.as_ref().filter(|_| config.scope != LoadScope::Vocabulary) else { return Ok(None) };
        settings.validate()?;
        if target.keeps_states() || target.n_swa() > 0 {
            return Ok(None);
        }
        let path = settings.path.as_deref().unwrap_or(target.path());
        let file = Metadata::open(path).map_err(|reason| Error::ModelLoad { path: path.to_owned(), reason })?;
        let kind = settings.kind.unwrap_or_else(|| checks::kind_of(&file));
        let load = |path: &std::path::PathBuf| {
            let own = ModelConfig {
                path: path.clone(),
                n_gpu_layers: settings.n_gpu_layers,
                placement: settings.placement.clone(),
                load_mtp: kind == DraftKind::Mtp,
                adapters: Vec::new(),
                overrides: Vec::new(),
                media: None,
                draft: None,
                is_draft: true,
                ..config.clone()
            };
            Model::load(&own, |_| {}).map(Arc::new)
        };
        let model = settings.path.as_ref().map(load).transpose()?;
        let drafting = model.as_deref().unwrap_or(target);
        if model.is_none() && kind != DraftKind::Mtp {
            return Err(refusal(target, "its file has no layers that predict further tokens; set draft_model to a file"));
        }
        checks::check(kind, target, drafting, &file).map_err(|reason| refusal(drafting, &reason))?;
        tracing::info!("{} drafts for this model ({})", drafting.path().display(), kind.name());
        Ok(Some(Self { config: settings.clone(), kind, model }))
    }

    /// Returns the estimated size of a token, and the bytes for each sequence id that neither the context nor its buffers include: the
    /// candidates of llama.cpp's sampler, which has all tokens once it has drafted, and a row of logits.
    pub(super) fn memory(&self, target: &Model) -> DraftMemory {
        let DraftModelConfig { type_k, type_v, .. } = self.config;
        let kv_bytes_per_token = match &self.model {
            Some(model) => model.kv_bytes_per_token(type_k, type_v),
            None => target.kv_bytes_per_token(type_k, type_v) / u64::from(target.n_layers().max(1)),
        };
        let n_vocab = self.model.as_deref().unwrap_or(target).n_vocab();
        let bytes_per_sequence = (n_vocab * (size_of::<sys::llama_token_data>() + size_of::<f32>())) as u64;
        DraftMemory { kv_bytes_per_token, bytes_per_sequence }
    }

    /// Creates a draft context to measure its memory, and returns it with whether its weights are its own.
    ///
    /// # Errors
    /// llama.cpp's reason.
    pub(super) fn measure(
        &self,
        target: &RawContext,
        config: &ResolvedConfig,
        n_seq_max: u32,
    ) -> std::result::Result<Option<(RawContext, bool)>, String> {
        if config.draft.is_none() {
            return Ok(None);
        }
        let config = self.context_config(config);
        let raw = RawContext::new(self.model_of(target), self.context_params(target, &config, n_seq_max), config.kernels)?;
        Ok(Some((raw, self.model.is_some())))
    }

    fn model_of<'a>(&'a self, target: &'a RawContext) -> &'a Arc<Model> {
        self.model.as_ref().unwrap_or(&target.model)
    }

    /// Returns the configuration of the draft context. Its attention is llama.cpp's.
    fn context_config(&self, config: &ResolvedConfig) -> ResolvedConfig {
        let mut own = config.clone();
        (own.settings.type_k, own.settings.type_v) = (self.config.type_k, self.config.type_v);
        if self.model.is_some() {
            own.settings.rope = RopeConfig::default();
        }
        own.kernels = EnabledKernels { attention: false, products: config.kernels.products };
        own.flash_attention = FlashAttention::Auto;
        own
    }

    fn context_params(&self, target: &RawContext, config: &ResolvedConfig, n_seq_max: u32) -> sys::llama_context_params {
        let mut params = params::params(config, n_seq_max);
        params.ctx_other = target.as_ptr();
        // A decode of the target, and a row of each sequence that completes an earlier decode.
        params.n_batch += n_seq_max;
        params.n_outputs_max = n_seq_max;
        match self.kind {
            DraftKind::Simple => {}
            DraftKind::Mtp => params.ctx_type = sys::LLAMA_CONTEXT_TYPE_MTP,
            DraftKind::Eagle3 | DraftKind::DFlash | DraftKind::DSpark => {
                params.n_ubatch = params.n_ubatch.min(MAX_OUTPUT_ROWS);
                params.n_outputs_max = n_seq_max.max(MAX_OUTPUT_ROWS);
            }
        }
        params
    }
}

fn refusal(model: &Model, reason: &str) -> Error {
    let message = format!("draft_model {} cannot draft for this model: {reason}", model.path().display());
    Error::InvalidConfig { param: "draft_model", message }
}

fn max_draft(kind: DraftKind, speculation: SpeculationConfig) -> u32 {
    match kind {
        DraftKind::Eagle3 | DraftKind::Mtp => speculation.max_draft.unwrap_or(FIXED_LENGTH),
        DraftKind::Simple | DraftKind::DFlash | DraftKind::DSpark => speculation.max_draft(),
    }
    .min(MAX_OUTPUT_ROWS - 1)
}

fn raw_request(request: &DraftRequest<'_>) -> DrafterRequest {
    let token = tokens_from(request, position(request)).next().expect("a token was sampled");
    let (position, max_draft) = (position(request).cast_signed(), request.max_draft.cast_signed());
    DrafterRequest { id: i32::from(request.sequence.0), token, position, max_draft }
}

/// Returns the position of the last token, which is not computed yet.
fn position(request: &DraftRequest<'_>) -> u32 {
    let [prompt, own] = request.tokens;
    u32::try_from(prompt.len() + own.len()).expect("a sequence fits its context") - 1
}

fn tokens_from<'a>(request: &DraftRequest<'a>, start: u32) -> impl Iterator<Item = Token> + use<'a> {
    let [prompt, own] = request.tokens;
    let start = start as usize;
    let prompt_rest = &prompt[start.min(prompt.len())..];
    let own_rest = &own[start.saturating_sub(prompt.len()).min(own.len())..];
    prompt_rest.iter().chain(own_rest).copied()
}
