//! Free memory for the device cache.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use llama_cpp_sys_2 as sys;

use crate::config::{Placement, Split};
use crate::llama::{host::device::Device, model::Model};

/// Free bytes where `model` stores its cells: on the participating GPUs, or in host memory if it is not offloaded.
pub(crate) fn free_bytes(model: &Model, offload_cells: bool) -> u64 {
    let devices: Vec<Device> = Device::gpus().collect();
    let gpu = |(index, device): (usize, &Device)| {
        let is_integrated = device.kind() == sys::GGML_BACKEND_DEVICE_TYPE_IGPU;
        Gpu { name: device.name(), is_integrated, index }
    };
    let gpus: Vec<Gpu> = devices.iter().enumerate().map(gpu).collect();
    let n_layers = if offload_cells { model.config.n_gpu_layers } else { Some(0) };
    free_among(&gpus, &model.config.placement, n_layers, |gpu| devices[gpu.index].memory().0, free_on_host())
}

#[derive(Debug, Clone)]
struct Gpu {
    name: String,
    is_integrated: bool,
    index: usize,
}

/// Free bytes for cells. `None` for `n_layers` means all; `on_host` bytes are free for layers on no GPU. `n_free` is called only
/// for participating GPUs: the query may allocate memory on a card.
fn free_among(gpus: &[Gpu], placement: &Placement, n_layers: Option<u32>, n_free: impl Fn(&Gpu) -> u64, on_host: u64) -> u64 {
    if n_layers == Some(0) {
        return on_host;
    }
    let own = participating(gpus, placement).into_iter().filter(|gpu| !gpu.is_integrated).map(n_free);
    match (own.reduce(u64::saturating_add), n_layers) {
        (Some(on_gpus), None) => on_gpus,
        (Some(on_gpus), Some(_)) => on_gpus.min(on_host),
        (None, _) => on_host,
    }
}

/// The GPUs that llama.cpp assigns layers to: the named ones, or all, where integrated ones participate only if there is no other;
/// without a split, only the main one of these.
fn participating<'a>(gpus: &'a [Gpu], placement: &Placement) -> Vec<&'a Gpu> {
    let named = |name: &String| gpus.iter().find(|gpu| gpu.name.eq_ignore_ascii_case(name));
    let mut selected: Vec<&Gpu> = if let Some(names) = &placement.devices {
        names.iter().filter_map(named).collect()
    } else {
        let is_alone = gpus.iter().all(|gpu| gpu.is_integrated);
        gpus.iter().filter(|gpu| is_alone || !gpu.is_integrated).collect()
    };
    if placement.split == Split::None {
        return selected.get(placement.main_gpu as usize).copied().into_iter().collect();
    }
    let mut names = HashSet::new();
    selected.retain(|gpu| names.insert(&gpu.name));
    selected
}

/// The backend must have been started, as for all of the following functions that name devices.
pub(crate) fn free_on_host() -> u64 {
    let on_cpus = || Device::all().filter(|device| device.is_cpu()).map(|cpu| cpu.memory().0).reduce(u64::saturating_add);
    available_bytes().or_else(on_cpus).unwrap_or(u64::MAX)
}

pub(crate) fn is_offloaded(model: &Model) -> bool {
    has_gpus(&model.config.placement) && model.config.n_gpu_layers != Some(0)
}

pub(crate) fn has_gpus(placement: &Placement) -> bool {
    placement.devices.as_ref().is_none_or(|names| !names.is_empty()) && Device::gpus().next().is_some()
}

/// Bytes before the machine swaps or the control group is full; `None` on systems other than Linux.
fn available_bytes() -> Option<u64> {
    let on_machine = parse_meminfo(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?;
    Some(control_groups().iter().filter_map(|folder| free_in_group(folder)).fold(on_machine, u64::min))
}

/// Total memory of the machine or of the control group; `u64::MAX` on systems other than Linux.
pub(crate) fn machine_bytes() -> u64 {
    let Some(on_machine) = fs::read_to_string("/proc/meminfo").ok().and_then(|text| parse_meminfo(&text, "MemTotal:")) else {
        return u64::MAX;
    };
    let limit = |folder: &PathBuf| fs::read_to_string(folder.join("memory.max")).ok()?.trim().parse::<u64>().ok();
    control_groups().iter().filter_map(limit).fold(on_machine, u64::min)
}

/// The folders of this process's control group (version 2) and of the groups that contain it.
fn control_groups() -> Vec<PathBuf> {
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| parse_group(&text));
    group.iter().flat_map(|path| path.ancestors()).map(Path::to_owned).collect()
}

fn parse_meminfo(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

fn parse_group(cgroup: &str) -> Option<PathBuf> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/')))
}

/// Free bytes under a control group's limit; `None` without a limit. Page-cache pages count as used, but are reclaimable.
fn free_in_group(folder: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let (limit, used) = (number("memory.max")?, number("memory.current")?);
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let in_files = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.parse().ok()).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(in_files)))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    const HOST: u64 = 50;

    /// An integrated GPU and two cards.
    fn machine() -> [Gpu; 3] {
        let gpu = |index, name: &str, is_integrated| Gpu { name: name.to_owned(), is_integrated, index };
        [gpu(0, "Vulkan0", true), gpu(1, "CUDA0", false), gpu(2, "CUDA1", false)]
    }

    fn free_among(gpus: &[Gpu], placement: &Placement, n_layers: Option<u32>) -> u64 {
        super::free_among(gpus, placement, n_layers, |gpu| [40, 100, 7][gpu.index], HOST)
    }

    #[test]
    fn gpus_that_do_not_participate_are_not_queried() {
        let queried = |placement: &Placement, n_layers| {
            let queried = RefCell::new(Vec::new());
            super::free_among(
                &machine(),
                placement,
                n_layers,
                |gpu| {
                    queried.borrow_mut().push(gpu.name.clone());
                    1
                },
                HOST,
            );
            queried.into_inner()
        };
        assert_eq!(queried(&named(&["CUDA1", "Vulkan0"]), None), ["CUDA1"]);
        assert_eq!(queried(&Placement { split: Split::None, ..Placement::default() }, Some(9)), ["CUDA0"]);
        assert!(queried(&Placement::default(), Some(0)).is_empty() && queried(&named(&[]), None).is_empty());
    }

    fn named(names: &[&str]) -> Placement {
        Placement { devices: Some(names.iter().map(|&name| name.to_owned()).collect()), ..Placement::default() }
    }

    #[test]
    fn only_the_memory_of_participating_gpus_counts() {
        let free = |placement: &Placement| free_among(&machine(), placement, None);
        assert_eq!(free(&Placement::default()), 107);
        assert_eq!(free(&named(&[])), HOST);
        assert_eq!(free(&named(&["CUDA1"])), 7);
        assert_eq!(free(&named(&["cuda1", "Cuda0"])), 107);
        assert_eq!(free(&named(&["CUDA1", "cuda1"])), 7);
        // An integrated GPU uses host memory.
        assert_eq!(free(&named(&["Vulkan0"])), HOST);
        assert_eq!(free(&named(&["Vulkan0", "CUDA1"])), 7);
        assert_eq!(free_among(&machine()[..1], &Placement::default(), None), HOST);
        assert_eq!(free_among(&[], &Placement::default(), None), HOST);
    }

    #[test]
    fn without_a_split_the_main_gpu_holds_every_layer() {
        let free = |main_gpu, placement| free_among(&machine(), &Placement { split: Split::None, main_gpu, ..placement }, None);
        assert_eq!((free(0, Placement::default()), free(1, Placement::default())), (100, 7));
        assert_eq!((free(0, named(&["CUDA1", "CUDA0"])), free(1, named(&["CUDA1", "CUDA0"]))), (7, 100));
    }

    #[test]
    fn layers_in_host_memory_have_their_cells_there() {
        let free = |names: &[&str], n_layers| free_among(&machine(), &named(names), Some(n_layers));
        assert_eq!((free(&["CUDA0"], 0), free(&["CUDA0"], 9)), (HOST, HOST));
        assert_eq!((free(&["CUDA1"], 0), free(&["CUDA1"], 9)), (HOST, 7));
    }

    #[test]
    fn available_memory_is_parsed_from_meminfo() {
        let meminfo = "MemTotal:       32000000 kB\nMemFree:         1000000 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(parse_meminfo(meminfo, "MemAvailable:"), Some(20_480_000_000));
        assert_eq!(parse_meminfo("MemTotal: 1 kB\n", "MemAvailable:"), None);
        assert!(available_bytes().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn only_version_2_control_groups_are_parsed() {
        assert_eq!(parse_group("0::/a/b\n"), Some(PathBuf::from("/sys/fs/cgroup/a/b")));
        assert_eq!(parse_group("4:memory:/a\n0::/\n"), Some(PathBuf::from("/sys/fs/cgroup/")));
        assert_eq!(parse_group("4:memory:/a\n"), None);
    }
}
