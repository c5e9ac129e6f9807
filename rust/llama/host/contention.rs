//! Reduces the number of threads of a decode while other processes compete for the processors.
//!
//! The threads of a decode synchronize several hundred times. If one of them shares its processor with other work, all others wait
//! for it; fewer threads are then faster. Which number is faster is measured on decodes that have to be computed anyway.

use std::time::Duration;

/// Number of size classes: powers of 2 of the number of rows.
const N_CLASSES: usize = 10;

const WEIGHT: f64 = 8.0;

/// A trial with fewer threads starts when the mean time exceeds this multiple of the least time.
const SLOW: f64 = 1.5;

/// Fewer threads are chosen if they take at most this fraction of the time that all threads take.
const GAIN: f64 = 0.75;

/// Growth of the least time per decode, so that it follows texts that grow.
const FORGET: f64 = 1.002;

/// Decodes of a trial with half of the threads, and of one with all of them, which may be far slower.
const TRIAL_HALF: u32 = 4;
const TRIAL_ALL: u32 = 2;

/// Decodes before the first trial. Doubled after each trial that fails, up to [`MAX_WAIT`].
const WAIT: u32 = 8;
const WAIT_FOR_ALL: u32 = 64;
const MAX_WAIT: u32 = 1_024;

/// Decodes between two failed trials with all threads, each of which delays every stream: less than one decode in a hundred.
const REST: u32 = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadShare {
    All,
    Half,
}

#[derive(Debug, Clone, Copy)]
struct SizeClass {
    share: ThreadShare,
    mean_s: Option<f64>,
    min_s: f64,
    trial: Option<(u32, f64)>,
    n_until_trial: u32,
    wait: u32,
}

#[derive(Debug)]
pub(crate) struct ContentionTuner {
    classes: [SizeClass; N_CLASSES],
    n_until_all: u32,
}

impl Default for ContentionTuner {
    fn default() -> Self {
        let (share, wait) = (ThreadShare::All, WAIT);
        let class = SizeClass { share, mean_s: None, min_s: f64::INFINITY, trial: None, n_until_trial: wait, wait };
        Self { classes: [class; N_CLASSES], n_until_all: 0 }
    }
}

impl ContentionTuner {
    pub(crate) fn thread_share(&mut self, n_rows: usize) -> ThreadShare {
        let class = &mut self.classes[size_class(n_rows)];
        let is_due = match class.share {
            ThreadShare::All => class.mean_s.is_some_and(|mean| mean > SLOW * class.min_s),
            ThreadShare::Half => self.n_until_all == 0,
        };
        if class.trial.is_none() && class.n_until_trial == 0 && is_due {
            class.trial = Some((0, 0.0));
        }
        match (class.share, class.trial) {
            (ThreadShare::All, None) | (ThreadShare::Half, Some(_)) => ThreadShare::All,
            (ThreadShare::Half, None) | (ThreadShare::All, Some(_)) => ThreadShare::Half,
        }
    }

    pub(crate) fn observe(&mut self, n_rows: usize, time: Duration) {
        let (class, s) = (&mut self.classes[size_class(n_rows)], time.as_secs_f64());
        self.n_until_all = self.n_until_all.saturating_sub(1);
        let Some((n, sum_s)) = class.trial else {
            class.mean_s = Some(class.mean_s.map_or(s, |mean| mean + (s - mean) / WEIGHT));
            class.n_until_trial = class.n_until_trial.saturating_sub(1);
            if class.share == ThreadShare::All {
                class.min_s = (FORGET * class.min_s).min(s);
            }
            return;
        };
        let (n, sum_s) = (n + 1, sum_s + s);
        let mean_s = class.mean_s.unwrap_or(f64::INFINITY);
        let (n_trial, good_s) = match class.share {
            ThreadShare::All => (TRIAL_HALF, GAIN * mean_s),
            ThreadShare::Half => (TRIAL_ALL, mean_s),
        };
        // Ends the trial early if its remaining decodes cannot change the outcome.
        if n < n_trial && sum_s < f64::from(n_trial) * good_s {
            class.trial = Some((n, sum_s));
            return;
        }
        class.trial = None;
        let trial_s = sum_s / f64::from(n);
        if trial_s < good_s {
            (class.share, class.wait) = match class.share {
                ThreadShare::All => (ThreadShare::Half, WAIT_FOR_ALL),
                ThreadShare::Half => (ThreadShare::All, WAIT),
            };
            class.mean_s = Some(trial_s);
        } else {
            class.wait = (2 * class.wait).min(MAX_WAIT);
            if class.share == ThreadShare::Half {
                self.n_until_all = REST;
            }
        }
        class.n_until_trial = class.wait;
    }
}

fn size_class(n_rows: usize) -> usize {
    (n_rows.max(1).ilog2() as usize).min(N_CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `n` decodes of 4 rows that take `all_ms` with all threads and `half_ms` with half of them. Returns the shares.
    fn decodes(tuner: &mut ContentionTuner, n: usize, all_ms: f64, half_ms: f64) -> Vec<ThreadShare> {
        let decode = |_| {
            let share = tuner.thread_share(4);
            let ms = if share == ThreadShare::All { all_ms } else { half_ms };
            tuner.observe(4, Duration::from_secs_f64(ms / 1e3));
            share
        };
        (0..n).map(decode).collect()
    }

    fn n_half(shares: &[ThreadShare]) -> usize {
        shares.iter().filter(|&&share| share == ThreadShare::Half).count()
    }

    #[test]
    fn without_contention_all_threads_compute_and_no_trial_runs() {
        let mut tuner = ContentionTuner::default();
        assert_eq!(n_half(&decodes(&mut tuner, 10_000, 1.0, 1.9)), 0);
    }

    #[test]
    fn half_of_the_threads_compute_while_contention_lasts() {
        let mut tuner = ContentionTuner::default();
        decodes(&mut tuner, 100, 1.0, 1.9);
        let contended = decodes(&mut tuner, 1_000, 12.0, 4.0);
        assert!(n_half(&contended) > 950, "{}", n_half(&contended));
        assert!(contended[..40].contains(&ThreadShare::Half), "contention is detected soon");
        assert_eq!(n_half(&decodes(&mut tuner, 3_000, 1.0, 1.9)[1_100..]), 0, "the end of contention is detected");
    }

    #[test]
    fn trials_with_all_threads_are_rare_across_all_sizes() {
        let mut tuner = ContentionTuner::default();
        let mut decode = |n: usize, all_ms| {
            let n_rows = 1 << (n % N_CLASSES);
            let share = tuner.thread_share(n_rows);
            tuner.observe(n_rows, Duration::from_millis(if share == ThreadShare::All { all_ms } else { 4 }));
            share
        };
        let before = (0..4_000).filter(|&n| decode(n, if n < 2_000 { 2 } else { 50 }) == ThreadShare::Half).count();
        assert!(before > 1_000);
        let contended: Vec<ThreadShare> = (0..20_000).map(|n| decode(n, 50)).collect();
        assert!((20..=80).contains(&(contended.len() - n_half(&contended))), "{}", contended.len() - n_half(&contended));
    }

    #[test]
    fn failed_trials_with_fewer_threads_become_rarer() {
        let mut tuner = ContentionTuner::default();
        decodes(&mut tuner, 100, 1.0, 1.9);
        let slow = decodes(&mut tuner, 4_000, 3.0, 5.0);
        assert!((4..=60).contains(&n_half(&slow)), "{}", n_half(&slow));
    }

    #[test]
    fn growing_texts_do_not_start_trials() {
        let mut tuner = ContentionTuner::default();
        let shares: Vec<ThreadShare> = (0..5_000).flat_map(|n| decodes(&mut tuner, 1, 1.0 + f64::from(n) * 1e-3, 9.0)).collect();
        assert_eq!(n_half(&shares), 0);
    }

    #[test]
    fn each_size_class_is_measured_separately() {
        let mut tuner = ContentionTuner::default();
        decodes(&mut tuner, 100, 1.0, 1.9);
        decodes(&mut tuner, 200, 12.0, 4.0);
        assert_eq!(tuner.thread_share(4), ThreadShare::Half);
        assert_eq!([1, 2, 8, 500, 100_000].map(|n_rows| tuner.thread_share(n_rows)), [ThreadShare::All; 5]);
        assert_eq!(
            (size_class(0), size_class(1), size_class(3), size_class(4), size_class(7), size_class(1 << 20)),
            (0, 0, 1, 2, 2, 9)
        );
    }
}
