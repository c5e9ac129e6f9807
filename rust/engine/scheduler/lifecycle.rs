//! Ends, preempts and removes sequences, and removes requests. The guards of a sequence that leaves its slot release its cells.

use crate::engine::features::hooks;
use crate::engine::ids::{BranchIndex, BranchKey, GroupId, MemberIndex, StreamId};
use crate::engine::runner::{AdapterSchedule, KvSeqId};
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::queue::PreemptedSequence;
use crate::engine::scheduler::request_group::{BranchState, PromptHolder, RequestGroup};
use crate::engine::scheduler::running_sequence::{Phase, RunningSequence};
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::engine::scheduler::sequence::{Sequence, Tokens};
use crate::error::Error;
use crate::request::{Event, FinishReason, Finished, Task, TaskResult, Usage};

impl Scheduler {
    /// Finishes the branch of a running sequence: its computed tokens stay cached.
    pub(crate) fn finish(&mut self, key: SchedulingKey, reason: FinishReason, result: Option<TaskResult>) {
        let mut running = self.slots.take(key);
        self.record_slot_contents(&mut running);
        let RunningSequence { sequence, slot, n_computed, .. } = running;
        self.end_branch(sequence, slot, n_computed, reason, result);
    }

    pub(crate) fn finish_ended(&mut self) {
        let ended = self.slots.running().iter().filter_map(|running| Some((running.key(), running.finish_reason.clone()?)));
        for (key, reason) in ended.collect::<Vec<_>>() {
            self.finish(key, reason, None);
        }
    }

    /// Ends all branches of a group, whose last events are published separately.
    pub(crate) fn finish_group(&mut self, group_id: GroupId) {
        self.has_changed = true;
        for mut running in self.take_running_of(group_id) {
            self.record_slot_contents(&mut running);
        }
        drop((self.queue.remove_preempted(group_id), self.queue.finish_all(group_id)));
    }

    fn end_branch(
        &mut self,
        mut sequence: Sequence,
        slot: u32,
        n_computed: u32,
        reason: FinishReason,
        result: Option<TaskResult>,
    ) {
        let is_truncated = sequence.is_truncated() || reason == FinishReason::ContextFull;
        let (usage, result) = (sequence.usage(n_computed, reason == FinishReason::Cancelled), result.map(Box::new));
        // Empty if a token ended the text, whose event has it.
        let text = sequence.text.finish();
        self.count_shared(&sequence, &usage);
        let (index, slot) = (sequence.branch.0, Some(slot));
        let mut finished = Finished { index, slot, reason, text, usage, is_truncated, result, score: None, explanation: None };
        let group = self.queue.group(sequence.group_id);
        hooks::on_finish(&mut self.features, &self.shared_features, group, &mut sequence, &mut finished);
        self.queue.group_mut(sequence.group_id).set(sequence.member, BranchState::Finished);
        self.emit(sequence.group_id, Event::Finished(finished));
    }

    /// Counts the shared prompt tokens of a branch that is not the first of its stream, or of a fork.
    fn count_shared(&mut self, sequence: &Sequence, usage: &Usage) {
        if sequence.request.task == Task::Complete && (sequence.branch.0 > 0 || hooks::is_fork(&self.features, sequence.group_id))
        {
            self.stats.branches.n_computed += u64::from(usage.n_prompt_computed);
            self.stats.branches.n_shared += u64::from(usage.n_cached);
        }
    }

    /// Cancels a branch of a stream; the others continue. Does nothing for tasks, and for ended and unknown branches.
    pub(crate) fn cancel_branch(&mut self, stream_id: StreamId, branch: BranchIndex) {
        if hooks::cancel_together(self, stream_id, branch) {
            return;
        }
        let Some(branch_key) = self.queue.find_branch(stream_id, branch) else { return };
        let BranchKey { group_id, member } = branch_key;
        let group = self.queue.group(group_id);
        if group.request.task != Task::Complete {
            return;
        }
        let state = group.state_of(member);
        self.has_changed = true;
        self.stats.branches.n_cancelled += u64::from(state != BranchState::Finished);
        match state {
            BranchState::Finished => {}
            BranchState::Running => {
                let key = group.scheduling_key(member);
                let sequence = &mut self.slots.running_sequence_mut(key).sequence;
                hooks::on_end_early(sequence, &mut self.queue.group_mut(group_id).pending);
                self.finish(key, FinishReason::Cancelled, None);
            }
            BranchState::Preempted => {
                let preempted = self.queue.take_preempted(branch_key).expect("a branch is where its group says");
                let PreemptedSequence { mut sequence, slot, n_computed, .. } = preempted;
                hooks::on_end_early(&mut sequence, &mut self.queue.group_mut(group_id).pending);
                self.end_branch(sequence, slot, n_computed, FinishReason::Cancelled, None);
            }
            BranchState::Waiting => {
                hooks::on_cancel_waiting(&mut self.features, group, member);
                // So that the queue length is correct immediately.
                drop(self.queue.drop_waiting(branch_key));
                self.emit(group_id, Event::Finished(Finished::without_tokens(branch.0, FinishReason::Cancelled)));
            }
        }
        self.queue.group_mut(group_id).release_unneeded_prompt();
    }

    /// Fails the stream of a running sequence, whose computed tokens stay cached.
    pub(crate) fn fail_computed(&mut self, key: SchedulingKey, error: Error) {
        let mut running = self.slots.take(key);
        self.record_slot_contents(&mut running);
        self.fail_stream(running.sequence.stream_id, error);
    }

    /// Fails the streams of these groups, whose running sequences are dropped with their cells.
    pub(crate) fn fail(&mut self, group_ids: &[GroupId], error: &Error) {
        for &group_id in group_ids {
            for running in self.take_running_of(group_id) {
                self.drop_sequence(running);
            }
            self.fail_stream_of(group_id, error.clone());
        }
    }

    pub(crate) fn fail_stream_of(&mut self, group_id: GroupId, error: Error) {
        self.fail_stream(self.queue.group(group_id).stream_id, error);
    }

    /// Ends a stream with an error at the end of the step; nothing of it starts any more.
    pub(crate) fn fail_stream(&mut self, stream_id: StreamId, error: Error) {
        self.has_changed = true;
        for group_id in self.queue.groups_of(stream_id) {
            self.queue.group_mut(group_id).release_holder();
            self.queue.block_starts(group_id);
        }
        self.events.failed.push((stream_id, error));
    }

    fn take_running_of(&mut self, group_id: GroupId) -> Vec<RunningSequence> {
        self.slots.take_all(|running| running.sequence.group_id == group_id)
    }

    pub(crate) fn remove_stream(&mut self, stream_id: StreamId) -> Vec<RequestGroup> {
        self.queue.groups_of(stream_id).into_iter().filter_map(|group_id| self.remove(group_id)).collect()
    }

    pub(crate) fn remove(&mut self, group_id: GroupId) -> Option<RequestGroup> {
        self.queue.get(group_id)?;
        for mut running in self.take_running_of(group_id) {
            self.record_slot_contents(&mut running);
            self.count_shared(&running.sequence, &running.sequence.usage(running.n_computed, true));
        }
        for preempted in self.queue.remove_preempted(group_id) {
            self.count_shared(&preempted.sequence, &preempted.sequence.usage(preempted.n_computed, true));
        }
        self.queue.group_mut(group_id).release_holder();
        hooks::on_remove(&mut self.features, group_id);
        self.queue.remove(group_id)
    }

    /// Removes forks that cannot be built when the step ends, and their stream too if they are its last group.
    pub(crate) fn abandon(&mut self, group_id: GroupId) {
        // So that the queue length is correct immediately.
        drop(self.queue.group_mut(group_id).permit.take());
        self.events.groups_with_events.push(group_id);
    }

    pub(crate) fn disconnect(&mut self, stream_id: StreamId) {
        drop(self.remove_stream(stream_id));
        hooks::on_disconnect(&mut self.features, stream_id);
    }

    /// Preempts a sequence and the sequences that run with it. They keep their texts and samplers; a load starts again from the
    /// queue.
    pub(crate) fn preempt(&mut self, key: SchedulingKey) {
        let running = self.slots.running_sequence(key);
        if !running.sequence.runs_together {
            let running = self.slots.take(key);
            return self.preempt_one(running);
        }
        let group_id = running.sequence.group_id;
        for running in self.take_running_of(group_id) {
            self.preempt_one(running);
        }
    }

    /// Releases a held prompt, or else preempts the most junior sequence that is junior to `key`. Returns `false` for neither.
    pub(crate) fn release_cells(&mut self, key: SchedulingKey) -> bool {
        self.release_junior_holder() || self.preempt_most_junior(key)
    }

    pub(crate) fn preempt_most_junior(&mut self, key: SchedulingKey) -> bool {
        let running = self.slots.running_sequence(key);
        let last = self.slots.running().last().filter(|last| last.key() > key && !last.runs_with(running));
        last.map(RunningSequence::key).inspect(|&last| self.preempt(last)).is_some()
    }

    fn preempt_one(&mut self, mut running: RunningSequence) {
        self.stats.n_preempted += 1;
        self.record_slot_contents(&mut running);
        running.sequence.record_preemption(running.n_computed);
        let RunningSequence { mut sequence, slot, phase, path, n_computed, .. } = running;
        if let Phase::AwaitingPrefix(_, reservation) = phase {
            // It has computed nothing since it resumed, and still has its reservation.
            self.queue.push_preempted(PreemptedSequence { sequence, reservation, slot, n_computed: 0 });
            return;
        }
        if sequence.is_load() {
            let group_id = sequence.group_id;
            self.queue.reset(group_id);
            hooks::on_end_early(&mut sequence, &mut self.queue.group_mut(group_id).pending);
            return;
        }
        hooks::on_preempt(&mut sequence.features);
        if let Phase::ReadyToSample(logits) = phase {
            sequence.kept_logits = Some(logits);
        }
        self.queue.push_preempted(PreemptedSequence { sequence, reservation: path.reserve(None), slot, n_computed });
    }

    pub(crate) fn shift_full(&mut self) {
        let full = self.slots.running().iter().filter(|running| running.sequence.is_full()).map(RunningSequence::key);
        for key in full.collect::<Vec<SchedulingKey>>() {
            self.shift(key);
        }
    }

    /// Shifts the context of a running sequence; its computed tokens stay cached. Returns `false` if nothing can be dropped.
    ///
    /// Moving the cells to their new positions instead, as llama-server does, would move cells that other sequences share, rotate
    /// the whole device cache at the next decode, and lose precision if the cache is quantised. The sequence therefore waits to
    /// resume like a preempted one: from the tokens that it kept, or from a checkpoint; the rest is an ordinary prompt.
    pub(crate) fn shift(&mut self, key: SchedulingKey) -> bool {
        let sequence = &mut self.slots.running_sequence_mut(key).sequence;
        let (tokens, adapter_schedule) = (sequence.tokens.clone(), sequence.adapter_schedule.clone());
        let Some(n_kept) = sequence.shift() else { return false };
        let running = self.slots.take(key);
        hooks::on_shift(&mut self.features, &running.sequence);
        self.record_slot_contents_as(&running, &adapter_schedule, tokens, running.n_computed);
        let RunningSequence { sequence, slot, path, n_computed, .. } = running;
        let reservation = path.reserve(Some(n_computed.min(n_kept)));
        self.queue.push_preempted(PreemptedSequence { sequence, reservation, slot, n_computed });
        true
    }

    /// Records what a sequence leaves in its slot, and drops the computed part of an image that can only be cached as a whole.
    fn record_slot_contents(&mut self, running: &mut RunningSequence) {
        let n_kept = running.n_cacheable();
        if n_kept < running.n_computed {
            running.path.truncate(n_kept);
            running.n_computed = n_kept;
        }
        let Sequence { adapter_schedule, tokens, .. } = &running.sequence;
        self.record_slot_contents_as(running, adapter_schedule, tokens.clone(), n_kept);
    }

    /// As [`Scheduler::record_slot_contents`], but neither slot nor cache keep the computed tokens.
    fn drop_sequence(&mut self, mut running: RunningSequence) {
        let RunningSequence { sequence, n_computed, .. } = &running;
        if *n_computed > 0 {
            hooks::on_leave(&mut self.features, sequence, &sequence.tokens, *n_computed);
        }
        self.record_slot_contents_as(&running, &AdapterSchedule::default(), Tokens::default(), 0);
        running.path.discard_failed();
    }

    fn record_slot_contents_as(
        &mut self,
        running: &RunningSequence,
        adapter_schedule: &AdapterSchedule,
        tokens: Tokens,
        n_computed: u32,
    ) {
        self.has_changed = true;
        if n_computed > 0 {
            hooks::on_leave(&mut self.features, &running.sequence, &tokens, n_computed);
        }
        let group = self.queue.group(running.sequence.group_id);
        if group.keeps_contents_of(running.slot) {
            self.slots.set_contents(running.slot, adapter_schedule, tokens, n_computed.min(group.shared_until));
        }
    }

    pub(crate) fn release_junior_holder(&mut self) -> bool {
        let holding = self.queue.open().filter(|group| group.prompt_holder.id().is_some());
        let junior = holding.max_by_key(|group| group.scheduling_key(MemberIndex(0))).map(|group| group.group_id);
        junior.is_some_and(|group_id| self.queue.group_mut(group_id).release_holder())
    }

    /// Ends the requests that run on `ids`, whose cells were lost, with an error. Prompts that were held there are computed
    /// again.
    pub(crate) fn fail_lost(&mut self, ids: &[KvSeqId], reason: &str) {
        // Also of requests that have failed: their guards would release a path that was dropped.
        for group_id in self.queue.held_on(ids) {
            let group = self.queue.group_mut(group_id);
            if let PromptHolder::Path(path) = &mut group.prompt_holder {
                path.disarm();
            }
            group.prompt_holder = PromptHolder::Empty;
        }
        let failed = self.slots.running().iter().filter(|running| ids.contains(&running.id()));
        let mut failed: Vec<GroupId> = failed.map(|running| running.sequence.group_id).collect();
        failed.dedup();
        self.fail(&failed, &Error::Decode { reason: reason.to_owned() });
    }
}
