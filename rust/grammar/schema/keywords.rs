use std::rc::Rc;

use super::super::json::{Value, ValueKind};
use super::super::parse_error::excerpt;
use super::pattern::{self, Node};
use super::shape::{
    ARRAY, BOOLEAN, Block, Contains, CountRange, INTEGER, NULL, NUMBER, NamePattern, OBJECT, Part, STRING, Shape, Types, is_same,
    part,
};
use super::{MAX_NAME_BYTES, MAX_PATTERN_BYTES, MAX_PROPERTIES, Result, ensure, refuse, refuse_at};

/// Constraints of a schema without those that it refers to or combines; `None` if no value fits.
pub(super) fn own_shape(schema: &Value) -> Result<Option<Shape<'_>>> {
    let mut shape = Shape::anything();
    if let Some(value) = schema.get("type").filter(|value| value.kind != ValueKind::Null) {
        shape.types = types(value)?;
        shape.is_typed = true;
    }
    shape.values = values(schema)?;
    shape.is_typed |= shape.values.is_some();
    if shape.values.as_ref().is_some_and(Vec::is_empty) {
        return Ok(None);
    }
    number(schema, &mut shape)?;
    string(schema, &mut shape)?;
    array(schema, &mut shape)?;
    object(schema, &mut shape)?;
    Ok(Some(shape))
}

fn number<'a>(schema: &'a Value, shape: &mut Shape<'a>) -> Result<()> {
    let number = &mut shape.number;
    for name in ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"] {
        let Some((_, bound)) = bound(schema, name)? else { continue };
        let strict = name.starts_with('e');
        if name.ends_with("inimum") { number.at_least(bound, strict) } else { number.at_most(bound, strict) }
    }
    if let (Some((value, least)), Some((_, most))) = (bound(schema, "minimum")?, bound(schema, "maximum")?)
        && least > most
    {
        return refuse(value, format!("minimum is {least}; it must be at most maximum, which is {most}"));
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

fn string<'a>(schema: &'a Value, shape: &mut Shape<'a>) -> Result<()> {
    shape.string.constraint.length = counts(schema, "minLength", "maxLength")?;
    if let Some(pattern) = schema.get("pattern") {
        shape.string.constraint.patterns = lookaheads(pattern)?;
        shape.string.at = Some(pattern.at);
    }
    if let Some(format) = schema.get("format") {
        let name = text(format, "format")?;
        if super::format(name).is_some() {
            shape.string.formats.push(name);
        }
    }
    mention(STRING, shape, schema, &["minLength", "maxLength", "pattern"]);
    shape.mentioned |= if shape.string.formats.is_empty() { 0 } else { STRING };
    Ok(())
}

fn array<'a>(schema: &'a Value, shape: &mut Shape<'a>) -> Result<()> {
    let array = &mut shape.array;
    array.count = counts(schema, "minItems", "maxItems")?;
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
        (array.has_rest_schema, array.is_evaluated) = (true, true);
    }
    if let Some(contains) = schema.get("contains") {
        let mut count = counts(schema, "minContains", "maxContains")?;
        count.min.get_or_insert(1);
        array.contains.push(Contains { part: Part::new(contains), count });
    }
    match schema.get("uniqueItems") {
        Some(Value { kind: ValueKind::Bool(true), at }) => array.unique = Some(*at),
        Some(value) if value.kind != ValueKind::Bool(false) => return refuse(value, "uniqueItems must be true or false"),
        _ => {}
    }
    let keywords = ["items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems", "unevaluatedItems"];
    mention(ARRAY, shape, schema, &keywords);
    Ok(())
}

fn object<'a>(schema: &'a Value, shape: &mut Shape<'a>) -> Result<()> {
    let object = &mut shape.object;
    let mut block = Block::default();
    if let Some(properties) = schema.get("properties") {
        let Some(members) = properties.members() else { return refuse(properties, "properties must be an object") };
        check_n_properties(members.len(), properties.at)?;
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
        Some(rest) if rest.members().is_none() && !matches!(rest.kind, ValueKind::Bool(_)) => {
            return refuse(rest, "additionalProperties must be a schema, true or false");
        }
        rest => block.rest = rest.map(part),
    }
    if !block.properties.is_empty() || !block.patterns.is_empty() || block.rest.is_some() {
        object.blocks.push(block);
    }
    if let Some(required) = schema.get("required") {
        let Some(names) = required.items() else { return refuse(required, "required must be a list of names") };
        check_n_properties(names.len(), required.at)?;
        for name in names {
            let name_text = text(name, "the name of a property")?;
            check_name(name_text, name)?;
            object.require(name_text);
        }
    }
    if let Some(names) = schema.get("propertyNames") {
        object.names = part(names);
    }
    object.count = counts(schema, "minProperties", "maxProperties")?;
    #[rustfmt::skip]
    let keywords = [
        "properties", "patternProperties", "additionalProperties", "required", "propertyNames", "minProperties", "maxProperties",
        "unevaluatedProperties",
    ];
    mention(OBJECT, shape, schema, &keywords);
    Ok(())
}

fn mention(types: Types, shape: &mut Shape, schema: &Value, keywords: &[&str]) {
    shape.mentioned |= if keywords.iter().any(|keyword| schema.get(keyword).is_some()) { types } else { 0 };
}

pub(super) fn check_n_properties(n: usize, at: usize) -> Result<()> {
    ensure(n <= MAX_PROPERTIES, at, || format!("the object has {n} properties; at most {MAX_PROPERTIES} are supported"))
}

fn counts(schema: &Value, min: &str, max: &str) -> Result<CountRange> {
    let (least, most) = (count(schema, min)?, count(schema, max)?);
    let at = schema.get(min).map_or(0, |value| value.at);
    match (least, most) {
        (Some(least), Some(most)) if least > most => {
            refuse_at(at, format!("{min} is {least}; it must be at most {max}, which is {most}"))
        }
        _ => Ok(CountRange { min: least, max: most, at }),
    }
}

pub(super) fn text<'a>(value: &'a Value, name: &str) -> Result<&'a str> {
    value.text().map_or_else(|| refuse(value, format!("{name} must be a string")), Ok)
}

pub(super) fn count(schema: &Value, name: &str) -> Result<Option<usize>> {
    let Some(value) = schema.get(name) else { return Ok(None) };
    let number = value.number().filter(|n| *n >= 0.0 && *n <= f64::from(i32::MAX) && n.fract() == 0.0);
    let count = number.and_then(|number| number.to_string().parse().ok());
    count.map_or_else(|| refuse(value, format!("{name} must be an integer from 0 to {}", i32::MAX)), |count| Ok(Some(count)))
}

pub(super) fn check_name(name: &str, at: &Value) -> Result<()> {
    let message = || format!("the name of this property is longer than {MAX_NAME_BYTES} bytes");
    ensure(name.len() <= MAX_NAME_BYTES, at.at, message)
}

pub(super) fn types(value: &Value) -> Result<Types> {
    let one = |value: &Value| match value.text() {
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

fn values(schema: &Value) -> Result<Option<Vec<&Value>>> {
    let mut values: Option<Vec<&Value>> = match schema.get("enum").map(|value| (value, value.items())) {
        None => None,
        Some((value, None | Some([]))) => return refuse(value, "enum must be a list of at least one value"),
        Some((_, Some(items))) => Some(items.iter().collect()),
    };
    if let Some(value) = schema.get("const") {
        values.get_or_insert_with(|| vec![value]).retain(|other| is_same(value, other));
    }
    Ok(values)
}

fn bound<'a>(schema: &'a Value, name: &str) -> Result<Option<(&'a Value, f64)>> {
    let Some(value) = schema.get(name) else { return Ok(None) };
    let is_low = name == "minimum" || name == "exclusiveMinimum";
    match value.number() {
        None => refuse(value, format!("{name} must be a number")),
        // Absolute values of generated numbers are below 10¹⁵: an upper bound above that is no constraint, nor is a lower bound
        // below −10¹⁵.
        Some(number) if is_low && number > 1e15 || !is_low && number < -1e15 => {
            refuse(value, format!("{name} is {number}; it must be between −10¹⁵ and 10¹⁵"))
        }
        Some(number) => Ok(Some((value, number))),
    }
}

/// Returns the expressions of a pattern, each with whether it must match.
pub(super) fn lookaheads(pattern: &Value) -> Result<Vec<(Rc<Node>, bool)>> {
    let text = text(pattern, "pattern")?;
    check_pattern(text, pattern)?;
    let parts = pattern::read_with_lookaheads(text).or_else(|why| refuse_pattern(text, pattern, &why))?;
    Ok(parts.into_iter().map(|(node, must_match)| (Rc::new(node), must_match)).collect())
}

fn node(text: &str, at: &Value) -> Result<Rc<Node>> {
    check_pattern(text, at)?;
    pattern::read(text).map(Rc::new).or_else(|why| refuse_pattern(text, at, &why))
}

fn check_pattern(text: &str, at: &Value) -> Result<()> {
    let n = text.len();
    ensure(n <= MAX_PATTERN_BYTES, at.at, || format!("the pattern of {n} bytes is longer than {MAX_PATTERN_BYTES} bytes"))
}

fn refuse_pattern<T>(text: &str, at: &Value, why: &str) -> Result<T> {
    refuse(at, format!("the pattern {:?} is invalid or not supported: {why}", excerpt(text)))
}
