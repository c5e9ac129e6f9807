//! The engine: a handle for callers, and the worker thread that owns the runner and schedules its decodes.
//!
//! [`worker`] runs the loop: receive, schedule, execute, sample, publish. Three owners hold the state of requests, each in a
//! folder whose files alone see its fields: the [`scheduler`] (requests, slots, sequences), the [`cache_manager`] (the runner, its
//! cells, both tiers) and the [`output`] (consumers of streams). The [`features`] are called at `features/hooks` and attach their
//! state by `features/state`, which every file may use. Any other file uses only files that precede it in this table:
//!
//! | files | content |
//! | --- | --- |
//! | `features` `ids` `numbers` `runner` `histograms` `stats` `scheduler/scheduling_key` | the list of features; shared types: ids of groups, streams and branches, counts and means, the model trait, metrics, the priority order |
//! | `cache_manager/move_budget` `cache_manager/guards` `cache_manager` `cache_manager/moves` `cache_manager/reclaim` | the runner, the bookkeeping of its cells, guards that release cells, moves of cells and their budget, free cells and ids |
//! | `output/wake_handle` `output/fork` `output/slow_consumers` `output/stream` `output/completions` | both ends of a stream, forks as its consumer requests them, consumers that lag |
//! | `scheduler/request_group` `scheduler/checkpoint_positions` `scheduler/sequence` `scheduler/running_sequence` | a request, its checkpoint positions, one completion, a completion in a slot |
//! | `scheduler/queue` `scheduler/slots` | the parts of the scheduler: waiting requests, slots |
//! | `scheduler/step_cost` `scheduler/step_budget` `scheduler/step_budget/rows` `scheduler/adapter_round_robin` | rules on plain values: cost and size of a step, adapter round-robin |
//! | `features/forks/fork_state` `features/forks/request` `features/forks/builder` `features/forks` `features/explanations/history` `features/explanations/shared` `features/prompt_logprobs/cache` `features/prompt_logprobs/pending` `features/transcripts` `output` `features/state` | state of the features; the output |
//! | `scheduler` `scheduler/lifecycle` `scheduler/streams` `scheduler/sample` `scheduler/drafting` | the scheduler; how sequences leave; paused streams; sampling; room for drafts |
//! | `features/beams/selection` `features/beams/beam` `features/beams` `features/diversity` `features/explanations` `features/forks/commands` `features/prompt_logprobs` `features/self_extend` `features/speculation/text_index` `features/speculation/acceptance` `features/speculation/gate` `features/speculation/forced_tokens` `features/speculation/drafts` `features/speculation/model_drafts` `features/speculation` `features/hooks` | the features, and their hooks |
//! | `scheduler/checkpoints` `scheduler/prefix_match` `scheduler/resumption` `scheduler/placement` `scheduler/admission` `scheduler/tasks` `scheduler/tier_moves` `scheduler/planning` | the parts of the stage `schedule`, and checkpoints |
//! | `execute` `metrics` `queries` `stall_detector` | the decode, time per stage and published metrics, queries between steps, the check that each step makes progress |
//! | `worker` | the loop |
//! | `validation` `features/forks/control` | checks of requests, commands of the consumers of streams |
#![expect(missing_docs, reason = "what a name and its type say has no comment")]

mod cache_manager;
mod execute;
mod features;
mod histograms;
mod ids;
mod metrics;
mod numbers;
mod output;
mod queries;
pub mod runner;
mod scheduler;
mod stall_detector;
mod stats;
mod validation;
mod worker;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

pub use histograms::{Histogram, RequestHistograms};
pub use output::completions::{Completions, ForkResult, PendingFork, ReadyEvents};
pub use output::fork::{Fork, ForkDestination, ForkKind, ForkPoint, ForkTextBoundary, MAX_ENDED_BYTES};
pub use output::slow_consumers::{MAX_BYTES_BEHIND, MAX_EVENTS_BEHIND};
pub use output::wake_handle::{MAX_WAKE_INTERVAL, WAKE_INTERVAL, WakeHandle};
pub use scheduler::scheduling_key::STARTS_PER_PRIORITY;
pub use stats::{
    BranchStats, CachedNode, DraftSource, DraftStats, HostCacheStats, MAX_RECENT_STEPS, N_DRAFT_POSITIONS, RecentStep,
    RunningStats, SlotStats, SpeculationStats, Stats, StepTimes, Tier,
};

use crate::cache::{DigestCursor, MAX_KEY_BYTES, PrefixDigest};
use crate::config::{DraftKind, Limits};
use crate::error::{Error, Result, each_branch};
use crate::lock::lock;
use crate::request::{AdapterScale, PinnedPrefix, Request, SlotContents, ensure};
use crate::sampling::TokenStrings;
use crate::worker_thread::WorkerThread;
use features::hooks;
use ids::{BranchIndex, GroupId, StreamId};
use metrics::SharedState;
use output::completions;
use output::stream::Sender;
use queries::Query;
use runner::{DefaultAdapters, ForkRule, MemoryKind, Runner};
use scheduler::request_group::{BranchRequest, QueuePermit, RequestGroup};
use validation::{ModelCapabilities, PromptGroup, check_branches, merge};
use worker::{Command, Worker};

/// Handle to the worker thread. Clones share it. Dropping the last one stops the worker and ends every open stream with
/// [`Error::Stopped`].
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    limits: Limits,
    model: ModelCapabilities,
    adapters: DefaultAdapters,
    n_submitted: AtomicU64,
    /// Unbounded, but `n_waiting` limits the requests in it.
    commands: mpsc::Sender<Command>,
    published: Arc<SharedState>,
    worker: WorkerThread,
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
        let published = Arc::new(SharedState::default());
        let (worker, (model, adapters)) = WorkerThread::start("weft-worker", {
            let published = Arc::clone(&published);
            move || {
                let runner = build()?;
                let model = (ModelCapabilities::of(&runner), runner.default_adapters());
                let worker = Worker::new(runner, limits, received, published);
                Ok((model, move || worker.run()))
            }
        })?;
        let adapters = Arc::new(Mutex::new(adapters));
        let n_submitted = AtomicU64::new(0);
        let inner = Inner { limits, model, adapters, n_submitted, commands, published, worker };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    pub fn token_strings(&self) -> &TokenStrings {
        &self.inner.model.token_strings
    }

    pub fn memory_kind(&self) -> MemoryKind {
        self.inner.model.memory
    }

    /// Returns true if a seeded request always samples the same tokens, see [`Runner::is_repeatable`].
    pub fn is_repeatable(&self) -> bool {
        self.inner.model.is_repeatable
    }

    /// Checks that tokens are drafted for sequences.
    ///
    /// # Errors
    /// The reason, if drafts are disabled.
    pub fn check_speculation(&self) -> std::result::Result<(), &'static str> {
        let ModelCapabilities { is_repeatable, memory, .. } = &self.inner.model;
        self.inner.limits.speculation.check(*is_repeatable, memory.forks == ForkRule::Anywhere)
    }

    /// Returns the kind of the draft model that drafts, if there is one.
    pub fn draft_kind(&self) -> Option<DraftKind> {
        self.inner.model.draft_kind
    }

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
    /// If the prompts are equal, so are the logits after them. Reports about the prompt follow the first request. Requests with an
    /// equal beginning take one position in the queue.
    ///
    /// # Errors
    /// As [`Engine::submit`], for any of the requests; also [`Error::InvalidRequest`] if the list is empty, if they have more
    /// than [`MAX_COMPLETIONS`] branches together, or if one of several is not a completion. No request is queued then.
    pub fn submit_branches(&self, requests: Vec<Request>, wake_handle: Option<Arc<dyn WakeHandle>>) -> Result<Completions> {
        let inner = &self.inner;
        check_branches(&requests)?;
        let n = requests.iter().map(|request| request.n).sum();
        let prompt_groups = merge(each_branch(requests.into_iter(), |request| inner.validate(request))?);
        let permits = prompt_groups.iter().map(|_| inner.queue_permit()).collect::<Result<Vec<QueuePermit>>>()?;
        let first_id = inner.n_submitted.fetch_add(prompt_groups.len() as u64, Ordering::Relaxed);
        let stream_id = StreamId(first_id);
        let (sender, completions) = inner.open_stream(stream_id, n, wake_handle);
        let completions = completions.with_prompt(prompt_groups[0].requests[0].1.prompt.n_tokens());
        let sender = Arc::new(sender);
        let groups = (first_id..).map(GroupId).zip(prompt_groups).zip(permits).map(|((group_id, prompt_group), permit)| {
            inner.request_group(group_id, stream_id, prompt_group, Arc::clone(&sender), permit)
        });
        inner.commands.send(Command::Submit(groups.collect())).map_err(|_| Error::Stopped)?;
        Ok(completions)
    }

    pub fn default_adapters(&self) -> DefaultAdapters {
        Arc::clone(&self.inner.adapters)
    }

    pub fn adapters(&self) -> Vec<AdapterScale> {
        self.inner.default_adapters()
    }

    /// Sets the default adapters of later requests; adapters that are not listed are off. Earlier requests keep theirs.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] as for a request with these adapters; nothing changes then.
    pub fn set_adapters(&self, adapters: Vec<AdapterScale>) -> Result<()> {
        self.inner.model.check_adapters(&adapters)?;
        *lock(&self.inner.adapters) = adapters;
        Ok(())
    }

    pub fn stats(&self) -> Stats {
        let mut stats = self.inner.published.stats().clone();
        stats.n_waiting = self.inner.published.n_waiting.load(Ordering::Acquire);
        stats
    }

    /// Returns up to [`MAX_RECENT_STEPS`] of the last steps that computed or moved cells, oldest first.
    pub fn recent_steps(&self) -> Vec<RecentStep> {
        self.inner.published.recent_steps().iter().copied().collect()
    }

    /// Returns the prefix tree, parents before their children. Copying the whole tree delays one step; while requests are running,
    /// further queries then wait for later steps.
    ///
    /// # Errors
    /// [`Error::Stopped`], as for every query that the worker answers.
    pub fn cached(&self) -> Result<Vec<CachedNode>> {
        self.ask(Query::Cached)
    }

    /// Returns the `limit` most recently used nodes of the prefix tree, parents before their children, and the total number of
    /// nodes. O(`limit`). Use of a node counts as use of its ancestors.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn recently_used(&self, limit: usize) -> Result<(Vec<CachedNode>, usize)> {
        self.ask(|answer| Query::RecentlyUsed(limit, answer))
    }

    /// Returns at most `n_max` hashes of cached blocks, made with `key`. The worker answers in parts between steps, each of about
    /// 0.2 ms at most.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for a key of more than [`MAX_KEY_BYTES`] bytes; [`Error::Stopped`].
    pub fn prefix_digest(&self, key: &[u8], n_max: usize) -> Result<PrefixDigest> {
        let message = format_args!("key has {} bytes; it may have at most {MAX_KEY_BYTES}", key.len());
        ensure(key.len() <= MAX_KEY_BYTES, "key", message)?;
        let key: Arc<[u8]> = key.into();
        let (mut blocks, mut next) = (Vec::new(), Some(DigestCursor::default()));
        while let Some(cursor) = next.take() {
            let part;
            (part, next) = self.ask(|answer| Query::Blocks(Arc::clone(&key), cursor, answer))?;
            blocks.extend(part);
        }
        Ok(PrefixDigest::new(blocks, n_max))
    }

    /// Returns all pinned prefixes, in the order of pinning.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn pinned(&self) -> Result<Vec<PinnedPrefix>> {
        self.ask(Query::Pinned)
    }

    /// Makes a pinned prefix evictable again; returns `false` if no prefix has that id.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub fn unpin(&self, id: u64) -> Result<bool> {
        self.ask(|answer| Query::Unpin(id, answer))
    }

    /// Returns the tokens and the adapters of the sequence in `slot`, or else of the last one. Prompts that are only pinned or
    /// saved, or loaded without a slot, do not replace the contents of the slot in which they run.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for a slot that does not exist; [`Error::Stopped`].
    pub fn slot_contents(&self, slot: u32) -> Result<SlotContents> {
        self.inner.check_slot(slot)?;
        self.ask(|answer| Query::SlotContents(slot, answer))
    }

    /// Evicts the tokens in `slot` from the device cache and the host cache, except tokens that other paths share, and returns
    /// how many the slot held. Returns `None`, and evicts nothing, while a sequence runs there.
    ///
    /// # Errors
    /// As [`Engine::slot_contents`].
    pub fn erase_slot(&self, slot: u32) -> Result<Option<u32>> {
        self.inner.check_slot(slot)?;
        self.ask(|answer| Query::EraseSlot(slot, answer))
    }

    fn ask<T>(&self, query: impl FnOnce(mpsc::SyncSender<T>) -> Query) -> Result<T> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.inner.commands.send(Command::Ask(query(answer))).map_err(|_| Error::Stopped)?;
        answered.recv().map_err(|_| Error::Stopped)
    }

    /// Returns true while the worker runs: it was not stopped and has not panicked.
    pub fn is_running(&self) -> bool {
        self.inner.worker.is_running()
    }

    /// Stops the worker and waits for it. Every open stream ends with [`Error::Stopped`]; later requests fail with it.
    pub fn stop(&self) {
        self.inner.stop();
    }
}

impl Inner {
    /// Returns both ends of a new stream of `n` branches.
    fn open_stream(
        self: &Arc<Self>,
        stream_id: StreamId,
        n: u32,
        wake_handle: Option<Arc<dyn WakeHandle>>,
    ) -> (Sender, Completions) {
        let canceller = self.commands.clone();
        // If the worker has stopped, there is nothing to cancel.
        let cancel = move |branch: Option<BranchIndex>| {
            let command = branch.map_or(Command::Cancel(stream_id), |branch| Command::CancelBranch(stream_id, branch));
            canceller.send(command).unwrap_or_default();
        };
        let (sender, mut completions) = completions::open_stream(stream_id, n, wake_handle, Box::new(cancel));
        hooks::on_open_stream(self, stream_id, &mut completions);
        (sender, completions)
    }

    fn request_group(
        &self,
        group_id: GroupId,
        stream_id: StreamId,
        prompt_group: PromptGroup,
        sender: Arc<Sender>,
        permit: QueuePermit,
    ) -> RequestGroup {
        let PromptGroup { requests, adapter_schedule, requested_adapters, features } = prompt_group;
        let requests = requests.into_iter().map(|(first, mut request)| {
            let sampler = self.sampler(&mut request);
            BranchRequest { first, request, sampler }
        });
        let mut group = RequestGroup::new(group_id, stream_id, requests.collect(), sender, permit);
        (group.adapter_schedule, group.requested_adapters, group.features) = (adapter_schedule, requested_adapters, features);
        hooks::on_new_group(&self.limits, &mut group);
        group
    }

    /// Counts a request in the queue until the permit is dropped.
    fn queue_permit(&self) -> Result<QueuePermit> {
        QueuePermit::acquire(&self.published.n_waiting, self.limits.max_queue as usize)
            .map_err(|n_waiting| Error::QueueFull { n_waiting, unit: "requests" })
    }

    fn default_adapters(&self) -> Vec<AdapterScale> {
        lock(&self.adapters).clone()
    }

    fn stop(&self) {
        if self.worker.is_of_this_process() {
            // If the worker has already ended, so have its streams.
            drop(self.commands.send(Command::Stop));
            self.worker.join();
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
