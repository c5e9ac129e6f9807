//! How long the next decode will take, learned from those before it. Pure: durations in, durations out, no clock.
//!
//! Two estimates, one above the other. A Kalman filter (Kalman 1960, <https://doi.org/10.1115/1.3662552>) follows the mean, as a
//! sum of five costs. What it misses is measured relative to what it predicted, and the 99th percentile of that is followed by
//! adaptive conformal inference (Gibbs and Candès 2021, <https://arxiv.org/abs/2106.00170>), which assumes nothing about how
//! the misses are distributed: whatever the machine does, one step in a hundred takes longer than [`StepCost::high_s`] says.

/// What a step's time depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StepShape {
    /// Rows of sequences that decode, one each.
    pub n_decoding: u32,
    /// Rows of prompts.
    pub n_prefill: u32,
    /// Cells that each row looks through, without those that this step's rows fill.
    pub n_cells: u32,
}

/// Costs of a step: for itself, for each decoding row, for each prefill row, and for each cell that either kind looks through.
const N_COSTS: usize = 5;

/// Relative standard deviation that a measurement is taken to have.
const NOISE: f64 = 0.1;

/// Relative change of the machine's speed from one step to the next. With [`NOISE`], a fifth of a miss is believed.
const SPEED_DRIFT: f64 = 0.02;

/// Change of one cost alone from one step to the next, as a share of the step: batch shapes run different kernels.
const COST_DRIFT: f64 = 0.005;

/// A measurement further from its prediction than by this factor is taken to be only that far.
const MAX_MISS: f64 = 1.3;

/// From so many such misses in a row on, the machine's speed has changed, and with it every cost.
const STREAK: i32 = 3;

/// Share of steps that may take longer than [`StepCost::high_s`].
const MISS_RATE: f64 = 0.01;

/// By how many mean misses the margin rises at a step that took longer.
const MARGIN_STEP: f64 = 0.3;

/// Mean misses that the margin may be: few enough for a machine that is steady, and enough for one that is not.
const MARGIN_RANGE: [f64; 2] = [2.5, 24.0];

/// Weight of the newest miss in the mean one.
const NEWEST: f64 = 0.05;

/// Smallest mean miss: no clock and no machine is steadier.
const MIN_MISS: f64 = 0.01;

#[derive(Debug)]
pub(super) struct StepCost {
    /// Seconds for one unit of each cost, never negative; all 0 until a step was measured.
    costs_s: [f64; N_COSTS],
    /// How uncertain they are, and how much they are uncertain together.
    covariance: [[f64; N_COSTS]; N_COSTS],
    /// Steps in a row that missed by more than [`MAX_MISS`]; negative where they were faster.
    streak: i32,
    /// Mean of the absolute logarithms of measured over predicted time, in steps with prefill rows.
    miss: f64,
    /// Mean misses that lie below the 99th percentile.
    margin: f64,
    /// Most prefill rows that were measured in one step.
    n_tried: u32,
}

impl StepCost {
    /// Knows nothing; supposes misses as large as those of a busy machine.
    pub(super) const fn new() -> Self {
        Self { costs_s: [0.0; N_COSTS], covariance: [[0.0; N_COSTS]; N_COSTS], streak: 0, miss: 0.06, margin: 4.0, n_tried: 0 }
    }

    /// Most prefill rows that were measured in one step; 0 where none was.
    pub(super) const fn n_tried(&self) -> u32 {
        self.n_tried
    }

    /// Seconds that a step of this shape takes on average; 0 until one was measured.
    pub(super) fn mean_s(&self, shape: StepShape) -> f64 {
        dot(&units(shape), &self.costs_s)
    }

    /// Seconds that 99 of 100 steps of this shape stay within; 0 until one was measured. Never falls with any number in `shape`.
    pub(super) fn high_s(&self, shape: StepShape) -> f64 {
        self.mean_s(shape) * (self.margin * self.miss).exp()
    }

    /// Whether every estimate is a number that can be used, whatever was measured.
    #[cfg(test)]
    pub(super) fn is_sound(&self) -> bool {
        let is_cost = |cost_s: &f64| cost_s.is_finite() && *cost_s >= 0.0;
        let is_covered = self.covariance.iter().flatten().all(|value| value.is_finite());
        self.costs_s.iter().all(is_cost) && is_covered && self.miss.is_finite() && self.margin.is_finite()
    }

    /// Learns from a step that took `took_s` seconds.
    pub(super) fn observe(&mut self, shape: StepShape, took_s: f64) {
        // A clock may stand still for a step of a model that does nothing, but no ratio of times may be infinite.
        let took_s = took_s.max(1e-6);
        self.n_tried = self.n_tried.max(shape.n_prefill);
        let units = units(shape);
        let mean_s = dot(&units, &self.costs_s);
        if mean_s == 0.0 {
            self.begin(shape, took_s);
            return;
        }
        let miss = (took_s / mean_s).ln();
        if shape.n_prefill > 0 {
            self.learn_spread(miss);
        }
        self.count_streak(miss);
        if self.streak.abs() >= STREAK {
            self.scale(took_s / mean_s);
            return;
        }
        let limit = MAX_MISS.ln();
        self.learn_mean(&units, mean_s, mean_s * miss.clamp(-limit, limit).exp());
    }

    /// Divides the first step's time: half for itself, half for its rows; a row costs twice as much beside 8,192 cells.
    fn begin(&mut self, shape: StepShape, took_s: f64) {
        let n_rows = f64::from((shape.n_decoding + shape.n_prefill).max(1));
        let row_s = took_s / 2.0 / n_rows;
        let cell_s = row_s / 8192.0;
        self.costs_s = [took_s / 2.0, row_s, row_s, cell_s, cell_s];
        for (i, cost_s) in self.costs_s.iter().enumerate() {
            self.covariance[i][i] = cost_s * cost_s;
        }
    }

    /// A single large miss may be another process's doing; a run of them is the machine.
    fn count_streak(&mut self, miss: f64) {
        let way = if miss > 0.0 { 1 } else { -1 };
        self.streak = match miss.abs() > MAX_MISS.ln() {
            true if self.streak.signum() == way => self.streak + way,
            true => way,
            false => 0,
        };
    }

    /// The machine is slower by this factor. Also what this step tells nothing of: a prompt's rows while only others decode.
    fn scale(&mut self, factor: f64) {
        self.costs_s = self.costs_s.map(|cost_s| cost_s * factor);
        self.covariance = self.covariance.map(|row| row.map(|value| value * factor * factor));
        self.streak = 0;
    }

    /// One step of the filter. `took_s` differs from the predicted `mean_s` by no more than is believed.
    fn learn_mean(&mut self, units: &[f64; N_COSTS], mean_s: f64, took_s: f64) {
        let costs_s = self.costs_s;
        for i in 0..N_COSTS {
            for j in 0..N_COSTS {
                self.covariance[i][j] += SPEED_DRIFT * SPEED_DRIFT * costs_s[i] * costs_s[j];
            }
            if units[i] > 0.0 {
                // Only what this step tells of is forgotten, and never beyond "this cost may be all of the step's time".
                let whole_s = mean_s / units[i];
                self.covariance[i][i] += (COST_DRIFT * whole_s).powi(2);
                let scale = (whole_s / self.covariance[i][i].sqrt()).min(1.0);
                for j in 0..N_COSTS {
                    self.covariance[i][j] *= scale;
                    self.covariance[j][i] *= scale;
                }
            }
        }
        let spread = self.covariance.map(|row| dot(&row, units));
        let variance = dot(&spread, units) + (NOISE * mean_s).powi(2);
        for i in 0..N_COSTS {
            self.costs_s[i] = costs_s[i] + spread[i] / variance * (took_s - mean_s);
            for j in 0..N_COSTS {
                self.covariance[i][j] -= spread[i] * spread[j] / variance;
            }
            // Rounding must not make a variance negative.
            self.covariance[i][i] = self.covariance[i][i].max(0.0);
        }
        self.project();
        if dot(units, &self.costs_s) <= 0.0 {
            // Every cost that this step tells of was pushed below zero: what was measured is then the step's own.
            self.costs_s[0] = took_s;
        }
    }

    /// Makes every negative cost zero, and moves the others so that together they fit what was measured as well as they can: the
    /// projection of Simon and Chia 2002, <https://doi.org/10.1109/7.993234>. Cutting off alone would bias each prediction.
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

    /// Follows how far measurements lie from predictions.
    fn learn_spread(&mut self, miss: f64) {
        let [least, most] = MARGIN_RANGE;
        let step = if miss > self.margin * self.miss { 1.0 - MISS_RATE } else { -MISS_RATE };
        self.margin = (self.margin + MARGIN_STEP * step).clamp(least, most);
        // One outlier says little about the ordinary miss.
        let ordinary = miss.abs().min(4.0 * self.miss);
        self.miss = (self.miss + NEWEST * (ordinary - self.miss)).max(MIN_MISS);
    }
}

/// How much of each cost a step of this shape has.
fn units(StepShape { n_decoding, n_prefill, n_cells }: StepShape) -> [f64; N_COSTS] {
    let [n_decoding, n_prefill] = [n_decoding, n_prefill].map(f64::from);
    let n_cells = f64::from(n_cells) + n_decoding + n_prefill;
    [1.0, n_decoding, n_prefill, n_decoding * n_cells, n_prefill * n_cells]
}

fn dot(a: &[f64; N_COSTS], b: &[f64; N_COSTS]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
