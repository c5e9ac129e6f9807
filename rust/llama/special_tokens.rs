//! Where the special tokens of a text are.
//!
//! llama.cpp looks for one special token after the other, the longest first, each from left to right in what the ones before it
//! have left of the text; some also take the white space before or behind them. What it finds is what is found here, in time that
//! grows as the text does: llama.cpp walks the list of all that it has found for each next one, so that a text of a million bytes
//! of special tokens takes it half a minute.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::ops::Range;

use aho_corasick::AhoCorasick;

use crate::request::Token;

/// A token that is found in a text by its spelling, before the text is tokenized.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpecialToken<'a> {
    pub(super) token: Token,
    /// Not empty.
    pub(super) spelling: &'a [u8],
    /// Whether it takes the white space before it.
    pub(super) strips_left: bool,
    /// Whether it takes the white space behind it.
    pub(super) strips_right: bool,
}

/// A piece of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TextSpan {
    /// A special token.
    Special(Token),
    /// Bytes that no special token is in; at least one. No two of these follow each other.
    Plain(Range<usize>),
}

/// The special tokens of a vocabulary.
pub(super) struct SpecialTokens {
    finder: AhoCorasick,
    /// By their rank, which is the finder's number too: the first one wins.
    ranks: Vec<Rank>,
}

struct Rank {
    token: Token,
    n_bytes: usize,
    strips_left: bool,
    strips_right: bool,
    /// The longest other one that this one ends in.
    shorter: Option<u32>,
}

impl SpecialTokens {
    /// Of `tokens`, the longest first; of two that are spelt alike the first counts.
    ///
    /// # Errors
    /// If their spellings are longer than can be searched for, which takes gigabytes.
    pub(super) fn new<'a>(tokens: impl Iterator<Item = SpecialToken<'a>>) -> Result<Self, String> {
        let mut seen = HashSet::new();
        let tokens: Vec<SpecialToken<'a>> = tokens.filter(|token| seen.insert(token.spelling)).collect();
        let finder = AhoCorasick::new(tokens.iter().map(|token| token.spelling))
            .map_err(|error| format!("its special tokens are too many: {error}"))?;
        let ranks = (0..).zip(&tokens).map(|(rank, token)| {
            let n_bytes = token.spelling.len();
            let others = finder.find_overlapping_iter(token.spelling).filter(|found| found.end() == n_bytes);
            let shorter = others.map(|found| found.pattern().as_u32()).filter(|&other| other != rank).min();
            Rank { token: token.token, n_bytes, strips_left: token.strips_left, strips_right: token.strips_right, shorter }
        });
        Ok(Self { ranks: ranks.collect(), finder })
    }

    /// Cuts `text`, which is shorter than 4 GiB, into its special tokens and what is between them. White space that a special
    /// token takes is in no stretch.
    ///
    /// Needs at most 9 bytes beside each byte of the text, and one look at a place for each special token that ends there.
    pub(super) fn split(&self, text: &[u8]) -> Vec<TextSpan> {
        self.split_counting(text).0
    }

    /// The same, with the number of looks at places where special tokens end and at white space beside them.
    fn split_counting(&self, text: &[u8]) -> (Vec<TextSpan>, usize) {
        let mut n_looks = 0;
        let mut candidates = self.longest_at_each_end(text);
        let mut taken = ClaimedBytes(vec![false; if candidates.is_empty() { 0 } else { text.len() }]);
        let mut found = Vec::new();
        while let Some(Reverse((rank, end))) = candidates.pop() {
            n_looks += 1;
            let special = self.rank(rank);
            let (start, end) = (end as usize - special.n_bytes, end as usize);
            // What was taken before was no shorter, and takes no white space but beside itself: so where both ends are free, all
            // between them is.
            if taken.0[end - 1] {
                continue;
            }
            if taken.0[start] {
                candidates.extend(special.shorter.map(|shorter| Reverse((shorter, offset(end)))));
                continue;
            }
            taken.0[start..end].fill(true);
            if special.strips_left {
                n_looks += taken.strip((0..start).rev(), text);
            }
            if special.strips_right {
                n_looks += taken.strip(end..text.len(), text);
            }
            found.push((start, end, special.token));
        }
        found.sort_unstable();
        (taken.stretches(&found, text.len()), n_looks)
    }

    /// For each place where special tokens end, the first in rank, which is the longest: the others are its ends.
    fn longest_at_each_end(&self, text: &[u8]) -> BinaryHeap<Reverse<(u32, u32)>> {
        let mut longest: Vec<Reverse<(u32, u32)>> = Vec::new();
        for found in self.finder.find_overlapping_iter(text) {
            let (rank, end) = (found.pattern().as_u32(), offset(found.end()));
            match longest.last_mut() {
                Some(Reverse(last)) if last.1 == end => last.0 = last.0.min(rank),
                _ => longest.push(Reverse((rank, end))),
            }
        }
        BinaryHeap::from(longest)
    }

    fn rank(&self, rank: u32) -> &Rank {
        &self.ranks[rank as usize]
    }
}

/// Which bytes of a text are in a special token, or in white space that one takes.
struct ClaimedBytes(Vec<bool>);

impl ClaimedBytes {
    /// Takes the white space at the beginning of `places`, and returns how many of these it has looked at.
    fn strip(&mut self, places: impl Iterator<Item = usize>, text: &[u8]) -> usize {
        let mut n_looks = 0;
        for place in places {
            n_looks += 1;
            if self.0[place] || !is_space(text[place]) {
                break;
            }
            self.0[place] = true;
        }
        n_looks
    }

    /// The special tokens, given in order by where they begin and end, and what is left between them of `n_bytes`.
    fn stretches(&self, found: &[(usize, usize, Token)], n_bytes: usize) -> Vec<TextSpan> {
        let mut stretches = Vec::with_capacity(2 * found.len() + 1);
        let mut from = 0;
        for &(start, end, token) in found {
            stretches.extend(self.plain(from..start));
            stretches.push(TextSpan::Special(token));
            from = end;
        }
        stretches.extend(if found.is_empty() {
            (n_bytes > 0).then_some(TextSpan::Plain(0..n_bytes))
        } else {
            self.plain(from..n_bytes)
        });
        stretches
    }

    /// What is left of the bytes between two special tokens, if anything: both may have taken white space.
    fn plain(&self, mut between: Range<usize>) -> Option<TextSpan> {
        let start = between.find(|&place| !self.0[place])?;
        let end = between.rfind(|&place| !self.0[place]).unwrap_or(start) + 1;
        Some(TextSpan::Plain(start..end))
    }
}

/// What `isspace` says in C's own locale.
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn offset(place: usize) -> u32 {
    u32::try_from(place).expect("a text is shorter than 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::{SpecialToken, SpecialTokens, TextSpan};

    /// Tokens with these spellings, the longest first. One that begins with `_` takes the white space before it, one that ends with
    /// `_` that behind it.
    fn special(spellings: &[&str]) -> SpecialTokens {
        let tokens = (0..).zip(spellings).map(|(token, spelling)| SpecialToken {
            token,
            spelling: spelling.as_bytes(),
            strips_left: spelling.starts_with('_'),
            strips_right: spelling.ends_with('_'),
        });
        SpecialTokens::new(tokens).expect("they are few")
    }

    /// The stretches of `text`: special tokens in brackets, plain ones in quotes.
    fn split(spellings: &[&str], text: &str) -> String {
        let words = special(spellings).split(text.as_bytes()).into_iter().map(|stretch| match stretch {
            TextSpan::Special(token) => format!("[{}]", spellings[token.unsigned_abs() as usize]),
            TextSpan::Plain(range) => format!("'{}'", &text[range]),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_text_is_cut_at_its_special_tokens() {
        assert_eq!(split(&["<s>"], "a<s>b<s><s>"), "'a' [<s>] 'b' [<s>] [<s>]");
        assert_eq!(split(&["<s>"], "a<s"), "'a<s'");
        assert_eq!(split(&[], "a"), "'a'");
        assert_eq!(split(&["<s>"], ""), "");
    }

    #[test]
    fn the_longest_wins_wherever_it_stands() {
        assert_eq!(split(&["bcd", "ab"], "abcd"), "'a' [bcd]");
        assert_eq!(split(&["abcd", "bc", "c"], "abcd bc xcx"), "[abcd] ' ' [bc] ' x' [c] 'x'");
    }

    #[test]
    fn of_two_as_long_the_first_in_order_wins() {
        assert_eq!(split(&["ab", "bc"], "abc"), "[ab] 'c'");
        assert_eq!(split(&["bc", "ab"], "abc"), "'a' [bc]");
    }

    #[test]
    fn where_the_longest_does_not_fit_its_shorter_ends_do() {
        assert_eq!(split(&["aaa", "aa", "a"], "aaaaaaaa"), "[aaa] [aaa] [aa]");
        assert_eq!(split(&["xaaa", "aaaa", "aa"], "xaaaaaa"), "[xaaa] [aa] 'a'");
    }

    #[test]
    fn white_space_goes_with_a_token_that_takes_it_as_far_as_it_is_free() {
        assert_eq!(split(&["_m"], "a \n\t_m b"), "'a' [_m] ' b'");
        assert_eq!(split(&["m_"], "a m_ \x0b\x0c\r b"), "'a ' [m_] 'b'");
        assert_eq!(split(&["_m_"], " _m_  _m_ "), "[_m_] [_m_]");
        assert_eq!(split(&["   ", "_m"], "a     _m"), "'a' [   ] [_m]");
        assert_eq!(split(&["_m", " "], "a  _m b"), "'a' [_m] [ ] 'b'");
    }

    #[test]
    fn a_place_is_looked_at_once_for_each_special_token_that_ends_there_however_long_the_text() {
        // For each text, the most special tokens that end at one place, and the looks at white space for each that is found.
        let texts: [(&[&str], &str, usize); 5] = [
            (&["<s>"], "<s>", 1),
            (&["aaaa", "aaa", "aa", "a"], "a", 4),
            (&["baaa", "aaaa", "aa"], "aaaaab", 3),
            (&["_m_"], "_m_   ", 4),
            (&["   ", "_m", " "], "     _m", 3),
        ];
        for (spellings, part, most) in texts {
            let special = special(spellings);
            for n in [1, 1_000, 100_000] {
                let text = part.repeat(n);
                let (_, n_looks) = special.split_counting(text.as_bytes());
                assert!(n_looks <= most * text.len(), "{spellings:?} {n}: {n_looks} looks at {} bytes", text.len());
            }
        }
    }

    #[test]
    fn special_tokens_alone_leave_nothing_to_tokenize() {
        let n_tokens = 1 << 20;
        let text = "<s>".repeat(n_tokens);
        assert_eq!(special(&["<s>"]).split(text.as_bytes()), vec![TextSpan::Special(0); n_tokens]);
    }
}
