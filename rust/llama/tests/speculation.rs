//! Speculative decoding changes no bit of a result.

use std::sync::Arc;

use super::demo_path;
use super::equality::check;
use crate::config::{EnabledKernels, KernelChoice, ModelConfig};
use crate::llama::{Model, kernels};

/// Requests of `make test`; the bench `speculation` has a part `equality` that runs thousands.
const N_REQUESTS: u32 = 40;

#[test]
#[expect(clippy::print_stderr, reason = "the counts show that drafts are accepted and rejected")]
fn requests_of_all_kinds_give_the_same_bits_with_drafts() {
    if kernels::install().usable != EnabledKernels::ALL {
        return;
    }
    let demo = Model::load(&ModelConfig { kernels: KernelChoice::Weft, ..ModelConfig::at(demo_path()) }, |_| ());
    let counts = check(&Arc::new(demo.expect("the demo model loads")), N_REQUESTS, 1).unwrap_or_else(|error| panic!("{error}"));
    eprintln!("{counts}");
    assert!(counts.differences.is_empty(), "{}", counts.differences.join("\n"));
    let [cut, two] = [counts.n_cut, counts.n_two].map(|n| counts.percent_of_drafts(n));
    assert!(cut >= 30 && two >= 30 && counts.n_forks > 0 && counts.n_cancelled > 0, "{counts}");
}
