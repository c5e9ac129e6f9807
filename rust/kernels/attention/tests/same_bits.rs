//! A row's result depends on its own numbers alone.

use super::support::{Case, Cell, How, Random, Row, Setting, Sight, branches, levels, own_content};

/// Results of rows, found by what the rows are.
fn assert_same(case: &Case, result: &[f32], other: &Case, other_result: &[f32], why: &str) {
    let mut n_compared = 0;
    for (at, row) in case.rows.iter().enumerate() {
        let Some(other_at) = other.rows.iter().position(|other| other == row) else { continue };
        let (a, b) = (case.row(result, at), other.row(other_result, other_at));
        assert!(a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()), "{row:?} differs: {why}");
        n_compared += 1;
    }
    assert!(n_compared > 0);
}

/// Alone, with its cells, without anybody else's.
fn alone(setting: Setting, sight: Sight, row: Row, cells: &[Cell]) -> Case {
    let own = cells.iter().filter(|cell| cell.sequences.contains(&row.sequence));
    Case::new(setting, sight, vec![row], own.cloned().collect())
}

#[test]
fn a_row_alone_is_the_row_among_others() {
    let settings = [
        Setting::PLAIN,
        Setting { n_heads: 14, n_kv_heads: 2, ..Setting::PLAIN },
        Setting { n_heads: 2, n_kv_heads: 2, key_size: 128, value_size: 128, ..Setting::PLAIN },
        Setting { softcap: 4.0, has_sinks: true, ..Setting::PLAIN },
    ];
    for (level, setting) in levels().into_iter().flat_map(|level| settings.map(|setting| (level, setting))) {
        let how = How { level, n_threads: 1, knows_order: true };
        for (n_shared, n_own) in [(0, 3), (700, 17), (250, 300)] {
            let (rows, cells) = branches(32, n_shared, n_own);
            let all = Case::new(setting, Sight::Causal, rows.clone(), cells.clone());
            let result = all.compute(how);
            for row in [rows[0], rows[13], rows[31]] {
                let one = alone(setting, Sight::Causal, row, &cells);
                assert_same(&one, &one.compute(how), &all, &result, "alone and among 31 others");
            }
            let mut moved = cells.clone();
            let mut shuffled = rows.clone();
            let mut random = Random(7);
            random.shuffle(&mut moved);
            random.shuffle(&mut shuffled);
            let moved = Case::new(setting, Sight::Causal, shuffled, moved);
            assert_same(&moved, &moved.compute(how), &all, &result, "cells elsewhere");
            for n_threads in [2, 3, 5] {
                assert_same(&all, &all.compute(How { n_threads, ..how }), &all, &result, "more threads");
            }
        }
    }
}

#[test]
fn shared_cells_and_copies_of_them_are_the_same() {
    let (rows, cells) = branches(5, 600, 5);
    let mut copies = Vec::new();
    for cell in &cells {
        copies.extend(cell.sequences.iter().map(|&sequence| Cell { sequences: vec![sequence], ..cell.clone() }));
    }
    for level in levels() {
        for sight in [Sight::Causal, Sight::Distance, Sight::Window(400)] {
            let how = How { level, n_threads: 2, knows_order: true };
            let setting = Setting { max_bias: 8.0, ..Setting::PLAIN };
            let shared = Case::new(setting, sight, rows.clone(), cells.clone());
            let copied = Case::new(setting, sight, rows.clone(), copies.clone());
            assert_same(&shared, &shared.compute(how), &copied, &copied.compute(how), "shared or copied");
        }
    }
}

#[test]
fn a_prompt_is_the_same_in_pieces_of_any_size() {
    const N: u32 = 600;
    let (_, cells) = branches(2, 40, N - 40);
    let rows = |sequence, positions: std::ops::Range<u32>| positions.map(move |position| Row { sequence, position });
    for level in levels() {
        for sight in [Sight::Causal, Sight::Window(300)] {
            let how = How { level, n_threads: 2, knows_order: true };
            let setting = Setting { n_heads: 3, n_kv_heads: 1, ..Setting::PLAIN };
            let whole = Case::new(setting, sight, rows(0, 40..N).chain(rows(1, N - 1..N)).collect(), cells.clone());
            let result = whole.compute(how);
            for (start, end) in [(40, 41), (41, 47), (255, 258), (130, 400), (599, 600)] {
                // While a piece is computed, what comes after it is not there yet.
                let there = cells.iter().filter(|cell| cell.position < end).cloned().collect();
                let piece = Case::new(setting, sight, rows(0, start..end).collect(), there);
                assert_same(&piece, &piece.compute(how), &whole, &result, "in pieces");
            }
        }
    }
}

#[test]
fn work_that_is_cut_by_blocks_is_the_same() {
    // Long rows over one head, so that every team has to cut them.
    let setting = Setting { n_heads: 7, n_kv_heads: 1, ..Setting::PLAIN };
    let (rows, cells) = branches(3, 4_000, 30);
    for level in levels().into_iter().filter(|&level| level != crate::kernels::Level::Portable) {
        let how = How { level, n_threads: 1, knows_order: true };
        let case = Case::new(setting, Sight::Causal, rows.clone(), cells.clone());
        let result = case.compute(how);
        for n_threads in [2, 3, 5, 16] {
            let how = How { n_threads, ..how };
            let mut plan = super::Plan::new();
            case.plan(&mut plan, how);
            assert!(!plan.units.joints.is_empty(), "nothing is cut for {n_threads} threads");
            // One plan serves one layer after the other.
            for _ in 0..3 {
                assert_same(&case, &case.compute_by(&plan, n_threads), &case, &result, "cut over threads");
            }
        }
    }
}

#[test]
fn strangers_that_are_no_numbers_do_no_harm() {
    let (rows, mut cells) = branches(2, 30, 300);
    cells.extend((0..400).map(|position| Cell { position, sequences: vec![9], content: own_content(9, position) }));
    for level in levels() {
        let how = How { level, n_threads: 1, knows_order: true };
        let mut case = Case::new(Setting::PLAIN, Sight::Causal, rows.clone(), cells.clone());
        let result = case.compute(how);
        case.spoil(|cell| !cell.sequences.contains(&0));
        let spoilt = case.compute(how);
        assert_eq!(case.row(&spoilt, 0), case.row(&result, 0));
        assert!(case.row(&spoilt, 1).iter().all(|x| x.is_nan()));
    }
}
