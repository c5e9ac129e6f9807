//! Memory that an engine would use, without loading the weights.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use llama_cpp_sys_2 as sys;

use crate::config::{EngineConfig, LoadScope, ResolvedConfig, TunedSettings};
use crate::error::{Error, Result};
use crate::llama::context::{params, raw_context::RawContext};
use crate::llama::start::hardware;
use crate::llama::{Model, n_sequences};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferUse {
    /// llama.cpp's name of the buffer type.
    pub name: String,
    pub is_host: bool,
    pub weights: u64,
    pub cache: u64,
    pub compute: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MemoryPlan {
    pub config: ResolvedConfig,
    /// Use of each buffer type, in order of name.
    pub buffers: Vec<BufferUse>,
    pub kv_bytes: (u64, u64),
    /// Maximum bytes of the logits that one decode returns.
    pub output_bytes: u64,
    /// Maximum bytes of the candidates and logits of a draft model; 0 without one.
    pub draft_bytes: u64,
    /// Free bytes where the device cache would be allocated, after the weights are loaded.
    pub free_bytes: u64,
    /// The weights in host memory are mapped from the file.
    pub is_mapped: bool,
}

/// Plans the memory of an engine on `model`, which was loaded with [`LoadScope::Sizes`].
///
/// # Errors
/// As [`EngineConfig::resolve`] and the creation of a context; [`Error::NotSupported`] for an encoder.
pub fn plan(model: &Arc<Model>, config: &EngineConfig, tuned: Option<TunedSettings>) -> Result<MemoryPlan> {
    if model.config.scope != LoadScope::Sizes {
        return Err(model.load_error("memory is planned for a model that was loaded without its weights"));
    }
    if model.is_encoder() {
        let message = format!("the model ({}) is an encoder, which has no KV cache to plan", model.architecture());
        return Err(Error::NotSupported { message });
    }
    let is_mapped = model.config.use_mmap && !model.config.use_direct_io;
    let info = model.info(config);
    let mut hardware = hardware(model, config);
    let mut resolved = config.resolve(&info, &hardware, tuned)?;
    let mut buffers = measure_buffers(model, &resolved)?;
    // A start measures the free memory after it has loaded the weights. Mapped weights are reclaimable.
    let is_loaded = |buffer: &&BufferUse| if info.is_offloaded { !buffer.is_host } else { !(buffer.is_host && is_mapped) };
    let n_loaded: u64 = buffers.iter().filter(is_loaded).map(|buffer| buffer.weights).sum();
    if n_loaded > 0 {
        hardware.free_bytes = hardware.free_bytes.saturating_sub(n_loaded);
        let after_load = config.resolve(&info, &hardware, tuned)?;
        if after_load != resolved {
            buffers = self::measure_buffers(model, &after_load)?;
            resolved = after_load;
        }
    }
    let n_ctx = u64::from(resolved.limits.n_ctx);
    let (key, value) = model.kv_bytes(resolved.settings.type_k, resolved.settings.type_v);
    let n_outputs = u64::from(resolved.limits.n_outputs.max(n_sequences(model, &resolved)));
    Ok(MemoryPlan {
        kv_bytes: (n_ctx * key, n_ctx * value),
        draft_bytes: u64::from(n_sequences(model, &resolved)) * resolved.draft.map_or(0, |draft| draft.bytes_per_sequence),
        output_bytes: n_outputs * model.n_vocab() as u64 * size_of::<f32>() as u64,
        free_bytes: hardware.free_bytes,
        config: resolved,
        buffers,
        is_mapped,
    })
}

fn measure_buffers(model: &Arc<Model>, config: &ResolvedConfig) -> Result<Vec<BufferUse>> {
    let refuse = |reason| params::refusal(model, &config.limits, reason);
    let n_seq_max = n_sequences(model, config);
    let raw = RawContext::new(model, params::params(config, n_seq_max), config.kernels).map_err(refuse)?;
    let mut buffers = buffers_of(&raw);
    let draft = model.draft_model().map(|draft| draft.measure(&raw, config, n_seq_max));
    if let Some((context, has_own_weights)) = draft.transpose().map_err(refuse)?.flatten() {
        for added in buffers_of(&context) {
            let weights = if has_own_weights { added.weights } else { 0 };
            match buffers.iter_mut().find(|buffer| buffer.name == added.name) {
                Some(buffer) => {
                    buffer.weights += weights;
                    buffer.cache += added.cache;
                    buffer.compute += added.compute;
                }
                None => buffers.push(BufferUse { weights, ..added }),
            }
        }
        buffers.sort_by(|a, b| a.name.cmp(&b.name));
    }
    Ok(buffers)
}

pub(in crate::llama) fn buffers_of(context: &RawContext) -> Vec<BufferUse> {
    let mut buffers: Vec<BufferUse> = Vec::new();
    // SAFETY: the context is alive, and `visit` is called during the call only, with the vector behind `target`.
    unsafe { weft_memory_by_buffer(context.as_ptr(), visit, (&raw mut buffers).cast()) };
    buffers.sort_by(|a, b| a.name.cmp(&b.name));
    buffers
}

unsafe extern "C" fn visit(
    target: *mut c_void,
    name: *const c_char,
    is_host: bool,
    weights: usize,
    cache: usize,
    compute: usize,
) {
    // SAFETY: `buffers_of` passes a vector, and buffer types have NUL-terminated names.
    let (buffers, name) = unsafe { (&mut *target.cast::<Vec<BufferUse>>(), CStr::from_ptr(name)) };
    let name = name.to_string_lossy().into_owned();
    buffers.push(BufferUse { name, is_host, weights: weights as u64, cache: cache as u64, compute: compute as u64 });
}

unsafe extern "C" {
    fn weft_memory_by_buffer(
        context: *const sys::llama_context,
        visit: unsafe extern "C" fn(*mut c_void, *const c_char, bool, usize, usize, usize),
        target: *mut c_void,
    );
}
