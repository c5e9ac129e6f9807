//! Releases pages of a device cache that were never written.

use llama_cpp_sys_2 as sys;

use crate::llama::kernels;

/// llama.cpp writes zeros to a whole new cache, so that all of it would be resident: 48 MiB for 32 slots of the demo model. Memories
/// other than one plain buffer on the CPU are left unchanged.
///
/// # Safety
/// `memory` is alive, and all of its bytes are zeros.
pub(crate) unsafe fn release_zero_pages(memory: sys::llama_memory_t) {
    // SAFETY: the caller guarantees the memory.
    for buffer in unsafe { kernels::buffers(memory) } {
        // SAFETY: the buffer belongs to the memory, and is only read. A plain buffer is allocated by `malloc`, and zeroed before and
        // after.
        unsafe {
            if sys::ggml_backend_buffer_get_type(buffer) == sys::ggml_backend_cpu_buffer_type() {
                discard(sys::ggml_backend_buffer_get_base(buffer).cast(), sys::ggml_backend_buffer_get_size(buffer));
            }
        }
    }
}

/// Pages that the system refuses to discard, such as locked ones, stay.
///
/// # Safety
/// The bytes are the process's own, backed by no file, and zeros.
#[cfg(target_os = "linux")]
unsafe fn discard(base: *mut u8, n_bytes: usize) {
    // SAFETY: it only returns a number.
    let Ok(page) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else { return };
    let before = base.addr().next_multiple_of(page) - base.addr();
    let n_whole = n_bytes.saturating_sub(before) / page * page;
    if n_whole > 0 {
        // SAFETY: the pages lie within the bytes, which the caller guarantees.
        unsafe { libc::madvise(base.add(before).cast(), n_whole, libc::MADV_DONTNEED) };
    }
}

/// Does nothing: other systems do not promise zeros.
#[cfg(not(target_os = "linux"))]
unsafe fn discard(_base: *mut u8, _n_bytes: usize) {}
