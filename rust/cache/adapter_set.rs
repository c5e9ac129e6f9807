//! The adapters that tokens are computed with, which together with the tokens identify a cached prefix.

use std::ops::Range;
use std::sync::Arc;

/// The active adapters with their scales. Tokens that are computed with different adapter sets share no cells.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct AdapterSet {
    /// Adapter and the bits of its scale, sorted by adapter.
    adapters: Arc<[(u32, u32)]>,
}

impl AdapterSet {
    /// An adapter with scale 0 is left out.
    pub(crate) fn with_adapters(adapters: impl IntoIterator<Item = (u32, f32)>) -> Self {
        let on = adapters.into_iter().filter(|&(_, scale)| scale != 0.0);
        let mut adapters: Vec<_> = on.map(|(adapter, scale)| (adapter, scale.to_bits())).collect();
        adapters.sort_unstable();
        Self { adapters: adapters.into() }
    }

    pub(crate) fn adapters(&self) -> impl Iterator<Item = (u32, f32)> {
        self.adapters.iter().map(|&(adapter, bits)| (adapter, f32::from_bits(bits)))
    }
}

/// The adapter set of each token of a sequence: for an activated adapter, another one from some position on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AdapterSchedule {
    first: AdapterSet,
    /// Position from which another adapter set applies, and that set.
    after: Option<(u32, AdapterSet)>,
}

impl From<AdapterSet> for AdapterSchedule {
    fn from(adapters: AdapterSet) -> Self {
        Self { first: adapters, after: None }
    }
}

impl AdapterSchedule {
    pub(crate) fn changing(first: AdapterSet, position: u32, after: AdapterSet) -> Self {
        Self { first, after: Some((position, after)) }
    }

    pub fn at(&self, position: u32) -> &AdapterSet {
        self.after.as_ref().filter(|(from, _)| position >= *from).map_or(&self.first, |(_, after)| after)
    }

    pub(crate) fn change(&self) -> Option<u32> {
        self.after.as_ref().map(|(position, _)| *position)
    }

    /// Tokens from `position` on with the same adapter set; [`u32::MAX`] if it does not change again.
    pub(crate) fn n_unchanged(&self, position: u32) -> u32 {
        self.change().filter(|&change| position < change).map_or(u32::MAX, |change| change - position)
    }

    /// Length of the longest prefix with the same adapter sets in both schedules; [`u32::MAX`] if all are the same.
    pub(crate) fn n_common(&self, other: &Self) -> u32 {
        let mut changes = [0, self.change().unwrap_or(0), other.change().unwrap_or(0)];
        changes.sort_unstable();
        changes.into_iter().find(|&position| self.at(position) != other.at(position)).unwrap_or(u32::MAX)
    }

    pub(crate) fn prefix(&self, n: u32) -> Self {
        Self { first: self.first.clone(), after: self.after.clone().filter(|&(position, _)| position < n) }
    }

    /// Removes the tokens of `range`; those after it move to lower positions.
    pub(crate) fn remove(&mut self, range: &Range<u32>) {
        if let Some((position, _)) = &mut self.after {
            *position = if *position >= range.end { *position - (range.end - range.start) } else { (*position).min(range.start) };
        }
    }

    /// The adapters that are active after the last change.
    pub(crate) fn adapters(&self) -> impl Iterator<Item = (u32, f32)> {
        self.at(u32::MAX).adapters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(adapter: u32) -> AdapterSet {
        AdapterSet::with_adapters([(adapter, 1.0)])
    }

    #[test]
    fn adapters_with_scale_0_and_their_order_are_ignored() {
        assert_ne!(AdapterSet::with_adapters([(3, 0.5)]), AdapterSet::with_adapters([(3, 0.25)]));
        assert_eq!(AdapterSet::with_adapters([(3, 0.5), (1, 1.0), (2, 0.0)]), AdapterSet::with_adapters([(1, 1.0), (3, 0.5)]));
        assert_eq!(AdapterSet::with_adapters([(3, 0.0)]), AdapterSet::default());
    }

    #[test]
    fn texts_share_the_prefix_with_equal_adapter_sets() {
        let base = AdapterSchedule::default();
        let late = |position| AdapterSchedule::changing(AdapterSet::default(), position, with(1));
        let cases = [
            (base.clone(), base.clone(), u32::MAX),
            (base.clone(), with(1).into(), 0),
            (base.clone(), late(7), 7),
            (late(7), base, 7),
            (late(7), late(9), 7),
            (late(9), late(7), 7),
            (late(7), late(7), u32::MAX),
            (late(7), AdapterSchedule::changing(AdapterSet::default(), 7, with(2)), 7),
            (late(0), with(1).into(), u32::MAX),
            (late(7), with(1).into(), 0),
            (AdapterSchedule::changing(with(1), 5, with(1)), with(1).into(), u32::MAX),
        ];
        for (one, other, n) in cases {
            assert_eq!(one.n_common(&other), n, "{one:?} and {other:?}");
            // Compares position by position.
            let differs = (0..20).find(|&position| one.at(position) != other.at(position));
            assert_eq!(differs.unwrap_or(u32::MAX), n, "{one:?} and {other:?}");
        }
    }

    #[test]
    fn removing_tokens_moves_the_change_of_adapters() {
        let text = AdapterSchedule::changing(AdapterSet::default(), 7, with(1));
        assert_eq!([0, 6, 7, 8].map(|position| text.n_unchanged(position)), [7, 1, u32::MAX, u32::MAX]);
        assert_eq!([6, 7, 8].map(|n| text.prefix(n).change()), [None, None, Some(7)]);
        for (range, position) in [(0..3, 4), (2..7, 2), (5..9, 5), (7..9, 7), (8..20, 7)] {
            let mut text = text.clone();
            text.remove(&range);
            assert_eq!(text.change(), Some(position), "without {range:?}");
        }
    }
}
