//! Contents of slots, and how they are erased.

use super::*;
use crate::request::SavedRun;

#[test]
fn a_slot_reports_its_contents_and_can_be_erased() {
    let (engine, control) = start_with_host_cache(2, 1024);
    let mut request = greedy(&prompt(1, 100), 5);
    request.slot = Some(1);
    let answer = run(&engine, request)[0].tokens.clone();
    let held = engine.slot_contents(1).unwrap().tokens;
    assert_eq!(held, [tokens_of(&prompt(1, 100)), answer[..4].to_vec()].concat());
    assert!(engine.slot_contents(0).unwrap().tokens.is_empty());
    assert!(matches!(engine.slot_contents(2), Err(Error::InvalidRequest { param: "slot", .. })));
    assert_eq!(engine.erase_slot(1).unwrap(), Some(104));
    assert_eq!(engine.erase_slot(1).unwrap(), Some(0));
    let before = control.n_computed();
    run(&engine, greedy(&prompt(1, 100), 1));
    assert_eq!(control.n_computed() - before, 100);
}

#[test]
fn erasing_a_slot_keeps_the_contents_of_other_slots() {
    let (engine, control) = start_with_host_cache(2, 1024);
    for slot in [0, 1] {
        run(&engine, Request { slot: Some(slot), ..greedy(&prompt(1, 100), 1) });
    }
    assert_eq!(engine.erase_slot(0).unwrap(), Some(100));
    let before = control.n_computed();
    run(&engine, greedy(&prompt(1, 100), 1));
    assert_eq!(control.n_computed() - before, 1);
}

#[test]
fn erasing_a_slot_keeps_cells_of_other_paths() {
    let (engine, control) = start_with_host_cache(2, 1024);
    for (slot, seed) in [(0, 2), (1, 3)] {
        let mut request = greedy(&format!("{}{}", prompt(1, 100), prompt(seed, 50)), 1);
        request.slot = Some(slot);
        run(&engine, request);
    }
    engine.erase_slot(0).unwrap();
    for (seed, n) in [(3, 1), (2, 50)] {
        let before = control.n_computed();
        run(&engine, greedy(&format!("{}{}", prompt(1, 100), prompt(seed, 50)), 1));
        assert_eq!(control.n_computed() - before, n, "the prompt that ends with {seed}");
    }
}

#[test]
fn former_contents_of_a_running_slot_do_not_prevent_erasing() {
    let (engine, control) = start_with_host_cache(2, 1024);
    for slot in [0, 1] {
        run(&engine, Request { slot: Some(slot), ..greedy(&prompt(1, 100), 1) });
    }
    control.allow(Some(0));
    let stream = engine.submit(Request { slot: Some(0), ..greedy(&prompt(7, 60), 600) }, None).unwrap();
    step_until(&engine, &control, |stats| stats.n_predicted > 2);
    assert_eq!(answer_while_held(&control, || engine.erase_slot(1).unwrap()), Some(100));
    drop(stream);
    control.allow(None);
    wait_until(&engine, is_idle);
    let before = control.n_computed();
    run(&engine, greedy(&prompt(1, 100), 1));
    assert_eq!(control.n_computed() - before, 100, "slot 0 had gone on to something else");
}

#[test]
fn a_busy_slot_is_not_erased() {
    let (engine, control) = start_with_host_cache(1, 1024);
    control.allow(Some(0));
    let stream = engine.submit(greedy(&prompt(1, 60), 2000), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_waiting == 0);
    assert_eq!(answer_while_held(&control, || engine.erase_slot(0).unwrap()), None);
    control.allow(None);
    assert_eq!(collect(stream).unwrap()[0].tokens, expected(&prompt(1, 60), 1024 - 60));
    assert_eq!(engine.erase_slot(0).unwrap(), Some(1023));
}

#[test]
fn a_slot_can_be_erased_while_other_requests_wait_for_it() {
    let (engine, control) = start_with_host_cache(1, 1024);
    control.allow(Some(0));
    let streams: Vec<_> = (0..20).map(|seed| engine.submit(greedy(&prompt(seed, 60), 40), None).unwrap()).collect();
    step_until(&engine, &control, |stats| stats.n_predicted > 0);
    let ask = || answer_while_held(&control, || engine.erase_slot(0).unwrap());
    let n = std::iter::repeat_with(ask).find_map(|answer| answer).expect("it asks until it is answered");
    assert!(n > 0 && engine.stats().n_waiting > 15, "{n} tokens, with {} in the queue", engine.stats().n_waiting);
    control.allow(None);
    for stream in streams {
        assert_eq!(collect(stream).unwrap()[0].tokens.len(), 40);
    }
}

#[test]
fn saves_pins_and_loads_do_not_change_slot_contents() {
    let (other, _) = start_with_host_cache(1, 1024);
    let saved = save(&other, &prompt(5, 100));
    let (engine, _) = start_with_host_cache(2, 1024);
    for slot in [0, 1] {
        run(&engine, Request { slot: Some(slot), ..greedy(&prompt(slot.into(), 60), 1) });
    }
    let tasks = [
        (prompt(1, 60), Task::Save { computes: false }),
        (prompt(2, 60), Task::Save { computes: true }),
        (prompt(3, 60), Task::Pin),
        (prompt(5, 100), Task::Load(saved.into())),
    ];
    for (text, what) in tasks {
        run(&engine, task(&text, what.clone()));
        for slot in [0, 1] {
            assert_eq!(
                engine.slot_contents(slot).unwrap().tokens,
                tokens_of(&prompt(slot.into(), 60)),
                "slot {slot} after {what:?}"
            );
        }
    }
}

#[test]
fn a_slot_in_which_a_prompt_is_pinned_reports_its_former_contents() {
    // In chunks so small that a long prompt takes many steps.
    let (engine, control) = start(Limits { max_host_cache_bytes: STORE, n_ubatch: 32, ..limits(1, 4096) });
    run(&engine, greedy(&prompt(1, 60), 1));
    control.allow(Some(0));
    let pinning = engine.submit(task(&prompt(2, 3000), Task::Pin), None).unwrap();
    step_until(&engine, &control, |stats| stats.n_computed > 100);
    assert_eq!(answer_while_held(&control, || engine.slot_contents(0).unwrap().tokens), tokens_of(&prompt(1, 60)));
    control.allow(None);
    collect(pinning).unwrap();
}

#[test]
fn a_saved_slot_can_be_erased() {
    let (engine, control) = start_with_host_cache(2, 1024);
    run(&engine, Request { slot: Some(1), ..greedy(&prompt(2, 60), 1) });
    let held = engine.slot_contents(1).unwrap().tokens;
    made(&engine, Request::for_task(Prompt::from_tokens(held), Task::Save { computes: false }));
    assert_eq!(engine.erase_slot(1).unwrap(), Some(60));
    let before = control.n_computed();
    run(&engine, greedy(&prompt(2, 60), 1));
    assert_eq!(control.n_computed() - before, 60);
}

#[test]
fn a_load_waits_for_its_slot_even_while_that_is_reserved_for_erasing() {
    let (other, _) = start_with_host_cache(2, 1024);
    let saved = save(&other, &prompt(5, 100));
    let (engine, control) = start_with_host_cache(3, 1024);
    control.allow(Some(0));
    let stream = engine.submit(Request { slot: Some(1), ..greedy(&prompt(1, 60), 600) }, None).unwrap();
    step_until(&engine, &control, |stats| stats.n_predicted > 0);
    let loading = engine.submit(Request { slot: Some(1), ..task(&prompt(5, 100), Task::Load(saved.into())) }, None).unwrap();
    assert_eq!(answer_while_held(&control, || engine.erase_slot(1).unwrap()), None);
    drop(stream);
    control.allow(None);
    assert_eq!(collect(loading).unwrap()[0].finished.slot, Some(1));
    assert_eq!(engine.slot_contents(1).unwrap().tokens, tokens_of(&prompt(5, 100)));
}

/// The same saved prefix in entries of one token each.
fn in_small_pieces(saved: &SavedPrefix) -> SavedPrefix {
    let small = |run: &SavedRun| -> Vec<SavedRun> {
        let tokens = run.bytes.chunks(run.bytes.len() / run.range.len());
        run.range.clone().zip(tokens).map(|(at, bytes)| SavedRun { range: at..at + 1, bytes: bytes.into() }).collect()
    };
    SavedPrefix { runs: saved.runs.iter().flat_map(small).collect(), ..saved.clone() }
}

#[test]
fn a_preempted_load_is_loaded_again_and_not_computed() {
    let (other, _) = start_with_host_cache(1, 1024);
    let saved = in_small_pieces(&save(&other, &prompt(5, 200)));
    // While streams run there is time for one entry per step, even if a busy machine takes long for a decode.
    let (engine, control) =
        start(Limits { max_host_cache_bytes: STORE, max_token_gap: TokenGap::AtMost(Duration::from_nanos(1)), ..limits(3, 512) });
    control.slow_reloads(Duration::from_millis(1));
    control.allow(Some(0));
    let old: Vec<_> = [1, 2].map(|seed| engine.submit(greedy(&prompt(seed, 40), 170), None).unwrap()).into();
    // The device cache is full before all of it is loaded.
    step_until(&engine, &control, |stats| stats.n_predicted > 80);
    let loading = engine.submit(Request { slot: Some(2), ..task(&prompt(5, 200), Task::Load(saved.into())) }, None).unwrap();
    step_until(&engine, &control, |stats| stats.n_preempted == 1);
    control.allow(None);
    assert_eq!(collect(loading).unwrap()[0].finished.slot, Some(2));
    assert_eq!(engine.slot_contents(2).unwrap().tokens, tokens_of(&prompt(5, 200)));
    for (seed, stream) in (1..).zip(old) {
        assert_eq!(collect(stream).unwrap()[0].tokens, expected(&prompt(seed, 40), 170));
    }
    assert_eq!(control.n_computed(), 2 * (40 + 169), "nothing but the streams");
}
