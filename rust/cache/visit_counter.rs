//! Counts what a call looks at, so that tests can hold its cost to a bound without a clock: nodes, strands, cells that are walked
//! one by one, entries, and words of bits. Outside of tests nothing is counted.

#[cfg(test)]
thread_local! {
    static N_LOOKED_AT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// So many more things were looked at.
#[cfg(test)]
pub(super) fn count_visited(n: usize) {
    N_LOOKED_AT.with(|count| count.set(count.get() + n as u64));
}

/// So many more things were looked at.
#[cfg(not(test))]
pub(super) fn count_visited(_: usize) {}

/// How much `call` looks at, and what it returns.
#[cfg(test)]
pub(super) fn of<T>(call: impl FnOnce() -> T) -> (u64, T) {
    let before = N_LOOKED_AT.with(std::cell::Cell::get);
    let result = call();
    (N_LOOKED_AT.with(std::cell::Cell::get) - before, result)
}
