//! The steps between a row of logits and the draw, in order, without steps that have no effect.

use std::sync::Arc;

use crate::request::{SamplerKind, SamplingParams, Token};
use crate::sampling::candidates::Candidates;
use crate::sampling::filters;
use crate::sampling::filters::infill::infill;
use crate::sampling::filters::tail_free::tail_free;
use crate::sampling::filters::temperature::{self, Dynamic};
use crate::sampling::filters::top_n_sigma::{take_top_n_sigma, top_n_sigma};
use crate::sampling::filters::typical::typical;
use crate::sampling::filters::xtc::{MAX_THRESHOLD, Xtc};
use crate::sampling::patches::Patches;
use crate::sampling::penalties::history::{History, Penalty};
use crate::sampling::row::Row;
use crate::sampling::token_strings::TokenStrings;

/// A step that has an effect.
#[derive(Debug, Clone)]
enum Step {
    Penalize(Penalty),
    TopNSigma(f32),
    TopK(usize),
    TailFree(f32),
    Typical(f32),
    TopP(f32),
    MinP(f32),
    Xtc(Box<Xtc>),
    Temperature(f32),
    DynamicTemperature(Dynamic),
    Infill,
}

/// The steps and the history that they need. Biases are applied before all steps.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    patches: Patches,
    /// Penalties at the start of the chain: applied as patches, so that the row need not be copied.
    first_penalties: Vec<Penalty>,
    steps: Vec<Step>,
    /// True if the steps always leave exactly the most likely token of the patched row.
    is_greedy: bool,
    min_keep: usize,
    history: History,
    token_strings: TokenStrings,
}

impl Chain {
    /// Creates the chain of these kinds, without steps that have no effect. `n_ctx` is the window that −1 means.
    pub(crate) fn new(
        kinds: &[SamplerKind],
        params: &SamplingParams,
        seed: u32,
        token_strings: &TokenStrings,
        n_ctx: u32,
    ) -> Self {
        let history = History::new(params, kinds, token_strings, n_ctx);
        let all = kinds.iter().filter_map(|&kind| Step::new(kind, params, seed));
        let mut steps: Vec<Step> =
            all.filter(|step| !matches!(step, Step::Penalize(penalty) if !history.has(*penalty))).collect();
        let penalties = steps.iter().map_while(|step| if let Step::Penalize(penalty) = step { Some(*penalty) } else { None });
        let first_penalties: Vec<Penalty> = penalties.collect();
        steps.drain(..first_penalties.len());
        // A temperature preserves the order, and fewer logits are divided if top-k comes first.
        if matches!(steps[..], [Step::Temperature(_), Step::TopK(_), ..]) {
            steps.swap(0, 1);
        }
        let greedy_at = steps.iter().position(|step| matches!(step, Step::Temperature(temperature) if *temperature <= 0.0));
        Self {
            patches: Patches::new(params, token_strings.end_tokens()),
            first_penalties,
            is_greedy: greedy_at.is_some_and(|at| steps[..at].iter().all(Step::keeps_best)),
            steps,
            min_keep: params.min_keep as usize,
            history,
            token_strings: token_strings.clone(),
        }
    }

    pub(crate) fn accept_prompt(&mut self, prompt: &Arc<[Token]>) {
        self.history.accept_prompt(prompt);
    }

    /// Returns a copy for another branch, whose random steps are seeded with `seed`.
    pub(crate) fn branch(&self, seed: u32) -> Self {
        let mut branch = self.clone();
        for step in &mut branch.steps {
            if let Step::Xtc(xtc) = step {
                xtc.reseed(seed);
            }
        }
        branch
    }

    pub(crate) fn accept(&mut self, token: Token) {
        self.history.accept(token);
    }

    /// Fills `candidates` with the tokens of a row of logits, one per token id, that the steps leave.
    pub(crate) fn apply(&mut self, logits: &[f32], candidates: &mut Candidates) {
        let Self { patches, first_penalties, steps, min_keep, history, token_strings, .. } = self;
        patches.begin(logits);
        for &penalty in first_penalties.iter() {
            history.patch(penalty, logits, patches);
        }
        if self.is_greedy {
            candidates.keep_best(patches.row(logits), 1);
            return patches.end();
        }
        let n_done = take_from_row(patches.row(logits), steps, *min_keep, candidates);
        patches.end();
        for step in &mut steps[n_done..] {
            match step {
                Step::Penalize(penalty) => history.penalize(*penalty, candidates),
                Step::TopNSigma(n) => top_n_sigma(candidates, *n),
                Step::TopK(k) => filters::top_k(candidates, *k),
                Step::TailFree(z) => tail_free(candidates, *z, *min_keep),
                Step::Typical(p) => typical(candidates, *p, *min_keep),
                Step::TopP(p) => filters::top_p(candidates, *p, *min_keep),
                Step::MinP(p) => filters::min_p(candidates, *p, *min_keep),
                Step::Xtc(xtc) => xtc.apply(candidates, *min_keep),
                Step::Temperature(temperature) => temperature::fixed(candidates, *temperature),
                Step::DynamicTemperature(dynamic) => dynamic.apply(candidates),
                Step::Infill => infill(candidates, &**token_strings),
            }
        }
    }

    /// Returns the approximate memory in bytes, without the prompt.
    pub(crate) fn n_bytes(&self) -> usize {
        self.history.n_bytes() + self.patches.n_bytes()
    }

    /// Returns the number of tokens, counts and biases that a branch would copy.
    #[cfg(test)]
    pub(crate) fn n_copied(&self) -> usize {
        self.history.n_copied() + self.patches.n_copied()
    }
}

/// Selects the candidates that the first steps would leave directly from the row, which avoids copying it where possible.
/// Returns the number of steps that are thereby done.
fn take_from_row(row: Row<'_>, steps: &[Step], min_keep: usize, candidates: &mut Candidates) -> usize {
    match *steps {
        [Step::TopK(k), ..] => candidates.keep_best(row, k),
        [Step::TopNSigma(n), ..] => take_top_n_sigma(candidates, row, n),
        [Step::MinP(p), ..] if min_keep < 2 => candidates.keep_near_best(row, p.ln()),
        // Tokens that min-p drops sort after those it keeps, so top-p needs only their share of the sum.
        [Step::TopP(p), Step::MinP(min_p), ..] if min_keep < 2 => {
            candidates.keep_near_best(row, min_p.ln());
            if let Some(best) = candidates.best() {
                filters::top_p_of(candidates, p, min_keep, row.total_weight(best.logit));
            }
        }
        _ => {
            candidates.keep_all(row);
            return 0;
        }
    }
    1
}

impl Step {
    /// Creates the step of this kind; `None` if it has no effect with these parameters. For penalties, [`History::has`] decides
    /// whether they have an effect.
    fn new(kind: SamplerKind, params: &SamplingParams, seed: u32) -> Option<Self> {
        let p = params;
        match kind {
            SamplerKind::Penalties => Some(Self::Penalize(Penalty::Window)),
            SamplerKind::Dry => Some(Self::Penalize(Penalty::Repetitions)),
            SamplerKind::TopNSigma => (p.top_n_sigma > 0.0).then_some(Self::TopNSigma(p.top_n_sigma)),
            SamplerKind::TopK => usize::try_from(p.top_k).ok().filter(|&k| k > 0).map(Self::TopK),
            SamplerKind::TfsZ => (p.tfs_z < 1.0).then_some(Self::TailFree(p.tfs_z)),
            SamplerKind::TypicalP => (p.typical_p < 1.0).then_some(Self::Typical(p.typical_p)),
            SamplerKind::TopP => (p.top_p < 1.0).then_some(Self::TopP(p.top_p)),
            SamplerKind::MinP => (p.min_p > 0.0).then_some(Self::MinP(p.min_p)),
            SamplerKind::Xtc => {
                let has_effect = p.xtc_probability > 0.0 && p.xtc_threshold <= MAX_THRESHOLD;
                has_effect.then(|| Self::Xtc(Box::new(Xtc::new(p.xtc_probability, p.xtc_threshold, seed))))
            }
            SamplerKind::Temperature if p.dynatemp_range > 0.0 => {
                Some(Self::DynamicTemperature(Dynamic::new(p.temperature, p.dynatemp_range, p.dynatemp_exponent)))
            }
            SamplerKind::Temperature => {
                let is_neutral = p.temperature.to_bits() == 1.0_f32.to_bits();
                (!is_neutral).then_some(Self::Temperature(p.temperature))
            }
            SamplerKind::Infill => Some(Self::Infill),
            // Implemented as a draw, not as a step.
            SamplerKind::AdaptiveP => None,
        }
    }

    /// Returns whether the step keeps the most likely candidate, and keeps it the most likely.
    fn keeps_best(&self) -> bool {
        match self {
            Self::TopNSigma(_)
            | Self::TopK(_)
            | Self::TailFree(_)
            | Self::TopP(_)
            | Self::MinP(_)
            | Self::Temperature(_)
            | Self::DynamicTemperature(_) => true,
            Self::Penalize(_) | Self::Typical(_) | Self::Xtc(_) | Self::Infill => false,
        }
    }
}
