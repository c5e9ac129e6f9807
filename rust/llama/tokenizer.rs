//! From a text to tokens, as llama.cpp makes them, in time that grows as the text does.
//!
//! llama.cpp cuts a text at its special tokens and tokenizes each plain stretch between them alone, whatever the kind of
//! vocabulary: no state passes from one stretch to the next, and each is treated as if a special token were before it. So we cut
//! the text (see [`SpecialTokens`]) and give llama.cpp one plain stretch after the other, a long stretch in chunks where the kind
//! of vocabulary allows it (see [`SafeCuts`]).

use std::ffi::{CStr, c_char};
use std::ops::Range;
use std::sync::OnceLock;

use llama_cpp_sys_2 as sys;

use crate::cancellation;
use crate::error::Result;
use crate::llama::safe_cuts::SafeCuts;
use crate::llama::special_tokens::{SpecialToken, SpecialTokens, TextSpan, is_space};
use crate::llama::splitter::Splitter;
use crate::request::Token;

/// Least bytes of a chunk. The time for a chunk whose characters are all spelled by bytes is quadratic, and each call has a price of
/// its own. With this length, 5,000,000 characters of that kind (15 MB) take 2.6 seconds with the demo model's vocabulary, and as many
/// of English 2.5 seconds. In one piece, 80,000 take 5 seconds, and 5,000,000 of English 10.
const MIN_CHUNK_BYTES: usize = 1024;

/// Least bytes of a chunk of lines. Some splitters read their expressions anew for each chunk, which takes up to 0.1 seconds; a chunk
/// takes one second and more.
const MIN_LINES_BYTES: usize = 256 * 1024;

/// Bytes of a text after which tokenizing checks whether it was cancelled: some 20 ms of work.
const CHECK_INTERVAL_BYTES: usize = 64 * 1024;

/// What tokenizing needs to know of a vocabulary beside what llama.cpp knows.
pub(super) struct Tokenizer {
    /// Every special token.
    special: SpecialTokens,
    /// Those that a text is cut at even where special tokens are not parsed: they are part of it.
    user_defined: SpecialTokens,
    splitter: Splitter,
    chunking: Chunking,
    /// What is added before a text.
    opening: Vec<Token>,
    /// What is added behind a text.
    closing: Vec<Token>,
    fewest: MinTokens,
}

/// What is known of how few tokens a text can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MinTokens {
    /// Each byte is in a token, of at most so many bytes.
    OfBytes(usize),
    /// So is each byte but white space, which is left out beside some special tokens.
    OfBytesButSpace(usize),
    /// Each word is a token or more, or stands with at most so many in the spelling of a special one.
    OfWords(usize),
    /// Nothing, so that the work is bounded by a request's body alone. Bytes that have no token are left out; and Unigram makes one
    /// token of all that it does not know and that stands together, after its file's table has replaced what that says.
    Unknown,
}

impl MinTokens {
    fn tokens(self, text: &[u8]) -> usize {
        match self {
            Self::OfBytes(longest) => text.len().div_ceil(longest),
            Self::OfBytesButSpace(longest) => text.iter().filter(|&&byte| !is_space(byte)).count().div_ceil(longest),
            Self::OfWords(most) => n_words(text).div_ceil(most),
            Self::Unknown => 0,
        }
    }
}

/// Words of a text that `WordPiece` makes tokens of, however it normalizes: each mark of ASCII is one, and so is what stands between
/// these and white space, if a letter or a digit of ASCII is in it, which are never left out.
fn n_words(text: &[u8]) -> usize {
    let words = text.split(|&byte| is_space(byte) || byte.is_ascii_punctuation());
    let n_marks = text.iter().filter(|byte| byte.is_ascii_punctuation()).count();
    n_marks + words.filter(|word| word.iter().any(u8::is_ascii_alphanumeric)).count()
}

impl Tokenizer {
    /// Reads the special tokens of a vocabulary.
    ///
    /// # Safety
    /// `vocab` belongs to a loaded model, its type is not `LLAMA_VOCAB_TYPE_NONE`, and where `adds_special` holds it has the tokens
    /// that it asks to be added. `kind` is the name that the file has for the kind of tokenizer, `splitter` that for how it finds
    /// words.
    ///
    /// # Errors
    /// Why they cannot be searched for, for [`crate::error::Error::ModelLoad`].
    pub(super) unsafe fn read(
        vocab: *const sys::llama_vocab,
        kind: &str,
        splitter: &str,
        adds_special: bool,
    ) -> std::result::Result<Self, String> {
        // SAFETY: the caller's promise.
        let tokens = unsafe { special_tokens(vocab) };
        let never_text = sys::LLAMA_TOKEN_ATTR_CONTROL | sys::LLAMA_TOKEN_ATTR_UNKNOWN;
        let special = SpecialTokens::new(tokens.iter().map(|(token, _)| *token))?;
        let of_texts = tokens.iter().filter(|(_, attributes)| attributes & never_text == 0);
        let user_defined = SpecialTokens::new(of_texts.map(|(token, _)| *token))?;
        let mut opening = Vec::new();
        if adds_special {
            // SAFETY: the caller's promise.
            unsafe { append(vocab, b"", true, &mut opening) };
        }
        // What is added to nothing at all: one token before it where the vocabulary has one for the beginning, the rest behind it.
        // SAFETY: the caller's promise.
        let opens = unsafe { sys::llama_vocab_get_add_bos(vocab) || sys::llama_vocab_type(vocab) == sys::LLAMA_VOCAB_TYPE_WPM };
        let closing = opening.split_off(usize::from(opens).min(opening.len()));
        let strips = tokens.iter().any(|(token, _)| token.strips_left || token.strips_right);
        // SAFETY: the caller's promise.
        let longest = unsafe { longest_piece(vocab, kind) };
        let fewest = match longest {
            Some(longest) if strips => MinTokens::OfBytesButSpace(longest),
            Some(longest) => MinTokens::OfBytes(longest),
            None if kind == "bert" => {
                MinTokens::OfWords(tokens.iter().map(|(token, _)| n_words(token.spelling)).max().unwrap_or(0).max(1))
            }
            None => MinTokens::Unknown,
        };
        // SAFETY: the caller's promise.
        let has_merges = unsafe { sys::llama_vocab_type(vocab) } == sys::LLAMA_VOCAB_TYPE_BPE;
        let splitter = match kind {
            _ if !has_merges => Splitter::NONE,
            // llama.cpp gives it this one, whatever the file says.
            "gemma4" => Splitter::named(kind),
            _ => Splitter::named(splitter),
        };
        // SAFETY: the caller's promise.
        let chunking = match unsafe { sys::llama_vocab_type(vocab) } {
            sys::LLAMA_VOCAB_TYPE_SPM => Chunking::SafeCuts { min_bytes: MIN_CHUNK_BYTES, cuts: OnceLock::new() },
            _ if splitter.separates_lines() && kind != "hybriddna" => Chunking::Lines { min_bytes: MIN_LINES_BYTES },
            _ => Chunking::None,
        };
        Ok(Self { special, user_defined, splitter, chunking, opening, closing, fewest })
    }

    /// Sets the least bytes of a chunk.
    #[cfg(test)]
    pub(super) fn set_min_chunk_bytes(&mut self, n_bytes: usize) {
        match &mut self.chunking {
            Chunking::SafeCuts { min_bytes, .. } | Chunking::Lines { min_bytes } => *min_bytes = n_bytes,
            Chunking::None => panic!("texts of this vocabulary are not cut"),
        }
    }

    /// The chunks in which a plain stretch is given to llama.cpp.
    ///
    /// # Safety
    /// `vocab` is what this was read from.
    #[cfg(test)]
    pub(super) unsafe fn chunks(&self, vocab: *const sys::llama_vocab, text: &[u8]) -> Vec<Range<usize>> {
        // SAFETY: the caller's promise.
        unsafe { self.chunking.chunks(vocab, text) }.0
    }

    /// Most bytes of a text that become one token. `None` where there is no such bound: where white space may be left out, or a
    /// word that is not known becomes one token however long it is.
    pub(super) fn longest_piece(&self) -> Option<usize> {
        match self.fewest {
            MinTokens::OfBytes(longest) => Some(longest),
            _ => None,
        }
    }

    /// A number of tokens that `text` has at least, found in one pass over it; 0 where nothing is known, see [`MinTokens`].
    pub(super) fn least_tokens(&self, text: &[u8]) -> usize {
        self.fewest.tokens(text)
    }

    /// The tokens of `text`. `add_special` adds what the vocabulary asks for; `parse_special` reads the spelling of a control token
    /// as that token.
    ///
    /// # Safety
    /// `vocab` is what this was read from.
    ///
    /// # Errors
    /// As of [`Splitter::with_stack`]; [`Error::Cancelled`](crate::error::Error::Cancelled), see [`cancellation`].
    ///
    /// # Panics
    /// If `text` is 2 GiB long or longer.
    pub(super) unsafe fn tokenize(
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
        let cuts = if parse_special { &self.special } else { &self.user_defined };
        let mut meter = CancellationMeter::default();
        for stretch in cuts.split(text) {
            match stretch {
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
        // SAFETY: `tokenize` requires a vocabulary that lives.
        let (chunks, cuts) = unsafe { self.chunking.chunks(vocab.0, text) };
        if chunks.len() > 1 {
            // All of it, since a message has the offset in the stretch.
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
    /// To be called before `n_bytes` are tokenized. A short text is never cancelled.
    fn add(&mut self, n_bytes: usize) -> Result<()> {
        if self.n_bytes >= CHECK_INTERVAL_BYTES {
            self.n_bytes = 0;
            cancellation::check()?;
        }
        self.n_bytes += n_bytes;
        Ok(())
    }
}

/// How long plain stretches are cut into chunks, each of which is tokenized by itself.
enum Chunking {
    /// Where no piece can cross (`SentencePiece`).
    SafeCuts {
        min_bytes: usize,
        /// Made for the first long stretch: it takes tens of milliseconds for a large vocabulary.
        cuts: OnceLock<Option<GuardedCuts>>,
    },
    /// Between an ASCII letter or digit and the line feed after it, where a splitter always ends a word. This serves cancellation
    /// only: the time that llama.cpp takes for such vocabularies grows linearly.
    Lines { min_bytes: usize },
    /// Not at all.
    None,
}

/// Where a stretch may be cut, and what goes before each chunk but the first.
///
/// llama.cpp may put a space before each text that it tokenizes. It would be joined with the beginning of a chunk, so each chunk
/// begins with a guard: a byte that is in no piece, and so is joined with nothing. The guard's tokens are removed.
struct GuardedCuts {
    safe: SafeCuts,
    guard: u8,
    n_guard_tokens: usize,
}

impl Chunking {
    /// The chunks of `text`, and what they were cut by where each but the first needs a guard.
    ///
    /// # Safety
    /// `vocab` belongs to a loaded model and is always the same.
    unsafe fn chunks(&self, vocab: *const sys::llama_vocab, text: &[u8]) -> (Vec<Range<usize>>, Option<&GuardedCuts>) {
        let whole = std::iter::once(0..text.len()).collect();
        match self {
            Self::SafeCuts { min_bytes, cuts } if text.len() > *min_bytes => {
                // SAFETY: the caller's promise.
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
    for (at, pair) in (1..).zip(text.windows(2)) {
        if pair[1] == b'\n' && pair[0].is_ascii_alphanumeric() && at - start >= min_bytes {
            chunks.push(start..at);
            start = at;
        }
    }
    chunks.push(start..text.len());
    chunks
}

impl GuardedCuts {
    /// Reads all pieces of a vocabulary. `None` if each control character is in one of them.
    ///
    /// # Safety
    /// `vocab` belongs to a loaded model.
    unsafe fn read(vocab: *const sys::llama_vocab) -> Option<Self> {
        // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise.
        unsafe { append(vocab, &[guard], false, &mut guard_tokens) };
        Some(Self { safe: SafeCuts::new(pieces), guard, n_guard_tokens: guard_tokens.len() })
    }
}

/// A vocabulary of a loaded model, which another thread reads while this one waits.
struct Shared(*const sys::llama_vocab);

// SAFETY: a vocabulary does not change once it is loaded, and tokenizing only reads it.
unsafe impl Sync for Shared {}

/// The special tokens with their attributes, in the order in which llama.cpp looks for them.
///
/// # Safety
/// `vocab` belongs to a loaded model, which outlives `'a`.
unsafe fn special_tokens<'a>(vocab: *const sys::llama_vocab) -> Vec<(SpecialToken<'a>, sys::llama_token_attr)> {
    let is_special = sys::LLAMA_TOKEN_ATTR_CONTROL | sys::LLAMA_TOKEN_ATTR_USER_DEFINED | sys::LLAMA_TOKEN_ATTR_UNKNOWN;
    let mut tokens = Vec::new();
    // SAFETY: the caller's promise.
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
    // SAFETY: both lists are as long as is said, and the numbers are places in the second.
    unsafe { weft_longest_first(order.as_mut_ptr(), order.len(), lengths.as_ptr()) };
    order.into_iter().map(|place| tokens[place as usize]).filter(|(token, _)| !token.spelling.is_empty()).collect()
}

/// Most bytes of a text that become one token, where each byte is in a token but for white space that special ones take.
///
/// # Safety
/// `vocab` belongs to a loaded model.
unsafe fn longest_piece(vocab: *const sys::llama_vocab, kind: &str) -> Option<usize> {
    let spells_all = match kind {
        // Checked when the vocabulary is read, or nothing is left out however little is spelt.
        "llama" | "rwkv" | "plamo2" => true,
        // SAFETY: the caller's promise.
        "gpt2" | "gemma4" => unsafe { spells_every_byte(vocab, kind == "gemma4") },
        _ => false,
    };
    // SAFETY: the caller's promise; `token` is in the vocabulary, whose texts end in NUL.
    let n_bytes = |token| unsafe { CStr::from_ptr(sys::llama_vocab_get_text(vocab, token)) }.count_bytes();
    // In the file's own spelling no piece is shorter than what it stands for: it has three bytes for a space, or two.
    // SAFETY: the caller's promise.
    let tokens = 0..unsafe { sys::llama_vocab_n_tokens(vocab) };
    tokens.map(n_bytes).max().filter(|&longest| spells_all && longest > 0)
}

/// Whether each byte is a token of its own: a vocabulary of merges leaves out what it has no token for. It looks for tokens of the
/// kind that is made for bytes, or for no such.
///
/// # Safety
/// `vocab` belongs to a loaded model.
unsafe fn spells_every_byte(vocab: *const sys::llama_vocab, by_byte_tokens: bool) -> bool {
    let mut is_spelt = [false; 256];
    // SAFETY: the caller's promise.
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

/// Appends the tokens that llama.cpp makes of `text`, control tokens not parsed.
///
/// # Safety
/// `vocab` belongs to a loaded model; with `add_special`, it has the tokens that it asks to be added.
unsafe fn append(vocab: *const sys::llama_vocab, text: &[u8], add_special: bool, tokens: &mut Vec<Token>) {
    let n_bytes = i32::try_from(text.len()).expect("a text is shorter than 2 GiB");
    // A byte is rarely more than a token, and where it is llama.cpp says how many there are.
    let mut n_wanted = text.len() + 8;
    loop {
        tokens.reserve(n_wanted);
        let room = i32::try_from(n_wanted).unwrap_or(i32::MAX);
        let into = tokens.spare_capacity_mut().as_mut_ptr().cast::<Token>();
        // SAFETY: the caller's promise; `n_bytes` are readable and `room` tokens writable.
        let n = unsafe { sys::llama_tokenize(vocab, text.as_ptr().cast::<c_char>(), n_bytes, into, room, add_special, false) };
        assert!(n != i32::MIN, "a text of less than 2 GiB has fewer than 2³¹ tokens");
        let n_tokens = n.unsigned_abs() as usize;
        if n >= 0 {
            // SAFETY: llama.cpp has written that many.
            return unsafe { tokens.set_len(tokens.len() + n_tokens) };
        }
        n_wanted = n_tokens;
    }
}

unsafe extern "C" {
    fn weft_longest_first(order: *mut u32, n: usize, lengths: *const usize);
}
