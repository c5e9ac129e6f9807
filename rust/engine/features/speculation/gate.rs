//! Chooses how many drafted tokens each sequence verifies in the next step, so that drafts never lose. Pure: probabilities and
//! expected times in, lengths out.
//!
//! A drafted token adds a row to the step and, if it and the ones before it are accepted, one emitted token. The gate maximises
//! the expected emitted tokens per second over all sequences.
//!
//! The time of a step with more rows is known from steps that had as many. An estimate that is too low is corrected once it is used,
//! but one that is too high, because other processes took the processors, would never be used again. So other lengths are tried from
//! time to time: soon again after one that took less time than expected, and half as often after one that did not.

use std::cmp::Ordering;

/// Minimum gain in tokens per second for which drafts are verified: estimates differ by as much.
const MIN_GAIN: f64 = 0.02;

/// Expected share of its rate that a sequence may lose to the drafts of others: with the errors of the estimates, at most a tenth.
const MAX_LOSS: f64 = 0.08;

/// Weight of a step in [`RateSlack`], relative to the next one: a sequence may lose more for some steps of the last 50.
const SLACK_DECAY: f64 = 0.98;

/// Cost of a drafted row, as a share of a step, with which drafts are tried: SmolLM2-135M (`Q4_1`, two cores) measured 0.05 for the
/// second row, 0.17 for the third and fourth, and 0.10 for the next four.
const TRIED_ROW_SHARE: f64 = 0.05;

/// Ratio of a time to the expected one below which the estimates are wrong, and lengths are tried again immediately.
const SURPRISE: f64 = 0.8;

/// Maximum number of steps from one trial to the next.
const MAX_INTERVAL: u32 = 512;

/// Emitted tokens of a sequence above its guaranteed number, which is (1 − [`MAX_LOSS`]) × the number without drafts in the same
/// time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct RateSlack(f64);

impl RateSlack {
    pub(crate) fn observe(&mut self, n_emitted: usize, step: ExpectedStep) {
        let n_emitted = f64::from(u32::try_from(n_emitted).expect("a step emits few tokens"));
        self.0 = self.0 * SLACK_DECAY + n_emitted - (1.0 - MAX_LOSS) * step.share();
    }

    /// Returns the tokens above the guaranteed number after a step that is expected to emit `n_expected` tokens of the sequence. A step
    /// after which it is negative is not allowed.
    pub(crate) fn after(self, n_expected: f64, step: ExpectedStep) -> f64 {
        self.0 + n_expected - (1.0 - MAX_LOSS) * step.share()
    }
}

/// Expected seconds of a step with its drafts, and without them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ExpectedStep {
    pub(crate) step_s: f64,
    pub(crate) without_s: f64,
}

impl ExpectedStep {
    /// Returns the time in steps without drafts.
    fn share(self) -> f64 {
        self.step_s / self.without_s.max(f64::MIN_POSITIVE)
    }
}

/// A sequence that samples in the next step, and its draft, which may be empty.
#[derive(Debug, Clone)]
pub(crate) struct DraftCandidate {
    /// Probability that each drafted token is accepted with all before it; never increases.
    pub(crate) survival: Vec<f64>,
    pub(crate) slack: RateSlack,
}

/// Costs and limits of the next step.
#[derive(Clone, Copy)]
pub(crate) struct StepLimits<'a> {
    /// Expected seconds of the decode with a number of drafted rows; 0 before any step was measured.
    pub(crate) decode_s: &'a dyn Fn(u32) -> f64,
    /// Expected seconds of a decode of one row without cells.
    pub(crate) row_s: f64,
    /// Expected seconds outside of the decode per emitted token.
    pub(crate) token_s: f64,
    /// Maximum number of drafted rows.
    pub(crate) max_rows: u32,
    /// Maximum expected time of the decode with drafts, in seconds.
    pub(crate) max_decode_s: f64,
}

#[derive(Debug, Clone)]
pub(crate) struct DraftLengths {
    pub(crate) lengths: Vec<usize>,
    pub(crate) step: ExpectedStep,
    n_rows: u32,
    /// Expected number of emitted tokens.
    n_tokens: f64,
}

impl DraftLengths {
    fn without_drafts(n_sequences: usize, limits: &StepLimits) -> Self {
        let n_tokens = (0..n_sequences).map(|_| 1.0).sum();
        let without_s = (limits.decode_s)(0) + limits.token_s * n_tokens;
        Self { lengths: vec![0; n_sequences], step: ExpectedStep { step_s: without_s, without_s }, n_rows: 0, n_tokens }
    }

    fn rate(&self) -> f64 {
        self.n_tokens / self.step.step_s
    }
}

/// Kinds of lengths that are tried, though others have more expected tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Trial {
    #[default]
    Longer,
    WithoutDrafts,
}

#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// Number of steps since the last trial, and from that to the next one.
    n_since: u32,
    interval: u32,
    next: Trial,
    /// Expected seconds of a decode of one row at the last trial.
    row_s: f64,
    /// If this step is a trial: the seconds below which the estimates are wrong.
    surprise_s: Option<f64>,
}

impl Gate {
    /// Returns the lengths with the highest expected tokens per second, or others that are tried.
    pub(crate) fn choose(&mut self, candidates: &[DraftCandidate], limits: &StepLimits) -> DraftLengths {
        self.surprise_s = None;
        let without = DraftLengths::without_drafts(candidates.len(), limits);
        if candidates.iter().all(|candidate| candidate.survival.is_empty()) {
            return without;
        }
        let best = best_lengths(candidates, limits, |_| true);
        self.n_since += 1;
        if limits.row_s < SURPRISE * self.row_s {
            // The machine became faster: what was measured before is too high.
            (self.interval, self.row_s) = (1, limits.row_s);
        }
        if self.n_since < self.interval {
            return best;
        }
        let longer = longer_lengths(candidates, limits, &best);
        let tried = match self.next {
            Trial::WithoutDrafts if best.n_rows > 0 => without,
            _ if longer.n_rows > best.n_rows => longer,
            _ if best.n_rows > 0 => without,
            _ => return best,
        };
        let expected_s = (limits.decode_s)(tried.n_rows) + limits.token_s * tried.n_tokens;
        self.next = if tried.n_rows > 0 { Trial::Longer } else { Trial::WithoutDrafts };
        (self.n_since, self.row_s) = (0, limits.row_s);
        self.surprise_s = Some((SURPRISE * expected_s).max(tried.n_tokens / best.rate()));
        tried
    }

    /// Records the time of the step that [`Gate::choose`] chose for.
    pub(crate) fn observe(&mut self, took_s: f64) {
        let Some(surprise_s) = self.surprise_s else { return };
        if took_s < surprise_s {
            self.interval = 1;
        } else {
            self.interval = (2 * self.interval).clamp(1, MAX_INTERVAL);
            self.next = if self.next == Trial::Longer { Trial::WithoutDrafts } else { Trial::Longer };
        }
    }
}

/// Returns the lengths that are best if rows cost little, and that lose at most the time of a step without drafts if each row beyond
/// those of `best` costs as much as one of a step without drafts.
fn longer_lengths(candidates: &[DraftCandidate], limits: &StepLimits, best: &DraftLengths) -> DraftLengths {
    let without_s = (limits.decode_s)(0);
    let decode_s = |n_rows: u32| without_s * (1.0 + TRIED_ROW_SHARE * f64::from(n_rows));
    let row_s = without_s / candidates.iter().map(|_| 1.0).sum::<f64>();
    let is_safe = |choice: &DraftLengths| {
        let n_tokens = choice.n_tokens - best.n_tokens;
        let n_rows = f64::from(choice.n_rows.saturating_sub(best.n_rows));
        n_rows * row_s - n_tokens * (1.0 / best.rate() - limits.token_s) <= without_s
    };
    best_lengths(candidates, &StepLimits { decode_s: &decode_s, ..*limits }, is_safe)
}

/// Returns the lengths with the highest expected tokens per second, of those for which `is_allowed` and no sequence loses too much.
///
/// The next row goes to the sequence with the highest survival, or to the one that loses too much by the rows so far. For each
/// number of rows this is the best choice if no sequence loses too much.
pub(crate) fn best_lengths(
    candidates: &[DraftCandidate],
    limits: &StepLimits,
    is_allowed: impl Fn(&DraftLengths) -> bool,
) -> DraftLengths {
    let mut n_expected = vec![1.0; candidates.len()];
    let mut n_left: f64 = candidates.iter().flat_map(|candidate| &candidate.survival).sum();
    let mut choice = DraftLengths::without_drafts(candidates.len(), limits);
    let (mut best, mut min_rate) = (choice.clone(), choice.rate() * (1.0 + MIN_GAIN));
    let mut least = None;
    while choice.n_rows < limits.max_rows {
        let next = |nth: usize| candidates[nth].survival.get(choice.lengths[nth]).copied();
        let likeliest = || (0..candidates.len()).max_by(|&a, &b| next(a).partial_cmp(&next(b)).unwrap_or(Ordering::Equal));
        let Some((nth, survival)) = least.or_else(likeliest).and_then(|nth| Some((nth, next(nth)?))) else { break };
        choice.lengths[nth] += 1;
        n_expected[nth] += survival;
        n_left -= survival;
        choice.n_rows += 1;
        choice.n_tokens += survival;
        let decode_s = (limits.decode_s)(choice.n_rows);
        choice.step.step_s = decode_s + limits.token_s * choice.n_tokens;
        // The time never decreases with the rows, so no longer drafts reach the rate either.
        if decode_s > limits.max_decode_s || (choice.n_tokens + n_left) / choice.step.step_s <= min_rate {
            break;
        }
        let n_beyond = |nth: usize| candidates[nth].slack.after(n_expected[nth], choice.step);
        least = (0..candidates.len()).filter(|&nth| n_beyond(nth) < 0.0).min_by(|&a, &b| n_beyond(a).total_cmp(&n_beyond(b)));
        if least.is_none() && choice.rate() > min_rate && is_allowed(&choice) {
            (min_rate, best) = (choice.rate(), choice.clone());
        }
    }
    best
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "small random numbers")]
mod tests;
