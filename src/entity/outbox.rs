//! Events on their way to endpoints, one row for each of both. Written by `ledger` alone.

use sea_orm::entity::prelude::*;

/// A row of `outbox`.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "outbox")]
pub struct Model {
    /// The webhook's id, the same in every attempt.
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: Uuid,
    /// The endpoint's name in the settings.
    pub endpoint: String,
    /// The wallet that moved.
    pub wallet_id: Uuid,
    /// The entry's place in the wallet.
    pub seq: i64,
    /// The event's type.
    pub event: String,
    /// The bytes that are signed and sent.
    pub payload: String,
    /// When it came true.
    pub created_at: DateTimeUtc,
    /// How often it was sent.
    pub attempts: i64,
    /// When a worker may take it; null once it is delivered or dead.
    pub next_attempt_at: Option<DateTimeUtc>,
    /// Who has it.
    pub lease: Option<Uuid>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// When the endpoint took it.
    pub delivered_at: Option<DateTimeUtc>,
    /// When it was given up.
    pub dead_at: Option<DateTimeUtc>,
    /// The trace in which it came true.
    pub trace_context: Option<String>,
}

/// Joins are written where they are needed.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
