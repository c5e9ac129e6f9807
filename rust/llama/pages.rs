//! The pages of a pool whose cells were never written.

use llama_cpp_sys_2 as sys;

use crate::llama::kernels;

/// Gives the pages of a pool back to the operating system, which hands out zeros where one is touched next.
///
/// llama.cpp writes zeros to all of a new pool, so that all of it is resident before the first token is computed: 48 MiB for 32
/// slots of the demo model, and gigabytes for a long context. What it gets back page by page are the same zeros. Memories other
/// than one plain pool, devices other than the CPU and systems other than Linux are left as they are.
///
/// # Safety
/// `memory` is alive, and all of its bytes are zeros.
pub(super) unsafe fn give_back(memory: sys::llama_memory_t) {
    // SAFETY: the caller vouches for the memory.
    for buffer in unsafe { kernels::buffers(memory) } {
        // SAFETY: the buffer belongs to the memory; both only look at it.
        let is_plain = unsafe { sys::ggml_backend_buffer_get_type(buffer) == sys::ggml_backend_cpu_buffer_type() };
        if !is_plain {
            continue;
        }
        // SAFETY: as above.
        let (base, n_bytes) = unsafe { (sys::ggml_backend_buffer_get_base(buffer), sys::ggml_backend_buffer_get_size(buffer)) };
        // SAFETY: a plain buffer is `n_bytes` that `malloc` has given, and they are zeros before and after.
        unsafe { system::forget(base.cast(), n_bytes) };
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::ffi::{c_int, c_long, c_void};

    /// The same number on every processor that Rust's standard library runs on.
    const MADV_DONTNEED: c_int = 4;
    const SC_PAGESIZE: c_int = 30;

    unsafe extern "C" {
        fn madvise(address: *mut c_void, n_bytes: usize, advice: c_int) -> c_int;
        fn sysconf(name: c_int) -> c_long;
    }

    /// Lets the pages that lie wholly within `n_bytes` from `base` on go. Where the system refuses, as for memory that is locked, they
    /// stay.
    ///
    /// # Safety
    /// The bytes are the process's own, backed by no file, and zeros.
    pub(super) unsafe fn forget(base: *mut u8, n_bytes: usize) {
        // SAFETY: it only returns a number.
        let Ok(page) = usize::try_from(unsafe { sysconf(SC_PAGESIZE) }) else { return };
        let before = base.addr().next_multiple_of(page) - base.addr();
        let n_whole = n_bytes.saturating_sub(before) / page * page;
        if n_whole > 0 {
            // SAFETY: the pages lie within the bytes, which the caller vouches for.
            unsafe { madvise(base.add(before).cast(), n_whole, MADV_DONTNEED) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    /// Other systems do not promise zeros.
    pub(super) unsafe fn forget(_base: *mut u8, _n_bytes: usize) {}
}
