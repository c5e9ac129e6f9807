//! What sharing saves: the same work with prompts that have something in common, and with prompts that have not.

use std::time::Instant;

use weft::config::CacheRam;
use weft::request::Token;

use super::lab::{Lab, N_CELLS, Spread, request};
use super::watch::Watch;

/// Slots of the engine, so that all requests of a case run at once.
const N_SLOTS: u32 = 16;

const N_BRANCHES: u32 = 8;

const N_USERS: usize = 8;
const N_TURNS: usize = 3;

/// Tokens that a user adds in a turn, and tokens of each answer.
const N_ASKED: usize = 100;
const N_ANSWERED: u32 = 50;

/// Tokens of each answer to the requests that come together.
const N_ANSWER: u32 = 32;

/// Whether prompts have something in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prompts {
    Shared,
    Unshared,
}

/// What a run cost.
struct Cost {
    seconds: f64,
    n_computed: u64,
    peak_cells: usize,
}

/// Prints the table.
///
/// # Errors
/// A message, when the engine fails.
pub(crate) fn measure(lab: &Lab) -> Result<(), String> {
    let group = |title: &str| format!(" {title:<38}");
    println!("\n  1. The same work with and without sharing");
    println!("  {:<44} │{} │{} │", "", group("nothing shared"), group("shared"));
    let columns = " seconds  prompt tokens       peak cells";
    println!("  {:<44} │{columns} │{columns} │ times faster, rounds", "");
    let (n_shared, n_branch, n_requests) = (lab.sizes.n_shared, lab.sizes.n_branch, lab.sizes.n_requests);
    let title = format!("{N_BRANCHES} branches of {n_branch} tokens of a prompt of {n_shared}");
    compare(lab, &title, fan_out)?;
    let title = format!("{n_requests} requests at once, the same {n_shared} tokens");
    compare(lab, &title, crowd)?;
    let title = format!("{N_USERS} users × {N_TURNS} turns of {N_ASKED} + {N_ANSWERED} tokens");
    compare(lab, &title, chat)
}

fn compare(lab: &Lab, title: &str, work: fn(&Lab, Prompts, &mut Watch) -> Result<(), String>) -> Result<(), String> {
    let run = |prompts| {
        let engine = lab.engine(N_SLOTS, N_CELLS, CacheRam::Default)?;
        let mut watch = Watch::new(&engine);
        let started = Instant::now();
        work(lab, prompts, &mut watch)?;
        let seconds = started.elapsed().as_secs_f64();
        Ok::<_, String>(Cost { seconds, n_computed: engine.stats().n_computed, peak_cells: watch.peak_cells })
    };
    let (mut unshared, mut shared) = (Vec::new(), Vec::new());
    let n_rounds = lab.rounds(1, |round| {
        // In turns, so that a steady drift of the machine favours nobody.
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

/// One prompt, several branches.
fn fan_out(lab: &Lab, prompts: Prompts, watch: &mut Watch) -> Result<(), String> {
    let prompt = lab.fresh(lab.sizes.n_shared);
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

/// Many requests with the same prompt, none of which is computed when they come.
fn crowd(lab: &Lab, prompts: Prompts, watch: &mut Watch) -> Result<(), String> {
    let prompt = lab.fresh(lab.sizes.n_shared);
    for _ in 0..lab.sizes.n_requests {
        watch.submit(request(shaped(lab, prompts, prompt.clone()), 1, N_ANSWER))?;
    }
    watch.read_all()
}

/// Users who send all that was said so far, as token ids, and something new.
fn chat(lab: &Lab, prompts: Prompts, watch: &mut Watch) -> Result<(), String> {
    let mut histories: Vec<Vec<Token>> = vec![Vec::new(); N_USERS];
    for _ in 0..N_TURNS {
        let n_before = watch.streams.len();
        for history in &mut histories {
            history.extend(lab.fresh(N_ASKED));
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
