//! Priority order of sequences: in the queue, in a step, and for preemption.

use crate::engine::ids::BranchKey;

/// Branch starts, of any request, that one level of priority counts for: a request is scheduled as if it had arrived that many
/// starts earlier. Later requests of higher priority precede it only until then.
pub const STARTS_PER_PRIORITY: i64 = 1_000;

/// Position of a branch in the priority order, the most senior first: by priority and arrival, then by its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SchedulingKey {
    rank: i64,
    branch: BranchKey,
}

impl SchedulingKey {
    pub(crate) fn new(arrived: u64, priority: i32, branch: BranchKey) -> Self {
        Self { rank: rank(arrived, priority), branch }
    }
}

/// Returns the number of branch starts at which a request counts as arrived, adjusted by its priority; lower numbers precede.
pub(crate) fn rank(n_starts: u64, priority: i32) -> i64 {
    let n_starts = i64::try_from(n_starts).expect("no engine sees so many requests");
    n_starts - i64::from(priority) * STARTS_PER_PRIORITY
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ids::{GroupId, MemberIndex};

    #[test]
    fn seniority_is_by_arrival_at_equal_priority_and_by_index_in_one_request() {
        let key = |arrived, group_id, member| {
            SchedulingKey::new(arrived, 0, BranchKey { group_id: GroupId(group_id), member: MemberIndex(member) })
        };
        assert!(key(1, 7, 3) < key(2, 8, 0));
        assert!(key(1, 7, 0) < key(1, 7, 1));
    }

    #[test]
    fn a_higher_priority_is_senior_until_the_other_request_has_waited_long_enough() {
        assert!(rank(900, 1) < rank(1, 0) && rank(1_002, 1) > rank(1, 0));
        assert!(rank(1_900, 0) < rank(1, -2) && rank(2_002, 0) > rank(1, -2));
    }
}
