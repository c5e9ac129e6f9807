//! A loaded model, or only its vocabulary or sizes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use super::background::{ProgressCallback, detached};
use super::compact::PyTokenIds;
use super::convert;
use super::errors::InvalidRequestError;
use super::json::Json;
use super::logging;
use super::media::{self, PyMedia, PyMediaStats, PyMixedPrompt, PyModalities};
use super::process_fork::ThisProcess;
use super::settings;
use crate::config::{LoadScope, ModelConfig, WeightLayout};
use crate::llama::{InfillTokens, Model, Projector};
use crate::request::Token;

#[pyclass(frozen, module = "weft._native", name = "Model")]
pub(super) struct PyModel(ThisProcess<Arc<Model>>);

impl PyModel {
    fn new(model: Model) -> Self {
        Self(ThisProcess::new(Arc::new(model)))
    }

    pub(super) fn loaded(&self) -> PyResult<&Arc<Model>> {
        self.0.get()
    }
}

#[pymethods]
impl PyModel {
    /// Loads a GGUF file.
    #[staticmethod]
    #[pyo3(signature = (path, config=None, *, on_progress=None))]
    fn load(py: Python<'_>, path: PathBuf, config: Option<&Bound<'_, PyAny>>, on_progress: Option<Py<PyAny>>) -> PyResult<Self> {
        logging::follow(py)?;
        let config = settings::read_model_config(path, config)?;
        // llama.cpp's callback cannot propagate an exception: the load continues.
        let progress = Arc::new(ProgressCallback::new(on_progress));
        let model = py.detach(|| {
            let progress = Arc::clone(&progress);
            Model::load(&config, move |fraction| {
                progress.call(fraction.into());
            })
        })?;
        progress.raise()?;
        Ok(Self::new(model))
    }

    /// Loads only the vocabulary of a GGUF file, for tokenization.
    #[staticmethod]
    #[pyo3(signature = (path, *, kv_overrides=None))]
    fn load_vocabulary(py: Python<'_>, path: PathBuf, kv_overrides: Option<Vec<(String, Bound<'_, PyAny>)>>) -> PyResult<Self> {
        logging::follow(py)?;
        let overrides = settings::read_kv_overrides(kv_overrides.unwrap_or_default())?;
        let config = ModelConfig { overrides, scope: LoadScope::Vocabulary, ..ModelConfig::at(path) };
        Ok(Self::new(py.detach(|| Model::load(&config, |_| {}))?))
    }

    /// Reads everything but the weights, to plan memory.
    #[staticmethod]
    #[pyo3(signature = (path, config=None))]
    fn load_sizes(py: Python<'_>, path: PathBuf, config: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        logging::follow(py)?;
        let config = ModelConfig { scope: LoadScope::Sizes, ..settings::read_model_config(path, config)? };
        Ok(Self::new(py.detach(|| Model::load(&config, |_| {}))?))
    }

    #[getter]
    fn path(&self) -> PyResult<String> {
        Ok(self.loaded()?.path().to_string_lossy().into_owned())
    }

    #[getter]
    fn name(&self) -> PyResult<Option<&str>> {
        Ok(self.loaded()?.name())
    }

    #[getter]
    fn description(&self) -> PyResult<String> {
        Ok(self.loaded()?.description())
    }

    #[getter]
    fn n_ctx_train(&self) -> PyResult<u32> {
        Ok(self.loaded()?.n_ctx_train())
    }

    #[getter]
    fn n_vocab(&self) -> PyResult<usize> {
        Ok(self.loaded()?.n_vocab())
    }

    #[getter]
    fn n_embd(&self) -> PyResult<u32> {
        Ok(self.loaded()?.n_embd())
    }

    #[getter]
    fn n_params(&self) -> PyResult<u64> {
        Ok(self.loaded()?.n_params())
    }

    #[getter]
    fn size_bytes(&self) -> PyResult<u64> {
        Ok(self.loaded()?.size_bytes())
    }

    #[getter]
    fn is_repacked(&self) -> PyResult<bool> {
        Ok(self.loaded()?.weights() != WeightLayout::AsInFile)
    }

    #[getter]
    fn is_layout_open(&self) -> PyResult<bool> {
        Ok(self.loaded()?.is_layout_open())
    }

    #[getter]
    fn is_encoder(&self) -> PyResult<bool> {
        Ok(self.loaded()?.is_encoder())
    }

    #[getter]
    fn vocab_type(&self) -> PyResult<u32> {
        Ok(self.loaded()?.vocab_type())
    }

    #[getter]
    fn bos_token(&self) -> PyResult<Option<Token>> {
        Ok(self.loaded()?.bos_token())
    }

    #[getter]
    fn eos_token(&self) -> PyResult<Option<Token>> {
        Ok(self.loaded()?.eos_token())
    }

    #[getter]
    fn adds_bos(&self) -> PyResult<bool> {
        Ok(self.loaded()?.adds_bos())
    }

    /// The control tokens of fill-in-the-middle, by the part that follows each.
    #[getter]
    fn infill_tokens(&self) -> PyResult<BTreeMap<&'static str, Token>> {
        let InfillTokens { prefix, suffix, middle, repository, file } = self.loaded()?.infill_tokens();
        let all = [("prefix", prefix), ("suffix", suffix), ("middle", middle), ("repository", repository), ("file", file)];
        Ok(all.into_iter().filter_map(|(name, token)| Some((name, token?))).collect())
    }

    #[getter]
    fn chat_template(&self) -> PyResult<Option<&str>> {
        Ok(self.loaded()?.chat_template())
    }

    /// Returns every key of the file's metadata with its value as text, without arrays.
    fn metadata(&self) -> PyResult<BTreeMap<&str, &str>> {
        Ok(self.loaded()?.metadata().iter().map(|(key, value)| (key.as_str(), value.as_str())).collect())
    }

    /// Returns every token that has a spelling but is not text, in order.
    fn control_tokens(&self) -> PyResult<Vec<Token>> {
        Ok(self.loaded()?.control_tokens())
    }

    /// Returns every end token, in order.
    fn end_tokens(&self) -> PyResult<Vec<Token>> {
        Ok(self.loaded()?.end_tokens().to_vec())
    }

    #[getter]
    fn longest_piece(&self) -> PyResult<Option<usize>> {
        Ok(self.loaded()?.longest_piece())
    }

    /// Returns a lower bound of the number of a text's tokens.
    fn least_tokens(&self, text: &Bound<'_, PyAny>) -> PyResult<usize> {
        Ok(self.loaded()?.min_tokens(convert::read_text("text", text)?.as_bytes()))
    }

    /// Tokenizes a text.
    #[pyo3(signature = (text, *, add_special=true, parse_special=true))]
    fn tokenize(&self, py: Python<'_>, text: &Bound<'_, PyAny>, add_special: bool, parse_special: bool) -> PyResult<Vec<Token>> {
        let model = self.loaded()?;
        let text = convert::read_text("text", text)?;
        Ok(detached(py, || model.tokenize(text.as_bytes(), add_special, parse_special))?)
    }

    /// Tokenizes a text that continues another one.
    #[pyo3(signature = (text, *, parse_special=true))]
    fn tokenize_on(&self, py: Python<'_>, text: &Bound<'_, PyAny>, parse_special: bool) -> PyResult<Vec<Token>> {
        let model = self.loaded()?;
        let text = convert::read_text("text", text)?;
        Ok(detached(py, || model.tokenize_on(text.as_bytes(), parse_special))?)
    }

    /// Tokenizes a long text into one object.
    #[pyo3(signature = (text, *, add_special=true, parse_special=true))]
    fn token_ids(&self, py: Python<'_>, text: &Bound<'_, PyAny>, add_special: bool, parse_special: bool) -> PyResult<PyTokenIds> {
        self.tokenize(py, text, add_special, parse_special).map(PyTokenIds::from)
    }

    #[getter]
    fn modalities(&self) -> PyResult<PyModalities> {
        Ok(PyModalities::of(self.loaded()?))
    }

    /// Returns metrics of images and audio.
    fn media_stats(&self) -> PyResult<PyMediaStats> {
        Ok(self.loaded()?.projector().map(Projector::stats).unwrap_or_default().into())
    }

    /// Decodes an image or audio from the bytes of its file.
    #[expect(clippy::needless_pass_by_value, reason = "PyO3 reads bytes into a value")]
    fn read_media(&self, py: Python<'_>, data: PyBackedBytes) -> PyResult<PyMedia> {
        let model = self.loaded()?;
        Ok(detached(py, || media::read_media(model, &data))?)
    }

    /// Tokenizes texts, and joins them with token ids and media to a prompt.
    #[pyo3(signature = (parts, *, add_special=true, parse_special=true))]
    fn tokenize_parts(
        &self,
        py: Python<'_>,
        parts: &Bound<'_, PyAny>,
        add_special: bool,
        parse_special: bool,
    ) -> PyResult<PyMixedPrompt> {
        let model = self.loaded()?;
        let parts = media::read_parts(parts)?;
        let prompt = detached(py, || media::join_parts(&parts, model, add_special, parse_special))?;
        Ok(PyMixedPrompt::new(py, &parts, prompt))
    }

    /// Converts token ids to text.
    fn detokenize(&self, py: Python<'_>, tokens: &Bound<'_, PyAny>) -> PyResult<String> {
        let model = self.loaded()?;
        let tokens = match tokens.cast::<PyMixedPrompt>() {
            Ok(mixed) => mixed.get().ids(),
            Err(_) => convert::read_tokens("tokens", tokens)?,
        };
        let bytes = detached(py, || model.detokenize(&tokens))?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// Returns comma-separated JSON objects of token ids and their pieces.
    fn pieces_json<'py>(&self, py: Python<'py>, tokens: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let model = self.loaded()?;
        let tokens = convert::read_tokens("tokens", tokens)?;
        let entry = |json: &mut Json, &token: &Token| {
            let piece = model.piece(token).unwrap_or_default();
            json.push_raw("{\"id\":").push_integer(token).push_raw(",\"piece\":");
            match std::str::from_utf8(piece) {
                Ok(text) => json.push_text(text),
                Err(_) => json.push_raw("[").push_numbers(piece).push_raw("]"),
            };
            json.push_raw("}");
        };
        let json = detached(py, || {
            let mut json = Json::default();
            json.push_list(&tokens, entry);
            json
        });
        Ok(json.bytes(py))
    }

    /// Returns the bytes of one token.
    fn token_bytes<'py>(&self, py: Python<'py>, token: Token) -> PyResult<Bound<'py, PyBytes>> {
        let model = self.loaded()?;
        let bytes = model.piece(token).ok_or_else(|| {
            let message = format!("token {token} is not in the vocabulary ({} tokens)", model.n_vocab());
            InvalidRequestError::new_err(("token", message))
        })?;
        Ok(PyBytes::new(py, bytes))
    }

    fn __repr__(&self) -> PyResult<String> {
        let model = self.loaded()?;
        Ok(format!("Model({:?}, path={:?})", model.description(), model.path().display().to_string()))
    }
}
