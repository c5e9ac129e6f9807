//! Save, restore and relocate: pieces of the memory leave the pool and come back.
//!
//! Attention caches write and read whole sequences only, so a stretch of one is first given to the spare id, which owns nothing
//! else. A state is written and read under its own id.

use std::ops::Range;
use std::sync::Arc;

use crate::engine::runner::{ForkRule, KvSeqId, MemoryKind, RelocateError, StateError};
use crate::llama::LlamaRunner;
use crate::llama::piece::{CheckedPiece, Layout, PiecePositions};

impl LlamaRunner {
    /// See [`crate::engine::runner::Runner::save`].
    pub(super) fn save_piece(&mut self, id: KvSeqId, range: &Range<u32>) -> Result<Arc<[u8]>, StateError> {
        let n_held = self.context.n_held(id);
        if range.is_empty() || range.end > n_held {
            return refuse(format!("tokens {range:?} of sequence {} were to be saved, which holds {n_held}", id.0));
        }
        if self.context.n_grouped(id) > 0 {
            return refuse(format!("tokens of sequence {} are grouped, so it is not saved", id.0));
        }
        let positions = self.context.positions(id).of_first(range.end);
        let placed = if positions.are_places() { None } else { Some(PiecePositions { range: range.clone(), positions }) };
        if let Some(PiecePositions { positions, .. }) = &placed
            && (self.memory.forks == ForkRule::InWindow || positions.cuts(range.start) || positions.cuts(range.end))
        {
            return Err(StateError::OwnPositions);
        }
        let bytes = if self.memory.forks == ForkRule::AtEnd {
            if *range != (0..n_held) {
                return refuse(format!("a state is saved whole: 0..{n_held}, not {range:?}"));
            }
            self.context.read_state(id)?
        } else {
            let at = placed.as_ref().map_or(range.clone(), |placed| placed.positions_of(range));
            self.context.lend(id, self.spare, at);
            let bytes = self.context.read_state(self.spare);
            self.context.take_all_back(self.spare);
            bytes?
        };
        let layout = self.layout()?;
        let piece = layout.sort(bytes).map_err(|why| bad_piece(&why))?;
        if let Some(placed) = placed {
            let expected: Vec<u32> = placed.in_order().collect();
            layout.check_placed(&piece, &expected).map_err(|why| bad_piece(&why))?;
            return Ok(placed.write(&piece));
        }
        let found = layout.check(&piece).map_err(|why| bad_piece(&why))?.range;
        if found != *range {
            return refuse(format!("of tokens {range:?} only {found:?} could be saved"));
        }
        Ok(piece)
    }

    /// See [`crate::engine::runner::Runner::restore`].
    pub(super) fn restore_piece(&mut self, id: KvSeqId, piece: &[u8], kept: &Range<u32>) -> Result<(), StateError> {
        let n_held = self.context.n_held(id);
        if kept.is_empty() || kept.start != n_held {
            return refuse(format!("tokens {kept:?} were to be appended to sequence {}, which holds {n_held}", id.0));
        }
        if let Some((placed, piece)) = PiecePositions::read(piece).map_err(|why| bad_piece(&why))? {
            return self.restore_placed(id, &placed, piece, kept);
        }
        let CheckedPiece { range, whole_from, bytes } = self.layout()?.check(piece).map_err(|why| bad_piece(&why))?;
        if kept.start < range.start || kept.end > range.end {
            return refuse(format!("tokens {kept:?} were to be restored from a piece that holds {range:?}"));
        }
        let is_whole = match self.memory.forks {
            ForkRule::Anywhere => whole_from == range.start,
            // What is missing is kept in mind, so that nobody looks there.
            ForkRule::InWindow => true,
            ForkRule::AtEnd => match self.model.n_swa() {
                0 => whole_from == range.start,
                n_window => MemoryKind { n_window, ..self.memory }.holds_window(whole_from, range.end),
            },
        };
        if !is_whole {
            return refuse(format!("one cache of the piece of tokens {range:?} begins at {whole_from}"));
        }
        if self.memory.forks == ForkRule::AtEnd {
            if range != *kept {
                return refuse(format!("a state is restored whole: {range:?}, not {kept:?}"));
            }
            // SAFETY: the piece was checked.
            let placed = unsafe { self.context.write_state(id, &bytes) };
            if placed.is_err() {
                self.context.take_all_back(id);
            } else {
                self.context.set_held(id, kept.end, 0);
            }
            return placed;
        }
        // SAFETY: the piece was checked.
        let placed = unsafe { self.context.write_state(self.spare, &bytes) };
        if placed.is_ok() {
            // Below the hole that this piece may leave nobody looks any more.
            let leaves_hole = whole_from > kept.start;
            let whole_from = if leaves_hole { whole_from.min(kept.end) } else { self.context.whole_from(id) };
            self.context.lend(self.spare, id, kept.clone());
            self.context.set_held(id, kept.end, whole_from);
        }
        self.context.take_all_back(self.spare);
        placed
    }

    /// As [`LlamaRunner::restore_piece`], of a sequence with pictures whose rows and columns are counted.
    fn restore_placed(
        &mut self,
        id: KvSeqId,
        placed: &PiecePositions,
        piece: &[u8],
        kept: &Range<u32>,
    ) -> Result<(), StateError> {
        let PiecePositions { range, positions } = placed;
        let is_part =
            range.start <= kept.start && kept.end <= range.end && !positions.cuts(kept.start) && !positions.cuts(kept.end);
        if !is_part || (self.memory.forks == ForkRule::AtEnd && range != kept) || self.memory.forks == ForkRule::InWindow {
            return refuse(format!("tokens {kept:?} were to be restored from a piece that holds {range:?}, with pictures"));
        }
        if *self.context.positions(id) != positions.of_first(kept.start) {
            return refuse(format!("other pictures stand before tokens {kept:?} than where they were saved"));
        }
        let expected: Vec<u32> = placed.in_order().collect();
        let bytes = self.layout()?.check_placed(piece, &expected).map_err(|why| bad_piece(&why))?;
        let to = if self.memory.forks == ForkRule::AtEnd { id } else { self.spare };
        // SAFETY: the piece was checked.
        let written = unsafe { self.context.write_state(to, &bytes) };
        if written.is_ok() {
            let whole_from = if to == id { 0 } else { self.context.whole_from(id) };
            if to != id {
                self.context.lend(to, id, placed.positions_of(kept));
            }
            self.context.set_held(id, kept.end, whole_from);
            self.context.set_positions(id, positions.of_first(kept.end));
        }
        if to != id || written.is_err() {
            self.context.take_all_back(to);
        }
        written
    }

    /// See [`crate::engine::runner::Runner::relocate`].
    pub(super) fn relocate_cells(&mut self, ids: &[KvSeqId], range: &Range<u32>) -> Result<(), RelocateError> {
        let Some(&first) = ids.first() else { return Ok(()) };
        if self.memory.forks != ForkRule::Anywhere {
            return refuse_move(format!("the cells of a memory that forks {:?} stay where they are", self.memory.forks));
        }
        let positions = self.context.positions(first).of_first(range.end);
        if positions.cuts(range.start) || positions.cuts(self.context.n_held(first).min(range.end)) {
            return Err(RelocateError::Refused(StateError::OwnPositions));
        }
        if let Some(id) = ids.iter().find(|&&id| self.context.n_held(id) < range.end) {
            let n_held = self.context.n_held(*id);
            return refuse_move(format!("tokens {range:?} of sequence {} were to be moved, which holds {n_held}", id.0));
        }
        let piece = self.save_piece(first, range).map_err(RelocateError::Refused)?;
        let at = positions.at(range.start)..positions.at(range.end);
        for &id in ids {
            self.context.take_back(id, at.clone());
        }
        let own = PiecePositions::read(&piece).ok().flatten().map_or(&piece[..], |(_, piece)| piece);
        // SAFETY: `save_piece` has checked what it returns.
        let placed = unsafe { self.context.write_state(self.spare, own) };
        for &id in ids {
            if placed.is_ok() {
                self.context.lend(self.spare, id, at.clone());
            } else {
                self.context.take_back(id, at.start..u32::MAX >> 1);
                self.context.set_held(id, range.start, 0);
            }
        }
        self.context.take_all_back(self.spare);
        placed.map_err(RelocateError::Lost)
    }

    fn layout(&self) -> Result<&Layout, StateError> {
        self.layout.as_ref().ok_or_else(|| {
            StateError::Refused(format!("the memory of {} models is not known, so it is not saved", self.model.architecture()))
        })
    }
}

fn refuse<T>(reason: String) -> Result<T, StateError> {
    Err(StateError::Refused(reason))
}

fn refuse_move<T>(reason: String) -> Result<T, RelocateError> {
    Err(RelocateError::Refused(StateError::Refused(reason)))
}

fn bad_piece(reason: &str) -> StateError {
    StateError::Refused(format!("the piece does not fit this memory: {reason}"))
}
