//! Settings of speculative decoding.

use super::{named_variants, with_defaults};

named_variants! {
    /// Whether likely tokens are drafted and verified in one decode.
    pub enum SpeculationMode {
        Off = "off",
        /// Only where results do not depend on the rows of a decode, so that drafts change no text.
        Auto = "auto",
        On = "on",
    }
}

with_defaults! {
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SpeculationConfig {
        pub mode: SpeculationMode = SpeculationMode::Auto,
        /// Maximum drafted tokens of a sequence in one step, at most [`MAX_DRAFT`](crate::request::MAX_DRAFT).
        pub max_draft: u32 = 16,
        /// Number of last tokens that must occur in an earlier text, so that a draft continues it.
        pub min_match: u32 = 1,
    }
}

impl From<SpeculationMode> for SpeculationConfig {
    fn from(mode: SpeculationMode) -> Self {
        Self { mode, ..Self::default() }
    }
}
