//! Chooses the tokens of the next decode. Pure: values in, values out, no clock.

use std::cmp::Reverse;
use std::time::Duration;

use crate::config::{MIN_CHUNK, TokenGap};
use crate::engine::scheduler::step_cost::{StepCost, StepShape};

/// Maximum mean time of a prefill chunk, also if no stream is running, so that arrivals and cancels are handled soon.
pub const MAX_CHUNK: Duration = Duration::from_millis(500);

/// Maximum time per step for moving cache entries while no stream is running, so that arrivals are handled soon.
pub const MAX_MOVE: Duration = Duration::from_millis(100);

/// Share of a decode's time that moving may always take, even if no time is left.
const MIN_MOVE_SHARE: f64 = 0.05;

/// Minimum chunk, in tokens, while streams are running, even if the gap allows fewer: prefill advances on every machine.
const MIN_CHUNK_WITH_STREAMS: u32 = 4;

/// Share by which streams of lower priorities may lengthen the step of the highest-priority streams, and prefill of lower
/// priorities once more: with both, the latter keep two thirds of their speed.
const LOW_PRIORITY_SHARE: f64 = 0.25;

/// Minimum number of lower-priority streams per step, and of their prompt tokens, to prevent starvation.
const MIN_LOW_PRIORITY: u32 = 1;

/// Maximum ratio of a chunk to the largest one measured, so that a wrong first estimate costs little.
const MAX_GROWTH: u32 = 4;

/// Share of the allowed gap that a step may take on average on a machine too unsteady to keep any bound.
const MAX_MEAN_SHARE: f64 = 1.0 / 3.0;

/// Weight of the newest step in the mean time outside decodes.
const NEWEST_WEIGHT: f64 = 0.1;

/// Demand of a running sequence for rows of the next decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowDemand {
    /// Tokens ready to be computed; 0 if the sequence cannot use rows in this step.
    pub n_ready: u32,
    /// Whether `n_ready` is all that the sequence has to compute.
    pub is_all: bool,
    /// Priority: of two prompts, the higher one is computed first.
    pub priority: i32,
    /// Number of consecutive steps without rows; `None` if the sequence never yields its rows.
    pub n_skipped: Option<u32>,
}

/// Sequences that get a token in every step, and the limits on their token gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamLoad {
    /// Number of sequences.
    pub n_decoding: u32,
    /// Number of sequences with the default gap.
    pub n_by_default: u32,
    /// Shortest gap that one of the others requests.
    pub max_token_gap: Option<Duration>,
    /// Maximum time of the step on behalf of streams that are not in this step.
    pub max_step: Option<Duration>,
    /// Highest priority among them.
    pub priority: i32,
}

impl StreamLoad {
    /// Creates a load of streams with the default gap.
    #[must_use]
    pub const fn by_default(n_decoding: u32) -> Self {
        Self { n_decoding, n_by_default: n_decoding, max_token_gap: None, max_step: None, priority: 0 }
    }
}

/// Divides the rows of the next decode among the running sequences, based on the measured times of previous decodes.
///
/// Keeps the 99th percentile of the gap between two tokens of a stream within the allowed maximum. A gap is one step of the
/// worker: moving cache entries, the decode, and the rest (sampling, text, events).
#[derive(Debug)]
pub struct StepBudget {
    n_ubatch: u32,
    max_token_gap: TokenGap,
    decode: StepCost,
    /// Mean seconds of a step outside its decode, and their mean absolute deviation.
    rest_s: f64,
    rest_spread_s: f64,
    /// Mean seconds to report the logprobs of one prompt token; 0 until measured.
    logprob_s: f64,
}

impl StepBudget {
    /// Creates a budget for decodes of at most `n_ubatch` rows, in steps of at most `max_token_gap`.
    #[must_use]
    pub const fn new(n_ubatch: u32, max_token_gap: TokenGap) -> Self {
        Self { n_ubatch, max_token_gap, decode: StepCost::new(), rest_s: 0.0, rest_spread_s: 0.0, logprob_s: 0.0 }
    }

    /// Writes the number of rows of each running sequence to `rows`, most senior first.
    ///
    /// A sequence with one token to compute gets it in every step, except lower-priority streams that take turns (see
    /// [`LOW_PRIORITY_SHARE`]). Prompts share the chunk. A prompt yields to prompts that are both more senior and of higher
    /// priority; each of the others gets up to [`MIN_CHUNK`], so that a short one need not wait for a long one, and the rest
    /// goes to the most senior. Prompts of a lower priority than some stream share the remainder of a quarter of the time of
    /// the highest-priority streams, independent of the allowed gap.
    ///
    /// `n_cells` is the number of cells that each row scans, without this step's: the highest used cell. `spent` is the time of
    /// this step spent on moving cache entries, which reduces the chunk.
    pub fn plan(&self, demands: &[RowDemand], streams: StreamLoad, n_cells: u32, spent: Duration, rows: &mut Vec<u32>) {
        rows.clear();
        rows.extend(demands.iter().map(|demand| u32::from(demand.n_ready == 1)));
        self.yield_rows(demands, n_cells, rows);
        let prompts = || demands.iter().filter(|demand| demand.n_ready > 1);
        let n_wanted = prompts().fold(0, |sum: u32, demand| sum.saturating_add(demand.n_ready));
        let streams = StreamLoad { n_decoding: rows.iter().sum(), ..streams };
        let first_prompts = prompts().filter(|demand| demand.priority >= streams.priority);
        let n_first =
            first_prompts.fold(0, |sum: u32, demand| if demand.is_all { sum.saturating_add(demand.n_ready) } else { u32::MAX });
        let chunk = self.chunk(streams, n_wanted, n_first, n_cells, spent);
        let mut n_granted = 0;
        for is_low in [false, true] {
            let is_included = |demand: &RowDemand| (streams.n_decoding > 0 && demand.priority < streams.priority) == is_low;
            let priorities = || prompts().filter(|demand| is_included(demand)).map(|demand| demand.priority);
            let Some(highest) = priorities().max() else { continue };
            let most = if is_low { self.low_priority_chunk(demands, streams, chunk, n_cells) } else { chunk };
            let least =
                if is_low { MIN_LOW_PRIORITY.min(self.n_ubatch.saturating_sub(streams.n_decoding + n_granted)) } else { 0 };
            let mut left = most.saturating_sub(n_granted).max(least);
            n_granted += left;
            // First the prompts that no more senior one outranks, then the rest by priority.
            distribute(demands, rows, &mut left, |demand, highest_before| {
                is_included(demand) && demand.priority >= highest_before
            });
            let mut next = Some(highest);
            while let Some(priority) = next.filter(|_| left > 0) {
                distribute(demands, rows, &mut left, |demand, _| demand.priority == priority);
                next = priorities().filter(|&other| other < priority).max();
            }
            n_granted -= left;
        }
    }

    /// Withdraws the rows of streams below the highest priority, if they would add more than [`LOW_PRIORITY_SHARE`] to the time
    /// of the streams of that priority. The stream with the longest wait keeps its row, then streams of higher priority, then
    /// streams with longer waits.
    fn yield_rows(&self, demands: &[RowDemand], n_cells: u32, rows: &mut [u32]) {
        let ready = || demands.iter().filter(|demand| demand.n_ready > 0);
        let Some(highest) = ready().map(|demand| demand.priority).max() else { return };
        let may_wait = |demand: &RowDemand| demand.n_ready == 1 && demand.priority < highest && demand.n_skipped.is_some();
        let n_low = count(ready().filter(|&demand| may_wait(demand)));
        if n_low <= MIN_LOW_PRIORITY {
            return;
        }
        let highest_demands = || ready().filter(|demand| demand.priority == highest);
        let n_decoding = count(highest_demands().filter(|demand| demand.n_ready == 1));
        // With streams of that priority in the step, the time of its prompts is not known here and not counted.
        let n_wanted = highest_demands().fold(0, |sum: u32, demand| sum.saturating_add(demand.n_ready)).min(self.n_ubatch);
        let n_prefill = if n_decoding > 0 { 0 } else { n_wanted };
        let mean_s = |n_more| self.decode.mean_s(StepShape { n_decoding: n_decoding + n_more, n_prefill, n_cells });
        let n_kept = most_rows(MIN_LOW_PRIORITY, n_low, |n_kept| mean_s(n_kept) <= (1.0 + LOW_PRIORITY_SHARE) * mean_s(0));
        if n_kept == n_low {
            return;
        }
        let mut low: Vec<usize> = (0..demands.len()).filter(|&nth| may_wait(&demands[nth])).collect();
        low.sort_by_key(|&nth| Reverse(demands[nth].n_skipped));
        low[1..].sort_by_key(|&nth| Reverse(demands[nth].priority));
        for nth in low.into_iter().skip(n_kept as usize) {
            rows[nth] = 0;
        }
    }

    /// Returns the time of this step for moving cache entries, given `streams` and `n_prefilling` sequences with uncomputed
    /// prompts. Without streams it is [`MAX_MOVE`], else half of what the gap leaves, or a quarter if a prompt needs time too.
    /// At least a twentieth of the decode, which is often slow because of the very cells that are to be moved. `n_cells` as in
    /// [`StepBudget::plan`].
    #[must_use]
    pub fn move_time(&self, streams: StreamLoad, n_prefilling: u32, n_cells: u32) -> Duration {
        if streams.n_decoding == 0 {
            return MAX_MOVE;
        }
        let shape = StepShape { n_decoding: streams.n_decoding, n_prefill: 0, n_cells };
        let safe_s = self.budget_s(streams, n_cells, Duration::ZERO) - self.decode.high_s(shape);
        let left_s = safe_s.max(self.mean_limit_s(streams, n_cells, Duration::ZERO) - self.decode.mean_s(shape));
        let share = if n_prefilling == 0 { 0.5 } else { 0.25 };
        let least_s = (MIN_MOVE_SHARE * self.decode.mean_s(shape)).min(MAX_MOVE.as_secs_f64());
        Duration::from_secs_f64((left_s * share).max(least_s))
    }

    /// Records the time of a decode of `n_decoding` single rows and `n_prefill` prompt rows over `n_cells` cells, as passed to
    /// [`StepBudget::plan`].
    pub fn observe(&mut self, n_decoding: u32, n_prefill: u32, n_cells: u32, took: Duration) {
        self.decode.observe(StepShape { n_decoding, n_prefill, n_cells }, took.as_secs_f64());
    }

    /// Records the time of a step outside its decode, without the `spent` that was passed to `plan`.
    pub fn observe_rest(&mut self, took: Duration) {
        let took_s = took.as_secs_f64();
        if self.rest_s == 0.0 {
            self.rest_s = took_s;
            return;
        }
        // A step in which another process took the CPU says little about the next one.
        let off_s = (took_s - self.rest_s).clamp(-self.rest_s, self.rest_s);
        self.rest_s += NEWEST_WEIGHT * off_s;
        self.rest_spread_s += NEWEST_WEIGHT * (off_s.abs() - self.rest_spread_s);
    }

    /// Records the time of reporting the logprobs of `n_tokens` prompt tokens, at least one.
    pub fn observe_prompt_logprobs(&mut self, n_tokens: u32, took: Duration) {
        let one_s = took.as_secs_f64() / f64::from(n_tokens);
        self.logprob_s = if self.logprob_s == 0.0 { one_s } else { self.logprob_s + NEWEST_WEIGHT * (one_s - self.logprob_s) };
    }

    /// Returns the maximum number of prompt tokens, at least 1, whose logprobs a step may report: their time is at most the
    /// time of the streams by themselves, and at most a third of the gap. Unlimited without streams.
    #[must_use]
    pub fn max_prompt_logprobs(&self, streams: StreamLoad, n_cells: u32) -> u32 {
        if streams.n_decoding == 0 {
            return u32::MAX;
        }
        if self.logprob_s == 0.0 {
            return MIN_CHUNK;
        }
        let alone_s = self.decode.mean_s(StepShape { n_decoding: streams.n_decoding, n_prefill: 0, n_cells });
        let limit_s = alone_s.min(MAX_MEAN_SHARE * self.step_s(streams, n_cells));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of a float keeps to the range")]
        let n_tokens = (limit_s / self.logprob_s) as u32;
        n_tokens.max(1)
    }

    /// Returns the maximum number of prefill rows in a step with `streams`, of `n_wanted`: as many as keep 99 of 100 steps
    /// within the budget, or, without streams, the mean step, since then no stream pauses. On a machine too unsteady for any
    /// safe chunk, as many as keep the mean decode within a third of the gap and twice the time of the streams alone: the
    /// pauses have other causes then, and a smaller chunk would not shorten them. If the `n_first` rows of prompts of at least
    /// the streams' priority are all there is and fit a third of the gap, they are computed immediately, because a client waits
    /// for its first token.
    fn chunk(&self, streams: StreamLoad, n_wanted: u32, n_first: u32, n_cells: u32, spent: Duration) -> u32 {
        let budget_s = self.budget_s(streams, n_cells, spent);
        let n_decoding = streams.n_decoding;
        let is_unlimited = n_decoding == 0 && streams.max_step.is_none();
        let fits = |n_prefill| {
            let shape = StepShape { n_decoding, n_prefill, n_cells };
            let estimate_s = if is_unlimited { self.decode.mean_s(shape) } else { self.decode.high_s(shape) };
            estimate_s <= budget_s
        };
        let most = self.n_ubatch.saturating_sub(n_decoding).min(n_wanted);
        let least = if is_unlimited { MIN_CHUNK } else { MIN_CHUNK_WITH_STREAMS };
        let high = MIN_CHUNK.max(MAX_GROWTH.saturating_mul(self.decode.n_tried())).min(most);
        let mean_limit_s = self.mean_limit_s(streams, n_cells, spent);
        let fits_on_average = |n_prefill| self.decode.mean_s(StepShape { n_decoding, n_prefill, n_cells }) <= mean_limit_s;
        let low = least.min(most);
        let safe = most_rows(low, high, fits);
        if is_unlimited {
            return safe.max(low);
        }
        let limit_s = MAX_MEAN_SHARE * self.limit_s(streams, n_cells) - spent.as_secs_f64();
        let covers_first =
            n_first <= high && self.decode.mean_s(StepShape { n_decoding, n_prefill: n_first, n_cells }) <= limit_s;
        safe.max(most_rows(low, high, fits_on_average)).max(if covers_first { n_first } else { 0 })
    }

    /// Returns as many of `chunk` rows as add at most [`LOW_PRIORITY_SHARE`] to the time of the streams of the highest
    /// priority.
    fn low_priority_chunk(&self, demands: &[RowDemand], streams: StreamLoad, chunk: u32, n_cells: u32) -> u32 {
        let n_first = count(demands.iter().filter(|demand| demand.n_ready == 1 && demand.priority == streams.priority));
        let mean_s = |n_decoding, n_prefill| self.decode.mean_s(StepShape { n_decoding, n_prefill, n_cells });
        let limit_s = mean_s(streams.n_decoding, 0) + LOW_PRIORITY_SHARE * mean_s(n_first, 0);
        most_rows(MIN_LOW_PRIORITY.min(chunk), chunk, |n_prefill| mean_s(streams.n_decoding, n_prefill) <= limit_s)
    }

    /// Returns the maximum mean seconds of a decode with `streams`, on any machine.
    fn mean_limit_s(&self, streams: StreamLoad, n_cells: u32, spent: Duration) -> f64 {
        let alone_s = self.decode.mean_s(StepShape { n_decoding: streams.n_decoding, n_prefill: 0, n_cells });
        (2.0 * alone_s).min(MAX_MEAN_SHARE * self.limit_s(streams, n_cells)) - spent.as_secs_f64()
    }

    /// Returns the maximum seconds of a step, including the limit for streams of other adapter sets.
    fn limit_s(&self, streams: StreamLoad, n_cells: u32) -> f64 {
        let within_s = streams.max_step.map_or(f64::INFINITY, |max_step| max_step.as_secs_f64());
        self.step_s(streams, n_cells).min(within_s)
    }

    /// Returns the maximum seconds of a step's decode; negative if the rest of the step already exceeds the limit.
    fn budget_s(&self, streams: StreamLoad, n_cells: u32, spent: Duration) -> f64 {
        self.limit_s(streams, n_cells) - spent.as_secs_f64() - self.rest_s - 3.0 * self.rest_spread_s
    }

    /// Returns the seconds that 99 of 100 steps with one token of each of `n_streams` stay within; 0 without streams or
    /// measurements.
    pub(crate) fn stream_step_s(&self, n_streams: u32, n_cells: u32) -> f64 {
        if n_streams == 0 {
            return 0.0;
        }
        self.decode.high_s(StepShape { n_decoding: n_streams, n_prefill: 0, n_cells }) + self.rest_s + 3.0 * self.rest_spread_s
    }

    /// Returns the mean seconds of a decode of single rows; 0 until measured.
    pub(crate) fn mean_s(&self, n_decoding: u32, n_cells: u32) -> f64 {
        self.decode.mean_s(StepShape { n_decoding, n_prefill: 0, n_cells })
    }

    /// Returns the mean seconds per token of a long prompt without streams; 0 until measured.
    pub(crate) fn token_s(&self, n_cells: u32) -> f64 {
        let shape = StepShape { n_decoding: 0, n_prefill: self.n_ubatch, n_cells };
        self.decode.mean_s(shape) / f64::from(self.n_ubatch)
    }

    /// Returns the maximum seconds of a step.
    pub(crate) fn step_s(&self, streams: StreamLoad, n_cells: u32) -> f64 {
        let chunk_s = MAX_CHUNK.as_secs_f64();
        if streams.n_decoding == 0 {
            return chunk_s;
        }
        let by_default_s = match self.max_token_gap {
            _ if streams.n_by_default == 0 => chunk_s,
            TokenGap::AtMost(gap) => gap.as_secs_f64(),
            TokenGap::Auto => {
                let alone_s = self.decode.mean_s(StepShape { n_decoding: streams.n_decoding, n_prefill: 0, n_cells });
                let several_s = f64::from(TokenGap::IN_TOKENS) * alone_s;
                let usual_s = several_s.clamp(TokenGap::LEAST.as_secs_f64(), TokenGap::USUAL.as_secs_f64());
                usual_s.max(alone_s + alone_s.min(chunk_s))
            }
        };
        let own_s = streams.max_token_gap.map_or(f64::INFINITY, |gap| gap.as_secs_f64());
        match self.max_token_gap {
            // The tokens of slow streams alone may take longer than a chunk.
            TokenGap::Auto if streams.n_by_default > 0 => by_default_s.min(own_s),
            TokenGap::Auto | TokenGap::AtMost(_) => by_default_s.min(own_s).min(chunk_s),
        }
    }
}

fn count<'a>(demands: impl Iterator<Item = &'a RowDemand>) -> u32 {
    u32::try_from(demands.count()).expect("a decode has fewer than 2³² rows")
}

/// Returns the largest number in `[low, high]` that fits; `low` is granted without a check.
fn most_rows(mut low: u32, mut high: u32, fits: impl Fn(u32) -> bool) -> u32 {
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

/// Distributes up to `chunk` rows to the included prompts: [`MIN_CHUNK`] each, then the rest to the first. `is_included`
/// receives the highest priority of the prompts before.
fn distribute(demands: &[RowDemand], rows: &mut [u32], chunk: &mut u32, is_included: impl Fn(&RowDemand, i32) -> bool) {
    for most in [MIN_CHUNK, u32::MAX] {
        let mut highest_before = i32::MIN;
        for (rows, demand) in rows.iter_mut().zip(demands).filter(|(_, demand)| demand.n_ready > 1) {
            if is_included(demand, highest_before) {
                let more = (demand.n_ready - *rows).min(most).min(*chunk);
                *rows += more;
                *chunk -= more;
            }
            highest_before = highest_before.max(demand.priority);
        }
    }
}

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests {
    use super::*;

    const GAP: TokenGap = TokenGap::AtMost(Duration::from_millis(100));
    const N_CELLS: u32 = 1_000;

    fn scheduler() -> StepBudget {
        StepBudget::new(512, GAP)
    }

    /// A step takes 20 ms, plus 1 ms for each prefill row.
    fn measured() -> StepBudget {
        let mut scheduler = scheduler();
        for i in 0..200 {
            let n_prefill = 20 * (i % 5);
            scheduler.observe(1, n_prefill, N_CELLS, Duration::from_millis(20 + u64::from(n_prefill)));
        }
        scheduler
    }

    fn streams(n_uncomputed: &[u32]) -> StreamLoad {
        StreamLoad::by_default(u32::try_from(n_uncomputed.iter().filter(|&&n| n == 1).count()).unwrap())
    }

    pub(crate) fn demands(n_uncomputed: &[u32]) -> Vec<RowDemand> {
        n_uncomputed.iter().map(|&n_ready| RowDemand { n_ready, is_all: true, priority: 0, n_skipped: None }).collect()
    }

    fn plan_of(scheduler: &StepBudget, n_uncomputed: &[u32], n_cells: u32, spent: Duration) -> Vec<u32> {
        let mut rows = vec![7; 3];
        scheduler.plan(&demands(n_uncomputed), streams(n_uncomputed), n_cells, spent, &mut rows);
        rows
    }

    fn plan(scheduler: &StepBudget, n_uncomputed: &[u32]) -> Vec<u32> {
        plan_of(scheduler, n_uncomputed, N_CELLS, Duration::ZERO)
    }

    #[test]
    fn every_decoding_sequence_gets_its_token() {
        assert_eq!(plan(&scheduler(), &[1, 1, 1]), [1, 1, 1]);
    }

    #[test]
    fn a_prompt_starts_small_until_its_cost_is_known() {
        assert_eq!(plan(&scheduler(), &[2_000]), [MIN_CHUNK]);
        assert_eq!(plan(&scheduler(), &[1, 2_000]), [1, MIN_CHUNK]);
    }

    #[test]
    fn a_prompt_alone_on_a_fast_machine_soon_fills_the_decode() {
        let mut fast = scheduler();
        for expected in [16, 64, 256, 512] {
            assert_eq!(plan(&fast, &[2_000]), [expected]);
            fast.observe(0, expected, N_CELLS, Duration::from_micros(1_000 + u64::from(expected)));
        }
    }

    /// Returns the streams of `1 + n_low` that get a row in each of `n_steps` steps; the first has the higher priority.
    fn simulate_priorities(scheduler: &StepBudget, n_low: usize, n_steps: usize) -> Vec<Vec<usize>> {
        let mut n_skipped = vec![0; 1 + n_low];
        let mut rows = Vec::new();
        let steps = (0..n_steps).map(|_| {
            let demands: Vec<_> = (n_skipped.iter().enumerate())
                .map(|(nth, &n_skipped)| RowDemand {
                    n_ready: 1,
                    is_all: true,
                    priority: i32::from(nth == 0),
                    n_skipped: Some(n_skipped),
                })
                .collect();
            scheduler.plan(&demands, StreamLoad::by_default(0), N_CELLS, Duration::ZERO, &mut rows);
            for (n_skipped, &n_rows) in n_skipped.iter_mut().zip(&rows) {
                *n_skipped = if n_rows == 0 { *n_skipped + 1 } else { 0 };
            }
            (0..rows.len()).filter(|&nth| rows[nth] > 0).collect()
        });
        steps.collect()
    }

    /// A step takes 4 ms, plus 1 ms for each stream.
    fn measured_streams() -> StepBudget {
        let mut scheduler = scheduler();
        for i in 0..400 {
            let n_decoding = 1 + 7 * (i % 5);
            scheduler.observe(n_decoding, 0, N_CELLS, Duration::from_millis(4 + u64::from(n_decoding)));
        }
        scheduler
    }

    #[test]
    fn streams_of_lower_priorities_add_at_most_a_quarter_to_a_step_and_take_turns() {
        let steps = simulate_priorities(&measured_streams(), 20, 60);
        for step in &steps {
            assert_eq!(step[0], 0, "the one of higher priority goes on in every step");
            assert!((1..=2).contains(&(step.len() - 1)), "5 + 1.25 ms: {step:?}");
        }
        for low in 1..=20 {
            let at: Vec<usize> = (0..steps.len()).filter(|&nth| steps[nth].contains(&low)).collect();
            assert!(at.len() > 1 && at.windows(2).all(|two| two[1] - two[0] <= 20), "{low} goes on at {at:?}");
        }
    }

    #[test]
    fn some_low_priority_streams_always_advance_and_all_do_if_they_are_cheap_or_unmeasured() {
        let mut slow = scheduler();
        for i in 0..400 {
            let n_decoding = 1 + 7 * (i % 5);
            slow.observe(n_decoding, 0, N_CELLS, Duration::from_millis(20 * u64::from(n_decoding)));
        }
        assert!(simulate_priorities(&slow, 20, 10).iter().all(|step| step.len() == 1 + MIN_LOW_PRIORITY as usize));
        assert!(simulate_priorities(&measured_streams(), 1, 10).iter().all(|step| step.len() == 2));
        assert!(simulate_priorities(&scheduler(), 20, 10).iter().all(|step| step.len() == 21));
    }

    #[test]
    fn low_priority_streams_also_yield_to_a_prompt_of_higher_priority_unless_they_never_yield() {
        let mut scheduler = scheduler();
        for i in 0..400 {
            // 4 ms, plus 1 ms for each stream and 0.1 ms for each prompt row.
            let (n_decoding, n_prefill) = if i % 2 == 0 { (1 + 7 * (i % 5), 0) } else { (0, 10 * (i % 5)) };
            let took = Duration::from_micros(4_000 + u64::from(1_000 * n_decoding + 100 * n_prefill));
            scheduler.observe(n_decoding, n_prefill, N_CELLS, took);
        }
        let stream = |n_skipped| RowDemand { n_ready: 1, is_all: true, priority: 0, n_skipped };
        let mut rows = Vec::new();
        for (n_skipped, expected) in [(Some(0), 1..=6), (None, 30..=30)] {
            let demands =
                [vec![RowDemand { n_ready: 20, is_all: true, priority: 1, n_skipped: Some(0) }], vec![stream(n_skipped); 30]]
                    .concat();
            scheduler.plan(&demands, StreamLoad::by_default(30), N_CELLS, Duration::ZERO, &mut rows);
            assert!(rows[0] > 0);
            assert!(expected.contains(&rows[1..].iter().sum::<u32>()), "{rows:?}");
        }
    }

    #[test]
    fn prompt_logprobs_take_at_most_the_time_of_the_streams_and_a_third_of_the_gap() {
        let mut scheduler = measured();
        assert_eq!(scheduler.max_prompt_logprobs(StreamLoad::by_default(1), N_CELLS), MIN_CHUNK, "nothing is known yet");
        scheduler.observe_prompt_logprobs(64, Duration::from_millis(128));
        assert_eq!(scheduler.max_prompt_logprobs(StreamLoad::by_default(0), N_CELLS), u32::MAX, "nobody waits");
        assert!((9..=11).contains(&scheduler.max_prompt_logprobs(StreamLoad::by_default(1), N_CELLS)), "20 ms by 2 ms");
        let hurried = StreamLoad { n_by_default: 0, max_token_gap: Some(Duration::from_millis(30)), ..StreamLoad::by_default(1) };
        assert!((4..=5).contains(&scheduler.max_prompt_logprobs(hurried, N_CELLS)), "10 ms by 2 ms");
        (0..100).for_each(|_| scheduler.observe_prompt_logprobs(1, Duration::from_secs(1)));
        assert_eq!(scheduler.max_prompt_logprobs(StreamLoad::by_default(1), N_CELLS), 1, "nobody stands still");
    }

    #[test]
    fn a_short_prompt_is_computed_in_one_step_on_an_unsteady_machine_and_a_longer_one_is_not() {
        let mut scheduler = StepBudget::new(512, TokenGap::AtMost(Duration::from_millis(90)));
        for i in 0..400_u64 {
            let n_prefill = 20 * (i % 5);
            let others = if i % 2 == 0 { 1 } else { 10 };
            let took = Duration::from_micros((2_000 + 100 * n_prefill) * others);
            scheduler.observe(1, u32::try_from(n_prefill).unwrap(), N_CELLS, took);
        }
        let chunk = |n_ready| plan_of(&scheduler, &[1, n_ready], N_CELLS, Duration::ZERO)[1];
        let usual = chunk(2_000);
        assert!((4..60).contains(&usual), "{usual} rows");
        assert_eq!(chunk(usual + 5), usual + 5, "all there is");
        assert_eq!(chunk(500), usual, "half a second is no third of the gap");
    }

    #[test]
    fn a_prompt_gets_as_much_time_as_the_streams_on_an_unsteady_machine() {
        let mut scheduler = StepBudget::new(512, TokenGap::Auto);
        for i in 0..400_u64 {
            // Every other step waits for another process, ten times as long as it computes.
            let n_prefill = 20 * (i % 5);
            let wait = if i % 2 == 0 { 0 } else { 20_000 };
            scheduler.observe(
                1,
                u32::try_from(n_prefill).unwrap(),
                N_CELLS,
                Duration::from_micros(2_000 + 50 * n_prefill + wait),
            );
        }
        let [_, rows] = plan(&scheduler, &[1, 2_000])[..] else { panic!("two were asked for") };
        let mean_s = |n_prefill| scheduler.decode.mean_s(StepShape { n_decoding: 1, n_prefill, n_cells: N_CELLS });
        assert!(rows > MIN_CHUNK_WITH_STREAMS, "{rows} rows are no more than on any machine");
        assert!(mean_s(rows) <= 2.0 * mean_s(0), "{rows} rows slow the stream down by more than one half");
        assert!(scheduler.move_time(streams(&[1]), 1, N_CELLS).as_secs_f64() >= 0.2 * mean_s(0), "nor is there time to move");
    }

    #[test]
    fn a_chunk_keeps_running_streams_within_the_token_gap() {
        let rows = plan(&measured(), &[1, 2_000]);
        assert!((70..=80).contains(&rows[1]), "{rows:?} of 20 ms and 1 ms for each");
    }

    #[test]
    fn a_prompt_may_take_as_long_as_slow_streams_by_themselves() {
        let slow = |gap| {
            let mut slow = StepBudget::new(512, gap);
            for i in 0..200 {
                let n_prefill = 4 * (i % 5);
                slow.observe(8, n_prefill, N_CELLS, Duration::from_millis(180 + 8 * u64::from(n_prefill)));
            }
            plan(&slow, &[1, 1, 1, 1, 1, 1, 1, 1, 2_000])[8]
        };
        assert_eq!(slow(TokenGap::AtMost(TokenGap::USUAL)), MIN_CHUNK_WITH_STREAMS);
        let chunk = slow(TokenGap::Auto);
        assert!((16..=22).contains(&chunk), "{chunk} rows of 8 ms beside 180 ms of streams");
    }

    #[test]
    fn fast_streams_pause_for_ten_of_their_tokens_and_at_least_eight_milliseconds() {
        let added_us = |step_us: u32| {
            let (mut quick, row_us) = (StepBudget::new(4_096, TokenGap::Auto), step_us / 20);
            for i in 0..400 {
                let n_prefill = 20 * (i % 5);
                quick.observe(1, n_prefill, N_CELLS, Duration::from_micros((step_us + row_us * n_prefill).into()));
            }
            row_us * plan(&quick, &[1, 4_000])[1]
        };
        assert!((6_500..=7_500).contains(&added_us(500)), "{} us beside 500", added_us(500));
        assert!((15_500..=18_000).contains(&added_us(2_000)), "{} us beside 2,000", added_us(2_000));
        assert!((145_000..=180_000).contains(&added_us(25_000)), "{} us beside 25,000", added_us(25_000));
    }

    #[test]
    fn a_prompt_adds_at_most_half_a_second_to_slow_streams() {
        let mut slow = StepBudget::new(512, TokenGap::Auto);
        for i in 0..200 {
            let n_prefill = 40 * (i % 5);
            slow.observe(1, n_prefill, N_CELLS, Duration::from_millis(3_000 + 10 * u64::from(n_prefill)));
        }
        let chunk = plan(&slow, &[1, 2_000])[1];
        assert!((20..=50).contains(&chunk), "{chunk} rows of 10 ms beside 3 s of one stream");
    }

    #[test]
    fn a_chunk_without_streams_takes_at_most_half_a_second() {
        let mut measured = measured();
        measured.observe(0, 200, N_CELLS, Duration::from_millis(220));
        let rows = plan(&measured, &[2_000]);
        assert!((400..=480).contains(&rows[0]), "{rows:?} of 20 ms and 1 ms for each");
    }

    #[test]
    fn a_slow_machine_still_computes_the_minimum_chunk() {
        let mut slow = scheduler();
        slow.observe(1, 0, N_CELLS, Duration::from_secs(1));
        slow.observe(0, 16, N_CELLS, Duration::from_secs(16));
        assert_eq!(plan(&slow, &[1, 2_000]), [1, MIN_CHUNK_WITH_STREAMS]);
        assert_eq!(plan(&slow, &[2_000]), [MIN_CHUNK]);
    }

    #[test]
    fn a_chunk_has_only_as_many_rows_as_fit_the_gap_of_a_stream() {
        let mut slow = scheduler();
        for i in 0..200 {
            let n_prefill = 4 * (i % 4);
            slow.observe(1, n_prefill, N_CELLS, Duration::from_millis(20 + 8 * u64::from(n_prefill)));
        }
        let rows = plan(&slow, &[1, 2_000]);
        assert!((7..=10).contains(&rows[1]), "{rows:?} of 20 ms and 8 ms for each");
    }

    #[test]
    fn a_short_prompt_does_not_wait_for_a_long_one() {
        let measured = measured();
        let chunk = plan(&measured, &[1, 2_000])[1];
        assert_eq!(plan(&measured, &[2_000, 10, 300, 1]), [chunk - 26, 10, 16, 1]);
    }

    #[test]
    fn a_prompt_of_higher_priority_gets_the_chunk_before_others() {
        let measured = measured();
        let chunk = plan(&measured, &[1, 2_000])[1];
        let demand = |n_ready, priority| RowDemand { n_ready, is_all: true, priority, n_skipped: None };
        let mut rows = Vec::new();
        let mut plan_with = |demands: &[RowDemand]| {
            measured.plan(demands, StreamLoad::by_default(1), N_CELLS, Duration::ZERO, &mut rows);
            rows.clone()
        };
        assert_eq!(plan_with(&[demand(2_000, 3), demand(2_000, 0), demand(1, 0), demand(300, -1)]), [chunk, 0, 1, 1]);
        assert_eq!(plan_with(&[demand(30, 3), demand(2_000, 0), demand(1, 0), demand(300, -1)]), [30, chunk - 30, 1, 1]);
    }

    #[test]
    fn prompts_of_a_lower_priority_than_a_stream_add_at_most_a_quarter_to_a_step() {
        let mut measured = StepBudget::new(512, TokenGap::Auto);
        for i in 0..200 {
            let n_prefill = 20 * (i % 5);
            measured.observe(1, n_prefill, N_CELLS, Duration::from_millis(20 + u64::from(n_prefill)));
        }
        let plan_with = |demands: &[(u32, i32)], priority| {
            let demands: Vec<_> = demands
                .iter()
                .map(|&(n_ready, priority)| RowDemand { n_ready, is_all: true, priority, n_skipped: None })
                .collect();
            let mut rows = Vec::new();
            let streams = StreamLoad { priority, ..StreamLoad::by_default(1) };
            measured.plan(&demands, streams, N_CELLS, Duration::ZERO, &mut rows);
            rows
        };
        let whole = plan_with(&[(1, 0), (2_000, 0)], 0)[1];
        let aside = plan_with(&[(1, 3), (2_000, 0)], 3)[1];
        assert!(whole > 120 && (4..=6).contains(&aside), "{whole} rows of 1 ms in 200 ms, {aside} beside 20 ms");
        assert_eq!(plan_with(&[(1, 3), (2_000, 3)], 3)[1], whole, "equals may take all of the gap");
        assert_eq!(plan_with(&[(1, 3), (3, 3), (40, 1), (2_000, 0)], 3), [1, 3, aside - 3, 0], "which comes off what others get");
        assert_eq!(plan_with(&[(2_000, 0), (1, 3), (40, 3)], 3), [1, 1, 40], "nobody stands still");
    }

    #[test]
    fn a_stream_may_request_its_own_gap() {
        let chunk = |n_by_default, gap_ms| {
            let streams = StreamLoad {
                n_decoding: 1,
                n_by_default,
                max_token_gap: Some(Duration::from_millis(gap_ms)),
                ..StreamLoad::default()
            };
            let mut rows = Vec::new();
            measured().plan(&demands(&[1, 2_000]), streams, N_CELLS, Duration::ZERO, &mut rows);
            rows[1]
        };
        assert!((25..=30).contains(&chunk(0, 50)), "{} rows of 1 ms beside 20 ms in 50 ms", chunk(0, 50));
        assert!((160..=180).contains(&chunk(0, 200)), "{} rows of 1 ms beside 20 ms in 200 ms", chunk(0, 200));
        assert_eq!(
            (chunk(1, 200), chunk(0, 5_000)),
            (chunk(1, 1_000), chunk(0, 500)),
            "the least gap counts, and a chunk's limit"
        );
    }

    #[test]
    fn a_sequence_without_ready_tokens_gets_no_rows() {
        assert_eq!(plan(&measured(), &[0, 1, 0, 30]), [0, 1, 0, 30]);
    }

    #[test]
    fn time_spent_on_moving_makes_the_chunk_smaller() {
        let measured = measured();
        let chunk = |spent_ms| plan_of(&measured, &[1, 2_000], N_CELLS, Duration::from_millis(spent_ms))[1];
        let smaller = chunk(0) - chunk(30);
        assert!((25..=35).contains(&smaller), "30 ms are {smaller} rows of 1 ms");
        assert_eq!(chunk(1_000), MIN_CHUNK_WITH_STREAMS);
    }

    #[test]
    fn time_spent_outside_of_decodes_makes_the_chunk_smaller() {
        let mut measured = measured();
        let before = plan(&measured, &[1, 2_000])[1];
        for _ in 0..50 {
            measured.observe_rest(Duration::from_millis(30));
        }
        let smaller = before - plan(&measured, &[1, 2_000])[1];
        assert!((25..=35).contains(&smaller), "30 ms are {smaller} rows of 1 ms");
    }

    #[test]
    fn longer_contexts_make_the_chunk_smaller() {
        let mut machine = scheduler();
        for i in 0..400 {
            let (n_prefill, n_cells) = (16 * (i % 6), 1_000 * (i % 17));
            let took_us = 10_000 + n_prefill * 500 + n_prefill * n_cells / 10;
            machine.observe(1, n_prefill, n_cells, Duration::from_micros(took_us.into()));
        }
        let [short, long] = [0, 16_000].map(|n_cells| plan_of(&machine, &[1, 2_000], n_cells, Duration::ZERO)[1]);
        assert!((120..=180).contains(&short), "{short} rows of 0.5 ms");
        assert!((35..=45).contains(&long), "{long} rows of 2.1 ms");
    }

    #[test]
    fn moving_gets_half_of_the_remaining_gap_and_a_quarter_with_a_prompt() {
        let measured = measured();
        let [alone, beside] = [0, 1].map(|n_prefilling| measured.move_time(StreamLoad::by_default(1), n_prefilling, N_CELLS));
        assert!((Duration::from_millis(37)..Duration::from_millis(41)).contains(&alone), "{alone:?} is not half of 80 ms");
        assert!((alone / 2).abs_diff(beside) < Duration::from_micros(1), "{beside:?} is not half of {alone:?}");
        assert_eq!(measured.move_time(StreamLoad::by_default(0), 1, N_CELLS), MAX_MOVE);
    }

    #[test]
    fn moving_gets_a_twentieth_of_a_decode_that_exceeds_the_gap() {
        let mut slow = scheduler();
        slow.observe(1, 0, N_CELLS, Duration::from_secs(1));
        let move_time = slow.move_time(StreamLoad::by_default(1), 0, N_CELLS);
        assert!(move_time.abs_diff(Duration::from_millis(50)) < Duration::from_millis(5), "{move_time:?} of 1 s");
        slow.observe(1, 0, N_CELLS, Duration::from_secs(3));
        slow.observe(1, 0, N_CELLS, Duration::from_secs(3));
        slow.observe(1, 0, N_CELLS, Duration::from_secs(3));
        assert_eq!(slow.move_time(StreamLoad::by_default(1), 0, N_CELLS), MAX_MOVE);
    }

    #[test]
    fn a_plan_never_exceeds_the_rows_of_a_decode() {
        let n_uncomputed: Vec<u32> = (0..60).map(|i| if i % 2 == 0 { 1 } else { 500 }).collect();
        let rows = plan(&StepBudget::new(96, GAP), &n_uncomputed);
        assert!(rows.iter().sum::<u32>() <= 96);
        assert!(rows.iter().zip(&n_uncomputed).all(|(rows, n)| rows <= n));
        assert!(n_uncomputed.iter().zip(&rows).all(|(&n, &rows)| n > 1 || rows == 1), "nobody misses a token");
    }

    #[test]
    fn a_senior_prompt_of_low_priority_advances_despite_prompts_of_higher_priority() {
        // The first has waited so long that it is senior to the others; as long as others arrive, it must advance.
        let demands: Vec<RowDemand> =
            [0, 1, 1].map(|priority| RowDemand { n_ready: 2_000, is_all: true, priority, n_skipped: None }).into();
        let mut rows = Vec::new();
        scheduler().plan(&demands, StreamLoad::default(), N_CELLS, Duration::ZERO, &mut rows);
        assert!(rows[0] > 0, "{rows:?}");
    }
}
