//! Weft: one prompt, many completions, over one shared KV cache.
//!
//! # The map
//!
//! A request goes from the caller's thread to the worker thread, which owns the model and its KV cache, and its events come back:
//!
//! ```text
//! Engine::submit(Request) ──► worker thread: one step after the other ──► Completions (Event, Event, …)
//!
//!   receive    requests, cancellations and queries arrive
//!   schedule   sequences enter slots over their longest cached prefix; entries are reloaded and idle prefixes offloaded;
//!              tasks (saves, loads, pins) end; each sequence gets rows in the next decode, and cells for them
//!   execute    the runner (llama.cpp, or FakeRunner) decodes the rows; checkpoints are saved, prompts reported
//!   sample     logits become tokens and text; sequences that end leave their slots, which are filled again
//!   publish    events and metrics become visible to other threads
//! ```
//!
//! A request passes these files of [`engine`], and the last one if it comes from Python. In the rows without a mark, something is
//! decided for every request: 15 files. Rows with † decide only if a decode fails, if the request is cancelled or preempted, or if
//! cells are short or in the host cache.
//!
//! | file | what is decided there |
//! | --- | --- |
//! | `mod.rs`, `validation.rs` | if the request is valid, fits a context, and gets a position in the queue |
//! | `worker.rs` | the order of the stages, each a method; how long the worker sleeps |
//! | `scheduler/queue.rs` | which request is next: `Queue::next` |
//! | `scheduler/admission.rs`, `scheduler/slots.rs` | if it enters a slot, and which; or waits for a slot, sequence ids, cells or a prefix |
//! | `scheduler/prefix_match.rs` | its longest cached prefix, and if another sequence is computing a longer one |
//! | `scheduler/tier_moves.rs`, `cache_manager/` † | what is reloaded for it, and which idle prefixes are offloaded or evicted |
//! | `scheduler/planning.rs`, `scheduler/step_budget.rs`, `scheduler/step_budget/rows.rs` | how many of its tokens the next decode computes, within the time of a step, and their cells |
//! | `execute.rs` † | what is decoded again after a failure |
//! | `scheduler/sequence/` (`mod.rs`, `text.rs`) | its token, its text, and if it is finished |
//! | `scheduler/lifecycle.rs` † | which sequence is preempted; what is removed with a cancelled request |
//! | `scheduler/streams.rs` | if its stream is paused, and if it ends with this step |
//! | `output/mod.rs` | when its consumer is woken |
//! | `python/awaitable.rs` | if an `await` returns: `PyNext::poll` |
//!
//! Other files are crossed without a decision: `request_group.rs`, `placement.rs` and `sample.rs` of `scheduler`, `metrics.rs`, and
//! `stream.rs` and `completions.rs` of `output`; in Python, `engine.rs` and `convert.rs` on the way in, and `wake.rs`, `stream.rs`
//! and `events.rs` on the way out. The documentation of [`engine`] lists its files and their allowed dependencies.
//!
//! So that no first token takes an additional step, `sample` fills the slots that became free, starts the branches whose prompt this
//! step has computed, and samples for them too.
//!
//! | question | answer, in files of [`engine`] |
//! | --- | --- |
//! | Where does a preempted sequence resume? | `scheduler/admission.rs`: `place_preempted`, as `scheduler/resumption.rs` plans it |
//! | Where are drafted tokens verified? | `scheduler/sample.rs`: `verify_drafts`, between two rounds of sampling. `features/speculation` drafts them |
//! | What frees cells and sequence ids? | `cache_manager/guards.rs`: a dropped guard queues the release, which the cache manager applies before it reads its bookkeeping |
//! | Where does an idle prefix leave the device cache? | `cache_manager/moves.rs`: `evict` if cells or ids are short, `offload_early` if it slows down decodes. `cache/path_removal.rs` chooses it |
//! | What happens if that is not enough? | `scheduler/lifecycle.rs`: `release_cells` releases held prompts, then preempts junior sequences |
//! | What happens when a client disconnects? | `output/completions.rs`: its `Completions` is dropped and sends `Command::Cancel`; `Scheduler::disconnect` (`scheduler/lifecycle.rs`) removes the request with its sequences |
//!
//! | part | purpose |
//! | --- | --- |
//! | [`request`], [`error`], [`cancellation`] | a request, its events and its errors, as callers see them |
//! | [`engine`] | scheduling, the loop, streams |
//! | [`cache`] | the prefix tree over the KV cache, its two tiers, checkpoints and pins |
//! | [`sampling`], [`grammar`] | from logits to a token; the texts that a grammar or a JSON schema allows |
//! | `embedding` | embeddings, on a separate worker thread |
//! | [`kernels`] | attention and matrix products on CPUs |
//! | `llama` | all that calls llama.cpp |
//! | `python` | the classes of `weft._native` |
//! | [`config`] | limits and settings, validated |
//! | `fake_runner` | a model for tests and benchmarks: its next token is a function of the prefix |
//! | `lock` | locks mutexes, poisoned or not |
//! | `worker_thread` | starts, names and joins the threads of the engine and of embeddings |
//!
//! `docs/engine.md` has the glossary, and lists what to change to add a sampler, a feature, a kind of branch search or a tier.
//!
//! # Invariants
//!
//! - Only `llama` calls llama.cpp, and only `python` uses Python. `engine`, `cache`, `sampling`, `grammar` and `kernels` build and
//!   are tested without both.
//! - `kernels` names no other part of the crate: slices in, slices out. Only `llama` and `kernels` contain `unsafe` code.
//! - The KV cache is unified. `Runner::fork` never copies and never aborts.
//! - One thread uses llama.cpp's context. It never takes Python's global interpreter lock and never waits for a consumer.
//! - Every branch ends with exactly one `Finished`, or its request with one error, unless its consumer has closed the stream. A request
//!   that can never fit is refused when it is submitted.
//! - Dropping [`Completions`](engine::Completions) cancels its requests at any stage and frees their slots.
//! - Free, evictable and pinned cells add up to all cells, so that no decode finds the device cache full.
//! - A drafted token is sampled only after the token before it was emitted and ended nothing, and rejected cells leave before
//!   anything else reads the cache: the prefix tree, events, usage and metrics contain sampled tokens only. Drafts take free cells
//!   and rows that a step leaves; nothing is evicted, preempted or shortened for them.
//! - The host cache never exceeds its limit in bytes. While streams are generating, early offloads and reloads take no longer than the
//!   step allows; only an eviction without which a running sequence cannot continue may take longer.
//! - Embeddings are computed by a separate worker, whose context is created on first use. It never uses the engine's context.
//! - Waiting requests, waiting forks and unread events are bounded. A slow consumer ends only itself.
//! - The work of a step does not depend on what waits, neither on the number of queued requests nor on their prompts, except once for
//!   each request: when it is submitted, when the prefix that it awaits is computed, and when the model loses cells.

// Files that tests and benchmarks share name the crate.
#[cfg(test)]
extern crate self as weft;

pub mod request;

pub mod config;

pub mod error;

pub mod cancellation;

pub mod engine;

pub mod cache;

/// Without a model, nothing computes embeddings.
#[cfg(any(feature = "llama", test))]
mod embedding;

pub mod sampling;

pub mod grammar;

#[allow(unsafe_code, reason = "SIMD intrinsics, and slices that the threads of a team share")]
pub mod kernels;

#[cfg(feature = "llama")]
#[allow(unsafe_code, reason = "the only folder that calls llama.cpp, which is C++")]
#[cfg_attr(
    not(feature = "python"),
    allow(dead_code, unused_imports, reason = "only Python saves prefixes, tunes, plans, reads media")
)]
pub mod llama;

#[cfg(any(test, feature = "fake-runner"))]
pub mod fake_runner;

mod lock;
mod worker_thread;

#[cfg(feature = "python")]
mod python;
