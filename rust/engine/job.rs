//! A request inside the worker: what its branches share.

use crate::engine::runner::SequenceId;
use crate::engine::stream::Sender;
use crate::request::{Event, Request, Token};

/// A request, from its submission to the end of its last branch.
pub(crate) struct Job {
    /// The request, its prompt taken out.
    pub(crate) request: Request,
    pub(crate) prompt: Vec<Token>,
    pub(crate) sender: Sender,
    /// Branches `[0, n_started)` have been in a slot.
    pub(crate) n_started: u32,
    pub(crate) n_running: u32,
    pub(crate) n_finished: u32,
    /// The logits after the prompt, from the moment it is computed until the last branch has started.
    pub(crate) prompt_logits: Option<Vec<f32>>,
    /// Keeps the prompt's cells in the meantime.
    pub(crate) holder: Option<SequenceId>,
    /// What the running step has made for the stream.
    pub(crate) events: Vec<Event>,
}

impl Job {
    pub(crate) fn new(mut request: Request, sender: Sender) -> Self {
        let prompt = std::mem::take(&mut request.prompt).into_tokens();
        Self {
            request,
            prompt,
            sender,
            n_started: 0,
            n_running: 0,
            n_finished: 0,
            prompt_logits: None,
            holder: None,
            events: Vec::new(),
        }
    }

    /// Whether a branch that was never in a slot could start: the first, or any once the prompt is computed.
    pub(crate) fn can_start(&self) -> bool {
        self.n_started == 0 || self.waits_with_prompt()
    }

    /// Whether the prompt is computed and some branch was never in a slot.
    pub(crate) fn waits_with_prompt(&self) -> bool {
        self.n_started < self.request.n && self.prompt_logits.is_some()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.n_finished == self.request.n
    }
}
