//! The decoding loop of llama-server without text, sampling or HTTP.
//!
//! Each request has a slot. A step takes one row of every generating slot, then prompts in slot order until the batch is full,
//! and decodes them together (`server_context::update_slots` in server-context.cpp). A prompt is computed for each request; its
//! further completions copy the cells when the prompt is computed.

use std::time::Instant;

use super::load::{Load, Trace};
use crate::support::bare::{BareContext, Row};
use crate::support::bare_model::BareModel;
use crate::support::setup::{Cells, DEFAULT_ROWS, Flash, Setup, Threads};

/// llama-server's `--batch-size`.
const N_BATCH: usize = 2_048;

/// Flags of llama-server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flags {
    pub(crate) flash: Flash,
    pub(crate) cells: Cells,
}

/// The default (with an explicit number of slots, cells are not unified), then the others.
pub(crate) const ALL_FLAGS: [(Flags, &str); 4] = [
    (Flags { flash: Flash::On, cells: Cells::PerSequence }, "default"),
    (Flags { flash: Flash::Off, cells: Cells::PerSequence }, "-fa off"),
    (Flags { flash: Flash::On, cells: Cells::Unified }, "-kvu"),
    (Flags { flash: Flash::Off, cells: Cells::Unified }, "-fa off -kvu"),
];

/// A slot, in which one sequence runs.
struct Slot {
    request: usize,
    /// The slot that computes the prompt, if it is not this one.
    waits_for: Option<usize>,
    /// Prompt tokens that are computed.
    n_computed: usize,
    n_generated: usize,
}

impl Slot {
    fn has_ended(&self, load: &Load) -> bool {
        load.arrivals().nth(self.request).is_none_or(|arrival| self.n_generated >= arrival.n_predict)
    }
}

/// Runs the load. Returns `None` if it was not over after `limit_s` seconds.
///
/// # Errors
/// A message, if a decode fails.
pub(crate) fn run(
    (model, threads): (&BareModel, Threads),
    flags: Flags,
    load: &Load,
    limit_s: f64,
) -> Result<Option<Vec<Trace>>, String> {
    let n_slots = load.n_slots();
    let n_cells = match flags.cells {
        Cells::Unified => load.n_tokens(),
        Cells::PerSequence => n_slots * load.n_longest().next_multiple_of(256),
    };
    let setup = Setup {
        cells: flags.cells,
        n_rows: DEFAULT_ROWS,
        n_batch: u32::try_from(N_BATCH).unwrap_or(DEFAULT_ROWS),
        ..Setup::unified(flags.flash, n_slots, n_cells)
    };
    let mut context = BareContext::new(model, &setup, threads)?;
    let started = Instant::now();
    let (mut slots, mut traces) = (Vec::new(), Vec::new());
    arrive(load, 0..load.first.len(), (&mut slots, &mut traces));
    let n_tokens = |traces: &[Trace], request: usize| traces.get(request).map_or(0, |trace| trace.times.len());
    while !load.is_over(|request| n_tokens(&traces, request)) {
        if started.elapsed().as_secs_f64() > limit_s {
            return Ok(None);
        }
        step(&mut context, load, (&mut slots, &mut traces))?;
        if traces.len() == load.first.len() && load.may_continue(|request| n_tokens(&traces, request)) {
            arrive(load, traces.len()..load.arrivals().count(), (&mut slots, &mut traces));
        }
    }
    Ok(Some(traces))
}

/// Assigns slots to requests.
fn arrive(load: &Load, requests: std::ops::Range<usize>, (slots, traces): (&mut Vec<Slot>, &mut Vec<Trace>)) {
    for (request, arrival) in load.arrivals().enumerate().skip(requests.start).take(requests.len()) {
        let first = slots.len();
        for branch in 0..arrival.n {
            slots.push(Slot { request, waits_for: (branch > 0).then_some(first), n_computed: 0, n_generated: 0 });
        }
        traces.push(Trace { submitted: Instant::now(), times: Vec::new() });
    }
}

fn step(context: &mut BareContext<'_>, load: &Load, (slots, traces): (&mut [Slot], &mut [Trace])) -> Result<(), String> {
    let arrivals: Vec<_> = load.arrivals().collect();
    let mut rows = Vec::new();
    let mut has_new_token = vec![false; slots.len()];
    let is_prompt = |slot: &Slot| slot.n_computed < arrivals[slot.request].prompt.len();
    for (sequence, slot) in slots.iter().enumerate() {
        if !is_prompt(slot) && !slot.has_ended(load) {
            let prompt = &arrivals[slot.request].prompt;
            let position = prompt.len() + slot.n_generated - 1;
            rows.push(Row { token: prompt[position % prompt.len()], position, sequence, wants_logits: true });
            has_new_token[sequence] = true;
        }
    }
    for (sequence, slot) in slots.iter_mut().enumerate().filter(|(_, slot)| slot.waits_for.is_none()) {
        let prompt = &arrivals[slot.request].prompt;
        let n = (prompt.len() - slot.n_computed).min(N_BATCH - rows.len());
        for position in slot.n_computed..slot.n_computed + n {
            let wants_logits = position + 1 == prompt.len();
            rows.push(Row { token: prompt[position], position, sequence, wants_logits });
            has_new_token[sequence] |= wants_logits;
        }
        slot.n_computed += n;
    }
    context.decode_rows(rows)?;
    let now = Instant::now();
    for sequence in 0..slots.len() {
        let computed_by = slots[sequence].waits_for.filter(|of| has_new_token[*of]);
        if let Some(computed_by) = computed_by {
            context.share_cells(computed_by, sequence);
            slots[sequence].n_computed = slots[computed_by].n_computed;
            slots[sequence].waits_for = None;
            has_new_token[sequence] = true;
        }
        if has_new_token[sequence] {
            slots[sequence].n_generated += 1;
            traces[slots[sequence].request].times.push(now);
        }
    }
    Ok(())
}
