//! Compares whole chains, including the draw.

use super::cases::{Cases, for_cases};
use super::llama_sampler::LlamaSampler;
use super::{N_CTX, demo_token_strings};
use crate::request::{Mirostat, SamplerKind, SamplingParams};
use crate::sampling::Sampler;

/// Draws `n_tokens` in sequence with our chain and llama.cpp's, from rotations of one row, so that penalties apply to different
/// logits.
fn check(cases: &mut Cases, mut row: Vec<f32>, params: &SamplingParams, n_tokens: usize) {
    let (token_strings, seed) = (demo_token_strings(), cases.seed());
    let mut ours = Sampler::new(params, seed, &token_strings, N_CTX);
    let expected_chain = LlamaSampler::server_chain(row.len(), params, seed, token_strings.end_tokens());
    let history = cases.history(row.len());
    ours.accept_prompt(history.as_slice());
    expected_chain.accept_all(&history);
    for i in 0..n_tokens {
        let drawn = ours.sample(&row);
        assert_eq!(Some(drawn), expected_chain.apply(&row).selected, "draw {i}, seed {seed}, {} tokens, {params:?}", row.len());
        // Simulates a grammar that rejects the token: another one is drawn, and only that one is accepted.
        let is_refused = cases.below(10) == 0;
        let drawn = if is_refused { ours.sample(&row) } else { drawn };
        if is_refused {
            assert_eq!(Some(drawn), expected_chain.apply(&row).selected, "second draw {i}, seed {seed}, {params:?}");
        }
        ours.accept(drawn);
        expected_chain.accept(drawn);
        row.rotate_right(1);
    }
}

#[test]
fn successive_draws_match_llama_cpp() {
    for_cases(50, 30, |cases| {
        let row = cases.row(5_000);
        let params = SamplingParams {
            samplers: vec![SamplerKind::TopK],
            top_k: cases.params(row.len()).top_k,
            ..SamplingParams::default()
        };
        check(cases, row, &params, 200);
    });
}

#[test]
fn the_sampler_matches_llama_servers_chain() {
    for_cases(300, 31, |cases| {
        let row = cases.row(1_000);
        let neutral = SamplingParams::default();
        let params = SamplingParams {
            dry: neutral.dry,
            dynatemp_range: 0.0,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            ..cases.params(row.len())
        };
        check(cases, row, &params, 200);
    });
}

#[test]
fn the_sampler_matches_llama_servers_chain_under_a_grammar() {
    for_cases(300, 37, |cases| {
        let mut row = cases.row(1_000);
        let n_allowed = cases.one_of(&[1, 2, 5, 30, 100]);
        while row.iter().filter(|logit| logit.is_finite()).count() > n_allowed {
            let index = cases.below(row.len());
            row[index] = f32::NEG_INFINITY;
        }
        let mut params = cases.params(row.len());
        params.logit_bias.retain(|(_, bias)| bias.is_finite());
        // An infinite temperature, or a penalty that makes every token impossible, makes llama.cpp's logits NaN.
        params.dry.base = params.dry.base.min(1.0);
        let dynatemp_exponent = params.dynatemp_exponent.max(0.0);
        let params = SamplingParams { typical_p: 1.0, ignore_eos: false, dynatemp_exponent, ..params };
        check(cases, row, &params, 50);
    });
}

#[test]
fn any_chain_matches_llama_cpp() {
    for_cases(1_000, 32, |cases| {
        let row = cases.row(100);
        let params = SamplingParams { samplers: cases.kinds(), ..cases.params(row.len()) };
        let params = cases.without_masks(params);
        check(cases, row, &params, 50);
    });
}

#[test]
fn mirostat_matches_llama_cpp() {
    for version in [Mirostat::V1, Mirostat::V2] {
        for_cases(200, 33, |cases| {
            let row = cases.row(2_000);
            // llama.cpp's first version counts impossible tokens if most tokens are banned.
            let params =
                SamplingParams { mirostat: version, logit_bias: Vec::new(), ignore_eos: false, ..cases.params(row.len()) };
            check(cases, row, &params, 200);
        });
    }
}

#[test]
fn the_adaptive_draw_matches_llama_cpp() {
    for_cases(200, 34, |cases| {
        let row = cases.row(500);
        let samplers = cases.one_of::<&[SamplerKind]>(&[
            &[SamplerKind::AdaptiveP],
            &[SamplerKind::MinP, SamplerKind::AdaptiveP],
            &[SamplerKind::AdaptiveP, SamplerKind::TopK, SamplerKind::Temperature],
        ]);
        let params = SamplingParams { samplers: samplers.to_vec(), ..cases.params(row.len()) };
        check(cases, row, &params, 200);
    });
}

#[test]
fn greedy_sampling_matches_llama_cpp() {
    for_cases(1_000, 35, |cases| {
        let row = cases.row(100);
        let temperature = cases.one_of(&[0.0, -1.0]);
        let mut params = SamplingParams { temperature, dynatemp_range: 0.0, ..cases.params(row.len()) };
        params.mirostat = cases.one_of(&[Mirostat::Off, Mirostat::Off, Mirostat::V1, Mirostat::V2]);
        if cases.below(2) == 0 {
            params.samplers = cases.kinds();
        }
        let params = SamplingParams { temperature, ..cases.without_masks(params) };
        check(cases, row, &params, 50);
    });
}

#[test]
fn greedy_sampling_takes_the_likeliest_token_after_penalties() {
    for_cases(300, 36, |cases| {
        let row = cases.row(500);
        let params = SamplingParams { temperature: 0.0, dynatemp_range: 0.0, ..cases.params(row.len()) };
        let samplers = vec![SamplerKind::Penalties, SamplerKind::Dry, SamplerKind::TopK, SamplerKind::Temperature];
        let params = SamplingParams { samplers, ..params };
        let token_strings = demo_token_strings();
        let history = cases.history(row.len());
        let mut ours = Sampler::new(&params, 1, &token_strings, N_CTX);
        ours.accept_prompt(history.as_slice());
        let expected_chain =
            LlamaSampler::steps(&[SamplerKind::Penalties, SamplerKind::Dry], row.len(), &params, 1, token_strings.end_tokens());
        expected_chain.accept_all(&history);
        let penalised = expected_chain.apply(&row).list;
        let mut expected = row.clone();
        expected.fill(f32::NEG_INFINITY);
        for (token, logit) in penalised {
            expected[usize::try_from(token).unwrap()] = logit;
        }
        assert_eq!(Some(ours.sample(&row)), LlamaSampler::greedy().apply(&expected).selected, "{params:?}");
    });
}
