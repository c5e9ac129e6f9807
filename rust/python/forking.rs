//! Forks of a branch of a stream.

use std::sync::{Arc, Mutex, Weak};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};

use super::awaitable::{Answer, PyNext};
use super::background::detached;
use super::convert::{self, Constraints};
use super::errors::{EngineStoppedError, invalid_request};
use super::stream::{EventStream, PyStream};
use super::wake::{Awaitable, LoopWakers};
use crate::engine::{Fork, ForkDestination, ForkKind, ForkPoint, ForkResult, ForkTextBoundary, PendingFork, WakeHandle};
use crate::llama::Model;
use crate::lock::lock;
use crate::request::Prompt;

pub(super) struct StreamSettings {
    /// Weak: a stream does not keep the model loaded.
    model: Weak<Model>,
    parses_special: bool,
    kinds: Mutex<Vec<BranchKind>>,
}

/// Consecutive branches of one request.
struct BranchKind {
    first: u32,
    request: Py<PyAny>,
    /// Parent of the branches, if they are forks of another branch of the same stream.
    origin: Option<ForkOrigin>,
}

struct ForkOrigin {
    n: u32,
    branch: u32,
    /// Tokens of the parent branch before the fork.
    n_parent_tokens: u32,
    boundary: ForkTextBoundary,
}

impl StreamSettings {
    pub(super) fn new(model: Weak<Model>, parses_special: bool, requests: Vec<(u32, Py<PyAny>)>) -> Self {
        let kinds = requests.into_iter().map(|(first, request)| BranchKind { first, request, origin: None }).collect();
        Self { model, parses_special, kinds: Mutex::new(kinds) }
    }

    fn request_of(&self, py: Python<'_>, branch: u32) -> Py<PyAny> {
        find_kind(&lock(&self.kinds), branch).expect("a stream has a request").request.clone_ref(py)
    }

    pub(super) fn forked_at(&self, branch: u32) -> Option<(u32, u32)> {
        find_origin(&lock(&self.kinds), branch).map(|origin| (origin.branch, origin.n_parent_tokens))
    }

    pub(super) fn boundary(&self, branch: u32) -> ForkTextBoundary {
        find_origin(&lock(&self.kinds), branch).map(|origin| origin.boundary.clone()).unwrap_or_default()
    }

    /// Inserts branches in their order: forks may be reported in another order than they were created in.
    fn add(&self, kind: BranchKind) {
        let mut kinds = lock(&self.kinds);
        let index = kinds.partition_point(|known| known.first < kind.first);
        kinds.insert(index, kind);
    }
}

fn find_kind(kinds: &[BranchKind], branch: u32) -> Option<&BranchKind> {
    kinds.iter().rev().find(|kind| kind.first <= branch)
}

fn find_origin(kinds: &[BranchKind], branch: u32) -> Option<&ForkOrigin> {
    let kind = find_kind(kinds, branch)?;
    kind.origin.as_ref().filter(|origin| branch - kind.first < origin.n)
}

struct AwaitedFork {
    pending: PendingFork,
    stream: Py<PyStream>,
    branch: u32,
    request: Py<PyAny>,
    wakers: Arc<LoopWakers>,
}

impl Answer for AwaitedFork {
    /// Returns the indices of the forks, or their stream.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let Some(forked) = self.pending.take() else { return Ok(None) };
        let ForkResult { branches, seed, n_sampled, text_boundary, stream: own, .. } = forked?;
        let (stream, request) = (self.stream.get(), self.request.clone_ref(py));
        let Some(completions) = own else {
            let n = branches.end - branches.start;
            let origin = Some(ForkOrigin { n, branch: self.branch, n_parent_tokens: n_sampled, boundary: text_boundary });
            stream.settings.add(BranchKind { first: branches.start, request, origin });
            return Ok(Some(PyList::new(py, branches)?.into_any().unbind()));
        };
        let settings =
            StreamSettings::new(Weak::clone(&stream.settings.model), stream.settings.parses_special, vec![(0, request)]);
        let token_strings = stream.stream()?.token_strings.clone();
        let own = EventStream { completions, wakers: Arc::clone(&self.wakers), token_strings };
        Ok(Some(Py::new(py, PyStream::new(own, settings, seed))?.into_any()))
    }
}

impl Awaitable for AwaitedFork {
    fn is_ready(&self) -> bool {
        self.pending.is_ready()
    }

    fn wakers(&self) -> &LoopWakers {
        &self.wakers
    }
}

/// Forks a branch. `options` also has the arguments `n`, `at`, `unit` and `append`.
pub(super) fn fork<'py>(
    stream: Py<PyStream>,
    index: &Bound<'py, PyAny>,
    options: Option<Bound<'py, PyDict>>,
    destination: impl FnOnce(Arc<dyn WakeHandle>) -> ForkDestination,
) -> PyResult<PyNext> {
    let py = index.py();
    let options = options.unwrap_or_else(|| PyDict::new(py));
    let take = |name: &Bound<'py, PyString>| -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = options.get_item(name)?;
        if value.is_some() {
            options.del_item(name)?;
        }
        Ok(value)
    };
    let parent = stream.get();
    let branch = convert::read_branch_index(index)?;
    let n = take(intern!(py, "n"))?
        .map_or(Ok(None), |n| convert::read_field::<Option<u32>>("n", "a positive integer", &n))?
        .unwrap_or(1);
    let unit: Option<String> = take(intern!(py, "unit"))?.map(|unit| unit.extract()).transpose()?;
    let at = match (take(intern!(py, "at"))?.filter(|at| !at.is_none()), unit.as_deref().unwrap_or("token")) {
        (None, "token" | "byte") => ForkPoint::End,
        (Some(at), "token") => ForkPoint::Token(convert::read_field("at", "a number of tokens or None", &at)?),
        (Some(at), "byte") => ForkPoint::Byte(convert::read_field("at", "a number of bytes or None", &at)?),
        (_, unit) => return Err(invalid_request("unit", format!("{unit:?}"), "\"token\" or \"byte\"")),
    };
    let append = take(intern!(py, "append"))?.map_or(Ok(None), |append| convert::read_text_or_tokens("append", &append))?;
    let parent_request = parent.settings.request_of(py, branch);
    let (request, restart) = if options.is_empty() {
        (parent_request, None)
    } else {
        let with_own_seeds = options.get_item(intern!(py, "seed"))?.is_some_and(|seed| !seed.is_none());
        let request = py.import(intern!(py, "weft.request.branches"))?.getattr(intern!(py, "fork_request"))?;
        let request = request.call1((parent_request, n, options))?;
        let input = convert::read_request(&request)?;
        (request.unbind(), Some((input, with_own_seeds)))
    };
    let model = parent.settings.model.upgrade().ok_or_else(|| EngineStoppedError::new_err(()))?;
    let parent_stream = parent.stream()?;
    let wakers = Arc::clone(&parent_stream.wakers);
    let wake_handle: Arc<dyn WakeHandle> = Arc::<LoopWakers>::clone(&wakers);
    let parses_special = parent.settings.parses_special;
    let destination = destination(Arc::clone(&wake_handle));
    let pending = detached(py, || -> crate::error::Result<PendingFork> {
        let append = append.map_or(Ok(Vec::new()), |append| append.read_continuation(parses_special, &model))?;
        let kind = match restart {
            None => ForkKind::Continue(n),
            Some((input, with_own_seeds)) => {
                let request = input.complete(Prompt::default(), parses_special, &model, &mut Constraints::default())?;
                ForkKind::Restart { requests: vec![request], with_own_seeds }
            }
        };
        parent_stream.completions.request_fork(Fork { branch, at, append, kind, destination }, Some(wake_handle))
    })?;
    Ok(PyNext::of_answer(AwaitedFork { pending, stream, branch, request, wakers }))
}
