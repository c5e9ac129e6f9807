//! Loads with drafts from text and constraints, off and on by turns.

use std::sync::Arc;

use weft::engine::Engine;
use weft::grammar::to_gbnf;
use weft::llama::Model;
use weft::request::{Prompt, Request, SamplingParams};

use crate::run::{Run, start, without_drafts};
use crate::support::options::Options;
use crate::support::spread::Spread;
use crate::texts;

/// Cells of all loads.
const N_CTX: u32 = 32_768;

/// Requests that run at the same time.
struct Load {
    name: &'static str,
    requests: Vec<Request>,
    n_rounds: usize,
}

/// Prints the table of one model.
///
/// # Errors
/// A message, if the engine fails.
pub(crate) fn measure(model: &Arc<Model>, options: &Options) -> Result<(), String> {
    let engine = start(model, options, 32, N_CTX)?;
    print_head();
    loads(model)?.iter().try_for_each(|load| {
        let n_rounds = if options.is_quick { 1 } else { load.n_rounds };
        compare(&engine, load.name, &load.requests, n_rounds)
    })
}

pub(crate) fn print_head() {
    println!(
        "{:<34} │ tokens/s off      on      × │ slowest stream × │ accepted of drafted tokens │ longest gap, ms off      on │ planning of a \
         step, µs off      on, of ms │ index",
        ""
    );
}

/// Runs requests at the same time without drafts and with them, several times, and prints the medians.
///
/// # Errors
/// A message, if the engine fails, or an output differs.
pub(crate) fn compare(engine: &Engine, name: &str, requests: &[Request], n_rounds: usize) -> Result<(), String> {
    let mut runs: [Vec<Run>; 2] = Default::default();
    for round in 0..n_rounds {
        // No text of an earlier round is drafted. The runs without drafts add none.
        let owner = Some(Arc::from(format!("{name} {round}")));
        let requests: Vec<Request> = requests.iter().map(|request| Request { owner: owner.clone(), ..request.clone() }).collect();
        let without: Vec<Request> = requests.iter().cloned().map(without_drafts).collect();
        // Each is the first one equally often, as the second finds the prompts in the cache.
        let mut modes = [(0, without), (1, requests)];
        modes.rotate_left(round % 2);
        for (mode, requests) in modes {
            runs[mode].push(Run::of(engine, requests)?);
        }
        if runs[0][round].tokens != runs[1][round].tokens {
            return Err(format!("{name}: drafts changed an output"));
        }
    }
    print(name, &runs);
    Ok(())
}

/// Prints a row.
pub(crate) fn print(name: &str, [off, on]: &[Vec<Run>; 2]) {
    let median = |runs: &[Run], of: &dyn Fn(&Run) -> f64| Spread::of(&runs.iter().map(of).collect::<Vec<_>>()).median;
    let ratio =
        |of: &dyn Fn(&Run, &Run) -> f64| Spread::of(&off.iter().zip(on).map(|(off, on)| of(off, on)).collect::<Vec<_>>()).median;
    let slowest = |off: &Run, on: &Run| {
        off.rates.iter().zip(&on.rates).map(|(off, on)| on / off).filter(|ratio| ratio.is_finite()).fold(f64::INFINITY, f64::min)
    };
    let [n_accepted, n_drafted] =
        [|run: &Run| run.n_accepted, |run: &Run| run.n_drafted].map(|of| on.iter().map(of).sum::<u64>() / on.len() as u64);
    let acceptance = on.last().and_then(Run::acceptance).map_or_else(String::new, |share| format!("{share:.0} %"));
    println!(
        "{name:<34} │ {:>12.1} {:>7.1} {:>6.2} │ {:>16.2} │ {n_accepted:>9} of {n_drafted:<7} {acceptance:>5} │ {:>19.1} {:>7.1} │ {:>25.0} {:>7.0} {:>6.1} │ {:>4} KiB",
        median(off, &|run| run.tokens_per_s),
        median(on, &|run| run.tokens_per_s),
        ratio(&|off, on| on.tokens_per_s / off.tokens_per_s),
        ratio(&slowest),
        median(off, &|run| run.longest_gap_ms),
        median(on, &|run| run.longest_gap_ms),
        median(off, &|run| run.plan_ms * 1e3),
        median(on, &|run| run.plan_ms * 1e3),
        median(on, &|run| run.step_ms),
        on.last().map_or(0, |run| run.n_index_bytes >> 10),
    );
}

fn loads(model: &Model) -> Result<Vec<Load>, String> {
    let prompt = |text: &str| texts::tokenize(model, text).map(Prompt::from_tokens);
    let greedy = SamplingParams { temperature: 0.0, ignore_eos: true, ..SamplingParams::default() };
    let sampled = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
    let copy = |nth: u32| {
        let prompt = prompt(&format!("{nth}.\n\n{0}\n{nth}.\n\n{0}\n{nth}.\n\n", texts::REPORT))?;
        Ok::<_, String>(Request { max_tokens: Some(300), sampling: greedy.clone(), ..Request::new(prompt, nth) })
    };
    let prose = |nth: u32, n_tokens: u32| {
        let question = texts::QUESTIONS[nth as usize % texts::QUESTIONS.len()];
        let prompt = prompt(&texts::chat(&format!("{nth}. {question}")))?;
        Ok::<_, String>(Request { max_tokens: Some(n_tokens), sampling: sampled.clone(), ..Request::new(prompt, nth) })
    };
    let json = |seed: u32| {
        let grammar = to_gbnf(texts::CUSTOMER).map_err(|error| error.to_string())?;
        let constraint = Some(model.grammar(&grammar).map_err(|error| error.to_string())?);
        let prompt = prompt(&texts::chat(&format!("{seed}. {}", texts::CUSTOMER_QUESTION)))?;
        Ok::<_, String>(Request { max_tokens: Some(400), constraint, ..Request::new(prompt, seed) })
    };
    let streams = |n: u32, n_tokens: u32| (0..n).map(|nth| prose(nth, n_tokens)).collect::<Result<Vec<_>, _>>();
    let mixed: Result<Vec<Request>, String> = (0..8).map(|nth| if nth % 2 == 0 { copy(nth) } else { prose(nth, 150) }).collect();
    Ok(vec![
        Load { name: "one stream copies 300 tokens", requests: vec![copy(0)?], n_rounds: 6 },
        Load { name: "one stream, JSON by a schema", requests: vec![json(1)?], n_rounds: 6 },
        Load { name: "one stream of prose", requests: streams(1, 200)?, n_rounds: 12 },
        Load { name: "8 streams of prose", requests: streams(8, 150)?, n_rounds: 12 },
        Load { name: "32 streams of prose", requests: streams(32, 100)?, n_rounds: 6 },
        Load { name: "4 streams copy, 4 of prose", requests: mixed?, n_rounds: 6 },
    ])
}
