//! The threads that compute one operation together.

use std::sync::Barrier;

/// One of the threads that compute an operation together; each of them calls the same function with its own, once, and with equal
/// arguments; and no two operations share results or scratch at a time.
///
/// # Safety
/// What threads write is cut by their indices: each index of `0..size` is that of one thread, `size` is the same for all, and `wait`
/// does not return before all of them have called it.
pub unsafe trait Team {
    /// Which of the threads this is: `0..self.size()`.
    fn index(&self) -> usize;

    /// How many threads compute; at least 1.
    fn size(&self) -> usize;

    /// Returns once every thread has called it, and makes what each has written before visible to all.
    fn wait(&self);
}

/// A thread that computes alone.
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

/// Threads of the standard library, for tests and benchmarks.
#[derive(Debug)]
pub struct ThreadTeam<'a> {
    index: usize,
    size: usize,
    barrier: &'a Barrier,
}

impl ThreadTeam<'_> {
    /// Runs `work` on `size` threads and returns once all have ended. `size` is at least 1.
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

// SAFETY: `run` gives each of its threads an index of its own, and a barrier of their number.
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
