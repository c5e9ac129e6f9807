//! Ids of request groups, of streams and of their branches.
//!
//! Consumers identify a branch by its stream and its index there. Inside the engine, branches with equal prompts are the members of one
//! group, and a stream may have several groups.

/// Id of a request group, in order of submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GroupId(pub(crate) u64);

impl GroupId {
    pub(crate) const MIN: Self = Self(0);
    pub(crate) const MAX: Self = Self(u64::MAX);
}

/// Id of a stream, which consumers see as the id of their request: that of its first group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct StreamId(pub(crate) u64);

impl StreamId {
    pub(crate) fn first_group(self) -> GroupId {
        GroupId(self.0)
    }
}

/// Index of a branch in its stream, as consumers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BranchIndex(pub(crate) u32);

/// Index of a branch, or of a beam, in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MemberIndex(pub(crate) u32);

/// A branch, or a beam, inside the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BranchKey {
    pub(crate) group_id: GroupId,
    pub(crate) member: MemberIndex,
}
