//! Branches that are sampled jointly: with distinct first tokens, or spread over the distribution.

use super::*;
use crate::request::{Constraint, ConstraintSource, Diversity, SharedConstraint};

/// Any token can be sampled.
fn open(prompt: &str, n: u32, max_tokens: u32, diversity: Diversity) -> Request {
    let mut request = Request { diversity, ..drawn(prompt, n, max_tokens) };
    (request.sampling.top_k, request.sampling.top_p, request.sampling.min_p) = (0, 1.0, 0.0);
    request
}

fn firsts(branches: &[BranchState]) -> Vec<Token> {
    branches.iter().filter_map(|branch| branch.tokens.first().copied()).collect()
}

fn n_different(mut tokens: Vec<Token>) -> usize {
    tokens.sort_unstable();
    tokens.dedup();
    tokens.len()
}

#[test]
fn distinct_branches_have_different_first_tokens_even_if_they_start_at_different_times() {
    for n_slots in [2, 32] {
        let (engine, control) = start(limits(n_slots, 4096));
        let branches = run(&engine, open(&prompt(1, 100), 32, 6, Diversity::Distinct));
        assert_eq!(n_different(firsts(&branches)), 32);
        assert_eq!(control.n_computed(), 100 + 32 * 5);
        let independent = run(&engine, open(&prompt(1, 100), 32, 6, Diversity::None));
        assert!(n_different(firsts(&independent)) < 32, "by chance some would");
    }
}

#[test]
fn distinct_branches_depend_only_on_the_seed() {
    let texts = |seed, n_slots| {
        let (engine, _) = start(limits(n_slots, 4096));
        let request = Request { seed, ..open(&prompt(1, 100), 8, 6, Diversity::Distinct) };
        run(&engine, request).into_iter().map(|branch| branch.tokens).collect::<Vec<_>>()
    };
    assert_eq!(texts(5, 8), texts(5, 3));
    assert_ne!(texts(5, 8), texts(6, 8));
}

#[test]
fn branches_without_a_remaining_first_token_are_empty() {
    let (engine, _) = start(limits(4, 4096));
    let mut request = open(&prompt(1, 50), 5, 4, Diversity::Distinct);
    request.sampling.top_k = 3;
    let branches = run(&engine, request);
    assert_eq!(branches.iter().map(|branch| branch.tokens.len()).collect::<Vec<_>>(), [4, 4, 4, 0, 0]);
    assert_eq!(reasons(&branches)[3..], [FinishReason::End(None), FinishReason::End(None)]);
    assert_eq!(n_different(firsts(&branches)), 3);
}

/// Allows the even tokens.
#[derive(Debug)]
struct Even;

impl ConstraintSource for Even {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(Self)
    }
}

impl Constraint for Even {
    fn allows(&mut self, token: Token) -> bool {
        token % 2 == 0
    }

    fn mask(&mut self, logits: &mut [f32]) {
        logits.iter_mut().skip(1).step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
    }

    fn accept(&mut self, token: Token) {
        assert_eq!(token % 2, 0);
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(Self)
    }
}

#[test]
fn jointly_sampled_tokens_satisfy_the_constraint() {
    for diversity in [Diversity::Distinct, Diversity::Arithmetic] {
        let (engine, _) = start(limits(8, 4096));
        let mut request = open(&prompt(1, 50), 8, 6, diversity);
        request.constraint = Some(SharedConstraint(std::sync::Arc::new(Even)));
        let branches = run(&engine, request);
        assert!(branches.iter().flat_map(|branch| &branch.tokens).all(|token| token % 2 == 0));
        assert!(n_different(firsts(&branches)) > 4);
    }
}

#[test]
fn code_points_spread_the_branches_over_the_distribution() {
    const N: u32 = 200;
    let (engine, control) = start(limits(16, 8192));
    let branches = run(&engine, open(&prompt(1, 100), N, 2, Diversity::Arithmetic));
    assert_eq!(control.n_computed(), 100 + 200);
    let row: Vec<f64> = FakeRunner::logits_after(&tokens_of(&prompt(1, 100))).into_iter().map(f64::from).collect();
    let weights: Vec<f64> = row.iter().enumerate().map(|(at, logit)| if at == 3 { 0.0 } else { logit.exp() }).collect();
    let total: f64 = weights.iter().sum();
    for (token, weight) in (0..).zip(weights) {
        let n = firsts(&branches).into_iter().filter(|&first| first == token).count();
        let expected = weight / total * f64::from(N);
        assert!((expected - f64::from(u32::try_from(n).unwrap())).abs() < 1.0 + 1e-6, "token {token}: {n} of {expected}");
    }
}

#[test]
fn diversity_is_refused_for_branches_of_several_requests() {
    let (engine, _) = start(limits(2, 256));
    for diversity in [Diversity::Distinct, Diversity::Arithmetic] {
        let requests = vec![open("hello", 1, 2, diversity), open("hello", 1, 2, Diversity::None)];
        let refused = engine.submit_branches(requests, None).err();
        assert!(matches!(refused, Some(Error::InvalidRequest { param: "branches", .. })));
    }
}
