//! What was written in chats, in the tokens that it was written in: a next turn sends it back as text, which the tokenizer may cut
//! otherwise. Pure: texts in, tokens out.
//!
//! A prompt that was made of text is taken as an earlier text and the rest, as far as their bytes agree, from one place where both
//! have a boundary between tokens to the next. Only what was written here is ever taken so, and nothing across a control token.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::cache::AdapterSet;
use crate::engine::sequence::Tokens;
use crate::request::Token;
use crate::sampling::TokenStrings;

/// Most tokens of all texts that are kept; each is four bytes.
pub const MAX_SAID: usize = 1 << 20;

/// Most texts that are kept.
pub const MAX_SAID_TEXTS: usize = 1024;

/// Tokens that one prompt is compared with; older texts are not looked at then.
const MAX_COMPARED: usize = 1 << 20;

/// Texts of which it is tried how far they go along with a prompt, of those that spell it on where their tokens differ: those whose
/// tokens are the same the furthest.
const MAX_TRIED: usize = 8;

/// Most tokens of a stretch that is cut otherwise, of either text.
const MAX_STRETCH: usize = 256;

/// The last texts of chats.
#[derive(Debug, Default)]
pub(crate) struct TranscriptCache {
    /// Oldest first.
    texts: VecDeque<Arc<Transcript>>,
    n_tokens: usize,
}

/// A prompt and what was written after it.
#[derive(Debug)]
pub(crate) struct Transcript {
    owner: Option<Arc<str>>,
    variant: AdapterSet,
    tokens: Tokens,
    /// What of it was written here, in order.
    written: Vec<Range<u32>>,
}

/// A prompt in the tokens that it was written in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RetokenizedPrompt {
    pub(crate) tokens: Vec<Token>,
    /// What of it was written here, in order.
    pub(crate) written: Vec<Range<u32>>,
    /// The tokens of the prompt that were given up for others, and where the others end.
    stretches: Vec<(Range<u32>, u32)>,
}

impl RetokenizedPrompt {
    /// Where the place before token `at` of the prompt is; `None` inside of what was given up.
    pub(crate) fn place(&self, at: u32) -> Option<u32> {
        match self.stretches.iter().rev().find(|(range, _)| range.start < at) {
            None => Some(at),
            Some((range, _)) if at < range.end => None,
            Some((range, end)) => Some(end + at - range.end),
        }
    }
}

impl TranscriptCache {
    /// Keeps the text of a branch, of which these stretches were written here.
    pub(crate) fn remember(&mut self, owner: Option<Arc<str>>, variant: AdapterSet, tokens: Tokens, written: Vec<Range<u32>>) {
        self.n_tokens += tokens.len() as usize;
        self.texts.push_back(Arc::new(Transcript { owner, variant, tokens, written }));
        while self.n_tokens > MAX_SAID || self.texts.len() > MAX_SAID_TEXTS {
            let Some(oldest) = self.texts.pop_front() else { return };
            self.n_tokens -= oldest.tokens.len() as usize;
        }
    }

    /// The texts of an owner that are computed so, newest first. Whoever looks through them holds up nobody who remembers another.
    pub(crate) fn texts(&self, owner: Option<&str>, variant: &AdapterSet) -> Vec<Arc<Transcript>> {
        let is_meant = |text: &&Arc<Transcript>| text.owner.as_deref() == owner && text.variant == *variant;
        self.texts.iter().rev().filter(is_meant).map(Arc::clone).collect()
    }

    /// Tokens of all texts, and texts.
    #[cfg(test)]
    fn size(&self) -> (usize, usize) {
        (self.n_tokens, self.texts.len())
    }
}

/// `prompt` in the tokens that its owner was answered in, whose texts these are; `None` where that changes nothing.
pub(crate) fn retokenize(texts: &[Arc<Transcript>], prompt: &[Token], lexicon: &TokenStrings) -> Option<RetokenizedPrompt> {
    let mut n_left = MAX_COMPARED;
    let mut candidates: Vec<(usize, &Transcript)> = Vec::new();
    for text in texts {
        let n_common = text.n_common(prompt);
        if n_common < prompt.len() && text.boundary(prompt, n_common, n_common, lexicon).is_some() {
            candidates.push((n_common, text));
        }
        n_left = n_left.saturating_sub(n_common);
        if n_left == 0 {
            break;
        }
    }
    // The newest of those that go along as far come first.
    candidates.sort_by_key(|&(n_common, _)| std::cmp::Reverse(n_common));
    let tried = candidates.into_iter().take(MAX_TRIED).filter_map(|(n_common, text)| text.retokenize(prompt, n_common, lexicon));
    tried.max_by_key(|(n_taken, _)| *n_taken).map(|(_, respelt)| respelt)
}

impl Transcript {
    fn at(&self, at: usize) -> Token {
        self.tokens.at(u32::try_from(at).expect("a sequence fits its context"))
    }

    fn len(&self) -> usize {
        self.tokens.len() as usize
    }

    fn n_common(&self, prompt: &[Token]) -> usize {
        let [shared, own] = self.tokens.slices(0..self.tokens.len());
        let n_common = |a: &[Token], b: &[Token]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        let n = n_common(shared, prompt);
        if n < shared.len() { n } else { n + n_common(own, &prompt[n..]) }
    }

    /// The end of the stretch around `at` that was written here.
    fn written_until(&self, at: usize) -> Option<usize> {
        let is_in = |range: &&Range<u32>| (range.start as usize..range.end as usize).contains(&at);
        self.written.iter().find(is_in).map(|range| range.end as usize)
    }

    /// How many tokens of `prompt` from `at` on, and of this text from `here` on, where it was written here, spell the same up to
    /// the next boundary of both. `None` where they do not.
    fn boundary(&self, prompt: &[Token], at: usize, here: usize, lexicon: &TokenStrings) -> Option<(usize, usize)> {
        let end = self.written_until(here)?.min(self.len()).min(here + MAX_STRETCH);
        let number = |n: usize| u32::try_from(n).expect("a sequence fits its context");
        let [shared, own] = self.tokens.slices(number(here)..number(end));
        next_boundary(&prompt[at..], shared.iter().chain(own), lexicon)
    }

    /// `prompt`, whose first `n_common` tokens are the same, in the tokens of this text as far as their bytes agree; and how many of
    /// them those are. `None` where it stays as it is.
    fn retokenize(&self, prompt: &[Token], n_common: usize, lexicon: &TokenStrings) -> Option<(usize, RetokenizedPrompt)> {
        let (mut at, mut here) = (n_common, n_common);
        let mut stretches = Vec::new();
        let number = |n: usize| u32::try_from(n).expect("a prompt has fewer than 2³² tokens");
        loop {
            while at < prompt.len() && here < self.len() && prompt[at] == self.at(here) {
                (at, here) = (at + 1, here + 1);
            }
            let Some((n, n_here)) = self.boundary(prompt, at, here, lexicon) else { break };
            stretches.push((number(at)..number(at + n), number(here + n_here)));
            (at, here) = (at + n, here + n_here);
        }
        if stretches.is_empty() {
            return None;
        }
        let mut tokens = self.tokens.first(number(here));
        tokens.extend_from_slice(&prompt[at..]);
        let n_taken = number(here);
        let written = self.written.iter().filter(|range| range.start < n_taken);
        let written = written.map(|range| range.start..range.end.min(n_taken)).collect();
        Some((here, RetokenizedPrompt { tokens, written, stretches }))
    }
}

/// How many of the first tokens of either text spell the same, up to the first boundary that both have. `None` where their bytes
/// differ before, a control token stands before, or one ends before.
fn next_boundary<'a>(
    left: &'a [Token],
    right: impl Iterator<Item = &'a Token> + 'a,
    lexicon: &TokenStrings,
) -> Option<(usize, usize)> {
    let pieces = |token: &Token| lexicon.piece(*token);
    let (mut left, mut right) = (left.iter().take(MAX_STRETCH).map(pieces), right.take(MAX_STRETCH).map(pieces));
    let (mut n_left, mut n_right) = (0, 0);
    // What one of them has spelt beyond the other.
    let mut ahead: &[u8] = &[];
    let mut is_left_ahead = false;
    loop {
        let (next, n) = if is_left_ahead { (right.next(), &mut n_right) } else { (left.next(), &mut n_left) };
        let piece = next.filter(|piece| !piece.is_empty())?;
        *n += 1;
        if ahead.len() >= piece.len() {
            ahead = ahead.strip_prefix(piece)?;
        } else {
            ahead = piece.strip_prefix(ahead)?;
            is_left_ahead = !is_left_ahead;
        }
        if ahead.is_empty() && n_left > 0 && n_right > 0 {
            return Some((n_left, n_right));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::token_strings::tests::Pieces;

    const PIECES: [&str; 8] = ["<end>", "a", "b", "ab", "c", "abc", "d", "x"];

    fn tokens(pieces: &[&str]) -> Vec<Token> {
        let token = |piece: &&str| PIECES.iter().position(|known| known == piece).expect("it is a piece");
        pieces.iter().map(|piece| Token::try_from(token(piece)).expect("small")).collect()
    }

    /// A text that is kept: a prompt and what was written after it.
    fn said(prompt: &[&str], written: &[&str]) -> TranscriptCache {
        let mut text = Tokens::new(tokens(prompt).into());
        for token in tokens(written) {
            text.push(token);
        }
        let n_prompt = u32::try_from(prompt.len()).expect("small");
        let mut said = TranscriptCache::default();
        let range = n_prompt..text.len();
        said.remember(None, AdapterSet::default(), text, vec![range]);
        said
    }

    fn respelt(said: &TranscriptCache, prompt: &[&str]) -> Option<RetokenizedPrompt> {
        retokenize(&said.texts(None, &AdapterSet::default()), &tokens(prompt), &Pieces::lexicon(&PIECES, 1))
    }

    #[test]
    fn what_was_written_stays_in_its_tokens_up_to_the_last_boundary_of_both() {
        let said = said(&["d"], &["a", "b", "c", "a", "b"]);
        // The text goes on after it, in a token that begins inside of what was written.
        let told = respelt(&said, &["d", "abc", "abc", "x"]).expect("it is cut otherwise");
        assert_eq!(told.tokens, tokens(&["d", "a", "b", "c", "abc", "x"]));
        assert_eq!(told.written.first(), Some(&(1..4)));
        let told = respelt(&said, &["d", "ab", "c", "ab", "x"]).expect("it is cut otherwise");
        assert_eq!(told.tokens, tokens(&["d", "a", "b", "c", "a", "b", "x"]));
        assert_eq!((told.written.first(), told.stretches), (Some(&(1..6)), vec![(1..2, 3), (3..4, 6)]));
    }

    #[test]
    fn the_same_tokens_another_text_and_what_was_only_sent_stay_as_they_are() {
        let said = said(&["d", "a", "b"], &["a", "b"]);
        assert_eq!(respelt(&said, &["d", "a", "b", "a", "b", "x"]), None, "the same tokens");
        assert_eq!(respelt(&said, &["d", "a", "b", "a", "c"]), None, "another text");
        assert_eq!(respelt(&said, &["d", "ab", "a", "b"]), None, "the tokenizer cuts a prompt as it cuts any");
        assert_eq!(respelt(&said, &["d", "a", "b", "<end>", "ab"]), None, "a control token is no text");
        assert!(said.texts(Some("somebody"), &AdapterSet::default()).is_empty(), "somebody else's answer");
    }

    #[test]
    fn of_many_chats_that_begin_alike_the_one_that_goes_on_so_is_found() {
        let mut said = TranscriptCache::default();
        let mut chat = |written: &[&str]| {
            let mut text = Tokens::new(tokens(&["d"]).into());
            for token in tokens(written) {
                text.push(token);
            }
            let range = 1..text.len();
            said.remember(None, AdapterSet::default(), text, vec![range]);
        };
        chat(&["a", "b", "d", "a", "b", "x"]);
        for _ in 0..3 * MAX_TRIED {
            chat(&["a", "c", "x"]);
        }
        let told = respelt(&said, &["d", "ab", "d", "ab", "x"]).expect("it is cut otherwise");
        assert_eq!(told.tokens, tokens(&["d", "a", "b", "d", "a", "b", "x"]));
    }

    #[test]
    fn nothing_is_taken_across_a_control_token() {
        let said = said(&["d"], &["a", "<end>", "b"]);
        assert_eq!(respelt(&said, &["d", "ab", "x"]), None);
        assert_eq!(respelt(&said, &["d", "ab", "<end>", "b"]), None);
    }

    #[test]
    fn a_place_is_found_again_unless_it_is_inside_of_what_was_given_up() {
        let said = said(&["d"], &["a", "b", "x", "a", "b", "c"]);
        let told = respelt(&said, &["d", "ab", "x", "ab", "c", "d"]).expect("it is cut otherwise");
        assert_eq!((0..=6).map(|at| told.place(at)).collect::<Vec<_>>(), [0, 1, 3, 4, 6, 7, 8].map(Some));
        let whole = respelt(&super::tests::said(&["d"], &["abc"]), &["d", "ab", "c", "d"]).expect("it is cut otherwise");
        assert_eq!((0..=4).map(|at| whole.place(at)).collect::<Vec<_>>(), [Some(0), Some(1), None, Some(2), Some(3)]);
    }

    #[test]
    fn every_text_spells_what_it_did() {
        let lexicon = Pieces::lexicon(&PIECES, 1);
        let spelling = |tokens: &[Token]| tokens.iter().flat_map(|&token| lexicon.spelling(token).to_vec()).collect::<Vec<u8>>();
        let length = |tokens: &[Token]| u32::try_from(tokens.len()).expect("small");
        let mut state = 5_u64;
        let mut chance = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).expect("64 bits") % n
        };
        let mut n_respelt = 0;
        for _ in 0..2000 {
            let mut said = TranscriptCache::default();
            let mut spelt = Vec::new();
            for _ in 0..4 {
                let mut text = Tokens::new(vec![6; 1 + chance(3)].into());
                let n_prompt = text.len();
                for _ in 0..chance(12) {
                    text.push([1, 2, 3, 4, 5, 7, 0][chance(7)]);
                }
                spelt = spelling(&text.first(text.len()));
                let range = n_prompt..text.len();
                said.remember(None, AdapterSet::default(), text, vec![range]);
            }
            for _ in 0..chance(3) {
                // A control token is not cut.
                spelt.pop_if(|byte| *byte != b'>');
            }
            spelt.extend([b"abcx", b"xabc", b"dabd"][chance(3)]);
            let prompt = lexicon.tokenize(&spelt);
            let Some(told) = retokenize(&said.texts(None, &AdapterSet::default()), &prompt, &lexicon) else { continue };
            n_respelt += 1;
            assert_eq!(spelling(&told.tokens), spelling(&prompt), "{prompt:?} became {told:?}");
            let n_controls = |tokens: &[Token]| tokens.iter().filter(|&&token| token == 0).count();
            assert_eq!(n_controls(&told.tokens), n_controls(&prompt));
            assert_eq!(told.place(length(&prompt)), Some(length(&told.tokens)));
        }
        assert!(n_respelt > 100, "{n_respelt} texts were cut otherwise");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut said = TranscriptCache::default();
        let text = |n: usize| Tokens::new(vec![1; n].into());
        for _ in 0..2 * MAX_SAID_TEXTS {
            said.remember(None, AdapterSet::default(), text(3), Vec::new());
        }
        assert_eq!(said.size(), (3 * MAX_SAID_TEXTS, MAX_SAID_TEXTS));
        for _ in 0..9 {
            said.remember(None, AdapterSet::default(), text(MAX_SAID / 4), Vec::new());
        }
        assert_eq!(said.size(), (MAX_SAID, 4));
        said.remember(None, AdapterSet::default(), text(MAX_SAID + 1), Vec::new());
        assert_eq!(said.size(), (0, 0));
    }
}
