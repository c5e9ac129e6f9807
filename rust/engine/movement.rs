//! What moves between the pool and the store, and when: never for longer than a step has time for.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::cache::{Departure, IdleCost, Saved, Why};
use crate::engine::runner::{DecodeError, RelocateError, Runner, StateError};
use crate::engine::running::Running;
use crate::engine::worker::Worker;
use crate::error::Error;
use crate::request::Task;

/// No piece takes longer to save, and so to restore, so that an arrival never waits long, and no stream for a restore.
const LONGEST_PIECE: Duration = Duration::from_millis(20);

/// Decodes after which an idle prefix has cost about as much as its way to the store and back, where its cells lie in one run and
/// decodes compute [`IdleCost::Scores`] of it.
///
/// Measured on a CPU, per idle token: a decode of 8 rows takes 2.8 µs longer with a model of 0.5B parameters and 0.25 µs with one
/// of 2M, one of 1 row 0.6 µs; saving and restoring cells that are adjacent takes 6 to 10 µs and 1.5 µs. So they are even after 3
/// to 13 decodes. Scattered cells are dearer by what [`Departure::n_units`] says: up to 180 µs and 17 µs, and 64 decodes. A prefix
/// that leaves when they are even has cost about twice what it would cost by the better of staying and leaving at once, whenever
/// it is used again.
const PATIENCE: u64 = 6;

/// Decodes after which an idle prefix leaves of which decodes compute scores, however dear that is.
const MAX_PATIENCE: usize = 64;

/// Decodes after which an idle prefix has cost about as much as its way to the store and back where it only makes the mask longer.
///
/// Measured with our attention, per idle token: a decode of 8 rows takes 10 ns longer, whatever the model, which is nothing beside
/// the 20 ms of a model of 0.5B parameters, and a third of a step of one of 2M beside 16,000 idle tokens; saving and restoring
/// takes 1.5 µs with the small one and 6 to 10 µs with the other. So they are even after 150 to 1,000 decodes.
const MASK_PATIENCE: usize = 256;

/// Most decodes that are remembered.
pub(super) const N_REMEMBERED: usize = MASK_PATIENCE;

/// Decodes after which what departs has cost as much as it will cost to bring it back.
fn patience(departure: &Departure, cost: IdleCost) -> usize {
    if cost == IdleCost::Mask {
        return MASK_PATIENCE;
    }
    let n_units = if departure.saves.is_some() { departure.n_units } else { u64::from(departure.n_tokens) };
    let units_per_token = (n_units / u64::from(departure.n_tokens.max(1))).max(1);
    usize::try_from(PATIENCE * units_per_token).map_or(MAX_PATIENCE, |n| n.min(MAX_PATIENCE))
}

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
    /// The cache's time when what was to leave early could not be kept: until it changes, trying again is of no use.
    refused_at: Option<u64>,
}

/// A save whose cost is not known yet is given so much, and none less.
const FIRST_UNITS: u64 = 64;

/// Weight of the newest measurement in a running mean.
const NEWEST: f64 = 0.2;

impl Movement {
    pub(super) fn new() -> Self {
        Self { save_s: 0.0, deadline: Instant::now(), spent: Duration::ZERO, has_moved: false, refused_at: None }
    }

    /// A step begins that has `time` for moving.
    pub(super) fn begin(&mut self, time: Duration) {
        (self.deadline, self.spent, self.has_moved) = (Instant::now() + time, Duration::ZERO, false);
    }

    /// Whether this step has no more time; the first piece of a step is always moved, so that a slow machine gets on too.
    pub(super) fn is_over(&self) -> bool {
        self.has_moved && Instant::now() >= self.deadline
    }

    /// Units that can be saved in what is left of this step's time; at least so many that a piece is worth a place in the tree.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float too large or negative saturates")]
    pub(super) fn affordable(&self) -> u64 {
        if self.save_s == 0.0 {
            return FIRST_UNITS;
        }
        let left = self.deadline.saturating_duration_since(Instant::now()).min(LONGEST_PIECE);
        ((left.as_secs_f64() / self.save_s) as u64).max(FIRST_UNITS)
    }

    #[expect(clippy::cast_precision_loss, reason = "a running mean")]
    pub(super) fn learn_save(&mut self, n_units: u64, took: Duration) {
        let value = took.as_secs_f64() / n_units.max(1) as f64;
        self.save_s = if self.save_s == 0.0 { value } else { self.save_s + NEWEST * (value - self.save_s) };
    }

    pub(super) fn count(&mut self, took: Duration) {
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
        self.finish_tasks();
        while !self.movement.is_over() && self.leave_early() {}
        while !self.movement.is_over() && self.relocate() {}
    }

    /// Restores what running sequences wait for, oldest first.
    fn restore(&mut self) {
        let mut place = 0;
        while place < self.running.len() {
            let age = self.running[place].sequence.age();
            while !self.movement.is_over() && self.restore_next(place) {}
            // It may have ended with an error, or with its first token.
            let is_here = |worker: &Self| worker.running.get(place).is_some_and(|running| running.sequence.age() == age);
            if is_here(self) && self.knows_first_token(place) {
                self.draw_first(place);
            }
            place += usize::from(is_here(self));
        }
    }

    fn knows_first_token(&self, place: usize) -> bool {
        let running = &self.running[place];
        let is_complete = self.jobs[&running.sequence.request_id].task == Task::Complete;
        is_complete && running.logits.is_some() && running.restores.is_empty()
    }

    /// Restores the next piece of the sequence at `place`. `false` where there is none, or it must wait, or has ended.
    fn restore_next(&mut self, place: usize) -> bool {
        let Some(next) = self.running.get(place).and_then(|running| running.restores.front()) else { return false };
        let (piece, kept) = (next.piece.clone(), next.kept.clone());
        let must_load = matches!(self.jobs[&self.running[place].sequence.request_id].task, Task::Load(_));
        // Younger ones give way for what it will hold, as they would where that is computed; for cells that a piece takes and
        // gives up again at once, only where it cannot be computed.
        let n_wanted = length(if must_load { &piece } else { &kept });
        if self.make_room(place, n_wanted, false) < n_wanted {
            // The oldest gets everything that others do not keep for good; what is less can only be computed.
            if place == 0 && !self.movement.is_over() {
                let n_free = self.cache.n_free();
                self.give_up_restore(place, |running| Error::ContextOverflow {
                    n_prompt: running.sequence.tokens.len(),
                    n_ctx: running.n_held as usize + n_free,
                });
            }
            return false;
        }
        if self.make_idle_room(length(&piece)) {
            return self.restore_piece(place);
        }
        let has_idle_room = length(&piece) as usize <= self.cache.n_free() + self.cache.n_evictable();
        if !(has_idle_room && self.movement.is_over()) {
            tracing::debug!("a saved piece of {} tokens has no room: {} of them are computed", piece.len(), kept.len());
            self.compute_instead(place);
        }
        false
    }

    /// Frees `n_wanted` cells for as long as a restore takes, so that only idle prefixes leave for them, and none where that is not
    /// enough. `false` where as many are not free.
    fn make_idle_room(&mut self, n_wanted: u32) -> bool {
        let n_wanted = n_wanted as usize;
        if n_wanted > self.cache.n_free() + self.cache.n_evictable() {
            return false;
        }
        while self.cache.n_free() < n_wanted && !self.movement.is_over() && self.evict() {}
        self.cache.n_free() >= n_wanted
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
                self.give_up_restore(place, |_| Error::PrefixRefused { reason });
                false
            }
        }
    }

    /// What the sequence at `place` was to be given back is computed; where it was to be loaded, its request ends with an error.
    fn give_up_restore(&mut self, place: usize, error: impl FnOnce(&Running) -> Error) {
        let running = &self.running[place];
        let error = error(running);
        if matches!(self.jobs[&running.sequence.request_id].task, Task::Load(_)) {
            self.end_with(place, error);
        } else {
            tracing::warn!("a saved prefix cannot be restored and is computed again: {error}");
            self.compute_instead(place);
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
        let n_lost = u64::from(running.sequence.lower_n_cached(running.n_held));
        if self.jobs[&running.sequence.request_id].task == Task::Complete {
            self.stats.n_cached = self.stats.n_cached.saturating_sub(n_lost);
            self.stats.n_restored = self.stats.n_restored.saturating_sub(n_lost);
        }
    }

    /// The sequence at `place` computes all of its tokens.
    fn begin_anew(&mut self, place: usize) {
        let running = &mut self.running[place];
        self.cache.forget(running.id);
        let variant = &self.jobs[&running.sequence.request_id].variant;
        running.id = self.cache.place(variant, None).expect("it has just given one back");
        running.n_held = 0;
        self.carry_out();
    }

    /// Lets the least recently used idle prefix leave the pool, or a part of it. `false` where there is none.
    pub(super) fn evict(&mut self) -> bool {
        let departure = self.cache.next_departure(self.movement.affordable(), Why::Pressed);
        departure.is_some_and(|departure| self.depart(&departure, Why::Pressed))
    }

    /// `false` where it was to leave early and stays, since it cannot be kept.
    fn depart(&mut self, departure: &Departure, why: Why) -> bool {
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
        let has_left = self.cache.depart(departure, saved, why);
        self.carry_out();
        has_left
    }

    /// Lets an idle prefix leave the pool that costs more than it saves. `false` where there is none.
    ///
    /// Where a decode pays for idle cells, they leave when nothing runs, and after as many decodes as [`patience`] says; where it
    /// computes their scores, also before what starts next is put above them. Without a store they stay: computing them again is
    /// dearer by far.
    fn leave_early(&mut self) -> bool {
        let cost = self.runner.memory().idle_cost;
        let is_of_use = cost != IdleCost::Nothing && self.cache.has_store();
        if !is_of_use || self.movement.refused_at == Some(self.cache.now()) {
            return false;
        }
        let Some(departure) = self.cache.next_departure(self.movement.affordable(), Why::Early) else { return false };
        let last_used = departure.last_used;
        let is_older = |&decoded_at: &u64| last_used <= decoded_at;
        let has_cost_enough = self.decoded_at.iter().nth_back(patience(&departure, cost) - 1).is_some_and(is_older);
        let is_below_newer = cost == IdleCost::Scores && last_used < self.newest_start;
        let is_due = self.running.is_empty() || is_below_newer || has_cost_enough;
        if !is_due {
            return false;
        }
        let has_left = self.depart(&departure, Why::Early);
        self.movement.refused_at = (!has_left).then(|| self.cache.now());
        has_left
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
            for job in self.jobs.values_mut() {
                job.holder.take_if(|holder| relocation.ids.contains(holder));
            }
            self.cache.lose(&relocation.ids);
            self.carry_out();
        }
        moved.is_ok()
    }

    /// With nobody running: does one piece of what is better done now than later. `false` where nothing is left to do.
    pub(super) fn use_idle_time(&mut self) -> bool {
        self.movement.begin(LONGEST_PIECE);
        self.leave_early() || self.relocate()
    }
}

pub(super) fn warn_unsaved(reason: &str) {
    tracing::warn!("a prefix could not be saved: {reason}");
}

fn length(range: &Range<u32>) -> u32 {
    range.end - range.start
}
