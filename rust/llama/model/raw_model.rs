//! llama.cpp's model, freed on drop.

use std::ffi::CStr;

use llama_cpp_sys_2 as sys;

use crate::llama::logging;

owned_pointer!(pub(crate) struct RawModel(sys::llama_model), freed by sys::llama_model_free);

// SAFETY: a loaded model is only read, except while its adapters are loaded, before it is shared, and while a context is created,
// by one thread at a time.
unsafe impl Send for RawModel {}
// SAFETY: as above.
unsafe impl Sync for RawModel {}

impl RawModel {
    /// # Safety
    /// Everything that `params` points to lives during the call.
    pub(crate) unsafe fn load(path: &CStr, params: sys::llama_model_params) -> Result<Self, String> {
        // SAFETY: the path is NUL-terminated, and the caller guarantees the parameters.
        logging::non_null(|| unsafe { sys::llama_model_load_from_file(path.as_ptr(), params) }).map(Self)
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::llama_model {
        self.0.as_ptr()
    }

    pub(crate) fn get<T>(&self, property: unsafe extern "C" fn(*const sys::llama_model) -> T) -> T {
        // SAFETY: the model is alive.
        unsafe { property(self.as_ptr()) }
    }
}
