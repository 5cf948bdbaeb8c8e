//! Takes a posted transaction back, whole or in part, on the app's word.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{App, InvalidInput, Memo};
use crate::amount::Amount;
use crate::error::{Deadline, Failure};
use crate::ledger::once::{Answer, Attempt, IdempotencyKey};
use crate::ledger::post::{Receipt, TooMuch};
use crate::ledger::reverse::Posted;
use crate::ledger::tx::{Stop, Tx, Work};
use crate::member::Member;

/// A reversal that is well formed.
#[derive(Debug, Clone)]
pub struct Reversal {
    original: Uuid,
    /// All that is left, if none.
    amount: Option<Amount>,
    reason: Memo,
    key: IdempotencyKey,
}

/// Why nothing was taken back. Stored as its key's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ReversalRefusal {
    /// It is a reversal itself, or the payment of a debt.
    NotReversible,
    /// So much is not left.
    LimitExceeded {
        /// What is left to reverse, in minor units.
        remaining: i64,
    },
    /// The sender's balance, or the receiver's debt, would pass 2^63 - 1.
    TooMuch,
}

impl From<TooMuch> for ReversalRefusal {
    fn from(_: TooMuch) -> Self {
        Self::TooMuch
    }
}

impl Reversal {
    /// Reads the arguments, the way the caller sent them.
    pub fn parse(
        original: Uuid,
        amount: Option<i64>,
        reason: String,
        key: IdempotencyKey,
    ) -> Result<Self, InvalidInput> {
        let above_zero = |amount| {
            Amount::new(amount).ok_or_else(|| InvalidInput::of("amount", "`amount` must be greater than zero."))
        };
        Ok(Self { original, amount: amount.map(above_zero).transpose()?, reason: Memo::parse_reason(reason)?, key })
    }

    /// The key belongs to the transaction that is reversed; its receiver is whose row keeps it.
    fn attempt(&self, posted: &Posted) -> Attempt {
        let amount = self.amount.map_or_else(|| "all".to_owned(), |amount| amount.minor_units().to_string());
        let original = self.original.to_string();
        let arguments =
            [("original", original.as_str()), ("amount", amount.as_str()), ("reason", self.reason.as_str())];
        let scope = format!("reverseTransaction {}", self.original.simple());
        Attempt::new(posted.receiver(), scope, &self.key, &arguments)
    }
}

/// Takes it back. `by` is who says so. None where there is no such transaction: with nothing to keep an answer at, none is
/// kept.
pub async fn reverse_transaction(
    app: App,
    by: Member,
    reversal: Reversal,
    deadline: Deadline,
) -> Result<Option<Answer<ReversalRefusal>>, Failure> {
    let Some(posted) = app.ledger.posted(reversal.original).await? else { return Ok(None) };
    let attempt = reversal.attempt(&posted);
    app.ledger.exactly_once(&attempt, deadline, &Reversing { posted, reversal, by }).await.map(Some)
}

struct Reversing {
    posted: Posted,
    reversal: Reversal,
    by: Member,
}

impl Work for Reversing {
    type Done = Receipt;
    type Refusal = ReversalRefusal;

    async fn run(&self, tx: &mut Tx) -> Result<Receipt, Stop<ReversalRefusal>> {
        let Self { posted, reversal, by } = self;
        if !posted.is_reversible() {
            return Err(Stop::Refused(ReversalRefusal::NotReversible));
        }
        let original = tx.lock_posted(posted.clone()).await?;
        let remaining = original.remaining();
        let amount = reversal.amount.or(Amount::new(remaining)).filter(|amount| amount.minor_units() <= remaining);
        let amount = amount.ok_or(Stop::Refused(ReversalRefusal::LimitExceeded { remaining }))?;
        tx.reverse(original, amount, Some(reversal.reason.as_str().to_owned()), by.name().to_owned()).await
    }
}
