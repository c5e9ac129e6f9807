//! The stream of one request: the worker's end and the caller's end.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::Duration;

use crate::engine::shared_explanation::SharedExplanation;
use crate::error::{BacklogUnit, Error, Result};
use crate::request::{Event, Explanation, MAX_COMPLETIONS, Request, Token};

/// Events of one branch that may wait to be read, one for each token. A stream's bound is this times its branches; where more wait,
/// nothing is computed for it until half of that is read.
pub const MAX_EVENTS_BEHIND: usize = 10_000;

/// Bytes of a stream's events that may wait to be read, as [`Event::n_bytes`] counts them: where each token comes with hundreds of
/// log-probabilities, so much is reached long before the bound on events. What a single step adds to it is all that may be more.
pub const MAX_BYTES_BEHIND: usize = 32 << 20;

/// How long a reader that was woken is not woken again for tokens alone, where few streams have some. A small model makes thousands
/// of steps per second, and whoever is woken for each takes a core from what computes the next.
pub const WAKE_INTERVAL: Duration = Duration::from_millis(4);

/// Streams whose readers cost about a tenth of that. Where more have something to tell, the rest is longer in proportion, but at
/// most [`MAX_WAKE_INTERVAL`].
const STREAMS_PER_REST: usize = 8;

/// One picture of a screen: what comes within it is seen at once.
pub const MAX_WAKE_INTERVAL: Duration = Duration::from_millis(16);

/// Called by the worker when a stream has something new.
///
/// A step that feeds several streams with the same bell (the same `Arc`) rings it once, after all its events can be read.
pub trait WakeHandle: Send + Sync {
    /// Wakes whoever waits. Must not block: the worker calls it between two decodes.
    fn ring(&self);

    /// How long it is not rung again where there is nothing to tell but more tokens of `n_streams` streams that have told some: where
    /// steps are shorter than this, it is rung once for several. It is rung at once for a first token, an end or an error, and
    /// before the worker computes a prompt, answers a question or waits, and once it has moved cells.
    fn rest(&self, n_streams: usize) -> Duration {
        let n_times = u32::try_from(n_streams.div_ceil(STREAMS_PER_REST)).unwrap_or(u32::MAX);
        WAKE_INTERVAL.saturating_mul(n_times.max(1)).min(MAX_WAKE_INTERVAL)
    }
}

/// What [`Completions::try_events`] found.
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
    /// Of all of these.
    n_bytes: usize,
    /// Events that were read.
    n_read: u64,
    /// Set once: how the stream ends after the events that still wait.
    end: Option<Result<()>>,
    /// Whether the reader went before it had read everything.
    was_left: bool,
    /// Threads in [`Completions::wait`] that found nothing.
    n_waiting: usize,
    /// Whether the worker is about to wake them.
    will_wake: bool,
    /// Why what is computed of the prompt has to be; not read with the events.
    explanation: Option<Arc<SharedExplanation>>,
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

/// What both ends hold. As a bell, it wakes the threads that wait in [`Completions::wait`].
struct Shared {
    queue: Mutex<UnreadEvents>,
    arrived: Condvar,
    is_cancelled: AtomicBool,
}

impl WakeHandle for Shared {
    fn ring(&self) {
        self.lock().will_wake = false;
        self.arrived.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, UnreadEvents> {
        self.queue.lock().expect("no code that holds the queue can panic")
    }
}

/// How a branch is forked, see [`Completions::fork`].
pub struct Fork {
    /// Which branch, as its stream counts them.
    pub branch: u32,
    /// Where its forks part from it.
    pub at: ForkPoint,
    /// Tokens that stand between there and what the forks write.
    pub append: Vec<Token>,
    /// How they go on.
    pub ways: ForkKind,
    /// Where their events come.
    pub into: ForkDestination,
}

/// A place in the text that a branch has written so far, its prompt not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkPoint {
    /// Where it ends when the worker sees the fork; a token that ends texts is no part of it.
    End,
    /// After so many of its tokens.
    Token(u32),
    /// After so many bytes, as its tokens spell it: a token and a character must end there.
    Byte(usize),
}

/// How forks go on.
pub enum ForkKind {
    /// So many, as the branch itself would: with its parameters, and from the state of its penalties and its grammar.
    Alike(u32),
    /// As these ask for, each of them for its `n`: what stands before is the prompt to them, so that a grammar begins anew. What a
    /// request says of its prompt is not theirs to say: prompt, suffix and adapters are the branch's.
    Anew {
        /// One for each kind of them.
        requests: Vec<Request>,
        /// Whether they draw with the seeds of their requests; otherwise with those that [`ForkKind::Alike`] would.
        with_own_seeds: bool,
    },
}

/// Where the events of forks come.
pub enum ForkDestination {
    /// In the stream of the branch, with the numbers behind those that it has had.
    SameStream,
    /// In one of their own, which rings this bell.
    OwnStream(Option<Arc<dyn WakeHandle>>),
}

/// What [`Completions::fork`] has made.
#[derive(Debug)]
pub struct ForkResult {
    /// The numbers of the forks in their stream.
    pub branches: Range<u32>,
    /// The seed of the first.
    pub seed: u32,
    /// After so many of the tokens that the branch has drawn.
    pub n_said: u32,
    /// How the texts of the forks go on from that of the branch.
    pub seam: ForkTextBoundary,
    /// Number of tokens of the forks' prompt: those of the branch up to that position, without the ones that context shifts dropped
    /// before the fork was made, and those that are appended.
    pub n_prompt: usize,
    /// That stream, where it is their own.
    pub stream: Option<Completions>,
}

/// Where the text of a fork goes on from that which its branch showed with the tokens before it. The two are one text, but where some
/// was held back there, as it may have been the start of a stop string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForkTextBoundary {
    /// Text that stands between the two, and that neither shows: forks that begin anew, or behind something that is appended, go on
    /// behind it.
    pub unshown: String,
    /// So many characters at the end of what the branch showed are shown again by the fork: what was held back at an end that the
    /// branch came to, and that the fork goes beyond.
    pub n_shown_again: usize,
}

/// A fork that the worker was asked for.
pub struct PendingFork {
    /// `None` once it was taken.
    asked: Mutex<Option<ForkCommand>>,
}

pub(crate) struct ForkCommand {
    pub(crate) answered: Receiver<Result<ForkOutcome>>,
    /// What was taken out of that.
    pub(crate) answer: Option<Result<ForkOutcome>>,
    /// The forks' own stream, where they have one.
    pub(crate) own: Option<Completions>,
}

/// What became of a fork.
#[derive(Debug)]
pub(crate) struct ForkOutcome {
    /// Of their stream.
    pub(crate) branches: Range<u32>,
    pub(crate) seed: u32,
    pub(crate) n_said: u32,
    pub(crate) seam: ForkTextBoundary,
    pub(crate) n_prompt: usize,
}

impl ForkCommand {
    fn made(self, answer: Result<ForkOutcome>) -> Result<ForkResult> {
        let ForkOutcome { branches, seed, n_said, seam, n_prompt } = answer?;
        let stream = self.own.map(|mut completions| {
            completions.set_prompt(n_prompt);
            completions
        });
        Ok(ForkResult { branches, seed, n_said, seam, n_prompt, stream })
    }
}

impl PendingFork {
    pub(crate) fn new(asked: ForkCommand) -> Self {
        Self { asked: Mutex::new(Some(asked)) }
    }

    fn lock(&self) -> MutexGuard<'_, Option<ForkCommand>> {
        self.asked.lock().expect("no code that holds a fork can panic")
    }

    /// Whether [`PendingFork::take`] would answer.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let mut asked = self.lock();
        let Some(asked) = &mut *asked else { return true };
        if asked.answer.is_none() {
            asked.answer = match asked.answered.try_recv() {
                Ok(answer) => Some(answer),
                Err(TryRecvError::Disconnected) => Some(Err(Error::Stopped)),
                Err(TryRecvError::Empty) => None,
            };
        }
        asked.answer.is_some()
    }

    /// What became of it, once; `None` as long as the worker has not answered, and after that was taken.
    pub fn take(&self) -> Option<Result<ForkResult>> {
        if !self.is_ready() {
            return None;
        }
        let mut asked = self.lock().take()?;
        let answer = asked.answer.take()?;
        Some(asked.made(answer))
    }

    /// Waits for what becomes of it.
    ///
    /// # Errors
    /// As [`Completions::fork`].
    pub fn wait(self) -> Result<ForkResult> {
        let mut asked = self.lock().take().ok_or(Error::Stopped)?;
        let answer = asked.answer.take().unwrap_or_else(|| asked.answered.recv().unwrap_or(Err(Error::Stopped)));
        asked.made(answer)
    }
}

/// Asks the worker for a fork; who gave a bell is told by it that there is an answer.
pub(crate) type ForkSender = dyn Fn(Fork, Option<Arc<dyn WakeHandle>>) -> Result<PendingFork> + Send + Sync;

/// The receiving end of one request: an iterator over its events. Dropping it cancels the request.
///
/// Any thread may read; every event is read once.
pub struct Completions {
    shared: Arc<Shared>,
    request_id: u64,
    n_prompt: usize,
    /// Tells the worker that nobody reads on, or that one branch is wanted no longer.
    cancel: Box<dyn Fn(Option<u32>) + Send + Sync>,
    fork: Option<Box<ForkSender>>,
    /// Lives as long as this: until then the texts of branches that have ended may be asked for.
    _reader: Arc<()>,
}

impl Completions {
    /// Counts requests in order of submission, from 0; [`RunningStats::request_id`](crate::engine::RunningStats::request_id) names
    /// the same request.
    #[must_use]
    pub fn request_id(&self) -> u64 {
        self.request_id
    }

    /// The prompt's length in tokens, as it is computed.
    #[must_use]
    pub fn n_prompt(&self) -> usize {
        self.n_prompt
    }

    /// The prompt has so many tokens.
    pub(crate) fn set_prompt(&mut self, n_prompt: usize) {
        self.n_prompt = n_prompt;
    }

    /// How forks are asked for.
    pub(crate) fn set_fork(&mut self, fork: Box<ForkSender>) {
        self.fork = Some(fork);
    }

    /// Takes events that are ready, without waiting: at least one, and no further one once those taken have `max_bytes` bytes, as
    /// [`Event::n_bytes`] counts them.
    ///
    /// # Errors
    /// What ended the stream early, once; the stream has ended then.
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

    /// Whether [`Completions::try_events`] would find anything but [`Ready::Pending`].
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let queue = self.shared.lock();
        !queue.events.is_empty() || queue.end.is_some()
    }

    /// The next event, waiting for it; `None` once every branch has finished, or after an error.
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

    /// Why what is computed of the prompt has to be, where [`Request::explains_cache`] asks for it: known from when its first branch
    /// starts in a slot, before any token, and kept as long as this. Until the first token it may still be told of more that is
    /// computed, where what was saved cannot be brought back; then it is what [`Finished::explanation`] tells. Where the
    /// text of the prompt is long, it is spelt for milliseconds.
    ///
    /// [`Finished::explanation`]: crate::request::Finished::explanation
    #[must_use]
    pub fn explanation(&self) -> Option<Explanation> {
        let explanation = self.shared.lock().explanation.clone();
        explanation.map(|explanation| explanation.shown())
    }

    /// Cancels the request: its slots are free before the next decode, and the stream has ended.
    pub fn close(&self) {
        // Under the lock, so that a worker that sees the flag finds the stream ended.
        let mut queue = self.shared.lock();
        let was_open = queue.end.is_none() && !self.shared.is_cancelled.swap(true, Ordering::AcqRel);
        queue.was_left |= !queue.events.is_empty();
        queue.events.clear();
        queue.n_bytes = 0;
        queue.end = Some(Ok(()));
        self.shared.arrived.notify_all();
        if was_open {
            (self.cancel)(None);
        }
    }

    /// Cancels one branch: its slot is free before the next decode, it ends with
    /// [`FinishReason::Cancelled`](crate::request::FinishReason::Cancelled), and the others go on. Nothing happens where there is no
    /// branch of that number, or where it has ended by then: it may just be ending otherwise. The beams of a search are those of all
    /// of its branches, and with one of them all end.
    pub fn cancel_branch(&self, index: u32) {
        if self.shared.lock().end.is_none() {
            (self.cancel)(Some(index));
        }
    }

    /// Forks a branch, which runs, waits or has ended: its forks continue its prompt, its text up to a place, and what is appended.
    ///
    /// They share what is computed of that. A fork at the end of a branch that runs draws from the same row of logits as its next
    /// token is drawn from, and nothing is computed for it; further back, the last token before the place is. Where the model's
    /// memory is a state or sees a window, what is computed begins at the last place where that was kept. Adapters are the branch's.
    ///
    /// Forks are queued as any request, with one place for all of them, and junior to what came before. Fork `k` of a request with
    /// its own seed draws with `seed + k`. Of others, the fork that becomes branch `i` of the same stream
    /// draws with `seed + i`, where `seed` is that of the stream's branch 0, and the `k`th of all that got streams of their own with
    /// `seed + 256 + k`.
    ///
    /// The worker answers between two steps; this waits for it. An ended branch is known as long as its stream is held, and as it is
    /// among the last [`MAX_ENDED_BYTES`] of those.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] where there is no such branch or place, where its grammar does not allow what is appended, where
    /// the stream has ended that forks are to come in or would have more than [`MAX_COMPLETIONS`] branches, and for a request as
    /// [`Engine::submit`](crate::engine::Engine::submit) does; [`Error::ContextOverflow`], [`Error::QueueFull`],
    /// [`Error::Stopped`].
    pub fn fork(&self, fork: Fork) -> Result<ForkResult> {
        self.request_fork(fork, None)?.wait()
    }

    /// As [`Completions::fork`], without waiting: `bell` is rung when the worker has answered.
    ///
    /// # Errors
    /// As that, for what is known before.
    pub fn request_fork(&self, fork: Fork, bell: Option<Arc<dyn WakeHandle>>) -> Result<PendingFork> {
        self.fork.as_ref().map_or(Err(Error::Stopped), |ask| ask(fork, bell))
    }
}

/// Most bytes that are kept of branches which have ended, for forks of them: their tokens, their pictures and sounds,
/// and what goes on from them, which is a sampler, a grammar and text that nobody was shown. What the branches of a stream share
/// counts once. Those of the oldest streams go first.
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

/// The worker's end. Dropped before [`Sender::end`], it tells the reader that the engine has stopped.
pub(crate) struct Sender {
    shared: Arc<Shared>,
    bell: Option<Arc<dyn WakeHandle>>,
    /// Branches that it has had.
    n_branches: AtomicU32,
    /// Forks of them that got streams of their own.
    n_forked_off: AtomicU32,
    reader: Weak<()>,
}

impl Sender {
    /// Whether somebody holds the other end.
    pub(crate) fn has_reader(&self) -> bool {
        self.reader.strong_count() > 0
    }

    /// Adds `n` branches, and says which; `None` where it would have too many.
    pub(crate) fn add_branches(&self, n: u32) -> Option<Range<u32>> {
        let more = |has: u32| has.checked_add(n).filter(|&all| all <= MAX_COMPLETIONS);
        let first = self.n_branches.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(first..first + n)
    }

    /// Counts `n` forks that get a stream of their own; returns how many there were.
    pub(crate) fn fork_off(&self, n: u32) -> u32 {
        self.n_forked_off.fetch_add(n, Ordering::AcqRel)
    }

    /// Whether the stream has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.lock().end.is_some()
    }

    /// The reader may ask from now on why what is computed of the prompt has to be.
    pub(crate) fn explain(&self, explanation: Arc<SharedExplanation>) {
        self.shared.lock().explanation = Some(explanation);
    }

    fn max_events(&self) -> usize {
        MAX_EVENTS_BEHIND * self.n_branches.load(Ordering::Acquire) as usize
    }

    /// Whether the reader has gone.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.shared.is_cancelled.load(Ordering::Acquire)
    }

    /// The bell that was given.
    pub(crate) fn bell(&self) -> Option<&Arc<dyn WakeHandle>> {
        self.bell.as_ref()
    }

    /// How far its reader is behind.
    pub(crate) fn backlog(&self) -> Backlog {
        self.backlog_of(&self.shared.lock())
    }

    fn backlog_of(&self, queue: &UnreadEvents) -> Backlog {
        let &UnreadEvents { ref events, n_bytes, n_read, .. } = queue;
        Backlog { n_events: events.len(), n_bytes, n_read, max_events: self.max_events() }
    }

    /// Publishes `events`, which are left empty.
    pub(crate) fn send(&self, events: &mut Vec<Event>) -> PublishOutcome {
        let mut queue = self.shared.lock();
        if self.is_cancelled() {
            queue.was_left |= !events.is_empty();
            events.clear();
            return PublishOutcome { bell: None, backlog: self.backlog_of(&queue) };
        }
        events.drain(..).for_each(|event| queue.push(event));
        let is_new = queue.n_waiting > 0 && !std::mem::replace(&mut queue.will_wake, true);
        let bell = is_new.then(|| Arc::<Shared>::clone(&self.shared) as Arc<dyn WakeHandle>);
        PublishOutcome { bell, backlog: self.backlog_of(&queue) }
    }

    /// Tells what becomes of the events.
    pub(crate) fn receipt(&self) -> ReadReceipt {
        ReadReceipt { shared: Arc::clone(&self.shared) }
    }

    /// Ends the stream: all branches have finished, or an error ended them.
    pub(crate) fn end(&self, how: Result<()>) {
        let mut queue = self.shared.lock();
        if queue.end.is_none() {
            queue.end = Some(how);
        }
        self.shared.arrived.notify_all();
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let is_open = self.shared.lock().end.is_none();
        if is_open {
            self.end(Err(Error::Stopped));
            if let Some(bell) = &self.bell {
                bell.ring();
            }
        }
    }
}

/// What became of events that were published.
pub(crate) struct PublishOutcome {
    /// Wakes the threads that wait for one, once until it is rung; `None` where there are none.
    pub(crate) bell: Option<Arc<dyn WakeHandle>>,
    pub(crate) backlog: Backlog,
}

/// How far a reader is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backlog {
    /// Events that wait to be read.
    pub(crate) n_events: usize,
    /// Of these.
    pub(crate) n_bytes: usize,
    /// Events that were read.
    pub(crate) n_read: u64,
    /// Most that may wait.
    pub(crate) max_events: usize,
}

impl Backlog {
    /// Whether more waits than may.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.n_events > self.max_events || self.n_bytes > MAX_BYTES_BEHIND
    }

    /// Whether no more than half of what may wait is left.
    pub(crate) fn is_caught_up(&self) -> bool {
        self.n_events <= self.max_events / 2 && self.n_bytes <= MAX_BYTES_BEHIND / 2
    }

    /// [`Error::SlowReader`], for a stream that is waited for no longer.
    pub(crate) fn error(&self) -> Error {
        if self.n_bytes > MAX_BYTES_BEHIND / 2 {
            return Error::SlowReader { n_behind: self.n_bytes, limit: MAX_BYTES_BEHIND, unit: BacklogUnit::Bytes };
        }
        Error::SlowReader { n_behind: self.n_events, limit: self.max_events, unit: BacklogUnit::Events }
    }
}

/// Tells the worker whether the events of a stream were read.
pub(crate) struct ReadReceipt {
    shared: Arc<Shared>,
}

impl ReadReceipt {
    /// `None` as long as some wait to be read; `false` where the reader went before it had read everything.
    pub(crate) fn was_read(&self) -> Option<bool> {
        let queue = self.shared.lock();
        queue.events.is_empty().then_some(!queue.was_left)
    }
}

/// Both ends of the stream of the request `request_id` for `n` completions; `cancel` is called
/// once, with `None`, if its reader goes before its end, and with the number of each branch that it cancels.
pub(crate) fn stream(
    request_id: u64,
    n: u32,
    bell: Option<Arc<dyn WakeHandle>>,
    cancel: Box<dyn Fn(Option<u32>) + Send + Sync>,
) -> (Sender, Completions) {
    let shared = Arc::new(Shared { queue: Mutex::default(), arrived: Condvar::new(), is_cancelled: AtomicBool::new(false) });
    let reader = Arc::new(());
    let sender = Sender {
        shared: Arc::clone(&shared),
        bell,
        n_branches: AtomicU32::new(n),
        n_forked_off: AtomicU32::new(0),
        reader: Arc::downgrade(&reader),
    };
    (sender, Completions { shared, request_id, n_prompt: 0, cancel, fork: None, _reader: reader })
}
