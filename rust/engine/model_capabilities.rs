//! Capabilities of the model, for checks on the callers' threads.

use crate::cache;
use crate::engine::runner::{AdapterSchedule, AdapterSet, MemoryKind, Runner};
use crate::error::{Error, Result};
use crate::request::{AdapterScale, Prompt, Token, validate_adapters};
use crate::sampling::TokenStrings;

pub(super) struct ModelCapabilities {
    pub(super) n_vocab: usize,
    pub(super) n_adapters: u32,
    /// Invocation tokens of each adapter; empty for an adapter that applies from the first token.
    pub(super) invocations: Vec<Vec<Token>>,
    pub(super) token_strings: TokenStrings,
    pub(super) memory: MemoryKind,
    pub(super) is_repeatable: bool,
    pub(super) uses_own_kernels: bool,
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
            return Err(Error::InvalidRequest { param: "adapters", message });
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
