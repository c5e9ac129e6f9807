//! The machine that computes: its description, threads with their affinity and priority, contention, the allocator.

pub(super) mod affinity;
pub(super) mod allocator;
pub(super) mod contention;
pub(super) mod device;
pub mod machine;
pub(super) mod niceness;
pub(super) mod priority;
pub(super) mod threads;
