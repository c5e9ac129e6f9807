//! A runner without a model: the next token is a function of the prefix, and every computed token is counted.
//!
//! For tests and benchmarks. It is as strict as llama.cpp: a gap in the positions, a sequence id in use, or a full cache is a
//! panic or an error. It places tokens in cells as llama.cpp does. Saved state includes a digest of the preceding text:
//! reloading it at the wrong position changes everything that is sampled afterwards.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::config::Grouping;
use crate::engine::runner::{
    AdapterSchedule, AdapterSet, DecodeError, ForkRule, IdleCost, KvSeqId, MediaRows, MemoryKind, Plan, RelocateError, Runner,
    StateError,
};
use crate::request::{AdapterScale, Token, is_of_medium};
use crate::sampling::{TokenStrings, Vocabulary};

/// Size of the vocabulary: 0 is the end token, 1 and 2 are the halves of "é", the last is a newline, the others are printable
/// characters.
pub const N_VOCAB: usize = 96;
/// The end token.
pub const END: Token = 0;

/// The BOS token, if a test puts it at the beginning: `{`.
pub const OPENING: Token = 94;

/// A new line.
pub const NEWLINE: Token = 95;

/// A token that is never sampled, however likely.
pub const SUPPRESSED: Token = 3;

/// Maximum time that a decode waits for permission.
const MAX_WAIT: Duration = Duration::from_secs(15);

/// A test's handle on a [`FakeRunner`]: observes and controls it.
#[derive(Clone, Default)]
pub struct FakeControl {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    /// Minimum duration of each reload.
    reload_duration: Duration,
    /// Minimum duration of each row of a decode.
    row_duration: Duration,
    plans: Vec<Plan>,
    /// Number of decodes that may still run; `None` is unlimited.
    n_allowed: Option<u64>,
    /// True while a decode waits for permission.
    is_blocked: bool,
    /// Decodes that fail from now on.
    failing: Option<FailureMode>,
    n_cells_used: usize,
    n_cells_reached: usize,
    n_saves: usize,
    n_reloads: usize,
    /// Makes saving and reloading fail from now on.
    fails_state_io: bool,
    /// From now on, relocating cells loses them if at least this many sequence ids share them.
    min_ids_to_lose: Option<usize>,
}

/// Selects the decodes that fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureMode {
    /// Decodes of more than this many rows.
    MoreRowsThan(usize),
    /// All decodes.
    All,
}

impl FakeControl {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().expect("no code that holds the state can panic")
    }

    /// Lets `n` more decodes run and blocks the next one; `None`, the initial state, lets all run.
    pub fn allow(&self, n: Option<u64>) {
        self.lock().n_allowed = n;
        self.shared.1.notify_all();
    }

    /// Blocks the next decode, and waits until one is blocked: all requests that are submitted then are received in the same
    /// step, after that decode.
    pub fn hold(&self) {
        let mut state = self.lock();
        state.n_allowed = Some(0);
        while !state.is_blocked {
            let (woken, timeout) = self.shared.1.wait_timeout(state, MAX_WAIT).expect("no code that holds the state can panic");
            assert!(!timeout.timed_out(), "no decode started within {MAX_WAIT:?}");
            state = woken;
        }
    }

    /// Returns whether a decode is waiting for permission.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        let state = self.lock();
        state.is_blocked && state.n_allowed == Some(0)
    }

    /// Selects the decodes that fail from now on; `None` disables failures.
    pub fn fail(&self, failing: Option<FailureMode>) {
        self.lock().failing = failing;
    }

    /// Returns the number of tokens computed so far.
    #[must_use]
    pub fn n_computed(&self) -> usize {
        self.lock().plans.iter().map(|plan| plan.rows.len()).sum()
    }

    /// Returns every plan that was decoded.
    #[must_use]
    pub fn plans(&self) -> Vec<Plan> {
        self.lock().plans.clone()
    }

    /// Returns the number of cells in use.
    #[must_use]
    pub fn n_cells_used(&self) -> usize {
        self.lock().n_cells_used
    }

    /// Returns the highest cell in use, plus one.
    #[must_use]
    pub fn n_cells_reached(&self) -> usize {
        self.lock().n_cells_reached
    }

    /// Returns the number of saves so far.
    #[must_use]
    pub fn n_saves(&self) -> usize {
        self.lock().n_saves
    }

    /// Returns the number of reloads so far.
    #[must_use]
    pub fn n_reloads(&self) -> usize {
        self.lock().n_reloads
    }

    /// Makes relocation lose cells from now on.
    pub fn lose_cells(&self) {
        self.lock().min_ids_to_lose = Some(1);
    }

    /// Makes relocation lose cells that several sequence ids share from now on.
    pub fn lose_shared_cells(&self) {
        self.lock().min_ids_to_lose = Some(2);
    }

    /// Sets the minimum duration of each reload from now on.
    pub fn slow_reloads(&self, each: Duration) {
        self.lock().reload_duration = each;
    }

    /// Sets the minimum duration of each row of a decode from now on.
    pub fn slow_rows(&self, each: Duration) {
        self.lock().row_duration = each;
    }

    /// Makes saving and reloading fail from now on, or succeed again.
    pub fn fail_states(&self, fails: bool) {
        self.lock().fails_state_io = fails;
    }
}

/// A runner without a model, see the [module](self).
pub struct FakeRunner {
    control: FakeControl,
    sequences: Vec<Vec<FakeToken>>,
    /// Number of grouped tokens at the beginning of each sequence.
    n_grouped: Vec<u32>,
    /// First position of each sequence from which everything that a sliding window sees is present; 0 for other memories.
    whole_from: Vec<u32>,
    /// Number of sequences that share each cell.
    n_owners: Vec<u16>,
    logits: Vec<Option<Vec<f32>>>,
    /// A sequence of this many tokens is followed by [`END`].
    ends_at: Option<usize>,
    /// The tokens that end a text.
    end_tokens: &'static [Token],
    keeps_plans: bool,
    memory: MemoryKind,
    token_strings: TokenStrings,
    adapters: Vec<AdapterScale>,
    /// Invocation tokens of each adapter; empty unless it is an activated `LoRA`.
    invocations: Vec<Vec<Token>>,
}

#[derive(Debug, Clone, Copy)]
struct FakeToken {
    cell: usize,
    /// Digest of the tokens up to this one.
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
    /// Creates a runner with `n_cells` cells and `n_ids` sequence ids.
    #[must_use]
    pub fn new(n_cells: u32, n_ids: u32) -> (Self, FakeControl) {
        let control = FakeControl::default();
        let runner = Self {
            control: control.clone(),
            sequences: vec![Vec::new(); n_ids as usize],
            n_grouped: vec![0; n_ids as usize],
            whole_from: vec![0; n_ids as usize],
            n_owners: vec![0; n_cells as usize],
            logits: Vec::new(),
            ends_at: None,
            end_tokens: &[END],
            keeps_plans: true,
            memory: MEMORY,
            token_strings: TokenStrings::new(FakeVocabulary { end_tokens: &[END] }),
            adapters: Vec::new(),
            invocations: Vec::new(),
        };
        (runner, control)
    }

    /// Makes [`END`] follow every sequence of `n_tokens` tokens.
    #[must_use]
    pub fn ending_at(mut self, n_tokens: usize) -> Self {
        self.ends_at = Some(n_tokens);
        self
    }

    /// Removes the end token from the end tokens.
    #[must_use]
    pub fn without_end(mut self) -> Self {
        self.end_tokens = &[];
        self.token_strings = TokenStrings::new(FakeVocabulary { end_tokens: &[] });
        self
    }

    /// Sets the kind of memory.
    #[must_use]
    pub fn with_memory(mut self, memory: MemoryKind) -> Self {
        self.memory = memory;
        self
    }

    /// Adds adapters with these scales, which are active by default.
    #[must_use]
    pub fn with_adapters(mut self, scales: &[f32]) -> Self {
        self.adapters = (0..).zip(scales.iter().copied()).collect();
        self.invocations = vec![Vec::new(); scales.len()];
        self
    }

    /// Makes this adapter an activated `LoRA` with these invocation tokens.
    #[must_use]
    pub fn invoked_by(mut self, adapter: usize, tokens: &[Token]) -> Self {
        self.invocations[adapter] = tokens.to_vec();
        self
    }

    /// Disables the record of plans, for benchmarks.
    #[must_use]
    pub fn without_record(mut self) -> Self {
        self.keeps_plans = false;
        self
    }

    /// Returns the token that follows `tokens` under greedy sampling.
    #[must_use]
    pub fn next_token(tokens: &[Token]) -> Token {
        Self::next_token_with(&AdapterSchedule::default(), tokens)
    }

    /// Returns the token that follows `tokens` under greedy sampling, computed with these adapters.
    #[must_use]
    pub fn next_token_with(adapters: &AdapterSchedule, tokens: &[Token]) -> Token {
        let digest = (0..)
            .zip(tokens)
            .fold(0, |digest, (position, &token)| extend_digest(digest ^ adapter_change(adapters.at(position)), token));
        let mut logits = row(digest, false);
        logits[3] = f32::NEG_INFINITY;
        argmax(&logits)
    }

    /// Returns the token that follows `tokens` under greedy sampling, with a prompt of `n_prompt` tokens and this grouping.
    #[must_use]
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
        let mut logits = row(digest, false);
        logits[3] = f32::NEG_INFINITY;
        argmax(&logits)
    }

    /// Returns the logits after `tokens`.
    #[must_use]
    pub fn logits_after(tokens: &[Token]) -> Vec<f32> {
        row(tokens.iter().fold(0, |digest, &token| extend_digest(digest, token)), false)
    }

    fn assert_ungrouped(&self, id: KvSeqId) {
        assert_eq!(self.n_grouped[usize::from(id.0)], 0, "the grouped tokens of {id:?} cannot be shared, saved or relocated");
    }

    fn sequence_mut(&mut self, id: KvSeqId) -> &mut Vec<FakeToken> {
        &mut self.sequences[usize::from(id.0)]
    }

    /// Removes cells outside the next token's window from a sequence, as llama.cpp may when it searches for free cells: those
    /// that no other sequence shares, and all cells before a removed one.
    fn recycle_window(&mut self, id: usize) {
        if self.memory.n_window == 0 {
            return;
        }
        let sequence = &self.sequences[id];
        let n_unseen = self.memory.window_from(length(sequence)) as usize;
        let last_lost = sequence[..n_unseen].iter().rposition(|token| self.n_owners[token.cell] == 1);
        let n_lost = last_lost.map_or(0, |last| length(&sequence[..=last]));
        self.whole_from[id] = n_lost.max(self.whole_from[id]);
    }

    fn release(&mut self, tokens: &[FakeToken]) {
        for token in tokens {
            self.n_owners[token.cell] -= 1;
        }
        self.count_cells();
    }

    /// Allocates cells for `n` tokens, in llama.cpp's order.
    fn find_cells(&mut self, n: usize) -> Option<Vec<usize>> {
        let free = self.n_owners.iter().enumerate().filter(|&(_, &n)| n == 0).map(|(cell, _)| cell);
        let cells: Vec<usize> = free.take(n).collect();
        (cells.len() == n).then(|| {
            for &cell in &cells {
                self.n_owners[cell] = 1;
            }
            cells
        })
    }

    fn count_cells(&self) {
        let mut state = self.control.lock();
        state.n_cells_used = self.n_owners.iter().filter(|&&n| n > 0).count();
        state.n_cells_reached = self.n_owners.iter().rposition(|&n| n > 0).map_or(0, |cell| cell + 1);
    }

    fn check_states(&self) -> Result<(), StateError> {
        if self.control.lock().fails_state_io {
            return Err(StateError::Refused("told to fail".into()));
        }
        Ok(())
    }

    fn wait_for_permission(&self) {
        let mut state = self.control.lock();
        while state.n_allowed == Some(0) {
            state.is_blocked = true;
            self.control.shared.1.notify_all();
            let (woken, timeout) =
                self.control.shared.1.wait_timeout(state, MAX_WAIT).expect("no code that holds the state can panic");
            assert!(!timeout.timed_out(), "a decode waited {MAX_WAIT:?} for permission");
            state = woken;
        }
        state.is_blocked = false;
        if let Some(n) = &mut state.n_allowed {
            *n -= 1;
        }
    }
}

/// Asserts that the media of a plan match its rows.
fn check_media(plan: &Plan) {
    let listed: Vec<usize> = plan.media.iter().flat_map(|media| media.rows.clone()).collect();
    let is_media_row = |n: &usize| is_of_medium(plan.rows[*n].token);
    assert_eq!((0..plan.rows.len()).filter(is_media_row).collect::<Vec<_>>(), listed, "the plan lists each media row once");
    for MediaRows { rows, media, start } in &plan.media {
        assert!(media.vectors().is_some(), "the embeddings of {media:?} are ready");
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
        self.wait_for_permission();
        let (failing, row_duration) = {
            let state = self.control.lock();
            (state.failing, state.row_duration)
        };
        if !row_duration.is_zero() {
            std::thread::sleep(row_duration * u32::try_from(plan.rows.len()).expect("a decode has few rows"));
        }
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
        let Some(cells) = self.find_cells(plan.rows.len()) else {
            return Err(DecodeError { reason: "the device cache is full".into() });
        };
        for &cell in &cells {
            self.n_owners[cell] = 0;
        }
        for (n, row_of) in plan.rows.iter().enumerate() {
            // A real backend that fails has already computed some of the rows.
            if fails && n > 0 {
                return Err(DecodeError { reason: "told to fail".into() });
            }
            let sequence = &self.sequences[usize::from(row_of.sequence.0)];
            assert_eq!(sequence.len(), row_of.position as usize, "a gap in the positions of {:?}", row_of.sequence);
            let whole_from = self.whole_from[usize::from(row_of.sequence.0)];
            assert!(self.memory.holds_window(whole_from, row_of.position), "{:?} lacks a part of its window", row_of.sequence);
            let digest = extend_digest(sequence.last().map_or(0, |token| token.digest) ^ change, row_of.token);
            let ends = self.ends_at.is_some_and(|n| sequence.len() + 1 >= n);
            let cell = cells[n];
            self.n_owners[cell] = 1;
            self.recycle_window(usize::from(row_of.sequence.0));
            self.sequence_mut(row_of.sequence).push(FakeToken { cell, digest });
            self.logits.push(row_of.wants_logits.then(|| row(digest, ends)));
        }
        self.count_cells();
        if fails {
            return Err(DecodeError { reason: "told to fail".into() });
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
        assert_eq!(self.sequences[usize::from(from.0)].len(), n_held as usize, "the cache and the model agree on {from:?}");
        match self.memory.forks {
            ForkRule::Anywhere => n_tokens <= n_held,
            ForkRule::InWindow => n_tokens <= n_held && self.memory.holds_window(self.whole_from[usize::from(from.0)], n_tokens),
            ForkRule::AtEnd => n_tokens == n_held,
        }
    }

    fn fork(&mut self, from: KvSeqId, to: KvSeqId, n_tokens: u32) {
        self.assert_ungrouped(from);
        let shared = self.sequences[usize::from(from.0)][..n_tokens as usize].to_vec();
        for token in &shared {
            self.n_owners[token.cell] += 1;
        }
        let sequence = self.sequence_mut(to);
        assert!(sequence.is_empty(), "{to:?} is empty before a fork");
        *sequence = shared;
        self.whole_from[usize::from(to.0)] = self.whole_from[usize::from(from.0)];
    }

    fn truncate(&mut self, id: KvSeqId, n_kept: u32) -> bool {
        let is_state = self.memory.forks == ForkRule::AtEnd;
        let n_grouped = self.n_grouped[usize::from(id.0)];
        assert!(n_kept >= n_grouped, "the {n_grouped} grouped tokens of {id:?} are not truncated");
        let sequence = self.sequence_mut(id);
        if is_state && n_kept > 0 && (n_kept as usize) < sequence.len() {
            return false;
        }
        let removed = sequence.split_off(sequence.len().min(n_kept as usize));
        let n_kept = length(sequence);
        let whole_from = &mut self.whole_from[usize::from(id.0)];
        *whole_from = n_kept.min(*whole_from);
        self.release(&removed);
        true
    }

    fn drop_sequence(&mut self, id: KvSeqId) {
        let removed = std::mem::take(self.sequence_mut(id));
        self.n_grouped[usize::from(id.0)] = 0;
        self.whole_from[usize::from(id.0)] = 0;
        self.release(&removed);
    }

    fn memory_kind(&self) -> MemoryKind {
        self.memory
    }

    fn is_repeatable(&self) -> bool {
        true
    }

    fn save(&mut self, id: KvSeqId, range: Range<u32>) -> Result<Arc<[u8]>, StateError> {
        self.assert_ungrouped(id);
        self.check_states()?;
        let sequence = &self.sequences[usize::from(id.0)];
        let is_state = self.memory.forks == ForkRule::AtEnd;
        assert!(!is_state || (range.start == 0 && range.end as usize == sequence.len()), "a recurrent state is saved as a whole");
        let whole_from = self.whole_from(id, &range);
        let mut bytes = Vec::with_capacity(range.len() * SAVED_TOKEN_BYTES);
        for position in range {
            let before = position.checked_sub(1).map_or(0, |before| sequence[before as usize].digest);
            let marked = if position < whole_from { position | OUTSIDE_WINDOW } else { position };
            bytes.extend(marked.to_le_bytes());
            bytes.extend(sequence[position as usize].digest.to_le_bytes());
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
        self.whole_from[usize::from(id.0)].max(last_window).clamp(range.start, range.end)
    }

    fn restore(&mut self, id: KvSeqId, piece: &[u8], kept: Range<u32>) -> Result<(), StateError> {
        self.assert_ungrouped(id);
        self.check_states()?;
        let duration = self.control.lock().reload_duration;
        if !duration.is_zero() {
            std::thread::sleep(duration);
        }
        let mut tokens: Vec<(u32, u64, u64)> = Vec::new();
        for token in piece.chunks(SAVED_TOKEN_BYTES) {
            let digest = |at: usize| Some(u64::from_le_bytes(token.get(at..at + 8)?.try_into().ok()?));
            let position = token.get(..4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
            let read = position.and_then(|position| Some((position, digest(4)?, digest(12)?)));
            tokens.push(read.ok_or_else(|| StateError::Refused("the saved piece is truncated".into()))?);
        }
        let cells = self.find_cells(tokens.len()).ok_or_else(|| StateError::Refused("the device cache is full".into()))?;
        for ((marked, digest, before), cell) in tokens.into_iter().zip(cells) {
            let position = marked & !OUTSIDE_WINDOW;
            if !kept.contains(&position) {
                self.release(&[FakeToken { cell, digest }]);
                continue;
            }
            if marked != position {
                self.whole_from[usize::from(id.0)] = position + 1;
            }
            let sequence = self.sequence_mut(id);
            assert_eq!(sequence.len(), position as usize, "a piece continues the tokens of {id:?}");
            assert_eq!(
                sequence.last().map_or(0, |token| token.digest),
                before,
                "a piece is restored after the same text as when it was saved"
            );
            sequence.push(FakeToken { cell, digest });
        }
        assert_eq!(self.sequences[usize::from(id.0)].len(), kept.end as usize, "the piece contains all kept tokens");
        self.count_cells();
        self.control.lock().n_reloads += 1;
        Ok(())
    }

    fn relocate(&mut self, ids: &[KvSeqId], range: Range<u32>) -> Result<(), RelocateError> {
        for &id in ids {
            self.assert_ungrouped(id);
        }
        if self.control.lock().min_ids_to_lose.is_some_and(|n_ids| ids.len() >= n_ids) {
            for &id in ids {
                self.truncate(id, range.start);
            }
            return Err(RelocateError::Lost(StateError::Refused("told to lose cells".into())));
        }
        self.check_states().map_err(RelocateError::Refused)?;
        let positions = range.start as usize..range.end as usize;
        for &id in ids {
            let sequence: Vec<FakeToken> = self.sequences[usize::from(id.0)][positions.clone()].to_vec();
            self.release(&sequence);
        }
        let cells = self.find_cells(positions.len()).expect("as many cells were just released");
        for (position, cell) in positions.zip(cells) {
            self.n_owners[cell] = u16::try_from(ids.len()).expect("there are at most 256 ids");
            for &id in ids {
                self.sequence_mut(id)[position].cell = cell;
            }
        }
        self.count_cells();
        Ok(())
    }

    fn group(&mut self, id: KvSeqId, range: Range<u32>, n: u32) {
        let (sequence, n_grouped) = (&self.sequences[usize::from(id.0)], self.n_grouped[usize::from(id.0)]);
        assert_eq!(range.start, n_grouped, "{id:?} groups the tokens after its groups");
        assert!(!range.is_empty() && range.end as usize <= sequence.len(), "{range:?} of {} tokens of {id:?}", sequence.len());
        assert!(range.start.is_multiple_of(n) && range.end.is_multiple_of(n), "{range:?} consists of whole groups of {n}");
        assert!(sequence.iter().all(|token| self.n_owners[token.cell] == 1), "{id:?} shares no cells");
        self.n_grouped[usize::from(id.0)] = range.end;
        let last = self.sequence_mut(id).last_mut().expect("the range is not empty");
        last.digest = group_digest(last.digest, range.end, n);
    }

    fn append_piece(&self, token: Token, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(spelling_of(token));
    }

    fn is_end(&self, token: Token) -> bool {
        self.end_tokens.contains(&token)
    }

    fn end_tokens(&self) -> &[Token] {
        self.end_tokens
    }

    fn suppressed_tokens(&self) -> &[Token] {
        &[SUPPRESSED]
    }

    fn token_strings(&self) -> TokenStrings {
        self.token_strings.clone()
    }
}

/// The vocabulary of a fake runner.
struct FakeVocabulary {
    end_tokens: &'static [Token],
}

/// Spelling of every token but [`END`], one byte each.
const BYTES: [u8; N_VOCAB] = {
    let mut bytes = [0; N_VOCAB];
    (bytes[1], bytes[2], bytes[N_VOCAB - 1]) = (0xC3, 0xA9, b'\n');
    let mut byte = 32;
    while byte < 124 {
        bytes[byte as usize - 29] = byte;
        byte += 1;
    }
    bytes
};

pub(crate) fn spelling_of(token: Token) -> &'static [u8] {
    let id = usize::try_from(token).expect("a token of the vocabulary");
    if token == END { &[] } else { &BYTES[id..=id] }
}

impl Vocabulary for FakeVocabulary {
    fn n_vocab(&self) -> usize {
        N_VOCAB
    }

    fn spelling(&self, token: Token) -> &[u8] {
        spelling_of(token)
    }

    fn spelling_alone(&self, token: Token) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.spelling(token))
    }

    fn piece(&self, token: Token) -> &[u8] {
        self.spelling(token)
    }

    fn tokenize(&self, text: &[u8]) -> Vec<Token> {
        let token = |byte| (1..).zip(&BYTES[1..]).find(|&(_, known)| known == byte).map(|(token, _)| token);
        text.iter().filter_map(token).collect()
    }

    fn newline(&self) -> Option<Token> {
        Some(NEWLINE)
    }

    fn opening(&self) -> Option<Token> {
        Some(OPENING)
    }

    fn is_end(&self, token: Token) -> bool {
        self.end_tokens.contains(&token)
    }

    fn end_tokens(&self) -> &[Token] {
        self.end_tokens
    }

    fn end_of_turn(&self) -> Option<Token> {
        self.end_tokens.first().copied()
    }
}

/// Returns the tokens of ASCII `text` without control characters except newlines.
///
/// # Panics
/// If `text` contains any other character.
#[must_use]
pub fn tokens_of(text: &str) -> Vec<Token> {
    let token = |byte: u8| {
        assert!((32..124).contains(&byte) || byte == b'\n', "the vocabulary has no token for byte {byte}");
        if byte == b'\n' { NEWLINE } else { Token::from(byte) - 29 }
    };
    text.bytes().map(token).collect()
}

/// Returns the change that adapters make to every digest: 0 if none is active.
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

/// Returns the digest of a text after `n_grouped` of its tokens were grouped.
fn group_digest(digest: u64, n_grouped: u32, n: u32) -> u64 {
    extend_digest(extend_digest(digest, n_grouped.cast_signed()), n.cast_signed())
}

/// Returns logits that depend on the digest of the prefix only. The end token is never sampled before its time.
fn row(digest: u64, ends: bool) -> Vec<f32> {
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

fn length(sequence: &[FakeToken]) -> u32 {
    u32::try_from(sequence.len()).expect("a context has fewer than 2³² tokens")
}

fn argmax(logits: &[f32]) -> Token {
    // The first of equally likely tokens wins, as in a sampler.
    let best = logits.iter().enumerate().rev().max_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(token, _)| token);
    Token::try_from(best).expect("a token of the vocabulary")
}
