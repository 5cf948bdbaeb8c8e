//! One movement of value. Its entries sum to zero.

use sea_orm::entity::prelude::*;

/// A row of `transactions`.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "transactions")]
pub struct Model {
    /// Version 7, made where the transaction begins.
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: Uuid,
    /// What moved the value.
    pub kind: super::Kind,
    /// Unit of the entries.
    pub currency: String,
    /// The sender's note, or the reason that was given.
    pub memo: Option<String>,
    /// On whose word the house moved it: the name in a service's or an operator's token, or the provider's.
    pub actor: Option<String>,
    /// When it was posted.
    pub created_at: DateTimeUtc,
}

/// Joins are written where they are needed.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
