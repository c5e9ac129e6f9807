//! What goes on where the end of a text stands in it before.

use std::cell::RefCell;

use crate::request::Token;
use crate::sampling::order;
use crate::sampling::window::Window;

thread_local! {
    /// A text backwards, and how far each of its places repeats the end. They belong to the thread and not to a sampler, since a
    /// sequence should not keep a context's worth of memory.
    static SPARE: RefCell<(Vec<Token>, Vec<usize>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Tokens that are compared at once.
const N_AT_ONCE: usize = 64;

/// The tokens that would go on with a repetition.
#[derive(Debug, Clone, Default)]
pub(crate) struct Repeats {
    /// Each with the length of the repetition.
    found: Vec<(Token, usize)>,
    /// Tokens that were compared to measure lengths, in the last search.
    n_compared: usize,
}

impl Repeats {
    /// Finds each token that follows on a stretch of `window` with which, as its last tokens, `window` also ends, if that stretch is
    /// at least `least` tokens long; with its length, the longest of several, but `most` at most. In order of token id.
    ///
    /// Most texts repeat their last two tokens at few places. These are found in one pass, which compilers turn into vector code,
    /// and each is measured by itself; a text that repeats itself so much that this would take long, as it hardly does, is read as
    /// a whole. Either way the cost is that of reading the window once or a few times.
    ///
    /// `window` must not be empty, and `most` not below `least`.
    pub(crate) fn find(&mut self, window: &Window, least: usize, most: usize) -> &[(Token, usize)] {
        assert!(!window.is_empty() && least <= most, "a text of at least one token, and a length that can be reached");
        self.found.clear();
        self.n_compared = 0;
        if least == 0 || !self.measure_each(window, least, most) {
            self.found.clear();
            self.read_all(window, least, most);
        }
        self.keep_longest();
        &self.found
    }

    /// Looks at the places where the last two tokens stand before. `false` where measuring them takes longer than to read all.
    fn measure_each(&mut self, window: &Window, least: usize, most: usize) -> bool {
        let n = window.len();
        let last = window.nth_last(0);
        let second = (least > 1 && n > 1).then(|| window.nth_last(1));
        // Of each piece its first token, whose neighbour is in another one, is measured in any case.
        let mut start = 0;
        for piece in window.pieces() {
            let ends = piece.get(1..).unwrap_or_default();
            let is_in_time = ends.len() == piece.len()
                || self.measure(window, start, least, most)
                    && for_each_match(ends, &piece[..ends.len()], last, second, |at| {
                        self.measure(window, start + 1 + at, least, most)
                    });
            if !is_in_time {
                return false;
            }
            start += piece.len();
        }
        true
    }

    /// Measures the stretch that ends with the token `at`, where another one follows. `false` where too much was compared by now.
    fn measure(&mut self, window: &Window, at: usize, least: usize, most: usize) -> bool {
        let n = window.len();
        let Some(behind) = (n - 1).checked_sub(at).filter(|&behind| behind > 0) else { return true };
        let next = window.nth_last(behind - 1);
        // No other stretch before this token is longer.
        if self.found.last() == Some(&(next, most)) {
            return true;
        }
        let longest = most.min(n - behind);
        let length = (0..longest).take_while(|&i| window.nth_last(i) == window.nth_last(behind + i)).count();
        self.n_compared += length + 1;
        if length >= least {
            self.push(next, length);
        }
        self.n_compared <= n
    }

    /// Measures the stretches before all tokens.
    fn read_all(&mut self, window: &Window, least: usize, most: usize) {
        SPARE.with_borrow_mut(|(backwards, lengths)| {
            backwards.clear();
            for piece in window.pieces().iter().rev() {
                backwards.extend(piece.iter().rev());
            }
            repeat_lengths(backwards, most, lengths);
            self.n_compared += 2 * backwards.len();
            for (&next, &length) in backwards.iter().zip(&lengths[1..]).filter(|&(_, &length)| length >= least) {
                self.push(next, length);
            }
        });
    }

    /// Adds what was found, but for a negative token, which no row holds.
    fn push(&mut self, next: Token, length: usize) {
        match self.found.last_mut() {
            Some((token, longest)) if *token == next => *longest = length.max(*longest),
            _ if next >= 0 => self.found.push((next, length)),
            _ => {}
        }
    }

    /// Brings the tokens into order, each once.
    fn keep_longest(&mut self) {
        let rank = |&(token, length): &(Token, usize)| {
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            (u64::from(token.unsigned_abs()) << 32) | u64::from(!length)
        };
        let ranks = self.found.iter().map(rank).collect();
        let found = &mut self.found;
        order::with_sorted(ranks, |ranks| {
            found.clear();
            found.extend(ranks.iter().map(|rank| {
                let token = Token::try_from(rank >> 32).expect("it was one");
                (token, !u32::try_from(rank & 0xffff_ffff).expect("32 bits") as usize)
            }));
        });
        found.dedup_by_key(|&mut (token, _)| token);
    }

    /// How many tokens a clone would copy.
    #[cfg(test)]
    pub(crate) fn n_own(&self) -> usize {
        self.found.len()
    }
}

/// Calls `found` with each place at which `ends` holds `last` and `befores` holds `second`, if it is to be held to that, until it
/// returns `false`; returns whether it never did.
fn for_each_match(
    ends: &[Token],
    befores: &[Token],
    last: Token,
    second: Option<Token>,
    mut found: impl FnMut(usize) -> bool,
) -> bool {
    let is_any = second.is_none();
    let second = second.unwrap_or_default();
    #[expect(clippy::needless_bitwise_bool, reason = "vector code has no branches")]
    let is_match = |end: Token, before: Token| (end == last) & ((before == second) | is_any);
    for (start, (ends, befores)) in (0..).step_by(N_AT_ONCE).zip(ends.chunks(N_AT_ONCE).zip(befores.chunks(N_AT_ONCE))) {
        // All of them are compared, whatever the first ones are: that is what vector code does best.
        if !ends.iter().zip(befores).fold(false, |any, (&end, &before)| any | is_match(end, before)) {
            continue;
        }
        for (at, (&end, &before)) in (start..).zip(ends.iter().zip(befores)) {
            if is_match(end, before) && !found(at) {
                return false;
            }
        }
    }
    true
}

/// Fills `lengths[k]` with the number of tokens, at most `limit`, in which a text without its last `k` tokens ends as the whole text
/// does; `lengths[0]` means nothing. The text is given backwards and holds at least one token.
///
/// Source: the Z-algorithm (Main and Lorentz, 1984; Gusfield, "Algorithms on Strings, Trees and Sequences", 1997). The limit is held
/// against each length before it is used for others, as llama.cpp does; that changes none of them.
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
    // The stretch `start..end` repeats the text's end; it is the one that reaches farthest.
    let (mut start, mut end) = (0, 1);
    for k in 1..n {
        let known = if k < end { lengths[k - start] } else { 0 };
        if k < end && known < end - k {
            lengths[k] = known;
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
    use crate::sampling::rng::Mt19937;
    use crate::sampling::window::tests::holding;

    /// By definition.
    fn expected(text: &[Token], least: usize, most: usize) -> Vec<(Token, usize)> {
        let mut longest = BTreeMap::new();
        for end in 1..text.len() {
            let (before, next) = (&text[..end], text[end]);
            let length = before.iter().rev().zip(text.iter().rev()).take_while(|(a, b)| a == b).count().min(most);
            if length >= least {
                let known = longest.entry(next).or_insert(0);
                *known = length.max(*known);
            }
        }
        longest.into_iter().collect()
    }

    #[test]
    fn what_is_found_is_what_comparing_every_place_finds() {
        let mut rng = Mt19937::new(6);
        let mut below = |n: usize| rng.next_u32() as usize % n;
        let mut repeats = Repeats::default();
        for round in 0..3_000 {
            let (n, n_ids) = (1 + below(300), [1, 2, 3, 20][below(4)]);
            let text: Vec<Token> = (0..n).map(|_| Token::try_from(below(n_ids)).unwrap()).collect();
            let least = below(5);
            let most = least + [0, 1, 7, 10_000][below(4)];
            // The first tokens are shared, and the rest in the two pieces of a ring.
            let (n_prompt, n_window) = (below(n + 1), 1 + below(n));
            let mut window = Window::new(n_window);
            window.begin(text[..n_prompt].into());
            for &token in &text[n_prompt..] {
                window.push(token);
            }
            let text = &text[n - window.len()..];
            assert_eq!(
                repeats.find(&window, least, most),
                expected(text, least, most),
                "round {round}: {text:?}, {least}, {most}"
            );
        }
    }

    #[test]
    fn no_text_takes_many_comparisons() {
        const N: usize = 20_000;
        let period = |n: i32| (0..n).cycle().take(N).collect::<Vec<Token>>();
        let mut repeats = Repeats::default();
        for text in [period(1), period(2), period(48), period(9_000), [period(1), vec![7], period(1)].concat()] {
            for (least, most) in [(1, 5), (1, 160), (2, usize::MAX), (2, 2), (0, 100)] {
                let window = holding(&text);
                repeats.find(&window, least, most);
                let n_most = 3 * text.len() + least.max(most.min(N));
                assert!(repeats.n_compared <= n_most, "{} of {:?}", repeats.n_compared, &text[..5]);
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
    fn lengths_are_those_that_comparing_every_place_gives() {
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
