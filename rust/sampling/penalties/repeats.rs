//! Finds the tokens that followed earlier occurrences of a text's end.

use std::cell::RefCell;

use crate::request::Token;
use crate::sampling::{order, penalties::window::Window};

thread_local! {
    /// Per thread, so that a sequence does not hold memory for a whole context.
    static BUFFERS: RefCell<(Vec<Token>, Vec<usize>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

const BLOCK: usize = 64;

#[derive(Debug, Clone, Default)]
pub(crate) struct Repeats {
    matches: Vec<(Token, usize)>,
    /// Tokens compared to measure lengths in the last search.
    n_compared: usize,
}

impl Repeats {
    /// Finds each token of `window` that follows an earlier occurrence of the window's end of at least `min_length` tokens; in
    /// order of id, each with its longest occurrence, at most `max_length`.
    ///
    /// In most texts the last two tokens occur at few other positions: a pass that compilers vectorise finds these, and each is
    /// measured separately. In very repetitive texts the Z-algorithm reads the whole window instead.
    ///
    /// `window` must not be empty, and `max_length ≥ min_length`.
    pub(crate) fn find(&mut self, window: &Window, min_length: usize, max_length: usize) -> &[(Token, usize)] {
        assert!(!window.is_empty() && min_length <= max_length, "the window is empty, or max_length is below min_length");
        self.matches.clear();
        self.n_compared = 0;
        if min_length == 0 || !self.measure_each(window, min_length, max_length) {
            self.matches.clear();
            self.measure_all(window, min_length, max_length);
        }
        self.keep_longest();
        &self.matches
    }

    /// Returns `false` if this takes longer than `measure_all`.
    fn measure_each(&mut self, window: &Window, min_length: usize, max_length: usize) -> bool {
        let n = window.len();
        let last = window.nth_last(0);
        let second = (min_length > 1 && n > 1).then(|| window.nth_last(1));
        // The first token of each slice is always measured, because its predecessor is in another slice.
        let mut start = 0;
        for slice in window.slices() {
            let ends = slice.get(1..).unwrap_or_default();
            let is_in_time = ends.len() == slice.len()
                || self.measure(window, start, min_length, max_length)
                    && for_each_match(ends, &slice[..ends.len()], last, second, |offset| {
                        self.measure(window, start + 1 + offset, min_length, max_length)
                    });
            if !is_in_time {
                return false;
            }
            start += slice.len();
        }
        true
    }

    /// Measures the occurrence that ends at `position`. Returns `false` if too many tokens were compared.
    // Inlined into the scan, it takes the registers of its loop: 85 µs instead of 63 for a repetitive text of 131,072 tokens.
    #[inline(never)]
    fn measure(&mut self, window: &Window, position: usize, min_length: usize, max_length: usize) -> bool {
        let n = window.len();
        let Some(n_after) = (n - 1).checked_sub(position).filter(|&n_after| n_after > 0) else { return true };
        let next = window.nth_last(n_after - 1);
        // An occurrence of maximum length was already found for this token.
        if self.matches.last() == Some(&(next, max_length)) {
            return true;
        }
        let longest = max_length.min(n - n_after);
        let length = (0..longest).take_while(|&i| window.nth_last(i) == window.nth_last(n_after + i)).count();
        self.n_compared += length + 1;
        if length >= min_length {
            self.push(next, length);
        }
        self.n_compared <= n
    }

    fn measure_all(&mut self, window: &Window, min_length: usize, max_length: usize) {
        BUFFERS.with_borrow_mut(|(backwards, lengths)| {
            backwards.clear();
            for slice in window.slices().iter().rev() {
                backwards.extend(slice.iter().rev());
            }
            repeat_lengths(backwards, max_length, lengths);
            self.n_compared += 2 * backwards.len();
            for (&next, &length) in backwards.iter().zip(&lengths[1..]).filter(|&(_, &length)| length >= min_length) {
                self.push(next, length);
            }
        });
    }

    /// Ignores tokens outside of every row.
    fn push(&mut self, next: Token, length: usize) {
        match self.matches.last_mut() {
            Some((token, longest)) if *token == next => *longest = length.max(*longest),
            _ if next >= 0 => self.matches.push((next, length)),
            _ => {}
        }
    }

    fn keep_longest(&mut self) {
        let rank = |&(token, length): &(Token, usize)| {
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            (u64::from(token.unsigned_abs()) << 32) | u64::from(!length)
        };
        let ranks = self.matches.iter().map(rank).collect();
        let matches = &mut self.matches;
        order::with_sorted(ranks, |ranks| {
            matches.clear();
            matches.extend(ranks.iter().map(|rank| {
                let token = Token::try_from(rank >> 32).expect("the upper half of a rank is a token");
                (token, !u32::try_from(rank & 0xffff_ffff).expect("32 bits") as usize)
            }));
        });
        matches.dedup_by_key(|&mut (token, _)| token);
    }

    #[cfg(test)]
    pub(crate) fn n_copied(&self) -> usize {
        self.matches.len()
    }
}

/// Calls `found` with each position at which `ends` has `last`, after `second` if given, until it returns `false`.
fn for_each_match(
    ends: &[Token],
    predecessors: &[Token],
    last: Token,
    second: Option<Token>,
    mut found: impl FnMut(usize) -> bool,
) -> bool {
    let is_any = second.is_none();
    let second = second.unwrap_or_default();
    #[expect(clippy::needless_bitwise_bool, reason = "bitwise operators vectorise, branches do not")]
    let is_match = |end: Token, predecessor: Token| (end == last) & ((predecessor == second) | is_any);
    for (start, (ends, predecessors)) in (0..).step_by(BLOCK).zip(ends.chunks(BLOCK).zip(predecessors.chunks(BLOCK))) {
        if !ends.iter().zip(predecessors).fold(false, |any, (&end, &predecessor)| any | is_match(end, predecessor)) {
            continue;
        }
        for (position, (&end, &predecessor)) in (start..).zip(ends.iter().zip(predecessors)) {
            if is_match(end, predecessor) && !found(position) {
                return false;
            }
        }
    }
    true
}

/// Fills `lengths[k]` with the number of tokens, at most `limit`, in which a text without its last `k` tokens ends like the
/// whole text, given backwards; `lengths[0]` is meaningless.
///
/// The Z-algorithm (Main and Lorentz, 1984; Gusfield, "Algorithms on Strings, Trees and Sequences", 1997).
fn repeat_lengths(backwards: &[Token], limit: usize, lengths: &mut Vec<usize>) {
    let n = backwards.len();
    let agree_from = |mut i: usize, k: usize| {
        while i < n && backwards[i] == backwards[i - k] {
            i += 1;
        }
        i
    };
    lengths.clear();
    lengths.resize(n, 0);
    // The range `start..end` matches the text's end, and is the match that extends farthest.
    let (mut start, mut end) = (0, 1);
    for k in 1..n {
        let reused = if k < end { lengths[k - start] } else { 0 };
        if k < end && reused < end - k {
            lengths[k] = reused;
            continue;
        }
        let reached = agree_from(end.max(k), k);
        lengths[k] = (reached - k).min(limit);
        if reached > k || k < end {
            (start, end) = (k, reached);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::sampling::draw::rng::Mt19937;
    use crate::sampling::penalties::window::tests::holding;

    /// Expected result, by definition.
    fn expected(text: &[Token], min_length: usize, max_length: usize) -> Vec<(Token, usize)> {
        let mut longest = BTreeMap::new();
        for end in 1..text.len() {
            let (before, next) = (&text[..end], text[end]);
            let length = before.iter().rev().zip(text.iter().rev()).take_while(|(a, b)| a == b).count().min(max_length);
            if length >= min_length {
                let previous = longest.entry(next).or_insert(0);
                *previous = length.max(*previous);
            }
        }
        longest.into_iter().collect()
    }

    #[test]
    fn matches_agree_with_comparing_every_position() {
        let mut rng = Mt19937::new(6);
        let mut below = |n: usize| rng.next_u32() as usize % n;
        let mut repeats = Repeats::default();
        for round in 0..3_000 {
            let (n, n_ids) = (1 + below(300), [1, 2, 3, 20][below(4)]);
            let text: Vec<Token> = (0..n).map(|_| Token::try_from(below(n_ids)).unwrap()).collect();
            let min_length = below(5);
            let max_length = min_length + [0, 1, 7, 10_000][below(4)];
            // The first tokens are shared, and the rest is in the two slices of a ring buffer.
            let (n_prompt, n_window) = (below(n + 1), 1 + below(n));
            let mut window = Window::new(n_window);
            window.begin(text[..n_prompt].into());
            for &token in &text[n_prompt..] {
                window.push(token);
            }
            let text = &text[n - window.len()..];
            assert_eq!(
                repeats.find(&window, min_length, max_length),
                expected(text, min_length, max_length),
                "round {round}: {text:?}, {min_length}, {max_length}"
            );
        }
    }

    #[test]
    fn no_text_takes_many_comparisons() {
        const N: usize = 20_000;
        let period = |n: i32| (0..n).cycle().take(N).collect::<Vec<Token>>();
        let mut repeats = Repeats::default();
        for text in [period(1), period(2), period(48), period(9_000), [period(1), vec![7], period(1)].concat()] {
            for (min_length, max_length) in [(1, 5), (1, 160), (2, usize::MAX), (2, 2), (0, 100)] {
                let window = holding(&text);
                repeats.find(&window, min_length, max_length);
                let max_compared = 3 * text.len() + min_length.max(max_length.min(N));
                assert!(repeats.n_compared <= max_compared, "{} of {:?}", repeats.n_compared, &text[..5]);
            }
        }
    }

    #[test]
    fn a_text_that_repeats_little_is_not_compared_with_itself() {
        let mut rng = Mt19937::new(3);
        let text: Vec<Token> = (0..100_000).map(|_| Token::try_from(rng.next_u32() % 1_000).unwrap()).collect();
        let (mut repeats, window) = (Repeats::default(), holding(&text));
        repeats.find(&window, 2, 160);
        assert!(repeats.n_compared < 100, "{}", repeats.n_compared);
    }

    #[test]
    fn lengths_agree_with_comparing_every_position() {
        let mut rng = Mt19937::new(6);
        let mut lengths = Vec::new();
        for _ in 0..500 {
            let n = 1 + rng.next_u32() % 60;
            let text: Vec<Token> = (0..n).map(|_| i32::try_from(rng.next_u32() % 3).unwrap()).collect();
            let limit = [1, 3, text.len()][rng.next_u32() as usize % 3];
            repeat_lengths(&text, limit, &mut lengths);
            for k in 1..text.len() {
                let expected = (0..text.len() - k).take_while(|i| text[*i] == text[i + k]).count();
                assert_eq!(lengths[k], expected.min(limit), "{text:?} without the first {k}");
            }
        }
    }
}
