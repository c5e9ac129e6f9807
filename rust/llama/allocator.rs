//! How much the system's allocator keeps of what was freed.

/// Lets the allocator give back what was freed: what is larger than 1 MiB at once, and of the rest all but some MiB of a few
/// arenas. By itself glibc's keeps up to 32 MiB whole, in eight arenas for each processor, once as much was allocated and freed: a
/// server that has read large bodies would hold hundreds of megabytes for good. Other allocators are left as they are.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn give_back_what_is_freed() {
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

/// Nothing is known of other allocators.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn give_back_what_is_freed() {}
