//! Requirements of draft models on their targets. If one is violated, llama.cpp ends the process or drafts nonsense.

use std::ffi::c_void;
use std::slice;

use llama_cpp_sys_2 as sys;

use crate::config::DraftKind;
use crate::llama::model::Model;
use crate::llama::model::gguf::Metadata;

/// Architectures whose graphs export the input of each layer (`t_layer_inp` in llama.cpp's models); with true, also the output of
/// the last one.
#[rustfmt::skip]
pub(super) const LAYER_INPUTS: [(&str, bool); 19] = [
    ("bailingmoe3", false), ("deepseek4", true), ("gemma4", false), ("gpt-oss", false), ("hunyuan_vl", false), ("lfm2", false),
    ("llama", false), ("mimo2", true), ("minimax-01", false), ("minimax-m2", false), ("muse-glimmer", false), ("nanbeige", false),
    ("nemotron_h", true), ("qwen3", false), ("qwen35", false), ("qwen35moe", false), ("qwen3moe", false), ("qwen3next", false),
    ("qwen4exp", false),
];

/// Architectures of which llama.cpp computes several layers that predict further tokens.
const MANY_NEXT_TOKEN_LAYERS: [&str; 2] = ["mimo2", "step35"];

/// Architectures whose layer that predicts further tokens must have a router of experts.
const NEXT_TOKEN_ROUTERS: [&str; 4] = ["cohere2moe", "deepseek32", "glm-dsa", "glm4moe"];

fn has_next_token_tensor(file: &Metadata, architecture: &str, name: &str) -> bool {
    let n_layers = file.u32(&format!("{architecture}.block_count")).unwrap_or(0);
    n_layers > 0 && file.has_tensor(&format!("blk.{}.{name}.weight", n_layers - 1))
}

pub(super) fn kind_of(file: &Metadata) -> DraftKind {
    let architecture = file.string("general.architecture").unwrap_or_default();
    let has_next_token_layers = has_next_token_tensor(file, &architecture, "nextn.eh_proj") || architecture == "gemma4-assistant";
    match architecture.as_str() {
        "eagle3" => DraftKind::Eagle3,
        "dflash" if file.has_tensor("markov_w1.weight") => DraftKind::DSpark,
        "dflash" => DraftKind::DFlash,
        _ if has_next_token_layers => DraftKind::Mtp,
        _ => DraftKind::Simple,
    }
}

/// Checks that `draft` can draft for `target` as `kind`.
///
/// # Errors
/// The reason why it cannot.
pub(super) fn check(kind: DraftKind, target: &Model, draft: &Model, file: &Metadata) -> Result<(), String> {
    let (architecture, own) = (draft.architecture(), target.architecture());
    if draft.keeps_states() || draft.is_encoder() {
        return Err(format!("its architecture, {architecture}, keeps a state that cannot be truncated, or generates no text"));
    }
    match kind {
        DraftKind::Simple if ["eagle3", "dflash", "gemma4-assistant"].contains(&architecture) => {
            Err(format!("its architecture, {architecture}, reads hidden states of the model; set no type, or the right one"))
        }
        DraftKind::Simple => are_compatible(target, draft),
        DraftKind::Eagle3 => {
            require_architecture(draft, "eagle3")?;
            check_layers(kind, target, draft)?;
            let n_embd = file.u32("eagle3.target_hidden_size");
            if n_embd != Some(target.n_embd()) {
                return Err(format!(
                    "it reads hidden states of width {}, and the model's have {}",
                    n_embd.unwrap_or(0),
                    target.n_embd()
                ));
            }
            if file.u32("eagle3.block_count") != Some(1) {
                return Err("it must have one layer".to_owned());
            }
            check_shared(target, draft, file)
        }
        DraftKind::DFlash | DraftKind::DSpark => {
            require_architecture(draft, "dflash")?;
            check_layers(kind, target, draft)?;
            if draft.n_embd() != target.n_embd() {
                return Err(format!("its hidden states have width {}, and the model's {}", draft.n_embd(), target.n_embd()));
            }
            if (kind == DraftKind::DSpark) != file.has_tensor("markov_w1.weight") {
                return Err(format!(
                    "it is not of the type {}",
                    if kind == DraftKind::DSpark { "draft-dspark" } else { "draft-dflash" }
                ));
            }
            if draft.vocab().token(sys::llama_vocab_mask).is_none() {
                return Err("it has no mask token".to_owned());
            }
            check_shared(target, draft, file)
        }
        DraftKind::Mtp if architecture == "gemma4-assistant" => {
            Err("it shares the KV cache of the model, which is not supported".to_owned())
        }
        DraftKind::Mtp => {
            let needs_router = NEXT_TOKEN_ROUTERS.contains(&architecture);
            let tensors = ["nextn.eh_proj", "nextn.enorm", "nextn.hnorm", "ffn_gate_inp"];
            if let Some(missing) =
                tensors[..3 + usize::from(needs_router)].iter().find(|name| !has_next_token_tensor(file, architecture, name))
            {
                return Err(format!("it has no layer that predicts further tokens (MTP): there is no {missing}"));
            }
            let n = file.u32(&format!("{architecture}.nextn_predict_layers")).unwrap_or(0);
            if n != 1 && !MANY_NEXT_TOKEN_LAYERS.contains(&architecture) {
                return Err(format!("it has {n} layers that predict further tokens (MTP), and llama.cpp computes 1"));
            }
            if architecture != own {
                return Err(format!("its architecture is {architecture}, and the model's is {own}"));
            }
            if draft.n_embd() != target.n_embd() || draft.n_vocab() != target.n_vocab() {
                return Err("its hidden states or its vocabulary differ in size from the model's".to_owned());
            }
            Ok(())
        }
    }
}

fn require_architecture(draft: &Model, expected: &str) -> Result<(), String> {
    match draft.architecture() {
        found if found == expected => Ok(()),
        found => Err(format!("its architecture is {found}, but the type requires {expected}")),
    }
}

fn check_layers(kind: DraftKind, target: &Model, draft: &Model) -> Result<(), String> {
    let n_layers = target.n_layers();
    let exports = LAYER_INPUTS.iter().find(|(architecture, _)| *architecture == target.architecture());
    let Some((_, exports_output)) = exports else {
        return Err(format!("llama.cpp exports no hidden states of {} models", target.architecture()));
    };
    let layers = target_layers(draft);
    if layers.is_empty() {
        return Err("it names no layers of the model".to_owned());
    }
    for &layer in layers {
        let layer = u32::try_from(layer).unwrap_or(u32::MAX);
        if layer > n_layers || (layer == n_layers && !exports_output) {
            return Err(format!("it reads the input of layer {layer}, and the model has {n_layers} layers"));
        }
    }
    if kind == DraftKind::Eagle3 && layers.len() != 3 {
        return Err(format!("it reads {} layers instead of 3", layers.len()));
    }
    Ok(())
}

/// Checks the embeddings and the output weights that a draft model takes from the target if its file has none.
fn check_shared(target: &Model, draft: &Model, file: &Metadata) -> Result<(), String> {
    if draft.n_vocab() != target.n_vocab() {
        return Err(format!("its vocabulary has {} tokens, and the model's {}", draft.n_vocab(), target.n_vocab()));
    }
    let has_own = file.has_tensor("token_embd.weight") && file.has_tensor("output.weight");
    if !has_own && draft.n_embd() != target.n_embd() {
        return Err(format!(
            "it uses the embeddings of the model, but has width {} instead of {}",
            draft.n_embd(),
            target.n_embd()
        ));
    }
    Ok(())
}

fn are_compatible(target: &Model, draft: &Model) -> Result<(), String> {
    // SAFETY: both models are alive; their vocabularies are read.
    let are_compatible = unsafe { weft_are_compatible(target.as_ptr().cast(), draft.as_ptr().cast()) };
    if are_compatible { Ok(()) } else { Err("its vocabulary differs from the model's".to_owned()) }
}

fn target_layers(draft: &Model) -> &[i32] {
    let mut n = 0;
    // SAFETY: the model is alive and owns the list, which has `n` elements.
    unsafe {
        let layers = weft_target_layers(draft.as_ptr().cast(), &raw mut n);
        if n == 0 || layers.is_null() { &[] } else { slice::from_raw_parts(layers, n) }
    }
}

unsafe extern "C" {
    fn weft_are_compatible(target: *const c_void, draft: *const c_void) -> bool;
    fn weft_target_layers(draft: *const c_void, n: *mut usize) -> *const i32;
}
