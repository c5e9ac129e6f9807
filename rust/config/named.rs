//! Enums whose variants have llama.cpp's names.

pub trait Named: Copy + PartialEq + 'static {
    /// In the order of messages.
    const NAMES: &'static [(&'static str, Self)];

    /// Parses a name.
    fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|&(_, variant)| variant)
    }

    /// Returns the name.
    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, variant)| *variant == self).expect("every variant has a name").0
    }
}
