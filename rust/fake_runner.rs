//! A runner without a model: the next token is a function of the prefix, and every computed token is counted.
//!
//! For tests and benches. It is as strict as llama.cpp: a gap in the positions, a taken id or a full pool is a panic or an error.
//! It puts tokens into cells as llama.cpp does, and a saved piece knows the text that it was saved after: what is restored in the
//! wrong place changes everything that is drawn from then on.

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

/// Its vocabulary: 0 ends a text, 1 and 2 are the halves of "é", the last is a new line, the others are printable characters.
pub const N_VOCAB: usize = 96;
/// Ends a text.
pub const END: Token = 0;

/// Begins a text, where somebody puts it there: `{`.
pub const OPENING: Token = 94;

/// A new line.
pub const NEWLINE: Token = 95;

/// Never drawn, however likely.
pub const SUPPRESSED: Token = 3;

/// How long a decode waits for its permission.
const PATIENCE: Duration = Duration::from_secs(15);

/// What a test sees of a [`FakeRunner`], and how it steers it.
#[derive(Clone, Default)]
pub struct FakeControl {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    /// How long each restore takes at least.
    restore_takes: Duration,
    /// How long each row of a decode takes at least.
    row_takes: Duration,
    plans: Vec<Plan>,
    /// Decodes that may still run; `None` is any number.
    n_allowed: Option<u64>,
    /// A decode waits until it is allowed.
    is_held: bool,
    /// Which decodes fail from now on.
    failing: Option<FailureMode>,
    n_cells_used: usize,
    n_cells_reached: usize,
    n_saves: usize,
    n_restores: usize,
    /// Whether saves and restores fail from now on.
    fails_states: bool,
    /// From now on cells that are to be moved are lost where at least this many ids hold them.
    loses_cells_of: Option<usize>,
}

/// Which decodes fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureMode {
    /// Those of more than this many rows.
    MoreRowsThan(usize),
    /// All.
    All,
}

impl FakeControl {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().expect("no code that holds the state can panic")
    }

    /// Lets `n` more decodes run and holds the next one; `None` lets them run freely, which is how it starts.
    pub fn allow(&self, n: Option<u64>) {
        self.lock().n_allowed = n;
        self.shared.1.notify_all();
    }

    /// Holds the next decode, and waits until one is held: what is submitted then is taken in after it, all in one step.
    pub fn hold(&self) {
        let mut state = self.lock();
        state.n_allowed = Some(0);
        while !state.is_held {
            let (woken, timeout) = self.shared.1.wait_timeout(state, PATIENCE).expect("no code that holds the state can panic");
            assert!(!timeout.timed_out(), "there is nothing to decode");
            state = woken;
        }
    }

    /// Whether a decode waits for its permission.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        let state = self.lock();
        state.is_held && state.n_allowed == Some(0)
    }

    /// From now on decodes fail, or no longer do.
    pub fn fail(&self, failing: Option<FailureMode>) {
        self.lock().failing = failing;
    }

    /// Tokens computed so far.
    #[must_use]
    pub fn n_computed(&self) -> usize {
        self.lock().plans.iter().map(|plan| plan.rows.len()).sum()
    }

    /// Every plan that was decoded.
    #[must_use]
    pub fn plans(&self) -> Vec<Plan> {
        self.lock().plans.clone()
    }

    /// Cells in use.
    #[must_use]
    pub fn n_cells_used(&self) -> usize {
        self.lock().n_cells_used
    }

    /// The highest cell in use, plus one.
    #[must_use]
    pub fn n_cells_reached(&self) -> usize {
        self.lock().n_cells_reached
    }

    /// Pieces saved so far.
    #[must_use]
    pub fn n_saves(&self) -> usize {
        self.lock().n_saves
    }

    /// Pieces restored so far.
    #[must_use]
    pub fn n_restores(&self) -> usize {
        self.lock().n_restores
    }

    /// From now on cells that are to be moved are lost.
    pub fn lose_cells(&self) {
        self.lock().loses_cells_of = Some(1);
    }

    /// From now on cells that are to be moved are lost where several ids hold them.
    pub fn lose_shared_cells(&self) {
        self.lock().loses_cells_of = Some(2);
    }

    /// From now on each restore takes so long at least.
    pub fn slow_restores(&self, each: Duration) {
        self.lock().restore_takes = each;
    }

    /// From now on each row of a decode takes so long at least.
    pub fn slow_rows(&self, each: Duration) {
        self.lock().row_takes = each;
    }

    /// From now on saves and restores fail, or no longer do.
    pub fn fail_states(&self, fails: bool) {
        self.lock().fails_states = fails;
    }
}

/// See the module.
pub struct FakeRunner {
    control: FakeControl,
    sequences: Vec<Vec<FakeSequence>>,
    /// How many of the first tokens of each sequence are grouped.
    n_grouped: Vec<u32>,
    /// First position from which each sequence still has everything that a sliding window sees. 0 for other memories.
    whole_from: Vec<u32>,
    /// How many sequences hold each cell.
    n_owners: Vec<u16>,
    logits: Vec<Option<Vec<f32>>>,
    /// A sequence of this many tokens is followed by [`END`].
    ends_at: Option<usize>,
    /// The tokens that end a text.
    end_tokens: &'static [Token],
    keeps_plans: bool,
    memory: MemoryKind,
    lexicon: TokenStrings,
    adapters: Vec<AdapterScale>,
    /// Of each adapter, where it is an activated one.
    invocations: Vec<Vec<Token>>,
}

#[derive(Debug, Clone, Copy)]
struct FakeSequence {
    cell: usize,
    /// A digest of the tokens up to this one.
    digest: u64,
}

/// Bytes of one token in a piece: its position, the digest up to it, and the one before it.
const PIECE_TOKEN: usize = 20;

/// Set in a position in a piece where the sliding window's part of the cell is missing.
const OUTSIDE_WINDOW: u32 = 1 << 31;

/// The memory of a fake runner: as attention on a CPU.
pub const MEMORY: MemoryKind = MemoryKind {
    forks: ForkRule::Anywhere,
    idle_cost: IdleCost::Scores,
    can_be_saved: true,
    bytes_per_token: PIECE_TOKEN as u64,
    bytes_per_state: 0,
    tokens_per_run: 2,
    n_window: 0,
};

impl FakeRunner {
    /// A pool of `n_cells` cells and `n_ids` ids.
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
            lexicon: TokenStrings::new(FakeVocabulary { end_tokens: &[END] }),
            adapters: Vec::new(),
            invocations: Vec::new(),
        };
        (runner, control)
    }

    /// The same, but every sequence of `n_tokens` tokens is followed by [`END`].
    #[must_use]
    pub fn ending_at(mut self, n_tokens: usize) -> Self {
        self.ends_at = Some(n_tokens);
        self
    }

    /// The same, but no token ends a text.
    #[must_use]
    pub fn without_end(mut self) -> Self {
        self.end_tokens = &[];
        self.lexicon = TokenStrings::new(FakeVocabulary { end_tokens: &[] });
        self
    }

    /// The same, but its memory is of this kind.
    #[must_use]
    pub fn with_memory(mut self, memory: MemoryKind) -> Self {
        self.memory = memory;
        self
    }

    /// The same, but with adapters of these scales, on from the start.
    #[must_use]
    pub fn with_adapters(mut self, scales: &[f32]) -> Self {
        self.adapters = (0..).zip(scales.iter().copied()).collect();
        self.invocations = vec![Vec::new(); scales.len()];
        self
    }

    /// The same, but this adapter counts from these tokens on.
    #[must_use]
    pub fn invoked_by(mut self, adapter: usize, tokens: &[Token]) -> Self {
        self.invocations[adapter] = tokens.to_vec();
        self
    }

    /// The same, but without a record of the plans, for benches.
    #[must_use]
    pub fn without_record(mut self) -> Self {
        self.keeps_plans = false;
        self
    }

    /// The token that follows `tokens` where sampling is greedy.
    #[must_use]
    pub fn next_token(tokens: &[Token]) -> Token {
        Self::next_token_with(&AdapterSchedule::default(), tokens)
    }

    /// The same, of a sequence that is computed so.
    #[must_use]
    pub fn next_token_with(variants: &AdapterSchedule, tokens: &[Token]) -> Token {
        let digest = (0..).zip(tokens).fold(0, |digest, (at, &token)| digest_of(digest ^ change_of(variants.at(at)), token));
        let mut logits = row(digest, false);
        logits[3] = f32::NEG_INFINITY;
        argmax(&logits)
    }

    /// The same, of a text that begins with a prompt of `n_prompt` tokens and is grouped so.
    #[must_use]
    pub fn next_token_grouped(grouping: Grouping, n_prompt: u32, tokens: &[Token]) -> Token {
        let (mut digest, mut n_grouped) = (0, 0);
        for (place, &token) in (0..).zip(tokens) {
            let n_due = grouping.n_grouped(place, n_prompt);
            if n_due > n_grouped {
                digest = digest_of_group(digest, n_due, grouping.n);
                n_grouped = n_due;
            }
            digest = digest_of(digest, token);
        }
        let mut logits = row(digest, false);
        logits[3] = f32::NEG_INFINITY;
        argmax(&logits)
    }

    /// The logits after `tokens`.
    #[must_use]
    pub fn logits_after(tokens: &[Token]) -> Vec<f32> {
        row(tokens.iter().fold(0, |digest, &token| digest_of(digest, token)), false)
    }

    fn assert_ungrouped(&self, id: KvSeqId) {
        assert_eq!(self.n_grouped[usize::from(id.0)], 0, "nobody else gets what {id:?} holds in groups");
    }

    fn held_mut(&mut self, id: KvSeqId) -> &mut Vec<FakeSequence> {
        &mut self.sequences[usize::from(id.0)]
    }

    /// Removes the cells outside the next token's window from a sequence, as llama.cpp may when it searches for free cells: those that
    /// no other sequence shares, and all cells before a removed one.
    fn recycle_window(&mut self, id: usize) {
        if self.memory.n_window == 0 {
            return;
        }
        let held = &self.sequences[id];
        let n_unseen = self.memory.window_from(length(held)) as usize;
        let last_lost = held[..n_unseen].iter().rposition(|held| self.n_owners[held.cell] == 1);
        let n_lost = last_lost.map_or(0, |last| length(&held[..=last]));
        self.whole_from[id] = n_lost.max(self.whole_from[id]);
    }

    fn release(&mut self, held: &[FakeSequence]) {
        for held in held {
            self.n_owners[held.cell] -= 1;
        }
        self.count_cells();
    }

    /// Free cells for `n` tokens, as llama.cpp finds them.
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
        if self.control.lock().fails_states {
            return Err(StateError::Refused("told to fail".into()));
        }
        Ok(())
    }

    fn wait_for_permission(&self) {
        let mut state = self.control.lock();
        while state.n_allowed == Some(0) {
            state.is_held = true;
            self.control.shared.1.notify_all();
            let (woken, timeout) =
                self.control.shared.1.wait_timeout(state, PATIENCE).expect("no code that holds the state can panic");
            assert!(!timeout.timed_out(), "no test keeps a decode waiting for so long: it has failed");
            state = woken;
        }
        state.is_held = false;
        if let Some(n) = &mut state.n_allowed {
            *n -= 1;
        }
    }
}

/// Asserts that what a plan says of media is what its rows hold.
fn check_media(plan: &Plan) {
    let told: Vec<usize> = plan.media.iter().flat_map(|media| media.rows.clone()).collect();
    let of_media = |n: &usize| is_of_medium(plan.rows[*n].token);
    assert_eq!((0..plan.rows.len()).filter(of_media).collect::<Vec<_>>(), told, "each place of a medium is told once");
    for MediaRows { rows, media, start } in &plan.media {
        assert!(media.vectors().is_some(), "the vectors of {media:?} are ready");
        let ids = media.ids().skip(*start as usize).take(rows.len());
        assert!(plan.rows[rows.clone()].iter().map(|row| row.token).eq(ids), "the rows hold {media:?} from {start} on");
        assert!(!media.sees_ahead() || rows.len() == media.n_tokens() as usize, "{media:?} is computed in one decode");
        assert!(plan.rows[rows.clone()].iter().all(|row| !row.wants_logits), "nothing is drawn after {media:?}");
        let sequence = plan.rows[rows.start].sequence;
        let n_of_it = plan.rows.iter().filter(|row| row.sequence == sequence).count();
        assert_eq!(n_of_it, rows.len(), "{sequence:?} computes {media:?} and nothing else");
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
        let (failing, row_takes) = {
            let state = self.control.lock();
            (state.failing, state.row_takes)
        };
        if !row_takes.is_zero() {
            std::thread::sleep(row_takes * u32::try_from(plan.rows.len()).expect("a decode has few rows"));
        }
        let fails = match failing {
            Some(FailureMode::All) => true,
            Some(FailureMode::MoreRowsThan(n)) => plan.rows.len() > n,
            None => false,
        };
        check_media(plan);
        self.logits.clear();
        let n_wanted = plan.rows.iter().filter(|row| row.wants_logits).count();
        assert!(n_wanted <= self.sequences.len(), "{n_wanted} rows want logits, more than there are ids");
        let change = change_of(&plan.variant);
        for id in 0..self.sequences.len() {
            self.recycle_window(id);
        }
        let Some(cells) = self.find_cells(plan.rows.len()) else {
            return Err(DecodeError { reason: "the pool is full".into() });
        };
        for &cell in &cells {
            self.n_owners[cell] = 0;
        }
        for (n, row_of) in plan.rows.iter().enumerate() {
            // A backend that fails has computed some of the rows already.
            if fails && n > 0 {
                return Err(DecodeError { reason: "told to fail".into() });
            }
            let held = &self.sequences[usize::from(row_of.sequence.0)];
            assert_eq!(held.len(), row_of.position as usize, "a gap in the positions of {:?}", row_of.sequence);
            let whole_from = self.whole_from[usize::from(row_of.sequence.0)];
            assert!(self.memory.holds_window(whole_from, row_of.position), "{:?} lacks a part of its window", row_of.sequence);
            let digest = digest_of(held.last().map_or(0, |held| held.digest) ^ change, row_of.token);
            let ends = self.ends_at.is_some_and(|n| held.len() + 1 >= n);
            let cell = cells[n];
            self.n_owners[cell] = 1;
            self.recycle_window(usize::from(row_of.sequence.0));
            self.held_mut(row_of.sequence).push(FakeSequence { cell, digest });
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
        self.logits[row].as_ref().expect("the row wanted logits")
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
        for held in &shared {
            self.n_owners[held.cell] += 1;
        }
        let held = self.held_mut(to);
        assert!(held.is_empty(), "{to:?} holds nothing before a fork");
        *held = shared;
        self.whole_from[usize::from(to.0)] = self.whole_from[usize::from(from.0)];
    }

    fn truncate(&mut self, id: KvSeqId, n_kept: u32) -> bool {
        let is_state = self.memory.forks == ForkRule::AtEnd;
        let n_grouped = self.n_grouped[usize::from(id.0)];
        assert!(n_kept >= n_grouped, "the {n_grouped} tokens that {id:?} holds in groups are not cut");
        let held = self.held_mut(id);
        if is_state && n_kept > 0 && (n_kept as usize) < held.len() {
            return false;
        }
        let removed = held.split_off(held.len().min(n_kept as usize));
        let n_kept = length(held);
        let whole_from = &mut self.whole_from[usize::from(id.0)];
        *whole_from = n_kept.min(*whole_from);
        self.release(&removed);
        true
    }

    fn drop_sequence(&mut self, id: KvSeqId) {
        let removed = std::mem::take(self.held_mut(id));
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
        let held = &self.sequences[usize::from(id.0)];
        let is_state = self.memory.forks == ForkRule::AtEnd;
        assert!(!is_state || (range.start == 0 && range.end as usize == held.len()), "a state is saved whole");
        let whole_from = self.whole_from(id, &range);
        let mut bytes = Vec::with_capacity(range.len() * PIECE_TOKEN);
        for position in range {
            let before = position.checked_sub(1).map_or(0, |before| held[before as usize].digest);
            let marked = if position < whole_from { position | OUTSIDE_WINDOW } else { position };
            bytes.extend(marked.to_le_bytes());
            bytes.extend(held[position as usize].digest.to_le_bytes());
            bytes.extend(before.to_le_bytes());
        }
        self.control.lock().n_saves += 1;
        Ok(bytes.into())
    }

    fn whole_from(&self, id: KvSeqId, range: &Range<u32>) -> u32 {
        if self.memory.n_window == 0 {
            return range.start;
        }
        // Like llama.cpp, a piece leaves out what its last token does not see.
        let last_window = range.end.saturating_sub(self.memory.n_window);
        self.whole_from[usize::from(id.0)].max(last_window).clamp(range.start, range.end)
    }

    fn restore(&mut self, id: KvSeqId, piece: &[u8], kept: Range<u32>) -> Result<(), StateError> {
        self.assert_ungrouped(id);
        self.check_states()?;
        let takes = self.control.lock().restore_takes;
        if !takes.is_zero() {
            std::thread::sleep(takes);
        }
        let mut tokens: Vec<(u32, u64, u64)> = Vec::new();
        for token in piece.chunks(PIECE_TOKEN) {
            let digest = |at: usize| Some(u64::from_le_bytes(token.get(at..at + 8)?.try_into().ok()?));
            let position = token.get(..4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
            let read = position.and_then(|position| Some((position, digest(4)?, digest(12)?)));
            tokens.push(read.ok_or_else(|| StateError::Refused("the piece is cut short".into()))?);
        }
        let cells = self.find_cells(tokens.len()).ok_or_else(|| StateError::Refused("the pool is full".into()))?;
        for ((marked, digest, before), cell) in tokens.into_iter().zip(cells) {
            let position = marked & !OUTSIDE_WINDOW;
            if !kept.contains(&position) {
                self.release(&[FakeSequence { cell, digest }]);
                continue;
            }
            if marked != position {
                self.whole_from[usize::from(id.0)] = position + 1;
            }
            let held = self.held_mut(id);
            assert_eq!(held.len(), position as usize, "a piece continues what {id:?} holds");
            assert_eq!(
                held.last().map_or(0, |held| held.digest),
                before,
                "a piece is restored after the text it was saved after"
            );
            held.push(FakeSequence { cell, digest });
        }
        assert_eq!(self.sequences[usize::from(id.0)].len(), kept.end as usize, "the piece holds all that is kept of it");
        self.count_cells();
        self.control.lock().n_restores += 1;
        Ok(())
    }

    fn relocate(&mut self, ids: &[KvSeqId], range: Range<u32>) -> Result<(), RelocateError> {
        for &id in ids {
            self.assert_ungrouped(id);
        }
        if self.control.lock().loses_cells_of.is_some_and(|n_ids| ids.len() >= n_ids) {
            for &id in ids {
                self.truncate(id, range.start);
            }
            return Err(RelocateError::Lost(StateError::Refused("told to lose cells".into())));
        }
        self.check_states().map_err(RelocateError::Refused)?;
        let places = range.start as usize..range.end as usize;
        for &id in ids {
            let held: Vec<FakeSequence> = self.sequences[usize::from(id.0)][places.clone()].to_vec();
            self.release(&held);
        }
        let cells = self.find_cells(places.len()).expect("as many were just given up");
        for (place, cell) in places.zip(cells) {
            self.n_owners[cell] = u16::try_from(ids.len()).expect("there are at most 256 ids");
            for &id in ids {
                self.held_mut(id)[place].cell = cell;
            }
        }
        self.count_cells();
        Ok(())
    }

    fn group(&mut self, id: KvSeqId, range: Range<u32>, n: u32) {
        let (held, n_grouped) = (&self.sequences[usize::from(id.0)], self.n_grouped[usize::from(id.0)]);
        assert_eq!(range.start, n_grouped, "{id:?} groups what follows its groups");
        assert!(!range.is_empty() && range.end as usize <= held.len(), "{range:?} of {} tokens of {id:?}", held.len());
        assert!(range.start.is_multiple_of(n) && range.end.is_multiple_of(n), "{range:?} has no half of a group of {n}");
        assert!(held.iter().all(|held| self.n_owners[held.cell] == 1), "{id:?} shares no cell");
        self.n_grouped[usize::from(id.0)] = range.end;
        let last = self.held_mut(id).last_mut().expect("it holds what is grouped");
        last.digest = digest_of_group(last.digest, range.end, n);
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

    fn lexicon(&self) -> TokenStrings {
        self.lexicon.clone()
    }
}

/// The vocabulary.
struct FakeVocabulary {
    end_tokens: &'static [Token],
}

/// The bytes of all tokens but [`END`], each of which has one.
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
    let at = usize::try_from(token).expect("a token of the vocabulary");
    if token == END { &[] } else { &BYTES[at..=at] }
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

/// The tokens of ASCII `text` without control characters but new lines.
///
/// # Panics
/// Where `text` holds anything else.
#[must_use]
pub fn tokens_of(text: &str) -> Vec<Token> {
    let token = |byte: u8| {
        assert!((32..124).contains(&byte) || byte == b'\n', "no token stands for byte {byte}");
        if byte == b'\n' { NEWLINE } else { Token::from(byte) - 29 }
    };
    text.bytes().map(token).collect()
}

/// What adapters change of every digest: nothing where none is on.
fn change_of(variant: &AdapterSet) -> u64 {
    variant.adapters().fold(0, |change, (id, scale)| digest_of(change ^ u64::from(scale.to_bits()), id.cast_signed()))
}

fn digest_of(digest: u64, token: Token) -> u64 {
    // splitmix64, Steele et al., 2014.
    let mut z = (digest ^ u64::from(token.unsigned_abs())).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// What becomes of the digest of a text when `n_grouped` of its tokens are grouped.
fn digest_of_group(digest: u64, n_grouped: u32, n: u32) -> u64 {
    digest_of(digest_of(digest, n_grouped.cast_signed()), n.cast_signed())
}

/// Logits that depend on the digest of the prefix alone. The end token is never drawn before its time.
fn row(digest: u64, ends: bool) -> Vec<f32> {
    let mut state = digest;
    let mut logits: Vec<f32> = (0..N_VOCAB)
        .map(|_| {
            state = digest_of(state, 1);
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

fn length(held: &[FakeSequence]) -> u32 {
    u32::try_from(held.len()).expect("a context has fewer than 2³² tokens")
}

fn argmax(logits: &[f32]) -> Token {
    // Of two that are as likely, the first, as a sampler takes it.
    let best = logits.iter().enumerate().rev().max_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(token, _)| token);
    Token::try_from(best).expect("a token of the vocabulary")
}
