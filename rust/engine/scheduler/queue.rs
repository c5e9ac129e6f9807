//! Admission order of requests. Pure: requests in, the next one out; no clock, no cache, no model.
//!
//! The cost of a lookup depends on the number of open requests, about the number of slots, and of priorities, but not on the
//! number of waiting requests, which are in an index by the condition they wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::engine::cache_manager::guards::ReservationGuard;
use crate::engine::ids::{BranchIndex, BranchKey, GroupId, StreamId};
use crate::engine::runner::KvSeqId;
use crate::engine::scheduler::request_group::{AwaitedPrefix, BranchSpec, BranchState, QueuePermit, RequestGroup};
use crate::engine::scheduler::scheduling_key::{SchedulingKey, rank};
use crate::engine::scheduler::sequence::Sequence;

/// Maximum ratio of all open requests to the limit for one priority.
const MAX_OPEN_FACTOR: usize = 4;

pub(crate) struct PreemptedSequence {
    pub(crate) sequence: Sequence,
    /// Makes its cached tokens the last to be evicted, except for pins.
    pub(crate) reservation: ReservationGuard,
    pub(crate) slot: u32,
    pub(crate) n_computed: u32,
}

/// The condition that a request waits for: its key in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WaitState {
    /// This sequence computes a prefix of the prompt.
    AwaitingPrefix(SchedulingKey),
    /// No branch was ever in a slot, and one could start. With the priority, and whether there are several completions.
    NotStarted(i32, bool),
    AwaitingSlot(u32),
    /// At least one branch waits; the others have started, or the logits after the prompt are stored. With the priority.
    Open(i32),
    /// Every branch was in a slot, or the parameters of the branches are not known yet.
    Started,
    /// The stream ends with an error: no branch starts any more.
    Failed,
}

impl WaitState {
    /// Precedes the states after [`WaitState::AwaitingPrefix`].
    const AFTER_PREFIXES: Self = Self::NotStarted(i32::MIN, false);

    fn of(group: &RequestGroup) -> Self {
        let priority = group.request.priority;
        if group.is_unbuilt() && group.prompt_logits.is_some() {
            // No branch starts yet, but its prompt's cells are held.
            return Self::Open(priority);
        }
        if !group.has_waiting() {
            return Self::Started;
        }
        match (group.has_started || group.prompt_logits.is_some(), group.required_slot()) {
            (false, None) => Self::NotStarted(priority, group.branches.len() > 1),
            (false, Some(slot)) => Self::AwaitingSlot(slot),
            (true, _) => Self::Open(priority),
        }
    }

    /// Returns the position of a group among the groups that wait for the same: by the awaited length, or the most senior first.
    fn order_of(self, group: &RequestGroup) -> (i64, GroupId) {
        let rank = match self {
            Self::AwaitingPrefix(_) => group.awaited_prefix.map_or(0, |prefix| prefix.dependency.n_tokens.into()),
            Self::NotStarted(..) | Self::AwaitingSlot(_) => rank(group.last_served, group.request.priority),
            Self::Open(_) | Self::Started | Self::Failed => 0,
        };
        (rank, group.group_id)
    }
}

#[derive(Default)]
pub(crate) struct Queue {
    groups: BTreeMap<GroupId, (RequestGroup, WaitState)>,
    /// Groups of each stream that has several.
    streams: Index<StreamId, GroupId>,
    waiting: Index<WaitState, (i64, GroupId)>,
    /// Most senior first.
    preempted: Vec<PreemptedSequence>,
    n_starts: u64,
    /// Maximum number of open requests with several completions, each of which holds its prompt's cells and a row of logits.
    max_open: usize,
}

impl Queue {
    pub(super) fn new(max_open: u32) -> Self {
        Self { max_open: max_open as usize, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    pub(super) fn push(&mut self, mut group: RequestGroup) {
        group.arrived = self.n_starts;
        group.last_served = group.arrived;
        let (group_id, state) = (group.group_id, WaitState::of(&group));
        insert(&mut self.waiting, state, state.order_of(&group));
        let first = group.stream_id.first_group();
        if group_id != first {
            self.streams.entry(group.stream_id).or_insert_with(|| BTreeSet::from([first])).insert(group_id);
        }
        self.groups.insert(group_id, (group, state));
    }

    pub(super) fn groups_of(&self, stream_id: StreamId) -> Vec<GroupId> {
        match self.streams.get(&stream_id) {
            Some(groups) => groups.iter().copied().collect(),
            None => Some(stream_id.first_group()).filter(|group_id| self.groups.contains_key(group_id)).into_iter().collect(),
        }
    }

    fn n_running_of(&self, stream_id: StreamId) -> usize {
        match self.streams.get(&stream_id) {
            Some(groups) => groups.iter().map(|&group_id| self.group(group_id).n_running()).sum(),
            None => self.get(stream_id.first_group()).map_or(0, RequestGroup::n_running),
        }
    }

    pub(super) fn get(&self, group_id: GroupId) -> Option<&RequestGroup> {
        self.groups.get(&group_id).map(|(group, _)| group)
    }

    pub(super) fn group(&self, group_id: GroupId) -> &RequestGroup {
        self.get(group_id).expect("a group outlives its sequences")
    }

    /// Returns a group for changes that do not affect its wait state.
    pub(super) fn group_mut(&mut self, group_id: GroupId) -> &mut RequestGroup {
        &mut self.groups.get_mut(&group_id).expect("a group outlives its sequences").0
    }

    /// Changes a request and its wait state to the one that `change` returns; a failed request stays failed.
    fn update(&mut self, group_id: GroupId, change: impl FnOnce(&mut RequestGroup) -> WaitState) -> &mut RequestGroup {
        let (mut group, old) = self.groups.remove(&group_id).expect("a group outlives its sequences");
        remove(&mut self.waiting, old, &old.order_of(&group));
        let new = change(&mut group);
        let state = if old == WaitState::Failed { old } else { new };
        insert(&mut self.waiting, state, state.order_of(&group));
        &mut self.groups.entry(group_id).or_insert((group, state)).0
    }

    /// Returns the request whose next branch starts; `is_free` is true for slots that a request may require.
    ///
    /// At equal priority, the request with the fewest running branches is next, then the least recently served one. A request
    /// with many completions thus takes the free slots, a request for one completion gets the next one, and if both wait, they
    /// alternate. At different priorities, the senior one is next; see
    /// [`STARTS_PER_PRIORITY`](crate::engine::scheduler::scheduling_key::STARTS_PER_PRIORITY).
    pub(crate) fn next(&self, is_free: impl Fn(u32) -> bool) -> Option<GroupId> {
        let may_start = |state: WaitState| match state {
            // A request with several completions does not start while too many are open.
            WaitState::NotStarted(priority, is_several) => !is_several || self.may_open(priority),
            WaitState::AwaitingSlot(slot) => is_free(slot),
            WaitState::AwaitingPrefix(_) | WaitState::Open(_) | WaitState::Started | WaitState::Failed => false,
        };
        let firsts = self.waiting.iter().filter(|&(&state, _)| may_start(state)).filter_map(|(_, waiting)| waiting.first());
        let open = self.open_from(i32::MIN).flatten().filter(|&&(_, group_id)| self.group(group_id).can_start());
        let mut best: BTreeMap<i32, (usize, u64, GroupId)> = BTreeMap::new();
        for &(_, group_id) in firsts.chain(open) {
            let group = self.group(group_id);
            let key = (self.n_running_of(group.stream_id), group.last_served, group_id);
            let best_of_priority = best.entry(group.request.priority).or_insert(key);
            *best_of_priority = key.min(*best_of_priority);
        }
        let senior = best.iter().min_by_key(|&(&priority, &(_, last_served, _))| (rank(last_served, priority), -priority));
        senior.map(|(_, &(_, _, group_id))| group_id)
    }

    /// Returns true if another request of `priority` may be open. Requests of lower priority do not count, up to a limit.
    fn may_open(&self, priority: i32) -> bool {
        let n_open = |priority| self.open_from(priority).map(BTreeSet::len).sum::<usize>();
        n_open(priority) < self.max_open && n_open(i32::MIN) < MAX_OPEN_FACTOR * self.max_open
    }

    /// Returns the open groups of each priority from `priority` on.
    fn open_from(&self, priority: i32) -> impl Iterator<Item = &BTreeSet<(i64, GroupId)>> {
        self.waiting.range(WaitState::Open(priority)..WaitState::Started).map(|(_, open)| open)
    }

    pub(super) fn highest_waiting(&self) -> Option<i32> {
        let priority_of = |(state, waiting): (&WaitState, &BTreeSet<(i64, GroupId)>)| match state {
            WaitState::NotStarted(priority, _) | WaitState::Open(priority) => Some(*priority),
            WaitState::AwaitingSlot(_) => Some(self.group(waiting.first()?.1).request.priority),
            WaitState::AwaitingPrefix(_) | WaitState::Started | WaitState::Failed => None,
        };
        self.waiting.iter().filter_map(priority_of).max()
    }

    pub(super) fn block_on_prefix(&mut self, group_id: GroupId, awaited_prefix: AwaitedPrefix) {
        self.update(group_id, |group| {
            group.awaited_prefix = Some(awaited_prefix);
            WaitState::AwaitingPrefix(awaited_prefix.dependency.provider)
        });
    }

    /// Returns the requests that wait until `provider` has computed exactly `n_tokens` tokens.
    pub(super) fn blocked(&self, provider: SchedulingKey, n_tokens: u32) -> impl Iterator<Item = &RequestGroup> {
        let n_tokens = i64::from(n_tokens);
        let blocked = self.waiting.get(&WaitState::AwaitingPrefix(provider)).into_iter();
        let blocked = blocked.flat_map(move |blocked| blocked.range((n_tokens, GroupId::MIN)..=(n_tokens, GroupId::MAX)));
        blocked.map(|&(_, group_id)| self.group(group_id))
    }

    pub(super) fn n_blocked(&self) -> usize {
        self.waiting.range(..WaitState::AFTER_PREFIXES).map(|(_, blocked)| blocked.len()).sum()
    }

    /// `n_computed` returns the computed tokens of a sequence, `None` if it does not run.
    pub(super) fn unblock(&mut self, n_computed: impl Fn(SchedulingKey) -> Option<u32>) {
        let mut unblocked = Vec::new();
        for (state, blocked) in self.waiting.range(..WaitState::AFTER_PREFIXES) {
            if let WaitState::AwaitingPrefix(provider) = *state {
                let n_computed = n_computed(provider).map_or(i64::MAX, i64::from);
                unblocked.extend(blocked.range(..=(n_computed, GroupId::MAX)).map(|&(_, group_id)| group_id));
            }
        }
        for group_id in unblocked {
            self.update(group_id, |group| WaitState::of(group));
        }
    }

    /// Counts as service for the whole stream. Returns the request's permit if no branch is left waiting.
    pub(super) fn start(&mut self, BranchKey { group_id, member }: BranchKey) -> Option<QueuePermit> {
        self.n_starts += 1;
        let n_starts = self.n_starts;
        let stream_id = self.group(group_id).stream_id;
        for other in self.streams.get(&stream_id).into_iter().flatten().copied().collect::<Vec<GroupId>>() {
            let state = self.groups[&other].1;
            self.update(other, |group| {
                group.last_served = n_starts;
                state
            });
        }
        let group = self.update(group_id, |group| {
            group.set(member, BranchState::Running);
            group.has_started = true;
            group.last_served = n_starts;
            group.awaited_prefix = None;
            WaitState::of(group)
        });
        group.take_permit_if_started()
    }

    pub(super) fn reset(&mut self, group_id: GroupId) {
        self.update(group_id, |group| {
            group.branches.fill(BranchState::Waiting);
            group.has_started = false;
            WaitState::of(group)
        });
    }

    pub(crate) fn find_branch(&self, stream_id: StreamId, branch: BranchIndex) -> Option<BranchKey> {
        self.groups_of(stream_id).into_iter().find_map(|group_id| self.group(group_id).key_of(branch))
    }

    pub(super) fn finish_all(&mut self, group_id: GroupId) -> Option<QueuePermit> {
        let group = self.update(group_id, |group| {
            group.branches.fill(BranchState::Finished);
            WaitState::of(group)
        });
        group.take_permit_if_started()
    }

    /// Ends a branch that was never in a slot; returns the request's permit if no branch is left waiting.
    pub(super) fn drop_waiting(&mut self, BranchKey { group_id, member }: BranchKey) -> Option<QueuePermit> {
        let group = self.update(group_id, |group| {
            group.set(member, BranchState::Finished);
            WaitState::of(group)
        });
        group.take_permit_if_started()
    }

    /// Sets the `logits` after the prompt of a request before any of its branches starts, if there is room to hold them.
    pub(crate) fn set_prompt_logits(&mut self, group_id: GroupId, logits: &Arc<[f32]>) {
        let could_start = |group: &&RequestGroup| group.has_waiting() || group.is_unbuilt();
        let is_not_started = |group: &&RequestGroup| !group.has_started && could_start(group) && group.prompt_logits.is_none();
        let Some(group) = self.get(group_id).filter(is_not_started) else { return };
        if !self.may_open(group.request.priority) {
            return;
        }
        self.update(group_id, |group| {
            group.awaited_prefix = None;
            group.keep_prompt(|| Arc::clone(logits));
            WaitState::of(group)
        });
    }

    /// Sets the parameters of the branches of a request: they may start, once an awaited prefix is computed.
    pub(super) fn set_branch_specs(&mut self, group_id: GroupId, branch_specs: Vec<BranchSpec>) {
        let state = self.groups.get(&group_id).map(|&(_, state)| state);
        self.update(group_id, |group| {
            group.set_branch_specs(branch_specs);
            let awaited_prefix = state.filter(|state| matches!(state, WaitState::AwaitingPrefix(_)));
            awaited_prefix.unwrap_or_else(|| WaitState::of(group))
        });
    }

    pub(super) fn block_starts(&mut self, group_id: GroupId) {
        self.update(group_id, |_| WaitState::Failed);
    }

    pub(super) fn remove(&mut self, group_id: GroupId) -> Option<RequestGroup> {
        let (group, state) = self.groups.remove(&group_id)?;
        remove(&mut self.waiting, state, &state.order_of(&group));
        remove(&mut self.streams, group.stream_id, &group_id);
        Some(group)
    }

    pub(super) fn open(&self) -> impl Iterator<Item = &RequestGroup> {
        self.open_from(i32::MIN).flatten().map(|&(_, group_id)| self.group(group_id))
    }

    /// Returns the requests whose prompts are held on one of `ids`, including failed requests. O(number of requests).
    pub(super) fn held_on(&self, ids: &[KvSeqId]) -> Vec<GroupId> {
        let is_held_there = |group: &&RequestGroup| group.prompt_holder.id().is_some_and(|id| ids.contains(&id));
        self.groups.values().map(|(group, _)| group).filter(is_held_there).map(|group| group.group_id).collect()
    }

    pub(crate) fn preempted(&self) -> &[PreemptedSequence] {
        &self.preempted
    }

    /// Returns the sequences that resume together with the most senior one.
    pub(super) fn resuming(&self) -> &[PreemptedSequence] {
        let Some(first) = self.preempted.first() else { return &[] };
        let Sequence { runs_together, group_id, .. } = first.sequence;
        let resumes_too = |other: &&PreemptedSequence| runs_together && other.sequence.group_id == group_id;
        &self.preempted[..self.preempted.iter().take_while(resumes_too).count().max(1)]
    }

    pub(super) fn push_preempted(&mut self, preempted: PreemptedSequence) {
        let group = self.group_mut(preempted.sequence.group_id);
        group.set(preempted.sequence.member, BranchState::Preempted);
        let scheduling_key = preempted.sequence.scheduling_key();
        let index = self.preempted.partition_point(|other| other.sequence.scheduling_key() < scheduling_key);
        self.preempted.insert(index, preempted);
    }

    pub(super) fn pop_preempted(&mut self) -> PreemptedSequence {
        let preempted = self.preempted.remove(0);
        self.group_mut(preempted.sequence.group_id).set(preempted.sequence.member, BranchState::Running);
        preempted
    }

    pub(super) fn take_preempted(&mut self, branch: BranchKey) -> Option<PreemptedSequence> {
        let index = self.preempted.iter().position(|preempted| preempted.sequence.branch_key() == branch)?;
        Some(self.preempted.remove(index))
    }

    pub(super) fn remove_preempted(&mut self, group_id: GroupId) -> Vec<PreemptedSequence> {
        self.preempted.extract_if(.., |preempted| preempted.sequence.group_id == group_id).collect()
    }
}

type Index<K, V> = BTreeMap<K, BTreeSet<V>>;

fn insert<K: Ord, V: Ord>(index: &mut Index<K, V>, key: K, value: V) {
    index.entry(key).or_default().insert(value);
}

fn remove<K: Ord + Copy, V: Ord>(index: &mut Index<K, V>, key: K, value: &V) {
    let Some(values) = index.get_mut(&key) else { return };
    values.remove(value);
    if values.is_empty() {
        index.remove(&key);
    }
}

#[cfg(test)]
mod tests;
