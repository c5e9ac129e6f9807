//! Environment of all parts of the benchmark: a model, new engines, new prompts, and the duration of measurements.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft::config::{CacheRam, EngineConfig, FlashAttention, KernelChoice};
use weft::engine::Engine;
use weft::llama::{self, Model};
use weft::request::{Prompt, Request, SamplingParams, Token};

use super::watch::Watch;
use crate::support::models;
use crate::support::options::Options;

/// Cells of the device cache, unless a part needs a small one.
pub(crate) const N_CELLS: u32 = 32_768;

/// A round of at least this duration is not repeated, whatever the minimum number of rounds.
const LONG_ROUND: Duration = Duration::from_secs(60);

/// Duration of measurements; work that takes longer is measured in fewer rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    /// Time after which a part of the benchmark starts no further round.
    pub(crate) part: Duration,
    /// Minimum number of rounds for the tokens per second of running streams.
    pub(crate) min_rounds: usize,
    /// Maximum number of rounds.
    pub(crate) max_rounds: usize,
}

/// Amounts of work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Tokens of a shared prompt.
    pub(crate) n_shared: usize,
    /// Tokens of each of its branches.
    pub(crate) n_branch: u32,
    /// Number of requests that arrive together.
    pub(crate) n_requests: usize,
    /// Tokens of a prompt that arrives while streams are running.
    pub(crate) n_long: usize,
    /// Tokens of each stream that runs with idle prefixes in the cache.
    pub(crate) n_stream: usize,
    /// Number of idle prefixes; fewer than sequence ids, so that all of them can stay in the device cache if there is no host
    /// cache.
    pub(crate) n_idle: usize,
    /// Tokens of each idle prefix.
    pub(crate) n_idle_each: usize,
    /// Number of requests for eight branches each, all of which are continued.
    pub(crate) n_fans: usize,
}

/// One model, with the settings of all measurements.
pub(crate) struct Lab {
    model: Arc<Model>,
    n_threads: Option<u32>,
    flash_attention: FlashAttention,
    kernels: KernelChoice,
    pub(crate) effort: Effort,
    pub(crate) sizes: Sizes,
    n_generated: Cell<u32>,
}

impl Lab {
    /// Loads the model; prompts are truncated to seven eighths of its context.
    ///
    /// # Errors
    /// A message, if llama.cpp rejects the file.
    pub(crate) fn new(path: &Path, options: &Options, effort: Effort, sizes: Sizes) -> Result<Self, String> {
        let model = models::load(path, options.kernels)?;
        let &Options { n_threads, flash_attention, kernels, .. } = options;
        let longest = model.n_ctx_train() as usize / 8 * 7;
        let [n_shared, n_long] = [sizes.n_shared, sizes.n_long].map(|n| n.min(longest));
        let sizes = Sizes { n_shared, n_long, ..sizes };
        Ok(Self { model, n_threads, flash_attention, kernels, effort, sizes, n_generated: Cell::new(0) })
    }

    /// Starts an engine with nothing cached, so that measurements are independent.
    ///
    /// # Errors
    /// A message, if it does not start.
    pub(crate) fn engine(&self, n_slots: u32, n_cells: u32, cache_ram: CacheRam) -> Result<Engine, String> {
        let config = EngineConfig {
            n_slots: Some(n_slots),
            n_ctx: Some(n_cells),
            kv_unified: Some(true),
            n_threads: self.n_threads,
            n_threads_batch: self.n_threads,
            flash_attention: self.flash_attention,
            kernels: self.kernels,
            cache_ram,
            ..EngineConfig::default()
        };
        llama::start(&self.model, &config).map_err(|error| error.to_string())
    }

    /// Measures the prefill tokens per second of an engine that has measured the cost of a row.
    ///
    /// # Errors
    /// A message, if the engine fails.
    pub(crate) fn prefill_speed(&self) -> Result<f64, String> {
        let engine = self.engine(1, 1_024, CacheRam::Bytes(0))?;
        let mut watch = Watch::new(&engine);
        for n_tokens in [128, 256] {
            watch.submit(request(self.fresh(n_tokens), 1, 1))?;
            watch.read_all()?;
        }
        let end = watch.streams[1].branches[0].end.as_ref().ok_or("a prompt was not computed")?;
        Ok(f64::from(end.usage.n_prompt_computed) / (end.usage.prompt_ms / 1e3))
    }

    /// Returns `n_tokens` tokens that form a new prompt, without special tokens.
    pub(crate) fn fresh(&self, n_tokens: usize) -> Vec<Token> {
        (0..n_tokens).map(|_| self.fresh_token()).collect()
    }

    /// Returns `prompt` with another first token: as long and as expensive, but without a common prefix with any other.
    pub(crate) fn unshared(&self, prompt: &[Token]) -> Vec<Token> {
        let mut prompt = prompt.to_vec();
        let old = prompt[0];
        while prompt[0] == old {
            prompt[0] = self.fresh_token();
        }
        prompt
    }

    fn fresh_token(&self) -> Token {
        // In the vocabularies used here, special tokens and byte pieces come first.
        let n_first = 300;
        let n_vocab = u32::try_from(self.model.n_vocab()).expect("token ids are 32-bit numbers");
        let index = self.n_generated.get();
        self.n_generated.set(index.wrapping_add(1));
        // The period of the products is 2³², so that no run of tokens repeats.
        (n_first + (index.wrapping_mul(2_654_435_761) >> 4) % n_vocab.saturating_sub(n_first).max(1)).cast_signed()
    }

    /// Runs rounds until the time is over: at least `min_rounds` unless they are long. Each receives its number.
    ///
    /// # Errors
    /// Error of a round.
    pub(crate) fn rounds(&self, min_rounds: usize, mut round: impl FnMut(usize) -> Result<(), String>) -> Result<usize, String> {
        let started = Instant::now();
        for n in 0..self.effort.max_rounds {
            // One more round must be expected to end in time.
            let next_ends = started.elapsed().mul_f64((n + 1) as f64 / n.max(1) as f64);
            let is_long = n > 0 && started.elapsed().div_f64(n as f64) > LONG_ROUND;
            if n >= min_rounds && next_ends > self.effort.part || is_long {
                return Ok(n);
            }
            round(n)?;
        }
        Ok(self.effort.max_rounds)
    }
}

/// Returns a request for `n` branches of exactly `n_tokens` tokens each.
pub(crate) fn request(prompt: Vec<Token>, n: u32, n_tokens: u32) -> Request {
    let mut request = Request::new(Prompt::from_tokens(prompt), 0);
    request.n = n;
    request.max_tokens = Some(n_tokens);
    request.sampling = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
    request
}
