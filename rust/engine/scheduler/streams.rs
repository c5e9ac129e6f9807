//! Streams: which are paused, and which end with a step.

use crate::engine::ids::StreamId;
use crate::engine::output::slow_consumers::{Backlog, SlowStreams};
use crate::engine::scheduler::request_group::{EndedGroup, RequestGroup};
use crate::engine::scheduler::running_sequence::{Phase, RunningSequence};
use crate::engine::scheduler::{Scheduler, StepEvents};

impl Scheduler {
    pub(crate) fn backlog_of(&self, stream_id: StreamId) -> Option<Backlog> {
        self.queue.groups_of(stream_id).first().map(|&group_id| self.queue.group(group_id).sender.backlog())
    }

    /// Pauses the streams whose consumers lag, resumes the others, and fails those whose consumers made no progress for too long.
    pub(crate) fn pause(&mut self, slow: SlowStreams) {
        self.paused = slow.paused;
        for (stream_id, error) in slow.expired {
            self.fail_stream(stream_id, error);
        }
    }

    pub(crate) fn take_ended(&mut self) -> Vec<EndedGroup> {
        let mut ended = Vec::new();
        for (stream_id, error) in std::mem::take(&mut self.events.failed) {
            ended.extend(self.remove_stream(stream_id).into_iter().map(|group| (group, Some(Err(error.clone())))));
        }
        let updated = std::mem::take(&mut self.events.groups_with_events);
        for &group_id in &updated {
            if self.queue.get(group_id).is_some_and(RequestGroup::is_done)
                && let Some(group) = self.remove(group_id)
            {
                // A stream ends with its last group.
                let is_last = self.queue.groups_of(group.stream_id).is_empty();
                ended.push((group, is_last.then_some(Ok(()))));
            }
        }
        self.events.groups_with_events = updated;
        ended
    }

    pub(crate) fn has_events(&self) -> bool {
        !(self.events.groups_with_events.is_empty() && self.events.failed.is_empty())
    }

    /// Anything but a further token for each sequence wakes consumers regardless of the rate limit.
    pub(crate) fn has_urgent_events(&self) -> bool {
        let only_decodes = |running: &RunningSequence| matches!(running.phase, Phase::Decoding | Phase::Vacant);
        self.events.is_urgent || !self.slots.running().iter().all(only_decodes)
    }

    /// Called after the metrics are published: releases the permits of admitted requests. Returns the number of groups.
    pub(crate) fn drain_events(&mut self, mut send: impl FnMut(&mut RequestGroup)) -> usize {
        let StepEvents { groups_with_events, admitted, is_urgent, .. } = &mut self.events;
        admitted.clear();
        *is_urgent = false;
        let n_groups = groups_with_events.len();
        for group_id in groups_with_events.drain(..) {
            if self.queue.get(group_id).is_some() {
                send(self.queue.group_mut(group_id));
            }
        }
        n_groups
    }
}
