//! Chooses how many drafted tokens each sequence verifies in the next step, so that drafts never lose. Pure: probabilities and
//! expected times in, lengths out.
//!
//! A drafted token adds a row to the step and, if it and the ones before it are accepted, one emitted token. The gate maximises
//! the expected emitted tokens per second over all sequences.
//!
//! The time of a step with more rows is known from steps that had as many. An estimate that is too low is corrected once it is used,
//! but one that is too high, because other processes took the processors, would never be used again. So other lengths are tried from
//! time to time: soon again after one that took less time than expected, and half as often after one that did not.

use std::cmp::Ordering;

/// Minimum gain in tokens per second for which drafts are verified: estimates differ by as much.
const MIN_GAIN: f64 = 0.02;

/// Expected share of its rate that a sequence may lose to the drafts of others: with the errors of the estimates, at most a tenth.
const MAX_LOSS: f64 = 0.08;

/// Weight of a step in [`RateSlack`], relative to the next one: a sequence may lose more for some steps of the last 50.
const SLACK_DECAY: f64 = 0.98;

/// Cost of a drafted row, as a share of a step, with which drafts are tried: SmolLM2-135M (`Q4_1`, two cores) measured 0.05 for the
/// second row, 0.17 for the third and fourth, and 0.10 for the next four.
const TRIED_ROW_SHARE: f64 = 0.05;

/// Ratio of a time to the expected one below which the estimates are wrong, and lengths are tried again at once.
const SURPRISE: f64 = 0.8;

/// Maximum number of steps from one trial to the next.
const MAX_INTERVAL: u32 = 512;

/// Emitted tokens of a sequence beyond those that it must have, which are the tokens that it would have emitted without drafts in
/// the same time, less [`MAX_LOSS`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RateSlack(f64);

impl RateSlack {
    pub(crate) fn observe(&mut self, n_emitted: usize, step: ExpectedStep) {
        let n_emitted = f64::from(u32::try_from(n_emitted).expect("a step emits few tokens"));
        self.0 = self.0 * SLACK_DECAY + n_emitted - (1.0 - MAX_LOSS) * step.share();
    }
}

/// Expected seconds of a step with its drafts, and without them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ExpectedStep {
    pub(crate) step_s: f64,
    pub(crate) without_s: f64,
}

impl ExpectedStep {
    /// Returns the time in steps without drafts.
    fn share(self) -> f64 {
        self.step_s / self.without_s.max(f64::MIN_POSITIVE)
    }
}

/// A sequence that samples in the next step, and its draft, which may be empty.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// Probability that each drafted token is accepted with all before it; never increases.
    pub(crate) survival: Vec<f64>,
    pub(crate) slack: RateSlack,
}

/// Costs and limits of the next step.
#[derive(Clone, Copy)]
pub(crate) struct StepLimits<'a> {
    /// Expected seconds of the decode with a number of drafted rows; 0 before any step was measured.
    pub(crate) decode_s: &'a dyn Fn(u32) -> f64,
    /// Expected seconds of a decode of one row without cells.
    pub(crate) row_s: f64,
    /// Expected seconds outside of the decode per emitted token.
    pub(crate) token_s: f64,
    /// Maximum number of drafted rows.
    pub(crate) max_rows: u32,
    /// Maximum expected time of the decode with drafts, in seconds.
    pub(crate) max_decode_s: f64,
}

/// Lengths of the drafts of all candidates.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    pub(crate) lengths: Vec<usize>,
    pub(crate) step: ExpectedStep,
    n_rows: u32,
    /// Expected number of emitted tokens.
    n_tokens: f64,
}

impl Choice {
    fn without_drafts(n_sequences: usize, limits: &StepLimits) -> Self {
        let n_tokens = (0..n_sequences).map(|_| 1.0).sum();
        let without_s = (limits.decode_s)(0) + limits.token_s * n_tokens;
        Self { lengths: vec![0; n_sequences], step: ExpectedStep { step_s: without_s, without_s }, n_rows: 0, n_tokens }
    }

    fn rate(&self) -> f64 {
        self.n_tokens / self.step.step_s
    }
}

/// Kinds of lengths that are tried, though others have more expected tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Trial {
    #[default]
    Longer,
    WithoutDrafts,
}

#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Number of steps since the last trial, and from that to the next one.
    n_since: u32,
    interval: u32,
    next: Trial,
    /// Expected seconds of a decode of one row at the last trial.
    row_s: f64,
    /// If this step is a trial: the seconds below which the estimates are wrong.
    surprise_s: Option<f64>,
}

impl Gate {
    /// Returns the lengths with the highest expected tokens per second, or others that are tried.
    pub(crate) fn choose(&mut self, candidates: &[Candidate], limits: &StepLimits) -> Choice {
        self.surprise_s = None;
        let without = Choice::without_drafts(candidates.len(), limits);
        if candidates.iter().all(|candidate| candidate.survival.is_empty()) {
            return without;
        }
        let best = best_lengths(candidates, limits, |_| true);
        self.n_since += 1;
        if limits.row_s < SURPRISE * self.row_s {
            // The machine became faster: what was measured before is too high.
            (self.interval, self.row_s) = (1, limits.row_s);
        }
        if self.n_since < self.interval {
            return best;
        }
        let longer = longer_lengths(candidates, limits, &best);
        let tried = match self.next {
            Trial::WithoutDrafts if best.n_rows > 0 => without,
            _ if longer.n_rows > best.n_rows => longer,
            _ if best.n_rows > 0 => without,
            _ => return best,
        };
        let expected_s = (limits.decode_s)(tried.n_rows) + limits.token_s * tried.n_tokens;
        self.next = if tried.n_rows > 0 { Trial::Longer } else { Trial::WithoutDrafts };
        (self.n_since, self.row_s) = (0, limits.row_s);
        self.surprise_s = Some((SURPRISE * expected_s).max(tried.n_tokens / best.rate()));
        tried
    }

    /// A step took this long.
    pub(crate) fn observe(&mut self, took_s: f64) {
        let Some(surprise_s) = self.surprise_s else { return };
        if took_s < surprise_s {
            self.interval = 1;
        } else {
            self.interval = (2 * self.interval).clamp(1, MAX_INTERVAL);
            self.next = if self.next == Trial::Longer { Trial::WithoutDrafts } else { Trial::Longer };
        }
    }
}

/// Returns the lengths that are best if rows cost little, and that lose at most the time of a step without drafts if each row beyond
/// those of `best` costs as much as one of a step without drafts.
fn longer_lengths(candidates: &[Candidate], limits: &StepLimits, best: &Choice) -> Choice {
    let without_s = (limits.decode_s)(0);
    let decode_s = |n_rows: u32| without_s * (1.0 + TRIED_ROW_SHARE * f64::from(n_rows));
    let row_s = without_s / candidates.iter().map(|_| 1.0).sum::<f64>();
    let is_safe = |choice: &Choice| {
        let n_tokens = choice.n_tokens - best.n_tokens;
        let n_rows = f64::from(choice.n_rows.saturating_sub(best.n_rows));
        n_rows * row_s - n_tokens * (1.0 / best.rate() - limits.token_s) <= without_s
    };
    best_lengths(candidates, &StepLimits { decode_s: &decode_s, ..*limits }, is_safe)
}

/// Returns the lengths with the highest expected tokens per second, of those for which `is_allowed` and no sequence loses too much.
///
/// The next row goes to the sequence with the highest survival, or to the one that loses too much by the rows so far. For each
/// number of rows this is the best choice if no sequence loses too much.
pub(crate) fn best_lengths(candidates: &[Candidate], limits: &StepLimits, is_allowed: impl Fn(&Choice) -> bool) -> Choice {
    let mut n_expected = vec![1.0; candidates.len()];
    let mut choice = Choice::without_drafts(candidates.len(), limits);
    let (mut best, mut min_rate) = (choice.clone(), choice.rate() * (1.0 + MIN_GAIN));
    let mut least = None;
    while choice.n_rows < limits.max_rows {
        let next = |nth: usize| candidates[nth].survival.get(choice.lengths[nth]).copied();
        let likeliest = || (0..candidates.len()).max_by(|&a, &b| next(a).partial_cmp(&next(b)).unwrap_or(Ordering::Equal));
        let Some((nth, survival)) = least.or_else(likeliest).and_then(|nth| Some((nth, next(nth)?))) else { break };
        choice.lengths[nth] += 1;
        n_expected[nth] += survival;
        choice.n_rows += 1;
        choice.n_tokens += survival;
        let decode_s = (limits.decode_s)(choice.n_rows);
        if decode_s > limits.max_decode_s {
            break;
        }
        choice.step.step_s = decode_s + limits.token_s * choice.n_tokens;
        let n_required = (1.0 - MAX_LOSS) * choice.step.share();
        let n_beyond = |nth: usize| candidates[nth].slack.0 + n_expected[nth] - n_required;
        least = (0..candidates.len()).filter(|&nth| n_beyond(nth) < 0.0).min_by(|&a, &b| n_beyond(a).total_cmp(&n_beyond(b)));
        if least.is_none() && choice.rate() > min_rate && is_allowed(&choice) {
            (min_rate, best) = (choice.rate(), choice.clone());
        }
    }
    best
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "small random numbers")]
mod tests {
    use super::*;
    use crate::engine::scheduler::step_cost::{StepCost, StepShape};
    use crate::sampling::draw::rng::Mt19937;

    /// Seconds of a step by rows: SmolLM2-135M on two cores up to 8 rows, and 1.3 ms for each further one.
    fn measured_s(n_rows: u32) -> f64 {
        let n_more = f64::from(n_rows.saturating_sub(8));
        let index = (n_rows.min(8) - 1) as usize;
        [0.0130, 0.0137, 0.0158, 0.0180, 0.0193, 0.0205, 0.0218, 0.0231][index] + 0.0013 * n_more
    }

    /// Seconds of a step whose rows each cost as much as the first.
    fn linear_s(n_rows: u32) -> f64 {
        0.01 * f64::from(n_rows)
    }

    /// Returns costs that have measured each number of rows up to 64 often.
    fn measured(step_s: fn(u32) -> f64) -> StepCost {
        let mut costs = StepCost::new();
        for nth in 0..6_400 {
            observe(&mut costs, 1 + nth * 37 % 64, step_s);
        }
        costs
    }

    fn shape(n_decoding: u32) -> StepShape {
        StepShape { n_decoding, n_prefill: 0, n_cells: 0 }
    }

    fn observe(costs: &mut StepCost, n_rows: u32, step_s: fn(u32) -> f64) {
        costs.observe(shape(n_rows), step_s(n_rows));
    }

    /// Returns the lengths that are best by `costs`, without drafts that are tried.
    fn lengths(candidates: &[Candidate], costs: &StepCost, max_rows: u32, max_decode_s: f64) -> Vec<usize> {
        let n = u32::try_from(candidates.len()).unwrap();
        let decode_s = |n_drafted| costs.mean_s(shape(n + n_drafted));
        best_lengths(candidates, &StepLimits { decode_s: &decode_s, row_s: 0.0, token_s: 0.0, max_rows, max_decode_s }, |_| true)
            .lengths
    }

    /// A generator of uniform numbers.
    fn uniforms(seed: u32) -> impl FnMut() -> f64 {
        let mut random = Mt19937::new(seed);
        move || random.uniform()
    }

    fn candidate(survival: Vec<f64>) -> Candidate {
        Candidate { survival, slack: RateSlack::default() }
    }

    #[test]
    fn nothing_is_drafted_before_a_step_was_measured_nor_where_nothing_is_gained() {
        let of = |survival: f64| [candidate(vec![survival; 8])];
        let within = f64::INFINITY;
        assert_eq!(lengths(&of(1.0), &StepCost::new(), 8, within), [0]);
        assert_eq!(lengths(&of(1.0), &measured(linear_s), 8, within), [0]);
        assert_eq!(lengths(&of(1.0), &measured(measured_s), 5, within), [5]);
        assert_eq!(lengths(&of(0.02), &measured(measured_s), 8, within), [0]);
        assert_eq!(lengths(&of(1.0), &measured(measured_s), 8, measured_s(4) * 1.05), [3]);
    }

    /// Returns the highest expected tokens per second over all lengths, and whether no sequence loses too much with `lengths`.
    fn brute_force(candidates: &[Candidate], limits: &StepLimits, lengths: &[usize]) -> (f64, f64, bool) {
        let rate = |lengths: &[usize]| {
            let n_more: Vec<f64> =
                candidates.iter().zip(lengths).map(|(candidate, &n)| candidate.survival[..n].iter().sum()).collect();
            let step_s = (limits.decode_s)(u32::try_from(lengths.iter().sum::<usize>()).unwrap());
            let n_least = 1.0 + n_more.iter().copied().fold(f64::INFINITY, f64::min);
            let is_fair = n_least / step_s >= (1.0 - MAX_LOSS) / (limits.decode_s)(0);
            ((candidates.len() as f64 + n_more.iter().sum::<f64>()) / step_s, is_fair)
        };
        let mut best = rate(&vec![0; candidates.len()]).0;
        let mut tried = vec![0; candidates.len()];
        while let Some(at) = (0..tried.len()).find(|&at| tried[at] < candidates[at].survival.len()) {
            tried[at] += 1;
            tried[..at].fill(0);
            let (rate, is_fair) = rate(&tried);
            if is_fair && tried.iter().sum::<usize>() <= limits.max_rows as usize {
                best = best.max(rate);
            }
        }
        let (chosen, is_fair) = rate(lengths);
        (best, chosen, is_fair)
    }

    #[test]
    fn lengths_are_the_best_of_all_and_take_no_more_than_a_tenth_from_any_sequence() {
        let mut uniform = uniforms(3);
        let (mut n_drafted, mut n_below, mut worst) = (0, 0, 1.0_f64);
        for round in 0..2_000 {
            // The costs of rows after the first, by segments that end at 2, 4, 8 and so on.
            let costs_s = [0; 5].map(|_| uniform().powi(2) * 0.01);
            let n = 1 + round % 4;
            let mut candidates: Vec<Candidate> = (0..n).map(|_| candidate(random_survival(&mut uniform))).collect();
            if round % 3 == 0 {
                candidates.push(candidate(Vec::new()));
            }
            let n = u32::try_from(candidates.len()).unwrap();
            let decode_s = |n_drafted: u32| 0.01 + (1..n + n_drafted).map(|row| costs_s[row.ilog2() as usize]).sum::<f64>();
            let max_rows = 1 + (uniform() * 12.0) as u32;
            let limits = StepLimits { decode_s: &decode_s, row_s: 0.0, token_s: 0.0, max_rows, max_decode_s: f64::INFINITY };
            let lengths = best_lengths(&candidates, &limits, |_| true).lengths;
            n_drafted += lengths.iter().sum::<usize>();
            let (best, chosen, is_fair) = brute_force(&candidates, &limits, &lengths);
            assert!(is_fair && lengths.iter().sum::<usize>() <= max_rows as usize);
            n_below += usize::from(chosen * (1.0 + MIN_GAIN) < best);
            worst = worst.min(chosen / best);
        }
        // Only where a sequence would lose too much may other lengths be better: measured in 2 % of the rounds.
        assert!(n_drafted > 2_000 && n_below < 60 && worst > 0.75, "{n_drafted} drafted, {n_below} below, {worst}");
    }

    fn random_survival(uniform: &mut impl FnMut() -> f64) -> Vec<f64> {
        let (mut survival, share) = (1.0, uniform().sqrt());
        let mut next = || {
            survival *= share + (1.0 - share) * uniform();
            survival
        };
        (0..3).map(|_| next()).collect()
    }

    #[test]
    fn a_sequence_that_had_drafts_may_lose_more_for_some_steps() {
        let costs = measured(measured_s);
        let n_drafted = |slack: RateSlack| {
            let candidates = [candidate(vec![0.99; 8]), Candidate { slack, ..candidate(Vec::new()) }];
            lengths(&candidates, &costs, 8, f64::INFINITY)[0]
        };
        let step = ExpectedStep { step_s: measured_s(4), without_s: measured_s(2) };
        let mut slack = RateSlack::default();
        assert_eq!(n_drafted(slack), 0, "a third row takes more than a tenth");
        slack.observe(3, step);
        assert!(n_drafted(slack) > 4);
        for _ in 0..20 {
            slack.observe(1, step);
        }
        assert_eq!(n_drafted(slack), 0);
    }
}
