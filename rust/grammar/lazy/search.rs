//! A regular expression that is looked for in a text that grows.

use std::sync::Arc;

use regex_automata::nfa::thompson::{NFA, State, Transition};
use regex_automata::util::look::{Look, LookSet};
use regex_automata::util::primitives::StateID;

/// No place.
const NONE: usize = usize::MAX;

/// An expression that is looked for.
#[derive(Debug)]
pub(super) struct CompiledPattern {
    nfa: NFA,
    /// The bytes that begin no match, behind the first byte of a text; `None` where that depends on what stands before them.
    passed: Option<[bool; 256]>,
}

impl CompiledPattern {
    /// `nfa` is of one pattern, with its groups, and has no Unicode word boundaries.
    pub(super) fn new(nfa: NFA) -> Self {
        let passed = passed_over(&nfa);
        Self { nfa, passed }
    }
}

/// The search for one expression in one text, byte by byte: what `regex` finds in the text up to here, for a price per byte that is
/// bounded by the size of the expression and does not grow with the text.
///
/// This is Pike's simulation of the automaton, of which the threads are kept from one byte to the next: those that come first found
/// more to the left, or what the expression prefers. Most tokens of most texts begin no match, and are passed over.
#[derive(Debug, Clone)]
pub(super) struct Search {
    sought: Arc<CompiledPattern>,
    threads: ThreadSet,
    /// As many bytes have come.
    at: usize,
    before: Option<u8>,
    /// Where in the text the grammar begins, by what was found in the bytes that came last.
    found: Option<usize>,
}

/// States of the automaton that are to be looked at before the next byte, each with the places of its groups.
#[derive(Debug, Clone, Default)]
struct ThreadSet {
    states: Vec<StateID>,
    slots: Vec<usize>,
}

/// What is left to do on the way from one thread's state to all that follow without a byte.
enum PendingState {
    Explore(StateID),
    /// A group's place is what it was before.
    Restore(usize, usize),
}

impl Search {
    /// In an empty text.
    pub(super) fn new(sought: Arc<CompiledPattern>) -> Self {
        let slots = vec![NONE; sought.nfa.group_info().slot_len()];
        let threads = ThreadSet { states: vec![sought.nfa.start_unanchored()], slots };
        Self { sought, threads, at: 0, before: None, found: None }
    }

    /// Whether nothing has begun that may become a match, and nothing does with these bytes.
    pub(super) fn passes(&self, bytes: &[u8]) -> bool {
        let Some(passed) = &self.sought.passed else { return false };
        let has_begun = self.threads.states != [self.sought.nfa.start_unanchored()];
        self.before.is_some() && !has_begun && bytes.iter().all(|&byte| passed[usize::from(byte)])
    }

    /// The bytes of a token that it [passes](Self::passes).
    pub(super) fn pass(&mut self, bytes: &[u8]) {
        self.at += bytes.len();
        self.before = bytes.last().copied().or(self.before);
    }

    /// The bytes of a token, and where the grammar begins if the expression matches the text with them at its end.
    ///
    /// Of all matches the one that begins first counts, as for a search of the whole text; there was none before this token.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        self.found = None;
        for &byte in bytes {
            self.threads = self.step(Some(byte));
            (self.at, self.before) = (self.at + 1, Some(byte));
        }
        // The end of the text is not its last end: the threads stay as they are.
        self.step(None);
        self.found.take()
    }

    /// The threads after the next byte; `None` is the end of the text.
    fn step(&mut self, next: Option<u8>) -> ThreadSet {
        let nfa = &self.sought.nfa;
        let n_slots = nfa.group_info().slot_len();
        let around: Vec<u8> = self.before.into_iter().chain(next).collect();
        let here = usize::from(self.before.is_some());
        let mut visited = vec![false; nfa.states().len()];
        let mut after = ThreadSet::default();
        let mut todo = Vec::new();
        for (nth, &state) in self.threads.states.iter().enumerate() {
            let mut slots = self.threads.slots[nth * n_slots..][..n_slots].to_vec();
            todo.push(PendingState::Explore(state));
            while let Some(next_todo) = todo.pop() {
                let id = match next_todo {
                    PendingState::Restore(slot, place) => {
                        slots[slot] = place;
                        continue;
                    }
                    PendingState::Explore(id) => id,
                };
                if std::mem::replace(&mut visited[id.as_usize()], true) {
                    continue;
                }
                let to = match nfa.state(id) {
                    State::ByteRange { trans } => next.filter(|&byte| trans.matches_byte(byte)).map(|_| trans.next),
                    State::Sparse(transitions) => next.and_then(|byte| transitions.matches_byte(byte)),
                    State::Dense(transitions) => next.and_then(|byte| transitions.matches_byte(byte)),
                    State::Look { look, next } => {
                        if nfa.look_matcher().matches(*look, &around, here) {
                            todo.push(PendingState::Explore(*next));
                        }
                        None
                    }
                    State::Union { alternates } => {
                        todo.extend(alternates.iter().rev().map(|&alternate| PendingState::Explore(alternate)));
                        None
                    }
                    State::BinaryUnion { alt1, alt2 } => {
                        todo.extend([PendingState::Explore(*alt2), PendingState::Explore(*alt1)]);
                        None
                    }
                    State::Capture { next, slot, .. } => {
                        let slot = slot.as_usize();
                        todo.extend([PendingState::Restore(slot, slots[slot]), PendingState::Explore(*next)]);
                        slots[slot] = self.at;
                        None
                    }
                    State::Fail => None,
                    State::Match { .. } => {
                        self.found = Some(begins_at(&slots));
                        // What comes after this one is liked less.
                        return after;
                    }
                };
                if let Some(to) = to {
                    after.states.push(to);
                    after.slots.extend_from_slice(&slots);
                }
            }
        }
        after
    }
}

/// Where the grammar begins, by the places of the groups: two for each, the match first.
fn begins_at(slots: &[usize]) -> usize {
    let held = |group: &&[usize]| group[0] != NONE && group[1] != NONE && group[0] < group[1];
    slots.chunks_exact(2).skip(1).find(held).map_or(slots[0], |group| group[0])
}

/// What [`CompiledPattern::passed`] is of an expression.
fn passed_over(nfa: &NFA) -> Option<[bool; 256]> {
    let told_by_place = LookSet::empty().insert(Look::Start).insert(Look::End);
    if !nfa.look_set_any().subtract(told_by_place).is_empty() {
        return None;
    }
    let start = nfa.start_unanchored();
    let mut passed = [true; 256];
    // What goes back to the start is a byte that stands before all matches.
    let mut begins = |trans: &Transition| {
        if trans.next != start {
            passed[usize::from(trans.start)..=usize::from(trans.end)].fill(false);
        }
    };
    let mut visited = vec![false; nfa.states().len()];
    let mut todo = vec![start];
    while let Some(id) = todo.pop() {
        if std::mem::replace(&mut visited[id.as_usize()], true) {
            continue;
        }
        match nfa.state(id) {
            State::ByteRange { trans } => begins(trans),
            State::Sparse(transitions) => transitions.transitions.iter().for_each(&mut begins),
            State::Dense(transitions) => {
                for byte in 0..=u8::MAX {
                    if let Some(next) = transitions.matches_byte(byte) {
                        begins(&Transition { start: byte, end: byte, next });
                    }
                }
            }
            State::Look { look: Look::Start, .. } | State::Fail => {}
            State::Look { next, .. } | State::Capture { next, .. } => todo.push(*next),
            State::Union { alternates } => todo.extend(alternates.iter()),
            State::BinaryUnion { alt1, alt2 } => todo.extend([*alt1, *alt2]),
            // It matches nothing at all, which is there at once.
            State::Match { .. } => return None,
        }
    }
    Some(passed)
}
