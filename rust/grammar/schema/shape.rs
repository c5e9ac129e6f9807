//! The constraints on a value, by type.

use std::rc::Rc;

use super::super::json::{JsonKind, JsonValue};
use super::automaton::StringConstraint;
use super::number;
use super::pattern::PatternNode;

/// Types, as bits. An integer is a number without a fraction; [`FRACTION`] is the other numbers.
pub(super) type Types = u8;

pub(super) const NULL: Types = 1;
pub(super) const BOOLEAN: Types = 2;
pub(super) const INTEGER: Types = 4;
pub(super) const FRACTION: Types = 8;
pub(super) const NUMBER: Types = INTEGER | FRACTION;
pub(super) const STRING: Types = 16;
pub(super) const ARRAY: Types = 32;
pub(super) const OBJECT: Types = 64;
pub(super) const ALL: Types = 127;

/// A schema or its negation.
#[derive(Debug, Clone, Copy)]
pub(super) struct SchemaTerm<'a> {
    pub(super) schema: &'a JsonValue,
    pub(super) is_negated: bool,
}

/// Distinct schemas that a value must all fit; an empty list allows any value.
pub(super) type Conjunction<'a> = Vec<SchemaTerm<'a>>;

pub(super) static NEVER: JsonValue = JsonValue { at: 0, kind: JsonKind::Bool(false) };
pub(super) static BOOLEANS: [JsonValue; 2] =
    [JsonValue { at: 0, kind: JsonKind::Bool(false) }, JsonValue { at: 0, kind: JsonKind::Bool(true) }];

impl<'a> SchemaTerm<'a> {
    pub(super) fn new(schema: &'a JsonValue) -> Self {
        Self { schema, is_negated: false }
    }

    pub(super) fn negated(self) -> Self {
        Self { is_negated: !self.is_negated, ..self }
    }
}

pub(super) fn conjunction_of(schema: &JsonValue) -> Conjunction<'_> {
    vec![SchemaTerm::new(schema)]
}

impl PartialEq for SchemaTerm<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.schema, other.schema) && self.is_negated == other.is_negated
    }
}

/// Adds `more` to `list` without duplicates.
pub(super) fn add<T: Clone + PartialEq>(list: &mut Vec<T>, more: &[T]) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct ValueShape<'a> {
    pub(super) types: Types,
    /// True if the schema restricts its types or values.
    pub(super) is_typed: bool,
    pub(super) mentioned: Types,
    pub(super) values: Option<Vec<&'a JsonValue>>,
    pub(super) number: number::NumberConstraint,
    pub(super) string: StringShape<'a>,
    pub(super) array: ArrayShape<'a>,
    pub(super) object: ObjectShape<'a>,
}

/// Bounds of the number of characters, items or properties.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CountRange {
    pub(super) min: Option<usize>,
    pub(super) max: Option<usize>,
    /// Position of the keyword for the minimum.
    pub(super) at: usize,
}

#[derive(Debug, Clone, Default)]
pub(super) struct StringShape<'a> {
    /// Patterns and length, without the formats.
    pub(super) constraint: StringConstraint,
    /// Position of the first pattern.
    pub(super) at: Option<usize>,
    pub(super) formats: Vec<&'a str>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct ArrayShape<'a> {
    pub(super) prefix: Vec<Conjunction<'a>>,
    pub(super) rest: Conjunction<'a>,
    pub(super) has_rest_schema: bool,
    /// True if `unevaluatedItems` applies to no item.
    pub(super) is_evaluated: bool,
    pub(super) count: CountRange,
    pub(super) contains: Vec<ContainsShape<'a>>,
    /// Position of the keyword that requires distinct items.
    pub(super) unique: Option<usize>,
}

#[derive(Debug, Clone)]
pub(super) struct ContainsShape<'a> {
    pub(super) term: SchemaTerm<'a>,
    pub(super) count: CountRange,
}

#[derive(Debug, Clone, Default)]
pub(super) struct ObjectShape<'a> {
    pub(super) blocks: Vec<PropertyBlock<'a>>,
    pub(super) required: Vec<&'a str>,
    pub(super) names: Conjunction<'a>,
    pub(super) count: CountRange,
}

#[derive(Debug, Clone, Default)]
pub(super) struct PropertyBlock<'a> {
    pub(super) properties: Vec<(&'a str, Conjunction<'a>)>,
    pub(super) patterns: Vec<NamePattern<'a>>,
    /// Schemas of all other properties.
    pub(super) rest: Option<Conjunction<'a>>,
    /// True if its properties count as unevaluated.
    pub(super) is_negation: bool,
}

#[derive(Debug, Clone)]
pub(super) struct NamePattern<'a> {
    pub(super) text: &'a str,
    pub(super) node: Rc<PatternNode>,
    pub(super) at: usize,
    pub(super) terms: Conjunction<'a>,
}

impl CountRange {
    pub(super) fn min(&self) -> usize {
        self.min.unwrap_or(0)
    }

    pub(super) fn contains(&self, n: usize) -> bool {
        self.min() <= n && self.max.is_none_or(|max| n <= max)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.max.is_some_and(|max| max < self.min())
    }

    pub(super) fn and(&mut self, other: &Self) {
        (self.min, self.at) = (self.min, self.at).max((other.min, other.at));
        self.max = self.max.into_iter().chain(other.max).min();
    }
}

impl ValueShape<'_> {
    pub(super) fn anything() -> Self {
        Self { types: ALL, ..Self::default() }
    }

    pub(super) fn typed(types: Types) -> Self {
        Self { types, is_typed: true, ..Self::default() }
    }

    /// Returns the values that fit both; `None` if it is obvious that there are none.
    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        let mut combined = self.clone();
        combined.types &= other.types;
        combined.is_typed |= other.is_typed;
        combined.mentioned |= other.mentioned;
        if let Some(values) = &other.values {
            match &mut combined.values {
                Some(mine) => mine.retain(|value| values.iter().any(|other| is_same(value, other))),
                None => combined.values = Some(values.clone()),
            }
        }
        combined.number.and(&other.number);
        combined.string.and(&other.string);
        combined.array.and(&other.array);
        combined.object.and(&other.object);
        let is_empty = combined.types == 0 || combined.values.as_ref().is_some_and(Vec::is_empty);
        (!is_empty).then_some(combined)
    }

    pub(super) fn is_anything(&self) -> bool {
        self.types == ALL && self.mentioned == 0 && self.values.is_none()
    }
}

impl StringShape<'_> {
    fn and(&mut self, other: &Self) {
        self.constraint.and(&other.constraint);
        self.at = self.at.or(other.at);
        add(&mut self.formats, &other.formats);
    }
}

impl<'a> ArrayShape<'a> {
    pub(super) fn item(&self, index: usize) -> &Conjunction<'a> {
        self.prefix.get(index).unwrap_or(&self.rest)
    }

    fn and(&mut self, other: &Self) {
        let n = self.prefix.len().max(other.prefix.len());
        self.prefix = (0..n)
            .map(|index| {
                let mut terms = self.item(index).clone();
                add(&mut terms, other.item(index));
                terms
            })
            .collect();
        add(&mut self.rest, &other.rest);
        self.has_rest_schema |= other.has_rest_schema;
        self.is_evaluated |= other.is_evaluated;
        self.count.and(&other.count);
        self.contains.extend(other.contains.iter().cloned());
        self.unique = self.unique.or(other.unique);
    }
}

impl<'a> ObjectShape<'a> {
    fn and(&mut self, other: &Self) {
        self.blocks.extend(other.blocks.iter().cloned());
        add(&mut self.required, &other.required);
        add(&mut self.names, &other.names);
        self.count.and(&other.count);
    }

    pub(super) fn require(&mut self, name: &'a str) {
        add(&mut self.required, &[name]);
    }

    pub(super) fn property_names(&self) -> Vec<&'a str> {
        let named = self.blocks.iter().flat_map(|block| block.properties.iter().map(|&(name, _)| name));
        let mut seen = std::collections::HashSet::new();
        named.chain(self.required.iter().copied()).filter(|name| seen.insert(*name)).collect()
    }
}

/// Returns true if two values are equal. Numbers are compared by value if that is exact.
pub(super) fn is_same(one: &JsonValue, other: &JsonValue) -> bool {
    match (&one.kind, &other.kind) {
        (JsonKind::Number(one, text), JsonKind::Number(other, other_text)) => {
            text == other_text || one.total_cmp(other).is_eq() && one.abs() < number::LARGEST
        }
        (JsonKind::Array(one), JsonKind::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        (JsonKind::Object(mine), JsonKind::Object(theirs)) => {
            let is_in = |(name, value): &(String, JsonValue)| other.get(name).is_some_and(|other| is_same(value, other));
            let is_in_mine = |(name, _): &(String, JsonValue)| one.get(name).is_some();
            mine.iter().all(is_in) && theirs.iter().all(is_in_mine)
        }
        (one, other) => one == other,
    }
}

pub(super) fn type_of(value: &JsonValue) -> Types {
    match &value.kind {
        JsonKind::Null => NULL,
        JsonKind::Bool(_) => BOOLEAN,
        JsonKind::Number(number, _) if number.fract() == 0.0 => INTEGER,
        JsonKind::Number(..) => FRACTION,
        JsonKind::String(_) => STRING,
        JsonKind::Array(_) => ARRAY,
        JsonKind::Object(_) => OBJECT,
    }
}
