//! Overhead of a step around its decode: the worker's allocations, and the breakdown of its time.
//!
//! `cargo bench --bench allocations` takes about half a minute, `-- --quick` a few seconds. Branches of one prompt are
//! generated with every filter and penalty on. After prefill, a step must allocate nothing; lists that grow with their branch
//! double occasionally, and are counted separately. Every thread is counted except the reader of the events. llama.cpp's
//! allocations in C++ bypass a Rust allocator.
#![allow(clippy::print_stdout, reason = "a bench answers on the standard output")]
#![allow(clippy::print_stderr, reason = "and says there what is wrong")]
#![allow(clippy::cast_precision_loss, reason = "a bench's counts are small")]
#![allow(unsafe_code, reason = "an allocator is unsafe to write, also one that only counts")]

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

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::env;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::options::{self, Help, Options};
use support::{machine, models};
use weft::config::EngineConfig;
use weft::engine::{MAX_RECENT_STEPS, RecentStep, StepTimes, WakeHandle};
use weft::llama::{self, Model};
use weft::request::{Prompt, Request, SamplingParams};

const HELP: Help = Help {
    bench: "allocations",
    quick: "fewer branches: a few seconds",
    flash_attention: "the engine's rule if not given",
    own: "",
};

const BRANCHES: [u32; 2] = [8, 32];

/// Steps that are not counted, in which lists reach their final size.
const N_WARM: usize = 80;

/// Steps that are counted.
const N_STEPS: usize = MAX_RECENT_STEPS;

/// Tokens of the prompt that the branches share. A short prompt makes decodes short, so that the overhead is visible.
const N_PROMPT: usize = 250;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static N_NEW: AtomicU64 = AtomicU64::new(0);
static N_GROWN: AtomicU64 = AtomicU64::new(0);
static N_FREED: AtomicU64 = AtomicU64::new(0);
static N_BYTES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_COUNTED: Cell<bool> = const { Cell::new(true) };
}

/// The system's allocator, with counters of the calls of counted threads.
struct Counting;

impl Counting {
    fn count(counter: &AtomicU64, n_bytes: usize) {
        // The thread-local is already destroyed when an ending thread frees its memory.
        if IS_COUNTED.try_with(Cell::get).unwrap_or(false) {
            counter.fetch_add(1, Ordering::Relaxed);
            N_BYTES.fetch_add(n_bytes as u64, Ordering::Relaxed);
        }
    }
}

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(&N_NEW, layout.size());
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(&N_NEW, layout.size());
        // SAFETY: the caller's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        Self::count(&N_GROWN, new_size);
        // SAFETY: the caller's.
        unsafe { System.realloc(block, layout, new_size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        Self::count(&N_FREED, 0);
        // SAFETY: the caller's.
        unsafe { System.dealloc(block, layout) }
    }
}

/// A snapshot of the counters.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    n_new: u64,
    n_grown: u64,
    n_freed: u64,
    n_bytes: u64,
}

impl Counts {
    fn now() -> Self {
        let [n_new, n_grown, n_freed, n_bytes] =
            [&N_NEW, &N_GROWN, &N_FREED, &N_BYTES].map(|counter| counter.load(Ordering::Relaxed));
        Self { n_new, n_grown, n_freed, n_bytes }
    }

    fn since(self, before: Self) -> Self {
        Self {
            n_new: self.n_new - before.n_new,
            n_grown: self.n_grown - before.n_grown,
            n_freed: self.n_freed - before.n_freed,
            n_bytes: self.n_bytes - before.n_bytes,
        }
    }
}

/// Records the counters at the end of each step, when the worker wakes it.
struct Meter(Mutex<Vec<Counts>>);

impl WakeHandle for Meter {
    fn wake(&self) {
        let mut steps = self.0.lock().expect("no code that holds the list can panic");
        assert!(steps.len() < steps.capacity(), "the meter must not allocate");
        steps.push(Counts::now());
    }

    fn min_interval(&self, _: usize) -> Duration {
        Duration::ZERO
    }
}

/// Selects the time of a part of a step.
type TimeOfStage = fn(&StepTimes) -> Duration;

fn main() -> ExitCode {
    IS_COUNTED.set(false);
    let options = options::parse(&HELP, env::args().skip(1), |_, _| Ok(false));
    options::run(&HELP, options, bench)
}

/// Measures every model.
///
/// # Errors
/// A message, also if a step allocates.
fn bench(options: &Options) -> Result<(), String> {
    let chosen = models::chosen(&options.name)?;
    println!(
        "a step beside its decode: {N_STEPS} steps, every filter and penalty on, on Rust's side of all threads but the reader"
    );
    machine::describe(options.n_threads);
    let mut n_allocated = 0;
    for candidate in chosen {
        let model = models::load(&candidate.path, options.kernels)?;
        println!("\n{}: vocabulary {}", candidate.name, model.n_vocab());
        println!(
            "  branches  shared │ allocated   grown   freed   bytes, per token │ step µs   decode   share of each other part"
        );
        for &n in if options.is_quick { &BRANCHES[..1] } else { &BRANCHES[..] } {
            n_allocated += measure(&model, n, options)?;
        }
    }
    match n_allocated {
        0 => Ok(()),
        n => Err(format!("{n} blocks were allocated by steps, not 0")),
    }
}

/// Prints the row of `n` branches, and returns the number of allocated blocks.
fn measure(model: &Arc<Model>, n: u32, options: &Options) -> Result<u64, String> {
    let n_tokens = u32::try_from(N_WARM + N_STEPS + 1).expect("the bench takes few steps");
    let n_cells = u32::try_from(N_PROMPT).expect("the prompt is short") + n * (n_tokens + 64);
    let config = EngineConfig {
        n_slots: Some(n),
        n_ctx: Some(n_cells.next_multiple_of(256)),
        kv_unified: Some(true),
        n_threads: options.n_threads,
        n_threads_batch: options.n_threads,
        flash_attention: options.flash_attention,
        kernels: options.kernels,
        ..EngineConfig::default()
    };
    let engine = llama::start(model, &config).map_err(|error| error.to_string())?;
    let n_shared = N_PROMPT.min((engine.limits().n_ctx_slot - n_tokens) as usize - 1);
    let mut request = Request::new(Prompt::from_tokens(prompt(model, n_shared)), 0);
    request.n = n;
    request.max_tokens = Some(n_tokens);
    request.sampling = SamplingParams {
        repeat_penalty: 1.1,
        presence_penalty: 0.1,
        frequency_penalty: 0.1,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let meter = Arc::new(Meter(Mutex::new(Vec::with_capacity(4 * n_tokens as usize))));
    let wake_handle: Arc<dyn WakeHandle> = Arc::<Meter>::clone(&meter);
    let completions = engine.submit(request, Some(wake_handle)).map_err(|error| error.to_string())?;
    for event in completions {
        event.map_err(|error| error.to_string())?;
    }
    let steps = meter.0.lock().map_err(|_| "the worker has died")?.clone();
    // The last step ends the request and frees its memory.
    let last = steps.len().checked_sub(2).filter(|&last| last > N_STEPS).ok_or("the branches took too few steps")?;
    let counted = steps[last].since(steps[last - N_STEPS]);
    let recent: Vec<RecentStep> = engine.recent_steps().into_iter().filter(|step| step.n_rows == n).collect();
    println!("{}", line(n, n_shared, counted, &recent));
    Ok(counted.n_new)
}

/// Formats a row of the table.
fn line(n: u32, n_shared: usize, counted: Counts, recent: &[RecentStep]) -> String {
    let per_token = |count: u64| count as f64 / (N_STEPS as u64 * u64::from(n)) as f64;
    let [new, grown, freed] = [counted.n_new, counted.n_grown, counted.n_freed].map(per_token);
    let n_bytes = per_token(counted.n_bytes);
    let took: Duration = recent.iter().map(|step| step.took).sum();
    let share = |of: TimeOfStage| {
        let part: Duration = recent.iter().map(|step| of(&step.times)).sum();
        part.div_duration_f64(took)
    };
    let parts: [(&str, TimeOfStage); 7] = [
        ("receive", |times| times.receive),
        ("admit", |times| times.admit),
        ("plan", |times| times.plan),
        ("sample", |times| times.sample),
        ("detokenize", |times| times.detokenize),
        ("publish", |times| times.publish),
        ("move", |times| times.offload + times.reload),
    ];
    let shares: Vec<String> = parts.iter().map(|&(name, of)| format!("{name} {:.2} %", 100.0 * share(of))).collect();
    let step_us = took.as_secs_f64() * 1e6 / recent.len().max(1) as f64;
    format!(
        "  {n:>8}  {n_shared:>6} │ {new:>9.3}  {grown:>6.3}  {freed:>6.3}  {n_bytes:>6.1}            │ {step_us:>7.0}   {:>4.1} %   {}",
        100.0 * share(|times| times.decode),
        shares.join(", ")
    )
}

/// Returns ordinary tokens, the same in every run: in the vocabularies used here, special tokens and byte pieces come first.
fn prompt(model: &Model, n: usize) -> Vec<i32> {
    let n_first = 300;
    let n_usual = model.n_vocab().saturating_sub(n_first).max(1);
    (0..n).map(|at| i32::try_from(n_first + at * 2_654_435_761 % n_usual).expect("a token of the vocabulary")).collect()
}
