//! A bonus that was credited: one row per member, bonus and period, for ever.

use sea_orm::entity::prelude::*;

/// A row of `claims`.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "claims")]
pub struct Model {
    /// Version 7.
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: Uuid,
    /// Who claimed.
    pub member_id: Uuid,
    /// Which bonus.
    pub bonus: super::Bonus,
    /// The day of a daily bonus, `once` for the signup bonus.
    pub period: String,
    /// Days in a row, this one included; null for a once-only bonus.
    pub streak: Option<i64>,
    /// Minor units credited.
    pub amount: i64,
    /// Unit of the amount.
    pub currency: String,
    /// What credited it.
    pub transaction_id: Uuid,
    /// When it was credited.
    pub claimed_at: DateTimeUtc,
}

/// Joins are written where they are needed.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
