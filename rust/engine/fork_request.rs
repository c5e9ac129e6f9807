//! What is asked of branches that are forked, and what is known of these.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use crate::cache::{AdapterSchedule, AdapterSet};
use crate::engine::request_group::{BranchSpec, QueuePermit, RequestGroup};
use crate::engine::sequence::{ForkState, Sequence, Tokens};
use crate::engine::stream::{ForkOutcome, ForkPoint, Sender, WakeHandle};
use crate::error::Result;
use crate::request::{Media, PlacedMedia, Request, Token};
use crate::sampling::Sampler;

/// So many tokens a step copies for forks, and so many, in tokens that are copied, it reads again for them: some milliseconds' work each.
/// Forks that take more are made over several steps, and what is asked for behind them of their stream's branches is done after that;
/// what begins to copy more is taken from the channel in the next step, and with it whatever comes behind.
pub(super) const MAX_FORKED_TOKENS: usize = 1 << 18;

/// A token that a sampler, a grammar or a text reads again counts for so many that are copied: a step reads 8,192.
pub(super) const READ_AGAIN: usize = 32;

/// A fork that a caller asks for; counted in [`Published::n_waiting`](crate::engine::outbox::Published::n_waiting).
pub(crate) struct ForkRequest {
    pub(crate) order: ForkSpec,
    pub(crate) answer: ForkAnswer,
}

/// What is asked for.
pub(crate) struct ForkSpec {
    pub(crate) stream_id: u64,
    /// As the stream counts its branches.
    pub(crate) branch: u32,
    pub(crate) at: ForkPoint,
    pub(crate) append: Vec<Token>,
    pub(crate) ways: ForkBranches,
    /// Names the job that the forks become.
    pub(crate) request_id: u64,
    /// Their own stream, where they have one.
    pub(crate) own: Option<Arc<Sender>>,
    pub(crate) place: QueuePermit,
}

/// As [`Ways`](crate::engine::stream::Ways), checked, and with samplers that have seen nothing.
pub(crate) enum ForkBranches {
    Alike(u32),
    Anew { requests: Vec<(Request, Sampler)>, with_own_seeds: bool },
}

/// Tells whoever asked what became of it; that is over when this is dropped.
pub(crate) struct ForkAnswer {
    /// Always there until the drop.
    asker: Option<SyncSender<Result<ForkOutcome>>>,
    bell: Option<Arc<dyn WakeHandle>>,
}

impl ForkAnswer {
    pub(crate) fn new(asker: SyncSender<Result<ForkOutcome>>, bell: Option<Arc<dyn WakeHandle>>) -> Self {
        Self { asker: Some(asker), bell }
    }

    /// Whoever asked may have gone: then nobody needs it.
    pub(super) fn give(self, made: Result<ForkOutcome>) {
        if let Some(asker) = &self.asker {
            asker.send(made).unwrap_or_default();
        }
    }
}

impl Drop for ForkAnswer {
    fn drop(&mut self) {
        self.asker = None;
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

/// A branch that can be forked: how it is written, and how far. A clone copies next to nothing.
#[derive(Clone)]
pub(super) struct ForkSource {
    pub(super) tokens: Tokens,
    pub(super) n_prompt: u32,
    /// The last of the tokens are drawn.
    pub(super) n_predicted: u32,
    pub(super) shifted_at: Option<u32>,
    pub(super) variants: AdapterSchedule,
    pub(super) asked_for: AdapterSet,
    pub(super) media: Arc<[PlacedMedia]>,
    pub(super) written: Vec<Range<u32>>,
    pub(super) way: Arc<BranchSpec>,
    /// What it began with, where it was forked itself.
    pub(super) begun: Option<Rc<ForkState>>,
    /// Whether its last token showed all that had been held back, since it has ended.
    pub(super) has_shown_all: bool,
}

impl ForkSource {
    /// Branch `index` of a job, which has drawn nothing; `begun` is what the job's branches begin with.
    pub(super) fn new(job: &RequestGroup, index: u32, begun: Option<Rc<ForkState>>) -> Self {
        Self {
            tokens: Tokens::new(Arc::clone(&job.prompt)),
            n_prompt: job.n_prompt(),
            n_predicted: 0,
            shifted_at: None,
            variants: job.variants.clone(),
            asked_for: job.asked_for.clone(),
            media: Arc::clone(&job.media),
            written: job.written.clone(),
            way: Arc::clone(job.way(index).0),
            begun,
            has_shown_all: false,
        }
    }

    /// The same one, as far as `sequence` has come.
    pub(super) fn reached(self, sequence: &Sequence) -> Self {
        Self {
            tokens: sequence.tokens.clone(),
            n_predicted: sequence.n_predicted(),
            shifted_at: sequence.shifted_at(),
            variants: sequence.variants.clone(),
            ..self
        }
    }

    /// Length of the text up to the end of its first `n_said` drawn tokens; `None` if a context shift has dropped that position.
    pub(super) fn cut(&self, n_said: u32) -> Option<u32> {
        let n_tokens = self.tokens.len().checked_sub(self.n_predicted.checked_sub(n_said)?)?;
        Some(n_tokens).filter(|&n_tokens| self.shifted_at.is_none_or(|shifted_at| n_tokens > shifted_at))
    }

    /// Where in all of its tokens is what is left of the first `n_said` that it has drawn.
    pub(super) fn drawn(&self, n_said: u32) -> Range<u32> {
        let Some(end) = self.cut(n_said) else { return 0..0 };
        self.shifted_at.unwrap_or(0).max(end.saturating_sub(n_said))..end
    }

    /// Bytes that it alone takes, about.
    pub(super) fn n_own(&self) -> usize {
        size_of::<Self>() + size_of::<Token>() * self.tokens.n_own() + size_of_val(&self.written[..])
    }

    fn has_medium(&self, media: &Media) -> bool {
        self.media.iter().any(|placed| placed.media == *media)
    }

    /// Bytes that branches share which began together, about: of each part that one of `others` does not have.
    pub(super) fn n_shared<'a>(&self, others: &(impl Iterator<Item = &'a Self> + Clone)) -> usize {
        let has_no = |is_it: &dyn Fn(&Self) -> bool| !others.clone().any(is_it);
        let prompt = self.tokens.prompt();
        let of_prompt = has_no(&|other| Arc::ptr_eq(other.tokens.prompt(), prompt)).then(|| size_of_val(&**prompt));
        let of_way = has_no(&|other| Arc::ptr_eq(&other.way, &self.way)).then(|| self.way.n_bytes());
        let begun = self
            .begun
            .as_ref()
            .filter(|&begun| has_no(&|other| other.begun.as_ref().is_some_and(|known| Rc::ptr_eq(known, begun))));
        let of_media = self.media.iter().filter(|placed| has_no(&|other| other.has_medium(&placed.media)));
        let of_media = of_media.map(|placed| usize::try_from(placed.media.n_bytes()).unwrap_or(usize::MAX));
        of_prompt.into_iter().chain(of_media).chain(of_way).chain(begun.map(|begun| begun.n_bytes())).sum()
    }
}
