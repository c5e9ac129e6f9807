//! A short prompt, computed once and reused at every position.
//!
//! A prompt of 4,000 tokens would take a slow machine 40 seconds, and eight of them five minutes. Therefore the KV of a short
//! prompt is saved, in the format of `llama_state_seq_get_data`, and a longer state is built by repeating its cells at the
//! following positions. K was rotated for other positions, so that results over it are meaningless. But a step performs the
//! same number of operations for any values, and only its time is measured here.
//!
//! V is stored in rows with flash attention and in columns without, so that each setting needs a separate state.

use std::sync::Arc;

use weft::request::SavedRun;

use super::bare::BareContext;
use super::bare_model::BareModel;
use super::setup::{Flash, Setup, Threads};

/// Bytes before the cells: a magic number, a sequence id, the number of streams and the number of cells.
const HEAD: usize = 16;

/// Bytes of a cell's entry: its position, the number of its owners, its owner.
const ENTRY: usize = 12;

/// Tokens of the short prompt: they take a slow machine two or three seconds.
const N_TOKENS: usize = 250;

/// The saved state of the positions `0..N_TOKENS` of one sequence.
pub(crate) struct Stretch {
    pub(crate) flash: Flash,
    magic: [u8; 4],
    /// The data after the cells' entries, in parts.
    parts: Vec<StatePart>,
}

/// A part of a state.
enum StatePart {
    /// Independent of the number of cells.
    Fixed(Vec<u8>),
    /// A fixed number of bytes per cell, for consecutive cells.
    PerCell(Vec<u8>),
}

impl Stretch {
    /// Computes the state.
    ///
    /// # Errors
    /// A message, if llama.cpp fails, or if the state does not belong to one plain cache.
    pub(crate) fn compute(model: &BareModel, flash: Flash, threads: Threads, prompt: &[i32]) -> Result<Self, String> {
        let mut context = BareContext::new(model, &Setup::unified(flash, 1, N_TOKENS), threads)?;
        context.time_prefill(&prompt[..N_TOKENS], 0..N_TOKENS)?;
        let bytes = context.save()?;
        Self::read(&bytes, flash).ok_or_else(|| "the saved state is not that of one plain cache".to_owned())
    }

    /// Splits a saved state. Returns `None` if its layout is unexpected.
    fn read(bytes: &[u8], flash: Flash) -> Option<Self> {
        let mut reader = ByteReader { bytes, at: 0 };
        let magic = reader.take(4)?.try_into().ok()?;
        reader.take(4)?;
        let (n_streams, n_cells) = (reader.number()?, reader.number()?);
        let entries = reader.take(N_TOKENS * ENTRY)?;
        let is_counted = (0..).zip(entries.chunks_exact(ENTRY)).all(|(n, entry): (u32, _)| entry[..4] == n.to_le_bytes());
        let (start, in_columns, n_layers) = (reader.at, reader.number()?, reader.number()?);
        let expected = (1, N_TOKENS, usize::from(flash == Flash::Off), true);
        if (n_streams, n_cells, in_columns, is_counted) != expected {
            return None;
        }
        // Two numbers describe the rotation of K and V.
        reader.take(8)?;
        let mut parts = vec![StatePart::Fixed(bytes[start..reader.at].to_vec())];
        for layer in 0..2 * n_layers {
            let start = reader.at;
            // Type of the numbers.
            reader.take(4)?;
            let is_columns = in_columns == 1 && layer >= n_layers;
            let (n_each, n_columns) = if is_columns { (reader.number()?, reader.number()?) } else { (reader.long()?, 1) };
            parts.push(StatePart::Fixed(bytes[start..reader.at].to_vec()));
            for _ in 0..n_columns {
                parts.push(StatePart::PerCell(reader.take(N_TOKENS * n_each)?.to_vec()));
            }
        }
        (reader.at == bytes.len()).then_some(Self { flash, magic, parts })
    }

    /// Returns the state of `n_tokens` cells, in the format of a context with `n_streams` streams.
    pub(crate) fn state(&self, n_tokens: usize, n_streams: u32) -> Vec<u8> {
        let number = |n: usize| u32::try_from(n).expect("a bench's prompts are short").to_le_bytes();
        let mut bytes = Vec::with_capacity(HEAD + n_tokens * ENTRY + self.n_bytes(n_tokens) + 4 * n_streams as usize);
        bytes.extend(self.magic);
        bytes.extend(number(0));
        bytes.extend(n_streams.to_le_bytes());
        bytes.extend(number(n_tokens));
        for position in 0..n_tokens {
            bytes.extend([number(position), number(1), number(0)].concat());
        }
        for part in &self.parts {
            match part {
                StatePart::Fixed(fixed) => bytes.extend(fixed),
                StatePart::PerCell(cells) => {
                    let mut n_left = cells.len() / N_TOKENS * n_tokens;
                    while n_left > 0 {
                        let n = n_left.min(cells.len());
                        bytes.extend(&cells[..n]);
                        n_left -= n;
                    }
                }
            }
        }
        // One stream is written; the others have no cells.
        (1..n_streams).for_each(|_| bytes.extend(number(0)));
        bytes
    }

    /// Returns the saved state of a prompt of `n_tokens` tokens, in the engine's format.
    pub(crate) fn runs(&self, n_tokens: usize) -> Vec<SavedRun> {
        let end = u32::try_from(n_tokens).expect("a bench's prompts are short");
        vec![SavedRun { range: 0..end, bytes: Arc::from(self.state(n_tokens, 1)) }]
    }

    fn n_bytes(&self, n_tokens: usize) -> usize {
        let n_bytes = |part: &StatePart| match part {
            StatePart::Fixed(fixed) => fixed.len(),
            StatePart::PerCell(cells) => cells.len() / N_TOKENS * n_tokens,
        };
        self.parts.iter().map(n_bytes).sum()
    }
}

/// Reads a slice from front to back; returns `None` at its end.
struct ByteReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> ByteReader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(n)?)?;
        self.at += n;
        Some(taken)
    }

    fn number(&mut self) -> Option<usize> {
        usize::try_from(u32::from_le_bytes(self.take(4)?.try_into().ok()?)).ok()
    }

    fn long(&mut self) -> Option<usize> {
        usize::try_from(u64::from_le_bytes(self.take(8)?.try_into().ok()?)).ok()
    }
}
