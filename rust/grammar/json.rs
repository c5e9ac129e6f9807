//! A JSON parser that records the position of every value.

use super::parse_error::{ParseError, Result, refuse_at};

const MAX_DEPTH: usize = 256;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct JsonValue {
    pub(super) at: usize,
    pub(super) kind: JsonKind,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum JsonKind {
    Null,
    Bool(bool),
    /// A number with its spelling.
    Number(f64, String),
    String(String),
    Array(Vec<JsonValue>),
    Object(Vec<(String, JsonValue)>),
}

impl JsonValue {
    /// Returns the last of several members of this name.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        self.members()?.iter().rev().find_map(|(key, value)| (key == name).then_some(value))
    }

    pub(super) fn members(&self) -> Option<&[(String, Self)]> {
        if let JsonKind::Object(members) = &self.kind { Some(members) } else { None }
    }

    pub(super) fn items(&self) -> Option<&[Self]> {
        if let JsonKind::Array(items) = &self.kind { Some(items) } else { None }
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let JsonKind::String(text) = &self.kind { Some(text) } else { None }
    }

    pub(super) fn number(&self) -> Option<f64> {
        if let JsonKind::Number(number, _) = self.kind { Some(number) } else { None }
    }
}

pub(super) fn parse(text: &str) -> Result<JsonValue, ParseError> {
    let mut parser = JsonParser { text, at: 0 };
    let value = parser.parse_value(0).and_then(|value| {
        parser.skip_space();
        if parser.at == text.len() { Ok(value) } else { parser.refuse("expected the end of the JSON") }
    });
    value.map_err(|(at, message)| ParseError::new(text, at, message))
}

struct JsonParser<'a> {
    text: &'a str,
    at: usize,
}

impl JsonParser<'_> {
    fn refuse<T>(&self, expected: &str) -> Result<T> {
        let found = self.text[self.at..].chars().next().map_or_else(|| "the end".to_owned(), |found| format!("'{found}'"));
        refuse_at(self.at, format!("{expected}, found {found}"))
    }

    fn parse_value(&mut self, depth: usize) -> Result<JsonValue> {
        self.skip_space();
        let at = self.at;
        if depth == MAX_DEPTH {
            return refuse_at(at, format!("arrays and objects are nested more than {MAX_DEPTH} deep"));
        }
        let kind = match self.peek() {
            Some(b'{') => JsonKind::Object(self.parse_list(b'}', |parser| parser.parse_member(depth))?),
            Some(b'[') => JsonKind::Array(self.parse_list(b']', |parser| parser.parse_value(depth + 1))?),
            Some(b'"') => JsonKind::String(self.parse_string()?),
            Some(b'-' | b'0'..=b'9') => self.parse_number()?,
            _ if self.skip("null") => JsonKind::Null,
            _ if self.skip("true") => JsonKind::Bool(true),
            _ if self.skip("false") => JsonKind::Bool(false),
            _ => return self.refuse("expected a JSON value"),
        };
        Ok(JsonValue { at, kind })
    }

    fn parse_member(&mut self, depth: usize) -> Result<(String, JsonValue)> {
        self.skip_space();
        if self.peek() != Some(b'"') {
            return self.refuse("expected the name of a property in quotation marks");
        }
        let name = self.parse_string()?;
        self.skip_space();
        if !self.skip(":") {
            return self.refuse("expected a colon after a property's name");
        }
        Ok((name, self.parse_value(depth + 1)?))
    }

    fn parse_list<T>(&mut self, end: u8, mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        self.at += 1;
        self.skip_space();
        let mut items = Vec::new();
        while items.is_empty() && self.peek() != Some(end) || !items.is_empty() && self.skip(",") {
            items.push(item(self)?);
            self.skip_space();
        }
        if self.peek() != Some(end) {
            return self.refuse(&format!("expected a comma or {}", char::from(end)));
        }
        self.at += 1;
        Ok(items)
    }

    fn parse_number(&mut self) -> Result<JsonKind> {
        let start = self.at;
        self.skip("-");
        if !self.skip("0") {
            self.skip_digits()?;
        }
        if self.skip(".") {
            self.skip_digits()?;
        }
        if self.skip("e") || self.skip("E") {
            let _ = self.skip("+") || self.skip("-");
            self.skip_digits()?;
        }
        let text = &self.text[start..self.at];
        let number: f64 = text.parse().map_err(|_| (start, "this number is invalid".to_owned()))?;
        if number.is_finite() {
            Ok(JsonKind::Number(number, text.to_owned()))
        } else {
            refuse_at(start, "this number is too large")
        }
    }

    fn skip_digits(&mut self) -> Result<()> {
        let rest = &self.text.as_bytes()[self.at..];
        let length = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        self.at += length;
        if length > 0 { Ok(()) } else { self.refuse("expected a digit") }
    }

    fn parse_string(&mut self) -> Result<String> {
        let start = self.at;
        let mut text = String::new();
        self.at += 1;
        loop {
            let Some(character) = self.text[self.at..].chars().next() else {
                return refuse_at(start, "this string is not closed");
            };
            match character {
                '"' => break,
                '\\' => text.push(self.parse_escape()?),
                '\0'..' ' => return refuse_at(self.at, "a control character in a string must be escaped"),
                _ => {
                    text.push(character);
                    self.at += character.len_utf8();
                }
            }
        }
        self.at += 1;
        Ok(text)
    }

    fn parse_escape(&mut self) -> Result<char> {
        let start = self.at;
        let unknown = || (start, "this escape is invalid in JSON".to_owned());
        let escaped = self.text.as_bytes().get(self.at + 1).copied();
        self.at += 2;
        let character = match escaped {
            Some(byte @ (b'"' | b'\\' | b'/')) => byte.into(),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let mut units = vec![self.parse_code_unit().ok_or_else(unknown)?];
                if (0xD800..0xDC00).contains(&units[0]) && self.skip("\\u") {
                    units.push(self.parse_code_unit().ok_or_else(unknown)?);
                }
                let decoded: Option<String> = char::decode_utf16(units).collect::<Result<_, _>>().ok();
                let lone = || (start, "this surrogate is not part of a pair".to_owned());
                decoded.and_then(|text| text.chars().next()).ok_or_else(lone)?
            }
            _ => return Err(unknown()),
        };
        Ok(character)
    }

    fn parse_code_unit(&mut self) -> Option<u16> {
        let digits = self.text.get(self.at..self.at + 4).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        self.at += 4;
        u16::from_str_radix(digits, 16).ok()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip(&mut self, word: &str) -> bool {
        let is_next = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        self.at += if is_next { word.len() } else { 0 };
        is_next
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        parse(text).expect_err(text).to_string()
    }

    #[test]
    fn values_are_parsed_with_their_positions() {
        let value = parse(" {\"a\": [1, -2.5e1, true, null, \"\\u00e9\\ud83e\\udd80\\n\"], \"b\": {}, \"a\": false}\n").unwrap();
        assert_eq!((value.at, value.members().unwrap().len()), (1, 3));
        let items = value.members().unwrap()[0].1.items().unwrap();
        assert_eq!(items.iter().map(|item| item.at).collect::<Vec<_>>(), [8, 11, 19, 25, 31]);
        assert_eq!((items[0].number(), items[1].number(), items[4].text()), (Some(1.0), Some(-25.0), Some("é🦀\n")));
        assert_eq!(value.get("a").unwrap().kind, JsonKind::Bool(false), "the last of several counts");
        assert_eq!((value.get("b").unwrap().members(), value.get("c")), (Some(&[][..]), None));
    }

    #[test]
    fn errors_are_reported_with_their_position() {
        for (text, expected) in [
            ("", "line 1, column 1: expected a JSON value, found the end"),
            ("{\"a\": 1,\n}", "line 2, column 1: expected the name of a property in quotation marks, found '}'"),
            ("{\"a\" 1}", "line 1, column 6: expected a colon after a property's name, found '1'"),
            ("[1 2]", "line 1, column 4: expected a comma or ], found '2'"),
            ("[1,]", "line 1, column 4: expected a JSON value, found ']'"),
            ("{} x", "line 1, column 4: expected the end of the JSON, found 'x'"),
            ("\"a", "line 1, column 1: this string is not closed"),
            ("\"a\n\"", "line 1, column 3: a control character in a string must be escaped"),
            ("\"\\x\"", "line 1, column 2: this escape is invalid in JSON"),
            ("\"é\\u12\"", "line 1, column 3: this escape is invalid in JSON"),
            ("\"\\ud800\"", "line 1, column 2: this surrogate is not part of a pair"),
            ("\"\\", "line 1, column 2: this escape is invalid in JSON"),
            ("-", "line 1, column 2: expected a digit, found the end"),
            ("1.e5", "line 1, column 3: expected a digit, found 'e'"),
            ("01", "line 1, column 2: expected the end of the JSON, found '1'"),
            ("1e999", "line 1, column 1: this number is too large"),
            ("nul", "line 1, column 1: expected a JSON value, found 'n'"),
        ] {
            assert_eq!(refusal(text), expected, "{text}");
        }
        assert_eq!(refusal(&"[".repeat(100_000)), "line 1, column 257: arrays and objects are nested more than 256 deep");
    }
}
