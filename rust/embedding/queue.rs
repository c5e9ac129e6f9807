//! The queue of embedding requests, and the choice of the next batch. Pure: no thread, clock or model.

use std::collections::{BTreeMap, HashMap};
use std::mem::take;

use crate::config::Pooling;
use crate::embedding::{EmbedderShape, Normalization};
use crate::error::{Error, Result};
use crate::request::{Encoding, Prompt, PromptRun, Token, ensure, ensure_value, is_in_vocabulary, reject};

pub const MAX_TOKENS: usize = 1 << 20;

/// Maximum numbers in the result of one request: 64 MiB.
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
    position: u64,
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
    /// Requests whose next text can be computed, by position.
    ready: BTreeMap<u64, u64>,
    /// Requests whose next text has images or audio, by position. They are encoded in this order.
    encoding: BTreeMap<u64, u64>,
    last_position: u64,
    n_waiting: usize,
}

impl EmbeddingQueue {
    pub(super) fn new(shape: EmbedderShape) -> Self {
        let (requests, answers) = (HashMap::new(), HashMap::new());
        Self { shape, requests, answers, ready: BTreeMap::new(), encoding: BTreeMap::new(), last_position: 0, n_waiting: 0 }
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
        let limit = format_args!("a result may have at most {MAX_NUMBERS} numbers");
        let message = format_args!("the result would have {n_rows} embeddings of {width} numbers; {limit}");
        ensure(n_rows.saturating_mul(width) <= MAX_NUMBERS, "texts", message)?;
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
        self.requests.insert(id, EmbeddingRequest { texts, n_started: 0, n_done: 0, position: 0, normalization, result });
        self.enqueue(id);
        Ok(())
    }

    /// Moves a request behind all others, if it has texts to hand out.
    fn enqueue(&mut self, id: u64) {
        let request = self.requests.get_mut(&id).expect("the request is not answered yet");
        self.last_position += 1;
        request.position = self.last_position;
        let Some(text) = request.next() else { return };
        let queue = if text.has_media() { &mut self.encoding } else { &mut self.ready };
        queue.insert(request.position, id);
    }

    fn width(&self, dimensions: Option<usize>) -> Result<usize> {
        let width = self.shape.width;
        let Some(n) = dimensions else { return Ok(width) };
        let valid = format_args!("1 to {width}, the length of the model's embeddings");
        ensure_value((1..=width).contains(&n), "dimensions", n, valid)?;
        Ok(n)
    }

    /// Checks the texts and returns their number of tokens.
    fn check(&self, texts: &[Prompt]) -> Result<usize> {
        let EmbedderShape { n_longest, n_vocab, takes_media, .. } = self.shape;
        ensure(!texts.is_empty(), "texts", "texts is empty; it must have at least one text")?;
        for (text_index, text) in texts.iter().enumerate() {
            let n = text.n_tokens();
            ensure(n > 0, "texts", format_args!("text {text_index} is empty; it must have at least one token"))?;
            if text.has_media() && !takes_media {
                let message = "this model is an encoder, which computes embeddings of texts only; remove the images and audio";
                return Err(Error::NotSupported { message: message.to_owned() });
            }
            if n > n_longest {
                return reject("texts", self.shape.length_error(text_index, &n.to_string()));
            }
            let tokens = text.runs().iter().filter_map(|run| match run {
                PromptRun::Tokens(tokens) => Some(tokens),
                PromptRun::Media(_) => None,
            });
            if let Some(token) = tokens.flatten().find(|&&token| !is_in_vocabulary(token, n_vocab)) {
                return reject(
                    "texts",
                    format!("token {token} of text {text_index} is not in the vocabulary ({n_vocab} tokens)"),
                );
            }
        }
        let n_tokens = texts.iter().map(Prompt::n_tokens).sum();
        let limit = format_args!("a request may have at most {MAX_TOKENS}");
        ensure(n_tokens <= MAX_TOKENS, "texts", format_args!("the texts have {n_tokens} tokens in total; {limit}"))?;
        Ok(n_tokens)
    }

    /// Makes requests ready whose media are encoded. Returns true if one failed because its media cannot be encoded.
    pub(super) fn poll_media(&mut self) -> bool {
        let mut has_failed = false;
        while let Some((position, id)) = self.encoding.first_key_value().map(|(position, id)| (*position, *id)) {
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
                self.encoding.remove(&position);
                self.ready.insert(position, id);
            }
        }
        has_failed
    }

    /// The next text of the first request, then texts of the following requests as long as they fit. A text with images
    /// or audio is a separate batch. `None` if no text can be computed.
    pub(super) fn next(&mut self) -> Option<(Vec<BatchText>, EmbeddingBatch)> {
        let (mut items, mut texts, mut n_tokens) = (Vec::new(), Vec::new(), 0);
        let (mut first, mut n_overtaken) = (0, 0);
        while items.len() < self.shape.n_sequences && n_overtaken < MAX_OVERTAKEN {
            let Some((&position, &id)) = self.ready.range(first..).next() else { break };
            first = position + 1;
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
            self.ready.remove(&position);
            self.enqueue(id);
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
        self.ready.remove(&request.position);
        self.encoding.remove(&request.position);
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

#[cfg(test)]
mod tests;
