//! Images and audio: embeddings at the positions of tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::request::{ContextShift, Encoding, Media, Medium, PromptRun};

/// How a picture is computed and cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ImageKind {
    /// Like text.
    Plain,
    /// In one decode.
    SeesAhead,
    /// In chunks, and cached as a whole or not at all.
    Grid,
}

const IMAGE_KINDS: [ImageKind; 3] = [ImageKind::Plain, ImageKind::SeesAhead, ImageKind::Grid];

/// A picture whose embeddings are ready after this many polls.
#[derive(Debug)]
struct Picture {
    first_id: Token,
    n_tokens: u32,
    kind: ImageKind,
    n_asked: AtomicUsize,
    ready_at: usize,
    is_damaged: bool,
}

impl Medium for Picture {
    fn first_id(&self) -> Token {
        self.first_id
    }

    fn n_tokens(&self) -> u32 {
        self.n_tokens
    }

    fn sees_ahead(&self) -> bool {
        self.kind == ImageKind::SeesAhead
    }

    fn has_positions(&self) -> bool {
        self.kind == ImageKind::Grid
    }

    fn n_positions(&self) -> u32 {
        if self.kind == ImageKind::Grid { self.n_tokens / 8 } else { self.n_tokens }
    }

    fn n_bytes(&self) -> u64 {
        0
    }

    fn encoding(&self) -> Encoding {
        match self.n_asked.fetch_add(1, Ordering::Relaxed) {
            _ if self.is_damaged => Encoding::Failed("it is damaged".to_owned()),
            n if n >= self.ready_at => Encoding::Ready,
            _ => Encoding::Pending,
        }
    }

    fn embeddings(&self) -> Option<Arc<[f32]>> {
        (self.n_asked.load(Ordering::Relaxed) > self.ready_at).then(|| Arc::from([]))
    }
}

impl Picture {
    fn new(first_id: Token, n_tokens: u32) -> Self {
        Self { first_id, n_tokens, kind: ImageKind::Plain, n_asked: AtomicUsize::new(0), ready_at: 3, is_damaged: false }
    }

    fn into_media(self) -> Media {
        Media(Arc::new(self))
    }
}

/// `before`, the picture, `after`.
fn with_picture(before: &str, media: &Media, after: &str) -> Prompt {
    let mut prompt = Prompt::from_tokens(tokens_of(before));
    prompt.push(PromptRun::Media(media.clone()));
    prompt.push(PromptRun::Tokens(tokens_of(after)));
    prompt
}

/// `before`, a picture of 40 tokens, `after`.
pub(super) fn picture_of(first_id: Token, before: &str, after: &str) -> Prompt {
    with_picture(before, &Picture::new(first_id, 40).into_media(), after)
}

/// Creates a greedy request for `max_tokens` tokens after that.
fn about(prompt: Prompt, max_tokens: u32) -> Request {
    Request { prompt, ..greedy("", max_tokens) }
}

/// Returns the expected continuation of `prompt`.
fn expected_after(prompt: &Prompt, n: usize) -> Vec<Token> {
    let mut tokens = prompt.clone().into_tokens();
    let n_prompt = tokens.len();
    for _ in 0..n {
        tokens.push(FakeRunner::next_token(&tokens));
    }
    tokens.split_off(n_prompt)
}

#[test]
fn a_picture_takes_the_positions_of_tokens() {
    for kind in IMAGE_KINDS {
        let (engine, control) = start(limits(2, 4096));
        let media = Picture { kind, ..Picture::new(-1, 40) }.into_media();
        let prompt = with_picture(&prompt(1, 30), &media, &prompt(2, 20));
        let branches = collect(engine.submit(about(prompt.clone(), 5), None).unwrap()).unwrap();
        assert_eq!(branches[0].tokens, expected_after(&prompt, 5));
        assert_eq!(control.n_computed(), 30 + 40 + 20 + 4);
    }
}

#[test]
fn branches_and_turns_compute_a_shared_picture_once() {
    let (engine, control) = start(limits(8, 4096));
    let media = Picture { kind: ImageKind::SeesAhead, ..Picture::new(-1, 64) }.into_media();
    let first = with_picture(&prompt(1, 30), &media, &prompt(2, 20));
    let branches = collect(engine.submit(Request { n: 4, ..about(first.clone(), 3) }, None).unwrap()).unwrap();
    assert!(branches.iter().all(|branch| branch.tokens == expected_after(&first, 3)));
    assert_eq!(control.n_computed(), 30 + 64 + 20 + 4 * 2);
    let second = with_picture(&prompt(1, 30), &media, &prompt(3, 25));
    collect(engine.submit(about(second, 1), None).unwrap()).unwrap();
    assert_eq!(control.n_computed(), 30 + 64 + 20 + 4 * 2 + 25, "text and picture are found, and what follows is new");
}

#[test]
fn a_different_picture_shares_only_the_text_before_it() {
    let (engine, control) = start(limits(2, 4096));
    for first_id in [-1, -100] {
        let media = Picture::new(first_id, 64).into_media();
        let request = about(with_picture(&prompt(1, 30), &media, &prompt(2, 20)), 1);
        collect(engine.submit(request, None).unwrap()).unwrap();
    }
    assert_eq!(control.n_computed(), 30 + 2 * (64 + 20));
}

#[test]
fn a_medium_with_non_causal_attention_is_computed_in_one_decode() {
    for (kind, expected) in
        [(ImageKind::SeesAhead, vec![16, 14, 50, 16, 4]), (ImageKind::Grid, vec![16, 14, 16, 16, 16, 2, 16, 4])]
    {
        let (runner, control) = FakeRunner::new(4096, 66);
        let engine = Engine::start(limits(2, 4096), move || Ok(runner)).unwrap();
        let media = Picture { kind, ..Picture::new(-1, 50) }.into_media();
        let request = Request { max_chunk: Some(16), ..about(with_picture(&prompt(1, 30), &media, &prompt(2, 20)), 1) };
        collect(engine.submit(request, None).unwrap()).unwrap();
        let sizes: Vec<usize> = control.plans().iter().map(|plan| plan.rows.len()).collect();
        assert_eq!(sizes, expected);
    }
}

#[test]
fn an_incomplete_medium_that_is_cached_as_a_whole_is_dropped() {
    for kind in [ImageKind::Plain, ImageKind::Grid] {
        let (engine, control) = start(limits(2, 4096));
        control.allow(Some(0));
        let media = Picture { kind, ready_at: 0, ..Picture::new(-1, 64) }.into_media();
        let prompt = with_picture(&prompt(1, 30), &media, &prompt(2, 20));
        let halved = engine.submit(Request { max_chunk: Some(16), ..about(prompt.clone(), 1) }, None).unwrap();
        step_until(&engine, &control, |stats| stats.n_computed >= 46);
        drop(halved);
        control.allow(None);
        let n_cached = collect(engine.submit(about(prompt, 1), None).unwrap()).unwrap()[0].finished.usage.n_cached;
        assert_eq!((kind, n_cached == 30, n_cached > 30), (kind, kind == ImageKind::Grid, kind == ImageKind::Plain));
    }
}

#[test]
fn other_streams_continue_while_a_picture_is_encoded() {
    let (engine, control) = start(limits(2, 4096));
    control.allow(Some(0));
    let media = Picture { ready_at: usize::MAX, ..Picture::new(-1, 40) }.into_media();
    let waiting = engine.submit(about(with_picture(&prompt(1, 30), &media, "x"), 5), None).unwrap();
    let other = engine.submit(greedy(&prompt(7, 20), 9), None).unwrap();
    control.allow(None);
    assert_eq!(collect(other).unwrap()[0].tokens.len(), 9);
    assert_eq!(engine.stats().n_waiting, 0, "it has a slot");
    drop(waiting);
    assert_eq!(collect(engine.submit(greedy(&prompt(8, 20), 2), None).unwrap()).unwrap()[0].tokens.len(), 2);
}

#[test]
fn a_picture_that_cannot_be_encoded_ends_only_its_request() {
    let (engine, _control) = start(limits(2, 4096));
    let media = Picture { is_damaged: true, ..Picture::new(-1, 40) }.into_media();
    let request = Request { n: 2, ..about(with_picture(&prompt(1, 30), &media, "x"), 5) };
    let failed = engine.submit(request, None).unwrap();
    let other = engine.submit(greedy(&prompt(7, 20), 9), None).unwrap();
    assert_eq!(collect(failed).err(), Some(Error::Decode { reason: "it is damaged".to_owned() }));
    assert_eq!(collect(other).unwrap()[0].tokens.len(), 9);
}

#[test]
fn a_preempted_picture_resumes() {
    for kind in IMAGE_KINDS {
        for max_host_cache_bytes in [Some(0), STORE] {
            let (engine, _control) = start(Limits { max_host_cache_bytes, ..limits(4, 512) });
            let streams: Vec<_> = (0..6)
                .map(|nth| {
                    let media = Picture { kind, ..Picture::new(-1 - 1_000 * nth, 100) }.into_media();
                    let prompt = with_picture(&prompt(1, 30), &media, &prompt(u64::from(nth.unsigned_abs()), 20));
                    (expected_after(&prompt, 60), engine.submit(about(prompt, 60), None).unwrap())
                })
                .collect();
            for (expected, stream) in streams {
                assert_eq!(collect(stream).unwrap()[0].tokens, expected);
            }
        }
    }
}

#[test]
fn unsupported_options_of_pictures_are_refused_by_name() {
    let (engine, _control) = start(limits(2, 4096));
    let media = Picture::new(-1, 40).into_media();
    let whole = with_picture("a", &media, "b");
    let mut last = Prompt::from_tokens(tokens_of("a"));
    last.push(PromptRun::Media(media));
    let refused = |request: Request| match engine.submit(request, None) {
        Err(Error::InvalidRequest { param, .. }) => param,
        _ => panic!("it is refused"),
    };
    last.push(PromptRun::Tokens(Vec::new()));
    assert_eq!(refused(about(last, 1)), "prompt");
    let large = Picture { kind: ImageKind::SeesAhead, ..Picture::new(-1, 1 + limits(2, 4096).n_ubatch) }.into_media();
    assert_eq!(refused(about(with_picture("a", &large, "b"), 1)), "prompt");
    assert_eq!(refused(Request { prompt_logprobs: Some(0), ..about(whole.clone(), 1) }), "prompt_logprobs");
    assert_eq!(refused(Request { context_shift: Some(ContextShift::default()), ..about(whole.clone(), 1) }), "context_shift");
    assert_eq!(refused(Request::for_task(whole, Task::Save { computes: true })), "prompt");
}
