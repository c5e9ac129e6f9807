//! Positions in prompts at which checkpoints are saved.

use crate::engine::scheduler::request_group::RequestGroup;

/// Checkpoint positions in a prompt, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct CheckpointPositions {
    pub(crate) at: Vec<u32>,
    /// The position where the prompt diverges from cached ones, where later prompts may diverge too.
    pub(crate) diverges_at: Option<u32>,
    /// Location of the copy of the window at the prompt's end, for later requests with the same prompt.
    pub(crate) end: PromptEndWindow,
}

/// Location of the copy of the window at the end of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum PromptEndWindow {
    /// No copy: it is already cached.
    #[default]
    NotCopied,
    /// In the device cache, in cells that are shared with the prompt's own sequence.
    InDeviceCache,
    /// In the host cache.
    InHostCache,
}

impl CheckpointPositions {
    /// Returns the first position after `n` tokens.
    pub(crate) fn after(&self, n: u32) -> Option<u32> {
        self.at.get(self.at.partition_point(|&at| at <= n)).copied()
    }

    /// Returns the last position within the first `n` tokens.
    pub(crate) fn last_within(&self, n: u32) -> Option<u32> {
        self.at.partition_point(|&at| at <= n).checked_sub(1).map(|last| self.at[last])
    }

    pub(crate) fn contains(&self, at: u32) -> bool {
        self.at.binary_search(&at).is_ok()
    }

    /// Adds a position if it is at least `distance` from all others, inside the uncached part of the prompt and not inside a
    /// medium. Returns true if it was added.
    pub(crate) fn add(&mut self, at: u32, distance: u32, group: &RequestGroup, n_cached: u32) -> bool {
        let next = self.at.partition_point(|&position| position < at);
        let is_apart = |other: Option<&u32>| other.is_none_or(|other| other.abs_diff(at) >= distance);
        let is_free = is_apart(self.at.get(next)) && is_apart(next.checked_sub(1).and_then(|before| self.at.get(before)));
        let is_valid =
            at > n_cached && at < group.n_prompt() && is_free && !group.media.iter().any(|placed| placed.is_cut_at(at));
        if is_valid {
            self.at.insert(next, at);
        }
        is_valid
    }
}
