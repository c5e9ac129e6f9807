//! The ways in which a value may fit a schema: each a [`Shape`], of which one is enough.

use std::collections::HashMap;
use std::rc::Rc;

use super::super::json::{Kind, Value};
use super::automaton;
use super::pattern::{self, Node};
use super::shape::{
    ALL, ARRAY, Arrays, BOOLEAN, Block, Contains, FRACTION, INTEGER, BOOLEANS, NEVER, NULL, NUMBER, NamePattern, OBJECT, Objects, Part, Parts,
    STRING, Shape, Types, add, is_same, part, type_of,
};
use super::{
    MAX_NAME_BYTES, MAX_PATTERN_BYTES, MAX_PROPERTIES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_PARTS, MAX_WAYS, Refusal, refuse, refuse_at,
};

/// Most steps that are taken for one schema, about.
const MAX_WORK: usize = 2_000_000;

/// How deep it is looked whether two schemas have no value in common.
const MAX_LOOK: usize = 6;

/// Keywords that ask for nothing of a value by themselves; the others that are unknown to JSON Schema ask for nothing either.
pub(super) const ANNOTATIONS: [&str; 19] = [
    "$schema", "$comment", "$defs", "definitions", "$anchor", "$vocabulary", "title", "description", "default", "examples", "example",
    "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema", "discriminator", "$id",
];

/// What some values are, of a schema.
#[derive(Debug, Clone)]
pub(super) struct Ways<'a> {
    pub(super) shapes: Vec<Shape<'a>>,
    /// Whether these are all ways, so that a value which fits none does not fit the schema.
    pub(super) is_exact: bool,
}

impl<'a> Ways<'a> {
    fn anything() -> Self {
        Self::one(Shape::default())
    }

    fn one(shape: Shape<'a>) -> Self {
        Self { shapes: vec![shape], is_exact: true }
    }

    fn none() -> Self {
        Self { shapes: Vec::new(), is_exact: true }
    }

    fn or(&mut self, other: &Self) {
        self.shapes.extend(other.shapes.iter().cloned());
        self.is_exact &= other.is_exact;
    }
}

/// A schema, or what is not one.
type Key = (usize, bool);

fn key(part: &Part) -> Key {
    (std::ptr::from_ref(part.schema).addr(), part.is_negated)
}

/// What names a set of schemas.
pub(super) fn keys(parts: &[Part]) -> Vec<Key> {
    let mut keys: Vec<Key> = parts.iter().map(key).collect();
    keys.sort_unstable();
    keys
}

/// Reads the schemas of one text.
pub(super) struct Reader<'a> {
    root: &'a Value,
    /// Whether a part of the schema has a name of its own, to which references in it would be relative.
    has_inner_id: bool,
    known: HashMap<Key, Rc<Ways<'a>>>,
    /// Schemas that are read, each for the one before.
    path: Vec<Key>,
    n_work: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        let has_inner_id = has_inner_id(root, true);
        Self { root, has_inner_id, known: HashMap::new(), path: Vec::new(), n_work: 0 }
    }

    /// The ways to fit all of these at once.
    pub(super) fn of_all(&mut self, parts: &[Part<'a>]) -> Result<Ways<'a>, Refusal> {
        let mut ways = Ways::anything();
        for part in parts {
            let more = self.of(*part)?;
            ways = self.both(&ways, &more, part.schema)?;
        }
        Ok(ways)
    }

    pub(super) fn of(&mut self, part: Part<'a>) -> Result<Rc<Ways<'a>>, Refusal> {
        let key = key(&part);
        if let Some(known) = self.known.get(&key) {
            return Ok(Rc::clone(known));
        }
        if self.path.contains(&key) {
            return refuse(part.schema, "this schema leads to itself, with no value in between");
        }
        if self.path.len() > MAX_SCHEMA_DEPTH {
            return refuse(part.schema, format!("schemas are more than {MAX_SCHEMA_DEPTH} deep"));
        }
        if self.known.len() + self.path.len() >= MAX_SCHEMA_PARTS {
            return refuse(part.schema, format!("the schema is made of more than {MAX_SCHEMA_PARTS} schemas"));
        }
        self.path.push(key);
        let ways = if part.is_negated { self.others(part.schema) } else { self.read(part.schema) };
        self.path.pop();
        let ways = Rc::new(ways?);
        self.known.insert(key, Rc::clone(&ways));
        Ok(ways)
    }

    fn plain(&mut self, schema: &'a Value) -> Result<Rc<Ways<'a>>, Refusal> {
        self.of(Part { schema, is_negated: false })
    }

    fn negated(&mut self, schema: &'a Value) -> Result<Rc<Ways<'a>>, Refusal> {
        self.of(Part { schema, is_negated: true })
    }

    fn work(&mut self, n: usize, at: &Value) -> Result<(), Refusal> {
        self.n_work += n + 1;
        if self.n_work > MAX_WORK { refuse(at, "the schema takes too long to work out: its parts multiply") } else { Ok(()) }
    }

    fn both(&mut self, one: &Ways<'a>, other: &Ways<'a>, at: &Value) -> Result<Ways<'a>, Refusal> {
        let mut both = Ways { shapes: Vec::new(), is_exact: one.is_exact && other.is_exact };
        for mine in &one.shapes {
            for theirs in &other.shapes {
                self.work(mine.object.blocks.len() + theirs.object.blocks.len(), at)?;
                both.shapes.extend(mine.and(theirs));
            }
            check_ways(both.shapes.len(), at)?;
        }
        Ok(both)
    }

    fn read(&mut self, schema: &'a Value) -> Result<Ways<'a>, Refusal> {
        match &schema.kind {
            Kind::Bool(true) => return Ok(Ways::anything()),
            Kind::Bool(false) => return Ok(Ways::none()),
            Kind::Object(_) => {}
            _ => return refuse(schema, "a schema must be an object, as {\"type\": \"string\"} is, or true or false"),
        }
        for name in ["$dynamicRef", "$recursiveRef"] {
            if let Some(value) = schema.get(name) {
                return refuse(value, format!("{name} cannot be held to; use $ref"));
            }
        }
        let mut ways = match self.own(schema)? {
            Some(shape) => Ways::one(shape),
            None => Ways::none(),
        };
        if let Some(reference) = schema.get("$ref") {
            let target = self.target(reference)?;
            let more = self.plain(target)?;
            ways = self.both(&ways, &more, schema)?;
        }
        for part in list(schema, "allOf")? {
            let more = self.plain(part)?;
            ways = self.both(&ways, &more, schema)?;
        }
        if let Some(value) = schema.get("anyOf") {
            let mut any = Ways::none();
            for part in list(schema, "anyOf")? {
                any.or(&*self.plain(part)?);
                check_ways(any.shapes.len(), value)?;
            }
            ways = self.both(&ways, &any, schema)?;
        }
        if let Some(value) = schema.get("oneOf") {
            let one = self.one_of(schema, value)?;
            ways = self.both(&ways, &one, schema)?;
        }
        if let Some(not) = schema.get("not") {
            let more = self.negated(not)?;
            ways = self.both(&ways, &more, schema)?;
        }
        ways = self.conditions(schema, ways)?;
        unevaluated(schema, &mut ways);
        Ok(ways)
    }

    /// `if`, and what depends on a property.
    fn conditions(&mut self, schema: &'a Value, mut ways: Ways<'a>) -> Result<Ways<'a>, Refusal> {
        if let Some(condition) = schema.get("if").filter(|_| schema.get("then").is_some() || schema.get("else").is_some()) {
            let (met, unmet) = (self.plain(condition)?, self.negated(condition)?);
            let branch = |reader: &mut Self, ways: &Ways<'a>, name: &str| match schema.get(name) {
                Some(then) => {
                    let then = reader.plain(then)?;
                    reader.both(ways, &then, schema)
                }
                None => Ok(ways.clone()),
            };
            let mut either = branch(self, &met, "then")?;
            either.or(&branch(self, &unmet, "else")?);
            ways = self.both(&ways, &either, schema)?;
        }
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            let Some(value) = schema.get(keyword) else { continue };
            let Some(members) = value.members() else { return refuse(value, format!("{keyword} must be an object")) };
            for (name, needed) in members {
                check_name(name, needed)?;
                let mut absent = Shape { mentioned: OBJECT, ..Shape::default() };
                absent.object.blocks.push(Block { properties: vec![(name, part(&NEVER))], is_contrary: true, ..Block::default() });
                let mut present = Shape { mentioned: OBJECT, types: OBJECT, ..Shape::default() };
                present.object.require(name);
                let mut present = match needed.items() {
                    Some(names) if keyword != "dependentSchemas" => {
                        for name in names {
                            present.object.require(text(name, "the name of a property")?);
                        }
                        Ways::one(present)
                    }
                    None if keyword == "dependentRequired" => return refuse(needed, "this must be a list of names"),
                    _ => {
                        let needed = self.plain(needed)?;
                        self.both(&Ways::one(present), &needed, value)?
                    }
                };
                present.or(&Ways::one(absent));
                ways = self.both(&ways, &present, value)?;
            }
        }
        Ok(ways)
    }

    /// Where a reference leads; references that lead to nothing but references are followed.
    pub(super) fn target(&self, reference: &'a Value) -> Result<&'a Value, Refusal> {
        let name = text(reference, "$ref")?;
        let own_id = self.root.get("$id").and_then(Value::text).map(|id| id.trim_end_matches('#'));
        let local = own_id.and_then(|id| name.strip_prefix(id)).filter(|rest| rest.is_empty() || rest.starts_with('#'));
        let path = local.unwrap_or(name).trim_start_matches('#');
        let is_local = local.is_some() || name.starts_with('#');
        if !is_local || !(path.is_empty() || path.starts_with('/')) || path.len() > MAX_NAME_BYTES {
            return refuse(
                reference,
                format!(
                    "a $ref must be # or begin with #/, name a place in this schema, and be at most {MAX_NAME_BYTES} bytes long"
                ),
            );
        }
        if self.has_inner_id {
            return refuse(reference, "a $ref cannot be followed in a schema of which a part has an $id of its own");
        }
        let mut target = self.root;
        for name in path.split('/').skip(1) {
            let name = unescaped(name);
            let next = match target.items() {
                Some(items) => name.parse().ok().and_then(|place: usize| items.get(place)),
                None => target.get(&name),
            };
            let Some(next) = next else {
                return refuse(reference, format!("the reference #{path} leads nowhere: there is no '{name}'"));
            };
            target = next;
        }
        Ok(target)
    }

    /// The schema that is meant where one has nothing but a reference.
    pub(super) fn meant(&self, mut schema: &'a Value) -> Result<&'a Value, Refusal> {
        for _ in 0..MAX_SCHEMA_DEPTH {
            match only(schema, "$ref") {
                Some(reference) => schema = self.target(reference)?,
                None => return Ok(schema),
            }
        }
        refuse(schema, "this reference leads to no schema but only to references")
    }

    fn one_of(&mut self, schema: &'a Value, value: &'a Value) -> Result<Ways<'a>, Refusal> {
        let parts: Vec<&'a Value> = list(schema, "oneOf")?.iter().collect();
        let mut choices = Vec::new();
        for part in &parts {
            choices.push((*self.plain(part)?).clone());
        }
        check_ways(choices.iter().map(|ways| ways.shapes.len()).sum(), value)?;
        let mut common = self.common(&choices)?;
        if !common.is_empty() {
            // The property that tells them apart must be there.
            let said = schema.get("discriminator").and_then(|value| value.get("propertyName")).and_then(Value::text);
            let known: Vec<&'a str> = choices.iter().flat_map(|ways| ways.shapes.iter().flat_map(|shape| shape.object.known())).collect();
            let mut is_tried = std::collections::HashSet::new();
            for tag in said.into_iter().chain(known).filter(|name| is_tried.insert(*name)).take(32) {
                let mut tagged = choices.clone();
                for shape in tagged.iter_mut().flat_map(|ways| &mut ways.shapes) {
                    shape.object.require(tag);
                }
                if self.common(&tagged)?.is_empty() {
                    // Without the property, a value may fit one of them and no other.
                    tagged.iter_mut().for_each(|ways| ways.is_exact = false);
                    (choices, common) = (tagged, Vec::new());
                    break;
                }
            }
        }
        for (one, other) in common {
            let (mine, theirs) = (self.negated(parts[other]), self.negated(parts[one]));
            let (Ok(mine), Ok(theirs)) = (mine, theirs) else {
                return refuse(
                    value,
                    format!(
                        "schemas {} and {} of oneOf cannot be told apart by their types, their values or a property; use anyOf",
                        one + 1,
                        other + 1
                    ),
                );
            };
            choices[one] = self.both(&choices[one], &mine, value)?;
            choices[other] = self.both(&choices[other], &theirs, value)?;
        }
        let mut all = Ways::none();
        choices.iter().for_each(|ways| all.or(ways));
        Ok(all)
    }

    /// Pairs that may have a value in common.
    fn common(&mut self, choices: &[Ways<'a>]) -> Result<Vec<(usize, usize)>, Refusal> {
        let mut common = Vec::new();
        for (one, mine) in choices.iter().enumerate() {
            for (other, theirs) in choices.iter().enumerate().skip(one + 1) {
                if !self.is_apart(mine, theirs, 0)? {
                    common.push((one, other));
                }
            }
        }
        Ok(common)
    }

    fn is_apart(&mut self, one: &Ways<'a>, other: &Ways<'a>, depth: usize) -> Result<bool, Refusal> {
        if !one.is_exact || !other.is_exact {
            return Ok(false);
        }
        for mine in &one.shapes {
            for theirs in &other.shapes {
                self.work(1, self.root)?;
                if let Some(both) = mine.and(theirs)
                    && !self.is_empty(&both, depth)?
                {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Whether it is sure that no value fits.
    fn is_empty(&mut self, shape: &Shape<'a>, depth: usize) -> Result<bool, Refusal> {
        self.work(10, self.root)?;
        if let Some(values) = &shape.values
            && values.iter().all(|value| type_of(value) & shape.types == 0)
        {
            return Ok(true);
        }
        let (types, string, array, object) = (shape.types, &shape.string, &shape.array, &shape.object);
        if types & (NULL | BOOLEAN) != 0
            || types & INTEGER != 0 && !shape.number.is_empty(true)
            || types & FRACTION != 0 && !shape.number.is_empty(false)
        {
            return Ok(false);
        }
        if types & STRING != 0 && string.max.is_none_or(|max| string.min <= max) {
            let asked = asked(shape);
            self.work(if asked.patterns.is_empty() { 0 } else { 1_000 }, self.root)?;
            if asked.patterns.is_empty() || !asked.table().is_ok_and(|table| table.is_empty()) {
                return Ok(false);
            }
        }
        if types & ARRAY != 0 {
            let min = array.min.unwrap_or(0);
            let mut is_empty = array.max.is_some_and(|max| min > max);
            for place in 0..min.min(array.prefix.len() + 1) {
                is_empty = is_empty || self.is_never(&array.item(place).clone(), depth)?;
            }
            if !is_empty {
                return Ok(false);
            }
        }
        if types & OBJECT != 0 {
            let least = object.min.map_or(0, |(min, _)| min).max(object.required.len());
            let mut is_empty = object.max.is_some_and(|max| least > max);
            for name in &object.required {
                is_empty = is_empty || self.is_never(&self.property(object, name)?, depth)?;
            }
            return Ok(is_empty);
        }
        Ok(true)
    }

    fn is_never(&mut self, parts: &Parts<'a>, depth: usize) -> Result<bool, Refusal> {
        if depth > MAX_LOOK {
            return Ok(false);
        }
        let ways = self.of_all(parts)?;
        for shape in &ways.shapes {
            if !self.is_empty(shape, depth + 1)? {
                return Ok(false);
            }
        }
        Ok(ways.is_exact)
    }

    /// What the property of this name must fit.
    pub(super) fn property(&self, object: &Objects<'a>, name: &str) -> Result<Parts<'a>, Refusal> {
        let mut parts = Parts::new();
        for block in &object.blocks {
            let own = block.properties.iter().rev().find(|(other, _)| *other == name);
            let mut is_known = own.is_some();
            own.iter().for_each(|(_, more)| add(&mut parts, more));
            for pattern in &block.patterns {
                if fits_pattern(pattern, name)? {
                    is_known = true;
                    add(&mut parts, &pattern.parts);
                }
            }
            block.rest.iter().filter(|_| !is_known).for_each(|rest| add(&mut parts, rest));
        }
        Ok(parts)
    }

    /// Whether a value fits these schemas; where it is not sure, it is said not to.
    pub(super) fn fits_all(&mut self, value: &'a Value, parts: &Parts<'a>) -> Result<bool, Refusal> {
        for shape in self.of_all(parts)?.shapes {
            if self.fits(value, &shape)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn fits(&mut self, value: &'a Value, shape: &Shape<'a>) -> Result<bool, Refusal> {
        self.work(1, value)?;
        let is_listed = shape.values.as_ref().is_none_or(|values| values.iter().any(|other| is_same(value, other)));
        if type_of(value) & shape.types == 0 || !is_listed {
            return Ok(false);
        }
        match &value.kind {
            Kind::Null | Kind::Bool(_) => Ok(true),
            Kind::Number(number, _) => Ok(shape.number.fits(*number)),
            Kind::String(text) => {
                self.work(text.len() * shape.string.patterns.len(), value)?;
                asked(shape).fits(text).or_else(|message| refuse(value, message))
            }
            Kind::Array(items) => {
                let array = &shape.array;
                let is_counted = array.min.is_none_or(|min| items.len() >= min) && array.max.is_none_or(|max| items.len() <= max);
                if !is_counted {
                    return Ok(false);
                }
                for (place, item) in items.iter().enumerate() {
                    self.work(place, value)?;
                    let is_again = array.unique.is_some() && items[..place].iter().any(|other| is_same(item, other));
                    if is_again || !self.fits_all(item, array.item(place))? {
                        return Ok(false);
                    }
                }
                for contains in &array.contains {
                    let (mut n_in, mut n_out) = (0, 0);
                    for item in items {
                        n_in += usize::from(self.fits_all(item, &vec![contains.part])?);
                        if contains.max.is_some() {
                            let other = Part { is_negated: !contains.part.is_negated, ..contains.part };
                            n_out += usize::from(self.fits_all(item, &vec![other])?);
                        }
                    }
                    if n_in < contains.min || contains.max.is_some_and(|max| items.len() - n_out > max) {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Kind::Object(members) => {
                let object = &shape.object;
                let mut names: Vec<&str> = members.iter().map(|(name, _)| &**name).collect();
                names.sort_unstable();
                names.dedup();
                let is_counted = object.min.is_none_or(|(min, _)| names.len() >= min) && object.max.is_none_or(|max| names.len() <= max);
                // Of a name that is given twice, the value is not sure.
                if !is_counted || names.len() < members.len() || object.required.iter().any(|name| names.binary_search(name).is_err()) {
                    return Ok(false);
                }
                for (name, member) in members {
                    if !self.fits_all(member, &self.property(object, name)?)? || !self.fits_name(name, &object.names)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    /// Whether a property may have this name.
    pub(super) fn fits_name(&mut self, name: &str, parts: &Parts<'a>) -> Result<bool, Refusal> {
        let as_value = |value: &Value| matches!(&value.kind, Kind::String(text) if text == name);
        for shape in self.of_all(parts)?.shapes {
            let is_listed = shape.values.as_ref().is_none_or(|values| values.iter().any(|value| as_value(value)));
            if shape.types & STRING != 0 && is_listed && asked(&shape).fits(name).or_else(|message| refuse_at(0, message))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A pattern: what must be met of it, or must not.
fn looks(pattern: &Value) -> Result<Vec<(Rc<Node>, bool)>, Refusal> {
    let text = text(pattern, "pattern")?;
    check_pattern(text, pattern)?;
    let parts = pattern::read_with_looks(text).or_else(|why| unheld(text, pattern, &why))?;
    Ok(parts.into_iter().map(|(node, must)| (Rc::new(node), must)).collect())
}

/// A pattern of names, which stands where `at` is.
fn node(text: &str, at: &Value) -> Result<Rc<Node>, Refusal> {
    check_pattern(text, at)?;
    pattern::read(text).map(Rc::new).or_else(|why| unheld(text, at, &why))
}

fn check_pattern(text: &str, at: &Value) -> Result<(), Refusal> {
    if text.len() <= MAX_PATTERN_BYTES {
        return Ok(());
    }
    refuse(at, format!("the pattern of {} bytes is longer than {MAX_PATTERN_BYTES} bytes", text.len()))
}

fn unheld<T>(text: &str, at: &Value, why: &str) -> Result<T, Refusal> {
    refuse(at, format!("the pattern {text:?} cannot be held to: {why}"))
}

fn check_ways(n: usize, at: &Value) -> Result<(), Refusal> {
    if n > MAX_WAYS { refuse(at, format!("there are more than {MAX_WAYS} ways to fit this schema")) } else { Ok(()) }
}

/// What a string of this shape is asked for, without its format.
pub(super) fn asked(shape: &Shape) -> automaton::Asked {
    let string = &shape.string;
    let patterns = string.patterns.iter().map(|(node, must, _)| ((**node).clone(), *must)).collect();
    automaton::Asked { patterns, length: (string.min, string.max) }
}

pub(super) fn fits_pattern(pattern: &NamePattern, name: &str) -> Result<bool, Refusal> {
    let asked = automaton::Asked { patterns: vec![((*pattern.node).clone(), true)], length: (0, None) };
    asked.fits(name).or_else(|why| refuse_at(pattern.at, format!("the pattern {:?} cannot be held to: {why}", pattern.text)))
}

/// The only keyword of a schema, besides those that ask for nothing.
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

/// A name in a JSON pointer that is part of a URI.
fn unescaped(name: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = name.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok()).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code.filter(|_| byte == b'%') {
            Some(code) => {
                bytes.push(code);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).replace("~1", "/").replace("~0", "~")
}

fn list<'a>(schema: &'a Value, name: &str) -> Result<&'a [Value], Refusal> {
    match schema.get(name).map(|value| (value, value.items())) {
        None => Ok(&[]),
        Some((value, Some([]) | None)) => refuse(value, format!("{name} must be a list of one schema at least")),
        Some((_, Some(parts))) => Ok(parts),
    }
}

fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str, Refusal> {
    value.text().map_or_else(|| refuse(value, format!("{name} must be a string")), Ok)
}

fn count(schema: &Value, name: &str) -> Result<Option<usize>, Refusal> {
    let Some(value) = schema.get(name) else { return Ok(None) };
    let number = value.number().filter(|n| *n >= 0.0 && *n <= f64::from(i32::MAX) && n.fract() == 0.0);
    let count = number.and_then(|number| number.to_string().parse().ok());
    count.map_or_else(|| refuse(value, format!("{name} must be an integer from 0 to {}", i32::MAX)), |count| Ok(Some(count)))
}

fn check_name(name: &str, at: &Value) -> Result<(), Refusal> {
    if name.len() <= MAX_NAME_BYTES {
        return Ok(());
    }
    refuse(at, format!("the name of this property is longer than {MAX_NAME_BYTES} bytes"))
}

fn types(value: &Value) -> Result<Types, Refusal> {
    let one = |value: &Value| match value.text() {
        Some("null") => Ok(NULL),
        Some("boolean") => Ok(BOOLEAN),
        Some("integer") => Ok(INTEGER),
        Some("number") => Ok(NUMBER),
        Some("string") => Ok(STRING),
        Some("array") => Ok(ARRAY),
        Some("object") => Ok(OBJECT),
        Some(name) => {
            let name: String = name.chars().take(MAX_NAME_BYTES).collect();
            let known = "object, array, string, integer, number, boolean and null";
            refuse(value, format!("there is no type '{name}'; there are {known}"))
        }
        None => refuse(value, "type must be a string or a list of strings"),
    };
    match value.items() {
        Some([]) => refuse(value, "a list of types must name one at least"),
        Some(names) => names.iter().try_fold(0, |types, name| Ok(types | one(name)?)),
        None => one(value),
    }
}

fn values(schema: &Value) -> Result<Option<Vec<&Value>>, Refusal> {
    let mut values: Option<Vec<&Value>> = match schema.get("enum").map(|value| (value, value.items())) {
        None => None,
        Some((value, None | Some([]))) => return refuse(value, "enum must be a list of one value at least"),
        Some((_, Some(items))) => Some(items.iter().collect()),
    };
    if let Some(value) = schema.get("const") {
        values.get_or_insert_with(|| vec![value]).retain(|other| is_same(value, other));
    }
    Ok(values)
}

/// A bound of a number.
fn bound<'a>(schema: &'a Value, name: &str) -> Result<Option<(&'a Value, f64)>, Refusal> {
    let Some(value) = schema.get(name) else { return Ok(None) };
    let is_low = name == "minimum" || name == "exclusiveMinimum";
    match value.number() {
        None => refuse(value, format!("{name} must be a number")),
        // Above the numbers that are written, an upper bound asks for nothing, as a lower one does below them.
        Some(number) if is_low && number > 1e15 || !is_low && number < -1e15 => {
            refuse(value, format!("{name} cannot be held to beyond 10¹⁵ and −10¹⁵"))
        }
        Some(number) => Ok(Some((value, number))),
    }
}

/// What properties and items must fit that no other keyword speaks of.
fn unevaluated<'a>(schema: &'a Value, ways: &mut Ways<'a>) {
    if let Some(rest) = schema.get("unevaluatedProperties") {
        ways.is_exact = false;
        for shape in &mut ways.shapes {
            shape.mentioned |= OBJECT;
            let said = || shape.object.blocks.iter().filter(|block| !block.is_contrary);
            if said().any(|block| block.rest.is_some()) {
                continue;
            }
            let properties = said().flat_map(|block| block.properties.iter().map(|&(name, _)| (name, Parts::new()))).collect();
            let patterns = said().flat_map(|block| block.patterns.iter().cloned().map(|pattern| NamePattern { parts: Parts::new(), ..pattern }));
            let block = Block { properties, patterns: patterns.collect(), rest: Some(part(rest)), is_contrary: false };
            shape.object.blocks.push(block);
        }
    }
    if let Some(rest) = schema.get("unevaluatedItems") {
        ways.is_exact = false;
        for shape in &mut ways.shapes {
            shape.mentioned |= ARRAY;
            if !shape.array.is_evaluated {
                add(&mut shape.array.rest, &part(rest));
                (shape.array.is_rest_said, shape.array.is_evaluated) = (true, true);
            }
        }
    }
}

/// What a schema says by itself, without the schemas beside it that it refers to or combines.
impl<'a> Reader<'a> {
    fn own(&mut self, schema: &'a Value) -> Result<Option<Shape<'a>>, Refusal> {
        let mut shape = Shape::default();
        if let Some(value) = schema.get("type").filter(|value| value.kind != Kind::Null) {
            shape.types = types(value)?;
            shape.is_typed = true;
        }
        shape.values = values(schema)?;
        shape.is_typed |= shape.values.is_some();
        if shape.values.as_ref().is_some_and(Vec::is_empty) {
            return Ok(None);
        }
        self.own_number(schema, &mut shape)?;
        self.own_string(schema, &mut shape)?;
        self.own_array(schema, &mut shape)?;
        self.own_object(schema, &mut shape)?;
        Ok(Some(shape))
    }

    fn own_number(&mut self, schema: &'a Value, shape: &mut Shape<'a>) -> Result<(), Refusal> {
        let number = &mut shape.number;
        for name in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"] {
            let Some((_, bound)) = bound(schema, name)? else { continue };
            let strict = name.starts_with('e');
            if name.ends_with("inimum") { number.at_least(bound, strict) } else { number.at_most(bound, strict) }
        }
        for (low, high) in [("minimum", "maximum")] {
            if let (Some((value, least)), Some((_, most))) = (bound(schema, low)?, bound(schema, high)?)
                && least > most
            {
                return refuse(value, format!("{low} is {least}, above {high}, which is {most}"));
            }
        }
        if let Some(value) = schema.get("multipleOf") {
            let Some(divisor) = value.number().filter(|number| *number > 0.0) else {
                return refuse(value, "multipleOf must be a number above 0");
            };
            number.divisors.push(divisor);
        }
        shape.mentioned |= if shape.number.is_anything() { 0 } else { NUMBER };
        Ok(())
    }

    fn own_string(&self, schema: &'a Value, shape: &mut Shape<'a>) -> Result<(), Refusal> {
        (shape.string.min, shape.string.max) = counts(schema, "minLength", "maxLength")?;
        if let Some(pattern) = schema.get("pattern") {
            for (node, must) in looks(pattern)? {
                shape.string.patterns.push((node, must, pattern.at));
            }
        }
        if let Some(format) = schema.get("format") {
            let name = text(format, "format")?;
            if super::format(name).is_some() {
                shape.string.formats.push(name);
            }
        }
        let is_said = ["minLength", "maxLength", "pattern"].iter().any(|name| schema.get(name).is_some());
        shape.mentioned |= if is_said || !shape.string.formats.is_empty() { STRING } else { 0 };
        Ok(())
    }

    fn own_array(&mut self, schema: &'a Value, shape: &mut Shape<'a>) -> Result<(), Refusal> {
        let array: &mut Arrays<'a> = &mut shape.array;
        let (min, max) = counts(schema, "minItems", "maxItems")?;
        array.min = schema.get("minItems").map(|_| min);
        array.max = max;
        let items = schema.get("items");
        let listed = items.filter(|items| items.items().is_some());
        let prefix = schema.get("prefixItems").or(listed);
        if let Some(prefix) = prefix {
            let Some(prefix) = prefix.items() else { return refuse(prefix, "prefixItems must be a list of schemas") };
            array.prefix = prefix.iter().map(part).collect();
        }
        let rest = if listed.is_some() { schema.get("additionalItems") } else { items };
        if let Some(rest) = rest {
            array.rest = part(rest);
            (array.is_rest_said, array.is_evaluated) = (true, true);
        }
        if let Some(contains) = schema.get("contains") {
            let (min, max) = counts(schema, "minContains", "maxContains")?;
            let min = if schema.get("minContains").is_some() { min } else { 1 };
            let part = Part { schema: contains, is_negated: false };
            array.contains.push(Contains { part, min, max, at: contains.at });
        }
        match schema.get("uniqueItems") {
            Some(Value { kind: Kind::Bool(true), at }) => array.unique = Some(*at),
            Some(value) if value.kind != Kind::Bool(false) => return refuse(value, "uniqueItems must be true or false"),
            _ => {}
        }
        let is_said = ["items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems", "unevaluatedItems"];
        shape.mentioned |= if is_said.iter().any(|name| schema.get(name).is_some()) { ARRAY } else { 0 };
        Ok(())
    }

    fn own_object(&mut self, schema: &'a Value, shape: &mut Shape<'a>) -> Result<(), Refusal> {
        let object: &mut Objects<'a> = &mut shape.object;
        let mut block = Block::default();
        if let Some(properties) = schema.get("properties") {
            let Some(members) = properties.members() else { return refuse(properties, "properties must be an object") };
            check_n_properties(members.len(), properties)?;
            for (name, property) in members {
                check_name(name, property)?;
                block.properties.push((name, part(property)));
            }
        }
        if let Some(patterns) = schema.get("patternProperties") {
            let Some(members) = patterns.members() else { return refuse(patterns, "patternProperties must be an object") };
            for (text, schema) in members {
                block.patterns.push(NamePattern { text, node: node(text, schema)?, at: schema.at, parts: part(schema) });
            }
        }
        match schema.get("additionalProperties") {
            Some(rest) if rest.members().is_none() && !matches!(rest.kind, Kind::Bool(_)) => {
                return refuse(rest, "additionalProperties must be a schema, true or false");
            }
            rest => block.rest = rest.map(part),
        }
        if !block.properties.is_empty() || !block.patterns.is_empty() || block.rest.is_some() {
            object.blocks.push(block);
        }
        if let Some(required) = schema.get("required") {
            let Some(names) = required.items() else { return refuse(required, "required must be a list of names") };
            check_n_properties(names.len(), required)?;
            for name in names {
                let name_text = text(name, "the name of a property")?;
                check_name(name_text, name)?;
                object.require(name_text);
            }
        }
        if let Some(names) = schema.get("propertyNames") {
            object.names = part(names);
        }
        let (min, max) = counts(schema, "minProperties", "maxProperties")?;
        object.min = schema.get("minProperties").map(|value| (min, value.at));
        object.max = max;
        let is_said = [
            "properties", "patternProperties", "additionalProperties", "required", "propertyNames", "minProperties", "maxProperties",
            "unevaluatedProperties",
        ];
        shape.mentioned |= if is_said.iter().any(|name| schema.get(name).is_some()) { OBJECT } else { 0 };
        Ok(())
    }
}

fn check_n_properties(n: usize, at: &Value) -> Result<(), Refusal> {
    if n <= MAX_PROPERTIES {
        return Ok(());
    }
    refuse(at, format!("the object has {n} properties; at most {MAX_PROPERTIES} may be named"))
}

/// Two numbers of things, the second of which is not below the first.
fn counts(schema: &Value, min: &str, max: &str) -> Result<(usize, Option<usize>), Refusal> {
    let (least, most) = (count(schema, min)?.unwrap_or(0), count(schema, max)?);
    match (schema.get(min), most) {
        (Some(value), Some(most)) if least > most => refuse(value, format!("{min} is {least}, above {max}, which is {most}")),
        _ => Ok((least, most)),
    }
}

/// The contrary of a schema.
impl<'a> Reader<'a> {
    /// The ways in which a value does not fit.
    fn others(&mut self, schema: &'a Value) -> Result<Ways<'a>, Refusal> {
        let members = match &schema.kind {
            Kind::Bool(true) => return Ok(Ways::none()),
            Kind::Bool(false) => return Ok(Ways::anything()),
            Kind::Object(members) => members,
            _ => return refuse(schema, "a schema must be an object, as {\"type\": \"string\"} is, or true or false"),
        };
        // It must be right as it stands too.
        self.plain(schema)?;
        let mut ways = Ways::none();
        for (keyword, value) in members {
            let more = match &**keyword {
                "type" if value.kind != Kind::Null => {
                    Ways::one(Shape { types: ALL & !types(value)?, is_typed: true, ..Shape::default() })
                }
                "enum" | "const" => other_values(value.items().filter(|_| keyword == "enum").unwrap_or(std::slice::from_ref(value))),
                "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum" => {
                    let mut shape = Shape { types: NUMBER, is_typed: true, ..Shape::default() };
                    let (bound, strict) = (value.number().unwrap_or_default(), !keyword.starts_with('e'));
                    let is_low = keyword.ends_with("inimum");
                    if is_low { shape.number.at_most(bound, strict) } else { shape.number.at_least(bound, strict) }
                    Ways::one(shape)
                }
                "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => other_count(schema, keyword)?,
                "pattern" => {
                    let unmet = |(node, must): (Rc<Node>, bool)| {
                        let mut shape = Shape { types: STRING, is_typed: true, ..Shape::default() };
                        shape.string.patterns.push((node, !must, value.at));
                        shape
                    };
                    Ways { shapes: looks(value)?.into_iter().map(unmet).collect(), is_exact: true }
                }
                "items" if schema.get("prefixItems").is_none() && value.items().is_none() => {
                    let mut shape = Shape { types: ARRAY, is_typed: true, ..Shape::default() };
                    let part = Part { schema: value, is_negated: true };
                    shape.array.contains.push(Contains { part, min: 1, max: None, at: value.at });
                    Ways::one(shape)
                }
                "contains" if schema.get("minContains").is_none() && schema.get("maxContains").is_none() => {
                    let mut shape = Shape { types: ARRAY, is_typed: true, ..Shape::default() };
                    shape.array.rest = vec![Part { schema: value, is_negated: true }];
                    shape.array.is_rest_said = true;
                    Ways::one(shape)
                }
                "properties" => {
                    let properties = value.members().unwrap_or_default().iter();
                    let other = |(name, property): &'a (String, Value)| {
                        let parts = vec![Part { schema: property, is_negated: true }];
                        let mut shape = other_property(name, parts);
                        shape.object.require(name);
                        shape
                    };
                    Ways { shapes: properties.map(other).collect(), is_exact: true }
                }
                "required" => {
                    let names = value.items().unwrap_or_default().iter().filter_map(Value::text);
                    Ways { shapes: names.map(|name| other_property(name, part(&NEVER))).collect(), is_exact: true }
                }
                "allOf" => self.other_of_all(list(schema, "allOf")?)?,
                "anyOf" => self.none_of(list(schema, "anyOf")?, schema)?,
                "oneOf" => self.not_one_of(list(schema, "oneOf")?, schema)?,
                "not" => {
                    let ways = (*self.plain(value)?).clone();
                    contrary(ways, value)?
                }
                "$ref" => {
                    let target = self.target(value)?;
                    (*self.negated(target)?).clone()
                }
                "if" if schema.get("then").is_none() && schema.get("else").is_none() => continue,
                "then" | "else" if schema.get("if").is_none() => continue,
                "additionalProperties" | "unevaluatedProperties" | "unevaluatedItems" if value.kind == Kind::Bool(true) => continue,
                "uniqueItems" if value.kind == Kind::Bool(false) => continue,
                "multipleOf" | "items" | "prefixItems" | "additionalItems" | "contains" | "minContains" | "maxContains" | "uniqueItems"
                | "additionalProperties" | "patternProperties" | "propertyNames" | "dependentRequired" | "dependentSchemas" | "dependencies"
                | "unevaluatedProperties" | "unevaluatedItems" | "if" | "then" | "else" => {
                    return refuse(value, format!("the contrary of {keyword} cannot be held to, as this schema is used"));
                }
                _ => continue,
            };
            ways.or(&more);
            check_ways(ways.shapes.len(), schema)?;
        }
        ways.shapes.retain(|shape| shape.types != 0);
        Ok(ways)
    }

    fn other_of_all(&mut self, parts: &'a [Value]) -> Result<Ways<'a>, Refusal> {
        let mut ways = Ways::none();
        for part in parts {
            ways.or(&*self.negated(part)?);
            check_ways(ways.shapes.len(), part)?;
        }
        Ok(ways)
    }

    fn none_of(&mut self, parts: &'a [Value], at: &Value) -> Result<Ways<'a>, Refusal> {
        let mut ways = Ways::anything();
        for part in parts {
            let more = self.negated(part)?;
            ways = self.both(&ways, &more, at)?;
        }
        Ok(ways)
    }

    fn not_one_of(&mut self, parts: &'a [Value], at: &Value) -> Result<Ways<'a>, Refusal> {
        let mut ways = self.none_of(parts, at)?;
        for (one, part) in parts.iter().enumerate() {
            for other in &parts[one + 1..] {
                let (mine, theirs) = (self.plain(part)?, self.plain(other)?);
                let both = self.both(&mine, &theirs, at)?;
                ways.or(&contrary(both, at)?);
                check_ways(ways.shapes.len(), at)?;
            }
        }
        Ok(ways)
    }
}

/// Ways that `unevaluatedProperties` and `unevaluatedItems` know nothing of.
fn contrary<'a>(mut ways: Ways<'a>, at: &Value) -> Result<Ways<'a>, Refusal> {
    for shape in &mut ways.shapes {
        if !shape.array.prefix.is_empty() {
            return refuse(at, "the contrary of a schema with prefixItems cannot be held to, as this schema is used");
        }
        shape.array.is_evaluated = false;
        shape.object.blocks.iter_mut().for_each(|block| block.is_contrary = true);
    }
    Ok(ways)
}

fn other_property<'a>(name: &'a str, parts: Parts<'a>) -> Shape<'a> {
    let mut shape = Shape { types: OBJECT, is_typed: true, ..Shape::default() };
    let block = Block { properties: vec![(name, parts)], is_contrary: true, ..Block::default() };
    shape.object.blocks.push(block);
    shape
}

fn other_count<'a>(schema: &'a Value, keyword: &str) -> Result<Ways<'a>, Refusal> {
    let n = count(schema, keyword)?.unwrap_or(0);
    let is_min = keyword.starts_with("min");
    if is_min && n == 0 {
        return Ok(Ways::none());
    }
    let (min, max) = if is_min { (0, Some(n - 1)) } else { (n + 1, None) };
    let mut shape = Shape { is_typed: true, ..Shape::default() };
    match &keyword[3..] {
        "Length" => (shape.types, shape.string.min, shape.string.max) = (STRING, min, max),
        "Items" => (shape.types, shape.array.min, shape.array.max) = (ARRAY, (min > 0).then_some(min), max),
        _ => {
            let at = schema.get(keyword).map_or(0, |value| value.at);
            (shape.types, shape.object.min, shape.object.max) = (OBJECT, (min > 0).then_some((min, at)), max);
        }
    }
    Ok(Ways::one(shape))
}

/// The ways to be none of these values.
fn other_values<'a>(values: &'a [Value]) -> Ways<'a> {
    let mut named = values.iter().fold(0, |types, value| types | type_of(value));
    named |= if named & NUMBER != 0 { NUMBER } else { 0 };
    let typed = |types| Shape { types, is_typed: true, ..Shape::default() };
    let mut ways = Ways { shapes: vec![typed(ALL & !named)], is_exact: named & (ARRAY | OBJECT) == 0 };
    if named & BOOLEAN != 0 {
        let left: Vec<&'a Value> = BOOLEANS.iter().filter(|value| values.iter().all(|other| other.kind != value.kind)).collect();
        if !left.is_empty() {
            ways.shapes.push(Shape { values: Some(left), ..typed(BOOLEAN) });
        }
    }
    if named & STRING != 0 {
        let mut shape = typed(STRING);
        for text in values.iter().filter_map(Value::text) {
            shape.string.patterns.push((Rc::new(automaton::literal(text)), false, 0));
        }
        ways.shapes.push(shape);
    }
    let mut numbers: Vec<f64> = values.iter().filter_map(Value::number).collect();
    numbers.sort_by(f64::total_cmp);
    if numbers.iter().any(|number| number.abs() >= 1e15) {
        ways.is_exact = false;
    } else if !numbers.is_empty() {
        for place in 0..=numbers.len() {
            let mut shape = typed(NUMBER);
            if place > 0 {
                shape.number.at_least(numbers[place - 1], true);
            }
            if place < numbers.len() {
                shape.number.at_most(numbers[place], true);
            }
            ways.shapes.push(shape);
        }
    }
    ways
}
