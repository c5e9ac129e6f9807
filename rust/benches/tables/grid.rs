//! The grid: what a step takes, by how many sequences there are, what they hold, and how attention is computed.

use std::time::{Duration, Instant};

use weft::config::Tuned;

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

/// How long a step's time is estimated.
const TRIAL: Duration = Duration::from_millis(50);

/// How much is measured, and for how long.
pub(crate) struct Effort {
    /// Sequences of the rows whose prompts are shared.
    pub(crate) shared_sequences: &'static [usize],
    /// Tokens that they have before their first step.
    pub(crate) shared_tokens: &'static [usize],
    /// Sequences of the rows whose prompts are their own; one sequence shares nothing anyway.
    pub(crate) own_sequences: &'static [usize],
    /// Tokens that each has before its first step; a few would make no difference.
    pub(crate) own_tokens: &'static [usize],
    /// Aimed-at time of the faster setting's steps in one round; the slower may take up to four times as long.
    pub(crate) side: Duration,
    /// A row begins no round after this long; one round is always measured.
    pub(crate) row: Duration,
    /// Most rounds of a row.
    pub(crate) max_rounds: usize,
}

pub(crate) const FULL: Effort = Effort {
    shared_sequences: &[1, 4, 8, 32],
    shared_tokens: &[N_EMPTY, 250, 1_000, 4_000],
    own_sequences: &[4, 8, 32],
    own_tokens: &[250, 1_000, 4_000],
    side: Duration::from_millis(500),
    row: Duration::from_secs(7),
    max_rounds: 7,
};

pub(crate) const QUICK: Effort = Effort {
    shared_sequences: &[1, 8, 32],
    shared_tokens: &[N_EMPTY, 1_000],
    own_sequences: &[8],
    own_tokens: &[1_000],
    side: Duration::from_millis(200),
    row: Duration::from_millis(1_500),
    max_rounds: 3,
};

/// Who takes a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// The bare loop.
    Bare(Flash),
    /// The engine as it configures itself by its rule.
    Rule,
    /// The engine as tuning says.
    Tuned,
}

impl Side {
    fn title(self) -> &'static str {
        match self {
            Self::Bare(Flash::On) => "bare loop, flash on",
            Self::Bare(Flash::Off) => "bare loop, flash off",
            Self::Rule => "engine by its rule",
            Self::Tuned => "engine as tuned",
        }
    }
}

/// The bare loops, and the engine by its rule; tuning has a column of its own where it chooses otherwise.
const SIDES: [Side; 4] = [Side::Bare(Flash::On), Side::Bare(Flash::Off), Side::Rule, Side::Tuned];

/// One line of the table.
struct Row {
    shape: Shape,
    n_steps: usize,
    /// Seconds of a step in each round, by place in [`SIDES`].
    times: Vec<Vec<f64>>,
    /// How the engine computes attention, by its rule and as tuned.
    flash: Vec<Flash>,
    bound: Bound,
}

/// Prints the table, as far as `is_wanted`, and what follows from it. `tuned` is what tuning says where the rule says something else.
///
/// # Errors
/// A message, when either side fails.
pub(crate) fn measure(
    pair: &Pair<'_>,
    tuned: Option<Tuned>,
    effort: &Effort,
    is_wanted: impl Fn(&Shape) -> bool,
) -> Result<(), String> {
    let sides = if tuned.is_some() { &SIDES[..] } else { &SIDES[..3] };
    println!("\n  A step of one row per sequence, by the tokens before it; the engine samples with its defaults");
    let is_bare = |side: &Side| matches!(side, Side::Bare(_));
    let titles = sides.iter().map(|side| format!(" {:<1$} │", side.title(), if is_bare(side) { 26 } else { 33 }));
    let columns = sides.iter().map(|side| format!("    ms/step  tokens/s ratio{} │", if is_bare(side) { "" } else { "  flash" }));
    println!("  {:<34} │{} limit", "", titles.collect::<String>());
    let columns = columns.collect::<String>();
    println!("  {:<20} {:>6} {:>6} │{columns} {:>9} {:<6} engine ÷", "sequences × tokens", "steps", "rounds", "ms/step", "by");
    let mut rows = Vec::new();
    for shape in shapes(pair, effort).into_iter().filter(is_wanted) {
        let row = Row::measure(pair, shape, tuned, effort)?;
        println!("{}", row.line());
        rows.push(row);
    }
    summarize(&rows, sides);
    Ok(())
}

fn shapes(pair: &Pair<'_>, effort: &Effort) -> Vec<Shape> {
    let of = |prompts, n_sequences: &[usize], n_tokens: &[usize]| {
        let lengths = pair.lengths(n_tokens);
        let shape = |n_sequences, n_tokens| Shape { n_sequences, n_tokens, prompts };
        n_sequences.iter().flat_map(|&n| lengths.iter().map(move |&n_tokens| shape(n, n_tokens))).collect::<Vec<_>>()
    };
    let mut shapes = of(Prompts::Shared, effort.shared_sequences, effort.shared_tokens);
    let own = of(Prompts::Own, effort.own_sequences, effort.own_tokens);
    shapes.extend(own.into_iter().filter(|shape| shape.n_cells() <= MAX_OWN_CELLS));
    shapes
}

impl Row {
    fn measure(pair: &Pair<'_>, shape: Shape, tuned: Option<Tuned>, effort: &Effort) -> Result<Self, String> {
        let mut engines = vec![pair.engine_side(shape, MAX_STEPS, None)?];
        if tuned.is_some() {
            engines.push(pair.engine_side(shape, MAX_STEPS, tuned)?);
        }
        let limits = engines[0].settled.limits;
        let mut bare = [pair.filled(&limits, Flash::On, shape)?, pair.filled(&limits, Flash::Off, shape)?];
        let mut estimates = [0.0; 2];
        for (context, estimate) in bare.iter_mut().zip(&mut estimates) {
            *estimate = estimate_step(pair, context, shape)?;
        }
        let [fast, slow] = [estimates[0].min(estimates[1]), estimates[0].max(estimates[1])];
        let n_wanted = (effort.side.as_secs_f64() / fast).min(4.0 * effort.side.as_secs_f64() / slow) as usize;
        let n_fit = limits.n_ctx_slot as usize - shape.n_tokens - HEAD_START - 2;
        let n_steps = n_wanted.clamp(MIN_STEPS, MAX_STEPS.min(n_fit));

        let n_sides = bare.len() + engines.len();
        let mut times = vec![Vec::new(); n_sides];
        let started = Instant::now();
        for round in 0..effort.max_rounds {
            if round > 0 && started.elapsed().mul_f64((round + 1) as f64 / round as f64) > effort.row {
                break;
            }
            let mut order: Vec<usize> = (0..n_sides).collect();
            if round % 2 == 1 {
                // The other way around, so that a steady drift of the machine favours no side.
                order.reverse();
            }
            for side in order {
                let took = match side.checked_sub(bare.len()) {
                    None => bare[side].time_steps(&pair.tokens, shape, n_steps)?,
                    Some(engine) => engines[engine].time_steps(n_steps, Sampling::Default)?,
                };
                times[side].push(took.as_secs_f64() / n_steps as f64);
            }
        }
        let flash = engines.iter().map(EngineSide::flash).collect();
        Ok(Self { shape, n_steps, times, flash, bound: pair.work.step(pair.machine, shape, n_steps) })
    }

    fn step(&self, side: usize) -> f64 {
        Spread::of(&self.times[side]).median
    }

    fn tokens_per_s(&self, side: usize) -> f64 {
        self.shape.n_sequences as f64 / self.step(side)
    }

    /// The faster of the bare loops.
    fn best(&self) -> usize {
        usize::from(self.step(1) < self.step(0))
    }

    /// Speed of a side over that of the best bare one: the median over the rounds, since a machine drifts between them.
    fn ratio(&self, side: usize) -> f64 {
        let best = &self.times[self.best()];
        let ratios: Vec<f64> = best.iter().zip(&self.times[side]).map(|(best, side)| best / side).collect();
        Spread::of(&ratios).median
    }

    fn line(&self) -> String {
        let Self { shape, n_steps, times, flash, bound } = self;
        let column = |side: usize| {
            let (ms, tokens_per_s) = (self.step(side) * 1e3, self.tokens_per_s(side));
            let flash = side.checked_sub(2).map_or(String::new(), |engine| format!("  {:<5}", flash[engine]));
            format!(" {ms:>10.3} {tokens_per_s:>9.1} {:>5.2}{flash} │", self.ratio(side))
        };
        let columns: String = (0..times.len()).map(column).collect();
        let by = if bound.is_memory { "memory" } else { "ops" };
        let (limit_ms, distance) = (bound.seconds * 1e3, self.step(2) / bound.seconds);
        let n_rounds = times[0].len();
        format!("  {:<20} {n_steps:>6} {n_rounds:>6} │{columns} {limit_ms:>9.3} {by:<6} {distance:>8.1}", shape.to_string())
    }
}

/// A warm context's step, in seconds: the shortest of several, where there is time for several.
fn estimate_step(pair: &Pair<'_>, context: &mut BareContext<'_>, shape: Shape) -> Result<f64, String> {
    // The first step warms the caches up and makes the graph.
    context.time_steps(&pair.tokens, shape, 1)?;
    let started = Instant::now();
    let mut shortest = context.time_steps(&pair.tokens, shape, 1)?;
    while started.elapsed() < TRIAL {
        shortest = shortest.min(context.time_steps(&pair.tokens, shape, 1)?);
    }
    Ok(shortest.as_secs_f64())
}

fn summarize(rows: &[Row], sides: &[Side]) {
    let is_fan_out = |row: &&Row| row.shape.prompts == Prompts::Shared && row.shape.n_sequences > 1;
    println!();
    for (place, side) in sides.iter().enumerate().skip(2) {
        let worst = |rows: Vec<&Row>| {
            let ratios = rows.into_iter().map(|row| (row.ratio(place), row.shape));
            let worst = ratios.min_by(|(a, _), (b, _)| a.total_cmp(b));
            worst.map_or("none".to_owned(), |(ratio, shape)| format!("{ratio:.2} at {shape}"))
        };
        let (of_all, of_fan_out) = (worst(rows.iter().collect()), worst(rows.iter().filter(is_fan_out).collect()));
        println!("  {} over the faster bare loop: worst {of_all}; of branches of one prompt {of_fan_out}", side.title());
    }
    let n_on = rows.iter().filter(|row| row.best() == 0).count();
    println!("  the faster bare loop has flash attention on in {n_on} of {} rows", rows.len());
    for n_sequences in [32, 8] {
        let is_meant = |row: &&Row| is_fan_out(row) && row.shape.n_sequences == n_sequences && row.shape.n_tokens <= 1_000;
        let Some(row) = rows.iter().filter(is_meant).max_by_key(|row| row.shape.n_tokens) else { continue };
        let (engine, default, times) = (row.tokens_per_s(2), row.tokens_per_s(0), row.step(0) / row.step(2));
        println!(
            "  {}: the engine {engine:.1} tokens/s, llama.cpp's default (flash attention on) {default:.1}: {times:.2} times as many",
            row.shape
        );
    }
}
