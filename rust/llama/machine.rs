//! What this machine is, in words: timings hold for it alone.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs;

use llama_cpp_sys_2 as sys;

use crate::llama::{backend, memory, threads};

/// What decides how fast a model computes here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    /// The processor's name, as Linux gives it; else its architecture.
    pub cpu: String,
    /// Physical cores that this process may use.
    pub n_cores: u32,
    /// Threads that this process may run at once.
    pub n_threads: u32,
    /// The instruction sets and options that llama.cpp was compiled for, such as `AVX512 AMX_INT8 REPACK`.
    pub instructions: String,
    /// The devices that layers of a model can go to, by name.
    pub gpus: Vec<String>,
}

impl Hardware {
    /// Looks at this machine, starting llama.cpp's backend where it was not.
    #[must_use]
    pub fn read() -> Self {
        backend::backend();
        Self {
            cpu: cpu(),
            n_cores: threads::n_cores(),
            n_threads: threads::n_allowed(),
            instructions: instructions(),
            // SAFETY: a device lives for ever, and its description is a string that lives as long.
            gpus: memory::gpus()
                .into_iter()
                .map(|gpu| unsafe { CStr::from_ptr(sys::ggml_backend_dev_description(gpu)) }.to_string_lossy().into_owned())
                .collect(),
        }
    }
}

fn cpu() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let names: BTreeSet<&str> = cpus
        .lines()
        .filter_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == "model name"))
        .map(|(_, v)| v.trim())
        .collect();
    if names.is_empty() { std::env::consts::ARCH.to_owned() } else { names.into_iter().collect::<Vec<_>>().join(", ") }
}

fn instructions() -> String {
    // SAFETY: returns a string that lives as long as the process; the backend is started, so it changes no more.
    let info = unsafe { CStr::from_ptr(sys::llama_print_system_info()) }.to_string_lossy();
    let enabled = info.split('|').filter_map(|feature| feature.trim().strip_suffix(" = 1"));
    enabled.map(|feature| feature.rsplit(' ').next().unwrap_or(feature)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_a_processor_and_instructions() {
        let hardware = Hardware::read();
        assert!(!hardware.cpu.is_empty() && hardware.n_cores >= 1 && hardware.n_threads >= hardware.n_cores);
        assert!(!hardware.instructions.contains('='), "{}", hardware.instructions);
    }
}
