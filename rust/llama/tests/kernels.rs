//! Compares our kernels inside llama.cpp with its own.
#![expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "numbers are small")]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use super::tiny::{Kind, tiny};
use super::{demo, resolve_llama_cpp};
use crate::config::{EnabledKernels, EngineConfig, FlashAttention, ResolvedConfig};
use crate::engine::runner::{KvSeqId, Runner};
use crate::llama::backend::backend;
use crate::llama::context::batch::rows_of;
use crate::llama::kernels::graph::{Graph, GraphTensor};
use crate::llama::{LlamaRunner, kernels};
use crate::request::Token;

/// Returns the folder of llama.cpp's sources in cargo's registry.
pub(super) fn llama_cpp() -> PathBuf {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let output = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
    let paths = output.split("\"manifest_path\":\"").skip(1).filter_map(|rest| rest.split('"').next());
    let manifest = paths.map(Path::new).find(|path| path.to_string_lossy().contains("/llama-cpp-sys-2-"));
    manifest.and_then(Path::parent).expect("llama.cpp's crate is a dependency").join("llama.cpp")
}

#[test]
fn mirrored_declarations_match_the_private_headers() {
    check_mirror("rust/llama/kernels", &["ggml/src", "ggml/include", "include", "src"]);
    check_mirror("rust/llama/draft", &["common", "ggml/include", "include", "src", "vendor"]);
}

/// Compiles the comparison of our declarations in a folder with llama.cpp's headers.
fn check_mirror(ours: &str, folders: &[&str]) {
    let (sources, ours) = (llama_cpp(), Path::new(env!("CARGO_MANIFEST_DIR")).join(ours));
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let folders: Vec<_> = folders.iter().map(|folder| sources.join(folder)).collect();
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-fsyntax-only", "-fno-access-control", "-Wno-invalid-offsetof"]);
    for folder in folders.iter().chain([&ours]) {
        command.arg("-I").arg(folder);
    }
    let output = command.arg(ours.join("mirror_check.cpp")).output().expect("there is a compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn kernels_pass_their_trial_on_supported_processors() {
    backend();
    let installed = kernels::install();
    let has_instructions = installed.level != crate::kernels::Level::Portable;
    assert_eq!(installed.usable == EnabledKernels::ALL, has_instructions, "{:?}", installed.unusable_reason);
}

struct Noise(u64);

impl Noise {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }

    fn number(&mut self) -> f32 {
        self.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0
    }

    fn numbers(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.number()).collect()
    }
}

/// Compares our numbers with theirs: they differ by at most `relative` of their value, or of a tenth of the largest if that is
/// more.
#[track_caller]
fn assert_close(ours: &[f32], theirs: &[f32], relative: f32, what: &str) {
    assert_eq!(ours.len(), theirs.len());
    let largest = theirs.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
    for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
        let bound = relative * b.abs().max(largest / 10.0);
        assert!((a - b).abs() <= bound, "{what}: number {i} is {a}, and llama.cpp's {b}");
    }
}

/// Returns true if we have kernels for this processor. Starts the backend.
fn has_kernels() -> bool {
    backend();
    kernels::install().usable == EnabledKernels::ALL
}

/// Computes with our kernels and llama.cpp's, and compares the results.
#[track_caller]
fn compare(graph: &Graph, result: GraphTensor, n_threads: u32, relative: f32, what: &str) {
    let theirs = graph.compute(result, n_threads, EnabledKernels::NONE);
    let (ours, counted) = kernels::count_operations(|| graph.compute(result, n_threads, EnabledKernels::ALL));
    assert_eq!(counted.are_all_ours(), has_kernels(), "{what} is computed by ours");
    assert_close(&ours, &theirs, relative, what);
}

#[test]
fn products_of_every_covered_format_match_llama_cpp() {
    // llama.cpp rounds the rows to the format of 16-bit weights, ours does not.
    let (exact, rounded_11, rounded_8) = (1e-3, 1e-2, 5e-2);
    let kinds = [
        ("Q8_0", sys::GGML_TYPE_Q8_0, exact),
        ("Q4_0", sys::GGML_TYPE_Q4_0, exact),
        ("Q4_1", sys::GGML_TYPE_Q4_1, exact),
        ("Q5_0", sys::GGML_TYPE_Q5_0, exact),
        ("Q5_1", sys::GGML_TYPE_Q5_1, exact),
        ("IQ4_NL", sys::GGML_TYPE_IQ4_NL, exact),
        ("IQ4_XS", sys::GGML_TYPE_IQ4_XS, exact),
        ("MXFP4", sys::GGML_TYPE_MXFP4, exact),
        ("Q2_K", sys::GGML_TYPE_Q2_K, exact),
        ("Q3_K", sys::GGML_TYPE_Q3_K, exact),
        ("Q4_K", sys::GGML_TYPE_Q4_K, exact),
        ("Q5_K", sys::GGML_TYPE_Q5_K, exact),
        ("Q6_K", sys::GGML_TYPE_Q6_K, exact),
        ("F16", sys::GGML_TYPE_F16, rounded_11),
        ("BF16", sys::GGML_TYPE_BF16, rounded_8),
        ("F32", sys::GGML_TYPE_F32, exact),
    ];
    backend();
    let mut noise = Noise(1);
    for (name, kind, relative) in kinds {
        for (n_in, n_out, n_rows) in [(256, 16, 1), (512, 40, 2), (1024, 100, 5), (256, 33, 8), (768, 64, 70)] {
            let mut graph = Graph::new();
            let weights = graph.tensor(kind, [n_in, n_out, 1, 1]);
            let rows = graph.tensor(sys::GGML_TYPE_F32, [n_in, n_rows, 1, 1]);
            // SAFETY: the tensors belong to the graph, and their sizes fit.
            let result = graph.operation(|context| unsafe { sys::ggml_mul_mat(context, weights.as_ptr(), rows.as_ptr()) });
            graph.allocate();
            graph.fill(weights, &noise.numbers(n_in * n_out));
            graph.fill(rows, &noise.numbers(n_in * n_rows));
            compare(&graph, result, 1 + n_rows as u32 % 3, relative, &format!("{name}, {n_in} × {n_out}, {n_rows} rows"));
        }
    }
}

#[test]
fn products_by_expert_match_llama_cpp() {
    const N_EXPERTS: usize = 6;
    backend();
    let mut noise = Noise(3);
    // Numbers in and out, experts per token, tokens, and whether each expert has its own row.
    for (kind, n_in, n_out, n_used, n_tokens, own_rows) in [
        (sys::GGML_TYPE_Q8_0, 256, 40, 2, 1, false),
        (sys::GGML_TYPE_Q4_K, 512, 64, 3, 9, false),
        (sys::GGML_TYPE_Q6_K, 256, 33, 2, 40, true),
    ] {
        let mut graph = Graph::new();
        let weights = graph.tensor(kind, [n_in, n_out, N_EXPERTS, 1]);
        let n_rows = if own_rows { n_used } else { 1 };
        let rows = graph.tensor(sys::GGML_TYPE_F32, [n_in, n_rows, n_tokens, 1]);
        let chosen = graph.tensor(sys::GGML_TYPE_I32, [n_used, n_tokens, 1, 1]);
        // SAFETY: the tensors belong to the graph, and their sizes fit.
        let result =
            graph.operation(|context| unsafe { sys::ggml_mul_mat_id(context, weights.as_ptr(), rows.as_ptr(), chosen.as_ptr()) });
        graph.allocate();
        graph.fill(weights, &noise.numbers(n_in * n_out * N_EXPERTS));
        graph.fill(rows, &noise.numbers(n_in * n_rows * n_tokens));
        // No token selects an expert twice, and one expert is never selected.
        let expert = |token: usize, i: usize| i32::try_from((token * 7 + i * 2) % (N_EXPERTS - 1)).expect("they are few");
        let experts: Vec<i32> = (0..n_tokens * n_used).map(|pair| expert(pair / n_used, pair % n_used)).collect();
        graph.fill_integers(chosen, &experts);
        compare(&graph, result, 2, 1e-3, &format!("{n_used} of {N_EXPERTS} experts, {n_tokens} tokens"));
    }
}

#[test]
fn attention_over_every_covered_format_matches_llama_cpp() {
    // llama.cpp sums V in f16 if its format is f16, and rounds Q to the format of K.
    let kinds = [
        ("F32", sys::GGML_TYPE_F32, 1e-3),
        ("F16", sys::GGML_TYPE_F16, 1e-1),
        ("BF16", sys::GGML_TYPE_BF16, 1e-1),
        ("Q8_0", sys::GGML_TYPE_Q8_0, 1e-1),
    ];
    backend();
    let mut noise = Noise(2);
    for (name, kind, relative) in kinds {
        // Rows, cells, heads, KV heads, sizes of a key's and a value's head.
        for [n_rows, n_cells, n_heads, n_kv_heads, key, value] in
            [[1, 256, 4, 4, 64, 64], [8, 512, 8, 2, 64, 64], [3, 1024, 6, 1, 128, 64], [70, 768, 4, 2, 32, 32]]
        {
            for (softcap, max_bias) in [(0.0, 0.0), (30.0, 0.0), (0.0, 8.0)] {
                let mut graph = Graph::new();
                let q = graph.tensor(sys::GGML_TYPE_F32, [key, n_rows, n_heads, 1]);
                let k = graph.tensor(kind, [key, n_cells, n_kv_heads, 1]);
                let v = graph.tensor(kind, [value, n_cells, n_kv_heads, 1]);
                let mask = graph.tensor(sys::GGML_TYPE_F16, [n_cells, n_rows, 1, 1]);
                let sinks = graph.tensor(sys::GGML_TYPE_F32, [n_heads, 1, 1, 1]);
                let has_sinks = softcap == 0.0 && max_bias == 0.0 && n_rows == 8;
                let scale = 1.0 / (key as f32).sqrt();
                // SAFETY: the tensors belong to the graph, and their sizes fit.
                let result = graph.operation(|context| unsafe {
                    let [q, k, v, mask] = [q, k, v, mask].map(GraphTensor::as_ptr);
                    let result = sys::ggml_flash_attn_ext(context, q, k, v, mask, scale, max_bias, softcap);
                    if has_sinks {
                        sys::ggml_flash_attn_ext_add_sinks(result, sinks.as_ptr());
                    }
                    result
                });
                graph.allocate();
                for (tensor, n) in [(q, key * n_rows * n_heads), (k, key * n_cells * n_kv_heads)] {
                    graph.fill(tensor, &noise.numbers(n));
                }
                graph.fill(v, &noise.numbers(value * n_cells * n_kv_heads));
                graph.fill(sinks, &noise.numbers(n_heads));
                // Each row sees the cells of one of three sequences, up to its own position.
                let sees = |row: usize, cell: usize| cell % 3 == row % 3 && cell < n_cells - 2 * (n_rows - row);
                let value_at = |row: usize, cell: usize| match (sees(row, cell), max_bias > 0.0) {
                    (false, _) => f32::NEG_INFINITY,
                    (true, false) => 0.0,
                    (true, true) => -((n_cells - cell) as f32) / 64.0,
                };
                let values = (0..n_rows * n_cells).map(|i| value_at(i / n_cells, i % n_cells));
                graph.fill(mask, &values.collect::<Vec<_>>());
                let what = format!("{name}, {n_rows} rows, {n_cells} cells, heads {n_heads}/{n_kv_heads} of {key}/{value}");
                compare(&graph, result, 1 + n_rows as u32 % 3, relative, &what);
            }
        }
    }
}

#[test]
fn every_kind_of_memory_gives_equal_results_with_our_kernels() {
    let models = [demo(), tiny(Kind::Window), tiny(Kind::Hybrid), tiny(Kind::Recurrent)];
    for model in models {
        let logits = |kernels| {
            let config = EngineConfig { flash_attention: FlashAttention::On, n_threads: Some(2), ..EngineConfig::default() };
            let config = resolve_llama_cpp(&model, &config).expect("the configuration is valid");
            let config = ResolvedConfig { kernels, ..config };
            let mut runner = LlamaRunner::new(Arc::clone(&model), &config).expect("the model runs");
            let tokens: Vec<Token> = (0..90).map(|i| 5 + i * 7 % 200).collect();
            runner.decode(&rows_of(KvSeqId(0), 0, &tokens[..60])).expect("the plan is valid");
            runner.decode(&rows_of(KvSeqId(0), 60, &tokens[60..])).expect("the plan is valid");
            runner.logits(29).to_vec()
        };
        let (ours, theirs) = (logits(EnabledKernels::ALL), logits(EnabledKernels::NONE));
        let largest = theirs.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let difference = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(difference <= 0.02 * largest, "{}: logits up to {largest} are {difference} apart", model.architecture());
    }
}
