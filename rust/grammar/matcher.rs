//! Where a text is in its grammar.
//!
//! As in llama.cpp, that is a set of stacks, each of what is still asked for once the element on its top is met: one stack for
//! each way to read the text. Here stacks share what lies below their tops, a set of them is a state that is kept, and what a
//! symbol makes of a state is found out once. Inside of a JSON string, say, a character is one look into a table.

use std::collections::HashMap;
use std::sync::Arc;

use super::alphabet::Alphabet;
use super::named_tokens::NamedTokens;
use super::rules::{Element, Rules};
use super::utf8::{PartialChar, Utf8Step};
use crate::request::Token;

/// A stack: its top and what is below. [`EMPTY`] asks for nothing more.
type Stack = u32;
const EMPTY: Stack = 0;

/// A set of stacks that were reached together. Nothing can be read in [`DEAD`].
pub(super) type State = u32;
pub(super) const DEAD: State = 0;

/// A symbol's effect that was not looked for yet.
const UNKNOWN: State = State::MAX;

/// Most stacks that are made for one token: some tenths of a second and tens of megabytes. A grammar that needs more reads one text
/// in so many ways that llama.cpp would fill the memory with them; the most that ordinary ones need is a few per cent of this.
const MAX_STEPS: usize = 1 << 20;

/// Most stacks whose tops are looked at for one token: some tenths of a second as well. A list of thousands of words, each of which
/// begins with a character of its own, takes a quarter of this.
const MAX_LOOKS: usize = 1 << 26;

/// What is remembered is forgotten before a token when it takes more numbers than this.
pub(super) const MAX_REMEMBERED: usize = 1 << 20;

/// So many symbols have a row in the table of what they make of a state: those of ASCII, which come first, and some more. Most
/// grammars have no others.
const ROW: usize = 256;

/// The rules of a grammar and the symbols that they speak of.
#[derive(Debug)]
pub(super) struct Language {
    pub(super) rules: Rules,
    pub(super) alphabet: Alphabet,
}

/// Reads a text, symbol by symbol.
#[derive(Debug, Clone)]
pub(super) struct Matcher {
    language: Arc<Language>,
    /// The place of each stack's top, and the stack below.
    stacks: Vec<(u32, Stack)>,
    stack_numbers: HashMap<(u32, Stack), Stack>,
    /// The stacks of each state, in order.
    states: Vec<Box<[Stack]>>,
    state_numbers: HashMap<Box<[Stack]>, State>,
    /// What the first [`ROW`] symbols make of each state: a row per state.
    next: Vec<State>,
    /// What the other symbols make of a state, where it was looked for.
    next_rare: HashMap<(State, u32), State>,
    /// Whether part of a character may be completed in a state, where it was looked for.
    completable: HashMap<(State, PartialChar), bool>,
    /// For each stack, in which round it was met last.
    met: Vec<u32>,
    round: u32,
    todo: Vec<Stack>,
    found: Vec<Stack>,
    n_remembered: usize,
    n_steps: usize,
    n_looks: usize,
}

impl Matcher {
    /// Also returns the state at the beginning of a text; [`DEAD`] where there are too many ways to begin.
    pub(super) fn new(language: Arc<Language>) -> (Self, State) {
        let root = language.rules.root;
        let mut matcher = Self {
            language,
            stacks: Vec::new(),
            stack_numbers: HashMap::new(),
            states: Vec::new(),
            state_numbers: HashMap::new(),
            next: Vec::new(),
            next_rare: HashMap::new(),
            completable: HashMap::new(),
            met: Vec::new(),
            round: 0,
            todo: Vec::new(),
            found: Vec::new(),
            n_remembered: 0,
            n_steps: 0,
            n_looks: 0,
        };
        matcher.clear();
        matcher.begin_round();
        matcher.ask_for(root, EMPTY);
        let start = matcher.settle();
        (matcher, start)
    }

    /// Whether the grammar was given up, since a token takes too many steps. Nothing can be read any more.
    pub(super) fn is_exhausted(&self) -> bool {
        self.n_steps > MAX_STEPS || self.n_looks > MAX_LOOKS
    }

    /// Begins to count the steps for a token. Where much is remembered, all but `state` is forgotten, which gets another number.
    pub(super) fn begin_token(&mut self, state: State) -> State {
        if self.is_exhausted() {
            self.clear();
            return DEAD;
        }
        (self.n_steps, self.n_looks) = (0, 0);
        if self.n_remembered <= MAX_REMEMBERED {
            return state;
        }
        let (stacks, kept) = (std::mem::take(&mut self.stacks), std::mem::take(&mut self.states));
        self.clear();
        let mut numbers = HashMap::from([(EMPTY, EMPTY)]);
        for &stack in &kept[state as usize] {
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
            self.found.push(numbers[&stack]);
        }
        self.keep_found()
    }

    /// Bytes of the rules and of what is remembered, about.
    pub(super) fn n_bytes(&self) -> usize {
        size_of::<Element>() * self.language.rules.elements.len() + size_of::<u32>() * self.n_remembered
    }

    /// How many numbers are remembered of the text so far.
    #[cfg(test)]
    pub(super) fn n_remembered(&self) -> usize {
        self.n_remembered
    }

    /// How many stacks were looked at for this token.
    #[cfg(test)]
    pub(super) fn n_looks(&self) -> usize {
        self.n_looks
    }

    fn clear(&mut self) {
        self.stacks = vec![(0, EMPTY)];
        self.stack_numbers.clear();
        self.states.clear();
        self.state_numbers.clear();
        self.next.clear();
        self.next_rare.clear();
        self.completable.clear();
        self.met = vec![0];
        self.round = 0;
        self.n_remembered = 0;
        self.found.clear();
        let dead = self.keep_found();
        assert_eq!(dead, DEAD, "the first state has no stacks");
    }

    /// Whether a text may end in `state`.
    pub(super) fn may_end(&self, state: State) -> bool {
        self.states[state as usize].first() == Some(&EMPTY)
    }

    /// The state after one more character.
    pub(super) fn step(&mut self, state: State, code: u32) -> State {
        let symbol = self.language.alphabet.symbol(code);
        let n_row = self.n_row();
        let has_place = (symbol as usize) < n_row;
        let place = has_place.then(|| state as usize * n_row + symbol as usize);
        let known = match place {
            Some(place) => self.next[place],
            None => self.next_rare.get(&(state, symbol)).copied().unwrap_or(UNKNOWN),
        };
        if known != UNKNOWN {
            return known;
        }
        let next = self.advance(state, |language, element| match element {
            Element::Class(class) => language.alphabet.meets(class, symbol, symbol),
            _ => false,
        });
        if let Some(place) = place {
            self.next[place] = next;
        } else {
            self.next_rare.insert((state, symbol), next);
            self.n_remembered += 3;
        }
        next
    }

    /// How many symbols have a place in a row of [`Matcher::next`].
    fn n_row(&self) -> usize {
        self.language.alphabet.len().min(ROW)
    }

    /// The state after a text and part of a character, or `None` where it cannot go on so.
    pub(super) fn feed(&mut self, state: State, partial: PartialChar, byte: u8) -> Option<(State, PartialChar)> {
        let next = match partial.feed(byte) {
            Utf8Step::Character(code) => (self.step(state, code), PartialChar::default()),
            Utf8Step::Partial(partial) => (state, partial),
            Utf8Step::Invalid => (DEAD, PartialChar::default()),
        };
        (next.0 != DEAD).then_some(next)
    }

    /// Whether part of a character may be completed in `state`; nothing of a character always is.
    pub(super) fn may_complete(&mut self, state: State, partial: PartialChar) -> bool {
        if partial.is_none() {
            return true;
        }
        if let Some(&known) = self.completable.get(&(state, partial)) {
            return known;
        }
        self.n_looks += self.states[state as usize].len();
        let (low, high) = partial.range();
        let alphabet = &self.language.alphabet;
        let (low, high) = (alphabet.symbol(low), alphabet.symbol(high));
        let begins = |element| matches!(element, Element::Class(class) if alphabet.meets(class, low, high));
        let may = !self.is_exhausted() && self.tops(state).any(begins);
        self.completable.insert((state, partial), may);
        self.n_remembered += 5;
        may
    }

    /// The tokens that `state` asks for by their ids.
    pub(super) fn named(&mut self, state: State) -> NamedTokens {
        self.n_looks += self.states[state as usize].len();
        NamedTokens::new(self.tops(state))
    }

    /// The state after a token that `state` asks for by its id.
    pub(super) fn step_token(&mut self, state: State, token: Token) -> State {
        self.advance(state, |_, element| match element {
            Element::Token(named) => named == token,
            Element::NotToken(named) => named != token,
            _ => false,
        })
    }

    /// The state in which a text is that may be in either.
    pub(super) fn either(&mut self, one: State, other: State) -> State {
        self.found.clear();
        self.found.extend_from_slice(&self.states[one as usize]);
        self.found.extend_from_slice(&self.states[other as usize]);
        self.keep_found()
    }

    /// What the stacks of `state` ask for next.
    fn tops(&self, state: State) -> impl Iterator<Item = Element> {
        let stacks = self.states[state as usize].iter().filter(|&&stack| stack != EMPTY);
        stacks.map(|&stack| self.language.rules.element(self.stacks[stack as usize].0))
    }

    /// The state after what makes `is_met` true of the elements that it meets.
    fn advance(&mut self, state: State, is_met: impl Fn(&Language, Element) -> bool) -> State {
        if self.is_exhausted() {
            return DEAD;
        }
        self.begin_round();
        self.n_looks += self.states[state as usize].len();
        for place in 0..self.states[state as usize].len() {
            let stack = self.states[state as usize][place];
            let (top, below) = self.stacks[stack as usize];
            if stack != EMPTY && is_met(&self.language, self.language.rules.element(top)) {
                let stack = self.after(top, below);
                self.todo.push(stack);
            }
        }
        self.settle()
    }

    fn begin_round(&mut self) {
        self.round += 1;
        self.todo.clear();
        self.found.clear();
    }

    /// The stack that goes on after the element at `at`.
    fn after(&mut self, at: u32, below: Stack) -> Stack {
        // An alternative that is done leaves nothing, so that a rule that ends in itself does not grow the stack.
        if self.language.rules.element(at + 1) == Element::End { below } else { self.push(at + 1, below) }
    }

    fn push(&mut self, top: u32, below: Stack) -> Stack {
        let stacks = &mut self.stacks;
        *self.stack_numbers.entry((top, below)).or_insert_with(|| {
            stacks.push((top, below));
            self.met.push(0);
            self.n_remembered += 1;
            self.n_steps += 1;
            Stack::try_from(stacks.len() - 1).expect("what is remembered is bounded")
        })
    }

    /// Adds the alternatives of a rule to what is to be done, on top of `below`.
    fn ask_for(&mut self, rule: u32, below: Stack) {
        let language = Arc::clone(&self.language);
        for &start in language.rules.alternatives(rule) {
            let is_empty = language.rules.element(start) == Element::End;
            let stack = if is_empty { below } else { self.push(start, below) };
            self.todo.push(stack);
        }
    }

    /// Follows rules until every stack that was to be done has a character or a token on its top.
    fn settle(&mut self) -> State {
        while let Some(stack) = self.todo.pop() {
            if std::mem::replace(&mut self.met[stack as usize], self.round) == self.round {
                continue;
            }
            self.n_steps += 1;
            if self.is_exhausted() {
                return DEAD;
            }
            let (top, below) = self.stacks[stack as usize];
            match self.language.rules.element(top) {
                Element::Rule(rule) if stack != EMPTY => {
                    let below = self.after(top, below);
                    self.ask_for(rule, below);
                }
                _ => self.found.push(stack),
            }
        }
        self.keep_found()
    }

    /// The number of the state of the stacks that were found.
    fn keep_found(&mut self) -> State {
        self.found.sort_unstable();
        self.found.dedup();
        if let Some(&state) = self.state_numbers.get(&self.found[..]) {
            self.found.clear();
            return state;
        }
        let state = State::try_from(self.states.len()).expect("what is remembered is bounded");
        let stacks: Box<[Stack]> = self.found.drain(..).collect();
        let n_row = self.n_row();
        self.n_remembered += 2 * stacks.len() + n_row;
        self.n_steps += stacks.len() + 1;
        self.state_numbers.insert(stacks.clone(), state);
        self.states.push(stacks);
        self.next.resize(self.next.len() + n_row, if state == DEAD { DEAD } else { UNKNOWN });
        state
    }
}
