//! A fuzz test: five clients, few sequence ids, small caches, and an oracle.
//!
//! A seed determines a round: an engine and a list of operations. Each request must get the same result under load as it gets
//! alone in an engine with ample room: the same tokens and finish reasons. No operation may stop the engine or its progress; in
//! the end every cell is accounted for, and pinned prefixes are still cached.
//!
//! `make test` runs [`N_ROUNDS`] rounds. To run many more, from a given seed:
//!
//! ```text
//! WEFT_FUZZ_ROUNDS=100000 WEFT_FUZZ_SEED=1 cargo test --profile checked --no-default-features --lib fuzz
//! ```
//!
//! A round that fails is shortened to fewer operations that still fail, and printed with its seed; `WEFT_FUZZ_ROUNDS=1` with
//! that seed repeats it. Most of a round is deterministic: operations run between two decodes. How much of an idle prefix is
//! offloaded in one step depends on timing.

use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::*;
use crate::engine::{Fork, ForkDestination, ForkKind, ForkPoint, ForkResult, ReadyEvents};
use crate::fake_runner::FailureMode;
use crate::request::{BeamSearch, Constraint, ConstraintSource, ContextShift, Diversity, Replay, SharedConstraint};

/// Number of rounds of `make test`.
const N_ROUNDS: u64 = 40;

const N_CLIENTS: u64 = 5;

/// Consecutive steps without any progress after which a test fails.
const MAX_IDLE_STEPS: u64 = 2_000;

/// Maximum time without a step: much longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }

    pub(super) fn number(&mut self, n: u32) -> u32 {
        u32::try_from(self.below(n.into())).unwrap()
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(super) fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap()].clone()
    }
}

#[derive(Debug, Clone)]
struct Setup {
    n_slots: u32,
    n_ctx: u32,
    n_ctx_slot: u32,
    n_ids: u32,
    n_ubatch: u32,
    max_host_cache_bytes: Option<u64>,
    forks: ForkRule,
    n_window: u32,
    /// Pins take room from other requests: what fits the cache alone may not fit with pins.
    has_pins: bool,
    fails: bool,
    speculates: bool,
}

impl Setup {
    fn new(dice: &mut Dice) -> Self {
        let forks = dice.of(&[ForkRule::Anywhere, ForkRule::Anywhere, ForkRule::InWindow, ForkRule::AtEnd]);
        let n_slots = 1 + dice.number(6);
        let n_ctx_slot = 96 + 32 * dice.number(4);
        let has_pins = dice.one_in(2);
        let n_ctx = if has_pins { 2 * n_ctx_slot + 64 * dice.number(4) } else { n_ctx_slot + 32 * dice.number(5) };
        Self {
            n_slots,
            n_ctx,
            n_ctx_slot,
            n_ids: n_slots + dice.of(&[1, 2, 3, 8]),
            n_ubatch: dice.of(&[16, 64, 512]),
            max_host_cache_bytes: match dice.of(&[Some(0), Some(4_000), Some(20_000), STORE]) {
                // The 512 bytes of overhead per entry and the logits of pinned prefixes are not counted, so that several small
                // pins may not fit.
                Some(4_000) if has_pins => Some(20_000),
                max_host_cache_bytes => max_host_cache_bytes,
            },
            forks,
            n_window: if forks == ForkRule::InWindow { 4 + dice.number(40) } else { 0 },
            has_pins,
            fails: dice.one_in(4),
            speculates: false,
        }
    }

    fn start(&self, ample: bool) -> (Engine, FakeControl) {
        let room = if ample { Self { n_slots: 6, n_ctx: 8192, n_ids: 128, ..self.clone() } } else { self.clone() };
        let limits = Limits {
            n_ctx_slot: room.n_ctx_slot,
            n_seq_max: room.n_ids,
            n_ubatch: room.n_ubatch,
            max_host_cache_bytes: if ample { STORE } else { room.max_host_cache_bytes },
            speculation: if self.speculates && !ample { SpeculationMode::Auto } else { SpeculationMode::Off }.into(),
            ..limits(room.n_slots, room.n_ctx)
        };
        let kind = MemoryKind { forks: self.forks, n_window: self.n_window, ..MEMORY };
        start_with(limits, move |runner| runner.with_memory(kind).with_adapters(&[0.0, 0.0]))
    }
}

/// Constraint or filter on the tokens of a branch.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is drawn on its own")]
struct BranchOptions {
    is_greedy: bool,
    has_penalties: bool,
    has_constraint: bool,
    has_stop: bool,
}

impl BranchOptions {
    fn new(dice: &mut Dice) -> Self {
        Self {
            is_greedy: dice.one_in(2),
            has_penalties: dice.one_in(3),
            has_constraint: dice.one_in(4),
            has_stop: dice.one_in(6),
        }
    }

    fn apply(self, request: &mut Request) {
        request.sampling.temperature = if self.is_greedy { 0.0 } else { 1.0 };
        if self.has_penalties {
            (request.sampling.presence_penalty, request.sampling.repeat_last_n) = (3.0, -1);
        }
        request.constraint = self.has_constraint.then(|| SharedConstraint(Arc::new(Turns(0))));
        request.stop = if self.has_stop { vec!["e".into(), "xyz".into()] } else { Vec::new() };
    }
}

#[derive(Debug, Clone)]
struct Spec {
    stem: (u64, usize),
    tail: (u64, usize),
    n: u32,
    max_tokens: u32,
    seed: u32,
    shape: BranchOptions,
    shift: Option<ContextShift>,
    adapters: Vec<(u32, f32)>,
    beams: Option<BeamSearch>,
    priority: i32,
    uses_cache: bool,
}

fn text_of((family, n): (u64, usize)) -> String {
    prompt(family, n)
}

impl Spec {
    fn new(dice: &mut Dice, setup: &Setup) -> Self {
        let mut beams: Option<BeamSearch> = None;
        // feature: beams
        if setup.n_slots > 1 && dice.one_in(4) {
            let width = 2 + dice.number(setup.n_slots - 1);
            beams = Some(BeamSearch { width, length_penalty: 1.0, is_stochastic: dice.one_in(2) });
        }
        let (max_branches, longest) = (beams.map_or(3, |beams| beams.width), dice.of(&[20, setup.n_ctx_slot]));
        let stem = (dice.below(3), 10 + usize::try_from(dice.below(40)).unwrap());
        let shift = ContextShift { n_keep: dice.one_in(2).then(|| dice.number(60)), n_discard: dice.number(2) * dice.number(40) };
        Self {
            stem,
            tail: (10 + dice.below(5), usize::try_from(dice.below(20)).unwrap()),
            n: 1 + dice.number(max_branches),
            max_tokens: 1 + dice.number(longest),
            seed: dice.number(1_000),
            shape: BranchOptions { has_stop: false, ..BranchOptions::new(dice) },
            shift: (beams.is_none() && dice.one_in(4)).then_some(shift),
            adapters: dice.of(&[vec![], vec![], vec![], vec![(0, 1.0)], vec![(1, 0.5)]]),
            beams,
            priority: dice.of(&[0, 0, 0, 0, 1, -1]),
            uses_cache: !dice.one_in(6),
        }
    }

    fn text(&self) -> String {
        text_of(self.stem) + &text_of(self.tail)
    }

    fn request(&self) -> Request {
        let mut request = greedy(&self.text(), self.max_tokens);
        self.shape.apply(&mut request);
        (request.n, request.seed, request.priority) = (self.n, self.seed, self.priority);
        (request.context_shift, request.uses_cache) = (self.shift, self.uses_cache);
        request.adapters = Some(self.adapters.clone());
        if let Some(search) = self.beams {
            request.diversity = Diversity::Beams(search);
            request.sampling.temperature = 1.0;
            (request.sampling.top_k, request.sampling.top_p, request.sampling.min_p) = (0, 1.0, 0.0);
        }
        request
    }
}

#[derive(Debug, Clone)]
struct ForkSpec {
    branch: u32,
    /// The end of the branch if `None`.
    after: Option<u32>,
    append: (u64, usize),
    n: u32,
    is_own_stream: bool,
    /// Options, maximum tokens and seed that differ from the branch's.
    options: Option<(BranchOptions, u32, u32)>,
}

impl ForkSpec {
    fn new(dice: &mut Dice, setup: &Setup) -> Self {
        let options = (BranchOptions::new(dice), 1 + dice.number(setup.n_ctx_slot), dice.number(1_000));
        Self {
            branch: dice.number(4),
            after: dice.one_in(2).then(|| dice.number(12)),
            append: (dice.below(9), usize::try_from(dice.below(2) * dice.below(12)).unwrap()),
            n: 1 + dice.number(2),
            is_own_stream: dice.one_in(2),
            options: dice.one_in(2).then_some(options),
        }
    }

    fn order(&self, at: ForkPoint) -> Fork {
        let kind = match self.options {
            None => ForkKind::Continue(self.n),
            Some((shape, max_tokens, seed)) => {
                let mut request = Request { n: self.n, seed, ..greedy("", max_tokens) };
                shape.apply(&mut request);
                ForkKind::Restart { requests: vec![request], with_own_seeds: true }
            }
        };
        let destination = if self.is_own_stream { ForkDestination::OwnStream(None) } else { ForkDestination::SameStream };
        Fork { branch: self.branch, at, append: tokens_of(&text_of(self.append)), kind, destination }
    }
}

#[derive(Debug, Clone)]
enum Op {
    Submit(Spec),
    /// Index of one of the streams, counted from the last.
    Fork(usize, ForkSpec),
    CancelBranch(usize, u32),
    Drop(usize),
    Pin((u64, usize)),
    Unpin(usize),
    Save {
        text: (u64, usize),
        computes: bool,
    },
    Load(usize),
    /// Decodes fail during the next operation.
    Fail(FailureMode),
    Decode(u64),
}

/// Operations of each client, in execution order.
fn operations(dice: &mut Dice, setup: &Setup) -> Vec<Op> {
    let n = 12 + usize::try_from(dice.below(40)).unwrap();
    let mut ops = Vec::new();
    for _ in 0..n {
        // Each client has one of the last streams.
        let stream = usize::try_from(dice.below(N_CLIENTS)).unwrap();
        let text = (dice.below(3), 16 + usize::try_from(dice.below(30)).unwrap());
        ops.push(match dice.below(20) {
            0..=5 => Op::Submit(Spec::new(dice, setup)),
            6..=8 => Op::Fork(stream, ForkSpec::new(dice, setup)), // feature: forks
            9 => Op::CancelBranch(stream, dice.number(4)),
            10 => Op::Drop(stream),
            11 if setup.has_pins => Op::Pin(text),
            12 if setup.has_pins => Op::Unpin(usize::try_from(dice.below(4)).unwrap()),
            13 => Op::Save { text, computes: dice.one_in(2) },
            14 => Op::Load(usize::try_from(dice.below(4)).unwrap()),
            15 if setup.fails => {
                Op::Fail(dice.of(&[FailureMode::All, FailureMode::MoreRowsThan(1), FailureMode::MoreRowsThan(4)]))
            }
            _ => {
                let few = if dice.one_in(3) { 60 } else { 6 };
                Op::Decode(1 + dice.below(few))
            }
        });
    }
    ops
}

/// Allows each third token, with an offset that changes by position.
#[derive(Debug, Clone)]
struct Turns(i32);

impl ConstraintSource for Turns {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Constraint for Turns {
    fn allows(&mut self, token: Token) -> bool {
        token % 3 == self.0 % 3
    }

    fn mask(&mut self, logits: &mut [f32]) {
        for (token, logit) in (0..).zip(logits) {
            if !self.allows(token) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn accept(&mut self, token: Token) {
        assert!(self.allows(token), "token {token} at place {}", self.0);
        self.0 += 1;
    }

    fn copy(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// Events of a stream.
#[derive(Default)]
struct Told {
    branches: Vec<(Vec<Token>, Option<Finished>)>,
    error: Option<Error>,
    has_ended: bool,
}

impl Told {
    /// Reads the available events; returns true if there were any.
    fn read(&mut self, completions: &Completions) -> bool {
        let mut has_read = false;
        while !self.has_ended {
            let events = match completions.try_events(usize::MAX) {
                Ok(ReadyEvents::Pending) => break,
                Ok(ReadyEvents::Events(events)) => events,
                Ok(ReadyEvents::Ended) => {
                    self.has_ended = true;
                    return true;
                }
                Err(error) => {
                    (self.error, self.has_ended) = (Some(error), true);
                    return true;
                }
            };
            has_read = true;
            for event in events {
                match event {
                    Event::Token(token) => self.branch(token.index).0.push(token.token),
                    Event::Finished(finished) => {
                        let index = finished.index;
                        self.branch(index).1 = Some(finished);
                    }
                    Event::Progress(_) | Event::PromptLogprobs(_) => {}
                }
            }
        }
        has_read
    }

    fn branch(&mut self, index: u32) -> &mut (Vec<Token>, Option<Finished>) {
        let n = self.branches.len().max(index as usize + 1);
        self.branches.resize_with(n, Default::default);
        &mut self.branches[index as usize]
    }

    fn n_drawn(&self, index: u32) -> usize {
        self.branches.get(index as usize).map_or(0, |(tokens, _)| tokens.len())
    }

    fn is_finished(&self, index: u32) -> bool {
        self.branches.get(index as usize).is_some_and(|(_, finished)| finished.is_some())
    }
}

/// Origin of a stream.
#[derive(Clone)]
enum Origin {
    Request(Spec),
    /// A fork with its own stream.
    Fork,
    Task,
}

struct Stream {
    completions: Option<Completions>,
    told: Told,
    origin: Origin,
}

/// A fork that was made.
struct Forking {
    of: usize,
    spec: ForkSpec,
    n_sampled: u32,
    /// Length of its prompt in tokens.
    n_prompt: usize,
    /// Indices of its branches in their stream.
    branches: Range<u32>,
    /// Its own stream, if any.
    own: Option<usize>,
}

/// An engine with the streams of its clients.
struct Player {
    engine: Engine,
    control: FakeControl,
    streams: Vec<Stream>,
    forks: Vec<Forking>,
    pins: Vec<PinnedPrefix>,
    saved: Vec<SavedPrefix>,
    /// What is drafted for each stream.
    replays: Vec<Arc<Replay>>,
}

impl Player {
    fn new(setup: &Setup, ample: bool) -> Self {
        let (engine, control) = setup.start(ample);
        control.allow(Some(0));
        let (streams, forks, pins, saved, replays) = Default::default();
        Self { engine, control, streams, forks, pins, saved, replays }
    }

    fn open(&mut self, mut request: Request, origin: Origin) -> Result<usize, String> {
        request.speculation.replay = self.replays.get(self.streams.len()).cloned();
        let completions = self.engine.submit(request, None).map_err(|error| format!("a request was refused: {error}"))?;
        self.streams.push(Stream { completions: Some(completions), told: Told::default(), origin });
        Ok(self.streams.len() - 1)
    }

    /// Reads the available events of all streams; returns true if there were any.
    fn read(&mut self) -> bool {
        let mut has_read = false;
        for stream in &mut self.streams {
            if let Some(completions) = &stream.completions {
                has_read |= stream.told.read(completions);
            }
        }
        has_read
    }

    /// Waits until `is_over` returns true, as long as the engine makes progress.
    fn wait(&mut self, mut is_over: impl FnMut(&mut Self) -> bool) -> Result<(), String> {
        let progress = |stats: &Stats| {
            (
                stats.n_decodes,
                stats.n_predicted,
                stats.n_preempted,
                stats.branches.n_started,
                stats.host_cache.clone(),
                stats.n_cells_used,
            )
        };
        let mut last = progress(&self.engine.stats());
        let (mut since, mut silent_since) = (self.engine.stats().n_steps, Instant::now());
        while !is_over(self) {
            let stats = self.engine.stats();
            if self.read() || progress(&stats) != last {
                (last, since, silent_since) = (progress(&stats), stats.n_steps, Instant::now());
            }
            if !self.engine.is_running() {
                return Err("the worker has panicked".to_owned());
            }
            if stats.n_steps > since + MAX_IDLE_STEPS || silent_since.elapsed() > PATIENCE {
                return Err(format!("no progress in {} steps: {stats:?}", stats.n_steps - since));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Lets `n` decodes run, or fewer if there is nothing to decode.
    fn decode(&mut self, n: u64) -> Result<(), String> {
        self.control.allow(Some(n));
        self.wait(|player| player.control.is_waiting() || is_idle(&player.engine.stats()))?;
        self.read();
        Ok(())
    }

    /// Lets the engine run until a stream has ended, and returns its result.
    fn finish(&mut self, stream: usize) -> Result<Option<TaskResult>, String> {
        self.control.allow(None);
        self.wait(|player| player.streams[stream].told.has_ended)?;
        self.control.allow(Some(0));
        let finished = self.streams[stream].told.branches.first_mut().and_then(|(_, finished)| finished.as_mut());
        Ok(finished.and_then(|finished| finished.result.take()).map(|made| *made))
    }

    fn nth_from_last(&self, n: usize) -> Option<usize> {
        self.streams.len().checked_sub(n + 1)
    }

    /// Makes a fork, unless it is refused.
    fn fork(&mut self, of: usize, spec: &ForkSpec, at: ForkPoint) -> Result<Option<&Forking>, String> {
        let stream = &self.streams[of];
        let Some(completions) = &stream.completions else { return Ok(None) };
        let pending = match completions.request_fork(spec.order(at), None) {
            Ok(pending) => pending,
            Err(Error::InvalidRequest { .. } | Error::ContextOverflow { .. }) => return Ok(None),
            Err(error) => return Err(format!("a fork was refused: {error}")),
        };
        // It is made between two decodes.
        while !pending.is_ready() {
            self.control.allow(Some(1));
            self.wait(|player| pending.is_ready() || player.control.is_waiting() || is_idle(&player.engine.stats()))?;
        }
        let forked = match pending.take() {
            Some(Ok(forked)) => forked,
            Some(Err(Error::InvalidRequest { .. } | Error::ContextOverflow { .. })) => return Ok(None),
            other => return Err(format!("a fork has failed: {other:?}")),
        };
        let ForkResult { n_sampled, n_prompt, branches, .. } = forked;
        let own = forked.stream.map(|completions| {
            let (told, origin) = (Told::default(), Origin::Fork);
            self.streams.push(Stream { completions: Some(completions), told, origin });
            self.streams.len() - 1
        });
        self.forks.push(Forking { of, spec: spec.clone(), n_sampled, n_prompt, branches, own });
        Ok(self.forks.last())
    }

    fn play(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Submit(spec) => drop(self.open(spec.request(), Origin::Request(spec.clone()))?),
            Op::Fork(stream, spec) => {
                let Some(of) = self.nth_from_last(*stream) else { return Ok(()) };
                let stream = &self.streams[of];
                if !matches!(stream.origin, Origin::Task) {
                    self.fork(of, spec, spec.after.map_or(ForkPoint::End, ForkPoint::Token))?;
                }
            }
            Op::CancelBranch(stream, branch) => {
                let Some(stream) = self.nth_from_last(*stream) else { return Ok(()) };
                if let Some(completions) = &self.streams[stream].completions {
                    completions.cancel_branch(*branch);
                }
            }
            Op::Drop(stream) => {
                let Some(stream) = self.nth_from_last(*stream) else { return Ok(()) };
                self.read();
                self.streams[stream].completions = None;
            }
            Op::Pin(text) => {
                let stream = self.open(task(&text_of(*text), Task::Pin), Origin::Task)?;
                if let Some(TaskResult::Pinned(pinned)) = self.finish(stream)? {
                    self.pins.push(pinned);
                }
            }
            Op::Unpin(nth) if *nth < self.pins.len() => {
                let pinned = self.pins.remove(*nth);
                let (engine, control) = (&self.engine, &self.control);
                if !answer_while_held(control, || engine.unpin(pinned.id)).map_err(|error| error.to_string())? {
                    return Err(format!("{pinned:?} is not pinned any more"));
                }
            }
            Op::Save { text, computes } => {
                let stream = self.open(task(&text_of(*text), Task::Save { computes: *computes }), Origin::Task)?;
                if let Some(TaskResult::Saved(saved)) = self.finish(stream)? {
                    self.saved.push(saved);
                }
            }
            Op::Load(nth) if *nth < self.saved.len() => {
                let saved = Arc::new(self.saved[*nth].clone());
                if !saved.tokens.is_empty() {
                    let request = Request::for_task(Prompt::from_tokens(saved.tokens.clone()), Task::Load(saved));
                    self.open(request, Origin::Task)?;
                }
            }
            Op::Unpin(_) | Op::Load(_) => {}
            Op::Fail(failing) => {
                self.control.fail(Some(*failing));
                self.decode(2)?;
                self.control.fail(None);
            }
            Op::Decode(n) => self.decode(*n)?,
        }
        Ok(())
    }
}

/// Asserts that the streams of `player` got the same events as the oracle's.
fn compare(setup: &Setup, player: &Player) -> Result<(), String> {
    // Branches, as (stream, index), without an equal in the oracle.
    let mut without_equal = BTreeSet::new();
    let mut oracle: Vec<Option<Told>> = (0..player.streams.len()).map(|_| None).collect();
    for (root, stream) in player.streams.iter().enumerate() {
        let Origin::Request(spec) = &stream.origin else { continue };
        // A search ends when its texts fill the device cache, which depends on its size.
        let mut alone = Player::new(setup, spec.beams.is_none());
        let first = alone.open(spec.request(), stream.origin.clone())?;
        let mut known = vec![(root, first)];
        let mut is_behind = BTreeSet::new();
        for Forking { of: theirs, spec: fork, n_sampled, n_prompt, branches, own } in &player.forks {
            let Some(&(_, mine)) = known.iter().find(|&(known, _)| known == theirs && !is_behind.contains(known)) else {
                continue;
            };
            while alone.streams[mine].told.n_drawn(fork.branch) < *n_sampled as usize
                && !alone.streams[mine].told.is_finished(fork.branch)
            {
                alone.decode(1)?;
            }
            // A stream that has ended takes no more forks, so that indices of later ones differ.
            let n_before = alone.streams.len();
            let Some(forked) = alone.fork(mine, fork, ForkPoint::Token(*n_sampled))? else {
                is_behind.insert(*theirs);
                continue;
            };
            if forked.n_prompt != *n_prompt && spec.shift.is_none() {
                return Err(format!("a fork has a prompt of {n_prompt} tokens under load, and of {} alone", forked.n_prompt));
            }
            // If a context shift preceded one of the two forks and not the other, they continue different texts.
            if forked.n_prompt != *n_prompt || without_equal.contains(&(*theirs, fork.branch)) {
                without_equal.extend(branches.clone().map(|branch| (own.unwrap_or(*theirs), branch)));
            }
            if let Some(own) = own {
                known.push((*own, n_before));
            }
        }
        alone.control.allow(None);
        alone.wait(|alone| alone.streams.iter().all(|stream| stream.told.has_ended))?;
        for (theirs, mine) in known {
            oracle[theirs] = Some(std::mem::take(&mut alone.streams[mine].told));
        }
    }
    for (nth, (stream, expected)) in player.streams.iter().zip(&oracle).enumerate() {
        match (&stream.told.error, &stream.origin) {
            (None, _) | (Some(Error::PinsFull { .. }), Origin::Task) => {}
            (Some(Error::Decode { .. }), _) if setup.fails => {}
            (Some(error), _) => return Err(format!("stream {nth} has failed: {error}")),
        }
        let Some(expected) = expected else { continue };
        if is_crowded_by_pins(setup, stream) {
            continue;
        }
        for (branch, (tokens, finished)) in stream.told.branches.iter().enumerate() {
            let Some((expected, end)) = expected.branches.get(branch) else { continue };
            if u32::try_from(branch).is_ok_and(|branch| without_equal.contains(&(nth, branch))) {
                continue;
            }
            let is_whole = finished.as_ref().is_some_and(|finished| finished.reason != FinishReason::Cancelled);
            let reason = |finished: &Option<Finished>| finished.as_ref().map(|finished| finished.reason.clone());
            let is_right =
                if is_whole { tokens == expected && reason(finished) == reason(end) } else { expected.starts_with(tokens) };
            if !is_right {
                let (under_load, alone) = (reason(finished), reason(end));
                return Err(format!(
                    "branch {branch} of stream {nth} has drawn {tokens:?}, {under_load:?} under load, and {expected:?}, {alone:?} alone"
                ));
            }
            check_usage(stream, finished.as_ref(), branch)?;
        }
        if stream.completions.is_some()
            && stream.told.error.is_none()
            && let Some(open) = stream.told.branches.iter().position(|(_, finished)| finished.is_none())
        {
            return Err(format!("branch {open} of stream {nth} has no end"));
        }
    }
    Ok(())
}

/// Returns true if a search ended because pinned prefixes keep cells that it has when alone: without a host cache they stay in
/// the device cache.
fn is_crowded_by_pins(setup: &Setup, stream: &Stream) -> bool {
    let is_search = matches!(&stream.origin, Origin::Request(spec) if spec.beams.is_some());
    let is_full = |(_, finished): &(Vec<Token>, Option<Finished>)| {
        finished.as_ref().is_some_and(|finished| finished.reason == FinishReason::ContextFull)
    };
    is_search && setup.has_pins && setup.max_host_cache_bytes == Some(0) && stream.told.branches.iter().any(is_full)
}

/// Checks that each prompt token was either computed or cached.
fn check_usage(stream: &Stream, finished: Option<&Finished>, branch: usize) -> Result<(), String> {
    let (Origin::Request(spec), Some(finished)) = (&stream.origin, finished) else { return Ok(()) };
    let usage = finished.usage;
    let n_prompt = u32::try_from(spec.text().len()).unwrap();
    let is_of_request = branch < spec.n as usize && finished.reason != FinishReason::Cancelled;
    if is_of_request && usage.n_prompt_computed + usage.n_cached != n_prompt {
        return Err(format!("of {n_prompt} tokens, {usage:?}"));
    }
    Ok(())
}

/// Checks that no prefix is computed twice with ample room and without failures.
fn check_computed(setup: &Setup, player: &Player) -> Result<(), String> {
    let stats = player.engine.stats();
    let is_ample = stats.n_preempted == 0 && stats.host_cache.n_evicted == 0 && setup.forks == ForkRule::Anywhere && !setup.fails;
    let is_plain = |stream: &Stream| match &stream.origin {
        Origin::Request(spec) => spec.shift.is_none() && stream.completions.is_some(),
        Origin::Fork => false,
        Origin::Task => stream.completions.is_some(),
    };
    if !is_ample || !player.forks.is_empty() || !player.streams.iter().all(is_plain) || !player.saved.is_empty() {
        return Ok(());
    }
    let (mut known, mut n_computable) = (BTreeSet::new(), 0);
    for stream in &player.streams {
        let Origin::Request(spec) = &stream.origin else { return Ok(()) };
        let text = spec.text();
        let adapters = format!("{:?}", spec.adapters);
        let n_new = (1..=text.len()).filter(|&n| known.insert((adapters.clone(), text[..n].to_owned()))).count();
        let n_branches = spec.beams.map_or(spec.n, |beams| beams.width) as usize;
        // Short prefixes are not shared, and the last token of a prompt is computed for its logits.
        n_computable += if spec.uses_cache { n_new + 17 } else { text.len() * n_branches };
        n_computable += n_branches * (spec.max_tokens as usize + 1);
    }
    let n_computed = player.control.n_computed();
    if n_computed > n_computable {
        return Err(format!("{n_computed} tokens were computed; {n_computable} are enough"));
    }
    Ok(())
}

/// Checks that pinned prefixes are found again, and that no other cells are in use after the clients have left.
fn check_end(mut player: Player) -> Result<(), String> {
    for pinned in std::mem::take(&mut player.pins) {
        let mut request = greedy("", 1);
        request.prompt = Prompt::from_tokens([&pinned.tokens[..], &tokens_of(&prompt(99, 20))].concat());
        request.adapters = Some(pinned.adapters.clone());
        let stream = player.open(request, Origin::Task)?;
        player.finish(stream)?;
        let finished = player.streams[stream].told.branches[0].1.as_ref().ok_or("a pinned prefix is not continued")?;
        if (finished.usage.n_cached as usize) < pinned.tokens.len() {
            return Err(format!("{} of the {} tokens of a pin are cached", finished.usage.n_cached, pinned.tokens.len()));
        }
    }
    let Player { engine, control, streams, .. } = player;
    control.allow(None);
    drop(streams);
    let deadline = Instant::now() + PATIENCE;
    while !is_idle(&engine.stats()) || engine.stats().n_cells_used != control.n_cells_used() {
        if !engine.is_running() || Instant::now() > deadline {
            return Err(format!("cells are lost: {:?} and {} in the model", engine.stats(), control.n_cells_used()));
        }
        std::thread::yield_now();
    }
    // The worker checks its invariants before it waits for a request.
    engine.cached().map_err(|_| "the books are wrong".to_owned())?;
    engine.cached().map_err(|_| "the books are wrong".to_owned())?;
    Ok(())
}

/// Plays the operations until all streams have ended, with `replays` as drafts, and compares the streams with the oracle's.
fn play_all(setup: &Setup, ops: &[Op], replays: Vec<Arc<Replay>>) -> Result<Player, String> {
    let mut player = Player { replays, ..Player::new(setup, false) };
    for op in ops {
        player.play(op)?;
    }
    player.control.allow(None);
    player.wait(|player| player.streams.iter().all(|stream| stream.completions.is_none() || stream.told.has_ended))?;
    compare(setup, &player)?;
    Ok(player)
}

/// The second time, the texts of the first are drafted, with errors.
fn run_round(setup: &Setup, ops: &[Op]) -> Result<(), String> {
    let player = play_all(setup, ops, Vec::new())?;
    check_computed(setup, &player)?;
    let replay = |(seed, stream): (u64, &Stream)| {
        let branches = stream.told.branches.iter().map(|(tokens, _)| tokens.clone()).collect();
        Arc::new(Replay { branches, error_rate: 0.2, seed, is_forced: true })
    };
    let replays = (0..).zip(&player.streams).map(replay).collect();
    check_end(player)?;
    check_end(play_all(&Setup { speculates: true, ..setup.clone() }, ops, replays)?)
}

fn outcome(setup: &Setup, ops: &[Op]) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| run_round(setup, ops))).unwrap_or_else(|_| Err("the test has panicked".to_owned()))
}

/// Removes operations as long as the rest still fails.
fn shortened(setup: &Setup, mut ops: Vec<Op>) -> Vec<Op> {
    let mut n = ops.len() / 2;
    while n > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + n).min(ops.len()));
            if outcome(setup, &fewer).is_err() {
                ops = fewer;
            } else {
                at += n;
            }
        }
        n /= 2;
    }
    ops
}

/// Prints the failure immediately; shortening the round takes longer.
#[expect(clippy::print_stderr, reason = "a test's own output")]
fn report(failure: &str) {
    eprintln!("{failure}");
}

pub(super) fn number_of(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

#[test]
fn fuzz_results_do_not_depend_on_load_and_nothing_stops_the_engine() {
    let (first, n_rounds) = (number_of("WEFT_FUZZ_SEED").unwrap_or(1), number_of("WEFT_FUZZ_ROUNDS").unwrap_or(N_ROUNDS));
    for seed in first..first + n_rounds {
        let mut dice = Dice::new(seed);
        let setup = Setup::new(&mut dice);
        let ops = operations(&mut dice, &setup);
        if let Err(error) = outcome(&setup, &ops) {
            report(&format!("seed {seed}: {error}; it is being shortened"));
            let ops = shortened(&setup, ops);
            let shown: Vec<String> = ops.iter().map(|op| format!("  {op:?}")).collect();
            let again = outcome(&setup, &ops).err();
            panic!("seed {seed}: {error}\n{setup:?}\n{}\nshortened: {again:?}", shown.join("\n"));
        }
    }
}
