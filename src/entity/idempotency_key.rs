//! The callers' names for attempts, each with its answer.

use sea_orm::entity::prelude::*;

/// A row of `idempotency_keys`.
#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "idempotency_keys")]
pub struct Model {
    /// Whose key it is.
    #[sea_orm(primary_key, auto_increment = false)]
    pub member_id: Uuid,
    /// The operation that it names an attempt at.
    #[sea_orm(primary_key, auto_increment = false)]
    pub operation: String,
    /// The key.
    #[sea_orm(primary_key, auto_increment = false)]
    pub key: String,
    /// SHA-256 of a version, the operation and its parsed arguments.
    pub fingerprint: Vec<u8>,
    /// The answer: what moved.
    pub transaction_id: Option<Uuid>,
    /// The answer: why nothing moved.
    pub refusal: Option<Json>,
    /// When the key was first used.
    pub created_at: DateTimeUtc,
    /// When a refusal may be forgotten.
    pub expires_at: Option<DateTimeUtc>,
}

/// Joins are written where they are needed.
#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
