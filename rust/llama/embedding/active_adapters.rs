//! The adapters that embeddings are computed with.

use crate::engine::runner::{AdapterSchedule, AdapterSet, invoked_at};
use crate::llama::model::adapters::Adapter;
use crate::request::{AdapterScale, Prompt, PromptRun, Token};

pub(super) struct ActiveAdapters {
    pub(super) unconditional: AdapterSet,
    /// All adapters and the invocation of the activated one (aLoRA); at most one is active.
    activated: Option<(AdapterSet, Vec<Token>)>,
}

impl ActiveAdapters {
    pub(super) fn new(active: &[AdapterScale], loaded: &[Adapter]) -> Self {
        let invocation = |id: u32| loaded.get(id as usize).map_or(&[][..], |adapter| &adapter.invocation);
        let all = || active.iter().copied().filter(|&(_, scale)| scale != 0.0);
        let unconditional = AdapterSet::with_adapters(all().filter(|&(id, _)| invocation(id).is_empty()));
        let invoked = all().map(|(id, _)| invocation(id)).find(|invocation| !invocation.is_empty());
        Self { unconditional, activated: invoked.map(|invocation| (AdapterSet::with_adapters(all()), invocation.to_vec())) }
    }

    pub(super) fn schedule(&self, tokens: impl IntoIterator<Item = Token>) -> AdapterSchedule {
        let invoked_at_index =
            self.activated.as_ref().and_then(|(with, invocation)| Some((invoked_at(tokens, invocation)?, with)));
        match invoked_at_index {
            Some((index, with)) => AdapterSchedule::changing(self.unconditional.clone(), index, with.clone()),
            None => self.unconditional.clone().into(),
        }
    }
}

/// Splits the run of tokens that contains `index` there.
pub(super) fn split_before(prompt: &Prompt, index: Option<u32>) -> Prompt {
    let (mut parts, mut start) = (Prompt::default(), 0);
    for run in prompt.runs() {
        let offset = index.and_then(|index| (index as usize).checked_sub(start));
        match (run, offset) {
            (PromptRun::Tokens(tokens), Some(n)) if n < tokens.len() => {
                parts.push(PromptRun::Tokens(tokens[..n].to_vec()));
                parts.push(PromptRun::Tokens(tokens[n..].to_vec()));
            }
            _ => parts.push(run.clone()),
        }
        start += run.n_tokens();
    }
    parts
}
