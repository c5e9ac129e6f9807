//! A model that computes nothing and remembers nothing, and notes when it was asked to.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use weft::engine::runner::{DecodeError, IdleCost, KvSeqId, MemoryKind, Plan, RelocateError, Runner, StateError};
use weft::fake_runner::{END, FakeRunner, MEMORY, N_VOCAB};
use weft::request::Token;
use weft::sampling::TokenStrings;

/// How long a bench waits for decodes.
const PATIENCE: Duration = Duration::from_secs(30);

/// One decode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decode {
    pub(crate) began: Instant,
    pub(crate) ended: Instant,
    pub(crate) n_rows: usize,
}

/// The decodes so far, and how many there may be: the worker is held where it may do no more, so that a bench never races it.
#[derive(Clone, Default)]
pub(crate) struct Decodes {
    shared: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    decodes: Vec<Decode>,
    n_allowed: usize,
}

impl Decodes {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().expect("no code that holds the list can panic")
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let (state, is_over) = self.shared.1.wait_timeout(state, PATIENCE).expect("no code that holds the list can panic");
        assert!(!is_over.timed_out(), "the engine and the bench wait for each other");
        state
    }

    /// How many there were.
    pub(crate) fn len(&self) -> usize {
        self.lock().decodes.len()
    }

    /// Lets `n` more decodes run, and waits until they have.
    ///
    /// # Panics
    /// If the engine does not decode as often: on the slowest machine, all of it takes less.
    pub(crate) fn run(&self, n: usize) {
        let mut state = self.lock();
        let n_wanted = state.decodes.len() + n;
        state.n_allowed = n_wanted;
        self.shared.1.notify_all();
        while state.decodes.len() < n_wanted {
            state = self.wait(state);
        }
    }

    /// Lets decodes run freely.
    pub(crate) fn run_freely(&self) {
        self.lock().n_allowed = usize::MAX;
        self.shared.1.notify_all();
    }

    /// The last one.
    pub(crate) fn last(&self) -> Option<Decode> {
        self.lock().decodes.last().copied()
    }

    /// Takes them out, and lets what is left of the engine's work run freely.
    pub(crate) fn take(&self) -> Vec<Decode> {
        self.run_freely();
        std::mem::take(&mut self.lock().decodes)
    }

    fn wait_for_permission(&self) {
        let mut state = self.lock();
        while state.decodes.len() >= state.n_allowed {
            state = self.wait(state);
        }
    }

    fn add(&self, began: Instant, n_rows: usize) {
        let mut state = self.lock();
        self.shared.1.notify_all();
        state.decodes.push(Decode { began, ended: Instant::now(), n_rows });
    }
}

/// See the module.
pub(crate) struct Weightless {
    /// How long each decode sleeps.
    takes: Duration,
    decodes: Decodes,
    /// Of a saved piece.
    bytes_per_token: usize,
    idle_cost: IdleCost,
    logits: Vec<f32>,
    lexicon: TokenStrings,
}

impl Weightless {
    pub(crate) fn new(takes: Duration, decodes: Decodes) -> Self {
        // All but the tokens that end or halve something are as likely.
        let mut logits = vec![0.0; N_VOCAB];
        logits[..4].fill(-100.0);
        Self {
            takes,
            decodes,
            bytes_per_token: 1,
            idle_cost: MEMORY.idle_cost,
            logits,
            lexicon: FakeRunner::new(256, 2).0.lexicon(),
        }
    }
}

impl Weightless {
    #[allow(dead_code, reason = "not every bench saves much")]
    pub(crate) fn with_bytes_per_token(self, bytes_per_token: usize) -> Self {
        Self { bytes_per_token, ..self }
    }

    /// Nothing leaves the pool before its cells are needed: what does so where nobody runs depends on how fast the machine is.
    #[allow(dead_code, reason = "not every bench asks what is held")]
    pub(crate) fn with_idle_cells_for_free(self) -> Self {
        Self { idle_cost: IdleCost::Nothing, ..self }
    }
}

impl Runner for Weightless {
    fn n_vocab(&self) -> usize {
        N_VOCAB
    }

    fn n_threads(&self) -> usize {
        1
    }

    fn decode(&mut self, plan: &Plan) -> Result<(), DecodeError> {
        let began = Instant::now();
        self.decodes.wait_for_permission();
        if !self.takes.is_zero() {
            thread::sleep(self.takes);
        }
        self.decodes.add(began, plan.rows.len());
        Ok(())
    }

    fn logits(&self, _: usize) -> &[f32] {
        &self.logits
    }

    fn can_fork(&self, _: KvSeqId, n_held: u32, n_tokens: u32) -> bool {
        n_tokens <= n_held
    }

    fn fork(&mut self, _: KvSeqId, _: KvSeqId, _: u32) {}

    fn truncate(&mut self, _: KvSeqId, _: u32) -> bool {
        true
    }

    fn drop_sequence(&mut self, _: KvSeqId) {}

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind { idle_cost: self.idle_cost, ..MEMORY }
    }

    fn save(&mut self, _: KvSeqId, range: Range<u32>) -> Result<Arc<[u8]>, StateError> {
        Ok(vec![0; range.len() * self.bytes_per_token].into())
    }

    fn whole_from(&self, _: KvSeqId, range: &Range<u32>) -> u32 {
        range.start
    }

    fn restore(&mut self, _: KvSeqId, _: &[u8], _: Range<u32>) -> Result<(), StateError> {
        Ok(())
    }

    fn relocate(&mut self, _: &[KvSeqId], _: Range<u32>) -> Result<(), RelocateError> {
        Ok(())
    }

    fn append_piece(&self, _: Token, bytes: &mut Vec<u8>) {
        bytes.push(b'a');
    }

    fn is_end(&self, token: Token) -> bool {
        token == END
    }

    fn end_tokens(&self) -> &[Token] {
        &[END]
    }

    fn suppressed_tokens(&self) -> &[Token] {
        &[]
    }

    fn lexicon(&self) -> TokenStrings {
        self.lexicon.clone()
    }

    fn is_repeatable(&self) -> bool {
        true
    }
}
