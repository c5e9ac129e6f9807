//! Weft: one prompt, many completions, over one shared KV cache.
//!
//! # The map
//!
//! A request goes from the caller's thread to the worker thread, which owns the model and its KV cache, and its events come back:
//!
//! ```text
//! Engine::submit(Request) ──► worker thread: one step after the other ──► Completions (Event, Event, …)
//!
//!   receive   requests, cancellations, forks and questions arrive           worker, questions, forking
//!   admit     sequences enter slots over their longest cached prefix        admission, queue, prefix_match
//!   move      prefixes are offloaded to the host cache, others reloaded     tier_moves, memory
//!   plan      each sequence gets rows in the next decode, and cells         planning, step_budget, lifecycle
//!   compute   the runner (llama.cpp, or FakeRunner) decodes the rows        computing, memory
//!   sample    logits become tokens, tokens text, text events                sampling_step, beams, sequence
//!   publish   events and metrics become visible to their readers            publishing, output, stream
//! ```
//!
//! The files are in [`engine`], whose documentation lists their contents and permitted imports. Two things happen outside this order,
//! so that no first token takes an additional step. A sequence whose logits are stored samples its first token when it enters its
//! slot, or when its prefix is reloaded. And `admit` runs again after `sample`, for the slots that became free and the branches whose
//! prompt this step has computed.
//!
//! | part | purpose |
//! | --- | --- |
//! | [`request`] | a request, its events and its errors, as callers see them |
//! | [`engine`] | scheduling, the loop, streams |
//! | [`cache`] | the prefix tree over the KV cache, its two tiers, checkpoints and pins |
//! | [`sampling`], [`grammar`] | from logits to a token; the texts that a grammar or a JSON schema allows |
//! | [`embedding`] | embeddings, on a separate worker thread |
//! | [`kernels`] | attention and matrix products on CPUs |
//! | `llama` | all that calls llama.cpp |
//! | `python` | the classes of `weft._native` |
//! | [`config`] | limits and settings, validated |
//!
//! # Glossary
//!
//! | word | meaning |
//! | --- | --- |
//! | [`Request`](request::Request) | a prompt, sampling parameters, and the number of completions |
//! | request group | a request within the engine: its prompt, and the branches that are waiting, running or finished |
//! | sequence | one completion being generated; callers see it as a branch |
//! | slot | room for one running sequence |
//! | [`KvSeqId`](engine::runner::KvSeqId) | llama.cpp's number for an owner of cells |
//! | cell, cell run | the KV-cache entry of one token; a contiguous group of them with the same owners. Forks share runs of any length |
//! | path | the tokens that a sequence id holds, and their cells |
//! | prefix tree | the radix tree over token ids: which tier holds which prefix, and when it was last used |
//! | device cache, host cache | the cells in llama.cpp's context; the bounded memory of the host that holds offloaded prefixes |
//! | offload, reload | copy an idle prefix from the device cache to the host cache; copy it back instead of computing it |
//! | evict | drop a prefix from a tier |
//! | relocate | move cells to lower free ones |
//! | fork | give another sequence id the cells of a prefix; nothing is computed or copied |
//! | step | one iteration of the worker's loop |
//! | [`Plan`](engine::runner::Plan) | the rows of one decode: which tokens of which sequences |
//! | prefill, decode | computing a prompt's tokens; computing the token sampled last |
//! | preempt | take a sequence out of its slot. It keeps its text and its sampler; its cells may be evicted |
//! | prefix dependency | a sequence waits for a prefix that another one is computing |
//! | headroom | cells that are kept free for the tokens that a running sequence will sample |
//! | constraint | the tokens that a grammar allows next |
//! | trigger | a text or token from which a lazy grammar applies |
//! | reasoning | text before the answer, ended by force when its budget is used up |
//! | pin | keep a prefix cached, in either tier, until it is unpinned |
//! | scheduling key | the order among requests: priority and arrival, a priority counting as a number of starts |
//! | context shift | drop the middle of a full context, and compute the rest again |
//! | checkpoint | a saved state of a memory that cannot be truncated (recurrent, sliding window), at a position of a prompt |
//! | [`Event`](request::Event) | an item of a stream: a token, the end of a branch, progress, or prompt logprobs |
//!
//! # Invariants
//!
//! - Only `llama` names llama.cpp, and only `python` names Python. `engine`, `cache`, `sampling`, `grammar` and `kernels` build and
//!   are tested without both.
//! - `kernels` names no other part of the crate: slices in, slices out. Only `llama` and `kernels` contain `unsafe` code.
//! - The KV cache is unified. A fork never copies and never aborts.
//! - One thread uses llama.cpp's context. It never takes Python's global interpreter lock and never waits for a reader.
//! - Every branch ends with exactly one `Finished`, or its request with one error. A request that cannot fit is refused before it is
//!   queued.
//! - Dropping [`Completions`](engine::Completions) frees its slots; there is no other path for cleaning up.
//! - Free, evictable and pinned cells add up to all cells, so that no decode finds the device cache full.
//! - Every idle prefix is in the tree, in one tier or both. The host cache never exceeds its limit in bytes. Copies that run while
//!   streams are generating take no longer than the step allows.
//! - Embeddings are computed by a separate worker, whose context is created on first use. It never uses the engine's context.
//! - All queues are bounded. A slow consumer ends only itself.
//! - The work of a step does not depend on what waits: neither on the number of queued requests nor on their prompts.

pub mod request;

pub mod config;

pub mod error;

pub mod cancellation;

pub mod engine;

pub mod cache;

pub mod embedding;

pub mod sampling;

pub mod grammar;

#[allow(unsafe_code, reason = "SIMD intrinsics, and slices that the threads of a team share")]
pub mod kernels;

#[cfg(feature = "llama")]
#[allow(unsafe_code, reason = "the only folder that calls llama.cpp, which is C++")]
pub mod llama;

pub mod fake_runner;

#[cfg(feature = "python")]
mod python;
