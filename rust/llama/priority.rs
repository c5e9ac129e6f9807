//! Who goes first where threads that compute and others want a processor.

use std::io;

use crate::config::ThreadPriority;

/// How Linux takes turns among the threads that want a processor.
#[cfg(target_os = "linux")]
mod system {
    use std::ffi::c_int;

    pub(super) const SCHED_OTHER: c_int = 0;
    pub(super) const SCHED_RR: c_int = 2;
    pub(super) const SCHED_BATCH: c_int = 3;

    #[repr(C)]
    pub(super) struct Param {
        pub(super) priority: c_int,
    }

    unsafe extern "C" {
        pub(super) fn sched_setscheduler(thread: c_int, policy: c_int, param: *const Param) -> c_int;
    }
}

/// Gives this thread, and those that it starts from now on, this priority.
///
/// Above the normal one they take turns of their own, before all others: llama.cpp has such threads run until they wait for
/// something (`SCHED_FIFO`), and two that share a processor and wait for each other at full speed would do so for ever.
///
/// # Errors
/// The system's, where it may not be had: above the normal one it takes `CAP_SYS_NICE`, or a limit (`ulimit -r`) of as much.
#[cfg(target_os = "linux")]
pub(super) fn take(priority: ThreadPriority) -> io::Result<()> {
    // llama.cpp's numbers.
    let (policy, priority) = match priority {
        ThreadPriority::Low => (system::SCHED_BATCH, 0),
        ThreadPriority::Normal => (system::SCHED_OTHER, 0),
        ThreadPriority::Medium => (system::SCHED_RR, 40),
        ThreadPriority::High => (system::SCHED_RR, 80),
        ThreadPriority::Realtime => (system::SCHED_RR, 90),
    };
    // SAFETY: the parameters are complete, and only read; 0 is this thread.
    let code = unsafe { system::sched_setscheduler(0, policy, &system::Param { priority }) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Elsewhere threads have none of their own.
#[cfg(not(target_os = "linux"))]
pub(super) fn take(priority: ThreadPriority) -> io::Result<()> {
    if priority == ThreadPriority::Normal { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// The priority of one thread, which takes another one where that is asked for, and the normal one again when this is dropped.
#[derive(Debug, Default)]
pub(super) struct PriorityGuard {
    has: ThreadPriority,
    was_refused: bool,
}

impl PriorityGuard {
    /// This thread, and those that it starts from now on, have this priority; where they may not, the log says so once, and they have
    /// the normal one.
    pub(super) fn take(&mut self, priority: ThreadPriority) {
        if self.has == priority {
            return;
        }
        self.has = priority;
        let Err(error) = take(priority) else { return };
        // Back to the normal one is always allowed.
        let _ = take(ThreadPriority::Normal);
        if !self.was_refused {
            tracing::warn!(
                "threads compute with the normal priority, since the system refuses another ({error}); above it, it takes the \
                 capability CAP_SYS_NICE or a limit (ulimit -r) of 40, 80 or 90"
            );
        }
        self.was_refused = true;
    }
}

impl Drop for PriorityGuard {
    fn drop(&mut self) {
        self.take(ThreadPriority::Normal);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::ffi::c_int;
    use std::thread;

    use super::*;

    unsafe extern "C" {
        fn sched_getscheduler(thread: c_int) -> c_int;
    }

    fn policy() -> c_int {
        // SAFETY: it only returns a number; 0 is this thread.
        unsafe { sched_getscheduler(0) }
    }

    #[test]
    fn a_thread_has_the_priority_that_it_took_last_or_the_normal_one() {
        let seen = thread::spawn(|| {
            let mut standing = PriorityGuard::default();
            [ThreadPriority::Low, ThreadPriority::Low, ThreadPriority::Normal, ThreadPriority::Medium, ThreadPriority::Normal]
                .map(|priority| {
                    standing.take(priority);
                    (policy(), thread::spawn(policy).join().expect("it ends"))
                })
        });
        let seen = seen.join().expect("it ends");
        assert_eq!(seen[..3], [(3, 3), (3, 3), (0, 0)]);
        let allowed = if seen[3].0 == 2 { (2, 2) } else { (0, 0) };
        assert_eq!(seen[3..], [allowed, (0, 0)]);
        assert_eq!(policy(), 0, "nobody else has it");
    }
}
