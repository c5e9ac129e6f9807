//! Images and audio in a prompt.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::request::Token;

/// Placeholder of an image or audio in a text, as in llama.cpp's `mtmd`.
pub const MEDIA_MARKER: &str = "<__media__>";

/// Returns true if `id` is the id of a media position, not of a token.
pub const fn is_of_medium(id: Token) -> bool {
    id < 0
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encoding {
    Ready,
    Pending,
    /// The embeddings cannot be computed, for this reason.
    Failed(String),
}

/// An image, audio, or a part of one, in the form that a model consumes.
pub trait Medium: fmt::Debug + Send + Sync {
    /// Returns the id of its first position; the others descend, all below 0. In a process, only equal media have equal ids.
    fn first_id(&self) -> Token;

    fn n_tokens(&self) -> u32;

    /// Returns how far it advances the position counter: less than `n_tokens` under M-RoPE (<https://arxiv.org/abs/2409.12191>).
    fn n_positions(&self) -> u32 {
        self.n_tokens()
    }

    /// Returns true if its positions are not simply consecutive.
    fn has_positions(&self) -> bool {
        false
    }

    /// Returns the position of each cell, as time, row, column, and a fourth value, counted from `first`.
    fn positions(&self, _first: u32) -> Option<Vec<[u32; 4]>> {
        None
    }

    /// Returns true if each of its cells attends to all of them, so that one decode must compute all.
    fn sees_ahead(&self) -> bool;

    fn is_whole(&self) -> bool {
        self.sees_ahead() || self.has_positions()
    }

    /// Returns the size of its embeddings in bytes, and of their source data until they are available.
    fn n_bytes(&self) -> u64;

    /// Returns the state of its embeddings. The first call starts their computation.
    fn encoding(&self) -> Encoding;

    fn embeddings(&self) -> Option<Arc<[f32]>>;
}

#[derive(Debug, Clone)]
pub struct Media(pub Arc<dyn Medium>);

impl Deref for Media {
    type Target = dyn Medium;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl PartialEq for Media {
    fn eq(&self, other: &Self) -> bool {
        self.first_id() == other.first_id()
    }
}

impl Eq for Media {}

impl Media {
    pub fn ids(&self) -> impl Iterator<Item = Token> + use<> {
        let first = self.first_id();
        (0..self.n_tokens()).map(move |i| first - i.cast_signed())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedMedia {
    pub start: u32,
    pub media: Media,
}

impl PlacedMedia {
    pub fn end(&self) -> u32 {
        self.start + self.media.n_tokens()
    }

    /// Returns true if a sequence that ends at `end` would cut it, though it must be whole.
    pub(crate) fn is_cut_at(&self, end: u32) -> bool {
        self.media.is_whole() && self.start < end && end < self.end()
    }
}
