//! What a provider told that contradicts what it had told before. Append-only.

use sea_orm::entity::prelude::*;

/// A row of `payment_conflicts`.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "payment_conflicts")]
pub struct Model {
    /// Version 7.
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: Uuid,
    /// Who told it.
    pub provider: String,
    /// The `webhook-id`.
    pub event_id: String,
    /// The payment.
    pub reference: String,
    /// What was told.
    pub state: super::PaymentState,
    /// The member's name, as told now.
    pub member: String,
    /// Minor units, as told now.
    pub amount: i64,
    /// Unit, as told now.
    pub currency: String,
    /// When it was first told.
    pub received_at: DateTimeUtc,
}

/// Joins are written where they are needed.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
