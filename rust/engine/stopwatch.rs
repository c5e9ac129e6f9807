//! Time per stage: every moment of a step counts for exactly one stage.

use std::time::{Duration, Instant};

use crate::engine::cache_manager::CopyTime;
use crate::engine::stats::StepTimes;

/// Measures the time of a step by stage. Unattributed time counts for the next stage.
#[derive(Debug)]
pub(super) struct Stopwatch {
    times: StepTimes,
    last: Instant,
}

impl Stopwatch {
    pub(super) fn new() -> Self {
        Self { times: StepTimes::default(), last: Instant::now() }
    }

    pub(super) fn times(&self) -> StepTimes {
        self.times
    }

    /// Starts a step; what was copied before belongs to no step. Returns the current time.
    pub(super) fn begin(&mut self, copied: CopyTime) -> Instant {
        self.count(copied);
        self.last = Instant::now();
        self.last
    }

    /// Ends a stage. The time of copying counts separately, not for the stage.
    pub(super) fn lap(&mut self, copied: CopyTime, stage: impl FnOnce(&mut StepTimes) -> &mut Duration) -> Instant {
        self.count(copied);
        let now = Instant::now();
        *stage(&mut self.times) += (now - self.last).saturating_sub(copied.offload + copied.reload);
        self.last = now;
        now
    }

    fn count(&mut self, CopyTime { offload, reload }: CopyTime) {
        self.times.offload += offload;
        self.times.reload += reload;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_to_the_step() {
        let mut watch = Stopwatch::new();
        let began = watch.begin(CopyTime::default());
        std::thread::sleep(Duration::from_millis(3));
        let copied = CopyTime { offload: Duration::from_millis(2), ..CopyTime::default() };
        watch.lap(copied, |times| &mut times.admit);
        let ended = watch.lap(CopyTime::default(), |times| &mut times.publish);
        let times = watch.times();
        assert_eq!(times.offload, Duration::from_millis(2));
        assert!(times.admit >= Duration::from_millis(1));
        assert_eq!(times.admit + times.offload + times.publish, ended - began);
    }
}
