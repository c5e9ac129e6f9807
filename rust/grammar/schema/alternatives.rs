//! The alternatives of a schema: a value fits if it fits one of these [`ValueShape`]s.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::super::json::{JsonKind, JsonValue};
use super::super::parse_error::excerpt;
use super::keywords::{check_name, expect_text, own_shape};
use super::negation::unmet_property;
use super::shape::{
    ALL, ARRAY, Conjunction, NEVER, NamePattern, OBJECT, PropertyBlock, SchemaTerm, ValueShape, add, conjunction_of,
};
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
    pub(super) shapes: Vec<ValueShape<'a>>,
    /// True if a value that fits no shape does not fit the schema.
    pub(super) is_exact: bool,
}

impl<'a> SchemaAlternatives<'a> {
    pub(super) fn exactly(shapes: impl IntoIterator<Item = ValueShape<'a>>) -> Self {
        Self { shapes: shapes.into_iter().collect(), is_exact: true }
    }

    pub(super) fn anything() -> Self {
        Self::exactly([ValueShape::anything()])
    }

    pub(super) fn none() -> Self {
        Self::exactly([])
    }

    pub(super) fn extend(&mut self, other: &Self) {
        self.shapes.extend(other.shapes.iter().cloned());
        self.is_exact &= other.is_exact;
    }
}

type TermKey = (usize, bool);

fn key_of(term: &SchemaTerm) -> TermKey {
    (std::ptr::from_ref(term.schema).addr(), term.is_negated)
}

pub(super) fn sorted_keys(terms: &[SchemaTerm]) -> Vec<TermKey> {
    let mut keys: Vec<TermKey> = terms.iter().map(key_of).collect();
    keys.sort_unstable();
    keys
}

pub(super) struct SchemaExpander<'a> {
    pub(super) root: &'a JsonValue,
    /// True if a subschema has an id, to which its references would be relative.
    has_inner_id: bool,
    expanded: HashMap<TermKey, Rc<SchemaAlternatives<'a>>>,
    /// Schemas that are being read, each referring to the next.
    path: Vec<TermKey>,
    n_steps: usize,
}

impl<'a> SchemaExpander<'a> {
    pub(super) fn new(root: &'a JsonValue) -> Self {
        let has_inner_id = has_inner_id(root, true);
        Self { root, has_inner_id, expanded: HashMap::new(), path: Vec::new(), n_steps: 0 }
    }

    pub(super) fn expand_all(&mut self, terms: &[SchemaTerm<'a>]) -> Result<SchemaAlternatives<'a>> {
        let mut alternatives = SchemaAlternatives::anything();
        for term in terms {
            let more = self.expand_term(*term)?;
            alternatives = self.intersect(&alternatives, &more, term.schema)?;
        }
        Ok(alternatives)
    }

    pub(super) fn expand_any(
        &mut self,
        terms: impl Iterator<Item = SchemaTerm<'a>>,
        at: &JsonValue,
    ) -> Result<SchemaAlternatives<'a>> {
        let mut alternatives = SchemaAlternatives::none();
        for term in terms {
            alternatives.extend(&*self.expand_term(term)?);
            check_n_alternatives(alternatives.shapes.len(), at)?;
        }
        Ok(alternatives)
    }

    pub(super) fn expand_term(&mut self, term: SchemaTerm<'a>) -> Result<Rc<SchemaAlternatives<'a>>> {
        let key = key_of(&term);
        if let Some(alternatives) = self.expanded.get(&key) {
            return Ok(Rc::clone(alternatives));
        }
        if self.path.contains(&key) {
            return refuse(term.schema, "this schema refers to itself; recursion is only possible through a property or an item");
        }
        if self.path.len() > MAX_SCHEMA_DEPTH {
            return refuse(term.schema, format!("schemas are nested more than {MAX_SCHEMA_DEPTH} deep"));
        }
        if self.expanded.len() + self.path.len() >= MAX_SCHEMA_PARTS {
            return refuse(term.schema, format!("the schema has more than {MAX_SCHEMA_PARTS} subschemas"));
        }
        self.path.push(key);
        let alternatives = if term.is_negated { self.negate(term.schema) } else { self.expand_schema(term.schema) };
        self.path.pop();
        let alternatives = Rc::new(alternatives?);
        self.expanded.insert(key, Rc::clone(&alternatives));
        Ok(alternatives)
    }

    pub(super) fn expand(&mut self, schema: &'a JsonValue) -> Result<Rc<SchemaAlternatives<'a>>> {
        self.expand_term(SchemaTerm::new(schema))
    }

    pub(super) fn expand_negated(&mut self, schema: &'a JsonValue) -> Result<Rc<SchemaAlternatives<'a>>> {
        self.expand_term(SchemaTerm::new(schema).negated())
    }

    pub(super) fn count_work(&mut self, n: usize, at: &JsonValue) -> Result<()> {
        self.n_steps += n + 1;
        let message = || "the schema is too complex: its subschemas have too many combinations".to_owned();
        ensure(self.n_steps <= MAX_STEPS, at.at, message)
    }

    pub(super) fn intersect(
        &mut self,
        one: &SchemaAlternatives<'a>,
        other: &SchemaAlternatives<'a>,
        at: &JsonValue,
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

    fn expand_schema(&mut self, schema: &'a JsonValue) -> Result<SchemaAlternatives<'a>> {
        match &schema.kind {
            JsonKind::Bool(true) => return Ok(SchemaAlternatives::anything()),
            JsonKind::Bool(false) => return Ok(SchemaAlternatives::none()),
            JsonKind::Object(_) => {}
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
        let reference = schema.get("$ref").map(|reference| self.resolve_reference(reference)).transpose()?;
        for subschema in reference.into_iter().chain(schema_list(schema, "allOf")?) {
            let more = self.expand(subschema)?;
            alternatives = self.intersect(&alternatives, &more, schema)?;
        }
        if let Some(value) = schema.get("anyOf") {
            let any_of = self.expand_any(schema_list(schema, "anyOf")?.iter().map(SchemaTerm::new), value)?;
            alternatives = self.intersect(&alternatives, &any_of, schema)?;
        }
        if let Some(value) = schema.get("oneOf") {
            let one = self.expand_one_of(schema, value)?;
            alternatives = self.intersect(&alternatives, &one, schema)?;
        }
        if let Some(not) = schema.get("not") {
            let more = self.expand_negated(not)?;
            alternatives = self.intersect(&alternatives, &more, schema)?;
        }
        alternatives = self.add_conditions(schema, alternatives)?;
        add_unevaluated(schema, &mut alternatives);
        Ok(alternatives)
    }

    /// Adds the constraints of `if` and of keywords that depend on a property.
    fn add_conditions(
        &mut self,
        schema: &'a JsonValue,
        mut alternatives: SchemaAlternatives<'a>,
    ) -> Result<SchemaAlternatives<'a>> {
        if let Some(condition) = schema.get("if").filter(|_| schema.get("then").is_some() || schema.get("else").is_some()) {
            let mut either = SchemaAlternatives::none();
            for (condition, keyword) in [(SchemaTerm::new(condition), "then"), (SchemaTerm::new(condition).negated(), "else")] {
                let terms: Conjunction = [condition].into_iter().chain(schema.get(keyword).map(SchemaTerm::new)).collect();
                either.extend(&self.expand_all(&terms)?);
            }
            alternatives = self.intersect(&alternatives, &either, schema)?;
        }
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            let Some(value) = schema.get(keyword) else { continue };
            let Some(members) = value.members() else { return refuse(value, format!("{keyword} must be an object")) };
            for (name, needed) in members {
                check_name(name, needed)?;
                let absent =
                    ValueShape { mentioned: OBJECT, types: ALL, is_typed: false, ..unmet_property(name, conjunction_of(&NEVER)) };
                let mut present = ValueShape { mentioned: OBJECT, types: OBJECT, ..ValueShape::anything() };
                present.object.require(name);
                let mut present = match needed.items() {
                    Some(names) if keyword != "dependentSchemas" => {
                        for name in names {
                            present.object.require(expect_text(name, "the name of a property")?);
                        }
                        SchemaAlternatives::exactly([present])
                    }
                    None if keyword == "dependentRequired" => {
                        return refuse(needed, "dependentRequired must map names to lists of names");
                    }
                    _ => {
                        let needed = self.expand(needed)?;
                        self.intersect(&SchemaAlternatives::exactly([present]), &needed, value)?
                    }
                };
                present.extend(&SchemaAlternatives::exactly([absent]));
                alternatives = self.intersect(&alternatives, &present, value)?;
            }
        }
        Ok(alternatives)
    }

    pub(super) fn resolve_reference(&self, reference: &'a JsonValue) -> Result<&'a JsonValue> {
        let name = expect_text(reference, "$ref")?;
        let own_id = self.root.get("$id").and_then(JsonValue::text).map(|id| id.trim_end_matches('#'));
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
            let name = unescape(name);
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
    pub(super) fn follow_references(&self, mut schema: &'a JsonValue) -> Result<&'a JsonValue> {
        for _ in 0..MAX_SCHEMA_DEPTH {
            match sole_keyword(schema, "$ref") {
                Some(reference) => schema = self.resolve_reference(reference)?,
                None => return Ok(schema),
            }
        }
        refuse(schema, "this $ref is part of a cycle of references")
    }

    fn expand_one_of(&mut self, schema: &'a JsonValue, value: &'a JsonValue) -> Result<SchemaAlternatives<'a>> {
        let schemas = schema_list(schema, "oneOf")?;
        let mut choices = Vec::new();
        for schema in schemas {
            choices.push((*self.expand(schema)?).clone());
        }
        check_n_alternatives(choices.iter().map(|alternatives| alternatives.shapes.len()).sum(), value)?;
        let mut common = self.find_overlaps(&choices)?;
        if !common.is_empty()
            && let Some(tagged) = self.require_tag(schema, &choices)?
        {
            (choices, common) = (tagged, Vec::new());
        }
        for (one, other) in common {
            let (mine, theirs) = (self.expand_negated(&schemas[other]), self.expand_negated(&schemas[one]));
            let (Ok(mine), Ok(theirs)) = (mine, theirs) else {
                let (one, other) = (one + 1, other + 1);
                let message =
                    format!("no type, value or property distinguishes the schemas {one} and {other} of oneOf; use anyOf");
                return refuse(value, message);
            };
            choices[one] = self.intersect(&choices[one], &mine, value)?;
            choices[other] = self.intersect(&choices[other], &theirs, value)?;
        }
        let mut all = SchemaAlternatives::none();
        for alternatives in &choices {
            all.extend(alternatives);
        }
        Ok(all)
    }

    /// Requires a property that distinguishes the schemas of `oneOf`, if there is one.
    fn require_tag(
        &mut self,
        schema: &'a JsonValue,
        choices: &[SchemaAlternatives<'a>],
    ) -> Result<Option<Vec<SchemaAlternatives<'a>>>> {
        let declared = schema.get("discriminator").and_then(|value| value.get("propertyName")).and_then(JsonValue::text);
        let names = choices.iter().flat_map(|choice| &choice.shapes).flat_map(|shape| shape.object.property_names());
        let mut tried = HashSet::new();
        for tag in declared.into_iter().chain(names).filter(|name| tried.insert(*name)).take(32) {
            let mut tagged = choices.to_vec();
            for shape in tagged.iter_mut().flat_map(|alternatives| &mut alternatives.shapes) {
                shape.object.require(tag);
            }
            if self.find_overlaps(&tagged)?.is_empty() {
                // Without the property, a value may still fit exactly one of them.
                for alternatives in &mut tagged {
                    alternatives.is_exact = false;
                }
                return Ok(Some(tagged));
            }
        }
        Ok(None)
    }

    /// Returns the pairs of alternatives that may have a common value.
    fn find_overlaps(&mut self, choices: &[SchemaAlternatives<'a>]) -> Result<Vec<(usize, usize)>> {
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

pub(super) fn refuse_non_schema<T>(value: &JsonValue) -> Result<T> {
    refuse(value, "a schema must be an object, for example {\"type\": \"string\"}, or true or false")
}

pub(super) fn check_n_alternatives(n: usize, at: &JsonValue) -> Result<()> {
    ensure(n <= MAX_ALTERNATIVES, at.at, || format!("the schema expands to more than {MAX_ALTERNATIVES} alternatives"))
}

/// Returns the value of a keyword if it is the schema's only one, annotations excluded.
pub(super) fn sole_keyword<'a>(schema: &'a JsonValue, name: &str) -> Option<&'a JsonValue> {
    let is_alone = |(key, _): &(String, JsonValue)| key == name || ANNOTATIONS.contains(&&**key);
    schema.members().filter(|members| members.iter().all(is_alone)).and_then(|_| schema.get(name))
}

fn has_inner_id(value: &JsonValue, is_root: bool) -> bool {
    let is_id = |value: &JsonValue| value.text().is_some_and(|id| !id.starts_with('#'));
    let is_named = !is_root && (value.get("$id").is_some_and(is_id) || value.get("id").is_some_and(is_id));
    is_named
        || value.items().is_some_and(|items| items.iter().any(|item| has_inner_id(item, false)))
        || value.members().is_some_and(|members| members.iter().any(|(_, member)| has_inner_id(member, false)))
}

/// Decodes a name of a JSON pointer in a URI.
fn unescape(name: &str) -> String {
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

pub(super) fn schema_list<'a>(schema: &'a JsonValue, name: &str) -> Result<&'a [JsonValue]> {
    match schema.get(name).map(|value| (value, value.items())) {
        None => Ok(&[]),
        Some((value, Some([]) | None)) => refuse(value, format!("{name} must be a list of at least one schema")),
        Some((_, Some(schemas))) => Ok(schemas),
    }
}

/// Adds the schemas for properties and items that no other keyword evaluates.
fn add_unevaluated<'a>(schema: &'a JsonValue, alternatives: &mut SchemaAlternatives<'a>) {
    if let Some(rest) = schema.get("unevaluatedProperties") {
        alternatives.is_exact = false;
        for shape in &mut alternatives.shapes {
            shape.mentioned |= OBJECT;
            let declared = || shape.object.blocks.iter().filter(|block| !block.is_negation);
            if declared().any(|block| block.rest.is_some()) {
                continue;
            }
            let properties =
                declared().flat_map(|block| block.properties.iter().map(|&(name, _)| (name, Conjunction::new()))).collect();
            let patterns = declared().flat_map(|block| {
                block.patterns.iter().cloned().map(|pattern| NamePattern { terms: Conjunction::new(), ..pattern })
            });
            let block =
                PropertyBlock { properties, patterns: patterns.collect(), rest: Some(conjunction_of(rest)), is_negation: false };
            shape.object.blocks.push(block);
        }
    }
    if let Some(rest) = schema.get("unevaluatedItems") {
        alternatives.is_exact = false;
        for shape in &mut alternatives.shapes {
            shape.mentioned |= ARRAY;
            if !shape.array.is_evaluated {
                add(&mut shape.array.rest, &conjunction_of(rest));
                (shape.array.has_rest_schema, shape.array.is_evaluated) = (true, true);
            }
        }
    }
}
