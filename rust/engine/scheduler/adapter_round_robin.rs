//! Chooses the adapter set of the next decode. Pure: values in, values out, no clock.
//!
//! A decode has one adapter set, and a change costs llama.cpp a graph rebuild. Sets with work take turns of equal time, so that
//! streams of small sets are as fast as streams of large sets. A turn takes [`MIN_STEPS`], or until its change is a tenth of it,
//! but ends before a stream of another set would exceed its token gap, after one step if necessary.

use crate::engine::numbers::RunningMean;
use crate::engine::runner::AdapterSet;

/// Minimum steps of a turn, if the gap allows.
const MIN_STEPS: u32 = 4;

/// Minimum ratio of a turn to its adapter change, if the gap allows.
const MIN_TURN_RATIO: f64 = 9.0;

const NEWEST_WEIGHT: f64 = 0.3;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AdapterDemand {
    pub(crate) adapter_set: AdapterSet,
    /// Sequences with one token to compute.
    pub(crate) n_streams: u32,
    /// Seconds that 99 of 100 steps with these streams stay within; 0 until measured.
    pub(crate) step_s: f64,
}

#[derive(Debug, Default)]
pub(crate) struct AdapterRoundRobin {
    current: AdapterSet,
    /// Other sets with work, the next one first.
    waiting: Vec<AdapterSet>,
    /// Steps of the current turn, and their seconds including the change.
    n_steps: u32,
    took_s: f64,
    /// Mean seconds of a change; 0 until measured.
    change_s: RunningMean,
}

impl AdapterRoundRobin {
    pub(crate) fn current(&self) -> &AdapterSet {
        &self.current
    }

    /// Chooses among the `sets` with work, given in order of their most senior sequences, so that no stream waits longer than
    /// `gap_s`. Returns the maximum seconds of the step, or `None` if no stream of another set waits.
    pub(crate) fn choose(&mut self, sets: &[AdapterDemand], gap_s: f64) -> Option<f64> {
        let find = |adapter_set: &AdapterSet| sets.iter().find(|set| set.adapter_set == *adapter_set);
        self.waiting.retain(|waiting| find(waiting).is_some());
        let is_new = |set: &&AdapterDemand| set.adapter_set != self.current && !self.waiting.contains(&set.adapter_set);
        let new: Vec<AdapterSet> = sets.iter().filter(is_new).map(|set| set.adapter_set.clone()).collect();
        self.waiting.extend(new);
        #[expect(clippy::cast_precision_loss, reason = "there are few sets")]
        let share_s = gap_s / sets.len().max(1) as f64;
        let continues = find(&self.current).is_some_and(|set| self.continues(set, share_s));
        if !self.waiting.is_empty() && !continues {
            let next = self.waiting.remove(0);
            let last = std::mem::replace(&mut self.current, next);
            if find(&last).is_some() {
                self.waiting.push(last);
            }
            (self.n_steps, self.took_s) = (0, 0.0);
        }
        let is_awaited = sets.iter().any(|set| set.n_streams > 0 && set.adapter_set != self.current);
        // The change is part of the turn; once measured, it is included in the time of the first step.
        let used_s = if self.n_steps == 0 { self.change_s.get() } else { self.took_s };
        is_awaited.then(|| (share_s - used_s).max(0.0))
    }

    fn continues(&self, set: &AdapterDemand, share_s: f64) -> bool {
        if self.waiting.is_empty() || self.n_steps == 0 {
            return true;
        }
        let end_s = self.took_s + set.step_s;
        end_s <= share_s && (self.n_steps < MIN_STEPS || end_s <= MIN_TURN_RATIO * self.change_s.get())
    }

    pub(crate) fn observe(&mut self, took_s: f64) {
        self.n_steps += 1;
        self.took_s += took_s;
    }

    /// Records by how much the first step of a turn exceeded the time of a later one.
    pub(crate) fn observe_change(&mut self, took_s: f64) {
        self.change_s.observe(took_s.max(0.0), NEWEST_WEIGHT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GAP_S: f64 = 0.2;

    fn set(number: u32, n_streams: u32, step_s: f64) -> AdapterDemand {
        AdapterDemand { adapter_set: adapter_set(number), n_streams, step_s }
    }

    fn adapter_set(number: u32) -> AdapterSet {
        AdapterSet::with_adapters([(number, 1.0)])
    }

    /// Returns the set that computed in each of `n` steps, and the end of that step. A step takes `step_s` of its set, and the
    /// first of a turn `change_s` more.
    fn simulate(sets: &[AdapterDemand], change_s: f64, n: usize) -> Vec<(usize, f64)> {
        let (mut round_robin, mut now_s, mut last) = (AdapterRoundRobin::default(), 0.0, None);
        let steps = (0..n).map(|_| {
            round_robin.choose(sets, GAP_S);
            let index = sets
                .iter()
                .position(|set| set.adapter_set == *round_robin.current())
                .expect("the current adapter set has a waiting request");
            let more_s = if last == Some(index) { 0.0 } else { change_s };
            if last.is_some_and(|last| last != index) {
                round_robin.observe_change(more_s);
            }
            last = Some(index);
            now_s += sets[index].step_s + more_s;
            round_robin.observe(sets[index].step_s + more_s);
            (index, now_s)
        });
        steps.collect()
    }

    /// Returns the longest time between two steps of the set at `index`.
    fn longest_gap_s(steps: &[(usize, f64)], index: usize) -> f64 {
        let ends: Vec<f64> = steps.iter().filter(|step| step.0 == index).map(|step| step.1).collect();
        ends.windows(2).map(|two| two[1] - two[0]).fold(0.0, f64::max)
    }

    fn n_changes(steps: &[(usize, f64)]) -> usize {
        steps.windows(2).filter(|two| two[0].0 != two[1].0).count()
    }

    #[test]
    fn a_single_set_computes_in_every_step() {
        let mut round_robin = AdapterRoundRobin::default();
        for _ in 0..10 {
            assert_eq!(round_robin.choose(&[set(1, 3, 0.02)], GAP_S), None);
            assert_eq!(*round_robin.current(), adapter_set(1));
            round_robin.observe(0.02);
        }
    }

    #[test]
    fn a_set_that_arrives_while_another_runs_alone_is_next() {
        let mut round_robin = AdapterRoundRobin::default();
        for _ in 0..10 {
            round_robin.choose(&[set(1, 1, 0.01)], GAP_S);
            round_robin.observe(0.01);
        }
        round_robin.choose(&[set(1, 1, 0.01), set(2, 1, 0.01)], GAP_S);
        assert_eq!(*round_robin.current(), adapter_set(2));
    }

    #[test]
    fn a_turn_lasts_several_steps_and_streams_of_all_sets_are_equally_fast() {
        let steps = simulate(&[set(1, 7, 0.008), set(2, 1, 0.004), set(3, 2, 0.005)], 0.0, 1_200);
        let counts: Vec<usize> = (0..3).map(|index| steps.iter().filter(|step| step.0 == index).count()).collect();
        assert!(counts.iter().all(|&n| n.abs_diff(400) <= 4), "{counts:?} of 1,200 steps");
        assert!(n_changes(&steps) <= 300, "{} changes", n_changes(&steps));
    }

    #[test]
    fn changes_take_about_a_tenth_of_the_time_if_the_gap_allows() {
        let steps = simulate(&[set(1, 1, 0.002), set(2, 1, 0.002)], 0.005, 2_000);
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let share = n_changes(&steps) as f64 * 0.005 / steps.last().unwrap().1;
        assert!((0.08..0.15).contains(&share), "{share} of the time");
    }

    #[test]
    fn a_turn_has_as_many_steps_as_fit_its_share_of_the_gap_with_one_change() {
        let sets: Vec<AdapterDemand> = (0..4).map(|i| set(i, 1, 0.004)).collect();
        // Of 50 ms, 13 ms are the change.
        let turns: Vec<usize> = simulate(&sets, 0.013, 360).chunk_by(|a, b| a.0 == b.0).map(<[_]>::len).collect();
        assert_eq!(turns[1..10], [9; 9]);
    }

    #[test]
    fn no_stream_waits_for_longer_than_the_gap() {
        for change_s in [0.0, 0.002, 0.01, 0.02] {
            for n in 2..6 {
                let sets: Vec<AdapterDemand> = (0..n).map(|i| set(i, 1, 0.004 + 0.002 * f64::from(i))).collect();
                let steps = simulate(&sets, change_s, 2_000);
                for index in 0..sets.len() {
                    // The first changes are not anticipated.
                    let gap_s = longest_gap_s(&steps[20..], index);
                    assert!(gap_s <= GAP_S, "{gap_s} s for set {index} of {n} with changes of {change_s} s");
                }
            }
        }
    }

    #[test]
    fn with_too_small_a_gap_every_turn_is_one_step() {
        for (n, step_s, change_s) in [(3, 0.15, 0.01), (4, 0.042, 0.013), (16, 0.013, 0.003)] {
            let sets: Vec<AdapterDemand> = (0..n).map(|i| set(i, 2, step_s)).collect();
            let steps = simulate(&sets, change_s, 200);
            assert_eq!(n_changes(&steps), 199, "each turn is one step");
            let min_s = f64::from(n) * (step_s + change_s);
            for index in 0..sets.len() {
                let gap_s = longest_gap_s(&steps, index);
                assert!((gap_s - min_s).abs() < 1e-9, "{gap_s} s for set {index} of {n}");
            }
        }
    }

    #[test]
    fn a_step_may_take_its_share_of_the_gap_while_streams_of_other_sets_wait() {
        let mut round_robin = AdapterRoundRobin::default();
        let sets = [set(1, 0, 0.0), set(2, 2, 0.01)];
        round_robin.choose(&sets[..1], GAP_S);
        round_robin.observe(0.3);
        assert_eq!(round_robin.choose(&sets, GAP_S), None, "the streams of the second set are next, and only a prompt waits");
        assert_eq!(*round_robin.current(), adapter_set(2));
        for _ in 0..MIN_STEPS {
            round_robin.observe(0.01);
        }
        assert_eq!(round_robin.choose(&sets, GAP_S), Some(GAP_S / 2.0));
        assert_eq!(*round_robin.current(), adapter_set(1));
    }

    #[test]
    fn no_set_waits_longer_than_a_round_as_others_come_and_go() {
        let mut state = 1_u64;
        let mut chance = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let mut round_robin = AdapterRoundRobin::default();
        let mut is_there = [false; 6];
        // Turns of other sets that each set has waited for.
        let (mut waited, mut last) = ([0; 6], AdapterSet::default());
        for _ in 0..20_000 {
            let changed = usize::try_from(chance(6)).unwrap();
            is_there[changed] = chance(3) > 0;
            let sets: Vec<AdapterDemand> = (0..6).filter(|&i| is_there[i as usize]).map(|i| set(i, 1, 0.001)).collect();
            if sets.is_empty() {
                continue;
            }
            round_robin.choose(&sets, GAP_S);
            round_robin.observe(0.001);
            assert!(
                sets.iter().any(|set| set.adapter_set == *round_robin.current()),
                "only who has something to compute is chosen"
            );
            let is_new_turn = *round_robin.current() != last;
            last = round_robin.current().clone();
            for i in 0..6_u32 {
                let index = i as usize;
                let waits = is_there[index] && adapter_set(i) != last;
                waited[index] = if waits { waited[index] + u32::from(is_new_turn) } else { 0 };
                assert!(waited[index] <= 6, "set {i} has waited for {} turns of others", waited[index]);
            }
        }
    }
}
