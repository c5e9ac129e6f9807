//! The machine that computes: its description, threads with their affinity and priority, contention, the allocator.

pub(in crate::llama) mod affinity;
#[cfg(feature = "python")]
pub(in crate::llama) mod allocator;
pub(in crate::llama) mod contention;
pub mod machine;
pub(in crate::llama) mod niceness;
pub(in crate::llama) mod priority;
pub(in crate::llama) mod threads;
