//! A model that computes and stores nothing, and records its decodes.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use weft::engine::runner::{DecodeError, IdleCost, KvSeqId, MemoryKind, Plan, RelocateError, Runner, StateError};
use weft::fake_runner::{END, FakeRunner, MEMORY, N_VOCAB};
use weft::request::Token;
use weft::sampling::TokenStrings;

/// Maximum time that a benchmark waits for decodes.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// One decode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decode {
    pub(crate) started: Instant,
    pub(crate) ended: Instant,
    pub(crate) n_rows: usize,
}

/// The decodes so far, and their maximum number: the worker is blocked when it is reached, so that a benchmark never races it.
#[derive(Clone, Default)]
pub(crate) struct Decodes {
    shared: Arc<(Mutex<DecodeLog>, Condvar)>,
}

#[derive(Default)]
struct DecodeLog {
    decodes: Vec<Decode>,
    n_allowed: usize,
}

impl Decodes {
    fn lock(&self) -> MutexGuard<'_, DecodeLog> {
        self.shared.0.lock().expect("no code that holds the list can panic")
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, DecodeLog>) -> MutexGuard<'a, DecodeLog> {
        let (state, timeout) = self.shared.1.wait_timeout(state, MAX_WAIT).expect("no code that holds the list can panic");
        assert!(!timeout.timed_out(), "the engine and the bench wait for each other");
        state
    }

    /// Returns the number of decodes.
    pub(crate) fn len(&self) -> usize {
        self.lock().decodes.len()
    }

    /// Lets `n` more decodes run, and waits for them.
    ///
    /// # Panics
    /// If the engine does not run as many decodes: on the slowest machine, they take less time.
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

    /// Returns the last decode.
    pub(crate) fn last(&self) -> Option<Decode> {
        self.lock().decodes.last().copied()
    }

    /// Takes the decodes, and lets the remaining work of the engine run freely.
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

    fn add(&self, started: Instant, n_rows: usize) {
        let mut state = self.lock();
        self.shared.1.notify_all();
        state.decodes.push(Decode { started, ended: Instant::now(), n_rows });
    }
}

/// A runner without a model, see the [module](self).
pub(crate) struct Weightless {
    /// Duration of each decode, in which it sleeps.
    decode_duration: Duration,
    decodes: Decodes,
    /// Size of saved state per token.
    bytes_per_token: usize,
    idle_cost: IdleCost,
    logits: Vec<f32>,
    token_strings: TokenStrings,
}

impl Weightless {
    pub(crate) fn new(decode_duration: Duration, decodes: Decodes) -> Self {
        // All tokens are equally likely, except for the end token and halves of characters.
        let mut logits = vec![0.0; N_VOCAB];
        logits[..4].fill(-100.0);
        Self {
            decode_duration,
            decodes,
            bytes_per_token: 1,
            idle_cost: MEMORY.idle_cost,
            logits,
            token_strings: FakeRunner::new(256, 2).0.token_strings(),
        }
    }
}

impl Weightless {
    #[allow(dead_code, reason = "not every bench saves much")]
    pub(crate) fn with_bytes_per_token(self, bytes_per_token: usize) -> Self {
        Self { bytes_per_token, ..self }
    }

    /// Makes idle cells free, so that nothing leaves the device cache before its cells are needed: otherwise the speed of the
    /// machine determines what is offloaded while no sequence is running.
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
        let started = Instant::now();
        self.decodes.wait_for_permission();
        if !self.decode_duration.is_zero() {
            thread::sleep(self.decode_duration);
        }
        self.decodes.add(started, plan.rows.len());
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

    fn token_strings(&self) -> TokenStrings {
        self.token_strings.clone()
    }

    fn is_repeatable(&self) -> bool {
        true
    }
}
