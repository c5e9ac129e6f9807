//! Checks of requests against an engine, on the caller's thread.

use std::fmt::Display;

use super::Inner;
use crate::cache;
use crate::config::DraftKind;
use crate::engine::features::hooks;
use crate::engine::features::state::GroupFeatures;
use crate::engine::ids::BranchIndex;
use crate::engine::runner::{AdapterSchedule, AdapterSet, MemoryKind, Runner};
use crate::error::{Error, Result};
use crate::request::{
    AdapterScale, MAX_COMPLETIONS, Prompt, Request, Task, Token, ensure, ensure_value, reject, validate_adapters,
};
use crate::sampling::{Sampler, TokenStrings};

pub(super) struct PromptGroup {
    /// Requests with an equal beginning, at least one, each with its first branch.
    pub(super) requests: Vec<(BranchIndex, Request)>,
    pub(super) adapter_schedule: AdapterSchedule,
    pub(super) requested_adapters: AdapterSet,
    pub(super) features: GroupFeatures,
}

pub(super) fn merge(singles: Vec<PromptGroup>) -> Vec<PromptGroup> {
    let mut merged: Vec<PromptGroup> = Vec::new();
    let mut n_branches = 0;
    for mut single in singles {
        let (first, request) = &mut single.requests[0];
        *first = BranchIndex(n_branches);
        n_branches += request.n;
        let has_equal_beginning = |other: &&mut PromptGroup| {
            other.adapter_schedule == single.adapter_schedule && other.requests[0].1.can_share_prompt_with(request)
        };
        match merged.iter_mut().find(has_equal_beginning) {
            Some(other) => other.requests.append(&mut single.requests),
            None => merged.push(single),
        }
    }
    merged
}

pub(super) fn check_branches(requests: &[Request]) -> Result<()> {
    let ensure = |holds: bool, message: &dyn Display| ensure(holds, "branches", message);
    ensure(!requests.is_empty(), &"branches is empty; it must have at least one item")?;
    if requests.len() == 1 {
        return Ok(());
    }
    let n: u64 = requests.iter().map(|request| u64::from(request.n)).sum();
    let limit = format_args!("it may have at most {MAX_COMPLETIONS}");
    ensure(n <= u64::from(MAX_COMPLETIONS), &format_args!("branches has {n} items; {limit}"))?;
    let are_completions = requests.iter().all(|request| request.task == Task::Complete);
    ensure(are_completions, &"branches is set for a task without completions; omit it")?;
    let param = requests.iter().find_map(|request| request.diversity.param());
    let Some(param) = param else { return Ok(()) };
    reject("branches", format!("{param} applies to the n completions of one request; omit it, or omit branches"))
}

impl Inner {
    pub(super) fn validate(&self, mut request: Request) -> Result<PromptGroup> {
        let Self { limits, model, .. } = self;
        request.validate(model.n_vocab)?;
        let (adapters, mut invoked_at) = match (&request.task, request.adapters.take()) {
            (Task::Load(saved), _) => (saved.adapters.clone(), saved.invoked_at),
            (_, Some(adapters)) => (adapters, request.invoked_at),
            (_, None) => (self.default_adapters(), request.invoked_at),
        };
        model.check_adapters(&adapters)?;
        self.check_branch_options(&request)?;
        let requested_adapters = AdapterSet::with_adapters(adapters.iter().copied());
        // Must precede the adapter schedule: `invoked_at` is a position in the retokenized prompt.
        let mut features = GroupFeatures::default();
        hooks::on_validate(self, &mut request, &mut features, &requested_adapters, &mut invoked_at)?;
        let adapter_schedule = model.adapter_schedule(&adapters, invoked_at, &request.prompt, &request.suffix)?;
        if model.memory.is_a_state() {
            // Also at the end of the shared prompt and before the first token whose logprobs are reported.
            let n_shared = u32::try_from(request.prompt.n_tokens()).ok().filter(|_| !request.suffix.is_empty());
            let positions = [adapter_schedule.change(), n_shared, request.prompt_logprobs_from.checked_sub(1)];
            request.checkpoints_at.extend(positions.into_iter().flatten().filter(|&position| position > 0));
            request.checkpoints_at.sort_unstable();
            request.checkpoints_at.dedup();
        }
        let (n_prompt, n_ctx) = (request.n_tokens(), limits.n_ctx_slot as usize);
        if n_prompt >= n_ctx {
            return Err(Error::ContextOverflow { n_prompt, n_ctx });
        }
        let n_at_once = request.prompt.media().iter().filter(|of| of.media.sees_ahead()).map(|of| of.media.n_tokens()).max();
        if let Some(n) = n_at_once.filter(|&n| n > limits.n_ubatch) {
            let message = format!(
                "an image of {n} tokens is computed in one decode, which has at most {} tokens (n_ubatch); use a smaller image or raise n_ubatch",
                limits.n_ubatch
            );
            return reject("prompt", message);
        }
        Ok(PromptGroup { requests: vec![(BranchIndex(0), request)], adapter_schedule, requested_adapters, features })
    }

    /// Checks what depends on the configuration of this engine, other than the prompt.
    pub(super) fn check_branch_options(&self, request: &Request) -> Result<()> {
        let (limits, n_ctx) = (&self.limits, self.limits.n_ctx_slot as usize);
        request.slot.map_or(Ok(()), |slot| self.check_slot(slot))?;
        if limits.grouping.is_some() && request.context_shift.is_some() {
            let message =
                "contexts cannot be shifted with self-extend (grp_attn_n above 1); omit context_shift, or set grp_attn_n to 1";
            return reject("context_shift", message);
        }
        let n_penalised = request.sampling.penalty_prompt.as_ref().map_or(0, Vec::len);
        let limit = format_args!("it may have at most {n_ctx}, the context of a slot");
        ensure(n_penalised <= n_ctx, "penalty_prompt", format_args!("penalty_prompt has {n_penalised} tokens; {limit}"))
    }

    pub(super) fn check_slot(&self, slot: u32) -> Result<()> {
        let n_slots = self.limits.n_slots;
        ensure_value(slot < n_slots, "slot", slot, format_args!("less than {n_slots}, the number of slots"))
    }

    /// Creates the sampler of a request. Called on the caller's thread: on the worker's it would delay the running streams.
    pub(super) fn sampler(&self, request: &mut Request) -> Sampler {
        let ModelCapabilities { suppressed, token_strings, .. } = &self.model;
        request.sampling.logit_bias.extend(suppressed.iter().map(|&token| (token, f32::NEG_INFINITY)));
        Sampler::new(&request.sampling, request.seed, token_strings, self.limits.n_ctx_slot)
    }
}

/// Capabilities of the model, copied from the runner, which lives on the worker thread.
pub(super) struct ModelCapabilities {
    pub(super) n_vocab: usize,
    pub(super) n_adapters: u32,
    /// Invocation tokens of each adapter; empty for an adapter that applies from the first token.
    pub(super) invocations: Vec<Vec<Token>>,
    pub(super) token_strings: TokenStrings,
    pub(super) memory: MemoryKind,
    pub(super) is_repeatable: bool,
    pub(super) uses_own_kernels: bool,
    pub(super) draft_kind: Option<DraftKind>,
    pub(super) suppressed: Vec<Token>,
}

impl ModelCapabilities {
    pub(super) fn of(runner: &impl Runner) -> Self {
        Self {
            n_vocab: runner.n_vocab(),
            n_adapters: runner.n_adapters(),
            invocations: (0..runner.n_adapters()).map(|id| runner.invocation(id).to_vec()).collect(),
            token_strings: runner.token_strings(),
            memory: runner.memory_kind(),
            is_repeatable: runner.is_repeatable(),
            uses_own_kernels: runner.uses_own_kernels(),
            draft_kind: runner.draft_model().map(|info| info.kind),
            suppressed: runner.suppressed_tokens().to_vec(),
        }
    }

    /// Returns the active aLoRA adapter (one with invocation tokens); a text can have at most one.
    pub(super) fn check_adapters(&self, adapters: &[AdapterScale]) -> Result<Option<u32>> {
        validate_adapters(adapters, self.n_adapters)?;
        let is_activated = |&(id, scale): &AdapterScale| scale != 0.0 && !self.invocations[id as usize].is_empty();
        let mut activated = adapters.iter().copied().filter(is_activated).map(|(id, _)| id);
        let first = activated.next();
        if let (Some(first), Some(second)) = (first, activated.next()) {
            let message = format!("adapters has {first} and {second}, but a text can have at most one activated adapter (aLoRA)");
            return reject("adapters", message);
        }
        Ok(first)
    }

    /// An aLoRA adapter applies from `invoked_at`, or else from its last invocation in the text.
    pub(super) fn adapter_schedule(
        &self,
        adapters: &[AdapterScale],
        invoked_at: Option<u32>,
        prompt: &Prompt,
        suffix: &[Token],
    ) -> Result<AdapterSchedule> {
        let all = || adapters.iter().copied();
        let Some(activated) = self.check_adapters(adapters)? else { return Ok(AdapterSet::with_adapters(all()).into()) };
        let others = AdapterSet::with_adapters(all().filter(|&(id, _)| id != activated));
        let invocation = &self.invocations[activated as usize];
        let invoked_at = invoked_at.or_else(|| cache::invoked_at(prompt.ids().chain(suffix.iter().copied()), invocation));
        Ok(match invoked_at {
            Some(position) => AdapterSchedule::changing(others, position, AdapterSet::with_adapters(all())),
            None => others.into(),
        })
    }
}
