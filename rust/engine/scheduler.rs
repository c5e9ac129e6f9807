//! Which tokens go into the next decode. Pure: values in, values out, no clock.

use std::time::Duration;

use crate::config::MIN_CHUNK;

/// A prefill chunk never takes longer, also with nobody decoding, so that arrivals and cancels never wait long.
pub const MAX_CHUNK: Duration = Duration::from_millis(500);

/// Decides how many rows of the next decode each running sequence gets, and learns from how long the last ones took.
#[derive(Debug)]
pub struct Scheduler {
    n_ubatch: u32,
    max_token_gap: Duration,
    /// Seconds of a step in which every sequence decodes one token; 0 until one was measured.
    step_s: f64,
    /// Seconds that one prefill row adds to a step; 0 until one was measured.
    row_s: f64,
}

/// Weight of the newest measurement in a running mean.
const NEWEST: f64 = 0.2;

impl Scheduler {
    /// For decodes of at most `n_ubatch` rows that hold nobody up for longer than `max_token_gap`.
    #[must_use]
    pub fn new(n_ubatch: u32, max_token_gap: Duration) -> Self {
        Self { n_ubatch, max_token_gap, step_s: 0.0, row_s: 0.0 }
    }

    /// Rows for each running sequence, oldest first; `n_uncomputed[i]` tokens of sequence `i` wait to be computed, one or more.
    ///
    /// A sequence that waits for one token gets it in every step. Prompts share the chunk: [`MIN_CHUNK`] each, so that a short
    /// one need not wait for a long one, and the rest to the oldest.
    #[must_use]
    pub fn plan(&self, n_uncomputed: &[u32]) -> Vec<u32> {
        let mut rows: Vec<u32> = n_uncomputed.iter().map(|&n| u32::from(n == 1)).collect();
        let n_decoding = rows.iter().sum();
        let mut chunk = self.chunk(n_decoding);
        for most in [MIN_CHUNK, u32::MAX] {
            for (rows, &n) in rows.iter_mut().zip(n_uncomputed).filter(|&(_, &n)| n > 1) {
                let more = (n - *rows).min(most).min(chunk);
                *rows += more;
                chunk -= more;
            }
        }
        rows
    }

    /// Tells how long a decode of `n_decoding` single rows and `n_prefill` rows of prompts took.
    pub fn observe(&mut self, n_decoding: u32, n_prefill: u32, took: Duration) {
        let took_s = took.as_secs_f64();
        if n_prefill == 0 {
            learn(&mut self.step_s, took_s);
        } else {
            let beside_s = if n_decoding > 0 { self.step_s } else { 0.0 };
            // A chunk of few rows says little about the cost of one: most of its time is the pass over the weights.
            if n_prefill >= MIN_CHUNK {
                learn(&mut self.row_s, (took_s - beside_s).max(0.0) / f64::from(n_prefill));
            }
        }
    }

    /// Most prefill rows beside `n_decoding` sequences.
    fn chunk(&self, n_decoding: u32) -> u32 {
        let room = self.n_ubatch.saturating_sub(n_decoding);
        let budget_s =
            if n_decoding > 0 { MAX_CHUNK.min(self.max_token_gap).as_secs_f64() - self.step_s } else { MAX_CHUNK.as_secs_f64() };
        if self.row_s == 0.0 {
            // Nothing is known yet, and a row may take a tenth of a second.
            return MIN_CHUNK.min(room);
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float too large or negative saturates")]
        let affordable = (budget_s / self.row_s) as u32;
        affordable.max(MIN_CHUNK).min(room)
    }
}

fn learn(mean: &mut f64, value: f64) {
    *mean = if *mean == 0.0 { value } else { *mean + NEWEST * (value - *mean) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: Duration = Duration::from_millis(100);

    fn scheduler() -> Scheduler {
        Scheduler::new(512, GAP)
    }

    /// A step takes 20 ms, and 1 ms more for each prefill row.
    fn measured() -> Scheduler {
        let mut scheduler = scheduler();
        scheduler.observe(4, 0, Duration::from_millis(20));
        scheduler.observe(0, 100, Duration::from_millis(100));
        scheduler
    }

    #[test]
    fn every_decoding_sequence_gets_its_token() {
        assert_eq!(scheduler().plan(&[1, 1, 1]), [1, 1, 1]);
    }

    #[test]
    fn a_prompt_starts_small_until_its_cost_is_known() {
        assert_eq!(scheduler().plan(&[2_000]), [MIN_CHUNK]);
        assert_eq!(scheduler().plan(&[1, 2_000]), [1, MIN_CHUNK]);
    }

    #[test]
    fn a_prompt_alone_on_a_fast_machine_fills_the_decode() {
        let mut fast = scheduler();
        fast.observe(0, 16, Duration::from_millis(1));
        assert_eq!(fast.plan(&[2_000]), [512]);
    }

    #[test]
    fn a_chunk_beside_running_streams_keeps_within_the_token_gap() {
        assert_eq!(measured().plan(&[1, 2_000]), [1, 80]);
    }

    #[test]
    fn a_chunk_alone_takes_half_a_second_at_most() {
        assert_eq!(measured().plan(&[2_000]), [500]);
    }

    #[test]
    fn a_chunk_is_never_smaller_than_the_minimum_however_slow_the_machine() {
        let mut slow = scheduler();
        slow.observe(1, 0, Duration::from_secs(1));
        slow.observe(0, 16, Duration::from_secs(16));
        assert_eq!(slow.plan(&[1, 2_000]), [1, MIN_CHUNK]);
    }

    #[test]
    fn a_short_prompt_need_not_wait_for_a_long_one() {
        assert_eq!(measured().plan(&[2_000, 10, 300, 1]), [54, 10, 16, 1]);
    }

    #[test]
    fn no_plan_holds_more_rows_than_a_decode_takes() {
        let n_uncomputed: Vec<u32> = (0..60).map(|i| if i % 2 == 0 { 1 } else { 500 }).collect();
        let rows = Scheduler::new(96, GAP).plan(&n_uncomputed);
        assert!(rows.iter().sum::<u32>() <= 96);
        assert!(rows.iter().zip(&n_uncomputed).all(|(rows, n)| rows <= n));
        assert!(n_uncomputed.iter().zip(&rows).all(|(&n, &rows)| n > 1 || rows == 1), "nobody misses a token");
    }
}
