//! Speed of prefill, alone and with cells of other sequences in the cache.

use std::time::Duration;

use super::aims::{Cell, Figures};
use super::columns;
use crate::support::bare::BareContext;
use crate::support::engine::EngineSide;
use crate::support::pair::Pair;
use crate::support::shape::{Prompts, Shape};
use crate::support::sides::Side;
use crate::support::turns::{Effort, Times};

/// Rows of one decode, for the limit.
const N_ROWS: u32 = 512;

/// Number of llama.cpp's sides that compute the long prompts.
const N_BEST: usize = 2;

/// Prompts, and their measurement.
pub(crate) struct Extent {
    /// Tokens of the prompts, the short ones first: slower sides of llama.cpp do not compute the long ones.
    pub(crate) n_tokens: &'static [usize],
    /// Cells of other sequences.
    pub(crate) n_idle: &'static [usize],
    pub(crate) effort: Effort,
}

pub(crate) const FULL: Extent =
    Extent { n_tokens: &[512, 2_048], n_idle: &[0, 8_000], effort: Effort { time: Duration::from_secs(12), max_rounds: 3 } };
pub(crate) const PRODUCTS: Extent = Extent { n_tokens: &[512], n_idle: &[0], effort: FULL.effort };
pub(crate) const QUICK: Extent =
    Extent { n_tokens: &[256], n_idle: &[0], effort: Effort { time: Duration::from_secs(2), max_rounds: 3 } };

/// A side, ready to be timed.
enum Runner<'a> {
    Bare(BareContext<'a>),
    Engine(Box<EngineSide>),
}

/// Prints the table, and returns its figures.
///
/// # Errors
/// A message, if a side fails.
pub(crate) fn measure(pair: &Pair<'_>, sides: &[Side], extent: &Extent) -> Result<Vec<Figures>, String> {
    println!("\n{}", columns::head("tokens of a prompt", "tokens per second", sides));
    let lengths = pair.lengths(extent.n_tokens);
    let longest = lengths[lengths.len() - 1];
    let mut all = Vec::new();
    for &n_idle in extent.n_idle {
        // Only idle cells precede the prompt.
        let shape = Shape { n_idle, ..Shape::new(1, 0, Prompts::Own) };
        let mut runners = Vec::new();
        for side in sides {
            runners.push(match *side {
                Side::Bare(bare) => Runner::Bare(pair.bare_side(bare, shape, longest, N_ROWS as usize)?),
                Side::Engine => Runner::Engine(Box::new(pair.prefill_side(&lengths, n_idle)?)),
            });
        }
        let mut is_included = vec![true; sides.len()];
        for &n_tokens in &lengths {
            let mut times = Times::new(sides);
            times.take(&extent.effort, &is_included, |side| {
                let took = match &mut runners[side] {
                    Runner::Bare(context) => {
                        context.remove_from(0, 0);
                        context.time_prefill(&pair.tokens, 0..n_tokens)?
                    }
                    Runner::Engine(engine) => engine.time_prefill(n_tokens)?,
                };
                Ok(took.as_secs_f64())
            })?;
            let mut places: Vec<usize> =
                (0..sides.len()).filter(|side| is_included[*side] && sides[*side].is_llama_cpp()).collect();
            places.sort_by(|a, b| times.median(*a).total_cmp(&times.median(*b)));
            places[N_BEST.min(places.len())..].iter().for_each(|side| is_included[*side] = false);
            let bound = pair.work.prefill(pair.machine, n_tokens, N_ROWS);
            let beside = if n_idle == 0 { String::new() } else { format!(", {}k idle", n_idle / 1_000) };
            let speed = |seconds: f64| n_tokens as f64 / seconds;
            println!("{}", columns::row(&format!("{n_tokens}{beside}"), sides, &times, &bound, speed));
            all.push(Figures::of(Cell::Prefill { n_tokens, n_idle }, sides, &times));
        }
    }
    println!("  –: not among the best {N_BEST} of llama.cpp's with the shorter prompt");
    Ok(all)
}
