//! How many threads compute, and the threads themselves.

use std::collections::HashMap;
use std::fs;
use std::ptr::NonNull;
use std::thread;

use llama_cpp_sys_2 as sys;

use crate::config::{MAX_THREADS, Used};
use crate::llama::affinity::Affinity;
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

/// Physical cores with a processor that this thread may run on, where Linux tells.
fn n_allowed_cores() -> Option<u32> {
    let cores = one_of_each_core(&Affinity::current()?.cpus());
    u32::try_from(cores.len()).ok().filter(|&n| n > 0)
}

/// The first of `cpus` on each physical core, in order, where Linux tells.
fn one_of_each_core(cpus: &[usize]) -> Vec<usize> {
    let siblings =
        |cpu: usize| fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")).ok();
    let mut firsts = HashMap::new();
    for &cpu in cpus {
        if let Some(core) = siblings(cpu) {
            firsts.entry(core).or_insert(cpu);
        }
    }
    let mut firsts: Vec<usize> = firsts.into_values().collect();
    firsts.sort_unstable();
    firsts
}

/// Where each of `n_threads` has a processor of its own, if they are as many as there are of those, or of cores. Fewer threads
/// leave the system a choice, which it makes better than we could.
fn places(n_threads: u32, cpus: &[usize], firsts: &[usize]) -> Option<Vec<usize>> {
    let n = n_threads as usize;
    [cpus, firsts].into_iter().find(|places| n > 1 && places.len() == n).map(<[usize]>::to_vec)
}

/// Threads that are kept between decodes. llama.cpp starts new ones for every graph where it is given none.
///
/// Where they are as many as there are processors, each is kept on one of its own. They wait for each other at full speed, many times
/// in a step: as soon as other work makes the system put two of them on one processor, a step takes a thousand times as long.
pub(super) struct ThreadPool {
    place: Option<usize>,
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
        let own = Affinity::current();
        let cpus = own.map(|own| own.cpus()).unwrap_or_default();
        let places = places(n_threads.cast_unsigned(), &cpus, &one_of_each_core(&cpus)).unwrap_or_default();
        // A mask that is all zero means any processor.
        let is_known = places.iter().all(|&cpu| cpu < params.cpumask.len());
        for &cpu in places.iter().filter(|_| is_known) {
            params.cpumask[cpu] = true;
        }
        params.strict_cpu = true;
        // SAFETY: the parameters are complete.
        let pool = unsafe { sys::ggml_threadpool_new(&raw mut params) };
        // Threads that this one starts before its first decode are free to run anywhere.
        if let Some(own) = own {
            own.apply();
        }
        // ggml gives the processors to its own threads first, in order.
        let place = places.last().copied().filter(|_| is_known);
        let raw = RawPool(NonNull::new(pool).expect("llama.cpp ends the process if it cannot start threads"));
        Self { place, _registered: kernels::Pool::register(pool, used), raw }
    }

    /// The processor that is left for the thread that decodes, where the others are kept on theirs.
    pub(super) fn place(&self) -> Option<usize> {
        self.place
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
    fn as_many_threads_as_processors_or_cores_have_one_each() {
        let (cpus, firsts) = ([0, 1, 4, 5], [0, 4]);
        assert_eq!(places(4, &cpus, &firsts), Some(vec![0, 1, 4, 5]));
        assert_eq!(places(2, &cpus, &firsts), Some(vec![0, 4]));
        assert_eq!([1, 3, 5, 8].map(|n| places(n, &cpus, &firsts)), [None, None, None, None]);
        assert_eq!(places(1, &[3], &[3]), None, "one waits for nobody");
    }

    #[test]
    fn whoever_makes_a_pool_is_still_free_to_run_anywhere() {
        let before = Affinity::current();
        let cpus = before.map(|before| before.cpus()).unwrap_or_default();
        let pool = ThreadPool::new(u32::try_from(cpus.len()).expect("a few"), 0, Used::default());
        assert_eq!(pool.place(), cpus.last().copied().filter(|_| cpus.len() > 1), "the last is left for it");
        assert_eq!(Affinity::current(), before);
    }
}
