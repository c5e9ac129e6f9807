//! Tests of `queue`.

use super::*;
use crate::engine::ids::MemberIndex;
use crate::engine::scheduler::request_group::{BranchRequest, PrefixDependency, test_group};
use crate::engine::scheduler::scheduling_key::STARTS_PER_PRIORITY;
use crate::request::{Prompt, Request};
use crate::sampling::Sampler;
use crate::sampling::token_strings::tests::Pieces;

fn group(id: u64, n: u32, priority: i32) -> RequestGroup {
    test_group(id, Request { n, priority, ..Request::new(Prompt::from_tokens(vec![1; 20]), 0) }).0
}

fn key(group_id: u64, member: u32) -> BranchKey {
    BranchKey { group_id: GroupId(group_id), member: MemberIndex(member) }
}

/// Creates requests with these numbers of completions and priorities, numbered from 0.
fn queue(max_open: u32, requests: &[(u32, i32)]) -> Queue {
    let mut queue = Queue::new(max_open);
    for (group_id, &(n, priority)) in (0..).zip(requests) {
        queue.push(group(group_id, n, priority));
    }
    queue
}

/// Starts the next request; its prompt is computed as soon as its first branch has started.
fn start(queue: &mut Queue) -> Option<u64> {
    let group_id = queue.next(|_| true)?;
    let member = queue.group(group_id).next_branch().expect("what is next waits");
    queue.start(BranchKey { group_id, member });
    queue.group_mut(group_id).prompt_logits = Some([0.0].into());
    Some(group_id.0)
}

fn starts(queue: &mut Queue, n: usize) -> Vec<u64> {
    (0..n).map_while(|_| start(queue)).collect()
}

#[test]
fn the_request_with_the_fewest_running_branches_starts_next_then_the_least_recently_served() {
    let mut queue = queue(9, &[(3, 0), (1, 0), (2, 0)]);
    assert_eq!(starts(&mut queue, 9), [0, 1, 2, 0, 2, 0]);
}

#[test]
fn requests_for_several_completions_wait_while_too_many_are_open_and_others_pass_them() {
    let mut queue = queue(1, &[(2, 0), (3, 0), (1, 0)]);
    assert_eq!(starts(&mut queue, 9), [0, 2, 0, 1, 1, 1]);
}

#[test]
fn a_failed_request_never_starts_again_whatever_is_set_afterwards() {
    let changes: [fn(&mut Queue); 4] = [
        |queue| drop(queue.drop_waiting(key(0, 1))),
        |queue| queue.set_prompt_logits(GroupId(0), &[0.0].into()),
        |queue| {
            let request = Request { n: 2, ..Request::new(Prompt::default(), 0) };
            let sampler = Sampler::new(&request.sampling, 0, &Pieces::none(&[]), 0);
            queue.set_branch_specs(GroupId(0), vec![BranchSpec::new(BranchRequest { first: BranchIndex(0), request, sampler })]);
        },
        |queue| queue.reset(GroupId(0)),
    ];
    for (nth, change) in changes.into_iter().enumerate() {
        let mut queue = queue(9, &[(3, 0)]);
        queue.block_starts(GroupId(0));
        change(&mut queue);
        assert_eq!(queue.next(|_| true), None, "after change {nth}");
    }
}

#[test]
fn all_branches_of_a_higher_priority_start_first() {
    let mut queue = queue(9, &[(1, 0), (2, 1), (1, -1), (1, 0)]);
    assert_eq!(starts(&mut queue, 9), [1, 1, 0, 3, 2]);
}

#[test]
fn a_low_priority_eventually_starts_despite_arrivals_of_a_higher_one() {
    let mut queue = queue(9, &[(1, 0)]);
    let mut n_before = 0;
    for group_id in 1.. {
        queue.push(group(group_id, 1, 1));
        if start(&mut queue) == Some(0) {
            break;
        }
        n_before += 1;
    }
    assert!((STARTS_PER_PRIORITY - 2..=STARTS_PER_PRIORITY + 2).contains(&n_before), "{n_before} went before it");
}

fn awaited(provider: SchedulingKey, n_tokens: u32) -> AwaitedPrefix {
    AwaitedPrefix { dependency: PrefixDependency { provider, n_tokens }, n_cached: 0 }
}

#[test]
fn a_blocked_request_is_not_next_until_its_prefix_is_computed_or_its_provider_is_gone() {
    let provider = |group_id| SchedulingKey::new(0, 0, key(group_id, 0));
    let awaited_prefix = |group_id, n_tokens| awaited(provider(group_id), n_tokens);
    let mut queue = queue(9, &[(1, 0), (1, 0), (1, 0), (1, 0)]);
    queue.block_on_prefix(GroupId(0), awaited_prefix(77, 50));
    queue.block_on_prefix(GroupId(1), awaited_prefix(77, 20));
    queue.block_on_prefix(GroupId(2), awaited_prefix(88, 50));
    let n_computed = |of: SchedulingKey| if of == provider(77) { Some(20) } else { Some(49) };
    queue.unblock(n_computed);
    assert_eq!(starts(&mut queue, 9), [1, 3]);
    queue.unblock(|of| n_computed(of).filter(|_| of == provider(77)));
    assert_eq!(starts(&mut queue, 9), [2]);
    queue.unblock(|_| Some(50));
    assert_eq!(starts(&mut queue, 9), [0]);
}

#[test]
fn a_removed_request_is_in_no_index() {
    let mut queue = queue(9, &[(1, 0), (2, 3), (2, 0), (1, 0)]);
    start(&mut queue);
    queue.block_on_prefix(GroupId(3), awaited(SchedulingKey::new(0, 0, key(9, 0)), 20));
    for group_id in (0..4).map(GroupId) {
        assert_eq!(queue.remove(group_id).map(|group| group.group_id), Some(group_id));
    }
    assert!(queue.is_empty() && queue.remove(GroupId(0)).is_none() && queue.next(|_| true).is_none());
    assert!(queue.waiting.is_empty());
}

#[test]
fn a_load_waits_for_its_slot_without_blocking_others() {
    let mut queue = Queue::new(9);
    let mut load = group(0, 1, 0);
    load.request =
        Arc::new(Request { slot: Some(2), task: crate::request::Task::Load(Arc::default()), ..(*load.request).clone() });
    queue.push(load);
    queue.push(group(1, 1, 0));
    assert_eq!((queue.next(|slot| slot != 2), queue.next(|_| true)), (Some(GroupId(1)), Some(GroupId(0))));
}

#[test]
fn a_large_batch_does_not_delay_a_higher_priority() {
    // The default bound on the queue is 1,024.
    let mut queue = queue(9, &[(1, 0); 1_010]);
    queue.push(group(5_000, 1, 1));
    assert_eq!(queue.next(|_| true), Some(GroupId(5_000)), "nobody was served, and nobody has waited");
}

#[test]
fn open_requests_of_low_priority_do_not_block_one_of_high_priority() {
    let mut queue = queue(1, &[(50, -1)]);
    assert_eq!(start(&mut queue), Some(0));
    queue.push(group(1, 2, 1));
    assert_eq!(start(&mut queue), Some(1), "it would wait for 49 other branches");
}

#[test]
fn the_load_of_higher_priority_gets_a_contested_slot_first() {
    let mut queue = Queue::new(9);
    for (group_id, priority) in [(0, 0), (1, 1)] {
        let mut load = group(group_id, 1, priority);
        load.request =
            Arc::new(Request { slot: Some(2), task: crate::request::Task::Load(Arc::default()), ..(*load.request).clone() });
        queue.push(load);
    }
    assert_eq!(queue.next(|_| true), Some(GroupId(1)));
}
