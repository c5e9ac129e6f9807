//! Pieces that leave the pool and come back, on the demo model.

use super::runner::{prompt, try_start};
use crate::config::{FlashAttention, KvType};
use crate::engine::runner::{Plan, Row, Runner, SequenceId};
use crate::llama::LlamaRunner;
use crate::llama::batch::rows_of;
use crate::request::Token;

/// Log-probabilities of one text, computed without a break or after a restore, may differ by this: attention sums in the order of
/// cells. Measured over the settings below: 0 where the cells come back in their order, 0.04 at most where they were scattered.
const TOLERANCE: f32 = 0.1;

/// Formats of K and V, and flash attention: V lies in rows with it, in columns without, and may be quantised only with it.
const SETTINGS: [(KvType, KvType, FlashAttention); 4] = [
    (KvType::F16, KvType::F16, FlashAttention::On),
    (KvType::F16, KvType::F16, FlashAttention::Off),
    (KvType::Q8_0, KvType::Q8_0, FlashAttention::On),
    (KvType::Q8_0, KvType::F16, FlashAttention::Off),
];

const TRUNK: usize = 120;

fn id(id: u16) -> SequenceId {
    SequenceId(id)
}

fn start(setting: (KvType, KvType, FlashAttention)) -> LlamaRunner {
    try_start(|config| (config.type_k, config.type_v, config.flash_attention) = setting).expect("the demo model runs").0
}

fn compute(runner: &mut LlamaRunner, sequence: u16, position: usize, tokens: &[Token]) {
    runner.decode(&rows_of(id(sequence), u32::try_from(position).expect("small"), tokens)).expect("the plan is valid");
}

/// The log-probability of each of `tokens` but the first, where `sequence` goes on with them at `position`.
fn logprobs(runner: &mut LlamaRunner, sequence: u16, position: usize, tokens: &[Token]) -> Vec<f32> {
    let rows = tokens.iter().zip(position..).map(|(&token, position)| Row {
        sequence: id(sequence),
        token,
        position: u32::try_from(position).expect("small"),
        wants_logits: true,
    });
    runner.decode(&Plan { rows: rows.collect() }).expect("the plan is valid");
    let logprob = |(row, &next): (usize, &Token)| {
        let logits = runner.logits(row);
        let highest = logits.iter().copied().fold(f32::MIN, f32::max);
        let sum: f32 = logits.iter().map(|logit| (logit - highest).exp()).sum();
        logits[usize::try_from(next).expect("a token")] - highest - sum.ln()
    };
    tokens[1..].iter().enumerate().map(logprob).collect()
}

#[track_caller]
fn assert_same(found: &[f32], expected: &[f32]) -> f32 {
    let distance = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(distance < TOLERANCE, "log-probabilities differ by {distance}");
    distance
}

/// Moves other texts into the freed cells, so that nothing works only because the bytes are still there.
fn overwrite_free_cells(runner: &mut LlamaRunner, spare_id: u16) {
    compute(runner, spare_id, 0, &prompt(400).split_off(100));
    runner.drop_sequence(id(spare_id));
}

/// Position and owners of every used cell, in the order of the cells.
fn cells_of(runner: &mut LlamaRunner) -> Vec<(u32, Vec<u32>)> {
    let state = runner.context.whole_state();
    // It begins with the architecture's name and its length.
    assert!(state.starts_with(b"\x05\0\0\0llama"));
    let mut words = state[9..].chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")));
    let mut next = || words.next().expect("llama.cpp wrote all of it");
    assert_eq!(next(), 1, "the pool is unified");
    let n_cells = next();
    (0..n_cells)
        .map(|_| {
            let (position, n_owners) = (next(), next());
            (position, (0..n_owners).map(|_| next()).collect())
        })
        .collect()
}

#[test]
fn a_restored_prefix_continues_as_if_it_had_stayed() {
    for setting in SETTINGS {
        let mut runner = start(setting);
        let tokens = prompt(TRUNK + 40);
        compute(&mut runner, 0, 0, &tokens[..TRUNK]);
        let piece = runner.save(id(0), 0..120).expect("it is held");
        let expected = logprobs(&mut runner, 0, TRUNK, &tokens[TRUNK..]);
        runner.drop_sequence(id(0));
        overwrite_free_cells(&mut runner, 0);
        runner.restore(id(5), &piece, 0..120).expect("the piece is whole");
        let distance = assert_same(&logprobs(&mut runner, 5, TRUNK, &tokens[TRUNK..]), &expected);
        println!("{setting:?}: {distance}");
    }
}

/// Eight branches of one trunk, decoded together, 30 tokens each: their cells take turns.
fn fan_out(runner: &mut LlamaRunner, tokens: &[Token]) -> [Vec<Token>; 8] {
    compute(runner, 0, 0, &tokens[..TRUNK]);
    (1..8).for_each(|branch| runner.fork(id(0), id(branch), 120));
    let branches: [Vec<Token>; 8] = std::array::from_fn(|branch| tokens[branch * 5..][..60].to_vec());
    for step in 0..30 {
        let rows =
            (0_u16..).zip(&branches).map(|(branch, text)| rows_of(id(branch), 120 + step, &text[step as usize..][..1]).rows[0]);
        runner.decode(&Plan { rows: rows.collect() }).expect("the plan is valid");
    }
    branches
}

#[test]
fn branches_that_were_decoded_together_are_restored_over_one_trunk() {
    for setting in SETTINGS {
        let mut runner = start(setting);
        let branches = fan_out(&mut runner, &prompt(200));
        let trunk = runner.save(id(3), 0..120).expect("it is held");
        let pieces: Vec<_> = (0..8).map(|branch| runner.save(id(branch), 120..150).expect("it is held")).collect();
        let continued = |runner: &mut LlamaRunner| -> Vec<Vec<f32>> {
            (0..).zip(&branches).map(|(branch, text)| logprobs(runner, branch, 150, &text[30..])).collect()
        };
        let expected = continued(&mut runner);
        (0..8).for_each(|branch| runner.drop_sequence(id(branch)));
        overwrite_free_cells(&mut runner, 0);
        // The trunk comes back once; the branches share its cells.
        runner.restore(id(0), &trunk, 0..120).expect("the piece is whole");
        (1..8).for_each(|branch| runner.fork(id(0), id(branch), 120));
        for (branch, piece) in (0..).zip(&pieces) {
            runner.restore(id(branch), piece, 120..150).expect("the piece is whole");
        }
        assert_eq!(cells_of(&mut runner).len(), 120 + 8 * 30);
        let mut distances = Vec::new();
        for (found, expected) in continued(&mut runner).iter().zip(&expected) {
            distances.push(assert_same(found, expected));
        }
        println!("{setting:?}: {distances:?}");
    }
}
