//! Compiles the bounds and divisors of numbers to rules, digit by digit.

use std::collections::HashMap;

use super::grammar::{Expr, RuleList, RuleNumber};
use super::shape::{FRACTION, INTEGER, Types, add};

/// Maximum digits of a number with bounds, so that distinct numbers stay distinct as binary floating-point numbers.
const MAX_DIGITS: usize = 15;

/// The smallest number with more than [`MAX_DIGITS`] digits: bounds beyond it are no constraint or cannot be met.
pub(super) const LARGEST: f64 = 1e15;

const MAX_DIVISOR: u64 = 1_000;

const MAX_STATES: usize = 20_000;

const MAX_DECIMALS: usize = 40;

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NumberConstraint {
    /// The lower bound, and whether it is exclusive.
    pub(super) min: Option<(f64, bool)>,
    pub(super) max: Option<(f64, bool)>,
    pub(super) divisors: Vec<f64>,
}

impl NumberConstraint {
    pub(super) fn is_anything(&self) -> bool {
        self.min.is_none() && self.max.is_none() && self.divisors.is_empty()
    }

    pub(super) fn and(&mut self, other: &Self) {
        if let Some((bound, strict)) = other.min {
            self.at_least(bound, strict);
        }
        if let Some((bound, strict)) = other.max {
            self.at_most(bound, strict);
        }
        add(&mut self.divisors, &other.divisors);
    }

    pub(super) fn at_least(&mut self, bound: f64, strict: bool) {
        let is_higher = |(old, was_strict): (f64, bool)| bound > old || bound >= old && strict && !was_strict;
        if self.min.is_none_or(is_higher) {
            self.min = Some((bound, strict));
        }
    }

    pub(super) fn at_most(&mut self, bound: f64, strict: bool) {
        let is_lower = |(old, was_strict): (f64, bool)| bound < old || bound <= old && strict && !was_strict;
        if self.max.is_none_or(is_lower) {
            self.max = Some((bound, strict));
        }
    }

    pub(super) fn fits(&self, number: f64) -> bool {
        let is_above = self.min.is_none_or(|(bound, strict)| number > bound || number >= bound && !strict);
        let is_below = self.max.is_none_or(|(bound, strict)| number < bound || number <= bound && !strict);
        is_above && is_below && self.is_multiple(number)
    }

    /// Returns true if no number fits, or no integer.
    pub(super) fn is_empty(&self, is_integer: bool) -> bool {
        let (Some((low, is_low_strict)), Some((high, is_high_strict))) = (self.min, self.max) else { return false };
        if !is_integer {
            return low > high || low >= high && (is_low_strict || is_high_strict);
        }
        let first = if is_low_strict { low.floor() + 1.0 } else { low.ceil() };
        let last = if is_high_strict { high.ceil() - 1.0 } else { high.floor() };
        first > last
    }

    pub(super) fn to_expr(&self, types: Types, rules: &mut RuleList) -> Result<Expr, String> {
        let mut step = self.combined_divisor()?;
        if let Some((divisor, places)) = step.filter(|_| types == INTEGER) {
            // An integer is a multiple of 1, too.
            let unit = scale(1, places).ok_or_else(too_fine)?;
            let together = lcm(divisor, unit).ok_or_else(too_fine)?;
            step = Some((together / unit, 0));
        }
        if step.is_some_and(|(divisor, _)| divisor > MAX_DIVISOR) {
            return Err(too_fine());
        }
        let mut choices = Vec::new();
        if self.min.is_none_or(|(bound, _)| bound < 0.0) {
            let min = self.max.filter(|&(bound, _)| bound < 0.0).map_or((0.0, true), |(bound, strict)| (-bound, strict));
            let max = self.min.map(|(bound, strict)| (-bound, strict));
            let digits = Digits::new(min, max, step, types)?.into_expr(rules)?;
            choices.push(Expr::Sequence(vec![Expr::Text("-".to_owned()), digits]));
        }
        if self.max.is_none_or(|(bound, _)| bound >= 0.0) {
            let min = self.min.filter(|&(bound, _)| bound >= 0.0).unwrap_or_default();
            choices.push(Digits::new(min, self.max, step, types)?.into_expr(rules)?);
        }
        Ok(Expr::Choice(choices))
    }

    /// Returns the combined divisor: an integer, divided by a power of ten.
    fn combined_divisor(&self) -> Result<Option<(u64, usize)>, String> {
        let mut step = None;
        for &divisor in &self.divisors {
            let (whole, places) = scaled(divisor).ok_or_else(too_fine)?;
            let (previous, previous_places) = step.unwrap_or((whole, places));
            let max_places = places.max(previous_places);
            let both = scale(whole, max_places - places).zip(scale(previous, max_places - previous_places));
            step = Some((both.and_then(|(one, other)| lcm(one, other)).ok_or_else(too_fine)?, max_places));
        }
        Ok(step)
    }

    fn is_multiple(&self, number: f64) -> bool {
        let Ok(step) = self.combined_divisor() else { return false };
        let Some((divisor, places)) = step else { return true };
        let (whole, after) = digits(number);
        if after.len() > places {
            return false;
        }
        let all = whole.iter().chain(&after).copied().chain(std::iter::repeat_n(0, places - after.len()));
        all.fold(0, |remainder, digit| (u128::from(digit) + 10 * remainder) % u128::from(divisor)) == 0
    }
}

fn too_fine() -> String {
    format!("multipleOf has too many digits: without decimal point, all divisors together must be at most {MAX_DIVISOR}")
}

/// Returns the digits before and after the decimal point.
fn digits(number: f64) -> (Vec<u8>, Vec<u8>) {
    let text = number.abs().to_string();
    let (whole, after) = text.split_once('.').unwrap_or((&text, ""));
    let digits = |text: &str| text.bytes().map(|digit| digit - b'0').collect();
    (digits(whole), digits(after))
}

/// Returns a positive number as an integer and the power of ten that divides it.
fn scaled(number: f64) -> Option<(u64, usize)> {
    let (whole, after) = digits(number);
    let is_short = whole.len() + after.len() <= MAX_DIGITS + 1;
    let all = || whole.iter().chain(&after).fold(0, |sum, &digit| sum * 10 + u64::from(digit));
    is_short.then(|| (all(), after.len())).filter(|&(whole, _)| whole > 0)
}

fn scale(number: u64, places: usize) -> Option<u64> {
    10_u64.checked_pow(u32::try_from(places).ok()?)?.checked_mul(number)
}

fn lcm(one: u64, other: u64) -> Option<u64> {
    let (mut a, mut b) = (one, other);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    (one / a).checked_mul(other)
}

struct DecimalBound {
    whole: Vec<u8>,
    after: Vec<u8>,
    strict: bool,
}

impl DecimalBound {
    fn new((number, strict): (f64, bool)) -> Result<Self, String> {
        let (whole, after) = digits(number);
        if after.len() > MAX_DECIMALS {
            return Err(format!("the bound {number} has more than {MAX_DECIMALS} digits after the decimal point"));
        }
        Ok(Self { whole, after, strict })
    }

    fn digit_after(&self, index: usize) -> u8 {
        self.after.get(index).copied().unwrap_or(0)
    }

    fn is_zero_from(&self, index: usize) -> bool {
        self.after.iter().skip(index).all(|&digit| digit == 0)
    }
}

/// The numbers between two non-negative bounds.
struct Digits {
    min: DecimalBound,
    max: Option<DecimalBound>,
    divisor: u64,
    /// The divisor's power of ten; `None` without a divisor.
    places: Option<usize>,
    types: Types,
    rules_by_state: HashMap<DigitState, RuleNumber>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct DigitState {
    /// Digits before the decimal point while the number equals one of its bounds so far; 0 otherwise.
    n_whole: usize,
    n_left: usize,
    n_after: usize,
    max_after: usize,
    /// True while the number equals its lower or its upper bound so far.
    is_min: bool,
    is_max: bool,
    /// True if all digits after the decimal point are 0.
    is_whole: bool,
    remainder: u64,
}

impl Digits {
    fn new(min: (f64, bool), max: Option<(f64, bool)>, step: Option<(u64, usize)>, types: Types) -> Result<Self, String> {
        // Above all generated numbers, an upper bound is no constraint.
        let max = max.filter(|&(bound, _)| bound < LARGEST).map(DecimalBound::new).transpose()?;
        let (divisor, places) = step.map_or((1, None), |(divisor, places)| (divisor, Some(places)));
        Ok(Self { min: DecimalBound::new(min)?, max, divisor, places, types, rules_by_state: HashMap::new() })
    }

    fn into_expr(mut self, rules: &mut RuleList) -> Result<Expr, String> {
        let mut choices = Vec::new();
        for n_whole in 1..=MAX_DIGITS {
            let max_after = if self.types == INTEGER { 0 } else { self.places.unwrap_or(MAX_DIGITS).min(MAX_DIGITS - n_whole) };
            let max_whole = self.max.as_ref().map_or(usize::MAX, |max| max.whole.len());
            if n_whole < self.min.whole.len() || n_whole > max_whole {
                continue;
            }
            let (is_min, is_max) = (n_whole == self.min.whole.len(), n_whole == max_whole);
            let state =
                DigitState { n_whole, n_left: n_whole, n_after: 0, max_after, is_min, is_max, is_whole: true, remainder: 0 };
            choices.push(self.digit_expr(state, true, rules)?);
        }
        Ok(Expr::Choice(choices))
    }

    fn digit_expr(&mut self, state: DigitState, is_first: bool, rules: &mut RuleList) -> Result<Expr, String> {
        let mut choices: Vec<(RuleNumber, Vec<(u32, u32)>)> = Vec::new();
        let index = state.n_whole.wrapping_sub(state.n_left);
        let digit_of =
            |bound: &DecimalBound| if state.n_left > 0 { bound.whole[index] } else { bound.digit_after(state.n_after) };
        let low = if state.is_min { digit_of(&self.min) } else { 0 };
        let low = if is_first && state.n_left > 1 { low.max(1) } else { low };
        let high = self.max.as_ref().filter(|_| state.is_max).map_or(9, digit_of);
        for digit in low..=high {
            let is_min = state.is_min && digit == digit_of(&self.min);
            let is_max = state.is_max && self.max.as_ref().is_some_and(|max| digit == digit_of(max));
            let next = DigitState {
                n_whole: if is_min || is_max { state.n_whole } else { 0 },
                n_left: state.n_left.saturating_sub(1),
                n_after: state.n_after + usize::from(state.n_left == 0),
                is_min,
                is_max,
                // Constant when it does not matter, so that equivalent states are shared.
                is_whole: state.is_whole && (self.types != FRACTION || state.n_left > 0 || digit == 0),
                remainder: (10 * state.remainder + u64::from(digit)) % self.divisor,
                ..state
            };
            let (rule, code) = (self.rule_for(next, rules)?, u32::from(b'0' + digit));
            match choices.last_mut() {
                Some((last, ranges)) if *last == rule => ranges[0].1 = code,
                _ => choices.push((rule, vec![(code, code)])),
            }
        }
        let choice = |(rule, ranges)| Expr::Sequence(vec![Expr::Class(ranges), Expr::Rule(rule)]);
        Ok(Expr::Choice(choices.into_iter().map(choice).collect()))
    }

    fn rule_for(&mut self, state: DigitState, rules: &mut RuleList) -> Result<RuleNumber, String> {
        if let Some(&rule) = self.rules_by_state.get(&state) {
            return Ok(rule);
        }
        if self.rules_by_state.len() > MAX_STATES {
            return Err(format!("the bounds and multipleOf of this number need more than {MAX_STATES} states; use fewer digits"));
        }
        let rule = rules.add_all(1);
        self.rules_by_state.insert(state, rule);
        let mut choices = Vec::new();
        if state.n_left > 0 {
            choices.push(self.digit_expr(state, false, rules)?);
        } else {
            if self.may_end(state) {
                choices.push(Expr::nothing());
            }
            if state.n_after < state.max_after {
                let digit = self.digit_expr(state, false, rules)?;
                let point = if state.n_after == 0 { Expr::Text(".".to_owned()) } else { Expr::nothing() };
                choices.push(Expr::Sequence(vec![point, digit]));
            }
        }
        rules.set(rule, Expr::Choice(choices));
        Ok(rule)
    }

    fn may_end(&self, state: DigitState) -> bool {
        let is_above = !state.is_min || self.min.is_zero_from(state.n_after) && !self.min.strict;
        let max = self.max.as_ref().filter(|_| state.is_max);
        let is_below = max.is_none_or(|max| !max.is_zero_from(state.n_after) || !max.strict);
        let missing = self.places.unwrap_or(0).saturating_sub(state.n_after);
        let remainder = (0..missing).fold(state.remainder, |remainder, _| 10 * remainder % self.divisor);
        let is_kind = self.types != FRACTION || !state.is_whole;
        is_above && is_below && is_kind && remainder == 0
    }
}
