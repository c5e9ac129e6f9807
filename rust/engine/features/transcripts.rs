//! Generated chat texts in their original tokens: a later turn's text may be split differently. Pure: texts in, tokens out.
//!
//! A prompt made from text is replaced by an earlier text and its own rest, while their bytes agree, from one common token
//! boundary to the next. Only generated text is replaced, and never across a control token.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::cache::AdapterSet;
use crate::engine::Inner;
use crate::engine::features::state::{GroupFeatures, SharedFeatures};
use crate::engine::scheduler::request_group::RequestGroup;
use crate::engine::scheduler::sequence::Tokens;
use crate::lock::lock;
use crate::request::{Prompt, PromptRun, Request, Token};
use crate::sampling::TokenStrings;

pub const MAX_TRANSCRIPT_TOKENS: usize = 1 << 20;

pub const MAX_TRANSCRIPTS: usize = 1024;

/// Maximum tokens that one prompt is compared with; older transcripts are skipped beyond it.
const MAX_COMPARED: u32 = 1 << 20;

/// Maximum number of transcripts for which the replacement is tried: those with the most common tokens.
const MAX_TRIED: usize = 8;

/// Maximum tokens of a run that is split differently, in either text.
const MAX_RUN: u32 = 256;

#[derive(Debug, Default)]
pub(crate) struct TranscriptCache {
    /// Oldest first.
    texts: VecDeque<Arc<Transcript>>,
    n_tokens: usize,
}

#[derive(Debug)]
struct Transcript {
    owner: Option<Arc<str>>,
    adapter_set: AdapterSet,
    tokens: Tokens,
    generated_ranges: Vec<Range<u32>>,
}

#[derive(Debug, PartialEq, Eq)]
struct RetokenizedPrompt {
    tokens: Vec<Token>,
    generated_ranges: Vec<Range<u32>>,
    /// Ranges of prompt tokens that were replaced, each with the end of its replacement.
    replaced: Vec<(Range<u32>, u32)>,
}

impl RetokenizedPrompt {
    /// Maps a position of the prompt; `None` inside a replaced range.
    fn map_position(&self, position: u32) -> Option<u32> {
        let is_inside = self.replaced.iter().any(|(range, _)| range.start < position && position < range.end);
        (!is_inside).then(|| self.map_position_or_end(position))
    }

    /// Returns true if the prompt and a suffix of `n_suffix` tokens leave room for a token in a context of `n_ctx_slot`.
    fn fits(&self, n_suffix: usize, n_ctx_slot: u32) -> bool {
        self.tokens.len() + n_suffix < n_ctx_slot as usize
    }

    /// As [`map_position`](Self::map_position); a position inside of replaced text becomes the end of the text that replaces it.
    fn map_position_or_end(&self, position: u32) -> u32 {
        match self.replaced.iter().rev().find(|(range, _)| range.start < position) {
            None => position,
            Some((range, end)) => end + position.saturating_sub(range.end),
        }
    }
}

pub(crate) fn on_text(shared: &SharedFeatures, group: &RequestGroup, tokens: &Tokens) {
    let (n_prompt, n_tokens) = (group.n_prompt(), tokens.len());
    if group.request.keeps_answers && n_tokens > n_prompt && tokens.prompt().len() >= n_prompt as usize {
        let mut generated_ranges = group.features.transcripts.clone();
        generated_ranges.push(n_prompt..n_tokens);
        let (owner, adapters) = (group.request.owner.clone(), group.requested_adapters.clone());
        lock(&shared.transcripts).add(owner, adapters, tokens.clone(), generated_ranges);
    }
}

/// Replaces text that was generated for earlier requests with the same adapters by its original tokens, if the prompt contains
/// it, the request permits it, and it fits the context then. `invoked_at` is a position in the prompt.
pub(in crate::engine) fn on_validate(
    inner: &Inner,
    request: &mut Request,
    features: &mut GroupFeatures,
    adapters: &AdapterSet,
    invoked_at: &mut Option<u32>,
) {
    let [PromptRun::Tokens(prompt)] = request.prompt.runs() else { return };
    // Prompt logprobs are reported for the submitted tokens.
    if !request.keeps_answers || request.prompt_logprobs.is_some() {
        return;
    }
    let texts = lock(&inner.published.features.transcripts).find(request.owner.as_deref(), adapters);
    // The original tokens may be more than the tokenizer's.
    let n_suffix = request.suffix.len();
    let fits = |retokenized: &RetokenizedPrompt| retokenized.fits(n_suffix, inner.limits.n_ctx_slot);
    let Some(retokenized) = retokenize(&texts, prompt, &inner.model.token_strings).filter(fits) else { return };
    request.checkpoints_at = request.checkpoints_at.iter().filter_map(|&position| retokenized.map_position(position)).collect();
    request.system_end = request.system_end.and_then(|position| retokenized.map_position(position));
    *invoked_at = invoked_at.and_then(|position| retokenized.map_position(position));
    if let Some(shift) = &mut request.context_shift {
        shift.n_keep = shift.n_keep.map(|n| retokenized.map_position_or_end(n));
    }
    request.prompt = Prompt::from_tokens(retokenized.tokens);
    features.transcripts = retokenized.generated_ranges;
}

impl TranscriptCache {
    fn add(&mut self, owner: Option<Arc<str>>, adapter_set: AdapterSet, tokens: Tokens, generated_ranges: Vec<Range<u32>>) {
        self.n_tokens += tokens.len() as usize;
        self.texts.push_back(Arc::new(Transcript { owner, adapter_set, tokens, generated_ranges }));
        while self.n_tokens > MAX_TRANSCRIPT_TOKENS || self.texts.len() > MAX_TRANSCRIPTS {
            let Some(oldest) = self.texts.pop_front() else { return };
            self.n_tokens -= oldest.tokens.len() as usize;
        }
    }

    /// Newest first; shared, so that searching them does not block additions.
    fn find(&self, owner: Option<&str>, adapter_set: &AdapterSet) -> Vec<Arc<Transcript>> {
        let matches = |text: &&Arc<Transcript>| text.owner.as_deref() == owner && text.adapter_set == *adapter_set;
        self.texts.iter().rev().filter(matches).map(Arc::clone).collect()
    }

    #[cfg(test)]
    fn size(&self) -> (usize, usize) {
        (self.n_tokens, self.texts.len())
    }
}

fn retokenize(texts: &[Arc<Transcript>], prompt: &[Token], token_strings: &TokenStrings) -> Option<RetokenizedPrompt> {
    let mut n_left = MAX_COMPARED;
    let mut candidates: Vec<(u32, &Transcript)> = Vec::new();
    for text in texts {
        let n_common = text.tokens.common_prefix(prompt);
        if (n_common as usize) < prompt.len() && text.find_boundary(prompt, n_common, n_common, token_strings).is_some() {
            candidates.push((n_common, text));
        }
        n_left = n_left.saturating_sub(n_common);
        if n_left == 0 {
            break;
        }
    }
    // The sort is stable: the newest of equally good candidates stays first.
    candidates.sort_by_key(|&(n_common, _)| std::cmp::Reverse(n_common));
    let tried =
        candidates.into_iter().take(MAX_TRIED).filter_map(|(n_common, text)| text.retokenize(prompt, n_common, token_strings));
    tried.max_by_key(|(n_taken, _)| *n_taken).map(|(_, retokenized)| retokenized)
}

impl Transcript {
    /// Returns the number of tokens of `prompt` from `start` on, and of this text from `own_start` on, up to their next common
    /// boundary, within a generated range. `None` if their bytes differ before.
    fn find_boundary(&self, prompt: &[Token], start: u32, own_start: u32, token_strings: &TokenStrings) -> Option<(u32, u32)> {
        let generated = self.generated_ranges.iter().find(|range| range.contains(&own_start))?;
        let end = generated.end.min(self.tokens.len()).min(own_start + MAX_RUN);
        let [shared, own] = self.tokens.slices(own_start..end);
        find_next_boundary(&prompt[start as usize..], shared.iter().chain(own), token_strings)
    }

    /// Replaces tokens of `prompt`, whose first `n_common` are equal to this text's, while the bytes agree; also returns the
    /// number of tokens of this text that were used. `None` if nothing changes.
    fn retokenize(&self, prompt: &[Token], n_common: u32, token_strings: &TokenStrings) -> Option<(u32, RetokenizedPrompt)> {
        let (mut position, mut own_position) = (n_common, n_common);
        let mut replaced = Vec::new();
        loop {
            while own_position < self.tokens.len() && prompt.get(position as usize) == Some(&self.tokens.at(own_position)) {
                (position, own_position) = (position + 1, own_position + 1);
            }
            let Some((n, n_here)) = self.find_boundary(prompt, position, own_position, token_strings) else { break };
            replaced.push((position..position + n, own_position + n_here));
            (position, own_position) = (position + n, own_position + n_here);
        }
        if replaced.is_empty() {
            return None;
        }
        let mut tokens = self.tokens.first(own_position);
        tokens.extend_from_slice(&prompt[position as usize..]);
        let generated_ranges = self.generated_ranges.iter().filter(|range| range.start < own_position);
        let generated_ranges = generated_ranges.map(|range| range.start..range.end.min(own_position)).collect();
        Some((own_position, RetokenizedPrompt { tokens, generated_ranges, replaced }))
    }
}

/// Returns the tokens of either text up to their next common boundary; `None` if bytes differ or a control token precedes it.
fn find_next_boundary<'a>(
    left: &'a [Token],
    right: impl Iterator<Item = &'a Token> + 'a,
    token_strings: &TokenStrings,
) -> Option<(u32, u32)> {
    let pieces = |token: &Token| token_strings.piece(*token);
    let (mut left, mut right) = (left.iter().take(MAX_RUN as usize).map(pieces), right.map(pieces));
    let (mut n_left, mut n_right) = (0, 0);
    // Bytes by which one text is ahead of the other.
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

    /// A transcript of a prompt and generated text.
    fn transcript(prompt: &[&str], generated_ranges: &[&str]) -> TranscriptCache {
        let mut text = Tokens::new(tokens(prompt).into());
        for token in tokens(generated_ranges) {
            text.push(token);
        }
        let n_prompt = u32::try_from(prompt.len()).expect("small");
        let mut transcripts = TranscriptCache::default();
        let range = n_prompt..text.len();
        transcripts.add(None, AdapterSet::default(), text, vec![range]);
        transcripts
    }

    fn retokenized_with(transcripts: &TranscriptCache, prompt: &[&str]) -> Option<RetokenizedPrompt> {
        retokenize(&transcripts.find(None, &AdapterSet::default()), &tokens(prompt), &Pieces::token_strings(&PIECES, 1))
    }

    #[test]
    fn generated_text_keeps_its_tokens_up_to_the_last_common_boundary() {
        let transcripts = transcript(&["d"], &["a", "b", "c", "a", "b"]);
        // The text continues with a token that begins inside the generated text.
        let retokenized = retokenized_with(&transcripts, &["d", "abc", "abc", "x"]).expect("it is cut otherwise");
        assert_eq!(retokenized.tokens, tokens(&["d", "a", "b", "c", "abc", "x"]));
        assert_eq!(retokenized.generated_ranges.first(), Some(&(1..4)));
        let retokenized = retokenized_with(&transcripts, &["d", "ab", "c", "ab", "x"]).expect("it is cut otherwise");
        assert_eq!(retokenized.tokens, tokens(&["d", "a", "b", "c", "a", "b", "x"]));
        assert_eq!((retokenized.generated_ranges.first(), retokenized.replaced), (Some(&(1..6)), vec![(1..2, 3), (3..4, 6)]));
    }

    #[test]
    fn a_position_inside_of_replaced_text_becomes_its_end_where_one_is_required() {
        let transcripts = transcript(&["d"], &["ab", "c", "abc"]);
        let retokenized = retokenized_with(&transcripts, &["d", "a", "b", "c", "abc", "x"]).expect("it is cut otherwise");
        assert_eq!(retokenized.replaced, [(1..3, 2)]);
        assert_eq!(
            [0, 1, 2, 3, 4, 6].map(|position| retokenized.map_position(position)),
            [Some(0), Some(1), None, Some(2), Some(3), Some(5)]
        );
        assert_eq!([0, 1, 2, 3, 4, 6].map(|position| retokenized.map_position_or_end(position)), [0, 1, 2, 2, 3, 5]);
    }

    #[test]
    fn a_replaced_prompt_must_fit_with_the_suffix() {
        let transcripts = transcript(&["d"], &["a", "b", "c"]);
        let retokenized = retokenized_with(&transcripts, &["d", "abc", "x"]).expect("it is cut otherwise");
        assert_eq!([6, 7].map(|n_ctx_slot| retokenized.fits(1, n_ctx_slot)), [false, true], "five tokens and one");
    }

    #[test]
    fn equal_tokens_other_text_and_ungenerated_text_are_unchanged() {
        let transcripts = transcript(&["d", "a", "b"], &["a", "b"]);
        assert_eq!(retokenized_with(&transcripts, &["d", "a", "b", "a", "b", "x"]), None, "the same tokens");
        assert_eq!(retokenized_with(&transcripts, &["d", "a", "b", "a", "c"]), None, "another text");
        assert_eq!(retokenized_with(&transcripts, &["d", "ab", "a", "b"]), None, "the tokenizer cuts a prompt as it cuts any");
        assert_eq!(retokenized_with(&transcripts, &["d", "a", "b", "<end>", "ab"]), None, "a control token is no text");
        assert!(transcripts.find(Some("another"), &AdapterSet::default()).is_empty(), "somebody else's answer");
    }

    #[test]
    fn the_chat_with_the_longest_match_is_found_among_many_with_an_equal_beginning() {
        let mut transcripts = TranscriptCache::default();
        let mut chat = |generated_ranges: &[&str]| {
            let mut text = Tokens::new(tokens(&["d"]).into());
            for token in tokens(generated_ranges) {
                text.push(token);
            }
            let range = 1..text.len();
            transcripts.add(None, AdapterSet::default(), text, vec![range]);
        };
        chat(&["a", "b", "d", "a", "b", "x"]);
        for _ in 0..3 * MAX_TRIED {
            chat(&["a", "c", "x"]);
        }
        let retokenized = retokenized_with(&transcripts, &["d", "ab", "d", "ab", "x"]).expect("it is cut otherwise");
        assert_eq!(retokenized.tokens, tokens(&["d", "a", "b", "d", "a", "b", "x"]));
    }

    #[test]
    fn no_replacement_crosses_a_control_token() {
        let transcripts = transcript(&["d"], &["a", "<end>", "b"]);
        assert_eq!(retokenized_with(&transcripts, &["d", "ab", "x"]), None);
        assert_eq!(retokenized_with(&transcripts, &["d", "ab", "<end>", "b"]), None);
    }

    #[test]
    fn positions_are_mapped_unless_they_are_inside_a_replaced_range() {
        let transcripts = transcript(&["d"], &["a", "b", "x", "a", "b", "c"]);
        let retokenized = retokenized_with(&transcripts, &["d", "ab", "x", "ab", "c", "d"]).expect("it is cut otherwise");
        assert_eq!((0..=6).map(|n| retokenized.map_position(n)).collect::<Vec<_>>(), [0, 1, 3, 4, 6, 7, 8].map(Some));
        let whole =
            retokenized_with(&super::tests::transcript(&["d"], &["abc"]), &["d", "ab", "c", "d"]).expect("it is cut otherwise");
        assert_eq!((0..=4).map(|n| whole.map_position(n)).collect::<Vec<_>>(), [Some(0), Some(1), None, Some(2), Some(3)]);
    }

    #[test]
    fn retokenization_never_changes_the_text() {
        let token_strings = Pieces::token_strings(&PIECES, 1);
        let spelling =
            |tokens: &[Token]| tokens.iter().flat_map(|&token| token_strings.spelling(token).to_vec()).collect::<Vec<u8>>();
        let length = |tokens: &[Token]| u32::try_from(tokens.len()).expect("small");
        let mut state = 5_u64;
        let mut chance = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).expect("64 bits") % n
        };
        let mut n_retokenized = 0;
        for _ in 0..2000 {
            let mut transcripts = TranscriptCache::default();
            let mut text_bytes = Vec::new();
            for _ in 0..4 {
                let mut text = Tokens::new(vec![6; 1 + chance(3)].into());
                let n_prompt = text.len();
                for _ in 0..chance(12) {
                    text.push([1, 2, 3, 4, 5, 7, 0][chance(7)]);
                }
                text_bytes = spelling(&text.first(text.len()));
                let range = n_prompt..text.len();
                transcripts.add(None, AdapterSet::default(), text, vec![range]);
            }
            for _ in 0..chance(3) {
                // A control token is not split.
                text_bytes.pop_if(|byte| *byte != b'>');
            }
            text_bytes.extend([b"abcx", b"xabc", b"dabd"][chance(3)]);
            let prompt = token_strings.tokenize(&text_bytes);
            let Some(retokenized) = retokenize(&transcripts.find(None, &AdapterSet::default()), &prompt, &token_strings) else {
                continue;
            };
            n_retokenized += 1;
            assert_eq!(spelling(&retokenized.tokens), spelling(&prompt), "{prompt:?} became {retokenized:?}");
            let n_controls = |tokens: &[Token]| tokens.iter().filter(|&&token| token == 0).count();
            assert_eq!(n_controls(&retokenized.tokens), n_controls(&prompt));
            assert_eq!(retokenized.map_position(length(&prompt)), Some(length(&retokenized.tokens)));
        }
        assert!(n_retokenized > 100, "{n_retokenized} texts were cut otherwise");
    }

    #[test]
    fn the_cache_is_bounded() {
        let mut transcripts = TranscriptCache::default();
        let text = |n: usize| Tokens::new(vec![1; n].into());
        for _ in 0..2 * MAX_TRANSCRIPTS {
            transcripts.add(None, AdapterSet::default(), text(3), Vec::new());
        }
        assert_eq!(transcripts.size(), (3 * MAX_TRANSCRIPTS, MAX_TRANSCRIPTS));
        for _ in 0..9 {
            transcripts.add(None, AdapterSet::default(), text(MAX_TRANSCRIPT_TOKENS / 4), Vec::new());
        }
        assert_eq!(transcripts.size(), (MAX_TRANSCRIPT_TOKENS, 4));
        transcripts.add(None, AdapterSet::default(), text(MAX_TRANSCRIPT_TOKENS + 1), Vec::new());
        assert_eq!(transcripts.size(), (0, 0));
    }
}
