//! Forgets events that were delivered long ago. Dead letters stay: somebody has to look at them.

use chrono::TimeDelta;
use tokio_util::sync::CancellationToken;

use super::forget::{Forgotten, in_batches};
use crate::error::Failure;
use crate::operations::App;

/// Forgets delivered events.
pub struct PruneOutbox {
    app: App,
    retention: TimeDelta,
}

impl PruneOutbox {
    /// A worker on the books of an app.
    pub fn new(app: &App) -> Self {
        let retention = TimeDelta::days(i64::from(app.settings.webhooks.retention_days));
        Self { app: app.clone(), retention }
    }

    /// Forgets all whose retention is over, batch after batch, or what it can until it is told to stop.
    pub async fn run_once(&self, stop: &CancellationToken) -> Result<Forgotten, Failure> {
        let batch = |from, most| self.app.ledger.forget_delivered_events(from, self.retention, most);
        let forgotten = in_batches(stop, batch).await?;
        metrics::counter!("largesse_events_forgotten_total").increment(forgotten.rows as u64);
        Ok(forgotten)
    }
}
