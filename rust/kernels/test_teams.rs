//! Teams for tests.

use std::sync::Barrier;

use super::Team;

/// A team of one thread.
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

/// A team of standard-library threads.
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
