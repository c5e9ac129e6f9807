//! Common command-line options of the engine's benchmarks.

use std::process::ExitCode;

use weft::config::{EngineConfig, FlashAttention, KernelChoice};

/// Parsed options.
pub(crate) struct Options {
    /// Only models whose file name contains this are measured.
    pub(crate) name: String,
    /// Measures less, and for a shorter time.
    pub(crate) is_quick: bool,
    /// Flash attention of the engine.
    pub(crate) flash_attention: FlashAttention,
    /// Kernels of the engine; with llama.cpp's, ours are not measured.
    pub(crate) kernels: KernelChoice,
    /// Threads of every decode; `None` leaves the choice to the engine.
    pub(crate) n_threads: Option<u32>,
}

/// The parts of the help that differ between benchmarks.
pub(crate) struct Help {
    /// The benchmark's name for cargo.
    pub(crate) bench: &'static str,
    /// Effect of `--quick`.
    pub(crate) quick: &'static str,
    /// Effect of `--flash-attention`.
    pub(crate) flash_attention: &'static str,
    /// Lines about the benchmark's own flags, in the same columns as the common ones.
    pub(crate) own: &'static str,
}

impl Help {
    fn print(&self) {
        let Self { bench, quick, flash_attention, own } = self;
        println!("usage: cargo bench --bench {bench} -- [options] [NAME]\n");
        println!("  NAME                             only models whose file name holds NAME");
        println!("  --quick                          {quick}");
        println!("  --flash-attention auto|on|off    {flash_attention}");
        println!("  --kernels auto|weft|llama.cpp    of the engine; with llama.cpp's own, ours are not measured");
        println!("  --threads N                      threads of a decode; the physical cores if not given");
        print!("{own}");
        println!("\nWEFT_BENCH_MODEL names a GGUF file to measure in place of the demo model.");
    }
}

/// Returns the next argument: the value of the preceding flag.
pub(crate) type Value<'a> = dyn FnMut() -> Result<String, String> + 'a;

/// Parses the command line. `own` receives every flag that is not common, and returns whether it is one of the benchmark's.
/// Returns `None` after printing the help.
///
/// # Errors
/// A message, if the command line is invalid.
pub(crate) fn parse(
    help: &Help,
    mut args: impl Iterator<Item = String>,
    mut own: impl FnMut(&str, &mut Value<'_>) -> Result<bool, String>,
) -> Result<Option<Options>, String> {
    let flash_attention = EngineConfig::default().flash_attention;
    let kernels = KernelChoice::Auto;
    let mut options = Options { name: String::new(), is_quick: false, flash_attention, kernels, n_threads: None };
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            // Cargo adds this flag.
            "--bench" => {}
            "--quick" => options.is_quick = true,
            "--threads" => {
                let given = value()?;
                let n_threads = given.parse().ok().filter(|n| *n > 0);
                options.n_threads =
                    Some(n_threads.ok_or_else(|| format!("--threads is {given:?}; it must be a number above 0"))?);
            }
            "--flash-attention" => {
                options.flash_attention = match value()?.as_str() {
                    "auto" => FlashAttention::Auto,
                    "on" => FlashAttention::On,
                    "off" => FlashAttention::Off,
                    other => return Err(format!("--flash-attention is {other:?}; it must be auto, on or off")),
                }
            }
            "--kernels" => {
                options.kernels = match value()?.as_str() {
                    "auto" => KernelChoice::Auto,
                    "weft" => KernelChoice::Weft,
                    "llama.cpp" => KernelChoice::LlamaCpp,
                    other => return Err(format!("--kernels is {other:?}; it must be auto, weft or llama.cpp")),
                }
            }
            "--help" | "-h" => {
                help.print();
                return Ok(None);
            }
            flag if flag.starts_with('-') => {
                if !own(flag, &mut value)? {
                    return Err(format!("{flag} is no option; --help lists them"));
                }
            }
            name => name.clone_into(&mut options.name),
        }
    }
    Ok(Some(options))
}

/// Runs the benchmark, and prints an error.
pub(crate) fn run(
    help: &Help,
    options: Result<Option<Options>, String>,
    work: impl FnOnce(&Options) -> Result<(), String>,
) -> ExitCode {
    let outcome = options.and_then(|options| options.as_ref().map_or(Ok(()), work));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{} bench: {message}", help.bench);
            ExitCode::FAILURE
        }
    }
}
