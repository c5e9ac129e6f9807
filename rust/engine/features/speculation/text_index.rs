//! Drafts from text: the tokens that followed where the last tokens of a sequence occurred before, in its own text or in another
//! text of its owner. Pure: tokens in, tokens out, no clock.
//!
//! Texts are found as by prompt lookup (Saxena 2023, <https://github.com/apoorvumang/prompt-lookup-decoding>), and shared among
//! the requests of an owner as by SuffixDecoding (<https://arxiv.org/abs/2411.04975>). That paper keeps suffix trees, which
//! cannot forget a text. Here, a table of fixed size has the latest positions of each n-gram; an entry is only a hint, whose text
//! is compared token by token, so that a text is forgotten by dropping it. A cursor follows its match, so that most tokens need
//! no lookup, and a text that repeats a longer one is not stored again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::request::Token;

/// Owner of a text, as [`Request::owner`](crate::request::Request::owner). A sequence finds texts of its own owner only.
pub(crate) type Owner = Option<Arc<str>>;

/// Lengths of the n-grams that are looked up, in tokens, longest first: the longer one finds a match among many short ones.
///
/// Speed of one stream, as a multiple of its speed without drafts, for the row costs of SmolLM2-135M and 156,000 tokens of its
/// tokenizer: 4.48 for whole files after an edit, 1.93 for patches, 1.20 for prose, 2.67 for JSON. Lengths 5 and 2 reach 4.44, 1.87,
/// 1.17 and 2.55. Drafts of 7 tokens by 3-grams alone accept 5 to 10 % fewer tokens than 5 and 2; lengths 8 and 2, or a vote among
/// the matches, differ by less than 1 %.
const N_GRAMS: [usize; 2] = [4, 1];

/// Length from which a match is not measured any further, in tokens. A text that continues such a match is not stored again.
pub(crate) const MAX_MATCHED: usize = 32;

/// Positions in a bucket: the latest ones of the n-grams that share it.
const N_WAYS: usize = 4;

/// Share of the index that one text may take; a longer one continues as another text.
const MAX_TEXT_SHARE: usize = 8;

/// Bytes of a text beyond its tokens. They are kept for a later text once the text is evicted.
const TEXT_OVERHEAD: usize = size_of::<Text>() + 2 * size_of::<Reverse<(u64, u16)>>();

/// A text of a [`TextIndex`]; stale once the text is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TextId {
    slot: u16,
    generation: u32,
}

/// The texts of all owners, bounded in bytes: the least recently used texts are evicted.
#[derive(Debug)]
pub(crate) struct TextIndex {
    buckets: Vec<[Entry; N_WAYS]>,
    texts: Vec<Text>,
    free_slots: Vec<u16>,
    /// Each text once, by a previous use: the first one whose last use this is was used least recently.
    by_use: BinaryHeap<Reverse<(u64, u16)>>,
    n_uses: u64,
    n_text_bytes: usize,
    max_text_bytes: usize,
    seed: u64,
}

#[derive(Debug, Default)]
struct Text {
    owner: Owner,
    tokens: Vec<Token>,
    generation: u32,
    last_use: u64,
}

/// An n-gram ends before position `next` of the text in `slot`. Empty if `next` is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Entry {
    slot: u16,
    /// Bits of the n-gram's hash, so that few wrong texts are compared.
    tag: u16,
    next: u32,
}

/// The last `n_matched` tokens of a sequence also precede position `next` of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Match {
    text: TextId,
    next: u32,
    n_matched: usize,
}

/// Position of one sequence: its last tokens, the text that stores its new ones, and its current match.
#[derive(Debug)]
pub(crate) struct MatchCursor {
    owner: Owner,
    /// Initial state of the hashes of n-grams: one owner's texts do not displace an n-gram of another owner.
    seed: u64,
    /// The last tokens, at least [`MAX_MATCHED`] if there are as many.
    recent: Vec<Token>,
    text: Option<TextId>,
    found: Option<Match>,
}

/// The index had predicted a token of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prediction {
    /// Length of the match before the token, at most [`MAX_MATCHED`].
    pub(crate) n_matched: usize,
    pub(crate) is_correct: bool,
}

impl MatchCursor {
    /// Returns the length of the current match in tokens, at most [`MAX_MATCHED`]; 0 without a match.
    pub(crate) fn n_matched(&self) -> usize {
        self.found.map_or(0, |found| found.n_matched)
    }

    fn remember(&mut self, token: Token) {
        if self.recent.len() == 2 * MAX_MATCHED {
            self.recent.drain(..MAX_MATCHED);
        }
        self.recent.push(token);
    }
}

impl TextIndex {
    /// Creates an empty index that takes at most `max_bytes`, of which four fifths are the table of n-grams: with two n-grams per
    /// token, this is an entry for each n-gram of a full index.
    ///
    /// `seed` is random in a server: if requests could compute which n-grams share a bucket, their drafts would reveal which
    /// n-grams another owner has stored.
    pub(crate) fn new(max_bytes: usize, seed: u64) -> Self {
        let n_buckets = (max_bytes / 5 * 4 / size_of::<[Entry; N_WAYS]>()).max(1);
        Self {
            buckets: vec![[Entry::default(); N_WAYS]; n_buckets],
            texts: Vec::new(),
            free_slots: Vec::new(),
            by_use: BinaryHeap::new(),
            n_uses: 0,
            n_text_bytes: 0,
            max_text_bytes: max_bytes / 5,
            seed,
        }
    }

    /// Creates a cursor after `context`, of which the last [`MAX_MATCHED`] tokens suffice.
    pub(crate) fn cursor(&self, owner: Owner, context: &[Token]) -> MatchCursor {
        let mut hasher = DefaultHasher::new();
        (self.seed, &owner).hash(&mut hasher);
        let recent = context[context.len().saturating_sub(MAX_MATCHED)..].to_vec();
        let mut cursor = MatchCursor { seed: hasher.finish(), owner, recent, text: None, found: None };
        cursor.found = self.find(&cursor, &cursor.recent);
        cursor
    }

    pub(crate) fn n_bytes(&self) -> usize {
        size_of_val(&self.buckets[..]) + self.n_text_bytes
    }

    /// Adds a token of a sequence. O(1). Returns how it compares with the prediction of the current match, if there is one.
    pub(crate) fn push(&mut self, cursor: &mut MatchCursor, token: Token) -> Option<Prediction> {
        let found = cursor.found.take().filter(|found| self.token_at(found).is_some());
        let prediction =
            found.map(|found| Prediction { n_matched: found.n_matched, is_correct: self.token_at(&found) == Some(token) });
        cursor.remember(token);
        cursor.found = match (found, prediction) {
            (Some(found), Some(Prediction { is_correct: true, .. })) => {
                Some(Match { next: found.next + 1, n_matched: (found.n_matched + 1).min(MAX_MATCHED), ..found })
            }
            _ => self.find(cursor, &cursor.recent),
        };
        match cursor.found {
            Some(found) if found.n_matched == MAX_MATCHED => {
                cursor.text = None;
                self.touch(found.text);
            }
            _ => self.store(cursor),
        }
        prediction
    }

    /// Adds a text that no sequence generates: a prompt, or the prediction of a request. O(its length); a long prompt is added in
    /// parts, to `cursor` from one part to the next, so that no step waits for it.
    pub(crate) fn extend(&mut self, cursor: &mut MatchCursor, tokens: &[Token]) {
        for &token in tokens {
            self.push(cursor, token);
        }
    }

    /// Appends the predicted continuation of a sequence to `draft`: at most `max_draft` tokens. Returns the number of appended ones.
    pub(crate) fn draft(&mut self, cursor: &MatchCursor, max_draft: usize, draft: &mut Vec<Token>) -> usize {
        let n_before = draft.len();
        let mut found = cursor.found;
        let mut context = Vec::new();
        while let Some(Match { text, next, .. }) = found {
            let n_left = n_before + max_draft - draft.len();
            let rest = self.text(text).map_or(&[][..], |text| &text.tokens[next as usize..]);
            let n_copied = rest.len().min(n_left);
            draft.extend_from_slice(&rest[..n_copied]);
            self.touch(text);
            if n_copied == 0 || n_copied == n_left {
                break;
            }
            // The text ends here: the draft itself is looked up, which also continues a text that repeats its own end.
            context.clear();
            context.extend_from_slice(&cursor.recent);
            context.extend_from_slice(&draft[n_before..]);
            found = self.find(cursor, &context);
        }
        draft.len() - n_before
    }

    fn text(&self, id: TextId) -> Option<&Text> {
        self.texts.get(id.slot as usize).filter(|text| text.generation == id.generation)
    }

    fn token_at(&self, found: &Match) -> Option<Token> {
        self.text(found.text)?.tokens.get(found.next as usize).copied()
    }

    /// Returns the longest match of the end of `context` among the latest positions of its n-grams, and of these the latest one.
    fn find(&self, cursor: &MatchCursor, context: &[Token]) -> Option<Match> {
        let mut best: Option<Match> = None;
        for n in N_GRAMS {
            let Some(hash) = hash_of_last(context, n, cursor.seed) else { continue };
            for entry in self.buckets[self.bucket(hash)].iter().filter(|entry| entry.next > 0 && entry.tag == tag(hash)) {
                let text = &self.texts[entry.slot as usize];
                let next = entry.next as usize;
                if next >= text.tokens.len() || text.owner != cursor.owner {
                    continue;
                }
                let n_matched = n_common_at_end(&text.tokens[..next], context);
                if n_matched >= n && best.is_none_or(|best| best.n_matched < n_matched) {
                    let id = TextId { slot: entry.slot, generation: text.generation };
                    best = Some(Match { text: id, next: entry.next, n_matched });
                }
            }
            if best.is_some() {
                return best;
            }
        }
        None
    }

    fn bucket(&self, hash: u64) -> usize {
        // Maps the hash to a range of any length without a division.
        usize::try_from((u128::from(hash) * self.buckets.len() as u128) >> 64).expect("below the number of buckets")
    }

    /// Stores the last token of a sequence, in a new text if the current one is evicted or full.
    fn store(&mut self, cursor: &mut MatchCursor) {
        let max_tokens = self.max_text_bytes / MAX_TEXT_SHARE / size_of::<Token>();
        let is_open = |id: &TextId| self.text(*id).is_some_and(|text| text.tokens.len() < max_tokens);
        let open = cursor.text.filter(is_open);
        let id = open.unwrap_or_else(|| self.create(cursor.owner.clone()));
        // A new text begins with the tokens that a match with its first own token may need.
        let n_new = if open.is_some() { 1 } else { MAX_MATCHED + 1 };
        self.append(id, &cursor.recent[cursor.recent.len().saturating_sub(n_new)..]);
        cursor.text = Some(id);
        self.evict_excess();
        let Some(text) = self.text(id) else { return };
        let next = u32::try_from(text.tokens.len()).expect("a text is far below 16 GiB");
        for n in N_GRAMS {
            let Some(hash) = hash_of_last(&cursor.recent, n, cursor.seed) else { continue };
            let bucket = self.bucket(hash);
            self.buckets[bucket].copy_within(..N_WAYS - 1, 1);
            self.buckets[bucket][0] = Entry { slot: id.slot, tag: tag(hash), next };
        }
    }

    fn create(&mut self, owner: Owner) -> TextId {
        if self.free_slots.is_empty() && self.texts.len() > u16::MAX as usize {
            self.evict_one();
        }
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.texts.push(Text::default());
            self.n_text_bytes += TEXT_OVERHEAD;
            u16::try_from(self.texts.len() - 1).expect("there are at most 65,536 texts")
        });
        self.n_uses += 1;
        let text = &mut self.texts[slot as usize];
        (text.owner, text.last_use) = (owner, self.n_uses);
        let id = TextId { slot, generation: text.generation };
        self.by_use.push(Reverse((self.n_uses, slot)));
        id
    }

    fn append(&mut self, id: TextId, tokens: &[Token]) {
        self.n_uses += 1;
        let text = &mut self.texts[id.slot as usize];
        let n_bytes = size_of::<Token>() * text.tokens.capacity();
        text.tokens.extend_from_slice(tokens);
        text.last_use = self.n_uses;
        self.n_text_bytes += size_of::<Token>() * text.tokens.capacity() - n_bytes;
    }

    fn touch(&mut self, id: TextId) {
        self.n_uses += 1;
        if self.text(id).is_some() {
            self.texts[id.slot as usize].last_use = self.n_uses;
        }
    }

    fn evict_excess(&mut self) {
        while self.n_text_bytes > self.max_text_bytes && !self.by_use.is_empty() {
            self.evict_one();
        }
    }

    /// Evicts the least recently used text.
    fn evict_one(&mut self) {
        while let Some(Reverse((use_number, slot))) = self.by_use.pop() {
            let text = &mut self.texts[slot as usize];
            if text.last_use > use_number {
                self.by_use.push(Reverse((text.last_use, slot)));
                continue;
            }
            self.n_text_bytes -= size_of::<Token>() * text.tokens.capacity();
            *text = Text { generation: text.generation.wrapping_add(1), ..Text::default() };
            self.free_slots.push(slot);
            return;
        }
    }
}

/// Hashes the last `n` tokens of `context`; `None` if there are fewer.
fn hash_of_last(context: &[Token], n: usize, seed: u64) -> Option<u64> {
    let (_, last) = context.split_at_checked(context.len().checked_sub(n)?)?;
    let mix = |hash: u64, value: u64| (hash ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    let hash = last.iter().fold(seed ^ n as u64, |hash, &token| mix(hash, u64::from(token.cast_unsigned())));
    Some(mix(hash, hash >> 32))
}

fn tag(hash: u64) -> u16 {
    (hash & 0xFFFF) as u16
}

fn n_common_at_end(a: &[Token], b: &[Token]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take(MAX_MATCHED).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn index() -> TextIndex {
        TextIndex::new(MIB, 1)
    }

    /// Adds a text, and returns the cursor at its end.
    fn add(index: &mut TextIndex, owner: &Owner, tokens: &[Token]) -> MatchCursor {
        let mut cursor = index.cursor(owner.clone(), &[]);
        index.extend(&mut cursor, tokens);
        cursor
    }

    fn draft(index: &mut TextIndex, cursor: &MatchCursor, max_draft: usize) -> Vec<Token> {
        let mut draft = Vec::new();
        assert_eq!(index.draft(cursor, max_draft, &mut draft), draft.len());
        draft
    }

    /// Returns a draft after `context`, which is not stored.
    fn draft_after(index: &mut TextIndex, owner: &Owner, context: &[Token], max_draft: usize) -> Vec<Token> {
        let cursor = index.cursor(owner.clone(), context);
        draft(index, &cursor, max_draft)
    }

    impl MatchCursor {
        /// Returns a cursor for a sequence that continues this one.
        fn fork(&self) -> Self {
            Self { owner: self.owner.clone(), seed: self.seed, recent: self.recent.clone(), text: None, found: self.found }
        }
    }

    impl TextIndex {
        fn check_integrity(&self, max_bytes: usize) {
            let n_token_bytes: usize = self.texts.iter().map(|text| size_of::<Token>() * text.tokens.capacity()).sum();
            assert_eq!(self.n_text_bytes, n_token_bytes + TEXT_OVERHEAD * self.texts.len());
            assert!(self.n_bytes() <= max_bytes, "{} of {max_bytes} bytes", self.n_bytes());
            assert_eq!(self.by_use.len() + self.free_slots.len(), self.texts.len());
            assert!(self.by_use.iter().all(|&Reverse((use_number, slot))| use_number <= self.texts[slot as usize].last_use));
        }

        fn check_match(&self, cursor: &MatchCursor) {
            let Some(Match { text, next, n_matched }) = cursor.found else { return };
            let Some(text) = self.text(text) else { return };
            assert_eq!(text.owner, cursor.owner);
            let before = &text.tokens[..next as usize];
            assert!(before.ends_with(&cursor.recent[cursor.recent.len() - n_matched..]), "{n_matched} tokens match");
        }
    }

    #[test]
    fn a_draft_continues_the_longest_match_and_of_equals_the_latest() {
        let (mut index, owner) = (index(), None);
        add(&mut index, &owner, &[1, 2, 3, 4, 5, 6, 10, 11]);
        add(&mut index, &owner, &[9, 5, 6, 20, 21]);
        add(&mut index, &owner, &[8, 5, 6, 30, 31]);
        assert_eq!(draft_after(&mut index, &owner, &[2, 3, 4, 5, 6], 8), [10, 11]);
        assert_eq!(draft_after(&mut index, &owner, &[9, 5, 6], 8), [20, 21]);
        assert_eq!(draft_after(&mut index, &owner, &[7, 5, 6], 8), [30, 31]);
        assert_eq!(draft_after(&mut index, &owner, &[7, 5, 6], 1), [30]);
        assert_eq!(draft_after(&mut index, &owner, &[7, 6], 8), [30, 31]);
        assert!(draft_after(&mut index, &owner, &[6, 7], 8).is_empty());
    }

    #[test]
    fn a_sequence_that_repeats_itself_is_drafted_beyond_its_end() {
        let (mut index, owner) = (index(), None);
        let cursor = add(&mut index, &owner, &[1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(draft(&mut index, &cursor, 8), [2, 3, 1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn predictions_are_compared_with_the_tokens_that_follow() {
        let (mut index, owner) = (index(), None);
        add(&mut index, &owner, &[1, 2, 3, 4, 5]);
        let mut cursor = index.cursor(owner, &[1]);
        assert_eq!(index.push(&mut cursor, 2), Some(Prediction { n_matched: 1, is_correct: true }));
        assert_eq!(index.push(&mut cursor, 7), Some(Prediction { n_matched: 2, is_correct: false }));
        assert_eq!((index.push(&mut cursor, 3), cursor.n_matched()), (None, 1));
        assert_eq!(index.push(&mut cursor, 4), Some(Prediction { n_matched: 1, is_correct: true }));
    }

    #[test]
    fn a_sequence_finds_texts_of_its_owner_only() {
        let mut index = index();
        add(&mut index, &Some("a".into()), &[1, 2, 3, 4]);
        add(&mut index, &None, &[1, 2, 5, 6]);
        assert_eq!(draft_after(&mut index, &Some("a".into()), &[1, 2], 8), [3, 4]);
        assert_eq!(draft_after(&mut index, &None, &[1, 2], 8), [5, 6]);
        assert!(draft_after(&mut index, &Some("b".into()), &[1, 2], 8).is_empty());
    }

    #[test]
    fn branches_of_a_prompt_find_the_text_of_their_siblings() {
        let mut index = index();
        let prompt = add(&mut index, &None, &[1, 2, 3]);
        let (mut first, mut second) = (prompt.fork(), prompt.fork());
        index.extend(&mut first, &[4, 5, 6]);
        assert!(draft(&mut index, &second, 8).is_empty());
        second = prompt.fork();
        index.push(&mut second, 4);
        assert_eq!(draft(&mut index, &second, 8), [5, 6]);
    }

    #[test]
    fn a_repeated_text_is_stored_once() {
        let (mut index, owner) = (index(), None);
        let text: Vec<Token> = (0..1_000).collect();
        add(&mut index, &owner, &text);
        let n_bytes = index.n_bytes();
        add(&mut index, &owner, &text);
        add(&mut index, &owner, &text);
        assert!(index.n_bytes() - n_bytes < 1_000, "{} bytes more", index.n_bytes() - n_bytes);
        assert_eq!(draft_after(&mut index, &owner, &[10, 11], 3), [12, 13, 14]);
    }

    #[test]
    fn the_least_recently_used_text_is_evicted() {
        let max_bytes = 100_000;
        let (mut index, owner) = (TextIndex::new(max_bytes, 1), None);
        let text = |nth: Token| (0..200).map(|at| 1_000 * nth + at).collect::<Vec<Token>>();
        let used = add(&mut index, &owner, &text(0));
        let unused = add(&mut index, &owner, &text(1)).text.expect("it is stored");
        for nth in 2..100 {
            add(&mut index, &owner, &text(nth));
            index.touch(used.text.expect("it is stored"));
            index.check_integrity(max_bytes);
        }
        assert!(index.text(used.text.unwrap()).is_some() && index.text(unused).is_none());
        assert_eq!(draft_after(&mut index, &owner, &[99_010, 99_011], 2), [99_012, 99_013]);
        assert!(draft_after(&mut index, &owner, &[1_010, 1_011], 2).is_empty());
    }

    #[test]
    fn a_long_text_continues_as_another_one() {
        let max_bytes = 100_000;
        let (mut index, owner) = (TextIndex::new(max_bytes, 1), None);
        let text: Vec<Token> = (0..20_000).collect();
        add(&mut index, &owner, &text);
        index.check_integrity(max_bytes);
        assert_eq!(draft_after(&mut index, &owner, &[19_000, 19_001], 2), [19_002, 19_003]);
        assert!(draft_after(&mut index, &owner, &[1_000, 1_001], 2).is_empty());
    }

    #[test]
    fn random_texts_of_two_owners_keep_the_bounds_and_the_isolation() {
        for (seed, max_bytes) in [(1_u32, 20_000), (2, 60_000), (3, 400_000)] {
            let mut state = u64::from(seed);
            let mut below = |n: u32| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                u32::try_from((state >> 33) % u64::from(n)).unwrap()
            };
            let mut index = TextIndex::new(max_bytes, u64::from(seed));
            let owners = [None, Some("a".into())];
            // Tokens below 2 are common, the others belong to one owner.
            let new_cursor = |index: &TextIndex, nth: usize| (nth, index.cursor(owners[nth].clone(), &[0, 1, 0]));
            let mut cursors: Vec<(usize, MatchCursor)> = (0..6).map(|nth| new_cursor(&index, nth % 2)).collect();
            let mut n_drafted = 0;
            for _ in 0..30_000 {
                let at = below(6) as usize;
                let (owner, cursor) = &mut cursors[at];
                let own = Token::try_from(2 + *owner).unwrap();
                let token = if below(8) == 0 { own } else { Token::try_from(below(2)).unwrap() };
                let expected = cursor.found.and_then(|found| index.token_at(&found));
                let prediction = index.push(cursor, token);
                assert_eq!(prediction.map(|prediction| prediction.is_correct), expected.map(|expected| expected == token));
                index.check_match(cursor);
                let draft = draft(&mut index, cursor, below(9) as usize);
                assert!(draft.iter().all(|&token| token < 2 || token == own));
                n_drafted += draft.len();
                match below(200) {
                    0 => cursors[at] = new_cursor(&index, at % 2),
                    1 => cursors[at].1 = cursors[at].1.fork(),
                    _ => {}
                }
                index.check_integrity(max_bytes);
            }
            assert!(n_drafted > 50_000, "{n_drafted}");
        }
    }
}
