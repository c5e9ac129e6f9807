//! Formats of weights, and the formats of activations that they are multiplied with.

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

/// Defines the formats: each with the format of its activations and the bytes of a block.
macro_rules! formats {
    ($($(#[$doc:meta])* $name:ident: $activations:ident, $block_bytes:literal;)*) => {
        /// A format of weights, named as in GGUF files.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Format {
            $($(#[$doc])* $name,)*
        }

        impl Format {
            /// Every format.
            pub const ALL: [Self; 16] = [$(Self::$name),*];

            /// Returns the bytes of a block.
            #[must_use]
            pub fn block_bytes(self) -> usize {
                match self {
                    $(Self::$name => $block_bytes,)*
                }
            }

            pub(super) fn activation_format(self) -> ActivationFormat {
                match self {
                    $(Self::$name => ActivationFormat::$activations,)*
                }
            }
        }
    };
}

formats! {
    /// 32 bytes and a scale.
    Q8_0: Q8_0, 34;
    /// 32 times 4 bits and a scale.
    Q4_0: Q8_0, 18;
    /// 32 times 4 bits, a scale and a minimum.
    Q4_1: Q8_1, 20;
    /// 32 times 5 bits and a scale.
    Q5_0: Q8_0, 22;
    /// 32 times 5 bits, a scale and a minimum.
    Q5_1: Q8_1, 24;
    /// 32 indices into 16 values, and a scale.
    Iq4Nl: Q8_0, 18;
    /// 32 floats of 4 bits, and an exponent.
    Mxfp4: Q8_0, 17;
    /// 16 blocks of 16 times 2 bits, with scales and minima of 4 bits.
    Q2K: Q8K, 84;
    /// 16 blocks of 16 times 3 bits, with scales of 6 bits.
    Q3K: Q8K, 110;
    /// 8 blocks of 32 times 4 bits, with scales and minima of 6 bits.
    Q4K: Q8K, 144;
    /// 8 blocks of 32 times 5 bits, with scales and minima of 6 bits.
    Q5K: Q8K, 176;
    /// 16 blocks of 16 times 6 bits, with scales of 8 bits.
    Q6K: Q8K, 210;
    /// 8 blocks of 32 indices into 16 values, with scales of 6 bits.
    Iq4Xs: Q8K, 136;
    /// Half precision.
    F16: F32, 2;
    /// bfloat16: the upper half of single precision.
    Bf16: F32, 2;
    /// Single precision.
    F32: F32, 4;
}

impl Format {
    /// Returns the number of weights in a block.
    #[must_use]
    pub fn block_len(self) -> usize {
        match self.activation_format() {
            ActivationFormat::Q8_0 | ActivationFormat::Q8_1 => 32,
            ActivationFormat::Q8K => 256,
            ActivationFormat::F32 => 1,
        }
    }

    /// Returns the bytes of a row of `n_in` weights. `n_in` must be a multiple of the block length.
    #[must_use]
    pub fn row_bytes(self, n_in: usize) -> usize {
        let n = self.block_len();
        assert!(n_in.is_multiple_of(n), "rows of {n_in} weights are not divisible into blocks of {n} of {self:?}");
        n_in / n * self.block_bytes()
    }
}
