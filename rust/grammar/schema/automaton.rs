//! Which texts a string may be, as a table: patterns that are met, patterns that are not, and how long the text is.

use std::cell::RefCell;
use std::collections::HashMap;

use super::pattern::{LAST, Node, Ranges};

/// Most states of a table.
pub(super) const MAX_STATES: usize = 8_192;

/// Most states of the patterns that a table is made of, together.
const MAX_POINTS: usize = 1 << 15;

/// Most points that are looked at for one table.
const MAX_WORK: usize = 1 << 22;

/// What a text is asked for.
#[derive(Debug, Clone)]
pub(super) struct StringConstraint {
    /// Patterns, each with whether it must be met, or must not.
    pub(super) patterns: Vec<(Node, bool)>,
    /// Least and most characters.
    pub(super) length: (usize, Option<usize>),
}

/// States; the first one is where a text begins.
#[derive(Debug)]
pub(super) struct Dfa {
    pub(super) states: Vec<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) may_end: bool,
    /// Each state that a character leads to, and the characters.
    pub(super) next: Vec<(usize, Ranges)>,
}

/// A pattern that is the text as a whole.
pub(super) fn literal(text: &str) -> Node {
    let characters = text.chars().map(|character| Node::Class(vec![(character.into(), character.into())]));
    Node::Sequence([Node::Start].into_iter().chain(characters).chain([Node::End]).collect())
}

#[derive(Debug, Clone)]
enum Edge {
    Empty(usize),
    AtStart(usize),
    AtEnd(usize),
    Class(Ranges, usize),
}

/// A pattern, as points with edges; the last point is where it is met.
#[derive(Debug, Default)]
struct Nfa {
    points: Vec<Vec<Edge>>,
    goal: usize,
    /// The round in which each point was met last, and how many rounds there were.
    met: RefCell<(Vec<usize>, usize)>,
}

impl Nfa {
    fn new(node: &Node) -> Result<Self, String> {
        let mut net = Self::default();
        let any = vec![(0, LAST)];
        let start = net.point()?;
        net.points[start].push(Edge::Class(any.clone(), start));
        let goal = net.add(node, start)?;
        net.points[goal].push(Edge::Class(any, goal));
        net.goal = goal;
        Ok(net)
    }

    fn point(&mut self) -> Result<usize, String> {
        self.points.push(Vec::new());
        if self.points.len() > MAX_POINTS { Err("it is too large".to_owned()) } else { Ok(self.points.len() - 1) }
    }

    /// The point after `node`, which begins at `from`. None of its edges leads back to `from`.
    fn add(&mut self, node: &Node, from: usize) -> Result<usize, String> {
        let to = self.point()?;
        match node {
            Node::Class(ranges) => self.points[from].push(Edge::Class(ranges.clone(), to)),
            Node::Start => self.points[from].push(Edge::AtStart(to)),
            Node::End => self.points[from].push(Edge::AtEnd(to)),
            Node::Sequence(items) => {
                let last = items.iter().try_fold(from, |at, item| self.add(item, at))?;
                self.points[last].push(Edge::Empty(to));
            }
            Node::Choice(choices) => {
                for choice in choices {
                    let begin = self.point()?;
                    self.points[from].push(Edge::Empty(begin));
                    let last = self.add(choice, begin)?;
                    self.points[last].push(Edge::Empty(to));
                }
            }
            Node::Repeat(item, min, max) => {
                let mut at = from;
                for _ in 0..*min {
                    at = self.add(item, at)?;
                }
                if let Some(max) = max {
                    for _ in *min..*max {
                        self.points[at].push(Edge::Empty(to));
                        at = self.add(item, at)?;
                    }
                    self.points[at].push(Edge::Empty(to));
                } else {
                    let round = self.point()?;
                    self.points[at].push(Edge::Empty(round));
                    self.points[round].push(Edge::Empty(to));
                    let last = self.add(item, round)?;
                    self.points[last].push(Edge::Empty(round));
                }
            }
        }
        Ok(to)
    }

    /// All points that `points` lead to without a character, in order.
    fn spread(&self, points: &mut Vec<usize>, at_start: bool, at_end: bool) {
        let (met, round) = &mut *self.met.borrow_mut();
        met.resize(self.points.len(), 0);
        *round += 1;
        let mut todo = std::mem::take(points);
        while let Some(point) = todo.pop() {
            if std::mem::replace(&mut met[point], *round) == *round {
                continue;
            }
            points.push(point);
            for edge in &self.points[point] {
                match edge {
                    Edge::Empty(next) => todo.push(*next),
                    Edge::AtStart(next) if at_start => todo.push(*next),
                    Edge::AtEnd(next) if at_end => todo.push(*next),
                    _ => {}
                }
            }
        }
        points.sort_unstable();
    }

    fn is_met_at(&self, points: &[usize], at_start: bool) -> bool {
        let mut points = points.to_vec();
        self.spread(&mut points, at_start, true);
        points.binary_search(&self.goal).is_ok()
    }

    fn step(&self, points: &[usize], code: u32) -> Vec<usize> {
        // What is met stays met.
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
        self.spread(&mut next, false, false);
        if next.binary_search(&self.goal).is_ok() { vec![self.goal] } else { next }
    }
}

/// Where each pattern is, and how many characters there were, as far as that matters.
type SubsetState = (Vec<Vec<usize>>, usize);

impl StringConstraint {
    /// The table of the texts that are all that is asked for; the error says why there is none.
    pub(super) fn table(&self) -> Result<Dfa, String> {
        let nets = self.nets()?;
        let mut starts = vec![0, LAST + 1];
        for edge in nets.iter().flat_map(|net| net.points.iter().flatten()) {
            if let Edge::Class(ranges, _) = edge {
                starts.extend(ranges.iter().flat_map(|&(low, high)| [low, high + 1]));
            }
        }
        starts.sort_unstable();
        starts.dedup();
        let (min, max) = self.length;
        let first: SubsetState = (nets.iter().map(begin).collect(), 0);
        let (mut numbers, mut places, mut states) = (HashMap::new(), vec![first], Vec::new());
        let mut n_work = 0;
        while states.len() < places.len() {
            let number = states.len();
            let (points, length) = places[number].clone();
            let met = nets.iter().zip(&points).map(|(net, points)| net.is_met_at(points, number == 0));
            let may_end = length >= min && met.zip(&self.patterns).all(|(is_met, (_, must))| is_met == *must);
            let mut next: Vec<(usize, Ranges)> = Vec::new();
            let is_full = max.is_some_and(|max| length >= max);
            for stretch in starts.windows(2).filter(|_| !is_full) {
                n_work += points.iter().map(Vec::len).sum::<usize>() + nets.len();
                if n_work > MAX_WORK {
                    return Err("it takes too long to work out".to_owned());
                }
                let after: Vec<_> = nets.iter().zip(&points).map(|(net, points)| net.step(points, stretch[0])).collect();
                // Nothing is met any more that must be, or something is that must not be.
                let is_lost = (self.patterns.iter().zip(&nets))
                    .zip(&after)
                    .any(|(((_, must), net), points)| if *must { points.is_empty() } else { points[..] == [net.goal] });
                if is_lost {
                    continue;
                }
                let length = if max.is_some() { length + 1 } else { min.min(length + 1) };
                let place = (after, length);
                let to = *numbers.entry(place).or_insert_with_key(|place| {
                    places.push(place.clone());
                    places.len() - 1
                });
                if places.len() > MAX_STATES {
                    return Err(format!("it needs more than {MAX_STATES} states"));
                }
                match next.iter_mut().find(|(other, _)| *other == to) {
                    Some((_, ranges)) => match ranges.last_mut() {
                        Some((_, end)) if *end + 1 == stretch[0] => *end = stretch[1] - 1,
                        _ => ranges.push((stretch[0], stretch[1] - 1)),
                    },
                    None => next.push((to, vec![(stretch[0], stretch[1] - 1)])),
                }
            }
            states.push(State { may_end, next });
        }
        Ok(Dfa { states })
    }

    /// Whether this one text is what is asked for.
    pub(super) fn fits(&self, text: &str) -> Result<bool, String> {
        let (n, (min, max)) = (text.chars().count(), self.length);
        if n < min || max.is_some_and(|max| n > max) {
            return Ok(false);
        }
        let is_met = |net: &Nfa| {
            let mut points = begin(net);
            for character in text.chars() {
                points = net.step(&points, character.into());
            }
            net.is_met_at(&points, text.is_empty())
        };
        Ok(self.nets()?.iter().zip(&self.patterns).all(|(net, (_, must))| is_met(net) == *must))
    }

    fn nets(&self) -> Result<Vec<Nfa>, String> {
        let nets = self.patterns.iter().map(|(node, _)| Nfa::new(node)).collect::<Result<Vec<_>, _>>()?;
        let n_points: usize = nets.iter().map(|net| net.points.len()).sum();
        if n_points > MAX_POINTS { Err("it is too large".to_owned()) } else { Ok(nets) }
    }
}

fn begin(net: &Nfa) -> Vec<usize> {
    let mut points = vec![0];
    net.spread(&mut points, true, false);
    if points.binary_search(&net.goal).is_ok() { vec![net.goal] } else { points }
}

impl Dfa {
    /// Whether no text is what is asked for.
    pub(super) fn is_empty(&self) -> bool {
        let mut leads_to: Vec<Vec<usize>> = vec![Vec::new(); self.states.len()];
        for (number, state) in self.states.iter().enumerate() {
            for (to, _) in &state.next {
                leads_to[*to].push(number);
            }
        }
        let mut is_live: Vec<bool> = self.states.iter().map(|state| state.may_end).collect();
        let mut todo: Vec<usize> = (0..is_live.len()).filter(|&number| is_live[number]).collect();
        while let Some(number) = todo.pop() {
            for &before in &leads_to[number] {
                if !std::mem::replace(&mut is_live[before], true) {
                    todo.push(before);
                }
            }
        }
        !is_live[0]
    }
}
