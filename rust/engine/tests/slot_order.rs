//! The order in which requests get slots.

use std::cell::RefCell;

use super::*;

/// Branch index and request id.
type Start = (u64, u32);

fn in_slots(stats: &Stats) -> Vec<Start> {
    stats.slots.iter().flat_map(|slot| &slot.running).map(|running| (running.request_id, running.index)).collect()
}

/// Lets decodes run one by one until `n` sequences have entered slots; returns them in this order. `tell` is called for each.
/// each.
fn starts(engine: &Engine, control: &FakeControl, n: usize, mut tell: impl FnMut(Start)) -> Vec<Start> {
    let mut starts = Vec::new();
    loop {
        for start in in_slots(&engine.stats()) {
            if !starts.contains(&start) {
                starts.push(start);
                tell(start);
            }
        }
        if starts.len() >= n {
            return starts;
        }
        step(engine, control);
    }
}

#[test]
fn a_free_slot_goes_to_a_single_completion_before_the_next_branch_of_a_running_request() {
    let (engine, control) = start(limits(2, 4096));
    control.allow(Some(0));
    let first = engine.submit(greedy(&prompt(1, 20), 30), None).unwrap();
    let many = engine.submit(drawn(&prompt(2, 20), 16, 100), None).unwrap();
    // From here on the next branch could start: its prompt is computed.
    step_until(&engine, &control, |stats| {
        in_slots(stats) == [(0, 0), (1, 0)] && stats.slots[1].running.as_ref().is_some_and(|many| many.n_predicted > 0)
    });
    let one = engine.submit(greedy(&prompt(3, 20), 5), None).unwrap();
    assert_eq!(starts(&engine, &control, 4, |_| {}), [(0, 0), (1, 0), (2, 0), (1, 1)]);
    control.allow(None);
    for stream in [first, many, one] {
        collect(stream).unwrap();
    }
}

/// A request for many completions on an otherwise idle engine, from its first token on.
fn many_alone(engine: &Engine, control: &FakeControl, n: u32, n_tokens: u32) -> Completions {
    control.allow(Some(0));
    let many = engine.submit(drawn(&prompt(1, 20), n, n_tokens), None).unwrap();
    step_until(engine, control, |stats| stats.n_predicted > 0);
    many
}

#[test]
fn single_completions_alternate_with_the_branches_of_a_large_request_on_one_slot() {
    let (engine, control) = start(limits(1, 4096));
    let many = many_alone(&engine, &control, 6, 5);
    let ones = [2, 3].map(|seed| engine.submit(greedy(&prompt(seed, 20), 5), None).unwrap());
    // When the slot becomes free, the large request has waited since its first branch started, before the others arrived.
    let order = [(0, 0), (0, 1), (1, 0), (2, 0), (0, 2), (0, 3)];
    assert_eq!(starts(&engine, &control, order.len(), |_| {}), order);
    control.allow(None);
    assert_eq!(collect(many).unwrap().len(), 6);
    assert!(ones.into_iter().all(|one| collect(one).is_ok()));
}

/// Requests for one completion each; a new one arrives for each that starts.
struct Ones<'a> {
    engine: &'a Engine,
    streams: RefCell<Vec<Completions>>,
}

impl<'a> Ones<'a> {
    const N_TOKENS: usize = 5;

    fn new(engine: &'a Engine, n: usize) -> Self {
        let ones = Self { engine, streams: RefCell::default() };
        (0..n).for_each(|_| ones.submit());
        ones
    }

    fn text(place: usize) -> String {
        prompt(2 + u64::try_from(place).unwrap(), 20)
    }

    fn submit(&self) {
        let mut streams = self.streams.borrow_mut();
        let request = greedy(&Self::text(streams.len()), u32::try_from(Self::N_TOKENS).unwrap());
        streams.push(self.engine.submit(request, None).unwrap());
    }

    /// When one starts, the next one arrives.
    fn follow(&self, (request_id, _): Start) {
        if request_id > 0 {
            self.submit();
        }
    }

    fn finish(self) {
        for (place, stream) in self.streams.into_inner().into_iter().enumerate() {
            assert_eq!(collect(stream).unwrap()[0].tokens, expected(&Self::text(place), Self::N_TOKENS));
        }
    }
}

#[test]
fn a_large_request_advances_among_single_completions_on_one_slot() {
    let (engine, control) = start(limits(1, 4096));
    let many = many_alone(&engine, &control, 6, 5);
    let ones = Ones::new(&engine, 2);
    // The ones that waited when its last branch started precede its next one.
    let order = [(0, 0), (0, 1), (1, 0), (2, 0), (0, 2), (3, 0), (4, 0), (0, 3), (5, 0), (6, 0), (0, 4)];
    assert_eq!(starts(&engine, &control, order.len(), |start| ones.follow(start)), order);
    control.allow(None);
    assert_eq!(collect(many).unwrap().len(), 6);
    ones.finish();
}

#[test]
fn a_large_request_and_single_completions_both_advance_on_four_slots() {
    let (engine, control) = start_with_host_cache(4, 1024);
    let many = many_alone(&engine, &control, 32, 5);
    let ones = Ones::new(&engine, 8);
    let order = starts(&engine, &control, 60, |start| ones.follow(start));
    let branches: Vec<usize> = (0..order.len()).filter(|&place| order[place].0 == 0).collect();
    // The first five: when the others arrived, it had waited since it took the fourth slot.
    let n_between: Vec<usize> = branches[4..].windows(2).map(|pair| pair[1] - pair[0] - 1).collect();
    assert!(n_between.len() >= 5, "it stands still: {order:?}");
    // The ones that waited when its branch started, and up to three that entered other slots in the same step.
    assert!(n_between.iter().all(|n| (1..=8 + 3).contains(n)), "requests for one between its branches: {n_between:?}");
    control.allow(None);
    assert_eq!(collect(many).unwrap().len(), 32);
    ones.finish();
}
