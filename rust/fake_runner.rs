//! A runner without a model: the next token is a function of the prefix, and every computed token is counted.
//!
//! For tests and benches. It is as strict as llama.cpp: a gap in the positions, a taken id or a full pool is a panic or an error.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use std::ops::Range;

use crate::engine::runner::{DecodeError, MemoryKind, Plan, Runner, SequenceId, StateError};
use crate::request::Token;

/// Its vocabulary: 0 ends a text, 1 and 2 are the halves of "é", the others are printable characters.
pub const N_VOCAB: usize = 96;
/// Ends a text.
pub const END: Token = 0;

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
    plans: Vec<Plan>,
    /// Decodes that may still run; `None` is any number.
    n_allowed: Option<u64>,
    /// Which decodes fail from now on.
    failing: Option<Failing>,
    n_cells_used: usize,
}

/// Which decodes fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failing {
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

    /// From now on decodes fail, or no longer do.
    pub fn fail(&self, failing: Option<Failing>) {
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
}

/// See the module.
pub struct FakeRunner {
    control: FakeControl,
    sequences: Vec<Vec<Held>>,
    /// How many sequences hold each cell.
    n_owners: Vec<u16>,
    logits: Vec<Option<Vec<f32>>>,
    /// A sequence of this many tokens is followed by [`END`].
    ends_at: Option<usize>,
    keeps_plans: bool,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    cell: usize,
    /// A digest of the tokens up to this one.
    digest: u64,
}

impl FakeRunner {
    /// A pool of `n_cells` cells and `n_ids` ids.
    #[must_use]
    pub fn new(n_cells: u32, n_ids: u32) -> (Self, FakeControl) {
        let control = FakeControl::default();
        let runner = Self {
            control: control.clone(),
            sequences: vec![Vec::new(); n_ids as usize],
            n_owners: vec![0; n_cells as usize],
            logits: Vec::new(),
            ends_at: None,
            keeps_plans: true,
        };
        (runner, control)
    }

    /// The same, but every sequence of `n_tokens` tokens is followed by [`END`].
    #[must_use]
    pub fn ending_at(mut self, n_tokens: usize) -> Self {
        self.ends_at = Some(n_tokens);
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
        let digest = tokens.iter().fold(0, |digest, &token| digest_of(digest, token));
        let mut logits = row(digest, false);
        logits[3] = f32::NEG_INFINITY;
        argmax(&logits)
    }

    fn held_mut(&mut self, id: SequenceId) -> &mut Vec<Held> {
        &mut self.sequences[usize::from(id.0)]
    }

    fn release(&mut self, held: &[Held]) {
        for held in held {
            self.n_owners[held.cell] -= 1;
        }
        self.count_cells();
    }

    fn count_cells(&self) {
        self.control.lock().n_cells_used = self.n_owners.iter().filter(|&&n| n > 0).count();
    }

    fn wait_for_permission(&self) {
        let mut state = self.control.lock();
        while state.n_allowed == Some(0) {
            let (woken, timeout) =
                self.control.shared.1.wait_timeout(state, PATIENCE).expect("no code that holds the state can panic");
            assert!(!timeout.timed_out(), "no test keeps a decode waiting for so long: it has failed");
            state = woken;
        }
        if let Some(n) = &mut state.n_allowed {
            *n -= 1;
        }
    }
}

impl Runner for FakeRunner {
    fn n_vocab(&self) -> usize {
        N_VOCAB
    }

    fn decode(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        self.wait_for_permission();
        let failing = self.control.lock().failing;
        let fails = match failing {
            Some(Failing::All) => true,
            Some(Failing::MoreRowsThan(n)) => plan.rows.len() > n,
            None => false,
        };
        self.logits.clear();
        let mut next_free = 0;
        for (n, row_of) in plan.rows.iter().enumerate() {
            // A backend that fails has computed some of the rows already.
            if fails && n > 0 {
                return Err(DecodeError { reason: "told to fail".into() });
            }
            let held = &self.sequences[usize::from(row_of.sequence.0)];
            assert_eq!(held.len(), row_of.position as usize, "a gap in the positions of {:?}", row_of.sequence);
            let digest = digest_of(held.last().map_or(0, |held| held.digest), row_of.token);
            let ends = self.ends_at.is_some_and(|n| held.len() + 1 >= n);
            while self.n_owners.get(next_free).is_some_and(|&n| n > 0) {
                next_free += 1;
            }
            let cell = next_free;
            let Some(n_owners) = self.n_owners.get_mut(cell) else {
                return Err(DecodeError { reason: "the pool is full".into() });
            };
            *n_owners = 1;
            self.held_mut(row_of.sequence).push(Held { cell, digest });
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

    fn can_fork(&self, from: SequenceId, n_held: u32, n_tokens: u32) -> bool {
        assert_eq!(self.sequences[usize::from(from.0)].len(), n_held as usize, "the cache and the model agree on {from:?}");
        n_tokens <= n_held
    }

    fn fork(&mut self, from: SequenceId, to: SequenceId, n_tokens: u32) {
        let shared = self.sequences[usize::from(from.0)][..n_tokens as usize].to_vec();
        for held in &shared {
            self.n_owners[held.cell] += 1;
        }
        let held = self.held_mut(to);
        assert!(held.is_empty(), "{to:?} holds nothing before a fork");
        *held = shared;
    }

    fn truncate(&mut self, id: SequenceId, n_kept: u32) -> bool {
        let held = self.held_mut(id);
        let removed = held.split_off(held.len().min(n_kept as usize));
        self.release(&removed);
        true
    }

    fn drop_sequence(&mut self, id: SequenceId) {
        let removed = std::mem::take(self.held_mut(id));
        self.release(&removed);
    }

    fn memory(&self) -> MemoryKind {
        todo!("state is being written")
    }

    fn save(&mut self, _id: SequenceId, _range: Range<u32>) -> std::result::Result<Box<[u8]>, StateError> {
        todo!("state is being written")
    }

    fn restore(&mut self, _id: SequenceId, _piece: &[u8], _kept: Range<u32>) -> std::result::Result<(), StateError> {
        todo!("state is being written")
    }

    fn relocate(&mut self, _ids: &[SequenceId], _range: Range<u32>) -> std::result::Result<(), StateError> {
        todo!("state is being written")
    }

    fn append_piece(&self, token: Token, bytes: &mut Vec<u8>) {
        match token {
            END => {}
            1 => bytes.push(0xC3),
            2 => bytes.push(0xA9),
            token => bytes.push(u8::try_from(token + 29).expect("a token of the vocabulary")),
        }
    }

    fn is_end(&self, token: Token) -> bool {
        token == END
    }

    fn end_tokens(&self) -> &[Token] {
        &[END]
    }

    fn suppressed_tokens(&self) -> &[Token] {
        &[SUPPRESSED]
    }
}

/// The tokens of printable ASCII `text`.
///
/// # Panics
/// Where `text` holds anything else.
#[must_use]
pub fn tokens_of(text: &str) -> Vec<Token> {
    let token = |byte: u8| {
        assert!((32..=124).contains(&byte), "no token stands for byte {byte}");
        Token::from(byte) - 29
    };
    text.bytes().map(token).collect()
}

fn digest_of(digest: u64, token: Token) -> u64 {
    // splitmix64, Steele et al., 2014.
    let mut z = (digest ^ u64::from(token.unsigned_abs())).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
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

fn argmax(logits: &[f32]) -> Token {
    let best = logits.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(token, _)| token);
    Token::try_from(best).expect("a token of the vocabulary")
}
