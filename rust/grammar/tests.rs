//! Tests of grammars with a small vocabulary.

use std::sync::Arc;

use super::*;
use crate::request::{Spacing, Token};

/// Token 0 ends a text; tokens 1 to 5 are longer than a byte or have no text; token 128 + b is byte b.
const LONG: [&[u8]; 6] = [b"</s>", b"<think>", b"ab", b"", b"\xC3\xA9t", b"\"a"];

pub(super) struct Toy;

impl TokenLookup for Toy {
    fn find_token(&self, text: &str) -> Option<Token> {
        LONG.iter().position(|&spelling| spelling == text.as_bytes()).and_then(|token| Token::try_from(token).ok())
    }

    fn n_vocab(&self) -> usize {
        384
    }
}

pub(super) fn spellings() -> Arc<Spellings> {
    let bytes: Vec<u8> = (0..=255).collect();
    let spellings = (0..128).map(|token| LONG.get(token).copied().unwrap_or_default()).chain(bytes.chunks(1));
    Arc::new(Spellings::new(spellings, &[0]))
}

pub(super) fn grammar(text: &str) -> Grammar {
    Grammar::new(text, &Toy, spellings()).unwrap_or_else(|refusal| panic!("{refusal}\n{text}"))
}

/// The tokens that the mask allows; asserts that `allows` agrees.
fn allowed(branch: &mut dyn Constraint) -> Vec<Token> {
    let mut row = vec![1.0; Toy.n_vocab()];
    branch.mask(&mut row);
    let allowed: Vec<Token> = (0..).zip(&row).filter(|&(_, &logit)| logit > 0.0).map(|(token, _)| token).collect();
    let allowed_singly: Vec<Token> = (0..384).filter(|&token| branch.allows(token)).collect();
    assert_eq!(allowed, allowed_singly);
    allowed
}

/// The allowed tokens after `text`, which is spelt in bytes; `$` is the end.
fn after(grammar: &Grammar, text: &str) -> String {
    let mut branch = grammar.start();
    for byte in text.bytes() {
        assert!(branch.allows(128 + Token::from(byte)), "{text:?} is not allowed at {:?}", char::from(byte));
        branch.accept(128 + Token::from(byte));
    }
    let excerpt = |token: Token| match token {
        0 => "$".to_owned(),
        1..128 => String::from_utf8_lossy(LONG[usize::try_from(token).unwrap()]).into_owned(),
        byte => char::from(u8::try_from(byte - 128).unwrap()).to_string(),
    };
    allowed(&mut *branch).into_iter().map(excerpt).collect::<Vec<_>>().join(" ")
}

/// Joins `n` numbered rules.
fn repeat_rules(n: usize, rule: impl Fn(usize) -> String) -> String {
    (0..n).map(rule).collect::<Vec<_>>().concat()
}

fn refusal(text: &str) -> String {
    match Grammar::new(text, &Toy, spellings()) {
        Err(refusal) => refusal.to_string(),
        Ok(_) => panic!("{text} was read"),
    }
}

#[test]
fn literals_alternatives_and_rules_allow_their_texts() {
    let fruit = grammar("# a comment\nroot ::= \"ab\" tail | # another\n  \"b\"\ntail ::= \"c\" | \"\"\n");
    assert_eq!(after(&fruit, ""), "ab a b");
    assert_eq!(after(&fruit, "a"), "b");
    assert_eq!(after(&fruit, "ab"), "$ c");
    assert_eq!([after(&fruit, "abc"), after(&fruit, "b")], ["$", "$"]);
}

#[test]
fn repetitions_allow_the_numbers_within_their_bounds() {
    let n_allowed = |repetition: &str| {
        let grammar = grammar(&format!("root ::= [x-z]{repetition}"));
        let may_end: Vec<bool> = (0..6)
            .map_while(|n| {
                let mut branch = grammar.start();
                for _ in 0..n {
                    if !branch.allows(128 + 120) {
                        return None;
                    }
                    branch.accept(128 + 120);
                }
                Some(branch.allows(0))
            })
            .collect();
        may_end.iter().map(|&may| if may { '$' } else { '.' }).collect::<String>()
    };
    assert_eq!(n_allowed("*"), "$$$$$$");
    assert_eq!(n_allowed("+"), ".$$$$$");
    assert_eq!(n_allowed("?"), "$$");
    assert_eq!(n_allowed("{2}"), "..$");
    assert_eq!(n_allowed("{ 1 , 3 }"), ".$$$");
    assert_eq!(n_allowed("{3,}"), "...$$$");
    assert_eq!(n_allowed("{0}"), "$");
    assert_eq!(n_allowed("{2}{2}"), "....$");
    assert_eq!(n_allowed("{1,3000}"), ".$$$$$", "an upper bound above the limit means unbounded");
}

#[test]
fn classes_and_escapes_allow_their_characters() {
    let classes = grammar(r#"root ::= [^\x00-\x60c-\U0010FFFF] [\]\-x-] "\"\u0041\\" ."#);
    assert_eq!(after(&classes, ""), "ab a b".replace("ab ", ""));
    assert_eq!(after(&classes, "a"), "- ] x");
    assert_eq!(after(&classes, "a-"), "\"");
    assert_eq!(after(&classes, "a-\"A"), "\\");
    assert_eq!(allowed(&mut *grammar("root ::= []").start()), [0]);
}

#[test]
fn a_multi_byte_character_must_be_completed_before_the_end() {
    let letters = grammar("root ::= [é-ë]* \"t\"?");
    let byte = |byte: u8| 128 + Token::from(byte);
    let mut branch = letters.start();
    assert_eq!(allowed(&mut *branch), [0, 4, byte(b't'), byte(0xC3)]);
    branch.accept(byte(0xC3));
    assert_eq!(allowed(&mut *branch), [byte(0xA9), byte(0xAA), byte(0xAB)]);
    branch.accept(byte(0xAA));
    assert_eq!(allowed(&mut *branch), [0, 4, byte(b't'), byte(0xC3)]);
    branch.accept(4);
    assert_eq!(allowed(&mut *branch), [0]);
    // The first byte of é allows the characters that share it with é.
    let mut others = grammar("root ::= [^é]").start();
    assert!(others.allows(byte(0xC3)));
    others.accept(byte(0xC3));
    assert!(!others.allows(byte(0xA9)) && others.allows(byte(0xA8)) && !others.allows(0));
}

#[test]
fn tokens_match_by_id_or_by_spelling() {
    let think = grammar("root ::= <think> !<[1]> \"ab\"");
    let mut branch = think.start();
    assert_eq!(allowed(&mut *branch), [1]);
    branch.accept(1);
    let any: Vec<Token> = [2, 4, 5].into_iter().chain(129..384).collect();
    assert_eq!(allowed(&mut *branch), any, "any token except this one, the end, and tokens without text");
    branch.accept(5);
    assert_eq!(allowed(&mut *branch), [2, 128 + 97]);
    // A token that matches by id and by spelling continues in both ways.
    let mut ambiguous = grammar("root ::= <[2]> \"x\" | \"ab\" \"y\"").start();
    ambiguous.accept(2);
    assert_eq!(allowed(&mut *ambiguous), [128 + 120, 128 + 121]);
}

#[test]
fn a_right_recursive_rule_may_repeat_without_bound() {
    let list = grammar("root ::= item (\",\" root)?\nitem ::= [a-z]+ | \"[\" root \"]\"");
    let mut branch = list.start();
    for _ in 0..2_000 {
        for byte in b"ab,[" {
            assert!(branch.allows(128 + Token::from(*byte)));
            branch.accept(128 + Token::from(*byte));
        }
    }
    branch.accept(128 + 97);
    for _ in 0..2_000 {
        assert!(!branch.allows(0));
        branch.accept(128 + Token::from(b']'));
    }
    assert!(branch.allows(0) && !branch.allows(128 + Token::from(b']')));
}

#[test]
fn the_cache_is_bounded() {
    // Every bracket makes a new stack, so that the cache keeps growing.
    let nested = grammar("root ::= \"(\" root \")\" | \"[\" root \"]\" | \"x\"");
    let mut branch = nested.start.clone();
    let mut max = 0;
    for i in 0..150_000_u32 {
        branch.accept(128 + Token::from(if i % 3 == 0 { b'(' } else { b'[' }));
        max = max.max(branch.matcher.n_cached);
    }
    assert!((matcher::MAX_CACHED..3 * matcher::MAX_CACHED / 2).contains(&max), "{max} numbers are cached");
    branch.accept(128 + Token::from(b'x'));
    for i in (0..150_000_u32).rev() {
        let closing = if i % 3 == 0 { b')' } else { b']' };
        assert!(branch.allows(128 + Token::from(closing)), "{i} are open");
        branch.accept(128 + Token::from(closing));
    }
    assert_eq!(allowed(&mut branch), [0]);
}

#[test]
fn a_grammar_with_too_many_parses_ends_the_text() {
    let explosive = grammar("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"z\"");
    let mut branch = explosive.start();
    let mut n_read = 0;
    while branch.allows(128 + 97) {
        branch.accept(128 + 97);
        n_read += 1;
        assert!(n_read < 40, "the grammar is abandoned before 2⁴⁰ parses");
    }
    assert!(n_read > 10, "{n_read} tokens were read");
    assert_eq!(allowed(&mut *branch), [0; 0]);
    branch.accept(128 + 97);
    assert_eq!(allowed(&mut *branch), [0; 0]);
}

#[test]
fn grammars_that_make_llama_cpp_hang_are_refused() {
    // 2⁴⁰ ways to begin; and a left-recursive rule hidden behind one that is indirectly empty.
    let ways = repeat_rules(40, |i| format!("r{i} ::= r{} \"x\" | r{0} \"y\"\n", i + 1));
    assert_eq!(
        refusal(&format!("root ::= r0\n{ways}r40 ::= \"z\"")),
        "line 1, column 1: the grammar is too ambiguous: there are too many ways to begin a text"
    );
    let hidden = "root ::= one root \"x\" | \"y\"\none ::= two\ntwo ::= \"\"";
    assert_eq!(refusal(hidden), "line 1, column 1: the grammar is too ambiguous: there are too many ways to begin a text");
    assert_eq!(refusal("root ::= \"a\"{3,2}"), "line 1, column 13: the minimum of 3 repetitions is above the maximum of 2");
    // This grammar terminates in llama.cpp, too.
    assert_eq!(after(&grammar("root ::= ([ab]* | \"x\")*"), "axb"), "ab $ a b x".replace("ab $", "$ ab"));
}

#[test]
fn errors_are_reported_with_their_position() {
    for (text, expected) in [
        ("", "line 1, column 1: the grammar must define the rule 'root'"),
        ("# nothing\n", "line 2, column 1: the grammar must define the rule 'root'"),
        ("start ::= \"a\"", "line 1, column 14: the grammar must define the rule 'root'"),
        ("root ::= \"é\" wort\nwort ::= \"a\" x\n", "line 2, column 14: the rule 'x' is not defined"),
        ("root = \"a\"", "line 1, column 6: expected ::= after the name 'root', which may contain letters, digits and -"),
        ("my_rule ::= \"a\"", "line 1, column 3: expected ::= after the name 'my', which may contain letters, digits and -"),
        ("root ::= \"a\n", "line 1, column 10: this string is not closed"),
        ("root ::= [a-z", "line 1, column 10: this character class is not closed"),
        ("root ::= [a-", "line 1, column 10: this character class is not closed"),
        ("root ::= (\"a\" | \"b\"", "line 1, column 20: expected ), found the end"),
        ("root ::= (\"a\" | \"b\"]", "line 1, column 20: expected ), found ']'"),
        ("root ::= \"a\" )", "line 1, column 14: expected a new line or the end of the rule, found ')'"),
        ("root ::= *", "line 1, column 10: there is nothing to repeat before this"),
        ("root ::= \"\"+", "line 1, column 12: there is nothing to repeat before this"),
        ("root ::= \"a\"{x}", "line 1, column 14: expected a number of repetitions, found 'x'"),
        ("root ::= \"a\"{2;3}", "line 1, column 15: expected } after the number of repetitions, found ';'"),
        ("root ::= \"a\"{2001}", "line 1, column 13: 2001 repetitions are too many; at most 2000 are allowed"),
        (
            "root ::= \"a\"{99999999999999999999}",
            "line 1, column 13: 18446744073709551615 repetitions are too many; at most 2000 are allowed",
        ),
        ("root ::= (\"a\"?){2000}", "line 1, column 16: this repetition expands to 4000 rules; at most 2000 are allowed"),
        ("root ::= \"\\q\"", "line 1, column 11: the escape \\q is unknown; write \\\\ for a backslash"),
        ("root ::= \"\\x4\"", "line 1, column 11: \\x must be followed by 2 hexadecimal digits"),
        ("root ::= [\\u12é4]", "line 1, column 11: \\u must be followed by 4 hexadecimal digits"),
        ("root ::= <[384]>", "line 1, column 10: token 384 is not in the vocabulary (384 tokens)"),
        ("root ::= <[x]>", "line 1, column 10: <[x]> is not a token id; write it like <[7]>"),
        ("root ::= !<no>", "line 1, column 11: the vocabulary has no token '<no>'"),
        ("root ::= !x", "line 1, column 11: expected < after !, found 'x'"),
        ("root ::= <think", "line 1, column 10: this token is not closed with >"),
        ("root ::= root \"a\"", "line 1, column 1: the rule 'root' is left-recursive: it can begin with itself"),
        (
            "root ::= a\na ::= (\"x\"? b)\nb ::= a | \"\"",
            "line 1, column 10: the rule 'a' is left-recursive: it can begin with itself",
        ),
        ("root ::= \"a\0\"", "line 1, column 12: a grammar cannot contain a NUL character; write \\x00"),
        ("%llguidance {}", "line 1, column 1: expected the name of a rule, found '%'"),
    ] {
        assert_eq!(refusal(text), expected, "{text}");
    }
}

#[test]
fn sizes_are_bounded() {
    let deep = |n: usize| format!("root ::= {}\"a\"{}", "(".repeat(n), ")".repeat(n));
    assert_eq!(after(&grammar(&deep(MAX_DEPTH)), ""), "a");
    assert_eq!(refusal(&deep(100_000)), "line 1, column 266: parentheses are nested more than 256 deep");
    let long = format!("root ::= \"{}\"{{2000}}", "a".repeat(1_000));
    assert_eq!(refusal(&long), "line 1, column 1012: the repetitions up to here expand to more than 1048576 elements");
    let huge = format!("root ::= \"{}\"", "a".repeat(MAX_BYTES));
    assert_eq!(refusal(&huge), "line 1, column 1048577: the grammar of 1048587 bytes is longer than 1048576 bytes");
    // A chain of fifty thousand rules, each of which begins with the next.
    let chain = repeat_rules(50_000, |i| format!("r{i} ::= r{}\n", i + 1));
    assert_eq!(after(&grammar(&format!("root ::= r0\n{chain}r50000 ::= \"a\"")), ""), "a");
    let ring = repeat_rules(50_000, |i| format!("r{i} ::= r{}\n", (i + 1) % 50_000));
    assert!(refusal(&format!("root ::= r0\n{ring}")).contains("is left-recursive"));
}

/// The first `n` Chinese characters of their block.
fn characters(n: u32) -> impl Iterator<Item = char> {
    (0..n).filter_map(|i| char::from_u32(0x4E00 + i))
}

#[test]
fn a_long_list_of_words_with_different_first_characters_is_not_ambiguous() {
    // Each word begins with a different character, and the vocabulary has a token for each character.
    let words: Vec<String> = characters(4_000).map(|character| format!("\"{character}ab\"")).collect();
    let spellings_of_characters: Vec<String> = characters(5_000).map(String::from).collect();
    let spellings = spellings_of_characters.iter().map(String::as_bytes).chain([&b"a"[..], b"b", b"</s>"]);
    let spellings = Arc::new(Spellings::new(spellings, &[5_002]));
    let listed = Grammar::new(&format!("root ::= {}", words.join("|")), &Toy, spellings).unwrap();
    let mut branch = listed.start();
    let mut row = vec![1.0; 5_003];
    branch.mask(&mut row);
    assert_eq!(row.iter().filter(|&&logit| logit > 0.0).count(), 4_000);
    branch.accept(3_999);
    assert!(branch.allows(5_000) && !branch.allows(5_001));
}

#[test]
fn the_cost_of_a_token_is_bounded_for_grammars_with_many_alternatives() {
    // They are inspected once for all tokens, and once for each partial character at the end of a token.
    for alternatives in ["| <[7]> ".repeat(50_000), "| [é-ë] ".repeat(50_000)] {
        let many = grammar(&format!("root ::= \"x\" {alternatives}"));
        let mut branch = many.start.clone();
        for max in [100 * 50_001, 2 * 50_001] {
            let mut row = vec![1.0; Toy.n_vocab()];
            branch.mask(&mut row);
            assert!(row.iter().any(|&logit| logit > 0.0));
            assert!(branch.matcher.n_inspected <= max, "{} tops were inspected", branch.matcher.n_inspected);
        }
    }
}

/// The text that is forced after `text`, which is spelt in bytes.
fn forced_after(grammar: &Grammar, text: &str) -> String {
    let (mut branch, mut spacing) = (grammar.start(), Spacing::default());
    for byte in text.bytes() {
        assert!(branch.try_accept_rest(128 + Token::from(byte), 0), "{text:?} is not allowed at {:?}", char::from(byte));
    }
    spacing.read(text.as_bytes());
    let before = allowed(&mut *branch);
    let forced = branch.forced_text(&spacing, 100);
    assert_eq!(allowed(&mut *branch), before, "the branch does not advance");
    String::from_utf8(forced).unwrap()
}

#[test]
fn text_is_forced_up_to_the_first_choice() {
    let fruit = grammar("root ::= \"an \" (\"apple\" | \"äther\") \" a day\" [.!]? | \"none\"");
    assert_eq!(forced_after(&fruit, ""), "");
    assert_eq!(forced_after(&fruit, "a"), "n ");
    assert_eq!(forced_after(&fruit, "an a"), "pple a day");
    assert_eq!(forced_after(&fruit, "an \u{e4}t"), "her a day");
    assert_eq!(forced_after(&fruit, "an apple a day"), "", "the text may end");
    assert_eq!(forced_after(&grammar("root ::= \"a\" <think> \"b\""), ""), "a", "a token has several spellings");
    let endless = grammar("root ::= \"a\" root").start().forced_text(&Spacing::default(), 10);
    assert_eq!(endless, [b'a'; 10]);
}

#[test]
fn text_is_forced_with_the_white_space_of_the_text_so_far() {
    let space = "s ::= | \" \" | \"\\n\"{1,2} [ \\t]{0,20}\n";
    let object = grammar(
        &format!("root ::= \"{{\" s \"'a':\" s [0-9] \",\" s \"'bc':\" s \"'\" [a-z]* \"'\" s \"}}\"\n{space}")
            .replace('\'', "\\\""),
    );
    assert_eq!(forced_after(&object, ""), "{\"a\":");
    assert_eq!(forced_after(&object, "{\"a\": 1"), ", \"bc\": \"");
    assert_eq!(forced_after(&object, "{\"a\": 1,"), " \"bc\": \"");
    assert_eq!(forced_after(&object, "{\"a\": 1, "), "\"bc\": \"");
    assert_eq!(forced_after(&object, "{\n  \"a\":1,\n  \""), "bc\":\"");
    assert_eq!(forced_after(&object, "{\"a\":1,\"bc\":\"x\""), "}");
}

#[test]
fn allowed_tokens_are_counted_up_to_the_first_refused_one() {
    let mut branch = grammar("root ::= \"ab\" [0-9]+ | <think>").start();
    let byte = |byte: u8| 128 + Token::from(byte);
    assert_eq!(branch.n_allowed(&[2, byte(b'1'), 0]), 3, "the text may end");
    assert_eq!(branch.n_allowed(&[byte(b'a'), byte(b'b'), byte(b'b'), byte(b'1')]), 2);
    assert_eq!([branch.n_allowed(&[1]), branch.n_allowed(&[0]), branch.n_allowed(&[])], [1, 0, 0]);
    assert_eq!(allowed(&mut *branch), [1, 2, byte(b'a')], "the branch does not advance");
}

#[test]
fn looking_ahead_agrees_with_accepting_on_random_texts() {
    let mut state = 5_u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((state >> 33) % n as u64).unwrap()
    };
    let grammars = [
        "root ::= (\"ab\" | \"a\" root \"cd\" | [é-ü] \"x\")*",
        "root ::= \"{\" ([ ]? \"name\" [a-c]{2} \":\" [ ]? root \",\")* \"}\" | \"null\"",
    ];
    let mut n_forced = 0;
    for (text, _) in grammars.iter().flat_map(|text| (0..100).map(move |nth| (text, nth))) {
        let mut branch = grammar(text).start();
        for _ in 0..40 {
            let tokens = allowed(&mut *branch);
            let forced = branch.forced_text(&Spacing::default(), 8);
            if let Some(&first) = forced.first() {
                n_forced += 1;
                let is_next = |&token: &Token| token < 128 || token == 128 + Token::from(first) || token == 128 + 32;
                assert!(tokens.iter().all(is_next), "{first} of {tokens:?}");
            }
            let draft: Vec<Token> = (0..3).map(|_| tokens.get(below(tokens.len().max(1))).copied().unwrap_or(0)).collect();
            let mut copy = branch.copy();
            let n_accepted = draft.iter().take_while(|&&token| copy.try_accept_rest(token, 0)).count();
            assert_eq!(branch.n_allowed(&draft), n_accepted);
            assert_eq!(allowed(&mut *branch), tokens, "the branch does not advance");
            if tokens.is_empty() || draft[0] == 0 {
                break;
            }
            branch.accept(draft[0]);
        }
    }
    assert!(n_forced > 200, "{n_forced}");
}

#[test]
fn a_branch_outlives_a_look_ahead_into_too_many_ways_to_parse_a_text() {
    // Each a doubles the ways to parse the text; a b has one.
    let mut branch = grammar(&format!(
        "root ::= \"b\" | a0\n{}a30 ::= \"a\"*",
        repeat_rules(30, |nth| format!("a{nth} ::= a{} | \"a\" a{}\n", nth + 1, nth + 1))
    ))
    .start();
    let byte = |byte: u8| 128 + Token::from(byte);
    assert!(branch.n_allowed(&[byte(b'a'); 64]) <= 64);
    assert!(branch.allows(byte(b'b')));
    branch.accept(byte(b'b'));
    assert_eq!(allowed(&mut *branch), [0]);
}
