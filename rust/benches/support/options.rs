//! What the benches of the engine take on the command line, all of them alike.

use std::process::ExitCode;

use weft::config::{EngineConfig, FlashAttention, KernelChoice};

/// What was asked for.
pub(crate) struct Options {
    /// Only models whose file name holds this.
    pub(crate) name: String,
    /// Whether less is measured, and for a shorter time.
    pub(crate) is_quick: bool,
    /// Of the engine.
    pub(crate) flash_attention: FlashAttention,
    /// Of the engine, and whether ours are measured at all.
    pub(crate) kernels: KernelChoice,
    /// Of every decode; `None` leaves the choice to the engine.
    pub(crate) n_threads: Option<u32>,
}

/// What a bench's help says beyond what it says in every bench.
pub(crate) struct Help {
    /// The bench's name for cargo.
    pub(crate) bench: &'static str,
    /// What `--quick` changes.
    pub(crate) quick: &'static str,
    /// What `--flash-attention` changes.
    pub(crate) flash_attention: &'static str,
    /// Lines about the bench's own flags, as wide as those here.
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

/// The next argument: what belongs to the flag before it.
pub(crate) type Value<'a> = dyn FnMut() -> Result<String, String> + 'a;

/// Reads the command line. `own` is shown every flag that is not known here, and says whether it is one of the bench's. `None` after
/// the help was printed.
///
/// # Errors
/// What is wrong with the command line.
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
            // Cargo adds this one by itself.
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

/// Does the work that was asked for, and says what went wrong, if anything did.
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
