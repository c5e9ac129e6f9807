//! Which tokens go into the next decode. Pure: values in, values out, no clock.

use std::cmp::Reverse;
use std::time::Duration;

use crate::config::{MIN_CHUNK, TokenGap};
use crate::engine::step_cost::{StepCost, StepShape};

/// A prefill chunk never takes longer on average, also with nobody decoding, so that arrivals and cancels never wait long.
pub const MAX_CHUNK: Duration = Duration::from_millis(500);

/// Longest time at once for moving pieces of the cache while nobody decodes, so that arrivals never wait long.
pub const MAX_MOVE: Duration = Duration::from_millis(100);

/// Share of a decode's time that moving may always take, also where there is none left.
const LEAST_MOVE: f64 = 0.05;

/// The smallest chunk beside sequences that decode, where a larger one would take longer than the gap allows: no prompt stands
/// still, however slow the machine.
const MIN_BESIDE: u32 = 4;

/// What the streams of lower priorities may add to the time that those of the highest take by themselves, and their prompts as much
/// again: with both, these have two thirds of their speed.
const ASIDE: f64 = 0.25;

/// So many streams of lower priorities go on in each step, and so many tokens of their prompts: nobody stands still.
const MIN_ASIDE: u32 = 1;

/// A chunk is at most so many times the largest one that was measured, so that a wrong first estimate costs little.
const MAX_GROWTH: u32 = 4;

/// Share of the allowed gap that a step may take on average where the machine is so unsteady that no bound can be kept.
const CALM: f64 = 1.0 / 3.0;

/// Weight of the newest step in the mean time outside of decodes.
const NEWEST: f64 = 0.1;

/// What a running sequence could use of the next decode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowDemand {
    /// Tokens that wait to be computed; 0 where it cannot use rows now.
    pub n_ready: u32,
    /// Whether these are all that it has to compute.
    pub is_all: bool,
    /// Of two prompts, the one of higher priority is computed first.
    pub priority: i32,
    /// For how many steps in a row it has got nothing; `None` where it waits for nobody.
    pub n_waited: Option<u32>,
}

/// The sequences that get a token in every step, and how long they may wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamLoad {
    /// How many there are.
    pub n_decoding: u32,
    /// Of these, how many leave the gap to the engine's setting.
    pub n_by_default: u32,
    /// The least gap that one of the others asks for.
    pub max_token_gap: Option<Duration>,
    /// How long the step may take at most because streams that are not among these wait for its end.
    pub within: Option<Duration>,
    /// The highest priority that one of them has.
    pub priority: i32,
}

impl StreamLoad {
    /// So many, none of which asks for a gap of its own.
    #[must_use]
    pub const fn by_default(n_decoding: u32) -> Self {
        Self { n_decoding, n_by_default: n_decoding, max_token_gap: None, within: None, priority: 0 }
    }
}

/// Decides how many rows of the next decode each running sequence gets, and learns from how long the last ones took.
///
/// It keeps the 99th percentile of the gap between two tokens of a stream within the longest gap that is allowed. That gap is one
/// step of the worker: what is spent on moving pieces of the cache, the decode, and the rest (sampling, text, events).
#[derive(Debug)]
pub struct StepBudget {
    n_ubatch: u32,
    max_token_gap: TokenGap,
    decode: StepCost,
    /// Mean seconds of a step outside of its decode, and mean distance from that.
    rest_s: f64,
    rest_spread_s: f64,
    /// Mean seconds that it takes to tell the log-probabilities of one token of a prompt; 0 until that was measured.
    told_s: f64,
}

impl StepBudget {
    /// For decodes of at most `n_ubatch` rows, in steps that hold nobody up for longer than `max_token_gap`.
    #[must_use]
    pub const fn new(n_ubatch: u32, max_token_gap: TokenGap) -> Self {
        Self { n_ubatch, max_token_gap, decode: StepCost::new(), rest_s: 0.0, rest_spread_s: 0.0, told_s: 0.0 }
    }

    /// Rows for each running sequence, most senior first, in place of what `rows` holds.
    ///
    /// A sequence that waits for one token gets it in every step, but for those that stand back for a higher priority, and take turns.
    /// Prompts share the chunk. One stands back for those that are more
    /// senior and of higher priority; the others get up to [`MIN_CHUNK`] each, so that a short one need not wait for a long one, and
    /// the rest goes to the most senior. Those of a lower priority than some stream get what is left of a quarter of the time that the
    /// streams of the highest take by themselves, however long the allowed gap.
    ///
    /// `n_cells` is how many cells each row looks through, without those that this step fills: the highest used cell of the pool.
    /// `spent` is what this step has spent on moving pieces of the cache; the chunk is smaller by as much time.
    pub fn plan(&self, demands: &[RowDemand], streams: StreamLoad, n_cells: u32, spent: Duration, rows: &mut Vec<u32>) {
        rows.clear();
        rows.extend(demands.iter().map(|demand| u32::from(demand.n_ready == 1)));
        self.stand_back(demands, n_cells, rows);
        let prompts = || demands.iter().filter(|demand| demand.n_ready > 1);
        let n_wanted = prompts().fold(0, |sum: u32, demand| sum.saturating_add(demand.n_ready));
        let streams = StreamLoad { n_decoding: rows.iter().sum(), ..streams };
        let of_first = prompts().filter(|demand| demand.priority >= streams.priority);
        let n_first =
            of_first.fold(0, |sum: u32, demand| if demand.is_all { sum.saturating_add(demand.n_ready) } else { u32::MAX });
        let chunk = self.chunk(streams, n_wanted, n_first, n_cells, spent);
        let mut n_granted = 0;
        for is_low in [false, true] {
            let is_meant = |demand: &RowDemand| (streams.n_decoding > 0 && demand.priority < streams.priority) == is_low;
            let priorities = || prompts().filter(|demand| is_meant(demand)).map(|demand| demand.priority);
            let Some(highest) = priorities().max() else { continue };
            let most = if is_low { self.chunk_aside(demands, streams, chunk, n_cells) } else { chunk };
            let least = if is_low { MIN_ASIDE.min(self.n_ubatch.saturating_sub(streams.n_decoding + n_granted)) } else { 0 };
            let mut left = most.saturating_sub(n_granted).max(least);
            n_granted += left;
            // Those that nobody more senior stands before, then the rest by their priorities.
            share(demands, rows, &mut left, |demand, highest_before| is_meant(demand) && demand.priority >= highest_before);
            let mut next = Some(highest);
            while let Some(priority) = next.filter(|_| left > 0) {
                share(demands, rows, &mut left, |demand, _| demand.priority == priority);
                next = priorities().filter(|&other| other < priority).max();
            }
            n_granted -= left;
        }
    }

    /// Takes their rows back from streams of lower priorities than the highest of all, as far as they would add more than [`ASIDE`] to
    /// what those of that priority take by themselves. The one that has waited the longest goes on, then those of higher priorities, then
    /// those that have waited longer.
    fn stand_back(&self, demands: &[RowDemand], n_cells: u32, rows: &mut [u32]) {
        let ready = || demands.iter().filter(|demand| demand.n_ready > 0);
        let Some(highest) = ready().map(|demand| demand.priority).max() else { return };
        let may_wait = |demand: &RowDemand| demand.n_ready == 1 && demand.priority < highest && demand.n_waited.is_some();
        let n_low = count(ready().filter(|&demand| may_wait(demand)));
        if n_low <= MIN_ASIDE {
            return;
        }
        let of_highest = || ready().filter(|demand| demand.priority == highest);
        let n_decoding = count(of_highest().filter(|demand| demand.n_ready == 1));
        // Prompts beside streams of their own priority take no time from these that would be known here.
        let n_wanted = of_highest().fold(0, |sum: u32, demand| sum.saturating_add(demand.n_ready)).min(self.n_ubatch);
        let n_prefill = if n_decoding > 0 { 0 } else { n_wanted };
        let mean_s = |n_beside| self.decode.mean_s(StepShape { n_decoding: n_decoding + n_beside, n_prefill, n_cells });
        let n_on = most_rows(MIN_ASIDE, n_low, |n_on| mean_s(n_on) <= (1.0 + ASIDE) * mean_s(0));
        if n_on == n_low {
            return;
        }
        let mut low: Vec<usize> = (0..demands.len()).filter(|&nth| may_wait(&demands[nth])).collect();
        low.sort_by_key(|&nth| Reverse(demands[nth].n_waited));
        low[1..].sort_by_key(|&nth| Reverse(demands[nth].priority));
        for nth in low.into_iter().skip(n_on as usize) {
            rows[nth] = 0;
        }
    }

    /// How long this step may spend on moving pieces of the cache, beside `streams` that decode and `n_prefilling` sequences whose
    /// prompts wait to be computed: with nobody decoding [`MAX_MOVE`], else half of what the gap leaves, or a quarter where a
    /// prompt wants time as well; but never less than a twentieth of the decode, since it is often the cells which are to leave that
    /// make it slow. `n_cells` as in [`StepBudget::plan`].
    #[must_use]
    pub fn spare(&self, streams: StreamLoad, n_prefilling: u32, n_cells: u32) -> Duration {
        if streams.n_decoding == 0 {
            return MAX_MOVE;
        }
        let shape = StepShape { n_decoding: streams.n_decoding, n_prefill: 0, n_cells };
        let safe_s = self.budget_s(streams, n_cells, Duration::ZERO) - self.decode.high_s(shape);
        let left_s = safe_s.max(self.calm_s(streams, n_cells, Duration::ZERO) - self.decode.mean_s(shape));
        let share = if n_prefilling == 0 { 0.5 } else { 0.25 };
        let least_s = (LEAST_MOVE * self.decode.mean_s(shape)).min(MAX_MOVE.as_secs_f64());
        Duration::from_secs_f64((left_s * share).max(least_s))
    }

    /// Tells how long a decode took, of `n_decoding` single rows and `n_prefill` rows of prompts beside `n_cells` cells, which is
    /// the number that [`StepBudget::plan`] was given.
    pub fn observe(&mut self, n_decoding: u32, n_prefill: u32, n_cells: u32, took: Duration) {
        self.decode.observe(StepShape { n_decoding, n_prefill, n_cells }, took.as_secs_f64());
    }

    /// Tells how long the rest of a step took: all but its decode and what `plan` was told as `spent`.
    pub fn observe_rest(&mut self, took: Duration) {
        let took_s = took.as_secs_f64();
        if self.rest_s == 0.0 {
            self.rest_s = took_s;
            return;
        }
        // A step in which another process took the CPU says little about the next one.
        let off_s = (took_s - self.rest_s).clamp(-self.rest_s, self.rest_s);
        self.rest_s += NEWEST * off_s;
        self.rest_spread_s += NEWEST * (off_s.abs() - self.rest_spread_s);
    }

    /// Tells how long it took to tell the log-probabilities of `n_tokens` of prompts, of which there is one at least.
    pub fn observe_prompt_logprobs(&mut self, n_tokens: u32, took: Duration) {
        let one_s = took.as_secs_f64() / f64::from(n_tokens);
        self.told_s = if self.told_s == 0.0 { one_s } else { self.told_s + NEWEST * (one_s - self.told_s) };
    }

    /// Of how many tokens of prompts, 1 at least, a step tells the log-probabilities beside `streams`: that takes no longer than the
    /// streams by themselves, nor than a third of the gap. All where nobody decodes.
    #[must_use]
    pub fn n_told(&self, streams: StreamLoad, n_cells: u32) -> u32 {
        if streams.n_decoding == 0 {
            return u32::MAX;
        }
        if self.told_s == 0.0 {
            return MIN_CHUNK;
        }
        let alone_s = self.decode.mean_s(StepShape { n_decoding: streams.n_decoding, n_prefill: 0, n_cells });
        let most_s = alone_s.min(CALM * self.step_s(streams, n_cells));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of a float keeps to the range")]
        let n_tokens = (most_s / self.told_s) as u32;
        n_tokens.max(1)
    }

    /// Most prefill rows beside `streams`, where `n_wanted` wait: as many as stay within the budget in 99 of 100 steps; on average
    /// where nobody decodes, since then no stream pauses when one takes longer. Where the machine is too unsteady for any chunk to
    /// be safe, as many as take a calm one no more than a third of the gap and no longer than the streams by themselves: the pauses
    /// are somebody else's doing then, and a smaller chunk would not shorten them. Where the `n_first` rows of prompts that are worth as
    /// much as the streams are all there is in that third, they are computed at once: somebody waits for a first token.
    fn chunk(&self, streams: StreamLoad, n_wanted: u32, n_first: u32, n_cells: u32, spent: Duration) -> u32 {
        let budget_s = self.budget_s(streams, n_cells, spent);
        let n_decoding = streams.n_decoding;
        let nobody_waits = n_decoding == 0 && streams.within.is_none();
        let fits = |n_prefill| {
            let shape = StepShape { n_decoding, n_prefill, n_cells };
            let estimate_s = if nobody_waits { self.decode.mean_s(shape) } else { self.decode.high_s(shape) };
            estimate_s <= budget_s
        };
        let most = self.n_ubatch.saturating_sub(n_decoding).min(n_wanted);
        let least = if nobody_waits { MIN_CHUNK } else { MIN_BESIDE };
        let high = MIN_CHUNK.max(MAX_GROWTH.saturating_mul(self.decode.n_tried())).min(most);
        let calm_s = self.calm_s(streams, n_cells, spent);
        let is_calm = |n_prefill| self.decode.mean_s(StepShape { n_decoding, n_prefill, n_cells }) <= calm_s;
        let low = least.min(most);
        let safe = most_rows(low, high, fits);
        if nobody_waits {
            return safe.max(low);
        }
        let most_s = CALM * self.most_s(streams, n_cells) - spent.as_secs_f64();
        let is_whole = n_first <= high && self.decode.mean_s(StepShape { n_decoding, n_prefill: n_first, n_cells }) <= most_s;
        safe.max(most_rows(low, high, is_calm)).max(if is_whole { n_first } else { 0 })
    }

    /// Of `chunk` rows, as many as add no more than [`ASIDE`] to what the streams of the highest priority take by themselves.
    fn chunk_aside(&self, demands: &[RowDemand], streams: StreamLoad, chunk: u32, n_cells: u32) -> u32 {
        let n_first = count(demands.iter().filter(|demand| demand.n_ready == 1 && demand.priority == streams.priority));
        let mean_s = |n_decoding, n_prefill| self.decode.mean_s(StepShape { n_decoding, n_prefill, n_cells });
        let most_s = mean_s(streams.n_decoding, 0) + ASIDE * mean_s(n_first, 0);
        most_rows(MIN_ASIDE.min(chunk), chunk, |n_prefill| mean_s(streams.n_decoding, n_prefill) <= most_s)
    }

    /// Seconds that a decode beside `streams` may take on average, however unsteady the machine.
    fn calm_s(&self, streams: StreamLoad, n_cells: u32, spent: Duration) -> f64 {
        let alone_s = self.decode.mean_s(StepShape { n_decoding: streams.n_decoding, n_prefill: 0, n_cells });
        (2.0 * alone_s).min(CALM * self.most_s(streams, n_cells)) - spent.as_secs_f64()
    }

    /// Seconds that a whole step may take where streams of other sets of adapters may wait for its end.
    fn most_s(&self, streams: StreamLoad, n_cells: u32) -> f64 {
        let within_s = streams.within.map_or(f64::INFINITY, |within| within.as_secs_f64());
        self.step_s(streams, n_cells).min(within_s)
    }

    /// Seconds that a step's decode may take. Negative where the rest of the step alone takes more than is allowed.
    fn budget_s(&self, streams: StreamLoad, n_cells: u32, spent: Duration) -> f64 {
        self.most_s(streams, n_cells) - spent.as_secs_f64() - self.rest_s - 3.0 * self.rest_spread_s
    }

    /// Seconds that 99 of 100 steps stay within which compute one token of each of `n_streams`; 0 until one was measured, or where
    /// there are none.
    pub(super) fn stream_step_s(&self, n_streams: u32, n_cells: u32) -> f64 {
        if n_streams == 0 {
            return 0.0;
        }
        self.decode.high_s(StepShape { n_decoding: n_streams, n_prefill: 0, n_cells }) + self.rest_s + 3.0 * self.rest_spread_s
    }

    /// Seconds that a decode of single rows takes on average; 0 until one was measured.
    pub(super) fn mean_s(&self, n_decoding: u32, n_cells: u32) -> f64 {
        self.decode.mean_s(StepShape { n_decoding, n_prefill: 0, n_cells })
    }

    /// Seconds that computing one token of a long prompt takes on average, with nobody decoding; 0 until a decode was measured.
    pub(super) fn token_s(&self, n_cells: u32) -> f64 {
        let shape = StepShape { n_decoding: 0, n_prefill: self.n_ubatch, n_cells };
        self.decode.mean_s(shape) / f64::from(self.n_ubatch)
    }

    /// Seconds that a whole step may take.
    pub(super) fn step_s(&self, streams: StreamLoad, n_cells: u32) -> f64 {
        let chunk_s = MAX_CHUNK.as_secs_f64();
        if streams.n_decoding == 0 {
            return chunk_s;
        }
        let by_default_s = match self.max_token_gap {
            _ if streams.n_by_default == 0 => chunk_s,
            TokenGap::AtMost(gap) => gap.as_secs_f64(),
            TokenGap::Auto => {
                let alone_s = self.decode.mean_s(StepShape { n_decoding: streams.n_decoding, n_prefill: 0, n_cells });
                let some_s = f64::from(TokenGap::IN_TOKENS) * alone_s;
                let usual_s = some_s.clamp(TokenGap::LEAST.as_secs_f64(), TokenGap::USUAL.as_secs_f64());
                usual_s.max(alone_s + alone_s.min(chunk_s))
            }
        };
        let own_s = streams.max_token_gap.map_or(f64::INFINITY, |gap| gap.as_secs_f64());
        match self.max_token_gap {
            // Slow streams may take longer than a chunk for their own tokens alone.
            TokenGap::Auto if streams.n_by_default > 0 => by_default_s.min(own_s),
            TokenGap::Auto | TokenGap::AtMost(_) => by_default_s.min(own_s).min(chunk_s),
        }
    }
}

fn count<'a>(demands: impl Iterator<Item = &'a RowDemand>) -> u32 {
    u32::try_from(demands.count()).expect("a decode has fewer than 2³² rows")
}

/// The most rows that fit, from `low`, which are granted, to `high`.
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

/// Gives the prompts that `is_meant` their share of the `chunk`: [`MIN_CHUNK`] each, then what is left to the first. It is told the
/// highest priority of those before each.
fn share(demands: &[RowDemand], rows: &mut [u32], chunk: &mut u32, is_meant: impl Fn(&RowDemand, i32) -> bool) {
    for most in [MIN_CHUNK, u32::MAX] {
        let mut highest_before = i32::MIN;
        for (rows, demand) in rows.iter_mut().zip(demands).filter(|(_, demand)| demand.n_ready > 1) {
            if is_meant(demand, highest_before) {
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

    /// A step takes 20 ms, and 1 ms more for each prefill row.
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

    pub(super) fn demands(n_uncomputed: &[u32]) -> Vec<RowDemand> {
        n_uncomputed.iter().map(|&n_ready| RowDemand { n_ready, is_all: true, priority: 0, n_waited: None }).collect()
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

    /// Which of 1 + `n_low` streams go on in each of `n_steps` steps, where the first has the higher priority.
    fn steps_beside(scheduler: &StepBudget, n_low: usize, n_steps: usize) -> Vec<Vec<usize>> {
        let mut n_waited = vec![0; 1 + n_low];
        let mut rows = Vec::new();
        let steps = (0..n_steps).map(|_| {
            let demands: Vec<_> = (n_waited.iter().enumerate())
                .map(|(nth, &n_waited)| RowDemand {
                    n_ready: 1,
                    is_all: true,
                    priority: i32::from(nth == 0),
                    n_waited: Some(n_waited),
                })
                .collect();
            scheduler.plan(&demands, StreamLoad::by_default(0), N_CELLS, Duration::ZERO, &mut rows);
            for (n_waited, &n_rows) in n_waited.iter_mut().zip(&rows) {
                *n_waited = if n_rows == 0 { *n_waited + 1 } else { 0 };
            }
            (0..rows.len()).filter(|&nth| rows[nth] > 0).collect()
        });
        steps.collect()
    }

    /// A step takes 4 ms, and 1 ms more for each stream.
    fn of_streams() -> StepBudget {
        let mut scheduler = scheduler();
        for i in 0..400 {
            let n_decoding = 1 + 7 * (i % 5);
            scheduler.observe(n_decoding, 0, N_CELLS, Duration::from_millis(4 + u64::from(n_decoding)));
        }
        scheduler
    }

    #[test]
    fn streams_of_lower_priorities_add_a_quarter_to_a_step_and_take_turns() {
        let steps = steps_beside(&of_streams(), 20, 60);
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
    fn some_streams_go_on_however_slow_they_are_and_all_where_they_cost_little_or_nothing_is_known() {
        let mut slow = scheduler();
        for i in 0..400 {
            let n_decoding = 1 + 7 * (i % 5);
            slow.observe(n_decoding, 0, N_CELLS, Duration::from_millis(20 * u64::from(n_decoding)));
        }
        assert!(steps_beside(&slow, 20, 10).iter().all(|step| step.len() == 1 + MIN_ASIDE as usize));
        assert!(steps_beside(&of_streams(), 1, 10).iter().all(|step| step.len() == 2));
        assert!(steps_beside(&scheduler(), 20, 10).iter().all(|step| step.len() == 21));
    }

    #[test]
    fn a_prompt_of_a_higher_priority_is_not_held_up_by_streams_either_but_for_those_that_wait_for_nobody() {
        let mut scheduler = scheduler();
        for i in 0..400 {
            // 4 ms, 1 for each stream, and a tenth for each row of a prompt.
            let (n_decoding, n_prefill) = if i % 2 == 0 { (1 + 7 * (i % 5), 0) } else { (0, 10 * (i % 5)) };
            let took = Duration::from_micros(4_000 + u64::from(1_000 * n_decoding + 100 * n_prefill));
            scheduler.observe(n_decoding, n_prefill, N_CELLS, took);
        }
        let stream = |n_waited| RowDemand { n_ready: 1, is_all: true, priority: 0, n_waited };
        let mut rows = Vec::new();
        for (n_waited, expected) in [(Some(0), 1..=6), (None, 30..=30)] {
            let demands =
                [vec![RowDemand { n_ready: 20, is_all: true, priority: 1, n_waited: Some(0) }], vec![stream(n_waited); 30]]
                    .concat();
            scheduler.plan(&demands, StreamLoad::by_default(30), N_CELLS, Duration::ZERO, &mut rows);
            assert!(rows[0] > 0);
            assert!(expected.contains(&rows[1..].iter().sum::<u32>()), "{rows:?}");
        }
    }

    #[test]
    fn log_probabilities_of_prompts_take_no_longer_than_the_streams_nor_than_a_third_of_the_gap() {
        let mut scheduler = measured();
        assert_eq!(scheduler.n_told(StreamLoad::by_default(1), N_CELLS), MIN_CHUNK, "nothing is known yet");
        scheduler.observe_prompt_logprobs(64, Duration::from_millis(128));
        assert_eq!(scheduler.n_told(StreamLoad::by_default(0), N_CELLS), u32::MAX, "nobody waits");
        assert!((9..=11).contains(&scheduler.n_told(StreamLoad::by_default(1), N_CELLS)), "20 ms by 2 ms");
        let hurried = StreamLoad { n_by_default: 0, max_token_gap: Some(Duration::from_millis(30)), ..StreamLoad::by_default(1) };
        assert!((4..=5).contains(&scheduler.n_told(hurried, N_CELLS)), "10 ms by 2 ms");
        (0..100).for_each(|_| scheduler.observe_prompt_logprobs(1, Duration::from_secs(1)));
        assert_eq!(scheduler.n_told(StreamLoad::by_default(1), N_CELLS), 1, "nobody stands still");
    }

    #[test]
    fn a_short_prompt_is_computed_at_once_where_no_bound_can_be_kept_and_a_longer_one_is_not() {
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
    fn a_prompt_gets_the_time_of_the_streams_also_where_no_bound_can_be_kept() {
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
        assert!(rows > MIN_BESIDE, "{rows} rows are no more than on any machine");
        assert!(mean_s(rows) <= 2.0 * mean_s(0), "{rows} rows slow the stream down by more than one half");
        assert!(scheduler.spare(streams(&[1]), 1, N_CELLS).as_secs_f64() >= 0.2 * mean_s(0), "nor is there time to move");
    }

    #[test]
    fn a_chunk_beside_running_streams_keeps_within_the_token_gap() {
        let rows = plan(&measured(), &[1, 2_000]);
        assert!((70..=80).contains(&rows[1]), "{rows:?} of 20 ms and 1 ms for each");
    }

    #[test]
    fn where_streams_alone_are_slow_a_prompt_may_take_as_long_as_they_do() {
        let slow = |gap| {
            let mut slow = StepBudget::new(512, gap);
            for i in 0..200 {
                let n_prefill = 4 * (i % 5);
                slow.observe(8, n_prefill, N_CELLS, Duration::from_millis(180 + 8 * u64::from(n_prefill)));
            }
            plan(&slow, &[1, 1, 1, 1, 1, 1, 1, 1, 2_000])[8]
        };
        assert_eq!(slow(TokenGap::AtMost(TokenGap::USUAL)), MIN_BESIDE);
        let chunk = slow(TokenGap::Auto);
        assert!((16..=22).contains(&chunk), "{chunk} rows of 8 ms beside 180 ms of streams");
    }

    #[test]
    fn quick_streams_are_held_up_for_ten_of_their_tokens_and_for_eight_milliseconds_at_least() {
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
    fn however_slow_the_streams_are_a_prompt_adds_half_a_second_at_most() {
        let mut slow = StepBudget::new(512, TokenGap::Auto);
        for i in 0..200 {
            let n_prefill = 40 * (i % 5);
            slow.observe(1, n_prefill, N_CELLS, Duration::from_millis(3_000 + 10 * u64::from(n_prefill)));
        }
        let chunk = plan(&slow, &[1, 2_000])[1];
        assert!((20..=50).contains(&chunk), "{chunk} rows of 10 ms beside 3 s of one stream");
    }

    #[test]
    fn a_chunk_alone_takes_half_a_second_at_most() {
        let mut measured = measured();
        measured.observe(0, 200, N_CELLS, Duration::from_millis(220));
        let rows = plan(&measured, &[2_000]);
        assert!((400..=480).contains(&rows[0]), "{rows:?} of 20 ms and 1 ms for each");
    }

    #[test]
    fn a_chunk_is_never_smaller_than_the_minimum_however_slow_the_machine() {
        let mut slow = scheduler();
        slow.observe(1, 0, N_CELLS, Duration::from_secs(1));
        slow.observe(0, 16, N_CELLS, Duration::from_secs(16));
        assert_eq!(plan(&slow, &[1, 2_000]), [1, MIN_BESIDE]);
        assert_eq!(plan(&slow, &[2_000]), [MIN_CHUNK]);
    }

    #[test]
    fn where_few_rows_fit_beside_a_stream_few_are_computed() {
        let mut slow = scheduler();
        for i in 0..200 {
            let n_prefill = 4 * (i % 4);
            slow.observe(1, n_prefill, N_CELLS, Duration::from_millis(20 + 8 * u64::from(n_prefill)));
        }
        let rows = plan(&slow, &[1, 2_000]);
        assert!((7..=10).contains(&rows[1]), "{rows:?} of 20 ms and 8 ms for each");
    }

    #[test]
    fn a_short_prompt_need_not_wait_for_a_long_one() {
        let measured = measured();
        let chunk = plan(&measured, &[1, 2_000])[1];
        assert_eq!(plan(&measured, &[2_000, 10, 300, 1]), [chunk - 26, 10, 16, 1]);
    }

    #[test]
    fn a_prompt_of_higher_priority_gets_the_chunk_before_others() {
        let measured = measured();
        let chunk = plan(&measured, &[1, 2_000])[1];
        let demand = |n_ready, priority| RowDemand { n_ready, is_all: true, priority, n_waited: None };
        let mut rows = Vec::new();
        let mut plan_with = |demands: &[RowDemand]| {
            measured.plan(demands, StreamLoad::by_default(1), N_CELLS, Duration::ZERO, &mut rows);
            rows.clone()
        };
        assert_eq!(plan_with(&[demand(2_000, 3), demand(2_000, 0), demand(1, 0), demand(300, -1)]), [chunk, 0, 1, 1]);
        assert_eq!(plan_with(&[demand(30, 3), demand(2_000, 0), demand(1, 0), demand(300, -1)]), [30, chunk - 30, 1, 1]);
    }

    #[test]
    fn prompts_of_a_lower_priority_than_a_stream_add_a_quarter_to_a_step_at_most() {
        let mut measured = StepBudget::new(512, TokenGap::Auto);
        for i in 0..200 {
            let n_prefill = 20 * (i % 5);
            measured.observe(1, n_prefill, N_CELLS, Duration::from_millis(20 + u64::from(n_prefill)));
        }
        let plan_with = |demands: &[(u32, i32)], priority| {
            let demands: Vec<_> = demands
                .iter()
                .map(|&(n_ready, priority)| RowDemand { n_ready, is_all: true, priority, n_waited: None })
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
    fn a_stream_may_ask_for_a_gap_of_its_own() {
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
    fn a_sequence_that_waits_for_its_cells_gets_no_rows() {
        assert_eq!(plan(&measured(), &[0, 1, 0, 30]), [0, 1, 0, 30]);
    }

    #[test]
    fn time_spent_on_moving_makes_the_chunk_smaller() {
        let measured = measured();
        let chunk = |spent_ms| plan_of(&measured, &[1, 2_000], N_CELLS, Duration::from_millis(spent_ms))[1];
        let smaller = chunk(0) - chunk(30);
        assert!((25..=35).contains(&smaller), "30 ms are {smaller} rows of 1 ms");
        assert_eq!(chunk(1_000), MIN_BESIDE);
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
    fn moving_gets_half_of_what_the_gap_leaves_and_a_quarter_beside_a_prompt() {
        let measured = measured();
        let [alone, beside] = [0, 1].map(|n_prefilling| measured.spare(StreamLoad::by_default(1), n_prefilling, N_CELLS));
        assert!((Duration::from_millis(37)..Duration::from_millis(41)).contains(&alone), "{alone:?} is not half of 80 ms");
        assert!((alone / 2).abs_diff(beside) < Duration::from_micros(1), "{beside:?} is not half of {alone:?}");
        assert_eq!(measured.spare(StreamLoad::by_default(0), 1, N_CELLS), MAX_MOVE);
    }

    #[test]
    fn moving_gets_a_twentieth_of_a_decode_that_takes_all_of_the_gap() {
        let mut slow = scheduler();
        slow.observe(1, 0, N_CELLS, Duration::from_secs(1));
        let spare = slow.spare(StreamLoad::by_default(1), 0, N_CELLS);
        assert!(spare.abs_diff(Duration::from_millis(50)) < Duration::from_millis(5), "{spare:?} of 1 s");
        slow.observe(1, 0, N_CELLS, Duration::from_secs(3));
        slow.observe(1, 0, N_CELLS, Duration::from_secs(3));
        slow.observe(1, 0, N_CELLS, Duration::from_secs(3));
        assert_eq!(slow.spare(StreamLoad::by_default(1), 0, N_CELLS), MAX_MOVE);
    }

    #[test]
    fn no_plan_holds_more_rows_than_a_decode_takes() {
        let n_uncomputed: Vec<u32> = (0..60).map(|i| if i % 2 == 0 { 1 } else { 500 }).collect();
        let rows = plan(&StepBudget::new(96, GAP), &n_uncomputed);
        assert!(rows.iter().sum::<u32>() <= 96);
        assert!(rows.iter().zip(&n_uncomputed).all(|(rows, n)| rows <= n));
        assert!(n_uncomputed.iter().zip(&rows).all(|(&n, &rows)| n > 1 || rows == 1), "nobody misses a token");
    }

    #[test]
    fn a_senior_prompt_of_low_priority_is_computed_beside_any_number_of_a_higher_one() {
        // The first has waited so long that it is senior to the others; as long as others come, it must get on.
        let demands: Vec<RowDemand> =
            [0, 1, 1].map(|priority| RowDemand { n_ready: 2_000, is_all: true, priority, n_waited: None }).into();
        let mut rows = Vec::new();
        scheduler().plan(&demands, StreamLoad::default(), N_CELLS, Duration::ZERO, &mut rows);
        assert!(rows[0] > 0, "{rows:?}");
    }
}
