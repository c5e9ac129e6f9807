//! Reports about prompts, and prompts that use no cache.

use super::*;
use crate::request::{Logprobs, Progress, PromptLogprobs};
use crate::sampling;

/// Returns the prompt logprobs, after checking their order, and the remaining events.
fn prompt_logprobs(completions: Completions) -> (Vec<Option<Logprobs>>, Vec<Event>) {
    let events: Vec<Event> = completions.map(Result::unwrap).collect();
    let mut logprobs = Vec::new();
    let mut rest = Vec::new();
    for event in events {
        match event {
            Event::PromptLogprobs(PromptLogprobs { start, logprobs: more }) => {
                assert_eq!(start as usize, logprobs.len(), "each token once, in order");
                assert!(rest.is_empty(), "before the first token");
                assert!(more.len() <= 1 << 10, "in bounded pieces");
                logprobs.extend(more);
            }
            event => rest.push(event),
        }
    }
    (logprobs, rest)
}

#[test]
fn a_prompt_is_computed_in_chunks_of_at_most_the_requested_size() {
    // Without measurements, chunks grow from 16 tokens on.
    for (max_chunk, most) in [(Some(1), 1), (Some(7), 7), (Some(1_000), 264), (None, 264)] {
        let (engine, control) = start(limits(2, 4096));
        let branches = run(&engine, Request { max_chunk, ..greedy(&prompt(1, 600), 3) });
        assert_eq!(branches[0].tokens.len(), 3);
        let largest = control.plans().iter().map(|plan| plan.rows.len()).max();
        assert_eq!(largest, Some(most), "{max_chunk:?}");
    }
}

fn asking(prompt: &str, n: u32, n_probs: u32) -> Request {
    Request { n, prompt_logprobs: Some(n_probs), ..greedy(prompt, 3) }
}

fn check(text: &str, n_probs: usize, logprobs: &[Option<Logprobs>]) {
    let tokens = tokens_of(text);
    assert_eq!(logprobs.len(), tokens.len());
    assert_eq!(logprobs[0], None);
    for (at, logprobs) in logprobs.iter().enumerate().skip(1) {
        let logprobs = logprobs.as_ref().expect("only the first has none");
        let (chosen, top) = sampling::logprobs(&FakeRunner::logits_after(&tokens[..at]), tokens[at], n_probs);
        assert_eq!((logprobs.chosen.token, logprobs.chosen.logprob), (tokens[at], chosen), "token {at}");
        let found: Vec<_> = logprobs.top.iter().map(|top| (top.token, top.logprob)).collect();
        assert_eq!(found, top, "token {at}");
    }
}

#[test]
fn every_prompt_token_has_the_logprob_of_the_preceding_row() {
    for (n_slots, n_prompt) in [(2, 300), (2, 1), (2, 2), (2, 66), (2, 67), (1, 64)] {
        let (engine, control) = start(limits(n_slots, 2048));
        let text = prompt(1, n_prompt);
        let (logprobs, rest) = prompt_logprobs(engine.submit(asking(&text, 1, 3), None).unwrap());
        check(&text, 3, &logprobs);
        assert_eq!(rest.len(), 4);
        assert_eq!(control.n_computed(), n_prompt + 2, "no row twice");
    }
}

#[test]
fn prompt_logprobs_are_reported_once_for_all_branches_and_also_without_completions() {
    let (engine, control) = start(limits(2, 2048));
    let text = prompt(1, 200);
    let (logprobs, rest) = prompt_logprobs(engine.submit(asking(&text, 5, 0), None).unwrap());
    check(&text, 0, &logprobs);
    assert_eq!(rest.len(), 5 * 4);
    assert_eq!(control.n_computed(), 200 + 5 * 2);
    let whole = Request { max_tokens: Some(0), ..asking(&text, 1, 2) };
    let (logprobs, rest) = prompt_logprobs(engine.submit(whole, None).unwrap());
    check(&text, 2, &logprobs);
    assert!(matches!(&rest[..], [Event::Finished(Finished { reason: FinishReason::Length, usage, .. })] if usage.n_cached == 0));
}

/// Creates a request for the prompt logprobs from `from` on, without completions.
fn scoring(text: &str, from: usize) -> Request {
    let prompt_logprobs_from = u32::try_from(from).unwrap();
    Request { max_tokens: Some(0), prompt_logprobs_from, ..asking(text, 1, 1) }
}

/// Checks the logprobs of the tokens from `from` on.
fn check_from(text: &str, from: usize, completions: Completions) {
    let tokens = tokens_of(text);
    let mut at = from;
    for event in completions.map(Result::unwrap) {
        let Event::PromptLogprobs(PromptLogprobs { start, logprobs }) = event else { continue };
        assert_eq!(start as usize, at, "each token once, in order");
        for reported in logprobs {
            let (chosen, top) = sampling::logprobs(&FakeRunner::logits_after(&tokens[..at]), tokens[at], 1);
            let reported = reported.expect("only the first has none");
            assert_eq!((reported.chosen.token, reported.chosen.logprob), (tokens[at], chosen), "token {at}");
            assert_eq!((reported.top[0].token, reported.top[0].logprob), top[0], "token {at}");
            at += 1;
        }
    }
    assert_eq!(at, tokens.len());
}

#[test]
fn many_continuations_of_one_prompt_compute_it_once_and_run_together() {
    for kind in [ForkRule::Anywhere, ForkRule::AtEnd] {
        let limits = Limits { max_host_cache_bytes: STORE, ..limits(8, 4096) };
        let (engine, control) = start_with(limits, move |runner| runner.with_memory(MemoryKind { forks: kind, ..MEMORY }));
        control.allow(Some(0));
        let document = prompt(1, 400);
        // No two have an equal beginning.
        let own = |seed: u8| format!("{}{}", char::from(b'A' + seed), prompt(seed.into(), 4 + usize::from(seed % 3)));
        let texts: Vec<String> = (0..16).map(|seed| format!("{document}{}", own(seed))).collect();
        let streams: Vec<_> = texts.iter().map(|text| engine.submit(scoring(text, 400), None).unwrap()).collect();
        control.allow(None);
        for (text, stream) in texts.iter().zip(streams) {
            check_from(text, 400, stream);
        }
        let n_continued: usize = texts.iter().map(|text| text.len() - 400).sum();
        // Each but the first computes the last token of the document, for the row after it.
        assert_eq!(control.n_computed(), 400 + n_continued + 15, "{kind:?}");
        let n_shared = control.plans().iter().filter(|plan| plan.rows.iter().all(|row| row.position >= 399)).count();
        // The first one's own, and fifteen in eight slots.
        assert!(n_shared <= 4, "{n_shared} decodes, {kind:?}");
    }
}

#[test]
fn cached_prompt_logprobs_are_reported_without_computing() {
    let (engine, control) = start_with_host_cache(4, 2048);
    let document = prompt(1, 300);
    for (own, n_computed) in [("A", 311), ("B", 12), ("C", 12), ("B", 1)] {
        let text = format!("{document}{own}{}", prompt(2, 10));
        let before = control.n_computed();
        check_from(&text, 1, engine.submit(scoring(&text, 1), None).unwrap());
        assert_eq!(control.n_computed() - before, n_computed, "{own}");
    }
    let text = format!("{document}B{}", prompt(2, 10));
    let before = control.n_computed();
    // More top logprobs than are cached.
    let (logprobs, _) = prompt_logprobs(engine.submit(Request { max_tokens: Some(0), ..asking(&text, 1, 2) }, None).unwrap());
    check(&text, 2, &logprobs);
    assert_eq!(control.n_computed() - before, 311);
    let before = control.n_computed();
    let (logprobs, _) = prompt_logprobs(engine.submit(Request { uses_cache: false, ..asking(&text, 1, 1) }, None).unwrap());
    check(&text, 1, &logprobs);
    assert_eq!(control.n_computed() - before, 311 + 2);
    let (logprobs, _) = prompt_logprobs(engine.submit(asking(&text, 2, 0), None).unwrap());
    check(&text, 0, &logprobs);
}

#[test]
fn recurrent_memory_computes_unreported_tokens_after_one_checkpoint() {
    let limits =
        Limits { max_host_cache_bytes: STORE, checkpoints: Checkpoints { max_per_prompt: 4, min_step: 64 }, ..limits(4, 2048) };
    let memory = MemoryKind { forks: ForkRule::AtEnd, ..MEMORY };
    let (engine, control) = start_with(limits, move |runner| runner.with_memory(memory));
    let document = prompt(1, 300);
    // The second one continues from the last checkpoint before it diverges from the first, and saves a state there.
    for (own, n_computed) in [("A", 311), ("B", 311 - 4 * 64), ("C", 12), ("D", 12)] {
        let text = format!("{document}{own}{}", prompt(2, 10));
        let before = control.n_computed();
        check_from(&text, 1, engine.submit(scoring(&text, 1), None).unwrap());
        assert_eq!(control.n_computed() - before, n_computed, "{own}");
    }
}

#[test]
fn prompts_with_logprobs_wait_for_equal_prompts_with_logprobs() {
    let (engine, control) = start(limits(8, 4096));
    control.allow(Some(0));
    let document = prompt(1, 400);
    let texts: Vec<String> = (0..4).map(|seed| format!("{document}{seed}{}", prompt(seed, 4))).collect();
    let streams: Vec<_> = texts.iter().map(|text| engine.submit(asking(text, 1, 1), None).unwrap()).collect();
    control.allow(None);
    for (text, stream) in texts.iter().zip(streams) {
        check(text, 1, &prompt_logprobs(stream).0);
    }
    assert_eq!(control.n_computed(), 400 + 4 * (5 + 2) + 3);
}

#[test]
fn prompt_logprobs_are_not_shared_across_adapters() {
    let (engine, control) = start_with(limits(4, 2048), |runner| runner.with_adapters(&[0.0]));
    let text = prompt(1, 100);
    for (scale, n_computed) in [(1.0, 100), (1.0, 1), (0.5, 100), (0.0, 100)] {
        let before = control.n_computed();
        let request = Request { adapters: Some(vec![(0, scale)]), ..scoring(&text, 1) };
        assert!(collect(engine.submit(request, None).unwrap()).is_ok());
        assert_eq!(control.n_computed() - before, n_computed, "{scale}");
    }
}

#[test]
fn a_position_outside_the_prompt_is_refused() {
    let (engine, _) = start(limits(1, 256));
    let message = |request: Request| match engine.submit(request, None).err() {
        Some(Error::InvalidRequest { param: "prompt_logprobs_from", message }) => message,
        other => panic!("{other:?}"),
    };
    assert_eq!(message(scoring("text", 4)), "prompt_logprobs_from is 4; it must be below the prompt's 4 tokens");
    let without = Request { prompt_logprobs: None, ..scoring("text", 2) };
    assert_eq!(message(without), "prompt_logprobs_from needs prompt_logprobs; set that too");
}

#[test]
fn no_decode_has_more_rows_of_logits_than_sequence_ids() {
    // The runner itself counts them.
    let (engine, control) = start(limits(4, 4096));
    control.allow(Some(0));
    let texts: Vec<String> = (0..4).map(|seed| prompt(seed, 500)).collect();
    let streams: Vec<_> = texts.iter().map(|text| engine.submit(asking(text, 1, 1), None).unwrap()).collect();
    let plain = engine.submit(greedy(&prompt(9, 700), 5), None).unwrap();
    control.allow(None);
    for (text, stream) in texts.iter().zip(streams) {
        check(text, 1, &prompt_logprobs(stream).0);
    }
    assert_eq!(collect(plain).unwrap()[0].tokens, expected(&prompt(9, 700), 5));
}

#[test]
fn a_short_prompt_with_logprobs_does_not_wait_for_a_long_one() {
    for n_more in [64, 2, 1] {
        let (engine, control) = start(Limits { n_outputs: 2 + n_more, ..limits(2, 4096) });
        control.allow(Some(0));
        let texts = [prompt(1, 2_000), prompt(2, 20)];
        let [long, short] = texts.each_ref().map(|text| engine.submit(asking(text, 1, 1), None).unwrap());
        control.allow(None);
        check(&texts[0], 1, &prompt_logprobs(long).0);
        check(&texts[1], 1, &prompt_logprobs(short).0);
        let plans = control.plans();
        let long_id = plans.iter().flat_map(|plan| &plan.rows).find(|row| row.position > 1_000).unwrap().sequence;
        let is_short_done =
            plans.iter().position(|plan| plan.rows.iter().any(|row| row.sequence != long_id && row.position == 19));
        let is_long_half = plans.iter().position(|plan| plan.rows.iter().any(|row| row.position == 1_000));
        assert!(is_short_done < is_long_half, "{is_short_done:?} is not before {is_long_half:?}");
    }
}

#[test]
fn a_preempted_prompt_reports_each_token_once() {
    for kind in [ForkRule::Anywhere, ForkRule::AtEnd] {
        let limits = Limits { max_host_cache_bytes: STORE, n_seq_max: 4, ..limits(2, 512) };
        let (engine, control) = start_with(limits, move |runner| runner.with_memory(MemoryKind { forks: kind, ..MEMORY }));
        // When it resumes, all of its prompt is cached, but not its logprobs.
        run(&engine, greedy(&prompt(2, 210), 1));
        control.allow(Some(0));
        let old = engine.submit(greedy(&prompt(1, 230), 250), None).unwrap();
        step_until(&engine, &control, |stats| stats.n_predicted > 1);
        let young = engine.submit(asking(&prompt(2, 210), 1, 1), None).unwrap();
        control.allow(None);
        check(&prompt(2, 210), 1, &prompt_logprobs(young).0);
        assert_eq!(collect(old).unwrap()[0].tokens, expected(&prompt(1, 230), 250));
        assert_eq!(engine.stats().n_preempted, 1);
    }
}

#[test]
fn too_many_top_logprobs_are_refused() {
    let (engine, _) = start(limits(1, 256));
    let refused = engine.submit(asking("text", 1, 1_001), None).err();
    assert!(matches!(refused, Some(Error::InvalidRequest { param: "prompt_logprobs", .. })), "{refused:?}");
}

#[test]
fn prompt_logprobs_beyond_the_memory_limit_are_refused() {
    let (engine, _) = start(limits(1, 4096));
    let refused = engine.submit(asking(&prompt(1, 2_100), 1, 1_000), None).err();
    let message = "prompt_logprobs asks for 2102100 log-probabilities; a prompt has at most 2097152 of them; ask for fewer or shorten the prompt";
    assert_eq!(refused, Some(Error::InvalidRequest { param: "prompt_logprobs", message: message.into() }));
}

#[test]
fn a_request_without_cache_use_reuses_nothing() {
    let (engine, control) = start_with_host_cache(4, 2048);
    let text = prompt(1, 200);
    run(&engine, greedy(&text, 1));
    let before = control.n_computed();
    let branches = run(&engine, Request { uses_cache: false, n: 3, ..greedy(&text, 1) });
    assert_eq!(control.n_computed() - before, 200, "all of it, once for all branches");
    assert_eq!(branches.iter().map(|branch| branch.finished.usage.n_cached).collect::<Vec<_>>(), [0, 200, 200]);
    let before = control.n_computed();
    run(&engine, greedy(&format!("{text}more"), 1));
    assert_eq!(control.n_computed() - before, 4, "others use what it has computed");
}

#[test]
fn a_request_without_cache_use_waits_for_no_prefix() {
    let (engine, control) = start(limits(2, 4096));
    control.allow(Some(0));
    let text = prompt(1, 500);
    let first = engine.submit(greedy(&text, 1), None).unwrap();
    let second = engine.submit(Request { uses_cache: false, ..greedy(&text, 1) }, None).unwrap();
    control.allow(None);
    collect(first).unwrap();
    assert_eq!(collect(second).unwrap()[0].finished.usage.n_prompt_computed, 500);
    assert_eq!(control.n_computed(), 1000);
}

fn progress(completions: Completions) -> Vec<Progress> {
    let mut reports = Vec::new();
    for event in completions {
        match event.unwrap() {
            Event::Progress(progress) => reports.push(progress),
            Event::Token(token) => assert!(token.n_predicted > 1 || reports.last().is_some_and(|last| last.n_processed == 500)),
            _ => {}
        }
    }
    reports
}

#[test]
fn progress_starts_at_the_cached_tokens_and_ends_at_the_prompts_end() {
    let (engine, control) = start(limits(2, 4096));
    run(&engine, greedy(&prompt(1, 500)[..120], 1));
    let n_before = control.plans().len();
    let reports = progress(engine.submit(Request { reports_progress: true, n: 3, ..greedy(&prompt(1, 500), 4) }, None).unwrap());
    let mut n_processed = vec![120];
    for plan in control.plans().into_iter().skip(n_before) {
        let n_rows = u32::try_from(plan.rows.iter().filter(|row| row.position < 500).count()).unwrap();
        n_processed.extend((n_rows > 0).then(|| n_processed.last().unwrap() + n_rows));
    }
    assert!(n_processed.len() > 2, "in several decodes: {n_processed:?}");
    assert_eq!(reports.iter().map(|report| report.n_processed).collect::<Vec<_>>(), n_processed);
    assert!(reports.iter().all(|report| (report.n_prompt, report.n_cached) == (500, 120)));
    assert!(reports.is_sorted_by(|a, b| a.ms <= b.ms));
}

#[test]
fn unrequested_reports_are_not_sent() {
    let (engine, _) = start(limits(2, 4096));
    let events: Vec<_> = engine.submit(greedy(&prompt(1, 100), 2), None).unwrap().map(Result::unwrap).collect();
    assert!(events.iter().all(|event| matches!(event, Event::Token(_) | Event::Finished(_))));
}
