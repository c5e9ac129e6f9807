//! What clients send, and what they can see of the answers.

use std::time::{Duration, Instant};

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) prompt: Vec<i32>,
    /// Completions of it.
    pub(crate) n: usize,
    /// Tokens of each.
    pub(crate) n_predict: usize,
}

/// Requests that come together, and others that come while they run.
pub(crate) struct Load {
    pub(crate) title: String,
    pub(crate) first: Vec<Arrival>,
    /// They come when each of the first has written [`N_BEFORE`] tokens, and it is over when they have ended; where there are none,
    /// when the first have.
    pub(crate) then: Vec<Arrival>,
    pub(crate) figures: &'static [Figure],
}

/// Tokens that the first have written when others come.
pub(crate) const N_BEFORE: usize = 24;

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Figure {
    /// From the first request to the last token.
    WallTime,
    /// The time between two tokens of those that run when others come, from then on: this share of them is not longer.
    Pause(f64),
    /// From the arrival of those that are awaited until each has its first token.
    PromptsTime,
    /// Of all, from the first request to the last token.
    TokensPerS,
}

/// When the tokens of one request came.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    pub(crate) submitted: Instant,
    /// Of all of its completions, in the order in which they came.
    pub(crate) times: Vec<Instant>,
}

impl Load {
    /// All requests, in the order in which they come.
    pub(crate) fn arrivals(&self) -> impl Iterator<Item = &Arrival> {
        self.first.iter().chain(&self.then)
    }

    /// Sequences that run at once.
    pub(crate) fn n_slots(&self) -> usize {
        self.arrivals().map(|arrival| arrival.n).sum()
    }

    /// Tokens of the longest sequence.
    pub(crate) fn n_longest(&self) -> usize {
        self.arrivals().map(|arrival| arrival.prompt.len() + arrival.n_predict).max().unwrap_or(0)
    }

    /// Tokens of all sequences, nothing being shared.
    pub(crate) fn n_tokens(&self) -> usize {
        self.arrivals().map(|arrival| arrival.n * (arrival.prompt.len() + arrival.n_predict)).sum()
    }

    /// Those that must have ended before it is over, by their places among all.
    pub(crate) fn awaited(&self) -> std::ops::Range<usize> {
        let n_first = self.first.len();
        if self.then.is_empty() { 0..n_first } else { n_first..n_first + self.then.len() }
    }

    /// Whether so many tokens of each request are all that is awaited.
    pub(crate) fn is_over(&self, n_tokens: impl Fn(usize) -> usize) -> bool {
        let wanted: Vec<usize> = self.arrivals().map(|arrival| arrival.n * arrival.n_predict).collect();
        self.awaited().all(|place| n_tokens(place) >= wanted[place])
    }

    /// Whether the others come, so many tokens of each of the first having come.
    pub(crate) fn has_begun(&self, n_tokens: impl Fn(usize) -> usize) -> bool {
        (0..self.first.len()).all(|place| n_tokens(place) >= N_BEFORE)
    }
}

impl Figure {
    /// Of the traces of all requests of a load, in their order; in seconds, or tokens per second.
    pub(crate) fn of(self, load: &Load, traces: &[Trace]) -> f64 {
        let n_first = load.first.len();
        let last = |trace: &Trace| *trace.times.last().unwrap_or(&trace.submitted);
        let end = traces.iter().map(last).max();
        let wall = end.map_or(Duration::ZERO, |end| end - traces[0].submitted).as_secs_f64();
        match self {
            Self::WallTime => wall,
            Self::TokensPerS => traces.iter().map(|trace| trace.times.len()).sum::<usize>() as f64 / wall,
            Self::Pause(share) => {
                let arrival = traces[n_first].submitted;
                let gaps = traces[..n_first].iter().flat_map(|trace| trace.times.windows(2));
                let beside = gaps.filter(|pair| pair[1] > arrival).map(|pair| (pair[1] - pair[0]).as_secs_f64());
                percentile(beside.collect(), share)
            }
            Self::PromptsTime => {
                let waits = traces[load.awaited()].iter().map(|trace| trace.times[0] - trace.submitted);
                waits.max().unwrap_or_default().as_secs_f64()
            }
        }
    }

    /// What it is, for the table.
    pub(crate) fn title(self) -> String {
        match self {
            Self::WallTime => "wall time, s".to_owned(),
            Self::Pause(share) if share < 1.0 => format!("pause, p{:.0}, s", 100.0 * share),
            Self::Pause(_) => "longest pause, s".to_owned(),
            Self::PromptsTime => "time of the prompts, s".to_owned(),
            Self::TokensPerS => "tokens per second".to_owned(),
        }
    }
}

/// The smallest value that at least `share` of the values do not exceed.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a bench's counts are small")]
pub(super) fn percentile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = (share * values.len() as f64).ceil() as usize;
    values.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
