//! What a figure was measured on: a ratio may travel, a time never does.

use std::fs;
use std::process::Command;

use weft::llama::machine::Hardware;

/// Prints what every figure below has to be read with.
pub(crate) fn describe(n_threads: Option<u32>) {
    let Hardware { cpu, n_cores, instructions, .. } = Hardware::read();
    println!("  processor       {cpu}, {n_cores} physical cores");
    println!("  load before     {} (above 0, other work blurs the figures)", load());
    println!("  compiler        {}", compiler());
    println!("  instructions    {instructions}");
    println!("  threads         {}", n_threads.unwrap_or(n_cores));
}

/// Physical cores that this process may use: the threads of a decode, unless others are asked for.
#[must_use]
pub(crate) fn n_cores() -> u32 {
    Hardware::read().n_cores
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

/// Bytes of memory that programs may still take, where Linux tells.
#[must_use]
pub(crate) fn free_bytes() -> Option<u64> {
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
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
