//! A loaded GGUF file: its vocabulary, its metadata, its weights.

use std::ffi::c_char;
use std::fmt;
use std::io;
use std::path::Path;

use llama_cpp_2::model::LlamaModel;
use llama_cpp_sys_2 as sys;

use crate::config::{KvType, MediaConfig, ModelConfig, ModelFacts, Placement, Pooling, WeightLayout};
use crate::error::{Error, Result};
use crate::llama::adapters::{self, Adapter};
use crate::llama::backend::backend;
use crate::llama::gguf::Metadata;
use crate::llama::grammar::Grammars;
use crate::llama::identity::{Identity, ModelFiles, changed};
use crate::llama::kernels::coverage;
use crate::llama::kv_overrides::KvOverrides;
use crate::llama::kv_size::KvShape;
use crate::llama::media::Projector;
use crate::llama::tensor_overrides::TensorOverrides;
use crate::llama::tokenizer::Tokenizer;
use crate::llama::vocabulary::Vocabulary;
use crate::llama::{kinds, load, memory};
use crate::request::{AdapterScale, MEDIA_MARKER, SharedConstraint, Token, Trigger, is_of_medium};

/// A loaded model. Every method may be called from any thread.
pub struct Model {
    config: ModelConfig,
    weights: WeightLayout,
    files: ModelFiles,
    inner: LlamaModel,
    /// Read once: making a context may change llama.cpp's own number (`YaRN`).
    n_ctx_train: u32,
    metadata: Vec<(String, String)>,
    overrides: KvOverrides,
    architecture: String,
    vocabulary: Vocabulary,
    tokenizer: Tokenizer,
    kv_shape: KvShape,
    /// Whether it has a classifier that scores a text.
    has_head: bool,
    has_dense_layers: bool,
    /// Whether each position that it was trained on has a vector of its own.
    has_position_table: bool,
    grammars: Grammars,
    /// They belong to `inner`.
    adapters: Vec<Adapter>,
    projector: Option<Projector>,
}

impl Model {
    /// Loads the file that `config` names. `progress` hears the fraction that is loaded, from 0 to 1, on this thread; it must not
    /// panic. Blocks until all is read.
    ///
    /// # Errors
    /// [`Error::ModelLoad`] says what is wrong with the file; [`Error::InvalidConfig`] what is wrong with an adapter or a
    /// projector.
    pub fn load(config: &ModelConfig, progress: impl FnMut(f32) + Send + 'static) -> Result<Self> {
        let refuse = |reason: String| Error::ModelLoad { path: config.path.clone(), reason };
        config.media.as_ref().map_or(Ok(()), MediaConfig::validate)?;
        backend();
        let file = Metadata::open(&config.path).map_err(refuse)?;
        kinds::check_file(&config.path, &file).map_err(refuse)?;
        let files = load::all_parts(config, file);
        let weights = config.weights(&load::facts(config, &files));
        let overrides = KvOverrides::read(&config.overrides, &files[0])?;
        let tensors = TensorOverrides::read(&config.placement, &files)?;
        let inner = load::load(config, weights, &overrides, tensors.as_ref(), progress).map_err(refuse)?;
        let mut model = Self::read(config.clone(), weights, inner, &files, overrides).map_err(refuse)?;
        // SAFETY: the model is alive, and nobody else knows it yet.
        model.adapters = unsafe { adapters::load(model.as_ptr(), &files, &config.adapters, model.is_encoder()) }?;
        if let Some(media) = &config.media {
            // SAFETY: the model is alive, and drops the projector with itself.
            model.projector = Some(unsafe { Projector::load(media, model.as_ptr(), model.n_embd_in()) }?);
        }
        Ok(model)
    }

    /// Refuses what can neither continue a text nor make a vector of it, and reads what is asked for often.
    fn read(
        config: ModelConfig,
        weights: WeightLayout,
        inner: LlamaModel,
        parts: &[Metadata],
        overrides: KvOverrides,
    ) -> std::result::Result<Self, String> {
        let mut metadata = read_metadata(raw(&inner));
        overrides.put_into(&mut metadata);
        let value = |key: &str| metadata.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
        let architecture = value("general.architecture").unwrap_or_default().to_owned();
        kinds::check_model(raw(&inner), &architecture)?;

        // SAFETY: the model is alive, and its vocabulary is its own.
        let vocabulary = unsafe { Vocabulary::read(sys::llama_model_get_vocab(raw(&inner))) }?;
        let kind = value("tokenizer.ggml.model").unwrap_or_default();
        let splitter = value("tokenizer.ggml.pre").unwrap_or_default();
        // SAFETY: as above, and the vocabulary was found to be one that can read every text.
        let tokenizer =
            unsafe { Tokenizer::read(sys::llama_model_get_vocab(raw(&inner)), kind, splitter, vocabulary.adds_special()) }?;
        let number = |name: &str| value(&format!("{architecture}.{name}")).and_then(|text| text.parse().ok());
        let array = |name: &str| parts[0].u32_array(&format!("{architecture}.{name}"));
        let kv_shape = if inner.is_recurrent() {
            KvShape { n_query_heads: 0, n_heads: Vec::new(), key_length: 0, value_length: 0 }
        } else {
            KvShape::read(inner.n_layer(), inner.n_embd().unsigned_abs(), number, array)
        };
        let n_ctx_train = inner.n_ctx_train();
        let n_parts = value("split.count").and_then(|text| text.parse().ok()).unwrap_or(1);
        let files = ModelFiles::of(&config.path, n_parts).map_err(|error| error.to_string())?;
        let has_any = |names: &[&str]| parts.iter().any(|part| names.iter().any(|name| part.has_tensor(name)));
        let has_head = has_any(&["cls.weight", "cls.output.weight"]);
        let has_dense_layers = has_any(&["dense_2.weight", "dense_2.bias", "dense_3.weight"]);
        Ok(Self {
            config,
            weights,
            files,
            inner,
            n_ctx_train,
            metadata,
            overrides,
            architecture,
            vocabulary,
            tokenizer,
            kv_shape,
            has_head,
            has_dense_layers,
            has_position_table: parts.iter().any(|part| part.has_tensor("position_embd.weight")),
            grammars: Grammars::default(),
            adapters: Vec::new(),
            projector: None,
        })
    }

    /// # Errors
    /// [`Error::ModelLoad`] of a model whose weights were not loaded.
    pub(super) fn check_weights(&self) -> Result<()> {
        if self.config.vocabulary_only {
            let reason = "only its vocabulary was loaded, which continues no text".to_owned();
            return Err(Error::ModelLoad { path: self.config.path.clone(), reason });
        }
        Ok(())
    }

    /// The adapters that were loaded beside it, in the order of the configuration, by which they are known.
    #[must_use]
    pub fn adapters(&self) -> &[Adapter] {
        &self.adapters
    }

    /// The adapters that are on where nobody says otherwise, each with its scale.
    pub(super) fn default_adapters(&self) -> Vec<AdapterScale> {
        (0..).zip(&self.adapters).map(|(id, adapter)| (id, adapter.scale)).collect()
    }

    /// What reads pictures and sounds for it.
    #[must_use]
    pub fn projector(&self) -> Option<&Projector> {
        self.projector.as_ref()
    }

    /// Numbers of the vectors that may stand in place of tokens.
    pub(super) fn n_embd_in(&self) -> usize {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_embd_inp(self.as_ptr()) }.unsigned_abs() as usize
    }

    /// Positions of a vector that stands in place of a token: 4 where rows and columns are counted.
    pub(super) fn n_positions(&self) -> usize {
        // SAFETY: the model is alive.
        let kind = unsafe { sys::llama_model_rope_type(self.as_ptr()) };
        if [sys::LLAMA_ROPE_TYPE_MROPE, sys::LLAMA_ROPE_TYPE_IMROPE].contains(&kind) { 4 } else { 1 }
    }

    /// The file, as it was named.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.config.path
    }

    /// `general.name` of the metadata.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.value("general.name")
    }

    /// Architecture, size and quantization in a few words of llama.cpp's: `llama 0.5B Q8_0`.
    #[must_use]
    pub fn description(&self) -> String {
        // SAFETY: the model is alive, and llama.cpp writes at most the given number of bytes.
        read_string(|buffer, size| unsafe { sys::llama_model_desc(self.as_ptr(), buffer, size) }).unwrap_or_default()
    }

    /// `general.architecture` of the metadata.
    #[must_use]
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Tokens of context that the model was trained on.
    #[must_use]
    pub fn n_ctx_train(&self) -> u32 {
        self.n_ctx_train
    }

    /// Size of the vocabulary, which is the length of a row of logits.
    #[must_use]
    pub fn n_vocab(&self) -> usize {
        self.vocabulary.n_vocab()
    }

    /// Width of the model.
    #[must_use]
    pub fn n_embd(&self) -> u32 {
        self.inner.n_embd().unsigned_abs()
    }

    /// Layers of the model.
    #[must_use]
    pub fn n_layer(&self) -> u32 {
        self.inner.n_layer()
    }

    /// Parameters.
    #[must_use]
    pub fn n_params(&self) -> u64 {
        self.inner.n_params()
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.inner.size()
    }

    /// llama.cpp's number of the kind of tokenizer: 1 is `SentencePiece` BPE, 2 byte-level BPE.
    #[must_use]
    pub fn vocab_type(&self) -> u32 {
        // SAFETY: the vocabulary lives as long as the model.
        unsafe { sys::llama_vocab_type(self.vocab()) }
    }

    /// The token that begins a text.
    #[must_use]
    pub fn bos_token(&self) -> Option<Token> {
        // SAFETY: the vocabulary lives as long as the model.
        some_token(unsafe { sys::llama_vocab_bos(self.vocab()) })
    }

    /// The token that ends a text.
    #[must_use]
    pub fn eos_token(&self) -> Option<Token> {
        // SAFETY: the vocabulary lives as long as the model.
        some_token(unsafe { sys::llama_vocab_eos(self.vocab()) })
    }

    /// The token that ends a turn of a chat.
    #[must_use]
    pub fn eot_token(&self) -> Option<Token> {
        // SAFETY: the vocabulary lives as long as the model.
        some_token(unsafe { sys::llama_vocab_eot(self.vocab()) })
    }

    /// The chat template, in Jinja.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        self.value("tokenizer.chat_template")
    }

    /// Every key of the file's metadata with its value as text, arrays left out; what a user has replaced is as the user says.
    #[must_use]
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    /// The tokens of `text`, which need not be UTF-8. `add_special` adds BOS and EOS where the vocabulary asks for them;
    /// `parse_special` reads the spelling of a control token as that token.
    ///
    /// # Errors
    /// With the vocabularies that find words by regular expressions, [`Error::InvalidRequest`] for a text with more than 262,144
    /// characters of one kind in a row, and [`Error::NotSupported`] where there is no memory for the stack that a long run needs.
    /// [`Error::Cancelled`] once the [cancellation](crate::cancellation) that is active on this thread was triggered; it is checked
    /// between chunks, which only texts of `SentencePiece` and BPE vocabularies are cut into.
    ///
    /// # Panics
    /// If `text` is 2 GiB long or longer.
    pub fn tokenize(&self, text: &[u8], add_special: bool, parse_special: bool) -> Result<Vec<Token>> {
        // SAFETY: the tokenizer was read from this model's vocabulary.
        unsafe { self.tokenizer.tokenize(self.vocab(), text, add_special, parse_special) }
    }

    /// The tokens of `text` where it goes on after others: without BOS and EOS, and without the space that some vocabularies put
    /// before a text. `parse_special` is as of [`Model::tokenize`]. What stands on both sides of the seam stays two tokens, also
    /// where a text of both would have one.
    ///
    /// # Errors
    /// As [`Model::tokenize`].
    ///
    /// # Panics
    /// As [`Model::tokenize`].
    pub fn tokenize_on(&self, text: &[u8], parse_special: bool) -> Result<Vec<Token>> {
        // A byte that no text has, and that is merged with nothing: where a space comes before a text, it comes before that.
        const GUARD: u8 = 1;
        let guard = self.tokenize(&[GUARD], false, parse_special)?;
        let opens_with_space =
            guard.first().and_then(|&first| self.vocabulary.spelling(first)).is_some_and(|piece| piece.starts_with(b" "));
        if opens_with_space {
            let guarded = self.tokenize(&[&[GUARD], text].concat(), false, parse_special)?;
            if let Some(tokens) = guarded.strip_prefix(&guard[..]) {
                return Ok(tokens.to_vec());
            }
        }
        self.tokenize(text, false, parse_special)
    }

    /// Most bytes of a text that become one token, so that a text of `n` bytes is at least `n` / `longest_piece` tokens. `None`
    /// where there is no such bound: some vocabularies leave out white space, or make one token of any word that they do not know.
    #[must_use]
    pub fn longest_piece(&self) -> Option<usize> {
        self.tokenizer.longest_piece()
    }

    /// A number of tokens that `text` has at least, found in one pass over it: also where [`Model::longest_piece`] is `None`, for
    /// vocabularies that leave out white space beside some special tokens, and for `WordPiece`, by its words. 0 where nothing is
    /// known: with Unigram, and where not every byte has a token.
    #[must_use]
    pub fn least_tokens(&self, text: &[u8]) -> usize {
        self.tokenizer.least_tokens(text)
    }

    /// The spellings of `tokens`, one after the other, those of control tokens included. Where the vocabulary puts a space before
    /// a text, that space is there. With a projector, the places of a medium, which have ids below 0, are one [`MEDIA_MARKER`].
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] names a token outside of the vocabulary.
    pub fn detokenize(&self, tokens: &[Token]) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        let mut before = 0;
        for &token in tokens {
            // The ids of one medium's places go down one by one.
            let is_another = token.checked_add(1) != Some(before);
            before = token;
            if is_of_medium(token) && self.projector().is_some() {
                text.extend_from_slice(if is_another { MEDIA_MARKER.as_bytes() } else { b"" });
                continue;
            }
            text.extend_from_slice(self.piece(token).ok_or_else(|| Error::InvalidRequest {
                param: "tokens",
                message: format!("token {token} is outside of the vocabulary of {} pieces", self.n_vocab()),
            })?);
        }
        Ok(text)
    }

    /// The bytes that `token` is spelt with, control tokens too; perhaps no whole character. `None` outside of the vocabulary.
    #[must_use]
    pub fn piece(&self, token: Token) -> Option<&[u8]> {
        self.vocabulary.spelling(token)
    }

    /// The bytes that `token` adds to a text: none for a control token. `None` outside of the vocabulary.
    #[must_use]
    pub fn text_piece(&self, token: Token) -> Option<&[u8]> {
        self.vocabulary.text(token)
    }

    /// Whether `token` ends a text.
    #[must_use]
    pub fn is_end(&self, token: Token) -> bool {
        self.vocabulary.is_end(token)
    }

    /// Every token that ends a text, in order.
    #[must_use]
    pub fn end_tokens(&self) -> &[Token] {
        self.vocabulary.end_tokens()
    }

    /// Every token that has a spelling but is no part of a text, in order: what `parse_special` reads as tokens.
    #[must_use]
    pub fn control_tokens(&self) -> Vec<Token> {
        self.vocabulary.control_tokens().collect()
    }

    /// Tokens that the model asks never to draw.
    #[must_use]
    pub fn suppressed_tokens(&self) -> &[Token] {
        self.vocabulary.suppressed_tokens()
    }

    /// The grammar of this text in GBNF, which begins with the rule `root`. The last ones are kept. For what is read, and what is
    /// refused, see [`crate::grammar`].
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] says what is wrong with it, in which line and column.
    pub fn grammar(&self, text: &str) -> Result<SharedConstraint> {
        self.grammars.of_text(self, text)
    }

    /// The grammar of the JSON that fits this JSON schema, given as text. The last ones are kept.
    ///
    /// All that it asks for is held to; a schema of which something cannot be is refused. What fits and is not drawn is named by
    /// [`crate::grammar::to_gbnf`].
    ///
    /// Its size is bounded by the numbers in [`crate::grammar`].
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] says what is wrong with it, or cannot be held to, in which line and column.
    pub fn json_schema(&self, text: &str) -> Result<SharedConstraint> {
        self.grammars.of_schema(self, text)
    }

    /// `constraint`, which begins with the first of these triggers. As in llama-server, a word that is one token of the vocabulary is
    /// that token, and must be one of `preserved`.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for such a token that is not, and for what [`Triggers`](crate::grammar::Triggers) refuses.
    pub fn lazy(&self, constraint: SharedConstraint, triggers: &[Trigger], preserved: &[Token]) -> Result<SharedConstraint> {
        self.grammars.lazy(self, constraint, triggers, preserved)
    }

    /// Bytes of the pool that one token takes, estimated from the metadata; 0 for a model that keeps none.
    #[must_use]
    pub fn kv_bytes_per_token(&self, type_k: KvType, type_v: KvType) -> u64 {
        if self.is_encoder() {
            return 0;
        }
        self.kv_shape.bytes_per_token(type_k, type_v)
    }

    /// What [`crate::config::EngineConfig::settle`] needs to know of the model.
    #[must_use]
    pub fn facts(&self, type_k: KvType, type_v: KvType) -> ModelFacts {
        ModelFacts {
            n_ctx_train: self.n_ctx_train,
            kv_bytes_per_token: self.kv_bytes_per_token(type_k, type_v),
            keeps_whole_states: self.is_recurrent() || self.is_hybrid(),
            n_heads: self.kv_shape.n_query_heads,
        }
    }

    /// How the weights lie that the CPU computes with.
    #[must_use]
    pub fn weights(&self) -> WeightLayout {
        self.weights
    }

    /// Whether the weights could lie otherwise too, see [`ModelConfig::is_layout_open`], and there is memory for a copy of them.
    #[must_use]
    pub fn is_layout_open(&self) -> bool {
        let facts = |file: Metadata| load::facts(&self.config, &load::all_parts(&self.config, file));
        let is_open = |file: Metadata| self.config.is_layout_open(&facts(file));
        Metadata::open(self.path()).is_ok_and(is_open) && self.size_bytes() <= memory::free_bytes(self, true)
    }

    /// Whether our attention covers the model's heads with a cache of these formats.
    pub(super) fn is_attention_covered(&self, type_k: KvType, type_v: KvType) -> bool {
        // llama.cpp never lets Grok have flash attention, which is what ours takes the place of.
        self.architecture != "grok" && coverage::covers_attention(&self.kv_shape, type_k, type_v)
    }

    /// Whether the model keeps a state in place of cells (Mamba, RWKV).
    #[must_use]
    pub fn is_recurrent(&self) -> bool {
        self.inner.is_recurrent()
    }

    /// Whether some layers keep a state and some keep cells.
    #[must_use]
    pub fn is_hybrid(&self) -> bool {
        self.inner.is_hybrid()
    }

    /// Whether the model only reads texts: it makes vectors of them, and continues none.
    #[must_use]
    pub fn is_encoder(&self) -> bool {
        kinds::is_encoder(&self.architecture, self.value(&format!("{}.attention.causal", self.architecture)))
    }

    /// What becomes of the vectors of a text's tokens where nobody says: as the file says, else their mean.
    #[must_use]
    pub fn pooling(&self) -> Pooling {
        let kept = self.value(&format!("{}.pooling_type", self.architecture));
        let kept = kept.and_then(Pooling::numbered).filter(|pooling| *pooling != Pooling::Rank || self.has_head);
        kept.unwrap_or(Pooling::Mean)
    }

    /// Whether the model has a classifier that scores a text.
    #[must_use]
    pub fn has_head(&self) -> bool {
        self.has_head
    }

    /// Whether layers compute an embedding from what the rows of a text are pooled to.
    pub(super) fn has_dense_layers(&self) -> bool {
        self.has_dense_layers
    }

    /// Whether each position that it was trained on has a vector of its own.
    pub(super) fn has_position_table(&self) -> bool {
        self.has_position_table
    }

    /// Numbers of a vector with this pooling.
    pub(super) fn vector_width(&self, pooling: Pooling) -> usize {
        // SAFETY: the model is alive.
        let (n_out, n_scores) =
            unsafe { (sys::llama_model_n_embd_out(self.as_ptr()), sys::llama_model_n_cls_out(self.as_ptr())) };
        if pooling == Pooling::Rank { n_scores as usize } else { n_out.unsigned_abs() as usize }
    }

    /// How far back the layers with a sliding window look, in tokens; 0 for a model without.
    #[must_use]
    pub fn n_swa(&self) -> u32 {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_n_swa(self.as_ptr()) }.unsigned_abs()
    }

    /// What tells these weights, with the metadata that they were loaded with, from all others; see [`ModelFiles::identity`].
    ///
    /// # Errors
    /// If the files cannot be read any more, or have changed since they were loaded.
    pub(super) fn identity(&self) -> io::Result<Identity> {
        Ok(changed(self.files.identity()?, &self.overrides.in_words()))
    }

    /// How many layers were asked to go to the GPU; `None` is all.
    pub(super) fn n_gpu_layers(&self) -> Option<u32> {
        self.config.n_gpu_layers
    }

    /// Which devices were to hold what.
    pub(super) fn placement(&self) -> &Placement {
        &self.config.placement
    }

    /// llama.cpp's pointer, valid while `self` lives.
    pub(super) fn as_ptr(&self) -> *mut sys::llama_model {
        raw(&self.inner)
    }

    #[cfg(test)]
    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    #[cfg(test)]
    pub(super) fn tokenizer_mut(&mut self) -> &mut Tokenizer {
        &mut self.tokenizer
    }

    /// llama.cpp's pointer to the vocabulary, valid while `self` lives.
    pub(super) fn vocab(&self) -> *const sys::llama_vocab {
        // SAFETY: the model is alive.
        unsafe { sys::llama_model_get_vocab(self.as_ptr()) }
    }

    /// The text of a key of the metadata.
    pub(super) fn value(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("config", &self.config).field("architecture", &self.architecture).finish_non_exhaustive()
    }
}

/// The pointer inside of `model`, which its crate keeps private.
fn raw(model: &LlamaModel) -> *mut sys::llama_model {
    // SAFETY: `LlamaModel` is `repr(transparent)` over `Ptr`, which is `repr(transparent)` over `NonNull<llama_model>`, so it has
    // the layout of a pointer. The copy is only used while `model` lives.
    unsafe { std::mem::transmute_copy::<LlamaModel, *mut sys::llama_model>(model) }
}

/// llama.cpp says "none" with a negative token.
pub(super) fn some_token(token: sys::llama_token) -> Option<Token> {
    (token >= 0).then_some(token)
}

fn read_metadata(model: *const sys::llama_model) -> Vec<(String, String)> {
    // SAFETY: the caller holds the model; llama.cpp writes at most the given number of bytes.
    let n = unsafe { sys::llama_model_meta_count(model) };
    (0..n)
        .filter_map(|i| {
            // SAFETY: as above, and `i` is below the count.
            let key = read_string(|buffer, size| unsafe { sys::llama_model_meta_key_by_index(model, i, buffer, size) })?;
            // SAFETY: as above.
            let value = read_string(|buffer, size| unsafe { sys::llama_model_meta_val_str_by_index(model, i, buffer, size) })?;
            Some((key, value))
        })
        .collect()
}

/// Reads a string that llama.cpp writes as `snprintf` does: into a buffer of a given size, returning the length it would have.
fn read_string(write: impl Fn(*mut c_char, usize) -> i32) -> Option<String> {
    let mut buffer = vec![0_u8; 256];
    loop {
        let length = usize::try_from(write(buffer.as_mut_ptr().cast::<c_char>(), buffer.len())).ok()?;
        if length < buffer.len() {
            buffer.truncate(length);
            return Some(String::from_utf8_lossy(&buffer).into_owned());
        }
        buffer = vec![0; length + 1];
    }
}
