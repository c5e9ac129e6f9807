//! Each step by itself, and behind one that leaves another kind of list.

use super::cases::{Cases, for_cases};
use super::theirs::LlamaSampler;
use super::{N_CTX, demo_lexicon};
use crate::request::{SamplerKind, SamplingParams};
use crate::sampling::candidates::Candidates;
use crate::sampling::chain::Chain;

/// Holds the list that these steps leave of a row to llama.cpp's: tokens, logits, order, and how many impossible ones it counts.
fn check(kinds: &[SamplerKind], row: &[f32], params: &SamplingParams, seed: u32, n_times: usize) {
    let lexicon = demo_lexicon();
    let mut ours = Chain::new(kinds, params, seed, &lexicon, N_CTX);
    let theirs = LlamaSampler::steps(kinds, row.len(), params, seed, lexicon.end_tokens());
    let mut candidates = Candidates::default();
    for i in 0..n_times {
        ours.apply(row, &mut candidates);
        let expected = theirs.apply(row);
        // Where a temperature lets llama.cpp's logits overflow, several of them become infinite, and ours take the likeliest.
        if expected.list.iter().any(|(_, logit)| logit.is_infinite()) {
            assert_eq!(candidates.list.len(), 1);
            continue;
        }
        let list: Vec<_> = candidates.list.iter().map(|candidate| (candidate.token, candidate.logit)).collect();
        assert_eq!(list, expected.list, "{kinds:?}, time {i}, {} pieces, {params:?}", row.len());
        // Neither masked ends nor what a temperature of 0 leaves behind is counted: nothing that follows would depend on it.
        if params.temperature > 0.0 && !kinds.contains(&SamplerKind::Infill) {
            assert_eq!(candidates.n_all(), expected.n_all, "{kinds:?}, {} pieces, {params:?}", row.len());
        }
    }
}

/// Steps of one kind, over a row as it is, sorted, cut, in an order of its own, or with tokens masked; with `min_keep`, and with
/// other parameters set by `set`.
fn check_kind(kind: SamplerKind, seed: u32, set: impl Fn(&mut Cases, &mut SamplingParams)) {
    let before: [&[SamplerKind]; 8] = [
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
        let kinds = [cases.one_of(&before), &[kind]].concat();
        check(&kinds, &row, &params, cases.seed(), 1);
    });
}

#[test]
fn top_k_keeps_what_llama_cpp_keeps_in_its_order() {
    check_kind(SamplerKind::TopK, 1, |_, _| {});
}

#[test]
fn top_p_keeps_what_llama_cpp_keeps_in_its_order() {
    check_kind(SamplerKind::TopP, 2, |_, _| {});
}

#[test]
fn min_p_keeps_what_llama_cpp_keeps_in_its_order() {
    check_kind(SamplerKind::MinP, 3, |_, _| {});
}

#[test]
fn temperature_scales_as_llama_cpp_scales() {
    check_kind(SamplerKind::Temperature, 4, |cases, params| {
        (params.dynatemp_range, params.temperature) = (0.0, cases.one_of(&[-1.0, 0.0, 0.01, 0.5, 1.0, 3.0]));
    });
}

#[test]
fn dynamic_temperature_scales_as_llama_cpp_scales() {
    check_kind(SamplerKind::Temperature, 5, |cases, params| {
        (params.dynatemp_range, params.temperature) = (cases.between(0.01, 3.0), cases.one_of(&[-9.0, 0.0, 0.5, 1.0, 2.0]));
    });
}

#[test]
fn top_n_sigma_keeps_what_llama_cpp_keeps() {
    check_kind(SamplerKind::TopNSigma, 6, |cases, params| params.top_n_sigma = cases.between(0.01, 5.0));
}

#[test]
fn typical_p_keeps_what_llama_cpp_keeps_in_its_order() {
    for_cases(1_500, 7, |cases| {
        // Of more tokens than these some are equally near to the mean surprise, and llama.cpp leaves their order to its sort.
        let row = cases.row(120);
        let params = cases.params(row.len());
        // What is masked or next to impossible makes llama.cpp's entropy no number.
        let params = SamplingParams { logit_bias: Vec::new(), ignore_eos: false, ..params };
        let before: [&[SamplerKind]; 4] = [&[], &[SamplerKind::TopK], &[SamplerKind::TopP], &[SamplerKind::MinP]];
        check(&[cases.one_of(&before), &[SamplerKind::TypicalP]].concat(), &row, &params, 1, 1);
    });
}

#[test]
fn xtc_takes_away_what_llama_cpp_takes_away_as_often() {
    for_cases(1_000, 8, |cases| {
        let row = cases.row(2_000);
        let params = cases.params(row.len());
        let before: [&[SamplerKind]; 4] = [&[], &[SamplerKind::TopK], &[SamplerKind::TopNSigma], &[SamplerKind::Xtc]];
        check(&[cases.one_of(&before), &[SamplerKind::Xtc]].concat(), &row, &params, cases.seed(), 10);
    });
}

#[test]
fn two_hundred_chances_of_xtc_are_llama_cpps() {
    for_cases(20, 9, |cases| {
        let row = cases.row(100);
        let params = SamplingParams { xtc_probability: 0.4, xtc_threshold: 0.01, ..SamplingParams::default() };
        check(&[SamplerKind::Xtc], &row, &params, cases.seed(), 200);
    });
}

#[test]
fn infill_keeps_what_llama_cpp_keeps_in_its_order() {
    for_cases(1_500, 10, |cases| {
        let mut row = cases.row(1_000);
        // Few of the rows have likely ends by themselves.
        let lexicon = demo_lexicon();
        for &end in lexicon.end_tokens() {
            if let Some(logit) = row.get_mut(usize::try_from(end).unwrap()) {
                *logit += cases.one_of(&[0.0, -20.0, -4.0, 3.0]);
            }
        }
        let params = cases.params(row.len());
        let before: [&[SamplerKind]; 4] = [&[], &[SamplerKind::TopK], &[SamplerKind::TopP], &[SamplerKind::MinP]];
        check(&[cases.one_of(&before), &[SamplerKind::Infill]].concat(), &row, &params, 1, 1);
    });
}

#[test]
fn rows_of_a_large_vocabulary_are_sorted_as_llama_cpp_sorts_them() {
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
