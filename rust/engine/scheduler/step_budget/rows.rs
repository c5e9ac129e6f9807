//! Division of a decode's rows: streams first, then prompts within the chunk.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use crate::config::MIN_CHUNK;
use crate::engine::numbers::count_u32;
use crate::engine::scheduler::step_budget::{StepBudget, StreamLoad, max_fitting};
use crate::engine::scheduler::step_cost::StepShape;

/// Share by which streams of lower priorities may lengthen the step of the highest-priority streams, and prefill of lower
/// priorities once more: with both, the latter keep two thirds of their speed.
const LOW_PRIORITY_SHARE: f64 = 0.25;

/// Minimum number of lower-priority streams per step, and of their prompt tokens, to prevent starvation.
pub(super) const MIN_LOW_PRIORITY: u32 = 1;

#[derive(Debug, Clone, Copy)]
pub(crate) struct RowDemand {
    /// Tokens ready to be computed; 0 if the sequence cannot use rows in this step.
    pub(crate) n_ready: u32,
    pub(crate) is_all: bool,
    pub(crate) priority: i32,
    /// Number of consecutive steps without rows; `None` if the sequence never yields its rows.
    pub(crate) n_skipped: Option<u32>,
}

impl StepBudget {
    /// Writes the number of rows of each running sequence to `rows`, most senior first.
    ///
    /// A sequence with one token to compute gets it in every step, except lower-priority streams that take turns (see
    /// [`LOW_PRIORITY_SHARE`]). Prompts share the chunk, which the time `spent` on moving cache entries reduces. A prompt yields to
    /// prompts that are both more senior and of higher priority; each of the others gets up to [`MIN_CHUNK`], so that a short one
    /// need not wait for a long one, and the rest goes to the most senior. Prompts of a lower priority than some stream share the
    /// remainder of a quarter of the time of the highest-priority streams, independent of the allowed gap.
    pub(crate) fn plan(&self, demands: &[RowDemand], streams: StreamLoad, n_cells: u32, spent: Duration, rows: &mut Vec<u32>) {
        rows.clear();
        rows.extend(demands.iter().map(|demand| u32::from(demand.n_ready == 1)));
        self.yield_rows(demands, n_cells, rows);
        let streams = StreamLoad { n_decoding: rows.iter().sum(), ..streams };
        let prompts = || demands.iter().filter(|demand| demand.n_ready > 1);
        let n_wanted = prompts().map(|demand| demand.n_ready).fold(0, u32::saturating_add);
        let first_prompts = prompts().filter(|demand| demand.priority >= streams.priority);
        let n_first =
            first_prompts.map(|demand| if demand.is_all { demand.n_ready } else { u32::MAX }).fold(0, u32::saturating_add);
        let chunk = self.chunk(streams, n_wanted, n_first, n_cells, spent);
        let mut n_granted = 0;
        for is_low in [false, true] {
            let is_included = |demand: &RowDemand| (streams.n_decoding > 0 && demand.priority < streams.priority) == is_low;
            let n_available = if is_low {
                let n_unused = self.n_ubatch.saturating_sub(streams.n_decoding + n_granted);
                let max = self.low_priority_chunk(demands, streams, chunk, n_cells);
                max.saturating_sub(n_granted).max(MIN_LOW_PRIORITY.min(n_unused))
            } else {
                chunk
            };
            let mut left = n_available;
            // First the prompts that no more senior one outranks, then the rest by priority.
            distribute(demands, rows, &mut left, |demand, highest_before| {
                is_included(demand) && demand.priority >= highest_before
            });
            let priorities: BTreeSet<i32> =
                prompts().filter(|demand| is_included(demand)).map(|demand| demand.priority).collect();
            for priority in priorities.into_iter().rev() {
                distribute(demands, rows, &mut left, |demand, _| demand.priority == priority);
            }
            n_granted += n_available - left;
        }
    }

    /// Withdraws the rows of streams below the highest priority, if they would add more than [`LOW_PRIORITY_SHARE`] to the time
    /// of the streams of that priority. The stream with the longest wait keeps its row, then streams of higher priority, then
    /// streams with longer waits.
    fn yield_rows(&self, demands: &[RowDemand], n_cells: u32, rows: &mut [u32]) {
        let ready = || demands.iter().filter(|demand| demand.n_ready > 0);
        let Some(highest) = ready().map(|demand| demand.priority).max() else { return };
        let may_wait = |demand: &RowDemand| demand.n_ready == 1 && demand.priority < highest && demand.n_skipped.is_some();
        let n_low = count_u32(ready().filter(|&demand| may_wait(demand)));
        if n_low <= MIN_LOW_PRIORITY {
            return;
        }
        let highest_demands = || ready().filter(|demand| demand.priority == highest).map(|demand| demand.n_ready);
        let n_decoding = count_u32(highest_demands().filter(|&n_ready| n_ready == 1));
        // With streams of that priority in the step, the time of its prompts is not known here and not counted.
        let n_prefill = if n_decoding > 0 { 0 } else { highest_demands().fold(0, u32::saturating_add).min(self.n_ubatch) };
        let mean_s = |n_more| self.decode.mean_s(StepShape { n_decoding: n_decoding + n_more, n_prefill, n_cells });
        let n_kept = max_fitting(MIN_LOW_PRIORITY, n_low, |n_kept| mean_s(n_kept) <= (1.0 + LOW_PRIORITY_SHARE) * mean_s(0));
        let mut low: Vec<usize> = (0..demands.len()).filter(|&nth| may_wait(&demands[nth])).collect();
        low.sort_by_key(|&nth| Reverse(demands[nth].n_skipped));
        low[1..].sort_by_key(|&nth| Reverse(demands[nth].priority));
        for nth in low.into_iter().skip(n_kept as usize) {
            rows[nth] = 0;
        }
    }

    /// Returns as many of `chunk` rows as add at most [`LOW_PRIORITY_SHARE`] to the time of the highest-priority streams.
    fn low_priority_chunk(&self, demands: &[RowDemand], streams: StreamLoad, chunk: u32, n_cells: u32) -> u32 {
        let n_first = count_u32(demands.iter().filter(|demand| demand.n_ready == 1 && demand.priority == streams.priority));
        let limit_s = self.mean_s(streams.n_decoding, 0, n_cells) + LOW_PRIORITY_SHARE * self.mean_s(n_first, 0, n_cells);
        let mean_s = |n_prefill| self.decode.mean_s(StepShape { n_decoding: streams.n_decoding, n_prefill, n_cells });
        max_fitting(MIN_LOW_PRIORITY.min(chunk), chunk, |n_prefill| mean_s(n_prefill) <= limit_s)
    }
}

/// Grants [`MIN_CHUNK`] rows each, then the rest to the first. `is_included` receives the highest priority of the prompts before.
fn distribute(demands: &[RowDemand], rows: &mut [u32], chunk: &mut u32, is_included: impl Fn(&RowDemand, i32) -> bool) {
    for max in [MIN_CHUNK, u32::MAX] {
        let mut highest_before = i32::MIN;
        for (rows, demand) in rows.iter_mut().zip(demands).filter(|(_, demand)| demand.n_ready > 1) {
            if is_included(demand, highest_before) {
                let more = (demand.n_ready - *rows).min(max).min(*chunk);
                *rows += more;
                *chunk -= more;
            }
            highest_before = highest_before.max(demand.priority);
        }
    }
}
