//! Moving cells down: llama.cpp never does, and every decode pays for the highest used one.

use std::ops::Range;

use crate::cache::Forks;
use crate::cache::cells::CellId;
use crate::cache::{KvCache, SequenceId};

/// llama.cpp looks through the cells in steps of this many.
const STEP: usize = 256;

/// A stretch of cells that would lie lower if they were saved and restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relocation {
    /// Everyone who holds them.
    pub ids: Vec<SequenceId>,
    /// The tokens in them.
    pub range: Range<u32>,
}

impl KvCache {
    /// The highest cells, where the highest used one is more than twice the number of used ones and they would come to lie lower;
    /// about `max_units` of them (see [`KvCache::next_departure`]), but 16 at least.
    #[must_use]
    pub fn next_relocation(&self, max_units: u64) -> Option<Relocation> {
        let (n_reached, n_used) = (self.n_reached(), self.n_used());
        if self.memory.forks != Forks::Anywhere || n_reached.div_ceil(STEP) <= (2 * n_used).div_ceil(STEP) {
            return None;
        }
        let top = CellId(super::length_of(n_reached - 1));
        let holders: Vec<SequenceId> = self.held().filter(|(_, path)| path.cells.contains(&top)).map(|(id, _)| id).collect();
        let cells = &self.path(*holders.first()?).cells;
        let at = cells.iter().position(|&cell| cell == top)?;
        // What these hold in common around it and nobody else holds, and what is high up.
        let holds = |id: SequenceId, place: usize| self.path(id).cells.get(place) == Some(&cells[place]);
        let is_common = |place: usize| {
            cells[place].0 as usize >= n_used && self.held().all(|(id, _)| holds(id, place) == holders.contains(&id))
        };
        let mut start = at;
        while start > 0 && is_common(start - 1) {
            start -= 1;
        }
        let end = at + 1;
        let (n_tokens, _) = self.affordable(holders[0], super::length_of(start)..super::length_of(end), max_units);
        let range = end - n_tokens as usize..end;
        let highest = self.cells.highest_after_moving(&cells[range.clone()])?;
        (highest < top).then(|| Relocation { ids: holders, range: super::length_of(range.start)..super::length_of(range.end) })
    }

    /// What `ids` hold is of no use any more. A pinned prefix among it is computed anew when it is asked for.
    pub fn lose(&mut self, ids: &[SequenceId]) {
        for &id in ids {
            for pin in self.pins.values_mut().filter(|pin| pin.holder == Some(id)) {
                pin.holder = None;
            }
            if self.paths[usize::from(id.0)].as_ref().is_some_and(|path| path.is_pinned) {
                self.forget(id);
            }
            if self.paths[usize::from(id.0)].is_some() {
                self.drop_path(id);
            }
        }
    }

    /// Carries out `relocation`: the cells were given up by all and taken anew, in the order of their positions.
    pub fn relocated(&mut self, relocation: &Relocation) {
        let Relocation { ids, range } = relocation;
        let places = range.start as usize..range.end as usize;
        let are_pinned: Vec<bool> = ids.iter().map(|&id| self.path(id).is_pinned).collect();
        for (&id, &is_pinned) in ids.iter().zip(&are_pinned) {
            for place in places.clone() {
                let cell = self.path(id).cells[place];
                if is_pinned {
                    self.cells.unpin(cell);
                }
                self.cells.release(cell);
            }
        }
        let taken = self.cells.take_all(places.len());
        for (nth, (&id, &is_pinned)) in ids.iter().zip(&are_pinned).enumerate() {
            for (place, &cell) in places.clone().zip(&taken) {
                if nth > 0 {
                    self.cells.share(cell);
                }
                if !is_pinned {
                    self.cells.unpin(cell);
                }
                self.path_mut(id).cells[place] = cell;
            }
        }
        self.counts.n_relocated += places.len() as u64;
    }
}
