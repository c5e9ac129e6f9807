//! Models that need no download: shapes of small modern models, with random weights.
//!
//! Their output is noise, but each of their steps costs as much as in a trained model of this shape, vocabulary included, so
//! that they measure everything but the quality of the text. Their tokenizer is complete: any text can be tokenized, and tokens
//! decode to ASCII words (a few, the byte pieces, to single bytes), so that the engine and the HTTP server run with them as
//! with any other file.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use super::gguf::{Header, Tensor, TensorType, padding};
use super::vocabulary;
use super::weights::{self, Random};

/// Version of the weights: the header contains it, and a file with another header is rewritten.
const RECIPE: &str = "2";

/// Storage format of the matrices, by llama.cpp's names of these mixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mix {
    Q8_0,
    Q4KM,
}

/// A model of llama's architecture with a tied embedding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Synthetic {
    /// The file name without its extension.
    name: &'static str,
    mix: Mix,
    n_embd: usize,
    n_layer: usize,
    n_head: usize,
    n_head_kv: usize,
    n_ff: usize,
    n_vocab: usize,
}

/// The widths of the 0.5B models of 2024 and later: 494 million parameters.
pub(crate) const HALF_Q8_0: Synthetic = Synthetic {
    name: "synthetic-0.5b-q8_0",
    mix: Mix::Q8_0,
    n_embd: 896,
    n_layer: 24,
    n_head: 14,
    n_head_kv: 2,
    n_ff: 4_864,
    n_vocab: 151_936,
};

/// The same model. Blocks of 256 do not fit a width of 896, so that most of it is in blocks of 32, as in the published files.
pub(crate) const HALF_Q4_K_M: Synthetic = Synthetic { name: "synthetic-0.5b-q4_k_m", mix: Mix::Q4KM, ..HALF_Q8_0 };

/// Wide enough for the K-quants: 1.04 billion parameters.
pub(crate) const ONE_Q4_K_M: Synthetic = Synthetic {
    name: "synthetic-1b-q4_k_m",
    mix: Mix::Q4KM,
    n_embd: 2_048,
    n_layer: 16,
    n_head: 32,
    n_head_kv: 8,
    n_ff: 8_192,
    n_vocab: 32_000,
};

/// The widths and the vocabulary of Llama 3.2 1B: 1.24 billion parameters.
pub(crate) const ONE_WITH_LARGE_VOCABULARY: Synthetic =
    Synthetic { name: "synthetic-1.2b-q4_k_m", n_vocab: 128_256, ..ONE_Q4_K_M };

/// All synthetic models of the benchmark of decoding.
pub(crate) const ALL: [Synthetic; 3] = [HALF_Q8_0, HALF_Q4_K_M, ONE_Q4_K_M];

const N_CTX_TRAIN: u32 = 32_768;

impl Synthetic {
    /// Returns the path of the model, in cargo's target folder.
    #[must_use]
    pub(crate) fn path(&self) -> PathBuf {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .parent()
            .expect("cargo's folder for temporary files lies in its target folder");
        target.join("bench-models").join(format!("{}.gguf", self.name))
    }

    /// Writes the model to [`Synthetic::path`] unless it exists.
    ///
    /// # Errors
    /// A message, if the folder or the file cannot be written; a partial file never has the final name.
    pub(crate) fn ensure(&self) -> Result<PathBuf, String> {
        self.try_ensure().map_err(|error| format!("cannot write {}: {error}", self.path().display()))
    }

    fn try_ensure(&self) -> io::Result<PathBuf> {
        let path = self.path();
        let header = self.header();
        let bytes = header.to_bytes();
        let n_bytes = bytes.len() + header.tensors().iter().map(|tensor| padded_len(tensor.n_bytes())).sum::<usize>();
        if is_written(&path, &bytes, n_bytes as u64)? {
            return Ok(path);
        }
        fs::create_dir_all(path.parent().expect("the model lies in a folder"))?;
        let partial = path.with_extension(format!("partial-{}", std::process::id()));
        let written = write(&partial, &header, &bytes).and_then(|()| fs::rename(&partial, &path));
        if written.is_err() {
            // The write error is reported; the partial file may not even exist.
            let _ = fs::remove_file(&partial);
        }
        written.map(|()| path)
    }

    fn header(&self) -> Header {
        let mut header = Header::default();
        header.string("general.architecture", "llama");
        header.string("general.name", self.name);
        header.string("general.description", "random weights for benchmarks; what it writes is noise");
        header.string("weft.synthetic.recipe", RECIPE);
        header.u32("general.file_type", if self.mix == Mix::Q8_0 { 7 } else { 15 });
        header.u32("general.quantization_version", 2);
        header.u32("llama.context_length", N_CTX_TRAIN);
        header.u32("llama.embedding_length", u32_of(self.n_embd));
        header.u32("llama.block_count", u32_of(self.n_layer));
        header.u32("llama.feed_forward_length", u32_of(self.n_ff));
        header.u32("llama.attention.head_count", u32_of(self.n_head));
        header.u32("llama.attention.head_count_kv", u32_of(self.n_head_kv));
        header.f32("llama.attention.layer_norm_rms_epsilon", 1e-6);
        header.u32("llama.rope.dimension_count", u32_of(self.n_embd / self.n_head));
        header.f32("llama.rope.freq_base", 1e6);
        header.u32("llama.vocab_size", u32_of(self.n_vocab));
        vocabulary::add(&mut header, self.n_vocab);
        self.add_tensors(&mut header);
        header
    }

    fn add_tensors(&self, header: &mut Header) {
        let &Self { n_embd, n_ff, n_layer, .. } = self;
        let n_kv = n_embd / self.n_head * self.n_head_kv;
        let norm = |name: String| Tensor { name, dims: vec![n_embd], kind: TensorType::F32 };
        let matrix = |name: String, n_in, n_out, kind| Tensor { name, dims: vec![n_in, n_out], kind };
        let usual = |n_in| self.kind(n_in, false);
        // Without a tensor named "output", llama.cpp uses the embedding as output matrix.
        header.tensor(matrix("token_embd.weight".into(), n_embd, self.n_vocab, self.kind(n_embd, true)));
        header.tensor(norm("output_norm.weight".into()));
        for layer in 0..n_layer {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let larger = |n_in| self.kind(n_in, has_more_bits(layer, n_layer));
            header.tensor(norm(name("attn_norm")));
            header.tensor(matrix(name("attn_q"), n_embd, n_embd, usual(n_embd)));
            header.tensor(matrix(name("attn_k"), n_embd, n_kv, usual(n_embd)));
            header.tensor(matrix(name("attn_v"), n_embd, n_kv, larger(n_embd)));
            header.tensor(matrix(name("attn_output"), n_embd, n_embd, usual(n_embd)));
            header.tensor(norm(name("ffn_norm")));
            header.tensor(matrix(name("ffn_gate"), n_embd, n_ff, usual(n_embd)));
            header.tensor(matrix(name("ffn_up"), n_embd, n_ff, usual(n_embd)));
            header.tensor(matrix(name("ffn_down"), n_ff, n_embd, larger(n_ff)));
        }
    }

    /// Returns the format of a matrix with `n_in` columns, and of a matrix with more bits in the mix; as `llama-quantize`
    /// chooses, which uses blocks of 32 where blocks of 256 do not fit (`tensor_type_fallback` in llama-quant.cpp).
    fn kind(&self, n_in: usize, has_more_bits: bool) -> TensorType {
        match (self.mix, has_more_bits, n_in.is_multiple_of(256)) {
            (Mix::Q8_0, ..) | (Mix::Q4KM, true, false) => TensorType::Q8_0,
            (Mix::Q4KM, true, true) => TensorType::Q6K,
            (Mix::Q4KM, false, true) => TensorType::Q4K,
            (Mix::Q4KM, false, false) => TensorType::Q5_0,
        }
    }
}

/// Returns true if `Q4_K_M` gives more bits to V and to the down projection of this layer (`use_more_bits` in llama-quant.cpp).
fn has_more_bits(layer: usize, n_layer: usize) -> bool {
    let eighth = n_layer / 8;
    layer < eighth || layer >= 7 * n_layer / 8 || (layer - eighth) % 3 == 2
}

/// Returns true if `path` has the right length and starts with exactly this header.
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
        if tensor.kind == TensorType::F32 {
            // Only norms are stored as floats; ones leave the normalised values unchanged.
            for _ in 0..tensor.dims[0] {
                file.write_all(&1_f32.to_le_bytes())?;
            }
        } else {
            weights::write(&mut file, tensor, &mut random)?;
        }
        file.write_all(padding(tensor.n_bytes()))?;
    }
    file.into_inner()?.sync_all()
}

fn padded_len(n_bytes: usize) -> usize {
    n_bytes + padding(n_bytes).len()
}

fn u32_of(size: usize) -> u32 {
    u32::try_from(size).expect("the model's sizes are small")
}
