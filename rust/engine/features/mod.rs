//! Features beyond the generation of tokens, each a file or a folder.
//!
//! A feature attaches its state by a field of its name in [`state`], and has a line in each of the [`hooks`] at which it is called.
//! `scripts/delete_feature.py` deletes a feature with these lines in a copy of the tree; the rest compiles and passes its tests.
//!
//! | feature | purpose |
//! | --- | --- |
//! | `beams` | beam search |
//! | `diversity` | distinct first tokens, and arithmetic sampling |
//! | `explanations` | why parts of a prompt were computed although similar prompts were cached |
//! | `forks` | further branches from any position of a branch |
//! | `prompt_logprobs` | progress and logprobs of prompts |
//! | `self_extend` | contexts longer than the model was trained on |
//! | `speculation` | several tokens per step, by verifying likely ones that were drafted |
//! | `transcripts` | generated texts keep their tokens when a later chat contains them |

pub(crate) mod beams;
pub(crate) mod diversity;
pub(crate) mod explanations;
pub(crate) mod forks;
pub(crate) mod hooks;
pub(crate) mod prompt_logprobs;
pub(crate) mod self_extend;
pub(crate) mod speculation;
pub(crate) mod state;
pub(crate) mod transcripts;
