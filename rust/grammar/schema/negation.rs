use std::rc::Rc;

use super::super::json::{Value, ValueKind};
use super::alternatives::{Reader, SchemaAlternatives, check_n_alternatives, list, refuse_non_schema};
use super::automaton;
use super::keywords::{count, lookaheads, types};
use super::pattern::Node;
use super::shape::{
    ALL, ARRAY, BOOLEAN, BOOLEANS, Block, Contains, CountRange, NEVER, NUMBER, OBJECT, Part, Parts, STRING, Shape, part, type_of,
};
use super::{Result, refuse};

/// Constraints whose negation is not a schema, or not always.
#[rustfmt::skip]
const NOT_NEGATABLE: [&str; 19] = [
    "multipleOf", "items", "prefixItems", "additionalItems", "contains", "minContains", "maxContains", "uniqueItems",
    "additionalProperties", "patternProperties", "propertyNames", "dependentRequired", "dependentSchemas", "dependencies",
    "unevaluatedProperties", "unevaluatedItems", "if", "then", "else",
];

impl<'a> Reader<'a> {
    pub(super) fn complement(&mut self, schema: &'a Value) -> Result<SchemaAlternatives<'a>> {
        let members = match &schema.kind {
            ValueKind::Bool(true) => return Ok(SchemaAlternatives::none()),
            ValueKind::Bool(false) => return Ok(SchemaAlternatives::anything()),
            ValueKind::Object(members) => members,
            _ => return refuse_non_schema(schema),
        };
        // The schema must also be valid without the negation.
        self.alternatives_of(schema)?;
        let mut alternatives = SchemaAlternatives::none();
        for (keyword, value) in members {
            if let Some(more) = self.negated_keyword(schema, keyword, value)? {
                alternatives.or(&more);
                check_n_alternatives(alternatives.shapes.len(), schema)?;
            }
        }
        alternatives.shapes.retain(|shape| shape.types != 0);
        Ok(alternatives)
    }

    /// `None` if the keyword is no constraint.
    fn negated_keyword(
        &mut self,
        schema: &'a Value,
        keyword: &'a str,
        value: &'a Value,
    ) -> Result<Option<SchemaAlternatives<'a>>> {
        Ok(Some(match keyword {
            "type" if value.kind != ValueKind::Null => SchemaAlternatives::exactly([Shape::typed(ALL & !types(value)?)]),
            "enum" => all_values_except(value.items().unwrap_or_default()),
            "const" => all_values_except(std::slice::from_ref(value)),
            "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum" => {
                let mut shape = Shape::typed(NUMBER);
                let (bound, strict) = (value.number().unwrap_or_default(), !keyword.starts_with('e'));
                if keyword.ends_with("inimum") {
                    shape.number.at_most(bound, strict);
                } else {
                    shape.number.at_least(bound, strict);
                }
                SchemaAlternatives::exactly([shape])
            }
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
                unmet_count(schema, keyword)?
            }
            "pattern" => {
                let negated_pattern = |(node, must_match): (Rc<Node>, bool)| {
                    let mut shape = Shape::typed(STRING);
                    shape.string.constraint.patterns.push((node, !must_match));
                    shape.string.at = Some(value.at);
                    shape
                };
                SchemaAlternatives::exactly(lookaheads(value)?.into_iter().map(negated_pattern))
            }
            "items" if schema.get("prefixItems").is_none() && value.items().is_none() => {
                let mut shape = Shape::typed(ARRAY);
                let count = CountRange { min: Some(1), ..CountRange::default() };
                shape.array.contains.push(Contains { part: Part::new(value).negated(), count });
                SchemaAlternatives::exactly([shape])
            }
            "contains" if schema.get("minContains").is_none() && schema.get("maxContains").is_none() => {
                let mut shape = Shape::typed(ARRAY);
                shape.array.rest = vec![Part::new(value).negated()];
                shape.array.has_rest_schema = true;
                SchemaAlternatives::exactly([shape])
            }
            "properties" => {
                let unmet = |(name, property): &'a (String, Value)| {
                    let mut shape = unmet_property(name, vec![Part::new(property).negated()]);
                    shape.object.require(name);
                    shape
                };
                SchemaAlternatives::exactly(value.members().unwrap_or_default().iter().map(unmet))
            }
            "required" => {
                let names = value.items().unwrap_or_default().iter().filter_map(Value::text);
                SchemaAlternatives::exactly(names.map(|name| unmet_property(name, part(&NEVER))))
            }
            "allOf" => self.of_any(list(schema, "allOf")?.iter().map(|part| Part::new(part).negated()), value)?,
            "anyOf" => self.not_any_of(list(schema, "anyOf")?)?,
            "oneOf" => self.not_one_of(list(schema, "oneOf")?, schema)?,
            "not" => drop_annotations((*self.alternatives_of(value)?).clone(), value)?,
            "$ref" => (*self.negated(self.target(value)?)?).clone(),
            "if" if schema.get("then").is_none() && schema.get("else").is_none() => return Ok(None),
            "then" | "else" if schema.get("if").is_none() => return Ok(None),
            "additionalProperties" | "unevaluatedProperties" | "unevaluatedItems" if value.kind == ValueKind::Bool(true) => {
                return Ok(None);
            }
            "uniqueItems" if value.kind == ValueKind::Bool(false) => return Ok(None),
            _ if NOT_NEGATABLE.contains(&keyword) => return refuse_negation(value, keyword),
            _ => return Ok(None),
        }))
    }

    fn not_any_of(&mut self, parts: &'a [Value]) -> Result<SchemaAlternatives<'a>> {
        self.of_all(&parts.iter().map(|schema| Part::new(schema).negated()).collect::<Parts>())
    }

    fn not_one_of(&mut self, parts: &'a [Value], at: &Value) -> Result<SchemaAlternatives<'a>> {
        let mut alternatives = self.not_any_of(parts)?;
        for (one, part) in parts.iter().enumerate() {
            for other in &parts[one + 1..] {
                let (mine, theirs) = (self.alternatives_of(part)?, self.alternatives_of(other)?);
                let both = self.intersection(&mine, &theirs, at)?;
                alternatives.or(&drop_annotations(both, at)?);
                check_n_alternatives(alternatives.shapes.len(), at)?;
            }
        }
        Ok(alternatives)
    }
}

fn refuse_negation<T>(at: &Value, keyword: &str) -> Result<T> {
    refuse(at, format!("{keyword} cannot be negated; do not use it within not, if, or overlapping schemas of oneOf"))
}

/// `unevaluatedProperties` and `unevaluatedItems` ignore annotations inside `not`.
fn drop_annotations<'a>(mut alternatives: SchemaAlternatives<'a>, at: &Value) -> Result<SchemaAlternatives<'a>> {
    for shape in &mut alternatives.shapes {
        if !shape.array.prefix.is_empty() {
            return refuse_negation(at, "prefixItems");
        }
        shape.array.is_evaluated = false;
        shape.object.blocks.iter_mut().for_each(|block| block.is_negation = true);
    }
    Ok(alternatives)
}

/// The objects whose property of this name, if present, fits `parts`.
pub(super) fn unmet_property<'a>(name: &'a str, parts: Parts<'a>) -> Shape<'a> {
    let mut shape = Shape::typed(OBJECT);
    let block = Block { properties: vec![(name, parts)], is_negation: true, ..Block::default() };
    shape.object.blocks.push(block);
    shape
}

fn unmet_count<'a>(schema: &'a Value, keyword: &str) -> Result<SchemaAlternatives<'a>> {
    let n = count(schema, keyword)?.unwrap_or(0);
    let is_min = keyword.starts_with("min");
    if is_min && n == 0 {
        return Ok(SchemaAlternatives::none());
    }
    let at = schema.get(keyword).map_or(0, |value| value.at);
    let count = if is_min {
        CountRange { max: Some(n - 1), ..CountRange::default() }
    } else {
        CountRange { min: Some(n + 1), max: None, at }
    };
    let mut shape = Shape::typed(0);
    match &keyword[3..] {
        "Length" => (shape.types, shape.string.constraint.length) = (STRING, count),
        "Items" => (shape.types, shape.array.count) = (ARRAY, count),
        _ => (shape.types, shape.object.count) = (OBJECT, count),
    }
    Ok(SchemaAlternatives::exactly([shape]))
}

fn all_values_except<'a>(values: &'a [Value]) -> SchemaAlternatives<'a> {
    let mut named_types = values.iter().fold(0, |types, value| types | type_of(value));
    named_types |= if named_types & NUMBER != 0 { NUMBER } else { 0 };
    let mut alternatives =
        SchemaAlternatives { shapes: vec![Shape::typed(ALL & !named_types)], is_exact: named_types & (ARRAY | OBJECT) == 0 };
    if named_types & BOOLEAN != 0 {
        let rest: Vec<&'a Value> = BOOLEANS.iter().filter(|value| values.iter().all(|other| other.kind != value.kind)).collect();
        if !rest.is_empty() {
            alternatives.shapes.push(Shape { values: Some(rest), ..Shape::typed(BOOLEAN) });
        }
    }
    if named_types & STRING != 0 {
        let mut shape = Shape::typed(STRING);
        let names = values.iter().filter_map(Value::text).map(automaton::literal);
        shape.string.constraint.patterns.push((Rc::new(Node::Choice(names.collect())), false));
        alternatives.shapes.push(shape);
    }
    let mut numbers: Vec<f64> = values.iter().filter_map(Value::number).collect();
    numbers.sort_by(f64::total_cmp);
    if numbers.iter().any(|number| number.abs() >= 1e15) {
        alternatives.is_exact = false;
    } else if !numbers.is_empty() {
        for index in 0..=numbers.len() {
            let mut shape = Shape::typed(NUMBER);
            if index > 0 {
                shape.number.at_least(numbers[index - 1], true);
            }
            if index < numbers.len() {
                shape.number.at_most(numbers[index], true);
            }
            alternatives.shapes.push(shape);
        }
    }
    alternatives
}
