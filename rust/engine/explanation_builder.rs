//! Why what is computed of a prompt has to be: found when its first branch starts in a slot.

use std::ops::Range;
use std::time::Instant;

use crate::cache::{ForkRule, MIN_SHARED, PrefixMatch};
use crate::engine::core::Core;
use crate::engine::history::{NearestText, PromptHistory};
use crate::engine::request_group::RequestGroup;
use crate::engine::runner::Runner;
use crate::engine::sequence::TokensView;
use crate::engine::shared_explanation::{SHOWN_AFTER, shown, spelt};
use crate::request::{BEGINNING, Cause, ComputedRun, EarlierRequest, Explanation, PlacedMedia, Token, is_of_medium};
use crate::sampling::TokenStrings;

/// Tokens whose bytes are compared where two texts may be the same in other tokens.
const MAX_RESPELT: u32 = 64;

/// What was lost since it was last looked at is remembered.
pub(super) fn remember_lost<R: Runner>(core: &mut Core<R>) {
    let Core { memory, history, .. } = core;
    history.lose(memory.cache_mut().take_evicted(), Instant::now());
}

/// Why the prompt of a request that starts on what `matched` found has to be computed after that.
pub(super) fn explain<R: Runner>(core: &mut Core<R>, request_id: u64, matched: &PrefixMatch) -> Explanation {
    remember_lost(core);
    let job = core.queue.job(request_id);
    let (n_prompt, n_found) = (job.n_prompt(), matched.n_tokens());
    let awaited = job.awaits.map_or(0..0, |awaits| awaits.n_known.min(n_found)..awaits.n_tokens.min(n_found));
    let n_awaited = awaited.end - awaited.start;
    let computed = if n_found == n_prompt {
        Vec::new()
    } else if !job.uses_cache() {
        vec![ComputedRun::new(0..n_prompt, Cause::CacheUnused)]
    } else if core.n_told(job).is_some_and(|n_told| n_told < n_prompt && n_found + 1 >= n_told) {
        // What follows is computed for the log-probabilities of its tokens.
        vec![ComputedRun::new(n_found..n_prompt, Cause::CacheUnused)]
    } else if n_found == n_prompt - 1 {
        vec![ComputedRun::new(n_found..n_prompt, if n_awaited > 0 { Cause::Awaited } else { Cause::LastToken })]
    } else {
        ExplanationBuilder { core, job, n_found, remembered: core.history.remembered(job) }.stretches()
    };
    Explanation { request_id: job.stream_id, n_prompt, n_found, n_awaited, computed }
}

/// What an explanation is made of.
struct ExplanationBuilder<'a, R> {
    core: &'a Core<R>,
    job: &'a RequestGroup,
    n_found: u32,
    remembered: PromptHistory<'a>,
}

impl<R: Runner> ExplanationBuilder<'_, R> {
    /// All that is computed: what was known and could not be used, and what was not known.
    fn stretches(&self) -> Vec<ComputedRun> {
        let n_prompt = self.job.n_prompt();
        let n_there = self.core.memory.cache().n_there(&self.job.variants, &self.job.prompt);
        let n_known = self.remembered.n_computed.max(n_there);
        let mut stretches = Vec::new();
        let mut start = self.n_found;
        if n_known > start && n_known >= MIN_SHARED {
            let (cause, earlier) = self.unusable(n_known, n_there);
            stretches.push(ComputedRun { earlier, ..ComputedRun::new(start..n_known.min(n_prompt), cause) });
            start = n_known;
        }
        let n_same = self.remembered.nearest.map_or(0, |nearest| nearest.n_common);
        // The last token that was drawn is never computed.
        if n_same > start + 1 && n_same >= MIN_SHARED {
            let cause = if self.is_being_computed(n_same) { Cause::Computing } else { Cause::Unfinished };
            stretches.push(ComputedRun {
                earlier: self.earlier(self.remembered.nearest, start),
                ..ComputedRun::new(start..n_same, cause)
            });
            start = n_same;
        }
        if start < n_prompt {
            stretches.push(self.unknown(start, n_same.max(n_known)));
        }
        stretches
    }

    /// Why the tokens of `[n_found, n_known)`, which were computed for others, cannot be used.
    fn unusable(&self, n_known: u32, n_there: u32) -> (Cause, Option<EarlierRequest>) {
        let (job, n_found) = (self.job, self.n_found);
        let kind = self.core.memory.kind();
        let nearest = self.earlier(self.remembered.nearest, n_found);
        let is_whole_only = |placed: &PlacedMedia| placed.is_cut_at(n_known) && placed.start == n_found;
        if job.media.iter().any(is_whole_only) {
            return (Cause::Media, nearest);
        }
        if n_found >= job.grouped_from.min(n_known) {
            return (Cause::Grouped, nearest);
        }
        if kind.forks == ForkRule::InWindow && n_there > n_found {
            return (Cause::Window, nearest);
        }
        if let Some((at, lost)) = self.core.history.lost(job, n_found, n_known, kind.is_a_state()) {
            return (Cause::Evicted(Some((lost.why, at.elapsed()))), nearest);
        }
        if self.is_being_computed(n_known) {
            return (Cause::Computing, nearest);
        }
        (if kind.is_a_state() { Cause::NoSnapshot } else { Cause::Evicted(None) }, nearest)
    }

    /// Whether another request of the same owner is about to have computed the first `n_same` tokens.
    fn is_being_computed(&self, n_same: u32) -> bool {
        let job = self.job;
        self.core.slots.running().iter().any(|running| {
            let is_own = self.core.queue.job(running.sequence.request_id).request.owner == job.request.owner;
            let is_at_it = running.n_held < n_same && running.sequence.variants.n_common(&job.variants) >= n_same;
            is_own && is_at_it && running.sequence.tokens.common_prefix(&job.prompt) >= n_same
        })
    }

    /// Why the tokens from `start` on are not known, where the prompt parts at `at` from what is.
    fn unknown(&self, start: u32, at: u32) -> ComputedRun {
        let (cause, nearest, at) = self.difference(at);
        let earlier = self.earlier(nearest, at);
        ComputedRun { at: at.min(self.job.n_prompt()), earlier, ..ComputedRun::new(start..self.job.n_prompt(), cause) }
    }

    /// What is different, the text from which it differs, and where.
    fn difference(&self, at: u32) -> (Cause, Option<NearestText<'_>>, u32) {
        let (job, history) = (self.job, &self.core.history);
        let lexicon = self.core.memory.model().lexicon();
        let nearest = self.remembered.nearest.filter(|nearest| nearest.n_common == at);
        let changes_here = nearest.is_some_and(|nearest| nearest.record.variants.n_common(&job.variants) == at);
        if let Some(other) =
            self.remembered.of_others.filter(|other| other.n_common >= at + MIN_SHARED || (changes_here && other.n_common > at))
        {
            return (Cause::OtherAdapters, Some(other), at);
        }
        if let Some((near, place)) =
            lexicon.opening().filter(|_| at < 2).and_then(|opening| history.without_opening(job, opening))
        {
            return (Cause::Opening, Some(near), place);
        }
        if at > 0 && nearest.is_some() && job.request.system_end.is_some_and(|end| at < end) {
            return (Cause::SystemChanged, nearest, at);
        }
        if at >= MIN_SHARED && nearest.is_some_and(|nearest| nearest.ends()) {
            return (Cause::New, nearest, at);
        }
        if at < BEGINNING
            && let Some(same) = history.nearest_repeat(job, at)
        {
            return (Cause::Beginning, Some(same), same.n_common);
        }
        if at < MIN_SHARED {
            // What begins every text is no beginning of any.
            let is_nothing = at == 0 || (at == 1 && job.prompt.first().copied() == lexicon.opening());
            return (if is_nothing { Cause::NeverSeen } else { Cause::TooShort }, nearest, at);
        }
        let Some(nearest) = nearest else { return (Cause::Differs, None, at) };
        let own = job.prompt.get(at as usize).copied();
        if own.is_some_and(is_of_medium) || is_of_medium(nearest.tokens.at(at)) {
            return (Cause::Media, Some(nearest), at);
        }
        let is_respelt = is_respelt(&job.prompt[at as usize..], nearest.tokens, at, &lexicon);
        (if is_respelt { Cause::Retokenized } else { Cause::Differs }, Some(nearest), at)
    }

    /// What is told of an earlier request of the same owner.
    fn earlier(&self, nearest: Option<NearestText<'_>>, at: u32) -> Option<EarlierRequest> {
        let NearestText { record, tokens, .. } = nearest?;
        let end = tokens.len();
        let range: Range<u32> = at.min(end)..(at + SHOWN_AFTER).min(end);
        let text = spelt(&tokens.slices(range).concat(), &self.core.memory.model().lexicon()).concat();
        Some(EarlierRequest { request_id: record.stream_id, text: shown(&text), is_in_answer: at >= record.n_prompt })
    }
}

/// Whether `own` and the tokens of `other` from `at` on spell the same beyond the longer of their first tokens.
fn is_respelt(own: &[Token], other: TokensView<'_>, at: u32, lexicon: &TokenStrings) -> bool {
    let other = other.slices(at..other.len().min(at + MAX_RESPELT)).concat();
    let own = &own[..own.len().min(MAX_RESPELT as usize)];
    let piece = |&token: &Token| if is_of_medium(token) { &[][..] } else { lexicon.piece(token) };
    let (Some(first_own), Some(first_other)) = (own.first().map(piece), other.first().map(piece)) else { return false };
    if first_own.is_empty() || first_other.is_empty() {
        return false;
    }
    let (left, right): (Vec<u8>, Vec<u8>) =
        (own.iter().flat_map(piece).copied().collect(), other.iter().flat_map(piece).copied().collect());
    let n_same = left.iter().zip(&right).take_while(|(a, b)| a == b).count();
    n_same >= first_own.len().max(first_other.len())
}
