//! Overrides of metadata in a model file.

use llama_cpp_sys_2 as sys;

use crate::config::{KvOverride, KvValue, MAX_LAYERS};
use crate::error::{Error, Result};
use crate::llama::model::gguf::Metadata;

/// Validated overrides: one for each key, the last.
#[derive(Debug, Clone, Default)]
pub(crate) struct KvOverrides(Vec<KvOverride>);

impl KvOverrides {
    /// Rejects an override that llama.cpp would reject or ignore, and values at which it ends the process.
    pub(crate) fn read(given: &[KvOverride], file: &Metadata) -> Result<Self> {
        let mut effective: Vec<KvOverride> = Vec::new();
        for item in given {
            item.validate()?;
            effective.retain(|other| other.key != item.key);
            effective.push(item.clone());
        }
        effective.sort_by(|a, b| a.key.cmp(&b.key));
        let overrides = Self(effective);
        for item in &overrides.0 {
            overrides.check(item, file).map_err(|message| Error::InvalidConfig { param: "kv_overrides", message })?;
        }
        Ok(overrides)
    }

    fn check(&self, KvOverride { key, value }: &KvOverride, file: &Metadata) -> std::result::Result<(), String> {
        let kind = value.kind();
        if let Some(file_kind) = file.kind(key).filter(|file_kind| *file_kind != kind) {
            return Err(format!("{key} is given as {kind}, but in the model file it is {file_kind}"));
        }
        let number = |name: &str| self.number(name, file);
        let has_suffix = |suffix: &str| key.ends_with(suffix);
        let must = |rule: &str| Err(format!("{key} is {}; it must be {rule}", value.to_text()));
        if has_suffix(".rope.scaling.type") && !["none", "linear", "yarn", "longrope"].contains(&value.to_text().as_str()) {
            return Err(format!("{key} is {:?}; it must be none, linear, yarn or longrope", value.to_text()));
        }
        let x = if let KvValue::Float(x) = value { *x } else { 1.0 };
        if (has_suffix("_epsilon") || has_suffix(".rope.freq_base")) && x <= 0.0 {
            return must("greater than 0");
        }
        if has_suffix(".context_length") && !(1..=i64::from(i32::MAX)).contains(&number(key).unwrap_or_default()) {
            return must(&format!("1 to {}", i32::MAX));
        }
        if has_suffix(".rope.dimension_count") {
            let prefix = key.strip_suffix("rope.dimension_count").unwrap_or_default();
            let own_number = |name: &str| file.u32(&format!("{prefix}{name}")).map(i64::from);
            let head = own_number("embedding_length").zip(own_number("attention.head_count")).map(|(width, n)| width / n.max(1));
            let max = file.u32(key).map(i64::from).or_else(|| own_number("attention.key_length")).or(head).unwrap_or_default();
            if !number(key).is_some_and(|n| n % 2 == 0 && (2..=max).contains(&n)) {
                return must(&format!("even, and 2 to {max}"));
            }
        }
        if key == "tokenizer.ggml.model" && file.string(key).is_some_and(|own| own != value.to_text()) {
            let shown = value.to_text();
            return Err(format!("{key} is {shown:?}; it cannot be changed, because it must match the vocabulary in the file"));
        }
        if has_suffix(".block_count") && !(1..=i64::from(MAX_LAYERS)).contains(&number(key).unwrap_or_default()) {
            return must(&format!("1 to {MAX_LAYERS}"));
        }
        if has_suffix(".expert_count") || has_suffix(".expert_used_count") {
            let prefix = key.strip_suffix("used_count").or_else(|| key.strip_suffix("count")).unwrap_or_default();
            let n = number(&format!("{prefix}count")).unwrap_or_default();
            let n_used = number(&format!("{prefix}used_count")).unwrap_or_default();
            if n < 0 || n_used > n || (n > 0) != (n_used > 0) {
                return Err(format!("expert_used_count is {n_used}; it must be 1 to expert_count, {n}"));
            }
        }
        Ok(())
    }

    fn number(&self, key: &str, file: &Metadata) -> Option<i64> {
        match self.0.iter().find(|item| item.key == key) {
            Some(KvOverride { value: KvValue::Int(n), .. }) => Some(*n),
            Some(_) => None,
            None => file.u32(key).map(i64::from),
        }
    }

    /// llama.cpp's list, which ends with an entry without a key; `None` without overrides.
    pub(crate) fn as_list(&self) -> Option<Vec<sys::llama_model_kv_override>> {
        let end = KvOverride { key: String::new(), value: KvValue::Int(0) };
        (!self.0.is_empty()).then(|| self.0.iter().chain([&end]).map(entry).collect())
    }

    pub(crate) fn apply_to(&self, metadata: &mut Vec<(String, String)>) {
        for KvOverride { key, value } in &self.0 {
            metadata.retain(|(existing, _)| existing != key);
            metadata.push((key.clone(), value.to_text()));
        }
    }

    pub(crate) fn describe(&self) -> String {
        let describe = |item: &KvOverride| format!("{}={}:{}", item.key, item.value.kind(), item.value.to_text());
        self.0.iter().map(describe).collect::<Vec<_>>().join("\n")
    }
}

fn entry(KvOverride { key, value }: &KvOverride) -> sys::llama_model_kv_override {
    // SAFETY: plain numbers and character arrays, for which zeros are valid values.
    let mut entry: sys::llama_model_kv_override = unsafe { std::mem::zeroed() };
    let copy = |to: &mut [std::ffi::c_char], text: &str| {
        assert!(text.len() < to.len(), "its length was checked");
        for (to, byte) in to.iter_mut().zip(text.bytes()) {
            *to = std::ffi::c_char::from_ne_bytes([byte]);
        }
    };
    copy(&mut entry.key, key);
    match value {
        KvValue::Int(n) => {
            entry.tag = sys::LLAMA_KV_OVERRIDE_TYPE_INT;
            entry.__bindgen_anon_1.val_i64 = *n;
        }
        KvValue::Float(x) => {
            entry.tag = sys::LLAMA_KV_OVERRIDE_TYPE_FLOAT;
            entry.__bindgen_anon_1.val_f64 = *x;
        }
        KvValue::Bool(is_true) => {
            entry.tag = sys::LLAMA_KV_OVERRIDE_TYPE_BOOL;
            entry.__bindgen_anon_1.val_bool = *is_true;
        }
        KvValue::Text(text) => {
            entry.tag = sys::LLAMA_KV_OVERRIDE_TYPE_STR;
            // SAFETY: the union is zeroed, which is valid for each of its fields.
            copy(unsafe { &mut entry.__bindgen_anon_1.val_str }, text);
        }
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llama::tests::demo_path;

    fn read(given: &[(&str, KvValue)]) -> Result<KvOverrides> {
        let file = Metadata::open(&demo_path()).expect("the demo model exists");
        let given: Vec<_> =
            given.iter().map(|(key, value)| KvOverride { key: (*key).to_owned(), value: value.clone() }).collect();
        KvOverrides::read(&given, &file)
    }

    fn refusal(key: &str, value: KvValue) -> String {
        match read(&[(key, value)]) {
            Err(Error::InvalidConfig { param: "kv_overrides", message }) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_last_override_of_a_key_wins_and_key_order_is_irrelevant() {
        let text = |text: &str| KvValue::Text(text.to_owned());
        let first = read(&[("b", KvValue::Int(1)), ("a", text("x")), ("b", KvValue::Int(2))]).expect("the overrides are valid");
        let second = read(&[("a", text("x")), ("b", KvValue::Int(2))]).expect("the overrides are valid");
        assert_eq!(first.describe(), "a=str:x\nb=int:2");
        assert_eq!(first.describe(), second.describe());
        assert_eq!(read(&[]).expect("an empty list is valid").describe(), "");
        let mut metadata = vec![("b".to_owned(), "0".to_owned()), ("c".to_owned(), "3".to_owned())];
        first.apply_to(&mut metadata);
        let shown: Vec<_> = metadata.iter().map(|(key, value)| format!("{key} {value}")).collect();
        assert_eq!(shown, ["c 3", "a x", "b 2"]);
    }

    #[test]
    fn llama_cpp_receives_typed_values_and_a_terminator() {
        assert!(read(&[]).expect("an empty list is valid").as_list().is_none());
        let given = [
            ("a", KvValue::Bool(true)),
            ("b", KvValue::Float(0.5)),
            ("c", KvValue::Int(-1)),
            ("d", KvValue::Text("t".repeat(127))),
        ];
        let list = read(&given).expect("the overrides are valid").as_list().expect("there are some");
        // SAFETY: the tag of each entry names the field that was written.
        let values = unsafe {
            let [a, b, c, d] = [0, 1, 2, 3].map(|i: usize| list[i].__bindgen_anon_1);
            (a.val_bool, b.val_f64, c.val_i64, d.val_str)
        };
        assert_eq!((values.0, values.1, values.2), (true, 0.5, -1));
        assert!(values.3[..127].iter().all(|byte| byte.to_ne_bytes() == *b"t") && values.3[127] == 0);
        assert_eq!((list.len(), list[4].key[0]), (5, 0));
    }

    #[test]
    fn values_of_another_type_or_that_llama_cpp_asserts_are_rejected() {
        let wrong = refusal("llama.context_length", KvValue::Float(1.0));
        assert_eq!(wrong, "llama.context_length is given as float, but in the model file it is int");
        let array = refusal("tokenizer.ggml.tokens", KvValue::Text("a".to_owned()));
        assert_eq!(
            array,
            "tokenizer.ggml.tokens is given as str, but in the model file it is an array, which cannot be overridden"
        );
        assert!(refusal("llama.block_count", KvValue::Int(513)).ends_with("it must be 1 to 512"));
        let scaling = refusal("llama.rope.scaling.type", KvValue::Text("quadratic".to_owned()));
        assert!(scaling.ends_with("it must be none, linear, yarn or longrope"), "{scaling}");
        let epsilon = refusal("llama.attention.layer_norm_rms_epsilon", KvValue::Float(-1.0));
        assert_eq!(epsilon, "llama.attention.layer_norm_rms_epsilon is -1; it must be greater than 0");
        assert!(refusal("llama.rope.freq_base", KvValue::Float(0.0)).ends_with("it must be greater than 0"));
        assert_eq!(
            refusal("llama.expert_used_count", KvValue::Int(2)),
            "expert_used_count is 2; it must be 1 to expert_count, 0"
        );
    }
}
