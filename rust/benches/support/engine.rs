//! The engine's side of a comparison: the same steps, asked for as a user would ask.

use std::sync::Arc;
use std::time::Duration;

use weft::config::EngineConfig;
use weft::llama::{self, Model};
use weft::request::{Event, FinishReason, Prompt, Request, SamplingParams};

/// How the branches of a run choose their tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// The most likely token.
    Greedy,
    /// The defaults of every request: top-k, top-p, min-p and temperature.
    Default,
}

/// Times `n_steps` decodes of `n_branches` branches of one prompt in an engine of their own, from each branch's first token, which
/// the prefill yields, to its last.
///
/// The engine is new, so that no cached branch of an earlier run makes its steps dearer. The time is the engine's own, since a
/// reader's clock would start late by as much as a busy machine lets the reader wait for its turn. It is the last branch's, which
/// starts when all that happens once (prefill, forks) is over; in every branch, the same decodes lie between first token and last.
///
/// # Errors
/// A message, when the engine fails, or when a branch did not take exactly its steps.
pub(crate) fn time_steps(
    model: &Arc<Model>,
    config: &EngineConfig,
    (prompt, n_branches, n_steps): (&[i32], usize, usize),
    sampling: Sampling,
) -> Result<Duration, String> {
    let n_tokens = u32::try_from(n_steps + 1).expect("the bench takes few steps");
    let mut request = Request::new(Prompt::from_tokens(prompt.to_vec()), 0);
    request.n = u32::try_from(n_branches).expect("the bench asks for few branches");
    request.max_tokens = Some(n_tokens);
    request.sampling = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
    if sampling == Sampling::Greedy {
        request.sampling.temperature = 0.0;
    }
    let engine = llama::start(model, config).map_err(|error| error.to_string())?;
    let completions = engine.submit(request, None).map_err(|error| error.to_string())?;
    let mut last_branch_ms = None;
    for event in completions {
        if let Event::Finished(end) = event.map_err(|error| error.to_string())? {
            if end.reason != FinishReason::Length || end.usage.n_predicted != n_tokens {
                let (reason, n_predicted) = (end.reason, end.usage.n_predicted);
                return Err(format!("a branch ended after {n_predicted} tokens of {n_tokens} ({reason:?})"));
            }
            if end.index as usize + 1 == n_branches {
                last_branch_ms = Some(end.usage.predicted_ms);
            }
        }
    }
    let milliseconds = last_branch_ms.ok_or("the stream ended before its last branch")?;
    Ok(Duration::from_secs_f64(milliseconds / 1e3))
}
