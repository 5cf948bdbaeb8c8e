//! Whose turn it is to audit the books, and what the last audit found.

use sea_orm::entity::prelude::*;

/// The row of `audits`.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "audits")]
pub struct Model {
    /// Always `books`.
    #[sea_orm(primary_key, auto_increment = false)]
    pub subject: String,
    /// Who audits now.
    pub lease: Option<Uuid>,
    /// When the turn may go to another.
    pub lease_ends_at: Option<DateTimeUtc>,
    /// When the last audit ended.
    pub finished_at: Option<DateTimeUtc>,
    /// How long it took.
    pub took_ms: Option<i64>,
    /// How many rows broke a rule.
    pub broken_rows: Option<i64>,
}

/// Joins are written where they are needed.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
