//! Overhead of the engine: its steps compared with a bare loop's with the same attention.

use std::time::{Duration, Instant};

use crate::support::engine::{self, HEAD_START, Sampling};
use crate::support::pair::Pair;
use crate::support::shape::{Prompts, Shape};
use crate::support::spread::Spread;

/// Maximum number of steps of a measurement; cells are reserved for them.
const MAX_STEPS: usize = 256;

/// Minimum number of steps of a measurement, however slow.
const MIN_STEPS: usize = 4;

/// Rows and duration of the measurement.
pub(crate) struct Effort {
    /// Numbers of branches.
    pub(crate) n_sequences: &'static [usize],
    /// Tokens of the shared prompt.
    pub(crate) n_tokens: &'static [usize],
    /// Target duration of one side's steps in one round.
    pub(crate) side: Duration,
    /// Time after which a row starts no further round, once `min_rounds` are complete.
    pub(crate) row: Duration,
    pub(crate) min_rounds: usize,
    pub(crate) max_rounds: usize,
}

pub(crate) const FULL: Effort = Effort {
    n_sequences: &[1, 8, 32],
    n_tokens: &[16, 1_000],
    side: Duration::from_millis(200),
    row: Duration::from_millis(2_500),
    min_rounds: 3,
    max_rounds: 15,
};

pub(crate) const QUICK: Effort = Effort {
    n_sequences: &[1, 8, 32],
    n_tokens: &[16],
    side: Duration::from_millis(250),
    row: Duration::from_millis(1_500),
    min_rounds: 1,
    max_rounds: 5,
};

/// Time of a step in each round, in seconds.
#[derive(Default)]
struct Rounds {
    bare: Vec<f64>,
    greedy: Vec<f64>,
    sampled: Vec<f64>,
}

/// Prints the table.
///
/// # Errors
/// A message, if either side fails.
pub(crate) fn measure(pair: &Pair<'_>, effort: &Effort) -> Result<(), String> {
    println!("\n  The engine against a bare loop of its own configuration, branches of one prompt");
    let group = |title: &str| format!(" {title:<19}");
    println!("  {:>38} │{} │{:<43} │{}", "", group("bare loop"), group("engine, greedy"), group("engine, default sampling"));
    let times = "    ms/step  tokens/s";
    println!("  branches × shared  flash steps rounds │{times}│{times} {:<22} │{times} − bare, ms", "− bare, ms");
    for n_tokens in pair.lengths(effort.n_tokens) {
        for &n_sequences in effort.n_sequences {
            println!("{}", measure_row(pair, Shape::new(n_sequences, n_tokens, Prompts::Shared), effort)?);
        }
    }
    println!(
        "  − bare: what a step of the engine takes beyond the bare loop's, median of the rounds, and lowest and highest in brackets"
    );
    Ok(())
}

fn measure_row(pair: &Pair<'_>, shape: Shape, effort: &Effort) -> Result<String, String> {
    let engine = pair.engine_side(shape, MAX_STEPS)?;
    let (limits, flash) = (engine.config.limits, engine::flash(&engine.config));
    let mut context = pair.bare_side_like(&engine)?;
    let mut time_bare = |n_steps| context.time_steps(&pair.tokens, shape, n_steps);
    // The first steps warm up the caches; the following determine the number of steps per round.
    time_bare(2)?;
    let step = time_bare(MIN_STEPS)?.div_f64(MIN_STEPS as f64);
    let n_fit = limits.n_ctx_slot as usize - shape.n_tokens - HEAD_START - 2;
    let n_steps = (effort.side.div_duration_f64(step) as usize).clamp(MIN_STEPS, MAX_STEPS.min(n_fit));

    let mut rounds = Rounds::default();
    let started = Instant::now();
    for round in 0..effort.max_rounds {
        if round >= effort.min_rounds && started.elapsed().mul_f64((round + 1) as f64 / round as f64) > effort.row {
            break;
        }
        let [bare, greedy, sampled] = if round % 2 == 0 {
            let bare = time_bare(n_steps)?;
            [bare, engine.time_steps(n_steps, Sampling::Greedy)?, engine.time_steps(n_steps, Sampling::Default)?]
        } else {
            // In reverse order, so that a steady drift of the machine favours no side.
            let sampled = engine.time_steps(n_steps, Sampling::Default)?;
            let greedy = engine.time_steps(n_steps, Sampling::Greedy)?;
            [time_bare(n_steps)?, greedy, sampled]
        };
        let per_step = |elapsed: Duration| elapsed.as_secs_f64() / n_steps as f64;
        rounds.bare.push(per_step(bare));
        rounds.greedy.push(per_step(greedy));
        rounds.sampled.push(per_step(sampled));
    }

    let speed = |times: &[f64]| {
        let step = Spread::of(times).median;
        format!("{:>11.3} {:>9.1}", step * 1e3, shape.n_sequences as f64 / step)
    };
    // In milliseconds: the overhead does not grow with the decode.
    let beyond = |times: &[f64]| {
        let beyond: Vec<f64> = rounds.bare.iter().zip(times).map(|(bare, engine)| (engine - bare) * 1e3).collect();
        Spread::of(&beyond).show(3)
    };
    Ok(format!(
        "  {:>8} × {:<6}  {flash:<5} {n_steps:>5} {:>6} │{}│{} {:<22} │{} {}",
        shape.n_sequences,
        shape.n_tokens,
        rounds.bare.len(),
        speed(&rounds.bare),
        speed(&rounds.greedy),
        beyond(&rounds.greedy),
        speed(&rounds.sampled),
        beyond(&rounds.sampled),
    ))
}
