//! Which rows the next decode computes: what the scheduler grants, as far as there are cells for it.

use crate::engine::core::Core;
use crate::engine::leaving::{Urgency, fail_request, finish, leave_slot, make_room, preempt, shift};
use crate::engine::runner::{Plan, Row, Runner};
use crate::engine::running::Running;
use crate::engine::scheduler::{Demand, Scheduler, Streams};
use crate::engine::snapshots::n_to_snapshot;
use crate::error::Error;
use crate::request::{FinishReason, Logprobs};

/// The scheduler, and what the running step plans. Kept between steps for its memory.
#[derive(Debug)]
pub(super) struct Planner {
    pub(super) scheduler: Scheduler,
    /// What the decode of this step computes.
    pub(super) plan: Plan,
    demands: Vec<Demand>,
    n_rows: Vec<u32>,
    /// The highest used cell before this step's rows, plus one.
    pub(super) n_cells: u32,
}

impl Planner {
    pub(super) fn new(scheduler: Scheduler) -> Self {
        Self { scheduler, plan: Plan::default(), demands: Vec::new(), n_rows: Vec::new(), n_cells: 0 }
    }

    /// A step begins: decides how long it may take to move pieces between the tiers.
    pub(super) fn begin_moving<R: Runner>(&mut self, core: &mut Core<R>) {
        let n_prefilling = count(core.slots.running().iter().filter(|running| n_ready(core, running) > 1));
        let spare = self.scheduler.spare(streams(core), n_prefilling, core.memory.n_reached());
        core.memory.begin_moving(spare);
    }

    /// Decides which tokens go into the next decode, and makes room for them.
    pub(super) fn plan<R: Runner>(&mut self, core: &mut Core<R>) {
        self.n_cells = core.memory.n_reached();
        self.count_demands(core);
        self.scheduler.plan(&self.demands, streams(core), self.n_cells, core.memory.spent(), &mut self.n_rows);
        self.grant(core);
        let planned = core.slots.running().iter().filter(|running| running.n_planned > 0);
        let rows = planned.flat_map(|running| running.planned().map(|tokens| (running.id, tokens)));
        core.memory.cache_mut().extend(rows);
        self.fill(core.slots.running(), |_| true);
    }

    /// Gives the most senior what it needs first; where there is too little, the most junior gives up its place.
    fn grant<R: Runner>(&mut self, core: &mut Core<R>) {
        let (mut nth, mut n_planned) = (0, 0);
        while nth < core.slots.running().len() {
            let n_wanted = self.n_rows[nth];
            let urgency = if core.slots.running()[nth].n_ready() == 1 { Urgency::Now } else { Urgency::WhenThereIsTime };
            let n = make_room(core, nth, n_planned + n_wanted, urgency).saturating_sub(n_planned);
            core.slots.running_mut()[nth].n_planned = n.min(n_wanted);
            if n == 0 && n_wanted > 0 && !is_worth_waiting(core, urgency) {
                if core.slots.running().len() == 1 {
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
        // share the rest.
        let n_telling = count(running.iter().filter(|running| running.sequence.tells_of_prompt()));
        let n_more = (core.limits.n_outputs - count(running.iter())) / n_telling.max(1);
        self.demands.clear();
        self.demands.extend(running.iter().map(|running| {
            let most = if running.sequence.tells_of_prompt() { 1 + n_more.min(n_told_at_once(running)) } else { u32::MAX };
            let request = running.sequence.request();
            let most = most.min(request.max_chunk.unwrap_or(u32::MAX));
            let n_ready = n_ready(core, running).min(n_to_snapshot(core, running)).min(most);
            Demand { n_ready, priority: request.priority }
        }));
    }

    /// Plans the rows of those that `filter` lets through, in order.
    pub(super) fn fill(&mut self, running: &[Running], filter: impl Fn(&Running) -> bool) {
        let rows = running.iter().filter(|running| filter(running)).flat_map(|running| {
            let last = running.n_held + running.n_planned;
            let draws = running.will_draw();
            (running.n_held..last).map(move |position| Row {
                sequence: running.id,
                token: running.sequence.tokens.at(position),
                position,
                wants_logits: (draws && position + 1 == last) || running.sequence.tells_after(position),
            })
        });
        self.plan.rows.clear();
        self.plan.rows.extend(rows);
    }
}

/// Tokens of a sequence that the next decode could compute: none while its reader is too far behind.
fn n_ready<R: Runner>(core: &Core<R>, running: &Running) -> u32 {
    if core.outbox.laggards.holds(running.sequence.request_id) { 0 } else { running.n_ready() }
}

/// Most bytes of a prompt's log-probabilities that a step tells: a reader that keeps up with its stream is never too far behind.
const MAX_TOLD: usize = 4 << 20;

/// How many of its tokens a step may tell log-probabilities of.
fn n_told_at_once(running: &Running) -> u32 {
    let n_probs = running.sequence.request().prompt_logprobs.unwrap_or(0) as usize;
    u32::try_from(MAX_TOLD / Logprobs::n_bytes(n_probs)).expect("a few million at most")
}

/// The streams that would get a token in the next decode.
fn streams<R: Runner>(core: &Core<R>) -> Streams {
    let decoding = core.slots.running().iter().filter(|running| n_ready(core, running) == 1);
    let gaps = decoding.clone().map(|running| running.sequence.request().max_token_gap);
    Streams {
        n_decoding: count(decoding),
        n_by_default: count(gaps.clone().filter(Option::is_none)),
        max_token_gap: gaps.flatten().min(),
    }
}

/// Whether room is found later for what found none in this step: there was no time to make it.
fn is_worth_waiting<R: Runner>(core: &Core<R>, urgency: Urgency) -> bool {
    urgency == Urgency::WhenThereIsTime && core.memory.is_out_of_time() && core.memory.cache().n_evictable() > 0
}

/// The only sequence that runs does not fit alone, since pinned prefixes take the rest of the pool.
fn end_oversized<R: Runner>(core: &mut Core<R>) {
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
