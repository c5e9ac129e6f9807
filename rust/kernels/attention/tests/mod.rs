//! Attention compared with double precision, and with itself bit by bit.

mod same_bits;
mod small;
mod support;

use super::*;
use crate::kernels::Random;
use support::{Case, ComputeOptions, MaskPattern, Row, Setting, branches, levels};

/// Maximum error against double precision, relative to the greatest magnitude: each of some thousand sums is rounded to 24
/// bits, and so is each score before its power of 2 is taken.
const BOUND: f64 = 1e-5;

fn assert_near(case: &Case, step: usize) {
    for level in levels() {
        for (n_threads, has_order) in [(1, true), (2, false)] {
            let options = ComputeOptions { level, n_threads, has_order };
            let error = case.error(&case.compute(options), step);
            assert!(
                error < BOUND,
                "{error:e} with {options:?} of {:?}, {} rows, {} cells",
                case.setting,
                case.rows.len(),
                case.cells.len()
            );
        }
    }
}

fn random_setting(random: &mut Random) -> Setting {
    let n_kv_heads = 1 + random.below(3);
    let key_size = 32 * (1 + random.below(4));
    Setting {
        n_heads: n_kv_heads * random.pick(&[1, 2, 3, 4, 7, 8, 16]),
        n_kv_heads,
        key_size,
        value_size: random.pick(&[key_size, 32, 64, 96, 128]),
        formats: (random.pick(&CellFormat::ALL), random.pick(&CellFormat::ALL)),
        softcap: random.pick(&[0.0, 0.0, 5.0]),
        max_bias: random.pick(&[0.0, 8.0]),
        has_sinks: random.below(4) == 0,
        has_mask: random.below(8) != 0,
    }
}

fn random_pattern(random: &mut Random) -> MaskPattern {
    let size = 1 + u32::try_from(random.below(300)).unwrap();
    random.pick(&[
        MaskPattern::Causal,
        MaskPattern::Window(size),
        MaskPattern::Whole,
        MaskPattern::Distance,
        MaskPattern::Some,
        MaskPattern::Nothing,
    ])
}

#[test]
fn random_shapes_agree_with_double_precision() {
    let mut random = Random(1);
    for _ in 0..60 {
        let n = |random: &mut Random, max| u32::try_from(random.below(max)).unwrap();
        let (n_sequences, n_shared, n_own) = (1 + n(&mut random, 6), n(&mut random, 400), 1 + n(&mut random, 90));
        let (mut rows, mut cells) = branches(n_sequences, n_shared, n_own);
        // A prompt's chunk: one sequence has more than one row.
        let n_more = n(&mut random, 30).min(n_shared + n_own - 1);
        rows.extend((0..n_more).map(|before| Row { sequence: 0, position: n_shared + n_own - 2 - before }));
        if random.below(2) == 0 {
            random.shuffle(&mut cells);
            random.shuffle(&mut rows);
        }
        let pattern = random_pattern(&mut random);
        assert_near(&Case::new(random_setting(&mut random), pattern, rows, cells), 3);
    }
}

#[test]
fn every_format_head_size_and_number_of_heads_agrees_with_double_precision() {
    let (rows, cells) = branches(3, 70, 9);
    for format in CellFormat::ALL {
        for size in [32, 64, 96, 128, 160, 192, 256] {
            let setting = Setting { key_size: size, value_size: size, formats: (format, format), ..Setting::PLAIN };
            assert_near(&Case::new(setting, MaskPattern::Causal, rows.clone(), cells.clone()), 1);
        }
    }
    for (key_size, value_size) in [(8, 16), (48, 80), (80, 48), (192, 128), (576, 512), (64, 8), (120, 120)] {
        assert_near(
            &Case::new(Setting { key_size, value_size, ..Setting::PLAIN }, MaskPattern::Causal, rows.clone(), cells.clone()),
            1,
        );
    }
    for heads_per_kv in [1, 2, 5, 7, 14, 15, 16, 31, 64, 128] {
        let setting = Setting { n_heads: heads_per_kv, n_kv_heads: 1, ..Setting::PLAIN };
        assert_near(&Case::new(setting, MaskPattern::Causal, rows.clone(), cells.clone()), 1);
    }
}

#[test]
fn long_rows_agree_with_double_precision() {
    let setting = Setting { n_heads: 2, n_kv_heads: 1, key_size: 32, value_size: 32, ..Setting::PLAIN };
    let (rows, cells) = branches(1, 39_999, 1);
    assert_near(&Case::new(setting, MaskPattern::Causal, rows, cells), 1);
    let (mut rows, cells) = branches(2, 300, 500);
    rows.extend((0..598).map(|position| Row { sequence: position % 2, position: 100 + position }));
    assert_near(&Case::new(setting, MaskPattern::Causal, rows.clone(), cells.clone()), 37);
    assert_near(&Case::new(setting, MaskPattern::Window(256), rows, cells), 37);
}

#[test]
fn a_row_that_sees_no_cell_is_zero() {
    let (rows, cells) = branches(2, 20, 3);
    for has_sinks in [false, true] {
        for level in levels() {
            let case = Case::new(Setting { has_sinks, ..Setting::PLAIN }, MaskPattern::Nothing, rows.clone(), cells.clone());
            let result = case.compute(ComputeOptions { level, n_threads: 1, has_order: true });
            assert!(result.iter().all(|&x| x == 0.0));
        }
    }
}

#[test]
fn nan_in_a_visible_cell_reaches_the_result() {
    let (rows, cells) = branches(2, 20, 300);
    for level in levels() {
        let mut case = Case::new(Setting::PLAIN, MaskPattern::Causal, rows.clone(), cells.clone());
        case.fill_with_nan(|cell| cell.sequences == [1] && cell.position == 100);
        let result = case.compute(ComputeOptions { level, n_threads: 1, has_order: true });
        assert!(case.row(&result, 0).iter().all(|x| x.is_finite()));
        assert!(case.row(&result, 1).iter().all(|x| x.is_nan()));
    }
}

#[test]
fn a_plan_can_be_made_again() {
    let mut random = Random(3);
    let mut plan = AttentionPlan::default();
    for level in levels() {
        let options = ComputeOptions { level, n_threads: 2, has_order: true };
        for (n_sequences, n_shared, n_own) in [(9, 300, 40), (1, 0, 1), (3, 1200, 2)] {
            let (mut rows, cells) = branches(n_sequences, n_shared, n_own);
            random.shuffle(&mut rows);
            let case = Case::new(Setting::PLAIN, random_pattern(&mut random), rows, cells);
            case.plan(&mut plan, options);
            assert_eq!(case.compute_with_plan(&plan, 2), case.compute(options));
        }
    }
}

/// Returns true if `f` panics with a message that contains `word`.
fn panics_with(word: &str, f: impl FnOnce() + std::panic::UnwindSafe) -> bool {
    let message = std::panic::catch_unwind(f).expect_err("it does not panic");
    message.downcast_ref::<String>().map(String::as_str).or(message.downcast_ref::<&str>().copied()).unwrap().contains(word)
}

#[test]
fn inconsistent_sizes_are_rejected() {
    let (rows, cells) = branches(2, 20, 3);
    let case = Case::new(Setting::PLAIN, MaskPattern::Causal, rows, cells);
    let options = ComputeOptions { level: Level::Portable, n_threads: 1, has_order: true };
    let mut plan = AttentionPlan::default();
    case.plan(&mut plan, options);
    let size = case.shape.n_heads * case.shape.value_size;
    let enough = scratch_bytes(&case.shape, 1);
    let attend_with = |change: fn(&mut Attention), n_results: usize, n_scratch: usize, row_stride: usize| {
        let (mut values, mut scratch) = (vec![0.0; n_results], vec![0; n_scratch]);
        let (values, scratch) = (SharedSlice::from(&mut values[..]), SharedSlice::from(&mut scratch[..]));
        let mut attention = case.attention();
        change(&mut attention);
        attend(
            &attention,
            &plan,
            &AttentionOutput { values: &values, row_stride, head_stride: 64 },
            &scratch,
            &crate::kernels::SoloTeam,
        );
    };
    let attend_with = std::panic::AssertUnwindSafe(attend_with);
    attend_with(|_| (), 2 * size, enough, size);
    assert!(panics_with("scratch", || attend_with(|_| (), 2 * size, enough - 1, size)));
    assert!(panics_with("results end", || attend_with(|_| (), 2 * size - 1, enough, size)));
    assert!(panics_with("overlap", || attend_with(|_| (), 2 * size, enough, size - 1)));
    assert!(panics_with("keys end", || attend_with(|a| a.keys.bytes = &a.keys.bytes[1..], 2 * size, enough, size)));
    assert!(panics_with("values end", || attend_with(|a| a.values.cell_stride += 16, 2 * size, enough, size)));
    assert!(panics_with("queries end", || attend_with(|a| a.queries.row_stride += 1, 2 * size, enough, size)));
    assert!(panics_with("another shape", || attend_with(|a| a.shape.n_cells -= 1, 2 * size, enough, size)));
    assert!(panics_with("another mask", || attend_with(|a| a.mask = None, 2 * size, enough, size)));
    assert!(panics_with("mask ends", || attend_with(|a| a.mask.as_mut().unwrap().row_stride += 1, 2 * size, enough, size)));
    assert!(panics_with("sinks", || attend_with(|a| a.sinks = Some(&[]), 2 * size, enough, size)));
    assert!(panics_with("another number of threads", || {
        let mut plan = AttentionPlan::default();
        case.plan(&mut plan, ComputeOptions { n_threads: 2, ..options });
        case.compute_with_plan(&plan, 1);
    }));
    assert!(panics_with("sequence", || {
        let order = MaskOrder { sequence_of_row: &[0], position_of_cell: None };
        AttentionPlan::default().make(Level::Portable, 1, &case.shape, None, Some(&order));
    }));
}

#[test]
fn covers_reports_the_supported_shapes() {
    let shape = Case::new(Setting::PLAIN, MaskPattern::Causal, vec![Row { sequence: 0, position: 0 }], branches(1, 1, 1).1).shape;
    for level in levels() {
        assert!(covers(level, CellFormat::F16, CellFormat::Q8_0, &shape));
        assert!(!covers(level, CellFormat::Q8_0, CellFormat::F16, &AttentionShape { key_size: 48, ..shape }));
        assert!(!covers(level, CellFormat::F16, CellFormat::F16, &AttentionShape { key_size: 20, ..shape }));
        assert!(covers(level, CellFormat::F16, CellFormat::Bf16, &AttentionShape { value_size: 120, ..shape }));
        assert!(!covers(level, CellFormat::F16, CellFormat::F16, &AttentionShape { value_size: 20, ..shape }));
        assert!(!covers(level, CellFormat::F16, CellFormat::F16, &AttentionShape { n_heads: 3, ..shape }));
        assert!(!covers(level, CellFormat::F16, CellFormat::F16, &AttentionShape { n_rows: 0, ..shape }));
    }
}
