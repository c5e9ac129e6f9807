//! Sequence breakers: tokens at which the DRY penalty ends a repetition.

use std::collections::BTreeMap;

use crate::request::Token;
use crate::sampling::{penalties::window::Window, token_strings::Vocabulary};

const MAX_BYTES: usize = 40;

const MAX_TAIL: usize = 20;

/// Token sequences in which a breaker text occurs, by their first token. Source: pi6am, koboldcpp #982.
///
/// A token that contains a text is a breaker by itself; one that ends with a prefix of a text is a breaker if the tokens of the
/// remainder follow, of which only one tokenization is considered.
#[derive(Debug, Default)]
pub(crate) struct SequenceBreakers {
    /// One bit per token of the vocabulary: whether a breaker starts with it.
    is_first: Vec<u64>,
    /// Empty if the token is a breaker by itself.
    tails: BTreeMap<Token, Vec<Vec<Token>>>,
}

impl SequenceBreakers {
    /// Looks `texts` up in `vocabulary`. Only the first 40 bytes of each are used; empty texts are ignored.
    pub(crate) fn new(texts: &[String], vocabulary: &dyn Vocabulary) -> Self {
        let texts: Vec<&[u8]> =
            texts.iter().map(|text| &text.as_bytes()[..text.len().min(MAX_BYTES)]).filter(|text| !text.is_empty()).collect();
        let mut is_first_byte = [false; 256];
        for text in &texts {
            is_first_byte[usize::from(text[0])] = true;
        }
        let mut remainders: Vec<BTreeMap<usize, Vec<Token>>> = vec![BTreeMap::new(); texts.len()];
        let n_vocab = vocabulary.n_vocab();
        let mut breakers = Self { is_first: vec![0; n_vocab.div_ceil(64)], tails: BTreeMap::new() };
        for token in (0..).take(n_vocab) {
            // `spelling_alone` may have fewer bytes, but no others.
            if !vocabulary.spelling(token).iter().any(|&byte| is_first_byte[usize::from(byte)]) {
                continue;
            }
            let spelling = vocabulary.spelling_alone(token);
            for (text, remainders) in texts.iter().zip(&mut remainders) {
                if spelling.windows(text.len()).any(|part| part == *text) {
                    breakers.add(token, Vec::new());
                    continue;
                }
                // All ways in which the token's end matches the text's start, the longest first.
                for n in (1..text.len().min(spelling.len() + 1)).rev().filter(|&n| spelling.ends_with(&text[..n])) {
                    let remainder = remainders.entry(n).or_insert_with(|| {
                        let mut remainder = vocabulary.tokenize(&text[n..]);
                        remainder.truncate(MAX_TAIL);
                        remainder
                    });
                    breakers.add(token, remainder.clone());
                }
            }
        }
        breakers
    }

    fn add(&mut self, first: Token, tail: Vec<Token>) {
        let (word, bit) = word_and_bit(first);
        self.is_first[word] |= 1 << bit;
        self.tails.entry(first).or_default().push(tail);
    }

    fn tails(&self, first: Token) -> &[Vec<Token>] {
        let (word, bit) = word_and_bit(first);
        let is_first = self.is_first.get(word).is_some_and(|bits| bits >> bit & 1 == 1);
        if is_first { self.tails.get(&first).map_or(&[], Vec::as_slice) } else { &[] }
    }

    pub(crate) fn is_breaker(&self, token: Token) -> bool {
        self.tails(token).iter().any(Vec::is_empty)
    }

    /// Counts the tokens after the last breaker, or all of the window. The search stops after `max_length` tokens.
    pub(crate) fn n_after_last(&self, window: &Window, max_length: usize) -> usize {
        let follows = |n_following: usize, tail: &[Token]| {
            tail.len() <= n_following && tail.iter().zip((0..n_following).rev()).all(|(&token, n)| window.nth_last(n) == token)
        };
        let n_after = |n_following| {
            let tails = self.tails(window.nth_last(n_following)).iter().filter(|tail| follows(n_following, tail));
            tails.map(Vec::len).max().map(|n_tail| n_following - n_tail)
        };
        let n_searched = window.len().min(max_length.saturating_add(MAX_TAIL + 1));
        (0..n_searched).find_map(n_after).unwrap_or(window.len())
    }
}

fn word_and_bit(token: Token) -> (usize, u32) {
    usize::try_from(token).map_or((usize::MAX, 0), |id| (id / 64, token.unsigned_abs() % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::draw::rng::Mt19937;
    use crate::sampling::penalties::window::tests::holding;
    use crate::sampling::token_strings::tests::Pieces;

    //                        0    1    2     3     4     5      6
    const PIECES: [&str; 7] = ["a", "b", "ab", "xa", "aa", "abx", "x"];

    fn breakers(texts: &[&str]) -> SequenceBreakers {
        let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
        SequenceBreakers::new(&texts, &*Pieces::token_strings(&PIECES, 0))
    }

    fn n_after_last(breakers: &SequenceBreakers, history: &[Token]) -> usize {
        breakers.n_after_last(&holding(history), usize::MAX)
    }

    #[test]
    fn a_token_that_contains_a_text_breaks_by_itself() {
        let breakers = breakers(&["ab"]);
        assert_eq!((0..7).filter(|&token| breakers.is_breaker(token)).collect::<Vec<_>>(), [2, 5]);
        assert_eq!(n_after_last(&breakers, &[2, 1, 6]), 2);
        assert_eq!(n_after_last(&breakers, &[2]), 0);
    }

    #[test]
    fn a_token_that_ends_with_a_prefix_of_a_text_needs_the_remainder() {
        let breakers = breakers(&["ab"]);
        assert_eq!(n_after_last(&breakers, &[3, 1, 6, 6]), 2);
        assert_eq!(n_after_last(&breakers, &[3, 6, 1, 6]), 4);
        // The remainder has not been generated yet.
        assert_eq!(n_after_last(&breakers, &[6, 3]), 2);
    }

    #[test]
    fn a_text_may_start_at_several_offsets_of_a_token() {
        // "aa" matches the first two letters of the text, and its last letter the first one.
        let breakers = breakers(&["aab"]);
        assert_eq!(breakers.tails(4), [vec![1], vec![2]]);
        assert_eq!(n_after_last(&breakers, &[4, 2, 6]), 1);
    }

    #[test]
    fn without_a_breaker_the_whole_window_counts() {
        assert_eq!(n_after_last(&breakers(&["q"]), &[0, 1, 2]), 3);
        assert_eq!(n_after_last(&breakers(&[]), &[0, 1, 2]), 3);
        assert_eq!(n_after_last(&breakers(&["a"]), &[]), 0);
        assert_eq!(n_after_last(&breakers(&["a"]), &[-1, 99]), 2);
    }

    #[test]
    fn a_limited_search_agrees_up_to_its_limit() {
        let breakers = breakers(&["aab", "xx"]);
        let mut rng = Mt19937::new(2);
        for _ in 0..2_000 {
            let n = 1 + rng.next_u32() % 60;
            let history: Vec<Token> = (0..n).map(|_| [6, 6, 1, 1, 1, 4, 0, 3][rng.next_u32() as usize % 8]).collect();
            let (all, window) = (n_after_last(&breakers, &history), holding(&history));
            for max_length in [0, 1, 5, 30] {
                assert_eq!(breakers.n_after_last(&window, max_length).min(max_length), all.min(max_length), "{history:?}");
            }
        }
    }

    #[test]
    fn the_search_stops_at_its_limit() {
        // A breaker beyond the search limit is not found.
        let mut history = vec![0; 200];
        history[0] = 2;
        let (breakers, window) = (breakers(&["ab"]), holding(&history));
        assert_eq!((breakers.n_after_last(&window, usize::MAX), breakers.n_after_last(&window, 100)), (199, 200));
    }
}
