//! Pictures and sounds in a prompt: vectors in the places of tokens.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::request::Token;

/// Below this, ids are those of places that vectors fill: no token's.
const FIRST_ID: Token = 0;

/// What stands for a picture or a sound in a text, as llama.cpp's `mtmd` spells it.
pub const MEDIA_MARKER: &str = "<__media__>";

/// Whether `id` stands in a place that a vector fills.
#[must_use]
pub const fn is_of_medium(id: Token) -> bool {
    id < FIRST_ID
}

/// How far the vectors of a medium are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Encoding {
    /// They are there.
    Ready,
    /// They are being made.
    Pending,
    /// They cannot be made, and why.
    Failed(String),
}

/// A picture, a sound, or a part of one, as a model takes it.
pub trait Medium: fmt::Debug + Send + Sync {
    /// Stands for its first place; the ids of the others follow downwards, and all are below 0. Equal ones have equal ids in one
    /// process, and different ones never have the same.
    fn first_id(&self) -> Token;

    /// How many places it takes; at least 1.
    fn n_tokens(&self) -> u32;

    /// How many positions what follows it is away from what stands before: fewer than places where a model counts rows and columns
    /// (M-RoPE, Qwen2-VL, <https://arxiv.org/abs/2409.12191>).
    fn n_positions(&self) -> u32 {
        self.n_tokens()
    }

    /// Whether its places have positions of their own, and not just one after the other.
    fn has_positions(&self) -> bool {
        false
    }

    /// These positions: in time, row, column, and one more, where the first position is `first`.
    fn positions(&self, _first: u32) -> Option<Vec<[u32; 4]>> {
        None
    }

    /// Whether each of its places looks at all of them, those after it too, so that one decode computes all.
    fn sees_ahead(&self) -> bool;

    /// Whether it is held whole or not at all.
    fn is_whole(&self) -> bool {
        self.sees_ahead() || self.has_positions()
    }

    /// Bytes that it holds: its vectors, and what these are made of until they are there.
    fn n_bytes(&self) -> u64;

    /// How far its vectors are. Whoever asks first lets them be made.
    fn encoding(&self) -> Encoding;

    /// Its vectors, one after the other, where they are ready.
    fn vectors(&self) -> Option<Arc<[f32]>>;
}

/// A medium that requests share.
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
    /// The ids of its places, in order.
    pub fn ids(&self) -> impl Iterator<Item = Token> + use<> {
        let first = self.first_id();
        (0..self.n_tokens()).map(move |place| first - place.cast_signed())
    }
}

/// A medium, and where in a prompt it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedMedia {
    /// Its first place.
    pub start: u32,
    /// The medium.
    pub media: Media,
}

impl PlacedMedia {
    /// The place after its last.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.start + self.media.n_tokens()
    }

    /// Whether a sequence that ends at `place` would hold a part of what is whole or nothing.
    #[must_use]
    pub fn is_cut_at(&self, place: u32) -> bool {
        self.media.is_whole() && self.start < place && place < self.end()
    }
}
