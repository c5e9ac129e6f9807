//! Handle by which a test observes and controls a fake runner.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::engine::runner::Plan;
use crate::lock::lock;

const MAX_WAIT: Duration = Duration::from_secs(15);

/// A test's handle on a [`FakeRunner`](super::FakeRunner): observes and controls it.
#[derive(Clone, Default)]
pub struct FakeControl {
    shared: Arc<(Mutex<FakeState>, Condvar)>,
}

#[derive(Default)]
pub(super) struct FakeState {
    pub(super) reload_duration: Duration,
    pub(super) row_duration: Duration,
    pub(super) plans: Vec<Plan>,
    /// Number of decodes that may still run; `None` is unlimited.
    n_allowed: Option<u64>,
    is_blocked: bool,
    pub(super) failing: Option<FailureMode>,
    pub(super) n_cells_used: usize,
    pub(super) n_cells_reached: usize,
    pub(super) n_saves: usize,
    pub(super) n_reloads: usize,
    pub(super) fails_state_io: bool,
    pub(super) min_ids_to_lose: Option<usize>,
}

/// Selects the decodes that fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureMode {
    MoreRowsThan(usize),
    All,
}

impl FakeControl {
    pub(super) fn lock(&self) -> MutexGuard<'_, FakeState> {
        lock(&self.shared.0)
    }

    fn wait_while(&self, is_waiting: impl Fn(&FakeState) -> bool) -> MutexGuard<'_, FakeState> {
        let waited = self.shared.1.wait_timeout_while(self.lock(), MAX_WAIT, |state| is_waiting(state));
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "a test or a decode waited {MAX_WAIT:?} for the other");
        state
    }

    /// Lets `n` more decodes run and blocks the next one; `None`, the initial state, lets all run.
    pub fn allow(&self, n: Option<u64>) {
        self.lock().n_allowed = n;
        self.shared.1.notify_all();
    }

    /// Blocks the next decode, and waits until one is blocked: all requests that are submitted then are received in the same
    /// step, after that decode.
    pub fn hold(&self) {
        self.lock().n_allowed = Some(0);
        drop(self.wait_while(|state| !state.is_blocked));
    }

    pub fn is_waiting(&self) -> bool {
        let state = self.lock();
        state.is_blocked && state.n_allowed == Some(0)
    }

    pub(super) fn wait_for_permission(&self) {
        let mut state = self.lock();
        if state.n_allowed == Some(0) {
            state.is_blocked = true;
            self.shared.1.notify_all();
        }
        drop(state);
        let mut state = self.wait_while(|state| state.n_allowed == Some(0));
        state.is_blocked = false;
        if let Some(n) = &mut state.n_allowed {
            *n -= 1;
        }
    }

    pub fn fail(&self, failing: Option<FailureMode>) {
        self.lock().failing = failing;
    }

    pub fn n_computed(&self) -> usize {
        self.lock().plans.iter().map(|plan| plan.rows.len()).sum()
    }

    pub fn plans(&self) -> Vec<Plan> {
        self.lock().plans.clone()
    }

    pub fn n_cells_used(&self) -> usize {
        self.lock().n_cells_used
    }

    /// The highest cell in use, plus one.
    pub fn n_cells_reached(&self) -> usize {
        self.lock().n_cells_reached
    }

    pub fn n_saves(&self) -> usize {
        self.lock().n_saves
    }

    pub fn n_reloads(&self) -> usize {
        self.lock().n_reloads
    }

    /// Makes relocation lose cells that at least `min_ids` sequence ids share from now on.
    pub fn lose_cells(&self, min_ids: usize) {
        self.lock().min_ids_to_lose = Some(min_ids);
    }

    pub fn slow_reloads(&self, each: Duration) {
        self.lock().reload_duration = each;
    }

    pub fn slow_rows(&self, each: Duration) {
        self.lock().row_duration = each;
    }

    /// Makes saving and reloading fail from now on, or succeed again.
    pub fn fail_states(&self, fails: bool) {
        self.lock().fails_state_io = fails;
    }
}
