//! Adapter sets: shared cells, and the order of decodes.

use super::*;
use crate::cache::{AdapterSchedule, AdapterSet};
use crate::request::{AdapterScale, ContextShift, SlotContents};

/// Three adapters, off unless a request names them.
fn start_adapted(n_slots: u32, n_ctx: u32) -> (Engine, FakeControl) {
    let limits = Limits { max_host_cache_bytes: STORE, ..limits(n_slots, n_ctx) };
    start_with(limits, |runner| runner.with_adapters(&[0.0, 0.0, 0.0]))
}

fn adapted(request: Request, adapters: &[AdapterScale]) -> Request {
    Request { adapters: Some(adapters.to_vec()), ..request }
}

/// Returns the expected greedy continuation with these adapters.
fn expected_with(adapters: &[AdapterScale], prompt: &str, n: usize) -> Vec<Token> {
    expected_of(&AdapterSet::with_adapters(adapters.iter().copied()).into(), prompt, n)
}

/// Returns the expected greedy continuation of a prompt with this adapter schedule.
fn expected_of(variants: &AdapterSchedule, prompt: &str, n: usize) -> Vec<Token> {
    let mut tokens = tokens_of(prompt);
    for _ in 0..n {
        tokens.push(FakeRunner::next_token_with(variants, &tokens));
    }
    tokens.split_off(prompt.len())
}

#[test]
fn each_adapter_set_generates_its_own_text_and_scales_of_0_are_ignored() {
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
fn equal_adapter_sets_share_cells_and_different_ones_do_not() {
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
fn requests_without_adapters_use_the_latest_default_and_share_with_equal_sets() {
    let limits = Limits { max_host_cache_bytes: STORE, ..limits(2, 4096) };
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
fn a_prompt_does_not_wait_for_another_adapter_set() {
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
fn unknown_adapters_are_refused_by_name() {
    let (engine, _) = start_adapted(2, 4096);
    let refused = |adapters: &[AdapterScale]| match engine.submit(adapted(greedy("a", 1), adapters), None) {
        Err(Error::InvalidRequest { param: "adapters", message }) => message,
        _ => panic!("{adapters:?} is accepted"),
    };
    assert_eq!(refused(&[(3, 1.0)]), "adapters has 3; there are 3, counted from 0");
    assert_eq!(refused(&[(1, f32::NAN)]), "adapters has a scale of NaN for 1; it must be a finite number");
    assert_eq!(refused(&[(1, 1.0), (1, 0.5)]), "adapters has 1 twice");
    assert!(engine.set_adapters(vec![(3, 1.0)]).is_err());
    assert_eq!(engine.adapters(), [(0, 0.0), (1, 0.0), (2, 0.0)], "nothing has changed");
    let (plain, _) = start(limits(2, 4096));
    let refused = plain.submit(adapted(greedy("a", 1), &[(0, 1.0)]), None);
    assert!(matches!(refused, Err(Error::InvalidRequest { message, .. }) if message == "adapters has 0; none is loaded"));
}

#[test]
fn a_decode_has_one_adapter_set_and_turns_last_several_steps() {
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
fn a_prompt_of_higher_priority_is_computed_before_one_of_another_adapter_set() {
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
fn a_saved_prefix_serves_only_requests_with_its_adapters() {
    let (engine, _) = start_adapted(2, 4096);
    let text = prompt(1, 200);
    let saved = match made(&engine, adapted(task(&text, Task::Save { computes: true }), &[(1, 0.5)])) {
        TaskResult::Saved(saved) => saved,
        TaskResult::Pinned(_) => panic!("a save pins nothing"),
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

    let (plain, _) = start_with_host_cache(2, 4096);
    let refused = plain.submit(task(&text, Task::Load(saved.into())), None);
    assert!(matches!(refused, Err(Error::InvalidRequest { param: "adapters", .. })));
}

#[test]
fn a_slot_reports_the_adapters_of_its_tokens() {
    let (engine, _) = start_adapted(2, 4096);
    let request = Request { slot: Some(1), ..adapted(greedy(&prompt(1, 60), 0), &[(2, 1.5)]) };
    run(&engine, request);
    let held = SlotContents { tokens: tokens_of(&prompt(1, 60)), adapters: vec![(2, 1.5)], invoked_at: None };
    assert_eq!(engine.slot_contents(1).unwrap(), held);
}

#[test]
fn random_adapter_sets_never_mix_their_texts() {
    let mut state = 7_u64;
    let mut chance = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    for round in 0..6 {
        // So small that sequences are preempted, offloaded and reloaded.
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

/// Two adapters, off unless a request names them; the second one applies from `#` on.
fn start_activated(n_slots: u32, n_ctx: u32, forks: ForkRule) -> (Engine, FakeControl) {
    let limits = Limits { max_host_cache_bytes: STORE, ..limits(n_slots, n_ctx) };
    start_with(limits, move |runner| {
        let memory = MemoryKind { forks, bytes_per_state: if forks.is_a_state() { 64 } else { 0 }, ..MEMORY };
        runner.with_memory(memory).with_adapters(&[0.0, 0.0]).invoked_by(1, &tokens_of("#!"))
    })
}

/// Returns `n_before` characters, an invocation, and other characters up to 200.
fn invoking(seed: u64, n_before: usize) -> String {
    let mut text = prompt(seed, n_before);
    text.push_str("#!");
    text + &prompt(seed + 100, 198 - n_before)
}

/// Position from which the activated adapter applies.
fn activated_at(place: u32) -> AdapterSchedule {
    AdapterSchedule::changing(AdapterSet::default(), place, AdapterSet::with_adapters([(1, 1.0)]))
}

#[test]
fn an_activated_adapter_applies_from_its_last_invocation_and_shares_earlier_cells_with_the_model() {
    let (engine, control) = start_activated(2, 4096, ForkRule::Anywhere);
    let text = invoking(1, 120);
    let ask = |adapters: &[AdapterScale], variants: AdapterSchedule, n_computed: usize| {
        let before = control.n_computed();
        let branch = run(&engine, adapted(greedy(&text, 6), adapters)).remove(0);
        assert_eq!(branch.tokens, expected_of(&variants, &text, 6), "{adapters:?}");
        assert_eq!(control.n_computed() - before, n_computed + 5, "{adapters:?}");
    };
    ask(&[], AdapterSchedule::default(), 200);
    ask(&[(1, 1.0)], activated_at(120), 80);
    ask(&[(1, 1.0)], activated_at(120), 1);
    ask(&[], AdapterSchedule::default(), 1);
    // Another adapter applies from the beginning.
    let both =
        AdapterSchedule::changing(AdapterSet::with_adapters([(0, 0.5)]), 120, AdapterSet::with_adapters([(0, 0.5), (1, 1.0)]));
    ask(&[(0, 0.5), (1, 1.0)], both, 200);
    ask(&[(0, 0.5)], AdapterSet::with_adapters([(0, 0.5)]).into(), 80);
}

#[test]
fn the_last_of_several_invocations_counts_and_without_one_the_adapter_is_off() {
    let (engine, control) = start_activated(2, 4096, ForkRule::Anywhere);
    let text = format!("{}#!{}#!{}", prompt(1, 40), prompt(2, 40), prompt(3, 40));
    let branch = run(&engine, adapted(greedy(&text, 6), &[(1, 1.0)])).remove(0);
    assert_eq!(branch.tokens, expected_of(&activated_at(82), &text, 6));
    let at_start = format!("#!{}", prompt(4, 40));
    let branch = run(&engine, adapted(greedy(&at_start, 6), &[(1, 1.0)])).remove(0);
    assert_eq!(branch.tokens, expected_with(&[(1, 1.0)], &at_start, 6));

    let lacking = format!("{}#{}", prompt(5, 60), prompt(6, 60));
    let branch = run(&engine, adapted(greedy(&lacking, 6), &[(1, 1.0)])).remove(0);
    assert_eq!(branch.tokens, expected(&lacking, 6));
    let before = control.n_computed();
    run(&engine, greedy(&lacking, 1));
    assert_eq!(control.n_computed() - before, 1, "it is the model's own");
}

#[test]
fn a_text_has_at_most_one_activated_adapter() {
    let (engine, _) = start_with(limits(2, 4096), |runner| {
        runner.with_adapters(&[1.0, 0.0, 1.0]).invoked_by(0, &tokens_of("#")).invoked_by(2, &tokens_of("!"))
    });
    let refused = |result: Result<(), Error>| match result {
        Err(Error::InvalidRequest { param: "adapters", message }) => message,
        other => panic!("{other:?}"),
    };
    let message = "adapters has 0 and 2, but a text can have at most one activated adapter (aLoRA)";
    assert_eq!(refused(engine.submit(greedy("a", 1), None).map(drop)), message);
    assert_eq!(refused(engine.set_adapters(vec![(0, 0.5), (2, 0.5)])), message);
    engine.set_adapters(vec![(0, 0.0), (2, 1.0)]).unwrap();
    assert_eq!(run(&engine, greedy("a!b", 3)).remove(0).tokens.len(), 3);
}

#[test]
fn a_checkpoint_is_saved_where_an_activated_adapter_begins() {
    let (engine, control) = start_activated(2, 4096, ForkRule::AtEnd);
    let text = invoking(1, 120);
    let other = format!("{}{}", &text[..122], prompt(7, 30));
    for (text, n_computed) in [(&text, 200), (&other, 32)] {
        let before = control.n_computed();
        let branch = run(&engine, adapted(greedy(text, 1), &[(1, 1.0)])).remove(0);
        assert_eq!(branch.tokens, expected_of(&activated_at(120), text, 1));
        assert_eq!(control.n_computed() - before, n_computed);
    }
}

#[test]
fn a_saved_prefix_and_a_slot_keep_the_position_where_their_adapter_begins() {
    let (engine, _) = start_activated(2, 4096, ForkRule::Anywhere);
    let text = invoking(1, 120);
    let request = Request { slot: Some(1), ..adapted(greedy(&text, 12), &[(1, 1.0)]) };
    run(&engine, request);
    let held = engine.slot_contents(1).unwrap();
    assert_eq!((held.tokens.len(), &held.adapters[..], held.invoked_at), (211, &[(1, 1.0)][..], Some(120)));

    // As if it had generated its own invocation.
    let later = format!("{text}#!{}", prompt(9, 20));
    let save = |text: &str, invoked_at| {
        let request = Request { invoked_at, ..adapted(task(text, Task::Save { computes: true }), &[(1, 1.0)]) };
        match made(&engine, request) {
            TaskResult::Saved(saved) => saved,
            TaskResult::Pinned(_) => panic!("a save pins nothing"),
        }
    };
    let saved = save(&later, Some(120));
    assert_eq!((&saved.adapters[..], saved.invoked_at), (&[(1, 1.0)][..], Some(120)));
    let (other, other_control) = start_activated(2, 4096, ForkRule::Anywhere);
    run(&other, task(&later, Task::Load(saved.into())));
    let request = Request { invoked_at: Some(120), ..adapted(greedy(&later, 4), &[(1, 1.0)]) };
    assert_eq!(run(&other, request).remove(0).tokens, expected_of(&activated_at(120), &later, 4));
    assert_eq!(other_control.n_computed(), 4);

    let short = save(&text[..100], Some(120));
    assert_eq!((short.adapters.len(), short.invoked_at), (0, None), "so far it is the model's own");
}

#[test]
fn listings_report_the_adapters_of_each_run() {
    let (engine, _) = start_activated(2, 4096, ForkRule::Anywhere);
    let text = invoking(1, 120);
    let pinned = match made(&engine, adapted(task(&text, Task::Pin), &[(1, 0.5)])) {
        TaskResult::Pinned(pinned) => pinned,
        TaskResult::Saved(_) => panic!("a pin saves nothing"),
    };
    assert_eq!((&pinned.adapters[..], pinned.invoked_at), (&[(1, 0.5)][..], Some(120)));
    assert_eq!(engine.pinned().unwrap(), [pinned]);
    let nodes = engine.cached().unwrap();
    assert_eq!(nodes.iter().map(|node| node.tokens.len()).sum::<usize>(), 200);
    assert!(nodes.iter().any(|node| node.start == 120), "no stretch is computed in two ways");
    for node in nodes {
        let expected = if node.start < 120 { &[][..] } else { &[(1, 0.5)] };
        assert_eq!(node.adapters, expected, "from token {} on", node.start);
    }
}

#[test]
fn a_context_shift_keeps_the_position_where_the_adapter_begins() {
    for n_keep in [0, 30, 60] {
        let (engine, _) = start_activated(1, 128, ForkRule::Anywhere);
        let text = format!("{}#!{}", prompt(1, 40), prompt(2, 40));
        let mut request = adapted(greedy(&text, 100), &[(1, 1.0)]);
        request.context_shift = Some(ContextShift { n_keep: Some(n_keep), n_discard: 20 });
        let branch = run(&engine, request).remove(0);
        let (mut tokens, mut place, mut written) = (tokens_of(&text), 40, Vec::new());
        while written.len() < 100 {
            if tokens.len() == 128 {
                tokens.drain(n_keep as usize..n_keep as usize + 20);
                place = if place >= n_keep + 20 { place - 20 } else { place.min(n_keep) };
            }
            let next = FakeRunner::next_token_with(&activated_at(place), &tokens);
            tokens.push(next);
            written.push(next);
        }
        assert_eq!(branch.tokens, written, "where {n_keep} tokens are kept");
    }
}

#[test]
fn random_invocations_never_mix_their_texts() {
    let mut state = 11_u64;
    let mut chance = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from((state >> 33) % n).unwrap()
    };
    for (round, forks) in (0..).zip([ForkRule::Anywhere, ForkRule::Anywhere, ForkRule::AtEnd, ForkRule::InWindow]) {
        let (engine, _) = start_activated(4, 512, forks);
        let mut asked = Vec::new();
        for _ in 0..40 {
            let adapters: &[AdapterScale] = [&[][..], &[(1, 1.0)], &[(0, 0.5), (1, 1.0)]][chance(3)];
            let (n, n_before) = (20 + chance(120), chance(100));
            let beginning = prompt(chance(2) as u64, 140);
            let text = if chance(4) == 0 {
                beginning[..n].to_owned()
            } else {
                format!("{}#!{}", &beginning[..n_before], prompt(chance(2) as u64, n))
            };
            let n_more = 1 + u32::try_from(chance(30)).unwrap();
            let mut request = adapted(greedy(&text, n_more), adapters);
            request.n = 1 + u32::try_from(chance(3)).unwrap();
            request.priority = i32::try_from(chance(3)).unwrap();
            let stream = engine.submit(request, None).unwrap();
            if chance(8) > 0 {
                asked.push((adapters, text, n_more, stream));
            }
        }
        for (adapters, text, n_more, stream) in asked {
            let all = AdapterSet::with_adapters(adapters.iter().copied());
            let others = AdapterSet::with_adapters(adapters.iter().copied().filter(|&(id, _)| id == 0));
            let variants = match text.rfind("#!") {
                Some(place) => AdapterSchedule::changing(others, u32::try_from(place).unwrap(), all),
                None => others.into(),
            };
            for branch in collect(stream).unwrap() {
                let expected = expected_of(&variants, &text, n_more as usize);
                assert_eq!(branch.tokens, expected, "{adapters:?} in round {round}");
            }
        }
    }
}
