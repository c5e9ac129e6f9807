//! Runs the gate on simulated machines, with a seeded generator instead of a clock.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a simulation's counts are small"
)]

use std::time::Duration;

use super::acceptance::Acceptance;
use super::gate::{DraftCandidate, ExpectedStep, Gate, RateSlack, StepLimits};
use crate::config::TokenGap;
use crate::engine::scheduler::step_budget::{RowDemand, StepBudget, StreamLoad};
use crate::sampling::draw::rng::Mt19937;

/// Length of the match before each prediction, in tokens.
const N_MATCHED: usize = 8;

/// Returns the seconds of a step by rows: SmolLM2-135M on two cores up to 8 rows, and 1.3 ms for each further one.
fn measured_s(n_rows: u32) -> f64 {
    let n_more = f64::from(n_rows.saturating_sub(8));
    let index = (n_rows.min(8) - 1) as usize;
    [0.0130, 0.0137, 0.0158, 0.0180, 0.0193, 0.0205, 0.0218, 0.0231][index] + 0.0013 * n_more
}

/// Returns the seconds of a step whose rows each cost as much as the first.
fn linear_s(n_rows: u32) -> f64 {
    0.01 * f64::from(n_rows)
}

#[derive(Debug, Clone, Copy)]
enum Lengths {
    Fixed(usize),
    Gated,
}

/// A sequence whose predictions are correct with a probability of `share`.
struct Stream {
    share: f64,
    acceptance: Acceptance,
    slack: RateSlack,
    n_emitted: f64,
}

impl Stream {
    fn new(share: f64) -> Self {
        Self { share, acceptance: Acceptance::of_text(), slack: RateSlack::default(), n_emitted: 0.0 }
    }
}

/// A worker without a model.
struct Simulation {
    streams: Vec<Stream>,
    step_s: fn(u32) -> f64,
    budget: StepBudget,
    gate: Gate,
    random: Mt19937,
    /// True while other processes take the processors: steps take several times as long, those with more rows most.
    is_contended: bool,
    /// Share of steps that take twice as long.
    outliers: f64,
    /// Tokens of a prompt that are not computed yet.
    n_prompt: u32,
    /// Seconds of each step.
    took_s: Vec<f64>,
}

impl Simulation {
    fn new(shares: &[f64], step_s: fn(u32) -> f64, seed: u32) -> Self {
        let streams = shares.iter().map(|&share| Stream::new(share)).collect();
        let random = Mt19937::new(seed);
        let budget = StepBudget::new(512, TokenGap::Auto);
        let (gate, took_s) = (Gate::default(), Vec::new());
        Self { streams, step_s, budget, gate, random, is_contended: false, outliers: 0.0, n_prompt: 0, took_s }
    }

    fn took_s(&mut self, n_rows: u32) -> f64 {
        let jitter = 0.95 + 0.1 * self.random.uniform();
        let mut took_s = (self.step_s)(n_rows) * jitter;
        if self.random.uniform() < self.outliers {
            took_s *= 2.0;
        }
        if self.is_contended {
            // A thread waits for a turn of the scheduler with each of several products, more often the longer they take.
            let n_turns = (took_s / 0.004 * self.random.uniform() * 2.0).floor();
            took_s += 0.004 * n_turns * (1.0 + 0.3 * f64::from(n_rows.min(8)) * self.random.uniform());
        }
        took_s
    }

    fn step(&mut self, lengths: Lengths) {
        let n = u32::try_from(self.streams.len()).unwrap();
        let load = StreamLoad { n_decoding: n, n_by_default: n, ..StreamLoad::default() };
        let n_prefill = self.chunk(load);
        let candidate =
            |stream: &Stream| DraftCandidate { survival: stream.acceptance.survival(N_MATCHED, 16), slack: stream.slack };
        let candidates: Vec<DraftCandidate> = self.streams.iter().map(candidate).collect();
        let (lengths, step) = match lengths {
            Lengths::Fixed(k) => (vec![k; self.streams.len()], ExpectedStep::default()),
            Lengths::Gated => {
                let decode_s = |n_drafted| self.budget.mean_s(n + n_drafted, n_prefill, 0);
                let max_decode_s = self.budget.max_drafted_s(load, 0, Duration::ZERO);
                let limits = StepLimits {
                    decode_s: &decode_s,
                    row_s: self.budget.mean_s(1, 0, 0),
                    token_s: 0.0,
                    max_rows: 64,
                    max_decode_s,
                };
                let choice = self.gate.choose(&candidates, &limits);
                (choice.lengths, choice.step)
            }
        };
        let n_drafted = lengths.iter().sum::<usize>() as u32;
        let took_s = self.took_s(n + n_drafted + n_prefill);
        let took = Duration::from_secs_f64(took_s);
        if n_drafted == 0 {
            self.budget.observe(n, n_prefill, 0, took);
        } else {
            self.budget.observe_drafted(n + n_drafted, n_prefill, 0, took);
        }
        self.gate.observe(took_s);
        self.took_s.push(took_s);
        self.n_prompt -= n_prefill;
        for (stream, n_drafted) in self.streams.iter_mut().zip(lengths) {
            let mut n_correct = 0;
            // The token after the accepted ones is compared with its prediction too.
            for position in 0..=n_drafted {
                let is_correct = self.random.uniform() < stream.share;
                stream.acceptance.observe(N_MATCHED + position, is_correct);
                if !is_correct {
                    break;
                }
                n_correct += 1;
            }
            let n = n_drafted.min(n_correct) + 1;
            stream.slack.observe(n, step);
            stream.n_emitted += n as f64;
        }
    }

    /// Returns the rows of the prompt in the next step.
    fn chunk(&self, load: StreamLoad) -> u32 {
        let demand = |n_ready| RowDemand { n_ready, is_all: true, priority: 0, n_skipped: None };
        let mut demands = vec![demand(1); self.streams.len()];
        demands.push(demand(self.n_prompt));
        let mut rows = Vec::new();
        self.budget.plan(&demands, load, 0, Duration::ZERO, &mut rows);
        rows[self.streams.len()]
    }

    /// Returns the emitted tokens per second of each sequence over some steps.
    fn run(&mut self, n_steps: usize, lengths: Lengths) -> Vec<f64> {
        self.took_s.clear();
        self.streams.iter_mut().for_each(|stream| stream.n_emitted = 0.0);
        (0..n_steps).for_each(|_| self.step(lengths));
        let total_s: f64 = self.took_s.iter().sum();
        self.streams.iter().map(|stream| stream.n_emitted / total_s).collect()
    }
}

/// Returns the emitted tokens per second of each sequence over 1,500 steps.
fn rates(shares: &[f64], step_s: fn(u32) -> f64, lengths: Lengths) -> Vec<f64> {
    Simulation::new(shares, step_s, 1).run(1_500, lengths)
}

#[test]
fn the_gate_reaches_nine_tenths_of_the_best_fixed_length() {
    for (n, share) in [1, 8, 32].into_iter().flat_map(|n| [0.3, 0.5, 0.7, 0.9, 0.97].map(|share| (n, share))) {
        for step_s in [measured_s, linear_s] {
            let rate = |lengths: Lengths| rates(&vec![share; n], step_s, lengths).iter().sum::<f64>();
            let best = [0, 1, 2, 3, 4, 6, 8, 12, 16].map(|k| rate(Lengths::Fixed(k))).into_iter().fold(0.0, f64::max);
            let gated = rate(Lengths::Gated);
            assert!(gated >= 0.9 * best, "{n} sequences, {share} correct: {gated} of {best} tokens/s");
        }
    }
}

#[test]
fn the_gate_loses_at_most_a_hundredth_where_nothing_is_gained() {
    for n in [1, 8, 32] {
        for (share, step_s) in [(0.0, measured_s as fn(u32) -> f64), (0.9, linear_s), (0.95, linear_s)] {
            let rate = |lengths: Lengths| {
                let mut simulation = Simulation::new(&vec![share; n], step_s, 1);
                simulation.run(200, lengths);
                simulation.run(1_500, lengths).iter().sum::<f64>()
            };
            let (gated, off) = (rate(Lengths::Gated), rate(Lengths::Fixed(0)));
            assert!(gated >= 0.99 * off, "{n} sequences, {share} correct: {gated} of {off} tokens/s");
        }
    }
}

#[test]
fn sequences_without_correct_predictions_lose_at_most_a_tenth() {
    let mut shares = vec![0.97; 4];
    shares.extend([0.0; 4]);
    let (gated, off) = (rates(&shares, measured_s, Lengths::Gated), rates(&shares, measured_s, Lengths::Fixed(0)));
    assert!(gated.iter().zip(&off).all(|(gated, off)| *gated >= 0.9 * off), "{gated:?} of {off:?}");
    assert!(gated[..4].iter().sum::<f64>() > 1.2 * off[..4].iter().sum::<f64>(), "{gated:?} of {off:?}");
}

#[test]
fn drafts_come_back_within_tens_of_steps_once_the_machine_is_calm() {
    for (n_contended, share) in [3, 30, 300, 3_000].into_iter().flat_map(|n| [0.7, 0.9, 0.97].map(|share| (n, share))) {
        let rate = |lengths: Lengths| rates(&[share], measured_s, lengths)[0];
        let best = [1, 2, 3, 4, 6, 8, 12].map(|k| rate(Lengths::Fixed(k))).into_iter().fold(0.0, f64::max);
        for seed in 0..20 {
            let mut simulation = Simulation::new(&[share], measured_s, seed);
            simulation.is_contended = true;
            simulation.run(n_contended, Lengths::Gated);
            simulation.is_contended = false;
            simulation.run(50, Lengths::Gated);
            let [rate] = simulation.run(200, Lengths::Gated)[..] else { panic!("there is one sequence") };
            assert!(rate > 0.8 * best, "{n_contended} steps, {share} correct, seed {seed}: {rate} of {best} tokens/s");
        }
    }
}

/// Steps of streams while two prompts are computed, one after the other.
#[derive(Default)]
struct Steps {
    took_s: Vec<f64>,
    n_with_prompts: usize,
    /// Emitted tokens of each sequence.
    n_emitted: Vec<f64>,
}

impl Steps {
    fn of(gap: Duration, lengths: Lengths, seed: u32) -> Self {
        let mut simulation = Simulation::new(&[0.97, 0.9, 0.7, 0.0], measured_s, seed);
        simulation.budget = StepBudget::new(512, TokenGap::AtMost(gap));
        simulation.outliers = 0.004;
        simulation.run(100, lengths);
        let mut steps = Self { n_emitted: vec![0.0; simulation.streams.len()], ..Self::default() };
        for n_prompt in [500, 3_000] {
            simulation.n_prompt = n_prompt;
            while simulation.n_prompt > 0 {
                steps.run(&mut simulation, 1, lengths);
                steps.n_with_prompts += 1;
            }
            steps.run(&mut simulation, 300, lengths);
        }
        steps
    }

    fn run(&mut self, simulation: &mut Simulation, n_steps: usize, lengths: Lengths) {
        simulation.run(n_steps, lengths);
        self.took_s.extend(&simulation.took_s);
        for (n_emitted, stream) in self.n_emitted.iter_mut().zip(&simulation.streams) {
            *n_emitted += stream.n_emitted;
        }
    }

    fn total_s(&self) -> f64 {
        self.took_s.iter().sum()
    }
}

#[test]
fn drafts_keep_the_token_gap_and_delay_neither_prompts_nor_other_streams() {
    for gap in [40, 60, 100].map(Duration::from_millis) {
        let all = |lengths: Lengths| (0..20).map(|seed| Steps::of(gap, lengths, seed)).collect::<Vec<_>>();
        let (with, without) = (all(Lengths::Gated), all(Lengths::Fixed(0)));
        let mut took_s: Vec<f64> = with.iter().flat_map(|steps| steps.took_s.clone()).collect();
        took_s.sort_by(f64::total_cmp);
        let p99_s = took_s[took_s.len() * 99 / 100];
        assert!(p99_s <= gap.as_secs_f64(), "{p99_s} s is more than {gap:?}");
        let n_with_prompts = |all: &[Steps]| all.iter().map(|steps| steps.n_with_prompts).sum::<usize>();
        assert!(n_with_prompts(&with) * 100 <= n_with_prompts(&without) * 101, "prompts take more steps with {gap:?}");
        for (with, without) in with.iter().zip(&without) {
            let rates = |steps: &Steps| steps.n_emitted.iter().map(|n| n / steps.total_s()).collect::<Vec<f64>>();
            let (with, without) = (rates(with), rates(without));
            let is_fair = with.iter().zip(&without).all(|(with, without)| *with >= 0.9 * without);
            assert!(is_fair && with[0] > without[0], "{with:?} of {without:?} tokens/s with {gap:?}");
        }
    }
}
