//! Where the worker's time goes: every moment of a step counts for exactly one part of it.

use std::time::{Duration, Instant};

use crate::engine::stats::StepTimes;

/// Which part of a step.
pub(super) type TimeField = fn(&mut StepTimes) -> &mut Duration;

/// Counts the time of a step by its parts. What no part was named for counts for the next one that is, so that the parts always
/// add up to the step.
#[derive(Debug)]
pub(super) struct Stopwatch {
    times: StepTimes,
    /// When the last part ended.
    last: Instant,
    /// What parts within the running one took.
    within: Duration,
}

impl Stopwatch {
    pub(super) fn new() -> Self {
        Self { times: StepTimes::default(), last: Instant::now(), within: Duration::ZERO }
    }

    /// What each part took so far.
    pub(super) fn times(&self) -> StepTimes {
        self.times
    }

    /// A step begins: what was before it counts for nothing. Returns the moment.
    pub(super) fn begin(&mut self) -> Instant {
        self.last = Instant::now();
        self.within = Duration::ZERO;
        self.last
    }

    /// A part of the running part took so long, and counts on its own.
    pub(super) fn count(&mut self, part: TimeField, took: Duration) {
        *part(&mut self.times) += took;
        self.within += took;
    }

    /// The running part ends, which was `part`. Returns the moment.
    pub(super) fn lap(&mut self, part: TimeField) -> Instant {
        let now = Instant::now();
        *part(&mut self.times) += (now - self.last).saturating_sub(self.within);
        (self.last, self.within) = (now, Duration::ZERO);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_to_the_step() {
        let mut watch = Stopwatch::new();
        let began = watch.begin();
        std::thread::sleep(Duration::from_millis(3));
        watch.count(|times| &mut times.spill, Duration::from_millis(2));
        watch.lap(|times| &mut times.place);
        let ended = watch.lap(|times| &mut times.emit);
        let times = watch.times();
        assert_eq!(times.spill, Duration::from_millis(2));
        assert!(times.place >= Duration::from_millis(1));
        assert_eq!(times.place + times.spill + times.emit, ended - began);
    }
}
