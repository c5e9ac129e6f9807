//! Tests of `history`.

use std::sync::atomic::AtomicUsize;

use super::*;
use crate::engine::output::completions::test_stream;
use crate::engine::scheduler::request_group::QueuePermit;
use crate::request::{Prompt, Request};
use crate::sampling::Sampler;
use crate::sampling::token_strings::tests::Pieces;

/// Creates a group with the prompt `tokens`.
fn group(group_id: u64, tokens: &[Token]) -> RequestGroup {
    let place = QueuePermit::acquire(&Arc::new(AtomicUsize::new(0)), 1).expect("the queue is empty");
    let (sender, _) = test_stream(group_id, 1);
    let request = Request::new(Prompt::from_tokens(tokens.to_vec()), 0);
    let sampler = Sampler::new(&request.sampling, 0, &Pieces::none(&[]), 0);
    RequestGroup::new(group_id, group_id, vec![(0, request, sampler)], Arc::new(sender), place)
}

#[test]
fn texts_with_another_first_token_count_towards_the_bound_of_a_comparison() {
    let mut history = History::default();
    let prompt = group(u64::MAX, &[1; 40]);
    let earlier = group(0, &[1; 40]);
    history.on_start(&earlier);
    history.update_text(0, 0, &Tokens::new(Arc::clone(&earlier.prompt)), 40);
    let n_common = |history: &History| history.lookup(&prompt).nearest.map(|nearest| nearest.n_common);
    assert_eq!(n_common(&history), Some(40));
    let n_texts = u32::try_from(MAX_COMPARED / MIN_COST).expect("few");
    for (group_id, first) in (1..).zip((0..n_texts).step_by(256)) {
        let other = group(group_id, &[2]);
        history.on_start(&other);
        for index in 0..256.min(n_texts - first) {
            history.update_text(group_id, index, &Tokens::new(Arc::clone(&other.prompt)), 1);
        }
    }
    assert_eq!(n_common(&history), None, "the newest {n_texts} texts are all that one explanation compares");
    let lost = EvictedRun { group_id: 0, range: 0..40, cause: crate::request::EvictionCause::DeviceCache };
    history.add_evictions([lost].into_iter(), Instant::now());
    assert!(history.find_eviction(&prompt, 0, 40, false).is_some());
    let with_other_adapters = |group_id| EvictedRun { group_id, range: 0..40, cause: crate::request::EvictionCause::DeviceCache };
    history.add_evictions((1..=u64::from(n_texts / 256)).map(with_other_adapters), Instant::now());
    assert!(history.find_eviction(&prompt, 0, 40, false).is_none(), "losses are compared within the same bound");
}
