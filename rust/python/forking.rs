//! Forks of the branches of a stream, for Python.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::background::detached;
use super::convert::{self, Constraints, PromptInput};
use super::errors::{EngineStopped, InvalidRequest};
use super::stream::{PyStream, Stream};
use super::wake::{Awaitable, LoopWakers};
use crate::engine::{Fork, ForkDestination, ForkKind, ForkPoint, ForkResult, ForkTextBoundary, PendingFork, WakeHandle};
use crate::llama::Model;
use crate::request::Prompt;

/// What the branches of a stream were asked for, and what tokenizes what is appended to them.
pub(super) struct StreamSettings {
    /// Weak, since a stream does not keep the model loaded.
    model: Weak<Model>,
    /// Whether the spelling of a control token in their texts is read as that token.
    parses_special: bool,
    /// The requests as Python gave them, in order of their branches.
    kinds: Mutex<Vec<BranchKind>>,
}

/// Branches of one kind.
pub(super) struct BranchKind {
    first: u32,
    request: Py<PyAny>,
    /// Where they were forked, where they are forks of another branch of the same stream.
    origin: Option<Origin>,
}

/// Where forks part from their branch.
struct Origin {
    n: u32,
    branch: u32,
    /// After so many of its tokens.
    n_said: u32,
    /// How their texts go on from its.
    seam: ForkTextBoundary,
}

impl StreamSettings {
    /// Of requests, each with its first branch.
    pub(super) fn new(model: Weak<Model>, parses_special: bool, requests: Vec<(u32, Py<PyAny>)>) -> Self {
        let kinds = requests.into_iter().map(|(first, request)| BranchKind { first, request, origin: None }).collect();
        Self { model, parses_special, kinds: Mutex::new(kinds) }
    }

    fn kinds(&self) -> MutexGuard<'_, Vec<BranchKind>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request of a branch, or of the last one before it.
    fn of(&self, py: Python<'_>, branch: u32) -> Option<Py<PyAny>> {
        kind_of(&self.kinds(), branch).map(|kind| kind.request.clone_ref(py))
    }

    /// The branch that one was forked from, and after how many of its tokens, if it was.
    pub(super) fn forked_at(&self, branch: u32) -> Option<(u32, u32)> {
        origin_of(&self.kinds(), branch).map(|origin| (origin.branch, origin.n_said))
    }

    /// How the text of a branch goes on from that of the one that it was forked from.
    pub(super) fn seam(&self, branch: u32) -> ForkTextBoundary {
        origin_of(&self.kinds(), branch).map(|origin| origin.seam.clone()).unwrap_or_default()
    }

    /// Takes in a kind. Forks may be heard of in another order than they were made in.
    fn add(&self, kind: BranchKind) {
        let mut kinds = self.kinds();
        let at = kinds.partition_point(|known| known.first < kind.first);
        kinds.insert(at, kind);
    }
}

fn kind_of(kinds: &[BranchKind], branch: u32) -> Option<&BranchKind> {
    kinds.iter().rev().find(|kind| kind.first <= branch)
}

fn origin_of(kinds: &[BranchKind], branch: u32) -> Option<&Origin> {
    let kind = kind_of(kinds, branch)?;
    kind.origin.as_ref().filter(|origin| branch - kind.first < origin.n)
}

/// A fork that the worker was asked for, and who is told which event loops wait for it.
pub(super) struct AwaitedFork {
    pending: PendingFork,
    /// The stream of the branch.
    stream: Py<PyStream>,
    branch: u32,
    /// What the forks were asked for.
    request: Py<PyAny>,
    bells: Arc<LoopWakers>,
}

impl AwaitedFork {
    /// The numbers of the forks, or their stream, once; `None` as long as the worker has not answered.
    pub(super) fn take(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let Some(forked) = self.pending.take() else { return Ok(None) };
        let ForkResult { branches, seed, n_sampled: n_said, text_boundary: seam, stream: own, .. } = forked?;
        let (stream, request) = (self.stream.get(), self.request.clone_ref(py));
        let Some(completions) = own else {
            let n = branches.end - branches.start;
            let origin = Some(Origin { n, branch: self.branch, n_said, seam });
            stream.asked.add(BranchKind { first: branches.start, request, origin });
            return Ok(Some(PyList::new(py, branches)?.into_any().unbind()));
        };
        let n_prompt = completions.n_prompt();
        let asked = StreamSettings::new(Weak::clone(&stream.asked.model), stream.asked.parses_special, vec![(0, request)]);
        let own = Stream::new(completions, Arc::clone(&self.bells), stream.stream()?.lexicon.clone());
        Ok(Some(Py::new(py, PyStream::new(own, asked, seed, n_prompt))?.into_any()))
    }
}

impl Awaitable for AwaitedFork {
    fn is_ready(&self) -> bool {
        self.pending.is_ready()
    }

    fn bells(&self) -> &LoopWakers {
        &self.bells
    }
}

/// Where, how and what: the arguments of `Stream.fork`.
pub(super) struct Arguments<'py> {
    pub(super) index: Bound<'py, PyAny>,
    pub(super) n: Bound<'py, PyAny>,
    pub(super) at: Option<Bound<'py, PyAny>>,
    pub(super) unit: String,
    pub(super) append: Bound<'py, PyAny>,
    pub(super) own_stream: bool,
    pub(super) options: Option<Bound<'py, PyDict>>,
}

/// Asks for forks of a branch of `stream`.
///
/// # Errors
/// `InvalidRequest` for an argument that is none; what is raised of a request.
pub(super) fn fork(py: Python<'_>, stream: Py<PyStream>, arguments: Arguments<'_>) -> PyResult<AwaitedFork> {
    let Arguments { index, n, at, unit, append, own_stream, options } = arguments;
    let of = stream.get();
    let branch = convert::branch_number(&index)?;
    let n: u32 = convert::field("n", "a positive integer", &n)?;
    let at = match (&at, unit.as_str()) {
        (None, "token" | "byte") => ForkPoint::End,
        (Some(at), "token") => ForkPoint::Token(convert::field("at", "a number of tokens or None", at)?),
        (Some(at), "byte") => ForkPoint::Byte(convert::field("at", "a number of bytes or None", at)?),
        _ => return Err(InvalidRequest::new_err(("unit", format!("unit is {unit:?}; it must be \"token\" or \"byte\"")))),
    };
    let append = convert::text_or_tokens("append", &append)?;
    let asked = of.asked.of(py, branch).expect("a stream has a request");
    let options = options.filter(|options| !options.is_empty());
    let has_own_seed = match &options {
        Some(options) => options.get_item(intern!(py, "seed"))?.is_some_and(|seed| !seed.is_none()),
        None => false,
    };
    let (request, input) = match options {
        None => (asked, None),
        Some(options) => {
            let request = py.import(intern!(py, "weft.request.branches"))?.getattr(intern!(py, "fork_request"))?;
            let request = request.call1((asked, n, options))?;
            let input = convert::request(&request)?;
            (request.unbind(), Some(input))
        }
    };
    let model = of.asked.model.upgrade().ok_or_else(|| EngineStopped::new_err(()))?;
    let bells = Arc::clone(of.stream()?.shared_bells());
    let bell: Arc<dyn WakeHandle> = Arc::<LoopWakers>::clone(&bells);
    let parses_special = of.asked.parses_special;
    let completions = of.stream()?;
    let pending = detached(py, || -> crate::error::Result<PendingFork> {
        let append = match append {
            Some(PromptInput::Text(text)) => model.tokenize_on(text.as_bytes(), parses_special)?,
            Some(given) => given.read(&model)?.into_tokens(),
            None => Vec::new(),
        };
        let kind = match input {
            None => ForkKind::Continue(n),
            Some(input) => {
                let request = input.complete(Prompt::default(), parses_special, &model, &mut Constraints::default())?;
                ForkKind::Restart { requests: vec![request], with_own_seeds: has_own_seed }
            }
        };
        let destination =
            if own_stream { ForkDestination::OwnStream(Some(Arc::clone(&bell))) } else { ForkDestination::SameStream };
        completions.fork(Fork { branch, at, append, kind, destination }, bell)
    })?;
    Ok(AwaitedFork { pending, stream, branch, request, bells })
}
