//! The bytes of every token, read once, so that a step copies a slice and never calls llama.cpp for text.

use std::ffi::c_char;

use llama_cpp_sys_2 as sys;

use crate::request::Token;

/// A control or unknown token: it has a spelling, but is no part of a text.
const HIDDEN: u8 = 1;
/// A token that ends a text.
const END: u8 = 2;

/// One row per token of a vocabulary.
pub(super) struct Pieces {
    /// All spellings, one after the other.
    bytes: Vec<u8>,
    /// Token `t` is spelt `bytes[starts[t]..starts[t + 1]]`.
    starts: Vec<u32>,
    flags: Vec<u8>,
    end_tokens: Vec<Token>,
    suppressed_tokens: Vec<Token>,
}

impl Pieces {
    /// Reads the vocabulary.
    ///
    /// # Safety
    /// `vocab` belongs to a loaded model, and its type is not `LLAMA_VOCAB_TYPE_NONE`.
    pub(super) unsafe fn read(vocab: *const sys::llama_vocab) -> Self {
        // SAFETY: the caller's promise.
        let n_vocab = unsafe { sys::llama_vocab_n_tokens(vocab) };
        let mut n_suppressed = 0_i32;
        // SAFETY: the caller's promise; the number is writable.
        let suppressed = unsafe { sys::llama_vocab_get_suppress_tokens(vocab, &raw mut n_suppressed) };
        let suppressed_tokens = if suppressed.is_null() {
            Vec::new()
        } else {
            // SAFETY: llama.cpp's own list, as long as it says, which lives as long as the vocabulary.
            unsafe { std::slice::from_raw_parts(suppressed, n_suppressed.unsigned_abs() as usize) }.to_vec()
        };
        let mut pieces =
            Self { bytes: Vec::new(), starts: vec![0], flags: Vec::new(), end_tokens: Vec::new(), suppressed_tokens };
        for token in 0..n_vocab {
            let start = pieces.bytes.len();
            // SAFETY: `token` is in the vocabulary.
            unsafe { append_spelling(vocab, token, &mut pieces.bytes) };
            let end = u32::try_from(pieces.bytes.len()).expect("a vocabulary's text is far below 4 GiB");
            pieces.starts.push(end);
            // SAFETY: `token` is in the vocabulary; a buffer of no bytes is asked only whether there would be any.
            let is_hidden = unsafe { sys::llama_token_to_piece(vocab, token, std::ptr::null_mut(), 0, 0, false) } == 0
                && pieces.bytes.len() > start;
            // SAFETY: `token` is in the vocabulary.
            let is_end = unsafe { sys::llama_vocab_is_eog(vocab, token) };
            pieces.flags.push(if is_hidden { HIDDEN } else { 0 } | if is_end { END } else { 0 });
            if is_end {
                pieces.end_tokens.push(token);
            }
        }
        pieces
    }

    /// Size of the vocabulary.
    pub(super) fn n_vocab(&self) -> usize {
        self.flags.len()
    }

    /// The spelling of `token`, that of control tokens included; `None` outside of the vocabulary.
    pub(super) fn spelling(&self, token: Token) -> Option<&[u8]> {
        let index = usize::try_from(token).ok()?;
        let (start, end) = (*self.starts.get(index)?, *self.starts.get(index + 1)?);
        Some(&self.bytes[start as usize..end as usize])
    }

    /// What `token` adds to a text: nothing for a control token; `None` outside of the vocabulary.
    pub(super) fn text(&self, token: Token) -> Option<&[u8]> {
        let spelling = self.spelling(token)?;
        Some(if self.has(token, HIDDEN) { &[] } else { spelling })
    }

    /// Whether `token` ends a text; false outside of the vocabulary.
    pub(super) fn is_end(&self, token: Token) -> bool {
        self.has(token, END)
    }

    /// Every token that ends a text, in order.
    pub(super) fn end_tokens(&self) -> &[Token] {
        &self.end_tokens
    }

    /// Tokens that the model asks never to draw.
    pub(super) fn suppressed_tokens(&self) -> &[Token] {
        &self.suppressed_tokens
    }

    fn has(&self, token: Token, flag: u8) -> bool {
        usize::try_from(token).ok().and_then(|index| self.flags.get(index)).is_some_and(|flags| flags & flag != 0)
    }
}

/// # Safety
/// `token` is in `vocab`, which is as [`Pieces::read`] asks.
unsafe fn append_spelling(vocab: *const sys::llama_vocab, token: Token, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    let mut room = 64;
    loop {
        bytes.resize(start + room, 0);
        let length = i32::try_from(room).expect("a token's spelling is shorter than 2 GiB");
        // SAFETY: the caller's promise, and `length` bytes are writable at `start`.
        let written =
            unsafe { sys::llama_token_to_piece(vocab, token, bytes[start..].as_mut_ptr().cast::<c_char>(), length, 0, true) };
        // A negative answer is the room that was wanted.
        let size = written.unsigned_abs() as usize;
        if written >= 0 {
            return bytes.truncate(start + size);
        }
        room = size;
    }
}
