//! Placement: how a sequence enters a slot, and on which cells.

use std::time::Instant;

use crate::cache::PrefixMatch;
use crate::engine::cache_manager::CacheManager;
use crate::engine::cache_manager::guards::PathGuard;
use crate::engine::features::hooks;
use crate::engine::ids::{BranchKey, GroupId, MemberIndex};
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::checkpoints::checkpoint_positions;
use crate::engine::scheduler::running_sequence::{Phase, RunningSequence};
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::engine::scheduler::sequence::Sequence;
use crate::request::Task;
use crate::sampling::TokenStrings;

pub(crate) fn new_sequence<R: Runner>(
    scheduler: &Scheduler,
    cache: &CacheManager<R>,
    BranchKey { group_id, member }: BranchKey,
    matched: &PrefixMatch,
) -> Sequence {
    let (group, token_strings) = (scheduler.queue.group(group_id), cache.runner().token_strings());
    let mut sequence = Sequence::new(group, member, scheduler.limits.n_ctx_slot, &token_strings, Instant::now());
    sequence.checkpoint_positions = checkpoint_positions(scheduler, cache, group, matched.n_tokens());
    hooks::before_start(scheduler, cache, &mut sequence, matched);
    sequence
}

pub(crate) fn place<R: Runner>(cache: &mut CacheManager<R>, sequence: &Sequence, matched: &PrefixMatch) -> PathGuard {
    let path =
        cache.place(Some(sequence.provenance()), &sequence.adapter_schedule, Some(matched)).expect("an id was freed before");
    cache.record_start();
    path
}

pub(crate) fn place_empty<R: Runner>(cache: &mut CacheManager<R>, sequence: &Sequence) -> PathGuard {
    cache.place(None, &sequence.adapter_schedule, None).expect("an id was freed before")
}

pub(crate) struct BranchStart {
    pub(crate) sequence: Sequence,
    pub(crate) slot: u32,
    pub(crate) path: PathGuard,
    pub(crate) matched: PrefixMatch,
    /// Paths of the other sequences of its group, which start with it and have no text yet.
    pub(crate) vacant: Vec<PathGuard>,
}

impl Scheduler {
    pub(crate) fn start_branches(&mut self, start: BranchStart, token_strings: &TokenStrings) {
        let BranchStart { mut sequence, slot, path, matched, vacant } = start;
        let (key, BranchKey { group_id, member }) = (sequence.scheduling_key(), sequence.branch_key());
        let (n_device, n_found) = (matched.n_device, matched.n_tokens());
        let group = self.queue.group_mut(group_id);
        hooks::on_start(&mut self.features, group, &mut sequence);
        let is_complete = group.request.task == Task::Complete;
        let logits = group.prompt_logits.clone().filter(|_| is_complete && n_device == sequence.n_tokens());
        self.enter_on(slot, sequence, path, matched);
        let mut members = vec![member];
        for (member, path) in (1..).map(MemberIndex).zip(vacant) {
            members.push(member);
            let group = self.queue.group(group_id);
            let sequence = Sequence::new(group, member, self.limits.n_ctx_slot, token_strings, Instant::now());
            let slot = self.slots.free_slot(group).expect("as many slots are free");
            self.enter(slot, sequence, Phase::Vacant, path, 0);
        }
        hooks::after_start(self, key);
        if is_complete {
            self.count_cached(group_id, n_device, n_found);
            let (submitted, now) = (self.queue.group(group_id).submitted, Instant::now());
            for _ in &members {
                self.stats.branches.n_started += 1;
                self.stats.histograms.observe_start(submitted, now);
            }
        }
        for member in members {
            self.events.admitted.extend(self.queue.start(BranchKey { group_id, member }));
        }
        if let Some(logits) = logits {
            self.slots.running_sequence_mut(key).phase = Phase::ReadyToSample(logits);
        }
        let group = self.queue.group_mut(group_id);
        group.release_unneeded_prompt();
        if group.prompt_logits.is_some() {
            group.prompt_holder.request_holder();
        }
    }

    pub(crate) fn enter(&mut self, slot: u32, sequence: Sequence, phase: Phase, path: PathGuard, n_computed: u32) {
        self.has_changed = true;
        if self.queue.group(sequence.group_id).keeps_contents_of(slot) {
            self.slots.clear_contents(slot);
        }
        self.slots.enter(RunningSequence::new(sequence, slot, phase, path, n_computed));
    }

    /// As [`Scheduler::enter`], on top of `matched`, whose cells in the device cache are in `path`.
    pub(crate) fn enter_on(&mut self, slot: u32, mut sequence: Sequence, path: PathGuard, matched: PrefixMatch) {
        if sequence.start(matched.n_tokens()) && sequence.request.task == Task::Complete {
            self.stats.n_cached += u64::from(matched.n_tokens().min(sequence.n_prompt));
        }
        let n_device = matched.n_device;
        let phase = Phase::for_match(matched, &mut sequence);
        self.enter(slot, sequence, phase, path, n_device);
    }

    /// Drops the cells of a running sequence, which stays in its slot and waits for a text.
    pub(crate) fn vacate(&mut self, key: SchedulingKey) {
        let running = self.slots.running_sequence_mut(key);
        running.path.discard();
        (running.phase, running.n_computed) = (Phase::Vacant, 0);
    }

    /// Gives a vacant sequence a path. If that has `n_computed` tokens of another sequence, it decodes after them; with 0 it stays vacant.
    pub(crate) fn fork_to(&mut self, key: SchedulingKey, path: PathGuard, n_computed: u32) {
        let running = self.slots.running_sequence_mut(key);
        let phase = if n_computed > 0 { Phase::Decoding } else { Phase::Vacant };
        (running.path, running.phase, running.n_computed) = (path, phase, n_computed);
    }

    /// Moves a running sequence to a private path with copies of its `n_copied` computed tokens; with 0, it computes them again.
    pub(crate) fn move_to_private(&mut self, key: SchedulingKey, path: PathGuard, n_copied: u32) {
        self.has_changed = true;
        let running = self.slots.running_sequence_mut(key);
        (running.path, running.shares_cells, running.n_computed) = (path, false, n_copied);
        if n_copied == 0 {
            running.phase = Phase::Prefilling;
            self.lower_n_cached(key);
        }
    }

    /// Counts the sources of the first `n_found` prompt tokens of a group whose branch starts, each token once.
    fn count_cached(&mut self, group_id: GroupId, n_device: u32, n_found: u32) {
        let awaited = self.queue.group(group_id).awaited_range(n_found);
        let n_counted_twice = awaited.end.saturating_sub(awaited.start.max(n_device));
        self.stats.n_awaited += u64::from(awaited.end - awaited.start);
        self.stats.n_reloaded += u64::from(n_found - n_device - n_counted_twice);
    }
}
