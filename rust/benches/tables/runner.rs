//! A side with its cells, ready to run steps.

use std::time::{Duration, Instant};

use crate::support::bare::BareContext;
use crate::support::engine::{EngineSide, Sampling};
use crate::support::pair::Pair;
use crate::support::shape::Shape;
use crate::support::sides::Side;

/// Maximum number of consecutive steps; cells are reserved for them.
pub(crate) const MAX_STEPS: usize = 32;

/// Target duration of one side's steps in one round.
pub(crate) const SIDE: Duration = Duration::from_millis(120);

/// A first step of at least this duration counts as measured: warm-up effects are then negligible.
const LONG_STEP: Duration = Duration::from_millis(700);

/// Duration of the estimation of a step's time.
const TRIAL: Duration = Duration::from_millis(30);

/// A side in one row.
pub(crate) struct Runner<'a> {
    pair: &'a Pair<'a>,
    shape: Shape,
    steps: Steps<'a>,
}

/// The implementation that runs the steps.
enum Steps<'a> {
    Bare(BareContext<'a>),
    Engine(Box<EngineSide>),
}

impl<'a> Runner<'a> {
    /// Assigns cells to each sequence.
    ///
    /// # Errors
    /// A message, if the side fails.
    pub(crate) fn new(pair: &'a Pair<'a>, side: Side, shape: Shape) -> Result<Self, String> {
        let steps = match side {
            Side::Bare(bare) => Steps::Bare(pair.bare_side(bare, shape, MAX_STEPS + 1, shape.n_sequences)?),
            Side::Engine => Steps::Engine(Box::new(pair.engine_side(shape, MAX_STEPS)?)),
        };
        Ok(Self { pair, shape, steps })
    }

    /// Returns the seconds of a step, over rounds of `n_steps` until the target duration: the cells suffice for only a few
    /// short steps per round.
    ///
    /// # Errors
    /// A message, if the side fails.
    pub(crate) fn time(&mut self, n_steps: usize) -> Result<f64, String> {
        let (mut took, mut n_timed, started) = (Duration::ZERO, 0, Instant::now());
        while n_timed == 0 || started.elapsed() < SIDE {
            took += self.take(n_steps)?;
            n_timed += n_steps;
        }
        Ok(took.as_secs_f64() / n_timed as f64)
    }

    /// Estimates the time of a step in seconds: the first one, which includes warm-up and graph construction, if it is long,
    /// else the minimum of some following ones.
    ///
    /// # Errors
    /// A message, if the side fails.
    pub(crate) fn estimate(&mut self) -> Result<f64, String> {
        let mut shortest = self.take(1)?;
        if shortest < LONG_STEP {
            let started = Instant::now();
            shortest = self.take(1)?;
            while started.elapsed() < TRIAL {
                shortest = shortest.min(self.take(1)?);
            }
        }
        Ok(shortest.as_secs_f64())
    }

    fn take(&mut self, n_steps: usize) -> Result<Duration, String> {
        match &mut self.steps {
            Steps::Bare(context) => context.time_steps(&self.pair.tokens, self.shape, n_steps),
            Steps::Engine(engine) => engine.time_steps(n_steps, Sampling::Default),
        }
    }
}
