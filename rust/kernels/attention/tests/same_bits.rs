//! A row's result depends on its own inputs alone.

use super::support::{Case, Cell, ComputeOptions, MaskPattern, Row, Setting, branches, levels, own_content};
use crate::kernels::Random;

/// Compares the results of rows that occur in both cases.
fn assert_same(case: &Case, result: &[f32], other: &Case, other_result: &[f32], context: &str) {
    let mut n_compared = 0;
    for (at, row) in case.rows.iter().enumerate() {
        let Some(other_at) = other.rows.iter().position(|other| other == row) else { continue };
        let (a, b) = (case.row(result, at), other.row(other_result, other_at));
        assert!(a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()), "{row:?} differs: {context}");
        n_compared += 1;
    }
    assert!(n_compared > 0);
}

/// The row alone, with only its own cells.
fn alone(setting: Setting, pattern: MaskPattern, row: Row, cells: &[Cell]) -> Case {
    let own = cells.iter().filter(|cell| cell.sequences.contains(&row.sequence));
    Case::new(setting, pattern, vec![row], own.cloned().collect())
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    let settings = [
        Setting::PLAIN,
        Setting { n_heads: 14, n_kv_heads: 2, ..Setting::PLAIN },
        Setting { n_heads: 2, n_kv_heads: 2, key_size: 128, value_size: 128, ..Setting::PLAIN },
        Setting { softcap: 4.0, has_sinks: true, ..Setting::PLAIN },
    ];
    for (level, setting) in levels().into_iter().flat_map(|level| settings.map(|setting| (level, setting))) {
        let options = ComputeOptions { level, n_threads: 1, has_order: true };
        for (n_shared, n_own) in [(0, 3), (700, 17), (250, 300)] {
            let (rows, cells) = branches(32, n_shared, n_own);
            let all = Case::new(setting, MaskPattern::Causal, rows.clone(), cells.clone());
            let result = all.compute(options);
            for row in [rows[0], rows[13], rows[31]] {
                let one = alone(setting, MaskPattern::Causal, row, &cells);
                assert_same(&one, &one.compute(options), &all, &result, "alone and among 31 others");
            }
            let mut moved = cells.clone();
            let mut shuffled = rows.clone();
            let mut random = Random(7);
            random.shuffle(&mut moved);
            random.shuffle(&mut shuffled);
            let moved = Case::new(setting, MaskPattern::Causal, shuffled, moved);
            assert_same(&moved, &moved.compute(options), &all, &result, "cells in another order");
            for n_threads in [2, 3, 5] {
                assert_same(&all, &all.compute(ComputeOptions { n_threads, ..options }), &all, &result, "more threads");
            }
        }
    }
}

#[test]
fn shared_and_copied_cells_give_the_same_bits() {
    let (rows, cells) = branches(5, 600, 5);
    let mut copies = Vec::new();
    for cell in &cells {
        copies.extend(cell.sequences.iter().map(|&sequence| Cell { sequences: vec![sequence], ..cell.clone() }));
    }
    for level in levels() {
        for pattern in [MaskPattern::Causal, MaskPattern::Distance, MaskPattern::Window(400)] {
            let options = ComputeOptions { level, n_threads: 2, has_order: true };
            let setting = Setting { max_bias: 8.0, ..Setting::PLAIN };
            let shared = Case::new(setting, pattern, rows.clone(), cells.clone());
            let copied = Case::new(setting, pattern, rows.clone(), copies.clone());
            assert_same(&shared, &shared.compute(options), &copied, &copied.compute(options), "shared or copied");
        }
    }
}

#[test]
fn a_prompt_has_the_same_bits_in_chunks_of_any_size() {
    const N: u32 = 600;
    let (_, cells) = branches(2, 40, N - 40);
    let rows = |sequence, positions: std::ops::Range<u32>| positions.map(move |position| Row { sequence, position });
    for level in levels() {
        for pattern in [MaskPattern::Causal, MaskPattern::Window(300)] {
            let options = ComputeOptions { level, n_threads: 2, has_order: true };
            let setting = Setting { n_heads: 3, n_kv_heads: 1, ..Setting::PLAIN };
            let whole = Case::new(setting, pattern, rows(0, 40..N).chain(rows(1, N - 1..N)).collect(), cells.clone());
            let result = whole.compute(options);
            for (start, end) in [(40, 41), (41, 47), (255, 258), (130, 400), (599, 600)] {
                // When a chunk is computed, later cells do not exist yet.
                let existing = cells.iter().filter(|cell| cell.position < end).cloned().collect();
                let chunk = Case::new(setting, pattern, rows(0, start..end).collect(), existing);
                assert_same(&chunk, &chunk.compute(options), &whole, &result, "in chunks");
            }
        }
    }
}

#[test]
fn splitting_work_by_blocks_does_not_change_results() {
    // Long rows over one head, so that every team has to split them.
    let setting = Setting { n_heads: 7, n_kv_heads: 1, ..Setting::PLAIN };
    let (rows, cells) = branches(3, 4_000, 30);
    for level in levels().into_iter().filter(|&level| level != crate::kernels::Level::Portable) {
        let options = ComputeOptions { level, n_threads: 1, has_order: true };
        let case = Case::new(setting, MaskPattern::Causal, rows.clone(), cells.clone());
        let result = case.compute(options);
        for n_threads in [2, 3, 5, 16] {
            let options = ComputeOptions { n_threads, ..options };
            let mut plan = super::AttentionPlan::default();
            case.plan(&mut plan, options);
            assert!(!plan.units.splits.is_empty(), "nothing is split for {n_threads} threads");
            // One plan serves all layers.
            for _ in 0..3 {
                assert_same(&case, &case.compute_with_plan(&plan, n_threads), &case, &result, "split over threads");
            }
        }
    }
}

#[test]
fn nan_in_cells_of_other_sequences_does_not_reach_a_row() {
    let (rows, mut cells) = branches(2, 30, 300);
    cells.extend((0..400).map(|position| Cell { position, sequences: vec![9], content: own_content(9, position) }));
    for level in levels() {
        let options = ComputeOptions { level, n_threads: 1, has_order: true };
        let mut case = Case::new(Setting::PLAIN, MaskPattern::Causal, rows.clone(), cells.clone());
        let result = case.compute(options);
        case.fill_with_nan(|cell| !cell.sequences.contains(&0));
        let poisoned = case.compute(options);
        assert_eq!(case.row(&poisoned, 0), case.row(&result, 0));
        assert!(case.row(&poisoned, 1).iter().all(|x| x.is_nan()));
    }
}
