//! What idle cells cost those who run for as long as the engine lets them stay, and after it has moved them to its store.

use std::thread;
use std::time::{Duration, Instant};

use weft::engine::{Completions, Engine, Ready};
use weft::request::{Event, Prompt, Request, SamplingParams};

use super::{aims, idle};
use crate::support::engine::EngineSide;
use crate::support::pair::Pair;
use crate::support::shape::Shape;
use crate::support::spread::Spread;
use crate::support::turns::Effort;

/// Tokens that each stream has written before anything else happens: then no prompt is computed any more.
const N_BEGUN: u32 = 16;

/// Steps that are timed. The engine remembers as many.
const N_STEPS: u64 = 48;

/// Steps without a movement after which nothing moves any more.
const N_QUIET: u64 = 24;

/// How often the engine is asked how far it is. Seldom, so that who asks takes no core from it.
const GLANCE: Duration = Duration::from_millis(2);

/// Longest wait for anything.
const DEADLINE: Duration = Duration::from_secs(20);

/// Median seconds of a step, and how many tokens a stream had written by then.
#[derive(Debug, Clone, Copy)]
struct Timed {
    n_written: u32,
    seconds: f64,
}

/// Prints the engine's speed while as many cells are idle as each of `n_idle` says, and after they have left, over its speed at the
/// same tokens of the same streams with nothing beside them.
///
/// # Errors
/// A message, when the engine fails, or when the cells do not come or do not leave.
pub(crate) fn measure(pair: &Pair<'_>, n_idle: &[usize], effort: &Effort) -> Result<(), String> {
    for &n_idle in n_idle {
        let (mut staying, mut left, mut n_decodes) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..effort.max_rounds {
            let beside = beside_idle(&pair.storing_engine_side(Shape { n_idle, ..idle::STREAMS }, n_idle)?)?;
            let alone = alone(&pair.storing_engine_side(idle::STREAMS, n_idle)?, [beside.staying, beside.left])?;
            staying.push(alone[0].seconds / beside.staying.seconds);
            left.push(alone[1].seconds / beside.left.seconds);
            n_decodes.push(beside.n_decodes as f64);
        }
        let [staying, left, n_decodes] = [staying, left, n_decodes].map(|values| Spread::of(&values));
        let streams = idle::STREAMS;
        println!("  {:<38} {:>6}   engine {} while they stay", format!("{streams}, {n_idle} come ÷ alone"), "", staying.show(2));
        println!(
            "  {:<38} {:>6.2}   engine {} {}, all {n_idle} having left {:.0} decodes after they came",
            "",
            aims::BESIDE_IDLE,
            left.show(2),
            aims::verdict(left.median, aims::BESIDE_IDLE),
            n_decodes.median
        );
    }
    Ok(())
}

/// What was measured in an engine to which idle cells came.
struct Beside {
    staying: Timed,
    left: Timed,
    /// From the last of them that came to the last that left.
    n_decodes: u64,
}

fn beside_idle(side: &EngineSide) -> Result<Beside, String> {
    let mut streams = Streams::start(side)?;
    side.load_idle(&streams.engine)?;
    let came = streams.engine.stats();
    if came.n_cells_idle < side.shape.n_idle || came.host_cache.n_offloaded > 0 {
        return Err(format!("of {} idle tokens {} are in the pool", side.shape.n_idle, came.n_cells_idle));
    }
    let staying = streams.time()?;
    let is_whole = |stats: &weft::engine::Stats| stats.n_cells_idle == came.n_cells_idle;
    if !is_whole(&streams.engine.stats()) {
        return Err("idle cells left before their cost was measured".to_owned());
    }
    streams.wait(|engine| engine.stats().n_cells_idle == 0)?;
    let gone = streams.engine.stats();
    if gone.host_cache.n_evicted > 0 {
        return Err(format!("{} idle tokens were forgotten, not moved", gone.host_cache.n_evicted));
    }
    // Cells above those that left are moved down to where they were.
    let mut last = (gone.n_decodes, gone.host_cache.n_relocated);
    streams.wait(|engine| {
        let stats = engine.stats();
        if stats.host_cache.n_relocated != last.1 {
            last = (stats.n_decodes, stats.host_cache.n_relocated);
        }
        stats.n_decodes >= last.0 + N_QUIET
    })?;
    Ok(Beside { staying, left: streams.time()?, n_decodes: gone.n_decodes - came.n_decodes })
}

/// Times the same steps with nothing beside the streams.
fn alone(side: &EngineSide, when: [Timed; 2]) -> Result<[Timed; 2], String> {
    let mut streams = Streams::start(side)?;
    let mut time_at = |timed: Timed| {
        streams.wait(|engine| n_written(engine).is_some_and(|n| n + N_STEPS as u32 >= timed.n_written))?;
        streams.time()
    };
    Ok([time_at(when[0])?, time_at(when[1])?])
}

/// Streams that run for as long as their positions allow.
struct Streams {
    engine: Engine,
    running: Vec<Completions>,
}

impl Streams {
    fn start(side: &EngineSide) -> Result<Self, String> {
        let engine = side.start()?;
        let Shape { n_sequences, n_tokens, .. } = side.shape;
        let n_most = engine.limits().n_ctx_slot - u32::try_from(n_tokens).expect("a bench's prompts are short");
        let submit = |place| {
            let mut request = Request::new(Prompt::from_tokens(side.prompt(place, n_tokens)), 0);
            request.max_tokens = Some(n_most);
            request.sampling = SamplingParams { ignore_eos: true, ..SamplingParams::default() };
            engine.submit(request, None).map_err(|error| error.to_string())
        };
        let running = (0..n_sequences).map(submit).collect::<Result<_, _>>()?;
        let mut streams = Self { engine, running };
        streams.wait(|engine| n_written(engine).is_some_and(|n| n >= N_BEGUN) && n_running(engine) == n_sequences)?;
        Ok(streams)
    }

    /// Waits until `is_so`, and reads meanwhile what the streams yield.
    fn wait(&mut self, mut is_so: impl FnMut(&Engine) -> bool) -> Result<(), String> {
        let started = Instant::now();
        while !is_so(&self.engine) {
            for stream in &self.running {
                match stream.try_events(usize::MAX).map_err(|error| error.to_string())? {
                    Ready::Events(events) if events.iter().any(|event| matches!(event, Event::Finished(_))) => {
                        return Err("a stream came to its end before idle cells had left".to_owned());
                    }
                    _ if started.elapsed() > DEADLINE => return Err("the engine is behind by far".to_owned()),
                    _ => {}
                }
            }
            thread::sleep(GLANCE);
        }
        Ok(())
    }

    /// Times the next steps, each of all streams.
    fn time(&mut self) -> Result<Timed, String> {
        let n_before = self.engine.stats().n_decodes;
        self.wait(|engine| engine.stats().n_decodes >= n_before + N_STEPS)?;
        let steps = self.engine.recent_steps();
        let steps = &steps[steps.len() - N_STEPS as usize..];
        if steps.iter().any(|step| step.n_rows as usize != self.running.len()) {
            return Err("a step that was timed had other rows than those of the streams".to_owned());
        }
        let n_written = n_written(&self.engine).ok_or("a stream ended while it was timed")?;
        let seconds: Vec<f64> = steps.iter().map(|step| step.took.as_secs_f64()).collect();
        Ok(Timed { n_written, seconds: Spread::of(&seconds).median })
    }
}

fn n_running(engine: &Engine) -> usize {
    engine.stats().slots.iter().filter(|slot| slot.running.is_some()).count()
}

/// Tokens that the stream has written which is behind.
fn n_written(engine: &Engine) -> Option<u32> {
    engine.stats().slots.iter().filter_map(|slot| Some(slot.running.as_ref()?.n_predicted)).min()
}
