//! Values of a file's metadata that a user replaces.

use llama_cpp_sys_2 as sys;

use crate::config::{KvOverride, KvValue, MAX_LAYERS};
use crate::error::{Error, Result};
use crate::llama::gguf::Metadata;

/// The overrides that count, as they were checked: one for each key, the last.
#[derive(Debug, Clone, Default)]
pub(super) struct KvOverrides(Vec<KvOverride>);

impl KvOverrides {
    /// Those of `given` for the model in `file`.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for one that llama.cpp could not take or would pass over, and for values at which it ends the process.
    pub(super) fn read(given: &[KvOverride], file: &Metadata) -> Result<Self> {
        let mut counted: Vec<KvOverride> = Vec::new();
        for one in given {
            one.validate()?;
            counted.retain(|other| other.key != one.key);
            counted.push(one.clone());
        }
        counted.sort_by(|a, b| a.key.cmp(&b.key));
        let overrides = Self(counted);
        for one in &overrides.0 {
            overrides.check(one, file).map_err(|message| Error::InvalidConfig { param: "kv_overrides", message })?;
        }
        Ok(overrides)
    }

    /// Refuses what is of another type than the file's own value, and numbers that llama.cpp asserts.
    fn check(&self, KvOverride { key, value }: &KvOverride, file: &Metadata) -> std::result::Result<(), String> {
        let kind = value.kind();
        match file.kind(key) {
            Some(own) if own != kind => return Err(format!("{key} is given as {kind}, but in the file it is {own}")),
            _ => {}
        }
        let number = |name: &str| self.number(name, file);
        let is = |suffix: &str| key.ends_with(suffix);
        if is(".rope.scaling.type") && !["none", "linear", "yarn", "longrope"].contains(&value.shown().as_str()) {
            return Err(format!("{key} is {:?}; it must be none, linear, yarn or longrope", value.shown()));
        }
        let x = if let KvValue::Float(x) = value { *x } else { 1.0 };
        if (is("_epsilon") || is(".rope.freq_base")) && x <= 0.0 {
            return Err(format!("{key} is {x}; it must be greater than 0"));
        }
        if is(".context_length") && !(1..=i64::from(i32::MAX)).contains(&number(key).unwrap_or_default()) {
            return Err(format!("{key} is {}; it must be 1 to {}", value.shown(), i32::MAX));
        }
        if is(".rope.dimension_count") {
            let prefix = key.strip_suffix("rope.dimension_count").unwrap_or_default();
            let of = |name: &str| file.u32(&format!("{prefix}{name}")).map(i64::from);
            let head = of("embedding_length").zip(of("attention.head_count")).map(|(width, n)| width / n.max(1));
            let most = file.u32(key).map(i64::from).or_else(|| of("attention.key_length")).or(head).unwrap_or_default();
            if !number(key).is_some_and(|n| n % 2 == 0 && (2..=most).contains(&n)) {
                return Err(format!("{key} is {}; it must be even, and 2 to {most}", value.shown()));
            }
        }
        if key == "tokenizer.ggml.model" && file.string(key).is_some_and(|own| own != value.shown()) {
            return Err(format!("{key} is {:?}; the file has the vocabulary of another tokenizer", value.shown()));
        }
        if is(".block_count") && !(1..=i64::from(MAX_LAYERS)).contains(&number(key).unwrap_or_default()) {
            return Err(format!("{key} is {}; it must be 1 to {MAX_LAYERS}", value.shown()));
        }
        if is(".expert_count") || is(".expert_used_count") {
            let prefix = key.strip_suffix("used_count").or_else(|| key.strip_suffix("count")).unwrap_or_default();
            let n = number(&format!("{prefix}count")).unwrap_or_default();
            let n_used = number(&format!("{prefix}used_count")).unwrap_or_default();
            if n < 0 || n_used > n || (n > 0) != (n_used > 0) {
                return Err(format!("{n_used} experts are used of {n}; at least 1 must be, and none that is not there"));
            }
        }
        Ok(())
    }

    /// The whole number under `key`, as it is to be.
    fn number(&self, key: &str, file: &Metadata) -> Option<i64> {
        match self.0.iter().find(|one| one.key == key) {
            Some(KvOverride { value: KvValue::Int(n), .. }) => Some(*n),
            Some(_) => None,
            None => file.u32(key).map(i64::from),
        }
    }

    /// llama.cpp's list, which ends with an entry without a key; `None` where there are none.
    pub(super) fn as_list(&self) -> Option<Vec<sys::llama_model_kv_override>> {
        let end = KvOverride { key: String::new(), value: KvValue::Int(0) };
        (!self.0.is_empty()).then(|| self.0.iter().chain([&end]).map(entry).collect())
    }

    /// Puts the values in the place of those of `metadata`.
    pub(super) fn put_into(&self, metadata: &mut Vec<(String, String)>) {
        for KvOverride { key, value } in &self.0 {
            metadata.retain(|(known, _)| known != key);
            metadata.push((key.clone(), value.shown()));
        }
    }

    /// All of them, which tells what is computed so from all else; empty where there are none.
    pub(super) fn in_words(&self) -> String {
        let one = |one: &KvOverride| format!("{}={}:{}", one.key, one.value.kind(), one.value.shown());
        self.0.iter().map(one).collect::<Vec<_>>().join("\n")
    }
}

/// What [`KvOverride::validate`] has checked, in llama.cpp's fixed arrays.
fn entry(KvOverride { key, value }: &KvOverride) -> sys::llama_model_kv_override {
    // SAFETY: numbers, and arrays of characters, for which zeros are values.
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
            // SAFETY: all of it is zeros.
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
        let file = Metadata::open(&demo_path()).expect("the demo model is there");
        let given: Vec<_> =
            given.iter().map(|(key, value)| KvOverride { key: (*key).to_owned(), value: value.clone() }).collect();
        KvOverrides::read(&given, &file)
    }

    fn refused(key: &str, value: KvValue) -> String {
        match read(&[(key, value)]) {
            Err(Error::InvalidConfig { param: "kv_overrides", message }) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_last_value_of_a_key_counts_and_the_order_of_keys_does_not() {
        let text = |text: &str| KvValue::Text(text.to_owned());
        let one = read(&[("b", KvValue::Int(1)), ("a", text("x")), ("b", KvValue::Int(2))]).expect("they are fine");
        let other = read(&[("a", text("x")), ("b", KvValue::Int(2))]).expect("they are fine");
        assert_eq!(one.in_words(), "a=str:x\nb=int:2");
        assert_eq!(one.in_words(), other.in_words());
        assert_eq!(read(&[]).expect("nothing is wrong").in_words(), "");
        let mut metadata = vec![("b".to_owned(), "0".to_owned()), ("c".to_owned(), "3".to_owned())];
        one.put_into(&mut metadata);
        let shown: Vec<_> = metadata.iter().map(|(key, value)| format!("{key} {value}")).collect();
        assert_eq!(shown, ["c 3", "a x", "b 2"]);
    }

    #[test]
    fn llama_cpp_gets_each_value_in_its_place_and_an_end() {
        assert!(read(&[]).expect("nothing is wrong").as_list().is_none());
        let given = [
            ("a", KvValue::Bool(true)),
            ("b", KvValue::Float(0.5)),
            ("c", KvValue::Int(-1)),
            ("d", KvValue::Text("t".repeat(127))),
        ];
        let list = read(&given).expect("they are fine").as_list().expect("there are some");
        // SAFETY: each was written as what its tag says.
        let values = unsafe {
            let [a, b, c, d] = [0, 1, 2, 3].map(|i: usize| list[i].__bindgen_anon_1);
            (a.val_bool, b.val_f64, c.val_i64, d.val_str)
        };
        assert_eq!((values.0, values.1, values.2), (true, 0.5, -1));
        assert!(values.3[..127].iter().all(|byte| byte.to_ne_bytes() == *b"t") && values.3[127] == 0);
        assert_eq!((list.len(), list[4].key[0]), (5, 0));
    }

    #[test]
    fn another_type_than_the_files_and_numbers_that_end_the_process_are_refused() {
        let wrong = refused("llama.context_length", KvValue::Float(1.0));
        assert_eq!(wrong, "llama.context_length is given as float, but in the file it is int");
        let array = refused("tokenizer.ggml.tokens", KvValue::Text("a".to_owned()));
        assert_eq!(array, "tokenizer.ggml.tokens is given as str, but in the file it is an array, which cannot be replaced");
        assert!(refused("llama.block_count", KvValue::Int(513)).ends_with("it must be 1 to 512"));
        let scaling = refused("llama.rope.scaling.type", KvValue::Text("quadratic".to_owned()));
        assert!(scaling.ends_with("it must be none, linear, yarn or longrope"), "{scaling}");
        let epsilon = refused("llama.attention.layer_norm_rms_epsilon", KvValue::Float(-1.0));
        assert_eq!(epsilon, "llama.attention.layer_norm_rms_epsilon is -1; it must be greater than 0");
        assert!(refused("llama.rope.freq_base", KvValue::Float(0.0)).ends_with("it must be greater than 0"));
        assert_eq!(
            refused("llama.expert_used_count", KvValue::Int(2)),
            "2 experts are used of 0; at least 1 must be, and none that is not there"
        );
    }
}
