//! Streams, and how their readers cancel them.

use std::sync::Arc;

use super::Inner;
use crate::engine::features::hooks;
use crate::engine::output::completions::{self, Completions};
use crate::engine::output::stream::Sender;
use crate::engine::output::wake_handle::WakeHandle;
use crate::engine::worker::Command;

/// Returns both ends of a new stream of `n` branches, which the request groups from `request_id` on write to.
pub(in crate::engine) fn open_stream(
    inner: &Arc<Inner>,
    request_id: u64,
    n: u32,
    wake_handle: Option<Arc<dyn WakeHandle>>,
) -> (Sender, Completions) {
    let canceller = inner.commands.clone();
    // If the worker has stopped, there is nothing to cancel.
    let cancel = move |branch: Option<u32>| {
        let command = branch.map_or(Command::Cancel(request_id), |index| Command::CancelBranch(request_id, index));
        canceller.send(command).unwrap_or_default();
    };
    let (sender, mut completions) = completions::open_stream(request_id, n, wake_handle, Box::new(cancel));
    hooks::on_open_stream(inner, request_id, &mut completions);
    (sender, completions)
}
