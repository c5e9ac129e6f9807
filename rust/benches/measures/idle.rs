//! Cost of idle prefixes for running streams: their speed with nothing else cached and with many cached tokens.

use std::sync::Arc;
use std::time::Instant;

use weft::config::CacheRam;
use weft::engine::Engine;
use weft::request::{Prompt, Request, SavedPrefix, Task, TaskResult};

use super::lab::{Lab, N_CELLS, request};
use super::watch::{Stream, Watch};
use crate::support::spread::Spread;

const N_STREAMS: usize = 8;
const N_STREAM_PROMPT: usize = 128;

/// Additional slots, for loading prefixes.
const N_SPARE_SLOTS: u32 = 4;

/// Tokens that every stream generates before the timing starts: prefill is then over.
const N_SETTLING: usize = 16;

/// When the idle prefixes arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Idle {
    Never,
    BeforeTheStreams,
    WhileTheyRun,
}

/// Tokens of each stream during which prefixes arrive, stay for some decodes, and leave the device cache.
const N_ARRIVING: usize = 40;

/// Tokens per second while prefixes arrive (if they do while streams run), and afterwards.
#[derive(Debug, Clone, Copy)]
struct Speeds {
    arriving: f64,
    settled: f64,
}

/// Prints the table.
///
/// # Errors
/// A message, if the engine fails.
pub(crate) fn measure(lab: &Lab) -> Result<(), String> {
    let n_tokens = lab.sizes.n_idle * lab.sizes.n_idle_each;
    println!(
        "\n  3. {N_STREAMS} running streams of {N_STREAM_PROMPT} + {} tokens beside {n_tokens} idle ones",
        lab.sizes.n_stream
    );
    let saved = save(lab)?;
    let cases = [
        ("nothing else cached", Idle::Never, CacheRam::Default),
        ("idle prefixes, then streams", Idle::BeforeTheStreams, CacheRam::Default),
        ("streams, then idle prefixes", Idle::WhileTheyRun, CacheRam::Default),
        ("idle prefixes, then streams, no store", Idle::BeforeTheStreams, CacheRam::Bytes(0)),
        ("streams, then idle prefixes, no store", Idle::WhileTheyRun, CacheRam::Bytes(0)),
    ];
    let mut speeds: [Vec<Speeds>; 5] = Default::default();
    let n_rounds = lab.rounds(lab.effort.min_rounds, |round| {
        // One round shows the effect of the host cache; these rounds take longest.
        let n_cases = if round == 0 { cases.len() } else { 3 };
        let mut order: Vec<usize> = (0..n_cases).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for case in order {
            let (_, idle, cache_ram) = cases[case];
            speeds[case].push(time_streams(lab, &saved, idle, cache_ram)?);
        }
        Ok(())
    })?;
    let (from, to) = (N_SETTLING + N_ARRIVING, lab.sizes.n_stream);
    let (arriving, settled) = (format!("tokens {N_SETTLING} to {from}: they may arrive"), format!("tokens {from} to {to}"));
    println!("  {:<38} │ {arriving:<36} │ {settled:<36}", "");
    let columns = "  tokens/s  share of the first line's";
    println!("  {:<38} │{columns:<37} │{columns:<37} ({n_rounds} rounds)", "");
    for ((title, ..), case_speeds) in cases.iter().zip(&speeds) {
        let part = |which: fn(&Speeds) -> f64| {
            let median = Spread::of(&case_speeds.iter().map(which).collect::<Vec<_>>()).median;
            let ratios: Vec<f64> =
                case_speeds.iter().zip(&speeds[0]).map(|(with_idle, alone)| which(with_idle) / which(alone)).collect();
            format!("{median:>10.1}  {:<25}", Spread::of(&ratios).show(2))
        };
        println!("  {title:<38} │{} │{}", part(|speeds| speeds.arriving), part(|speeds| speeds.settled));
    }
    Ok(())
}

/// Computes one prefix. It is loaded many times with different tokens, because computing as many would take minutes; the
/// content of its state has no effect on speed, because it is never continued.
fn save(lab: &Lab) -> Result<SavedPrefix, String> {
    let engine = lab.engine(1, N_CELLS, CacheRam::Default)?;
    let mut watch = Watch::new(&engine);
    let prompt = Prompt::from_tokens(lab.fresh(lab.sizes.n_idle_each));
    watch.submit(Request::for_task(prompt, Task::Save { computes: true }))?;
    watch.read_all()?;
    let end = watch.streams[0].branches[0].end.take();
    match end.and_then(|end| end.result).map(|made| *made) {
        Some(TaskResult::Saved(saved)) if saved.tokens.len() == lab.sizes.n_idle_each => Ok(saved),
        _ => Err("the prefix was not saved".into()),
    }
}

fn load(lab: &Lab, saved: &SavedPrefix, watch: &mut Watch) -> Result<(), String> {
    for _ in 0..lab.sizes.n_idle {
        let saved = SavedPrefix { tokens: lab.fresh(saved.tokens.len()), ..saved.clone() };
        let prompt = Prompt::from_tokens(saved.tokens.clone());
        watch.submit(Request::for_task(prompt, Task::Load(Arc::new(saved))))?;
    }
    Ok(())
}

fn time_streams(lab: &Lab, saved: &SavedPrefix, idle: Idle, cache_ram: CacheRam) -> Result<Speeds, String> {
    let n_slots = u32::try_from(N_STREAMS).expect("the bench runs few streams") + N_SPARE_SLOTS;
    let engine = lab.engine(n_slots, N_CELLS, cache_ram)?;
    if idle == Idle::BeforeTheStreams {
        let mut watch = Watch::new(&engine);
        load(lab, saved, &mut watch)?;
        watch.read_all()?;
    }
    // As long as the context allows: if prefill is slow, the first stream is far ahead of the last, and none may end.
    let n_tokens_max = engine.limits().n_ctx_slot - u32::try_from(N_STREAM_PROMPT).expect("it is short");
    let mut watch = Watch::new(&engine);
    for _ in 0..N_STREAMS {
        watch.submit(request(lab.fresh(N_STREAM_PROMPT), 1, n_tokens_max))?;
    }
    watch.read_until(have(N_SETTLING))?;
    let settled = Moment::of(&watch);
    if idle == Idle::WhileTheyRun {
        load(lab, saved, &mut watch)?;
    }
    watch.read_until(have(N_SETTLING + N_ARRIVING))?;
    let arrived = Moment::of(&watch);
    watch.read_until(have(lab.sizes.n_stream))?;
    let end = Moment::of(&watch);
    if watch.streams[..N_STREAMS].iter().any(Stream::has_ended) {
        return Err("a stream ended while others were timed".into());
    }
    check_idle(lab, &engine, idle, cache_ram)?;
    Ok(Speeds { arriving: arrived.speed_since(&settled), settled: end.speed_since(&arrived) })
}

/// Returns a predicate: every stream has at least `n` tokens.
fn have(n: usize) -> impl Fn(&[Stream]) -> bool {
    move |streams| streams[..N_STREAMS].iter().all(|stream| stream.n_tokens() >= n)
}

/// Checks that the prefixes arrived and are still cached; otherwise the measurement is void.
fn check_idle(lab: &Lab, engine: &Engine, idle: Idle, cache_ram: CacheRam) -> Result<(), String> {
    let stats = engine.stats();
    let n_expected = if idle == Idle::Never { 0 } else { lab.sizes.n_idle * lab.sizes.n_idle_each };
    let (n_loaded, n_forgotten) = (stats.host_cache.n_reloaded, stats.host_cache.n_evicted);
    let has_left = cache_ram == CacheRam::Bytes(0) && stats.n_cells_idle < n_expected;
    if n_loaded < n_expected as u64 || n_forgotten > 0 || has_left {
        let n_idle = stats.n_cells_idle;
        return Err(format!(
            "of {n_expected} idle tokens {n_loaded} came and {n_forgotten} were forgotten; {n_idle} cells are idle"
        ));
    }
    Ok(())
}

/// Number of tokens that the streams have generated at a time.
struct Moment {
    n_tokens: usize,
    at: Instant,
}

impl Moment {
    fn of(watch: &Watch) -> Self {
        Self { n_tokens: watch.streams[..N_STREAMS].iter().map(Stream::n_tokens).sum(), at: Instant::now() }
    }

    /// Returns the tokens per second of all streams together.
    fn speed_since(&self, earlier: &Self) -> f64 {
        (self.n_tokens - earlier.n_tokens) as f64 / (self.at - earlier.at).as_secs_f64()
    }
}
