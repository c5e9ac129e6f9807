//! How much memory the pool could have.

use std::fs;
use std::path::{Path, PathBuf};

use llama_cpp_sys_2 as sys;

use crate::config::Placement;
use crate::llama::model::Model;

/// Free bytes where `model` keeps its cells: on the GPUs as far as its layers are there and cells are to be, else in the machine's
/// memory.
pub(super) fn free_bytes(model: &Model, offload_cells: bool) -> u64 {
    let on_gpus = free_on(sys::GGML_BACKEND_DEVICE_TYPE_GPU);
    let on_host = free_on_host();
    match (on_gpus.filter(|_| offload_cells), model.n_gpu_layers()) {
        (Some(on_gpus), None) => on_gpus,
        (Some(on_gpus), Some(n)) if n > 0 => on_gpus.min(on_host),
        _ => on_host,
    }
}

/// Free bytes of the machine's memory. The backend must have been started.
pub(super) fn free_on_host() -> u64 {
    // Where the system does not say what is available, llama.cpp's answer is all there is.
    available_bytes().or_else(|| free_on(sys::GGML_BACKEND_DEVICE_TYPE_CPU)).unwrap_or(u64::MAX)
}

/// Free bytes of all devices of this kind; `None` without any. The backend must have been started.
fn free_on(kind: sys::ggml_backend_dev_type) -> Option<u64> {
    // SAFETY: a started backend's devices are registered and live for ever.
    let devices = unsafe { (0..sys::ggml_backend_dev_count()).map(|i| sys::ggml_backend_dev_get(i)) };
    // SAFETY: as above.
    let wanted = devices.filter(|&device| unsafe { sys::ggml_backend_dev_type(device) } == kind);
    wanted.map(free_on_device).reduce(u64::saturating_add)
}

/// Whether layers of `model`, and with them their cells, are on a device of their own.
pub(super) fn is_offloaded(model: &Model) -> bool {
    has_gpus(model.placement()) && model.n_gpu_layers() != Some(0)
}

/// Whether a device of its own may hold layers of a model that is placed so. The backend must have been started.
pub(super) fn has_gpus(placement: &Placement) -> bool {
    placement.devices.as_ref().is_none_or(|names| !names.is_empty()) && !gpus().is_empty()
}

/// The devices that layers of a model can go to. The backend must have been started.
pub(super) fn gpus() -> Vec<sys::ggml_backend_dev_t> {
    // SAFETY: a started backend's devices are registered and live for ever.
    let devices = unsafe { (0..sys::ggml_backend_dev_count()).map(|i| sys::ggml_backend_dev_get(i)) };
    let kinds = [sys::GGML_BACKEND_DEVICE_TYPE_GPU, sys::GGML_BACKEND_DEVICE_TYPE_IGPU];
    // SAFETY: as above.
    devices.filter(|&device| kinds.contains(&unsafe { sys::ggml_backend_dev_type(device) })).collect()
}

fn free_on_device(device: sys::ggml_backend_dev_t) -> u64 {
    let (mut free, mut total) = (0_usize, 0_usize);
    // SAFETY: the device is registered, and both numbers are writable.
    unsafe { sys::ggml_backend_dev_memory(device, &raw mut free, &raw mut total) };
    free as u64
}

/// Bytes that this process can take before the machine swaps or its control group is full. `None` where the system is not Linux.
fn available_bytes() -> Option<u64> {
    let on_machine = parse_meminfo(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?;
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| parse_group(&text));
    let in_groups = group.iter().flat_map(|path| path.ancestors()).filter_map(free_in_group);
    Some(in_groups.fold(on_machine, u64::min))
}

/// Bytes of memory that this process could ever have; `u64::MAX` where the system is not Linux.
pub(super) fn machine_bytes() -> u64 {
    let Some(on_machine) = fs::read_to_string("/proc/meminfo").ok().and_then(|text| parse_meminfo(&text, "MemTotal:")) else {
        return u64::MAX;
    };
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| parse_group(&text));
    let limit = |folder: &Path| fs::read_to_string(folder.join("memory.max")).ok()?.trim().parse::<u64>().ok();
    group.iter().flat_map(|path| path.ancestors()).filter_map(limit).fold(on_machine, u64::min)
}

/// The line `name` of `/proc/meminfo`, in bytes.
fn parse_meminfo(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The folder of this process's control group (version 2), from `/proc/self/cgroup`.
fn parse_group(cgroup: &str) -> Option<PathBuf> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/')))
}

/// What a control group's limit leaves; `None` without a limit. Pages of files count as used, but give way.
fn free_in_group(folder: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let in_files = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse().ok()).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(in_files)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_says_what_is_available() {
        let meminfo = "MemTotal:       32000000 kB\nMemFree:         1000000 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(parse_meminfo(meminfo, "MemAvailable:"), Some(20_480_000_000));
        assert_eq!(parse_meminfo("MemTotal: 1 kB\n", "MemAvailable:"), None);
        assert!(available_bytes().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn the_group_is_found_in_version_2_only() {
        assert_eq!(parse_group("0::/a/b\n"), Some(PathBuf::from("/sys/fs/cgroup/a/b")));
        assert_eq!(parse_group("4:memory:/a\n0::/\n"), Some(PathBuf::from("/sys/fs/cgroup/")));
        assert_eq!(parse_group("4:memory:/a\n"), None);
    }
}
