//! Speed of a step: llama.cpp in each configuration that its users can choose, the same loop with our kernels, the engine at
//! its defaults, and the limit of the machine.
//!
//! `cargo bench --bench decode` takes less than fifteen minutes, `-- --quick` about a minute and a half. All sides run
//! round-robin, several times in one process, and a ratio is the median over the rounds, because the drift of a shared machine
//! exceeds the differences of interest.
//!
//! - The grid: {1, 2, 4, 8, 32} sequences with {16, 250, 1,000, 4,000} tokens before their first step, with shared or separate
//!   cells; eight streams with idle cells in the cache. Only decoding is timed. The cells are reloaded beforehand
//!   (`support/stretch.rs`).
//! - Prefill of 512 and 2,048 tokens, in an empty cache and in one with cells of other sequences.
//! - The engine against a bare loop of the same configuration, which shows the overhead around the decode.
//!
//! llama.cpp's configurations are flash attention on and off with unified cells, and off with a stream per sequence, which is
//! its best configuration if nothing is shared; if its default is to repack weights, with both layouts. `support/roofline.rs`
//! computes the limit of each row; `tables/aims.rs` has the targets of the figures.
#![allow(clippy::print_stdout, reason = "a bench answers on the standard output")]
#![allow(clippy::print_stderr, reason = "and says there what is wrong")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a bench's counts are small"
)]

mod support;

mod tables {
    pub(crate) mod aims;
    pub(crate) mod columns;
    pub(crate) mod grid;
    pub(crate) mod idle;
    pub(crate) mod leaving;
    pub(crate) mod overhead;
    pub(crate) mod prefill;
    pub(crate) mod runner;
}

use std::env;
use std::process::ExitCode;
use std::time::Instant;

use support::models::{self, Candidate};
use support::options::{self, Help, Options};
use support::pair::Pair;
use support::peaks::Machine;
use support::setup::{Origin, Threads};
use support::shape::Shape;
use support::{kernels, machine, synthetic};
use tables::aims::{self, FormatClass};
use tables::{grid, idle, overhead, prefill};
use weft::config::{EnabledKernels, KernelChoice};

const HELP: Help = Help {
    bench: "decode",
    quick: "fewer rows, fewer and shorter rounds: a minute and a half",
    flash_attention: "of the engine, in place of what it chooses",
    own: "  --table grid|prefill|overhead    only that table
  --sequences N                    only rows of the grid with so many sequences
  --tokens N                       only rows of the grid with so many tokens before the first step
  --started-threads                the bare loop starts its threads for each decode, as llama.cpp does by itself;
                                   otherwise it keeps them, as the engine does
  --write-model                    write the synthetic models, print their paths, and stop
",
};

/// Options of this benchmark: the selected tables, and the configuration of the bare loop.
struct Own {
    table: String,
    n_sequences: Option<usize>,
    n_tokens: Option<usize>,
    origin: Origin,
    only_write: bool,
}

fn main() -> ExitCode {
    let mut own = Own { table: String::new(), n_sequences: None, n_tokens: None, origin: Origin::Kept, only_write: false };
    let options = options::parse(&HELP, env::args().skip(1), |flag, value| {
        match flag {
            "--table" => {
                own.table = value()?;
                if !["grid", "prefill", "overhead"].contains(&own.table.as_str()) {
                    return Err(format!("--table is {:?}; it must be grid, prefill or overhead", own.table));
                }
            }
            "--sequences" => own.n_sequences = Some(number(flag, &value()?)?),
            "--tokens" => own.n_tokens = Some(number(flag, &value()?)?),
            "--started-threads" => own.origin = Origin::Started,
            "--write-model" => own.only_write = true,
            _ => return Ok(false),
        }
        Ok(true)
    });
    options::run(&HELP, options, |options| bench(options, &own))
}

fn number(flag: &str, given: &str) -> Result<usize, String> {
    given.parse().map_err(|_| format!("{flag} is {given:?}; it must be a number"))
}

fn bench(options: &Options, own: &Own) -> Result<(), String> {
    let started = Instant::now();
    if own.only_write {
        for model in synthetic::ALL {
            println!("{}", model.ensure()?.display());
        }
        return Ok(());
    }
    let candidates = models::every(&options.name)?;
    let (usable, kernels) = match options.kernels {
        KernelChoice::LlamaCpp => (EnabledKernels::NONE, "not asked for".to_owned()),
        KernelChoice::Auto | KernelChoice::Weft => kernels::install(),
    };
    let threads = Threads { n: options.n_threads.unwrap_or_else(machine::n_cores), origin: own.origin };
    println!("decoding: bare llama_decode loops and the engine, in one run");
    machine::describe(options.n_threads);
    let origin = match own.origin {
        Origin::Kept => "kept between decodes on all sides",
        Origin::Started => "kept by the engine, started for each decode by the bare loops",
    };
    println!("                  {origin}");
    println!("  kernels of ours {kernels}");
    let machine = Machine::measure(threads.n);
    println!("  limits          {}", machine.line());
    for candidate in candidates {
        if options.is_quick && options.name.is_empty() && is_for_products(&candidate) {
            continue;
        }
        bench_model(&candidate, (options, own), (threads, usable), &machine)?;
    }
    println!(
        "\n×: how many times as fast as the best of llama.cpp's columns, median of the rounds; share: of the limit, which is the"
    );
    println!("longer of reading weights and cells once and of computing products and attention, and which ours reach so far of;");
    println!("a model that fits into a cache can beat the first; all of it took {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn bench_model(
    candidate: &Candidate,
    (options, own): (&Options, &Own),
    (threads, usable): (Threads, EnabledKernels),
    machine: &Machine,
) -> Result<(), String> {
    let pair = Pair::load(&candidate.path, options, threads, machine)?;
    let (n_params, n_vocab) = (pair.bare.n_params() as f64 / 1e6, pair.bare.n_vocab());
    println!("\n{}: {n_params:.1} million parameters, vocabulary {n_vocab}", candidate.name);
    let wants = |table: &str| own.table.is_empty() || own.table == table;
    let is_for_products = is_for_products(candidate);
    let kind = FormatClass::of(&candidate.name);
    let (steps, prompts, beyond) = match (options.is_quick, is_for_products) {
        (true, _) => (&grid::QUICK, &prefill::QUICK, &overhead::QUICK),
        (false, true) => (&grid::PRODUCTS, &prefill::PRODUCTS, &overhead::QUICK),
        (false, false) => (&grid::FULL, &prefill::FULL, &overhead::FULL),
    };
    let sides = pair.sides(usable);
    let is_one = |wanted: Option<usize>, n: usize| wanted.is_none_or(|wanted| wanted == n);
    let is_wanted = |shape: &Shape| is_one(own.n_sequences, shape.n_sequences) && is_one(own.n_tokens, shape.n_tokens);
    let mut figures = Vec::new();
    if wants("grid") {
        figures.extend(grid::measure(&pair, &sides, steps, is_wanted)?);
    }
    if wants("prefill") {
        figures.extend(prefill::measure(&pair, &sides, prompts)?);
    }
    if !figures.is_empty() {
        aims::print(kind, &figures);
    }
    if wants("grid") && is_wanted(&idle::STREAMS) && !steps.n_idle.is_empty() {
        idle::measure(&pair, &sides, steps.n_idle, &steps.effort)?;
    }
    // The overhead around a decode does not depend on the format of the weights.
    if wants("overhead") && kind != FormatClass::Q4KM {
        overhead::measure(&pair, beyond)?;
    }
    Ok(())
}

/// Returns true if the model only adds a weight format, so that fewer rows suffice.
fn is_for_products(candidate: &Candidate) -> bool {
    candidate.path == synthetic::ONE_Q4_K_M.path()
}
