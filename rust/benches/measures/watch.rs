//! Reads the streams of one engine as events arrive, and records the times.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use weft::engine::{Completions, Engine, ReadyEvents, WakeHandle};
use weft::request::{Event, Finished, Request, Token};

/// One branch of a request.
#[derive(Debug, Default)]
pub(crate) struct Branch {
    /// Generated tokens.
    pub(crate) tokens: Vec<Token>,
    /// Time at which each token could be read.
    pub(crate) times: Vec<Instant>,
    pub(crate) end: Option<Finished>,
}

/// A submitted request.
pub(crate) struct Stream {
    completions: Completions,
    pub(crate) submitted: Instant,
    pub(crate) branches: Vec<Branch>,
    has_ended: bool,
}

impl Stream {
    /// Returns the number of tokens of the branch that has the fewest.
    pub(crate) fn n_tokens(&self) -> usize {
        self.branches.iter().map(|branch| branch.times.len()).min().unwrap_or(0)
    }

    /// Returns the number of tokens of all branches.
    #[allow(dead_code, reason = "the bench of loads asks for it")]
    pub(crate) fn n_all_tokens(&self) -> usize {
        self.branches.iter().map(|branch| branch.times.len()).sum()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }
}

/// Wakes the reader, which sleeps until the worker publishes events: a spinning reader would take a core from the engine.
#[derive(Default)]
struct ReaderWaker {
    is_woken: Mutex<bool>,
    condition: Condvar,
}

impl WakeHandle for ReaderWaker {
    fn wake(&self) {
        *self.is_woken.lock().expect("no code that holds the flag can panic") = true;
        self.condition.notify_one();
    }
}

impl ReaderWaker {
    fn wait(&self) {
        let mut is_woken = self.is_woken.lock().expect("no code that holds the flag can panic");
        while !*is_woken {
            is_woken = self.condition.wait(is_woken).expect("no code that holds the flag can panic");
        }
        *is_woken = false;
    }
}

/// Reads all streams, on the calling thread.
pub(crate) struct Watch {
    engine: Engine,
    waker: Arc<ReaderWaker>,
    /// In order of submission.
    pub(crate) streams: Vec<Stream>,
    /// Maximum number of used cells after any step that yielded a token.
    pub(crate) peak_cells: usize,
}

impl Watch {
    pub(crate) fn new(engine: &Engine) -> Self {
        Self { engine: engine.clone(), waker: Arc::default(), streams: Vec::new(), peak_cells: 0 }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// A message, if it is rejected.
    pub(crate) fn submit(&mut self, request: Request) -> Result<(), String> {
        let branches = (0..request.n).map(|_| Branch::default()).collect();
        let submitted = Instant::now();
        let wake_handle: Arc<dyn WakeHandle> = Arc::clone(&self.waker) as Arc<dyn WakeHandle>;
        let completions = self.engine.submit(request, Some(wake_handle)).map_err(|error| error.to_string())?;
        self.streams.push(Stream { completions, submitted, branches, has_ended: false });
        Ok(())
    }

    /// Reads until `is_enough` returns true; it is checked after every wake-up.
    ///
    /// # Errors
    /// A message, if a stream ends with an error, or if all have ended too early.
    pub(crate) fn read_until(&mut self, is_enough: impl Fn(&[Stream]) -> bool) -> Result<(), String> {
        loop {
            self.read()?;
            if is_enough(&self.streams) {
                return Ok(());
            }
            if self.streams.iter().all(|stream| stream.has_ended) {
                return Err("every stream ended too early".into());
            }
            self.waker.wait();
        }
    }

    /// Reads until every stream has ended.
    ///
    /// # Errors
    /// A message, if a stream ends with an error.
    pub(crate) fn read_all(&mut self) -> Result<(), String> {
        self.read_until(|streams| streams.iter().all(Stream::has_ended))
    }

    /// Reads all available events.
    fn read(&mut self) -> Result<(), String> {
        let now = Instant::now();
        for stream in self.streams.iter_mut().filter(|stream| !stream.has_ended) {
            loop {
                match stream.completions.try_events(usize::MAX).map_err(|error| error.to_string())? {
                    ReadyEvents::Pending => break,
                    ReadyEvents::Ended => {
                        stream.has_ended = true;
                        break;
                    }
                    ReadyEvents::Events(events) => events.into_iter().for_each(|event| match event {
                        Event::Token(token) => {
                            let branch = &mut stream.branches[token.index as usize];
                            branch.tokens.push(token.token);
                            branch.times.push(now);
                        }
                        Event::Finished(end) => {
                            let index = end.index as usize;
                            stream.branches[index].end = Some(end);
                        }
                        Event::Progress(_) | Event::PromptLogprobs(_) => {}
                    }),
                }
            }
        }
        self.peak_cells = self.peak_cells.max(self.engine.stats().n_cells_used);
        Ok(())
    }
}
