//! Events and ends of streams of the running step.

use crate::engine::scheduler::request_group::{QueuePermit, RequestGroup};
use crate::error::Error;
use crate::request::Event;

#[derive(Default)]
pub(crate) struct StepEvents {
    pub(crate) groups_with_events: Vec<u64>,
    pub(crate) failed: Vec<(u64, Error)>,
    /// Permits of requests that got their last slot, held until the metrics show them there: each request is always counted.
    pub(crate) admitted: Vec<QueuePermit>,
    /// True if readers are woken at the end of the step regardless of the rate limit.
    pub(crate) is_urgent: bool,
}

impl StepEvents {
    /// Adds an event of a group. Only tokens after the first one may wait for the rate limit.
    pub(crate) fn add(&mut self, group: &mut RequestGroup, event: Event) {
        self.is_urgent |= !matches!(&event, Event::Token(token) if token.n_predicted > 1);
        if group.events.is_empty() {
            self.groups_with_events.push(group.group_id);
        }
        group.events.push(event);
    }
}
