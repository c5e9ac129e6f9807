//! Our sampling steps held to llama.cpp's samplers of the same names, on random rows.
//!
//! The rows hold no two equal logits among the possible tokens: llama.cpp leaves the order of equals to the C++ library's sort.

use std::collections::HashSet;

use llama_cpp_sys_2 as sys;

use crate::request::{SamplingParams, Token};
use crate::sampling::Sampler;
use crate::sampling::candidates::{Candidate, Candidates, Row};
use crate::sampling::filters;
use crate::sampling::penalties::Adjustments;
use crate::sampling::rng::Mt19937;

const N_CTX: u32 = 256;

/// A sampler of llama.cpp's, or a chain of them.
struct Theirs(*mut sys::llama_sampler);

impl Drop for Theirs {
    fn drop(&mut self) {
        // SAFETY: the pointer came from an init function and is owned by this value alone; a chain frees what was added to it.
        unsafe { sys::llama_sampler_free(self.0) }
    }
}

/// llama.cpp's list of candidates after a step.
struct Applied {
    list: Vec<(Token, f32)>,
    /// The token that the step selected, where it selects one.
    selected: Option<Token>,
}

impl Theirs {
    fn top_k(k: i32) -> Self {
        // SAFETY: the function takes plain numbers.
        Self(unsafe { sys::llama_sampler_init_top_k(k) })
    }

    fn top_p(p: f32) -> Self {
        // SAFETY: the function takes plain numbers.
        Self(unsafe { sys::llama_sampler_init_top_p(p, 0) })
    }

    fn min_p(p: f32) -> Self {
        // SAFETY: the function takes plain numbers.
        Self(unsafe { sys::llama_sampler_init_min_p(p, 0) })
    }

    /// What llama-server adds for its temperature.
    fn temperature(temperature: f32) -> Self {
        // SAFETY: the function takes plain numbers.
        Self(unsafe { sys::llama_sampler_init_temp_ext(temperature, 0.0, 1.0) })
    }

    fn dist(seed: u32) -> Self {
        // SAFETY: the function takes plain numbers.
        Self(unsafe { sys::llama_sampler_init_dist(seed) })
    }

    fn greedy() -> Self {
        // SAFETY: the function takes nothing.
        Self(unsafe { sys::llama_sampler_init_greedy() })
    }

    fn penalties(n_vocab: usize, params: &SamplingParams) -> Self {
        let last_n = if params.repeat_last_n < 0 { i32::try_from(N_CTX).unwrap() } else { params.repeat_last_n };
        let n_vocab = i32::try_from(n_vocab).unwrap();
        let (repeat, frequency, presence) = (params.repeat_penalty, params.frequency_penalty, params.presence_penalty);
        // SAFETY: the function takes plain numbers.
        Self(unsafe { sys::llama_sampler_init_penalties(n_vocab, last_n, repeat, frequency, presence) })
    }

    fn logit_bias(n_vocab: usize, bias: &[(Token, f32)]) -> Self {
        let bias: Vec<_> = bias.iter().map(|&(token, bias)| sys::llama_logit_bias { token, bias }).collect();
        let (n_vocab, n_bias) = (i32::try_from(n_vocab).unwrap(), i32::try_from(bias.len()).unwrap());
        // SAFETY: the pointer is good for n_bias entries, and the function copies them.
        Self(unsafe { sys::llama_sampler_init_logit_bias(n_vocab, n_bias, bias.as_ptr()) })
    }

    /// These steps one after the other.
    fn chain(steps: impl IntoIterator<Item = Self>) -> Self {
        // SAFETY: the parameters are llama.cpp's own defaults.
        let chain = Self(unsafe { sys::llama_sampler_chain_init(sys::llama_sampler_chain_default_params()) });
        for step in steps {
            // SAFETY: both pointers are live; the chain takes the step over, so the step must not free it.
            unsafe { sys::llama_sampler_chain_add(chain.0, step.0) };
            std::mem::forget(step);
        }
        chain
    }

    /// The chain that llama-server makes of these parameters, less the samplers that its defaults switch off.
    fn default_chain(n_vocab: usize, params: &SamplingParams, seed: u32, end_tokens: &[Token]) -> Self {
        let mut bias = params.logit_bias.clone();
        if params.ignore_eos {
            bias.extend(end_tokens.iter().map(|&token| (token, f32::NEG_INFINITY)));
        }
        Self::chain([
            Self::logit_bias(n_vocab, &bias),
            Self::penalties(n_vocab, params),
            Self::top_k(params.top_k),
            Self::top_p(params.top_p),
            Self::min_p(params.min_p),
            Self::temperature(params.temperature),
            Self::dist(seed),
        ])
    }

    fn accept(&self, token: Token) {
        // SAFETY: the pointer is live.
        unsafe { sys::llama_sampler_accept(self.0, token) }
    }

    fn apply(&self, row: &[f32]) -> Applied {
        let mut data: Vec<_> = (0..).zip(row).map(|(id, &logit)| sys::llama_token_data { id, logit, p: 0.0 }).collect();
        let mut array = sys::llama_token_data_array { data: data.as_mut_ptr(), size: data.len(), selected: -1, sorted: false };
        // SAFETY: the array describes `data`, which outlives the call; samplers only shrink it.
        unsafe { sys::llama_sampler_apply(self.0, &raw mut array) };
        data.truncate(array.size);
        let selected = usize::try_from(array.selected).ok().map(|at| data[at].id);
        Applied { list: data.iter().map(|data| (data.id, data.logit)).collect(), selected }
    }
}

/// A seeded source of rows and parameters.
struct Cases(Mt19937);

impl Cases {
    fn below(&mut self, n: usize) -> usize {
        self.0.next_u32() as usize % n
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    #[expect(clippy::cast_possible_truncation, reason = "logits and parameters are single precision")]
    fn between(&mut self, low: f64, high: f64) -> f32 {
        (low + (high - low) * self.0.uniform()) as f32
    }

    fn token(&mut self, n_vocab: usize) -> Token {
        Token::try_from(self.below(n_vocab)).unwrap()
    }

    /// A token that may be banned: three are spared, since llama.cpp draws nonsense where nothing is possible.
    fn bannable(&mut self, n_vocab: usize) -> Token {
        self.token(n_vocab - 3)
    }

    /// 8 to 5,000 different logits, normally distributed, flat or peaked.
    #[expect(clippy::cast_possible_truncation, reason = "logits are single precision")]
    fn row(&mut self) -> Vec<f32> {
        let n_vocab = self.one_of(&[8, 50, 600, 1_500, 5_000]).min(8 + self.below(5_000));
        let spread = self.one_of(&[0.3, 2.0, 6.0]);
        let mut seen = HashSet::new();
        let mut row = Vec::with_capacity(n_vocab);
        while row.len() < n_vocab {
            let radius = (-2.0 * (1.0 - self.0.uniform()).ln()).sqrt();
            let logit = (spread * radius * (std::f64::consts::TAU * self.0.uniform()).cos()) as f32;
            if seen.insert(logit.to_bits()) {
                row.push(logit);
            }
        }
        row
    }

    fn params(&mut self, n_vocab: usize) -> SamplingParams {
        let n_bias = self.one_of(&[0, 0, 1, 20]);
        SamplingParams {
            temperature: self.one_of(&[0.1, 0.8, 1.0, 1.7]),
            top_k: self.one_of(&[-1, 0, 1, 5, 40, 127, 128, 129, 1_000, 100_000]),
            top_p: self.one_of(&[0.0, 0.3, 0.9, 0.95, 0.999, 1.0]),
            min_p: self.one_of(&[0.0, 0.001, 0.05, 0.5, 1.0, 1.5]),
            repeat_penalty: self.one_of(&[1.0, 1.1, 0.8]),
            repeat_last_n: self.one_of(&[-1, 0, 1, 10, 64]),
            presence_penalty: self.one_of(&[0.0, 0.37, -0.2]),
            frequency_penalty: self.one_of(&[0.0, 0.13]),
            logit_bias: (0..n_bias).map(|_| (self.bannable(n_vocab), self.bias())).collect(),
            ignore_eos: self.one_of(&[true, false]),
            ..SamplingParams::default()
        }
    }

    fn bias(&mut self) -> f32 {
        if self.below(4) == 0 { f32::NEG_INFINITY } else { self.between(-5.0, 5.0) }
    }
}

/// Calls `check` with as many random rows and as many sources of parameters.
fn for_random_rows(n_rows: usize, seed: u32, mut check: impl FnMut(&mut Cases, Vec<f32>)) {
    let mut cases = Cases(Mt19937::new(seed));
    for _ in 0..n_rows {
        let row = cases.row();
        check(&mut cases, row);
    }
}

fn all_of(row: &[f32]) -> Candidates {
    let mut candidates = Candidates::default();
    candidates.keep_all(Row { logits: row, patches: &[] });
    candidates
}

/// The `k` best of a row, or all of it for 0 and less, as the sampler takes them.
fn best_of(row: &[f32], k: i32) -> Candidates {
    let mut candidates = all_of(row);
    if let Some(k) = usize::try_from(k).ok().filter(|&k| k > 0) {
        candidates.keep_best(Row { logits: row, patches: &[] }, k);
    }
    candidates
}

fn pairs(candidates: &Candidates) -> Vec<(Token, f32)> {
    candidates.list.iter().map(|&Candidate { token, logit }| (token, logit)).collect()
}

#[test]
fn top_k_keeps_what_llama_cpp_keeps_in_its_order() {
    for_random_rows(300, 1, |cases, row| {
        let k = cases.params(row.len()).top_k;
        assert_eq!(pairs(&best_of(&row, k)), Theirs::top_k(k).apply(&row).list, "k {k}");
    });
}

#[test]
fn top_p_keeps_what_llama_cpp_keeps_in_its_order() {
    for_random_rows(400, 2, |cases, row| {
        let (k, p) = (cases.params(row.len()).top_k, cases.one_of(&[0.0, 0.1, 0.5, 0.9, 0.95, 0.999, 0.999_999_9, 1.0, 2.0]));
        let mut ours = best_of(&row, k);
        filters::top_p(&mut ours, p);
        let theirs = Theirs::chain([Theirs::top_k(k), Theirs::top_p(p)]).apply(&row);
        assert_eq!(pairs(&ours), theirs.list, "k {k}, p {p}, {} pieces", row.len());
    });
}

#[test]
fn min_p_keeps_what_llama_cpp_keeps_in_its_order() {
    for_random_rows(400, 3, |cases, row| {
        let (k, p) = (cases.params(row.len()).top_k, cases.one_of(&[-1.0, 0.0, 1e-6, 0.01, 0.05, 0.3, 1.0, 1.5]));
        let mut ours = best_of(&row, k);
        filters::min_p(&mut ours, p);
        let theirs = Theirs::chain([Theirs::top_k(k), Theirs::min_p(p)]).apply(&row);
        assert_eq!(pairs(&ours), theirs.list, "k {k}, p {p}, {} pieces", row.len());
    });
}

#[test]
fn temperature_scales_as_llama_cpp_scales() {
    for_random_rows(100, 4, |cases, row| {
        let temperature = cases.between(0.01, 3.0);
        let mut ours = all_of(&row);
        filters::temperature(&mut ours, temperature);
        assert_eq!(pairs(&ours), Theirs::temperature(temperature).apply(&row).list, "temperature {temperature}");
    });
}

#[test]
fn bias_and_penalties_adjust_as_llama_cpp_adjusts() {
    for_random_rows(300, 5, |cases, row| {
        let params = cases.params(row.len());
        let end_tokens = [cases.bannable(row.len()), cases.bannable(row.len())];
        let mut bias = params.logit_bias.clone();
        bias.extend(end_tokens.iter().filter(|_| params.ignore_eos).map(|&token| (token, f32::NEG_INFINITY)));
        let mut ours = Adjustments::new(&params, &end_tokens, N_CTX);
        let theirs = Theirs::chain([Theirs::logit_bias(row.len(), &bias), Theirs::penalties(row.len(), &params)]);
        let n_distinct = 1 + cases.below(row.len());
        for _ in 0..cases.below(400) {
            let token = cases.token(n_distinct);
            ours.accept(token);
            theirs.accept(token);
        }
        let mut adjusted = row.clone();
        for patch in ours.apply(&row) {
            adjusted[usize::try_from(patch.token).unwrap()] = patch.logit;
        }
        let theirs: Vec<f32> = theirs.apply(&row).list.iter().map(|&(_, logit)| logit).collect();
        assert_eq!(adjusted, theirs, "{params:?}");
    });
}

#[test]
fn successive_draws_are_llama_cpps() {
    for_random_rows(50, 6, |cases, row| {
        let (k, seed) = (cases.params(row.len()).top_k, cases.0.next_u32() >> 1);
        let ours = best_of(&row, k);
        let mut rng = Mt19937::new(seed);
        let theirs = Theirs::chain([Theirs::top_k(k), Theirs::dist(seed)]);
        for i in 0..200 {
            let drawn = filters::draw(&ours, rng.uniform());
            assert_eq!(drawn, theirs.apply(&row).selected, "draw {i}, k {k}, seed {seed}, {} pieces", row.len());
        }
    });
}

#[test]
fn the_sampler_draws_what_llama_servers_chain_draws() {
    for_random_rows(300, 7, |cases, row| {
        let params = cases.params(row.len());
        let end_tokens = [cases.bannable(row.len()), cases.bannable(row.len())];
        let seed = cases.0.next_u32() >> 1;
        let mut ours = Sampler::new(&params, seed, &end_tokens, N_CTX);
        let theirs = Theirs::default_chain(row.len(), &params, seed, &end_tokens);
        for _ in 0..cases.below(100) {
            let token = cases.token(row.len());
            ours.accept(token);
            theirs.accept(token);
        }
        // Each draw has its own row: a rotation of the first, so that penalties meet other logits.
        let mut row = row;
        for i in 0..200 {
            let drawn = ours.sample(&row);
            assert_eq!(Some(drawn), theirs.apply(&row).selected, "draw {i}, seed {seed}, {} pieces, {params:?}", row.len());
            ours.accept(drawn);
            theirs.accept(drawn);
            row.rotate_right(1);
        }
    });
}

#[test]
fn without_temperature_the_sampler_takes_what_llama_cpp_takes() {
    for_random_rows(200, 8, |cases, row| {
        let params = SamplingParams { temperature: cases.one_of(&[0.0, -1.0]), ..cases.params(row.len()) };
        let mut ours = Sampler::new(&params, 1, &[], N_CTX);
        let theirs = Theirs::default_chain(row.len(), &params, 1, &[]);
        let greedy = Theirs::chain([
            Theirs::logit_bias(row.len(), &params.logit_bias),
            Theirs::penalties(row.len(), &params),
            Theirs::greedy(),
        ]);
        for _ in 0..50 {
            let taken = ours.sample(&row);
            assert_eq!(Some(taken), theirs.apply(&row).selected, "{params:?}");
            assert_eq!(Some(taken), greedy.apply(&row).selected, "{params:?}");
            ours.accept(taken);
            theirs.accept(taken);
            greedy.accept(taken);
        }
    });
}
