//! Thoughts over a small vocabulary, alone and beside constraints.

use super::*;
use crate::grammar::{Grammar, LazyGrammar, Spellings, TokenLookup, Triggers};
use crate::request::Trigger;
use crate::sampling::token_strings::tests::Pieces;

/// The first one ends a text.
const PIECES: [&str; 22] = [
    "</s>", "<think>", "</think>", "a", "b", "</", "think", ">", ">\n", "<", "\n", "é", "{", "}", ">{", "<call>", "1", "enough",
    "", "th", ">b", "x<call>1",
];

struct Toy;

impl TokenLookup for Toy {
    fn spelt(&self, text: &str) -> Option<Token> {
        (0..).zip(PIECES).find(|&(_, piece)| piece == text).map(|(token, _)| token)
    }

    fn n_vocab(&self) -> usize {
        PIECES.len()
    }
}

fn token(piece: &str) -> Token {
    Toy.spelt(piece).unwrap_or_else(|| panic!("{piece:?} is no token"))
}

fn spellings() -> Arc<Spellings> {
    Arc::new(Spellings::new(PIECES.iter().map(|piece| piece.as_bytes()), &[0]))
}

fn strict(text: &str) -> SharedConstraint {
    SharedConstraint(Arc::new(Grammar::new(text, &Toy, spellings()).unwrap_or_else(|flaw| panic!("{flaw}"))))
}

fn lazy(text: &str, trigger: Trigger) -> SharedConstraint {
    let triggers = Triggers::new(&[trigger]).unwrap();
    SharedConstraint(Arc::new(LazyGrammar::new(strict(text), triggers, spellings())))
}

fn thought() -> Reasoning {
    Reasoning {
        starts: vec!["<think>".into()],
        ends: vec!["</think>".into()],
        begins_inside: false,
        budget: None,
        closing: vec![token("enough"), token("</think>")],
    }
}

fn inside() -> Reasoning {
    Reasoning { begins_inside: true, ..thought() }
}

fn thinking(thought: Reasoning, source: impl Into<Option<SharedConstraint>>) -> Thinking {
    assert_eq!(thought.validate(PIECES.len()), Ok(()));
    Thinking::new(Arc::new(thought), source.into(), Pieces::lexicon(&PIECES, 1))
}

/// Says these tokens, which must be allowed; where one is forced, it is that one.
fn say(branch: &mut Thinking, pieces: &[&str]) {
    for &piece in pieces {
        assert!(branch.forced().is_none_or(|forced| forced == token(piece)), "{piece:?} is not forced");
        assert!(branch.allows(token(piece)), "{piece:?} is not allowed");
        branch.accept(token(piece));
    }
}

/// The tokens that may come next, of those with a text; asserts that the mask agrees.
fn next(branch: &mut Thinking) -> Vec<&'static str> {
    let mut row = vec![1.0; PIECES.len()];
    branch.mask(&mut row);
    let left: Vec<&str> = PIECES.into_iter().zip(&row).filter(|&(_, &logit)| logit > 0.0).map(|(piece, _)| piece).collect();
    let asked: Vec<&str> = (0..).zip(PIECES).filter(|&(token, _)| branch.allows(token)).map(|(_, piece)| piece).collect();
    assert_eq!(left, asked);
    left.into_iter().filter(|piece| !piece.is_empty()).collect()
}

fn forced(branch: &mut Thinking) -> Vec<&'static str> {
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
fn a_thought_is_ended_when_its_budget_is_used_up() {
    for n in 0..4_u32 {
        let mut branch = thinking(Reasoning { budget: Some(n), ..thought() }, None);
        say(&mut branch, &["a", "<think>"]);
        for _ in 0..n {
            assert_eq!(branch.forced(), None);
            say(&mut branch, &["b"]);
        }
        assert_eq!(forced(&mut branch), ["enough", "</think>"]);
        assert_eq!(next(&mut branch), all_but(&[]));
    }
}

#[test]
fn a_thought_that_ends_by_itself_is_not_counted_on() {
    let mut branch = thinking(Reasoning { budget: Some(3), ..inside() }, None);
    say(&mut branch, &["a", "</think>", "a", "a", "a", "a"]);
    // Each thought has a budget of its own.
    say(&mut branch, &["<think>", "a", "a", "a"]);
    assert_eq!(forced(&mut branch), ["enough", "</think>"]);
    let mut endless = thinking(inside(), None);
    say(&mut endless, &["a"; 500]);
    assert_eq!(endless.forced(), None);
}

#[test]
fn where_the_prompt_ends_inside_of_a_thought_the_budget_counts_from_the_first_token_on() {
    let mut branch = thinking(Reasoning { budget: Some(0), ..inside() }, None);
    assert_eq!(forced(&mut branch), ["enough", "</think>"]);
    say(&mut branch, &["a"]);
}

#[test]
fn a_character_is_whole_before_a_thought_is_ended() {
    // The bytes of é, each a token, as a vocabulary has them.
    let lexicon = Pieces::of_bytes(&[b"</s>", b"\xC3", b"\xA9", b"x", b"</think>", b"\xF0"], 1);
    let thought = Reasoning { budget: Some(2), closing: vec![4], ..inside() };
    let say = |tokens: &[Token]| {
        let mut branch = Thinking::new(Arc::new(thought.clone()), None, lexicon.clone());
        for &token in tokens {
            branch.accept(token);
        }
        branch.forced()
    };
    assert_eq!([say(&[3, 3]), say(&[3, 1]), say(&[3, 1, 2]), say(&[1, 2])], [Some(4), None, Some(4), Some(4)]);
    // It may never be whole.
    assert_eq!([say(&[3, 5]), say(&[3, 5, 3]), say(&[3, 5, 5, 5]), say(&[3, 5, 5, 5, 5])], [None, Some(4), None, Some(4)]);
}

#[test]
fn a_text_that_begins_or_ends_a_thought_may_be_cut_anyhow() {
    for (start, end) in [
        (&["<think>"][..], &["</think>"][..]),
        (&["<", "think", ">"], &["</", "think", ">"]),
        (&["<", "th", "<", "think", ">\n"], &["</", "</", "think", ">\n"]),
    ] {
        let mut branch = thinking(Reasoning { budget: Some(9), ..thought() }, None);
        say(&mut branch, start);
        assert!(matches!(branch.place, ReasoningPhase::Inside(_)), "{start:?}");
        say(&mut branch, &["a"]);
        say(&mut branch, end);
        assert!(matches!(branch.place, ReasoningPhase::Outside), "{end:?}");
    }
}

#[test]
fn a_grammar_begins_after_the_thought() {
    let mut branch = thinking(inside(), strict("root ::= \"{\" [ab] \"}\""));
    assert_eq!(next(&mut branch), all_but(&["</s>"]), "a text does not end in a thought");
    say(&mut branch, &["a", "{", "<think>", "</think>"]);
    assert_eq!(next(&mut branch), ["{"]);
    say(&mut branch, &["{", "b", "}"]);
    assert_eq!(next(&mut branch), ["</s>"]);
}

#[test]
fn what_a_token_holds_after_the_end_of_a_thought_is_the_grammars() {
    let mut branch = thinking(inside(), strict("root ::= \"{\" [ab]"));
    say(&mut branch, &["</", "think"]);
    assert_eq!(next(&mut branch), all_but(&["</s>", ">\n", ">b"]));
    say(&mut branch, &[">{"]);
    assert_eq!(next(&mut branch), ["a", "b"]);
}

#[test]
fn a_branch_begins_with_a_thought_or_with_the_grammar() {
    let json = || strict("root ::= [{<] [ab] \"}\"");
    let mut branch = thinking(thought(), json());
    assert_eq!(next(&mut branch), ["<think>", "<", "{"]);
    say(&mut branch, &["{"]);
    assert_eq!(next(&mut branch), ["a", "b"]);
    // As long as both are possible, both are allowed.
    let mut branch = thinking(thought(), json());
    say(&mut branch, &["<"]);
    assert_eq!(next(&mut branch), ["a", "b", "think", "th"]);
    let mut answers = branch.copy();
    answers.accept(token("a"));
    assert!(answers.allows(token("}")) && !answers.allows(token("think")));
    say(&mut branch, &["think"]);
    assert_eq!(next(&mut branch), [">", ">\n", ">{", ">b"]);
    say(&mut branch, &[">\n", "b", "</think>"]);
    assert_eq!(next(&mut branch), ["<", "{"]);
    say(&mut branch, &["{", "a", "}"]);
    assert_eq!(next(&mut branch), ["</s>"]);
}

#[test]
fn a_forced_end_is_followed_by_the_grammar() {
    let mut branch = thinking(Reasoning { budget: Some(2), ..thought() }, strict("root ::= \"{\""));
    say(&mut branch, &["<think>", "a", "b"]);
    assert_eq!(next(&mut branch), ["enough"]);
    assert_eq!(forced(&mut branch), ["enough", "</think>"]);
    assert_eq!(next(&mut branch), ["{"]);
}

#[test]
fn triggers_are_not_looked_for_inside_of_thoughts() {
    let call = || lazy("root ::= \"<call>\" [0-9]", Trigger::Word("<call>".into()));
    let mut branch = thinking(thought(), call());
    say(&mut branch, &["a", "<think>", "<call>", "a", "</think>", "b", "<call>"]);
    assert_eq!(next(&mut branch), ["1"]);
    say(&mut branch, &["1"]);
    assert_eq!(next(&mut branch), ["</s>"]);
    // A trigger that is begun outside and completed inside is none.
    let mut branch = thinking(thought(), lazy("root ::= \"ab\" \"1\"", Trigger::Word("ab".into())));
    say(&mut branch, &["a", "<think>", "b", "</think>", "a", "b"]);
    assert_eq!(next(&mut branch), ["1"]);
}

#[test]
fn what_waits_is_told_of_the_texts_that_end_thoughts() {
    // As DeepSeek's models do: a call ends the thought before it.
    let ends = vec!["</think>".to_owned(), "<call>".to_owned()];
    let call = |trigger| lazy("root ::= \"<call>\" [0-9]", trigger);
    for trigger in [Trigger::Word("<call>".into()), Trigger::Token(token("<call>"))] {
        let mut branch = thinking(Reasoning { ends: ends.clone(), ..inside() }, call(trigger));
        say(&mut branch, &["a", "<call>"]);
        assert_eq!(next(&mut branch), ["1"]);
    }
    // However it is cut; what does not fit is not said.
    let cut = lazy("root ::= \"</think>\" \"b\"", Trigger::Pattern("(</think>)[^x]".into()));
    let mut branch = thinking(inside(), cut);
    say(&mut branch, &["a", "</", "think"]);
    assert_eq!(next(&mut branch), all_but(&[">\n", ">{"]));
    let mut other = branch.copy();
    assert!(other.allows(token(">b")));
    other.accept(token(">b"));
    assert!(other.allows(0) && !other.allows(token("b")));
    say(&mut branch, &[">"]);
    assert!(branch.waits() && branch.allows(token("b")) && !branch.allows(token("a")));
    say(&mut branch, &["b"]);
    assert_eq!(next(&mut branch), ["</s>"]);
    // And of one that is forced.
    let forced_end = lazy("root ::= \"</think>\" \"b\"", Trigger::Pattern("</think>b".into()));
    let mut branch = thinking(Reasoning { budget: Some(0), ..inside() }, forced_end);
    assert_eq!(forced(&mut branch), ["enough", "</think>"]);
    say(&mut branch, &["b"]);
    assert_eq!(next(&mut branch), ["</s>"]);
}

#[test]
fn a_text_may_end_in_a_thought_where_nothing_is_held_to() {
    for source in [None, Some(lazy("root ::= \"<call>\"", Trigger::Word("<call>".into())))] {
        let mut branch = thinking(inside(), source);
        assert!(branch.allows(0));
        assert_eq!(next(&mut branch), all_but(&[]));
    }
}

#[test]
fn once_a_grammar_holds_no_thought_begins() {
    let call = lazy("root ::= \"<call>\" .*", Trigger::Word("<call>".into()));
    let mut branch = thinking(Reasoning { budget: Some(1), ..thought() }, call);
    say(&mut branch, &["<call>", "<think>", "a", "a", "</think>", "a"]);
    assert_eq!(branch.forced(), None);
}

#[test]
fn what_is_no_thought_is_refused() {
    let refused = |thought: Reasoning| thought.validate(PIECES.len()).unwrap_err().to_string();
    for (thought, expected) in [
        (Reasoning { ends: vec![], ..thought() }, "at least one"),
        (Reasoning { starts: vec![], ..thought() }, "does not end inside of one"),
        (Reasoning { starts: vec![String::new()], ..thought() }, "1 to 256"),
        (Reasoning { ends: vec!["x".repeat(257)], ..thought() }, "one of 257 bytes"),
        (Reasoning { starts: vec!["x".into(); 17], ..thought() }, "17 starts; it may have 16"),
        (Reasoning { budget: Some(1), closing: vec![], ..thought() }, "nothing that could end it"),
        (Reasoning { closing: vec![3; 4_097], ..thought() }, "4097 tokens"),
        (Reasoning { closing: vec![22], ..thought() }, "outside of the vocabulary"),
    ] {
        let message = refused(thought);
        assert!(message.contains(expected), "{message}");
    }
}
