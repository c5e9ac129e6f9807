//! Reduces the latency of threads that answer requests while compute threads are busy.
//!
//! Threads that compute tokens never sleep while streams run; with equal scheduling, a thread that answers requests waits at each
//! wake-up for the end of a compute thread's time slice. Where Linux lets threads choose the length of their slices (EEVDF, from 6.12
//! on), answering threads get short slices, which are scheduled first. Elsewhere compute threads get a higher niceness.

use std::time::Duration;

/// With 10 and other work in the process, streams lose as much in token latency as they gain.
const NICENESS: i32 = 5;

const COMPUTE_SLICE: Duration = Duration::from_millis(20);

const ANSWER_SLICE: Duration = Duration::from_micros(100);

/// Configures this thread, and threads that it starts from now on, with `levels` of additional niceness.
pub(crate) fn compute(levels: i32) {
    let has_slices = slices::set(COMPUTE_SLICE);
    add_niceness(levels + if has_slices { 0 } else { NICENESS });
}

pub(crate) fn answer() {
    slices::set(ANSWER_SLICE);
}

#[cfg(target_os = "linux")]
fn add_niceness(levels: i32) {
    // SAFETY: both calls only access an integer of this thread (Linux treats it as a process).
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, libc::getpriority(libc::PRIO_PROCESS, 0) + levels) };
}

/// Does nothing: elsewhere the niceness belongs to the whole process.
#[cfg(not(target_os = "linux"))]
fn add_niceness(_levels: i32) {}

#[cfg(target_os = "linux")]
mod slices {
    use std::time::Duration;

    const N_BYTES: u32 = 48;
    const _: () = assert!(size_of::<libc::sched_attr>() == N_BYTES as usize, "its first version");

    /// `sched_runtime` is the slice in nanoseconds; systems without custom slices neither read nor write it.
    fn current() -> Option<libc::sched_attr> {
        // SAFETY: plain numbers, for which zeros are valid values.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        // SAFETY: `N_BYTES` are writable; 0 is this thread.
        let code = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, N_BYTES, 0) };
        (code == 0).then_some(attributes)
    }

    /// Sets the slices also of threads that this one starts from now on. Returns true if the system applied `length`.
    pub(super) fn set(length: Duration) -> bool {
        let is_time_sharing = |policy: u32| [libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&policy.cast_signed());
        let Some(attributes) = current().filter(|attributes| is_time_sharing(attributes.sched_policy)) else { return false };
        let sched_runtime = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        let attributes = libc::sched_attr { size: N_BYTES, sched_runtime, ..attributes };
        // SAFETY: `size` bytes are readable; 0 is this thread.
        let code = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
        code == 0 && self::length() == Some(length)
    }

    pub(super) fn length() -> Option<Duration> {
        current().map(|attributes| Duration::from_nanos(attributes.sched_runtime)).filter(|length| !length.is_zero())
    }
}

#[cfg(not(target_os = "linux"))]
mod slices {
    pub(super) fn set(_length: std::time::Duration) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests {
    use std::thread;

    use super::*;

    /// Returns the niceness and the slice length of this thread.
    fn observed() -> (i32, Option<Duration>) {
        // SAFETY: it only reads a number of this thread.
        (unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }, slices::length())
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
