//! The yardstick's own copy of a model, and what its shape says a step must cost.
#![allow(unsafe_code, reason = "the yardstick is llama.cpp itself, called directly")]

use std::ffi::CString;
use std::path::Path;
use std::ptr;

use llama_cpp_sys_2 as sys;

/// A model loaded once more, beside the engine's; where weights are mapped, both use the same memory.
pub(crate) struct BareModel {
    model: *mut sys::llama_model,
    has_output_matrix: bool,
}

impl BareModel {
    /// Loads the file. llama.cpp must be initialised and its log be taken care of, as `weft::llama::Model::load` does.
    ///
    /// # Errors
    /// A message, when llama.cpp refuses the file, or when the model's memory is not of one plain attention cache: what the benches
    /// restore under other positions is nothing else.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let name = path.to_str().and_then(|path| CString::new(path).ok());
        let name = name.ok_or_else(|| format!("{} is no path that llama.cpp can be given", path.display()))?;
        // SAFETY: the default parameters hold no pointers that we would have to keep alive, and `name` outlives the call.
        let model = unsafe { sys::llama_model_load_from_file(name.as_ptr(), sys::llama_model_default_params()) };
        if model.is_null() {
            return Err(format!("llama.cpp cannot load {}", path.display()));
        }
        // SAFETY: `name` outlives the calls; nothing but the metadata is read, and it is freed once.
        let has_output_matrix = unsafe {
            let params = sys::gguf_init_params { no_alloc: true, ctx: ptr::null_mut() };
            let file = sys::gguf_init_from_file(name.as_ptr(), params);
            let has_it = !file.is_null() && sys::gguf_find_tensor(file, c"output.weight".as_ptr()) >= 0;
            sys::gguf_free(file);
            has_it
        };
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

    /// Pieces in the vocabulary.
    pub(crate) fn n_vocab(&self) -> u32 {
        // SAFETY: the model is alive, and its vocabulary lives as long.
        unsafe { sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(self.model)) }.cast_unsigned()
    }

    /// Weights of the model.
    pub(crate) fn n_params(&self) -> u64 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_params(self.model) }
    }

    /// Bytes of its weights.
    pub(crate) fn n_bytes(&self) -> u64 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_size(self.model) }
    }

    /// Weights of the matrix that makes logits. The embedding is as large, or it is the same.
    pub(crate) fn n_output_params(&self) -> u64 {
        u64::from(self.n_vocab()) * u64::from(self.n_embd())
    }

    /// Weights of the embedding, where it is not the output matrix as well: a step reads a row of it per token, not all of it.
    pub(crate) fn n_embedding_params(&self) -> u64 {
        if self.has_output_matrix { self.n_output_params() } else { 0 }
    }

    /// Multiplications and additions of attention's two products for one row and one cell, in all layers.
    pub(crate) fn attention_ops(&self) -> u64 {
        // SAFETY: the model is alive.
        let n_layer = unsafe { sys::llama_model_n_layer(self.model) };
        // The heads together are as wide as the model, with K and with V.
        4 * u64::from(self.n_embd()) * u64::from(n_layer.cast_unsigned())
    }

    fn n_embd(&self) -> u32 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_embd(self.model) }.cast_unsigned()
    }
}

impl Drop for BareModel {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, freed once, and every `BareContext` borrows the model, so none is left.
        unsafe { sys::llama_model_free(self.model) };
    }
}
