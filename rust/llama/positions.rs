//! Which position each place of a sequence has: the same number, but after pictures whose rows and columns are counted (M-RoPE), and
//! where tokens are grouped.

use std::ops::Range;

use crate::request::Medium;

/// A medium whose places have positions of their own, as many in all as places or fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dense {
    start: u32,
    n_tokens: u32,
    n_positions: u32,
}

/// The positions of one sequence.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Positions {
    /// In order.
    dense: Vec<Dense>,
    /// Tokens at the beginning, how many of which share a position. No picture is in such a sequence.
    grouped: Option<Grouped>,
}

/// The first `n_places` places of a sequence share positions by `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grouped {
    n_places: u32,
    n: u32,
}

impl Positions {
    /// Every place is its position.
    pub(super) const NONE: Self = Self { dense: Vec::new(), grouped: None };

    /// The position of `place`; within a dense medium that of its first place, which is where such a sequence can be cut.
    pub(super) fn at(&self, place: u32) -> u32 {
        if let Some(Grouped { n_places, n }) = self.grouped {
            return if place < n_places { place / n } else { place - n_places + n_places / n };
        }
        let mut n_fewer = 0;
        for medium in self.dense.iter().take_while(|medium| medium.start < place) {
            if place < medium.start + medium.n_tokens {
                return medium.start - n_fewer;
            }
            n_fewer += medium.n_tokens - medium.n_positions;
        }
        place - n_fewer
    }

    /// How many places a sequence holds whose highest position is the one before `position`. Where that is in a dense medium, the
    /// sequence holds all of it.
    pub(super) fn n_places(&self, position: u32) -> u32 {
        if let Some(Grouped { n_places, n }) = self.grouped {
            let n_positions = n_places / n;
            return if position < n_positions { position * n } else { position - n_positions + n_places };
        }
        let mut n_fewer = 0;
        let mut end = 0;
        for medium in &self.dense {
            if medium.start - n_fewer >= position {
                break;
            }
            n_fewer += medium.n_tokens - medium.n_positions;
            end = medium.start + medium.n_tokens;
        }
        end.max(position + n_fewer)
    }

    /// Whether a sequence that ends at `place` would hold a part of a dense medium, all of which has the same position in time, or not
    /// all that was grouped of it.
    pub(super) fn cuts(&self, place: u32) -> bool {
        0 < place && place < self.n_grouped()
            || self.dense.iter().any(|medium| medium.start < place && place < medium.start + medium.n_tokens)
    }

    /// Whether every place is its position.
    pub(super) fn are_places(&self) -> bool {
        *self == Self::NONE
    }

    /// Those of the first `n_places` places alone.
    pub(super) fn of_first(&self, n_places: u32) -> Self {
        let mut positions = self.clone();
        positions.truncate(n_places);
        positions
    }

    /// `range`, made as much longer as keeps it from cutting a dense medium.
    pub(super) fn widened(&self, mut range: Range<u32>) -> Range<u32> {
        for medium in &self.dense {
            let end = medium.start + medium.n_tokens;
            if medium.start < range.start && range.start < end {
                range.start = medium.start;
            }
            if medium.start < range.end && range.end < end {
                range.end = end;
            }
        }
        range
    }

    /// Its dense media, in order: where each begins, and how many places and positions it has.
    pub(super) fn dense(&self) -> impl ExactSizeIterator<Item = [u32; 3]> {
        self.dense.iter().map(|medium| [medium.start, medium.n_tokens, medium.n_positions])
    }

    /// Those of a sequence with these media. `None` where they are none, since they overlap or have more positions than places.
    pub(super) fn with_dense(dense: impl Iterator<Item = [u32; 3]>) -> Option<Self> {
        let mut end = 0;
        let medium = |[start, n_tokens, n_positions]: [u32; 3]| {
            let is_one = start >= end && n_positions <= n_tokens && n_tokens > 0;
            end = start.checked_add(n_tokens)?;
            is_one.then_some(Dense { start, n_tokens, n_positions })
        };
        Some(Self { dense: dense.map(medium).collect::<Option<_>>()?, grouped: None })
    }

    /// Forgets what begins at `place` or later.
    pub(super) fn truncate(&mut self, place: u32) {
        self.dense.retain(|medium| medium.start < place);
        self.grouped = self.grouped.filter(|_| place > 0);
    }

    /// How many of the first places are grouped.
    pub(super) fn n_grouped(&self) -> u32 {
        self.grouped.map_or(0, |grouped| grouped.n_places)
    }

    /// Its first `n_places` places share positions by `n` from now on.
    pub(super) fn group(&mut self, n_places: u32, n: u32) {
        self.grouped = Some(Grouped { n_places, n });
    }

    /// `medium` begins at the place `start`.
    pub(super) fn push(&mut self, start: u32, medium: &dyn Medium) {
        let (n_tokens, n_positions) = (medium.n_tokens(), medium.n_positions());
        if medium.has_positions() {
            self.dense.push(Dense { start, n_tokens, n_positions });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions() -> Positions {
        let medium = |start, n_tokens, n_positions| Dense { start, n_tokens, n_positions };
        Positions { dense: vec![medium(10, 12, 4), medium(30, 6, 3)], grouped: None }
    }

    #[test]
    fn a_picture_takes_as_many_positions_as_it_has_rows_or_columns() {
        let positions = positions();
        let at = [0, 10, 15, 21, 22, 30, 35, 36, 40].map(|place| positions.at(place));
        assert_eq!(at, [0, 10, 10, 10, 14, 22, 22, 25, 29]);
        assert_eq!([0, 10, 11, 14, 22, 25, 29].map(|position| positions.n_places(position)), [0, 10, 22, 22, 30, 36, 40]);
        assert_eq!(Positions::NONE.at(77), 77);
    }

    #[test]
    fn what_is_grouped_shares_positions_and_is_not_cut() {
        let mut positions = Positions::NONE;
        positions.group(16, 4);
        assert_eq!([0, 3, 4, 15, 16, 17, 40].map(|place| positions.at(place)), [0, 0, 1, 3, 4, 5, 28]);
        assert_eq!([0, 2, 4, 5, 28].map(|position| positions.n_places(position)), [0, 8, 16, 17, 40]);
        assert_eq!([0, 1, 15, 16, 17].map(|place| positions.cuts(place)), [false, true, true, false, false]);
        positions.truncate(16);
        assert_eq!((positions.n_grouped(), positions.at(20)), (16, 8));
        positions.truncate(0);
        assert_eq!((positions.n_grouped(), positions.at(20)), (0, 20));
    }

    #[test]
    fn what_is_saved_is_widened_until_it_cuts_no_picture() {
        let positions = positions();
        let widened = [0..10, 0..11, 11..22, 22..30, 15..33, 36..40].map(|range| positions.widened(range));
        assert_eq!(widened, [0..10, 0..22, 10..22, 22..30, 10..36, 36..40]);
        assert_eq!(Positions::NONE.widened(3..7), 3..7);
    }

    #[test]
    fn positions_are_made_anew_from_what_they_tell_and_from_nothing_that_is_none() {
        assert_eq!(Positions::with_dense(positions().dense()), Some(positions()));
        assert_eq!(positions().of_first(30).dense().len(), 1);
        assert!(Positions::with_dense(std::iter::empty()).is_some_and(|positions| positions.are_places()));
        for damaged in [vec![[10, 12, 13]], vec![[10, 0, 0]], vec![[10, 12, 4], [21, 6, 3]], vec![[u32::MAX, 2, 1]]] {
            assert_eq!(Positions::with_dense(damaged.iter().copied()), None, "{damaged:?}");
        }
    }

    #[test]
    fn a_picture_is_not_cut() {
        let mut positions = positions();
        assert_eq!([10, 11, 21, 22, 33].map(|place| positions.cuts(place)), [false, true, true, false, true]);
        positions.truncate(30);
        assert_eq!(positions.at(40), 32);
    }
}
