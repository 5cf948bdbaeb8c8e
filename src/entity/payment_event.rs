//! What a provider told of a payment. Append-only.

use sea_orm::entity::prelude::*;

/// A row of `payment_events`.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "payment_events")]
pub struct Model {
    /// Who told it.
    #[sea_orm(primary_key, auto_increment = false)]
    pub provider: String,
    /// The `webhook-id`.
    #[sea_orm(primary_key, auto_increment = false)]
    pub event_id: String,
    /// The payment.
    pub reference: String,
    /// What was told.
    pub state: super::PaymentState,
    /// When it was first told.
    pub received_at: DateTimeUtc,
}

/// Joins are written where they are needed.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
