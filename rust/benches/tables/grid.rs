//! The grid: what a step takes, by how many sequences there are, and what they hold.

use std::time::{Duration, Instant};

use super::aims::{Cell, Figures};
use super::columns;
use crate::support::bare::BareContext;
use crate::support::engine::{EngineSide, HEAD_START, Sampling};
use crate::support::machine;
use crate::support::pair::Pair;
use crate::support::shape::{Prompts, Shape};
use crate::support::sides::Side;
use crate::support::turns::{Effort, Times};

/// Most steps of one measurement; cells are set aside for them.
const MAX_STEPS: usize = 32;

/// Fewest steps of one measurement, however slow.
const MIN_STEPS: usize = 2;

/// A first step that takes so long counts as measured: what is cold about it does not show.
const LONG_STEP: Duration = Duration::from_millis(700);

/// Aimed-at time of one side's steps in one round.
const SIDE: Duration = Duration::from_millis(120);

/// The part of the free memory that the cells of all sides may take.
const MEMORY_SHARE: u64 = 2;

/// Which rows there are, and how long each is measured.
pub(crate) struct Extent {
    pub(crate) n_sequences: &'static [usize],
    /// Tokens that each has before its first step.
    pub(crate) shared_tokens: &'static [usize],
    pub(crate) own_tokens: &'static [usize],
    /// Cells beside eight streams, of each of which nobody runs.
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

/// Of a model that is there for the format of its weights.
pub(crate) const PRODUCTS: Extent =
    Extent { n_sequences: &[1, 2, 8, 32], shared_tokens: &[1_000], own_tokens: &[16, 1_000], n_idle: &[], effort: FULL.effort };

pub(crate) const QUICK: Extent = Extent {
    n_sequences: &[1, 8, 32],
    shared_tokens: &[1_000],
    own_tokens: &[16, 250],
    n_idle: &[],
    effort: Effort { time: Duration::from_millis(1_000), max_rounds: 3 },
};

/// The streams that idle cells are beside.
const BESIDE_IDLE: Shape = Shape { n_sequences: 8, n_tokens: 250, prompts: Prompts::Own, n_idle: 0 };

/// One side of a row, ready to be timed.
enum Runner<'a> {
    Bare(BareContext<'a>),
    Engine(EngineSide),
    /// Far behind: its memory is free for others.
    GivenUp,
}

/// Prints the rows that are wanted, and returns their figures.
///
/// # Errors
/// A message, when a side fails.
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
        // One sequence shares nothing anyway.
        let is_other = |n: &&usize| prompts == Prompts::Shared || **n > 1 || !extent.shared_tokens.contains(&tokens[0]);
        for &n_sequences in extent.n_sequences.iter().filter(is_other) {
            shapes.extend(pair.lengths(tokens).into_iter().map(|n_tokens| Shape::new(n_sequences, n_tokens, prompts)));
        }
    }
    if !extent.n_idle.is_empty() && !shapes.contains(&BESIDE_IDLE) {
        shapes.push(BESIDE_IDLE);
    }
    shapes.extend(extent.n_idle.iter().map(|&n_idle| Shape { n_idle, ..BESIDE_IDLE }));
    shapes
}

/// What each side took for a step, and how many steps were timed at once.
fn time_row(pair: &Pair<'_>, sides: &[Side], shape: Shape, effort: &Effort) -> Result<(Times, usize), String> {
    let mut times = Times::new(sides);
    let mut trials = Times::new(sides);
    let mut runners = Vec::new();
    for (place, side) in sides.iter().enumerate() {
        let Side::Bare(bare) = *side else {
            runners.push(Runner::Engine(pair.engine_side(shape, MAX_STEPS)?));
            continue;
        };
        let mut context = pair.bare_side(bare, shape, MAX_STEPS + 1, shape.n_sequences)?;
        let step = first_steps(pair, &mut context, shape)?.as_secs_f64();
        trials.seconds[place].push(step);
        let is_out = trials.is_far_behind(place, step);
        if is_out {
            times.seconds[place].push(step);
        }
        runners.push(if is_out { Runner::GivenUp } else { Runner::Bare(context) });
    }
    let fastest = trials.best().map_or(SIDE.as_secs_f64(), |best| trials.median(best));
    let n_fit = pair.longest() + pair.longest() / 8 - shape.n_tokens - HEAD_START - 2;
    let n_steps = ((SIDE.as_secs_f64() / fastest) as usize).clamp(MIN_STEPS, MAX_STEPS.min(n_fit));
    let are_in: Vec<bool> = runners.iter().map(|runner| !matches!(runner, Runner::GivenUp)).collect();
    times.take(effort, &are_in, |side| {
        let (mut took, mut n_timed, started) = (Duration::ZERO, 0, Instant::now());
        // Where steps are short, as many as there is room for are few.
        while n_timed == 0 || started.elapsed() < SIDE {
            took += match &mut runners[side] {
                Runner::Bare(context) => context.time_steps(&pair.tokens, shape, n_steps)?,
                Runner::Engine(engine) => engine.time_steps(n_steps, Sampling::Default)?,
                Runner::GivenUp => return Err("a side was timed that had been given up".to_owned()),
            };
            n_timed += n_steps;
        }
        Ok(took.as_secs_f64() / n_timed as f64)
    })?;
    Ok((times, n_steps))
}

/// About how long a step takes: the first one, which also warms the caches up and makes the graph, where it is a long one, else the
/// shortest of some that follow.
fn first_steps(pair: &Pair<'_>, context: &mut BareContext<'_>, shape: Shape) -> Result<Duration, String> {
    const TRIAL: Duration = Duration::from_millis(30);
    let first = context.time_steps(&pair.tokens, shape, 1)?;
    if first > LONG_STEP {
        return Ok(first);
    }
    let started = Instant::now();
    let mut shortest = context.time_steps(&pair.tokens, shape, 1)?;
    while started.elapsed() < TRIAL {
        shortest = shortest.min(context.time_steps(&pair.tokens, shape, 1)?);
    }
    Ok(shortest)
}
