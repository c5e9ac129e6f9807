//! Rejects allocations that would exceed free memory: Linux would grant it and end the process on use.

use crate::config::{KvType, ResolvedConfig};
use crate::error::{Error, Result};
use crate::llama::context::memory;
use crate::llama::model::{Model, kinds::is_t5};

pub(super) fn check_cells(model: &Model, config: &ResolvedConfig, n_ctx: u32) -> Result<()> {
    // llama.cpp stores them in 16 bits by default. Of encoders, only T5 has cells.
    let has_cells = !model.is_encoder() || is_t5(model.architecture());
    let n_bytes_each = if has_cells { model.kv_bytes_per_token(KvType::F16, KvType::F16) } else { 0 };
    let n_free = memory::free_bytes(model, config.settings.offload_kqv);
    check(n_bytes_each.saturating_mul(n_ctx.into()), n_free, || format!("a context of {n_ctx} tokens for embeddings"))
        .map_err(|reason| Error::Decode { reason })
}

pub(super) fn check(n_bytes: u64, n_free: u64, purpose: impl FnOnce() -> String) -> std::result::Result<(), String> {
    if n_bytes <= n_free {
        return Ok(());
    }
    let purpose = purpose();
    Err(format!("{purpose} needs {n_bytes} bytes of memory, but only {n_free} are free; set a smaller n_ctx or cache_ram"))
}
