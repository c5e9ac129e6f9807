//! Placement of a model's weights.

use super::{Named, TensorOverride};

/// Devices in use, and the distribution of weights over them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Placement {
    /// Devices in addition to the CPU, by ggml's names (`CUDA0`); `None` selects all, an empty list disables all.
    pub devices: Option<Vec<String>>,
    pub split: Split,
    /// The GPU, counted from 0, that holds the whole model without a split, and small tensors with a split by rows.
    pub main_gpu: u32,
    /// Proportion of each GPU; empty leaves the proportions to llama.cpp.
    pub tensor_split: Vec<f32>,
    /// Binding of threads to NUMA nodes, if any.
    pub numa: Option<Numa>,
    /// Placement of single tensors; the first matching pattern wins.
    pub tensors: Vec<TensorOverride>,
    /// Keeps the experts of every layer in host memory.
    pub cpu_moe: bool,
    /// Number of layers, from the first on, whose experts stay in host memory.
    pub n_cpu_moe: u32,
    /// Number of layers, from the first on, whose dense feed-forward weights stay in host memory.
    pub n_cpu_ffn: u32,
    /// Keeps the CPU's weights out of pinned host memory, so that llama.cpp may rearrange them.
    pub no_host: bool,
}

impl Placement {
    /// Returns whether it specifies the contents of GPUs.
    pub fn names_gpus(&self) -> bool {
        self.split != Split::default() || self.main_gpu != 0 || !self.tensor_split.is_empty()
    }

    /// Returns the placements of single tensors in order of precedence: the user's patterns, then the numbers of layers.
    pub fn tensor_overrides(&self) -> Vec<TensorOverride> {
        let mut overrides = self.tensors.clone();
        overrides.extend(self.cpu_moe.then(TensorOverride::experts));
        overrides.extend((self.n_cpu_moe > 0).then(|| TensorOverride::experts_of(self.n_cpu_moe)));
        overrides.extend((self.n_cpu_ffn > 0).then(|| TensorOverride::feed_forward_of(self.n_cpu_ffn)));
        overrides
    }

    /// Returns whether tensors of layers that a GPU computes may be in host memory.
    pub fn moves_tensors(&self) -> bool {
        !self.tensors.is_empty() || self.cpu_moe || self.n_cpu_moe > 0 || self.n_cpu_ffn > 0
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Split {
    #[default]
    Layer,
    Row,
    /// No split: one GPU holds everything.
    None,
}

impl Named for Split {
    const NAMES: &'static [(&'static str, Self)] = &[("layer", Self::Layer), ("row", Self::Row), ("none", Self::None)];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numa {
    /// Evenly over all nodes.
    Distribute,
    /// All to the node on which the process started.
    Isolate,
    /// As set by `numactl`, which started the process.
    Numactl,
}

impl Named for Numa {
    const NAMES: &'static [(&'static str, Self)] =
        &[("distribute", Self::Distribute), ("isolate", Self::Isolate), ("numactl", Self::Numactl)];
}
