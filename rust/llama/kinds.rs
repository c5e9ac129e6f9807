//! Which models can continue a text, and which only read one.

use llama_cpp_sys_2 as sys;

use crate::llama::gguf::Metadata;

/// Architectures that read a text but continue none, under llama.cpp's names: they make vectors. llama.cpp has no call that tells
/// them from the others before a context exists.
const ENCODERS: [&str; 11] = [
    "bert",
    "modern-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "neo-bert",
    "jina-bert-v2",
    "jina-bert-v3",
    "eurobert",
    "gemma-embedding",
    "llama-embed",
    T5_ENCODER,
];

/// It has a memory like those that continue a text, and is computed by a call of its own.
pub(super) const T5_ENCODER: &str = "t5encoder";

/// Whether a model of this architecture makes vectors only: it is an encoder, or its file says that each token sees those after it
/// too.
pub(super) fn is_encoder(architecture: &str, is_causal: Option<&str>) -> bool {
    ENCODERS.contains(&architecture) || is_causal == Some("false")
}

/// Refuses what the file's metadata shows, before gigabytes are read.
///
/// # Errors
/// Why the model cannot run, for [`crate::error::Error::ModelLoad`].
pub(super) fn check_file(file: &Metadata) -> Result<(), String> {
    let architecture = file.string("general.architecture").unwrap_or_default();
    let kind = match architecture.as_str() {
        "t5" => Some("an encoder-decoder model, which is not supported"),
        "wavtokenizer-dec" | "clef" => Some("a part of another model, which reads no text"),
        _ => None,
    };
    if let Some(kind) = kind {
        return Err(format!("its architecture, {architecture}, is that of {kind}"));
    }
    // The names that llama.cpp's own converter gives to the tokenizer of a model without one.
    match file.string("tokenizer.ggml.model").as_deref() {
        None | Some("no_vocab" | "none") => Err("it holds no vocabulary, so it cannot read a text".to_owned()),
        Some(_) => Ok(()),
    }
}

/// Refuses the kinds that only a loaded model shows. `model` is alive.
///
/// # Errors
/// As [`check_file`].
pub(super) fn check_model(model: *const sys::llama_model, architecture: &str) -> Result<(), String> {
    // SAFETY: the model is alive.
    let (has_encoder, is_diffusion) = unsafe { (sys::llama_model_has_encoder(model), sys::llama_model_is_diffusion(model)) };
    let kind = match (is_diffusion, has_encoder && architecture != T5_ENCODER) {
        (true, _) => "a diffusion model, which does not write one token after another",
        (_, true) => "a draft model for another one, which cannot run alone",
        _ => return Ok(()),
    };
    Err(format!("its architecture, {architecture}, is that of {kind}"))
}
