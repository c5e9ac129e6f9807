//! Runs requests at the same time, and measures what their reader sees.

use std::sync::Arc;
use std::time::Duration;

use weft::config::{EngineConfig, KernelChoice, SpeculationConfig, SpeculationMode};
use weft::engine::{Engine, Stats};
use weft::llama::{self, Model};
use weft::request::{Request, Token};

use crate::support::options::Options;
use crate::watch::Watch;

/// Starts an engine that drafts, with our kernels.
///
/// # Errors
/// A message, if it does not start, or drafts nothing.
pub(crate) fn start(model: &Arc<Model>, options: &Options, n_slots: u32, n_ctx: u32) -> Result<Engine, String> {
    start_with(model, options, n_slots, n_ctx, SpeculationMode::Auto.into())
}

/// As [`start`], with these settings of speculative decoding.
///
/// # Errors
/// As [`start`].
pub(crate) fn start_with(
    model: &Arc<Model>,
    options: &Options,
    n_slots: u32,
    n_ctx: u32,
    speculation: SpeculationConfig,
) -> Result<Engine, String> {
    let config = EngineConfig {
        n_slots: Some(n_slots),
        n_ctx: Some(n_ctx),
        kv_unified: Some(true),
        n_threads: options.n_threads,
        n_threads_batch: options.n_threads,
        kernels: KernelChoice::Weft,
        speculation,
        ..EngineConfig::default()
    };
    let engine = llama::start(model, &config).map_err(|error| error.to_string())?;
    engine.check_speculation()?;
    Ok(engine)
}

/// Returns a request that drafts nothing.
pub(crate) fn without_drafts(mut request: Request) -> Request {
    request.speculation.max_draft = Some(0);
    request
}

/// What was measured of one run.
#[derive(Debug, Default, Clone)]
pub(crate) struct Run {
    /// Sampled tokens of each branch of each request.
    pub(crate) tokens: Vec<Vec<Token>>,
    /// Tokens per second of each branch, from its first token to its last.
    pub(crate) rates: Vec<f64>,
    /// Tokens of all branches per second, from the first token of all to the last.
    pub(crate) tokens_per_s: f64,
    pub(crate) longest_gap_ms: f64,
    pub(crate) n_drafted: u64,
    pub(crate) n_accepted: u64,
    /// Mean time of a step, in milliseconds.
    pub(crate) step_ms: f64,
    /// Mean time of choosing the rows of a step, drafts included, in milliseconds.
    pub(crate) plan_ms: f64,
    pub(crate) n_steps: u64,
    pub(crate) n_index_bytes: usize,
}

impl Run {
    /// Runs all requests at the same time.
    ///
    /// # Errors
    /// A message, if the engine fails.
    pub(crate) fn of(engine: &Engine, requests: Vec<Request>) -> Result<Self, String> {
        let before = engine.stats();
        let mut watch = Watch::new(engine);
        requests.into_iter().try_for_each(|request| watch.submit(request))?;
        watch.read_all()?;
        let branches: Vec<_> = watch.streams.iter().flat_map(|stream| &stream.branches).collect();
        let mut run = Self::default();
        let mut ends = Vec::new();
        for branch in branches {
            let end = branch.end.as_ref().ok_or("a branch has no end")?;
            let n_more = branch.tokens.len().saturating_sub(1) as f64;
            run.rates.push(n_more / (end.usage.predicted_ms / 1e3));
            let gaps = branch.times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3);
            run.longest_gap_ms = gaps.fold(run.longest_gap_ms, f64::max);
            run.n_drafted += u64::from(end.usage.n_drafted);
            run.n_accepted += u64::from(end.usage.n_draft_accepted);
            ends.extend(branch.times.first().zip(branch.times.last()));
            run.tokens.push(branch.tokens.clone());
        }
        let first = ends.iter().map(|(first, _)| **first).min().ok_or("no token was generated")?;
        let last = ends.iter().map(|(_, last)| **last).max().ok_or("no token was generated")?;
        let n_tokens: usize = run.tokens.iter().map(|tokens| tokens.len().saturating_sub(1)).sum();
        run.tokens_per_s = n_tokens as f64 / (last - first).as_secs_f64();
        run.add_steps(&before, &engine.stats());
        Ok(run)
    }

    fn add_steps(&mut self, before: &Stats, after: &Stats) {
        self.n_steps = after.n_decodes - before.n_decodes;
        let n_steps = self.n_steps.max(1) as f64;
        let ms = |of: fn(&Stats) -> Duration| of(after).saturating_sub(of(before)).as_secs_f64() * 1e3 / n_steps;
        (self.step_ms, self.plan_ms) = (ms(|stats| stats.times.sum()), ms(|stats| stats.times.plan));
        self.n_index_bytes = after.speculation.n_index_bytes;
    }

    /// Returns the share of drafted tokens that were accepted, in percent; `None` without drafts.
    pub(crate) fn acceptance(&self) -> Option<f64> {
        (self.n_drafted > 0).then(|| 100.0 * self.n_accepted as f64 / self.n_drafted as f64)
    }
}
