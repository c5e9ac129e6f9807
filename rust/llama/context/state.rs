//! Saves, restores and relocates cells and recurrent states.
//!
//! llama.cpp reads and writes only whole sequences of an attention cache, so a range of one is first shared with the spare id,
//! which owns no other cells. A recurrent state is read and written under its own id.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::engine::runner::{ForkRule, KvSeqId, MemoryKind, RelocateError, StateError};
use crate::llama::LlamaRunner;
use crate::llama::context::saved_state::{CheckedState, SavedPositions, StateLayout};

impl LlamaRunner {
    pub(crate) fn save_state(&mut self, id: KvSeqId, range: &Range<u32>) -> Result<Arc<[u8]>, StateError> {
        let seq_len = self.context.seq_len(id);
        if range.is_empty() || range.end > seq_len {
            return refuse(format!("cannot save tokens {range:?} of sequence {}, which has {seq_len}", id.0));
        }
        if self.context.n_grouped(id) > 0 {
            return refuse(format!("cannot save sequence {}: some of its tokens are grouped", id.0));
        }
        let positions = self.context.positions(id).prefix(range.end);
        let saved_positions = (!positions.are_token_indices()).then(|| SavedPositions { range: range.clone(), positions });
        if let Some(SavedPositions { positions, .. }) = &saved_positions
            && (self.memory.forks == ForkRule::InWindow || positions.cuts(range.start) || positions.cuts(range.end))
        {
            return Err(StateError::OwnPositions);
        }
        let bytes = if self.memory.forks == ForkRule::AtEnd {
            if *range != (0..seq_len) {
                return refuse(format!(
                    "cannot save tokens {range:?} of a recurrent state; it is saved as a whole, 0..{seq_len}"
                ));
            }
            self.context.read_state(id)?
        } else {
            let positions_range =
                saved_positions.as_ref().map_or(range.clone(), |saved_positions| saved_positions.positions_of(range));
            self.context.share(id, self.spare, positions_range);
            let bytes = self.context.read_state(self.spare);
            self.context.unshare_all(self.spare);
            bytes?
        };
        let layout = self.layout()?;
        let saved = layout.sort(bytes).map_err(|reason| bad_state(&reason))?;
        if let Some(saved_positions) = saved_positions {
            let expected: Vec<u32> = saved_positions.iter().collect();
            layout.check_positions(&saved, &expected).map_err(|reason| bad_state(&reason))?;
            return Ok(saved_positions.write(&saved));
        }
        let found = layout.check(&saved).map_err(|reason| bad_state(&reason))?.range;
        if found != *range {
            return refuse(format!("only {found:?} of tokens {range:?} could be saved"));
        }
        Ok(saved)
    }

    pub(crate) fn restore_state(&mut self, id: KvSeqId, saved: &[u8], part: &Range<u32>) -> Result<(), StateError> {
        let seq_len = self.context.seq_len(id);
        if part.is_empty() || part.start != seq_len {
            return refuse(format!("cannot restore tokens {part:?} to sequence {}, which has {seq_len}", id.0));
        }
        let header = SavedPositions::read(saved).map_err(|reason| bad_state(&reason))?;
        let (bytes, hole_end) = match &header {
            Some((saved_positions, saved)) => (self.check_with_positions(id, saved_positions, saved, part)?, None),
            None => self.check_state(saved, part)?,
        };
        let is_recurrent = self.memory.forks == ForkRule::AtEnd;
        let to = if is_recurrent { id } else { self.spare };
        // SAFETY: the bytes were checked.
        let written = unsafe { self.context.write_state(to, &bytes) };
        if written.is_ok() {
            let mut whole_from = 0;
            if !is_recurrent {
                whole_from = hole_end.unwrap_or_else(|| self.context.whole_from(id));
                let range = header.as_ref().map_or(part.clone(), |(saved_positions, _)| saved_positions.positions_of(part));
                self.context.share(to, id, range);
            }
            let sequence = self.context.sequence_mut(id);
            (sequence.len, sequence.whole_from) = (part.end, whole_from);
            if let Some((SavedPositions { positions, .. }, _)) = &header {
                sequence.positions = positions.prefix(part.end);
            }
        }
        if !is_recurrent || written.is_err() {
            self.context.unshare_all(to);
        }
        written
    }

    /// Also returns the end of the hole that the state leaves in a sliding window: no row attends to cells below that.
    fn check_state<'a>(&self, saved: &'a [u8], part: &Range<u32>) -> Result<(Cow<'a, [u8]>, Option<u32>), StateError> {
        let CheckedState { range, whole_from, bytes } = self.layout()?.check(saved).map_err(|reason| bad_state(&reason))?;
        if part.start < range.start || part.end > range.end {
            return refuse(format!("cannot restore tokens {part:?} from a saved state of {range:?}"));
        }
        let is_whole = match self.memory.forks {
            ForkRule::Anywhere => whole_from == range.start,
            ForkRule::InWindow => true,
            ForkRule::AtEnd => match self.model.n_swa() {
                0 => whole_from == range.start,
                n_window => MemoryKind { n_window, ..self.memory }.holds_window(whole_from, range.end),
            },
        };
        if !is_whole {
            return refuse(format!(
                "the saved state of tokens {range:?} is incomplete: one of its caches begins at {whole_from}"
            ));
        }
        if self.memory.forks == ForkRule::AtEnd && range != *part {
            return refuse(format!("cannot restore tokens {part:?} of a recurrent state; it is restored as a whole, {range:?}"));
        }
        Ok((bytes, (whole_from > part.start).then(|| whole_from.min(part.end))))
    }

    fn check_with_positions<'a>(
        &self,
        id: KvSeqId,
        saved_positions: &SavedPositions,
        saved: &'a [u8],
        part: &Range<u32>,
    ) -> Result<Cow<'a, [u8]>, StateError> {
        let SavedPositions { range, positions } = saved_positions;
        let is_valid_part =
            range.start <= part.start && part.end <= range.end && !positions.cuts(part.start) && !positions.cuts(part.end);
        if !is_valid_part || (self.memory.forks == ForkRule::AtEnd && range != part) || self.memory.forks == ForkRule::InWindow {
            return refuse(format!("cannot restore tokens {part:?} from a saved state of {range:?} with images"));
        }
        if *self.context.positions(id) != positions.prefix(part.start) {
            return refuse(format!("the images before tokens {part:?} differ from those in the saved state"));
        }
        let expected: Vec<u32> = saved_positions.iter().collect();
        self.layout()?.check_positions(saved, &expected).map_err(|reason| bad_state(&reason))
    }

    pub(crate) fn relocate_cells(&mut self, ids: &[KvSeqId], range: &Range<u32>) -> Result<(), RelocateError> {
        let Some(&first) = ids.first() else { return Ok(()) };
        if self.memory.forks != ForkRule::Anywhere {
            return refuse_move(format!("cannot relocate the cells of a memory that forks {:?}", self.memory.forks));
        }
        let positions = self.context.positions(first).prefix(range.end);
        if positions.cuts(range.start) || positions.cuts(self.context.seq_len(first).min(range.end)) {
            return Err(RelocateError::Refused(StateError::OwnPositions));
        }
        if let Some(id) = ids.iter().find(|&&id| self.context.seq_len(id) < range.end) {
            let seq_len = self.context.seq_len(*id);
            return refuse_move(format!("cannot relocate tokens {range:?} of sequence {}, which has {seq_len}", id.0));
        }
        let saved = self.save_state(first, range).map_err(RelocateError::Refused)?;
        let positions_range = positions.at(range.start)..positions.at(range.end);
        for &id in ids {
            self.context.unshare(id, positions_range.clone());
        }
        let own = SavedPositions::read(&saved).ok().flatten().map_or(&saved[..], |(_, saved)| saved);
        // SAFETY: `save_state` has checked the bytes that it returned.
        let result = unsafe { self.context.write_state(self.spare, own) };
        for &id in ids {
            if result.is_ok() {
                self.context.share(self.spare, id, positions_range.clone());
            } else {
                self.context.unshare(id, positions_range.start..u32::MAX >> 1);
                let sequence = self.context.sequence_mut(id);
                sequence.truncate(range.start);
                sequence.whole_from = 0;
            }
        }
        self.context.unshare_all(self.spare);
        result.map_err(RelocateError::Lost)
    }

    fn layout(&self) -> Result<&StateLayout, StateError> {
        let refusal = || format!("cannot save the memory of {} models: its format is not supported", self.model.architecture());
        self.layout.as_ref().ok_or_else(|| StateError::Refused(refusal()))
    }
}

fn refuse<T>(reason: String) -> Result<T, StateError> {
    Err(StateError::Refused(reason))
}

fn refuse_move<T>(reason: String) -> Result<T, RelocateError> {
    Err(RelocateError::Refused(StateError::Refused(reason)))
}

fn bad_state(reason: &str) -> StateError {
    StateError::Refused(format!("the saved state does not match this memory: {reason}"))
}
