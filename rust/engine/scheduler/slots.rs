//! Slots in which sequences run, and the contents that the last sequence left in each.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::AdapterSchedule;
use crate::engine::runner::KvSeqId;
use crate::engine::scheduler::request_group::RequestGroup;
use crate::engine::scheduler::running_sequence::RunningSequence;
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::engine::scheduler::sequence::Tokens;
use crate::request::Token;

/// Time for which a free slot is reserved for a client that tried to erase it while it was busy.
const ERASE_WAIT: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
struct SlotRecord {
    vacated_at: u64,
    adapter_schedule: AdapterSchedule,
    /// Tokens of the last sequence; the first `n_computed` were computed.
    tokens: Tokens,
    n_computed: u32,
    /// Time until which the slot is reserved for erasing.
    erase_by: Option<Instant>,
}

pub(crate) struct ErasedContents {
    pub(crate) adapter_schedule: AdapterSchedule,
    pub(crate) tokens: Arc<[Token]>,
    /// Number of the first tokens that other slots also contain.
    pub(crate) n_shared: u32,
}

pub(crate) struct Slots {
    /// Most senior first.
    running: Vec<RunningSequence>,
    /// Position that was looked up last: most lookups are for the same sequence or the next one. With 254 streams, searching each
    /// time makes a step of the worker 10 to 20 % slower.
    last_position: Cell<usize>,
    is_taken: Vec<bool>,
    contents: Vec<SlotRecord>,
    n_vacated: u64,
}

impl Slots {
    pub(crate) fn new(n_slots: u32) -> Self {
        let contents = (0..n_slots).map(|_| SlotRecord::default()).collect();
        Self { running: Vec::new(), last_position: Cell::new(0), is_taken: vec![false; n_slots as usize], contents, n_vacated: 0 }
    }

    pub(crate) fn running(&self) -> &[RunningSequence] {
        &self.running
    }

    pub(crate) fn running_mut(&mut self) -> &mut [RunningSequence] {
        &mut self.running
    }

    /// Returns the number of running sequences that are senior to `key`, which is its position if it runs.
    fn position(&self, key: SchedulingKey) -> usize {
        let is_there = |&position: &usize| self.running.get(position).is_some_and(|running| running.key() == key);
        let last = self.last_position.get();
        let position = [last, last + 1].into_iter().find(is_there);
        let position = position.unwrap_or_else(|| self.running.partition_point(|running| running.key() < key));
        self.last_position.set(position);
        position
    }

    pub(crate) fn get(&self, key: SchedulingKey) -> Option<&RunningSequence> {
        self.running.get(self.position(key)).filter(|running| running.key() == key)
    }

    /// Panics if it does not run, as the methods below.
    pub(crate) fn running_sequence(&self, key: SchedulingKey) -> &RunningSequence {
        self.get(key).expect("the sequence runs")
    }

    pub(crate) fn running_sequence_mut(&mut self, key: SchedulingKey) -> &mut RunningSequence {
        let position = self.position(key);
        self.running.get_mut(position).filter(|running| running.key() == key).expect("the sequence runs")
    }

    /// Moves `cursor` to the next junior running sequence, at first to the most senior one. Sequences may enter and leave in between.
    pub(crate) fn next_key(&self, cursor: &mut Option<SchedulingKey>) -> Option<SchedulingKey> {
        let first = cursor.map_or(0, |previous| self.position(previous));
        *cursor = self.running[first..].iter().map(RunningSequence::key).find(|&key| Some(key) != *cursor);
        *cursor
    }

    pub(crate) fn enter(&mut self, running: RunningSequence) {
        let position = self.position(running.key());
        self.is_taken[running.slot as usize] = true;
        self.running.insert(position, running);
    }

    pub(crate) fn take(&mut self, key: SchedulingKey) -> RunningSequence {
        let running = self.running.remove(self.position(key));
        assert_eq!(running.key(), key, "the sequence runs");
        self.is_taken[running.slot as usize] = false;
        running
    }

    pub(crate) fn take_all(&mut self, is_taken: impl Fn(&RunningSequence) -> bool) -> Vec<RunningSequence> {
        let taken: Vec<RunningSequence> = self.running.extract_if(.., |running| is_taken(running)).collect();
        for running in &taken {
            self.is_taken[running.slot as usize] = false;
        }
        taken
    }

    pub(crate) fn are_full(&self) -> bool {
        self.running.len() == self.contents.len()
    }

    pub(crate) fn n_idle(&self) -> usize {
        self.contents.len() - self.running.len()
    }

    /// Returns the number of slots that a sequence may get now.
    pub(crate) fn n_free(&self) -> usize {
        (0u32..).zip(&self.contents).filter(|&(slot, _)| self.is_free(slot)).count()
    }

    pub(crate) fn slot_of(&self, id: KvSeqId) -> Option<u32> {
        self.running.iter().find(|running| running.id() == id).map(|running| running.slot)
    }

    /// A preferred slot that is busy is replaced by the one vacated longest ago, the required slot of a load by none.
    pub(crate) fn free_slot(&self, group: &RequestGroup) -> Option<u32> {
        match (group.required_slot(), group.request.slot) {
            (Some(slot), _) => Some(slot).filter(|&slot| self.is_free(slot)),
            (None, Some(slot)) => self.free_slot_or_idle(slot),
            (None, None) => self.longest_idle(),
        }
    }

    pub(crate) fn free_slot_or_idle(&self, slot: u32) -> Option<u32> {
        Some(slot).filter(|&slot| self.is_free(slot)).or_else(|| self.longest_idle())
    }

    fn longest_idle(&self) -> Option<u32> {
        let free = (0u32..).zip(&self.contents).filter(|&(slot, _)| self.is_free(slot));
        free.min_by_key(|&(slot, contents)| (contents.vacated_at, slot)).map(|(slot, _)| slot)
    }

    /// Returns true if no sequence runs in `slot` and it is not reserved for erasing.
    pub(crate) fn is_free(&self, slot: u32) -> bool {
        let is_reserved = || self.contents[slot as usize].erase_by.is_some_and(|by| Instant::now() < by);
        !self.is_taken[slot as usize] && !is_reserved()
    }

    pub(crate) fn running_in(&self, slot: u32) -> Option<&RunningSequence> {
        self.running.iter().find(|running| running.slot == slot)
    }

    /// Returns the time until the first slot reserved for erasing becomes available.
    pub(crate) fn reserved_for(&self) -> Option<Duration> {
        let now = Instant::now();
        self.contents.iter().filter_map(|contents| contents.erase_by?.checked_duration_since(now)).min()
    }

    pub(crate) fn set_contents(&mut self, slot: u32, adapter_schedule: &AdapterSchedule, tokens: Tokens, n_computed: u32) {
        self.n_vacated += 1;
        let record = &mut self.contents[slot as usize];
        let (vacated_at, erase_by) = (self.n_vacated, record.erase_by);
        *record = SlotRecord { vacated_at, adapter_schedule: adapter_schedule.clone(), tokens, n_computed, erase_by };
    }

    pub(crate) fn contents_of(&self, slot: u32) -> (&AdapterSchedule, Vec<Token>) {
        let contents = &self.contents[slot as usize];
        (&contents.adapter_schedule, contents.tokens.first(contents.n_computed))
    }

    pub(crate) fn clear_contents(&mut self, slot: u32) {
        let contents = &mut self.contents[slot as usize];
        (contents.tokens, contents.n_computed) = (Tokens::default(), 0);
    }

    pub(crate) fn reserve_for_erasing(&mut self, slot: u32) {
        self.contents[slot as usize].erase_by = Some(Instant::now() + ERASE_WAIT);
    }

    pub(crate) fn take_contents(&mut self, slot: u32) -> ErasedContents {
        let tokens: Arc<[Token]> = self.contents_of(slot).1.into();
        let SlotRecord { adapter_schedule, .. } = std::mem::take(&mut self.contents[slot as usize]);
        let n_common = |other: &SlotRecord| {
            other.tokens.common_prefix(&tokens).min(other.n_computed).min(other.adapter_schedule.n_common(&adapter_schedule))
        };
        let n_shared = self.contents.iter().map(n_common).max().unwrap_or(0);
        ErasedContents { adapter_schedule, tokens, n_shared }
    }
}
