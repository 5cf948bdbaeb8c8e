//! One side of a transaction. Append-only; written by `ledger` alone.

use sea_orm::entity::prelude::*;

/// A row of `entries`.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "entries")]
pub struct Model {
    /// The transaction.
    #[sea_orm(primary_key, auto_increment = false)]
    pub transaction_id: Uuid,
    /// 0 is the debit, 1 the credit.
    #[sea_orm(primary_key, auto_increment = false)]
    pub line: i64,
    /// The member's wallet; null on the house's side.
    pub wallet_id: Option<Uuid>,
    /// The house's account; null on a member's side.
    pub house: Option<super::House>,
    /// Signed minor units: positive is a credit.
    pub amount: i64,
    /// Place in the wallet, from 1 without gaps.
    pub seq: Option<i64>,
    /// The wallet's balance right after this entry.
    pub balance_after: Option<i64>,
}

/// Joins are written where they are needed.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
