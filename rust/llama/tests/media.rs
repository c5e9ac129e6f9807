//! Tests images and audio with toy projectors: results as `mtmd`'s own, and files for which it would end the process.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, ptr};

use llama_cpp_sys_2 as sys;

use super::embeddings::{cosine, embed, reference, worker};
use super::gguf_writer::{Header, Tensor, TensorType};
use super::resolve_llama_cpp;
use super::tiny::{Chance, Kind, write, write_tiny};
use crate::config::{EngineConfig, MediaConfig, ModelConfig, Pooling};
use crate::engine::Engine;
use crate::engine::runner::{KvSeqId, MediaRows, Plan, RelocateError, Row, Runner, StateError};
use crate::error::Error;
use crate::llama::{LlamaRunner, Model};
use crate::request::{Encoding, Event, Prompt, PromptRun, Request, SamplingParams, Token};

/// Tolerance: logits after one sound, decoded in two batch shapes, differ by up to 0.001, others not at all; those after another
/// file by more than 0.05.
const TOLERANCE: f32 = 0.005;

const N_EMBD: usize = 32;
const N_FF: usize = 64;
const N_TEXT: usize = 64;
const N_MEL: usize = 80;
const PATCH: usize = 8;
const SIDE: usize = 32;

/// Public projector architectures at toy sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Toy {
    /// `LLaVA`'s: CLIP and two layers.
    Llava,
    /// Gemma 3's: `SigLIP`, with non-causal attention within an image.
    Gemma3,
    /// Qwen2-VL's: two-dimensional positions.
    Qwen2Vl,
    /// Ultravox's: Whisper.
    Ultravox,
}

impl Toy {
    fn text(self) -> Kind {
        if self == Self::Qwen2Vl { Kind::Grid } else { Kind::Window }
    }

    /// Writes the projector, which stacks `stack` frames of audio.
    fn write(self, stack: u32) -> PathBuf {
        let mut header = Header::default();
        header.string("general.architecture", "clip");
        let (name, kind) = match self {
            Self::Llava => ("mlp", "vision"),
            Self::Gemma3 => ("gemma3", "vision"),
            Self::Qwen2Vl => ("qwen2vl_merger", "vision"),
            Self::Ultravox => ("ultravox", "audio"),
        };
        header.string("clip.projector_type", name);
        header.bool(&format!("clip.has_{kind}_encoder"), true);
        header.bool("clip.use_gelu", true);
        header.f32(&format!("clip.{kind}.attention.layer_norm_epsilon"), 1e-5);
        let sizes = [("embedding_length", 32), ("attention.head_count", 2), ("feed_forward_length", 64), ("block_count", 2)];
        for (name, size) in sizes.into_iter().chain([("projection_dim", 64)]) {
            header.u32(&format!("clip.{kind}.{name}"), size);
        }
        if self == Self::Ultravox {
            header.u32("clip.audio.num_mel_bins", 80);
            header.u32("clip.audio.projector.stack_factor", stack);
        } else {
            header.u32("clip.vision.image_size", 32);
            header.u32("clip.vision.patch_size", 8);
            header.f32s("clip.vision.image_mean", [0.5; 3].into_iter());
            header.f32s("clip.vision.image_std", [0.5; 3].into_iter());
        }
        if self == Self::Gemma3 {
            header.u32("clip.vision.projector.scale_factor", 2);
        }
        for (name, dims) in self.tensors(stack as usize) {
            header.tensor(Tensor { name, dims, kind: TensorType::F32 });
        }
        write(&header, &format!("{self:?}-{stack}"))
    }

    /// Names and sizes, fastest-running dimension first.
    fn tensors(self, stack: usize) -> Vec<(String, Vec<usize>)> {
        let n_patches = (SIDE / PATCH) * (SIDE / PATCH);
        let patch = vec![PATCH, PATCH, 3, N_EMBD];
        let own: Vec<(&str, Vec<usize>)> = match self {
            Self::Llava => vec![
                ("v.class_embd", vec![N_EMBD]),
                ("v.patch_embd.weight", patch),
                ("v.position_embd.weight", vec![N_EMBD, n_patches + 1]),
                ("v.pre_ln.weight", vec![N_EMBD]),
                ("v.pre_ln.bias", vec![N_EMBD]),
                ("mm.0.weight", vec![N_EMBD, N_TEXT]),
                ("mm.0.bias", vec![N_TEXT]),
                ("mm.2.weight", vec![N_TEXT, N_TEXT]),
                ("mm.2.bias", vec![N_TEXT]),
            ],
            Self::Gemma3 => vec![
                ("v.patch_embd.weight", patch),
                ("v.patch_embd.bias", vec![N_EMBD]),
                ("v.position_embd.weight", vec![N_EMBD, n_patches]),
                ("v.post_ln.weight", vec![N_EMBD]),
                ("v.post_ln.bias", vec![N_EMBD]),
                ("mm.input_projection.weight", vec![N_TEXT, N_EMBD]),
                ("mm.soft_emb_norm.weight", vec![N_EMBD]),
            ],
            Self::Qwen2Vl => vec![
                ("v.patch_embd.weight", patch.clone()),
                ("v.patch_embd.weight.1", patch),
                ("v.post_ln.weight", vec![N_EMBD]),
                ("v.post_ln.bias", vec![N_EMBD]),
                ("mm.0.weight", vec![4 * N_EMBD, 4 * N_EMBD]),
                ("mm.0.bias", vec![4 * N_EMBD]),
                ("mm.2.weight", vec![4 * N_EMBD, N_TEXT]),
                ("mm.2.bias", vec![N_TEXT]),
            ],
            Self::Ultravox => vec![
                ("a.position_embd.weight", vec![N_EMBD, 1_500]),
                ("a.conv1d.1.weight", vec![3, N_MEL, N_EMBD]),
                ("a.conv1d.1.bias", vec![1, N_EMBD]),
                ("a.conv1d.2.weight", vec![3, N_EMBD, N_EMBD]),
                ("a.conv1d.2.bias", vec![1, N_EMBD]),
                ("a.post_ln.weight", vec![N_EMBD]),
                ("a.post_ln.bias", vec![N_EMBD]),
                ("mm.a.mlp.1.weight", vec![stack * N_EMBD, 2 * N_FF]),
                ("mm.a.mlp.2.weight", vec![N_FF, N_TEXT]),
                ("mm.a.norm_pre.weight", vec![stack * N_EMBD]),
                ("mm.a.norm_mid.weight", vec![N_FF]),
            ],
        };
        let mut tensors: Vec<(String, Vec<usize>)> = own.into_iter().map(|(name, dims)| (name.to_owned(), dims)).collect();
        let prefix = if self == Self::Ultravox { "a" } else { "v" };
        for layer in 0..2 {
            for (name, n_in, n_out) in [
                ("attn_q", Some(N_EMBD), N_EMBD),
                ("attn_k", Some(N_EMBD), N_EMBD),
                ("attn_v", Some(N_EMBD), N_EMBD),
                ("attn_out", Some(N_EMBD), N_EMBD),
                ("ffn_up", Some(N_EMBD), N_FF),
                ("ffn_down", Some(N_FF), N_EMBD),
                ("ln1", None, N_EMBD),
                ("ln2", None, N_EMBD),
            ] {
                tensors.push((format!("{prefix}.blk.{layer}.{name}.weight"), n_in.into_iter().chain([n_out]).collect()));
                if (prefix, name) != ("a", "attn_k") {
                    tensors.push((format!("{prefix}.blk.{layer}.{name}.bias"), vec![n_out]));
                }
            }
        }
        tensors
    }

    /// Returns a file that it supports.
    fn file(self, seed: u8) -> Vec<u8> {
        if self == Self::Ultravox { wav(seed) } else { bmp(seed, 64, 32) }
    }

    /// Writes and loads both, and passes them on.
    fn with<T>(self, work: impl FnOnce(&Arc<Model>, &Path, &Path) -> T) -> T {
        let (text, projector) = (write_tiny(self.text()), self.write(4));
        let model = load(&text, &projector).expect("the toys load");
        let made = work(&Arc::new(model), &text, &projector);
        fs::remove_file(text).and_then(|()| fs::remove_file(projector)).expect("they were just written");
        made
    }
}

fn load(text: &Path, projector: &Path) -> Result<Model, Error> {
    let media = MediaConfig { path: projector.to_owned(), offload: true, image_min_tokens: None, image_max_tokens: None };
    Model::load(&ModelConfig { media: Some(media), ..ModelConfig::at(text.to_owned()) }, |_| ())
}

/// Returns an image of stripes, whose rows are a multiple of four bytes long.
fn bmp(seed: u8, width: u32, height: u32) -> Vec<u8> {
    let n_bytes = 3 * width * height;
    let mut file = b"BM".to_vec();
    for number in [54 + n_bytes, 0, 54, 40, width, height, 1 | 24 << 16, 0, n_bytes, 2_835, 2_835, 0, 0] {
        file.extend(number.to_le_bytes());
    }
    file.extend((0..n_bytes).map(|at| (at / 7 * 31 % 251) as u8 ^ seed));
    file
}

/// Returns a second of crackling: one channel of 16 bits.
fn wav(seed: u8) -> Vec<u8> {
    let n_bytes = 32_000_u32;
    let mut file = b"RIFF".to_vec();
    file.extend((36 + n_bytes).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    file.extend(16_000_u32.to_le_bytes());
    file.extend(32_000_u32.to_le_bytes());
    file.extend(b"\x02\0\x10\0data");
    file.extend(n_bytes.to_le_bytes());
    file.extend((0..n_bytes).map(|at| (at / 3 * 29 % 113) as u8 ^ seed));
    file
}

fn start(model: &Arc<Model>) -> LlamaRunner {
    let config = EngineConfig { n_slots: Some(2), n_ctx: Some(2_048), n_threads: Some(1), ..EngineConfig::default() };
    let config = resolve_llama_cpp(model, &config).expect("it fits");
    LlamaRunner::new(Arc::clone(model), &config).expect("the toy runs")
}

/// Returns the prompt `before`, a file, `after`.
fn prompt(model: &Model, before: &str, file: &[u8], after: &str) -> Prompt {
    let mut prompt = Prompt::from_tokens(model.tokenize(before.as_bytes(), true, true).unwrap());
    let media = model.projector().expect("there is one").read(file).expect("the file is sound");
    media.runs.into_iter().for_each(|run| prompt.push(run));
    prompt.push(PromptRun::Tokens(model.tokenize(after.as_bytes(), false, true).unwrap()));
    prompt
}

/// Computes `prompt` in sequence `id`, one run at a time in chunks of at most `n_at_once`; returns the logits after it.
fn compute(runner: &mut LlamaRunner, id: u16, prompt: &Prompt, n_at_once: usize) -> Vec<f32> {
    let n = prompt.n_tokens();
    let mut position = 0;
    for run in prompt.runs() {
        let (ids, media): (Vec<Token>, _) = match run {
            PromptRun::Tokens(tokens) => (tokens.clone(), None),
            PromptRun::Media(media) => (media.ids().collect(), Some(media)),
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while media.is_some_and(|media| media.encoding() == Encoding::Pending) {
            assert!(Instant::now() < deadline, "the projector makes no embeddings");
            std::thread::sleep(Duration::from_millis(1));
        }
        let n_at_once = if media.is_some_and(|media| media.sees_ahead()) { ids.len() } else { n_at_once };
        for (last, piece) in ids.chunks(n_at_once.max(1)).enumerate() {
            let rows = piece.iter().zip(position..).map(|(&token, position)| Row {
                sequence: KvSeqId(id),
                token,
                position: u32::try_from(position).expect("small"),
                wants_logits: position + 1 == n,
            });
            let start = u32::try_from(last * n_at_once).expect("small");
            let media = media.map(|media| MediaRows { rows: 0..piece.len(), media: media.clone(), start });
            let plan = Plan { rows: rows.collect(), media: media.into_iter().collect(), ..Plan::default() };
            runner.decode(&plan).expect("the plan is valid");
            position += piece.len();
        }
    }
    let last = prompt.runs().last().map_or(0, PromptRun::n_tokens);
    runner.logits((last - 1) % n_at_once).to_vec()
}

fn most_likely(logits: &[f32]) -> Token {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("there are tokens");
    Token::try_from(best).expect("a token")
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Returns the logits after `prompt`, and after each of `n` tokens that follow it.
fn ours(runner: &mut LlamaRunner, prompt: &Prompt, n_at_once: usize, n: usize) -> Vec<Vec<f32>> {
    let mut rows = vec![compute(runner, 0, prompt, n_at_once)];
    for i in 0..n {
        let next = most_likely(&rows[i]);
        let position = u32::try_from(prompt.n_tokens() + i).expect("small");
        let row = Row { sequence: KvSeqId(0), token: next, position, wants_logits: true };
        runner.decode(&Plan { rows: vec![row], ..Plan::default() }).expect("the plan is valid");
        rows.push(runner.logits(0).to_vec());
    }
    rows
}

/// llama.cpp's own objects, alive during a call of [`bare`].
struct Bare {
    model: *mut sys::llama_model,
    context: *mut sys::llama_context,
    reader: *mut sys::mtmd_context,
    chunks: *mut sys::mtmd_input_chunks,
}

/// Calls `work` with a bare llama.cpp context, which outputs embeddings if `embeds`, and the chunks of the prompt `before`, a file,
/// `after`, cut by `mtmd`'s own helpers.
fn bare<T>(
    (text, projector): (&Path, &Path),
    (before, file, after): (&str, &[u8], &str),
    embeds: bool,
    work: impl FnOnce(&Bare) -> T,
) -> T {
    let path = |path: &Path| CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
    let prompt = CString::new(format!("{before}<__media__>{after}")).expect("no NUL");
    let (text, projector) = (path(text), path(projector));
    // SAFETY: all objects are alive until they are freed at the end, each of them once.
    unsafe {
        let model = sys::llama_model_load_from_file(text.as_ptr(), sys::llama_model_default_params());
        let mut params = sys::llama_context_default_params();
        (params.n_ctx, params.n_batch, params.n_ubatch) = (2_048, 512, 512);
        (params.n_threads, params.n_threads_batch) = (1, 1);
        params.swa_full = true;
        if embeds {
            (params.embeddings, params.pooling_type) = (true, sys::LLAMA_POOLING_TYPE_NONE);
        }
        let context = sys::llama_init_from_model(model, params);
        let mut params = sys::mtmd_context_params_default();
        (params.use_gpu, params.warmup, params.n_threads) = (false, false, 1);
        let reader = sys::mtmd_init_from_file(projector.as_ptr(), model, params);
        let options = sys::mtmd_helper_init_opt_default();
        let bitmap = sys::mtmd_helper_bitmap_init_from_buf(reader, file.as_ptr(), file.len(), false, options).bitmap;
        let chunks = sys::mtmd_input_chunks_init();
        let length = prompt.as_bytes().len();
        let input = sys::mtmd_input_text { text: prompt.as_ptr(), text_len: length, add_special: true, parse_special: true };
        let mut bitmaps = [bitmap.cast_const()];
        assert_eq!(sys::mtmd_tokenize(reader, chunks, &raw const input, bitmaps.as_mut_ptr(), 1), 0);
        let made = work(&Bare { model, context, reader, chunks });
        sys::mtmd_input_chunks_free(chunks);
        sys::mtmd_bitmap_free(bitmap);
        sys::mtmd_free(reader);
        sys::llama_free(context);
        sys::llama_model_free(model);
        made
    }
}

/// Returns the results of [`ours`], by `mtmd`'s own helpers in a bare llama.cpp context.
fn theirs(files: (&Path, &Path), prompt: (&str, &[u8], &str), n: usize) -> Vec<Vec<f32>> {
    // SAFETY: everything that `bare` passes is alive; a batch has as many rows as it states.
    bare(files, prompt, false, |&Bare { model, context, reader, chunks }| unsafe {
        let mut position = 0;
        assert_eq!(sys::mtmd_helper_eval_chunks(reader, context, chunks, 0, 0, 512, true, &raw mut position), 0);
        let n_vocab = usize::try_from(sys::llama_vocab_n_tokens(sys::llama_model_get_vocab(model))).expect("small");
        let logits = || std::slice::from_raw_parts(sys::llama_get_logits_ith(context, -1), n_vocab).to_vec();
        let mut rows = vec![logits()];
        while rows.len() <= n {
            let last = rows.len() - 1;
            let (mut token, mut at, mut id, mut n_ids, mut wants) = (most_likely(&rows[last]), position, 0, 1, 1);
            let mut ids = ptr::from_mut(&mut id);
            let batch = sys::llama_batch {
                n_tokens: 1,
                token: &raw mut token,
                embd: ptr::null_mut(),
                pos: &raw mut at,
                n_seq_id: &raw mut n_ids,
                seq_id: &raw mut ids,
                logits: &raw mut wants,
            };
            assert_eq!(sys::llama_decode(context, batch), 0);
            rows.push(logits());
            position += 1;
        }
        rows
    })
}

/// Returns the embedding of every token of a prompt, by the same helpers.
fn mtmd_rows(files: (&Path, &Path), prompt: (&str, &[u8], &str)) -> Vec<Vec<f32>> {
    // SAFETY: as above; each token of the last chunk has an embedding.
    bare(files, prompt, true, |&Bare { context, reader, chunks, .. }| unsafe {
        let (mut position, mut rows) = (0, Vec::new());
        for last in 0..sys::mtmd_input_chunks_size(chunks) {
            let chunk = sys::mtmd_input_chunks_get(chunks, last);
            let (from, to) = (position, &raw mut position);
            assert_eq!(sys::mtmd_helper_eval_chunk_single(reader, context, chunk, from, 0, 512, true, to), 0);
            for index in 0..i32::try_from(sys::mtmd_input_chunk_get_n_tokens(chunk)).expect("small") {
                rows.push(std::slice::from_raw_parts(sys::llama_get_embeddings_ith(context, index), N_TEXT).to_vec());
            }
        }
        rows
    })
}

/// Compares our results with `mtmd`'s, however the prompt is cut.
fn check(toy: Toy) {
    toy.with(|model, text, projector| {
        let (before, after) = ("what is", "? it is");
        let expected = theirs((text, projector), (before, &toy.file(1), after), 4);
        let other = theirs((text, projector), (before, &toy.file(90), after), 0);
        let difference = distance(&expected[0], &other[0]);
        assert!(difference > 4.0 * TOLERANCE, "{toy:?}: another file gives other numbers, {difference} apart");
        let prompt = prompt(model, before, &toy.file(1), after);
        for n_at_once in [512, 5] {
            let mut runner = start(model);
            let rows = ours(&mut runner, &prompt, n_at_once, 4);
            for (index, (ours, theirs)) in rows.iter().zip(&expected).enumerate() {
                let distance = distance(ours, theirs);
                assert!(distance < TOLERANCE, "{toy:?}, {n_at_once} at once: {distance} after {index} tokens");
            }
        }
    });
}

#[test]
fn llava_matches_mtmd() {
    check(Toy::Llava);
}

#[test]
fn non_causal_attention_within_an_image_matches_mtmd() {
    check(Toy::Gemma3);
}

#[test]
fn two_dimensional_positions_match_mtmd() {
    check(Toy::Qwen2Vl);
}

#[test]
fn audio_matches_mtmd() {
    check(Toy::Ultravox);
}

#[test]
fn embeddings_of_texts_with_media_match_mtmd() {
    for toy in [Toy::Llava, Toy::Gemma3, Toy::Qwen2Vl, Toy::Ultravox] {
        toy.with(|model, text, projector| {
            let (before, after, file) = ("what is", "? it is", toy.file(1));
            let rows = mtmd_rows((text, projector), (before, &file, after));
            let n = u16::try_from(rows.len()).expect("small");
            let mean = (0..N_TEXT).map(|i| rows.iter().map(|row| row[i]).sum::<f32>() / f32::from(n)).collect();
            let expected = [
                (Pooling::Mean, mean),
                (Pooling::Last, rows[rows.len() - 1].clone()),
                (Pooling::Cls, rows[0].clone()),
                (Pooling::None, rows.concat()),
            ];
            let mixed = prompt(model, before, &file, after);
            assert_eq!(mixed.n_tokens(), rows.len());
            // Together with a text that does not wait for it and is not affected by it.
            let alone = vec![3 + i32::from(b'x'); 30];
            for (pooling, expected) in expected {
                let worker = worker(model, pooling);
                let texts = vec![Prompt::from_tokens(alone.clone()), mixed.clone(), Prompt::from_tokens(alone.clone())];
                let embeddings = embed(&worker, texts).expect("the texts are short");
                let embedding_of = |text: usize| {
                    &embeddings.numbers
                        [embeddings.starts[text] * embeddings.width..embeddings.starts[text + 1] * embeddings.width]
                };
                let similarity = cosine(embedding_of(1), &expected);
                assert!(similarity > 0.9999, "{toy:?}, {pooling:?}: {similarity}");
                assert!(cosine(embedding_of(0), embedding_of(2)) > 0.9999, "{toy:?}, {pooling:?}: a text after a picture");
                assert!(cosine(embedding_of(0), &reference(model, pooling, &alone)) > 0.9999, "{toy:?}, {pooling:?}");
            }
            let other = prompt(model, before, &toy.file(90), after);
            let embeddings = embed(&worker(model, Pooling::None), vec![mixed, other]).expect("the texts are short");
            let (one, two) = embeddings.numbers.split_at(embeddings.numbers.len() / 2);
            let similarity = cosine(one, two);
            assert!(similarity < 0.9999, "{toy:?}: another file has other embeddings, {similarity}");
        });
    }
}

#[test]
fn files_that_are_not_projectors_are_rejected() {
    let text = write_tiny(Toy::Llava.text());
    let refusal = |path: &Path| load(&text, path).err().map(|error| error.to_string()).unwrap_or_default();
    let is_model = refusal(&text);
    assert!(is_model.starts_with(&format!("cannot load the projector {}: it is not a projector", text.display())), "{is_model}");
    assert!(is_model.contains("its general.architecture is \"gemma2\", not \"clip\""), "{is_model}");
    for (path, words) in
        [("/nowhere.gguf", "there is no such file"), ("/", "it is a directory"), ("/dev/null", "not a regular file")]
    {
        let message = refusal(Path::new(path));
        assert!(message.contains(words), "{message}");
    }
    fs::remove_file(text).expect("it was just written");
}

#[test]
fn a_projector_beyond_the_free_memory_is_rejected() {
    let (text, projector) = (write_tiny(Toy::Llava.text()), Toy::Llava.write(4));
    let file = fs::OpenOptions::new().write(true).open(&projector).expect("it was just written");
    // A sparse file.
    file.set_len(1 << 42).expect("the file system has sparse files");
    let refused = load(&text, &projector).err();
    fs::remove_file(text).and_then(|()| fs::remove_file(projector)).expect("they were just written");
    assert!(
        matches!(&refused, Some(Error::InvalidConfig { param: "mmproj", message }) if message.contains("4398046511104 bytes of memory")),
        "{refused:?}"
    );
}

#[test]
fn a_fork_after_an_image_continues_as_if_computed() {
    for toy in [Toy::Gemma3, Toy::Qwen2Vl] {
        toy.with(|model, _, _| {
            let mut runner = start(model);
            let whole = prompt(model, "what is", &toy.file(1), "? it is");
            let n = whole.n_tokens();
            let last = whole.runs().last().map_or(0, PromptRun::n_tokens);
            let expected = compute(&mut runner, 0, &whole, 512);
            let n_shared = u32::try_from(n - last).expect("small");
            runner.fork(KvSeqId(0), KvSeqId(1), n_shared);
            let Some(PromptRun::Tokens(tokens)) = whole.runs().last() else { panic!("the prompt ends with a text") };
            runner.decode(&crate::llama::context::batch::rows_of(KvSeqId(1), n_shared, tokens)).expect("the plan is valid");
            assert!(distance(runner.logits(last - 1), &expected) < TOLERANCE);
            assert!(runner.truncate(KvSeqId(0), n_shared), "what follows a picture can be forgotten");
            let is_cut = runner.truncate(KvSeqId(0), whole.media()[0].start + 1);
            assert_eq!(is_cut, toy != Toy::Qwen2Vl, "{toy:?}: a picture whose rows are counted is not cut");
        });
    }
}

#[test]
fn a_projector_that_llama_cpp_miscounts_is_rejected() {
    let (text, projector) = (write_tiny(Toy::Ultravox.text()), Toy::Ultravox.write(8));
    let refused = load(&text, &projector).err();
    fs::remove_file(text).and_then(|()| fs::remove_file(projector)).expect("they were just written");
    assert!(
        matches!(&refused, Some(Error::InvalidConfig { param: "mmproj", message }) if message.contains("expects 187 embeddings")),
        "{refused:?}"
    );
}

/// Returns the logits after the last token of `prompt` in sequence `id`, which holds all previous tokens.
fn last(runner: &mut LlamaRunner, id: u16, prompt: &Prompt) -> Vec<f32> {
    let tokens = prompt.clone().into_tokens();
    let position = u32::try_from(tokens.len() - 1).expect("small");
    let plan = crate::llama::context::batch::rows_of(KvSeqId(id), position, &tokens[tokens.len() - 1..]);
    runner.decode(&plan).expect("the plan is valid");
    let logits = runner.logits(0).to_vec();
    assert!(runner.truncate(KvSeqId(id), position));
    logits
}

#[test]
fn a_text_after_an_image_is_restored_with_its_positions() {
    Toy::Qwen2Vl.with(|model, _, _| {
        let mut runner = start(model);
        let whole = prompt(model, "what is", &Toy::Qwen2Vl.file(1), "? it is a good question");
        let picture = whole.media()[0].clone();
        compute(&mut runner, 0, &whole, 512);
        let end = u32::try_from(whole.n_tokens() - 1).expect("small");
        assert!(runner.truncate(KvSeqId(0), end));
        let expected = last(&mut runner, 0, &whole);

        let parts = [0..picture.start - 1, picture.start - 1..picture.end(), picture.end()..end];
        let pieces = parts.clone().map(|part| runner.save(KvSeqId(0), part).expect("it is saved"));
        assert_eq!(runner.save(KvSeqId(0), picture.start + 1..end), Err(StateError::OwnPositions));
        assert_eq!(runner.widen_to_images(KvSeqId(0), picture.start + 1..end), picture.start..end);
        runner.drop_sequence(KvSeqId(0));
        for (part, piece) in parts.iter().zip(&pieces) {
            runner.restore(KvSeqId(1), piece, part.clone()).expect("it is restored");
        }
        assert!(distance(&last(&mut runner, 1, &whole), &expected) < TOLERANCE, "restored");

        // Fails if the image's tokens are other text, or if the requested part cuts the image.
        let text: Vec<Token> = (3..).take(picture.end() as usize).collect();
        runner.decode(&crate::llama::context::batch::rows_of(KvSeqId(2), 0, &text)).expect("the plan is valid");
        let refused = runner.restore(KvSeqId(2), &pieces[2], parts[2].clone()).expect_err("another text is before it");
        assert!(refused.to_string().contains("the images before tokens"), "{refused}");
        assert!(runner.truncate(KvSeqId(2), parts[1].start));
        let refused = runner.restore(KvSeqId(2), &pieces[1], parts[1].start..picture.end() - 1);
        assert!(refused.expect_err("a part of a picture").to_string().contains("with images"));
        // The text before the image can be restored anywhere.
        runner.restore(KvSeqId(2), &pieces[1], parts[1].start..picture.start).expect("it is restored");
        runner.drop_sequence(KvSeqId(2));

        // The process survives any damaged bytes.
        let mut chance = Chance(5);
        for _ in 0..300 {
            let mut damaged = pieces[1].to_vec();
            damaged[chance.below(400)] = u8::try_from(chance.below(256)).expect("a byte");
            runner.restore(KvSeqId(2), &pieces[0], parts[0].clone()).expect("it is restored");
            let _ = runner.restore(KvSeqId(2), &damaged, parts[1].clone());
            runner.drop_sequence(KvSeqId(2));
        }
    });
}

#[test]
fn the_cells_of_an_image_and_the_text_after_it_are_relocated() {
    Toy::Qwen2Vl.with(|model, _, _| {
        let mut runner = start(model);
        let whole = prompt(model, "what is", &Toy::Qwen2Vl.file(1), "? it is a good question");
        let picture = whole.media()[0].clone();
        // The cells below are free once this sequence is dropped.
        runner.decode(&crate::llama::context::batch::rows_of(KvSeqId(3), 0, &[5; 100])).expect("the plan is valid");
        compute(&mut runner, 0, &whole, 512);
        let end = u32::try_from(whole.n_tokens() - 1).expect("small");
        assert!(runner.truncate(KvSeqId(0), end));
        let expected = last(&mut runner, 0, &whole);
        runner.fork(KvSeqId(0), KvSeqId(1), end);
        runner.drop_sequence(KvSeqId(3));
        let ids = [KvSeqId(0), KvSeqId(1)];
        let cut = runner.relocate(&ids, picture.start + 1..end);
        assert_eq!(cut, Err(RelocateError::Refused(StateError::OwnPositions)));
        let range = runner.widen_to_images(KvSeqId(0), picture.start + 1..end);
        runner.relocate(&ids, range).expect("they are moved");
        for id in [0, 1] {
            let distance = distance(&last(&mut runner, id, &whole), &expected);
            // Sums depend on the order of cells: this much also changes for a text without images.
            assert!(distance < 2.0 * TOLERANCE, "moved, as {id}: {distance}");
        }
    });
}

#[test]
fn a_conversation_with_an_image_is_offloaded_and_not_recomputed() {
    Toy::Qwen2Vl.with(|model, _, _| {
        let config = EngineConfig { n_slots: Some(1), n_ctx: Some(256), n_threads: Some(1), ..EngineConfig::default() };
        let config = resolve_llama_cpp(model, &config).expect("it fits");
        let limits = config.limits;
        let build = {
            let model = Arc::clone(model);
            move || LlamaRunner::new(model, &config)
        };
        let engine = Engine::start(limits, build).expect("the engine starts");
        let ask = |prompt: &Prompt, max_tokens| {
            let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
            let request = Request { max_tokens: Some(max_tokens), sampling, ..Request::new(prompt.clone(), 1) };
            let (mut tokens, mut n_computed) = (Vec::new(), None);
            for event in engine.submit(request, None).expect("it is taken") {
                match event.expect("nothing fails") {
                    Event::Token(token) => tokens.push(token.token),
                    Event::Finished(finished) => n_computed = Some(finished.usage.n_prompt_computed),
                    Event::Progress(_) | Event::PromptLogprobs(_) => {}
                }
            }
            (tokens, n_computed.expect("it ends"))
        };
        let about = |seed| prompt(model, "what is", &Toy::Qwen2Vl.file(seed), "? it is a good question for a picture");
        let (first, n) = ask(&about(1), 6);
        assert_eq!(n as usize, about(1).n_tokens());
        // Long enough that the conversation has to be offloaded.
        for seed in 2..8 {
            let text: Vec<Token> = (0..200).map(|at| 3 + (at * seed) % 90).collect();
            ask(&Prompt::from_tokens(text), 2);
        }
        assert!(engine.stats().host_cache.n_offloaded > 0);
        let (again, n) = ask(&about(1), 6);
        assert_eq!((again, n), (first, 1), "all but the last token comes back");
    });
}
