//! Threads that wait by spinning, like llama.cpp's.
#![allow(unsafe_code, reason = "threads that compute together vouch for how they do")]

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use weft::kernels::Team;

/// A thread of a team.
pub(crate) struct Spinning<'a> {
    index: usize,
    size: usize,
    /// Total number of arrivals at barriers.
    arrived: &'a AtomicUsize,
}

impl<'a> Spinning<'a> {
    /// Creates thread `index` of `size`; all share the same counter, which starts at 0.
    pub(crate) fn new(index: usize, size: usize, arrived: &'a AtomicUsize) -> Self {
        Self { index, size, arrived }
    }

    /// Runs `work` on `size` threads and returns once all have ended.
    pub(crate) fn run(size: usize, work: impl Fn(&dyn Team) + Sync) {
        let arrived = AtomicUsize::new(0);
        thread::scope(|scope| {
            for index in 1..size {
                let (arrived, work) = (&arrived, &work);
                scope.spawn(move || work(&Spinning::new(index, size, arrived)));
            }
            work(&Spinning::new(0, size, &arrived));
        });
    }
}

// SAFETY: each thread has a distinct index, and no thread passes a barrier before all have arrived.
unsafe impl Team for Spinning<'_> {
    fn index(&self) -> usize {
        self.index
    }

    fn size(&self) -> usize {
        self.size
    }

    fn wait(&self) {
        let goal = (self.arrived.fetch_add(1, Ordering::AcqRel) / self.size + 1) * self.size;
        let mut n_spins = 0_u32;
        while self.arrived.load(Ordering::Acquire) < goal {
            n_spins = n_spins.wrapping_add(1);
            // On a busy machine another thread may need this processor.
            if n_spins.is_multiple_of(4096) { thread::yield_now() } else { spin_loop() }
        }
    }
}
