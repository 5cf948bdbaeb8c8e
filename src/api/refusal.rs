//! Expected refusals: `userErrors`, one interface with one shared code.

use async_graphql::{Context, Enum, Interface, SimpleObject};

use super::bonus::BonusClaim;
use super::scalars::DateTime;
use super::wallet::{Money, money};
use crate::operations::grant_bonus::GrantRefusal;
use crate::operations::reverse_transaction::ReversalRefusal;
use crate::operations::transfer::{Limit, TransferRefusal};
use crate::operations::{ClaimRefused, InvalidInput};

/// Machine-readable reason of an expected refusal. Values may be added.
#[derive(Enum, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorCode {
    /// The member has this bonus already.
    AlreadyClaimed,
    /// The bonus is not offered to this member now.
    BonusUnavailable,
    /// The key was used before with other arguments.
    IdempotencyKeyParameterMismatch,
    /// The wallet's available balance does not cover the amount.
    InsufficientFunds,
    /// An input value is not acceptable.
    InvalidInput,
    /// The amount is over or under a limit of the operation, the sender or the recipient.
    LimitExceeded,
    /// The thing does not exist, or the caller may not see it.
    NotFound,
    /// A reversal, and the payment of a debt, cannot be reversed.
    NotReversible,
    /// The sender and the recipient are the same member.
    SelfTransfer,
}

/// Common shape of every expected refusal. A concrete type adds details.
#[derive(Interface)]
#[graphql(
    field(name = "code", ty = "&ErrorCode", desc = "Stable code to branch on."),
    field(
        name = "field",
        ty = "&Option<Vec<String>>",
        desc = "Path of the offending field inside `input`, outermost first; null when the refusal is not about one field."
    ),
    field(name = "message", ty = "&String", desc = "English text for developers; do not match on it.")
)]
pub(super) enum UserError {
    Plain(PlainError),
    AlreadyClaimed(Box<AlreadyClaimedError>),
    InsufficientFunds(InsufficientFundsError),
}

/// A refusal that needs no details.
#[derive(SimpleObject)]
pub(super) struct PlainError {
    /// Stable code to branch on.
    code: ErrorCode,
    /// Path of the offending field inside `input`, outermost first; null when the refusal is not about one field.
    field: Option<Vec<String>>,
    /// English text for developers; do not match on it.
    message: String,
}

/// The bonus was granted before; the claim that won is attached.
#[derive(SimpleObject)]
pub(super) struct AlreadyClaimedError {
    /// The claim that won.
    claim: BonusClaim,
    /// Stable code to branch on.
    code: ErrorCode,
    /// Path of the offending field inside `input`, outermost first; null when the refusal is not about one field.
    field: Option<Vec<String>>,
    /// English text for developers; do not match on it.
    message: String,
    /// When the bonus can be claimed again; null if never.
    next_claim_at: Option<DateTime>,
}

/// The wallet does not cover the amount.
#[derive(SimpleObject)]
pub(super) struct InsufficientFundsError {
    /// What was available at the moment of the refusal.
    available: Money,
    /// Stable code to branch on.
    code: ErrorCode,
    /// Path of the offending field inside `input`, outermost first; null when the refusal is not about one field.
    field: Option<Vec<String>>,
    /// English text for developers; do not match on it.
    message: String,
}

impl UserError {
    pub(super) fn of_claim(refused: ClaimRefused) -> Self {
        match refused {
            ClaimRefused::AlreadyClaimed { claim, next_claim_at } => {
                Self::AlreadyClaimed(Box::new(AlreadyClaimedError {
                    claim: claim.into(),
                    code: ErrorCode::AlreadyClaimed,
                    field: None,
                    message: "This bonus was claimed before.".to_owned(),
                    next_claim_at: next_claim_at.map(DateTime),
                }))
            }
            ClaimRefused::Unavailable => plain(ErrorCode::BonusUnavailable, None, "This bonus is not offered."),
            ClaimRefused::TooMuch => plain(ErrorCode::LimitExceeded, None, "The wallet cannot hold more."),
        }
    }

    pub(super) fn of_input(invalid: &InvalidInput) -> Self {
        plain(ErrorCode::InvalidInput, Some(invalid.field), &invalid.message)
    }

    pub(super) fn mismatch() -> Self {
        let message = "This idempotency key was used before with other arguments; send a new key for a new wish.";
        plain(ErrorCode::IdempotencyKeyParameterMismatch, Some("idempotencyKey"), message)
    }

    pub(super) fn of_grant(refusal: GrantRefusal) -> Self {
        match refusal {
            GrantRefusal::LimitExceeded => {
                plain(ErrorCode::LimitExceeded, Some("amount"), "The member's wallet cannot hold so much.")
            }
        }
    }

    pub(super) fn no_transaction() -> Self {
        plain(ErrorCode::NotFound, Some("transactionId"), "There is no such transaction.")
    }

    pub(super) fn of_reversal(refusal: ReversalRefusal) -> Self {
        match refusal {
            ReversalRefusal::NotReversible => {
                let message = "A reversal, and the payment of a debt, cannot be reversed.";
                plain(ErrorCode::NotReversible, Some("transactionId"), message)
            }
            ReversalRefusal::LimitExceeded { remaining } => {
                let message = format!("Of this transaction {remaining} minor units are left to reverse.");
                plain(ErrorCode::LimitExceeded, Some("amount"), &message)
            }
            ReversalRefusal::TooMuch => {
                plain(ErrorCode::LimitExceeded, Some("amount"), "A wallet cannot hold, or owe, so much.")
            }
        }
    }

    pub(super) fn of_transfer(context: &Context<'_>, refusal: &TransferRefusal) -> Self {
        match refusal {
            TransferRefusal::SelfTransfer => {
                plain(ErrorCode::SelfTransfer, Some("to"), "Sender and recipient are the same member.")
            }
            TransferRefusal::NotFound => {
                plain(ErrorCode::NotFound, Some("to"), "No member of this name has signed in yet.")
            }
            TransferRefusal::LimitExceeded { limit } => {
                plain(ErrorCode::LimitExceeded, Some("amount"), &limit_message(*limit))
            }
            TransferRefusal::InsufficientFunds { available, currency } => {
                Self::InsufficientFunds(InsufficientFundsError {
                    available: money(context, *available, currency.as_str()),
                    code: ErrorCode::InsufficientFunds,
                    field: Some(vec!["amount".to_owned()]),
                    message: "The wallet does not cover the amount.".to_owned(),
                })
            }
        }
    }
}

fn plain(code: ErrorCode, field: Option<&str>, message: &str) -> UserError {
    UserError::Plain(PlainError { code, field: field.map(|field| vec![field.to_owned()]), message: message.to_owned() })
}

fn limit_message(limit: Limit) -> String {
    match limit {
        Limit::Smallest(smallest) => format!("The smallest transfer is {smallest} minor units."),
        Limit::Largest(largest) => format!("The largest transfer is {largest} minor units."),
        Limit::RecipientBalance => "The recipient's wallet cannot hold so much.".to_owned(),
    }
}
