//! Distinguishes generating models from encoders, and rejects unsupported files.

use std::path::Path;

use llama_cpp_sys_2 as sys;

use crate::llama::model::{gguf::Metadata, raw_model::RawModel};

/// llama.cpp has no call that identifies encoders before a context exists.
#[rustfmt::skip]
const ENCODERS: [&str; 12] = [
    "bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert", "gemma-embedding",
    "llama-embed", T5_ENCODER, T5,
];

const T5_ENCODER: &str = "t5encoder";

const T5: &str = "t5";

pub(crate) fn is_t5(architecture: &str) -> bool {
    [T5_ENCODER, T5].contains(&architecture)
}

pub(crate) fn is_encoder(architecture: &str, is_causal: Option<&str>) -> bool {
    ENCODERS.contains(&architecture) || is_causal == Some("false")
}

/// Rejects a file whose metadata shows that it cannot run, before gigabytes are read.
pub(crate) fn check_file(path: &Path, file: &Metadata) -> Result<(), String> {
    check_part(path, file)?;
    let architecture = file.string("general.architecture").unwrap_or_default();
    check_purpose(file, &architecture)?;
    if ["wavtokenizer-dec", "clef"].contains(&architecture.as_str()) {
        return Err(format!("its architecture, {architecture}, is a component of another model, which is not a language model"));
    }
    // Names that llama.cpp's converter gives to the tokenizer of a model without one.
    match file.string("tokenizer.ggml.model").as_deref() {
        None | Some("no_vocab" | "none") => Err("it has no vocabulary, so it cannot process text".to_owned()),
        Some(_) => check_encoder(file, &architecture),
    }
}

/// Accepts only the first part of a split model, under a name that leads to the others.
fn check_part(path: &Path, file: &Metadata) -> Result<(), String> {
    let (Some(part), Some(n_parts)) = (file.u16("split.no"), file.u16("split.count").filter(|&n| n > 1)) else { return Ok(()) };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = part.saturating_add(1);
    let stem = name.strip_suffix(&format!("-{number:05}-of-{n_parts:05}.gguf"));
    let first = match stem {
        Some(_) if part == 0 => return Ok(()),
        Some(stem) => format!("{stem}-00001-of-{n_parts:05}.gguf"),
        None => format!("NAME-00001-of-{n_parts:05}.gguf"),
    };
    if part == 0 {
        return Err(format!("it is part 1 of {n_parts} of a model; name it {first}, and the other parts accordingly"));
    }
    Err(format!("it is part {number} of {n_parts} of a model; give the first part, {first}, with the others in the same folder"))
}

fn check_purpose(file: &Metadata, architecture: &str) -> Result<(), String> {
    let purpose = match (file.string("general.type").as_deref(), architecture) {
        (Some("adapter"), _) => "an adapter of a model (lora)",
        (Some("mmproj"), _) | (_, "clip") => "a projector that reads images or audio for a model (mmproj)",
        (Some("imatrix"), _) => "an importance matrix, for quantizing a model",
        (_, "controlvector") => "a control vector of a model",
        _ => return Ok(()),
    };
    Err(format!("it is {purpose}, not a model"))
}

fn check_encoder(file: &Metadata, architecture: &str) -> Result<(), String> {
    let number = |name: &str| file.u32(&format!("{architecture}.{name}"));
    if !ENCODERS.contains(&architecture) || file.named_tensors().next().is_none() {
        return Ok(());
    }
    let (n_embd, n_heads) = (number("embedding_length").unwrap_or(0), number("attention.head_count").unwrap_or(0));
    let lengths = ["attention.key_length", "attention.value_length"].map(|name| number(name).unwrap_or(n_embd / n_heads.max(1)));
    let [key_length, value_length] = lengths;
    if key_length != value_length {
        return Err(format!(
            "its attention.key_length is {key_length} and its attention.value_length {value_length}; they must be equal"
        ));
    }
    if architecture != "gemma-embedding" && n_heads.checked_mul(lengths[0]) != Some(n_embd) {
        return Err(format!("its {n_heads} heads of length {} do not add up to its embedding_length, {n_embd}", lengths[0]));
    }
    if is_t5(architecture) {
        return check_t5(file, n_heads, number);
    }
    if architecture == "jina-bert-v2" {
        let n_ff = number("feed_forward_length").map_or(0, i64::from);
        let ups = file.named_tensors().filter(|(name, _)| name.ends_with(".ffn_up.weight"));
        if let Some((name, up)) = ups.into_iter().find(|(_, up)| up.sizes[1] != n_ff && up.sizes[1] != 2 * n_ff) {
            return Err(format!("its {name} has {} rows; it must have {n_ff} or twice as many", up.sizes[1]));
        }
    }
    let mut width = n_embd;
    for nth in [2, 3].into_iter().filter(|nth| file.has_tensor(&format!("dense_{nth}.weight"))) {
        let (n_in, n_out) = (number(&format!("dense_{nth}_feat_in")), number(&format!("dense_{nth}_feat_out")));
        if n_in != Some(width) {
            return Err(format!("its dense_{nth}_feat_in is {}; it must be {width}", n_in.unwrap_or(0)));
        }
        width = n_out.unwrap_or(0);
    }
    if width == n_embd { Ok(()) } else { Err(format!("the output of its dense layers has length {width}; it must be {n_embd}")) }
}

fn check_t5(file: &Metadata, n_heads: u32, number: impl Fn(&str) -> Option<u32>) -> Result<(), String> {
    // Half of the buckets are for tokens before, half of these for near ones, which must be fewer than the largest distance, 128.
    const N_BUCKETS: std::ops::Range<u32> = 4..512;
    if let Some(n) = number("attention.relative_buckets_count").filter(|n| !N_BUCKETS.contains(n)) {
        let (min, max) = (N_BUCKETS.start, N_BUCKETS.end - 1);
        return Err(format!("its attention.relative_buckets_count is {n}; it must be {min} to {max}"));
    }
    if number("attention.head_count_kv").is_some_and(|n| n != n_heads) {
        return Err(format!("its attention.head_count_kv must equal its attention.head_count, {n_heads}"));
    }
    let table = "enc.blk.0.attn_rel_b.weight";
    if file.has_tensor(table) { Ok(()) } else { Err(format!("its tensor {table} is missing")) }
}

pub(crate) fn check_model(model: &RawModel, architecture: &str, is_draft: bool) -> Result<(), String> {
    let (has_encoder, is_diffusion) = (model.get(sys::llama_model_has_encoder), model.get(sys::llama_model_is_diffusion));
    let kind = match (is_diffusion, has_encoder && !is_t5(architecture) && !is_draft) {
        (true, _) => "a diffusion model, which does not generate token by token",
        (_, true) => "a draft model, which cannot run without its target model (set draft_model to it)",
        _ => return Ok(()),
    };
    Err(format!("its architecture, {architecture}, is {kind}"))
}
