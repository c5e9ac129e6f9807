//! Parses regular expressions of JSON Schema: ECMA-262 over code points, matched anywhere in a text.

use super::super::ranges::{Ranges, complement, merge};

pub(super) const LAST: u32 = 0x10_FFFF;

const MAX_GROUP_DEPTH: usize = 64;

const MAX_TIMES: usize = 2_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PatternNode {
    Class(Ranges),
    Sequence(Vec<PatternNode>),
    Choice(Vec<PatternNode>),
    Repeat(Box<PatternNode>, usize, Option<usize>),
    Start,
    End,
}

/// Parses a pattern. The error describes the unsupported part.
pub(super) fn parse(pattern: &str) -> Result<PatternNode, String> {
    PatternParser { rest: pattern.chars().collect(), at: 0 }.parse_whole()
}

/// Parses a pattern that may start with lookaheads, such as `^(?!0$)\\d+$`; returns each expression with whether it must match.
pub(super) fn parse_with_lookaheads(pattern: &str) -> Result<Vec<(PatternNode, bool)>, String> {
    let mut parser = PatternParser { rest: pattern.chars().collect(), at: 0 };
    let mut parts = Vec::new();
    let anchored = |node| PatternNode::Sequence(vec![PatternNode::Start, node]);
    while parser.rest.first() == Some(&'^') && matches!(parser.rest.get(1..4), Some(['(', '?', '!' | '='])) {
        let is_wanted = parser.rest[3] == '=';
        parser.at = 4;
        parts.push((anchored(parser.finish_group(0)?), is_wanted));
        parser.rest.drain(1..parser.at);
        parser.at = 0;
    }
    let node = parser.parse_whole()?;
    if !parts.is_empty() && matches!(node, PatternNode::Choice(_)) {
        return Err("a lookahead must apply to all alternatives; put them in a group".to_owned());
    }
    parts.push((node, true));
    Ok(parts)
}

fn exclude(ranges: &[(u32, u32)]) -> Ranges {
    complement(ranges, LAST)
}

fn digits() -> Ranges {
    vec![(0x30, 0x39)]
}

fn word() -> Ranges {
    vec![(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
}

fn space() -> Ranges {
    let singles = [0x20, 0xA0, 0x1680, 0x202F, 0x205F, 0x3000, 0xFEFF].map(|code| (code, code));
    merge([&singles[..], &[(0x09, 0x0D), (0x2000, 0x200A), (0x2028, 0x2029)]].concat())
}

struct PatternParser {
    rest: Vec<char>,
    at: usize,
}

impl PatternParser {
    fn peek(&self) -> Option<char> {
        self.rest.get(self.at).copied()
    }

    fn skip(&mut self, expected: char) -> bool {
        let is_next = self.peek() == Some(expected);
        self.at += usize::from(is_next);
        is_next
    }

    fn parse_whole(&mut self) -> Result<PatternNode, String> {
        let node = self.parse_choice(0)?;
        if self.at < self.rest.len() { Err("a ) has no matching (".to_owned()) } else { Ok(node) }
    }

    fn parse_choice(&mut self, depth: usize) -> Result<PatternNode, String> {
        if depth > MAX_GROUP_DEPTH {
            return Err(format!("groups are nested more than {MAX_GROUP_DEPTH} deep"));
        }
        let mut choices = vec![self.parse_sequence(depth)?];
        while self.skip('|') {
            choices.push(self.parse_sequence(depth)?);
        }
        Ok(if choices.len() == 1 { choices.remove(0) } else { PatternNode::Choice(choices) })
    }

    fn parse_sequence(&mut self, depth: usize) -> Result<PatternNode, String> {
        let mut items = Vec::new();
        while let Some(character) = self.peek().filter(|character| !matches!(character, '|' | ')')) {
            self.at += 1;
            let item = match character {
                '^' => PatternNode::Start,
                '$' => PatternNode::End,
                '.' => PatternNode::Class(exclude(&[(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)])),
                '(' => self.parse_group(depth)?,
                '[' => PatternNode::Class(self.parse_class()?),
                '\\' => PatternNode::Class(self.parse_escape(false)?),
                '*' | '+' | '?' | '{' => return Err(format!("there is nothing to repeat before {character}")),
                _ => PatternNode::Class(single(character)),
            };
            items.push(self.parse_repetition(item)?);
        }
        Ok(if items.len() == 1 { items.remove(0) } else { PatternNode::Sequence(items) })
    }

    fn parse_group(&mut self, depth: usize) -> Result<PatternNode, String> {
        if self.skip('?') && !self.skip(':') {
            let is_named = self.skip('<') && !matches!(self.peek(), Some('=' | '!'));
            if !is_named {
                return Err("lookarounds and flags are not supported, except lookaheads after an initial ^".to_owned());
            }
            while !self.skip('>') {
                if self.peek().is_none() {
                    return Err("the name of a group is not closed with >".to_owned());
                }
                self.at += 1;
            }
        }
        self.finish_group(depth)
    }

    fn finish_group(&mut self, depth: usize) -> Result<PatternNode, String> {
        let inner = self.parse_choice(depth + 1)?;
        if self.skip(')') { Ok(inner) } else { Err("a group is not closed with )".to_owned()) }
    }

    fn parse_repetition(&mut self, item: PatternNode) -> Result<PatternNode, String> {
        let (min, max) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => self.parse_bounds()?,
            _ => return Ok(item),
        };
        self.at += 1;
        // Greedy or lazy makes no difference for the set of matching texts.
        self.skip('?');
        if matches!(self.peek(), Some('*' | '+' | '?' | '{')) {
            return Err("a repetition cannot be repeated; put it in a group".to_owned());
        }
        Ok(PatternNode::Repeat(Box::new(item), min, max))
    }

    fn parse_bounds(&mut self) -> Result<(usize, Option<usize>), String> {
        self.at += 1;
        let Some(min) = self.parse_count()? else {
            return Err("{ must be followed by a number; write \\{ for the character".to_owned());
        };
        let max = if self.skip(',') { self.parse_count()? } else { Some(min) };
        if self.peek() != Some('}') {
            return Err("{ is not closed with }".to_owned());
        }
        match max {
            Some(max) if max < min => Err(format!("the minimum of {min} repetitions is above the maximum of {max}")),
            _ => Ok((min, max)),
        }
    }

    fn parse_count(&mut self) -> Result<Option<usize>, String> {
        let digits: String = self.rest[self.at..].iter().take_while(|character| character.is_ascii_digit()).collect();
        if digits.is_empty() {
            return Ok(None);
        }
        self.at += digits.len();
        let number = digits.parse().ok().filter(|&number| number <= MAX_TIMES);
        number.map(Some).ok_or_else(|| format!("a number of repetitions is above {MAX_TIMES}"))
    }

    fn parse_class(&mut self) -> Result<Ranges, String> {
        let is_negated = self.skip('^');
        let mut ranges = Vec::new();
        while !self.skip(']') {
            let low = self.parse_class_member()?;
            if self.peek() == Some('-') && !matches!(self.rest.get(self.at + 1), None | Some(']')) {
                self.at += 1;
                let high = self.parse_class_member()?;
                match (&low[..], &high[..]) {
                    (&[(low, one)], &[(other, high)]) if low == one && other == high && low <= high => ranges.push((low, high)),
                    _ => return Err("a character range must have a start and a greater end".to_owned()),
                }
            } else {
                ranges.extend(low);
            }
        }
        let ranges = merge(ranges);
        Ok(if is_negated { exclude(&ranges) } else { ranges })
    }

    fn parse_class_member(&mut self) -> Result<Ranges, String> {
        let Some(character) = self.peek() else { return Err("a character class is not closed with ]".to_owned()) };
        self.at += 1;
        if character == '\\' { self.parse_escape(true) } else { Ok(single(character)) }
    }

    fn parse_escape(&mut self, in_class: bool) -> Result<Ranges, String> {
        let Some(character) = self.peek() else { return Err("the backslash at the end escapes nothing".to_owned()) };
        self.at += 1;
        Ok(match character {
            'd' => digits(),
            'D' => exclude(&digits()),
            'w' => word(),
            'W' => exclude(&word()),
            's' => space(),
            'S' => exclude(&space()),
            't' => single('\t'),
            'n' => single('\n'),
            'v' => single('\u{b}'),
            'f' => single('\u{c}'),
            'r' => single('\r'),
            'b' if in_class => single('\u{8}'),
            '0' if !self.peek().is_some_and(|next| next.is_ascii_digit()) => single('\0'),
            'c' => match self.peek().filter(char::is_ascii_alphabetic) {
                Some(letter) => {
                    self.at += 1;
                    vec![(u32::from(letter) % 32, u32::from(letter) % 32)]
                }
                None => return Err("\\c must be followed by a letter".to_owned()),
            },
            'x' => self.parse_code(2)?,
            'u' if self.skip('{') => {
                let n_digits = self.rest[self.at..].iter().take_while(|digit| digit.is_ascii_hexdigit()).count();
                let code = self.parse_code(n_digits.clamp(1, 6))?;
                if !self.skip('}') {
                    return Err("\\u{ is not closed with }".to_owned());
                }
                code
            }
            'u' => self.parse_code_unit()?,
            _ if character.is_alphanumeric() => return Err(format!("\\{character} is not supported")),
            _ => single(character),
        })
    }

    /// Parses one code unit, or a surrogate pair.
    fn parse_code_unit(&mut self) -> Result<Ranges, String> {
        let high = self.parse_code(4)?;
        let (code, before) = (high[0].0, self.at);
        if (0xD800..0xDC00).contains(&code) && self.skip('\\') && self.skip('u') {
            let low = self.parse_code(4)?[0].0;
            if (0xDC00..0xE000).contains(&low) {
                let whole = 0x1_0000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                return Ok(vec![(whole, whole)]);
            }
        }
        self.at = before;
        Ok(high)
    }

    fn parse_code(&mut self, n_digits: usize) -> Result<Ranges, String> {
        let digits: String = self.rest.iter().skip(self.at).take(n_digits).collect();
        let is_hex = digits.len() == n_digits && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let code = u32::from_str_radix(&digits, 16).ok().filter(|&code| is_hex && code <= LAST);
        self.at += n_digits;
        code.map(|code| vec![(code, code)]).ok_or_else(|| format!("an escape needs {n_digits} hexadecimal digits"))
    }
}

fn single(character: char) -> Ranges {
    vec![(character.into(), character.into())]
}
