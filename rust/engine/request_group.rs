//! A request inside the worker: what its branches share, and how far each of them is.
//!
//! Branches of one stream that begin with the same tokens, computed in the same way, are one job, however differently they go on. A
//! stream whose branches begin with other tokens, or with other adapters, has several jobs; what those have in common of their
//! prompts they find in the cache as any two requests do.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cache::{AdapterSchedule, AdapterSet, Provenance};
use crate::engine::pending_prompt_report::PendingPromptReport;
use crate::engine::runner::KvSeqId;
use crate::engine::scheduling_key::SchedulingKey;
use crate::engine::stream::Sender;
use crate::request::{Diversity, Event, PlacedMedia, Prompt, Request, Task, Token, is_of_medium};
use crate::sampling::{DistinctFirstTokens, Sampler};

/// A request, from its submission to the end of its last branch.
pub(crate) struct RequestGroup {
    /// Names it. Where its stream has several jobs, that of the first is the stream's.
    pub(crate) request_id: u64,
    /// The request as its reader knows it.
    pub(crate) stream_id: u64,
    /// What was asked for, as far as all branches have it in common: nothing of how they go on is read here.
    pub(crate) request: Arc<Request>,
    /// How its branches go on, in order.
    pub(crate) ways: Vec<Arc<BranchSpec>>,
    /// Shared by all branches, as is what follows: with their suffix.
    pub(crate) prompt: Arc<[Token]>,
    /// The pictures and sounds of the prompt, in order.
    pub(crate) media: Arc<[PlacedMedia]>,
    /// How its prompt and its branches are computed.
    pub(crate) variants: AdapterSchedule,
    /// The adapters that are on where each counts from the beginning.
    pub(crate) asked_for: AdapterSet,
    /// Shared by the jobs of its stream.
    pub(crate) sender: Arc<Sender>,
    /// How far each of its completions is.
    pub(crate) branches: Vec<Branch>,
    /// Whether some branch was in a slot.
    pub(crate) has_started: bool,
    /// Until its last branch is in a slot.
    pub(crate) waiting: Option<QueuePermit>,
    /// From this place on its branches share nothing, since tokens before it are grouped.
    pub(crate) grouped_from: u32,
    /// What of its prompt was written here, and stands in the tokens that it was written in.
    pub(crate) written: Vec<Range<u32>>,
    /// What it waits for instead of computing it too.
    pub(crate) awaits: Option<PendingPrefix>,
    /// The turn in which it came: how many branches had been started before, of whatever request.
    pub(crate) arrived: u64,
    /// The turn in which it came or last got a slot, whichever is later.
    pub(crate) last_served: u64,
    /// The logits after the prompt, from the moment it is computed until the last branch has started.
    pub(crate) prompt_logits: Option<Arc<[f32]>>,
    /// Who keeps the prompt's cells in the meantime.
    pub(crate) keeper: PromptHolder,
    /// What its stream is still to hear of the prompt, until a branch starts that tells it.
    pub(crate) untold: Option<PendingPromptReport>,
    /// What the running step has made for the stream.
    pub(crate) events: Vec<Event>,
    /// Whether the beams of a search share cells.
    pub(crate) sharing: BeamSharing,
}

/// Whether the beams of a search share the cells of what their texts have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum BeamSharing {
    /// They do, as their forks made them.
    #[default]
    Forked,
    /// Some may not: each was restored by itself after a preemption.
    Separate,
    /// They do. After a preemption, what they have in common is computed once for all of them.
    Recomputed,
}

/// How some branches of a job go on: what one request has asked for.
pub(crate) struct BranchSpec {
    /// The first of them, as their stream counts its branches.
    pub(crate) first: u32,
    /// How many they are: of a search, one for each beam.
    pub(crate) n: u32,
    /// What was asked for, but for its prompt, its stop strings, its adapters, and the biases and the prompt of its penalties.
    pub(crate) request: Arc<Request>,
    pub(crate) stops: Arc<[String]>,
    /// What the branches' samplers are made from: it has seen the prompt.
    pub(crate) sampler: Sampler,
    /// Their first tokens, where no two of them are to be equal.
    pub(crate) firsts: Option<Arc<DistinctFirstTokens>>,
}

impl BranchSpec {
    /// Of a `request` whose branches are those of their stream from `first` on. `sampler` was made for it, and has seen nothing;
    /// `drawable` are the tokens of its prompt that can be drawn.
    pub(crate) fn new(first: u32, request: Request, mut sampler: Sampler, drawable: Arc<[Token]>) -> Self {
        sampler.accept_prompt(drawable);
        Self::after_prompt(first, request, sampler)
    }

    /// As [`BranchSpec::new`], of a sampler that has seen the prompt.
    pub(crate) fn after_prompt(first: u32, mut request: Request, sampler: Sampler) -> Self {
        (request.prompt, request.suffix) = (Prompt::default(), Vec::new());
        (request.sampling.logit_bias, request.sampling.penalty_prompt) = (Vec::new(), None);
        let stops = std::mem::take(&mut request.stop).into();
        let n = request.diversity.beams().map_or(request.n, |beams| beams.width);
        let is_distinct = request.diversity == Diversity::Distinct;
        let firsts = is_distinct.then(|| Arc::new(DistinctFirstTokens::new(&sampler, request.seed, n)));
        Self { first, n, request: Arc::new(request), stops, sampler, firsts }
    }

    /// Bytes that it takes, about, but for the prompt.
    pub(crate) fn n_bytes(&self) -> usize {
        let held = self.request.constraint.as_ref().map_or(0, |constraint| constraint.0.n_bytes());
        let stops: usize = self.stops.iter().map(|stop| size_of::<String>() + stop.len()).sum();
        size_of::<Self>() + size_of::<Request>() + self.sampler.n_bytes() + held + stops
    }
}

/// How far one completion of a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Branch {
    /// It was never in a slot.
    Waiting,
    /// It is in a slot.
    Running,
    /// It was in a slot and waits to be placed again.
    Preempted,
    /// Its stream has heard of its end.
    Finished,
}

/// Who keeps the cells of a prompt that is computed, while branches wait that will begin with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PromptHolder {
    /// Nobody: there is nothing to keep, or its cells were needed.
    Nobody,
    /// Whoever gets the next free sequence id.
    Wanted,
    /// This sequence id.
    Id(KvSeqId),
}

impl PromptHolder {
    /// The prompt's cells are to be kept, where they are not.
    pub(crate) fn want(&mut self) {
        if *self == Self::Nobody {
            *self = Self::Wanted;
        }
    }

    pub(crate) fn id(self) -> Option<KvSeqId> {
        match self {
            Self::Id(id) => Some(id),
            Self::Nobody | Self::Wanted => None,
        }
    }
}

impl RequestGroup {
    /// Of requests without adapters that came in turn 0; who submits it and the worker say otherwise. All of them begin as the
    /// first does; each comes with the place of its first branch in the stream, and with a sampler that was made for it and has seen
    /// nothing.
    ///
    /// Called on the thread that submits it: the cost grows with the prompt, as that of nothing does that a branch starts with.
    ///
    /// # Panics
    /// If there are no requests.
    pub(crate) fn new(
        request_id: u64,
        mut requests: Vec<(u32, Request, Sampler)>,
        sender: Arc<Sender>,
        waiting: QueuePermit,
    ) -> Self {
        let (_, first, _) = requests.first_mut().expect("a job has a request");
        let media: Arc<[PlacedMedia]> = first.prompt.media().into();
        let mut prompt = std::mem::take(&mut first.prompt).into_tokens();
        prompt.append(&mut first.suffix);
        let prompt: Arc<[Token]> = prompt.into();
        // Only what can be drawn can be repeated.
        let drawable =
            if media.is_empty() { Arc::clone(&prompt) } else { prompt.iter().copied().filter(|&id| !is_of_medium(id)).collect() };
        let untold = PendingPromptReport::new(first);
        let way = |(first, request, sampler)| BranchSpec::new(first, request, sampler, Arc::clone(&drawable));
        let ways: Vec<BranchSpec> = requests.into_iter().map(way).collect();
        let mut job = Self::unbuilt_fork(request_id, Arc::clone(&ways[0].request), prompt, sender, waiting);
        job.make(ways);
        Self { media, untold: Some(untold), ..job }
    }

    /// Of branches that will begin with `prompt`, and of which nothing more is known yet than that they go on somehow as `request`
    /// does: it keeps its place in the queue, and the prompt's cells where they are computed, until [`RequestGroup::make`]. It tells nothing
    /// of its prompt.
    pub(crate) fn unbuilt_fork(
        request_id: u64,
        request: Arc<Request>,
        prompt: Arc<[Token]>,
        sender: Arc<Sender>,
        waiting: QueuePermit,
    ) -> Self {
        Self {
            request_id,
            stream_id: request_id,
            request,
            ways: Vec::new(),
            prompt,
            media: Arc::from([]),
            variants: AdapterSchedule::default(),
            asked_for: AdapterSet::default(),
            sender,
            branches: Vec::new(),
            has_started: false,
            waiting: Some(waiting),
            grouped_from: u32::MAX,
            written: Vec::new(),
            awaits: None,
            arrived: 0,
            last_served: 0,
            prompt_logits: None,
            keeper: PromptHolder::Nobody,
            untold: None,
            events: Vec::new(),
            sharing: BeamSharing::default(),
        }
    }

    /// It is known how its branches go on.
    ///
    /// # Panics
    /// If there are none.
    pub(crate) fn make(&mut self, ways: Vec<BranchSpec>) {
        self.request = Arc::clone(&ways[0].request);
        self.branches = vec![Branch::Waiting; ways.iter().map(|way| way.n as usize).sum()];
        self.ways = ways.into_iter().map(Arc::new).collect();
    }

    /// Whether it is not known yet how its branches go on.
    pub(crate) fn is_unbuilt(&self) -> bool {
        self.branches.is_empty()
    }

    /// How its branch `index` goes on, and which of the branches that go on like that it is.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn way(&self, index: u32) -> (&Arc<BranchSpec>, u32) {
        let mut nth = index;
        for way in &self.ways {
            if nth < way.n {
                return (way, nth);
            }
            nth -= way.n;
        }
        panic!("a job has as many branches as its requests ask for")
    }

    /// The next branch that was never in a slot.
    pub(crate) fn next_branch(&self) -> Option<u32> {
        let at = self.branches.iter().position(|&branch| branch == Branch::Waiting)?;
        Some(u32::try_from(at).expect("a request has few branches"))
    }

    /// Whether some branch was never in a slot.
    pub(crate) fn has_waiting(&self) -> bool {
        self.branches.contains(&Branch::Waiting)
    }

    /// Branches that start together, or not at all.
    pub(crate) fn n_together(&self) -> u32 {
        self.request.diversity.beams().map_or(1, |beams| beams.width)
    }

    pub(crate) fn n_running(&self) -> usize {
        self.branches.iter().filter(|&&branch| branch == Branch::Running).count()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.branches.iter().all(|&branch| branch == Branch::Finished)
    }

    pub(crate) fn set(&mut self, index: u32, branch: Branch) {
        self.branches[index as usize] = branch;
    }

    /// Whether a branch that was never in a slot could start: the first, one after it where that was cancelled, or any once the
    /// prompt is computed or where each computes its own.
    pub(crate) fn can_start(&self) -> bool {
        let is_computing = || self.branches.iter().any(|branch| matches!(branch, Branch::Running | Branch::Preempted));
        self.has_waiting() && (self.prompt_logits.is_some() || !is_computing() || !self.shares_prompt())
    }

    /// Its branch that is the stream's `index`th.
    pub(crate) fn place_of(&self, index: u32) -> Option<u32> {
        let mut n_before = 0;
        for way in &self.ways {
            if (way.first..way.first + way.n).contains(&index) {
                return Some(n_before + index - way.first);
            }
            n_before += way.n;
        }
        None
    }

    /// Whether all branches begin with the same cells: nothing of the prompt is grouped before all of it is computed.
    pub(crate) fn shares_prompt(&self) -> bool {
        self.grouped_from >= self.n_prompt()
    }

    /// The slot that it waits for: no other one will do.
    pub(crate) fn n_cells_required(&self) -> Option<u32> {
        self.request.slot.filter(|_| matches!(self.request.task, Task::Load(_)))
    }

    /// Whether `slot` holds what its sequence leaves there: not where a task runs in whatever slot is free.
    pub(crate) fn fills(&self, slot: u32) -> bool {
        self.request.task == Task::Complete || self.request.slot == Some(slot)
    }

    /// Whether the next branch takes what others computed of its prompt.
    pub(crate) fn uses_cache(&self) -> bool {
        self.request.uses_cache
    }

    /// The first token of its prompt that the next branch tells the log-probability of, where it tells any: the prompt's first has
    /// none.
    pub(crate) fn logprobs_from(&self) -> Option<u32> {
        let logprobs = self.untold.as_ref()?.logprobs.as_ref()?;
        Some(logprobs.n_told.max(1))
    }

    /// Whether what earlier prompts were told is enough for what it tells, and to be used.
    pub(crate) fn uses_logprob_cache(&self) -> bool {
        self.request.prompt_logprobs.is_some_and(|n| n <= 1) && self.request.uses_cache
    }

    pub(crate) fn n_prompt(&self) -> u32 {
        u32::try_from(self.prompt.len()).expect("a prompt that fits the context was queued")
    }

    /// Who computes and uses what is cached of it.
    pub(crate) fn maker(&self) -> Provenance {
        Provenance { request_id: self.request_id, owner: self.request.owner.clone() }
    }

    /// Where its branch `index` stands among all others.
    pub(crate) fn seniority(&self, index: u32) -> SchedulingKey {
        SchedulingKey::new(self.arrived, self.request.priority, self.request_id, index)
    }
}

/// A prefix that a running sequence is still computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingPrefix {
    /// Which sequence.
    pub(crate) owner: SchedulingKey,
    /// `[0, n_tokens)` of the prompt.
    pub(crate) n_tokens: u32,
    /// As much was known when the wait began.
    pub(crate) n_known: u32,
}

/// A place in the queue: counted from its making until it is dropped.
pub(crate) struct QueuePermit {
    n_waiting: Arc<AtomicUsize>,
}

impl QueuePermit {
    /// Takes a place in a queue of at most `max_queue`.
    ///
    /// # Errors
    /// How many wait, if that is the limit.
    pub(crate) fn acquire(n_waiting: &Arc<AtomicUsize>, max_queue: usize) -> Result<Self, usize> {
        let one_more = |n| (n < max_queue).then_some(n + 1);
        n_waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)?;
        Ok(Self { n_waiting: Arc::clone(n_waiting) })
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.n_waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
