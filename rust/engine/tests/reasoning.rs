//! Branches with reasoning, and grammars that wait for their trigger.

use std::sync::Arc;

use super::*;
use crate::engine::runner::Runner;
use crate::fake_runner::{END, N_VOCAB};
use crate::grammar::{Grammar, LazyGrammar, Spellings, TokenLookup, Triggers};
use crate::request::{Mirostat, Reasoning, SharedConstraint, Trigger};

/// The vocabulary of the fake model: a byte per token.
struct Words;

impl TokenLookup for Words {
    fn find_token(&self, _: &str) -> Option<Token> {
        None
    }

    fn n_vocab(&self) -> usize {
        N_VOCAB
    }
}

fn spellings() -> Arc<Spellings> {
    let token_strings = FakeRunner::new(64, 1).0.token_strings();
    let words: Vec<Vec<u8>> =
        (0..N_VOCAB).map(|token| token_strings.spelling(Token::try_from(token).unwrap()).to_vec()).collect();
    Arc::new(Spellings::new(words.iter().map(Vec::as_slice), &[END]))
}

fn strict(text: &str) -> SharedConstraint {
    SharedConstraint(Arc::new(Grammar::new(text, &Words, spellings()).unwrap()))
}

fn lazy(text: &str, trigger: Trigger) -> SharedConstraint {
    SharedConstraint(Arc::new(LazyGrammar::new(strict(text), Triggers::new(&[trigger]).unwrap(), spellings())))
}

/// Reasoning of `budget` tokens that is active from the beginning.
fn inside(budget: u32) -> Reasoning {
    Reasoning {
        starts: vec!["<t>".into()],
        ends: vec!["</t>".into()],
        begins_inside: true,
        budget: Some(budget),
        closing: tokens_of(" enough.</t>"),
    }
}

/// Returns the request with the first tokens that it would sample anyway, then with reasoning of `budget` tokens.
fn thinking(request: Request, budget: u32) -> Request {
    Request { reasoning: Some(Arc::new(inside(budget))), ..request }
}

#[test]
fn reasoning_over_budget_is_ended_and_its_end_is_counted() {
    let (engine, _) = start(limits(4, 4096));
    let free = run(&engine, greedy(&prompt(1, 20), 10)).remove(0);
    let branch = run(&engine, thinking(greedy(&prompt(1, 20), 40), 10)).remove(0);
    let closing = " enough.</t>";
    assert_eq!(branch.text[..10 + closing.len()], format!("{}{closing}", free.text));
    assert_eq!((branch.tokens.len(), branch.finished.usage.n_predicted), (40, 40));
    // The model continues after all of that.
    let said = [tokens_of(&prompt(1, 20)), branch.tokens[..22].to_vec()].concat();
    assert_eq!(branch.tokens[22], FakeRunner::next_token(&said));
    let ended = run(&engine, thinking(greedy(&prompt(1, 20), 14), 10)).remove(0);
    assert_eq!((ended.text, ended.finished.reason), (format!("{} eno", free.text), FinishReason::Length));
}

#[test]
fn each_branch_has_its_own_reasoning() {
    let (engine, _) = start(limits(3, 4096));
    let free = run(&engine, drawn(&prompt(2, 20), 5, 12));
    let branches = run(&engine, thinking(drawn(&prompt(2, 20), 5, 50), 12));
    for (branch, free) in branches.iter().zip(&free) {
        assert_eq!(branch.text[..24], format!("{} enough.</t>", free.text));
    }
    assert_eq!(branches.len(), 5);
}

#[test]
fn samplers_accept_forced_tokens_like_others() {
    let (engine, _) = start(limits(2, 4096));
    let mut request = thinking(drawn(&prompt(3, 20), 1, 60), 4);
    request.sampling.repeat_last_n = -1;
    request.sampling.presence_penalty = 1e6;
    let branch = run(&engine, request).remove(0);
    assert_eq!(&branch.text[4..16], " enough.</t>");
    // No token is repeated before all others were sampled once, including the forced ones.
    let mut free = branch.tokens[16..].to_vec();
    free.sort_unstable();
    free.dedup();
    assert_eq!(free.len(), 44);
    assert!(free.iter().all(|token| !tokens_of(" enough.</t>").contains(token)));
}

#[test]
fn a_token_is_forced_with_every_sampler() {
    let (engine, _) = start(limits(2, 4096));
    for mirostat in [Mirostat::Off, Mirostat::V1, Mirostat::V2] {
        let mut request = thinking(drawn(&prompt(3, 20), 1, 30), 4);
        request.sampling.mirostat = mirostat;
        (request.sampling.logprobs, request.sampling.post_sampling_probs) = (Some(1), true);
        let branch = run(&engine, request).remove(0);
        assert_eq!((&branch.text[4..16], branch.tokens.len()), (" enough.</t>", 30), "{mirostat:?}");
    }
}

#[test]
fn a_banned_token_can_still_be_forced() {
    let (engine, _) = start(limits(1, 4096));
    let mut request = thinking(greedy(&prompt(4, 20), 30), 2);
    request.sampling.logit_bias = tokens_of(" enough.</t>").into_iter().map(|token| (token, f32::NEG_INFINITY)).collect();
    assert_eq!(run(&engine, request)[0].text[2..14], *" enough.</t>");
}

#[test]
fn a_preempted_branch_continues_its_reasoning_and_its_grammar() {
    let grammar = "root ::= \"{\" [a-z]{30} \")\"";
    let calling = || lazy("root ::= \"gh\" [0-9]{30}", Trigger::Word("gh".into()));
    let request = |constraint| Request { constraint, ..thinking(drawn(&prompt(5, 20), 2, 90), 12) };
    // Two branches of 20 + 60 tokens do not fit 128 cells together, so they alternate.
    let texts = |n_ctx: u32, constraint: SharedConstraint, bias: Vec<(Token, f32)>| {
        let (engine, _) = start(limits(2, n_ctx));
        let mut request = request(Some(constraint));
        request.sampling.logit_bias = bias;
        let texts: Vec<String> = run(&engine, request).into_iter().map(|branch| branch.text).collect();
        (texts, engine.stats().n_preempted)
    };
    // In the reasoning, after it, and as the beginning of the grammar: "g" and "h" are nearly certain.
    let likely = || tokens_of("gh").into_iter().map(|token| (token, 11.0)).collect::<Vec<_>>();
    for (constraint, bias) in [(strict(grammar), Vec::new()), (calling(), likely())] {
        let (alone, n_preempted) = texts(4096, constraint.clone(), bias.clone());
        assert_eq!(n_preempted, 0);
        let (crowded, n_preempted) = texts(128, constraint, bias);
        assert!(n_preempted > 0, "nobody had to wait");
        assert_eq!(crowded, alone);
    }
    for text in texts(128, strict(grammar), Vec::new()).0 {
        let (_, answer) = text.split_once(" enough.</t>").unwrap();
        assert!(answer.len() == 32 && answer.starts_with('{') && answer.ends_with(')'), "{answer}");
        assert!(answer[1..31].bytes().all(|byte| byte.is_ascii_lowercase()), "{answer}");
    }
    for text in texts(4096, calling(), likely()).0 {
        let (_, answer) = text.split_once(" enough.</t>").unwrap();
        let (_, call) = answer.split_once("gh").unwrap();
        assert!(call.len() == 30 && call.bytes().all(|byte| byte.is_ascii_digit()), "{answer}");
    }
}

#[test]
fn a_stop_string_ends_a_branch_in_reasoning_and_in_forced_text() {
    let (engine, _) = start(limits(1, 4096));
    let stop = vec!["ugh".to_owned()];
    let branch = run(&engine, Request { stop, ..thinking(greedy(&prompt(6, 20), 50), 3) }).remove(0);
    assert!(branch.text.ends_with(" eno"), "{}", branch.text);
    assert_eq!(branch.finished.reason, FinishReason::Stop("ugh".into()));
}

#[test]
fn a_full_context_is_shifted_during_reasoning_and_with_a_grammar() {
    let shift = crate::request::ContextShift { n_keep: None, n_discard: 0 };
    let grammar = strict("root ::= \"{\" [a-z]{200} \")\"");
    let (engine, _) = start(Limits { n_ctx_slot: 64, ..limits(1, 64) });
    let request = Request { context_shift: Some(shift), constraint: Some(grammar), ..thinking(greedy(&prompt(7, 20), 400), 100) };
    let branch = run(&engine, request).remove(0);
    assert_eq!(&branch.text[100..113], " enough.</t>{");
    assert!(branch.text.len() == 314 && branch.text.ends_with(')'));
    assert_eq!(branch.finished.reason, FinishReason::End(Some(END)));
}

#[test]
fn tokens_without_text_are_published_only_if_preserved() {
    let (engine, _) = start(limits(1, 4096));
    // The fake model has no control tokens: its end token has no text. A preserved token is published with its spelling.
    let free = run(&engine, greedy(&prompt(8, 20), 5)).remove(0);
    let preserved = Request { preserved_tokens: free.tokens.clone(), ..greedy(&prompt(8, 20), 5) };
    assert_eq!(run(&engine, preserved)[0].text, free.text);
    for preserved_tokens in [vec![96], vec![5; 257]] {
        let refused = engine.submit(Request { preserved_tokens, ..greedy("a", 5) }, None).err();
        assert!(matches!(refused, Some(Error::InvalidRequest { param: "preserved_tokens", .. })), "{refused:?}");
    }
}

#[test]
fn invalid_reasoning_options_are_refused() {
    let (engine, _) = start(limits(1, 4096));
    let reasoning = Reasoning { ends: Vec::new(), ..inside(3) };
    let refused = engine.submit(Request { reasoning: Some(Arc::new(reasoning)), ..greedy("a", 5) }, None).err();
    assert!(matches!(refused, Some(Error::InvalidRequest { param: "reasoning", .. })), "{refused:?}");
}
