//! Threads that give way to others of the process.

/// How far the threads that compute tokens give way. They never rest between tokens, while those that answer requests rest nearly all
/// the time and are waited for when they do not: at the same level, each of their turns waits some milliseconds for a core. With 10
/// and other work in the process, streams wait for their tokens as much as they gain.
pub(super) const NICENESS: i32 = 5;

/// Makes this thread, and those that it starts from now on, `levels` nicer, as nice(2) counts it. At 19 they get what others leave.
#[cfg(target_os = "linux")]
pub(crate) fn give_way(levels: i32) {
    use std::ffi::{c_int, c_uint};
    unsafe extern "C" {
        fn getpriority(which: c_int, who: c_uint) -> c_int;
        fn setpriority(which: c_int, who: c_uint, level: c_int) -> c_int;
    }
    // SAFETY: they only read and set a number of this thread, which Linux takes for a process of its own; it keeps it below 20. That
    // they may not is no harm.
    let _ = unsafe { setpriority(0, 0, getpriority(0, 0) + levels) };
}

/// Elsewhere the level would be the whole process's.
#[cfg(not(target_os = "linux"))]
pub(crate) fn give_way(_levels: i32) {}
