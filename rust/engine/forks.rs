//! What is known of forks: what their branches begin with, which wait for a row of logits, which are being made, and what is kept of
//! branches that have ended, from which others can be forked. Values in, values out: no model, no clock.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use crate::engine::fork_builder::{ForkBuild, QueuedFork, stream_has_ended};
use crate::engine::fork_request::{ForkSource, MAX_FORKED_TOKENS, READ_AGAIN};
use crate::engine::sequence::ForkState;
use crate::engine::stream::{MAX_ENDED_BYTES, Sender};

/// A fork at the end of a branch that runs: the row of logits after so many tokens of that is what its first token is drawn from.
struct DueFork {
    /// The fork.
    request_id: u64,
    /// The job of the branch, and which of the job's it is.
    of: (u64, u32),
    n_tokens: u32,
}

/// The branches of a stream that have ended.
struct EndedBranches {
    sender: Arc<Sender>,
    branches: BTreeMap<u32, ForkSource>,
    n_bytes: usize,
}

/// What is known of forks.
#[derive(Default)]
pub(super) struct ForkRegistry {
    /// By request id of the forks.
    begun: BTreeMap<u64, Rc<ForkState>>,
    due: Vec<DueFork>,
    /// By stream id.
    ended: BTreeMap<u64, EndedBranches>,
    /// Of all of these.
    n_bytes: usize,
    /// By stream: what is asked of its branches, in order, from the first forks on that are not made.
    lines: BTreeMap<u64, VecDeque<QueuedFork>>,
    /// The lines from this stream on are served first.
    turn: u64,
    /// Tokens that were copied in this step.
    n_copied: usize,
    /// Tokens that were read again in this step.
    n_read: usize,
}

impl ForkRegistry {
    /// A step begins.
    pub(super) fn begin_step(&mut self) {
        (self.n_copied, self.n_read) = (0, 0);
    }

    /// So many tokens were copied in this step.
    pub(super) fn count_copied(&mut self, n: usize) {
        self.n_copied += n;
    }

    /// So many tokens were read again in this step.
    pub(super) fn count_read(&mut self, n: usize) {
        self.n_read += n;
    }

    /// Whether further commands wait for the next step.
    pub(super) fn is_step_full(&self) -> bool {
        self.n_copied >= MAX_FORKED_TOKENS
    }

    /// How many tokens may still be read again in this step.
    pub(super) fn n_readable(&self) -> usize {
        (MAX_FORKED_TOKENS / READ_AGAIN).saturating_sub(self.n_read)
    }

    /// Whether forks are being made.
    pub(super) fn is_building(&self) -> bool {
        !self.lines.is_empty()
    }

    /// Whether forks of branches of this stream are being made.
    pub(super) fn has_queue(&self, stream_id: u64) -> bool {
        self.lines.contains_key(&stream_id)
    }

    /// Behind what was asked for before of the branches of this stream.
    pub(super) fn enqueue(&mut self, stream_id: u64, what: QueuedFork) {
        self.lines.entry(stream_id).or_default().push_back(what);
    }

    /// What is done next, taken out of the line of its stream: of the streams one after the other, as long as this step may read.
    pub(super) fn next_in_line(&mut self) -> Option<(u64, QueuedFork)> {
        if self.n_readable() == 0 {
            return None;
        }
        let next = self.lines.range(self.turn..).next().or_else(|| self.lines.first_key_value());
        let stream_id = *next?.0;
        self.turn = stream_id + 1;
        let line = self.lines.get_mut(&stream_id)?;
        let first = line.pop_front()?;
        if line.is_empty() {
            self.lines.remove(&stream_id);
        }
        Some((stream_id, first))
    }

    /// Forks that are not made yet are first in line again.
    pub(super) fn put_back(&mut self, stream_id: u64, making: ForkBuild) {
        self.lines.entry(stream_id).or_default().push_front(QueuedFork::Fork(making));
    }

    /// The branches of a job begin like this.
    pub(super) fn begin(&mut self, request_id: u64, begun: ForkState) {
        self.begun.insert(request_id, Rc::new(begun));
    }

    /// What the branches of a job begin with, where they are forks.
    pub(super) fn begun(&self, request_id: u64) -> Option<&Rc<ForkState>> {
        self.begun.get(&request_id)
    }

    /// A fork waits for the logits after the first `n_tokens` tokens of a branch of a job.
    pub(super) fn wait(&mut self, request_id: u64, of: (u64, u32), n_tokens: u32) {
        self.due.push(DueFork { request_id, of, n_tokens });
    }

    /// The forks that wait for the logits after the first `n_tokens` tokens of a branch; they wait no longer.
    pub(super) fn take_due(&mut self, request_id: u64, index: u32, n_tokens: u32) -> Vec<u64> {
        let is_it = |due: &mut DueFork| due.of == (request_id, index) && due.n_tokens == n_tokens;
        self.due.extract_if(.., is_it).map(|due| due.request_id).collect()
    }

    /// Cancels the waits for the logits of a branch whose context was shifted. Its later text may reach the same length.
    pub(super) fn drop_due(&mut self, request_id: u64, index: u32) {
        self.due.retain(|due| due.of != (request_id, index));
    }

    /// A job is over.
    pub(super) fn leave(&mut self, request_id: u64) {
        self.begun.remove(&request_id);
        self.due.retain(|due| due.request_id != request_id && due.of.0 != request_id);
        self.leave_line(request_id);
    }

    /// What was to become forks is over before they are made: whoever asked is told.
    fn leave_line(&mut self, request_id: u64) {
        let is_it = |what: &QueuedFork| matches!(what, QueuedFork::Fork(making) if making.request_id() == request_id);
        for line in self.lines.values_mut() {
            let left = line.iter().position(is_it).and_then(|at| line.remove(at));
            if let Some(QueuedFork::Fork(making)) = left {
                making.answer.give(Err(stream_has_ended()));
            }
        }
        self.lines.retain(|_, line| !line.is_empty());
    }

    /// A branch of a stream has ended, and may be forked for as long as somebody holds the stream.
    pub(super) fn end(&mut self, stream_id: u64, branch: u32, source: ForkSource, sender: &Arc<Sender>) {
        self.drop_left();
        let new = || EndedBranches { sender: Arc::clone(sender), branches: BTreeMap::new(), n_bytes: 0 };
        let of_stream = self.ended.entry(stream_id).or_insert_with(new);
        let n_bytes = source.n_own() + source.n_shared(&of_stream.branches.values());
        of_stream.n_bytes += n_bytes;
        of_stream.branches.insert(branch, source);
        self.n_bytes += n_bytes;
        while self.n_bytes > MAX_ENDED_BYTES {
            let Some((_, oldest)) = self.ended.pop_first() else { return };
            self.n_bytes -= oldest.n_bytes;
        }
    }

    /// A branch of a stream that has ended, and the stream's end.
    pub(super) fn ended(&self, stream_id: u64, branch: u32) -> Option<(&ForkSource, &Arc<Sender>)> {
        let of_stream = self.ended.get(&stream_id)?;
        Some((of_stream.branches.get(&branch)?, &of_stream.sender))
    }

    /// Whoever held this stream has gone: what of it has ended is not forked any more.
    pub(super) fn forget(&mut self, stream_id: u64) {
        self.n_bytes -= self.ended.remove(&stream_id).map_or(0, |ended| ended.n_bytes);
    }

    fn drop_left(&mut self) {
        let n_bytes = &mut self.n_bytes;
        self.ended.retain(|_, ended| {
            let is_held = ended.sender.has_reader();
            *n_bytes -= if is_held { 0 } else { ended.n_bytes };
            is_held
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::engine::request_group::{QueuePermit, RequestGroup};
    use crate::engine::stream::{self, Completions};
    use crate::request::{Encoding, Media, Medium, PlacedMedia, Prompt, Request, Token};
    use crate::sampling::Sampler;
    use crate::sampling::token_strings::tests::Pieces;

    /// A request for `n` branches after `n_prompt` tokens, and its reader.
    fn job(request_id: u64, n: u32, n_prompt: usize) -> (RequestGroup, Completions) {
        let place = QueuePermit::acquire(&Arc::new(AtomicUsize::new(0)), 1).expect("the queue is empty");
        let (sender, reader) = stream::stream(request_id, n, None, Box::new(|_| {}));
        let request = Request { n, ..Request::new(Prompt::from_tokens(vec![1; n_prompt]), 0) };
        let sampler = Sampler::new(&request.sampling, 0, &Pieces::none(&[]), 0);
        (RequestGroup::new(request_id, vec![(0, request, sampler)], Arc::new(sender), place), reader)
    }

    fn end(forks: &mut ForkRegistry, job: &RequestGroup, branch: u32, n_drawn: u32) {
        let mut source = ForkSource::new(job, 0, None);
        (0..n_drawn).for_each(|token| source.tokens.push(Token::try_from(token).expect("small")));
        forks.end(job.stream_id, branch, source, &job.sender);
    }

    #[test]
    fn what_branches_have_in_common_counts_once_and_what_is_their_own_each_time() {
        let mut forks = ForkRegistry::default();
        let (first, _reader) = job(0, 3, 50_000);
        end(&mut forks, &first, 0, 100);
        let n_first = forks.n_bytes;
        assert!((200_400..230_000).contains(&n_first), "{n_first} bytes");
        end(&mut forks, &first, 1, 100);
        assert_eq!(forks.n_bytes - n_first, size_of::<ForkSource>() + 400);
        // Forks that came into the stream have a prompt and a way of their own.
        let n_before = forks.n_bytes;
        let (mut fork, _) = job(1, 1, 50_000);
        fork.stream_id = 0;
        forks.end(0, 3, ForkSource::new(&fork, 0, None), &first.sender);
        assert_eq!(forks.n_bytes - n_before, n_first - 400);
    }

    #[test]
    fn what_a_fork_begins_with_counts_too() {
        let mut forks = ForkRegistry::default();
        let (job, _reader) = job(0, 2, 20);
        let begun = Rc::new(ForkState::Anew(vec![b'x'; 3_000]));
        let source = || ForkSource::new(&job, 0, Some(Rc::clone(&begun)));
        forks.end(0, 0, source(), &job.sender);
        let n_bytes = forks.n_bytes;
        assert!(n_bytes >= 3_000);
        forks.end(0, 1, source(), &job.sender);
        assert_eq!(forks.n_bytes - n_bytes, size_of::<ForkSource>());
    }

    /// A picture that takes so many bytes.
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

        fn vectors(&self) -> Option<Arc<[f32]>> {
            None
        }
    }

    #[test]
    fn a_picture_counts_once_for_all_branches_of_a_stream() {
        let picture = |first_id, n_bytes| Media(Arc::new(Picture(first_id, n_bytes)));
        let with = |request_id: u64, media: &[&Media]| {
            let (mut job, reader) = job(request_id, 2, 20);
            job.media = media.iter().map(|&media| PlacedMedia { start: 0, media: media.clone() }).collect();
            (job, reader)
        };
        let n_bytes = MAX_ENDED_BYTES as u64 / 3;
        let (one, other) = (picture(-1, n_bytes), picture(-9, n_bytes));
        let mut forks = ForkRegistry::default();
        let (first, _reader) = with(0, &[&one]);
        end(&mut forks, &first, 0, 1);
        end(&mut forks, &first, 1, 1);
        assert!((MAX_ENDED_BYTES / 3..MAX_ENDED_BYTES / 2).contains(&forks.n_bytes), "{} bytes", forks.n_bytes);
        // Further jobs of the stream have the same picture, and another one.
        let (mut further, _) = with(1, &[&one, &other]);
        further.stream_id = 0;
        forks.end(0, 2, ForkSource::new(&further, 0, None), &first.sender);
        assert!((MAX_ENDED_BYTES / 3 * 2..MAX_ENDED_BYTES / 4 * 3).contains(&forks.n_bytes), "{} bytes", forks.n_bytes);
        // Those of another stream are its own, and too much with these.
        let (second, _second) = with(2, &[&one, &other]);
        end(&mut forks, &second, 0, 1);
        assert!(forks.ended(0, 0).is_none() && forks.ended(2, 0).is_some(), "the oldest go first");
    }

    #[test]
    fn the_oldest_streams_go_first_and_nothing_counts_that_is_gone() {
        let mut forks = ForkRegistry::default();
        let n_prompt = MAX_ENDED_BYTES / size_of::<Token>() / 3;
        let jobs: Vec<(RequestGroup, Completions)> = (0..3).map(|id| job(id, 1, n_prompt)).collect();
        for (job, _) in &jobs {
            end(&mut forks, job, 0, 1);
        }
        // A little more than a third each.
        assert_eq!((forks.ended.len(), forks.ended(0, 0).is_none()), (2, true));
        assert!(forks.n_bytes <= MAX_ENDED_BYTES);
        forks.forget(0);
        forks.forget(1);
        assert!((1..=MAX_ENDED_BYTES / 2).contains(&forks.n_bytes), "one is left");
        drop(jobs);
        let (last, _reader) = job(3, 1, 20);
        end(&mut forks, &last, 0, 1);
        assert_eq!(forks.ended.len(), 1);
        assert!(forks.n_bytes < 100_000, "{} bytes", forks.n_bytes);
    }
}
