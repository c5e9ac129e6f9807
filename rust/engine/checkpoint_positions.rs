//! Places in prompts where what is computed is kept.

use crate::engine::request_group::RequestGroup;

/// Places in a prompt where what is computed is kept, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct CheckpointPositions {
    pub(super) at: Vec<u32>,
    /// That of them where the prompt parts from what was computed before, where others may come that part there too.
    pub(super) parts_at: Option<u32>,
    /// Where what a window sees at the prompt's end is kept, for later requests with the same prompt.
    pub(super) end: PromptEndWindow,
}

/// Where what a window sees at the end of a prompt is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum PromptEndWindow {
    /// Nowhere: it is kept already.
    #[default]
    Nowhere,
    /// In the device cache, in cells that are shared with the prompt's own sequence.
    InPool,
    /// In the host cache.
    InStore,
}

impl CheckpointPositions {
    /// The first place after `n` tokens.
    pub(super) fn after(&self, n: u32) -> Option<u32> {
        self.at.get(self.at.partition_point(|&at| at <= n)).copied()
    }

    /// The last place within the first `n` tokens.
    pub(super) fn last_within(&self, n: u32) -> Option<u32> {
        self.at.partition_point(|&at| at <= n).checked_sub(1).map(|last| self.at[last])
    }

    pub(super) fn contains(&self, at: u32) -> bool {
        self.at.binary_search(&at).is_ok()
    }

    /// Adds a place that is so far from every other one and may be one of `request_group`, of which `n_found` tokens are known; `false` where it
    /// is not.
    pub(super) fn add(&mut self, at: u32, distance: u32, job: &RequestGroup, n_found: u32) -> bool {
        let next = self.at.partition_point(|&place| place < at);
        let is_apart = |place: Option<&u32>| place.is_none_or(|place| place.abs_diff(at) >= distance);
        let is_free = is_apart(self.at.get(next)) && is_apart(next.checked_sub(1).and_then(|before| self.at.get(before)));
        let may_be = at > n_found && at < job.n_prompt() && is_free && !job.media.iter().any(|placed| placed.is_cut_at(at));
        if may_be {
            self.at.insert(next, at);
        }
        may_be
    }
}
