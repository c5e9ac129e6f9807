//! Models of a million random weights in the formats with blocks of 256, for which the other toy models are too narrow.

use std::ffi::c_void;
use std::sync::Arc;
use std::{fs, ptr};

use llama_cpp_sys_2 as sys;

use super::gguf_writer::{Header, Tensor, TensorType, padding};
use super::tiny::{Chance, N_VOCAB, add_vocabulary, write_file};
use crate::config::{KernelChoice, ModelConfig};
use crate::llama::Model;

const N_EMBD: usize = 256;
const N_FF: usize = 512;
const N_KV: usize = 128;
const N_LAYER: usize = 2;
const N_EXPERTS: usize = 6;

/// The feed-forward part of a layer; the architecture is that of Llama and Mixtral.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layers {
    /// The same weights for every token.
    Dense,
    /// Two of six experts, selected per token.
    Experts,
}

/// Writes and loads such a model, with the file's weight layout on every processor; the file is deleted afterwards.
pub(super) fn quantised(layers: Layers) -> Arc<Model> {
    let header = header(layers);
    let mut bytes = header.to_bytes();
    let mut chance = Chance(2);
    for tensor in header.tensors() {
        add_weights(&mut bytes, tensor, &mut chance);
    }
    let path = write_file(&bytes, &format!("quantised-{layers:?}"));
    let model = Model::load(&ModelConfig { kernels: KernelChoice::Weft, ..ModelConfig::at(path.clone()) }, |_| ());
    fs::remove_file(&path).expect("it was just written");
    Arc::new(model.expect("the toy model loads"))
}

fn header(layers: Layers) -> Header {
    let mut header = Header::default();
    header.string("general.architecture", "llama");
    for (key, value) in [
        ("context_length", 4_096),
        ("embedding_length", 256),
        ("block_count", 2),
        ("feed_forward_length", 512),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("rope.dimension_count", 64),
        ("vocab_size", 259),
    ] {
        header.u32(&format!("llama.{key}"), value);
    }
    header.f32("llama.attention.layer_norm_rms_epsilon", 1e-6);
    if layers == Layers::Experts {
        header.u32("llama.expert_count", 6);
        header.u32("llama.expert_used_count", 2);
    }
    add_vocabulary(&mut header, "llama");
    let mut add = |name: String, dims: &[usize], kind| header.tensor(Tensor { name, dims: dims.to_vec(), kind });
    // Without a tensor named "output", llama.cpp multiplies by the embedding once more.
    add("token_embd.weight".into(), &[N_EMBD, N_VOCAB], TensorType::Q6K);
    add("output_norm.weight".into(), &[N_EMBD], TensorType::F32);
    for layer in 0..N_LAYER {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        add(name("attn_norm"), &[N_EMBD], TensorType::F32);
        add(name("attn_q"), &[N_EMBD, N_EMBD], TensorType::Q4K);
        add(name("attn_k"), &[N_EMBD, N_KV], TensorType::Q5K);
        add(name("attn_v"), &[N_EMBD, N_KV], TensorType::Q6K);
        add(name("attn_output"), &[N_EMBD, N_EMBD], TensorType::Q5K);
        add(name("ffn_norm"), &[N_EMBD], TensorType::F32);
        let (suffix, experts): (_, &[usize]) = match layers {
            Layers::Dense => ("", &[]),
            Layers::Experts => {
                add(name("ffn_gate_inp"), &[N_EMBD, N_EXPERTS], TensorType::F32);
                ("_exps", &[N_EXPERTS])
            }
        };
        add(name(&format!("ffn_gate{suffix}")), &[&[N_EMBD, N_FF], experts].concat(), TensorType::Q4K);
        add(name(&format!("ffn_up{suffix}")), &[&[N_EMBD, N_FF], experts].concat(), TensorType::Q5K);
        add(name(&format!("ffn_down{suffix}")), &[&[N_FF, N_EMBD], experts].concat(), TensorType::Q6K);
    }
    header
}

/// Adds the tensor's bytes: norms of 1, otherwise weights that preserve the magnitude of their input.
fn add_weights(bytes: &mut Vec<u8>, tensor: &Tensor, chance: &mut Chance) {
    let n_in = tensor.dims[0];
    let n_rows: usize = tensor.dims[1..].iter().product();
    #[expect(clippy::cast_precision_loss, reason = "toy models are narrow")]
    let largest = (3.0 / n_in as f32).sqrt();
    let is_norm = tensor.name.ends_with("norm.weight");
    let weights: Vec<f32> = (0..n_in * n_rows).map(|_| if is_norm { 1.0 } else { largest * chance.next() }).collect();
    let kind = match tensor.kind {
        TensorType::F32 => sys::GGML_TYPE_F32,
        TensorType::Q4K => sys::GGML_TYPE_Q4_K,
        TensorType::Q5K => sys::GGML_TYPE_Q5_K,
        TensorType::Q6K => sys::GGML_TYPE_Q6_K,
        TensorType::Q5_0 | TensorType::Q8_0 => unreachable!("no tensor here is in blocks of 32"),
    };
    let start = bytes.len();
    bytes.resize(start + tensor.n_bytes(), 0);
    let buffer = bytes[start..].as_mut_ptr().cast::<c_void>();
    let [n_rows, n_in] = [n_rows, n_in].map(|n| i64::try_from(n).expect("toy models are small"));
    // SAFETY: there are as many weights as the tensor has elements, and as many bytes as its format requires.
    let n_written = unsafe { sys::ggml_quantize_chunk(kind, weights.as_ptr(), buffer, 0, n_rows, n_in, ptr::null()) };
    assert_eq!(n_written, tensor.n_bytes());
    bytes.extend(padding(tensor.n_bytes()));
}
