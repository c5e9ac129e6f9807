//! Releases pages of a device cache that were never written.

use llama_cpp_sys_2 as sys;

use crate::llama::kernels;

/// Returns the pages of a new device cache to the operating system, which provides zeroed pages on the next access.
///
/// llama.cpp writes zeros to the whole cache, so that all of it would be resident before the first token: 48 MiB for 32 slots of
/// the demo model. Memories other than one plain buffer on the CPU are left unchanged.
///
/// # Safety
/// `memory` is alive, and all of its bytes are zeros.
/// `memory` is alive, and all of its bytes are zeros.
pub(in crate::llama) unsafe fn release_zero_pages(memory: sys::llama_memory_t) {
    // SAFETY: the caller guarantees the memory.
    for buffer in unsafe { kernels::buffers(memory) } {
        // SAFETY: the buffer belongs to the memory; both calls only read it.
        let is_plain = unsafe { sys::ggml_backend_buffer_get_type(buffer) == sys::ggml_backend_cpu_buffer_type() };
        if !is_plain {
            continue;
        }
        // SAFETY: as above.
        let (base, n_bytes) = unsafe { (sys::ggml_backend_buffer_get_base(buffer), sys::ggml_backend_buffer_get_size(buffer)) };
        // SAFETY: a plain buffer is `n_bytes` allocated by `malloc`, zeroed before and after.
        unsafe { system::discard(base.cast(), n_bytes) };
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::ffi::{c_int, c_long, c_void};

    /// The same value on every architecture that Rust's standard library supports on Linux.
    const MADV_DONTNEED: c_int = 4;
    const SC_PAGESIZE: c_int = 30;

    unsafe extern "C" {
        fn madvise(address: *mut c_void, n_bytes: usize, advice: c_int) -> c_int;
        fn sysconf(name: c_int) -> c_long;
    }

    /// Discards the pages that lie completely within `n_bytes` from `base` on. Pages that the system refuses to discard, such as
    /// Pages that the system refuses to discard, such as locked ones, stay.
    ///
    /// # Safety
    /// The bytes are the process's own, backed by no file, and zeros.
    pub(in crate::llama) unsafe fn discard(base: *mut u8, n_bytes: usize) {
        // SAFETY: it only returns a number.
        let Ok(page) = usize::try_from(unsafe { sysconf(SC_PAGESIZE) }) else { return };
        let before = base.addr().next_multiple_of(page) - base.addr();
        let n_whole = n_bytes.saturating_sub(before) / page * page;
        if n_whole > 0 {
            // SAFETY: the pages lie within the bytes, which the caller guarantees.
            unsafe { madvise(base.add(before).cast(), n_whole, MADV_DONTNEED) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    /// Does nothing: other systems do not promise zeros.
    pub(in crate::llama) unsafe fn discard(_base: *mut u8, _n_bytes: usize) {}
}
