//! The queue of embedding requests, and the choice of the next batch. Pure: no thread, clock or model.

use std::collections::{BTreeMap, HashMap};
use std::mem::take;

use crate::config::Pooling;
use crate::embedding::{EmbedderShape, Normalization};
use crate::error::{Error, Result};
use crate::request::{Encoding, Prompt, PromptRun, Token};

pub const MAX_TOKENS: usize = 1 << 20;

/// Most numbers in the result of one request: 64 MiB.
pub const MAX_NUMBERS: usize = 1 << 24;

/// Requests that others may overtake because their text does not fit. At the limit, the batch is complete.
const MAX_OVERTAKEN: usize = 16;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Embeddings {
    /// All rows, one after the other.
    pub numbers: Vec<f32>,
    pub width: usize,
    /// The rows of text `i` are `[starts[i], starts[i + 1])`: one, or one for each token without pooling.
    pub starts: Vec<usize>,
    pub n_tokens: Vec<usize>,
}

struct EmbeddingRequest {
    texts: Vec<Prompt>,
    /// Number of texts that were handed out, and of texts that were computed.
    n_started: usize,
    n_done: usize,
    /// Key of the request in `ready` or `encoding`, while it has texts to hand out.
    turn: u64,
    normalization: Normalization,
    result: Embeddings,
}

impl EmbeddingRequest {
    fn next(&self) -> Option<&Prompt> {
        self.texts.get(self.n_started)
    }
}

#[derive(Debug, PartialEq)]
pub(super) struct BatchText {
    request_id: u64,
    text_index: usize,
}

#[derive(Debug, PartialEq)]
pub(super) enum EmbeddingBatch {
    Texts(Vec<Vec<Token>>),
    Mixed(Prompt),
}

/// The requests in round-robin order, and their results. The cost of a batch does not depend on the number of waiting requests.
pub(super) struct EmbeddingQueue {
    shape: EmbedderShape,
    requests: HashMap<u64, EmbeddingRequest>,
    answers: HashMap<u64, Result<Embeddings>>,
    /// Requests whose next text can be computed, by turn.
    ready: BTreeMap<u64, u64>,
    /// Requests whose next text has images or audio, by turn. They are encoded in this order.
    encoding: BTreeMap<u64, u64>,
    last_turn: u64,
    n_waiting: usize,
}

impl EmbeddingQueue {
    pub(super) fn new(shape: EmbedderShape) -> Self {
        let (requests, answers) = (HashMap::new(), HashMap::new());
        Self { shape, requests, answers, ready: BTreeMap::new(), encoding: BTreeMap::new(), last_turn: 0, n_waiting: 0 }
    }

    pub(super) fn n_waiting(&self) -> usize {
        self.n_waiting
    }

    pub(super) fn is_encoding_media(&self) -> bool {
        !self.encoding.is_empty()
    }

    /// Adds a request for the embeddings of `texts`, truncated to their first `dimensions` numbers.
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
            return Err(invalid_texts(format!(
                "the result would have {n_rows} embeddings of {width} numbers; a result may have at most {MAX_NUMBERS} numbers"
            )));
        }
        if self.n_waiting + n_tokens > MAX_TOKENS {
            return Err(Error::QueueFull { n_waiting: self.requests.len(), unit: "requests" });
        }
        let n_tokens_of: Vec<usize> = texts.iter().map(Prompt::n_tokens).collect();
        let starts = std::iter::once(0).chain(n_tokens_of.iter().scan(0, |end, n| {
            *end += if self.shape.pooling == Pooling::None { *n } else { 1 };
            Some(*end)
        }));
        let result = Embeddings { numbers: vec![0.0; n_rows * width], width, starts: starts.collect(), n_tokens: n_tokens_of };
        self.n_waiting += n_tokens;
        self.requests.insert(id, EmbeddingRequest { texts, n_started: 0, n_done: 0, turn: 0, normalization, result });
        self.assign_turn(id);
        Ok(())
    }

    /// Assigns the last turn to a request that has texts to hand out.
    fn assign_turn(&mut self, id: u64) {
        let request = self.requests.get_mut(&id).expect("the request is not answered yet");
        self.last_turn += 1;
        request.turn = self.last_turn;
        let Some(text) = request.next() else { return };
        let queue = if text.has_media() { &mut self.encoding } else { &mut self.ready };
        queue.insert(request.turn, id);
    }

    fn width(&self, dimensions: Option<usize>) -> Result<usize> {
        let width = self.shape.width;
        match dimensions {
            None => Ok(width),
            Some(n) if (1..=width).contains(&n) => Ok(n),
            Some(n) => {
                let message = format!("dimensions is {n}; it must be 1 to {width}, the length of the model's embeddings");
                Err(Error::InvalidRequest { param: "dimensions", message })
            }
        }
    }

    /// Checks the texts and returns their number of tokens.
    fn check(&self, texts: &[Prompt]) -> Result<usize> {
        let EmbedderShape { n_longest, n_vocab, takes_media, .. } = self.shape;
        if texts.is_empty() {
            return Err(invalid_texts("texts is empty; it must have at least one text".to_owned()));
        }
        for (text_index, text) in texts.iter().enumerate() {
            let n = text.n_tokens();
            if n == 0 {
                return Err(invalid_texts(format!("text {text_index} is empty; it must have at least one token")));
            }
            if text.has_media() && !takes_media {
                let message = "this model is an encoder, which computes embeddings of texts only; remove the images and audio";
                return Err(Error::NotSupported { message: message.to_owned() });
            }
            if n > n_longest {
                return Err(invalid_texts(self.shape.length_error(text_index, &n.to_string())));
            }
            let tokens = text.runs().iter().filter_map(|run| match run {
                PromptRun::Tokens(tokens) => Some(tokens),
                PromptRun::Media(_) => None,
            });
            let is_unknown = |token: &Token| !usize::try_from(*token).is_ok_and(|token| token < n_vocab);
            if let Some(token) = tokens.flatten().copied().find(is_unknown) {
                return Err(invalid_texts(format!(
                    "token {token} of text {text_index} is not in the vocabulary ({n_vocab} tokens)"
                )));
            }
        }
        let n_tokens = texts.iter().map(Prompt::n_tokens).sum();
        if n_tokens > MAX_TOKENS {
            return Err(invalid_texts(format!(
                "the texts have {n_tokens} tokens in total; a request may have at most {MAX_TOKENS}"
            )));
        }
        Ok(n_tokens)
    }

    /// Makes requests ready whose media are encoded. Returns whether one failed because its media cannot be encoded.
    pub(super) fn poll_media(&mut self) -> bool {
        let mut has_failed = false;
        while let Some((turn, id)) = self.encoding.first_key_value().map(|(turn, id)| (*turn, *id)) {
            let text = self.requests[&id].next().expect("a queued request has a next text");
            let encodings: Vec<Encoding> = text.media().iter().map(|placed| placed.media.encoding()).collect();
            let reason = encodings.iter().find_map(|encoding| match encoding {
                Encoding::Failed(reason) => Some(reason.clone()),
                Encoding::Ready | Encoding::Pending => None,
            });
            if let Some(reason) = reason {
                self.fail(id, Error::Decode { reason });
                has_failed = true;
            } else if encodings.contains(&Encoding::Pending) {
                break;
            } else {
                self.encoding.remove(&turn);
                self.ready.insert(turn, id);
            }
        }
        has_failed
    }

    /// The text of the request with the first turn, then texts of the following requests as long as they fit. A text with images
    /// or audio is a separate batch. `None` if no text can be computed.
    pub(super) fn next(&mut self) -> Option<(Vec<BatchText>, EmbeddingBatch)> {
        let (mut items, mut texts, mut n_tokens) = (Vec::new(), Vec::new(), 0);
        let (mut turn, mut n_overtaken) = (0, 0);
        while items.len() < self.shape.n_sequences && n_overtaken < MAX_OVERTAKEN {
            let Some((&found_turn, &id)) = self.ready.range(turn..).next() else { break };
            turn = found_turn + 1;
            let request = self.requests.get_mut(&id).expect("a queued request exists");
            let text = &mut request.texts[request.n_started];
            let n = text.n_tokens();
            let fits = n_tokens + n <= self.shape.n_fill() && !text.has_media();
            if !items.is_empty() && !fits {
                n_overtaken += 1;
                continue;
            }
            let text = take(text);
            items.push(BatchText { request_id: id, text_index: request.n_started });
            request.n_started += 1;
            n_tokens += n;
            self.ready.remove(&found_turn);
            self.assign_turn(id);
            if text.has_media() {
                self.n_waiting -= n_tokens;
                return Some((items, EmbeddingBatch::Mixed(text)));
            }
            texts.push(text.into_tokens());
        }
        self.n_waiting -= n_tokens;
        (!items.is_empty()).then_some((items, EmbeddingBatch::Texts(texts)))
    }

    pub(super) fn record_batch(&mut self, items: &[BatchText], computed: Vec<Vec<f32>>) {
        for (item, numbers) in items.iter().zip(computed) {
            let Some(request) = self.requests.get_mut(&item.request_id) else { continue };
            let width = request.result.width;
            for (row, embedding) in numbers.chunks_exact(self.shape.width).enumerate() {
                let start = (request.result.starts[item.text_index] + row) * width;
                let kept = &mut request.result.numbers[start..start + width];
                kept.copy_from_slice(&embedding[..width]);
                // As in llama.cpp, neither unpooled rows nor scores are normalized.
                if !matches!(self.shape.pooling, Pooling::None | Pooling::Rank) {
                    request.normalization.apply(kept);
                }
            }
            request.n_done += 1;
            if request.n_done == request.texts.len() {
                let request = self.requests.remove(&item.request_id).expect("the request was found above");
                self.answers.insert(item.request_id, Ok(request.result));
            }
        }
    }

    pub(super) fn is_answered(&self, id: u64) -> bool {
        self.answers.contains_key(&id)
    }

    pub(super) fn take(&mut self, id: u64) -> Option<Result<Embeddings>> {
        self.answers.remove(&id)
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.fail(id, Error::Stopped);
        self.answers.remove(&id);
    }

    /// Answers a request with `error`, unless it was answered or removed.
    fn fail(&mut self, id: u64, error: Error) {
        let Some(request) = self.requests.remove(&id) else { return };
        self.ready.remove(&request.turn);
        self.encoding.remove(&request.turn);
        self.n_waiting -= request.texts[request.n_started..].iter().map(Prompt::n_tokens).sum::<usize>();
        self.answers.insert(id, Err(error));
    }

    pub(super) fn fail_batch(&mut self, items: &[BatchText], error: &Error) {
        for item in items {
            self.fail(item.request_id, error.clone());
        }
    }

    pub(super) fn fail_all(&mut self, error: &Error) {
        for id in self.requests.keys().copied().collect::<Vec<u64>>() {
            self.fail(id, error.clone());
        }
    }
}

fn invalid_texts(message: String) -> Error {
    Error::InvalidRequest { param: "texts", message }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::request::{Media, Medium};

    fn queue(pooling: Pooling) -> EmbeddingQueue {
        EmbeddingQueue::new(EmbedderShape {
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

    fn push(queue: &mut EmbeddingQueue, id: u64, lengths: &[usize]) -> Result<()> {
        queue.push(id, prompts(lengths.iter().map(|n| vec![7; *n])), Normalization::None, None)
    }

    fn prompts(texts: impl IntoIterator<Item = Vec<Token>>) -> Vec<Prompt> {
        texts.into_iter().map(Prompt::from_tokens).collect()
    }

    /// The texts of the next batch: the request, and the index of the text in it.
    fn next(queue: &mut EmbeddingQueue) -> Vec<(u64, usize)> {
        let items = queue.next().map_or_else(Vec::new, |(items, _)| items);
        items.iter().map(|item| (item.request_id, item.text_index)).collect()
    }

    #[test]
    fn media_are_refused_by_a_shape_that_takes_none() {
        let mut queue = queue(Pooling::Mean);
        queue.shape.takes_media = false;
        let refused = queue.push(1, vec![pending_image().1], Normalization::None, None);
        assert!(matches!(refused, Err(Error::NotSupported { .. })), "{refused:?}");
        assert_eq!(queue.n_waiting(), 0);
    }

    #[test]
    fn requests_are_served_round_robin_in_short_batches() {
        let mut queue = queue(Pooling::Mean);
        push(&mut queue, 1, &[300, 300, 300]).expect("it is short");
        push(&mut queue, 2, &[100, 100]).expect("it is short");
        assert_eq!(next(&mut queue), [(1, 0), (2, 0), (2, 1)]);
        assert_eq!(next(&mut queue), [(1, 1)]);
        assert_eq!(next(&mut queue), [(1, 2)]);
        assert_eq!((next(&mut queue), queue.n_waiting()), (Vec::new(), 0));
    }

    #[test]
    fn a_batch_has_at_most_one_text_per_sequence_and_a_long_text_is_separate() {
        let mut queue = queue(Pooling::Mean);
        push(&mut queue, 1, &[1; 6]).expect("it is short");
        assert_eq!(next(&mut queue).len(), 4);
        push(&mut queue, 2, &[600]).expect("it has the maximum length");
        assert_eq!(next(&mut queue), [(1, 4), (1, 5)]);
        assert_eq!(next(&mut queue), [(2, 0)]);
    }

    #[test]
    fn the_rows_of_a_result_are_in_the_order_of_the_texts() {
        let mut queue = queue(Pooling::None);
        push(&mut queue, 1, &[2, 1]).expect("it is short");
        let (items, batch) = queue.next().expect("one waits");
        assert_eq!(batch, EmbeddingBatch::Texts(vec![vec![7, 7], vec![7]]));
        queue.record_batch(&items, vec![vec![1.0, 2.0, 3.0, 4.0], vec![5.0, 6.0]]);
        let vectors = queue.take(1).expect("it is answered").expect("it was computed");
        assert_eq!(vectors.numbers, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!((vectors.starts.as_slice(), vectors.n_tokens.as_slice()), ([0, 2, 3].as_slice(), [2, 1].as_slice()));
    }

    #[test]
    fn embeddings_are_truncated_and_then_normalized() {
        let mut queue = queue(Pooling::Mean);
        queue.push(1, prompts([vec![7]]), Normalization::Euclidean, Some(1)).expect("there are two");
        let (items, _) = queue.next().expect("one waits");
        queue.record_batch(&items, vec![vec![3.0, 4.0]]);
        assert_eq!(queue.take(1).expect("it is answered").expect("it was computed").numbers, [1.0]);
    }

    #[test]
    fn a_removed_request_is_not_computed_and_frees_its_space() {
        let mut queue = queue(Pooling::Mean);
        push(&mut queue, 1, &[300, 300]).expect("it is short");
        push(&mut queue, 2, &[10]).expect("it is short");
        let (items, _) = queue.next().expect("two wait");
        queue.remove(1);
        assert_eq!(queue.n_waiting(), 0);
        queue.record_batch(&items, vec![vec![1.0, 1.0], vec![2.0, 2.0]]);
        assert_eq!([1, 2].map(|id| queue.is_answered(id)), [false, true]);
    }

    #[test]
    fn invalid_texts_are_refused_with_the_limit() {
        let mut queue = queue(Pooling::Mean);
        for (texts, words) in [
            (vec![], "at least one text"),
            (vec![vec![]], "text 0 is empty"),
            (vec![vec![7], vec![7; 601]], "text 1 has 601 tokens; it may have at most 600"),
            (vec![vec![100]], "token 100 of text 0 is not in the vocabulary"),
        ] {
            let error = queue.push(1, prompts(texts), Normalization::None, None).expect_err(words);
            assert!(error.to_string().contains(words), "{error}");
        }
        let error = queue.push(1, prompts([vec![7]]), Normalization::None, Some(3)).expect_err("there are two");
        assert!(error.to_string().contains("must be 1 to 2"), "{error}");
    }

    #[test]
    fn a_full_queue_refuses_requests_until_it_drains() {
        let mut queue = queue(Pooling::Mean);
        let many = vec![512; MAX_TOKENS / 512];
        push(&mut queue, 1, &many).expect("the queue has room");
        assert_eq!(push(&mut queue, 2, &[1]), Err(Error::QueueFull { n_waiting: 1, unit: "requests" }));
        assert_eq!(next(&mut queue), [(1, 0)]);
        push(&mut queue, 2, &[1]).expect("there is room again");
        assert!(matches!(push(&mut queue, 3, &[&many[..], &[1]].concat()), Err(Error::InvalidRequest { .. })));
    }

    #[test]
    fn a_request_that_does_not_fit_keeps_its_turn_and_few_requests_overtake_it() {
        let mut queue = queue(Pooling::Mean);
        push(&mut queue, 0, &[500]).expect("it is short");
        for id in 1..=MAX_OVERTAKEN as u64 {
            push(&mut queue, id, &[100]).expect("it is short");
        }
        push(&mut queue, 1_000, &[1]).expect("it is short");
        assert_eq!(next(&mut queue), [(0, 0)], "one that would fit stands behind too many that do not");
        assert_eq!(next(&mut queue), [(1, 0), (2, 0), (3, 0), (4, 0)]);
    }

    #[test]
    fn a_thousand_requests_are_served_in_order_and_removed() {
        let mut queue = queue(Pooling::Mean);
        for id in 0..1_000 {
            push(&mut queue, id, &[1, 1]).expect("it is short");
        }
        let mut handed_out = Vec::new();
        while let Some((items, _)) = queue.next() {
            handed_out.extend(items.iter().map(|item| (item.text_index, item.request_id)));
            queue.record_batch(&items, vec![vec![1.0, 2.0]; items.len()]);
        }
        let in_turns: Vec<(usize, u64)> = (0..2).flat_map(|text_index| (0..1_000).map(move |id| (text_index, id))).collect();
        assert_eq!(handed_out, in_turns);
        assert!(queue.requests.is_empty() && queue.ready.is_empty() && queue.encoding.is_empty());
    }

    /// An image of three positions.
    #[derive(Debug)]
    struct Image(Mutex<Encoding>);

    impl Medium for Image {
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
            self.0.lock().expect("no thread panics").clone()
        }

        fn embeddings(&self) -> Option<Arc<[f32]>> {
            None
        }
    }

    fn pending_image() -> (Arc<Image>, Prompt) {
        let image = Arc::new(Image(Mutex::new(Encoding::Pending)));
        let mut prompt = Prompt::from_tokens(vec![7]);
        prompt.push(PromptRun::Media(Media(Arc::<Image>::clone(&image))));
        (image, prompt)
    }

    #[test]
    fn a_request_that_waits_for_an_image_does_not_block_texts_and_is_computed_alone() {
        let mut queue = queue(Pooling::Mean);
        let (image, prompt) = pending_image();
        queue.push(1, vec![prompt.clone()], Normalization::None, None).expect("it is short");
        push(&mut queue, 2, &[1]).expect("it is short");
        assert_eq!((queue.poll_media(), queue.n_waiting(), queue.is_encoding_media()), (false, 5, true));
        assert_eq!(next(&mut queue), [(2, 0)]);
        *image.0.lock().expect("no thread panics") = Encoding::Ready;
        assert!(!queue.poll_media() && !queue.is_encoding_media());
        push(&mut queue, 3, &[1]).expect("it is short");
        let (items, batch) = queue.next().expect("it can be computed");
        assert_eq!((items, batch), (vec![BatchText { request_id: 1, text_index: 0 }], EmbeddingBatch::Mixed(prompt)));
        assert_eq!(next(&mut queue), [(3, 0)]);
        assert_eq!(queue.n_waiting(), 0);
    }

    #[test]
    fn an_image_that_cannot_be_encoded_fails_only_its_request() {
        let mut queue = queue(Pooling::Mean);
        let (image, prompt) = pending_image();
        *image.0.lock().expect("no thread panics") = Encoding::Failed("it is damaged".to_owned());
        queue.push(1, vec![prompt.clone()], Normalization::None, None).expect("it is short");
        queue.push(2, vec![prompt], Normalization::None, None).expect("it is short");
        queue.remove(2);
        assert!(queue.poll_media());
        assert_eq!(queue.take(1), Some(Err(Error::Decode { reason: "it is damaged".to_owned() })));
        assert!(!queue.is_answered(2));
        assert_eq!((queue.n_waiting(), queue.is_encoding_media()), (0, false));
    }
}
