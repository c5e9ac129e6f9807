//! Tests of triggers with small and large tokens.

use std::time::Instant;

use super::super::tests::{grammar, spellings};
use super::*;
use crate::request::Trigger;

const THINK: Token = 1;
const AB: Token = 2;
const NO_TEXT: Token = 3;

fn word(text: &str) -> Trigger {
    Trigger::Word(text.to_owned())
}

fn pattern(text: &str) -> Trigger {
    Trigger::Pattern(text.to_owned())
}

fn whole(text: &str) -> Trigger {
    Trigger::Whole(text.to_owned())
}

fn lazy(text: &str, triggers: &[Trigger]) -> Box<dyn Constraint> {
    let source = SharedConstraint(Arc::new(grammar(text)));
    LazyGrammar::new(source, Triggers::new(triggers).unwrap(), spellings()).start()
}

fn byte(byte: u8) -> Token {
    128 + Token::from(byte)
}

/// Accepts `text` byte by byte, up to the first byte that is not allowed; returns the number of accepted bytes.
fn accept_text(branch: &mut dyn Constraint, text: &str) -> usize {
    let is_accepted = |&&next: &&u8| {
        let is_allowed = branch.allows(byte(next));
        if is_allowed {
            branch.accept(byte(next));
        }
        is_allowed
    };
    text.as_bytes().iter().take_while(is_accepted).count()
}

/// The tokens that the mask allows.
fn allowed_tokens(branch: &mut dyn Constraint) -> Vec<Token> {
    let mut row = vec![1.0; 384];
    branch.mask(&mut row);
    (0..).zip(&row).filter(|&(_, &logit)| logit > 0.0).map(|(token, _)| token).collect()
}

#[test]
fn the_text_is_constrained_only_after_the_trigger() {
    let mut branch = lazy("root ::= \"<call>\" [0-9]+ \";\"", &[word("<call>")]);
    assert_eq!(accept_text(&mut *branch, "say what you like, <cal or <call"), 32);
    assert!(branch.waits() && branch.allows(0));
    assert_eq!(accept_text(&mut *branch, ">"), 1);
    assert!(!branch.waits() && !branch.allows(0));
    assert_eq!(allowed_tokens(&mut *branch), (b'0'..=b'9').map(byte).collect::<Vec<_>>());
    assert_eq!(accept_text(&mut *branch, "12;3"), 3);
    assert_eq!(allowed_tokens(&mut *branch), [0]);
}

#[test]
fn a_grammar_starts_with_the_token_that_triggers_it() {
    let mut branch = lazy("root ::= \"<think>\" \"a\"", &[Trigger::Token(THINK)]);
    // The same text in other tokens is no trigger.
    assert_eq!(accept_text(&mut *branch, "<think>b"), 8);
    assert!(branch.allows(THINK));
    branch.accept(THINK);
    assert_eq!(allowed_tokens(&mut *branch), [byte(b'a')]);
}

#[test]
fn a_grammar_starts_at_the_trigger_s_group_or_match() {
    // The grammar starts at the first non-empty group, anywhere in a token; otherwise at the match.
    for (trigger, text, root) in [
        (pattern("x(y)?(b.*)"), "xb", "\"b\""),
        (pattern("x(y)?b.*"), "xb", "\"xb\""),
        (pattern("x()y"), "xy", "\"xy\""),
        (whole("[\\s\\S]*?(<c>)[\\s\\S]*"), "abc\n<c>", "\"<c>\""),
        (whole("a|b"), "b", "\"b\""),
        (pattern("^\\s+to$"), "  to", "\"  to\""),
    ] {
        let mut branch = lazy(&format!("root ::= {root} \"!\""), std::slice::from_ref(&trigger));
        assert_eq!(accept_text(&mut *branch, text), text.len(), "{trigger:?}");
        assert_eq!(allowed_tokens(&mut *branch), [byte(b'!')], "{trigger:?}");
    }
    // "ab" is one token, whose end is in the grammar.
    let mut branch = lazy("root ::= \"b\" \"!\"", &[pattern("a(b)")]);
    branch.accept(AB);
    assert_eq!(allowed_tokens(&mut *branch), [byte(b'!')]);
    let mut branch = lazy("root ::= \"b!\" \"!\"", &[pattern("a(b)!")]);
    assert!(branch.allows(AB));
    branch.accept(AB);
    assert_eq!((branch.waits(), accept_text(&mut *branch, "!"), allowed_tokens(&mut *branch)), (true, 1, vec![byte(b'!')]));
}

#[test]
fn the_trigger_that_is_listed_first_has_priority() {
    for (triggers, next) in [([pattern("(b)c"), word("abc")], b'1'), ([word("abc"), pattern("(b)c")], b'2')] {
        let mut branch = lazy("root ::= \"bc1\" | \"abc2\"", &triggers);
        assert_eq!(accept_text(&mut *branch, "xabc"), 4);
        assert_eq!(allowed_tokens(&mut *branch), [byte(next)]);
    }
}

#[test]
fn a_token_that_triggers_the_grammar_but_does_not_fit_is_not_allowed() {
    let mut branch = lazy("root ::= \"<call>\" [0-9]", &[pattern("(<call>)\\s*[^<\\s]")]);
    assert_eq!(accept_text(&mut *branch, "<call>"), 6);
    assert!(branch.allows(byte(b' ')) && branch.allows(byte(b'7')) && !branch.allows(byte(b'x')) && !branch.allows(AB));
    // The remaining tokens match no trigger, or fit.
    let free: Vec<Token> = (0..128).filter(|&token| ![AB, 4, 5].contains(&token)).collect();
    let after = allowed_tokens(&mut *branch);
    assert!(free.iter().all(|token| after.contains(token)));
    assert!(![AB, 4, 5, byte(b'x')].iter().any(|token| after.contains(token)), "{after:?}");
    assert!((b'0'..=b'9').chain([b' ', b'<']).all(|next| after.contains(&byte(next))));
    assert_eq!(accept_text(&mut *branch, "7"), 1);
    assert_eq!(allowed_tokens(&mut *branch), [0]);
}

#[test]
fn only_the_likeliest_tokens_are_checked_if_one_is_refused() {
    let mut branch = lazy("root ::= \"!\"", &[pattern("a")]);
    let mut row: Vec<f32> = (0..384_u16).map(f32::from).collect();
    branch.mask(&mut row);
    let kept = (0..384).filter(|&at| row[at] > f32::NEG_INFINITY).collect::<Vec<_>>();
    let likely = (384 - MAX_CHECKED..384).filter(|&at| at != 128 + usize::from(b'a')).collect::<Vec<_>>();
    assert_eq!(kept, likely);
}

#[test]
fn a_copy_is_independent() {
    let mut branch = lazy("root ::= \"<call>\" [0-9]", &[word("<call>")]);
    accept_text(&mut *branch, "<ca");
    let mut copy = branch.copy();
    assert_eq!((accept_text(&mut *copy, "ll>x"), accept_text(&mut *branch, "x<call>1")), (3, 8));
    assert_eq!(allowed_tokens(&mut *branch), [0]);
    assert_eq!((copy.waits(), accept_text(&mut *copy, "1")), (false, 1));
}

#[test]
fn end_tokens_and_tokens_without_text_are_no_triggers() {
    let mut branch = lazy("root ::= \"<call>\"", &[word("<call>"), pattern("^</s>$")]);
    assert!(branch.allows(0));
    accept_text(&mut *branch, "<ca");
    assert!(branch.allows(NO_TEXT));
    branch.accept(NO_TEXT);
    assert_eq!(accept_text(&mut *branch, "ll>"), 3);
    assert_eq!(allowed_tokens(&mut *branch), [0]);
}

#[test]
fn an_incremental_search_finds_the_same_match_as_a_search_of_the_whole_text() {
    const PATTERNS: [&str; 22] = [
        "abc",
        "a(b|c)*d",
        "(a+)(b)?c",
        "a.*?(b)",
        "^ab",
        "a(b)$",
        "^a*$",
        "\\bab\\b",
        "(?:a|(b))c",
        "[^a](a)\\B",
        "(a*)b",
        "(?m)^(b)$",
        "(a)|(b)c",
        "(?i)AB(C)",
        "a{2,3}(c?)",
        "[\\s\\S]*?(ca)[\\s\\S]*",
        "(?:^|b)\\s*(c)",
        "x*",
        "(b)?(?:c|a$)",
        "((a)b)+c",
        "\\xE9",
        "é(b)",
    ];
    let mut state = 11_u64;
    let mut below = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let (mut n_found, mut n_skipped) = (0, 0);
    for round in 0..6_000 {
        let pattern = PATTERNS[round % PATTERNS.len()];
        let oracle = regex::bytes::RegexBuilder::new(pattern).unicode(false).build().unwrap();
        let is_whole = below(4) == 0;
        let oracle_whole = regex::bytes::RegexBuilder::new(&format!("\\A(?:{pattern})\\z")).unicode(false).build().unwrap();
        let trigger = if is_whole { whole(pattern) } else { self::pattern(pattern) };
        let mut search = Triggers::new(&[trigger]).unwrap().searches().remove(0);
        let mut text = Vec::new();
        for _ in 0..8 {
            let chunk: Vec<u8> =
                (0..below(4)).map(|_| b"aaabbbcccd \n\xC3\xA9\xE9"[usize::try_from(below(15)).unwrap()]).collect();
            text.extend_from_slice(&chunk);
            let found = if is_whole { &oracle_whole } else { &oracle }.captures(&text).map(|captures| {
                let group = captures.iter().skip(1).flatten().find(|group| !group.is_empty());
                group.unwrap_or_else(|| captures.get(0).unwrap()).start()
            });
            let can_skip = search.can_skip(&chunk);
            let result = if can_skip { (search.skip(&chunk), None).1 } else { search.feed(&chunk) };
            n_skipped += usize::from(can_skip);
            assert_eq!(result, found, "{pattern:?} (whole: {is_whole}) in {:?}", text.escape_ascii().to_string());
            if result.is_some() {
                n_found += 1;
                break;
            }
        }
    }
    assert!(n_found > 1_500 && n_skipped > 4_000, "{n_found} texts matched, {n_skipped} tokens were skipped");
}

#[test]
fn the_cost_of_a_token_does_not_grow_with_the_text() {
    let mut branch = lazy("root ::= \"<call>\"", &[whole("[\\s\\S]*(<call>)"), pattern("(a+)b<"), word("<call>")]);
    let mut seconds = [0.0; 2];
    for (nth, seconds) in seconds.iter_mut().enumerate() {
        // The second measurement is twenty times further into the text on average.
        for _ in 0..[20_000, 380_000][nth] {
            branch.accept(byte(b'a'));
        }
        let start = Instant::now();
        (0..20_000).for_each(|_| branch.accept(byte(b'a')));
        *seconds = start.elapsed().as_secs_f64();
    }
    assert!(seconds[1] < 4.0 * seconds[0] + 0.05, "{seconds:?}");
}

#[test]
fn a_grammar_starts_at_most_max_reach_bytes_back() {
    let trigger = [pattern("<(a*)>")];
    for (n, is_allowed) in [(MAX_REACH, true), (MAX_REACH + 1, false)] {
        let mut branch = lazy("root ::= \"a\"* \">\"", &trigger);
        accept_text(&mut *branch, &format!("<{}", "a".repeat(n)));
        assert_eq!(branch.allows(byte(b'>')), is_allowed);
        assert!(branch.allows(byte(b'!')));
    }
}

#[test]
fn invalid_triggers_are_refused() {
    let refusal = |triggers: &[Trigger]| match Triggers::new(triggers) {
        Err(message) => message,
        Ok(_) => panic!("the triggers were accepted"),
    };
    for (triggers, expected) in [
        (vec![], "grammar_triggers is empty"),
        (vec![word("")], "an empty word"),
        (vec![word("a"); MAX_TRIGGERS + 1], "65 triggers of 65 bytes in total; at most 64 triggers of 16384"),
        (vec![word(&"a".repeat(MAX_TRIGGER_BYTES + 1))], "1 triggers of 16385 bytes"),
        (vec![pattern("a(b")], "is invalid at byte 1: unclosed group"),
        (vec![pattern(">>>(?!all)")], "look-around"),
        (vec![pattern("(a)\\1")], "backreferences are not supported"),
        (vec![pattern("(?u:\\b)a")], "boundaries"),
        (vec![pattern("(?:a{0,200}){0,200}")], "too large"),
        (vec![word(&"a".repeat(14_000)), pattern("a{14000}")], "too large"),
    ] {
        let message = refusal(&triggers);
        assert!(message.contains(expected), "{message}");
    }
    assert!(Triggers::new(&[Trigger::Token(5)]).is_ok());
    assert!(Triggers::new(&vec![word(&"a".repeat(MAX_TRIGGER_BYTES / MAX_TRIGGERS)); MAX_TRIGGERS]).is_ok());
}
