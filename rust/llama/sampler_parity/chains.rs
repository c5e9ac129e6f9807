//! Whole chains, with the draw.

use super::cases::{Cases, for_cases};
use super::theirs::LlamaSampler;
use super::{N_CTX, demo_lexicon};
use crate::request::{Mirostat, SamplerKind, SamplingParams};
use crate::sampling::Sampler;

/// Draws `n_tokens` one after the other with our chain and llama.cpp's, from rotations of one row, so that penalties meet other
/// logits.
fn check(cases: &mut Cases, mut row: Vec<f32>, params: &SamplingParams, n_tokens: usize) {
    let (lexicon, seed) = (demo_lexicon(), cases.seed());
    let mut ours = Sampler::new(params, seed, &lexicon, N_CTX);
    let theirs = LlamaSampler::server_chain(row.len(), params, seed, lexicon.end_tokens());
    let history = cases.history(row.len());
    ours.accept_prompt(history.as_slice());
    theirs.accept_all(&history);
    for i in 0..n_tokens {
        let drawn = ours.sample(&row);
        assert_eq!(Some(drawn), theirs.apply(&row).selected, "draw {i}, seed {seed}, {} pieces, {params:?}", row.len());
        // As where a grammar refuses the token: another one is drawn, and only that one is accepted.
        let is_refused = cases.below(10) == 0;
        let drawn = if is_refused { ours.sample(&row) } else { drawn };
        if is_refused {
            assert_eq!(Some(drawn), theirs.apply(&row).selected, "second draw {i}, seed {seed}, {params:?}");
        }
        ours.accept(drawn);
        theirs.accept(drawn);
        row.rotate_right(1);
    }
}

#[test]
fn successive_draws_are_llama_cpps() {
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
fn the_sampler_draws_what_llama_servers_chain_draws() {
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
fn of_what_a_grammar_leaves_it_draws_what_llama_servers_chain_draws() {
    for_cases(300, 37, |cases| {
        let mut row = cases.row(1_000);
        let n_left = cases.one_of(&[1, 2, 5, 30, 100]);
        while row.iter().filter(|logit| logit.is_finite()).count() > n_left {
            let at = cases.below(row.len());
            row[at] = f32::NEG_INFINITY;
        }
        let mut params = cases.params(row.len());
        params.logit_bias.retain(|(_, bias)| bias.is_finite());
        // An infinite temperature, or a penalty that leaves nothing possible, leaves llama.cpp no numbers.
        params.dry.base = params.dry.base.min(1.0);
        let dynatemp_exponent = params.dynatemp_exponent.max(0.0);
        let params = SamplingParams { typical_p: 1.0, ignore_eos: false, dynatemp_exponent, ..params };
        check(cases, row, &params, 50);
    });
}

#[test]
fn any_chain_draws_what_llama_cpps_draws() {
    for_cases(1_000, 32, |cases| {
        let row = cases.row(100);
        let params = SamplingParams { samplers: cases.kinds(), ..cases.params(row.len()) };
        let params = cases.without_masks(params);
        check(cases, row, &params, 50);
    });
}

#[test]
fn mirostat_draws_what_llama_cpps_draws() {
    for version in [Mirostat::V1, Mirostat::V2] {
        for_cases(200, 33, |cases| {
            let row = cases.row(2_000);
            // Where most tokens are banned, llama.cpp's first version counts those that are not possible.
            let params =
                SamplingParams { mirostat: version, logit_bias: Vec::new(), ignore_eos: false, ..cases.params(row.len()) };
            check(cases, row, &params, 200);
        });
    }
}

#[test]
fn the_adaptive_draw_is_llama_cpps() {
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
fn without_temperature_the_sampler_takes_what_llama_cpp_takes() {
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
fn penalties_and_no_temperature_take_the_likeliest() {
    for_cases(300, 36, |cases| {
        let row = cases.row(500);
        let params = SamplingParams { temperature: 0.0, dynatemp_range: 0.0, ..cases.params(row.len()) };
        let samplers = vec![SamplerKind::Penalties, SamplerKind::Dry, SamplerKind::TopK, SamplerKind::Temperature];
        let params = SamplingParams { samplers, ..params };
        let lexicon = demo_lexicon();
        let history = cases.history(row.len());
        let mut ours = Sampler::new(&params, 1, &lexicon, N_CTX);
        ours.accept_prompt(history.as_slice());
        let theirs =
            LlamaSampler::steps(&[SamplerKind::Penalties, SamplerKind::Dry], row.len(), &params, 1, lexicon.end_tokens());
        theirs.accept_all(&history);
        let penalised = theirs.apply(&row).list;
        let mut expected = row.clone();
        expected.fill(f32::NEG_INFINITY);
        for (token, logit) in penalised {
            expected[usize::try_from(token).unwrap()] = logit;
        }
        assert_eq!(Some(ours.sample(&row)), LlamaSampler::greedy().apply(&expected).selected, "{params:?}");
    });
}
