//! Requests that wait for their vectors, and what is computed next. Pure: no thread, no clock, no model.

use std::collections::{BTreeMap, HashMap};
use std::mem::take;

use crate::config::Pooling;
use crate::embedding::{EmbedderShape, Normalization};
use crate::error::{Error, Result};
use crate::request::{Encoding, Prompt, Run, Token};

/// Most tokens that wait, over all requests.
pub const MAX_TOKENS: usize = 1 << 20;

/// Most numbers that one request is answered with: 64 MiB of them.
pub const MAX_NUMBERS: usize = 1 << 24;

/// Requests whose next text does not fit into a batch, and which a shorter one goes before; then the batch is as it is.
const MAX_PASSED: usize = 16;

/// The vectors of a request's texts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Embeddings {
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
struct EmbeddingRequest {
    texts: Vec<Prompt>,
    /// Texts that were handed out to be computed, and those whose vectors are there.
    n_begun: usize,
    n_done: usize,
    /// Where it stands in one of the two rows, as long as there are texts to hand out.
    turn: u64,
    normalization: Normalization,
    vectors: Embeddings,
}

impl EmbeddingRequest {
    /// The text that is handed out next.
    fn next(&self) -> Option<&Prompt> {
        self.texts.get(self.n_begun)
    }
}

/// A text that is being computed, and whose it is.
#[derive(Debug, PartialEq)]
pub(super) struct BatchText {
    job: u64,
    place: usize,
}

/// What is computed at once.
#[derive(Debug, PartialEq)]
pub(super) enum Batch {
    /// Texts of tokens alone.
    Texts(Vec<Vec<Token>>),
    /// One with pictures or sounds, all of whose vectors are there.
    Mixed(Prompt),
}

/// The requests in the order of their turns. What a batch costs does not follow how many wait.
pub(super) struct Queue {
    shape: EmbedderShape,
    jobs: HashMap<u64, EmbeddingRequest>,
    /// Whose next text can be computed, by their turns.
    ready: BTreeMap<u64, u64>,
    /// Whose next text has pictures or sounds, which the first of them waits for.
    unseen: BTreeMap<u64, u64>,
    /// The last turn that was given.
    last_turn: u64,
    /// Tokens of the texts in `jobs` that were not handed out.
    n_waiting: usize,
}

impl Queue {
    pub(super) fn new(shape: EmbedderShape) -> Self {
        let (jobs, ready, unseen) = (HashMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { shape, jobs, ready, unseen, last_turn: 0, n_waiting: 0 }
    }

    /// Tokens that wait.
    pub(super) fn n_waiting(&self) -> usize {
        self.n_waiting
    }

    /// Whether the vectors of a picture or a sound are waited for.
    pub(super) fn waits_for_media(&self) -> bool {
        !self.unseen.is_empty()
    }

    /// Adds a request for the vectors of `texts`, cut to their first `dimensions` numbers.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for texts that cannot be computed, [`Error::NotSupported`] for pictures and sounds where the shape
    /// takes none, [`Error::QueueFull`] where too much waits.
    pub(super) fn push(
        &mut self,
        id: u64,
        texts: Vec<Prompt>,
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
        let n_tokens_of: Vec<usize> = texts.iter().map(Prompt::n_tokens).collect();
        let starts = std::iter::once(0).chain(n_tokens_of.iter().scan(0, |end, n| {
            *end += if self.shape.pooling == Pooling::None { *n } else { 1 };
            Some(*end)
        }));
        let vectors = Embeddings { numbers: vec![0.0; n_rows * width], width, starts: starts.collect(), n_tokens: n_tokens_of };
        self.n_waiting += n_tokens;
        self.jobs.insert(id, EmbeddingRequest { texts, n_begun: 0, n_done: 0, turn: 0, normalization, vectors });
        self.line_up(id);
        Ok(())
    }

    /// Gives a request the last turn, where it has texts to hand out.
    fn line_up(&mut self, id: u64) {
        let job = self.jobs.get_mut(&id).expect("it was not answered yet");
        self.last_turn += 1;
        job.turn = self.last_turn;
        let Some(text) = job.next() else { return };
        let row = if text.has_media() { &mut self.unseen } else { &mut self.ready };
        row.insert(job.turn, id);
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
    fn check(&self, texts: &[Prompt]) -> Result<usize> {
        let EmbedderShape { n_longest, n_vocab, takes_media, .. } = self.shape;
        if texts.is_empty() {
            return Err(wrong("there are no texts; at least one is needed".to_owned()));
        }
        for (place, text) in texts.iter().enumerate() {
            let n = text.n_tokens();
            if n == 0 {
                return Err(wrong(format!("text {place} is empty: it has no token")));
            }
            if text.has_media() && !takes_media {
                let message =
                    "the model reads all of a text at once, so it makes no vectors of pictures and sounds; give texts alone";
                return Err(Error::NotSupported { message: message.to_owned() });
            }
            if n > n_longest {
                return Err(wrong(self.shape.length_error(place, &n.to_string())));
            }
            let tokens = text.runs().iter().filter_map(|run| match run {
                Run::Tokens(tokens) => Some(tokens),
                Run::Media(_) => None,
            });
            let is_unknown = |token: &Token| !usize::try_from(*token).is_ok_and(|token| token < n_vocab);
            if let Some(token) = tokens.flatten().copied().find(is_unknown) {
                return Err(wrong(format!("token {token} of text {place} is outside of the vocabulary of {n_vocab} pieces")));
            }
        }
        let n_tokens = texts.iter().map(Prompt::n_tokens).sum();
        if n_tokens > MAX_TOKENS {
            return Err(wrong(format!("the texts have {n_tokens} tokens together; a request may have {MAX_TOKENS}")));
        }
        Ok(n_tokens)
    }

    /// Lets the requests have their turn whose pictures and sounds have become vectors. Takes out those of which one cannot, and says
    /// why.
    pub(super) fn look(&mut self) -> Vec<(u64, Error)> {
        let mut failed = Vec::new();
        while let Some((turn, id)) = self.unseen.first_key_value().map(|(turn, id)| (*turn, *id)) {
            let text = self.jobs[&id].next().expect("it stands in a row for its next text");
            // Each is asked, so that the vectors of all are made one after the other.
            let asked: Vec<Encoding> = text.media().iter().map(|placed| placed.media.encoding()).collect();
            let reason = asked.iter().find_map(|encoding| match encoding {
                Encoding::Failed(reason) => Some(reason.clone()),
                Encoding::Ready | Encoding::Pending => None,
            });
            if let Some(reason) = reason {
                self.remove(id);
                failed.push((id, Error::Decode { reason }));
            } else if asked.contains(&Encoding::Pending) {
                break;
            } else {
                self.unseen.remove(&turn);
                self.ready.insert(turn, id);
            }
        }
        failed
    }

    /// The next batch: a text of the request whose turn it is, then one of each other in turns, as long as they fit. One with pictures
    /// or sounds is a batch of its own. `None` where nothing can be computed.
    pub(super) fn next(&mut self) -> Option<(Vec<BatchText>, Batch)> {
        let (mut items, mut texts, mut n_tokens) = (Vec::new(), Vec::new(), 0);
        let (mut turn, mut n_passed) = (0, 0);
        while items.len() < self.shape.n_sequences && n_passed < MAX_PASSED {
            let Some((&found, &id)) = self.ready.range(turn..).next() else { break };
            turn = found + 1;
            let job = self.jobs.get_mut(&id).expect("what stands in a row is there");
            let text = &mut job.texts[job.n_begun];
            let n = text.n_tokens();
            let fits = n_tokens + n <= self.shape.n_fill() && !text.has_media();
            if !items.is_empty() && !fits {
                n_passed += 1;
                continue;
            }
            let text = take(text);
            items.push(BatchText { job: id, place: job.n_begun });
            job.n_begun += 1;
            n_tokens += n;
            // Whoever had a text of this batch has the last turn, so that every request gets on.
            self.ready.remove(&found);
            self.line_up(id);
            if text.has_media() {
                self.n_waiting -= n_tokens;
                return Some((items, Batch::Mixed(text)));
            }
            texts.push(text.into_tokens());
        }
        self.n_waiting -= n_tokens;
        (!items.is_empty()).then_some((items, Batch::Texts(texts)))
    }

    /// Takes the vectors of a batch, in its order. Returns the requests that are answered by it.
    pub(super) fn done(&mut self, items: &[BatchText], computed: Vec<Vec<f32>>) -> Vec<(u64, Embeddings)> {
        let mut answered = Vec::new();
        for (item, numbers) in items.iter().zip(computed) {
            let Some(job) = self.jobs.get_mut(&item.job) else { continue };
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
            if job.n_done == job.texts.len() {
                let job = self.jobs.remove(&item.job).expect("it was found there");
                answered.push((item.job, job.vectors));
            }
        }
        answered
    }

    /// Takes a request out; nothing more of it is computed.
    pub(super) fn remove(&mut self, id: u64) {
        if let Some(job) = self.jobs.remove(&id) {
            self.ready.remove(&job.turn);
            self.unseen.remove(&job.turn);
            self.n_waiting -= job.texts[job.n_begun..].iter().map(Prompt::n_tokens).sum::<usize>();
        }
    }

    /// Takes out every request with a text in this batch, which could not be computed.
    pub(super) fn fail(&mut self, items: &[BatchText]) -> Vec<u64> {
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
        self.ready.clear();
        self.unseen.clear();
        self.jobs.drain().map(|(id, _)| id).collect()
    }
}

fn wrong(message: String) -> Error {
    Error::InvalidRequest { param: "texts", message }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::request::{Media, Medium};

    fn queue(pooling: Pooling) -> Queue {
        Queue::new(EmbedderShape {
            pooling,
            takes_media: true,
            width: 2,
            n_vocab: 100,
            n_longest: 600,
            n_trained: 600,
            n_batch: 600,
            n_sequences: 4,
        })
    }

    fn push(queue: &mut Queue, id: u64, lengths: &[usize]) -> Result<()> {
        queue.push(id, prompts(lengths.iter().map(|n| vec![7; *n])), Normalization::None, None)
    }

    fn prompts(texts: impl IntoIterator<Item = Vec<Token>>) -> Vec<Prompt> {
        texts.into_iter().map(Prompt::from_tokens).collect()
    }

    /// The texts of the next batch: of which request, and the how manieth of it.
    fn next(queue: &mut Queue) -> Vec<(u64, usize)> {
        let items = queue.next().map_or_else(Vec::new, |(items, _)| items);
        items.iter().map(|item| (item.job, item.place)).collect()
    }

    #[test]
    fn where_a_model_reads_all_at_once_pictures_and_sounds_are_refused() {
        let mut queue = queue(Pooling::Mean);
        queue.shape.takes_media = false;
        let refused = queue.push(1, vec![with_picture().1], Normalization::None, None);
        assert!(matches!(refused, Err(Error::NotSupported { .. })), "{refused:?}");
        assert_eq!(queue.n_waiting(), 0);
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
        let (items, batch) = queue.next().expect("one waits");
        assert_eq!(batch, Batch::Texts(vec![vec![7, 7], vec![7]]));
        let answered = queue.done(&items, vec![vec![1.0, 2.0, 3.0, 4.0], vec![5.0, 6.0]]);
        assert_eq!(answered.len(), 1);
        let (id, vectors) = &answered[0];
        assert_eq!((*id, vectors.numbers.as_slice()), (1, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].as_slice()));
        assert_eq!((vectors.starts.as_slice(), vectors.n_tokens.as_slice()), ([0, 2, 3].as_slice(), [2, 1].as_slice()));
    }

    #[test]
    fn vectors_are_cut_and_then_scaled() {
        let mut queue = queue(Pooling::Mean);
        queue.push(1, prompts([vec![7]]), Normalization::Euclidean, Some(1)).expect("there are two");
        let (items, _) = queue.next().expect("one waits");
        assert_eq!(queue.done(&items, vec![vec![3.0, 4.0]])[0].1.numbers, [1.0]);
    }

    #[test]
    fn what_was_removed_is_not_computed_and_leaves_its_room() {
        let mut queue = queue(Pooling::Mean);
        push(&mut queue, 1, &[300, 300]).expect("it is short");
        push(&mut queue, 2, &[10]).expect("it is short");
        let (items, _) = queue.next().expect("two wait");
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
            let error = queue.push(1, prompts(texts), Normalization::None, None).expect_err(words);
            assert!(error.to_string().contains(words), "{error}");
        }
        let error = queue.push(1, prompts([vec![7]]), Normalization::None, Some(3)).expect_err("there are two");
        assert!(error.to_string().contains("must be 1 to 2"), "{error}");
    }

    #[test]
    fn more_than_may_wait_is_refused_and_tried_again_later() {
        let mut queue = queue(Pooling::Mean);
        let many = vec![512; MAX_TOKENS / 512];
        push(&mut queue, 1, &many).expect("it is as much as may wait");
        assert_eq!(push(&mut queue, 2, &[1]), Err(Error::QueueFull { n_waiting: 1, unit: "requests" }));
        assert_eq!(next(&mut queue), [(1, 0)]);
        push(&mut queue, 2, &[1]).expect("there is room again");
        assert!(matches!(push(&mut queue, 3, &[&many[..], &[1]].concat()), Err(Error::InvalidRequest { .. })));
    }

    #[test]
    fn a_request_that_does_not_fit_keeps_its_turn_and_not_all_that_wait_are_looked_at() {
        let mut queue = queue(Pooling::Mean);
        push(&mut queue, 0, &[500]).expect("it is short");
        for id in 1..=MAX_PASSED as u64 {
            push(&mut queue, id, &[100]).expect("it is short");
        }
        push(&mut queue, 1_000, &[1]).expect("it is short");
        assert_eq!(next(&mut queue), [(0, 0)], "one that would fit stands behind too many that do not");
        assert_eq!(next(&mut queue), [(1, 0), (2, 0), (3, 0), (4, 0)]);
    }

    #[test]
    fn a_thousand_requests_have_their_turns_in_order_and_leave_nothing_behind() {
        let mut queue = queue(Pooling::Mean);
        for id in 0..1_000 {
            push(&mut queue, id, &[1, 1]).expect("it is short");
        }
        let mut handed_out = Vec::new();
        while let Some((items, _)) = queue.next() {
            handed_out.extend(items.iter().map(|item| (item.place, item.job)));
            queue.done(&items, vec![vec![1.0, 2.0]; items.len()]);
        }
        let in_turns: Vec<(usize, u64)> = (0..2).flat_map(|place| (0..1_000).map(move |id| (place, id))).collect();
        assert_eq!(handed_out, in_turns);
        assert!(queue.jobs.is_empty() && queue.ready.is_empty() && queue.unseen.is_empty());
    }

    /// A picture of three places.
    #[derive(Debug)]
    struct Picture(Mutex<Encoding>);

    impl Medium for Picture {
        fn first_id(&self) -> Token {
            -5
        }

        fn n_tokens(&self) -> u32 {
            3
        }

        fn sees_ahead(&self) -> bool {
            true
        }

        fn n_bytes(&self) -> u64 {
            0
        }

        fn encoding(&self) -> Encoding {
            self.0.lock().expect("nobody panics").clone()
        }

        fn vectors(&self) -> Option<Arc<[f32]>> {
            None
        }
    }

    fn with_picture() -> (Arc<Picture>, Prompt) {
        let picture = Arc::new(Picture(Mutex::new(Encoding::Pending)));
        let mut prompt = Prompt::from_tokens(vec![7]);
        prompt.push(Run::Media(Media(Arc::<Picture>::clone(&picture))));
        (picture, prompt)
    }

    #[test]
    fn who_waits_for_a_picture_lets_texts_go_first_and_is_computed_alone() {
        let mut queue = queue(Pooling::Mean);
        let (picture, prompt) = with_picture();
        queue.push(1, vec![prompt.clone()], Normalization::None, None).expect("it is short");
        push(&mut queue, 2, &[1]).expect("it is short");
        assert_eq!((queue.look(), queue.n_waiting(), queue.waits_for_media()), (Vec::new(), 5, true));
        assert_eq!(next(&mut queue), [(2, 0)]);
        *picture.0.lock().expect("nobody panics") = Encoding::Ready;
        assert!(queue.look().is_empty() && !queue.waits_for_media());
        push(&mut queue, 3, &[1]).expect("it is short");
        let (items, batch) = queue.next().expect("it can be computed");
        assert_eq!((items, batch), (vec![BatchText { job: 1, place: 0 }], Batch::Mixed(prompt)));
        assert_eq!(next(&mut queue), [(3, 0)]);
        assert_eq!(queue.n_waiting(), 0);
    }

    #[test]
    fn a_picture_that_cannot_be_made_fails_its_own_request_and_one_that_was_dropped_none() {
        let mut queue = queue(Pooling::Mean);
        let (picture, prompt) = with_picture();
        *picture.0.lock().expect("nobody panics") = Encoding::Failed("it is damaged".to_owned());
        queue.push(1, vec![prompt.clone()], Normalization::None, None).expect("it is short");
        queue.push(2, vec![prompt], Normalization::None, None).expect("it is short");
        queue.remove(2);
        assert_eq!(queue.look(), [(1, Error::Decode { reason: "it is damaged".to_owned() })]);
        assert_eq!((queue.n_waiting(), queue.waits_for_media()), (0, false));
    }
}
