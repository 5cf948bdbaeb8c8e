//! Writes.

use async_graphql::{Context, InputObject, Object};

use super::bonus::BonusClaim;
use super::measure::Ending;
use super::query::Query;
use super::refusal::UserError;
use super::scalars::{BigInt, CurrencyScalar, KeyScalar, cooldown};
use super::trusted::{GrantBonusInput, GrantBonusPayload, ReverseTransactionInput, ReverseTransactionPayload};
use super::wallet::{Wallet, WalletEntry};
use super::work::{Request, note_ending, perform};
use crate::entity::wallet;
use crate::error::Failure;
use crate::ledger::once::Answer;
use crate::ledger::post::WalletRef;
use crate::operations::claim_daily_bonus::claim_daily_bonus;
use crate::operations::claim_signup_bonus::claim_signup_bonus;
use crate::operations::transfer::{self, TransferRefusal};
use crate::operations::{App, ClaimRefused, Claimed, InvalidInput};

/// Writes. Every field is nullable, so that one that fails never hides the result of one that was committed.
pub(super) struct Mutation;

/// Writes. Every field is nullable, so that one that fails never hides the result of one that was committed.
#[Object]
impl Mutation {
    /// Credits today's bonus, once a day.
    #[graphql(directive = cooldown::apply(5000, None, None))]
    async fn claim_daily_bonus(&self, context: &Context<'_>) -> Option<Result<ClaimDailyBonusPayload, Failure>> {
        Some(claim(context, claim_daily_bonus).await.map(ClaimDailyBonusPayload))
    }

    /// Credits the signup bonus, once in a lifetime.
    #[graphql(directive = cooldown::apply(5000, None, None))]
    async fn claim_signup_bonus(&self, context: &Context<'_>) -> Option<Result<ClaimSignupBonusPayload, Failure>> {
        Some(claim(context, claim_signup_bonus).await.map(ClaimSignupBonusPayload))
    }

    /// Gives a member a bonus, once per idempotency key of that member. For the app's back end and its operators: FORBIDDEN to
    /// a token without the role `service` or `operator`.
    async fn grant_bonus(
        &self,
        context: &Context<'_>,
        #[graphql(desc = "What to give.")] input: GrantBonusInput,
    ) -> Option<Result<GrantBonusPayload, Failure>> {
        Some(GrantBonusPayload::of(context, input).await)
    }

    /// Takes back what a transaction credited, whole or in part, once per idempotency key of that transaction. What the
    /// receiver has spent becomes a debt, which the next credits pay. For the app's back end and its operators: FORBIDDEN to a
    /// token without the role `service` or `operator`.
    async fn reverse_transaction(
        &self,
        context: &Context<'_>,
        #[graphql(desc = "What to take back.")] input: ReverseTransactionInput,
    ) -> Option<Result<ReverseTransactionPayload, Failure>> {
        Some(ReverseTransactionPayload::of(context, input).await)
    }

    /// Moves value to another member, once per idempotency key.
    #[graphql(directive = cooldown::apply(5000, Some("input.to".to_owned()), Some(20)))]
    async fn transfer(
        &self,
        context: &Context<'_>,
        #[graphql(desc = "What to move.")] input: TransferInput,
    ) -> Option<Result<TransferPayload, Failure>> {
        Some(TransferPayload::of(context, input).await)
    }
}

/// A wallet as a payload shows it: as the work left it, or else read when it is asked for.
struct PayloadWallet {
    reference: WalletRef,
    posted: Option<wallet::Model>,
}

impl PayloadWallet {
    async fn show(&self, context: &Context<'_>) -> Result<Wallet, Failure> {
        match &self.posted {
            Some(row) => Ok(Wallet { reference: self.reference.clone(), row: Some(row.clone()) }),
            None => Wallet::read(context.data_unchecked(), self.reference.clone()).await,
        }
    }
}

struct ClaimOutcome {
    result: Result<Claimed, ClaimRefused>,
    wallet: PayloadWallet,
}

/// What both claims have in common: who asks, the task, and the wallet that the bonus goes to.
async fn claim<W, F>(context: &Context<'_>, work: W) -> Result<ClaimOutcome, Failure>
where
    W: FnOnce(App, crate::member::Member, crate::error::Deadline) -> F,
    F: Future<Output = Result<Result<Claimed, ClaimRefused>, Failure>> + Send + 'static,
{
    let (request, app) = (context.data_unchecked::<Request>(), context.data_unchecked::<App>());
    let member = request.member()?;
    let result = perform(context, work(app.clone(), member.clone(), request.deadline)).await?;
    let reference = WalletRef::new(member, &app.settings.default_currency().code);
    let posted = result.as_ref().ok().and_then(|claimed| claimed.receipt.wallet(reference.id())).cloned();
    Ok(ClaimOutcome { result, wallet: PayloadWallet { reference, posted } })
}

impl ClaimOutcome {
    fn claim(&self) -> Option<BonusClaim> {
        let claimed = self.result.as_ref().ok()?;
        let entry = claimed.receipt.entry_of(self.wallet.reference.id()).cloned();
        Some(BonusClaim { row: claimed.claim.clone(), entry })
    }

    fn user_errors(&self) -> Vec<UserError> {
        self.result.as_ref().err().cloned().map(UserError::of_claim).into_iter().collect()
    }
}

/// Two payloads of one shape: GraphQL has no generics, and each mutation's payload must be free to grow on its own.
macro_rules! claim_payload {
    ($(#[doc = $description:literal])+ $name:ident) => {
        pub(super) struct $name(ClaimOutcome);

        $(#[doc = $description])+
        #[Object]
        impl $name {
            /// The claim; null when refused.
            async fn claim(&self) -> Option<BonusClaim> {
                self.0.claim()
            }

            /// Re-entry into the graph.
            async fn query(&self) -> Query {
                Query
            }

            /// Expected refusals; empty on success.
            async fn user_errors(&self) -> Vec<UserError> {
                self.0.user_errors()
            }

            /// The wallet as it is now, also after a refusal; null only with an error.
            async fn wallet(&self, context: &Context<'_>) -> Option<Result<Wallet, Failure>> {
                Some(self.0.wallet.show(context).await)
            }
        }
    };
}

claim_payload! {
    /// Outcome of `claimDailyBonus`: either `claim` is set or `userErrors` is not empty.
    ClaimDailyBonusPayload
}

claim_payload! {
    /// Outcome of `claimSignupBonus`: either `claim` is set or `userErrors` is not empty.
    ClaimSignupBonusPayload
}

/// Arguments of `transfer`.
#[derive(InputObject)]
pub(super) struct TransferInput {
    /// Amount in minor units; greater than zero.
    amount: BigInt,
    /// Unit of the amount.
    currency: CurrencyScalar,
    /// Names this attempt. The same key gives the same answer, for as long as the transaction exists; a refusal is kept for
    /// the configured retention, seven days by default.
    idempotency_key: KeyScalar,
    /// Note to the recipient, at most 140 characters.
    memo: Option<String>,
    /// The recipient's `memberId`.
    to: String,
}

enum TransferOutcome {
    Invalid(InvalidInput),
    Answered(Answer<TransferRefusal>),
}

/// Outcome of `transfer`: either `entry` is set or `userErrors` is not empty.
pub(super) struct TransferPayload {
    outcome: TransferOutcome,
    wallet: PayloadWallet,
}

impl TransferPayload {
    async fn of(context: &Context<'_>, input: TransferInput) -> Result<Self, Failure> {
        let (request, app) = (context.data_unchecked::<Request>(), context.data_unchecked::<App>());
        let sender = request.member()?.clone();
        let currency = input.currency.code().ok_or_else(|| Failure::internal("a currency scalar that is no code"))?;
        let reference = WalletRef::new(&sender, &currency);
        let TransferInput { amount: BigInt(amount), idempotency_key: KeyScalar(key), memo, to, .. } = input;
        let outcome = match transfer::Transfer::parse(&app.settings, &to, amount, currency, memo, key) {
            Err(invalid) => {
                note_ending(context, Ending::Invalid);
                TransferOutcome::Invalid(invalid)
            }
            Ok(transfer) => {
                let work = transfer::transfer(app.clone(), sender, transfer, request.deadline);
                TransferOutcome::Answered(perform(context, work).await?)
            }
        };
        let posted = match &outcome {
            TransferOutcome::Answered(Answer::Done { receipt, .. }) => receipt.wallet(reference.id()).cloned(),
            _ => None,
        };
        Ok(Self { outcome, wallet: PayloadWallet { reference, posted } })
    }
}

/// Outcome of `transfer`: either `entry` is set or `userErrors` is not empty.
#[Object]
impl TransferPayload {
    /// The sender's side of the transfer; null when refused.
    async fn entry(&self, context: &Context<'_>) -> Result<Option<WalletEntry>, Failure> {
        match &self.outcome {
            TransferOutcome::Answered(Answer::Done { receipt, .. }) => {
                WalletEntry::of(context, receipt, self.wallet.reference.id()).await
            }
            _ => Ok(None),
        }
    }

    /// Re-entry into the graph.
    async fn query(&self) -> Query {
        Query
    }

    /// True when this is the stored answer to an earlier request with the same key.
    async fn replayed(&self) -> bool {
        matches!(
            &self.outcome,
            TransferOutcome::Answered(Answer::Done { replayed: true, .. } | Answer::Refused { replayed: true, .. })
        )
    }

    /// Expected refusals; empty on success.
    async fn user_errors(&self, context: &Context<'_>) -> Vec<UserError> {
        match &self.outcome {
            TransferOutcome::Invalid(invalid) => vec![UserError::of_input(invalid)],
            TransferOutcome::Answered(Answer::Mismatch) => vec![UserError::mismatch()],
            TransferOutcome::Answered(Answer::Refused { refusal, .. }) => {
                vec![UserError::of_transfer(context, refusal)]
            }
            TransferOutcome::Answered(Answer::Done { .. }) => Vec::new(),
        }
    }

    /// The sender's wallet as it is now, also after a refusal or in a replay; null only with an error.
    async fn wallet(&self, context: &Context<'_>) -> Option<Result<Wallet, Failure>> {
        Some(self.wallet.show(context).await)
    }
}
