//! llama.cpp's functions of a vocabulary, without raw pointers.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::ops::Range;

use llama_cpp_sys_2 as sys;

use crate::llama::model::raw_model::RawModel;
use crate::request::Token;

#[derive(Clone, Copy)]
pub(crate) struct RawVocab<'a>(*const sys::llama_vocab, PhantomData<&'a RawModel>);

// SAFETY: a vocabulary does not change once it is loaded, and every call only reads it.
unsafe impl Send for RawVocab<'_> {}
// SAFETY: as above.
unsafe impl Sync for RawVocab<'_> {}

impl<'a> RawVocab<'a> {
    pub(crate) fn of(model: &'a RawModel) -> Self {
        Self(model.get(sys::llama_model_get_vocab), PhantomData)
    }

    pub(crate) fn as_ptr(self) -> *const sys::llama_vocab {
        self.0
    }

    pub(crate) fn get<T>(self, property: unsafe extern "C" fn(*const sys::llama_vocab) -> T) -> T {
        // SAFETY: the vocabulary is alive.
        unsafe { property(self.0) }
    }

    pub(crate) fn kind(self) -> sys::llama_vocab_type {
        self.get(sys::llama_vocab_type)
    }

    pub(crate) fn token(self, special: unsafe extern "C" fn(*const sys::llama_vocab) -> Token) -> Option<Token> {
        Some(self.get(special)).filter(|&token| token >= 0)
    }

    pub(crate) fn tokens(self) -> Range<Token> {
        0..self.get(sys::llama_vocab_n_tokens)
    }

    pub(crate) fn text(self, token: Token) -> &'a [u8] {
        // SAFETY: the token is in the vocabulary, whose texts end in NUL and live as long as the model.
        unsafe { CStr::from_ptr(sys::llama_vocab_get_text(self.0, self.checked(token))) }.to_bytes()
    }

    pub(crate) fn attributes(self, token: Token) -> sys::llama_token_attr {
        // SAFETY: the token is in the vocabulary.
        unsafe { sys::llama_vocab_get_attr(self.0, self.checked(token)) }
    }

    pub(crate) fn is_end(self, token: Token) -> bool {
        // SAFETY: the token is in the vocabulary.
        unsafe { sys::llama_vocab_is_eog(self.0, self.checked(token)) }
    }

    pub(crate) fn is_in_text(self, token: Token) -> bool {
        // SAFETY: the token is in the vocabulary; with an empty buffer, the call only returns whether there would be text.
        unsafe { sys::llama_token_to_piece(self.0, self.checked(token), std::ptr::null_mut(), 0, 0, false) != 0 }
    }

    pub(crate) fn append_spelling(self, token: Token, bytes: &mut Vec<u8>) {
        let (start, token) = (bytes.len(), self.checked(token));
        let mut capacity = 64;
        loop {
            bytes.resize(start + capacity, 0);
            let length = i32::try_from(capacity).expect("a token's spelling is shorter than 2 GiB");
            let buffer = bytes[start..].as_mut_ptr().cast::<c_char>();
            // SAFETY: the token is in the vocabulary, and `length` bytes of the buffer are writable.
            let written = unsafe { sys::llama_token_to_piece(self.0, token, buffer, length, 0, true) };
            let size = written.unsigned_abs() as usize;
            if written >= 0 {
                return bytes.truncate(start + size);
            }
            capacity = size;
        }
    }

    /// Appends the tokens of a text; control tokens are not parsed.
    pub(crate) fn append_tokens(self, text: &[u8], add_special: bool, tokens: &mut Vec<Token>) {
        let (from, n_bytes) = (text.as_ptr().cast::<c_char>(), i32::try_from(text.len()).expect("a text is shorter than 2 GiB"));
        // A byte rarely takes more than one token; if the capacity is too small, llama.cpp returns the required number.
        let mut capacity = text.len() + 8;
        loop {
            tokens.reserve(capacity);
            let n_max = i32::try_from(capacity).unwrap_or(i32::MAX);
            let buffer = tokens.spare_capacity_mut().as_mut_ptr().cast::<Token>();
            // SAFETY: the vocabulary is alive; `n_bytes` are readable and `capacity` tokens writable.
            let n = unsafe { sys::llama_tokenize(self.0, from, n_bytes, buffer, n_max, add_special, false) };
            assert!(n != i32::MIN, "a text of less than 2 GiB has fewer than 2³¹ tokens");
            let n_tokens = n.unsigned_abs() as usize;
            if n >= 0 {
                // SAFETY: llama.cpp has written that many.
                return unsafe { tokens.set_len(tokens.len() + n_tokens) };
            }
            capacity = n_tokens;
        }
    }

    fn checked(self, token: Token) -> Token {
        assert!(self.tokens().contains(&token), "token {token} is not in the vocabulary");
        token
    }
}
