//! Drafts of a draft model: whether they are requested in a step, how long they are, and what they cost.
//!
//! A draft from text costs nothing until it is verified; one of a model costs passes of that model. So the length is chosen before
//! the draft is made, from the acceptance of earlier drafts by position. If no length gains, a short draft is tried from time to
//! time.

use std::time::{Duration, Instant};

use crate::engine::cache_manager::CacheManager;
use crate::engine::features::speculation::acceptance::Acceptance;
use crate::engine::features::speculation::drafts::{DraftProposal, MODEL_SHARE, SequenceDrafts};
use crate::engine::features::speculation::gate::{ExpectedStep, RateSlack};
use crate::engine::runner::{DraftModelInfo, ModelDrafts, Runner};
use crate::engine::scheduler::Scheduler;
use crate::engine::scheduler::drafting::{DraftRoom, WantedDrafts};
use crate::engine::scheduler::running_sequence::Draft;
use crate::engine::scheduler::scheduling_key::SchedulingKey;
use crate::engine::stats::DraftSource;
use crate::request::Token;
use crate::sampling::TokenStrings;

/// Minimum gain in tokens per second for which a model drafts: estimates differ by as much.
const MIN_GAIN: f64 = 0.05;

/// Length of drafts that only measure, unless the model's maximum is lower.
const TRIED: usize = 3;

/// Maximum share of the time that drafts without expected gain take, after the first one.
const MAX_TRIAL_SHARE: f64 = 0.005;

/// Interval of drafts that are twice as long as expected to be best, which measure the acceptance of later positions.
const LONGER_EVERY: u32 = 16;

/// Tokens that the draft model may catch up with in a step until their cost is measured.
const FIRST_CAUGHT_UP: u32 = 256;

/// Minimum tokens that the draft model may catch up with in a step.
const MIN_CAUGHT_UP: u32 = 16;

/// Use of the draft model by all sequences.
#[derive(Debug)]
pub(crate) struct DraftModelUse {
    /// Mean seconds of a pass over one token of each sequence; 0 until it is measured.
    pass_s: f64,
    /// Mean seconds of a token that the draft model catches up with; 0 until it is measured.
    caught_up_s: f64,
    /// Acceptance over all sequences, which a new sequence begins with.
    acceptance: Acceptance,
    n_drafts: u32,
    /// Seconds of steps since the last draft, and those after which one is tried.
    idle_s: f64,
    trial_after_s: f64,
    /// Time of the drafts of this step.
    spent: Duration,
    /// Indices of the proposals for which drafts were requested in this step, and when.
    requested: Option<(Vec<usize>, Instant)>,
    /// Time in which the draft model has read decodes of the model, as far as it was added to the metrics.
    read: Duration,
}

impl Default for DraftModelUse {
    fn default() -> Self {
        Self {
            pass_s: 0.0,
            caught_up_s: 0.0,
            acceptance: Acceptance::assumed(MODEL_SHARE),
            n_drafts: 0,
            idle_s: 0.0,
            trial_after_s: 0.0,
            spent: Duration::ZERO,
            requested: None,
            read: Duration::ZERO,
        }
    }
}

struct StepTime<'a> {
    /// Mean seconds of the decode with a number of drafted rows.
    decode_s: &'a dyn Fn(u32) -> f64,
    /// Mean seconds outside of the decode per emitted token.
    token_s: f64,
    /// Maximum mean seconds of the decode, including the time of the draft model.
    max_decode_s: f64,
}

/// Expected tokens of a sequence in this step.
struct Expectation {
    /// Tokens of the draft that is proposed without the model, and how many of them will be accepted.
    n_other: usize,
    other: f64,
    /// Tokens of a model's draft that will be accepted, by its length from 1 on; empty if none is requested.
    of_model: Vec<f64>,
    slack: RateSlack,
}

impl Expectation {
    fn n_drafted(&self, length: usize) -> usize {
        if self.of_model.is_empty() { self.n_other } else { length.min(self.of_model.len()) }
    }

    /// Returns the tokens that will be accepted, if the model drafts `length`.
    fn n_accepted(&self, length: usize) -> f64 {
        self.of_model.get(length - 1).or(self.of_model.last()).copied().unwrap_or(self.other)
    }

    /// Returns the probability that all `length` tokens of the model are accepted.
    fn whole_share(&self, length: usize) -> f64 {
        match self.of_model.get(..length) {
            Some([.., shorter, whole]) => whole - shorter,
            Some([whole]) => *whole,
            _ => 0.0,
        }
    }
}

impl DraftModelUse {
    pub(crate) fn begin_sequence(&self) -> SequenceDrafts {
        let mut drafts = SequenceDrafts::default();
        *drafts.acceptance.of(DraftSource::Model) = self.acceptance.clone();
        drafts
    }

    pub(crate) fn spent(&self) -> Duration {
        self.spent
    }

    /// Counts the tokens of a verified draft of the model.
    pub(crate) fn on_verified(&mut self, draft: &Draft) {
        for position in 0..draft.tokens.len().min(draft.n_accepted + 1) {
            self.acceptance.observe(position, position < draft.n_accepted);
        }
    }

    /// Returns the length of the drafts to request in this step; 0 for none.
    fn choose_length(&mut self, expectations: &[Expectation], step: &StepTime<'_>, info: DraftModelInfo) -> usize {
        let model_max = info.max_draft as usize;
        let tried = if info.has_fixed_cost { model_max } else { TRIED.min(model_max) };
        if self.pass_s == 0.0 {
            return tried;
        }
        let best = self.best_length(expectations, step, info);
        if best > 0 {
            let is_longer = self.n_drafts % LONGER_EVERY == LONGER_EVERY - 1;
            return if is_longer { (2 * best).min(model_max) } else { best };
        }
        if self.idle_s < self.trial_after_s { 0 } else { tried }
    }

    /// Records the time of a step, with that of its drafts. A draft that takes long is tried again after a long time.
    pub(crate) fn observe_step(&mut self, took: Duration) {
        if self.spent.is_zero() {
            self.idle_s += took.as_secs_f64();
        } else {
            (self.idle_s, self.trial_after_s) = (0.0, self.spent.as_secs_f64() / MAX_TRIAL_SHARE);
        }
    }

    /// Returns the length with the highest expected tokens per second; 0 if none gains. The slack of a sequence must allow the step:
    /// otherwise the draft is made and never verified, which costs time, and with it more of the slack.
    fn best_length(&self, expectations: &[Expectation], step: &StepTime<'_>, info: DraftModelInfo) -> usize {
        let without_s = (step.decode_s)(0) + step.token_s * expectations.iter().map(|_| 1.0).sum::<f64>();
        let model_max = info.max_draft as usize;
        let mut best = (0, 0.0);
        for length in if info.has_fixed_cost { model_max } else { 1 }..=model_max {
            let (mut n_drafted, mut n_emitted, mut all_cut) = (0, 0.0, 1.0);
            for expected in expectations {
                n_drafted += expected.n_drafted(length);
                n_emitted += 1.0 + expected.n_accepted(length);
                all_cut *= 1.0 - expected.whole_share(length);
            }
            let [n_drafted, n_passes] = [n_drafted, length].map(|n| u32::try_from(n).expect("drafts are short"));
            // The model has not read the last token of a draft; it reads that in a pass of its own once all tokens were accepted.
            let decode_s = (step.decode_s)(n_drafted) + (f64::from(n_passes) + 1.0 - all_cut) * self.pass_s;
            let expected_step = ExpectedStep { step_s: decode_s + step.token_s * n_emitted, without_s };
            let rate = n_emitted / expected_step.step_s;
            let is_allowed =
                |expected: &Expectation| expected.slack.after(1.0 + expected.n_accepted(length), expected_step) >= 0.0;
            if rate > best.1 && decode_s <= step.max_decode_s && expectations.iter().all(is_allowed) {
                best = (length, rate);
            }
        }
        let n_without: f64 = expectations.iter().map(|expected| 1.0 + expected.other).sum();
        let n_other: usize = expectations.iter().map(|expected| expected.n_other).sum();
        let other_s = (step.decode_s)(u32::try_from(n_other).expect("drafts are short")) + step.token_s * n_without;
        if best.1 * other_s > n_without * (1.0 + MIN_GAIN) { best.0 } else { 0 }
    }

    /// Returns the number of tokens that the draft model may catch up with in the rest of the time of a step.
    fn max_caught_up(&self, step: &StepTime<'_>) -> u32 {
        if self.caught_up_s == 0.0 {
            return FIRST_CAUGHT_UP;
        }
        let left_s = step.max_decode_s - (step.decode_s)(0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a negative or large number is clamped")]
        let n = (left_s / self.caught_up_s) as u32;
        n.max(MIN_CAUGHT_UP)
    }

    /// Records the time of drafts of `n_passes` tokens, after `n_caught_up` other tokens were computed.
    fn observe(&mut self, n_passes: usize, n_caught_up: u32, n_sequences: usize, took: Duration) {
        self.n_drafts = self.n_drafts.wrapping_add(1);
        self.spent += took;
        let took_s = took.as_secs_f64().max(1e-7);
        let n_passes = f64::from(u32::try_from(n_passes).expect("drafts are short"));
        // A token for each sequence is what every draft whose tokens were all accepted has to catch up with, in one pass.
        let is_usual = n_caught_up as usize <= n_sequences;
        if is_usual && n_passes > 0.0 {
            update(&mut self.pass_s, took_s / (n_passes + f64::from(u8::from(n_caught_up > 0))));
        } else if n_caught_up > 0 {
            let rest_s = (took_s - n_passes * self.pass_s).max(0.0);
            update(&mut self.caught_up_s, rest_s.max(0.1 * took_s) / f64::from(n_caught_up));
            if self.pass_s == 0.0 && n_passes > 0.0 {
                self.pass_s = took_s / (n_passes + 1.0);
            }
        }
    }
}

/// Moves a mean towards a measurement: slowly if that is longer, since other processes delay.
fn update(mean_s: &mut f64, measured_s: f64) {
    let weight = if measured_s < *mean_s { 0.5 } else { 0.1 };
    *mean_s = if *mean_s == 0.0 { measured_s } else { *mean_s + weight * (measured_s.min(3.0 * *mean_s) - *mean_s) };
}

/// Returns the sequences for which the draft model drafts in this step, `None` if it drafts for none.
pub(crate) fn request<R: Runner>(
    scheduler: &mut Scheduler,
    cache: &CacheManager<R>,
    room: &DraftRoom<'_>,
    proposals: &[(SchedulingKey, DraftProposal)],
) -> Option<WantedDrafts> {
    let speculator = &mut scheduler.features_mut().speculation;
    speculator.model.spent = Duration::ZERO;
    let read = cache.runner().draft_model_read_time();
    speculator.stats.by_source[DraftSource::Model as usize].time += read.saturating_sub(speculator.model.read);
    speculator.model.read = read;
    let info = cache.runner().draft_model().filter(|_| room.n_rows > 0)?;
    let model_max = info.max_draft as usize;
    let is_forced = is_forced(scheduler);
    let expectations: Vec<Expectation> =
        proposals.iter().map(|(key, proposal)| expectation(scheduler, *key, proposal, model_max)).collect();
    if expectations.iter().all(|expected| expected.of_model.is_empty()) {
        return None;
    }
    let model = &mut scheduler.features_mut().speculation.model;
    let step =
        StepTime { decode_s: &|n_drafted| room.decode_s(n_drafted), token_s: room.token_s, max_decode_s: room.max_decode_s };
    let length = if is_forced { model_max } else { model.choose_length(&expectations, &step, info) };
    if length == 0 {
        return None;
    }
    let max_caught_up = if is_forced { FIRST_CAUGHT_UP } else { model.max_caught_up(&step) };
    let drafted: Vec<usize> = (0..proposals.len()).filter(|&nth| !expectations[nth].of_model.is_empty()).collect();
    let max_draft = |proposal: &DraftProposal| u32::try_from(length.min(proposal.max_draft)).expect("drafts are short");
    let sequences = drafted.iter().map(|&nth| (proposals[nth].0, max_draft(&proposals[nth].1))).collect();
    model.requested = Some((drafted, Instant::now()));
    Some(WantedDrafts { sequences, max_caught_up })
}

/// Replaces the proposals of the sequences for which the draft model has drafted.
pub(crate) fn add<R: Runner>(
    scheduler: &mut Scheduler,
    cache: &CacheManager<R>,
    ModelDrafts { drafts, n_caught_up }: ModelDrafts,
    proposals: &mut [(SchedulingKey, DraftProposal)],
) {
    let Some((drafted, started)) = scheduler.features_mut().speculation.model.requested.take() else { return };
    let (is_forced, took) = (is_forced(scheduler), started.elapsed());
    let n_passes = drafts.iter().map(Vec::len).max().unwrap_or(0);
    let token_strings = cache.runner().token_strings();
    let speculator = &mut scheduler.features_mut().speculation;
    speculator.model.observe(n_passes, n_caught_up, drafted.len(), took);
    speculator.stats.by_source[DraftSource::Model as usize].time += took;
    for (nth, tokens) in drafted.into_iter().zip(drafts) {
        replace(scheduler, &mut proposals[nth], tokens, &token_strings, is_forced);
    }
}

/// Returns true if tests fix the cost of drafts: a draft model then drafts as much as it can in every step, however long it takes.
fn is_forced(scheduler: &Scheduler) -> bool {
    scheduler.limits().speculation.row_percent.is_some()
}

fn expectation(scheduler: &mut Scheduler, key: SchedulingKey, proposal: &DraftProposal, model_max: usize) -> Expectation {
    let is_forced = is_forced(scheduler);
    let DraftProposal { source, tokens, survival, max_draft, slack, .. } = proposal;
    let other: f64 = survival.iter().sum();
    let mut expected = Expectation { n_other: tokens.len(), other, of_model: Vec::new(), slack: *slack };
    let sequence = scheduler.sequence_mut(key);
    let has_media = !sequence.media_from(0).is_empty();
    let Some(drafts) = sequence.features.speculation.as_mut().filter(|_| *max_draft > 0 && *source != DraftSource::Replay) else {
        return expected;
    };
    let survival = drafts.acceptance.of(DraftSource::Model).survival(0, model_max.min(*max_draft));
    if !has_media && (is_forced || survival.iter().sum::<f64>() > other) {
        expected.of_model = accepted_by_length(survival);
    }
    expected
}

/// Returns the expected number of accepted tokens of a draft by its length from 1 on.
fn accepted_by_length(survival: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let sum = |sum: &mut f64, survival| {
        *sum += survival;
        Some(*sum)
    };
    survival.into_iter().scan(0.0, sum).collect()
}

/// Replaces a proposal by a draft of the model, if it is expected to have more tokens accepted.
fn replace(
    scheduler: &mut Scheduler,
    (key, proposal): &mut (SchedulingKey, DraftProposal),
    mut tokens: Vec<Token>,
    token_strings: &TokenStrings,
    is_forced: bool,
) {
    let is_valid = |token: &&Token| usize::try_from(**token).is_ok_and(|token| token < token_strings.n_vocab());
    tokens.truncate(tokens.iter().take_while(is_valid).count());
    if tokens.is_empty() {
        return;
    }
    let sequence = scheduler.sequence_mut(*key);
    let Some(mut drafts) = sequence.features.speculation.take() else { return };
    let of_model = drafts.propose_of_model(sequence, tokens);
    let expected = |proposal: &DraftProposal| proposal.survival.iter().sum::<f64>();
    if is_forced || expected(&of_model) > expected(proposal) {
        *proposal = of_model;
    }
    sequence.features.speculation = Some(drafts);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DraftKind;

    const INFO: DraftModelInfo = DraftModelInfo { kind: DraftKind::Simple, max_draft: 16, has_fixed_cost: false };

    /// Ten milliseconds, and half of one for each row.
    fn decode_s(n_drafted: u32) -> f64 {
        0.010 + 0.0005 * f64::from(n_drafted)
    }

    const STEP: StepTime<'static> = StepTime { decode_s: &decode_s, token_s: 0.0, max_decode_s: f64::INFINITY };

    /// A sequence of which each drafted token is accepted with this probability.
    fn accepting(share: f64) -> [Expectation; 1] {
        let of_model = accepted_by_length((1..=16).map(|n| share.powi(n)));
        [Expectation { n_other: 0, other: 0.0, of_model, slack: RateSlack::default() }]
    }

    #[test]
    fn the_length_grows_with_acceptance_and_falls_with_the_cost_of_a_pass() {
        let length = |share, pass_s| {
            let used = DraftModelUse { pass_s, ..DraftModelUse::default() };
            used.best_length(&accepting(share), &STEP, INFO)
        };
        assert!(length(0.9, 0.001) > length(0.6, 0.001) && length(0.6, 0.001) > 0);
        assert!(length(0.9, 0.003) < length(0.9, 0.001));
        assert_eq!([length(0.3, 0.004), length(0.9, 0.02)], [0, 0]);
    }

    #[test]
    fn a_step_with_drafts_stays_within_its_time() {
        let used = DraftModelUse { pass_s: 0.002, ..DraftModelUse::default() };
        let length = used.best_length(&accepting(0.95), &StepTime { max_decode_s: 0.016, ..STEP }, INFO);
        assert!((1..=2).contains(&length), "{length}");
    }

    #[test]
    fn a_sequence_that_has_lost_too_much_gets_no_draft_until_it_has_caught_up() {
        let used = DraftModelUse { pass_s: 0.001, ..DraftModelUse::default() };
        let mut expectations = accepting(0.7);
        let length = |expectations: &[Expectation]| used.best_length(expectations, &STEP, INFO);
        assert!(length(&expectations) > 0);
        let step = |share| ExpectedStep { step_s: share, without_s: 1.0 };
        // Drafts that were not verified: one token in a longer step.
        (0..50).for_each(|_| expectations[0].slack.observe(1, step(1.4)));
        assert_eq!(length(&expectations), 0);
        (0..100).for_each(|_| expectations[0].slack.observe(1, step(1.0)));
        assert!(length(&expectations) > 0);
    }

    #[test]
    fn a_draft_whose_cost_is_fixed_is_as_long_as_possible_or_not_made() {
        let length = |share| {
            let used = DraftModelUse { pass_s: 0.001, ..DraftModelUse::default() };
            let info = DraftModelInfo { kind: DraftKind::Mtp, max_draft: 4, has_fixed_cost: true };
            used.best_length(&accepting(share), &STEP, info)
        };
        assert_eq!([length(0.1), length(0.8)], [0, 4]);
    }

    #[test]
    fn without_gain_trials_take_a_bounded_share_of_the_time() {
        for trial_s in [0.002, 0.2] {
            let mut used = DraftModelUse { pass_s: 0.02, ..DraftModelUse::default() };
            let (mut n_trials, mut total_s) = (0, 0.0);
            for _ in 0..100_000 {
                let is_trial = used.choose_length(&accepting(0.5), &STEP, INFO) > 0;
                used.spent = Duration::from_secs_f64(if is_trial { trial_s } else { 0.0 });
                let took_s = if is_trial { 0.01 + trial_s } else { 0.01 };
                used.observe_step(Duration::from_secs_f64(took_s));
                n_trials += i32::from(is_trial);
                total_s += took_s;
            }
            let share = f64::from(n_trials) * trial_s / total_s;
            assert!(n_trials > 20 && share < 1.1 * MAX_TRIAL_SHARE, "{n_trials} trials, {share:.4} of the time");
        }
    }
}
