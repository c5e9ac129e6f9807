//! Models to measure: some of a size used in production, and one so small that all overhead is visible.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weft::config::{KernelChoice, ModelConfig};
use weft::llama::Model;

use super::synthetic::{self, Synthetic};

/// A file to measure.
pub(crate) struct Candidate {
    /// The file name.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// Returns the half-billion model and the small one, if their file names contain `name`.
///
/// # Errors
/// Errors of [`every`].
#[allow(dead_code, reason = "the bench of decoding asks for every one")]
pub(crate) fn chosen(name: &str) -> Result<Vec<Candidate>, String> {
    among(&[synthetic::HALF_Q8_0], name)
}

/// Returns all models for measurements of steps, if their file names contain `name`: the half-billion model in both mixes, one
/// whose width fits the K-quants, and the small one. Synthetic models are written on first use.
///
/// # Errors
/// A message, if one cannot be written, if no name matches, or if the small one is missing.
pub(crate) fn every(name: &str) -> Result<Vec<Candidate>, String> {
    among(&synthetic::ALL, name)
}

/// Returns the models for measurements of speculative decoding, if their file names contain `name`.
///
/// # Errors
/// Errors of [`every`].
#[allow(dead_code, reason = "the bench of speculation asks for them")]
pub(crate) fn for_speculation(name: &str) -> Result<Vec<Candidate>, String> {
    among(&[synthetic::HALF_Q4_K_M, synthetic::ONE_WITH_LARGE_VOCABULARY], name)
}

fn among(synthetic: &[Synthetic], name: &str) -> Result<Vec<Candidate>, String> {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/weft/models/storyteller-q8_0.gguf");
    let small = env::var_os("WEFT_BENCH_MODEL").map_or(demo, PathBuf::from);
    let mut chosen = Vec::new();
    for model in synthetic.iter().filter(|model| file_name(&model.path()).contains(name)) {
        chosen.push(model.ensure()?);
    }
    if file_name(&small).contains(name) {
        if !small.is_file() {
            return Err(format!("there is no model at {}; WEFT_BENCH_MODEL may name another", small.display()));
        }
        chosen.push(small);
    }
    if chosen.is_empty() {
        return Err(format!("no model's file name holds {name:?}"));
    }
    Ok(chosen.into_iter().map(|path| Candidate { name: file_name(&path), path }).collect())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Loads a model with this choice of kernels, completely on the CPU.
///
/// # Errors
/// A message, if llama.cpp rejects the file.
pub(crate) fn load(path: &Path, kernels: KernelChoice) -> Result<Arc<Model>, String> {
    let config = ModelConfig { n_gpu_layers: Some(0), kernels, ..ModelConfig::at(path.to_owned()) };
    Model::load(&config, |_| {}).map(Arc::new).map_err(|error| error.to_string())
}
