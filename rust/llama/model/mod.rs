//! A loaded GGUF file: vocabulary, metadata and weights.

pub(in crate::llama) mod adapters;
pub(in crate::llama) mod gguf;
pub(in crate::llama) mod identity;
pub(in crate::llama) mod kinds;
pub(in crate::llama) mod kv_overrides;
pub(in crate::llama) mod load;
pub(in crate::llama) mod raw_model;
pub(in crate::llama) mod rope;
pub(in crate::llama) mod tensor_overrides;

use std::ffi::c_char;
use std::fmt;
use std::io;
use std::path::Path;

use llama_cpp_sys_2 as sys;

use crate::config::{EngineConfig, KvType, MediaConfig, ModelConfig, ModelInfo, Pooling, WeightLayout};
use crate::error::{Error, Result};
use crate::llama::context::{kv_size::KvShape, memory};
use crate::llama::model::identity::{Identity, ModelFiles, with_change};
use crate::llama::model::raw_model::RawModel;
use crate::llama::model::{adapters::Adapter, gguf::Metadata, kv_overrides::KvOverrides, tensor_overrides::TensorOverrides};
use crate::llama::vocabulary::{Vocabulary, grammar::Grammars, raw_vocab::RawVocab, tokenizer::Tokenizer};
use crate::llama::{backend::backend, kernels::coverage, media::Projector};
use crate::request::{MEDIA_MARKER, SharedConstraint, Token, Trigger, is_of_medium};

/// A loaded model. Every method may be called from any thread.
pub struct Model {
    pub(in crate::llama) config: ModelConfig,
    weights: WeightLayout,
    files: ModelFiles,
    inner: RawModel,
    /// Read once, because creating a context may change llama.cpp's own value (`YaRN`).
    n_ctx_train: u32,
    metadata: Vec<(String, String)>,
    overrides: KvOverrides,
    architecture: String,
    vocabulary: Vocabulary,
    tokenizer: Tokenizer,
    kv_shape: KvShape,
    has_classifier: bool,
    pub(in crate::llama) has_dense_layers: bool,
    pub(in crate::llama) has_position_table: bool,
    grammars: Grammars,
    /// They belong to `inner`.
    adapters: Vec<Adapter>,
    projector: Option<Projector>,
}

impl Model {
    /// `progress` receives the loaded fraction, from 0 to 1, on this thread; it must not panic.
    ///
    /// # Errors
    /// [`Error::ModelLoad`] for the file; [`Error::InvalidConfig`] for an adapter or a projector.
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
        // SAFETY: the model is alive, and not shared yet.
        model.adapters = unsafe { adapters::load(model.as_ptr(), &files, &config.adapters, model.is_encoder()) }?;
        if let Some(media) = &config.media {
            // SAFETY: the model is alive, and drops the projector with itself.
            model.projector = Some(unsafe { Projector::load(media, model.as_ptr(), model.n_embd_in()) }?);
        }
        Ok(model)
    }

    fn read(
        config: ModelConfig,
        weights: WeightLayout,
        inner: RawModel,
        parts: &[Metadata],
        overrides: KvOverrides,
    ) -> std::result::Result<Self, String> {
        let mut metadata = read_metadata(inner.as_ptr());
        overrides.apply_to(&mut metadata);
        let value = |key: &str| metadata.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
        let architecture = value("general.architecture").unwrap_or_default().to_owned();
        kinds::check_model(&inner, &architecture)?;

        let vocab = RawVocab::of(&inner);
        let vocabulary = Vocabulary::read(vocab)?;
        let kind = value("tokenizer.ggml.model").unwrap_or_default();
        let splitter = value("tokenizer.ggml.pre").unwrap_or_default();
        let tokenizer = Tokenizer::read(vocab, kind, splitter, vocabulary.adds_special)?;
        let number = |name: &str| value(&format!("{architecture}.{name}")).and_then(|text| text.parse().ok());
        let array = |name: &str| parts[0].u32_array(&format!("{architecture}.{name}"));
        let (n_layer, n_embd) = (inner.get(sys::llama_model_n_layer), inner.get(sys::llama_model_n_embd));
        let kv_shape = if inner.get(sys::llama_model_is_recurrent) {
            KvShape { n_query_heads: 0, n_heads: Vec::new(), key_length: 0, value_length: 0 }
        } else {
            KvShape::read(n_layer.unsigned_abs(), n_embd.unsigned_abs(), number, array)
        };
        let n_parts = value("split.count").and_then(|text| text.parse().ok()).unwrap_or(1);
        let files = ModelFiles::of(&config.path, n_parts).map_err(|error| error.to_string())?;
        let has_any = |names: &[&str]| parts.iter().any(|part| names.iter().any(|name| part.has_tensor(name)));
        Ok(Self {
            config,
            weights,
            files,
            n_ctx_train: inner.get(sys::llama_model_n_ctx_train).unsigned_abs(),
            inner,
            metadata,
            overrides,
            architecture,
            vocabulary,
            tokenizer,
            kv_shape,
            has_classifier: has_any(&["cls.weight", "cls.output.weight"]),
            has_dense_layers: has_any(&["dense_2.weight", "dense_2.bias", "dense_3.weight"]),
            has_position_table: has_any(&["position_embd.weight"]),
            grammars: Grammars::default(),
            adapters: Vec::new(),
            projector: None,
        })
    }

    #[must_use]
    pub fn adapters(&self) -> &[Adapter] {
        &self.adapters
    }

    #[must_use]
    pub fn projector(&self) -> Option<&Projector> {
        self.projector.as_ref()
    }

    pub(in crate::llama) fn n_embd_in(&self) -> usize {
        self.inner.get(sys::llama_model_n_embd_inp).unsigned_abs() as usize
    }

    /// Number of positions of an input embedding: 4 with multi-dimensional positions (M-RoPE).
    pub(in crate::llama) fn n_positions(&self) -> usize {
        let kind = self.inner.get(sys::llama_model_rope_type);
        if [sys::LLAMA_ROPE_TYPE_MROPE, sys::LLAMA_ROPE_TYPE_IMROPE].contains(&kind) { 4 } else { 1 }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.config.path
    }

    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.value("general.name")
    }

    #[must_use]
    pub fn description(&self) -> String {
        // SAFETY: the model is alive, and llama.cpp writes at most the given number of bytes.
        read_string(|buffer, size| unsafe { sys::llama_model_desc(self.as_ptr(), buffer, size) }).unwrap_or_default()
    }

    #[must_use]
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// Context length that the model was trained with, in tokens.
    #[must_use]
    pub fn n_ctx_train(&self) -> u32 {
        self.n_ctx_train
    }

    /// Size of the vocabulary, which is the length of a row of logits.
    #[must_use]
    pub fn n_vocab(&self) -> usize {
        self.vocabulary.n_vocab()
    }

    #[must_use]
    pub fn n_embd(&self) -> u32 {
        self.inner.get(sys::llama_model_n_embd).unsigned_abs()
    }

    #[must_use]
    pub fn n_layer(&self) -> u32 {
        self.inner.get(sys::llama_model_n_layer).unsigned_abs()
    }

    #[must_use]
    pub fn n_params(&self) -> u64 {
        self.inner.get(sys::llama_model_n_params)
    }

    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.inner.get(sys::llama_model_size)
    }

    /// llama.cpp's number of the tokenizer type: 1 is `SentencePiece` BPE, 2 byte-level BPE.
    pub fn vocab_type(&self) -> u32 {
        self.vocab().kind()
    }

    #[must_use]
    pub fn bos_token(&self) -> Option<Token> {
        self.vocab().token(sys::llama_vocab_bos)
    }

    #[must_use]
    pub fn eos_token(&self) -> Option<Token> {
        self.vocab().token(sys::llama_vocab_eos)
    }

    #[must_use]
    pub fn eot_token(&self) -> Option<Token> {
        self.vocab().token(sys::llama_vocab_eot)
    }

    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        self.value("tokenizer.chat_template")
    }

    /// Every key of the metadata with its value as text, without arrays; overridden values replace the file's.
    #[must_use]
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    /// Returns the tokens of `text`, which need not be UTF-8. `add_special` adds BOS and EOS if the vocabulary requires them;
    /// `parse_special` parses the spelling of a control token as that token.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] for a run of characters that is too long for the vocabulary's regular expressions,
    /// [`Error::NotSupported`] without memory for the stack that a long run needs, and [`Error::Cancelled`].
    pub fn tokenize(&self, text: &[u8], add_special: bool, parse_special: bool) -> Result<Vec<Token>> {
        self.tokenizer.tokenize(self.vocab(), text, add_special, parse_special)
    }

    /// Returns the tokens of `text` as a continuation of other text: without BOS and EOS, and without the space that some
    /// vocabularies put before a text. Tokens never span the boundary.
    pub fn tokenize_on(&self, text: &[u8], parse_special: bool) -> Result<Vec<Token>> {
        // A byte that is in no text and is never merged: a space before a text is added before this byte.
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

    /// Maximum number of bytes of a text that become one token. `None` if there is no bound: some vocabularies drop white space, or
    /// encode any unknown word as one token.
    #[must_use]
    pub fn longest_piece(&self) -> Option<usize> {
        self.tokenizer.longest_piece()
    }

    /// Returns a lower bound of the number of tokens of `text`, in one pass, also where [`Model::longest_piece`] is `None`; 0 if no
    /// bound is known.
    #[must_use]
    pub fn least_tokens(&self, text: &[u8]) -> usize {
        self.tokenizer.least_tokens(text)
    }

    /// Concatenates the spellings of `tokens`, including control tokens. With a projector, the consecutive negative ids of a medium
    /// become one [`MEDIA_MARKER`].
    pub fn detokenize(&self, tokens: &[Token]) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        let mut previous = 0;
        for &token in tokens {
            // Ids within one medium decrease by one.
            let starts_medium = token.checked_add(1) != Some(previous);
            previous = token;
            if is_of_medium(token) && self.projector().is_some() {
                text.extend_from_slice(if starts_medium { MEDIA_MARKER.as_bytes() } else { b"" });
                continue;
            }
            text.extend_from_slice(self.piece(token).ok_or_else(|| Error::InvalidRequest {
                param: "tokens",
                message: format!("token {token} is not in the vocabulary ({} tokens)", self.n_vocab()),
            })?);
        }
        Ok(text)
    }

    #[must_use]
    pub fn piece(&self, token: Token) -> Option<&[u8]> {
        self.vocabulary.spelling(token)
    }

    #[must_use]
    pub fn text_piece(&self, token: Token) -> Option<&[u8]> {
        self.vocabulary.text(token)
    }

    #[must_use]
    pub fn is_end(&self, token: Token) -> bool {
        self.vocabulary.is_end(token)
    }

    #[must_use]
    pub fn end_tokens(&self) -> &[Token] {
        self.vocabulary.end_tokens()
    }

    /// Every token that has a spelling but is not part of a text.
    #[must_use]
    pub fn control_tokens(&self) -> Vec<Token> {
        self.vocabulary.control_tokens().collect()
    }

    #[must_use]
    pub fn suppressed_tokens(&self) -> &[Token] {
        self.vocabulary.suppressed_tokens()
    }

    /// Returns the grammar of this GBNF text with the root rule `root`, see [`crate::grammar`]. Recent grammars are cached.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] with line and column.
    pub fn grammar(&self, text: &str) -> Result<SharedConstraint> {
        self.grammars.compile_gbnf(self, text)
    }

    /// Returns the grammar of the JSON that matches this JSON schema; unsupported keywords are rejected. Recent grammars are cached.
    pub fn json_schema(&self, text: &str) -> Result<SharedConstraint> {
        self.grammars.compile_json_schema(self, text)
    }

    /// As in llama-server, a word that is a single token is matched as that token, and must be in `preserved`.
    pub fn lazy(&self, constraint: SharedConstraint, triggers: &[Trigger], preserved: &[Token]) -> Result<SharedConstraint> {
        self.grammars.lazy(self, constraint, triggers, preserved)
    }

    #[must_use]
    pub fn kv_bytes_per_token(&self, type_k: KvType, type_v: KvType) -> u64 {
        let (key, value) = self.kv_bytes(type_k, type_v);
        key + value
    }

    /// Estimated sizes of the keys and of the values of one token, in bytes; 0 for a model without cells.
    pub(in crate::llama) fn kv_bytes(&self, type_k: KvType, type_v: KvType) -> (u64, u64) {
        if self.is_encoder() { (0, 0) } else { self.kv_shape.bytes_of_token(type_k, type_v) }
    }

    #[must_use]
    pub fn info(&self, config: &EngineConfig) -> ModelInfo {
        ModelInfo {
            n_ctx_max: self.reach(&config.rope),
            kv_bytes_per_token: self.kv_bytes_per_token(config.type_k, config.type_v),
            keeps_whole_states: self.is_recurrent() || self.is_hybrid(),
            n_heads: self.kv_shape.n_query_heads,
            is_offloaded: memory::is_offloaded(self),
            weights: self.weights,
            covers_attention: self.is_attention_covered(config.type_k, config.type_v),
            covers_embedding_attention: self.is_attention_covered(KvType::F16, KvType::F16),
            pooling: self.pooling(),
            has_classifier: self.has_classifier,
        }
    }

    #[must_use]
    pub fn weights(&self) -> WeightLayout {
        self.weights
    }

    /// Returns whether another layout of the weights is possible, and a copy fits in memory.
    #[must_use]
    pub fn is_layout_open(&self) -> bool {
        let facts = |file: Metadata| load::facts(&self.config, &load::all_parts(&self.config, file));
        let is_open = |file: Metadata| self.config.is_layout_open(&facts(file));
        Metadata::open(self.path()).is_ok_and(is_open) && self.size_bytes() <= memory::free_bytes(self, true)
    }

    fn is_attention_covered(&self, type_k: KvType, type_v: KvType) -> bool {
        // llama.cpp disables flash attention for Grok, which our attention replaces.
        self.architecture != "grok" && coverage::covers_attention(&self.kv_shape, type_k, type_v)
    }

    /// Returns whether the model has a recurrent state instead of cells (Mamba, RWKV).
    #[must_use]
    pub fn is_recurrent(&self) -> bool {
        self.inner.get(sys::llama_model_is_recurrent)
    }

    /// Returns whether some layers have a recurrent state and some have cells.
    #[must_use]
    pub fn is_hybrid(&self) -> bool {
        self.inner.get(sys::llama_model_is_hybrid)
    }

    #[must_use]
    pub fn is_encoder(&self) -> bool {
        kinds::is_encoder(&self.architecture, self.value(&format!("{}.attention.causal", self.architecture)))
    }

    /// Default pooling of token embeddings: as in the file, else the mean.
    #[must_use]
    pub fn pooling(&self) -> Pooling {
        let pooling = self.value(&format!("{}.pooling_type", self.architecture));
        let pooling = pooling.and_then(Pooling::numbered).filter(|pooling| *pooling != Pooling::Rank || self.has_classifier);
        pooling.unwrap_or(Pooling::Mean)
    }

    pub(in crate::llama) fn vector_width(&self, pooling: Pooling) -> usize {
        match pooling {
            Pooling::Rank => self.inner.get(sys::llama_model_n_cls_out) as usize,
            _ => self.inner.get(sys::llama_model_n_embd_out).unsigned_abs() as usize,
        }
    }

    /// Size of the sliding window, in tokens; 0 for a model without one.
    #[must_use]
    pub fn n_swa(&self) -> u32 {
        self.inner.get(sys::llama_model_n_swa).unsigned_abs()
    }

    pub(in crate::llama) fn identity(&self) -> io::Result<Identity> {
        Ok(with_change(self.files.identity()?, &self.overrides.describe()))
    }

    pub(in crate::llama) fn as_ptr(&self) -> *mut sys::llama_model {
        self.inner.as_ptr()
    }

    #[cfg(test)]
    pub(in crate::llama) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    #[cfg(test)]
    pub(in crate::llama) fn tokenizer_mut(&mut self) -> &mut Tokenizer {
        &mut self.tokenizer
    }

    pub(in crate::llama) fn vocab(&self) -> RawVocab<'_> {
        RawVocab::of(&self.inner)
    }

    pub(in crate::llama) fn value(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str())
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("config", &self.config).field("architecture", &self.architecture).finish_non_exhaustive()
    }
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

/// Reads a string that llama.cpp writes in the manner of `snprintf`: into a buffer of a given size, returning the full length.
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
