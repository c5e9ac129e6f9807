//! The engine's side of a comparison: the same steps, asked for as a user would ask.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weft::config::{CacheRam, EnabledKernels, EngineConfig, FlashAttention};
use weft::engine::{Completions, Engine, Ready};
use weft::llama::{Model, ResolvedConfig};
use weft::request::{Event, FinishReason, Finished, Prompt, Request, SamplingParams, SavedPrefix, Task, Token};

use super::setup::Flash;
use super::shape::{Prompts, Shape};
use super::stretch::Stretch;

/// Tokens that all sequences but the last may write beyond what is timed: those that start before it, and those that must not end
/// before it.
pub(crate) const HEAD_START: usize = 96;

/// Tokens of the prompt that an engine computes before one that is timed.
pub(crate) const N_KNOWN: usize = 512;

/// Tokens of the shortest prompt: but for the last one, which is always computed, they are just enough to be looked for in the
/// cache. A prompt that is computed takes steps in which other sequences run ahead.
const SHORTEST: usize = 17;

/// Prompts from this number on are nobody's.
const FIRST_IDLE: usize = 1_000;

/// How the sequences of a run choose their tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// The most likely token.
    Greedy,
    /// The defaults of every request: top-k, top-p, min-p and temperature.
    Default,
}

/// The engine as one row of a table has it. Each measurement starts one anew, so that no cached branch of an earlier one makes its
/// steps dearer.
pub(crate) struct EngineSide {
    pub(crate) model: Arc<Model>,
    /// Mostly with no store, so that a prompt that was loaded stays in the pool, and nothing moves while steps are timed.
    pub(crate) config: EngineConfig,
    /// What the engine makes of it.
    pub(crate) settled: ResolvedConfig,
    pub(crate) shape: Shape,
    /// What every prompt is made of.
    pub(crate) stretch: Rc<Stretch>,
    /// Tokens of the longest prompt that the model may have.
    pub(crate) longest: usize,
    /// At least as many as a prompt has.
    pub(crate) tokens: Vec<Token>,
}

/// What belongs to every configuration of the engine in these benches.
pub(crate) fn config(n_slots: u32, n_cells: usize) -> EngineConfig {
    EngineConfig {
        n_slots: Some(n_slots),
        n_ctx: Some(u32::try_from(n_cells.next_multiple_of(256)).expect("the bench needs few cells")),
        kv_unified: Some(true),
        cache_ram: CacheRam::Bytes(0),
        ..EngineConfig::default()
    }
}

/// How an engine that is so settled computes attention.
pub(crate) fn flash(settled: &ResolvedConfig) -> Flash {
    match settled.choice.flash_attention {
        FlashAttention::Off => Flash::Off,
        // What is left to llama.cpp is on where the kernels have it, and those of every CPU do.
        FlashAttention::On | FlashAttention::Auto => Flash::On,
    }
}

impl EngineSide {
    /// Times `n_steps` decodes of all sequences, from the first token of the last of them to its last.
    ///
    /// The time is the engine's own, since a reader's clock would start late by as much as a busy machine lets the reader wait for
    /// its turn. It is that of the sequence that starts last, when all that happens once (prompts, forks) is over, and the others
    /// run for as long; in every branch of one prompt, the same decodes lie between first token and last.
    ///
    /// # Errors
    /// A message, when the engine fails, or when a sequence did not take exactly its steps.
    pub(crate) fn time_steps(&self, n_steps: usize, sampling: Sampling) -> Result<Duration, String> {
        let engine = self.start()?;
        let prompts = self.load_prompts(&engine)?;
        let n_timed = n_steps + 1;
        let branches = match self.shape.prompts {
            Prompts::Shared => self.shape.n_sequences,
            Prompts::Own => 1,
        };
        let n_last = prompts.len() - 1;
        let submit = |(place, prompt): (usize, Vec<Token>)| {
            let mut request = Request::new(Prompt::from_tokens(prompt), 0);
            request.n = number(branches);
            request.max_tokens = Some(number(if place == n_last { n_timed } else { n_timed + HEAD_START }));
            request.sampling = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
            if sampling == Sampling::Greedy {
                request.sampling.temperature = 0.0;
            }
            engine.submit(request, None).map_err(|error| error.to_string())
        };
        let mut streams = prompts.into_iter().enumerate().map(submit).collect::<Result<Vec<_>, _>>()?;
        let last = streams.pop().expect("there is a prompt");
        let ends = ends(last)?;
        let is_whole = |end: &Finished| end.reason == FinishReason::Length && end.usage.n_predicted == number(n_timed);
        if let Some(Finished { reason, usage, .. }) = ends.iter().find(|end| !is_whole(end)) {
            return Err(format!("a branch ended after {} tokens of {n_timed} ({reason:?})", usage.n_predicted));
        }
        for stream in &streams {
            let Ready::Events(events) = stream.try_events(usize::MAX).map_err(|error| error.to_string())? else {
                return Err("a sequence had not begun when others were timed".to_owned());
            };
            if events.len() < n_timed || events.iter().any(|event| matches!(event, Event::Finished(_))) {
                return Err(format!("a sequence ran for {} steps, not beside all of the {n_steps} timed ones", events.len()));
            }
        }
        let end = ends.iter().find(|end| end.index as usize + 1 == branches).ok_or("the stream ended before its last branch")?;
        Ok(Duration::from_secs_f64(end.usage.predicted_ms / 1e3))
    }

    /// Times the prefill of a prompt in an engine that has computed one before: it needs to know what a row costs before it takes
    /// as many at once as it may.
    ///
    /// # Errors
    /// A message, when the engine fails.
    pub(crate) fn time_prefill(&self, n_tokens: usize) -> Result<Duration, String> {
        let engine = self.start()?;
        self.load_idle(&engine)?;
        let mut last = None;
        for (place, n_tokens) in [n_tokens.min(N_KNOWN), n_tokens].into_iter().enumerate() {
            let mut request = Request::new(Prompt::from_tokens(self.prompt(place, n_tokens)), 0);
            request.max_tokens = Some(1);
            let stream = engine.submit(request, None).map_err(|error| error.to_string())?;
            let end = ends(stream)?.pop().ok_or("a stream ended with nothing")?;
            if end.usage.n_computed as usize != n_tokens {
                return Err(format!("of {n_tokens} tokens {} were computed", end.usage.n_computed));
            }
            last = Some(Duration::from_secs_f64(end.usage.prompt_ms / 1e3));
        }
        last.ok_or_else(|| "nothing was computed".to_owned())
    }

    /// Which of our kernels it uses.
    pub(crate) fn used(&self) -> EnabledKernels {
        self.settled.choice.used
    }

    /// An engine as it is configured.
    ///
    /// # Errors
    /// A message, when the engine refuses.
    pub(crate) fn start(&self) -> Result<Engine, String> {
        self.settled.start(&self.model, &self.config).map_err(|error| error.to_string())
    }

    /// Puts every prompt's cells into the pool, behind those that are idle.
    fn load_prompts(&self, engine: &Engine) -> Result<Vec<Vec<Token>>, String> {
        let Shape { n_tokens, n_idle, .. } = self.shape;
        self.load_idle(engine)?;
        let prompts: Vec<Vec<Token>> =
            (0..self.shape.n_prompts()).map(|place| self.prompt(place, n_tokens.max(SHORTEST))).collect();
        prompts.iter().try_for_each(|prompt| self.load(engine, prompt))?;
        let (n_cells, n_expected) = (engine.stats().n_cells_idle, self.shape.n_cells() + n_idle);
        if n_cells < n_expected { Err(format!("of {n_expected} tokens {n_cells} are in the pool")) } else { Ok(prompts) }
    }

    /// Puts cells into the pool that nobody will ask for, in prompts as long as they may be.
    ///
    /// # Errors
    /// A message, when the engine refuses them.
    pub(crate) fn load_idle(&self, engine: &Engine) -> Result<(), String> {
        let longest = self.longest.min(self.tokens.len());
        let starts = (0..self.shape.n_idle).step_by(longest);
        starts.enumerate().try_for_each(|(place, start)| {
            self.load(engine, &self.prompt(FIRST_IDLE + place, longest.min(self.shape.n_idle - start)))
        })
    }

    fn load(&self, engine: &Engine, prompt: &[Token]) -> Result<(), String> {
        let saved = SavedPrefix { tokens: prompt.to_vec(), pieces: self.stretch.pieces(prompt.len()), ..SavedPrefix::default() };
        let load = Request::for_task(Prompt::from_tokens(prompt.to_vec()), Task::Load(Arc::new(saved)));
        ends(engine.submit(load, None).map_err(|error| error.to_string())?).map(drop)
    }

    /// Prompt number `place`, which has nothing in common with those before it.
    pub(crate) fn prompt(&self, place: usize, n_tokens: usize) -> Vec<Token> {
        let mut prompt = self.tokens[..n_tokens].to_vec();
        prompt[0] = self.tokens[place];
        prompt
    }
}

/// Reads a stream to its end: how each branch ended.
fn ends(stream: Completions) -> Result<Vec<Finished>, String> {
    let ends = stream.filter_map(|event| match event {
        Ok(Event::Token(_) | Event::Progress(_) | Event::PromptLogprobs(_)) => None,
        Ok(Event::Finished(end)) => Some(Ok(end)),
        Err(error) => Some(Err(error.to_string())),
    });
    ends.collect()
}

fn number(n: usize) -> u32 {
    u32::try_from(n).expect("the bench asks for few tokens")
}
