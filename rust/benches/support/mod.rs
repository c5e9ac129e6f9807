//! What the benches of decoding stand on.

pub mod bare;
pub mod case;
pub mod engine;
pub mod gguf;
pub mod machine;
pub mod synthetic;
