//! Finds the special tokens of a text.
//!
//! llama.cpp searches for one special token after the other, the longest first; some also strip the white space before or after
//! them. This module finds the same matches in time linear in the text: llama.cpp takes half a minute for a megabyte of them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::ops::Range;

use aho_corasick::AhoCorasick;

use crate::request::Token;

#[derive(Debug, Clone, Copy)]
pub(crate) struct SpecialToken<'a> {
    pub(crate) token: Token,
    pub(crate) spelling: &'a [u8],
    pub(crate) strips_left: bool,
    pub(crate) strips_right: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TextSpan {
    Special(Token),
    Plain(Range<usize>),
}

pub(crate) struct SpecialTokens {
    finder: AhoCorasick,
    /// Indexed by rank, which is also the pattern id of `finder`; the lowest rank wins.
    ranks: Vec<Rank>,
}

struct Rank {
    token: Token,
    n_bytes: usize,
    strips_left: bool,
    strips_right: bool,
    shorter: Option<u32>,
}

impl SpecialTokens {
    /// Compiles the search for `tokens`, which are sorted, the longest first; of equal spellings the first counts.
    pub(crate) fn new<'a>(tokens: impl Iterator<Item = SpecialToken<'a>>) -> Result<Self, String> {
        let mut seen = HashSet::new();
        let tokens: Vec<SpecialToken<'a>> = tokens.filter(|token| seen.insert(token.spelling)).collect();
        let finder = AhoCorasick::new(tokens.iter().map(|token| token.spelling))
            .map_err(|error| format!("its special tokens are too many or too long: {error}"))?;
        let ranks = (0..).zip(&tokens).map(|(rank, token)| {
            let n_bytes = token.spelling.len();
            let others = finder.find_overlapping_iter(token.spelling).filter(|found| found.end() == n_bytes);
            let shorter = others.map(|found| found.pattern().as_u32()).filter(|&other| other != rank).min();
            Rank { token: token.token, n_bytes, strips_left: token.strips_left, strips_right: token.strips_right, shorter }
        });
        Ok(Self { ranks: ranks.collect(), finder })
    }

    /// Splits `text`, which is shorter than 4 GiB. Needs at most 9 bytes for each byte of it.
    pub(crate) fn split(&self, text: &[u8]) -> Vec<TextSpan> {
        self.split_counting(text).0
    }

    fn split_counting(&self, text: &[u8]) -> (Vec<TextSpan>, usize) {
        let mut n_steps = 0;
        let mut candidates = self.longest_at_each_end(text);
        let mut claimed = ClaimedBytes(vec![false; if candidates.is_empty() { 0 } else { text.len() }]);
        let mut found = Vec::new();
        while let Some(Reverse((rank, end))) = candidates.pop() {
            n_steps += 1;
            let special = self.rank(rank);
            let (start, end) = (end as usize - special.n_bytes, end as usize);
            // Claims are at least this long, and of white space only next to such a token: if both ends are free, so is the rest.
            if claimed.0[end - 1] {
                continue;
            }
            if claimed.0[start] {
                candidates.extend(special.shorter.map(|shorter| Reverse((shorter, as_u32(end)))));
                continue;
            }
            claimed.0[start..end].fill(true);
            if special.strips_left {
                n_steps += claimed.strip((0..start).rev(), text);
            }
            if special.strips_right {
                n_steps += claimed.strip(end..text.len(), text);
            }
            found.push((start, end, special.token));
        }
        found.sort_unstable();
        (claimed.spans(&found, text.len()), n_steps)
    }

    /// For each offset where special tokens end, the one of lowest rank, which is the longest: the others are its suffixes.
    fn longest_at_each_end(&self, text: &[u8]) -> BinaryHeap<Reverse<(u32, u32)>> {
        let mut longest: Vec<Reverse<(u32, u32)>> = Vec::new();
        for found in self.finder.find_overlapping_iter(text) {
            let (rank, end) = (found.pattern().as_u32(), as_u32(found.end()));
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

struct ClaimedBytes(Vec<bool>);

impl ClaimedBytes {
    fn strip(&mut self, offsets: impl Iterator<Item = usize>, text: &[u8]) -> usize {
        let mut n_steps = 0;
        for offset in offsets {
            n_steps += 1;
            if self.0[offset] || !is_space(text[offset]) {
                break;
            }
            self.0[offset] = true;
        }
        n_steps
    }

    fn spans(&self, found: &[(usize, usize, Token)], n_bytes: usize) -> Vec<TextSpan> {
        let mut spans = Vec::with_capacity(2 * found.len() + 1);
        let mut from = 0;
        for &(start, end, token) in found {
            spans.extend(self.plain(from..start));
            spans.push(TextSpan::Special(token));
            from = end;
        }
        spans.extend(if found.is_empty() {
            (n_bytes > 0).then_some(TextSpan::Plain(0..n_bytes))
        } else {
            self.plain(from..n_bytes)
        });
        spans
    }

    fn plain(&self, mut between: Range<usize>) -> Option<TextSpan> {
        let start = between.find(|&offset| !self.0[offset])?;
        let end = between.rfind(|&offset| !self.0[offset]).unwrap_or(start) + 1;
        Some(TextSpan::Plain(start..end))
    }
}

/// Returns true if a byte is white space, as `isspace` in the C locale.
pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn as_u32(offset: usize) -> u32 {
    u32::try_from(offset).expect("a text is shorter than 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::{SpecialToken, SpecialTokens, TextSpan};

    /// Creates tokens with these spellings, the longest first. A leading `_` strips the white space before the token, a trailing
    /// `_` that after it.
    fn special(spellings: &[&str]) -> SpecialTokens {
        let tokens = (0..).zip(spellings).map(|(token, spelling)| SpecialToken {
            token,
            spelling: spelling.as_bytes(),
            strips_left: spelling.starts_with('_'),
            strips_right: spelling.ends_with('_'),
        });
        SpecialTokens::new(tokens).expect("the patterns are short")
    }

    /// Formats the spans of `text`: special tokens in brackets, plain ones in quotes.
    fn split(spellings: &[&str], text: &str) -> String {
        let words = special(spellings).split(text.as_bytes()).into_iter().map(|span| match span {
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
    fn the_longest_token_wins_at_any_offset() {
        assert_eq!(split(&["bcd", "ab"], "abcd"), "'a' [bcd]");
        assert_eq!(split(&["abcd", "bc", "c"], "abcd bc xcx"), "[abcd] ' ' [bc] ' x' [c] 'x'");
    }

    #[test]
    fn of_two_equally_long_tokens_the_first_wins() {
        assert_eq!(split(&["ab", "bc"], "abc"), "[ab] 'c'");
        assert_eq!(split(&["bc", "ab"], "abc"), "'a' [bc]");
    }

    #[test]
    fn suffixes_match_where_the_longest_token_overlaps_another() {
        assert_eq!(split(&["aaa", "aa", "a"], "aaaaaaaa"), "[aaa] [aaa] [aa]");
        assert_eq!(split(&["xaaa", "aaaa", "aa"], "xaaaaaa"), "[xaaa] [aa] 'a'");
    }

    #[test]
    fn tokens_strip_unclaimed_white_space() {
        assert_eq!(split(&["_m"], "a \n\t_m b"), "'a' [_m] ' b'");
        assert_eq!(split(&["m_"], "a m_ \x0b\x0c\r b"), "'a ' [m_] 'b'");
        assert_eq!(split(&["_m_"], " _m_  _m_ "), "[_m_] [_m_]");
        assert_eq!(split(&["   ", "_m"], "a     _m"), "'a' [   ] [_m]");
        assert_eq!(split(&["_m", " "], "a  _m b"), "'a' [_m] [ ] 'b'");
    }

    #[test]
    fn the_number_of_steps_is_linear_in_the_text() {
        // For each text, the maximum number of special tokens that end at one offset, and of white-space bytes examined for each
        // match.
        let texts: [(&[&str], &str, usize); 5] = [
            (&["<s>"], "<s>", 1),
            (&["aaaa", "aaa", "aa", "a"], "a", 4),
            (&["baaa", "aaaa", "aa"], "aaaaab", 3),
            (&["_m_"], "_m_   ", 4),
            (&["   ", "_m", " "], "     _m", 3),
        ];
        for (spellings, part, max_steps) in texts {
            let special = special(spellings);
            for n in [1, 1_000, 100_000] {
                let text = part.repeat(n);
                let (_, n_steps) = special.split_counting(text.as_bytes());
                assert!(n_steps <= max_steps * text.len(), "{spellings:?} {n}: {n_steps} steps for {} bytes", text.len());
            }
        }
    }

    #[test]
    fn a_text_of_special_tokens_has_no_plain_spans() {
        let n_tokens = 1 << 20;
        let text = "<s>".repeat(n_tokens);
        assert_eq!(special(&["<s>"]).split(text.as_bytes()), vec![TextSpan::Special(0); n_tokens]);
    }
}
