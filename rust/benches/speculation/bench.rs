//! The parts that run models, and their options.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use weft::config::KernelChoice;
use weft::llama::Model;

use crate::support::models::{self, Candidate};
use crate::support::options::{self, Help, Options};
use crate::support::{kernels, machine};
use crate::{costs, draft, equality, index, loads, oracle, traces};

const HELP: Help = Help {
    bench: "speculation",
    quick: "fewer rounds",
    flash_attention: "not used",
    own: "  --part index|costs|oracle|loads|traces|draft|equality    what is measured
  --requests N                     of the part equality; 2000 if not given
  --seed N                         of the part equality
  --streams N                      of the part oracle: 1, 8 or 32; all of them if not given
  --texts FILE                     prompts and answers of the part traces
  --draft FILE                     draft model of the part draft
",
};

/// Options of this benchmark.
struct Own {
    part: String,
    n_requests: u32,
    seed: u64,
    n_streams: Option<u32>,
    texts: Option<PathBuf>,
    draft: Option<PathBuf>,
}

pub(crate) fn main() -> ExitCode {
    let mut own = Own { part: "index".to_owned(), n_requests: 2000, seed: 1, n_streams: None, texts: None, draft: None };
    let options = options::parse(&HELP, env::args().skip(1), |flag, value| {
        let number = |given: String| given.parse::<u32>().map_err(|_| format!("{flag} is {given:?}; it must be a number"));
        match flag {
            "--part" => own.part = value()?,
            "--requests" => own.n_requests = number(value()?)?,
            "--seed" => own.seed = number(value()?)?.into(),
            "--streams" => own.n_streams = Some(number(value()?)?),
            "--texts" => own.texts = Some(value()?.into()),
            "--draft" => own.draft = Some(value()?.into()),
            _ => return Ok(false),
        }
        Ok(true)
    });
    options::run(&HELP, options, |options| bench(options, &own))
}

fn bench(options: &Options, own: &Own) -> Result<(), String> {
    if own.part == "index" {
        index::measure();
        return Ok(());
    }
    let started = Instant::now();
    let (_, usable) = kernels::install();
    machine::describe(options.n_threads);
    println!("  kernels of ours {usable}");
    for candidate in models::for_speculation(&options.name)? {
        println!("\n{}", candidate.name);
        measure(&candidate, options, own)?;
    }
    println!("all of it took {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn measure(candidate: &Candidate, options: &Options, own: &Own) -> Result<(), String> {
    if own.part == "costs" {
        return costs::measure(&candidate.path, options);
    }
    if own.part == "draft" {
        return draft::measure(&candidate.path, own.draft.as_deref().ok_or("--draft must name a file")?, options);
    }
    let model: Arc<Model> = models::load(&candidate.path, KernelChoice::Weft)?;
    match own.part.as_str() {
        "oracle" => oracle::measure(&model, options, own.n_streams),
        "loads" => loads::measure(&model, options),
        "traces" => traces::measure(&model, options, own.texts.as_deref().ok_or("--texts must name a file")?),
        "equality" => {
            let counts = equality::check(&model, own.n_requests, own.seed)?;
            println!("{counts}");
            if counts.differences.is_empty() { Ok(()) } else { Err(counts.differences.join("\n")) }
        }
        other => Err(format!("--part is {other:?}; --help lists the parts")),
    }
}
