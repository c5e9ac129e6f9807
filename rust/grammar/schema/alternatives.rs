//! The alternatives of a schema: a value fits if it fits one of these [`Shape`]s.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::super::json::{Value, ValueKind};
use super::super::parse_error::excerpt;
use super::keywords::{check_name, own_shape, text};
use super::negation::unmet_property;
use super::shape::{ALL, ARRAY, Block, NEVER, NamePattern, OBJECT, Part, Parts, Shape, add, part};
use super::{MAX_ALTERNATIVES, MAX_NAME_BYTES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_PARTS, Result, ensure, refuse};

const MAX_STEPS: usize = 2_000_000;

/// Keywords that are no constraints by themselves. Keywords that JSON Schema does not define are ignored, too.
#[rustfmt::skip]
const ANNOTATIONS: [&str; 19] = [
    "$schema", "$comment", "$defs", "definitions", "$anchor", "$vocabulary", "title", "description", "default", "examples",
    "example", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema", "discriminator",
    "$id",
];

/// Unsupported drafts of JSON Schema whose keywords differ.
const OTHER_DIALECTS: [&str; 3] = ["json-schema.org/draft-01/", "json-schema.org/draft-02/", "json-schema.org/draft-03/"];

#[derive(Debug, Clone)]
pub(super) struct SchemaAlternatives<'a> {
    pub(super) shapes: Vec<Shape<'a>>,
    /// True if a value that fits no shape does not fit the schema.
    pub(super) is_exact: bool,
}

impl<'a> SchemaAlternatives<'a> {
    pub(super) fn exactly(shapes: impl IntoIterator<Item = Shape<'a>>) -> Self {
        Self { shapes: shapes.into_iter().collect(), is_exact: true }
    }

    pub(super) fn anything() -> Self {
        Self::exactly([Shape::anything()])
    }

    pub(super) fn none() -> Self {
        Self::exactly([])
    }

    pub(super) fn or(&mut self, other: &Self) {
        self.shapes.extend(other.shapes.iter().cloned());
        self.is_exact &= other.is_exact;
    }
}

type Key = (usize, bool);

fn key(part: &Part) -> Key {
    (std::ptr::from_ref(part.schema).addr(), part.is_negated)
}

pub(super) fn keys(parts: &[Part]) -> Vec<Key> {
    let mut keys: Vec<Key> = parts.iter().map(key).collect();
    keys.sort_unstable();
    keys
}

pub(super) struct Reader<'a> {
    pub(super) root: &'a Value,
    /// References in a part with an id would be relative to it.
    has_inner_id: bool,
    read_schemas: HashMap<Key, Rc<SchemaAlternatives<'a>>>,
    /// Schemas that are being read, each referring to the next.
    path: Vec<Key>,
    n_steps: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        let has_inner_id = has_inner_id(root, true);
        Self { root, has_inner_id, read_schemas: HashMap::new(), path: Vec::new(), n_steps: 0 }
    }

    pub(super) fn of_all(&mut self, parts: &[Part<'a>]) -> Result<SchemaAlternatives<'a>> {
        let mut alternatives = SchemaAlternatives::anything();
        for part in parts {
            let more = self.of(*part)?;
            alternatives = self.intersection(&alternatives, &more, part.schema)?;
        }
        Ok(alternatives)
    }

    pub(super) fn of_any(&mut self, parts: impl Iterator<Item = Part<'a>>, at: &Value) -> Result<SchemaAlternatives<'a>> {
        let mut alternatives = SchemaAlternatives::none();
        for part in parts {
            alternatives.or(&*self.of(part)?);
            check_n_alternatives(alternatives.shapes.len(), at)?;
        }
        Ok(alternatives)
    }

    pub(super) fn of(&mut self, part: Part<'a>) -> Result<Rc<SchemaAlternatives<'a>>> {
        let key = key(&part);
        if let Some(alternatives) = self.read_schemas.get(&key) {
            return Ok(Rc::clone(alternatives));
        }
        if self.path.contains(&key) {
            return refuse(part.schema, "this schema refers to itself; recursion is only possible through a property or an item");
        }
        if self.path.len() > MAX_SCHEMA_DEPTH {
            return refuse(part.schema, format!("schemas are nested more than {MAX_SCHEMA_DEPTH} deep"));
        }
        if self.read_schemas.len() + self.path.len() >= MAX_SCHEMA_PARTS {
            return refuse(part.schema, format!("the schema has more than {MAX_SCHEMA_PARTS} subschemas"));
        }
        self.path.push(key);
        let alternatives = if part.is_negated { self.complement(part.schema) } else { self.read(part.schema) };
        self.path.pop();
        let alternatives = Rc::new(alternatives?);
        self.read_schemas.insert(key, Rc::clone(&alternatives));
        Ok(alternatives)
    }

    pub(super) fn alternatives_of(&mut self, schema: &'a Value) -> Result<Rc<SchemaAlternatives<'a>>> {
        self.of(Part::new(schema))
    }

    pub(super) fn negated(&mut self, schema: &'a Value) -> Result<Rc<SchemaAlternatives<'a>>> {
        self.of(Part::new(schema).negated())
    }

    pub(super) fn count_work(&mut self, n: usize, at: &Value) -> Result<()> {
        self.n_steps += n + 1;
        let message = || "the schema is too complex: its subschemas have too many combinations".to_owned();
        ensure(self.n_steps <= MAX_STEPS, at.at, message)
    }

    pub(super) fn intersection(
        &mut self,
        one: &SchemaAlternatives<'a>,
        other: &SchemaAlternatives<'a>,
        at: &Value,
    ) -> Result<SchemaAlternatives<'a>> {
        let mut combined = SchemaAlternatives { shapes: Vec::new(), is_exact: one.is_exact && other.is_exact };
        for mine in &one.shapes {
            for theirs in &other.shapes {
                self.count_work(mine.object.blocks.len() + theirs.object.blocks.len(), at)?;
                combined.shapes.extend(mine.and(theirs));
            }
            check_n_alternatives(combined.shapes.len(), at)?;
        }
        Ok(combined)
    }

    fn read(&mut self, schema: &'a Value) -> Result<SchemaAlternatives<'a>> {
        match &schema.kind {
            ValueKind::Bool(true) => return Ok(SchemaAlternatives::anything()),
            ValueKind::Bool(false) => return Ok(SchemaAlternatives::none()),
            ValueKind::Object(_) => {}
            _ => return refuse_non_schema(schema),
        }
        for name in ["$dynamicRef", "$recursiveRef"] {
            if let Some(value) = schema.get(name) {
                return refuse(value, format!("{name} is not supported; use $ref"));
            }
        }
        if let Some(dialect) = schema.get("$schema")
            && dialect.text().is_some_and(|name| OTHER_DIALECTS.iter().any(|other| name.contains(other)))
        {
            return refuse(dialect, "this draft of JSON Schema is not supported; use draft 2020-12");
        }
        let mut alternatives = SchemaAlternatives::exactly(own_shape(schema)?);
        let reference = schema.get("$ref").map(|reference| self.target(reference)).transpose()?;
        for part in reference.into_iter().chain(list(schema, "allOf")?) {
            let more = self.alternatives_of(part)?;
            alternatives = self.intersection(&alternatives, &more, schema)?;
        }
        if let Some(value) = schema.get("anyOf") {
            let any_of = self.of_any(list(schema, "anyOf")?.iter().map(Part::new), value)?;
            alternatives = self.intersection(&alternatives, &any_of, schema)?;
        }
        if let Some(value) = schema.get("oneOf") {
            let one = self.one_of(schema, value)?;
            alternatives = self.intersection(&alternatives, &one, schema)?;
        }
        if let Some(not) = schema.get("not") {
            let more = self.negated(not)?;
            alternatives = self.intersection(&alternatives, &more, schema)?;
        }
        alternatives = self.conditions(schema, alternatives)?;
        unevaluated(schema, &mut alternatives);
        Ok(alternatives)
    }

    /// Adds the constraints of `if` and of keywords that depend on a property.
    fn conditions(&mut self, schema: &'a Value, mut alternatives: SchemaAlternatives<'a>) -> Result<SchemaAlternatives<'a>> {
        if let Some(condition) = schema.get("if").filter(|_| schema.get("then").is_some() || schema.get("else").is_some()) {
            let mut either = SchemaAlternatives::none();
            for (condition, keyword) in [(Part::new(condition), "then"), (Part::new(condition).negated(), "else")] {
                let parts: Parts = [condition].into_iter().chain(schema.get(keyword).map(Part::new)).collect();
                either.or(&self.of_all(&parts)?);
            }
            alternatives = self.intersection(&alternatives, &either, schema)?;
        }
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            let Some(value) = schema.get(keyword) else { continue };
            let Some(members) = value.members() else { return refuse(value, format!("{keyword} must be an object")) };
            for (name, needed) in members {
                check_name(name, needed)?;
                let absent = Shape { mentioned: OBJECT, types: ALL, is_typed: false, ..unmet_property(name, part(&NEVER)) };
                let mut present = Shape { mentioned: OBJECT, types: OBJECT, ..Shape::anything() };
                present.object.require(name);
                let mut present = match needed.items() {
                    Some(names) if keyword != "dependentSchemas" => {
                        for name in names {
                            present.object.require(text(name, "the name of a property")?);
                        }
                        SchemaAlternatives::exactly([present])
                    }
                    None if keyword == "dependentRequired" => {
                        return refuse(needed, "dependentRequired must map names to lists of names");
                    }
                    _ => {
                        let needed = self.alternatives_of(needed)?;
                        self.intersection(&SchemaAlternatives::exactly([present]), &needed, value)?
                    }
                };
                present.or(&SchemaAlternatives::exactly([absent]));
                alternatives = self.intersection(&alternatives, &present, value)?;
            }
        }
        Ok(alternatives)
    }

    pub(super) fn target(&self, reference: &'a Value) -> Result<&'a Value> {
        let name = text(reference, "$ref")?;
        let own_id = self.root.get("$id").and_then(Value::text).map(|id| id.trim_end_matches('#'));
        let local = own_id.and_then(|id| name.strip_prefix(id)).filter(|rest| rest.is_empty() || rest.starts_with('#'));
        let path = local.unwrap_or(name).trim_start_matches('#');
        let is_local = local.is_some() || name.starts_with('#');
        if !is_local || !(path.is_empty() || path.starts_with('/')) || path.len() > MAX_NAME_BYTES {
            let reason = "since only references within this schema are supported";
            let message = format!("$ref must be # or begin with #/, {reason}, and have at most {MAX_NAME_BYTES} bytes");
            return refuse(reference, message);
        }
        if self.has_inner_id {
            return refuse(reference, "$ref is not supported in a schema with a nested $id; remove the nested $id");
        }
        let mut target = self.root;
        for name in path.split('/').skip(1) {
            let name = unescaped(name);
            let next = match target.items() {
                Some(items) => name.parse().ok().and_then(|index: usize| items.get(index)),
                None => target.get(&name),
            };
            let Some(next) = next else {
                return refuse(reference, format!("this $ref cannot be resolved: there is no '{}'", excerpt(&name)));
            };
            target = next;
        }
        Ok(target)
    }

    /// Follows references as long as the schema has no other constraint.
    pub(super) fn resolved(&self, mut schema: &'a Value) -> Result<&'a Value> {
        for _ in 0..MAX_SCHEMA_DEPTH {
            match only(schema, "$ref") {
                Some(reference) => schema = self.target(reference)?,
                None => return Ok(schema),
            }
        }
        refuse(schema, "this $ref is part of a cycle of references")
    }

    fn one_of(&mut self, schema: &'a Value, value: &'a Value) -> Result<SchemaAlternatives<'a>> {
        let parts = list(schema, "oneOf")?;
        let mut choices = Vec::new();
        for part in parts {
            choices.push((*self.alternatives_of(part)?).clone());
        }
        check_n_alternatives(choices.iter().map(|alternatives| alternatives.shapes.len()).sum(), value)?;
        let mut common = self.common(&choices)?;
        if !common.is_empty()
            && let Some(tagged) = self.tagged(schema, &choices)?
        {
            (choices, common) = (tagged, Vec::new());
        }
        for (one, other) in common {
            let (mine, theirs) = (self.negated(&parts[other]), self.negated(&parts[one]));
            let (Ok(mine), Ok(theirs)) = (mine, theirs) else {
                let (one, other) = (one + 1, other + 1);
                let message =
                    format!("no type, value or property distinguishes the schemas {one} and {other} of oneOf; use anyOf");
                return refuse(value, message);
            };
            choices[one] = self.intersection(&choices[one], &mine, value)?;
            choices[other] = self.intersection(&choices[other], &theirs, value)?;
        }
        let mut all = SchemaAlternatives::none();
        for alternatives in &choices {
            all.or(alternatives);
        }
        Ok(all)
    }

    /// Requires a property that distinguishes the schemas of `oneOf`, if there is one.
    fn tagged(&mut self, schema: &'a Value, choices: &[SchemaAlternatives<'a>]) -> Result<Option<Vec<SchemaAlternatives<'a>>>> {
        let declared = schema.get("discriminator").and_then(|value| value.get("propertyName")).and_then(Value::text);
        let names = choices.iter().flat_map(|choice| &choice.shapes).flat_map(|shape| shape.object.property_names());
        let mut tried = HashSet::new();
        for tag in declared.into_iter().chain(names).filter(|name| tried.insert(*name)).take(32) {
            let mut tagged = choices.to_vec();
            for shape in tagged.iter_mut().flat_map(|alternatives| &mut alternatives.shapes) {
                shape.object.require(tag);
            }
            if self.common(&tagged)?.is_empty() {
                // Without the property, a value may still fit exactly one of them.
                for alternatives in &mut tagged {
                    alternatives.is_exact = false;
                }
                return Ok(Some(tagged));
            }
        }
        Ok(None)
    }

    /// Pairs of alternatives that may have a common value.
    fn common(&mut self, choices: &[SchemaAlternatives<'a>]) -> Result<Vec<(usize, usize)>> {
        let mut common = Vec::new();
        for (one, mine) in choices.iter().enumerate() {
            for (other, theirs) in choices.iter().enumerate().skip(one + 1) {
                if !self.is_disjoint(mine, theirs, 0)? {
                    common.push((one, other));
                }
            }
        }
        Ok(common)
    }
}

pub(super) fn refuse_non_schema<T>(value: &Value) -> Result<T> {
    refuse(value, "a schema must be an object, for example {\"type\": \"string\"}, or true or false")
}

pub(super) fn check_n_alternatives(n: usize, at: &Value) -> Result<()> {
    ensure(n <= MAX_ALTERNATIVES, at.at, || format!("the schema expands to more than {MAX_ALTERNATIVES} alternatives"))
}

/// The only keyword of a schema, annotations excluded.
pub(super) fn only<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let is_alone = |(key, _): &(String, Value)| key == name || ANNOTATIONS.contains(&&**key);
    schema.members().filter(|members| members.iter().all(is_alone)).and_then(|_| schema.get(name))
}

fn has_inner_id(value: &Value, is_root: bool) -> bool {
    let is_id = |value: &Value| value.text().is_some_and(|id| !id.starts_with('#'));
    let is_named = !is_root && (value.get("$id").is_some_and(is_id) || value.get("id").is_some_and(is_id));
    is_named
        || value.items().is_some_and(|items| items.iter().any(|item| has_inner_id(item, false)))
        || value.members().is_some_and(|members| members.iter().any(|(_, member)| has_inner_id(member, false)))
}

/// Decodes a name of a JSON pointer in a URI.
fn unescaped(name: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = name.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let escaped = code.filter(|_| byte == b'%');
        bytes.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).replace("~1", "/").replace("~0", "~")
}

pub(super) fn list<'a>(schema: &'a Value, name: &str) -> Result<&'a [Value]> {
    match schema.get(name).map(|value| (value, value.items())) {
        None => Ok(&[]),
        Some((value, Some([]) | None)) => refuse(value, format!("{name} must be a list of at least one schema")),
        Some((_, Some(parts))) => Ok(parts),
    }
}

/// Adds the schemas for properties and items that no other keyword evaluates.
fn unevaluated<'a>(schema: &'a Value, alternatives: &mut SchemaAlternatives<'a>) {
    if let Some(rest) = schema.get("unevaluatedProperties") {
        alternatives.is_exact = false;
        for shape in &mut alternatives.shapes {
            shape.mentioned |= OBJECT;
            let declared = || shape.object.blocks.iter().filter(|block| !block.is_negation);
            if declared().any(|block| block.rest.is_some()) {
                continue;
            }
            let properties =
                declared().flat_map(|block| block.properties.iter().map(|&(name, _)| (name, Parts::new()))).collect();
            let patterns = declared()
                .flat_map(|block| block.patterns.iter().cloned().map(|pattern| NamePattern { parts: Parts::new(), ..pattern }));
            let block = Block { properties, patterns: patterns.collect(), rest: Some(part(rest)), is_negation: false };
            shape.object.blocks.push(block);
        }
    }
    if let Some(rest) = schema.get("unevaluatedItems") {
        alternatives.is_exact = false;
        for shape in &mut alternatives.shapes {
            shape.mentioned |= ARRAY;
            if !shape.array.is_evaluated {
                add(&mut shape.array.rest, &part(rest));
                (shape.array.has_rest_schema, shape.array.is_evaluated) = (true, true);
            }
        }
    }
}
