//! Tokenizes texts as llama.cpp does, in time linear in the text.
//!
//! llama.cpp cuts a text at its special tokens and tokenizes each plain span between them alone, for every kind of vocabulary: no
//! state passes from one span to the next, and each is treated as if it followed a special token. So we cut the text (see
//! [`SpecialTokens`]) and pass llama.cpp one plain span after the other, a long span in chunks if the vocabulary allows it (see
//! [`SafeCuts`]).

use std::ffi::{CStr, c_char};
use std::ops::Range;
use std::sync::OnceLock;

use llama_cpp_sys_2 as sys;

use crate::cancellation;
use crate::error::Result;
use crate::llama::vocabulary::safe_cuts::SafeCuts;
use crate::llama::vocabulary::special_tokens::{SpecialToken, SpecialTokens, TextSpan, is_space};
use crate::llama::vocabulary::splitter::Splitter;
use crate::request::Token;

/// Minimum size of a chunk, in bytes. The time for a chunk whose characters are all encoded byte by byte is quadratic, and each
/// call has a fixed cost. With this size, 5,000,000 characters of that kind (15 MB) take 2.6 seconds with the demo model's
/// vocabulary, and as many of English 2.5 seconds. In one chunk, 80,000 take 5 seconds, and 5,000,000 of English 10.
const MIN_CHUNK_BYTES: usize = 1024;

/// Minimum size of a chunk of lines, in bytes. Some splitters compile their expressions for each chunk, which takes up to 0.1
/// seconds; a chunk takes at least one second.
const MIN_LINES_BYTES: usize = 256 * 1024;

/// Bytes of a text between checks for cancellation: about 20 ms of work.
const CHECK_INTERVAL_BYTES: usize = 64 * 1024;

/// Properties of a vocabulary that tokenizing needs and llama.cpp does not provide.
pub(in crate::llama) struct Tokenizer {
    special: SpecialTokens,
    /// Special tokens that a text is cut at even if special tokens are not parsed: they are part of the text.
    user_defined: SpecialTokens,
    splitter: Splitter,
    chunking: Chunking,
    opening: Vec<Token>,
    closing: Vec<Token>,
    min_tokens: MinTokens,
}

/// Lower bound of the number of tokens of a text.
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

/// Returns the number of words that `WordPiece` encodes with at least one token each, however it normalizes: each ASCII punctuation
/// mark, and each sequence between these and white space that has an ASCII letter or digit, which are never dropped.
fn n_words(text: &[u8]) -> usize {
    let words = text.split(|&byte| is_space(byte) || byte.is_ascii_punctuation());
    let n_marks = text.iter().filter(|byte| byte.is_ascii_punctuation()).count();
    n_marks + words.filter(|word| word.iter().any(u8::is_ascii_alphanumeric)).count()
}

impl Tokenizer {
    /// Reads the special tokens of a vocabulary.
    ///
    /// # Safety
    /// `vocab` belongs to a loaded model, its type is not `LLAMA_VOCAB_TYPE_NONE`, and if `adds_special` is true it has the tokens
    /// that it requires to be added. `kind` is the file's name for the kind of tokenizer, `splitter` that for how it splits words.
    ///
    /// # Errors
    /// The reason why they cannot be searched for, for [`crate::error::Error::ModelLoad`].
    pub(in crate::llama) unsafe fn read(
        vocab: *const sys::llama_vocab,
        kind: &str,
        splitter: &str,
        adds_special: bool,
    ) -> std::result::Result<Self, String> {
        // SAFETY: guaranteed by the caller.
        let tokens = unsafe { special_tokens(vocab) };
        let never_text = sys::LLAMA_TOKEN_ATTR_CONTROL | sys::LLAMA_TOKEN_ATTR_UNKNOWN;
        let special = SpecialTokens::new(tokens.iter().map(|(token, _)| *token))?;
        let text_tokens = tokens.iter().filter(|(_, attributes)| attributes & never_text == 0);
        let user_defined = SpecialTokens::new(text_tokens.map(|(token, _)| *token))?;
        let mut opening = Vec::new();
        if adds_special {
            // SAFETY: guaranteed by the caller.
            unsafe { append(vocab, b"", true, &mut opening) };
        }
        // Splits the tokens that are added to an empty text: one goes in front if the vocabulary has a token for the beginning, the
        // others after it.
        // SAFETY: guaranteed by the caller.
        let opens = unsafe { sys::llama_vocab_get_add_bos(vocab) || sys::llama_vocab_type(vocab) == sys::LLAMA_VOCAB_TYPE_WPM };
        let closing = opening.split_off(usize::from(opens).min(opening.len()));
        let strips = tokens.iter().any(|(token, _)| token.strips_left || token.strips_right);
        // SAFETY: guaranteed by the caller.
        let longest = unsafe { longest_piece(vocab, kind) };
        let min_tokens = match longest {
            Some(longest) if strips => MinTokens::BytesExceptSpace(longest),
            Some(longest) => MinTokens::Bytes(longest),
            None if kind == "bert" => {
                MinTokens::Words(tokens.iter().map(|(token, _)| n_words(token.spelling)).max().unwrap_or(0).max(1))
            }
            None => MinTokens::Unknown,
        };
        // SAFETY: guaranteed by the caller.
        let has_merges = unsafe { sys::llama_vocab_type(vocab) } == sys::LLAMA_VOCAB_TYPE_BPE;
        let splitter = match kind {
            _ if !has_merges => Splitter::NONE,
            // llama.cpp uses this splitter whatever the file names.
            "gemma4" => Splitter::named(kind),
            _ => Splitter::named(splitter),
        };
        // SAFETY: guaranteed by the caller.
        let chunking = match unsafe { sys::llama_vocab_type(vocab) } {
            sys::LLAMA_VOCAB_TYPE_SPM => Chunking::SafeCuts { min_bytes: MIN_CHUNK_BYTES, cuts: OnceLock::new() },
            _ if splitter.separates_lines() && kind != "hybriddna" => Chunking::Lines { min_bytes: MIN_LINES_BYTES },
            _ => Chunking::None,
        };
        Ok(Self { special, user_defined, splitter, chunking, opening, closing, min_tokens })
    }

    #[cfg(test)]
    pub(in crate::llama) fn set_min_chunk_bytes(&mut self, n_bytes: usize) {
        match &mut self.chunking {
            Chunking::SafeCuts { min_bytes, .. } | Chunking::Lines { min_bytes } => *min_bytes = n_bytes,
            Chunking::None => panic!("texts of this vocabulary are not cut"),
        }
    }

    /// Returns the chunks of a plain span.
    ///
    /// # Safety
    /// This tokenizer was read from `vocab`.
    #[cfg(test)]
    pub(in crate::llama) unsafe fn chunks(&self, vocab: *const sys::llama_vocab, text: &[u8]) -> Vec<Range<usize>> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.chunking.chunks(vocab, text) }.0
    }

    /// Maximum number of bytes of a text that become one token. `None` if there is no such bound: if white space may be dropped, or
    /// an unknown word of any length becomes one token.
    pub(in crate::llama) fn longest_piece(&self) -> Option<usize> {
        match self.min_tokens {
            MinTokens::Bytes(longest) => Some(longest),
            _ => None,
        }
    }

    /// Returns a lower bound of the number of tokens of `text`, in one pass; 0 if no bound is known, see [`MinTokens`].
    pub(in crate::llama) fn least_tokens(&self, text: &[u8]) -> usize {
        self.min_tokens.tokens(text)
    }

    /// Returns the tokens of `text`. `add_special` adds the tokens that the vocabulary requires; `parse_special` parses the
    /// spelling of a control token as that token.
    ///
    /// # Safety
    /// This tokenizer was read from `vocab`.
    ///
    /// # Errors
    /// As [`Splitter::with_stack`]; [`Error::Cancelled`](crate::error::Error::Cancelled), see [`cancellation`].
    ///
    /// # Panics
    /// If `text` is 2 GiB long or longer.
    pub(in crate::llama) unsafe fn tokenize(
        &self,
        vocab: *const sys::llama_vocab,
        text: &[u8],
        add_special: bool,
        parse_special: bool,
    ) -> Result<Vec<Token>> {
        let mut tokens = Vec::new();
        if add_special {
            tokens.extend(&self.opening);
        }
        let special = if parse_special { &self.special } else { &self.user_defined };
        let mut meter = CancellationMeter::default();
        for span in special.split(text) {
            match span {
                TextSpan::Special(token) => tokens.push(token),
                TextSpan::Plain(range) => self.append_plain(&Shared(vocab), &text[range], &mut tokens, &mut meter)?,
            }
        }
        if add_special {
            tokens.extend(&self.closing);
        }
        tokens.shrink_to_fit();
        Ok(tokens)
    }

    fn append_plain(&self, vocab: &Shared, text: &[u8], tokens: &mut Vec<Token>, meter: &mut CancellationMeter) -> Result<()> {
        // SAFETY: `tokenize` requires an alive vocabulary.
        let (chunks, cuts) = unsafe { self.chunking.chunks(vocab.0, text) };
        if chunks.len() > 1 {
            // Checks the whole span, since the message contains the offset in it.
            self.splitter.check(text)?;
        }
        let mut guarded = Vec::new();
        for (i, chunk) in chunks.into_iter().enumerate() {
            let chunk = &text[chunk];
            meter.add(chunk.len())?;
            let Some(GuardedCuts { guard, n_guard_tokens, .. }) = cuts.filter(|_| i > 0) else {
                // SAFETY: as above.
                self.splitter.with_stack(chunk, || unsafe { append(vocab.0, chunk, false, tokens) })?;
                continue;
            };
            guarded.clear();
            guarded.push(*guard);
            guarded.extend_from_slice(chunk);
            let n_before = tokens.len();
            // SAFETY: as above.
            unsafe { append(vocab.0, &guarded, false, tokens) };
            tokens.drain(n_before..n_before + n_guard_tokens);
        }
        Ok(())
    }
}

/// Checks for a cancellation once per [`CHECK_INTERVAL_BYTES`] of a text.
#[derive(Debug, Default)]
struct CancellationMeter {
    n_bytes: usize,
}

impl CancellationMeter {
    /// Must be called before `n_bytes` are tokenized. A short text is never cancelled.
    fn add(&mut self, n_bytes: usize) -> Result<()> {
        if self.n_bytes >= CHECK_INTERVAL_BYTES {
            self.n_bytes = 0;
            cancellation::check()?;
        }
        self.n_bytes += n_bytes;
        Ok(())
    }
}

/// How long plain spans are cut into chunks, each of which is tokenized separately.
enum Chunking {
    /// At cuts that no piece can span (`SentencePiece`).
    SafeCuts {
        min_bytes: usize,
        /// Built for the first long span: that takes tens of milliseconds for a large vocabulary.
        cuts: OnceLock<Option<GuardedCuts>>,
    },
    /// Between an ASCII letter or digit and the line feed after it, where a splitter always ends a word. This serves cancellation
    /// only: the time that llama.cpp takes for such vocabularies is linear.
    Lines {
        min_bytes: usize,
    },
    None,
}

/// Safe cuts of a span, and the guard before each chunk but the first.
///
/// llama.cpp may put a space before each text that it tokenizes. It would be merged with the beginning of a chunk, so each chunk
/// begins with a guard: a byte that is in no piece, and so is never merged. The guard's tokens are removed.
struct GuardedCuts {
    safe: SafeCuts,
    guard: u8,
    n_guard_tokens: usize,
}

impl Chunking {
    /// Returns the chunks of `text`, and the cuts with their guard if each chunk but the first needs one.
    ///
    /// # Safety
    /// `vocab` belongs to a loaded model and is the same in every call.
    unsafe fn chunks(&self, vocab: *const sys::llama_vocab, text: &[u8]) -> (Vec<Range<usize>>, Option<&GuardedCuts>) {
        let whole = std::iter::once(0..text.len()).collect();
        match self {
            Self::SafeCuts { min_bytes, cuts } if text.len() > *min_bytes => {
                // SAFETY: guaranteed by the caller.
                let cuts = cuts.get_or_init(|| unsafe { GuardedCuts::read(vocab) }).as_ref();
                (cuts.map_or(whole, |cuts| cuts.safe.chunks(text, *min_bytes)), cuts)
            }
            Self::Lines { min_bytes } if text.len() > *min_bytes => (line_chunks(text, *min_bytes), None),
            _ => (whole, None),
        }
    }
}

/// Cuts `text` before line feeds that follow an ASCII letter or digit, into chunks of at least `min_bytes` bytes but for the last.
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
    /// Reads all pieces of a vocabulary. `None` if each control character is in a piece.
    ///
    /// # Safety
    /// `vocab` belongs to a loaded model.
    unsafe fn read(vocab: *const sys::llama_vocab) -> Option<Self> {
        // SAFETY: guaranteed by the caller.
        let ids = 0..unsafe { sys::llama_vocab_n_tokens(vocab) };
        // SAFETY: `token` is in the vocabulary, whose texts end in NUL and live as long as the model.
        let pieces = ids.map(|token| unsafe { CStr::from_ptr(sys::llama_vocab_get_text(vocab, token)) }.to_bytes());
        let mut is_in_piece = [false; 0x20];
        for &byte in pieces.clone().flatten() {
            if let Some(is_in_piece) = is_in_piece.get_mut(usize::from(byte)) {
                *is_in_piece = true;
            }
        }
        let guard = (1..0x20).find(|&byte| !is_in_piece[usize::from(byte)])?;
        let mut guard_tokens = Vec::new();
        // SAFETY: guaranteed by the caller.
        unsafe { append(vocab, &[guard], false, &mut guard_tokens) };
        Some(Self { safe: SafeCuts::new(pieces), guard, n_guard_tokens: guard_tokens.len() })
    }
}

/// A vocabulary of a loaded model, which another thread reads while this one waits.
struct Shared(*const sys::llama_vocab);

// SAFETY: a vocabulary does not change once it is loaded, and tokenizing only reads it.
unsafe impl Sync for Shared {}

/// Returns the special tokens with their attributes, in the order in which llama.cpp searches for them.
///
/// # Safety
/// `vocab` belongs to a loaded model, which outlives `'a`.
unsafe fn special_tokens<'a>(vocab: *const sys::llama_vocab) -> Vec<(SpecialToken<'a>, sys::llama_token_attr)> {
    let is_special = sys::LLAMA_TOKEN_ATTR_CONTROL | sys::LLAMA_TOKEN_ATTR_USER_DEFINED | sys::LLAMA_TOKEN_ATTR_UNKNOWN;
    let mut tokens = Vec::new();
    // SAFETY: guaranteed by the caller.
    for token in 0..unsafe { sys::llama_vocab_n_tokens(vocab) } {
        // SAFETY: `token` is in the vocabulary.
        let attributes = unsafe { sys::llama_vocab_get_attr(vocab, token) };
        if attributes & is_special == 0 {
            continue;
        }
        // SAFETY: `token` is in the vocabulary, whose texts end in NUL and live as long as the model.
        let spelling = unsafe { CStr::from_ptr(sys::llama_vocab_get_text(vocab, token)) }.to_bytes();
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

/// Returns the maximum number of bytes of a text that become one token, if every byte is in a token except for white space that
/// special tokens strip.
///
/// # Safety
/// `vocab` belongs to a loaded model.
unsafe fn longest_piece(vocab: *const sys::llama_vocab, kind: &str) -> Option<usize> {
    let spells_all = match kind {
        // Byte tokens are checked when the vocabulary is read, or nothing is dropped even if bytes have no token.
        "llama" | "rwkv" | "plamo2" => true,
        // SAFETY: guaranteed by the caller.
        "gpt2" | "gemma4" => unsafe { spells_every_byte(vocab, kind == "gemma4") },
        _ => false,
    };
    // SAFETY: guaranteed by the caller; `token` is in the vocabulary, whose texts are NUL-terminated.
    let n_bytes = |token| unsafe { CStr::from_ptr(sys::llama_vocab_get_text(vocab, token)) }.count_bytes();
    // In the file's spelling no piece is shorter than its text: a space takes two or three bytes there.
    // SAFETY: guaranteed by the caller.
    let tokens = 0..unsafe { sys::llama_vocab_n_tokens(vocab) };
    tokens.map(n_bytes).max().filter(|&longest| spells_all && longest > 0)
}

/// Returns whether each byte has its own token: a BPE vocabulary drops bytes that have none. `by_byte_tokens` selects tokens of the
/// byte type, otherwise only tokens of other types count.
///
/// # Safety
/// `vocab` belongs to a loaded model.
unsafe fn spells_every_byte(vocab: *const sys::llama_vocab, by_byte_tokens: bool) -> bool {
    let mut is_spelt = [false; 256];
    // SAFETY: guaranteed by the caller.
    for token in 0..unsafe { sys::llama_vocab_n_tokens(vocab) } {
        let mut byte = 0_u8;
        // SAFETY: `token` is in the vocabulary.
        let is_byte_token = unsafe { sys::llama_vocab_get_attr(vocab, token) } & sys::LLAMA_TOKEN_ATTR_BYTE != 0;
        // SAFETY: as above, and one byte is writable.
        let n = unsafe { sys::llama_token_to_piece(vocab, token, (&raw mut byte).cast::<c_char>(), 1, 0, true) };
        if n == 1 && is_byte_token == by_byte_tokens {
            is_spelt[usize::from(byte)] = true;
        }
    }
    is_spelt == [true; 256]
}

/// Appends llama.cpp's tokens of `text`, without parsing control tokens.
///
/// # Safety
/// `vocab` belongs to a loaded model; with `add_special`, it has the tokens that it requires to be added.
unsafe fn append(vocab: *const sys::llama_vocab, text: &[u8], add_special: bool, tokens: &mut Vec<Token>) {
    let n_bytes = i32::try_from(text.len()).expect("a text is shorter than 2 GiB");
    // A byte rarely takes more than one token; if the capacity is too small, llama.cpp returns the required number.
    let mut capacity = text.len() + 8;
    loop {
        tokens.reserve(capacity);
        let n_max = i32::try_from(capacity).unwrap_or(i32::MAX);
        let buffer = tokens.spare_capacity_mut().as_mut_ptr().cast::<Token>();
        // SAFETY: guaranteed by the caller; `n_bytes` are readable and `capacity` tokens writable.
        let n = unsafe { sys::llama_tokenize(vocab, text.as_ptr().cast::<c_char>(), n_bytes, buffer, n_max, add_special, false) };
        assert!(n != i32::MIN, "a text of less than 2 GiB has fewer than 2³¹ tokens");
        let n_tokens = n.unsigned_abs() as usize;
        if n >= 0 {
            // SAFETY: llama.cpp has written that many.
            return unsafe { tokens.set_len(tokens.len() + n_tokens) };
        }
        capacity = n_tokens;
    }
}

unsafe extern "C" {
    fn weft_longest_first(order: *mut u32, n: usize, lengths: *const usize);
}
