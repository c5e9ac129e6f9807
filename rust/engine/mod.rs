//! Who decides, and when: the engine's handle, and behind it the worker thread that owns the runner.
//!
//! The worker's loop is [`worker`]; what its steps change is one [`core::Core`] of parts that keep their own rules, and each step is a
//! function on it. A file names only files that stand before it here:
//!
//! | files | what they are |
//! | --- | --- |
//! | `runner` `stats` `scheduling_key` `shared_explanation` `stream` `prompt_logprob_cache` `pending_prompt_report` | the words that others use: a model, counters, who goes before whom, why a prompt is computed, a reader's end, what prompts were told, what a reader is to hear of one |
//! | `step_cost` `step_budget` `adapter_round_robin` `stopwatch` `move_budget` | rules on plain values: what a step costs and computes, whose adapters are on, where its time goes, what moves |
//! | `request_group` `checkpoint_positions` `sequence` `running_sequence` `slow_consumers` `transcripts` | a request, where what is computed of it is kept, one completion of it, one that is in a slot, readers that are behind, and what was written in chats |
//! | `queue` `slots` `memory` `output` `history` `fork_request` `fork_builder` `forks` | the parts: who starts next, who runs, what is computed, what is told, what was asked before, what can be forked and how far that is |
//! | `core` | all of them |
//! | `explanation_builder` `lifecycle` `beams` `sampling_step` `prompt_logprobs` `checkpoints` `tasks` `forking` | what becomes of a sequence: how it ends or gives way, what a search makes of its beams, what it draws and tells, what is kept of it, what continues it |
//! | `resumption` `tier_moves` `prefix_match` `grouping` `admission` `planning` `computing` `publishing` `questions` `stall_detector` | the steps of the loop, what is answered between them, and the check that each of them makes progress |
//! | `worker` | the loop |
//! | `control` | what readers ask of it |

mod adapter_round_robin;
mod admission;
mod beams;
mod checkpoint_positions;
mod checkpoints;
mod computing;
mod control;
mod core;
mod explanation_builder;
mod fork_builder;
mod fork_request;
mod forking;
mod forks;
mod grouping;
mod history;
mod lifecycle;
mod memory;
mod move_budget;
mod output;
mod pending_prompt_report;
mod planning;
mod prefix_match;
mod prompt_logprob_cache;
mod prompt_logprobs;
mod publishing;
mod questions;
mod queue;
mod request_group;
mod resumption;
pub mod runner;
mod running_sequence;
mod sampling_step;
mod scheduling_key;
mod sequence;
mod shared_explanation;
mod slots;
mod slow_consumers;
mod stall_detector;
mod stats;
pub mod step_budget;
mod step_cost;
mod stopwatch;
mod stream;
mod tasks;
mod tier_moves;
mod transcripts;
mod worker;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};

pub use scheduling_key::STARTS_PER_PRIORITY;
pub use stats::{
    BranchStats, CachedNode, HostCacheStats, MAX_RECENT_STEPS, RecentStep, RunningStats, SlotStats, Stats, StepTimes, Tier,
};
pub use stream::{
    Completions, Fork, ForkDestination, ForkKind, ForkPoint, ForkResult, ForkTextBoundary, MAX_BYTES_BEHIND, MAX_ENDED_BYTES,
    MAX_EVENTS_BEHIND, MAX_WAKE_INTERVAL, PendingFork, Ready, WAKE_INTERVAL, WakeHandle,
};

use crate::cache::{self, DigestCursor, MAX_KEY_BYTES, PrefixDigest};
use crate::config::Limits;
use crate::error::{Error, Result, each_branch};
use crate::request::{
    AdapterScale, BeamSearch, MAX_COMPLETIONS, PinnedPrefix, Prompt, Request, Run, SlotContents, Task, Token, validate_adapters,
};
use crate::sampling::{Sampler, TokenStrings};
use control::open_stream;
use output::SharedState;
use questions::Question;
use request_group::{QueuePermit, RequestGroup};
use runner::{AdapterSchedule, AdapterSet, DefaultAdapters, MemoryKind, Runner};
use transcripts::RetokenizedPrompt;
use worker::{Command, Worker};

/// A handle on the worker thread. Clones share it; the last one to drop ends it, and every open stream with [`Error::Stopped`].
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    limits: Limits,
    known: ModelInfo,
    /// Those of requests that name none.
    adapters: DefaultAdapters,
    n_submitted: AtomicU64,
    /// Unbounded, but holds no more than [`Limits::max_queue`] requests, because `n_waiting` counts them.
    commands: mpsc::Sender<Command>,
    published: Arc<SharedState>,
    worker: Mutex<Option<JoinHandle<()>>>,
    worker_id: ThreadId,
    /// A forked child has no worker thread that could be waited for.
    process_id: u32,
}

/// What callers ask of the runner, which lives on another thread.
struct ModelInfo {
    n_vocab: usize,
    n_adapters: u32,
    /// Of each adapter the tokens from which on it counts, where it does not count from the beginning.
    invocations: Vec<Vec<Token>>,
    lexicon: TokenStrings,
    memory: MemoryKind,
    is_repeatable: bool,
    uses_own_kernels: bool,
    /// Tokens that are never drawn.
    suppressed: Vec<Token>,
}

impl ModelInfo {
    fn of(runner: &impl Runner) -> Self {
        Self {
            n_vocab: runner.n_vocab(),
            n_adapters: runner.n_adapters(),
            invocations: (0..runner.n_adapters()).map(|id| runner.invocation(id).to_vec()).collect(),
            lexicon: runner.lexicon(),
            memory: runner.memory_kind(),
            is_repeatable: runner.is_repeatable(),
            uses_own_kernels: runner.uses_own_kernels(),
            suppressed: runner.suppressed_tokens().to_vec(),
        }
    }

    /// The activated adapter (aLoRA) among those that are on.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for adapters that are not there, and where several are activated ones.
    fn check_adapters(&self, adapters: &[AdapterScale]) -> Result<Option<u32>> {
        validate_adapters(adapters, self.n_adapters)?;
        let mut activated =
            adapters.iter().filter(|&&(id, scale)| scale != 0.0 && !self.invocations[id as usize].is_empty()).map(|&(id, _)| id);
        let first = activated.next();
        if let (Some(first), Some(second)) = (first, activated.next()) {
            let message = format!("adapters has {first} and {second}; of activated adapters (aLoRA), a text has at most one");
            return Err(Error::InvalidRequest { param: "adapters", message });
        }
        Ok(first)
    }

    /// How a text is computed that begins with `prompt` and `suffix`: with these adapters, an activated one of them from `invoked_at` on or,
    /// where that says nothing, from the last place where the prompt has its invocation.
    ///
    /// # Errors
    /// As [`ModelInfo::check_adapters`].
    fn variants(
        &self,
        adapters: &[AdapterScale],
        invoked_at: Option<u32>,
        prompt: &Prompt,
        suffix: &[Token],
    ) -> Result<AdapterSchedule> {
        let all = || adapters.iter().copied();
        let Some(activated) = self.check_adapters(adapters)? else { return Ok(AdapterSet::with_adapters(all()).into()) };
        let others = AdapterSet::with_adapters(all().filter(|&(id, _)| id != activated));
        let invocation = &self.invocations[activated as usize];
        let invoked_at = invoked_at.or_else(|| cache::invoked_at(prompt.ids().chain(suffix.iter().copied()), invocation));
        Ok(match invoked_at {
            Some(place) => AdapterSchedule::changing(others, place, AdapterSet::with_adapters(all())),
            None => others.into(),
        })
    }
}

/// A memory that cannot be cut keeps its state at `place`, where others part from a text that they share up to there.
fn add_checkpoint(snapshots_at: &mut Vec<u32>, place: Option<u32>) {
    if let Some(place) = place.filter(|&place| place > 0)
        && let Err(at) = snapshots_at.binary_search(&place)
    {
        snapshots_at.insert(at, place);
    }
}

/// A request that this engine can serve.
struct ValidatedRequest {
    request: Request,
    /// How its prompt and its branches are computed.
    variants: AdapterSchedule,
    /// The adapters that are on where each counts from the beginning.
    asked_for: AdapterSet,
    /// What of its prompt was written here.
    written: Vec<Range<u32>>,
}

/// Requests of one stream that begin alike, each with the place of its first branch in the stream; at least one.
struct PromptGroup(Vec<(u32, ValidatedRequest)>);

/// Puts requests together that begin alike, in the order of the first of each kind.
fn group(accepted: Vec<ValidatedRequest>) -> Vec<PromptGroup> {
    let mut kinds: Vec<PromptGroup> = Vec::new();
    let mut first = 0;
    for one in accepted {
        let at = first;
        first += one.request.n;
        let is_alike = |PromptGroup(alike): &&mut PromptGroup| {
            let (_, other) = &alike[0];
            other.variants == one.variants && other.request.begins_as(&one.request)
        };
        match kinds.iter_mut().find(is_alike) {
            Some(PromptGroup(alike)) => alike.push((at, one)),
            None => kinds.push(PromptGroup(vec![(at, one)])),
        }
    }
    kinds
}

/// Checks how many branches a stream has, and that they are written.
///
/// # Errors
/// As [`Engine::submit_branches`].
fn check_branches(requests: &[Request]) -> Result<()> {
    let refuse = |message: String| Err(Error::InvalidRequest { param: "branches", message });
    if requests.is_empty() {
        return refuse("branches is empty; it must have at least one".into());
    }
    let n: u64 = requests.iter().map(|request| u64::from(request.n)).sum();
    if requests.len() > 1 && n > u64::from(MAX_COMPLETIONS) {
        return refuse(format!("there are {n} branches; there may be {MAX_COMPLETIONS}"));
    }
    if requests.len() > 1 && requests.iter().any(|request| request.task != Task::Complete) {
        return refuse("a prompt that is not continued has no branches".into());
    }
    if let Some(param) = requests.iter().find_map(|request| request.diversity.param()).filter(|_| requests.len() > 1) {
        return refuse(format!("{param} is about the n completions of one request; leave it or the branches out"));
    }
    Ok(())
}

/// The worker runs as long as this lives, also if it panics.
struct AliveGuard(Arc<SharedState>);

impl AliveGuard {
    fn new(published: &Arc<SharedState>) -> Self {
        published.is_running.store(true, Ordering::Release);
        Self(Arc::clone(published))
    }
}

impl Drop for AliveGuard {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Release);
    }
}

impl Engine {
    /// Starts the worker thread, which builds its runner by `build` and then serves requests.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for `limits` that no configuration settles to; what `build` answers; [`Error::Stopped`] if the
    /// thread could not be started or died in `build`.
    pub fn start<R, F>(limits: Limits, build: F) -> Result<Self>
    where
        R: Runner,
        F: FnOnce() -> Result<R> + Send + 'static,
    {
        limits.validate()?;
        let (commands, received) = mpsc::channel();
        let (tell, told) = mpsc::sync_channel(1);
        let published = Arc::new(SharedState::default());
        let worker = {
            let published = Arc::clone(&published);
            thread::Builder::new().name("weft-worker".into()).spawn(move || match build() {
                Ok(runner) => {
                    let known = (ModelInfo::of(&runner), runner.default_adapters());
                    let _alive = AliveGuard::new(&published);
                    let worker = Worker::new(runner, limits, received, published);
                    if tell.send(Ok(known)).is_ok() {
                        worker.run();
                    }
                }
                // Whoever started the engine may have gone; then nobody is left to tell.
                Err(error) => drop(tell.send(Err(error))),
            })
        };
        let worker = worker.map_err(|_| Error::Stopped)?;
        let (known, adapters) = told.recv().map_err(|_| Error::Stopped)??;
        let adapters = Arc::new(Mutex::new(adapters));
        let (worker_id, worker) = (worker.thread().id(), Mutex::new(Some(worker)));
        let process_id = std::process::id();
        let n_submitted = AtomicU64::new(0);
        let inner = Inner { limits, known, adapters, n_submitted, commands, published, worker, worker_id, process_id };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The numbers that were settled when the model was loaded.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// The vocabulary: spells the tokens of events.
    #[must_use]
    pub fn lexicon(&self) -> &TokenStrings {
        &self.inner.known.lexicon
    }

    /// What the model's memory can do.
    #[must_use]
    pub fn memory_kind(&self) -> MemoryKind {
        self.inner.known.memory
    }

    /// Whether a seeded request draws the same tokens whoever else is served, however often it is asked; see
    /// [`Runner::is_repeatable`].
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        self.inner.known.is_repeatable
    }

    /// Returns whether Weft's own kernels compute every attention and every product of the model, on the CPU.
    #[must_use]
    pub fn uses_own_kernels(&self) -> bool {
        self.inner.known.uses_own_kernels
    }

    /// Queues `request` and returns its stream at once. `bell` is rung whenever the stream has something new.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], [`Error::ContextOverflow`] for a prompt of `n_ctx_slot` tokens or more, [`Error::QueueFull`],
    /// [`Error::Stopped`].
    pub fn submit(&self, request: Request, bell: Option<Arc<dyn WakeHandle>>) -> Result<Completions> {
        self.submit_branches(vec![request], bell)
    }

    /// Queues requests whose completions are the branches of one stream, counted through in their order: branch `i` of each draws
    /// with its request's `seed + i`. All of them continue one prompt, each behind its own [`Request::suffix`] and in its own way.
    ///
    /// What the prompts have in common is computed once, as of any requests with equal adapters; where they are equal to the end, so
    /// are the logits after them. What is told of the prompt is told of the first request's. Requests that begin alike take one place
    /// in the queue.
    ///
    /// # Errors
    /// As [`Engine::submit`], for any of them; [`Error::InvalidRequest`] too where there are none, where they ask for more than
    /// [`MAX_COMPLETIONS`] together, and where one of several only wants its prompt. Then none is queued.
    pub fn submit_branches(&self, requests: Vec<Request>, bell: Option<Arc<dyn WakeHandle>>) -> Result<Completions> {
        let Inner { limits, n_submitted, commands, published, .. } = &*self.inner;
        check_branches(&requests)?;
        let n = requests.iter().map(|request| request.n).sum();
        let kinds = group(each_branch(requests.into_iter(), |request| self.accept(request))?);
        let take_place = |_: &_| QueuePermit::acquire(&published.n_waiting, limits.max_queue as usize);
        let places = kinds.iter().map(take_place).collect::<std::result::Result<Vec<QueuePermit>, usize>>();
        let places = places.map_err(|n_waiting| Error::QueueFull { n_waiting, unit: "requests" })?;
        let stream_id = n_submitted.fetch_add(kinds.len() as u64, Ordering::Relaxed);
        let (sender, mut completions) = open_stream(&self.inner, stream_id, n, bell);
        completions.set_prompt(kinds[0].0[0].1.request.prompt.n_tokens());
        let sender = Arc::new(sender);
        let jobs = (stream_id..).zip(kinds).zip(places).map(|((request_id, PromptGroup(alike)), place)| {
            let mut requests = Vec::with_capacity(alike.len());
            let mut of_all = None;
            for (first, ValidatedRequest { mut request, variants, asked_for, written }) in alike {
                let sampler = self.inner.sampler(&mut request);
                requests.push((first, request, sampler));
                of_all.get_or_insert((variants, asked_for, written));
            }
            let mut job = RequestGroup::new(request_id, requests, Arc::clone(&sender), place);
            (job.variants, job.asked_for, job.written) = of_all.expect("there is a request of each kind");
            job.stream_id = stream_id;
            if request_id != stream_id {
                job.untold = None;
            }
            if let Some(grouping) = limits.grouping.filter(|_| job.request.task == Task::Complete) {
                job.grouped_from = grouping.first(job.n_prompt());
            }
            job
        });
        commands.send(Command::Submit(jobs.collect())).map_err(|_| Error::Stopped)?;
        Ok(completions)
    }

    /// Checks a request against this engine, and says how its text is computed.
    ///
    /// # Errors
    /// As [`Engine::submit`], but for what the queue says.
    fn accept(&self, mut request: Request) -> Result<ValidatedRequest> {
        let Inner { limits, known, .. } = &*self.inner;
        request.validate(known.n_vocab)?;
        let (adapters, invoked_at) = match (&request.task, request.adapters.take()) {
            (Task::Load(saved), _) => (saved.adapters.clone(), saved.invoked_at),
            (_, Some(adapters)) => (adapters, request.invoked_at),
            (_, None) => (self.adapters(), request.invoked_at),
        };
        known.check_adapters(&adapters)?;
        self.inner.check_way(&request)?;
        let asked_for = AdapterSet::with_adapters(adapters.iter().copied());
        // Before it is known where an adapter counts: that is a place in the tokens that are computed.
        let (written, invoked_at) = self.keep_answers(&mut request, &asked_for, invoked_at);
        let variants = known.variants(&adapters, invoked_at, &request.prompt, &request.suffix)?;
        if known.memory.is_a_state() {
            add_checkpoint(&mut request.snapshots_at, variants.change());
            // Where the others part from it, and before the first token that log-probabilities are told of.
            let n_shared = u32::try_from(request.prompt.n_tokens()).ok().filter(|_| !request.suffix.is_empty());
            add_checkpoint(&mut request.snapshots_at, n_shared);
            add_checkpoint(&mut request.snapshots_at, request.prompt_logprobs_from.checked_sub(1));
        }
        let (n_prompt, n_ctx) = (request.n_tokens(), limits.n_ctx_slot as usize);
        if n_prompt >= n_ctx {
            return Err(Error::ContextOverflow { n_prompt, n_ctx });
        }
        let n_at_once = request.prompt.media().iter().filter(|of| of.media.sees_ahead()).map(|of| of.media.n_tokens()).max();
        if let Some(n) = n_at_once.filter(|&n| n > limits.n_ubatch) {
            let n_ubatch = limits.n_ubatch;
            let message = format!("a picture of {n} places is computed in one decode, which has at most n_ubatch = {n_ubatch}");
            return Err(Error::InvalidRequest { param: "prompt", message });
        }
        self.accept_beams(&mut request)?;
        Ok(ValidatedRequest { request, variants, asked_for, written })
    }

    /// Checks that the beams of a request, where it has some, have their slots.
    ///
    /// # Errors
    /// As [`Engine::accept`].
    fn accept_beams(&self, request: &mut Request) -> Result<()> {
        let Limits { n_slots, grouping, .. } = &self.inner.limits;
        let refuse = |message: String| Err(Error::InvalidRequest { param: "beam_width", message });
        let Some(&BeamSearch { width, .. }) = request.diversity.beams() else { return Ok(()) };
        if width > *n_slots {
            return refuse(format!("beam_width is {width}; all beams are in slots together, and there are {n_slots} slots"));
        }
        if grouping.is_some() {
            return refuse("a context whose tokens are grouped is not forked; set grp_attn_n to 1".to_owned());
        }
        // Nothing is drawn, so that it would leave one text: the probabilities are those of the model.
        if request.sampling.temperature <= 0.0 {
            request.sampling.temperature = 1.0;
        }
        Ok(())
    }

    /// What was written for earlier requests with the same adapters is put in the tokens that it was written in, where the prompt has
    /// it and its request wants that. Returns which stretches those are, and where `invoked_at` is then.
    fn keep_answers(
        &self,
        request: &mut Request,
        asked_for: &AdapterSet,
        invoked_at: Option<u32>,
    ) -> (Vec<Range<u32>>, Option<u32>) {
        let unchanged = (Vec::new(), invoked_at);
        let [Run::Tokens(prompt)] = request.prompt.runs() else { return unchanged };
        // Who asks for log-probabilities of a prompt asks for those of its own tokens.
        if !request.keeps_answers || request.prompt_logprobs.is_some() {
            return unchanged;
        }
        let (owner, lexicon) = (request.owner.as_deref(), self.lexicon());
        let texts = self.inner.published.said().texts(owner, asked_for);
        let respelt = transcripts::retokenize(&texts, prompt, lexicon);
        // What was written may be longer than the tokenizer makes it.
        let Some(respelt) = respelt.filter(|respelt| respelt.tokens.len() < self.inner.limits.n_ctx_slot as usize) else {
            return unchanged;
        };
        request.snapshots_at = request.snapshots_at.iter().filter_map(|&at| respelt.place(at)).collect();
        request.system_end = request.system_end.and_then(|at| respelt.place(at));
        let invoked_at = invoked_at.and_then(|at| respelt.place(at));
        if let Some(shift) = &mut request.context_shift {
            shift.n_keep = shift.n_keep.map(|n| respelt.place(n).unwrap_or(n));
        }
        let RetokenizedPrompt { tokens, written, .. } = respelt;
        request.prompt = Prompt::from_tokens(tokens);
        (written, invoked_at)
    }

    /// As [`Engine::adapters`], for whoever computes with them beside the engine: what is said later is seen there.
    #[must_use]
    pub fn default_adapters(&self) -> DefaultAdapters {
        Arc::clone(&self.inner.adapters)
    }

    /// The adapters of requests that name none, each with its scale: what [`Engine::set_adapters`] said last, at first those of the
    /// configuration.
    #[must_use]
    pub fn adapters(&self) -> Vec<AdapterScale> {
        self.inner.adapters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Requests that come from now on and name no adapters get these; what is not named is off. Requests that came before keep
    /// theirs.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] as of a request with these; then nothing changes.
    pub fn set_adapters(&self, adapters: Vec<AdapterScale>) -> Result<()> {
        self.inner.known.check_adapters(&adapters)?;
        *self.inner.adapters.lock().unwrap_or_else(PoisonError::into_inner) = adapters;
        Ok(())
    }

    /// What the engine is doing, as of its last step.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.inner.published.stats().clone();
        stats.n_waiting = self.inner.published.n_waiting.load(Ordering::Acquire);
        stats
    }

    /// The last steps that computed or moved something, oldest first; [`MAX_RECENT_STEPS`] at most.
    #[must_use]
    pub fn recent_steps(&self) -> Vec<RecentStep> {
        self.inner.published.recent_steps().iter().copied().collect()
    }

    /// The prefix tree, parents before their children. The worker answers between two steps, and one step waits while all of it is
    /// copied.
    ///
    /// While requests are running, a step spends a bounded amount of work on questions; the others wait for later steps.
    ///
    /// # Errors
    /// [`Error::Stopped`], as every question that the worker answers.
    pub fn cached(&self) -> Result<Vec<CachedNode>> {
        self.ask(Question::Cached)
    }

    /// The `limit` nodes of the prefix tree that were used most recently, in that order, and how many nodes there are. A node counts
    /// as used when something below it was: parents come before their children, and no node without its parent.
    ///
    /// The cost grows with `limit` and not with the tree.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn recently_used(&self, limit: usize) -> Result<(Vec<CachedNode>, usize)> {
        self.ask(|answer| Question::RecentlyUsed(limit, answer))
    }

    /// Which prefixes can be had, as at most `n_max` hashes of blocks that are made with `key`: see [`block_hashes`].
    ///
    /// The worker answers some of it between two steps, and more between the next two: no step waits for more than some 0.2 ms of it.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for a key of more than [`MAX_KEY_BYTES`] bytes; [`Error::Stopped`].
    ///
    /// [`block_hashes`]: crate::cache::block_hashes
    pub fn prefix_digest(&self, key: &[u8], n_max: usize) -> Result<PrefixDigest> {
        if key.len() > MAX_KEY_BYTES {
            let message = format!("key has {} bytes; it may have {MAX_KEY_BYTES}", key.len());
            return Err(Error::InvalidRequest { param: "key", message });
        }
        let key: Arc<[u8]> = key.into();
        let mut blocks = Vec::new();
        let mut next = Some(DigestCursor::default());
        while let Some(place) = next {
            let some;
            (some, next) = self.ask(|answer| Question::Blocks(Arc::clone(&key), place, answer))?;
            blocks.extend(some);
        }
        Ok(PrefixDigest::new(blocks, n_max))
    }

    /// Every pinned prefix, in the order of their pinning.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn pinned(&self) -> Result<Vec<PinnedPrefix>> {
        self.ask(Question::Pinned)
    }

    /// Lets a pinned prefix be evicted again; `false` where no prefix has that id.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn unpin(&self, id: u64) -> Result<bool> {
        self.ask(|answer| Question::Unpin(id, answer))
    }

    /// The tokens that `slot` holds, and the adapters that they were computed with: those that its sequence has computed, or the last
    /// one's that ran there. A prompt that is pinned, saved, or loaded into no slot in particular runs in a free slot and leaves what
    /// that holds.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for a slot that does not exist; [`Error::Stopped`].
    pub fn held_by_slot(&self, slot: u32) -> Result<SlotContents> {
        self.inner.check_slot(slot)?;
        self.ask(|answer| Question::HeldBySlot(slot, answer))
    }

    /// Forgets the tokens that `slot` holds, in the pool and in the store, as far as no other path holds them; returns how many
    /// the slot held. `None` while a sequence runs there: then nothing is forgotten.
    ///
    /// # Errors
    /// As [`Engine::held_by_slot`].
    pub fn erase_slot(&self, slot: u32) -> Result<Option<u32>> {
        self.inner.check_slot(slot)?;
        self.ask(|answer| Question::EraseSlot(slot, answer))
    }

    fn ask<T>(&self, question: impl FnOnce(mpsc::SyncSender<T>) -> Question) -> Result<T> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.inner.commands.send(Command::Ask(question(answer))).map_err(|_| Error::Stopped)?;
        answered.recv().map_err(|_| Error::Stopped)
    }

    /// Whether the worker lives: it was not stopped and has not panicked.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.inner.published.is_running.load(Ordering::Acquire)
    }

    /// Ends the worker and waits for it. Every open stream ends with [`Error::Stopped`]; later requests are refused with it.
    pub fn stop(&self) {
        self.inner.stop();
    }
}

impl Inner {
    /// Checks what a request says of how its branches go on, where that depends on how this engine was started.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`].
    fn check_way(&self, request: &Request) -> Result<()> {
        let (limits, n_ctx) = (&self.limits, self.limits.n_ctx_slot as usize);
        request.slot.map_or(Ok(()), |slot| self.check_slot(slot))?;
        if limits.grouping.is_some() && request.context_shift.is_some() {
            let message = "a context whose tokens are grouped is not shifted; set grp_attn_n to 1".to_owned();
            return Err(Error::InvalidRequest { param: "context_shift", message });
        }
        let n_penalised = request.sampling.penalty_prompt.as_ref().map_or(0, Vec::len);
        if n_penalised > n_ctx {
            let message = format!("penalty_prompt has {n_penalised} tokens; a slot's context, the limit, holds {n_ctx}");
            return Err(Error::InvalidRequest { param: "penalty_prompt", message });
        }
        Ok(())
    }

    fn check_slot(&self, slot: u32) -> Result<()> {
        let n_slots = self.limits.n_slots;
        if slot < n_slots {
            return Ok(());
        }
        let message = format!("there is no slot {slot}; there are {n_slots}, counted from 0");
        Err(Error::InvalidRequest { param: "slot", message })
    }

    /// Checks tokens against the vocabulary.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] names `param`.
    fn check_tokens(&self, param: &'static str, tokens: &[Token]) -> Result<()> {
        let n_vocab = self.known.n_vocab;
        let is_outside = |token: &&Token| usize::try_from(**token).map_or(true, |id| id >= n_vocab);
        let Some(token) = tokens.iter().find(is_outside) else { return Ok(()) };
        let message = format!("token {token} is outside of the vocabulary of {n_vocab} pieces");
        Err(Error::InvalidRequest { param, message })
    }

    /// What chooses the tokens of a request, and never one that is suppressed: it has seen nothing.
    ///
    /// Here and not on the worker's thread, where the running streams would wait for it.
    fn sampler(&self, request: &mut Request) -> Sampler {
        let ModelInfo { suppressed, lexicon, .. } = &self.known;
        request.sampling.logit_bias.extend(suppressed.iter().map(|&token| (token, f32::NEG_INFINITY)));
        Sampler::new(&request.sampling, request.seed, lexicon, self.limits.n_ctx_slot)
    }

    fn stop(&self) {
        if std::process::id() != self.process_id {
            return;
        }
        // The worker may have died already: then there is nobody to tell, and its streams have ended.
        drop(self.commands.send(Command::Stop));
        if thread::current().id() == self.worker_id {
            // A bell that owns the engine stops it: the worker ends when the bell has rung.
            return;
        }
        // Held while waiting, so that whoever stops it too waits as well. A worker that panicked has said so on its own.
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        drop(worker.take().map(JoinHandle::join));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
