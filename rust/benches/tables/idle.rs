//! What idle cells cost those who run: the same streams with and without, by turns.

use super::aims;
use super::runner::Runner;
use crate::support::pair::Pair;
use crate::support::shape::{Prompts, Shape};
use crate::support::sides::Side;
use crate::support::spread::Spread;
use crate::support::turns::{Effort, Times};

/// The streams.
pub(crate) const STREAMS: Shape = Shape { n_sequences: 8, n_tokens: 250, prompts: Prompts::Own, n_idle: 0 };

/// Steps that are taken at once.
const N_STEPS: usize = 8;

/// Prints the speed of each of our sides beside so many idle cells, over its speed without.
///
/// # Errors
/// A message, when a side fails.
pub(crate) fn measure(pair: &Pair<'_>, sides: &[Side], n_idle: &[usize], effort: &Effort) -> Result<(), String> {
    for &side in sides.iter().filter(|side| !side.is_llama_cpp()) {
        let shapes = [0].iter().chain(n_idle).map(|&n_idle| Shape { n_idle, ..STREAMS });
        let mut runners = shapes.map(|shape| Runner::new(pair, side, shape)).collect::<Result<Vec<_>, _>>()?;
        let mut times = Times::new(&vec![side; runners.len()]);
        // What is cold does not count.
        runners.iter_mut().try_for_each(|runner| runner.estimate().map(drop))?;
        times.take(effort, &vec![true; runners.len()], |place| runners[place].time(N_STEPS))?;
        for (place, n_idle) in n_idle.iter().enumerate() {
            let both = times.seconds[0].iter().zip(&times.seconds[place + 1]);
            let ratio = Spread::of(&both.map(|(alone, beside)| alone / beside).collect::<Vec<_>>());
            let (title, verdict) = (side.title(), aims::verdict(ratio.median, aims::BESIDE_IDLE));
            println!(
                "  {:<38} {:>6.2}   {title:<6} {} {verdict}",
                format!("{STREAMS} beside {n_idle} idle ÷ alone"),
                aims::BESIDE_IDLE,
                ratio.show(2)
            );
        }
    }
    Ok(())
}
