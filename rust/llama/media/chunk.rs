//! A part of an image or of audio, and the state of its embeddings.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use crate::llama::media::encoder::EncoderHandle;
use crate::llama::media::mtmd::{ChunkShape, Grid, RawChunk};
use crate::lock::lock;
use crate::request::{Encoding, Medium, Token};

pub(super) struct MediaChunk {
    own: Weak<Self>,
    pub(super) first_id: Token,
    pub(super) shape: ChunkShape,
    /// Bytes of the embeddings, and of the input, which is kept until they exist.
    n_bytes: u64,
    n_raw_bytes: u64,
    pub(super) state: Mutex<ChunkState>,
    encoder: EncoderHandle,
}

pub(super) enum ChunkState {
    Idle(Arc<RawChunk>),
    Queued(Arc<RawChunk>),
    Ready(Arc<[f32]>),
    /// The next call of `encoding` returns the reason and permits another attempt.
    Failed(Arc<RawChunk>, String),
}

impl MediaChunk {
    pub(super) fn new(
        raw: RawChunk,
        shape: ChunkShape,
        first_id: Token,
        n_raw_bytes_each: u64,
        encoder: EncoderHandle,
    ) -> Arc<Self> {
        let n_raw_bytes = u64::from(shape.n_tokens) * n_raw_bytes_each;
        let n_bytes = u64::from(shape.n_tokens) * encoder.n_embd as u64 * 4 + n_raw_bytes;
        {
            let mut encoder = encoder.state();
            encoder.n_loaded_bytes += n_bytes;
            encoder.n_waiting_bytes += n_bytes;
        }
        let state = Mutex::new(ChunkState::Idle(Arc::new(raw)));
        Arc::new_cyclic(|own| Self { own: own.clone(), first_id, shape, n_bytes, n_raw_bytes, state, encoder })
    }

    pub(super) fn finish(&self, embeddings: Arc<[f32]>) -> ChunkState {
        let mut encoder = self.encoder.state();
        encoder.n_loaded_bytes -= self.n_raw_bytes;
        encoder.n_waiting_bytes -= self.n_bytes;
        ChunkState::Ready(embeddings)
    }
}

impl fmt::Debug for MediaChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MediaChunk")
            .field("first_id", &self.first_id)
            .field("n_tokens", &self.shape.n_tokens)
            .finish_non_exhaustive()
    }
}

impl Drop for MediaChunk {
    fn drop(&mut self) {
        let (n_bytes, is_ready) = (self.n_bytes(), self.embeddings().is_some());
        let mut encoder = self.encoder.state();
        encoder.n_loaded_bytes -= n_bytes;
        encoder.n_waiting_bytes -= if is_ready { 0 } else { n_bytes };
    }
}

impl Medium for MediaChunk {
    fn first_id(&self) -> Token {
        self.first_id
    }

    fn n_tokens(&self) -> u32 {
        self.shape.n_tokens
    }

    fn n_positions(&self) -> u32 {
        self.shape.n_positions
    }

    fn has_positions(&self) -> bool {
        self.shape.grid.is_some()
    }

    fn positions(&self, first: u32) -> Option<Vec<[u32; 4]>> {
        let Grid { positions, steps } = self.shape.grid.as_ref()?;
        let shifted = |position: &[u32; 4]| std::array::from_fn(|dimension| position[dimension] + steps[dimension] * first);
        Some(positions.iter().map(shifted).collect())
    }

    fn sees_ahead(&self) -> bool {
        self.shape.sees_ahead
    }

    fn n_bytes(&self) -> u64 {
        self.n_bytes - if self.embeddings().is_some() { self.n_raw_bytes } else { 0 }
    }

    fn encoding(&self) -> Encoding {
        let mut state = lock(&self.state);
        let (next, encoding) = match &*state {
            ChunkState::Ready(_) => return Encoding::Ready,
            ChunkState::Queued(_) => return Encoding::Pending,
            ChunkState::Failed(raw, reason) => (ChunkState::Idle(Arc::clone(raw)), Encoding::Failed(reason.clone())),
            ChunkState::Idle(raw) => {
                let reused = self.encoder.state().reuse(self.first_id);
                if let Some(embeddings) = reused {
                    (self.finish(embeddings), Encoding::Ready)
                } else if self.encoder.queue(self.own.clone()) {
                    (ChunkState::Queued(Arc::clone(raw)), Encoding::Pending)
                } else {
                    let reason = "the encoder thread for images and audio has ended; restart the process".to_owned();
                    return Encoding::Failed(reason);
                }
            }
        };
        *state = next;
        encoding
    }

    fn embeddings(&self) -> Option<Arc<[f32]>> {
        match &*lock(&self.state) {
            ChunkState::Ready(embeddings) => Some(Arc::clone(embeddings)),
            ChunkState::Idle(_) | ChunkState::Queued(_) | ChunkState::Failed(..) => None,
        }
    }
}
