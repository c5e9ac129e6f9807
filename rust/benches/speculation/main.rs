//! Speculative decoding: what drafts cost, what they gain, and that they change nothing.
//!
//! `cargo bench --bench speculation -- --part NAME [MODEL]`; without llama.cpp (`--no-default-features`) there is only the part
//! `index`. Each part takes one to ten minutes.
//!
//! | part | measures |
//! | --- | --- |
//! | `index` | the text index, beside a suffix automaton |
//! | `costs` | time of a decode by rows and cells, and of removing rejected cells |
//! | `oracle` | tokens per second by acceptance, with recorded outputs as drafts, against the best length that the costs allow |
//! | `loads` | tokens per second, gaps and cost of drafting with drafts from text and constraints, off and on by turns |
//! | `traces` | the same for prompts and answers of agents, from a file that `python -m benches.traces` writes |
//! | `draft` | a draft model: acceptance, cost and speed by the length of its drafts, and with the length that the engine chooses |
//! | `equality` | nothing: runs `--requests N` without drafts and with them, and compares every bit |
#![allow(clippy::print_stdout, reason = "a bench answers on the standard output")]
#![allow(clippy::print_stderr, reason = "and says there what is wrong")]
#![allow(clippy::cast_precision_loss, reason = "a bench's counts are small")]

#[cfg(feature = "llama")]
mod bench;
#[cfg(feature = "llama")]
mod costs;
#[cfg(feature = "llama")]
mod draft;
#[cfg(feature = "llama")]
mod equality;
mod index;
#[cfg(feature = "llama")]
mod loads;
#[cfg(feature = "llama")]
mod oracle;
#[cfg(feature = "llama")]
mod run;
#[cfg(feature = "llama")]
#[allow(dead_code, reason = "the bench of decoding, which shares this folder, uses all of it")]
#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code, reason = "the engine uses more of the index")]
#[path = "../../engine/features/speculation/text_index.rs"]
mod text_index;
#[cfg(feature = "llama")]
mod texts;
#[cfg(feature = "llama")]
mod traces;
#[cfg(feature = "llama")]
#[allow(dead_code, reason = "the bench of sharing, which shares this file, uses all of it")]
#[path = "../measures/watch.rs"]
mod watch;

// The index of the engine names it.
use weft::request;

#[cfg(feature = "llama")]
fn main() -> std::process::ExitCode {
    bench::main()
}

#[cfg(not(feature = "llama"))]
fn main() {
    index::measure();
}
