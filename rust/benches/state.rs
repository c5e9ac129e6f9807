//! Cost of moving a part of the cache out of the device cache and back: time, and memory in excess of the state itself.
//!
//! `cargo bench --bench state` takes about half a minute, `-- --quick` a few seconds. One of eight branches of a prompt is
//! saved with the cell layout of eight branches that were decoded together: each of its cells lies among cells of the others.
//! Then it is reloaded into adjacent free cells, and saved again from there.
#![allow(clippy::print_stdout, reason = "a bench answers on the standard output")]
#![allow(clippy::print_stderr, reason = "and says there what is wrong")]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "a bench's counts are small")]
#![allow(unsafe_code, reason = "the allocator is asked to give back what it keeps, so that what a call takes can be seen")]

#[allow(dead_code, reason = "the bench of decoding, which shares this folder, uses all of it")]
mod support {
    pub(crate) mod gguf;
    pub(crate) mod machine;
    pub(crate) mod models;
    pub(crate) mod options;
    pub(crate) mod synthetic;
    pub(crate) mod vocabulary;
    pub(crate) mod weights;
}

use std::env;
use std::fs;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use support::options::{self, Help, Options};
use support::{machine, models};
use weft::config::{EngineConfig, FlashAttention, KernelChoice, Limits};
use weft::engine::runner::{KvSeqId, Plan, Row, Runner};
use weft::llama::{self, LlamaRunner, Model};

const HELP: Help = Help {
    bench: "state",
    quick: "shorter branches, fewer rounds: a few seconds",
    flash_attention: "only with it, or only without; auto is both",
    own: "",
};

const N_BRANCHES: u16 = 8;

/// Tokens that the branches share.
const N_PROMPT: u32 = 64;

/// The branch that is saved; the choice does not matter.
const SAVED: KvSeqId = KvSeqId(3);

/// The sequence that it is reloaded into.
const RESTORED: KvSeqId = KvSeqId(N_BRANCHES);

/// Extent of the measurement.
#[derive(Debug, Clone, Copy)]
struct Effort {
    /// Tokens of each branch.
    n_tokens: u32,
    n_rounds: usize,
    n_threads: u32,
}

fn main() -> ExitCode {
    let options = options::parse(&HELP, env::args().skip(1), |_, _| Ok(false));
    options::run(&HELP, options, bench)
}

fn bench(options: &Options) -> Result<(), String> {
    let n_threads = options.n_threads.unwrap_or_else(machine::n_cores);
    let (n_tokens, n_rounds) = if options.is_quick { (60, 3) } else { (300, 9) };
    let effort = Effort { n_tokens, n_rounds, n_threads };
    let settings = match options.flash_attention {
        FlashAttention::Auto => vec![FlashAttention::On, FlashAttention::Off],
        one => vec![one],
    };
    let candidates = models::chosen(&options.name)?;
    println!("saving and restoring one of {N_BRANCHES} branches, {n_tokens} tokens long, in f16");
    machine::describe(options.n_threads);
    for candidate in candidates {
        let model = models::load(&candidate.path, options.kernels)?;
        println!("\n{}", candidate.name);
        println!(
            "  flash      cells          piece │      save             peak │   restore             peak │ one more run costs"
        );
        println!("  attention                   kB │        ms  µs/token    kB │        ms  µs/token    kB │ as many tokens as");
        for &flash_attention in &settings {
            bench_attention(&model, flash_attention, effort)?;
        }
    }
    println!(
        "\npeak: what the process took beyond what it had, the piece itself included, when it was measured for the first time"
    );
    println!(
        "one more run: (save scattered − save adjacent) / (runs − 1), over a token of the adjacent save; and the engine's estimate"
    );
    Ok(())
}

fn bench_attention(model: &Arc<Model>, flash_attention: FlashAttention, effort: Effort) -> Result<(), String> {
    let Effort { n_tokens, n_rounds, n_threads } = effort;
    let n_ctx = N_PROMPT + (u32::from(N_BRANCHES) + 1) * n_tokens;
    let config = EngineConfig {
        n_slots: Some(u32::from(N_BRANCHES)),
        n_ctx: Some(n_ctx),
        n_threads: Some(n_threads),
        flash_attention,
        kernels: KernelChoice::LlamaCpp,
        ..EngineConfig::default()
    };
    let config = llama::resolve(model, &config, None).map_err(|error| error.to_string())?;
    let mut runner = LlamaRunner::new(Arc::clone(model), &config).map_err(|error| error.to_string())?;
    fan_out(&mut runner, &config.limits, n_tokens)?;

    let range = N_PROMPT..N_PROMPT + n_tokens;
    let scattered = measure_save(&mut runner, SAVED, &range, n_rounds)?;
    runner.fork(SAVED, RESTORED, N_PROMPT);
    let piece = save(&mut runner, SAVED, &range)?;
    // All lower cells are in use, so that these are adjacent.
    let restored = measure(n_rounds, |round| {
        if round > 0 && !runner.truncate(RESTORED, N_PROMPT) {
            return Err("the memory cannot be cut".to_owned());
        }
        let started = Instant::now();
        runner.restore(RESTORED, &piece, range.clone()).map_err(|error| error.to_string())?;
        Ok(started.elapsed().as_secs_f64() * 1e3)
    })?;
    let adjacent = measure_save(&mut runner, RESTORED, &range, n_rounds)?;

    let flash_attention = format!("{flash_attention:?}").to_lowercase();
    let n_tokens = f64::from(n_tokens);
    let cost = |Cost { ms, peak_kb }: &Cost| format!("{ms:>10.2} {:>9.2} {peak_kb:>7}", ms * 1e3 / n_tokens);
    let run_cost = (scattered.ms - adjacent.ms) / (n_tokens - 1.0) / (adjacent.ms / n_tokens);
    let estimate = runner.memory_kind().tokens_per_run;
    let kb = piece.len() / 1024;
    let empty = " ".repeat(28);
    println!("  {flash_attention:<10} scattered {kb:>9} │{} │{empty} │ {run_cost:.1} (estimate {estimate})", cost(&scattered));
    println!("  {flash_attention:<10} adjacent  {kb:>9} │{} │{} │", cost(&adjacent), cost(&restored));
    Ok(())
}

/// Creates the cell layout of eight branches that were decoded together, in the time of one: a branch is computed, saved token
/// by token, and reloaded for all of them round-robin. Each saved token takes the lowest free cell, like a row of a decode.
fn fan_out(runner: &mut LlamaRunner, limits: &Limits, n_tokens: u32) -> Result<(), String> {
    let row = |position: u32| Row {
        sequence: KvSeqId(0),
        token: 300 + (position * 7).cast_signed() % 1_000,
        position,
        wants_logits: false,
    };
    let n_held = N_PROMPT + n_tokens;
    for start in (0..n_held).step_by(limits.n_ubatch as usize) {
        let rows = (start..n_held.min(start + limits.n_ubatch)).map(row).collect();
        runner.decode(&Plan { rows, ..Plan::default() }).map_err(|error| error.to_string())?;
    }
    let pieces = (N_PROMPT..n_held).map(|position| save(runner, KvSeqId(0), &(position..position + 1)));
    let pieces = pieces.collect::<Result<Vec<_>, _>>()?;
    if !runner.truncate(KvSeqId(0), N_PROMPT) {
        return Err("the memory cannot be cut".to_owned());
    }
    (1..N_BRANCHES).for_each(|branch| runner.fork(KvSeqId(0), KvSeqId(branch), N_PROMPT));
    for (position, piece) in (N_PROMPT..).zip(&pieces) {
        for branch in (0..N_BRANCHES).map(KvSeqId) {
            runner.restore(branch, piece, position..position + 1).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

/// Median time of a call, and memory use of its first run.
struct Cost {
    ms: f64,
    peak_kb: u64,
}

fn measure_save(runner: &mut LlamaRunner, id: KvSeqId, range: &Range<u32>, n_rounds: usize) -> Result<Cost, String> {
    measure(n_rounds, |_| {
        let started = Instant::now();
        let piece = save(runner, id, range)?;
        let elapsed = started.elapsed();
        drop(piece);
        Ok(elapsed.as_secs_f64() * 1e3)
    })
}

fn save(runner: &mut LlamaRunner, id: KvSeqId, range: &Range<u32>) -> Result<Arc<[u8]>, String> {
    runner.save(id, range.clone()).map_err(|error| error.to_string())
}

fn measure(n_rounds: usize, mut round: impl FnMut(usize) -> Result<f64, String>) -> Result<Cost, String> {
    give_back_memory();
    let before = start_high_water();
    let mut times = vec![round(0)?];
    let peak_kb = status_kb("VmHWM").saturating_sub(before);
    for i in 1..n_rounds {
        times.push(round(i)?);
    }
    times.sort_by(f64::total_cmp);
    Ok(Cost { ms: times[times.len() / 2], peak_kb })
}

/// Makes the allocator return free memory to the system, so that the memory use of a call is visible.
fn give_back_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> i32;
        }
        // SAFETY: glibc's own function, which any thread may call at any time.
        unsafe { malloc_trim(0) };
    }
}

/// Resets the process's peak memory use to the current value, and returns it in kB (Linux, `proc_pid_clear_refs(5)`).
fn start_high_water() -> u64 {
    // If the reset fails, peaks are too low: they include only memory above the highest peak so far.
    let _ = fs::write("/proc/self/clear_refs", "5");
    status_kb("VmHWM")
}

/// Returns a line of `/proc/self/status` in kB; 0 if it is missing.
fn status_kb(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}
