//! One row of logits → one token: pure functions and a generator, no model.
//!
//! Each step gives what llama.cpp's sampler of the same name gives, at a fraction of its cost: the row is read once, never copied
//! unless both top-k and min-p are off, and only the candidates are sorted.

pub(crate) mod candidates;
mod constrained;
pub(crate) mod filters;
mod logprobs;
pub(crate) mod penalties;
pub(crate) mod rng;
pub mod threads;

pub(crate) use constrained::draw_allowed;
pub use logprobs::logprobs;
pub use threads::Threads;

use crate::request::{SamplingParams, Token};
use candidates::{Candidates, Row};
use penalties::Adjustments;
use rng::Mt19937;

/// Chooses the tokens of one sequence: its parameters, its generator and what it has said.
///
/// The order of steps is llama-server's: logit bias, penalties, top-k, top-p, min-p, temperature, draw. Equal logits, an equal
/// seed and an equal history give the tokens that llama-server draws; only among equal logits, whose order llama.cpp leaves to its
/// sort, the lower token id comes first here.
///
/// A logit of NaN counts as −∞: such a token is never drawn. If a row leaves no token possible, token 0 is taken, as llama.cpp's
/// greedy sampler does.
#[derive(Debug, Clone)]
pub struct Sampler {
    adjustments: Adjustments,
    top_k: Option<usize>,
    top_p: f32,
    min_p: f32,
    temperature: f32,
    rng: Mt19937,
    candidates: Candidates,
}

impl Sampler {
    /// A sampler that has seen nothing.
    ///
    /// `end_tokens` are banned where [`SamplingParams::ignore_eos`] is set. `n_ctx` is the window in tokens that `repeat_last_n` = −1
    /// stands for. Every `seed` names one sequence of draws.
    #[must_use]
    pub fn new(params: &SamplingParams, seed: u32, end_tokens: &[Token], n_ctx: u32) -> Self {
        Self {
            adjustments: Adjustments::new(params, end_tokens, n_ctx),
            top_k: usize::try_from(params.top_k).ok().filter(|&k| k > 0),
            top_p: params.top_p,
            min_p: params.min_p,
            temperature: params.temperature,
            rng: Mt19937::new(seed),
            candidates: Candidates::default(),
        }
    }

    /// Tells the penalties about a token of the prompt or of the answer.
    pub fn accept(&mut self, token: Token) {
        self.adjustments.accept(token);
    }

    /// Draws one token from a row of logits, one per token id; does not accept it.
    ///
    /// A temperature of 0 or less takes the most likely token after bias and penalties. Otherwise exactly one uniform number is
    /// drawn, also where only one candidate is left.
    pub fn sample(&mut self, logits: &[f32]) -> Token {
        let row = Row { logits, patches: self.adjustments.apply(logits) };
        let candidates = &mut self.candidates;
        if self.temperature <= 0.0 {
            candidates.keep_best(row, 1);
            return candidates.best().map_or(0, |best| best.token);
        }
        let uniform = self.rng.uniform();
        match self.top_k {
            Some(k) => {
                candidates.keep_best(row, k);
                filters::top_p(candidates, self.top_p);
            }
            // What min-p will not keep is after what it keeps, so top-p needs no more of it than its share of the sum.
            None if self.min_p > 0.0 => {
                candidates.keep_near_best(row, self.min_p.ln());
                if let Some(best) = candidates.best().filter(|_| self.top_p < 1.0) {
                    filters::top_p_of(candidates, self.top_p, row.total_weight(best.logit));
                }
            }
            None => {
                candidates.keep_all(row);
                filters::top_p(candidates, self.top_p);
            }
        }
        filters::min_p(candidates, self.min_p);
        let Some(best) = candidates.best() else { return 0 };
        // Where the temperature is so low that logits overflow, the most likely token has all the probability.
        if !(best.logit / self.temperature).is_finite() {
            return best.token;
        }
        filters::temperature(candidates, self.temperature);
        filters::draw(candidates, uniform).unwrap_or(best.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(params: &SamplingParams) -> Sampler {
        Sampler::new(params, 42, &[2], 4_096)
    }

    fn greedy() -> SamplingParams {
        SamplingParams { temperature: 0.0, ..SamplingParams::default() }
    }

    /// Every filter off: the whole row may be drawn.
    fn open() -> SamplingParams {
        SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() }
    }

    #[test]
    fn greedy_takes_the_most_likely_token_and_the_lower_of_equals() {
        assert_eq!(sampler(&greedy()).sample(&[1.0, 3.0, 2.0]), 1);
        assert_eq!(sampler(&greedy()).sample(&[1.0, 3.0, 3.0]), 1);
        assert_eq!(sampler(&SamplingParams { temperature: -1.0, ..greedy() }).sample(&[1.0, 3.0, 2.0]), 1);
    }

    #[test]
    fn greedy_sees_bias_and_penalties() {
        let mut biased = sampler(&SamplingParams { logit_bias: vec![(0, 5.0)], ..greedy() });
        assert_eq!(biased.sample(&[1.0, 3.0, 2.0]), 0);
        let mut penalised = sampler(&SamplingParams { repeat_penalty: 2.0, ..greedy() });
        penalised.accept(1);
        assert_eq!(penalised.sample(&[1.0, 3.0, 2.0]), 2);
    }

    #[test]
    fn ignored_end_tokens_are_never_drawn() {
        for params in [greedy(), open(), SamplingParams::default()] {
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
            let mut sampler = Sampler::new(&open(), seed, &[], 0);
            (0..20).map(|_| sampler.sample(&row)).collect::<Vec<Token>>()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }

    #[test]
    fn each_draw_takes_one_uniform_also_where_there_is_no_choice() {
        let row = [0.0; 64];
        let (mut with, mut without) = (sampler(&open()), sampler(&open()));
        assert_eq!(with.sample(&[7.0]), 0);
        assert_eq!(with.sample(&[f32::NAN]), 0);
        without.sample(&row);
        without.sample(&row);
        assert_eq!(with.sample(&row), without.sample(&row));
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let row = [0.2_f32, 0.5, 0.3].map(f32::ln);
        let mut sampler = sampler(&open());
        let mut n_drawn = [0.0; 3];
        for _ in 0..30_000 {
            n_drawn[usize::try_from(sampler.sample(&row)).unwrap()] += 1.0 / 30_000.0;
        }
        assert!(n_drawn.iter().zip([0.2, 0.5, 0.3]).all(|(&is, should): (&f64, f64)| (is - should).abs() < 0.01), "{n_drawn:?}");
    }

    #[test]
    fn rows_that_leave_nothing_possible_give_token_0() {
        for params in [greedy(), open(), SamplingParams::default()] {
            for row in [&[f32::NAN; 50][..], &[f32::NEG_INFINITY; 50], &[]] {
                assert_eq!(sampler(&params).sample(row), 0);
            }
        }
    }

    #[test]
    fn broken_logits_are_never_drawn() {
        for params in [greedy(), open(), SamplingParams::default()] {
            let mut sampler = sampler(&params);
            assert!((0..100).all(|_| sampler.sample(&[f32::NAN, f32::NEG_INFINITY, 1.0, f32::NAN]) == 2));
        }
    }

    #[test]
    fn an_infinite_logit_has_all_the_probability() {
        for params in [greedy(), open(), SamplingParams::default(), SamplingParams { top_k: 0, ..SamplingParams::default() }] {
            let mut sampler = sampler(&params);
            assert!((0..100).all(|_| sampler.sample(&[3.0, f32::INFINITY, 80.0]) == 1));
        }
    }

    #[test]
    fn without_top_k_the_candidates_are_those_that_all_steps_over_the_whole_row_leave() {
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
            let mut adjustments = Adjustments::new(&params, &[2], 4_096);
            adjustments.accept(0);
            let mut all = Candidates::default();
            all.keep_all(Row { logits: &row, patches: adjustments.apply(&row) });
            filters::top_p(&mut all, params.top_p);
            filters::min_p(&mut all, params.min_p);
            assert_eq!(sampler.candidates.list, all.list, "round {round}, {params:?}");
            let uniform = Mt19937::new(42).uniform();
            assert_eq!(Some(drawn).filter(|_| !all.list.is_empty()), filters::draw(&all, uniform), "round {round}");
        }
    }

    #[test]
    fn a_temperature_that_overflows_is_greedy() {
        let mut sampler = sampler(&SamplingParams { temperature: 1e-39, ..open() });
        assert!((0..100).all(|_| sampler.sample(&[29.0, 30.0, -5.0]) == 1));
        assert!((0..100).all(|_| sampler.sample(&[-29.0, -28.0]) == 1));
    }
}
