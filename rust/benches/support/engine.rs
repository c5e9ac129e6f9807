//! The engine's side of a comparison: the same steps, requested through the public API.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weft::config::{CacheRam, EnabledKernels, EngineConfig, FlashAttention, ResolvedConfig};
use weft::engine::{Completions, Engine, ReadyEvents};
use weft::llama::{self, Model};
use weft::request::{Event, FinishReason, Finished, Prompt, Request, SamplingParams, SavedPrefix, Task, Token};

use super::setup::Flash;
use super::shape::{Prompts, Shape};
use super::stretch::Stretch;

/// Tokens that sequences other than the last generate in addition to the timed ones: they start earlier, and must not end
/// earlier.
pub(crate) const HEAD_START: usize = 96;

/// Tokens of the prompt that an engine computes before the timed one.
pub(crate) const N_WARMUP: usize = 512;

/// Tokens of the shortest prompt: without the last one, which is always computed, the minimum for a cache lookup. During the
/// steps that compute a prompt, other sequences would run ahead.
const SHORTEST: usize = 17;

/// Prompts from this index on are idle.
const FIRST_IDLE: usize = 1_000;

/// Sampling of the sequences of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sampling {
    /// The most likely token.
    Greedy,
    /// The defaults of a request: top-k, top-p, min-p and temperature.
    Default,
}

/// The engine in one row of a table. Each measurement starts a new one, so that cached branches of earlier ones do not slow its
/// steps down.
pub(crate) struct EngineSide {
    pub(crate) model: Arc<Model>,
    /// Usually without a host cache, so that a loaded prompt stays in the device cache, and nothing is moved while steps are
    /// timed.
    pub(crate) config: ResolvedConfig,
    pub(crate) shape: Shape,
    /// The state that all prompts are built from.
    pub(crate) stretch: Rc<Stretch>,
    /// Maximum prompt length that the model supports, in tokens.
    pub(crate) longest: usize,
    /// At least as many tokens as in a prompt.
    pub(crate) tokens: Vec<Token>,
}

/// Returns the common configuration of the engine in these benchmarks.
pub(crate) fn config(n_slots: u32, n_cells: usize) -> EngineConfig {
    EngineConfig {
        n_slots: Some(n_slots),
        n_ctx: Some(u32::try_from(n_cells.next_multiple_of(256)).expect("the bench needs few cells")),
        kv_unified: Some(true),
        cache_ram: CacheRam::Bytes(0),
        ..EngineConfig::default()
    }
}

/// Returns the attention of an engine with this configuration.
pub(crate) fn flash(config: &ResolvedConfig) -> Flash {
    match config.flash_attention {
        FlashAttention::Off => Flash::Off,
        // llama.cpp's automatic choice enables flash attention if the kernels support it, which all CPU kernels do.
        FlashAttention::On | FlashAttention::Auto => Flash::On,
    }
}

impl EngineSide {
    /// Times `n_steps` decodes of all sequences, from the first token of the last of them to its last.
    ///
    /// The time is the engine's own: the clock of a reader would start late while a busy machine makes the reader wait. It is
    /// measured on the sequence that starts last, when all one-time work (prefill, forks) is over and the others are running;
    /// in every branch of one prompt, the same decodes lie between the first token and the last.
    ///
    /// # Errors
    /// A message, if the engine fails, or if a sequence did not run exactly its steps.
    pub(crate) fn time_steps(&self, n_steps: usize, sampling: Sampling) -> Result<Duration, String> {
        let engine = self.start()?;
        let prompts = self.load_prompts(&engine)?;
        let n_timed = n_steps + 1;
        let branches = match self.shape.prompts {
            Prompts::Shared => self.shape.n_sequences,
            Prompts::Own => 1,
        };
        let n_last = prompts.len() - 1;
        let submit = |(index, prompt): (usize, Vec<Token>)| {
            let mut request = Request::new(Prompt::from_tokens(prompt), 0);
            request.n = number(branches);
            request.max_tokens = Some(number(if index == n_last { n_timed } else { n_timed + HEAD_START }));
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
            let ReadyEvents::Events(events) = stream.try_events(usize::MAX).map_err(|error| error.to_string())? else {
                return Err("a sequence had not begun when others were timed".to_owned());
            };
            if events.len() < n_timed || events.iter().any(|event| matches!(event, Event::Finished(_))) {
                return Err(format!("a sequence ran for {} steps, not beside all of the {n_steps} timed ones", events.len()));
            }
        }
        let end = ends.iter().find(|end| end.index as usize + 1 == branches).ok_or("the stream ended before its last branch")?;
        Ok(Duration::from_secs_f64(end.usage.predicted_ms / 1e3))
    }

    /// Times the prefill of a prompt in an engine that has computed one before: it must have measured the cost of a row before
    /// it uses the maximum chunk size.
    ///
    /// # Errors
    /// A message, if the engine fails.
    pub(crate) fn time_prefill(&self, n_tokens: usize) -> Result<Duration, String> {
        let engine = self.start()?;
        self.load_idle(&engine)?;
        let mut last = None;
        for (index, n_tokens) in [n_tokens.min(N_WARMUP), n_tokens].into_iter().enumerate() {
            let mut request = Request::new(Prompt::from_tokens(self.prompt(index, n_tokens)), 0);
            request.max_tokens = Some(1);
            let stream = engine.submit(request, None).map_err(|error| error.to_string())?;
            let end = ends(stream)?.pop().ok_or("a stream ended with nothing")?;
            if end.usage.n_prompt_computed as usize != n_tokens {
                return Err(format!("of {n_tokens} tokens {} were computed", end.usage.n_prompt_computed));
            }
            last = Some(Duration::from_secs_f64(end.usage.prompt_ms / 1e3));
        }
        last.ok_or_else(|| "nothing was computed".to_owned())
    }

    /// Returns our kernels that it uses.
    pub(crate) fn used(&self) -> EnabledKernels {
        self.config.kernels
    }

    /// Starts an engine with the configuration.
    ///
    /// # Errors
    /// A message, if it does not start.
    pub(crate) fn start(&self) -> Result<Engine, String> {
        llama::start_resolved(&self.model, &self.config).map_err(|error| error.to_string())
    }

    /// Loads every prompt's cells into the device cache, after the idle ones.
    fn load_prompts(&self, engine: &Engine) -> Result<Vec<Vec<Token>>, String> {
        let Shape { n_tokens, n_idle, .. } = self.shape;
        self.load_idle(engine)?;
        let prompts: Vec<Vec<Token>> =
            (0..self.shape.n_prompts()).map(|index| self.prompt(index, n_tokens.max(SHORTEST))).collect();
        prompts.iter().try_for_each(|prompt| self.load(engine, prompt))?;
        let (n_cells, n_expected) = (engine.stats().n_cells_idle, self.shape.n_cells() + n_idle);
        if n_cells < n_expected { Err(format!("of {n_expected} tokens {n_cells} are in the pool")) } else { Ok(prompts) }
    }

    /// Loads idle cells into the device cache, in prompts of the maximum length.
    ///
    /// # Errors
    /// A message, if the engine rejects them.
    pub(crate) fn load_idle(&self, engine: &Engine) -> Result<(), String> {
        let longest = self.longest.min(self.tokens.len());
        let starts = (0..self.shape.n_idle).step_by(longest);
        starts.enumerate().try_for_each(|(index, start)| {
            self.load(engine, &self.prompt(FIRST_IDLE + index, longest.min(self.shape.n_idle - start)))
        })
    }

    fn load(&self, engine: &Engine, prompt: &[Token]) -> Result<(), String> {
        let saved = SavedPrefix { tokens: prompt.to_vec(), runs: self.stretch.runs(prompt.len()), ..SavedPrefix::default() };
        let load = Request::for_task(Prompt::from_tokens(prompt.to_vec()), Task::Load(Arc::new(saved)));
        ends(engine.submit(load, None).map_err(|error| error.to_string())?).map(drop)
    }

    /// Returns the prompt with this index, which shares no prefix with the others.
    pub(crate) fn prompt(&self, index: usize, n_tokens: usize) -> Vec<Token> {
        let mut prompt = self.tokens[..n_tokens].to_vec();
        prompt[0] = self.tokens[index];
        prompt
    }
}

/// Reads a stream to its end, and returns the end of each branch.
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
