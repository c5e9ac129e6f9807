//! Rejects projectors that llama.cpp cannot use, before it loads them.

use std::path::Path;

use crate::llama::{context::memory, host::device::Device, model::gguf::Metadata};

/// Checks that llama.cpp can use the projector: it ends the process if the number of embeddings differs from its own count.
pub(super) fn check(file: &Metadata) -> Result<(), String> {
    // Their encoding of an image depends on preceding images or tokens, which a shared image cannot have.
    const CONTEXT_DEPENDENT: [&str; 2] = ["deepseek4v", "hunyuanvl"];
    // Whisper reduces 3,000 frames to 1,500.
    const N_FRAMES: u32 = 3_000;
    let architecture = file.string("general.architecture").unwrap_or_default();
    if architecture != "clip" {
        return Err(format!(
            "it is not a projector: its general.architecture is {architecture:?}, not \"clip\"; give the model's mmproj-*.gguf"
        ));
    }
    let kinds = ["clip.projector_type", "clip.vision.projector_type", "clip.audio.projector_type"];
    let kinds: Vec<String> = kinds.iter().filter_map(|key| file.string(key)).collect();
    let is_one_of = |names: &[&str]| kinds.iter().find(|kind| names.contains(&kind.as_str()));
    if let Some(kind) = is_one_of(&CONTEXT_DEPENDENT) {
        return Err(format!(
            "projectors of the type {kind} are not supported: their encoding of an image depends on the preceding text"
        ));
    }
    let Some(stack) = file.u32("clip.audio.projector.stack_factor") else { return Ok(()) };
    let rounds_twice = is_one_of(&["ultravox", "voxtral", "meralion"]).is_some() && stack != 1;
    let rounds_down = is_one_of(&["glma"]).is_some();
    if stack == 0 && (rounds_twice || rounds_down) {
        return Err("its clip.audio.projector.stack_factor is 0; it must be at least 1".to_owned());
    }
    // The projector pads the last group of stacked frames; llama.cpp's count rounds differently.
    let n_made = (N_FRAMES / 2).div_ceil(stack.max(1));
    let n_counted = if rounds_twice {
        N_FRAMES.div_ceil(stack) / 2
    } else if rounds_down {
        N_FRAMES / 2 / stack
    } else {
        n_made
    };
    if n_counted == n_made {
        return Ok(());
    }
    Err(format!("llama.cpp expects {n_counted} embeddings where this projector produces {n_made}, so it cannot encode audio"))
}

/// Rejects a file that exceeds free memory: it is read completely, and Linux would grant the memory and end the process on use.
pub(super) fn check_memory(path: &Path, offload: bool) -> Result<(), String> {
    let n_bytes = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    // A device itself refuses allocations that exceed its memory.
    let n_free = if offload && Device::gpus().next().is_some() { u64::MAX } else { memory::free_on_host() };
    if n_bytes <= n_free {
        return Ok(());
    }
    Err(format!("it needs {n_bytes} bytes of memory, but only {n_free} are free"))
}
