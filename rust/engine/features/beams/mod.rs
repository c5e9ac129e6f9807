//! Beam search: which beams continue, whose cells they share, and which tokens are published.
//!
//! All beams of a search are in slots together. Once each has computed its last token, the best successors of all beams continue:
//! the first successor of a beam stays in its slot, the others take the slots of beams without successors, and fork. As forks
//! compute nothing, a search of width w over T tokens computes its prompt and at most w tokens per step.

pub(crate) mod beam;
pub(crate) mod selection;

use std::time::Instant;

use crate::cache::PrefixMatch;
use crate::config::Limits;
use crate::engine::cache_manager::CacheManager;
use crate::engine::cache_manager::guards::PathGuard;
use crate::engine::cache_manager::reclaim::Urgency;
use crate::engine::features::beams::beam::{Beam, FinishedText, ProposedToken, SearchResults};
use crate::engine::features::beams::selection::{
    BeamScore, BeamSelection, Extension, Successor, choose_drawn, choose_likeliest, normalize_score,
};
use crate::engine::features::hooks;
use crate::engine::features::state::SequenceFeatures;
use crate::engine::ids::{BranchIndex, BranchKey, GroupId, MemberIndex, StreamId};
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::running_sequence::RunningSequence;
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::engine::scheduler::sequence::{ScoredToken, Sequence};
use crate::error::Error;
use crate::request::{BeamSearch, Event, FinishReason, Finished, Request, TokenEvent, Usage, reject};

pub(crate) fn width(request: &Request) -> u32 {
    request.diversity.beams().map_or(1, |search| search.width)
}

pub(crate) fn on_validate(limits: &Limits, request: &mut Request) -> Result<(), Error> {
    let Limits { n_slots, grouping, .. } = limits;
    let Some(&BeamSearch { width, .. }) = request.diversity.beams() else { return Ok(()) };
    if width > *n_slots {
        let limit = format!("it may be at most {n_slots}, the number of slots, because all beams run together");
        return reject("beam_width", format!("beam_width is {width}; {limit}"));
    }
    if grouping.is_some() {
        let message = "contexts cannot be forked with self-extend (grp_attn_n above 1), which beam_width requires; omit beam_width, or set grp_attn_n to 1";
        return reject("beam_width", message);
    }
    // Beam search samples nothing, so temperature 0 must not reduce it to one text: it ranks by the model's probabilities.
    if request.sampling.temperature <= 0.0 {
        request.sampling.temperature = 1.0;
    }
    Ok(())
}

pub(crate) fn on_new_sequence(sequence: &mut Sequence, nth: u32) {
    let search = sequence.request.diversity.beams().copied();
    sequence.features.beams = search.map(|search| Box::new(Beam::new(search, nth, &sequence.text)));
}

pub(crate) fn sample(sequence: &mut Sequence, logits: &[f32]) -> bool {
    let is_beam = sequence.features.beams.is_some();
    if is_beam {
        sequence.propose(logits);
    }
    is_beam
}

pub(crate) fn on_preempt(features: &mut SequenceFeatures) {
    if let Some(beam) = &mut features.beams {
        beam.proposals = None;
    }
}

pub(crate) fn is_vacant(features: &SequenceFeatures) -> bool {
    features.beams.as_ref().is_some_and(|beam| !beam.is_live)
}

/// Returns the number of sampled tokens.
pub(crate) fn advance<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>, now: Instant) -> u64 {
    let mut n_sampled = 0;
    let running = scheduler.running();
    let first =
        running.iter().filter(|running| running.sequence.member == MemberIndex(0) && running.sequence.features.beams.is_some());
    let due = first.map(|running| running.sequence.group_id).filter(|&group_id| is_due(running, group_id));
    for group_id in due.collect::<Vec<GroupId>>() {
        let all = beams_of(scheduler, group_id);
        scheduler.observe_token(all[0], now);
        let mut live = live_of(scheduler, &all);
        live.sort_by_key(|&key| beam(scheduler, key).rank);
        let mut proposed: Vec<Vec<ProposedToken>> =
            live.iter().map(|&key| beam_mut(scheduler, key).proposals.take().unwrap_or_default()).collect();
        let selection = choose(scheduler, cache.runner(), &all, &live, &proposed);
        let n_chosen = (selection.live.len() + selection.ended.len()) as u64;
        scheduler.count_predicted(n_chosen);
        n_sampled += n_chosen;
        for (successor, reason) in selection.ended {
            let chosen = take_token(&mut proposed, &successor);
            add_finished_text(scheduler, all[0], live[successor.parent], Some(chosen), successor.score, reason);
        }
        if let Err(error) = check_forks(scheduler, cache, &live, &selection.live) {
            scheduler.fail_stream_of(group_id, error);
            continue;
        }
        let Arrangement { slots, forks, vacant } = arrange(scheduler, &all, &live, &selection.live);
        let are_free = cache.free_ids(forks.len() + vacant.len(), Urgency::Now, || scheduler.release_junior_holder());
        assert!(are_free, "pinned prefixes leave an id for each slot");
        for (key, parent) in forks {
            let (parent, n_computed) = (scheduler.running_sequence(parent).id(), scheduler.running_sequence(parent).n_computed);
            let path = place(cache, scheduler.running_sequence(key), Some(&PrefixMatch::on_device(parent, n_computed)));
            scheduler.fork_to(key, path, n_computed);
        }
        for key in vacant {
            let path = place(cache, scheduler.running_sequence(key), None);
            scheduler.fork_to(key, path, 0);
        }
        for ((successor, key), rank) in selection.live.iter().zip(slots).zip(0..) {
            let chosen = take_token(&mut proposed, successor);
            scheduler.sequence_mut(key).write(chosen, successor.score, rank, cache.runner());
        }
        if is_finished(scheduler, &all) {
            finish_search(scheduler, cache.runner(), group_id, &all);
        } else {
            publish_settled(scheduler, cache.runner(), group_id, &all);
        }
    }
    n_sampled
}

fn is_due(running: &[RunningSequence], group_id: GroupId) -> bool {
    let beams = running.iter().filter(|running| running.sequence.group_id == group_id);
    let mut n_left = None;
    for (running, beam) in beams.filter_map(|running| Some((running, running.sequence.features.beams.as_ref()?))) {
        if beam.is_live && (beam.proposals.is_none() || running.n_uncomputed() > 0) {
            return false;
        }
        n_left = Some(n_left.unwrap_or(beam.search.width) - 1);
    }
    n_left == Some(0)
}

fn beams_of(scheduler: &Scheduler, group_id: GroupId) -> Vec<SchedulingKey> {
    let running = scheduler.running().iter();
    running.filter(|running| running.sequence.group_id == group_id).map(RunningSequence::key).collect()
}

fn beam(scheduler: &Scheduler, key: SchedulingKey) -> &Beam {
    scheduler.running_sequence(key).sequence.features.beams.as_ref().expect("every sequence of a search is a beam")
}

fn beam_mut(scheduler: &mut Scheduler, key: SchedulingKey) -> &mut Beam {
    scheduler.sequence_mut(key).features.beams.as_mut().expect("every sequence of a search is a beam")
}

fn live_of(scheduler: &Scheduler, all: &[SchedulingKey]) -> Vec<SchedulingKey> {
    all.iter().copied().filter(|&key| beam(scheduler, key).is_live).collect()
}

fn texts_of(scheduler: &Scheduler, first: SchedulingKey) -> &[FinishedText] {
    beam(scheduler, first).results.as_ref().map_or(&[], |results| &results.texts)
}

fn results_mut(scheduler: &mut Scheduler, first: SchedulingKey) -> &mut SearchResults {
    beam_mut(scheduler, first).results.as_mut().expect("the first beam keeps it")
}

fn choose(
    scheduler: &Scheduler,
    runner: &impl Runner,
    all: &[SchedulingKey],
    live: &[SchedulingKey],
    proposed: &[Vec<ProposedToken>],
) -> BeamSelection<FinishReason> {
    let BeamSearch { width, is_stochastic, .. } = beam(scheduler, all[0]).search;
    let proposals: Vec<Vec<Extension>> =
        proposed.iter().map(|of_one| of_one.iter().map(|proposed| proposed.extension).collect()).collect();
    let ends =
        |successor: &Successor| scheduler.running_sequence(live[successor.parent]).sequence.end_with(successor.token, runner);
    if !is_stochastic {
        return choose_likeliest(&proposals, width as usize, ends);
    }
    let ranks: Vec<f64> = texts_of(scheduler, all[0]).iter().map(|text| text.rank).collect();
    choose_drawn(&proposals, &ranks, width as usize, ends)
}

fn take_token(proposed: &mut [Vec<ProposedToken>], successor: &Successor) -> ScoredToken {
    let logprobs = proposed[successor.parent][successor.nth].logprobs.take();
    ScoredToken { token: successor.token, logprobs }
}

fn add_finished_text(
    scheduler: &mut Scheduler,
    first: SchedulingKey,
    key: SchedulingKey,
    chosen: Option<ScoredToken>,
    beam_score: BeamScore,
    reason: FinishReason,
) {
    let BeamSearch { width, length_penalty, is_stochastic } = beam(scheduler, first).search;
    let n_tokens = scheduler.running_sequence(key).sequence.n_predicted + u32::from(chosen.is_some());
    let unpublished: Vec<ScoredToken> = beam(scheduler, key).unpublished.iter().cloned().chain(chosen).collect();
    let normalized = normalize_score(beam_score.logprob, n_tokens, length_penalty);
    let (rank, score) = if is_stochastic { (beam_score.rank, beam_score.logprob) } else { (normalized, normalized) };
    let texts = &mut results_mut(scheduler, first).texts;
    let index = texts.partition_point(|other| other.rank >= rank);
    texts.insert(index, FinishedText { unpublished, reason, rank, score });
    texts.truncate(width as usize);
}

fn n_successors(of: SchedulingKey, live: &[SchedulingKey], successors: &[Successor]) -> usize {
    successors.iter().filter(|successor| live[successor.parent] == of).count()
}

fn check_forks<R: Runner>(
    scheduler: &Scheduler,
    cache: &mut CacheManager<R>,
    live: &[SchedulingKey],
    successors: &[Successor],
) -> Result<(), Error> {
    for &parent in live.iter().filter(|&&parent| n_successors(parent, live, successors) > 1) {
        let running = scheduler.running_sequence(parent);
        if !cache.can_fork(running.id(), running.n_computed) {
            return reject("beam_width", "the memory of this model cannot be forked at the end of a beam; omit beam_width");
        }
    }
    Ok(())
}

struct Arrangement {
    /// The beam that continues as each successor.
    slots: Vec<SchedulingKey>,
    /// Beams without cells, each with the parent that it shares cells with.
    forks: Vec<(SchedulingKey, SchedulingKey)>,
    vacant: Vec<SchedulingKey>,
}

/// Drops the texts of beams without successors, and gives their slots to further successors of other beams.
fn arrange(scheduler: &mut Scheduler, all: &[SchedulingKey], live: &[SchedulingKey], successors: &[Successor]) -> Arrangement {
    let mut vacant: Vec<SchedulingKey> = all.iter().copied().filter(|&key| n_successors(key, live, successors) == 0).collect();
    for &key in &vacant {
        scheduler.vacate(key);
        scheduler.sequence_mut(key).drop_text();
    }
    // All forks come before the first token: they share the current cells of their parents.
    let mut has_successor_in_place = vec![false; live.len()];
    let (mut slots, mut forks) = (Vec::with_capacity(successors.len()), Vec::new());
    for successor in successors {
        let parent = live[successor.parent];
        if !std::mem::replace(&mut has_successor_in_place[successor.parent], true) {
            slots.push(parent);
            continue;
        }
        let key = vacant.pop().expect("there are as many slots as beams");
        let prefix = scheduler.running_sequence(parent).sequence.prefix();
        scheduler.sequence_mut(key).adopt_prefix(prefix);
        forks.push((key, parent));
        slots.push(key);
    }
    Arrangement { slots, forks, vacant }
}

/// Returns a path with the cells of `matched` for a beam whose path was discarded.
fn place<R: Runner>(cache: &mut CacheManager<R>, beam: &RunningSequence, matched: Option<&PrefixMatch>) -> PathGuard {
    let Sequence { adapter_schedule, .. } = &beam.sequence;
    cache.place(Some(beam.sequence.provenance()), adapter_schedule, matched).expect("an id was freed for each beam")
}

/// Returns true if no text can rank above the finished ones if the best beam ended now (transformers' `early_stopping=False`).
fn is_finished(scheduler: &Scheduler, all: &[SchedulingKey]) -> bool {
    let live = live_of(scheduler, all);
    let best = live.iter().map(|&key| beam(scheduler, key).score.logprob).reduce(f64::max);
    let Some(best) = best else { return true };
    let (search, texts) = (beam(scheduler, all[0]).search, texts_of(scheduler, all[0]));
    let n_tokens = scheduler.running_sequence(live[0]).sequence.n_predicted;
    let ranks_above = |text: &FinishedText| text.rank >= normalize_score(best, n_tokens, search.length_penalty);
    !search.is_stochastic && texts.len() >= search.width as usize && texts.last().is_some_and(ranks_above)
}

fn publish_settled(scheduler: &mut Scheduler, runner: &impl Runner, group_id: GroupId, all: &[SchedulingKey]) {
    let n = scheduler.group(group_id).request.n as usize;
    // Texts beyond the first `n` are never published.
    for text in results_mut(scheduler, all[0]).texts.iter_mut().skip(n) {
        text.unpublished.clear();
    }
    let live = live_of(scheduler, all);
    let texts = texts_of(scheduler, all[0]).iter().take(n).map(|text| &text.unpublished);
    let mut ends = texts.chain(live.iter().map(|&key| &beam(scheduler, key).unpublished));
    let Some(first) = ends.next() else { return };
    let n_common = |other: &Vec<ScoredToken>| first.iter().zip(other).take_while(|(a, b)| a.token == b.token).count();
    let n_settled = ends.map(n_common).fold(first.len(), usize::min);
    let settled = first[..n_settled].to_vec();
    for key in live {
        beam_mut(scheduler, key).unpublished.drain(..n_settled);
    }
    for text in results_mut(scheduler, all[0]).texts.iter_mut().take(n) {
        text.unpublished.drain(..n_settled);
    }
    for chosen in settled {
        results_mut(scheduler, all[0]).published.push(chosen.token);
        publish_token(scheduler, runner, group_id, all[0], &chosen);
    }
}

fn publish_token(scheduler: &mut Scheduler, runner: &impl Runner, group_id: GroupId, first: SchedulingKey, chosen: &ScoredToken) {
    let n = scheduler.group(group_id).request.n;
    let slot = scheduler.running_sequence(first).slot;
    let Sequence { features, request, .. } = scheduler.sequence_mut(first);
    let Some(results) = features.beams.as_mut().and_then(|beam| beam.results.as_mut()) else { return };
    let text = results.cursor.advance(request, chosen.token, false, runner);
    let n_predicted = results.cursor.n_published;
    for index in 0..n {
        let (text, logprobs) = (text.clone(), chosen.logprobs.clone());
        let event = TokenEvent { index, token: chosen.token, text, slot, n_predicted, logprobs };
        scheduler.emit(group_id, Event::Token(event));
    }
}

fn finish_search(scheduler: &mut Scheduler, runner: &impl Runner, group_id: GroupId, all: &[SchedulingKey]) {
    let n = scheduler.group(group_id).request.n;
    let Some(results) = beam_mut(scheduler, all[0]).results.take() else { return };
    let SearchResults { cursor, published, texts } = *results;
    let mut texts = texts.into_iter();
    for index in 0..n {
        let (mut cursor, mut tokens) = (cursor.clone(), scheduler.running_sequence(all[0]).sequence.tokens.of_prompt());
        for &token in &published {
            tokens.push(token);
        }
        let (unpublished, reason, score) = match texts.next() {
            Some(FinishedText { unpublished, reason, score, .. }) => (unpublished, reason, Some(score)),
            // With fewer texts than branches, the remaining branches are cancelled.
            None => (Vec::new(), FinishReason::Cancelled, None),
        };
        let n_unpublished = unpublished.len();
        for (nth, ScoredToken { token, logprobs }) in unpublished.into_iter().enumerate() {
            let RunningSequence { sequence, slot, .. } = scheduler.running_sequence(all[0]);
            let text = cursor.advance(&sequence.request, token, nth + 1 == n_unpublished, runner);
            tokens.push(token);
            let event = TokenEvent { index, token, text, slot: *slot, n_predicted: cursor.n_published, logprobs };
            scheduler.emit(group_id, Event::Token(event));
        }
        if score.is_some() {
            hooks::on_text(scheduler.shared_features(), scheduler.group(group_id), &tokens);
        }
        let ended = Finished { text: cursor.remaining_text(), score, ..Finished::without_tokens(index, reason) };
        end_branch(scheduler, group_id, all[0], cursor.n_published, ended);
    }
    scheduler.finish_group(group_id);
}

/// Publishes the end of a branch of `n_predicted` tokens; adds the usage of the search, whose first beam is `first`.
fn end_branch(scheduler: &mut Scheduler, group_id: GroupId, first: SchedulingKey, n_predicted: u32, mut ended: Finished) {
    let RunningSequence { sequence, slot, n_computed, .. } = scheduler.running_sequence(first);
    let mut usage = sequence.usage(*n_computed, ended.reason == FinishReason::Cancelled);
    if ended.index > 0 {
        (usage.n_prompt_computed, usage.n_cached) = (0, usage.n_prompt_computed + usage.n_cached);
    }
    (usage.n_predicted, usage.n_context) = (n_predicted, sequence.n_prompt + n_predicted.saturating_sub(1));
    (ended.slot, ended.usage, ended.is_truncated) = (Some(*slot), usage, ended.reason == FinishReason::ContextFull);
    hooks::add_reports(&mut scheduler.sequence_mut(first).features, &mut ended);
    scheduler.emit(group_id, Event::Finished(ended));
}

/// Ends a search that fills the device cache by itself with the texts it has. Returns `false` if a live beam has no token yet.
pub(crate) fn end_full(scheduler: &mut Scheduler, runner: &impl Runner, group_id: GroupId) -> bool {
    let all = beams_of(scheduler, group_id);
    let live = live_of(scheduler, &all);
    if live.iter().any(|&key| scheduler.running_sequence(key).sequence.n_predicted == 0) {
        return false;
    }
    for key in live {
        let beam_score = beam(scheduler, key).score;
        add_finished_text(scheduler, all[0], key, None, beam_score, FinishReason::ContextFull);
    }
    finish_search(scheduler, runner, group_id, &all);
    true
}

pub(crate) fn cancel_search(scheduler: &mut Scheduler, stream_id: StreamId, branch: BranchIndex) -> bool {
    let Some(BranchKey { group_id, .. }) = scheduler.queue().find_branch(stream_id, branch) else { return false };
    let group = scheduler.group(group_id);
    if group.request.diversity.beams().is_none() {
        return false;
    }
    let n = group.request.n;
    if branch.0 >= n || group.is_done() {
        return true;
    }
    let first = beams_of(scheduler, group_id).first().copied();
    let results = first.and_then(|first| beam_mut(scheduler, first).results.take());
    let (n_predicted, text) =
        results.map_or((0, "".into()), |mut results| (results.cursor.n_published, results.cursor.remaining_text()));
    let preempted = scheduler.queue().preempted().iter().find(|preempted| preempted.sequence.group_id == group_id);
    let (slot, usage) = preempted
        .map_or_else(Default::default, |of| (Some(of.slot), Usage { n_predicted, ..of.sequence.usage(of.n_computed, true) }));
    for index in 0..n {
        let ended = Finished { text: text.clone(), ..Finished::without_tokens(index, FinishReason::Cancelled) };
        match first {
            Some(first) => end_branch(scheduler, group_id, first, n_predicted, ended),
            None => scheduler.emit(group_id, Event::Finished(Finished { slot, usage, ..ended })),
        }
    }
    scheduler.finish_group(group_id);
    true
}
