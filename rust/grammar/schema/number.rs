//! Which numbers fit their bounds, digit by digit.

use std::collections::HashMap;

use super::grammar::{Expr, RuleNumber, Rules};

/// Most digits of a number that has bounds, so that no two of them are the same to who reads them as binary numbers.
const MAX_DIGITS: usize = 15;

/// Bounds from here on are above or below all numbers of so many digits.
pub(super) const LARGEST: f64 = 1e15;

/// Most remainders that are told apart.
const MAX_DIVISOR: u64 = 1_000;

/// Most places of the numbers of one grammar.
const MAX_PLACES_KNOWN: usize = 20_000;

/// Most digits after the point of a bound.
const MAX_PLACES: usize = 40;

/// Which numbers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NumberKind {
    Any,
    Integer,
    /// Those that are no integers.
    Fraction,
}

/// What a number is asked for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NumberConstraint {
    /// Least, and whether it must be above that.
    pub(super) least: Option<(f64, bool)>,
    /// Most, and whether it must be below that.
    pub(super) most: Option<(f64, bool)>,
    /// What it must be a multiple of.
    pub(super) divisors: Vec<f64>,
}

impl NumberConstraint {
    pub(super) fn is_anything(&self) -> bool {
        self.least.is_none() && self.most.is_none() && self.divisors.is_empty()
    }

    pub(super) fn and(&mut self, other: &Self) {
        if let Some((bound, strict)) = other.least {
            self.at_least(bound, strict);
        }
        if let Some((bound, strict)) = other.most {
            self.at_most(bound, strict);
        }
        self.divisors
            .extend(other.divisors.iter().filter(|divisor| !self.divisors.contains(divisor)).copied().collect::<Vec<_>>());
    }

    pub(super) fn at_least(&mut self, bound: f64, strict: bool) {
        let is_higher = |(old, was_strict): (f64, bool)| bound > old || bound >= old && strict && !was_strict;
        if self.least.is_none_or(is_higher) {
            self.least = Some((bound, strict));
        }
    }

    pub(super) fn at_most(&mut self, bound: f64, strict: bool) {
        let is_lower = |(old, was_strict): (f64, bool)| bound < old || bound <= old && strict && !was_strict;
        if self.most.is_none_or(is_lower) {
            self.most = Some((bound, strict));
        }
    }

    /// Whether this number fits; of multiples, only what is surely one is.
    pub(super) fn fits(&self, number: f64) -> bool {
        let is_above = self.least.is_none_or(|(bound, strict)| number > bound || number >= bound && !strict);
        let is_below = self.most.is_none_or(|(bound, strict)| number < bound || number <= bound && !strict);
        is_above && is_below && self.is_multiple(number)
    }

    /// Whether no number fits, or no integer.
    pub(super) fn is_empty(&self, is_integer: bool) -> bool {
        let (Some((low, over)), Some((high, under))) = (self.least, self.most) else { return false };
        if !is_integer {
            return low > high || low >= high && (over || under);
        }
        let first = if over { low.floor() + 1.0 } else { low.ceil() };
        let last = if under { high.ceil() - 1.0 } else { high.floor() };
        first > last
    }

    /// The grammar of the numbers that fit; the error says what they cannot be held to.
    pub(super) fn expr(&self, kind: NumberKind, rules: &mut Rules) -> Result<Expr, String> {
        let is_integer = kind == NumberKind::Integer;
        let mut step = self.step()?;
        if let Some((divisor, places)) = step.filter(|_| is_integer) {
            // An integer is a multiple of 1 too.
            let unit = scale(1, places).ok_or_else(too_fine)?;
            let together = lcm(divisor, unit).ok_or_else(too_fine)?;
            step = Some((together / unit, 0));
        }
        if step.is_some_and(|(divisor, _)| divisor > MAX_DIVISOR) {
            return Err(too_fine());
        }
        let mut choices = Vec::new();
        if self.least.is_none_or(|(bound, _)| bound < 0.0) {
            let least = self.most.filter(|&(bound, _)| bound < 0.0).map_or((0.0, true), |(bound, strict)| (-bound, strict));
            let most = self.least.map(|(bound, strict)| (-bound, strict));
            let digits = Digits::new(least, most, step, kind)?.expr(rules)?;
            choices.push(Expr::Sequence(vec![Expr::Text("-".to_owned()), digits]));
        }
        if self.most.is_none_or(|(bound, _)| bound >= 0.0) {
            let least = self.least.filter(|&(bound, _)| bound >= 0.0).unwrap_or_default();
            choices.push(Digits::new(least, self.most, step, kind)?.expr(rules)?);
        }
        Ok(Expr::Choice(choices))
    }

    /// What the number must be a multiple of: an integer, over so many powers of ten.
    fn step(&self) -> Result<Option<(u64, usize)>, String> {
        let mut step = None;
        for &divisor in &self.divisors {
            let (whole, places) = scaled(divisor).ok_or_else(too_fine)?;
            let (before, places_before) = step.unwrap_or((whole, places));
            let most = places.max(places_before);
            let both = scale(whole, most - places).zip(scale(before, most - places_before));
            step = Some((both.and_then(|(one, other)| lcm(one, other)).ok_or_else(too_fine)?, most));
        }
        Ok(step)
    }

    fn is_multiple(&self, number: f64) -> bool {
        let Ok(step) = self.step() else { return false };
        let Some((divisor, places)) = step else { return true };
        let (whole, after) = digits(number);
        if after.len() > places {
            return false;
        }
        let all = whole.iter().chain(&after).copied().chain(std::iter::repeat_n(0, places - after.len()));
        all.fold(0, |rest, digit| (u128::from(digit) + 10 * rest) % u128::from(divisor)) == 0
    }
}

fn too_fine() -> String {
    format!(
        "multipleOf cannot be held to here: it has too many digits; in the end at most {MAX_DIVISOR} remainders are told apart"
    )
}

/// The digits of a number before and after the point.
fn digits(number: f64) -> (Vec<u8>, Vec<u8>) {
    let text = number.abs().to_string();
    let (whole, after) = text.split_once('.').unwrap_or((&text, ""));
    let digits = |text: &str| text.bytes().map(|digit| digit - b'0').collect();
    (digits(whole), digits(after))
}

/// A number above 0 as an integer over so many powers of ten.
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

/// A bound: its digits before and after the point, and whether it is left out itself.
struct Bound {
    whole: Vec<u8>,
    after: Vec<u8>,
    strict: bool,
}

impl Bound {
    fn new((number, strict): (f64, bool)) -> Result<Self, String> {
        let (whole, after) = digits(number);
        if after.len() > MAX_PLACES {
            return Err(format!("the bound {number} has more than {MAX_PLACES} digits after its point"));
        }
        Ok(Self { whole, after, strict })
    }

    /// The digit that is so far behind the point.
    fn after(&self, place: usize) -> u8 {
        self.after.get(place).copied().unwrap_or(0)
    }

    /// Whether nothing but zeros follow so many digits behind the point.
    fn is_done(&self, place: usize) -> bool {
        self.after.iter().skip(place).all(|&digit| digit == 0)
    }
}

/// The numbers between two bounds that are not below 0.
struct Digits {
    least: Bound,
    most: Option<Bound>,
    divisor: u64,
    /// Digits after the point of what the divisor is over; `None` where there is no divisor.
    places: Option<usize>,
    kind: NumberKind,
    known: HashMap<DigitState, RuleNumber>,
}

/// Where a number is that is read digit by digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct DigitState {
    /// Digits before the point, while the number is as one of its bounds up to here; 0 afterwards.
    n_whole: usize,
    /// How many of these are still to come.
    n_left: usize,
    /// Digits after the point.
    n_after: usize,
    most_after: usize,
    /// The number is as its lower bound, or its upper one, up to here.
    is_least: bool,
    is_most: bool,
    /// There is nothing but zeros behind the point.
    is_whole: bool,
    /// What is left over by the divisor.
    rest: u64,
}

impl Digits {
    fn new(least: (f64, bool), most: Option<(f64, bool)>, step: Option<(u64, usize)>, kind: NumberKind) -> Result<Self, String> {
        // Above all numbers that are written there is no bound.
        let most = most.filter(|&(bound, _)| bound < LARGEST).map(Bound::new).transpose()?;
        let (divisor, places) = step.map_or((1, None), |(divisor, places)| (divisor, Some(places)));
        Ok(Self { least: Bound::new(least)?, most, divisor, places, kind, known: HashMap::new() })
    }

    fn expr(mut self, rules: &mut Rules) -> Result<Expr, String> {
        let mut choices = Vec::new();
        for n_whole in 1..=MAX_DIGITS {
            let most_after =
                if self.kind == NumberKind::Integer { 0 } else { self.places.unwrap_or(MAX_DIGITS).min(MAX_DIGITS - n_whole) };
            let n_most = self.most.as_ref().map_or(usize::MAX, |most| most.whole.len());
            if n_whole < self.least.whole.len() || n_whole > n_most {
                continue;
            }
            let (is_least, is_most) = (n_whole == self.least.whole.len(), n_whole == n_most);
            let place =
                DigitState { n_whole, n_left: n_whole, n_after: 0, most_after, is_least, is_most, is_whole: true, rest: 0 };
            choices.push(self.digit(place, true, rules)?);
        }
        Ok(Expr::Choice(choices))
    }

    /// One more digit, before the point or after it.
    fn digit(&mut self, place: DigitState, is_first: bool, rules: &mut Rules) -> Result<Expr, String> {
        let mut choices: Vec<(RuleNumber, Vec<(u32, u32)>)> = Vec::new();
        let before = place.n_whole.wrapping_sub(place.n_left);
        let digit_of = |bound: &Bound| if place.n_left > 0 { bound.whole[before] } else { bound.after(place.n_after) };
        let low = if place.is_least { digit_of(&self.least) } else { 0 };
        let low = if is_first && place.n_left > 1 { low.max(1) } else { low };
        let high = self.most.as_ref().filter(|_| place.is_most).map_or(9, digit_of);
        for digit in low..=high {
            let is_least = place.is_least && digit == digit_of(&self.least);
            let is_most = place.is_most && self.most.as_ref().is_some_and(|most| digit == digit_of(most));
            let next = DigitState {
                n_whole: if is_least || is_most { place.n_whole } else { 0 },
                n_left: place.n_left.saturating_sub(1),
                n_after: place.n_after + usize::from(place.n_left == 0),
                is_least,
                is_most,
                // Where this is of no matter, it is not told apart.
                is_whole: place.is_whole && (self.kind != NumberKind::Fraction || place.n_left > 0 || digit == 0),
                rest: (10 * place.rest + u64::from(digit)) % self.divisor,
                ..place
            };
            let (rule, code) = (self.rule(next, rules)?, u32::from(b'0' + digit));
            match choices.last_mut() {
                Some((last, ranges)) if *last == rule => ranges[0].1 = code,
                _ => choices.push((rule, vec![(code, code)])),
            }
        }
        let choice = |(rule, ranges)| Expr::Sequence(vec![Expr::Class(ranges), Expr::Rule(rule)]);
        Ok(Expr::Choice(choices.into_iter().map(choice).collect()))
    }

    /// What may follow.
    fn rule(&mut self, place: DigitState, rules: &mut Rules) -> Result<RuleNumber, String> {
        if let Some(&rule) = self.known.get(&place) {
            return Ok(rule);
        }
        if self.known.len() > MAX_PLACES_KNOWN {
            return Err(too_fine());
        }
        let rule = rules.add();
        self.known.insert(place, rule);
        let mut choices = Vec::new();
        if place.n_left > 0 {
            choices.push(self.digit(place, false, rules)?);
        } else {
            if self.may_end(place) {
                choices.push(Expr::nothing());
            }
            if place.n_after < place.most_after {
                let digit = self.digit(place, false, rules)?;
                let point = if place.n_after == 0 { Expr::Text(".".to_owned()) } else { Expr::nothing() };
                choices.push(Expr::Sequence(vec![point, digit]));
            }
        }
        rules.set(rule, Expr::Choice(choices));
        Ok(rule)
    }

    fn may_end(&self, place: DigitState) -> bool {
        let is_above = !place.is_least || self.least.is_done(place.n_after) && !self.least.strict;
        let most = self.most.as_ref().filter(|_| place.is_most);
        let is_below = most.is_none_or(|most| !most.is_done(place.n_after) || !most.strict);
        let missing = self.places.unwrap_or(0).saturating_sub(place.n_after);
        let rest = (0..missing).fold(place.rest, |rest, _| 10 * rest % self.divisor);
        let is_kind = self.kind != NumberKind::Fraction || !place.is_whole;
        is_above && is_below && is_kind && rest == 0
    }
}
