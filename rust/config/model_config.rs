//! The user's settings of a model.

use std::path::PathBuf;

use super::{DraftModelConfig, KernelChoice, KvOverride, Placement, reject_value};
use crate::error::Result;

#[derive(Debug, Clone, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct ModelConfig {
    /// The GGUF file; of a split model, its first part.
    pub path: PathBuf,
    /// Number of layers on the GPU; `None` offloads all.
    pub n_gpu_layers: Option<u32>,
    /// Maps the file instead of reading it.
    pub use_mmap: bool,
    /// Keeps the weights from being swapped out.
    pub use_mlock: bool,
    /// Bypasses the operating system's page cache where possible; `use_mmap` and `use_mlock` then have no effect.
    pub use_direct_io: bool,
    pub check_tensors: bool,
    pub placement: Placement,
    pub kernels: KernelChoice,
    /// Rearranges weights into the layout of llama.cpp's own products; `None` leaves the choice to
    /// [`ModelConfig::choose_layout`].
    pub repack: Option<bool>,
    /// Adapters to load with the model, at most [`MAX_ADAPTERS`]; an adapter's index here is its id.
    pub adapters: Vec<AdapterConfig>,
    /// Replace values of the file's metadata; the last value of a key wins.
    pub overrides: Vec<KvOverride>,
    pub media: Option<MediaConfig>,
    /// Loads layers that predict further tokens (MTP).
    pub load_mtp: bool,
    pub draft: Option<DraftModelConfig>,
    /// The model drafts for another one, on which it may depend.
    pub is_draft: bool,
    pub scope: LoadScope,
}

/// The part of a model file that is loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LoadScope {
    #[default]
    All,
    /// No weights: the sizes of all buffers are known, and the model can tokenize but not generate.
    Sizes,
    /// Only the vocabulary: the model can tokenize but not generate.
    Vocabulary,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaConfig {
    pub path: PathBuf,
    /// Uses a GPU if there is one.
    pub offload: bool,
    /// Minimum tokens of an image, for a model with dynamic resolution; `None` is the file's value.
    pub image_min_tokens: Option<u32>,
    pub image_max_tokens: Option<u32>,
}

/// Maximum of [`MediaConfig::image_max_tokens`]. llama.cpp computes the number of pixels in 32 bits.
pub const MAX_IMAGE_TOKENS: u32 = 65_536;

impl MediaConfig {
    /// # Errors
    /// For the first number that is out of range.
    pub fn validate(&self) -> Result<()> {
        let Self { image_min_tokens: min, image_max_tokens: max, .. } = *self;
        for (param, n) in [("image_min_tokens", min), ("image_max_tokens", max)] {
            if let Some(n) = n.filter(|n| !(1..=MAX_IMAGE_TOKENS).contains(n)) {
                return reject_value(param, n, format_args!("1 to {MAX_IMAGE_TOKENS}"));
            }
        }
        match min.zip(max).filter(|(min, max)| min > max) {
            Some((min, max)) => reject_value("image_min_tokens", min, format_args!("at most image_max_tokens, {max}")),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct AdapterConfig {
    pub path: PathBuf,
    /// Factor of the adapter's change of the weights; 0 disables it.
    pub scale: f32,
}

impl ModelConfig {
    /// Creates the configuration of the file at `path`: mapped, on all available devices.
    pub fn at(path: PathBuf) -> Self {
        Self { path, use_mmap: true, ..Self::default() }
    }
}
