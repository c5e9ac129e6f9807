//! Tests that cutting a text gives llama.cpp's tokens of the whole text, for every kind of vocabulary.

use std::collections::HashSet;
use std::ffi::c_char;
use std::fs;

use llama_cpp_sys_2 as sys;

use super::gguf_writer::Header;
use super::tiny::{Chance, Kind, write_tiny_with};
use super::{demo, load};
use crate::cancellation::Cancellation;
use crate::error::Error;
use crate::llama::Model;
use crate::llama::vocabulary::splitter::{CLASSES, DEDICATED};
use crate::request::Token;

/// llama.cpp's numbers of token types.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const BYTE: i32 = 6;

/// Spelling of a byte in a vocabulary.
#[derive(Clone, Copy)]
enum Bytes {
    /// `<0xE2>`
    Hexadecimal,
    /// GPT-2's: characters that are not visible in Latin-1 are mapped to 256 and above.
    Shifted,
    /// `\xe2`
    Escaped,
}

/// A vocabulary for each kind that llama.cpp supports, and for each treatment of text next to a special token.
struct Recipe {
    tokenizer: &'static str,
    bytes: Bytes,
    /// Strings in the metadata, which determine some of llama.cpp's rules.
    strings: &'static [(&'static str, &'static str)],
    flags: &'static [(&'static str, bool)],
}

const PIECES: [&str; 17] =
    ["▁d", "de", "▁de", "ed", "▁▁", "dede", "Ġd", "▁", "d", "e", "▁e", "f", "▁<", "▁é", "日本", "日本日本", "de日"];
const MERGES: [&str; 4] = ["d e", "de de", "Ġ d", "▁ d"];
const GPT_2: &[(&str, &str)] = &[("tokenizer.ggml.pre", "gpt-2")];
const BOTH_ADDED: &[(&str, bool)] = &[("tokenizer.ggml.add_bos_token", true), ("tokenizer.ggml.add_eos_token", true)];
const NO_SPACE: &[(&str, bool)] = &[("tokenizer.ggml.add_space_prefix", false), ("tokenizer.ggml.add_eos_token", true)];
const MERGED_SPACES: &[(&str, bool)] =
    &[("tokenizer.ggml.remove_extra_whitespaces", true), ("tokenizer.ggml.add_space_prefix", true)];

/// Returns the spellings of special tokens: some are parts of others, some overlap, many are equally long.
fn specials() -> Vec<String> {
    let letters = ["a", "b", "c"];
    let pairs: Vec<String> = letters.iter().flat_map(|one| letters.map(|other| format!("{one}{other}"))).collect();
    let triples = pairs.iter().flat_map(|pair| letters.map(|letter| format!("{pair}{letter}")));
    let others = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|im",
        "|>",
        "a b",
        "abcab",
        "bcabc",
        "cabca",
        "   ",
        "  ",
        "\n\n",
        "\n\n\n",
        "\t",
        "é",
        "<s>é",
        "<mask><mask>",
        " <s>",
    ];
    pairs.iter().cloned().chain(triples).chain(others.map(str::to_owned)).collect()
}

impl Recipe {
    const fn new(tokenizer: &'static str, bytes: Bytes) -> Self {
        Self { tokenizer, bytes, strings: &[], flags: &[] }
    }

    /// Returns every token with its type; all spellings differ.
    fn tokens(&self) -> Vec<(String, i32)> {
        let mut tokens = vec![("<unk>".to_owned(), UNKNOWN)];
        tokens.extend(["<s>", "</s>", "<mask>"].map(|text| (text.to_owned(), CONTROL)));
        tokens.extend((0..=255).map(|byte| self.byte(byte)));
        tokens.extend(
            specials().into_iter().enumerate().map(|(i, text)| (text, if i * 7 % 3 == 0 { USER_DEFINED } else { CONTROL })),
        );
        tokens.extend(PIECES.map(|text| (text.to_owned(), NORMAL)));
        let mut spellings = HashSet::new();
        tokens.retain(|(text, _)| spellings.insert(text.clone()));
        tokens
    }

    fn byte(&self, byte: u8) -> (String, i32) {
        match self.bytes {
            Bytes::Hexadecimal => (format!("<0x{byte:02X}>"), BYTE),
            Bytes::Escaped => (format!("\\x{byte:02x}"), NORMAL),
            Bytes::Shifted => {
                let is_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
                let n_moved = (0..byte).filter(|&byte| !is_itself(byte)).count();
                let moved = u32::try_from(256 + n_moved).ok().and_then(char::from_u32);
                let spelt = if is_itself(byte) { Some(char::from(byte)) } else { moved };
                (spelt.expect("a character below 512").to_string(), NORMAL)
            }
        }
    }

    fn load(&self) -> Model {
        let tokens = self.tokens();
        let path = write_tiny_with(Kind::Window, tokens.len(), |header| self.add_to(header, &tokens));
        let model = load(&path);
        fs::remove_file(&path).expect("it was just written");
        model.expect("the toy model loads")
    }

    fn add_to(&self, header: &mut Header, tokens: &[(String, i32)]) {
        header.string("tokenizer.ggml.model", self.tokenizer);
        header.strings("tokenizer.ggml.tokens", tokens.iter().map(|(text, _)| text.as_str()));
        let score = |text: &str| if text.len() == 1 { -9.0 } else { -1.0 / f32::from(u8::try_from(text.len()).expect("short")) };
        let scores: Vec<f32> = tokens.iter().map(|(text, _)| score(text)).collect();
        header.f32s("tokenizer.ggml.scores", scores.into_iter());
        let kinds: Vec<i32> = tokens.iter().map(|&(_, kind)| kind).collect();
        header.i32s("tokenizer.ggml.token_type", kinds.into_iter());
        header.strings("tokenizer.ggml.merges", MERGES.into_iter());
        for (name, token) in [("bos", 1), ("eos", 2), ("unknown", 0), ("seperator", 2), ("mask", 3)] {
            header.u32(&format!("tokenizer.ggml.{name}_token_id"), token);
        }
        for (key, value) in self.strings {
            header.string(key, value);
        }
        for (key, value) in self.flags {
            header.bool(key, *value);
        }
    }
}

/// Returns llama.cpp's tokens of the whole text.
fn as_llama_cpp(model: &Model, text: impl AsRef<[u8]>, add_special: bool, parse_special: bool) -> Vec<Token> {
    let text = text.as_ref();
    let mut tokens = vec![0; 4 * text.len() + 16];
    let (n_bytes, room) = (i32::try_from(text.len()).expect("short"), i32::try_from(tokens.len()).expect("short"));
    let from = text.as_ptr().cast::<c_char>();
    // SAFETY: the vocabulary lives as long as the model; text and tokens are readable and writable for the given lengths.
    let n = unsafe {
        sys::llama_tokenize(model.vocab().as_ptr(), from, n_bytes, tokens.as_mut_ptr(), room, add_special, parse_special)
    };
    tokens.truncate(usize::try_from(n).expect("there is room"));
    tokens
}

/// Returns a text of up to 24 parts: special tokens, fragments of them, white space, words.
fn mix(chance: &mut Chance, specials: &[String]) -> String {
    let others = [
        " ",
        "  ",
        "\n",
        "\t\n ",
        "\u{b}\u{c}\r",
        "d",
        "de ",
        "dede",
        " f",
        "▁",
        "日本",
        "日",
        "😀",
        "ж",
        "<",
        "|",
        "x\0",
        "'s 12",
        "A",
        "\u{a0}",
    ];
    let mut text = String::new();
    for _ in 0..chance.below(25) {
        let special = &specials[chance.below(specials.len())];
        match chance.below(4) {
            0 | 1 => text.push_str(special),
            2 => text.extend(special.chars().take(chance.below(special.chars().count() + 1))),
            _ => text.push_str(others[chance.below(others.len())]),
        }
    }
    text
}

/// Compares the two tokenizers on 10,000 texts.
fn agrees(recipe: &Recipe) {
    agrees_on(10_000, recipe);
}

fn agrees_on(n_texts: usize, recipe: &Recipe) {
    agrees_with(n_texts, &recipe.load(), recipe.tokenizer);
}

fn agrees_with(n_texts: usize, model: &Model, tokenizer: &str) {
    let longest_piece = model.longest_piece();
    let specials: Vec<String> = specials().into_iter().chain(["<unk>", "<s>", "</s>", "<mask>"].map(str::to_owned)).collect();
    let mut chance = Chance(7);
    for _ in 0..n_texts {
        let text = mix(&mut chance, &specials);
        let (add_special, parse_special) = (chance.below(2) == 0, chance.below(2) == 0);
        let ours = model.tokenize(text.as_bytes(), add_special, parse_special).unwrap();
        assert!(longest_piece.is_none_or(|longest| ours.len() * longest >= text.len()), "{tokenizer} {text:?}");
        assert!(ours.len() >= model.min_tokens(text.as_bytes()), "{tokenizer} {text:?}");
        let theirs = as_llama_cpp(model, &text, add_special, parse_special);
        assert_eq!(ours, theirs, "{tokenizer} {text:?} add_special: {add_special} parse_special: {parse_special}");
    }
}

#[test]
fn sentence_piece_matches_llama_cpp() {
    agrees(&Recipe { flags: BOTH_ADDED, ..Recipe::new("llama", Bytes::Hexadecimal) });
    agrees(&Recipe { flags: NO_SPACE, ..Recipe::new("llama", Bytes::Hexadecimal) });
}

/// `SentencePiece` vocabularies with and without a space before a text, and one whose special tokens strip white space.
const SENTENCE_PIECE: [Recipe; 3] = [
    Recipe { flags: BOTH_ADDED, ..Recipe::new("llama", Bytes::Hexadecimal) },
    Recipe { flags: NO_SPACE, ..Recipe::new("llama", Bytes::Hexadecimal) },
    Recipe { strings: &[("general.name", "phi-3")], flags: BOTH_ADDED, ..Recipe::new("llama", Bytes::Hexadecimal) },
];

#[test]
fn sentence_piece_in_minimal_chunks_matches_llama_cpp() {
    for recipe in SENTENCE_PIECE {
        let mut model = recipe.load();
        model.tokenizer.set_min_chunk_bytes(1);
        agrees_with(10_000, &model, recipe.tokenizer);
    }
}

#[test]
fn invalid_utf_8_in_chunks_matches_llama_cpp() {
    let mut chance = Chance(11);
    for recipe in SENTENCE_PIECE {
        let mut model = recipe.load();
        model.tokenizer.set_min_chunk_bytes(1);
        for _ in 0..2_000 {
            let n = chance.below(40);
            let bytes: Vec<u8> = (0..n).map(|_| b"\xe6\x97\xa5\xf0\x9f\x98\x80\xff\xe2\x96\x81 de<"[chance.below(15)]).collect();
            let ours = model.tokenize(&bytes, false, false).expect("it is short");
            assert_eq!(ours, as_llama_cpp(&model, &bytes, false, false), "{bytes:?}");
        }
    }
}

#[test]
fn characters_without_a_token_are_tokenized_in_bounded_chunks() {
    for recipe in SENTENCE_PIECE {
        let model = recipe.load();
        let model_name = recipe.strings.first().map_or("", |(_, name)| name);
        for unit in ["日", "😀", "ж", "ย", "日😀", "日本日 de ", "\u{1}"] {
            let text = unit.repeat(200_000);
            let chunks = model.tokenizer.chunks(model.vocab(), text.as_bytes());
            let longest = chunks.iter().map(std::ops::Range::len).max();
            assert!(longest.is_some_and(|n| n <= 1024 + 16), "{unit:?} {model_name}: a chunk of {longest:?} bytes");
            let short = as_llama_cpp(&model, unit.repeat(2_000), false, false);
            let long = model.tokenize(text.as_bytes(), false, false).expect("it is no run of an expression");
            assert!(long.starts_with(&short[..short.len() - 8]), "{unit:?} {model_name}");
            let n_per_unit = (short.len() - as_llama_cpp(&model, unit.repeat(1_000), false, false).len()) / 1_000;
            assert_eq!(long.len(), short.len() + 198_000 * n_per_unit, "{unit:?} {model_name}");
        }
    }
}

#[test]
fn cancellation_stops_long_texts_only() {
    let cancellation = Cancellation::default();
    cancellation.cancel();
    for recipe in [Recipe::new("llama", Bytes::Hexadecimal), Recipe { strings: GPT_2, ..Recipe::new("gpt2", Bytes::Shifted) }] {
        let model = recipe.load();
        let tokenize = |text: &str| cancellation.run(|| model.tokenize(text.as_bytes(), false, false));
        // Lines end in a letter, where texts of both vocabularies are cut.
        let unit = "日 d\n";
        assert_eq!(tokenize(&unit.repeat(100_000)).err(), Some(Error::Cancelled), "{}", recipe.tokenizer);
        assert!(tokenize(&unit.repeat(1_000)).is_ok(), "{}", recipe.tokenizer);
    }
}

#[test]
fn byte_level_bpe_matches_llama_cpp() {
    agrees(&Recipe { strings: GPT_2, flags: BOTH_ADDED, ..Recipe::new("gpt2", Bytes::Shifted) });
    agrees(&Recipe { strings: &[("tokenizer.ggml.pre", "llama-bpe")], ..Recipe::new("gpt2", Bytes::Shifted) });
    agrees(&Recipe { flags: NO_SPACE, ..Recipe::new("gemma4", Bytes::Hexadecimal) });
    agrees(&Recipe { strings: GPT_2, ..Recipe::new("whitespace", Bytes::Shifted) });
}

#[test]
fn word_piece_matches_llama_cpp() {
    agrees(&Recipe::new("bert", Bytes::Shifted));
}

#[test]
fn unigram_matches_llama_cpp() {
    agrees(&Recipe { flags: BOTH_ADDED, ..Recipe::new("t5", Bytes::Hexadecimal) });
    agrees(&Recipe { flags: MERGED_SPACES, ..Recipe::new("t5", Bytes::Hexadecimal) });
}

#[test]
fn rwkvs_trie_matches_llama_cpp() {
    agrees(&Recipe::new("rwkv", Bytes::Escaped));
}

#[test]
fn plamo_matches_llama_cpp() {
    agrees(&Recipe { flags: BOTH_ADDED, ..Recipe::new("plamo2", Bytes::Hexadecimal) });
}

#[test]
fn stripping_of_white_space_matches_llama_cpp() {
    let takes_before = &[("tokenizer.ggml.pre", "jina-v2-de")];
    agrees(&Recipe { strings: takes_before, flags: BOTH_ADDED, ..Recipe::new("gpt2", Bytes::Shifted) });
    let takes_behind = &[("general.name", "phi-3")];
    agrees(&Recipe { strings: takes_behind, flags: BOTH_ADDED, ..Recipe::new("llama", Bytes::Hexadecimal) });
}

#[test]
fn the_longest_piece_is_bounded_if_every_byte_is_in_a_token() {
    let longest = |recipe: Recipe| recipe.load().longest_piece();
    for recipe in [
        Recipe::new("llama", Bytes::Hexadecimal),
        Recipe { strings: GPT_2, ..Recipe::new("gpt2", Bytes::Shifted) },
        Recipe::new("gemma4", Bytes::Hexadecimal),
        Recipe::new("rwkv", Bytes::Escaped),
        Recipe::new("plamo2", Bytes::Hexadecimal),
    ] {
        assert_eq!(longest(recipe), Some("<|endoftext|>".len()));
    }
    let lacks_bytes = Recipe { strings: GPT_2, ..Recipe::new("gpt2", Bytes::Hexadecimal) };
    assert_eq!(longest(lacks_bytes), None);
    assert_eq!(longest(Recipe::new("t5", Bytes::Hexadecimal)), None);
    assert_eq!(longest(Recipe { strings: GPT_2, ..Recipe::new("whitespace", Bytes::Shifted) }), None);
    let takes_behind = &[("general.name", "phi-3")];
    assert_eq!(longest(Recipe { strings: takes_behind, ..Recipe::new("llama", Bytes::Hexadecimal) }), None);
}

#[test]
fn the_minimum_number_of_tokens_is_known_for_word_and_white_space_dropping_vocabularies() {
    let takes_behind = &[("general.name", "phi-3")];
    let phi = Recipe { strings: takes_behind, ..Recipe::new("llama", Bytes::Hexadecimal) }.load();
    let longest = "<|endoftext|>".len();
    assert_eq!(phi.min_tokens("d e\n".repeat(10 * longest).as_bytes()), 20);
    let bert = Recipe::new("bert", Bytes::Shifted).load();
    // Of the special tokens, `<|im_start|>` has the most words: seven.
    assert_eq!(bert.min_tokens("dé 1,\té é".repeat(60).as_bytes()), 26);
    assert_eq!(bert.tokenize("qж".repeat(9_999).as_bytes(), false, false).unwrap().len(), 1);
    assert_eq!(bert.min_tokens("qж".repeat(9_999).as_bytes()), 1);
    assert_eq!(Recipe::new("t5", Bytes::Hexadecimal).load().min_tokens(b"d d d"), 0);
}

/// Names of splitters that use regular expressions: one of each kind, and the most common ones.
const EXPRESSIONS: [&str; 8] =
    ["tekken", "gpt-4o", "deepseek-v3", "deepseek-llm", "deepseek-coder", "default", "exaone-moe", "bloom"];

fn split_by(name: &'static str) -> Recipe {
    // Leaked, because it is for a test.
    let strings = Box::leak(Box::new([("tokenizer.ggml.pre", name)]));
    Recipe { strings, ..Recipe::new("gpt2", Bytes::Shifted) }
}

/// Returns llama.cpp's tokens of a text with a run of any length that fits the tests' memory.
fn on_a_large_stack(model: &Model, text: &str) -> Vec<Token> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(1 << 30);
        builder.spawn_scoped(scope, || as_llama_cpp(model, text, false, false)).unwrap().join().unwrap()
    })
}

#[test]
fn splitting_by_regular_expressions_matches_llama_cpp() {
    for name in EXPRESSIONS {
        // Each span of a text takes llama.cpp up to 0.1 seconds, in which it compiles the expressions.
        agrees_on(40, &split_by(name));
    }
}

#[test]
fn a_long_run_of_one_kind_matches_llama_cpp_without_overflowing_the_stack() {
    for name in EXPRESSIONS {
        let model = split_by(name).load();
        // The vocabulary has special tokens of some spaces and line feeds.
        for run in ["a", "A", "\u{b}", ".", "中", "1", "\r", "dede/\n "] {
            // The limit is lower where white space may take quadratic time.
            let n = if name == "deepseek-llm" && run == "\u{b}" { 4_095 } else { 60_000 };
            let text = format!("de {}. de", run.repeat(n));
            assert_eq!(model.tokenize(text.as_bytes(), false, false).unwrap(), on_a_large_stack(&model, &text), "{name} {run:?}");
        }
    }
}

#[test]
fn the_longest_run_fits_its_stack_and_a_longer_one_is_rejected() {
    for name in EXPRESSIONS {
        let model = split_by(name).load();
        for run in ["A", "\u{b}", ".", "中"] {
            if name == "deepseek-llm" && run == "\u{b}" {
                continue;
            }
            let mut text = run.repeat(262_144);
            assert!(model.tokenize(text.as_bytes(), false, false).is_ok(), "{name} {run:?}");
            text.push_str(run);
            let refused = model.tokenize(text.as_bytes(), false, false);
            assert!(matches!(refused, Err(Error::InvalidRequest { param: "text", .. })), "{name} {run:?}");
        }
    }
}

#[test]
fn tokenizing_lines_separately_matches_llama_cpp() {
    let others = ["\n", "a\n", "A\n\n", " 1\n", "b \n", ".\n", "\r\n", "x\n/", "it's\n ", "日\n", "de 12\n\t", " d", "e\n<"];
    let mut chance = Chance(3);
    let gemma = Recipe { flags: NO_SPACE, ..Recipe::new("gemma4", Bytes::Hexadecimal) };
    // llama.cpp compiles these for up to 0.1 seconds per chunk.
    let expressions = CLASSES.into_iter().filter(|&name| name != "superbpe").map(|name| (split_by(name), 2));
    let own_code = DEDICATED.into_iter().map(|name| (split_by(name), 200));
    for (recipe, n_texts) in own_code.chain(expressions).chain([(gemma, 300)]) {
        let mut model = recipe.load();
        model.tokenizer.set_min_chunk_bytes(1);
        let name = recipe.strings.first().map_or(recipe.tokenizer, |&(_, name)| name);
        for _ in 0..n_texts {
            let text: String = (0..chance.below(20)).map(|_| others[chance.below(others.len())]).collect();
            let ours = model.tokenize(text.as_bytes(), false, false).expect("its runs are short");
            assert_eq!(ours, as_llama_cpp(&model, &text, false, false), "{name} {text:?}");
        }
    }
    // Words of superbpe contain line feeds.
    let text = "de\nde".repeat(100_000);
    let model = split_by("superbpe").load();
    assert_eq!(model.tokenizer.chunks(model.vocab(), text.as_bytes()).len(), 1);
}

#[test]
fn dedicated_splitters_accept_runs_of_any_length() {
    let gemma = Recipe::new("gemma4", Bytes::Hexadecimal);
    for (name, recipe) in DEDICATED.map(|name| (name, split_by(name))).into_iter().chain([("of Gemma 4", gemma)]) {
        let model = recipe.load();
        for run in ["a", "\u{b}", ".", "中", "1", "\r"] {
            assert!(model.tokenize(run.repeat(100_000).as_bytes(), false, false).is_ok(), "{name} {run:?}");
        }
    }
}

#[test]
fn every_known_expression_handles_runs_beyond_the_default_stack() {
    for name in CLASSES {
        let model = split_by(name).load();
        for run in ["a", ".", "中", "\r"] {
            assert!(model.tokenize(run.repeat(30_000).as_bytes(), false, false).is_ok(), "{name} {run:?}");
        }
    }
}

#[test]
fn the_demo_model_tokenizes_a_chat_as_llama_cpp_does() {
    let model = demo();
    let text = "<|im_start|>user\nIs it <s> or </s>?<|im_end|>\n<|im_start|>assistant\n".repeat(50);
    for (add_special, parse_special) in [(true, true), (true, false), (false, true), (false, false)] {
        let theirs = as_llama_cpp(&model, &text, add_special, parse_special);
        assert_eq!(model.tokenize(text.as_bytes(), add_special, parse_special).unwrap(), theirs);
    }
}
