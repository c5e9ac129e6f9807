//! The engine: a handle for callers, and the worker thread that owns the runner and schedules its decodes.
//!
//! [`worker`] runs the loop: receive, schedule, execute, sample, publish. Three owners hold the state, each in a folder whose files
//! alone see its fields: the [`scheduler`] (requests, slots, sequences), the [`cache_manager`] (the runner, its cells, both tiers)
//! and the [`output`] (readers of streams). [`features`] are called at hooks, which are listed there. A file uses only files that
//! precede it in this table:
//!
//! | files | content |
//! | --- | --- |
//! | `runner` `stats` `scheduler/scheduling_key` `features/explanations/shared` `features/prompt_logprobs/cache` `features/prompt_logprobs/pending` | shared types: the model trait, metrics, the priority order, cache explanations, prompt logprobs and their reports |
//! | `cache_manager/move_budget` `cache_manager/guards` `cache_manager` | the runner, the bookkeeping of its cells, guards that release cells, the budget for tier moves |
//! | `output/stream` `output/slow_consumers` | streams, and the ones whose readers lag |
//! | `scheduler/request_group` `scheduler/checkpoint_positions` `scheduler/sequence` `scheduler/running_sequence` | a request, its checkpoint positions, one completion, a completion in a slot |
//! | `scheduler/queue` `scheduler/slots` `scheduler/outbox` | the parts of the scheduler: waiting requests, slots, events of the step |
//! | `features/forks/request` `features/forks/builder` `features/forks` `features/explanations/history` `features/transcripts` `output` `features/state` | state of the features; published events and who reads them |
//! | `scheduler` `scheduler/lifecycle` `scheduler/streams` `scheduler/room` `scheduler/sample` | the scheduler; how sequences leave; paused streams; room for sequences; sampling |
//! | `features/beams` `features/explanations` `features/forks/commands` `features/prompt_logprobs` `features/self_extend` `features` | the features, and their hooks |
//! | `scheduler/step_cost` `scheduler/step_budget` `scheduler/adapter_round_robin` | rules on plain values: cost and size of a step, adapter round-robin |
//! | `scheduler/checkpoints` `scheduler/prefix_match` `scheduler/resumption` `scheduler/admission` `scheduler/tasks` `scheduler/tier_moves` `scheduler/planning` | the parts of the stage `schedule`, and checkpoints |
//! | `execute` `publish` `questions` `stall_detector` `stopwatch` | the decode, events and metrics, queries between steps, the check that each step makes progress, time per stage |
//! | `worker` | the loop |
//! | `control` | commands of stream readers |

mod cache_manager;
mod control;
mod execute;
mod features;
mod output;
mod publish;
mod questions;
pub mod runner;
mod scheduler;
mod stall_detector;
mod stats;
mod stopwatch;
mod worker;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};

pub use output::stream::{
    Completions, Fork, ForkDestination, ForkKind, ForkPoint, ForkResult, ForkTextBoundary, MAX_BYTES_BEHIND, MAX_ENDED_BYTES,
    MAX_EVENTS_BEHIND, MAX_WAKE_INTERVAL, PendingFork, Ready, WAKE_INTERVAL, WakeHandle,
};
pub use scheduler::scheduling_key::STARTS_PER_PRIORITY;
pub use scheduler::step_budget;
pub use stats::{
    BranchStats, CachedNode, HostCacheStats, MAX_RECENT_STEPS, RecentStep, RunningStats, SlotStats, Stats, StepTimes, Tier,
};

use crate::cache::{self, DigestCursor, MAX_KEY_BYTES, PrefixDigest};
use crate::config::Limits;
use crate::error::{Error, Result, each_branch};
use crate::request::{
    AdapterScale, BeamSearch, MAX_COMPLETIONS, PinnedPrefix, Prompt, Request, Run, SlotContents, Task, Token, validate_adapters,
};
use crate::sampling::{Sampler, TokenStrings};
use control::open_stream;
use features::transcripts::RetokenizedPrompt;
use output::SharedState;
use questions::Question;
use runner::{AdapterSchedule, AdapterSet, DefaultAdapters, MemoryKind, Runner};
use scheduler::request_group::{QueuePermit, RequestGroup};
use worker::{Command, Worker};

/// Handle to the worker thread. Clones share it. Dropping the last one stops the worker and ends every open stream with
/// [`Error::Stopped`].
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    limits: Limits,
    model: ModelInfo,
    /// Default adapters, for requests that name none.
    adapters: DefaultAdapters,
    n_submitted: AtomicU64,
    /// Unbounded, but holds at most [`Limits::max_queue`] requests, because `n_waiting` counts them.
    commands: mpsc::Sender<Command>,
    published: Arc<SharedState>,
    worker: Mutex<Option<JoinHandle<()>>>,
    worker_id: ThreadId,
    /// Id of the process that started the worker. A forked child has no worker thread to join.
    process_id: u32,
}

/// Properties of the model, copied from the runner, which lives on the worker thread.
struct ModelInfo {
    n_vocab: usize,
    n_adapters: u32,
    /// Invocation tokens of each adapter; empty for an adapter that applies from the first token.
    invocations: Vec<Vec<Token>>,
    token_strings: TokenStrings,
    memory: MemoryKind,
    is_repeatable: bool,
    uses_own_kernels: bool,
    /// Tokens that are never sampled.
    suppressed: Vec<Token>,
}

impl ModelInfo {
    fn of(runner: &impl Runner) -> Self {
        Self {
            n_vocab: runner.n_vocab(),
            n_adapters: runner.n_adapters(),
            invocations: (0..runner.n_adapters()).map(|id| runner.invocation(id).to_vec()).collect(),
            token_strings: runner.lexicon(),
            memory: runner.memory_kind(),
            is_repeatable: runner.is_repeatable(),
            uses_own_kernels: runner.uses_own_kernels(),
            suppressed: runner.suppressed_tokens().to_vec(),
        }
    }

    /// Returns the active aLoRA adapter (one with invocation tokens), if any.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for unknown adapters, and for more than one active aLoRA adapter.
    fn check_adapters(&self, adapters: &[AdapterScale]) -> Result<Option<u32>> {
        validate_adapters(adapters, self.n_adapters)?;
        let mut activated =
            adapters.iter().filter(|&&(id, scale)| scale != 0.0 && !self.invocations[id as usize].is_empty()).map(|&(id, _)| id);
        let first = activated.next();
        if let (Some(first), Some(second)) = (first, activated.next()) {
            let message = format!("adapters has {first} and {second}, but a text can have at most one activated adapter (aLoRA)");
            return Err(Error::InvalidRequest { param: "adapters", message });
        }
        Ok(first)
    }

    /// Returns the adapter schedule of a text that begins with `prompt` and `suffix`. An aLoRA adapter applies from
    /// `invoked_at`, or, if that is `None`, from its last invocation in the text.
    ///
    /// # Errors
    /// As [`ModelInfo::check_adapters`].
    fn adapter_schedule(
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
            Some(position) => AdapterSchedule::changing(others, position, AdapterSet::with_adapters(all())),
            None => others.into(),
        })
    }
}

/// Adds a checkpoint position, sorted; a position of 0 needs none.
fn add_checkpoint(snapshots_at: &mut Vec<u32>, position: Option<u32>) {
    if let Some(position) = position.filter(|&position| position > 0)
        && let Err(at) = snapshots_at.binary_search(&position)
    {
        snapshots_at.insert(at, position);
    }
}

/// A request that was checked against this engine.
struct ValidatedRequest {
    request: Request,
    /// Adapter schedule of the prompt and the branches.
    adapter_schedule: AdapterSchedule,
    /// The adapters that were requested, regardless of where each applies from.
    requested_adapters: AdapterSet,
    /// Ranges of the prompt that this engine generated for earlier requests.
    generated_ranges: Vec<Range<u32>>,
}

/// Requests of one stream with an equal beginning, each with the index of its first branch in the stream; never empty.
struct PromptGroup(Vec<(u32, ValidatedRequest)>);

/// Groups requests with an equal beginning, in order of first appearance.
fn group(accepted: Vec<ValidatedRequest>) -> Vec<PromptGroup> {
    let mut prompt_groups: Vec<PromptGroup> = Vec::new();
    let mut first = 0;
    for one in accepted {
        let at = first;
        first += one.request.n;
        let has_equal_beginning = |PromptGroup(same_beginning): &&mut PromptGroup| {
            let (_, other) = &same_beginning[0];
            other.adapter_schedule == one.adapter_schedule && other.request.can_share_prompt_with(&one.request)
        };
        match prompt_groups.iter_mut().find(has_equal_beginning) {
            Some(PromptGroup(same_beginning)) => same_beginning.push((at, one)),
            None => prompt_groups.push(PromptGroup(vec![(at, one)])),
        }
    }
    prompt_groups
}

/// Checks the number of branches of a stream, and that each is a completion.
///
/// # Errors
/// As [`Engine::submit_branches`].
fn check_branches(requests: &[Request]) -> Result<()> {
    let refuse = |message: String| Err(Error::InvalidRequest { param: "branches", message });
    if requests.is_empty() {
        return refuse("branches is empty; it must have at least one item".into());
    }
    let n: u64 = requests.iter().map(|request| u64::from(request.n)).sum();
    if requests.len() > 1 && n > u64::from(MAX_COMPLETIONS) {
        return refuse(format!("branches has {n} items; it may have at most {MAX_COMPLETIONS}"));
    }
    if requests.len() > 1 && requests.iter().any(|request| request.task != Task::Complete) {
        return refuse("branches is set for a task without completions; omit it".into());
    }
    if let Some(param) = requests.iter().find_map(|request| request.diversity.param()).filter(|_| requests.len() > 1) {
        return refuse(format!("{param} applies to the n completions of one request; omit it, or omit branches"));
    }
    Ok(())
}

/// Marks the worker as running until dropped, which also happens if the worker panics.
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
    /// Starts the worker thread, which creates its runner with `build` and then serves requests.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for invalid `limits`; the error of `build`; [`Error::Stopped`] if the thread could not be
    /// started or panicked in `build`.
    pub fn start<R, F>(limits: Limits, build: F) -> Result<Self>
    where
        R: Runner,
        F: FnOnce() -> Result<R> + Send + 'static,
    {
        limits.validate()?;
        let (commands, received) = mpsc::channel();
        let (reply, started) = mpsc::sync_channel(1);
        let published = Arc::new(SharedState::default());
        let worker = {
            let published = Arc::clone(&published);
            thread::Builder::new().name("weft-worker".into()).spawn(move || match build() {
                Ok(runner) => {
                    let model = (ModelInfo::of(&runner), runner.default_adapters());
                    let _alive = AliveGuard::new(&published);
                    let worker = Worker::new(runner, limits, received, published);
                    if reply.send(Ok(model)).is_ok() {
                        worker.run();
                    }
                }
                // If the caller of `start` has stopped waiting, the error is dropped.
                Err(error) => drop(reply.send(Err(error))),
            })
        };
        let worker = worker.map_err(|_| Error::Stopped)?;
        let (model, adapters) = started.recv().map_err(|_| Error::Stopped)??;
        let adapters = Arc::new(Mutex::new(adapters));
        let (worker_id, worker) = (worker.thread().id(), Mutex::new(Some(worker)));
        let process_id = std::process::id();
        let n_submitted = AtomicU64::new(0);
        let inner = Inner { limits, model, adapters, n_submitted, commands, published, worker, worker_id, process_id };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the limits that were resolved when the model was loaded.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Returns the vocabulary, which maps token ids to bytes.
    #[must_use]
    pub fn lexicon(&self) -> &TokenStrings {
        &self.inner.model.token_strings
    }

    /// Returns the capabilities of the model's KV memory.
    #[must_use]
    pub fn memory_kind(&self) -> MemoryKind {
        self.inner.model.memory
    }

    /// Returns true if a seeded request always samples the same tokens, independent of concurrent requests; see
    /// [`Runner::is_repeatable`].
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        self.inner.model.is_repeatable
    }

    /// Returns true if Weft's own CPU kernels compute every attention and matrix product of the model.
    #[must_use]
    pub fn uses_own_kernels(&self) -> bool {
        self.inner.model.uses_own_kernels
    }

    /// Queues `request` and returns its stream without waiting. The wake handle is called whenever the stream has new events.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`], [`Error::ContextOverflow`] for a prompt of `n_ctx_slot` tokens or more, [`Error::QueueFull`],
    /// [`Error::Stopped`].
    pub fn submit(&self, request: Request, wake_handle: Option<Arc<dyn WakeHandle>>) -> Result<Completions> {
        self.submit_branches(vec![request], wake_handle)
    }

    /// Queues requests whose completions are the branches of one stream, numbered consecutively: branch `i` of each request
    /// samples with that request's `seed + i`. All of them continue one prompt, each after its own [`Request::suffix`] and with
    /// its own parameters.
    ///
    /// A common prefix of the prompts is computed once, as for any requests with equal adapters; if the prompts are equal, so
    /// are the logits after them. Reports about the prompt follow the first request. Requests with an equal beginning take one
    /// position in the queue.
    ///
    /// # Errors
    /// As [`Engine::submit`], for any of the requests; also [`Error::InvalidRequest`] if the list is empty, if they have more
    /// than [`MAX_COMPLETIONS`] branches together, or if one of several is not a completion. No request is queued then.
    pub fn submit_branches(&self, requests: Vec<Request>, wake_handle: Option<Arc<dyn WakeHandle>>) -> Result<Completions> {
        let Inner { limits, n_submitted, commands, published, .. } = &*self.inner;
        check_branches(&requests)?;
        let n = requests.iter().map(|request| request.n).sum();
        let prompt_groups = group(each_branch(requests.into_iter(), |request| self.validate(request))?);
        let acquire_permit = |_: &_| QueuePermit::acquire(&published.n_waiting, limits.max_queue as usize);
        let permits = prompt_groups.iter().map(acquire_permit).collect::<std::result::Result<Vec<QueuePermit>, usize>>();
        let permits = permits.map_err(|n_waiting| Error::QueueFull { n_waiting, unit: "requests" })?;
        let stream_id = n_submitted.fetch_add(prompt_groups.len() as u64, Ordering::Relaxed);
        let (sender, mut completions) = open_stream(&self.inner, stream_id, n, wake_handle);
        completions.set_prompt(prompt_groups[0].0[0].1.request.prompt.n_tokens());
        let sender = Arc::new(sender);
        let groups = (stream_id..).zip(prompt_groups).zip(permits).map(|((request_id, PromptGroup(same_beginning)), permit)| {
            let mut requests = Vec::with_capacity(same_beginning.len());
            let mut shared = None;
            for (first, ValidatedRequest { mut request, adapter_schedule, requested_adapters, generated_ranges }) in
                same_beginning
            {
                let sampler = self.inner.sampler(&mut request);
                requests.push((first, request, sampler));
                shared.get_or_insert((adapter_schedule, requested_adapters, generated_ranges));
            }
            let mut group = RequestGroup::new(request_id, requests, Arc::clone(&sender), permit);
            (group.adapter_schedule, group.requested_adapters, group.generated_ranges) =
                shared.expect("there is a request of each kind");
            group.stream_id = stream_id;
            if request_id != stream_id {
                group.pending_report = None;
            }
            if let Some(grouping) = limits.grouping.filter(|_| group.request.task == Task::Complete) {
                group.grouped_from = grouping.first(group.n_prompt());
            }
            group
        });
        commands.send(Command::Submit(groups.collect())).map_err(|_| Error::Stopped)?;
        Ok(completions)
    }

    /// Checks a request against this engine and resolves its adapter schedule.
    ///
    /// # Errors
    /// As [`Engine::submit`], except for [`Error::QueueFull`].
    fn validate(&self, mut request: Request) -> Result<ValidatedRequest> {
        let Inner { limits, model, .. } = &*self.inner;
        request.validate(model.n_vocab)?;
        let (adapters, invoked_at) = match (&request.task, request.adapters.take()) {
            (Task::Load(saved), _) => (saved.adapters.clone(), saved.invoked_at),
            (_, Some(adapters)) => (adapters, request.invoked_at),
            (_, None) => (self.adapters(), request.invoked_at),
        };
        model.check_adapters(&adapters)?;
        self.inner.check_branch_options(&request)?;
        let requested_adapters = AdapterSet::with_adapters(adapters.iter().copied());
        // Must precede the adapter schedule: `invoked_at` is a position in the retokenized prompt.
        let (generated_ranges, invoked_at) = self.retokenize_answers(&mut request, &requested_adapters, invoked_at);
        let adapter_schedule = model.adapter_schedule(&adapters, invoked_at, &request.prompt, &request.suffix)?;
        if model.memory.is_a_state() {
            add_checkpoint(&mut request.snapshots_at, adapter_schedule.change());
            // Checkpoints at the end of the shared prompt and before the first token whose logprobs are reported.
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
            let message = format!(
                "an image of {n} tokens is computed in one decode, which has at most {n_ubatch} tokens (n_ubatch); use a smaller image or raise n_ubatch"
            );
            return Err(Error::InvalidRequest { param: "prompt", message });
        }
        self.validate_beams(&mut request)?;
        Ok(ValidatedRequest { request, adapter_schedule, requested_adapters, generated_ranges })
    }

    /// Checks that a beam search fits into the slots.
    ///
    /// # Errors
    /// As [`Engine::validate`].
    fn validate_beams(&self, request: &mut Request) -> Result<()> {
        let Limits { n_slots, grouping, .. } = &self.inner.limits;
        let refuse = |message: String| Err(Error::InvalidRequest { param: "beam_width", message });
        let Some(&BeamSearch { width, .. }) = request.diversity.beams() else { return Ok(()) };
        if width > *n_slots {
            return refuse(format!(
                "beam_width is {width}; it may be at most {n_slots}, the number of slots, because all beams run at once"
            ));
        }
        if grouping.is_some() {
            return refuse("contexts cannot be forked with self-extend (grp_attn_n above 1), which beam_width requires; omit beam_width, or set grp_attn_n to 1".to_owned());
        }
        // Beam search samples nothing, so temperature 0 must not reduce it to one text: it ranks by the model's probabilities.
        if request.sampling.temperature <= 0.0 {
            request.sampling.temperature = 1.0;
        }
        Ok(())
    }

    /// Replaces text that was generated for earlier requests with the same adapters by its original tokens, if the prompt
    /// contains it and the request permits it. Returns the ranges of those tokens and the new `invoked_at`.
    fn retokenize_answers(
        &self,
        request: &mut Request,
        requested_adapters: &AdapterSet,
        invoked_at: Option<u32>,
    ) -> (Vec<Range<u32>>, Option<u32>) {
        let unchanged = (Vec::new(), invoked_at);
        let [Run::Tokens(prompt)] = request.prompt.runs() else { return unchanged };
        // Prompt logprobs are reported for the submitted tokens.
        if !request.keeps_answers || request.prompt_logprobs.is_some() {
            return unchanged;
        }
        let (owner, token_strings) = (request.owner.as_deref(), self.lexicon());
        let texts = self.inner.published.transcripts().texts(owner, requested_adapters);
        let retokenized = features::transcripts::retokenize(&texts, prompt, token_strings);
        // The original tokens may be more than the tokenizer's.
        let Some(retokenized) =
            retokenized.filter(|retokenized| retokenized.tokens.len() < self.inner.limits.n_ctx_slot as usize)
        else {
            return unchanged;
        };
        request.snapshots_at = request.snapshots_at.iter().filter_map(|&at| retokenized.map_position(at)).collect();
        request.system_end = request.system_end.and_then(|at| retokenized.map_position(at));
        let invoked_at = invoked_at.and_then(|at| retokenized.map_position(at));
        if let Some(shift) = &mut request.context_shift {
            shift.n_keep = shift.n_keep.map(|n| retokenized.map_position(n).unwrap_or(n));
        }
        let RetokenizedPrompt { tokens, generated_ranges, .. } = retokenized;
        request.prompt = Prompt::from_tokens(tokens);
        (generated_ranges, invoked_at)
    }

    /// Returns the shared default adapters, for other workers: later calls of [`Engine::set_adapters`] are visible there.
    #[must_use]
    pub fn default_adapters(&self) -> DefaultAdapters {
        Arc::clone(&self.inner.adapters)
    }

    /// Returns the default adapters with their scales, as set by the last [`Engine::set_adapters`], initially by the
    /// configuration.
    #[must_use]
    pub fn adapters(&self) -> Vec<AdapterScale> {
        self.inner.adapters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the default adapters of later requests; adapters that are not listed are off. Earlier requests keep theirs.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] as for a request with these adapters; nothing changes then.
    pub fn set_adapters(&self, adapters: Vec<AdapterScale>) -> Result<()> {
        self.inner.model.check_adapters(&adapters)?;
        *self.inner.adapters.lock().unwrap_or_else(PoisonError::into_inner) = adapters;
        Ok(())
    }

    /// Returns the metrics as of the last step.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.inner.published.stats().clone();
        stats.n_waiting = self.inner.published.n_waiting.load(Ordering::Acquire);
        stats
    }

    /// Returns up to [`MAX_RECENT_STEPS`] of the last steps that computed or moved cells, oldest first.
    #[must_use]
    pub fn recent_steps(&self) -> Vec<RecentStep> {
        self.inner.published.recent_steps().iter().copied().collect()
    }

    /// Returns the prefix tree, parents before their children. The worker answers between two steps, and copying the whole tree
    /// delays one step.
    ///
    /// While requests are running, a step spends a bounded amount of work on queries; the others wait for later steps.
    ///
    /// # Errors
    /// [`Error::Stopped`], as for every query that the worker answers.
    pub fn cached(&self) -> Result<Vec<CachedNode>> {
        self.ask(Question::Cached)
    }

    /// Returns the `limit` most recently used nodes of the prefix tree, in that order, and the total number of nodes. Use of a
    /// node counts as use of its ancestors: parents come before their children, and no node without its parent.
    ///
    /// O(`limit`), independent of the size of the tree.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn recently_used(&self, limit: usize) -> Result<(Vec<CachedNode>, usize)> {
        self.ask(|answer| Question::RecentlyUsed(limit, answer))
    }

    /// Returns at most `n_max` hashes of cached blocks, made with `key`: see [`block_hashes`].
    ///
    /// The worker answers in parts between steps, each of about 0.2 ms at most.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for a key of more than [`MAX_KEY_BYTES`] bytes; [`Error::Stopped`].
    ///
    /// [`block_hashes`]: crate::cache::block_hashes
    pub fn prefix_digest(&self, key: &[u8], n_max: usize) -> Result<PrefixDigest> {
        if key.len() > MAX_KEY_BYTES {
            let message = format!("key has {} bytes; it may have at most {MAX_KEY_BYTES}", key.len());
            return Err(Error::InvalidRequest { param: "key", message });
        }
        let key: Arc<[u8]> = key.into();
        let mut blocks = Vec::new();
        let mut next = Some(DigestCursor::default());
        while let Some(cursor) = next {
            let some;
            (some, next) = self.ask(|answer| Question::Blocks(Arc::clone(&key), cursor, answer))?;
            blocks.extend(some);
        }
        Ok(PrefixDigest::new(blocks, n_max))
    }

    /// Returns all pinned prefixes, in the order of pinning.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn pinned(&self) -> Result<Vec<PinnedPrefix>> {
        self.ask(Question::Pinned)
    }

    /// Makes a pinned prefix evictable again; returns `false` if no prefix has that id.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn unpin(&self, id: u64) -> Result<bool> {
        self.ask(|answer| Question::Unpin(id, answer))
    }

    /// Returns the tokens in `slot` and the adapters that they were computed with, of its sequence or of the last
    /// sequence that ran there. Prompts that are only pinned or saved, or loaded without a slot, run in a free slot and do not
    /// replace its contents.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for a slot that does not exist; [`Error::Stopped`].
    pub fn slot_contents(&self, slot: u32) -> Result<SlotContents> {
        self.inner.check_slot(slot)?;
        self.ask(|answer| Question::SlotContents(slot, answer))
    }

    /// Evicts the tokens in `slot` from the device cache and the host cache, except tokens that other paths share, and returns
    /// how many the slot held. Returns `None`, and evicts nothing, while a sequence runs there.
    ///
    /// # Errors
    /// As [`Engine::slot_contents`].
    pub fn erase_slot(&self, slot: u32) -> Result<Option<u32>> {
        self.inner.check_slot(slot)?;
        self.ask(|answer| Question::EraseSlot(slot, answer))
    }

    fn ask<T>(&self, question: impl FnOnce(mpsc::SyncSender<T>) -> Question) -> Result<T> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.inner.commands.send(Command::Ask(question(answer))).map_err(|_| Error::Stopped)?;
        answered.recv().map_err(|_| Error::Stopped)
    }

    /// Returns true while the worker runs: it was not stopped and has not panicked.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.inner.published.is_running.load(Ordering::Acquire)
    }

    /// Stops the worker and waits for it. Every open stream ends with [`Error::Stopped`]; later requests fail with it.
    pub fn stop(&self) {
        self.inner.stop();
    }
}

impl Inner {
    /// Checks the parts of a request that depend on the configuration of this engine, other than the prompt.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`].
    fn check_branch_options(&self, request: &Request) -> Result<()> {
        let (limits, n_ctx) = (&self.limits, self.limits.n_ctx_slot as usize);
        request.slot.map_or(Ok(()), |slot| self.check_slot(slot))?;
        if limits.grouping.is_some() && request.context_shift.is_some() {
            let message =
                "contexts cannot be shifted with self-extend (grp_attn_n above 1); omit context_shift, or set grp_attn_n to 1"
                    .to_owned();
            return Err(Error::InvalidRequest { param: "context_shift", message });
        }
        let n_penalised = request.sampling.penalty_prompt.as_ref().map_or(0, Vec::len);
        if n_penalised > n_ctx {
            let message = format!("penalty_prompt has {n_penalised} tokens; it may have at most {n_ctx}, the context of a slot");
            return Err(Error::InvalidRequest { param: "penalty_prompt", message });
        }
        Ok(())
    }

    fn check_slot(&self, slot: u32) -> Result<()> {
        let n_slots = self.limits.n_slots;
        if slot < n_slots {
            return Ok(());
        }
        let message = format!("slot is {slot}; it must be less than {n_slots}, the number of slots");
        Err(Error::InvalidRequest { param: "slot", message })
    }

    /// Checks that tokens are in the vocabulary.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] with `param`.
    fn check_tokens(&self, param: &'static str, tokens: &[Token]) -> Result<()> {
        let n_vocab = self.model.n_vocab;
        let is_outside = |token: &&Token| usize::try_from(**token).map_or(true, |id| id >= n_vocab);
        let Some(token) = tokens.iter().find(is_outside) else { return Ok(()) };
        let message = format!("token {token} is outside of the vocabulary of {n_vocab} pieces");
        Err(Error::InvalidRequest { param, message })
    }

    /// Creates the sampler of a request. Suppressed tokens get a bias of -∞.
    ///
    /// Called on the caller's thread: on the worker's it would delay the running streams.
    fn sampler(&self, request: &mut Request) -> Sampler {
        let ModelInfo { suppressed, token_strings, .. } = &self.model;
        request.sampling.logit_bias.extend(suppressed.iter().map(|&token| (token, f32::NEG_INFINITY)));
        Sampler::new(&request.sampling, request.seed, token_strings, self.limits.n_ctx_slot)
    }

    fn stop(&self) {
        if std::process::id() != self.process_id {
            return;
        }
        // If the worker has already ended, so have its streams.
        drop(self.commands.send(Command::Stop));
        if thread::current().id() == self.worker_id {
            // A wake handle that owns the engine stops it from the worker thread, which ends after the handle returns.
            return;
        }
        // Locked while joining, so that concurrent calls wait as well. A panic of the worker was already reported by its own
        // thread.
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
