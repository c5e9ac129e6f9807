//! One model on all sides of a comparison, with the settings of all its measurements.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use weft::config::{CacheRam, EnabledKernels, EngineConfig, FlashAttention, KernelChoice};
use weft::llama::{self, Model};

use super::bare::BareContext;
use super::bare_model::{self, BareModel, WeightLayout};
use super::engine::{self, EngineSide};
use super::models;
use super::options::Options;
use super::peaks::Machine;
use super::roofline::Work;
use super::setup::{Cells, DEFAULT_ROWS, Flash, Setup, Threads};
use super::shape::{Prompts, Shape};
use super::sides::{Bare, Side};
use super::stretch::Stretch;

/// Slots of the engine in every measurement, so that all measure one configuration.
const N_SLOTS: u32 = 32;

/// Headroom of the engine per sequence, in cells, so that it never evicts during a run.
const SPARE_CELLS: usize = 64;

/// Tokens from which prompts and steps are built.
const N_TOKENS: usize = 4_096;

/// The model, loaded once for the engine and once or twice for the bare loop.
pub(crate) struct Pair<'a> {
    model: Arc<Model>,
    /// The model in its on-disk layout.
    pub(crate) bare: BareModel,
    /// The model in llama.cpp's own layout, if that differs from the on-disk layout.
    repacked: Option<BareModel>,
    pub(crate) work: Work,
    pub(crate) machine: &'a Machine,
    /// Threads of the bare loop.
    threads: Threads,
    /// Configured threads and flash attention of the engine.
    n_threads: Option<u32>,
    flash_attention: FlashAttention,
    kernels: KernelChoice,
    n_ctx_train: usize,
    cell_bytes: u64,
    /// The same tokens in every run; none of them is special.
    pub(crate) tokens: Vec<i32>,
    stretches: RefCell<Vec<Rc<Stretch>>>,
}

impl<'a> Pair<'a> {
    /// Loads the model.
    ///
    /// # Errors
    /// A message, if llama.cpp rejects the file.
    pub(crate) fn load(path: &Path, options: &Options, threads: Threads, machine: &'a Machine) -> Result<Self, String> {
        let model = models::load(path, options.kernels)?;
        let bare = BareModel::load(path, WeightLayout::AsStored)?;
        let repacked = bare_model::is_repacked(path)?.then(|| BareModel::load(path, WeightLayout::Repacked)).transpose()?;
        let defaults = EngineConfig::default();
        let cell_bytes = model.kv_bytes_per_token(defaults.type_k, defaults.type_v);
        let work = Work::of(&bare, cell_bytes);
        // In the vocabularies used here, special tokens and byte pieces come first.
        let n_first = 300;
        let n_usual = bare.n_vocab().saturating_sub(n_first).max(1);
        let token = |index: usize| {
            let index = u32::try_from(index).expect("there are few");
            (n_first + index.wrapping_mul(2_654_435_761) % n_usual).cast_signed()
        };
        Ok(Self {
            n_ctx_train: model.n_ctx_train() as usize,
            model,
            bare,
            repacked,
            work,
            machine,
            threads,
            n_threads: options.n_threads,
            flash_attention: options.flash_attention,
            kernels: options.kernels,
            cell_bytes,
            tokens: (0..N_TOKENS).map(token).collect(),
            stretches: RefCell::default(),
        })
    }

    /// Limits ascending `lengths` to seven eighths of the model's context, without duplicates.
    pub(crate) fn lengths(&self, lengths: &[usize]) -> Vec<usize> {
        let mut lengths: Vec<usize> = lengths.iter().map(|&n| n.min(self.longest())).collect();
        lengths.dedup();
        lengths
    }

    /// Returns all sides of this model: llama.cpp's own, then ours.
    pub(crate) fn sides(&self, usable: EnabledKernels) -> Vec<Side> {
        let repacked = self.repacked.iter().flat_map(|_| Bare::of_llama_cpp(WeightLayout::Repacked));
        let bare = Bare::of_llama_cpp(WeightLayout::AsStored)
            .into_iter()
            .chain(repacked)
            .chain((usable != EnabledKernels::NONE).then(|| Bare::with_our_kernels(usable)));
        bare.map(Side::Bare).chain([Side::Engine]).collect()
    }

    /// Returns the maximum prompt length, in tokens.
    pub(crate) fn longest(&self) -> usize {
        self.n_ctx_train / 8 * 7
    }

    /// Returns the bytes of a cell's K and V.
    pub(crate) fn cell_bytes(&self) -> u64 {
        self.cell_bytes
    }

    /// Returns the engine's side, with cells for `n_steps` steps of every sequence.
    ///
    /// # Errors
    /// A message, if the prompt's state cannot be computed.
    pub(crate) fn engine_side(&self, shape: Shape, n_steps: usize) -> Result<EngineSide, String> {
        // The last token of a cached prompt is computed again, in a cell of its sequence.
        let n_each = 1 + n_steps + 1 + engine::HEAD_START + SPARE_CELLS;
        let n_cells = shape.n_cells() + shape.n_idle + shape.n_sequences * n_each;
        self.empty_engine_side(shape, n_cells, CacheRam::Bytes(0))
    }

    /// Returns the engine's side with a host cache, and cells for streams of the maximum length plus `n_idle` idle cells, even
    /// if there are none.
    ///
    /// # Errors
    /// Errors of [`Pair::engine_side`].
    pub(crate) fn storing_engine_side(&self, shape: Shape, n_idle: usize) -> Result<EngineSide, String> {
        let n_cells = n_idle + shape.n_sequences * (self.n_ctx_train + SPARE_CELLS);
        self.empty_engine_side(shape, n_cells, CacheRam::Default)
    }

    /// Returns the engine's side for consecutive prompts of these lengths: with a host cache, so that one is offloaded before
    /// the next arrives, unless idle cells must stay.
    ///
    /// # Errors
    /// A message, if the configuration is invalid, or if the idle state cannot be computed.
    pub(crate) fn prefill_side(&self, lengths: &[usize], n_idle: usize) -> Result<EngineSide, String> {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let shape = Shape { n_idle, ..Shape::new(2, longest, Prompts::Own) };
        let cache_ram = if n_idle == 0 { CacheRam::Default } else { CacheRam::Bytes(0) };
        self.empty_engine_side(shape, shape.n_cells() + n_idle + engine::N_WARMUP + 2 * SPARE_CELLS, cache_ram)
    }

    fn empty_engine_side(&self, shape: Shape, n_cells: usize, cache_ram: CacheRam) -> Result<EngineSide, String> {
        let config = EngineConfig {
            n_threads: self.n_threads,
            flash_attention: self.flash_attention,
            kernels: self.kernels,
            cache_ram,
            ..engine::config(N_SLOTS, n_cells)
        };
        let config = llama::resolve(&self.model, &config, None).map_err(|error| error.to_string())?;
        let stretch = self.stretch(engine::flash(&config))?;
        let (model, tokens) = (Arc::clone(&self.model), self.tokens.clone());
        Ok(EngineSide { model, config, shape, stretch, longest: self.longest(), tokens })
    }

    /// Returns a bare loop's context with the cells of `shape`, and cells for `n_more` tokens of each sequence; decodes have
    /// `n_rows` rows.
    ///
    /// # Errors
    /// A message, if llama.cpp fails.
    pub(crate) fn bare_side(&self, bare: Bare, shape: Shape, n_more: usize, n_rows: usize) -> Result<BareContext<'_>, String> {
        let Bare { weights, flash, cells, used } = bare;
        let (n_sequences, n_cells) = match cells {
            // Idle cells belong to one more sequence.
            Cells::Unified => (shape.n_sequences + 1, shape.n_cells() + shape.n_idle + shape.n_sequences * n_more),
            Cells::PerSequence => (shape.n_sequences, shape.n_sequences * (shape.n_tokens + n_more).next_multiple_of(256)),
        };
        let n_rows = u32::try_from(n_rows).unwrap_or(DEFAULT_ROWS).min(DEFAULT_ROWS);
        let setup = Setup { cells, used, n_rows, n_batch: n_rows, ..Setup::unified(flash, n_sequences, n_cells) };
        let mut context = BareContext::new(self.bare_model(weights), &setup, self.threads)?;
        context.fill(shape, &*self.stretch(flash)?)?;
        Ok(context)
    }

    fn bare_model(&self, weights: WeightLayout) -> &BareModel {
        match weights {
            WeightLayout::AsStored => &self.bare,
            WeightLayout::Repacked => self.repacked.as_ref().unwrap_or(&self.bare),
        }
    }

    /// Returns a bare loop with the configuration and cells of this engine.
    ///
    /// # Errors
    /// A message, if llama.cpp fails.
    pub(crate) fn bare_side_like(&self, engine: &EngineSide) -> Result<BareContext<'_>, String> {
        let flash = engine::flash(&engine.config);
        let setup = Setup::of(&engine.config.limits, flash, engine.used());
        // Weights are in the on-disk layout for our products, and otherwise in llama.cpp's.
        let weights = if engine.used().products { WeightLayout::AsStored } else { WeightLayout::Repacked };
        let mut context = BareContext::new(self.bare_model(weights), &setup, self.threads)?;
        context.fill(engine.shape, &*self.stretch(flash)?)?;
        Ok(context)
    }

    /// Returns the saved prompt for this attention; computed on first use.
    fn stretch(&self, flash: Flash) -> Result<Rc<Stretch>, String> {
        let computed = self.stretches.borrow().iter().find(|stretch| stretch.flash == flash).map(Rc::clone);
        if let Some(stretch) = computed {
            return Ok(stretch);
        }
        let stretch = Rc::new(Stretch::compute(&self.bare, flash, self.threads, &self.tokens)?);
        self.stretches.borrow_mut().push(Rc::clone(&stretch));
        Ok(stretch)
    }
}
