//! Limits that end a branch early: time, and lines.

use super::*;
use crate::fake_runner::NEWLINE;

#[test]
fn a_branch_over_its_time_limit_ends_at_the_next_newline() {
    let (engine, _) = start(limits(1, 512));
    let mut request = greedy(&prompt(1, 20), 200);
    request.sampling.logit_bias = vec![(NEWLINE, 0.8)];
    let free = run(&engine, request.clone()).remove(0);
    let n_lines = free.text.matches('\n').count();
    assert!((2..100).contains(&n_lines), "{n_lines} of them are no test");
    // Any time is too long; the first token takes none.
    request.max_predict_time = Some(Duration::ZERO);
    let late = run(&engine, request.clone()).remove(0);
    let first = 1 + free.text[1..].find('\n').unwrap();
    assert_eq!((&late.text[..], late.finished.reason), (&free.text[..=first], FinishReason::Length));
    request.max_predict_time = Some(Duration::from_secs(3_600));
    assert_eq!(run(&engine, request).remove(0).text, free.text);
}

#[test]
fn a_branch_ends_at_an_under_indented_line() {
    let (engine, _) = start(limits(1, 512));
    let mut request = greedy(&prompt(1, 20), 200);
    request.sampling.logit_bias = vec![(NEWLINE, 0.8)];
    let free = run(&engine, request.clone()).remove(0);
    let end = free.text.find('\n').unwrap() + 1;
    assert!(!free.text[end..].starts_with("  "), "the line is indented");
    request.n_indent = 2;
    let indented = run(&engine, request).remove(0);
    let n_spaces = free.text[end..].len() - free.text[end..].trim_start_matches(' ').len();
    assert_eq!(indented.text, free.text[..end + n_spaces]);
    assert_eq!(indented.tokens.len(), end + n_spaces + 1, "the first character after it ends it");
    assert_eq!(indented.finished.reason, FinishReason::Length);
}
