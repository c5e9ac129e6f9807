//! How many threads compute, and the threads themselves.

use std::collections::HashSet;
use std::fs;
use std::ptr::NonNull;
use std::thread;

use llama_cpp_sys_2 as sys;

/// Physical cores that this process may use: two threads of one core only share its arithmetic. At least 1.
pub(super) fn n_cores() -> u32 {
    n_physical_cores().map_or(n_allowed(), |n| n.min(n_allowed())).max(1)
}

/// Threads that this process may run at once. At least 1.
pub(super) fn n_allowed() -> u32 {
    // Respects the affinity mask and, on Linux, the quota of the control group.
    thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX))
}

/// Physical cores of the machine, where Linux tells.
fn n_physical_cores() -> Option<u32> {
    let cpus = fs::read_dir("/sys/devices/system/cpu").ok()?;
    let siblings = cpus.flatten().filter_map(|cpu| fs::read_to_string(cpu.path().join("topology/thread_siblings_list")).ok());
    let cores: HashSet<String> = siblings.collect();
    u32::try_from(cores.len()).ok().filter(|&n| n > 0)
}

/// Threads that are kept between decodes. llama.cpp starts new ones for every graph where it is given none.
pub(super) struct ThreadPool(NonNull<sys::ggml_threadpool>);

impl ThreadPool {
    /// Starts `n_threads - 1` threads; the thread that decodes is one too. `poll` is how long they wait for work at full speed
    /// before they sleep, in llama.cpp's unit: 1 is about 131,000 turns of a loop, 0 sleeps at once.
    pub(super) fn new(n_threads: u32, poll: u32) -> Self {
        let n_threads = i32::try_from(n_threads).expect("settle() allows 512 threads at most");
        // SAFETY: plain data in and out.
        let mut params = unsafe { sys::ggml_threadpool_params_default(n_threads) };
        params.poll = poll;
        // SAFETY: the parameters are complete, and their CPU mask, all zero, means any CPU.
        let pool = unsafe { sys::ggml_threadpool_new(&raw mut params) };
        Self(NonNull::new(pool).expect("llama.cpp ends the process if it cannot start threads"))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ggml_threadpool {
        self.0.as_ptr()
    }
}

impl Drop for ThreadPool {
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
}
