//! Features: what a request can ask for beyond tokens.

pub(crate) mod beams;
pub(crate) mod explanations;
pub(crate) mod forks;
pub(crate) mod prompt_logprobs;
pub(crate) mod self_extend;
pub(crate) mod transcripts;
