//! The grid: what a step takes, by how many sequences there are, what they hold, and how attention is computed.

use std::time::{Duration, Instant};

use crate::support::bare::{BareContext, Flash};
use crate::support::engine::{EngineSide, HEAD_START, Sampling};
use crate::support::pair::Pair;
use crate::support::roofline::Bound;
use crate::support::shape::{Prompts, Shape};
use crate::support::spread::Spread;

/// An "empty" context: as short as prompts get that are still shared.
const N_EMPTY: usize = 16;

/// Most cells that prompts of their own may take together.
const MAX_OWN_CELLS: usize = 32_000;

/// Most steps of one measurement; cells are set aside for them.
const MAX_STEPS: usize = 64;

/// Fewest steps of one measurement, however slow.
const MIN_STEPS: usize = 2;

/// Steps that are too short to be timed one by one.
const SHORT_STEP: Duration = Duration::from_millis(20);

/// How much is measured, and for how long.
pub(crate) struct Effort {
    /// Sequences of the rows.
    pub(crate) n_sequences: &'static [usize],
    /// Tokens that each has before its first step, but for the empty context.
    pub(crate) n_tokens: &'static [usize],
    /// Fewest and most sequences with cells of their own, and the fewest tokens of theirs.
    pub(crate) own: (usize, usize, usize),
    /// Aimed-at time of the faster setting's steps in one round; the slower may take up to four times as long.
    pub(crate) side: Duration,
    /// A row begins no round after this long; one round is always measured.
    pub(crate) row: Duration,
    /// Most rounds of a row.
    pub(crate) max_rounds: usize,
}

pub(crate) const FULL: Effort = Effort {
    n_sequences: &[1, 4, 8, 32],
    n_tokens: &[250, 1_000, 4_000],
    own: (4, 32, 250),
    side: Duration::from_millis(500),
    row: Duration::from_secs(7),
    max_rounds: 7,
};

pub(crate) const QUICK: Effort = Effort {
    n_sequences: &[1, 8, 32],
    n_tokens: &[1_000],
    own: (8, 8, 1_000),
    side: Duration::from_millis(200),
    row: Duration::from_millis(1_500),
    max_rounds: 3,
};

/// Who took a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    On = 0,
    Off = 1,
    Engine = 2,
}

/// One line of the table.
struct Row {
    shape: Shape,
    n_steps: usize,
    /// Seconds of a step in each round, by side.
    times: [Vec<f64>; 3],
    /// How the engine computes attention.
    flash: Flash,
    bound: Bound,
}

/// Prints the table and what follows from it.
///
/// # Errors
/// A message, when either side fails.
pub(crate) fn measure(pair: &Pair<'_>, effort: &Effort) -> Result<(), String> {
    println!("\n  A step of one row per sequence, with so many tokens before it");
    let title = |title: &str| format!(" {title:<26}");
    let bare = "    ms/step  tokens/s ratio";
    println!(
        "  {:<34} │{} │{} │ {:<33} │ limit",
        "",
        title("bare loop, flash on"),
        title("bare loop, flash off"),
        "engine, default sampling"
    );
    println!(
        "  {:<20} {:>6} {:>6} │{bare} │{bare} │{bare}  flash │ {:>9} {:<6} engine ÷",
        "sequences × tokens", "steps", "rounds", "ms/step", "by"
    );
    let mut rows = Vec::new();
    for shape in shapes(pair, effort) {
        let row = Row::measure(pair, shape, effort)?;
        println!("{}", row.line());
        rows.push(row);
    }
    summarize(&rows);
    Ok(())
}

fn shapes(pair: &Pair<'_>, effort: &Effort) -> Vec<Shape> {
    let lengths = pair.lengths(&[&[N_EMPTY], effort.n_tokens].concat());
    let shape = |n_sequences, n_tokens, prompts| Shape { n_sequences, n_tokens, prompts };
    let shared = effort.n_sequences.iter().flat_map(|&n| lengths.iter().map(move |&tokens| shape(n, tokens, Prompts::Shared)));
    let own = effort.n_sequences.iter().flat_map(|&n| lengths.iter().map(move |&tokens| shape(n, tokens, Prompts::Own)));
    let (fewest, most, shortest) = effort.own;
    let shortest = pair.lengths(&[shortest])[0];
    let own = own.filter(|shape| (fewest..=most).contains(&shape.n_sequences) && shape.n_tokens >= shortest);
    shared.chain(own.filter(|shape| shape.n_cells() <= MAX_OWN_CELLS)).collect()
}

impl Row {
    fn measure(pair: &Pair<'_>, shape: Shape, effort: &Effort) -> Result<Self, String> {
        let engine = pair.engine_side(shape, MAX_STEPS)?;
        let limits = pair.limits(&engine.config)?;
        let flash = engine.flash()?;
        let mut bare = [pair.filled(&limits, Flash::On, shape)?, pair.filled(&limits, Flash::Off, shape)?];
        let mut estimates = [0.0; 2];
        for (context, estimate) in bare.iter_mut().zip(&mut estimates) {
            *estimate = estimate_step(pair, context, shape)?;
        }
        let [fast, slow] = [estimates[0].min(estimates[1]), estimates[0].max(estimates[1])];
        let n_wanted = (effort.side.as_secs_f64() / fast).min(4.0 * effort.side.as_secs_f64() / slow) as usize;
        let n_fit = limits.n_ctx_slot as usize - shape.n_tokens - HEAD_START - 2;
        let n_steps = n_wanted.clamp(MIN_STEPS, MAX_STEPS.min(n_fit));

        let mut times: [Vec<f64>; 3] = Default::default();
        let started = Instant::now();
        for round in 0..effort.max_rounds {
            if round > 0 && started.elapsed().mul_f64((round + 1) as f64 / round as f64) > effort.row {
                break;
            }
            let mut order = [Side::On, Side::Off, Side::Engine];
            if round % 2 == 1 {
                // The other way around, so that a steady drift of the machine favours no side.
                order.reverse();
            }
            for side in order {
                let took = time(pair, &mut bare, &engine, (side, n_steps))?;
                times[side as usize].push(took.as_secs_f64() / n_steps as f64);
            }
        }
        let bound = pair.work.step(pair.machine, shape, n_steps);
        Ok(Self { shape, n_steps, times, flash, bound })
    }

    fn step(&self, side: Side) -> f64 {
        Spread::of(&self.times[side as usize]).median
    }

    fn tokens_per_s(&self, side: Side) -> f64 {
        self.shape.n_sequences as f64 / self.step(side)
    }

    /// The faster of the bare loop's settings.
    fn best(&self) -> Side {
        if self.step(Side::On) < self.step(Side::Off) { Side::On } else { Side::Off }
    }

    /// Speed of a side over that of the best bare one: the median over the rounds, since a machine drifts between them.
    fn ratio(&self, side: Side) -> f64 {
        let best = &self.times[self.best() as usize];
        let ratios: Vec<f64> = best.iter().zip(&self.times[side as usize]).map(|(best, side)| best / side).collect();
        Spread::of(&ratios).median
    }

    fn line(&self) -> String {
        let Self { shape, n_steps, flash, bound, .. } = self;
        let n_rounds = self.times[0].len();
        let show = |side| {
            let (ms, tokens_per_s) = (self.step(side) * 1e3, self.tokens_per_s(side));
            format!("{ms:>11.3} {tokens_per_s:>9.1} {:>5.2}", self.ratio(side))
        };
        let [on, off, engine] = [Side::On, Side::Off, Side::Engine].map(show);
        let by = if bound.is_memory { "memory" } else { "ops" };
        let distance = self.step(Side::Engine) / bound.seconds;
        let limit = format!("{:>9.3} {by:<6} {distance:>8.1}", bound.seconds * 1e3);
        format!("  {:<20} {n_steps:>6} {n_rounds:>6} │{on} │{off} │{engine}  {flash:<5} │ {limit}", shape.to_string())
    }
}

/// A warm context's step, in seconds.
fn estimate_step(pair: &Pair<'_>, context: &mut BareContext<'_>, shape: Shape) -> Result<f64, String> {
    // The first step warms the caches up and makes the graph.
    context.time_steps(&pair.tokens, shape, 1)?;
    let step = context.time_steps(&pair.tokens, shape, 1)?;
    if step > SHORT_STEP {
        return Ok(step.as_secs_f64());
    }
    let n_steps = 8;
    Ok(context.time_steps(&pair.tokens, shape, n_steps)?.as_secs_f64() / n_steps as f64)
}

fn time(
    pair: &Pair<'_>,
    bare: &mut [BareContext<'_>; 2],
    engine: &EngineSide,
    (side, n_steps): (Side, usize),
) -> Result<Duration, String> {
    match side {
        Side::On | Side::Off => bare[side as usize].time_steps(&pair.tokens, engine.shape, n_steps),
        Side::Engine => engine.time_steps(n_steps, Sampling::Default),
    }
}

fn summarize(rows: &[Row]) {
    let worst = |is_meant: fn(&Shape) -> bool| {
        let rows = rows.iter().filter(|row| is_meant(&row.shape));
        rows.map(|row| (row.ratio(Side::Engine), row.shape)).min_by(|(a, _), (b, _)| a.total_cmp(b))
    };
    let show = |worst: Option<(f64, Shape)>| worst.map_or("none".to_owned(), |(ratio, shape)| format!("{ratio:.2} at {shape}"));
    let is_fan_out = |shape: &Shape| shape.prompts == Prompts::Shared && shape.n_sequences > 1;
    println!(
        "\n  the engine over the best bare setting: worst {}; of branches of one prompt {}",
        show(worst(|_| true)),
        show(worst(is_fan_out))
    );
    let settled: Vec<String> = [Side::On, Side::Off]
        .map(|side| {
            let n = rows.iter().filter(|row| row.best() == side).count();
            format!("{} is faster in {n} of {} rows", if side == Side::On { "on" } else { "off" }, rows.len())
        })
        .into();
    println!("  flash attention: {}", settled.join(", "));
    for n_sequences in [32, 8] {
        let is_meant = |row: &&Row| row.shape.n_sequences == n_sequences && is_fan_out(&row.shape) && row.shape.n_tokens <= 1_000;
        let Some(row) = rows.iter().filter(is_meant).max_by_key(|row| row.shape.n_tokens) else { continue };
        let (engine, default) = (row.tokens_per_s(Side::Engine), row.tokens_per_s(Side::On));
        println!(
            "  {}: the engine {engine:.1} tokens/s, llama.cpp's default (flash attention on) {default:.1}: {:.2} times as many",
            row.shape,
            engine / default
        );
    }
}
