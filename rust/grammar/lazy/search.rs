//! Incremental search of a text for one trigger.

use std::sync::Arc;

use regex_automata::nfa::thompson::{NFA, State, Transition};
use regex_automata::util::look::{Look, LookSet};
use regex_automata::util::primitives::StateID;

const NONE: usize = usize::MAX;

#[derive(Debug)]
pub(super) struct CompiledPattern {
    nfa: NFA,
    /// Bytes that start no match, except at the start of a text; `None` if that depends on the preceding byte.
    skippable: Option<[bool; 256]>,
}

impl CompiledPattern {
    /// `nfa` has one pattern with its groups, and no Unicode word boundaries.
    pub(super) fn new(nfa: NFA) -> Self {
        let skippable = skippable_bytes(&nfa);
        Self { nfa, skippable }
    }
}

/// The search for one expression in one text, byte by byte. It finds what `regex` finds in the text so far; the cost per byte
/// is bounded by the size of the expression and does not grow with the text.
///
/// This is Pike's simulation of the NFA, which keeps its threads from one byte to the next, sorted by priority: earlier matches
/// first, then the expression's preference. Most tokens of most texts start no match and are skipped.
#[derive(Debug, Clone)]
pub(super) struct Search {
    pattern: Arc<CompiledPattern>,
    threads: ThreadSet,
    at: usize,
    before: Option<u8>,
    start_of_match: Option<usize>,
}

#[derive(Debug, Clone, Default)]
struct ThreadSet {
    states: Vec<StateID>,
    slots: Vec<usize>,
}

enum PendingState {
    Explore(StateID),
    RestoreSlot(usize, usize),
}

impl Search {
    pub(super) fn new(pattern: Arc<CompiledPattern>) -> Self {
        let slots = vec![NONE; pattern.nfa.group_info().slot_len()];
        let threads = ThreadSet { states: vec![pattern.nfa.start_unanchored()], slots };
        Self { pattern, threads, at: 0, before: None, start_of_match: None }
    }

    /// Returns true if no match is in progress and these bytes start none.
    pub(super) fn can_skip(&self, bytes: &[u8]) -> bool {
        let Some(skippable) = &self.pattern.skippable else { return false };
        let has_begun = self.threads.states != [self.pattern.nfa.start_unanchored()];
        self.before.is_some() && !has_begun && bytes.iter().all(|&byte| skippable[usize::from(byte)])
    }

    pub(super) fn skip(&mut self, bytes: &[u8]) {
        self.at += bytes.len();
        self.before = bytes.last().copied().or(self.before);
    }

    /// Returns the start of the grammar if the expression matches the text up to the end of this token. Of all matches, the
    /// leftmost counts, as in a search of the whole text; there was none before this token.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        self.start_of_match = None;
        for &byte in bytes {
            self.threads = self.step(Some(byte));
            (self.at, self.before) = (self.at + 1, Some(byte));
        }
        // The text may continue: the threads are kept.
        self.step(None);
        self.start_of_match.take()
    }

    /// Advances all threads by one byte; `None` is the end of the text.
    fn step(&mut self, next: Option<u8>) -> ThreadSet {
        let nfa = &self.pattern.nfa;
        let n_slots = nfa.group_info().slot_len();
        let around: Vec<u8> = self.before.into_iter().chain(next).collect();
        let here = usize::from(self.before.is_some());
        let mut visited = vec![false; nfa.states().len()];
        let mut after = ThreadSet::default();
        let mut pending = Vec::new();
        for (index, &state) in self.threads.states.iter().enumerate() {
            let mut slots = self.threads.slots[index * n_slots..][..n_slots].to_vec();
            pending.push(PendingState::Explore(state));
            while let Some(step) = pending.pop() {
                let id = match step {
                    PendingState::RestoreSlot(slot, position) => {
                        slots[slot] = position;
                        continue;
                    }
                    PendingState::Explore(id) => id,
                };
                if std::mem::replace(&mut visited[id.as_usize()], true) {
                    continue;
                }
                let target = match nfa.state(id) {
                    State::ByteRange { trans } => next.filter(|&byte| trans.matches_byte(byte)).map(|_| trans.next),
                    State::Sparse(transitions) => next.and_then(|byte| transitions.matches_byte(byte)),
                    State::Dense(transitions) => next.and_then(|byte| transitions.matches_byte(byte)),
                    State::Look { look, next } => {
                        if nfa.look_matcher().matches(*look, &around, here) {
                            pending.push(PendingState::Explore(*next));
                        }
                        None
                    }
                    State::Union { alternates } => {
                        pending.extend(alternates.iter().rev().map(|&alternate| PendingState::Explore(alternate)));
                        None
                    }
                    State::BinaryUnion { alt1, alt2 } => {
                        pending.extend([PendingState::Explore(*alt2), PendingState::Explore(*alt1)]);
                        None
                    }
                    State::Capture { next, slot, .. } => {
                        let slot = slot.as_usize();
                        pending.extend([PendingState::RestoreSlot(slot, slots[slot]), PendingState::Explore(*next)]);
                        slots[slot] = self.at;
                        None
                    }
                    State::Fail => None,
                    State::Match { .. } => {
                        self.start_of_match = Some(grammar_start(&slots));
                        // The remaining threads have a lower priority.
                        return after;
                    }
                };
                if let Some(target) = target {
                    after.states.push(target);
                    after.slots.extend_from_slice(&slots);
                }
            }
        }
        after
    }
}

/// Returns the start of the first non-empty group, or of the whole match. Each group has two slots, and the match comes first.
fn grammar_start(slots: &[usize]) -> usize {
    let is_nonempty = |group: &&[usize]| group[0] != NONE && group[1] != NONE && group[0] < group[1];
    slots.chunks_exact(2).skip(1).find(is_nonempty).map_or(slots[0], |group| group[0])
}

fn skippable_bytes(nfa: &NFA) -> Option<[bool; 256]> {
    let position_looks = LookSet::empty().insert(Look::Start).insert(Look::End);
    if !nfa.look_set_any().subtract(position_looks).is_empty() {
        return None;
    }
    let start = nfa.start_unanchored();
    let mut skippable = [true; 256];
    // A transition to the start belongs to the unanchored prefix of all matches.
    let mut mark_start = |trans: &Transition| {
        if trans.next != start {
            skippable[usize::from(trans.start)..=usize::from(trans.end)].fill(false);
        }
    };
    let mut visited = vec![false; nfa.states().len()];
    let mut pending = vec![start];
    while let Some(id) = pending.pop() {
        if std::mem::replace(&mut visited[id.as_usize()], true) {
            continue;
        }
        match nfa.state(id) {
            State::ByteRange { trans } => mark_start(trans),
            State::Sparse(transitions) => transitions.transitions.iter().for_each(&mut mark_start),
            State::Dense(transitions) => {
                for byte in 0..=u8::MAX {
                    if let Some(next) = transitions.matches_byte(byte) {
                        mark_start(&Transition { start: byte, end: byte, next });
                    }
                }
            }
            State::Look { look: Look::Start, .. } | State::Fail => {}
            State::Look { next, .. } | State::Capture { next, .. } => pending.push(*next),
            State::Union { alternates } => pending.extend(alternates.iter()),
            State::BinaryUnion { alt1, alt2 } => pending.extend([*alt1, *alt2]),
            // The expression matches the empty text, so a match is always in progress.
            State::Match { .. } => return None,
        }
    }
    Some(skippable)
}
