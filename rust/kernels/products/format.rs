//! Formats of weights.

/// Defines the formats: each with the number of weights and of bytes in a block.
macro_rules! formats {
    ($($name:ident: $block_len:literal, $block_bytes:literal;)*) => {
        /// A format of weights, named as in GGUF files.
        #[allow(missing_docs, reason = "GGUF defines them, and `unpack` describes their blocks")]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum WeightFormat {
            $($name,)*
        }

        impl WeightFormat {
            /// Every format.
            pub const ALL: [Self; 16] = [$(Self::$name),*];

            /// Returns the number of weights in a block.
            pub fn block_len(self) -> usize {
                match self {
                    $(Self::$name => $block_len,)*
                }
            }

            pub(super) fn block_bytes(self) -> usize {
                match self {
                    $(Self::$name => $block_bytes,)*
                }
            }
        }
    };
}

formats! {
    Q8_0: 32, 34;
    Q4_0: 32, 18;
    Q4_1: 32, 20;
    Q5_0: 32, 22;
    Q5_1: 32, 24;
    Iq4Nl: 32, 18;
    Mxfp4: 32, 17;
    Q2K: 256, 84;
    Q3K: 256, 110;
    Q4K: 256, 144;
    Q5K: 256, 176;
    Q6K: 256, 210;
    Iq4Xs: 256, 136;
    F16: 1, 2;
    Bf16: 1, 2;
    F32: 1, 4;
}

impl WeightFormat {
    /// Returns the bytes of a row of `n_in` weights, a multiple of the block length.
    pub fn row_bytes(self, n_in: usize) -> usize {
        let n = self.block_len();
        assert!(n_in.is_multiple_of(n), "rows of {n_in} weights are not divisible into blocks of {n} of {self:?}");
        n_in / n * self.block_bytes()
    }
}
