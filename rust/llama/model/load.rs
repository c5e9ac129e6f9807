//! Loads a model file onto its devices.

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use llama_cpp_sys_2 as sys;

use crate::config::{LoadFacts, LoadScope, ModelConfig, Numa, Placement, Split, WeightLayout};
use crate::llama::backend::backend;
use crate::llama::context::memory;
use crate::llama::host::{device::Device, machine};
use crate::llama::kernels::{self, coverage};
use crate::llama::model::gguf::{Metadata, TensorInfo, c_path};
use crate::llama::model::raw_model::RawModel;
use crate::llama::model::{identity::other_parts, kv_overrides::KvOverrides, tensor_overrides::TensorOverrides};

/// Formats that llama.cpp can repack where we have kernels (`ggml_repack_get_optimal_repack_type`); with AMX it repacks all.
#[cfg(not(target_arch = "aarch64"))]
const REPACKABLE: [sys::ggml_type; 5] =
    [sys::GGML_TYPE_Q4_0, sys::GGML_TYPE_Q4_K, sys::GGML_TYPE_IQ4_NL, sys::GGML_TYPE_MXFP4, sys::GGML_TYPE_Q2_K];
#[cfg(target_arch = "aarch64")]
#[rustfmt::skip]
const REPACKABLE: [sys::ggml_type; 7] = [
    sys::GGML_TYPE_Q4_0, sys::GGML_TYPE_Q4_K, sys::GGML_TYPE_Q5_K, sys::GGML_TYPE_Q6_K, sys::GGML_TYPE_Q8_0, sys::GGML_TYPE_IQ4_NL,
    sys::GGML_TYPE_MXFP4,
];

pub(crate) fn gather_facts(config: &ModelConfig, files: &[Metadata]) -> LoadFacts {
    let has_amx = machine::has_amx();
    let (mut n_covered, mut n_bytes, mut can_be_rearranged) = (0, 0, has_amx);
    // SAFETY: both only report the instruction sets that llama.cpp was compiled for.
    let can_repack = unsafe { sys::ggml_cpu_has_avx2() + sys::ggml_cpu_has_dotprod() > 0 };
    for (_, TensorInfo { format, n_bytes: bytes, .. }) in files.iter().flat_map(Metadata::named_tensors) {
        n_bytes += bytes;
        n_covered += if coverage::covers_weights(format) { bytes } else { 0 };
        can_be_rearranged |= can_repack && REPACKABLE.contains(&format);
    }
    LoadFacts {
        own_products: kernels::install().usable.products && 2 * n_covered > n_bytes,
        has_amx,
        has_cpu_layers: !memory::has_gpus(&config.placement) || config.n_gpu_layers.is_some() || config.placement.moves_tensors(),
        can_be_rearranged,
    }
}

pub(crate) fn open_parts(config: &ModelConfig, first: Metadata) -> Vec<Metadata> {
    let others = other_parts(&config.path);
    std::iter::once(first).chain(others.iter().filter_map(|path| Metadata::open(path).ok())).collect()
}

pub(crate) fn load<F: FnMut(f32)>(
    config: &ModelConfig,
    weights: WeightLayout,
    overrides: &KvOverrides,
    tensors: Option<&TensorOverrides>,
    mut progress: F,
) -> Result<RawModel, String> {
    let path = c_path(&config.path)?;
    let placement = &config.placement;
    bind_threads(placement.numa)?;
    let mut devices = placement.devices.as_deref().map(find_devices).transpose()?;
    let shares = shares(placement)?;
    let requests_gpus = placement.names_gpus() || config.n_gpu_layers.is_some_and(|n| n > 0);
    if requests_gpus && !backend().supports_gpu_offload() {
        tracing::warn!("llama.cpp found no GPU: the CPU computes the whole model, and the settings for GPUs have no effect");
    }
    // SAFETY: it only returns numbers.
    let mut params = unsafe { sys::llama_model_default_params() };
    params.devices = devices.as_mut().map_or(null_mut(), Vec::as_mut_ptr);
    if let Some(n) = config.n_gpu_layers {
        params.n_gpu_layers = i32::try_from(n).unwrap_or(i32::MAX);
    }
    params.split_mode = match placement.split {
        Split::Layer => sys::LLAMA_SPLIT_MODE_LAYER,
        Split::Row => sys::LLAMA_SPLIT_MODE_ROW,
        Split::None => sys::LLAMA_SPLIT_MODE_NONE,
    };
    params.main_gpu = i32::try_from(placement.main_gpu).unwrap_or(i32::MAX);
    params.tensor_split = shares.as_ref().map_or(null(), Vec::as_ptr);
    params.load_mode = match (config.use_direct_io, config.use_mmap, config.use_mlock) {
        (true, ..) => sys::LLAMA_LOAD_MODE_DIRECT_IO,
        (false, true, true) => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
        (false, true, false) => sys::LLAMA_LOAD_MODE_MMAP,
        (false, false, true) => sys::LLAMA_LOAD_MODE_MLOCK,
        (false, false, false) => sys::LLAMA_LOAD_MODE_NONE,
    };
    params.check_tensors = config.check_tensors;
    params.vocab_only = config.scope == LoadScope::Vocabulary;
    if config.scope == LoadScope::Sizes {
        params.no_alloc = true;
        // llama.cpp maps no file that it does not read.
        params.load_mode = sys::LLAMA_LOAD_MODE_NONE;
    }
    params.no_host = placement.no_host;
    params.load_mtp = config.load_mtp;
    let overrides = overrides.as_list();
    params.kv_overrides = overrides.as_ref().map_or(null(), Vec::as_ptr);
    params.tensor_buft_overrides = tensors.map_or(null(), TensorOverrides::as_ptr);
    // llama.cpp's name for all buffer types with repacked weights, including AMX.
    params.use_extra_bufts = weights != WeightLayout::AsInFile;
    params.progress_callback = Some(report::<F>);
    params.progress_callback_user_data = (&raw mut progress).cast();
    // SAFETY: the lists of devices and overrides are terminated, `shares` is as long as llama.cpp
    // reads, and all outlive the call, as does `progress`, which `report` casts back to its own type.
    unsafe { RawModel::load(&path, params) }
}

unsafe extern "C" fn report<F: FnMut(f32)>(fraction: f32, progress: *mut c_void) -> bool {
    // SAFETY: `load` passes a pointer to an `F` that outlives the call, and llama.cpp calls from one thread.
    unsafe { (*progress.cast::<F>())(fraction) };
    true
}

/// Returns the devices of these names, followed by the null that terminates the list.
fn find_devices(names: &[String]) -> Result<Vec<sys::ggml_backend_dev_t>, String> {
    let find = |name: &String| {
        let device = Device::all().find(|device| !device.is_cpu() && device.name().eq_ignore_ascii_case(name));
        device.map(Device::as_ptr).ok_or_else(|| format!("there is no device {name:?} other than the CPU"))
    };
    names.iter().map(find).chain([Ok(null_mut())]).collect()
}

fn shares(placement: &Placement) -> Result<Option<Vec<f32>>, String> {
    let given = &placement.tensor_split;
    if given.is_empty() {
        return Ok(None);
    }
    let n_devices = llama_cpp_2::max_devices();
    if given.len() > n_devices {
        return Err(format!("tensor_split has {} entries; at most {n_devices} devices are supported", given.len()));
    }
    let mut shares = given.clone();
    shares.resize(n_devices, 0.0);
    Ok(Some(shares))
}

/// Makes ggml bind threads, once per process: the strategy cannot be changed afterwards.
fn bind_threads(numa: Option<Numa>) -> Result<(), String> {
    static BOUND: OnceLock<Numa> = OnceLock::new();
    let Some(numa) = numa else { return Ok(()) };
    let bound = BOUND.get_or_init(|| {
        let strategy = match numa {
            Numa::Distribute => sys::GGML_NUMA_STRATEGY_DISTRIBUTE,
            Numa::Isolate => sys::GGML_NUMA_STRATEGY_ISOLATE,
            Numa::Numactl => sys::GGML_NUMA_STRATEGY_NUMACTL,
        };
        // SAFETY: the backend was started before the first load, and this runs once.
        unsafe { sys::llama_numa_init(strategy) };
        numa
    });
    if *bound == numa { Ok(()) } else { Err(format!("numa cannot be changed to {numa:?}: this process already uses {bound:?}")) }
}
