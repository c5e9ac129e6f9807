//! Cache explanations: each cause is planted and reported, and texts of other owners are never revealed.

use std::time::Duration;

use super::media::picture_of;
use super::*;
use crate::config::{Grouping, Named};
use crate::engine::features::explanations::history::{History, MAX_HISTORY_REQUESTS, MAX_HISTORY_TOKENS};
use crate::engine::ids::{BranchKey, GroupId, MemberIndex};
use crate::engine::scheduler::request_group::{RequestGroup, test_group};
use crate::engine::scheduler::sequence::Tokens;
use crate::fake_runner::FailureMode;
use crate::request::{AdapterScale, BeamSearch, Cause, ComputedRun, Diversity, EvictionCause, Explanation};

/// Creates a greedy request for one token with a cache explanation.
fn asking(prompt: &str) -> Request {
    Request { explains_cache: true, ..greedy(prompt, 1) }
}

fn owned(owner: &str, request: Request) -> Request {
    Request { owner: Some(owner.into()), ..request }
}

fn with_system(end: u32, request: Request) -> Request {
    Request { system_end: Some(end), ..request }
}

fn adapted(adapters: &[AdapterScale], request: Request) -> Request {
    Request { adapters: Some(adapters.to_vec()), ..request }
}

fn explained(engine: &Engine, request: Request) -> Explanation {
    explanation_at_end(engine.submit(request, None).unwrap())
}

/// Returns the explanation at the end of a stream, which must equal the one that the stream returns.
fn explanation_at_end(mut completions: Completions) -> Explanation {
    let events: Vec<Event> = completions.by_ref().collect::<Result<_, _>>().unwrap();
    let explanation = events.into_iter().find_map(|event| match event {
        Event::Finished(Finished { explanation, .. }) => explanation,
        _ => None,
    });
    let explanation = *explanation.expect("it was asked for");
    assert_eq!(completions.explanation().as_ref(), Some(&explanation), "the stream keeps it");
    explanation
}

/// Returns the explanation of `last`, after `earlier` was answered, in an engine with a host cache.
fn after(earlier: &[&str], last: &str) -> Explanation {
    let (engine, _) = start_with_host_cache(2, 4096);
    for text in earlier {
        run(&engine, greedy(text, 4));
    }
    explained(&engine, asking(last))
}

/// As above, for requests of any kind.
fn after_requests(engine: &Engine, earlier: impl IntoIterator<Item = Request>, last: Request) -> Explanation {
    for request in earlier {
        run(engine, request);
    }
    explained(engine, last)
}

/// Returns the explanation of the second of two requests that the worker receives in one step, while it is busy with another.
fn together(engine: &Engine, control: &FakeControl, requests: [Request; 2]) -> Explanation {
    control.allow(Some(0));
    let before = engine.submit(greedy("B", 1), None).unwrap();
    control.hold();
    let streams = requests.map(|request| engine.submit(request, None).unwrap());
    control.allow(None);
    collect(before).unwrap();
    let [_, explanation] = streams.map(|stream| collect(stream).unwrap().remove(0).finished.explanation);
    *explanation.expect("the second asks")
}

fn stored() -> Engine {
    start_with_host_cache(2, 4096).0
}

/// Returns memory with a window of `n` tokens.
fn windowed(n_window: u32, max_host_cache_bytes: Option<u64>) -> (Engine, FakeControl) {
    let limits = Limits { max_host_cache_bytes, ..limits(2, 2048) };
    start_with(limits, move |runner| runner.with_memory(MemoryKind { forks: ForkRule::InWindow, n_window, ..MEMORY }))
}

fn recurrent() -> (Engine, FakeControl) {
    start_recurrent(2, 2048)
}

/// Returns text of `n` characters that begins with `first`.
fn text(first: char, seed: u64, n: usize) -> String {
    format!("{first}{}", prompt(seed, n - 1))
}

fn joined(parts: &[&str]) -> String {
    parts.concat()
}

/// A planted cause: its name, how to plant it, and the expected causes, runs and positions.
type Case = (&'static str, fn() -> Explanation, &'static [(&'static str, u32, u32, u32)]);

#[expect(clippy::too_many_lines, reason = "a table")]
fn cases() -> Vec<Case> {
    vec![
        ("the first prompt", || after(&[], &text('A', 1, 100)), &[("never_seen", 0, 100, 0)]),
        ("another first letter", || after(&[&text('A', 1, 100)], &text('B', 2, 100)), &[("never_seen", 0, 100, 0)]),
        ("of one token", || after(&[], "A"), &[("last_token", 0, 1, 0)]),
        ("the same again", || after(&[&text('A', 1, 100)], &text('A', 1, 100)), &[("last_token", 99, 100, 99)]),
        (
            "the beginning of an earlier one",
            || after(&[&text('A', 1, 100)], &text('A', 1, 100)[..60]),
            &[("last_token", 59, 60, 59)],
        ),
        (
            "an earlier one and more",
            || after(&[&text('A', 1, 100)], &joined(&[&text('A', 1, 100), "ZZZZ"])),
            &[("new", 100, 104, 100)],
        ),
        (
            "an answer goes on",
            || {
                let (engine, text) = (stored(), text('A', 1, 100));
                let branch = run(&engine, greedy(&text, 4)).remove(0);
                let last = Request { explains_cache: true, ..continued(&joined(&[&text]), &branch, 1) };
                let mut tokens = last.prompt.into_tokens();
                tokens.extend(tokens_of(&prompt(7, 20)));
                explained(&engine, Request { prompt: Prompt::from_tokens(tokens), ..asking("") })
            },
            &[("new", 103, 124, 104)],
        ),
        (
            "the third of four answers goes on",
            || {
                let (engine, text) = (stored(), text('A', 1, 100));
                let branch = run(&engine, drawn(&text, 4, 8)).remove(2);
                let mut tokens = tokens_of(&text);
                tokens.extend(branch.tokens.iter().chain(&tokens_of("ZZZZ")));
                explained(&engine, Request { prompt: Prompt::from_tokens(tokens), ..asking("") })
            },
            &[("new", 107, 112, 108)],
        ),
        (
            "two texts after one",
            || {
                let shared = text('A', 1, 100);
                after(&[&shared, &joined(&[&shared, "Q", &prompt(2, 40)])], &joined(&[&shared, "R", &prompt(3, 40)]))
            },
            &[("new", 100, 141, 100)],
        ),
        (
            "an edited word",
            || after(&[&text('A', 1, 100)], &joined(&[&text('A', 1, 50), "QQ", &prompt(9, 40)])),
            &[("differs", 50, 92, 50)],
        ),
        (
            "an edited last letter",
            || after(&[&text('A', 1, 100)], &joined(&[&text('A', 1, 98), "QQ"])),
            &[("differs", 98, 100, 98)],
        ),
        (
            "an edited answer",
            || {
                let (engine, text) = (stored(), text('A', 1, 100));
                let mut tokens = tokens_of(&text);
                tokens.extend(&run(&engine, greedy(&text, 8))[0].tokens[..4]);
                tokens.extend(tokens_of("QQQQQQ"));
                explained(&engine, Request { prompt: Prompt::from_tokens(tokens), ..asking("") })
            },
            &[("differs", 104, 110, 104)],
        ),
        (
            "the nearest of three",
            || {
                let (a, b) = (text('A', 1, 100), joined(&[&text('A', 1, 60), &text('Q', 2, 40)]));
                after(
                    &[&b, &a, &joined(&[&text('A', 1, 30), &text('R', 3, 70)])],
                    &joined(&[&text('A', 1, 80), &text('S', 4, 20)]),
                )
            },
            &[("differs", 80, 100, 80)],
        ),
        (
            "ten tokens shared",
            || after(&[&text('A', 1, 100)], &joined(&[&text('A', 1, 10), &text('Q', 2, 60)])),
            &[("too_short", 0, 70, 10)],
        ),
        (
            "fifteen tokens shared",
            || after(&[&text('A', 1, 100)], &joined(&[&text('A', 1, 15), &text('Q', 2, 60)])),
            &[("too_short", 0, 75, 15)],
        ),
        (
            "sixteen tokens shared",
            || after(&[&text('A', 1, 100)], &joined(&[&text('A', 1, 16), &text('Q', 2, 60)])),
            &[("differs", 16, 76, 16)],
        ),
        (
            "a short one and more",
            || after(&[&text('A', 1, 10)], &joined(&[&text('A', 1, 10), &text('Q', 2, 60)])),
            &[("too_short", 0, 70, 10)],
        ),
        (
            "another template",
            || {
                let said = prompt(5, 80);
                after(&[&joined(&["ASYS;", &said])], &joined(&["B>>", &said]))
            },
            &[("beginning", 0, 83, 0)],
        ),
        (
            "another template that begins alike",
            || {
                let said = prompt(5, 80);
                after(&[&joined(&["ASYS:system", &said])], &joined(&["ASYS:user", &said]))
            },
            &[("beginning", 0, 89, 5)],
        ),
        (
            "a date at the beginning",
            || {
                let said = prompt(5, 80);
                after(&[&joined(&["A date of all dates: 01.02.", &said])], &joined(&["A date of all dates: 01.03.", &said]))
            },
            &[("beginning", 25, 107, 25)],
        ),
        (
            "a date further on",
            || {
                let said = prompt(5, 80);
                after(&[&joined(&[&prompt(6, 40), "01.02.", &said])], &joined(&[&prompt(6, 40), "01.03.", &said]))
            },
            &[("differs", 44, 126, 44)],
        ),
        ("no opening any more", || after(&[&joined(&["{", &text('A', 1, 60)])], &text('A', 1, 60)), &[("bos", 0, 60, 0)]),
        ("an opening that was not", || after(&[&text('A', 1, 60)], &joined(&["{", &text('A', 1, 60)])), &[("bos", 0, 61, 0)]),
        (
            "two openings",
            || after(&[&joined(&["{", &text('A', 1, 60)])], &joined(&["{{", &text('A', 1, 60)])),
            &[("bos", 0, 62, 1)],
        ),
        (
            "one opening after two",
            || after(&[&joined(&["{{", &text('A', 1, 60)])], &joined(&["{", &text('A', 1, 60)])),
            &[("bos", 0, 61, 1)],
        ),
        (
            "a letter that opens nothing",
            || after(&[&text('A', 1, 60)], &joined(&["x", &text('A', 1, 60)])),
            &[("beginning", 0, 61, 0)],
        ),
        (
            "another system message",
            || {
                let texts = [("Q", 2), ("R", 3)].map(|(first, seed)| joined(&[&text('A', 1, 50), first, &prompt(seed, 60)]));
                after_requests(&stored(), [with_system(60, greedy(&texts[0], 4))], with_system(70, asking(&texts[1])))
            },
            &[("system_changed", 50, 111, 50)],
        ),
        (
            "another system message that begins alike",
            || {
                let texts = [("Q", 2), ("R", 3)].map(|(first, seed)| joined(&[&text('A', 1, 8), first, &prompt(seed, 60)]));
                after_requests(&stored(), [with_system(60, greedy(&texts[0], 4))], with_system(60, asking(&texts[1])))
            },
            &[("system_changed", 0, 69, 8)],
        ),
        (
            "another message of the user",
            || {
                let texts = [("Q", 2), ("R", 3)].map(|(first, seed)| joined(&[&text('A', 1, 50), first, &prompt(seed, 60)]));
                after_requests(&stored(), [with_system(40, greedy(&texts[0], 4))], with_system(40, asking(&texts[1])))
            },
            &[("differs", 50, 111, 50)],
        ),
        (
            "a system message where there was none",
            || {
                let texts = [("Q", 2), ("R", 3)].map(|(first, seed)| joined(&[&text('A', 1, 50), first, &prompt(seed, 60)]));
                after_requests(&stored(), [greedy(&texts[0], 4)], with_system(70, asking(&texts[1])))
            },
            &[("system_changed", 50, 111, 50)],
        ),
        (
            "with other adapters",
            || {
                let engine =
                    start_with(Limits { max_host_cache_bytes: STORE, ..limits(2, 4096) }, |runner| runner.with_adapters(&[0.0]))
                        .0;
                after_requests(&engine, [greedy(&text('A', 1, 100), 4)], adapted(&[(0, 1.0)], asking(&text('A', 1, 100))))
            },
            &[("other_adapters", 0, 100, 0)],
        ),
        (
            "with another scale",
            || {
                let engine =
                    start_with(Limits { max_host_cache_bytes: STORE, ..limits(2, 4096) }, |runner| runner.with_adapters(&[0.0]))
                        .0;
                let earlier = adapted(&[(0, 0.5)], greedy(&text('A', 1, 100), 4));
                after_requests(&engine, [earlier], adapted(&[(0, 1.0)], asking(&joined(&[&text('A', 1, 60), &text('Q', 2, 40)]))))
            },
            &[("other_adapters", 0, 100, 0)],
        ),
        (
            "further with other adapters",
            || {
                let engine =
                    start_with(Limits { max_host_cache_bytes: STORE, ..limits(2, 4096) }, |runner| runner.with_adapters(&[0.0]))
                        .0;
                let own = adapted(&[(0, 1.0)], greedy(&joined(&[&text('A', 1, 30), &text('Q', 2, 40)]), 1));
                after_requests(&engine, [own, greedy(&text('A', 1, 100), 4)], adapted(&[(0, 1.0)], asking(&text('A', 1, 100))))
            },
            &[("other_adapters", 30, 100, 30)],
        ),
        (
            "no cache wanted",
            || {
                after_requests(
                    &stored(),
                    [greedy(&text('A', 1, 100), 4)],
                    Request { uses_cache: false, ..asking(&text('A', 1, 100)) },
                )
            },
            &[("cache_unused", 0, 100, 0)],
        ),
        // feature: prompt_logprobs
        (
            "log-probabilities of the prompt",
            || {
                let last = Request { prompt_logprobs: Some(0), ..asking(&text('A', 1, 100)) };
                after_requests(&stored(), [greedy(&text('A', 1, 100), 4)], last)
            },
            &[("cache_unused", 0, 100, 0)],
        ),
        (
            "pushed out of the pool",
            || {
                let engine = start(limits(1, 256)).0;
                after_requests(
                    &engine,
                    [greedy(&text('A', 1, 100), 4), greedy(&text('B', 2, 250), 4)],
                    asking(&text('A', 1, 100)),
                )
            },
            &[("evicted", 0, 100, 0)],
        ),
        (
            "pushed out, and edited",
            || {
                let engine = start(limits(1, 256)).0;
                let last = asking(&joined(&[&text('A', 1, 60), &text('Q', 3, 30)]));
                after_requests(&engine, [greedy(&text('A', 1, 100), 4), greedy(&text('B', 2, 250), 4)], last)
            },
            &[("evicted", 0, 60, 0), ("differs", 60, 90, 60)],
        ),
        (
            "pushed out, and more",
            || {
                let engine = start(limits(1, 256)).0;
                let last = asking(&joined(&[&text('A', 1, 100), &text('Q', 3, 30)]));
                after_requests(&engine, [greedy(&text('A', 1, 100), 1), greedy(&text('B', 2, 250), 4)], last)
            },
            &[("evicted", 0, 100, 0), ("new", 100, 130, 100)],
        ),
        (
            "erased",
            || {
                let engine = stored();
                run(&engine, Request { slot: Some(1), ..greedy(&text('A', 1, 100), 4) });
                assert_eq!(engine.erase_slot(1).unwrap(), Some(103));
                explained(&engine, asking(&text('A', 1, 100)))
            },
            &[("evicted", 0, 100, 0)],
        ),
        (
            "failed before it was computed",
            || {
                let (engine, control) = start_with_host_cache(2, 4096);
                control.fail(Some(FailureMode::All));
                assert!(collect(engine.submit(greedy(&text('A', 1, 100), 4), None).unwrap()).is_err());
                control.fail(None);
                explained(&engine, asking(&text('A', 1, 100)))
            },
            &[("unfinished", 0, 100, 0)],
        ),
        (
            "failed after it was computed",
            || {
                let (engine, control) = start_with_host_cache(2, 4096);
                control.allow(Some(3));
                let stream = engine.submit(greedy(&text('A', 1, 100), 40), None).unwrap();
                wait_until(&engine, |stats| stats.n_decodes == 3);
                control.fail(Some(FailureMode::All));
                control.allow(None);
                assert!(collect(stream).is_err());
                control.fail(None);
                explained(&engine, asking(&text('A', 1, 100)))
            },
            &[("evicted", 0, 100, 0)],
        ),
        (
            "cancelled on the way",
            || {
                let (engine, control) = start(Limits { n_ubatch: 64, ..limits(1, 4096) });
                control.allow(Some(2));
                let stream = engine.submit(greedy(&text('A', 1, 2000), 4), None).unwrap();
                wait_until(&engine, |stats| stats.n_decodes == 2);
                drop(stream);
                // The decode that was about to run.
                control.allow(None);
                wait_until(&engine, is_idle);
                let explanation = explained(&engine, asking(&text('A', 1, 2000)));
                assert!((64..=192).contains(&explanation.n_found), "{explanation:?}");
                Explanation {
                    computed: explanation
                        .computed
                        .into_iter()
                        .map(|one| ComputedRun { range: 0..one.range.end, position: 0, ..one })
                        .collect(),
                    ..explanation
                }
            },
            &[("unfinished", 0, 2000, 0)],
        ),
        (
            "waited for",
            || {
                let (engine, control) = start_with_host_cache(2, 4096);
                let explanation = together(&engine, &control, [greedy(&text('A', 1, 100), 1), asking(&text('A', 1, 100))]);
                assert_eq!(explanation.n_awaited, 99);
                explanation
            },
            &[("awaited", 99, 100, 99)],
        ),
        (
            "waited for, and edited",
            || {
                let (engine, control) = start_with_host_cache(2, 4096);
                let edited = joined(&[&text('A', 1, 60), &text('Q', 2, 60)]);
                let explanation = together(&engine, &control, [greedy(&text('A', 1, 100), 1), asking(&edited)]);
                assert_eq!(explanation.n_awaited, 60);
                explanation
            },
            &[("differs", 60, 120, 60)],
        ),
        (
            "computed by another, and never to be had",
            || {
                let (engine, control) = recurrent();
                let edited = joined(&[&text('A', 1, 200), &text('Q', 2, 60)]);
                together(&engine, &control, [greedy(&text('A', 1, 400), 1), asking(&edited)])
            },
            &[("computing", 0, 200, 0), ("differs", 200, 260, 200)],
        ),
        (
            "a state goes on",
            || {
                let (engine, text) = (recurrent().0, text('A', 1, 100));
                let branch = run(&engine, greedy(&text, 4)).remove(0);
                let mut tokens = tokens_of(&text);
                tokens.extend(branch.tokens.iter().chain(&tokens_of("ZZZZ")));
                explained(&engine, Request { prompt: Prompt::from_tokens(tokens), ..asking("") })
            },
            &[("new", 103, 108, 104)],
        ),
        (
            "a state that cannot be cut",
            || {
                let (engine, edited) = (recurrent().0, joined(&[&text('A', 1, 60), &text('Q', 2, 60)]));
                after_requests(&engine, [greedy(&text('A', 1, 100), 4)], asking(&edited))
            },
            &[("no_checkpoint", 0, 60, 0), ("differs", 60, 120, 60)],
        ),
        (
            "a checkpoint before the edit",
            || {
                let (engine, edited) = (recurrent().0, joined(&[&text('A', 1, 60), &text('Q', 2, 60)]));
                let earlier = Request { checkpoints_at: vec![40], ..greedy(&text('A', 1, 100), 4) };
                after_requests(&engine, [earlier], asking(&edited))
            },
            &[("no_checkpoint", 40, 60, 40), ("differs", 60, 120, 60)],
        ),
        (
            "a checkpoint at the edit",
            || {
                let (engine, edited) = (recurrent().0, joined(&[&text('A', 1, 60), &text('Q', 2, 60)]));
                let earlier = Request { checkpoints_at: vec![60], ..greedy(&text('A', 1, 100), 4) };
                after_requests(&engine, [earlier], asking(&edited))
            },
            &[("differs", 60, 120, 60)],
        ),
        (
            "a state that was pushed out",
            || {
                let limits = Limits { n_seq_max: 4, ..limits(1, 4096) };
                let engine = start_with(limits, |runner| runner.with_memory(MemoryKind { forks: ForkRule::AtEnd, ..MEMORY })).0;
                let others = (2..9).map(|seed| greedy(&text('B', seed, 60), 4));
                after_requests(
                    &engine,
                    [greedy(&text('A', 1, 100), 1)].into_iter().chain(others),
                    asking(&joined(&[&text('A', 1, 100), "ZZZ"])),
                )
            },
            &[("evicted", 0, 100, 0), ("new", 100, 103, 100)],
        ),
        (
            "another picture",
            || {
                let with_image = |id| Request { prompt: picture_of(id, &text('A', 1, 40), "QQQQ"), ..asking("") };
                after_requests(&stored(), [with_image(-1000)], with_image(-2000))
            },
            &[("media", 40, 84, 40)],
        ),
        (
            "the same picture",
            || {
                let ending_with = |end| Request { prompt: picture_of(-1000, &text('A', 1, 40), end), ..asking("") };
                after_requests(&stored(), [ending_with("QQQQ")], ending_with("RRRR"))
            },
            &[("differs", 80, 84, 80)],
        ),
        // feature: self_extend
        (
            "grouped for another",
            || {
                let grouping = Some(Grouping { n: 4, width: 32, n_batch: 50 });
                let engine = start(Limits { grouping, max_host_cache_bytes: STORE, ..limits(2, 1024) }).0;
                let explanation = after_requests(&engine, [greedy(&text('A', 1, 200), 4)], asking(&text('A', 1, 200)));
                Explanation {
                    computed: explanation
                        .computed
                        .into_iter()
                        .map(|one| ComputedRun { range: 0..one.range.end, position: 0, ..one })
                        .collect(),
                    ..explanation
                }
            },
            &[("grouped", 0, 200, 0)],
        ),
        (
            "not to be brought back",
            || {
                let (engine, control) = start_with_host_cache(2, 1024);
                run(&engine, greedy(&text('A', 1, 200), 1));
                wait_until(&engine, |stats| stats.n_cells_used == 0);
                control.fail_states(true);
                explained(&engine, asking(&text('A', 1, 200)))
            },
            &[("not_restored", 0, 199, 0), ("last_token", 199, 200, 199)],
        ),
    ]
}

#[test]
fn each_planted_cause_is_reported() {
    let cases = cases();
    assert!(cases.len() >= 50, "{} causes are planted", cases.len());
    let mut wrong = Vec::new();
    for (name, planted, expected) in cases {
        let explanation = planted();
        let named: Vec<_> =
            explanation.computed.iter().map(|one| (one.cause.name(), one.range.start, one.range.end, one.position)).collect();
        if named != expected {
            wrong.push(format!("{name}: {named:?} instead of {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_window_that_has_moved_on_is_reported() {
    let (engine, _) = windowed(32, Some(0));
    run(&engine, greedy(&text('A', 1, 200), 4));
    let explanation = explained(&engine, asking(&joined(&[&text('A', 1, 100), &text('Q', 2, 60)])));
    let named: Vec<_> = explanation.computed.iter().map(|one| (one.cause.name(), one.range.clone())).collect();
    assert_eq!(named, [("window", 0..100), ("differs", 100..160)]);
}

#[test]
fn a_cause_is_reported_with_its_position_and_both_texts() {
    let engine = stored();
    run(&engine, owned("me", greedy(&joined(&[&text('A', 1, 50), "0123456789", &prompt(2, 60)]), 4)));
    let explanation = explained(&engine, owned("me", asking(&joined(&[&text('A', 1, 50), "01234x6789", &prompt(2, 60)]))));
    assert_eq!((explanation.request_id, explanation.n_prompt, explanation.n_found, explanation.n_awaited), (1, 120, 55, 0));
    let one = &explanation.computed[0];
    assert_eq!((one.byte_offset, one.character_offset, one.position), (55, 55, 55));
    assert!(one.text_before.ends_with("01234") && one.text_at.starts_with("x6789"), "{one:?}");
    let earlier = one.earlier.as_ref().expect("it is the same owner's");
    assert_eq!((earlier.request_id, earlier.is_in_answer), (0, false));
    assert!(earlier.text.starts_with("56789"), "{earlier:?}");
    assert!(one.text_at.len() <= 24 && one.text_before.len() <= 8, "what is shown is bounded");
}

#[test]
fn the_reason_and_age_of_an_eviction_are_reported() {
    let why = |explanation: &Explanation| {
        let run = &explanation.computed[0];
        assert_eq!(run.eviction.is_some(), run.cause == Cause::Evicted);
        run.eviction.filter(|(_, age)| *age < Duration::from_secs(60)).map(|(why, _)| why)
    };
    let all = cases();
    let planted = |name: &str| all.iter().find(|case| case.0 == name).expect("it is planted").1();
    assert_eq!(why(&planted("pushed out of the pool")), Some(EvictionCause::DeviceCache));
    assert_eq!(why(&planted("a state that was pushed out")), Some(EvictionCause::DeviceCache));
    assert_eq!(why(&planted("erased")), Some(EvictionCause::Erased));
    assert_eq!(why(&planted("failed after it was computed")), Some(EvictionCause::Failed));
    let (engine, _) = start(Limits { max_host_cache_bytes: Some(8_000), ..limits(1, 512) });
    let others = (2..9).map(|seed| greedy(&text('B', seed, 250), 4));
    let explanation =
        after_requests(&engine, [greedy(&text('A', 1, 200), 1)].into_iter().chain(others), asking(&text('A', 1, 200)));
    assert_eq!(why(&explanation), Some(EvictionCause::HostCache), "{explanation:?}");
}

#[test]
fn explanations_never_reveal_texts_of_other_owners() {
    let mut state = 11_u64;
    let mut chance = |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    // The texts of each owner consist of its own letters; beginnings and answers consist of digits and sampled tokens.
    let owners = [Some("a"), Some("b"), None];
    let letters = ['a', 'b', 'c'];
    for memory in [MEMORY, MemoryKind { forks: ForkRule::AtEnd, ..MEMORY }] {
        let limits = Limits { max_host_cache_bytes: Some(30_000), n_seq_max: 6, ..limits(2, 1024) };
        let (engine, _) = start_with(limits, move |runner| runner.with_memory(memory));
        let mut requests: Vec<(u64, usize)> = Vec::new();
        let mut n_explained = 0;
        for _ in 0..400 {
            let who = usize::try_from(chance(3)).unwrap();
            let n_shared = usize::try_from(chance(3) * 20).unwrap();
            let n_own = usize::try_from(1 + chance(120)).unwrap();
            let said: String =
                (0..n_own).map(|_| if chance(9) == 0 { letters[who] } else { letters[who].to_ascii_uppercase() }).collect();
            let prompt = joined(&[&"0123456789".repeat(6)[..n_shared], &said]);
            let request = Request { owner: owners[who].map(Into::into), ..asking(&prompt) };
            let explanation = explained(&engine, request);
            requests.push((explanation.request_id, who));
            let other = |text: &str| {
                text.chars().any(|c| c.is_ascii_alphabetic() && !c.eq_ignore_ascii_case(&letters[who]) && "abcABC".contains(c))
            };
            for one in &explanation.computed {
                assert!(!other(&one.text_before) && !other(&one.text_at), "{one:?}");
                let Some(earlier) = &one.earlier else { continue };
                n_explained += 1;
                assert_eq!(requests.iter().find(|request| request.0 == earlier.request_id).map(|request| request.1), Some(who));
                assert!(earlier.is_in_answer || !other(&earlier.text[..earlier.text.len().min(1)]), "{one:?}");
            }
        }
        assert!(n_explained > 20, "some requests were explained by earlier ones: {n_explained}");
    }
}

#[test]
fn explanations_do_not_depend_on_evicted_texts_of_other_owners() {
    let asked = joined(&[&text('A', 1, 60), &text('Q', 3, 60)]);
    for lost in [text('A', 1, 100), joined(&["{", &asked]), joined(&["Z>>", &asked[1..]]), asked.clone()] {
        for with_others in [false, true] {
            let engine = start(limits(1, 256)).0;
            let first = if with_others { lost.clone() } else { text('Y', 9, 100) };
            let earlier = [first, text('B', 2, 250)].map(|text| owned("a", greedy(&text, 4)));
            let explanation = after_requests(&engine, earlier, owned("b", asking(&asked)));
            assert_eq!(named(&explanation), [("never_seen", 0..120, 0)], "{lost}");
        }
    }
    // Repeats the prompt with its answer, while it runs, and with other adapters.
    let (engine, _) = start_with(limits(2, 512), |runner| runner.with_adapters(&[0.0]));
    let answered = run(&engine, owned("a", greedy(&text('A', 1, 100), 20))).remove(0);
    let asked = text('A', 1, 100);
    let adapted = owned("b", adapted(&[(0, 1.0)], asking(&asked)));
    assert_eq!(named(&explained(&engine, adapted)), [("never_seen", 0..100, 0)]);
    let mut tokens = tokens_of(&asked);
    tokens.extend(&answered.tokens[..10]);
    tokens.extend(tokens_of("QQQQ"));
    let explanation = explained(&engine, owned("b", Request { prompt: Prompt::from_tokens(tokens), ..asking("") }));
    let n_found = explanation.n_found;
    assert_eq!(named(&explanation), [("differs", n_found..114, n_found)], "a cached prefix reveals only its own end");
}

/// Cause, run and position of each.
fn named(explanation: &Explanation) -> Vec<(&'static str, std::ops::Range<u32>, u32)> {
    explanation.computed.iter().map(|one| (one.cause.name(), one.range.clone(), one.position)).collect()
}

#[test]
fn texts_share_the_cells_before_an_activated_adapter_applies() {
    let (engine, _) = start_with(limits(1, 256), |runner| runner.with_adapters(&[0.0]).invoked_by(0, &tokens_of("#!")));
    let invoking = |shared: usize, rest: u64| joined(&[&text('A', 1, 100)[..shared], "#!", &prompt(rest, 30)]);
    run(&engine, adapted(&[(0, 1.0)], greedy(&invoking(60, 2), 1)));
    let explanation = explained(&engine, adapted(&[(0, 1.0)], asking(&invoking(80, 3))));
    assert_eq!(named(&explanation), [("differs", 60..112, 60)]);
    // The model's own text continues with the tokens that the adapter has read.
    let explanation = explained(&engine, asking(&invoking(60, 2)));
    assert_eq!(named(&explanation), [("other_adapters", 60..92, 60)]);
    // Evicted, it is known from the text with another adapter schedule.
    run(&engine, greedy(&text('B', 2, 250), 4));
    let explanation = explained(&engine, adapted(&[(0, 1.0)], asking(&invoking(50, 4))));
    assert_eq!(named(&explanation), [("evicted", 0..50, 0), ("differs", 50..82, 50)]);
}

#[test]
fn only_the_first_branch_of_a_request_is_explained() {
    let engine = stored();
    let explanations = |request| {
        let branches = run(&engine, request);
        branches.iter().map(|branch| branch.finished.explanation.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(explanations(greedy(&prompt(1, 50), 2)), [false]);
    assert_eq!(explanations(Request { explains_cache: true, ..drawn(&prompt(1, 50), 3, 2) }), [true, false, false]);
}

#[test]
fn an_explanation_is_available_before_any_token() {
    let (engine, control) = start_with_host_cache(1, 4096);
    let shared = text('A', 1, 50);
    run(&engine, greedy(&joined(&[&shared, &prompt(2, 50)]), 4));
    control.allow(Some(0));
    let before = engine.submit(greedy(&text('B', 3, 40), 60), None).unwrap();
    control.hold();
    let edited = joined(&[&shared, "QQ", &prompt(4, 40)]);
    let completions = engine.submit(Request { max_tokens: Some(3), ..asking(&edited) }, None).unwrap();
    step(&engine, &control);
    assert_eq!(completions.explanation(), None, "it waits for the slot");
    step_until(&engine, &control, |_| completions.explanation().is_some());
    let explanation = completions.explanation().unwrap();
    assert!(!completions.is_ready(), "nothing is computed yet");
    assert_eq!(named(&explanation), [("differs", 50..92, 50)]);
    assert_eq!(
        (explanation.computed[0].byte_offset, explanation.computed[0].text_at.starts_with("QQ")),
        (50, true),
        "with its place"
    );
    assert_eq!(before.explanation(), None, "it was not asked for");
    control.allow(None);
    assert_eq!(explanation_at_end(completions), explanation);
}

#[test]
fn a_preemption_does_not_change_the_explanation() {
    let (engine, control) = start_with_host_cache(2, 200);
    control.allow(Some(0));
    let completions = engine.submit(Request { max_tokens: Some(40), ..asking(&text('A', 1, 60)) }, None).unwrap();
    step_until(&engine, &control, |stats| stats.n_predicted >= 5);
    let explanation = completions.explanation().expect("it runs");
    assert_eq!(named(&explanation), [("never_seen", 0..60, 0)]);
    let urgent: Vec<Completions> =
        (0..2).map(|i| engine.submit(Request { priority: 9, ..greedy(&prompt(5 + i, 60), 30) }, None).unwrap()).collect();
    step_until(&engine, &control, |stats| stats.n_preempted > 0);
    assert_eq!(completions.explanation().as_ref(), Some(&explanation));
    control.allow(None);
    assert_eq!(explanation_at_end(completions), explanation);
    assert!(urgent.into_iter().all(|stream| collect(stream).is_ok()));
}

// feature: beams
#[test]
fn beam_searches_and_branches_of_several_requests_are_explained_while_they_run() {
    let search = BeamSearch { width: 3, length_penalty: 1.0, is_stochastic: false };
    let (engine, control) = start_with(limits(4, 4096), FakeRunner::without_end);
    let searching = Request { diversity: Diversity::Beams(search), n: 3, max_tokens: Some(8), ..asking(&text('A', 1, 60)) };
    let suffixed = |suffix| Request { suffix: tokens_of(suffix), max_tokens: Some(8), ..asking(&text('B', 2, 60)) };
    for requests in [vec![searching], vec![suffixed("red?"), suffixed("blue")]] {
        control.allow(Some(0));
        let completions = engine.submit_branches(requests, None).unwrap();
        wait_until(&engine, |_| completions.explanation().is_some());
        let explanation = completions.explanation().unwrap();
        assert_eq!(named(&explanation), [("never_seen", 0..explanation.n_prompt, 0)]);
        step(&engine, &control);
        step(&engine, &control);
        assert_eq!(completions.explanation().as_ref(), Some(&explanation));
        control.allow(None);
        assert_eq!(explanation_at_end(completions), explanation);
    }
}

#[test]
fn a_failed_reload_is_explained_while_the_rest_is_computed() {
    let (engine, control) = start_with_host_cache(2, 1024);
    run(&engine, greedy(&text('A', 1, 200), 1));
    wait_until(&engine, |stats| stats.n_cells_used == 0);
    control.fail_states(true);
    control.allow(Some(0));
    let completions = engine.submit(asking(&text('A', 1, 200)), None).unwrap();
    wait_until(&engine, |_| completions.explanation().is_some_and(|explanation| explanation.n_found == 0));
    assert!(!completions.is_ready());
    let explanation = completions.explanation().unwrap();
    assert_eq!(named(&explanation), [("not_restored", 0..199, 0), ("last_token", 199..200, 199)]);
    control.allow(None);
    assert_eq!(explanation_at_end(completions), explanation);
}

/// Creates a group whose prompt is `n` times the token 1.
fn group(id: u64, n: usize) -> RequestGroup {
    test_group(id, Request::new(Prompt::from_tokens(vec![1; n]), 0)).0
}

fn key(group_id: u64, member: u32) -> BranchKey {
    BranchKey { group_id: GroupId(group_id), member: MemberIndex(member) }
}

#[test]
fn the_history_keeps_the_latest_text_of_a_branch() {
    let drawn = |own: &[Token]| {
        let mut tokens = Tokens::new(group(0, 2).prompt);
        for &token in own {
            tokens.push(token);
        }
        tokens
    };
    let mut history = History::default();
    history.on_start(&group(0, 2));
    for (member, own) in [(0, &[5, 6][..]), (1, &[7]), (2, &[8, 9]), (0, &[5, 6, 10]), (1, &[7, 11, 12])] {
        history.update_tokens(key(0, member), &drawn(own), 2);
    }
    let asking = |own: &[Token]| {
        let mut group = group(1, 2);
        group.prompt = drawn(own).first_with(u32::try_from(2 + own.len()).unwrap(), &[]);
        history.lookup(&group).nearest.map(|nearest| nearest.n_common)
    };
    for own in [&[5, 6, 10][..], &[7, 11, 12], &[8, 9]] {
        assert_eq!(asking(own), Some(2 + u32::try_from(own.len()).unwrap()), "{own:?}");
    }
    assert_eq!(asking(&[5, 6, 11]), Some(4));
}

#[test]
fn the_history_is_bounded() {
    let mut history = History::default();
    for request_id in 0..2 * MAX_HISTORY_REQUESTS as u64 {
        history.on_start(&group(request_id, 10));
    }
    assert_eq!(history.size(), (10 * MAX_HISTORY_REQUESTS, MAX_HISTORY_REQUESTS));
    let mut drawn = Tokens::new(group(0, 10).prompt);
    (0..90).for_each(|_| drawn.push(1));
    let last = 2 * MAX_HISTORY_REQUESTS as u64 - 1;
    for member in 0..100 {
        history.update_tokens(key(last, member), &drawn, 10);
    }
    let n_drawn = history.size().0 - 10 * MAX_HISTORY_REQUESTS;
    assert!((9_000..11_250).contains(&n_drawn), "{n_drawn} for 9,000 that were drawn");
    for request_id in 10_000..10_008 {
        history.on_start(&group(request_id, MAX_HISTORY_TOKENS / 4));
    }
    assert_eq!(history.size(), (MAX_HISTORY_TOKENS, 4));
    history.on_start(&group(20_000, MAX_HISTORY_TOKENS + 1));
    assert_eq!(history.size(), (0, 0), "what is longer than all that is remembered is not");
    history.add_evictions(
        (0..10_000).map(|_| crate::cache::EvictedRun { group_id: 0, range: 0..1, cause: EvictionCause::DeviceCache }),
        std::time::Instant::now(),
    );
    assert_eq!(history.n_evicted(), crate::cache::MAX_EVICTED_RUNS);
}
