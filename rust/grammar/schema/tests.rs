//! JSON schemas and what is drawn for them.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::json::{Kind, Value};
use super::super::tests::{Toy, spellings};
use super::super::{ConstraintSource, Grammar};
use super::*;
use crate::request::Token;

fn grammar(schema: &str) -> Result<Grammar, String> {
    let gbnf = to_gbnf(schema).map_err(|flaw| flaw.to_string())?;
    Grammar::new(&gbnf, &Toy, spellings()).map_err(|flaw| flaw.message)
}

/// Whether the grammar allows this whole text.
fn draws(grammar: &Grammar, text: &str) -> bool {
    let mut branch = grammar.start();
    for byte in text.bytes() {
        if !branch.allows(128 + Token::from(byte)) {
            return false;
        }
        branch.accept(128 + Token::from(byte));
    }
    branch.allows(0)
}

/// Ways to write a value: its members in any order, whole numbers without a fraction; no more than some thousands.
fn written(value: &Value) -> Vec<String> {
    let product = |parts: Vec<Vec<String>>| {
        parts.into_iter().fold(vec![Vec::new()], |rows: Vec<Vec<String>>, part| {
            let longer = |row: &Vec<String>| part.iter().map(|text| [&row[..], &[text.clone()]].concat()).collect::<Vec<_>>();
            rows.iter().flat_map(longer).take(3_000).collect()
        })
    };
    match &value.kind {
        Kind::Null => vec!["null".to_owned()],
        Kind::Bool(value) => vec![value.to_string()],
        Kind::Number(number, text) => vec![text.clone(), number.to_string()],
        Kind::String(text) => vec![grammar::quoted(text)],
        Kind::Array(items) => product(items.iter().map(written).collect()).iter().map(|row| format!("[{}]", row.join(","))).collect(),
        Kind::Object(members) => {
            let mut orders: Vec<Vec<usize>> = vec![Vec::new()];
            for _ in members {
                let longer = |order: &Vec<usize>| {
                    let left = (0..members.len()).filter(|place| !order.contains(place));
                    left.map(|place| [&order[..], &[place]].concat()).collect::<Vec<_>>()
                };
                orders = orders.iter().flat_map(longer).take(3_000).collect();
            }
            let member = |&place: &usize| {
                let (name, value) = &members[place];
                written(value).into_iter().map(|value| format!("{}: {value}", grammar::quoted(name))).collect()
            };
            let rows = orders.iter().flat_map(|order| product(order.iter().map(member).collect()));
            rows.take(3_000).map(|row| format!("{{{}}}", row.join(", "))).collect()
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    groups: usize,
    refused: usize,
    valid: usize,
    drawn: usize,
    invalid: usize,
    invalid_drawn: usize,
}

#[test]
fn of_json_schemas_own_tests_no_invalid_document_is_drawn() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/json_schema_suite");
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the suite is there") {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let file = json::read(&text).unwrap();
        let tally = tallies.entry(path.file_stem().unwrap().to_string_lossy().into_owned()).or_default();
        let said = |value: &Value, name: &str| value.get(name).and_then(Value::text).unwrap_or_default().to_owned();
        for group in file.items().unwrap() {
            tally.groups += 1;
            let schema = written(group.get("schema").unwrap()).remove(0);
            let grammar = match grammar(&schema) {
                Ok(grammar) => grammar,
                Err(why) => {
                    println!("refused: {}: {why}", said(group, "description"));
                    tally.refused += 1;
                    continue;
                }
            };
            for test in group.get("tests").unwrap().items().unwrap() {
                let is_drawn = written(test.get("data").unwrap()).iter().any(|text| draws(&grammar, text));
                let is_valid = test.get("valid").unwrap().kind == Kind::Bool(true);
                let (n, n_drawn) =
                    if is_valid { (&mut tally.valid, &mut tally.drawn) } else { (&mut tally.invalid, &mut tally.invalid_drawn) };
                *n += 1;
                *n_drawn += usize::from(is_drawn);
                if is_drawn != is_valid {
                    let what = if is_valid { "not drawn" } else { "INVALID DRAWN" };
                    println!("{what}: {}: {}: {schema}", said(group, "description"), said(test, "description"));
                }
            }
        }
    }
    let mut sum = Tally::default();
    for (name, tally) in &tallies {
        println!("{name}: {tally:?}");
        sum.groups += tally.groups;
        sum.refused += tally.refused;
        sum.valid += tally.valid;
        sum.drawn += tally.drawn;
        sum.invalid += tally.invalid;
        sum.invalid_drawn += tally.invalid_drawn;
    }
    println!("{sum:?}");
    assert_eq!(sum.invalid_drawn, 0);
}
