//! Settings of the model that drafts for another one.

use std::path::PathBuf;

use super::{KvType, Placement, named_variants, reject_value};
use crate::error::Result;

named_variants! {
    /// Types of draft models, by their input and method. The names are llama-server's.
    pub enum DraftKind {
        /// A language model with the same vocabulary.
        Simple = "draft-simple",
        /// A layer on hidden states of the model.
        Eagle3 = "draft-eagle3",
        /// Layers that predict further tokens (MTP), in the model's own file or in another one.
        Mtp = "draft-mtp",
        /// Layers that denoise a block of tokens.
        DFlash = "draft-dflash",
        /// As `DFlash`, with dependent tokens.
        DSpark = "draft-dspark",
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct DraftModelConfig {
    /// The GGUF file; `None` for layers in the model's own file.
    pub path: Option<PathBuf>,
    /// `None` follows from the file.
    pub kind: Option<DraftKind>,
    /// As of [`ModelConfig`](super::ModelConfig).
    pub n_gpu_layers: Option<u32>,
    pub placement: Placement,
    pub type_k: KvType,
    pub type_v: KvType,
    /// Minimum probability of a drafted token, from 0 to 1.
    pub min_p: f32,
}

impl Default for DraftModelConfig {
    fn default() -> Self {
        Self {
            path: None,
            kind: None,
            n_gpu_layers: None,
            placement: Placement::default(),
            type_k: KvType::F16,
            type_v: KvType::F16,
            min_p: 0.0,
        }
    }
}

impl DraftModelConfig {
    /// # Errors
    /// For a probability out of range.
    pub fn validate(&self) -> Result<()> {
        match self.min_p {
            p if (0.0..=1.0).contains(&p) => Ok(()),
            p => reject_value("draft_min_p", p, "0 to 1"),
        }
    }
}
