//! ggml's devices, which live forever once the backend was started.

use std::ffi::{CStr, c_char};

use llama_cpp_sys_2 as sys;

#[derive(Clone, Copy)]
pub(crate) struct Device(sys::ggml_backend_dev_t);

impl Device {
    /// Returns all devices. The backend must have been started.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        // SAFETY: a started backend's devices are registered.
        unsafe { (0..sys::ggml_backend_dev_count()).map(|i| Self(sys::ggml_backend_dev_get(i))) }
    }

    /// The devices that layers of a model can be offloaded to.
    pub(crate) fn gpus() -> impl Iterator<Item = Self> {
        let kinds = [sys::GGML_BACKEND_DEVICE_TYPE_GPU, sys::GGML_BACKEND_DEVICE_TYPE_IGPU];
        Self::all().filter(move |device| kinds.contains(&device.kind()))
    }

    pub(crate) fn as_ptr(self) -> sys::ggml_backend_dev_t {
        self.0
    }

    pub(crate) fn kind(self) -> sys::ggml_backend_dev_type {
        // SAFETY: the device is registered.
        unsafe { sys::ggml_backend_dev_type(self.0) }
    }

    pub(crate) fn is_cpu(self) -> bool {
        self.kind() == sys::GGML_BACKEND_DEVICE_TYPE_CPU
    }

    pub(crate) fn name(self) -> String {
        self.text(sys::ggml_backend_dev_name)
    }

    pub(crate) fn description(self) -> String {
        self.text(sys::ggml_backend_dev_description)
    }

    fn text(self, property: unsafe extern "C" fn(sys::ggml_backend_dev_t) -> *const c_char) -> String {
        // SAFETY: the device is registered; its texts are NUL-terminated and live as long.
        unsafe { CStr::from_ptr(property(self.0)) }.to_string_lossy().into_owned()
    }

    /// Free and total bytes of its memory.
    pub(crate) fn memory(self) -> (u64, u64) {
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: the device is registered, and both numbers are writable.
        unsafe { sys::ggml_backend_dev_memory(self.0, &raw mut free, &raw mut total) };
        (free as u64, total as u64)
    }
}
