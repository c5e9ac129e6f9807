//! Registry of forks, unbuilt ones included, and of ended branches that can still be forked. No model, no clock.

pub(crate) mod builder;
pub(crate) mod commands;
pub(crate) mod control;
pub(crate) mod fork_state;
pub(crate) mod request;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use crate::engine::features::forks::builder::{ForkBuild, QueuedFork, stream_ended_error};
use crate::engine::features::forks::fork_state::ForkState;
use crate::engine::features::forks::request::{ForkSource, MAX_COPIED_TOKENS, REPLAY_COST};
use crate::engine::ids::{BranchIndex, BranchKey, GroupId, MemberIndex, StreamId};
use crate::engine::output::fork::MAX_ENDED_BYTES;
use crate::engine::output::stream::Sender;
use crate::engine::scheduler::request_group::RequestGroup;
use crate::engine::scheduler::sequence::Sequence;
use crate::request::{FinishReason, Task};

/// A fork at the end of a running branch. It samples its first token from the logits after `n_tokens` tokens of that branch.
struct DueFork {
    group_id: GroupId,
    of: BranchKey,
    n_tokens: u32,
}

struct EndedBranches {
    sender: Arc<Sender>,
    branches: BTreeMap<BranchIndex, ForkSource>,
    n_bytes: usize,
}

#[derive(Default)]
pub(crate) struct ForkRegistry {
    states: BTreeMap<GroupId, Rc<ForkState>>,
    due: Vec<DueFork>,
    ended: BTreeMap<StreamId, EndedBranches>,
    n_bytes: usize,
    queues: BTreeMap<StreamId, VecDeque<QueuedFork>>,
    /// Stream from which on queues are served next.
    next_stream_id: StreamId,
    n_copied: usize,
    n_replayed: usize,
}

impl ForkRegistry {
    pub(crate) fn reset_budget(&mut self) {
        (self.n_copied, self.n_replayed) = (0, 0);
    }

    pub(crate) fn is_step_full(&self) -> bool {
        self.n_copied >= MAX_COPIED_TOKENS
    }

    pub(crate) fn n_replayable(&self) -> usize {
        (MAX_COPIED_TOKENS / REPLAY_COST).saturating_sub(self.n_replayed)
    }

    pub(crate) fn is_building(&self) -> bool {
        !self.queues.is_empty()
    }

    pub(crate) fn has_queue(&self, stream_id: StreamId) -> bool {
        self.queues.contains_key(&stream_id)
    }

    pub(crate) fn enqueue(&mut self, stream_id: StreamId, command: QueuedFork) {
        self.queues.entry(stream_id).or_default().push_back(command);
    }

    pub(crate) fn next_command(&mut self) -> Option<(StreamId, QueuedFork)> {
        if self.n_replayable() == 0 {
            return None;
        }
        let next = self.queues.range(self.next_stream_id..).next().or_else(|| self.queues.first_key_value());
        let stream_id = *next?.0;
        self.next_stream_id = StreamId(stream_id.0 + 1);
        let queue = self.queues.get_mut(&stream_id)?;
        let first = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&stream_id);
        }
        Some((stream_id, first))
    }

    pub(crate) fn push_front(&mut self, stream_id: StreamId, build: ForkBuild) {
        self.queues.entry(stream_id).or_default().push_front(QueuedFork::Fork(build));
    }

    pub(crate) fn set_initial_state(&mut self, group_id: GroupId, fork_state: ForkState) {
        self.states.insert(group_id, Rc::new(fork_state));
    }

    pub(crate) fn state_of(&self, group_id: GroupId) -> Option<&Rc<ForkState>> {
        self.states.get(&group_id)
    }

    pub(crate) fn wait_for_logits(&mut self, group_id: GroupId, of: BranchKey, n_tokens: u32) {
        self.due.push(DueFork { group_id, of, n_tokens });
    }

    pub(crate) fn take_due(&mut self, of: BranchKey, n_tokens: u32) -> Vec<GroupId> {
        let matches = |due: &mut DueFork| due.of == of && due.n_tokens == n_tokens;
        self.due.extract_if(.., matches).map(|due| due.group_id).collect()
    }

    /// Cancels the waits for the logits of a branch whose context was shifted. Its later text may reach the same length.
    pub(crate) fn drop_due(&mut self, of: BranchKey) {
        self.due.retain(|due| due.of != of);
    }

    pub(crate) fn remove_group(&mut self, group_id: GroupId) {
        self.states.remove(&group_id);
        self.due.retain(|due| due.group_id != group_id && due.of.group_id != group_id);
        self.cancel_unbuilt(group_id);
    }

    fn cancel_unbuilt(&mut self, group_id: GroupId) {
        let matches = |command: &QueuedFork| matches!(command, QueuedFork::Fork(build) if build.group_id() == group_id);
        for queue in self.queues.values_mut() {
            let removed = queue.iter().position(matches).and_then(|index| queue.remove(index));
            if let Some(QueuedFork::Fork(build)) = removed {
                build.answer.send(Err(stream_ended_error()));
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
    }

    pub(crate) fn on_finish(&mut self, group: &RequestGroup, sequence: &Sequence, reason: &FinishReason) {
        if group.request.task == Task::Complete {
            let fork_state = self.state_of(group.group_id).cloned();
            let mut source = ForkSource::new(group, sequence.member, fork_state).advanced_to(sequence);
            // The event of a cancelled branch does not publish text that was held back.
            source.has_published_all = sequence.n_predicted > 0 && *reason != FinishReason::Cancelled;
            self.end(group.stream_id, sequence.branch, source);
        }
    }

    pub(crate) fn on_cancel_waiting(&mut self, group: &RequestGroup, member: MemberIndex) {
        let source = ForkSource::new(group, member, self.state_of(group.group_id).cloned());
        self.end(group.stream_id, group.branch_index(member), source);
    }

    pub(crate) fn end(&mut self, stream_id: StreamId, branch: BranchIndex, source: ForkSource) {
        self.drop_unread_streams();
        let new = || EndedBranches { sender: Arc::clone(&source.sender), branches: BTreeMap::new(), n_bytes: 0 };
        let branches_of_stream = self.ended.entry(stream_id).or_insert_with(new);
        let n_bytes = source.n_own_bytes() + source.n_shared_bytes(&branches_of_stream.branches.values());
        branches_of_stream.n_bytes += n_bytes;
        branches_of_stream.branches.insert(branch, source);
        self.n_bytes += n_bytes;
        while self.n_bytes > MAX_ENDED_BYTES {
            let Some((_, oldest)) = self.ended.pop_first() else { return };
            self.n_bytes -= oldest.n_bytes;
        }
    }

    pub(crate) fn ended(&self, stream_id: StreamId, branch: BranchIndex) -> Option<&ForkSource> {
        self.ended.get(&stream_id)?.branches.get(&branch)
    }

    pub(crate) fn remove_stream(&mut self, stream_id: StreamId) {
        self.n_bytes -= self.ended.remove(&stream_id).map_or(0, |ended| ended.n_bytes);
    }

    fn drop_unread_streams(&mut self) {
        let n_bytes = &mut self.n_bytes;
        self.ended.retain(|_, ended| {
            let is_read = ended.sender.has_consumer();
            *n_bytes -= if is_read { 0 } else { ended.n_bytes };
            is_read
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::output::completions::Completions;
    use crate::engine::scheduler::request_group::test_group;
    use crate::request::{Encoding, Media, Medium, PlacedMedia, Prompt, Request, Token};

    /// Creates a group of `n` branches after `n_prompt` tokens, and its consumer.
    fn group(id: u64, n: u32, n_prompt: usize) -> (RequestGroup, Completions) {
        test_group(id, Request { n, ..Request::new(Prompt::from_tokens(vec![1; n_prompt]), 0) })
    }

    fn end(forks: &mut ForkRegistry, group: &RequestGroup, branch: u32, n_drawn: u32) {
        let mut source = ForkSource::new(group, MemberIndex(0), None);
        (0..n_drawn).for_each(|token| source.tokens.push(Token::try_from(token).expect("small")));
        forks.end(group.stream_id, BranchIndex(branch), source);
    }

    #[test]
    fn shared_parts_of_branches_count_once_and_own_parts_each_time() {
        let mut forks = ForkRegistry::default();
        let (first, _consumer) = group(0, 3, 50_000);
        end(&mut forks, &first, 0, 100);
        let n_first = forks.n_bytes;
        assert!((200_400..230_000).contains(&n_first), "{n_first} bytes");
        end(&mut forks, &first, 1, 100);
        assert_eq!(forks.n_bytes - n_first, size_of::<ForkSource>() + 400);
        // Forks that joined the stream have their own prompt and parameters.
        let n_before = forks.n_bytes;
        let (mut fork, _) = group(1, 1, 50_000);
        fork.stream_id = StreamId(0);
        forks.end(StreamId(0), BranchIndex(3), ForkSource::new(&fork, MemberIndex(0), None));
        assert_eq!(forks.n_bytes - n_before, n_first - 400);
    }

    #[test]
    fn the_initial_state_of_a_fork_counts_too() {
        let mut forks = ForkRegistry::default();
        let (group, _consumer) = group(0, 2, 20);
        let fork_state = Rc::new(ForkState::Restart(vec![b'x'; 3_000]));
        let source = || ForkSource::new(&group, MemberIndex(0), Some(Rc::clone(&fork_state)));
        forks.end(StreamId(0), BranchIndex(0), source());
        let n_bytes = forks.n_bytes;
        assert!(n_bytes >= 3_000);
        forks.end(StreamId(0), BranchIndex(1), source());
        assert_eq!(forks.n_bytes - n_bytes, size_of::<ForkSource>());
    }

    /// A picture of the given size in bytes.
    #[derive(Debug)]
    struct Picture(Token, u64);

    impl Medium for Picture {
        fn first_id(&self) -> Token {
            self.0
        }

        fn n_tokens(&self) -> u32 {
            4
        }

        fn sees_ahead(&self) -> bool {
            false
        }

        fn n_bytes(&self) -> u64 {
            self.1
        }

        fn encoding(&self) -> Encoding {
            Encoding::Ready
        }

        fn embeddings(&self) -> Option<Arc<[f32]>> {
            None
        }
    }

    #[test]
    fn a_picture_counts_once_for_all_branches_of_a_stream() {
        let picture = |first_id, n_bytes| Media(Arc::new(Picture(first_id, n_bytes)));
        let with = |id, media: &[&Media]| {
            let (mut group, consumer) = group(id, 2, 20);
            group.media = media.iter().map(|&media| PlacedMedia { start: 0, media: media.clone() }).collect();
            (group, consumer)
        };
        let n_bytes = MAX_ENDED_BYTES as u64 / 3;
        let (one, other) = (picture(-1, n_bytes), picture(-9, n_bytes));
        let mut forks = ForkRegistry::default();
        let (first, _consumer) = with(0, &[&one]);
        end(&mut forks, &first, 0, 1);
        end(&mut forks, &first, 1, 1);
        assert!((MAX_ENDED_BYTES / 3..MAX_ENDED_BYTES / 2).contains(&forks.n_bytes), "{} bytes", forks.n_bytes);
        // Further groups of the stream have the same picture, and another one.
        let (mut further, _) = with(1, &[&one, &other]);
        further.stream_id = StreamId(0);
        forks.end(StreamId(0), BranchIndex(2), ForkSource::new(&further, MemberIndex(0), None));
        assert!((MAX_ENDED_BYTES / 3 * 2..MAX_ENDED_BYTES / 4 * 3).contains(&forks.n_bytes), "{} bytes", forks.n_bytes);
        // The ones of another stream count separately, which together exceeds the limit.
        let (second, _second) = with(2, &[&one, &other]);
        end(&mut forks, &second, 0, 1);
        assert!(
            forks.ended(StreamId(0), BranchIndex(0)).is_none() && forks.ended(StreamId(2), BranchIndex(0)).is_some(),
            "the oldest go first"
        );
    }

    #[test]
    fn the_oldest_streams_are_dropped_first_and_removed_ones_do_not_count() {
        let mut forks = ForkRegistry::default();
        let n_prompt = MAX_ENDED_BYTES / size_of::<Token>() / 3;
        let groups: Vec<(RequestGroup, Completions)> = (0..3).map(|id| group(id, 1, n_prompt)).collect();
        for (group, _) in &groups {
            end(&mut forks, group, 0, 1);
        }
        // Each takes a little more than a third.
        assert_eq!((forks.ended.len(), forks.ended(StreamId(0), BranchIndex(0)).is_none()), (2, true));
        assert!(forks.n_bytes <= MAX_ENDED_BYTES);
        forks.remove_stream(StreamId(0));
        forks.remove_stream(StreamId(1));
        assert!((1..=MAX_ENDED_BYTES / 2).contains(&forks.n_bytes), "one is left");
        drop(groups);
        let (last, _consumer) = group(3, 1, 20);
        end(&mut forks, &last, 0, 1);
        assert_eq!(forks.ended.len(), 1);
        assert!(forks.n_bytes < 100_000, "{} bytes", forks.n_bytes);
    }
}
