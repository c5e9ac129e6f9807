//! Branches with a constraint.

use std::sync::{Arc, Mutex};

use super::*;
use crate::fake_runner::{END, N_VOCAB};
use crate::request::{Constraint, ConstraintSource, SharedConstraint};

/// Allows these tokens one after the other, then the end; panics if it receives another one.
#[derive(Debug)]
struct Script {
    tokens: Vec<Token>,
    /// Number of masked rows.
    n_masked: Arc<Mutex<u32>>,
}

#[derive(Clone)]
struct Reading {
    tokens: Vec<Token>,
    n_masked: Arc<Mutex<u32>>,
    /// The token that was last checked and allowed.
    allowed: Option<Token>,
}

impl ConstraintSource for Script {
    fn start(&self) -> Box<dyn Constraint> {
        let tokens = self.tokens.iter().rev().copied().collect();
        Box::new(Reading { tokens, n_masked: Arc::clone(&self.n_masked), allowed: None })
    }
}

impl Constraint for Reading {
    fn allows(&mut self, token: Token) -> bool {
        self.allowed = Some(token).filter(|token| token == self.tokens.last().unwrap_or(&END));
        self.allowed.is_some()
    }

    fn mask(&mut self, logits: &mut [f32]) {
        *self.n_masked.lock().unwrap() += 1;
        let next = *self.tokens.last().unwrap_or(&END);
        for (_, logit) in (0..).zip(logits).filter(|&(token, _)| token != next) {
            *logit = f32::NEG_INFINITY;
        }
    }

    fn accept(&mut self, token: Token) {
        assert_eq!(self.allowed.take(), Some(token), "a constraint is told only what it has just allowed");
        self.tokens.pop();
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// Returns the request with its branches constrained to `tokens`, and the counter of masked rows.
pub(super) fn held_to(request: Request, tokens: Vec<Token>) -> (Request, Arc<Mutex<u32>>) {
    let n_masked = Arc::default();
    let script = Script { tokens, n_masked: Arc::clone(&n_masked) };
    (Request { constraint: Some(SharedConstraint(Arc::new(script))), ..request }, n_masked)
}

#[test]
fn every_branch_starts_its_own_constraint() {
    let (engine, _) = start(limits(2, 4096));
    let script = tokens_of("so-it-is-written");
    let (request, _) = held_to(drawn(&prompt(1, 20), 5, 100), script.clone());
    let branches = run(&engine, request);
    for branch in &branches {
        assert_eq!(branch.text, "so-it-is-written");
        assert_eq!(branch.tokens, [&script[..], &[END]].concat());
        assert_eq!(branch.finished.reason, FinishReason::End(Some(END)));
    }
    assert_eq!(branches.len(), 5);
}

#[test]
fn an_allowed_token_is_sampled_without_masking_the_row() {
    let (engine, _) = start(limits(1, 4096));
    let free = run(&engine, drawn(&prompt(2, 30), 1, 12));
    let (request, n_masked) = held_to(drawn(&prompt(2, 30), 1, 12), free[0].tokens.clone());
    assert_eq!(run(&engine, request)[0].tokens, free[0].tokens);
    assert_eq!(*n_masked.lock().unwrap(), 0);
}

#[test]
fn a_rejected_token_is_sampled_again_with_the_next_random_number() {
    let (engine, _) = start(limits(1, 4096));
    let free = run(&engine, drawn(&prompt(2, 30), 1, 3));
    let other = if free[0].tokens[0] == 40 { 41 } else { 40 };
    let (request, n_masked) = held_to(drawn(&prompt(2, 30), 1, 3), vec![other, 50, 51]);
    assert_eq!(run(&engine, request)[0].tokens, [other, 50, 51]);
    assert!((1..=3).contains(&*n_masked.lock().unwrap()));
}

#[test]
fn a_preempted_branch_continues_its_constraint() {
    // Two branches of 20 + 60 tokens do not fit 128 cells together, so they alternate.
    let (engine, _) = start(limits(2, 128));
    let script: Vec<Token> = tokens_of(&prompt(7, 60));
    let (request, _) = held_to(drawn(&prompt(1, 20), 2, 100), script.clone());
    for branch in run(&engine, request) {
        assert_eq!(branch.tokens[..60], script);
        assert_eq!(branch.finished.reason, FinishReason::End(Some(END)));
    }
    assert!(engine.stats().n_preempted > 0, "nobody had to wait");
}

#[test]
fn a_branch_without_an_allowed_token_ends() {
    let (engine, _) = start(limits(1, 4096));
    let mut request = greedy(&prompt(1, 20), 50);
    request.sampling.ignore_eos = true;
    // Held back until a stop string is ruled out.
    request.stop = vec!["written-down".into()];
    let (request, _) = held_to(request, tokens_of("it-is-written"));
    let branches = run(&engine, request);
    assert_eq!(branches[0].text, "it-is-written");
    assert_eq!(branches[0].finished.reason, FinishReason::End(Some(END)));
    assert_eq!(branches[0].tokens.last(), Some(&END));
}

#[test]
fn a_branch_without_an_end_token_ends_without_one() {
    let (engine, _) = start_with(limits(1, 4096), FakeRunner::without_end);
    let script = tokens_of("done");
    // Token 0 does not end the text, and is the one a sampler takes if none is possible.
    let mut request = greedy(&prompt(1, 20), 50);
    request.sampling.logit_bias = vec![(END, f32::NEG_INFINITY)];
    // Its end is held back until a stop string is ruled out.
    request.stop = vec!["one by one".into()];
    let n_masked = Arc::default();
    let stuck = Stuck(Script { tokens: script.clone(), n_masked });
    request.constraint = Some(SharedConstraint(Arc::new(stuck)));
    let branches = run(&engine, request);
    assert_eq!((&branches[0].text[..], &branches[0].finished.text[..]), ("done", "one"));
    assert_eq!((branches[0].tokens.clone(), branches[0].finished.reason.clone()), (script, FinishReason::End(None)));
    assert_eq!(engine.stats().n_predicted, 4);
    // A branch whose first token is not allowed has still computed its prompt.
    let nothing = Stuck(Script { tokens: Vec::new(), n_masked: Arc::default() });
    let constraint = Some(SharedConstraint(Arc::new(nothing)));
    let branches = run(&engine, Request { constraint, ..greedy(&prompt(3, 20), 50) });
    let Finished { reason, usage, .. } = &branches[0].finished;
    assert_eq!((reason, usage.n_predicted), (&FinishReason::End(None), 0));
    assert!(usage.prompt_ms > 0.0, "{usage:?}");
}

/// As the wrapped script, but the end is rejected like everything else after it.
#[derive(Debug)]
struct Stuck(Script);

struct StuckReading(Box<dyn Constraint>, usize);

impl ConstraintSource for Stuck {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(StuckReading(self.0.start(), self.0.tokens.len()))
    }
}

impl Constraint for StuckReading {
    fn allows(&mut self, token: Token) -> bool {
        self.1 > 0 && self.0.allows(token)
    }

    fn mask(&mut self, logits: &mut [f32]) {
        assert_eq!(logits.len(), N_VOCAB);
        if self.1 > 0 { self.0.mask(logits) } else { logits.fill(f32::NEG_INFINITY) }
    }

    fn accept(&mut self, token: Token) {
        self.1 -= 1;
        self.0.accept(token);
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(Self(self.0.copy(), self.1))
    }
}
