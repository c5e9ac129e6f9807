//! Forks that are being made: what is read for them is read over several steps, where it is much.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::engine::fork_request::{ForkAnswer, ForkBranches, ForkSource, ForkSpec, READ_AGAIN};
use crate::engine::request_group::BranchSpec;
use crate::engine::runner::Runner;
use crate::engine::sequence::{ForkState, Sequence, append_text, incomplete_tail};
use crate::engine::stream::{ForkTextBoundary, Sender};
use crate::error::{Error, Result};
use crate::request::{Request, Token, is_of_medium};
use crate::sampling::Sampler;

/// To make one way to go on counts for so many tokens that are read again, and where a prompt is longer, for that: a step makes 256.
const READ_PER_WAY: usize = 32;

/// A character of which bytes are missing has at most so many.
const MAX_INCOMPLETE: usize = 3;

/// Where so many tokens that spell nothing stand among the last ones that a branch drew, what it held back before them is not looked for.
pub(super) const MAX_SILENT: u32 = 1 << 10;

/// Where a branch is forked.
pub(super) struct ForkCut {
    pub(super) source: ForkSource,
    /// The end of the branch's stream.
    pub(super) sender: Arc<Sender>,
    /// Its job and its place there, where it was in a slot, has not ended, and is forked at its end.
    pub(super) live: Option<(u64, u32)>,
    /// After so many of the tokens that it has drawn.
    pub(super) n_said: u32,
    /// All before the place.
    pub(super) n_tokens: u32,
    pub(super) is_end: bool,
}

/// What waits in the line of a stream.
pub(super) enum QueuedFork {
    Fork(ForkBuild),
    /// This branch is wanted no longer.
    CancelBranch(u32),
}

/// Forks that are being made, and who waits for them.
pub(super) struct ForkBuild {
    pub(super) answer: ForkAnswer,
    pub(super) stage: BuildStage,
}

pub(super) enum BuildStage {
    /// Where it is to be forked is looked for: nothing is in the queue yet.
    Finding(Box<CutSearch>),
    /// What they become is in the queue, and starts once they are made.
    Reading(Box<ForkReplay>),
}

impl ForkBuild {
    /// Names the job that they become.
    pub(super) fn request_id(&self) -> u64 {
        match &self.stage {
            BuildStage::Finding(finding) => finding.order.request_id,
            BuildStage::Reading(reading) => reading.request_id,
        }
    }
}

/// A look for the place in a branch's text that has so many bytes before it.
pub(super) struct CutSearch {
    pub(super) order: ForkSpec,
    /// The branch, as it was when this was asked for, and the end of its stream.
    pub(super) known: (ForkSource, Arc<Sender>),
    at: usize,
    /// The text of the first tokens that the branch drew.
    bytes: Vec<u8>,
    /// So many of these.
    n_tokens: u32,
    /// The last place that could be named: after so many bytes.
    below: usize,
}

impl CutSearch {
    pub(super) fn new(order: ForkSpec, known: (ForkSource, Arc<Sender>), at: usize) -> Result<Self> {
        if known.0.shifted_at.is_some() {
            let message =
                "the context of the branch was shifted, and its first bytes are gone; name the place by its token".to_owned();
            return Err(refused("at", message));
        }
        let bytes = known.0.begun.as_deref().map_or_else(Vec::new, ForkState::held);
        Ok(Self { order, known, at, bytes, n_tokens: 0, below: 0 })
    }

    /// Reads at most `n_most` tokens on: returns how many those were, and after how many tokens the place is, if it was found.
    pub(super) fn read(&mut self, n_most: usize, runner: &impl Runner) -> Result<(usize, Option<u32>)> {
        let Self { known: (source, _), at, bytes, n_tokens, below, .. } = self;
        let at = *at;
        let first = source.drawn(source.n_predicted).start;
        for n_read in 0.. {
            let n_bytes = bytes.len();
            if incomplete_tail(bytes) == 0 {
                if n_bytes == at {
                    return Ok((n_read, Some(*n_tokens)));
                }
                if n_bytes > at {
                    let message = format!(
                        "no token and character ends after {at} bytes of the text; the nearest are {below} and {n_bytes}"
                    );
                    return Err(refused("at", message));
                }
                *below = n_bytes;
            }
            if *n_tokens == source.n_predicted {
                break;
            }
            if n_read == n_most {
                return Ok((n_read, None));
            }
            append_text(source.tokens.at(first + *n_tokens), &source.way.request, runner, bytes);
            *n_tokens += 1;
        }
        let n_bytes = bytes.len();
        Err(refused("at", format!("the text has {n_bytes} bytes, and is to be forked after {at}; the nearest place is {below}")))
    }
}

/// Forks whose place is known, as far as what they go on from was read.
pub(super) struct ForkReplay {
    pub(super) cut: ForkCut,
    /// Names the job that they become.
    pub(super) request_id: u64,
    /// Whether they have a stream of their own.
    pub(super) is_own: bool,
    pub(super) append: Vec<Token>,
    /// What they begin with.
    pub(super) begun: ForkState,
    pub(super) ways: ReplayedBranches,
    /// Held back before them, and not theirs to show.
    held: Vec<u8>,
    /// What their branch has drawn, where its text, its grammar and its sampler are to read it again.
    unread: Range<u32>,
    /// So much of what is appended was read.
    n_appended: usize,
}

/// How forks go on, as far as their samplers know what was said.
pub(super) enum ReplayedBranches {
    Alike { n: u32, sampler: Box<Sampler> },
    Anew { unread: VecDeque<(Request, Sampler)>, read: Vec<(Request, Sampler)>, with_own_seeds: bool, drawable: Arc<[Token]> },
}

impl ForkReplay {
    /// Of forks that continue `prompt`, of which `append` is none of the branch's own.
    ///
    /// `running` is the branch itself, where it is forked at its end before it has ended.
    pub(super) fn new(
        runner: &impl Runner,
        cut: ForkCut,
        running: Option<&Sequence>,
        (request_id, is_own): (u64, bool),
        ways: ForkBranches,
        append: Vec<Token>,
        prompt: &Arc<[Token]>,
    ) -> Result<Self> {
        let source = &cut.source;
        let mut held = Vec::new();
        let (begun, unread, ways) = match (ways, running) {
            (ForkBranches::Anew { requests, with_own_seeds }, _) => {
                let drawable = drawable(source, prompt);
                let n_ways = requests.len();
                let ways = ReplayedBranches::Anew {
                    unread: requests.into(),
                    read: Vec::with_capacity(n_ways),
                    with_own_seeds,
                    drawable,
                };
                held = held_before(source, cut.n_said, runner);
                (anew(source, cut.n_said, runner), 0..0, ways)
            }
            (ForkBranches::Alike(n), Some(sequence)) => {
                (sequence.begun(), 0..0, ReplayedBranches::Alike { n, sampler: Box::new(sequence.sampler().branch(0)) })
            }
            (ForkBranches::Alike(n), None) => {
                let ways = ReplayedBranches::Alike { n, sampler: Box::new(source.way.sampler.branch(0)) };
                (first_begun(source, runner)?, source.drawn(cut.n_said), ways)
            }
        };
        Ok(Self { cut, request_id, is_own, append, begun, ways, held, unread, n_appended: 0 })
    }

    /// How the texts of the forks go on from that of their branch, once all is read.
    pub(super) fn seam(&self) -> ForkTextBoundary {
        let ForkCut { source, n_said, .. } = &self.cut;
        let were_shown = source.has_shown_all && *n_said == source.n_predicted;
        let text = |bytes: &[u8]| String::from_utf8_lossy(whole(bytes)).into_owned();
        match &self.ways {
            ReplayedBranches::Alike { .. } if self.append.is_empty() => ForkTextBoundary {
                n_shown_again: if were_shown { text(&self.begun.held()).chars().count() } else { 0 },
                ..ForkTextBoundary::default()
            },
            _ if were_shown => ForkTextBoundary::default(),
            _ => ForkTextBoundary { unshown: text(&self.held), n_shown_again: 0 },
        }
    }

    /// Whether nothing is left to read.
    pub(super) fn is_read(&self) -> bool {
        let knows_all = match &self.ways {
            ReplayedBranches::Alike { .. } => true,
            ReplayedBranches::Anew { unread, .. } => unread.is_empty(),
        };
        self.unread.is_empty() && self.n_appended == self.append.len() && knows_all
    }

    /// Reads at most `n_most` tokens on, or the prompt for one sampler; returns what that counts as.
    pub(super) fn read(&mut self, n_most: usize, runner: &impl Runner) -> Result<usize> {
        let Self { cut: ForkCut { source, .. }, append, begun, ways, held, unread, n_appended, .. } = self;
        if unread.start < unread.end {
            let n_most = u32::try_from(n_most).unwrap_or(u32::MAX);
            let part = unread.start..unread.end.min(unread.start.saturating_add(n_most));
            begun.say(source.tokens.of(part.clone()), &source.way.request, runner);
            source.tokens.of(part.clone()).for_each(|token| ways.accept(token));
            unread.start = part.end;
            return Ok(part.len());
        }
        if *n_appended < append.len() {
            let is_read = matches!(ways, ReplayedBranches::Alike { .. });
            let n = if is_read { n_most.min(append.len() - *n_appended) } else { append.len() };
            let part = &append[*n_appended..*n_appended + n];
            if is_read && *n_appended == 0 {
                *held = begun.held();
            }
            begun.append(part, &source.way.request).map_err(|token| {
                let piece = String::from_utf8_lossy(runner.lexicon().spelling(token)).into_owned();
                refused("append", format!("the grammar of the branch does not allow what is appended, from {piece:?} on"))
            })?;
            for &token in part {
                ways.accept(token);
            }
            *n_appended += n;
            return Ok(if is_read { n } else { 0 });
        }
        Ok(ways.read_next())
    }
}

impl ReplayedBranches {
    /// How many forks they are.
    pub(super) fn n(&self) -> u32 {
        match self {
            Self::Alike { n, .. } => *n,
            Self::Anew { unread, read, .. } => read.iter().chain(unread).map(|(request, _)| request.n).sum(),
        }
    }

    /// A token that the forks' branch drew, or that is appended; who goes on anew finds it in the prompt.
    fn accept(&mut self, token: Token) {
        if let Self::Alike { sampler, .. } = self {
            sampler.accept(token);
        }
    }

    /// Lets the next sampler read the prompt; returns what that counts as.
    fn read_next(&mut self) -> usize {
        let Self::Anew { unread, read, drawable, .. } = self else { return 0 };
        let Some((request, mut sampler)) = unread.pop_front() else { return 0 };
        sampler.accept_prompt(Arc::clone(drawable));
        read.push((request, sampler));
        (drawable.len() / READ_AGAIN).max(READ_PER_WAY)
    }

    /// How forks of a branch are written, the first of which has this number in their stream, and this seed where they have none of
    /// their own.
    pub(super) fn written(self, source: &ForkSource, mut first: u32, mut seed: u32) -> Vec<BranchSpec> {
        match self {
            Self::Alike { n, sampler } => {
                let request = Arc::new(forked(&source.way.request, n, seed));
                vec![BranchSpec { first, n, request, stops: Arc::clone(&source.way.stops), sampler: *sampler, firsts: None }]
            }
            Self::Anew { read, with_own_seeds, .. } => {
                let way = |(mut request, sampler): (Request, Sampler)| {
                    let n = request.n;
                    if !with_own_seeds {
                        request.seed = seed;
                    }
                    let way = BranchSpec::after_prompt(first, request, sampler);
                    (first, seed) = (first + n, seed.wrapping_add(n));
                    way
                };
                read.into_iter().map(way).collect()
            }
        }
    }
}

/// The last of the first `n_said` tokens that a branch drew, so many that they spell `n_bytes` bytes or are all of them, and what was
/// held back before these. Of tokens that spell nothing, as control tokens do, it passes over [`MAX_SILENT`].
fn last_drawn(source: &ForkSource, n_said: u32, n_bytes: usize, runner: &impl Runner) -> (Vec<u8>, impl Iterator<Item = Token>) {
    let drawn = source.drawn(n_said);
    let (mut start, mut bytes, mut n_silent) = (drawn.end, Vec::new(), 0);
    while start > drawn.start && bytes.len() < n_bytes && n_silent < MAX_SILENT {
        start -= 1;
        let n_before = bytes.len();
        append_text(source.tokens.at(start), &source.way.request, runner, &mut bytes);
        n_silent += u32::from(bytes.len() == n_before);
    }
    // After a context shift, the tokens between the start of the branch and `drawn` are gone.
    let reaches_start = start == drawn.start && source.shifted_at.is_none();
    let before = source.begun.as_deref().filter(|_| reaches_start).map_or_else(Vec::new, ForkState::held);
    (before, source.tokens.of(start..drawn.end))
}

/// What a branch held back after the first `n_said` tokens that it drew: the last of them that may be the start of a stop string say so.
fn held_before(source: &ForkSource, n_said: u32, runner: &impl Runner) -> Vec<u8> {
    let BranchSpec { request, stops, .. } = &*source.way;
    let longest = stops.iter().map(String::len).max().unwrap_or(0);
    let (before, last) = last_drawn(source, n_said, longest, runner);
    ForkState::held_after(&before, stops, last, request, runner)
}

/// The tokens of a prompt that can be drawn.
fn drawable(source: &ForkSource, prompt: &Arc<[Token]>) -> Arc<[Token]> {
    if source.media.is_empty() {
        return Arc::clone(prompt);
    }
    prompt.iter().copied().filter(|&id| !is_of_medium(id)).collect()
}

/// Where a branch was before it drew.
fn first_begun(source: &ForkSource, runner: &impl Runner) -> Result<ForkState> {
    let BranchSpec { request, stops, .. } = &*source.way;
    let is_held = request.constraint.is_some() || request.thought.is_some();
    if is_held && source.shifted_at.is_some() {
        let message =
            "the context of the branch was shifted, and with it went what its grammar has read; give the forks their own";
        return Err(refused("at", message.to_owned()));
    }
    let start = || ForkState::new(request, Arc::clone(stops), &runner.lexicon());
    Ok(match source.begun.as_deref().filter(|_| source.shifted_at.is_none()) {
        None => start(),
        Some(begun @ ForkState::Alike { .. }) => begun.copy(),
        // A branch with options of its own starts its grammar and its stop strings. Its forks continue both.
        Some(ForkState::Anew(bytes)) => {
            let mut begun = start();
            begun.hold(bytes);
            begun
        }
    })
}

/// Where forks begin that have their own parameters, behind the first `n_said` tokens that a branch drew.
fn anew(source: &ForkSource, n_said: u32, runner: &impl Runner) -> ForkState {
    let (mut bytes, last) = last_drawn(source, n_said, MAX_INCOMPLETE, runner);
    for token in last {
        append_text(token, &source.way.request, runner, &mut bytes);
    }
    ForkState::Anew(bytes.split_off(whole(&bytes).len()))
}

/// All but the first bytes of a character at the end.
fn whole(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len() - incomplete_tail(bytes)]
}

/// What is asked for of the forks of a branch of `request`: nothing of its prompt, and no slot of its own.
fn forked(request: &Request, n: u32, seed: u32) -> Request {
    Request {
        n,
        seed,
        slot: None,
        prompt_logprobs: None,
        prompt_logprobs_from: 0,
        reports_progress: false,
        explains_cache: false,
        snapshots_at: Vec::new(),
        system_end: None,
        ..request.clone()
    }
}

pub(super) fn stream_has_ended() -> Error {
    refused("stream", "the stream has ended; forks of its branches need a stream of their own".to_owned())
}

pub(super) fn refused(param: &'static str, message: String) -> Error {
    Error::InvalidRequest { param, message }
}
