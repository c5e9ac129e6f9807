//! Short timings of a model on this machine → how its steps are computed fastest here.
//!
//! Numbers of threads are timed, and where our attention does not compute every layer, llama.cpp's two.
//!
//! What is made as short as possible is the time of a prompt of 1,000 tokens and of eight branches of it with 128 tokens each. Both
//! are measured in part: a chunk of the prompt beside half of its cells, and single steps of the branches beside as many cells as
//! they have on average. The cells are filled by writing one computed stretch again and again: what is in them changes no time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{Checkpoints, EngineConfig, FlashAttention, Limits, SLOW_CONSUMER_TIMEOUT, TunedSettings};
use crate::engine::runner::{KvSeqId, Plan, StateError};
use crate::error::{Error, Result};
use crate::llama::batch::rows_of;
use crate::llama::context::Context;
use crate::llama::{Model, start, threads};
use crate::request::Token;

/// The prompt that is looked at, in tokens.
pub const N_PROMPT: u32 = 1_000;

/// Branches of it.
pub const N_BRANCHES: u16 = 8;

/// Tokens of each branch.
pub const N_BRANCH: u32 = 128;

/// Cells that are computed once and written again and again. Few, so that a large model is not long about them.
const N_STRETCH: u32 = 16;

/// Sizes of a timed chunk of a prompt, in tokens; flash attention has a faster kernel from 64 rows on. The first is only for models
/// whose positions end before that.
const CHUNKS: [u32; 5] = [16, 64, 128, 256, 512];

/// A timed chunk takes about so long, if one of 64 tokens does.
const CHUNK_TIME: Duration = Duration::from_millis(500);

/// Steps that are timed as one measurement.
const N_STEPS: u32 = 3;

/// Where one step takes longer, only one is timed.
const SLOW_STEP: Duration = Duration::from_secs(1);

/// Most measurements of one candidate, of which the median counts.
const MAX_ROUNDS: usize = 7;

/// Part of the time that prompts may take; the rest is for branches, whose steps are what a server does most.
const PROMPTS_SHARE: f64 = 0.5;

/// A number of threads other than one for each core must be faster by this factor, or it is taken for noise.
const NOISE: f64 = 0.95;

/// Who holds the prompt.
const PROMPT: KvSeqId = KvSeqId(0);

/// Who computes what is timed of a prompt, and then holds as many cells as the branches do on average.
const OTHER: KvSeqId = KvSeqId(1);

/// For writing a stretch.
const SPARE: KvSeqId = KvSeqId(2);

/// The branches come after these.
const FIRST_BRANCH: u16 = 3;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// A prompt of [`N_PROMPT`] tokens.
    Prompt,
    /// [`N_BRANCHES`] branches of it, of [`N_BRANCH`] tokens each.
    Branches,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Whether llama.cpp's attention ran as one fused kernel; `None` where ours computed.
    pub flash_attention: Option<bool>,
    /// What was done.
    pub work: Workload,
    /// With how many threads.
    pub n_threads: u32,
    /// The time that the whole of it would take; `None` where there was no time to measure it.
    pub took: Option<Duration>,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// Every candidate.
    pub timings: Vec<Timing>,
    /// The fastest of them together.
    pub best: TunedSettings,
}

/// Times the candidates for `model` with the cache formats and the kernels of `config`, in contexts of its own, for about `budget` at most: each
/// attention once with all cores however long that takes, then the rest in turns as long as there is time. `progress` is told how
/// much of the time is gone, 0 to 1, and 1 at the end; where it returns false, nothing more is measured and nothing is known.
///
/// # Errors
/// [`Error::InvalidConfig`] if a context does not fit into memory, [`Error::ModelLoad`] if the model knows too few positions,
/// [`Error::Decode`] if it cannot compute.
pub fn measure(
    model: &Arc<Model>,
    config: &EngineConfig,
    budget: Duration,
    mut progress: impl FnMut(f64) -> bool,
) -> Result<Option<Tuning>> {
    let started = Instant::now();
    let candidates = candidates(threads::n_cores(), threads::n_allowed());
    let n_cores = candidates[0];
    let (facts, machine) = (model.facts(config.type_k, config.type_v), start::machine(model, config));
    let config = &EngineConfig { used: config.used_for(&facts, &machine), ..config.clone() };
    let attentions: &[Option<bool>] = if config.has_own_attention(&facts, &machine) {
        &[None]
    } else if config.type_v.is_quantized() {
        &[Some(true)]
    } else {
        &[Some(false), Some(true)]
    };
    let mut benches = attentions.iter().map(|&flash| Bench::new(model, config, flash, n_cores)).collect::<Result<Vec<_>>>()?;
    let mut timings = Vec::new();
    for (work, until) in [(Workload::Prompt, budget.mul_f64(PROMPTS_SHARE)), (Workload::Branches, budget)] {
        for bench in &mut benches {
            bench.prepare(work)?;
        }
        let of_threads =
            |&n_threads: &u32| (0..attentions.len()).map(move |bench| Trial { bench, n_threads, samples: Vec::new() });
        let mut trials: Vec<Trial> = candidates.iter().flat_map(of_threads).collect();
        for round in 0..MAX_ROUNDS {
            for at in 0..trials.len() {
                let Trial { bench, n_threads, .. } = trials[at];
                let expected = benches[bench].measured_part(work, expected_s(&trials, at));
                let must_be = round == 0 && n_threads == n_cores;
                if must_be || started.elapsed() + expected <= until {
                    trials[at].samples.push(benches[bench].measure(work, n_threads)?);
                    if !progress(started.elapsed().div_duration_f64(budget).min(1.0)) {
                        return Ok(None);
                    }
                }
            }
        }
        timings.extend(trials.into_iter().map(|Trial { bench, n_threads, samples }| Timing {
            flash_attention: attentions[bench],
            work,
            n_threads,
            took: median(samples).map(Duration::from_secs_f64),
        }));
    }
    let best = best(&timings, attentions, n_cores);
    Ok(progress(1.0).then_some(Tuning { timings, best }))
}

/// One candidate.
struct Trial {
    /// Of which attention.
    bench: usize,
    n_threads: u32,
    /// Seconds that the whole work would take.
    samples: Vec<f64>,
}

/// Seconds that the work will take: as the last time; before that, as with all cores, and longer by as much as threads are fewer.
fn expected_s(trials: &[Trial], at: usize) -> f64 {
    let trial = &trials[at];
    let with_all = &trials[trial.bench];
    let slower = f64::from(with_all.n_threads) / f64::from(trial.n_threads.min(with_all.n_threads));
    trial.samples.last().copied().or_else(|| Some(with_all.samples.last()? * slower)).unwrap_or(0.0)
}

/// Numbers of threads to try, that of the rule first: all cores, half of them, and all that the processor runs at once.
fn candidates(n_cores: u32, n_allowed: u32) -> Vec<u32> {
    let mut candidates = vec![n_cores];
    for n in [n_cores.div_ceil(2), n_cores - 1, n_allowed] {
        if n > 0 && !candidates.contains(&n) {
            candidates.push(n);
        }
    }
    candidates
}

fn median(mut samples: Vec<f64>) -> Option<f64> {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied()
}

/// The attention with which prompt and branches together take least, each with its best number of threads.
fn best(timings: &[Timing], attentions: &[Option<bool>], n_cores: u32) -> TunedSettings {
    let fastest = |flash_attention, work| {
        let of_this = timings.iter().filter(|timing| (timing.flash_attention, timing.work) == (flash_attention, work));
        let weighed = of_this.filter_map(|timing| {
            let handicap = if timing.n_threads == n_cores { NOISE } else { 1.0 };
            timing.took.map(|took| (took.as_secs_f64() * handicap, took.as_secs_f64(), timing.n_threads))
        });
        weighed.min_by(|a, b| a.0.total_cmp(&b.0)).expect("all cores are measured with every attention")
    };
    let chosen = attentions.iter().map(|&flash_attention| {
        let (_, prompt_s, n_threads_batch) = fastest(flash_attention, Workload::Prompt);
        let (_, branches_s, n_threads) = fastest(flash_attention, Workload::Branches);
        (prompt_s + branches_s, TunedSettings { flash_attention, n_threads, n_threads_batch })
    });
    chosen.min_by(|a, b| a.0.total_cmp(&b.0)).expect("one attention is possible").1
}

/// A context that is filled as far as the work wants it.
struct Bench {
    context: Context,
    token: Token,
    /// Cells of a stretch, as llama.cpp writes them; `None` where a memory holds states, which do not grow.
    stretch: Option<Arc<[u8]>>,
    /// Tokens of the timed chunk.
    n_chunk: u32,
    /// Tokens that the prompt's sequence counts; the cells beyond have the positions of these.
    n_held: u32,
    n_cells: u32,
}

impl Bench {
    fn new(model: &Arc<Model>, config: &EngineConfig, flash: Option<bool>, n_threads: u32) -> Result<Self> {
        let n_ctx_train = model.n_ctx_train();
        if n_ctx_train < 2 * N_STRETCH + CHUNKS[0] {
            let reason = format!("it was trained on {n_ctx_train} tokens, too few to time it");
            return Err(Error::ModelLoad { path: model.path().to_owned(), reason });
        }
        let n_seq_max = u32::from(FIRST_BRANCH + N_BRANCHES);
        let limits = Limits {
            n_slots: u32::from(N_BRANCHES),
            n_ctx: 2_048,
            n_ctx_slot: 2_048,
            n_ubatch: CHUNKS[CHUNKS.len() - 1],
            grouping: None,
            n_seq_max,
            n_outputs: n_seq_max,
            max_store_bytes: Some(0),
            max_queue: 1,
            max_token_gap: config.max_token_gap,
            checkpoints: Checkpoints::NONE,
            reader_patience: SLOW_CONSUMER_TIMEOUT,
        };
        let config = EngineConfig {
            // Ours takes the place of llama.cpp's fused kernel.
            flash_attention: if flash.unwrap_or(true) { FlashAttention::On } else { FlashAttention::Off },
            n_threads: Some(n_threads),
            n_threads_batch: Some(n_threads),
            ..config.clone()
        };
        let context = Context::new(Arc::clone(model), &config, &limits, n_seq_max)?;
        let token = model.bos_token().unwrap_or(0);
        let mut bench = Self { context, token, stretch: None, n_chunk: CHUNKS[0], n_held: 0, n_cells: 0 };
        // The first decode warms up.
        bench.append(PROMPT, N_STRETCH)?;
        (bench.n_held, bench.n_cells) = (N_STRETCH, N_STRETCH);
        if !model.is_recurrent() && !model.is_hybrid() {
            bench.stretch = Some(bench.context.read_state(PROMPT).map_err(|error| unwritten(&error))?);
        }
        let took = bench.append(PROMPT, N_STRETCH)?;
        (bench.n_held, bench.n_cells) = (2 * N_STRETCH, 2 * N_STRETCH);
        let n_fit = CHUNK_TIME.div_duration_f64(took) * f64::from(N_STRETCH);
        // The positions that a model was trained on may be all that it has.
        let n_left = n_ctx_train - bench.n_held;
        let is_possible = |n: &u32| *n <= n_left && (*n <= CHUNKS[1] || f64::from(*n) <= n_fit);
        bench.n_chunk = CHUNKS.into_iter().rfind(is_possible).unwrap_or(CHUNKS[0]);
        Ok(bench)
    }

    /// Computes `n` more tokens of `id`.
    fn append(&mut self, id: KvSeqId, n: u32) -> Result<Duration> {
        let plan = rows_of(id, self.context.n_held(id), &vec![self.token; n as usize]);
        self.compute(&plan)
    }

    /// Computes one token of each of `ids`.
    fn step(&mut self, ids: impl Iterator<Item = KvSeqId>, position: u32) -> Result<Duration> {
        let rows = ids.flat_map(|id| rows_of(id, position, &[self.token]).rows);
        self.compute(&Plan { rows: rows.collect(), ..Plan::default() })
    }

    fn compute(&mut self, plan: &Plan) -> Result<Duration> {
        let started = Instant::now();
        self.context.decode(plan).map_err(|error| Error::Decode { reason: error.reason })?;
        Ok(started.elapsed())
    }

    /// Gives the prompt as many cells as it has halfway, or in the end; then there are also those of branches halfway.
    fn prepare(&mut self, work: Workload) -> Result<()> {
        match work {
            Workload::Prompt => self.fill(PROMPT, N_PROMPT / 2),
            Workload::Branches => {
                self.fill(PROMPT, N_PROMPT + N_BRANCH / 2)?;
                self.fill(OTHER, self.n_cells + (u32::from(N_BRANCHES) - 1) * N_BRANCH / 2)
            }
        }
    }

    /// Writes stretches for `id` until `n_cells` are used.
    fn fill(&mut self, id: KvSeqId, n_cells: u32) -> Result<()> {
        let Some(stretch) = &self.stretch else { return Ok(()) };
        while self.n_cells + N_STRETCH <= n_cells {
            // SAFETY: this context has written the bytes.
            unsafe { self.context.write_state(SPARE, stretch) }.map_err(|error| unwritten(&error))?;
            self.context.lend(SPARE, id, 0..N_STRETCH);
            self.context.take_all_back(SPARE);
            self.n_cells += N_STRETCH;
        }
        Ok(())
    }

    /// Seconds of `work` with so many threads.
    fn measure(&mut self, work: Workload, n_threads: u32) -> Result<f64> {
        self.context.set_threads(n_threads);
        match work {
            Workload::Prompt => {
                self.context.fork(PROMPT, OTHER, self.n_held);
                let took = self.append(OTHER, self.n_chunk);
                self.context.truncate(OTHER, 0);
                Ok(took?.as_secs_f64() * f64::from(N_PROMPT) / f64::from(self.n_chunk))
            }
            Workload::Branches => {
                let branches = (FIRST_BRANCH..).take(usize::from(N_BRANCHES)).map(KvSeqId);
                for id in branches.clone() {
                    self.context.fork(PROMPT, id, self.n_held);
                }
                // The first one wakes the threads, and tells how many there is time for.
                let n_steps = n_steps(self.step(branches.clone(), self.n_held)?);
                let mut took = Duration::ZERO;
                for i in 1..=n_steps {
                    took += self.step(branches.clone(), self.n_held + i)?;
                }
                for id in branches {
                    self.context.truncate(id, 0);
                }
                Ok(took.as_secs_f64() * f64::from(N_BRANCH) / f64::from(n_steps))
            }
        }
    }

    /// How long a measurement takes, if `work` takes so many seconds.
    fn measured_part(&self, work: Workload, seconds: f64) -> Duration {
        let part = match work {
            Workload::Prompt => f64::from(self.n_chunk) / f64::from(N_PROMPT),
            Workload::Branches => {
                f64::from(1 + n_steps(Duration::from_secs_f64(seconds / f64::from(N_BRANCH)))) / f64::from(N_BRANCH)
            }
        };
        Duration::from_secs_f64(seconds * part)
    }
}

/// How many steps are timed where one takes so long.
fn n_steps(step: Duration) -> u32 {
    if step > SLOW_STEP { 1 } else { N_STEPS }
}

fn unwritten(error: &StateError) -> Error {
    Error::Decode { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(flash_attention: bool, work: Workload, n_threads: u32, ms: u64) -> Timing {
        Timing { flash_attention: Some(flash_attention), work, n_threads, took: (ms > 0).then(|| Duration::from_millis(ms)) }
    }

    #[test]
    fn candidates_begin_with_the_cores_and_name_none_twice() {
        assert_eq!(candidates(8, 16), [8, 4, 7, 16]);
        assert_eq!(candidates(2, 2), [2, 1]);
        assert_eq!(candidates(1, 1), [1]);
    }

    #[test]
    fn prompt_and_branches_together_decide_on_attention_and_each_on_its_threads() {
        let timings = [
            timing(false, Workload::Prompt, 8, 900),
            timing(true, Workload::Prompt, 8, 500),
            timing(false, Workload::Prompt, 16, 700),
            timing(true, Workload::Prompt, 16, 0),
            timing(false, Workload::Branches, 8, 1_000),
            timing(true, Workload::Branches, 8, 1_500),
            timing(false, Workload::Branches, 4, 800),
            timing(true, Workload::Branches, 4, 1_450),
        ];
        let fastest = TunedSettings { flash_attention: Some(false), n_threads: 4, n_threads_batch: 16 };
        assert_eq!(best(&timings, &[Some(false), Some(true)], 8), fastest);
        // Where only one is possible, or where noise is all that speaks for fewer threads.
        let fastest = TunedSettings { flash_attention: Some(true), n_threads: 8, n_threads_batch: 8 };
        assert_eq!(best(&timings, &[Some(true)], 8), fastest);
    }

    #[test]
    fn where_our_attention_computes_only_threads_are_chosen() {
        let timings = [
            (Workload::Prompt, 8, 900),
            (Workload::Prompt, 16, 700),
            (Workload::Branches, 8, 500),
            (Workload::Branches, 16, 600),
        ]
        .map(|(work, n_threads, ms)| Timing { flash_attention: None, ..timing(true, work, n_threads, ms) });
        assert_eq!(best(&timings, &[None], 8), TunedSettings { flash_attention: None, n_threads: 8, n_threads_batch: 16 });
    }
}
