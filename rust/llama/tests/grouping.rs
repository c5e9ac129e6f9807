//! Texts that outgrow what the demo model was trained for, grouped as llama.cpp's `llama-completion` does it.

use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use super::runner::try_start;
use super::tiny::{Kind, write_tiny};
use super::{demo, demo_path, load};
use crate::config::{EngineConfig, Grouping, KvType};
use crate::engine::runner::{Runner, SequenceId};
use crate::error::Error;
use crate::llama::batch::rows_of;
use crate::llama::{LlamaRunner, Model, start};
use crate::request::{Event, Prompt, Request, SamplingParams, Token};

/// As for logits of one text in two shapes of batch.
const TOLERANCE: f32 = 0.25;

/// The first `n` tokens of a story that never repeats itself.
fn story(n: usize) -> Vec<Token> {
    let (who, what) = (["cow", "fox", "girl", "king", "bird"], ["sea", "moon", "farm"]);
    let sentence = |i: usize| format!("The {} number {i} wanted to see the {}. ", who[i % 5], what[i % 3]);
    let text: String = (0..n / 4).map(sentence).collect();
    let tokens = demo().tokenize(text.as_bytes(), true, true);
    assert!(tokens.len() >= n, "{} tokens", tokens.len());
    tokens[..n].to_vec()
}

fn most_likely(logits: &[f32], is_allowed: impl Fn(Token) -> bool) -> Token {
    let allowed = (0..logits.len()).filter(|&token| is_allowed(Token::try_from(token).expect("a token")));
    let best = allowed.max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("there are tokens");
    Token::try_from(best).expect("a token")
}

/// The loop of `llama-completion` in a bare context of llama.cpp's with its own kernels: the `n` most likely tokens that go on and
/// end nothing, and the logits that each was drawn from.
fn theirs(prompt: &[Token], Grouping { n: ga_n, width: ga_w, n_batch }: Grouping, n: usize) -> Vec<(Token, Vec<f32>)> {
    let model = load(&demo_path()).expect("the demo model loads");
    let (ga_n, ga_w) = (ga_n.cast_signed(), ga_w.cast_signed());
    // SAFETY: the model outlives the context, which is freed here; each batch has as many tokens as it says, at positions that
    // follow each other.
    unsafe {
        let mut params = sys::llama_context_default_params();
        (params.n_ctx, params.n_batch, params.n_ubatch, params.n_threads) = (4096, n_batch, n_batch.min(512), 1);
        let context = sys::llama_init_from_model(model.as_ptr(), params);
        assert!(!context.is_null());
        let memory = sys::llama_get_memory(context);
        let (mut n_past, mut ga_i) = (0, 0);
        let mut drawn: Vec<(Token, Vec<f32>)> = Vec::new();
        let mut waiting = prompt.to_vec();
        while drawn.len() < n {
            let mut embd: Vec<Token> = waiting.drain(..waiting.len().min(n_batch as usize)).collect();
            while n_past >= ga_i + ga_w {
                let ib = (ga_n * ga_i) / ga_w;
                let bd = (ga_w / ga_n) * (ga_n - 1);
                let dd = (ga_w / ga_n) - ib * bd - ga_w;
                sys::llama_memory_seq_add(memory, 0, ga_i, n_past, ib * bd);
                sys::llama_memory_seq_div(memory, 0, ga_i + ib * bd, ga_i + ib * bd + ga_w, ga_n);
                sys::llama_memory_seq_add(memory, 0, ga_i + ib * bd + ga_w, n_past + ib * bd, dd);
                n_past -= bd;
                ga_i += ga_w / ga_n;
            }
            let n_eval = i32::try_from(embd.len()).expect("small");
            assert_eq!(sys::llama_decode(context, sys::llama_batch_get_one(embd.as_mut_ptr(), n_eval)), 0);
            n_past += n_eval;
            if waiting.is_empty() {
                let logits = std::slice::from_raw_parts(sys::llama_get_logits_ith(context, -1), model.n_vocab()).to_vec();
                let token = most_likely(&logits, |token| !model.is_end(token));
                waiting.push(token);
                drawn.push((token, logits));
            }
        }
        sys::llama_free(context);
        drawn
    }
}

fn config(grouping: Grouping) -> EngineConfig {
    EngineConfig {
        n_slots: Some(4),
        n_ctx: Some(4096),
        kv_unified: Some(true),
        n_batch: grouping.n_batch,
        grp_attn_n: grouping.n,
        grp_attn_w: grouping.width,
        n_threads: Some(1),
        ..EngineConfig::default()
    }
}

/// The `n` most likely tokens after `prompts`, all of them asked for at once.
fn ours(model: &Arc<Model>, config: &EngineConfig, prompts: &[&[Token]], n: u32) -> Vec<Vec<Token>> {
    let engine = start(model, config).expect("the demo model runs");
    let ends = model.end_tokens().iter().map(|&token| (token, f32::NEG_INFINITY));
    let streams = prompts.iter().map(|prompt| {
        let mut request = Request::new(Prompt::from_tokens(prompt.to_vec()), 0);
        request.max_tokens = Some(n);
        request.sampling =
            SamplingParams { temperature: 0.0, logit_bias: ends.clone().collect(), ..SamplingParams::default() };
        engine.submit(request, None).expect("the request is valid")
    });
    let streams: Vec<_> = streams.collect();
    let tokens = |event| match event {
        Ok(Event::Token(token)) => Some(token.token),
        Ok(_) => None,
        Err(error) => panic!("{error}"),
    };
    streams.into_iter().map(|stream| stream.filter_map(tokens).collect()).collect()
}

/// Asserts that the same tokens were drawn, up to the first two that are as likely as each other.
fn assert_same(found: &[Token], expected: &[(Token, Vec<f32>)], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (&found, (expected, logits))) in found.iter().zip(expected).enumerate() {
        if found != *expected {
            let logit = |token: Token| logits[usize::try_from(token).expect("a token")];
            let margin = logit(*expected) - logit(found);
            println!("{what}: differs at {i}, margin {margin}");
            assert!(margin < TOLERANCE, "{what}: token {i} is {found}, and {expected} is more likely by {margin}");
            return;
        }
    }
}

#[test]
fn greedy_texts_are_those_of_llama_cpps_tool() {
    for (n, width, n_batch, n_prompt) in [(4, 256, 2048, 600), (4, 256, 128, 600), (2, 512, 512, 1_300), (8, 64, 100, 30)] {
        let grouping = Grouping { n, width, n_batch };
        let prompt = story(n_prompt);
        let expected = theirs(&prompt, grouping, 700);
        // Another one beside it, whose cells lie between its own and must not change.
        let other = story(700);
        let found = ours(&demo(), &config(grouping), &[&prompt, &other], 700);
        assert_same(&found[0], &expected, &format!("{grouping:?}, a prompt of {n_prompt}"));
        assert_same(&found[1], &theirs(&other, grouping, 700), &format!("{grouping:?}, a prompt of 700"));
    }
}
