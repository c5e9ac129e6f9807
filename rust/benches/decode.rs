//! What the engine costs: its tokens per second against those of a bare `llama_decode` loop over the same batches.
//!
//! `cargo bench --bench decode` takes about five minutes, `-- --quick` about one. Both sides run in turn, several times over in
//! one process, and the ratio is the median of the rounds, because a shared machine drifts by more than the engine costs.
//!
//! Only decoding is timed. The prompt is computed beforehand on both sides and its cells are shared by the branches.
#![allow(clippy::print_stdout, reason = "a bench answers on the standard output")]
#![allow(clippy::print_stderr, reason = "and says there what is wrong")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a bench's counts are small"
)]

mod support;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use support::bare::{BareModel, Threads};
use support::case::{Bench, Effort};
use support::{machine, synthetic};
use weft::config::{EngineConfig, FlashAttention, ModelConfig};
use weft::llama::Model;

const USAGE: &str = "\
usage: cargo bench --bench decode -- [options] [NAME]

  NAME                             only models whose file name holds NAME
  --quick                          fewer and shorter rounds, a shorter shared prompt: about a minute
  --flash-attention auto|on|off    on both sides; the engine's default if not given
  --threads N                      on both sides; the physical cores if not given
  --started-threads                the bare loop starts its threads for each decode, as llama.cpp does by itself;
                                   otherwise it keeps them, as the engine does
  --write-model                    write the synthetic model, print its path, and stop

WEFT_BENCH_MODEL names a GGUF file to measure in place of the demo model.";

/// Branches of the cases.
const BRANCHES: [usize; 3] = [1, 8, 32];

/// An "empty" context: as short as prompts get that are still shared.
const N_EMPTY: usize = 16;

/// What was asked for on the command line.
struct Options {
    effort: Effort,
    /// Length of the longer prompt that the branches share.
    n_shared: usize,
    flash_attention: FlashAttention,
    n_threads: u32,
    threads: Threads,
    name: String,
    only_write: bool,
}

const FULL: Effort = Effort { side: Duration::from_millis(1_500), case: Duration::from_secs(12), min_rounds: 3, max_rounds: 25 };
const QUICK: Effort = Effort { side: Duration::from_millis(300), case: Duration::from_secs(1), min_rounds: 2, max_rounds: 5 };

fn main() -> ExitCode {
    let outcome = parse(env::args().skip(1)).and_then(|options| options.map_or(Ok(()), |options| bench(&options)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("decode bench: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The options, or `None` after the help was printed.
fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let flash_attention = EngineConfig::default().flash_attention;
    let mut options = Options {
        effort: FULL,
        n_shared: 1_000,
        flash_attention,
        n_threads: machine::n_cores(),
        threads: Threads::Kept,
        name: String::new(),
        only_write: false,
    };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            // Cargo adds this one by itself.
            "--bench" => {}
            "--quick" => {
                options.effort = QUICK;
                options.n_shared = 250;
            }
            "--started-threads" => options.threads = Threads::Started,
            "--write-model" => options.only_write = true,
            "--threads" => {
                let given = value()?;
                options.n_threads = given.parse().map_err(|_| format!("--threads is {given:?}; it must be a number"))?;
            }
            "--flash-attention" => {
                options.flash_attention = match value()?.as_str() {
                    "auto" => FlashAttention::Auto,
                    "on" => FlashAttention::On,
                    "off" => FlashAttention::Off,
                    other => return Err(format!("--flash-attention is {other:?}; it must be auto, on or off")),
                }
            }
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(None);
            }
            flag if flag.starts_with('-') => return Err(format!("{flag} is no option\n\n{USAGE}")),
            name => name.clone_into(&mut options.name),
        }
    }
    Ok(Some(options))
}

fn bench(options: &Options) -> Result<(), String> {
    let synthetic = synthetic::ensure().map_err(|error| format!("cannot write the synthetic model: {error}"))?;
    if options.only_write {
        println!("{}", synthetic.display());
        return Ok(());
    }
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/weft/models/storyteller-q8_0.gguf");
    let small = env::var_os("WEFT_BENCH_MODEL").map_or(demo, PathBuf::from);
    let models = [synthetic, small].map(|path| (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), path));
    let chosen: Vec<_> = models.into_iter().filter(|(name, _)| name.contains(&options.name)).collect();
    if chosen.is_empty() {
        return Err(format!("no model's file name holds {:?}", options.name));
    }
    if let Some((_, path)) = chosen.iter().find(|(_, path)| !path.is_file()) {
        return Err(format!("there is no model at {}; WEFT_BENCH_MODEL may name another", path.display()));
    }

    println!("decoding: the engine against a bare llama_decode loop, in one run");
    println!("  processor       {}, {} physical cores", machine::cpu(), machine::n_cores());
    println!("  load before     {} (above 0, other work blurs the ratios)", machine::load());
    println!("  compiler        {}", machine::compiler());
    println!("  instructions    {}", machine::llama_features());
    let origin = match options.threads {
        Threads::Kept => "kept between decodes on both sides",
        Threads::Started => "kept by the engine, started for each decode by the bare loop",
    };
    println!("  threads         {}, {origin}", options.n_threads);
    let flash_attention = match options.flash_attention {
        FlashAttention::Auto => "auto: llama.cpp decides",
        FlashAttention::On => "on",
        FlashAttention::Off => "off",
    };
    println!("  flash attention {flash_attention}");
    for (name, path) in chosen {
        bench_model(&name, &path, options)?;
    }
    println!("\nratio: the engine's tokens/s over the bare loop's, median of the rounds, and the lowest and highest in brackets");
    Ok(())
}

fn bench_model(name: &str, path: &Path, options: &Options) -> Result<(), String> {
    let config = ModelConfig { path: path.to_owned(), n_gpu_layers: Some(0), use_mmap: true, use_mlock: false };
    let model = Arc::new(Model::load(&config, |_| {}).map_err(|error| error.to_string())?);
    let bare = BareModel::load(path)?;
    let (n_params, n_vocab) = (bare.n_params() as f64 / 1e6, bare.n_vocab());
    println!("\n{name}: {n_params:.1} million parameters, vocabulary {n_vocab}");
    let group = |title: &str| format!(" {title:<19}");
    println!("  {:>31} │{} │{:<40} │{}", "", group("bare loop"), group("engine, greedy"), group("engine, default sampling"));
    let (times, ratio) = (" ms/step   tokens/s", "ratio");
    println!("  branches  shared  steps  rounds │ {times} │ {times}  {ratio:<17} │ {times}  {ratio}");
    let Options { flash_attention, n_threads, threads, effort, .. } = *options;
    let bench = Bench { model, bare, n_threads, threads, flash_attention, effort };
    for n_shared in [N_EMPTY, options.n_shared] {
        for n_branches in BRANCHES {
            let (case, rounds) = bench.measure(n_branches, n_shared)?;
            println!("{}", case.line(&rounds));
        }
    }
    Ok(())
}
