//! Checkpoints inside prompts: an edited end computes only the tokens after the last one.

use super::*;
use crate::fake_runner::FailureMode;

fn with_checkpoints(prompt: &str, places: &[u32]) -> Request {
    Request { checkpoints_at: places.to_vec(), ..greedy(prompt, 5) }
}

pub(super) fn n_computed_for(engine: &Engine, control: &FakeControl, request: Request) -> usize {
    let (before, text) = (control.n_computed(), request.prompt.clone().into_tokens());
    let branch = run(engine, request).remove(0);
    let mut tokens = text;
    for &token in &branch.tokens {
        assert_eq!(token, FakeRunner::next_token(&tokens));
        tokens.push(token);
    }
    control.n_computed() - before
}

#[test]
fn an_edited_end_computes_only_the_tokens_after_the_last_checkpoint() {
    let (engine, control) = start_recurrent(2, 2048);
    let turns = [prompt(1, 300), prompt(2, 50), prompt(3, 70), prompt(4, 40)].concat();
    assert_eq!(n_computed_for(&engine, &control, with_checkpoints(&turns, &[300, 350, 420])), 460 + 4);
    for (kept, seed) in [(420, 11), (350, 12), (300, 13)] {
        let edited = format!("{}{}", &turns[..kept], prompt(seed, 60));
        assert_eq!(n_computed_for(&engine, &control, greedy(&edited, 5)), 60 + 4, "edited after {kept}");
    }
    let edited = format!("{}{}", &turns[..299], prompt(14, 60));
    assert_eq!(n_computed_for(&engine, &control, greedy(&edited, 5)), 359 + 4, "there is no checkpoint before 300");
}

#[test]
fn a_prompt_that_ends_at_a_checkpoint_is_found_except_for_its_logits() {
    let (engine, control) = start_recurrent(2, 2048);
    run(&engine, with_checkpoints(&prompt(1, 300), &[100, 200]));
    // The last token is computed from the checkpoint before it.
    assert_eq!(n_computed_for(&engine, &control, greedy(&prompt(1, 300)[..200], 5)), 100 + 4);
    assert_eq!(n_computed_for(&engine, &control, greedy(&prompt(1, 300)[..200], 5)), 4, "now they are known");
}

#[test]
fn a_request_waits_for_a_checkpoint_of_a_running_prompt() {
    let (engine, control) = start_recurrent(2, 4096);
    control.allow(Some(0));
    let first = engine.submit(with_checkpoints(&prompt(1, 1000), &[600]), None).unwrap();
    let edited = format!("{}{}", &prompt(1, 1000)[..600], prompt(2, 100));
    let second = engine.submit(greedy(&edited, 5), None).unwrap();
    control.allow(None);
    assert_eq!(collect(first).unwrap()[0].finished.usage.n_prompt_computed, 1000);
    let second = collect(second).unwrap().remove(0);
    assert_eq!((second.tokens, second.finished.usage.n_prompt_computed), (expected(&edited, 5), 100));
}

#[test]
fn a_decode_that_succeeds_without_another_prompt_saves_its_state() {
    let (engine, control) = start_recurrent(2, 2048);
    let text = prompt(1, 300);
    run(&engine, with_checkpoints(&text, &[199, 200]));
    control.allow(Some(0));
    let before = engine.submit(greedy("a", 1), None).unwrap();
    control.hold();
    control.fail(Some(FailureMode::MoreRowsThan(1)));
    let doomed = engine.submit(greedy(&prompt(2, 100), 5), None).unwrap();
    let resumed = engine.submit(greedy(&text[..200], 5), None).unwrap();
    control.allow(None);
    assert!(collect(before).is_ok() && collect(doomed).is_err());
    assert_eq!(collect(resumed).unwrap()[0].tokens, expected(&text[..200], 5));
    control.fail(None);
    assert_eq!(n_computed_for(&engine, &control, greedy(&text[..200], 5)), 4, "the state after it is known, with its logits");
}

#[test]
fn memory_that_can_be_cut_saves_no_checkpoints() {
    let (engine, control) = start_with_host_cache(2, 2048);
    let text = prompt(1, 300);
    assert_eq!(n_computed_for(&engine, &control, with_checkpoints(&text, &[100])), 300 + 4);
    let edited = format!("{}{}", &text[..250], prompt(2, 60));
    assert_eq!(n_computed_for(&engine, &control, greedy(&edited, 5)), 60 + 4);
}

#[test]
fn invalid_checkpoint_positions_are_refused() {
    let (engine, _) = start_recurrent(2, 2048);
    let too_many: Vec<u32> = (1..18).collect();
    for places in [&too_many[..], &[20, 10], &[10, 10], &[0], &[30], &[31]] {
        let refused = engine.submit(with_checkpoints(&prompt(1, 30), places), None).err();
        assert!(matches!(refused, Some(Error::InvalidRequest { param: "checkpoints_at", .. })), "{places:?}: {refused:?}");
    }
    run(&engine, with_checkpoints(&prompt(1, 30), &too_many[..16]));
}

#[test]
fn the_window_at_the_end_of_a_chat_prompt_is_kept() {
    for (max_host_cache_bytes, checkpoints_at, n_expected) in
        [(STORE, vec![100], 41), (Some(0), vec![100], 41), (Some(0), Vec::new(), 41)]
    {
        let limits = Limits { max_host_cache_bytes, ..limits(2, 2048) };
        let memory = MemoryKind { forks: ForkRule::InWindow, n_window: 32, ..MEMORY };
        let (engine, control) = start_with(limits, move |runner| runner.with_memory(memory));
        run(&engine, Request { checkpoints_at: checkpoints_at.clone(), ..greedy(&prompt(1, 300), 60) });
        if max_host_cache_bytes == STORE {
            wait_until(&engine, |stats| stats.n_cells_used == 0);
        }
        let other = format!("{}{}", prompt(1, 300), prompt(2, 40));
        let before = control.n_computed();
        let branch = run(&engine, greedy(&other, 1)).remove(0);
        assert_eq!(branch.tokens, expected(&other, 1), "another answer than the first");
        assert_eq!(
            control.n_computed() - before,
            n_expected,
            "with places {checkpoints_at:?} and a store of {max_host_cache_bytes:?}"
        );
    }
}

/// Memory with a window of 32 tokens, and a host cache.
pub(super) fn start_windowed(checkpoints: Checkpoints) -> (Engine, FakeControl) {
    let limits = Limits { max_host_cache_bytes: STORE, checkpoints, ..limits(4, 8192) };
    start_with(limits, |runner| runner.with_memory(MemoryKind { forks: ForkRule::InWindow, n_window: 32, ..MEMORY }))
}

#[test]
fn a_window_is_kept_where_prompts_diverge() {
    for max_per_prompt in [4, 0] {
        let (engine, control) = start_windowed(Checkpoints { max_per_prompt, ..Checkpoints::default() });
        // No two have an equal beginning after the shared part.
        let after = |n: usize, nth: u8| format!("{}{}{}", &prompt(1, 500)[..n], char::from(b'A' + nth), prompt(nth.into(), 99));
        // The second prompt at each position continues from the window along the first one, and later ones from the position.
        let places = [(390, 0), (390, 294), (390, 390), (350, 294), (350, 350), (390, 390)];
        for (nth, (n_shared, n_found)) in (0..).zip(places) {
            let n_found = if max_per_prompt == 0 { 0 } else { n_found };
            let n_computed = n_computed_for(&engine, &control, greedy(&after(n_shared, nth), 1));
            assert_eq!(n_computed, n_shared + 100 - n_found, "{max_per_prompt} checkpoints, prompt {nth}");
            // Some continue from the device cache, others from saved windows.
            if nth % 2 == 0 {
                wait_until(&engine, |stats| stats.n_cells_used == 0);
            }
        }
    }
}

#[test]
fn a_window_inside_a_running_prompt_is_saved_after_it() {
    let (engine, control) = start_windowed(Checkpoints::default());
    let after = |nth: u8, n_tokens| greedy(&format!("{}{}", prompt(1, 350), char::from(b'A' + nth)), n_tokens);
    run(&engine, after(0, 40));
    wait_until(&engine, |stats| stats.n_cells_used == 0);
    // The window where it diverges from the first one ends inside it, and has been pending since it began.
    run(&engine, after(1, 400));
    wait_until(&engine, |stats| stats.n_cells_used == 0);
    assert_eq!(n_computed_for(&engine, &control, after(2, 1)), 1);
}

#[test]
fn a_diverging_prompt_computes_at_most_three_windows_again() {
    let text = prompt(1, 2000);
    for is_saved in [true, false] {
        let (engine, control) = start_windowed(Checkpoints::default());
        assert_eq!(n_computed_for(&engine, &control, greedy(&text, 40)), 2000 + 39);
        for (nth, n_shared) in (0..).zip([1990, 1500, 1000, 700, 130]) {
            if is_saved {
                wait_until(&engine, |stats| stats.n_cells_used == 0);
            }
            let other = format!("{}{}{}", &text[..n_shared], char::from(b'A' + nth), prompt(nth.into(), 99));
            let n_again = n_computed_for(&engine, &control, greedy(&other, 1)) - 100;
            assert!(n_again <= 3 * 32, "{n_again} of {n_shared} tokens are computed again, after a wait: {is_saved}");
        }
    }
}

#[test]
fn a_window_is_placed_at_a_line_end_inside_the_prompt() {
    let (engine, control) = start_windowed(Checkpoints::default());
    // Lines end after 288, 350 and 400 tokens. The position due after 384 is nearer to the prompt's end than to the preceding
    // line.
    let text = format!("{}\n{}\n{}\n", &prompt(1, 400)[..287], prompt(2, 61), prompt(3, 49));
    assert_eq!(n_computed_for(&engine, &control, greedy(&text, 1)), 400);
    wait_until(&engine, |stats| stats.n_cells_used == 0);
    let other = format!("{}{}", &text[..360], prompt(4, 50));
    assert_eq!(n_computed_for(&engine, &control, greedy(&other, 1)), 360 - 350 + 50);
}

#[test]
fn concurrent_diverging_prompts_compute_their_common_part_once_and_at_most_three_windows_again() {
    let (engine, control) = start_windowed(Checkpoints::default());
    let text = prompt(1, 2000);
    run(&engine, greedy(&text, 40));
    wait_until(&engine, |stats| stats.n_cells_used == 0);
    let before = control.n_computed();
    control.allow(Some(0));
    let others = (0..4).map(|nth| format!("{}+{}{}", &text[..1500], char::from(b'A' + nth), prompt(nth.into(), 98)));
    let streams: Vec<Completions> = others.map(|other| engine.submit(greedy(&other, 1), None).unwrap()).collect();
    control.allow(None);
    for stream in streams {
        collect(stream).unwrap();
    }
    let n_again = control.n_computed() - before - 4 * 99 - 1;
    assert!(n_again <= 3 * 32, "{n_again} tokens are computed again");
}

#[test]
fn another_answer_continues_from_the_prompts_end_after_the_window_has_moved_on() {
    for is_saved in [true, false] {
        let (engine, control) = start_windowed(Checkpoints::default());
        let text = prompt(1, 350);
        assert_eq!(n_computed_for(&engine, &control, greedy(&text, 60)), 350 + 59);
        if is_saved {
            wait_until(&engine, |stats| stats.n_cells_used == 0);
        }
        let other = format!("{text}A{}", prompt(2, 39));
        assert_eq!(n_computed_for(&engine, &control, greedy(&other, 1)), 40, "after a wait: {is_saved}");
    }
}

#[test]
fn windows_of_a_prompt_are_bounded_in_number_and_host_cache_share() {
    const WINDOW_BYTES: u64 = 32 * 200;
    for (max_per_prompt, max_host_cache_bytes, n_expected) in
        [(8, None, 9), (0, None, 1), (99, None, 21), (8, Some(8 * 7 * WINDOW_BYTES), 8), (8, Some(7 * WINDOW_BYTES), 1)]
    {
        let limits =
            Limits { checkpoints: Checkpoints { max_per_prompt, min_step: 16 }, max_host_cache_bytes, ..limits(2, 4096) };
        let memory =
            MemoryKind { forks: ForkRule::InWindow, n_window: 32, idle_cost: IdleCost::Nothing, bytes_per_token: 200, ..MEMORY };
        let (engine, _) = start_with(limits, move |runner| runner.with_memory(memory));
        run(&engine, greedy(&prompt(1, 2000), 1));
        // The last of them is at the prompt's end.
        assert_eq!(engine.stats().host_cache.n_entries, n_expected, "of {max_per_prompt} in {max_host_cache_bytes:?} bytes");
    }
}

/// Bytes of a state of any length.
const STATE_BYTES: u64 = 50_000;

/// Memory that cannot be cut, with a host cache of `max_host_cache_bytes`.
fn start_with_checkpoints(checkpoints: Checkpoints, max_host_cache_bytes: Option<u64>) -> (Engine, FakeControl) {
    let limits = Limits { checkpoints, max_host_cache_bytes, n_seq_max: 4, ..limits(2, 4096) };
    let memory = MemoryKind { forks: ForkRule::AtEnd, bytes_per_token: 0, bytes_per_state: STATE_BYTES, ..MEMORY };
    start_with(limits, move |runner| runner.with_memory(memory))
}

#[test]
fn a_diverging_prompt_continues_from_the_last_checkpoint_and_adds_one_there() {
    let (engine, control) = start_with_checkpoints(Checkpoints { max_per_prompt: 24, min_step: 64 }, None);
    assert_eq!(n_computed_for(&engine, &control, greedy(&prompt(1, 1000), 5)), 1000 + 4);
    let parted = |seed, n_own| format!("{}{}", &prompt(1, 1000)[..333], prompt(seed, n_own));
    assert_eq!(n_computed_for(&engine, &control, greedy(&parted(2, 50), 5)), 333 - 5 * 64 + 50 + 4);
    assert_eq!(n_computed_for(&engine, &control, greedy(&parted(3, 40), 5)), 40 + 4, "where two have parted, a third goes on");
}

#[test]
fn checkpoints_are_bounded_in_number_and_host_cache_share() {
    for (max_per_prompt, max_host_cache_bytes, n_expected) in
        [(8, None, 8), (0, None, 0), (8, Some(8 * 5 * STATE_BYTES), 5), (8, Some(7 * STATE_BYTES), 0)]
    {
        let (engine, _) = start_with_checkpoints(Checkpoints { max_per_prompt, min_step: 16 }, max_host_cache_bytes);
        run(&engine, greedy(&prompt(1, 2000), 1));
        // In addition there is the state at the prompt's end.
        let n_pieces = engine.stats().host_cache.n_entries;
        assert_eq!(n_pieces, n_expected + 1, "of {max_per_prompt} in {max_host_cache_bytes:?} bytes");
    }
}

#[test]
fn a_second_prompt_waits_for_the_checkpoint_that_a_running_one_will_reach() {
    let (engine, control) = start_with_checkpoints(Checkpoints { max_per_prompt: 24, min_step: 64 }, None);
    control.allow(Some(0));
    let first = engine.submit(greedy(&prompt(1, 1000), 5), None).unwrap();
    let parted = format!("{}{}", &prompt(1, 1000)[..600], prompt(2, 100));
    let second = engine.submit(greedy(&parted, 5), None).unwrap();
    control.allow(None);
    assert_eq!(collect(first).unwrap()[0].finished.usage.n_prompt_computed, 1000);
    let second = collect(second).unwrap().remove(0);
    assert_eq!((second.tokens, second.finished.usage.n_prompt_computed), (expected(&parted, 5), 600 - 9 * 64 + 100));
}

#[test]
fn checkpoints_are_placed_at_line_ends() {
    let (engine, control) = start_with_checkpoints(Checkpoints::default(), None);
    let lines = format!("{}\n{}", &prompt(1, 1000)[..350], prompt(2, 649));
    assert_eq!(n_computed_for(&engine, &control, greedy(&lines, 5)), 1000 + 4);
    let other = format!("{}{}", &lines[..360], prompt(3, 50));
    assert_eq!(n_computed_for(&engine, &control, greedy(&other, 5)), 360 - 351 + 50 + 4);
}
