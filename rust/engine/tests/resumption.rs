//! Preempted groups share cells when they resume: common prefixes are computed, or reloaded, once.

use super::*;
use crate::engine::{Fork, ForkDestination, ForkKind, ForkPoint, PendingFork, RunningStats};
use crate::request::{BeamSearch, ContextShift, Diversity};

/// Each kind of memory with a host cache and without one.
fn memories() -> Vec<(String, MemoryKind, Option<u64>)> {
    let kinds = [(ForkRule::Anywhere, 0), (ForkRule::InWindow, 8), (ForkRule::AtEnd, 0)];
    let with_stores = kinds.into_iter().flat_map(|kind| [(kind, STORE), (kind, Some(0))]);
    let memory = |((forks, n_window), max_host_cache_bytes)| {
        let name = format!("{forks:?}, {}", if max_host_cache_bytes == STORE { "a host cache" } else { "no host cache" });
        (name, MemoryKind { forks, n_window, ..MEMORY }, max_host_cache_bytes)
    };
    with_stores.map(memory).collect()
}

fn start_kind(limits: Limits, memory: MemoryKind) -> (Engine, FakeControl) {
    start_with(Limits { n_seq_max: 12, ..limits }, move |runner| runner.without_end().with_memory(memory))
}

fn urgent(request: Request) -> Request {
    Request { priority: 5, ..request }
}

fn running(stats: &Stats) -> impl Iterator<Item = &RunningStats> {
    stats.slots.iter().filter_map(|slot| slot.running.as_ref())
}

fn n_predicted(stats: &Stats, request_id: u64) -> Option<u32> {
    running(stats).find(|running| running.request_id == request_id).map(|running| running.n_predicted)
}

/// Completions of a group, and cells of the device cache in which they are preempted.
const N_BRANCHES: u32 = 4;
const N_CELLS: u32 = 320;
const N_PROMPT: u32 = 100;

/// Tokens that each branch of a group samples.
const N_DRAWN: u32 = 40;

/// Cost of a group after its preemption.
struct Resumed {
    branches: Vec<BranchState>,
    /// Tokens that it computed again.
    n_again: u32,
    /// Tokens that were reloaded.
    n_restored: u64,
    /// Maximum number of its branches that ran together after they had resumed.
    n_together: usize,
    /// Upper bound on the tokens that it held when it was preempted, with common ones counted once.
    n_context: u32,
}

/// Preempts a running group by an urgent request that takes its cells, and lets it resume.
fn preempt_and_resume(engine: &Engine, control: &FakeControl, group: Completions) -> Resumed {
    let before = engine.stats();
    assert_eq!(running(&before).count(), N_BRANCHES as usize);
    let drawn: Vec<u32> = running(&before).map(|running| running.n_predicted).collect();
    let n_left: u32 = drawn.iter().map(|n| N_DRAWN - n).sum();
    let n_before = control.n_computed();
    let (n_urgent, n_answer) = (280, 20);
    let other = engine.submit(urgent(greedy(&prompt(9, n_urgent), n_answer)), None).unwrap();
    let urgent_id = other.request_id();
    let stats = step_until(engine, control, |stats| n_predicted(stats, urgent_id).is_some());
    assert_eq!(stats.n_preempted, u64::from(N_BRANCHES), "the group gives way as a whole");
    let mut n_together = 0;
    let after = step_until(engine, control, |stats| {
        assert!(stats.n_cells_used <= N_CELLS as usize);
        n_together = n_together.max(running(stats).filter(|running| running.request_id != urgent_id).count());
        is_idle(stats)
    });
    assert_eq!(collect(other).unwrap()[0].tokens, expected(&prompt(9, n_urgent), n_answer as usize));
    let n_all = u32::try_from(control.n_computed() - n_before).unwrap();
    let n_urgent = u32::try_from(n_urgent).unwrap() + n_answer - 1;
    Resumed {
        branches: collect(group).unwrap(),
        n_again: n_all - n_left - n_urgent,
        n_restored: after.host_cache.n_reloaded - before.host_cache.n_reloaded,
        n_together,
        // Each samples one more token in the step that is held.
        n_context: N_PROMPT + drawn.iter().sum::<u32>(),
    }
}

/// Checks the text of a group, and that common prefixes were computed or reloaded once.
fn check(name: &str, memory: MemoryKind, resumed: &Resumed, alone: &[BranchState]) {
    let Resumed { branches, n_again, n_restored, n_together, n_context } = resumed;
    assert_eq!(branches.len(), alone.len(), "{name}");
    for (branch, alone) in branches.iter().zip(alone) {
        assert_eq!((&branch.tokens, &branch.text), (&alone.tokens, &alone.text), "{name}");
    }
    // Other kinds of memory are saved and reloaded as whole texts, as many at a time as fit.
    let is_restored_whole = *n_restored > 0 && memory.forks != ForkRule::Anywhere;
    let n_had = u64::from(*n_again) + if is_restored_whole { 0 } else { *n_restored };
    assert!(
        n_had <= u64::from(*n_context),
        "{name}: {n_had} tokens were computed again or restored, and the group had {n_context}"
    );
    assert!(*n_restored == 0 || *n_again == 0, "{name}: {n_again} tokens were computed again that a host cache holds");
    assert!(is_restored_whole || *n_together == N_BRANCHES as usize, "{name}: {n_together} branches ran together");
}

#[test]
fn completions_of_one_request_share_their_common_prefix_when_they_resume() {
    for (name, memory, max_host_cache_bytes) in memories() {
        let request = drawn(&prompt(1, N_PROMPT as usize), N_BRANCHES, N_DRAWN);
        let (engine, _) = start_kind(Limits { max_host_cache_bytes, ..limits(5, 4096) }, memory);
        let alone = run(&engine, request.clone());
        let (engine, control) = start_kind(Limits { max_host_cache_bytes, ..limits(5, N_CELLS) }, memory);
        control.allow(Some(0));
        let group = engine.submit(request, None).unwrap();
        step_until(&engine, &control, |stats| {
            running(stats).filter(|running| running.n_predicted >= 20).count() == N_BRANCHES as usize
        });
        let resumed = preempt_and_resume(&engine, &control, group);
        check(&name, memory, &resumed, &alone);
    }
}

// feature: forks
/// Returns a stream of one branch that is forked into three more, after at least ten tokens or at `at`, and the fork position.
/// Decodes are held.
fn forked(engine: &Engine, control: &FakeControl, at: Option<u32>) -> (Completions, u32) {
    control.allow(Some(0));
    let completions = engine.submit(drawn(&prompt(1, N_PROMPT as usize), 1, N_DRAWN), None).unwrap();
    step_until(engine, control, |stats| running(stats).any(|running| running.n_predicted >= at.unwrap_or(10)));
    let (at, kind) = (at.map_or(ForkPoint::End, ForkPoint::Token), ForkKind::Continue(N_BRANCHES - 1));
    let fork: PendingFork = completions
        .request_fork(Fork { branch: 0, at, append: Vec::new(), kind, destination: ForkDestination::SameStream }, None)
        .unwrap();
    while !fork.is_ready() {
        step(engine, control);
    }
    (completions, fork.wait().unwrap().n_sampled)
}

// feature: forks
#[test]
fn forks_share_their_common_prefix_when_they_resume() {
    for (name, memory, max_host_cache_bytes) in memories() {
        let (engine, control) = start_kind(Limits { max_host_cache_bytes, ..limits(5, N_CELLS) }, memory);
        let (group, n_sampled) = forked(&engine, &control, None);
        step_until(&engine, &control, |stats| {
            running(stats).filter(|running| running.n_predicted >= 10).count() == N_BRANCHES as usize
        });
        let resumed = preempt_and_resume(&engine, &control, group);
        let (engine, control) = start_kind(Limits { max_host_cache_bytes, ..limits(5, 4096) }, memory);
        let (alone, _) = forked(&engine, &control, Some(n_sampled));
        control.allow(None);
        check(&name, memory, &resumed, &collect(alone).unwrap());
    }
}

/// Two sequences with a common prefix of [`N_COMMON`] tokens that were preempted: the provider computes these tokens again, 32
/// per step, and the other sequence waits for them. Decodes are held.
struct Waiting {
    engine: Engine,
    control: FakeControl,
    provider: Completions,
    other: Completions,
}

const N_COMMON: usize = 120;

fn text_of_provider() -> String {
    prompt(1, N_COMMON) + &prompt(2, 20)
}

fn text_of_other() -> String {
    prompt(1, N_COMMON) + &prompt(3, 120)
}

/// `n_least` is the number of tokens that the other sequence samples before both are preempted.
fn waiting(memory: MemoryKind, n_least: u32) -> Waiting {
    let (engine, control) = start_kind(Limits { n_ubatch: 32, ..limits(4, 512) }, memory);
    control.allow(Some(0));
    let provider = engine.submit(greedy(&text_of_provider(), 100), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_predicted > 0);
    let other = engine.submit(greedy(&text_of_other(), 30), None).unwrap();
    let ids = [provider.request_id(), other.request_id()];
    step_until(&engine, &control, |stats| n_predicted(stats, ids[1]).is_some_and(|n| n >= n_least));
    take_all_cells(&engine, &control, 8);
    let stats = step_until(&engine, &control, |stats| ids.iter().all(|&id| n_predicted(stats, id).is_some()));
    assert_eq!(stats.n_preempted, 2);
    Waiting { engine, control, provider, other }
}

/// An urgent request takes nearly all of 512 cells, and ends.
fn take_all_cells(engine: &Engine, control: &FakeControl, seed: u64) {
    let urgent = engine.submit(urgent(greedy(&prompt(seed, 440), 20)), None).unwrap();
    let urgent_id = urgent.request_id();
    step_until(engine, control, |stats| n_predicted(stats, urgent_id).is_some());
    step_until(engine, control, |stats| n_predicted(stats, urgent_id).is_none());
}

/// Returns how many sequences computed something in each plan after the first `n_before`.
fn n_sequences(control: &FakeControl, n_before: usize) -> Vec<usize> {
    let plans = control.plans().into_iter().skip(n_before);
    let n_sequences = |plan: crate::engine::runner::Plan| {
        let mut ids: Vec<_> = plan.rows.iter().map(|row| row.sequence).collect();
        ids.dedup();
        ids.len()
    };
    plans.map(n_sequences).collect()
}

#[test]
fn a_sequence_that_waits_for_a_prefix_continues_from_what_its_cancelled_provider_had_computed() {
    for (name, memory, _) in memories().into_iter().filter(|(_, _, max_host_cache_bytes)| *max_host_cache_bytes != STORE) {
        let Waiting { engine, control, provider, other } = waiting(memory, 3);
        let (n_before, n_plans) = (control.n_computed(), control.plans().len());
        step(&engine, &control);
        provider.cancel_branch(0);
        step(&engine, &control);
        assert_eq!(n_sequences(&control, n_plans), [1, 1], "{name}: the other sequence waits");
        control.allow(None);
        let ended = collect(provider).unwrap().remove(0);
        assert_eq!(ended.finished.reason, FinishReason::Cancelled, "{name}");
        let branch = collect(other).unwrap().remove(0);
        assert_eq!(branch.tokens, expected(&text_of_other(), 30), "{name}");
        let n_computed = u32::try_from(control.n_computed() - n_before).unwrap();
        assert!(n_computed <= 240 + 29, "{name}: {n_computed} tokens, where each is to be computed once");
    }
}

#[test]
fn a_sequence_that_waits_for_a_prefix_does_not_wait_for_a_context_that_was_shifted() {
    let limits = Limits { n_ctx_slot: 200, ..limits(4, 512) };
    let (engine, control) = start_kind(limits, MEMORY);
    control.allow(Some(0));
    let text = prompt(1, 140);
    let shift = ContextShift { n_keep: Some(0), n_discard: 1 };
    let provider = engine.submit(Request { context_shift: Some(shift), ..greedy(&text, 70) }, None).unwrap();
    let provider_id = provider.request_id();
    step_until(&engine, &control, |stats| n_predicted(stats, provider_id) == Some(54));
    // The other sequence begins with 190 tokens of the provider's text.
    let mut tokens = tokens_of(&text);
    tokens.extend(expected(&text, 50));
    tokens.extend(tokens_of("abc"));
    let other = engine.submit(Request { prompt: Prompt::from_tokens(tokens.clone()), ..greedy("", 7) }, None).unwrap();
    let other_id = other.request_id();
    step_until(&engine, &control, |stats| n_predicted(stats, provider_id) == Some(58));
    assert!(n_predicted(&engine.stats(), other_id).is_some_and(|n| n > 0));
    // The provider fills its context with the first token that it samples after its preemption.
    let urgent = [7, 8].map(|seed| engine.submit(urgent(greedy(&prompt(seed, 195), 4)), None).unwrap());
    step_until(&engine, &control, |stats| stats.n_preempted == 2);
    control.allow(None);
    for (seed, urgent) in (7..).zip(urgent) {
        assert_eq!(collect(urgent).unwrap()[0].tokens, expected(&prompt(seed, 195), 4));
    }
    let own = collect(provider).unwrap().remove(0);
    assert_eq!(own.tokens, super::context_shift::Shifting::new(&text, 200, 0, 1).draw(70));
    let alone = (0..7).fold(tokens.clone(), |mut tokens, _| {
        tokens.push(FakeRunner::next_token(&tokens));
        tokens
    });
    assert_eq!(collect(other).unwrap()[0].tokens, alone[tokens.len()..]);
    let plans = control.plans();
    let full = plans.iter().position(|plan| plan.rows.iter().any(|row| row.position == 198)).unwrap();
    assert!(plans[full].rows.iter().any(|row| row.position == 189), "the provider has computed the common prefix again");
    let counts = n_sequences(&control, full);
    assert_eq!(counts[..2], [1, 2], "the other sequence continues in the step after the shift");
}

#[test]
fn prompt_tokens_computed_before_a_preemption_count_when_a_sequence_that_waits_for_a_prefix_is_cancelled() {
    let Waiting { engine, control, provider, other } = waiting(MEMORY, 0);
    step(&engine, &control);
    let waiting = engine.submit(urgent(greedy(&prompt(5, 440), 20)), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_preempted == 4);
    other.cancel_branch(0);
    control.allow(None);
    let usage = collect(other).unwrap().remove(0).finished.usage;
    assert_eq!((usage.n_cached as usize, usage.n_predicted), (N_COMMON, 0));
    assert!((1..=64).contains(&usage.n_prompt_computed), "it had computed a part of its prompt: {usage:?}");
    collect(waiting).unwrap();
    assert_eq!(collect(provider).unwrap()[0].tokens, expected(&text_of_provider(), 100));
}

// feature: beams
#[test]
fn a_search_over_a_pinned_prefix_finds_ids_for_its_beams_where_a_step_has_no_time_to_move_cells() {
    let memory = MemoryKind { idle_cost: IdleCost::Nothing, ..MEMORY };
    let max_token_gap = TokenGap::AtMost(Duration::from_nanos(1));
    let limits = Limits { max_host_cache_bytes: STORE, n_seq_max: 6, max_token_gap, ..limits(5, 4096) };
    let (engine, control) = start_with(limits, move |runner| runner.without_end().with_memory(memory));
    let pinned = prompt(1, 200);
    pin(&engine, &pinned);
    control.allow(Some(0));
    let diversity = Diversity::Beams(BeamSearch { width: 4, length_penalty: 1.0, is_stochastic: false });
    let search = Request { diversity, ..drawn(&(pinned.clone() + &prompt(2, 20)), 4, 400) };
    let search = engine.submit(search, None).unwrap();
    // When the search ends, the text of one request is cached on the fifth id, and another request runs on the sixth.
    let (idle, other) = (greedy(&prompt(3, 150), 2), greedy(&prompt(4, 20), 1_000));
    let [idle, other] = [idle, other].map(|request| engine.submit(request, None).unwrap());
    let (search_id, other_id) = (search.request_id(), other.request_id());
    let stats = step_until(&engine, &control, |stats| n_predicted(stats, other_id).is_some_and(|n| n > 0));
    assert!(n_predicted(&stats, search_id).is_some() && stats.n_ids_used == 6);
    control.allow(None);
    // All beams end in one step, and the pinned prefix keeps the id of the last one.
    assert_eq!(reasons(&collect(search).unwrap()), vec![FinishReason::Length; 4]);
    for stream in [idle, other] {
        assert_eq!(reasons(&collect(stream).unwrap()), vec![FinishReason::Length]);
    }
    let n_before = control.n_computed();
    run(&engine, greedy(&(pinned + &prompt(5, 20)), 1));
    assert_eq!(control.n_computed() - n_before, 20, "the pinned prefix is still there");
    settled(&engine, &control);
}
