//! Features beyond the generation of tokens, and the hooks at which the stages of a step call them. The hooks that change the
//! state of the features are in `state`.
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

/// After tokens were sampled: advances beam searches.
pub(crate) use beams::advance as after_sampling;
/// Ends a beam search that fills the device cache by itself. Returns `false` if it cannot.
pub(crate) use beams::end_full as end_oversized;
/// Before sequences are admitted: builds forks within the limits of a step.
pub(crate) use forks::commands::advance_forks as before_admission;
/// After a decode: reports on prompts. Returns the number of tokens whose logprobs were reported.
pub(crate) use prompt_logprobs::report_prompts as after_decode;
/// Before the next decode is planned: groups tokens.
pub(crate) use self_extend::group as before_planning;
/// The number of rows that a sequence may have in the next decode.
pub(crate) use self_extend::n_until_grouped as max_rows;
