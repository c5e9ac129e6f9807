//! Compares the steps that depend on previous tokens.

use super::cases::for_cases;
use super::llama_sampler::LlamaSampler;
use super::{N_CTX, demo_token_strings};
use crate::request::{SamplerKind, SamplingParams};
use crate::sampling::candidates::Candidates;
use crate::sampling::chain::Chain;

/// Compares the penalized row, and its best tokens after penalties, with llama.cpp's after the same history.
fn check_kinds(kinds: &[SamplerKind], n_cases: usize, seed: u32) {
    let token_strings = demo_token_strings();
    for_cases(n_cases, seed, |cases| {
        let row = cases.row(2_000);
        let params = cases.params(row.len());
        let history = cases.history(row.len());
        let mut ours = Chain::new(kinds, &params, 1, &token_strings, N_CTX);
        let expected_chain = LlamaSampler::steps(kinds, row.len(), &params, 1, token_strings.end_tokens());
        let n_prompt = cases.below(history.len() + 1);
        ours.accept_prompt(&history[..n_prompt].into());
        for &token in &history[n_prompt..] {
            ours.accept(token);
        }
        expected_chain.accept_all(&history);
        let mut candidates = Candidates::default();
        ours.apply(&row, &mut candidates);
        let list: Vec<_> = candidates.list.iter().map(|candidate| (candidate.token, candidate.logit)).collect();
        let expected = expected_chain.apply(&row);
        assert_eq!(list, expected.list, "{params:?}\n{history:?}");
        assert_eq!(candidates.n_all(), expected.n_all);
    });
}

#[test]
fn penalties_match_llama_cpp() {
    check_kinds(&[SamplerKind::Penalties], 1_000, 20);
    check_kinds(&[SamplerKind::TopK, SamplerKind::Penalties], 500, 21);
}

#[test]
fn dry_matches_llama_cpp() {
    check_kinds(&[SamplerKind::Dry], 1_500, 22);
    check_kinds(&[SamplerKind::TopK, SamplerKind::Dry], 500, 23);
}

#[test]
fn combined_and_repeated_penalties_match_llama_cpp() {
    check_kinds(&[SamplerKind::Penalties, SamplerKind::Dry, SamplerKind::Penalties], 500, 24);
    check_kinds(&[SamplerKind::Dry, SamplerKind::Temperature, SamplerKind::Penalties, SamplerKind::Dry], 500, 25);
}

/// Tests the definition: the behaviour of llama.cpp until it dropped the fields.
#[test]
fn newlines_can_be_exempt_and_penalties_can_use_another_prompt() {
    let token_strings = demo_token_strings();
    let newline = token_strings.newline().expect("the demo model has one");
    for_cases(1_000, 26, |cases| {
        let row = cases.row(2_000);
        let mut params = cases.params(row.len());
        let (prompt, answer) = (cases.history(row.len()), cases.history(row.len().min(newline.unsigned_abs() as usize + 5)));
        let penalty_prompt = cases.one_of(&[true, false]).then(|| cases.history(row.len()));
        params.penalize_nl = cases.one_of(&[true, false]);
        params.penalty_prompt.clone_from(&penalty_prompt);
        params.samplers = vec![SamplerKind::Penalties];
        let kinds = [SamplerKind::Penalties];
        let mut ours = Chain::new(&kinds, &params, 1, &token_strings, N_CTX);
        let plain = SamplingParams { penalize_nl: true, penalty_prompt: None, ..params.clone() };
        let expected_chain = LlamaSampler::steps(&kinds, row.len(), &plain, 1, token_strings.end_tokens());
        ours.accept_prompt(&prompt.as_slice().into());
        for &token in &answer {
            ours.accept(token);
        }
        expected_chain.accept_all(&penalty_prompt.unwrap_or(prompt));
        expected_chain.accept_all(&answer);
        let mut candidates = Candidates::default();
        ours.apply(&row, &mut candidates);
        let biased = LlamaSampler::steps(&[], row.len(), &plain, 1, token_strings.end_tokens()).apply(&row).list;
        let mut expected = expected_chain.apply(&row).list;
        if !params.penalize_nl {
            let unpenalized = biased.iter().find(|(token, _)| *token == newline);
            expected.iter_mut().filter(|(token, _)| *token == newline).for_each(|(_, logit)| *logit = unpenalized.unwrap().1);
        }
        let list: Vec<_> = candidates.list.iter().map(|candidate| (candidate.token, candidate.logit)).collect();
        assert_eq!(list, expected, "{params:?}");
    });
}
