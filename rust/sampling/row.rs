//! A row of logits, and ranks that order its tokens.

use crate::request::Token;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) token: Token,
    pub(crate) logit: f32,
}

impl Candidate {
    pub(super) fn rank(self) -> u64 {
        rank(self.logit, self.token.unsigned_abs())
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    pub(crate) logits: &'a [f32],
    /// In order of token id; each token occurs once and is inside of the row.
    pub(crate) patches: &'a [Candidate],
}

impl Row<'_> {
    /// Sum of `exp(logit − best)`, in order of token id and in single precision, as in llama.cpp.
    pub(crate) fn total_weight(&self, best: f32) -> f32 {
        self.fold(0.0, |sum, logit| sum + (logit - best).exp())
    }

    /// Folds the logits of the possible tokens, in order of token id.
    pub(crate) fn fold<T>(&self, start: T, mut add: impl FnMut(T, f32) -> T) -> T {
        let mut add = |folded: T, &logit: &f32| if logit >= f32::MIN { add(folded, logit) } else { folded };
        let (mut folded, mut start) = (start, 0);
        for patch in self.patches {
            let end = position(patch.token);
            folded = self.logits[start..end].iter().fold(folded, &mut add);
            folded = add(folded, &patch.logit);
            start = end + 1;
        }
        self.logits[start..].iter().fold(folded, add)
    }

    /// Returns the patched logits of chunk `index`; beyond the row's end they are −∞.
    pub(super) fn chunk<const WIDTH: usize>(&self, index: usize) -> [f32; WIDTH] {
        let mut chunk = [f32::NEG_INFINITY; WIDTH];
        let start = index * WIDTH;
        let logits = &self.logits[start..self.logits.len().min(start + WIDTH)];
        chunk[..logits.len()].copy_from_slice(logits);
        let first = self.patches.partition_point(|patch| position(patch.token) < start);
        for patch in self.patches[first..].iter().take_while(|patch| position(patch.token) < start + WIDTH) {
            chunk[position(patch.token) - start] = patch.logit;
        }
        chunk
    }
}

pub(super) fn position(token: Token) -> usize {
    usize::try_from(token).expect("a token of the row is not negative")
}

pub(super) fn token_at(position: usize) -> Token {
    Token::try_from(position).expect("a row is at most as long as there are token ids")
}

/// A number that is smaller for a greater logit, and among equals for a lower position. Not for NaN.
pub(super) fn rank(logit: f32, position: u32) -> u64 {
    // Adding zero turns −0 into 0. Flipped like this, the bits of floats have the order of the floats.
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 0x8000_0000 } else { !bits };
    (u64::from(!ascending) << 32) | u64::from(position)
}

pub(super) fn ranked_logit(rank: u64) -> f32 {
    let ascending = !u32::try_from(rank >> 32).expect("the upper half of 64 bits");
    f32::from_bits(if ascending >> 31 == 1 { ascending & 0x7fff_ffff } else { !ascending })
}

pub(super) fn ranked_position(rank: u64) -> usize {
    usize::try_from(rank & 0xffff_ffff).expect("an index fits into a usize")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_logit_has_the_smaller_rank_and_among_equals_the_lower_position() {
        let logits = [f32::INFINITY, f32::MAX, 1.5, 1.0, f32::MIN_POSITIVE, 0.0, -1e-45, -1.0, f32::MIN, f32::NEG_INFINITY];
        assert!(logits.is_sorted_by_key(|&logit| rank(logit, 7)));
        assert!(rank(0.5, 3) < rank(0.5, 4) && rank(0.0, 3) < rank(-0.0, 4) && rank(-0.0, 3) < rank(0.0, 4));
        for logit in logits {
            assert_eq!((ranked_logit(rank(logit, 9)), ranked_position(rank(logit, 9))), (logit, 9));
        }
    }

    #[test]
    fn a_fold_visits_the_patched_logits_of_possible_tokens() {
        let logits = [1.0, 2.0, f32::NAN, 4.0, f32::NEG_INFINITY];
        let patches = [Candidate { token: 1, logit: 7.0 }, Candidate { token: 3, logit: f32::NEG_INFINITY }];
        let mut seen = Vec::new();
        Row { logits: &logits, patches: &patches }.fold((), |(), logit| seen.push(logit));
        assert_eq!(seen, [1.0, 7.0]);
    }
}
