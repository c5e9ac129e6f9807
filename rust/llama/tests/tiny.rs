//! Models of a few thousand random weights, one for each kind of memory that the demo model does not have.
//!
//! Their architectures are public ones at toy sizes; they generate noise, but forks and removals act on their memories as on those
//! of any model of the kind. The vocabulary is the 256 bytes.

use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, process};

use super::gguf_writer::{Header, Tensor, TensorType, padding};
use super::load;
use crate::llama::Model;

const N_EMBD: usize = 64;
const N_FF: usize = 128;
const N_LAYER: usize = 2;
/// Vocabulary size of every toy model: three control tokens, and the bytes.
pub(super) const N_VOCAB: usize = 3 + 256;

/// Kind of memory of a toy model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A recurrent state (Mamba).
    Recurrent,
    /// A recurrent state in the first layer, cells in the second (LFM2).
    Hybrid,
    /// Cells, where the first layer has a sliding window of [`N_SWA`] tokens (Gemma 2).
    Window,
    /// Cells, with multi-dimensional positions (Qwen2-VL).
    Grid,
}

/// The sliding window of [`Kind::Window`], in tokens.
pub(super) const N_SWA: u32 = 16;

/// Writes and loads the toy model of this kind; the file is deleted afterwards.
pub(super) fn tiny(kind: Kind) -> Arc<Model> {
    let path = write_tiny(kind);
    let model = load(&path);
    fs::remove_file(&path).expect("it was just written");
    Arc::new(model.expect("the toy model loads"))
}

pub(super) fn write_tiny(kind: Kind) -> PathBuf {
    write_tiny_with(kind, N_VOCAB, |header| add_vocabulary(header, "llama"))
}

/// Writes the toy model of this kind with another vocabulary, of `n_vocab` tokens.
pub(super) fn write_tiny_with(kind: Kind, n_vocab: usize, add_vocabulary: impl FnOnce(&mut Header)) -> PathBuf {
    let mut header = Header::default();
    add_metadata(&mut header, kind);
    add_vocabulary(&mut header);
    let matrix = |name: &str, dims: &[usize]| Tensor { name: name.to_owned(), dims: dims.to_vec(), kind: TensorType::F32 };
    header.tensor(matrix("token_embd.weight", &[N_EMBD, n_vocab]));
    header.tensor(matrix(if kind == Kind::Hybrid { "token_embd_norm.weight" } else { "output_norm.weight" }, &[N_EMBD]));
    for layer in 0..N_LAYER {
        for (name, dims) in layer_tensors(kind, layer) {
            header.tensor(matrix(&format!("blk.{layer}.{name}"), &dims));
        }
    }
    write(&header, &format!("{kind:?}"))
}

/// Writes a file with this architecture and tokenizer, and no tensors.
pub(super) fn write_hollow(architecture: &str, tokenizer: &str) -> PathBuf {
    let mut header = Header::default();
    header.string("general.architecture", architecture);
    add_vocabulary(&mut header, tokenizer);
    write(&header, architecture)
}

fn add_metadata(header: &mut Header, kind: Kind) {
    let architecture = match kind {
        Kind::Recurrent => "mamba",
        Kind::Hybrid => "lfm2",
        Kind::Window => "gemma2",
        Kind::Grid => "qwen2vl",
    };
    header.string("general.architecture", architecture);
    let key = |name: &str| format!("{architecture}.{name}");
    header.u32(&key("context_length"), 512);
    header.u32(&key("embedding_length"), 64);
    header.u32(&key("block_count"), 2);
    header.f32(&key("attention.layer_norm_rms_epsilon"), 1e-6);
    match kind {
        Kind::Recurrent => {
            header.u32(&key("feed_forward_length"), 0);
            header.u32(&key("attention.head_count"), 0);
            header.u32(&key("ssm.conv_kernel"), 4);
            header.u32(&key("ssm.inner_size"), 128);
            header.u32(&key("ssm.state_size"), 16);
            header.u32(&key("ssm.time_step_rank"), 4);
        }
        Kind::Hybrid => {
            header.u32(&key("feed_forward_length"), 128);
            header.u32(&key("attention.head_count"), 4);
            header.i32s(&key("attention.head_count_kv"), [0, 2].into_iter());
            header.u32(&key("shortconv.l_cache"), 3);
        }
        Kind::Grid => {
            header.u32(&key("feed_forward_length"), 128);
            header.u32(&key("attention.head_count"), 2);
            header.u32(&key("attention.head_count_kv"), 1);
            header.u32(&key("attention.key_length"), 32);
            header.u32(&key("attention.value_length"), 32);
            header.i32s(&key("rope.dimension_sections"), [4, 6, 6, 0].into_iter());
        }
        Kind::Window => {
            header.u32(&key("feed_forward_length"), 128);
            header.u32(&key("attention.head_count"), 2);
            header.u32(&key("attention.head_count_kv"), 1);
            header.u32(&key("attention.key_length"), 32);
            header.u32(&key("attention.value_length"), 32);
            header.u32(&key("attention.sliding_window"), N_SWA);
        }
    }
}

pub(super) fn add_vocabulary(header: &mut Header, tokenizer: &str) {
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let texts: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter().chain(bytes).collect();
    header.string("tokenizer.ggml.model", tokenizer);
    header.strings("tokenizer.ggml.tokens", texts.iter().map(String::as_str));
    header.f32s("tokenizer.ggml.scores", vec![0.0; N_VOCAB].into_iter());
    // llama.cpp's numbers: 2 is unknown, 3 control, 6 a byte.
    let kinds: Vec<i32> = [2, 3, 3].into_iter().chain([6; 256]).collect();
    header.i32s("tokenizer.ggml.token_type", kinds.into_iter());
}

/// Returns the tensors of one layer, by llama.cpp's names, fastest-varying dimension first.
fn layer_tensors(kind: Kind, layer: usize) -> Vec<(&'static str, Vec<usize>)> {
    let mut tensors = vec![("attn_norm.weight", vec![N_EMBD])];
    match (kind, layer) {
        (Kind::Recurrent, _) => tensors.extend([
            ("ssm_in.weight", vec![N_EMBD, 256]),
            ("ssm_conv1d.weight", vec![4, 128]),
            ("ssm_conv1d.bias", vec![128]),
            ("ssm_x.weight", vec![128, 4 + 2 * 16]),
            ("ssm_dt.weight", vec![4, 128]),
            ("ssm_dt.bias", vec![128]),
            ("ssm_a", vec![16, 128]),
            ("ssm_d", vec![128]),
            ("ssm_out.weight", vec![128, N_EMBD]),
        ]),
        (Kind::Hybrid, 0) => tensors.extend([
            ("shortconv.conv.weight", vec![3, N_EMBD]),
            ("shortconv.in_proj.weight", vec![N_EMBD, 3 * N_EMBD]),
            ("shortconv.out_proj.weight", vec![N_EMBD, N_EMBD]),
        ]),
        (Kind::Hybrid | Kind::Window | Kind::Grid, _) => tensors.extend([
            ("attn_q.weight", vec![N_EMBD, 64]),
            ("attn_k.weight", vec![N_EMBD, 32]),
            ("attn_v.weight", vec![N_EMBD, 32]),
            ("attn_output.weight", vec![64, N_EMBD]),
        ]),
    }
    if kind == Kind::Hybrid && layer == 1 {
        tensors.extend([("attn_q_norm.weight", vec![16]), ("attn_k_norm.weight", vec![16])]);
    }
    if kind == Kind::Grid {
        tensors.extend([("attn_q.bias", vec![64]), ("attn_k.bias", vec![32]), ("attn_v.bias", vec![32])]);
    }
    if kind == Kind::Window {
        tensors.extend([("post_attention_norm.weight", vec![N_EMBD]), ("post_ffw_norm.weight", vec![N_EMBD])]);
    }
    if kind != Kind::Recurrent {
        tensors.extend([
            ("ffn_norm.weight", vec![N_EMBD]),
            ("ffn_gate.weight", vec![N_EMBD, N_FF]),
            ("ffn_up.weight", vec![N_EMBD, N_FF]),
            ("ffn_down.weight", vec![N_FF, N_EMBD]),
        ]);
    }
    tensors
}

/// Writes the file with weights between −0.5 and 0.5, norms of 1, and Mamba's decay rates (`ssm_a`) so small that the state
/// persists.
pub(super) fn write(header: &Header, name: &str) -> PathBuf {
    let mut bytes = header.to_bytes();
    let mut chance = Chance(1);
    for tensor in header.tensors() {
        for _ in 0..tensor.n_bytes() / 4 {
            let weight = match tensor.name.as_str() {
                name if name.ends_with("ssm_a") => -0.01 * chance.next().abs(),
                name if name.ends_with("norm.weight") => 1.0,
                _ => 0.5 * chance.next(),
            };
            bytes.extend(weight.to_le_bytes());
        }
        bytes.extend(padding(tensor.n_bytes()));
    }
    write_file(&bytes, name)
}

/// Writes a file with a unique name.
pub(super) fn write_file(bytes: &[u8], name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("weft-{}-{:?}-{name}.gguf", process::id(), std::thread::current().id()));
    fs::write(&path, bytes).expect("the temporary folder is writable");
    path
}

/// Pseudo-random numbers: Knuth's linear congruential generator.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    /// Returns a number between −1 and 1.
    pub(super) fn next(&mut self) -> f32 {
        f32::from(i16::from_le_bytes(self.bits())) / 32_768.0
    }

    /// Returns an integer in `[0, n)`; `n` is at most 2¹⁶.
    pub(super) fn below(&mut self, n: usize) -> usize {
        usize::from(u16::from_le_bytes(self.bits())) % n
    }

    fn bits(&mut self) -> [u8; 2] {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        [self.0.to_le_bytes()[6], self.0.to_le_bytes()[7]]
    }
}
