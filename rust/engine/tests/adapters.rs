//! Sets of adapters: what is shared, and whose turn it is.

use super::*;
use crate::cache::Variant;
use crate::request::AdapterScale;

/// Three adapters that are off unless a request names them.
fn start_adapted(n_slots: u32, n_ctx: u32) -> (Engine, FakeControl) {
    let limits = Limits { max_store_bytes: STORE, ..limits(n_slots, n_ctx) };
    start_with(limits, |runner| runner.with_adapters(&[0.0, 0.0, 0.0]))
}

fn adapted(request: Request, adapters: &[AdapterScale]) -> Request {
    Request { adapters: Some(adapters.to_vec()), ..request }
}

/// What a greedy continuation with these adapters must be.
fn expected_with(adapters: &[AdapterScale], prompt: &str, n: usize) -> Vec<Token> {
    let variant = Variant::with_adapters(adapters.iter().copied());
    let mut tokens = tokens_of(prompt);
    for _ in 0..n {
        tokens.push(FakeRunner::next_token_with(&variant, &tokens));
    }
    tokens.split_off(prompt.len())
}

#[test]
fn each_set_of_adapters_writes_its_own_text_and_scales_of_0_are_none() {
    let (engine, _) = start_adapted(4, 4096);
    let text = prompt(1, 60);
    let sets: [&[AdapterScale]; 5] = [&[], &[(0, 1.0)], &[(0, 0.5)], &[(0, 1.0), (2, 0.5)], &[(1, 0.0)]];
    for adapters in sets {
        let branch = run(&engine, adapted(greedy(&text, 8), adapters)).remove(0);
        assert_eq!(branch.tokens, expected_with(adapters, &text, 8), "{adapters:?}");
    }
    assert_eq!(expected_with(&[(1, 0.0)], &text, 8), expected(&text, 8));
    assert_ne!(expected_with(&[(0, 0.5)], &text, 8), expected_with(&[(0, 1.0)], &text, 8));
}

#[test]
fn equal_sets_share_what_is_computed_and_different_ones_nothing() {
    let (engine, control) = start_adapted(4, 4096);
    let text = prompt(1, 200);
    let sets: [&[AdapterScale]; 3] = [&[], &[(0, 1.0), (1, 0.5)], &[(0, 1.0)]];
    for adapters in sets {
        let before = control.n_computed();
        run(&engine, adapted(greedy(&text, 1), adapters));
        assert_eq!(control.n_computed() - before, 200, "{adapters:?} shares nothing with other sets");
    }
    let same: [&[AdapterScale]; 3] = [&[(2, 0.0)], &[(1, 0.5), (2, 0.0), (0, 1.0)], &[(0, 1.0)]];
    for adapters in same {
        let before = control.n_computed();
        run(&engine, adapted(greedy(&text, 1), adapters));
        assert_eq!(control.n_computed() - before, 1, "{adapters:?} is computed already");
    }
}

#[test]
fn requests_without_adapters_get_those_that_were_set_last_and_equal_sets_share_across_that() {
    let limits = Limits { max_store_bytes: STORE, ..limits(2, 4096) };
    let (engine, control) = start_with(limits, |runner| runner.with_adapters(&[1.0, 0.0]));
    let text = prompt(1, 200);
    assert_eq!(engine.adapters(), [(0, 1.0), (1, 0.0)]);
    assert_eq!(run(&engine, greedy(&text, 4)).remove(0).tokens, expected_with(&[(0, 1.0)], &text, 4));
    engine.set_adapters(vec![(1, 0.5)]).unwrap();
    assert_eq!(run(&engine, greedy(&text, 4)).remove(0).tokens, expected_with(&[(1, 0.5)], &text, 4));
    engine.set_adapters(vec![(0, 1.0)]).unwrap();
    let before = control.n_computed();
    assert_eq!(run(&engine, greedy(&text, 1)).remove(0).tokens, expected_with(&[(0, 1.0)], &text, 1));
    assert_eq!(control.n_computed() - before, 1, "the first text's prompt is still there");
}

#[test]
fn a_prompt_that_another_set_computes_is_not_waited_for() {
    let (engine, control) = start_adapted(2, 4096);
    control.allow(Some(0));
    let text = prompt(1, 300);
    let streams: Vec<Completions> =
        [&[][..], &[(0, 1.0)]].map(|set| engine.submit(adapted(greedy(&text, 2), set), None).unwrap()).into();
    control.allow(None);
    for (stream, set) in streams.into_iter().zip([&[][..], &[(0, 1.0)]]) {
        assert_eq!(collect(stream).unwrap().remove(0).tokens, expected_with(set, &text, 2));
    }
    assert_eq!(engine.stats().n_awaited, 0);
}

#[test]
fn sets_that_are_not_there_are_refused_by_name() {
    let (engine, _) = start_adapted(2, 4096);
    let refused = |adapters: &[AdapterScale]| match engine.submit(adapted(greedy("a", 1), adapters), None) {
        Err(Error::InvalidRequest { param: "adapters", message }) => message,
        _ => panic!("{adapters:?} is accepted"),
    };
    assert_eq!(refused(&[(3, 1.0)]), "adapters has 3; there are 3, counted from 0");
    assert_eq!(refused(&[(1, f32::NAN)]), "adapters has a scale of NaN for 1; it must be a finite number");
    assert_eq!(refused(&[(1, 1.0), (1, 0.5)]), "adapters names 1 twice");
    assert!(engine.set_adapters(vec![(3, 1.0)]).is_err());
    assert_eq!(engine.adapters(), [(0, 0.0), (1, 0.0), (2, 0.0)], "nothing has changed");
    let (plain, _) = start(limits(2, 4096));
    let refused = plain.submit(adapted(greedy("a", 1), &[(0, 1.0)]), None);
    assert!(matches!(refused, Err(Error::InvalidRequest { message, .. }) if message == "adapters has 0; none is loaded"));
}

#[test]
fn a_decode_has_one_set_and_turns_last_several_steps() {
    let (engine, control) = start_adapted(6, 4096);
    control.allow(Some(0));
    let sets: [&[AdapterScale]; 3] = [&[], &[(0, 1.0)], &[(1, 0.5)]];
    let set = |i: u64| sets[usize::try_from(i).unwrap() % 3];
    let requests = (0..6).map(|i| adapted(greedy(&prompt(i, 40), 60), set(i)));
    let streams: Vec<Completions> = requests.map(|request| engine.submit(request, None).unwrap()).collect();
    control.allow(None);
    for (i, stream) in (0_u64..).zip(streams) {
        let branch = collect(stream).unwrap().remove(0);
        assert_eq!(branch.tokens, expected_with(set(i), &prompt(i, 40), 60), "stream {i}");
    }
    let stats = engine.stats();
    assert!(stats.n_adapter_changes > 2, "they ran beside each other");
    assert!(stats.n_adapter_changes <= stats.n_decodes / 3, "{} of {}", stats.n_adapter_changes, stats.n_decodes);
}

#[test]
fn a_prompt_of_higher_priority_is_computed_before_another_sets() {
    let (engine, control) = start_adapted(2, 4096);
    control.allow(Some(0));
    let mut first = adapted(greedy(&prompt(1, 900), 1), &[(0, 1.0)]);
    first.priority = 1;
    let first = engine.submit(first, None).unwrap();
    let second = engine.submit(adapted(greedy(&prompt(2, 900), 1), &[]), None).unwrap();
    control.allow(None);
    collect(first).unwrap();
    collect(second).unwrap();
    assert_eq!(engine.stats().n_adapter_changes, 2, "to the first one's set, and to the second one's");
}

#[test]
fn a_saved_prefix_knows_its_adapters_and_serves_nobody_else() {
    let (engine, _) = start_adapted(2, 4096);
    let text = prompt(1, 200);
    let saved = match made(&engine, adapted(task(&text, Task::Save { computes: true }), &[(1, 0.5)])) {
        Made::Saved(saved) => saved,
        Made::Pinned(_) => panic!("a save pins nothing"),
    };
    assert_eq!(saved.adapters, [(1, 0.5)]);

    let (other, other_control) = start_adapted(2, 4096);
    run(&other, task(&text, Task::Load(saved.clone().into())));
    assert_eq!(other_control.n_computed(), 0);
    let before = other_control.n_computed();
    assert_eq!(run(&other, greedy(&text, 1)).remove(0).tokens, expected(&text, 1));
    assert_eq!(other_control.n_computed() - before, 200, "the model without adapters computes its own");
    let branch = run(&other, adapted(greedy(&text, 4), &[(1, 0.5)])).remove(0);
    assert_eq!(branch.tokens, expected_with(&[(1, 0.5)], &text, 4));
    assert_eq!(branch.finished.usage.n_cached, 199);

    let (plain, _) = start_stored(2, 4096);
    let refused = plain.submit(task(&text, Task::Load(saved.into())), None);
    assert!(matches!(refused, Err(Error::InvalidRequest { param: "adapters", .. })));
}

#[test]
fn a_slot_says_with_which_adapters_its_tokens_were_computed() {
    let (engine, _) = start_adapted(2, 4096);
    let request = Request { slot: Some(1), ..adapted(greedy(&prompt(1, 60), 0), &[(2, 1.5)]) };
    run(&engine, request);
    assert_eq!(engine.held_by_slot(1).unwrap(), (tokens_of(&prompt(1, 60)), vec![(2, 1.5)]));
}

#[test]
fn whatever_sets_come_in_whatever_order_every_text_is_its_own() {
    let mut state = 7_u64;
    let mut chance = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    for round in 0..6 {
        // So small that sequences give way, pieces leave and come back.
        let (engine, _) = start_adapted(4, 512);
        let mut asked = Vec::new();
        for _ in 0..40 {
            let scale = [0.0, 0.5, 1.0][usize::try_from(chance(3)).unwrap()];
            let adapters = vec![(u32::try_from(chance(2)).unwrap(), scale)];
            let (seed, n) = (chance(3), usize::try_from(20 + chance(120)).unwrap());
            let text = prompt(seed, n);
            let n_more = 1 + u32::try_from(chance(30)).unwrap();
            let mut request = adapted(greedy(&text, n_more), &adapters);
            request.n = 1 + u32::try_from(chance(3)).unwrap();
            request.priority = i32::try_from(chance(3)).unwrap();
            let stream = engine.submit(request, None).unwrap();
            if chance(8) == 0 {
                continue;
            }
            asked.push((adapters, text, n_more, stream));
        }
        for (adapters, text, n_more, stream) in asked {
            for branch in collect(stream).unwrap() {
                let expected = expected_with(&adapters, &text, n_more as usize);
                assert_eq!(branch.tokens, expected, "{adapters:?} in round {round}");
            }
        }
    }
}
