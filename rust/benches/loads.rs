//! Loads as clients experience them: Weft at its defaults, in process and over HTTP, against bare loops with llama-server's
//! algorithm.
//!
//! `cargo bench --bench loads` takes about fifteen minutes, most of which is llama.cpp's prefill; `-- --quick` about two, with
//! shorter prompts. A load runs with each of llama-server's settings of attention and cells (`server/slots.rs`); a setting that
//! takes longer than the best so far is aborted, except for the default, which always runs to its end. The bare loops send no
//! text, sample nothing and serve no HTTP: a real llama-server is slower.
#![allow(clippy::print_stdout, reason = "a bench answers on the standard output")]
#![allow(clippy::print_stderr, reason = "and says there what is wrong")]
#![allow(clippy::cast_precision_loss, reason = "a bench's counts are small")]

#[allow(dead_code, reason = "the bench of decoding, which shares this folder, uses all of it")]
mod support;

#[allow(dead_code, reason = "the bench of sharing, which shares this folder, uses all of it")]
mod measures {
    pub(crate) mod watch;
}

mod server;

use std::env;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use server::load::{Arrival, Figure, Load, Trace};
use server::priorities::{self, Batch};
use server::slots::{self, ALL_FLAGS};
use support::bare_model::{BareModel, WeightLayout};
use support::models::{self, Candidate};
use support::options::{self, Help, Options};
use support::setup::{Origin, Threads};
use support::spread::Spread;
use support::{kernels, machine, synthetic};
use weft::llama::Model;

const HELP: Help = Help {
    bench: "loads",
    quick: "a quarter of each prompt and of each text",
    flash_attention: "of the engine, in place of what it chooses",
    own: "  --load N                         only the load of this number
  --no-http                        the engine alone, without a server
  --no-llama-server                Weft alone: llama-server's loop takes most of the time
",
};

fn main() -> ExitCode {
    let mut own = Own { only: None, wants_http: true, wants_loop: true };
    let options = options::parse(&HELP, env::args().skip(1), |flag, value| {
        match flag {
            "--load" => {
                let given = value()?;
                own.only = Some(given.parse().map_err(|_| format!("--load is {given:?}; it must be a number"))?);
            }
            "--no-http" => own.wants_http = false,
            "--no-llama-server" => own.wants_loop = false,
            _ => return Ok(false),
        }
        Ok(true)
    });
    options::run(&HELP, options, |options| bench(options, &own))
}

/// Options of this benchmark.
struct Own {
    /// Runs only the load with this number.
    only: Option<usize>,
    wants_http: bool,
    wants_loop: bool,
}

fn bench(options: &Options, own: &Own) -> Result<(), String> {
    let started = Instant::now();
    let candidates = models::chosen(&options.name)?;
    let (_, kernels) = kernels::install();
    println!("loads: Weft against bare loops that do what llama-server does, in one run");
    machine::describe(options.n_threads);
    println!("  kernels of ours {kernels}");
    let has_http = own.wants_http && server::http::is_built();
    if own.wants_http && !has_http {
        println!("  no HTTP         `python -m weft` does not start; `make extension` builds it");
    }
    let mut number = 0;
    for candidate in candidates {
        let is_large = candidate.path == synthetic::HALF_Q8_0.path();
        println!("\n{}", candidate.name);
        println!("  {:<76} │ llama-server's loop               │ Weft", "");
        println!("  {:<76} │  default      best  with          │    engine ÷ def. ÷ best │ over HTTP ÷ def. ÷ best", "load");
        let sides = Sides::load(&candidate, options, [own.wants_loop, has_http])?;
        for load in loads(is_large, options.is_quick) {
            number += 1;
            if own.only.is_none_or(|only| only == number) {
                sides.measure(number, &load)?;
            }
        }
        number += 1;
        if own.only.is_none_or(|only| only == number) {
            println!("\n  {number}. What a priority is worth");
            priorities::measure(&sides.model, options, &batch(is_large, options.is_quick))?;
        }
    }
    println!(
        "\n÷: times over times, or speed over speed: below 1 Weft is faster where a time is shown, above 1 where it is a speed"
    );
    println!("all of it took {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// Returns the loads of the large model, which resembles models in production, or of the small one.
fn loads(is_large: bool, is_quick: bool) -> Vec<Load> {
    let part = if is_quick { 4 } else { 1 };
    let request = |place, n_shared: usize, n_own: usize, n, n_predict: usize| Arrival {
        prompt: prompt(place, n_shared / part, (n_own / part).max(1)),
        n,
        n_predict: n_predict / part,
    };
    let alone = |title: &str, figures, first| Load { title: title.to_owned(), first, then: Vec::new(), figures };
    if !is_large {
        let streams = (0..32).map(|place| request(place, 0, 64, 1, 200)).collect();
        return vec![alone("32 streams of 200 tokens", &[Figure::TokensPerS], streams)];
    }
    let times = &[Figure::WallTime];
    let prompts = || (8..12).map(|place| request(place, 0, 1_300, 1, 4)).collect::<Vec<_>>();
    let concurrent = |n_streams: usize| Load {
        title: format!("{n_streams} streams while four prompts of 1,300 tokens arrive"),
        first: (0..n_streams).map(|place| Arrival { n_predict: 4_000, ..request(place, 0, 64, 1, 0) }).collect(),
        then: prompts(),
        figures: &[Figure::PromptsTime, Figure::Pause(0.5), Figure::Pause(0.99), Figure::Pause(1.0)],
    };
    vec![
        alone(
            "16 requests that share 877 tokens, together",
            times,
            (0..16).map(|place| request(place, 877, 16, 1, 32)).collect(),
        ),
        concurrent(1),
        concurrent(8),
        alone("the same four prompts, nobody writing", &[Figure::PromptsTime], prompts()),
        alone("32 branches of a prompt of 1,000 tokens", times, vec![request(0, 0, 1_000, 32, 64)]),
        alone(
            "8 streams, each with a prompt of 1,250 tokens",
            times,
            (0..8).map(|place| request(place, 0, 1_250, 1, 64)).collect(),
        ),
        alone(
            "32 short streams of their own",
            &[Figure::TokensPerS],
            (0..32).map(|place| request(place, 0, 32, 1, 96)).collect(),
        ),
    ]
}

/// Returns a queue of 64 requests, and short requests that arrive while it is processed. Their intervals are chosen such that
/// the queue lasts.
fn batch(is_large: bool, is_quick: bool) -> Batch {
    let part = if is_quick { 4 } else { 1 };
    let request = |place, n_own: usize, n_predict: usize| Arrival {
        prompt: prompt(place, 0, n_own / part),
        n: 1,
        n_predict: n_predict / part,
    };
    Batch {
        requests: (0..64).map(|place| request(place, 200, 100)).collect(),
        short: (64..100).map(|place| request(place, 100, 16)).collect(),
        every: Duration::from_millis(if is_large { 400 } else { 8 }) / u32::try_from(part * part).unwrap_or(1),
    }
}

/// Returns a prompt that shares its first `n_shared` tokens with all others, and no further ones.
fn prompt(place: usize, n_shared: usize, n_own: usize) -> Vec<i32> {
    // In the vocabularies used here, special tokens and byte pieces come first, and more than 2,000 others follow.
    let token = |number: usize| i32::try_from(300 + number.wrapping_mul(7_919) % 1_700).expect("a remainder of 1,700");
    (0..n_shared).map(token).chain((0..n_own).map(|at| token(n_shared + at + (place + 1) * 97))).collect()
}

/// A load starts no further round after this time, or after this number of rounds.
const ROUNDS: Duration = Duration::from_secs(10);
const MAX_ROUNDS: usize = 3;

/// The sides that run the loads.
struct Sides<'a> {
    bare: BareModel,
    threads: Threads,
    model: Arc<Model>,
    path: &'a Path,
    options: &'a Options,
    has_loop: bool,
    has_http: bool,
}

impl<'a> Sides<'a> {
    fn load(candidate: &'a Candidate, options: &'a Options, [has_loop, has_http]: [bool; 2]) -> Result<Self, String> {
        let n = options.n_threads.unwrap_or_else(machine::n_cores);
        Ok(Self {
            bare: BareModel::load(&candidate.path, WeightLayout::Repacked)?,
            // llama-server keeps its thread pools too.
            threads: Threads { n, origin: Origin::Kept },
            model: models::load(&candidate.path, options.kernels)?,
            path: &candidate.path,
            options,
            has_loop,
            has_http,
        })
    }

    /// Runs llama-server's loop at its default, and returns that and the fastest configuration.
    fn run_llama_server(&self, load: &Load) -> Result<[(Vec<Trace>, &'static str); 2], String> {
        let mut ended: Vec<(Vec<Trace>, &str)> = Vec::new();
        let mut best_s = f64::INFINITY;
        for (flags, name) in ALL_FLAGS {
            if let Some(traces) = slots::run((&self.bare, self.threads), flags, load, best_s)? {
                best_s = best_s.min(Figure::WallTime.of(load, &traces));
                ended.push((traces, name));
            }
        }
        let best = ended.iter().min_by(|(a, _), (b, _)| Figure::WallTime.of(load, a).total_cmp(&Figure::WallTime.of(load, b)));
        let best = best.ok_or("the default of llama-server did not end")?.clone();
        Ok([ended.swap_remove(0), best])
    }

    /// Prints a row per figure of the load: medians over the rounds, of which a long load has one.
    fn measure(&self, nth: usize, load: &Load) -> Result<(), String> {
        let figures_of = |traces: &[Trace]| -> Vec<f64> { load.figures.iter().map(|figure| figure.of(load, traces)).collect() };
        let mut rounds: [Vec<Vec<f64>>; 4] = Default::default();
        let mut best_flags = "";
        let started = Instant::now();
        while rounds[2].is_empty() || rounds[2].len() < MAX_ROUNDS && started.elapsed() < ROUNDS {
            let [default, best] = if self.has_loop { self.run_llama_server(load)?.map(Some) } else { [None, None] };
            best_flags = best.as_ref().map_or("", |best| best.1);
            let engine = server::engine::run(&self.model, self.options, load)?;
            let http = self.has_http.then(|| server::http::run(self.path, self.options, load)).transpose()?;
            let [default, best] = [default, best].map(|side| side.map(|side| side.0));
            let all = [default, best, Some(engine), http];
            for (side, traces) in rounds.iter_mut().zip(all) {
                side.extend(traces.map(|traces| figures_of(&traces)));
            }
        }
        for (place, figure) in load.figures.iter().enumerate() {
            let median = |side: &Vec<Vec<f64>>| {
                let figures: Vec<f64> = side.iter().map(|round| round[place]).collect();
                if figures.is_empty() { f64::NAN } else { Spread::of(&figures).median }
            };
            let [default, best, engine] = [0, 1, 2].map(|side| median(&rounds[side]));
            // Figures that were not measured are left blank.
            let number = |figure: f64, width: usize| {
                if figure.is_nan() { " ".repeat(width) } else { format!("{figure:>width$.2}") }
            };
            let show = |ours: f64| [number(ours, 10), number(ours / default, 6), number(ours / best, 6)].join(" ");
            let http = if rounds[3].is_empty() { String::new() } else { show(median(&rounds[3])) };
            let title = format!("{nth}. {}: {}", load.title, figure.title());
            let [default, best] = [default, best].map(|figure| number(figure, 9));
            println!("  {title:<76} │{default} {best}  {best_flags:<13} │{} │{http}", show(engine));
        }
        Ok(())
    }
}
