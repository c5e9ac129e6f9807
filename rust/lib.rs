//! Weft: one prompt, many completions, over one shared KV cache.
//!
//! In weaving, the warp is the set of threads that every pass of the weft shares. Here the shared prompt is the warp, and each
//! completion is one pass of the weft.
//!
//! # The map
//!
//! ```text
//! Engine::submit(Request) ──► worker thread ──────────────────────────────► Completions (Event, Event, …)
//!                              receive → admit → move → plan → compute → draw → publish
//!                                 │        │       │      │       │        └ sampling, text
//!                                 │        │       │      │       └ Memory: Runner (llama.cpp, or FakeRunner) and KvCache
//!                                 │        │       │      └ Scheduler: how many rows each sequence gets
//!                                 │        │       └ what goes to the store, and what comes back
//!                                 │        └ Queue: who starts next; KvCache: longest known prefix, in the pool or in the store
//!                                 └ arrivals, cancelled streams, questions
//! ```
//!
//! [`engine`] says which file holds what, and who may name whom.
//!
//! | word | means |
//! | --- | --- |
//! | [`Request`](request::Request) | a prompt, its sampling parameters, and how many completions of it are wanted |
//! | sequence, branch | one completion being written |
//! | slot | one of the places where a sequence runs |
//! | [`SequenceId`](engine::runner::SequenceId) | llama.cpp's number that owns cells of the KV cache |
//! | path | the tokens that a sequence id holds, and their cells |
//! | prefix tree | the radix tree over token ids that says who holds which prefix, and when it was last used |
//! | strand | a stretch of cells that the same ids hold; a fork shares strands, however long they are |
//! | pool, store | the cells inside llama.cpp's context; the bounded host memory beside it that holds saved pieces |
//! | piece | the saved cells of a stretch of tokens, or a whole saved state |
//! | spill, restore | move an idle part of the tree from the pool to the store; bring it back without computing |
//! | relocate | move cells to lower free ones |
//! | fork | give another sequence id the cells of a prefix: nothing is computed or copied |
//! | [`Plan`](engine::runner::Plan) | which tokens of which sequences go into the next decode |
//! | prefill, decode | computing prompt tokens, computing one drawn token per running sequence |
//! | preempt | take a sequence off its slot; its text and generator stay, its cells are spilled |
//! | await | wait for a prefix that another sequence is computing, instead of computing it too |
//! | constraint | what holds the tokens of a branch to a grammar; asked before a token is accepted |
//! | trigger | a text or a token from which on a branch is held to a grammar that waits for it |
//! | thought | what a branch says between two texts before it answers; forced to its end when its budget is used up |
//! | pin | keep a prefix computed, in either tier, until it is unpinned |
//! | job, keeper | a request inside the worker; the id that keeps its prompt's cells until its last branch has started |
//! | turn | the start of a branch, of whatever request: what waiting is counted in |
//! | seniority | who goes before whom: by priority and arrival, a priority being worth so many turns |
//! | phase | what a sequence in a slot is doing: restoring, prefilling, decoding, copying |
//! | shift | drop the middle of a full context, and compute what follows again |
//! | vector, pooling | what [`embedding`] makes of a text; how the vectors of its tokens become one |
//! | snapshot | a whole saved state of a memory that cannot be cut, at a place of a prompt |
//! | [`Event`](request::Event) | what a stream yields: tokens, exactly one end per branch, and what is asked about the prompt |
//!
//! # What always holds
//!
//! - Only `llama` names llama.cpp, and only `python` names Python. `engine`, `cache`, `sampling`, `grammar` and `kernels` build and
//!   are tested without both.
//! - `kernels` names no other part of the crate: slices in, slices out. Only `llama` and `kernels` hold `unsafe` code.
//! - The KV cache is unified; a fork never copies and never aborts.
//! - Exactly one thread touches the context. It never takes the interpreter's lock and never waits for a reader.
//! - Every branch ends in exactly one `Finished`, or its request in one error. What cannot fit is refused before it is queued.
//! - Dropping [`Completions`](engine::Completions) frees its slots; there is no second clean-up path.
//! - Free + evictable + pinned cells = all cells, so that a decode never finds the pool full.
//! - What is idle is in the tree, in one tier or both; the store never holds more than its bytes. What is moved beside running
//!   streams takes no longer than a step has time for.
//! - Vectors are made by a worker of their own, whose context is there once it is needed; it never touches the engine's.
//! - All queues are bounded. A slow reader ends only itself.
//! - What a step costs does not grow with what only waits: not with the requests in the queue, nor with their prompts.

pub mod request;

pub mod config;

pub mod error;

pub mod cancellation;

pub mod engine;

pub mod cache;

pub mod embedding;

pub mod sampling;

pub mod grammar;

#[allow(unsafe_code, reason = "instructions that Rust has no safe words for, on slices that one thread shares with others")]
pub mod kernels;

#[cfg(feature = "llama")]
#[allow(unsafe_code, reason = "llama.cpp is C++; its folder is the one place that calls it")]
pub mod llama;

pub mod fake_runner;

#[cfg(feature = "python")]
mod python;
