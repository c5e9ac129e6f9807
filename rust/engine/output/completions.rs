//! The consumer's end of a stream.

use std::ops::Range;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex};

use crate::engine::features::hooks;
use crate::engine::ids::{BranchIndex, StreamId};
use crate::engine::output::fork::{Fork, ForkTextBoundary};
use crate::engine::output::stream::{Sender, StreamState};
use crate::engine::output::wake_handle::WakeHandle;
use crate::error::{Error, Result};
use crate::lock::{lock, wait};
use crate::request::{Event, Explanation};

#[derive(Debug, PartialEq)]
pub enum ReadyEvents {
    /// Events, in order; at least one.
    Events(Vec<Event>),
    Pending,
    /// Every branch has finished and every event was read.
    Ended,
}

#[derive(Debug)]
pub struct ForkResult {
    pub branches: Range<u32>,
    /// Seed of the first fork.
    pub seed: u32,
    /// Fork position: number of tokens that the branch had sampled.
    pub n_sampled: u32,
    /// Boundary between the text of the branch and the text of the forks.
    pub text_boundary: ForkTextBoundary,
    /// Length of the forks' prompt in tokens: the branch's tokens up to the fork position, without the ones that context shifts
    /// dropped before the fork, plus the appended ones.
    pub n_prompt: usize,
    /// The new stream, for [`ForkDestination::OwnStream`](crate::engine::ForkDestination::OwnStream).
    pub stream: Option<Completions>,
}

/// Pending answer of the worker to a fork command.
pub struct PendingFork {
    /// `None` after [`PendingFork::take`].
    answer: Mutex<Option<PendingAnswer>>,
}

struct PendingAnswer {
    receiver: Receiver<Result<ForkResult>>,
    received: Option<Result<ForkResult>>,
    stream: Option<Completions>,
}

impl PendingAnswer {
    fn into_result(self) -> Result<ForkResult> {
        let forked = self.received.unwrap_or_else(|| self.receiver.recv().unwrap_or(Err(Error::Stopped)))?;
        let stream = self.stream.map(|stream| stream.with_prompt(forked.n_prompt));
        Ok(ForkResult { stream, ..forked })
    }
}

impl PendingFork {
    /// The worker answers without `stream`, which is the new stream of the forks, if any.
    pub(crate) fn new(receiver: Receiver<Result<ForkResult>>, stream: Option<Completions>) -> Self {
        Self { answer: Mutex::new(Some(PendingAnswer { receiver, received: None, stream })) }
    }

    /// Returns true if [`PendingFork::take`] would return a result.
    pub fn is_ready(&self) -> bool {
        let mut answer = lock(&self.answer);
        let Some(PendingAnswer { receiver, received, .. }) = &mut *answer else { return true };
        if received.is_none() {
            *received = match receiver.try_recv() {
                Err(TryRecvError::Empty) => None,
                answered => Some(answered.unwrap_or(Err(Error::Stopped))),
            };
        }
        received.is_some()
    }

    /// Returns the result, once. `None` until the worker has answered, and after the result was taken.
    pub fn take(&self) -> Option<Result<ForkResult>> {
        if !self.is_ready() {
            return None;
        }
        let answer = lock(&self.answer).take()?;
        Some(answer.into_result())
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// As [`Completions::fork`].
    pub fn wait(self) -> Result<ForkResult> {
        let answer = lock(&self.answer).take().ok_or(Error::Stopped)?;
        answer.into_result()
    }
}

/// Sends a command to cancel one branch; with `None`, when the consumer leaves before the end, the whole request.
type CancelSender = dyn Fn(Option<BranchIndex>) + Send + Sync;

/// Sends a fork command to the worker; the wake handle, if any, is called when the answer is available.
type ForkSender = dyn Fn(Fork, Option<Arc<dyn WakeHandle>>) -> Result<PendingFork> + Send + Sync;

/// The receiving end of one request: an iterator over its events. Dropping it cancels the request.
///
/// Any thread may read; every event is read once.
pub struct Completions {
    shared: Arc<StreamState>,
    stream_id: StreamId,
    n_prompt: usize,
    cancel: Box<CancelSender>,
    fork: Option<Box<ForkSender>>,
    /// Dropped with the consumer; until then, ended branches may be forked.
    _consumer: Arc<()>,
}

impl Completions {
    /// Returns the request's number in order of submission, see
    /// [`RunningStats::request_id`](crate::engine::RunningStats::request_id).
    pub fn request_id(&self) -> u64 {
        self.stream_id.0
    }

    pub fn n_prompt(&self) -> usize {
        self.n_prompt
    }

    pub(crate) fn with_prompt(mut self, n_prompt: usize) -> Self {
        self.n_prompt = n_prompt;
        self
    }

    pub(crate) fn set_fork(&mut self, fork: Box<ForkSender>) {
        self.fork = Some(fork);
    }

    /// Takes events that are ready, without waiting: at least one, until those taken have `max_bytes` bytes, as
    /// [`Event::n_bytes`] counts them.
    ///
    /// # Errors
    /// The error that ended the stream, once; afterwards the stream has ended.
    pub fn try_events(&self, max_bytes: usize) -> Result<ReadyEvents> {
        let mut queue = self.shared.lock();
        let floor = queue.n_bytes.saturating_sub(max_bytes);
        let Some(first) = queue.pop() else {
            return queue.take_end().map_or(Ok(ReadyEvents::Pending), |end| end.map(|()| ReadyEvents::Ended));
        };
        let mut events = vec![first];
        while queue.n_bytes > floor
            && let Some(event) = queue.pop()
        {
            events.push(event);
        }
        Ok(ReadyEvents::Events(events))
    }

    /// Returns true if [`Completions::try_events`] would not return [`ReadyEvents::Pending`].
    pub fn is_ready(&self) -> bool {
        let queue = self.shared.lock();
        !queue.events.is_empty() || queue.end.is_some()
    }

    /// Waits for the next event; `None` once every branch has finished, or after an error.
    pub fn wait(&self) -> Option<Result<Event>> {
        let mut queue = self.shared.lock();
        loop {
            if let Some(event) = queue.pop() {
                return Some(Ok(event));
            }
            if let Some(end) = queue.take_end() {
                return end.err().map(Err);
            }
            queue.n_waiting += 1;
            queue = wait(&self.shared.arrived, queue);
            queue.n_waiting -= 1;
        }
    }

    /// Returns why parts of the prompt must be computed, for a request with
    /// [`Request::explains_cache`](crate::request::Request::explains_cache), once the first branch has started. It may change
    /// until the first token, if a saved prefix cannot be reloaded. Detokenizing a long prompt takes milliseconds.
    pub fn explanation(&self) -> Option<Explanation> {
        // Not under the lock, which the worker takes too.
        let features = self.shared.lock().features.clone();
        hooks::explanation_of(&features)
    }

    /// Cancels the request: its slots are free before the next decode, and the stream has ended.
    pub fn close(&self) {
        let is_early = self.shared.lock().close();
        self.shared.arrived.notify_all();
        if is_early {
            (self.cancel)(None);
        }
    }

    /// Cancels one branch: its slot is free before the next decode, it ends with
    /// [`FinishReason::Cancelled`](crate::request::FinishReason::Cancelled), and the others continue, except those of a beam
    /// search. Does nothing if there is no such branch or it has ended.
    pub fn cancel_branch(&self, index: u32) {
        if self.shared.lock().end.is_none() {
            (self.cancel)(Some(BranchIndex(index)));
        }
    }

    /// Forks a branch that runs, waits or has ended: the forks continue its prompt, its text up to the fork position, and the
    /// appended tokens. The worker answers between two steps; this waits for the answer.
    ///
    /// The forks share all computed cells of that, and the adapters. Nothing is computed for a fork at the end of a running
    /// branch; at an earlier position, the last preceding token is computed, and with recurrent and windowed memory all tokens
    /// since the last checkpoint.
    ///
    /// Forks are queued like any request, with one queue position for all of them, and are junior to earlier requests. With
    /// [`ForkKind::Restart`](crate::engine::ForkKind::Restart) and explicit seeds, fork `k` of a request samples with `seed + k`.
    /// Otherwise, the fork that becomes branch `i` of the same stream samples with `seed + i`, where `seed` is the seed of the
    /// stream's branch 0, and fork `k` of all that got new streams with `seed + 256 + k`.
    ///
    /// An ended branch can be forked while its stream is held and it is within the last
    /// [`MAX_ENDED_BYTES`](crate::engine::MAX_ENDED_BYTES) of ended branches.
    ///
    /// # Errors
    /// As [`Engine::submit`](crate::engine::Engine::submit); [`Error::InvalidRequest`] also if there is no such branch or
    /// position, if its grammar rejects the appended tokens, or if the destination stream has ended or would have more than
    /// [`MAX_COMPLETIONS`](crate::request::MAX_COMPLETIONS) branches.
    pub fn fork(&self, fork: Fork) -> Result<ForkResult> {
        self.request_fork(fork, None)?.wait()
    }

    /// As [`Completions::fork`], without waiting: `wake_handle` is called when the worker has answered.
    ///
    /// # Errors
    /// As [`Completions::fork`], for errors that are detected before the command is sent.
    pub fn request_fork(&self, fork: Fork, wake_handle: Option<Arc<dyn WakeHandle>>) -> Result<PendingFork> {
        self.fork.as_ref().map_or(Err(Error::Stopped), |send| send(fork, wake_handle))
    }
}

impl std::fmt::Debug for Completions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completions").field("request_id", &self.stream_id.0).finish_non_exhaustive()
    }
}

impl Iterator for Completions {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        self.wait()
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        self.close();
    }
}

pub(crate) fn open_stream(
    stream_id: StreamId,
    n: u32,
    wake_handle: Option<Arc<dyn WakeHandle>>,
    cancel: Box<CancelSender>,
) -> (Sender, Completions) {
    let (shared, consumer) = (Arc::<StreamState>::default(), Arc::new(()));
    let sender = Sender::new(Arc::clone(&shared), n, wake_handle, Arc::downgrade(&consumer));
    (sender, Completions { shared, stream_id, n_prompt: 0, cancel, fork: None, _consumer: consumer })
}
