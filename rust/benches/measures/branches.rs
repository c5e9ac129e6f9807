//! Finished branches, more than there are sequence ids and with more tokens than the device cache has cells, each continued
//! once.

use std::time::Instant;

use weft::config::CacheRam;
use weft::request::Token;

use super::lab::{Lab, request};
use super::watch::Watch;

/// Cells of the device cache.
const N_CELLS: u32 = 4_096;

/// Maximum of running sequences: four requests, or 32 continuations.
const N_SLOTS: u32 = 32;

const N_BRANCHES: u32 = 8;
const N_PROMPT: usize = 32;
const N_BRANCH: u32 = 16;

/// Tokens that each continuation generates.
const N_MORE: u32 = 2;

/// Branches are not continued in order, but with a stride that is coprime to their number.
const STRIDE: usize = 37;

/// Prints the results.
///
/// # Errors
/// A message, if the engine fails.
#[allow(clippy::cast_precision_loss, reason = "a bench's counts are small")]
pub(crate) fn measure(lab: &Lab) -> Result<(), String> {
    let n_fans = lab.sizes.n_fans;
    let engine = lab.engine(N_SLOTS, N_CELLS, CacheRam::Default)?;
    let mut watch = Watch::new(&engine);
    let prompts: Vec<Vec<Token>> = (0..n_fans).map(|_| lab.fresh(N_PROMPT)).collect();
    let started = Instant::now();
    for prompt in &prompts {
        watch.submit(request(prompt.clone(), N_BRANCHES, N_BRANCH))?;
    }
    watch.read_all()?;
    let written_s = started.elapsed().as_secs_f64();
    let finished: Vec<Vec<Token>> = prompts
        .iter()
        .zip(&watch.streams)
        .flat_map(|(prompt, stream)| stream.branches.iter().map(move |branch| [&prompt[..], &branch.tokens].concat()))
        .collect();
    let written = engine.stats();

    let mut watch = Watch::new(&engine);
    let started = Instant::now();
    for i in 0..finished.len() {
        watch.submit(request(finished[i * STRIDE % finished.len()].clone(), 1, N_MORE))?;
    }
    watch.read_all()?;
    let continued_s = started.elapsed().as_secs_f64();
    let stats = engine.stats();

    let ends = watch.streams.iter().filter_map(|stream| stream.branches[0].end.as_ref());
    let mut n_computed: Vec<u32> = ends.map(|end| end.usage.n_prompt_computed).collect();
    n_computed.sort_unstable();
    let (min, max) = (n_computed[0], n_computed[n_computed.len() - 1]);
    let n_distinct = n_fans * (N_PROMPT + (N_BRANCHES * (N_BRANCH - 1)) as usize);
    let n_ids = stats.n_ids;
    println!("\n  4. {} finished branches, {n_distinct} tokens, {n_ids} sequence ids, a pool of {N_CELLS} cells", finished.len());
    println!("  written in {written_s:.2} s, each continued by {N_MORE} tokens in {continued_s:.2} s, {N_SLOTS} at once");
    let n_more = stats.n_computed - written.n_computed;
    println!("  prompt tokens computed per continuation: {min} to {max} ({n_more} in all)");
    let n_restored = stats.host_cache.n_reloaded - written.host_cache.n_reloaded;
    let restore = stats.times.reload.saturating_sub(written.times.reload).as_secs_f64();
    let (n_saved, spill) = (stats.host_cache.n_offloaded, stats.times.offload.as_secs_f64());
    let rate = |n: u64, seconds: f64| (n as f64 / seconds, seconds * 1e6 / n as f64);
    let ((restored_per_s, restored_us), (saved_per_s, saved_us)) = (rate(n_restored, restore), rate(n_saved, spill));
    println!("  restored {n_restored} tokens, {restored_per_s:.0} per second of restoring ({restored_us:.1} µs each)");
    println!("  saved {n_saved} tokens, {saved_per_s:.0} per second of saving and moving ({saved_us:.1} µs each)");
    let megabytes = stats.host_cache.n_bytes as f64 / 1e6;
    println!(
        "  the store holds {} pieces, {megabytes:.1} MB; {} tokens were forgotten",
        stats.host_cache.n_entries, stats.host_cache.n_evicted
    );
    Ok(())
}
