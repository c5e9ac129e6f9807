//! Finds the fastest settings for a model on this machine by short timings.
//!
//! The objective is the time of a prompt of 1,000 tokens and of eight branches of it with 128 tokens each. Both are measured in part:
//! a chunk of the prompt with half of its cells present, and single steps of the branches with their average number of cells. The
//! cells are filled by writing one computed cell run repeatedly: their contents do not affect the time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{CacheRam, EngineConfig, FlashAttention, Limits, ResolvedConfig, TunedSettings};
use crate::engine::runner::{KvSeqId, Plan, StateError};
use crate::error::{Error, Result};
use crate::llama::context::{Context, batch::rows_of, memory};
use crate::llama::{Model, host::threads, resolve};
use crate::request::Token;

pub const N_PROMPT: u32 = 1_000;

pub const N_BRANCHES: u16 = 8;

pub const N_BRANCH: u32 = 128;

/// Cells that are computed once and written repeatedly. Few, so that a large model computes them quickly.
const N_RUN: u32 = 16;

/// Tokens of a timed chunk of a prompt. Flash attention has a faster kernel from 64 rows on; 16 is for models with few positions.
const CHUNKS: [u32; 5] = [16, 64, 128, 256, 512];

const CHUNK_TIME: Duration = Duration::from_millis(500);

const N_STEPS: u32 = 3;

/// Above this time of a step, only one is measured.
const SLOW_STEP: Duration = Duration::from_secs(1);

const MAX_ROUNDS: usize = 7;

/// Share of the time budget for prompts; the rest is for branches, whose steps are a server's most frequent work.
const PROMPTS_SHARE: f64 = 0.5;

/// A number of threads other than one per core must be faster by this factor, otherwise the difference counts as noise.
const NOISE: f64 = 0.95;

const PROMPT: KvSeqId = KvSeqId(0);

/// The sequence that computes the timed chunk, and then holds the average cells of the branches.
const OTHER: KvSeqId = KvSeqId(1);

const SPARE: KvSeqId = KvSeqId(2);

const FIRST_BRANCH: u16 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    Prompt,
    Branches,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// True if llama.cpp's fused attention kernel was used; `None` with our own attention.
    pub flash_attention: Option<bool>,
    pub work: Workload,
    pub n_threads: u32,
    /// Extrapolated time of the whole work; `None` if the budget did not suffice to measure it.
    pub took: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    pub timings: Vec<Timing>,
    pub best: TunedSettings,
}

/// Measures each attention once with all cores in any case, then the other candidates round-robin while `budget` lasts. `progress`
/// receives the elapsed share of the budget, 0 to 1; if it returns false, the result is `None`.
pub fn measure(
    model: &Arc<Model>,
    config: &EngineConfig,
    budget: Duration,
    mut progress: impl FnMut(f64) -> bool,
) -> Result<Option<Tuning>> {
    let started = Instant::now();
    let candidates = thread_candidates(threads::n_cores(), threads::n_allowed());
    let n_cores = candidates[0];
    let config = EngineConfig {
        n_slots: Some(u32::from(N_BRANCHES)),
        n_ctx: Some(2_048),
        kv_unified: Some(true),
        n_ubatch: Some(CHUNKS[CHUNKS.len() - 1]),
        cache_ram: CacheRam::Bytes(0),
        ..config.clone()
    };
    let config = resolve(model, &config, None)?;
    let attentions: &[Option<bool>] = if config.kernels.attention && !memory::is_offloaded(model) {
        &[None]
    } else if config.settings.type_v.is_quantized() {
        &[Some(true)]
    } else {
        &[Some(false), Some(true)]
    };
    let mut benches =
        attentions.iter().map(|&flash| TuningBench::new(model, &config, flash, n_cores)).collect::<Result<Vec<_>>>()?;
    let mut timings = Vec::new();
    for (work, until) in [(Workload::Prompt, budget.mul_f64(PROMPTS_SHARE)), (Workload::Branches, budget)] {
        for bench in &mut benches {
            bench.prepare(work)?;
        }
        let trials_with =
            |&n_threads: &u32| (0..attentions.len()).map(move |bench| Trial { bench, n_threads, samples: Vec::new() });
        let mut trials: Vec<Trial> = candidates.iter().flat_map(trials_with).collect();
        for round in 0..MAX_ROUNDS {
            for index in 0..trials.len() {
                let Trial { bench, n_threads, .. } = trials[index];
                let expected = benches[bench].measured_part(work, expected_s(&trials, index));
                let is_required = round == 0 && n_threads == n_cores;
                if is_required || started.elapsed() + expected <= until {
                    trials[index].samples.push(benches[bench].measure(work, n_threads)?);
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
    let best = choose_best(&timings, attentions, n_cores);
    Ok(progress(1.0).then_some(Tuning { timings, best }))
}

struct Trial {
    bench: usize,
    n_threads: u32,
    samples: Vec<f64>,
}

/// Seconds of the work as in the last measurement; before that, as with all cores but scaled by the number of threads.
fn expected_s(trials: &[Trial], index: usize) -> f64 {
    let trial = &trials[index];
    let with_all = &trials[trial.bench];
    let slower = f64::from(with_all.n_threads) / f64::from(trial.n_threads.min(with_all.n_threads));
    trial.samples.last().copied().or_else(|| Some(with_all.samples.last()? * slower)).unwrap_or(0.0)
}

fn thread_candidates(n_cores: u32, n_allowed: u32) -> Vec<u32> {
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

fn choose_best(timings: &[Timing], attentions: &[Option<bool>], n_cores: u32) -> TunedSettings {
    let fastest = |flash_attention, work| {
        let matching = timings.iter().filter(|timing| (timing.flash_attention, timing.work) == (flash_attention, work));
        let weighted = matching.filter_map(|timing| {
            let handicap = if timing.n_threads == n_cores { NOISE } else { 1.0 };
            timing.took.map(|elapsed| (elapsed.as_secs_f64() * handicap, elapsed.as_secs_f64(), timing.n_threads))
        });
        weighted.min_by(|a, b| a.0.total_cmp(&b.0)).expect("all cores are measured with every attention")
    };
    let chosen = attentions.iter().map(|&flash_attention| {
        let (_, prompt_s, n_threads_batch) = fastest(flash_attention, Workload::Prompt);
        let (_, branches_s, n_threads) = fastest(flash_attention, Workload::Branches);
        (prompt_s + branches_s, TunedSettings { flash_attention, n_threads, n_threads_batch })
    });
    chosen.min_by(|a, b| a.0.total_cmp(&b.0)).expect("one attention is possible").1
}

struct TuningBench {
    context: Context,
    token: Token,
    /// A cell run in llama.cpp's format; `None` for a recurrent memory, whose states do not grow.
    cell_run: Option<Arc<[u8]>>,
    n_chunk: u32,
    /// Recorded length of the prompt's sequence; further cells repeat its positions.
    seq_len: u32,
    n_cells: u32,
}

impl TuningBench {
    fn new(model: &Arc<Model>, config: &ResolvedConfig, flash: Option<bool>, n_threads: u32) -> Result<Self> {
        let n_ctx_train = model.n_ctx_train();
        if n_ctx_train < 2 * N_RUN + CHUNKS[0] {
            return Err(
                model.load_error(format!("its training context of {n_ctx_train} tokens is too short for the measurement"))
            );
        }
        let n_seq_max = u32::from(FIRST_BRANCH + N_BRANCHES);
        let config = ResolvedConfig {
            limits: Limits { n_seq_max, n_outputs: n_seq_max, ..config.limits },
            flash_attention: if flash.unwrap_or(true) { FlashAttention::On } else { FlashAttention::Off },
            n_threads,
            n_threads_batch: n_threads,
            fewer_threads_under_contention: false,
            ..config.clone()
        };
        let context = Context::new(model, &config, n_seq_max)?;
        let token = model.bos_token().unwrap_or(0);
        let mut bench = Self { context, token, cell_run: None, n_chunk: CHUNKS[0], seq_len: 0, n_cells: 0 };
        bench.append(PROMPT, N_RUN)?;
        (bench.seq_len, bench.n_cells) = (N_RUN, N_RUN);
        if !model.keeps_states() {
            bench.cell_run = Some(bench.context.read_state(PROMPT).map_err(|error| state_failure(&error))?);
        }
        let elapsed = bench.append(PROMPT, N_RUN)?;
        (bench.seq_len, bench.n_cells) = (2 * N_RUN, 2 * N_RUN);
        let n_fit = CHUNK_TIME.div_duration_f64(elapsed) * f64::from(N_RUN);
        // The model may have no positions beyond its training length.
        let n_remaining = n_ctx_train - bench.seq_len;
        let is_possible = |n: &u32| *n <= n_remaining && (*n <= CHUNKS[1] || f64::from(*n) <= n_fit);
        bench.n_chunk = CHUNKS.into_iter().rfind(is_possible).unwrap_or(CHUNKS[0]);
        Ok(bench)
    }

    fn append(&mut self, id: KvSeqId, n: u32) -> Result<Duration> {
        let plan = rows_of(id, self.context.seq_len(id), &vec![self.token; n as usize]);
        self.compute(&plan)
    }

    fn step(&mut self, ids: impl Iterator<Item = KvSeqId>, position: u32) -> Result<Duration> {
        let rows = ids.flat_map(|id| rows_of(id, position, &[self.token]).rows);
        self.compute(&Plan { rows: rows.collect(), ..Plan::default() })
    }

    fn compute(&mut self, plan: &Plan) -> Result<Duration> {
        let started = Instant::now();
        self.context.decode(plan).map_err(|error| Error::Decode { reason: error.reason })?;
        Ok(started.elapsed())
    }

    /// Fills half of the prompt; for branches all of it, and the cells of half-finished branches.
    fn prepare(&mut self, work: Workload) -> Result<()> {
        match work {
            Workload::Prompt => self.fill(PROMPT, N_PROMPT / 2),
            Workload::Branches => {
                self.fill(PROMPT, N_PROMPT + N_BRANCH / 2)?;
                self.fill(OTHER, self.n_cells + (u32::from(N_BRANCHES) - 1) * N_BRANCH / 2)
            }
        }
    }

    fn fill(&mut self, id: KvSeqId, n_cells: u32) -> Result<()> {
        let Some(cell_run) = &self.cell_run else { return Ok(()) };
        while self.n_cells + N_RUN <= n_cells {
            // SAFETY: the bytes were written by this context.
            unsafe { self.context.write_state(SPARE, cell_run) }.map_err(|error| state_failure(&error))?;
            self.context.share(SPARE, id, 0..N_RUN);
            self.context.unshare_all(SPARE);
            self.n_cells += N_RUN;
        }
        Ok(())
    }

    fn measure(&mut self, work: Workload, n_threads: u32) -> Result<f64> {
        self.context.set_threads(n_threads);
        match work {
            Workload::Prompt => {
                self.context.fork(PROMPT, OTHER, self.seq_len);
                let elapsed = self.append(OTHER, self.n_chunk);
                self.context.truncate(OTHER, 0);
                Ok(elapsed?.as_secs_f64() * f64::from(N_PROMPT) / f64::from(self.n_chunk))
            }
            Workload::Branches => {
                let branches = (FIRST_BRANCH..).take(usize::from(N_BRANCHES)).map(KvSeqId);
                for id in branches.clone() {
                    self.context.fork(PROMPT, id, self.seq_len);
                }
                // The first step wakes the threads, and determines how many steps are measured.
                let n_steps = n_steps(self.step(branches.clone(), self.seq_len)?);
                let mut elapsed = Duration::ZERO;
                for i in 1..=n_steps {
                    elapsed += self.step(branches.clone(), self.seq_len + i)?;
                }
                for id in branches {
                    self.context.truncate(id, 0);
                }
                Ok(elapsed.as_secs_f64() * f64::from(N_BRANCH) / f64::from(n_steps))
            }
        }
    }

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

fn n_steps(step: Duration) -> u32 {
    if step > SLOW_STEP { 1 } else { N_STEPS }
}

fn state_failure(error: &StateError) -> Error {
    Error::Decode { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(flash_attention: bool, work: Workload, n_threads: u32, ms: u64) -> Timing {
        Timing { flash_attention: Some(flash_attention), work, n_threads, took: (ms > 0).then(|| Duration::from_millis(ms)) }
    }

    #[test]
    fn candidates_start_with_the_cores_and_are_unique() {
        assert_eq!(thread_candidates(8, 16), [8, 4, 7, 16]);
        assert_eq!(thread_candidates(2, 2), [2, 1]);
        assert_eq!(thread_candidates(1, 1), [1]);
    }

    #[test]
    fn the_total_time_selects_attention_and_each_phase_its_threads() {
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
        assert_eq!(choose_best(&timings, &[Some(false), Some(true)], 8), fastest);
        // If only one is possible, or if fewer threads win only by noise.
        let fastest = TunedSettings { flash_attention: Some(true), n_threads: 8, n_threads_batch: 8 };
        assert_eq!(choose_best(&timings, &[Some(true)], 8), fastest);
    }

    #[test]
    fn with_our_attention_only_threads_are_chosen() {
        let timings = [
            (Workload::Prompt, 8, 900),
            (Workload::Prompt, 16, 700),
            (Workload::Branches, 8, 500),
            (Workload::Branches, 16, 600),
        ]
        .map(|(work, n_threads, ms)| Timing { flash_attention: None, ..timing(true, work, n_threads, ms) });
        assert_eq!(choose_best(&timings, &[None], 8), TunedSettings { flash_attention: None, n_threads: 8, n_threads_batch: 16 });
    }
}
