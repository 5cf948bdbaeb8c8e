//! A payment from outside: one row per provider and reference, for ever.

use sea_orm::entity::prelude::*;

/// A row of `payments`.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "payments")]
pub struct Model {
    /// Its name in the settings.
    #[sea_orm(primary_key, auto_increment = false)]
    pub provider: String,
    /// The provider's own name for the payment.
    #[sea_orm(primary_key, auto_increment = false)]
    pub reference: String,
    /// The name of the member that it is for, who may not be known yet.
    pub member: String,
    /// Minor units.
    pub amount: i64,
    /// Unit of the amount.
    pub currency: String,
    /// How far it has come.
    pub state: super::PaymentState,
    /// What credited it.
    pub transaction_id: Option<Uuid>,
    /// When it was first heard of.
    pub created_at: DateTimeUtc,
    /// When its state last changed.
    pub updated_at: DateTimeUtc,
}

/// Joins are written where they are needed.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
