//! Chooses how many drafted tokens each sequence verifies in the next step, so that drafts never lose. Pure: probabilities and
//! measured times in, lengths out.
//!
//! A drafted token adds a row to the step and, if it and the ones before it are accepted, one emitted token. The gate maximises
//! the expected emitted tokens per second over all sequences.

use std::cmp::Ordering;

/// Rows of a step and the cells that they scan in total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepLoad {
    pub(crate) n_rows: u32,
    /// Sum over the rows.
    pub(crate) n_row_cells: u64,
}

/// Segments of the cost by rows: of 2, of 3 to 4, of 5 to 8 rows, and so on; the last one has no end.
const N_SEGMENTS: usize = 12;

/// The first row, the rows of each segment, and the cells.
const N_COSTS: usize = N_SEGMENTS + 2;

/// Assumed cost of another row, as a share of the first, until it is measured. Low, so that drafts are tried: SmolLM2-135M (`Q4_1`,
/// two cores) measured 0.05 for the second row, 0.17 for the third and fourth, and 0.10 for the next four.
const ROW_SHARE: f64 = 0.05;

/// Assumed number of cells at which a row other than the first takes twice as long.
const CELLS_PER_ROW: f64 = 8192.0;

/// Assumed relative standard deviation of a measurement.
const NOISE: f64 = 0.1;

/// Change of each cost per step, relative to itself and to the step.
const DRIFT: [f64; 2] = [0.01, 0.003];

/// Maximum error of a prediction in standard deviations; larger errors, such as the turn of another process, are clamped to it.
const MAX_MISS: f64 = 3.0;

/// Standard deviation of the assumed costs of rows, as a share of the first row's: where rows share no work, each costs as much.
const ROW_SPREAD: f64 = 0.5;

/// Steps after which the cost of rows that no step had returns halfway to the assumed one, so that drafts are tried again.
const HALF_LIFE: f64 = 2000.0;

/// Measured time of a step by its rows and cells, sampling included: a linear function between powers of two.
///
/// A Kalman filter whose costs are taken as independent (as [`StepCost`](crate::engine::scheduler::step_cost::StepCost), which
/// has one cost for all rows of a kind): a measurement corrects uncertain costs most.
#[derive(Debug, Default)]
pub(crate) struct CostTable {
    /// Seconds per unit; all 0 until a step was measured.
    costs_s: [f64; N_COSTS],
    variances: [f64; N_COSTS],
}

impl CostTable {
    /// Returns the mean seconds of a step; 0 until one was measured. Monotonic in rows and cells.
    pub(crate) fn step_s(&self, load: StepLoad) -> f64 {
        units(load).iter().zip(&self.costs_s).map(|(unit, cost_s)| unit * cost_s).sum()
    }

    pub(crate) fn observe(&mut self, load: StepLoad, took_s: f64) {
        let units = units(load);
        // The clock may show no progress for a step of a trivial model, but no ratio of times may be infinite.
        let took_s = took_s.max(1e-6);
        let mean_s = self.step_s(load);
        if mean_s == 0.0 {
            return self.begin(&units, took_s);
        }
        let [of_cost, of_step] = DRIFT;
        for ((variance, cost_s), unit) in self.variances.iter_mut().zip(self.costs_s).zip(units).filter(|&(_, unit)| unit > 0.0) {
            *variance += (of_cost * cost_s).powi(2) + (of_step * mean_s / unit).powi(2);
        }
        let spread = units.iter().zip(&self.variances).map(|(unit, variance)| unit * unit * variance).sum::<f64>();
        let spread = spread + (NOISE * mean_s).powi(2);
        let limit_s = MAX_MISS * spread.sqrt();
        let miss_s = (took_s - mean_s).clamp(-limit_s, limit_s);
        let assumed = assumed_costs(self.costs_s[0]);
        for (i, unit) in units.into_iter().enumerate() {
            if unit > 0.0 {
                let gain = unit * self.variances[i] / spread;
                self.costs_s[i] = (self.costs_s[i] + gain * miss_s).max(0.0);
                self.variances[i] *= 1.0 - gain * unit;
            } else {
                self.costs_s[i] += (assumed[i] - self.costs_s[i]) * std::f64::consts::LN_2 / HALF_LIFE;
            }
        }
    }

    fn begin(&mut self, units: &[f64; N_COSTS], took_s: f64) {
        let shares = assumed_costs(1.0);
        let n_firsts: f64 = units.iter().zip(&shares).map(|(unit, share)| unit * share).sum();
        self.costs_s = assumed_costs(took_s / n_firsts);
        self.variances = [(ROW_SPREAD * self.costs_s[0]).powi(2); N_COSTS];
        self.variances[0] = (NOISE * self.costs_s[0]).powi(2);
        self.variances[N_COSTS - 1] = self.costs_s[N_COSTS - 1].powi(2);
    }
}

fn assumed_costs(first_s: f64) -> [f64; N_COSTS] {
    let mut costs_s = [ROW_SHARE * first_s; N_COSTS];
    costs_s[0] = first_s;
    costs_s[N_COSTS - 1] /= CELLS_PER_ROW;
    costs_s
}

fn units(load: StepLoad) -> [f64; N_COSTS] {
    let n_rows = f64::from(load.n_rows);
    let mut units = [1.0; N_COSTS];
    let mut start = 1.0;
    for unit in &mut units[1..=N_SEGMENTS] {
        *unit = (n_rows - start).clamp(0.0, start);
        start *= 2.0;
    }
    // The last segment has no end.
    units[N_SEGMENTS] = (n_rows - start / 2.0).max(0.0);
    #[expect(clippy::cast_precision_loss, reason = "below 2⁵³")]
    let n_cells = load.n_row_cells as f64;
    units[N_COSTS - 1] = n_cells;
    units
}

/// Minimum gain in tokens per second for which drafts are verified: estimates differ by as much.
const MIN_GAIN: f64 = 0.02;

/// Expected share of its rate that a sequence may lose to the drafts of others: with the errors of the estimates, at most a tenth.
const MAX_LOSS: f64 = 0.08;

/// Weight of a step in [`RateSlack`], relative to the next one: a sequence may lose more for some steps of the last 50.
const SLACK_DECAY: f64 = 0.98;

/// Emitted tokens of a sequence beyond those that it must have, which are the tokens that it would have emitted without drafts in
/// the same time, less [`MAX_LOSS`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RateSlack(f64);

impl RateSlack {
    /// A step that would have taken `without_s` without drafts took `step_s`, both as expected.
    pub(crate) fn observe(&mut self, n_emitted: usize, step_s: f64, without_s: f64) {
        let n_emitted = f64::from(u32::try_from(n_emitted).expect("a step emits few tokens"));
        self.0 = self.0 * SLACK_DECAY + n_emitted - (1.0 - MAX_LOSS) * step_s / without_s.max(f64::MIN_POSITIVE);
    }
}

/// A sequence that samples in the next step, and its draft, which may be empty.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// Probability that each drafted token is accepted with all before it; never increases.
    pub(crate) survival: Vec<f64>,
    /// Cells that each of its rows scans.
    pub(crate) n_cells: u32,
    pub(crate) slack: RateSlack,
}

/// The next step without drafts, and what drafts may add to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepLimits {
    /// With the rows of prompts.
    pub(crate) load: StepLoad,
    /// Maximum number of drafted rows.
    pub(crate) max_rows: usize,
    /// Maximum expected time of the step with drafts, in seconds.
    pub(crate) max_step_s: f64,
}

/// Returns the number of drafted tokens of each candidate with the highest expected tokens per second.
///
/// The next row goes to the sequence with the highest survival, or to the one that loses too much by the rows so far. For each
/// number of rows this is the best choice if no sequence loses too much and all scan as many cells.
pub(crate) fn choose_lengths(candidates: &[Candidate], costs: &CostTable, limits: &StepLimits) -> Vec<usize> {
    let StepLimits { mut load, max_step_s, .. } = *limits;
    let without_s = costs.step_s(load);
    let mut lengths = vec![0; candidates.len()];
    let mut n_expected = vec![1.0; candidates.len()];
    let mut n_total: f64 = n_expected.iter().sum();
    let (mut best, mut best_rate) = (lengths.clone(), n_total / without_s * (1.0 + MIN_GAIN));
    let mut least = None;
    for _ in 0..limits.max_rows {
        let next = |nth: usize| candidates[nth].survival.get(lengths[nth]).copied();
        let likeliest = || (0..candidates.len()).max_by(|&a, &b| next(a).partial_cmp(&next(b)).unwrap_or(Ordering::Equal));
        let Some((nth, survival)) = least.or_else(likeliest).and_then(|nth| Some((nth, next(nth)?))) else { break };
        lengths[nth] += 1;
        n_expected[nth] += survival;
        n_total += survival;
        load.n_rows += 1;
        load.n_row_cells += u64::from(candidates[nth].n_cells);
        let step_s = costs.step_s(load);
        if step_s > max_step_s {
            break;
        }
        let n_required = (1.0 - MAX_LOSS) * step_s / without_s;
        let n_beyond = |nth: usize| candidates[nth].slack.0 + n_expected[nth] - n_required;
        least = (0..candidates.len()).filter(|&nth| n_beyond(nth) < 0.0).min_by(|&a, &b| n_beyond(a).total_cmp(&n_beyond(b)));
        if least.is_none() && n_total / step_s > best_rate {
            (best_rate, best) = (n_total / step_s, lengths.clone());
        }
    }
    best
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "small random numbers")]
mod tests {
    use super::*;
    use crate::engine::features::speculation::acceptance::Acceptance;
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

    fn load(n_rows: u32) -> StepLoad {
        StepLoad { n_rows, n_row_cells: 0 }
    }

    /// A table that has measured each number of rows up to 64 often.
    fn table(step_s: fn(u32) -> f64) -> CostTable {
        let mut table = CostTable::default();
        for nth in 0..6_400 {
            let n_rows = 1 + nth * 37 % 64;
            table.observe(load(n_rows), step_s(n_rows));
        }
        table
    }

    fn limits(n_sequences: u32, max_rows: usize) -> StepLimits {
        StepLimits { load: load(n_sequences), max_rows, max_step_s: f64::INFINITY }
    }

    /// A generator of uniform numbers.
    fn uniforms(seed: u32) -> impl FnMut() -> f64 {
        let mut random = Mt19937::new(seed);
        move || random.uniform()
    }

    #[test]
    fn the_table_follows_measured_steps() {
        for step_s in [measured_s, linear_s] {
            let table = table(step_s);
            for n_rows in 1..=64 {
                let error = table.step_s(load(n_rows)) / step_s(n_rows) - 1.0;
                assert!(error.abs() < 0.1, "{n_rows} rows: {error}");
            }
        }
    }

    #[test]
    fn the_table_separates_rows_from_cells() {
        let true_s = |n_rows: u32, n_cells: u32| measured_s(n_rows) + 1e-7 * f64::from(n_rows * n_cells);
        let load = |n_rows: u32, n_cells: u32| StepLoad { n_rows, n_row_cells: (n_rows * n_cells).into() };
        let mut table = CostTable::default();
        let mut uniform = uniforms(1);
        for _ in 0..4_000 {
            let n_cells = (uniform() * 16_384.0) as u32;
            let n_rows = 1 + (uniform() * uniform() * 16.0) as u32;
            table.observe(load(n_rows, n_cells), true_s(n_rows, n_cells) * (0.95 + 0.1 * uniform()));
        }
        for (n_rows, n_cells) in [(1, 0), (1, 16_000), (4, 0), (4, 16_000), (8, 8_000), (16, 16_000)] {
            let error = table.step_s(load(n_rows, n_cells)) / true_s(n_rows, n_cells) - 1.0;
            assert!(error.abs() < 0.12, "{n_rows} rows at {n_cells} cells: {error}");
        }
    }

    #[test]
    fn the_table_follows_a_machine_that_changes_its_speed() {
        let mut table = table(measured_s);
        for nth in 0..200 {
            let n_rows = 1 + nth % 8;
            table.observe(load(n_rows), 2.0 * measured_s(n_rows));
        }
        for n_rows in 1..=8 {
            let error = table.step_s(load(n_rows)) / (2.0 * measured_s(n_rows)) - 1.0;
            assert!(error.abs() < 0.15, "{n_rows} rows: {error}");
        }
    }

    #[test]
    fn random_measurements_keep_costs_finite_and_monotonic() {
        let mut uniform = uniforms(2);
        for _ in 0..50 {
            let mut table = CostTable::default();
            for _ in 0..500 {
                let n_rows = (10_000.0 * uniform().powi(6)) as u32;
                let n_row_cells = (1e7 * uniform().powi(4)) as u64;
                table.observe(StepLoad { n_rows, n_row_cells }, 10.0 * uniform().powi(9));
                let costs = table.costs_s.iter().chain(&table.variances);
                assert!(costs.into_iter().all(|cost| cost.is_finite() && *cost >= 0.0), "{table:?}");
            }
            let times: Vec<f64> = (1..100).map(|n_rows| table.step_s(load(n_rows))).collect();
            assert!(times.is_sorted() && times[0] >= 0.0);
        }
    }

    #[test]
    fn nothing_is_drafted_before_a_step_was_measured_nor_where_nothing_is_gained() {
        let of = |survival: f64| [candidate(vec![survival; 8])];
        assert_eq!(choose_lengths(&of(1.0), &CostTable::default(), &limits(1, 8)), [0]);
        assert_eq!(choose_lengths(&of(1.0), &table(linear_s), &limits(1, 8)), [0]);
        assert_eq!(choose_lengths(&of(1.0), &table(measured_s), &limits(1, 5)), [5]);
        assert_eq!(choose_lengths(&of(0.02), &table(measured_s), &limits(1, 8)), [0]);
        let max_step_s = measured_s(4) * 1.05;
        assert_eq!(choose_lengths(&of(1.0), &table(measured_s), &StepLimits { max_step_s, ..limits(1, 8) }), [3]);
    }

    fn candidate(survival: Vec<f64>) -> Candidate {
        Candidate { survival, n_cells: 0, slack: RateSlack::default() }
    }

    /// Returns the highest expected tokens per second over all lengths, and whether no sequence loses too much with `lengths`.
    fn brute_force(candidates: &[Candidate], costs: &CostTable, limits: &StepLimits, lengths: &[usize]) -> (f64, f64, bool) {
        let rate = |lengths: &[usize]| {
            let n_more: Vec<f64> =
                candidates.iter().zip(lengths).map(|(candidate, &n)| candidate.survival[..n].iter().sum()).collect();
            let n_rows: usize = lengths.iter().sum();
            let step_s = costs.step_s(load(limits.load.n_rows + u32::try_from(n_rows).unwrap()));
            let n_least = 1.0 + n_more.iter().copied().fold(f64::INFINITY, f64::min);
            let is_fair = n_least / step_s >= (1.0 - MAX_LOSS) / costs.step_s(limits.load);
            ((candidates.len() as f64 + n_more.iter().sum::<f64>()) / step_s, is_fair)
        };
        let mut best = rate(&vec![0; candidates.len()]).0;
        let mut tried = vec![0; candidates.len()];
        while let Some(at) = (0..tried.len()).find(|&at| tried[at] < candidates[at].survival.len()) {
            tried[at] += 1;
            tried[..at].fill(0);
            let (rate, is_fair) = rate(&tried);
            if is_fair && tried.iter().sum::<usize>() <= limits.max_rows {
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
            let costs = table_of_slopes(&mut uniform);
            let n = 1 + round % 4;
            let mut candidates: Vec<Candidate> = (0..n).map(|_| candidate(random_survival(&mut uniform))).collect();
            if round % 3 == 0 {
                candidates.push(candidate(Vec::new()));
            }
            let limits = limits(u32::try_from(candidates.len()).unwrap(), 1 + (uniform() * 12.0) as usize);
            let lengths = choose_lengths(&candidates, &costs, &limits);
            n_drafted += lengths.iter().sum::<usize>();
            let (best, chosen, is_fair) = brute_force(&candidates, &costs, &limits, &lengths);
            assert!(is_fair && lengths.iter().sum::<usize>() <= limits.max_rows);
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

    fn table_of_slopes(uniform: &mut impl FnMut() -> f64) -> CostTable {
        let mut costs_s = [0.0; N_COSTS].map(|_| uniform().powi(2) * 0.01);
        costs_s[0] = 0.01;
        CostTable { costs_s, ..CostTable::default() }
    }

    /// Returns the emitted tokens per second of each sequence over 1,500 steps. Its predictions are correct with a probability of
    /// `shares`; all drafts are `fixed` tokens long, or the gate chooses.
    fn simulate(shares: &[f64], step_s: fn(u32) -> f64, fixed: Option<usize>) -> Vec<f64> {
        let mut uniform = uniforms(1);
        let n = u32::try_from(shares.len()).unwrap();
        let mut costs = CostTable::default();
        let mut acceptances = vec![Acceptance::of_text(); shares.len()];
        let mut slacks = vec![RateSlack::default(); shares.len()];
        let (mut n_emitted, mut total_s) = (vec![0.0; shares.len()], 0.0);
        for _ in 0..1_500 {
            let draft =
                |(acceptance, &slack): (&Acceptance, &RateSlack)| Candidate { slack, ..candidate(acceptance.survival(8, 16)) };
            let candidates: Vec<Candidate> = acceptances.iter().zip(&slacks).map(draft).collect();
            let lengths = match fixed {
                Some(k) => vec![k; shares.len()],
                None => choose_lengths(&candidates, &costs, &limits(n, 64)),
            };
            let n_rows = n + u32::try_from(lengths.iter().sum::<usize>()).unwrap();
            let expected_s = [load(n_rows), load(n)].map(|load| costs.step_s(load));
            let took_s = step_s(n_rows) * (0.95 + 0.1 * uniform());
            costs.observe(load(n_rows), took_s);
            total_s += took_s;
            for (at, &n_drafted) in lengths.iter().enumerate() {
                let mut n_correct = 0;
                // The token after the accepted ones is compared with its prediction too.
                for position in 0..=n_drafted {
                    let is_correct = uniform() < shares[at];
                    acceptances[at].observe(8 + position, is_correct);
                    if !is_correct {
                        break;
                    }
                    n_correct += 1;
                }
                let n = n_drafted.min(n_correct) + 1;
                slacks[at].observe(n, expected_s[0], expected_s[1]);
                n_emitted[at] += n as f64;
            }
        }
        n_emitted.iter().map(|n| n / total_s).collect()
    }

    #[test]
    fn the_gate_reaches_nine_tenths_of_the_best_fixed_length() {
        for (n, share) in [1, 8, 32].into_iter().flat_map(|n| [0.3, 0.5, 0.7, 0.9, 0.97].map(|share| (n, share))) {
            for step_s in [measured_s, linear_s] {
                let shares = vec![share; n];
                let rate = |fixed: Option<usize>| simulate(&shares, step_s, fixed).iter().sum::<f64>();
                let best = [0, 1, 2, 3, 4, 6, 8, 12, 16].map(|k| rate(Some(k))).into_iter().fold(0.0, f64::max);
                let gated = rate(None);
                assert!(gated >= 0.9 * best, "{n} sequences, {share} correct: {gated} of {best} tokens/s");
            }
        }
    }

    #[test]
    fn the_gate_does_not_lose_where_no_prediction_is_correct() {
        for n in [1, 8, 32] {
            let rate = |fixed: Option<usize>| simulate(&vec![0.0; n], measured_s, fixed).iter().sum::<f64>();
            let (gated, off) = (rate(None), rate(Some(0)));
            assert!(gated >= 0.99 * off, "{n} sequences: {gated} of {off} tokens/s");
        }
    }

    #[test]
    fn a_sequence_that_had_drafts_may_lose_more_for_some_steps() {
        let costs = table(measured_s);
        let lengths = |slack: RateSlack| {
            let candidates = [candidate(vec![0.99; 8]), Candidate { slack, ..candidate(Vec::new()) }];
            choose_lengths(&candidates, &costs, &limits(2, 8))[0]
        };
        let mut slack = RateSlack::default();
        assert_eq!(lengths(slack), 0, "a third row takes more than a tenth");
        slack.observe(3, measured_s(4), measured_s(2));
        assert!(lengths(slack) > 4);
        for _ in 0..20 {
            slack.observe(1, measured_s(4), measured_s(2));
        }
        assert_eq!(lengths(slack), 0);
    }

    #[test]
    fn sequences_without_correct_predictions_lose_at_most_a_tenth() {
        let mut shares = vec![0.97; 4];
        shares.extend([0.0; 4]);
        let gated = simulate(&shares, measured_s, None);
        let off = simulate(&shares, measured_s, Some(0));
        assert!(gated.iter().zip(&off).all(|(gated, off)| *gated >= 0.9 * off), "{gated:?} of {off:?}");
        assert!(gated[..4].iter().sum::<f64>() > 1.2 * off[..4].iter().sum::<f64>(), "{gated:?} of {off:?}");
    }
}
