//! The store beside the pool: what leaves comes back without being computed, and nobody waits for it.

use super::*;
use crate::cache::{AdapterSchedule, Tier};
use crate::engine::memory::Memory;
use crate::engine::runner::{KvSeqId, Plan, Row};

#[test]
fn when_nothing_runs_the_pool_is_empty_and_nothing_is_lost() {
    let (engine, control) = start_stored(8, 1024);
    let first = prompt(1, 200);
    let branches = run(&engine, drawn(&first, 8, 40));
    wait_until(&engine, |stats| stats.n_cells_used == 0);
    assert_eq!(control.n_cells_used(), 0);
    for branch in &branches {
        let before = control.n_computed();
        let next = run(&engine, continued(&first, branch, 5)).remove(0);
        // Its last token was drawn and never computed; four of the five new ones are.
        assert_eq!(control.n_computed() - before, 1 + 4, "branch {}", branch.finished.index);
        assert_eq!(next.finished.usage.n_cached, 239);
    }
}

#[test]
fn a_thousand_branches_outlive_a_pool_of_a_thousand_tokens() {
    let (engine, control) = start_stored(8, 1024);
    let prompts: Vec<String> = (0..50).map(|seed| prompt(seed, 100)).collect();
    let branches: Vec<Vec<Branch>> = prompts.iter().map(|prompt| run(&engine, drawn(prompt, 8, 30))).collect();
    for (prompt, branches) in prompts.iter().zip(&branches) {
        for branch in branches {
            let before = control.n_computed();
            run(&engine, continued(prompt, branch, 1));
            assert_eq!(control.n_computed() - before, 1);
        }
    }
}

#[test]
fn a_fan_out_from_a_stored_prompt_restores_it_once() {
    let (engine, control) = start_stored(8, 1024);
    run(&engine, greedy(&prompt(1, 300), 1));
    wait_until(&engine, |stats| stats.n_cells_used == 0);
    let (n_computed, n_restored) = (control.n_computed(), engine.stats().store.n_restored);
    let branches = run(&engine, drawn(&prompt(1, 300), 8, 1));
    assert_eq!(control.n_computed() - n_computed, 1, "the last token, for its logits");
    assert_eq!(engine.stats().store.n_restored - n_restored, 299);
    assert_eq!(branches[0].finished.usage.n_cached, 299);
}

#[test]
fn what_two_requests_share_is_computed_once_while_it_is_computed() {
    let (engine, control) = start(limits(8, 4096));
    control.allow(Some(0));
    let shared = prompt(1, 1000);
    // Each goes on with a letter of its own.
    let texts: Vec<String> = ('a'..='p').map(|letter| format!("{shared}{letter}{}", prompt(2, 19))).collect();
    let streams: Vec<_> = texts.iter().map(|text| engine.submit(greedy(text, 3), None).unwrap()).collect();
    control.allow(None);
    for (text, stream) in texts.iter().zip(streams) {
        assert_eq!(collect(stream).unwrap()[0].tokens, expected(text, 3));
    }
    let stats = engine.stats();
    assert_eq!(stats.n_computed, 1000 + 16 * 20);
    assert_eq!(stats.n_cached, 15 * 1000);
    // Those that came a step later found the first chunk.
    assert!(stats.n_awaited > 14 * 1000, "{} awaited", stats.n_awaited);
}

#[test]
fn a_wait_is_for_the_shared_part_alone() {
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
fn less_than_sixteen_tokens_more_are_not_waited_for() {
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
fn when_the_owner_leaves_the_oldest_waiter_computes_on() {
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
    let (engine, control) = start_stored(2, 256);
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
fn eight_that_each_grow_to_the_whole_pool_compute_nothing_twice() {
    let (engine, control) = start_stored(8, 256);
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
fn a_restore_that_fails_is_computed_instead() {
    let (engine, control) = start_stored(2, 1024);
    run(&engine, greedy(&prompt(1, 200), 1));
    wait_until(&engine, |stats| stats.n_cells_used == 0);
    control.fail_states(true);
    let branch = run(&engine, greedy(&prompt(1, 200), 5)).remove(0);
    assert_eq!(branch.tokens, expected(&prompt(1, 200), 5));
    assert_eq!(branch.finished.usage.n_cached, 0, "and says so");
}

/// A prompt of 700 tokens that left the pool in one piece: after several of the kind it is known how cheap they are.
fn stored_in_one_piece(engine: &Engine) -> String {
    for seed in 20..29 {
        run(engine, greedy(&prompt(seed, 700), 1));
        wait_until(engine, |stats| stats.n_cells_used == 0);
    }
    prompt(28, 700)
}

#[test]
fn the_beginning_of_a_piece_that_has_no_room_is_computed_at_once() {
    let (engine, control) = start_stored(2, 1024);
    let stored = stored_in_one_piece(&engine);
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
fn nobody_gives_way_for_cells_that_are_given_up_again_at_once() {
    let (engine, control) = start_stored(3, 1024);
    let stored = stored_in_one_piece(&engine);
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
fn a_copy_that_pinned_prompts_leave_no_room_for_ends_with_both_numbers() {
    let (other, _) = start_stored(2, 1024);
    let saved = save(&other, &prompt(1, 300));
    let (engine, _) = start(limits(2, 512));
    pin(&engine, &prompt(2, 256));
    let refused = collect(engine.submit(task(&prompt(1, 300), Task::Load(saved.into())), None).unwrap());
    assert_eq!(refused, Err(Error::ContextOverflow { n_prompt: 300, n_ctx: 256 }));
    assert_eq!(run(&engine, greedy(&prompt(1, 200), 4))[0].tokens, expected(&prompt(1, 200), 4));
}

#[test]
fn what_cannot_be_saved_stays_in_the_pool_until_its_cells_are_needed() {
    let (engine, control) = start_stored(2, 1024);
    control.fail_states(true);
    run(&engine, greedy(&prompt(1, 200), 1));
    let before = control.n_computed();
    run(&engine, greedy(&prompt(1, 200), 1));
    assert_eq!(control.n_computed() - before, 1);
    for seed in 2..10 {
        assert_eq!(run(&engine, greedy(&prompt(seed, 300), 5))[0].tokens, expected(&prompt(seed, 300), 5));
    }
    let refused = collect(engine.submit(task(&prompt(9, 300), Task::Save { computes: true }), None).unwrap());
    assert_eq!(refused, Err(Error::Save { reason: "told to fail".into() }));
}

#[test]
fn a_copy_that_the_memory_refuses_is_not_computed_in_its_place() {
    let (other, _) = start_stored(2, 1024);
    let saved = save(&other, &prompt(1, 300));
    let (engine, control) = start_stored(2, 1024);
    control.fail_states(true);
    let before = control.n_computed();
    let refused = collect(engine.submit(task(&prompt(1, 300), Task::Load(saved.into())), None).unwrap());
    assert_eq!(refused, Err(Error::PrefixRefused { reason: "told to fail".into() }));
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
fn a_few_tokens_are_saved_too() {
    let (engine, _) = start_stored(1, 1024);
    run(&engine, greedy(&prompt(1, 5), 3));
    let held = engine.held_by_slot(0).unwrap().tokens;
    let request = Request::for_task(Prompt::from_tokens(held.clone()), Task::Save { computes: false });
    let TaskResult::Saved(saved) = made(&engine, request) else { panic!("it saves") };
    assert_eq!(saved.tokens, held);
}

#[test]
fn a_pinned_or_loaded_state_brings_its_logits() {
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
fn pinned_texts_that_others_begin_with_leave_ids_for_everybody() {
    let limits = Limits { n_seq_max: 10, ..limits(2, 4096) };
    let (engine, _) = start_with(limits, |runner| runner.with_memory(MemoryKind { forks: ForkRule::InWindow, ..MEMORY }));
    let text = prompt(1, 100);
    pin(&engine, &text);
    for n in 40..60 {
        assert_eq!(run(&engine, greedy(&text[..n], 1))[0].tokens, expected(&text[..n], 1));
    }
}

#[test]
fn a_pinned_prompt_stays_while_others_push_each_other_out() {
    let (engine, control) = start(Limits { max_store_bytes: Some(40_000), ..limits(2, 1024) });
    let system = prompt(1, 300);
    let pinned = pin(&engine, &system);
    assert_eq!((pinned.tokens.len(), pinned.n_bytes), (300, 300 * MEMORY.bytes_per_token));
    for seed in 2..30 {
        run(&engine, greedy(&prompt(seed, 300), 5));
    }
    assert!(engine.stats().store.n_forgotten > 0);
    let before = control.n_computed();
    run(&engine, greedy(&format!("{system}{}", prompt(50, 20)), 1));
    assert_eq!(control.n_computed() - before, 20);
    assert_eq!(engine.pinned().unwrap(), std::slice::from_ref(&pinned));
    assert!(engine.unpin(pinned.id).unwrap() && !engine.unpin(pinned.id).unwrap());
    assert!(engine.pinned().unwrap().is_empty());
}

#[test]
fn pins_that_would_take_more_than_half_are_refused_with_the_numbers() {
    let (engine, _) = start(limits(2, 1024));
    pin(&engine, &prompt(1, 400));
    let refused = collect(engine.submit(task(&prompt(2, 200), Task::Pin), None).unwrap());
    let bytes = MEMORY.bytes_per_token;
    let expected = Error::PinsFull { n_bytes: 200 * bytes, n_pinned_bytes: 400 * bytes, limit: 512 * bytes };
    assert_eq!(refused.err(), Some(expected));
    // What is pinned leaves room enough for others to end well.
    assert_eq!(reasons(&run(&engine, greedy(&prompt(3, 100), 2_000))), [FinishReason::ContextFull]);
    run(&engine, greedy(&prompt(4, 20), 5));
}

#[test]
fn a_saved_prefix_loads_into_another_engine() {
    let (engine, _) = start_stored(2, 1024);
    let text = prompt(1, 300);
    let saved = save(&engine, &text);
    assert_eq!(saved.tokens, tokens_of(&text));
    assert_eq!(saved.pieces.last().map(|piece| piece.range.end), Some(300));
    for max_store_bytes in [STORE, Some(0)] {
        let (other, control) = start(Limits { max_store_bytes, ..limits(2, 1024) });
        run(&other, task(&text, Task::Load(saved.clone().into())));
        assert_eq!(control.n_computed(), 0);
        assert_eq!(run(&other, greedy(&text, 4))[0].tokens, expected(&text, 4));
        assert_eq!(control.n_computed(), 1 + 3);
    }
}

#[test]
fn a_copy_that_does_not_fit_its_prompt_is_refused() {
    let (engine, control) = start_stored(2, 1024);
    let saved = save(&engine, &prompt(1, 300));
    let param = |request: Request| match engine.submit(request, None).err() {
        Some(Error::InvalidRequest { param, .. }) => param,
        other => panic!("{other:?}"),
    };
    assert_eq!(param(task(&prompt(2, 300), Task::Load(saved.clone().into()))), "prompt");
    let mut with_a_gap = saved.clone();
    with_a_gap.pieces.remove(0);
    assert_eq!(param(task(&prompt(1, 300), Task::Load(with_a_gap.into()))), "prompt");
    assert_eq!(param(Request { n: 2, ..task(&prompt(1, 300), Task::Pin) }), "n");
    assert_eq!(param(Request { slot: Some(2), ..greedy(&prompt(1, 30), 1) }), "slot");
    assert_eq!(control.n_restores(), 0);
}

#[test]
fn only_what_is_cached_is_saved_where_nothing_is_to_be_computed() {
    let (engine, control) = start_stored(2, 1024);
    run(&engine, greedy(&prompt(1, 100), 1));
    let longer = format!("{}{}", prompt(1, 100), prompt(2, 50));
    let before = control.n_computed();
    let TaskResult::Saved(saved) = made(&engine, task(&longer, Task::Save { computes: false })) else { panic!("it saves") };
    assert_eq!((saved.tokens, control.n_computed() - before), (tokens_of(&prompt(1, 100)), 0));
    let TaskResult::Saved(nothing) = made(&engine, task(&prompt(9, 50), Task::Save { computes: false })) else {
        panic!("it saves")
    };
    assert!(nothing.tokens.is_empty() && nothing.pieces.is_empty());
}

#[test]
fn the_tree_shows_what_is_where() {
    // In chunks so small that a long prompt takes many steps.
    let (engine, control) = start(Limits { max_store_bytes: STORE, n_ubatch: 32, ..limits(2, 8192) });
    run(&engine, greedy(&format!("{}{}", prompt(1, 100), prompt(2, 50)), 1));
    run(&engine, greedy(&format!("{}{}", prompt(1, 100), prompt(3, 60)), 1));
    wait_until(&engine, |stats| stats.n_cells_used == 0);
    let listing = engine.cached().unwrap();
    assert!(listing.iter().all(|node| node.tier == Tier::Store && node.slots.is_empty() && !node.is_pinned));
    // How long a stretch is depends on how long its save took.
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
    let listing = asked(&control, || engine.cached().unwrap());
    let computing: Vec<_> = listing.iter().filter(|node| node.tier == Tier::Computing).collect();
    assert_eq!(computing.len(), 1);
    assert_eq!((computing[0].start, computing[0].slots.len()), (100, 1));
    control.allow(None);
    collect(stream).unwrap();
}

#[test]
fn idle_prefixes_leave_the_pool_beside_running_streams() {
    let (engine, control) = start(Limits { max_store_bytes: STORE, ..paced(2, 2048) });
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
fn where_idle_prefixes_only_make_the_mask_longer_they_leave_late() {
    let limits = Limits { max_store_bytes: STORE, ..limits(2, 2048) };
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
fn idle_prefixes_leave_also_where_every_decode_takes_longer_than_the_gap() {
    // It may be they that make decodes slow: where their way out waited for time, they would stay.
    let limits = Limits { max_store_bytes: STORE, max_token_gap: TokenGap::AtMost(Duration::ZERO), ..limits(2, 2048) };
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

/// A stream of a long prompt, and one of a short prompt whose cells lie above; decodes are held. The first does not end meanwhile,
/// however many steps the other's prompt is cut into.
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
fn cells_are_moved_down_when_what_lay_below_them_has_left() {
    let (engine, control) = start_stored(2, 4096);
    let (low, high) = one_above_another(&engine, &control);
    assert!(control.n_cells_reached() > 2000);
    drop(low);
    step_until(&engine, &control, |stats| stats.n_cells_reached <= 512);
    assert_eq!(control.n_cells_reached(), engine.stats().n_cells_reached);
    control.allow(None);
    assert_eq!(collect(high).unwrap()[0].tokens, expected(&prompt(2, 100), 300));
}

#[test]
fn cells_that_are_lost_on_their_way_end_their_request_with_an_error_and_no_other() {
    let (engine, control) = start_stored(2, 4096);
    let (low, high) = one_above_another(&engine, &control);
    control.lose_cells();
    drop(low);
    control.allow(None);
    assert_eq!(collect(high), Err(Error::Decode { reason: "told to lose cells".into() }));
    assert_eq!(run(&engine, greedy(&prompt(3, 50), 5))[0].tokens, expected(&prompt(3, 50), 5));
}

#[test]
fn lost_cells_of_a_prompt_that_is_kept_for_further_completions_end_their_request_and_not_the_worker() {
    for n_beside in [0, 1] {
        let (engine, control) = start_stored(3, 4096);
        control.allow(Some(0));
        let low = engine.submit(greedy(&prompt(1, 2000), 1_000), None).unwrap();
        step_until(&engine, &control, |stats| stats.n_predicted > 0);
        // The prompts are kept for the completions that have no slot yet.
        let mut requests = vec![drawn(&prompt(2, 100), 6, 300)];
        requests.extend((0..n_beside).map(|_| drawn(&prompt(3, 100), 6, 300)));
        let high = engine.submit_branches(requests, None).unwrap();
        step_until(&engine, &control, |stats| {
            stats.slots.iter().all(|slot| slot.running.as_ref().is_some_and(|running| running.n_predicted > 0))
        });
        control.lose_shared_cells();
        drop(low);
        control.allow(None);
        assert_eq!(collect(high), Err(Error::Decode { reason: "told to lose cells".into() }));
        assert_eq!(run(&engine, greedy(&prompt(3, 50), 5))[0].tokens, expected(&prompt(3, 50), 5));
        settled(&engine, &control);
        assert!(engine.is_running());
    }
}

#[test]
fn where_idle_cells_cost_nothing_they_stay() {
    let limits = Limits { max_store_bytes: STORE, ..limits(2, 1024) };
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
fn a_state_continues_from_its_deepest_snapshot() {
    let (engine, control) = start_recurrent(2, 1024);
    let first = prompt(1, 100);
    let branch = run(&engine, greedy(&first, 20)).remove(0);
    // The end of the branch is kept, and then that of the longer prompt with its logits.
    for found in [(1, 119), (0, 120)] {
        let before = control.n_computed();
        let next = run(&engine, continued(&first, &branch, 1)).remove(0);
        assert_eq!((control.n_computed() - before, next.finished.usage.n_cached), found);
        // Something else takes the ids.
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
fn the_same_prompt_of_a_state_is_computed_once_while_it_is_computed() {
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
fn random_requests_in_two_tiers_give_the_text_that_an_empty_cache_gives() {
    for (max_store_bytes, n_ctx) in [(STORE, 512), (Some(20_000), 512), (STORE, 256), (Some(0), 512)] {
        let (engine, control) = start(Limits { max_store_bytes, ..paced(4, n_ctx) });
        random_requests(&engine);
        // The cache and the model count the same cells and know the same highest one, once what is idle has stopped moving.
        wait_until(&engine, |stats| {
            let counted = (stats.n_cells_used, stats.n_cells_reached);
            is_idle(stats) && counted == (control.n_cells_used(), control.n_cells_reached())
        });
    }
}

#[test]
fn random_requests_to_a_state_give_the_text_that_an_empty_cache_gives() {
    let (engine, _) = start_recurrent_with(paced(4, 1024));
    random_requests(&engine);
    wait_until(&engine, is_idle);
}

const ON_GPU: MemoryKind = MemoryKind { idle_cost: IdleCost::Nothing, ..MEMORY };

/// Two idle texts of 64 tokens whose cells take turns, in a memory where one more run of cells costs as much to save as a thousand
/// tokens; a token is computed in next to no time.
fn written_together(kind: MemoryKind) -> (Memory<FakeRunner>, [KvSeqId; 2]) {
    let (runner, _) = FakeRunner::new(400, 8);
    let kind = MemoryKind { tokens_per_run: 1_000, ..kind };
    let limits = Limits { max_store_bytes: STORE, n_seq_max: 8, n_outputs: 8, ..limits(4, 400) };
    let mut memory = Memory::new(runner.with_memory(kind), &limits);
    let ids = [(); 2].map(|()| memory.place(&AdapterSchedule::default(), None).expect("an id is free"));
    for position in 0..64 {
        let tokens = [b'a', b'b'].map(Token::from);
        memory.cache_mut().extend(ids.iter().zip(&tokens).map(|(&id, token)| (id, std::slice::from_ref(token))));
        let row = |(&sequence, &token): (&KvSeqId, &Token)| Row { sequence, token, position, wants_logits: false };
        let rows = ids.iter().zip(&tokens).map(row).collect();
        memory.decode(&Plan { rows, ..Plan::default() }).expect("it fits");
    }
    // What a save takes is known from here on.
    memory.save(ids[0], 0..64, Some(64_064)).expect("it can be saved");
    memory.learn_compute(1e-15);
    (memory, ids)
}

/// Cells that are used once all that may leave has left, and tokens that were saved and forgotten by then.
fn all_left(memory: &mut Memory<FakeRunner>) -> (usize, u64, u64) {
    while memory.evict() {}
    let counts = memory.cache().counts();
    (memory.cache().n_used(), counts.n_saved, counts.n_forgotten)
}

#[test]
fn what_a_gpu_computes_sooner_than_it_is_copied_is_forgotten() {
    let (mut memory, ids) = written_together(ON_GPU);
    for id in ids {
        memory.cache_mut().unpin(id);
    }
    assert_eq!(all_left(&mut memory), (0, 0, 128));
}

#[test]
fn on_a_cpu_it_is_saved() {
    let (mut memory, ids) = written_together(MemoryKind { idle_cost: IdleCost::Mask, ..MEMORY });
    for id in ids {
        memory.cache_mut().unpin(id);
    }
    assert_eq!(all_left(&mut memory), (0, 128, 0));
}

#[test]
fn what_is_pinned_is_saved_whatever_it_takes() {
    let (mut memory, [pinned, other]) = written_together(ON_GPU);
    memory.cache_mut().pin(pinned).expect("there is room");
    memory.cache_mut().unpin(other);
    assert_eq!(all_left(&mut memory), (0, 64, 64));
}

#[test]
fn what_comes_back_is_saved_whatever_it_takes() {
    let (mut memory, [preempted, other]) = written_together(ON_GPU);
    let _reservation = memory.cache_mut().reserve(preempted);
    memory.cache_mut().unpin(other);
    assert_eq!(all_left(&mut memory), (0, 64, 64));
}

#[test]
fn what_leaves_whole_is_saved_whatever_its_parts_take() {
    let (mut memory, ids) = written_together(MemoryKind { forks: ForkRule::InWindow, n_window: 16, ..ON_GPU });
    for id in ids {
        memory.cache_mut().unpin(id);
    }
    assert_eq!(all_left(&mut memory), (0, 128, 0));
}
