//! How many threads compute, and the threads themselves.

use std::collections::HashSet;
use std::fs;
use std::ptr::NonNull;
use std::thread;

use llama_cpp_sys_2 as sys;

use crate::config::{MAX_THREADS, Used};
use crate::llama::kernels;

/// Physical cores that this process may use: two threads of one core only share its arithmetic. 1 to [`MAX_THREADS`].
pub(super) fn n_cores() -> u32 {
    n_allowed_cores().map_or(n_allowed(), |n| n.min(n_allowed())).max(1)
}

/// Threads that this process may run at once. 1 to [`MAX_THREADS`].
pub(super) fn n_allowed() -> u32 {
    // Respects the affinity mask and, on Linux, the quota of the control group.
    thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(MAX_THREADS).min(MAX_THREADS))
}

/// Physical cores with a processor that this process may run on, where Linux tells.
fn n_allowed_cores() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let allowed = parse_cpus(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)?;
    let siblings = |cpu: u32| fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")).ok();
    let cores: HashSet<String> = allowed.into_iter().filter_map(siblings).collect();
    u32::try_from(cores.len()).ok().filter(|&n| n > 0)
}

/// The processors of a list such as `0-3,8`.
fn parse_cpus(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

/// Threads that are kept between decodes. llama.cpp starts new ones for every graph where it is given none.
pub(super) struct ThreadPool {
    /// Which kernels its graphs are computed with.
    // Dropped first: once the pool is freed, another one may have its address.
    _registered: kernels::Pool,
    raw: RawPool,
}

/// A pool of ggml's, freed with this.
struct RawPool(NonNull<sys::ggml_threadpool>);

impl ThreadPool {
    /// Starts `n_threads - 1` threads; the thread that decodes is one too. `poll` is how long they wait for work at full speed
    /// before they sleep, in llama.cpp's unit: 1 is about 131,000 turns of a loop, 0 sleeps at once. Decodes in it are made inside of
    /// [`kernels::deciding`] of the same `used`.
    pub(super) fn new(n_threads: u32, poll: u32, used: Used) -> Self {
        let n_threads = i32::try_from(n_threads).expect("there are 512 threads at most");
        // SAFETY: plain data in and out.
        let mut params = unsafe { sys::ggml_threadpool_params_default(n_threads) };
        params.poll = poll;
        // SAFETY: the parameters are complete, and their CPU mask, all zero, means any CPU.
        let pool = unsafe { sys::ggml_threadpool_new(&raw mut params) };
        let raw = RawPool(NonNull::new(pool).expect("llama.cpp ends the process if it cannot start threads"));
        Self { _registered: kernels::Pool::register(pool, used), raw }
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ggml_threadpool {
        self.raw.0.as_ptr()
    }
}

impl Drop for RawPool {
    fn drop(&mut self) {
        // SAFETY: made by `ggml_threadpool_new` and freed only here; the context that used it has been freed before.
        unsafe { sys::ggml_threadpool_free(self.0.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_at_least_one_and_at_most_what_is_allowed() {
        let n_allowed = thread::available_parallelism().expect("Linux tells").get();
        assert!((1..=n_allowed).contains(&(n_cores() as usize)));
    }

    #[test]
    fn linux_lists_processors_in_ranges() {
        assert_eq!(parse_cpus("\t0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(parse_cpus("\t3\n"), Some(vec![3]));
        assert_eq!(parse_cpus("none"), None);
    }
}
