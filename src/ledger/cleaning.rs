//! What may be forgotten, in batches so small that no lock is held for long: keys whose retention is over, and events that
//! were delivered long ago.

use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use sea_orm::{DbBackend, DbErr, FromQueryResult, Statement, Value};

use super::Ledger;
use super::tx::failure;
use crate::error::Failure;

/// What one batch took away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Batch {
    /// How many rows.
    pub rows: usize,
    /// The newest moment among them. The next batch begins here: an index keeps its deleted entries until no snapshot can
    /// see them any more, and without this each batch would walk over those of all before it.
    pub until: Option<DateTime<Utc>>,
    /// How long the statement took, its commit included, and so how long its locks were held at most.
    pub took: Duration,
}

#[derive(FromQueryResult)]
struct Gone {
    moment: DateTime<Utc>,
}

impl Ledger {
    /// Forgets at most so many idempotency keys that expired at `from` or later. Rows that another cleaner or a replay has
    /// locked are left for the next time.
    pub async fn forget_expired_keys(&self, from: Option<DateTime<Utc>>, most: u32) -> Result<Batch, Failure> {
        let now = self.clock.read(&self.write).await.map_err(failure)?;
        self.forget("idempotency_keys", "expires_at", (from, now), most).await.map_err(failure)
    }

    /// Forgets at most so many events that were delivered longer ago than `age`, and at `from` or later.
    pub async fn forget_delivered_events(
        &self,
        from: Option<DateTime<Utc>>,
        age: TimeDelta,
        most: u32,
    ) -> Result<Batch, Failure> {
        let now = self.clock.read(&self.write).await.map_err(failure)?;
        self.forget("outbox", "delivered_at", (from, now - age), most).await.map_err(failure)
    }

    async fn forget(
        &self,
        table: &'static str,
        moment: &'static str,
        (from, before): (Option<DateTime<Utc>>, DateTime<Utc>),
        most: u32,
    ) -> Result<Batch, DbErr> {
        // A row's place is the quickest way to it; an array, because a planner may run a subquery more than once.
        let (chosen, lock) = match self.backend() {
            DbBackend::Postgres => ("ctid = ANY(ARRAY(SELECT ctid", "FOR UPDATE SKIP LOCKED))"),
            _ => ("rowid IN (SELECT rowid", ")"),
        };
        let sql = format!(
            "DELETE FROM {table} WHERE {chosen} FROM {table} WHERE {moment} >= $1 AND {moment} < $2 \
             ORDER BY {moment} LIMIT $3 {lock} RETURNING {moment} AS moment"
        );
        let values: [Value; 3] = [from.unwrap_or_default().into(), before.into(), i64::from(most).into()];
        let statement = Statement::from_sql_and_values(self.backend(), sql, values);
        let began = Instant::now();
        let gone = Gone::find_by_statement(statement).all(&self.write).await?;
        Ok(Batch { rows: gone.len(), until: gone.iter().map(|gone| gone.moment).max(), took: began.elapsed() })
    }
}
