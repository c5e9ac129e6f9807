//! Time between two tokens of a running stream, alone and while long prompts arrive.

use std::time::Duration;

use weft::config::{CacheRam, TokenGap};

use super::lab::{Lab, N_CELLS, request};
use super::watch::{Stream, Watch};

/// Number of prompts that arrive together.
const N_PROMPTS: usize = 4;

/// Tokens of a stream's own prompt.
const N_STREAM_PROMPT: usize = 32;

/// Tokens that each stream generates before the prompts arrive.
const N_ALONE: usize = 100;

/// Number of first tokens of a stream to ignore: prefill of other streams may not be over.
const N_SETTLING: usize = 8;

/// Gaps of the streams in milliseconds, and times of the prompts' first tokens.
#[derive(Default)]
struct Gaps {
    alone: Vec<f64>,
    during_prefill: Vec<f64>,
    /// Seconds from the arrival of the prompts to the first token of each.
    first_tokens: Vec<f64>,
}

/// Prints the table.
///
/// # Errors
/// A message, if the engine fails.
pub(crate) fn measure(lab: &Lab) -> Result<(), String> {
    let [least_ms, gap_ms] = [TokenGap::LEAST, TokenGap::USUAL].map(|gap| gap.as_secs_f64() * 1e3);
    println!(
        "\n  2. The gap between two tokens of a running stream: ten times what the streams take alone is allowed, from {least_ms} to {gap_ms} ms, or twice"
    );
    let n_long = lab.sizes.n_long;
    let columns = "     p50      p99      max   over";
    println!("  {:<7} │ alone, ms {:<23} │ while {N_PROMPTS} prompts of {n_long:>4} tokens arrive, ms │", "", "");
    println!("  streams │ {columns} │ {columns}   of gaps │ their first tokens came after, s");
    for n_streams in [1, 8] {
        let mut gaps = Gaps::default();
        lab.rounds(1, |_| measure_once(lab, n_streams, &mut gaps))?;
        let over = |gaps: &[f64]| gaps.iter().filter(|&&gap| gap > gap_ms).count();
        let show = |gaps: &[f64]| {
            let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| percentile(gaps, share));
            format!("{p50:>8.2} {p99:>8.2} {max:>8.2} {:>6}", over(gaps))
        };
        let first_tokens = [0.0, 0.5, 1.0].map(|share| percentile(&gaps.first_tokens, share));
        let [first, middle, last] = first_tokens;
        let n = gaps.during_prefill.len();
        println!(
            "  {n_streams:>7} │ {} │ {} {n:>9} │ {first:.2} to {last:.2}, median {middle:.2}",
            show(&gaps.alone),
            show(&gaps.during_prefill)
        );
    }
    Ok(())
}

fn measure_once(lab: &Lab, n_streams: usize, gaps: &mut Gaps) -> Result<(), String> {
    let n_slots = u32::try_from(n_streams + N_PROMPTS).expect("the bench runs few streams");
    let engine = lab.engine(n_slots, N_CELLS, CacheRam::Default)?;
    // As long as the context allows: a stream that ends before prefill is over would hide gaps.
    let n_tokens_max = engine.limits().n_ctx_slot - u32::try_from(N_STREAM_PROMPT).expect("it is short");
    let mut watch = Watch::new(&engine);
    for _ in 0..n_streams {
        watch.submit(request(lab.fresh(N_STREAM_PROMPT), 1, n_tokens_max))?;
    }
    let have = |n: usize| move |streams: &[Stream]| streams.iter().all(|stream| stream.n_tokens() >= n);
    watch.read_until(have(N_SETTLING))?;
    let settled: Vec<usize> = watch.streams.iter().map(Stream::n_tokens).collect();
    watch.read_until(have(N_SETTLING + N_ALONE))?;
    let arrival: Vec<usize> = watch.streams.iter().map(Stream::n_tokens).collect();
    for _ in 0..N_PROMPTS {
        watch.submit(request(lab.fresh(lab.sizes.n_long), 1, 1))?;
    }
    watch.read_until(|streams| streams[n_streams..].iter().all(Stream::has_ended))?;
    let (streams, prompts) = watch.streams.split_at(n_streams);
    if streams.iter().any(Stream::has_ended) {
        return Err("a stream ended before the prompts were computed".into());
    }
    for (stream, (&settled, &arrival)) in streams.iter().zip(settled.iter().zip(&arrival)) {
        let times = &stream.branches[0].times;
        let between = times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3);
        gaps.alone.extend(between.clone().take(arrival - 1).skip(settled - 1));
        gaps.during_prefill.extend(between.skip(arrival - 1));
    }
    let waits = prompts.iter().map(|prompt| prompt.branches[0].times[0] - prompt.submitted);
    gaps.first_tokens.extend(waits.map(|wait: Duration| wait.as_secs_f64()));
    Ok(())
}

/// Returns the smallest value that at least `share` of the values do not exceed.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a bench's counts are small"
)]
fn percentile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
