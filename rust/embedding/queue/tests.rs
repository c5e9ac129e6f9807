//! Tests of `queue`.

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
