//! What the app's back end and its operators ask for: no cooldown, for it is no click, and a key all the same.

use async_graphql::{Context, ID, InputObject, Object};

use super::ids::GlobalId;
use super::measure::Ending;
use super::query::Query;
use super::refusal::UserError;
use super::scalars::{BigInt, CurrencyScalar, KeyScalar};
use super::wallet::{Money, Wallet, WalletEntry, money};
use super::work::{Request, note_ending, perform};
use crate::error::Failure;
use crate::ledger::once::Answer;
use crate::ledger::post::{Receipt, WalletRef};
use crate::ledger::reverse::Reversed;
use crate::operations::grant_bonus::{Grant, GrantRefusal, grant_bonus};
use crate::operations::reverse_transaction::{Reversal, ReversalRefusal, reverse_transaction};
use crate::operations::{App, InvalidInput};

/// Arguments of `grantBonus`.
#[derive(InputObject)]
pub(super) struct GrantBonusInput {
    /// Amount in minor units; greater than zero.
    amount: BigInt,
    /// Unit of the amount.
    currency: CurrencyScalar,
    /// Names this grant among those of the member: two processes that send the same key pay once.
    idempotency_key: KeyScalar,
    /// Who gets it: the name in the member's token. A member who never came is written down.
    member_id: String,
    /// What it is for, at most 140 characters; the member sees it as the entry's memo.
    reason: String,
}

/// What came of a wish that was well formed or not.
enum Outcome<Refusal> {
    Invalid(InvalidInput),
    Answered(Answer<Refusal>),
}

impl<Refusal: Copy> Outcome<Refusal> {
    fn receipt(&self) -> Option<&Receipt> {
        match self {
            Self::Answered(Answer::Done { receipt, .. }) => Some(receipt),
            _ => None,
        }
    }

    fn replayed(&self) -> bool {
        matches!(self, Self::Answered(Answer::Done { replayed: true, .. } | Answer::Refused { replayed: true, .. }))
    }

    fn user_errors(&self, of_refusal: fn(Refusal) -> UserError) -> Vec<UserError> {
        match self {
            Self::Invalid(invalid) => vec![UserError::of_input(invalid)],
            Self::Answered(Answer::Mismatch) => vec![UserError::mismatch()],
            Self::Answered(Answer::Refused { refusal, .. }) => vec![of_refusal(*refusal)],
            Self::Answered(Answer::Done { .. }) => Vec::new(),
        }
    }
}

/// Outcome of `grantBonus`: either `entry` is set or `userErrors` is not empty.
pub(super) struct GrantBonusPayload {
    outcome: Outcome<GrantRefusal>,
    wallet: Option<WalletRef>,
}

impl GrantBonusPayload {
    pub(super) async fn of(context: &Context<'_>, input: GrantBonusInput) -> Result<Self, Failure> {
        let (request, app) = (context.data_unchecked::<Request>(), context.data_unchecked::<App>());
        let by = request.trusted()?.clone();
        let currency = input.currency.code().ok_or_else(|| Failure::internal("a currency scalar that is no code"))?;
        let GrantBonusInput { amount: BigInt(amount), idempotency_key: KeyScalar(key), member_id, reason, .. } = input;
        match Grant::parse(&app.settings, &member_id, amount, currency, reason, key) {
            Err(invalid) => {
                note_ending(context, Ending::Invalid);
                Ok(Self { outcome: Outcome::Invalid(invalid), wallet: None })
            }
            Ok(grant) => {
                let wallet = Some(grant.wallet());
                let answer = perform(context, grant_bonus(app.clone(), by, grant, request.deadline)).await?;
                Ok(Self { outcome: Outcome::Answered(answer), wallet })
            }
        }
    }
}

/// Outcome of `grantBonus`: either `entry` is set or `userErrors` is not empty.
#[Object]
impl GrantBonusPayload {
    /// The member's side of the grant; null when refused.
    async fn entry(&self, context: &Context<'_>) -> Result<Option<WalletEntry>, Failure> {
        match (&self.wallet, self.outcome.receipt()) {
            (Some(wallet), Some(receipt)) => WalletEntry::of(context, receipt, wallet.id()).await,
            _ => Ok(None),
        }
    }

    /// Re-entry into the graph.
    async fn query(&self) -> Query {
        Query
    }

    /// True when this is the stored answer to an earlier request with the same key.
    async fn replayed(&self) -> bool {
        self.outcome.replayed()
    }

    /// Expected refusals; empty on success.
    async fn user_errors(&self) -> Vec<UserError> {
        self.outcome.user_errors(UserError::of_grant)
    }

    /// The member's wallet as it is now, also after a refusal or in a replay; null where the input names none.
    async fn wallet(&self, context: &Context<'_>) -> Option<Result<Wallet, Failure>> {
        Some(Wallet::read(context.data_unchecked(), self.wallet.clone()?).await)
    }
}

/// Arguments of `reverseTransaction`.
#[derive(InputObject)]
pub(super) struct ReverseTransactionInput {
    /// Amount in minor units; greater than zero. All that is left to reverse, if it is left out.
    amount: Option<BigInt>,
    /// Names this reversal among those of the transaction.
    idempotency_key: KeyScalar,
    /// Why, at most 140 characters; the member sees it as the entry's memo.
    reason: String,
    /// What to take back: `WalletEntry.transactionId`.
    transaction_id: ID,
}

/// Outcome of `reverseTransaction`: either `transactionId` is set or `userErrors` is not empty.
pub(super) struct ReverseTransactionPayload {
    /// None where there is no such transaction.
    outcome: Option<Outcome<ReversalRefusal>>,
    reversed: Option<(Reversed, String)>,
}

impl ReverseTransactionPayload {
    pub(super) async fn of(context: &Context<'_>, input: ReverseTransactionInput) -> Result<Self, Failure> {
        let (request, app) = (context.data_unchecked::<Request>(), context.data_unchecked::<App>());
        let by = request.trusted()?.clone();
        let Some(GlobalId::Transaction(original)) = GlobalId::decode(&input.transaction_id) else {
            note_ending(context, Ending::Refused);
            return Ok(Self { outcome: None, reversed: None });
        };
        let ReverseTransactionInput { amount, idempotency_key: KeyScalar(key), reason, .. } = input;
        let outcome = match Reversal::parse(original, amount.map(|BigInt(amount)| amount), reason, key) {
            Err(invalid) => {
                note_ending(context, Ending::Invalid);
                Some(Outcome::Invalid(invalid))
            }
            Ok(reversal) => {
                let work = reverse_transaction(app.clone(), by, reversal, request.deadline);
                perform(context, work).await?.map(Outcome::Answered)
            }
        };
        let reversed = match outcome.as_ref().and_then(Outcome::receipt) {
            Some(receipt) => app.ledger.reversed(receipt.id).await?,
            None => None,
        };
        let currency = match reversed {
            Some(_) => app.ledger.currency_of(original).await?,
            None => None,
        };
        Ok(Self { outcome, reversed: reversed.zip(currency) })
    }

    fn part(&self, context: &Context<'_>, part: fn(&Reversed) -> i64) -> Option<Money> {
        self.reversed.as_ref().map(|(reversed, currency)| money(context, part(reversed), currency))
    }
}

/// Outcome of `reverseTransaction`: either `transactionId` is set or `userErrors` is not empty.
#[Object]
impl ReverseTransactionPayload {
    /// What was spent already, and became a debt of the receiver; null when refused.
    async fn owed(&self, context: &Context<'_>) -> Option<Money> {
        self.part(context, |reversed| reversed.owed)
    }

    /// Re-entry into the graph.
    async fn query(&self) -> Query {
        Query
    }

    /// What was taken back from the receiver's wallet; null when refused.
    async fn recovered(&self, context: &Context<'_>) -> Option<Money> {
        self.part(context, |reversed| reversed.amount - reversed.owed)
    }

    /// True when this is the stored answer to an earlier request with the same key.
    async fn replayed(&self) -> bool {
        self.outcome.as_ref().is_some_and(Outcome::replayed)
    }

    /// ID of the reversal, which is a transaction of its own; null when refused.
    async fn transaction_id(&self) -> Option<ID> {
        let receipt = self.outcome.as_ref()?.receipt()?;
        Some(ID(GlobalId::Transaction(receipt.id).encode()))
    }

    /// Expected refusals; empty on success.
    async fn user_errors(&self) -> Vec<UserError> {
        match &self.outcome {
            None => vec![UserError::no_transaction()],
            Some(outcome) => outcome.user_errors(UserError::of_reversal),
        }
    }
}
