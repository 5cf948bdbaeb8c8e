//! The tables as sea-orm sees them: data only. Never a type of the API; what they mean is said in the migration.

pub mod audit;
pub mod claim;
pub mod debt;
pub mod entry;
pub mod idempotency_key;
pub mod member;
pub mod outbox;
pub mod payment;
pub mod payment_conflict;
pub mod payment_event;
pub mod reversal;
pub mod transaction;
pub mod wallet;

use sea_orm::entity::prelude::*;

/// What moved value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumIter, DeriveActiveEnum)]
#[sea_orm(rs_type = "String", db_type = "Text")]
pub enum Kind {
    /// A daily bonus.
    #[sea_orm(string_value = "daily_bonus")]
    DailyBonus,
    /// A signup bonus.
    #[sea_orm(string_value = "signup_bonus")]
    SignupBonus,
    /// A bonus that the app granted.
    #[sea_orm(string_value = "bonus_grant")]
    BonusGrant,
    /// Money from outside.
    #[sea_orm(string_value = "funding")]
    Funding,
    /// From member to member.
    #[sea_orm(string_value = "transfer")]
    Transfer,
    /// What was taken back.
    #[sea_orm(string_value = "reversal")]
    Reversal,
    /// What a reversal could not recover, paid by a later credit.
    #[sea_orm(string_value = "debt_payment")]
    DebtPayment,
}

/// Which bonus a claim is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumIter, DeriveActiveEnum)]
#[sea_orm(rs_type = "String", db_type = "Text")]
pub enum Bonus {
    /// Once a day.
    #[sea_orm(string_value = "daily")]
    Daily,
    /// Once in a lifetime.
    #[sea_orm(string_value = "signup")]
    Signup,
}

/// The account of the house on the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumIter, DeriveActiveEnum)]
#[sea_orm(rs_type = "String", db_type = "Text")]
pub enum House {
    /// Where bonuses come from.
    #[sea_orm(string_value = "issuance")]
    Issuance,
    /// Where money from outside comes in.
    #[sea_orm(string_value = "funding")]
    Funding,
    /// What members owe: the other side of their debts.
    #[sea_orm(string_value = "receivable")]
    Receivable,
    /// What the house owes to senders of reversed transfers, as soon as it is recovered.
    #[sea_orm(string_value = "payable")]
    Payable,
}

/// Where a payment from outside stands. The order is how far it has come: what happens to money cannot be undone by older
/// news.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, EnumIter, DeriveActiveEnum)]
#[sea_orm(rs_type = "String", db_type = "Text")]
pub enum PaymentState {
    /// The member means to pay.
    #[sea_orm(string_value = "pending")]
    Pending,
    /// It did not come through, so far.
    #[sea_orm(string_value = "failed")]
    Failed,
    /// The provider has the money.
    #[sea_orm(string_value = "succeeded")]
    Succeeded,
    /// The provider gave it back.
    #[sea_orm(string_value = "reversed")]
    Reversed,
}
