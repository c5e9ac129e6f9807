//! Who decides, and when.
pub mod runner;
