//! Computes the alternatives that do not fit a schema, for `not`, `if` and `oneOf`.

use std::rc::Rc;

use super::super::json::{JsonKind, JsonValue};
use super::alternatives::{SchemaAlternatives, SchemaExpander, check_n_alternatives, refuse_non_schema, schema_list};
use super::automaton;
use super::keywords::{read_count, read_pattern, read_types};
use super::pattern::PatternNode;
use super::shape::{
    ALL, ARRAY, BOOLEAN, BOOLEANS, Conjunction, ContainsShape, CountRange, NEVER, NUMBER, OBJECT, PropertyBlock, STRING,
    SchemaTerm, ValueShape, conjunction_of, type_of,
};
use super::{Result, refuse};

/// Constraints whose negation is not a schema, or not always.
#[rustfmt::skip]
const NOT_NEGATABLE: [&str; 19] = [
    "multipleOf", "items", "prefixItems", "additionalItems", "contains", "minContains", "maxContains", "uniqueItems",
    "additionalProperties", "patternProperties", "propertyNames", "dependentRequired", "dependentSchemas", "dependencies",
    "unevaluatedProperties", "unevaluatedItems", "if", "then", "else",
];

impl<'a> SchemaExpander<'a> {
    pub(super) fn negate(&mut self, schema: &'a JsonValue) -> Result<SchemaAlternatives<'a>> {
        let members = match &schema.kind {
            JsonKind::Bool(true) => return Ok(SchemaAlternatives::none()),
            JsonKind::Bool(false) => return Ok(SchemaAlternatives::anything()),
            JsonKind::Object(members) => members,
            _ => return refuse_non_schema(schema),
        };
        // The schema must also be valid without the negation.
        self.expand(schema)?;
        let mut alternatives = SchemaAlternatives::none();
        for (keyword, value) in members {
            if let Some(more) = self.negate_keyword(schema, keyword, value)? {
                alternatives.extend(&more);
                check_n_alternatives(alternatives.shapes.len(), schema)?;
            }
        }
        alternatives.shapes.retain(|shape| shape.types != 0);
        Ok(alternatives)
    }

    /// Returns the values that do not fit a keyword; `None` if the keyword is no constraint.
    fn negate_keyword(
        &mut self,
        schema: &'a JsonValue,
        keyword: &'a str,
        value: &'a JsonValue,
    ) -> Result<Option<SchemaAlternatives<'a>>> {
        Ok(Some(match keyword {
            "type" if value.kind != JsonKind::Null => SchemaAlternatives::exactly([ValueShape::typed(ALL & !read_types(value)?)]),
            "enum" => all_values_except(value.items().unwrap_or_default()),
            "const" => all_values_except(std::slice::from_ref(value)),
            "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum" => {
                let mut shape = ValueShape::typed(NUMBER);
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
                let negated_pattern = |(node, must_match): (Rc<PatternNode>, bool)| {
                    let mut shape = ValueShape::typed(STRING);
                    shape.string.constraint.patterns.push((node, !must_match));
                    shape.string.at = Some(value.at);
                    shape
                };
                SchemaAlternatives::exactly(read_pattern(value)?.into_iter().map(negated_pattern))
            }
            "items" if schema.get("prefixItems").is_none() && value.items().is_none() => {
                let mut shape = ValueShape::typed(ARRAY);
                let count = CountRange { min: Some(1), ..CountRange::default() };
                shape.array.contains.push(ContainsShape { term: SchemaTerm::new(value).negated(), count });
                SchemaAlternatives::exactly([shape])
            }
            "contains" if schema.get("minContains").is_none() && schema.get("maxContains").is_none() => {
                let mut shape = ValueShape::typed(ARRAY);
                shape.array.rest = vec![SchemaTerm::new(value).negated()];
                shape.array.has_rest_schema = true;
                SchemaAlternatives::exactly([shape])
            }
            "properties" => {
                let unmet = |(name, property): &'a (String, JsonValue)| {
                    let mut shape = unmet_property(name, vec![SchemaTerm::new(property).negated()]);
                    shape.object.require(name);
                    shape
                };
                SchemaAlternatives::exactly(value.members().unwrap_or_default().iter().map(unmet))
            }
            "required" => {
                let names = value.items().unwrap_or_default().iter().filter_map(JsonValue::text);
                SchemaAlternatives::exactly(names.map(|name| unmet_property(name, conjunction_of(&NEVER))))
            }
            "allOf" => {
                self.expand_any(schema_list(schema, "allOf")?.iter().map(|schema| SchemaTerm::new(schema).negated()), value)?
            }
            "anyOf" => self.negate_any_of(schema_list(schema, "anyOf")?)?,
            "oneOf" => self.negate_one_of(schema_list(schema, "oneOf")?, schema)?,
            "not" => without_annotations((*self.expand(value)?).clone(), value)?,
            "$ref" => (*self.expand_negated(self.resolve_reference(value)?)?).clone(),
            "if" if schema.get("then").is_none() && schema.get("else").is_none() => return Ok(None),
            "then" | "else" if schema.get("if").is_none() => return Ok(None),
            "additionalProperties" | "unevaluatedProperties" | "unevaluatedItems" if value.kind == JsonKind::Bool(true) => {
                return Ok(None);
            }
            "uniqueItems" if value.kind == JsonKind::Bool(false) => return Ok(None),
            _ if NOT_NEGATABLE.contains(&keyword) => return refuse_negation(value, keyword),
            _ => return Ok(None),
        }))
    }

    fn negate_any_of(&mut self, schemas: &'a [JsonValue]) -> Result<SchemaAlternatives<'a>> {
        self.expand_all(&schemas.iter().map(|schema| SchemaTerm::new(schema).negated()).collect::<Conjunction>())
    }

    fn negate_one_of(&mut self, schemas: &'a [JsonValue], at: &JsonValue) -> Result<SchemaAlternatives<'a>> {
        let mut alternatives = self.negate_any_of(schemas)?;
        for (one, schema) in schemas.iter().enumerate() {
            for other in &schemas[one + 1..] {
                let (mine, theirs) = (self.expand(schema)?, self.expand(other)?);
                let both = self.intersect(&mine, &theirs, at)?;
                alternatives.extend(&without_annotations(both, at)?);
                check_n_alternatives(alternatives.shapes.len(), at)?;
            }
        }
        Ok(alternatives)
    }
}

fn refuse_negation<T>(at: &JsonValue, keyword: &str) -> Result<T> {
    refuse(at, format!("{keyword} cannot be negated; do not use it within not, if, or overlapping schemas of oneOf"))
}

/// Removes annotations, which `unevaluatedProperties` and `unevaluatedItems` ignore inside `not`.
fn without_annotations<'a>(mut alternatives: SchemaAlternatives<'a>, at: &JsonValue) -> Result<SchemaAlternatives<'a>> {
    for shape in &mut alternatives.shapes {
        if !shape.array.prefix.is_empty() {
            return refuse_negation(at, "prefixItems");
        }
        shape.array.is_evaluated = false;
        shape.object.blocks.iter_mut().for_each(|block| block.is_negation = true);
    }
    Ok(alternatives)
}

/// Returns the objects whose property of this name, if present, fits `terms`.
pub(super) fn unmet_property<'a>(name: &'a str, terms: Conjunction<'a>) -> ValueShape<'a> {
    let mut shape = ValueShape::typed(OBJECT);
    let block = PropertyBlock { properties: vec![(name, terms)], is_negation: true, ..PropertyBlock::default() };
    shape.object.blocks.push(block);
    shape
}

fn unmet_count<'a>(schema: &'a JsonValue, keyword: &str) -> Result<SchemaAlternatives<'a>> {
    let n = read_count(schema, keyword)?.unwrap_or(0);
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
    let mut shape = ValueShape::typed(0);
    match &keyword[3..] {
        "Length" => (shape.types, shape.string.constraint.length) = (STRING, count),
        "Items" => (shape.types, shape.array.count) = (ARRAY, count),
        _ => (shape.types, shape.object.count) = (OBJECT, count),
    }
    Ok(SchemaAlternatives::exactly([shape]))
}

fn all_values_except<'a>(values: &'a [JsonValue]) -> SchemaAlternatives<'a> {
    let mut named_types = values.iter().fold(0, |types, value| types | type_of(value));
    named_types |= if named_types & NUMBER != 0 { NUMBER } else { 0 };
    let mut alternatives =
        SchemaAlternatives { shapes: vec![ValueShape::typed(ALL & !named_types)], is_exact: named_types & (ARRAY | OBJECT) == 0 };
    if named_types & BOOLEAN != 0 {
        let rest: Vec<&'a JsonValue> =
            BOOLEANS.iter().filter(|value| values.iter().all(|other| other.kind != value.kind)).collect();
        if !rest.is_empty() {
            alternatives.shapes.push(ValueShape { values: Some(rest), ..ValueShape::typed(BOOLEAN) });
        }
    }
    if named_types & STRING != 0 {
        let mut shape = ValueShape::typed(STRING);
        let names = values.iter().filter_map(JsonValue::text).map(automaton::exactly);
        shape.string.constraint.patterns.push((Rc::new(PatternNode::Choice(names.collect())), false));
        alternatives.shapes.push(shape);
    }
    let mut numbers: Vec<f64> = values.iter().filter_map(JsonValue::number).collect();
    numbers.sort_by(f64::total_cmp);
    if numbers.iter().any(|number| number.abs() >= 1e15) {
        alternatives.is_exact = false;
    } else if !numbers.is_empty() {
        for index in 0..=numbers.len() {
            let mut shape = ValueShape::typed(NUMBER);
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
