//! The tokens at which a repetition ends.

use std::collections::BTreeMap;

use crate::request::Token;
use crate::sampling::token_strings::Vocabulary;
use crate::sampling::window::Window;

/// Bytes of a text that count.
const MAX_BYTES: usize = 40;

/// Tokens after the first one that are compared.
const MAX_TAIL: usize = 20;

/// Sequences of tokens in which one of some texts begins or lies: by their first token, what must follow it.
///
/// Source: pi6am, koboldcpp #982. A token that contains a text breaks by itself. One that ends as a text begins breaks where the
/// tokens of the text's rest follow; no other tokens are tried for the rest.
#[derive(Debug, Default)]
pub(crate) struct SequenceBreakers {
    /// One bit for each token of the vocabulary: whether it is a first one.
    is_first: Vec<u64>,
    /// What must follow it.
    tails: BTreeMap<Token, Vec<Vec<Token>>>,
}

impl SequenceBreakers {
    /// Looks `texts` up in `vocabulary`. Only the first 40 bytes of each count, and empty ones not at all.
    pub(crate) fn new(texts: &[String], vocabulary: &dyn Vocabulary) -> Self {
        let texts: Vec<&[u8]> =
            texts.iter().map(|text| &text.as_bytes()[..text.len().min(MAX_BYTES)]).filter(|text| !text.is_empty()).collect();
        let mut begins_one = [false; 256];
        for text in &texts {
            begins_one[usize::from(text[0])] = true;
        }
        // The rests of each text, by where they begin; most are never needed.
        let mut rests: Vec<BTreeMap<usize, Vec<Token>>> = vec![BTreeMap::new(); texts.len()];
        let n_vocab = vocabulary.n_vocab();
        let mut found = Self { is_first: vec![0; n_vocab.div_ceil(64)], tails: BTreeMap::new() };
        for token in (0..).take(n_vocab) {
            // Alone it may be spelt with fewer bytes, but with no others.
            if !vocabulary.spelling(token).iter().any(|&byte| begins_one[usize::from(byte)]) {
                continue;
            }
            let spelling = vocabulary.spelling_alone(token);
            for (text, rests) in texts.iter().zip(&mut rests) {
                if spelling.windows(text.len()).any(|part| part == *text) {
                    found.add(token, Vec::new());
                    continue;
                }
                // Where it ends as the text begins, from the longest such end on.
                for n in (1..text.len().min(spelling.len() + 1)).rev().filter(|&n| spelling.ends_with(&text[..n])) {
                    let rest = rests.entry(n).or_insert_with(|| {
                        let mut rest = vocabulary.tokenize(&text[n..]);
                        rest.truncate(MAX_TAIL);
                        rest
                    });
                    found.add(token, rest.clone());
                }
            }
        }
        found
    }

    fn add(&mut self, first: Token, tail: Vec<Token>) {
        let (word, bit) = place(first);
        self.is_first[word] |= 1 << bit;
        self.tails.entry(first).or_default().push(tail);
    }

    /// What may follow `first`.
    fn tails(&self, first: Token) -> &[Vec<Token>] {
        let (word, bit) = place(first);
        let is_first = self.is_first.get(word).is_some_and(|bits| bits >> bit & 1 == 1);
        if is_first { self.tails.get(&first).map_or(&[], Vec::as_slice) } else { &[] }
    }

    /// Whether `token` breaks by itself.
    pub(crate) fn is_breaker(&self, token: Token) -> bool {
        self.tails(token).iter().any(Vec::is_empty)
    }

    /// How many tokens at the end of `window` follow on its last breaker; all where there is none. The search ends where more than
    /// `most` follow, however many these are.
    pub(crate) fn n_after_last(&self, window: &Window, most: usize) -> usize {
        let follows = |n_behind: usize, tail: &[Token]| {
            tail.len() <= n_behind && tail.iter().zip((0..n_behind).rev()).all(|(&token, at)| window.nth_last(at) == token)
        };
        let n_after = |n_behind| {
            let tails = self.tails(window.nth_last(n_behind)).iter().filter(|tail| follows(n_behind, tail));
            tails.map(Vec::len).max().map(|n_tail| n_behind - n_tail)
        };
        let n_searched = window.len().min(most.saturating_add(MAX_TAIL + 1));
        (0..n_searched).find_map(n_after).unwrap_or(window.len())
    }
}

/// Word and bit of a token. A negative one has no place.
fn place(token: Token) -> (usize, u32) {
    usize::try_from(token).map_or((usize::MAX, 0), |id| (id / 64, token.unsigned_abs() % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::rng::Mt19937;
    use crate::sampling::token_strings::tests::Pieces;
    use crate::sampling::window::tests::holding;

    //                        0    1    2     3     4     5      6
    const PIECES: [&str; 7] = ["a", "b", "ab", "xa", "aa", "abx", "x"];

    fn breakers(texts: &[&str]) -> SequenceBreakers {
        let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
        SequenceBreakers::new(&texts, &*Pieces::lexicon(&PIECES, 0))
    }

    fn n_after_last(breakers: &SequenceBreakers, said: &[Token]) -> usize {
        breakers.n_after_last(&holding(said), usize::MAX)
    }

    #[test]
    fn a_token_that_contains_a_text_breaks_by_itself() {
        let breakers = breakers(&["ab"]);
        assert_eq!((0..7).filter(|&token| breakers.is_breaker(token)).collect::<Vec<_>>(), [2, 5]);
        assert_eq!(n_after_last(&breakers, &[2, 1, 6]), 2);
        assert_eq!(n_after_last(&breakers, &[2]), 0);
    }

    #[test]
    fn a_token_that_ends_as_a_text_begins_needs_the_texts_rest() {
        let breakers = breakers(&["ab"]);
        assert_eq!(n_after_last(&breakers, &[3, 1, 6, 6]), 2);
        assert_eq!(n_after_last(&breakers, &[3, 6, 1, 6]), 4);
        // The rest has not been said yet.
        assert_eq!(n_after_last(&breakers, &[6, 3]), 2);
    }

    #[test]
    fn a_text_may_begin_at_several_places_of_a_token() {
        // "aa" may be the first two letters of the text or, by its last one, only the first.
        let breakers = breakers(&["aab"]);
        assert_eq!(breakers.tails(4), [vec![1], vec![2]]);
        assert_eq!(n_after_last(&breakers, &[4, 2, 6]), 1);
    }

    #[test]
    fn without_a_breaker_all_follows() {
        assert_eq!(n_after_last(&breakers(&["q"]), &[0, 1, 2]), 3);
        assert_eq!(n_after_last(&breakers(&[]), &[0, 1, 2]), 3);
        assert_eq!(n_after_last(&breakers(&["a"]), &[]), 0);
        assert_eq!(n_after_last(&breakers(&["a"]), &[-1, 99]), 2);
    }

    #[test]
    fn a_search_that_ends_early_finds_as_much_as_matters() {
        let breakers = breakers(&["aab", "xx"]);
        let mut rng = Mt19937::new(2);
        for _ in 0..2_000 {
            let n = 1 + rng.next_u32() % 60;
            let said: Vec<Token> = (0..n).map(|_| [6, 6, 1, 1, 1, 4, 0, 3][rng.next_u32() as usize % 8]).collect();
            let (all, window) = (n_after_last(&breakers, &said), holding(&said));
            for most in [0, 1, 5, 30] {
                assert_eq!(breakers.n_after_last(&window, most).min(most), all.min(most), "{said:?}");
            }
        }
    }

    #[test]
    fn a_search_ends_early() {
        // A breaker that is farther away than what matters is not found.
        let mut said = vec![0; 200];
        said[0] = 2;
        let (breakers, window) = (breakers(&["ab"]), holding(&said));
        assert_eq!((breakers.n_after_last(&window, usize::MAX), breakers.n_after_last(&window, 100)), (199, 200));
    }
}
