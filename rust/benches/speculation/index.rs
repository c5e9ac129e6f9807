//! Drafts from text: cost and acceptance of the text index, beside a suffix automaton, which finds the longest match but cannot
//! forget a text.
//!
//! The texts are files of this repository, split into words and punctuation, which are about as long as the tokens of a model. A
//! drafted token is accepted if the text continues with it.
//!
//! Columns: tokens of the texts; tokens per step with drafts of [`N_DRAFT`] tokens, of which 1 needs no draft; the share of drafted
//! tokens that are accepted; microseconds to add a token, and for each drafted one; and bytes per token that was added.

use std::collections::HashMap;
use std::fs;
use std::hash::{BuildHasherDefault, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weft::request::Token;

use crate::text_index::{MatchCursor, TextIndex};

const MAX_BYTES: usize = 16 << 20;

const N_DRAFT: usize = 7;

/// Texts that are generated at the same time.
const N_STREAMS: usize = 32;

/// A prompt and the text that is generated for it.
struct Case {
    prompt: Vec<Token>,
    output: Vec<Token>,
}

/// Splits text into words with the space before them, digits, runs of white space, and other characters, each with a number.
#[derive(Default)]
struct Words(HashMap<String, Token>);

impl Words {
    fn tokenize(&mut self, text: &str) -> Vec<Token> {
        let kind = |character: char| match character {
            _ if character.is_alphabetic() => 0,
            _ if character.is_whitespace() => 1,
            _ => 2,
        };
        let (mut tokens, mut start) = (Vec::new(), 0);
        let mut characters = text.char_indices().peekable();
        while let Some((at, character)) = characters.next() {
            let next = characters.peek().copied();
            let is_space_of_word = character == ' ' && at == start && next.is_some_and(|(_, next)| kind(next) != 1);
            if is_space_of_word || next.is_some_and(|(_, next)| kind(next) == kind(character) && kind(next) < 2) {
                continue;
            }
            let end = next.map_or(text.len(), |(end, _)| end);
            let number = Token::try_from(self.0.len()).expect("the texts are short");
            tokens.push(*self.0.entry(text[start..end].to_owned()).or_insert(number));
            start = end;
        }
        tokens
    }
}

/// Drafts the tokens of a text from the texts so far.
trait Drafter {
    fn begin_text(&mut self);

    fn push(&mut self, token: Token);

    fn extend(&mut self, tokens: &[Token]) {
        for &token in tokens {
            self.push(token);
        }
    }

    fn draft(&mut self, draft: &mut Vec<Token>);

    fn n_bytes(&self) -> usize;
}

struct Indexed {
    index: TextIndex,
    cursor: MatchCursor,
}

impl Indexed {
    fn new() -> Self {
        let index = TextIndex::new(MAX_BYTES, 1);
        Self { cursor: index.cursor(None, &[]), index }
    }
}

impl Drafter for Indexed {
    fn begin_text(&mut self) {
        self.cursor = self.index.cursor(None, &[]);
    }

    fn push(&mut self, token: Token) {
        self.index.push(&mut self.cursor, token);
    }

    fn draft(&mut self, draft: &mut Vec<Token>) {
        self.index.draft(&self.cursor, N_DRAFT, draft);
    }

    fn n_bytes(&self) -> usize {
        self.index.n_bytes()
    }
}

#[derive(Default)]
struct FastHasher(u64);

impl Hasher for FastHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(byte.into());
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.0 = (self.0 ^ u64::from(value)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }

    fn write_i32(&mut self, value: i32) {
        self.write_u32(value.cast_unsigned());
    }
}

/// The suffix automaton of all texts (Blumer et al. 1985, <https://doi.org/10.1016/0304-3975(85)90157-4>), built online.
struct SuffixAutomaton {
    tokens: Vec<Token>,
    states: Vec<State>,
    next: HashMap<(u32, Token), u32, BuildHasherDefault<FastHasher>>,
    /// State of all tokens. Its link is that of the longest end of them which also occurs before.
    last: u32,
}

#[derive(Default)]
struct State {
    length: u32,
    link: Option<u32>,
    /// Position after one of its occurrences.
    end: u32,
    /// Tokens by which it continues.
    continuations: Vec<Token>,
}

impl SuffixAutomaton {
    fn new() -> Self {
        let (tokens, states, next) = (Vec::new(), vec![State::default()], HashMap::default());
        Self { tokens, states, next, last: 0 }
    }

    fn state(&self, id: u32) -> &State {
        &self.states[id as usize]
    }

    fn matched(&self) -> u32 {
        self.state(self.last).link.unwrap_or(0)
    }

    fn add_state(&mut self, state: State) -> u32 {
        self.states.push(state);
        u32::try_from(self.states.len() - 1).expect("the texts are short")
    }

    fn set_next(&mut self, from: u32, token: Token, to: u32) {
        self.next.insert((from, token), to);
        self.states[from as usize].continuations.push(token);
    }

    fn add(&mut self, token: Token) {
        self.tokens.push(token);
        let end = u32::try_from(self.tokens.len()).expect("the texts are short");
        let new = self.add_state(State { length: self.state(self.last).length + 1, end, ..State::default() });
        let mut from = Some(std::mem::replace(&mut self.last, new));
        while let Some(at) = from.filter(|&at| !self.next.contains_key(&(at, token))) {
            self.set_next(at, token, new);
            from = self.state(at).link;
        }
        let link = from.map_or(0, |from| self.state_after(from, token));
        self.states[new as usize].link = Some(link);
    }

    /// Returns the state of the longest text of `from` and `token`, which is split off if it has longer texts too.
    fn state_after(&mut self, from: u32, token: Token) -> u32 {
        let to = self.next[&(from, token)];
        let length = self.state(from).length + 1;
        if self.state(to).length == length {
            return to;
        }
        let State { link, end, .. } = *self.state(to);
        let clone = self.add_state(State { length, link, end, continuations: Vec::new() });
        for continuation in self.state(to).continuations.clone() {
            self.set_next(clone, continuation, self.next[&(to, continuation)]);
        }
        let mut redirected = Some(from);
        while let Some(at) = redirected.filter(|&at| self.next.get(&(at, token)) == Some(&to)) {
            self.next.insert((at, token), clone);
            redirected = self.state(at).link;
        }
        self.states[to as usize].link = Some(clone);
        clone
    }
}

impl Drafter for SuffixAutomaton {
    fn begin_text(&mut self) {
        // A token that no text has.
        self.push(-1 - Token::try_from(self.tokens.len()).expect("the texts are short"));
    }

    fn push(&mut self, token: Token) {
        // The latest occurrence of the longest match; updating those of all shorter ones would cost a walk to the root.
        let (matched, end) = (self.matched(), u32::try_from(self.tokens.len()).expect("the texts are short"));
        self.states[matched as usize].end = end;
        self.add(token);
    }

    fn draft(&mut self, draft: &mut Vec<Token>) {
        let matched = self.state(self.matched());
        if matched.length > 0 {
            let rest = &self.tokens[matched.end as usize..];
            draft.extend(rest.iter().take(N_DRAFT).take_while(|&&token| token >= 0));
        }
    }

    fn n_bytes(&self) -> usize {
        let n_continuations: usize = self.states.iter().map(|state| size_of_val(&state.continuations[..])).sum();
        let n_entries = self.next.len() * size_of::<((u32, Token), u32)>();
        size_of_val(&self.tokens[..]) + size_of_val(&self.states[..]) + n_continuations + n_entries
    }
}

/// What one drafter does for the texts of one kind.
#[derive(Default)]
struct Figures {
    n_added: usize,
    n_generated: usize,
    n_steps: usize,
    n_drafted: usize,
    n_accepted: usize,
    adding: Duration,
    drafting: Duration,
}

fn measure_drafter(drafter: &mut impl Drafter, cases: &[Case]) -> Figures {
    let mut figures = Figures::default();
    let mut draft = Vec::new();
    for Case { prompt, output } in cases {
        drafter.begin_text();
        let started = Instant::now();
        drafter.extend(prompt);
        figures.adding += started.elapsed();
        figures.n_added += prompt.len() + output.len();
        let mut rest = &output[..];
        while !rest.is_empty() {
            let started = Instant::now();
            draft.clear();
            drafter.draft(&mut draft);
            let drafted = Instant::now();
            let n_accepted = draft.iter().zip(rest).take_while(|(drafted, token)| drafted == token).count();
            let (emitted, after) = rest.split_at(rest.len().min(n_accepted + 1));
            drafter.extend(emitted);
            figures.adding += drafted.elapsed();
            figures.drafting += drafted - started;
            figures.n_steps += 1;
            figures.n_generated += emitted.len();
            figures.n_drafted += draft.len();
            figures.n_accepted += n_accepted;
            rest = after;
        }
    }
    figures
}

fn print(kind: &str, drafter: &str, figures: &Figures, n_bytes: usize) {
    let per = |duration: Duration, n: usize| duration.as_secs_f64() * 1e6 / n.max(1) as f64;
    println!(
        "{kind:<22} {drafter:<16} {:>8} {:>8.2} {:>7.0} % {:>8.2} {:>8.3} {:>8.0}",
        figures.n_generated,
        figures.n_generated as f64 / figures.n_steps.max(1) as f64,
        100.0 * figures.n_accepted as f64 / figures.n_drafted.max(1) as f64,
        per(figures.adding, figures.n_added),
        per(figures.drafting, figures.n_drafted),
        n_bytes as f64 / figures.n_added as f64,
    );
}

/// Prints the costs of 32 texts that are generated round-robin, so that no text stays in the processor's cache.
fn measure_streams(cases: &[Case]) {
    let mut index = TextIndex::new(MAX_BYTES, 1);
    let mut streams: Vec<(MatchCursor, &[Token])> =
        cases.iter().cycle().take(N_STREAMS).map(|case| (index.cursor(None, &[]), &case.output[..])).collect();
    let (mut n_added, mut n_drafted) = (0, 0);
    let (mut adding, mut drafting) = (Duration::ZERO, Duration::ZERO);
    let mut draft = Vec::new();
    while streams.iter().any(|(_, rest)| !rest.is_empty()) {
        for (cursor, rest) in &mut streams {
            let Some((&token, after)) = rest.split_first() else { continue };
            let started = Instant::now();
            draft.clear();
            n_drafted += index.draft(cursor, N_DRAFT, &mut draft);
            let drafted = Instant::now();
            index.push(cursor, token);
            adding += drafted.elapsed();
            drafting += drafted - started;
            n_added += 1;
            *rest = after;
        }
    }
    let per = |duration: Duration, n: usize| duration.as_secs_f64() * 1e6 / n as f64;
    println!(
        "\n{N_STREAMS} streams: {:.2} us to add a token, {:.3} us per drafted token",
        per(adding, n_added),
        per(drafting, n_drafted)
    );
}

fn files(folder: &str, extension: &str) -> Vec<String> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    let mut paths: Vec<PathBuf> = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("a folder of the repository") {
            let path = entry.expect("it is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|other| other == extension) {
                paths.push(path);
            }
        }
    }
    paths.sort();
    paths.iter().map(|path| fs::read_to_string(path).expect("it is text")).collect()
}

/// Renames the longest word that is at least five times in a text, as an edit of a program does.
fn rename(text: &str) -> String {
    let is_letter = |character: char| character.is_alphanumeric() || character == '_';
    let words = text.split(|character| !is_letter(character)).filter(|word| text.matches(word).count() >= 5);
    let longest = words.max_by_key(|word| word.len()).unwrap_or("fn");
    text.replace(longest, "renamed")
}

/// Prints the tables.
pub(crate) fn measure() {
    let mut words = Words::default();
    let mut case = |prompt: &str, output: &str| Case { prompt: words.tokenize(prompt), output: words.tokenize(output) };
    let pages = files("docs/guides", "md");
    let programs = files("rust/engine", "rs");
    let traces = files("tests/clients/traces", "json");
    let kinds: [(&str, Vec<Case>); 5] = [
        ("a page, copied", pages.iter().map(|page| case(page, page)).collect()),
        ("a program, edited", programs.iter().map(|program| case(program, &rename(program))).collect()),
        ("JSON", traces.iter().map(|trace| case("", trace.get(..20_000).unwrap_or(trace))).collect()),
        ("programs", programs.iter().map(|program| case("", program)).collect()),
        ("pages", pages.iter().map(|page| case("", page)).collect()),
    ];
    println!(
        "{:<22} {:<16} {:>8} {:>8} {:>9} {:>8} {:>8} {:>8}",
        "text", "drafter", "tokens", "per step", "accepted", "add us", "draft us", "bytes"
    );
    for (kind, cases) in &kinds {
        let mut indexed = Indexed::new();
        let n_bytes_empty = indexed.n_bytes();
        let figures = measure_drafter(&mut indexed, cases);
        let n_text_bytes = indexed.n_bytes() - n_bytes_empty;
        // The table is as large as it must be if all of the index is used: four bytes for each one of the texts.
        print(kind, "text index", &figures, 5 * n_text_bytes);
        let mut automaton = SuffixAutomaton::new();
        let figures = measure_drafter(&mut automaton, cases);
        print(kind, "suffix automaton", &figures, automaton.n_bytes());
    }
    measure_streams(&kinds[3].1);
}
