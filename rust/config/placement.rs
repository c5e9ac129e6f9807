//! Where a model's weights go.

use super::TensorOverride;

/// Which devices take part, and who holds what.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Placement {
    /// Devices beside the CPU that take part, by ggml's names (`CUDA0`); `None` is all there are, an empty list is none.
    pub devices: Option<Vec<String>>,
    /// What each of several GPUs holds.
    pub split: Split,
    /// The GPU that holds all where nothing is split, and small tensors where rows are; from 0.
    pub main_gpu: u32,
    /// Each GPU's share, in proportion to their sum; empty leaves the shares to llama.cpp.
    pub tensor_split: Vec<f32>,
    /// How threads are bound to the nodes of a machine whose memory is not uniform; `None` is not at all.
    pub numa: Option<Numa>,
    /// Tensors that go elsewhere than all others; of several patterns the first that matches counts.
    pub tensors: Vec<TensorOverride>,
    /// Whether experts of every layer stay in the CPU's memory.
    pub cpu_moe: bool,
    /// Layers, from the first one on, whose experts stay in the CPU's memory.
    pub n_cpu_moe: u32,
    /// Layers, from the first one on, whose dense feed-forward weights stay in the CPU's memory.
    pub n_cpu_ffn: u32,
    /// Whether weights of the CPU are kept out of memory that a GPU reads faster, so that llama.cpp may rearrange them.
    pub no_host: bool,
}

impl Placement {
    /// Whether it says what a GPU is to hold.
    #[must_use]
    pub fn names_gpus(&self) -> bool {
        self.split != Split::default() || self.main_gpu != 0 || !self.tensor_split.is_empty()
    }

    /// Where single tensors go, in the order in which that counts: as the user's patterns say, then as the numbers of layers do.
    #[must_use]
    pub fn tensor_overrides(&self) -> Vec<TensorOverride> {
        let mut overrides = self.tensors.clone();
        overrides.extend(self.cpu_moe.then(TensorOverride::experts));
        overrides.extend((self.n_cpu_moe > 0).then(|| TensorOverride::experts_of(self.n_cpu_moe)));
        overrides.extend((self.n_cpu_ffn > 0).then(|| TensorOverride::feed_forward_of(self.n_cpu_ffn)));
        overrides
    }

    /// Whether tensors of layers that a GPU computes may lie in the CPU's memory.
    #[must_use]
    pub fn moves_tensors(&self) -> bool {
        !self.tensors.is_empty() || self.cpu_moe || self.n_cpu_moe > 0 || self.n_cpu_ffn > 0
    }
}

/// What each of several GPUs holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Split {
    /// Whole layers, with their part of the cache.
    #[default]
    Layer,
    /// Rows of every tensor.
    Row,
    /// One GPU holds all.
    None,
}

impl Split {
    /// The split of llama.cpp's name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "layer" => Some(Self::Layer),
            "row" => Some(Self::Row),
            "none" => Some(Self::None),
            _ => None,
        }
    }
}

/// How threads are bound to the nodes of a machine whose memory is not uniform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numa {
    /// Evenly over all nodes.
    Distribute,
    /// All to the node on which the process began.
    Isolate,
    /// As `numactl`, which started the process, has said.
    Numactl,
}

impl Numa {
    /// The way of llama.cpp's name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "distribute" => Some(Self::Distribute),
            "isolate" => Some(Self::Isolate),
            "numactl" => Some(Self::Numactl),
            _ => None,
        }
    }
}
