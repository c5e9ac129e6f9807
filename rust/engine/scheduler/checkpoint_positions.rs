//! Positions in prompts at which checkpoints are saved.

use crate::engine::scheduler::request_group::RequestGroup;

#[derive(Debug, Clone, Default)]
pub(crate) struct CheckpointPositions {
    pub(crate) positions: Vec<u32>,
    /// Position at which the prompt diverges from cached ones; later prompts may diverge there too.
    pub(crate) diverges_at: Option<u32>,
    pub(crate) end: PromptEndWindow,
}

/// Location of the copy of the window at the end of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum PromptEndWindow {
    #[default]
    NotCopied,
    InDeviceCache,
    InHostCache,
}

impl CheckpointPositions {
    pub(crate) fn after(&self, n: u32) -> Option<u32> {
        self.positions.get(self.positions.partition_point(|&position| position <= n)).copied()
    }

    pub(crate) fn last_within(&self, n: u32) -> Option<u32> {
        self.positions.partition_point(|&position| position <= n).checked_sub(1).map(|last| self.positions[last])
    }

    pub(crate) fn contains(&self, position: u32) -> bool {
        self.positions.binary_search(&position).is_ok()
    }

    /// Adds a position of the uncached part of the prompt, outside media and at least `distance` from all others, if it is one.
    pub(crate) fn add(&mut self, position: u32, distance: u32, group: &RequestGroup, n_cached: u32) -> bool {
        let next = self.positions.partition_point(|&other| other < position);
        let is_apart = |other: Option<&u32>| other.is_none_or(|other| other.abs_diff(position) >= distance);
        let is_free =
            is_apart(self.positions.get(next)) && is_apart(next.checked_sub(1).and_then(|before| self.positions.get(before)));
        let is_valid = position > n_cached
            && position < group.n_prompt()
            && is_free
            && !group.media.iter().any(|placed| placed.is_cut_at(position));
        if is_valid {
            self.positions.insert(next, position);
        }
        is_valid
    }
}
