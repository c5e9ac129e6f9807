//! Branches of one stream with different parameters.

use super::*;
use crate::request::AdapterScale;

/// Reads the stream of several requests to its end.
fn run_branches(engine: &Engine, requests: Vec<Request>) -> Vec<BranchState> {
    collect(engine.submit_branches(requests, None).expect("the requests are valid")).expect("nothing fails")
}

fn n_computed(branches: &[BranchState]) -> Vec<u32> {
    branches.iter().map(|branch| branch.finished.usage.n_prompt_computed).collect()
}

/// Creates a greedy branch that continues `shared` with `suffix`.
fn suffixed(shared: &str, suffix: &str, max_tokens: u32) -> Request {
    Request { suffix: tokens_of(suffix), ..greedy(shared, max_tokens) }
}

fn with_adapters(adapters: &[AdapterScale], request: Request) -> Request {
    Request { adapters: Some(adapters.to_vec()), ..request }
}

#[test]
fn sixteen_suffixes_of_one_document_compute_it_once() {
    for n_slots in [1, 4, 16] {
        let (engine, control) = start(limits(n_slots, 4096));
        let document = prompt(1, 400);
        let questions: Vec<String> = (0..16).map(|i| format!("{}?{}", char::from(b'a' + i), prompt(u64::from(i), 9))).collect();
        let branches = run_branches(&engine, questions.iter().map(|question| suffixed(&document, question, 6)).collect());
        // The last token of each branch is sampled and never computed.
        assert_eq!(control.n_computed(), 400 + 16 * (11 + 5), "{n_slots} slots");
        for (question, branch) in questions.iter().zip(&branches) {
            assert_eq!(branch.tokens, expected(&format!("{document}{question}"), 6));
        }
        assert_eq!(n_computed(&branches).iter().sum::<u32>(), 400 + 16 * 11, "{n_slots} slots");
        assert!(branches.iter().all(|one| one.finished.usage.n_prompt_computed + one.finished.usage.n_cached == 411));
    }
}

#[test]
fn branches_with_equal_prompts_share_even_the_last_token() {
    for n_slots in [1, 8] {
        let (engine, control) = start(limits(n_slots, 4096));
        let shared = prompt(1, 200);
        let ways = [(0.0, 3), (0.7, 5), (1.2, 9), (1.2, 9), (0.2, 1)];
        let requests: Vec<Request> = (7..)
            .zip(ways)
            .map(|(seed, (temperature, max_tokens))| {
                let sampling = SamplingParams { temperature, ..SamplingParams::default() };
                Request { seed, sampling, ..greedy(&shared, max_tokens) }
            })
            .collect();
        let branches = run_branches(&engine, requests.clone());
        assert_eq!(control.n_computed(), 200 + 2 + 4 + 8 + 8, "{n_slots} slots");
        assert_eq!(n_computed(&branches).iter().sum::<u32>(), 200);
        for (request, branch) in requests.into_iter().zip(&branches) {
            assert_eq!(run(&engine, request)[0].tokens, branch.tokens, "as each draws alone");
        }
    }
}

#[test]
fn equal_suffixes_are_computed_once_in_any_order_of_branches() {
    let (engine, control) = start(limits(8, 4096));
    let shared = prompt(1, 100);
    let suffixes = ["red?", "blue?", "red?", "", "blue?", "red?", ""];
    let branches = run_branches(&engine, suffixes.iter().map(|suffix| suffixed(&shared, suffix, 1)).collect());
    // If a prompt is the beginning of another, its own last token is computed for the logits after it.
    assert!((100 + 4 + 5..=100 + 4 + 5 + 1).contains(&control.n_computed()), "{} computed", control.n_computed());
    for (suffix, branch) in suffixes.iter().zip(&branches) {
        assert_eq!(branch.tokens, expected(&format!("{shared}{suffix}"), 1));
    }
}

#[test]
fn branches_with_different_adapters_compute_the_prompt_once_for_each_set() {
    let (engine, control) = start_with(limits(8, 4096), |runner| runner.with_adapters(&[0.0, 0.0]));
    let shared = prompt(1, 100);
    let sets: [&[AdapterScale]; 6] = [&[], &[(0, 1.0)], &[(1, 1.0)], &[(0, 1.0)], &[], &[(1, 0.5)]];
    let branches = run_branches(&engine, sets.iter().map(|set| with_adapters(set, greedy(&shared, 4))).collect());
    assert_eq!(control.n_computed(), 4 * 100 + 6 * 3);
    assert_eq!(n_computed(&branches).iter().sum::<u32>(), 400);
    assert_eq!(branches[1].tokens, branches[3].tokens);
    assert_ne!(branches[0].tokens, branches[1].tokens);
}

#[test]
fn branch_indices_and_seeds_continue_across_the_requests_of_a_stream() {
    let (engine, _) = start(limits(3, 4096));
    let shared = prompt(1, 50);
    let (mut first, mut second) = (drawn(&shared, 2, 8), drawn(&shared, 3, 4));
    (first.seed, second.seed) = (5, 90);
    let branches = run_branches(&engine, vec![first.clone(), second.clone()]);
    let alone = [run(&engine, first), run(&engine, second)].concat();
    assert_eq!(branches.len(), 5);
    for (index, (branch, alone)) in branches.iter().zip(&alone).enumerate() {
        assert_eq!((branch.finished.index as usize, &branch.tokens), (index, &alone.tokens));
    }
}

#[test]
fn stop_strings_and_limits_are_per_branch() {
    let (engine, _) = start(limits(4, 4096));
    let shared = prompt(1, 40);
    let text = run(&engine, greedy(&shared, 12))[0].text.clone();
    let stop: String = text.chars().skip(3).take(2).collect();
    let requests = vec![greedy(&shared, 12), Request { stop: vec![stop.clone()], ..greedy(&shared, 12) }, greedy(&shared, 5)];
    let branches = run_branches(&engine, requests);
    assert_eq!(branches[0].text, text);
    assert_eq!(branches[1].finished.reason, FinishReason::Stop(stop));
    assert_eq!((branches[2].finished.reason.clone(), branches[2].tokens.len()), (FinishReason::Length, 5));
}

#[test]
fn an_abandoned_stream_frees_the_slots_of_all_its_branches() {
    let (engine, control) = start(limits(4, 4096));
    control.allow(Some(3));
    let shared = prompt(1, 60);
    let requests = (0..12).map(|i| suffixed(&shared, &prompt(100 + i, 20), 50)).collect();
    let completions = engine.submit_branches(requests, None).unwrap();
    step_until(&engine, &control, |stats| stats.slots.iter().filter(|slot| slot.running.is_some()).count() > 1);
    drop(completions);
    control.allow(None);
    let stats = wait_until(&engine, is_idle);
    assert_eq!(stats.n_waiting, 0);
    // The idle worker checks that no cells are in use, and still serves requests.
    assert_eq!(run(&engine, greedy(&shared, 3))[0].tokens, expected(&shared, 3));
}

#[test]
fn an_error_in_one_branch_ends_the_stream_and_frees_the_others() {
    let (engine, control) = start(limits(4, 4096));
    let shared = prompt(1, 60);
    control.allow(Some(6));
    let requests = (0..3).map(|i| suffixed(&shared, &prompt(100 + i, 20), 500)).collect();
    let completions = engine.submit_branches(requests, None).unwrap();
    step_until(&engine, &control, |stats| stats.slots.iter().filter(|slot| slot.running.is_some()).count() == 3);
    control.fail(Some(crate::fake_runner::FailureMode::All));
    control.allow(None);
    assert!(matches!(collect(completions), Err(Error::Decode { .. })));
    control.fail(None);
    wait_until(&engine, is_idle);
    assert_eq!(run(&engine, greedy(&shared, 3))[0].tokens, expected(&shared, 3));
}

#[test]
fn each_prompt_of_a_stream_takes_a_queue_permit_and_all_or_none_are_queued() {
    let (engine, control) = start(Limits { max_queue: 4, ..limits(1, 4096) });
    control.allow(Some(0));
    let shared = prompt(1, 60);
    let different = |n: u64| (0..n).map(|i| suffixed(&shared, &prompt(100 + i, 20), 2)).collect::<Vec<Request>>();
    let error = engine.submit_branches(different(5), None).err();
    assert_eq!(error, Some(Error::QueueFull { n_waiting: 4, unit: "requests" }));
    assert_eq!(engine.stats().n_waiting, 0);
    let alike = engine.submit_branches(vec![greedy(&shared, 2); 9], None).unwrap();
    let others = engine.submit_branches(different(3), None).unwrap();
    control.allow(None);
    assert_eq!((collect(alike).unwrap().len(), collect(others).unwrap().len()), (9, 3));
}

#[test]
fn a_request_for_one_branch_does_not_wait_behind_one_for_many_prompts() {
    let (engine, control) = start(limits(1, 4096));
    control.allow(Some(0));
    let many = (0..20).map(|i| suffixed(&prompt(1, 30), &prompt(100 + i, 20), 3)).collect();
    let many = engine.submit_branches(many, None).unwrap();
    let one = engine.submit(greedy(&prompt(2, 40), 3), None).unwrap();
    let number = one.request_id();
    let stats = step_until(&engine, &control, |stats| {
        stats.slots[0].running.as_ref().is_some_and(|running| running.request_id == number)
    });
    assert!(stats.n_waiting > 10, "it is the second that starts, or the third");
    control.allow(None);
    assert_eq!(collect(one).unwrap().len(), 1);
    assert_eq!(collect(many).unwrap().len(), 20);
}

#[test]
fn with_recurrent_memory_branches_continue_from_the_checkpoint_after_their_common_prefix() {
    let (engine, control) = start_recurrent(2, 4096);
    let shared = prompt(1, 200);
    let branches = run_branches(&engine, (0..6).map(|i| suffixed(&shared, &prompt(100 + i, 20), 3)).collect());
    assert_eq!(control.n_computed(), 200 + 6 * (20 + 2));
    for (i, branch) in (0..).zip(&branches) {
        assert_eq!(branch.tokens, expected(&format!("{shared}{}", prompt(100 + i, 20)), 3));
    }
}

// feature: explanations, prompt_logprobs
#[test]
fn the_prompt_is_reported_once() {
    let (engine, _) = start(limits(4, 4096));
    let shared = prompt(1, 40);
    let reporting = |suffix| Request {
        prompt_logprobs: Some(0),
        reports_progress: true,
        explains_cache: true,
        ..suffixed(&shared, suffix, 2)
    };
    let completions = engine.submit_branches(vec![reporting("red?"), reporting("blue"), reporting("red?")], None).unwrap();
    let events: Vec<Event> = completions.map(|event| event.unwrap()).collect();
    let n_logprobs: usize =
        events.iter().map(|event| if let Event::PromptLogprobs(reported) = event { reported.logprobs.len() } else { 0 }).sum();
    assert_eq!(n_logprobs, 44);
    let n_explained =
        events.iter().filter(|event| matches!(event, Event::Finished(finished) if finished.explanation.is_some())).count();
    assert_eq!(n_explained, 1);
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Progress(progress) if progress.n_processed == 44)).count(), 1);
}

#[test]
fn invalid_branches_are_refused() {
    let (engine, _) = start(limits(2, 256));
    let refused = |requests| match engine.submit_branches(requests, None) {
        Err(Error::InvalidRequest { param, .. }) => param,
        other => panic!("{:?}", other.err()),
    };
    assert_eq!(refused(Vec::new()), "branches");
    assert_eq!(refused(vec![drawn("hello", 128, 1), drawn("hello", 129, 1)]), "branches");
    assert_eq!(refused(vec![greedy("hello", 1), task("hello", Task::Pin)]), "branches");
    assert_eq!(refused(vec![Request { suffix: vec![1], ..task("hello", Task::Pin) }]), "suffix_prompt");
    assert_eq!(refused(vec![Request { suffix: vec![96], ..greedy("hello", 1) }]), "suffix_prompt");
    let overflow = engine.submit_branches(vec![greedy("hello", 1), suffixed("hello", &prompt(1, 251), 1)], None).err();
    assert_eq!(overflow, Some(Error::ContextOverflow { n_prompt: 256, n_ctx: 256 }));
    assert_eq!(engine.stats().n_waiting, 0);
}

/// Returns the events of each branch up to the end of the stream.
fn read_branches(completions: Completions) -> Vec<BranchState> {
    collect(completions).expect("nothing fails")
}

fn n_running(stats: &Stats) -> usize {
    stats.slots.iter().filter(|slot| slot.running.is_some()).count()
}

#[test]
fn a_cancelled_branch_ends_and_the_others_continue() {
    let (engine, control) = start(limits(4, 4096));
    control.allow(Some(0));
    let shared = prompt(1, 60);
    let completions = engine.submit(drawn(&shared, 4, 30), None).unwrap();
    step_until(&engine, &control, |stats| n_running(stats) == 4 && stats.n_predicted >= 8);
    completions.cancel_branch(2);
    // Handled by the worker before the next decode, which is not allowed yet.
    control.allow(None);
    let branches = read_branches(completions);
    assert_eq!(branches[2].finished.reason, FinishReason::Cancelled);
    assert!((2..30).contains(&branches[2].tokens.len()), "{}", branches[2].tokens.len());
    for index in [0, 1, 3] {
        assert_eq!((&branches[index].finished.reason, branches[index].tokens.len()), (&FinishReason::Length, 30));
    }
    let usage = branches[2].finished.usage;
    assert_eq!((usage.n_prompt_computed + usage.n_cached, usage.n_predicted as usize), (60, branches[2].tokens.len()));
    wait_until(&engine, is_idle);
}

#[test]
fn a_waiting_branch_can_be_cancelled_and_returns_its_queue_permit() {
    let (engine, control) = start(limits(1, 4096));
    control.allow(Some(0));
    let shared = prompt(1, 60);
    let requests = vec![greedy(&shared, 4), suffixed(&shared, "and what now?", 4), suffixed(&shared, "or never?", 4)];
    let completions = engine.submit_branches(requests, None).unwrap();
    step_until(&engine, &control, |stats| n_running(stats) == 1);
    completions.cancel_branch(1);
    completions.cancel_branch(1);
    completions.cancel_branch(77);
    control.allow(None);
    let branches = read_branches(completions);
    assert_eq!((&branches[1].finished.reason, branches[1].finished.slot), (&FinishReason::Cancelled, None));
    assert_eq!(branches[1].finished.usage, crate::request::Usage::default());
    assert_eq!(branches[2].tokens, expected(&format!("{shared}or never?"), 4));
    assert_eq!(wait_until(&engine, is_idle).n_waiting, 0);
}

// feature: prompt_logprobs
#[test]
fn the_next_branch_continues_the_prompt_of_a_cancelled_one() {
    for n_slots in [1, 3] {
        let (engine, control) = start(Limits { n_ubatch: 32, ..limits(n_slots, 4096) });
        control.allow(Some(0));
        let shared = prompt(1, 200);
        let request = Request { prompt_logprobs: Some(0), ..greedy(&shared, 3) };
        let request = Request { n: 3, uses_cache: true, reports_progress: true, ..request };
        let completions = engine.submit(request, None).unwrap();
        step_until(&engine, &control, |stats| {
            stats.slots.iter().any(|slot| slot.running.as_ref().is_some_and(|running| running.n_computed >= 64))
        });
        completions.cancel_branch(0);
        control.allow(None);
        let mut n_logprobs = 0;
        let mut ends = Vec::new();
        for event in completions {
            match event.unwrap() {
                Event::PromptLogprobs(reported) => {
                    assert_eq!(reported.start as usize, n_logprobs, "in order, each once");
                    n_logprobs += reported.logprobs.len();
                }
                Event::Finished(finished) => ends.push(finished),
                Event::Token(_) | Event::Progress(_) => {}
            }
        }
        assert_eq!(n_logprobs, 200);
        ends.sort_by_key(|end| end.index);
        assert_eq!(ends.iter().map(|end| end.usage.n_predicted).collect::<Vec<_>>(), [0, 3, 3]);
        assert!((64..200).contains(&ends[0].usage.n_prompt_computed), "{:?}", ends[0].usage);
        wait_until(&engine, is_idle);
    }
}

#[test]
fn cancelling_the_last_branch_ends_the_stream() {
    let (engine, control) = start(limits(2, 4096));
    control.allow(Some(0));
    let completions = engine.submit(drawn(&prompt(1, 60), 5, 100), None).unwrap();
    step_until(&engine, &control, |stats| n_running(stats) == 2);
    (0..5).for_each(|index| completions.cancel_branch(index));
    control.allow(None);
    assert_eq!(reasons(&read_branches(completions)), vec![FinishReason::Cancelled; 5]);
    wait_until(&engine, is_idle);
}

#[test]
fn a_task_has_no_branch_to_cancel() {
    let (engine, control) = start(limits(2, 4096));
    control.allow(Some(0));
    let pinning = engine.submit(task(&prompt(1, 60), Task::Pin), None).unwrap();
    pinning.cancel_branch(0);
    control.allow(None);
    assert!(read_branches(pinning)[0].finished.result.is_some());
}

#[test]
fn branches_cancelled_at_random_release_everything() {
    let mut state = 7_u64;
    let mut chance = move |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    for round in 0..12 {
        let recurrent = round % 3 == 2;
        let (engine, _) = if recurrent { start_recurrent(3, 600) } else { start_with_host_cache(3, 600) };
        let mut open: Vec<(Completions, u32)> = Vec::new();
        for _ in 0..400 {
            match chance(8) {
                0..3 => {
                    let shared = prompt(chance(3), 20 + usize::try_from(chance(60)).unwrap());
                    let ways = 1 + chance(4);
                    let requests: Vec<Request> = (0..ways)
                        .map(|_| {
                            let suffix = prompt(50 + chance(3), usize::try_from(chance(30)).unwrap());
                            let n = 1 + u32::try_from(chance(3)).unwrap();
                            let max_tokens = Some(u32::try_from(chance(40)).unwrap());
                            Request {
                                n,
                                max_tokens,
                                priority: i32::try_from(chance(2)).unwrap(),
                                ..suffixed(&shared, &suffix, 1)
                            }
                        })
                        .collect();
                    let n = requests.iter().map(|request| request.n).sum();
                    open.push((engine.submit_branches(requests, None).unwrap(), n));
                }
                3..6 if !open.is_empty() => {
                    let (stream, n) = &open[usize::try_from(chance(open.len() as u64)).unwrap()];
                    stream.cancel_branch(u32::try_from(chance(u64::from(*n))).unwrap());
                }
                6 if !open.is_empty() => drop(open.swap_remove(usize::try_from(chance(open.len() as u64)).unwrap())),
                _ if open.len() > 6 => {
                    let (stream, n) = open.swap_remove(0);
                    assert_eq!(read_branches(stream).len(), n as usize, "every branch ends once");
                }
                _ => {}
            }
        }
        for (stream, n) in open {
            assert_eq!(read_branches(stream).len(), n as usize);
        }
        // The idle worker checks the cache, and that no cells are in use.
        wait_until(&engine, is_idle);
        assert!(engine.is_running());
        assert_eq!(run(&engine, greedy("still there, and serving?", 3))[0].tokens, expected("still there, and serving?", 3));
    }
}

#[test]
fn errors_of_some_branches_name_the_first_one_and_errors_of_all_do_not() {
    let (engine, _) = start(limits(4, 4096));
    let refused = |changes: &[fn(&mut Request)]| {
        let requests = changes.iter().map(|change| {
            let mut request = greedy(&prompt(1, 20), 3);
            change(&mut request);
            request
        });
        match engine.submit_branches(requests.collect(), None) {
            Err(Error::InvalidRequest { param, message }) => (param, message),
            other => panic!("{:?}", other.map(drop)),
        }
    };
    let right: fn(&mut Request) = |_| ();
    let no_prompt: fn(&mut Request) = |request| request.prompt = Prompt::default();
    let no_penalty: fn(&mut Request) = |request| request.sampling.repeat_penalty = 0.0;
    let no_stop: fn(&mut Request) = |request| request.stop = vec![String::new()];
    for wrong in [no_prompt, no_penalty] {
        let alone = refused(&[wrong]);
        assert_eq!(refused(&[wrong, wrong, wrong]), alone);
        assert!(!alone.1.contains("branches"), "{alone:?}");
        for (place, changes) in [("branches[1]", [right, wrong, right]), ("branches[0]", [wrong, wrong, right])] {
            assert_eq!(refused(&changes), (alone.0, format!("{place}: {}", alone.1)));
        }
    }
    assert_eq!(refused(&[no_penalty, no_stop]).1, format!("branches[0]: {}", refused(&[no_penalty]).1));
}
