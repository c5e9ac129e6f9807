//! What our kernels cover, asked of a model before anything is computed. Each operation is asked again when it comes; llama.cpp's
//! own kernels compute what is declined then.

use llama_cpp_sys_2 as sys;

use crate::config::KvType;
use crate::llama::kv_size::KvShape;

/// Whether our attention computes with heads of this shape and a cache of these formats.
pub(in crate::llama) fn covers_attention(shape: &KvShape, type_k: KvType, type_v: KvType) -> bool {
    let is_format = |kv_type| matches!(kv_type, KvType::F32 | KvType::F16 | KvType::Bf16 | KvType::Q8_0);
    let is_head = |length: u32| (32..=576).contains(&length) && length.is_multiple_of(16);
    // Where V is a view of K, it is as wide as a part of that.
    let is_value = |length| length == 0 || is_head(length);
    is_format(type_k) && is_format(type_v) && is_head(shape.key_length) && is_value(shape.value_length)
}

/// Whether our products compute with weights of this format.
pub(in crate::llama) fn covers_weights(format: sys::ggml_type) -> bool {
    [
        sys::GGML_TYPE_Q8_0,
        sys::GGML_TYPE_Q4_0,
        sys::GGML_TYPE_Q5_0,
        sys::GGML_TYPE_Q4_K,
        sys::GGML_TYPE_Q5_K,
        sys::GGML_TYPE_Q6_K,
        sys::GGML_TYPE_IQ4_NL,
        sys::GGML_TYPE_F16,
        sys::GGML_TYPE_BF16,
    ]
    .contains(&format)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape { n_query_heads: 14, n_heads: Vec::new(), key_length: 64, value_length: 64 };

    #[test]
    fn formats_and_heads_that_attention_lacks_are_not_covered() {
        let covers = |type_k, type_v| covers_attention(&SHAPE, type_k, type_v);
        assert!(covers(KvType::F16, KvType::F16) && covers(KvType::Q8_0, KvType::Bf16));
        assert!(!covers(KvType::Q4_0, KvType::F16) && !covers(KvType::F16, KvType::Iq4Nl));
        let with =
            |key_length, value_length| covers_attention(&KvShape { key_length, value_length, ..SHAPE }, KvType::F16, KvType::F16);
        assert!(with(192, 128) && with(576, 0));
        assert!(!with(40, 64) && !with(64, 16) && !with(1024, 64));
    }
}
