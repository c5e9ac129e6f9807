//! Weft: one prompt, many completions, over one shared KV cache.
//!
//! In weaving, the warp is the set of threads that every pass of the weft shares. Here the shared prompt is the warp, and each
//! completion is one pass of the weft.
//!
//! # The map
//!
//! ```text
//! Engine::submit(Request) ──► worker thread ──────────────────────────────► Completions (Event, Event, …)
//!                              receive → admit → plan → decode → draw → publish
//!                                 │         │       │       │        └ sampling, text
//!                                 │         │       │       └ Runner (llama.cpp, or FakeRunner)
//!                                 │         │       └ Scheduler: how many rows each sequence gets
//!                                 │         └ KvCache: longest known prefix, forks, evictions
//!                                 └ slots, queue, cancelled streams
//! ```
//!
//! | word | means |
//! | --- | --- |
//! | [`Request`](request::Request) | a prompt, its sampling parameters, and how many completions of it are wanted |
//! | sequence, branch | one completion being written |
//! | slot | one of the places where a sequence runs |
//! | [`SequenceId`](engine::runner::SequenceId) | llama.cpp's number that owns cells of the KV cache |
//! | path | the tokens that a sequence id holds, and their cells |
//! | fork | give another sequence id the cells of a prefix: nothing is computed or copied |
//! | [`Plan`](engine::runner::Plan) | which tokens of which sequences go into the next decode |
//! | prefill, decode | computing prompt tokens, computing one drawn token per running sequence |
//! | preempt | take a sequence off its slot; its text and generator stay, its cells can be evicted |
//! | job, holder | a request inside the worker; the id that keeps its prompt's cells until its last branch has started |
//! | [`Event`](request::Event) | what a stream yields: tokens, and exactly one end per branch |
//!
//! # What always holds
//!
//! - Only `llama` names llama.cpp, and only `python` names Python. `engine`, `cache` and `sampling` build and are tested without both.
//! - The KV cache is unified; a fork never copies and never aborts.
//! - Exactly one thread touches the context. It never takes the interpreter's lock and never waits for a reader.
//! - Every branch ends in exactly one `Finished`, or its request in one error. What cannot fit is refused before it is queued.
//! - Dropping [`Completions`](engine::Completions) frees its slots; there is no second clean-up path.
//! - Free + evictable + pinned cells = all cells, so that a decode never finds the pool full.
//! - All queues are bounded. A slow reader ends only itself.

pub mod request;

pub mod config;

pub mod error;

pub mod engine;

pub mod cache;

pub mod sampling;

#[cfg(feature = "llama")]
#[allow(unsafe_code, reason = "llama.cpp is C++; its folder is the one place that calls it")]
pub mod llama;

pub mod fake_runner;

#[cfg(feature = "python")]
mod python;
