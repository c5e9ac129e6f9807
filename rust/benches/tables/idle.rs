//! What idle cells cost those who run: the same streams with and without, by turns.
//!
//! Our attention skips them, but llama.cpp still fills a mask of a number for each row and cell before every decode, and that takes
//! the same time whatever the model: nothing beside a step of some milliseconds, and much beside a shorter one. The engine moves
//! them away in time ([`leaving`]); a bare loop has nowhere to move them to, so that where steps are short only the cost is told.

use super::runner::Runner;
use super::{aims, leaving};
use crate::support::pair::Pair;
use crate::support::shape::{Prompts, Shape};
use crate::support::sides::Side;
use crate::support::spread::Spread;
use crate::support::turns::{Effort, Times};

/// The streams.
pub(crate) const STREAMS: Shape = Shape { n_sequences: 8, n_tokens: 250, prompts: Prompts::Own, n_idle: 0 };

/// Steps that are taken at once.
const N_STEPS: usize = 8;

/// Seconds of a step below which the mask is a large part of it.
const SHORT_STEP: f64 = 5e-3;

/// Prints the speed of each of our sides beside so many idle cells, over its speed without.
///
/// # Errors
/// A message, when a side fails.
pub(crate) fn measure(pair: &Pair<'_>, sides: &[Side], n_idle: &[usize], effort: &Effort) -> Result<(), String> {
    let mut is_short = false;
    for &side in sides.iter().filter(|side| !side.is_llama_cpp()) {
        let shapes = [0].iter().chain(n_idle).map(|&n_idle| Shape { n_idle, ..STREAMS });
        let mut runners = shapes.map(|shape| Runner::new(pair, side, shape)).collect::<Result<Vec<_>, _>>()?;
        let mut times = Times::new(&vec![side; runners.len()]);
        // What is cold does not count.
        runners.iter_mut().try_for_each(|runner| runner.estimate().map(drop))?;
        times.take(effort, &vec![true; runners.len()], |place| runners[place].time(N_STEPS))?;
        is_short = times.median(0) < SHORT_STEP;
        for (place, &n_idle) in n_idle.iter().enumerate() {
            let both = || times.seconds[0].iter().zip(&times.seconds[place + 1]);
            let ratio = Spread::of(&both().map(|(alone, beside)| alone / beside).collect::<Vec<_>>());
            let n_masked = (STREAMS.n_sequences * n_idle) as f64;
            let of_each = Spread::of(&both().map(|(alone, beside)| (beside - alone) / n_masked * 1e9).collect::<Vec<_>>());
            let title = format!("{STREAMS} beside {n_idle} idle ÷ alone");
            let outcome = if is_short {
                format!("{:>6}   {:<6} {}", "", side.title(), ratio.show(2))
            } else {
                let verdict = aims::verdict(ratio.median, aims::BESIDE_IDLE);
                format!("{:>6.2}   {:<6} {} {verdict}", aims::BESIDE_IDLE, side.title(), ratio.show(2))
            };
            println!("  {title:<38} {outcome}, {:.2} ns per row and idle cell", of_each.median);
        }
    }
    if is_short {
        println!(
            "  (llama.cpp's mask: a step is so short that filling it shows. The engine moves them away, a bare loop cannot)"
        );
        leaving::measure(pair, n_idle, effort)?;
    }
    Ok(())
}
