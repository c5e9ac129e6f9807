//! A loaded GGUF file: vocabulary, metadata and weights.

pub(super) mod adapters;
pub(super) mod gguf;
pub(super) mod identity;
pub(super) mod kinds;
pub(super) mod kv_overrides;
pub(super) mod load;
pub(super) mod raw_model;
pub(super) mod rope;
pub(super) mod tensor_overrides;

use std::ffi::c_char;
use std::fmt;
use std::io;
use std::path::Path;

use llama_cpp_sys_2 as sys;

use crate::config::{EngineConfig, KvType, MediaConfig, ModelConfig, ModelInfo, Pooling, WeightLayout};
use crate::error::{Error, Result};
use crate::llama::context::{kv_size::KvShape, memory};
use crate::llama::draft::LoadedDraftModel;
use crate::llama::model::identity::{Identity, ModelFiles, with_change};
use crate::llama::model::raw_model::RawModel;
use crate::llama::model::{adapters::Adapter, gguf::Metadata, kv_overrides::KvOverrides, tensor_overrides::TensorOverrides};
use crate::llama::vocabulary::{VocabularyTable, grammar::Grammars, raw_vocab::RawVocab, tokenizer::Tokenizer};
use crate::llama::{backend::backend, kernels::coverage, media::Projector};
use crate::request::{MEDIA_MARKER, Token, is_of_medium};

/// A loaded model. Every method may be called from any thread.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Model {
    pub(super) config: ModelConfig,
    weights: WeightLayout,
    files: ModelFiles,
    inner: RawModel,
    /// Read once, because creating a context may change llama.cpp's own value (`YaRN`).
    n_ctx_train: u32,
    metadata: Vec<(String, String)>,
    overrides: KvOverrides,
    architecture: String,
    pub(super) vocabulary: VocabularyTable,
    pub(super) tokenizer: Tokenizer,
    kv_shape: KvShape,
    /// Our products support the format of the weights of each attention's output, which stands for those of its layer.
    are_weights_covered: bool,
    has_classifier: bool,
    pub(super) has_dense_layers: bool,
    pub(super) has_position_table: bool,
    pub(super) grammars: Grammars,
    /// Adapters, which belong to `inner`.
    adapters: Vec<Adapter>,
    projector: Option<Projector>,
    draft: Option<LoadedDraftModel>,
}

impl Model {
    /// `progress` receives the loaded fraction, from 0 to 1, on this thread; it must not panic.
    ///
    /// # Errors
    /// [`Error::ModelLoad`] for the file; [`Error::InvalidConfig`] for an adapter, a projector or a draft model.
    pub fn load(config: &ModelConfig, progress: impl FnMut(f32) + Send + 'static) -> Result<Self> {
        let refuse = |reason: String| Error::ModelLoad { path: config.path.clone(), reason };
        config.media.as_ref().map_or(Ok(()), MediaConfig::validate)?;
        backend();
        let file = Metadata::open(&config.path).map_err(refuse)?;
        kinds::check_file(&config.path, &file).map_err(refuse)?;
        let files = load::open_parts(config, file);
        let weights = config.choose_layout(&load::gather_facts(config, &files));
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
        model.draft = LoadedDraftModel::load(config, &model)?;
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
        kinds::check_model(&inner, &architecture, config.is_draft)?;

        let vocab = RawVocab::of(&inner);
        let vocabulary = VocabularyTable::read(vocab)?;
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
        let files = ModelFiles::open(&config.path, n_parts).map_err(|error| error.to_string())?;
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
            are_weights_covered: parts
                .iter()
                .flat_map(Metadata::named_tensors)
                .all(|(name, tensor)| !name.ends_with("attn_output.weight") || coverage::covers_weights(tensor.format)),
            has_classifier: has_any(&["cls.weight", "cls.output.weight"]),
            has_dense_layers: has_any(&["dense_2.weight", "dense_2.bias", "dense_3.weight"]),
            has_position_table: has_any(&["position_embd.weight"]),
            grammars: Grammars::default(),
            adapters: Vec::new(),
            projector: None,
            draft: None,
        })
    }

    pub(crate) fn adapters(&self) -> &[Adapter] {
        &self.adapters
    }

    pub(crate) fn projector(&self) -> Option<&Projector> {
        self.projector.as_ref()
    }

    pub(super) fn draft_model(&self) -> Option<&LoadedDraftModel> {
        self.draft.as_ref()
    }

    /// Number of layers, without those that predict further tokens.
    pub(super) fn n_layers(&self) -> u32 {
        self.inner.get(sys::llama_model_n_layer).unsigned_abs()
    }

    pub(super) fn n_embd_in(&self) -> usize {
        self.inner.get(sys::llama_model_n_embd_inp).unsigned_abs() as usize
    }

    /// Number of positions of an input embedding: 4 with multi-dimensional positions (M-RoPE).
    pub(super) fn n_positions(&self) -> usize {
        let kind = self.inner.get(sys::llama_model_rope_type);
        if [sys::LLAMA_ROPE_TYPE_MROPE, sys::LLAMA_ROPE_TYPE_IMROPE].contains(&kind) { 4 } else { 1 }
    }

    /// Path of the file, as configured.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.config.path
    }

    pub(crate) fn load_error(&self, reason: impl Into<String>) -> Error {
        Error::ModelLoad { path: self.path().to_owned(), reason: reason.into() }
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.value("general.name")
    }

    pub(crate) fn description(&self) -> String {
        // SAFETY: the model is alive, and llama.cpp writes at most the given number of bytes.
        read_string(|buffer, size| unsafe { sys::llama_model_desc(self.as_ptr(), buffer, size) }).unwrap_or_default()
    }

    pub(crate) fn architecture(&self) -> &str {
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

    pub(crate) fn n_embd(&self) -> u32 {
        self.inner.get(sys::llama_model_n_embd).unsigned_abs()
    }

    /// Number of parameters.
    #[must_use]
    pub fn n_params(&self) -> u64 {
        self.inner.get(sys::llama_model_n_params)
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.inner.get(sys::llama_model_size)
    }

    /// llama.cpp's number of the tokenizer type: 1 is `SentencePiece` BPE, 2 byte-level BPE.
    pub(crate) fn vocab_type(&self) -> u32 {
        self.vocab().kind()
    }

    pub(crate) fn bos_token(&self) -> Option<Token> {
        self.vocab().token(sys::llama_vocab_bos)
    }

    pub(crate) fn eos_token(&self) -> Option<Token> {
        self.vocab().token(sys::llama_vocab_eos)
    }

    pub(crate) fn eot_token(&self) -> Option<Token> {
        self.vocab().token(sys::llama_vocab_eot)
    }

    pub(crate) fn chat_template(&self) -> Option<&str> {
        self.value("tokenizer.chat_template")
    }

    /// Every key of the metadata with its value as text, without arrays; overridden values replace the file's.
    pub(crate) fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    /// Converts tokens to text, control tokens too. With a projector, the consecutive ids of a medium become one
    /// [`MEDIA_MARKER`].
    pub(crate) fn detokenize(&self, tokens: &[Token]) -> Result<Vec<u8>> {
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

    pub(crate) fn piece(&self, token: Token) -> Option<&[u8]> {
        self.vocabulary.spelling(token)
    }

    pub(crate) fn text_piece(&self, token: Token) -> Option<&[u8]> {
        self.vocabulary.text(token)
    }

    pub(crate) fn is_end(&self, token: Token) -> bool {
        self.vocabulary.is_end(token)
    }

    pub(crate) fn end_tokens(&self) -> &[Token] {
        &self.vocabulary.end_tokens
    }

    /// Every token that has a spelling but is not part of a text.
    pub(crate) fn control_tokens(&self) -> Vec<Token> {
        self.vocabulary.control_tokens().collect()
    }

    pub(crate) fn suppressed_tokens(&self) -> &[Token] {
        &self.vocabulary.suppressed_tokens
    }

    /// Estimated size of one token in the device cache, in bytes; 0 for a model without cells.
    #[must_use]
    pub fn kv_bytes_per_token(&self, type_k: KvType, type_v: KvType) -> u64 {
        let (key, value) = self.kv_bytes(type_k, type_v);
        key + value
    }

    /// Estimated sizes of the keys and of the values of one token, in bytes; 0 for a model without cells.
    pub(in crate::llama) fn kv_bytes(&self, type_k: KvType, type_v: KvType) -> (u64, u64) {
        if self.is_encoder() { (0, 0) } else { self.kv_shape.bytes_of_token(type_k, type_v) }
    }

    pub(crate) fn info(&self, config: &EngineConfig) -> ModelInfo {
        ModelInfo {
            n_ctx_max: self.reach(&config.rope),
            kv_bytes_per_token: self.kv_bytes_per_token(config.type_k, config.type_v),
            draft: self.draft.as_ref().map(|draft| draft.memory(self)),
            can_be_repeatable: self.can_be_repeatable(),
            keeps_whole_states: self.keeps_states(),
            n_heads: self.kv_shape.n_query_heads,
            is_offloaded: memory::is_offloaded(self),
            weights: self.weights,
            covers_attention: self.is_attention_covered(config.type_k, config.type_v),
            covers_embedding_attention: self.is_attention_covered(KvType::F16, KvType::F16),
            pooling: self.pooling(),
            has_classifier: self.has_classifier,
        }
    }

    /// Returns true if our kernels can compute every operation on the weights. Whether they do shows in a decode.
    pub(in crate::llama) fn can_be_repeatable(&self) -> bool {
        self.weights == WeightLayout::AsInFile && self.are_weights_covered && !memory::has_gpus(&self.config.placement)
    }

    pub(crate) fn weights(&self) -> WeightLayout {
        self.weights
    }

    /// Returns true if another layout of the weights is possible, and a copy fits in memory.
    pub(crate) fn is_layout_open(&self) -> bool {
        let facts = |file: Metadata| load::gather_facts(&self.config, &load::open_parts(&self.config, file));
        let is_open = |file: Metadata| self.config.is_layout_open(&facts(file));
        Metadata::open(self.path()).is_ok_and(is_open) && self.size_bytes() <= memory::free_bytes(self, true)
    }

    fn is_attention_covered(&self, type_k: KvType, type_v: KvType) -> bool {
        // llama.cpp disables flash attention for Grok, which our attention replaces.
        self.architecture != "grok" && coverage::covers_attention(&self.kv_shape, type_k, type_v)
    }

    /// Returns true if some layers have a recurrent state, which cannot be truncated.
    pub(crate) fn keeps_states(&self) -> bool {
        self.is_recurrent() || self.is_hybrid()
    }

    /// Returns true if the model has a recurrent state instead of cells (Mamba, RWKV).
    pub(crate) fn is_recurrent(&self) -> bool {
        self.inner.get(sys::llama_model_is_recurrent)
    }

    pub(crate) fn is_hybrid(&self) -> bool {
        self.inner.get(sys::llama_model_is_hybrid)
    }

    pub(crate) fn is_encoder(&self) -> bool {
        kinds::is_encoder(&self.architecture, self.value(&format!("{}.attention.causal", self.architecture)))
    }

    /// Default pooling of token embeddings: as in the file, else the mean.
    pub(crate) fn pooling(&self) -> Pooling {
        let pooling = self.value(&format!("{}.pooling_type", self.architecture));
        let pooling = pooling.and_then(Pooling::from_number).filter(|pooling| *pooling != Pooling::Rank || self.has_classifier);
        pooling.unwrap_or(Pooling::Mean)
    }

    pub(super) fn embedding_width(&self, pooling: Pooling) -> usize {
        match pooling {
            Pooling::Rank => self.inner.get(sys::llama_model_n_cls_out) as usize,
            _ => self.inner.get(sys::llama_model_n_embd_out).unsigned_abs() as usize,
        }
    }

    /// Size of the sliding window, in tokens; 0 for a model without one.
    pub(crate) fn n_swa(&self) -> u32 {
        self.inner.get(sys::llama_model_n_swa).unsigned_abs()
    }

    pub(super) fn identity(&self) -> io::Result<Identity> {
        Ok(with_change(self.files.identity()?, &self.overrides.describe()))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::llama_model {
        self.inner.as_ptr()
    }

    pub(super) fn vocab(&self) -> RawVocab<'_> {
        RawVocab::of(&self.inner)
    }

    pub(super) fn value(&self, key: &str) -> Option<&str> {
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

/// `write` works like `snprintf`: it returns the full length.
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
