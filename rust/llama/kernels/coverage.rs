//! Operations that our kernels support. Each is checked again when it is computed.

use llama_cpp_sys_2 as sys;

use crate::config::KvType;
use crate::kernels::attention::AttentionShape;
use crate::llama::context::kv_size::{KvShape, ggml_type};
use crate::llama::kernels::{attention, products};

/// A multiple of the block size of every weight format.
const N_WEIGHTS: usize = 256;

pub(crate) fn covers_attention(shape: &KvShape, type_k: KvType, type_v: KvType) -> bool {
    let key_size = shape.key_length as usize;
    // If V is a view of K, it is a part of it.
    let value_size = if shape.value_length == 0 { key_size } else { shape.value_length as usize };
    let one_row = AttentionShape { n_rows: 1, n_heads: 1, n_kv_heads: 1, n_cells: 1, key_size, value_size };
    attention::covers(&one_row, ggml_type(type_k), ggml_type(type_v))
}

pub(crate) fn covers_weights(format: sys::ggml_type) -> bool {
    products::covers(format, N_WEIGHTS, N_WEIGHTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llama::kernels::install;

    const SHAPE: KvShape = KvShape { n_query_heads: 14, n_heads: Vec::new(), key_length: 64, value_length: 64 };

    #[test]
    fn unsupported_cache_formats_and_head_sizes_are_not_covered() {
        let is_usable = install().usable.attention;
        let covers = |type_k, type_v| covers_attention(&SHAPE, type_k, type_v);
        for kv_type in [KvType::F32, KvType::F16, KvType::Bf16, KvType::Q8_0] {
            assert!(covers(kv_type, kv_type) || !is_usable, "{kv_type:?}");
        }
        assert!(!covers(KvType::Q4_0, KvType::F16) && !covers(KvType::F16, KvType::Iq4Nl));
        let with =
            |key_length, value_length| covers_attention(&KvShape { key_length, value_length, ..SHAPE }, KvType::F16, KvType::F16);
        assert!((with(192, 128) && with(576, 0)) || !is_usable);
        assert!(!with(65, 64) && !with(64, 65));
    }

    #[test]
    fn unsupported_weight_formats_are_not_covered() {
        let is_usable = install().usable.products;
        assert!((covers_weights(sys::GGML_TYPE_Q8_0) && covers_weights(sys::GGML_TYPE_Q4_K)) || !is_usable);
        assert!(!covers_weights(sys::GGML_TYPE_IQ1_S));
    }
}
