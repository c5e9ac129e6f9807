//! Reads the keywords of a single schema, and reports invalid ones.

use std::rc::Rc;

use super::super::json::{JsonKind, JsonValue};
use super::super::parse_error::excerpt;
use super::pattern::{self, PatternNode};
use super::shape::{
    ARRAY, BOOLEAN, ContainsShape, CountRange, INTEGER, NULL, NUMBER, NamePattern, OBJECT, PropertyBlock, STRING, SchemaTerm,
    Types, ValueShape, conjunction_of, is_same,
};
use super::{MAX_NAME_BYTES, MAX_PATTERN_BYTES, MAX_PROPERTIES, Result, ensure, refuse, refuse_at};

/// Reads a schema's own constraints, without referenced and combined schemas; `None` if no value fits.
pub(super) fn own_shape(schema: &JsonValue) -> Result<Option<ValueShape<'_>>> {
    let mut shape = ValueShape::anything();
    if let Some(value) = schema.get("type").filter(|value| value.kind != JsonKind::Null) {
        shape.types = read_types(value)?;
        shape.is_typed = true;
    }
    shape.values = read_values(schema)?;
    shape.is_typed |= shape.values.is_some();
    if shape.values.as_ref().is_some_and(Vec::is_empty) {
        return Ok(None);
    }
    read_number(schema, &mut shape)?;
    read_string(schema, &mut shape)?;
    read_array(schema, &mut shape)?;
    read_object(schema, &mut shape)?;
    Ok(Some(shape))
}

fn read_number<'a>(schema: &'a JsonValue, shape: &mut ValueShape<'a>) -> Result<()> {
    let number = &mut shape.number;
    for name in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"] {
        let Some((_, bound)) = read_bound(schema, name)? else { continue };
        let strict = name.starts_with('e');
        if name.ends_with("inimum") { number.at_least(bound, strict) } else { number.at_most(bound, strict) }
    }
    if let (Some((value, min)), Some((_, max))) = (read_bound(schema, "minimum")?, read_bound(schema, "maximum")?)
        && min > max
    {
        return refuse(value, format!("minimum is {min}; it must be at most maximum, which is {max}"));
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

fn read_string<'a>(schema: &'a JsonValue, shape: &mut ValueShape<'a>) -> Result<()> {
    shape.string.constraint.length = read_count_range(schema, "minLength", "maxLength")?;
    if let Some(pattern) = schema.get("pattern") {
        shape.string.constraint.patterns = read_pattern(pattern)?;
        shape.string.at = Some(pattern.at);
    }
    if let Some(format) = schema.get("format") {
        let name = expect_text(format, "format")?;
        if super::format(name).is_some() {
            shape.string.formats.push(name);
        }
    }
    mark_mentioned(STRING, shape, schema, &["minLength", "maxLength", "pattern"]);
    shape.mentioned |= if shape.string.formats.is_empty() { 0 } else { STRING };
    Ok(())
}

fn read_array<'a>(schema: &'a JsonValue, shape: &mut ValueShape<'a>) -> Result<()> {
    let array = &mut shape.array;
    array.count = read_count_range(schema, "minItems", "maxItems")?;
    let items = schema.get("items");
    let listed = items.filter(|items| items.items().is_some());
    let prefix = schema.get("prefixItems").or(listed);
    if let Some(prefix) = prefix {
        let Some(prefix) = prefix.items() else { return refuse(prefix, "prefixItems must be a list of schemas") };
        array.prefix = prefix.iter().map(conjunction_of).collect();
    }
    let rest = if listed.is_some() { schema.get("additionalItems") } else { items };
    if let Some(rest) = rest {
        array.rest = conjunction_of(rest);
        (array.has_rest_schema, array.is_evaluated) = (true, true);
    }
    if let Some(contains) = schema.get("contains") {
        let mut count = read_count_range(schema, "minContains", "maxContains")?;
        count.min.get_or_insert(1);
        array.contains.push(ContainsShape { term: SchemaTerm::new(contains), count });
    }
    match schema.get("uniqueItems") {
        Some(JsonValue { kind: JsonKind::Bool(true), at }) => array.unique = Some(*at),
        Some(value) if value.kind != JsonKind::Bool(false) => return refuse(value, "uniqueItems must be true or false"),
        _ => {}
    }
    let keywords = ["items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems", "unevaluatedItems"];
    mark_mentioned(ARRAY, shape, schema, &keywords);
    Ok(())
}

fn read_object<'a>(schema: &'a JsonValue, shape: &mut ValueShape<'a>) -> Result<()> {
    let object = &mut shape.object;
    let mut block = PropertyBlock::default();
    if let Some(properties) = schema.get("properties") {
        let Some(members) = properties.members() else { return refuse(properties, "properties must be an object") };
        check_n_properties(members.len(), properties.at)?;
        for (name, property) in members {
            check_name(name, property)?;
            block.properties.push((name, conjunction_of(property)));
        }
    }
    if let Some(patterns) = schema.get("patternProperties") {
        let Some(members) = patterns.members() else { return refuse(patterns, "patternProperties must be an object") };
        for (text, schema) in members {
            block.patterns.push(NamePattern {
                text,
                node: parse_name_pattern(text, schema)?,
                at: schema.at,
                terms: conjunction_of(schema),
            });
        }
    }
    match schema.get("additionalProperties") {
        Some(rest) if rest.members().is_none() && !matches!(rest.kind, JsonKind::Bool(_)) => {
            return refuse(rest, "additionalProperties must be a schema, true or false");
        }
        rest => block.rest = rest.map(conjunction_of),
    }
    if !block.properties.is_empty() || !block.patterns.is_empty() || block.rest.is_some() {
        object.blocks.push(block);
    }
    if let Some(required) = schema.get("required") {
        let Some(names) = required.items() else { return refuse(required, "required must be a list of names") };
        check_n_properties(names.len(), required.at)?;
        for name in names {
            let name_text = expect_text(name, "the name of a property")?;
            check_name(name_text, name)?;
            object.require(name_text);
        }
    }
    if let Some(names) = schema.get("propertyNames") {
        object.names = conjunction_of(names);
    }
    object.count = read_count_range(schema, "minProperties", "maxProperties")?;
    #[rustfmt::skip]
    let keywords = [
        "properties", "patternProperties", "additionalProperties", "required", "propertyNames", "minProperties", "maxProperties",
        "unevaluatedProperties",
    ];
    mark_mentioned(OBJECT, shape, schema, &keywords);
    Ok(())
}

fn mark_mentioned(types: Types, shape: &mut ValueShape, schema: &JsonValue, keywords: &[&str]) {
    shape.mentioned |= if keywords.iter().any(|keyword| schema.get(keyword).is_some()) { types } else { 0 };
}

pub(super) fn check_n_properties(n: usize, at: usize) -> Result<()> {
    ensure(n <= MAX_PROPERTIES, at, || format!("the object has {n} properties; at most {MAX_PROPERTIES} are supported"))
}

fn read_count_range(schema: &JsonValue, min_name: &str, max_name: &str) -> Result<CountRange> {
    let (min, max) = (read_count(schema, min_name)?, read_count(schema, max_name)?);
    let at = schema.get(min_name).map_or(0, |value| value.at);
    match (min, max) {
        (Some(min), Some(max)) if min > max => {
            refuse_at(at, format!("{min_name} is {min}; it must be at most {max_name}, which is {max}"))
        }
        _ => Ok(CountRange { min, max, at }),
    }
}

pub(super) fn expect_text<'a>(value: &'a JsonValue, name: &str) -> Result<&'a str> {
    value.text().map_or_else(|| refuse(value, format!("{name} must be a string")), Ok)
}

pub(super) fn read_count(schema: &JsonValue, name: &str) -> Result<Option<usize>> {
    let Some(value) = schema.get(name) else { return Ok(None) };
    let number = value.number().filter(|n| *n >= 0.0 && *n <= f64::from(i32::MAX) && n.fract() == 0.0);
    let count = number.and_then(|number| number.to_string().parse().ok());
    count.map_or_else(|| refuse(value, format!("{name} must be an integer from 0 to {}", i32::MAX)), |count| Ok(Some(count)))
}

pub(super) fn check_name(name: &str, at: &JsonValue) -> Result<()> {
    let message = || format!("the name of this property is longer than {MAX_NAME_BYTES} bytes");
    ensure(name.len() <= MAX_NAME_BYTES, at.at, message)
}

pub(super) fn read_types(value: &JsonValue) -> Result<Types> {
    let one = |value: &JsonValue| match value.text() {
        Some("null") => Ok(NULL),
        Some("boolean") => Ok(BOOLEAN),
        Some("integer") => Ok(INTEGER),
        Some("number") => Ok(NUMBER),
        Some("string") => Ok(STRING),
        Some("array") => Ok(ARRAY),
        Some("object") => Ok(OBJECT),
        Some(name) => {
            let known = "object, array, string, integer, number, boolean and null";
            refuse(value, format!("unknown type '{}'; the types are {known}", excerpt(name)))
        }
        None => refuse(value, "type must be a string or a list of strings"),
    };
    match value.items() {
        Some([]) => refuse(value, "type must be a string or a list of at least one string"),
        Some(names) => names.iter().try_fold(0, |types, name| Ok(types | one(name)?)),
        None => one(value),
    }
}

fn read_values(schema: &JsonValue) -> Result<Option<Vec<&JsonValue>>> {
    let mut values: Option<Vec<&JsonValue>> = match schema.get("enum").map(|value| (value, value.items())) {
        None => None,
        Some((value, None | Some([]))) => return refuse(value, "enum must be a list of at least one value"),
        Some((_, Some(items))) => Some(items.iter().collect()),
    };
    if let Some(value) = schema.get("const") {
        values.get_or_insert_with(|| vec![value]).retain(|other| is_same(value, other));
    }
    Ok(values)
}

fn read_bound<'a>(schema: &'a JsonValue, name: &str) -> Result<Option<(&'a JsonValue, f64)>> {
    let Some(value) = schema.get(name) else { return Ok(None) };
    let is_low = name == "minimum" || name == "exclusiveMinimum";
    match value.number() {
        None => refuse(value, format!("{name} must be a number")),
        // Absolute values of generated numbers are below 10¹⁵: bounds beyond that are no constraints.
        Some(number) if is_low && number > 1e15 || !is_low && number < -1e15 => {
            refuse(value, format!("{name} is {number}; it must be between −10¹⁵ and 10¹⁵"))
        }
        Some(number) => Ok(Some((value, number))),
    }
}

/// Returns the expressions of a pattern, each with whether it must match.
pub(super) fn read_pattern(pattern: &JsonValue) -> Result<Vec<(Rc<PatternNode>, bool)>> {
    let text = expect_text(pattern, "pattern")?;
    check_pattern(text, pattern)?;
    let nodes = pattern::parse_with_lookaheads(text).or_else(|reason| refuse_pattern(text, pattern, &reason))?;
    Ok(nodes.into_iter().map(|(node, must_match)| (Rc::new(node), must_match)).collect())
}

fn parse_name_pattern(text: &str, at: &JsonValue) -> Result<Rc<PatternNode>> {
    check_pattern(text, at)?;
    pattern::parse(text).map(Rc::new).or_else(|reason| refuse_pattern(text, at, &reason))
}

fn check_pattern(text: &str, at: &JsonValue) -> Result<()> {
    let n = text.len();
    ensure(n <= MAX_PATTERN_BYTES, at.at, || format!("the pattern of {n} bytes is longer than {MAX_PATTERN_BYTES} bytes"))
}

fn refuse_pattern<T>(text: &str, at: &JsonValue, reason: &str) -> Result<T> {
    refuse(at, format!("the pattern {:?} is invalid or not supported: {reason}", excerpt(text)))
}
