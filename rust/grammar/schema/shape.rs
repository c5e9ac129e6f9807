//! What is asked of a value, type by type.

use std::rc::Rc;

use super::super::json::{Value, ValueKind};
use super::number;
use super::pattern::Node;

/// Types, as bits. An integer is a number without a fraction; [`FRACTION`] stands for the other numbers.
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

/// A schema that a value must fit, or must not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) schema: &'a Value,
    pub(super) is_negated: bool,
}

/// Schemas that a value must all fit, each once; of none, it may be anything.
pub(super) type Parts<'a> = Vec<Part<'a>>;

pub(super) static NEVER: Value = Value { at: 0, kind: ValueKind::Bool(false) };
pub(super) static BOOLEANS: [Value; 2] =
    [Value { at: 0, kind: ValueKind::Bool(false) }, Value { at: 0, kind: ValueKind::Bool(true) }];

pub(super) fn part(schema: &Value) -> Parts<'_> {
    vec![Part { schema, is_negated: false }]
}

/// Those of `more` that are not among `parts` are added.
pub(super) fn add<'a>(parts: &mut Parts<'a>, more: &[Part<'a>]) {
    for part in more {
        let is_same = |other: &Part| std::ptr::eq(other.schema, part.schema) && other.is_negated == part.is_negated;
        if !parts.iter().any(is_same) {
            parts.push(*part);
        }
    }
}

/// What all values of one way to fit a schema have in common.
#[derive(Debug, Clone)]
pub(super) struct Shape<'a> {
    pub(super) types: Types,
    /// Whether the schema says its types or its values.
    pub(super) is_typed: bool,
    /// The types of which its keywords speak.
    pub(super) mentioned: Types,
    /// The only values that may be written.
    pub(super) values: Option<Vec<&'a Value>>,
    pub(super) number: number::NumberConstraint,
    pub(super) string: Strings<'a>,
    pub(super) array: Arrays<'a>,
    pub(super) object: Objects<'a>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Strings<'a> {
    pub(super) min: usize,
    pub(super) max: Option<usize>,
    /// Patterns, each with whether it must be met, and the place that asks for it.
    pub(super) patterns: Vec<(Rc<Node>, bool, usize)>,
    pub(super) formats: Vec<&'a str>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Arrays<'a> {
    pub(super) prefix: Vec<Parts<'a>>,
    /// What every later item must fit.
    pub(super) rest: Parts<'a>,
    /// Whether the schema says that.
    pub(super) is_rest_said: bool,
    /// Whether no item is left to `unevaluatedItems`.
    pub(super) is_evaluated: bool,
    /// Least items, where the schema says it.
    pub(super) min: Option<usize>,
    pub(super) max: Option<usize>,
    /// What so many items at least, and at most, must fit.
    pub(super) contains: Vec<Contains<'a>>,
    /// The place that asks for items that differ.
    pub(super) unique: Option<usize>,
}

#[derive(Debug, Clone)]
pub(super) struct Contains<'a> {
    pub(super) part: Part<'a>,
    pub(super) min: usize,
    pub(super) max: Option<usize>,
    pub(super) at: usize,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Objects<'a> {
    /// One for each schema that speaks of properties.
    pub(super) blocks: Vec<Block<'a>>,
    pub(super) required: Vec<&'a str>,
    /// What every name must fit.
    pub(super) names: Parts<'a>,
    /// Least properties, and the place that asks for it.
    pub(super) min: Option<(usize, usize)>,
    pub(super) max: Option<usize>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Block<'a> {
    pub(super) properties: Vec<(&'a str, Parts<'a>)>,
    pub(super) patterns: Vec<NamePattern<'a>>,
    /// What a property must fit that is none of these, where the schema says it.
    pub(super) rest: Option<Parts<'a>>,
    /// Whether it says the contrary of a schema, which leaves its properties to `unevaluatedProperties`.
    pub(super) is_contrary: bool,
}

#[derive(Debug, Clone)]
pub(super) struct NamePattern<'a> {
    pub(super) text: &'a str,
    pub(super) node: Rc<Node>,
    pub(super) at: usize,
    pub(super) parts: Parts<'a>,
}

impl Default for Shape<'_> {
    /// Anything.
    fn default() -> Self {
        Self {
            types: ALL,
            is_typed: false,
            mentioned: 0,
            values: None,
            number: number::NumberConstraint::default(),
            string: Strings::default(),
            array: Arrays::default(),
            object: Objects::default(),
        }
    }
}

fn least(one: Option<usize>, other: Option<usize>) -> Option<usize> {
    one.into_iter().chain(other).min()
}

impl Shape<'_> {
    /// The shape of the values that fit both; `None` where there is none at a glance.
    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        let mut both = self.clone();
        both.types &= other.types;
        both.is_typed |= other.is_typed;
        both.mentioned |= other.mentioned;
        if let Some(values) = &other.values {
            match &mut both.values {
                Some(mine) => mine.retain(|value| values.iter().any(|other| is_same(value, other))),
                None => both.values = Some(values.clone()),
            }
        }
        both.number.and(&other.number);
        both.string.and(&other.string);
        both.array.and(&other.array);
        both.object.and(&other.object);
        let is_empty = both.types == 0 || both.values.as_ref().is_some_and(Vec::is_empty);
        (!is_empty).then_some(both)
    }

    /// Whether nothing is asked.
    pub(super) fn is_anything(&self) -> bool {
        self.types == ALL && self.mentioned == 0 && self.values.is_none()
    }
}

impl Strings<'_> {
    fn and(&mut self, other: &Self) {
        self.min = self.min.max(other.min);
        self.max = least(self.max, other.max);
        for pattern in &other.patterns {
            if !self.patterns.iter().any(|(node, must, _)| *node == pattern.0 && *must == pattern.1) {
                self.patterns.push(pattern.clone());
            }
        }
        for format in &other.formats {
            if !self.formats.contains(format) {
                self.formats.push(format);
            }
        }
    }
}

impl<'a> Arrays<'a> {
    /// What the item at this place must fit.
    pub(super) fn item(&self, place: usize) -> &Parts<'a> {
        self.prefix.get(place).unwrap_or(&self.rest)
    }

    fn and(&mut self, other: &Self) {
        let n = self.prefix.len().max(other.prefix.len());
        self.prefix = (0..n)
            .map(|place| {
                let mut parts = self.item(place).clone();
                add(&mut parts, other.item(place));
                parts
            })
            .collect();
        add(&mut self.rest, &other.rest);
        self.is_rest_said |= other.is_rest_said;
        self.is_evaluated |= other.is_evaluated;
        self.min = self.min.max(other.min);
        self.max = least(self.max, other.max);
        self.contains.extend(other.contains.iter().cloned());
        self.unique = self.unique.or(other.unique);
    }
}

impl<'a> Objects<'a> {
    fn and(&mut self, other: &Self) {
        self.blocks.extend(other.blocks.iter().cloned());
        for &name in &other.required {
            self.require(name);
        }
        add(&mut self.names, &other.names);
        self.min = self.min.max(other.min);
        self.max = least(self.max, other.max);
    }

    pub(super) fn require(&mut self, name: &'a str) {
        if !self.required.contains(&name) {
            self.required.push(name);
        }
    }

    /// Names of properties that are known, in order, each once.
    pub(super) fn known(&self) -> Vec<&'a str> {
        let named = self.blocks.iter().flat_map(|block| block.properties.iter().map(|&(name, _)| name));
        let mut known = Vec::new();
        let mut is_known = std::collections::HashSet::new();
        known.extend(named.chain(self.required.iter().copied()).filter(|name| is_known.insert(*name)));
        known
    }
}

/// Whether two values are the same: numbers by their value where that is exact.
pub(super) fn is_same(one: &Value, other: &Value) -> bool {
    match (&one.kind, &other.kind) {
        (ValueKind::Number(one, text), ValueKind::Number(other, other_text)) => {
            text == other_text || one.total_cmp(other).is_eq() && one.abs() < number::LARGEST
        }
        (ValueKind::Array(one), ValueKind::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        (ValueKind::Object(mine), ValueKind::Object(others)) => {
            let is_in = |(name, value): &(String, Value)| other.get(name).is_some_and(|other| is_same(value, other));
            let is_in_mine = |(name, _): &(String, Value)| one.get(name).is_some();
            mine.iter().all(is_in) && others.iter().all(is_in_mine)
        }
        (one, other) => one == other,
    }
}

/// The types that a value has.
pub(super) fn type_of(value: &Value) -> Types {
    match &value.kind {
        ValueKind::Null => NULL,
        ValueKind::Bool(_) => BOOLEAN,
        ValueKind::Number(number, _) if number.fract() == 0.0 => INTEGER,
        ValueKind::Number(..) => FRACTION,
        ValueKind::String(_) => STRING,
        ValueKind::Array(_) => ARRAY,
        ValueKind::Object(_) => OBJECT,
    }
}
