//! Who waits for a stream is woken in time, and not more often than it needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::engine::{MAX_WAKE_INTERVAL, WAKE_INTERVAL, WakeHandle};

/// Counts its rings, and rests so long after each.
struct CountingBell {
    n_rings: AtomicUsize,
    rest: Duration,
}

impl CountingBell {
    fn resting(rest: Duration) -> Arc<Self> {
        Arc::new(Self { n_rings: AtomicUsize::new(0), rest })
    }

    fn n_rings(&self) -> usize {
        self.n_rings.load(Ordering::SeqCst)
    }
}

impl WakeHandle for CountingBell {
    fn ring(&self) {
        self.n_rings.fetch_add(1, Ordering::SeqCst);
    }

    fn rest(&self, _: usize) -> Duration {
        self.rest
    }
}

fn submit(engine: &Engine, request: Request, bell: &Arc<CountingBell>) -> Completions {
    engine.submit(request, Some(Arc::<CountingBell>::clone(bell))).unwrap()
}

#[test]
fn a_bell_rings_once_per_step_for_all_its_streams() {
    let (engine, control) = start(limits(8, 4096));
    control.allow(Some(0));
    let bell = CountingBell::resting(Duration::ZERO);
    let streams: Vec<_> = (0..8).map(|seed| submit(&engine, greedy(&prompt(seed, 20), 10), &bell)).collect();
    control.allow(None);
    for stream in streams {
        collect(stream).unwrap();
    }
    let n_rings = bell.n_rings();
    assert!((10..=control.plans().len()).contains(&n_rings), "{n_rings} rings in {} decodes", control.plans().len());
}

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(3600);

#[test]
fn a_bell_that_rests_is_rung_for_the_first_token_and_the_end() {
    let (engine, _) = start(limits(1, 4096));
    let bell = CountingBell::resting(LONG);
    let branches = collect(submit(&engine, greedy(&prompt(1, 20), 300), &bell)).unwrap();
    // A bell is rung after its events can be read.
    engine.stop();
    assert_eq!((branches[0].tokens.len(), bell.n_rings()), (300, 2));
}

#[test]
fn a_bell_that_has_rested_is_rung_for_any_token() {
    let (engine, _) = start(limits(1, 4096));
    let bell = CountingBell::resting(Duration::from_nanos(1));
    collect(submit(&engine, greedy(&prompt(1, 20), 300), &bell)).unwrap();
    engine.stop();
    assert_eq!(bell.n_rings(), 300, "the last token comes with the end");
}

#[test]
fn a_bell_of_many_streams_rests_longer_up_to_a_bound() {
    struct Plain;
    impl WakeHandle for Plain {
        fn ring(&self) {}
    }
    let rests = [1, 8, 9, 32, 100_000].map(|n_streams| Plain.rest(n_streams));
    assert_eq!(rests, [WAKE_INTERVAL, WAKE_INTERVAL, 2 * WAKE_INTERVAL, MAX_WAKE_INTERVAL, MAX_WAKE_INTERVAL]);
}

#[test]
fn what_a_resting_bell_holds_back_is_told_before_a_prompt_is_computed() {
    let (engine, control) = start(limits(2, 4096));
    let bell = CountingBell::resting(LONG);
    control.allow(Some(5));
    let first = submit(&engine, greedy(&prompt(1, 20), 300), &bell);
    wait_until(&engine, |stats| stats.n_decodes == 5);
    assert_eq!(bell.n_rings(), 1);
    // Its own bell says nothing of the other's tokens.
    let second = submit(&engine, greedy(&prompt(2, 20), 300), &CountingBell::resting(LONG));
    // The decode that was held, and then the one with the prompt is.
    control.allow(Some(1));
    wait_until(&engine, |stats| stats.n_decodes == 6);
    wait_until(&engine, |_| bell.n_rings() == 2);
    drop((first, second));
    control.allow(None);
}

/// Owns the engine, and stops it from the worker's own thread.
struct StoppingBell(Engine);

impl WakeHandle for StoppingBell {
    fn ring(&self) {
        self.0.stop();
    }
}

#[test]
fn a_bell_may_stop_the_engine() {
    let (engine, _) = start(limits(1, 256));
    let bell: Arc<dyn WakeHandle> = Arc::new(StoppingBell(engine.clone()));
    let stream = engine.submit(greedy(&prompt(1, 20), 200), Some(bell)).unwrap();
    assert_eq!(collect(stream), Err(Error::Stopped));
}
