//! Guards for cells in use. A dropped guard queues the release of its cells, which
//! [`CacheManager`](crate::engine::cache_manager::CacheManager) carries out before any other change: they stay cached until
//! their space is needed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::engine::runner::KvSeqId;
use crate::lock::lock;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    Unpin(KvSeqId),
    Truncate(KvSeqId, u32),
    Discard(KvSeqId),
    DiscardFailed(KvSeqId),
    /// With the number of the reservation.
    Reserve(KvSeqId, Option<u32>, u64),
    EndReservation(u64),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ReleaseQueue(Arc<QueueState>);

#[derive(Debug, Default)]
struct QueueState {
    releases: Mutex<Vec<Release>>,
    /// Read before the lock is taken: most steps release nothing.
    has_releases: AtomicBool,
    n_reservations: AtomicU64,
}

impl ReleaseQueue {
    fn push(&self, release: Release) {
        lock(&self.0.releases).push(release);
        self.0.has_releases.store(true, Ordering::Release);
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.0.has_releases.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Vec<Release> {
        let mut releases = lock(&self.0.releases);
        self.0.has_releases.store(false, Ordering::Release);
        std::mem::take(&mut *releases)
    }

    pub(crate) fn guard(&self, id: KvSeqId) -> PathGuard {
        PathGuard { id, queue: Some(self.clone()) }
    }
}

/// A path in use. Dropping the guard makes the path idle.
#[derive(Debug)]
#[must_use]
pub(crate) struct PathGuard {
    id: KvSeqId,
    queue: Option<ReleaseQueue>,
}

impl PathGuard {
    pub(crate) fn id(&self) -> KvSeqId {
        self.id
    }

    pub(crate) fn discard(&mut self) {
        self.release(Release::Discard(self.id));
    }

    /// As [`PathGuard::discard`], if the contents are unknown after a failure.
    pub(crate) fn discard_failed(&mut self) {
        self.release(Release::DiscardFailed(self.id));
    }

    /// Drops all but the first `n_kept` tokens, if the memory can.
    pub(crate) fn truncate(&self, n_kept: u32) {
        if let Some(queue) = &self.queue {
            queue.push(Release::Truncate(self.id, n_kept));
        }
    }

    /// Makes the path idle and reserves its first `n_kept` tokens (`None` for all) for a sequence that will resume.
    pub(crate) fn reserve(mut self, n_kept: Option<u32>) -> ReservationGuard {
        let queue = self.queue.take().expect("a sequence that is preempted uses its path");
        let number = queue.0.n_reservations.fetch_add(1, Ordering::Relaxed);
        queue.push(Release::Reserve(self.id, n_kept, number));
        ReservationGuard { number, queue }
    }

    /// An operation of the cache releases the path instead.
    pub(crate) fn disarm(&mut self) -> KvSeqId {
        self.queue = None;
        self.id
    }

    fn release(&mut self, release: Release) {
        if let Some(queue) = self.queue.take() {
            queue.push(release);
        }
    }
}

impl Drop for PathGuard {
    fn drop(&mut self) {
        self.release(Release::Unpin(self.id));
    }
}

/// Cached tokens of a sequence that waits to resume. Dropping the guard ends their reservation.
#[derive(Debug)]
#[must_use]
pub(crate) struct ReservationGuard {
    number: u64,
    queue: ReleaseQueue,
}

impl Drop for ReservationGuard {
    fn drop(&mut self) {
        self.queue.push(Release::EndReservation(self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: KvSeqId = KvSeqId(3);

    #[test]
    fn a_dropped_path_becomes_idle() {
        let queue = ReleaseQueue::default();
        drop(queue.guard(ID));
        assert_eq!(queue.take(), [Release::Unpin(ID)]);
        assert!(queue.is_empty());
    }

    #[test]
    fn a_path_is_released_once() {
        let queue = ReleaseQueue::default();
        let (mut discarded, mut failed) = (queue.guard(ID), queue.guard(ID));
        discarded.discard();
        failed.discard_failed();
        drop((discarded, failed));
        assert_eq!(queue.take(), [Release::Discard(ID), Release::DiscardFailed(ID)]);
    }

    #[test]
    fn a_disarmed_guard_releases_nothing() {
        let queue = ReleaseQueue::default();
        let mut path = queue.guard(ID);
        assert_eq!(path.disarm(), ID);
        drop(path);
        assert!(queue.is_empty());
    }

    #[test]
    fn tokens_are_dropped_before_their_path_becomes_idle() {
        let queue = ReleaseQueue::default();
        let path = queue.guard(ID);
        path.truncate(5);
        drop(path);
        assert_eq!(queue.take(), [Release::Truncate(ID, 5), Release::Unpin(ID)]);
    }

    #[test]
    fn each_reservation_ends_once() {
        let queue = ReleaseQueue::default();
        let (first, second) = (queue.guard(ID).reserve(None), queue.guard(ID).reserve(Some(7)));
        assert_eq!(queue.take(), [Release::Reserve(ID, None, 0), Release::Reserve(ID, Some(7), 1)]);
        drop(second);
        drop(first);
        assert_eq!(queue.take(), [Release::EndReservation(1), Release::EndReservation(0)]);
    }
}
