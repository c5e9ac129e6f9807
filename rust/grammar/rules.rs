//! Rules of a grammar as arrays of elements.

use std::collections::HashMap;

use super::ranges::{Ranges, complement, merge};
use crate::request::Token;

pub(super) type RuleId = u32;

/// A set of code points, see [`ranges`](super::ranges).
pub(super) type Class = Box<[(u32, u32)]>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Element {
    /// Ends an alternative of a rule.
    End,
    Rule(RuleId),
    /// One character of the class with this number.
    Class(u32),
    /// This token, regardless of its spelling.
    Token(Token),
    /// Any token except this one.
    NotToken(Token),
}

#[derive(Debug, Default)]
pub(super) struct Classes {
    pub(super) list: Vec<Class>,
    numbers: HashMap<Class, u32>,
}

impl Classes {
    pub(super) fn intern(&mut self, ranges: Ranges, is_negated: bool) -> u32 {
        let ranges = merge(ranges);
        let class: Class = if is_negated { complement(&ranges, u32::MAX).into() } else { ranges.into() };
        if let Some(&number) = self.numbers.get(&class) {
            return number;
        }
        let number = u32::try_from(self.list.len()).expect("a grammar's size is bounded");
        self.list.push(class.clone());
        self.numbers.insert(class, number);
        number
    }
}

pub(super) type Alternatives = Vec<Vec<Element>>;

/// All rules of a grammar. An alternative is identified by the index of its first element and terminated by [`Element::End`].
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) elements: Vec<Element>,
    pub(super) root: RuleId,
    alternatives: Vec<u32>,
    /// The alternatives of rule `r` are `alternatives[first[r]..first[r + 1]]`.
    first: Vec<u32>,
}

impl Rules {
    pub(super) fn new(rules: &[Alternatives], root: RuleId) -> Self {
        let count = |n: usize| u32::try_from(n).expect("a grammar's size is bounded");
        let (mut elements, mut alternatives, mut first) = (Vec::new(), Vec::new(), vec![0]);
        for alternative in rules.iter().flat_map(|rule| rule.iter().map(Some).chain([None])) {
            let Some(alternative) = alternative else {
                first.push(count(alternatives.len()));
                continue;
            };
            alternatives.push(count(elements.len()));
            elements.extend_from_slice(alternative);
            elements.push(Element::End);
        }
        Self { elements, root, alternatives, first }
    }

    pub(super) fn alternatives(&self, rule: RuleId) -> &[u32] {
        let rule = rule as usize;
        &self.alternatives[self.first[rule] as usize..self.first[rule + 1] as usize]
    }

    pub(super) fn element(&self, at: u32) -> Element {
        self.elements[at as usize]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    Open,
    Done,
}

/// Finds a left-recursive rule, direct or indirect, by llama.cpp's definition: the search continues after a rule with an empty
/// alternative, but not after a rule that is empty only because all its elements may be empty.
pub(super) fn find_left_recursion(rules: &[Alternatives]) -> Option<RuleId> {
    let may_be_empty = |rule: RuleId| rules[rule as usize].iter().any(Vec::is_empty);
    let begins_with = |rule: RuleId| {
        let mut starts = Vec::new();
        for alternative in &rules[rule as usize] {
            for element in alternative {
                let Element::Rule(next) = *element else { break };
                starts.push(next);
                if !may_be_empty(next) {
                    break;
                }
            }
        }
        starts
    };
    let mut marks = vec![Mark::New; rules.len()];
    // Iterative, since a grammar may chain a hundred thousand rules.
    let mut open: Vec<(RuleId, Vec<RuleId>)> = Vec::new();
    for rule in (0..).take(rules.len()) {
        if marks[rule as usize] != Mark::New {
            continue;
        }
        marks[rule as usize] = Mark::Open;
        open.push((rule, begins_with(rule)));
        while let Some((rule, starts)) = open.last_mut() {
            let Some(next) = starts.pop() else {
                marks[*rule as usize] = Mark::Done;
                open.pop();
                continue;
            };
            match marks[next as usize] {
                Mark::Open => return Some(next),
                Mark::Done => {}
                Mark::New => {
                    marks[next as usize] = Mark::Open;
                    open.push((next, begins_with(next)));
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_sorted_merged_and_negated() {
        let mut classes = Classes::default();
        let number = classes.intern(vec![(98, 99), (97, 97), (50, 40), (105, 110), (107, 120)], false);
        assert_eq!(*classes.list[number as usize], [(97, 99), (105, 120)]);
        let negated = classes.intern(vec![(97, 99), (105, 120)], true);
        assert_eq!(*classes.list[negated as usize], [(0, 96), (100, 104), (121, u32::MAX)]);
        assert_eq!(classes.intern(vec![(97, 99), (105, 120)], false), number, "classes are distinct");
        let all = classes.intern(Vec::new(), true);
        assert_eq!(*classes.list[all as usize], [(0, u32::MAX)]);
        assert!(classes.intern(vec![(0, u32::MAX)], true) != all);
    }
}
