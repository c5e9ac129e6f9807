//! Drafts of a draft model, by their length, and as the engine chooses it.
//!
//! Every step drafts `k` tokens, whatever they cost, for each `k`. That gives the acceptance by position, the time of a pass of the
//! draft model and of the steps that verify. The formula expects `e(k) × t(0) ÷ (t(k) + n(k) × p)` times the speed without drafts,
//! where `e(k)` is one more than the expected number of accepted tokens, `t(k)` the time of a step without the draft model, `n(k)`
//! the number of its passes, and `p` the time of a pass. The draft model needs `k` passes, and one more if all tokens of the last
//! draft were accepted, to read the last one. The last row is the engine with its default settings: it must draft where the formula gains, and stop where
//! it loses.

use std::path::Path;
use std::sync::Arc;

use weft::config::{DraftModelConfig, KernelChoice, ModelConfig, SpeculationConfig, SpeculationMode};
use weft::engine::{DraftSource, Engine, N_DRAFT_POSITIONS, Stats};
use weft::llama::Model;
use weft::request::{Prompt, Request, SamplingParams};

use crate::run::{Run, start_with, without_drafts};
use crate::support::options::Options;
use crate::support::spread::Spread;
use crate::texts;

const LENGTHS: [u32; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

/// Streams, and the tokens of each.
const STREAMS: [(u32, u32); 2] = [(1, 400), (8, 200)];

const N_ROUNDS: usize = 5;

/// Runs with drafts of one length.
#[derive(Debug, Default)]
struct Measured {
    tokens_per_s: f64,
    /// Mean milliseconds of a step, without the draft model.
    step_ms: f64,
    /// Mean milliseconds of the draft model in a step.
    model_ms: f64,
    /// Tokens of a stream in a step.
    n_emitted: f64,
    n_drafts: u64,
    n_drafted: u64,
    n_accepted: u64,
    n_steps: u64,
    /// Share of drafts of which the token at a position was accepted, with all before it.
    survival: Vec<f64>,
}

/// Prints the tables of one model with the draft model at `path`.
///
/// # Errors
/// A message, if a model does not load, the engine fails, or an output differs.
pub(crate) fn measure(target: &Path, path: &Path, options: &Options) -> Result<(), String> {
    let draft = DraftModelConfig { path: Some(path.to_owned()), n_gpu_layers: Some(0), ..DraftModelConfig::default() };
    let config = ModelConfig {
        n_gpu_layers: Some(0),
        kernels: KernelChoice::Weft,
        draft: Some(draft),
        ..ModelConfig::at(target.to_owned())
    };
    let model = Model::load(&config, |_| {}).map(Arc::new).map_err(|error| error.to_string())?;
    println!("drafts of {}", path.display());
    for (n_streams, n_tokens) in STREAMS {
        for (name, temperature) in [("greedy", 0.0), ("sampled at temperature 0.8", 0.8)] {
            println!("\n{n_streams} streams, {name}");
            let requests = requests(&model, n_streams, n_tokens, temperature)?;
            table(&model, options, &requests)?;
        }
    }
    Ok(())
}

fn table(model: &Arc<Model>, options: &Options, requests: &[Request]) -> Result<(), String> {
    let n_streams = u32::try_from(requests.len()).map_err(|error| error.to_string())?;
    let n_ctx = 1024 * n_streams;
    let speculation =
        SpeculationConfig { max_draft: Some(16), row_percent: Some(0), ..SpeculationConfig::from(SpeculationMode::Auto) };
    let forced = start_with(model, options, n_streams, n_ctx, speculation)?;
    let gated = start_with(model, options, n_streams, n_ctx, SpeculationMode::Auto.into())?;
    let limits = forced.limits();
    let fits = |k: &u32| n_streams * (k + 1) <= limits.n_ubatch.min(limits.n_outputs);
    let lengths: Vec<u32> = LENGTHS.into_iter().filter(fits).collect();
    let n_rounds = if options.is_quick { 1 } else { N_ROUNDS };
    let mut runs: Vec<Vec<Measured>> = (0..lengths.len() + 2).map(|_| Vec::new()).collect();
    let with = |k: u32| requests.iter().map(move |request| with_length(request, k)).collect::<Vec<_>>();
    let expected = Run::of(&forced, requests.iter().cloned().map(without_drafts).collect())?.tokens;
    for round in 0..n_rounds {
        // The text of an earlier round would be drafted instead.
        let owner = Some(Arc::from(format!("{round}")));
        let owned =
            |requests: Vec<Request>| requests.into_iter().map(|request| Request { owner: owner.clone(), ..request }).collect();
        runs[0].push(run(&forced, owned(with(0)), &expected)?);
        for (nth, &k) in (1..).zip(&lengths) {
            runs[nth].push(run(&forced, owned(with(k)), &expected)?);
        }
        runs[lengths.len() + 1].push(run(&gated, owned(requests.to_vec()), &expected)?);
    }
    let medians: Vec<Measured> = runs.iter().map(|runs| median(runs)).collect();
    print(n_streams, &lengths, &medians);
    Ok(())
}

fn print(n_streams: u32, lengths: &[u32], medians: &[Measured]) {
    let n_streams = n_streams.cast_signed();
    let (off, longest) = (&medians[0], &medians[lengths.len()]);
    let n_passes = |k: u32| f64::from(k) + 1.0 - (1.0 - longest.survival[k as usize - 1]).powi(n_streams);
    let passes = medians[1..=lengths.len()].iter().zip(lengths).map(|(run, &k)| run.model_ms / n_passes(k));
    let pass_ms = Spread::of(&passes.collect::<Vec<_>>()).median;
    println!(
        "a pass of the draft model takes {pass_ms:.3} ms, {:.2} of a step without drafts ({:.3} ms)",
        pass_ms / off.step_ms,
        off.step_ms
    );
    println!("length │ accepted of drafted │ tokens per step │ step, ms  draft model, ms │ tokens/s      ×  expected ×");
    println!(
        "{:>6} │ {:>19} │ {:>15.2} │ {:>8.3} {:>16.3} │ {:>8.0} {:>6.2}",
        0, "", off.n_emitted, off.step_ms, off.model_ms, off.tokens_per_s, 1.0
    );
    let mut best = (0, 1.0);
    for (run, &k) in medians[1..].iter().zip(lengths) {
        let n_expected = 1.0 + longest.survival.iter().take(k as usize).sum::<f64>();
        let expected = n_expected * off.step_ms / (run.step_ms + n_passes(k) * pass_ms);
        if expected > best.1 {
            best = (k, expected);
        }
        print_row(&k.to_string(), run, off, &format!("{expected:>11.2}"));
    }
    let chosen = &medians[lengths.len() + 1];
    print_row("chosen", chosen, off, &format!("{:>11.2}", best.1));
    println!(
        "best by the formula: {}; the engine drafted {:.2} tokens per step of a stream, in {:.0} % of its steps",
        best.0,
        chosen.n_drafted as f64 / chosen.n_steps as f64,
        100.0 * (chosen.n_drafts as f64 / chosen.n_steps as f64).min(1.0)
    );
}

fn print_row(name: &str, run: &Measured, off: &Measured, expected: &str) {
    let share = 100.0 * run.n_accepted as f64 / run.n_drafted.max(1) as f64;
    println!(
        "{name:>6} │ {:>5} of {:<5} {share:>3.0} % │ {:>15.2} │ {:>8.3} {:>16.3} │ {:>8.0} {:>6.2} {expected}",
        run.n_accepted,
        run.n_drafted,
        run.n_emitted,
        run.step_ms,
        run.model_ms,
        run.tokens_per_s,
        run.tokens_per_s / off.tokens_per_s
    );
}

fn with_length(request: &Request, k: u32) -> Request {
    let mut request = request.clone();
    request.speculation.max_draft = Some(k);
    request
}

fn run(engine: &Engine, requests: Vec<Request>, expected: &[Vec<weft::request::Token>]) -> Result<Measured, String> {
    let n_streams = requests.len();
    let before = engine.stats();
    let run = Run::of(engine, requests)?;
    let after = engine.stats();
    if run.tokens != expected {
        return Err("drafts changed an output".to_owned());
    }
    let of = |stats: &Stats| stats.speculation.by_source[DraftSource::Model as usize];
    let (old, new) = (of(&before), of(&after));
    let n_steps = run.n_steps.max(1) as f64;
    let model_ms = new.time.saturating_sub(old.time).as_secs_f64() * 1e3 / n_steps;
    let n_drafts = new.n_drafts - old.n_drafts;
    let at = |position: usize| after.speculation.n_accepted_at[position] - before.speculation.n_accepted_at[position];
    let n_tokens: usize = run.tokens.iter().map(|tokens| tokens.len() - 1).sum();
    Ok(Measured {
        tokens_per_s: run.tokens_per_s,
        step_ms: run.step_ms - model_ms,
        model_ms,
        n_emitted: n_tokens as f64 / n_streams as f64 / n_steps,
        n_drafts,
        n_drafted: new.n_drafted - old.n_drafted,
        n_accepted: new.n_accepted - old.n_accepted,
        // Of all streams together.
        n_steps: run.n_steps * n_streams as u64,
        survival: (0..N_DRAFT_POSITIONS).map(|position| at(position) as f64 / n_drafts.max(1) as f64).collect(),
    })
}

/// Returns the medians of times; the counts of all rounds are nearly equal, and those of the last one are returned.
fn median(runs: &[Measured]) -> Measured {
    let of = |value: &dyn Fn(&Measured) -> f64| Spread::of(&runs.iter().map(value).collect::<Vec<_>>()).median;
    let last = runs.last().expect("there is a round");
    Measured {
        tokens_per_s: of(&|run| run.tokens_per_s),
        step_ms: of(&|run| run.step_ms),
        model_ms: of(&|run| run.model_ms),
        n_emitted: of(&|run| run.n_emitted),
        survival: last.survival.clone(),
        ..*last
    }
}

fn requests(model: &Model, n_streams: u32, n_tokens: u32, temperature: f32) -> Result<Vec<Request>, String> {
    let request = |seed| {
        let prompt = texts::tokenize(model, &format!("{} Chapter {seed}.", texts::STORY))?;
        let sampling = SamplingParams { temperature, ignore_eos: true, ..SamplingParams::default() };
        let (prompt, max_tokens) = (Prompt::from_tokens(prompt), Some(n_tokens));
        Ok::<_, String>(Request { max_tokens, sampling, ..Request::new(prompt, seed) })
    };
    (0..n_streams).map(request).collect()
}
