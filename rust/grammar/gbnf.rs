//! Parses llama.cpp's GBNF into rules.
//!
//! The parser accepts what llama.cpp's parser accepts and makes the same rules, with repetitions unrolled in the same way. The
//! additional errors are listed in [`super`]: llama.cpp overflows its stack or exhausts the memory instead.

use std::collections::HashMap;

use super::parse_error::{ParseError, Result, excerpt, refuse_at};
use super::rules::{self, Alternatives, Class, Classes, Element, RuleId, Rules};
use super::{MAX_DEPTH, MAX_ELEMENTS, MAX_REPETITIONS};
use crate::request::{Token, is_in_vocabulary};

/// The vocabulary that a grammar refers to.
pub trait TokenLookup {
    /// Returns the token if the text is exactly one token, such as `<think>`.
    fn find_token(&self, text: &str) -> Option<Token>;

    fn n_vocab(&self) -> usize;
}

pub(super) fn parse(text: &str, tokens: &dyn TokenLookup) -> Result<(Rules, Vec<Class>), ParseError> {
    let parser = GbnfParser {
        text,
        at: 0,
        tokens,
        ids: HashMap::new(),
        names: Vec::new(),
        rules: Vec::new(),
        classes: Classes::default(),
        n_unrolled: 0,
    };
    parser.parse_grammar().map_err(|(at, message)| ParseError::new(text, at, message))
}

struct GbnfParser<'a> {
    text: &'a str,
    at: usize,
    tokens: &'a dyn TokenLookup,
    ids: HashMap<&'a str, RuleId>,
    /// For each rule: its name or the name of the rule that it was made for, and the offset of the first use.
    names: Vec<(&'a str, usize)>,
    /// `None` until the rule is defined.
    rules: Vec<Option<Alternatives>>,
    classes: Classes,
    n_unrolled: usize,
}

impl<'a> GbnfParser<'a> {
    fn parse_grammar(mut self) -> Result<(Rules, Vec<Class>)> {
        if let Some(at) = self.text.find('\0') {
            return refuse_at(at, "a grammar cannot contain a NUL character; write \\x00");
        }
        self.skip_space();
        while self.peek().is_some() {
            self.parse_rule()?;
        }
        let Some(&root) = self.ids.get("root") else {
            return refuse_at(self.at, "the grammar must define the rule 'root'");
        };
        let mut rules = Vec::with_capacity(self.rules.len());
        for (rule, &(name, at)) in self.rules.into_iter().zip(&self.names) {
            let Some(rule) = rule else { return refuse_at(at, format!("the rule '{}' is not defined", excerpt(name))) };
            rules.push(rule);
        }
        if let Some(rule) = rules::find_left_recursion(&rules) {
            let (name, at) = self.names[rule as usize];
            return refuse_at(at, format!("the rule '{}' is left-recursive: it can begin with itself", excerpt(name)));
        }
        Ok((Rules::new(&rules, root), self.classes.list))
    }

    fn parse_rule(&mut self) -> Result<()> {
        let name = self.parse_name()?;
        let at = self.at - name.len();
        let id = self.rule_id(name, at);
        self.skip_blanks();
        if !self.skip("::=") {
            let name = excerpt(name);
            return refuse_at(self.at, format!("expected ::= after the name '{name}', which may contain letters, digits and -"));
        }
        self.skip_space();
        self.parse_alternatives(id, name, 0)?;
        if !matches!(self.peek(), None | Some(b'\r' | b'\n')) {
            return self.refuse_next("a new line or the end of the rule");
        }
        self.skip_space();
        Ok(())
    }

    fn parse_alternatives(&mut self, id: RuleId, name: &'a str, depth: usize) -> Result<()> {
        let mut alternatives = vec![self.parse_sequence(name, depth)?];
        while self.skip("|") {
            self.skip_space();
            alternatives.push(self.parse_sequence(name, depth)?);
        }
        self.rules[id as usize] = Some(alternatives);
        Ok(())
    }

    fn parse_sequence(&mut self, name: &'a str, depth: usize) -> Result<Vec<Element>> {
        let mut elements = Vec::new();
        // The item that a repetition applies to: the elements from `last` on, and the number of rules that they are made of.
        let (mut last, mut n_rules) = (0, 1);
        while let Some(byte) = self.peek() {
            let start = self.at;
            let is_item = !matches!(byte, b'*' | b'+' | b'?' | b'{');
            if is_item {
                (last, n_rules) = (elements.len(), 1);
            }
            match byte {
                b'"' => self.parse_literal(&mut elements)?,
                b'[' => elements.extend(self.parse_class()?),
                b'<' | b'!' => elements.push(self.parse_token()?),
                b'.' => {
                    self.at += 1;
                    elements.push(Element::Class(self.classes.intern(Vec::new(), true)));
                }
                b'(' if depth == MAX_DEPTH => {
                    return refuse_at(start, format!("parentheses are nested more than {MAX_DEPTH} deep"));
                }
                b'(' => {
                    self.at += 1;
                    self.skip_space();
                    let n_before = self.rules.len();
                    let id = self.add_rule(name, start);
                    self.parse_alternatives(id, name, depth + 1)?;
                    n_rules = self.rules.len() - n_before;
                    if !self.skip(")") {
                        return self.refuse_next(")");
                    }
                    elements.push(Element::Rule(id));
                }
                _ if is_word(byte) => {
                    let name = self.parse_name()?;
                    elements.push(Element::Rule(self.rule_id(name, start)));
                }
                b'*' | b'+' | b'?' | b'{' => {
                    let (min, max) = self.parse_bounds(depth)?;
                    if last == elements.len() {
                        return refuse_at(start, "there is nothing to repeat before this");
                    }
                    n_rules = n_rules.saturating_mul(max.unwrap_or(min).max(min).max(1));
                    if n_rules > MAX_REPETITIONS {
                        let limit = format!("at most {MAX_REPETITIONS} are allowed");
                        return refuse_at(start, format!("this repetition expands to {n_rules} rules; {limit}"));
                    }
                    self.unroll(&mut elements, last, name, (start, min, max))?;
                }
                _ => return Ok(elements),
            }
            self.skip_after(depth);
        }
        Ok(elements)
    }

    /// Unrolls the repetition of the elements from `last` on: `S{m,n}` becomes m times S, followed by n − m nested rules `S S'
    /// | `. Without an upper bound, one such rule refers to itself.
    fn unroll(
        &mut self,
        elements: &mut Vec<Element>,
        last: usize,
        name: &'a str,
        (at, min, max): (usize, usize, Option<usize>),
    ) -> Result<()> {
        let item = elements.split_off(last);
        let n_optional = max.map_or(1, |max| max - min);
        self.n_unrolled += item.len() * min + (item.len() + 2) * n_optional;
        if self.n_unrolled > MAX_ELEMENTS {
            return refuse_at(at, format!("the repetitions up to here expand to more than {MAX_ELEMENTS} elements"));
        }
        for _ in 0..min {
            elements.extend_from_slice(&item);
        }
        let mut rest = None;
        for _ in 0..n_optional {
            let id = self.add_rule(name, at);
            let next_rule = if max.is_none() { Some(id) } else { rest };
            let repeated = item.iter().copied().chain(next_rule.map(Element::Rule)).collect();
            self.rules[id as usize] = Some(vec![repeated, Vec::new()]);
            rest = Some(id);
        }
        elements.extend(rest.map(Element::Rule));
        Ok(())
    }

    /// Parses the bounds of a repetition; `None` is unbounded.
    fn parse_bounds(&mut self, depth: usize) -> Result<(usize, Option<usize>)> {
        let start = self.at;
        let byte = self.peek();
        self.at += 1;
        match byte {
            Some(b'*') => return Ok((0, None)),
            Some(b'+') => return Ok((1, None)),
            Some(b'?') => return Ok((0, Some(1))),
            _ => self.skip_after(depth),
        }
        let Some(min) = self.parse_number() else { return self.refuse_next("a number of repetitions") };
        self.skip_after(depth);
        let mut max = Some(min);
        if self.skip(",") {
            self.skip_after(depth);
            // Like llama.cpp, an upper bound above the limit means unbounded.
            max = self.parse_number().filter(|&max| max <= MAX_REPETITIONS);
            self.skip_after(depth);
        }
        if !self.skip("}") {
            return self.refuse_next("} after the number of repetitions");
        }
        if min > MAX_REPETITIONS {
            return refuse_at(start, format!("{min} repetitions are too many; at most {MAX_REPETITIONS} are allowed"));
        }
        if let Some(max) = max.filter(|&max| max < min) {
            return refuse_at(start, format!("the minimum of {min} repetitions is above the maximum of {max}"));
        }
        Ok((min, max))
    }

    fn parse_literal(&mut self, elements: &mut Vec<Element>) -> Result<()> {
        let start = self.at;
        self.at += 1;
        while !self.skip("\"") {
            let Some(character) = self.parse_character()? else { return refuse_at(start, "this string is not closed") };
            elements.push(Element::Class(self.classes.intern(vec![(character, character)], false)));
        }
        Ok(())
    }

    /// Parses `[a-z]` or `[^a-z]`. Like in llama.cpp, a class without characters adds no element.
    fn parse_class(&mut self) -> Result<Option<Element>> {
        let start = self.at;
        let unfinished = "this character class is not closed";
        self.at += 1;
        let is_negated = self.skip("^");
        let mut ranges = Vec::new();
        while !self.skip("]") {
            let Some(low) = self.parse_character()? else { return refuse_at(start, unfinished) };
            let is_range = self.peek() == Some(b'-') && self.text.as_bytes().get(self.at + 1) != Some(&b']');
            self.at += usize::from(is_range);
            let high = if is_range { self.parse_character()? } else { Some(low) };
            ranges.push((low, high.ok_or_else(|| (start, unfinished.to_owned()))?));
        }
        Ok((!ranges.is_empty()).then(|| Element::Class(self.classes.intern(ranges, is_negated))))
    }

    fn parse_token(&mut self) -> Result<Element> {
        let is_negated = self.skip("!");
        let start = self.at;
        if self.peek() != Some(b'<') {
            return self.refuse_next("< after !");
        }
        let Some(length) = self.text[start..].find('>').map(|at| at + 1) else {
            return refuse_at(start, "this token is not closed with >");
        };
        let text = &self.text[start..start + length];
        self.at += length;
        let token = if let Some(rest) = text.strip_prefix("<[") {
            let id = rest.strip_suffix("]>").unwrap_or_default();
            if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_digit()) {
                return refuse_at(start, format!("{} is not a token id; write it like <[7]>", excerpt(text)));
            }
            let n_vocab = self.tokens.n_vocab();
            let token = id.parse().ok().filter(|&token| is_in_vocabulary(token, n_vocab));
            token.ok_or_else(|| (start, format!("token {} is not in the vocabulary ({n_vocab} tokens)", excerpt(id))))?
        } else {
            self.tokens.find_token(text).ok_or_else(|| (start, format!("the vocabulary has no token '{}'", excerpt(text))))?
        };
        Ok(if is_negated { Element::NotToken(token) } else { Element::Token(token) })
    }

    fn parse_character(&mut self) -> Result<Option<u32>> {
        let start = self.at;
        let Some(character) = self.text[start..].chars().next() else { return Ok(None) };
        self.at += character.len_utf8();
        if character != '\\' {
            return Ok(Some(character.into()));
        }
        let Some(escaped) = self.text[self.at..].chars().next() else { return Ok(None) };
        self.at += escaped.len_utf8();
        let n_digits = match escaped {
            't' => return Ok(Some('\t'.into())),
            'r' => return Ok(Some('\r'.into())),
            'n' => return Ok(Some('\n'.into())),
            '\\' | '"' | '[' | ']' | '-' => return Ok(Some(escaped.into())),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => return refuse_at(start, format!("the escape \\{escaped} is unknown; write \\\\ for a backslash")),
        };
        let digits =
            self.text.get(self.at..self.at + n_digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let Some(code) = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) else {
            return refuse_at(start, format!("\\{escaped} must be followed by {n_digits} hexadecimal digits"));
        };
        self.at += n_digits;
        Ok(Some(code))
    }

    fn parse_name(&mut self) -> Result<&'a str> {
        let (start, length) = (self.at, self.count_bytes(is_word));
        if length == 0 {
            return self.refuse_next("the name of a rule");
        }
        self.at += length;
        Ok(&self.text[start..self.at])
    }

    /// Parses a number; a number that does not fit becomes `usize::MAX`.
    fn parse_number(&mut self) -> Option<usize> {
        let (start, length) = (self.at, self.count_bytes(|byte| byte.is_ascii_digit()));
        self.at += length;
        (length > 0).then(|| self.text[start..self.at].parse().unwrap_or(usize::MAX))
    }

    fn rule_id(&mut self, name: &'a str, at: usize) -> RuleId {
        self.ids.get(name).copied().unwrap_or_else(|| {
            let id = self.add_rule(name, at);
            self.ids.insert(name, id);
            id
        })
    }

    fn add_rule(&mut self, name: &'a str, at: usize) -> RuleId {
        self.rules.push(None);
        self.names.push((name, at));
        u32::try_from(self.rules.len() - 1).expect("a grammar's size is bounded")
    }

    fn count_bytes(&self, is_part: impl Fn(u8) -> bool) -> usize {
        let rest = &self.text.as_bytes()[self.at..];
        rest.iter().position(|&byte| !is_part(byte)).unwrap_or(rest.len())
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip(&mut self, word: &str) -> bool {
        let is_next = self.text[self.at..].starts_with(word);
        self.at += if is_next { word.len() } else { 0 };
        is_next
    }

    fn refuse_next<T>(&self, expected: &str) -> Result<T> {
        let found = match self.text[self.at..].chars().next() {
            None => "the end".to_owned(),
            Some('\n' | '\r') => "the end of the line".to_owned(),
            Some(character) => format!("'{character}'"),
        };
        refuse_at(self.at, format!("expected {expected}, found {found}"))
    }

    /// Skips the separator of two items, which may contain new lines inside of parentheses.
    fn skip_after(&mut self, depth: usize) {
        if depth > 0 { self.skip_space() } else { self.skip_blanks() }
    }

    fn skip_space(&mut self) {
        self.skip_blanks();
        while matches!(self.peek(), Some(b'\r' | b'\n')) {
            self.at += 1;
            self.skip_blanks();
        }
    }

    fn skip_blanks(&mut self) {
        self.at += self.count_bytes(|byte| matches!(byte, b' ' | b'\t'));
        if self.peek() == Some(b'#') {
            self.at += self.count_bytes(|byte| !matches!(byte, b'\r' | b'\n'));
        }
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}
