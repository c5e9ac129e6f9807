//! Images, audio, and prompts that contain them.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use super::convert::{self, TextInput};
use super::errors::invalid_request;
use super::mirrored_class::mirrored_class;
use crate::error::{Error, Result};
use crate::llama::{LoadedMedia, MediaKind, MediaStats, Model, Projector};
use crate::request::{Prompt, PromptRun, Token};

/// An image or audio, preprocessed for the model.
#[pyclass(frozen, module = "weft._native", name = "Media")]
pub(super) struct PyMedia(pub(super) LoadedMedia);

#[pymethods]
impl PyMedia {
    #[getter]
    fn kind(&self) -> &'static str {
        match self.0.kind {
            MediaKind::Image => "image",
            MediaKind::Audio => "audio",
        }
    }

    #[getter]
    fn digest(&self) -> &str {
        &self.0.digest
    }

    #[getter]
    fn n_bytes(&self) -> usize {
        self.0.n_bytes
    }

    #[getter]
    fn n_tokens(&self) -> usize {
        self.0.runs.iter().map(PromptRun::n_tokens).sum()
    }

    fn __repr__(&self) -> String {
        format!("Media(kind={:?}, n_tokens={}, digest={:?})", self.kind(), self.n_tokens(), self.digest())
    }
}

/// The input modalities of a model's projector.
#[pyclass(frozen, get_all, module = "weft._native", name = "Modalities")]
pub(super) struct PyModalities {
    vision: bool,
    audio: bool,
}

#[pymethods]
impl PyModalities {
    fn __repr__(&self) -> String {
        let name = |is: bool| if is { "True" } else { "False" };
        format!("Modalities(vision={}, audio={})", name(self.vision), name(self.audio))
    }
}

impl PyModalities {
    pub(super) fn of(model: &Model) -> Self {
        let modalities = model.projector().map(Projector::modalities);
        Self { vision: modalities.is_some_and(|of| of.vision), audio: modalities.is_some_and(|of| of.audio) }
    }
}

mirrored_class! {
    /// Metrics of images and audio.
    #[pyclass(frozen, get_all, module = "weft._native", name = "MediaStats")]
    PyMediaStats of MediaStats {
        n_encoded: u64, n_reused: u64, encode_s: f64, n_kept_bytes: u64, n_waiting_bytes: u64, n_projector_bytes: u64
    }
}

pub(super) enum PromptPart {
    Text(TextInput),
    Tokens(Vec<Token>),
    Media(Py<PyMedia>),
}

impl PromptPart {
    fn media(&self) -> Option<&Py<PyMedia>> {
        if let Self::Media(media) = self { Some(media) } else { None }
    }
}

pub(super) fn read_parts(value: &Bound<'_, PyAny>) -> PyResult<Vec<PromptPart>> {
    let part = |part: Bound<'_, PyAny>| {
        if let Ok(media) = part.cast::<PyMedia>() {
            return Ok(PromptPart::Media(media.clone().unbind()));
        }
        if part.is_instance_of::<PyString>() {
            return convert::read_text("prompt", &part).map(PromptPart::Text);
        }
        if let Ok(token) = part.extract::<Token>() {
            return Ok(PromptPart::Tokens(vec![token]));
        }
        convert::read_tokens("prompt", &part).map(PromptPart::Tokens)
    };
    // A string would be iterated by character.
    let is_text = value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>();
    let reject = || invalid_request("prompt", convert::shorten_repr(value), "a list of texts, token ids and media");
    let parts = value.try_iter().ok().filter(|_| !is_text).ok_or_else(reject)?;
    parts.map(|given| part(given?)).collect()
}

/// Returns true if a prompt is a list with texts or media; false for a list of token ids only.
pub(super) fn has_parts(value: &Bound<'_, PyAny>) -> bool {
    let is_list = |value: &Bound<'_, PyAny>| value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>();
    let is_part =
        |part: &Bound<'_, PyAny>| is_list(part) || part.is_instance_of::<PyString>() || part.is_instance_of::<PyMedia>();
    is_list(value) && value.try_iter().is_ok_and(|mut parts| parts.any(|part| part.is_ok_and(|part| is_part(&part))))
}

/// Rejects media of another model: their ids and embeddings belong to one projector.
fn check_projector<'a>(mut media: impl Iterator<Item = &'a Py<PyMedia>>, model: &Model) -> Result<()> {
    let number = model.projector().map(Projector::number);
    if media.all(|media| Some(media.get().0.projector) == number) {
        return Ok(());
    }
    let message = "the media was read for another model; read it again with this engine".to_owned();
    Err(Error::InvalidRequest { param: "prompt", message })
}

/// Joins `parts` to a prompt. Each text is tokenized separately, as in `mtmd`; the BOS token comes first.
pub(super) fn join_parts(parts: &[PromptPart], model: &Model, add_special: bool, parse_special: bool) -> Result<Prompt> {
    check_projector(parts.iter().filter_map(PromptPart::media), model)?;
    let opening = if add_special { model.tokenize(b"", true, parse_special)? } else { Vec::new() };
    let opening = opening.into_iter().take_while(|&token| Some(token) == model.bos_token()).collect();
    let mut prompt = Prompt::from_tokens(opening);
    for part in parts {
        match part {
            PromptPart::Text(text) => prompt.push(PromptRun::Tokens(model.tokenize(text.as_bytes(), false, parse_special)?)),
            PromptPart::Tokens(tokens) => prompt.push(PromptRun::Tokens(tokens.clone())),
            PromptPart::Media(media) => media.get().0.runs.iter().cloned().for_each(|run| prompt.push(run)),
        }
    }
    Ok(prompt)
}

/// Texts, token ids and media, joined to a prompt.
#[pyclass(frozen, module = "weft._native", name = "MixedPrompt")]
pub(super) struct PyMixedPrompt {
    prompt: Prompt,
    media: Vec<Py<PyMedia>>,
}

impl PyMixedPrompt {
    pub(super) fn new(py: Python<'_>, parts: &[PromptPart], prompt: Prompt) -> Self {
        Self { prompt, media: parts.iter().filter_map(PromptPart::media).map(|media| media.clone_ref(py)).collect() }
    }

    pub(super) fn of(&self, model: &Model) -> Result<Prompt> {
        check_projector(self.media.iter(), model)?;
        Ok(self.prompt.clone())
    }

    pub(super) fn ids(&self) -> Vec<Token> {
        self.prompt.clone().into_tokens()
    }
}

#[pymethods]
impl PyMixedPrompt {
    #[getter]
    fn n_tokens(&self) -> usize {
        self.prompt.n_tokens()
    }

    #[getter]
    fn n_positions(&self) -> usize {
        let n_positions = |run: &PromptRun| match run {
            PromptRun::Tokens(tokens) => tokens.len(),
            PromptRun::Media(media) => media.n_positions() as usize,
        };
        self.prompt.runs().iter().map(n_positions).sum()
    }

    #[getter]
    fn media(&self, py: Python<'_>) -> Vec<Py<PyMedia>> {
        self.media.iter().map(|media| media.clone_ref(py)).collect()
    }

    /// The token ids of its text, including the delimiters of media, concatenated.
    #[getter]
    fn text_tokens(&self) -> Vec<Token> {
        let texts = self.prompt.runs().iter().filter_map(|run| match run {
            PromptRun::Tokens(tokens) => Some(tokens),
            PromptRun::Media(_) => None,
        });
        texts.flatten().copied().collect()
    }

    fn __len__(&self) -> usize {
        self.prompt.n_tokens()
    }

    fn __repr__(&self) -> String {
        format!("MixedPrompt(n_tokens={}, n_media={})", self.prompt.n_tokens(), self.media.len())
    }
}

pub(super) fn read_media(model: &Model, file: &[u8]) -> Result<PyMedia> {
    let projector = model.projector().ok_or_else(|| {
        let message =
            "the model was loaded without a projector, which images and audio require; set mmproj (--mmproj) to its file";
        Error::NotSupported { message: message.to_owned() }
    })?;
    projector.read(file).map(PyMedia)
}
