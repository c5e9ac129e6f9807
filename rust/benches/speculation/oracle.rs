//! Speed by acceptance. The drafts are the recorded output, of which a share is replaced, so that the output stays equal; their length
//! is chosen as always.
//!
//! The best that the costs allow is computed: steps with drafts of `k` tokens for each stream are timed, and tokens are accepted
//! independently at the given rate. The best `k` of all, 0 included, is the bound.

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
const STREAMS: [(u32, u32); 3] = [(1, 192), (8, 128), (32, 64)];

const N_ROUNDS: usize = 3;

/// Prints the table of one model.
///
/// # Errors
/// A message, if the engine fails.
pub(crate) fn measure(model: &Arc<Model>, options: &Options) -> Result<(), String> {
    let n_rounds = if options.is_quick { 1 } else { N_ROUNDS };
    println!("streams  acceptance │ tokens/s  off       on      × │ drafted per step and stream │ best k   on ÷ best");
    for (n_streams, n_tokens) in STREAMS {
        let engine = start(model, options, n_streams, n_streams * (n_tokens + 128))?;
        let requests = requests(model, n_streams, n_tokens)?;
        let recorded = Run::of(&engine, requests.iter().cloned().map(without_drafts).collect())?;
        let step_ms = steps_by_length(&engine, &requests, &recorded.tokens)?;
        for acceptance in ACCEPTANCES {
            let (mut off, mut on, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..n_rounds {
                off.push(Run::of(&engine, requests.iter().cloned().map(without_drafts).collect())?.tokens_per_s);
                let run = Run::of(&engine, replaying(&requests, &recorded.tokens, acceptance, None))?;
                if run.tokens != recorded.tokens {
                    return Err("drafts changed an output".to_owned());
                }
                lengths.push(run.n_drafted as f64 / (run.n_steps * u64::from(n_streams)) as f64);
                on.push(run.tokens_per_s);
            }
            let [off, on, length] = [off, on, lengths].map(|values| Spread::of(&values).median);
            // Relative to a step without drafts as measured by turns with the others.
            let gain = |&(k, ms): &(u32, f64)| {
                let n_expected = (1.0 - acceptance.powi(k.cast_signed() + 1)) / (1.0 - acceptance);
                n_expected * step_ms[0].1 / ms
            };
            let best = step_ms.iter().max_by(|a, b| gain(a).total_cmp(&gain(b))).expect("there are lengths");
            println!(
                "{n_streams:>7}  {acceptance:>10} │ {off:>13.1} {on:>8.1} {:>6.2} │ {length:>27.2} │ {:>6} {:>11.2}",
                on / off,
                best.0,
                on / off / gain(best)
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
    let mut all = Vec::new();
    for k in [0].into_iter().chain(LENGTHS).filter(fits) {
        let mut rate = 0.0_f64;
        for _ in 0..2 {
            rate = rate.max(Run::of(engine, replaying(requests, recorded, 1.0, Some(k)))?.tokens_per_s);
        }
        let seconds = f64::from(n_streams * n_tokens) / rate;
        all.push((k, 1e3 * seconds / f64::from(n_tokens.div_ceil(k + 1))));
    }
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
