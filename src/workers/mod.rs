//! What the clock starts: events are sent, and what may be forgotten is forgotten.
//!
//! | file | what it is for |
//! |---|---|
//! | [`deliver_outbox`] | sends events to their endpoints |
//! | [`post_webhook`] | one attempt: signature, address check, limits, and what the answer means |
//! | [`clean_keys`] | forgets idempotency keys whose retention is over |
//! | [`prune_outbox`] | forgets events that were delivered long ago |
//! | [`audit_books`] | says whether the books balance, now and then |
//! | [`forget`] | how both do that: small batches, long pauses |
//!
//! Each has `run_once`, and is safe in any number of processes: rows are taken by a lease or skipped where another holds
//! them. A worker that fails logs it, and tries again later; it ends when it is told to, after the row at hand.

pub mod audit_books;
pub mod clean_keys;
pub mod deliver_outbox;
pub mod forget;
pub mod post_webhook;
pub mod prune_outbox;

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::ConfigError;
use crate::error::Failure;
use crate::operations::App;
use audit_books::AuditBooks;
use clean_keys::CleanKeys;
use deliver_outbox::DeliverOutbox;
use forget::Forgotten;
use prune_outbox::PruneOutbox;

/// Tells the workers to stop.
pub type Shutdown = CancellationToken;

/// How often the cleaners look whether there is something to forget.
const CLEANING_INTERVAL: Duration = Duration::from_mins(1);

/// All workers of a process, ready to be run.
pub struct Workers {
    deliver: DeliverOutbox,
    clean: CleanKeys,
    prune: PruneOutbox,
    audit: AuditBooks,
}

impl Workers {
    /// Puts the workers together.
    pub fn new(app: &App) -> Result<Self, ConfigError> {
        Ok(Self {
            deliver: DeliverOutbox::new(app)?,
            clean: CleanKeys::new(app),
            prune: PruneOutbox::new(app),
            audit: AuditBooks::new(app),
        })
    }

    /// Works until it is told to stop. What is being sent then is finished, and how that ended is written down.
    pub async fn run(self, stop: Shutdown) {
        let Self { deliver, clean, prune, audit } = self;
        let mut workers = JoinSet::new();
        workers.spawn(deliver.run(stop.clone()));
        workers.spawn(audit.run(stop.clone()));
        workers.spawn(clean_now_and_then(clean, prune, stop));
        while let Some(ended) = workers.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a worker ended by itself");
            }
        }
    }
}

/// One cleaner after the other, so that they never add up.
async fn clean_now_and_then(clean: CleanKeys, prune: PruneOutbox, stop: Shutdown) {
    while !stop.is_cancelled() {
        note("clean_keys", clean.run_once(&stop).await);
        note("prune_outbox", prune.run_once(&stop).await);
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(CLEANING_INTERVAL) => {}
        }
    }
}

fn note(worker: &str, ended: Result<Forgotten, Failure>) {
    match ended {
        Ok(forgotten) if forgotten.rows > 0 => {
            let longest_ms = u64::try_from(forgotten.longest.as_millis()).unwrap_or(u64::MAX);
            tracing::info!(worker, rows = forgotten.rows, longest_ms, "forgotten");
        }
        Ok(_) => {}
        Err(failure) => tracing::warn!(worker, ?failure, "the worker failed, and tries again later"),
    }
}
