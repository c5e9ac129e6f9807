//! The thread that computes vectors. It and its context are made for the first request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::embedding::queue::{Batch, BatchText, Queue};
use crate::embedding::{EmbedderShape, Embeddings, EncodedBatch, Encoder, Normalization};
use crate::error::{Error, Result};
use crate::request::Prompt;

/// How often is looked whether a picture or a sound has become vectors, which takes tens of milliseconds and more.
const LOOK: Duration = Duration::from_millis(2);

/// Makes the context, on the worker's thread.
type EncoderFactory = Box<dyn FnMut() -> Result<Box<dyn Encoder>> + Send>;

/// Called on the worker's thread when a request is answered; it must not wait.
pub type OnDone = Arc<dyn Fn() + Send + Sync>;

/// What was computed since the start, and what it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Texts whose vectors were computed.
    pub n_texts: u64,
    /// Their tokens.
    pub n_tokens: u64,
    /// Tokens that were computed for them; fewer, where texts begin alike.
    pub n_computed: u64,
    /// Batches.
    pub n_batches: u64,
    /// Tokens that wait.
    pub n_waiting: usize,
    /// Bytes that the context takes beside the weights; 0 until it is made.
    pub n_bytes: u64,
}

/// The handle of the worker; the drop ends it.
pub struct Embedder {
    shared: Arc<Shared>,
    thread: Mutex<Thread>,
    n_submitted: AtomicU64,
    on_done: OnDone,
}

enum Thread {
    /// Nothing was asked for yet.
    Unborn(EncoderFactory),
    Running(JoinHandle<()>),
    Ended,
}

struct Shared {
    shape: EmbedderShape,
    state: Mutex<State>,
    /// There is something to compute, or the worker is to end.
    wake: Condvar,
}

struct State {
    queue: Queue,
    is_stopped: bool,
    stats: Stats,
    /// Answers that were not fetched yet, and who waits for the others.
    answers: HashMap<u64, Option<Result<Embeddings>>>,
}

impl State {
    fn answer(&mut self, id: u64, answer: Result<Embeddings>) {
        if let Some(place) = self.answers.get_mut(&id) {
            *place = Some(answer);
        }
    }

    fn fail_all(&mut self, error: &Error) {
        for id in self.queue.clear() {
            self.answer(id, Err(error.clone()));
        }
    }
}

impl Shared {
    /// Nothing panics while it holds the lock but for a bug, and then the queue is as good as it was.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Embedder {
    /// A worker for contexts of this shape, which `make` makes on its thread. `on_done` is called whenever requests are answered.
    pub fn new(
        shape: EmbedderShape,
        make: impl FnMut() -> Result<Box<dyn Encoder>> + Send + 'static,
        on_done: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let state = State { queue: Queue::new(shape), is_stopped: false, stats: Stats::default(), answers: HashMap::new() };
        let shared = Shared { shape, state: Mutex::new(state), wake: Condvar::new() };
        let thread = Mutex::new(Thread::Unborn(Box::new(make)));
        Self { shared: Arc::new(shared), thread, n_submitted: AtomicU64::new(0), on_done: Arc::new(on_done) }
    }

    /// What the context is, or will be, made for.
    #[must_use]
    pub fn shape(&self) -> &EmbedderShape {
        &self.shared.shape
    }

    /// Queues texts; their vectors are cut to the first `dimensions` numbers and then scaled. Returns at once.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for texts that cannot be computed, [`Error::QueueFull`] where too much waits, [`Error::Stopped`]
    /// once the worker was stopped.
    pub fn submit(&self, texts: Vec<Prompt>, how: Normalization, dimensions: Option<usize>) -> Result<PendingEmbeddings> {
        let id = self.n_submitted.fetch_add(1, Ordering::Relaxed);
        {
            let mut state = self.shared.lock();
            if state.is_stopped {
                return Err(Error::Stopped);
            }
            state.queue.push(id, texts, how, dimensions)?;
            state.answers.insert(id, None);
        }
        // From here on it is taken out again if the thread cannot be started.
        let pending = PendingEmbeddings { shared: Arc::clone(&self.shared), id };
        self.start()?;
        self.shared.wake.notify_one();
        Ok(pending)
    }

    fn start(&self) -> Result<()> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *thread, Thread::Ended) {
            Thread::Unborn(make) => {
                let (shared, on_done) = (Arc::clone(&self.shared), Arc::clone(&self.on_done));
                let run = move || Worker { shared, make, on_done, encoder: None }.run();
                let started = thread::Builder::new().name("weft-vectors".into()).spawn(run);
                *thread = Thread::Running(started.map_err(|_| Error::Stopped)?);
            }
            other => *thread = other,
        }
        Ok(())
    }

    /// What was computed, as of now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let state = self.shared.lock();
        Stats { n_waiting: state.queue.n_waiting(), ..state.stats }
    }

    /// Ends the worker and waits for the batch that is running; every request that waits ends with [`Error::Stopped`].
    pub fn stop(&self) {
        self.shared.lock().is_stopped = true;
        self.shared.wake.notify_one();
        let ended = std::mem::replace(&mut *self.thread.lock().unwrap_or_else(PoisonError::into_inner), Thread::Ended);
        if let Thread::Running(thread) = ended {
            // A worker that has panicked has told whoever waits for it.
            let _ = thread.join();
        }
    }
}

impl Drop for Embedder {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The vectors of one request, once they are there. Dropped before, they are not computed.
pub struct PendingEmbeddings {
    shared: Arc<Shared>,
    id: u64,
}

impl PendingEmbeddings {
    /// Whether [`PendingEmbeddings::take`] has an answer.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.shared.lock().answers.get(&self.id).is_some_and(Option::is_some)
    }

    /// The answer, once; `None` as long as there is none.
    #[must_use]
    pub fn take(&self) -> Option<Result<Embeddings>> {
        self.shared.lock().answers.get_mut(&self.id)?.take()
    }
}

impl Drop for PendingEmbeddings {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.queue.remove(self.id);
        state.answers.remove(&self.id);
    }
}

/// What lives on the thread.
struct Worker {
    shared: Arc<Shared>,
    make: EncoderFactory,
    on_done: OnDone,
    encoder: Option<Box<dyn Encoder>>,
}

impl Worker {
    fn run(mut self) {
        while let Some((items, batch)) = self.wait() {
            let (n_texts, n_tokens) = match &batch {
                Batch::Texts(texts) => (texts.len(), texts.iter().map(Vec::len).sum()),
                Batch::Mixed(prompt) => (1, prompt.n_tokens()),
            };
            match self.compute(&batch) {
                Ok(encoded) => self.tell(|state| {
                    state.stats.n_texts += n_texts as u64;
                    state.stats.n_tokens += n_tokens as u64;
                    state.stats.n_computed += encoded.n_computed as u64;
                    state.stats.n_batches += 1;
                    for (id, vectors) in state.queue.done(&items, encoded.vectors) {
                        state.answer(id, Ok(vectors));
                    }
                }),
                Err(error) => self.tell(|state| {
                    for id in state.queue.fail(&items) {
                        state.answer(id, Err(error.clone()));
                    }
                }),
            }
        }
    }

    /// The next batch; `None` when the worker is to end.
    fn wait(&self) -> Option<(Vec<BatchText>, Batch)> {
        let mut state = self.shared.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            let failed = state.queue.look();
            if !failed.is_empty() {
                for (id, error) in failed {
                    state.answer(id, Err(error));
                }
                drop(state);
                (self.on_done)();
                state = self.shared.lock();
                continue;
            }
            if let Some(next) = state.queue.next() {
                return Some(next);
            }
            let wake = &self.shared.wake;
            state = if state.queue.waits_for_media() {
                wake.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0
            } else {
                wake.wait(state).unwrap_or_else(PoisonError::into_inner)
            };
        }
    }

    fn compute(&mut self, batch: &Batch) -> Result<EncodedBatch> {
        if self.encoder.is_none() {
            self.encoder = Some((self.make)()?);
        }
        let encoder = self.encoder.as_mut().expect("it was just made");
        let encoded = match batch {
            Batch::Texts(texts) => encoder.encode(texts),
            Batch::Mixed(prompt) => encoder.encode_mixed(prompt),
        };
        let encoded = encoded.map_err(|reason| Error::Decode { reason });
        // The memory of a context grows with the largest batch so far.
        self.shared.lock().stats.n_bytes = encoder.n_bytes();
        encoded
    }

    fn tell(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.lock());
        (self.on_done)();
    }
}

impl Drop for Worker {
    /// However the thread ends, nobody waits for it in vain.
    fn drop(&mut self) {
        self.tell(|state| {
            state.is_stopped = true;
            state.fail_all(&Error::Stopped);
            for answer in state.answers.values_mut() {
                answer.get_or_insert(Err(Error::Stopped));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Pooling;
    use crate::request::Token;
    use std::sync::mpsc;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A text's vector is its first token and its length.
    struct Lengths;

    impl Encoder for Lengths {
        fn encode(&mut self, texts: &[Vec<Token>]) -> std::result::Result<EncodedBatch, String> {
            if texts.iter().any(|text| text[0] == 66) {
                return Err("no vector for this one".to_owned());
            }
            let vectors = texts
                .iter()
                .map(|text| vec![f32::from(u8::try_from(text[0]).unwrap()), f32::from(u8::try_from(text.len()).unwrap())]);
            Ok(EncodedBatch { vectors: vectors.collect(), n_computed: texts.iter().map(Vec::len).sum() })
        }

        fn encode_mixed(&mut self, prompt: &Prompt) -> std::result::Result<EncodedBatch, String> {
            Err(format!("{prompt:?} is no text of tokens"))
        }

        fn n_bytes(&self) -> u64 {
            12
        }
    }

    fn embedder(make: impl FnMut() -> Result<Box<dyn Encoder>> + Send + 'static) -> (Embedder, mpsc::Receiver<()>) {
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
        let (ring, rung) = mpsc::channel();
        (Embedder::new(shape, make, move || ring.send(()).unwrap_or(())), rung)
    }

    fn answer(pending: &PendingEmbeddings, rung: &mpsc::Receiver<()>) -> Result<Embeddings> {
        loop {
            if let Some(answer) = pending.take() {
                return answer;
            }
            rung.recv_timeout(PATIENCE).expect("it is answered");
        }
    }

    fn submit(embedder: &Embedder, texts: &[&[Token]]) -> PendingEmbeddings {
        let texts = texts.iter().map(|text| Prompt::from_tokens(text.to_vec())).collect();
        embedder.submit(texts, Normalization::None, None).expect("it is queued")
    }

    #[test]
    fn nothing_is_made_until_it_is_needed_and_all_is_counted() {
        let (embedder, rung) = embedder(|| Ok(Box::new(Lengths)));
        assert_eq!(embedder.stats(), Stats::default());
        let pending = submit(&embedder, &[&[5, 6, 7], &[8]]);
        assert_eq!(answer(&pending, &rung).expect("it can be computed").numbers, [5.0, 3.0, 8.0, 1.0]);
        let stats = embedder.stats();
        assert_eq!((stats.n_texts, stats.n_tokens, stats.n_computed, stats.n_bytes), (2, 4, 4, 12));
    }

    #[test]
    fn what_fails_ends_its_own_requests_only() {
        let (embedder, rung) = embedder(|| Ok(Box::new(Lengths)));
        let bad = submit(&embedder, &[&[66]]);
        assert_eq!(answer(&bad, &rung), Err(Error::Decode { reason: "no vector for this one".to_owned() }));
        let good = submit(&embedder, &[&[1]]);
        assert!(answer(&good, &rung).is_ok());
    }

    #[test]
    fn a_context_that_cannot_be_made_is_tried_again() {
        let mut n = 0;
        let (embedder, rung) = embedder(move || {
            n += 1;
            if n == 1 { Err(Error::Save { reason: "no memory".to_owned() }) } else { Ok(Box::new(Lengths)) }
        });
        let first = submit(&embedder, &[&[1]]);
        assert_eq!(answer(&first, &rung), Err(Error::Save { reason: "no memory".to_owned() }));
        let second = submit(&embedder, &[&[1]]);
        assert!(answer(&second, &rung).is_ok());
    }

    #[test]
    fn what_is_dropped_is_not_computed() {
        // The worker waits in here until the test lets it go on.
        let (go, gate) = mpsc::channel::<()>();
        let (embedder, rung) = embedder(move || {
            gate.recv_timeout(PATIENCE).expect("the test lets it go on");
            Ok(Box::new(Lengths))
        });
        let kept = submit(&embedder, &[&[1]]);
        while embedder.stats().n_waiting > 0 {
            thread::yield_now();
        }
        drop(submit(&embedder, &[&[2, 2], &[2]]));
        assert_eq!(embedder.stats().n_waiting, 0);
        go.send(()).expect("the worker waits for it");
        assert!(answer(&kept, &rung).is_ok());
        let last = submit(&embedder, &[&[3]]);
        assert!(answer(&last, &rung).is_ok());
        assert_eq!(embedder.stats().n_texts, 2);
    }

    #[test]
    fn a_stop_ends_what_waits_and_refuses_what_comes() {
        let (embedder, rung) = embedder(|| panic!("a bug"));
        let pending = submit(&embedder, &[&[1]]);
        assert_eq!(answer(&pending, &rung), Err(Error::Stopped));
        embedder.stop();
        assert!(matches!(embedder.submit(vec![Prompt::from_tokens(vec![1])], Normalization::None, None), Err(Error::Stopped)));
    }
}
