//! Chooses the rows of the next decode: the step budget grants them, limited by the available cells.

use std::time::Duration;

use crate::engine::cache_manager::CacheManager;
use crate::engine::cache_manager::reclaim::Urgency;
use crate::engine::features::hooks;
use crate::engine::numbers::{count_u32, to_u32};
use crate::engine::runner::{MediaRows, Plan, Row, Runner};
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::adapter_round_robin::{AdapterDemand, AdapterRoundRobin};
use crate::engine::scheduler::checkpoints::n_until_checkpoint;
use crate::engine::scheduler::drafting::DraftRoom;
use crate::engine::scheduler::resumption::n_until_fork;
use crate::engine::scheduler::running_sequence::RunningSequence;
use crate::engine::scheduler::step_budget::{RowDemand, StepBudget, StreamLoad};
use crate::error::Error;
use crate::request::{Encoding, FinishReason};

/// Plans steps. Kept between steps to reuse its allocations.
#[derive(Debug)]
pub(crate) struct Planner {
    budget: StepBudget,
    adapters: AdapterRoundRobin,
    plan: Plan,
    changes_adapters: bool,
    sets: Vec<AdapterDemand>,
    demands: Vec<RowDemand>,
    n_rows: Vec<u32>,
    n_drafted: u32,
    /// Highest used cell before this step's rows, plus one.
    n_cells: u32,
}

impl Planner {
    pub(crate) fn new(budget: StepBudget) -> Self {
        Self {
            budget,
            adapters: AdapterRoundRobin::default(),
            plan: Plan::default(),
            changes_adapters: false,
            sets: Vec::new(),
            demands: Vec::new(),
            n_rows: Vec::new(),
            n_drafted: 0,
            n_cells: 0,
        }
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(crate) fn n_planned_rows(&self) -> u32 {
        to_u32(self.plan.rows.len())
    }

    pub(crate) fn n_drafted(&self) -> u32 {
        self.n_drafted
    }

    pub(crate) fn changes_adapters(&self) -> bool {
        self.changes_adapters
    }

    /// Records the time of the plan's decode.
    pub(crate) fn observe_decode(&mut self, running: &[RunningSequence], took: Duration) {
        // A drafted token costs about as much as a token of another stream.
        let n_single = count_u32(running.iter().filter(|running| running.takes_one_row())) + self.n_drafted;
        let n_prefill = self.n_planned_rows() - n_single;
        if !self.changes_adapters {
            if self.n_drafted == 0 {
                self.budget.observe(n_single, n_prefill, self.n_cells, took);
            } else {
                self.budget.observe_drafted(n_single, n_prefill, self.n_cells, took);
            }
        } else if n_prefill == 0 {
            // The excess over the mean is the cost of the change. Steps with prompts vary by more than that.
            let mean_s = self.budget.mean_s(n_single, 0, self.n_cells);
            self.adapters.observe_change(if mean_s > 0.0 { took.as_secs_f64() - mean_s } else { 0.0 });
        }
    }

    /// Records the time of a step with a decode: `rest` is without the decode and moves, `of_drafts` of it is a draft model's.
    pub(crate) fn observe_step(&mut self, took: Duration, rest: Duration, of_drafts: Duration, n_sampled: u64) {
        self.budget.observe_rest(rest);
        self.budget.observe_tokens(n_sampled, rest.saturating_sub(of_drafts));
        self.adapters.observe(took.as_secs_f64());
    }

    pub(crate) fn observe_prompt_logprobs(&mut self, n_tokens: u32, took: Duration) {
        self.budget.observe_prompt_logprobs(n_tokens, took);
    }

    pub(crate) fn begin_moving<R: Runner>(&mut self, scheduler: &Scheduler, cache: &mut CacheManager<R>) {
        let n_prefilling = count_u32(scheduler.slots.running().iter().filter(|running| scheduler.n_ready(running) > 1));
        let move_time = self.budget.move_time(stream_load(scheduler, |_| true), n_prefilling, cache.n_cells_reached());
        cache.begin_moving(move_time);
        cache.observe_compute(self.budget.prompt_token_s(cache.n_cells_reached()));
    }

    pub(crate) fn divide<R: Runner>(&mut self, scheduler: &mut Scheduler, cache: &CacheManager<R>) {
        self.n_cells = cache.n_cells_reached();
        self.count_demands(scheduler, cache);
        let max_step = self.choose_adapters(scheduler);
        let current = self.adapters.current();
        let load = StreamLoad { max_step, ..stream_load(scheduler, |running| *running.adapter_set() == *current) };
        self.budget.plan(&self.demands, load, self.n_cells, cache.spent(), &mut self.n_rows);
        self.grant_whole_media(scheduler.slots.running());
        self.count_skipped(scheduler);
    }

    /// Returns the rows, cells and logits that this step leaves for drafts, and what they cost.
    pub(crate) fn draft_room<R: Runner>(&self, scheduler: &Scheduler, cache: &CacheManager<R>) -> DraftRoom<'_> {
        let Self { budget, n_cells, .. } = self;
        let (running, limits) = (scheduler.slots.running(), &scheduler.limits);
        let n_planned: u32 = running.iter().map(|running| running.n_planned).sum();
        let n_single = count_u32(running.iter().filter(|running| running.takes_one_row()));
        let n_with_logits = |running: &RunningSequence| if hooks::rows_wanted(running).is_some() { running.n_planned } else { 1 };
        let n_outputs: u32 = running.iter().map(n_with_logits).sum();
        let n_rows = limits.n_ubatch.min(cache.n_free()).saturating_sub(n_planned);
        DraftRoom {
            n_rows: n_rows.min(limits.n_outputs.saturating_sub(n_outputs)),
            budget,
            n_single,
            n_prefill: n_planned - n_single,
            n_cells: *n_cells,
            row_s: budget.mean_s(1, 0, 0),
            token_s: budget.token_s(),
            max_decode_s: budget.max_drafted_s(stream_load(scheduler, |_| true), *n_cells, cache.spent()),
        }
    }

    pub(crate) fn take_cells<R: Runner>(&mut self, running: &mut [RunningSequence], cache: &mut CacheManager<R>) {
        let planned_sequences = running.iter().filter(|running| running.is_planned());
        let rows = planned_sequences.flat_map(|running| running.planned_tokens().map(|tokens| (running.id(), tokens)));
        cache.extend(rows);
        self.fill(running);
        self.changes_adapters = !self.plan.rows.is_empty() && self.plan.adapter_set != *self.adapters.current();
        if self.changes_adapters {
            self.plan.adapter_set = self.adapters.current().clone();
        }
    }

    /// Returns the maximum time of the step if streams of other sets wait.
    fn choose_adapters(&mut self, scheduler: &Scheduler) -> Option<Duration> {
        let running = scheduler.slots.running();
        self.count_adapter_demands(running);
        let mut gap_s = 0.0;
        if self.sets.len() > 1 {
            self.withdraw_outranked_prompts(running);
            for set in &mut self.sets {
                set.step_s = self.budget.stream_step_s(set.n_streams, self.n_cells);
            }
            gap_s = self.budget.step_s(stream_load(scheduler, |_| true), self.n_cells);
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

    fn count_adapter_demands(&mut self, running: &[RunningSequence]) {
        self.sets.clear();
        for (running, demand) in running.iter().zip(&self.demands).filter(|(_, demand)| demand.n_ready > 0) {
            let adapter_set = running.adapter_set();
            let index = self.sets.iter().position(|set| set.adapter_set == *adapter_set).unwrap_or_else(|| {
                self.sets.push(AdapterDemand { adapter_set: adapter_set.clone(), n_streams: 0, step_s: 0.0 });
                self.sets.len() - 1
            });
            self.sets[index].n_streams += u32::from(demand.n_ready == 1);
        }
    }

    /// Withdraws prompts that a more senior prompt of higher priority and another set outranks, and sets left without demand.
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
        self.sets.retain(|set| {
            let mut members = running.iter().zip(&self.demands).filter(|(running, _)| *running.adapter_set() == set.adapter_set);
            members.any(|(_, demand)| demand.n_ready > 0)
        });
    }

    fn count_skipped(&self, scheduler: &mut Scheduler) {
        for ((running, demand), &n_rows) in scheduler.slots.running_mut().iter_mut().zip(&self.demands).zip(&self.n_rows) {
            // A sequence of another adapter set did not advance, but did not yield either.
            running.n_skipped = match (n_rows, demand.n_ready) {
                (0, 1) => running.n_skipped.saturating_add(1),
                (0, _) => running.n_skipped,
                _ => 0,
            };
        }
    }

    /// Grants a medium with non-causal attention all of its rows, if it got any; one such medium per step.
    fn grant_whole_media(&mut self, running: &[RunningSequence]) {
        let mut has_medium = false;
        for ((running, demand), n_rows) in running.iter().zip(&self.demands).zip(&mut self.n_rows) {
            if *n_rows > 0 && running.takes_all_available() {
                *n_rows = if has_medium { 0 } else { demand.n_ready };
                has_medium = true;
            }
        }
    }

    /// Grants cells by seniority; if there are too few, the most junior sequence is preempted.
    pub(crate) fn grant_cells<R: Runner>(&self, scheduler: &mut Scheduler, cache: &mut CacheManager<R>) {
        let (mut n_planned, mut cursor) = (0, None);
        // Sequences that yield their cells are junior to the ones that were granted theirs, so that `n_rows[nth]` still belongs
        // to `key`.
        for nth in 0.. {
            let Some(key) = scheduler.next_key(&mut cursor) else { break };
            let (n_wanted, running) = (self.n_rows[nth], scheduler.slots.running_sequence(key));
            let takes_all = running.takes_all_available();
            let urgency = if running.n_ready() == 1 { Urgency::Now } else { Urgency::WithinMoveTime };
            let n = cache.free_cells(n_planned + n_wanted, urgency, || scheduler.release_cells(key)).saturating_sub(n_planned);
            let n = if n < n_wanted && takes_all { 0 } else { n };
            scheduler.slots.running_sequence_mut(key).n_planned = n.min(n_wanted);
            let is_freed_later = || urgency == Urgency::WithinMoveTime && cache.is_out_of_time() && cache.kv().n_evictable() > 0;
            if n == 0 && n_wanted > 0 && !is_freed_later() {
                let running = scheduler.slots.running();
                if running.iter().skip(1).all(|other| other.runs_with(&running[0])) {
                    end_oversized(scheduler, cache);
                } else {
                    scheduler.preempt(running[running.len() - 1].key());
                }
                break;
            }
            n_planned += n.min(n_wanted);
        }
    }

    fn count_demands<R: Runner>(&mut self, scheduler: &Scheduler, cache: &CacheManager<R>) {
        let running = scheduler.slots.running();
        // At most `n_outputs` rows may have logits: every sequence reserves one, for its next token, and prompts with logprobs
        // share the rest, limited by the time to report them.
        let n_affordable = self.budget.max_prompt_logprobs(stream_load(scheduler, |_| true), self.n_cells);
        let n_more = divide_fairly(
            (scheduler.limits.n_outputs - to_u32(running.len())).min(n_affordable),
            running.iter().filter_map(hooks::rows_wanted),
        );
        self.demands.clear();
        self.demands.extend(running.iter().map(|running| {
            let request = &running.sequence.request;
            let max_rows = hooks::max_rows_with_logits(running, n_more).min(request.max_chunk.unwrap_or(u32::MAX));
            let max_rows = if running.takes_all_available() { u32::MAX } else { max_rows };
            let until = n_until_checkpoint(cache, running)
                .min(hooks::max_rows_until_due(scheduler, running))
                .min(n_until_fork(scheduler, cache, running));
            let n_alike = running.sequence.adapter_schedule.n_unchanged(running.n_computed);
            let n_ready = scheduler.n_ready(running).min(until).min(max_rows).min(n_until_media_boundary(running)).min(n_alike);
            let n_skipped = (!running.sequence.runs_together).then_some(running.n_skipped);
            RowDemand { n_ready, is_all: n_ready == running.n_uncomputed(), priority: request.priority, n_skipped }
        }));
    }

    fn fill(&mut self, running: &mut [RunningSequence]) {
        let Plan { rows, media, .. } = &mut self.plan;
        rows.clear();
        media.clear();
        self.n_drafted = 0;
        for running in running.iter_mut().filter(|running| running.is_planned()) {
            running.first_row = rows.len();
            let (range, samples) = (running.planned_range(), running.will_sample());
            let end = range.end;
            rows.extend(range.map(|position| Row {
                sequence: running.id(),
                token: running.sequence.tokens.at(position),
                position,
                wants_logits: (samples && position + 1 == end) || hooks::wants_logits(&running.sequence, position),
            }));
            let drafted = (end..).zip(&running.draft.tokens);
            self.n_drafted += count_u32(drafted.clone());
            rows.extend(drafted.map(|(position, &token)| Row { sequence: running.id(), token, position, wants_logits: true }));
            media.extend(running.available_media().map(|placed| MediaRows {
                rows: running.first_row..rows.len(),
                media: placed.media.clone(),
                start: running.n_computed - placed.start,
            }));
        }
    }
}

/// Number of media per sequence that are encoded ahead of use. More would delay the media of other requests.
const N_AHEAD: usize = 2;

impl Scheduler {
    pub(crate) fn fail_unencodable(&mut self) {
        let mut failed = Vec::new();
        for running in self.slots.running() {
            for placed in running.sequence.media_from(running.n_computed).iter().take(N_AHEAD) {
                if let Encoding::Failed(reason) = placed.media.encoding() {
                    failed.push((running.sequence.group_id, reason));
                }
            }
        }
        for (group_id, reason) in failed {
            self.fail(&[group_id], &Error::Decode { reason });
        }
    }
}

/// Returns the tokens before a sequence's next medium, or the rest of an encoded one: the two are computed separately.
fn n_until_media_boundary(running: &RunningSequence) -> u32 {
    let Some(placed) = running.sequence.media_from(running.n_computed).first() else { return u32::MAX };
    match placed.media.encoding() {
        _ if running.n_computed < placed.start => placed.start - running.n_computed,
        Encoding::Ready => placed.end() - running.n_computed,
        Encoding::Pending | Encoding::Failed(_) => 0,
    }
}

/// Returns the largest share of `n` per item such that items with smaller demands leave the rest to the others.
fn divide_fairly(n: u32, wanted: impl Iterator<Item = u32>) -> u32 {
    let mut wanted: Vec<u32> = wanted.collect();
    wanted.sort_unstable();
    let (mut left, mut n_others) = (n, to_u32(wanted.len()));
    for n_wanted in wanted {
        if n_wanted > left / n_others {
            return left / n_others;
        }
        left -= n_wanted;
        n_others -= 1;
    }
    u32::MAX
}

fn stream_load(scheduler: &Scheduler, filter: impl Fn(&RunningSequence) -> bool) -> StreamLoad {
    let decoding = scheduler.slots.running().iter().filter(|running| filter(running) && scheduler.n_ready(running) == 1);
    let gaps = decoding.clone().map(|running| running.sequence.request.max_token_gap);
    StreamLoad {
        n_decoding: count_u32(decoding.clone()),
        n_by_default: count_u32(gaps.clone().filter(Option::is_none)),
        max_token_gap: gaps.flatten().min(),
        max_step: None,
        priority: decoding.map(|running| running.sequence.request.priority).max().unwrap_or_default(),
    }
}

/// Ends the only running sequence, or search, which does not fit because pinned prefixes take the rest of the device cache.
fn end_oversized<R: Runner>(scheduler: &mut Scheduler, cache: &CacheManager<R>) {
    let running = &scheduler.slots.running()[0];
    let (key, group_id, n_predicted) = (running.key(), running.sequence.group_id, running.sequence.n_predicted);
    if running.sequence.runs_together
        && (scheduler.reshare_cells(key) || hooks::end_oversized(scheduler, cache.runner(), group_id))
    {
        return;
    }
    if n_predicted > 0 && scheduler.shift(key) {
        return;
    }
    if n_predicted > 0 {
        return scheduler.finish(key, FinishReason::ContextFull, None);
    }
    let running = scheduler.slots.running_sequence(key);
    let (n_prompt, n_ctx) = (running.sequence.n_prompt as usize, running.n_computed as usize);
    scheduler.fail_computed(key, Error::ContextOverflow { n_prompt, n_ctx });
}
