//! Failed decodes.

use super::*;
use crate::fake_runner::FailureMode;

fn decode_error() -> Error {
    Error::Decode { reason: "made to fail".into() }
}

#[test]
fn a_failed_decode_ends_its_sequences_with_an_error_and_the_engine_continues() {
    let (engine, control) = start(limits(2, 256));
    control.fail(Some(FailureMode::All));
    let stream = engine.submit(drawn(&prompt(1, 20), 2, 5), None).unwrap();
    assert_eq!(collect(stream), Err(decode_error()));
    control.fail(None);
    wait_until(&engine, is_idle);
    assert_eq!(control.n_cells_used(), 0, "what it held is gone");
    assert_eq!(run(&engine, greedy(&prompt(1, 20), 5))[0].tokens, expected(&prompt(1, 20), 5));
}

#[test]
fn a_prompt_that_cannot_be_computed_does_not_end_other_streams() {
    let (engine, control) = start(limits(2, 1024));
    control.allow(Some(3));
    let stream = engine.submit(greedy(&prompt(1, 30), 40), None).unwrap();
    wait_until(&engine, |stats| stats.n_decodes == 3);
    let doomed = engine.submit(greedy(&prompt(2, 300), 5), None).unwrap();
    control.fail(Some(FailureMode::MoreRowsThan(1)));
    control.allow(None);
    assert_eq!(collect(doomed), Err(decode_error()));
    assert_eq!(collect(stream).unwrap()[0].tokens, expected(&prompt(1, 30), 40));
}

#[test]
fn start_returns_the_error_of_a_runner_that_cannot_be_built() {
    let error = Error::InvalidConfig { param: "n_ctx", message: "too large".into() };
    let failed = Engine::start(limits(1, 256), {
        let error = error.clone();
        move || Err::<FakeRunner, _>(error)
    });
    assert_eq!(failed.err(), Some(error));
}
