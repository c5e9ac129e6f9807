//! Branches that others are forked from: where they are, what their forks begin with, and which forks wait for a row of logits.
//! Values in, values out: no model, no clock.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use crate::cache::{Variant, Variants};
use crate::engine::job::{Job, QueuePlace};
use crate::engine::sequence::{Begun, Sequence, Tokens};
use crate::engine::stream::{At, Bell, ForkMade, MAX_ENDED_TOKENS, Sender};
use crate::error::Result;
use crate::request::{PlacedMedia, Request, Token};
use crate::sampling::Sampler;

/// A fork that a caller asks for; counted in [`Published::n_waiting`](crate::engine::outbox::Published::n_waiting).
pub(crate) struct ForkOrder {
    pub(crate) order: Ordered,
    pub(crate) answer: ForkAnswer,
}

/// What is asked for.
pub(crate) struct Ordered {
    pub(crate) stream_id: u64,
    /// As the stream counts its branches.
    pub(crate) branch: u32,
    pub(crate) at: At,
    pub(crate) append: Vec<Token>,
    pub(crate) ways: OrderedWays,
    /// Names the job that the forks become.
    pub(crate) request_id: u64,
    /// Their own stream, where they have one.
    pub(crate) own: Option<Arc<Sender>>,
    pub(crate) place: QueuePlace,
}

/// As [`Ways`](crate::engine::stream::Ways), checked, and with samplers that have seen nothing.
pub(crate) enum OrderedWays {
    Alike(u32),
    Anew { requests: Vec<(Request, Sampler)>, with_own_seeds: bool },
}

impl OrderedWays {
    /// How many forks they ask for.
    pub(crate) fn n(&self) -> u32 {
        match self {
            Self::Alike(n) => *n,
            Self::Anew { requests, .. } => requests.iter().map(|(request, _)| request.n).sum(),
        }
    }
}

/// Tells whoever asked what became of it; that is over when this is dropped.
pub(crate) struct ForkAnswer {
    /// Always there until the drop.
    asker: Option<SyncSender<Result<ForkMade>>>,
    bell: Option<Arc<dyn Bell>>,
}

impl ForkAnswer {
    pub(crate) fn new(asker: SyncSender<Result<ForkMade>>, bell: Option<Arc<dyn Bell>>) -> Self {
        Self { asker: Some(asker), bell }
    }

    /// Whoever asked may have gone: then nobody needs it.
    pub(super) fn give(self, made: Result<ForkMade>) {
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

/// A branch that can be forked: how it is written, and how far.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) tokens: Tokens,
    pub(super) n_prompt: u32,
    /// The last of the tokens are drawn.
    pub(super) n_predicted: u32,
    pub(super) shifted_at: Option<u32>,
    pub(super) variants: Variants,
    pub(super) asked_for: Variant,
    pub(super) media: Arc<[PlacedMedia]>,
    pub(super) written: Vec<Range<u32>>,
    pub(super) request: Arc<Request>,
    pub(super) stops: Arc<[String]>,
    /// The first branch of its request, as the stream counts them.
    pub(super) first: u32,
    /// It has seen the prompt alone.
    pub(super) sampler: Sampler,
    /// What it began with, where it was forked itself.
    pub(super) begun: Option<Rc<Begun>>,
}

impl Source {
    /// Branch `index` of a job, which has drawn nothing; `begun` is what the job's branches begin with.
    pub(super) fn new(job: &Job, index: u32, begun: Option<Rc<Begun>>) -> Self {
        let (way, _) = job.way(index);
        Self {
            tokens: Tokens::new(Arc::clone(&job.prompt)),
            n_prompt: job.n_prompt(),
            n_predicted: 0,
            shifted_at: None,
            variants: job.variants.clone(),
            asked_for: job.asked_for.clone(),
            media: Arc::clone(&job.media),
            written: job.written.clone(),
            request: Arc::clone(&way.request),
            stops: Arc::clone(&way.stops),
            first: way.first,
            sampler: way.sampler.branch(0),
            begun,
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

    /// The place in all of its tokens that comes after the first `n_said` it has drawn.
    pub(super) fn cut(&self, n_said: u32) -> u32 {
        self.tokens.len() - (self.n_predicted - n_said)
    }

    /// What is left of the first `n_said` tokens that it has drawn.
    pub(super) fn drawn(&self, n_said: u32) -> Vec<Token> {
        let end = self.cut(n_said);
        let start = self.shifted_at.unwrap_or(0).max(end.saturating_sub(n_said));
        self.tokens.slices(start..end).concat()
    }
}

/// A fork at the end of a branch that runs: the row of logits after so many tokens of that is what its first token is drawn from.
struct Due {
    /// The fork.
    request_id: u64,
    /// The job of the branch, and which of the job's it is.
    of: (u64, u32),
    n_tokens: u32,
}

/// The branches of a stream that have ended.
struct Ended {
    sender: Arc<Sender>,
    branches: BTreeMap<u32, Source>,
    n_tokens: usize,
}

/// What is known of forks.
#[derive(Default)]
pub(super) struct Forks {
    /// By request id of the forks.
    begun: BTreeMap<u64, Rc<Begun>>,
    due: Vec<Due>,
    /// By stream id.
    ended: BTreeMap<u64, Ended>,
    /// Of all of these.
    n_tokens: usize,
}

impl Forks {
    /// The branches of a job begin like this.
    pub(super) fn begin(&mut self, request_id: u64, begun: Begun) {
        self.begun.insert(request_id, Rc::new(begun));
    }

    /// What the branches of a job begin with, where they are forks.
    pub(super) fn begun(&self, request_id: u64) -> Option<&Rc<Begun>> {
        self.begun.get(&request_id)
    }

    /// A fork waits for the logits after the first `n_tokens` tokens of a branch of a job.
    pub(super) fn wait(&mut self, request_id: u64, of: (u64, u32), n_tokens: u32) {
        self.due.push(Due { request_id, of, n_tokens });
    }

    /// The forks that wait for the logits after the first `n_tokens` tokens of a branch; they wait no longer.
    pub(super) fn take_due(&mut self, request_id: u64, index: u32, n_tokens: u32) -> Vec<u64> {
        let is_it = |due: &mut Due| due.of == (request_id, index) && due.n_tokens == n_tokens;
        self.due.extract_if(.., is_it).map(|due| due.request_id).collect()
    }

    /// A job is over.
    pub(super) fn leave(&mut self, request_id: u64) {
        self.begun.remove(&request_id);
        self.due.retain(|due| due.request_id != request_id && due.of.0 != request_id);
    }

    /// A branch of a stream has ended, and may be forked for as long as somebody holds the stream.
    pub(super) fn end(&mut self, stream_id: u64, branch: u32, source: Source, sender: &Arc<Sender>) {
        self.drop_left();
        let n_tokens = source.tokens.n_own();
        let of_stream = self.ended.entry(stream_id).or_insert_with(|| {
            let n_prompt = source.tokens.len() as usize - n_tokens;
            self.n_tokens += n_prompt;
            Ended { sender: Arc::clone(sender), branches: BTreeMap::new(), n_tokens: n_prompt }
        });
        of_stream.n_tokens += n_tokens;
        of_stream.branches.insert(branch, source);
        self.n_tokens += n_tokens;
        while self.n_tokens > MAX_ENDED_TOKENS {
            let Some((_, oldest)) = self.ended.pop_first() else { return };
            self.n_tokens -= oldest.n_tokens;
        }
    }

    /// A branch of a stream that has ended, and the stream's end.
    pub(super) fn ended(&self, stream_id: u64, branch: u32) -> Option<(&Source, &Arc<Sender>)> {
        let of_stream = self.ended.get(&stream_id)?;
        Some((of_stream.branches.get(&branch)?, &of_stream.sender))
    }

    fn drop_left(&mut self) {
        let n_tokens = &mut self.n_tokens;
        self.ended.retain(|_, ended| {
            let is_held = ended.sender.has_reader();
            *n_tokens -= if is_held { 0 } else { ended.n_tokens };
            is_held
        });
    }
}
