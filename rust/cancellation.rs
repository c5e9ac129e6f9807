//! Cancelling long work whose caller has left.
//!
//! A [`Cancellation`] is active on a thread while [`Cancellation::run`] is on its stack. Long work calls [`check`] now and then, on
//! the thread that runs it, and returns [`Error::Cancelled`] once the cancellation was triggered from any other thread. The thread
//! local spares every function between the two a parameter.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

thread_local! {
    static CURRENT: RefCell<Option<Cancellation>> = const { RefCell::new(None) };
}

/// A flag that stops long work. Clones share the flag, and it is never reset.
#[derive(Debug, Clone, Default)]
pub struct Cancellation(Arc<AtomicBool>);

impl Cancellation {
    /// Stops the work at its next [`check`]. May be called from any thread, before, during and after the work.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if [`Cancellation::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the cancellation that is active on this thread, to make it active on a helper thread too.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Calls `work` with this cancellation active on this thread.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let _restore = Restore(CURRENT.replace(Some(self.clone())));
        work()
    }
}

/// Makes the previous cancellation active again, also after a panic.
struct Restore(Option<Cancellation>);

impl Drop for Restore {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// Returns an error once the cancellation that is active on this thread was triggered.
///
/// # Errors
/// [`Error::Cancelled`].
pub fn check() -> Result<()> {
    let is_cancelled = CURRENT.with_borrow(|current| current.as_ref().is_some_and(Cancellation::is_cancelled));
    if is_cancelled { Err(Error::Cancelled) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_inside_run_is_cancelled() {
        let cancellation = Cancellation::default();
        cancellation.cancel();
        assert_eq!(check(), Ok(()));
        assert_eq!(cancellation.run(check), Err(Error::Cancelled));
        assert_eq!(check(), Ok(()));
    }

    #[test]
    fn inner_work_has_its_own_cancellation_and_the_outer_one_is_restored_after_a_panic() {
        let (outer, inner) = (Cancellation::default(), Cancellation::default());
        outer.run(|| {
            inner.cancel();
            assert_eq!(inner.run(check), Err(Error::Cancelled));
            let panicked = std::panic::catch_unwind(|| inner.run(|| panic!("a bug")));
            assert!(panicked.is_err());
            assert_eq!(check(), Ok(()));
            outer.cancel();
            assert_eq!(check(), Err(Error::Cancelled));
        });
    }

    #[test]
    fn another_thread_cancels_and_a_helper_thread_takes_over_the_cancellation() {
        let cancellation = Cancellation::default();
        cancellation.run(|| {
            std::thread::scope(|scope| {
                let current = Cancellation::current().expect("it is active");
                scope.spawn(|| cancellation.cancel()).join().expect("it does not panic");
                let helper = scope.spawn(move || current.run(check));
                assert_eq!(helper.join().expect("it does not panic"), Err(Error::Cancelled));
            });
        });
    }
}
