//! Who goes before whom: in the queue, in a step, and where cells are short.

/// A request of one priority more goes before others as if it had come so many turns earlier. A turn is the start of a branch, of
/// whatever request.
///
/// So a higher priority is felt at once, and nobody waits for ever: of two requests, the one of lower priority goes first when more
/// branches than this, for each priority between them, have started since it came until the other one did.
pub const STARTS_PER_PRIORITY: i64 = 1_000;

/// A branch's place among all others, the most senior being the least: by priority and arrival, then by its place in its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SchedulingKey {
    rank: i64,
    request_id: u64,
    index: u32,
}

impl SchedulingKey {
    /// Of branch `index` of a request that came in the turn `arrived`.
    pub(crate) fn new(arrived: u64, priority: i32, request_id: u64, index: u32) -> Self {
        Self { rank: rank(arrived, priority), request_id, index }
    }
}

/// The turn from which on a request of `priority` waits, as it were; of two, the one with the lower number goes first.
pub(crate) fn rank(turn: u64, priority: i32) -> i64 {
    let turn = i64::try_from(turn).expect("no engine sees so many requests");
    turn - i64::from(priority) * STARTS_PER_PRIORITY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_priorities_the_first_to_come_is_senior_and_of_one_request_the_first_branch() {
        assert!(SchedulingKey::new(1, 0, 7, 3) < SchedulingKey::new(2, 0, 8, 0));
        assert!(SchedulingKey::new(1, 0, 7, 0) < SchedulingKey::new(1, 0, 7, 1));
    }

    #[test]
    fn a_higher_priority_is_senior_until_the_other_has_waited_long_enough() {
        assert!(rank(900, 1) < rank(1, 0) && rank(1_002, 1) > rank(1, 0));
        assert!(rank(1_900, 0) < rank(1, -2) && rank(2_002, 0) > rank(1, -2));
    }
}
