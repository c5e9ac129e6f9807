//! The grid: time of a step, by number of sequences and their length.

use std::time::Duration;

use super::aims::{Cell, Figures};
use super::runner::{MAX_STEPS, Runner, SIDE};
use super::{columns, idle};
use crate::support::engine::HEAD_START;
use crate::support::machine;
use crate::support::pair::Pair;
use crate::support::shape::{Prompts, Shape};
use crate::support::sides::Side;
use crate::support::turns::{Effort, Times};

/// Minimum number of steps of a measurement, however slow.
const MIN_STEPS: usize = 2;

/// The cells of all sides may take 1 / `MEMORY_SHARE` of the free memory.
const MEMORY_SHARE: u64 = 2;

/// Rows of the grid, and their measurement.
pub(crate) struct Extent {
    pub(crate) n_sequences: &'static [usize],
    /// Tokens of each sequence before its first step.
    pub(crate) shared_tokens: &'static [usize],
    pub(crate) own_tokens: &'static [usize],
    /// Idle cells in the cache while eight streams run.
    pub(crate) n_idle: &'static [usize],
    pub(crate) effort: Effort,
}

pub(crate) const FULL: Extent = Extent {
    n_sequences: &[1, 2, 4, 8, 32],
    shared_tokens: &[16, 250, 1_000, 4_000],
    own_tokens: &[16, 250, 1_000, 4_000],
    n_idle: &[16_000, 32_000],
    effort: Effort { time: Duration::from_millis(1_500), max_rounds: 5 },
};

/// Rows for a model that only adds a weight format.
pub(crate) const PRODUCTS: Extent =
    Extent { n_sequences: &[1, 2, 8, 32], shared_tokens: &[1_000], own_tokens: &[16, 1_000], n_idle: &[], effort: FULL.effort };

pub(crate) const QUICK: Extent = Extent {
    n_sequences: &[1, 8, 32],
    shared_tokens: &[1_000],
    own_tokens: &[16, 250],
    n_idle: &[],
    effort: Effort { time: Duration::from_secs(1), max_rounds: 3 },
};

/// Prints the selected rows, and returns their figures.
///
/// # Errors
/// A message, if a side fails.
pub(crate) fn measure(
    pair: &Pair<'_>,
    sides: &[Side],
    extent: &Extent,
    is_wanted: impl Fn(&Shape) -> bool,
) -> Result<Vec<Figures>, String> {
    println!("{}", columns::head("sequences × tokens", "ms per step", sides));
    let mut all = Vec::new();
    for shape in shapes(pair, extent).into_iter().filter(is_wanted) {
        let n_bytes = pair.cell_bytes() * (shape.n_sequences * shape.n_tokens + shape.n_idle) as u64 * sides.len() as u64;
        if machine::free_bytes().is_some_and(|free| n_bytes > free / MEMORY_SHARE) {
            println!("  {shape:<24}  left out: its cells would take {} MB", n_bytes >> 20);
            continue;
        }
        let (times, n_steps) = time_row(pair, sides, shape, &extent.effort)?;
        let bound = pair.work.step(pair.machine, shape, n_steps);
        println!("{}", columns::row(&shape.to_string(), sides, &times, &bound, |seconds| seconds * 1e3));
        all.push(Figures::of(Cell::Step(shape), sides, &times));
    }
    Ok(all)
}

fn shapes(pair: &Pair<'_>, extent: &Extent) -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (prompts, tokens) in [(Prompts::Shared, extent.shared_tokens), (Prompts::Own, extent.own_tokens)] {
        // One sequence has nothing to share.
        let is_other = |n: &&usize| prompts == Prompts::Shared || **n > 1 || !extent.shared_tokens.contains(&tokens[0]);
        for &n_sequences in extent.n_sequences.iter().filter(is_other) {
            shapes.extend(pair.lengths(tokens).into_iter().map(|n_tokens| Shape::new(n_sequences, n_tokens, prompts)));
        }
    }
    if !extent.n_idle.is_empty() && !shapes.contains(&idle::STREAMS) {
        shapes.push(idle::STREAMS);
    }
    shapes.extend(extent.n_idle.iter().map(|&n_idle| Shape { n_idle, ..idle::STREAMS }));
    shapes
}

/// Returns the time of a step on each side, and the number of consecutive steps.
fn time_row(pair: &Pair<'_>, sides: &[Side], shape: Shape, effort: &Effort) -> Result<(Times, usize), String> {
    let (mut times, mut trials) = (Times::new(sides), Times::new(sides));
    let mut runners = Vec::new();
    for (place, side) in sides.iter().enumerate() {
        let mut runner = Runner::new(pair, *side, shape)?;
        let mut is_excluded = false;
        if side.is_llama_cpp() {
            let step = runner.estimate()?;
            trials.seconds[place].push(step);
            is_excluded = trials.is_far_behind(place, step);
            if is_excluded {
                times.seconds[place].push(step);
            }
        }
        // The memory of an excluded side is free for others.
        runners.push((!is_excluded).then_some(runner));
    }
    let fastest = trials.best().map_or(SIDE.as_secs_f64(), |best| trials.median(best));
    let n_fit = pair.longest() + pair.longest() / 8 - shape.n_tokens - HEAD_START - 2;
    let n_steps = ((SIDE.as_secs_f64() / fastest) as usize).clamp(MIN_STEPS, MAX_STEPS.min(n_fit));
    let is_included: Vec<bool> = runners.iter().map(Option::is_some).collect();
    times.take(effort, &is_included, |side| runners[side].as_mut().ok_or("a side was timed that is out")?.time(n_steps))?;
    Ok((times, n_steps))
}
