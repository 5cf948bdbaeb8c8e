//! Forgets idempotency keys whose retention is over.

use tokio_util::sync::CancellationToken;

use super::forget::{Forgotten, in_batches};
use crate::error::Failure;
use crate::operations::App;

/// Forgets expired keys.
pub struct CleanKeys {
    app: App,
}

impl CleanKeys {
    /// A worker on the books of an app.
    pub fn new(app: &App) -> Self {
        Self { app: app.clone() }
    }

    /// Forgets all that has expired, batch after batch, or what it can until it is told to stop.
    pub async fn run_once(&self, stop: &CancellationToken) -> Result<Forgotten, Failure> {
        let forgotten = in_batches(stop, |from, most| self.app.ledger.forget_expired_keys(from, most)).await?;
        metrics::counter!("largesse_keys_forgotten_total").increment(forgotten.rows as u64);
        Ok(forgotten)
    }
}
