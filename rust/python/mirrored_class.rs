//! Python classes with the fields of a struct of the crate.

/// Declares a Python class with all fields of a struct of the crate, and the conversion. Only this folder names pyo3, so that the
/// struct itself cannot be the class.
macro_rules! mirrored_class {
    ($(#[$meta:meta])* $class:ident of $source:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        pub(super) struct $class {
            $($field: $type,)*
        }

        impl From<$source> for $class {
            fn from($source { $($field),* }: $source) -> Self {
                Self { $($field),* }
            }
        }
    };
}

pub(super) use mirrored_class;
