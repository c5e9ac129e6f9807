//! JSON schemas, before llama.cpp makes grammars of them.
//!
//! llama.cpp's converter says of a schema only that it cannot be converted, and some schemas end the process or keep it busy for
//! ever: those that name themselves, or whose parts multiply. So what it reads is read here first, in the same order.

use std::collections::HashSet;

use super::json::{self, Kind, Value};
use super::place::Flaw;

/// Most bytes of a schema.
pub const MAX_SCHEMA_BYTES: usize = 1 << 18;

/// Most schemas inside of each other, those that references lead to included.
pub const MAX_SCHEMA_DEPTH: usize = 64;

/// Most schemas that one is made of; what several types share counts for each of them.
pub const MAX_SCHEMA_PARTS: usize = 4_096;

/// Most properties of one object: the grammar of those that may be left out has a rule for each pair.
pub const MAX_PROPERTIES: usize = 256;

/// Most bytes of a property's name or a reference.
pub const MAX_NAME_BYTES: usize = 256;

/// Most bytes of a pattern: llama.cpp's time for one grows with the square of its length, and it prints one that it does not know.
pub const MAX_PATTERN_BYTES: usize = 4_096;

/// A regular expression of a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// As it stands in the schema, once its escapes are read.
    pub text: String,
    /// Where.
    at: usize,
}

impl Pattern {
    /// That it cannot be used in `schema`.
    #[must_use]
    pub fn flaw(&self, schema: &str) -> Flaw {
        let message = "is none that a text can be held to; it must begin with ^, end with $, and not look around";
        Flaw::new(schema, self.at, format!("the pattern {:?} {message}", self.text))
    }
}

/// Checks a JSON schema, and returns its patterns: only who converts them knows whether they are right.
///
/// # Errors
/// [`Flaw`] says what is wrong with it, and where.
pub fn check_schema(text: &str) -> Result<Vec<Pattern>, Flaw> {
    if text.len() > MAX_SCHEMA_BYTES {
        let message = format!("the schema of {} bytes is longer than {MAX_SCHEMA_BYTES} bytes", text.len());
        return Err(Flaw::new(text, MAX_SCHEMA_BYTES, message));
    }
    let root = json::read(text)?;
    let mut check = Check { root: &root, n_parts: 0, references: HashSet::new(), patterns: Vec::new() };
    match check.schema(&root, None, 0) {
        Ok(()) => Ok(check.patterns),
        Err((at, message)) => Err(Flaw::new(text, at, message)),
    }
}

type Refusal = (usize, String);

fn refuse<T>(value: &Value, message: impl Into<String>) -> Result<T, Refusal> {
    Err((value.at, message.into()))
}

struct Check<'a> {
    root: &'a Value,
    n_parts: usize,
    /// Those that were followed.
    references: HashSet<&'a str>,
    patterns: Vec<Pattern>,
}

impl<'a> Check<'a> {
    /// A schema that is `depth` others deep; of several types it is read as one with `type_name`.
    fn schema(&mut self, schema: &'a Value, type_name: Option<&'a Value>, depth: usize) -> Result<(), Refusal> {
        self.n_parts += 1;
        if self.n_parts > MAX_SCHEMA_PARTS {
            return refuse(schema, format!("the schema is made of more than {MAX_SCHEMA_PARTS} schemas"));
        }
        if depth > MAX_SCHEMA_DEPTH {
            return refuse(schema, format!("schemas are more than {MAX_SCHEMA_DEPTH} deep"));
        }
        if schema.members().is_none() {
            return refuse(schema, "a schema must be an object, as {\"type\": \"string\"} is");
        }
        if let Some(reference) = schema.get("$ref") {
            return self.reference(reference, depth);
        }
        if let Some(choices) = schema.get("oneOf").or_else(|| schema.get("anyOf")) {
            return self.list(choices, depth);
        }
        let type_name = type_name.or_else(|| schema.get("type")).filter(|value| value.kind != Kind::Null);
        if let Some(types) = type_name.and_then(Value::items) {
            if types.is_empty() {
                return refuse(type_name.unwrap_or(schema), "a list of types must name one at least");
            }
            return types.iter().try_for_each(|type_name| self.schema(schema, Some(type_name), depth + 1));
        }
        if schema.get("const").is_some() {
            return Ok(());
        }
        if let Some(values) = schema.get("enum") {
            let is_list = values.items().is_some_and(|values| !values.is_empty());
            return if is_list { Ok(()) } else { refuse(values, "enum must be a list of one value at least") };
        }
        match type_name {
            None => self.untyped(schema, depth),
            Some(value) => match value.text() {
                Some(name) => self.typed(schema, (name, value), depth),
                None => refuse(value, "type must be a string or a list of strings"),
            },
        }
    }

    /// What llama.cpp makes of a schema that says no type.
    fn untyped(&mut self, schema: &'a Value, depth: usize) -> Result<(), Refusal> {
        if has_properties(schema) {
            return self.object(schema, depth);
        }
        if let Some(parts) = schema.get("allOf") {
            return self.merged(parts, depth);
        }
        if schema.get("items").is_some() || schema.get("prefixItems").is_some() {
            return self.array(schema, depth);
        }
        self.string(schema)
    }

    fn typed(&mut self, schema: &'a Value, (name, value): (&str, &Value), depth: usize) -> Result<(), Refusal> {
        match (name, schema.get("allOf")) {
            ("object", Some(parts)) if !has_properties(schema) => self.merged(parts, depth),
            ("string", Some(parts)) => self.merged(parts, depth),
            ("object", _) => self.object(schema, depth),
            ("string", None) => self.string(schema),
            ("array", _) => self.array(schema, depth),
            ("integer", _) => integer(schema),
            ("number" | "boolean" | "null", _) => Ok(()),
            _ => {
                let name: String = name.chars().take(MAX_NAME_BYTES).collect();
                let message =
                    format!("there is no type '{name}'; there are object, array, string, integer, number, boolean and null");
                refuse(value, message)
            }
        }
    }

    fn reference(&mut self, value: &'a Value, depth: usize) -> Result<(), Refusal> {
        let Some(reference) = value.text() else { return refuse(value, "$ref must be a string") };
        let (mut reference, mut n_hops) = (reference, 0);
        loop {
            let target = self.resolve(reference, value)?;
            if let Some(next) = target.get("$ref").and_then(Value::text) {
                n_hops += 1;
                if n_hops > MAX_SCHEMA_DEPTH {
                    return refuse(value, format!("the reference {reference} leads to no schema but only to references"));
                }
                reference = next;
                continue;
            }
            if self.references.insert(reference) {
                return self.schema(target, None, depth + 1 + n_hops);
            }
            return Ok(());
        }
    }

    /// What `reference`, which is followed at `value`, names.
    fn resolve(&self, reference: &str, value: &Value) -> Result<&'a Value, Refusal> {
        let Some(path) = reference.strip_prefix("#/").filter(|path| path.len() <= MAX_NAME_BYTES) else {
            let limit =
                format!("a $ref must begin with #/, name a place in this schema, and be at most {MAX_NAME_BYTES} bytes long");
            return refuse(value, limit);
        };
        let mut target = self.root;
        for name in path.split('/') {
            let next = match target.items() {
                Some(items) => name.parse().ok().and_then(|place: usize| items.get(place)),
                None => target.get(name),
            };
            let Some(next) = next else {
                return refuse(value, format!("the reference {reference} leads nowhere: there is no '{name}'"));
            };
            target = next;
        }
        Ok(target)
    }

    fn list(&mut self, parts: &'a Value, depth: usize) -> Result<(), Refusal> {
        match parts.items() {
            Some([]) | None => refuse(parts, "this must be a list of one schema at least"),
            Some(parts) => parts.iter().try_for_each(|part| self.schema(part, None, depth + 1)),
        }
    }

    /// Schemas whose properties become those of one object.
    fn merged(&mut self, parts: &'a Value, depth: usize) -> Result<(), Refusal> {
        self.list(parts, depth)?;
        let n_properties = parts.items().unwrap_or_default().iter().map(|part| self.n_properties(part)).sum();
        check_n_properties(parts, n_properties)
    }

    /// How many properties a part of [`Check::merged`] brings along. Of choices, llama.cpp looks at those of the part itself, and at
    /// none that they or a reference lead to.
    fn n_properties(&self, part: &'a Value) -> usize {
        let choices = part.get("oneOf").or_else(|| part.get("anyOf")).and_then(Value::items);
        let choices = choices.filter(|_| part.get("$ref").is_none());
        choices.unwrap_or(std::slice::from_ref(part)).iter().map(|choice| self.n_own_properties(choice)).sum()
    }

    fn n_own_properties(&self, part: &'a Value) -> usize {
        let mut target = part;
        while let Some(reference) = target.get("$ref") {
            // It was followed before, so it leads somewhere.
            let Some(Ok(next)) = reference.text().map(|name| self.resolve(name, reference)) else { return 0 };
            target = next;
        }
        target.get("properties").and_then(Value::members).map_or(0, <[_]>::len)
    }

    fn object(&mut self, schema: &'a Value, depth: usize) -> Result<(), Refusal> {
        if let Some(properties) = schema.get("properties") {
            let Some(members) = properties.members() else { return refuse(properties, "properties must be an object") };
            check_n_properties(properties, members.len())?;
            for (name, property) in members {
                if name.len() > MAX_NAME_BYTES {
                    return refuse(property, format!("the name of this property is longer than {MAX_NAME_BYTES} bytes"));
                }
                self.schema(property, None, depth + 1)?;
            }
        }
        match schema.get("additionalProperties") {
            Some(Value { kind: Kind::Bool(_), .. }) | None => Ok(()),
            Some(rest) if rest.members().is_some() => self.schema(rest, None, depth + 1),
            Some(rest) => refuse(rest, "additionalProperties must be a schema, true or false"),
        }
    }

    fn array(&mut self, schema: &'a Value, depth: usize) -> Result<(), Refusal> {
        let items = schema.get("items").or_else(|| schema.get("prefixItems"));
        if let Some(list) = items.and_then(Value::items) {
            return list.iter().try_for_each(|item| self.schema(item, None, depth + 1));
        }
        if let Some(item) = items {
            self.schema(item, None, depth + 1)?;
        }
        counts(schema, "minItems", "maxItems")
    }

    fn string(&mut self, schema: &Value) -> Result<(), Refusal> {
        if let Some(pattern) = schema.get("pattern") {
            let Some(text) = pattern.text() else { return refuse(pattern, "pattern must be a string") };
            if text.len() > MAX_PATTERN_BYTES {
                return refuse(pattern, format!("the pattern of {} bytes is longer than {MAX_PATTERN_BYTES} bytes", text.len()));
            }
            self.patterns.push(Pattern { text: text.to_owned(), at: pattern.at });
        }
        if let Some(format) = schema.get("format").filter(|format| format.text().is_none()) {
            return refuse(format, "format must be a string");
        }
        counts(schema, "minLength", "maxLength")
    }
}

fn check_n_properties(at: &Value, n: usize) -> Result<(), Refusal> {
    if n <= MAX_PROPERTIES {
        return Ok(());
    }
    refuse(at, format!("the object has {n} properties; at most {MAX_PROPERTIES} may be named"))
}

fn has_properties(schema: &Value) -> bool {
    let additional = schema.get("additionalProperties");
    schema.get("properties").is_some() || additional.is_some_and(|value| value.kind != Kind::Bool(true))
}

/// Two numbers of things, the second of which is not below the first.
fn counts(schema: &Value, min: &str, max: &str) -> Result<(), Refusal> {
    for name in [min, max] {
        if let Some(value) = schema.get(name) {
            let is_count = value.number().is_some_and(|n| n >= 0.0 && n <= f64::from(i32::MAX) && n.fract() == 0.0);
            if !is_count {
                return refuse(value, format!("{name} must be an integer from 0 to {}", i32::MAX));
            }
        }
    }
    ordered(schema, min, max)
}

/// The bounds of an integer.
fn integer(schema: &Value) -> Result<(), Refusal> {
    // Of a range without another end llama.cpp allows 16 digits; where 0 is in it, its numbers of 64 bits are the end. The integers
    // of many clients are those from −2⁵³ to 2⁵³.
    let least = (-1e18..=1e15, "−10¹⁸ to 10¹⁵");
    let most = (-1e15..=1e18, "−10¹⁵ to 10¹⁸");
    for (name, (range, told)) in
        [("minimum", &least), ("exclusiveMinimum", &least), ("maximum", &most), ("exclusiveMaximum", &most)]
    {
        let is_bound = |value: &Value| value.number().is_some_and(|number| range.contains(&number));
        if let Some(value) = schema.get(name).filter(|value| !is_bound(value)) {
            return refuse(value, format!("{name} must be a number from {told}"));
        }
    }
    ordered(schema, "minimum", "maximum")
}

fn ordered(schema: &Value, min: &str, max: &str) -> Result<(), Refusal> {
    let number = |name| schema.get(name).and_then(Value::number);
    match (number(min), number(max), schema.get(min)) {
        (Some(low), Some(high), Some(value)) if low > high => {
            refuse(value, format!("{min} is {low}, above {max}, which is {high}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, expected) in [
            (
                "{\"type\": \"strin\"}",
                "line 1, column 10: there is no type 'strin'; there are object, array, string, integer, number, boolean and null",
            ),
            ("{\n \"type\": 5}", "line 2, column 10: type must be a string or a list of strings"),
            ("{\"type\": []}", "line 1, column 10: a list of types must name one at least"),
            ("{\"type\": [\"null\", 5]}", "line 1, column 19: type must be a string or a list of strings"),
            ("true", "line 1, column 1: a schema must be an object, as {\"type\": \"string\"} is"),
            ("{\"items\": true}", "line 1, column 11: a schema must be an object, as {\"type\": \"string\"} is"),
            ("{\"properties\": []}", "line 1, column 16: properties must be an object"),
            ("{\"properties\": {\"a\": {\"enum\": []}}}", "line 1, column 31: enum must be a list of one value at least"),
            ("{\"properties\": {\"a\": 1}}", "line 1, column 22: a schema must be an object, as {\"type\": \"string\"} is"),
            ("{\"additionalProperties\": 1}", "line 1, column 26: additionalProperties must be a schema, true or false"),
            ("{\"anyOf\": []}", "line 1, column 11: this must be a list of one schema at least"),
            (
                "{\"oneOf\": [{\"type\": \"x\"}]}",
                "line 1, column 21: there is no type 'x'; there are object, array, string, integer, number, boolean and null",
            ),
            ("{\"allOf\": {}}", "line 1, column 11: this must be a list of one schema at least"),
            ("{\"items\": {}, \"minItems\": -1}", "line 1, column 27: minItems must be an integer from 0 to 2147483647"),
            ("{\"items\": {}, \"minItems\": 3, \"maxItems\": 2}", "line 1, column 27: minItems is 3, above maxItems, which is 2"),
            (
                "{\"type\": \"string\", \"maxLength\": 1.5}",
                "line 1, column 33: maxLength must be an integer from 0 to 2147483647",
            ),
            ("{\"pattern\": 5}", "line 1, column 13: pattern must be a string"),
            ("{\"format\": 5}", "line 1, column 12: format must be a string"),
            ("{\"type\": \"integer\", \"minimum\": \"1\"}", "line 1, column 32: minimum must be a number from −10¹⁸ to 10¹⁵"),
            ("{\"type\": \"integer\", \"maximum\": -1e16}", "line 1, column 32: maximum must be a number from −10¹⁵ to 10¹⁸"),
            (
                "{\"type\": \"integer\", \"minimum\": 5, \"maximum\": 4}",
                "line 1, column 32: minimum is 5, above maximum, which is 4",
            ),
            ("{\"$ref\": 5}", "line 1, column 10: $ref must be a string"),
            (
                "{\"$ref\": \"https://example.com/x\"}",
                "line 1, column 10: a $ref must begin with #/, name a place in this schema, and be at most 256 bytes long",
            ),
            ("{\"$ref\": \"#/a/b\", \"a\": {}}", "line 1, column 10: the reference #/a/b leads nowhere: there is no 'b'"),
            ("{\"$ref\": \"#/a/1\", \"a\": [{}]}", "line 1, column 10: the reference #/a/1 leads nowhere: there is no '1'"),
            (
                "{\"$ref\": \"#/a\", \"a\": {\"$ref\": \"#/a\"}}",
                "line 1, column 10: the reference #/a leads to no schema but only to references",
            ),
            ("{\"a\": ", "line 1, column 7: expected a JSON value, found the end"),
        ] {
            assert_eq!(check_schema(text).expect_err(text).to_string(), expected, "{text}");
        }
    }

    #[test]
    fn sizes_are_bounded() {
        let flaw = |text: &str| check_schema(text).expect_err("it is too large").message;
        let nested = |n: usize| format!("{}{{}}{}", "{\"items\":".repeat(n), "}".repeat(n));
        assert_eq!(check_schema(&nested(MAX_SCHEMA_DEPTH)), Ok(Vec::new()));
        assert_eq!(flaw(&nested(MAX_SCHEMA_DEPTH + 1)), "schemas are more than 64 deep");
        let chain: Vec<String> = (0..100).map(|i| format!("\"d{i}\": {{\"items\": {{\"$ref\": \"#/d{}\"}}}}", i + 1)).collect();
        assert_eq!(
            flaw(&format!("{{\"$ref\": \"#/d0\", {}, \"d100\": {{}}}}", chain.join(","))),
            "schemas are more than 64 deep"
        );
        let mut many = "{}".to_owned();
        for _ in 0..10 {
            many = format!("{{\"type\": [\"array\", \"array\", \"array\"], \"items\": {many}}}");
        }
        assert_eq!(flaw(&many), "the schema is made of more than 4096 schemas");
        let names: Vec<String> = (0..257).map(|i| format!("\"p{i}\": {{}}")).collect();
        assert!(flaw(&format!("{{\"properties\": {{{}}}}}", names.join(","))).contains("at most 256"));
        let part = |name: &str| {
            format!("{{\"properties\": {{{}}}}}", (0..129).map(|i| format!("\"{name}{i}\": {{}}")).collect::<Vec<_>>().join(","))
        };
        assert!(
            flaw(&format!("{{\"allOf\": [{}, {{\"$ref\": \"#/d\"}}], \"d\": {}}}", part("a"), part("b")))
                .contains("258 properties")
        );
        let long = format!("{{\"properties\": {{\"{}\": {{}}}}}}", "_".repeat(257));
        assert_eq!(flaw(&long), "the name of this property is longer than 256 bytes");
        let pattern = format!("{{\"pattern\": \"^{}$\"}}", "a".repeat(MAX_PATTERN_BYTES - 1));
        assert_eq!(flaw(&pattern), "the pattern of 4097 bytes is longer than 4096 bytes");
        assert!(flaw(&" ".repeat(MAX_SCHEMA_BYTES + 1)).contains("is longer than"));
    }

    #[test]
    fn choices_that_name_themselves_or_each_other_are_counted_once() {
        let ring =
            "{\"allOf\": [{\"$ref\": \"#/d\"}], \"d\": {\"properties\": {\"a\": {}}, \"anyOf\": [{\"$ref\": \"#/d\"}, {}]}}";
        assert_eq!(check_schema(ring), Ok(Vec::new()));
        let doubled =
            (0..30).map(|i| format!("\"d{i}\": {{\"anyOf\": [{{\"$ref\": \"#/d{0}\"}}, {{\"$ref\": \"#/d{0}\"}}]}},", i + 1));
        let doubled = format!("{{\"allOf\": [{{\"$ref\": \"#/d0\"}}], {} \"d30\": {{}}}}", doubled.collect::<Vec<_>>().concat());
        assert_eq!(check_schema(&doubled), Ok(Vec::new()));
    }

    #[test]
    fn recursive_schemas_and_patterns_are_fine() {
        let tree = "{\"$ref\": \"#/$defs/n\", \"$defs\": {\"n\": {\"properties\": {\"k\": {\"items\": {\"$ref\": \"#/$defs/n\"}}, \"p\": {\"pattern\": \"^a\\\\d$\"}}}}}";
        let patterns = check_schema(tree).unwrap();
        assert_eq!(patterns.iter().map(|pattern| &*pattern.text).collect::<Vec<_>>(), ["^a\\d$"]);
        assert_eq!(
            patterns[0].flaw(tree).to_string(),
            "line 1, column 110: the pattern \"^a\\\\d$\" is none that a text can be held to; it must begin with ^, end with $, and not look around"
        );
    }
}
