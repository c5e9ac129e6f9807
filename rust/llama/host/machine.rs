//! Describes this machine, for which timings are valid.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs;
use std::sync::LazyLock;

use llama_cpp_sys_2 as sys;

use crate::llama::backend;
use crate::llama::host::{device::Device, threads};

/// Properties that determine how fast a model computes here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    /// The processor's name, as reported by Linux; otherwise its architecture, on ARM with the ids that Linux reports.
    pub cpu: String,
    /// Physical cores that this process may use.
    pub n_cores: u32,
    /// Threads that this process may run simultaneously.
    pub n_threads: u32,
    /// The instruction sets and options that llama.cpp was compiled for, such as `AVX512 AMX_INT8 REPACK`.
    pub instructions: String,
    /// The devices that layers of a model can be offloaded to.
    pub gpus: Vec<String>,
}

impl Hardware {
    /// Inspects this machine. Starts llama.cpp's backend if necessary.
    #[must_use]
    pub fn read() -> Self {
        backend::backend();
        Self {
            cpu: cpu_in(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            n_cores: threads::n_cores(),
            n_threads: threads::n_allowed(),
            instructions: instructions(),
            gpus: Device::gpus().map(Device::description).collect(),
        }
    }
}

/// Name, description, total and free bytes of each device other than CPUs. Starts llama.cpp's backend if necessary.
pub(crate) fn devices() -> Vec<(String, String, u64, u64)> {
    backend::backend();
    let describe = |device: Device| {
        let (n_free, n_bytes) = device.memory();
        (device.name(), device.description(), n_bytes, n_free)
    };
    Device::all().filter(|device| !device.is_cpu()).map(describe).collect()
}

/// Returns true if llama.cpp computes with AMX. The backend must have been started.
pub(crate) fn has_amx() -> bool {
    extra_buffer_types().contains(&c"AMX")
}

fn extra_buffer_types() -> Vec<&'static CStr> {
    let name = c"ggml_backend_dev_get_extra_bufts";
    // SAFETY: a started backend has a CPU, which lives forever, as does its registry; the name is NUL-terminated.
    let (cpu, function) = unsafe {
        let cpu = sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU);
        (cpu, sys::ggml_backend_reg_get_proc_address(sys::ggml_backend_dev_backend_reg(cpu), name.as_ptr()))
    };
    if function.is_null() {
        return Vec::new();
    }
    // SAFETY: according to `ggml-backend.h` the function of this name is a `ggml_backend_dev_get_extra_bufts_t`.
    let list: unsafe extern "C" fn(sys::ggml_backend_dev_t) -> *const sys::ggml_backend_buffer_type_t =
        unsafe { std::mem::transmute(function) };
    // SAFETY: the device is the one whose registry has the function.
    let first = unsafe { list(cpu) };
    // SAFETY: the list lives forever and ends with a null, beyond which nothing is read.
    let kinds = (0..).map(|i| unsafe { first.add(i).read() }).take_while(|kind| !kind.is_null());
    // SAFETY: a registered buffer type lives forever, and so does its name.
    kinds.map(|kind| unsafe { CStr::from_ptr(sys::ggml_backend_buft_name(kind)) }).collect()
}

fn cpu_in(cpus: &str) -> String {
    let values_of = |keys: &[&str]| -> Vec<&str> {
        let lines = cpus.lines().filter_map(|line| line.split_once(':'));
        let all: BTreeSet<&str> = lines.filter(|(key, _)| keys.contains(&key.trim())).map(|(_, value)| value.trim()).collect();
        all.into_iter().collect()
    };
    let names = values_of(&["model name"]);
    if !names.is_empty() {
        return names.join(", ");
    }
    let ids = values_of(&["CPU implementer", "CPU part"]);
    [&[std::env::consts::ARCH], ids.as_slice()].concat().join(" ")
}

fn instructions() -> String {
    // Each call of llama.cpp's function frees the text of the call before.
    static INSTRUCTIONS: LazyLock<String> = LazyLock::new(|| {
        // SAFETY: the text lives until the next call of the function, and there is none.
        let info = unsafe { CStr::from_ptr(sys::llama_print_system_info()) }.to_string_lossy();
        let enabled = info.split('|').filter_map(|feature| feature.trim().strip_suffix(" = 1"));
        enabled.map(|feature| feature.rsplit(' ').next().unwrap_or(feature)).collect::<Vec<_>>().join(" ")
    });
    INSTRUCTIONS.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amx_is_reported_only_if_the_build_has_it() {
        let hardware = Hardware::read();
        assert!(!has_amx() || hardware.instructions.contains("AMX_INT8"), "{}", hardware.instructions);
        // Proves that the list is not simply empty.
        assert_eq!(extra_buffer_types().contains(&c"CPU_REPACK"), hardware.instructions.contains("REPACK"));
    }

    #[test]
    fn devices_do_not_include_the_cpu() {
        let names: Vec<String> = devices().into_iter().map(|(name, ..)| name).collect();
        assert!(!names.contains(&"CPU".to_owned()), "{names:?}");
        assert!(names.len() >= Hardware::read().gpus.len());
    }

    #[test]
    fn a_processor_is_described_by_its_name_or_ids() {
        let of_names = "processor\t: 0\nmodel name\t: A B\nprocessor\t: 1\nmodel name\t: A B\n";
        let of_numbers = "processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\n";
        assert_eq!(cpu_in(of_names), "A B");
        assert_eq!(cpu_in(of_numbers), format!("{} 0x41 0xd0c", std::env::consts::ARCH));
        assert_eq!(cpu_in(""), std::env::consts::ARCH);
    }

    #[test]
    fn several_threads_inspect_the_machine_at_the_same_time() {
        let hardware = Hardware::read();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| assert_eq!(instructions(), hardware.instructions)));
            }
        });
    }

    #[test]
    fn the_hardware_has_a_processor_and_instructions() {
        let hardware = Hardware::read();
        assert!(!hardware.cpu.is_empty() && hardware.n_cores >= 1 && hardware.n_threads >= hardware.n_cores);
        assert!(!hardware.instructions.contains('='), "{}", hardware.instructions);
    }
}
