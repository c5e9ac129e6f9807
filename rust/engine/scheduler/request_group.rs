//! A request inside the worker: the state that its branches share, and the state of each branch.
//!
//! Branches of one stream that begin with the same tokens and adapters are one group, even if their parameters differ. Groups of
//! one stream share the common part of their prompts through the cache, as any two requests do.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::cache::{AdapterSchedule, AdapterSet};
use crate::engine::cache_manager::guards::PathGuard;
use crate::engine::features::hooks;
use crate::engine::features::state::{GroupFeatures, SequenceFeatures, SpecFeatures};
use crate::engine::ids::{BranchIndex, BranchKey, GroupId, MemberIndex, StreamId};
use crate::engine::numbers::to_u32;
#[cfg(test)]
use crate::engine::output::completions::{Completions, open_stream};
use crate::engine::output::stream::Sender;
use crate::engine::runner::KvSeqId;
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::error::Result;
use crate::request::{Event, PlacedMedia, Prompt, Request, Task, Token, is_of_medium};
use crate::sampling::Sampler;
#[cfg(test)]
use crate::sampling::token_strings::tests::Pieces;

pub(crate) struct RequestGroup {
    pub(crate) group_id: GroupId,
    pub(crate) stream_id: StreamId,
    /// The part of the request that all branches share: never read for the parameters of a branch.
    pub(crate) request: Arc<Request>,
    branch_specs: Vec<Arc<BranchSpec>>,
    /// Prompt and suffix, shared by all branches.
    pub(crate) prompt: Arc<[Token]>,
    pub(crate) media: Arc<[PlacedMedia]>,
    pub(crate) adapter_schedule: AdapterSchedule,
    /// The adapters that were requested, regardless of where each applies from.
    pub(crate) requested_adapters: AdapterSet,
    pub(crate) sender: Arc<Sender>,
    pub(super) branches: Vec<BranchState>,
    pub(crate) submitted: Instant,
    pub(crate) has_started: bool,
    /// Position in the queue, held until the last branch is in a slot.
    pub(super) permit: Option<QueuePermit>,
    /// First position at which its branches share no cells.
    pub(crate) shared_until: u32,
    pub(crate) features: GroupFeatures,
    /// Prefix that it waits for instead of computing it too.
    pub(super) awaited_prefix: Option<AwaitedPrefix>,
    /// Number of branches, of any request, that had started when it arrived.
    pub(super) arrived: u64,
    /// Number of branches that had started when it last got a slot, or else when it arrived.
    pub(super) last_served: u64,
    /// Logits after the prompt, once it is computed, until the last branch has started.
    pub(crate) prompt_logits: Option<Arc<[f32]>>,
    pub(super) prompt_holder: PromptHolder,
    /// State that the next branch begins with.
    pub(crate) pending: SequenceFeatures,
    pub(crate) events: Vec<Event>,
    pub(super) sharing: CellSharing,
}

/// A group that ends with this step, and the outcome of its stream; `None` if other groups of the stream continue.
pub(crate) type EndedGroup = (RequestGroup, Option<Result<()>>);

/// Sharing of cells among sequences that run together, for the common prefixes of their texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum CellSharing {
    /// All cells of common prefixes are shared.
    #[default]
    Forked,
    /// Cells may be duplicated: each sequence was reloaded separately after a preemption.
    Separate,
    /// All cells of common prefixes are shared: after a preemption, each prefix is computed once.
    Recomputed,
}

/// A request of a stream, with a sampler that has accepted nothing.
pub(crate) struct BranchRequest {
    pub(crate) first: BranchIndex,
    pub(crate) request: Request,
    pub(crate) sampler: Sampler,
}

/// Parameters of consecutive branches.
pub(crate) struct BranchSpec {
    /// The first branch with these parameters; the others follow.
    pub(crate) first: BranchIndex,
    /// Number of these branches, or of the sequences that run together for them.
    pub(crate) n: u32,
    /// The request without its prompt, stop strings, adapters, biases, and penalty prompt.
    pub(crate) request: Arc<Request>,
    pub(crate) stops: Arc<[String]>,
    /// Template of the branches' samplers; it has accepted the prompt.
    pub(crate) sampler: Sampler,
    pub(crate) features: SpecFeatures,
}

impl BranchSpec {
    pub(crate) fn new(branch_request: BranchRequest) -> Self {
        let BranchRequest { first, mut request, sampler } = branch_request;
        (request.prompt, request.suffix) = (Prompt::default(), Vec::new());
        (request.sampling.logit_bias, request.sampling.penalty_prompt) = (Vec::new(), None);
        let stops = std::mem::take(&mut request.stop).into();
        let n = request.n.max(hooks::n_together(&request));
        let mut features = SpecFeatures::default();
        hooks::on_new_spec(&mut features, &request, &sampler, n);
        Self { first, n, request: Arc::new(request), stops, sampler, features }
    }

    /// Returns the approximate size in bytes, without the prompt.
    pub(crate) fn n_bytes(&self) -> usize {
        let constraint_bytes = self.request.constraint.as_ref().map_or(0, |constraint| constraint.0.n_bytes());
        let stops: usize = self.stops.iter().map(|stop| size_of::<String>() + stop.len()).sum();
        size_of::<Self>() + size_of::<Request>() + self.sampler.n_bytes() + constraint_bytes + stops
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BranchState {
    /// Never in a slot so far.
    Waiting,
    Running,
    /// Was in a slot and waits for another one.
    Preempted,
    Finished,
}

/// Holds the cells of a computed prompt while branches wait that begin with it.
#[derive(Debug)]
pub(crate) enum PromptHolder {
    /// There is nothing to hold, or the cells were needed.
    Empty,
    /// The prompt gets the next free sequence id.
    NextFreeId,
    Path(PathGuard),
}

impl PromptHolder {
    pub(crate) fn request_holder(&mut self) {
        if matches!(self, Self::Empty) {
            *self = Self::NextFreeId;
        }
    }

    pub(crate) fn id(&self) -> Option<KvSeqId> {
        match self {
            Self::Path(path) => Some(path.id()),
            Self::Empty | Self::NextFreeId => None,
        }
    }
}

/// Returns the tokens of a prompt that can be sampled, to which penalties apply.
pub(crate) fn without_media(prompt: &Arc<[Token]>, media: &[PlacedMedia]) -> Arc<[Token]> {
    if media.is_empty() { Arc::clone(prompt) } else { prompt.iter().copied().filter(|&id| !is_of_medium(id)).collect() }
}

impl RequestGroup {
    /// Creates a group for `requests` that begin like the first. The first group of a stream reports about the prompt. O(prompt
    /// length), on the submitting thread; starting a branch is O(1).
    pub(crate) fn new(
        group_id: GroupId,
        stream_id: StreamId,
        mut requests: Vec<BranchRequest>,
        sender: Arc<Sender>,
        permit: QueuePermit,
    ) -> Self {
        let BranchRequest { request: first, .. } = requests.first_mut().expect("a group has a request");
        let media: Arc<[PlacedMedia]> = first.prompt.media().into();
        let mut prompt = std::mem::take(&mut first.prompt).into_tokens();
        prompt.append(&mut first.suffix);
        let prompt: Arc<[Token]> = prompt.into();
        let can_be_sampled = without_media(&prompt, &media);
        let mut pending = SequenceFeatures::default();
        if group_id == stream_id.first_group() {
            hooks::on_new_request(first, &mut pending);
        }
        let branch_spec = |mut branch_request: BranchRequest| {
            branch_request.sampler.accept_prompt(Arc::clone(&can_be_sampled));
            BranchSpec::new(branch_request)
        };
        let branch_specs: Vec<BranchSpec> = requests.into_iter().map(branch_spec).collect();
        let mut group = Self::unbuilt(group_id, stream_id, Arc::clone(&branch_specs[0].request), prompt, sender, permit);
        group.set_branch_specs(branch_specs);
        Self { media, pending, ..group }
    }

    /// Creates a group of forks whose branches are not known yet. It has a position in the queue, and may hold its prompt.
    pub(crate) fn unbuilt(
        group_id: GroupId,
        stream_id: StreamId,
        request: Arc<Request>,
        prompt: Arc<[Token]>,
        sender: Arc<Sender>,
        permit: QueuePermit,
    ) -> Self {
        Self {
            group_id,
            stream_id,
            request,
            branch_specs: Vec::new(),
            prompt,
            media: Arc::from([]),
            adapter_schedule: AdapterSchedule::default(),
            requested_adapters: AdapterSet::default(),
            sender,
            branches: Vec::new(),
            submitted: Instant::now(),
            has_started: false,
            permit: Some(permit),
            shared_until: u32::MAX,
            features: GroupFeatures::default(),
            awaited_prefix: None,
            arrived: 0,
            last_served: 0,
            prompt_logits: None,
            prompt_holder: PromptHolder::Empty,
            pending: SequenceFeatures::default(),
            events: Vec::new(),
            sharing: CellSharing::default(),
        }
    }

    pub(crate) fn set_branch_specs(&mut self, branch_specs: Vec<BranchSpec>) {
        self.request = Arc::clone(&branch_specs[0].request);
        self.branches = vec![BranchState::Waiting; branch_specs.iter().map(|branch_spec| branch_spec.n as usize).sum()];
        self.branch_specs = branch_specs.into_iter().map(Arc::new).collect();
    }

    pub(crate) fn is_unbuilt(&self) -> bool {
        self.branches.is_empty()
    }

    /// Returns the parameters of a member, and its index among the members with these parameters.
    pub(crate) fn branch_spec(&self, member: MemberIndex) -> (&Arc<BranchSpec>, u32) {
        let MemberIndex(mut nth) = member;
        for branch_spec in &self.branch_specs {
            if nth < branch_spec.n {
                return (branch_spec, nth);
            }
            nth -= branch_spec.n;
        }
        panic!("a group has no such branch")
    }

    pub(crate) fn next_branch(&self) -> Option<MemberIndex> {
        let waiting = (0..).zip(&self.branches).find(|&(_, &branch)| branch == BranchState::Waiting);
        waiting.map(|(member, _)| MemberIndex(member))
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.branches.contains(&BranchState::Waiting)
    }

    pub(crate) fn take_permit_if_started(&mut self) -> Option<QueuePermit> {
        if self.has_waiting() { None } else { self.permit.take() }
    }

    pub(crate) fn n_together(&self) -> u32 {
        hooks::n_together(&self.request)
    }

    pub(crate) fn n_running(&self) -> usize {
        self.branches.iter().filter(|&&branch| branch == BranchState::Running).count()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.branches.iter().all(|&branch| branch == BranchState::Finished)
    }

    pub(crate) fn state_of(&self, member: MemberIndex) -> BranchState {
        self.branches[member.0 as usize]
    }

    pub(crate) fn set(&mut self, member: MemberIndex, branch: BranchState) {
        self.branches[member.0 as usize] = branch;
    }

    /// Returns true if a waiting branch could start: the prompt is computed, no branch is computing it, or each computes its own.
    pub(crate) fn can_start(&self) -> bool {
        let is_computing = || self.branches.iter().any(|branch| matches!(branch, BranchState::Running | BranchState::Preempted));
        self.has_waiting() && (self.prompt_logits.is_some() || !is_computing() || !self.shares_prompt())
    }

    pub(crate) fn key_of(&self, branch: BranchIndex) -> Option<BranchKey> {
        let mut members = (0..).map(MemberIndex).take(self.branches.len());
        let member = members.find(|&member| self.branch_index(member) == branch)?;
        Some(BranchKey { group_id: self.group_id, member })
    }

    pub(crate) fn branch_index(&self, member: MemberIndex) -> BranchIndex {
        let (branch_spec, nth) = self.branch_spec(member);
        BranchIndex(branch_spec.first.0 + nth)
    }

    /// Returns true if all branches share the cells of the whole prompt.
    pub(crate) fn shares_prompt(&self) -> bool {
        self.shared_until >= self.n_prompt()
    }

    pub(crate) fn required_slot(&self) -> Option<u32> {
        self.request.slot.filter(|_| matches!(self.request.task, Task::Load(_)))
    }

    /// Returns true if its tokens stay in `slot`. Those of a task that runs in any free slot do not.
    pub(crate) fn keeps_contents_of(&self, slot: u32) -> bool {
        self.request.task == Task::Complete || self.request.slot == Some(slot)
    }

    /// Keeps the logits after the prompt, and its cells once an id is free, for the branches that wait.
    pub(crate) fn keep_prompt(&mut self, logits: impl FnOnce() -> Arc<[f32]>) {
        self.prompt_logits.get_or_insert_with(logits);
        self.prompt_holder.request_holder();
    }

    pub(crate) fn release_unneeded_prompt(&mut self) {
        if !self.has_waiting() {
            self.prompt_logits = None;
            self.release_holder();
        }
    }

    pub(crate) fn release_holder(&mut self) -> bool {
        std::mem::replace(&mut self.prompt_holder, PromptHolder::Empty).id().is_some()
    }

    pub(crate) fn n_prompt(&self) -> u32 {
        to_u32(self.prompt.len())
    }

    pub(crate) fn awaited_range(&self, n_found: u32) -> Range<u32> {
        self.awaited_prefix.map_or(0..0, |awaited| awaited.n_cached.min(n_found)..awaited.dependency.n_tokens.min(n_found))
    }

    pub(crate) fn scheduling_key(&self, member: MemberIndex) -> SchedulingKey {
        let branch = BranchKey { group_id: self.group_id, member };
        SchedulingKey::new(self.arrived, self.request.priority, branch)
    }
}

/// A prefix that is awaited until the running sequence `provider` has computed or reloaded its `n_tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PrefixDependency {
    pub(crate) provider: SchedulingKey,
    pub(crate) n_tokens: u32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct AwaitedPrefix {
    pub(crate) dependency: PrefixDependency,
    /// Length of the cached part when the wait began.
    pub(crate) n_cached: u32,
}

/// A position in the queue, counted until it is dropped.
pub(crate) struct QueuePermit {
    n_waiting: Arc<AtomicUsize>,
}

impl QueuePermit {
    /// Fails with the number of waiting requests, if there are `max_queue`.
    pub(crate) fn acquire(n_waiting: &Arc<AtomicUsize>, max_queue: usize) -> std::result::Result<Self, usize> {
        let increment = |n| (n < max_queue).then_some(n + 1);
        n_waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, increment)?;
        Ok(Self { n_waiting: Arc::clone(n_waiting) })
    }
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.n_waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Creates a group with id `id`, which is the only one of its stream, and its consumer.
#[cfg(test)]
pub(crate) fn test_group(id: u64, request: Request) -> (RequestGroup, Completions) {
    let permit = QueuePermit::acquire(&Arc::new(AtomicUsize::new(0)), 1).expect("the queue is empty");
    let (sender, consumer) = open_stream(StreamId(id), request.n, None, Box::new(|_| {}));
    let sampler = Sampler::new(&request.sampling, 0, &Pieces::none(&[]), 0);
    let requests = vec![BranchRequest { first: BranchIndex(0), request, sampler }];
    (RequestGroup::new(GroupId(id), StreamId(id), requests, Arc::new(sender), permit), consumer)
}
