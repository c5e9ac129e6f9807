//! Pinned prefixes whose names nobody has read yet: where nobody ever will, nobody could unpin them.

use crate::engine::job::Job;
use crate::engine::runner::Runner;
use crate::engine::stream::Receipt;
use crate::engine::worker::Worker;
use crate::request::{Event, Made};

/// A pinned prefix, from the moment it is told until it is known whether its name was read.
pub(super) struct UnreadPin {
    name: u64,
    receipt: Receipt,
}

impl UnreadPin {
    /// What `job` is about to tell of.
    pub(super) fn of(job: &Job) -> Option<Self> {
        let made = |event: &Event| match event {
            Event::Finished(finished) => finished.made.as_deref().and_then(name_of),
            Event::Token(_) | Event::Progress(_) | Event::PromptLogprobs(_) => None,
        };
        Some(Self { name: job.events.iter().find_map(made)?, receipt: job.sender.receipt() })
    }
}

fn name_of(made: &Made) -> Option<u64> {
    match made {
        Made::Pinned(pinned) => Some(pinned.id),
        Made::Saved(_) => None,
    }
}

impl<R: Runner> Worker<R> {
    /// Unpins what was pinned for a reader who went before it had read the name.
    pub(super) fn drop_unread_pins(&mut self) {
        let Self { unread_pins, cache, .. } = self;
        unread_pins.retain(|pin| {
            let was_read = pin.receipt.was_read();
            if was_read == Some(false) {
                cache.unpin_prefix(pin.name);
            }
            was_read.is_none()
        });
    }
}
