//! What a transaction takes back of another.

use sea_orm::entity::prelude::*;

/// A row of `reversals`.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "reversals")]
pub struct Model {
    /// The reversal itself.
    #[sea_orm(primary_key, auto_increment = false)]
    pub transaction_id: Uuid,
    /// What it takes back.
    pub original_id: Uuid,
    /// How much of it, in minor units: what was recovered, and what became a debt.
    pub amount: i64,
}

/// Joins are written where they are needed.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
