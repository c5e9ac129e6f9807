//! Savings of sharing: the same work with prompts that share a prefix, and with prompts that share none.

use std::time::Instant;

use weft::config::CacheRam;
use weft::request::Token;

use super::lab::{Lab, N_CELLS, request};
use super::watch::Watch;
use crate::support::spread::Spread;

/// Slots of the engine, for all requests of a case simultaneously.
const N_SLOTS: u32 = 16;

const N_BRANCHES: u32 = 8;

const N_USERS: usize = 8;
const N_TURNS: usize = 3;

/// Maximum tokens that a user adds in a turn, and tokens of each answer.
const N_ASKED: usize = 100;
const N_ANSWERED: u32 = 50;

/// Maximum time to compute all prompts of a round, in seconds: a slow machine gets shorter prompts.
const PROMPTS_S: f64 = 60.0;

/// Tokens of each answer to the requests that arrive together.
const N_ANSWER: u32 = 32;

/// Sharing of prefixes between prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prompts {
    Shared,
    Unshared,
}

/// Lengths of the prompts.
#[derive(Debug, Clone, Copy)]
struct Lengths {
    /// Tokens of the prompt of branches and of requests that arrive together.
    n_shared: usize,
    /// Tokens that a user adds in a turn.
    n_asked: usize,
}

impl Lengths {
    /// Returns the lab's lengths, shortened for a machine that computes `speed` tokens per second.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a small count")]
    fn fitting(lab: &Lab, speed: f64) -> Self {
        let preferred = Self { n_shared: lab.sizes.n_shared, n_asked: N_ASKED };
        let share = (PROMPTS_S * speed / preferred.n_computed(lab) as f64).min(1.0);
        // With shorter prompts, sharing would have little effect.
        let [n_shared, n_asked] = [preferred.n_shared, preferred.n_asked].map(|n| ((n as f64 * share) as usize).max(32));
        Self { n_shared, n_asked }
    }

    /// Returns the prompt tokens that a round computes, with and without sharing.
    fn n_computed(self, lab: &Lab) -> usize {
        let n_prompts = N_BRANCHES as usize + 1 + lab.sizes.n_requests + 1;
        let n_answered = N_ANSWERED as usize;
        let n_turns = |n: usize| n * (n + 1) / 2;
        let unshared = n_turns(N_TURNS) * self.n_asked + n_turns(N_TURNS - 1) * n_answered;
        n_prompts * self.n_shared + N_USERS * (unshared + N_TURNS * self.n_asked)
    }
}

/// Cost of a run.
struct Cost {
    seconds: f64,
    n_computed: u64,
    peak_cells: usize,
}

/// Prints the table.
///
/// # Errors
/// A message, if the engine fails.
pub(crate) fn measure(lab: &Lab) -> Result<(), String> {
    let group = |title: &str| format!(" {title:<38}");
    let speed = lab.prefill_speed()?;
    let lengths = Lengths::fitting(lab, speed);
    println!("\n  1. The same work with and without sharing");
    let n_shared_max = lab.sizes.n_shared;
    println!(
        "  at {speed:.0} prompt tokens per second, prompts of {n_shared_max} tokens are {} long here, and questions of {N_ASKED} {}",
        lengths.n_shared, lengths.n_asked
    );
    println!("  {:<44} │{} │{} │", "", group("nothing shared"), group("shared"));
    let columns = " seconds  prompt tokens       peak cells";
    println!("  {:<44} │{columns} │{columns} │ times faster, rounds", "");
    let Lengths { n_shared, n_asked } = lengths;
    let (n_branch, n_requests) = (lab.sizes.n_branch, lab.sizes.n_requests);
    let title = format!("{N_BRANCHES} branches of {n_branch} tokens of a prompt of {n_shared}");
    compare(lab, &title, |prompts, watch| fan_out(lab, lengths, prompts, watch))?;
    let title = format!("{n_requests} requests at once, the same {n_shared} tokens");
    compare(lab, &title, |prompts, watch| simultaneous_requests(lab, lengths, prompts, watch))?;
    let title = format!("{N_USERS} users × {N_TURNS} turns of {n_asked} + {N_ANSWERED} tokens");
    compare(lab, &title, |prompts, watch| chat(lab, lengths, prompts, watch))
}

fn compare(lab: &Lab, title: &str, work: impl Fn(Prompts, &mut Watch) -> Result<(), String>) -> Result<(), String> {
    let run = |prompts| {
        let engine = lab.engine(N_SLOTS, N_CELLS, CacheRam::Default)?;
        let mut watch = Watch::new(&engine);
        let started = Instant::now();
        work(prompts, &mut watch)?;
        let seconds = started.elapsed().as_secs_f64();
        Ok::<_, String>(Cost { seconds, n_computed: engine.stats().n_computed, peak_cells: watch.peak_cells })
    };
    let (mut unshared, mut shared) = (Vec::new(), Vec::new());
    let n_rounds = lab.rounds(1, |round| {
        // Alternating, so that a steady drift of the machine favours no side.
        if round % 2 == 0 {
            unshared.push(run(Prompts::Unshared)?);
            shared.push(run(Prompts::Shared)?);
        } else {
            shared.push(run(Prompts::Shared)?);
            unshared.push(run(Prompts::Unshared)?);
        }
        Ok(())
    })?;
    let ratios: Vec<f64> = unshared.iter().zip(&shared).map(|(unshared, shared)| unshared.seconds / shared.seconds).collect();
    let show = |costs: &[Cost]| {
        let seconds = Spread::of(&costs.iter().map(|cost| cost.seconds).collect::<Vec<_>>()).median;
        let n_computed = costs.iter().map(|cost| cost.n_computed).max().unwrap_or(0);
        let peak_cells = costs.iter().map(|cost| cost.peak_cells).max().unwrap_or(0);
        format!("{seconds:>8.2}  {n_computed:>13}  {peak_cells:>15}")
    };
    println!("  {title:<44} │{} │{} │ {}, {n_rounds}", show(&unshared), show(&shared), Spread::of(&ratios).show(2));
    Ok(())
}

/// Runs one prompt with several branches.
fn fan_out(lab: &Lab, lengths: Lengths, prompts: Prompts, watch: &mut Watch) -> Result<(), String> {
    let prompt = lab.fresh(lengths.n_shared);
    match prompts {
        Prompts::Shared => watch.submit(request(prompt, N_BRANCHES, lab.sizes.n_branch))?,
        Prompts::Unshared => {
            for _ in 0..N_BRANCHES {
                watch.submit(request(lab.unshared(&prompt), 1, lab.sizes.n_branch))?;
            }
        }
    }
    watch.read_all()
}

/// Runs many requests with the same prompt, which is not computed when they arrive.
fn simultaneous_requests(lab: &Lab, lengths: Lengths, prompts: Prompts, watch: &mut Watch) -> Result<(), String> {
    let prompt = lab.fresh(lengths.n_shared);
    for _ in 0..lab.sizes.n_requests {
        watch.submit(request(shaped(lab, prompts, prompt.clone()), 1, N_ANSWER))?;
    }
    watch.read_all()
}

/// Runs users that send the whole conversation so far, as token ids, and new text.
fn chat(lab: &Lab, lengths: Lengths, prompts: Prompts, watch: &mut Watch) -> Result<(), String> {
    let mut histories: Vec<Vec<Token>> = vec![Vec::new(); N_USERS];
    for _ in 0..N_TURNS {
        let n_before = watch.streams.len();
        for history in &mut histories {
            history.extend(lab.fresh(lengths.n_asked));
            watch.submit(request(shaped(lab, prompts, history.clone()), 1, N_ANSWERED))?;
        }
        watch.read_all()?;
        for (history, stream) in histories.iter_mut().zip(&watch.streams[n_before..]) {
            history.extend(&stream.branches[0].tokens);
        }
    }
    Ok(())
}

fn shaped(lab: &Lab, prompts: Prompts, prompt: Vec<Token>) -> Vec<Token> {
    match prompts {
        Prompts::Shared => prompt,
        Prompts::Unshared => lab.unshared(&prompt),
    }
}
