//! Cases of few numbers and of every kind, for an interpreter that watches each access to memory (`make test-miri`).

use super::assert_near;
use super::support::{Case, How, Setting, Sight, branches};
use crate::kernels::Level;
use crate::kernels::attention::Format;

#[test]
fn every_format_is_read_within_its_bounds() {
    let (rows, cells) = branches(2, 5, 2);
    for format in Format::ALL {
        let setting =
            Setting { n_heads: 2, n_kv_heads: 1, key_size: 32, value_size: 32, formats: (format, format), ..Setting::PLAIN };
        assert_near(&Case::new(setting, Sight::Causal, rows.clone(), cells.clone()), 1);
    }
}

#[test]
fn every_setting_is_too() {
    let (rows, cells) = branches(2, 3, 2);
    let small = Setting { n_heads: 3, n_kv_heads: 1, key_size: 8, value_size: 16, ..Setting::PLAIN };
    for setting in [
        Setting { softcap: 5.0, ..small },
        Setting { max_bias: 8.0, ..small },
        Setting { has_sinks: true, ..small },
        Setting { has_mask: false, ..small },
    ] {
        for sight in [Sight::Causal, Sight::Window(2), Sight::Distance, Sight::Some, Sight::Nothing] {
            assert_near(&Case::new(setting, sight, rows.clone(), cells.clone()), 1);
        }
    }
}

#[test]
fn threads_that_share_a_row_keep_to_their_parts() {
    // Of two blocks, each of them for one thread.
    let formats = (Format::F32, Format::F32);
    let setting = Setting { n_heads: 1, n_kv_heads: 1, key_size: 8, value_size: 8, formats, ..Setting::PLAIN };
    let (rows, cells) = branches(1, 260, 1);
    let case = Case::new(setting, Sight::Causal, rows, cells);
    let how = How { level: Level::Portable, n_threads: 1, knows_order: true };
    assert_eq!(case.compute(How { n_threads: 2, ..how }), case.compute(how));
}
