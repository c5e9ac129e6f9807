//! Estimates the time of the next decode from previous ones. Pure: durations in, durations out, no clock.
//!
//! A Kalman filter (Kalman 1960, <https://doi.org/10.1115/1.3662552>) tracks the mean as a sum of costs. Decoding rows share the
//! reading of the weights, and kernels compute several at a time, so the next one's cost depends on their number: the mean is linear
//! in them between powers of two. Adaptive conformal inference (Gibbs and Candès 2021, <https://arxiv.org/abs/2106.00170>) tracks
//! the 99th percentile of the relative errors, whatever their distribution: on any machine, one step in a hundred takes longer than
//! [`StepCost::high_s`].

use std::ops::Range;

#[derive(Debug, Clone, Copy)]
pub(crate) struct StepShape {
    pub(crate) n_decoding: u32,
    pub(crate) n_prefill: u32,
    /// Cells that each row scans, without the cells of this step's rows.
    pub(crate) n_cells: u32,
}

/// Segments of the cost by decoding rows: the first, the second, 3 to 4, 5 to 8 rows, and so on; the last one has no end.
const N_SEGMENTS: usize = 8;

/// Number of cost terms: per step, per decoding row by segment, per prefill row, and per cell scanned by either kind of row.
const N_COSTS: usize = N_SEGMENTS + 4;

/// Index of the first cost of a scanned cell.
const FIRST_CELL_COST: usize = N_COSTS - 2;

/// Indices of the segments.
const SEGMENTS: Range<usize> = 1..1 + N_SEGMENTS;

/// Correlation of the assumed costs of neighbouring segments: a measured one predicts the others.
const SEGMENT_CORRELATION: f64 = 0.8;

/// Assumed relative standard deviation of a measurement.
const NOISE: f64 = 0.1;

/// Relative change of the machine's speed per step. With [`NOISE`], a fifth of an error is attributed to it.
const SPEED_DRIFT: f64 = 0.02;

/// Change of one cost alone per step, as a share of the step: batch shapes run different kernels.
const COST_DRIFT: f64 = 0.005;

/// As [`COST_DRIFT`], of the segments: a step measures several.
const SEGMENT_DRIFT: f64 = 0.0025;

/// Scanned cells that take about as long as the rest of their row: the assumption before the first step, and the least that a step
/// is taken to scan when its time is attributed. Otherwise a row with one cell could move the time of a whole step to that cell, and
/// a step of 8 rows has 64 times as many: at a drifting speed, its predicted cost rose to 3.5 times as much.
const CELLS_PER_ROW: f64 = 8192.0;

/// Maximum ratio of a measurement to its prediction; larger ratios are clamped to it.
const MAX_MISS: f64 = 1.3;

/// Number of consecutive errors beyond [`MAX_MISS`] after which the machine's speed, and with it every cost, is rescaled.
const STREAK: i32 = 3;

/// Share of steps that may take longer than [`StepCost::high_s`].
const MISS_RATE: f64 = 0.01;

/// Increase of the margin, in mean errors, when a step took longer.
const MARGIN_STEP: f64 = 0.3;

/// Range of the margin, in mean errors: for steady and for unsteady machines.
const MARGIN_RANGE: [f64; 2] = [2.5, 24.0];

/// Weight of the newest error in the mean error.
const NEWEST_WEIGHT: f64 = 0.05;

/// Minimum mean error: no clock and no machine is steadier.
const MIN_MISS: f64 = 0.01;

/// The clock may show no progress for a step of a trivial model, but no ratio of times may be infinite.
const MIN_STEP_S: f64 = 1e-6;

#[derive(Debug)]
pub(crate) struct StepCost {
    /// Seconds per unit of each cost, never negative; all 0 until a step was measured.
    costs_s: [f64; N_COSTS],
    covariance: [[f64; N_COSTS]; N_COSTS],
    /// Consecutive errors beyond [`MAX_MISS`]; negative if the steps were faster than predicted.
    streak: i32,
    /// Mean absolute logarithm of measured over predicted time, in steps with prefill rows.
    miss: f64,
    /// Distance of the 99th percentile from the mean, in mean errors.
    margin: f64,
    n_tried: u32,
}

impl StepCost {
    /// Creates an estimate without measurements; the initial error is typical of a busy machine.
    pub(crate) const fn new() -> Self {
        Self { costs_s: [0.0; N_COSTS], covariance: [[0.0; N_COSTS]; N_COSTS], streak: 0, miss: 0.06, margin: 4.0, n_tried: 0 }
    }

    pub(crate) const fn n_tried(&self) -> u32 {
        self.n_tried
    }

    /// Returns the mean seconds of a step of this shape; 0 until one was measured.
    pub(crate) fn mean_s(&self, shape: StepShape) -> f64 {
        dot(&units(shape), &self.costs_s)
    }

    /// Returns the seconds that 99 of 100 steps of this shape stay within. Monotonic in each number of `shape`.
    pub(crate) fn high_s(&self, shape: StepShape) -> f64 {
        self.mean_s(shape) * (self.margin * self.miss).exp()
    }

    /// Returns the mean seconds of steps of which 99 of 100 stay within `high_s`.
    pub(crate) fn mean_within_s(&self, high_s: f64) -> f64 {
        high_s / (self.margin * self.miss).exp()
    }

    /// Returns true if every estimate is finite and in its range.
    #[cfg(test)]
    pub(crate) fn is_sound(&self) -> bool {
        let is_cost = |cost_s: &f64| cost_s.is_finite() && *cost_s >= 0.0;
        let is_covered = self.covariance.iter().flatten().all(|value| value.is_finite());
        self.costs_s.iter().all(is_cost) && is_covered && self.miss.is_finite() && self.margin.is_finite()
    }

    pub(crate) fn observe(&mut self, shape: StepShape, took_s: f64) {
        let took_s = took_s.max(MIN_STEP_S);
        let mean_s = self.mean_s(shape);
        if mean_s > 0.0 {
            self.count_streak((took_s / mean_s).ln());
            if self.streak.abs() >= STREAK {
                self.learn_spread(shape, (took_s / mean_s).ln());
                return self.scale(took_s / mean_s);
            }
        }
        self.observe_drafted(shape, took_s);
    }

    /// Observes a step of whose decoding rows some are drafts. It may be the first with as many rows, so an error does not show that
    /// the machine's speed has changed.
    pub(crate) fn observe_drafted(&mut self, shape: StepShape, took_s: f64) {
        let took_s = took_s.max(MIN_STEP_S);
        self.n_tried = self.n_tried.max(shape.n_prefill);
        let mean_s = self.mean_s(shape);
        if mean_s == 0.0 {
            return self.begin(shape, took_s);
        }
        let (miss, limit) = ((took_s / mean_s).ln(), MAX_MISS.ln());
        self.learn_spread(shape, miss);
        self.learn_mean(&units(shape), mean_s, mean_s * miss.clamp(-limit, limit).exp());
    }

    /// Splits the time of the first step: half per step, half per row; a row costs twice as much with [`CELLS_PER_ROW`].
    fn begin(&mut self, shape: StepShape, took_s: f64) {
        let n_rows = f64::from((shape.n_decoding + shape.n_prefill).max(1));
        let row_s = took_s / 2.0 / n_rows;
        self.costs_s = [row_s; N_COSTS];
        self.costs_s[0] = took_s / 2.0;
        self.costs_s[FIRST_CELL_COST..].fill(row_s / CELLS_PER_ROW);
        for (i, cost_s) in self.costs_s.iter().enumerate() {
            self.covariance[i][i] = cost_s * cost_s;
        }
        for (i, j) in SEGMENTS.flat_map(|i| SEGMENTS.map(move |j| (i, j))) {
            let n_between = u32::try_from(i.abs_diff(j)).expect("there are few segments");
            self.covariance[i][j] = row_s * row_s * SEGMENT_CORRELATION.powf(n_between.into());
        }
        self.learn_mean(&units(shape), took_s, took_s);
    }

    /// A single large error may be caused by another process; several are the machine.
    fn count_streak(&mut self, miss: f64) {
        let sign = if miss > 0.0 { 1 } else { -1 };
        let before = if self.streak.signum() == sign { self.streak } else { 0 };
        self.streak = if miss.abs() > MAX_MISS.ln() { before + sign } else { 0 };
    }

    /// Scales all costs, including costs that this step does not measure, such as prompt rows while only streams decode.
    fn scale(&mut self, factor: f64) {
        self.costs_s = self.costs_s.map(|cost_s| cost_s * factor);
        self.covariance = self.covariance.map(|row| row.map(|value| value * factor * factor));
        self.streak = 0;
    }

    /// Runs one step of the filter. `took_s` is clamped around the predicted `mean_s`.
    fn learn_mean(&mut self, units: &[f64; N_COSTS], mean_s: f64, took_s: f64) {
        self.inflate_covariance(units, mean_s);
        let spread = self.covariance.map(|row| dot(&row, units));
        let variance = dot(&spread, units) + (NOISE * mean_s).powi(2);
        for i in 0..N_COSTS {
            self.costs_s[i] += spread[i] / variance * (took_s - mean_s);
            for j in 0..N_COSTS {
                self.covariance[i][j] -= spread[i] * spread[j] / variance;
            }
            // Rounding must not make a variance negative.
            self.covariance[i][i] = self.covariance[i][i].max(0.0);
        }
        self.project();
        if dot(units, &self.costs_s) <= 0.0 {
            // Every cost that this step measures became negative: attribute all of the time to the step.
            self.costs_s[0] = took_s;
        }
    }

    /// Increases the uncertainty of all costs, for the drift of the speed, and of the costs that this step measures.
    fn inflate_covariance(&mut self, units: &[f64; N_COSTS], mean_s: f64) {
        for (i, &unit) in units.iter().enumerate() {
            for j in 0..N_COSTS {
                self.covariance[i][j] += SPEED_DRIFT * SPEED_DRIFT * self.costs_s[i] * self.costs_s[j];
            }
            if unit > 0.0 {
                // Only of what this step measures, and at most until this cost could be all of the step's time.
                let whole_s = mean_s / if i >= FIRST_CELL_COST { unit.max(CELLS_PER_ROW) } else { unit };
                let drift = if SEGMENTS.contains(&i) { SEGMENT_DRIFT } else { COST_DRIFT };
                self.covariance[i][i] += (drift * whole_s).powi(2);
                let scale = (whole_s / self.covariance[i][i].sqrt()).min(1.0);
                for j in 0..N_COSTS {
                    self.covariance[i][j] *= scale;
                    self.covariance[j][i] *= scale;
                }
            }
        }
    }

    /// Sets negative costs to zero and moves the others to the best fit under that constraint: the projection of Simon and Chia
    /// 2002, <https://doi.org/10.1109/7.993234>. Clipping alone would bias every prediction.
    fn project(&mut self) {
        for _ in 0..N_COSTS {
            let Some(i) = (0..N_COSTS).find(|&i| self.costs_s[i] < 0.0 && self.covariance[i][i] > 0.0) else { break };
            let scale = self.costs_s[i] / self.covariance[i][i];
            for j in 0..N_COSTS {
                self.costs_s[j] -= scale * self.covariance[i][j];
            }
            self.costs_s[i] = 0.0;
        }
        self.costs_s = self.costs_s.map(|cost_s| cost_s.max(0.0));
    }

    fn learn_spread(&mut self, shape: StepShape, miss: f64) {
        if shape.n_prefill == 0 {
            return;
        }
        let [min, max] = MARGIN_RANGE;
        let step = if miss > self.margin * self.miss { 1.0 - MISS_RATE } else { -MISS_RATE };
        self.margin = (self.margin + MARGIN_STEP * step).clamp(min, max);
        // One outlier is not typical of the error.
        let ordinary = miss.abs().min(4.0 * self.miss);
        self.miss = (self.miss + NEWEST_WEIGHT * (ordinary - self.miss)).max(MIN_MISS);
    }
}

fn units(StepShape { n_decoding, n_prefill, n_cells }: StepShape) -> [f64; N_COSTS] {
    let [n_decoding, n_prefill] = [n_decoding, n_prefill].map(f64::from);
    let n_cells = f64::from(n_cells) + n_decoding + n_prefill;
    let mut units = [1.0; N_COSTS];
    let mut start = 0.0_f64;
    for unit in &mut units[SEGMENTS] {
        let end = (2.0 * start).max(1.0);
        *unit = (n_decoding.min(end) - start).max(0.0);
        start = end;
    }
    // The last segment has no end.
    units[N_SEGMENTS] += (n_decoding - start).max(0.0);
    units[N_COSTS - 3..].copy_from_slice(&[n_prefill, n_decoding * n_cells, n_prefill * n_cells]);
    units
}

fn dot(a: &[f64; N_COSTS], b: &[f64; N_COSTS]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
