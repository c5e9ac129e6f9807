//! Texts longer than the demo model's training length, with tokens grouped as in llama.cpp's `llama-completion`.

use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use super::runner::try_start;
use super::tiny::{Kind, N_VOCAB, add_vocabulary, tiny, write_tiny_with};
use super::{demo, demo_path, load, resolve_llama_cpp};
use crate::config::{EngineConfig, FlashAttention, Grouping, KernelChoice, KvType};
use crate::engine::runner::{KvSeqId, Runner};
use crate::error::Error;
use crate::llama::context::batch::rows_of;
use crate::llama::{LlamaRunner, Model, resolve, start};
use crate::request::{Event, Prompt, Request, SamplingParams, Token};

/// Tolerance of logits of one text in two batch shapes.
const TOLERANCE: f32 = 0.25;

/// Returns the first `n` tokens of a story without repetitions.
fn story(n: usize) -> Vec<Token> {
    let (characters, places) = (["cow", "fox", "girl", "king", "bird"], ["sea", "moon", "farm"]);
    let sentence = |i: usize| format!("The {} number {i} wanted to see the {}. ", characters[i % 5], places[i % 3]);
    let text: String = (0..n / 4).map(sentence).collect();
    let tokens = demo().tokenize(text.as_bytes(), true, true).unwrap();
    assert!(tokens.len() >= n, "{} tokens", tokens.len());
    tokens[..n].to_vec()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn most_likely(logits: &[f32], is_allowed: impl Fn(Token) -> bool) -> Token {
    let allowed = (0..logits.len()).filter(|&token| is_allowed(Token::try_from(token).expect("a token")));
    let best = allowed.max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("there are tokens");
    Token::try_from(best).expect("a token")
}

/// Runs the loop of `llama-completion` in a bare context with llama.cpp's own kernels: returns the `n` most likely tokens that are
/// not end tokens, each with the logits that it was selected from.
fn generate_with_llama_cpp(
    prompt: &[Token],
    Grouping { n: ga_n, width: ga_w, n_batch }: Grouping,
    n: usize,
) -> Vec<(Token, Vec<f32>)> {
    let model = load(&demo_path()).expect("the demo model loads");
    let (ga_n, ga_w) = (ga_n.cast_signed(), ga_w.cast_signed());
    // SAFETY: the model outlives the context, which is freed here; each batch has as many tokens as it states, at consecutive
    // positions.
    unsafe {
        let mut params = sys::llama_context_default_params();
        (params.n_ctx, params.n_batch, params.n_ubatch) = (4096, n_batch, n_batch.min(512));
        (params.n_threads, params.n_threads_batch) = (1, 1);
        params.flash_attn_type = sys::LLAMA_FLASH_ATTN_TYPE_DISABLED;
        let context = sys::llama_init_from_model(model.as_ptr(), params);
        assert!(!context.is_null());
        let memory = sys::llama_get_memory(context);
        let (mut n_past, mut ga_i) = (0, 0);
        let mut drawn: Vec<(Token, Vec<f32>)> = Vec::new();
        let mut pending = prompt.to_vec();
        while drawn.len() < n {
            let mut embd: Vec<Token> = pending.drain(..pending.len().min(n_batch as usize)).collect();
            while n_past >= ga_i + ga_w {
                let ib = (ga_n * ga_i) / ga_w;
                let bd = (ga_w / ga_n) * (ga_n - 1);
                let dd = (ga_w / ga_n) - ib * bd - ga_w;
                sys::llama_memory_seq_add(memory, 0, ga_i, n_past, ib * bd);
                // Equivalent to `llama_memory_seq_div`, except for the sign of the rotation of keys.
                for index in ga_i + ib * bd..ga_i + ib * bd + ga_w {
                    sys::llama_memory_seq_add(memory, 0, index, index + 1, index / ga_n - index);
                }
                sys::llama_memory_seq_add(memory, 0, ga_i + ib * bd + ga_w, n_past + ib * bd, dd);
                n_past -= bd;
                ga_i += ga_w / ga_n;
            }
            let n_eval = i32::try_from(embd.len()).expect("small");
            assert_eq!(sys::llama_decode(context, sys::llama_batch_get_one(embd.as_mut_ptr(), n_eval)), 0);
            n_past += n_eval;
            if pending.is_empty() {
                let logits = std::slice::from_raw_parts(sys::llama_get_logits_ith(context, -1), model.n_vocab()).to_vec();
                let token = most_likely(&logits, |token| !model.is_end(token));
                pending.push(token);
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
        kernels: KernelChoice::LlamaCpp,
        flash_attention: FlashAttention::Off,
        n_threads: Some(1),
        ..EngineConfig::default()
    }
}

/// Returns the `n` most likely tokens after each of `prompts`, which run concurrently.
fn generate(model: &Arc<Model>, config: &EngineConfig, prompts: &[&[Token]], n: u32) -> Vec<Vec<Token>> {
    let engine = start(model, config).expect("the demo model runs");
    let ends = model.end_tokens().iter().map(|&token| (token, f32::NEG_INFINITY));
    let streams = prompts.iter().map(|prompt| {
        let mut request = Request::new(Prompt::from_tokens(prompt.to_vec()), 0);
        request.max_tokens = Some(n);
        request.sampling = SamplingParams { temperature: 0.0, logit_bias: ends.clone().collect(), ..SamplingParams::default() };
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

/// Asserts that the same tokens were selected, up to the first two that are equally likely.
fn assert_same(found: &[Token], expected: &[(Token, Vec<f32>)], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let Some((i, (&found, (expected, logits)))) =
        found.iter().zip(expected).enumerate().find(|(_, (found, (token, _)))| *found != token)
    else {
        return;
    };
    let logit = |token: Token| logits[usize::try_from(token).expect("a token")];
    let margin = logit(*expected) - logit(found);
    assert!(margin < TOLERANCE, "{what}: token {i} is {found}, and {expected} is more likely by {margin}");
}

#[test]
fn greedy_texts_match_llama_completion() {
    for (n, width, n_batch, n_prompt) in [(4, 256, 128, 600), (2, 512, 512, 1_300)] {
        let grouping = Grouping { n, width, n_batch };
        let prompts = [story(n_prompt), story(700)];
        // Two concurrent sequences, whose cells are interleaved.
        let found = generate(&demo(), &config(grouping), &prompts.each_ref().map(|prompt| &prompt[..]), 250);
        for (found, prompt) in found.iter().zip(&prompts) {
            let expected = generate_with_llama_cpp(prompt, grouping, 250);
            assert_same(found, &expected, &format!("{grouping:?}, a prompt of {}", prompt.len()));
        }
    }
}

fn runner(config: &EngineConfig) -> LlamaRunner {
    LlamaRunner::new(demo(), &resolve(&demo(), config, None).expect("it fits")).expect("the demo model runs")
}

/// Computes `tokens`, the first `n_prompt` of which are a prompt, with the required cuts and groups. Returns the logits after the
/// prompt and after each later token.
fn compute(runner: &mut LlamaRunner, id: u16, grouping: Grouping, n_prompt: u32, tokens: &[Token]) -> Vec<Vec<f32>> {
    let id = KvSeqId(id);
    let (mut seq_len, mut n_grouped, mut rows) = (0, 0, Vec::new());
    while (seq_len as usize) < tokens.len() {
        let n_due = grouping.n_grouped(seq_len, n_prompt);
        if n_due > n_grouped {
            runner.group_positions(id, n_grouped..n_due, grouping.n);
            n_grouped = n_due;
        }
        let n = if seq_len < n_prompt { grouping.n_until_next(seq_len, n_prompt) } else { 1 };
        let (start, end) = (seq_len, seq_len + n.min(512));
        runner.decode(&rows_of(id, start, &tokens[start as usize..end as usize])).expect("the plan is valid");
        seq_len = end;
        if seq_len >= n_prompt {
            rows.push(runner.logits((end - start) as usize - 1).to_vec());
        }
    }
    rows
}

#[test]
fn logits_are_bit_identical_to_llama_completion_with_its_kernels() {
    // The last case generates everything beyond the training length.
    for (n, width, n_batch, n_prompt, n_drawn) in [(4, 256, 2048, 700, 200), (2, 128, 200, 700, 200), (4, 256, 2048, 20, 1_100)] {
        let grouping = Grouping { n, width, n_batch };
        let prompt = story(n_prompt);
        let n_prompt = u32::try_from(n_prompt).expect("few");
        let expected = generate_with_llama_cpp(&prompt, grouping, n_drawn);
        let tokens: Vec<Token> = prompt.into_iter().chain(expected.iter().map(|(token, _)| *token)).collect();
        let mut runner = runner(&config(grouping));
        let found = compute(&mut runner, 0, grouping, n_prompt, &tokens[..tokens.len() - 1]);
        assert_eq!(found.len(), expected.len());
        for (i, (found, (_, expected))) in found.iter().zip(&expected).enumerate() {
            assert!(found == expected, "{grouping:?}: the logits of token {i} differ by {}", distance(found, expected));
        }
    }
}

#[test]
fn groups_do_not_affect_other_sequences() {
    let grouping = Grouping { n: 4, width: 64, n_batch: 2048 };
    let (kernels, flash_attention) = (KernelChoice::Auto, FlashAttention::Auto);
    let mut runner = runner(&EngineConfig { kernels, flash_attention, ..config(grouping) });
    let tokens = story(300);
    runner.decode(&rows_of(KvSeqId(1), 0, &tokens[..200])).expect("the plan is valid");
    let before = runner.save(KvSeqId(1), 0..200).expect("it is saved");
    let found = compute(&mut runner, 0, grouping, 200, &tokens);
    let never = Grouping { width: 512, ..grouping };
    let ungrouped = compute(&mut runner, 2, never, 200, &tokens);
    assert!(distance(&found[0], &ungrouped[0]) < TOLERANCE, "nothing is grouped before the prompt is computed");
    assert!(distance(&found[90], &ungrouped[90]) > 1.0, "{}", distance(&found[90], &ungrouped[90]));
    assert_eq!(runner.save(KvSeqId(1), 0..200).expect("it is saved"), before);
    // Grouped tokens are not shared.
    assert!(!runner.can_fork(KvSeqId(0), 300, 200) && runner.can_fork(KvSeqId(1), 200, 100));
    assert!(runner.save(KvSeqId(0), 0..200).is_err());
    // They are not cut either, except after the groups; a dropped sequence id can be used again.
    assert!(!runner.truncate(KvSeqId(0), 100));
    assert!(runner.truncate(KvSeqId(0), 299));
    runner.decode(&rows_of(KvSeqId(0), 299, &tokens[299..])).expect("the plan is valid");
    assert!(distance(runner.logits(0), &found[100]) < TOLERANCE);
    runner.drop_sequence(KvSeqId(0));
    assert!(distance(&compute(&mut runner, 0, grouping, 200, &tokens)[100], &found[100]) < TOLERANCE);
}

#[test]
fn unsupported_grouping_is_rejected_with_the_reason() {
    let refused = |model: &Arc<Model>| {
        let config = EngineConfig { n_slots: Some(4), n_ctx: Some(512), grp_attn_n: 2, ..EngineConfig::default() };
        match start(model, &config).err() {
            Some(Error::InvalidConfig { param: "grp_attn_n", message }) => message,
            other => panic!("{other:?}"),
        }
    };
    for kind in [Kind::Recurrent, Kind::Hybrid, Kind::Window] {
        let message = refused(&tiny(kind));
        assert!(message.contains("have a recurrent state or a sliding window"), "{kind:?}: {message}");
    }
    assert!(refused(&tiny(Kind::Grid)).contains("positions of images have several dimensions"));
    let refused = |change: fn(&mut EngineConfig)| try_start(change).map(|_| ()).expect_err("it is refused");
    assert!(matches!(
        refused(|c| (c.grp_attn_n, c.type_k) = (2, KvType::Bf16)),
        Error::InvalidConfig { param: "grp_attn_n", .. }
    ));
}

#[test]
fn rotations_that_change_unmoved_keys_are_detected_at_start() {
    // A kind that is rejected in any case, but can rotate its keys.
    let try_group = |scaling: &str| {
        let path = write_tiny_with(Kind::Window, N_VOCAB, |header| {
            add_vocabulary(header, "llama");
            header.string("gemma2.rope.scaling.type", scaling);
            header.f32("gemma2.rope.scaling.factor", 4.0);
            header.u32("gemma2.rope.scaling.original_context_length", 128);
        });
        let model = load(&path).expect("the toy model loads");
        std::fs::remove_file(&path).expect("it was just written");
        let model = Arc::new(model);
        let config = EngineConfig { n_slots: Some(4), n_ctx: Some(512), n_threads: Some(1), ..EngineConfig::default() };
        let config = resolve_llama_cpp(&model, &config).expect("it fits");
        let mut runner = LlamaRunner::new(model, &config).expect("the toy model runs");
        runner.context.try_group(KvSeqId(0), 3)
    };
    assert_eq!(try_group("linear"), Ok(()));
    assert!(try_group("yarn").is_err_and(|reason| reason.contains("YaRN")));
}
