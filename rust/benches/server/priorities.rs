//! Effect of priorities: the time to first token of short requests while a long queue is waiting, on the engine only, because
//! llama-server has no priorities.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft::llama::Model;

use super::engine::{request, start};
use super::load::{Arrival, percentile};
use crate::measures::watch::{Stream, Watch};
use crate::support::options::Options;

/// Slots that all requests share.
const N_SLOTS: usize = 8;

/// A queue of requests.
pub(crate) struct Batch {
    pub(crate) requests: Vec<Arrival>,
    /// Short requests that arrive meanwhile, one per `every`.
    pub(crate) short: Vec<Arrival>,
    pub(crate) every: Duration,
}

/// Prints a row for each priority of the short requests.
///
/// # Errors
/// A message, if the engine fails.
pub(crate) fn measure(model: &Arc<Model>, options: &Options, batch: &Batch) -> Result<(), String> {
    let Batch { requests, short, .. } = batch;
    println!(
        "  {} requests of {} tokens and {} to write, on {N_SLOTS} slots; beside them {} of {} and {}, one each {:?}",
        requests.len(),
        requests[0].prompt.len(),
        requests[0].n_predict,
        short.len(),
        short[0].prompt.len(),
        short[0].n_predict,
        batch.every
    );
    println!("  {:<30} │ first token of those, s: p50    p99    max │ all of the others, s", "");
    for priority in [0, 1] {
        let (waits, all_s) = measure_one(model, options, batch, priority)?;
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| percentile(waits.clone(), share));
        let title = format!("they have priority {priority}");
        println!("  {title:<30} │ {p50:>28.3} {p99:>6.3} {max:>6.3} │ {all_s:>19.2}");
    }
    Ok(())
}

/// Returns the seconds to the first token of each short request, and until the last of the other requests ended.
fn measure_one(model: &Arc<Model>, options: &Options, batch: &Batch, priority: i32) -> Result<(Vec<f64>, f64), String> {
    let longest =
        |arrivals: &[Arrival]| arrivals.iter().map(|arrival| arrival.prompt.len() + arrival.n_predict).max().unwrap_or(0);
    let n_cells = 2 * N_SLOTS * (longest(&batch.requests).max(longest(&batch.short)) + super::SPARE_CELLS);
    let engine = start(model, options, N_SLOTS, n_cells.next_multiple_of(256))?;
    let mut watch = Watch::new(&engine);
    let started = Instant::now();
    batch.requests.iter().try_for_each(|arrival| watch.submit(request(arrival)))?;
    let n_batch = batch.requests.len();
    for (nth, arrival) in (1..).zip(&batch.short) {
        let at = started + batch.every * nth;
        watch.read_until(|_| Instant::now() >= at)?;
        let mut short = request(arrival);
        short.priority = priority;
        watch.submit(short)?;
    }
    if watch.streams[..n_batch].iter().all(Stream::has_ended) {
        return Err("the queue was empty before the last short request came".into());
    }
    watch.read_all()?;
    let first = |stream: &Stream| (stream.branches[0].times[0] - stream.submitted).as_secs_f64();
    let waits = watch.streams[n_batch..].iter().map(first).collect();
    let last = watch.streams[..n_batch].iter().filter_map(|stream| stream.branches[0].times.last().copied()).max();
    Ok((waits, last.map_or(0.0, |last| (last - started).as_secs_f64())))
}
