//! Places individual tensors on other devices than the rest of the model.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::null;

use llama_cpp_sys_2 as sys;

use crate::config::{Placement, TensorOverride};
use crate::error::{Error, Result};
use crate::llama::{host::device::Device, logging, model::gguf::Metadata};

#[derive(Debug)]
pub(crate) struct TensorOverrides {
    /// Terminated by an entry without a pattern.
    entries: Vec<sys::llama_model_tensor_buft_override>,
    _patterns: Vec<CString>,
}

impl TensorOverrides {
    pub(crate) fn read(placement: &Placement, files: &[Metadata]) -> Result<Option<Self>> {
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
        let available = buffer_types();
        let mut entries = Vec::new();
        let mut patterns = Vec::new();
        for TensorOverride { pattern, buffer } in overrides {
            let kind = available.iter().find(|(name, _)| *name == buffer).map(|(_, kind)| *kind).ok_or_else(|| {
                let names: Vec<&str> = available.iter().map(|(name, _)| name.as_str()).collect();
                refusal(format!("there is no buffer type {buffer:?}; available are {}", names.join(", ")))
            })?;
            let text = CString::new(pattern.as_str()).expect("it was checked to contain no NUL byte");
            if !finds(&text, &names)
                .map_err(|reason| refusal(format!("{pattern:?} is not a valid regular expression: {reason}")))?
            {
                tracing::warn!("the pattern {pattern:?} matches no tensor of the model, so no tensor is moved to {buffer}");
            }
            entries.push(sys::llama_model_tensor_buft_override { pattern: text.as_ptr(), buft: kind });
            patterns.push(text);
        }
        entries.push(sys::llama_model_tensor_buft_override { pattern: null(), buft: std::ptr::null_mut() });
        Ok(Some(Self { entries, _patterns: patterns }))
    }

    pub(crate) fn as_ptr(&self) -> *const sys::llama_model_tensor_buft_override {
        self.entries.as_ptr()
    }
}

fn refusal(message: String) -> Error {
    Error::InvalidConfig { param: "tensor_overrides", message }
}

/// Returns true if `pattern` matches any of `names`; the error is the C++ standard library's message for an invalid pattern.
fn finds(pattern: &CStr, names: &[CString]) -> std::result::Result<bool, String> {
    let names: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    // SAFETY: pattern and names are NUL-terminated, there are `names.len()` names, and `n_bytes` bytes of `message` are writable.
    let (found, error) = logging::with_exception_text(|message, n_bytes| unsafe {
        weft_pattern_find(pattern.as_ptr(), names.as_ptr(), names.len(), message, n_bytes)
    });
    if found < 0 { Err(error) } else { Ok(found == 1) }
}

fn buffer_types() -> Vec<(String, sys::ggml_backend_buffer_type_t)> {
    let mut types = Vec::new();
    for device in Device::all() {
        // SAFETY: the device is registered; it lives forever, as do its buffer type and the name of this.
        let kind = unsafe { sys::ggml_backend_dev_buffer_type(device.as_ptr()) };
        if kind.is_null() {
            continue;
        }
        // SAFETY: as above.
        let name = unsafe { CStr::from_ptr(sys::ggml_backend_buft_name(kind)) }.to_string_lossy().into_owned();
        if types.iter().all(|(other, _)| *other != name) {
            types.push((name, kind));
        }
    }
    types
}

unsafe extern "C" {
    fn weft_pattern_find(
        pattern: *const c_char,
        names: *const *const c_char,
        n: usize,
        message: *mut c_char,
        n_message_bytes: usize,
    ) -> c_int;
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
    fn patterns_match_as_in_llama_cpp() {
        assert_eq!(found("ffn_(up|down)"), Ok(true));
        assert_eq!(found("^ffn"), Ok(false));
        assert_eq!(found(r"\d{2}\.ffn"), Ok(true));
        for wrong in ["(", "[z-a]", "*", "a{2", r"\"] {
            assert!(found(wrong).is_err_and(|reason| !reason.is_empty()), "{wrong}");
        }
        let layers = |n| found(&TensorOverride::experts_of(n).pattern);
        assert_eq!((layers(10), layers(11)), (Ok(false), Ok(true)));
        assert_eq!(found(&TensorOverride::feed_forward_of(1).pattern), Ok(true));
    }

    #[test]
    fn an_unknown_buffer_type_is_rejected_with_the_available_ones() {
        backend();
        let read = |pattern: &str, buffer: &str| {
            let tensors = vec![TensorOverride { pattern: pattern.to_owned(), buffer: buffer.to_owned() }];
            TensorOverrides::read(&Placement { tensors, ..Placement::default() }, &[])
        };
        assert_eq!(read("ffn", "CPU").map(|overrides| overrides.map(|overrides| overrides.entries.len())), Ok(Some(2)));
        let message = |result| match result {
            Err(Error::InvalidConfig { param: "tensor_overrides", message }) => message,
            other => panic!("{other:?}"),
        };
        assert!(message(read("ffn", "Abacus0")).starts_with("there is no buffer type \"Abacus0\"; available are CPU"));
        assert!(message(read("(", "CPU")).starts_with("\"(\" is not a valid regular expression: "));
        assert!(message(read("", "CPU")).contains("has 0 bytes"));
        assert!(TensorOverrides::read(&Placement::default(), &[]).expect("the placement is valid").is_none());
    }
}
