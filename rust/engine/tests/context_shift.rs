//! Context shifts: generation continues as if the kept tokens were the prompt.

use super::*;
use crate::request::ContextShift;

/// Returns the tokens that a sequence with context shifts samples, and the number of tokens it computes: each sampled token but
/// the last, and, after each shift, the kept tokens that followed the dropped ones.
pub(super) struct Shifting {
    n_ctx: usize,
    n_keep: usize,
    n_discard: usize,
    tokens: Vec<Token>,
    n_again: usize,
    n_shifts: usize,
}

impl Shifting {
    pub(super) fn new(text: &str, n_ctx: usize, n_keep: usize, n_discard: usize) -> Self {
        Self { n_ctx, n_keep, n_discard, tokens: tokens_of(text), n_again: 0, n_shifts: 0 }
    }

    pub(super) fn draw(&mut self, n: usize) -> Vec<Token> {
        (0..n)
            .map(|_| {
                if self.tokens.len() == self.n_ctx {
                    let n_left = self.n_ctx - 1 - self.n_keep;
                    let n_wanted = if self.n_discard > 0 { self.n_discard } else { n_left / 2 };
                    let n_dropped = n_wanted.min(n_left - 1);
                    self.tokens.drain(self.n_keep..self.n_keep + n_dropped);
                    self.n_again += n_left - n_dropped;
                    self.n_shifts += 1;
                }
                let token = FakeRunner::next_token(&self.tokens);
                self.tokens.push(token);
                token
            })
            .collect()
    }
}

fn shifting(text: &str, n: u32, n_keep: Option<u32>, n_discard: u32) -> Request {
    Request { context_shift: Some(ContextShift { n_keep, n_discard }), ..greedy(text, n) }
}

const KINDS: [ForkRule; 2] = [ForkRule::Anywhere, ForkRule::AtEnd];

fn start_kind(n_slots: u32, n_ctx: u32, forks: ForkRule, max_host_cache_bytes: Option<u64>) -> (Engine, FakeControl) {
    let n_seq_max = n_slots + if forks == ForkRule::AtEnd { 2 } else { 64 };
    let limits = Limits { n_seq_max, max_host_cache_bytes, ..limits(n_slots, n_ctx) };
    start_with(limits, move |runner| runner.with_memory(MemoryKind { forks, ..MEMORY }))
}

#[test]
fn a_shifted_context_continues_like_the_kept_tokens() {
    for forks in KINDS {
        for (n_keep, n_discard) in [(Some(0), 0), (Some(20), 0), (None, 0), (Some(7), 100), (Some(1_000), 0)] {
            let (engine, control) = start_kind(1, 256, forks, STORE);
            let text = prompt(1, 100);
            let branch = run(&engine, shifting(&text, 900, n_keep, n_discard)).remove(0);
            let n_kept = n_keep.map_or(100, |n| n.min(252)) as usize;
            let mut reference = Shifting::new(&text, 256, n_kept, n_discard as usize);
            let case = format!("{forks:?} keeping {n_keep:?}, dropping {n_discard}");
            assert_eq!(branch.tokens, reference.draw(900), "{case}");
            let Finished { reason, usage, is_truncated, .. } = branch.finished;
            assert_eq!((reason, is_truncated), (FinishReason::Length, true), "{case}");
            assert_eq!((usage.n_prompt_computed, usage.n_cached, usage.n_predicted), (100, 0, 900), "{case}");
            assert_eq!(usage.n_context as usize, reference.tokens.len() - 1, "{case}");
            if n_keep == Some(1_000) {
                // A few tokens that repeat may already be a cached text.
                continue;
            }
            let n_once = 100 + 900 - 1 + reference.n_again;
            // Recurrent memory starts again, except from a checkpoint at the end of the prompt.
            let is_anew = forks == ForkRule::AtEnd && n_keep.is_some();
            let n_expected = n_once + if is_anew { reference.n_shifts * n_kept } else { 0 };
            // Sometimes the moved tokens begin with the token that was there before.
            let n_same = n_expected - control.n_computed();
            assert!(n_same <= reference.n_shifts, "{case}: {n_same} of {n_expected} tokens were not computed");
        }
    }
}

#[test]
fn without_a_shift_a_full_context_ends_the_branch_as_truncated() {
    let (engine, _) = start(limits(1, 256));
    let ends = |n: u32| {
        let finished = run(&engine, greedy(&prompt(1, 100), n)).remove(0).finished;
        (finished.reason, finished.is_truncated, finished.usage.n_context)
    };
    assert_eq!(ends(200), (FinishReason::ContextFull, true, 255));
    assert_eq!(ends(156), (FinishReason::Length, true, 255));
    assert_eq!(ends(155), (FinishReason::Length, false, 254));
    assert_eq!(ends(0), (FinishReason::Length, false, 100));
}

#[test]
fn a_prompt_that_fills_the_context_is_refused_even_with_context_shift() {
    let (engine, _) = start(limits(1, 256));
    let refused = engine.submit(shifting(&prompt(1, 256), 1, None, 0), None).err();
    assert_eq!(refused, Some(Error::ContextOverflow { n_prompt: 256, n_ctx: 256 }));
    // Its first token fills the context.
    let branch = run(&engine, shifting(&prompt(1, 255), 9, None, 0)).remove(0);
    assert_eq!(branch.tokens, Shifting::new(&prompt(1, 255), 256, 252, 0).draw(9));
}

#[test]
fn every_branch_shifts_separately_and_shared_cells_stay() {
    for forks in KINDS {
        for max_host_cache_bytes in [STORE, Some(0)] {
            let (engine, control) = start_kind(3, 1024, forks, max_host_cache_bytes);
            let (engine, control) = (&engine, &control);
            let request = Request { n: 7, ..shifting(&prompt(1, 200), 1_200, Some(50), 0) };
            let branches = run(engine, request.clone());
            let alone = Shifting::new(&prompt(1, 200), 1024, 50, 0).draw(1_200);
            assert!(branches.iter().all(|branch| branch.tokens == alone), "{forks:?}");
            assert!(engine.stats().n_preempted > 0, "three do not fit");
            // All streams are intact, and the prompt is still cached, or was kept.
            let before = control.n_computed();
            let short = run(engine, greedy(&prompt(1, 200), 2)).remove(0);
            assert_eq!(short.tokens, expected(&prompt(1, 200), 2));
            if max_host_cache_bytes == STORE {
                assert!(control.n_computed() - before <= 2, "{forks:?}: {}", control.n_computed() - before);
            }
        }
    }
}

#[test]
fn other_streams_get_a_token_in_every_step_while_a_shifted_context_is_recomputed() {
    let (engine, control) = start(Limits { n_ctx_slot: 1024, ..limits(2, 4096) });
    control.allow(Some(0));
    let endless = engine.submit(shifting(&prompt(1, 1000), 200, Some(0), 400), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_predicted > 0);
    let other = engine.submit(greedy(&prompt(2, 20), 300), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_waiting == 0 && stats.n_predicted > 3);
    let n_before = control.plans().len();
    let other_id = control.plans()[n_before - 1].rows.iter().find(|row| row.position < 500).unwrap().sequence;
    control.allow(None);
    assert_eq!(collect(endless).unwrap()[0].tokens, Shifting::new(&prompt(1, 1000), 1024, 0, 400).draw(200));
    assert_eq!(collect(other).unwrap()[0].tokens, expected(&prompt(2, 20), 300));
    let plans = control.plans().into_iter().skip(n_before);
    let large: Vec<_> = plans.filter(|plan| plan.rows.len() > 2).collect();
    assert!(large.len() > 1, "623 tokens take several steps");
    assert!(large.iter().all(|plan| plan.rows.iter().filter(|row| row.sequence == other_id && row.wants_logits).count() == 1));
}

#[test]
fn two_endless_sequences_alternate_when_only_one_fits() {
    for forks in KINDS {
        let (engine, control) = start_kind(2, 256, forks, STORE);
        control.allow(Some(0));
        let streams = [1, 2].map(|seed| engine.submit(shifting(&prompt(seed, 60), 700, Some(10), 1), None).unwrap());
        control.allow(None);
        for (seed, stream) in (1..).zip(streams) {
            assert_eq!(collect(stream).unwrap()[0].tokens, Shifting::new(&prompt(seed, 60), 256, 10, 1).draw(700), "{forks:?}");
        }
    }
}

#[test]
fn a_branch_without_a_limit_runs_until_its_stream_is_closed() {
    let (engine, _) = start(limits(1, 256));
    let stream = engine.submit(Request { max_tokens: None, ..shifting(&prompt(1, 60), 0, None, 0) }, None).unwrap();
    let mut reference = Shifting::new(&prompt(1, 60), 256, 60, 0);
    for token in reference.draw(2_000) {
        assert!(matches!(stream.wait(), Some(Ok(Event::Token(event))) if event.token == token));
    }
    assert_eq!(engine.stats().slots[0].running.as_ref().map(|running| running.n_remaining), Some(None));
    drop(stream);
    wait_until(&engine, is_idle);
}

#[test]
fn a_context_is_shifted_early_when_pinned_prompts_take_the_rest_of_the_device_cache() {
    let (engine, _) = start(limits(1, 512));
    pin(&engine, &prompt(5, 200));
    let branch = run(&engine, shifting(&prompt(1, 60), 900, Some(0), 0)).remove(0);
    assert_eq!((branch.tokens.len(), branch.finished.reason), (900, FinishReason::Length));
    // It has 312 tokens and samples one more: then half of them are dropped.
    assert_eq!(branch.tokens, Shifting::new(&prompt(1, 60), 313, 0, 0).draw(900));
    let before = engine.stats().n_computed;
    run(&engine, greedy(&prompt(5, 200), 1));
    assert_eq!(engine.stats().n_computed - before, 1, "the pinned prompt is there");
}

#[test]
fn the_slot_contains_the_tokens_of_the_shifted_context() {
    let (engine, control) = start(limits(1, 256));
    control.allow(Some(0));
    let stream = engine.submit(shifting(&prompt(1, 200), 100, Some(10), 0), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_predicted == 60);
    let mut reference = Shifting::new(&prompt(1, 200), 256, 10, 0);
    reference.draw(60);
    let held = answer_while_held(&control, || engine.slot_contents(0).unwrap().tokens);
    let n_common = held.iter().zip(&reference.tokens).take_while(|(a, b)| a == b).count();
    assert!(n_common >= reference.tokens.len() - 1, "{n_common} of {}", reference.tokens.len());
    control.allow(None);
    collect(stream).unwrap();
}
