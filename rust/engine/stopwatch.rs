//! Time per stage: every moment of a step counts for exactly one stage.

use std::time::{Duration, Instant};

use crate::engine::stats::StepTimes;

pub(super) type TimeField = fn(&mut StepTimes) -> &mut Duration;

/// Measures the time of a step by stage. Unattributed time counts for the next stage.
#[derive(Debug)]
pub(super) struct Stopwatch {
    times: StepTimes,
    last: Instant,
    counted_separately: Duration,
}

impl Stopwatch {
    pub(super) fn new() -> Self {
        Self { times: StepTimes::default(), last: Instant::now(), counted_separately: Duration::ZERO }
    }

    pub(super) fn times(&self) -> StepTimes {
        self.times
    }

    pub(super) fn begin(&mut self) -> Instant {
        self.last = Instant::now();
        self.counted_separately = Duration::ZERO;
        self.last
    }

    /// Counts `took` for `part`, and not for the current stage.
    pub(super) fn count(&mut self, part: TimeField, took: Duration) {
        *part(&mut self.times) += took;
        self.counted_separately += took;
    }

    pub(super) fn lap(&mut self, part: TimeField) -> Instant {
        let now = Instant::now();
        *part(&mut self.times) += (now - self.last).saturating_sub(self.counted_separately);
        (self.last, self.counted_separately) = (now, Duration::ZERO);
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
        watch.count(|times| &mut times.offload, Duration::from_millis(2));
        watch.lap(|times| &mut times.place);
        let ended = watch.lap(|times| &mut times.emit);
        let times = watch.times();
        assert_eq!(times.offload, Duration::from_millis(2));
        assert!(times.place >= Duration::from_millis(1));
        assert_eq!(times.place + times.offload + times.emit, ended - began);
    }
}
