//! How many threads compute, and the threads themselves.

use std::collections::HashMap;
use std::fs;
use std::ptr::NonNull;
use std::thread;

use llama_cpp_sys_2 as sys;

use crate::config::{EnabledKernels, MAX_THREADS, ThreadParamNames, Threads};
use crate::error::{Error, Result};
use crate::llama::affinity::Affinity;
use crate::llama::kernels;

/// Physical cores that this process may use: two threads of one core only share its arithmetic. 1 to [`MAX_THREADS`].
pub(super) fn n_cores() -> u32 {
    n_cores_for(&Threads::default())
}

/// The same of those that `threads` are to compute on.
pub(super) fn n_cores_for(threads: &Threads) -> u32 {
    let cores = Affinity::current().map(|own| one_of_each_core(&usable(threads, &own)).len());
    let n = cores.and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0);
    n.map_or(n_allowed(), |n| n.min(n_allowed())).max(1)
}

/// Threads that may run at once on those.
pub(super) fn n_processors_for(threads: &Threads) -> u32 {
    let cpus = Affinity::current().and_then(|own| u32::try_from(usable(threads, &own).len()).ok()).filter(|&n| n > 0);
    cpus.map_or(n_allowed(), |n| n.min(n_allowed()))
}

/// The processors that `threads` may use of those that this thread may run on.
fn usable(threads: &Threads, own: &Affinity) -> Vec<usize> {
    let is_wanted = |cpu: &usize| threads.cpus.is_empty() || threads.cpus.iter().any(|wanted| *wanted as usize == *cpu);
    own.cpus().into_iter().filter(is_wanted).collect()
}

/// # Errors
/// [`Error::InvalidConfig`] where none of the processors that `threads` are to use is one that this process may run on.
pub(super) fn check(threads: &Threads, names: &ThreadParamNames) -> Result<()> {
    let Some(own) = Affinity::current() else {
        if !threads.cpus.is_empty() {
            tracing::warn!("{} has no effect: this system lets no thread be kept on a processor", names.cpus);
        }
        return Ok(());
    };
    if usable(threads, &own).is_empty() {
        let (cpus, own) = (&threads.cpus, own.cpus());
        let message = format!("{} is {cpus:?}, none of which this process may run on; it may on {own:?}", names.cpus);
        return Err(Error::InvalidConfig { param: names.cpus, message });
    }
    Ok(())
}

/// Threads that this process may run at once. 1 to [`MAX_THREADS`].
pub(super) fn n_allowed() -> u32 {
    // Respects the affinity mask and, on Linux, the quota of the control group.
    thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(MAX_THREADS).min(MAX_THREADS))
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
    place: Option<Affinity>,
    /// Which kernels its graphs are computed with.
    // Dropped first: once the pool is freed, another one may have its address.
    _registered: kernels::Pool,
    raw: RawPool,
}

/// A pool of ggml's, freed with this.
struct RawPool(NonNull<sys::ggml_threadpool>);

impl ThreadPool {
    /// Starts `n_threads - 1` threads where and how `threads` says; the thread that decodes is one too, and they have its priority.
    /// `poll` is how long they wait for work at full speed before they sleep where that is left open, in llama.cpp's unit: 1 is about
    /// 131,000 turns of a loop, 0 sleeps at once. Decodes in it are made inside of [`kernels::deciding`] of the same `used`.
    pub(super) fn new(n_threads: u32, threads: &Threads, poll: u32, used: EnabledKernels) -> Self {
        let n = n_threads as usize;
        let n_threads = i32::try_from(n_threads).expect("there are 512 threads at most");
        // SAFETY: plain data in and out.
        let mut params = unsafe { sys::ggml_threadpool_params_default(n_threads) };
        params.poll = threads.poll.unwrap_or(poll);
        let own = Affinity::current();
        let cpus = own.map(|own| usable(threads, &own)).unwrap_or_default();
        let one_each = if threads.is_strict && !cpus.is_empty() {
            Some(cpus.clone())
        } else {
            places(n_threads.cast_unsigned(), &cpus, &one_of_each_core(&cpus))
        };
        params.strict_cpu = one_each.is_some();
        let places = one_each.unwrap_or_else(|| if threads.cpus.is_empty() { Vec::new() } else { cpus });
        // A mask that is all zero means any processor.
        let is_known = places.iter().all(|&cpu| cpu < params.cpumask.len());
        for &cpu in places.iter().filter(|_| is_known) {
            params.cpumask[cpu] = true;
        }
        // SAFETY: the parameters are complete.
        let pool = unsafe { sys::ggml_threadpool_new(&raw mut params) };
        // Threads that this one starts before its first decode are free to run anywhere.
        if let Some(own) = own {
            own.apply();
        }
        // ggml gives the processors to its own threads first, in order, and begins anew where they are more.
        let own_place = if params.strict_cpu {
            places.get((n - 1) % places.len().max(1)..).map(|rest| &rest[..1])
        } else {
            Some(&places[..])
        };
        let place = own_place.filter(|places| is_known && !places.is_empty()).map(Affinity::of);
        let raw = RawPool(NonNull::new(pool).expect("llama.cpp ends the process if it cannot start threads"));
        Self { place, _registered: kernels::Pool::register(pool, used), raw }
    }

    /// The processors that are left for the thread that decodes, where the others are kept on theirs.
    pub(super) fn place(&self) -> Option<Affinity> {
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
        let pool = ThreadPool::new(u32::try_from(cpus.len()).expect("a few"), &Threads::default(), 0, EnabledKernels::default());
        let last = cpus.last().map(|last| Affinity::of(&[*last])).filter(|_| cpus.len() > 1);
        assert_eq!(pool.place(), last, "the last is left for it");
        assert_eq!(Affinity::current(), before);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_are_kept_where_a_user_says() {
        let own = Affinity::current().expect("Linux tells").cpus();
        let place = |n_threads, cpus: &[usize], is_strict| {
            let cpus = cpus.iter().map(|&cpu| u32::try_from(cpu).expect("a few")).collect();
            let threads = Threads { cpus, is_strict, ..Threads::default() };
            ThreadPool::new(n_threads, &threads, 0, EnabledKernels::default()).place().map(|place| place.cpus())
        };
        let (first, last) = (own[0], own[own.len() - 1]);
        assert_eq!(place(1, &[last], false), Some(vec![last]));
        assert_eq!(place(3, &[last, 511], false), Some(vec![last]), "those that are not there are left out");
        assert_eq!(place(5, &[first, last], true), Some(vec![first]), "the fifth of two in turn");
        let (n, all) = (u32::try_from(own.len()).expect("a few"), own.clone());
        assert_eq!(place(n + 1, &all, false), Some(all));
        assert_eq!(place(n + 1, &[], true), Some(vec![first]));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn processors_that_are_not_there_are_refused() {
        let threads = |cpus: Vec<u32>| Threads { cpus, ..Threads::default() };
        let own = Affinity::current().expect("Linux tells").cpus();
        let first = u32::try_from(own[0]).expect("a few");
        assert_eq!(check(&threads(vec![first, 511]), &ThreadParamNames::DECODING), Ok(()));
        assert_eq!((n_cores_for(&threads(vec![first])), n_processors_for(&threads(vec![first]))), (1, 1));
        match check(&threads(vec![511]), &ThreadParamNames::PROMPTS) {
            Err(Error::InvalidConfig { param: "cpus_batch", message }) => {
                assert!(
                    message.starts_with("cpus_batch is [511], none of which this process may run on; it may on ["),
                    "{message}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}
