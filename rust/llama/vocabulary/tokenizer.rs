//! Tokenizes texts as llama.cpp does, in time linear in the text.
//!
//! llama.cpp tokenizes each plain span between special tokens separately. So we pass it one plain span after the other (see
//! [`SpecialTokens`]), a long one in chunks if the vocabulary allows it (see [`SafeCuts`]).

use std::ops::Range;
use std::sync::OnceLock;

use llama_cpp_sys_2 as sys;

use crate::cancellation;
use crate::error;
use crate::llama::model::Model;
use crate::llama::vocabulary::raw_vocab::RawVocab;
use crate::llama::vocabulary::special_tokens::{SpecialToken, SpecialTokens, TextSpan, is_space};
use crate::llama::vocabulary::{safe_cuts::SafeCuts, splitter::Splitter};
use crate::request::Token;

/// Minimum bytes of a chunk of lines, which take a second or more. Some splitters compile expressions for each, for up to 0.1
/// seconds.
const MIN_CHUNK_BYTES: usize = 1024;

/// Minimum size of a chunk of lines, in bytes. Some splitters compile their expressions for each chunk, which takes up to 0.1
/// seconds; a chunk takes at least one second.
const MIN_LINES_BYTES: usize = 256 * 1024;

/// Bytes of a text between checks for cancellation: about 20 ms of work.
const CHECK_INTERVAL_BYTES: usize = 64 * 1024;

pub(crate) struct Tokenizer {
    special: SpecialTokens,
    /// Special tokens that a text is cut at even if special tokens are not parsed: they are part of the text.
    user_defined: SpecialTokens,
    splitter: Splitter,
    chunking: Chunking,
    min_chunk_bytes: usize,
    opening: Vec<Token>,
    closing: Vec<Token>,
    min_tokens: MinTokens,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MinTokens {
    /// Each byte is in a token, of at most this many bytes.
    Bytes(usize),
    /// The same, except for white space, which is dropped next to some special tokens.
    BytesExceptSpace(usize),
    /// Each word takes at least one token, or is one of at most this many words in the spelling of a special token.
    Words(usize),
    /// No bound, so that only the size of a request's body limits the work. Bytes without a token are dropped; and Unigram encodes
    /// consecutive unknown characters as one token, after normalization by its file's table.
    Unknown,
}

impl MinTokens {
    fn tokens(self, text: &[u8]) -> usize {
        match self {
            Self::Bytes(longest) => text.len().div_ceil(longest),
            Self::BytesExceptSpace(longest) => text.iter().filter(|&&byte| !is_space(byte)).count().div_ceil(longest),
            Self::Words(max_words) => n_words(text).div_ceil(max_words),
            Self::Unknown => 0,
        }
    }
}

/// Words that `WordPiece` encodes with at least one token each, however it normalizes: each ASCII punctuation mark, and each
/// sequence between these and white space that has an ASCII letter or digit.
fn n_words(text: &[u8]) -> usize {
    let words = text.split(|&byte| is_space(byte) || byte.is_ascii_punctuation());
    let n_marks = text.iter().filter(|byte| byte.is_ascii_punctuation()).count();
    n_marks + words.filter(|word| word.iter().any(u8::is_ascii_alphanumeric)).count()
}

impl Tokenizer {
    /// Reads the tokenizer. `kind` and `splitter` are the file's names for it and for how it splits words. `adds_special`
    /// requires the tokens that the vocabulary adds.
    pub(crate) fn read(vocab: RawVocab<'_>, kind: &str, splitter: &str, adds_special: bool) -> Result<Self, String> {
        let (tokens, vocab_type) = (special_tokens(vocab), vocab.kind());
        let never_text = sys::LLAMA_TOKEN_ATTR_CONTROL | sys::LLAMA_TOKEN_ATTR_UNKNOWN;
        let special = SpecialTokens::new(tokens.iter().map(|(token, _)| *token))?;
        let text_tokens = tokens.iter().filter(|(_, attributes)| attributes & never_text == 0);
        let user_defined = SpecialTokens::new(text_tokens.map(|(token, _)| *token))?;
        let mut opening = Vec::new();
        if adds_special {
            vocab.append_tokens(b"", true, &mut opening);
        }
        // One of the tokens that are added to an empty text goes in front if there is a token for the beginning, the others after it.
        let opens = vocab.get(sys::llama_vocab_get_add_bos) || vocab_type == sys::LLAMA_VOCAB_TYPE_WPM;
        let closing = opening.split_off(usize::from(opens).min(opening.len()));
        let strips = tokens.iter().any(|(token, _)| token.strips_left || token.strips_right);
        let min_tokens = match longest_piece(vocab, kind) {
            Some(longest) if strips => MinTokens::BytesExceptSpace(longest),
            Some(longest) => MinTokens::Bytes(longest),
            None if kind == "bert" => {
                MinTokens::Words(tokens.iter().map(|(token, _)| n_words(token.spelling)).max().unwrap_or(0).max(1))
            }
            None => MinTokens::Unknown,
        };
        let splitter = match kind {
            _ if vocab_type != sys::LLAMA_VOCAB_TYPE_BPE => Splitter::NONE,
            // llama.cpp uses this splitter whatever the file names.
            "gemma4" => Splitter::named(kind),
            _ => Splitter::named(splitter),
        };
        let (chunking, min_chunk_bytes) = match vocab_type {
            sys::LLAMA_VOCAB_TYPE_SPM => (Chunking::SafeCuts(OnceLock::new()), MIN_CHUNK_BYTES),
            _ if splitter.separates_lines && kind != "hybriddna" => (Chunking::Lines, MIN_LINES_BYTES),
            _ => (Chunking::None, usize::MAX),
        };
        Ok(Self { special, user_defined, splitter, chunking, min_chunk_bytes, opening, closing, min_tokens })
    }

    /// Returns the chunks of `text`, and the cuts if each chunk but the first needs their guard.
    fn chunk(&self, vocab: RawVocab<'_>, text: &[u8]) -> (Vec<Range<usize>>, Option<&GuardedCuts>) {
        let whole = std::iter::once(0..text.len()).collect();
        match &self.chunking {
            _ if text.len() <= self.min_chunk_bytes => (whole, None),
            Chunking::SafeCuts(cuts) => {
                let cuts = cuts.get_or_init(|| GuardedCuts::read(vocab)).as_ref();
                (cuts.map_or(whole, |cuts| cuts.safe.chunks(text, self.min_chunk_bytes)), cuts)
            }
            Chunking::Lines => (line_chunks(text, self.min_chunk_bytes), None),
            Chunking::None => (whole, None),
        }
    }

    #[cfg(test)]
    pub(crate) fn set_min_chunk_bytes(&mut self, n_bytes: usize) {
        self.min_chunk_bytes = n_bytes;
    }

    #[cfg(test)]
    pub(crate) fn chunks(&self, vocab: RawVocab<'_>, text: &[u8]) -> Vec<Range<usize>> {
        self.chunk(vocab, text).0
    }

    fn append_plain(
        &self,
        vocab: RawVocab<'_>,
        text: &[u8],
        tokens: &mut Vec<Token>,
        n_unchecked_bytes: &mut usize,
    ) -> error::Result<()> {
        let (chunks, cuts) = self.chunk(vocab, text);
        if chunks.len() > 1 {
            self.splitter.check(text)?;
        }
        let mut guarded = Vec::new();
        for (i, chunk) in chunks.into_iter().enumerate() {
            let chunk = &text[chunk];
            // A short text is never cancelled.
            if *n_unchecked_bytes >= CHECK_INTERVAL_BYTES {
                *n_unchecked_bytes = 0;
                cancellation::check()?;
            }
            *n_unchecked_bytes += chunk.len();
            let Some(GuardedCuts { guard, n_guard_tokens, .. }) = cuts.filter(|_| i > 0) else {
                self.splitter.with_stack(chunk, || vocab.append_tokens(chunk, false, tokens))?;
                continue;
            };
            guarded.clear();
            guarded.push(*guard);
            guarded.extend_from_slice(chunk);
            let n_before = tokens.len();
            vocab.append_tokens(&guarded, false, tokens);
            tokens.drain(n_before..n_before + n_guard_tokens);
        }
        Ok(())
    }
}

impl Model {
    /// Returns the tokens of `text`, which need not be UTF-8. `add_special` adds BOS and EOS if the vocabulary requires them;
    /// `parse_special` parses the spelling of a control token as that token.
    ///
    /// # Errors
    /// [`InvalidRequest`](error::Error::InvalidRequest) for a run of characters that is too long for the vocabulary's regular expressions,
    /// `NotSupported` without memory for the stack that a long run needs, and `Cancelled`.
    pub fn tokenize(&self, text: &[u8], add_special: bool, parse_special: bool) -> error::Result<Vec<Token>> {
        let Tokenizer { special, user_defined, opening, closing, .. } = &self.tokenizer;
        let mut tokens = if add_special { opening.clone() } else { Vec::new() };
        let special = if parse_special { special } else { user_defined };
        let mut n_unchecked_bytes = 0;
        for span in special.split(text) {
            match span {
                TextSpan::Special(token) => tokens.push(token),
                TextSpan::Plain(range) => {
                    self.tokenizer.append_plain(self.vocab(), &text[range], &mut tokens, &mut n_unchecked_bytes)?;
                }
            }
        }
        if add_special {
            tokens.extend(closing);
        }
        tokens.shrink_to_fit();
        Ok(tokens)
    }

    /// Returns the tokens of `text` as a continuation of other text: without BOS and EOS, and without the space that some
    /// vocabularies put before a text. Tokens never span the boundary.
    pub(crate) fn tokenize_on(&self, text: &[u8], parse_special: bool) -> error::Result<Vec<Token>> {
        // A byte that is in no text and is never merged: a space before a text is added before this byte.
        const GUARD: u8 = 1;
        let guard = self.tokenize(&[GUARD], false, parse_special)?;
        let opens_with_space =
            guard.first().and_then(|&first| self.vocabulary.spelling(first)).is_some_and(|piece| piece.starts_with(b" "));
        if opens_with_space {
            let guarded = self.tokenize(&[&[GUARD], text].concat(), false, parse_special)?;
            if let Some(tokens) = guarded.strip_prefix(&guard[..]) {
                return Ok(tokens.to_vec());
            }
        }
        self.tokenize(text, false, parse_special)
    }

    /// Maximum number of bytes of a text that become one token; `None` if there is no bound.
    pub(crate) fn longest_piece(&self) -> Option<usize> {
        match self.tokenizer.min_tokens {
            MinTokens::Bytes(longest) => Some(longest),
            _ => None,
        }
    }

    /// A lower bound of the number of tokens of `text`, in one pass; 0 if no bound is known.
    pub(crate) fn min_tokens(&self, text: &[u8]) -> usize {
        self.tokenizer.min_tokens.tokens(text)
    }
}

enum Chunking {
    /// At cuts that no piece can span (`SentencePiece`). Built for the first long span, in tens of milliseconds for many tokens.
    SafeCuts(OnceLock<Option<GuardedCuts>>),
    /// Between an ASCII letter or digit and the line feed after it, where a splitter always ends a word. Only for cancellation:
    /// llama.cpp takes linear time for such vocabularies.
    Lines,
    None,
}

/// Safe cuts of a span, and the guard before each chunk but the first.
///
/// llama.cpp may put a space before each text, which would be merged with the beginning of a chunk. So each chunk begins with a
/// guard: a byte that is in no piece, and so is never merged. Its tokens are removed.
struct GuardedCuts {
    safe: SafeCuts,
    guard: u8,
    n_guard_tokens: usize,
}

/// Cuts before line feeds that follow an ASCII letter or digit, into chunks of at least `min_bytes` but for the last.
fn line_chunks(text: &[u8], min_bytes: usize) -> Vec<Range<usize>> {
    let mut chunks = Vec::new();
    let mut start = 0;
    for (i, pair) in (1..).zip(text.windows(2)) {
        if pair[1] == b'\n' && pair[0].is_ascii_alphanumeric() && i - start >= min_bytes {
            chunks.push(start..i);
            start = i;
        }
    }
    chunks.push(start..text.len());
    chunks
}

impl GuardedCuts {
    /// Reads the cuts of a vocabulary; `None` if each control character is in a piece.
    fn read(vocab: RawVocab<'_>) -> Option<Self> {
        let pieces = vocab.tokens().map(|token| vocab.text(token));
        let mut is_in_piece = [false; 0x20];
        for &byte in pieces.clone().flatten() {
            if let Some(is_in_piece) = is_in_piece.get_mut(usize::from(byte)) {
                *is_in_piece = true;
            }
        }
        let guard = (1..0x20).find(|&byte| !is_in_piece[usize::from(byte)])?;
        let mut guard_tokens = Vec::new();
        vocab.append_tokens(&[guard], false, &mut guard_tokens);
        Some(Self { safe: SafeCuts::new(pieces), guard, n_guard_tokens: guard_tokens.len() })
    }
}

/// The special tokens with their attributes, in the order in which llama.cpp searches for them.
fn special_tokens(vocab: RawVocab<'_>) -> Vec<(SpecialToken<'_>, sys::llama_token_attr)> {
    let is_special = sys::LLAMA_TOKEN_ATTR_CONTROL | sys::LLAMA_TOKEN_ATTR_USER_DEFINED | sys::LLAMA_TOKEN_ATTR_UNKNOWN;
    let mut tokens = Vec::new();
    for token in vocab.tokens() {
        let (attributes, spelling) = (vocab.attributes(token), vocab.text(token));
        if attributes & is_special == 0 {
            continue;
        }
        let strips_left = attributes & sys::LLAMA_TOKEN_ATTR_LSTRIP != 0;
        let strips_right = attributes & sys::LLAMA_TOKEN_ATTR_RSTRIP != 0;
        tokens.push((SpecialToken { token, spelling, strips_left, strips_right }, attributes));
    }
    let lengths: Vec<usize> = tokens.iter().map(|(token, _)| token.spelling.len()).collect();
    let mut order: Vec<u32> = (0..).take(lengths.len()).collect();
    // SAFETY: both lists have the given length, and `order` contains indices into `lengths`.
    unsafe { weft_longest_first(order.as_mut_ptr(), order.len(), lengths.as_ptr()) };
    order.into_iter().map(|index| tokens[index as usize]).filter(|(token, _)| !token.spelling.is_empty()).collect()
}

/// Maximum number of bytes of a text that become one token, if only white space that special tokens strip is in none.
fn longest_piece(vocab: RawVocab<'_>, kind: &str) -> Option<usize> {
    let spells_all = match kind {
        // Byte tokens are checked when the vocabulary is read, or nothing is dropped even if bytes have no token.
        "llama" | "rwkv" | "plamo2" => true,
        "gpt2" | "gemma4" => spells_every_byte(vocab, kind == "gemma4"),
        _ => false,
    };
    // In the file's spelling no piece is shorter than its text: a space takes two or three bytes there.
    let longest = vocab.tokens().map(|token| vocab.text(token).len()).max();
    longest.filter(|&longest| spells_all && longest > 0)
}

/// Returns true if each byte has its own token, of the byte type if `by_byte_tokens`: a BPE vocabulary drops bytes without one.
fn spells_every_byte(vocab: RawVocab<'_>, by_byte_tokens: bool) -> bool {
    let (mut is_spelt, mut spelling) = ([false; 256], Vec::new());
    for token in vocab.tokens() {
        spelling.clear();
        vocab.append_spelling(token, &mut spelling);
        let is_byte_token = vocab.attributes(token) & sys::LLAMA_TOKEN_ATTR_BYTE != 0;
        if let [byte] = spelling[..]
            && is_byte_token == by_byte_tokens
        {
            is_spelt[usize::from(byte)] = true;
        }
    }
    is_spelt == [true; 256]
}

unsafe extern "C" {
    fn weft_longest_first(order: *mut u32, n: usize, lengths: *const usize);
}
