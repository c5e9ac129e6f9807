//! Threads that compute one operation together.

/// One of the threads that compute an operation together. Each calls the same function once, with its own `Team` and
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

    /// Blocks until every thread has called it, and makes all earlier writes visible to them.
    fn wait(&self);
}
