//! Limits the time of a step, by the measured times of previous steps. Pure: values in, values out, no clock.

mod rows;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::config::{MIN_CHUNK, TokenGap};
use crate::engine::numbers::RunningMean;
use crate::engine::scheduler::step_cost::{StepCost, StepShape};
pub(crate) use rows::RowDemand;

/// Maximum mean time of a prefill chunk, even without streams, so that arrivals and cancels are handled soon.
const MAX_CHUNK: Duration = Duration::from_millis(500);

/// Maximum time per step for moving cache entries while no stream is running, so that arrivals are handled soon.
const MAX_MOVE: Duration = Duration::from_millis(100);

/// Share of a decode's time that moving may always take, even if no time is left.
const MIN_MOVE_SHARE: f64 = 0.05;

/// Minimum chunk, in tokens, while streams are running, even if the gap allows fewer: prefill advances on every machine.
const MIN_CHUNK_WITH_STREAMS: u32 = 4;

/// Maximum ratio of a chunk to the largest one measured, so that a wrong first estimate costs little.
const MAX_GROWTH: u32 = 4;

/// Share of the allowed gap that a step may take on average on a machine too unsteady to keep any bound.
const MAX_MEAN_SHARE: f64 = 1.0 / 3.0;

/// Weight of the newest step in the mean time outside decodes.
const NEWEST_WEIGHT: f64 = 0.1;

/// Sequences that get a token in every step, and the limits on their token gap.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StreamLoad {
    pub(crate) n_decoding: u32,
    pub(crate) n_by_default: u32,
    /// Shortest gap that one of the others requests.
    pub(crate) max_token_gap: Option<Duration>,
    /// Maximum time of the step on behalf of streams that are not in this step.
    pub(crate) max_step: Option<Duration>,
    pub(crate) priority: i32,
}

/// Divides the rows of the next decode among the running sequences.
///
/// Keeps the 99th percentile of the gap between two tokens of a stream within the allowed maximum. A gap is one step of the
/// worker: moving cache entries, the decode, and the rest (sampling, text, events). In all methods, `n_cells` is the number of
/// cells that each row scans, without this step's: the highest used cell.
#[derive(Debug)]
pub(crate) struct StepBudget {
    n_ubatch: u32,
    max_token_gap: TokenGap,
    decode: StepCost,
    /// Mean seconds of a step outside its decode, and their mean absolute deviation.
    rest_s: RunningMean,
    rest_spread_s: f64,
    /// Mean seconds outside of a decode per sampled token; 0 until measured.
    token_s: RunningMean,
    /// Mean seconds to report the logprobs of one prompt token; 0 until measured.
    logprob_s: RunningMean,
}

impl StepBudget {
    pub(crate) const fn new(n_ubatch: u32, max_token_gap: TokenGap) -> Self {
        Self {
            n_ubatch,
            max_token_gap,
            decode: StepCost::new(),
            rest_s: RunningMean::new(),
            rest_spread_s: 0.0,
            token_s: RunningMean::new(),
            logprob_s: RunningMean::new(),
        }
    }

    pub(crate) fn observe(&mut self, n_decoding: u32, n_prefill: u32, n_cells: u32, took: Duration) {
        self.decode.observe(StepShape { n_decoding, n_prefill, n_cells }, took.as_secs_f64());
    }

    /// Observes a step of whose decoding rows some are drafts.
    pub(crate) fn observe_drafted(&mut self, n_decoding: u32, n_prefill: u32, n_cells: u32, took: Duration) {
        self.decode.observe_drafted(StepShape { n_decoding, n_prefill, n_cells }, took.as_secs_f64());
    }

    /// Records that a step sampled `n_tokens`, which took all of its time outside its decode.
    pub(crate) fn observe_tokens(&mut self, n_tokens: u64, took: Duration) {
        if n_tokens > 0 {
            let one_s = took.as_secs_f64() / f64::from(u32::try_from(n_tokens).expect("a step samples few tokens"));
            self.token_s.observe_capped(one_s, NEWEST_WEIGHT);
        }
    }

    /// Records the time of a step outside its decode, without the `spent` that was passed to `plan`.
    pub(crate) fn observe_rest(&mut self, took: Duration) {
        let (took_s, mean_s) = (took.as_secs_f64(), self.rest_s.get());
        self.rest_s.observe_capped(took_s, NEWEST_WEIGHT);
        if mean_s > 0.0 {
            let off_s = (took_s - mean_s).abs().min(mean_s);
            self.rest_spread_s += NEWEST_WEIGHT * (off_s - self.rest_spread_s);
        }
    }

    pub(crate) fn observe_prompt_logprobs(&mut self, n_tokens: u32, took: Duration) {
        self.logprob_s.observe(took.as_secs_f64() / f64::from(n_tokens), NEWEST_WEIGHT);
    }

    /// Returns the time of this step for moving cache entries, given `streams` and `n_prefilling` sequences with uncomputed
    /// prompts. Without streams it is [`MAX_MOVE`], else half of what the gap leaves, or a quarter if a prompt needs time too.
    /// At least a twentieth of the decode, which is often slow because of the very cells that are to be moved.
    pub(crate) fn move_time(&self, streams: StreamLoad, n_prefilling: u32, n_cells: u32) -> Duration {
        if streams.n_decoding == 0 {
            return MAX_MOVE;
        }
        let alone_s = self.mean_s(streams.n_decoding, 0, n_cells);
        let high_s = self.decode.high_s(StepShape { n_decoding: streams.n_decoding, n_prefill: 0, n_cells });
        let safe_s = self.budget_s(streams, n_cells) - high_s;
        let left_s = safe_s.max(self.mean_limit_s(streams, n_cells) - alone_s);
        let share = if n_prefilling == 0 { 0.5 } else { 0.25 };
        let min_s = (MIN_MOVE_SHARE * alone_s).min(MAX_MOVE.as_secs_f64());
        Duration::from_secs_f64((left_s * share).max(min_s))
    }

    /// Returns the maximum number of prompt tokens, at least 1, whose logprobs a step may report: their time is at most the
    /// time of the streams by themselves, and at most a third of the gap. Unlimited without streams.
    pub(crate) fn max_prompt_logprobs(&self, streams: StreamLoad, n_cells: u32) -> u32 {
        if streams.n_decoding == 0 {
            return u32::MAX;
        }
        if self.logprob_s.get() == 0.0 {
            return MIN_CHUNK;
        }
        let limit_s = self.mean_s(streams.n_decoding, 0, n_cells).min(MAX_MEAN_SHARE * self.step_s(streams, n_cells));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of a float keeps to the range")]
        let n_tokens = (limit_s / self.logprob_s.get()) as u32;
        n_tokens.max(1)
    }

    /// Returns the maximum number of prefill rows in a step with `streams`, of `n_wanted`: as many as keep 99 of 100 steps
    /// within the budget, or, without streams, the mean step, since then no stream pauses. On a machine too unsteady for any
    /// safe chunk, as many as keep the mean decode within a third of the gap and twice the time of the streams alone: the
    /// pauses have other causes then, and a smaller chunk would not shorten them. If the `n_first` rows of prompts of at least
    /// the streams' priority are all there is and fit a third of the gap, they are computed immediately, because a client waits
    /// for its first token.
    fn chunk(&self, streams: StreamLoad, n_wanted: u32, n_first: u32, n_cells: u32, spent: Duration) -> u32 {
        let (n_decoding, spent_s) = (streams.n_decoding, spent.as_secs_f64());
        let shape = |n_prefill| StepShape { n_decoding, n_prefill, n_cells };
        let mean_s = |n_prefill| self.decode.mean_s(shape(n_prefill));
        let budget_s = self.budget_s(streams, n_cells) - spent_s;
        let max = self.n_ubatch.saturating_sub(n_decoding).min(n_wanted);
        let high = MIN_CHUNK.max(MAX_GROWTH.saturating_mul(self.decode.n_tried())).min(max);
        if n_decoding == 0 && streams.max_step.is_none() {
            return max_fitting(MIN_CHUNK.min(max), high, |n_prefill| mean_s(n_prefill) <= budget_s);
        }
        let low = MIN_CHUNK_WITH_STREAMS.min(max);
        let safe = max_fitting(low, high, |n_prefill| self.decode.high_s(shape(n_prefill)) <= budget_s);
        let mean_limit_s = self.mean_limit_s(streams, n_cells) - spent_s;
        let on_average = max_fitting(low, high, |n_prefill| mean_s(n_prefill) <= mean_limit_s);
        let first_limit_s = MAX_MEAN_SHARE * self.limit_s(streams, n_cells) - spent_s;
        let covers_first = n_first <= high && mean_s(n_first) <= first_limit_s;
        safe.max(on_average).max(if covers_first { n_first } else { 0 })
    }

    fn mean_limit_s(&self, streams: StreamLoad, n_cells: u32) -> f64 {
        (2.0 * self.mean_s(streams.n_decoding, 0, n_cells)).min(MAX_MEAN_SHARE * self.limit_s(streams, n_cells))
    }

    /// Returns the maximum seconds of a step's decode; negative if the rest of the step already exceeds the limit.
    fn budget_s(&self, streams: StreamLoad, n_cells: u32) -> f64 {
        self.limit_s(streams, n_cells) - self.rest_s.get() - 3.0 * self.rest_spread_s
    }

    fn limit_s(&self, streams: StreamLoad, n_cells: u32) -> f64 {
        let within_s = streams.max_step.map_or(f64::INFINITY, |max_step| max_step.as_secs_f64());
        self.step_s(streams, n_cells).min(within_s)
    }

    pub(crate) fn step_s(&self, streams: StreamLoad, n_cells: u32) -> f64 {
        let chunk_s = MAX_CHUNK.as_secs_f64();
        let own_s = streams.max_token_gap.map_or(f64::INFINITY, |gap| gap.as_secs_f64());
        match self.max_token_gap {
            _ if streams.n_decoding == 0 => chunk_s,
            _ if streams.n_by_default == 0 => own_s.min(chunk_s),
            TokenGap::AtMost(gap) => gap.as_secs_f64().min(own_s).min(chunk_s),
            // The tokens of slow streams alone may take longer than a chunk.
            TokenGap::Auto => {
                let alone_s = self.mean_s(streams.n_decoding, 0, n_cells);
                let several_s = f64::from(TokenGap::IN_TOKENS) * alone_s;
                let usual_s = several_s.clamp(TokenGap::LEAST.as_secs_f64(), TokenGap::USUAL.as_secs_f64());
                usual_s.max(alone_s + alone_s.min(chunk_s)).min(own_s)
            }
        }
    }

    /// Returns the seconds that 99 of 100 steps with one token of each of `n_streams` stay within.
    pub(crate) fn stream_step_s(&self, n_streams: u32, n_cells: u32) -> f64 {
        if n_streams == 0 {
            return 0.0;
        }
        self.decode.high_s(StepShape { n_decoding: n_streams, n_prefill: 0, n_cells })
            + self.rest_s.get()
            + 3.0 * self.rest_spread_s
    }

    /// Returns the mean seconds of a decode, of whose `n_decoding` rows some may be drafts; 0 until measured.
    pub(crate) fn mean_s(&self, n_decoding: u32, n_prefill: u32, n_cells: u32) -> f64 {
        self.decode.mean_s(StepShape { n_decoding, n_prefill, n_cells })
    }

    /// Returns the maximum mean seconds of a decode with drafts. The limits are those of a chunk: see `chunk`.
    pub(crate) fn max_drafted_s(&self, streams: StreamLoad, n_cells: u32, spent: Duration) -> f64 {
        let safe_s = self.decode.mean_within_s(self.budget_s(streams, n_cells) - spent.as_secs_f64());
        safe_s.max(self.mean_limit_s(streams, n_cells) - spent.as_secs_f64())
    }

    pub(crate) const fn token_s(&self) -> f64 {
        self.token_s.get()
    }

    /// Returns the mean seconds per token of a long prompt without streams; 0 until measured.
    pub(crate) fn prompt_token_s(&self, n_cells: u32) -> f64 {
        let shape = StepShape { n_decoding: 0, n_prefill: self.n_ubatch, n_cells };
        self.decode.mean_s(shape) / f64::from(self.n_ubatch)
    }
}

/// Returns the largest number in `[low, high]` that fits; `low` is granted without a check.
fn max_fitting(mut low: u32, mut high: u32, fits: impl Fn(u32) -> bool) -> u32 {
    while low < high {
        let middle = high - (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}
