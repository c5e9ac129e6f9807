//! Requests of clients, and the observable timing of the answers.

use std::time::{Duration, Instant};

/// One request.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) prompt: Vec<i32>,
    /// Number of completions.
    pub(crate) n: usize,
    /// Tokens of each completion.
    pub(crate) n_predict: usize,
}

/// Requests that arrive together, and others that arrive while they run.
pub(crate) struct Load {
    pub(crate) title: String,
    pub(crate) first: Vec<Arrival>,
    /// Requests that arrive when each of the first has generated [`N_BEFORE`] tokens. The load is over when they have ended; without
    /// such requests, when the first have.
    pub(crate) then: Vec<Arrival>,
    pub(crate) figures: &'static [Figure],
}

/// Tokens that the first requests have generated when others arrive.
pub(crate) const N_BEFORE: usize = 24;

/// A measured figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Figure {
    /// Time from the first request to the last token.
    WallTime,
    /// Quantile of the time between two tokens of the first requests after the others arrive: this share of the gaps is not
    /// longer.
    Pause(f64),
    /// Time from the arrival of the awaited requests until each has its first token.
    PromptsTime,
    /// Tokens per second of all requests, from the first request to the last token.
    TokensPerS,
}

/// Token times of one request.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    pub(crate) submitted: Instant,
    /// Token times of all its completions, in order.
    pub(crate) times: Vec<Instant>,
}

impl Load {
    /// Iterates over all requests, in order of arrival.
    pub(crate) fn arrivals(&self) -> impl Iterator<Item = &Arrival> {
        self.first.iter().chain(&self.then)
    }

    /// Returns the maximum number of running sequences.
    pub(crate) fn n_slots(&self) -> usize {
        self.arrivals().map(|arrival| arrival.n).sum()
    }

    /// Returns the length of the longest sequence in tokens.
    pub(crate) fn n_longest(&self) -> usize {
        self.arrivals().map(|arrival| arrival.prompt.len() + arrival.n_predict).max().unwrap_or(0)
    }

    /// Returns the total number of tokens of all sequences, without sharing.
    pub(crate) fn n_tokens(&self) -> usize {
        self.arrivals().map(|arrival| arrival.n * (arrival.prompt.len() + arrival.n_predict)).sum()
    }

    /// Returns the indices of the requests that must end before the load is over.
    pub(crate) fn awaited(&self) -> std::ops::Range<usize> {
        let n_first = self.first.len();
        if self.then.is_empty() { 0..n_first } else { n_first..n_first + self.then.len() }
    }

    /// Returns true if the awaited requests are complete, given the number of tokens of each request.
    pub(crate) fn is_over(&self, n_tokens: impl Fn(usize) -> usize) -> bool {
        let n_expected: Vec<usize> = self.arrivals().map(|arrival| arrival.n * arrival.n_predict).collect();
        self.awaited().all(|request| n_tokens(request) >= n_expected[request])
    }

    /// Returns true if the other requests can arrive, given the number of tokens of each request.
    pub(crate) fn may_continue(&self, n_tokens: impl Fn(usize) -> usize) -> bool {
        (0..self.first.len()).all(|request| n_tokens(request) >= N_BEFORE)
    }
}

impl Figure {
    /// Computes the figure from the traces of all requests of a load, in order; in seconds, or tokens per second.
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
                let later_gaps = gaps.filter(|pair| pair[1] > arrival).map(|pair| (pair[1] - pair[0]).as_secs_f64());
                percentile(later_gaps.collect(), share)
            }
            Self::PromptsTime => {
                let waits = traces[load.awaited()].iter().map(|trace| trace.times[0] - trace.submitted);
                waits.max().unwrap_or_default().as_secs_f64()
            }
        }
    }

    /// Returns the figure's title in the table.
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

/// Returns the smallest value that at least `share` of the values do not exceed.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a bench's counts are small")]
pub(super) fn percentile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}
