//! The machine of a measurement: ratios may transfer to other machines, times never do.

use std::fs;
use std::process::Command;

use weft::llama::host::machine::Hardware;

/// Prints the information that is needed to interpret all figures.
pub(crate) fn describe(n_threads: Option<u32>) {
    let Hardware { cpu, n_cores, instructions, .. } = Hardware::read();
    println!("  processor       {cpu}, {n_cores} physical cores");
    println!("  load before     {} (above 0, other work blurs the figures)", load());
    println!("  compiler        {}", compiler());
    println!("  instructions    {instructions}");
    println!("  threads         {}", n_threads.unwrap_or(n_cores));
}

/// Returns the physical cores that this process may use: the default threads of a decode.
#[must_use]
pub(crate) fn n_cores() -> u32 {
    Hardware::read().n_cores
}

/// Returns the size of the processor's largest cache in bytes, if Linux reports it.
#[must_use]
pub(crate) fn cache_bytes() -> Option<usize> {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let sizes = caches.flatten().filter_map(|cache| {
        let size = fs::read_to_string(cache.path().join("size")).ok()?;
        size.trim().strip_suffix('K')?.parse::<usize>().ok()
    });
    sizes.max().map(|kib| kib << 10)
}

/// Returns the available memory in bytes, if Linux reports it.
#[must_use]
pub(crate) fn free_bytes() -> Option<u64> {
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Returns Linux's load average over the last minute.
fn load() -> String {
    let averages = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    averages.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown").to_owned()
}

/// Returns the version of the C++ compiler that the build used for llama.cpp.
fn compiler() -> String {
    let compiler = option_env!("CXX").unwrap_or("c++");
    let output = Command::new(compiler).arg("--version").output().ok();
    let version = output.and_then(|output| String::from_utf8(output.stdout).ok());
    let version = version.and_then(|text| text.lines().next().map(str::to_owned));
    version.unwrap_or_else(|| format!("{compiler} (version unknown)"))
}
