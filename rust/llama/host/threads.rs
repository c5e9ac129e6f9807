//! Number of compute threads, and their thread pools.

use std::collections::HashMap;
use std::fs;
use std::ptr::NonNull;
use std::thread;

use llama_cpp_sys_2 as sys;

use crate::config::{EnabledKernels, MAX_THREADS, Threads};
use crate::llama::{host::affinity::Affinity, kernels};

/// Physical cores that this process may use, at most [`MAX_THREADS`]: two threads of one core share its arithmetic units.
pub(crate) fn n_cores() -> u32 {
    n_cores_for(&Threads::default())
}

pub(crate) fn n_cores_for(threads: &Threads) -> u32 {
    let cores = Affinity::current().map(|own| one_per_core(&usable(threads, &own)).len());
    let n = cores.and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0);
    n.map_or(n_allowed(), |n| n.min(n_allowed())).max(1)
}

pub(crate) fn n_processors_for(threads: &Threads) -> u32 {
    let cpus = Affinity::current().and_then(|own| u32::try_from(usable(threads, &own).len()).ok()).filter(|&n| n > 0);
    cpus.map_or(n_allowed(), |n| n.min(n_allowed()))
}

fn usable(threads: &Threads, own: &Affinity) -> Vec<usize> {
    let is_allowed = |cpu: &usize| threads.cpus.is_empty() || threads.cpus.iter().any(|allowed| *allowed as usize == *cpu);
    own.cpus().into_iter().filter(is_allowed).collect()
}

pub(crate) fn n_allowed() -> u32 {
    thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(MAX_THREADS).min(MAX_THREADS))
}

/// Returns the first of `cpus` on each physical core, in order; empty if the system does not report cores.
fn one_per_core(cpus: &[usize]) -> Vec<usize> {
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

fn pinned_cpus(n_threads: u32, cpus: &[usize], firsts: &[usize]) -> Option<Vec<usize>> {
    let n = n_threads as usize;
    [cpus, firsts].into_iter().find(|cpus| n > 1 && cpus.len() == n).map(<[usize]>::to_vec)
}

/// A pool of threads that persist between decodes. Without one, llama.cpp starts new threads for every graph.
///
/// If there are as many threads as processors, each is pinned to one. They poll for each other many times per step: as soon as
/// other work makes the system put two of them on one processor, a step takes a thousand times as long.
pub(crate) struct ThreadPool {
    caller_affinity: Option<Affinity>,
    // Dropped first: once the pool is freed, another one may have its address.
    registered: kernels::Pool,
    raw: RawPool,
}

owned_pointer!(struct RawPool(sys::ggml_threadpool), freed by sys::ggml_threadpool_free);

impl ThreadPool {
    /// Starts `n_threads - 1` threads; the decoding thread is one too, and they inherit its priority. `poll` is the default of
    /// `threads.poll`, in llama.cpp's unit: 1 is about 131,000 iterations of a loop, 0 sleeps immediately.
    pub(crate) fn new(n_threads: u32, threads: &Threads, poll: u32, enabled_kernels: EnabledKernels) -> Self {
        let n = n_threads as usize;
        let n_threads = i32::try_from(n_threads).expect("there are 512 threads at most");
        // SAFETY: plain data in and out.
        let mut params = unsafe { sys::ggml_threadpool_params_default(n_threads) };
        params.poll = threads.poll.unwrap_or(poll);
        let own = Affinity::current();
        let cpus = own.map(|own| usable(threads, &own)).unwrap_or_default();
        let pinned = if threads.is_strict && !cpus.is_empty() {
            Some(cpus.clone())
        } else {
            pinned_cpus(n_threads.cast_unsigned(), &cpus, &one_per_core(&cpus))
        };
        params.strict_cpu = pinned.is_some();
        let cpus = pinned.unwrap_or_else(|| if threads.cpus.is_empty() { Vec::new() } else { cpus });
        // A mask of all zeros means any processor.
        let is_in_mask = cpus.iter().all(|&cpu| cpu < params.cpumask.len());
        for &cpu in cpus.iter().filter(|_| is_in_mask) {
            params.cpumask[cpu] = true;
        }
        // SAFETY: the parameters are complete.
        let pool = unsafe { sys::ggml_threadpool_new(&raw mut params) };
        // Threads that this one starts before its first decode may run anywhere.
        if let Some(own) = own {
            own.apply();
        }
        // ggml assigns the processors to its own threads first, in order, and starts over if there are more threads.
        let caller_cpus =
            if params.strict_cpu { cpus.get((n - 1) % cpus.len().max(1)..).map(|rest| &rest[..1]) } else { Some(&cpus[..]) };
        let caller_affinity = caller_cpus.filter(|cpus| is_in_mask && !cpus.is_empty()).map(Affinity::of);
        let raw = RawPool(NonNull::new(pool).expect("llama.cpp ends the process if it cannot start threads"));
        Self { caller_affinity, registered: kernels::Pool::register(pool, enabled_kernels), raw }
    }

    pub(crate) fn caller_affinity(&self) -> Option<Affinity> {
        self.caller_affinity
    }

    /// Calls `compute` with other kernels.
    pub(crate) fn with_kernels<T>(&self, enabled: EnabledKernels, compute: impl FnOnce() -> T) -> T {
        self.registered.with_kernels(enabled, || kernels::with_kernels(enabled, None, compute))
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::ggml_threadpool {
        self.raw.0.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_cores_is_within_the_allowed_threads() {
        let n_allowed = thread::available_parallelism().expect("Linux reports the affinity").get();
        assert!((1..=n_allowed).contains(&(n_cores() as usize)));
    }

    #[test]
    fn as_many_threads_as_processors_or_cores_are_pinned_one_each() {
        let (cpus, firsts) = ([0, 1, 4, 5], [0, 4]);
        assert_eq!(pinned_cpus(4, &cpus, &firsts), Some(vec![0, 1, 4, 5]));
        assert_eq!(pinned_cpus(2, &cpus, &firsts), Some(vec![0, 4]));
        assert_eq!([1, 3, 5, 8].map(|n| pinned_cpus(n, &cpus, &firsts)), [None, None, None, None]);
        assert_eq!(pinned_cpus(1, &[3], &[3]), None, "a single thread is not pinned");
    }

    #[test]
    fn creating_a_pool_does_not_pin_the_caller() {
        let before = Affinity::current();
        let cpus = before.map(|before| before.cpus()).unwrap_or_default();
        let pool = ThreadPool::new(u32::try_from(cpus.len()).expect("a few"), &Threads::default(), 0, EnabledKernels::default());
        let last = cpus.last().map(|last| Affinity::of(&[*last])).filter(|_| cpus.len() > 1);
        assert_eq!(pool.caller_affinity(), last, "the last processor is left for the caller");
        assert_eq!(Affinity::current(), before);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_are_pinned_to_the_configured_processors() {
        let own = Affinity::current().expect("Linux reports the affinity").cpus();
        let caller_cpus = |n_threads, cpus: &[usize], is_strict| {
            let cpus = cpus.iter().map(|&cpu| u32::try_from(cpu).expect("a few")).collect();
            let threads = Threads { cpus, is_strict, ..Threads::default() };
            ThreadPool::new(n_threads, &threads, 0, EnabledKernels::default()).caller_affinity().map(|affinity| affinity.cpus())
        };
        let (first, last) = (own[0], own[own.len() - 1]);
        assert_eq!(caller_cpus(1, &[last], false), Some(vec![last]));
        assert_eq!(caller_cpus(3, &[last, 511], false), Some(vec![last]), "missing processors are ignored");
        assert_eq!(
            caller_cpus(5, &[first, last], true),
            Some(vec![first]),
            "the fifth thread starts over with the first of two processors"
        );
        let (n, all) = (u32::try_from(own.len()).expect("a few"), own.clone());
        assert_eq!(caller_cpus(n + 1, &all, false), Some(all));
        assert_eq!(caller_cpus(n + 1, &[], true), Some(vec![first]));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_configured_processors_count() {
        let first = Affinity::current().expect("Linux reports the affinity").cpus()[0];
        let threads = Threads { cpus: vec![u32::try_from(first).expect("a few")], ..Threads::default() };
        assert_eq!((n_cores_for(&threads), n_processors_for(&threads)), (1, 1));
    }
}
