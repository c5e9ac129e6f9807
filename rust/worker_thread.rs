//! A named thread that is started with a result and joined when its owner stops.

use std::process;
use std::sync::{Mutex, mpsc};
use std::thread::{self, JoinHandle, ThreadId};

use crate::error::{Error, Result};
use crate::lock::lock;

/// A running thread. The owner sends it a message to stop, then calls [`WorkerThread::join`].
#[derive(Debug)]
pub(crate) struct WorkerThread {
    /// `None` after it was joined.
    handle: Mutex<Option<JoinHandle<()>>>,
    id: ThreadId,
    /// Id of the process that started the thread. A forked child has no such thread to join.
    process_id: u32,
}

impl WorkerThread {
    /// Starts a thread with this name that calls `run`.
    ///
    /// # Errors
    /// [`Error::Stopped`] if the system cannot start a thread.
    pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<Self> {
        let handle = thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|_| Error::Stopped)?;
        Ok(Self { id: handle.thread().id(), handle: Mutex::new(Some(handle)), process_id: process::id() })
    }

    /// Starts a thread with this name that calls `build`, and waits for it. `build` returns a value for the caller, and the
    /// function that the thread calls next, which may own values that must not leave the thread.
    ///
    /// # Errors
    /// The error of `build`; [`Error::Stopped`] if `build` panics or the system cannot start a thread.
    pub(crate) fn start<T, R>(name: &str, build: impl FnOnce() -> Result<(T, R)> + Send + 'static) -> Result<(Self, T)>
    where
        T: Send + 'static,
        R: FnOnce(),
    {
        let (reply, started) = mpsc::sync_channel(1);
        // Sending cannot fail: this call waits for the reply.
        let thread = Self::spawn(name, move || match build() {
            Ok((value, run)) => {
                if reply.send(Ok(value)).is_ok() {
                    run();
                }
            }
            Err(error) => drop(reply.send(Err(error))),
        })?;
        let value = started.recv().map_err(|_| Error::Stopped)??;
        Ok((thread, value))
    }

    /// Returns true if the thread exists in this process, which is false in a forked child.
    pub(crate) fn is_of_this_process(&self) -> bool {
        process::id() == self.process_id
    }

    /// Returns true until the thread has ended or is joined. Never waits.
    pub(crate) fn is_running(&self) -> bool {
        // Another thread that holds the lock waits for this one.
        self.handle.try_lock().map_or(true, |handle| handle.as_ref().is_some_and(|handle| !handle.is_finished()))
    }

    /// Waits until the thread has ended; concurrent calls all wait. Returns immediately on the thread itself, which may drop
    /// its owner in a callback, and in a forked child. A panic of the thread was already reported by itself.
    pub(crate) fn join(&self) {
        if !self.is_of_this_process() || thread::current().id() == self.id {
            return;
        }
        let mut handle = lock(&self.handle);
        drop(handle.take().map(JoinHandle::join));
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn start_returns_the_value_of_build_and_runs_with_values_that_are_not_send() {
        let (sender, receiver) = mpsc::channel();
        let (thread, value) = WorkerThread::start("weft-test", move || {
            let not_send = Rc::new(7);
            let value = *not_send + 1;
            let run = move || {
                let name = thread::current().name().map(str::to_owned);
                sender.send((*not_send, name)).expect("the test reads it");
            };
            Ok((value, run))
        })
        .expect("build succeeds");
        assert_eq!(value, 8);
        thread.join();
        assert_eq!(receiver.try_recv(), Ok((7, Some("weft-test".to_owned()))));
    }

    #[test]
    fn a_failed_build_is_the_error_and_a_panic_means_stopped() {
        let failed = WorkerThread::start("weft-test", || Err::<((), fn()), _>(Error::Cancelled));
        assert!(matches!(failed, Err(Error::Cancelled)));
        let panicked = WorkerThread::start("weft-test", || -> Result<((), fn())> { panic!("a bug") });
        assert!(matches!(panicked, Err(Error::Stopped)));
    }

    #[test]
    fn join_waits_for_the_end_and_returns_after_a_panic_and_when_called_twice() {
        let has_ended = Arc::new(AtomicBool::new(false));
        let (open_gate, gate) = mpsc::channel::<()>();
        let thread = WorkerThread::spawn("weft-test", {
            let has_ended = Arc::clone(&has_ended);
            move || {
                gate.recv().expect("the test opens the gate");
                has_ended.store(true, Ordering::Release);
                panic!("a bug");
            }
        })
        .expect("the system starts threads");
        assert!(thread.is_running());
        open_gate.send(()).expect("the thread waits for it");
        thread.join();
        assert!(has_ended.load(Ordering::Acquire));
        assert!(!thread.is_running());
        thread.join();
    }

    #[test]
    fn join_returns_on_the_thread_itself_and_in_another_process() {
        let (sender, receiver) = mpsc::channel::<Arc<WorkerThread>>();
        let (joined, has_joined) = mpsc::channel();
        let run = move || {
            receiver.recv().expect("the test sends the thread").join();
            joined.send(()).expect("the test waits for it");
        };
        let thread = Arc::new(WorkerThread::spawn("weft-test", run).expect("the system starts threads"));
        sender.send(Arc::clone(&thread)).expect("the thread waits for it");
        has_joined.recv().expect("it does not wait for itself");
        let (_open_gate, gate) = mpsc::channel::<()>();
        let mut forked =
            WorkerThread::spawn("weft-test", move || gate.recv().unwrap_or_default()).expect("the system starts threads");
        forked.process_id ^= 1;
        assert!(!forked.is_of_this_process());
        forked.join();
    }
}
