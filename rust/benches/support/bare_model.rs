//! The reference's own copy of a model, and the minimum cost of its steps.
#![allow(unsafe_code, reason = "the yardstick is llama.cpp itself, called directly")]

use std::ffi::{CStr, CString};
use std::path::Path;
use std::ptr;

use llama_cpp_sys_2 as sys;
use weft::llama::host::machine::Hardware;

/// Memory layout of a model's matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightLayout {
    /// In the on-disk layout.
    AsStored,
    /// Repacked for llama.cpp's own kernels for many rows, where it has any: llama.cpp's default.
    Repacked,
}

/// A second instance of a model that the engine has loaded; if weights are mapped, both use the same memory.
pub(crate) struct BareModel {
    model: *mut sys::llama_model,
    has_output_matrix: bool,
}

impl BareModel {
    /// Loads the file with this layout of weights. llama.cpp must be initialised and its log redirected, as
    /// `weft::llama::Model::load` does.
    ///
    /// # Errors
    /// A message, if llama.cpp rejects the file, or if the model's memory is not a single plain attention cache, which the
    /// benchmarks require to reload cells at other positions.
    pub(crate) fn load(path: &Path, weights: WeightLayout) -> Result<Self, String> {
        let name = c_path(path)?;
        // SAFETY: the default parameters hold no pointers that we would have to keep alive, and `name` outlives the call.
        let model = unsafe {
            let mut params = sys::llama_model_default_params();
            params.n_gpu_layers = 0;
            params.use_extra_bufts = weights == WeightLayout::Repacked;
            sys::llama_model_load_from_file(name.as_ptr(), params)
        };
        if model.is_null() {
            return Err(format!("llama.cpp cannot load {}", path.display()));
        }
        let has_output_matrix = read_metadata(&name, |file| {
            // SAFETY: the file is alive, and the name ends with a zero.
            unsafe { sys::gguf_find_tensor(file, c"output.weight".as_ptr()) >= 0 }
        })?;
        // SAFETY: the model is alive.
        let is_plain = unsafe {
            sys::llama_model_n_swa(model) == 0 && !sys::llama_model_is_recurrent(model) && !sys::llama_model_is_hybrid(model)
        };
        let model = Self { model, has_output_matrix };
        if is_plain { Ok(model) } else { Err(format!("the memory of {} is no plain attention cache", path.display())) }
    }

    pub(super) fn as_ptr(&self) -> *mut sys::llama_model {
        self.model
    }

    /// Returns the size of the vocabulary.
    pub(crate) fn n_vocab(&self) -> u32 {
        // SAFETY: the model is alive, and its vocabulary lives as long.
        unsafe { sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(self.model)) }.cast_unsigned()
    }

    /// Returns the number of weights.
    pub(crate) fn n_params(&self) -> u64 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_params(self.model) }
    }

    /// Returns the size of the weights in bytes.
    pub(crate) fn n_bytes(&self) -> u64 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_size(self.model) }
    }

    /// Returns the number of weights of the output matrix. The embedding has the same size, or is the same matrix.
    pub(crate) fn n_output_params(&self) -> u64 {
        u64::from(self.n_vocab()) * u64::from(self.n_embd())
    }

    /// Returns the number of weights of the embedding, unless it is also the output matrix: a step reads one row of it per
    /// token.
    pub(crate) fn n_embedding_params(&self) -> u64 {
        if self.has_output_matrix { self.n_output_params() } else { 0 }
    }

    /// Returns the multiplications and additions of attention's two products for one row and one cell, in all layers.
    pub(crate) fn attention_ops(&self) -> u64 {
        // SAFETY: the model is alive.
        let n_layer = unsafe { sys::llama_model_n_layer(self.model) };
        // The heads together are as wide as the model, for K and for V.
        4 * u64::from(self.n_embd()) * u64::from(n_layer.cast_unsigned())
    }

    fn n_embd(&self) -> u32 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_embd(self.model) }.cast_unsigned()
    }
}

/// Returns true if llama.cpp repacks matrices of this file by default: all with AMX, otherwise those of its list
/// (`ggml_repack_get_optimal_repack_type` in repack.cpp).
///
/// # Errors
/// A message, if the file is not GGUF.
pub(crate) fn is_repacked(path: &Path) -> Result<bool, String> {
    const KINDS: [sys::ggml_type; 5] =
        [sys::GGML_TYPE_Q4_0, sys::GGML_TYPE_Q4_K, sys::GGML_TYPE_IQ4_NL, sys::GGML_TYPE_MXFP4, sys::GGML_TYPE_Q2_K];
    if Hardware::read().instructions.contains("AMX") {
        return Ok(true);
    }
    read_metadata(&c_path(path)?, |file| {
        // SAFETY: the file is alive, and the index is below the number of tensors.
        unsafe { (0..sys::gguf_get_n_tensors(file)).any(|tensor| KINDS.contains(&sys::gguf_get_tensor_type(file, tensor))) }
    })
}

fn read_metadata<T>(name: &CStr, read: impl FnOnce(*const sys::gguf_context) -> T) -> Result<T, String> {
    // SAFETY: `name` outlives the calls; nothing but the metadata is read, and it is freed once, after the last use.
    unsafe {
        let params = sys::gguf_init_params { no_alloc: true, ctx: ptr::null_mut() };
        let file = sys::gguf_init_from_file(name.as_ptr(), params);
        if file.is_null() {
            return Err(format!("{} is no GGUF file", name.to_string_lossy()));
        }
        let answer = read(file);
        sys::gguf_free(file);
        Ok(answer)
    }
}

fn c_path(path: &Path) -> Result<CString, String> {
    let name = path.to_str().and_then(|path| CString::new(path).ok());
    name.ok_or_else(|| format!("{} is no path that llama.cpp can be given", path.display()))
}

impl Drop for BareModel {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, freed once, and every `BareContext` borrows the model, so none is left.
        unsafe { sys::llama_model_free(self.model) };
    }
}
