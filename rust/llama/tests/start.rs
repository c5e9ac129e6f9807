//! The engine over the demo model: what `FakeRunner` cannot prove.

use super::demo;
use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::error::Error;
use crate::llama::start;
use crate::request::{Event, FinishReason, Finished, Prompt, Request};

/// One thread: two that share a core with other tests wait for each other for most of the time.
fn one_thread() -> EngineConfig {
    EngineConfig { n_threads: Some(1), ..EngineConfig::default() }
}

#[test]
fn a_pool_beyond_the_memory_is_refused_before_it_is_made() {
    let config = EngineConfig { n_ctx: Some(2_000_000_000), ..one_thread() };
    match start(&demo(), &config) {
        Err(Error::InvalidConfig { param: "n_ctx", message }) => assert!(message.contains("3072000000000 bytes"), "{message}"),
        other => panic!("{:?}", other.map(|_| "3 TB were granted")),
    }
}

/// Every branch's text and end, in order of index.
fn run(engine: &Engine, request: Request) -> Vec<(String, Finished)> {
    let mut texts = vec![String::new(); request.n as usize];
    let mut ends = vec![None; request.n as usize];
    for event in engine.submit(request, None).expect("the request is valid") {
        match event.expect("nothing fails") {
            Event::Token(token) => texts[token.index as usize] += &token.text,
            Event::Finished(end) => {
                let index = end.index as usize;
                assert_eq!(ends[index].replace(end), None, "branch {index} ended twice");
            }
            Event::Progress(_) | Event::PromptLogprobs(_) => {}
        }
    }
    let ends = ends.into_iter().map(|end| end.expect("every branch ends"));
    texts.into_iter().zip(ends).collect()
}

fn request(n: u32, max_tokens: Option<u32>) -> Request {
    let prompt = Prompt::from_tokens(demo().tokenize(b"Once upon a time, there was a little cow", true, true).unwrap());
    Request { n, max_tokens, ..Request::new(prompt, 7) }
}

#[test]
fn eight_branches_compute_their_prompt_once() {
    let engine = start(&demo(), &one_thread()).expect("the demo model runs");
    let request = request(8, Some(40));
    let n_prompt = request.prompt.n_tokens();
    let branches = run(&engine, request);
    let n_computed: u32 = branches.iter().map(|(_, end)| end.usage.n_computed).sum();
    assert_eq!(n_computed as usize, n_prompt);
    for (text, end) in &branches {
        assert!(text.split(' ').count() > 10 && text.is_ascii(), "{text:?} is no story");
        assert!(end.usage.n_predicted <= 40);
    }
    assert!(branches.iter().any(|(text, _)| *text != branches[0].0), "branches have seeds of their own");
}

#[test]
fn branches_beyond_the_slots_compute_no_prompt() {
    let config = EngineConfig { n_slots: Some(4), n_ctx: Some(4096), ..one_thread() };
    let engine = start(&demo(), &config).expect("the demo model runs");
    let request = request(32, Some(20));
    let n_prompt = request.prompt.n_tokens() as u64;
    let branches = run(&engine, request);
    assert_eq!(branches.len(), 32);
    assert_eq!(engine.stats().n_computed, n_prompt);
}

#[test]
fn eight_sequences_that_fill_a_small_pool_all_end_well() {
    let config = EngineConfig { n_ctx: Some(256), ..one_thread() };
    let engine = start(&demo(), &config).expect("the demo model runs");
    let mut request = request(8, None);
    request.sampling.ignore_eos = true;
    let n_prompt = request.prompt.n_tokens();
    for (_, end) in run(&engine, request) {
        assert_eq!(end.reason, FinishReason::ContextFull);
        assert_eq!(end.usage.n_predicted as usize, 256 - n_prompt);
    }
    assert!(engine.stats().n_preempted > 0, "eight times the pool cannot fit at once");
}
