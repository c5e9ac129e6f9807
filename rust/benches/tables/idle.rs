//! Cost of idle cells for running streams: the same streams with and without them, alternating.
//!
//! Our attention skips idle cells, but llama.cpp fills a mask with a value per row and cell before every decode. That takes the
//! same time for every model: it is negligible in a step of some milliseconds, and considerable in a shorter one. The engine
//! offloads the cells in time ([`leaving`]); a bare loop cannot, so that for short steps only the cost is reported.

use super::runner::Runner;
use super::{aims, leaving};
use crate::support::pair::Pair;
use crate::support::shape::{Prompts, Shape};
use crate::support::sides::Side;
use crate::support::spread::Spread;
use crate::support::turns::{Effort, Times};

/// The streams.
pub(crate) const STREAMS: Shape = Shape { n_sequences: 8, n_tokens: 250, prompts: Prompts::Own, n_idle: 0 };

/// Number of consecutive steps.
const N_STEPS: usize = 8;

/// Step time in seconds below which the mask is a large part of it.
const SHORT_STEP: f64 = 5e-3;

/// Prints the speed of each of our sides with `n_idle` idle cells, relative to its speed without.
///
/// # Errors
/// A message, if a side fails.
pub(crate) fn measure(pair: &Pair<'_>, sides: &[Side], n_idle: &[usize], effort: &Effort) -> Result<(), String> {
    let mut is_short = false;
    for &side in sides.iter().filter(|side| !side.is_llama_cpp()) {
        let shapes = [0].iter().chain(n_idle).map(|&n_idle| Shape { n_idle, ..STREAMS });
        let mut runners = shapes.map(|shape| Runner::new(pair, side, shape)).collect::<Result<Vec<_>, _>>()?;
        let mut times = Times::new(&vec![side; runners.len()]);
        // Warm-up.
        runners.iter_mut().try_for_each(|runner| runner.estimate().map(drop))?;
        times.take(effort, &vec![true; runners.len()], |place| runners[place].time(N_STEPS))?;
        is_short = times.median(0) < SHORT_STEP;
        for (place, &n_idle) in n_idle.iter().enumerate() {
            let pairs = || times.seconds[0].iter().zip(&times.seconds[place + 1]);
            let ratio = Spread::of(&pairs().map(|(alone, with_idle)| alone / with_idle).collect::<Vec<_>>());
            let n_masked = (STREAMS.n_sequences * n_idle) as f64;
            let ns_per_cell =
                Spread::of(&pairs().map(|(alone, with_idle)| (with_idle - alone) / n_masked * 1e9).collect::<Vec<_>>());
            let title = format!("{STREAMS} beside {n_idle} idle ÷ alone");
            let outcome = if is_short {
                format!("{:>6}   {:<6} {}", "", side.title(), ratio.show(2))
            } else {
                let verdict = aims::verdict(ratio.median, aims::WITH_IDLE);
                format!("{:>6.2}   {:<6} {} {verdict}", aims::WITH_IDLE, side.title(), ratio.show(2))
            };
            println!("  {title:<38} {outcome}, {:.2} ns per row and idle cell", ns_per_cell.median);
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
