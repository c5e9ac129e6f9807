//! Forks that are being built. Replaying their branch's text may take several steps.

use std::ops::Range;
use std::sync::Arc;

use crate::engine::features::forks::fork_state::ForkState;
use crate::engine::features::forks::request::{ForkAnswer, ForkBranches, ForkSource, ForkSpec, REPLAY_COST};
use crate::engine::features::state::SpecFeatures;
use crate::engine::ids::{BranchIndex, BranchKey, GroupId};
use crate::engine::output::fork::ForkTextBoundary;
use crate::engine::runner::Runner;
use crate::engine::scheduler::request_group::{BranchRequest, BranchSpec, without_media};
use crate::engine::scheduler::sequence::{Sequence, append_text, incomplete_tail};
use crate::error::{Error, Result};
use crate::request::{Request, Token, reject};
use crate::sampling::Sampler;

/// Minimum replay cost of one set of parameters, in tokens; longer prompts cost more. A step builds at most 256 of them.
const MIN_REPLAY_COST: usize = 32;

const MAX_INCOMPLETE_BYTES: usize = 3;

/// Maximum number of tokens without text that are skipped when searching for text that a branch held back before them.
pub(crate) const MAX_EMPTY_TOKENS: u32 = 1 << 10;

pub(crate) struct ForkCut {
    pub(crate) source: ForkSource,
    /// The branch, if it is in the middle of its generation and is forked at its end.
    pub(crate) running_branch: Option<BranchKey>,
    pub(crate) n_sampled: u32,
    pub(crate) n_tokens: u32,
}

impl ForkCut {
    pub(crate) fn is_end(&self) -> bool {
        self.n_sampled == self.source.n_predicted
    }
}

pub(crate) enum QueuedFork {
    Fork(ForkBuild),
    CancelBranch(BranchIndex),
}

pub(crate) struct ForkBuild {
    pub(crate) answer: ForkAnswer,
    pub(crate) stage: BuildStage,
}

pub(crate) enum BuildStage {
    Searching(Box<CutSearch>),
    Replaying(Box<ForkReplay>),
}

impl ForkBuild {
    pub(crate) fn group_id(&self) -> GroupId {
        match &self.stage {
            BuildStage::Searching(search) => search.spec.group_id,
            BuildStage::Replaying(replay) => replay.group_id,
        }
    }
}

pub(crate) struct CutSearch {
    pub(crate) spec: ForkSpec,
    pub(crate) source: ForkSource,
    at: usize,
    bytes: Vec<u8>,
    n_tokens: u32,
    last_valid: usize,
}

impl CutSearch {
    pub(crate) fn new(spec: ForkSpec, source: ForkSource, at: usize) -> Result<Self> {
        if source.shifted_at.is_some() {
            let message =
                "the context of the branch was shifted, so that byte positions are unknown; give at as a token position";
            return reject("at", message);
        }
        let bytes = source.fork_state.as_deref().map_or_else(Vec::new, ForkState::pending);
        Ok(Self { spec, source, at, bytes, n_tokens: 0, last_valid: 0 })
    }

    /// Reads at most `max_tokens` further tokens. Returns how many were read, and the position in tokens once it is found.
    pub(crate) fn replay(&mut self, max_tokens: usize, runner: &impl Runner) -> Result<(usize, Option<u32>)> {
        let Self { source, at, bytes, n_tokens, last_valid, .. } = self;
        let at = *at;
        let first = source.sampled_range(source.n_predicted).start;
        for n_read in 0.. {
            let n_bytes = bytes.len();
            if incomplete_tail(bytes) == 0 {
                if n_bytes == at {
                    return Ok((n_read, Some(*n_tokens)));
                }
                if n_bytes > at {
                    let message = format!(
                        "at is byte {at}, where no token and character ends; the nearest positions are {last_valid} and {n_bytes}"
                    );
                    return reject("at", message);
                }
                *last_valid = n_bytes;
            }
            if *n_tokens == source.n_predicted {
                break;
            }
            if n_read == max_tokens {
                return Ok((n_read, None));
            }
            append_text(source.tokens.at(first + *n_tokens), &source.branch_spec.request, runner, bytes);
            *n_tokens += 1;
        }
        let n_bytes = bytes.len();
        reject("at", format!("at is byte {at}, but the text has {n_bytes} bytes; the nearest position is {last_valid}"))
    }
}

pub(crate) struct ForkReplay {
    pub(crate) cut: ForkCut,
    pub(crate) group_id: GroupId,
    pub(crate) has_own_stream: bool,
    pub(crate) append: Vec<Token>,
    pub(crate) fork_state: ForkState,
    pub(super) branches: ReplayedBranches,
    /// Bytes held back before the fork that the forks do not publish.
    held_back: Vec<u8>,
    unreplayed: Range<u32>,
    n_appended: usize,
}

pub(super) enum ReplayedBranches {
    Continue { n: u32, sampler: Box<Sampler> },
    Restart { requests: Vec<(Request, Sampler)>, n_replayed: usize, with_own_seeds: bool, can_be_sampled: Arc<[Token]> },
}

impl ForkReplay {
    /// `prompt` ends with `append`. `running` is the branch itself, if it is forked at its end while it runs.
    pub(crate) fn new(
        runner: &impl Runner,
        cut: ForkCut,
        running: Option<&Sequence>,
        (group_id, has_own_stream): (GroupId, bool),
        branches: ForkBranches,
        append: Vec<Token>,
        prompt: &Arc<[Token]>,
    ) -> Result<Self> {
        let source = &cut.source;
        let mut held_back = Vec::new();
        let (fork_state, unreplayed, branches) = match (branches, running) {
            (ForkBranches::Restart { requests, with_own_seeds }, _) => {
                let can_be_sampled = without_media(prompt, &source.media);
                let branches = ReplayedBranches::Restart { requests, n_replayed: 0, with_own_seeds, can_be_sampled };
                held_back = find_held_back(source, cut.n_sampled, runner);
                (new_restart_state(source, cut.n_sampled, runner), 0..0, branches)
            }
            (ForkBranches::Continue(n), Some(sequence)) => {
                (sequence.fork_state(), 0..0, ReplayedBranches::Continue { n, sampler: Box::new(sequence.sampler.branch(0)) })
            }
            (ForkBranches::Continue(n), None) => {
                let branches = ReplayedBranches::Continue { n, sampler: Box::new(source.branch_spec.sampler.branch(0)) };
                (new_initial_state(source, runner)?, source.sampled_range(cut.n_sampled), branches)
            }
        };
        Ok(Self { cut, group_id, has_own_stream, append, fork_state, branches, held_back, unreplayed, n_appended: 0 })
    }

    pub(crate) fn text_boundary(&self) -> ForkTextBoundary {
        let was_published = self.cut.source.has_published_all && self.cut.is_end();
        let text = |bytes: &[u8]| String::from_utf8_lossy(complete_chars(bytes)).into_owned();
        match &self.branches {
            ReplayedBranches::Continue { .. } if self.append.is_empty() => ForkTextBoundary {
                n_shown_again: if was_published { text(&self.fork_state.pending()).chars().count() } else { 0 },
                ..ForkTextBoundary::default()
            },
            _ if was_published => ForkTextBoundary::default(),
            _ => ForkTextBoundary { unshown: text(&self.held_back), n_shown_again: 0 },
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        let samplers_are_ready = match &self.branches {
            ReplayedBranches::Continue { .. } => true,
            ReplayedBranches::Restart { requests, n_replayed, .. } => *n_replayed == requests.len(),
        };
        self.unreplayed.is_empty() && self.n_appended == self.append.len() && samplers_are_ready
    }

    /// Replays at most `max_tokens` tokens, or the prompt for one sampler; returns the cost in replayed tokens.
    pub(crate) fn replay(&mut self, max_tokens: usize, runner: &impl Runner) -> Result<usize> {
        let Self { cut: ForkCut { source, .. }, append, fork_state, branches, held_back, unreplayed, n_appended, .. } = self;
        if unreplayed.start < unreplayed.end {
            let max_tokens = u32::try_from(max_tokens).unwrap_or(u32::MAX);
            let part = unreplayed.start..unreplayed.end.min(unreplayed.start.saturating_add(max_tokens));
            fork_state.accept(source.tokens.of(part.clone()), &source.branch_spec.request, runner);
            source.tokens.of(part.clone()).for_each(|token| branches.accept(token));
            unreplayed.start = part.end;
            return Ok(part.len());
        }
        if *n_appended < append.len() {
            let continues_branch = matches!(branches, ReplayedBranches::Continue { .. });
            let n = if continues_branch { max_tokens.min(append.len() - *n_appended) } else { append.len() };
            let part = &append[*n_appended..*n_appended + n];
            if continues_branch && *n_appended == 0 {
                *held_back = fork_state.pending();
            }
            fork_state.append(part, &source.branch_spec.request).map_err(|token| {
                let piece = String::from_utf8_lossy(runner.token_strings().spelling(token)).into_owned();
                invalid_request("append", format!("the grammar of the branch does not allow the appended text from {piece:?} on"))
            })?;
            for &token in part {
                branches.accept(token);
            }
            *n_appended += n;
            return Ok(if continues_branch { n } else { 0 });
        }
        Ok(branches.replay_next_prompt())
    }
}

impl ReplayedBranches {
    pub(crate) fn n(&self) -> u32 {
        match self {
            Self::Continue { n, .. } => *n,
            Self::Restart { requests, .. } => requests.iter().map(|(request, _)| request.n).sum(),
        }
    }

    /// Replays a token that the branch sampled, or an appended one. Forks with new parameters have it in their prompt.
    fn accept(&mut self, token: Token) {
        if let Self::Continue { sampler, .. } = self {
            sampler.accept(token);
        }
    }

    fn replay_next_prompt(&mut self) -> usize {
        let Self::Restart { requests, n_replayed, can_be_sampled, .. } = self else { return 0 };
        let Some((_, sampler)) = requests.get_mut(*n_replayed) else { return 0 };
        sampler.accept_prompt(Arc::clone(can_be_sampled));
        *n_replayed += 1;
        (can_be_sampled.len() / REPLAY_COST).max(MIN_REPLAY_COST)
    }

    /// The first fork gets index `first` in its stream, and `seed` unless the forks have separate seeds.
    pub(crate) fn into_specs(self, source: &ForkSource, mut first: BranchIndex, mut seed: u32) -> Vec<BranchSpec> {
        match self {
            Self::Continue { n, sampler } => {
                let request = Arc::new(fork_request(&source.branch_spec.request, n, seed));
                let (stops, features) = (Arc::clone(&source.branch_spec.stops), SpecFeatures::default());
                vec![BranchSpec { first, n, request, stops, sampler: *sampler, features }]
            }
            Self::Restart { requests, with_own_seeds, .. } => {
                let branch_spec = |(mut request, sampler): (Request, Sampler)| {
                    let n = request.n;
                    if !with_own_seeds {
                        request.seed = seed;
                    }
                    let branch_spec = BranchSpec::new(BranchRequest { first, request, sampler });
                    (first.0, seed) = (first.0 + n, seed.wrapping_add(n));
                    branch_spec
                };
                requests.into_iter().map(branch_spec).collect()
            }
        }
    }
}

/// Returns the last of the first `n_sampled` sampled tokens, enough for `n_bytes` bytes of text, and the bytes that were held
/// back before them. Stops after [`MAX_EMPTY_TOKENS`] tokens without text, such as control tokens.
fn find_last_sampled(
    source: &ForkSource,
    n_sampled: u32,
    n_bytes: usize,
    runner: &impl Runner,
) -> (Vec<u8>, impl Iterator<Item = Token>) {
    let sampled_range = source.sampled_range(n_sampled);
    let (mut start, mut bytes, mut n_empty) = (sampled_range.end, Vec::new(), 0);
    while start > sampled_range.start && bytes.len() < n_bytes && n_empty < MAX_EMPTY_TOKENS {
        start -= 1;
        let n_before = bytes.len();
        append_text(source.tokens.at(start), &source.branch_spec.request, runner, &mut bytes);
        n_empty += u32::from(bytes.len() == n_before);
    }
    // After a context shift, the tokens between the start of the branch and `sampled_range` are gone.
    let reaches_start = start == sampled_range.start && source.shifted_at.is_none();
    let before = source.fork_state.as_deref().filter(|_| reaches_start).map_or_else(Vec::new, ForkState::pending);
    (before, source.tokens.of(start..sampled_range.end))
}

fn find_held_back(source: &ForkSource, n_sampled: u32, runner: &impl Runner) -> Vec<u8> {
    let BranchSpec { request, stops, .. } = &*source.branch_spec;
    let longest = stops.iter().map(String::len).max().unwrap_or(0);
    let (before, tokens) = find_last_sampled(source, n_sampled, longest, runner);
    ForkState::pending_after(&before, stops, tokens, request, runner)
}

fn new_initial_state(source: &ForkSource, runner: &impl Runner) -> Result<ForkState> {
    let BranchSpec { request, stops, .. } = &*source.branch_spec;
    let has_constraint = request.constraint.is_some() || request.reasoning.is_some();
    if has_constraint && source.shifted_at.is_some() {
        let message = "the context of the branch was shifted, so that its grammar cannot be continued; give the forks a request of their own";
        return reject("at", message);
    }
    let start = || ForkState::new(request, Arc::clone(stops), &runner.token_strings());
    Ok(match source.fork_state.as_deref().filter(|_| source.shifted_at.is_none()) {
        None => start(),
        Some(fork_state @ ForkState::Continue { .. }) => fork_state.clone(),
        // A branch with new parameters starts its grammar and stop strings. Its forks continue both.
        Some(ForkState::Restart(bytes)) => {
            let mut fork_state = start();
            fork_state.add_pending(bytes);
            fork_state
        }
    })
}

fn new_restart_state(source: &ForkSource, n_sampled: u32, runner: &impl Runner) -> ForkState {
    let (mut bytes, tokens) = find_last_sampled(source, n_sampled, MAX_INCOMPLETE_BYTES, runner);
    for token in tokens {
        append_text(token, &source.branch_spec.request, runner, &mut bytes);
    }
    ForkState::Restart(bytes.split_off(complete_chars(&bytes).len()))
}

fn complete_chars(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len() - incomplete_tail(bytes)]
}

fn fork_request(request: &Request, n: u32, seed: u32) -> Request {
    Request {
        n,
        seed,
        slot: None,
        prompt_logprobs: None,
        prompt_logprobs_from: 0,
        reports_progress: false,
        explains_cache: false,
        checkpoints_at: Vec::new(),
        system_end: None,
        ..request.clone()
    }
}

pub(crate) fn stream_ended_error() -> Error {
    invalid_request("stream", "the stream has ended; fork into a stream of its own")
}

pub(crate) fn invalid_request(param: &'static str, message: impl Into<String>) -> Error {
    Error::InvalidRequest { param, message: message.into() }
}
