//! Top-nσ. Source: Tang et al., "Top-nσ: Not All Logits Are You Need", 2024; sums and rounding are llama.cpp's.

use crate::sampling::{candidates::Candidates, row::Row};

/// Keeps the candidates whose logits are at most `n` standard deviations below the greatest; `n` must be above 0.
pub(crate) fn top_n_sigma(candidates: &mut Candidates, n: f32) {
    if candidates.n_all() < 2 {
        return;
    }
    let logits = || candidates.list.iter().map(|candidate| candidate.logit);
    let spread = logits().fold(LogitSpread::default(), LogitSpread::add);
    let squares = logits().fold(0.0, |squares, logit| spread.add_square(squares, logit));
    let floor = spread.floor(n, squares).max(f32::MIN);
    let n_listed = candidates.list.len();
    candidates.list.retain(|candidate| candidate.logit >= floor);
    candidates.n_impossible += n_listed - candidates.list.len();
}

pub(crate) fn take_top_n_sigma(candidates: &mut Candidates, row: Row<'_>, n: f32) {
    let spread = row.fold(LogitSpread::default(), LogitSpread::add);
    let squares = row.fold(0.0, |squares, logit| spread.add_square(squares, logit));
    let floor = if row.logits.len() < 2 { f32::MIN } else { spread.floor(n, squares) };
    candidates.keep_above(row, floor);
}

#[derive(Debug, Clone, Copy)]
struct LogitSpread {
    max: f32,
    total: f32,
    n: f32,
}

impl Default for LogitSpread {
    fn default() -> Self {
        Self { max: f32::NEG_INFINITY, total: 0.0, n: 0.0 }
    }
}

impl LogitSpread {
    fn add(self, logit: f32) -> Self {
        Self { max: self.max.max(logit), total: self.total + logit, n: self.n + 1.0 }
    }

    /// Squares in double precision and sums in single precision, as llama.cpp does.
    #[expect(clippy::cast_possible_truncation, reason = "llama.cpp's sum is single precision")]
    fn add_square(self, squares: f32, logit: f32) -> f32 {
        let deviation = f64::from(logit - self.total / self.n);
        (f64::from(squares) + deviation * deviation) as f32
    }

    fn floor(self, n_sigma: f32, squares: f32) -> f32 {
        self.max - n_sigma * (squares / self.n).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Token;

    /// Returns the tokens that remain, and asserts that row and list agree.
    fn kept(logits: &[f32], n: f32) -> Vec<Token> {
        let row = Row { logits, patches: &[] };
        let (mut from_row, mut from_list) = (Candidates::default(), Candidates::default());
        take_top_n_sigma(&mut from_row, row, n);
        from_list.keep_all(row);
        top_n_sigma(&mut from_list, n);
        assert_eq!((&from_row.list, from_row.n_impossible), (&from_list.list, from_list.n_impossible));
        assert_eq!(from_list.n_all(), logits.len());
        from_list.list.iter().map(|candidate| candidate.token).collect()
    }

    #[test]
    fn tokens_too_far_below_the_best_are_removed() {
        // The mean is 2 and the standard deviation 2.
        let logits = [0.0, 4.0, 0.0, 4.0];
        assert_eq!(kept(&logits, 1.9), [1, 3]);
        assert_eq!(kept(&logits, 2.0), [0, 1, 2, 3]);
    }

    #[test]
    fn impossible_tokens_do_not_affect_the_deviation() {
        assert_eq!(kept(&[0.0, f32::NEG_INFINITY, 4.0, 0.0, f32::NAN, 4.0], 1.9), [2, 5]);
    }

    #[test]
    fn at_most_one_token_stays_unchanged() {
        assert_eq!(kept(&[3.0], 0.1), [0]);
        assert_eq!(kept(&[], 0.1), [0; 0]);
        assert_eq!(kept(&[f32::NAN, f32::NEG_INFINITY], 0.1), [0; 0]);
    }

    #[test]
    fn infinite_logits_do_not_empty_the_list() {
        assert!(kept(&[1.0, f32::INFINITY, 2.0], 1.0).contains(&1));
    }
}
