//! CPU affinity of threads.

use std::ffi::c_ulong;
use std::thread::{self, ThreadId};

const MAX_CPUS: usize = 1024;
const BITS: usize = c_ulong::BITS as usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Affinity {
    mask: [c_ulong; MAX_CPUS / BITS],
}

impl Affinity {
    pub(crate) fn of(cpus: &[usize]) -> Self {
        let mut mask = [0; MAX_CPUS / BITS];
        for &cpu in cpus.iter().filter(|&&cpu| cpu < MAX_CPUS) {
            mask[cpu / BITS] |= 1 << (cpu % BITS);
        }
        Self { mask }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn current() -> Option<Self> {
        let mut mask = [0; MAX_CPUS / BITS];
        // SAFETY: `mask` is writable for the given number of bytes; 0 is this thread.
        let n = unsafe { libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast()) };
        (n >= 0).then_some(Self { mask })
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn apply(&self) {
        // SAFETY: the mask is readable for the given number of bytes; 0 is this thread.
        let _ = unsafe { libc::sched_setaffinity(0, size_of_val(&self.mask), self.mask.as_ptr().cast()) };
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn current() -> Option<Self> {
        None
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn apply(&self) {}

    pub(crate) fn cpus(&self) -> Vec<usize> {
        (0..MAX_CPUS).filter(|cpu| self.mask[cpu / BITS] >> (cpu % BITS) & 1 == 1).collect()
    }
}

#[derive(Debug, Default)]
pub(crate) struct AffinityGuard {
    original: Option<(ThreadId, Affinity)>,
    pinned_to: Option<Affinity>,
}

impl AffinityGuard {
    pub(crate) fn pin(&mut self, affinity: Affinity) {
        if self.pinned_to == Some(affinity) {
            return;
        }
        if self.original.is_none() {
            self.original = Affinity::current().map(|before| (thread::current().id(), before));
        }
        affinity.apply();
        self.pinned_to = Some(affinity);
    }

    pub(crate) fn unpin(&mut self) {
        if let Some((_, before)) = self.original.filter(|_| self.pinned_to.take().is_some()) {
            before.apply();
        }
    }
}

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        if let Some((_, before)) = self.original.filter(|(thread, _)| *thread == thread::current().id()) {
            before.apply();
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_guard_pins_its_thread_and_restores_the_affinity() {
        let all = Affinity::current().expect("Linux reports the affinity");
        let last = *all.cpus().last().expect("the thread has a processor");
        let pinning_thread = thread::spawn(move || {
            let mut guard = AffinityGuard::default();
            let while_pinned = [last, last].map(|cpu| {
                guard.pin(Affinity::of(&[cpu]));
                Affinity::current()
            });
            guard.unpin();
            assert_eq!(Affinity::current(), Some(all));
            guard.pin(Affinity::of(&[last]));
            drop(guard);
            (while_pinned, Affinity::current())
        });
        assert_eq!(
            pinning_thread.join().expect("it ends"),
            ([Some(Affinity::of(&[last])); 2], Some(all)),
            "dropping the guard restores the affinity"
        );
        assert_eq!(Affinity::of(&[last, 7, MAX_CPUS]).cpus(), Affinity::of(&[7, last]).cpus());
        assert_eq!(Affinity::of(&[70, 3]).cpus(), [3, 70]);
        assert_eq!(Affinity::current(), Some(all), "other threads are not affected");
    }
}
