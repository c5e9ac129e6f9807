//! Grammar rules under construction, and their text in GBNF.

use std::fmt::Write;

use super::super::ranges::{Ranges, merge};
use super::automaton::Dfa;
use super::pattern::LAST;

pub(super) type RuleNumber = usize;

const NAMED_RULES: [(&str, &str); 9] = [
    ("value", "object | array | string | number | \"true\" | \"false\" | \"null\""),
    ("object", "\"{\" space (string \":\" space value (\",\" space string \":\" space value)*)? space \"}\""),
    ("array", "\"[\" space (value (\",\" space value)*)? space \"]\""),
    ("string", "\"\\\"\" char* \"\\\"\""),
    ("char", "[^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" unit)"),
    // A UTF-16 code unit, or two for characters beyond the first 65,536.
    (
        "unit",
        "[0-9a-cefA-CEF] [0-9a-fA-F]{3} | [dD] ([0-7] [0-9a-fA-F]{2} | [89abAB] [0-9a-fA-F]{2} \"\\\\u\" [dD] [c-fC-F] [0-9a-fA-F]{2})",
    ),
    ("integer", "\"-\"? (\"0\" | [1-9] [0-9]{0,15})"),
    ("number", "integer (\".\" [0-9]{1,16})? ([eE] [-+]? (\"0\" | [1-9] [0-9]?))?"),
    // Like in llama.cpp, white space is bounded.
    ("space", "| \" \" | \"\\n\"{1,2} [ \\t]{0,20}"),
];

/// Maximum repetitions in one rule; larger numbers are nested.
const MAX_REPEAT: usize = 1_000;

/// From here on, a number of repetitions is unlimited: no completion is that long.
pub(super) const UNBOUNDED: usize = 1_000_000_000;

pub(super) const MAX_TIMES: usize = 1_000_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Expr {
    Text(String),
    Class(Ranges),
    Rule(RuleNumber),
    Named(&'static str),
    Sequence(Vec<Expr>),
    /// An empty choice never matches.
    Choice(Vec<Expr>),
    /// An item, repeated from the first to the second number of times, see [`RuleList::repeat`].
    Repeat(Box<Expr>, usize, Option<usize>),
}

impl Expr {
    pub(super) fn nothing() -> Self {
        Self::Text(String::new())
    }

    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn never() -> Self {
        Self::Choice(Vec::new())
    }

    pub(super) fn enclosed(open: &str, inner: Self, close: &str) -> Self {
        Self::Sequence(vec![Self::text(open), Self::Named("space"), inner, Self::Named("space"), Self::text(close)])
    }

    pub(super) fn in_quotes(text: Self) -> Self {
        Self::Sequence(vec![Self::text("\""), text, Self::text("\"")])
    }
}

#[derive(Debug, Default)]
pub(super) struct RuleList {
    list: Vec<Expr>,
}

impl RuleList {
    /// Adds `n` rules, to be set later; returns the first.
    pub(super) fn add_all(&mut self, n: usize) -> RuleNumber {
        let first = self.list.len();
        self.list.resize(first + n, Expr::never());
        first
    }

    pub(super) fn set(&mut self, rule: RuleNumber, expr: Expr) {
        self.list[rule] = expr;
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn add_rule(&mut self, expr: Expr) -> Expr {
        let rule = self.add_all(1);
        self.set(rule, expr);
        Expr::Rule(rule)
    }

    pub(super) fn repeat(&mut self, item: Expr, min: usize, max: Option<usize>) -> Expr {
        // The repeated item is one rule, because the rules of all repetitions are bounded.
        let item = if matches!(item, Expr::Named(_) | Expr::Rule(_)) { item } else { self.add_rule(item) };
        let part = |min: usize, max: Option<usize>| Expr::Repeat(Box::new(item.clone()), min, max);
        let left = max.filter(|&max| max < UNBOUNDED).map(|max| max.saturating_sub(min));
        // Blocks of [`MAX_REPEAT`] repetitions share a rule: large bounds cost little more than small ones.
        let whole = (min.max(left.unwrap_or(0)) >= MAX_REPEAT).then(|| self.add_rule(part(MAX_REPEAT, Some(MAX_REPEAT))));
        let mut parts: Vec<Expr> = whole.iter().cycle().take(min / MAX_REPEAT).cloned().collect();
        parts.push(part(min % MAX_REPEAT, Some(min % MAX_REPEAT)));
        let Some(left) = left else {
            parts.push(part(0, None));
            return Expr::Sequence(parts);
        };
        // Either a full block and more, or an incomplete block and the end.
        let mut rest = part(0, Some(left % MAX_REPEAT));
        if let Some(whole) = whole.filter(|_| left >= MAX_REPEAT) {
            let short = self.add_rule(part(0, Some(MAX_REPEAT - 1)));
            for _ in 0..left / MAX_REPEAT {
                rest = self.add_rule(Expr::Choice(vec![short.clone(), Expr::Sequence(vec![whole.clone(), rest])]));
            }
        }
        parts.push(rest);
        Expr::Sequence(parts)
    }

    pub(super) fn add_dfa(&mut self, dfa: &Dfa) -> Expr {
        let first = self.add_all(dfa.len());
        for (number, state) in dfa.iter().enumerate() {
            let next = state.next.iter().map(|(to, ranges)| Expr::Sequence(vec![escaped_class(ranges), Expr::Rule(first + to)]));
            let end = state.may_end.then(Expr::nothing);
            self.list[first + number] = Expr::Choice(end.into_iter().chain(next).collect());
        }
        Expr::Rule(first)
    }

    /// Returns the grammar in GBNF; `None` if no text matches.
    pub(super) fn to_gbnf(&self, root: RuleNumber) -> Option<String> {
        let is_live = self.find_live();
        if !is_live[root] {
            return None;
        }
        let mut gbnf = format!("root ::= r{root}\n");
        let (mut is_written, mut pending) = (vec![false; self.list.len()], vec![root]);
        while let Some(rule) = pending.pop() {
            if std::mem::replace(&mut is_written[rule], true) {
                continue;
            }
            let _ = write!(gbnf, "r{rule} ::= ");
            self.list[rule].write(&is_live, false, &mut gbnf, &mut pending);
            gbnf.push('\n');
        }
        for (name, text) in NAMED_RULES {
            let _ = writeln!(gbnf, "{name} ::= {text}");
        }
        Some(gbnf)
    }

    fn find_live(&self) -> Vec<bool> {
        let mut is_live = vec![false; self.list.len()];
        // When a rule becomes live, the rules that refer to it are checked again.
        let mut referrers: Vec<Vec<RuleNumber>> = vec![Vec::new(); self.list.len()];
        for (number, expr) in self.list.iter().enumerate() {
            expr.for_each_rule(&mut |rule| referrers[rule].push(number));
        }
        let mut pending: Vec<RuleNumber> = (0..self.list.len()).rev().collect();
        while let Some(number) = pending.pop() {
            if !is_live[number] && self.list[number].is_live(&is_live) {
                is_live[number] = true;
                pending.extend(&referrers[number]);
            }
        }
        is_live
    }
}

impl Expr {
    fn write(&self, is_live: &[bool], is_inner: bool, gbnf: &mut String, pending: &mut Vec<RuleNumber>) {
        match self {
            Self::Text(text) => write_literal(text, gbnf),
            Self::Class(ranges) => write_class(ranges, gbnf),
            Self::Named(name) => gbnf.push_str(name),
            Self::Rule(rule) => {
                let _ = write!(gbnf, "r{rule}");
                pending.push(*rule);
            }
            Self::Sequence(items) => {
                for (i, item) in items.iter().enumerate() {
                    gbnf.push_str(if i > 0 { " " } else { "" });
                    item.write(is_live, true, gbnf, pending);
                }
            }
            Self::Choice(choices) => {
                let mut live = choices.iter().filter(|choice| choice.is_live(is_live)).peekable();
                let first = live.next();
                let is_one = live.peek().is_none();
                gbnf.push_str(if is_inner && !is_one { "(" } else { "" });
                for (i, choice) in first.into_iter().chain(live).enumerate() {
                    gbnf.push_str(if i > 0 { " | " } else { "" });
                    choice.write(is_live, is_inner && is_one, gbnf, pending);
                }
                gbnf.push_str(if is_inner && !is_one { ")" } else { "" });
            }
            Self::Repeat(item, min, max) if !item.is_live(is_live) || *max == Some(0) => {
                debug_assert!(*min == 0, "an item that never matches is optional");
                gbnf.push_str("\"\"");
            }
            Self::Repeat(item, min, max) => {
                item.write(is_live, true, gbnf, pending);
                let _ = match (min, max) {
                    (1, Some(1)) => Ok(()),
                    (0, None) => write!(gbnf, "*"),
                    (0, Some(1)) => write!(gbnf, "?"),
                    (min, None) => write!(gbnf, "{{{min},}}"),
                    (min, Some(max)) if min == max => write!(gbnf, "{{{min}}}"),
                    (min, Some(max)) => write!(gbnf, "{{{min},{max}}}"),
                };
            }
        }
    }

    fn for_each_rule(&self, each: &mut impl FnMut(RuleNumber)) {
        match self {
            Self::Rule(rule) => each(*rule),
            Self::Sequence(list) | Self::Choice(list) => list.iter().for_each(|expr| expr.for_each_rule(each)),
            Self::Repeat(item, ..) => item.for_each_rule(each),
            Self::Text(_) | Self::Class(_) | Self::Named(_) => {}
        }
    }

    fn is_live(&self, is_rule_live: &[bool]) -> bool {
        match self {
            Self::Text(_) | Self::Named(_) => true,
            Self::Class(ranges) => !ranges.is_empty(),
            Self::Rule(rule) => is_rule_live[*rule],
            Self::Sequence(items) => items.iter().all(|item| item.is_live(is_rule_live)),
            Self::Choice(choices) => choices.iter().any(|choice| choice.is_live(is_rule_live)),
            Self::Repeat(item, min, _) => *min == 0 || item.is_live(is_rule_live),
        }
    }
}

/// Returns an expression for one of these characters, escaped as in a JSON string.
fn escaped_class(ranges: &Ranges) -> Expr {
    let mut choices = Vec::new();
    let mut plain = Vec::new();
    for &(low, high) in ranges {
        for (first, last) in [(0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, LAST)] {
            let (low, high) = (low.max(first), high.min(last));
            if low <= high {
                plain.push((low, high));
            }
        }
    }
    if !plain.is_empty() {
        choices.push(Expr::Class(merge(plain)));
    }
    let escaped = (0..0x20).chain([0x22, 0x5C]);
    let is_in = |code: &u32| ranges.iter().any(|&(low, high)| low <= *code && *code <= high);
    for code in escaped.filter(is_in) {
        let mut spelling = String::new();
        escape(char::from_u32(code).unwrap_or_default(), &mut spelling);
        choices.push(Expr::Text(spelling));
    }
    Expr::Choice(choices)
}

fn escape(character: char, out: &mut String) {
    match character {
        '"' | '\\' => out.extend(['\\', character]),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\0'..' ' => {
            let _ = write!(out, "\\u{:04x}", u32::from(character));
        }
        _ => out.push(character),
    }
}

pub(super) fn quote(text: &str) -> String {
    let mut out = "\"".to_owned();
    text.chars().for_each(|character| escape(character, &mut out));
    out.push('"');
    out
}

fn write_literal(text: &str, gbnf: &mut String) {
    gbnf.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => gbnf.extend(['\\', character]),
            '\0'..' ' => {
                let _ = write!(gbnf, "\\x{:02X}", u32::from(character));
            }
            _ => gbnf.push(character),
        }
    }
    gbnf.push('"');
}

fn write_class(ranges: &Ranges, gbnf: &mut String) {
    let code = |code: u32, gbnf: &mut String| match char::from_u32(code) {
        Some(character) if character.is_ascii_alphanumeric() => gbnf.push(character),
        _ if code < 0x100 => drop(write!(gbnf, "\\x{code:02X}")),
        _ if code < 0x1_0000 => drop(write!(gbnf, "\\u{code:04X}")),
        _ => drop(write!(gbnf, "\\U{code:08X}")),
    };
    gbnf.push('[');
    for &(low, high) in ranges {
        code(low, gbnf);
        if high > low {
            gbnf.push('-');
            code(high, gbnf);
        }
    }
    gbnf.push(']');
}
