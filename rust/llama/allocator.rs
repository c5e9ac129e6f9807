//! How much the system's allocator keeps of what was freed.

/// Lets the allocator give back what was freed: what is larger than 1 MiB at once, and of the rest all but some MiB of a few
/// arenas. By itself glibc's keeps up to 32 MiB whole, in eight arenas for each processor, once as much was allocated and freed: a
/// server that has read large bodies would hold hundreds of megabytes for good. Other allocators are left as they are.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn trim_allocator() {
    use std::ffi::c_int;
    unsafe extern "C" {
        fn mallopt(parameter: c_int, value: c_int) -> c_int;
    }
    // From <malloc.h>: the arenas, the size from which on memory is mapped on its own, and what is kept at an arena's end.
    const M_ARENA_MAX: c_int = -8;
    const M_MMAP_THRESHOLD: c_int = -3;
    const M_TRIM_THRESHOLD: c_int = -1;
    for (parameter, value) in [(M_ARENA_MAX, 4), (M_MMAP_THRESHOLD, 1 << 20), (M_TRIM_THRESHOLD, 2 << 20)] {
        // SAFETY: it sets a number that the allocator reads; one that it does not know is passed over.
        let _ = unsafe { mallopt(parameter, value) };
    }
}

/// Gives the system the pages that are free in the middle of the heap as well, which the allocator keeps: some bytes that are in use
/// after hundreds of megabytes that are not are enough for it. A gigabyte takes some 80 ms, for a part of which those wait who
/// allocate meanwhile.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn trim_heap() {
    use std::ffi::c_int;
    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> c_int;
    }
    // SAFETY: it takes the allocator's own locks, and touches nothing that is in use.
    let _ = unsafe { malloc_trim(0) };
}

/// Nothing is known of other allocators.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn trim_heap() {}

/// Nothing is known of other allocators.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn trim_allocator() {}
