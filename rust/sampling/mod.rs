//! Samples one token from one row of logits: pure functions and a generator, independent of the model.
//!
//! Each step computes what llama.cpp's sampler of the same name does, but reads the row once, copies it only if many logits change
//! (a copy for every row takes 1.5 times as long, see `patches`), and sorts only candidates.

pub(crate) mod candidates;
pub(crate) mod chain;
mod constrained;
pub(crate) mod draw;
mod filters;
mod logprobs;
mod order;
mod patches;
mod penalties;
mod reasoning;
mod row;
pub mod threads;
pub(crate) mod token_strings;

pub(crate) use constrained::{AllowedTokens, draw_allowed, next_allowed};
pub use logprobs::logprobs;
pub(crate) use reasoning::ReasoningConstraint;
pub use threads::Threads;
pub use token_strings::{TokenStrings, Vocabulary};

use std::sync::Arc;

use crate::request::{SamplerKind, SamplingParams, Token};
use candidates::Candidates;
use chain::Chain;
use draw::adaptive::AdaptiveState;
use draw::arithmetic::CodePoint;
use draw::draw;
use draw::mirostat::MirostatState;
use draw::rng::Mt19937;

/// Chooses the tokens of one sequence: its parameters, its generator and its token history.
///
/// The order of steps is llama-server's: logit bias, the chain of [`SamplingParams::samplers`], the draw; equal logits, seeds
/// and histories give equal tokens, except that of equal logits the lower token id comes first. NaN counts as −∞. A row without
/// a possible token gives token 0, as llama.cpp's greedy sampler.
#[derive(Debug, Clone)]
pub struct Sampler {
    chain: Chain,
    draw: Draw,
    rng: Mt19937,
    candidates: Candidates,
}

#[derive(Debug, Clone)]
enum Draw {
    ByProbability,
    Adaptive(AdaptiveState),
    Mirostat(MirostatState),
    Arithmetic(CodePoint),
}

impl Sampler {
    /// `n_ctx` is the window, in tokens, that −1 means.
    /// The first lookup of DRY's sequence breakers takes about 1 ms at 152,064 tokens: use [`Sampler::branch`] for the branches of
    /// one request.
    pub fn new(params: &SamplingParams, seed: u32, token_strings: &TokenStrings, n_ctx: u32) -> Self {
        let mirostat = MirostatState::new(params.mirostat, params.mirostat_tau, params.mirostat_eta);
        // Mirostat replaces all steps except the temperature, which is then fixed.
        let plain = mirostat.is_some().then(|| SamplingParams { dynatemp_range: 0.0, ..params.clone() });
        let (kinds, params) = match &plain {
            Some(plain) => (&[SamplerKind::Temperature][..], plain),
            None => (&params.samplers[..], params),
        };
        let is_adaptive = kinds.contains(&SamplerKind::AdaptiveP);
        let draw = match mirostat {
            Some(mirostat) => Draw::Mirostat(mirostat),
            None if is_adaptive => Draw::Adaptive(AdaptiveState::new(params.adaptive_target, params.adaptive_decay)),
            None => Draw::ByProbability,
        };
        let chain = Chain::new(kinds, params, seed, token_strings, n_ctx);
        Self { chain, draw, rng: Mt19937::new(seed), candidates: Candidates::default() }
    }

    /// Returns a sampler with the same history that draws like a new one with `seed`. O(tokens accepted after the prompt).
    #[must_use]
    pub fn branch(&self, seed: u32) -> Self {
        let (chain, draw) = (self.chain.branch(seed), self.draw.clone());
        Self { chain, draw, rng: Mt19937::new(seed), candidates: Candidates::default() }
    }

    /// Returns the approximate size in bytes, including data shared with branches, without the prompt.
    pub(crate) fn n_bytes(&self) -> usize {
        size_of::<Self>() + self.chain.n_bytes()
    }

    /// Draws as branch `nth` of `n`, the first of which is seeded with `seed`.
    pub(crate) fn draw_by_code_point(&mut self, seed: u32, nth: u32, n: u32) {
        self.draw = Draw::Arithmetic(CodePoint::new(seed, nth, n));
        // The first number of the first branch's generator is part of its code point.
        self.rng.uniform();
    }

    pub(crate) fn has_code_point(&self) -> bool {
        matches!(self.draw, Draw::Arithmetic(_))
    }

    /// Adds the prompt to the history, before any other token.
    pub fn accept_prompt(&mut self, prompt: impl Into<Arc<[Token]>>) {
        self.chain.accept_prompt(&prompt.into());
    }

    /// Adds a generated token to the history, and updates the state of the draw.
    pub fn accept(&mut self, token: Token) {
        self.chain.accept(token);
        match &mut self.draw {
            Draw::Adaptive(adaptive) => adaptive.accept(token),
            Draw::Arithmetic(code_point) => code_point.accept(),
            Draw::ByProbability | Draw::Mirostat(_) => {}
        }
    }

    /// Draws one token from a row of logits, one per token id, without accepting it.
    ///
    /// Takes exactly one uniform number from the generator, even without a choice (Mirostat and the adaptive draw then take
    /// none, as in llama.cpp), and one more for each XTC step.
    pub fn sample(&mut self, logits: &[f32]) -> Token {
        let Self { chain, draw: draw_kind, rng, candidates } = self;
        chain.apply(logits, candidates);
        let drawn = match draw_kind {
            Draw::ByProbability => draw(candidates, rng.uniform()),
            Draw::Adaptive(adaptive) => adaptive.draw(candidates, rng),
            Draw::Mirostat(mirostat) => mirostat.draw(candidates, logits.len(), rng),
            Draw::Arithmetic(code_point) => code_point.draw(candidates, rng),
        };
        drawn.map_or(0, |candidate| candidate.token)
    }

    pub(crate) fn distribution(&mut self, logits: &[f32]) -> Vec<(Token, f64)> {
        self.chain.apply(logits, &mut self.candidates);
        self.candidates.distribution()
    }

    /// Returns the logprobs of the last draw, the lower of equals first. Impossible tokens have −∞ and are not listed.
    pub(crate) fn logprobs(&self, token: Token, n: usize) -> (f32, Vec<(Token, f32)>) {
        self.candidates.logprobs(token, n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Dry, Mirostat};
    use crate::sampling::candidates::Candidates;
    use crate::sampling::filters;
    use crate::sampling::patches::Patches;
    use crate::sampling::token_strings::tests::Pieces;

    fn sampler(params: &SamplingParams) -> Sampler {
        Sampler::new(params, 42, &Pieces::none(&[2]), 4_096)
    }

    fn greedy() -> SamplingParams {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// All filters off: every token of the row may be drawn.
    fn unfiltered() -> SamplingParams {
        SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() }
    }

    #[test]
    fn greedy_takes_the_most_likely_token_and_the_lower_of_equals() {
        assert_eq!(sampler(&greedy()).sample(&[1.0, 3.0, 2.0]), 1);
        assert_eq!(sampler(&greedy()).sample(&[1.0, 3.0, 3.0]), 1);
        assert_eq!(sampler(&SamplingParams { temperature: -1.0, ..greedy() }).sample(&[1.0, 3.0, 2.0]), 1);
    }

    #[test]
    fn bias_and_penalties_apply_to_greedy_sampling() {
        let mut biased = sampler(&SamplingParams { logit_bias: vec![(0, 5.0)], ..greedy() });
        assert_eq!(biased.sample(&[1.0, 3.0, 2.0]), 0);
        let mut penalised = sampler(&SamplingParams { repeat_penalty: 2.0, ..greedy() });
        penalised.accept(1);
        assert_eq!(penalised.sample(&[1.0, 3.0, 2.0]), 2);
    }

    #[test]
    fn ignored_end_tokens_are_never_drawn() {
        for params in [greedy(), unfiltered(), SamplingParams::default()] {
            let mut sampler = sampler(&SamplingParams { ignore_eos: true, ..params });
            assert!((0..100).all(|_| sampler.sample(&[0.0, 0.0, 20.0]) != 2));
        }
    }

    #[test]
    fn sampling_does_not_accept() {
        let mut sampler = sampler(&SamplingParams { presence_penalty: 100.0, ..greedy() });
        assert_eq!([sampler.sample(&[1.0, 2.0]), sampler.sample(&[1.0, 2.0])], [1, 1]);
        sampler.accept(1);
        assert_eq!(sampler.sample(&[1.0, 2.0]), 0);
    }

    #[test]
    fn equal_seeds_draw_equal_tokens_and_others_do_not() {
        let row: Vec<f32> = (0..1_000_u16).map(|i| f32::from(i % 17) * 0.1).collect();
        let drawn = |seed: u32| {
            let mut sampler = Sampler::new(&unfiltered(), seed, &Pieces::none(&[]), 0);
            (0..20).map(|_| sampler.sample(&row)).collect::<Vec<Token>>()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }

    #[test]
    fn each_draw_takes_one_uniform_even_without_a_choice() {
        let row = [0.0; 64];
        let (mut with, mut without) = (sampler(&unfiltered()), sampler(&unfiltered()));
        assert_eq!(with.sample(&[7.0]), 0);
        assert_eq!(with.sample(&[f32::NAN]), 0);
        without.sample(&row);
        without.sample(&row);
        assert_eq!(with.sample(&row), without.sample(&row));
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let row = [0.2_f32, 0.5, 0.3].map(f32::ln);
        let mut sampler = sampler(&unfiltered());
        let mut n_drawn = [0.0; 3];
        for _ in 0..30_000 {
            n_drawn[usize::try_from(sampler.sample(&row)).unwrap()] += 1.0 / 30_000.0;
        }
        assert!(
            n_drawn.iter().zip([0.2, 0.5, 0.3]).all(|(&share, expected): (&f64, f64)| (share - expected).abs() < 0.01),
            "{n_drawn:?}"
        );
    }

    #[test]
    fn rows_without_possible_tokens_give_token_0() {
        for params in [greedy(), unfiltered(), SamplingParams::default()] {
            for row in [&[f32::NAN; 50][..], &[f32::NEG_INFINITY; 50], &[]] {
                assert_eq!(sampler(&params).sample(row), 0);
            }
        }
    }

    #[test]
    fn broken_logits_are_never_drawn() {
        for params in [greedy(), unfiltered(), SamplingParams::default()] {
            let mut sampler = sampler(&params);
            assert!((0..100).all(|_| sampler.sample(&[f32::NAN, f32::NEG_INFINITY, 1.0, f32::NAN]) == 2));
        }
    }

    #[test]
    fn an_infinite_logit_has_all_the_probability() {
        for params in
            [greedy(), unfiltered(), SamplingParams::default(), SamplingParams { top_k: 0, ..SamplingParams::default() }]
        {
            let mut sampler = sampler(&params);
            assert!((0..100).all(|_| sampler.sample(&[3.0, f32::INFINITY, 80.0]) == 1));
        }
    }

    #[test]
    fn without_top_k_the_candidates_equal_those_of_all_steps_over_the_whole_row() {
        let mut random = Mt19937::new(17);
        for round in 0..300 {
            let n_vocab = 1 + random.next_u32() as usize % 2_000;
            let n_values = if round % 2 == 0 { 12 } else { 1_000_000 };
            #[expect(clippy::cast_precision_loss, reason = "any number will do")]
            let mut logit = || match random.next_u32() % 40 {
                0 => f32::NEG_INFINITY,
                1 => f32::NAN,
                _ => (random.next_u32() % n_values) as f32 / n_values as f32 * 12.0,
            };
            let row: Vec<f32> = (0..n_vocab).map(|_| logit()).collect();
            let pick = |list: &[f32]| list[round % list.len()];
            let params = SamplingParams {
                top_k: 0,
                top_p: pick(&[0.0, 0.3, 0.8, 0.95, 0.999, 1.0, 1.5]),
                min_p: pick(&[0.0, 0.001, 0.05, 0.5, 1.0, 3.0]),
                presence_penalty: pick(&[0.0, 2.0]),
                temperature: 1.0,
                logit_bias: vec![(0, 3.0), (7, f32::NEG_INFINITY)],
                ..SamplingParams::default()
            };
            let mut sampler = sampler(&params);
            sampler.accept(0);
            let drawn = sampler.sample(&row);
            let mut patches = Patches::new(&params, &[2]);
            patches.begin(&row);
            patches.change(&row, &[(0, params.presence_penalty)], |_, logit, penalty| logit - penalty);
            let mut all = Candidates::default();
            all.keep_all(patches.row(&row));
            filters::top_p(&mut all, params.top_p, 0);
            filters::min_p(&mut all, params.min_p, 0);
            assert_eq!(sampler.candidates.list, all.list, "round {round}, {params:?}");
            let expected = draw(&all, Mt19937::new(42).uniform()).map(|candidate| candidate.token);
            assert_eq!(Some(drawn).filter(|_| !all.list.is_empty()), expected, "round {round}");
        }
    }

    #[test]
    fn a_temperature_that_overflows_is_greedy() {
        let mut sampler = sampler(&SamplingParams { temperature: 1e-39, ..unfiltered() });
        assert!((0..100).all(|_| sampler.sample(&[29.0, 30.0, -5.0]) == 1));
        assert!((0..100).all(|_| sampler.sample(&[-29.0, -28.0]) == 1));
    }

    /// A sampler with these steps. The row's probabilities are 0.5, 0.3 and 0.2.
    fn with_steps(samplers: &[SamplerKind]) -> Sampler {
        let params = SamplingParams { samplers: samplers.to_vec(), temperature: 0.0, top_k: 2, ..unfiltered() };
        sampler(&params)
    }

    #[test]
    fn unlisted_steps_have_no_effect() {
        let row = [0.5_f32, 0.3, 0.2].map(f32::ln);
        let n_distinct = |mut sampler: Sampler| {
            let drawn: std::collections::BTreeSet<Token> = (0..200).map(|_| sampler.sample(&row)).collect();
            drawn.len()
        };
        assert_eq!(n_distinct(with_steps(&[])), 3);
        assert_eq!(n_distinct(with_steps(&[SamplerKind::TopK])), 2);
        assert_eq!(n_distinct(with_steps(&[SamplerKind::TopK, SamplerKind::Temperature])), 1);
    }

    #[test]
    fn the_order_of_steps_matters() {
        let row = [0.5_f32, 0.3, 0.2].map(f32::ln);
        let penalties = SamplingParams { presence_penalty: 9.0, top_k: 1, temperature: 1.0, ..unfiltered() };
        let of = |samplers: &[SamplerKind]| {
            let mut sampler = sampler(&SamplingParams { samplers: samplers.to_vec(), ..penalties.clone() });
            sampler.accept(0);
            sampler.sample(&row)
        };
        assert_eq!(of(&[SamplerKind::Penalties, SamplerKind::TopK]), 1);
        assert_eq!(of(&[SamplerKind::TopK, SamplerKind::Penalties]), 0);
    }

    #[test]
    fn logprobs_cover_the_tokens_that_the_steps_leave() {
        let row = [0.5_f32, 0.2, 0.3].map(f32::ln);
        let mut two = sampler(&SamplingParams { top_k: 2, ..unfiltered() });
        two.sample(&row);
        let (chosen, top) = two.logprobs(2, 5);
        assert!((chosen.exp() - 0.375).abs() < 1e-6, "{chosen}");
        assert_eq!(top.iter().map(|&(token, _)| token).collect::<Vec<_>>(), [0, 2]);
        assert!((top[0].1.exp() - 0.625).abs() < 1e-6);
        assert_eq!(top[1].1.to_bits(), chosen.to_bits());
        assert!(two.logprobs(1, 1).0 < f32::MIN);
        let mut none = sampler(&greedy());
        none.sample(&row);
        assert_eq!(none.logprobs(0, 3), (0.0, vec![(0, 0.0)]));
        none.sample(&[f32::NAN]);
        assert_eq!(none.logprobs(0, 3), (f32::NEG_INFINITY, vec![]));
    }

    #[test]
    fn mirostat_replaces_the_chain() {
        let row = [0.5_f32, 0.3, 0.2].map(f32::ln);
        for mirostat in [Mirostat::V1, Mirostat::V2] {
            let params = SamplingParams { mirostat, top_k: 1, presence_penalty: 100.0, mirostat_tau: 9.0, ..unfiltered() };
            let mut sampler = sampler(&params);
            sampler.accept_prompt([0]);
            assert!((0..50).any(|_| sampler.sample(&row) == 0), "{mirostat:?}");
            assert!(mirostat == Mirostat::V1 || (0..50).any(|_| sampler.sample(&row) == 2));
        }
    }

    /// Parameters with unlimited penalty windows and one bias per token.
    fn long(n_vocab: Token) -> SamplingParams {
        let dry = Dry { multiplier: 0.8, penalty_last_n: -1, ..Dry::default() };
        SamplingParams {
            samplers: [&[SamplerKind::Xtc], &SamplerKind::DEFAULT[..]].concat(),
            repeat_penalty: 1.3,
            frequency_penalty: 0.01,
            repeat_last_n: -1,
            xtc_probability: 0.5,
            logit_bias: (0..n_vocab).map(|token| (token, 0.1)).collect(),
            dry,
            ..SamplingParams::default()
        }
    }

    #[test]
    fn branch_copies_do_not_grow_with_prompt_window_and_biases() {
        let prompt: Arc<[Token]> = (0..100_000).map(|i| i % 3_000).collect();
        let mut request = Sampler::new(&long(3_000), 1, &Pieces::none(&[]), 131_072);
        request.accept_prompt(Arc::clone(&prompt));
        let mut branches: Vec<Sampler> = (0..256).map(|seed| request.branch(seed)).collect();
        assert_eq!(branches.iter().map(|branch| branch.chain.n_copied()).sum::<usize>(), 0);
        // The penalties and the DRY state of each branch share the prompt.
        assert_eq!(Arc::strong_count(&prompt), 1 + 2 * 257);
        let n_shared = Arc::strong_count(&prompt);
        for token in 0..100 {
            branches[0].accept(token);
        }
        // Each accepted token is stored twice and changes few counts.
        assert!(branches[0].branch(7).chain.n_copied() <= 3 * 100);
        assert_eq!(Arc::strong_count(&prompt), n_shared);
    }

    #[test]
    fn a_branch_draws_like_a_new_sampler() {
        let mut rng = Mt19937::new(5);
        for params in [long(500), SamplingParams { mirostat: Mirostat::V1, ..unfiltered() }, SamplingParams::default()] {
            let prompt: Arc<[Token]> = (0..4_000).map(|_| Token::try_from(rng.next_u32() % 500).unwrap()).collect();
            let row: Vec<f32> = (0..500).map(|_| f32::from(u8::try_from(rng.next_u32() % 256).unwrap()) / 25.0).collect();
            let new = |seed| {
                let mut sampler = Sampler::new(&params, seed, &Pieces::none(&[]), 3_500);
                sampler.accept_prompt(Arc::clone(&prompt));
                sampler
            };
            let text = |mut sampler: Sampler| {
                let draw = |_| {
                    let token = sampler.sample(&row);
                    sampler.accept(token);
                    token
                };
                (0..700).map(draw).collect::<Vec<Token>>()
            };
            let request = new(1);
            assert!((0..4).all(|seed| text(request.branch(seed)) == text(new(seed))), "{params:?}");
            assert_ne!(text(request.branch(1)), text(request.branch(2)));
        }
    }

    /// Parameters at which something overflows, divides by 0 or leaves no candidate.
    fn extreme(rng: &mut Mt19937) -> SamplingParams {
        const NUMBERS: [f32; 9] = [0.0, 1.0, 0.5, -1.0, 1e-40, 1e-5, 30.0, f32::MAX, f32::MIN];
        let mut below = |n: usize| rng.next_u32() as usize % n;
        let mut samplers = SamplerKind::DEFAULT.to_vec();
        samplers.extend([SamplerKind::TfsZ, SamplerKind::Infill, SamplerKind::AdaptiveP]);
        for i in (1..samplers.len()).rev() {
            samplers.swap(i, below(i + 1));
        }
        samplers.truncate(below(12));
        let mut number = || NUMBERS[below(NUMBERS.len())];
        let mut params = SamplingParams {
            samplers,
            temperature: number(),
            dynatemp_range: number(),
            dynatemp_exponent: number(),
            top_p: number(),
            min_p: number(),
            typical_p: number(),
            top_n_sigma: number(),
            tfs_z: number(),
            xtc_probability: number(),
            xtc_threshold: number(),
            repeat_penalty: number().abs().max(1e-5),
            presence_penalty: number(),
            frequency_penalty: number(),
            mirostat_tau: number(),
            mirostat_eta: number(),
            adaptive_target: number(),
            adaptive_decay: number().clamp(0.0, 0.99),
            ..SamplingParams::default()
        };
        (params.dry.multiplier, params.dry.base) = (number(), number());
        (params.top_k, params.min_keep) = ([0, 1, 3, i32::MAX][below(4)], [0, 1, 5, u32::MAX][below(4)]);
        (params.repeat_last_n, params.dry.penalty_last_n) = ([-1, 0, 1, 9][below(4)], [-1, 0, 1, 9][below(4)]);
        params.dry.allowed_length = [0, 1, i32::MAX][below(3)];
        params.mirostat = [Mirostat::Off, Mirostat::Off, Mirostat::V1, Mirostat::V2][below(4)];
        params
    }

    #[test]
    fn a_token_is_drawn_for_any_parameters_and_row() {
        const LOGITS: [f32; 10] =
            [0.0, 1.0, -1.0, 20.0, f32::MAX, f32::MIN, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY];
        let mut rng = Mt19937::new(8);
        let pieces: Vec<String> = (0..70).map(|i| format!("word{i}")).collect();
        let token_strings = Pieces::token_strings(&pieces.iter().map(String::as_str).collect::<Vec<_>>(), 0);
        for i in 0..20_000_u32 {
            let params = extreme(&mut rng);
            assert_eq!(params.validate(100), Ok(()), "{params:?}");
            let mut sampler = Sampler::new(&params, i, &token_strings, 20);
            sampler.accept_prompt([0, 1, 0, 1]);
            let n_vocab = [1, 2, 7, 70][rng.next_u32() as usize % 4];
            for _ in 0..3 {
                let row: Vec<f32> = (0..n_vocab).map(|_| LOGITS[rng.next_u32() as usize % LOGITS.len()]).collect();
                let token = sampler.sample(&row);
                assert!(usize::try_from(token).unwrap() < n_vocab, "token {token} of {row:?} by {params:?}");
                let (chosen, top) = sampler.logprobs(token, 5);
                assert!(!chosen.is_nan() && top.iter().all(|(_, logprob)| !logprob.is_nan()), "{row:?} by {params:?}");
                sampler.accept(token);
            }
        }
    }
}
