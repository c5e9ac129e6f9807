//! A small graph with and without our kernels.

use super::Installed;
use crate::config::Used;
use crate::kernels::Level;

pub(super) fn run(level: Level) -> Installed {
    Installed { usable: Used::ALL, level, why_not: None }
}
