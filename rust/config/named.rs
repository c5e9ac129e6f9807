//! Enums whose variants have names, mostly llama.cpp's.

pub trait Named: Copy + PartialEq + 'static {
    /// Names and variants, in the order of messages.
    const NAMES: &'static [(&'static str, Self)];

    fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|&(_, variant)| variant)
    }

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, variant)| *variant == self).expect("every variant has a name").0
    }
}

/// Declares an enum and the [`Named::NAMES`] of its variants.
macro_rules! named_variants {
    ($(#[$meta:meta])* pub enum $enum:ident { $($(#[$variant_meta:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $enum {
            $($(#[$variant_meta])* $variant,)*
        }

        impl $crate::config::Named for $enum {
            const NAMES: &'static [(&'static str, Self)] = &[$(($name, Self::$variant),)*];
        }
    };
}

pub(crate) use named_variants;
