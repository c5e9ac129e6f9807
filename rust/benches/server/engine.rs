//! A load on an engine in this process.

use std::sync::Arc;

use weft::config::EngineConfig;
use weft::engine::Engine;
use weft::llama::{self, Model};
use weft::request::{Prompt, Request, SamplingParams};

use super::load::{Arrival, Load, Trace};
use crate::measures::watch::{Stream, Watch};
use crate::support::options::Options;

/// Runs the load.
///
/// # Errors
/// A message, if the engine fails.
pub(crate) fn run(model: &Arc<Model>, options: &Options, load: &Load) -> Result<Vec<Trace>, String> {
    let engine = start(model, options, load.n_slots(), super::n_cells(load))?;
    let mut watch = Watch::new(&engine);
    load.first.iter().try_for_each(|arrival| watch.submit(request(arrival)))?;
    let n_tokens = |streams: &[Stream], place: usize| streams.get(place).map_or(0, Stream::n_all_tokens);
    if !load.then.is_empty() {
        watch.read_until(|streams| load.may_continue(|place| n_tokens(streams, place)))?;
        load.then.iter().try_for_each(|arrival| watch.submit(request(arrival)))?;
    }
    watch.read_until(|streams| load.is_over(|place| n_tokens(streams, place)))?;
    let trace = |stream: &Stream| {
        let mut times: Vec<_> = stream.branches.iter().flat_map(|branch| branch.times.iter().copied()).collect();
        times.sort_unstable();
        Trace { submitted: stream.submitted, times }
    };
    Ok(watch.streams.iter().map(trace).collect())
}

/// Starts an engine with `n_slots` slots and `n_cells` cells.
///
/// # Errors
/// A message, if it does not start.
pub(super) fn start(model: &Arc<Model>, options: &Options, n_slots: usize, n_cells: usize) -> Result<Engine, String> {
    let number = |n: usize| u32::try_from(n).map_err(|error| error.to_string());
    let config = EngineConfig {
        n_slots: Some(number(n_slots)?),
        n_ctx: Some(number(n_cells)?),
        kv_unified: Some(true),
        n_threads: options.n_threads,
        n_threads_batch: options.n_threads,
        flash_attention: options.flash_attention,
        kernels: options.kernels,
        ..EngineConfig::default()
    };
    llama::start(model, &config).map_err(|error| error.to_string())
}

/// Converts a client's `arrival` to a request.
pub(super) fn request(arrival: &Arrival) -> Request {
    let number = |n: usize| u32::try_from(n).expect("the bench asks for few tokens");
    let mut request = Request::new(Prompt::from_tokens(arrival.prompt.clone()), 0);
    request.n = number(arrival.n);
    request.max_tokens = Some(number(arrival.n_predict));
    request.sampling = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
    request
}
