//! How much is at work and how much may wait. What is over that is refused at once, instead of being told so by a pool after
//! seconds of waiting.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use crate::config::Settings;
use crate::error::{Deadline, Failure};

/// The money work of a process: the tasks under way, and the places for them.
#[derive(Clone)]
pub(super) struct Works {
    pub(super) tasks: TaskTracker,
    /// One place for each connection: whoever has one finds a connection.
    at_work: Arc<Semaphore>,
    /// Those at work and those that wait for a place.
    accepted: Arc<Semaphore>,
}

/// A place at work, given back when it is dropped.
pub(super) struct Place {
    _at_work: OwnedSemaphorePermit,
    _accepted: OwnedSemaphorePermit,
}

impl Works {
    pub(super) fn new(settings: &Settings) -> Self {
        let at_work = settings.database.pool_size as usize;
        let accepted = at_work + settings.request.most_waiting as usize;
        Self {
            tasks: TaskTracker::new(),
            at_work: Arc::new(Semaphore::new(at_work)),
            accepted: Arc::new(Semaphore::new(accepted)),
        }
    }

    /// Waits for a place, until the deadline at most: who waited longer never starts to move money.
    pub(super) async fn enter(&self, deadline: Deadline) -> Result<Place, Failure> {
        let accepted = self.accepted.clone().try_acquire_owned();
        let accepted = accepted.map_err(|_| Failure::unavailable("too much money work is waiting"))?;
        let waiting = self.at_work.clone().acquire_owned();
        match tokio::time::timeout_at(deadline.instant().into(), waiting).await {
            Ok(Ok(at_work)) if !deadline.has_passed() => Ok(Place { _at_work: at_work, _accepted: accepted }),
            _ => Err(Failure::unavailable("the deadline passed while the work waited for a place")),
        }
    }

    /// No new work; waits for what is under way.
    pub(super) async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
