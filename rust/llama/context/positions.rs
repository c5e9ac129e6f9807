//! Maps token indices of a sequence to positions, which differ after images with two-dimensional ones (M-RoPE) and where grouped.

use std::ops::Range;

use crate::request::Medium;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dense {
    start: u32,
    n_tokens: u32,
    n_positions: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Positions {
    dense: Vec<Dense>,
    /// Tokens at the beginning that share positions. A sequence with grouped tokens has no images.
    grouped: Option<Grouped>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Grouped {
    n_tokens: u32,
    n: u32,
}

impl Positions {
    pub(crate) const NONE: Self = Self { dense: Vec::new(), grouped: None };

    /// Returns the position of the token at `index`; within a dense medium that of its first token.
    pub(crate) fn at(&self, index: u32) -> u32 {
        if let Some(Grouped { n_tokens, n }) = self.grouped {
            return if index < n_tokens { index / n } else { index - n_tokens + n_tokens / n };
        }
        let mut n_fewer = 0;
        for medium in self.dense.iter().take_while(|medium| medium.start < index) {
            if index < medium.start + medium.n_tokens {
                return medium.start - n_fewer;
            }
            n_fewer += medium.n_tokens - medium.n_positions;
        }
        index - n_fewer
    }

    /// Returns the tokens of a sequence whose highest position is `position - 1`, with all of a dense medium that is there.
    pub(crate) fn n_tokens(&self, position: u32) -> u32 {
        if let Some(Grouped { n_tokens, n }) = self.grouped {
            let n_positions = n_tokens / n;
            return if position < n_positions { position * n } else { position - n_positions + n_tokens };
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

    /// Returns true if a sequence that ends at `index` would contain only a part of a dense medium or of the grouped tokens.
    pub(crate) fn cuts(&self, index: u32) -> bool {
        0 < index && index < self.n_grouped()
            || self.dense.iter().any(|medium| medium.start < index && index < medium.start + medium.n_tokens)
    }

    pub(crate) fn are_token_indices(&self) -> bool {
        *self == Self::NONE
    }

    pub(crate) fn prefix(&self, n_tokens: u32) -> Self {
        let mut positions = self.clone();
        positions.truncate(n_tokens);
        positions
    }

    pub(crate) fn widened(&self, mut range: Range<u32>) -> Range<u32> {
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

    pub(crate) fn dense(&self) -> impl ExactSizeIterator<Item = [u32; 3]> {
        self.dense.iter().map(|medium| [medium.start, medium.n_tokens, medium.n_positions])
    }

    /// `None` if the media overlap or have more positions than tokens.
    pub(crate) fn with_dense(dense: impl Iterator<Item = [u32; 3]>) -> Option<Self> {
        let mut end = 0;
        let medium = |[start, n_tokens, n_positions]: [u32; 3]| {
            let is_valid = start >= end && n_positions <= n_tokens && n_tokens > 0;
            end = start.checked_add(n_tokens)?;
            is_valid.then_some(Dense { start, n_tokens, n_positions })
        };
        Some(Self { dense: dense.map(medium).collect::<Option<_>>()?, grouped: None })
    }

    pub(crate) fn truncate(&mut self, index: u32) {
        self.dense.retain(|medium| medium.start < index);
        self.grouped = self.grouped.filter(|_| index > 0);
    }

    pub(crate) fn n_grouped(&self) -> u32 {
        self.grouped.map_or(0, |grouped| grouped.n_tokens)
    }

    pub(crate) fn group(&mut self, n_tokens: u32, n: u32) {
        self.grouped = Some(Grouped { n_tokens, n });
    }

    pub(crate) fn push(&mut self, start: u32, medium: &dyn Medium) {
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
    fn an_image_takes_fewer_positions_than_tokens() {
        let positions = positions();
        let at = [0, 10, 15, 21, 22, 30, 35, 36, 40].map(|index| positions.at(index));
        assert_eq!(at, [0, 10, 10, 10, 14, 22, 22, 25, 29]);
        assert_eq!([0, 10, 11, 14, 22, 25, 29].map(|position| positions.n_tokens(position)), [0, 10, 22, 22, 30, 36, 40]);
        assert_eq!(Positions::NONE.at(77), 77);
    }

    #[test]
    fn grouped_tokens_share_positions_and_are_not_cut() {
        let mut positions = Positions::NONE;
        positions.group(16, 4);
        assert_eq!([0, 3, 4, 15, 16, 17, 40].map(|index| positions.at(index)), [0, 0, 1, 3, 4, 5, 28]);
        assert_eq!([0, 2, 4, 5, 28].map(|position| positions.n_tokens(position)), [0, 8, 16, 17, 40]);
        assert_eq!([0, 1, 15, 16, 17].map(|index| positions.cuts(index)), [false, true, true, false, false]);
        positions.truncate(16);
        assert_eq!((positions.n_grouped(), positions.at(20)), (16, 8));
        positions.truncate(0);
        assert_eq!((positions.n_grouped(), positions.at(20)), (0, 20));
    }

    #[test]
    fn a_range_is_widened_to_whole_images() {
        let positions = positions();
        let widened = [0..10, 0..11, 11..22, 22..30, 15..33, 36..40].map(|range| positions.widened(range));
        assert_eq!(widened, [0..10, 0..22, 10..22, 22..30, 10..36, 36..40]);
        assert_eq!(Positions::NONE.widened(3..7), 3..7);
    }

    #[test]
    fn positions_round_trip_and_invalid_ones_are_rejected() {
        assert_eq!(Positions::with_dense(positions().dense()), Some(positions()));
        assert_eq!(positions().prefix(30).dense().len(), 1);
        assert!(Positions::with_dense(std::iter::empty()).is_some_and(|positions| positions.are_token_indices()));
        for damaged in [vec![[10, 12, 13]], vec![[10, 0, 0]], vec![[10, 12, 4], [21, 6, 3]], vec![[u32::MAX, 2, 1]]] {
            assert_eq!(Positions::with_dense(damaged.iter().copied()), None, "{damaged:?}");
        }
    }

    #[test]
    fn images_are_not_cut() {
        let mut positions = positions();
        assert_eq!([10, 11, 21, 22, 33].map(|index| positions.cuts(index)), [false, true, true, false, true]);
        positions.truncate(30);
        assert_eq!(positions.at(40), 32);
    }
}
