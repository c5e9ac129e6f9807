//! Fork commands, and the branches that can be forked.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use crate::cache::{AdapterSchedule, AdapterSet};
use crate::engine::features::forks::fork_state::ForkState;
use crate::engine::features::state::GroupFeatures;
use crate::engine::ids::{BranchIndex, GroupId, MemberIndex, StreamId};
use crate::engine::output::completions::ForkResult;
use crate::engine::output::fork::{ForkKind, ForkPoint};
use crate::engine::output::stream::Sender;
use crate::engine::output::wake_handle::WakeHandle;
use crate::engine::scheduler::request_group::{BranchSpec, QueuePermit, RequestGroup};
use crate::engine::scheduler::sequence::{Sequence, Tokens};
use crate::error::Result;
use crate::request::{Media, PlacedMedia, Request, Token};
use crate::sampling::Sampler;

/// Maximum tokens copied per step for forks, and, in units of copied tokens, replayed for them: some milliseconds of work each.
/// Forks that need more are built over several steps, and later commands to branches of the same stream wait for them. Once the
/// copy limit is reached, further commands are taken from the channel in the next step.
pub(crate) const MAX_COPIED_TOKENS: usize = 1 << 18;

/// Cost of replaying one token through a sampler, a grammar or a text, in copied tokens: a step replays 8,192.
pub(crate) const REPLAY_COST: usize = 32;

pub(crate) struct ForkRequest {
    pub(crate) spec: ForkSpec,
    pub(crate) answer: ForkAnswer,
}

pub(crate) struct ForkSpec {
    pub(crate) stream_id: StreamId,
    pub(crate) branch: BranchIndex,
    pub(crate) at: ForkPoint,
    pub(crate) append: Vec<Token>,
    pub(crate) branches: ForkBranches,
    pub(crate) group_id: GroupId,
    pub(crate) own_stream: Option<Arc<Sender>>,
    pub(crate) permit: QueuePermit,
}

/// Validated, with samplers that have accepted nothing.
pub(crate) type ForkBranches = ForkKind<(Request, Sampler)>;

/// Sends the answer to a fork command. The wake handle is called on drop, after the channel is closed.
pub(crate) struct ForkAnswer {
    reply: Option<SyncSender<Result<ForkResult>>>,
    wake_handle: Option<Arc<dyn WakeHandle>>,
}

impl ForkAnswer {
    pub(crate) fn new(reply: SyncSender<Result<ForkResult>>, wake_handle: Option<Arc<dyn WakeHandle>>) -> Self {
        Self { reply: Some(reply), wake_handle }
    }

    pub(crate) fn send(self, outcome: Result<ForkResult>) {
        if let Some(reply) = &self.reply {
            reply.send(outcome).unwrap_or_default();
        }
    }
}

impl Drop for ForkAnswer {
    fn drop(&mut self) {
        self.reply = None;
        if let Some(wake_handle) = &self.wake_handle {
            wake_handle.wake();
        }
    }
}

/// A branch that can be forked. A clone copies almost nothing.
#[derive(Clone)]
pub(crate) struct ForkSource {
    pub(crate) sender: Arc<Sender>,
    pub(crate) tokens: Tokens,
    pub(crate) n_prompt: u32,
    /// Number of sampled tokens, at the end of `tokens`.
    pub(crate) n_predicted: u32,
    pub(crate) shifted_at: Option<u32>,
    pub(crate) adapter_schedule: AdapterSchedule,
    pub(crate) requested_adapters: AdapterSet,
    pub(crate) media: Arc<[PlacedMedia]>,
    pub(crate) features: GroupFeatures,
    pub(crate) branch_spec: Arc<BranchSpec>,
    /// State that it began with, if it is a fork itself.
    pub(crate) fork_state: Option<Rc<ForkState>>,
    /// True if its last event published all text that was held back, because it has ended.
    pub(crate) has_published_all: bool,
}

impl ForkSource {
    pub(crate) fn new(group: &RequestGroup, member: MemberIndex, fork_state: Option<Rc<ForkState>>) -> Self {
        Self {
            sender: Arc::clone(&group.sender),
            tokens: Tokens::new(Arc::clone(&group.prompt)),
            n_prompt: group.n_prompt(),
            n_predicted: 0,
            shifted_at: None,
            adapter_schedule: group.adapter_schedule.clone(),
            requested_adapters: group.requested_adapters.clone(),
            media: Arc::clone(&group.media),
            features: group.features.clone(),
            branch_spec: Arc::clone(group.branch_spec(member).0),
            fork_state,
            has_published_all: false,
        }
    }

    pub(crate) fn advanced_to(self, sequence: &Sequence) -> Self {
        Self {
            tokens: sequence.tokens.clone(),
            n_predicted: sequence.n_predicted,
            shifted_at: sequence.shifted_at(),
            adapter_schedule: sequence.adapter_schedule.clone(),
            ..self
        }
    }

    /// Returns the length of the text after `n_sampled` sampled tokens; `None` if a context shift has dropped that position.
    pub(crate) fn n_tokens_at(&self, n_sampled: u32) -> Option<u32> {
        let n_tokens = self.tokens.len().checked_sub(self.n_predicted.checked_sub(n_sampled)?)?;
        Some(n_tokens).filter(|&n_tokens| self.shifted_at.is_none_or(|shifted_at| n_tokens > shifted_at))
    }

    /// Returns the range in `tokens` of the first `n_sampled` sampled tokens, without dropped ones.
    pub(crate) fn sampled_range(&self, n_sampled: u32) -> Range<u32> {
        let Some(end) = self.n_tokens_at(n_sampled) else { return 0..0 };
        self.shifted_at.unwrap_or(0).max(end.saturating_sub(n_sampled))..end
    }

    pub(crate) fn n_own_bytes(&self) -> usize {
        size_of::<Self>() + size_of::<Token>() * self.tokens.n_own() + self.features.n_heap_bytes()
    }

    fn has_medium(&self, media: &Media) -> bool {
        self.media.iter().any(|placed| placed.media == *media)
    }

    /// Returns the approximate size of the parts that branches of one stream share and that none of `others` has, in bytes.
    pub(crate) fn n_shared_bytes<'a>(&self, others: &(impl Iterator<Item = &'a Self> + Clone)) -> usize {
        let is_new = |has_part: &dyn Fn(&Self) -> bool| !others.clone().any(has_part);
        let prompt = self.tokens.prompt();
        let prompt_bytes = is_new(&|other| Arc::ptr_eq(other.tokens.prompt(), prompt)).then(|| size_of_val(&**prompt));
        let spec_bytes = is_new(&|other| Arc::ptr_eq(&other.branch_spec, &self.branch_spec)).then(|| self.branch_spec.n_bytes());
        let fork_state = self
            .fork_state
            .as_ref()
            .filter(|&fork_state| is_new(&|other| other.fork_state.as_ref().is_some_and(|known| Rc::ptr_eq(known, fork_state))));
        let new_media = self.media.iter().filter(|placed| is_new(&|other| other.has_medium(&placed.media)));
        let new_media = new_media.map(|placed| usize::try_from(placed.media.n_bytes()).unwrap_or(usize::MAX));
        prompt_bytes.into_iter().chain(new_media).chain(spec_bytes).chain(fork_state.map(|fork_state| fork_state.n_bytes())).sum()
    }
}
