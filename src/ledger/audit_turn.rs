//! Whose turn it is to audit the books: one process at a time, and none before the time has come. What was found stays in the
//! database, where every process reads it.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sea_orm::{ColumnTrait, Condition, DbErr, EntityTrait, QueryFilter, UpdateMany, sea_query::Expr};
use uuid::Uuid;

use super::Ledger;
use super::audit::{Report, audit};
use super::connect::ConnectError;
use super::tx::failure;
use crate::entity::audit as row;
use crate::error::Failure;

/// For how long the turn is one process's, unless it says again that it is at work.
const LEASE: TimeDelta = TimeDelta::minutes(5);

/// The right to audit now.
#[derive(Debug)]
pub struct Turn {
    lease: Uuid,
}

/// What the last audit found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastAudit {
    /// When it ended.
    pub finished_at: DateTime<Utc>,
    /// How long it took.
    pub took: Duration,
    /// How many rows broke a rule.
    pub broken_rows: u64,
}

impl Ledger {
    /// What the last audit found, in whichever process; none if there never was one.
    pub async fn last_audit(&self) -> Result<Option<LastAudit>, Failure> {
        let row = row::Entity::find().one(&self.read).await.map_err(failure)?;
        Ok(row.and_then(|row| {
            Some(LastAudit {
                finished_at: row.finished_at?,
                took: Duration::from_millis(u64::try_from(row.took_ms?).ok()?),
                broken_rows: u64::try_from(row.broken_rows?).ok()?,
            })
        }))
    }

    /// Takes the turn, if the last audit ended so long ago and nobody audits now.
    pub async fn take_audit_turn(&self, every: TimeDelta) -> Result<Option<Turn>, Failure> {
        let now = self.clock.read(&self.write).await.map_err(failure)?;
        let lease = Uuid::new_v4();
        let free = Condition::any().add(row::Column::LeaseEndsAt.is_null()).add(row::Column::LeaseEndsAt.lte(now));
        let due = Condition::any().add(row::Column::FinishedAt.is_null()).add(row::Column::FinishedAt.lte(now - every));
        let take = row::Entity::update_many()
            .col_expr(row::Column::Lease, Expr::val(Some(lease)))
            .col_expr(row::Column::LeaseEndsAt, Expr::val(Some(now + LEASE)))
            .filter(free)
            .filter(due);
        Ok(self.changed(take).await?.then_some(Turn { lease }))
    }

    /// Says that the audit is still at work. False if the turn was lost before.
    pub async fn keep_audit_turn(&self, turn: &Turn) -> Result<bool, Failure> {
        let now = self.clock.read(&self.write).await.map_err(failure)?;
        let keep = own(turn).col_expr(row::Column::LeaseEndsAt, Expr::val(Some(now + LEASE)));
        self.changed(keep).await
    }

    /// Writes down what was found, and ends the turn. False if it was lost before, and nothing was written.
    pub async fn end_audit_turn(&self, turn: Turn, took: Duration, report: &Report) -> Result<bool, Failure> {
        let now = self.clock.read(&self.write).await.map_err(failure)?;
        let took_ms = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
        let broken_rows = i64::try_from(report.broken.len()).unwrap_or(i64::MAX);
        let end = given_back(&turn)
            .col_expr(row::Column::FinishedAt, Expr::val(Some(now)))
            .col_expr(row::Column::TookMs, Expr::val(Some(took_ms)))
            .col_expr(row::Column::BrokenRows, Expr::val(Some(broken_rows)));
        self.changed(end).await
    }

    /// Ends the turn without an audit: another may take it at once.
    pub async fn give_audit_turn_back(&self, turn: Turn) -> Result<bool, Failure> {
        self.changed(given_back(&turn)).await
    }

    /// Audits these books, on a connection of its own.
    pub async fn audit(&self) -> Result<Report, ConnectError> {
        audit(&self.url).await
    }

    async fn changed(&self, update: UpdateMany<row::Entity>) -> Result<bool, Failure> {
        let changed: Result<_, DbErr> = update.exec(&self.write).await;
        Ok(changed.map_err(failure)?.rows_affected > 0)
    }
}

fn own(turn: &Turn) -> UpdateMany<row::Entity> {
    row::Entity::update_many().filter(row::Column::Lease.eq(turn.lease))
}

fn given_back(turn: &Turn) -> UpdateMany<row::Entity> {
    own(turn)
        .col_expr(row::Column::Lease, Expr::val(None::<Uuid>))
        .col_expr(row::Column::LeaseEndsAt, Expr::val(None::<DateTime<Utc>>))
}
