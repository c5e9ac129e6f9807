//! How fast prompts are computed.

use std::time::{Duration, Instant};

use crate::support::bare::{BareContext, Flash};
use crate::support::pair::Pair;
use crate::support::spread::Spread;

/// How much is measured, and for how long.
pub(crate) struct Effort {
    /// Tokens of the prompts, in rising order.
    pub(crate) n_tokens: &'static [usize],
    /// No round begins after this long; one is always measured.
    pub(crate) all: Duration,
    pub(crate) max_rounds: usize,
}

pub(crate) const FULL: Effort = Effort { n_tokens: &[512, 2_048], all: Duration::from_secs(20), max_rounds: 5 };
pub(crate) const QUICK: Effort = Effort { n_tokens: &[256], all: Duration::from_secs(2), max_rounds: 3 };

/// Seconds of one prompt in each round.
#[derive(Default)]
struct Times {
    on: Vec<f64>,
    off: Vec<f64>,
    engine: Vec<f64>,
}

/// Prints the table.
///
/// # Errors
/// A message, when either side fails.
pub(crate) fn measure(pair: &Pair<'_>, effort: &Effort) -> Result<(), String> {
    let lengths = pair.lengths(effort.n_tokens);
    let longest = lengths[lengths.len() - 1];
    let engine = pair.prefill_side(longest)?;
    let limits = engine.settled.limits;
    let mut contexts = [pair.context(&limits, Flash::On)?, pair.context(&limits, Flash::Off)?];
    let mut times: Vec<Times> = lengths.iter().map(|_| Times::default()).collect();
    let started = Instant::now();
    let mut n_rounds = 0;
    while n_rounds < effort.max_rounds {
        if n_rounds > 0 && started.elapsed().mul_f64((n_rounds + 1) as f64 / n_rounds as f64) > effort.all {
            break;
        }
        let [on, off] = &mut contexts;
        let on = time_bare(pair, on, &lengths)?;
        let off = time_bare(pair, off, &lengths)?;
        let engine = engine.time_prefills(&lengths)?;
        for (times, ((on, off), engine)) in times.iter_mut().zip(on.iter().zip(&off).zip(&engine)) {
            times.on.push(on.as_secs_f64());
            times.off.push(off.as_secs_f64());
            times.engine.push(engine.as_secs_f64());
        }
        n_rounds += 1;
    }

    println!("\n  Prefill, tokens/s and the ratio to the faster bare loop");
    println!("  tokens  rounds │ flash on         │ flash off        │ engine           │ limit     by      engine ÷");
    for (times, n_tokens) in times.iter().zip(lengths) {
        let [on, off, engine] = [&times.on, &times.off, &times.engine].map(|times| Spread::of(times).median);
        let show = |seconds: f64| format!("{:>9.1}  {:>5.2}", n_tokens as f64 / seconds, on.min(off) / seconds);
        let bound = pair.work.prefill(pair.machine, n_tokens, limits.n_ubatch as usize);
        let by = if bound.is_memory { "memory" } else { "ops" };
        let limit = format!("{:>9.1} {by:<7} {:>8.1}", n_tokens as f64 / bound.seconds, engine / bound.seconds);
        println!("  {n_tokens:>6}  {n_rounds:>6} │{} │{} │{} │{limit}", show(on), show(off), show(engine));
    }
    Ok(())
}

/// Each length is timed as the longest prompt is computed: the first tokens of a prompt are a prompt too.
fn time_bare(pair: &Pair<'_>, context: &mut BareContext<'_>, lengths: &[usize]) -> Result<Vec<Duration>, String> {
    context.clear();
    let (mut start, mut elapsed) = (0, Duration::ZERO);
    let times = lengths.iter().map(|&end| {
        elapsed += context.time_prefill(&pair.tokens, start..end)?;
        start = end;
        Ok(elapsed)
    });
    times.collect()
}
