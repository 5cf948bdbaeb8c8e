//! What a member holds in one currency. Written by `ledger` alone.

use sea_orm::entity::prelude::*;

/// A row of `wallets`.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "wallets")]
pub struct Model {
    /// Derived from member and currency.
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: Uuid,
    /// The holder.
    pub member_id: Uuid,
    /// Unit of the balance.
    pub currency: String,
    /// Sum of all entries, in minor units; never negative.
    pub balance: i64,
    /// Sequence number of the newest entry.
    pub version: i64,
    /// What reversals have still to recover, in minor units; the next credits pay it first, so whoever owes holds nothing.
    pub debt: i64,
    /// When the first movement was posted.
    pub opened_at: DateTimeUtc,
}

/// Joins are written where they are needed.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
