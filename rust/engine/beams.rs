//! The steps of a search: which beams go on, whose cells they begin with, and what its stream is told.
//!
//! All beams of a search are in slots together. Once each of them has computed its last token, the best of what may follow go on:
//! the first successor of a beam stays where that is, the others take the slots of beams that have none, and fork. A fork copies
//! and computes nothing, so that a search of width w over T tokens computes its prompt and at most w tokens for each of them.

use std::time::Instant;

use crate::cache::{AdapterSchedule, PrefixMatch};
use crate::engine::core::Core;
use crate::engine::lifecycle::{fail_request, free_id_now, leave_slot, remember_text};
use crate::engine::request_group::Branch;
use crate::engine::runner::{KvSeqId, Runner};
use crate::engine::running_sequence::{Phase, RunningSequence};
use crate::engine::sequence::{Beam, BeamToken, FinishedText, ProposedToken, SearchResults};
use crate::error::Error;
use crate::request::{BeamSearch, Event, FinishReason, Finished, TokenEvent, Usage};
use crate::sampling::beams::{BeamScore, BeamSelection, Proposal, Successor, choose_drawn, choose_likeliest, score};

/// Lets the searches go on all of whose beams have computed their last tokens, at `now`.
pub(super) fn advance<R: Runner>(core: &mut Core<R>, now: Instant) {
    let running = core.slots.running();
    let first = running.iter().filter(|running| running.sequence.index == 0 && running.sequence.beam.is_some());
    let due = first.map(|running| running.sequence.request_id).filter(|&request_id| is_due(running, request_id));
    for request_id in due.collect::<Vec<u64>>() {
        advance_one(core, request_id, now);
    }
}

/// Whether all beams of a search are in slots and say what they would go on with.
fn is_due(running: &[RunningSequence], request_id: u64) -> bool {
    let beams = running.iter().filter(|running| running.sequence.request_id == request_id);
    let mut n_left = None;
    for (running, beam) in beams.filter_map(|running| Some((running, running.sequence.beam.as_ref()?))) {
        if beam.is_live && (beam.proposals.is_none() || running.n_uncomputed() > 0) {
            return false;
        }
        n_left = Some(n_left.unwrap_or(beam.search.width) - 1);
    }
    n_left == Some(0)
}

/// The places of the beams of a search among the running, in order.
fn places<R: Runner>(core: &Core<R>, request_id: u64) -> Vec<usize> {
    let running = core.slots.running().iter().enumerate();
    running.filter(|(_, running)| running.sequence.request_id == request_id).map(|(nth, _)| nth).collect()
}

fn beam<R: Runner>(core: &Core<R>, nth: usize) -> &Beam {
    core.slots.running()[nth].sequence.beam.as_ref().expect("every sequence of a search is a beam")
}

fn beam_mut<R: Runner>(core: &mut Core<R>, nth: usize) -> &mut Beam {
    core.slots.running_mut()[nth].sequence.beam.as_mut().expect("every sequence of a search is a beam")
}

/// What the search has found whose first beam is at `first`.
fn found_mut<R: Runner>(core: &mut Core<R>, first: usize) -> &mut SearchResults {
    beam_mut(core, first).found.as_mut().expect("the first beam keeps it")
}

fn advance_one<R: Runner>(core: &mut Core<R>, request_id: u64, now: Instant) {
    let all = places(core, request_id);
    core.slots.running_mut()[all[0]].sequence.tick(now);
    let mut live: Vec<usize> = all.iter().copied().filter(|&nth| beam(core, nth).is_live).collect();
    live.sort_by_key(|&nth| beam(core, nth).place);
    let mut proposed: Vec<Vec<ProposedToken>> =
        live.iter().map(|&nth| beam_mut(core, nth).proposals.take().unwrap_or_default()).collect();
    let chosen = choose(core, &all, &live, &proposed);
    core.stats.n_predicted += (chosen.live.len() + chosen.ended.len()) as u64;
    for (successor, reason) in chosen.ended {
        let written = take_written(&mut proposed, &successor);
        add_whole(core, all[0], live[successor.parent], Some(written), successor.worth, reason);
    }
    trim(core, all[0]);
    if let Err(error) = arrange(core, &all, &live, &chosen.live, &mut proposed) {
        return fail_request(core, request_id, error);
    }
    if is_over(core, &all) {
        finish_search(core, request_id, &all);
    } else {
        tell_settled(core, request_id, &all);
    }
}

/// Which successors go on, and which end a text.
fn choose<R: Runner>(
    core: &Core<R>,
    all: &[usize],
    live: &[usize],
    proposed: &[Vec<ProposedToken>],
) -> BeamSelection<FinishReason> {
    let BeamSearch { width, is_stochastic, .. } = beam(core, all[0]).search;
    let proposals: Vec<Vec<Proposal>> =
        proposed.iter().map(|of_one| of_one.iter().map(|proposed| proposed.proposal).collect()).collect();
    let (running, runner) = (core.slots.running(), core.memory.model());
    let ends = |successor: &Successor| running[live[successor.parent]].sequence.end_with(successor.token, runner);
    if !is_stochastic {
        return choose_likeliest(&proposals, width as usize, ends);
    }
    let texts = beam(core, all[0]).found.as_ref().map_or(&[][..], |found| &found.texts[..]);
    let ranks: Vec<f64> = texts.iter().map(|text| text.rank).collect();
    choose_drawn(&proposals, &ranks, width as usize, ends)
}

fn take_written(proposed: &mut [Vec<ProposedToken>], successor: &Successor) -> BeamToken {
    let logprobs = proposed[successor.parent][successor.nth].logprobs.take();
    BeamToken { token: successor.token, logprobs }
}

/// A text has ended: that of the beam at `nth`, with one more token where there is one.
fn add_whole<R: Runner>(
    core: &mut Core<R>,
    first: usize,
    nth: usize,
    written: Option<BeamToken>,
    worth: BeamScore,
    reason: FinishReason,
) {
    let BeamSearch { length_penalty, is_stochastic, .. } = beam(core, first).search;
    let n_tokens = core.slots.running()[nth].sequence.n_predicted() + u32::from(written.is_some());
    let untold: Vec<BeamToken> = beam(core, nth).untold.iter().cloned().chain(written).collect();
    let by_length = score(worth.logprob, n_tokens, length_penalty);
    let (rank, score) = if is_stochastic { (worth.rank, worth.logprob) } else { (by_length, by_length) };
    let texts = &mut found_mut(core, first).texts;
    let at = texts.partition_point(|other| other.rank >= rank);
    texts.insert(at, FinishedText { untold, reason, rank, score });
}

/// Forgets the texts that cannot be told: of those that are drawn, the ones that others have driven out, too.
fn trim<R: Runner>(core: &mut Core<R>, first: usize) {
    let width = beam(core, first).search.width as usize;
    found_mut(core, first).texts.truncate(width);
}

/// Puts the successors into slots. Where that fails, the search cannot go on.
fn arrange<R: Runner>(
    core: &mut Core<R>,
    all: &[usize],
    live: &[usize],
    successors: &[Successor],
    proposed: &mut [Vec<ProposedToken>],
) -> Result<(), Error> {
    let has_successor = |nth: usize| successors.iter().any(|successor| live[successor.parent] == nth);
    let mut spare: Vec<usize> = all.iter().copied().filter(|&nth| !has_successor(nth)).collect();
    for &nth in &spare {
        if beam(core, nth).is_live {
            give_up(core, nth);
        }
    }
    // All forks come before the first token: they begin with what their parents hold now.
    let mut has_stayed = vec![false; live.len()];
    let mut heirs = Vec::with_capacity(successors.len());
    for successor in successors {
        let parent = live[successor.parent];
        if !std::mem::replace(&mut has_stayed[successor.parent], true) {
            heirs.push(parent);
            continue;
        }
        let nth = spare.pop().expect("there are as many slots as beams");
        fork(core, parent, nth)?;
        heirs.push(nth);
    }
    for ((successor, nth), place) in successors.iter().zip(heirs).zip(0..) {
        let written = take_written(proposed, successor);
        let Core { slots, memory, .. } = &mut *core;
        slots.running_mut()[nth].sequence.write(written, successor.worth, place, memory.model());
    }
    Ok(())
}

/// The beam at `nth` is not gone on with: its slot waits for another one.
fn give_up<R: Runner>(core: &mut Core<R>, nth: usize) {
    let id = place_anew(core, nth, None);
    let running = &mut core.slots.running_mut()[nth];
    (running.id, running.n_held, running.phase) = (id, 0, Phase::Following);
    running.sequence.drop_text();
}

/// The beam at `nth` begins with all that the one at `parent` holds.
fn fork<R: Runner>(core: &mut Core<R>, parent: usize, nth: usize) -> Result<(), Error> {
    let RunningSequence { id: from, n_held, .. } = core.slots.running()[parent];
    if !core.memory.can_fork(from, n_held) {
        let message = "this model's memory cannot be forked where a beam ends; leave beam_width out".to_owned();
        return Err(Error::InvalidRequest { param: "beam_width", message });
    }
    let id = place_anew(core, nth, Some(&PrefixMatch::in_pool(from, n_held)));
    let running = core.slots.running_mut();
    let stem = running[parent].sequence.stem();
    let heir = &mut running[nth];
    (heir.id, heir.n_held, heir.phase) = (id, n_held, Phase::Decoding);
    heir.sequence.adopt_prefix(stem);
    let maker = core.queue.job(core.slots.running()[nth].sequence.request_id).maker();
    core.memory.cache_mut().set_provenance(id, maker);
    Ok(())
}

/// Forgets what the sequence at `nth` holds, and gives it an id that holds what `matched` says.
fn place_anew<R: Runner>(core: &mut Core<R>, nth: usize, matched: Option<&PrefixMatch>) -> KvSeqId {
    let RunningSequence { id, .. } = core.slots.running()[nth];
    let variants: AdapterSchedule = core.slots.running()[nth].sequence.variants.clone();
    core.memory.cache_mut().give_up(id);
    // A pinned prefix that no other sequence holds keeps the id.
    free_id_now(core);
    core.memory.place(&variants, matched).expect("an id was freed before")
}

/// Whether no text can be found that is better than those that are: as far as transformers' `early_stopping=False` knows, which
/// takes the best beam at its present length.
fn is_over<R: Runner>(core: &Core<R>, all: &[usize]) -> bool {
    let live = all.iter().filter(|&&nth| beam(core, nth).is_live);
    let best = live.map(|&nth| beam(core, nth).worth.logprob).reduce(f64::max);
    let (Some(best), Some(first)) = (best, all.iter().find(|&&nth| beam(core, nth).is_live)) else { return true };
    let Beam { search, found, .. } = beam(core, all[0]);
    let texts = found.as_ref().map_or(&[][..], |found| &found.texts[..]);
    let n_tokens = core.slots.running()[*first].sequence.n_predicted();
    let is_worse = |text: &FinishedText| text.rank >= score(best, n_tokens, search.length_penalty);
    !search.is_stochastic && texts.len() >= search.width as usize && texts.last().is_some_and(is_worse)
}

/// Tells what all texts begin with that may still be told.
fn tell_settled<R: Runner>(core: &mut Core<R>, request_id: u64, all: &[usize]) {
    let n = core.queue.job(request_id).request.n as usize;
    // What others have driven out of the first n is never told.
    for text in found_mut(core, all[0]).texts.iter_mut().skip(n) {
        text.untold.clear();
    }
    let texts = beam(core, all[0]).found.as_ref().map_or(&[][..], |found| &found.texts[..]);
    let live = all.iter().map(|&nth| beam(core, nth)).filter(|beam| beam.is_live).map(|beam| &beam.untold);
    let mut ends = texts.iter().take(n).map(|text| &text.untold).chain(live);
    let Some(first) = ends.next() else { return };
    let n_common = |other: &Vec<BeamToken>| first.iter().zip(other).take_while(|(a, b)| a.token == b.token).count();
    let n_settled = ends.map(n_common).fold(first.len(), usize::min);
    let settled = first[..n_settled].to_vec();
    if settled.is_empty() {
        return;
    }
    for &nth in all {
        let beam = beam_mut(core, nth);
        if beam.is_live {
            beam.untold.drain(..n_settled);
        }
    }
    for text in found_mut(core, all[0]).texts.iter_mut().take(n) {
        text.untold.drain(..n_settled);
    }
    for written in settled {
        found_mut(core, all[0]).told.push(written.token);
        tell(core, request_id, all[0], &written);
    }
}

/// Tells all branches of a token that their texts have in common.
fn tell<R: Runner>(core: &mut Core<R>, request_id: u64, first: usize, written: &BeamToken) {
    let n = core.queue.job(request_id).request.n;
    let Core { slots, memory, .. } = &mut *core;
    let RunningSequence { sequence, slot, .. } = &mut slots.running_mut()[first];
    let slot = *slot;
    let Some(mut found) = sequence.beam.as_mut().and_then(|beam| beam.found.take()) else { return };
    let text = found.teller.tell(sequence, written.token, false, memory.model());
    let n_predicted = found.teller.n_told;
    beam_mut(core, first).found = Some(found);
    for index in 0..n {
        let (text, logprobs) = (text.clone(), written.logprobs.clone());
        let event = TokenEvent { index, token: written.token, text, slot, n_predicted, logprobs };
        core.tell(request_id, Event::Token(event));
    }
}

/// A search is over: its branches are told the best texts, and all of its slots are free.
fn finish_search<R: Runner>(core: &mut Core<R>, request_id: u64, all: &[usize]) {
    let n = core.queue.job(request_id).request.n;
    let Some(found) = beam_mut(core, all[0]).found.take() else { return };
    let SearchResults { teller, told, texts } = *found;
    let mut texts = texts.into_iter();
    for index in 0..n {
        let (mut teller, mut tokens) = (teller.clone(), told.clone());
        let whole = texts.next();
        let (untold, reason, score) = match whole {
            Some(FinishedText { untold, reason, score, .. }) => (untold, reason, Some(score)),
            // There are fewer texts than branches: what this one was told goes on nowhere.
            None => (Vec::new(), FinishReason::Cancelled, None),
        };
        let n_untold = untold.len();
        for (nth, BeamToken { token, logprobs }) in untold.into_iter().enumerate() {
            let RunningSequence { sequence, slot, .. } = &core.slots.running()[all[0]];
            let text = teller.tell(sequence, token, nth + 1 == n_untold, core.memory.model());
            tokens.push(token);
            let event = TokenEvent { index, token, text, slot: *slot, n_predicted: teller.n_told, logprobs };
            core.tell(request_id, Event::Token(event));
        }
        let first = &core.slots.running()[all[0]].sequence;
        let mut written = first.tokens_of_prompt();
        for token in tokens {
            written.push(token);
        }
        if score.is_some() {
            remember_text(core, request_id, &written);
        }
        end_branch(core, request_id, all[0], BeamEnd { index, n_predicted: teller.n_told, text: teller.rest(), reason, score });
    }
    leave_all(core, request_id);
}

/// How a branch of a search ends.
struct BeamEnd {
    index: u32,
    n_predicted: u32,
    text: smol_str::SmolStr,
    reason: FinishReason,
    score: Option<f64>,
}

/// The stream of a search whose first beam is at `first` hears of the end of a branch.
fn end_branch<R: Runner>(core: &mut Core<R>, request_id: u64, first: usize, ended: BeamEnd) {
    let BeamEnd { index, n_predicted, text, reason, score } = ended;
    let RunningSequence { sequence, slot, n_held, .. } = &mut core.slots.running_mut()[first];
    let (n_prompt, slot) = (sequence.n_prompt, Some(*slot));
    let mut usage = sequence.usage(*n_held, reason == FinishReason::Cancelled);
    if index > 0 {
        (usage.n_computed, usage.n_cached) = (0, usage.n_computed + usage.n_cached);
    }
    (usage.n_predicted, usage.n_held) = (n_predicted, n_prompt + n_predicted.saturating_sub(1));
    let explanation = sequence.explanation.take().map(|explanation| Box::new(explanation.shown()));
    let is_truncated = reason == FinishReason::ContextFull;
    let finished = Finished { index, slot, reason, text, usage, is_truncated, made: None, score, explanation };
    core.tell(request_id, Event::Finished(finished));
}

/// All beams of a search leave their slots, and none of its branches is written any more.
fn leave_all<R: Runner>(core: &mut Core<R>, request_id: u64) {
    for running in core.slots.take_all(|running| running.sequence.request_id == request_id) {
        leave_slot(core, &running);
        core.memory.cache_mut().unpin(running.id);
    }
    core.queue.job_mut(request_id).branches.fill(Branch::Finished);
}

/// The search alone fills the pool, and its most senior beam has no room for another token: what its beams have is all there is.
/// `false` where they have nothing yet.
pub(super) fn end_full<R: Runner>(core: &mut Core<R>, request_id: u64) -> bool {
    let all = places(core, request_id);
    let live: Vec<usize> = all.iter().copied().filter(|&nth| beam(core, nth).is_live).collect();
    if live.iter().any(|&nth| core.slots.running()[nth].sequence.n_predicted() == 0) {
        return false;
    }
    for nth in live {
        let worth = beam(core, nth).worth;
        add_whole(core, all[0], nth, None, worth, FinishReason::ContextFull);
    }
    trim(core, all[0]);
    finish_search(core, request_id, &all);
    true
}

/// Cancels the search whose stream this is, where it is one: its beams are those of all of its branches. `false` where it is none.
pub(super) fn cancel_search<R: Runner>(core: &mut Core<R>, stream_id: u64, index: u32) -> bool {
    let Some((request_id, _)) = core.queue.find_branch(stream_id, index) else { return false };
    let job = core.queue.job(request_id);
    if job.request.diversity.beams().is_none() {
        return false;
    }
    if index >= job.request.n || job.is_done() {
        return true;
    }
    core.has_changed = true;
    let (n, waiting) = (job.request.n, (0..).zip(&job.branches).filter(|&(_, &branch)| branch == Branch::Waiting));
    for index in waiting.map(|(index, _)| index).collect::<Vec<u32>>() {
        drop(core.queue.drop_waiting(request_id, index));
    }
    let preempted = core.queue.remove_preempted(request_id);
    let all = places(core, request_id);
    let mut found = None;
    if let Some(&first) = all.first() {
        found = beam_mut(core, first).found.take();
    }
    let (n_predicted, text) = found.map_or((0, "".into()), |mut found| (found.teller.n_told, found.teller.rest()));
    for index in 0..n {
        let (text, reason) = (text.clone(), FinishReason::Cancelled);
        if let Some(&first) = all.first() {
            end_branch(core, request_id, first, BeamEnd { index, n_predicted, text, reason, score: None });
            continue;
        }
        let usage = preempted.first().map_or(Usage::default(), |of| Usage { n_predicted, ..of.sequence.usage(of.n_held, true) });
        let slot = preempted.first().map(|of| of.slot);
        let finished =
            Finished { index, slot, reason, text, usage, is_truncated: false, made: None, score: None, explanation: None };
        core.tell(request_id, Event::Finished(finished));
    }
    for preempted in preempted {
        core.memory.cache_mut().release(preempted.reservation);
    }
    leave_all(core, request_id);
    true
}
