//! Sliding windows: a prefix of an earlier prompt, and a repeated prompt, compute only their last token.

use super::checkpoints::{n_computed_for, start_windowed};
use super::*;
use crate::engine::{Fork, ForkDestination, ForkKind, ForkPoint};
use crate::request::{BeamSearch, Diversity};

/// Tokens of the model's window.
const N_WINDOW: u32 = 32;

const WINDOWED: MemoryKind = MemoryKind { forks: ForkRule::InWindow, n_window: N_WINDOW, ..MEMORY };

/// Engines with a window of [`N_WINDOW`] tokens, each with its name: with a host cache from which idle prefixes are reloaded,
/// with one that is used only under pressure, and without one.
fn engines() -> [(&'static str, Engine, FakeControl); 3] {
    [("store", STORE, IdleCost::Scores), ("busy store", STORE, IdleCost::Nothing), ("no store", Some(0), IdleCost::Scores)].map(
        |(name, max_host_cache_bytes, idle_cost)| {
            let limits = Limits { max_host_cache_bytes, checkpoints: Checkpoints::default(), ..limits(4, 8192) };
            let (engine, control) = start_with(limits, move |runner| runner.with_memory(MemoryKind { idle_cost, ..WINDOWED }));
            (name, engine, control)
        },
    )
}

/// Waits until nothing runs and, with early offloading, until idle prefixes are offloaded.
fn rest(engine: &Engine, name: &str) {
    wait_until(engine, |stats| is_idle(stats) && (name != "store" || stats.n_cells_used == 0));
}

/// Returns the prompt tokens that a request computes for `n_answer` more tokens, after which the engine is idle. The answer is
/// checked.
fn n_for_prompt(engine: &Engine, control: &FakeControl, name: &str, request: &Request) -> usize {
    let n_answer = request.max_tokens.expect("each request says how long its answer is") as usize;
    let n_computed = n_computed_for(engine, control, request.clone()) + 1 - n_answer;
    rest(engine, name);
    n_computed
}

#[test]
fn a_prefix_of_an_earlier_prompt_computes_only_its_last_token_from_the_second_request_on() {
    for (name, engine, control) in engines() {
        let longer = prompt(1, 330);
        let n_computed = |text: &str| n_for_prompt(&engine, &control, name, &greedy(text, 20));
        assert_eq!(n_computed(&longer), 330, "{name}");
        assert!(n_computed(&longer[..300]) <= 300, "{name}");
        for _ in 0..2 {
            assert_eq!(n_computed(&longer[..300]), 1, "{name}");
        }
        assert_eq!(n_computed(&longer), 1, "{name}: the earlier one is still there");
    }
}

#[test]
fn a_repeated_prompt_computes_only_its_last_token() {
    for n_prompt in [17, 31, 32, 33, 34, 64, 65, 300, 1300] {
        for n_answer in [1, 2, 31, 32, 33, 200] {
            for (name, engine, control) in engines() {
                let request = greedy(&prompt(1, n_prompt), n_answer);
                let n_computed = [(); 3].map(|()| n_for_prompt(&engine, &control, name, &request));
                assert_eq!(n_computed, [n_prompt, 1, 1], "{name}, {n_prompt} tokens and an answer of {n_answer}");
            }
        }
    }
}

#[test]
fn a_repeated_prompt_with_few_new_tokens_computes_only_its_last_token() {
    for (name, engine, control) in engines() {
        let text = prompt(1, 340);
        let n_computed = |n| n_for_prompt(&engine, &control, name, &greedy(&text[..n], 60));
        assert_eq!([300, 320, 320, 340, 340, 320, 300].map(n_computed), [300, 21, 1, 21, 1, 1, 1], "{name}");
    }
}

#[test]
fn removing_the_last_paragraph_keeps_both_prompts_cached() {
    for (name, engine, control) in engines() {
        let text = prompt(1, 300);
        let with = |first: char, seed| format!("{text}{first}{}", prompt(seed, 29));
        let n_computed = |text: &str| n_for_prompt(&engine, &control, name, &greedy(text, 40));
        assert_eq!(n_computed(&text), 300, "{name}");
        assert!(n_computed(&with('A', 2)) <= 31, "{name}");
        assert!(n_computed(&with('B', 3)) <= 31, "{name}: another paragraph");
        assert_eq!(n_computed(&text), 1, "{name}: none");
        assert_eq!(n_computed(&with('A', 2)), 1, "{name}: the first one again");
    }
}

#[test]
fn removing_a_last_paragraph_reuses_the_prompt_from_the_second_request_on() {
    for (name, engine, control) in engines() {
        let text = prompt(1, 300);
        let with = |first: char, seed| format!("{text}{first}{}", prompt(seed, 29));
        let n_computed = |text: &str| n_for_prompt(&engine, &control, name, &greedy(text, 40));
        n_computed(&with('A', 2));
        n_computed(&with('B', 3));
        if name != "no store" {
            assert!(n_computed(&with('C', 4)) <= 30 + N_WINDOW as usize, "{name}");
        }
        n_computed(&text);
        assert_eq!(n_computed(&text), 1, "{name}");
        assert_eq!(n_computed(&with('B', 3)), 1, "{name}");
    }
}

#[test]
fn another_answer_to_a_chat_computes_one_token() {
    for (name, engine, control) in engines() {
        let turns = [prompt(1, 200), prompt(2, 40), prompt(3, 25)].concat();
        let chat = |n, places: &[u32]| Request { checkpoints_at: places.to_vec(), ..greedy(&turns[..n], 50) };
        let n_computed = |request: Request| n_for_prompt(&engine, &control, name, &request);
        assert_eq!(n_computed(chat(240, &[200])), 240, "{name}");
        assert_eq!(n_computed(chat(240, &[200])), 1, "{name}");
        assert!(n_computed(chat(265, &[200, 240])) <= 26, "{name}");
        assert_eq!(n_computed(chat(265, &[200, 240])), 1, "{name}");
        assert_eq!(n_computed(chat(240, &[200])), 1, "{name}: the turn before");
    }
}

// feature: forks
#[test]
fn completions_and_forks_at_the_end_of_a_prompt_compute_its_last_token_once() {
    for (name, engine, control) in engines() {
        let text = prompt(1, 300);
        n_for_prompt(&engine, &control, name, &greedy(&text, 40));
        let before = control.n_computed();
        let branches = run(&engine, Request { n: 3, ..greedy(&text, 40) });
        assert_eq!(control.n_computed() - before, 1 + 3 * 39, "{name}");
        assert!(branches.iter().all(|branch| branch.tokens == expected(&text, 40)), "{name}");
        rest(&engine, name);

        let before = control.n_computed();
        // Otherwise the branch could end before it is forked.
        control.allow(Some(0));
        let stream = engine.submit(greedy(&text, 40), None).unwrap();
        let fork = Fork {
            branch: 0,
            at: ForkPoint::Token(0),
            append: Vec::new(),
            kind: ForkKind::Continue(2),
            destination: ForkDestination::SameStream,
        };
        stream.request_fork(fork, None).unwrap();
        control.allow(None);
        assert!(collect(stream).unwrap().iter().all(|branch| branch.tokens == expected(&text, 40)), "{name}");
        let n_prompts = control.n_computed() - before - 3 * 39;
        assert!(n_prompts <= 3, "{name}: {n_prompts} tokens of prompts");
    }
}

#[test]
fn requests_for_one_prompt_at_the_same_time_compute_it_once() {
    for (name, engine, control) in engines() {
        control.allow(Some(0));
        let text = prompt(1, 300);
        let streams: Vec<Completions> = (0..3).map(|_| engine.submit(greedy(&text, 40), None).unwrap()).collect();
        control.allow(None);
        for stream in streams {
            assert_eq!(collect(stream).unwrap()[0].tokens, expected(&text, 40), "{name}");
        }
        assert_eq!(control.n_computed(), 300 + 2 + 3 * 39, "{name}");
    }
}

// feature: beams
#[test]
fn beams_of_a_repeated_prompt_compute_only_its_last_token() {
    for (name, engine, control) in engines() {
        let search = Request {
            diversity: Diversity::Beams(BeamSearch { width: 3, length_penalty: 1.0, is_stochastic: false }),
            ..greedy(&prompt(1, 300), 40)
        };
        let mut n_computed = [0; 2];
        for n in &mut n_computed {
            let before = control.n_computed();
            run(&engine, search.clone());
            rest(&engine, name);
            *n = control.n_computed() - before;
        }
        assert_eq!(n_computed[0] - n_computed[1], 299, "{name}");
    }
}

#[test]
fn the_window_of_the_last_token_takes_one_more_token_of_the_host_cache() {
    let (engine, control) = start_windowed(Checkpoints::default());
    let longer = prompt(1, 330);
    n_for_prompt(&engine, &control, "store", &greedy(&longer, 1));
    let before = engine.stats().host_cache;
    n_for_prompt(&engine, &control, "store", &greedy(&longer[..300], 1));
    let after = engine.stats().host_cache;
    let n_bytes = MEMORY.bytes_per_token * u64::from(N_WINDOW + 1);
    assert_eq!(after.n_entries - before.n_entries, 1);
    assert!(after.n_bytes - before.n_bytes <= n_bytes + 512, "{} bytes more", after.n_bytes - before.n_bytes);
}

#[test]
fn prompt_ends_fit_a_small_host_cache_without_changing_texts() {
    for max_host_cache_bytes in [4_000, 10_000, 20_000] {
        let limits =
            Limits { max_host_cache_bytes: Some(max_host_cache_bytes), checkpoints: Checkpoints::default(), ..limits(2, 600) };
        let (engine, control) = start_with(limits, |runner| runner.with_memory(WINDOWED));
        for round in 0..3 {
            for seed in 0..6 {
                let text = prompt(seed, 330);
                for n in [330, 300, 300] {
                    n_computed_for(&engine, &control, greedy(&text[..n], 40));
                    let n_bytes = engine.stats().host_cache.n_bytes;
                    assert!(n_bytes <= max_host_cache_bytes, "{n_bytes} of {max_host_cache_bytes} in round {round}");
                }
            }
        }
        settled(&engine, &control);
    }
}

#[test]
fn repeated_prompts_generate_the_same_text_under_pressure() {
    for max_host_cache_bytes in [STORE, Some(0)] {
        let limits = Limits { max_host_cache_bytes, checkpoints: Checkpoints::default(), ..limits(4, 512) };
        let (engine, control) = start_with(limits, |runner| runner.with_memory(WINDOWED));
        let texts: Vec<String> = (0..4).map(|seed| prompt(seed, 100)).collect();
        for _ in 0..3 {
            let streams: Vec<Completions> = texts.iter().map(|text| engine.submit(greedy(text, 200), None).unwrap()).collect();
            for (text, stream) in texts.iter().zip(streams) {
                assert_eq!(collect(stream).unwrap()[0].tokens, expected(text, 200));
            }
        }
        assert!(engine.stats().n_preempted > 0, "they did not fit together");
        settled(&engine, &control);
    }
}

#[test]
fn the_end_of_a_prompt_is_kept_even_if_idle_prefixes_use_all_ids() {
    let limits = Limits { max_host_cache_bytes: STORE, n_seq_max: 4, checkpoints: Checkpoints::default(), ..limits(2, 8192) };
    let memory = MemoryKind { idle_cost: IdleCost::Nothing, ..WINDOWED };
    let (engine, control) = start_with(limits, move |runner| runner.with_memory(memory));
    for seed in 2..8 {
        run(&engine, greedy(&prompt(seed, 100), 40));
    }
    let chat = Request { checkpoints_at: vec![100], ..greedy(&prompt(1, 300), 60) };
    for n_expected in [300, 1, 1] {
        assert_eq!(n_for_prompt(&engine, &control, "busy store", &chat), n_expected);
    }
}

#[test]
fn a_pinned_or_loaded_prompt_computes_only_its_last_token() {
    for (name, engine, control) in engines() {
        let text = prompt(1, 300);
        pin(&engine, &text);
        rest(&engine, name);
        assert_eq!(n_for_prompt(&engine, &control, name, &greedy(&text, 40)), 1, "{name}");
        assert_eq!(n_for_prompt(&engine, &control, name, &greedy(&text, 40)), 1, "{name}, again");
        let saved = save(&engine, &text);
        for (other_name, other, control) in engines() {
            run(&other, task(&text, Task::Load(saved.clone().into())));
            rest(&other, other_name);
            assert_eq!(n_for_prompt(&other, &control, other_name, &greedy(&text, 40)), 1, "{name} to {other_name}");
        }
    }
}

#[test]
fn the_state_after_a_prefix_of_an_earlier_prompt_is_kept_with_its_logits() {
    let (engine, control) = start_recurrent(2, 2048);
    let longer = prompt(1, 330);
    let n_computed = |n| n_for_prompt(&engine, &control, "store", &greedy(&longer[..n], 20));
    assert_eq!([330, 300, 300, 300, 330].map(n_computed), [330, 300, 0, 0, 0]);
}
