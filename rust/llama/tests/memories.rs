//! Memories other than plain attention: states that cannot be cut, and sliding windows.

use std::sync::Arc;

use super::tiny::{Kind, N_SWA, tiny};
use crate::config::{EngineConfig, KvType, Limits};
use crate::engine::runner::{Plan, Runner, SequenceId};
use crate::llama::batch::rows_of;
use crate::llama::{LlamaRunner, Model, holds_window};
use crate::request::Token;

const A: SequenceId = SequenceId(0);
const B: SequenceId = SequenceId(1);
const C: SequenceId = SequenceId(2);

fn start(model: &Arc<Model>) -> (LlamaRunner, Limits) {
    let config = EngineConfig { n_slots: Some(4), n_ctx: Some(512), n_threads: Some(1), ..EngineConfig::default() };
    let limits = config.settle(&model.facts(config.type_k, config.type_v), 1 << 30, 1 << 30).expect("the configuration is valid");
    (LlamaRunner::new(Arc::clone(model), &config, &limits).expect("the toy model runs"), limits)
}

fn tokens(n: usize) -> Vec<Token> {
    (0..n).map(|i| 3 + i32::try_from(i * i % 256).expect("below 256")).collect()
}

/// Computes `tokens` from `position` on and returns the last row of logits.
fn compute(runner: &mut LlamaRunner, id: SequenceId, position: u32, tokens: &[Token]) -> Vec<f32> {
    runner.decode(&rows_of(id, position, tokens)).expect("the plan is valid");
    runner.logits(tokens.len() - 1).to_vec()
}

/// The toy models' logits reach 7 to 13. Measured: those of one text differ by 0.003 at most, those of two by 0.7 and more.
#[track_caller]
fn assert_same_text(a: &[f32], b: &[f32], is_same: bool) {
    let distance = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert_eq!(distance < 0.1, is_same, "logits differ by {distance}");
}

fn only_whole_sequences_are_forked(kind: Kind) {
    let model = tiny(kind);
    let (mut runner, limits) = start(&model);
    assert_eq!(limits.n_seq_max, 6, "each id costs a state");
    let tokens = tokens(40);
    compute(&mut runner, A, 0, &tokens[..30]);
    assert!(!runner.can_fork(A, 30, 29) && runner.can_fork(A, 30, 30));
    runner.fork(A, B, 30);
    let forked = compute(&mut runner, B, 30, &tokens[30..]);
    let computed = compute(&mut runner, C, 0, &tokens);
    assert_same_text(&forked, &computed, true);
    // A truncation that the memory refuses leaves everything in place.
    assert!(!runner.truncate(A, 20));
    assert_same_text(&compute(&mut runner, A, 30, &tokens[30..]), &computed, true);
    // A whole sequence is always forgotten, and its id begins anew.
    runner.drop_sequence(A);
    assert_same_text(&compute(&mut runner, A, 0, &tokens[10..]), &computed, false);
    assert!(runner.truncate(A, 0));
    assert_same_text(&compute(&mut runner, A, 0, &tokens), &computed, true);
}

#[test]
fn a_state_is_forked_whole() {
    only_whole_sequences_are_forked(Kind::Recurrent);
}

#[test]
fn a_hybrid_memory_is_forked_whole() {
    only_whole_sequences_are_forked(Kind::Hybrid);
}

#[test]
fn states_of_all_ids_decode_together() {
    let (mut runner, limits) = start(&tiny(Kind::Recurrent));
    let tokens = tokens(3);
    let ids = 0..u16::try_from(limits.n_seq_max).expect("few");
    let plan = Plan { rows: ids.flat_map(|id| rows_of(SequenceId(id), 0, &tokens).rows).collect() };
    runner.decode(&plan).expect("the plan is valid");
    let last = runner.logits(plan.rows.len() - 1).to_vec();
    assert_same_text(&last, runner.logits(tokens.len() - 1), true);
}

#[test]
fn a_window_forks_where_its_cells_are_still_there() {
    let model = tiny(Kind::Window);
    assert_eq!(model.n_swa(), N_SWA);
    let (mut runner, _) = start(&model);
    let tokens = tokens(100);
    compute(&mut runner, A, 0, &tokens[..90]);
    // Far behind the window of sequence A.
    assert!(runner.can_fork(A, 90, 40));
    runner.fork(A, B, 40);
    let forked = compute(&mut runner, B, 40, &tokens[90..]);
    let text = [&tokens[..40], &tokens[90..]].concat();
    assert_same_text(&forked, &compute(&mut runner, C, 0, &text), true);
    assert_same_text(&forked, &compute(&mut runner, A, 90, &tokens[90..]), false);
    assert!(runner.truncate(A, 40));
    assert_same_text(&forked, &compute(&mut runner, A, 40, &tokens[90..]), true);
}

#[test]
fn a_window_whose_cells_are_gone_is_not_forked() {
    // The next token, at position 40, looks back to 24.
    assert!(holds_window(0, 40, N_SWA) && holds_window(24, 40, N_SWA) && !holds_window(25, 40, N_SWA));
    // Where the window reaches beyond the start, everything must be there.
    assert!(holds_window(0, 10, N_SWA) && !holds_window(1, 10, N_SWA));
}

#[test]
fn kinds_and_cells_are_read_from_the_metadata() {
    let f16 = |kind| tiny(kind).kv_bytes_per_token(KvType::F16, KvType::F16);
    let recurrent = tiny(Kind::Recurrent);
    assert!(recurrent.is_recurrent() && !recurrent.is_hybrid());
    let hybrid = tiny(Kind::Hybrid);
    assert!(hybrid.is_hybrid() && !hybrid.is_recurrent());
    assert_eq!(f16(Kind::Recurrent), 0);
    // Only the second of the two layers has KV heads: 2 of 16 elements, 2 bytes each, K and V.
    assert_eq!(f16(Kind::Hybrid), 128);
    // 2 layers of one head of 32 elements.
    assert_eq!(f16(Kind::Window), 256);
}
