//! Everything that names llama.cpp.

#[cfg(test)]
mod sampler_parity;
