//! Who starts next. Pure: requests in, the next one out; no clock, no cache, no model.
//!
//! What a look costs depends on how many requests are open, which are about as many as there are slots, and on how many priorities
//! there are, but not on how many requests wait: each of those is filed where it is found when its turn comes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use crate::cache::Reservation;
use crate::engine::request_group::{Branch, BranchSpec, PendingPrefix, QueuePermit, RequestGroup};
use crate::engine::runner::KvSeqId;
use crate::engine::scheduling_key::{SchedulingKey, rank};
use crate::engine::sequence::Sequence;

/// However many priorities there are, no more requests are open than this times as many as are of one.
const MAX_OPEN_FACTOR: usize = 4;

/// A sequence that gave up its slot and waits to resume.
pub(super) struct Preempted {
    pub(super) sequence: Sequence,
    /// What it computed, in either tier.
    pub(super) reservation: Reservation,
    /// Where it ran.
    pub(super) slot: u32,
    /// So many of its tokens were computed when it gave up its slot.
    pub(super) n_held: u32,
}

/// Where a request is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum File {
    /// No branch of it was in a slot, and one could start.
    Fresh,
    /// It waits until a running sequence has computed what it needs.
    Awaiting(PendingPrefix),
    /// It waits for this slot.
    ForSlot(u32),
    /// Some branch was in a slot and some was not; or none was, and the logits after its prompt are known.
    Open,
    /// Every branch was in a slot, or it is not known yet how they go on.
    Started,
}

/// Requests of one priority of which no branch was in a slot, those that were served last at the end.
#[derive(Debug, Default)]
struct Fresh {
    /// For one completion.
    single: BTreeSet<(u64, u64)>,
    /// For several: while too many requests are open, none of these starts.
    several: BTreeSet<(u64, u64)>,
}

/// Every request that has not ended, and every sequence that waits to resume.
#[derive(Default)]
pub(super) struct Queue {
    /// By request id, which counts up: in order of submission.
    jobs: BTreeMap<u64, (RequestGroup, File)>,
    /// The jobs of each stream that has several.
    streams: BTreeMap<u64, BTreeSet<u64>>,
    fresh: BTreeMap<i32, Fresh>,
    /// By whom they await and how much of it.
    awaiting: BTreeSet<(SchedulingKey, u32, u64)>,
    /// By slot; of those that wait for one, the most senior first.
    for_slot: BTreeMap<u32, BTreeSet<(i64, u64)>>,
    /// By priority.
    open: BTreeMap<i32, BTreeSet<u64>>,
    /// Most senior first.
    preempted: Vec<Preempted>,
    /// Branches that were started.
    n_starts: u64,
    /// Requests for several completions may be open up to this number: each keeps its prompt's cells and a row of logits.
    max_open: usize,
}

impl Queue {
    /// Requests for several completions start while fewer than `max_open` of them wait for further slots.
    pub(super) fn new(max_open: u32) -> Self {
        Self { max_open: max_open as usize, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// A request arrives.
    pub(super) fn push(&mut self, mut job: RequestGroup) {
        job.arrived = self.n_starts;
        job.last_served = job.arrived;
        let request_id = job.request_id;
        let file = file_of(&job);
        self.enter(&job, file);
        if job.stream_id != request_id {
            self.streams.entry(job.stream_id).or_insert_with(|| BTreeSet::from([job.stream_id])).insert(request_id);
        }
        self.jobs.insert(request_id, (job, file));
    }

    /// The jobs of a stream that have not ended, in order.
    pub(super) fn groups_of(&self, stream_id: u64) -> Vec<u64> {
        match self.streams.get(&stream_id) {
            Some(jobs) => jobs.iter().copied().collect(),
            None => self.jobs.get(&stream_id).map(|(job, _)| job.request_id).into_iter().collect(),
        }
    }

    /// Branches of a stream that run.
    fn n_running_of(&self, stream_id: u64) -> usize {
        match self.streams.get(&stream_id) {
            Some(jobs) => jobs.iter().map(|&request_id| self.job(request_id).n_running()).sum(),
            None => self.get(stream_id).map_or(0, RequestGroup::n_running),
        }
    }

    pub(super) fn get(&self, request_id: u64) -> Option<&RequestGroup> {
        self.jobs.get(&request_id).map(|(job, _)| job)
    }

    /// # Panics
    /// If the request has ended: a job outlives its sequences.
    pub(super) fn job(&self, request_id: u64) -> &RequestGroup {
        self.get(request_id).expect("a job outlives its sequences")
    }

    /// To change what does not say when it starts.
    ///
    /// # Panics
    /// As [`Queue::job`].
    pub(super) fn job_mut(&mut self, request_id: u64) -> &mut RequestGroup {
        &mut self.jobs.get_mut(&request_id).expect("a job outlives its sequences").0
    }

    /// Changes a request and files it where `change` says.
    fn refile<T>(&mut self, request_id: u64, change: impl FnOnce(&mut RequestGroup) -> (File, T)) -> T {
        let (mut job, old) = self.jobs.remove(&request_id).expect("a job outlives its sequences");
        self.leave(&job, old);
        let (file, changed) = change(&mut job);
        self.enter(&job, file);
        self.jobs.insert(request_id, (job, file));
        changed
    }

    /// The request that starts a branch next; `is_free` says of a slot that a request must have whether it can get it.
    ///
    /// Of equal priority, the one that has the fewest branches running, of these the one that has waited for its turn the longest.
    /// So a request for many completions takes the slots that are free, one for a single completion gets the next, and where both
    /// wait they take turns. Of different priorities, the one that is senior; see
    /// [`STARTS_PER_PRIORITY`](crate::engine::scheduling_key::STARTS_PER_PRIORITY).
    pub(super) fn next(&self, is_free: impl Fn(u32) -> bool) -> Option<u64> {
        let fresh = self.fresh.iter().flat_map(|(&priority, fresh)| {
            let several = fresh.several.first().filter(|_| self.has_room_for(priority));
            fresh.single.first().into_iter().chain(several).map(|&(_, request_id)| request_id)
        });
        let for_slot = self.for_slot.iter().filter(|&(&slot, _)| is_free(slot)).filter_map(|(_, waiting)| waiting.first());
        let open = self.open.values().flatten().copied().filter(|&request_id| self.job(request_id).can_start());
        let mut best: BTreeMap<i32, (usize, u64, u64)> = BTreeMap::new();
        for request_id in fresh.chain(for_slot.map(|&(_, request_id)| request_id)).chain(open) {
            let job = self.job(request_id);
            let key = (self.n_running_of(job.stream_id), job.last_served, request_id);
            let of_priority = best.entry(job.request.priority).or_insert(key);
            *of_priority = key.min(*of_priority);
        }
        let senior = best.iter().min_by_key(|&(&priority, &(_, last_served, _))| (rank(last_served, priority), -priority));
        senior.map(|(_, &(_, _, request_id))| request_id)
    }

    /// Whether another request of `priority` may be open: those of lower priority keep nobody waiting, until they are many.
    fn has_room_for(&self, priority: i32) -> bool {
        let n_open = |of: std::ops::RangeFrom<i32>| self.open.range(of).map(|(_, open)| open.len()).sum::<usize>();
        n_open(priority..) < self.max_open && n_open(i32::MIN..) < MAX_OPEN_FACTOR * self.max_open
    }

    /// The highest priority of those that wait for a slot; `None` where nobody does.
    pub(super) fn highest_waiting(&self) -> Option<i32> {
        let for_slot =
            self.for_slot.values().filter_map(BTreeSet::first).map(|&(_, request_id)| self.job(request_id).request.priority);
        let others = [self.fresh.keys().next_back(), self.open.keys().next_back()];
        others.into_iter().flatten().copied().chain(for_slot).max()
    }

    /// A request of which no branch has started waits until a running sequence has computed what it needs.
    pub(super) fn block_on_prefix(&mut self, request_id: u64, awaits: PendingPrefix) {
        self.refile(request_id, |job| {
            job.awaits = Some(awaits);
            (File::Awaiting(awaits), ())
        });
    }

    /// Those that wait until `owner` has computed just so many tokens.
    pub(super) fn blocked(&self, owner: SchedulingKey, n_tokens: u32) -> impl Iterator<Item = &RequestGroup> {
        let those = self.awaiting.range((owner, n_tokens, 0)..=(owner, n_tokens, u64::MAX));
        those.map(|&(_, _, request_id)| self.job(request_id))
    }

    /// How many requests wait for what a running sequence computes.
    pub(super) fn n_blocked(&self) -> usize {
        self.awaiting.len()
    }

    /// What waited for a running sequence may start where that has computed enough or is gone. `n_computed` says of a sequence
    /// how many of its tokens are computed; `None` where it does not run.
    pub(super) fn unblock(&mut self, n_computed: impl Fn(SchedulingKey) -> Option<u32>) {
        let mut next = self.awaiting.first().copied();
        while let Some((owner, ..)) = next {
            let n_computed = n_computed(owner).unwrap_or(u32::MAX);
            let is_over: Vec<u64> = self
                .awaiting
                .range((owner, 0, 0)..=(owner, n_computed, u64::MAX))
                .map(|&(_, _, request_id)| request_id)
                .collect();
            for request_id in is_over {
                self.refile(request_id, |job| (file_of(job), ()));
            }
            next = self.awaiting.range((Excluded((owner, u32::MAX, u64::MAX)), Unbounded)).next().copied();
        }
    }

    /// Branch `index` of a request is in a slot for the first time; returns the request's place in the queue where it was the last
    /// one that waited. It was the turn of its whole stream.
    pub(super) fn start(&mut self, request_id: u64, index: u32) -> Option<QueuePermit> {
        self.n_starts += 1;
        let turn = self.n_starts;
        let stream_id = self.job(request_id).stream_id;
        for other in self.streams.get(&stream_id).into_iter().flatten().copied().collect::<Vec<u64>>() {
            let file = self.jobs[&other].1;
            self.refile(other, |job| {
                job.last_served = turn;
                (file, ())
            });
        }
        self.refile(request_id, |job| {
            job.set(index, Branch::Running);
            job.has_started = true;
            job.last_served = turn;
            job.awaits = None;
            let place = if job.has_waiting() { None } else { job.waiting.take() };
            (file_of(job), place)
        })
    }

    /// A request that was in a slot begins anew, as if it never had been.
    pub(super) fn put_back(&mut self, request_id: u64) {
        self.refile(request_id, |job| {
            job.branches.fill(Branch::Waiting);
            job.has_started = false;
            (file_of(job), ())
        });
    }

    /// The branch of a stream that is its `index`th: its job, and its place there.
    pub(super) fn find_branch(&self, stream_id: u64, index: u32) -> Option<(u64, u32)> {
        self.groups_of(stream_id).into_iter().find_map(|request_id| Some((request_id, self.job(request_id).place_of(index)?)))
    }

    /// Branch `index` of a request ends without having been in a slot; returns the request's place in the queue where it was the last
    /// one that waited.
    pub(super) fn drop_waiting(&mut self, request_id: u64, index: u32) -> Option<QueuePermit> {
        self.refile(request_id, |job| {
            job.set(index, Branch::Finished);
            let place = if job.has_waiting() { None } else { job.waiting.take() };
            (file_of(job), place)
        })
    }

    /// The `logits` after the prompt of a request are known before a branch of it was in a slot, where enough is free for keeping them.
    pub(super) fn give_logits(&mut self, request_id: u64, logits: &Arc<[f32]>) {
        let may_start = |job: &&RequestGroup| job.has_waiting() || job.is_unbuilt();
        let is_fresh = |job: &&RequestGroup| !job.has_started && may_start(job) && job.prompt_logits.is_none();
        let Some(job) = self.get(request_id).filter(is_fresh) else { return };
        if !self.has_room_for(job.request.priority) {
            return;
        }
        self.refile(request_id, |job| {
            job.awaits = None;
            job.prompt_logits = Some(Arc::clone(logits));
            job.keeper.want();
            (file_of(job), ())
        });
    }

    /// It is known how the branches of a request go on: they may start, once what it awaits is computed.
    pub(super) fn make(&mut self, request_id: u64, ways: Vec<BranchSpec>) {
        let file = self.jobs.get(&request_id).map(|&(_, file)| file);
        self.refile(request_id, |job| {
            job.make(ways);
            let awaits = file.filter(|file| matches!(file, File::Awaiting(_)));
            (awaits.unwrap_or_else(|| file_of(job)), ())
        });
    }

    /// Nothing of a request starts any more: it ends with an error.
    pub(super) fn give_up(&mut self, request_id: u64) {
        self.refile(request_id, |_| (File::Started, ()));
    }

    /// Takes a request out.
    pub(super) fn remove(&mut self, request_id: u64) -> Option<RequestGroup> {
        let (job, file) = self.jobs.remove(&request_id)?;
        self.leave(&job, file);
        if let Some(jobs) = self.streams.get_mut(&job.stream_id) {
            jobs.remove(&request_id);
            if jobs.is_empty() {
                self.streams.remove(&job.stream_id);
            }
        }
        Some(job)
    }

    /// Requests that hold their prompt's cells, or would, for branches that wait.
    pub(super) fn open(&self) -> impl Iterator<Item = &RequestGroup> {
        self.open.values().flatten().map(|&request_id| self.job(request_id))
    }

    /// Requests whose prompts are kept on one of `ids`, including failed requests. O(number of requests).
    pub(super) fn kept_on(&self, ids: &[KvSeqId]) -> Vec<u64> {
        let is_kept_there = |job: &&RequestGroup| job.keeper.id().is_some_and(|id| ids.contains(&id));
        self.jobs.values().map(|(job, _)| job).filter(is_kept_there).map(|job| job.request_id).collect()
    }

    /// Sequences that wait to resume, most senior first.
    pub(super) fn preempted(&self) -> &[Preempted] {
        &self.preempted
    }

    /// The sequences that resume together with the most senior one: of a search, all that wait.
    pub(super) fn resuming(&self) -> &[Preempted] {
        let Some(first) = self.preempted.first() else { return &[] };
        let is_beam = first.sequence.beam.is_some();
        let is_together = |other: &&Preempted| is_beam && other.sequence.request_id == first.sequence.request_id;
        &self.preempted[..self.preempted.iter().take_while(is_together).count().max(1)]
    }

    pub(super) fn wait_to_resume(&mut self, preempted: Preempted) {
        let job = self.job_mut(preempted.sequence.request_id);
        job.set(preempted.sequence.index, Branch::Preempted);
        let seniority = preempted.sequence.seniority();
        let at = self.preempted.partition_point(|other| other.sequence.seniority() < seniority);
        self.preempted.insert(at, preempted);
    }

    /// Takes the most senior sequence that waits to resume.
    pub(super) fn resume(&mut self) -> Preempted {
        let preempted = self.preempted.remove(0);
        self.job_mut(preempted.sequence.request_id).set(preempted.sequence.index, Branch::Running);
        preempted
    }

    /// Takes out branch `index` of a request, which waits to resume.
    pub(super) fn take_preempted(&mut self, request_id: u64, index: u32) -> Option<Preempted> {
        let is_it = |of: &Preempted| of.sequence.request_id == request_id && of.sequence.index == index;
        let at = self.preempted.iter().position(is_it)?;
        Some(self.preempted.remove(at))
    }

    /// Takes out the sequences of a request that wait to resume.
    pub(super) fn remove_preempted(&mut self, request_id: u64) -> Vec<Preempted> {
        self.preempted.extract_if(.., |preempted| preempted.sequence.request_id == request_id).collect()
    }

    fn enter(&mut self, job: &RequestGroup, file: File) {
        let key = (job.last_served, job.request_id);
        match file {
            File::Fresh => self.enter_fresh(job.request.priority, job.branches.len(), key),
            File::Awaiting(awaits) => drop(self.awaiting.insert((awaits.owner, awaits.n_tokens, job.request_id))),
            File::ForSlot(slot) => drop(self.for_slot.entry(slot).or_default().insert(seniority_of(job))),
            File::Open => drop(self.open.entry(job.request.priority).or_default().insert(job.request_id)),
            File::Started => {}
        }
    }

    fn leave(&mut self, job: &RequestGroup, file: File) {
        let key = (job.last_served, job.request_id);
        match file {
            File::Fresh => self.leave_fresh(job.request.priority, job.branches.len(), key),
            File::Awaiting(awaits) => drop(self.awaiting.remove(&(awaits.owner, awaits.n_tokens, job.request_id))),
            File::ForSlot(slot) => {
                let waiting = self.for_slot.get_mut(&slot).expect("it was filed there");
                waiting.remove(&seniority_of(job));
                if waiting.is_empty() {
                    self.for_slot.remove(&slot);
                }
            }
            File::Open => {
                let open = self.open.get_mut(&job.request.priority).expect("it was filed there");
                open.remove(&job.request_id);
                if open.is_empty() {
                    self.open.remove(&job.request.priority);
                }
            }
            File::Started => {}
        }
    }

    fn enter_fresh(&mut self, priority: i32, n: usize, key: (u64, u64)) {
        let fresh = self.fresh.entry(priority).or_default();
        if n == 1 { &mut fresh.single } else { &mut fresh.several }.insert(key);
    }

    fn leave_fresh(&mut self, priority: i32, n: usize, key: (u64, u64)) {
        let fresh = self.fresh.get_mut(&priority).expect("it was filed there");
        if n == 1 { &mut fresh.single } else { &mut fresh.several }.remove(&key);
        if fresh.single.is_empty() && fresh.several.is_empty() {
            self.fresh.remove(&priority);
        }
    }
}

/// Its place among those that wait for the same slot.
fn seniority_of(job: &RequestGroup) -> (i64, u64) {
    (rank(job.last_served, job.request.priority), job.request_id)
}

/// Where a request is found that awaits nobody.
fn file_of(job: &RequestGroup) -> File {
    if job.is_unbuilt() && job.prompt_logits.is_some() {
        // None of it starts yet, but its prompt's cells are kept.
        return File::Open;
    }
    if !job.has_waiting() {
        return File::Started;
    }
    match (job.has_started || job.prompt_logits.is_some(), job.n_cells_required()) {
        (false, None) => File::Fresh,
        (false, Some(slot)) => File::ForSlot(slot),
        (true, _) => File::Open,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::engine::scheduling_key::STARTS_PER_PRIORITY;
    use crate::engine::stream;
    use crate::request::{Prompt, Request};
    use crate::sampling::Sampler;
    use crate::sampling::token_strings::tests::Pieces;

    fn job(request_id: u64, n: u32, priority: i32) -> RequestGroup {
        let waiting = QueuePermit::acquire(&Arc::new(AtomicUsize::new(0)), 1).expect("the queue is empty");
        let (sender, _) = stream::stream(request_id, n, None, Box::new(|_| {}));
        let request = Request { n, priority, ..Request::new(Prompt::from_tokens(vec![1; 20]), 0) };
        let sampler = Sampler::new(&request.sampling, 0, &Pieces::none(&[]), 0);
        RequestGroup::new(request_id, vec![(0, request, sampler)], Arc::new(sender), waiting)
    }

    /// Requests of so many completions and such priorities, numbered from 0.
    fn queue(max_open: u32, requests: &[(u32, i32)]) -> Queue {
        let mut queue = Queue::new(max_open);
        for (request_id, &(n, priority)) in (0..).zip(requests) {
            queue.push(job(request_id, n, priority));
        }
        queue
    }

    /// The next request, whose prompt is computed as soon as its first branch has started.
    fn start(queue: &mut Queue) -> Option<u64> {
        let request_id = queue.next(|_| true)?;
        let index = queue.job(request_id).next_branch().expect("what is next waits");
        queue.start(request_id, index);
        queue.job_mut(request_id).prompt_logits = Some([0.0].into());
        Some(request_id)
    }

    fn starts(queue: &mut Queue, n: usize) -> Vec<u64> {
        (0..n).map_while(|_| start(queue)).collect()
    }

    #[test]
    fn the_request_with_the_fewest_branches_running_starts_next_and_of_these_the_one_that_waited_longest() {
        let mut queue = queue(9, &[(3, 0), (1, 0), (2, 0)]);
        assert_eq!(starts(&mut queue, 9), [0, 1, 2, 0, 2, 0]);
    }

    #[test]
    fn requests_for_several_completions_wait_while_enough_are_open_and_others_pass_them() {
        let mut queue = queue(1, &[(2, 0), (3, 0), (1, 0)]);
        assert_eq!(starts(&mut queue, 9), [0, 2, 0, 1, 1, 1]);
    }

    #[test]
    fn a_higher_priority_goes_first_with_all_of_its_branches() {
        let mut queue = queue(9, &[(1, 0), (2, 1), (1, -1), (1, 0)]);
        assert_eq!(starts(&mut queue, 9), [1, 1, 0, 3, 2]);
    }

    #[test]
    fn a_low_priority_goes_first_in_the_end_however_many_of_a_higher_one_come() {
        let mut queue = queue(9, &[(1, 0)]);
        let mut n_before = 0;
        for request_id in 1.. {
            queue.push(job(request_id, 1, 1));
            if start(&mut queue) == Some(0) {
                break;
            }
            n_before += 1;
        }
        assert!((STARTS_PER_PRIORITY - 2..=STARTS_PER_PRIORITY + 2).contains(&n_before), "{n_before} went before it");
    }

    #[test]
    fn what_awaits_another_is_not_next_until_that_has_computed_enough_or_is_gone() {
        let owner = |request_id| SchedulingKey::new(0, 0, request_id, 0);
        let awaits = |request_id, n_tokens| PendingPrefix { owner: owner(request_id), n_tokens, n_known: 0 };
        let mut queue = queue(9, &[(1, 0), (1, 0), (1, 0), (1, 0)]);
        queue.block_on_prefix(0, awaits(77, 50));
        queue.block_on_prefix(1, awaits(77, 20));
        queue.block_on_prefix(2, awaits(88, 50));
        let n_computed = |of: SchedulingKey| if of == owner(77) { Some(20) } else { Some(49) };
        queue.unblock(n_computed);
        assert_eq!(starts(&mut queue, 9), [1, 3]);
        queue.unblock(|of| n_computed(of).filter(|_| of == owner(77)));
        assert_eq!(starts(&mut queue, 9), [2]);
        queue.unblock(|_| Some(50));
        assert_eq!(starts(&mut queue, 9), [0]);
    }

    #[test]
    fn what_is_taken_out_is_nowhere_left() {
        let mut queue = queue(9, &[(1, 0), (2, 3), (2, 0), (1, 0)]);
        start(&mut queue);
        queue.block_on_prefix(3, PendingPrefix { owner: SchedulingKey::new(0, 0, 9, 0), n_tokens: 20, n_known: 0 });
        for request_id in 0..4 {
            assert_eq!(queue.remove(request_id).map(|job| job.request_id), Some(request_id));
        }
        assert!(queue.is_empty() && queue.remove(0).is_none() && queue.next(|_| true).is_none());
        assert!(queue.fresh.is_empty() && queue.awaiting.is_empty() && queue.open.is_empty() && queue.for_slot.is_empty());
    }

    #[test]
    fn a_load_waits_for_its_slot_and_lets_others_pass() {
        let mut queue = Queue::new(9);
        let mut load = job(0, 1, 0);
        load.request =
            Arc::new(Request { slot: Some(2), task: crate::request::Task::Load(Arc::default()), ..(*load.request).clone() });
        queue.push(load);
        queue.push(job(1, 1, 0));
        assert_eq!((queue.next(|slot| slot != 2), queue.next(|_| true)), (Some(1), Some(0)));
    }

    #[test]
    fn a_batch_of_many_requests_does_not_pass_a_higher_priority_by_its_size_alone() {
        // The bound on the queue is 1,024 by default.
        let mut queue = queue(9, &[(1, 0); 1_010]);
        queue.push(job(5_000, 1, 1));
        assert_eq!(queue.next(|_| true), Some(5_000), "nobody was served, and nobody has waited");
    }

    #[test]
    fn requests_of_low_priority_that_are_open_do_not_keep_one_of_high_priority_waiting() {
        let mut queue = queue(1, &[(50, -1)]);
        assert_eq!(start(&mut queue), Some(0));
        queue.push(job(1, 2, 1));
        assert_eq!(start(&mut queue), Some(1), "it would wait for 49 other branches");
    }

    #[test]
    fn of_two_loads_into_one_slot_the_one_of_higher_priority_goes_first() {
        let mut queue = Queue::new(9);
        for (request_id, priority) in [(0, 0), (1, 1)] {
            let mut load = job(request_id, 1, priority);
            load.request =
                Arc::new(Request { slot: Some(2), task: crate::request::Task::Load(Arc::default()), ..(*load.request).clone() });
            queue.push(load);
        }
        assert_eq!(queue.next(|_| true), Some(1));
    }
}
