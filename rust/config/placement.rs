//! Devices in use, and the distribution of weights over them and over memories.

use super::{TensorOverride, named_variants};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Placement {
    /// Devices in addition to the CPU, by ggml's names (`CUDA0`); `None` selects all, an empty list disables all.
    pub devices: Option<Vec<String>>,
    pub split: Split,
    /// The GPU, counted from 0, that holds the whole model without a split, and small tensors with a split by rows.
    pub main_gpu: u32,
    /// Proportion of each GPU; empty leaves the proportions to llama.cpp.
    pub tensor_split: Vec<f32>,
    pub numa: Option<Numa>,
    /// The first matching pattern wins.
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
    pub fn names_gpus(&self) -> bool {
        self.split != Split::default() || self.main_gpu != 0 || !self.tensor_split.is_empty()
    }

    /// Returns the overrides in order of precedence: the user's patterns, then the numbers of layers.
    pub fn tensor_overrides(&self) -> Vec<TensorOverride> {
        let mut overrides = self.tensors.clone();
        overrides.extend(self.cpu_moe.then(TensorOverride::experts));
        overrides.extend((self.n_cpu_moe > 0).then(|| TensorOverride::experts_of(self.n_cpu_moe)));
        overrides.extend((self.n_cpu_ffn > 0).then(|| TensorOverride::feed_forward_of(self.n_cpu_ffn)));
        overrides
    }

    /// Returns true if tensors of layers that a GPU computes may be in host memory.
    pub fn moves_tensors(&self) -> bool {
        !self.tensors.is_empty() || self.cpu_moe || self.n_cpu_moe > 0 || self.n_cpu_ffn > 0
    }
}

named_variants! {
    #[derive(Default)]
    pub enum Split {
        #[default]
        Layer = "layer",
        Row = "row",
        /// No split: one GPU holds everything.
        None = "none",
    }
}

named_variants! {
    /// Binding of threads to NUMA nodes.
    pub enum Numa {
        /// Evenly over all nodes.
        Distribute = "distribute",
        /// All to the node on which the process started.
        Isolate = "isolate",
        /// As set by `numactl`, which started the process.
        Numactl = "numactl",
    }
}
