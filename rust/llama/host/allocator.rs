//! Limits on the freed memory that the system's allocator retains.

/// By default glibc retains freed blocks of up to 32 MiB, in up to eight arenas per processor: a server that has read large bodies
/// would hold hundreds of megabytes for good. Other allocators are left unchanged.
pub(crate) fn trim_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in [(libc::M_ARENA_MAX, 4), (libc::M_MMAP_THRESHOLD, 1 << 20), (libc::M_TRIM_THRESHOLD, 2 << 20)] {
        // SAFETY: it sets a number that the allocator reads; unknown parameters are ignored.
        let _ = unsafe { libc::mallopt(parameter, value) };
    }
}

/// Returns free pages inside the heap too. A gigabyte takes about 80 ms, in part of which other threads that allocate must wait.
pub(crate) fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes the allocator's own locks, and does not touch memory that is in use.
    let _ = unsafe { libc::malloc_trim(0) };
}
