//! Formats of weights, and the formats of activations that they are multiplied with.

/// A format of weights, named as in GGUF files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// 32 bytes and a scale.
    Q8_0,
    /// 32 times 4 bits and a scale.
    Q4_0,
    /// 32 times 4 bits, a scale and a minimum.
    Q4_1,
    /// 32 times 5 bits and a scale.
    Q5_0,
    /// 32 times 5 bits, a scale and a minimum.
    Q5_1,
    /// 32 indices into 16 values, and a scale.
    Iq4Nl,
    /// 32 floats of 4 bits, and an exponent.
    Mxfp4,
    /// 16 blocks of 16 times 2 bits, with scales and minima of 4 bits.
    Q2K,
    /// 16 blocks of 16 times 3 bits, with scales of 6 bits.
    Q3K,
    /// 8 blocks of 32 times 4 bits, with scales and minima of 6 bits.
    Q4K,
    /// 8 blocks of 32 times 5 bits, with scales and minima of 6 bits.
    Q5K,
    /// 16 blocks of 16 times 6 bits, with scales of 8 bits.
    Q6K,
    /// 8 blocks of 32 indices into 16 values, with scales of 6 bits.
    Iq4Xs,
    /// Half precision.
    F16,
    /// bfloat16: the upper half of single precision.
    Bf16,
    /// Single precision.
    F32,
}

/// Format to which activations are converted for a format of weights, the same as in llama.cpp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ActivationFormat {
    /// 32 bytes and a scale of half precision.
    Q8_0,
    /// Like `Q8_0`, with the sum of the 32 values in half precision.
    Q8_1,
    /// 256 bytes and a scale of single precision.
    Q8K,
    /// Not converted.
    F32,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 16] = [
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Iq4Nl,
        Self::Mxfp4,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Xs,
        Self::F16,
        Self::Bf16,
        Self::F32,
    ];

    /// Returns the number of weights in a block.
    #[must_use]
    pub fn block_len(self) -> usize {
        match self.activation_format() {
            ActivationFormat::Q8_0 | ActivationFormat::Q8_1 => 32,
            ActivationFormat::Q8K => 256,
            ActivationFormat::F32 => 1,
        }
    }

    /// Returns the bytes of a block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        match self {
            Self::Q8_0 => 34,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Mxfp4 => 17,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq4Xs => 136,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    /// Returns the bytes of a row of `n_in` weights. `n_in` must be a multiple of the block length.
    #[must_use]
    pub fn row_bytes(self, n_in: usize) -> usize {
        assert!(
            n_in.is_multiple_of(self.block_len()),
            "rows of {n_in} weights are not divisible into blocks of {} of {self:?}",
            self.block_len()
        );
        n_in / self.block_len() * self.block_bytes()
    }

    pub(super) fn activation_format(self) -> ActivationFormat {
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Q5_0 | Self::Iq4Nl | Self::Mxfp4 => ActivationFormat::Q8_0,
            Self::Q4_1 | Self::Q5_1 => ActivationFormat::Q8_1,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq4Xs => ActivationFormat::Q8K,
            Self::F16 | Self::Bf16 | Self::F32 => ActivationFormat::F32,
        }
    }
}
