//! Limits on the freed memory that the system's allocator retains.

/// By default glibc retains freed blocks of up to 32 MiB, in up to eight arenas per processor: a server that has read large bodies
/// would hold hundreds of megabytes for good. Other allocators are left unchanged.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn trim_allocator() {
    use std::ffi::c_int;
    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
    const M_ARENA_MAX: c_int = -8;
    const M_MMAP_THRESHOLD: c_int = -3;
    const M_TRIM_THRESHOLD: c_int = -1;
    for (parameter, value) in [(M_ARENA_MAX, 4), (M_MMAP_THRESHOLD, 1 << 20), (M_TRIM_THRESHOLD, 2 << 20)] {
        // SAFETY: it sets a number that the allocator reads; unknown parameters are ignored.
        let _ = unsafe { mallopt(parameter, value) };
    }
}

/// Returns free pages in the middle of the heap as well. A gigabyte takes about 80 ms, for part of which other threads that allocate
/// must wait.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn trim_heap() {
    use std::ffi::c_int;
    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> c_int;
    }
    // SAFETY: it takes the allocator's own locks, and does not touch memory that is in use.
    let _ = unsafe { malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn trim_heap() {}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn trim_allocator() {}
