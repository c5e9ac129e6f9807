//! Reduces the latency of threads that answer requests while compute threads are busy.
//!
//! Threads that compute tokens never sleep while streams run; with equal scheduling, a thread that answers requests waits at each
//! wake-up for the end of a compute thread's time slice. Where Linux lets threads choose the length of their slices (EEVDF, from 6.12
//! on), answering threads get short slices, which are scheduled first. Elsewhere compute threads get a higher niceness.

use std::time::Duration;

/// With 10 and other work in the process, streams lose as much in token latency as they gain.
const NICENESS: i32 = 5;

/// A fifth of Linux's maximum.
const COMPUTE_SLICE: Duration = Duration::from_millis(20);

/// Linux's minimum.
#[cfg(any(test, feature = "python"))]
const ANSWER_SLICE: Duration = Duration::from_micros(100);

/// Configures this thread, and threads that it starts from now on, with `levels` of additional niceness.
pub(crate) fn compute(levels: i32) {
    let has_slices = slices::set(COMPUTE_SLICE);
    add_niceness(levels + if has_slices { 0 } else { NICENESS });
}

#[cfg(any(test, feature = "python"))]
pub(crate) fn answer() {
    slices::set(ANSWER_SLICE);
}

#[cfg(target_os = "linux")]
fn add_niceness(levels: i32) {
    use std::ffi::{c_int, c_uint};
    unsafe extern "C" {
        fn getpriority(which: c_int, who: c_uint) -> c_int;
        fn setpriority(which: c_int, who: c_uint, level: c_int) -> c_int;
    }
    // SAFETY: both calls only access an integer of this thread (Linux treats it as a process).
    let _ = unsafe { setpriority(0, 0, getpriority(0, 0) + levels) };
}

/// Does nothing: elsewhere the niceness belongs to the whole process.
#[cfg(not(target_os = "linux"))]
fn add_niceness(_levels: i32) {}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod slices {
    use std::ffi::{c_int, c_long, c_uint};
    use std::time::Duration;

    /// `struct sched_attr` of `sched_setattr(2)`.
    #[repr(C)]
    #[derive(Debug, Default)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        /// Slice in nanoseconds, for time-sharing policies; systems without custom slices neither read nor write it.
        runtime: u64,
        deadline: u64,
        period: u64,
    }

    const N_BYTES: u32 = 48;
    const _: () = assert!(size_of::<Attributes>() == N_BYTES as usize, "its first version");

    const TIME_SHARING: [u32; 2] = [0, 3];

    #[cfg(target_arch = "x86_64")]
    const SETATTR: c_long = 314;
    #[cfg(target_arch = "aarch64")]
    const SETATTR: c_long = 274;
    const GETATTR: c_long = SETATTR + 1;

    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
    }

    fn current() -> Option<Attributes> {
        let mut attributes = Attributes::default();
        // SAFETY: `N_BYTES` are writable; 0 is this thread.
        let code = unsafe { syscall(GETATTR, 0 as c_int, &raw mut attributes, N_BYTES, 0 as c_uint) };
        (code == 0).then_some(attributes)
    }

    /// Sets the slices also of threads that this one starts from now on. Returns whether the system applied `length`.
    pub(in crate::llama) fn set(length: Duration) -> bool {
        let runtime = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        let Some(attributes) = current().filter(|attributes| TIME_SHARING.contains(&attributes.policy)) else { return false };
        let attributes = Attributes { size: N_BYTES, runtime, ..attributes };
        // SAFETY: `size` bytes are readable; 0 is this thread.
        let code = unsafe { syscall(SETATTR, 0 as c_int, &raw const attributes, 0 as c_uint) };
        code == 0 && self::length() == Some(length)
    }

    pub(in crate::llama) fn length() -> Option<Duration> {
        current().map(|attributes| Duration::from_nanos(attributes.runtime)).filter(|length| !length.is_zero())
    }
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod slices {
    use std::time::Duration;

    pub(in crate::llama) fn set(_length: Duration) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use std::ffi::{c_int, c_uint};
    use std::thread;

    use super::*;

    unsafe extern "C" {
        fn getpriority(which: c_int, who: c_uint) -> c_int;
    }

    /// Returns the niceness and the slice length of this thread.
    fn observed() -> (c_int, Option<Duration>) {
        // SAFETY: it only reads a number of this thread.
        (unsafe { getpriority(0, 0) }, slices::length())
    }

    #[test]
    fn compute_threads_get_long_slices_or_niceness_and_answering_threads_short_slices() {
        let ours = observed();
        let (computing, started) =
            thread::spawn(|| (compute(2), (observed(), thread::spawn(observed).join().expect("the thread ends"))).1)
                .join()
                .expect("the thread ends");
        let has_slices = computing.1 == Some(COMPUTE_SLICE);
        assert_eq!(computing.0, ours.0 + 2 + if has_slices { 0 } else { NICENESS });
        assert_eq!(started, computing, "threads that it starts inherit the settings");
        let answering = thread::spawn(|| (answer(), observed()).1).join().expect("the thread ends");
        assert_eq!(answering, (ours.0, if has_slices { Some(ANSWER_SLICE) } else { ours.1 }));
        assert_eq!(observed(), ours, "other threads are not affected");
    }

    #[test]
    fn niceness_and_slice_length_are_independent() {
        let after_both = |first: fn(), second: fn()| {
            thread::spawn(move || ((first(), second()), observed()).1).join().expect("the thread ends")
        };
        assert_eq!(after_both(|| add_niceness(3), answer), after_both(answer, || add_niceness(3)));
    }
}
