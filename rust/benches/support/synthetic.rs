//! Models that need no download: the shapes of small modern models, weights by chance.
//!
//! What they write is noise, but each of their steps costs what a trained model of the shape costs, vocabulary included, so that
//! they measure everything but the quality of the text. Their tokenizer is whole: any text becomes tokens, and tokens become ASCII
//! words (a few, the byte pieces, become single bytes), so that the engine and the HTTP server run on them as on any other file.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use super::gguf::{Header, Tensor, TensorType, padding};
use super::vocabulary;
use super::weights::{self, Random};

/// Changes whenever the weights would: the header carries it, and a file with another header is written anew.
const RECIPE: &str = "2";

/// How the matrices are stored, by the names that llama.cpp's tools give to these mixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mix {
    Q8_0,
    Q4KM,
}

/// A model of llama's architecture, its embedding tied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Synthetic {
    /// Its file name without the extension.
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

/// The same. Blocks of 256 do not fit a width of 896, so that most of it is in blocks of 32, as in the published files.
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

/// All of them.
pub(crate) const ALL: [Synthetic; 3] = [HALF_Q8_0, HALF_Q4_K_M, ONE_Q4_K_M];

const N_CTX_TRAIN: u32 = 32_768;

impl Synthetic {
    /// Where the model lies: beside the other things that cargo builds.
    #[must_use]
    pub(crate) fn path(&self) -> PathBuf {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .parent()
            .expect("cargo's folder for temporary files lies in its target folder");
        target.join("bench-models").join(format!("{}.gguf", self.name))
    }

    /// Writes the model to [`Synthetic::path`] unless it is there already.
    ///
    /// # Errors
    /// When the folder cannot be made or the file cannot be written; a half-written file never stays under the final name.
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
            // The error that matters is the one of the writing; the partial file may not even exist.
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
        // Without a tensor named "output", llama.cpp multiplies by the embedding once more.
        header.tensor(matrix("token_embd.weight".into(), n_embd, self.n_vocab, self.kind(n_embd, true)));
        header.tensor(norm("output_norm.weight".into()));
        for layer in 0..n_layer {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let dear = |n_in| self.kind(n_in, has_more_bits(layer, n_layer));
            header.tensor(norm(name("attn_norm")));
            header.tensor(matrix(name("attn_q"), n_embd, n_embd, usual(n_embd)));
            header.tensor(matrix(name("attn_k"), n_embd, n_kv, usual(n_embd)));
            header.tensor(matrix(name("attn_v"), n_embd, n_kv, dear(n_embd)));
            header.tensor(matrix(name("attn_output"), n_embd, n_embd, usual(n_embd)));
            header.tensor(norm(name("ffn_norm")));
            header.tensor(matrix(name("ffn_gate"), n_embd, n_ff, usual(n_embd)));
            header.tensor(matrix(name("ffn_up"), n_embd, n_ff, usual(n_embd)));
            header.tensor(matrix(name("ffn_down"), n_ff, n_embd, dear(n_ff)));
        }
    }

    /// How a matrix of so many columns is stored, and one that the mix gives more bits; as `llama-quantize` chooses, which takes
    /// blocks of 32 where those of 256 do not fit (`tensor_type_fallback` in llama-quant.cpp).
    fn kind(&self, n_in: usize, has_more_bits: bool) -> TensorType {
        match (self.mix, has_more_bits, n_in.is_multiple_of(256)) {
            (Mix::Q8_0, ..) | (Mix::Q4KM, true, false) => TensorType::Q8_0,
            (Mix::Q4KM, true, true) => TensorType::Q6K,
            (Mix::Q4KM, false, true) => TensorType::Q4K,
            (Mix::Q4KM, false, false) => TensorType::Q5_0,
        }
    }
}

/// Whether `Q4_K_M` gives more bits to V and to the way out of this layer (`use_more_bits` in llama-quant.cpp).
fn has_more_bits(layer: usize, n_layer: usize) -> bool {
    let eighth = n_layer / 8;
    layer < eighth || layer >= 7 * n_layer / 8 || (layer - eighth) % 3 == 2
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
        if tensor.kind == TensorType::F32 {
            // Only norms are stored as floats; ones leave the normalised values as they are.
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
