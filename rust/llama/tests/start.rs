//! Tests the engine with the demo model, where `FakeRunner` is not sufficient.

use super::demo;
use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::error::Error;
use crate::llama::start;
use crate::request::{Event, FinishReason, Finished, Prompt, Request};

/// Uses one thread: two that share a core with other tests would mostly wait for each other.
fn one_thread() -> EngineConfig {
    EngineConfig { n_threads: Some(1), ..EngineConfig::default() }
}

#[test]
fn a_device_cache_beyond_the_free_memory_is_rejected() {
    let config = EngineConfig { n_ctx: Some(2_000_000_000), ..one_thread() };
    match start(&demo(), &config) {
        Err(Error::InvalidConfig { param: "n_ctx", message }) => assert!(message.contains("3072000000000 bytes"), "{message}"),
        other => panic!("{:?}", other.map(|_| "3 TB were granted")),
    }
}

/// Returns every branch's text and result, in order of index.
fn run(engine: &Engine, request: Request) -> Vec<(String, Finished)> {
    let mut texts = vec![String::new(); request.n as usize];
    let mut results = vec![None; request.n as usize];
    for event in engine.submit(request, None).expect("the request is valid") {
        match event.expect("nothing fails") {
            Event::Token(token) => texts[token.index as usize] += &token.text,
            Event::Finished(finished) => {
                let index = finished.index as usize;
                assert_eq!(results[index].replace(finished), None, "branch {index} finished twice");
            }
            Event::Progress(_) | Event::PromptLogprobs(_) => {}
        }
    }
    let results = results.into_iter().map(|result| result.expect("every branch finishes"));
    texts.into_iter().zip(results).collect()
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
    let n_computed: u32 = branches.iter().map(|(_, finished)| finished.usage.n_prompt_computed).sum();
    assert_eq!(n_computed as usize, n_prompt);
    for (text, finished) in &branches {
        assert!(text.split(' ').count() > 10 && text.is_ascii(), "{text:?} is not a story");
        assert!(finished.usage.n_predicted <= 40);
    }
    assert!(branches.iter().any(|(text, _)| *text != branches[0].0), "branches have different seeds");
}

#[test]
fn branches_that_wait_for_slots_do_not_recompute_the_prompt() {
    let config = EngineConfig { n_slots: Some(4), n_ctx: Some(4096), ..one_thread() };
    let engine = start(&demo(), &config).expect("the demo model runs");
    let request = request(32, Some(20));
    let n_prompt = request.prompt.n_tokens() as u64;
    let branches = run(&engine, request);
    assert_eq!(branches.len(), 32);
    assert_eq!(engine.stats().n_computed, n_prompt);
}

#[test]
fn eight_sequences_that_outgrow_the_cache_all_finish() {
    let config = EngineConfig { n_ctx: Some(256), ..one_thread() };
    let engine = start(&demo(), &config).expect("the demo model runs");
    let mut request = request(8, None);
    request.sampling.ignore_eos = true;
    let n_prompt = request.prompt.n_tokens();
    for (_, finished) in run(&engine, request) {
        assert_eq!(finished.reason, FinishReason::ContextFull);
        assert_eq!(finished.usage.n_predicted as usize, 256 - n_prompt);
    }
    assert!(engine.stats().n_preempted > 0, "eight full sequences do not fit into the cache");
}
