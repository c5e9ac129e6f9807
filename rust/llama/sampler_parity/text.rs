//! Generates texts with the demo model, and runs llama.cpp's chain on the same logits with the same seed and prompt.

use super::llama_sampler::LlamaSampler;
use super::{N_CTX, demo_token_strings};
use crate::config::EngineConfig;
use crate::engine::runner::{KvSeqId, Runner};
use crate::llama::tests::{demo, resolve_llama_cpp};
use crate::llama::{LlamaRunner, context::batch::rows_of};
use crate::request::{Dry, Mirostat, SamplerKind, SamplingParams, Token};
use crate::sampling::Sampler;

const N_TOKENS: u32 = 120;

/// Returns the tokens that our sampler generates after a prompt, each of which llama.cpp's chain must select too.
fn text_of(runner: &mut LlamaRunner, params: &SamplingParams, seed: u32) -> Vec<Token> {
    let token_strings = demo_token_strings();
    let prompt = demo().tokenize(b"Once upon a time, there was a little girl who loved to", true, true).unwrap();
    let mut ours = Sampler::new(params, seed, &token_strings, N_CTX);
    let expected_chain = LlamaSampler::server_chain(runner.n_vocab(), params, seed, token_strings.end_tokens());
    ours.accept_prompt(prompt.as_slice());
    expected_chain.accept_all(&prompt);
    let (id, mut position) = (KvSeqId(0), 0);
    let (mut planned, mut generated) = (prompt, Vec::new());
    for _ in 0..N_TOKENS {
        runner.decode(&rows_of(id, position, &planned)).expect("the plan is valid");
        let logits = runner.logits(planned.len() - 1);
        let token = ours.sample(logits);
        assert_eq!(Some(token), expected_chain.apply(logits).selected, "after {generated:?}, seed {seed}, {params:?}");
        ours.accept(token);
        expected_chain.accept(token);
        generated.push(token);
        position += u32::try_from(planned.len()).unwrap();
        planned = vec![token];
    }
    runner.drop_sequence(id);
    generated
}

#[test]
fn the_same_seed_and_prompt_generate_the_text_of_llama_cpps_chain() {
    let default = SamplingParams::default();
    let dry = Dry { multiplier: 0.8, allowed_length: 1, penalty_last_n: -1, ..Dry::default() };
    let all_on = SamplingParams {
        samplers: SamplerKind::DEFAULT.to_vec(),
        dynatemp_range: 0.5,
        typical_p: 0.97,
        xtc_probability: 0.5,
        repeat_penalty: 1.1,
        frequency_penalty: 0.05,
        dry,
        ..default.clone()
    };
    let kind_of = |letter: char| SamplerKind::parse(&letter.to_string()).expect("llama.cpp's letters");
    let chain_of = |letters: &str| letters.chars().map(kind_of).collect();
    let cases = [
        ("llama-server's own parameters", default.clone()),
        ("every sampler of the chain", all_on.clone()),
        ("another order", SamplingParams { samplers: chain_of("txmpykde"), ..all_on.clone() }),
        ("the whole vocabulary", SamplingParams { samplers: chain_of("t"), ..all_on.clone() }),
        ("deviations", SamplingParams { samplers: chain_of("edskt"), top_n_sigma: 1.5, ..all_on.clone() }),
        ("mirostat", SamplingParams { mirostat: Mirostat::V1, ..default.clone() }),
        ("mirostat 2", SamplingParams { mirostat: Mirostat::V2, ..default.clone() }),
        ("adaptive", SamplingParams { samplers: chain_of("ma"), adaptive_target: 0.4, ..default.clone() }),
        ("infill", SamplingParams { samplers: chain_of("kpi"), ..default.clone() }),
        ("no temperature", SamplingParams { temperature: 0.0, ..all_on }),
    ];
    let config = EngineConfig { n_slots: Some(1), n_ctx: Some(256), n_threads: Some(1), ..EngineConfig::default() };
    let config = resolve_llama_cpp(&demo(), &config).expect("the demo model is small");
    let mut runner = LlamaRunner::new(demo(), &config).expect("the demo model runs");
    let mut texts = Vec::new();
    for (name, params) in &cases {
        for seed in [1, 42] {
            texts.push((name, text_of(&mut runner, params, seed)));
        }
    }
    // Every parameter matters: all cases generate different texts.
    let greedy = |name: &&str| *name == "no temperature" || *name == "infill";
    let differ = texts.iter().filter(|(name, _)| !greedy(name));
    let mut distinct: Vec<_> = differ.clone().map(|(_, text)| text).collect();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), differ.count());
}
