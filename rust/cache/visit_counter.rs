//! Counts the nodes, runs, cells, entries and words that a call visits, so that tests can bound its cost without a clock.

#[cfg(test)]
thread_local! {
    static N_VISITED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
pub(super) fn count_visited(n: usize) {
    N_VISITED.with(|count| count.set(count.get() + n as u64));
}

#[cfg(not(test))]
pub(super) fn count_visited(_: usize) {}

#[cfg(test)]
pub(super) fn count_visits<T>(call: impl FnOnce() -> T) -> (u64, T) {
    let before = N_VISITED.with(std::cell::Cell::get);
    let result = call();
    (N_VISITED.with(std::cell::Cell::get) - before, result)
}
