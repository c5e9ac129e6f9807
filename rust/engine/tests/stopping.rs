//! Ends of completions: stop strings, end tokens and limits.

use super::*;
use crate::fake_runner::{END, N_VOCAB, SUPPRESSED};

#[test]
fn the_end_token_is_reported_and_has_no_text() {
    let (engine, _) = start_with(limits(1, 256), |runner| runner.ending_at(25));
    let branches = run(&engine, greedy(&prompt(1, 20), 50));
    assert_eq!(branches[0].tokens.len(), 6);
    assert_eq!(branches[0].tokens[5], END);
    assert_eq!(branches[0].text.len(), 5);
    assert_eq!(reasons(&branches), [FinishReason::End(Some(END))]);
}

#[test]
fn a_stop_string_across_tokens_ends_the_text_before_it() {
    let (engine, _) = start(limits(1, 256));
    let whole = run(&engine, greedy(&prompt(1, 20), 12))[0].text.clone();
    let stop = whole[5..8].to_owned();
    let mut request = greedy(&prompt(1, 20), 12);
    request.stop = vec!["never".into(), stop.clone()];
    let branches = run(&engine, request);
    assert_eq!(branches[0].text, whole[..5]);
    assert_eq!(branches[0].tokens.len(), 8);
    assert_eq!(reasons(&branches), [FinishReason::Stop(stop)]);
}

#[test]
fn text_held_back_for_a_stop_string_comes_with_the_last_token() {
    let (engine, _) = start(limits(1, 256));
    let whole = run(&engine, greedy(&prompt(1, 20), 12))[0].text.clone();
    let mut request = greedy(&prompt(1, 20), 6);
    request.stop = vec![whole[4..9].to_owned()];
    let branches = run(&engine, request);
    assert_eq!(branches[0].text, whole[..6]);
    assert_eq!(reasons(&branches), [FinishReason::Length]);
}

#[test]
fn a_character_of_two_tokens_is_published_as_one() {
    let (engine, _) = start(limits(1, 256));
    let mut request = greedy(&prompt(1, 20), 4);
    // Only the halves of "é" can be sampled, and each makes the other more likely.
    request.sampling.logit_bias = vec![(1, 1e6), (2, 1e6)];
    request.sampling.frequency_penalty = 1_000.0;
    let mut text = String::new();
    for event in engine.submit(request, None).unwrap() {
        let Event::Token(token) = event.unwrap() else { continue };
        assert!(matches!((token.token, &*token.text), (1, "") | (2, "é")), "{token:?}");
        text.push_str(&token.text);
    }
    assert_eq!(text, "éé");
}

#[test]
fn a_suppressed_token_is_never_sampled() {
    let (engine, _) = start(limits(4, 4096));
    for branch in run(&engine, drawn(&prompt(1, 20), 4, 100)) {
        assert!(!branch.tokens.contains(&SUPPRESSED));
    }
}

#[test]
fn each_branch_ends_independently() {
    let (engine, _) = start(limits(4, 4096));
    let free = run(&engine, drawn(&prompt(1, 20), 4, 20));
    let mut request = drawn(&prompt(1, 20), 4, 20);
    request.stop = vec![free[2].text[3..6].to_owned()];
    let branches = run(&engine, request);
    assert_eq!(branches[2].text, free[2].text[..3]);
    assert!(branches.iter().filter(|branch| branch.finished.reason == FinishReason::Length).count() > 0);
}

#[test]
fn logprobs_are_those_of_the_raw_distribution() {
    let (engine, _) = start(limits(1, 256));
    let mut request = greedy(&prompt(1, 20), 1);
    request.sampling.logprobs = Some(3);
    let events: Vec<_> = engine.submit(request, None).unwrap().map(Result::unwrap).collect();
    let Event::Token(TokenEvent { token, logprobs: Some(logprobs), .. }) = &events[0] else { panic!("no token in {events:?}") };
    assert_eq!(logprobs.chosen.token, *token);
    assert_eq!(logprobs.top.len(), 3);
    assert_eq!(logprobs.top[1], logprobs.chosen, "greedy takes the most likely, but for the one that is suppressed");
    assert!(logprobs.top.is_sorted_by(|a, b| a.logprob >= b.logprob));
    assert!(logprobs.top.iter().map(|top| top.logprob.exp()).sum::<f32>() <= 1.0);
}

#[test]
fn a_field_out_of_range_is_named() {
    let (engine, _) = start(limits(1, 256));
    let refused = |change: fn(&mut Request)| {
        let mut request = greedy(&prompt(1, 20), 1);
        change(&mut request);
        match engine.submit(request, None).err() {
            Some(Error::InvalidRequest { param, .. }) => param,
            other => panic!("not refused: {other:?}"),
        }
    };
    assert_eq!(refused(|request| request.prompt = Prompt::default()), "prompt");
    assert_eq!(refused(|request| request.prompt = Prompt::from_tokens(vec![96])), "prompt");
    assert_eq!(refused(|request| request.n = 0), "n");
    assert_eq!(refused(|request| request.n = 257), "n");
    assert_eq!(refused(|request| request.stop = vec![String::new()]), "stop");
    assert_eq!(refused(|request| request.stop = vec!["a".into(); 257]), "stop");
    assert_eq!(refused(|request| request.stop = vec!["a".repeat(65_537)]), "stop");
    assert_eq!(refused(|request| request.sampling.temperature = f32::NAN), "temperature");
    assert_eq!(refused(|request| request.sampling.repeat_penalty = 0.0), "repeat_penalty");
    assert_eq!(refused(|request| request.sampling.repeat_last_n = -2), "repeat_last_n");
    assert_eq!(refused(|request| request.sampling.logprobs = Some(1_001)), "logprobs");
    assert_eq!(refused(|request| request.sampling.logit_bias = vec![(-1, 0.0)]), "logit_bias");
    assert_eq!(refused(|request| request.sampling.logit_bias = vec![(5, f32::NAN)]), "logit_bias");
}

#[test]
fn sampler_lists_have_limits_named_in_the_error() {
    let (engine, _) = start(limits(1, 256));
    let refused = |change: fn(&mut SamplingParams)| {
        let mut request = greedy(&prompt(1, 20), 1);
        change(&mut request.sampling);
        engine.submit(request, None).err().map(|error| error.to_string())
    };
    assert_eq!(refused(|params| params.logit_bias = vec![(5, 0.1); N_VOCAB]), None);
    let message = refused(|params| params.logit_bias = vec![(5, 0.1); N_VOCAB + 1]);
    assert_eq!(message.unwrap(), "logit_bias has 97 entries; it may have at most 96, one for each piece of the vocabulary");
    assert_eq!(refused(|params| params.penalty_prompt = Some(vec![5; 256])), None);
    let message = refused(|params| params.penalty_prompt = Some(vec![5; 257]));
    assert_eq!(message.unwrap(), "penalty_prompt has 257 tokens; it may have at most 256, the context of a slot");
}
