//! Overrides of a model file's metadata, and of the memory that holds a tensor.

use super::reject;
use crate::error::Result;

/// Maximum size of a key or a text: llama.cpp copies them into zero-terminated arrays of 128 bytes.
const MAX_BYTES: usize = 127;

const MAX_PATTERN_BYTES: usize = 1024;

/// Maximum number of layers of a model: llama.cpp's `LLAMA_MAX_LAYERS`.
pub const MAX_LAYERS: u32 = 512;

#[derive(Debug, Clone, PartialEq)]
pub struct KvOverride {
    /// 1 to 127 bytes.
    pub key: String,
    pub value: KvValue,
}

#[derive(Debug, Clone, PartialEq)]
pub enum KvValue {
    /// −2³¹ to 2³² − 1.
    Int(i64),
    /// Finite, 32 bits.
    Float(f64),
    Bool(bool),
    /// At most 127 bytes.
    Text(String),
}

impl KvValue {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Bool(_) => "bool",
            Self::Text(_) => "str",
        }
    }

    /// Formats the value as llama.cpp formats a value of the file.
    pub fn to_text(&self) -> String {
        match self {
            Self::Int(value) => value.to_string(),
            Self::Float(value) => value.to_string(),
            Self::Bool(value) => value.to_string(),
            Self::Text(value) => value.clone(),
        }
    }
}

impl KvOverride {
    /// # Errors
    /// For a key or value that llama.cpp does not support.
    pub fn validate(&self) -> Result<()> {
        let Self { key, value } = self;
        let reject = |message| reject("kv_overrides", message);
        if key.is_empty() || key.len() > MAX_BYTES || key.contains('\0') {
            let shown: String = key.chars().take(60).collect();
            return reject(format!("the key {shown:?} has {} bytes; it must have 1 to {MAX_BYTES}, none of them 0", key.len()));
        }
        match value {
            KvValue::Int(n) if !(i64::from(i32::MIN)..=i64::from(u32::MAX)).contains(n) => {
                reject(format!("{key} is {n}; an integer must be {} to {}", i32::MIN, u32::MAX))
            }
            KvValue::Float(x) if !x.is_finite() || x.abs() > f64::from(f32::MAX) => {
                reject(format!("{key} is {x}; it must be finite and fit 32 bits"))
            }
            KvValue::Text(text) if text.len() > MAX_BYTES || text.contains('\0') => {
                reject(format!("the string for {key} has {} bytes; it must have at most {MAX_BYTES}, none of them 0", text.len()))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorOverride {
    /// A regular expression (ECMAScript), searched in a tensor's name; at most 1,024 bytes.
    pub pattern: String,
    /// ggml's name of a buffer type: `CPU`, `CUDA0`.
    pub buffer: String,
}

impl TensorOverride {
    /// # Errors
    /// For a pattern that is empty or too long.
    pub fn validate(&self) -> Result<()> {
        let n = self.pattern.len();
        if (1..=MAX_PATTERN_BYTES).contains(&n) && !self.pattern.contains('\0') {
            return Ok(());
        }
        let message = format!("a tensor name pattern has {n} bytes; it must have 1 to {MAX_PATTERN_BYTES}, none of them 0");
        reject("tensor_overrides", message)
    }

    pub fn experts() -> Self {
        Self::to_cpu(String::new(), EXPERTS)
    }

    pub fn experts_of(n: u32) -> Self {
        Self::to_cpu(first_layers(n), EXPERTS)
    }

    pub fn feed_forward_of(n: u32) -> Self {
        Self::to_cpu(first_layers(n), DENSE)
    }

    fn to_cpu(layers: String, tensors: &str) -> Self {
        Self { pattern: layers + tensors, buffer: "CPU".to_owned() }
    }
}

/// llama.cpp's `LLM_FFN_EXPS_REGEX`.
const EXPERTS: &str = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps";
/// llama.cpp's `LLM_FFN_DENSE_REGEX`.
const DENSE: &str = r"\.ffn_(up|down|gate)\.";

/// Layers with an index below `n`, at most [`MAX_LAYERS`].
fn first_layers(n: u32) -> String {
    let numbers: Vec<String> = (0..n.min(MAX_LAYERS)).map(|layer| layer.to_string()).collect();
    format!(r"blk\.({})", numbers.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    fn validate(key: &str, value: KvValue) -> Result<()> {
        KvOverride { key: key.to_owned(), value }.validate()
    }

    #[test]
    fn keys_and_values_beyond_llama_cpps_arrays_are_rejected() {
        assert_eq!(validate(&"k".repeat(127), KvValue::Text("t".repeat(127))), Ok(()));
        for (key, value) in [
            (String::new(), KvValue::Bool(true)),
            ("k".repeat(128), KvValue::Bool(true)),
            ("a\0b".to_owned(), KvValue::Bool(true)),
            ("key".to_owned(), KvValue::Text("t".repeat(128))),
            ("key".to_owned(), KvValue::Text("ü".repeat(64))),
            ("key".to_owned(), KvValue::Text("\0".to_owned())),
            ("key".to_owned(), KvValue::Int(1 << 32)),
            ("key".to_owned(), KvValue::Int(i64::MIN)),
            ("key".to_owned(), KvValue::Float(f64::NAN)),
            ("key".to_owned(), KvValue::Float(1e39)),
        ] {
            let result = validate(&key, value.clone());
            assert!(matches!(result, Err(Error::InvalidConfig { param: "kv_overrides", .. })), "{key:?} {value:?}");
        }
    }

    #[test]
    fn empty_and_overlong_patterns_are_rejected() {
        let pattern = |pattern: String| TensorOverride { pattern, buffer: "CPU".to_owned() }.validate();
        assert_eq!(pattern("x".repeat(1024)), Ok(()));
        for wrong in [String::new(), "x".repeat(1025), "\0".to_owned()] {
            assert!(matches!(pattern(wrong), Err(Error::InvalidConfig { param: "tensor_overrides", .. })));
        }
    }

    #[test]
    fn the_first_layers_are_listed() {
        assert_eq!(TensorOverride::experts_of(3).pattern, r"blk\.(0|1|2)\.ffn_(up|down|gate|gate_up)_(ch|)exps");
        assert_eq!(TensorOverride::feed_forward_of(1).pattern, r"blk\.(0)\.ffn_(up|down|gate)\.");
        assert_eq!(TensorOverride::experts_of(u32::MAX), TensorOverride::experts_of(MAX_LAYERS));
        assert_eq!(TensorOverride::experts().pattern, EXPERTS);
    }
}
