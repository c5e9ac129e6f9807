//! An incremental decoder of UTF-8.

/// A character whose bytes have partly been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct PartialChar {
    value: u32,
    /// Missing bytes; 0 before the first byte of a character.
    n_missing: u32,
    /// The smallest character that an encoding of this length may represent.
    min: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Utf8Step {
    Character(u32),
    Partial(PartialChar),
    Invalid,
}

impl PartialChar {
    pub(super) fn is_none(self) -> bool {
        self.n_missing == 0
    }

    pub(super) fn feed(self, byte: u8) -> Utf8Step {
        if self.n_missing == 0 {
            let (n_bits, n_missing, min) = match byte {
                0x00..0x80 => return Utf8Step::Character(byte.into()),
                0xC0..0xE0 => (5, 1, 0x80),
                0xE0..0xF0 => (4, 2, 0x800),
                0xF0..0xF8 => (3, 3, 0x1_0000),
                _ => return Utf8Step::Invalid,
            };
            return Self { value: u32::from(byte) & ((1 << n_bits) - 1), n_missing, min }.validated();
        }
        if byte & 0xC0 != 0x80 {
            return Utf8Step::Invalid;
        }
        let value = self.value << 6 | u32::from(byte) & 0x3F;
        Self { value, n_missing: self.n_missing - 1, ..self }.validated()
    }

    fn validated(self) -> Utf8Step {
        let (low, high) = self.range();
        // Surrogates are not valid characters.
        match low <= high && !(0xD800..0xE000).contains(&low) {
            false => Utf8Step::Invalid,
            true if self.n_missing == 0 => Utf8Step::Character(low),
            true => Utf8Step::Partial(self),
        }
    }

    /// Returns the inclusive range of characters that it may become.
    pub(super) fn range(self) -> (u32, u32) {
        let n_bits = self.n_missing * 6;
        let low = self.value << n_bits;
        (low.max(self.min), (low | ((1 << n_bits) - 1)).min(char::MAX.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> Utf8Step {
        let mut partial = PartialChar::default();
        for (i, &byte) in bytes.iter().enumerate() {
            match partial.feed(byte) {
                Utf8Step::Partial(next) => partial = next,
                end => return if i + 1 == bytes.len() { end } else { Utf8Step::Invalid },
            }
        }
        Utf8Step::Partial(partial)
    }

    #[test]
    fn exactly_the_valid_encodings_are_decoded() {
        for character in (0..=0x1_0000).chain([0x1_2345, 0x10_FFFF]).filter_map(char::from_u32) {
            let mut bytes = [0; 4];
            assert_eq!(decode(character.encode_utf8(&mut bytes).as_bytes()), Utf8Step::Character(character.into()));
        }
        for bytes in [
            &b"\x80"[..],
            b"\xC3a",
            b"\xC0\x80",
            b"\xC1\xBF",
            b"\xE0\x80\x80",
            b"\xF0\x80",
            b"\xED\xA0",
            b"\xED\xBF\xBF",
            b"\xF4\x90",
            b"\xF8",
            b"\xFF",
        ] {
            assert_eq!(decode(bytes), Utf8Step::Invalid, "{bytes:x?}");
        }
    }

    #[test]
    fn a_partial_character_has_the_range_of_its_completions() {
        let range = |bytes| match decode(bytes) {
            Utf8Step::Partial(partial) => partial.range(),
            other => panic!("{other:?}"),
        };
        assert_eq!(range(b"\xC3"), (0xC0, 0xFF));
        assert_eq!(range(b"\xE0"), (0x800, 0xFFF));
        assert_eq!(range(b"\xE2\x82"), (0x2080, 0x20BF));
        assert_eq!(range(b"\xF4"), (0x10_0000, 0x10_FFFF));
    }
}
