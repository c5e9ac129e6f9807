//! Where a model's weights go.

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
}

impl Placement {
    /// Whether it says what a GPU is to hold.
    #[must_use]
    pub fn names_gpus(&self) -> bool {
        self.split != Split::default() || self.main_gpu != 0 || !self.tensor_split.is_empty()
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
