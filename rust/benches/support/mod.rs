//! What the benches of decoding stand on.

pub(crate) mod bare;
pub(crate) mod case;
pub(crate) mod engine;
pub(crate) mod gguf;
pub(crate) mod machine;
pub(crate) mod synthetic;
