//! The thread that encodes chunks, one after the other, and its cache of the most recent embeddings.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::llama::host::niceness;
use crate::llama::media::chunk::{ChunkState, MediaChunk};
use crate::llama::media::mtmd::{RawChunk, RawProjector};
use crate::lock::lock;
use crate::request::Token;

/// Limit of the embeddings cached for later prompts, in bytes.
const MAX_KEPT_BYTES: u64 = 256 << 20;

const NICENESS: i32 = 5;

/// The encoder as its projector and the chunks see it. The thread ends when all handles are dropped.
#[derive(Clone)]
pub(super) struct EncoderHandle {
    state: Arc<Mutex<EncoderState>>,
    queue: Sender<Weak<MediaChunk>>,
    pub(super) n_embd: usize,
}

#[derive(Default)]
pub(super) struct EncoderState {
    pub(super) cache: EmbeddingCache,
    pub(super) n_encoded: u64,
    pub(super) n_reused: u64,
    pub(super) encode_time: Duration,
    pub(super) n_loaded_bytes: u64,
    pub(super) n_waiting_bytes: u64,
}

impl EncoderHandle {
    pub(super) fn start(projector: Arc<RawProjector>, n_embd: usize) -> io::Result<Self> {
        let state = Arc::<Mutex<EncoderState>>::default();
        let (queue, receiver) = mpsc::channel();
        let encoder = Encoder { projector, state: Arc::clone(&state), n_embd };
        thread::Builder::new().name("weft-media".into()).spawn(move || encoder.run(&receiver))?;
        Ok(Self { state, queue, n_embd })
    }

    /// May be called while a chunk's state is locked, which the encoder never locks while it holds this lock.
    pub(super) fn state(&self) -> MutexGuard<'_, EncoderState> {
        lock(&self.state)
    }

    /// Returns false if the encoder's thread has ended.
    pub(super) fn queue(&self, chunk: Weak<MediaChunk>) -> bool {
        self.queue.send(chunk).is_ok()
    }
}

impl EncoderState {
    pub(super) fn reuse(&mut self, id: Token) -> Option<Arc<[f32]>> {
        let embeddings = self.cache.get(id)?;
        self.n_reused += 1;
        Some(embeddings)
    }
}

struct Encoder {
    projector: Arc<RawProjector>,
    state: Arc<Mutex<EncoderState>>,
    n_embd: usize,
}

impl Encoder {
    fn run(&self, queue: &Receiver<Weak<MediaChunk>>) {
        niceness::compute(NICENESS);
        for chunk in queue {
            let Some(chunk) = chunk.upgrade() else { continue };
            let raw = match &*lock(&chunk.state) {
                ChunkState::Queued(raw) => Arc::clone(raw),
                _ => continue,
            };
            let reused = lock(&self.state).reuse(chunk.first_id);
            let next = match reused.map_or_else(|| self.encode(&chunk, &raw), Ok) {
                Ok(embeddings) => chunk.finish(embeddings),
                Err(reason) => ChunkState::Failed(raw, reason),
            };
            *lock(&chunk.state) = next;
        }
    }

    fn encode(&self, chunk: &MediaChunk, raw: &RawChunk) -> Result<Arc<[f32]>, String> {
        let started = Instant::now();
        let embeddings = self.projector.encode(raw, self.n_embd * chunk.shape.n_tokens as usize);
        let embeddings = embeddings.map_err(|reason| format!("cannot encode the medium: {reason}"))?;
        let mut state = lock(&self.state);
        state.encode_time += started.elapsed();
        state.n_encoded += 1;
        state.cache.put(chunk.first_id, Arc::clone(&embeddings));
        Ok(embeddings)
    }
}

#[derive(Debug, Default)]
pub(super) struct EmbeddingCache {
    entries: VecDeque<(Token, Arc<[f32]>)>,
    pub(super) n_bytes: u64,
}

impl EmbeddingCache {
    fn get(&mut self, id: Token) -> Option<Arc<[f32]>> {
        let embeddings = self.remove(id)?;
        self.put(id, Arc::clone(&embeddings));
        Some(embeddings)
    }

    fn put(&mut self, id: Token, embeddings: Arc<[f32]>) {
        self.remove(id);
        self.n_bytes += size_of_val(&*embeddings) as u64;
        self.entries.push_back((id, embeddings));
        while self.n_bytes > MAX_KEPT_BYTES {
            self.remove(self.entries[0].0);
        }
    }

    fn remove(&mut self, id: Token) -> Option<Arc<[f32]>> {
        let index = self.entries.iter().position(|(other, _)| *other == id)?;
        let (_, embeddings) = self.entries.remove(index)?;
        self.n_bytes -= size_of_val(&*embeddings) as u64;
        Some(embeddings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedding_cache_evicts_the_least_recently_used_entries() {
        let mut cache = EmbeddingCache::default();
        let quarter = usize::try_from(MAX_KEPT_BYTES / 4 / 4).expect("some millions");
        let embeddings: Arc<[f32]> = vec![0.0; quarter].into();
        for id in [-1, -2, -3, -4] {
            cache.put(id, Arc::clone(&embeddings));
        }
        assert!(cache.get(-1).is_some());
        cache.put(-5, Arc::clone(&embeddings));
        cache.put(-5, Arc::clone(&embeddings));
        let is_cached = [-1, -2, -3, -4, -5].map(|id| cache.get(id).is_some());
        assert_eq!((is_cached, cache.n_bytes), ([true, false, true, true, true], MAX_KEPT_BYTES));
        assert_eq!(cache.entries.len(), 4);
    }
}
