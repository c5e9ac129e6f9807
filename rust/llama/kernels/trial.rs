//! Tests that our kernels are called and agree with llama.cpp's: one small operation of each kind, computed with both.

use std::time::Instant;

use llama_cpp_sys_2 as sys;

use crate::config::EnabledKernels;
use crate::kernels::Level;
use crate::llama::kernels::graph::Graph;
use crate::llama::kernels::{Installed, count_operations};

/// Maximum difference of an element from llama.cpp's, relative to the largest element. llama.cpp sums V in f16.
const TOLERANCE: f32 = 2e-2;

/// Takes 0.7 ms on a core of 2025 with cold caches.
pub(super) fn run(level: Level) -> Installed {
    let started = Instant::now();
    let results = [compare(attend), compare(multiply)];
    tracing::debug!("the trial of our kernels took {:.1?}", started.elapsed());
    let usable = EnabledKernels { attention: results[0].is_ok(), products: results[1].is_ok() };
    let named = ["attention", "products"].into_iter().zip(results);
    let reasons: Vec<String> = named.filter_map(|(name, result)| Some(format!("{name}: {}", result.err()?))).collect();
    Installed { usable, level, unusable_reason: (!reasons.is_empty()).then(|| reasons.join("; ")) }
}

fn compare(compute: impl Fn(EnabledKernels) -> Vec<f32>) -> Result<(), &'static str> {
    let theirs = compute(EnabledKernels::NONE);
    let (ours, counts) = count_operations(|| compute(EnabledKernels::ALL));
    if !counts.are_all_ours() {
        return Err("llama.cpp does not call it");
    }
    let largest = theirs.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= TOLERANCE * largest;
    if ours.iter().zip(&theirs).all(is_close) { Ok(()) } else { Err("its results differ from llama.cpp's") }
}

fn noise(n: usize, seed: u32) -> Vec<f32> {
    let next = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
    #[expect(clippy::cast_precision_loss, reason = "24 bits are exact")]
    let number = |state: u32| (state >> 8) as f32 / 8_388_608.0 - 1.0;
    std::iter::successors(Some(seed), next).skip(1).take(n).map(number).collect()
}

fn attend(enabled: EnabledKernels) -> Vec<f32> {
    const HEAD: usize = 64;
    const N_CELLS: usize = 96;
    const N_ROWS: usize = 8;
    let mut graph = Graph::new();
    let q = graph.tensor(sys::GGML_TYPE_F32, [HEAD, N_ROWS, 4, 1]);
    let k = graph.tensor(sys::GGML_TYPE_F16, [HEAD, N_CELLS, 2, 1]);
    let v = graph.tensor(sys::GGML_TYPE_F16, [HEAD, N_CELLS, 2, 1]);
    let mask = graph.tensor(sys::GGML_TYPE_F16, [N_CELLS, N_ROWS, 1, 1]);
    // SAFETY: the tensors belong to the graph, and their sizes fit.
    let result = graph.operation(|context| unsafe {
        sys::ggml_flash_attn_ext(context, q.as_ptr(), k.as_ptr(), v.as_ptr(), mask.as_ptr(), 0.125, 0.0, 0.0)
    });
    graph.allocate();
    for (seed, tensor, n) in [(0, q, N_ROWS * 4), (1, k, N_CELLS * 2), (2, v, N_CELLS * 2)] {
        graph.fill(tensor, &noise(n * HEAD, seed));
    }
    let sees = |row: usize, cell: usize| cell < 32 || (cell % N_ROWS == row && cell < 80);
    let hidden = |i: usize| if sees(i / N_CELLS, i % N_CELLS) { 0.0 } else { f32::NEG_INFINITY };
    graph.fill(mask, &(0..N_ROWS * N_CELLS).map(hidden).collect::<Vec<_>>());
    graph.compute(result, 1, enabled)
}

fn multiply(enabled: EnabledKernels) -> Vec<f32> {
    const N_IN: usize = 64;
    const N_OUT: usize = 48;
    const N_ROWS: usize = 4;
    let mut graph = Graph::new();
    let weights = graph.tensor(sys::GGML_TYPE_Q8_0, [N_IN, N_OUT, 1, 1]);
    let rows = graph.tensor(sys::GGML_TYPE_F32, [N_IN, N_ROWS, 1, 1]);
    // SAFETY: the tensors belong to the graph, and their sizes fit.
    let result = graph.operation(|context| unsafe { sys::ggml_mul_mat(context, weights.as_ptr(), rows.as_ptr()) });
    graph.allocate();
    graph.fill(weights, &noise(N_IN * N_OUT, 3));
    graph.fill(rows, &noise(N_IN * N_ROWS, 4));
    graph.compute(result, 1, enabled)
}
