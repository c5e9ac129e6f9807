//! What a figure was measured on: a ratio may travel, a time never does.
#![allow(unsafe_code, reason = "llama.cpp says itself what it was compiled for")]

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs;
use std::process::Command;
use std::thread;

use llama_cpp_sys_2 as sys;

/// Prints what every figure below has to be read with.
pub(crate) fn describe(n_threads: u32) {
    println!("  processor       {}, {} physical cores", cpu(), n_cores());
    println!("  load before     {} (above 0, other work blurs the figures)", load());
    println!("  compiler        {}", compiler());
    println!("  instructions    {}", llama_features());
    println!("  threads         {n_threads}");
}

/// The processor's name, as Linux gives it.
fn cpu() -> String {
    let name = cpu_lines("model name").next();
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Cores that have an arithmetic unit of their own, at most as many as this process may use.
#[must_use]
pub(crate) fn n_cores() -> u32 {
    let cores: BTreeSet<_> = cpu_lines("physical id").zip(cpu_lines("core id")).collect();
    let n_allowed = thread::available_parallelism().map_or(1, usize::from);
    // Where the system does not tell its cores, as on ARM, every processor is taken for one.
    let n_cores = if cores.is_empty() { n_allowed } else { cores.len().min(n_allowed) };
    u32::try_from(n_cores).expect("a machine has fewer than four billion cores")
}

/// Bytes of the processor's largest cache, where Linux tells.
#[must_use]
pub(crate) fn cache_bytes() -> Option<usize> {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let sizes = caches.flatten().filter_map(|cache| {
        let size = fs::read_to_string(cache.path().join("size")).ok()?;
        size.trim().strip_suffix('K')?.parse::<usize>().ok()
    });
    sizes.max().map(|kib| kib << 10)
}

/// How many threads wanted to run over the last minute, as Linux gives it: what the figures have to be read with.
fn load() -> String {
    let averages = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    averages.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown").to_owned()
}

/// The compiler that the build was told to make llama.cpp with, in its own words.
fn compiler() -> String {
    let compiler = option_env!("CXX").unwrap_or("c++");
    let output = Command::new(compiler).arg("--version").output().ok();
    let version = output.and_then(|output| String::from_utf8(output.stdout).ok());
    let version = version.and_then(|text| text.lines().next().map(str::to_owned));
    version.unwrap_or_else(|| format!("{compiler} (version unknown)"))
}

/// The instruction sets and options that llama.cpp was compiled for, such as `AVX512 AMX_INT8 REPACK`.
fn llama_features() -> String {
    // SAFETY: returns a string that lives as long as the process; nobody else is loading a backend meanwhile.
    let features = unsafe { CStr::from_ptr(sys::llama_print_system_info()) }.to_string_lossy();
    let enabled = features.split('|').filter_map(|feature| feature.trim().strip_suffix(" = 1"));
    enabled.map(|feature| feature.rsplit(' ').next().unwrap_or(feature)).collect::<Vec<_>>().join(" ")
}

fn cpu_lines(key: &str) -> impl Iterator<Item = String> {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let values = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_owned())
    });
    values.collect::<Vec<_>>().into_iter()
}
