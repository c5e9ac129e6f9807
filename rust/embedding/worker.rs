//! The worker thread for embeddings. The thread and its context are created for the first request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::embedding::queue::{BatchText, EmbeddingBatch, EmbeddingQueue};
use crate::embedding::{EmbedderShape, Embeddings, EncodedBatch, Encoder, Normalization};
use crate::error::{Error, Result};
use crate::lock::{lock, wait};
use crate::request::Prompt;
use crate::worker_thread::WorkerThread;

/// Polling interval while an image or audio is encoded, which takes tens of milliseconds and more.
const MEDIA_POLL_INTERVAL: Duration = Duration::from_millis(2);

type EncoderFactory = Box<dyn FnMut() -> Result<Box<dyn Encoder>> + Send>;

/// Callback for answered requests, called on the worker's thread; must not block.
pub type OnDone = Arc<dyn Fn() + Send + Sync>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EmbedderStats {
    pub n_texts: u64,
    pub n_tokens: u64,
    /// Tokens that were computed; fewer than `n_tokens` if texts have common prefixes.
    pub n_computed: u64,
    pub n_batches: u64,
    pub n_waiting: usize,
    /// Bytes of the context without the weights; 0 until it is created.
    pub n_bytes: u64,
}

pub struct Embedder {
    shared: Arc<SharedEmbedder>,
    /// Creates the encoder. `None` once the thread is started, for the first request, or the worker is stopped.
    create: Mutex<Option<EncoderFactory>>,
    thread: OnceLock<WorkerThread>,
    n_submitted: AtomicU64,
    on_done: OnDone,
}

struct SharedEmbedder {
    shape: EmbedderShape,
    state: Mutex<EmbedderState>,
    wake: Condvar,
}

struct EmbedderState {
    queue: EmbeddingQueue,
    is_stopped: bool,
    stats: EmbedderStats,
}

impl SharedEmbedder {
    fn lock(&self) -> MutexGuard<'_, EmbedderState> {
        lock(&self.state)
    }
}

impl Embedder {
    /// `create` creates the context on the worker's thread, which calls `on_done` whenever requests are answered.
    pub fn new(
        shape: EmbedderShape,
        create: impl FnMut() -> Result<Box<dyn Encoder>> + Send + 'static,
        on_done: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let state = EmbedderState { queue: EmbeddingQueue::new(shape), is_stopped: false, stats: EmbedderStats::default() };
        let shared = SharedEmbedder { shape, state: Mutex::new(state), wake: Condvar::new() };
        Self {
            shared: Arc::new(shared),
            create: Mutex::new(Some(Box::new(create))),
            thread: OnceLock::new(),
            n_submitted: AtomicU64::new(0),
            on_done: Arc::new(on_done),
        }
    }

    pub fn shape(&self) -> &EmbedderShape {
        &self.shared.shape
    }

    /// Queues texts and returns immediately. Their embeddings are truncated to `dimensions` numbers and then normalized.
    pub fn submit(
        &self,
        texts: Vec<Prompt>,
        normalization: Normalization,
        dimensions: Option<usize>,
    ) -> Result<PendingEmbeddings> {
        let id = self.n_submitted.fetch_add(1, Ordering::Relaxed);
        {
            let mut state = self.shared.lock();
            if state.is_stopped {
                return Err(Error::Stopped);
            }
            state.queue.push(id, texts, normalization, dimensions)?;
        }
        // From here on, dropping `pending` removes the request if the thread cannot be started.
        let pending = PendingEmbeddings { shared: Arc::clone(&self.shared), id };
        self.start()?;
        self.shared.wake.notify_one();
        Ok(pending)
    }

    fn start(&self) -> Result<()> {
        let mut create = lock(&self.create);
        if let Some(create) = create.take() {
            let (shared, on_done) = (Arc::clone(&self.shared), Arc::clone(&self.on_done));
            let run = move || EmbeddingWorker { shared, create, on_done, encoder: None }.run();
            let thread = WorkerThread::spawn("weft-embedding", run);
            let thread = thread.inspect_err(|_| self.shared.lock().is_stopped = true)?;
            self.thread.set(thread).expect("`create` is taken once");
        }
        Ok(())
    }

    pub fn stats(&self) -> EmbedderStats {
        let state = self.shared.lock();
        EmbedderStats { n_waiting: state.queue.n_waiting(), ..state.stats }
    }

    /// Stops the worker after the running batch; every waiting request fails with [`Error::Stopped`].
    pub fn stop(&self) {
        self.shared.lock().is_stopped = true;
        self.shared.wake.notify_one();
        drop(lock(&self.create).take());
        if let Some(thread) = self.thread.get() {
            thread.join();
        }
    }
}

impl Drop for Embedder {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The embeddings of one request. Dropping it cancels the request.
pub struct PendingEmbeddings {
    shared: Arc<SharedEmbedder>,
    id: u64,
}

impl PendingEmbeddings {
    pub fn is_ready(&self) -> bool {
        self.shared.lock().queue.is_answered(self.id)
    }

    /// Returns the result once; `None` until the request is answered.
    pub fn take(&self) -> Option<Result<Embeddings>> {
        self.shared.lock().queue.take(self.id)
    }
}

impl Drop for PendingEmbeddings {
    fn drop(&mut self) {
        self.shared.lock().queue.remove(self.id);
    }
}

struct EmbeddingWorker {
    shared: Arc<SharedEmbedder>,
    create: EncoderFactory,
    on_done: OnDone,
    encoder: Option<Box<dyn Encoder>>,
}

impl EmbeddingWorker {
    fn run(mut self) {
        while let Some((items, batch)) = self.wait() {
            let n_tokens = match &batch {
                EmbeddingBatch::Texts(texts) => texts.iter().map(Vec::len).sum(),
                EmbeddingBatch::Mixed(prompt) => prompt.n_tokens(),
            };
            match self.compute(&batch) {
                Ok(encoded) => self.update(|state| {
                    state.stats.n_texts += items.len() as u64;
                    state.stats.n_tokens += n_tokens as u64;
                    state.stats.n_computed += encoded.n_computed as u64;
                    state.stats.n_batches += 1;
                    state.queue.record_batch(&items, encoded.embeddings);
                }),
                Err(error) => self.update(|state| state.queue.fail_batch(&items, &error)),
            }
        }
    }

    fn wait(&self) -> Option<(Vec<BatchText>, EmbeddingBatch)> {
        let mut state = self.shared.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            if state.queue.poll_media() {
                drop(state);
                (self.on_done)();
                state = self.shared.lock();
                continue;
            }
            if let Some(next) = state.queue.next() {
                return Some(next);
            }
            let wake = &self.shared.wake;
            state = if state.queue.is_encoding_media() {
                wake.wait_timeout(state, MEDIA_POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0
            } else {
                wait(wake, state)
            };
        }
    }

    fn compute(&mut self, batch: &EmbeddingBatch) -> Result<EncodedBatch> {
        if self.encoder.is_none() {
            self.encoder = Some((self.create)()?);
        }
        let encoder = self.encoder.as_mut().expect("it was just created");
        let encoded = match batch {
            EmbeddingBatch::Texts(texts) => encoder.encode(texts),
            EmbeddingBatch::Mixed(prompt) => encoder.encode_mixed(prompt),
        };
        let encoded = encoded.map_err(|reason| Error::Decode { reason });
        // The memory of a context grows with its largest batch.
        self.shared.lock().stats.n_bytes = encoder.n_bytes();
        encoded
    }

    fn update(&self, change: impl FnOnce(&mut EmbedderState)) {
        change(&mut self.shared.lock());
        (self.on_done)();
    }
}

impl Drop for EmbeddingWorker {
    fn drop(&mut self) {
        self.update(|state| {
            state.is_stopped = true;
            state.queue.fail_all(&Error::Stopped);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Pooling;
    use crate::request::Token;
    use std::sync::mpsc;

    const DEADLINE: Duration = Duration::from_secs(10);

    /// An encoder whose embedding is a text's first token and its length.
    struct Lengths;

    impl Encoder for Lengths {
        fn encode(&mut self, texts: &[Vec<Token>]) -> std::result::Result<EncodedBatch, String> {
            if texts.iter().any(|text| text[0] == 66) {
                return Err("no vector for this one".to_owned());
            }
            let embeddings = texts
                .iter()
                .map(|text| vec![f32::from(u8::try_from(text[0]).unwrap()), f32::from(u8::try_from(text.len()).unwrap())]);
            Ok(EncodedBatch { embeddings: embeddings.collect(), n_computed: texts.iter().map(Vec::len).sum() })
        }

        fn encode_mixed(&mut self, prompt: &Prompt) -> std::result::Result<EncodedBatch, String> {
            Err(format!("{prompt:?} is not a text"))
        }

        fn n_bytes(&self) -> u64 {
            12
        }
    }

    fn embedder(create: impl FnMut() -> Result<Box<dyn Encoder>> + Send + 'static) -> (Embedder, mpsc::Receiver<()>) {
        let shape = EmbedderShape {
            pooling: Pooling::Mean,
            takes_media: true,
            width: 2,
            n_vocab: 100,
            n_longest: 20,
            n_trained: 20,
            n_batch: 20,
            n_sequences: 4,
        };
        let (done_sender, done) = mpsc::channel();
        (Embedder::new(shape, create, move || done_sender.send(()).unwrap_or(())), done)
    }

    fn answer(pending: &PendingEmbeddings, done: &mpsc::Receiver<()>) -> Result<Embeddings> {
        loop {
            if pending.is_ready() {
                return pending.take().expect("it is ready");
            }
            done.recv_timeout(DEADLINE).expect("it is answered");
        }
    }

    fn submit(embedder: &Embedder, texts: &[&[Token]]) -> PendingEmbeddings {
        let texts = texts.iter().map(|text| Prompt::from_tokens(text.to_vec())).collect();
        embedder.submit(texts, Normalization::None, None).expect("it is queued")
    }

    #[test]
    fn the_context_is_created_on_demand_and_the_metrics_count_all_texts() {
        let (embedder, done) = embedder(|| Ok(Box::new(Lengths)));
        assert_eq!((embedder.stats(), embedder.shape().width), (EmbedderStats::default(), 2));
        let pending = submit(&embedder, &[&[5, 6, 7], &[8]]);
        assert_eq!(answer(&pending, &done).expect("it can be computed").numbers, [5.0, 3.0, 8.0, 1.0]);
        let stats = embedder.stats();
        assert_eq!((stats.n_texts, stats.n_tokens, stats.n_computed, stats.n_bytes), (2, 4, 4, 12));
    }

    #[test]
    fn a_failed_batch_fails_only_its_requests() {
        let (embedder, done) = embedder(|| Ok(Box::new(Lengths)));
        let bad = submit(&embedder, &[&[66]]);
        assert_eq!(answer(&bad, &done), Err(Error::Decode { reason: "no vector for this one".to_owned() }));
        let good = submit(&embedder, &[&[1]]);
        assert!(answer(&good, &done).is_ok());
    }

    #[test]
    fn creating_the_context_is_retried_after_a_failure() {
        let mut n = 0;
        let (embedder, done) = embedder(move || {
            n += 1;
            if n == 1 { Err(Error::Save { reason: "no memory".to_owned() }) } else { Ok(Box::new(Lengths)) }
        });
        let first = submit(&embedder, &[&[1]]);
        assert_eq!(answer(&first, &done), Err(Error::Save { reason: "no memory".to_owned() }));
        let second = submit(&embedder, &[&[1]]);
        assert!(answer(&second, &done).is_ok());
    }

    #[test]
    fn dropped_requests_are_not_computed() {
        // The worker waits here until the test sends to `open_gate`.
        let (open_gate, gate) = mpsc::channel::<()>();
        let (embedder, done) = embedder(move || {
            gate.recv_timeout(DEADLINE).expect("the test opens the gate");
            Ok(Box::new(Lengths))
        });
        let pending = submit(&embedder, &[&[1]]);
        while embedder.stats().n_waiting > 0 {
            std::thread::yield_now();
        }
        drop(submit(&embedder, &[&[2, 2], &[2]]));
        assert_eq!(embedder.stats().n_waiting, 0);
        open_gate.send(()).expect("the worker waits for it");
        assert!(answer(&pending, &done).is_ok());
        let last = submit(&embedder, &[&[3]]);
        assert!(answer(&last, &done).is_ok());
        assert_eq!(embedder.stats().n_texts, 2);
    }

    #[test]
    fn a_stop_fails_waiting_requests_and_refuses_new_ones() {
        let (embedder, done) = embedder(|| panic!("a bug"));
        let pending = submit(&embedder, &[&[1]]);
        assert_eq!(answer(&pending, &done), Err(Error::Stopped));
        embedder.stop();
        assert!(matches!(embedder.submit(vec![Prompt::from_tokens(vec![1])], Normalization::None, None), Err(Error::Stopped)));
    }
}
