//! Compiles the constraints on a string to a DFA: patterns that must match, patterns that must not, and the length.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::super::ranges::Ranges;
use super::pattern::{LAST, PatternNode};
use super::shape::{CountRange, add};

pub(super) const MAX_STATES: usize = 8_192;

/// Maximum NFA points of all patterns of a DFA.
const MAX_POINTS: usize = 1 << 15;

/// Maximum NFA points that are visited for one DFA.
const MAX_WORK: usize = 1 << 22;

#[derive(Debug, Clone, Default)]
pub(super) struct StringConstraint {
    /// Patterns, each with true if it must match and false if it must not.
    pub(super) patterns: Vec<(Rc<PatternNode>, bool)>,
    pub(super) length: CountRange,
}

/// States of a DFA. The first is the start, from which all others can be reached.
pub(super) type Dfa = Vec<DfaState>;

#[derive(Debug)]
pub(super) struct DfaState {
    pub(super) may_end: bool,
    pub(super) next: Vec<(usize, Ranges)>,
}

pub(super) fn exactly(text: &str) -> PatternNode {
    let characters = text.chars().map(|character| PatternNode::Class(vec![(character.into(), character.into())]));
    PatternNode::Sequence([PatternNode::Start].into_iter().chain(characters).chain([PatternNode::End]).collect())
}

#[derive(Debug, Clone)]
enum Edge {
    Empty(usize),
    AtStart(usize),
    AtEnd(usize),
    Class(Ranges, usize),
}

/// The NFA of one pattern: a text matches if it reaches `goal`.
#[derive(Debug, Default)]
struct Nfa {
    points: Vec<Vec<Edge>>,
    goal: usize,
    /// The round in which each point was last visited, and the number of rounds.
    visited: RefCell<(Vec<usize>, usize)>,
}

impl Nfa {
    fn new(node: &PatternNode) -> Result<Self, String> {
        let mut nfa = Self::default();
        let any = vec![(0, LAST)];
        let start = nfa.add_point()?;
        nfa.points[start].push(Edge::Class(any.clone(), start));
        let goal = nfa.add_node(node, start)?;
        nfa.points[goal].push(Edge::Class(any, goal));
        nfa.goal = goal;
        Ok(nfa)
    }

    fn add_point(&mut self) -> Result<usize, String> {
        self.points.push(Vec::new());
        if self.points.len() > MAX_POINTS {
            Err(format!("it needs more than {MAX_POINTS} NFA states"))
        } else {
            Ok(self.points.len() - 1)
        }
    }

    /// Returns the point after `node`. None of its edges leads back to `from`.
    fn add_node(&mut self, node: &PatternNode, from: usize) -> Result<usize, String> {
        let to = self.add_point()?;
        match node {
            PatternNode::Class(ranges) => self.points[from].push(Edge::Class(ranges.clone(), to)),
            PatternNode::Start => self.points[from].push(Edge::AtStart(to)),
            PatternNode::End => self.points[from].push(Edge::AtEnd(to)),
            PatternNode::Sequence(items) => {
                let last = items.iter().try_fold(from, |at, item| self.add_node(item, at))?;
                self.points[last].push(Edge::Empty(to));
            }
            PatternNode::Choice(choices) => {
                for choice in choices {
                    let start = self.add_point()?;
                    self.points[from].push(Edge::Empty(start));
                    let last = self.add_node(choice, start)?;
                    self.points[last].push(Edge::Empty(to));
                }
            }
            PatternNode::Repeat(item, min, max) => {
                let mut at = from;
                for _ in 0..*min {
                    at = self.add_node(item, at)?;
                }
                if let Some(max) = max {
                    for _ in *min..*max {
                        self.points[at].push(Edge::Empty(to));
                        at = self.add_node(item, at)?;
                    }
                    self.points[at].push(Edge::Empty(to));
                } else {
                    let round = self.add_point()?;
                    self.points[at].push(Edge::Empty(round));
                    self.points[round].push(Edge::Empty(to));
                    let last = self.add_node(item, round)?;
                    self.points[last].push(Edge::Empty(round));
                }
            }
        }
        Ok(to)
    }

    fn follow_empty_edges(&self, points: &mut Vec<usize>, at_start: bool, at_end: bool) {
        let (visited, round) = &mut *self.visited.borrow_mut();
        visited.resize(self.points.len(), 0);
        *round += 1;
        let mut pending = std::mem::take(points);
        while let Some(point) = pending.pop() {
            if std::mem::replace(&mut visited[point], *round) == *round {
                continue;
            }
            points.push(point);
            for edge in &self.points[point] {
                match edge {
                    Edge::Empty(next) => pending.push(*next),
                    Edge::AtStart(next) if at_start => pending.push(*next),
                    Edge::AtEnd(next) if at_end => pending.push(*next),
                    _ => {}
                }
            }
        }
        points.sort_unstable();
    }

    fn accepts(&self, points: &[usize], at_start: bool) -> bool {
        let mut points = points.to_vec();
        self.follow_empty_edges(&mut points, at_start, true);
        points.binary_search(&self.goal).is_ok()
    }

    fn step(&self, points: &[usize], code: u32) -> Vec<usize> {
        // A pattern that has matched stays matched.
        if points.binary_search(&self.goal).is_ok() {
            return vec![self.goal];
        }
        let mut next = Vec::new();
        for edge in points.iter().flat_map(|&point| &self.points[point]) {
            if let Edge::Class(ranges, to) = edge
                && ranges.iter().any(|&(low, high)| low <= code && code <= high)
            {
                next.push(*to);
            }
        }
        self.follow_empty_edges(&mut next, false, false);
        if next.binary_search(&self.goal).is_ok() { vec![self.goal] } else { next }
    }
}

/// The NFA points of each pattern, and the number of characters up to the largest number that matters.
type SubsetState = (Vec<Vec<usize>>, usize);

impl StringConstraint {
    pub(super) fn and(&mut self, other: &Self) {
        self.length.and(&other.length);
        add(&mut self.patterns, &other.patterns);
    }

    pub(super) fn to_dfa(&self) -> Result<Dfa, String> {
        let nfas = self.build_nfas()?;
        let mut starts = vec![0, LAST + 1];
        for edge in nfas.iter().flat_map(|nfa| nfa.points.iter().flatten()) {
            if let Edge::Class(ranges, _) = edge {
                starts.extend(ranges.iter().flat_map(|&(low, high)| [low, high + 1]));
            }
        }
        starts.sort_unstable();
        starts.dedup();
        let (min, max) = (self.length.min(), self.length.max);
        let first: SubsetState = (nfas.iter().map(start_points).collect(), 0);
        let (mut numbers, mut subsets, mut states) = (HashMap::new(), vec![first], Vec::new());
        let mut n_visited = 0;
        while states.len() < subsets.len() {
            let number = states.len();
            let (points, length) = subsets[number].clone();
            let accepted = nfas.iter().zip(&points).map(|(nfa, points)| nfa.accepts(points, number == 0));
            let may_end = length >= min && accepted.zip(&self.patterns).all(|(matches, (_, must_match))| matches == *must_match);
            let mut next: Vec<(usize, Ranges)> = Vec::new();
            let is_full = max.is_some_and(|max| length >= max);
            for range in starts.windows(2).filter(|_| !is_full) {
                n_visited += points.iter().map(Vec::len).sum::<usize>() + nfas.len();
                if n_visited > MAX_WORK {
                    return Err("it is too complex: compiling it takes too long".to_owned());
                }
                let after: Vec<_> = nfas.iter().zip(&points).map(|(nfa, points)| nfa.step(points, range[0])).collect();
                // A required pattern can no longer match, or an excluded one has matched.
                let is_dead = (self.patterns.iter().zip(&nfas)).zip(&after).any(|(((_, must_match), nfa), points)| {
                    if *must_match { points.is_empty() } else { points[..] == [nfa.goal] }
                });
                if is_dead {
                    continue;
                }
                let length = if max.is_some() { length + 1 } else { min.min(length + 1) };
                let subset = (after, length);
                let to = *numbers.entry(subset).or_insert_with_key(|subset| {
                    subsets.push(subset.clone());
                    subsets.len() - 1
                });
                if subsets.len() > MAX_STATES {
                    return Err(format!("it needs more than {MAX_STATES} states"));
                }
                match next.iter_mut().find(|(other, _)| *other == to) {
                    Some((_, ranges)) => match ranges.last_mut() {
                        Some((_, end)) if *end + 1 == range[0] => *end = range[1] - 1,
                        _ => ranges.push((range[0], range[1] - 1)),
                    },
                    None => next.push((to, vec![(range[0], range[1] - 1)])),
                }
            }
            states.push(DfaState { may_end, next });
        }
        Ok(states)
    }

    pub(super) fn fits(&self, text: &str) -> Result<bool, String> {
        if !self.length.contains(text.chars().count()) {
            return Ok(false);
        }
        let matches = |nfa: &Nfa| {
            let mut points = start_points(nfa);
            for character in text.chars() {
                points = nfa.step(&points, character.into());
            }
            nfa.accepts(&points, text.is_empty())
        };
        Ok(self.build_nfas()?.iter().zip(&self.patterns).all(|(nfa, (_, must_match))| matches(nfa) == *must_match))
    }

    fn build_nfas(&self) -> Result<Vec<Nfa>, String> {
        let nfas = self.patterns.iter().map(|(node, _)| Nfa::new(node)).collect::<Result<Vec<_>, _>>()?;
        let n_points: usize = nfas.iter().map(|nfa| nfa.points.len()).sum();
        if n_points > MAX_POINTS { Err(format!("it needs more than {MAX_POINTS} NFA states")) } else { Ok(nfas) }
    }
}

fn start_points(nfa: &Nfa) -> Vec<usize> {
    let mut points = vec![0];
    nfa.follow_empty_edges(&mut points, true, false);
    if points.binary_search(&nfa.goal).is_ok() { vec![nfa.goal] } else { points }
}
