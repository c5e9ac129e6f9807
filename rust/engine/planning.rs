//! Chooses the rows of the next decode: the rows that the step budget grants, limited by the available cells.

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

/// Plans steps. Kept between steps to reuse its allocations.
#[derive(Debug)]
pub(super) struct Planner {
    pub(super) budget: StepBudget,
    /// Chooses the adapter set.
    pub(super) adapters: AdapterRoundRobin,
    /// Input of this step's decode.
    pub(super) plan: Plan,
    /// Whether this step's adapters differ from the last decode's.
    pub(super) changes_adapters: bool,
    sets: Vec<AdapterDemand>,
    demands: Vec<RowDemand>,
    n_rows: Vec<u32>,
    /// Highest used cell before this step's rows, plus one.
    pub(super) n_cells: u32,
}

impl Planner {
    pub(super) fn new(budget: StepBudget) -> Self {
        Self {
            budget,
            adapters: AdapterRoundRobin::default(),
            plan: Plan::default(),
            changes_adapters: false,
            sets: Vec::new(),
            demands: Vec::new(),
            n_rows: Vec::new(),
            n_cells: 0,
        }
    }

    /// Starts a step: sets the time for moves between the tiers.
    pub(super) fn begin_moving<R: Runner>(&mut self, core: &mut Core<R>) {
        let n_prefilling = count(core.slots.running().iter().filter(|running| n_ready(core, running) > 1));
        let move_time = self.budget.move_time(streams(core, |_| true), n_prefilling, core.memory.n_reached());
        core.memory.begin_moving(move_time);
        core.memory.observe_compute(self.budget.token_s(core.memory.n_reached()));
    }

    /// Plans the next decode, and makes room for its rows.
    pub(super) fn plan<R: Runner>(&mut self, core: &mut Core<R>) {
        self.n_cells = core.memory.n_reached();
        fail_undecodable(core);
        self.count_demands(core);
        let max_step = self.choose_adapters(core);
        let current = self.adapters.current();
        let streams = StreamLoad { max_step, ..streams(core, |running| *running.adapter_set() == *current) };
        self.budget.plan(&self.demands, streams, self.n_cells, core.memory.spent(), &mut self.n_rows);
        self.grant_whole_media(core);
        self.count_skipped(core);
        self.grant_cells(core);
        let planned_sequences = core.slots.running().iter().filter(|running| running.n_planned > 0);
        let rows = planned_sequences.flat_map(|running| running.planned_tokens().map(|tokens| (running.id, tokens)));
        core.memory.cache_mut().extend(rows);
        self.fill(core.slots.running(), |_| true);
        self.changes_adapters = !self.plan.rows.is_empty() && self.plan.variant != *self.adapters.current();
        if self.changes_adapters {
            self.plan.variant = self.adapters.current().clone();
            core.stats.n_adapter_changes += 1;
        }
    }

    /// Selects the adapter set of this step; sequences that use another one are skipped. Returns the maximum time of the step
    /// if streams of other sets wait.
    fn choose_adapters<R: Runner>(&mut self, core: &Core<R>) -> Option<Duration> {
        let running = core.slots.running();
        self.sets.clear();
        for (running, demand) in running.iter().zip(&self.demands).filter(|(_, demand)| demand.n_ready > 0) {
            let adapter_set = running.adapter_set();
            let at = self.sets.iter().position(|set| set.adapter_set == *adapter_set).unwrap_or_else(|| {
                self.sets.push(AdapterDemand { adapter_set: adapter_set.clone(), n_streams: 0, step_s: 0.0 });
                self.sets.len() - 1
            });
            self.sets[at].n_streams += u32::from(demand.n_ready == 1);
        }
        let mut gap_s = 0.0;
        if self.sets.len() > 1 {
            self.withdraw_outranked_prompts(running);
            for set in &mut self.sets {
                set.step_s = self.budget.stream_step_s(set.n_streams, self.n_cells);
            }
            gap_s = self.budget.step_s(streams(core, |_| true), self.n_cells);
        }
        let max_step_s = self.adapters.choose(&self.sets, gap_s);
        let current = self.adapters.current();
        for (running, demand) in running.iter().zip(&mut self.demands) {
            if running.adapter_set() != current {
                demand.n_ready = 0;
            }
        }
        max_step_s.map(Duration::from_secs_f64)
    }

    /// Withdraws the demand of prompts that a more senior prompt of higher priority and another set outranks, as the step
    /// budget does within a set. A set without other demand is not selected.
    fn withdraw_outranked_prompts(&mut self, running: &[RunningSequence]) {
        for nth in (0..running.len()).filter(|&nth| self.demands[nth].n_ready > 1).collect::<Vec<_>>() {
            let outranks = |other: usize| {
                let (adapter_set, demand) = (running[other].adapter_set(), self.demands[other]);
                demand.n_ready > 1 && demand.priority > self.demands[nth].priority && adapter_set != running[nth].adapter_set()
            };
            if (0..nth).any(outranks) {
                self.demands[nth].n_ready = 0;
            }
        }
        let is_demanded = |set: &AdapterDemand| {
            let members = running.iter().zip(&self.demands).filter(|(running, _)| *running.adapter_set() == set.adapter_set);
            members.into_iter().any(|(_, demand)| demand.n_ready > 0)
        };
        self.sets.retain(is_demanded);
    }

    /// Counts the steps in which each sequence yielded its row.
    fn count_skipped<R: Runner>(&self, core: &mut Core<R>) {
        for ((running, demand), &n_rows) in core.slots.running_mut().iter_mut().zip(&self.demands).zip(&self.n_rows) {
            // A sequence of another adapter set did not advance, but did not yield either.
            running.n_skipped = match (n_rows, demand.n_ready) {
                (0, 1) => running.n_skipped.saturating_add(1),
                (0, _) => running.n_skipped,
                _ => 0,
            };
        }
    }

    /// Grants a medium with non-causal attention all of its rows if it got any; one such medium per step.
    fn grant_whole_media<R: Runner>(&mut self, core: &Core<R>) {
        let mut has_medium = false;
        for ((running, demand), n_rows) in core.slots.running().iter().zip(&self.demands).zip(&mut self.n_rows) {
            if *n_rows > 0 && running.takes_all_available() {
                *n_rows = if has_medium { 0 } else { demand.n_ready };
                has_medium = true;
            }
        }
    }

    /// Grants cells by seniority; if there are too few, the most junior sequence is preempted.
    fn grant_cells<R: Runner>(&mut self, core: &mut Core<R>) {
        let (mut nth, mut n_planned) = (0, 0);
        while nth < core.slots.running().len() {
            let n_wanted = self.n_rows[nth];
            let urgency = if core.slots.running()[nth].n_ready() == 1 { Urgency::Now } else { Urgency::WithinMoveTime };
            let n = free_cells(core, nth, n_planned + n_wanted, urgency).saturating_sub(n_planned);
            let n = if n < n_wanted && core.slots.running()[nth].takes_all_available() { 0 } else { n };
            core.slots.running_mut()[nth].n_planned = n.min(n_wanted);
            if n == 0 && n_wanted > 0 && !is_freed_later(core, urgency) {
                let running = core.slots.running();
                if running.len() == 1 || running.iter().all(|other| other.is_in_same_search(&running[0])) {
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

    /// Computes the demand of each running sequence.
    fn count_demands<R: Runner>(&mut self, core: &Core<R>) {
        let running = core.slots.running();
        // At most `n_outputs` rows may have logits: every sequence reserves one, for its next token, and prompts with logprobs
        // share the rest, limited by the time to report them.
        let n_affordable = self.budget.max_prompt_logprobs(streams(core, |_| true), self.n_cells);
        let n_more = fair_share(
            (core.limits.n_outputs - count(running.iter())).min(n_affordable),
            running.iter().filter(|running| running.sequence.reports_prompt()).map(n_report_rows),
        );
        self.demands.clear();
        self.demands.extend(running.iter().map(|running| {
            let most = if running.sequence.reports_prompt() {
                running.sequence.n_until_report(running.n_held).saturating_add(1 + n_more.min(n_reported_per_step(running)))
            } else {
                u32::MAX
            };
            let request = running.sequence.request();
            let most = most.min(request.max_chunk.unwrap_or(u32::MAX));
            let most = if running.takes_all_available() { u32::MAX } else { most };
            let until = n_until_checkpoint(core, running).min(n_until_grouped(core, running)).min(n_until_fork(core, running));
            let n_alike = running.sequence.adapter_schedule.n_unchanged(running.n_held);
            let n_ready = n_ready(core, running).min(until).min(most).min(n_until_media_boundary(running)).min(n_alike);
            // The beams of a search advance together.
            let n_skipped = running.sequence.beam.is_none().then_some(running.n_skipped);
            RowDemand { n_ready, is_all: n_ready == running.n_uncomputed(), priority: request.priority, n_skipped }
        }));
    }

    /// Writes the rows of the sequences that pass `filter` to the plan, in order.
    pub(super) fn fill(&mut self, running: &[RunningSequence], filter: impl Fn(&RunningSequence) -> bool) {
        let rows = running.iter().filter(|running| filter(running)).flat_map(|running| {
            let last = running.n_held + running.n_planned;
            let samples = running.will_sample();
            (running.n_held..last).map(move |position| Row {
                sequence: running.id,
                token: running.sequence.tokens.at(position),
                position,
                wants_logits: (samples && position + 1 == last) || running.sequence.reports_after(position),
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

/// Number of media per sequence that are encoded ahead of use. More would delay the media of other requests.
const N_AHEAD: usize = 2;

/// Fails requests whose media cannot be encoded.
fn fail_undecodable<R: Runner>(core: &mut Core<R>) {
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

/// Returns the number of tokens before a sequence's next medium, or the remainder of that medium once it is encoded: rows of
/// tokens and of media are computed separately.
fn n_until_media_boundary(running: &RunningSequence) -> u32 {
    let Some(placed) = running.sequence.media_from(running.n_held).first() else { return u32::MAX };
    match placed.media.encoding() {
        _ if running.n_held < placed.start => placed.start - running.n_held,
        Encoding::Ready => placed.end() - running.n_held,
        Encoding::Pending | Encoding::Failed(_) => 0,
    }
}

/// Returns the number of tokens of a sequence that the next decode could compute: 0 while its reader lags.
fn n_ready<R: Runner>(core: &Core<R>, running: &RunningSequence) -> u32 {
    if core.output.slow_consumers.contains(running.sequence.stream_id) { 0 } else { running.n_ready() }
}

/// Maximum bytes of prompt logprobs reported per step: a reader that keeps up never exceeds the limits of its stream.
const MAX_REPORTED_BYTES: usize = 4 << 20;

/// Returns the number of uncomputed prompt rows of a sequence with logprobs, except the last.
fn n_report_rows(running: &RunningSequence) -> u32 {
    running.n_uncomputed().saturating_sub(running.sequence.n_until_report(running.n_held) + 1)
}

/// Returns the largest share of `n` per item such that items that want less leave the rest to the others.
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

/// Returns for how many of its tokens a step may report logprobs.
fn n_reported_per_step(running: &RunningSequence) -> u32 {
    let n_probs = running.sequence.request().prompt_logprobs.unwrap_or(0) as usize;
    u32::try_from(MAX_REPORTED_BYTES / Logprobs::n_bytes(n_probs)).expect("a few million at most")
}

/// Returns the load of the streams that pass `filter` and could get a token in the next decode.
fn streams<R: Runner>(core: &Core<R>, filter: impl Fn(&RunningSequence) -> bool) -> StreamLoad {
    let decoding = core.slots.running().iter().filter(|running| filter(running) && n_ready(core, running) == 1);
    let gaps = decoding.clone().map(|running| running.sequence.request().max_token_gap);
    StreamLoad {
        n_decoding: count(decoding.clone()),
        n_by_default: count(gaps.clone().filter(Option::is_none)),
        max_token_gap: gaps.flatten().min(),
        max_step: None,
        priority: decoding.map(|running| running.sequence.request().priority).max().unwrap_or_default(),
    }
}

/// Returns true if cells can be freed in a later step, for which this one had no time.
fn is_freed_later<R: Runner>(core: &Core<R>, urgency: Urgency) -> bool {
    urgency == Urgency::WithinMoveTime && core.memory.is_out_of_time() && core.memory.cache().n_evictable() > 0
}

/// Ends the only running sequence, or search, which does not fit because pinned prefixes take the rest of the device cache.
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
