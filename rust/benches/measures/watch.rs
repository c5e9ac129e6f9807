//! Reads the streams of one engine as they come, and notes when.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use weft::engine::{Completions, Engine, Ready, WakeHandle};
use weft::request::{Event, Finished, Request, Token};

/// One branch of a request.
#[derive(Debug, Default)]
pub(crate) struct Branch {
    /// What it wrote.
    pub(crate) tokens: Vec<Token>,
    /// When each token could be read.
    pub(crate) times: Vec<Instant>,
    pub(crate) end: Option<Finished>,
}

/// A request that was submitted.
pub(crate) struct Stream {
    completions: Completions,
    pub(crate) submitted: Instant,
    pub(crate) branches: Vec<Branch>,
    has_ended: bool,
}

impl Stream {
    /// Tokens of the branch that has the fewest.
    pub(crate) fn n_tokens(&self) -> usize {
        self.branches.iter().map(|branch| branch.times.len()).min().unwrap_or(0)
    }

    /// Tokens of all branches.
    #[allow(dead_code, reason = "the bench of loads asks for it")]
    pub(crate) fn n_all_tokens(&self) -> usize {
        self.branches.iter().map(|branch| branch.times.len()).sum()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }
}

/// Wakes the reader: it sleeps until the worker has something new, because a reader that spins would take a core from the engine.
#[derive(Default)]
struct Doorbell {
    has_rung: Mutex<bool>,
    rings: Condvar,
}

impl WakeHandle for Doorbell {
    fn wake(&self) {
        *self.has_rung.lock().expect("no code that holds the flag can panic") = true;
        self.rings.notify_one();
    }
}

impl Doorbell {
    fn wait(&self) {
        let mut has_rung = self.has_rung.lock().expect("no code that holds the flag can panic");
        while !*has_rung {
            has_rung = self.rings.wait(has_rung).expect("no code that holds the flag can panic");
        }
        *has_rung = false;
    }
}

/// The reader of all streams: the thread that calls it.
pub(crate) struct Watch {
    engine: Engine,
    bell: Arc<Doorbell>,
    /// In order of submission.
    pub(crate) streams: Vec<Stream>,
    /// Most cells of the pool that were used after any step that yielded a token.
    pub(crate) peak_cells: usize,
}

impl Watch {
    pub(crate) fn new(engine: &Engine) -> Self {
        Self { engine: engine.clone(), bell: Arc::default(), streams: Vec::new(), peak_cells: 0 }
    }

    /// Queues a request.
    ///
    /// # Errors
    /// A message, when it is refused.
    pub(crate) fn submit(&mut self, request: Request) -> Result<(), String> {
        let branches = (0..request.n).map(|_| Branch::default()).collect();
        let submitted = Instant::now();
        let bell: Arc<dyn WakeHandle> = Arc::clone(&self.bell) as Arc<dyn WakeHandle>;
        let completions = self.engine.submit(request, Some(bell)).map_err(|error| error.to_string())?;
        self.streams.push(Stream { completions, submitted, branches, has_ended: false });
        Ok(())
    }

    /// Reads until `is_enough`, which is asked whenever something came.
    ///
    /// # Errors
    /// A message, when a stream ends with an error, or all have ended and it is not enough.
    pub(crate) fn read_until(&mut self, is_enough: impl Fn(&[Stream]) -> bool) -> Result<(), String> {
        loop {
            self.read()?;
            if is_enough(&self.streams) {
                return Ok(());
            }
            if self.streams.iter().all(|stream| stream.has_ended) {
                return Err("every stream ended too early".into());
            }
            self.bell.wait();
        }
    }

    /// Reads until every stream has ended.
    ///
    /// # Errors
    /// A message, when one ends with an error.
    pub(crate) fn read_all(&mut self) -> Result<(), String> {
        self.read_until(|streams| streams.iter().all(Stream::has_ended))
    }

    /// Takes what is there.
    fn read(&mut self) -> Result<(), String> {
        let now = Instant::now();
        for stream in self.streams.iter_mut().filter(|stream| !stream.has_ended) {
            loop {
                match stream.completions.try_events(usize::MAX).map_err(|error| error.to_string())? {
                    Ready::Pending => break,
                    Ready::Ended => {
                        stream.has_ended = true;
                        break;
                    }
                    Ready::Events(events) => events.into_iter().for_each(|event| match event {
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
