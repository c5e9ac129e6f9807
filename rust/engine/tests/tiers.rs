//! The host cache: offloaded prefixes are reloaded without computing them, and without delaying other streams.

use super::*;
use crate::cache::{AdapterSchedule, Tier};
use crate::engine::cache_manager::CacheManager;
use crate::engine::cache_manager::guards::PathGuard;
use crate::engine::runner::{KvSeqId, Plan, Row};

#[test]
fn idle_prefixes_are_offloaded_when_nothing_runs() {
    let (engine, control) = start_with_host_cache(8, 1024);
    let first = prompt(1, 200);
    let branches = run(&engine, drawn(&first, 8, 40));
    wait_until(&engine, |stats| stats.n_cells_used == 0);
    assert_eq!(control.n_cells_used(), 0);
    for branch in &branches {
        let before = control.n_computed();
        let next = run(&engine, continued(&first, branch, 5)).remove(0);
        // Its last token was sampled and never computed; four of the five new ones are.
        assert_eq!(control.n_computed() - before, 1 + 4, "branch {}", branch.finished.index);
        assert_eq!(next.finished.usage.n_cached, 239);
    }
}

#[test]
fn a_thousand_branches_survive_in_the_host_cache() {
    let (engine, control) = start_with_host_cache(8, 1024);
    let prompts: Vec<String> = (0..50).map(|seed| prompt(seed, 100)).collect();
    let branches: Vec<Vec<BranchState>> = prompts.iter().map(|prompt| run(&engine, drawn(prompt, 8, 30))).collect();
    for (prompt, branches) in prompts.iter().zip(&branches) {
        for branch in branches {
            let before = control.n_computed();
            run(&engine, continued(prompt, branch, 1));
            assert_eq!(control.n_computed() - before, 1);
        }
    }
}

#[test]
fn branches_of_an_offloaded_prompt_reload_it_once() {
    let (engine, control) = start_with_host_cache(8, 1024);
    run(&engine, greedy(&prompt(1, 300), 1));
    wait_until(&engine, |stats| stats.n_cells_used == 0);
    let (n_computed, n_reloaded) = (control.n_computed(), engine.stats().host_cache.n_reloaded);
    let branches = run(&engine, drawn(&prompt(1, 300), 8, 1));
    assert_eq!(control.n_computed() - n_computed, 1, "the last token, for its logits");
    assert_eq!(engine.stats().host_cache.n_reloaded - n_reloaded, 299);
    assert_eq!(branches[0].finished.usage.n_cached, 299);
}

#[test]
fn two_requests_compute_a_common_prefix_once() {
    let (engine, control) = start(limits(8, 4096));
    control.allow(Some(0));
    let shared = prompt(1, 1000);
    // Each continues with its own letter.
    let texts: Vec<String> = ('a'..='p').map(|letter| format!("{shared}{letter}{}", prompt(2, 19))).collect();
    let streams: Vec<_> = texts.iter().map(|text| engine.submit(greedy(text, 3), None).unwrap()).collect();
    control.allow(None);
    for (text, stream) in texts.iter().zip(streams) {
        assert_eq!(collect(stream).unwrap()[0].tokens, expected(text, 3));
    }
    let stats = engine.stats();
    assert_eq!(stats.n_computed, 1000 + 16 * 20);
    assert_eq!(stats.n_cached, 15 * 1000);
    // Requests that arrived a step later found the first chunk.
    assert!(stats.n_awaited > 14 * 1000, "{} awaited", stats.n_awaited);
}

#[test]
fn a_request_waits_only_for_the_common_prefix() {
    let (engine, control) = start(limits(2, 4096));
    control.allow(Some(0));
    let long = engine.submit(greedy(&format!("{}{}", prompt(1, 100), prompt(2, 3000)), 3), None).unwrap();
    let short = engine.submit(greedy(&format!("{}{}", prompt(1, 100), prompt(3, 20)), 3), None).unwrap();
    let stats = step_until(&engine, &control, |stats| stats.n_waiting == 0);
    let n_computed = stats.slots.iter().filter_map(|slot| slot.running.as_ref()).map(|running| running.n_computed).max();
    assert!(n_computed < Some(1000), "it started long before the other's prompt was computed: {n_computed:?}");
    control.allow(None);
    assert_eq!(collect(short).unwrap()[0].finished.usage.n_cached, 100);
    collect(long).unwrap();
}

#[test]
fn a_request_does_not_wait_for_fewer_than_sixteen_tokens() {
    let (engine, control) = start(limits(2, 1024));
    control.allow(Some(0));
    let shared = prompt(1, 15);
    let streams: Vec<_> =
        [2, 3].map(|seed| engine.submit(greedy(&format!("{shared}{}", prompt(seed, 300)), 3), None).unwrap()).into();
    let stats = step_until(&engine, &control, |stats| stats.n_waiting == 0);
    assert_eq!(stats.n_predicted, 0, "both run before either prompt is computed");
    control.allow(None);
    for stream in streams {
        assert_eq!(collect(stream).unwrap()[0].finished.usage.n_cached, 0);
    }
}

#[test]
fn the_oldest_waiting_request_continues_the_prefix_of_a_cancelled_one() {
    let (engine, control) = start(limits(4, 4096));
    control.allow(Some(0));
    let text = prompt(1, 2000);
    let owner = engine.submit(greedy(&text, 3), None).unwrap();
    let waiters: Vec<_> = (0..3).map(|_| engine.submit(greedy(&text, 3), None).unwrap()).collect();
    step_until(&engine, &control, |stats| stats.n_computed >= 80);
    drop(owner);
    control.allow(None);
    for waiter in waiters {
        assert_eq!(collect(waiter).unwrap()[0].tokens, expected(&text, 3));
    }
    assert!(control.n_computed() < 2000 + 100, "{} computed", control.n_computed());
}

#[test]
fn a_preempted_sequence_resumes_without_computing() {
    let (engine, control) = start_with_host_cache(2, 256);
    control.allow(Some(0));
    let streams: Vec<_> = (0..2).map(|seed| engine.submit(greedy(&prompt(seed, 50), 150), None).unwrap()).collect();
    control.allow(None);
    for (seed, stream) in (0..).zip(streams) {
        assert_eq!(collect(stream).unwrap()[0].tokens, expected(&prompt(seed, 50), 150));
    }
    assert_eq!(engine.stats().n_preempted, 1);
    // Every token but the last ones is computed once.
    assert_eq!(control.n_computed(), 2 * 199);
}

#[test]
fn eight_sequences_that_each_fill_the_device_cache_compute_nothing_twice() {
    let (engine, control) = start_with_host_cache(8, 256);
    control.allow(Some(0));
    let streams: Vec<_> = (0..8).map(|seed| engine.submit(greedy(&prompt(seed, 20), 1_000), None).unwrap()).collect();
    control.allow(None);
    for (seed, stream) in (0..).zip(streams) {
        let branches = collect(stream).unwrap();
        assert_eq!(branches[0].tokens, expected(&prompt(seed, 20), 236), "sequence {seed}");
        assert_eq!(reasons(&branches), [FinishReason::ContextFull]);
    }
    assert_eq!(control.n_computed(), 8 * 255);
}

#[test]
fn a_prefix_that_cannot_be_reloaded_is_computed() {
    let (engine, control) = start_with_host_cache(2, 1024);
    run(&engine, greedy(&prompt(1, 200), 1));
    wait_until(&engine, |stats| stats.n_cells_used == 0);
    control.fail_states(true);
    let branch = run(&engine, greedy(&prompt(1, 200), 5)).remove(0);
    assert_eq!(branch.tokens, expected(&prompt(1, 200), 5));
    assert_eq!(branch.finished.usage.n_cached, 0, "and says so");
}

/// A prompt of 700 tokens that was offloaded as one entry: after several such prompts their low cost is known.
fn offloaded_as_one_entry(engine: &Engine) -> String {
    for seed in 20..29 {
        run(engine, greedy(&prompt(seed, 700), 1));
        wait_until(engine, |stats| stats.n_cells_used == 0);
    }
    prompt(28, 700)
}

#[test]
fn the_beginning_of_an_entry_that_does_not_fit_is_computed_immediately() {
    let (engine, control) = start_with_host_cache(2, 1024);
    let stored = offloaded_as_one_entry(&engine);
    control.allow(Some(0));
    let old = engine.submit(greedy(&prompt(2, 400), 600), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_predicted > 0);
    let text = format!("{}{}", &stored[..100], prompt(3, 20));
    let young = engine.submit(greedy(&text, 3), None).unwrap();
    let n_before = control.plans().len();
    step_until(&engine, &control, |stats| is_running(stats, 10));
    step_until(&engine, &control, |stats| !is_running(stats, 10));
    let n_steps = control.plans().len() - n_before;
    assert!(n_steps < 60, "it ended after {n_steps} steps of the other stream");
    control.allow(None);
    assert_eq!(collect(young).unwrap()[0].tokens, expected(&text, 3));
    assert_eq!(collect(old).unwrap()[0].tokens, expected(&prompt(2, 400), 600));
}

fn is_running(stats: &Stats, request_id: u64) -> bool {
    stats.slots.iter().flat_map(|slot| &slot.running).any(|running| running.request_id == request_id)
}

#[test]
fn no_sequence_is_preempted_for_cells_needed_only_temporarily() {
    let (engine, control) = start_with_host_cache(3, 1024);
    let stored = offloaded_as_one_entry(&engine);
    control.allow(Some(0));
    let old = engine.submit(greedy(&prompt(2, 400), 200), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_predicted > 0);
    // The next two arrive together, while a decode is held.
    let middle = engine.submit(greedy(&format!("{}{}", &stored[..100], prompt(3, 20)), 3), None).unwrap();
    let young = engine.submit(greedy(&prompt(4, 250), 60), None).unwrap();
    control.allow(None);
    for stream in [old, middle, young] {
        collect(stream).unwrap();
    }
    assert_eq!(engine.stats().n_preempted, 0, "at most 913 cells of 1024 are held");
}

#[test]
fn a_load_that_does_not_fit_beside_pinned_prompts_fails_with_both_numbers() {
    let (other, _) = start_with_host_cache(2, 1024);
    let saved = save(&other, &prompt(1, 300));
    let (engine, _) = start(limits(2, 512));
    pin(&engine, &prompt(2, 256));
    let refused = collect(engine.submit(task(&prompt(1, 300), Task::Load(saved.into())), None).unwrap());
    assert_eq!(refused, Err(Error::ContextOverflow { n_prompt: 300, n_ctx: 256 }));
    assert_eq!(run(&engine, greedy(&prompt(1, 200), 4))[0].tokens, expected(&prompt(1, 200), 4));
}

#[test]
fn unsaved_prefixes_stay_in_the_device_cache_until_their_cells_are_needed() {
    let (engine, control) = start_with_host_cache(2, 1024);
    control.fail_states(true);
    run(&engine, greedy(&prompt(1, 200), 1));
    let before = control.n_computed();
    run(&engine, greedy(&prompt(1, 200), 1));
    assert_eq!(control.n_computed() - before, 1);
    for seed in 2..10 {
        assert_eq!(run(&engine, greedy(&prompt(seed, 300), 5))[0].tokens, expected(&prompt(seed, 300), 5));
    }
    let refused = collect(engine.submit(task(&prompt(9, 300), Task::Save { computes: true }), None).unwrap());
    assert_eq!(refused, Err(Error::Save { reason: "made to fail".into() }));
}

#[test]
fn a_load_that_the_memory_refuses_fails_and_is_not_computed() {
    let (other, _) = start_with_host_cache(2, 1024);
    let saved = save(&other, &prompt(1, 300));
    let (engine, control) = start_with_host_cache(2, 1024);
    control.fail_states(true);
    let before = control.n_computed();
    let refused = collect(engine.submit(task(&prompt(1, 300), Task::Load(saved.into())), None).unwrap());
    assert_eq!(refused, Err(Error::PrefixRefused { reason: "made to fail".into() }));
    assert_eq!(control.n_computed(), before);
}

#[test]
fn a_pin_that_cannot_fit_is_refused_before_it_is_computed() {
    let (engine, control) = start(limits(2, 1024));
    let refused = collect(engine.submit(task(&prompt(1, 600), Task::Pin), None).unwrap());
    assert!(matches!(refused, Err(Error::PinsFull { .. })));
    assert_eq!(control.n_computed(), 0);
}

#[test]
fn a_request_waits_in_the_queue_until_its_last_branch_has_a_slot() {
    let (engine, control) = start(Limits { max_queue: 2, ..limits(1, 1024) });
    control.allow(Some(0));
    let streams: Vec<_> = (0..2).map(|seed| engine.submit(drawn(&prompt(seed, 30), 50, 2), None).unwrap()).collect();
    step_until(&engine, &control, |stats| stats.n_predicted > 3);
    assert_eq!(engine.submit(greedy(&prompt(9, 30), 2), None).err(), Some(Error::QueueFull { n_waiting: 2, unit: "requests" }));
    control.allow(None);
    for stream in streams {
        assert_eq!(collect(stream).unwrap().len(), 50);
    }
    run(&engine, greedy(&prompt(9, 30), 2));
}

#[test]
fn prefixes_of_a_few_tokens_can_be_saved() {
    let (engine, _) = start_with_host_cache(1, 1024);
    run(&engine, greedy(&prompt(1, 5), 3));
    let held = engine.slot_contents(0).unwrap().tokens;
    let request = Request::for_task(Prompt::from_tokens(held.clone()), Task::Save { computes: false });
    let TaskResult::Saved(saved) = made(&engine, request) else { panic!("it saves") };
    assert_eq!(saved.tokens, held);
}

#[test]
fn a_pinned_or_loaded_state_includes_its_logits() {
    let (engine, control) = start_recurrent(2, 1024);
    pin(&engine, &prompt(1, 100));
    let before = control.n_computed();
    assert_eq!(run(&engine, greedy(&prompt(1, 100), 1))[0].tokens, expected(&prompt(1, 100), 1));
    assert_eq!(control.n_computed(), before);
    let saved = save(&engine, &prompt(1, 100));
    assert!(saved.logits.is_some());
    let (other, control) = start_recurrent(2, 1024);
    run(&other, task(&prompt(1, 100), Task::Load(saved.into())));
    assert_eq!(run(&other, greedy(&prompt(1, 100), 1))[0].tokens, expected(&prompt(1, 100), 1));
    assert_eq!(control.n_computed(), 0);
}

#[test]
fn pinned_prefixes_of_other_texts_leave_ids_for_all_slots() {
    let limits = Limits { n_seq_max: 10, ..limits(2, 4096) };
    let (engine, _) = start_with(limits, |runner| runner.with_memory(MemoryKind { forks: ForkRule::InWindow, ..MEMORY }));
    let text = prompt(1, 100);
    pin(&engine, &text);
    for n in 40..60 {
        assert_eq!(run(&engine, greedy(&text[..n], 1))[0].tokens, expected(&text[..n], 1));
    }
}

#[test]
fn a_pinned_prompt_stays_while_others_evict_each_other() {
    let (engine, control) = start(Limits { max_host_cache_bytes: Some(40_000), ..limits(2, 1024) });
    let system = prompt(1, 300);
    let pinned = pin(&engine, &system);
    assert_eq!((pinned.tokens.len(), pinned.n_bytes), (300, 300 * MEMORY.bytes_per_token));
    for seed in 2..30 {
        run(&engine, greedy(&prompt(seed, 300), 5));
    }
    assert!(engine.stats().host_cache.n_evicted > 0);
    let before = control.n_computed();
    run(&engine, greedy(&format!("{system}{}", prompt(50, 20)), 1));
    assert_eq!(control.n_computed() - before, 20);
    assert_eq!(engine.pinned().unwrap(), std::slice::from_ref(&pinned));
    assert!(engine.unpin(pinned.id).unwrap() && !engine.unpin(pinned.id).unwrap());
    assert!(engine.pinned().unwrap().is_empty());
}

#[test]
fn pins_that_exceed_half_of_the_cache_are_refused_with_the_numbers() {
    let (engine, _) = start(limits(2, 1024));
    pin(&engine, &prompt(1, 400));
    let refused = collect(engine.submit(task(&prompt(2, 200), Task::Pin), None).unwrap());
    let bytes = MEMORY.bytes_per_token;
    let expected = Error::PinsFull { n_bytes: 200 * bytes, n_pinned_bytes: 400 * bytes, limit: 512 * bytes };
    assert_eq!(refused.err(), Some(expected));
    // Pinned prefixes leave room enough for other requests to finish normally.
    assert_eq!(reasons(&run(&engine, greedy(&prompt(3, 100), 2_000))), [FinishReason::ContextFull]);
    run(&engine, greedy(&prompt(4, 20), 5));
}

#[test]
fn a_saved_prefix_loads_into_another_engine() {
    let (engine, _) = start_with_host_cache(2, 1024);
    let text = prompt(1, 300);
    let saved = save(&engine, &text);
    assert_eq!(saved.tokens, tokens_of(&text));
    assert_eq!(saved.runs.last().map(|run| run.range.end), Some(300));
    for max_host_cache_bytes in [STORE, Some(0)] {
        let (other, control) = start(Limits { max_host_cache_bytes, ..limits(2, 1024) });
        run(&other, task(&text, Task::Load(saved.clone().into())));
        assert_eq!(control.n_computed(), 0);
        assert_eq!(run(&other, greedy(&text, 4))[0].tokens, expected(&text, 4));
        assert_eq!(control.n_computed(), 1 + 3);
    }
}

#[test]
fn a_saved_prefix_that_does_not_match_its_prompt_is_refused() {
    let (engine, control) = start_with_host_cache(2, 1024);
    let saved = save(&engine, &prompt(1, 300));
    let param = |request: Request| match engine.submit(request, None).err() {
        Some(Error::InvalidRequest { param, .. }) => param,
        other => panic!("{other:?}"),
    };
    assert_eq!(param(task(&prompt(2, 300), Task::Load(saved.clone().into()))), "prompt");
    let mut with_a_gap = saved.clone();
    with_a_gap.runs.remove(0);
    assert_eq!(param(task(&prompt(1, 300), Task::Load(with_a_gap.into()))), "prompt");
    assert_eq!(param(Request { n: 2, ..task(&prompt(1, 300), Task::Pin) }), "n");
    assert_eq!(param(Request { slot: Some(2), ..greedy(&prompt(1, 30), 1) }), "slot");
    assert_eq!(control.n_reloads(), 0);
}

#[test]
fn a_save_without_computing_saves_only_cached_tokens() {
    let (engine, control) = start_with_host_cache(2, 1024);
    run(&engine, greedy(&prompt(1, 100), 1));
    let longer = format!("{}{}", prompt(1, 100), prompt(2, 50));
    let before = control.n_computed();
    let TaskResult::Saved(saved) = made(&engine, task(&longer, Task::Save { computes: false })) else { panic!("it saves") };
    assert_eq!((saved.tokens, control.n_computed() - before), (tokens_of(&prompt(1, 100)), 0));
    let TaskResult::Saved(nothing) = made(&engine, task(&prompt(9, 50), Task::Save { computes: false })) else {
        panic!("it saves")
    };
    assert!(nothing.tokens.is_empty() && nothing.runs.is_empty());
}

#[test]
fn the_listing_reports_the_tier_of_each_node() {
    // In chunks so small that a long prompt takes many steps.
    let (engine, control) = start(Limits { max_host_cache_bytes: STORE, n_ubatch: 32, ..limits(2, 8192) });
    run(&engine, greedy(&format!("{}{}", prompt(1, 100), prompt(2, 50)), 1));
    run(&engine, greedy(&format!("{}{}", prompt(1, 100), prompt(3, 60)), 1));
    wait_until(&engine, |stats| stats.n_cells_used == 0);
    let listing = engine.cached().unwrap();
    assert!(listing.iter().all(|node| node.tier == Tier::Host && node.slots.is_empty() && !node.is_pinned));
    // The length of a run depends on how long its save took.
    let n_tokens = |n_hits| -> usize { listing.iter().filter(|node| node.n_hits == n_hits).map(|node| node.tokens.len()).sum() };
    assert_eq!((n_tokens(1), n_tokens(0)), (100, 110));
    for node in &listing {
        assert_eq!(
            node.start as usize,
            node.parent.map_or(0, |parent| listing[parent].start as usize + listing[parent].tokens.len())
        );
    }
    control.allow(Some(0));
    let stream = engine.submit(greedy(&format!("{}{}", prompt(1, 100), prompt(4, 4000)), 1), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_computed > 300);
    let listing = answer_while_held(&control, || engine.cached().unwrap());
    let computing: Vec<_> = listing.iter().filter(|node| node.tier == Tier::Computing).collect();
    assert_eq!(computing.len(), 1);
    assert_eq!((computing[0].start, computing[0].slots.len()), (100, 1));
    control.allow(None);
    collect(stream).unwrap();
}

#[test]
fn idle_prefixes_are_offloaded_while_streams_run() {
    let (engine, control) = start(Limits { max_host_cache_bytes: STORE, ..paced(2, 2048) });
    control.allow(Some(0));
    let stream = engine.submit(greedy(&prompt(1, 50), 400), None).unwrap();
    let other = engine.submit(greedy(&prompt(2, 1000), 2), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_cells_idle > 900);
    let n_decodes = engine.stats().n_decodes;
    step_until(&engine, &control, |stats| stats.n_cells_idle == 0);
    assert!(engine.stats().n_decodes - n_decodes < 60, "after {}", engine.stats().n_decodes - n_decodes);
    control.allow(None);
    collect(other).unwrap();
    assert_eq!(collect(stream).unwrap()[0].tokens, expected(&prompt(1, 50), 400));
}

#[test]
fn idle_prefixes_that_only_lengthen_the_mask_are_offloaded_late() {
    let limits = Limits { max_host_cache_bytes: STORE, ..limits(2, 2048) };
    let (engine, control) = start_with(limits, |runner| runner.with_memory(MemoryKind { idle_cost: IdleCost::Mask, ..MEMORY }));
    control.allow(Some(0));
    let stream = engine.submit(greedy(&prompt(1, 50), 500), None).unwrap();
    let other = engine.submit(greedy(&prompt(2, 1000), 2), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_cells_idle > 900);
    let n_decodes = engine.stats().n_decodes;
    step_until(&engine, &control, |stats| stats.n_cells_idle == 0);
    let n_more = engine.stats().n_decodes - n_decodes;
    assert!((200..320).contains(&n_more), "after {n_more}");
    control.allow(None);
    collect(other).unwrap();
    assert_eq!(collect(stream).unwrap()[0].tokens, expected(&prompt(1, 50), 500));
}

#[test]
fn idle_prefixes_are_offloaded_even_if_every_decode_exceeds_the_gap() {
    // Idle cells may be what makes decodes slow: if offloading them waited for time, they would stay.
    let limits = Limits { max_host_cache_bytes: STORE, max_token_gap: TokenGap::AtMost(Duration::ZERO), ..limits(2, 2048) };
    let (engine, control) = start(limits);
    control.allow(Some(0));
    let stream = engine.submit(greedy(&prompt(1, 50), 900), None).unwrap();
    let other = engine.submit(greedy(&prompt(2, 1000), 2), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_cells_idle > 900);
    let n_decodes = engine.stats().n_decodes;
    step_until(&engine, &control, |stats| stats.n_cells_idle == 0);
    assert!(engine.stats().n_decodes - n_decodes < 40, "after {}", engine.stats().n_decodes - n_decodes);
    control.allow(None);
    collect(other).unwrap();
    collect(stream).unwrap();
}

/// A stream of a long prompt, and one of a short prompt whose cells are above; decodes are held. The first one keeps running,
/// however many chunks the other's prompt takes.
fn one_above_another(engine: &Engine, control: &FakeControl) -> (Completions, Completions) {
    control.allow(Some(0));
    let low = engine.submit(greedy(&prompt(1, 2000), 1_000), None).unwrap();
    step_until(engine, control, |stats| stats.n_predicted > 0);
    let high = engine.submit(greedy(&prompt(2, 100), 300), None).unwrap();
    step_until(engine, control, |stats| {
        stats.slots.iter().all(|slot| slot.running.as_ref().is_some_and(|of| of.n_predicted > 0))
    });
    (low, high)
}

#[test]
fn cells_are_moved_down_when_lower_ones_become_free() {
    let (engine, control) = start_with_host_cache(2, 4096);
    let (low, high) = one_above_another(&engine, &control);
    assert!(control.n_cells_reached() > 2000);
    drop(low);
    step_until(&engine, &control, |stats| stats.n_cells_reached <= 512);
    assert_eq!(control.n_cells_reached(), engine.stats().n_cells_reached);
    control.allow(None);
    assert_eq!(collect(high).unwrap()[0].tokens, expected(&prompt(2, 100), 300));
}

#[test]
fn cells_lost_in_a_move_end_only_their_request_with_an_error() {
    let (engine, control) = start_with_host_cache(2, 4096);
    let (low, high) = one_above_another(&engine, &control);
    control.lose_cells(1);
    drop(low);
    control.allow(None);
    assert_eq!(collect(high), Err(Error::Decode { reason: "made to lose cells".into() }));
    assert_eq!(run(&engine, greedy(&prompt(3, 50), 5))[0].tokens, expected(&prompt(3, 50), 5));
}

#[test]
fn lost_cells_of_a_held_prompt_end_their_request_and_not_the_worker() {
    for n_beside in [0, 1] {
        let (engine, control) = start_with_host_cache(3, 4096);
        control.allow(Some(0));
        let low = engine.submit(greedy(&prompt(1, 2000), 1_000), None).unwrap();
        step_until(&engine, &control, |stats| stats.n_predicted > 0);
        // The prompts are held for the completions that have no slot yet.
        let mut requests = vec![drawn(&prompt(2, 100), 6, 300)];
        requests.extend((0..n_beside).map(|_| drawn(&prompt(3, 100), 6, 300)));
        let high = engine.submit_branches(requests, None).unwrap();
        step_until(&engine, &control, |stats| {
            stats.slots.iter().all(|slot| slot.running.as_ref().is_some_and(|running| running.n_predicted > 0))
        });
        control.lose_cells(2);
        drop(low);
        control.allow(None);
        assert_eq!(collect(high), Err(Error::Decode { reason: "made to lose cells".into() }));
        assert_eq!(run(&engine, greedy(&prompt(3, 50), 5))[0].tokens, expected(&prompt(3, 50), 5));
        settled(&engine, &control);
        assert!(engine.is_running());
    }
}

#[test]
fn idle_cells_that_cost_nothing_stay_in_the_device_cache() {
    let limits = Limits { max_host_cache_bytes: STORE, ..limits(2, 1024) };
    let (engine, control) =
        start_with(limits, |runner| runner.with_memory(MemoryKind { idle_cost: IdleCost::Nothing, ..MEMORY }));
    run(&engine, greedy(&prompt(1, 200), 1));
    run(&engine, greedy(&prompt(2, 200), 1));
    assert_eq!((control.n_cells_used(), control.n_saves()), (400, 0));
    for seed in 3..8 {
        run(&engine, greedy(&prompt(seed, 200), 1));
    }
    assert!(control.n_saves() > 0, "but for others they make room");
    let before = control.n_computed();
    run(&engine, greedy(&prompt(1, 200), 1));
    assert_eq!(control.n_computed() - before, 1);
}

#[test]
fn a_state_continues_from_its_last_checkpoint() {
    let (engine, control) = start_recurrent(2, 1024);
    let first = prompt(1, 100);
    let branch = run(&engine, greedy(&first, 20)).remove(0);
    // The state at the end of the branch is kept, and then that at the end of the longer prompt with its logits.
    for found in [(1, 119), (0, 120)] {
        let before = control.n_computed();
        let next = run(&engine, continued(&first, &branch, 1)).remove(0);
        assert_eq!((control.n_computed() - before, next.finished.usage.n_cached), found);
        // Another text takes the ids.
        for seed in 5..10 {
            run(&engine, greedy(&prompt(seed, 50), 3));
        }
    }
    let other = format!("{first}{}", prompt(2, 30));
    let usage = run(&engine, greedy(&other, 4)).remove(0);
    assert_eq!((usage.finished.usage.n_cached, usage.tokens), (100, expected(&other, 4)));
}

#[test]
fn an_exact_hit_on_a_state_decodes_nothing() {
    let (engine, control) = start_recurrent(4, 1024);
    run(&engine, greedy(&prompt(1, 100), 3));
    wait_until(&engine, is_idle);
    let before = control.n_computed();
    let branches = run(&engine, drawn(&prompt(1, 100), 4, 1));
    assert_eq!((control.n_computed() - before, branches.len()), (0, 4));
    assert_eq!(branches[0].finished.usage.n_cached, 100);
    assert_eq!(run(&engine, greedy(&prompt(1, 100), 5))[0].tokens, expected(&prompt(1, 100), 5));
}

#[test]
fn two_requests_with_recurrent_memory_compute_an_equal_prompt_once() {
    let (engine, control) = start_recurrent(4, 4096);
    control.allow(Some(0));
    let streams: Vec<_> = (0..6).map(|_| engine.submit(greedy(&prompt(1, 900), 3), None).unwrap()).collect();
    control.allow(None);
    for stream in streams {
        assert_eq!(collect(stream).unwrap()[0].tokens, expected(&prompt(1, 900), 3));
    }
    assert_eq!(engine.stats().n_computed, 900);
}

/// Several clients, each with its own mix of shared prompts, branches, pins and cancelled streams.
fn random_requests(engine: &Engine) {
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            scope.spawn(move || {
                for round in 0..60 {
                    let stem = prompt((thread + round) % 3, 30 + usize::try_from(round % 5).unwrap() * 20);
                    let text = format!("{stem}{}", prompt(round % 4, usize::try_from(round % 40).unwrap()));
                    let mut request = greedy(&text, 30);
                    request.n = u32::try_from(1 + round % 3).unwrap();
                    if round % 7 == 3 {
                        assert!(engine.submit(request, None).unwrap().take(10).all(|event| event.is_ok()));
                        continue;
                    }
                    for branch in run(engine, request) {
                        assert_eq!(branch.tokens, expected(&text, 30), "thread {thread}, round {round}");
                    }
                    if round % 9 == 4 {
                        match collect(engine.submit(task(&stem, Task::Pin), None).unwrap()) {
                            Ok(_) => unpin_one(engine),
                            Err(error) => assert!(matches!(error, Error::PinsFull { .. }), "{error}"),
                        }
                    }
                }
            });
        }
    });
}

fn unpin_one(engine: &Engine) {
    // Another client may have unpinned it already.
    if let Some(pinned) = engine.pinned().unwrap().first() {
        engine.unpin(pinned.id).unwrap();
    }
}

#[test]
fn random_requests_in_two_tiers_generate_the_same_text_as_with_an_empty_cache() {
    for (max_host_cache_bytes, n_ctx) in [(STORE, 512), (Some(20_000), 512), (STORE, 256), (Some(0), 512)] {
        let (engine, control) = start(Limits { max_host_cache_bytes, ..paced(4, n_ctx) });
        random_requests(&engine);
        // The cache and the model agree on the cells and the highest one, once idle cells have stopped moving.
        wait_until(&engine, |stats| {
            let counted = (stats.n_cells_used, stats.n_cells_reached);
            is_idle(stats) && counted == (control.n_cells_used(), control.n_cells_reached())
        });
    }
}

#[test]
fn random_requests_with_recurrent_memory_generate_the_same_text_as_with_an_empty_cache() {
    let (engine, _) = start_recurrent_with(paced(4, 1024));
    random_requests(&engine);
    wait_until(&engine, is_idle);
}

const ON_GPU: MemoryKind = MemoryKind { idle_cost: IdleCost::Nothing, ..MEMORY };

/// Two idle texts of 64 tokens with alternating cells, in memory where one more run of cells costs as much to save as a
/// thousand tokens; computing a token takes almost no time.
fn written_together(kind: MemoryKind) -> (CacheManager<FakeRunner>, [PathGuard; 2]) {
    let (runner, _) = FakeRunner::new(400, 8);
    let kind = MemoryKind { tokens_per_run: 1_000, ..kind };
    let limits = Limits { max_host_cache_bytes: STORE, n_seq_max: 8, n_outputs: 8, ..limits(4, 400) };
    let mut memory = CacheManager::new(runner.with_memory(kind), &limits);
    let paths = [(); 2].map(|()| memory.place(None, &AdapterSchedule::default(), None).expect("an id is free"));
    let ids = paths.each_ref().map(PathGuard::id);
    for position in 0..64 {
        let tokens = [b'a', b'b'].map(Token::from);
        memory.extend(ids.iter().zip(&tokens).map(|(&id, token)| (id, std::slice::from_ref(token))));
        let row = |(&sequence, &token): (&KvSeqId, &Token)| Row { sequence, token, position, wants_logits: false };
        let rows = ids.iter().zip(&tokens).map(row).collect();
        memory.decode(&Plan { rows, ..Plan::default() }).expect("it fits");
    }
    // The cost of a save is known from here on.
    memory.save(ids[0], 0..64, Some(64_064)).expect("it can be saved");
    memory.observe_compute(1e-15);
    (memory, paths)
}

/// Returns the used cells after all removals, and the tokens saved and evicted by then.
fn all_left(memory: &mut CacheManager<FakeRunner>) -> (usize, u64, u64) {
    while memory.evict() {}
    let counts = memory.kv().counts();
    (memory.kv().n_used(), counts.n_offloaded, counts.n_evicted)
}

#[test]
fn a_read_counts_what_dropped_guards_released() {
    let (memory, [first, second]) = written_together(MEMORY);
    assert_eq!(memory.kv().n_evictable(), 0);
    drop(first);
    assert_eq!(memory.kv().n_evictable(), 64);
    drop(second);
    assert!(memory.kv().n_evictable() == 128 && memory.kv().is_idle());
}

#[test]
fn a_gpu_drops_cells_that_are_cheaper_to_compute_than_to_copy() {
    let (mut memory, paths) = written_together(ON_GPU);
    drop(paths);
    assert_eq!(all_left(&mut memory), (0, 0, 128));
}

#[test]
fn a_cpu_saves_cells_of_any_cost() {
    let (mut memory, paths) = written_together(MemoryKind { idle_cost: IdleCost::Mask, ..MEMORY });
    drop(paths);
    assert_eq!(all_left(&mut memory), (0, 128, 0));
}

#[test]
fn pinned_prefixes_are_saved_at_any_cost() {
    let (mut memory, [mut pinned, other]) = written_together(ON_GPU);
    memory.pin(&mut pinned).expect("there is room");
    drop(other);
    assert_eq!(all_left(&mut memory), (0, 64, 64));
}

#[test]
fn preempted_sequences_are_saved_at_any_cost() {
    let (mut memory, [preempted, other]) = written_together(ON_GPU);
    let _reservation = preempted.reserve(None);
    drop(other);
    assert_eq!(all_left(&mut memory), (0, 64, 64));
}

#[test]
fn whole_states_are_saved_at_any_cost() {
    let (mut memory, paths) = written_together(MemoryKind { forks: ForkRule::InWindow, n_window: 16, ..ON_GPU });
    drop(paths);
    assert_eq!(all_left(&mut memory), (0, 128, 0));
}
