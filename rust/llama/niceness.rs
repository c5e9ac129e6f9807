//! Threads that give way to others of the process.
//!
//! Those that compute tokens never rest between these, while those that answer requests rest nearly all the time and are waited for
//! when they do not. As equals, each turn of the second waits until one of the first ends. Where Linux lets threads choose how long
//! their turns are (EEVDF's slices, `sched_setattr(2)`, from 6.12 on), those that answer have short ones, which come before long
//! ones, and those that compute have long ones: nobody gets less of the processors for it. Elsewhere those that compute are nicer.

use std::time::Duration;

/// How far the threads that compute tokens give way, where turns cannot be chosen. With 10 and other work in the process, streams
/// wait for their tokens as much as they gain.
const NICENESS: i32 = 5;

/// A turn of a thread that computes tokens, a fifth of the longest that Linux knows. It ends early where somebody with shorter ones
/// is ready who has had less than its share.
const COMPUTING: Duration = Duration::from_millis(20);

/// A turn of a thread that answers: the shortest that Linux knows.
#[cfg(any(test, feature = "python"))]
const ANSWERING: Duration = Duration::from_micros(100);

/// This thread computes, and so do those that it starts from now on: tokens, or with `levels`, as nice(2) counts them, what is to
/// give way to these.
pub(crate) fn compute(levels: i32) {
    let has_turns = turns::take(COMPUTING);
    give_way(levels + if has_turns { 0 } else { NICENESS });
}

/// This thread answers requests, and so do those that it starts from now on; all is as before where turns cannot be chosen.
#[cfg(any(test, feature = "python"))]
pub(crate) fn answer() {
    turns::take(ANSWERING);
}

/// Makes this thread, and those that it starts from now on, `levels` nicer, as nice(2) counts it. At 19 they get what others leave.
#[cfg(target_os = "linux")]
fn give_way(levels: i32) {
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
fn give_way(_levels: i32) {}

/// How long this thread's turns are.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod turns {
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
        /// Of a policy that shares the processors, nanoseconds of a turn; systems that know none neither read nor write it.
        runtime: u64,
        deadline: u64,
        period: u64,
    }

    const N_BYTES: u32 = 48;
    const _: () = assert!(size_of::<Attributes>() == N_BYTES as usize, "its first version");

    /// The policies that share the processors, `SCHED_OTHER` and `SCHED_BATCH`.
    const SHARING: [u32; 2] = [0, 3];

    /// As the kernel numbers them. The C library has no functions for these two.
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
        // SAFETY: as many bytes are writable; 0 is this thread.
        let code = unsafe { syscall(GETATTR, 0 as c_int, &raw mut attributes, N_BYTES, 0 as c_uint) };
        (code == 0).then_some(attributes)
    }

    /// Whether this thread, and those that it starts from now on, have turns of `length`.
    pub(super) fn take(length: Duration) -> bool {
        let runtime = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        let Some(attributes) = current().filter(|attributes| SHARING.contains(&attributes.policy)) else { return false };
        // The rest stays as it is.
        let attributes = Attributes { size: N_BYTES, runtime, ..attributes };
        // SAFETY: as many bytes are readable as it says that it has; 0 is this thread.
        let code = unsafe { syscall(SETATTR, 0 as c_int, &raw const attributes, 0 as c_uint) };
        code == 0 && self::length() == Some(length)
    }

    /// How long they are, where the system tells.
    pub(super) fn length() -> Option<Duration> {
        current().map(|attributes| Duration::from_nanos(attributes.runtime)).filter(|length| !length.is_zero())
    }
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod turns {
    use std::time::Duration;

    pub(super) fn take(_length: Duration) -> bool {
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

    /// How nice this thread is, and how long its turns are.
    fn seen() -> (c_int, Option<Duration>) {
        // SAFETY: it only reads a number of this thread.
        (unsafe { getpriority(0, 0) }, turns::length())
    }

    #[test]
    fn who_computes_has_long_turns_or_is_nicer_and_who_answers_has_short_ones_if_there_are_any() {
        let ours = seen();
        let (computing, started) =
            thread::spawn(|| (compute(2), (seen(), thread::spawn(seen).join().expect("it ends"))).1).join().expect("it ends");
        let has_turns = computing.1 == Some(COMPUTING);
        assert_eq!(computing.0, ours.0 + 2 + if has_turns { 0 } else { NICENESS });
        assert_eq!(started, computing, "whom it starts computes as well");
        let answering = thread::spawn(|| (answer(), seen()).1).join().expect("it ends");
        assert_eq!(answering, (ours.0, if has_turns { Some(ANSWERING) } else { ours.1 }));
        assert_eq!(seen(), ours, "nobody else is concerned");
    }

    #[test]
    fn who_is_nicer_keeps_its_turns_and_who_has_turns_stays_as_nice() {
        let both = |first: fn(), second: fn()| thread::spawn(move || ((first(), second()), seen()).1).join().expect("it ends");
        assert_eq!(both(|| give_way(3), answer), both(answer, || give_way(3)));
    }
}
