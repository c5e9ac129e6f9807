//! A model of about half a billion parameters that needs no download: the shape of a small modern model, weights by chance.
//!
//! What it writes is noise, but each of its steps costs what a trained model of this shape costs, vocabulary included, so that it
//! measures everything but the quality of the text. Its tokenizer is whole: any text becomes tokens, and tokens become ASCII words
//! (a few, the byte pieces, become single bytes), so that the engine and the HTTP server run on it as on any other file.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use super::gguf::{Header, Tensor, TensorType, padding};

/// Changes whenever the weights would: the header carries it, and a file with another header is written anew.
const RECIPE: &str = "1";

// The shape: llama's architecture at the widths of the 0.5B models of 2024 and later. 494 million parameters, embedding tied.
const N_EMBD: usize = 896;
const N_LAYER: usize = 24;
const N_HEAD: usize = 14;
const N_HEAD_KV: usize = 2;
const N_FF: usize = 4864;
const N_VOCAB: usize = 151_936;
const N_CTX_TRAIN: u32 = 32_768;
const HEAD_DIM: usize = N_EMBD / N_HEAD;

/// Token types, by llama.cpp's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PieceType {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    Byte = 6,
}

/// One entry of the vocabulary. The tokenizer joins the neighbours whose joint piece scores highest.
struct Piece {
    text: String,
    score: f32,
    kind: PieceType,
}

/// Where the model lies: beside the other things that cargo builds.
#[must_use]
pub(crate) fn path() -> PathBuf {
    let target =
        Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("cargo's folder for temporary files lies in its target folder");
    target.join("bench-models").join("synthetic-0.5b-q8_0.gguf")
}

/// Writes the model to [`path`] unless it is there already.
///
/// # Errors
/// When the folder cannot be made or the file cannot be written; a half-written file never stays under the final name.
pub(crate) fn ensure() -> io::Result<PathBuf> {
    let path = path();
    let header = header();
    let bytes = header.to_bytes();
    let n_bytes = bytes.len() + header.tensors().iter().map(|tensor| padded_len(tensor.n_bytes())).sum::<usize>();
    if is_written(&path, &bytes, n_bytes as u64)? {
        return Ok(path);
    }
    fs::create_dir_all(path.parent().expect("the model lies in a folder"))?;
    let partial = path.with_extension(format!("partial-{}", std::process::id()));
    let written = write(&partial, &header, &bytes).and_then(|()| fs::rename(&partial, &path));
    if written.is_err() {
        // The error that matters is the one of the writing; the partial file may not even exist.
        let _ = fs::remove_file(&partial);
    }
    written.map(|()| path)
}

/// Whether `path` has the right length and starts with exactly this header.
fn is_written(path: &Path, header: &[u8], n_bytes: u64) -> io::Result<bool> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() != n_bytes {
        return Ok(false);
    }
    let mut found = vec![0; header.len()];
    file.read_exact(&mut found)?;
    Ok(found == header)
}

fn write(path: &Path, header: &Header, bytes: &[u8]) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    file.write_all(bytes)?;
    let mut random = Random(0x5EED);
    for tensor in header.tensors() {
        match tensor.kind {
            // Only norms are stored as floats; ones leave the normalised values as they are.
            TensorType::F32 => {
                for _ in 0..tensor.dims[0] {
                    file.write_all(&1_f32.to_le_bytes())?;
                }
            }
            TensorType::Q8_0 => write_blocks(&mut file, tensor, &mut random)?,
        }
        file.write_all(padding(tensor.n_bytes()))?;
    }
    file.into_inner()?.sync_all()
}

/// Fills a tensor with blocks of uniform bytes, scaled so that its products have the variance of their inputs.
///
/// Each layer then adds about as much to the residual stream as is in it, attention looks at many cells, and the logits spread by
/// about 3: neither a flat row nor a single candidate reaches the samplers.
fn write_blocks(file: &mut impl Write, tensor: &Tensor, random: &mut Random) -> io::Result<()> {
    let n_in = tensor.dims[0];
    let spread = if tensor.name == "token_embd.weight" { 3.0 } else { 1.0 };
    // 127 / √3 is the standard deviation of a uniform byte in −127..=127.
    let scale = f16_bits(spread / (n_in as f32).sqrt() / (127.0 / 3_f32.sqrt()));
    let n_blocks_per_row = n_in / 32;
    let mut row = vec![0_u8; TensorType::Q8_0.n_bytes(n_in)];
    for _ in 0..tensor.n_bytes() / row.len() {
        for block in row.chunks_exact_mut(34).take(n_blocks_per_row) {
            let (head, weights) = block.split_at_mut(2);
            head.copy_from_slice(&scale.to_le_bytes());
            for eight in weights.chunks_exact_mut(8) {
                eight.copy_from_slice(&random.next().to_le_bytes());
                // llama.cpp's quantizer never writes −128, and its kernels may rely on that.
                for weight in eight {
                    *weight = weight.cast_signed().max(-127).cast_unsigned();
                }
            }
        }
        file.write_all(&row)?;
    }
    Ok(())
}

fn header() -> Header {
    let mut header = Header::default();
    header.string("general.architecture", "llama");
    header.string("general.name", "Weft synthetic 0.5B");
    header.string("general.description", "random weights for benchmarks; what it writes is noise");
    header.string("weft.synthetic.recipe", RECIPE);
    header.u32("general.file_type", 7); // mostly Q8_0
    header.u32("general.quantization_version", 2);
    header.u32("llama.context_length", N_CTX_TRAIN);
    header.u32("llama.embedding_length", u32_of(N_EMBD));
    header.u32("llama.block_count", u32_of(N_LAYER));
    header.u32("llama.feed_forward_length", u32_of(N_FF));
    header.u32("llama.attention.head_count", u32_of(N_HEAD));
    header.u32("llama.attention.head_count_kv", u32_of(N_HEAD_KV));
    header.f32("llama.attention.layer_norm_rms_epsilon", 1e-6);
    header.u32("llama.rope.dimension_count", u32_of(HEAD_DIM));
    header.f32("llama.rope.freq_base", 1e6);
    header.u32("llama.vocab_size", u32_of(N_VOCAB));
    add_vocabulary(&mut header);
    add_tensors(&mut header);
    header
}

fn add_vocabulary(header: &mut Header) {
    let pieces = pieces();
    header.string("tokenizer.ggml.model", "llama");
    header.strings("tokenizer.ggml.tokens", pieces.iter().map(|piece| piece.text.as_str()));
    header.f32s("tokenizer.ggml.scores", pieces.iter().map(|piece| piece.score));
    header.i32s("tokenizer.ggml.token_type", pieces.iter().map(|piece| piece.kind as i32));
    header.u32("tokenizer.ggml.unknown_token_id", 0);
    header.u32("tokenizer.ggml.bos_token_id", 1);
    header.u32("tokenizer.ggml.eos_token_id", 2);
    header.bool("tokenizer.ggml.add_bos_token", true);
    header.bool("tokenizer.ggml.add_space_prefix", true);
}

/// The vocabulary: three special pieces, 256 byte pieces, every printable ASCII character, then "words" of one to four letters, each
/// with and without a space (`▁`) before it. Every prefix of a word is a word too, so that joining neighbours can reach all of them.
fn pieces() -> Vec<Piece> {
    let special = [("<unk>", PieceType::Unknown), ("<s>", PieceType::Control), ("</s>", PieceType::Control)];
    let special = special.map(|(text, kind)| (text.to_owned(), kind)).into_iter();
    let bytes = (0..=u8::MAX).map(|byte| (format!("<0x{byte:02X}>"), PieceType::Byte));
    let characters = ('!'..='~').filter(|character| !character.is_ascii_lowercase()).chain(['▁']);
    let characters = characters.map(|character| (character.to_string(), PieceType::Normal));
    let words = (1..).map(word).flat_map(|word| [format!("▁{word}"), word]).map(|text| (text, PieceType::Normal));
    let all = special.chain(bytes).chain(characters).chain(words).take(N_VOCAB);
    all.enumerate()
        .map(|(id, (text, kind))| {
            // As SentencePiece does: special pieces score 0, and earlier pieces more than later ones.
            let score = if kind == PieceType::Normal { -(id as f32) } else { 0.0 };
            Piece { text, score, kind }
        })
        .collect()
}

/// The word of this number, which starts at 1: `a` to `z`, `aa` to `zz`, and on (numbers written with the digits 1 to 26).
fn word(mut number: usize) -> String {
    let mut letters = Vec::new();
    while number > 0 {
        number -= 1;
        letters.push(char::from(b"abcdefghijklmnopqrstuvwxyz"[number % 26]));
        number /= 26;
    }
    letters.into_iter().rev().collect()
}

fn add_tensors(header: &mut Header) {
    let norm = |name: String| Tensor { name, dims: vec![N_EMBD], kind: TensorType::F32 };
    let matrix = |name: String, n_in, n_out| Tensor { name, dims: vec![n_in, n_out], kind: TensorType::Q8_0 };
    // Without a tensor named "output", llama.cpp multiplies by the embedding once more.
    header.tensor(matrix("token_embd.weight".into(), N_EMBD, N_VOCAB));
    header.tensor(norm("output_norm.weight".into()));
    for layer in 0..N_LAYER {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        header.tensor(norm(name("attn_norm")));
        header.tensor(matrix(name("attn_q"), N_EMBD, N_EMBD));
        header.tensor(matrix(name("attn_k"), N_EMBD, N_HEAD_KV * HEAD_DIM));
        header.tensor(matrix(name("attn_v"), N_EMBD, N_HEAD_KV * HEAD_DIM));
        header.tensor(matrix(name("attn_output"), N_EMBD, N_EMBD));
        header.tensor(norm(name("ffn_norm")));
        header.tensor(matrix(name("ffn_gate"), N_EMBD, N_FF));
        header.tensor(matrix(name("ffn_up"), N_EMBD, N_FF));
        header.tensor(matrix(name("ffn_down"), N_FF, N_EMBD));
    }
}

/// The bits of the 16-bit float below `value`, which lies in the range of its normal numbers (IEEE 754, binary16).
fn f16_bits(value: f32) -> u16 {
    assert!((6.2e-5..6.5e4).contains(&value), "{value} is no normal 16-bit float");
    // Between the formats the exponent's bias differs by 112 and the fraction by 13 bits.
    let bits = (value.to_bits() >> 13) - (112 << 10);
    u16::try_from(bits).expect("the exponent of a normal 16-bit float has five bits")
}

/// `splitmix64` (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }
}

fn padded_len(n_bytes: usize) -> usize {
    n_bytes + padding(n_bytes).len()
}

fn u32_of(size: usize) -> u32 {
    u32::try_from(size).expect("the model's sizes are small")
}
