//! What a reader asks of the worker beside events: forks of the branches of its stream.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::{Arc, Weak};

use super::Inner;
use crate::engine::fork_request::{ForkAnswer, ForkBranches, ForkRequest, ForkSpec};
use crate::engine::request_group::QueuePermit;
use crate::engine::stream::{self, Completions, Fork, ForkCommand, ForkDestination, ForkKind, PendingFork, WakeHandle};
use crate::engine::worker::Command;
use crate::error::{Error, Result};
use crate::request::{MAX_COMPLETIONS, Prompt, Request, Task};
use crate::sampling::Sampler;

/// Both ends of a new stream of `n` branches, which the jobs from `stream_id` on write.
pub(super) fn open_stream(
    inner: &Arc<Inner>,
    stream_id: u64,
    n: u32,
    bell: Option<Arc<dyn WakeHandle>>,
) -> (stream::Sender, Completions) {
    let canceller = inner.commands.clone();
    // The worker may have gone; then there is nothing to cancel.
    let cancel = move |branch: Option<u32>| {
        let command = branch.map_or(Command::Cancel(stream_id), |index| Command::CancelBranch(stream_id, index));
        canceller.send(command).unwrap_or_default();
    };
    let (sender, mut completions) = stream::stream(stream_id, n, bell, Box::new(cancel));
    // A stream does not keep the engine running.
    let engine = Arc::downgrade(inner);
    completions.set_fork(Box::new(move |asked, bell| fork(&engine, stream_id, asked, bell)));
    (sender, completions)
}

/// Asks the worker for a fork; `bell` is rung when it has answered.
fn fork(engine: &Weak<Inner>, stream_id: u64, asked: Fork, bell: Option<Arc<dyn WakeHandle>>) -> Result<PendingFork> {
    let inner = engine.upgrade().ok_or(Error::Stopped)?;
    let Fork { branch, at, append, ways, into } = asked;
    inner.check_tokens("append", &append)?;
    let (ways, n) = inner.order_ways(ways)?;
    let place = QueuePermit::acquire(&inner.published.n_waiting, inner.limits.max_queue as usize);
    let place = place.map_err(|n_waiting| Error::QueueFull { n_waiting, unit: "requests" })?;
    let request_id = inner.n_submitted.fetch_add(1, Ordering::Relaxed);
    let (sender, own) = match into {
        ForkDestination::SameStream => (None, None),
        ForkDestination::OwnStream(bell) => {
            let (sender, completions) = open_stream(&inner, request_id, n, bell);
            (Some(Arc::new(sender)), Some(completions))
        }
    };
    let (asker, answered) = mpsc::sync_channel(1);
    let order = ForkSpec { stream_id, branch, at, append, ways, request_id, own: sender, place };
    let order = ForkRequest { order, answer: ForkAnswer::new(asker, bell) };
    inner.commands.send(Command::Fork(Box::new(order))).map_err(|_| Error::Stopped)?;
    Ok(PendingFork::new(ForkCommand { answered, answer: None, own }))
}

impl Inner {
    /// Checks how forks go on, and counts them.
    fn order_ways(&self, ways: ForkKind) -> Result<(ForkBranches, u32)> {
        let refuse = |param: &'static str, message: String| Err(Error::InvalidRequest { param, message });
        let n = match &ways {
            ForkKind::Alike(n) => u64::from(*n),
            ForkKind::Anew { requests, .. } => requests.iter().map(|request| u64::from(request.n)).sum(),
        };
        let Some(n) = u32::try_from(n).ok().filter(|n| (1..=MAX_COMPLETIONS).contains(n)) else {
            return refuse("n", format!("n is {n}; it must be 1 to {MAX_COMPLETIONS}"));
        };
        let (requests, with_own_seeds) = match ways {
            ForkKind::Alike(n) => return Ok((ForkBranches::Alike(n), n)),
            ForkKind::Anew { requests, with_own_seeds } => (requests, with_own_seeds),
        };
        let requests = requests.into_iter().map(|request| self.order_way(request)).collect::<Result<_>>()?;
        Ok((ForkBranches::Anew { requests, with_own_seeds }, n))
    }

    /// A request of forks, which begins with nothing of its own, and its sampler.
    fn order_way(&self, mut request: Request) -> Result<(Request, Sampler)> {
        let is_of_prompt = request.prompt.n_tokens() > 0
            || !request.suffix.is_empty()
            || request.adapters.is_some()
            || request.invoked_at.is_some()
            || request.prompt_logprobs.is_some()
            || request.reports_progress
            || request.explains_cache
            || !request.snapshots_at.is_empty()
            || request.task != Task::Complete;
        if is_of_prompt {
            let message = "forks have the prompt of their branch and its adapters; ask for nothing of a prompt".to_owned();
            return Err(Error::InvalidRequest { param: "prompt", message });
        }
        // In the place of the prompt that is not known here.
        request.prompt = Prompt::from_tokens(vec![0]);
        request.validate(self.known.n_vocab)?;
        request.prompt = Prompt::default();
        self.check_way(&request)?;
        let sampler = self.sampler(&mut request);
        Ok((request, sampler))
    }
}
