//! Counts the items that a call visits, so that tests can bound its cost without a clock: nodes, cell runs, cells that are
//! walked one by one, entries, and words of bits. Outside of tests, nothing is counted.

#[cfg(test)]
thread_local! {
    static N_VISITED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Adds `n` visits.
#[cfg(test)]
pub(super) fn count_visited(n: usize) {
    N_VISITED.with(|count| count.set(count.get() + n as u64));
}

/// Does nothing outside of tests.
#[cfg(not(test))]
pub(super) fn count_visited(_: usize) {}

/// Returns the number of visits of `call`, and its result.
#[cfg(test)]
pub(super) fn count_visits<T>(call: impl FnOnce() -> T) -> (u64, T) {
    let before = N_VISITED.with(std::cell::Cell::get);
    let result = call();
    (N_VISITED.with(std::cell::Cell::get) - before, result)
}
