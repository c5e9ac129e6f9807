//! A request inside the worker: what its branches share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::cache::Variant;
use crate::engine::runner::SequenceId;
use crate::engine::stream::Sender;
use crate::request::{ContextShift, Event, Request, SamplingParams, SharedConstraint, Task, Token};

/// A request, from its submission to the end of its last branch.
pub(crate) struct Job {
    pub(crate) prompt: Vec<Token>,
    pub(crate) n: u32,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) stops: Arc<[String]>,
    pub(crate) seed: u32,
    pub(crate) sampling: SamplingParams,
    pub(crate) context_shift: Option<ContextShift>,
    pub(crate) max_predict_time: Option<Duration>,
    pub(crate) n_indent: u32,
    uses_cache: bool,
    pub(crate) prompt_logprobs: Option<u32>,
    pub(crate) reports_progress: bool,
    /// Where its prompt's state is kept, besides at its end.
    pub(crate) snapshots_at: Vec<u32>,
    pub(crate) constraint: Option<SharedConstraint>,
    /// How its prompt is computed.
    pub(crate) variant: Variant,
    /// The slot that it would like.
    pub(crate) slot: Option<u32>,
    pub(crate) task: Task,
    pub(crate) sender: Sender,
    /// Until its last branch is in a slot.
    pub(crate) waiting: Option<Waiting>,
    /// What it waits for instead of computing it too.
    pub(crate) awaits: Option<Awaits>,
    /// When it came or last got a slot, whichever is later, counted in such events.
    pub(crate) last_served: u64,
    /// Branches `[0, n_started)` have been in a slot.
    pub(crate) n_started: u32,
    pub(crate) n_running: u32,
    pub(crate) n_finished: u32,
    /// The logits after the prompt, from the moment it is computed until the last branch has started.
    pub(crate) prompt_logits: Option<Arc<[f32]>>,
    /// Keeps the prompt's cells in the meantime.
    pub(crate) holder: Option<SequenceId>,
    /// What the running step has made for the stream.
    pub(crate) events: Vec<Event>,
}

impl Job {
    pub(crate) fn new(request: Request, sender: Sender, waiting: Waiting) -> Self {
        let Request { prompt, n, max_tokens, stop, seed, sampling, constraint, slot, task, .. } = request;
        let Request { context_shift, max_predict_time, n_indent, uses_cache, prompt_logprobs, reports_progress, .. } = request;
        Self {
            prompt: prompt.into_tokens(),
            n,
            max_tokens,
            stops: stop.into(),
            seed,
            sampling,
            context_shift,
            max_predict_time,
            n_indent,
            uses_cache,
            prompt_logprobs,
            reports_progress,
            snapshots_at: request.snapshots_at,
            constraint,
            variant: Variant::default(),
            slot,
            task,
            sender,
            waiting: Some(waiting),
            awaits: None,
            last_served: 0,
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
        self.n_started < self.n && self.prompt_logits.is_some()
    }

    /// The slot that it waits for: no other one will do.
    pub(crate) fn must_have(&self) -> Option<u32> {
        self.slot.filter(|_| matches!(self.task, Task::Load(_)))
    }

    /// Whether `slot` holds what its sequence leaves there: not where a task runs in whatever slot is free.
    pub(crate) fn fills(&self, slot: u32) -> bool {
        self.task == Task::Complete || self.slot == Some(slot)
    }

    /// Whether the next branch takes what others computed of its prompt. What a branch tells of the prompt it computes itself.
    pub(crate) fn uses_cache(&self) -> bool {
        self.uses_cache && (self.prompt_logprobs.is_none() || self.n_started > 0)
    }

    pub(crate) fn n_prompt(&self) -> u32 {
        u32::try_from(self.prompt.len()).expect("a prompt that fits the context was queued")
    }

    pub(crate) fn is_done(&self) -> bool {
        self.n_finished == self.n
    }
}

/// A prefix that a running sequence is still computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Awaits {
    /// Which sequence, by its age.
    pub(crate) owner: (u64, u32),
    /// `[0, n_tokens)` of the prompt.
    pub(crate) n_tokens: u32,
    /// As much was known when the wait began.
    pub(crate) n_known: u32,
}

/// A place in the queue: counted from its making until it is dropped.
pub(crate) struct Waiting {
    n_waiting: Arc<AtomicUsize>,
}

impl Waiting {
    /// Takes a place in a queue of at most `max_queue`.
    ///
    /// # Errors
    /// How many wait, if that is the limit.
    pub(crate) fn take_place(n_waiting: &Arc<AtomicUsize>, max_queue: usize) -> Result<Self, usize> {
        let one_more = |n| (n < max_queue).then_some(n + 1);
        n_waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)?;
        Ok(Self { n_waiting: Arc::clone(n_waiting) })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.n_waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
