//! A runner without a model: the next token is a function of the prefix, and every computed token is counted.
//!
//! For tests and benchmarks. It is as strict as llama.cpp: a gap in the positions, a sequence id in use, or a full cache is a
//! panic or an error. It places tokens in cells as llama.cpp does. Saved state includes a digest of the preceding text:
//! reloading it at the wrong position changes everything that is sampled afterwards.
#![expect(missing_docs, reason = "items with a clear name and type need no comment")]

mod control;
mod vocabulary;

use std::ops::Range;
use std::sync::Arc;

pub use control::{FailureMode, FakeControl};
pub(crate) use vocabulary::spelling_of;
pub use vocabulary::{END, N_VOCAB, NEWLINE, OPENING, SUPPRESSED, tokens_of};

use crate::config::{DraftKind, Grouping};
use crate::engine::runner::{
    AdapterSchedule, AdapterSet, DecodeError, DraftModelInfo, DraftRequest, ForkRule, IdleCost, KvSeqId, MediaRows, MemoryKind,
    ModelDrafts, Plan, RelocateError, Runner, StateError,
};
use crate::request::{AdapterScale, Token, is_of_medium};
use crate::sampling::TokenStrings;
use control::FakeState;
use vocabulary::FakeVocabulary;

/// A runner without a model, see the [module](self).
#[must_use]
pub struct FakeRunner {
    control: FakeControl,
    sequences: Vec<FakeSequence>,
    n_owners: Vec<u16>,
    logits: Vec<Option<Vec<f32>>>,
    /// A sequence of this many tokens is followed by [`END`].
    ends_at: Option<usize>,
    keeps_plans: bool,
    memory: MemoryKind,
    token_strings: TokenStrings,
    adapters: Vec<AdapterScale>,
    /// Invocation tokens of each adapter; empty unless it is an activated `LoRA`.
    invocations: Vec<Vec<Token>>,
    draft_model: Option<FakeDraftModel>,
}

/// A draft model that predicts greedy sampling, with errors.
#[derive(Debug, Clone, Copy)]
pub struct FakeDraftModel {
    pub max_draft: u32,
    /// About one in this many tokens is wrong; 0 for none.
    pub wrong_one_in: u64,
}

#[derive(Debug, Clone, Default)]
struct FakeSequence {
    tokens: Vec<FakeToken>,
    /// Number of the first tokens that the draft model has.
    n_known: u32,
    n_grouped: u32,
    /// First position from which everything that a sliding window sees is present; 0 for other memories.
    whole_from: u32,
}

impl FakeSequence {
    fn len(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("a context has fewer than 2³² tokens")
    }

    fn digest(&self) -> u64 {
        self.tokens.last().map_or(0, |token| token.digest)
    }

    fn assert_ungrouped(&self) {
        assert_eq!(self.n_grouped, 0, "grouped tokens cannot be shared, saved or relocated");
    }
}

#[derive(Debug, Clone, Copy)]
struct FakeToken {
    cell: usize,
    digest: u64,
}

/// Size of one saved token in bytes: its position, the digest up to it, and the preceding digest.
const SAVED_TOKEN_BYTES: usize = 20;

/// Bit of a saved position that marks a cell without the sliding window's part.
const OUTSIDE_WINDOW: u32 = 1 << 31;

/// Memory of a fake runner by default: like attention on a CPU.
pub const MEMORY: MemoryKind = MemoryKind {
    forks: ForkRule::Anywhere,
    idle_cost: IdleCost::Scores,
    can_be_saved: true,
    bytes_per_token: SAVED_TOKEN_BYTES as u64,
    bytes_per_state: 0,
    tokens_per_run: 2,
    n_window: 0,
};

impl FakeRunner {
    pub fn new(n_cells: u32, n_ids: u32) -> (Self, FakeControl) {
        let control = FakeControl::default();
        let runner = Self {
            control: control.clone(),
            sequences: vec![FakeSequence::default(); n_ids as usize],
            n_owners: vec![0; n_cells as usize],
            logits: Vec::new(),
            ends_at: None,
            keeps_plans: true,
            memory: MEMORY,
            token_strings: TokenStrings::new(FakeVocabulary { end_tokens: &[END] }),
            adapters: Vec::new(),
            invocations: Vec::new(),
            draft_model: None,
        };
        (runner, control)
    }

    pub fn ending_at(mut self, n_tokens: usize) -> Self {
        self.ends_at = Some(n_tokens);
        self
    }

    pub fn without_end(mut self) -> Self {
        self.token_strings = TokenStrings::new(FakeVocabulary { end_tokens: &[] });
        self
    }

    pub fn with_memory(mut self, memory: MemoryKind) -> Self {
        self.memory = memory;
        self
    }

    /// Adds adapters with these scales, which are active by default.
    pub fn with_adapters(mut self, scales: &[f32]) -> Self {
        self.adapters = (0..).zip(scales.iter().copied()).collect();
        self.invocations = vec![Vec::new(); scales.len()];
        self
    }

    /// Makes this adapter an activated `LoRA` with these invocation tokens.
    pub fn invoked_by(mut self, adapter: usize, tokens: &[Token]) -> Self {
        self.invocations[adapter] = tokens.to_vec();
        self
    }

    pub fn with_draft_model(mut self, draft_model: FakeDraftModel) -> Self {
        self.draft_model = Some(draft_model);
        self
    }

    /// Disables the record of plans, for benchmarks.
    pub fn without_record(mut self) -> Self {
        self.keeps_plans = false;
        self
    }

    /// The token that follows `tokens` under greedy sampling.
    pub fn next_token(tokens: &[Token]) -> Token {
        Self::next_token_with(&AdapterSchedule::default(), tokens)
    }

    pub fn next_token_with(adapters: &AdapterSchedule, tokens: &[Token]) -> Token {
        let digest = (0..)
            .zip(tokens)
            .fold(0, |digest, (position, &token)| extend_digest(digest ^ adapter_change(adapters.at(position)), token));
        greedy_token(digest)
    }

    /// Returns the token that follows `tokens` under greedy sampling, with a prompt of `n_prompt` tokens and this grouping.
    pub fn next_token_grouped(grouping: Grouping, n_prompt: u32, tokens: &[Token]) -> Token {
        let (mut digest, mut n_grouped) = (0, 0);
        for (position, &token) in (0..).zip(tokens) {
            let n_grouped_here = grouping.n_grouped(position, n_prompt);
            if n_grouped_here > n_grouped {
                digest = group_digest(digest, n_grouped_here, grouping.n);
                n_grouped = n_grouped_here;
            }
            digest = extend_digest(digest, token);
        }
        greedy_token(digest)
    }

    pub fn logits_after(tokens: &[Token]) -> Vec<f32> {
        logit_row(tokens.iter().fold(0, |digest, &token| extend_digest(digest, token)), false)
    }

    fn sequence(&self, id: KvSeqId) -> &FakeSequence {
        &self.sequences[usize::from(id.0)]
    }

    fn sequence_mut(&mut self, id: KvSeqId) -> &mut FakeSequence {
        &mut self.sequences[usize::from(id.0)]
    }

    /// Removes cells outside the next token's window from a sequence, as llama.cpp may when it searches for free cells: those
    /// that no other sequence shares, and all cells before a removed one.
    fn recycle_window(&mut self, id: usize) {
        if self.memory.n_window == 0 {
            return;
        }
        let sequence = &mut self.sequences[id];
        let n_unseen = self.memory.window_from(sequence.len()) as usize;
        let last_lost = (0_u32..).zip(&sequence.tokens[..n_unseen]).filter(|(_, token)| self.n_owners[token.cell] == 1).last();
        let n_lost = last_lost.map_or(0, |(last, _)| last + 1);
        sequence.whole_from = n_lost.max(sequence.whole_from);
    }

    fn release(&mut self, tokens: &[FakeToken]) {
        for token in tokens {
            self.n_owners[token.cell] -= 1;
        }
        self.count_cells();
    }

    fn free_cells(&self, n: usize) -> Option<Vec<usize>> {
        let free = (0..self.n_owners.len()).filter(|&cell| self.n_owners[cell] == 0);
        let cells: Vec<usize> = free.take(n).collect();
        (cells.len() == n).then_some(cells)
    }

    fn count_cells(&self) {
        let mut state = self.control.lock();
        state.n_cells_used = self.n_owners.iter().filter(|&&n| n > 0).count();
        state.n_cells_reached = self.n_owners.iter().rposition(|&n| n > 0).map_or(0, |cell| cell + 1);
    }

    fn check_states(&self) -> Result<(), StateError> {
        if self.control.lock().fails_state_io {
            return Err(StateError::Refused("made to fail".into()));
        }
        Ok(())
    }
}

fn check_media(plan: &Plan) {
    let listed: Vec<usize> = plan.media.iter().flat_map(|media| media.rows.clone()).collect();
    let is_media_row = |n: &usize| is_of_medium(plan.rows[*n].token);
    assert_eq!((0..plan.rows.len()).filter(is_media_row).collect::<Vec<_>>(), listed, "the plan lists each media row once");
    for MediaRows { rows, media, start } in &plan.media {
        assert!(media.embeddings().is_some(), "the embeddings of {media:?} are ready");
        let ids = media.ids().skip(*start as usize).take(rows.len());
        assert!(
            plan.rows[rows.clone()].iter().map(|row| row.token).eq(ids),
            "the rows have the ids of {media:?} from {start} on"
        );
        assert!(!media.sees_ahead() || rows.len() == media.n_tokens() as usize, "{media:?} is computed in one decode");
        assert!(plan.rows[rows.clone()].iter().all(|row| !row.wants_logits), "no row of {media:?} requests logits");
        let sequence = plan.rows[rows.start].sequence;
        let n_sequence_rows = plan.rows.iter().filter(|row| row.sequence == sequence).count();
        assert_eq!(n_sequence_rows, rows.len(), "{sequence:?} computes only {media:?}");
    }
}

impl Runner for FakeRunner {
    fn n_vocab(&self) -> usize {
        N_VOCAB
    }

    fn n_adapters(&self) -> u32 {
        u32::try_from(self.adapters.len()).expect("a test has few adapters")
    }

    fn invocation(&self, adapter: u32) -> &[Token] {
        &self.invocations[adapter as usize]
    }

    fn default_adapters(&self) -> Vec<AdapterScale> {
        self.adapters.clone()
    }

    fn n_threads(&self) -> usize {
        1
    }

    fn decode(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        self.control.wait_for_permission();
        let FakeState { failing, row_duration, .. } = *self.control.lock();
        std::thread::sleep(row_duration * u32::try_from(plan.rows.len()).expect("a decode has few rows"));
        let fails = match failing {
            Some(FailureMode::All) => true,
            Some(FailureMode::MoreRowsThan(n)) => plan.rows.len() > n,
            None => false,
        };
        check_media(plan);
        self.logits.clear();
        let n_wanted = plan.rows.iter().filter(|row| row.wants_logits).count();
        assert!(n_wanted <= self.sequences.len(), "{n_wanted} rows request logits, more than there are sequence ids");
        let change = adapter_change(&plan.adapter_set);
        for id in 0..self.sequences.len() {
            self.recycle_window(id);
        }
        let Some(cells) = self.free_cells(plan.rows.len()) else {
            return Err(DecodeError { reason: "the device cache is full".into() });
        };
        for (n, (row_of, cell)) in plan.rows.iter().zip(cells).enumerate() {
            // A real backend that fails has already computed some of the rows.
            if fails && n > 0 {
                return Err(DecodeError { reason: "made to fail".into() });
            }
            let id = row_of.sequence;
            let sequence = self.sequence(id);
            assert_eq!(sequence.len(), row_of.position, "a gap in the positions of {id:?}");
            assert!(self.memory.holds_window(sequence.whole_from, row_of.position), "{id:?} lacks a part of its window");
            let digest = extend_digest(sequence.digest() ^ change, row_of.token);
            let ends = self.ends_at.is_some_and(|n| sequence.tokens.len() + 1 >= n);
            self.n_owners[cell] = 1;
            self.recycle_window(usize::from(id.0));
            self.sequence_mut(id).tokens.push(FakeToken { cell, digest });
            self.logits.push(row_of.wants_logits.then(|| logit_row(digest, ends)));
        }
        self.count_cells();
        if fails {
            return Err(DecodeError { reason: "made to fail".into() });
        }
        if self.keeps_plans {
            self.control.lock().plans.push(plan.clone());
        }
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.logits[row].as_ref().expect("the row requested logits")
    }

    fn can_fork(&self, from: KvSeqId, n_held: u32, n_tokens: u32) -> bool {
        let sequence = self.sequence(from);
        assert_eq!(sequence.len(), n_held, "the cache and the model agree on {from:?}");
        match self.memory.forks {
            ForkRule::Anywhere => n_tokens <= n_held,
            ForkRule::InWindow => n_tokens <= n_held && self.memory.holds_window(sequence.whole_from, n_tokens),
            ForkRule::AtEnd => n_tokens == n_held,
        }
    }

    fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32) {
        let mut shared = self.sequence(from).clone();
        shared.assert_ungrouped();
        shared.tokens.truncate(n_tokens as usize);
        shared.n_known = shared.n_known.min(n_tokens);
        for token in &shared.tokens {
            self.n_owners[token.cell] += 1;
        }
        let sequence = self.sequence_mut(to);
        assert!(sequence.tokens.is_empty(), "{to:?} is empty before a fork");
        *sequence = shared;
    }

    fn truncate(&mut self, id: KvSeqId, n_kept: u32) -> bool {
        let is_state = self.memory.forks == ForkRule::AtEnd;
        let sequence = self.sequence_mut(id);
        assert!(n_kept >= sequence.n_grouped, "the {} grouped tokens of {id:?} are not truncated", sequence.n_grouped);
        if is_state && n_kept > 0 && n_kept < sequence.len() {
            return false;
        }
        let removed = sequence.tokens.split_off(sequence.tokens.len().min(n_kept as usize));
        sequence.whole_from = sequence.len().min(sequence.whole_from);
        sequence.n_known = sequence.len().min(sequence.n_known);
        self.release(&removed);
        true
    }

    fn drop_sequence(&mut self, id: KvSeqId) {
        let removed = std::mem::take(self.sequence_mut(id));
        self.release(&removed.tokens);
    }

    fn memory_kind(&self) -> MemoryKind {
        self.memory
    }

    fn is_repeatable(&self) -> bool {
        true
    }

    fn save(&mut self, id: KvSeqId, range: Range<u32>) -> Result<Arc<[u8]>, StateError> {
        self.sequence(id).assert_ungrouped();
        self.check_states()?;
        let sequence = self.sequence(id);
        let is_state = self.memory.forks == ForkRule::AtEnd;
        assert!(!is_state || range == (0..sequence.len()), "a recurrent state is saved as a whole");
        let whole_from = self.whole_from(id, &range);
        let mut bytes = Vec::with_capacity(range.len() * SAVED_TOKEN_BYTES);
        for position in range {
            let before = position.checked_sub(1).map_or(0, |before| sequence.tokens[before as usize].digest);
            let marked = if position < whole_from { position | OUTSIDE_WINDOW } else { position };
            bytes.extend(marked.to_le_bytes());
            bytes.extend(sequence.tokens[position as usize].digest.to_le_bytes());
            bytes.extend(before.to_le_bytes());
        }
        self.control.lock().n_saves += 1;
        Ok(bytes.into())
    }

    fn whole_from(&self, id: KvSeqId, range: &Range<u32>) -> u32 {
        if self.memory.n_window == 0 {
            return range.start;
        }
        // As in llama.cpp, saved state omits cells that its last token does not see.
        let last_window = range.end.saturating_sub(self.memory.n_window);
        self.sequence(id).whole_from.max(last_window).clamp(range.start, range.end)
    }

    fn restore(&mut self, id: KvSeqId, bytes: &[u8], kept: Range<u32>) -> Result<(), StateError> {
        self.sequence(id).assert_ungrouped();
        self.check_states()?;
        let duration = self.control.lock().reload_duration;
        std::thread::sleep(duration);
        let mut tokens: Vec<(u32, u64, u64)> = Vec::new();
        for token in bytes.chunks(SAVED_TOKEN_BYTES) {
            let digest = |offset: usize| Some(u64::from_le_bytes(token.get(offset..offset + 8)?.try_into().ok()?));
            let position = token.get(..4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
            let read = position.and_then(|position| Some((position, digest(4)?, digest(12)?)));
            tokens.push(read.ok_or_else(|| StateError::Refused("the saved piece is truncated".into()))?);
        }
        let cells = self.free_cells(tokens.len()).ok_or_else(|| StateError::Refused("the device cache is full".into()))?;
        for ((marked, digest, before), cell) in tokens.into_iter().zip(cells) {
            let position = marked & !OUTSIDE_WINDOW;
            if !kept.contains(&position) {
                continue;
            }
            self.n_owners[cell] = 1;
            let sequence = self.sequence_mut(id);
            if marked != position {
                sequence.whole_from = position + 1;
            }
            assert_eq!(sequence.len(), position, "a piece continues the tokens of {id:?}");
            assert_eq!(sequence.digest(), before, "a piece is restored after the same text as when it was saved");
            sequence.tokens.push(FakeToken { cell, digest });
        }
        assert_eq!(self.sequence(id).len(), kept.end, "the piece contains all kept tokens");
        self.count_cells();
        self.control.lock().n_reloads += 1;
        Ok(())
    }

    fn relocate(&mut self, ids: &[KvSeqId], range: Range<u32>) -> Result<(), RelocateError> {
        for &id in ids {
            self.sequence(id).assert_ungrouped();
        }
        if self.control.lock().min_ids_to_lose.is_some_and(|n_ids| ids.len() >= n_ids) {
            for &id in ids {
                self.truncate(id, range.start);
            }
            return Err(RelocateError::Lost(StateError::Refused("made to lose cells".into())));
        }
        self.check_states().map_err(RelocateError::Refused)?;
        let positions = range.start as usize..range.end as usize;
        for &id in ids {
            let moved = self.sequence(id).tokens[positions.clone()].to_vec();
            self.release(&moved);
        }
        let cells = self.free_cells(positions.len()).expect("as many cells were just released");
        for (position, cell) in positions.zip(cells) {
            self.n_owners[cell] = u16::try_from(ids.len()).expect("there are at most 256 ids");
            for &id in ids {
                self.sequence_mut(id).tokens[position].cell = cell;
            }
        }
        self.count_cells();
        Ok(())
    }

    fn group_positions(&mut self, id: KvSeqId, range: Range<u32>, n: u32) {
        let sequence = self.sequence(id);
        assert_eq!(range.start, sequence.n_grouped, "{id:?} groups the tokens after its groups");
        assert!(!range.is_empty() && range.end <= sequence.len(), "{range:?} of {} tokens of {id:?}", sequence.len());
        assert!(range.start.is_multiple_of(n) && range.end.is_multiple_of(n), "{range:?} consists of whole groups of {n}");
        assert!(sequence.tokens.iter().all(|token| self.n_owners[token.cell] == 1), "{id:?} shares no cells");
        let sequence = self.sequence_mut(id);
        sequence.n_grouped = range.end;
        let last = sequence.tokens.last_mut().expect("the range is not empty");
        last.digest = group_digest(last.digest, range.end, n);
    }

    fn append_piece(&self, token: Token, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(spelling_of(token));
    }

    fn is_end(&self, token: Token) -> bool {
        self.token_strings.is_end(token)
    }

    fn end_tokens(&self) -> &[Token] {
        self.token_strings.end_tokens()
    }

    fn suppressed_tokens(&self) -> &[Token] {
        &[SUPPRESSED]
    }

    fn token_strings(&self) -> TokenStrings {
        self.token_strings.clone()
    }

    fn draft_model(&self) -> Option<DraftModelInfo> {
        let info =
            |FakeDraftModel { max_draft, .. }| DraftModelInfo { kind: DraftKind::Simple, max_draft, has_fixed_cost: false };
        self.draft_model.map(info)
    }

    fn draft(&mut self, requests: &[DraftRequest<'_>], max_caught_up: u32) -> ModelDrafts {
        let FakeDraftModel { max_draft: model_max, wrong_one_in } =
            self.draft_model.expect("only a draft model is asked for drafts");
        let mut n_caught_up = 0;
        let drafts = requests.iter().map(|&DraftRequest { sequence: id, tokens, max_draft }| {
            assert!((1..=model_max).contains(&max_draft), "a draft of {max_draft} tokens; the model's maximum is {model_max}");
            let sequence = self.sequence_mut(id);
            let last = tokens.concat().pop().expect("a token was sampled");
            let n_tokens = u32::try_from(tokens.concat().len()).expect("a context has fewer than 2³² tokens");
            assert_eq!(n_tokens, sequence.len() + 1, "{id:?} computes its last token next");
            let n_new = (sequence.len() - sequence.n_known).min(max_caught_up - n_caught_up);
            n_caught_up += n_new;
            sequence.n_known += n_new;
            if sequence.n_known < sequence.len() {
                return Vec::new();
            }
            let mut digest = extend_digest(sequence.digest(), last);
            let draft = (0..max_draft).map(|_| {
                let is_wrong = wrong_one_in > 0 && digest.is_multiple_of(wrong_one_in);
                let token = if is_wrong { NEWLINE } else { greedy_token(digest) };
                digest = extend_digest(digest, token);
                token
            });
            draft.collect()
        });
        ModelDrafts { drafts: drafts.collect(), n_caught_up }
    }
}

fn adapter_change(adapter_set: &AdapterSet) -> u64 {
    adapter_set.adapters().fold(0, |change, (id, scale)| extend_digest(change ^ u64::from(scale.to_bits()), id.cast_signed()))
}

fn extend_digest(digest: u64, token: Token) -> u64 {
    // splitmix64, Steele et al., 2014.
    let mut z = (digest ^ u64::from(token.unsigned_abs())).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn group_digest(digest: u64, n_grouped: u32, n: u32) -> u64 {
    extend_digest(extend_digest(digest, n_grouped.cast_signed()), n.cast_signed())
}

/// Returns logits that depend on the digest of the prefix only. The end token is never sampled before its time.
fn logit_row(digest: u64, ends: bool) -> Vec<f32> {
    let mut state = digest;
    let mut logits: Vec<f32> = (0..N_VOCAB)
        .map(|_| {
            state = extend_digest(state, 1);
            // 24 bits fit an f32 exactly, and two equal logits in a row are rare enough not to matter to greedy sampling.
            #[expect(clippy::cast_precision_loss, reason = "24 bits are exact")]
            let logit = (state >> 40) as f32 / f32::from(1u16 << 11) / 1024.0;
            logit
        })
        .collect();
    logits[..3].fill(-100.0);
    logits[3] = 100.0;
    if ends {
        logits.fill(f32::NEG_INFINITY);
        logits[0] = 0.0;
    }
    logits
}

/// Returns the likeliest token after a prefix with this digest; the first of equally likely tokens wins, as in a sampler.
fn greedy_token(digest: u64) -> Token {
    let mut logits = logit_row(digest, false);
    logits[3] = f32::NEG_INFINITY;
    let likelier = |best: (Token, f32), other: (Token, f32)| if other.1 > best.1 { other } else { best };
    (0..).zip(logits).reduce(likelier).expect("the vocabulary is not empty").0
}
