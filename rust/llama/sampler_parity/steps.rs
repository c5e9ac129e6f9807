//! Compares each step alone, and after a step that leaves another kind of list.

use super::cases::{Cases, for_cases};
use super::llama_sampler::LlamaSampler;
use super::{N_CTX, demo_token_strings};
use crate::request::{SamplerKind, SamplingParams};
use crate::sampling::candidates::Candidates;
use crate::sampling::chain::Chain;

/// Compares the list after these steps with llama.cpp's: tokens, logits, order, and the number of impossible tokens.
fn check(kinds: &[SamplerKind], row: &[f32], params: &SamplingParams, seed: u32, n_times: usize) {
    let token_strings = demo_token_strings();
    let mut ours = Chain::new(kinds, params, seed, &token_strings, N_CTX);
    let expected_chain = LlamaSampler::steps(kinds, row.len(), params, seed, token_strings.end_tokens());
    let mut candidates = Candidates::default();
    for i in 0..n_times {
        ours.apply(row, &mut candidates);
        let expected = expected_chain.apply(row);
        // If a temperature makes llama.cpp's logits overflow, several become infinite; ours keeps only the likeliest token.
        if expected.list.iter().any(|(_, logit)| logit.is_infinite()) {
            assert_eq!(candidates.list.len(), 1);
            continue;
        }
        let list: Vec<_> = candidates.list.iter().map(|candidate| (candidate.token, candidate.logit)).collect();
        assert_eq!(list, expected.list, "{kinds:?}, time {i}, {} tokens, {params:?}", row.len());
        // The count excludes masked ends and the tokens removed by a temperature of 0: no later step depends on them.
        if params.temperature > 0.0 && !kinds.contains(&SamplerKind::Infill) {
            assert_eq!(candidates.n_all(), expected.n_all, "{kinds:?}, {} tokens, {params:?}", row.len());
        }
    }
}

/// Compares a step of one kind, on a row that is unchanged, sorted, cut, reordered, or masked; with `min_keep`, and with parameters
/// changed by `set`.
fn check_kind(kind: SamplerKind, seed: u32, set: impl Fn(&mut Cases, &mut SamplingParams)) {
    let previous: [&[SamplerKind]; 8] = [
        &[],
        &[],
        &[SamplerKind::TopK],
        &[SamplerKind::TopP],
        &[SamplerKind::MinP],
        &[SamplerKind::Temperature],
        &[SamplerKind::TopNSigma],
        &[SamplerKind::TopNSigma, SamplerKind::TopK],
    ];
    for_cases(1_500, seed, |cases| {
        let row = cases.row(2_000);
        let mut params = cases.params(row.len());
        set(cases, &mut params);
        let kinds = [cases.one_of(&previous), &[kind]].concat();
        check(&kinds, &row, &params, cases.seed(), 1);
    });
}

#[test]
fn top_k_matches_llama_cpp_in_order() {
    check_kind(SamplerKind::TopK, 1, |_, _| {});
}

#[test]
fn top_p_matches_llama_cpp_in_order() {
    check_kind(SamplerKind::TopP, 2, |_, _| {});
}

#[test]
fn min_p_matches_llama_cpp_in_order() {
    check_kind(SamplerKind::MinP, 3, |_, _| {});
}

#[test]
fn temperature_matches_llama_cpp() {
    check_kind(SamplerKind::Temperature, 4, |cases, params| {
        (params.dynatemp_range, params.temperature) = (0.0, cases.one_of(&[-1.0, 0.0, 0.01, 0.5, 1.0, 3.0]));
    });
}

#[test]
fn dynamic_temperature_matches_llama_cpp() {
    check_kind(SamplerKind::Temperature, 5, |cases, params| {
        (params.dynatemp_range, params.temperature) = (cases.between(0.01, 3.0), cases.one_of(&[-9.0, 0.0, 0.5, 1.0, 2.0]));
    });
}

#[test]
fn top_n_sigma_matches_llama_cpp() {
    check_kind(SamplerKind::TopNSigma, 6, |cases, params| params.top_n_sigma = cases.between(0.01, 5.0));
}

#[test]
fn typical_p_matches_llama_cpp_in_order() {
    for_cases(1_500, 7, |cases| {
        // Longer rows have tokens equally close to the mean surprise, whose order llama.cpp leaves to its sort.
        let row = cases.row(120);
        let params = cases.params(row.len());
        // Masked or nearly impossible tokens make llama.cpp's entropy NaN.
        let params = SamplingParams { logit_bias: Vec::new(), ignore_eos: false, ..params };
        let previous: [&[SamplerKind]; 4] = [&[], &[SamplerKind::TopK], &[SamplerKind::TopP], &[SamplerKind::MinP]];
        check(&[cases.one_of(&previous), &[SamplerKind::TypicalP]].concat(), &row, &params, 1, 1);
    });
}

#[test]
fn xtc_removes_the_same_tokens_as_llama_cpp() {
    for_cases(1_000, 8, |cases| {
        let row = cases.row(2_000);
        let params = cases.params(row.len());
        let previous: [&[SamplerKind]; 4] = [&[], &[SamplerKind::TopK], &[SamplerKind::TopNSigma], &[SamplerKind::Xtc]];
        check(&[cases.one_of(&previous), &[SamplerKind::Xtc]].concat(), &row, &params, cases.seed(), 10);
    });
}

#[test]
fn two_hundred_random_draws_of_xtc_match_llama_cpp() {
    for_cases(20, 9, |cases| {
        let row = cases.row(100);
        let params = SamplingParams { xtc_probability: 0.4, xtc_threshold: 0.01, ..SamplingParams::default() };
        check(&[SamplerKind::Xtc], &row, &params, cases.seed(), 200);
    });
}

#[test]
fn infill_matches_llama_cpp_in_order() {
    for_cases(1_500, 10, |cases| {
        let mut row = cases.row(1_000);
        // Few random rows have likely end tokens.
        let token_strings = demo_token_strings();
        for &end in token_strings.end_tokens() {
            if let Some(logit) = row.get_mut(usize::try_from(end).unwrap()) {
                *logit += cases.one_of(&[0.0, -20.0, -4.0, 3.0]);
            }
        }
        let params = cases.params(row.len());
        let previous: [&[SamplerKind]; 4] = [&[], &[SamplerKind::TopK], &[SamplerKind::TopP], &[SamplerKind::MinP]];
        check(&[cases.one_of(&previous), &[SamplerKind::Infill]].concat(), &row, &params, 1, 1);
    });
}

#[test]
fn rows_of_a_large_vocabulary_are_sorted_as_in_llama_cpp() {
    for_cases(10, 11, |cases| {
        let mut row: Vec<f32> = (0..60_000_u16).map(|i| f32::from(i) / 4_096.0).collect();
        for i in 0..row.len() {
            let other = cases.below(row.len());
            row.swap(i, other);
        }
        let params = SamplingParams { xtc_probability: 1.0, top_n_sigma: 2.0, dynatemp_range: 0.5, ..SamplingParams::default() };
        for kind in [SamplerKind::TopNSigma, SamplerKind::Temperature, SamplerKind::Xtc] {
            check(&[kind], &row, &params, 1, 1);
        }
    });
}
