//! Who may receive value.

use sea_orm::entity::prelude::*;

/// A row of `members`.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "members")]
pub struct Model {
    /// Derived from the name.
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: Uuid,
    /// The public name.
    pub name: String,
    /// When the member was first seen.
    pub created_at: DateTimeUtc,
}

/// Joins are written where they are needed.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
