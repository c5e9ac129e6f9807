//! The steps between a row of logits and the draw, in order, without steps that have no effect.

use std::sync::Arc;

use crate::request::{SamplerKind, SamplingParams, Token};
use crate::sampling::filters::temperature::{self, DynamicTemperature};
use crate::sampling::filters::top_n_sigma::{take_top_n_sigma, top_n_sigma};
use crate::sampling::filters::xtc::{MAX_THRESHOLD, Xtc};
use crate::sampling::filters::{infill::infill, tail_free::tail_free, typical::typical};
use crate::sampling::penalties::{Penalties, Penalty};
use crate::sampling::{
    candidates::Candidates, filters, patches::Patches, penalties::dry::Repetitions, row::Row, token_strings::TokenStrings,
};

#[derive(Debug, Clone)]
enum ChainStep {
    Penalize(Box<dyn Penalty>),
    TopNSigma(f32),
    TopK(usize),
    TailFree(f32),
    Typical(f32),
    TopP(f32),
    MinP(f32),
    Xtc(Box<Xtc>),
    Temperature(f32),
    DynamicTemperature(DynamicTemperature),
    Infill,
}

#[derive(Debug, Clone)]
pub(crate) struct Chain {
    patches: Patches,
    steps: Vec<ChainStep>,
    /// Number of penalties at the start, applied as patches: the row need not be copied.
    n_patching: usize,
    /// True if the steps always leave exactly the most likely token of the patched row.
    is_greedy: bool,
    min_keep: usize,
    token_strings: TokenStrings,
}

impl Chain {
    /// `n_ctx` is the window that −1 means.
    pub(crate) fn new(
        kinds: &[SamplerKind],
        params: &SamplingParams,
        seed: u32,
        token_strings: &TokenStrings,
        n_ctx: u32,
    ) -> Self {
        let steps = kinds.iter().filter_map(|&kind| ChainStep::new(kind, params, seed, token_strings, n_ctx));
        let mut steps: Vec<ChainStep> = steps.collect();
        let n_patching = steps.iter().take_while(|step| matches!(step, ChainStep::Penalize(_))).count();
        let filters = &mut steps[n_patching..];
        // A temperature preserves the order, and fewer logits are divided if top-k comes first.
        if matches!(filters, [ChainStep::Temperature(_), ChainStep::TopK(_), ..]) {
            filters.swap(0, 1);
        }
        let greedy_at =
            filters.iter().position(|step| matches!(step, ChainStep::Temperature(temperature) if *temperature <= 0.0));
        Self {
            patches: Patches::new(params, token_strings.end_tokens()),
            is_greedy: greedy_at.is_some_and(|index| filters[..index].iter().all(ChainStep::keeps_best)),
            steps,
            n_patching,
            min_keep: params.min_keep as usize,
            token_strings: token_strings.clone(),
        }
    }

    pub(crate) fn accept_prompt(&mut self, prompt: &Arc<[Token]>) {
        self.penalties_mut().for_each(|penalty| penalty.begin(prompt));
    }

    pub(crate) fn branch(&self, seed: u32) -> Self {
        let mut branch = self.clone();
        for step in &mut branch.steps {
            if let ChainStep::Xtc(xtc) = step {
                xtc.reseed(seed);
            }
        }
        branch
    }

    pub(crate) fn accept(&mut self, token: Token) {
        self.penalties_mut().for_each(|penalty| penalty.accept(token));
    }

    fn penalties(&self) -> impl Iterator<Item = &dyn Penalty> {
        self.steps.iter().filter_map(|step| if let ChainStep::Penalize(penalty) = step { Some(&**penalty) } else { None })
    }

    fn penalties_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Penalty>> {
        self.steps.iter_mut().filter_map(|step| if let ChainStep::Penalize(penalty) = step { Some(penalty) } else { None })
    }

    pub(crate) fn apply(&mut self, logits: &[f32], candidates: &mut Candidates) {
        let Self { patches, steps, n_patching, is_greedy, min_keep, token_strings } = self;
        patches.begin(logits);
        let (patching, steps) = steps.split_at_mut(*n_patching);
        for step in patching {
            if let ChainStep::Penalize(penalty) = step {
                penalty.patch(logits, patches);
            }
        }
        if *is_greedy {
            candidates.keep_best(patches.row(logits), 1);
            return patches.end();
        }
        let n_done = take_from_row(patches.row(logits), steps, *min_keep, candidates);
        patches.end();
        for step in &mut steps[n_done..] {
            match step {
                ChainStep::Penalize(penalty) => penalty.penalize(candidates),
                ChainStep::TopNSigma(n) => top_n_sigma(candidates, *n),
                ChainStep::TopK(k) => filters::top_k(candidates, *k),
                ChainStep::TailFree(z) => tail_free(candidates, *z, *min_keep),
                ChainStep::Typical(p) => typical(candidates, *p, *min_keep),
                ChainStep::TopP(p) => filters::top_p(candidates, *p, *min_keep),
                ChainStep::MinP(p) => filters::min_p(candidates, *p, *min_keep),
                ChainStep::Xtc(xtc) => xtc.apply(candidates, *min_keep),
                ChainStep::Temperature(temperature) => temperature::apply_fixed(candidates, *temperature),
                ChainStep::DynamicTemperature(dynamic) => dynamic.apply(candidates),
                ChainStep::Infill => infill(candidates, &**token_strings),
            }
        }
    }

    pub(crate) fn n_bytes(&self) -> usize {
        self.patches.n_bytes() + self.penalties().map(Penalty::n_bytes).sum::<usize>()
    }

    /// Number of tokens, counts and biases that a branch would copy.
    #[cfg(test)]
    pub(crate) fn n_copied(&self) -> usize {
        self.patches.n_copied() + self.penalties().map(Penalty::n_copied).sum::<usize>()
    }
}

/// Selects what the first steps leave directly from the row; returns the number of steps done.
fn take_from_row(row: Row<'_>, steps: &[ChainStep], min_keep: usize, candidates: &mut Candidates) -> usize {
    match *steps {
        [ChainStep::TopK(k), ..] => candidates.keep_best(row, k),
        [ChainStep::TopNSigma(n), ..] => take_top_n_sigma(candidates, row, n),
        [ChainStep::MinP(p), ..] if min_keep < 2 => candidates.keep_near_best(row, p.ln()),
        // Tokens that min-p drops sort after those it keeps, so top-p needs only their share of the sum.
        [ChainStep::TopP(p), ChainStep::MinP(min_p), ..] if min_keep < 2 => {
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

impl ChainStep {
    fn new(kind: SamplerKind, p: &SamplingParams, seed: u32, token_strings: &TokenStrings, n_ctx: u32) -> Option<Self> {
        match kind {
            SamplerKind::Penalties => Some(Self::Penalize(Box::new(Penalties::new(p, token_strings.newline(), n_ctx)?))),
            SamplerKind::Dry => Some(Self::Penalize(Box::new(Repetitions::new(&p.dry, token_strings, n_ctx)?))),
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
                Some(Self::DynamicTemperature(DynamicTemperature::new(p.temperature, p.dynatemp_range, p.dynatemp_exponent)))
            }
            SamplerKind::Temperature => {
                let is_neutral = p.temperature.to_bits() == 1.0_f32.to_bits();
                (!is_neutral).then_some(Self::Temperature(p.temperature))
            }
            SamplerKind::Infill => Some(Self::Infill),
            SamplerKind::AdaptiveP => None,
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Dry;
    use crate::sampling::token_strings::tests::Pieces;

    const LOGITS: [f32; 6] = [4.0, -4.0, 3.0, 2.0, 1.0, 0.0];

    fn chain(params: &SamplingParams) -> Chain {
        Chain::new(&SamplerKind::DEFAULT, params, 0, &Pieces::none(&[]), 100)
    }

    /// Returns the changes that the penalty at this index makes to the row, and asserts that it changes candidates equally.
    fn penalised(chain: &mut Chain, index: usize) -> Vec<(Token, f32)> {
        let penalty = chain.penalties_mut().nth(index).unwrap();
        let mut patches = Patches::new(&SamplingParams::default(), &[]);
        patches.begin(&LOGITS);
        let mut candidates = Candidates::default();
        candidates.keep_all(patches.row(&LOGITS));
        penalty.penalize(&mut candidates);
        penalty.patch(&LOGITS, &mut patches);
        let mut patched = Candidates::default();
        patched.keep_all(patches.row(&LOGITS));
        assert_eq!(candidates.list, patched.list);
        let changed = patched.list.iter().filter(|candidate| {
            let before = LOGITS[usize::try_from(candidate.token).unwrap()];
            candidate.logit.to_bits() != before.to_bits()
        });
        changed.map(|candidate| (candidate.token, candidate.logit)).collect()
    }

    #[test]
    fn both_penalties_cover_the_prompt_and_generated_tokens() {
        let dry = Dry { multiplier: 1.0, base: 2.0, allowed_length: 1, ..Dry::default() };
        let mut chain = chain(&SamplingParams { presence_penalty: 1.0, dry, ..SamplingParams::default() });
        chain.accept_prompt(&[0, 1, 2].into());
        chain.accept(0);
        assert_eq!(penalised(&mut chain, 0), [(0, 3.0), (1, -5.0), (2, 2.0)]);
        assert_eq!(penalised(&mut chain, 1), [(1, -5.0)]);
    }

    #[test]
    fn the_penalty_prompt_replaces_the_prompt_for_the_window_only() {
        let dry = Dry { multiplier: 1.0, base: 2.0, allowed_length: 1, ..Dry::default() };
        let penalty_prompt = Some(vec![5]);
        let mut chain = chain(&SamplingParams { presence_penalty: 1.0, dry, penalty_prompt, ..SamplingParams::default() });
        chain.accept_prompt(&[0, 1, 2].into());
        chain.accept(0);
        assert_eq!(penalised(&mut chain, 0), [(0, 3.0), (5, -1.0)]);
        assert_eq!(penalised(&mut chain, 1), [(1, -5.0)]);
    }

    #[test]
    fn penalties_without_effect_are_absent() {
        assert_eq!(chain(&SamplingParams::default()).penalties().count(), 0);
        let params = SamplingParams { presence_penalty: 1.0, ..SamplingParams::default() };
        assert_eq!(chain(&params).penalties().count(), 1);
        assert_eq!(Chain::new(&[SamplerKind::TopK], &params, 0, &Pieces::none(&[]), 100).penalties().count(), 0);
    }
}
