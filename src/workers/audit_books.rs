//! Audits the books now and then, one process at a time, so that books out of balance are a signal and not a discovery.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use tokio_util::sync::CancellationToken;

use crate::error::Failure;
use crate::ledger::audit_turn::{LastAudit, Turn};
use crate::operations::App;

/// How often it is asked whether an audit is due, and how old the metrics of one by another process may be.
const LOOK_INTERVAL: Duration = Duration::from_mins(1);

/// How often an audit that takes long says that it is still at work: well within its lease.
const KEEP_INTERVAL: Duration = Duration::from_mins(1);

/// Audits the books.
pub struct AuditBooks {
    app: App,
    every_hours: u32,
}

/// What a run did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audited {
    /// It is not time yet, or another process is at it.
    NotDue,
    /// It was told to stop, and the next process may begin.
    Stopped,
    /// Another process took over before it ended.
    TooLate,
    /// So many rows break a rule.
    Done(usize),
}

impl AuditBooks {
    /// A worker on the books of an app.
    pub fn new(app: &App) -> Self {
        Self { app: app.clone(), every_hours: app.settings.workers.audit_every_hours }
    }

    /// Audits if an audit is due, and tells the metrics what the last one found, whichever process it was.
    pub async fn run_once(&self, stop: &CancellationToken) -> Result<Audited, Failure> {
        if self.every_hours == 0 {
            return Ok(Audited::NotDue);
        }
        let every = TimeDelta::hours(i64::from(self.every_hours));
        let audited = match self.app.ledger.take_audit_turn(every).await? {
            Some(turn) => self.audit(turn, stop).await?,
            None => Audited::NotDue,
        };
        metrics::gauge!("largesse_audit_interval_seconds").set(every.as_seconds_f64());
        measure(self.app.ledger.last_audit().await?);
        Ok(audited)
    }

    /// Works until it is told to stop.
    pub(super) async fn run(self, stop: CancellationToken) {
        if self.every_hours == 0 {
            return;
        }
        while !stop.is_cancelled() {
            if let Err(failure) = self.run_once(&stop).await {
                tracing::warn!(?failure, "the books could not be audited; it is tried again later");
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(LOOK_INTERVAL) => {}
            }
        }
    }

    async fn audit(&self, turn: Turn, stop: &CancellationToken) -> Result<Audited, Failure> {
        let (ledger, began) = (&self.app.ledger, Instant::now());
        let auditing = ledger.audit();
        tokio::pin!(auditing);
        let report = loop {
            tokio::select! {
                report = &mut auditing => break report.map_err(|error| Failure::unavailable(error.to_string()))?,
                () = stop.cancelled() => {
                    ledger.give_audit_turn_back(turn).await?;
                    return Ok(Audited::Stopped);
                }
                () = tokio::time::sleep(KEEP_INTERVAL) => drop(ledger.keep_audit_turn(&turn).await),
            }
        };
        let (took, broken_rows) = (began.elapsed(), report.broken.len());
        if !ledger.end_audit_turn(turn, took, &report).await? {
            return Ok(Audited::TooLate);
        }
        if report.books_balance() {
            tracing::info!(took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX), "audited: the books balance");
        } else {
            tracing::error!(broken_rows, "audited: the books do not balance; `largesse audit` lists the broken rows");
        }
        Ok(Audited::Done(broken_rows))
    }
}

#[allow(clippy::cast_precision_loss, reason = "times and numbers of rows are far below 2^52")]
fn measure(last: Option<LastAudit>) {
    let finished = last.map_or(0.0, |last| last.finished_at.timestamp_millis() as f64 / 1000.0);
    metrics::gauge!("largesse_audit_finished_timestamp_seconds").set(finished);
    if let Some(last) = last {
        metrics::gauge!("largesse_audit_broken_rows").set(last.broken_rows as f64);
        metrics::gauge!("largesse_audit_seconds").set(last.took.as_secs_f64());
    }
}
