//! Python classes with the fields of a struct of the crate.

/// Declares a Python class with fields of a struct of the crate, and the conversion; optionally with more fields, each from a
/// function of that struct, and with a `__repr__`. Only this folder names pyo3, so that the struct itself cannot be the class.
macro_rules! mirrored_class {
    (
        $(#[$meta:meta])* $class:ident of $source:ident { $($field:ident: $type:ty),* $(,)? }
        $(and { $($extra:ident: $extra_type:ty = $read:expr),* $(,)? })?
    ) => {
        $(#[$meta])*
        pub(super) struct $class {
            $($field: $type,)*
            $($($extra: $extra_type,)*)?
        }

        impl From<$source> for $class {
            fn from(source: $source) -> Self {
                $($(
                    let read: fn(&$source) -> $extra_type = $read;
                    let $extra = read(&source);
                )*)?
                let $source { $($field,)* .. } = source;
                Self { $($field: $field.into(),)* $($($extra,)*)? }
            }
        }
    };
    ($(#[$meta:meta])* $class:ident of $source:ident { $($field:ident: $type:ty),* $(,)? } shown as $format:literal) => {
        $crate::python::mirrored_class::mirrored_class! { $(#[$meta])* $class of $source { $($field: $type),* } }

        #[pymethods]
        impl $class {
            fn __repr__(&self) -> String {
                #[allow(unused_variables, reason = "a representation has the most important fields")]
                let Self { $($field),* } = self;
                format!($format)
            }
        }
    };
}

pub(super) use mirrored_class;
