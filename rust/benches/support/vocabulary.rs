//! The vocabulary of the synthetic models: any text can be tokenized, and tokens decode to ASCII words.

use super::gguf::Header;

/// Token types, with llama.cpp's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PieceType {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    Byte = 6,
}

/// One entry of the vocabulary. The tokenizer merges neighbours whose joint piece scores highest.
struct Piece {
    text: String,
    score: f32,
    kind: PieceType,
}

/// Adds a tokenizer of `n_vocab` pieces.
pub(crate) fn add(header: &mut Header, n_vocab: usize) {
    let pieces = pieces(n_vocab);
    header.string("tokenizer.ggml.model", "llama");
    header.strings("tokenizer.ggml.tokens", pieces.iter().map(|piece| piece.text.as_str()));
    header.f32s("tokenizer.ggml.scores", pieces.iter().map(|piece| piece.score));
    header.i32s("tokenizer.ggml.token_type", pieces.iter().map(|piece| piece.kind as i32));
    header.u32("tokenizer.ggml.unknown_token_id", 0);
    header.u32("tokenizer.ggml.bos_token_id", 1);
    header.u32("tokenizer.ggml.eos_token_id", 2);
    header.bool("tokenizer.ggml.add_bos_token", true);
    header.bool("tokenizer.ggml.add_space_prefix", true);
}

/// Returns the vocabulary: three special pieces, 256 byte pieces, every printable ASCII character, then "words" of one to four
/// letters, each with and without a leading space (`▁`). Every prefix of a word is a word too, so that merging neighbours can
/// reach all of them.
fn pieces(n_vocab: usize) -> Vec<Piece> {
    let special = [("<unk>", PieceType::Unknown), ("<s>", PieceType::Control), ("</s>", PieceType::Control)];
    let special = special.map(|(text, kind)| (text.to_owned(), kind)).into_iter();
    let bytes = (0..=u8::MAX).map(|byte| (format!("<0x{byte:02X}>"), PieceType::Byte));
    let characters = ('!'..='~').filter(|character| !character.is_ascii_lowercase()).chain(['▁']);
    let characters = characters.map(|character| (character.to_string(), PieceType::Normal));
    let words = (1..).map(word).flat_map(|word| [format!("▁{word}"), word]).map(|text| (text, PieceType::Normal));
    let all = special.chain(bytes).chain(characters).chain(words).take(n_vocab);
    all.enumerate()
        .map(|(id, (text, kind))| {
            // As in SentencePiece: special pieces score 0, and earlier pieces more than later ones.
            let score = if kind == PieceType::Normal { -(id as f32) } else { 0.0 };
            Piece { text, score, kind }
        })
        .collect()
}

/// Returns the word with this number, which starts at 1: `a` to `z`, `aa` to `zz`, and so on (bijective base 26).
fn word(mut number: usize) -> String {
    let mut letters = Vec::new();
    while number > 0 {
        number -= 1;
        letters.push(char::from(b"abcdefghijklmnopqrstuvwxyz"[number % 26]));
        number /= 26;
    }
    letters.into_iter().rev().collect()
}
