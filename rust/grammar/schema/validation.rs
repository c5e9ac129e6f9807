//! Decides whether a value fits a schema, and whether two schemas have no value in common.

use std::rc::Rc;

use super::super::json::{JsonKind, JsonValue};
use super::super::parse_error::excerpt;
use super::alternatives::{SchemaAlternatives, SchemaExpander};
use super::automaton::{Dfa, StringConstraint};
use super::shape::{
    ARRAY, BOOLEAN, Conjunction, FRACTION, INTEGER, NULL, NamePattern, OBJECT, ObjectShape, STRING, ValueShape, add, is_same,
    type_of,
};
use super::{Result, refuse, refuse_at};

const MAX_DISJOINT_DEPTH: usize = 6;

impl<'a> SchemaExpander<'a> {
    /// Returns true if it is certain that no value fits both schemas.
    pub(super) fn is_disjoint(
        &mut self,
        one: &SchemaAlternatives<'a>,
        other: &SchemaAlternatives<'a>,
        depth: usize,
    ) -> Result<bool> {
        if !one.is_exact || !other.is_exact {
            return Ok(false);
        }
        for mine in &one.shapes {
            for theirs in &other.shapes {
                self.count_work(1, self.root)?;
                if let Some(both) = mine.and(theirs)
                    && !self.is_empty(&both, depth)?
                {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Returns true if it is certain that no value fits.
    fn is_empty(&mut self, shape: &ValueShape<'a>, depth: usize) -> Result<bool> {
        self.count_work(10, self.root)?;
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
        if types & STRING != 0 && !string.constraint.length.is_empty() {
            let has_patterns = !string.constraint.patterns.is_empty();
            self.count_work(if has_patterns { 1_000 } else { 0 }, self.root)?;
            let is_empty = |dfa: Dfa| dfa.iter().all(|state| !state.may_end);
            if !has_patterns || !string.constraint.to_dfa().is_ok_and(is_empty) {
                return Ok(false);
            }
        }
        if types & ARRAY != 0 {
            let mut is_empty = array.count.is_empty();
            for index in 0..array.count.min().min(array.prefix.len() + 1) {
                is_empty = is_empty || self.is_never(&array.item(index).clone(), depth)?;
            }
            if !is_empty {
                return Ok(false);
            }
        }
        if types & OBJECT != 0 {
            let min = object.count.min().max(object.required.len());
            let mut is_empty = object.count.max.is_some_and(|max| min > max);
            for name in &object.required {
                is_empty = is_empty || self.is_never(&property_conjunction(object, name)?, depth)?;
            }
            return Ok(is_empty);
        }
        Ok(true)
    }

    fn is_never(&mut self, terms: &Conjunction<'a>, depth: usize) -> Result<bool> {
        if depth > MAX_DISJOINT_DEPTH {
            return Ok(false);
        }
        let alternatives = self.expand_all(terms)?;
        for shape in &alternatives.shapes {
            if !self.is_empty(shape, depth + 1)? {
                return Ok(false);
            }
        }
        Ok(alternatives.is_exact)
    }

    pub(super) fn fits_all(&mut self, value: &'a JsonValue, terms: &Conjunction<'a>) -> Result<bool> {
        for shape in self.expand_all(terms)?.shapes {
            if self.fits(value, &shape)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn fits(&mut self, value: &'a JsonValue, shape: &ValueShape<'a>) -> Result<bool> {
        self.count_work(1, value)?;
        let is_listed = shape.values.as_ref().is_none_or(|values| values.iter().any(|other| is_same(value, other)));
        if type_of(value) & shape.types == 0 || !is_listed {
            return Ok(false);
        }
        match &value.kind {
            JsonKind::Null | JsonKind::Bool(_) => Ok(true),
            JsonKind::Number(number, _) => Ok(shape.number.fits(*number)),
            JsonKind::String(text) => {
                self.count_work(text.len() * shape.string.constraint.patterns.len(), value)?;
                shape.string.constraint.fits(text).or_else(|message| refuse(value, message))
            }
            JsonKind::Array(items) => {
                let array = &shape.array;
                if !array.count.contains(items.len()) {
                    return Ok(false);
                }
                for (index, item) in items.iter().enumerate() {
                    self.count_work(index, value)?;
                    let is_duplicate = array.unique.is_some() && items[..index].iter().any(|other| is_same(item, other));
                    if is_duplicate || !self.fits_all(item, array.item(index))? {
                        return Ok(false);
                    }
                }
                for contains in &array.contains {
                    let (mut n_fitting, mut n_unfitting) = (0, 0);
                    for item in items {
                        n_fitting += usize::from(self.fits_all(item, &vec![contains.term])?);
                        if contains.count.max.is_some() {
                            n_unfitting += usize::from(self.fits_all(item, &vec![contains.term.negated()])?);
                        }
                    }
                    if n_fitting < contains.count.min() || contains.count.max.is_some_and(|max| items.len() - n_unfitting > max) {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            JsonKind::Object(members) => {
                let object = &shape.object;
                let mut names: Vec<&str> = members.iter().map(|(name, _)| &**name).collect();
                names.sort_unstable();
                names.dedup();
                // An object with a repeated name is ambiguous and does not count as fitting.
                if !object.count.contains(names.len())
                    || names.len() < members.len()
                    || object.required.iter().any(|name| names.binary_search(name).is_err())
                {
                    return Ok(false);
                }
                for (name, member) in members {
                    if !self.fits_all(member, &property_conjunction(object, name)?)? || !self.fits_name(name, &object.names)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    pub(super) fn fits_name(&mut self, name: &str, terms: &Conjunction<'a>) -> Result<bool> {
        let is_name = |value: &JsonValue| matches!(&value.kind, JsonKind::String(text) if text == name);
        for shape in self.expand_all(terms)?.shapes {
            let is_listed = shape.values.as_ref().is_none_or(|values| values.iter().any(|value| is_name(value)));
            if shape.types & STRING != 0
                && is_listed
                && shape.string.constraint.fits(name).or_else(|message| refuse_at(0, message))?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

pub(super) fn property_conjunction<'a>(object: &ObjectShape<'a>, name: &str) -> Result<Conjunction<'a>> {
    let mut terms = Conjunction::new();
    for block in &object.blocks {
        let property = block.properties.iter().rev().find(|(other, _)| *other == name);
        let mut is_evaluated = property.is_some();
        if let Some((_, more)) = property {
            add(&mut terms, more);
        }
        for pattern in &block.patterns {
            if fits_pattern(pattern, name)? {
                is_evaluated = true;
                add(&mut terms, &pattern.terms);
            }
        }
        block.rest.iter().filter(|_| !is_evaluated).for_each(|rest| add(&mut terms, rest));
    }
    Ok(terms)
}

pub(super) fn fits_pattern(pattern: &NamePattern, name: &str) -> Result<bool> {
    let constraint = StringConstraint { patterns: vec![(Rc::clone(&pattern.node), true)], ..StringConstraint::default() };
    let refuse = |reason| refuse_at(pattern.at, format!("the pattern {:?} is not supported: {reason}", excerpt(pattern.text)));
    constraint.fits(name).or_else(refuse)
}
