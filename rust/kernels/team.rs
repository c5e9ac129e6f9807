//! Threads that compute one operation together.

use std::sync::Barrier;

/// One of the threads that compute an operation together. Each thread calls the same function once, with its own `Team` and
/// otherwise equal arguments. Concurrent operations share neither results nor scratch memory.
///
/// # Safety
/// Threads divide their writes by index: each index in `0..size` belongs to exactly one thread, `size` is the same for all, and
/// `wait` does not return before all of them have called it.
pub unsafe trait Team {
    /// Returns this thread's index in `0..self.size()`.
    fn index(&self) -> usize;

    /// Returns the number of threads, at least 1.
    fn size(&self) -> usize;

    /// Blocks until every thread has called it, and makes all earlier writes visible to all threads.
    fn wait(&self);
}

/// A team of one thread.
#[derive(Debug, Clone, Copy, Default)]
pub struct SoloTeam;

// SAFETY: there is one thread.
unsafe impl Team for SoloTeam {
    fn index(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn wait(&self) {}
}

/// A team of standard-library threads, for tests and benchmarks.
#[derive(Debug)]
pub struct ThreadTeam<'a> {
    index: usize,
    size: usize,
    barrier: &'a Barrier,
}

impl ThreadTeam<'_> {
    /// Runs `work` on `size` threads (at least 1) and returns once all have finished.
    pub fn run(size: usize, work: impl Fn(&dyn Team) + Sync) {
        let barrier = Barrier::new(size);
        std::thread::scope(|scope| {
            for index in 1..size {
                let (barrier, work) = (&barrier, &work);
                scope.spawn(move || work(&ThreadTeam { index, size, barrier }));
            }
            work(&ThreadTeam { index: 0, size, barrier: &barrier });
        });
    }
}

// SAFETY: `run` gives each of its threads a distinct index, and all of them one barrier of their number.
unsafe impl Team for ThreadTeam<'_> {
    fn index(&self) -> usize {
        self.index
    }

    fn size(&self) -> usize {
        self.size
    }

    fn wait(&self) {
        self.barrier.wait();
    }
}
