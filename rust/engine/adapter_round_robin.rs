//! Which adapters the next decode computes with. Pure: values in, values out, no clock.
//!
//! A decode has one set of adapters, and another set costs llama.cpp its graphs. So where sequences of several sets run, the sets
//! take turns, in a round: whoever waits the longest is next, and each turn has as much time as any other. In its turn each stream
//! of a set gets a token in every step, so that streams of small sets are as fast as those of large ones. A turn lasts
//! [`MIN_STEPS`], or until the change before it is a tenth of it; but it ends before somebody else's stream would wait for longer
//! than the gap that is allowed. Where one step of each set takes longer than that, each turn is one step.

use crate::engine::runner::AdapterSet;

/// A turn has so many steps at least, where the gap allows as many.
pub(super) const MIN_STEPS: u32 = 4;

/// A turn lasts so many times as long as the change before it, where the gap allows that.
const CHANGES: f64 = 9.0;

/// Weight of the newest change in the mean time of one.
const NEWEST: f64 = 0.3;

/// What waits to be computed with one set of adapters.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AdapterDemand {
    pub(super) variant: AdapterSet,
    /// Sequences that wait for one token.
    pub(super) n_streams: u32,
    /// Seconds that a step takes which computes these, in 99 of 100 cases; 0 where it is not known.
    pub(super) step_s: f64,
}

/// Whose turn it is.
#[derive(Debug, Default)]
pub(super) struct AdapterRoundRobin {
    current: AdapterSet,
    /// Those whose turn comes, the next one first.
    waiting: Vec<AdapterSet>,
    /// Of the running turn, and how long they took with the change before the first.
    n_steps: u32,
    took_s: f64,
    /// Mean seconds of a change; 0 until one was measured.
    change_s: f64,
}

impl AdapterRoundRobin {
    /// The set that the next step computes.
    pub(super) fn current(&self) -> &AdapterSet {
        &self.current
    }

    /// Chooses among the `sets` that have something to compute, in the order of their most senior sequences, where no stream is to
    /// wait for longer than `gap_s`. Returns how many seconds the step may take, or `None` where no stream of another set waits.
    pub(super) fn choose(&mut self, sets: &[AdapterDemand], gap_s: f64) -> Option<f64> {
        let find = |variant: &AdapterSet| sets.iter().find(|set| set.variant == *variant);
        self.waiting.retain(|waiting| find(waiting).is_some());
        let is_new = |set: &&AdapterDemand| set.variant != self.current && !self.waiting.contains(&set.variant);
        let new: Vec<AdapterSet> = sets.iter().filter(is_new).map(|set| set.variant.clone()).collect();
        self.waiting.extend(new);
        #[expect(clippy::cast_precision_loss, reason = "there are few sets")]
        let share_s = gap_s / sets.len().max(1) as f64;
        let goes_on = find(&self.current).is_some_and(|set| self.goes_on(set, share_s));
        if !self.waiting.is_empty() && !goes_on {
            let next = self.waiting.remove(0);
            let last = std::mem::replace(&mut self.current, next);
            if find(&last).is_some() {
                self.waiting.push(last);
            }
            (self.n_steps, self.took_s) = (0, 0.0);
        }
        let is_awaited = sets.iter().any(|set| set.n_streams > 0 && set.variant != self.current);
        // The change is a part of the turn; once its first step was measured, of what that took.
        let used_s = if self.n_steps == 0 { self.change_s } else { self.took_s };
        is_awaited.then(|| (share_s - used_s).max(0.0))
    }

    /// Whether the running turn has time for another step. Nobody's turn ends while nobody else waits, but the first who comes is
    /// next.
    fn goes_on(&self, set: &AdapterDemand, share_s: f64) -> bool {
        if self.waiting.is_empty() || self.n_steps == 0 {
            return true;
        }
        let then_s = self.took_s + set.step_s;
        then_s <= share_s && (self.n_steps < MIN_STEPS || then_s <= CHANGES * self.change_s)
    }

    /// Tells how long a step took, from its beginning to its end.
    pub(super) fn observe(&mut self, took_s: f64) {
        self.n_steps += 1;
        self.took_s += took_s;
    }

    /// Tells how much longer the first step of a turn took than it would have as a later one.
    pub(super) fn observe_change(&mut self, took_s: f64) {
        let took_s = took_s.max(0.0);
        self.change_s = if self.change_s == 0.0 { took_s } else { self.change_s + NEWEST * (took_s - self.change_s) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP_S: f64 = 0.2;

    fn set(number: u32, n_streams: u32, step_s: f64) -> AdapterDemand {
        AdapterDemand { variant: variant(number), n_streams, step_s }
    }

    fn variant(number: u32) -> AdapterSet {
        AdapterSet::with_adapters([(number, 1.0)])
    }

    /// Who computed in each of `n` steps, and when that step had ended. A step takes as long as is expected of its set, and the first
    /// of a turn `change_s` more.
    fn simulate(sets: &[AdapterDemand], change_s: f64, n: usize) -> Vec<(usize, f64)> {
        let (mut rounds, mut now_s, mut last) = (AdapterRoundRobin::default(), 0.0, None);
        let steps = (0..n).map(|_| {
            rounds.choose(sets, GAP_S);
            let at = sets.iter().position(|set| set.variant == *rounds.current()).expect("only who waits is chosen");
            let more_s = if last == Some(at) { 0.0 } else { change_s };
            if last.is_some_and(|last| last != at) {
                rounds.observe_change(more_s);
            }
            last = Some(at);
            now_s += sets[at].step_s + more_s;
            rounds.observe(sets[at].step_s + more_s);
            (at, now_s)
        });
        steps.collect()
    }

    /// The longest time between two steps of the set at `at`.
    fn longest_gap_s(steps: &[(usize, f64)], at: usize) -> f64 {
        let ends: Vec<f64> = steps.iter().filter(|step| step.0 == at).map(|step| step.1).collect();
        ends.windows(2).map(|two| two[1] - two[0]).fold(0.0, f64::max)
    }

    fn n_changes(steps: &[(usize, f64)]) -> usize {
        steps.windows(2).filter(|two| two[0].0 != two[1].0).count()
    }

    #[test]
    fn one_set_alone_computes_in_every_step() {
        let mut rounds = AdapterRoundRobin::default();
        for _ in 0..10 {
            assert_eq!(rounds.choose(&[set(1, 3, 0.02)], GAP_S), None);
            assert_eq!(*rounds.current(), variant(1));
            rounds.observe(0.02);
        }
    }

    #[test]
    fn who_comes_while_another_runs_alone_is_next() {
        let mut rounds = AdapterRoundRobin::default();
        for _ in 0..10 {
            rounds.choose(&[set(1, 1, 0.01)], GAP_S);
            rounds.observe(0.01);
        }
        rounds.choose(&[set(1, 1, 0.01), set(2, 1, 0.01)], GAP_S);
        assert_eq!(*rounds.current(), variant(2));
    }

    #[test]
    fn a_turn_lasts_several_steps_and_all_streams_are_as_fast() {
        let steps = simulate(&[set(1, 7, 0.008), set(2, 1, 0.004), set(3, 2, 0.005)], 0.0, 1_200);
        let counts: Vec<usize> = (0..3).map(|at| steps.iter().filter(|step| step.0 == at).count()).collect();
        assert!(counts.iter().all(|&n| n.abs_diff(400) <= 4), "{counts:?} of 1,200 steps");
        assert!(n_changes(&steps) <= 300, "{} changes", n_changes(&steps));
    }

    #[test]
    fn changes_take_about_a_tenth_of_the_time_where_the_gap_allows_it() {
        let steps = simulate(&[set(1, 1, 0.002), set(2, 1, 0.002)], 0.005, 2_000);
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let share = n_changes(&steps) as f64 * 0.005 / steps.last().unwrap().1;
        assert!((0.08..0.15).contains(&share), "{share} of the time");
    }

    #[test]
    fn a_turn_has_as_many_steps_as_its_share_of_the_gap_has_room_for_beside_one_change() {
        let sets: Vec<AdapterDemand> = (0..4).map(|i| set(i, 1, 0.004)).collect();
        // Of 50 ms, 13 are the change.
        let turns: Vec<usize> = simulate(&sets, 0.013, 360).chunk_by(|a, b| a.0 == b.0).map(<[_]>::len).collect();
        assert_eq!(turns[1..10], [9; 9]);
    }

    #[test]
    fn no_stream_waits_for_longer_than_the_gap() {
        for change_s in [0.0, 0.002, 0.01, 0.02] {
            for n in 2..6 {
                let sets: Vec<AdapterDemand> = (0..n).map(|i| set(i, 1, 0.004 + 0.002 * f64::from(i))).collect();
                let steps = simulate(&sets, change_s, 2_000);
                for at in 0..sets.len() {
                    // The first changes are not foreseen.
                    let gap_s = longest_gap_s(&steps[20..], at);
                    assert!(gap_s <= GAP_S, "{gap_s} s for set {at} of {n} with changes of {change_s} s");
                }
            }
        }
    }

    #[test]
    fn where_the_gap_is_too_small_for_all_a_pause_is_a_step_of_each_and_its_change() {
        for (n, step_s, change_s) in [(3, 0.15, 0.01), (4, 0.042, 0.013), (16, 0.013, 0.003)] {
            let sets: Vec<AdapterDemand> = (0..n).map(|i| set(i, 2, step_s)).collect();
            let steps = simulate(&sets, change_s, 200);
            assert_eq!(n_changes(&steps), 199, "each turn is one step");
            let least_s = f64::from(n) * (step_s + change_s);
            for at in 0..sets.len() {
                let gap_s = longest_gap_s(&steps, at);
                assert!((gap_s - least_s).abs() < 1e-9, "{gap_s} s for set {at} of {n}");
            }
        }
    }

    #[test]
    fn a_step_beside_streams_that_wait_may_take_its_share_of_the_gap() {
        let mut rounds = AdapterRoundRobin::default();
        let sets = [set(1, 0, 0.0), set(2, 2, 0.01)];
        rounds.choose(&sets[..1], GAP_S);
        rounds.observe(0.3);
        assert_eq!(rounds.choose(&sets, GAP_S), None, "the streams of the second set are next, and only a prompt waits");
        assert_eq!(*rounds.current(), variant(2));
        for _ in 0..MIN_STEPS {
            rounds.observe(0.01);
        }
        assert_eq!(rounds.choose(&sets, GAP_S), Some(GAP_S / 2.0));
        assert_eq!(*rounds.current(), variant(1));
    }

    #[test]
    fn whoever_comes_and_goes_nobody_waits_for_more_than_a_round() {
        let mut state = 1_u64;
        let mut chance = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let mut rounds = AdapterRoundRobin::default();
        let mut is_there = [false; 6];
        // How many turns of others each has waited for.
        let (mut waited, mut last) = ([0; 6], AdapterSet::default());
        for _ in 0..20_000 {
            let changed = usize::try_from(chance(6)).unwrap();
            is_there[changed] = chance(3) > 0;
            let sets: Vec<AdapterDemand> = (0..6).filter(|&i| is_there[i as usize]).map(|i| set(i, 1, 0.001)).collect();
            if sets.is_empty() {
                continue;
            }
            rounds.choose(&sets, GAP_S);
            rounds.observe(0.001);
            assert!(sets.iter().any(|set| set.variant == *rounds.current()), "only who has something to compute is chosen");
            let is_new_turn = *rounds.current() != last;
            last = rounds.current().clone();
            for i in 0..6_u32 {
                let at = i as usize;
                let waits = is_there[at] && variant(i) != last;
                waited[at] = if waits { waited[at] + u32::from(is_new_turn) } else { 0 };
                assert!(waited[at] <= 6, "set {i} has waited for {} turns of others", waited[at]);
            }
        }
    }
}
