//! How fast a step is: the engine in the configuration that it chooses, against a bare `llama_decode` loop with flash attention on
//! and off, and against what the machine could do at best.
//!
//! `cargo bench --bench decode` takes less than ten minutes, `-- --quick` about one. All sides run in turn, several times over in
//! one process, and a ratio is the median of the rounds, because a shared machine drifts by more than the engine costs.
//!
//! - The grid: {1, 4, 8, 32} sequences with {16, 250, 1,000, 4,000} tokens before their first step, cells shared or their own.
//!   Only decoding is timed. The cells are restored beforehand, from a short stretch at many positions (`support/stretch.rs`).
//! - Prefill of 512 and 2,048 tokens.
//! - The engine against a bare loop of its own configuration, which shows what surrounds the decode.
//!
//! The limit of each row is worked out in `support/roofline.rs`.
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
    pub(crate) mod grid;
    pub(crate) mod overhead;
    pub(crate) mod prefill;
}

use std::env;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use support::bare::{Origin, Threads};
use support::models::{self, Candidate};
use support::options::{self, Help, Options};
use support::pair::Pair;
use support::roofline::Machine;
use support::{machine, synthetic};
use tables::{grid, overhead, prefill};

const HELP: Help = Help {
    bench: "decode",
    quick: "fewer rows, fewer and shorter rounds: about a minute",
    flash_attention: "of the engine, in place of what it chooses",
    own: "  --table grid|prefill|overhead    only that table
  --sequences N                    only rows of the grid with so many sequences
  --started-threads                the bare loop starts its threads for each decode, as llama.cpp does by itself;
                                   otherwise it keeps them, as the engine does
  --write-model                    write the synthetic model, print its path, and stop
",
};

/// Longest time for tuning, which a user gives a minute. The slowest machines take longer for what must be measured.
const TUNING: Duration = Duration::from_secs(15);
const QUICK_TUNING: Duration = Duration::from_secs(3);

/// Which tables are asked for, and how the bare loop gets its threads.
struct Own {
    table: String,
    n_sequences: Option<usize>,
    origin: Origin,
    only_write: bool,
}

fn main() -> ExitCode {
    let mut own = Own { table: String::new(), n_sequences: None, origin: Origin::Kept, only_write: false };
    let options = options::parse(&HELP, env::args().skip(1), |flag, value| {
        match flag {
            "--table" => {
                own.table = value()?;
                if !["grid", "prefill", "overhead"].contains(&own.table.as_str()) {
                    return Err(format!("--table is {:?}; it must be grid, prefill or overhead", own.table));
                }
            }
            "--sequences" => {
                let given = value()?;
                own.n_sequences = Some(given.parse().map_err(|_| format!("--sequences is {given:?}; it must be a number"))?);
            }
            "--started-threads" => own.origin = Origin::Started,
            "--write-model" => own.only_write = true,
            _ => return Ok(false),
        }
        Ok(true)
    });
    options::run(&HELP, options, |options| bench(options, &own))
}

fn bench(options: &Options, own: &Own) -> Result<(), String> {
    let started = Instant::now();
    if own.only_write {
        let path = synthetic::ensure().map_err(|error| format!("cannot write the synthetic model: {error}"))?;
        println!("{}", path.display());
        return Ok(());
    }
    let candidates = models::chosen(&options.name)?;
    let threads = Threads { n: options.n_threads.unwrap_or_else(machine::n_cores), origin: own.origin };
    println!("decoding: the engine against bare llama_decode loops, in one run");
    machine::describe(options.n_threads);
    let origin = match own.origin {
        Origin::Kept => "kept between decodes on both sides",
        Origin::Started => "kept by the engine, started for each decode by the bare loop",
    };
    println!("                  {origin}");
    let machine = Machine::measure(threads.n)?;
    println!("  limits          {}", machine.line());
    for candidate in candidates {
        bench_model(&candidate, (options, own), threads, &machine)?;
    }
    println!(
        "\nratio: a side's tokens/s over those of the faster bare loop; engine ÷: the engine's time over the limit's, which is the"
    );
    println!(
        "longer of reading weights and cells once and of computing the products; a model that fits into a cache can beat the first"
    );
    println!("all of it took {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn bench_model(
    candidate: &Candidate,
    (options, own): (&Options, &Own),
    threads: Threads,
    machine: &Machine,
) -> Result<(), String> {
    let pair = Pair::load(candidate, options, threads, machine)?;
    let (n_params, n_vocab) = (pair.bare.n_params() as f64 / 1e6, pair.bare.n_vocab());
    println!("\n{}: {n_params:.1} million parameters, vocabulary {n_vocab}", candidate.name);
    let wants = |table: &str| own.table.is_empty() || own.table == table;
    let is_quick = options.is_quick;
    if wants("grid") {
        let tuned = pair.tune(if is_quick { QUICK_TUNING } else { TUNING })?;
        let effort = if is_quick { &grid::QUICK } else { &grid::FULL };
        grid::measure(&pair, tuned, effort, |shape| own.n_sequences.is_none_or(|n| n == shape.n_sequences))?;
    }
    if wants("prefill") {
        prefill::measure(&pair, if is_quick { &prefill::QUICK } else { &prefill::FULL })?;
    }
    if wants("overhead") {
        overhead::measure(&pair, if is_quick { &overhead::QUICK } else { &overhead::FULL })?;
    }
    Ok(())
}
