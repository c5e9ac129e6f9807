//! The rules of a grammar, as tables.

use std::collections::HashMap;

use crate::request::Token;

/// A rule's place in [`Rules`].
pub(super) type RuleId = u32;

/// A set of code points: ranges with both ends, in order, apart from each other.
pub(super) type Class = Box<[(u32, u32)]>;

/// One thing that a rule asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Element {
    /// Ends an alternative of a rule.
    End,
    /// What another rule asks for.
    Rule(RuleId),
    /// One character of the class of this number.
    Class(u32),
    /// This token, whatever it is spelt like.
    Token(Token),
    /// Any token but this one.
    NotToken(Token),
}

/// The classes of a grammar, each of them once.
#[derive(Debug, Default)]
pub(super) struct Classes {
    pub(super) list: Vec<Class>,
    numbers: HashMap<Class, u32>,
}

impl Classes {
    /// The number of the class of the characters in `ranges`, or of all others where it `is_negated`. A range whose end comes
    /// before its start holds nothing.
    pub(super) fn number(&mut self, mut ranges: Vec<(u32, u32)>, is_negated: bool) -> u32 {
        ranges.retain(|&(low, high)| low <= high);
        ranges.sort_unstable();
        let mut class: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (low, high) in ranges {
            match class.last_mut() {
                Some((_, end)) if low <= end.saturating_add(1) => *end = high.max(*end),
                _ => class.push((low, high)),
            }
        }
        let class: Class = if is_negated { others(&class).into() } else { class.into() };
        if let Some(&number) = self.numbers.get(&class) {
            return number;
        }
        let number = u32::try_from(self.list.len()).expect("a grammar's size is bounded");
        self.list.push(class.clone());
        self.numbers.insert(class, number);
        number
    }
}

fn others(class: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut rest = Vec::with_capacity(class.len() + 1);
    let mut next = Some(0);
    for &(low, high) in class {
        if let Some(start) = next.filter(|&start| start < low) {
            rest.push((start, low - 1));
        }
        next = high.checked_add(1);
    }
    rest.extend(next.map(|start| (start, u32::MAX)));
    rest
}

/// A rule: its alternatives, each a list of elements.
pub(super) type Alternatives = Vec<Vec<Element>>;

/// The rules of a grammar. An alternative is named by the place of its first element, and each is followed by an [`Element::End`].
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) elements: Vec<Element>,
    pub(super) root: RuleId,
    /// The alternatives of all rules.
    alternatives: Vec<u32>,
    /// Those of rule `r` are `alternatives[first[r]..first[r + 1]]`.
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

    /// Where the alternatives of `rule` begin.
    pub(super) fn alternatives(&self, rule: RuleId) -> &[u32] {
        let rule = rule as usize;
        &self.alternatives[self.first[rule] as usize..self.first[rule + 1] as usize]
    }

    pub(super) fn element(&self, at: u32) -> Element {
        self.elements[at as usize]
    }
}

/// How far a search has come with a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    New,
    Open,
    Done,
}

/// A rule that begins with itself, perhaps by way of other rules, as llama.cpp finds them: it looks past a rule that has an empty
/// alternative, but not past one that is empty only because all the rules that it names are.
pub(super) fn left_recursive(rules: &[Alternatives]) -> Option<RuleId> {
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
    // Not a recursive function: a grammar may have a chain of hundred thousand rules.
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
    fn classes_are_sorted_joined_and_turned_around() {
        let mut classes = Classes::default();
        let number = classes.number(vec![(98, 99), (97, 97), (50, 40), (105, 110), (107, 120)], false);
        assert_eq!(*classes.list[number as usize], [(97, 99), (105, 120)]);
        let negated = classes.number(vec![(97, 99), (105, 120)], true);
        assert_eq!(*classes.list[negated as usize], [(0, 96), (100, 104), (121, u32::MAX)]);
        assert_eq!(classes.number(vec![(97, 99), (105, 120)], false), number, "each class is kept once");
        let all = classes.number(Vec::new(), true);
        assert_eq!(*classes.list[all as usize], [(0, u32::MAX)]);
        assert!(classes.number(vec![(0, u32::MAX)], true) != all);
    }
}
