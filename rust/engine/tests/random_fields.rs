//! Several clients, whose requests ask for different fields.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::context_shift::Shifting;
use super::*;
use crate::fake_runner::FailureMode;
use crate::request::{ContextShift, Progress, PromptLogprobs};
use crate::sampling;

const N_CTX_SLOT: usize = 192;

/// Source of a client's requests.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    fn size(&mut self, n: usize) -> usize {
        usize::try_from(self.below(n as u64)).unwrap()
    }

    fn number(&mut self, n: u32) -> u32 {
        u32::try_from(self.below(n.into())).unwrap()
    }

    fn request(&mut self) -> (String, Request) {
        let stem = prompt(self.below(3), 20 + 30 * self.size(4));
        let text = format!("{stem}{}", prompt(self.below(4), 1 + self.size(50)));
        let n_prompt = u32::try_from(text.len()).unwrap();
        let mut request = greedy(&text, self.number(300));
        request.n = 1 + self.number(3);
        request.uses_cache = self.below(4) > 0;
        request.priority = [-1, 0, 0, 1, 5][self.size(5)];
        request.reports_progress = self.below(3) == 0; // feature: prompt_logprobs
        request.prompt_logprobs = (self.below(4) == 0).then(|| self.number(4)); // feature: prompt_logprobs
        request.prompt_logprobs_from = request.prompt_logprobs.map_or(0, |_| self.number(2) * self.number(n_prompt));
        if self.below(2) == 0 {
            let n_keep = (self.below(4) > 0).then(|| self.number(250));
            request.context_shift = Some(ContextShift { n_keep, n_discard: self.number(2) * self.number(100) });
        }
        request.checkpoints_at = (0..self.number(4)).map(|_| 1 + self.number(n_prompt - 1)).collect();
        request.checkpoints_at.sort_unstable();
        request.checkpoints_at.dedup();
        (text, request)
    }
}

/// Returns the expected tokens of every branch of a request.
fn drawn_by(text: &str, request: &Request) -> (Vec<Token>, FinishReason) {
    let n = request.max_tokens.expect("the dice set it") as usize;
    let room = N_CTX_SLOT - text.len();
    match request.context_shift {
        None if n > room => (expected(text, room), FinishReason::ContextFull),
        None => (expected(text, n), FinishReason::Length),
        Some(ContextShift { n_keep, n_discard }) => {
            let n_keep = n_keep.map_or(text.len(), |n| n as usize).min(N_CTX_SLOT - 4);
            (Shifting::new(text, N_CTX_SLOT, n_keep, n_discard as usize).draw(n), FinishReason::Length)
        }
    }
}

/// Checks the prompt reports of a stream, and returns the remaining events.
fn explanation_of(text: &str, request: &Request, completions: Completions, n_events: usize) -> Vec<Event> {
    let (mut n_reported, mut last, mut rest) = (request.prompt_logprobs_from as usize, None, Vec::new());
    let tokens = tokens_of(text);
    for event in completions.take(n_events) {
        match event.expect("nothing fails") {
            Event::PromptLogprobs(PromptLogprobs { start, logprobs }) => {
                assert_eq!(start as usize, n_reported);
                for (at, reported) in (n_reported..).zip(&logprobs) {
                    let found = reported.as_ref().map(|reported| (reported.chosen.logprob, reported.top.len()));
                    let n_probs = request.prompt_logprobs.unwrap() as usize;
                    let logits = || FakeRunner::logits_after(&tokens[..at]);
                    let right = (at > 0).then(|| (sampling::logprobs(&logits(), tokens[at], 0).0, n_probs));
                    assert_eq!(found, right, "token {at} of {request:?}");
                }
                n_reported += logprobs.len();
            }
            Event::Progress(progress) => last = Some(progress),
            event => {
                let n_expected = if request.prompt_logprobs.is_some() { text.len() } else { 0 };
                assert_eq!(n_reported, n_expected, "all of the prompt is reported before the first token");
                let n_processed = last.map(|Progress { n_processed, .. }| n_processed as usize);
                assert_eq!(n_processed, request.reports_progress.then_some(text.len()));
                rest.push(event);
            }
        }
    }
    rest
}

fn random_requests(engine: &Engine) {
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            scope.spawn(move || {
                let mut dice = Dice(thread + 1);
                for round in 0..30 {
                    let (text, request) = dice.request();
                    let case = format!("client {thread}, round {round}: {request:?}");
                    let completions = engine.submit(request.clone(), None).expect("the request is valid");
                    if round % 7 == 3 {
                        explanation_of(&text, &request, completions, 12);
                        continue;
                    }
                    let (tokens, reason) = drawn_by(&text, &request);
                    let mut drawn = vec![Vec::new(); request.n as usize];
                    for event in explanation_of(&text, &request, completions, usize::MAX) {
                        match event {
                            Event::Token(token) => drawn[token.index as usize].push(token.token),
                            Event::Finished(end) => {
                                assert_eq!(end.reason, reason, "{case}");
                                assert!(end.index > 0 || request.uses_cache || end.usage.n_cached == 0, "{case}");
                            }
                            Event::Progress(_) | Event::PromptLogprobs(_) => unreachable!("they come first"),
                        }
                    }
                    assert!(drawn.iter().all(|drawn| *drawn == tokens), "{case}");
                }
            });
        }
    });
}

/// As [`random_requests`], while decodes fail now and then: tokens sampled before a failure are right.
fn random_failures(engine: &Engine, control: &FakeControl) -> usize {
    let n_failed = AtomicUsize::new(0);
    let (n_failed, is_over) = (&n_failed, &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..6_u64)
            .map(|thread| {
                scope.spawn(move || {
                    let mut dice = Dice(100 + thread);
                    for _ in 0..20 {
                        let (text, request) = dice.request();
                        let (tokens, _) = drawn_by(&text, &request);
                        let mut n_drawn = vec![0; request.n as usize];
                        for event in engine.submit(request.clone(), None).expect("the request is valid") {
                            match event {
                                Ok(Event::Token(token)) => {
                                    let n = &mut n_drawn[token.index as usize];
                                    assert_eq!(Some(&token.token), tokens.get(*n), "token {n} of {request:?}");
                                    *n += 1;
                                }
                                Ok(_) => {}
                                Err(Error::Decode { .. }) => drop(n_failed.fetch_add(1, Ordering::Relaxed)),
                                Err(other) => panic!("{other:?}"),
                            }
                        }
                    }
                })
            })
            .collect();
        scope.spawn(move || {
            let mut dice = Dice(7);
            while !is_over.load(Ordering::Relaxed) {
                let n_decodes = engine.stats().n_decodes + 1 + dice.below(20);
                while engine.stats().n_decodes < n_decodes && !is_over.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                let failing = [FailureMode::All, FailureMode::MoreRowsThan(1), FailureMode::MoreRowsThan(4)][dice.size(3)];
                control.fail(Some(failing));
                std::thread::yield_now();
                control.fail(None);
            }
        });
        let ended: Vec<_> = clients.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "a client has failed");
    });
    n_failed.load(Ordering::Relaxed)
}

#[test]
fn decodes_that_fail_at_random_release_everything() {
    let kinds = [(ForkRule::Anywhere, 64), (ForkRule::InWindow, 64), (ForkRule::AtEnd, 2)];
    let mut n_failed = 0;
    for (forks, n_more) in kinds {
        let limits = Limits {
            n_ctx_slot: u32::try_from(N_CTX_SLOT).unwrap(),
            n_seq_max: 4 + n_more,
            max_host_cache_bytes: Some(20_000),
            ..paced(4, 512)
        };
        let (engine, control) = start_with(limits, move |runner| runner.with_memory(MemoryKind { forks, ..MEMORY }));
        n_failed += random_failures(&engine, &control);
        settled(&engine, &control);
    }
    assert!(n_failed > 10, "only {n_failed} requests met a decode that failed");
}

#[test]
fn random_requests_get_exactly_the_fields_they_ask_for() {
    let kinds = [(ForkRule::Anywhere, 64), (ForkRule::InWindow, 64), (ForkRule::AtEnd, 2)];
    for (forks, n_more) in kinds {
        for (max_host_cache_bytes, n_ctx) in [(STORE, 512), (Some(20_000), 512), (Some(0), 256), (STORE, 1024)] {
            let n_slots = 4;
            let limits = Limits {
                n_ctx_slot: u32::try_from(N_CTX_SLOT).unwrap(),
                n_seq_max: n_slots + n_more,
                max_host_cache_bytes,
                ..paced(n_slots, n_ctx)
            };
            let (engine, control) = start_with(limits, move |runner| runner.with_memory(MemoryKind { forks, ..MEMORY }));
            random_requests(&engine);
            settled(&engine, &control);
        }
    }
}
