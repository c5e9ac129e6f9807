//! `LoRA` adapters, which belong to a model and are freed with it. llama.cpp checks few of an adapter's tensors before computing with
//! them, and ends the process if they do not fit: so the file is checked first.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use crate::config::{AdapterConfig, MAX_ADAPTERS};
use crate::error::{self, Error};
use crate::llama::logging;
use crate::llama::model::gguf::{Metadata, TensorInfo, c_path};
use crate::llama::model::identity::{Identity, ModelFiles};
use crate::request::Token;

const FORMATS: [sys::ggml_type; 4] = [sys::GGML_TYPE_F32, sys::GGML_TYPE_F16, sys::GGML_TYPE_BF16, sys::GGML_TYPE_Q8_0];

#[derive(Debug)]
pub struct Adapter {
    raw: NonNull<sys::llama_adapter_lora>,
    files: ModelFiles,
    pub path: PathBuf,
    /// Scale in requests that set none.
    pub scale: f32,
    pub n_bytes: u64,
    pub task_name: String,
    pub prompt_prefix: String,
    /// Tokens of an activated adapter (aLoRA), active from their last occurrence in a prompt on; empty for others.
    pub invocation: Vec<Token>,
}

// SAFETY: an adapter is not written after it was loaded, and llama.cpp reads it on the thread of the context that uses it.
unsafe impl Send for Adapter {}
// SAFETY: as above.
unsafe impl Sync for Adapter {}

impl Adapter {
    pub(crate) fn as_ptr(&self) -> *mut sys::llama_adapter_lora {
        self.raw.as_ptr()
    }

    pub(crate) fn identity(&self) -> io::Result<Identity> {
        self.files.identity()
    }
}

/// The error names the first file that is not an adapter of this model, or two that cannot both be active.
///
/// # Safety
/// `model` is alive, and no other thread loads an adapter for it or computes with it.
pub(crate) unsafe fn load(
    model: *mut sys::llama_model,
    base: &[Metadata],
    adapters: &[AdapterConfig],
    is_encoder: bool,
) -> error::Result<Vec<Adapter>> {
    let refuse = |message: String| Error::InvalidConfig { param: "lora", message };
    if adapters.is_empty() {
        return Ok(Vec::new());
    }
    if adapters.len() > MAX_ADAPTERS {
        return Err(refuse(format!("lora has {} adapters; at most {MAX_ADAPTERS} can be loaded", adapters.len())));
    }
    let base = Base::read(base);
    let load = |config: &AdapterConfig| {
        let explain = |reason: String| refuse(format!("cannot load the adapter {}: {reason}", config.path.display()));
        // SAFETY: the caller guarantees the model.
        unsafe { load_one(model, &base, config) }.map_err(explain)
    };
    let loaded = adapters.iter().map(load).collect::<error::Result<Vec<_>>>()?;
    if let Some(adapter) = loaded.iter().find(|adapter| is_encoder && !adapter.invocation.is_empty()) {
        return Err(refuse(format!(
            "cannot load the adapter {}: it is an activated adapter (aLoRA), which applies from a position in the text, but this \
             model is an encoder, which computes the whole text in one pass",
            adapter.path.display()
        )));
    }
    let mut activated = loaded.iter().filter(|adapter| adapter.scale != 0.0 && !adapter.invocation.is_empty());
    if let (Some(first), Some(second)) = (activated.next(), activated.next()) {
        let [first, second] = [first, second].map(|adapter| adapter.path.display());
        return Err(refuse(format!(
            "{first} and {second} are both activated adapters (aLoRA); at most one may be active: set the scale of the others to 0 \
             (--lora-scaled {second}:0, or --lora-init-without-apply), and activate them by request",
        )));
    }
    Ok(loaded)
}

unsafe fn load_one(
    model: *mut sys::llama_model,
    base: &Base,
    AdapterConfig { path, scale }: &AdapterConfig,
) -> Result<Adapter, String> {
    if !scale.is_finite() {
        return Err(format!("its scale is {scale}; it must be a finite number"));
    }
    let file = Metadata::open_regular(path)?;
    let n_bytes = base.check(&file)?;
    let files = ModelFiles::open(path, 1).map_err(|error| error.to_string())?;
    let name = c_path(path)?;
    // SAFETY: the caller guarantees the model; the path is NUL-terminated, and the file's metadata was checked.
    let raw = logging::non_null(|| unsafe { sys::llama_adapter_lora_init(model, name.as_ptr()) })
        .map_err(|reason| reason.trim_start_matches("failed to apply lora adapter: ").to_owned())?;
    let text = |name: &str| file.string(&format!("adapter.lora.{name}")).unwrap_or_default();
    let (task_name, prompt_prefix) = (text("task_name"), text("prompt_prefix"));
    // SAFETY: the adapter was just loaded.
    let invocation = unsafe { invocation_of(raw) };
    // SAFETY: the caller guarantees the model.
    let n_vocab = unsafe { sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(model)) };
    if let Some(token) = invocation.iter().find(|token| !(0..n_vocab).contains(*token)) {
        return Err(format!("token {token} of its invocation is not in the vocabulary ({n_vocab} tokens)"));
    }
    Ok(Adapter { raw, files, path: path.clone(), scale: *scale, n_bytes, task_name, prompt_prefix, invocation })
}

/// # Safety
/// `adapter` is alive.
unsafe fn invocation_of(adapter: NonNull<sys::llama_adapter_lora>) -> Vec<Token> {
    // SAFETY: the caller guarantees the adapter.
    let n_tokens = unsafe { sys::llama_adapter_get_alora_n_invocation_tokens(adapter.as_ptr()) };
    let n_tokens = usize::try_from(n_tokens).expect("they are in memory");
    if n_tokens == 0 {
        return Vec::new();
    }
    // SAFETY: as above; the result points to `n_tokens` tokens in a vector of the adapter.
    unsafe { std::slice::from_raw_parts(sys::llama_adapter_get_alora_invocation_tokens(adapter.as_ptr()), n_tokens) }.to_vec()
}

struct Base {
    architecture: String,
    tensors: BTreeMap<String, TensorInfo>,
}

impl Base {
    fn read(files: &[Metadata]) -> Self {
        let tensors = files.iter().flat_map(Metadata::named_tensors).collect();
        Self { architecture: files[0].string("general.architecture").unwrap_or_default(), tensors }
    }

    fn check(&self, file: &Metadata) -> Result<u64, String> {
        self.check_metadata(file)?;
        let mut pairs: BTreeMap<String, [Option<TensorInfo>; 2]> = BTreeMap::new();
        let mut n_bytes = 0;
        for (name, tensor) in file.named_tensors() {
            let Some((changed, half)) = split(&name) else {
                if name.ends_with("_norm.weight") {
                    tracing::warn!("the adapter's change of {name} has no effect: llama.cpp does not support it");
                    continue;
                }
                return Err(format!("its tensor {name} is neither a .lora_a nor a .lora_b"));
            };
            if !FORMATS.contains(&tensor.format) {
                return Err(format!("the format of its tensor {name} must be F32, F16, BF16 or Q8_0"));
            }
            n_bytes += tensor.n_bytes;
            pairs.entry(changed.to_owned()).or_default()[half] = Some(tensor);
        }
        if pairs.is_empty() {
            return Err("it contains no pair of .lora_a and .lora_b tensors".to_owned());
        }
        for (name, pair) in &pairs {
            let [Some(a), Some(b)] = pair else {
                return Err(format!("the .lora_a or the .lora_b of {name} is missing"));
            };
            self.check_pair(name, a, b)?;
        }
        Ok(n_bytes)
    }

    fn check_metadata(&self, file: &Metadata) -> Result<(), String> {
        for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
            let found = file.string(key).unwrap_or_default();
            if found != expected {
                return Err(format!("it is not a LoRA adapter: its {key} is {found:?}, not {expected:?}"));
            }
        }
        let architecture = file.string("general.architecture").unwrap_or_default();
        if architecture != self.architecture {
            return Err(format!(
                "it was trained for the architecture {architecture:?}, and this model has {:?}",
                self.architecture
            ));
        }
        if file.has("adapter.lora.alpha") && !file.f32("adapter.lora.alpha").is_some_and(f32::is_finite) {
            return Err("its adapter.lora.alpha must be a finite 32-bit float".to_owned());
        }
        Ok(())
    }

    fn check_pair(&self, name: &str, a: &TensorInfo, b: &TensorInfo) -> Result<(), String> {
        let Some(weights) = self.tensors.get(name) else {
            return Err(format!("it changes {name}, which this model does not have; it was trained for another model"));
        };
        // Tied embeddings: llama.cpp would mix up the halves of a change of the input table and of the output table.
        let is_embedding = name.ends_with("token_embd.weight");
        let other = if is_embedding { "output.weight" } else { "token_embd.weight" };
        if matches!(name, "token_embd.weight" | "output.weight") && !self.tensors.contains_key(other) {
            return Err(format!("it changes {name}, which this model uses for both input and output (tied embeddings)"));
        }
        if weights.format == sys::GGML_TYPE_NVFP4 {
            return Err(format!("it changes {name}, whose format, NVFP4, does not support adapters"));
        }
        let ([n_in, n_out, n_experts, n], rank) = (weights.sizes, b.sizes[0]);
        let expected = if is_embedding { [rank, n_out, n_experts, n] } else { [n_in, rank, n_experts, n] };
        let expected = [expected, [rank, if is_embedding { n_in } else { n_out }, n_experts, n]];
        if [a.sizes, b.sizes] != expected || rank == 0 || n != 1 {
            let [a, b, of] = [a.sizes, b.sizes, weights.sizes].map(|sizes| sizes.map(|n| n.to_string()).join(" × "));
            return Err(format!(
                "its change of {name} ({a} and {b}) does not fit that matrix ({of}); it was trained for another model"
            ));
        }
        Ok(())
    }
}

/// Splits a tensor's name into the matrix that it changes and the half of the change: 0 for A, 1 for B.
fn split(name: &str) -> Option<(&str, usize)> {
    let half = |suffix: &str, half| name.strip_suffix(suffix).map(|changed| (changed, half));
    half(".lora_a", 0).or_else(|| half(".lora_b", 1))
}
