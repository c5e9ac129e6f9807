//! Streams: which are paused, and which end with a step.

use crate::engine::output::slow_consumers::SlowStreams;
use crate::engine::output::stream::Backlog;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::request_group::{EndedGroup, RequestGroup};
use crate::engine::scheduler::running_sequence::Phase;

impl Scheduler {
    /// Returns the unread events of a stream; `None` if it has ended.
    pub(crate) fn backlog_of(&self, request_id: u64) -> Option<Backlog> {
        self.queue.groups_of(request_id).first().map(|&group_id| self.queue.group(group_id).sender.backlog())
    }

    /// Pauses the streams whose readers lag, resumes the others, and fails those whose readers made no progress for
    /// [`Limits::slow_consumer_timeout`](crate::config::Limits::slow_consumer_timeout).
    pub(crate) fn pause(&mut self, slow: SlowStreams) {
        self.paused = slow.paused;
        for (request_id, error) in slow.expired {
            self.fail_stream(request_id, error);
        }
    }

    /// Removes the requests that end with this step.
    pub(crate) fn take_ended(&mut self) -> Vec<EndedGroup> {
        let mut ended = Vec::new();
        for (request_id, error) in std::mem::take(&mut self.outbox.failed) {
            ended.extend(self.remove_stream(request_id).into_iter().map(|group| (group, Err(error.clone()))));
        }
        let updated = std::mem::take(&mut self.outbox.groups_with_events);
        for &group_id in &updated {
            if self.queue.get(group_id).is_some_and(RequestGroup::is_done) {
                ended.extend(self.remove(group_id).map(|group| (group, Ok(()))));
            }
        }
        self.outbox.groups_with_events = updated;
        ended
    }

    /// Returns true if no sequence did anything but sample one token.
    pub(crate) fn only_decodes(&self) -> bool {
        self.slots.running().iter().all(|running| matches!(running.phase, Phase::Decoding | Phase::Reserved))
    }
}
