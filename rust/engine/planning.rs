//! Which rows the next decode computes: what the scheduler grants, as far as there are cells for it.

use std::time::Duration;

use crate::engine::adapter_round_robin::{AdapterDemand, AdapterRoundRobin};
use crate::engine::beams::end_full;
use crate::engine::checkpoints::n_until_checkpoint;
use crate::engine::core::Core;
use crate::engine::grouping::n_until_grouped;
use crate::engine::lifecycle::{Urgency, fail, fail_request, finish, free_cells, leave_slot, preempt, shift};
use crate::engine::resumption::{n_until_fork, reshare_cells};
use crate::engine::runner::{MediaRows, Plan, Row, Runner};
use crate::engine::running_sequence::RunningSequence;
use crate::engine::step_budget::{RowDemand, StepBudget, StreamLoad};
use crate::error::Error;
use crate::request::{Encoding, FinishReason, Logprobs};

/// The scheduler, and what the running step plans. Kept between steps for its memory.
#[derive(Debug)]
pub(super) struct Planner {
    pub(super) scheduler: StepBudget,
    /// Which adapters are on.
    pub(super) rounds: AdapterRoundRobin,
    /// What the decode of this step computes.
    pub(super) plan: Plan,
    /// Whether it is computed with other adapters than the decode before.
    pub(super) changes_adapters: bool,
    sets: Vec<AdapterDemand>,
    demands: Vec<RowDemand>,
    n_rows: Vec<u32>,
    /// The highest used cell before this step's rows, plus one.
    pub(super) n_cells: u32,
}

impl Planner {
    pub(super) fn new(scheduler: StepBudget) -> Self {
        Self {
            scheduler,
            rounds: AdapterRoundRobin::default(),
            plan: Plan::default(),
            changes_adapters: false,
            sets: Vec::new(),
            demands: Vec::new(),
            n_rows: Vec::new(),
            n_cells: 0,
        }
    }

    /// A step begins: decides how long it may take to move pieces between the tiers.
    pub(super) fn begin_moving<R: Runner>(&mut self, core: &mut Core<R>) {
        let n_prefilling = count(core.slots.running().iter().filter(|running| n_ready(core, running) > 1));
        let spare = self.scheduler.spare(streams(core, |_| true), n_prefilling, core.memory.n_reached());
        core.memory.begin_moving(spare);
        core.memory.learn_compute(self.scheduler.token_s(core.memory.n_reached()));
    }

    /// Decides which tokens go into the next decode, and makes room for them.
    pub(super) fn plan<R: Runner>(&mut self, core: &mut Core<R>) {
        self.n_cells = core.memory.n_reached();
        fail_unreadable(core);
        self.count_demands(core);
        let within = self.take_turns(core);
        let current = self.rounds.current();
        let streams = StreamLoad { within, ..streams(core, |running| *running.variant() == *current) };
        self.scheduler.plan(&self.demands, streams, self.n_cells, core.memory.spent(), &mut self.n_rows);
        self.grant_whole(core);
        self.count_waiting(core);
        self.grant(core);
        let planned = core.slots.running().iter().filter(|running| running.n_planned > 0);
        let rows = planned.flat_map(|running| running.planned().map(|tokens| (running.id, tokens)));
        core.memory.cache_mut().extend(rows);
        self.fill(core.slots.running(), |_| true);
        self.changes_adapters = !self.plan.rows.is_empty() && self.plan.variant != *self.rounds.current();
        if self.changes_adapters {
            self.plan.variant = self.rounds.current().clone();
            core.stats.n_adapter_changes += 1;
        }
    }

    /// Lets the sets of adapters take turns: whoever is not of the one whose turn it is computes nothing in this step. Returns how
    /// long the step may take because streams of others wait.
    fn take_turns<R: Runner>(&mut self, core: &Core<R>) -> Option<Duration> {
        let running = core.slots.running();
        self.sets.clear();
        for (running, demand) in running.iter().zip(&self.demands).filter(|(_, demand)| demand.n_ready > 0) {
            let variant = running.variant();
            let at = self.sets.iter().position(|set| set.variant == *variant).unwrap_or_else(|| {
                self.sets.push(AdapterDemand { variant: variant.clone(), n_streams: 0, step_s: 0.0 });
                self.sets.len() - 1
            });
            self.sets[at].n_streams += u32::from(demand.n_ready == 1);
        }
        let mut gap_s = 0.0;
        if self.sets.len() > 1 {
            self.stand_back(running);
            for set in &mut self.sets {
                set.step_s = self.scheduler.stream_step_s(set.n_streams, self.n_cells);
            }
            gap_s = self.scheduler.step_s(streams(core, |_| true), self.n_cells);
        }
        let within_s = self.rounds.choose(&self.sets, gap_s);
        let current = self.rounds.current();
        for (running, demand) in running.iter().zip(&mut self.demands) {
            if running.variant() != current {
                demand.n_ready = 0;
            }
        }
        within_s.map(Duration::from_secs_f64)
    }

    /// A prompt stands back for those of other sets that are more senior and of higher priority, as it does for those of its own. A
    /// set that has nothing else gets no turn.
    fn stand_back(&mut self, running: &[RunningSequence]) {
        for nth in (0..running.len()).filter(|&nth| self.demands[nth].n_ready > 1).collect::<Vec<_>>() {
            let is_first = |other: usize| {
                let (variant, demand) = (running[other].variant(), self.demands[other]);
                demand.n_ready > 1 && demand.priority > self.demands[nth].priority && variant != running[nth].variant()
            };
            if (0..nth).any(is_first) {
                self.demands[nth].n_ready = 0;
            }
        }
        let has_demand = |set: &AdapterDemand| {
            let of_set = running.iter().zip(&self.demands).filter(|(running, _)| *running.variant() == set.variant);
            of_set.into_iter().any(|(_, demand)| demand.n_ready > 0)
        };
        self.sets.retain(has_demand);
    }

    /// Counts for how many steps those have waited that stand back.
    fn count_waiting<R: Runner>(&self, core: &mut Core<R>) {
        for ((running, demand), &n_rows) in core.slots.running_mut().iter_mut().zip(&self.demands).zip(&self.n_rows) {
            // Whose adapters' turn it is not has got no further, nor does it stand back.
            running.n_waited = match (n_rows, demand.n_ready) {
                (0, 1) => running.n_waited.saturating_add(1),
                (0, _) => running.n_waited,
                _ => 0,
            };
        }
    }

    /// A medium that sees ahead gets all of its rows where it got some, one of them in a step.
    fn grant_whole<R: Runner>(&mut self, core: &Core<R>) {
        let mut has_one = false;
        for ((running, demand), n_rows) in core.slots.running().iter().zip(&self.demands).zip(&mut self.n_rows) {
            if *n_rows > 0 && running.takes_all_available() {
                *n_rows = if has_one { 0 } else { demand.n_ready };
                has_one = true;
            }
        }
    }

    /// Gives the most senior what it needs first; where there is too little, the most junior gives up its place.
    fn grant<R: Runner>(&mut self, core: &mut Core<R>) {
        let (mut nth, mut n_planned) = (0, 0);
        while nth < core.slots.running().len() {
            let n_wanted = self.n_rows[nth];
            let urgency = if core.slots.running()[nth].n_ready() == 1 { Urgency::Now } else { Urgency::WhenThereIsTime };
            let n = free_cells(core, nth, n_planned + n_wanted, urgency).saturating_sub(n_planned);
            let n = if n < n_wanted && core.slots.running()[nth].takes_all_available() { 0 } else { n };
            core.slots.running_mut()[nth].n_planned = n.min(n_wanted);
            if n == 0 && n_wanted > 0 && !is_worth_waiting(core, urgency) {
                let running = core.slots.running();
                if running.len() == 1 || running.iter().all(|other| other.is_together_with(&running[0])) {
                    end_oversized(core);
                } else {
                    preempt(core, core.slots.running().len() - 1);
                }
                break;
            }
            n_planned += n.min(n_wanted);
            nth += 1;
        }
    }

    /// Counts the tokens of each running sequence that the next decode could compute.
    fn count_demands<R: Runner>(&mut self, core: &Core<R>) {
        let running = core.slots.running();
        // At most `n_outputs` rows may want logits: everybody keeps one, for the next token, and those that tell of their prompts
        // share the rest, as far as there is time to tell of them.
        let n_in_time = self.scheduler.n_told(streams(core, |_| true), self.n_cells);
        let n_more = fair_share(
            (core.limits.n_outputs - count(running.iter())).min(n_in_time),
            running.iter().filter(|running| running.sequence.reports_prompt()).map(n_telling),
        );
        self.demands.clear();
        self.demands.extend(running.iter().map(|running| {
            let most = if running.sequence.reports_prompt() {
                running.sequence.n_until_report(running.n_held).saturating_add(1 + n_more.min(n_told_at_once(running)))
            } else {
                u32::MAX
            };
            let request = running.sequence.request();
            let most = most.min(request.max_chunk.unwrap_or(u32::MAX));
            let most = if running.takes_all_available() { u32::MAX } else { most };
            let until = n_until_checkpoint(core, running).min(n_until_grouped(core, running)).min(n_until_fork(core, running));
            let n_alike = running.sequence.variants.n_alike(running.n_held);
            let n_ready = n_ready(core, running).min(until).min(most).min(n_of_a_kind(running)).min(n_alike);
            // The beams of a search go on together.
            let n_waited = running.sequence.beam.is_none().then_some(running.n_waited);
            RowDemand { n_ready, is_all: n_ready == running.n_uncomputed(), priority: request.priority, n_waited }
        }));
    }

    /// Plans the rows of those that `filter` lets through, in order.
    pub(super) fn fill(&mut self, running: &[RunningSequence], filter: impl Fn(&RunningSequence) -> bool) {
        let rows = running.iter().filter(|running| filter(running)).flat_map(|running| {
            let last = running.n_held + running.n_planned;
            let draws = running.will_draw();
            (running.n_held..last).map(move |position| Row {
                sequence: running.id,
                token: running.sequence.tokens.at(position),
                position,
                wants_logits: (draws && position + 1 == last) || running.sequence.reports_after(position),
            })
        });
        self.plan.rows.clear();
        self.plan.rows.extend(rows);
        self.plan.media.clear();
        let mut end = 0;
        self.plan.media.extend(running.iter().filter(|running| filter(running)).filter_map(|running| {
            let start = end;
            end += running.n_planned as usize;
            let placed = running.available_media().filter(|_| end > start)?;
            Some(MediaRows { rows: start..end, media: placed.media.clone(), start: running.n_held - placed.start })
        }));
    }
}

/// How many pictures and sounds of a sequence are asked for ahead, so that they are ready when their turn comes. Those of others do
/// not wait for all that one request has.
const N_AHEAD: usize = 2;

/// Ends the requests whose pictures and sounds cannot be encoded.
fn fail_unreadable<R: Runner>(core: &mut Core<R>) {
    let mut failed = Vec::new();
    for running in core.slots.running() {
        for placed in running.sequence.media_from(running.n_held).iter().take(N_AHEAD) {
            if let Encoding::Failed(reason) = placed.media.encoding() {
                failed.push((running.sequence.request_id, reason));
            }
        }
    }
    for (request_id, reason) in failed {
        fail(core, &[request_id], &Error::Decode { reason });
    }
}

/// Tokens that stand before a sequence's next picture or sound, or what is left of that one where it is ready: rows of the two are
/// computed by themselves.
fn n_of_a_kind(running: &RunningSequence) -> u32 {
    let Some(placed) = running.sequence.media_from(running.n_held).first() else { return u32::MAX };
    match placed.media.encoding() {
        _ if running.n_held < placed.start => placed.start - running.n_held,
        Encoding::Ready => placed.end() - running.n_held,
        Encoding::Pending | Encoding::Failed(_) => 0,
    }
}

/// Tokens of a sequence that the next decode could compute: none while its reader is too far behind.
fn n_ready<R: Runner>(core: &Core<R>, running: &RunningSequence) -> u32 {
    if core.outbox.laggards.holds(running.sequence.stream_id) { 0 } else { running.n_ready() }
}

/// Most bytes of a prompt's log-probabilities that a step tells: a reader that keeps up with its stream is never too far behind.
const MAX_TOLD: usize = 4 << 20;

/// Rows that tell of a sequence's prompt and are not computed yet, but for the last.
fn n_telling(running: &RunningSequence) -> u32 {
    running.n_uncomputed().saturating_sub(running.sequence.n_until_report(running.n_held) + 1)
}

/// The most that each may get of `n` so that those who want less than that leave the rest to the others.
fn fair_share(n: u32, wanted: impl Iterator<Item = u32>) -> u32 {
    let mut wanted: Vec<u32> = wanted.collect();
    wanted.sort_unstable();
    let (mut left, mut n_others) = (n, count(wanted.iter()));
    for n_wanted in wanted {
        if n_wanted > left / n_others {
            return left / n_others;
        }
        left -= n_wanted;
        n_others -= 1;
    }
    u32::MAX
}

/// How many of its tokens a step may tell log-probabilities of.
fn n_told_at_once(running: &RunningSequence) -> u32 {
    let n_probs = running.sequence.request().prompt_logprobs.unwrap_or(0) as usize;
    u32::try_from(MAX_TOLD / Logprobs::n_bytes(n_probs)).expect("a few million at most")
}

/// The streams among those that `filter` lets through that could get a token in the next decode.
fn streams<R: Runner>(core: &Core<R>, filter: impl Fn(&RunningSequence) -> bool) -> StreamLoad {
    let decoding = core.slots.running().iter().filter(|running| filter(running) && n_ready(core, running) == 1);
    let gaps = decoding.clone().map(|running| running.sequence.request().max_token_gap);
    StreamLoad {
        n_decoding: count(decoding.clone()),
        n_by_default: count(gaps.clone().filter(Option::is_none)),
        max_token_gap: gaps.flatten().min(),
        within: None,
        priority: decoding.map(|running| running.sequence.request().priority).max().unwrap_or_default(),
    }
}

/// Whether room is found later for what found none in this step: there was no time to make it.
fn is_worth_waiting<R: Runner>(core: &Core<R>, urgency: Urgency) -> bool {
    urgency == Urgency::WhenThereIsTime && core.memory.is_out_of_time() && core.memory.cache().n_evictable() > 0
}

/// The only sequence that runs, or the only search, does not fit alone, since pinned prefixes take the rest of the pool.
fn end_oversized<R: Runner>(core: &mut Core<R>) {
    if core.slots.running()[0].sequence.beam.is_some() {
        let request_id = core.slots.running()[0].sequence.request_id;
        if reshare_cells(core, 0) || end_full(core, request_id) {
            return;
        }
    }
    if core.slots.running()[0].sequence.n_predicted() > 0 && shift(core, 0) {
        return;
    }
    let running = core.slots.take(0);
    if running.sequence.n_predicted() > 0 {
        finish(core, running, FinishReason::ContextFull, None);
        return;
    }
    let (n_prompt, n_ctx) = (running.sequence.n_prompt as usize, running.n_held as usize);
    fail_request(core, running.sequence.request_id, Error::ContextOverflow { n_prompt, n_ctx });
    leave_slot(core, &running);
    core.memory.cache_mut().unpin(running.id);
}

pub(super) fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).expect("a decode has fewer than 2³² rows")
}
