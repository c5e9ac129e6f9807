//! A short stretch of a prompt, computed once and put to use at every position.
//!
//! A prompt of 4,000 tokens would take a slow machine 40 seconds, and eight of them five minutes. So the KV of a short prompt is
//! saved, as `llama_state_seq_get_data` writes it, and restored again and again with the positions in its bytes moved on. K was
//! rotated for other positions, so that what the model computes over it means nothing. But a step multiplies and adds the same
//! number of numbers whatever they are, and its time is all that is measured here.
//!
//! V lies in rows with flash attention and in columns without, so that each setting needs a stretch of its own.

use std::sync::Arc;

use weft::config::Limits;
use weft::request::SavedPiece;

use super::bare::{BareContext, Flash, Threads};
use super::bare_model::BareModel;

/// Bytes before the cells: a magic number, a sequence id, the number of streams and the number of cells.
const HEAD: usize = 16;

/// Bytes of a cell's entry: its position, the number of its owners, its owner.
const ENTRY: usize = 12;

/// Longest stretch: it takes a slow machine two or three seconds.
const LONGEST: usize = 250;

/// The saved state of the positions `0..n_tokens` of one sequence.
pub(crate) struct Stretch {
    flash: Flash,
    n_tokens: usize,
    bytes: Vec<u8>,
}

impl Stretch {
    /// Computes the longest stretch of which a prompt of `n_prompt` tokens is a multiple.
    ///
    /// # Errors
    /// A message, when llama.cpp fails, or when the bytes are not those of one plain cache.
    pub(crate) fn compute(
        model: &BareModel,
        limits: &Limits,
        (flash, threads): (Flash, Threads),
        prompt: &[i32],
    ) -> Result<Self, String> {
        let n_tokens = Self::fitting(prompt.len());
        let limits = Limits { n_ctx: 512, ..*limits };
        let mut context = BareContext::new(model, &limits, flash, threads)?;
        context.time_prefill(prompt, 0..n_tokens)?;
        let bytes = context.save()?;
        let stretch = Self { flash, n_tokens, bytes };
        let has_expected = stretch.number(8) == Some(1)
            && stretch.number(12) == u32::try_from(n_tokens).ok()
            && (0..n_tokens).all(|cell| stretch.number(HEAD + cell * ENTRY) == u32::try_from(cell).ok())
            && stretch.layout() == Some(flash);
        if has_expected { Ok(stretch) } else { Err("the saved state is not that of one plain cache".to_owned()) }
    }

    /// Whether this is the stretch for prompts so long, where attention is computed so.
    pub(crate) fn fits(&self, flash: Flash, n_prompt: usize) -> bool {
        self.flash == flash && self.n_tokens == Self::fitting(n_prompt)
    }

    pub(crate) fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// The same state under positions that begin at `start`.
    pub(crate) fn at(&self, start: usize) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let entries = bytes[HEAD..].chunks_exact_mut(ENTRY).take(self.n_tokens);
        for (position, entry) in (start..).zip(entries) {
            let position = i32::try_from(position).expect("a bench's prompts are short");
            entry[..4].copy_from_slice(&position.to_le_bytes());
        }
        bytes
    }

    /// The pieces that make a prompt of `n_prompt` tokens, as the engine takes them.
    pub(crate) fn pieces(&self, n_prompt: usize) -> Vec<SavedPiece> {
        let number = |n: usize| u32::try_from(n).expect("a bench's prompts are short");
        let starts = (0..n_prompt).step_by(self.n_tokens);
        starts
            .map(|start| SavedPiece { range: number(start)..number(start + self.n_tokens), bytes: Arc::from(self.at(start)) })
            .collect()
    }

    /// How attention is computed where this was saved: V lies in columns without flash attention.
    fn layout(&self) -> Option<Flash> {
        match self.number(HEAD + self.n_tokens * ENTRY)? {
            0 => Some(Flash::On),
            1 => Some(Flash::Off),
            _ => None,
        }
    }

    fn number(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes.get(at..at + 4)?.try_into().ok()?))
    }

    fn fitting(n_prompt: usize) -> usize {
        (1..=LONGEST.min(n_prompt)).rev().find(|n| n_prompt.is_multiple_of(*n)).unwrap_or(1)
    }
}
