//! Requests that wait for their vectors, and what is computed next. Pure: no thread, no clock, no model.

use std::collections::VecDeque;
use std::mem::take;

use crate::config::Pooling;
use crate::embedding::{Normalization, Shape};
use crate::error::{Error, Result};
use crate::request::Token;

/// Most tokens that wait, over all requests.
pub const MAX_TOKENS: usize = 1 << 20;

/// Most numbers that one request is answered with: 64 MiB of them.
pub const MAX_NUMBERS: usize = 1 << 24;

/// The vectors of a request's texts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vectors {
    /// All rows, one after the other.
    pub numbers: Vec<f32>,
    /// Numbers of one row.
    pub width: usize,
    /// Rows of text `i` are `[starts[i], starts[i + 1])`: one, or one for each token where nothing is pooled.
    pub starts: Vec<usize>,
    /// Tokens of each text.
    pub n_tokens: Vec<usize>,
}

/// A request that is not answered yet.
struct Job {
    id: u64,
    texts: Vec<Vec<Token>>,
    /// Texts that were handed out to be computed, and those whose vectors are there.
    n_begun: usize,
    n_done: usize,
    normalization: Normalization,
    vectors: Vectors,
}

/// A text that is being computed, and whose it is.
#[derive(Debug, PartialEq)]
pub(super) struct Item {
    job: u64,
    place: usize,
}

/// The requests in the order of their turns.
pub(super) struct Queue {
    shape: Shape,
    jobs: VecDeque<Job>,
    /// Tokens of the texts in `jobs` that were not handed out.
    n_waiting: usize,
}

impl Queue {
    pub(super) fn new(shape: Shape) -> Self {
        Self { shape, jobs: VecDeque::new(), n_waiting: 0 }
    }

    /// Tokens that wait.
    pub(super) fn n_waiting(&self) -> usize {
        self.n_waiting
    }

    /// Adds a request for the vectors of `texts`, cut to their first `dimensions` numbers.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for texts that cannot be computed, [`Error::QueueFull`] where too much waits.
    pub(super) fn push(
        &mut self,
        id: u64,
        texts: Vec<Vec<Token>>,
        normalization: Normalization,
        dimensions: Option<usize>,
    ) -> Result<()> {
        let width = self.width(dimensions)?;
        let n_tokens = self.check(&texts)?;
        let n_rows = if self.shape.pooling == Pooling::None { n_tokens } else { texts.len() };
        if n_rows.saturating_mul(width) > MAX_NUMBERS {
            return Err(wrong(format!(
                "the texts come to {n_rows} vectors of {width} numbers; at most {MAX_NUMBERS} are answered"
            )));
        }
        if self.n_waiting + n_tokens > MAX_TOKENS {
            return Err(Error::QueueFull { n_waiting: self.jobs.len(), unit: "requests" });
        }
        let n_tokens_of: Vec<usize> = texts.iter().map(Vec::len).collect();
        let starts = std::iter::once(0).chain(n_tokens_of.iter().scan(0, |end, n| {
            *end += if self.shape.pooling == Pooling::None { *n } else { 1 };
            Some(*end)
        }));
        let vectors = Vectors { numbers: vec![0.0; n_rows * width], width, starts: starts.collect(), n_tokens: n_tokens_of };
        self.n_waiting += n_tokens;
        self.jobs.push_back(Job { id, texts, n_begun: 0, n_done: 0, normalization, vectors });
        Ok(())
    }

    fn width(&self, dimensions: Option<usize>) -> Result<usize> {
        let most = self.shape.width;
        match dimensions {
            None => Ok(most),
            Some(n) if (1..=most).contains(&n) => Ok(n),
            Some(n) => {
                let message = format!("dimensions is {n}; the model's vectors have {most} numbers, so it must be 1 to {most}");
                Err(Error::InvalidRequest { param: "dimensions", message })
            }
        }
    }

    /// The number of tokens of texts that can be computed.
    fn check(&self, texts: &[Vec<Token>]) -> Result<usize> {
        let Shape { n_longest, n_vocab, .. } = self.shape;
        if texts.is_empty() {
            return Err(wrong("there are no texts; at least one is needed".to_owned()));
        }
        for (place, text) in texts.iter().enumerate() {
            if text.is_empty() {
                return Err(wrong(format!("text {place} is empty: it has no token")));
            }
            if text.len() > n_longest {
                let n = text.len();
                return Err(wrong(format!(
                    "text {place} has {n} tokens; at most {n_longest} are computed together, so shorten it"
                )));
            }
            if let Some(token) = text.iter().find(|token| !usize::try_from(**token).is_ok_and(|token| token < n_vocab)) {
                return Err(wrong(format!("token {token} of text {place} is outside of the vocabulary of {n_vocab} pieces")));
            }
        }
        let n_tokens = texts.iter().map(Vec::len).sum();
        if n_tokens > MAX_TOKENS {
            return Err(wrong(format!("the texts have {n_tokens} tokens together; a request may have {MAX_TOKENS}")));
        }
        Ok(n_tokens)
    }

    /// The next batch: a text of the request whose turn it is, then one of each other in turns, as long as they fit.
    pub(super) fn next(&mut self) -> (Vec<Item>, Vec<Vec<Token>>) {
        let (mut items, mut texts, mut n_tokens) = (Vec::new(), Vec::new(), 0);
        loop {
            let n_before = items.len();
            for job in &mut self.jobs {
                let Some(n) = job.texts.get(job.n_begun).map(Vec::len) else { continue };
                let fits = n_tokens + n <= self.shape.n_fill() && items.len() < self.shape.n_sequences;
                if items.is_empty() || fits {
                    items.push(Item { job: job.id, place: job.n_begun });
                    texts.push(take(&mut job.texts[job.n_begun]));
                    job.n_begun += 1;
                    n_tokens += n;
                }
            }
            if items.len() == n_before {
                break;
            }
        }
        self.n_waiting -= n_tokens;
        // Whoever had the first text of this batch has the last turn in the next one, so that every request gets on.
        if !self.jobs.is_empty() {
            self.jobs.rotate_left(1);
        }
        (items, texts)
    }

    /// Takes the vectors of a batch, in its order. Returns the requests that are answered by it.
    pub(super) fn done(&mut self, items: &[Item], computed: Vec<Vec<f32>>) -> Vec<(u64, Vectors)> {
        for (item, numbers) in items.iter().zip(computed) {
            let Some(job) = self.jobs.iter_mut().find(|job| job.id == item.job) else { continue };
            let width = job.vectors.width;
            for (row, vector) in numbers.chunks_exact(self.shape.width).enumerate() {
                let start = (job.vectors.starts[item.place] + row) * width;
                let kept = &mut job.vectors.numbers[start..start + width];
                kept.copy_from_slice(&vector[..width]);
                // As in llama.cpp, what is not pooled is not scaled, nor is a score.
                if !matches!(self.shape.pooling, Pooling::None | Pooling::Rank) {
                    job.normalization.apply(kept);
                }
            }
            job.n_done += 1;
        }
        let (answered, waiting): (VecDeque<Job>, _) =
            take(&mut self.jobs).into_iter().partition(|job| job.n_done == job.vectors.n_tokens.len());
        self.jobs = waiting;
        answered.into_iter().map(|job| (job.id, job.vectors)).collect()
    }

    /// Takes a request out; nothing more of it is computed.
    pub(super) fn remove(&mut self, id: u64) {
        if let Some(place) = self.jobs.iter().position(|job| job.id == id) {
            let job = self.jobs.remove(place).expect("it was found there");
            self.n_waiting -= job.texts[job.n_begun..].iter().map(Vec::len).sum::<usize>();
        }
    }

    /// Takes out every request with a text in this batch, which could not be computed.
    pub(super) fn fail(&mut self, items: &[Item]) -> Vec<u64> {
        let mut ids: Vec<u64> = items.iter().map(|item| item.job).collect();
        ids.sort_unstable();
        ids.dedup();
        for id in &ids {
            self.remove(*id);
        }
        ids
    }

    /// Takes out every request.
    pub(super) fn clear(&mut self) -> Vec<u64> {
        self.n_waiting = 0;
        self.jobs.drain(..).map(|job| job.id).collect()
    }
}

fn wrong(message: String) -> Error {
    Error::InvalidRequest { param: "texts", message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(pooling: Pooling) -> Queue {
        Queue::new(Shape { pooling, width: 2, n_vocab: 100, n_longest: 600, n_batch: 600, n_sequences: 4 })
    }

    fn push(queue: &mut Queue, id: u64, lengths: &[usize]) -> Result<()> {
        queue.push(id, lengths.iter().map(|n| vec![7; *n]).collect(), Normalization::None, None)
    }

    fn next(queue: &mut Queue) -> Vec<(u64, usize)> {
        queue.next().0.iter().map(|item| (item.job, item.place)).collect()
    }

    #[test]
    fn requests_take_turns_and_a_batch_is_short() {
        let mut queue = queue(Pooling::Mean);
        push(&mut queue, 1, &[300, 300, 300]).expect("it is short");
        push(&mut queue, 2, &[100, 100]).expect("it is short");
        assert_eq!(next(&mut queue), [(1, 0), (2, 0), (2, 1)]);
        assert_eq!(next(&mut queue), [(1, 1)]);
        assert_eq!(next(&mut queue), [(1, 2)]);
        assert_eq!((next(&mut queue), queue.n_waiting()), (Vec::new(), 0));
    }

    #[test]
    fn a_batch_has_no_more_texts_than_sequences_and_a_long_text_is_one_alone() {
        let mut queue = queue(Pooling::Mean);
        push(&mut queue, 1, &[1; 6]).expect("it is short");
        assert_eq!(next(&mut queue).len(), 4);
        push(&mut queue, 2, &[600]).expect("it is as long as it may be");
        assert_eq!(next(&mut queue), [(1, 4), (1, 5)]);
        assert_eq!(next(&mut queue), [(2, 0)]);
    }

    #[test]
    fn an_answer_has_its_rows_in_the_order_of_its_texts() {
        let mut queue = queue(Pooling::None);
        push(&mut queue, 1, &[2, 1]).expect("it is short");
        let (items, texts) = queue.next();
        assert_eq!(texts, [vec![7, 7], vec![7]]);
        let answered = queue.done(&items, vec![vec![1.0, 2.0, 3.0, 4.0], vec![5.0, 6.0]]);
        assert_eq!(answered.len(), 1);
        let (id, vectors) = &answered[0];
        assert_eq!((*id, vectors.numbers.as_slice()), (1, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].as_slice()));
        assert_eq!((vectors.starts.as_slice(), vectors.n_tokens.as_slice()), ([0, 2, 3].as_slice(), [2, 1].as_slice()));
    }

    #[test]
    fn vectors_are_cut_and_then_scaled() {
        let mut queue = queue(Pooling::Mean);
        queue.push(1, vec![vec![7]], Normalization::Euclidean, Some(1)).expect("there are two");
        let (items, _) = queue.next();
        assert_eq!(queue.done(&items, vec![vec![3.0, 4.0]])[0].1.numbers, [1.0]);
    }

    #[test]
    fn what_was_removed_is_not_computed_and_leaves_its_room() {
        let mut queue = queue(Pooling::Mean);
        push(&mut queue, 1, &[300, 300]).expect("it is short");
        push(&mut queue, 2, &[10]).expect("it is short");
        let (items, _) = queue.next();
        queue.remove(1);
        assert_eq!(queue.n_waiting(), 0);
        let answered = queue.done(&items, vec![vec![1.0, 1.0], vec![2.0, 2.0]]);
        assert_eq!(answered.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn what_cannot_be_computed_is_refused_with_the_limit() {
        let mut queue = queue(Pooling::Mean);
        for (texts, words) in [
            (vec![], "no texts"),
            (vec![vec![]], "text 0 is empty"),
            (vec![vec![7], vec![7; 601]], "text 1 has 601 tokens; at most 600"),
            (vec![vec![100]], "token 100 of text 0 is outside"),
        ] {
            let error = queue.push(1, texts, Normalization::None, None).expect_err(words);
            assert!(error.to_string().contains(words), "{error}");
        }
        let error = queue.push(1, vec![vec![7]], Normalization::None, Some(3)).expect_err("there are two");
        assert!(error.to_string().contains("must be 1 to 2"), "{error}");
    }

    #[test]
    fn more_than_may_wait_is_refused_and_tried_again_later() {
        let mut queue = queue(Pooling::Mean);
        let many = vec![512; MAX_TOKENS / 512];
        push(&mut queue, 1, &many).expect("it is as much as may wait");
        assert_eq!(push(&mut queue, 2, &[1]), Err(Error::QueueFull { n_waiting: 1, unit: "requests" }));
        queue.next();
        push(&mut queue, 2, &[1]).expect("there is room again");
        assert!(matches!(push(&mut queue, 3, &[&many[..], &[1]].concat()), Err(Error::InvalidRequest { .. })));
    }
}
