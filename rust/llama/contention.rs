//! How many threads compute a decode while others want the processors too.
//!
//! The threads of a decode wait for each other some hundred times. Where one of them has to share its processor with somebody else's
//! work, all others wait through that one's turn, each time: then fewer threads are faster. What is faster at the moment is measured,
//! with decodes that have to be made anyway.

use std::time::Duration;

/// What decodes of about as many rows have in common: numbers of rows between two powers of 2, the last and all above.
const N_KINDS: usize = 10;

/// A new time counts one part in so many.
const WEIGHT: f64 = 8.0;

/// A decode that takes so many times as long as it could makes one try with fewer threads.
const SLOW: f64 = 1.5;

/// What fewer threads have to take at most, of the time that all take, to be taken.
const GAIN: f64 = 0.75;

/// By how much the least time grows with each decode, so that it follows texts that grow.
const FORGET: f64 = 1.002;

/// Decodes of one try with fewer threads, and of one with all of them, which may be far slower.
const TRY: u32 = 4;
const TRY_ALL: u32 = 2;

/// Decodes before the first try with fewer threads, where all are slow, and with all of them. After each in vain it is twice as many,
/// up to [`MAX_WAIT`].
const WAIT: u32 = 8;
const WAIT_FOR_ALL: u32 = 64;
const MAX_WAIT: u32 = 1_024;

/// Decodes of any size between two tries with all threads that were in vain, each of which holds every stream up: fewer than one in a
/// hundred does.
const REST: u32 = 256;

/// Which threads compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThreadShare {
    /// All.
    All,
    /// Half of them.
    Half,
}

/// What is known of decodes of one kind.
#[derive(Debug, Clone, Copy)]
struct DecodeKind {
    crew: ThreadShare,
    /// Mean seconds of late with the crew that computes.
    mean_s: Option<f64>,
    /// The least that all took, of late.
    least_s: f64,
    /// Decodes and seconds of the try that is running.
    tried: Option<(u32, f64)>,
    /// Decodes until the next try.
    n_left: u32,
    wait: u32,
}

/// The times of decodes.
#[derive(Debug)]
pub(super) struct ContentionTuner {
    kinds: [DecodeKind; N_KINDS],
    /// Decodes until all threads may be tried again.
    rest: u32,
}

impl Default for ContentionTuner {
    fn default() -> Self {
        let kind =
            DecodeKind { crew: ThreadShare::All, mean_s: None, least_s: f64::INFINITY, tried: None, n_left: WAIT, wait: WAIT };
        Self { kinds: [kind; N_KINDS], rest: 0 }
    }
}

impl ContentionTuner {
    /// Who computes the next decode of `n_rows`.
    pub(super) fn thread_share(&mut self, n_rows: usize) -> ThreadShare {
        let kind = &mut self.kinds[place(n_rows)];
        let is_slow = match kind.crew {
            ThreadShare::All => kind.mean_s.is_some_and(|mean| mean > SLOW * kind.least_s),
            ThreadShare::Half => self.rest == 0,
        };
        if kind.tried.is_none() && kind.n_left == 0 && is_slow {
            kind.tried = Some((0, 0.0));
        }
        match (kind.crew, kind.tried) {
            (ThreadShare::All, None) | (ThreadShare::Half, Some(_)) => ThreadShare::All,
            (ThreadShare::Half, None) | (ThreadShare::All, Some(_)) => ThreadShare::Half,
        }
    }

    /// It took so long.
    pub(super) fn observe(&mut self, n_rows: usize, time: Duration) {
        let (kind, s) = (&mut self.kinds[place(n_rows)], time.as_secs_f64());
        self.rest = self.rest.saturating_sub(1);
        let Some((n, sum_s)) = kind.tried else {
            kind.mean_s = Some(kind.mean_s.map_or(s, |mean| mean + (s - mean) / WEIGHT));
            kind.n_left = kind.n_left.saturating_sub(1);
            if kind.crew == ThreadShare::All {
                kind.least_s = (FORGET * kind.least_s).min(s);
            }
            return;
        };
        let (n, sum_s) = (n + 1, sum_s + s);
        let mean_s = kind.mean_s.unwrap_or(f64::INFINITY);
        let (n_try, good_s) = match kind.crew {
            ThreadShare::All => (TRY, GAIN * mean_s),
            ThreadShare::Half => (TRY_ALL, mean_s),
        };
        // It ends at once where the rest of it could change nothing.
        if n < n_try && sum_s < f64::from(n_try) * good_s {
            kind.tried = Some((n, sum_s));
            return;
        }
        kind.tried = None;
        let tried_s = sum_s / f64::from(n);
        if tried_s < good_s {
            (kind.crew, kind.wait) = match kind.crew {
                ThreadShare::All => (ThreadShare::Half, WAIT_FOR_ALL),
                ThreadShare::Half => (ThreadShare::All, WAIT),
            };
            kind.mean_s = Some(tried_s);
        } else {
            kind.wait = (2 * kind.wait).min(MAX_WAIT);
            if kind.crew == ThreadShare::Half {
                self.rest = REST;
            }
        }
        kind.n_left = kind.wait;
    }
}

fn place(n_rows: usize) -> usize {
    (n_rows.max(1).ilog2() as usize).min(N_KINDS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes `n` decodes of 4 rows, which take so many milliseconds with all threads and with half of them; says by whom.
    fn decodes(crowd: &mut ContentionTuner, n: usize, all_ms: f64, half_ms: f64) -> Vec<ThreadShare> {
        let one = |_| {
            let crew = crowd.thread_share(4);
            let ms = if crew == ThreadShare::All { all_ms } else { half_ms };
            crowd.observe(4, Duration::from_secs_f64(ms / 1e3));
            crew
        };
        (0..n).map(one).collect()
    }

    fn n_by_half(crews: &[ThreadShare]) -> usize {
        crews.iter().filter(|&&crew| crew == ThreadShare::Half).count()
    }

    #[test]
    fn alone_all_threads_compute_and_nothing_is_tried() {
        let mut crowd = ContentionTuner::default();
        assert_eq!(n_by_half(&decodes(&mut crowd, 10_000, 1.0, 1.9)), 0);
    }

    #[test]
    fn in_a_crowd_half_of_them_compute_until_it_has_gone() {
        let mut crowd = ContentionTuner::default();
        decodes(&mut crowd, 100, 1.0, 1.9);
        let crowded = decodes(&mut crowd, 1_000, 12.0, 4.0);
        assert!(n_by_half(&crowded) > 950, "{}", n_by_half(&crowded));
        assert!(crowded[..40].contains(&ThreadShare::Half), "it is found out soon");
        assert_eq!(n_by_half(&decodes(&mut crowd, 3_000, 1.0, 1.9)[1_100..]), 0, "it is found out that it has gone");
    }

    #[test]
    fn all_threads_are_tried_by_one_decode_in_hundreds_whatever_the_sizes() {
        let mut crowd = ContentionTuner::default();
        let mut decode = |n: usize, all_ms| {
            let n_rows = 1 << (n % N_KINDS);
            let crew = crowd.thread_share(n_rows);
            crowd.observe(n_rows, Duration::from_millis(if crew == ThreadShare::All { all_ms } else { 4 }));
            crew
        };
        let before = (0..4_000).filter(|&n| decode(n, if n < 2_000 { 2 } else { 50 }) == ThreadShare::Half).count();
        assert!(before > 1_000);
        let crowded: Vec<ThreadShare> = (0..20_000).map(|n| decode(n, 50)).collect();
        assert!((20..=80).contains(&(crowded.len() - n_by_half(&crowded))), "{}", crowded.len() - n_by_half(&crowded));
    }

    #[test]
    fn where_fewer_threads_are_no_better_they_are_tried_ever_more_rarely() {
        let mut crowd = ContentionTuner::default();
        decodes(&mut crowd, 100, 1.0, 1.9);
        let slow = decodes(&mut crowd, 4_000, 3.0, 5.0);
        assert!((4..=60).contains(&n_by_half(&slow)), "{}", n_by_half(&slow));
    }

    #[test]
    fn texts_that_grow_are_no_crowd() {
        let mut crowd = ContentionTuner::default();
        let crews: Vec<ThreadShare> = (0..5_000).flat_map(|n| decodes(&mut crowd, 1, 1.0 + f64::from(n) * 1e-3, 9.0)).collect();
        assert_eq!(n_by_half(&crews), 0);
    }

    #[test]
    fn each_size_of_decode_is_told_apart() {
        let mut crowd = ContentionTuner::default();
        decodes(&mut crowd, 100, 1.0, 1.9);
        decodes(&mut crowd, 200, 12.0, 4.0);
        assert_eq!(crowd.thread_share(4), ThreadShare::Half);
        assert_eq!([1, 2, 8, 500, 100_000].map(|n_rows| crowd.thread_share(n_rows)), [ThreadShare::All; 5]);
        assert_eq!((place(0), place(1), place(3), place(4), place(7), place(1 << 20)), (0, 0, 1, 2, 2, 9));
    }
}
