//! What a reversal could not recover.

use sea_orm::entity::prelude::*;

/// A row of `debts`.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "debts")]
pub struct Model {
    /// The reversal that it comes from; later ones have larger ids.
    #[sea_orm(primary_key, auto_increment = false)]
    pub reversal_id: Uuid,
    /// Who owes.
    pub wallet_id: Uuid,
    /// Whom: the sender of a reversed transfer; the house if null.
    pub creditor_id: Option<Uuid>,
    /// Minor units, as it was made.
    pub amount: i64,
    /// What is not paid yet.
    pub remaining: i64,
}

/// Joins are written where they are needed.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
