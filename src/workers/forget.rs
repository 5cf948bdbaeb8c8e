//! How the cleaners work: small batches, and long pauses beside them.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio_util::sync::CancellationToken;

use crate::error::Failure;
use crate::ledger::cleaning::Batch;

/// How many rows one statement takes: a few milliseconds' worth, for as long as its locks are held.
const ROWS: u32 = 200;

/// How much longer than a batch the pause after it is: whatever the database can do, the cleaner keeps one connection
/// busy for a twentieth of the time.
const PAUSE_PER_BATCH: u32 = 19;

/// What a run forgot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// How many rows.
    pub rows: usize,
    /// The longest time that a batch took, and so that a lock was held.
    pub longest: Duration,
}

/// Takes batch after batch until one is not full.
pub(super) async fn in_batches<Taking>(
    stop: &CancellationToken,
    batch: impl Fn(Option<DateTime<Utc>>, u32) -> Taking,
) -> Result<Forgotten, Failure>
where
    Taking: Future<Output = Result<Batch, Failure>>,
{
    let (mut forgotten, mut from) = (Forgotten::default(), None);
    loop {
        let taken = batch(from, ROWS).await?;
        forgotten.rows += taken.rows;
        forgotten.longest = forgotten.longest.max(taken.took);
        from = taken.until.or(from);
        if taken.rows < ROWS as usize {
            return Ok(forgotten);
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(forgotten),
            () = tokio::time::sleep(taken.took * PAUSE_PER_BATCH) => {}
        }
    }
}
