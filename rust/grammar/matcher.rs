//! Tracks the parse state of a text in its grammar.
//!
//! As in llama.cpp, the state is a set of stacks, one for each way to parse the text; a stack holds the elements that must
//! follow once its top is matched. Here, stacks share their tails, sets of stacks are interned as states, and the transition of
//! a state on a symbol is computed once. Inside a JSON string, for example, a character costs one table lookup.

use std::collections::HashMap;
use std::sync::Arc;

use super::alphabet::Alphabet;
use super::named_tokens::NamedTokens;
use super::rules::{Element, Rules};
use super::utf8::{PartialChar, Utf8Step};
use crate::request::Token;

/// An interned stack. [`EMPTY`] requires nothing more.
type Stack = u32;
const EMPTY: Stack = 0;

/// The only character that may come next, white space aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ForcedChar {
    pub(super) code: u32,
    /// True if white space may come before it.
    pub(super) may_be_spaced: bool,
}

/// An interned set of stacks. No text continues from [`DEAD`].
pub(super) type StateId = u32;
pub(super) const DEAD: StateId = 0;

const UNKNOWN: StateId = StateId::MAX;

/// Maximum stacks created for one token: some tenths of a second and tens of megabytes. Ordinary grammars need a few per cent.
const MAX_STEPS: usize = 1 << 20;

/// Maximum stacks inspected for one token: also some tenths of a second. A list of thousands of words that each begin with a
/// different character takes a quarter.
const MAX_INSPECTED: usize = 1 << 26;

/// Stacks created or inspected above which a look-ahead ends: about a millisecond.
const MAX_LOOK_AHEAD: usize = 1 << 12;

/// Numbers in the cache above which it is cleared before the next token.
pub(super) const MAX_CACHED: usize = 1 << 20;

/// Maximum symbols with a column in the transition table. Most grammars only distinguish ASCII characters, which come first.
const ROW: usize = 256;

#[derive(Debug)]
pub(super) struct Language {
    pub(super) rules: Rules,
    pub(super) alphabet: Alphabet,
}

#[derive(Debug, Clone)]
pub(super) struct Matcher {
    language: Arc<Language>,
    stacks: Vec<(u32, Stack)>,
    stack_numbers: HashMap<(u32, Stack), Stack>,
    states: Vec<Box<[Stack]>>,
    state_numbers: HashMap<Box<[Stack]>, StateId>,
    /// Transitions on the first [`ROW`] symbols: a row per state.
    next: Vec<StateId>,
    next_rare: HashMap<(StateId, u32), StateId>,
    completable: HashMap<(StateId, PartialChar), bool>,
    visited_in: Vec<u32>,
    round: u32,
    pending: Vec<Stack>,
    settled: Vec<Stack>,
    pub(super) n_cached: usize,
    n_steps: usize,
    pub(super) n_inspected: usize,
}

impl Matcher {
    /// Creates a matcher, and returns it with the start state; [`DEAD`] if there are too many ways to begin.
    pub(super) fn new(language: Arc<Language>) -> (Self, StateId) {
        let root = language.rules.root;
        let mut matcher = Self::empty(language);
        matcher.begin_round();
        matcher.expand(root, EMPTY);
        let start = matcher.settle();
        (matcher, start)
    }

    fn empty(language: Arc<Language>) -> Self {
        let mut matcher = Self {
            language,
            stacks: vec![(0, EMPTY)],
            stack_numbers: HashMap::new(),
            states: Vec::new(),
            state_numbers: HashMap::new(),
            next: Vec::new(),
            next_rare: HashMap::new(),
            completable: HashMap::new(),
            visited_in: vec![0],
            round: 0,
            pending: Vec::new(),
            settled: Vec::new(),
            n_cached: 0,
            n_steps: 0,
            n_inspected: 0,
        };
        let dead = matcher.intern_settled();
        assert_eq!(dead, DEAD, "the first state has no stacks");
        matcher
    }

    /// Returns true once a token took too many steps: no token is allowed any more.
    pub(super) fn is_exhausted(&self) -> bool {
        self.n_steps > MAX_STEPS || self.n_inspected > MAX_INSPECTED
    }

    /// Resets the step counters. If the cache is full, it is cleared except for `state`, whose new number is returned.
    pub(super) fn begin_token(&mut self, state: StateId) -> StateId {
        if self.is_exhausted() {
            self.clear();
            return DEAD;
        }
        (self.n_steps, self.n_inspected) = (0, 0);
        if self.n_cached > MAX_CACHED { self.clear_except(state) } else { state }
    }

    /// True while a look-ahead may continue: it is bounded, and must not clear the cache, which would renumber its states.
    pub(super) fn may_look_ahead(&self) -> bool {
        self.n_steps <= MAX_LOOK_AHEAD && self.n_inspected <= MAX_LOOK_AHEAD && self.n_cached <= MAX_CACHED
    }

    /// Ends a look-ahead from `state`, whose new number is returned. A look-ahead that exceeds the limits does not end the grammar.
    pub(super) fn end_look_ahead(&mut self, state: StateId) -> StateId {
        let is_exhausted = self.is_exhausted();
        (self.n_steps, self.n_inspected) = (0, 0);
        if is_exhausted { self.clear_except(state) } else { state }
    }

    /// Clears the cache except for `state`, whose new number is returned.
    fn clear_except(&mut self, state: StateId) -> StateId {
        let (stacks, states) = (std::mem::take(&mut self.stacks), std::mem::take(&mut self.states));
        self.clear();
        let mut numbers = HashMap::from([(EMPTY, EMPTY)]);
        for &stack in &states[state as usize] {
            let (mut path, mut below) = (Vec::new(), stack);
            while !numbers.contains_key(&below) {
                path.push(below);
                below = stacks[below as usize].1;
            }
            for &stack in path.iter().rev() {
                let (top, below) = stacks[stack as usize];
                let number = self.push(top, numbers[&below]);
                numbers.insert(stack, number);
            }
            self.settled.push(numbers[&stack]);
        }
        self.intern_settled()
    }

    pub(super) fn n_bytes(&self) -> usize {
        size_of::<Element>() * self.language.rules.elements.len() + size_of::<u32>() * self.n_cached
    }

    fn clear(&mut self) {
        let (n_steps, n_inspected) = (self.n_steps, self.n_inspected);
        *self = Self { n_steps, n_inspected, ..Self::empty(Arc::clone(&self.language)) };
    }

    pub(super) fn may_end(&self, state: StateId) -> bool {
        self.states[state as usize].first() == Some(&EMPTY)
    }

    pub(super) fn step(&mut self, state: StateId, code: u32) -> StateId {
        let symbol = self.language.alphabet.symbol(code);
        let n_columns = self.n_columns();
        let index = ((symbol as usize) < n_columns).then(|| state as usize * n_columns + symbol as usize);
        let cached = match index {
            Some(index) => self.next[index],
            None => self.next_rare.get(&(state, symbol)).copied().unwrap_or(UNKNOWN),
        };
        if cached != UNKNOWN {
            return cached;
        }
        let next = self.advance(state, |language, element| match element {
            Element::Class(class) => language.alphabet.overlaps(class, symbol, symbol),
            _ => false,
        });
        if let Some(index) = index {
            self.next[index] = next;
        } else {
            self.next_rare.insert((state, symbol), next);
            self.n_cached += 3;
        }
        next
    }

    fn n_columns(&self) -> usize {
        self.language.alphabet.len().min(ROW)
    }

    pub(super) fn step_byte(&mut self, state: StateId, partial: PartialChar, byte: u8) -> Option<(StateId, PartialChar)> {
        let next = match partial.feed(byte) {
            Utf8Step::Character(code) => (self.step(state, code), PartialChar::default()),
            Utf8Step::Partial(partial) => (state, partial),
            Utf8Step::Invalid => (DEAD, PartialChar::default()),
        };
        (next.0 != DEAD).then_some(next)
    }

    pub(super) fn may_complete(&mut self, state: StateId, partial: PartialChar) -> bool {
        if partial.is_none() {
            return true;
        }
        if let Some(&cached) = self.completable.get(&(state, partial)) {
            return cached;
        }
        self.n_inspected += self.states[state as usize].len();
        let (low, high) = partial.range();
        let alphabet = &self.language.alphabet;
        let (low, high) = (alphabet.symbol(low), alphabet.symbol(high));
        let matches = |element| matches!(element, Element::Class(class) if alphabet.overlaps(class, low, high));
        let is_possible = !self.is_exhausted() && self.tops(state).any(matches);
        self.completable.insert((state, partial), is_possible);
        self.n_cached += 5;
        is_possible
    }

    /// Returns the character that must come next, possibly after white space; `None` if the text may also end or continue
    /// differently.
    pub(super) fn forced_char(&mut self, state: StateId) -> Option<ForcedChar> {
        self.n_inspected += self.states[state as usize].len();
        if self.may_end(state) {
            return None;
        }
        let (mut forced, mut space, mut n_spaces) = (None, None, 0);
        for element in self.tops(state) {
            let Element::Class(class) = element else { return None };
            for (low, high) in self.language.alphabet.ranges(class) {
                for code in low..=high {
                    if char::from_u32(code).is_some_and(|character| character.is_ascii_whitespace()) {
                        n_spaces += u32::from(space.replace(code) != Some(code));
                    } else if *forced.get_or_insert(code) != code {
                        return None;
                    }
                }
            }
        }
        let only_space = space.filter(|_| n_spaces == 1).map(|code| ForcedChar { code, may_be_spaced: false });
        forced.map(|code| ForcedChar { code, may_be_spaced: n_spaces > 0 }).or(only_space)
    }

    pub(super) fn named_tokens(&mut self, state: StateId) -> NamedTokens {
        self.n_inspected += self.states[state as usize].len();
        NamedTokens::new(self.tops(state))
    }

    /// Returns the state after a token that `state` accepts by its id.
    pub(super) fn step_token(&mut self, state: StateId, token: Token) -> StateId {
        self.advance(state, |_, element| match element {
            Element::Token(named) => named == token,
            Element::NotToken(named) => named != token,
            _ => false,
        })
    }

    pub(super) fn union(&mut self, one: StateId, other: StateId) -> StateId {
        self.settled.clear();
        self.settled.extend_from_slice(&self.states[one as usize]);
        self.settled.extend_from_slice(&self.states[other as usize]);
        self.intern_settled()
    }

    fn tops(&self, state: StateId) -> impl Iterator<Item = Element> {
        let stacks = self.states[state as usize].iter().filter(|&&stack| stack != EMPTY);
        stacks.map(|&stack| self.language.rules.element(self.stacks[stack as usize].0))
    }

    fn advance(&mut self, state: StateId, is_match: impl Fn(&Language, Element) -> bool) -> StateId {
        if self.is_exhausted() {
            return DEAD;
        }
        self.begin_round();
        self.n_inspected += self.states[state as usize].len();
        for index in 0..self.states[state as usize].len() {
            let stack = self.states[state as usize][index];
            let (top, below) = self.stacks[stack as usize];
            if stack != EMPTY && is_match(&self.language, self.language.rules.element(top)) {
                let stack = self.push_after(top, below);
                self.pending.push(stack);
            }
        }
        self.settle()
    }

    fn begin_round(&mut self) {
        self.round += 1;
        self.pending.clear();
        self.settled.clear();
    }

    fn push_after(&mut self, at: u32, below: Stack) -> Stack {
        // A finished alternative is popped, so that a rule that ends with itself does not grow the stack.
        if self.language.rules.element(at + 1) == Element::End { below } else { self.push(at + 1, below) }
    }

    fn push(&mut self, top: u32, below: Stack) -> Stack {
        let stacks = &mut self.stacks;
        *self.stack_numbers.entry((top, below)).or_insert_with(|| {
            stacks.push((top, below));
            self.visited_in.push(0);
            self.n_cached += 1;
            self.n_steps += 1;
            Stack::try_from(stacks.len() - 1).expect("the cache is bounded")
        })
    }

    fn expand(&mut self, rule: u32, below: Stack) {
        let language = Arc::clone(&self.language);
        for &start in language.rules.alternatives(rule) {
            let is_empty = language.rules.element(start) == Element::End;
            let stack = if is_empty { below } else { self.push(start, below) };
            self.pending.push(stack);
        }
    }

    /// Expands rules until every pending stack has a character or a token on top.
    fn settle(&mut self) -> StateId {
        while let Some(stack) = self.pending.pop() {
            if std::mem::replace(&mut self.visited_in[stack as usize], self.round) == self.round {
                continue;
            }
            self.n_steps += 1;
            if self.is_exhausted() {
                return DEAD;
            }
            let (top, below) = self.stacks[stack as usize];
            match self.language.rules.element(top) {
                Element::Rule(rule) if stack != EMPTY => {
                    let below = self.push_after(top, below);
                    self.expand(rule, below);
                }
                _ => self.settled.push(stack),
            }
        }
        self.intern_settled()
    }

    fn intern_settled(&mut self) -> StateId {
        self.settled.sort_unstable();
        self.settled.dedup();
        if let Some(&state) = self.state_numbers.get(&self.settled[..]) {
            self.settled.clear();
            return state;
        }
        let state = StateId::try_from(self.states.len()).expect("the cache is bounded");
        let stacks: Box<[Stack]> = self.settled.drain(..).collect();
        let n_columns = self.n_columns();
        self.n_cached += 2 * stacks.len() + n_columns;
        self.n_steps += stacks.len() + 1;
        self.state_numbers.insert(stacks.clone(), state);
        self.states.push(stacks);
        self.next.resize(self.next.len() + n_columns, if state == DEAD { DEAD } else { UNKNOWN });
        state
    }
}
