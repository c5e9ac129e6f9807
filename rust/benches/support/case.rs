//! One line of the table: so many branches of a prompt so long, on both sides, in rounds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft::config::{EngineConfig, FlashAttention};
use weft::llama::Model;

use super::bare::{BareContext, BareModel, Threads};
use super::engine::{self, Sampling};

/// Slots of the engine in every case, so that one configuration is measured throughout.
const N_SLOTS: u32 = 32;

/// Most steps of one measurement; cells are set aside for them.
const MAX_STEPS: usize = 256;

/// Fewest steps of one measurement, however slow.
const MIN_STEPS: usize = 8;

/// Cells per sequence beyond its tokens, so that the engine never has to make room in mid-run.
const SPARE_CELLS: usize = 64;

/// How long to measure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Aimed-at time of one side's steps in one round.
    pub(crate) side: Duration,
    /// A case is given up to this long, after its fewest rounds.
    pub(crate) case: Duration,
    /// Fewest rounds of a case.
    pub(crate) min_rounds: usize,
    /// Most rounds of a case.
    pub(crate) max_rounds: usize,
}

/// The model on both sides, and what is the same in all of its cases.
pub(crate) struct Bench {
    /// The engine's copy of the model.
    pub(crate) model: Arc<Model>,
    /// The bare loop's copy.
    pub(crate) bare: BareModel,
    /// Threads of every decode.
    pub(crate) n_threads: u32,
    /// Where the bare loop's threads come from.
    pub(crate) threads: Threads,
    /// On both sides.
    pub(crate) flash_attention: FlashAttention,
    /// How long to measure.
    pub(crate) effort: Effort,
}

/// So many branches of a prompt so long.
#[allow(clippy::struct_field_names, reason = "counts are named so everywhere")]
pub(crate) struct Case {
    /// Branches, each of which gets one row in every decode.
    pub(crate) n_branches: usize,
    /// Length of the prompt that the branches share, in tokens.
    pub(crate) n_shared: usize,
    /// Decodes in one measurement.
    pub(crate) n_steps: usize,
}

/// The times of one step, per round.
#[derive(Default)]
pub(crate) struct Rounds {
    /// The bare loop's.
    pub(crate) bare: Vec<Duration>,
    /// The engine's with greedy sampling.
    pub(crate) greedy: Vec<Duration>,
    /// The engine's with default sampling.
    pub(crate) sampled: Vec<Duration>,
}

impl Bench {
    /// Measures `n_branches` branches of a prompt of `n_shared` tokens, or of as many as leave an eighth of the model's context free.
    ///
    /// # Errors
    /// A message, when either side fails.
    pub(crate) fn measure(&self, n_branches: usize, n_shared: usize) -> Result<(Case, Rounds), String> {
        let n_cells = n_shared + n_branches * (MAX_STEPS + 1 + SPARE_CELLS);
        let config = EngineConfig {
            n_slots: Some(N_SLOTS),
            n_ctx: Some(u32::try_from(n_cells.next_multiple_of(256)).expect("the bench needs few cells")),
            kv_unified: Some(true),
            n_threads: Some(self.n_threads),
            n_threads_batch: Some(self.n_threads),
            flash_attention: self.flash_attention,
            ..EngineConfig::default()
        };
        let facts = self.model.facts(config.type_k, config.type_v);
        // The pool's size is given, so that free memory does not matter.
        let limits = config.settle(&facts, u64::MAX, u64::MAX).map_err(|error| error.to_string())?;
        let n_ctx = limits.n_ctx_slot as usize;
        let tokens = self.tokens();
        let prompt = &tokens[..n_shared.min(n_ctx / 8 * 7)];
        let mut context = BareContext::new(&self.bare, &config, &limits, self.threads)?;
        context.share_prompt(prompt, n_branches)?;
        let mut time_bare = |n_steps| context.time_steps(&tokens, prompt.len(), n_branches, n_steps);

        // The first steps also warm the caches up; those that follow say how many steps fill the time.
        time_bare(MIN_STEPS / 2)?;
        let step = time_bare(MIN_STEPS)?.div_f64(MIN_STEPS as f64);
        let n_wanted = (self.effort.side.as_secs_f64() / step.as_secs_f64()) as usize;
        // The last token that the engine draws is not decoded any more; one cell stays free beside it.
        let n_steps = n_wanted.clamp(MIN_STEPS, MAX_STEPS.min(n_ctx - prompt.len() - 2));

        let time_engine = |sampling| engine::time_steps(&self.model, &config, (prompt, n_branches, n_steps), sampling);
        let mut rounds = Rounds::default();
        let started = Instant::now();
        for round in 0..self.effort.max_rounds {
            if round >= self.effort.min_rounds && started.elapsed() > self.effort.case {
                break;
            }
            let [bare, greedy, sampled] = if round % 2 == 0 {
                let bare = time_bare(n_steps)?;
                [bare, time_engine(Sampling::Greedy)?, time_engine(Sampling::Default)?]
            } else {
                // The other way around, so that a steady drift of the machine favours no side.
                let sampled = time_engine(Sampling::Default)?;
                let greedy = time_engine(Sampling::Greedy)?;
                [time_bare(n_steps)?, greedy, sampled]
            };
            let per_step = |elapsed: Duration| elapsed.div_f64(n_steps as f64);
            rounds.bare.push(per_step(bare));
            rounds.greedy.push(per_step(greedy));
            rounds.sampled.push(per_step(sampled));
        }
        Ok((Case { n_branches, n_shared: prompt.len(), n_steps }, rounds))
    }

    /// As many tokens as prompts and steps use, the same ones in every run; none of them is special.
    fn tokens(&self) -> Vec<i32> {
        // In the vocabularies measured here, the special and the byte pieces come first.
        let n_first = 300;
        let n_usual = self.bare.n_vocab().saturating_sub(n_first).max(1);
        let id = |index: u32| (n_first + index.wrapping_mul(2_654_435_761) % n_usual).cast_signed();
        (0..4_096).map(id).collect()
    }
}

impl Case {
    /// The line of the table.
    #[must_use]
    pub(crate) fn line(&self, rounds: &Rounds) -> String {
        let speed = |times: &[Duration]| {
            let step = median(times.iter().map(Duration::as_secs_f64));
            format!("{:>8.3}  {:>9.1}", step * 1e3, self.n_branches as f64 / step)
        };
        let ratio = |times: &[Duration]| {
            let mut ratios: Vec<_> = rounds.bare.iter().zip(times).map(|(bare, engine)| bare.div_duration_f64(*engine)).collect();
            ratios.sort_by(f64::total_cmp);
            let (lowest, highest) = (ratios[0], ratios[ratios.len() - 1]);
            format!("{:.3} ({lowest:.2}–{highest:.2})", median(ratios.into_iter()))
        };
        format!(
            "  {:>8}  {:>6}  {:>5}  {:>6} │ {} │ {}  {} │ {}  {}",
            self.n_branches,
            self.n_shared,
            self.n_steps,
            rounds.bare.len(),
            speed(&rounds.bare),
            speed(&rounds.greedy),
            ratio(&rounds.greedy),
            speed(&rounds.sampled),
            ratio(&rounds.sampled),
        )
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 0 { f64::midpoint(values[middle - 1], values[middle]) } else { values[middle] }
}
