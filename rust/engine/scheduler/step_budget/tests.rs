//! Step budgets: the rows that sequences get, and the time of steps.

use super::rows::MIN_LOW_PRIORITY;
use super::*;

const GAP: TokenGap = TokenGap::AtMost(Duration::from_millis(100));
const N_CELLS: u32 = 1_000;

impl StreamLoad {
    /// Creates a load of streams with the default gap.
    pub(super) fn by_default(n_decoding: u32) -> Self {
        Self { n_decoding, n_by_default: n_decoding, ..Self::default() }
    }
}

fn scheduler() -> StepBudget {
    StepBudget::new(512, GAP)
}

/// A step takes 20 ms, plus 1 ms for each prefill row.
fn measured() -> StepBudget {
    let mut scheduler = scheduler();
    for i in 0..200 {
        let n_prefill = 20 * (i % 5);
        scheduler.observe(1, n_prefill, N_CELLS, Duration::from_millis(20 + u64::from(n_prefill)));
    }
    scheduler
}

fn streams(n_uncomputed: &[u32]) -> StreamLoad {
    StreamLoad::by_default(u32::try_from(n_uncomputed.iter().filter(|&&n| n == 1).count()).unwrap())
}

pub(crate) fn demands(n_uncomputed: &[u32]) -> Vec<RowDemand> {
    n_uncomputed.iter().map(|&n_ready| RowDemand { n_ready, is_all: true, priority: 0, n_skipped: None }).collect()
}

fn plan_of(scheduler: &StepBudget, n_uncomputed: &[u32], n_cells: u32, spent: Duration) -> Vec<u32> {
    let mut rows = vec![7; 3];
    scheduler.plan(&demands(n_uncomputed), streams(n_uncomputed), n_cells, spent, &mut rows);
    rows
}

fn plan(scheduler: &StepBudget, n_uncomputed: &[u32]) -> Vec<u32> {
    plan_of(scheduler, n_uncomputed, N_CELLS, Duration::ZERO)
}

#[test]
fn every_decoding_sequence_gets_its_token() {
    assert_eq!(plan(&scheduler(), &[1, 1, 1]), [1, 1, 1]);
}

#[test]
fn a_prompt_starts_small_until_its_cost_is_known() {
    assert_eq!(plan(&scheduler(), &[2_000]), [MIN_CHUNK]);
    assert_eq!(plan(&scheduler(), &[1, 2_000]), [1, MIN_CHUNK]);
}

#[test]
fn a_prompt_alone_on_a_fast_machine_soon_fills_the_decode() {
    let mut fast = scheduler();
    for expected in [16, 64, 256, 512] {
        assert_eq!(plan(&fast, &[2_000]), [expected]);
        fast.observe(0, expected, N_CELLS, Duration::from_micros(1_000 + u64::from(expected)));
    }
}

/// Returns the streams of `1 + n_low` that get a row in each of `n_steps` steps; the first has the higher priority.
fn simulate_priorities(scheduler: &StepBudget, n_low: usize, n_steps: usize) -> Vec<Vec<usize>> {
    let mut n_skipped = vec![0; 1 + n_low];
    let mut rows = Vec::new();
    let steps = (0..n_steps).map(|_| {
        let demands: Vec<_> = (n_skipped.iter().enumerate())
            .map(|(nth, &n_skipped)| RowDemand {
                n_ready: 1,
                is_all: true,
                priority: i32::from(nth == 0),
                n_skipped: Some(n_skipped),
            })
            .collect();
        scheduler.plan(&demands, StreamLoad::by_default(0), N_CELLS, Duration::ZERO, &mut rows);
        for (n_skipped, &n_rows) in n_skipped.iter_mut().zip(&rows) {
            *n_skipped = if n_rows == 0 { *n_skipped + 1 } else { 0 };
        }
        (0..rows.len()).filter(|&nth| rows[nth] > 0).collect()
    });
    steps.collect()
}

/// A step takes 4 ms, plus 1 ms for each stream.
fn measured_streams() -> StepBudget {
    let mut scheduler = scheduler();
    for i in 0..400 {
        let n_decoding = 1 + 7 * (i % 5);
        scheduler.observe(n_decoding, 0, N_CELLS, Duration::from_millis(4 + u64::from(n_decoding)));
    }
    scheduler
}

#[test]
fn streams_of_lower_priorities_add_at_most_a_quarter_to_a_step_and_take_turns() {
    let steps = simulate_priorities(&measured_streams(), 20, 60);
    for step in &steps {
        assert_eq!(step[0], 0, "the one of higher priority goes on in every step");
        assert!((1..=2).contains(&(step.len() - 1)), "5 + 1.25 ms: {step:?}");
    }
    for low in 1..=20 {
        let at: Vec<usize> = (0..steps.len()).filter(|&nth| steps[nth].contains(&low)).collect();
        assert!(at.len() > 1 && at.windows(2).all(|two| two[1] - two[0] <= 20), "{low} goes on at {at:?}");
    }
}

#[test]
fn some_low_priority_streams_always_advance_and_all_do_if_they_are_cheap_or_unmeasured() {
    let mut slow = scheduler();
    for i in 0..400 {
        let n_decoding = 1 + 7 * (i % 5);
        slow.observe(n_decoding, 0, N_CELLS, Duration::from_millis(20 * u64::from(n_decoding)));
    }
    assert!(simulate_priorities(&slow, 20, 10).iter().all(|step| step.len() == 1 + MIN_LOW_PRIORITY as usize));
    assert!(simulate_priorities(&measured_streams(), 1, 10).iter().all(|step| step.len() == 2));
    assert!(simulate_priorities(&scheduler(), 20, 10).iter().all(|step| step.len() == 21));
}

#[test]
fn low_priority_streams_also_yield_to_a_prompt_of_higher_priority_unless_they_never_yield() {
    let mut scheduler = scheduler();
    for i in 0..400 {
        // 4 ms, plus 1 ms for each stream and 0.1 ms for each prompt row.
        let (n_decoding, n_prefill) = if i % 2 == 0 { (1 + 7 * (i % 5), 0) } else { (0, 10 * (i % 5)) };
        let took = Duration::from_micros(4_000 + u64::from(1_000 * n_decoding + 100 * n_prefill));
        scheduler.observe(n_decoding, n_prefill, N_CELLS, took);
    }
    let stream = |n_skipped| RowDemand { n_ready: 1, is_all: true, priority: 0, n_skipped };
    let mut rows = Vec::new();
    for (n_skipped, expected) in [(Some(0), 1..=6), (None, 30..=30)] {
        let demands =
            [vec![RowDemand { n_ready: 20, is_all: true, priority: 1, n_skipped: Some(0) }], vec![stream(n_skipped); 30]]
                .concat();
        scheduler.plan(&demands, StreamLoad::by_default(30), N_CELLS, Duration::ZERO, &mut rows);
        assert!(rows[0] > 0);
        assert!(expected.contains(&rows[1..].iter().sum::<u32>()), "{rows:?}");
    }
}

#[test]
fn prompt_logprobs_take_at_most_the_time_of_the_streams_and_a_third_of_the_gap() {
    let mut scheduler = measured();
    assert_eq!(scheduler.max_prompt_logprobs(StreamLoad::by_default(1), N_CELLS), MIN_CHUNK, "nothing is known yet");
    scheduler.observe_prompt_logprobs(64, Duration::from_millis(128));
    assert_eq!(scheduler.max_prompt_logprobs(StreamLoad::by_default(0), N_CELLS), u32::MAX, "nobody waits");
    assert!((9..=11).contains(&scheduler.max_prompt_logprobs(StreamLoad::by_default(1), N_CELLS)), "20 ms by 2 ms");
    let hurried = StreamLoad { n_by_default: 0, max_token_gap: Some(Duration::from_millis(30)), ..StreamLoad::by_default(1) };
    assert!((4..=5).contains(&scheduler.max_prompt_logprobs(hurried, N_CELLS)), "10 ms by 2 ms");
    (0..100).for_each(|_| scheduler.observe_prompt_logprobs(1, Duration::from_secs(1)));
    assert_eq!(scheduler.max_prompt_logprobs(StreamLoad::by_default(1), N_CELLS), 1, "nobody stands still");
}

#[test]
fn a_short_prompt_is_computed_in_one_step_on_an_unsteady_machine_and_a_longer_one_is_not() {
    let mut scheduler = StepBudget::new(512, TokenGap::AtMost(Duration::from_millis(90)));
    for i in 0..400_u64 {
        let n_prefill = 20 * (i % 5);
        let others = if i % 2 == 0 { 1 } else { 10 };
        let took = Duration::from_micros((2_000 + 100 * n_prefill) * others);
        scheduler.observe(1, u32::try_from(n_prefill).unwrap(), N_CELLS, took);
    }
    let chunk = |n_ready| plan_of(&scheduler, &[1, n_ready], N_CELLS, Duration::ZERO)[1];
    let usual = chunk(2_000);
    assert!((4..60).contains(&usual), "{usual} rows");
    assert_eq!(chunk(usual + 5), usual + 5, "all there is");
    assert_eq!(chunk(500), usual, "half a second is no third of the gap");
}

#[test]
fn a_prompt_gets_as_much_time_as_the_streams_on_an_unsteady_machine() {
    let mut scheduler = StepBudget::new(512, TokenGap::Auto);
    for i in 0..400_u64 {
        // Every other step waits for another process, ten times as long as it computes.
        let n_prefill = 20 * (i % 5);
        let wait = if i % 2 == 0 { 0 } else { 20_000 };
        scheduler.observe(1, u32::try_from(n_prefill).unwrap(), N_CELLS, Duration::from_micros(2_000 + 50 * n_prefill + wait));
    }
    let [_, rows] = plan(&scheduler, &[1, 2_000])[..] else { panic!("two were asked for") };
    let mean_s = |n_prefill| scheduler.decode.mean_s(StepShape { n_decoding: 1, n_prefill, n_cells: N_CELLS });
    assert!(rows > MIN_CHUNK_WITH_STREAMS, "{rows} rows are no more than on any machine");
    assert!(mean_s(rows) <= 2.0 * mean_s(0), "{rows} rows slow the stream down by more than one half");
    assert!(scheduler.move_time(streams(&[1]), 1, N_CELLS).as_secs_f64() >= 0.2 * mean_s(0), "nor is there time to move");
}

#[test]
fn a_chunk_keeps_running_streams_within_the_token_gap() {
    let rows = plan(&measured(), &[1, 2_000]);
    assert!((70..=80).contains(&rows[1]), "{rows:?} of 20 ms and 1 ms for each");
}

#[test]
fn a_prompt_may_take_as_long_as_slow_streams_by_themselves() {
    let slow = |gap| {
        let mut slow = StepBudget::new(512, gap);
        for i in 0..200 {
            let n_prefill = 4 * (i % 5);
            slow.observe(8, n_prefill, N_CELLS, Duration::from_millis(180 + 8 * u64::from(n_prefill)));
        }
        plan(&slow, &[1, 1, 1, 1, 1, 1, 1, 1, 2_000])[8]
    };
    assert_eq!(slow(TokenGap::AtMost(TokenGap::USUAL)), MIN_CHUNK_WITH_STREAMS);
    let chunk = slow(TokenGap::Auto);
    assert!((16..=22).contains(&chunk), "{chunk} rows of 8 ms beside 180 ms of streams");
}

#[test]
fn fast_streams_pause_for_ten_of_their_tokens_and_at_least_eight_milliseconds() {
    let added_us = |step_us: u32| {
        let (mut quick, row_us) = (StepBudget::new(4_096, TokenGap::Auto), step_us / 20);
        for i in 0..400 {
            let n_prefill = 20 * (i % 5);
            quick.observe(1, n_prefill, N_CELLS, Duration::from_micros((step_us + row_us * n_prefill).into()));
        }
        row_us * plan(&quick, &[1, 4_000])[1]
    };
    assert!((6_500..=7_500).contains(&added_us(500)), "{} us beside 500", added_us(500));
    assert!((15_500..=18_000).contains(&added_us(2_000)), "{} us beside 2,000", added_us(2_000));
    assert!((145_000..=180_000).contains(&added_us(25_000)), "{} us beside 25,000", added_us(25_000));
}

#[test]
fn a_prompt_adds_at_most_half_a_second_to_slow_streams() {
    let mut slow = StepBudget::new(512, TokenGap::Auto);
    for i in 0..200 {
        let n_prefill = 40 * (i % 5);
        slow.observe(1, n_prefill, N_CELLS, Duration::from_millis(3_000 + 10 * u64::from(n_prefill)));
    }
    let chunk = plan(&slow, &[1, 2_000])[1];
    assert!((20..=50).contains(&chunk), "{chunk} rows of 10 ms beside 3 s of one stream");
}

#[test]
fn a_chunk_without_streams_takes_at_most_half_a_second() {
    let mut measured = measured();
    measured.observe(0, 200, N_CELLS, Duration::from_millis(220));
    let rows = plan(&measured, &[2_000]);
    assert!((400..=485).contains(&rows[0]), "{rows:?} of 20 ms and 1 ms for each");
}

#[test]
fn a_slow_machine_still_computes_the_minimum_chunk() {
    let mut slow = scheduler();
    slow.observe(1, 0, N_CELLS, Duration::from_secs(1));
    slow.observe(0, 16, N_CELLS, Duration::from_secs(16));
    assert_eq!(plan(&slow, &[1, 2_000]), [1, MIN_CHUNK_WITH_STREAMS]);
    assert_eq!(plan(&slow, &[2_000]), [MIN_CHUNK]);
}

#[test]
fn a_chunk_has_only_as_many_rows_as_fit_the_gap_of_a_stream() {
    let mut slow = scheduler();
    for i in 0..200 {
        let n_prefill = 4 * (i % 4);
        slow.observe(1, n_prefill, N_CELLS, Duration::from_millis(20 + 8 * u64::from(n_prefill)));
    }
    let rows = plan(&slow, &[1, 2_000]);
    assert!((7..=10).contains(&rows[1]), "{rows:?} of 20 ms and 8 ms for each");
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let measured = measured();
    let chunk = plan(&measured, &[1, 2_000])[1];
    assert_eq!(plan(&measured, &[2_000, 10, 300, 1]), [chunk - 26, 10, 16, 1]);
}

#[test]
fn a_prompt_of_higher_priority_gets_the_chunk_before_others() {
    let measured = measured();
    let chunk = plan(&measured, &[1, 2_000])[1];
    let demand = |n_ready, priority| RowDemand { n_ready, is_all: true, priority, n_skipped: None };
    let mut rows = Vec::new();
    let mut plan_with = |demands: &[RowDemand]| {
        measured.plan(demands, StreamLoad::by_default(1), N_CELLS, Duration::ZERO, &mut rows);
        rows.clone()
    };
    assert_eq!(plan_with(&[demand(2_000, 3), demand(2_000, 0), demand(1, 0), demand(300, -1)]), [chunk, 0, 1, 1]);
    assert_eq!(plan_with(&[demand(30, 3), demand(2_000, 0), demand(1, 0), demand(300, -1)]), [30, chunk - 30, 1, 1]);
}

#[test]
fn prompts_of_a_lower_priority_than_a_stream_add_at_most_a_quarter_to_a_step() {
    let mut measured = StepBudget::new(512, TokenGap::Auto);
    for i in 0..200 {
        let n_prefill = 20 * (i % 5);
        measured.observe(1, n_prefill, N_CELLS, Duration::from_millis(20 + u64::from(n_prefill)));
    }
    let plan_with = |demands: &[(u32, i32)], priority| {
        let demands: Vec<_> =
            demands.iter().map(|&(n_ready, priority)| RowDemand { n_ready, is_all: true, priority, n_skipped: None }).collect();
        let mut rows = Vec::new();
        let streams = StreamLoad { priority, ..StreamLoad::by_default(1) };
        measured.plan(&demands, streams, N_CELLS, Duration::ZERO, &mut rows);
        rows
    };
    let whole = plan_with(&[(1, 0), (2_000, 0)], 0)[1];
    let aside = plan_with(&[(1, 3), (2_000, 0)], 3)[1];
    assert!(whole > 120 && (4..=6).contains(&aside), "{whole} rows of 1 ms in 200 ms, {aside} beside 20 ms");
    assert_eq!(plan_with(&[(1, 3), (2_000, 3)], 3)[1], whole, "equals may take all of the gap");
    assert_eq!(plan_with(&[(1, 3), (3, 3), (40, 1), (2_000, 0)], 3), [1, 3, aside - 3, 0], "which comes off what others get");
    assert_eq!(plan_with(&[(2_000, 0), (1, 3), (40, 3)], 3), [1, 1, 40], "nobody stands still");
}

#[test]
fn a_stream_may_request_its_own_gap() {
    let chunk = |n_by_default, gap_ms| {
        let streams = StreamLoad {
            n_decoding: 1,
            n_by_default,
            max_token_gap: Some(Duration::from_millis(gap_ms)),
            ..StreamLoad::default()
        };
        let mut rows = Vec::new();
        measured().plan(&demands(&[1, 2_000]), streams, N_CELLS, Duration::ZERO, &mut rows);
        rows[1]
    };
    assert!((25..=30).contains(&chunk(0, 50)), "{} rows of 1 ms beside 20 ms in 50 ms", chunk(0, 50));
    assert!((160..=180).contains(&chunk(0, 200)), "{} rows of 1 ms beside 20 ms in 200 ms", chunk(0, 200));
    assert_eq!((chunk(1, 200), chunk(0, 5_000)), (chunk(1, 1_000), chunk(0, 500)), "the least gap counts, and a chunk's limit");
}

#[test]
fn a_sequence_without_ready_tokens_gets_no_rows() {
    assert_eq!(plan(&measured(), &[0, 1, 0, 30]), [0, 1, 0, 30]);
}

#[test]
fn time_spent_on_moving_makes_the_chunk_smaller() {
    let measured = measured();
    let chunk = |spent_ms| plan_of(&measured, &[1, 2_000], N_CELLS, Duration::from_millis(spent_ms))[1];
    let smaller = chunk(0) - chunk(30);
    assert!((25..=35).contains(&smaller), "30 ms are {smaller} rows of 1 ms");
    assert_eq!(chunk(1_000), MIN_CHUNK_WITH_STREAMS);
}

#[test]
fn time_spent_outside_of_decodes_makes_the_chunk_smaller() {
    let mut measured = measured();
    let before = plan(&measured, &[1, 2_000])[1];
    for _ in 0..50 {
        measured.observe_rest(Duration::from_millis(30));
    }
    let smaller = before - plan(&measured, &[1, 2_000])[1];
    assert!((25..=35).contains(&smaller), "30 ms are {smaller} rows of 1 ms");
}

#[test]
fn longer_contexts_make_the_chunk_smaller() {
    let mut machine = scheduler();
    for i in 0..400 {
        let (n_prefill, n_cells) = (16 * (i % 6), 1_000 * (i % 17));
        let took_us = 10_000 + n_prefill * 500 + n_prefill * n_cells / 10;
        machine.observe(1, n_prefill, n_cells, Duration::from_micros(took_us.into()));
    }
    let [short, long] = [0, 16_000].map(|n_cells| plan_of(&machine, &[1, 2_000], n_cells, Duration::ZERO)[1]);
    assert!((120..=180).contains(&short), "{short} rows of 0.5 ms");
    assert!((35..=45).contains(&long), "{long} rows of 2.1 ms");
}

#[test]
fn moving_gets_half_of_the_remaining_gap_and_a_quarter_with_a_prompt() {
    let measured = measured();
    let [alone, beside] = [0, 1].map(|n_prefilling| measured.move_time(StreamLoad::by_default(1), n_prefilling, N_CELLS));
    assert!((Duration::from_millis(37)..Duration::from_millis(41)).contains(&alone), "{alone:?} is not half of 80 ms");
    assert!((alone / 2).abs_diff(beside) < Duration::from_micros(1), "{beside:?} is not half of {alone:?}");
    assert_eq!(measured.move_time(StreamLoad::by_default(0), 1, N_CELLS), MAX_MOVE);
}

#[test]
fn moving_gets_a_twentieth_of_a_decode_that_exceeds_the_gap() {
    let mut slow = scheduler();
    slow.observe(1, 0, N_CELLS, Duration::from_secs(1));
    let move_time = slow.move_time(StreamLoad::by_default(1), 0, N_CELLS);
    assert!(move_time.abs_diff(Duration::from_millis(50)) < Duration::from_millis(5), "{move_time:?} of 1 s");
    slow.observe(1, 0, N_CELLS, Duration::from_secs(3));
    slow.observe(1, 0, N_CELLS, Duration::from_secs(3));
    slow.observe(1, 0, N_CELLS, Duration::from_secs(3));
    assert_eq!(slow.move_time(StreamLoad::by_default(1), 0, N_CELLS), MAX_MOVE);
}

#[test]
fn a_plan_never_exceeds_the_rows_of_a_decode() {
    let n_uncomputed: Vec<u32> = (0..60).map(|i| if i % 2 == 0 { 1 } else { 500 }).collect();
    let rows = plan(&StepBudget::new(96, GAP), &n_uncomputed);
    assert!(rows.iter().sum::<u32>() <= 96);
    assert!(rows.iter().zip(&n_uncomputed).all(|(rows, n)| rows <= n));
    assert!(n_uncomputed.iter().zip(&rows).all(|(&n, &rows)| n > 1 || rows == 1), "nobody misses a token");
}

#[test]
fn a_senior_prompt_of_low_priority_advances_despite_prompts_of_higher_priority() {
    // The first has waited so long that it is senior to the others; as long as others arrive, it must advance.
    let demands: Vec<RowDemand> =
        [0, 1, 1].map(|priority| RowDemand { n_ready: 2_000, is_all: true, priority, n_skipped: None }).into();
    let mut rows = Vec::new();
    scheduler().plan(&demands, StreamLoad::default(), N_CELLS, Duration::ZERO, &mut rows);
    assert!(rows[0] > 0, "{rows:?}");
}
