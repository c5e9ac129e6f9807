//! Speed by acceptance. The drafts are the recorded output, of which a share is replaced, so that the output stays equal; their length
//! is chosen as always.
//!
//! The best length that the costs allow is computed: steps with drafts of `k` tokens for each stream are timed, and tokens are accepted
//! independently at the given rate. The speed with this `k`, 0 included, is the bound; its runs take turns with those of the engine's
//! choice, and replace the same tokens.

use std::sync::Arc;

use weft::engine::Engine;
use weft::llama::Model;
use weft::request::{Prompt, Replay, Request, SamplingParams, Speculation, Token};

use crate::run::{Run, start, without_drafts};
use crate::support::options::Options;
use crate::support::spread::Spread;
use crate::texts;

const ACCEPTANCES: [f64; 6] = [0.5, 0.6, 0.7, 0.8, 0.9, 0.95];

const LENGTHS: [u32; 9] = [1, 2, 3, 4, 6, 8, 10, 12, 16];

/// Streams, and the tokens of each.
const STREAMS: [(u32, u32); 3] = [(1, 320), (8, 128), (32, 64)];

const N_ROUNDS: usize = 6;

/// Runs by which the steps of a length are timed.
const N_STEP_ROUNDS: usize = 2;

/// Prints the table of one model, for `only` this number of streams if it is given.
///
/// # Errors
/// A message, if the engine fails.
pub(crate) fn measure(model: &Arc<Model>, options: &Options, only: Option<u32>) -> Result<(), String> {
    let n_rounds = if options.is_quick { 3 } else { N_ROUNDS };
    println!("streams  acceptance │ tokens/s  off       on      × │ drafted per step and stream │ best k   on ÷ best");
    for (n_streams, n_tokens) in STREAMS.into_iter().filter(|(n_streams, _)| only.is_none_or(|only| only == *n_streams)) {
        let engine = start(model, options, n_streams, n_streams * (n_tokens + 128))?;
        let requests = requests(model, n_streams, n_tokens)?;
        let recorded = Run::of(&engine, requests.iter().cloned().map(without_drafts).collect())?;
        let step_ms = steps_by_length(&engine, &requests, &recorded.tokens)?;
        for acceptance in ACCEPTANCES.into_iter().step_by(if options.is_quick { 2 } else { 1 }) {
            let rate = |&(k, ms): &(u32, f64)| (1.0 - acceptance.powi(k.cast_signed() + 1)) / (1.0 - acceptance) / ms;
            let (best, _) = *step_ms.iter().max_by(|a, b| rate(a).total_cmp(&rate(b))).expect("there are lengths");
            let modes = [Some(0), None, Some(best)];
            let mut rounds: [Vec<f64>; 5] = Default::default();
            for round in 0..n_rounds {
                let mut runs: [Run; 3] = Default::default();
                // Each mode is the first one equally often.
                for nth in (0..modes.len()).map(|nth| (nth + round) % modes.len()) {
                    runs[nth] = Run::of(&engine, replaying(&requests, &recorded.tokens, acceptance, modes[nth]))?;
                    if runs[nth].tokens != recorded.tokens {
                        return Err("drafts changed an output".to_owned());
                    }
                }
                let [off, on, fixed] = [&runs[0], &runs[1], &runs[2]].map(|run| run.tokens_per_s);
                let length = runs[1].n_drafted as f64 / (runs[1].n_steps * u64::from(n_streams)) as f64;
                let figures = [off, on, on / off, length, on / fixed];
                rounds.iter_mut().zip(figures).for_each(|(values, value)| values.push(value));
            }
            let [off, on, gain, length, of_best] = rounds.map(|values| Spread::of(&values).median);
            println!(
                "{n_streams:>7}  {acceptance:>10} │ {off:>13.1} {on:>8.1} {gain:>6.2} │ {length:>27.2} │ {best:>6} {of_best:>11.2}"
            );
        }
    }
    Ok(())
}

/// Returns the milliseconds of a step by the length of the drafts of all streams, from 0 on.
fn steps_by_length(engine: &Engine, requests: &[Request], recorded: &[Vec<Token>]) -> Result<Vec<(u32, f64)>, String> {
    let limits = engine.limits();
    let n_streams = u32::try_from(requests.len()).map_err(|error| error.to_string())?;
    let fits = |k: &u32| n_streams * (k + 1) <= limits.n_ubatch.min(limits.n_outputs);
    // The first token is not drafted.
    let n_tokens = u32::try_from(recorded[0].len() - 1).map_err(|error| error.to_string())?;
    let lengths: Vec<u32> = [0].into_iter().chain(LENGTHS).filter(fits).collect();
    let mut times_ms = vec![Vec::new(); lengths.len()];
    for _ in 0..N_STEP_ROUNDS {
        for (&k, times_ms) in lengths.iter().zip(&mut times_ms) {
            let rate = Run::of(engine, replaying(requests, recorded, 1.0, Some(k)))?.tokens_per_s;
            let seconds = f64::from(n_streams * n_tokens) / rate;
            times_ms.push(1e3 * seconds / f64::from(n_tokens.div_ceil(k + 1)));
        }
    }
    let all: Vec<(u32, f64)> = lengths.into_iter().zip(times_ms.iter().map(|times_ms| Spread::of(times_ms).median)).collect();
    let shown: Vec<String> = all.iter().map(|(k, ms)| format!("{k}: {ms:.1}  ")).collect();
    println!("         ms of a step by k: {}", shown.concat());
    Ok(all)
}

/// Returns the requests with drafts of their recorded outputs: of `k` tokens, or of as many as the engine chooses.
fn replaying(requests: &[Request], recorded: &[Vec<Token>], acceptance: f64, k: Option<u32>) -> Vec<Request> {
    let with_drafts = |(request, tokens): (&Request, &Vec<Token>)| {
        let replay = Replay {
            branches: vec![tokens.clone()],
            error_rate: 1.0 - acceptance,
            seed: u64::from(request.seed),
            is_forced: k.is_some(),
        };
        let speculation = Speculation { max_draft: k, replay: Some(Arc::new(replay)), ..Speculation::default() };
        Request { speculation, ..request.clone() }
    };
    requests.iter().zip(recorded).map(with_drafts).collect()
}

fn requests(model: &Model, n_streams: u32, n_tokens: u32) -> Result<Vec<Request>, String> {
    let request = |seed| {
        let prompt = texts::tokenize(model, &format!("{} Chapter {seed}.", texts::STORY))?;
        let sampling = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
        let (prompt, max_tokens) = (Prompt::from_tokens(prompt), Some(n_tokens));
        Ok::<_, String>(Request { max_tokens, sampling, ..Request::new(prompt, seed) })
    };
    (0..n_streams).map(request).collect()
}
