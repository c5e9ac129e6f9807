//! What sharing is worth: the engine against itself with nothing to share, how steady its streams are while prompts arrive, what
//! idle prefixes cost those who run, and whether finished branches can be continued.
//!
//! `cargo bench --bench sharing -- story` takes about half a minute. The synthetic model takes far longer where prompts are slow:
//! each of its unshared ones is computed whole; `--part` and `--quick` narrow it. What is compared runs in turns in one process,
//! because a shared machine drifts; every measurement has an engine of its own, with nothing cached.
#![allow(clippy::print_stdout, reason = "a bench answers on the standard output")]
#![allow(clippy::print_stderr, reason = "and says there what is wrong")]
#![allow(clippy::cast_precision_loss, reason = "a bench's counts are small")]

#[allow(dead_code, reason = "the bench of decoding, which shares this folder, uses all of it")]
mod support {
    pub(crate) mod gguf;
    pub(crate) mod machine;
    pub(crate) mod synthetic;
}

mod measures {
    pub(crate) mod branches;
    pub(crate) mod idle;
    pub(crate) mod lab;
    pub(crate) mod savings;
    pub(crate) mod steadiness;
    pub(crate) mod watch;
}

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use measures::lab::{Effort, Lab, Sizes};
use measures::{branches, idle, savings, steadiness};
use support::{machine, synthetic};
use weft::config::{EngineConfig, FlashAttention};

const USAGE: &str = "\
usage: cargo bench --bench sharing -- [options] [NAME]

  NAME                             only models whose file name holds NAME
  --part 1|2|3|4                   only that part: savings, steadiness, idle prefixes, finished branches
  --quick                          shorter prompts, fewer rounds
  --flash-attention auto|on|off    the engine's default if not given
  --threads N                      the physical cores if not given

WEFT_BENCH_MODEL names a GGUF file to measure in place of the demo model.";

type Part = fn(&Lab) -> Result<(), String>;

const PARTS: [Part; 4] = [savings::measure, steadiness::measure, idle::measure, branches::measure];

/// What was asked for on the command line.
struct Options {
    effort: Effort,
    sizes: Sizes,
    flash_attention: FlashAttention,
    n_threads: u32,
    parts: Vec<Part>,
    name: String,
}

const FULL: (Effort, Sizes) = (
    Effort { part: Duration::from_secs(5), min_rounds: 2, max_rounds: 9 },
    Sizes {
        n_shared: 1_000,
        n_branch: 64,
        n_requests: 16,
        n_long: 1_500,
        n_stream: 96,
        n_idle: 24,
        n_idle_each: 1_000,
        n_fans: 50,
    },
);
const QUICK: (Effort, Sizes) = (
    Effort { part: Duration::from_millis(500), min_rounds: 1, max_rounds: 3 },
    Sizes { n_shared: 250, n_branch: 16, n_requests: 8, n_long: 400, n_stream: 72, n_idle: 60, n_idle_each: 400, n_fans: 15 },
);

fn main() -> ExitCode {
    let outcome = parse(env::args().skip(1)).and_then(|options| options.map_or(Ok(()), |options| bench(&options)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("sharing bench: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The options, or `None` after the help was printed.
fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let flash_attention = EngineConfig::default().flash_attention;
    let (effort, sizes) = FULL;
    let (n_threads, parts) = (machine::n_cores(), PARTS.to_vec());
    let mut options = Options { effort, sizes, flash_attention, n_threads, parts, name: String::new() };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            // Cargo adds this one by itself.
            "--bench" => {}
            "--quick" => (options.effort, options.sizes) = QUICK,
            "--part" => {
                let given = value()?;
                let part = given.parse().ok().and_then(|part: usize| PARTS.get(part.checked_sub(1)?));
                options.parts = vec![*part.ok_or_else(|| format!("--part is {given:?}; it must be 1 to {}", PARTS.len()))?];
            }
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
    let started = Instant::now();
    let synthetic = synthetic::ensure().map_err(|error| format!("cannot write the synthetic model: {error}"))?;
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

    println!("sharing: the engine against itself, in one run");
    println!("  processor       {}, {} physical cores", machine::cpu(), machine::n_cores());
    println!("  load before     {} (above 0, other work blurs the figures)", machine::load());
    println!("  compiler        {}", machine::compiler());
    println!("  instructions    {}", machine::llama_features());
    println!("  threads         {}", options.n_threads);
    println!("  flash attention {}", format!("{:?}", options.flash_attention).to_lowercase());
    for (name, path) in chosen {
        println!("\n{name}");
        let lab = Lab::new(&path, (options.n_threads, options.flash_attention), options.effort, options.sizes)?;
        for part in &options.parts {
            part(&lab)?;
        }
    }
    println!(
        "\nmedians over the rounds, the lowest and highest in brackets; all of it took {:.0} s",
        started.elapsed().as_secs_f64()
    );
    Ok(())
}
