//! Readers of a stream are woken in time, and not more often than necessary.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::engine::{MAX_WAKE_INTERVAL, WAKE_INTERVAL, WakeHandle};

/// Counts its calls, and requires this interval after each.
struct CountingWakeHandle {
    n_wakes: AtomicUsize,
    rest: Duration,
}

impl CountingWakeHandle {
    fn resting(rest: Duration) -> Arc<Self> {
        Arc::new(Self { n_wakes: AtomicUsize::new(0), rest })
    }

    fn n_wakes(&self) -> usize {
        self.n_wakes.load(Ordering::SeqCst)
    }
}

impl WakeHandle for CountingWakeHandle {
    fn wake(&self) {
        self.n_wakes.fetch_add(1, Ordering::SeqCst);
    }

    fn min_interval(&self, _: usize) -> Duration {
        self.rest
    }
}

fn submit(engine: &Engine, request: Request, wake_handle: &Arc<CountingWakeHandle>) -> Completions {
    engine.submit(request, Some(Arc::<CountingWakeHandle>::clone(wake_handle))).unwrap()
}

#[test]
fn a_wake_handle_is_called_once_per_step_for_all_its_streams() {
    let (engine, control) = start(limits(8, 4096));
    control.allow(Some(0));
    let wake_handle = CountingWakeHandle::resting(Duration::ZERO);
    let streams: Vec<_> = (0..8).map(|seed| submit(&engine, greedy(&prompt(seed, 20), 10), &wake_handle)).collect();
    control.allow(None);
    for stream in streams {
        collect(stream).unwrap();
    }
    let n_wakes = wake_handle.n_wakes();
    assert!((10..=control.plans().len()).contains(&n_wakes), "{n_wakes} rings in {} decodes", control.plans().len());
}

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(3600);

#[test]
fn a_rate_limited_wake_handle_is_called_for_the_first_token_and_the_end() {
    let (engine, _) = start(limits(1, 4096));
    let wake_handle = CountingWakeHandle::resting(LONG);
    let branches = collect(submit(&engine, greedy(&prompt(1, 20), 300), &wake_handle)).unwrap();
    // A wake handle is called after its events can be read.
    engine.stop();
    assert_eq!((branches[0].tokens.len(), wake_handle.n_wakes()), (300, 2));
}

#[test]
fn a_wake_handle_is_called_for_any_token_after_its_interval() {
    let (engine, _) = start(limits(1, 4096));
    let wake_handle = CountingWakeHandle::resting(Duration::from_nanos(1));
    collect(submit(&engine, greedy(&prompt(1, 20), 300), &wake_handle)).unwrap();
    engine.stop();
    assert_eq!(wake_handle.n_wakes(), 300, "the last token comes with the end");
}

#[test]
fn the_wake_interval_grows_with_the_number_of_streams_up_to_a_limit() {
    struct Plain;
    impl WakeHandle for Plain {
        fn wake(&self) {}
    }
    let rests = [1, 8, 9, 32, 100_000].map(|n_streams| Plain.min_interval(n_streams));
    assert_eq!(rests, [WAKE_INTERVAL, WAKE_INTERVAL, 2 * WAKE_INTERVAL, MAX_WAKE_INTERVAL, MAX_WAKE_INTERVAL]);
}

#[test]
fn deferred_wakes_are_delivered_before_a_prompt_is_computed() {
    let (engine, control) = start(limits(2, 4096));
    let wake_handle = CountingWakeHandle::resting(LONG);
    control.allow(Some(5));
    let first = submit(&engine, greedy(&prompt(1, 20), 300), &wake_handle);
    wait_until(&engine, |stats| stats.n_decodes == 5);
    assert_eq!(wake_handle.n_wakes(), 1);
    // Its own wake handle is not called for the other's tokens.
    let second = submit(&engine, greedy(&prompt(2, 20), 300), &CountingWakeHandle::resting(LONG));
    // The decode that was held, and then the one with the prompt.
    control.allow(Some(1));
    wait_until(&engine, |stats| stats.n_decodes == 6);
    wait_until(&engine, |_| wake_handle.n_wakes() == 2);
    drop((first, second));
    control.allow(None);
}

/// Owns the engine, and stops it from the worker's own thread.
struct StoppingWakeHandle(Engine);

impl WakeHandle for StoppingWakeHandle {
    fn wake(&self) {
        self.0.stop();
    }
}

#[test]
fn a_wake_handle_may_stop_the_engine() {
    let (engine, _) = start(limits(1, 256));
    let wake_handle: Arc<dyn WakeHandle> = Arc::new(StoppingWakeHandle(engine.clone()));
    let stream = engine.submit(greedy(&prompt(1, 20), 200), Some(wake_handle)).unwrap();
    assert_eq!(collect(stream), Err(Error::Stopped));
}
