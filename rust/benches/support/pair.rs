//! One model on both sides of a comparison, and what is the same in all of its measurements.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weft::config::{CacheRam, Choice, EngineConfig, FlashAttention, Limits, Tuned};
use weft::llama::{Model, Settled, tune};

use super::bare::{BareContext, Flash, Threads};
use super::bare_model::BareModel;
use super::engine::{self, EngineSide};
use super::models::{self, Candidate};
use super::options::Options;
use super::roofline::{Machine, Work};
use super::shape::{Prompts, Shape};
use super::stretch::Stretch;

/// Slots of the engine in every measurement, so that one configuration is measured throughout.
const N_SLOTS: u32 = 32;

/// Cells per sequence that the engine keeps free beyond its tokens, so that it never has to make room in mid-run.
const SPARE_CELLS: usize = 64;

/// Tokens that prompts and steps are made of.
const N_TOKENS: usize = 4_096;

/// The model, loaded once for the engine and once for the bare loop.
pub(crate) struct Pair<'a> {
    model: Arc<Model>,
    pub(crate) bare: BareModel,
    pub(crate) work: Work,
    pub(crate) machine: &'a Machine,
    /// Of the bare loop.
    threads: Threads,
    /// What the engine is told of threads and of flash attention.
    n_threads: Option<u32>,
    flash_attention: FlashAttention,
    n_ctx_train: usize,
    /// The same ones in every run; none of them is special.
    pub(crate) tokens: Vec<i32>,
    stretches: RefCell<Vec<Rc<Stretch>>>,
}

impl<'a> Pair<'a> {
    /// Loads the model twice.
    ///
    /// # Errors
    /// A message, when llama.cpp refuses the file.
    pub(crate) fn load(candidate: &Candidate, options: &Options, threads: Threads, machine: &'a Machine) -> Result<Self, String> {
        let model = models::load(&candidate.path)?;
        let bare = BareModel::load(&candidate.path)?;
        let defaults = EngineConfig::default();
        let facts = model.facts(defaults.type_k, defaults.type_v);
        let work = Work::of(&bare, facts.kv_bytes_per_token);
        // In the vocabularies measured here, the special and the byte pieces come first.
        let n_first = 300;
        let n_usual = bare.n_vocab().saturating_sub(n_first).max(1);
        let token = |index: usize| {
            let index = u32::try_from(index).expect("there are few");
            (n_first + index.wrapping_mul(2_654_435_761) % n_usual).cast_signed()
        };
        Ok(Self {
            model,
            bare,
            work,
            machine,
            threads,
            n_threads: options.n_threads,
            flash_attention: options.flash_attention,
            n_ctx_train: facts.n_ctx_train as usize,
            tokens: (0..N_TOKENS).map(token).collect(),
            stretches: RefCell::default(),
        })
    }

    /// The rising `lengths`, none of them longer than seven eighths of the model's context, and none twice.
    pub(crate) fn lengths(&self, lengths: &[usize]) -> Vec<usize> {
        let mut lengths: Vec<usize> = lengths.iter().map(|&n| n.min(self.n_ctx_train / 8 * 7)).collect();
        lengths.dedup();
        lengths
    }

    /// What is measured to be fastest here; `None` where the rule's choice is.
    ///
    /// # Errors
    /// A message, when the model cannot compute.
    pub(crate) fn tune(&self, budget: Duration) -> Result<Option<Tuned>, String> {
        let config = self.config(None, 2_048);
        let tuned = tune::measure(&self.model, &config, budget, |_| true).map_err(|error| error.to_string())?;
        let tuned = tuned.expect("nobody stops it").best;
        let [by_rule, by_measurement] = [None, Some(tuned)].map(|tuned| {
            let settled = Settled::new(&self.model, &EngineConfig { tuned, ..config.clone() });
            settled.map(|settled| settled.choice).map_err(|error| error.to_string())
        });
        let (by_rule, by_measurement) = (by_rule?, by_measurement?);
        println!("  chosen by rule  {}", by_rule.summary);
        println!("  by tuning       {}", by_measurement.summary);
        let how = |choice: &Choice| (choice.flash_attention, choice.n_threads, choice.n_threads_batch);
        Ok((how(&by_rule) != how(&by_measurement)).then_some(tuned))
    }

    /// The engine's side, with room for `n_steps` steps of every sequence.
    ///
    /// # Errors
    /// A message, when the prompt's state cannot be computed.
    pub(crate) fn engine_side(&self, shape: Shape, n_steps: usize, tuned: Option<Tuned>) -> Result<EngineSide, String> {
        // The last token of a cached prompt is computed again, in a cell of its own.
        let n_each = 1 + n_steps + 1 + engine::HEAD_START + SPARE_CELLS;
        let mut side = self.empty_engine_side(shape, shape.n_cells() + shape.n_sequences * n_each, tuned)?;
        side.pieces = self.stretch(side.flash(), &side.settled.limits, shape.n_tokens)?.pieces(shape.n_tokens);
        Ok(side)
    }

    /// The engine's side for prompts that it computes, two of them at once in the pool.
    ///
    /// # Errors
    /// A message, when the engine refuses the configuration.
    pub(crate) fn prefill_side(&self, n_tokens: usize) -> Result<EngineSide, String> {
        let shape = Shape { n_sequences: 2, n_tokens, prompts: Prompts::Own };
        let mut side = self.empty_engine_side(shape, shape.n_cells() + shape.n_sequences * SPARE_CELLS, None)?;
        // With its store, so that one prompt leaves before the next one is computed.
        side.config.cache_ram = CacheRam::Default;
        side.settled = Settled::new(&self.model, &side.config).map_err(|error| error.to_string())?;
        Ok(side)
    }

    fn empty_engine_side(&self, shape: Shape, n_cells: usize, tuned: Option<Tuned>) -> Result<EngineSide, String> {
        let config = self.config(tuned, n_cells);
        let settled = Settled::new(&self.model, &config).map_err(|error| error.to_string())?;
        let (model, tokens) = (Arc::clone(&self.model), self.tokens.clone());
        Ok(EngineSide { model, config, settled, shape, pieces: Vec::new(), tokens })
    }

    /// The engine's: what is not given here it chooses itself.
    fn config(&self, tuned: Option<Tuned>, n_cells: usize) -> EngineConfig {
        EngineConfig {
            n_threads: self.n_threads,
            flash_attention: self.flash_attention,
            tuned,
            ..engine::config(N_SLOTS, n_cells)
        }
    }

    /// The bare loop's context, empty.
    ///
    /// # Errors
    /// A message, when llama.cpp cannot make it.
    pub(crate) fn context(&self, limits: &Limits, flash: Flash) -> Result<BareContext<'_>, String> {
        BareContext::new(&self.bare, limits, flash, self.threads)
    }

    /// The bare loop's context, with the cells that `shape` says.
    ///
    /// # Errors
    /// A message, when llama.cpp fails.
    pub(crate) fn filled(&self, limits: &Limits, flash: Flash, shape: Shape) -> Result<BareContext<'_>, String> {
        let stretch = self.stretch(flash, limits, shape.n_tokens)?;
        let mut context = self.context(limits, flash)?;
        context.fill(shape, &stretch)?;
        Ok(context)
    }

    /// Computed when it is wanted for the first time.
    fn stretch(&self, flash: Flash, limits: &Limits, n_prompt: usize) -> Result<Rc<Stretch>, String> {
        let known = self.stretches.borrow().iter().find(|stretch| stretch.fits(flash, n_prompt)).map(Rc::clone);
        if let Some(stretch) = known {
            return Ok(stretch);
        }
        let prompt = &self.tokens[..n_prompt];
        let stretch = Rc::new(Stretch::compute(&self.bare, limits, (flash, self.threads), prompt)?);
        self.stretches.borrow_mut().push(Rc::clone(&stretch));
        Ok(stretch)
    }
}
