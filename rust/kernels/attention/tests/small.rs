//! Small cases of every kind, for Miri (`make test-miri`).

use super::assert_near;
use super::support::{Case, ComputeOptions, MaskPattern, Setting, branches};
use crate::kernels::Level;
use crate::kernels::attention::CellFormat;

#[test]
fn every_format_is_read_within_its_bounds() {
    let (rows, cells) = branches(2, 5, 2);
    for format in CellFormat::ALL {
        let setting =
            Setting { n_heads: 2, n_kv_heads: 1, key_size: 32, value_size: 32, formats: (format, format), ..Setting::PLAIN };
        assert_near(&Case::new(setting, MaskPattern::Causal, rows.clone(), cells.clone()), 1);
    }
}

#[test]
fn every_setting_agrees_with_double_precision() {
    let (rows, cells) = branches(2, 3, 2);
    let small = Setting { n_heads: 3, n_kv_heads: 1, key_size: 8, value_size: 16, ..Setting::PLAIN };
    for setting in [
        Setting { softcap: 5.0, ..small },
        Setting { max_bias: 8.0, ..small },
        Setting { has_sinks: true, ..small },
        Setting { has_mask: false, ..small },
    ] {
        for pattern in
            [MaskPattern::Causal, MaskPattern::Window(2), MaskPattern::Distance, MaskPattern::Some, MaskPattern::Nothing]
        {
            assert_near(&Case::new(setting, pattern, rows.clone(), cells.clone()), 1);
        }
    }
}

#[test]
fn threads_that_share_a_row_write_only_their_own_parts() {
    // Two blocks, one for each thread.
    let formats = (CellFormat::F32, CellFormat::F32);
    let setting = Setting { n_heads: 1, n_kv_heads: 1, key_size: 8, value_size: 8, formats, ..Setting::PLAIN };
    let (rows, cells) = branches(1, 260, 1);
    let case = Case::new(setting, MaskPattern::Causal, rows, cells);
    let options = ComputeOptions { level: Level::Portable, n_threads: 1, has_order: true };
    assert_eq!(case.compute(ComputeOptions { n_threads: 2, ..options }), case.compute(options));
}
