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
    _counted: Counted,
}

/// One more in a gauge, until it is dropped.
struct Counted(&'static str);

impl Counted {
    fn one(gauge: &'static str) -> Self {
        metrics::gauge!(gauge).increment(1.0);
        Self(gauge)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        metrics::gauge!(self.0).decrement(1.0);
    }
}

fn refused(reason: &'static str, sentence: &str) -> Failure {
    metrics::counter!("largesse_work_refused_total", "reason" => reason).increment(1);
    Failure::unavailable(sentence)
}

impl Works {
    pub(super) fn new(settings: &Settings) -> Self {
        let at_work = settings.database.pool_size as usize;
        let accepted = at_work + settings.request.most_waiting as usize;
        metrics::gauge!("largesse_work_running_limit").set(settings.database.pool_size);
        metrics::gauge!("largesse_work_waiting_limit").set(settings.request.most_waiting);
        Self {
            tasks: TaskTracker::new(),
            at_work: Arc::new(Semaphore::new(at_work)),
            accepted: Arc::new(Semaphore::new(accepted)),
        }
    }

    /// Waits for a place, until the deadline at most: who waited longer never starts to move money.
    pub(super) async fn enter(&self, deadline: Deadline) -> Result<Place, Failure> {
        let accepted = self.accepted.clone().try_acquire_owned();
        let accepted = accepted.map_err(|_| refused("full", "too much money work is waiting"))?;
        let counted = Counted::one("largesse_work_waiting");
        let waiting = self.at_work.clone().acquire_owned();
        let at_work = tokio::time::timeout_at(deadline.instant().into(), waiting).await;
        drop(counted);
        match at_work {
            Ok(Ok(at_work)) if !deadline.has_passed() => {
                let counted = Counted::one("largesse_work_running");
                Ok(Place { _at_work: at_work, _accepted: accepted, _counted: counted })
            }
            _ => Err(refused("late", "the deadline passed while the work waited for a place")),
        }
    }

    /// No new work; waits for what is under way.
    pub(super) async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
