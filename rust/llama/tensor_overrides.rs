//! Single tensors into other memory than the rest.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null;

use llama_cpp_sys_2 as sys;

use crate::config::{Placement, TensorOverride};
use crate::error::{Error, Result};
use crate::llama::gguf::Metadata;

/// Patterns with the memory of each, as llama.cpp takes them.
#[derive(Debug)]
pub(super) struct TensorOverrides {
    /// Ends with an entry without a pattern.
    entries: Vec<sys::llama_model_tensor_buft_override>,
    // What the entries point to.
    _patterns: Vec<CString>,
}

impl TensorOverrides {
    /// Of the tensors in `files`, as `placement` says; `None` where it moves none. The backend must have been started.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for what is no pattern, and for memory that there is not.
    pub(super) fn read(placement: &Placement, files: &[Metadata]) -> Result<Option<Self>> {
        for given in &placement.tensors {
            given.validate()?;
        }
        let overrides = placement.tensor_overrides();
        if overrides.is_empty() {
            return Ok(None);
        }
        let names: Vec<CString> = files
            .iter()
            .flat_map(Metadata::named_tensors)
            .map(|(name, _)| CString::new(name).expect("it was read up to a NUL byte"))
            .collect();
        let known = buffer_types();
        let mut entries = Vec::new();
        let mut patterns = Vec::new();
        for TensorOverride { pattern, buffer } in overrides {
            let kind = known.iter().find(|(name, _)| *name == buffer).map(|(_, kind)| *kind).ok_or_else(|| {
                let known: Vec<&str> = known.iter().map(|(name, _)| name.as_str()).collect();
                refusal(format!("there is no memory {buffer:?} for tensors; there is {}", known.join(", ")))
            })?;
            let text = CString::new(pattern.as_str()).expect("it was checked to hold no NUL byte");
            if !finds(&text, &names).map_err(|why| refusal(format!("{pattern:?} is no pattern of tensors: {why}")))? {
                tracing::warn!("no tensor of the model has a name with {pattern:?}, so none goes to {buffer}");
            }
            entries.push(sys::llama_model_tensor_buft_override { pattern: text.as_ptr(), buft: kind });
            patterns.push(text);
        }
        entries.push(sys::llama_model_tensor_buft_override { pattern: null(), buft: std::ptr::null_mut() });
        Ok(Some(Self { entries, _patterns: patterns }))
    }

    /// llama.cpp's list, valid while `self` lives.
    pub(super) fn as_ptr(&self) -> *const sys::llama_model_tensor_buft_override {
        self.entries.as_ptr()
    }
}

fn refusal(message: String) -> Error {
    Error::InvalidConfig { param: "tensor_overrides", message }
}

/// Whether `pattern` is found in any of `names`.
///
/// # Errors
/// The standard library's words for what is wrong with it.
fn finds(pattern: &CStr, names: &[CString]) -> std::result::Result<bool, String> {
    let names: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let mut why = [0_u8; 256];
    // SAFETY: pattern and names are NUL-terminated, there are as many as it is told, and as many bytes are writable.
    let found = unsafe { weft_pattern_find(pattern.as_ptr(), names.as_ptr(), names.len(), why.as_mut_ptr().cast(), why.len()) };
    let in_words = || CStr::from_bytes_until_nul(&why).map_or_else(|_| String::new(), |why| why.to_string_lossy().into_owned());
    if found < 0 { Err(in_words()) } else { Ok(found == 1) }
}

/// The memory of each device, by ggml's names of them.
fn buffer_types() -> Vec<(String, sys::ggml_backend_buffer_type_t)> {
    // SAFETY: a started backend's devices are registered and live for ever, as do the types of their buffers and those' names.
    let kinds =
        unsafe { (0..sys::ggml_backend_dev_count()).map(|i| sys::ggml_backend_dev_buffer_type(sys::ggml_backend_dev_get(i))) };
    let mut known = Vec::new();
    for kind in kinds.filter(|kind| !kind.is_null()) {
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(sys::ggml_backend_buft_name(kind)) }.to_string_lossy().into_owned();
        if known.iter().all(|(other, _)| *other != name) {
            known.push((name, kind));
        }
    }
    known
}

unsafe extern "C" {
    fn weft_pattern_find(pattern: *const c_char, names: *const *const c_char, n: usize, why: *mut c_char, n_why: usize) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llama::backend::backend;

    fn found(pattern: &str) -> std::result::Result<bool, String> {
        let names = [c"token_embd.weight", c"blk.0.ffn_up.weight", c"blk.10.ffn_up_exps.weight"].map(CStr::to_owned);
        finds(&CString::new(pattern).expect("no NUL byte"), &names)
    }

    #[test]
    fn patterns_are_read_as_llama_cpp_reads_them() {
        assert_eq!(found("ffn_(up|down)"), Ok(true));
        assert_eq!(found("^ffn"), Ok(false));
        assert_eq!(found(r"\d{2}\.ffn"), Ok(true));
        for wrong in ["(", "[z-a]", "*", "a{2", r"\"] {
            assert!(found(wrong).is_err_and(|why| !why.is_empty()), "{wrong}");
        }
        let layers = |n| found(&TensorOverride::experts_of(n).pattern);
        assert_eq!((layers(10), layers(11)), (Ok(false), Ok(true)));
        assert_eq!(found(&TensorOverride::feed_forward_of(1).pattern), Ok(true));
    }

    #[test]
    fn memory_that_there_is_not_is_named_with_what_there_is() {
        backend();
        let placed = |pattern: &str, buffer: &str| {
            let tensors = vec![TensorOverride { pattern: pattern.to_owned(), buffer: buffer.to_owned() }];
            TensorOverrides::read(&Placement { tensors, ..Placement::default() }, &[])
        };
        assert_eq!(placed("ffn", "CPU").map(|overrides| overrides.map(|overrides| overrides.entries.len())), Ok(Some(2)));
        let message = |refused| match refused {
            Err(Error::InvalidConfig { param: "tensor_overrides", message }) => message,
            other => panic!("{other:?}"),
        };
        assert!(message(placed("ffn", "Abacus0")).starts_with("there is no memory \"Abacus0\" for tensors; there is CPU"));
        assert!(message(placed("(", "CPU")).starts_with("\"(\" is no pattern of tensors: "));
        assert!(message(placed("", "CPU")).contains("has 0 bytes"));
        assert!(TensorOverrides::read(&Placement::default(), &[]).expect("nothing is wrong").is_none());
    }
}
