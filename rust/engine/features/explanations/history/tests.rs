//! Tests of `history`.

use super::*;
use crate::engine::scheduler::request_group::test_group;
use crate::request::{Prompt, Request};

/// Creates a group with the prompt `tokens`.
fn group(id: u64, tokens: &[Token]) -> RequestGroup {
    test_group(id, Request::new(Prompt::from_tokens(tokens.to_vec()), 0)).0
}

fn key(group_id: u64, member: u32) -> BranchKey {
    BranchKey { group_id: GroupId(group_id), member: MemberIndex(member) }
}

#[test]
fn texts_with_another_first_token_count_towards_the_bound_of_a_comparison() {
    let mut history = History::default();
    let prompt = group(u64::MAX, &[1; 40]);
    let earlier = group(0, &[1; 40]);
    history.on_start(&earlier);
    history.update_tokens(key(0, 0), &Tokens::new(Arc::clone(&earlier.prompt)), 40);
    let n_common = |history: &History| history.lookup(&prompt).nearest.map(|nearest| nearest.n_common);
    assert_eq!(n_common(&history), Some(40));
    let n_texts = u32::try_from(MAX_COMPARED / MIN_COST).expect("few");
    for (group_id, first) in (1..).zip((0..n_texts).step_by(256)) {
        let other = group(group_id, &[2]);
        history.on_start(&other);
        for member in 0..256.min(n_texts - first) {
            history.update_tokens(key(group_id, member), &Tokens::new(Arc::clone(&other.prompt)), 1);
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
