//! Compares grammars on the demo model's vocabulary with llama.cpp's own.

use std::ffi::CString;
use std::process::{Command, Stdio};

use llama_cpp_sys_2 as sys;

use super::demo;
use super::runner::try_start;
use crate::engine::runner::{KvSeqId, Runner};
use crate::error::Error;
use crate::grammar::{MAX_BYTES, to_gbnf};
use crate::llama::Model;
use crate::llama::context::batch::rows_of;
use crate::llama::vocabulary::grammar::MAX_GRAMMARS;
use crate::llama::vocabulary::token_strings::token_strings;
use crate::request::{Constraint, SamplingParams, SharedConstraint, Token};
use crate::sampling::draw::rng::Mt19937;
use crate::sampling::{Sampler, draw_allowed};

struct Theirs(*mut sys::llama_sampler);

impl Drop for Theirs {
    fn drop(&mut self) {
        // SAFETY: the pointer came from an init function and is owned by this value alone.
        unsafe { sys::llama_sampler_free(self.0) }
    }
}

impl Theirs {
    fn read(model: &Model, text: &str) -> Option<Self> {
        let text = CString::new(text).unwrap();
        // SAFETY: the vocabulary lives as long as the model, which all tests share; the strings outlive the call.
        let sampler = unsafe {
            sys::llama_rs_sampler_init_grammar(sys::llama_model_get_vocab(model.as_ptr()), text.as_ptr(), c"root".as_ptr())
        };
        (!sampler.is_null()).then_some(Self(sampler))
    }

    /// Returns its logits, with those of rejected tokens set to −∞.
    fn apply(&self, row: &[f32]) -> Vec<f32> {
        let mut data: Vec<_> = (0..).zip(row).map(|(id, &logit)| sys::llama_token_data { id, logit, p: 0.0 }).collect();
        let mut array = sys::llama_token_data_array { data: data.as_mut_ptr(), size: data.len(), selected: -1, sorted: false };
        // SAFETY: the array describes `data`, which outlives the call; a grammar only changes logits.
        unsafe { sys::llama_sampler_apply(self.0, &raw mut array) };
        data.iter().map(|data| data.logit).collect()
    }

    fn allows(&self, token: Token) -> bool {
        let mut data = sys::llama_token_data { id: token, logit: 1.0, p: 0.0 };
        let mut array = sys::llama_token_data_array { data: &raw mut data, size: 1, selected: -1, sorted: false };
        // SAFETY: the array describes `data`, which outlives the call.
        unsafe { sys::llama_sampler_apply(self.0, &raw mut array) };
        data.logit > 0.0
    }

    fn accept(&self, token: Token) {
        // SAFETY: the pointer is live.
        let status = unsafe { sys::llama_rs_sampler_accept(self.0, token) };
        assert_eq!(status, sys::LLAMA_RS_STATUS_OK, "llama.cpp does not take token {token}");
    }
}

struct Random(Mt19937);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0.next_u32() as usize % n
    }

    fn one_of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }
}

/// JSON, as grammars usually define it.
const JSON: &str = r#"root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [1-9] [0-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;

const GRAMMARS: [&str; 6] = [
    JSON,
    "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\nterm ::= ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*\n",
    "# a list\nroot ::= item+\nitem ::= \"- \" [a-zA-Z ,é-ü漢]{1,40} \"\\n\"\n",
    "root ::= sentence{2,3}\nsentence ::= (\" \"? word){1,} [.!?]\nword ::= \"the\" | \"cat\" | \"dog\" | \"see\" \"s\"? | [A-Z] [a-z]*\n",
    "root ::= \"\\u00e9\" (. .)? | [\\U0001F600-\\U0001F64F]+ \"x\"",
    "root ::= \"yes\" | \"no\" | \"\"",
];

fn begin(grammar: &SharedConstraint) -> Box<dyn Constraint> {
    grammar.0.start()
}

fn allowed_tokens(row: &[f32]) -> Vec<Token> {
    (0..).zip(row).filter(|&(_, &logit)| logit > f32::NEG_INFINITY).map(|(token, _)| token).collect()
}

/// Advances both through a random text of at most `n_tokens` tokens, and compares which of the tokens that satisfy `is_compared`
/// they allow.
fn walk_both(text: &str, random: &mut Random, n_tokens: usize, is_compared: impl Fn(Token) -> bool) {
    let model = demo();
    let (grammar, theirs) = (model.grammar(text).unwrap(), Theirs::read(&model, text).unwrap());
    let mut constraint = begin(&grammar);
    let (row, mut tokens) = (vec![1.0; model.n_vocab()], Vec::new());
    for _ in 0..n_tokens {
        let mut masked = row.clone();
        constraint.mask(&mut masked);
        let compared = |row: &[f32]| allowed_tokens(row).into_iter().filter(|&token| is_compared(token)).collect::<Vec<_>>();
        let (mine, other) = (compared(&masked), compared(&theirs.apply(&row)));
        let spelt = |tokens: &[Token]| String::from_utf8_lossy(&model.detokenize(tokens).unwrap()).into_owned();
        assert_eq!(spelt(&mine), spelt(&other), "after {:?} in\n{text}", spelt(&tokens));
        assert_eq!(mine, other);
        if mine.is_empty() {
            return;
        }
        let token = *random.one_of(&mine);
        assert!(constraint.allows(token));
        if model.is_end(token) {
            return;
        }
        constraint.accept(token);
        theirs.accept(token);
        tokens.push(token);
    }
}

#[test]
fn allowed_tokens_match_llama_cpp() {
    let mut random = Random(Mt19937::new(1));
    // llama.cpp allows invalid UTF-8 in some positions, and interprets the start of some sequences as longer ones.
    let is_utf8 = |token| demo().piece(token).is_some_and(|piece| !matches!(piece, [0xE0 | 0xED | 0xF0 | 0xF4..]));
    for text in GRAMMARS {
        for _ in 0..25 {
            walk_both(text, &mut random, 60, is_utf8);
        }
    }
}

/// Lists texts that llama.cpp reads without end, or that we reject and llama.cpp does not.
fn is_limit_of_ours(message: &str, text: &str) -> bool {
    let limits = ["is above the maximum", "too many ways", "not in the vocabulary", "parentheses are nested more than"];
    limits.iter().any(|limit| message.contains(limit)) || message.contains("is not defined") && text.contains("{0")
}

/// Returns a grammar with a few random changes, most of which break it.
fn mutated(random: &mut Random) -> String {
    let fragments = [
        "\"",
        "[",
        "]",
        "(",
        ")",
        "*",
        "+",
        "?",
        "{",
        "}",
        "|",
        "::=",
        "\n",
        " ",
        "#",
        ".",
        "-",
        "^",
        "\\",
        "root",
        "ws",
        "item",
        "\"a\"",
        "[a-z]",
        "{2}",
        "{0,}",
        "{1,3}",
        "{0}",
        "{2001}",
        "\\x41",
        "\\u12",
        "\\n",
        "<[5]>",
        "!<[7]>",
        "<|im_start|>",
        "<no>",
        "é",
        "root ::= ",
        "\nnew ::= \"\"\n",
        " new ",
        "\"\"",
        "(\"a\" | )",
        "[]",
        "\r\n",
        "\t",
        "_",
        "2",
        ",",
    ];
    let mut text: Vec<char> = random.one_of(&GRAMMARS).chars().collect();
    for _ in 0..=random.below(3) {
        let offset = random.below(text.len() + 1);
        let end = (offset + random.below(12)).min(text.len());
        match random.below(5) {
            0 => drop(text.drain(offset..end)),
            1 => {
                let copy: Vec<char> = text[offset..end].to_vec();
                let to = random.below(text.len() + 1);
                text.splice(to..to, copy);
            }
            _ => drop(text.splice(offset..offset, random.one_of(&fragments).chars()).collect::<Vec<_>>()),
        }
    }
    text.into_iter().collect()
}

/// Runs the comparison in a child process: llama.cpp writes its errors to standard error.
const READS: &str = "WEFT_TEST_READS_GRAMMARS";

#[test]
fn twenty_thousand_texts_parse_if_they_parse_in_llama_cpp() {
    if std::env::var_os(READS).is_none() {
        let name = "llama::tests::grammar::twenty_thousand_texts_parse_if_they_parse_in_llama_cpp";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", name, "--nocapture"]).env(READS, "1").stderr(Stdio::null()).output().unwrap();
        let output_text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && output_text.contains("20000 texts were read"), "{}: {output_text}", output.status);
        return;
    }
    let model = demo();
    let is_text = |token| model.piece(token).is_some_and(|piece| std::str::from_utf8(piece).is_ok() && piece.len() <= 4);
    let mut random = Random(Mt19937::new(2));
    let (mut n_right, mut n_limits, mut n_walks) = (0, 0, 0);
    for i in 0..20_000 {
        let text = mutated(&mut random);
        match model.grammar(&text) {
            Ok(_) => {
                n_right += 1;
                let Some(_) = Theirs::read(&model, &text) else {
                    panic_here(&format!("text {i} is no grammar for llama.cpp:\n{text}"))
                };
                // llama.cpp also searches for tokens that are named by their ids where no token begins.
                if i % 8 == 0 && !text.contains(['<', '!']) {
                    n_walks += 1;
                    walk_both(&text, &mut random, 5, is_text);
                }
            }
            Err(Error::InvalidRequest { param: "grammar", message }) if is_limit_of_ours(&message, &text) => n_limits += 1,
            Err(Error::InvalidRequest { param: "grammar", message }) => {
                if !text.is_empty() && Theirs::read(&model, &text).is_some() {
                    panic_here(&format!("text {i} is a grammar for llama.cpp, but {message}:\n{text}"));
                }
            }
            Err(other) => panic_here(&format!("{other:?}")),
        }
    }
    assert!((3_000..17_000).contains(&n_right) && n_walks > 250 && n_limits < 1_000, "{n_right} {n_walks} {n_limits}");
    // The parent process searches for this line.
    #[expect(clippy::print_stdout, reason = "it is read by this test")]
    {
        println!("20000 texts were read; {n_right} are grammars, {n_limits} are refused here only");
    }
}

/// Panics with a message that the parent process can read.
fn panic_here(message: &str) -> ! {
    #[expect(clippy::print_stdout, reason = "the standard error is llama.cpp's")]
    {
        println!("{message}");
    }
    panic!("{message}")
}

/// Returns llama-server's default chain, without disabled steps.
fn default_chain(params: &SamplingParams, seed: u32) -> Theirs {
    // SAFETY: the functions take plain numbers, and the chain takes over what is added to it.
    unsafe {
        let chain = sys::llama_sampler_chain_init(sys::llama_sampler_chain_default_params());
        sys::llama_sampler_chain_add(chain, sys::llama_sampler_init_top_k(params.top_k));
        sys::llama_sampler_chain_add(chain, sys::llama_sampler_init_top_p(params.top_p, 0));
        sys::llama_sampler_chain_add(chain, sys::llama_sampler_init_min_p(params.min_p, 0));
        sys::llama_sampler_chain_add(chain, sys::llama_sampler_init_temp_ext(params.temperature, 0.0, 1.0));
        sys::llama_sampler_chain_add(chain, sys::llama_sampler_init_dist(seed));
        Theirs(chain)
    }
}

/// Returns the token that the chain selects, in the manner of llama-server: freely first, restricted to the grammar only if that
/// token is rejected.
fn drawn_by(chain: &Theirs, grammar: &Theirs, logits: &[f32]) -> Token {
    let select = |row: &[f32]| {
        let mut data: Vec<_> = (0..).zip(row).map(|(id, &logit)| sys::llama_token_data { id, logit, p: 0.0 }).collect();
        let mut array = sys::llama_token_data_array { data: data.as_mut_ptr(), size: data.len(), selected: -1, sorted: false };
        // SAFETY: the array describes `data`, which outlives the call; samplers only shrink it.
        unsafe { sys::llama_sampler_apply(chain.0, &raw mut array) };
        data[usize::try_from(array.selected).unwrap()].id
    };
    let token = select(logits);
    if grammar.allows(token) { token } else { select(&grammar.apply(logits)) }
}

#[test]
fn constrained_sampling_matches_llama_cpps_chain_and_grammar() {
    let (model, params) = (demo(), SamplingParams::default());
    let (mut runner, _) = try_start(|_| ()).expect("the demo model runs");
    let mut n_drawn = 0;
    for (seed, text) in (1..).zip(GRAMMARS.iter().cycle().take(30)) {
        let mut row = model.tokenize(format!("Chapter {seed}. Once upon a time").as_bytes(), true, true).unwrap();
        let mut position = 0;
        let mut sampler = Sampler::new(&params, seed, &token_strings(&model), 1_024);
        let mut constraint = begin(&model.grammar(text).unwrap());
        let (chain, grammar) = (default_chain(&params, seed), Theirs::read(&model, text).unwrap());
        for i in 0..60 {
            runner.decode(&rows_of(KvSeqId(0), position, &row)).expect("the plan is valid");
            position += u32::try_from(row.len()).unwrap();
            let logits = runner.logits(row.len() - 1);
            let token = draw_allowed(&mut sampler, &mut *constraint, logits).expect("something is allowed");
            assert_eq!(token, drawn_by(&chain, &grammar, logits), "token {i} of seed {seed} in\n{text}");
            n_drawn += 1;
            if model.is_end(token) {
                break;
            }
            grammar.accept(token);
            row = vec![token];
        }
        runner.drop_sequence(KvSeqId(0));
    }
    assert!(n_drawn > 500, "only {n_drawn} tokens were drawn");
}

#[test]
fn grammars_are_cached_up_to_a_limit() {
    let model = demo();
    let numbered = |i: usize| format!("root ::= \"kept {i}\"");
    let first = model.grammar(&numbered(0)).unwrap();
    assert_eq!(model.grammar(&numbered(0)).unwrap(), first);
    for i in 1..MAX_GRAMMARS {
        model.grammar(&numbered(i)).unwrap();
        // Other tests may compile grammars concurrently; grammars in use stay cached.
        assert_eq!(model.grammar(&numbered(0)).unwrap(), first);
    }
    for i in 0..=MAX_GRAMMARS {
        model.grammar(&numbered(1_000 + i)).unwrap();
    }
    assert_ne!(model.grammar(&numbered(0)).unwrap(), first);
}

fn refusal(result: crate::error::Result<SharedConstraint>) -> (&'static str, String) {
    match result {
        Err(Error::InvalidRequest { param, message }) => (param, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_invalid_grammar_or_schema_is_rejected_with_its_position() {
    let model = demo();
    for (text, expected) in [
        ("root ::= \"a\"\nother ::= [", "invalid grammar: line 2, column 11: this character class is not closed"),
        ("root ::= <|im_start|> <nope>", "invalid grammar: line 1, column 23: the vocabulary has no token '<nope>'"),
        ("root ::= <[2048]>", "invalid grammar: line 1, column 10: token 2048 is not in the vocabulary (2048 tokens)"),
    ] {
        assert_eq!(refusal(model.grammar(text)), ("grammar", expected.to_owned()));
    }
    for (text, expected) in [
        ("{\"type\": \"object\"", "the JSON schema is refused in line 1, column 18: expected a comma or }, found the end"),
        (
            "{\n\"type\": \"thing\"}",
            "the JSON schema is refused in line 2, column 9: unknown type 'thing'; the types are object, array, string, integer, number, boolean and null",
        ),
        (
            "{\"items\": {\"pattern\": \"^(a$\"}}",
            "the JSON schema is refused in line 1, column 23: the pattern \"^(a$\" is invalid or not supported: a group is not closed with )",
        ),
        (
            "{\"items\": {\"pattern\": \"^b(?=a)$\"}}",
            "the JSON schema is refused in line 1, column 23: the pattern \"^b(?=a)$\" is invalid or not supported: lookarounds and flags are not supported, except lookaheads after an initial ^",
        ),
        (
            "{\"type\": \"array\", \"uniqueItems\": true}",
            "the JSON schema is refused in line 1, column 34: uniqueItems is only supported if maxItems is at most 1",
        ),
        (
            "{\"items\": {}, \"minItems\": 5000000}",
            "the JSON schema is refused in line 1, column 1: a length of 5000000 is not supported; it must be at most 1000000 characters, items or properties",
        ),
        (
            "{\"$ref\": \"#/a\", \"a\": {\"anyOf\": [{\"$ref\": \"#/a\"}]}}",
            "the JSON schema is refused in line 1, column 22: this schema refers to itself; recursion is only possible through a property or an item",
        ),
    ] {
        assert_eq!(refusal(model.json_schema(text)), ("json_schema", expected.to_owned()), "{text}");
    }
}

/// Fragments of schemas, valid and invalid; `_` is replaced by another fragment.
const PARTS: [&str; 40] = [
    r#"{"type": "string"}"#,
    r#"{"type": "integer"}"#,
    r#"{"type": "number"}"#,
    r#"{"type": "boolean"}"#,
    r#"{"type": "null"}"#,
    "{}",
    "true",
    "5",
    r#"{"type": "nothing"}"#,
    r#"{"type": ["string", "null"]}"#,
    r#"{"type": ["array", "object"], "items": _}"#,
    r#"{"type": "array", "items": _}"#,
    r#"{"type": "array", "items": _, "minItems": 2, "maxItems": 3}"#,
    r#"{"items": _, "minItems": 9999}"#,
    r#"{"prefixItems": [_, _]}"#,
    r#"{"items": [_, _, _]}"#,
    r#"{"items": _, "maxItems": 0}"#,
    r#"{"type": "object", "properties": {"a": _, "b": _}, "required": ["a"]}"#,
    r#"{"properties": {"a": _, "é
"]": _}, "additionalProperties": _}"#,
    r#"{"type": "object", "additionalProperties": _}"#,
    r#"{"type": "object", "properties": {"_": _, "a-b": _, "^\": _}, "additionalProperties": true}"#,
    r#"{"enum": ["a", 1, null, [2], {"b": "c"d\"}]}"#,
    "{\"const\": {\"x\": [1.5, \"\0\n\"]}}",
    r#"{"enum": []}"#,
    r#"{"anyOf": [_, _]}"#,
    r#"{"oneOf": [_, _, _]}"#,
    r#"{"allOf": [_, _]}"#,
    r#"{"allOf": [{"properties": {"a": _}}, {"anyOf": [_, _]}]}"#,
    r##"{"$ref": "#/$defs/a"}"##,
    r##"{"$ref": "#/$defs/b"}"##,
    r##"{"$ref": "#/$defs/c"}"##,
    r##"{"$ref": "#/nowhere"}"##,
    r#"{"type": "string", "pattern": "^[a-c]{2,3}(x|\d)?$"}"#,
    r#"{"pattern": "^(ab$"}"#,
    r#"{"pattern": "^[^\]a]+.*$", "maxLength": 5}"#,
    r#"{"type": "string", "minLength": 3, "maxLength": 8}"#,
    r#"{"type": "string", "format": "date-time"}"#,
    r#"{"format": "uuid"}"#,
    r#"{"type": "integer", "minimum": -12, "maximum": 1234}"#,
    r#"{"type": "integer", "exclusiveMinimum": 999999999999.5}"#,
];

fn schema(random: &mut Random, depth: usize) -> String {
    let part = if depth == 0 { "{}" } else { *random.one_of(&PARTS) };
    let mut text = String::new();
    for (i, piece) in part.split('_').enumerate() {
        if i > 0 {
            text += &schema(random, depth - 1);
        }
        text += piece;
    }
    text
}

#[test]
fn ten_thousand_schemas_compile_or_are_rejected_with_a_reason() {
    let model = demo();
    let mut random = Random(Mt19937::new(3));
    let (mut n_right, mut n_wrong) = (0, 0);
    for i in 0..10_000 {
        let defs = [(); 3].map(|()| schema(&mut random, 2));
        let mut text = format!(
            r#"{{"allOf": [{}], "$defs": {{"a": {}, "b": {}, "c": {}}}}}"#,
            schema(&mut random, 3),
            defs[0],
            defs[1],
            defs[2]
        );
        if i % 4 == 0 {
            text = schema(&mut random, 4);
        }
        if i % 20 == 0 {
            // Removes random characters.
            let mut characters: Vec<char> = text.chars().collect();
            let offset = random.below(characters.len());
            characters.drain(offset..(offset + 1 + random.below(3)).min(characters.len()));
            text = characters.into_iter().collect();
        }
        match model.json_schema(&text) {
            Ok(constraint) => {
                n_right += 1;
                assert!((0..2_048).any(|token| begin(&constraint).allows(token)), "nothing begins what fits {text}");
            }
            Err(Error::InvalidRequest { param: "json_schema", message }) => {
                n_wrong += 1;
                assert!(message.contains("line ") || message.contains("cannot be converted"), "{message}");
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(n_right > 2_000 && n_wrong > 2_000, "{n_right} right, {n_wrong} wrong");
}

#[test]
fn the_largest_accepted_schemas_stay_within_the_grammar_limits() {
    let names = |n: usize, part: &str| (0..n).map(|i| format!("\"p{i}\": {part}")).collect::<Vec<_>>().join(",");
    let deep = |n: usize| format!("{}{{}}{}", r#"{"properties":{"kkkkkkkkkkkkkkkk":"#.repeat(n), "}}".repeat(n));
    let wide = format!("{{\"properties\": {{{}}}, \"additionalProperties\": true}}", names(256, "{}"));
    let named = format!("{{\"properties\": {{\"{}\": {{}}}}}}", "_".repeat(256));
    let listed = format!("{{\"enum\": [{}]}}", (0..20_000).map(|i| format!("\"{i}\"")).collect::<Vec<_>>().join(","));
    let many = format!("{{\"properties\": {{{}}}}}", names(250, r#"{"type":["string","integer","null"],"maxLength":100}"#));
    for text in [deep(64), wide, named, listed, many] {
        let gbnf = to_gbnf(&text).unwrap();
        assert!(gbnf.len() < MAX_BYTES, "{} bytes for {}…", gbnf.len(), &text[..60]);
        // A grammar whose tokens take too many steps allows nothing.
        let mut branch = begin(&demo().json_schema(&text).unwrap());
        let mut row = vec![0.0; demo().n_vocab()];
        branch.mask(&mut row);
        assert!(!allowed_tokens(&row).is_empty(), "for {}…", &text[..60]);
    }
    for text in [deep(65), "[".repeat(100_000), format!("{{\"a\":{}", "{\"a\":".repeat(100_000))] {
        refusal(demo().json_schema(&text));
    }
}

#[test]
fn recursive_schemas_do_not_end_the_process() {
    for text in [
        r##"{"allOf": [{"$ref": "#/d"}], "d": {"properties": {"a": {}}, "anyOf": [{"$ref": "#/d"}, {}]}}"##,
        r##"{"allOf": [{"anyOf": [{"$ref": "#/d"}]}], "d": {"anyOf": [{"$ref": "#/d"}, {"type": "object"}]}}"##,
        r##"{"allOf": [{"$ref": "#/d"}], "d": {"allOf": [{"$ref": "#/d"}], "properties": {"a": {"$ref": "#/d"}}}}"##,
    ] {
        match demo().json_schema(text) {
            Ok(constraint) => assert!((0..2_048).any(|token| begin(&constraint).allows(token)), "{text}"),
            Err(error) => assert!(matches!(error, Error::InvalidRequest { param: "json_schema", .. }), "{error:?}"),
        }
    }
}

#[test]
fn the_longest_patterns_are_converted_or_refused() {
    let pattern = |text: &str| format!(r#"{{"type": "string", "pattern": "^{text}$"}}"#);
    for part in ["(", "a*", "*", "{9}", "(a|", "(a{9})", "[", "[^a]{2}", "a?b+"] {
        let text = pattern(&format!("x{}", part.repeat(4_000 / part.len())));
        match demo().json_schema(&text) {
            Ok(constraint) => drop(begin(&constraint)),
            Err(error) => assert!(matches!(error, Error::InvalidRequest { param: "json_schema", .. }), "{error:?}"),
        }
    }
}
