//! What beside its tokens decides how a text is computed.

use std::ops::Range;

/// The adapters that are on, with their scales. Tokens that are computed with different ones share nothing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct AdapterSet {
    /// Adapter and the bits of its scale, by adapter.
    adapters: Vec<(u32, u32)>,
}

impl AdapterSet {
    /// The model with these adapters, each with its scale; one whose scale is 0 is off.
    pub fn with_adapters(adapters: impl IntoIterator<Item = (u32, f32)>) -> Self {
        let on = adapters.into_iter().filter(|&(_, scale)| scale != 0.0);
        let mut adapters: Vec<_> = on.map(|(adapter, scale)| (adapter, scale.to_bits())).collect();
        adapters.sort_unstable();
        Self { adapters }
    }

    /// The adapters that are on, each with its scale.
    pub fn adapters(&self) -> impl Iterator<Item = (u32, f32)> {
        self.adapters.iter().map(|&(adapter, bits)| (adapter, f32::from_bits(bits)))
    }

    /// Whether no adapter is on.
    #[must_use]
    pub fn is_base(&self) -> bool {
        self.adapters.is_empty()
    }
}

/// How each token of a text is computed: all of them alike or, where an adapter counts only from some place on, those from there on
/// in another way. Two texts share what they begin with in common as far as that is computed alike.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AdapterSchedule {
    first: AdapterSet,
    /// From which place on it is another one.
    then: Option<(u32, AdapterSet)>,
}

impl From<AdapterSet> for AdapterSchedule {
    fn from(variant: AdapterSet) -> Self {
        Self { first: variant, then: None }
    }
}

impl AdapterSchedule {
    /// `first` before `place`, and `then` from there on.
    #[must_use]
    pub fn changing(first: AdapterSet, place: u32, then: AdapterSet) -> Self {
        Self { first, then: Some((place, then)) }
    }

    /// How the token at `place` is computed.
    #[must_use]
    pub fn at(&self, place: u32) -> &AdapterSet {
        self.then.as_ref().filter(|(from, _)| place >= *from).map_or(&self.first, |(_, then)| then)
    }

    /// The place from which on tokens are computed in another way than those before it.
    #[must_use]
    pub fn change(&self) -> Option<u32> {
        self.then.as_ref().map(|(place, _)| *place)
    }

    /// How many tokens from `place` on are computed as the one there is.
    #[must_use]
    pub fn n_alike(&self, place: u32) -> u32 {
        self.change().filter(|&change| place < change).map_or(u32::MAX, |change| change - place)
    }

    /// How many of the first tokens of two texts are computed alike; [`u32::MAX`] where all are.
    #[must_use]
    pub fn n_common(&self, other: &Self) -> u32 {
        let mut changes = [0, self.change().unwrap_or(0), other.change().unwrap_or(0)];
        changes.sort_unstable();
        changes.into_iter().find(|&place| self.at(place) != other.at(place)).unwrap_or(u32::MAX)
    }

    /// How the first `n` tokens are computed, where there are no others.
    #[must_use]
    pub fn of_first(&self, n: u32) -> Self {
        Self { first: self.first.clone(), then: self.then.clone().filter(|&(place, _)| place < n) }
    }

    /// The tokens of `range` are gone: those after it are computed as they were.
    pub fn remove(&mut self, range: &Range<u32>) {
        if let Some((place, _)) = &mut self.then {
            *place = if *place >= range.end { *place - (range.end - range.start) } else { (*place).min(range.start) };
        }
    }

    /// The adapters that are on at the end of a text that is not shorter than any change, each with its scale.
    pub fn adapters(&self) -> impl Iterator<Item = (u32, f32)> {
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
    fn a_scale_of_0_is_no_adapter_and_the_order_is_nothing() {
        assert_ne!(AdapterSet::with_adapters([(3, 0.5)]), AdapterSet::with_adapters([(3, 0.25)]));
        assert_eq!(AdapterSet::with_adapters([(3, 0.5), (1, 1.0), (2, 0.0)]), AdapterSet::with_adapters([(1, 1.0), (3, 0.5)]));
        assert_eq!(AdapterSet::with_adapters([(3, 0.0)]), AdapterSet::default());
    }

    #[test]
    fn texts_share_what_is_computed_alike() {
        let base = AdapterSchedule::default();
        let late = |place| AdapterSchedule::changing(AdapterSet::default(), place, with(1));
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
            // As places are counted one by one.
            let differs = (0..20).find(|&place| one.at(place) != other.at(place));
            assert_eq!(differs.unwrap_or(u32::MAX), n, "{one:?} and {other:?}");
        }
    }

    #[test]
    fn a_change_is_told_before_it_comes_and_moves_with_what_is_taken_out() {
        let text = AdapterSchedule::changing(AdapterSet::default(), 7, with(1));
        assert_eq!([0, 6, 7, 8].map(|place| text.n_alike(place)), [7, 1, u32::MAX, u32::MAX]);
        assert_eq!([6, 7, 8].map(|n| text.of_first(n).change()), [None, None, Some(7)]);
        for (range, place) in [(0..3, 4), (2..7, 2), (5..9, 5), (7..9, 7), (8..20, 7)] {
            let mut text = text.clone();
            text.remove(&range);
            assert_eq!(text.change(), Some(place), "without {range:?}");
        }
    }
}
