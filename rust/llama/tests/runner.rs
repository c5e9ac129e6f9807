//! Tests decodes, forks and rejected plans, on the demo model.

use super::{demo, resolve_llama_cpp};
use crate::config::{EngineConfig, FlashAttention, KvType, Limits};
use crate::engine::runner::{KvSeqId, Plan, Runner};
use crate::error::Error;
use crate::llama::LlamaRunner;
use crate::llama::context::batch::rows_of;
use crate::request::Token;

/// Tolerance of the logits of one prefix computed in two batch shapes: matrix products and attention sum in another order, over
/// 16-bit cells. Measured: up to 0.06, and up to 0.27 between decodes of fewer than 64 rows and of more, for which llama.cpp's
/// flash attention has two implementations. Those of another prefix differ by more than 1.
const TOLERANCE: f32 = 0.5;

pub(super) fn try_start(change: impl FnOnce(&mut EngineConfig)) -> Result<(LlamaRunner, Limits), Error> {
    let mut config = EngineConfig { n_slots: Some(4), n_ctx: Some(1024), n_threads: Some(1), ..EngineConfig::default() };
    change(&mut config);
    let model = demo();
    let config = resolve_llama_cpp(&model, &config)?;
    Ok((LlamaRunner::new(model, &config)?, config.limits))
}

fn start() -> (LlamaRunner, Limits) {
    try_start(|_| ()).expect("the demo model runs")
}

/// Returns the first `n` tokens of a story without repetitions, so that every prefix has another continuation.
pub(super) fn prompt(n: usize) -> Vec<Token> {
    let (characters, places) = (["cow", "fox", "girl", "king", "bird"], ["sea", "moon", "farm"]);
    let sentences = (0..50).map(|i| format!("The {} number {i} wanted to see the {}. ", characters[i % 5], places[i % 3]));
    let text: String = sentences.collect();
    let tokens = demo().tokenize(text.as_bytes(), true, true).unwrap();
    assert!(tokens.len() >= n, "{} tokens", tokens.len());
    tokens[..n].to_vec()
}

/// Computes `tokens` from `position` on and returns the last row of logits.
fn compute(runner: &mut LlamaRunner, id: u16, position: u32, tokens: &[Token]) -> Vec<f32> {
    runner.decode(&rows_of(KvSeqId(id), position, tokens)).expect("the plan is valid");
    runner.logits(tokens.len() - 1).to_vec()
}

fn most_likely(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("a vocabulary is not empty")
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[track_caller]
fn assert_close(a: &[f32], b: &[f32]) {
    assert!(distance(a, b) < TOLERANCE, "logits differ by {}", distance(a, b));
}

#[test]
fn a_forked_prefix_continues_as_if_computed() {
    let (mut runner, _) = start();
    let tokens = prompt(60);
    compute(&mut runner, 0, 0, &tokens[..50]);
    // Part of the tokens of sequence 0, then another continuation than its own.
    assert!(runner.can_fork(KvSeqId(0), 50, 30));
    runner.fork(KvSeqId(0), KvSeqId(1), 30);
    let forked = compute(&mut runner, 1, 30, &tokens[50..60]);
    let whole = [&tokens[..30], &tokens[50..60]].concat();
    let computed = compute(&mut runner, 2, 0, &whole);
    assert_close(&forked, &computed);
    assert_eq!(most_likely(&forked), most_likely(&computed));
    // The original continues unchanged.
    let on = compute(&mut runner, 0, 50, &tokens[50..60]);
    let all = compute(&mut runner, 3, 0, &tokens);
    assert_close(&on, &all);
    assert!(distance(&forked, &on) > 1.0, "the two prefixes lead {} apart", distance(&forked, &on));
}

#[test]
fn one_decode_computes_chunks_of_several_sequences() {
    let (mut runner, _) = start();
    let (a, b) = (prompt(40), prompt(55)[20..].to_vec());
    compute(&mut runner, 0, 0, &a[..10]);
    // Rows of the two sequences alternate, each in order of position.
    let (rest_of_a, all_of_b) = (rows_of(KvSeqId(0), 10, &a[10..]), rows_of(KvSeqId(1), 0, &b));
    let mut rows: Vec<_> = rest_of_a.rows.iter().chain(&all_of_b.rows).copied().collect();
    rows.sort_by_key(|row| (row.wants_logits, row.token % 7, row.sequence, row.position));
    rows.sort_by_key(|row| row.position);
    let plan = Plan { rows, ..Plan::default() };
    runner.decode(&plan).expect("the plan is valid");
    let mixed: Vec<Vec<f32>> = (0..2)
        .map(|id| {
            let last = plan.rows.iter().position(|row| row.wants_logits && row.sequence == KvSeqId(id));
            runner.logits(last.expect("each sequence wants its last row")).to_vec()
        })
        .collect();
    assert_close(&mixed[0], &compute(&mut runner, 2, 0, &a));
    assert_close(&mixed[1], &compute(&mut runner, 3, 0, &b));
}

#[test]
fn a_truncated_sequence_continues() {
    let (mut runner, _) = start();
    let tokens = prompt(30);
    let first = compute(&mut runner, 0, 0, &tokens);
    assert!(runner.truncate(KvSeqId(0), 29));
    let again = compute(&mut runner, 0, 29, &tokens[29..]);
    assert_close(&first, &again);
    assert!(runner.truncate(KvSeqId(0), 100), "nothing to forget");
    runner.drop_sequence(KvSeqId(0));
    assert_close(&first, &compute(&mut runner, 0, 0, &tokens));
}

#[test]
fn forked_cells_are_shared() {
    let (mut runner, limits) = start();
    // 1,000 of 1,024 cells; 60 copies of all of them would need 60,000.
    let tokens = prompt(500);
    compute(&mut runner, 0, 0, &tokens);
    compute(&mut runner, 0, 500, &tokens);
    for id in 1..61 {
        runner.fork(KvSeqId(0), KvSeqId(id), 1000);
    }
    let rows = (0..20).map(|id| rows_of(KvSeqId(id), 1000, &tokens[..1]).rows[0]);
    runner.decode(&Plan { rows: rows.collect(), ..Plan::default() }).expect("20 of the 24 free cells");
    assert_eq!(limits.n_seq_max, 68);
}

#[test]
fn an_invalid_plan_is_an_error_without_side_effects() {
    let (mut runner, limits) = start();
    let tokens = prompt(20);
    compute(&mut runner, 0, 0, &tokens[..10]);
    let n_ids = u16::try_from(limits.n_seq_max).expect("few") + 1;
    let mut gap = rows_of(KvSeqId(0), 10, &tokens[10..12]);
    gap.rows[1].position = 12;
    let mut outputs = rows_of(KvSeqId(1), 0, &tokens[..1].repeat(n_ids as usize + 1));
    outputs.rows.iter_mut().for_each(|row| row.wants_logits = true);
    let broken = [
        ("empty", Plan::default()),
        ("too many rows", rows_of(KvSeqId(1), 0, &tokens[..1].repeat(limits.n_ubatch as usize + 1))),
        ("too many outputs", outputs),
        ("a gap", gap),
        ("not at the end", rows_of(KvSeqId(0), 9, &tokens[..1])),
        ("beyond the end", rows_of(KvSeqId(0), 11, &tokens[..1])),
        ("no such sequence", rows_of(KvSeqId(n_ids), 0, &tokens[..1])),
        ("no such token", rows_of(KvSeqId(1), 0, &[2048])),
        ("a negative token", rows_of(KvSeqId(1), 0, &[-1])),
    ];
    for (places, plan) in &broken {
        let error = runner.decode(plan).expect_err(places);
        assert!(error.reason.contains("invalid plan"), "{places}: {error}");
    }
    let on = compute(&mut runner, 0, 10, &tokens[10..]);
    assert_close(&on, &compute(&mut runner, 1, 0, &tokens));
}

#[test]
fn a_full_cache_is_an_error_without_side_effects() {
    let (mut runner, _) = try_start(|config| config.n_ctx = Some(256)).expect("the demo model runs");
    let tokens = prompt(250);
    compute(&mut runner, 0, 0, &tokens[..240]);
    let error = runner.decode(&rows_of(KvSeqId(1), 0, &tokens[..20])).expect_err("16 cells are free");
    assert!(error.reason.contains("256 cells has no room for 20 more"), "{error}");
    compute(&mut runner, 1, 0, &tokens[..6]);
    compute(&mut runner, 0, 240, &tokens[240..]);
}

#[test]
#[should_panic(expected = "did not request logits")]
fn reading_logits_that_were_not_requested_panics() {
    let (mut runner, _) = start();
    compute(&mut runner, 0, 0, &prompt(3));
    runner.logits(1);
}

#[test]
#[should_panic(expected = "did not request logits")]
fn reading_logits_after_a_rejected_plan_panics() {
    let (mut runner, _) = start();
    compute(&mut runner, 0, 0, &prompt(3));
    assert!(runner.decode(&Plan::default()).is_err());
    runner.logits(2);
}

#[test]
#[should_panic(expected = "which is not empty")]
fn forking_onto_a_used_sequence_panics() {
    let (mut runner, _) = start();
    compute(&mut runner, 0, 0, &prompt(3));
    compute(&mut runner, 1, 0, &prompt(3));
    runner.fork(KvSeqId(0), KvSeqId(1), 3);
}

#[test]
fn forking_beyond_the_length_panics() {
    let (mut runner, _) = start();
    compute(&mut runner, 0, 0, &prompt(3));
    assert!(runner.can_fork(KvSeqId(0), 3, 3) && !runner.can_fork(KvSeqId(0), 3, 4));
}

#[test]
fn control_tokens_add_no_text() {
    let (runner, _) = start();
    let mut text = Vec::new();
    for token in demo().tokenize(b"<|im_start|>cow<|im_end|>", true, true).unwrap() {
        runner.append_piece(token, &mut text);
    }
    assert_eq!(String::from_utf8_lossy(&text).trim_start(), "cow");
    assert_eq!(runner.end_tokens(), demo().end_tokens());
}

#[test]
fn every_cache_format_and_attention_setting_runs() {
    let formats = [
        KvType::F32,
        KvType::F16,
        KvType::Bf16,
        KvType::Q8_0,
        KvType::Q4_0,
        KvType::Q4_1,
        KvType::Iq4Nl,
        KvType::Q5_0,
        KvType::Q5_1,
    ];
    for kv in formats {
        let (mut runner, _) = try_start(|config| (config.type_k, config.type_v) = (kv, kv)).expect("the format runs");
        assert!(compute(&mut runner, 0, 0, &prompt(20)).iter().all(|logit| logit.is_finite()), "{kv:?}");
    }
    for flash_attention in [FlashAttention::On, FlashAttention::Off] {
        let (mut runner, _) = try_start(|config| config.flash_attention = flash_attention).expect("it runs");
        compute(&mut runner, 0, 0, &prompt(20));
    }
    let (mut runner, _) = try_start(|config| (config.n_threads, config.n_threads_batch) = (Some(2), Some(1))).expect("it runs");
    compute(&mut runner, 0, 0, &prompt(20));
}

#[test]
fn the_maximum_slots_and_the_minimum_cache_run() {
    let (mut runner, limits) =
        try_start(|c| (c.n_slots, c.n_ctx, c.n_ubatch, c.n_batch) = (Some(254), Some(1), Some(1), 1)).expect("it runs");
    let rows = (0..254).map(|id| rows_of(KvSeqId(id), 0, &[5]).rows[0]);
    runner.decode(&Plan { rows: rows.collect(), ..Plan::default() }).expect("a row of every slot");
    assert_eq!(runner.logits(253).len(), 2048);
    assert_eq!((limits.n_ctx, limits.n_ubatch), (512, 270));
}
