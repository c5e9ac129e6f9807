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
//!   publish    events and metrics become visible to their readers
//! ```
//!
//! From `submit` to the event, a request crosses these files of [`engine`]; from Python, `python/engine.rs` and `python/convert.rs`
//! precede them, and `python/wake.rs`, `python/stream.rs` and `python/events.rs` follow:
//!
//! | file | what happens there |
//! | --- | --- |
//! | `mod.rs`, `validation.rs` | `Engine::submit` checks the request, makes a group (`scheduler/request_group.rs`) of it and sends it to the worker |
//! | `worker.rs` | the loop: each stage is a method, in this order |
//! | `scheduler/queue.rs` | the request waits, and is next |
//! | `scheduler/admission.rs` | a branch enters a slot or resumes, or waits for a slot, for cells, or for a prefix |
//! | `scheduler/prefix_match.rs` | its longest cached prefix, and whether another sequence is computing a longer one |
//! | `scheduler/placement.rs` | its sequence, its slot (`scheduler/slots.rs`) and its cells (`cache_manager`) |
//! | `scheduler/planning.rs` | its rows in the next decode, and their cells |
//! | `execute.rs` | the decode |
//! | `scheduler/sample.rs`, `scheduler/sequence/mod.rs` | its token is sampled, detokenized and added to the events of its group |
//! | `scheduler/lifecycle.rs` | it finishes, fails, is cancelled, preempted or removed |
//! | `scheduler/streams.rs`, `output/mod.rs`, `output/stream.rs` | the events of the step are sent, and streams end |
//! | `output/completions.rs` | the reader takes them |
//!
//! The documentation of [`engine`] lists its files and their allowed dependencies. A sequence whose logits are stored enters its
//! slot, or ends its reload, as ready to sample. So that no first token takes an additional step, `sample` fills the slots that
//! became free, and starts the branches whose prompt this step has computed, and samples for them too.
//!
//! | question | answer, in files of [`engine`] |
//! | --- | --- |
//! | Who decides that a prompt waits? | `scheduler/queue.rs`: `Queue::next` chooses the next request, and all others wait. `scheduler/admission.rs`: with `next_sequence`, `admit` and `start`, that request may wait for a slot, sequence ids, cells or a prefix; with `place_preempted`, so may a preempted sequence |
//! | Where is a token sampled? | `scheduler/sample.rs`: `sample_tokens`; the tokens of beams are then chosen together by `features/beams` |
//! | Where are drafted tokens verified? | `scheduler/sample.rs`: `verify_drafts`, between two rounds of sampling. `features/speculation` drafts them |
//! | What frees a slot? | `scheduler/lifecycle.rs`, whenever a sequence leaves, by `Slots::take` or `take_all` |
//! | What frees cells and sequence ids? | `cache_manager/guards.rs`: a dropped guard queues the release, which the cache manager carries out before the next read of its bookkeeping |
//! | Where does an idle prefix leave the device cache? | `cache_manager/moves.rs`: `evict` if cells or ids are short, `offload_early` if it slows down decodes. `cache/path_removal.rs` chooses it |
//! | What happens if that is not enough? | `scheduler/lifecycle.rs`: `release_cells` releases held prompts, then preempts junior sequences |
//! | What happens when a client disconnects? | `output/completions.rs`: its `Completions` is dropped and sends `Command::Cancel`; `Scheduler::disconnect` then removes the request with its sequences |
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
//! To add
//! - a sampler: a name and a letter (`LETTERS`) in `request/sampler_kind.rs`, its parameters in `request/sampling.rs` (`numbers!`
//!   lists those that may be any finite number; others are read in `python/convert.rs`), its filter in `sampling/filters`, its step in `sampling/chain.rs` (with
//!   `keeps_best`), and its test against llama.cpp in `llama/sampler_parity`; in Python, its field and its letter in
//!   `sampling_fields.py` (`scripts/option_stubs.py` then writes its option), its setting in
//!   `server/response_fields/settings.py`, and its flag in `settings/flags.json`. A penalty is in `sampling/penalties` instead of
//!   `sampling/filters`, a way to draw in `sampling/draw`. A sampler that draws at random is excluded from beams in
//!   `request/diversity.rs`;
//! - a feature of the engine: a file in `engine/features`, its state in `engine/features/state.rs`, and its calls in
//!   `engine/features/hooks.rs`;
//! - another kind of branch search: its parameters in `request/diversity.rs` (read in `python/diversity.rs`; in Python, a field and an
//!   option in `weft/request`), and a feature as
//!   `engine/features/beams`, whose hooks are `on_validate`, `n_together`, `on_new_sequence`, `is_vacant`, `sample`,
//!   `after_sampling`, `on_preempt`, `end_oversized` and `cancel_together`. Its sequences give up cells and fork by `vacate` and
//!   `fork_to` of `engine/scheduler/placement.rs`; `engine/features/forks/commands.rs` rejects forks of them;
//! - a tier of the cache: an entry per node in `cache/prefix_tree.rs` (as `host_entry`; `cache/paths.rs` divides and moves it with its
//!   node, `cache/pins.rs` and `cache/prefix_match.rs` count it), its limit in bytes as in `cache/host_cache.rs` and
//!   `config/limits.rs`, stored by `cache/path_removal.rs`, found by the `find` of each kind of memory in `cache/kinds`, evicted as in
//!   `cache/host_eviction.rs`, copied by `engine/cache_manager/moves.rs` in the order of `engine/scheduler/tier_moves.rs`, and
//!   listed as a [`Tier`](cache::Tier) in `cache/listing.rs`, `cache/blocks.rs` and `python/cached_nodes.rs`, and counted in
//!   `engine/stats.rs`, `engine/metrics.rs` and `python/stats.rs`.
//!
//! # Glossary
//!
//! | word | meaning |
//! | --- | --- |
//! | [`Request`](request::Request) | a prompt, sampling parameters, and the number of completions |
//! | request group | a request within the engine: its prompt, and the branches that are waiting, running or finished |
//! | stream | what the reader of one `submit` gets: the events of all its branches, which `BranchIndex` counts. It has a group for each distinct prompt; `MemberIndex` counts the branches of a group |
//! | sequence | one completion being generated, which callers see as a branch; or a task, such as saving a prefix |
//! | slot | room for one running sequence |
//! | [`KvSeqId`](engine::runner::KvSeqId) | llama.cpp's number for an owner of cells |
//! | cell, cell run | the KV-cache entry of one token; the entries of consecutive tokens that have the same owners. Forks share runs of any length |
//! | path | the tokens that a sequence id holds, and their cells |
//! | prefix tree | the radix tree over token ids: which tier holds which prefix, and when it was last used |
//! | device cache, host cache | the cells in llama.cpp's context; memory of the host for offloaded prefixes, up to a limit in bytes |
//! | offload, reload | copy an idle prefix from the device cache to the host cache; copy it back instead of computing it |
//! | evict | drop a prefix from a tier; from the device cache it is offloaded first, if that is worthwhile |
//! | relocate | move cells to lower free ones |
//! | fork | give another sequence id the cells of a prefix; nothing is computed or copied |
//! | step | one iteration of the worker's loop |
//! | [`Plan`](engine::runner::Plan) | the rows of one decode: which tokens of which sequences |
//! | prefill, decode | computing a prompt's tokens; computing the token sampled last, and every call of the model on a batch |
//! | draft, verify | compute tokens that a sequence is expected to sample, with logits; sample from their rows as long as the samples equal them |
//! | preempt | take a sequence out of its slot. It keeps its text and its sampler; its cells may be evicted |
//! | prefix dependency | a request or a sequence waits for a prefix that another sequence is computing or reloading |
//! | headroom | cells that are kept free for the tokens that a running sequence will sample |
//! | constraint | the tokens that a grammar allows next |
//! | trigger | a text or token from which a lazy grammar applies |
//! | reasoning | text before the answer; if it has a budget, it is ended by force when that is used up |
//! | pin | keep a prefix cached, in either tier, until it is unpinned. The cells of running sequences count as pinned too |
//! | scheduling key | the order among branches: by arrival, counted in branches that were started before; a priority counts as a number of them |
//! | context shift | drop the middle of a full context, and compute the rest again |
//! | checkpoint | a saved state of a memory that cannot be truncated (recurrent, sliding window), at a position of a prompt |
//! | [`Event`](request::Event) | an item of a stream: a token, the end of a branch, progress, or prompt logprobs |
//!
//! # Invariants
//!
//! - Only `llama` calls llama.cpp, and only `python` uses Python. `engine`, `cache`, `sampling`, `grammar` and `kernels` build and
//!   are tested without both.
//! - `kernels` names no other part of the crate: slices in, slices out. Only `llama` and `kernels` contain `unsafe` code.
//! - The KV cache is unified. `Runner::fork` never copies and never aborts.
//! - One thread uses llama.cpp's context. It never takes Python's global interpreter lock and never waits for a reader.
//! - Every branch ends with exactly one `Finished`, or its request with one error, unless its reader has closed the stream. A request
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
