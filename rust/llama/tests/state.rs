//! Tests saving and restoring cells, on the demo model.

use super::runner::{prompt, try_start};
use crate::config::{FlashAttention, KvType};
use crate::engine::runner::{ForkRule, IdleCost, KvSeqId, MemoryKind, Plan, RelocateError, Row, Runner};
use crate::llama::LlamaRunner;
use crate::llama::context::batch::rows_of;
use crate::request::Token;

/// Tolerance of the log-probabilities of one text, computed without a break or after a restore: attention sums in the order of
/// cells, over 16-bit numbers. Measured: 0 if the cells are restored in order, at most 0.06 if they are scattered, 0.11 if they
/// were computed by the other attention kernel. Those of two texts differ by 4 and more.
const TOLERANCE: f32 = 0.25;

/// Formats of K and V, and flash attention: V is stored in rows with it, in columns without, and may be quantised only with it.
const SETTINGS: [(KvType, KvType, FlashAttention); 4] = [
    (KvType::F16, KvType::F16, FlashAttention::On),
    (KvType::F16, KvType::F16, FlashAttention::Off),
    (KvType::Q8_0, KvType::Q8_0, FlashAttention::On),
    (KvType::Q8_0, KvType::F16, FlashAttention::Off),
];

const TRUNK: usize = 120;

fn id(id: u16) -> KvSeqId {
    KvSeqId(id)
}

fn start(setting: (KvType, KvType, FlashAttention)) -> LlamaRunner {
    try_start(|config| (config.type_k, config.type_v, config.flash_attention) = setting).expect("the demo model runs").0
}

fn compute(runner: &mut LlamaRunner, sequence: u16, position: usize, tokens: &[Token]) {
    runner.decode(&rows_of(id(sequence), u32::try_from(position).expect("small"), tokens)).expect("the plan is valid");
}

/// Returns the log-probability of each of `tokens` but the first, as continuations of `sequence` at `position`.
fn logprobs(runner: &mut LlamaRunner, sequence: u16, position: usize, tokens: &[Token]) -> Vec<f32> {
    let rows = tokens.iter().zip(position..).map(|(&token, position)| Row {
        sequence: id(sequence),
        token,
        position: u32::try_from(position).expect("small"),
        wants_logits: true,
    });
    runner.decode(&Plan { rows: rows.collect(), ..Plan::default() }).expect("the plan is valid");
    let logprob = |(row, &next): (usize, &Token)| {
        let logits = runner.logits(row);
        let highest = logits.iter().copied().fold(f32::MIN, f32::max);
        let sum: f32 = logits.iter().map(|logit| (logit - highest).exp()).sum();
        logits[usize::try_from(next).expect("a token")] - highest - sum.ln()
    };
    tokens[1..].iter().enumerate().map(logprob).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[track_caller]
fn assert_same(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let distance = distance(found, expected);
    assert!(distance < TOLERANCE, "log-probabilities differ by {distance}");
}

#[test]
fn runs_of_cells_are_expensive_to_copy_from_a_gpu() {
    let runner = start(SETTINGS[0]);
    let layout = runner.layout.as_ref().expect("it can be saved");
    // 12 copies of 15 µs, over 1,548 bytes of 0.1 ns.
    assert_eq!((layout.tokens_per_run(false), layout.tokens_per_run(true)), (2, 1_163));
}

#[test]
fn memory_costs_are_computed_from_the_layout() {
    // 6 layers of 2 × 32 elements, K and V, and 12 bytes of metadata per cell: 64 numbers of 16 bits are 128 bytes, of Q8_0 68.
    let n_bytes = [12 + 6 * 256, 12 + 6 * 256, 12 + 6 * 136, 12 + 6 * 196];
    // 12 copies in rows, 6 + 6 × 64 in columns, of 50 ns, over bytes of 0.2 ns.
    let n_tokens = [2, 63, 4, 82];
    for (setting, (n_bytes, n_tokens)) in SETTINGS.into_iter().zip(n_bytes.into_iter().zip(n_tokens)) {
        let memory = MemoryKind {
            forks: ForkRule::Anywhere,
            idle_cost: IdleCost::Scores,
            can_be_saved: true,
            bytes_per_token: n_bytes,
            bytes_per_state: 0,
            tokens_per_run: n_tokens,
            n_window: 0,
        };
        assert_eq!(start(setting).memory_kind(), memory, "{setting:?}");
    }
}

/// Overwrites the freed cells with other texts, so that no test passes only because the old bytes are still there.
fn overwrite_free_cells(runner: &mut LlamaRunner, spare_id: u16) {
    compute(runner, spare_id, 0, &prompt(400).split_off(100));
    runner.drop_sequence(id(spare_id));
}

/// Returns positions and owners of every used cell, in cell order.
pub(super) fn cells_of(runner: &mut LlamaRunner) -> Vec<(u32, Vec<u32>)> {
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
fn a_restored_prefix_continues_as_if_never_removed() {
    for setting in SETTINGS {
        let mut runner = start(setting);
        let tokens = prompt(TRUNK + 40);
        compute(&mut runner, 0, 0, &tokens[..TRUNK]);
        let piece = runner.save(id(0), 0..120).expect("it is held");
        let expected = logprobs(&mut runner, 0, TRUNK, &tokens[TRUNK..]);
        runner.drop_sequence(id(0));
        overwrite_free_cells(&mut runner, 0);
        runner.restore(id(5), &piece, 0..120).expect("the piece is whole");
        assert_same(&logprobs(&mut runner, 5, TRUNK, &tokens[TRUNK..]), &expected);
        // The same tokens after a different prefix.
        let reversed: Vec<Token> = tokens[..TRUNK].iter().rev().copied().collect();
        compute(&mut runner, 6, 0, &reversed);
        let other = logprobs(&mut runner, 6, TRUNK, &tokens[TRUNK..]);
        assert!(distance(&other, &expected) > 1.0, "{setting:?}: two texts differ by {}", distance(&other, &expected));
    }
}

/// Decodes eight branches of one trunk together, 30 tokens each: their cells are interleaved.
fn fan_out(runner: &mut LlamaRunner, tokens: &[Token]) -> [Vec<Token>; 8] {
    compute(runner, 0, 0, &tokens[..TRUNK]);
    (1..8).for_each(|branch| runner.fork(id(0), id(branch), 120));
    let branches: [Vec<Token>; 8] = std::array::from_fn(|branch| tokens[branch * 5..][..60].to_vec());
    for step in 0..30 {
        let rows =
            (0_u16..).zip(&branches).map(|(branch, text)| rows_of(id(branch), 120 + step, &text[step as usize..][..1]).rows[0]);
        runner.decode(&Plan { rows: rows.collect(), ..Plan::default() }).expect("the plan is valid");
    }
    branches
}

#[test]
fn branches_decoded_together_are_restored_on_one_trunk() {
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
        // The trunk is restored once; the branches share its cells.
        runner.restore(id(0), &trunk, 0..120).expect("the piece is whole");
        (1..8).for_each(|branch| runner.fork(id(0), id(branch), 120));
        for (branch, piece) in (0..).zip(&pieces) {
            runner.restore(id(branch), piece, 120..150).expect("the piece is whole");
        }
        assert_eq!(cells_of(&mut runner).len(), 120 + 8 * 30);
        for (found, expected) in continued(&mut runner).iter().zip(&expected) {
            assert_same(found, expected);
        }
    }
}

#[test]
fn any_part_of_a_state_can_continue_a_sequence() {
    let mut runner = start(SETTINGS[1]);
    let tokens = prompt(TRUNK + 40);
    compute(&mut runner, 0, 0, &tokens[..TRUNK]);
    let piece = runner.save(id(0), 20..110).expect("it is held");
    assert!(runner.truncate(id(0), 50));
    // One sequence diverges after 80 tokens, one has the end of the saved range.
    runner.fork(id(0), id(1), 50);
    runner.restore(id(0), &piece, 50..110).expect("the piece is whole");
    runner.restore(id(1), &piece, 50..80).expect("the piece is whole");
    let other = [&tokens[..80], &tokens[90..120]].concat();
    compute(&mut runner, 2, 0, &tokens[..110]);
    compute(&mut runner, 3, 0, &other[..80]);
    let [whole, part, expected_whole, expected_part] =
        [(0, 110, &tokens[110..]), (1, 80, &other[80..]), (2, 110, &tokens[110..]), (3, 80, &other[80..])]
            .map(|(sequence, position, tokens)| logprobs(&mut runner, sequence, position, tokens));
    assert_same(&whole, &expected_whole);
    assert_same(&part, &expected_part);
}

#[test]
fn forks_of_a_restored_trunk_share_its_cells() {
    let mut runner = start(SETTINGS[0]);
    let tokens = prompt(500);
    compute(&mut runner, 0, 0, &tokens);
    let piece = runner.save(id(0), 0..500).expect("it is held");
    runner.drop_sequence(id(0));
    runner.restore(id(0), &piece, 0..500).expect("the piece is whole");
    (1..60).for_each(|branch| runner.fork(id(0), id(branch), 500));
    assert_eq!(cells_of(&mut runner).len(), 500);
    let rows = (0..60).map(|branch| rows_of(id(branch), 500, &tokens[..1]).rows[0]);
    runner.decode(&Plan { rows: rows.collect(), ..Plan::default() }).expect("524 cells are free");
}

#[test]
fn relocation_uses_the_lowest_cells_and_keeps_sharing() {
    for setting in SETTINGS {
        let mut runner = start(setting);
        let tokens = prompt(200);
        compute(&mut runner, 9, 0, &tokens[..150]);
        compute(&mut runner, 8, 0, &tokens[..5]);
        let branches = fan_out(&mut runner, &tokens);
        let ids: [KvSeqId; 8] = std::array::from_fn(|branch| id(u16::try_from(branch).expect("few")));
        let expected = logprobs(&mut runner, 7, 150, &branches[7][30..]);
        assert!(runner.truncate(id(7), 150));
        runner.drop_sequence(id(9));
        // They follow the 5 cells of sequence 8, which do not move.
        assert_eq!(cells_of(&mut runner)[0], (0, vec![8]));
        runner.relocate(&ids, 0..120).expect("there is room");
        runner.relocate(&ids[7..], 120..150).expect("there is room");
        let cells = cells_of(&mut runner);
        assert_eq!(cells.len(), 5 + 120 + 8 * 30);
        let trunk = (0..120).map(|position| (position, (0..8).collect()));
        let branch = (120..150).map(|position| (position, vec![7]));
        assert_eq!(cells[..150], trunk.chain(branch).collect::<Vec<_>>());
        assert_eq!(cells[150], (0, vec![8]));
        assert_same(&logprobs(&mut runner, 7, 150, &branches[7][30..]), &expected);
    }
}

#[test]
fn invalid_requests_are_rejected_without_side_effects() {
    let mut runner = start(SETTINGS[1]);
    let tokens = prompt(120);
    compute(&mut runner, 0, 0, &tokens[..100]);
    let piece = runner.save(id(0), 10..60).expect("it is held");
    compute(&mut runner, 1, 0, &tokens[..30]);
    let mut refusals = vec![
        runner.save(id(0), 50..101).map(drop),
        runner.save(id(0), 50..50).map(drop),
        runner.save(id(2), 0..1).map(drop),
        runner.restore(id(1), &piece, 31..40),
        runner.restore(id(1), &piece, 30..30),
        runner.restore(id(1), &piece, 30..61),
        runner.restore(id(2), &piece, 0..20),
        runner.relocate(&[id(0), id(1)], 20..31).map_err(|error| match error {
            RelocateError::Refused(error) => error,
            RelocateError::Lost(error) => panic!("{error}"),
        }),
    ];
    // There are 1,024 cells, 894 of them free.
    for sequence in 2..6 {
        compute(&mut runner, sequence, 0, &prompt(220));
    }
    refusals.push(runner.restore(id(1), &piece, 30..60));
    let words =
        ["has 100", "has 100", "has 0", "has 30", "has 30", "state of 10..60", "state of 10..60", "has 30", "50 available"];
    for (refusal, words) in refusals.into_iter().zip(words) {
        let reason = refusal.expect_err("it cannot be done").to_string();
        assert!(reason.contains(words), "{reason}");
    }
    runner.drop_sequence(id(5));
    assert_eq!(cells_of(&mut runner).len(), 100 + 30 + 3 * 220);
    runner.restore(id(1), &piece, 30..60).expect("there is room now");
    let [restored, computed] = [1, 0].map(|sequence| {
        assert!(runner.truncate(id(sequence), 60));
        logprobs(&mut runner, sequence, 60, &tokens[60..])
    });
    assert_same(&restored, &computed);
}

#[test]
fn a_state_of_another_cache_is_rejected() {
    let mut pieces = Vec::new();
    for setting in SETTINGS {
        let mut runner = start(setting);
        compute(&mut runner, 0, 0, &prompt(20));
        pieces.push(runner.save(id(0), 0..20).expect("it is held"));
    }
    for (i, setting) in SETTINGS.into_iter().enumerate() {
        let mut runner = start(setting);
        for (j, piece) in pieces.iter().enumerate() {
            // The first two differ only in the layout of V.
            let is_readable = i == j || (i < 2 && j < 2);
            let restored = runner.restore(id(0), piece, 0..20);
            assert_eq!(restored.is_ok(), is_readable, "{i} from {j}: {restored:?}");
            runner.drop_sequence(id(0));
        }
    }
}

#[test]
fn a_state_with_the_other_layout_of_v_is_converted() {
    let tokens = prompt(TRUNK + 40);
    for (from, to) in [(0, 1), (1, 0)] {
        let [mut saver, mut restorer] = [from, to].map(|setting| start(SETTINGS[setting]));
        compute(&mut saver, 0, 0, &tokens[..TRUNK]);
        let piece = saver.save(id(0), 0..120).expect("it is held");
        // The two attention kernels give different results, so the other kernel's own cells are the reference.
        compute(&mut restorer, 0, 0, &tokens[..TRUNK]);
        let expected = logprobs(&mut restorer, 0, TRUNK, &tokens[TRUNK..]);
        restorer.restore(id(1), &piece, 0..120).expect("V is turned");
        assert_same(&logprobs(&mut restorer, 1, TRUNK, &tokens[TRUNK..]), &expected);
        // Converting twice gives the same bytes.
        let turned = restorer.save(id(1), 0..120).expect("it is held");
        saver.restore(id(1), &turned, 0..120).expect("V is turned");
        assert!(saver.save(id(1), 0..120).expect("it is held") == piece);
    }
}

/// Flips every bit of the numbers that describe a state's cells.
#[test]
fn a_state_with_a_damaged_description_is_rejected() {
    for setting in [SETTINGS[0], SETTINGS[1]] {
        let mut runner = start(setting);
        compute(&mut runner, 0, 0, &prompt(20));
        let piece = runner.save(id(0), 0..20).expect("it is held");
        runner.drop_sequence(id(0));
        for n_kept in [0, 3, 4, 8, 12, 16, 100, piece.len() / 2, piece.len() - 1] {
            runner.restore(id(0), &piece[..n_kept], 0..20).expect_err("it is cut short");
        }
        runner.restore(id(0), &[&piece[..], &[0]].concat(), 0..20).expect_err("it has a byte too many");
        // A magic number, an unused owner, the numbers of streams and of cells; position, number of owners and an unused owner of
        // each cell; V's layout, the layers, two rotations, and of the first layer's K its format and the size of a row.
        let cells = 16..16 + 20 * 12;
        let is_owner = |byte: usize| (4..8).contains(&byte) || cells.contains(&byte) && (byte - cells.start) % 12 >= 8;
        for byte in (0..cells.end + 16 + 12).filter(|&byte| !is_owner(byte)) {
            for bit in 0..8 {
                let mut damaged = piece.to_vec();
                damaged[byte] ^= 1 << bit;
                assert!(runner.restore(id(0), &damaged, 0..20).is_err(), "bit {bit} of byte {byte}");
            }
        }
        runner.restore(id(0), &piece, 0..20).expect("the piece is whole");
        assert_eq!(cells_of(&mut runner).len(), 20);
    }
}

/// A checksum protects files, but not a state in memory; whatever its bytes, the process must survive.
#[test]
fn a_damaged_state_does_not_end_the_process() {
    let mut runner = start(SETTINGS[1]);
    compute(&mut runner, 0, 0, &prompt(20));
    let piece = runner.save(id(0), 0..20).expect("it is held");
    runner.drop_sequence(id(0));
    let mut state = 7_u64;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).expect("64 bits") % n
    };
    for _ in 0..1_000 {
        let mut damaged = piece.to_vec();
        for _ in 0..=random(4) {
            // Half of the damages are near the start, where the numbers are that describe the rest.
            let end = if random(2) == 0 { 400 } else { damaged.len() };
            let byte = random(end);
            match random(3) {
                0 => damaged[byte] ^= 1 << random(8),
                1 => damaged[byte..].iter_mut().take(4).for_each(|byte| *byte = 0xFF),
                _ => drop(damaged.drain(byte..(byte + 1 + random(8)).min(end))),
            }
        }
        // With damaged numbers it is still a valid state, of another text.
        let _ = runner.restore(id(0), &damaged, 0..20);
        runner.drop_sequence(id(0));
    }
    runner.restore(id(0), &piece, 0..20).expect("the piece is whole");
    assert_eq!(cells_of(&mut runner).len(), 20);
}

#[test]
fn scattered_cells_are_saved_in_order() {
    for setting in SETTINGS {
        let mut runner = start(setting);
        let tokens = prompt(TRUNK + 40);
        compute(&mut runner, 9, 0, &prompt(200)[150..]);
        compute(&mut runner, 0, 0, &tokens[..70]);
        runner.drop_sequence(id(9));
        // Its last 50 tokens are in lower cells than its first ones.
        compute(&mut runner, 0, 70, &tokens[70..TRUNK]);
        assert_eq!(cells_of(&mut runner)[0].0, 70);
        let pieces = [0..40, 40..100, 100..120].map(|range| (range.clone(), runner.save(id(0), range).expect("it is held")));
        let expected = logprobs(&mut runner, 0, TRUNK, &tokens[TRUNK..]);
        runner.drop_sequence(id(0));
        overwrite_free_cells(&mut runner, 0);
        for (range, piece) in pieces {
            runner.restore(id(1), &piece, range).expect("the piece is whole");
        }
        assert!(cells_of(&mut runner).iter().map(|cell| cell.0).eq(0..120));
        assert_same(&logprobs(&mut runner, 1, TRUNK, &tokens[TRUNK..]), &expected);
    }
}
