//! Scheduling priority of compute threads.

use std::io;

use crate::config::ThreadPriority;

/// Sets the priority of this thread, and of threads that it starts from now on.
///
/// llama.cpp uses `SCHED_FIFO`, under which two threads that share a processor and poll for each other would never finish. A priority
/// above normal requires `CAP_SYS_NICE` or a sufficient limit (`ulimit -r`).
#[cfg(target_os = "linux")]
pub(crate) fn set(priority: ThreadPriority) -> io::Result<()> {
    // llama.cpp's values.
    let (policy, priority) = match priority {
        ThreadPriority::Low => (libc::SCHED_BATCH, 0),
        ThreadPriority::Normal => (libc::SCHED_OTHER, 0),
        ThreadPriority::Medium => (libc::SCHED_RR, 40),
        ThreadPriority::High => (libc::SCHED_RR, 80),
        ThreadPriority::Realtime => (libc::SCHED_RR, 90),
    };
    // SAFETY: the parameters are complete, and only read; 0 is this thread.
    let code = unsafe { libc::sched_setscheduler(0, policy, &libc::sched_param { sched_priority: priority }) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn set(priority: ThreadPriority) -> io::Result<()> {
    if priority == ThreadPriority::Normal { Ok(()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

#[derive(Debug, Default)]
pub(crate) struct PriorityGuard {
    current: ThreadPriority,
    was_refused: bool,
}

impl PriorityGuard {
    /// As [`set`]. If the system refuses, logs a warning once and uses the normal priority.
    pub(crate) fn set(&mut self, priority: ThreadPriority) {
        if self.current == priority {
            return;
        }
        self.current = priority;
        let Err(error) = set(priority) else { return };
        // Returning to the normal priority is always allowed.
        let _ = set(ThreadPriority::Normal);
        if !self.was_refused {
            tracing::warn!(
                "the system refused the thread priority ({error}), so threads run with the normal one; a higher priority needs the \
                 capability CAP_SYS_NICE or a limit (ulimit -r) of 40, 80 or 90"
            );
        }
        self.was_refused = true;
    }
}

impl Drop for PriorityGuard {
    fn drop(&mut self) {
        self.set(ThreadPriority::Normal);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::ffi::c_int;
    use std::thread;

    use super::*;

    fn policy() -> c_int {
        // SAFETY: it only returns a number; 0 is this thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_guard_sets_the_requested_priority_or_the_normal_one() {
        let policies = thread::spawn(|| {
            let mut guard = PriorityGuard::default();
            [ThreadPriority::Low, ThreadPriority::Low, ThreadPriority::Normal, ThreadPriority::Medium, ThreadPriority::Normal]
                .map(|priority| {
                    guard.set(priority);
                    (policy(), thread::spawn(policy).join().expect("the thread ends"))
                })
        });
        let policies = policies.join().expect("the thread ends");
        assert_eq!(policies[..3], [(3, 3), (3, 3), (0, 0)]);
        let allowed = if policies[3].0 == 2 { (2, 2) } else { (0, 0) };
        assert_eq!(policies[3..], [allowed, (0, 0)]);
        assert_eq!(policy(), 0, "other threads are not affected");
    }
}
