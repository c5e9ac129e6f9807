//! Tests of JSON schemas and the JSON that is generated for them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::super::json::{JsonKind, JsonValue};
use super::super::tests::{Toy, spellings};
use super::super::{ConstraintSource, Grammar};
use super::*;
use crate::request::Token;

fn grammar(schema: &str) -> Result<Grammar, String> {
    let gbnf = to_gbnf(schema).map_err(|flaw| flaw.to_string())?;
    Grammar::new(&gbnf, &Toy, spellings()).map_err(|flaw| flaw.message)
}

/// Returns true if the grammar allows the whole text.
fn generates(grammar: &Grammar, text: &str) -> bool {
    let mut branch = grammar.start();
    for byte in text.bytes() {
        if !branch.allows(128 + Token::from(byte)) {
            return false;
        }
        branch.accept(128 + Token::from(byte));
    }
    branch.allows(0)
}

/// Spellings of a value: its members in any order, integers without a fraction; at most some thousands.
fn spellings_of_value(value: &JsonValue) -> Vec<String> {
    let product = |parts: Vec<Vec<String>>| {
        parts.into_iter().fold(vec![Vec::new()], |rows: Vec<Vec<String>>, part| {
            let longer =
                |row: &Vec<String>| part.iter().map(|text| [&row[..], std::slice::from_ref(text)].concat()).collect::<Vec<_>>();
            rows.iter().flat_map(longer).take(3_000).collect()
        })
    };
    match &value.kind {
        JsonKind::Null => vec!["null".to_owned()],
        JsonKind::Bool(value) => vec![value.to_string()],
        JsonKind::Number(number, text) => vec![text.clone(), number.to_string()],
        JsonKind::String(text) => vec![grammar::quote(text)],
        JsonKind::Array(items) => {
            product(items.iter().map(spellings_of_value).collect()).iter().map(|row| format!("[{}]", row.join(","))).collect()
        }
        JsonKind::Object(members) => {
            let mut orders: Vec<Vec<usize>> = vec![Vec::new()];
            for _ in members {
                let longer = |order: &Vec<usize>| {
                    let left = (0..members.len()).filter(|index| !order.contains(index));
                    left.map(|index| [&order[..], &[index]].concat()).collect::<Vec<_>>()
                };
                orders = orders.iter().flat_map(longer).take(3_000).collect();
            }
            let member = |&index: &usize| {
                let (name, value) = &members[index];
                spellings_of_value(value).into_iter().map(|value| format!("{}: {value}", grammar::quote(name))).collect()
            };
            let rows = orders.iter().flat_map(|order| product(order.iter().map(member).collect()));
            rows.take(3_000).map(|row| format!("{{{}}}", row.join(", "))).collect()
        }
    }
}

/// Test counts; no invalid document was generated.
#[derive(Debug, Default, Clone, Copy)]
struct SuiteCounts {
    schemas: usize,
    refused: usize,
    valid: usize,
    valid_generated: usize,
    invalid: usize,
}

impl SuiteCounts {
    fn row(self, name: &str) -> String {
        let Self { schemas, refused, valid, valid_generated, invalid } = self;
        format!("| {name} | {schemas} | {refused} | {valid_generated} of {valid} | 0 of {invalid} |")
    }

    fn add(&mut self, other: Self) {
        self.schemas += other.schemas;
        self.refused += other.refused;
        self.valid += other.valid;
        self.valid_generated += other.valid_generated;
        self.invalid += other.invalid;
    }
}

/// The supported drafts and their `$schema`.
const DRAFTS: [(&str, &str); 5] = [
    ("draft4", "http://json-schema.org/draft-04/schema#"),
    ("draft6", "http://json-schema.org/draft-06/schema#"),
    ("draft7", "http://json-schema.org/draft-07/schema#"),
    ("draft2019-09", "https://json-schema.org/draft/2019-09/schema"),
    ("draft2020-12", "https://json-schema.org/draft/2020-12/schema"),
];

/// Tests of optional behaviour that Weft does not follow: embedded texts, dialects of formats, and 1.0 as a non-integer in
/// draft 4.
const SKIPPED_FILES: [&str; 3] = ["optional/content", "optional/format-assertion", "optional/zeroTerminatedFloats"];

/// The files in a folder and its subfolders, by their names relative to `root`.
fn files(folder: &Path, root: &Path) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the suite exists") {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.append(&mut files(&path, root));
        } else {
            found.insert(path.strip_prefix(root).unwrap().with_extension("").to_string_lossy().into_owned(), path);
        }
    }
    found
}

/// Runs the tests of one file, whose schemas belong to `draft`.
fn count_tests(path: &Path, draft: &str) -> SuiteCounts {
    let text = std::fs::read_to_string(path).unwrap();
    let mut count_tests = SuiteCounts::default();
    for group in json::parse(&text).unwrap().items().unwrap() {
        count_tests.schemas += 1;
        let schema = group.get("schema").unwrap();
        let mut text = spellings_of_value(schema).remove(0);
        if let JsonKind::Object(members) = &schema.kind
            && schema.get("$schema").is_none()
        {
            text.insert_str(1, &format!("\"$schema\": \"{draft}\"{}", if members.is_empty() { "" } else { ", " }));
        }
        let Ok(grammar) = grammar(&text) else {
            count_tests.refused += 1;
            continue;
        };
        for test in group.get("tests").unwrap().items().unwrap() {
            let is_generated = spellings_of_value(test.get("data").unwrap()).iter().any(|text| generates(&grammar, text));
            let is_valid = test.get("valid").unwrap().kind == JsonKind::Bool(true);
            assert!(is_valid || !is_generated, "{}: {:?} is drawn for {text}", path.display(), test.get("data"));
            count_tests.valid += usize::from(is_valid);
            count_tests.valid_generated += usize::from(is_valid && is_generated);
            count_tests.invalid += usize::from(!is_valid);
        }
    }
    count_tests
}

#[test]
fn the_json_schema_suite_generates_no_invalid_document_and_matches_the_documented_counts() {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/json_schema_suite");
    let mut drafts = Vec::new();
    let mut keywords = Vec::new();
    let mut sum = SuiteCounts::default();
    for (name, draft) in DRAFTS {
        let folder = suite.join(name);
        let mut of_draft = SuiteCounts::default();
        keywords.clear();
        for (file, path) in files(&folder, &folder).into_iter().filter(|(file, _)| !SKIPPED_FILES.contains(&&**file)) {
            let count_tests = count_tests(&path, draft);
            keywords.push(count_tests.row(&format!("`{file}`")));
            of_draft.add(count_tests);
        }
        drafts.push(of_draft.row(&name.replace("draft", "draft ")));
        sum.add(of_draft);
    }
    drafts.push(sum.row("all"));
    let page = |path: &str| {
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap_or_else(|_| panic!("{path} exists"))
    };
    let counts = page("tests/json_schema_suite/README.md");
    for (heading, rows) in [("draft", drafts), ("tests of draft 2020-12", keywords)] {
        let head =
            "| schemas | refused | valid documents generated | invalid documents generated |\n| --- | --- | --- | --- | --- |";
        let table = format!("| {heading} {head}\n{}\n", rows.join("\n"));
        assert!(counts.contains(&table), "tests/json_schema_suite/README.md must have this table:\n{table}");
    }
    let percent = |part: usize, whole: usize| (200 * part + whole) / (2 * whole);
    let guide = page("docs/guides/structured-output.md");
    for sentence in [
        format!("Of the schemas, {} % are refused", percent(sum.refused, sum.schemas)),
        format!("Of the valid documents, {} % can be generated", percent(sum.valid_generated, sum.valid)),
    ] {
        assert!(guide.contains(&sentence), "docs/guides/structured-output.md must have: {sentence}");
    }
}

/// The texts that can be generated.
fn generated<'a>(schema: &str, texts: &[&'a str]) -> Vec<&'a str> {
    let grammar = grammar(schema).unwrap_or_else(|reason| panic!("{reason}: {schema}"));
    texts.iter().copied().filter(|text| generates(&grammar, text)).collect()
}

#[test]
fn schemas_of_pydantic_and_openai_are_enforced() {
    let farm = r##"{"$defs": {
        "Cat": {"type": "object", "title": "Cat", "properties": {"kind": {"const": "cat", "default": "cat", "type": "string"}, "lives": {"type": "integer", "minimum": 1, "exclusiveMaximum": 10}}, "required": ["lives"]},
        "Dog": {"type": "object", "properties": {"kind": {"const": "dog", "default": "dog", "type": "string"}, "names": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 3}, "minItems": 1}}, "required": ["names"]}},
        "type": "object", "properties": {
            "pet": {"oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat"}}},
            "size": {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 2.5}, {"type": "null"}], "default": null},
            "counts": {"type": "object", "additionalProperties": {"type": "integer"}}},
        "required": ["pet"], "additionalProperties": false}"##;
    let right = [
        r#"{"pet": {"kind": "cat", "lives": 9}}"#,
        r#"{"pet":{"kind":"dog","names":["Rex"]},"size":2.5,"counts":{"a":1,"b":2}}"#,
        r#"{"pet": {"kind": "cat", "lives": 1}, "size": null}"#,
        r#"{"pet": {"kind": "cat", "lives": 1}, "size": 0.001}"#,
    ];
    let wrong = [
        r#"{"pet": {"lives": 9}}"#,
        r#"{"pet": {"kind": "dog", "lives": 9}}"#,
        r#"{"pet": {"kind": "cat", "lives": 10}}"#,
        r#"{"pet": {"kind": "cat", "lives": 0}}"#,
        r#"{"pet": {"kind": "cat"}}"#,
        r#"{"pet": {"kind": "dog", "names": []}}"#,
        r#"{"pet": {"kind": "dog", "names": ["Rexi"]}}"#,
        r#"{"pet": {"kind": "cat", "lives": 9}, "size": 0}"#,
        r#"{"pet": {"kind": "cat", "lives": 9}, "size": 2.51}"#,
        r#"{"pet": {"kind": "cat", "lives": 9}, "more": 1}"#,
        r#"{"size": null}"#,
    ];
    assert_eq!(generated(farm, &right), right);
    assert_eq!(generated(farm, &wrong), [""; 0]);
}

#[test]
fn adjacent_keywords_are_all_enforced() {
    for (schema, right, wrong) in [
        (r#"{"enum": ["a", "bb", 3], "minLength": 2}"#, "\"bb\" 3", "\"a\""),
        (
            r##"{"$ref": "#/$defs/s", "maxLength": 2, "$defs": {"s": {"type": "string", "pattern": "^a"}}}"##,
            "\"a\" \"ab\"",
            "\"b\" \"abc\" 1",
        ),
        (r#"{"type": ["integer", "string"], "minimum": 5, "maxLength": 1}"#, "5 17 \"\" \"a\"", "4 -5 \"ab\" null"),
        (r#"{"allOf": [{"type": "number", "minimum": 2}, {"maximum": 3, "multipleOf": 0.5}]}"#, "2 2.5 3.0", "2.25 3.5 1.5"),
        (
            r#"{"prefixItems": [{"type": "null"}], "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}"#,
            "[null,true] [null,true,false]",
            "[null] [null,1] [true,true]",
        ),
        (
            r#"{"type": "array", "contains": {"const": 1}, "maxContains": 2, "items": {"type": "integer"}}"#,
            "[1] [2,1,3] [1,1]",
            "[] [2] [1,1,1] [1,true]",
        ),
        (
            r#"{"required": ["a"], "properties": {"b": {"type": "null"}}}"#,
            "{\"a\":1} {\"b\":null,\"a\":[]}",
            "{} {\"b\":null} {\"a\":1,\"b\":1}",
        ),
        (
            r#"{"type": "object", "patternProperties": {"^n": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}}"#,
            "{\"n\":1,\"a\":true}",
            "{\"n\":true} {\"a\":1} {\"\\u006e\":true}",
        ),
        (
            r#"{"type": "object", "propertyNames": {"enum": ["a", "b"]}, "maxProperties": 1}"#,
            "{} {\"b\":0}",
            "{\"c\":0} {\"a\":0,\"b\":0}",
        ),
        (r#"{"properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2}"#, "{\"a\":1,\"c\":2}", "{} {\"b\":1}"),
        (r#"{"type": "string", "not": {"enum": ["a", "b"]}}"#, "\"c\" \"aa\" \"\"", "\"a\" \"b\" 1"),
        (r#"{"type": "integer", "not": {"const": 5}}"#, "4 6", "5 5.0"),
        (
            r#"{"properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "dependentRequired": {"a": ["b"]}, "type": "object"}"#,
            "{} {\"b\":null} {\"a\":1,\"b\":null}",
            "{\"a\":1}",
        ),
        (
            r#"{"type": "object", "properties": {"k": {"enum": ["x", "y"]}, "v": {}}, "required": ["k"], "if": {"properties": {"k": {"const": "x"}}}, "then": {"properties": {"v": {"type": "integer"}}}, "else": {"properties": {"v": {"type": "null"}}}}"#,
            "{\"k\":\"x\",\"v\":1} {\"k\":\"y\",\"v\":null} {\"k\":\"y\"}",
            "{\"k\":\"x\",\"v\":null} {\"k\":\"y\",\"v\":1} {\"v\":1}",
        ),
        (r#"{"oneOf": [{"type": "integer", "multipleOf": 1}, {"type": "string"}]}"#, "1 \"a\"", "1.5 null"),
        (r#"{"oneOf": [{"type": "number"}, {"type": "integer"}]}"#, "1.5 -0.25", "1 1.0 \"\""),
        (
            r#"{"type": "string", "format": "date"}"#,
            "\"2024-02-29\" \"1999-12-31\"",
            "\"2023-02-29\" \"1900-02-29\" \"2024-04-31\" \"2024-13-01\"",
        ),
        (
            r#"{"type": "string", "pattern": "^\\w+@[a-z]{2,}\\.(?:de|com)$", "maxLength": 9}"#,
            "\"a@bc.de\" \"ab@cd.com\"",
            "\"a@b.de\" \"abc@cd.com\" \"a@bc.org\"",
        ),
        (r#"{"pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"}"#, "\"1\" \"-0.5\" \".5\"", "\"\" \"-.\" \"1e5\""),
        (r#"{"type": "string", "not": {"pattern": "^(?=a)..$"}}"#, "\"b\" \"abc\" \"xy\"", "\"ab\" 1"),
        (r#"{"type": "string", "pattern": "b\"|^a|\\n$"}"#, "\"xb\\\"x\" \"a\" \"xx\\n\"", "\"xa\" \"b\""),
        ("true", "1 {\"a\":[null]} \"\\ud83e\\udd80\"", "\"\\ud83e\" nul 01"),
        (r##"{"type": "array", "uniqueItems": false, "items": {"$ref": "#"}}"##, "[] [[],[[]]]", "[1] {}"),
    ] {
        let (right, wrong): (Vec<&str>, Vec<&str>) = (right.split(' ').collect(), wrong.split(' ').collect());
        assert_eq!(generated(schema, &right), right, "{schema}");
        assert_eq!(generated(schema, &wrong), [""; 0], "{schema}");
    }
}

#[test]
fn bounds_and_divisors_of_numbers_are_enforced() {
    for (schema, fits) in [
        (r#""minimum": -12, "maximum": 107"#, (|n: i64| (-1200..=10700).contains(&n)) as fn(i64) -> bool),
        (r#""exclusiveMinimum": 0.75, "maximum": 10"#, |n| n > 75 && n <= 1000),
        (r#""exclusiveMinimum": -2, "exclusiveMaximum": -0.5"#, |n| n > -200 && n < -50),
        (r#""minimum": 99.99"#, |n| n >= 9999),
        (r#""exclusiveMaximum": 0"#, |n| n < 0),
        (r#""multipleOf": 0.25, "maximum": 3"#, |n| n % 25 == 0 && n <= 300),
        (r#""multipleOf": 7, "minimum": 8"#, |n| n % 700 == 0 && n >= 800),
        (r#""multipleOf": 1.5"#, |n| n % 150 == 0),
        (r#""minimum": 5, "maximum": 5"#, |n| n == 500),
    ] {
        for (kind, unit) in [("number", 1), ("integer", 100)] {
            let held = grammar(&format!("{{\"type\": \"{kind}\", {schema}}}")).unwrap();
            for n in (-1500..11_000_i64).filter(|n| n % unit == 0) {
                let sign = if n < 0 { "-" } else { "" };
                let whole = format!("{sign}{}", n.abs() / 100);
                let text = match (n % 100, n % 10) {
                    (0, _) => whole,
                    (_, 0) => format!("{whole}.{}", n.abs() / 10 % 10),
                    _ => format!("{whole}.{:02}", n.abs() % 100),
                };
                assert_eq!(generates(&held, &text), fits(n), "{text} for {kind} with {schema}");
            }
        }
    }
}

#[test]
fn invalid_and_unsupported_schemas_are_reported_with_their_position() {
    for (text, expected) in [
        (
            r#"{"type": "strin"}"#,
            "line 1, column 10: unknown type 'strin'; the types are object, array, string, integer, number, boolean and null",
        ),
        ("{\n \"type\": 5}", "line 2, column 10: type must be a string or a list of strings"),
        (r#"{"type": []}"#, "line 1, column 10: type must be a string or a list of at least one string"),
        (r#"{"type": ["null", 5]}"#, "line 1, column 19: type must be a string or a list of strings"),
        ("5", r#"line 1, column 1: a schema must be an object, for example {"type": "string"}, or true or false"#),
        (r#"{"properties": []}"#, "line 1, column 16: properties must be an object"),
        (r#"{"properties": {"a": {"enum": []}}}"#, "line 1, column 31: enum must be a list of at least one value"),
        (r#"{"additionalProperties": 1}"#, "line 1, column 26: additionalProperties must be a schema, true or false"),
        (r#"{"anyOf": []}"#, "line 1, column 11: anyOf must be a list of at least one schema"),
        (r#"{"allOf": {}}"#, "line 1, column 11: allOf must be a list of at least one schema"),
        (r#"{"items": {}, "minItems": -1}"#, "line 1, column 27: minItems must be an integer from 0 to 2147483647"),
        (
            r#"{"items": {}, "minItems": 3, "maxItems": 2}"#,
            "line 1, column 27: minItems is 3; it must be at most maxItems, which is 2",
        ),
        (r#"{"type": "string", "maxLength": 1.5}"#, "line 1, column 33: maxLength must be an integer from 0 to 2147483647"),
        (r#"{"pattern": 5}"#, "line 1, column 13: pattern must be a string"),
        (r#"{"format": 5}"#, "line 1, column 12: format must be a string"),
        (r#"{"type": "integer", "minimum": "1"}"#, "line 1, column 32: minimum must be a number"),
        (r#"{"minimum": 1e16}"#, "line 1, column 13: minimum is 10000000000000000; it must be between −10¹⁵ and 10¹⁵"),
        (
            r#"{"type": "integer", "minimum": 5, "maximum": 4}"#,
            "line 1, column 32: minimum is 5; it must be at most maximum, which is 4",
        ),
        (r#"{"multipleOf": 0}"#, "line 1, column 16: multipleOf must be a number above 0"),
        (r#"{"uniqueItems": true}"#, "line 1, column 17: uniqueItems is only supported if maxItems is at most 1"),
        (r#"{"$ref": 5}"#, "line 1, column 10: $ref must be a string"),
        (
            r#"{"$ref": "https://example.com/x"}"#,
            "line 1, column 10: $ref must be # or begin with #/, since only references within this schema are supported, and have at most 256 bytes",
        ),
        (r##"{"$ref": "#/a/b", "a": {}}"##, "line 1, column 10: this $ref cannot be resolved: there is no 'b'"),
        (
            r##"{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}"##,
            "line 1, column 38: this $ref is part of a cycle of references",
        ),
        (
            r##"{"anyOf": [{"$ref": "#"}, {}]}"##,
            "line 1, column 1: this schema refers to itself; recursion is only possible through a property or an item",
        ),
        (
            r#"{"$schema": "http://json-schema.org/draft-03/schema#", "disallow": "integer"}"#,
            "line 1, column 13: this draft of JSON Schema is not supported; use draft 2020-12",
        ),
        (r##"{"$dynamicRef": "#a"}"##, "line 1, column 17: $dynamicRef is not supported; use $ref"),
        ("false", "line 1, column 1: no JSON value fits this schema"),
        (r##"{"properties": {"a": {"$ref": "#"}}, "required": ["a"]}"##, "line 1, column 1: no JSON value fits this schema"),
        (
            r#"{"oneOf": [{"patternProperties": {"a": {}}}, {"propertyNames": {}}]}"#,
            "line 1, column 11: no type, value or property distinguishes the schemas 1 and 2 of oneOf; use anyOf",
        ),
        (
            r#"{"not": {"items": {"multipleOf": 2}}}"#,
            "line 1, column 34: multipleOf cannot be negated; do not use it within not, if, or overlapping schemas of oneOf",
        ),
        (
            r#"{"pattern": "a(?=b)"}"#,
            "line 1, column 13: the pattern \"a(?=b)\" is invalid or not supported: lookarounds and flags are not supported, except lookaheads after an initial ^",
        ),
        (r#"{"pattern": "a.{30}"}"#, "line 1, column 13: the pattern is not supported: it needs more than 8192 states"),
        (r#"{"a": "#, "line 1, column 7: expected a JSON value, found the end"),
    ] {
        assert_eq!(to_gbnf(text).expect_err(text).to_string(), expected, "{text}");
    }
}

#[test]
fn lengths_of_long_strings_and_lists_are_enforced_exactly() {
    for (min, max) in [(0, 1_999), (0, 2_000), (0, 4_321), (2_500, 2_500), (999, 5_001), (3_000, 1_000_000)] {
        let text = grammar(&format!("{{\"type\": \"string\", \"minLength\": {min}, \"maxLength\": {max}}}")).unwrap();
        let list = grammar(&format!("{{\"items\": {{\"const\": 1}}, \"minItems\": {min}, \"maxItems\": {max}}}")).unwrap();
        for n in [0, 1, 998, 999, 1_000, 1_999, 2_000, 2_001, 2_500, 2_501, 4_321, 4_322, 5_001, 5_002] {
            let is_generated = min <= n && n <= max;
            assert_eq!(generates(&text, &format!("\"{}\"", "é".repeat(n))), is_generated, "{n} of {min} to {max}");
            assert_eq!(generates(&list, &format!("[{}]", vec!["1"; n].join(","))), is_generated, "{n} of {min} to {max}");
        }
    }
}

#[test]
fn patterns_are_enforced_or_refused() {
    for (pattern, expected) in [
        ("(", "a group is not closed with )"),
        ("a)", "a ) has no matching ("),
        ("*", "there is nothing to repeat before *"),
        ("a**", "a repetition cannot be repeated; put it in a group"),
        ("a{2,1}", "the minimum of 2 repetitions is above the maximum of 1"),
        ("a{x}", "{ must be followed by a number; write \\{ for the character"),
        ("a{1", "{ is not closed with }"),
        ("a{9999}", "a number of repetitions is above 2000"),
        ("[a", "a character class is not closed with ]"),
        ("[b-a]", "a character range must have a start and a greater end"),
        ("\\", "the backslash at the end escapes nothing"),
        ("\\1", "\\1 is not supported"),
        ("\\bx", "\\b is not supported"),
        ("\\x4", "an escape needs 2 hexadecimal digits"),
        ("(?<!a)", "lookarounds and flags are not supported, except lookaheads after an initial ^"),
        ("(?<a", "the name of a group is not closed with >"),
    ] {
        assert_eq!(pattern::parse(pattern).expect_err(pattern), expected, "{pattern}");
    }
    let deep = format!("{}a{}", "(".repeat(100), ")".repeat(100));
    assert_eq!(pattern::parse(&deep).unwrap_err(), "groups are nested more than 64 deep");
    for (pattern, text, is_met) in [
        ("a|b$", "ac", true),
        ("a|b$", "bc", false),
        ("^$", "", true),
        ("^$", "a", false),
        ("(^a|x)b", "xab", false),
        ("(^a|x)b", "axb", true),
        ("^(?<first>a+?)[^b-d\\d]\\u00e9\\.$", "aaeé.", true),
        ("^(?:a{2}){2,3}$", "aaaaa", false),
        ("^[\\w-]+$", "a-_9", true),
        ("^\\cA[\\b]$", "\u{1}\u{8}", true),
        ("^\\ud83e\\udd80\\u{1F980}$", "🦀🦀", true),
        ("^.$", "\n", false),
        ("^[^]$", "\n", true),
        ("[]", "a", false),
    ] {
        let asked = automaton::StringConstraint {
            patterns: vec![(pattern::parse(pattern).unwrap().into(), true)],
            ..automaton::StringConstraint::default()
        };
        assert_eq!(asked.fits(text), Ok(is_met), "{pattern} in {text:?}");
        let schema = format!("{{\"pattern\": {}}}", grammar::quote(pattern));
        if let Ok(held) = grammar(&schema) {
            assert_eq!(generates(&held, &grammar::quote(text)), is_met, "{pattern} in {text:?}");
        }
    }
}

#[test]
fn sizes_are_bounded() {
    let flaw = |text: &str| to_gbnf(text).expect_err("it is too large").message;
    let nested = |n: usize| format!("{}{{}}{}", "{\"items\":".repeat(n), "}".repeat(n));
    assert!(to_gbnf(&nested(MAX_SCHEMA_DEPTH)).is_ok());
    let deeper =
        format!("{}{{\"type\":\"null\"}}{}", "{\"items\":".repeat(MAX_SCHEMA_DEPTH + 1), "}".repeat(MAX_SCHEMA_DEPTH + 1));
    assert_eq!(flaw(&deeper), "schemas are nested more than 64 deep");
    let doubled =
        (0..30).map(|i| format!("\"d{i}\": {{\"anyOf\": [{{\"$ref\": \"#/d{0}\"}}, {{\"$ref\": \"#/d{0}\"}}]}},", i + 1));
    let doubled = format!("{{\"allOf\": [{{\"$ref\": \"#/d0\"}}], {} \"d30\": {{}}}}", doubled.collect::<Vec<_>>().concat());
    assert_eq!(flaw(&doubled), "the schema expands to more than 1024 alternatives");
    let names: Vec<String> = (0..257).map(|i| format!("\"p{i}\": {{}}")).collect();
    assert!(flaw(&format!("{{\"properties\": {{{}}}}}", names.join(","))).contains("at most 256"));
    let part = |name: &str| {
        format!("{{\"properties\": {{{}}}}}", (0..129).map(|i| format!("\"{name}{i}\": {{}}")).collect::<Vec<_>>().join(","))
    };
    let merged = format!("{{\"allOf\": [{}, {{\"$ref\": \"#/d\"}}], \"d\": {}}}", part("a"), part("b"));
    assert!(flaw(&merged).contains("258 properties"));
    let long = format!("{{\"properties\": {{\"{}\": {{}}}}}}", "_".repeat(257));
    assert_eq!(flaw(&long), "the name of this property is longer than 256 bytes");
    let pattern = format!("{{\"pattern\": \"^{}$\"}}", "a".repeat(MAX_PATTERN_BYTES - 1));
    assert_eq!(flaw(&pattern), "the pattern of 4097 bytes is longer than 4096 bytes");
    assert!(flaw(&" ".repeat(MAX_SCHEMA_BYTES + 1)).contains("is longer than"));
    let schemas: Vec<String> = (0..5_000).map(|i| format!("{{\"const\": {i}}}")).collect();
    assert!(flaw(&format!("{{\"prefixItems\": [{}]}}", schemas.join(","))).contains("more than 4096 subschemas"));
}
