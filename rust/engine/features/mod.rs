//! Features: what requests can ask for beyond tokens, and the hooks at which the stages of a step call them. The hooks on which
//! only their own state changes are in `state`.
//!
//! | feature | purpose |
//! | --- | --- |
//! | `beams` | beam search |
//! | `explanations` | why parts of a prompt were computed although similar prompts were cached |
//! | `forks` | further branches from any position of a branch |
//! | `prompt_logprobs` | progress and logprobs of prompts |
//! | `self_extend` | contexts longer than the model was trained on |
//! | `transcripts` | generated texts keep their tokens when a later chat contains them |

pub(crate) mod beams;
pub(crate) mod explanations;
pub(crate) mod forks;
pub(crate) mod prompt_logprobs;
pub(crate) mod self_extend;
pub(crate) mod state;
pub(crate) mod transcripts;

use std::time::Instant;

use crate::engine::cache_manager::CacheManager;
use crate::engine::runner::Runner;
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::running_sequence::RunningSequence;
use crate::sampling::Threads;

/// Before sequences are admitted: builds forks within the limits of a step.
pub(crate) fn before_admission(scheduler: &mut Scheduler, runner: &impl Runner) {
    forks::commands::advance_forks(scheduler, runner);
}

/// Before the next decode is planned: groups tokens.
pub(crate) fn before_planning<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>) {
    self_extend::group(scheduler, cache);
}

/// Returns the number of rows that features permit a sequence in the next decode.
pub(crate) fn max_rows(scheduler: &Scheduler, running: &RunningSequence) -> u32 {
    self_extend::n_until_grouped(scheduler, running)
}

/// After a decode: reports on prompts. Returns the number of tokens whose logprobs were reported.
pub(crate) fn after_decode(scheduler: &mut Scheduler, runner: &impl Runner, samplers: &Threads) -> u32 {
    prompt_logprobs::report_prompts(scheduler, runner, samplers)
}

/// After tokens were sampled, before `now`: advances beam searches.
pub(crate) fn after_sampling<R: Runner>(scheduler: &mut Scheduler, cache: &mut CacheManager<R>, now: Instant) {
    beams::advance(scheduler, cache, now);
}

/// Ends a request that fills the device cache by itself, if a feature can. Returns `false` otherwise.
pub(crate) fn end_oversized(scheduler: &mut Scheduler, runner: &impl Runner, request_id: u64) -> bool {
    beams::end_full(scheduler, runner, request_id)
}
