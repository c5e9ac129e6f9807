//! llama.cpp's parameters of a context, and its errors in our words.

use llama_cpp_sys_2 as sys;

use crate::config::{FlashAttention, Limits, ResolvedConfig};
use crate::error::Error;
use crate::llama::context::kv_size::ggml_type;
use crate::llama::logging;
use crate::llama::model::{Model, rope};

pub(crate) fn params(config: &ResolvedConfig, n_seq_max: u32) -> sys::llama_context_params {
    let limits = &config.limits;
    let mut params = base_params(config);
    params.n_threads = config.n_threads.cast_signed();
    params.n_threads_batch = config.n_threads_batch.cast_signed();
    params.n_ctx = limits.n_ctx;
    // llama.cpp asserts that a decode has at most `n_batch` rows and `n_outputs_max` outputs, and that each sequence may have one.
    params.n_batch = limits.n_ubatch.max(n_seq_max);
    params.n_ubatch = limits.n_ubatch;
    params.n_seq_max = n_seq_max;
    params.n_outputs_max = limits.n_outputs.max(n_seq_max);
    params.flash_attn_type = match config.flash_attention {
        FlashAttention::Auto => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
        FlashAttention::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
        FlashAttention::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
    };
    params.type_k = ggml_type(config.settings.type_k);
    params.type_v = ggml_type(config.settings.type_v);
    params
}

pub(crate) fn base_params(config: &ResolvedConfig) -> sys::llama_context_params {
    // SAFETY: plain data.
    let mut params = unsafe { sys::llama_context_default_params() };
    params.offload_kqv = config.settings.offload_kqv;
    params.op_offload = config.settings.op_offload;
    rope::apply(&config.settings.rope, &mut params);
    params.kv_unified = true;
    // As large as the other cache: a smaller one can be full while our count of cells has free ones.
    params.swa_full = true;
    params.no_perf = true;
    params
}

pub(super) fn reason_of(code: i32, errors: &[String], n_ctx: u32, n_rows: usize) -> String {
    let words = match code {
        1 => format!("the KV cache of {n_ctx} cells has no room for {n_rows} more tokens"),
        2 => "the computation was aborted".to_owned(),
        -1 => "llama.cpp refused the batch".to_owned(),
        -2 => "there is not enough memory".to_owned(),
        -3 => "the backend failed".to_owned(),
        code => format!("llama.cpp returned the error code {code}"),
    };
    logging::explain(&words, errors)
}

/// Converts the failure to create a context to an error that names the setting to change.
pub(crate) fn refusal(model: &Model, limits: &Limits, reason: String) -> Error {
    let is_about = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    if is_about(&["V cache"]) {
        Error::InvalidConfig { param: "type_v", message: reason }
    } else if is_about(&["K cache", "cache types"]) {
        Error::InvalidConfig { param: "type_k", message: reason }
    } else if is_about(&["alloc", "reserve", "memory"]) {
        let message =
            format!("there is not enough memory for a context of {} tokens ({reason}); set a smaller n_ctx", limits.n_ctx);
        Error::InvalidConfig { param: "n_ctx", message }
    } else {
        model.load_error(reason)
    }
}
