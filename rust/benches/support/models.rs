//! Which models are measured: one of the size that people serve, and one so small that everything around it shows.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weft::config::ModelConfig;
use weft::llama::Model;

use super::synthetic;

/// A file to measure.
pub(crate) struct Candidate {
    /// Its file name.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// The synthetic and the small model, as far as their file names hold `name`. The synthetic one is written if it is not there yet.
///
/// # Errors
/// A message, when it cannot be written, when no name fits, or when the small one is missing.
pub(crate) fn chosen(name: &str) -> Result<Vec<Candidate>, String> {
    let synthetic = synthetic::ensure().map_err(|error| format!("cannot write the synthetic model: {error}"))?;
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/weft/models/storyteller-q8_0.gguf");
    let small = env::var_os("WEFT_BENCH_MODEL").map_or(demo, PathBuf::from);
    let models = [synthetic, small].map(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Candidate { name, path }
    });
    let chosen: Vec<_> = models.into_iter().filter(|model| model.name.contains(name)).collect();
    if chosen.is_empty() {
        return Err(format!("no model's file name holds {name:?}"));
    }
    if let Some(Candidate { path, .. }) = chosen.iter().find(|model| !model.path.is_file()) {
        return Err(format!("there is no model at {}; WEFT_BENCH_MODEL may name another", path.display()));
    }
    Ok(chosen)
}

/// Loads a model as the engine does, all of it on the CPU.
///
/// # Errors
/// A message, when llama.cpp refuses the file.
pub(crate) fn load(path: &Path) -> Result<Arc<Model>, String> {
    let config = ModelConfig { n_gpu_layers: Some(0), ..ModelConfig::at(path.to_owned()) };
    Model::load(&config, |_| {}).map(Arc::new).map_err(|error| error.to_string())
}
