//! The stream of one request: the worker's end and the caller's end.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Duration;

use crate::engine::features::hooks;
use crate::engine::features::state::StreamFeatures;
use crate::error::{Error, Result};
use crate::request::{Event, Explanation, MAX_COMPLETIONS, Request, Token};

/// Events of one branch that may be unread, one per token. A stream's limit is this times its number of branches. A stream over
/// its limit is not computed further until half of the limit has been read.
pub const MAX_EVENTS_BEHIND: usize = 10_000;

/// Bytes of unread events of a stream, as [`Event::n_bytes`] counts them. With hundreds of logprobs per token it is reached
/// long before the limit on events. A single step may exceed it by its own events.
pub const MAX_BYTES_BEHIND: usize = 32 << 20;

/// Minimum time between wakes that report only further tokens, with few active streams. A small model makes thousands of steps
/// per second, and a reader that wakes for each takes a core from the decode.
pub const WAKE_INTERVAL: Duration = Duration::from_millis(4);

/// Number of streams whose readers cost about a tenth of [`WAKE_INTERVAL`]. With more active streams the interval grows in
/// proportion, up to [`MAX_WAKE_INTERVAL`].
const STREAMS_PER_REST: usize = 8;

/// One frame of a display: events within it appear simultaneously.
pub const MAX_WAKE_INTERVAL: Duration = Duration::from_millis(16);

/// Callback of the worker, for streams with new events.
///
/// A step with events for several streams with the same wake handle (the same `Arc`) calls it once, after all events are
/// readable.
pub trait WakeHandle: Send + Sync {
    /// Wakes the readers. Must not block: the worker calls it between two decodes.
    fn wake(&self);

    /// Returns the minimum time between two wakes that report only further tokens of `n_streams` streams; shorter steps share a
    /// wake. First tokens, ends and errors wake immediately, and all pending events are reported before the worker computes a
    /// prompt, answers a query or waits, and after it moved cells.
    fn min_interval(&self, n_streams: usize) -> Duration {
        let n_times = u32::try_from(n_streams.div_ceil(STREAMS_PER_REST)).unwrap_or(u32::MAX);
        WAKE_INTERVAL.saturating_mul(n_times.max(1)).min(MAX_WAKE_INTERVAL)
    }
}

/// Result of [`Completions::try_events`].
#[derive(Debug, PartialEq)]
pub enum Ready {
    /// Events, in order; at least one.
    Events(Vec<Event>),
    /// Nothing yet.
    Pending,
    /// Every branch has finished and every event was read.
    Ended,
}

#[derive(Default)]
struct UnreadEvents {
    events: VecDeque<Event>,
    /// Size of `events`.
    n_bytes: usize,
    /// Number of events that were read.
    n_read: u64,
    /// How the stream ends after `events`; set once.
    end: Option<Result<()>>,
    /// True if the reader left with unread events.
    was_abandoned: bool,
    /// Threads that wait in [`Completions::wait`].
    n_waiting: usize,
    /// True if the worker is about to wake them.
    will_wake: bool,
    /// Read separately from the events.
    features: StreamFeatures,
}

impl UnreadEvents {
    fn push(&mut self, event: Event) {
        self.n_bytes += event.n_bytes();
        self.events.push_back(event);
    }

    fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.n_bytes -= event.n_bytes();
        self.n_read += 1;
        Some(event)
    }
}

/// State of both ends. As a wake handle, it wakes the threads in [`Completions::wait`].
struct Shared {
    queue: Mutex<UnreadEvents>,
    arrived: Condvar,
    is_cancelled: AtomicBool,
}

impl WakeHandle for Shared {
    fn wake(&self) {
        self.lock().will_wake = false;
        self.arrived.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, UnreadEvents> {
        self.queue.lock().expect("no code that holds the queue can panic")
    }
}

/// Parameters of a fork, see [`Completions::fork`].
pub struct Fork {
    /// Index of the branch in its stream.
    pub branch: u32,
    /// Fork position.
    pub at: ForkPoint,
    /// Tokens between the fork position and the text of the forks.
    pub append: Vec<Token>,
    /// Parameters of the forks.
    pub kind: ForkKind,
    /// Stream of their events.
    pub destination: ForkDestination,
}

/// A position in the text of a branch, without its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkPoint {
    /// The end of the text when the worker handles the fork, without an end-of-generation token.
    End,
    /// After this many tokens.
    Token(u32),
    /// After this many bytes of the detokenized text; a token and a character must end there.
    Byte(usize),
}

/// How forks continue.
pub enum ForkKind {
    /// This many forks with the parameters of the branch and the state of its penalties and its grammar.
    Continue(u32),
    /// Forks with new parameters, `n` for each request. The text before is their prompt, so that a grammar starts at
    /// the fork. The requests must not set the prompt, suffix or adapters, which are inherited from the branch.
    Restart {
        /// One per set of parameters.
        requests: Vec<Request>,
        /// Whether they sample with the seeds of their requests; otherwise with the seeds that [`ForkKind::Continue`] assigns.
        with_own_seeds: bool,
    },
}

/// Stream of the events of forks.
pub enum ForkDestination {
    /// The stream of the branch, with the next free branch indices.
    SameStream,
    /// A new stream with this wake handle.
    OwnStream(Option<Arc<dyn WakeHandle>>),
}

/// Result of [`Completions::fork`].
#[derive(Debug)]
pub struct ForkResult {
    /// Indices of the forks in their stream.
    pub branches: Range<u32>,
    /// Seed of the first fork.
    pub seed: u32,
    /// Fork position: number of tokens that the branch had sampled.
    pub n_sampled: u32,
    /// How the text of the forks continues the text of the branch.
    pub text_boundary: ForkTextBoundary,
    /// Length of the forks' prompt in tokens: the branch's tokens up to the fork position, without the ones that context shifts
    /// dropped before the fork, plus the appended ones.
    pub n_prompt: usize,
    /// The new stream, for [`ForkDestination::OwnStream`].
    pub stream: Option<Completions>,
}

/// Boundary between the text that a branch had published and the text of its fork. They join without a gap unless text was held
/// back at the boundary as a possible start of a stop string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForkTextBoundary {
    /// Text between the two that neither publishes. Not empty only for forks with new parameters or with appended
    /// tokens.
    pub unshown: String,
    /// Number of characters at the end of the branch's published text that the fork publishes again: text that the branch held
    /// back and released when it finished, where the fork continues beyond that end.
    pub n_shown_again: usize,
}

/// Pending answer of the worker to a fork command.
pub struct PendingFork {
    /// `None` after [`PendingFork::take`].
    command: Mutex<Option<ForkCommand>>,
}

pub(crate) struct ForkCommand {
    pub(crate) receiver: Receiver<Result<ForkOutcome>>,
    /// The answer, once received.
    pub(crate) answer: Option<Result<ForkOutcome>>,
    /// The new stream of the forks, if any.
    pub(crate) stream: Option<Completions>,
}

/// The worker's answer to a fork.
#[derive(Debug)]
pub(crate) struct ForkOutcome {
    /// Indices in their stream.
    pub(crate) branches: Range<u32>,
    pub(crate) seed: u32,
    pub(crate) n_sampled: u32,
    pub(crate) text_boundary: ForkTextBoundary,
    pub(crate) n_prompt: usize,
}

impl ForkCommand {
    fn into_result(self, answer: Result<ForkOutcome>) -> Result<ForkResult> {
        let ForkOutcome { branches, seed, n_sampled, text_boundary, n_prompt } = answer?;
        let stream = self.stream.map(|mut completions| {
            completions.set_prompt(n_prompt);
            completions
        });
        Ok(ForkResult { branches, seed, n_sampled, text_boundary, n_prompt, stream })
    }
}

impl PendingFork {
    pub(crate) fn new(command: ForkCommand) -> Self {
        Self { command: Mutex::new(Some(command)) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<ForkCommand>> {
        self.command.lock().expect("no code that holds a fork can panic")
    }

    /// Returns true if [`PendingFork::take`] would return a result.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let mut command = self.lock();
        let Some(command) = &mut *command else { return true };
        if command.answer.is_none() {
            command.answer = match command.receiver.try_recv() {
                Ok(answer) => Some(answer),
                Err(TryRecvError::Disconnected) => Some(Err(Error::Stopped)),
                Err(TryRecvError::Empty) => None,
            };
        }
        command.answer.is_some()
    }

    /// Returns the result, once. `None` until the worker has answered, and after the result was taken.
    pub fn take(&self) -> Option<Result<ForkResult>> {
        if !self.is_ready() {
            return None;
        }
        let mut command = self.lock().take()?;
        let answer = command.answer.take()?;
        Some(command.into_result(answer))
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// As [`Completions::fork`].
    pub fn wait(self) -> Result<ForkResult> {
        let mut command = self.lock().take().ok_or(Error::Stopped)?;
        let answer = command.answer.take().unwrap_or_else(|| command.receiver.recv().unwrap_or(Err(Error::Stopped)));
        command.into_result(answer)
    }
}

/// Sends a fork command to the worker; the wake handle, if any, is called when the answer is available.
pub(crate) type ForkSender = dyn Fn(Fork, Option<Arc<dyn WakeHandle>>) -> Result<PendingFork> + Send + Sync;

/// The receiving end of one request: an iterator over its events. Dropping it cancels the request.
///
/// Any thread may read; every event is read once.
pub struct Completions {
    shared: Arc<Shared>,
    request_id: u64,
    n_prompt: usize,
    /// Notifies the worker that the reader has left, or that one branch is cancelled.
    cancel: Box<dyn Fn(Option<u32>) + Send + Sync>,
    fork: Option<Box<ForkSender>>,
    /// Dropped with the reader; until then, ended branches may be forked.
    _reader: Arc<()>,
}

impl Completions {
    /// Returns the request's number in order of submission, from 0; the same as
    /// [`RunningStats::request_id`](crate::engine::RunningStats::request_id).
    #[must_use]
    pub fn request_id(&self) -> u64 {
        self.request_id
    }

    /// Returns the length of the computed prompt in tokens.
    #[must_use]
    pub fn n_prompt(&self) -> usize {
        self.n_prompt
    }

    /// Sets the length of the prompt.
    pub(crate) fn set_prompt(&mut self, n_prompt: usize) {
        self.n_prompt = n_prompt;
    }

    /// Sets the function that sends fork commands.
    pub(crate) fn set_fork(&mut self, fork: Box<ForkSender>) {
        self.fork = Some(fork);
    }

    /// Takes events that are ready, without waiting: at least one, until those taken have `max_bytes` bytes, as
    /// [`Event::n_bytes`] counts them.
    ///
    /// # Errors
    /// The error that ended the stream, once; afterwards the stream has ended.
    pub fn try_events(&self, max_bytes: usize) -> Result<Ready> {
        let mut queue = self.shared.lock();
        if queue.events.is_empty() {
            return match queue.end.take() {
                None => Ok(Ready::Pending),
                Some(end) => {
                    queue.end = Some(Ok(()));
                    end.map(|()| Ready::Ended)
                }
            };
        }
        let floor = queue.n_bytes.saturating_sub(max_bytes);
        let mut events: Vec<Event> = queue.pop().into_iter().collect();
        while queue.n_bytes > floor
            && let Some(event) = queue.pop()
        {
            events.push(event);
        }
        Ok(Ready::Events(events))
    }

    /// Returns true if [`Completions::try_events`] would not return [`Ready::Pending`].
    #[must_use]
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
            if let Some(end) = queue.end.take() {
                queue.end = Some(Ok(()));
                return end.err().map(Err);
            }
            queue.n_waiting += 1;
            queue = self.shared.arrived.wait(queue).expect("no code that holds the queue can panic");
            queue.n_waiting -= 1;
        }
    }

    /// Returns why parts of the prompt must be computed, for a request with [`Request::explains_cache`]. Available from the
    /// start of the first branch, before any token, until the stream is dropped. It may change until the first token, if a
    /// saved prefix cannot be reloaded; [`Finished::explanation`] has the final one. Detokenizing a long prompt takes
    /// milliseconds.
    ///
    /// [`Finished::explanation`]: crate::request::Finished::explanation
    #[must_use]
    pub fn explanation(&self) -> Option<Explanation> {
        // Not under the lock, which the worker takes too.
        let features = self.shared.lock().features.clone();
        hooks::explanation_of(&features)
    }

    /// Cancels the request: its slots are free before the next decode, and the stream has ended.
    pub fn close(&self) {
        // Under the lock, so that a worker that sees the flag also sees the end of the stream.
        let mut queue = self.shared.lock();
        let was_open = queue.end.is_none() && !self.shared.is_cancelled.swap(true, Ordering::AcqRel);
        queue.was_abandoned |= !queue.events.is_empty();
        queue.events.clear();
        queue.n_bytes = 0;
        queue.end = Some(Ok(()));
        self.shared.arrived.notify_all();
        if was_open {
            (self.cancel)(None);
        }
    }

    /// Cancels one branch: its slot is free before the next decode, it ends with
    /// [`FinishReason::Cancelled`](crate::request::FinishReason::Cancelled), and the others continue. Does nothing if there is
    /// no such branch or it has already ended; a branch that is just finishing keeps its own finish reason. Cancelling a branch
    /// of a beam search ends all branches of the search.
    pub fn cancel_branch(&self, index: u32) {
        if self.shared.lock().end.is_none() {
            (self.cancel)(Some(index));
        }
    }

    /// Forks a branch that runs, waits or has ended: the forks continue its prompt, its text up to the fork position, and the
    /// appended tokens.
    ///
    /// The forks share all computed cells of that. A fork at the end of a running branch samples from the same row of logits as
    /// the branch's next token, and nothing is computed for it; at an earlier position, the last preceding token is computed.
    /// Recurrent and windowed memory compute from the last checkpoint before the position. Adapters are inherited from the
    /// branch.
    ///
    /// Forks are queued like any request, with one queue position for all of them, and are junior to earlier requests. With
    /// [`ForkKind::Restart`] and explicit seeds, fork `k` of a request samples with `seed + k`. Otherwise, the fork that
    /// becomes branch `i` of the same stream samples with `seed + i`, where `seed` is the seed of the stream's branch 0, and
    /// fork `k` of all that got new streams with `seed + 256 + k`.
    ///
    /// The worker answers between two steps; this waits for the answer. An ended branch can be forked while its stream is held
    /// and it is within the last [`MAX_ENDED_BYTES`] of ended branches.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if there is no such branch or position, if its grammar rejects the appended tokens, if the
    /// destination stream has ended or would have more than [`MAX_COMPLETIONS`] branches, and for requests as in
    /// [`Engine::submit`](crate::engine::Engine::submit); [`Error::ContextOverflow`], [`Error::QueueFull`], [`Error::Stopped`].
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

/// Maximum size of ended branches that are kept for forks, in bytes: their tokens, media, samplers, grammars and unpublished
/// text. State that the branches of a stream share counts once. The oldest streams are dropped first.
pub const MAX_ENDED_BYTES: usize = 64 << 20;

impl std::fmt::Debug for Completions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completions").field("request_id", &self.request_id).finish_non_exhaustive()
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

/// The worker's end of a stream. Dropped before [`Sender::end`], it ends the stream with [`Error::Stopped`].
pub(crate) struct Sender {
    shared: Arc<Shared>,
    wake_handle: Option<Arc<dyn WakeHandle>>,
    /// Number of branches, including ended ones.
    n_branches: AtomicU32,
    /// Number of forks of its branches that got new streams.
    n_own_stream_forks: AtomicU32,
    reader: Weak<()>,
}

impl Sender {
    /// Returns true while the receiving end exists.
    pub(crate) fn has_reader(&self) -> bool {
        self.reader.strong_count() > 0
    }

    /// Adds `n` branches and returns their indices; `None` if there would be too many.
    pub(crate) fn add_branches(&self, n: u32) -> Option<Range<u32>> {
        let add = |has: u32| has.checked_add(n).filter(|&all| all <= MAX_COMPLETIONS);
        let first = self.n_branches.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).ok()?;
        Some(first..first + n)
    }

    /// Counts `n` forks with new streams; returns the previous number of such forks.
    pub(crate) fn add_own_stream_forks(&self, n: u32) -> u32 {
        self.n_own_stream_forks.fetch_add(n, Ordering::AcqRel)
    }

    /// Returns true if the stream has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.lock().end.is_some()
    }

    /// Changes the state that features attach to the stream.
    pub(crate) fn change_features(&self, change: impl FnOnce(&mut StreamFeatures)) {
        change(&mut self.shared.lock().features);
    }

    fn max_events(&self) -> usize {
        MAX_EVENTS_BEHIND * self.n_branches.load(Ordering::Acquire) as usize
    }

    /// Returns true if the reader has left.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.shared.is_cancelled.load(Ordering::Acquire)
    }

    /// Returns the wake handle of the reader.
    pub(crate) fn wake_handle(&self) -> Option<&Arc<dyn WakeHandle>> {
        self.wake_handle.as_ref()
    }

    /// Returns what the reader has not read yet, in events and bytes.
    pub(crate) fn backlog(&self) -> Backlog {
        self.backlog_in(&self.shared.lock())
    }

    fn backlog_in(&self, queue: &UnreadEvents) -> Backlog {
        let &UnreadEvents { ref events, n_bytes, n_read, .. } = queue;
        Backlog { n_events: events.len(), n_bytes, n_read, max_events: self.max_events() }
    }

    /// Publishes `events`, which are left empty.
    pub(crate) fn send(&self, events: &mut Vec<Event>) -> PublishOutcome {
        let mut queue = self.shared.lock();
        if self.is_cancelled() {
            queue.was_abandoned |= !events.is_empty();
            events.clear();
            return PublishOutcome { wake_handle: None, backlog: self.backlog_in(&queue) };
        }
        events.drain(..).for_each(|event| queue.push(event));
        let is_new = queue.n_waiting > 0 && !std::mem::replace(&mut queue.will_wake, true);
        let wake_handle = is_new.then(|| Arc::<Shared>::clone(&self.shared) as Arc<dyn WakeHandle>);
        PublishOutcome { wake_handle, backlog: self.backlog_in(&queue) }
    }

    /// Returns a handle that reports whether the published events were read.
    pub(crate) fn receipt(&self) -> ReadReceipt {
        ReadReceipt { shared: Arc::clone(&self.shared) }
    }

    /// Ends the stream: all branches have finished, or an error ended them.
    pub(crate) fn end(&self, outcome: Result<()>) {
        let mut queue = self.shared.lock();
        if queue.end.is_none() {
            queue.end = Some(outcome);
        }
        self.shared.arrived.notify_all();
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let is_open = self.shared.lock().end.is_none();
        if is_open {
            self.end(Err(Error::Stopped));
            if let Some(wake_handle) = &self.wake_handle {
                wake_handle.wake();
            }
        }
    }
}

/// Result of publishing events.
pub(crate) struct PublishOutcome {
    /// Wakes the threads in [`Completions::wait`]; `None` if none waits or a wake is pending.
    pub(crate) wake_handle: Option<Arc<dyn WakeHandle>>,
    pub(crate) backlog: Backlog,
}

/// How far a reader lags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backlog {
    /// Unread events.
    pub(crate) n_events: usize,
    /// Size of the unread events.
    pub(crate) n_bytes: usize,
    /// Number of events that were read.
    pub(crate) n_read: u64,
    /// Limit on unread events.
    pub(crate) max_events: usize,
}

impl Backlog {
    /// Returns true if a limit is exceeded.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.n_events > self.max_events || self.n_bytes > MAX_BYTES_BEHIND
    }

    /// Returns true if at most half of each limit is unread.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.n_events <= self.max_events / 2 && self.n_bytes <= MAX_BYTES_BEHIND / 2
    }

    /// Returns [`Error::SlowConsumer`] for a stream that is ended as too slow.
    pub(crate) fn error(&self) -> Error {
        if self.n_bytes > MAX_BYTES_BEHIND / 2 {
            return Error::SlowConsumer { n_behind: self.n_bytes, limit: MAX_BYTES_BEHIND, unit: "bytes" };
        }
        Error::SlowConsumer { n_behind: self.n_events, limit: self.max_events, unit: "events" }
    }
}

/// Reports whether the published events of a stream were read.
pub(crate) struct ReadReceipt {
    shared: Arc<Shared>,
}

impl ReadReceipt {
    /// Returns `None` while some are unread, and `false` if the reader left with unread events.
    pub(crate) fn was_read(&self) -> Option<bool> {
        let queue = self.shared.lock();
        queue.events.is_empty().then_some(!queue.was_abandoned)
    }
}

/// Creates both ends of the stream of request `request_id` for `n` completions. `cancel` is called once with `None` if the
/// reader leaves before the end, and with the index of each branch that it cancels.
pub(crate) fn stream(
    request_id: u64,
    n: u32,
    wake_handle: Option<Arc<dyn WakeHandle>>,
    cancel: Box<dyn Fn(Option<u32>) + Send + Sync>,
) -> (Sender, Completions) {
    let shared = Arc::new(Shared { queue: Mutex::default(), arrived: Condvar::new(), is_cancelled: AtomicBool::new(false) });
    let reader = Arc::new(());
    let sender = Sender {
        shared: Arc::clone(&shared),
        wake_handle,
        n_branches: AtomicU32::new(n),
        n_own_stream_forks: AtomicU32::new(0),
        reader: Arc::downgrade(&reader),
    };
    (sender, Completions { shared, request_id, n_prompt: 0, cancel, fork: None, _reader: reader })
}
