//! Events on their way out: who may send which next, and how that ended.
//!
//! A row is **pending** until it is delivered or dead, and a pending row has a moment from which a worker may take it.
//! Taking it moves that moment to the lease's end and leaves a token: a worker that dies loses the row when its lease ends,
//! and one that comes back too late holds a token that is no longer there. No transaction is open while a row is sent.
//!
//! A row waits for the earlier pending rows of its endpoint and wallet. Rows become visible in the order of their
//! sequence numbers, because the wallet's lock is held until COMMIT: whoever sees a row sees all earlier ones.
//!
//! **Parking.** Behind one event that an endpoint refuses, a wallet can gather any number of others, all of them due. So
//! that they are not looked at again and again, they are parked: due only after [`PARKED_FOR`]. Whoever ends an event wakes
//! the wallet's next one at once. A wake-up can be lost only if a process dies between both; the event is then late by that
//! time, and never lost.

use chrono::{DateTime, TimeDelta, Utc};
use sea_orm::{
    ColumnTrait, Condition, ConnectionTrait, DbBackend, DbErr, EntityTrait, FromQueryResult, PaginatorTrait,
    QueryFilter, QueryOrder, QuerySelect, Statement, Value, sea_query::Expr,
};
use uuid::Uuid;

use super::Ledger;
use super::tx::failure;
use crate::entity::outbox;
use crate::error::Failure;
use crate::traces::Origin;

/// How long a row that waits for an earlier one is not looked at, unless somebody wakes it: as long as a lease lasts by
/// default, so that a worker that dies costs its events about the same wherever it dies.
const PARKED_FOR: TimeDelta = TimeDelta::seconds(30);

/// How many due rows one statement looks at, at most, so that it stays short whatever waits. The number stands in the
/// statement's text: for one that it does not know, PostgreSQL plans as if there were a tenth of the table, and reads all of it.
const WINDOW: u32 = 256;

/// How many due rows are looked at for each one that is wanted. Each of them is locked, and that costs as much as a write; what
/// stands in the way is parked, so a few are enough.
const LOOKED_AT_FOR_EACH: u32 = 4;

/// An event that its worker alone may send until its lease ends.
#[derive(Debug, Clone, FromQueryResult)]
pub struct Parcel {
    /// The webhook's id.
    pub id: Uuid,
    /// The event's type.
    pub event: String,
    /// The bytes to sign and send.
    pub payload: String,
    /// The attempts, this one included.
    pub attempts: i64,
    endpoint: String,
    wallet_id: Uuid,
    seq: i64,
    lease: Uuid,
    trace_context: Option<String>,
}

impl Parcel {
    /// The trace in which the event came true.
    pub fn origin(&self) -> Option<Origin> {
        Origin::of_written(self.trace_context.as_deref()?)
    }
}

/// What becomes of an event that an attempt did not deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It is sent again after this time.
    Again(TimeDelta),
    /// It is given up, and the wallet's next event may go.
    Dead,
}

/// How far behind an endpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// How long its oldest pending event has been waiting; zero if none is.
    pub oldest_pending: TimeDelta,
    /// Events that it has not got yet.
    pub pending: u64,
    /// Events that were given up.
    pub dead: u64,
}

/// Where an event stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The webhook's id.
    pub id: Uuid,
    /// The endpoint's name.
    pub endpoint: String,
    /// The event's type.
    pub event: String,
    /// When it came true.
    pub created_at: DateTime<Utc>,
    /// How often it was sent.
    pub attempts: i64,
    /// When it is sent next; none if it is dead.
    pub next_attempt_at: Option<DateTime<Utc>>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
}

/// An earlier event of the due row's endpoint and wallet that is still pending.
const EARLIER: &str = "SELECT 1 FROM outbox earlier WHERE earlier.endpoint = $1 AND earlier.wallet_id = due.wallet_id \
     AND earlier.seq < due.seq AND earlier.delivered_at IS NULL AND earlier.dead_at IS NULL";

impl Ledger {
    /// Takes at most so many events of an endpoint, for as long as the lease lasts.
    pub async fn take_events(&self, endpoint: &str, most: u32, lease: TimeDelta) -> Result<Vec<Parcel>, Failure> {
        let mut taken = Vec::new();
        loop {
            let free = most.saturating_sub(u32::try_from(taken.len()).unwrap_or(u32::MAX));
            match self.take_or_park(endpoint, free, lease).await {
                Ok((more, parked)) => {
                    taken.extend(more);
                    // Whatever was parked stood before others that could be taken.
                    if taken.len() >= most as usize || parked == 0 {
                        return Ok(taken);
                    }
                }
                // What was taken before is sent.
                Err(_) if !taken.is_empty() => return Ok(taken),
                Err(error) => return Err(failure(error)),
            }
        }
    }

    /// Takes what is due; if that is less than wanted, parks what stands in the way, and says how much that was.
    async fn take_or_park(&self, endpoint: &str, wanted: u32, lease: TimeDelta) -> Result<(Vec<Parcel>, u64), DbErr> {
        let taken = self.take_due(endpoint, wanted, lease).await?;
        let parked = if taken.len() < wanted as usize { self.park(endpoint).await } else { Ok(0) };
        match parked {
            Ok(parked) => Ok((taken, parked)),
            Err(_) if !taken.is_empty() => Ok((taken, 0)),
            Err(error) => Err(error),
        }
    }

    /// OFFSET 0 says the same and keeps PostgreSQL from making a join of it. Without statistics, as on a table that was empty
    /// a minute ago, it joins with all that is pending, and each look reads the whole backlog; a question for each row that
    /// is due uses the index, and with an order that the index has nothing else, whatever the planner believes.
    async fn take_due(&self, endpoint: &str, most: u32, lease: TimeDelta) -> Result<Vec<Parcel>, DbErr> {
        let now = self.clock.read(&self.write).await?;
        let sql = format!(
            "WITH due AS ({due}), free AS (SELECT due.id AS parcel FROM due WHERE NOT EXISTS ({EARLIER} \
             ORDER BY earlier.seq LIMIT 1 OFFSET 0) \
             ORDER BY due.next_attempt_at, due.id LIMIT $3) \
             UPDATE outbox SET lease = $4, next_attempt_at = $5, attempts = attempts + 1 FROM free WHERE id = parcel \
             RETURNING id, event, payload, attempts, endpoint, wallet_id, seq, lease, trace_context",
            due = self.due(most.saturating_mul(LOOKED_AT_FOR_EACH).min(WINDOW)),
        );
        let values: [Value; 5] =
            [endpoint.into(), now.into(), i64::from(most).into(), Uuid::new_v4().into(), (now + lease).into()];
        Parcel::find_by_statement(Statement::from_sql_and_values(self.backend(), sql, values)).all(&self.write).await
    }

    /// Due rows, oldest first. PostgreSQL: those that no other worker holds in this moment.
    fn due(&self, window: u32) -> String {
        let lock = if self.backend() == DbBackend::Postgres { "FOR UPDATE SKIP LOCKED" } else { "" };
        format!(
            "SELECT id, wallet_id, seq, next_attempt_at FROM outbox WHERE endpoint = $1 AND next_attempt_at <= $2 \
             ORDER BY next_attempt_at, id LIMIT {window} {lock}"
        )
    }

    /// Puts aside due rows that stand behind an earlier one, and says how many. On PostgreSQL it does so only where it can
    /// lock the first of the earlier ones: whoever ends that one does so later, sees the parked row, and wakes it.
    async fn park(&self, endpoint: &str) -> Result<u64, DbErr> {
        let now = self.clock.read(&self.write).await?;
        let behind = if self.backend() == DbBackend::Postgres {
            format!(
                "SELECT due.id AS parcel FROM due CROSS JOIN LATERAL \
                 ({EARLIER} ORDER BY earlier.seq LIMIT 1 FOR SHARE SKIP LOCKED) AS first"
            )
        } else {
            format!("SELECT due.id AS parcel FROM due WHERE EXISTS ({EARLIER})")
        };
        let sql = format!(
            "WITH due AS ({due}), behind AS ({behind}) UPDATE outbox SET next_attempt_at = $3, lease = NULL FROM behind \
             WHERE id = parcel",
            due = self.due(WINDOW),
        );
        let values: [Value; 3] = [endpoint.into(), now.into(), (now + PARKED_FOR).into()];
        let parked = Statement::from_sql_and_values(self.backend(), sql, values);
        Ok(self.write.execute_raw(parked).await?.rows_affected())
    }

    /// The endpoint has it. False if the lease was lost before, and nothing was written.
    pub async fn event_delivered(&self, parcel: &Parcel) -> Result<bool, Failure> {
        let now = self.clock.read(&self.write).await.map_err(failure)?;
        let end = [
            (outbox::Column::DeliveredAt, Expr::val(now)),
            (outbox::Column::NextAttemptAt, Expr::val(None::<DateTime<Utc>>)),
            (outbox::Column::LastError, Expr::val(None::<String>)),
        ];
        self.end_attempt(parcel, now, end.into(), true).await.map_err(failure)
    }

    /// The endpoint has it not. The result is that of [`Self::event_delivered`].
    pub async fn event_failed(&self, parcel: &Parcel, error: &str, then: Then) -> Result<bool, Failure> {
        let now = self.clock.read(&self.write).await.map_err(failure)?;
        let next = match then {
            Then::Again(pause) => Some(now + pause),
            Then::Dead => None,
        };
        let dead = next.is_none().then_some(now);
        let end = [
            (outbox::Column::LastError, Expr::val(Some(error.to_owned()))),
            (outbox::Column::NextAttemptAt, Expr::val(next)),
            (outbox::Column::DeadAt, Expr::val(dead)),
        ];
        self.end_attempt(parcel, now, end.into(), dead.is_some()).await.map_err(failure)
    }

    /// Writes an end by the lease's token, and wakes the wallet's next event in a statement of its own: that one sees what
    /// was parked until the end was written.
    async fn end_attempt(
        &self,
        parcel: &Parcel,
        now: DateTime<Utc>,
        end: Vec<(outbox::Column, Expr)>,
        is_over: bool,
    ) -> Result<bool, DbErr> {
        let mut update = outbox::Entity::update_many()
            .col_expr(outbox::Column::Lease, Expr::val(None::<Uuid>))
            .filter(outbox::Column::Id.eq(parcel.id))
            .filter(outbox::Column::Lease.eq(parcel.lease));
        for (column, value) in end {
            update = update.col_expr(column, value);
        }
        if update.exec(&self.write).await?.rows_affected == 0 {
            return Ok(false);
        }
        if is_over {
            self.wake_next(parcel, now).await?;
        }
        Ok(true)
    }

    async fn wake_next(&self, parcel: &Parcel, now: DateTime<Utc>) -> Result<(), DbErr> {
        let sql = "UPDATE outbox SET next_attempt_at = $1 WHERE lease IS NULL AND id = (SELECT id FROM outbox \
                   WHERE endpoint = $2 AND wallet_id = $3 AND seq > $4 AND delivered_at IS NULL AND dead_at IS NULL \
                   ORDER BY seq LIMIT 1) AND next_attempt_at IS NOT NULL";
        let values: [Value; 4] =
            [now.into(), parcel.endpoint.as_str().into(), parcel.wallet_id.into(), parcel.seq.into()];
        self.write.execute_raw(Statement::from_sql_and_values(self.backend(), sql, values)).await?;
        Ok(())
    }

    /// How far behind an endpoint is.
    pub async fn backlog(&self, endpoint: &str) -> Result<Backlog, Failure> {
        let pending = outbox::Entity::find()
            .select_only()
            .column_as(outbox::Column::CreatedAt.min(), "oldest")
            .column_as(outbox::Column::Id.count(), "pending")
            .filter(outbox::Column::Endpoint.eq(endpoint))
            .filter(outbox::Column::NextAttemptAt.is_not_null())
            .into_tuple::<(Option<DateTime<Utc>>, i64)>();
        let (oldest, pending) = pending.one(&self.read).await.map_err(failure)?.unwrap_or_default();
        let dead = outbox::Entity::find()
            .filter(outbox::Column::Endpoint.eq(endpoint))
            .filter(outbox::Column::DeadAt.is_not_null());
        let dead = dead.count(&self.read).await.map_err(failure)?;
        let now = self.clock.read(&self.read).await.map_err(failure)?;
        let oldest_pending = oldest.map_or(TimeDelta::zero(), |oldest| (now - oldest).max(TimeDelta::zero()));
        Ok(Backlog { oldest_pending, pending: u64::try_from(pending).unwrap_or_default(), dead })
    }

    /// Events that were not delivered, oldest first: dead ones, and pending ones unless `dead_only`.
    pub async fn undelivered_events(&self, dead_only: bool, most: u64) -> Result<Vec<Standing>, Failure> {
        let mut which = Condition::any().add(outbox::Column::DeadAt.is_not_null());
        if !dead_only {
            which = which.add(outbox::Column::NextAttemptAt.is_not_null());
        }
        let rows = outbox::Entity::find().filter(which).order_by_asc(outbox::Column::Id).limit(most);
        let rows = rows.all(&self.read).await.map_err(failure)?;
        Ok(rows.into_iter().map(Standing::from).collect())
    }

    /// Makes a dead letter pending again, with all its attempts before it. False if there is no such dead letter.
    pub async fn resend_event(&self, id: Uuid) -> Result<bool, Failure> {
        let now = self.clock.read(&self.write).await.map_err(failure)?;
        let update = outbox::Entity::update_many()
            .col_expr(outbox::Column::DeadAt, Expr::val(None::<DateTime<Utc>>))
            .col_expr(outbox::Column::NextAttemptAt, Expr::val(Some(now)))
            .col_expr(outbox::Column::Attempts, Expr::val(0))
            .filter(outbox::Column::Id.eq(id))
            .filter(outbox::Column::DeadAt.is_not_null());
        Ok(update.exec(&self.write).await.map_err(failure)?.rows_affected > 0)
    }
}

impl From<outbox::Model> for Standing {
    fn from(row: outbox::Model) -> Self {
        Self {
            id: row.id,
            endpoint: row.endpoint,
            event: row.event,
            created_at: row.created_at,
            attempts: row.attempts,
            next_attempt_at: row.next_attempt_at,
            last_error: row.last_error,
        }
    }
}
