//! What moves between the pool and the store, and when: never for longer than a step has time for.

use std::time::{Duration, Instant};

use crate::cache::{Departure, Saved};
use crate::engine::runner::{DecodeError, Forks, RelocateError, Runner, StateError};
use crate::engine::sequence::Running;
use crate::engine::worker::Worker;
use crate::error::Error;
use crate::request::{FinishReason, Made, SavedPiece, SavedPrefix, Task};

/// With nobody running, no piece takes longer, so that an arrival never waits long.
const IDLE_PIECE: Duration = Duration::from_millis(20);

/// Decodes after which an idle prefix has cost about as much as its way to the store and back, where its cells lie in one run.
///
/// Measured on a CPU, per idle token: a decode of 8 rows takes 2.8 µs longer with a model of 0.5B parameters and 0.25 µs with one
/// of 2M, one of 1 row 0.6 µs; saving and restoring cells that are adjacent takes 6 to 10 µs and 1.5 µs. So they are even after 3
/// to 13 decodes. Scattered cells are dearer by what [`Departure::n_units`] says: up to 180 µs and 17 µs, and 64 decodes. A prefix
/// that leaves when they are even has cost about twice what it would cost by the better of staying and leaving at once, whenever
/// it is used again.
const PATIENCE: u64 = 6;

/// Decodes after which an idle prefix leaves, however dear.
pub(super) const MAX_PATIENCE: usize = 64;

/// What moving takes, learned from what it took, and how long it may take in this step.
#[derive(Debug)]
pub(super) struct Movement {
    /// Seconds per unit of a save (see [`Departure::n_units`]); 0 until one was measured.
    save_s: f64,
    /// The end of this step's time for it.
    deadline: Instant,
    /// Time spent on it in this step.
    pub(super) spent: Duration,
    /// Whether anything moved in this step.
    has_moved: bool,
}

/// A save whose cost is not known yet is this small.
const FIRST_UNITS: u64 = 64;

/// Weight of the newest measurement in a running mean.
const NEWEST: f64 = 0.2;

impl Movement {
    pub(super) fn new() -> Self {
        Self { save_s: 0.0, deadline: Instant::now(), spent: Duration::ZERO, has_moved: false }
    }

    /// A step begins that has `time` for moving.
    pub(super) fn begin(&mut self, time: Duration) {
        (self.deadline, self.spent, self.has_moved) = (Instant::now() + time, Duration::ZERO, false);
    }

    /// Whether this step has no more time; the first piece of a step is always moved, so that a slow machine gets on too.
    fn is_over(&self) -> bool {
        self.has_moved && Instant::now() >= self.deadline
    }

    /// Units that can be saved in what is left of this step's time.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float too large or negative saturates")]
    fn affordable(&self) -> u64 {
        if self.save_s == 0.0 {
            return FIRST_UNITS;
        }
        (self.deadline.saturating_duration_since(Instant::now()).as_secs_f64() / self.save_s) as u64
    }

    #[expect(clippy::cast_precision_loss, reason = "a running mean")]
    fn learn_save(&mut self, n_units: u64, took: Duration) {
        let value = took.as_secs_f64() / n_units.max(1) as f64;
        self.save_s = if self.save_s == 0.0 { value } else { self.save_s + NEWEST * (value - self.save_s) };
    }

    fn count(&mut self, took: Duration) {
        self.spent += took;
        self.has_moved = true;
    }
}

impl<R: Runner> Worker<R> {
    pub(super) fn is_out_of_time(&self) -> bool {
        self.movement.is_over()
    }

    /// Moves what this step has time for: first what running sequences wait for, then what is to be saved for good, then what
    /// costs more than it saves.
    pub(super) fn move_pieces(&mut self) {
        self.restore();
        while !self.movement.is_over() && self.leave_early() {}
        while !self.movement.is_over() && self.relocate() {}
    }

    /// Restores what running sequences wait for, oldest first.
    fn restore(&mut self) {
        let mut place = 0;
        while place < self.running.len() {
            while !self.movement.is_over()
                && let Some(next) = self.running[place].restores.front()
            {
                let (n_cells, n_before) = (next.piece.end - next.piece.start, self.running.len());
                if self.make_room(place, n_cells, false) < n_cells {
                    // The oldest has everything that others do not keep for good; less than a whole piece can only be computed.
                    if place == 0 && !self.movement.is_over() {
                        self.compute_instead(place);
                    }
                    break;
                }
                if !self.restore_piece(place) {
                    break;
                }
                debug_assert!(place < n_before, "room is made by those that are younger");
            }
            let running = &self.running[place];
            let n_before = self.running.len();
            let is_complete = self.jobs[&running.sequence.request_id].task == Task::Complete;
            if is_complete && running.logits.is_some() && running.restores.is_empty() {
                self.draw_first(place);
            }
            place += usize::from(self.running.len() == n_before);
        }
    }

    /// Restores the next piece of the sequence at `place`. `false` where the memory refused it: then the rest is computed.
    fn restore_piece(&mut self, place: usize) -> bool {
        self.carry_out();
        let running = &mut self.running[place];
        let next = running.restores.pop_front().expect("the caller has seen it");
        let started = Instant::now();
        let restored = self.runner.restore(running.id, &next.bytes, next.kept.clone());
        let took = started.elapsed();
        self.stats.times.restore += took;
        self.movement.count(took);
        match restored {
            Ok(()) => {
                let kept = next.kept.start as usize..next.kept.end as usize;
                self.cache.restored(running.id, &running.sequence.tokens[kept], &next.piece);
                running.n_held = next.kept.end;
                true
            }
            Err(StateError { reason }) => {
                tracing::warn!("a saved prefix could not be restored and is computed again: {reason}");
                self.compute_instead(place);
                false
            }
        }
    }

    /// The sequence at `place` computes what was to be restored.
    fn compute_instead(&mut self, place: usize) {
        let running = &mut self.running[place];
        running.restores.clear();
        running.logits = None;
        // What was restored before may end where nothing can go on.
        if running.n_held > 0 && !self.runner.can_fork(running.id, running.n_held, running.n_held) {
            self.begin_anew(place);
        }
        let running = &mut self.running[place];
        running.sequence.lower_n_cached(running.n_held);
    }

    /// The sequence at `place` computes all of its tokens.
    fn begin_anew(&mut self, place: usize) {
        let running = &mut self.running[place];
        self.cache.forget(running.id);
        let variant = &self.jobs[&running.sequence.request_id].variant;
        running.id = self.cache.place(variant, None).expect("its own id is free");
        running.n_held = 0;
        self.carry_out();
    }

    /// Lets the least recently used idle prefix leave the pool, or a part of it. `false` where there is none.
    pub(super) fn evict(&mut self) -> bool {
        let departure = self.cache.next_departure(self.movement.affordable());
        departure.map(|departure| self.depart(&departure)).is_some()
    }

    fn depart(&mut self, departure: &Departure) {
        self.carry_out();
        let saved = departure.saves.clone().and_then(|range| {
            let started = Instant::now();
            let whole_from = self.runner.whole_from(departure.id, &range);
            let bytes = self.runner.save(departure.id, range);
            let took = started.elapsed();
            self.movement.learn_save(departure.n_units, took);
            self.stats.times.spill += took;
            self.movement.count(took);
            bytes.map(|bytes| Saved { bytes, whole_from }).map_err(|StateError { reason }| warn_unsaved(&reason)).ok()
        });
        self.cache.depart(departure, saved);
        self.carry_out();
    }

    /// Lets an idle prefix leave the pool that costs more than it saves. `false` where there is none.
    ///
    /// On a CPU every decode pays for every used cell: so idle prefixes leave when nothing runs, before what starts next is put
    /// above them, and after [`PATIENCE`] decodes or more. Elsewhere idle cells cost nothing. Without a store they stay: computing them
    /// again is dearer by far.
    fn leave_early(&mut self) -> bool {
        if !self.runner.memory().idle_cells_cost || !self.cache.has_store() {
            return false;
        }
        let Some(departure) = self.cache.next_departure(self.movement.affordable()) else { return false };
        let last_used = departure.last_used;
        let units_per_token =
            if departure.saves.is_some() { departure.n_units / u64::from(departure.n_tokens.max(1)) } else { 1 };
        let patience = usize::try_from(PATIENCE * units_per_token.max(1)).map_or(MAX_PATIENCE, |n| n.min(MAX_PATIENCE));
        let is_older = self.decoded_at.iter().nth_back(patience - 1).is_some_and(|&decoded_at| last_used <= decoded_at);
        let is_due = self.running.is_empty() || last_used < self.newest_start || is_older;
        if is_due {
            self.depart(&departure);
        }
        is_due
    }

    /// Moves cells down where what is used lies far apart. `false` where it does not.
    fn relocate(&mut self) -> bool {
        let Some(relocation) = self.cache.next_relocation(self.movement.affordable()) else { return false };
        self.carry_out();
        let started = Instant::now();
        let moved = self.runner.relocate(&relocation.ids, relocation.range.clone());
        let took = started.elapsed();
        self.stats.times.spill += took;
        self.movement.count(took);
        match &moved {
            Ok(()) => self.cache.relocated(&relocation),
            Err(error) => tracing::warn!("cells could not be moved: {error}"),
        }
        if let Err(RelocateError::Lost(StateError { reason })) = &moved {
            let is_lost = |running: &Running| relocation.ids.contains(&running.id);
            let lost = self.running.iter().filter(|running| is_lost(running)).map(|running| running.sequence.request_id);
            let lost: Vec<u64> = lost.collect();
            self.fail(&lost, &DecodeError { reason: reason.clone() });
            self.cache.lose(&relocation.ids);
        }
        moved.is_ok()
    }

    /// With nobody running: does one piece of what is better done now than later. `false` where nothing is left to do.
    pub(super) fn use_idle_time(&mut self) -> bool {
        self.movement.begin(IDLE_PIECE);
        self.leave_early() || self.relocate()
    }

    /// Ends the requests whose prompt was all that they wanted, once it is computed or restored.
    pub(super) fn finish_tasks(&mut self) {
        let mut place = 0;
        while place < self.running.len() {
            let running = &self.running[place];
            let task = &self.jobs[&running.sequence.request_id].task;
            if *task == Task::Complete || running.n_uncomputed() > 0 {
                place += 1;
                continue;
            }
            let is_save = matches!(task, Task::Save { .. });
            if is_save && !self.save_more(place) {
                place += 1;
                continue;
            }
            self.finish_task(place);
        }
    }

    /// Copies the next pieces of what is to be saved. `true` when all of it is copied.
    fn save_more(&mut self, place: usize) -> bool {
        self.carry_out();
        let is_state = self.runner.memory().forks == Forks::AtEnd;
        let n_held = self.running[place].n_held;
        loop {
            let running = &self.running[place];
            let start = running.saved.pieces.last().map_or(0, |piece| piece.range.end);
            if start == n_held {
                return true;
            }
            if self.movement.is_over() {
                return false;
            }
            let n = u32::try_from(self.movement.affordable()).unwrap_or(u32::MAX).max(crate::cache::MIN_SHARED);
            let range = start..if is_state { n_held } else { n_held.min(start.saturating_add(n)) };
            let started = Instant::now();
            let saved = self.runner.save(running.id, range.clone());
            let took = started.elapsed();
            self.stats.times.spill += took;
            self.movement.count(took);
            self.movement.learn_save(u64::from(range.end - range.start), took);
            match saved {
                Ok(bytes) => self.running[place].saved.pieces.push(SavedPiece { range, bytes: bytes.into() }),
                Err(StateError { reason }) => {
                    warn_unsaved(&reason);
                    self.running[place].saved.pieces.clear();
                    self.running[place].n_held = 0;
                    return true;
                }
            }
        }
    }

    fn finish_task(&mut self, place: usize) {
        let mut running = self.running.remove(place);
        let request_id = running.sequence.request_id;
        let end = running.sequence.end_without_token(Instant::now()).unwrap_or(FinishReason::Length);
        match self.jobs[&request_id].task.clone() {
            Task::Complete | Task::Load(_) => self.finish(&running, end, None),
            Task::Save { .. } => {
                let tokens = running.held().to_vec();
                let saved = SavedPrefix { tokens, logits: None, ..std::mem::take(&mut running.saved) };
                self.finish(&running, end, Some(Made::Saved(saved)));
            }
            Task::Pin => {
                self.leave_slot(&running);
                match self.cache.pin(running.id) {
                    Ok(pinned) => self.finish_idle(&running, end, Some(Made::Pinned(pinned))),
                    Err(error) => self.fail_request(request_id, error),
                }
            }
        }
    }

    fn fail_request(&mut self, request_id: u64, error: Error) {
        self.failed.push((request_id, error));
    }

    /// Keeps the states after the prompts that this decode finished, with the logits after them, of a model whose state cannot be
    /// cut: it will be at this point never again.
    pub(super) fn keep_snapshots(&mut self) {
        if self.runner.memory().forks != Forks::AtEnd || !self.cache.has_store() {
            return;
        }
        let mut n_rows = 0;
        for place in 0..self.running.len() {
            let running = &self.running[place];
            n_rows += running.n_planned as usize;
            let is_prompt_done = running.n_planned > 0 && running.will_draw() && running.sequence.n_predicted() == 0;
            if !is_prompt_done || running.sequence.n_prompt < crate::cache::MIN_SHARED {
                continue;
            }
            let variant = &self.jobs[&running.sequence.request_id].variant;
            if self.cache.has_snapshot(variant, &running.sequence.tokens) {
                continue;
            }
            let (id, n_prompt) = (running.id, running.sequence.n_prompt);
            let logits = self.runner.logits(n_rows - 1).into();
            let started = Instant::now();
            match self.runner.save(id, 0..n_prompt) {
                Ok(bytes) => drop(self.cache.add_snapshot(id, n_prompt, bytes, logits)),
                Err(StateError { reason }) => warn_unsaved(&reason),
            }
            let took = started.elapsed();
            self.stats.times.spill += took;
            self.movement.count(took);
        }
    }
}

fn warn_unsaved(reason: &str) {
    tracing::warn!("a prefix could not be saved: {reason}");
}
