//! Who decides, and when: the engine's handle, and behind it the worker thread that owns the runner.

mod admission;
mod job;
pub mod runner;
pub mod scheduler;
mod sequence;
mod stats;
mod stream;
mod text;
mod worker;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

pub use stats::{RunningStats, SlotStats, Stats};
pub use stream::{Bell, Completions, MAX_EVENTS_BEHIND, Ready};

use crate::config::Limits;
use crate::error::{Error, Result};
use crate::request::Request;
use job::Job;
use runner::Runner;
use worker::{Command, Worker};

/// A handle on the worker thread. Clones share it; the last one to drop ends it, and every open stream with [`Error::Stopped`].
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    limits: Limits,
    n_vocab: usize,
    /// Unbounded, but holds no more than [`Limits::max_queue`] requests, because `n_waiting` counts them.
    commands: mpsc::Sender<Command>,
    published: Arc<Published>,
    worker: Mutex<Option<JoinHandle<()>>>,
    /// A forked child has no worker thread that could be waited for.
    process_id: u32,
}

/// What the worker lets others see.
#[derive(Default)]
struct Published {
    stats: Mutex<Stats>,
    /// Requests that were submitted and have not been in a slot.
    n_waiting: AtomicUsize,
}

impl Engine {
    /// Starts the worker thread, which builds its runner by `build` and then serves requests.
    ///
    /// # Errors
    /// What `build` answers; [`Error::Stopped`] if the thread could not be started or died in `build`.
    pub fn start<R, F>(limits: Limits, build: F) -> Result<Self>
    where
        R: Runner,
        F: FnOnce() -> Result<R> + Send + 'static,
    {
        let (commands, received) = mpsc::channel();
        let (tell, told) = mpsc::sync_channel(1);
        let published = Arc::new(Published::default());
        let worker = {
            let published = Arc::clone(&published);
            thread::Builder::new().name("weft-worker".into()).spawn(move || match build() {
                Ok(runner) => {
                    let n_vocab = runner.n_vocab();
                    let worker = Worker::new(runner, limits, received, published);
                    if tell.send(Ok(n_vocab)).is_ok() {
                        worker.run();
                    }
                }
                // Whoever started the engine may have gone; then nobody is left to tell.
                Err(error) => drop(tell.send(Err(error))),
            })
        };
        let worker = worker.map_err(|_| Error::Stopped)?;
        let n_vocab = told.recv().map_err(|_| Error::Stopped)??;
        let worker = Mutex::new(Some(worker));
        Ok(Self { inner: Arc::new(Inner { limits, n_vocab, commands, published, worker, process_id: std::process::id() }) })
    }

    /// The numbers that were settled when the model was loaded.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Queues `request` and returns its stream at once. `bell` is rung whenever the stream has something new.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], [`Error::ContextOverflow`] for a prompt of `n_ctx_slot` tokens or more, [`Error::QueueFull`],
    /// [`Error::Stopped`].
    pub fn submit(&self, request: Request, bell: Option<Arc<dyn Bell>>) -> Result<Completions> {
        let Inner { limits, n_vocab, commands, published, .. } = &*self.inner;
        request.validate(*n_vocab)?;
        let (n_prompt, n_ctx) = (request.prompt.n_tokens(), limits.n_ctx_slot as usize);
        if n_prompt >= n_ctx {
            return Err(Error::ContextOverflow { n_prompt, n_ctx });
        }
        let max_queue = limits.max_queue as usize;
        let one_more = |n_waiting| (n_waiting < max_queue).then_some(n_waiting + 1);
        published
            .n_waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)
            .map_err(|n_waiting| Error::QueueFull { n_waiting })?;
        let (sender, completions) = stream::stream(request.n, bell);
        commands.send(Command::Submit(Box::new(Job::new(request, sender)))).map_err(|_| Error::Stopped)?;
        Ok(completions)
    }

    /// What the engine is doing, as of its last step.
    ///
    /// # Panics
    /// Never: no code that holds the lock can.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.inner.published.stats.lock().expect("no code that holds the stats can panic").clone();
        stats.n_waiting = self.inner.published.n_waiting.load(Ordering::Acquire);
        stats
    }

    /// Ends the worker and waits for it. Every open stream ends with [`Error::Stopped`]; later requests are refused with it.
    pub fn stop(&self) {
        self.inner.stop();
    }
}

impl Inner {
    fn stop(&self) {
        if std::process::id() != self.process_id {
            return;
        }
        let worker = self.worker.lock().expect("no code that holds the handle can panic").take();
        // The worker may have died already: then there is nobody to tell, and its streams have ended.
        drop(self.commands.send(Command::Stop));
        if let Some(worker) = worker {
            drop(worker.join());
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
