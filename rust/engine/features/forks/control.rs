//! Fork commands of a stream's consumer, on its thread: checked, and sent to the worker.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::{Arc, Weak};

use crate::engine::Inner;
use crate::engine::features::forks::request::{ForkAnswer, ForkBranches, ForkRequest, ForkSpec};
use crate::engine::features::state::FeatureCommand;
use crate::engine::ids::{BranchIndex, GroupId, StreamId};
use crate::engine::output::completions::{Completions, PendingFork};
use crate::engine::output::fork::{Fork, ForkDestination, ForkKind};
use crate::engine::output::wake_handle::WakeHandle;
use crate::engine::worker::Command;
use crate::error::{Error, Result};
use crate::request::{MAX_COMPLETIONS, Prompt, Request, Task, reject, validate_tokens};
use crate::sampling::Sampler;

pub(in crate::engine) fn on_open_stream(inner: &Arc<Inner>, stream_id: StreamId, completions: &mut Completions) {
    // A weak reference: an open stream does not keep the engine running.
    let engine = Arc::downgrade(inner);
    completions.set_fork(Box::new(move |fork_spec, wake_handle| request_fork(&engine, stream_id, fork_spec, wake_handle)));
}

fn request_fork(
    engine: &Weak<Inner>,
    stream_id: StreamId,
    fork: Fork,
    wake_handle: Option<Arc<dyn WakeHandle>>,
) -> Result<PendingFork> {
    let inner = engine.upgrade().ok_or(Error::Stopped)?;
    let Fork { branch, at, append, kind, destination } = fork;
    validate_tokens("append", &append, inner.model.n_vocab)?;
    let (branches, n) = inner.validate_forks(kind)?;
    let permit = inner.queue_permit()?;
    let group_id = GroupId(inner.n_submitted.fetch_add(1, Ordering::Relaxed));
    let (sender, stream) = match destination {
        ForkDestination::SameStream => (None, None),
        ForkDestination::OwnStream(wake_handle) => {
            let (sender, completions) = inner.open_stream(StreamId(group_id.0), n, wake_handle);
            (Some(Arc::new(sender)), Some(completions))
        }
    };
    let (answer, receiver) = mpsc::sync_channel(1);
    let branch = BranchIndex(branch);
    let spec = ForkSpec { stream_id, branch, at, append, branches, group_id, own_stream: sender, permit };
    let request = ForkRequest { spec, answer: ForkAnswer::new(answer, wake_handle) };
    inner.commands.send(Command::Feature(FeatureCommand::Forks(Box::new(request)))).map_err(|_| Error::Stopped)?;
    Ok(PendingFork::new(receiver, stream))
}

impl Inner {
    fn validate_forks(&self, kind: ForkKind) -> Result<(ForkBranches, u32)> {
        let n = match &kind {
            ForkKind::Continue(n) => u64::from(*n),
            ForkKind::Restart { requests, .. } => requests.iter().map(|request| u64::from(request.n)).sum(),
        };
        let Some(n) = u32::try_from(n).ok().filter(|n| (1..=MAX_COMPLETIONS).contains(n)) else {
            return reject("n", format!("n is {n}; it must be 1 to {MAX_COMPLETIONS}"));
        };
        let branches = match kind {
            ForkKind::Continue(n) => ForkBranches::Continue(n),
            ForkKind::Restart { requests, with_own_seeds } => {
                let requests = requests.into_iter().map(|request| self.validate_fork_request(request)).collect::<Result<_>>()?;
                ForkBranches::Restart { requests, with_own_seeds }
            }
        };
        Ok((branches, n))
    }

    fn validate_fork_request(&self, mut request: Request) -> Result<(Request, Sampler)> {
        let has_prompt_fields = request.prompt.n_tokens() > 0
            || !request.suffix.is_empty()
            || request.adapters.is_some()
            || request.invoked_at.is_some()
            || request.prompt_logprobs.is_some()
            || request.reports_progress
            || request.explains_cache
            || !request.checkpoints_at.is_empty()
            || request.task != Task::Complete;
        if has_prompt_fields {
            let message = "a fork has the prompt and the adapters of its branch; leave out prompt, adapters, prompt logprobs, progress and tasks";
            return reject("prompt", message);
        }
        // A placeholder: the branch's prompt is not known here.
        request.prompt = Prompt::from_tokens(vec![0]);
        request.validate(self.model.n_vocab)?;
        request.prompt = Prompt::default();
        self.check_branch_options(&request)?;
        let sampler = self.sampler(&mut request);
        Ok((request, sampler))
    }
}
