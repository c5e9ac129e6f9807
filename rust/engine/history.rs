//! What was asked for lately: the texts that explanations compare a prompt with, and what of them was lost since. Values in, values
//! out: the clock is read elsewhere.
//!
//! A text shares its prompt with the request that it is of, so that remembering one copies what was drawn alone: all of a request in
//! one place, since thousands of small ones would keep as many pages of memory. Both are bounded: the oldest go first.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::cache::{AdapterSchedule, EvictedRun, MAX_EVICTED_RUNS, MIN_SHARED};
use crate::engine::request_group::RequestGroup;
use crate::engine::sequence::{Tokens, TokensView};
use crate::request::Token;

/// Most tokens of all texts that are remembered; each is four bytes.
pub const MAX_REMEMBERED: usize = 4 << 20;

/// Most requests that are remembered.
pub const MAX_REMEMBERED_REQUESTS: usize = 4096;

/// Most tokens that one explanation compares: about a millisecond's work. Of what was remembered before, only the beginnings are.
const MAX_COMPARED: u64 = 1 << 20;

/// Cost of a comparison that the first token decides, in tokens.
const PER_TEXT: u64 = 16;

/// Requests that are looked through for a text with another beginning, the newest first.
const MAX_LOOKED_THROUGH: usize = 8;

/// So many of the first tokens of two texts are looked through for what they have in common.
const MAX_BEGINNING: usize = 4096;

/// Requests that were started, and what was lost.
#[derive(Default)]
pub(super) struct History {
    /// By request id: in order of submission.
    records: BTreeMap<u64, RequestRecord>,
    n_tokens: usize,
    /// Oldest first.
    lost: VecDeque<(Instant, EvictedRun)>,
}

/// A request that was started.
pub(super) struct RequestRecord {
    /// The request as its reader knows it.
    pub(super) stream_id: u64,
    pub(super) owner: Option<Arc<str>>,
    pub(super) variants: AdapterSchedule,
    pub(super) n_prompt: u32,
    texts: Vec<BranchText>,
    /// What they do not share with the request, one after the other.
    own: Vec<Token>,
}

/// The text of one of its branches.
struct BranchText {
    index: u32,
    shared: Arc<[Token]>,
    /// Of the record's own tokens.
    own: Range<usize>,
    /// So many of its first tokens were computed at some time.
    n_held: u32,
}

impl RequestRecord {
    /// Those that there is room for are counted: they take as much memory.
    fn n_tokens(&self) -> usize {
        self.n_prompt as usize + self.own.capacity()
    }

    fn tokens<'a>(&'a self, text: &'a BranchText) -> TokensView<'a> {
        TokensView { shared: &text.shared, own: &self.own[text.own.clone()] }
    }

    /// Remembers the text of a branch in place of what was known of it.
    fn remember(&mut self, index: u32, tokens: TokensView<'_>, n_held: u32) {
        let known = self.texts.iter().position(|text| text.index == index);
        if let Some(known) = known {
            let Range { start, end } = self.texts.remove(known).own;
            self.own.drain(start..end);
            for text in self.texts.iter_mut().filter(|text| text.own.start >= end) {
                text.own = text.own.start - (end - start)..text.own.end - (end - start);
            }
        }
        let start = self.own.len();
        if self.own.capacity() - start < tokens.own.len() {
            // A quarter more at most: what there is room for counts as remembered.
            self.own.reserve_exact(tokens.own.len().max(start / 4));
        }
        self.own.extend_from_slice(tokens.own);
        let text = BranchText { index, shared: Arc::clone(tokens.shared), own: start..self.own.len(), n_held };
        self.texts.insert(known.unwrap_or(self.texts.len()), text);
    }
}

/// The text that goes along with a prompt the longest.
#[derive(Clone, Copy)]
pub(super) struct NearestText<'a> {
    pub(super) record: &'a RequestRecord,
    pub(super) tokens: TokensView<'a>,
    /// So many of the first tokens are the same.
    pub(super) n_common: u32,
}

/// What is remembered of a prompt.
#[derive(Default)]
pub(super) struct PromptHistory<'a> {
    /// `None` where no text begins with the same token. Of those that go along as long, one that ends there or whose prompt does,
    /// then the newest.
    pub(super) nearest: Option<NearestText<'a>>,
    /// So many of its tokens were computed for earlier ones.
    pub(super) n_computed: u32,
    /// The text that was computed the furthest with other adapters, as far as it goes along.
    pub(super) of_others: Option<NearestText<'a>>,
}

impl History {
    /// A request starts.
    pub(super) fn begin(&mut self, job: &RequestGroup) {
        let mut record = RequestRecord {
            stream_id: job.stream_id,
            owner: job.request.owner.clone(),
            variants: job.variants.clone(),
            n_prompt: job.n_prompt(),
            texts: Vec::new(),
            own: Vec::new(),
        };
        record.remember(0, Tokens::new(Arc::clone(&job.prompt)).view(), 0);
        self.n_tokens += record.n_tokens();
        if let Some(again) = self.records.insert(job.request_id, record) {
            self.n_tokens -= again.n_tokens();
        }
        self.bound();
    }

    /// Branch `index` of a request has computed the first `n_held` of its `tokens`.
    pub(super) fn leave(&mut self, request_id: u64, index: u32, tokens: &Tokens, n_held: u32) {
        let Some(record) = self.records.get_mut(&request_id) else { return };
        self.n_tokens -= record.n_tokens();
        record.remember(index, tokens.view(), n_held);
        self.n_tokens += record.n_tokens();
        self.bound();
    }

    /// These were lost by `now`.
    pub(super) fn lose(&mut self, lost: impl Iterator<Item = EvictedRun>, now: Instant) {
        for lost in lost {
            if self.lost.len() == MAX_EVICTED_RUNS {
                self.lost.pop_front();
            }
            self.lost.push_back((now, lost));
        }
    }

    fn bound(&mut self) {
        while self.n_tokens > MAX_REMEMBERED || self.records.len() > MAX_REMEMBERED_REQUESTS {
            let Some((_, record)) = self.records.pop_first() else { return };
            self.n_tokens -= record.n_tokens();
        }
    }

    /// What the same owner was answered before, the newest first: what others sent is nothing that an explanation may depend on.
    fn own<'a, 'job>(&'a self, job: &'job RequestGroup) -> impl Iterator<Item = &'a RequestRecord> + use<'a, 'job> {
        let is_own = |record: &&RequestRecord| record.stream_id != job.stream_id && record.owner == job.request.owner;
        self.records.values().rev().filter(is_own)
    }

    /// What is remembered of the prompt of `request_group`.
    pub(super) fn remembered(&self, job: &RequestGroup) -> PromptHistory<'_> {
        let compared = Comparison::new(&job.prompt);
        let mut found = PromptHistory::default();
        for record in self.own(job) {
            let n_alike = record.variants.n_common(&job.variants);
            for text in &record.texts {
                if compared.is_spent() {
                    return found;
                }
                let tokens = record.tokens(text);
                let near = |n_common| NearestText { record, tokens, n_common };
                let n_known = found.of_others.map_or(0, |other| other.n_common).max(n_alike);
                let of_others = n_known.checked_add(1).and_then(|n_least| compared.common(tokens, n_least));
                if let Some(n_common) = of_others.map(|n| n.min(text.n_held)).filter(|&n| n > n_known) {
                    found.of_others = Some(near(n_common));
                }
                let n_nearest = found.nearest.map_or(1, |nearest| nearest.n_common);
                let n_least = n_nearest.min(found.n_computed + 1);
                let Some(n_common) = compared.common(tokens, n_least).map(|n| n.min(n_alike)) else { continue };
                found.n_computed = found.n_computed.max(n_common.min(text.n_held));
                let rank = |near: NearestText<'_>| (near.n_common, near.ends());
                if n_common > 0 && found.nearest.is_none_or(|nearest| rank(near(n_common)) > rank(nearest)) {
                    found.nearest = Some(near(n_common));
                }
            }
        }
        found
    }

    /// The newest loss of something of its owner's that a prompt begins with, in `[n_found, n_known)`; of a memory that is a state, of one that ends
    /// there.
    pub(super) fn lost(
        &self,
        job: &RequestGroup,
        n_found: u32,
        n_known: u32,
        is_a_state: bool,
    ) -> Option<&(Instant, EvictedRun)> {
        let compared = Comparison::new(&job.prompt);
        self.lost.iter().rev().take_while(|_| !compared.is_spent()).find(|(_, lost)| {
            let range = &lost.range;
            let is_it = if is_a_state {
                range.end > n_found && range.end <= n_known
            } else {
                range.start < n_known && range.end > n_found
            };
            let n_least = if is_a_state { range.end } else { range.start + 1 };
            let had_it =
                |record: &RequestRecord| record.texts.iter().any(|text| compared.common(record.tokens(text), n_least).is_some());
            let is_own =
                |record: &&RequestRecord| record.owner == job.request.owner && record.variants.n_common(&job.variants) >= n_least;
            is_it && self.records.get(&lost.maker).filter(is_own).is_some_and(had_it)
        })
    }

    /// An own text that differs from a prompt in one token at its beginning alone, which is `opening`.
    pub(super) fn without_opening<'a>(&'a self, job: &'a RequestGroup, opening: Token) -> Option<(NearestText<'a>, u32)> {
        let (compared, prompt) = (Comparison::new(&job.prompt), &job.prompt);
        self.others(job).find_map(|(near, at)| {
            let (own, other) =
                (prompt.get(at as usize) == Some(&opening), near.tokens.len() > at && near.tokens.at(at) == opening);
            let n = match (own, other) {
                (true, false) => compared.common_from(near.tokens, at + 1, at),
                (false, true) => compared.common_from(near.tokens, at, at + 1),
                _ => 0,
            };
            (n >= MIN_SHARED).then_some((near, at))
        })
    }

    /// Every own text of the same adapters whose first token is another one, or the second.
    fn others<'a>(&'a self, job: &'a RequestGroup) -> impl Iterator<Item = (NearestText<'a>, u32)> {
        let texts = self.own(job).filter(|record| record.variants.at(0) == job.variants.at(0));
        texts.flat_map(move |record| {
            record.texts.first().into_iter().filter_map(move |text| {
                let tokens = record.tokens(text);
                let is_same = |at: u32| tokens.len() > at && job.prompt.get(at as usize) == Some(&tokens.at(at));
                let n_common = u32::from(is_same(0));
                let near = NearestText { record, tokens, n_common };
                (n_common == 0 || !is_same(1)).then_some((near, n_common))
            })
        })
    }

    /// An own text of the same adapters that has some of what a prompt has after its first `at` tokens, with which no text goes along any
    /// further.
    pub(super) fn nearest_repeat(&self, job: &RequestGroup, at: u32) -> Option<NearestText<'_>> {
        let end = job.prompt.len().min(at as usize + MAX_BEGINNING);
        let beginning = &job.prompt[(at as usize).min(end)..end];
        let pieces: HashSet<&[Token]> = beginning.chunks_exact(MIN_SHARED as usize).collect();
        let texts = self.own(job).filter(|record| record.variants.at(0) == job.variants.at(0));
        let near = texts.take(MAX_LOOKED_THROUGH).filter_map(|record| {
            let tokens = record.tokens(record.texts.first()?);
            Some(NearestText { record, tokens, n_common: tokens.common_prefix(&job.prompt) })
        });
        let has_one = |near: &NearestText<'_>| {
            let n_looked_through = u32::try_from(MAX_BEGINNING).expect("small");
            let range = near.n_common..near.tokens.len().min(near.n_common + n_looked_through);
            near.tokens.slices(range).iter().any(|part| part.windows(MIN_SHARED as usize).any(|piece| pieces.contains(piece)))
        };
        near.filter(has_one).max_by_key(|near| near.n_common)
    }

    /// Stretches that were lost.
    #[cfg(test)]
    pub(super) fn n_lost(&self) -> usize {
        self.lost.len()
    }

    /// Tokens of all texts that are remembered, and requests.
    #[cfg(test)]
    pub(super) fn size(&self) -> (usize, usize) {
        (self.n_tokens, self.records.len())
    }
}

impl NearestText<'_> {
    /// Whether a prompt goes on where it ends, or where its own prompt did.
    pub(super) fn ends(&self) -> bool {
        self.n_common == self.tokens.len() || self.n_common == self.record.n_prompt
    }
}

/// Compares texts with a prompt, so long as that does not come to too much.
struct Comparison<'a> {
    prompt: &'a Arc<[Token]>,
    n_left: Cell<u64>,
}

impl<'a> Comparison<'a> {
    fn new(prompt: &'a Arc<[Token]>) -> Self {
        Self { prompt, n_left: Cell::new(MAX_COMPARED) }
    }

    /// How many tokens both begin with, where that is `at_least` so many or more.
    fn common(&self, text: TokensView<'_>, at_least: u32) -> Option<u32> {
        let at = at_least.checked_sub(1)?;
        if self.is_spent() {
            return None;
        }
        self.spend(PER_TEXT);
        // Most texts are told apart by this one token.
        if text.len() <= at || self.prompt.get(at as usize) != Some(&text.at(at)) {
            return None;
        }
        let n = text.common_prefix(self.prompt);
        self.spend(u64::from(n));
        (n >= at_least).then_some(n)
    }

    /// Whether the bound on compared tokens is reached.
    fn is_spent(&self) -> bool {
        self.n_left.get() == 0
    }

    fn spend(&self, n_tokens: u64) {
        self.n_left.set(self.n_left.get().saturating_sub(n_tokens));
    }

    /// How many tokens the prompt from `start` on and the text from `of_text` on have in common, at most [`MIN_SHARED`].
    fn common_from(&self, text: TokensView<'_>, start: u32, of_text: u32) -> u32 {
        let end = text.len().min(of_text + MIN_SHARED);
        let Some(own) = self.prompt.get(start as usize..) else { return 0 };
        let other = (of_text..end).map(|at| text.at(at));
        u32::try_from(own.iter().zip(other).take_while(|&(&a, b)| a == b).count()).expect("few")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::engine::request_group::QueuePermit;
    use crate::engine::stream;
    use crate::request::{Prompt, Request};
    use crate::sampling::Sampler;
    use crate::sampling::token_strings::tests::Pieces;

    /// A request with the prompt `tokens`.
    fn job(request_id: u64, tokens: &[Token]) -> RequestGroup {
        let place = QueuePermit::acquire(&Arc::new(AtomicUsize::new(0)), 1).expect("the queue is empty");
        let (sender, _) = stream::stream(request_id, 1, None, Box::new(|_| {}));
        let request = Request::new(Prompt::from_tokens(tokens.to_vec()), 0);
        let sampler = Sampler::new(&request.sampling, 0, &Pieces::none(&[]), 0);
        RequestGroup::new(request_id, vec![(0, request, sampler)], Arc::new(sender), place)
    }

    #[test]
    fn texts_that_their_first_token_rejects_count_towards_the_bound_of_a_comparison() {
        let mut history = History::default();
        let asked = job(u64::MAX, &[1; 40]);
        let known = job(0, &[1; 40]);
        history.begin(&known);
        history.leave(0, 0, &Tokens::new(Arc::clone(&known.prompt)), 40);
        let n_common = |history: &History| history.remembered(&asked).nearest.map(|nearest| nearest.n_common);
        assert_eq!(n_common(&history), Some(40));
        let n_texts = u32::try_from(MAX_COMPARED / PER_TEXT).expect("few");
        for (request_id, first) in (1..).zip((0..n_texts).step_by(256)) {
            let other = job(request_id, &[2]);
            history.begin(&other);
            for index in 0..256.min(n_texts - first) {
                history.leave(request_id, index, &Tokens::new(Arc::clone(&other.prompt)), 1);
            }
        }
        assert_eq!(n_common(&history), None, "the newest {n_texts} texts are all that one explanation compares");
        let lost = EvictedRun { maker: 0, range: 0..40, why: crate::request::EvictionCause::Pool };
        history.lose([lost].into_iter(), Instant::now());
        assert!(history.lost(&asked, 0, 40, false).is_some());
        let of_others = |maker| EvictedRun { maker, range: 0..40, why: crate::request::EvictionCause::Pool };
        history.lose((1..=u64::from(n_texts / 256)).map(of_others), Instant::now());
        assert!(history.lost(&asked, 0, 40, false).is_none(), "losses are compared within the same bound");
    }
}
