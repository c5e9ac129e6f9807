//! Tests adapters on the demo model: results as llama.cpp's, and files for which it would end the process.

use std::path::{Path, PathBuf};
use std::{fs, process};

use llama_cpp_sys_2 as sys;

use super::embeddings::{cosine, embed_tokens, worker_with};
use super::gguf_writer::{Header, Tensor, TensorType, padding};
use super::runner::prompt;
use super::tiny::{Chance, Kind, write_tiny};
use super::{demo_path, load};
use crate::config::{AdapterConfig, EngineConfig, ModelConfig, Pooling};
use crate::engine::runner::{AdapterSet, DecodeError, DefaultAdapters, KvSeqId, Plan, Runner};
use crate::error::Error;
use crate::llama::context::batch::rows_of;
use crate::llama::{LlamaRunner, Model, PrefixFiles, resolve};
use crate::request::{AdapterScale, SavedPrefix, SavedRun, Token};

/// Tolerance of logits of one text in two batch shapes; the adapters here change them by ten times as much.
const TOLERANCE: f32 = 0.25;

const N_EMBD: usize = 192;

/// Metadata and tensors of a toy adapter.
struct Toy {
    header: Header,
    seed: u64,
}

impl Toy {
    fn new(architecture: &str) -> Self {
        let mut header = Header::default();
        header.string("general.type", "adapter");
        header.string("adapter.type", "lora");
        header.string("general.architecture", architecture);
        header.f32("adapter.lora.alpha", 8.0);
        Self { header, seed: 1 }
    }

    /// Adds a change of rank 4 of a matrix of this size.
    fn change(mut self, name: &str, n_in: usize, n_out: usize) -> Self {
        self = self.half(&format!("{name}.lora_a"), &[n_in, 4]);
        self.half(&format!("{name}.lora_b"), &[4, n_out])
    }

    fn half(mut self, name: &str, dims: &[usize]) -> Self {
        self.header.tensor(Tensor { name: name.to_owned(), dims: dims.to_vec(), kind: TensorType::F32 });
        self
    }

    fn write(&self, name: &str) -> PathBuf {
        let mut bytes = self.header.to_bytes();
        let mut chance = Chance(self.seed);
        for tensor in self.header.tensors() {
            for _ in 0..tensor.n_bytes() / 4 {
                bytes.extend((0.1 * chance.next()).to_le_bytes());
            }
            bytes.extend(padding(tensor.n_bytes()));
        }
        let thread = std::thread::current().id();
        let path = std::env::temp_dir().join(format!("weft-lora-{}-{thread:?}-{name}.gguf", process::id()));
        fs::write(&path, bytes).expect("the temporary folder is writable");
        path
    }
}

/// Changes queries, values and outputs of the first layers.
fn toy(seed: u64) -> Toy {
    let toy = (0..3).fold(Toy::new("llama"), |toy, layer| {
        toy.change(&format!("blk.{layer}.attn_q.weight"), N_EMBD, N_EMBD)
            .change(&format!("blk.{layer}.attn_v.weight"), N_EMBD, 64)
            .change(&format!("blk.{layer}.ffn_down.weight"), 512, N_EMBD)
    });
    Toy { seed, ..toy }
}

fn load_with(adapters: &[&Path]) -> Result<Model, Error> {
    let adapters = adapters.iter().map(|path| AdapterConfig { path: path.to_path_buf(), scale: 1.0 }).collect();
    Model::load(&ModelConfig { adapters, ..ModelConfig::at(demo_path()) }, |_| ())
}

/// The demo model with two toy adapters.
fn adapted() -> (std::sync::Arc<Model>, [PathBuf; 2]) {
    let paths = [toy(1).write("one"), toy(2).write("two")];
    let model = load_with(&[&paths[0], &paths[1]]).expect("both are adapters of the demo model");
    (std::sync::Arc::new(model), paths)
}

fn start(model: &std::sync::Arc<Model>) -> LlamaRunner {
    let config = EngineConfig { n_slots: Some(4), n_ctx: Some(1024), n_threads: Some(1), ..EngineConfig::default() };
    let config = resolve(model, &config, None).expect("it fits");
    LlamaRunner::new(std::sync::Arc::clone(model), &config).expect("the demo model runs")
}

fn decode(runner: &mut LlamaRunner, id: u16, position: u32, tokens: &[Token], adapters: &[AdapterScale]) -> Vec<f32> {
    let variant = AdapterSet::with_adapters(adapters.iter().copied());
    runner.decode(&Plan { adapter_set: variant, ..rows_of(KvSeqId(id), position, tokens) }).expect("the plan is valid");
    runner.logits(tokens.len() - 1).to_vec()
}

fn most_likely(logits: &[f32]) -> Token {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("there are tokens");
    Token::try_from(best).expect("a token")
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Returns the logits after a prompt and after each of `n` greedy tokens.
fn ours(runner: &mut LlamaRunner, id: u16, tokens: &[Token], adapters: &[AdapterScale], n: usize) -> Vec<Vec<f32>> {
    let mut rows = vec![decode(runner, id, 0, tokens, adapters)];
    for i in 0..n {
        let position = u32::try_from(tokens.len() + i).expect("small");
        let next = most_likely(&rows[i]);
        rows.push(decode(runner, id, position, &[next], adapters));
    }
    rows
}

/// Creates a bare llama.cpp context with its own kernels and the parameters set by `change`. The caller frees it, before the model.
unsafe fn bare(model: &Model, change: impl FnOnce(&mut sys::llama_context_params)) -> *mut sys::llama_context {
    // SAFETY: plain data.
    let mut params = unsafe { sys::llama_context_default_params() };
    (params.n_ctx, params.n_batch, params.n_ubatch) = (512, 512, 512);
    (params.n_threads, params.n_threads_batch) = (1, 1);
    change(&mut params);
    // SAFETY: the model is alive.
    let context = unsafe { sys::llama_init_from_model(model.as_ptr(), params) };
    assert!(!context.is_null());
    context
}

/// Loads the adapter in a file, which `model` frees.
unsafe fn adapter_of(model: &Model, path: &Path) -> *mut sys::llama_adapter_lora {
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
    // SAFETY: the model is alive, and the name is NUL-terminated.
    let adapter = unsafe { sys::llama_adapter_lora_init(model.as_ptr(), name.as_ptr()) };
    assert!(!adapter.is_null());
    adapter
}

type FileScale<'a> = (&'a Path, f32);

/// Does the same in a bare llama.cpp context with its own kernels, where the files at `adapters` are set directly.
fn theirs(tokens: &[Token], adapters: &[FileScale], n: usize) -> Vec<Vec<f32>> {
    theirs_from(0, tokens, adapters, n)
}

/// Does the same, but sets the adapters after the first `n_before` tokens.
fn theirs_from(n_before: usize, tokens: &[Token], adapters: &[FileScale], n: usize) -> Vec<Vec<f32>> {
    let model = load(&demo_path()).expect("the demo model loads");
    let n_vocab = model.n_vocab();
    // SAFETY: the model outlives the context, which is freed here; each batch has as many tokens as it states.
    unsafe {
        let context = bare(&model, |_| ());
        let mut raws: Vec<_> = adapters.iter().map(|(file, _)| adapter_of(&model, file)).collect();
        let mut scales: Vec<f32> = adapters.iter().map(|(_, scale)| *scale).collect();
        let mut before = tokens[..n_before].to_vec();
        if n_before > 0 {
            let batch = sys::llama_batch_get_one(before.as_mut_ptr(), i32::try_from(n_before).expect("small"));
            assert_eq!(sys::llama_decode(context, batch), 0);
        }
        sys::llama_set_adapters_lora(context, raws.as_mut_ptr(), raws.len(), scales.as_mut_ptr());
        let mut rows: Vec<Vec<f32>> = Vec::new();
        let mut next = tokens[n_before..].to_vec();
        for _ in 0..=n {
            let batch = sys::llama_batch_get_one(next.as_mut_ptr(), i32::try_from(next.len()).expect("small"));
            assert_eq!(sys::llama_decode(context, batch), 0);
            let logits = std::slice::from_raw_parts(sys::llama_get_logits_ith(context, -1), n_vocab).to_vec();
            next = vec![most_likely(&logits)];
            rows.push(logits);
        }
        sys::llama_free(context);
        rows
    }
}

#[test]
fn logits_and_greedy_texts_match_llama_cpp_with_the_same_adapters() {
    let (model, [one, two]) = adapted();
    let mut runner = start(&model);
    let tokens = prompt(60);
    let base = theirs(&tokens, &[], 16);
    // All cases use one context in sequence, so that adapters that are not removed would show.
    let sets: [(&[AdapterScale], &[FileScale]); 4] = [
        (&[(0, 1.0)], &[(&one, 1.0)]),
        (&[], &[]),
        (&[(1, 0.5), (0, 1.0)], &[(&one, 1.0), (&two, 0.5)]),
        (&[(1, -1.0), (0, 0.0)], &[(&two, -1.0)]),
    ];
    for (id, (adapters, files)) in (0..).zip(sets) {
        let (found, expected) = (ours(&mut runner, id, &tokens, adapters, 16), theirs(&tokens, files, 16));
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let distance = distance(found, expected);
            assert!(distance < TOLERANCE, "{adapters:?}: the logits of token {i} differ by {distance}");
            assert_eq!(most_likely(found), most_likely(expected), "{adapters:?}: token {i}");
        }
        let changed = distance(&expected[0], &base[0]);
        assert!(adapters.is_empty() || changed > 1.0, "{adapters:?} change the logits by {changed} alone");
    }
}

#[test]
fn an_activated_adapter_matches_a_context_that_switches_at_its_invocation() {
    let mut toy = toy(1);
    toy.header.u32s("adapter.alora.invocation_tokens", [5, 6].into_iter());
    let path = toy.write("activated");
    let model = std::sync::Arc::new(load_with(&[&path]).expect("it is an adapter of the demo model"));
    let mut runner = start(&model);
    assert_eq!((runner.invocation(0), &model.adapters()[0].invocation[..]), (&[5, 6][..], &[5, 6][..]));

    let tokens = prompt(60);
    let invoked_at = 37;
    decode(&mut runner, 0, 0, &tokens[..37], &[]);
    let mut found = vec![decode(&mut runner, 0, invoked_at, &tokens[37..], &[(0, 1.0)])];
    for position in 60..76 {
        let next = most_likely(found.last().expect("there is one"));
        found.push(decode(&mut runner, 0, position, &[next], &[(0, 1.0)]));
    }
    let expected = theirs_from(37, &tokens, &[(&path, 1.0)], 16);
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let distance = distance(found, expected);
        assert!(distance < TOLERANCE, "the logits of token {i} differ by {distance}");
        assert_eq!(most_likely(found), most_likely(expected), "token {i}");
    }
    let whole = theirs(&tokens, &[(&path, 1.0)], 0);
    assert!(distance(&expected[0], &whole[0]) > 2.0 * TOLERANCE, "it is not as if it counted from the beginning");
    fs::remove_file(path).expect("it was just written");
}

/// A scale that changes embeddings by more than rounding does.
const STRONG: f32 = 4.0;

/// Returns the rows of a text's tokens from a bare llama.cpp context, where the adapter at `path` is set after the first `place`
/// tokens.
fn their_rows(tokens: &[Token], path: &Path, n_before: usize) -> Vec<Vec<f32>> {
    let model = load(&demo_path()).expect("the demo model loads");
    // SAFETY: the model outlives the context, which is freed here; each batch has as many tokens as it states.
    unsafe {
        let context = bare(&model, |params| (params.embeddings, params.pooling_type) = (true, sys::LLAMA_POOLING_TYPE_NONE));
        let mut adapter = adapter_of(&model, path);
        let mut rows = Vec::new();
        let parts = [(tokens[..n_before].to_vec(), 0.0), (tokens[n_before..].to_vec(), STRONG)];
        for (mut part, mut scale) in parts.into_iter().filter(|(part, _)| !part.is_empty()) {
            assert_eq!(sys::llama_set_adapters_lora(context, &raw mut adapter, 1, &raw mut scale), 0);
            let n = i32::try_from(part.len()).expect("small");
            assert_eq!(sys::llama_decode(context, sys::llama_batch_get_one(part.as_mut_ptr(), n)), 0);
            let row = |i| std::slice::from_raw_parts(sys::llama_get_embeddings_ith(context, i), N_EMBD).to_vec();
            rows.extend((0..n).map(row));
        }
        sys::llama_free(context);
        rows
    }
}

#[test]
fn embeddings_use_an_activated_adapter_from_its_invocation_on() {
    let mut toy = toy(1);
    toy.header.u32s("adapter.alora.invocation_tokens", [5, 6].into_iter());
    let path = toy.write("activated-vectors");
    let model = std::sync::Arc::new(load_with(&[&path]).expect("it is an adapter of the demo model"));
    let plain = prompt(50);
    let invoking = [plain.clone(), vec![5, 6], prompt(20)].concat();
    let (with, without) = (their_rows(&invoking, &path, 50), their_rows(&plain, &path, 50));
    #[expect(clippy::cast_precision_loss, reason = "there are few rows")]
    let mean = |rows: &[Vec<f32>]| -> Vec<f32> {
        (0..N_EMBD).map(|i| rows.iter().map(|row| row[i]).sum::<f32>() / rows.len() as f32).collect()
    };
    for pooling in [Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last] {
        let pooled = |rows: &[Vec<f32>]| match pooling {
            Pooling::Mean => mean(rows),
            Pooling::Cls => rows[0].clone(),
            Pooling::Last => rows[rows.len() - 1].clone(),
            _ => rows.concat(),
        };
        let worker = worker_with(&model, pooling, DefaultAdapters::new(vec![(0, STRONG)].into()));
        let texts = [invoking.clone(), plain.clone(), invoking.clone()];
        let found = embed_tokens(&worker, &texts).expect("the texts are short");
        for (i, expected) in [&with, &without, &with].into_iter().enumerate() {
            let numbers = &found.numbers[found.starts[i] * N_EMBD..found.starts[i + 1] * N_EMBD];
            let similarity = cosine(numbers, &pooled(expected));
            assert!(similarity > 0.9995, "{pooling:?} of text {i}: {similarity}");
        }
        let whole = their_rows(&invoking, &path, 0);
        let similarity = cosine(&pooled(&whole), &pooled(&with));
        assert!(similarity < 0.99, "{pooling:?}: it is not as if it counted from the beginning: {similarity}");
    }
    fs::remove_file(path).expect("it was just written");
}

#[test]
fn a_scale_of_0_is_bit_identical_to_the_model() {
    let (model, _) = adapted();
    let mut runner = start(&model);
    let tokens = prompt(60);
    let base = ours(&mut runner, 0, &tokens, &[], 4);
    let other = ours(&mut runner, 1, &tokens, &[(0, 1.0)], 4);
    let off = ours(&mut runner, 2, &tokens, &[(0, 0.0), (1, -0.0)], 4);
    assert_eq!(off, base);
    assert_ne!(other, base);
    assert_eq!(ours(&mut runner, 3, &tokens, &[(0, 1.0)], 4), other, "and the adapter can be activated again");
}

#[test]
fn our_kernels_compute_adapters_so_that_texts_are_repeatable() {
    let (model, _) = adapted();
    let mut runner = start(&model);
    let plain = crate::llama::tests::demo();
    assert_eq!(runner.is_repeatable(), start(&plain).is_repeatable());
    if !runner.is_repeatable() {
        // Weights for which llama.cpp's own kernels are faster here.
        return;
    }
    let tokens = prompt(60);
    let whole = decode(&mut runner, 0, 0, &tokens, &[(0, 1.0), (1, 0.5)]);
    decode(&mut runner, 1, 0, &tokens[..23], &[(0, 1.0), (1, 0.5)]);
    let cut = decode(&mut runner, 1, 23, &tokens[23..], &[(0, 1.0), (1, 0.5)]);
    assert_eq!(whole, cut, "whatever rows a decode has");
}

#[test]
fn an_adapter_that_is_not_loaded_is_rejected() {
    let (model, _) = adapted();
    let mut runner = start(&model);
    let plan = Plan { adapter_set: AdapterSet::with_adapters([(2, 1.0)]), ..rows_of(KvSeqId(0), 0, &prompt(4)) };
    let Err(DecodeError { reason }) = runner.decode(&plan) else { panic!("adapter 2 is none of the 2") };
    assert_eq!(reason, "invalid plan: adapter 2 with scale 1; there are 2 adapters, and scales must be finite");
}

#[test]
fn files_that_do_not_fit_the_model_are_rejected_by_name() {
    let matrix = "blk.0.attn_q.weight";
    let with = |change: fn(&mut Header)| {
        let mut toy = Toy::new("llama").change("blk.0.attn_q.weight", N_EMBD, N_EMBD);
        change(&mut toy.header);
        toy
    };
    let without = |set: &[(&str, &str)]| {
        let mut header = Header::default();
        for (key, value) in set {
            header.string(key, value);
        }
        Toy { header, seed: 1 }.change("blk.0.attn_q.weight", N_EMBD, N_EMBD)
    };
    let cases: Vec<(Toy, &str)> = vec![
        (
            Toy::new("qwen2").change(matrix, N_EMBD, N_EMBD),
            "trained for the architecture \"qwen2\", and this model has \"llama\"",
        ),
        (without(&[("general.architecture", "llama")]), "its general.type is \"\", not \"adapter\""),
        (without(&[("general.type", "adapter"), ("adapter.type", "ia3")]), "its adapter.type is \"ia3\", not \"lora\""),
        (Toy::new("llama"), "it contains no pair of"),
        (
            Toy::new("llama").half(&format!("{matrix}.lora_a"), &[N_EMBD, 4]),
            "the .lora_a or the .lora_b of blk.0.attn_q.weight is missing",
        ),
        (Toy::new("llama").half(matrix, &[N_EMBD, 4]), "neither a .lora_a nor a .lora_b"),
        (Toy::new("llama").change("blk.9.attn_q.weight", N_EMBD, N_EMBD), "which this model does not have"),
        (Toy::new("llama").change(matrix, N_EMBD, 64), "does not fit that matrix (192 × 192 × 1 × 1)"),
        (Toy::new("llama").change(matrix, 64, N_EMBD), "does not fit that matrix"),
        (
            // llama.cpp checks only the first two sizes, and would end the process at the first token.
            Toy::new("llama")
                .half(&format!("{matrix}.lora_a"), &[N_EMBD, 4, 2])
                .half(&format!("{matrix}.lora_b"), &[4, N_EMBD, 3]),
            "does not fit that matrix",
        ),
        (
            Toy::new("llama").half("token_embd.weight.lora_a", &[4, 2048]).half("token_embd.weight.lora_b", &[4, N_EMBD]),
            "which this model uses for both input and output",
        ),
        (with(|header| header.i32s("adapter.alora.invocation_tokens", [5, 6].into_iter())), "invalid gguf element type"),
        (
            with(|header| header.u32s("adapter.alora.invocation_tokens", [5, 2048].into_iter())),
            "token 2048 of its invocation is not in the vocabulary (2048 tokens)",
        ),
        (
            {
                let mut header = Header::default();
                header.string("general.type", "adapter");
                header.string("adapter.type", "lora");
                header.string("general.architecture", "llama");
                header.string("adapter.lora.alpha", "8");
                Toy { header, seed: 1 }.change(matrix, N_EMBD, N_EMBD)
            },
            "its adapter.lora.alpha must be a finite 32-bit float",
        ),
    ];
    for (i, (toy, words)) in cases.iter().enumerate() {
        let path = toy.write(&format!("bad-{i}"));
        let error = load_with(&[&path]).expect_err(words);
        let Error::InvalidConfig { param: "lora", message } = &error else { panic!("{error:?}") };
        assert!(message.starts_with(&format!("cannot load the adapter {}: ", path.display())), "{message}");
        assert!(message.contains(words), "{message} lacks {words}");
        fs::remove_file(path).expect("it was just written");
    }
}

#[test]
fn missing_damaged_and_model_files_are_rejected() {
    let whole = fs::read(toy(1).write("whole")).expect("it was just written");
    let path = std::env::temp_dir().join(format!("weft-lora-{}-damaged.gguf", process::id()));
    let refusal = |path: &Path| load_with(&[path]).expect_err("it is no adapter").to_string();
    assert!(refusal(Path::new("/nowhere.gguf")).contains("there is no such file"));
    assert!(refusal(Path::new("/dev/null")).contains("it is not a regular file"));
    assert!(refusal(&demo_path()).contains("it is not a LoRA adapter"));
    for n_kept in [0, 3, 100, whole.len() / 2, whole.len() - 40] {
        fs::write(&path, &whole[..n_kept]).expect("the folder is writable");
        let reason = refusal(&path);
        assert!(reason.starts_with("cannot load the adapter"), "{n_kept} bytes: {reason}");
    }
    // The process survives damaged files: 300 files with one wrong byte before the tensor data.
    let mut chance = Chance(3);
    let n_header = whole.len() - toy(1).header.tensors().iter().map(Tensor::n_bytes).sum::<usize>();
    for _ in 0..300 {
        let mut damaged = whole.clone();
        damaged[chance.below(n_header)] = u8::try_from(chance.below(256)).expect("a byte");
        fs::write(&path, &damaged).expect("the folder is writable");
        if let Ok(model) = load_with(&[&path]) {
            start(&std::sync::Arc::new(model));
        }
    }
    fs::remove_file(path).expect("it was just written");
}

#[test]
fn every_kind_of_memory_supports_adapters() {
    for (kind, architecture) in [(Kind::Hybrid, "lfm2"), (Kind::Window, "gemma2")] {
        let base = write_tiny(kind);
        let adapter = Toy::new(architecture).change("blk.1.ffn_down.weight", 128, 64).write(architecture);
        let adapters = vec![AdapterConfig { path: adapter, scale: 1.0 }];
        let model = Model::load(&ModelConfig { adapters, ..ModelConfig::at(base) }, |_| ()).expect("it is its adapter");
        let mut runner = start(&std::sync::Arc::new(model));
        let tokens: Vec<Token> = (3..43).collect();
        let base = decode(&mut runner, 0, 0, &tokens, &[]);
        let changed = decode(&mut runner, 1, 0, &tokens, &[(0, 50.0)]);
        assert!(distance(&base, &changed) > 0.0, "{kind:?}");
    }
}

#[test]
fn a_prefix_file_names_the_adapters_that_it_was_computed_with() {
    let (model, [one, two]) = adapted();
    let config = resolve(&model, &EngineConfig::default(), None).expect("it fits");
    let folder = std::env::temp_dir().join(format!("weft-lora-{}-prefixes", process::id()));
    fs::create_dir_all(&folder).expect("the temporary folder is writable");
    let path = folder.join("prefix");
    let files = PrefixFiles::new(std::sync::Arc::clone(&model), &config);
    let run = SavedRun { range: 0..3, bytes: vec![1, 2, 3].into() };
    let saved =
        SavedPrefix { tokens: vec![5, 6, 7], runs: vec![run], adapters: vec![(0, 1.0), (1, 0.5)], ..SavedPrefix::default() };
    files.write(&path, &saved).expect("the folder is writable");
    assert_eq!(files.read(&path).expect("it was just written").0, saved);
    let activated = SavedPrefix { invoked_at: Some(2), ..saved.clone() };
    files.write(&path, &activated).expect("the folder is writable");
    assert_eq!(files.read(&path).expect("it was just written").0, activated);

    let prefix_files = |adapters: &[&Path]| {
        let model = load_with(adapters).expect("they are adapters");
        PrefixFiles::new(std::sync::Arc::new(model), &config).read(&path)
    };
    let (turned, _) = prefix_files(&[&two, &one]).expect("both are there");
    assert_eq!(turned.adapters, [(1, 1.0), (0, 0.5)], "adapters are identified by their contents, not by their index");
    let refusal = prefix_files(&[&one]).expect_err("the second is not there").to_string();
    assert!(refusal.contains("computed with an adapter that is not loaded here"), "{refusal}");
    fs::remove_dir_all(folder).expect("it was just written");
}
