//! History of requests: the texts that explanations compare a prompt with, and the evicted parts of them. Pure, without a clock.
//!
//! A text shares its prompt with its request, so that a record copies only the sampled tokens; the tokens of all branches are
//! in one vector, since thousands of small ones would keep as many memory pages. Both histories are bounded: the oldest entries
//! are dropped first.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::cache::{AdapterSchedule, EvictedRun, MAX_EVICTED_RUNS, MIN_SHARED};
use crate::engine::ids::{BranchKey, GroupId, MemberIndex, StreamId};
use crate::engine::numbers::{count_u32, to_u32};
use crate::engine::scheduler::request_group::RequestGroup;
use crate::engine::scheduler::sequence::{Tokens, TokensView};
use crate::request::Token;

pub const MAX_HISTORY_TOKENS: usize = 4 << 20;

pub const MAX_HISTORY_REQUESTS: usize = 4096;

/// Maximum tokens that one explanation compares: about a millisecond of work. Older texts are skipped beyond it.
const MAX_COMPARED: u64 = 1 << 20;

/// Cost of a comparison that ends at the first token, in tokens.
const MIN_COST: u64 = 16;

/// Maximum number of requests that are searched for a text with another beginning, newest first.
const MAX_SEARCHED_REQUESTS: usize = 8;

/// Maximum number of first tokens of two texts that are searched for common runs.
const MAX_BEGINNING: usize = 4096;

#[derive(Default)]
pub(crate) struct History {
    records: BTreeMap<GroupId, RequestRecord>,
    n_tokens: usize,
    /// Oldest first.
    evicted: VecDeque<(Instant, EvictedRun)>,
}

pub(super) struct RequestRecord {
    pub(crate) stream_id: StreamId,
    pub(crate) owner: Option<Arc<str>>,
    pub(crate) adapter_schedule: AdapterSchedule,
    pub(crate) n_prompt: u32,
    texts: Vec<BranchTokens>,
    /// Tokens of the branches that are not shared with the request, one branch after the other.
    own: Vec<Token>,
}

struct BranchTokens {
    member: MemberIndex,
    shared: Arc<[Token]>,
    own: Range<usize>,
    n_computed: u32,
}

impl RequestRecord {
    /// Returns the number of tokens, including reserved capacity, which takes as much memory.
    fn n_tokens(&self) -> usize {
        self.n_prompt as usize + self.own.capacity()
    }

    fn tokens<'a>(&'a self, text: &'a BranchTokens) -> TokensView<'a> {
        TokensView { shared: &text.shared, own: &self.own[text.own.clone()] }
    }

    fn set_tokens(&mut self, member: MemberIndex, tokens: TokensView<'_>, n_computed: u32) {
        let previous = self.texts.iter().position(|text| text.member == member);
        if let Some(previous) = previous {
            let Range { start, end } = self.texts.remove(previous).own;
            self.own.drain(start..end);
            for text in self.texts.iter_mut().filter(|text| text.own.start >= end) {
                text.own = text.own.start - (end - start)..text.own.end - (end - start);
            }
        }
        let start = self.own.len();
        if self.own.capacity() - start < tokens.own.len() {
            // Reserves at most a quarter more: capacity counts as recorded tokens.
            self.own.reserve_exact(tokens.own.len().max(start / 4));
        }
        self.own.extend_from_slice(tokens.own);
        let text = BranchTokens { member, shared: Arc::clone(tokens.shared), own: start..self.own.len(), n_computed };
        self.texts.insert(previous.unwrap_or(self.texts.len()), text);
    }
}

/// The recorded text with the longest common prefix with a prompt.
#[derive(Clone, Copy)]
pub(crate) struct NearestMatch<'a> {
    pub(super) record: &'a RequestRecord,
    pub(crate) tokens: TokensView<'a>,
    pub(crate) n_common: u32,
}

#[derive(Default)]
pub(crate) struct PromptHistory<'a> {
    /// `None` if no text begins with the same token. Among equal common prefixes, a text that ends there, or whose prompt does,
    /// wins, then the newest.
    pub(crate) nearest: Option<NearestMatch<'a>>,
    pub(crate) n_computed: u32,
    pub(crate) with_other_adapters: Option<NearestMatch<'a>>,
}

impl History {
    pub(crate) fn on_start(&mut self, group: &RequestGroup) {
        if group.has_started {
            return;
        }
        let mut record = RequestRecord {
            stream_id: group.stream_id,
            owner: group.request.owner.clone(),
            adapter_schedule: group.adapter_schedule.clone(),
            n_prompt: group.n_prompt(),
            texts: Vec::new(),
            own: Vec::new(),
        };
        record.set_tokens(MemberIndex(0), Tokens::new(Arc::clone(&group.prompt)).view(), 0);
        self.n_tokens += record.n_tokens();
        if let Some(previous) = self.records.insert(group.group_id, record) {
            self.n_tokens -= previous.n_tokens();
        }
        self.drop_oldest();
    }

    pub(crate) fn update_tokens(&mut self, BranchKey { group_id, member }: BranchKey, tokens: &Tokens, n_computed: u32) {
        let Some(record) = self.records.get_mut(&group_id) else { return };
        self.n_tokens -= record.n_tokens();
        record.set_tokens(member, tokens.view(), n_computed);
        self.n_tokens += record.n_tokens();
        self.drop_oldest();
    }

    pub(crate) fn add_evictions(&mut self, evicted: impl Iterator<Item = EvictedRun>, now: Instant) {
        for run in evicted {
            if self.evicted.len() == MAX_EVICTED_RUNS {
                self.evicted.pop_front();
            }
            self.evicted.push_back((now, run));
        }
    }

    fn drop_oldest(&mut self) {
        while self.n_tokens > MAX_HISTORY_TOKENS || self.records.len() > MAX_HISTORY_REQUESTS {
            let Some((_, record)) = self.records.pop_first() else { return };
            self.n_tokens -= record.n_tokens();
        }
    }

    /// Iterates over earlier requests of the same owner, newest first: an explanation must not depend on requests of others.
    fn own_records<'a, 'group>(
        &'a self,
        group: &'group RequestGroup,
    ) -> impl Iterator<Item = &'a RequestRecord> + use<'a, 'group> {
        let is_own = |record: &&RequestRecord| record.stream_id != group.stream_id && record.owner == group.request.owner;
        self.records.values().rev().filter(is_own)
    }

    pub(crate) fn lookup(&self, group: &RequestGroup) -> PromptHistory<'_> {
        let compared = Comparison::new(&group.prompt);
        let mut found = PromptHistory::default();
        for record in self.own_records(group) {
            let n_same_adapters = record.adapter_schedule.n_common(&group.adapter_schedule);
            for text in &record.texts {
                if compared.is_spent() {
                    return found;
                }
                let tokens = record.tokens(text);
                let near = |n_common| NearestMatch { record, tokens, n_common };
                let n_known = found.with_other_adapters.map_or(0, |other| other.n_common).max(n_same_adapters);
                let with_other_adapters = n_known.checked_add(1).and_then(|n_min| compared.count_common(tokens, n_min));
                if let Some(n_common) = with_other_adapters.map(|n| n.min(text.n_computed)).filter(|&n| n > n_known) {
                    found.with_other_adapters = Some(near(n_common));
                }
                let n_nearest = found.nearest.map_or(1, |nearest| nearest.n_common);
                let n_min = n_nearest.min(found.n_computed + 1);
                let Some(n_common) = compared.count_common(tokens, n_min).map(|n| n.min(n_same_adapters)) else { continue };
                found.n_computed = found.n_computed.max(n_common.min(text.n_computed));
                let rank = |near: NearestMatch<'_>| (near.n_common, near.is_at_end());
                if n_common > 0 && found.nearest.is_none_or(|nearest| rank(near(n_common)) > rank(nearest)) {
                    found.nearest = Some(near(n_common));
                }
            }
        }
        found
    }

    /// Returns the newest eviction of a run in `[n_found, n_known)` of the same owner; for recurrent memory, of a state there.
    pub(crate) fn find_eviction(
        &self,
        group: &RequestGroup,
        n_found: u32,
        n_known: u32,
        is_a_state: bool,
    ) -> Option<&(Instant, EvictedRun)> {
        let compared = Comparison::new(&group.prompt);
        self.evicted.iter().rev().take_while(|_| !compared.is_spent()).find(|(_, run)| {
            let range = &run.range;
            let overlaps = if is_a_state {
                range.end > n_found && range.end <= n_known
            } else {
                range.start < n_known && range.end > n_found
            };
            let n_min = if is_a_state { range.end } else { range.start + 1 };
            let had_computed = |record: &RequestRecord| {
                record.texts.iter().any(|text| compared.count_common(record.tokens(text), n_min).is_some())
            };
            let is_own = |record: &&RequestRecord| {
                record.owner == group.request.owner && record.adapter_schedule.n_common(&group.adapter_schedule) >= n_min
            };
            overlaps && self.records.get(&GroupId(run.group_id)).filter(is_own).is_some_and(had_computed)
        })
    }

    fn first_branches<'a>(&'a self, group: &'a RequestGroup) -> impl Iterator<Item = (&'a RequestRecord, TokensView<'a>)> {
        let records = self.own_records(group).filter(|record| record.adapter_schedule.at(0) == group.adapter_schedule.at(0));
        records.filter_map(|record| Some((record, record.tokens(record.texts.first()?))))
    }

    /// Returns a text that differs in the first or second token, and only by the token `opening` there.
    pub(crate) fn find_without_opening<'a>(&'a self, group: &'a RequestGroup, opening: Token) -> Option<NearestMatch<'a>> {
        let (compared, prompt) = (Comparison::new(&group.prompt), &group.prompt);
        self.first_branches(group).find_map(|(record, tokens)| {
            let token_at = |position: u32| (tokens.len() > position).then(|| tokens.at(position));
            let position = u32::from(prompt.first().copied() == token_at(0));
            let (own, other) = (prompt.get(position as usize).copied(), token_at(position));
            let n = match (own == Some(opening), other == Some(opening)) {
                (true, false) => compared.count_common_from(tokens, position + 1, position),
                (false, true) => compared.count_common_from(tokens, position, position + 1),
                _ => 0,
            };
            (n >= MIN_SHARED).then_some(NearestMatch { record, tokens, n_common: position })
        })
    }

    pub(crate) fn find_nearest_repeat<'a>(&'a self, group: &'a RequestGroup, position: u32) -> Option<NearestMatch<'a>> {
        let end = group.prompt.len().min(position as usize + MAX_BEGINNING);
        let beginning = &group.prompt[(position as usize).min(end)..end];
        let pieces: HashSet<&[Token]> = beginning.chunks_exact(MIN_SHARED as usize).collect();
        let near = self.first_branches(group).take(MAX_SEARCHED_REQUESTS);
        let near = near.map(|(record, tokens)| NearestMatch { record, tokens, n_common: tokens.common_prefix(&group.prompt) });
        let has_common_run = |near: &NearestMatch<'_>| {
            let range = near.n_common..near.tokens.len().min(near.n_common + to_u32(MAX_BEGINNING));
            near.tokens.slices(range).iter().any(|part| part.windows(MIN_SHARED as usize).any(|piece| pieces.contains(piece)))
        };
        near.filter(has_common_run).max_by_key(|near| near.n_common)
    }

    #[cfg(test)]
    pub(crate) fn n_evicted(&self) -> usize {
        self.evicted.len()
    }

    /// Returns the number of recorded tokens and requests.
    #[cfg(test)]
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.n_tokens, self.records.len())
    }
}

impl NearestMatch<'_> {
    /// Returns true if the common prefix ends where the text or its prompt ends.
    pub(crate) fn is_at_end(&self) -> bool {
        self.n_common == self.tokens.len() || self.n_common == self.record.n_prompt
    }
}

/// Compares texts with a prompt within a bound on the total work.
struct Comparison<'a> {
    prompt: &'a Arc<[Token]>,
    n_left: Cell<u64>,
}

impl<'a> Comparison<'a> {
    fn new(prompt: &'a Arc<[Token]>) -> Self {
        Self { prompt, n_left: Cell::new(MAX_COMPARED) }
    }

    fn count_common(&self, text: TokensView<'_>, at_least: u32) -> Option<u32> {
        let last = at_least.checked_sub(1)?;
        if self.is_spent() {
            return None;
        }
        self.spend(MIN_COST);
        // This one token rules out most texts.
        if text.len() <= last || self.prompt.get(last as usize) != Some(&text.at(last)) {
            return None;
        }
        let n = text.common_prefix(self.prompt);
        self.spend(u64::from(n));
        (n >= at_least).then_some(n)
    }

    fn is_spent(&self) -> bool {
        self.n_left.get() == 0
    }

    fn spend(&self, n_tokens: u64) {
        self.n_left.set(self.n_left.get().saturating_sub(n_tokens));
    }

    /// Returns the length of the common run from `start` and from `text_start` on, at most [`MIN_SHARED`].
    fn count_common_from(&self, text: TokensView<'_>, start: u32, text_start: u32) -> u32 {
        let end = text.len().min(text_start + MIN_SHARED);
        let Some(own) = self.prompt.get(start as usize..) else { return 0 };
        let other = (text_start..end).map(|position| text.at(position));
        count_u32(own.iter().zip(other).take_while(|&(&a, b)| a == b))
    }
}

#[cfg(test)]
mod tests;
