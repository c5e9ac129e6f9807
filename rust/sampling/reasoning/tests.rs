//! Reasoning over a small vocabulary, alone and with constraints.

use super::*;
use crate::grammar::{Grammar, LazyGrammar, Spellings, TokenLookup, Triggers};
use crate::request::Trigger;
use crate::sampling::token_strings::tests::Pieces;

/// The first token ends a text.
const PIECES: [&str; 22] = [
    "</s>", "<think>", "</think>", "a", "b", "</", "think", ">", ">\n", "<", "\n", "é", "{", "}", ">{", "<call>", "1", "enough",
    "", "th", ">b", "x<call>1",
];

struct Toy;

impl TokenLookup for Toy {
    fn find_token(&self, text: &str) -> Option<Token> {
        (0..).zip(PIECES).find(|&(_, piece)| piece == text).map(|(token, _)| token)
    }

    fn n_vocab(&self) -> usize {
        PIECES.len()
    }
}

fn token(piece: &str) -> Token {
    Toy.find_token(piece).unwrap_or_else(|| panic!("{piece:?} is no token"))
}

fn spellings() -> Arc<Spellings> {
    Arc::new(Spellings::new(PIECES.iter().map(|piece| piece.as_bytes()), &[0]))
}

fn strict(text: &str) -> SharedConstraint {
    SharedConstraint(Arc::new(Grammar::new(text, &Toy, spellings()).unwrap_or_else(|error| panic!("{error}"))))
}

fn lazy(text: &str, trigger: Trigger) -> SharedConstraint {
    let triggers = Triggers::new(&[trigger]).unwrap();
    SharedConstraint(Arc::new(LazyGrammar::new(strict(text), triggers, spellings())))
}

fn reasoning() -> Reasoning {
    Reasoning {
        starts: vec!["<think>".into()],
        ends: vec!["</think>".into()],
        begins_inside: false,
        budget: None,
        closing: vec![token("enough"), token("</think>")],
    }
}

fn inside() -> Reasoning {
    Reasoning { begins_inside: true, ..reasoning() }
}

fn thinking(reasoning: Reasoning, source: impl Into<Option<SharedConstraint>>) -> ReasoningConstraint {
    assert_eq!(reasoning.validate(PIECES.len()), Ok(()));
    ReasoningConstraint::new(Arc::new(reasoning), source.into(), Pieces::token_strings(&PIECES, 1))
}

/// Generates these tokens, which must be allowed and match a forced token.
fn generate(branch: &mut ReasoningConstraint, pieces: &[&str]) {
    for &piece in pieces {
        assert!(branch.forced().is_none_or(|forced| forced == token(piece)), "{piece:?} is not forced");
        assert!(branch.allows(token(piece)), "{piece:?} is not allowed");
        branch.accept(token(piece));
    }
}

/// Returns the allowed tokens that are not empty, and asserts that the mask agrees.
fn next(branch: &mut ReasoningConstraint) -> Vec<&'static str> {
    let mut row = vec![1.0; PIECES.len()];
    branch.mask(&mut row);
    let unmasked: Vec<&str> = PIECES.into_iter().zip(&row).filter(|&(_, &logit)| logit > 0.0).map(|(piece, _)| piece).collect();
    let allowed: Vec<&str> = (0..).zip(PIECES).filter(|&(token, _)| branch.allows(token)).map(|(_, piece)| piece).collect();
    assert_eq!(unmasked, allowed);
    unmasked.into_iter().filter(|piece| !piece.is_empty()).collect()
}

fn forced(branch: &mut ReasoningConstraint) -> Vec<&'static str> {
    let mut pieces = Vec::new();
    while let Some(token) = branch.forced() {
        assert!(branch.allows(token));
        branch.accept(token);
        pieces.push(PIECES[usize::try_from(token).unwrap()]);
    }
    pieces
}

fn all_but(others: &[&str]) -> Vec<&'static str> {
    PIECES.into_iter().filter(|piece| !piece.is_empty() && !others.contains(piece)).collect()
}

#[test]
fn reasoning_ends_when_its_budget_is_used_up() {
    for n in 0..4_u32 {
        let mut branch = thinking(Reasoning { budget: Some(n), ..reasoning() }, None);
        generate(&mut branch, &["a", "<think>"]);
        for _ in 0..n {
            assert_eq!(branch.forced(), None);
            generate(&mut branch, &["b"]);
        }
        assert_eq!(forced(&mut branch), ["enough", "</think>"]);
        assert_eq!(next(&mut branch), all_but(&[]));
    }
}

#[test]
fn the_budget_stops_counting_when_reasoning_ends() {
    let mut branch = thinking(Reasoning { budget: Some(3), ..inside() }, None);
    generate(&mut branch, &["a", "</think>", "a", "a", "a", "a"]);
    // The budget applies to each reasoning block separately.
    generate(&mut branch, &["<think>", "a", "a", "a"]);
    assert_eq!(forced(&mut branch), ["enough", "</think>"]);
    let mut endless = thinking(inside(), None);
    generate(&mut endless, &["a"; 500]);
    assert_eq!(endless.forced(), None);
}

#[test]
fn a_prompt_that_ends_inside_reasoning_counts_from_the_first_token() {
    let mut branch = thinking(Reasoning { budget: Some(0), ..inside() }, None);
    assert_eq!(forced(&mut branch), ["enough", "</think>"]);
    generate(&mut branch, &["a"]);
}

#[test]
fn a_character_is_completed_before_reasoning_is_ended() {
    // A vocabulary in which the bytes of é are separate tokens.
    let token_strings = Pieces::of_bytes(&[b"</s>", b"\xC3", b"\xA9", b"x", b"</think>", b"\xF0"], 1);
    let reasoning = Reasoning { budget: Some(2), closing: vec![4], ..inside() };
    let generate = |tokens: &[Token]| {
        let mut branch = ReasoningConstraint::new(Arc::new(reasoning.clone()), None, token_strings.clone());
        for &token in tokens {
            branch.accept(token);
        }
        branch.forced()
    };
    assert_eq!(
        [generate(&[3, 3]), generate(&[3, 1]), generate(&[3, 1, 2]), generate(&[1, 2])],
        [Some(4), None, Some(4), Some(4)]
    );
    // The character may never be completed.
    assert_eq!(
        [generate(&[3, 5]), generate(&[3, 5, 3]), generate(&[3, 5, 5, 5]), generate(&[3, 5, 5, 5, 5])],
        [None, Some(4), None, Some(4)]
    );
}

#[test]
fn markers_may_be_split_over_tokens() {
    for (start, end) in [
        (&["<think>"][..], &["</think>"][..]),
        (&["<", "think", ">"], &["</", "think", ">"]),
        (&["<", "th", "<", "think", ">\n"], &["</", "</", "think", ">\n"]),
    ] {
        let mut branch = thinking(Reasoning { budget: Some(9), ..reasoning() }, None);
        generate(&mut branch, start);
        assert!(matches!(branch.phase, ReasoningPhase::OpenReasoning(_)), "{start:?}");
        generate(&mut branch, &["a"]);
        generate(&mut branch, end);
        assert!(matches!(branch.phase, ReasoningPhase::Outside), "{end:?}");
    }
}

#[test]
fn a_grammar_starts_after_the_reasoning() {
    let mut branch = thinking(inside(), strict("root ::= \"{\" [ab] \"}\""));
    assert_eq!(next(&mut branch), all_but(&["</s>"]), "a text does not end inside reasoning");
    generate(&mut branch, &["a", "{", "<think>", "</think>"]);
    assert_eq!(next(&mut branch), ["{"]);
    generate(&mut branch, &["{", "b", "}"]);
    assert_eq!(next(&mut branch), ["</s>"]);
}

#[test]
fn the_rest_of_a_token_after_the_end_marker_belongs_to_the_grammar() {
    let mut branch = thinking(inside(), strict("root ::= \"{\" [ab]"));
    generate(&mut branch, &["</", "think"]);
    assert_eq!(next(&mut branch), all_but(&["</s>", ">\n", ">b"]));
    generate(&mut branch, &[">{"]);
    assert_eq!(next(&mut branch), ["a", "b"]);
}

#[test]
fn a_branch_starts_with_reasoning_or_with_the_grammar() {
    let json = || strict("root ::= [{<] [ab] \"}\"");
    let mut branch = thinking(reasoning(), json());
    assert_eq!(next(&mut branch), ["<think>", "<", "{"]);
    generate(&mut branch, &["{"]);
    assert_eq!(next(&mut branch), ["a", "b"]);
    // Both alternatives stay allowed as long as both are possible.
    let mut branch = thinking(reasoning(), json());
    generate(&mut branch, &["<"]);
    assert_eq!(next(&mut branch), ["a", "b", "think", "th"]);
    let mut answers = branch.copy();
    answers.accept(token("a"));
    assert!(answers.allows(token("}")) && !answers.allows(token("think")));
    generate(&mut branch, &["think"]);
    assert_eq!(next(&mut branch), [">", ">\n", ">{", ">b"]);
    generate(&mut branch, &[">\n", "b", "</think>"]);
    assert_eq!(next(&mut branch), ["<", "{"]);
    generate(&mut branch, &["{", "a", "}"]);
    assert_eq!(next(&mut branch), ["</s>"]);
}

#[test]
fn a_forced_end_is_followed_by_the_grammar() {
    let mut branch = thinking(Reasoning { budget: Some(2), ..reasoning() }, strict("root ::= \"{\""));
    generate(&mut branch, &["<think>", "a", "b"]);
    assert_eq!(next(&mut branch), ["enough"]);
    assert_eq!(forced(&mut branch), ["enough", "</think>"]);
    assert_eq!(next(&mut branch), ["{"]);
}

#[test]
fn triggers_inside_reasoning_are_ignored() {
    let call = || lazy("root ::= \"<call>\" [0-9]", Trigger::Word("<call>".into()));
    let mut branch = thinking(reasoning(), call());
    generate(&mut branch, &["a", "<think>", "<call>", "a", "</think>", "b", "<call>"]);
    assert_eq!(next(&mut branch), ["1"]);
    generate(&mut branch, &["1"]);
    assert_eq!(next(&mut branch), ["</s>"]);
    // A trigger that starts outside and is completed inside does not fire.
    let mut branch = thinking(reasoning(), lazy("root ::= \"ab\" \"1\"", Trigger::Word("ab".into())));
    generate(&mut branch, &["a", "<think>", "b", "</think>", "a", "b"]);
    assert_eq!(next(&mut branch), ["1"]);
}

#[test]
fn waiting_constraints_read_end_markers() {
    // As in DeepSeek's models: a tool call ends the reasoning before it.
    let ends = vec!["</think>".to_owned(), "<call>".to_owned()];
    let call = |trigger| lazy("root ::= \"<call>\" [0-9]", trigger);
    for trigger in [Trigger::Word("<call>".into()), Trigger::Token(token("<call>"))] {
        let mut branch = thinking(Reasoning { ends: ends.clone(), ..inside() }, call(trigger));
        generate(&mut branch, &["a", "<call>"]);
        assert_eq!(next(&mut branch), ["1"]);
    }
    // Also if the marker is split over tokens; a marker that the grammar rejects is not generated.
    let cut = lazy("root ::= \"</think>\" \"b\"", Trigger::Pattern("(</think>)[^x]".into()));
    let mut branch = thinking(inside(), cut);
    generate(&mut branch, &["a", "</", "think"]);
    assert_eq!(next(&mut branch), all_but(&[">\n", ">{"]));
    let mut other = branch.copy();
    assert!(other.allows(token(">b")));
    other.accept(token(">b"));
    assert!(other.allows(0) && !other.allows(token("b")));
    generate(&mut branch, &[">"]);
    assert!(branch.waits() && branch.allows(token("b")) && !branch.allows(token("a")));
    generate(&mut branch, &["b"]);
    assert_eq!(next(&mut branch), ["</s>"]);
    // Also if the end is forced.
    let forced_end = lazy("root ::= \"</think>\" \"b\"", Trigger::Pattern("</think>b".into()));
    let mut branch = thinking(Reasoning { budget: Some(0), ..inside() }, forced_end);
    assert_eq!(forced(&mut branch), ["enough", "</think>"]);
    generate(&mut branch, &["b"]);
    assert_eq!(next(&mut branch), ["</s>"]);
}

#[test]
fn without_a_grammar_a_text_may_end_inside_reasoning() {
    for source in [None, Some(lazy("root ::= \"<call>\"", Trigger::Word("<call>".into())))] {
        let mut branch = thinking(inside(), source);
        assert!(branch.allows(0));
        assert_eq!(next(&mut branch), all_but(&[]));
    }
}

#[test]
fn reasoning_does_not_start_once_a_grammar_is_active() {
    let call = lazy("root ::= \"<call>\" .*", Trigger::Word("<call>".into()));
    let mut branch = thinking(Reasoning { budget: Some(1), ..reasoning() }, call);
    generate(&mut branch, &["<call>", "<think>", "a", "a", "</think>", "a"]);
    assert_eq!(branch.forced(), None);
}

#[test]
fn invalid_reasoning_settings_are_rejected() {
    let rejection = |reasoning: Reasoning| reasoning.validate(PIECES.len()).unwrap_err().to_string();
    for (reasoning, expected) in [
        (Reasoning { ends: vec![], ..reasoning() }, "reasoning.ends is empty"),
        (Reasoning { starts: vec![], ..reasoning() }, "reasoning.starts is empty"),
        (Reasoning { starts: vec![String::new()], ..reasoning() }, "1 to 256"),
        (Reasoning { ends: vec!["x".repeat(257)], ..reasoning() }, "reasoning.ends has a marker of 257 bytes"),
        (Reasoning { starts: vec!["x".into(); 17], ..reasoning() }, "reasoning.starts has 17 markers; at most 16"),
        (Reasoning { budget: Some(1), closing: vec![], ..reasoning() }, "reasoning.budget needs tokens"),
        (Reasoning { closing: vec![3; 4_097], ..reasoning() }, "4097 tokens"),
        (Reasoning { closing: vec![22], ..reasoning() }, "not in the vocabulary"),
    ] {
        let message = rejection(reasoning);
        assert!(message.contains(expected), "{message}");
    }
}
