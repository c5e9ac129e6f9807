//! Translates the alternatives of a schema to grammar rules.

use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;

use super::super::json::{JsonKind, JsonValue};
use super::alternatives::{SchemaExpander, sole_keyword, sorted_keys};
use super::automaton::{self, StringConstraint};
use super::grammar::{Expr, MAX_TIMES, RuleList, RuleNumber, UNBOUNDED, quote};
use super::keywords::check_n_properties;
use super::pattern;
use super::shape::{
    ARRAY, ArrayShape, BOOLEAN, Conjunction, CountRange, INTEGER, NULL, NUMBER, OBJECT, ObjectShape, STRING, SchemaTerm,
    StringShape, ValueShape, add, conjunction_of,
};
use super::validation::property_conjunction;
use super::{MAX_SCHEMA_DEPTH, Result, ensure, refuse, refuse_at};

/// Maximum counted positions of a list with `contains`.
const MAX_POSITIONS: usize = 256;

const MAX_NAME_PATTERNS: usize = 5;

const MAX_RULES: usize = 1 << 17;

pub(super) struct GrammarWriter<'a> {
    expander: SchemaExpander<'a>,
    rules: RuleList,
    rule_by_conjunction: HashMap<Vec<(usize, bool)>, RuleNumber>,
    pending: VecDeque<(RuleNumber, Conjunction<'a>, usize)>,
}

pub(super) fn write(root: &JsonValue) -> Result<String> {
    let mut writer = GrammarWriter {
        expander: SchemaExpander::new(root),
        rules: RuleList::default(),
        rule_by_conjunction: HashMap::new(),
        pending: VecDeque::new(),
    };
    let first = writer.rules.add_all(1);
    let all = writer.write_conjunction(conjunction_of(root), 0)?;
    writer.rules.set(first, all);
    while let Some((rule, terms, depth)) = writer.pending.pop_front() {
        let body = writer.write_body(&terms, depth)?;
        writer.rules.set(rule, body);
        if writer.rules.len() > MAX_RULES {
            return refuse(root, format!("the schema is too complex: it compiles to more than {MAX_RULES} grammar rules"));
        }
    }
    writer.rules.to_gbnf(first).map_or_else(|| refuse(root, "no JSON value fits this schema"), Ok)
}

impl<'a> GrammarWriter<'a> {
    fn write_conjunction(&mut self, terms: Conjunction<'a>, depth: usize) -> Result<Expr> {
        let mut resolved = Conjunction::new();
        for SchemaTerm { schema, is_negated } in terms {
            let term =
                SchemaTerm { schema: if is_negated { schema } else { self.expander.follow_references(schema)? }, is_negated };
            match (&term.schema.kind, is_negated) {
                (JsonKind::Bool(true), false) | (JsonKind::Bool(false), true) => {}
                (JsonKind::Bool(false), false) | (JsonKind::Bool(true), true) => return Ok(Expr::never()),
                _ => add(&mut resolved, &[term]),
            }
        }
        let Some(first) = resolved.first() else { return Ok(Expr::Named("value")) };
        if depth > MAX_SCHEMA_DEPTH {
            return refuse(first.schema, format!("schemas are nested more than {MAX_SCHEMA_DEPTH} deep"));
        }
        let (rules, pending) = (&mut self.rules, &mut self.pending);
        let rule = *self.rule_by_conjunction.entry(sorted_keys(&resolved)).or_insert_with(|| {
            let rule = rules.add_all(1);
            pending.push_back((rule, resolved, depth));
            rule
        });
        Ok(Expr::Rule(rule))
    }

    fn write_body(&mut self, terms: &Conjunction<'a>, depth: usize) -> Result<Expr> {
        if let &[SchemaTerm { schema, is_negated: false }] = &terms[..]
            && let Some(choices) = sole_keyword(schema, "anyOf").and_then(JsonValue::items)
        {
            // The expander reports errors in the schema.
            self.expander.expand_all(terms)?;
            let choices: Result<_, _> =
                choices.iter().map(|choice| self.write_conjunction(conjunction_of(choice), depth)).collect();
            return Ok(Expr::Choice(choices?));
        }
        let at = terms.first().map_or(0, |term| term.schema.at);
        let alternatives = self.expander.expand_all(terms)?;
        let choices: Result<_, _> = alternatives.shapes.iter().map(|shape| self.write_shape(shape, at, depth)).collect();
        Ok(Expr::Choice(choices?))
    }

    fn write_shape(&mut self, shape: &ValueShape<'a>, at: usize, depth: usize) -> Result<Expr> {
        if let Some(values) = &shape.values {
            let (mut choices, mut written) = (Vec::new(), HashSet::new());
            for value in values {
                let constant = constant_expr(value);
                if self.expander.fits(value, shape)? && written.insert(constant.clone()) {
                    choices.push(constant);
                }
            }
            return Ok(Expr::Choice(choices));
        }
        if shape.is_anything() {
            return Ok(Expr::Named("value"));
        }
        // A schema without `type` has the types that its keywords apply to.
        let narrow = shape.types & shape.mentioned;
        let types = if shape.is_typed || narrow == 0 { shape.types } else { narrow };
        let mut choices = Vec::new();
        if types & OBJECT != 0 {
            choices.push(self.write_object(&shape.object, at, depth)?);
        }
        if types & ARRAY != 0 {
            choices.push(self.write_array(&shape.array, at, depth)?);
        }
        if types & STRING != 0 {
            choices.push(self.write_string(&shape.string, at)?);
        }
        match (types & NUMBER, shape.number.is_anything()) {
            (0, _) => {}
            (INTEGER, true) => choices.push(Expr::Named("integer")),
            (NUMBER, true) => choices.push(Expr::Named("number")),
            (types, _) => choices.push(shape.number.to_expr(types, &mut self.rules).or_else(|reason| refuse_at(at, reason))?),
        }
        if types & BOOLEAN != 0 {
            choices.extend(["true", "false"].map(Expr::text));
        }
        if types & NULL != 0 {
            choices.push(Expr::text("null"));
        }
        Ok(Expr::Choice(choices))
    }

    fn write_string(&mut self, string: &StringShape<'a>, at: usize) -> Result<Expr> {
        let StringConstraint { patterns, length } = &string.constraint;
        if patterns.is_empty() && string.formats.is_empty() {
            if length.min() == 0 && length.max.is_none() {
                return Ok(Expr::Named("string"));
            }
            if length.is_empty() {
                return Ok(Expr::never());
            }
            check_counts(length.min(), length.max, at)?;
            let text = self.rules.repeat(Expr::Named("char"), length.min(), length.max);
            return Ok(Expr::in_quotes(text));
        }
        let position = string.at.unwrap_or(at);
        let mut constraint = string.constraint.clone();
        for pattern in string.formats.iter().filter_map(|format| super::format(format)) {
            let node = pattern::parse(pattern).or_else(|reason| refuse_at(position, reason))?;
            constraint.patterns.push((Rc::new(node), true));
        }
        self.write_texts(&constraint, position)
    }

    fn write_texts(&mut self, constraint: &StringConstraint, at: usize) -> Result<Expr> {
        let dfa = constraint.to_dfa().or_else(|reason| refuse_at(at, format!("the pattern is not supported: {reason}")))?;
        Ok(Expr::in_quotes(self.rules.add_dfa(&dfa)))
    }

    fn write_array(&mut self, array: &ArrayShape<'a>, at: usize, depth: usize) -> Result<Expr> {
        let n_prefix = array.prefix.len();
        // A list with a schema per position has exactly these positions, unless the schema has a keyword for others.
        let CountRange { min, max, .. } = array.count;
        let min = min.unwrap_or(if max.is_none() { n_prefix } else { 0 });
        let is_closed = n_prefix > 0 && !array.has_rest_schema;
        let max = max.into_iter().chain(is_closed.then_some(n_prefix.max(min))).min();
        if let Some(unique) = array.unique.filter(|_| max.is_none_or(|max| max > 1)) {
            return refuse_at(unique, "uniqueItems is only supported if maxItems is at most 1");
        }
        if max.is_some_and(|max| min > max) {
            return Ok(Expr::never());
        }
        check_counts(min, max, at)?;
        let items = if array.contains.is_empty() {
            self.write_items(array, (min, max), depth)?
        } else {
            self.write_counted_items(array, (min, max), at, depth)?
        };
        Ok(Expr::enclosed("[", items, "]"))
    }

    fn write_items(&mut self, array: &ArrayShape<'a>, (min, max): (usize, Option<usize>), depth: usize) -> Result<Expr> {
        let n_prefix = array.prefix.len().min(max.unwrap_or(usize::MAX));
        let rest = self.write_conjunction(array.rest.clone(), depth + 1)?;
        let left = |n: usize| max.map(|max| max - n);
        if max == Some(0) {
            return Ok(Expr::nothing());
        }
        if n_prefix == 0 {
            let more = self.rules.repeat(after_comma(rest.clone()), min.saturating_sub(1), left(1));
            let all = Expr::Sequence(vec![rest, more]);
            return Ok(if min == 0 { Expr::Choice(vec![all, Expr::nothing()]) } else { all });
        }
        let mut all = if left(n_prefix) == Some(0) {
            Expr::nothing()
        } else {
            self.rules.repeat(after_comma(rest), min.saturating_sub(n_prefix), left(n_prefix))
        };
        for position in (0..n_prefix).rev() {
            let item = self.write_conjunction(array.prefix[position].clone(), depth + 1)?;
            let item = if position > 0 { after_comma(item) } else { item };
            all = Expr::Sequence(vec![item, all]);
            if position >= min {
                all = Expr::Choice(vec![all, Expr::nothing()]);
            }
            // Each position is a rule, to avoid nesting.
            all = self.rules.add_rule(all);
        }
        Ok(all)
    }

    fn write_counted_items(
        &mut self,
        array: &ArrayShape<'a>,
        (min, max): (usize, Option<usize>),
        at: usize,
        depth: usize,
    ) -> Result<Expr> {
        let [contains] = &array.contains[..] else {
            return refuse_at(at, "an array with more than one contains is not supported");
        };
        // The first item has no preceding comma, so it is a separate position.
        let n_positions = max.unwrap_or(min.max(array.prefix.len()).max(1));
        let max_fitting = contains.count.max;
        let n_counts = max_fitting.unwrap_or(contains.count.min());
        if n_positions.saturating_mul(n_counts + 1) > MAX_POSITIONS || n_counts > MAX_POSITIONS {
            return refuse_at(
                contains.term.schema.at,
                format!(
                    "contains is not supported for this many items: the number of items times (maxContains + 1) must be at most {MAX_POSITIONS}"
                ),
            );
        }
        // One rule for each number of items and of fitting items so far.
        let n_rows = n_positions + 1;
        let first = self.rules.add_all(n_rows * (n_counts + 1));
        let rule = |position: usize, n: usize| first + position * (n_counts + 1) + n;
        for position in 0..n_rows {
            let is_last = position == n_positions;
            let next = if is_last { position } else { position + 1 };
            let mut fitting = array.item(position).clone();
            add(&mut fitting, &[contains.term]);
            let fitting = self.write_conjunction(fitting, depth + 1)?;
            let mut other = array.item(position).clone();
            if max_fitting.is_some() {
                add(&mut other, &[contains.term.negated()]);
            }
            let other = self.write_conjunction(other, depth + 1)?;
            for n in 0..=n_counts {
                let mut choices = Vec::new();
                if position >= min && n >= contains.count.min() {
                    choices.push(Expr::nothing());
                }
                if !is_last || max.is_none() {
                    let transition = |item: &Expr, n: usize| {
                        let item = if position == 0 { item.clone() } else { after_comma(item.clone()) };
                        Expr::Sequence(vec![item, Expr::Rule(rule(next, n))])
                    };
                    choices.push(transition(&other, n));
                    if n < n_counts {
                        choices.push(transition(&fitting, n + 1));
                    } else if max_fitting.is_none() {
                        choices.push(transition(&fitting, n));
                    }
                }
                self.rules.set(rule(position, n), Expr::Choice(choices));
            }
        }
        Ok(Expr::Rule(rule(0, 0)))
    }

    fn write_object(&mut self, object: &ObjectShape<'a>, at: usize, depth: usize) -> Result<Expr> {
        let names_in_schema = object.property_names();
        check_n_properties(names_in_schema.len(), at)?;
        let mut members = Vec::new();
        for &name in &names_in_schema {
            let terms = property_conjunction(object, name)?;
            let is_required = object.required.contains(&name);
            let is_allowed = object.names.is_empty() || self.expander.fits_name(name, &object.names)?;
            let value = if is_allowed { self.write_conjunction(terms, depth + 1)? } else { Expr::never() };
            members.push((member_expr(Expr::text(quote(name)), value), is_required));
        }
        let extra = self.write_extra_member(object, &names_in_schema, at, depth)?;
        let n_required = object.required.len();
        let CountRange { min, max, at: min_at } = object.count;
        let min = min.filter(|&min| min > n_required).unwrap_or(0);
        if min > names_in_schema.len() + 1 && extra.is_some() {
            return refuse_at(min_at, "minProperties is only supported up to one more than the number of named properties");
        }
        if max.is_some_and(|max| max < n_required.max(min)) {
            return Ok(Expr::never());
        }
        check_counts(min, max, at)?;
        let members = self.write_members(&members, extra.as_ref(), (min, max));
        Ok(Expr::enclosed("{", members, "}"))
    }

    /// Writes the members in their order, without some optional ones, followed by any number of `extra`.
    fn write_members(&mut self, members: &[(Expr, bool)], extra: Option<&Expr>, (min, max): (usize, Option<usize>)) -> Expr {
        // The number of members so far, up to the largest number that the bounds distinguish; at least 0 and 1.
        let n_counts = max.map_or(min, |max| max.min(members.len() + 1)).max(1);
        let first = self.rules.add_all((members.len() + 1) * (n_counts + 1));
        let rule = |position: usize, n: usize| first + position * (n_counts + 1) + n;
        for n in 0..=n_counts {
            let is_full = |n: usize| max.is_some_and(|max| n >= max);
            let separated = |item: &Expr| if n > 0 { after_comma(item.clone()) } else { item.clone() };
            for (position, (member, is_required)) in members.iter().enumerate() {
                let mut choices = Vec::new();
                if !is_full(n) {
                    let next = rule(position + 1, (n + 1).min(n_counts));
                    choices.push(Expr::Sequence(vec![separated(member), Expr::Rule(next)]));
                }
                if !is_required {
                    choices.push(Expr::Rule(rule(position + 1, n)));
                }
                self.rules.set(rule(position, n), Expr::Choice(choices));
            }
            let mut choices = Vec::new();
            if n >= min {
                choices.push(Expr::nothing());
            }
            // Extra members may have the same name, so that only one certainly counts.
            if let Some(extra) = extra.filter(|_| !is_full(n) && n + 1 >= min) {
                let left = max.map(|max| max - n - 1);
                let more = self.rules.repeat(after_comma(extra.clone()), 0, left);
                choices.push(Expr::Sequence(vec![separated(extra), more]));
            }
            self.rules.set(rule(members.len(), n), Expr::Choice(choices));
        }
        Expr::Rule(rule(0, 0))
    }

    /// Writes a member whose name is not in `names_in_schema`, if the schema allows one.
    fn write_extra_member(
        &mut self,
        object: &ObjectShape<'a>,
        names_in_schema: &[&str],
        at: usize,
        depth: usize,
    ) -> Result<Option<Expr>> {
        let blocks = &object.blocks;
        // Negations and keywords that depend on a property do not introduce names.
        let has_names = blocks.iter().any(|block| !block.is_negation && !block.properties.is_empty());
        let is_open = blocks.iter().any(|block| block.rest.is_some()) || !has_names;
        let mut seen = HashSet::new();
        let all_patterns = blocks.iter().flat_map(|block| &block.patterns);
        let patterns: Vec<_> = all_patterns.filter(|pattern| seen.insert(pattern.text)).collect();
        if patterns.len() > MAX_NAME_PATTERNS {
            let n = patterns.len();
            return refuse_at(at, format!("patternProperties has {n} patterns; at most {MAX_NAME_PATTERNS} are supported"));
        }
        let mut choices = Vec::new();
        for matching in 0..1_usize << patterns.len() {
            let is_matching = |text: &str| {
                patterns.iter().position(|pattern| pattern.text == text).is_some_and(|position| matching >> position & 1 == 1)
            };
            if matching == 0 && !is_open {
                continue;
            }
            let mut terms = Conjunction::new();
            for block in blocks {
                let mut is_named = false;
                for pattern in block.patterns.iter().filter(|pattern| is_matching(pattern.text)) {
                    is_named = true;
                    add(&mut terms, &pattern.terms);
                }
                block.rest.iter().filter(|_| !is_named).for_each(|rest| add(&mut terms, rest));
            }
            let value = self.write_conjunction(terms, depth + 1)?;
            if matches!(&value, Expr::Choice(choices) if choices.is_empty()) {
                continue;
            }
            let mut constraint = StringConstraint::default();
            for (position, pattern) in patterns.iter().enumerate() {
                constraint.patterns.push((Rc::clone(&pattern.node), matching >> position & 1 == 1));
            }
            if !names_in_schema.is_empty() {
                let names = names_in_schema.iter().map(|name| automaton::exactly(name)).collect();
                constraint.patterns.push((Rc::new(pattern::PatternNode::Choice(names)), false));
            }
            let name = self.write_names(&constraint, &object.names, at)?;
            choices.push(member_expr(name, value));
        }
        Ok((!choices.is_empty()).then_some(Expr::Choice(choices)))
    }

    fn write_names(&mut self, constraint: &StringConstraint, terms: &Conjunction<'a>, at: usize) -> Result<Expr> {
        if terms.is_empty() {
            return if constraint.patterns.is_empty() { Ok(Expr::Named("string")) } else { self.write_texts(constraint, at) };
        }
        let mut choices = Vec::new();
        for mut shape in self.expander.expand_all(terms)?.shapes {
            if shape.types & STRING == 0 {
                continue;
            }
            if let Some(values) = shape.values.take() {
                for value in values {
                    let text = value.text().unwrap_or_default();
                    let is_allowed = constraint.fits(text).or_else(|reason| refuse_at(at, reason))?;
                    if value.text().is_some() && is_allowed && self.expander.fits(value, &shape)? {
                        choices.push(Expr::Text(quote(text)));
                    }
                }
                continue;
            }
            let mut both = shape.string.constraint;
            both.patterns.extend(constraint.patterns.iter().cloned());
            choices.push(self.write_texts(&both, at)?);
        }
        Ok(Expr::Choice(choices))
    }
}

fn check_counts(min: usize, max: Option<usize>, at: usize) -> Result<()> {
    let max_times = max.filter(|&max| max < UNBOUNDED).unwrap_or(0).max(min);
    let limit = format!("it must be at most {MAX_TIMES} characters, items or properties");
    ensure(max_times <= MAX_TIMES, at, || format!("a length of {max_times} is not supported; {limit}"))
}

fn after_comma(item: Expr) -> Expr {
    Expr::Sequence(vec![Expr::text(","), Expr::Named("space"), item])
}

fn member_expr(name: Expr, value: Expr) -> Expr {
    Expr::Sequence(vec![name, Expr::text(":"), Expr::Named("space"), value])
}

fn constant_expr(value: &JsonValue) -> Expr {
    let listed = |items: Vec<Expr>| {
        let separated = |(position, item)| if position > 0 { after_comma(item) } else { item };
        Expr::Sequence(items.into_iter().enumerate().map(separated).collect())
    };
    match &value.kind {
        JsonKind::Null => Expr::text("null"),
        JsonKind::Bool(value) => Expr::text(value.to_string()),
        JsonKind::Number(number, _) if number.fract() == 0.0 && number.abs() < 1e15 => Expr::text(number.to_string()),
        JsonKind::Number(_, text) => Expr::text(text),
        JsonKind::String(text) => Expr::Text(quote(text)),
        JsonKind::Array(items) => Expr::enclosed("[", listed(items.iter().map(constant_expr).collect()), "]"),
        JsonKind::Object(members) => {
            let members = members.iter().map(|(name, value)| member_expr(Expr::Text(quote(name)), constant_expr(value)));
            Expr::enclosed("{", listed(members.collect()), "}")
        }
    }
}
