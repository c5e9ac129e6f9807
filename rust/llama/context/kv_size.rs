//! Size of a token in the device cache, from the model's metadata alone.

use llama_cpp_sys_2 as sys;

use crate::config::KvType;

pub(crate) fn ggml_type(kv_type: KvType) -> sys::ggml_type {
    match kv_type {
        KvType::F32 => sys::GGML_TYPE_F32,
        KvType::F16 => sys::GGML_TYPE_F16,
        KvType::Bf16 => sys::GGML_TYPE_BF16,
        KvType::Q8_0 => sys::GGML_TYPE_Q8_0,
        KvType::Q4_0 => sys::GGML_TYPE_Q4_0,
        KvType::Q4_1 => sys::GGML_TYPE_Q4_1,
        KvType::Iq4Nl => sys::GGML_TYPE_IQ4_NL,
        KvType::Q5_0 => sys::GGML_TYPE_Q5_0,
        KvType::Q5_1 => sys::GGML_TYPE_Q5_1,
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KvShape {
    /// Maximum number of query heads of a layer; 0 if no layer has attention.
    pub(crate) n_query_heads: u32,
    /// Number of KV heads of each layer that has its own cache.
    pub(crate) n_heads: Vec<u32>,
    pub(crate) key_length: u32,
    /// Elements of V per head; 0 if V is a view of K (MLA).
    pub(crate) value_length: u32,
}

impl KvShape {
    /// Estimates the shape: assumes that every layer caches the whole context, and supports only the keys of the GGUF specification.
    /// `number` looks up an integer under the key `<architecture>.<name>`, `array` an array with one integer per layer.
    /// <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>
    pub(crate) fn read(
        n_layer: u32,
        n_embd: u32,
        number: impl Fn(&str) -> Option<u32>,
        array: impl Fn(&str) -> Option<Vec<u32>>,
    ) -> Self {
        let per_layer = |name: &str, default: u32| {
            let values = number(name).map(|value| vec![value; n_layer as usize]);
            values.or_else(|| array(name)).unwrap_or_else(|| vec![default; n_layer as usize])
        };
        let n_query_heads = per_layer("attention.head_count", 1).into_iter().max().unwrap_or(1).max(1);
        let head_length = n_embd / n_query_heads;
        // Layers without KV heads are recurrent. The last `shared_kv_layers` read an earlier layer's cache.
        let mut n_heads = per_layer("attention.head_count_kv", n_query_heads);
        n_heads.truncate(n_layer.saturating_sub(number("attention.shared_kv_layers").unwrap_or(0)) as usize);
        n_heads.retain(|&n| n > 0);
        if let Some(interval) = number("full_attention_interval").filter(|&interval| interval > 0) {
            n_heads.truncate(n_layer.div_ceil(interval) as usize);
        }
        let is_mla = number("attention.key_length_mla").is_some();
        Self {
            n_query_heads,
            n_heads,
            key_length: number("attention.key_length").unwrap_or(head_length),
            value_length: if is_mla { 0 } else { number("attention.value_length").unwrap_or(head_length) },
        }
    }

    /// Sizes of the keys and of the values of one token in all layers, in bytes.
    pub(in crate::llama) fn bytes_of_token(&self, type_k: KvType, type_v: KvType) -> (u64, u64) {
        let bytes = |kv_type, length| self.n_heads.iter().map(|&n| row_bytes(kv_type, n * length)).sum();
        (bytes(type_k, self.key_length), bytes(type_v, self.value_length))
    }
}

fn row_bytes(kv_type: KvType, n: u32) -> u64 {
    // SAFETY: two lookups in a constant table; `ggml_type` returns only valid formats.
    let (block_len, block_bytes) = unsafe { (sys::ggml_blck_size(ggml_type(kv_type)), sys::ggml_type_size(ggml_type(kv_type))) };
    u64::from(n).div_ceil(block_len.unsigned_abs()) * block_bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_per_token(shape: &KvShape, type_k: KvType, type_v: KvType) -> u64 {
        let (key, value) = shape.bytes_of_token(type_k, type_v);
        key + value
    }

    fn table<'a>(rows: &'a [(&'a str, u32)]) -> impl Fn(&str) -> Option<u32> + 'a {
        move |name| rows.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    #[test]
    fn grouped_query_attention_caches_only_kv_heads() {
        let keys = [("attention.head_count", 6), ("attention.head_count_kv", 2)];
        let shape = KvShape::read(6, 192, table(&keys), |_| None);
        assert_eq!(shape, KvShape { n_query_heads: 6, n_heads: vec![2; 6], key_length: 32, value_length: 32 });
        // 6 layers × 2 heads × 32 elements × 2 bytes, K and V.
        assert_eq!(bytes_per_token(&shape, KvType::F16, KvType::F16), 1536);
        assert_eq!(bytes_per_token(&shape, KvType::Q8_0, KvType::F16), 6 * (2 * 34 + 128));
    }

    #[test]
    fn layers_without_kv_heads_cache_nothing() {
        let keys = [("attention.head_count", 4), ("attention.key_length", 64), ("attention.value_length", 32)];
        let heads = |name: &str| (name == "attention.head_count_kv").then(|| vec![0, 2, 0, 1]);
        let shape = KvShape::read(4, 512, table(&keys), heads);
        assert_eq!(shape, KvShape { n_query_heads: 4, n_heads: vec![2, 1], key_length: 64, value_length: 32 });
        assert_eq!(bytes_per_token(&shape, KvType::F16, KvType::F32), 3 * (64 * 2 + 32 * 4));
    }

    #[test]
    fn shared_mla_and_recurrent_layers_are_not_counted_twice() {
        let shared = [("attention.head_count", 8), ("attention.shared_kv_layers", 3)];
        assert_eq!(KvShape::read(4, 512, table(&shared), |_| None).n_heads, [8]);
        let mla = [
            ("attention.head_count", 8),
            ("attention.head_count_kv", 1),
            ("attention.key_length", 576),
            ("attention.key_length_mla", 192),
        ];
        assert_eq!(bytes_per_token(&KvShape::read(1, 512, table(&mla), |_| None), KvType::F16, KvType::F16), 1152);
        let hybrid = [("attention.head_count", 8), ("full_attention_interval", 4)];
        assert_eq!(KvShape::read(48, 512, table(&hybrid), |_| None).n_heads.len(), 12);
    }
}
