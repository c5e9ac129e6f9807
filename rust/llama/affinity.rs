//! Which processors a thread may run on.

use std::ffi::c_ulong;
use std::thread::{self, ThreadId};

/// Processors that a mask has bits for; a system with more tells nothing of them here.
const MAX_CPUS: usize = 1024;
const BITS: usize = c_ulong::BITS as usize;

/// A set of processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Affinity {
    mask: [c_ulong; MAX_CPUS / BITS],
}

#[cfg(target_os = "linux")]
mod system {
    use std::ffi::{c_int, c_ulong};

    unsafe extern "C" {
        pub(super) fn sched_getaffinity(thread: c_int, n_bytes: usize, mask: *mut c_ulong) -> c_int;
        pub(super) fn sched_setaffinity(thread: c_int, n_bytes: usize, mask: *const c_ulong) -> c_int;
    }
}

impl Affinity {
    /// These processors alone; those that a mask has no bits for are left out.
    pub(super) fn of(cpus: &[usize]) -> Self {
        let mut mask = [0; MAX_CPUS / BITS];
        for &cpu in cpus.iter().filter(|&&cpu| cpu < MAX_CPUS) {
            mask[cpu / BITS] |= 1 << (cpu % BITS);
        }
        Self { mask }
    }

    /// Of this thread, where the system tells.
    #[cfg(target_os = "linux")]
    pub(super) fn current() -> Option<Self> {
        let mut mask = [0; MAX_CPUS / BITS];
        // SAFETY: as many bytes are writable; 0 is this thread.
        let n = unsafe { system::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr()) };
        (n >= 0).then_some(Self { mask })
    }

    /// Keeps this thread, and those that it starts, on these processors. Where it may not be kept there, it runs where it likes.
    #[cfg(target_os = "linux")]
    pub(super) fn apply(&self) {
        // SAFETY: as many bytes are readable; 0 is this thread.
        let _ = unsafe { system::sched_setaffinity(0, size_of_val(&self.mask), self.mask.as_ptr()) };
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn current() -> Option<Self> {
        None
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn apply(&self) {}

    /// The processors, in order.
    pub(super) fn cpus(&self) -> Vec<usize> {
        (0..MAX_CPUS).filter(|cpu| self.mask[cpu / BITS] >> (cpu % BITS) & 1 == 1).collect()
    }
}

/// A thread that is kept on some processors, until this is dropped.
#[derive(Debug, Default)]
pub(super) struct AffinityGuard {
    came_from: Option<(ThreadId, Affinity)>,
    place: Option<Affinity>,
}

impl AffinityGuard {
    /// This thread stays on the processors of `place` from now on.
    pub(super) fn at(&mut self, place: Affinity) {
        if self.place == Some(place) {
            return;
        }
        if self.came_from.is_none() {
            self.came_from = Affinity::current().map(|before| (thread::current().id(), before));
        }
        place.apply();
        self.place = Some(place);
    }

    /// It need not stay any more.
    pub(super) fn leave(&mut self) {
        if let Some((_, before)) = self.came_from.filter(|_| self.place.take().is_some()) {
            before.apply();
        }
    }
}

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        if let Some((_, before)) = self.came_from.filter(|(thread, _)| *thread == thread::current().id()) {
            before.apply();
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_kept_where_it_is_put() {
        let all = Affinity::current().expect("Linux tells");
        let last = *all.cpus().last().expect("it runs somewhere");
        let told = thread::spawn(move || {
            let mut stay = AffinityGuard::default();
            let there = [last, last].map(|cpu| {
                stay.at(Affinity::of(&[cpu]));
                Affinity::current()
            });
            stay.leave();
            assert_eq!(Affinity::current(), Some(all));
            stay.at(Affinity::of(&[last]));
            drop(stay);
            (there, Affinity::current())
        });
        assert_eq!(
            told.join().expect("it ends"),
            ([Some(Affinity::of(&[last])); 2], Some(all)),
            "until it need not stay any more"
        );
        assert_eq!(Affinity::of(&[last, 7, MAX_CPUS]).cpus(), Affinity::of(&[7, last]).cpus());
        assert_eq!(Affinity::of(&[70, 3]).cpus(), [3, 70]);
        assert_eq!(Affinity::current(), Some(all), "nobody else is");
    }
}
