//! Payments from outside: one row for each, inserted once and locked before anybody decides on it.
//!
//! The insert does not wait where the row is there already, so it is the row's lock that puts those in order who hear of
//! one payment at the same time. What was decided is written by the transaction that does it.

use std::convert::Infallible;

use sea_orm::{
    ActiveEnum,
    ActiveValue::Set,
    ColumnTrait, EntityTrait, QueryFilter, QuerySelect, TryInsertResult,
    sea_query::{Expr, LockType, OnConflict},
};
use uuid::Uuid;

use super::Ledger;
use super::tx::{Interrupted, Stop, Tx, Work};
use crate::amount::{Amount, CurrencyCode};
use crate::config::PartnerName;
use crate::entity::{PaymentState, member, payment, payment_conflict, payment_event};
use crate::error::{Deadline, Failure};
use crate::member::Member;

/// What a provider tells of a payment, in its own words.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    /// Its name for this message.
    pub event_id: &'a str,
    /// Its name for the payment.
    pub reference: &'a str,
    /// How far the payment has come.
    pub state: &'a str,
    /// Whom it is for.
    pub member: &'a str,
    /// Minor units.
    pub amount: &'a str,
    /// Their unit.
    pub currency: &'a str,
}

/// News of a payment that is well formed, from a provider that is known.
#[derive(Debug, Clone)]
pub struct Notice {
    provider: PartnerName,
    event_id: String,
    reference: String,
    state: PaymentState,
    member: Member,
    amount: Amount,
    currency: CurrencyCode,
}

/// A part of a notice that is not acceptable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// Its name in the message.
    pub field: &'static str,
    /// English text for developers.
    pub message: String,
}

/// The longest id of an event and the longest reference of a payment, in characters. Large payment APIs stay below 255.
const LONGEST_ID: usize = 255;

impl Notice {
    /// Reads what was told.
    pub fn parse(provider: &PartnerName, told: &Told<'_>) -> Result<Self, Malformed> {
        let malformed = |field, message: &str| Malformed { field, message: message.to_owned() };
        let is_id =
            |text: &str| (1..=LONGEST_ID).contains(&text.chars().count()) && !text.chars().any(char::is_control);
        if !is_id(told.event_id) {
            return Err(malformed("webhook-id", "`webhook-id` must have 1 to 255 characters."));
        }
        if !is_id(told.reference) {
            let message = "`reference` must have 1 to 255 characters, none of them a control character.";
            return Err(malformed("reference", message));
        }
        let state = PaymentState::try_from_value(&told.state.to_owned())
            .map_err(|_| malformed("type", "`type` must be pending, succeeded, failed or reversed."))?;
        let member = Member::parse(told.member).map_err(|error| malformed("member", &format!("`member` {error}.")))?;
        let amount = Amount::parse(told.amount).ok_or_else(|| {
            malformed("amount", "`amount` must be minor units in digits alone, above zero and at most 2^63 - 1.")
        })?;
        let currency = CurrencyCode::parse(told.currency)
            .ok_or_else(|| malformed("currency", "`currency` must be 2 to 12 upper-case letters or digits."))?;
        let (event_id, reference) = (told.event_id.to_owned(), told.reference.to_owned());
        Ok(Self { provider: provider.clone(), event_id, reference, state, member, amount, currency })
    }

    /// On whose word money moves.
    pub fn actor(&self) -> String {
        format!("provider {}", self.provider.as_str())
    }

    /// How far the payment has come, by this notice.
    pub fn state(&self) -> PaymentState {
        self.state
    }

    /// Whom the payment is for.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// How much it is.
    pub fn amount(&self) -> Amount {
        self.amount
    }

    /// In what.
    pub fn currency(&self) -> &CurrencyCode {
        &self.currency
    }

    /// Whether it speaks of the payment as it was told before.
    pub fn agrees_with(&self, payment: &payment::Model) -> bool {
        let known = (payment.member.as_str(), payment.amount, payment.currency.as_str());
        known == (self.member.name(), self.amount.minor_units(), self.currency.as_str())
    }

    fn key(&self) -> (String, String) {
        (self.provider.as_str().to_owned(), self.reference.clone())
    }
}

/// Whether a notice is news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// It was not told before.
    First,
    /// The same was told before, under this id or another.
    Again,
    /// Its id named something else before.
    AnotherUnderThisId,
}

impl Ledger {
    /// Does `work` on a payment in one transaction. A refusal rolls back.
    pub async fn settle<W: Work>(&self, deadline: Deadline, work: &W) -> Result<Result<W::Done, W::Refusal>, Failure> {
        self.transact(deadline, work).await
    }

    /// Writes down a notice that contradicts what was told before, for somebody to look into. Told again, it is there once.
    pub async fn record_conflict(&self, deadline: Deadline, notice: &Notice) -> Result<(), Failure> {
        let Ok(()) = self.transact(deadline, &Conflicting(notice)).await?;
        Ok(())
    }
}

struct Conflicting<'a>(&'a Notice);

impl Work for Conflicting<'_> {
    type Done = ();
    type Refusal = Infallible;

    async fn run(&self, tx: &mut Tx) -> Result<(), Stop<Infallible>> {
        Ok(tx.insert_conflict(self.0).await?)
    }
}

impl Tx {
    /// Inserts the payment as one that is pending, unless it is there. Waits for another transaction that inserts it now.
    pub async fn insert_payment(&mut self, notice: &Notice) -> Result<(), Interrupted> {
        let now = self.clock.process_now();
        let (provider, reference) = notice.key();
        let row = payment::ActiveModel {
            provider: Set(provider),
            reference: Set(reference),
            member: Set(notice.member.name().to_owned()),
            amount: Set(notice.amount.minor_units()),
            currency: Set(notice.currency.to_string()),
            state: Set(PaymentState::Pending),
            transaction_id: Set(None),
            created_at: Set(now),
            updated_at: Set(now),
        };
        let insert = payment::Entity::insert(row).on_conflict_do_nothing();
        insert.exec_without_returning(self.connection()?).await?;
        Ok(())
    }

    /// Locks the payment and reads it as it is under the lock: in a statement of its own, since what the insert waited for
    /// is not in the insert's snapshot. SQLite has no row locks: BEGIN IMMEDIATE has locked everything.
    pub async fn lock_payment(&mut self, notice: &Notice) -> Result<payment::Model, Interrupted> {
        let select = payment::Entity::find_by_id(notice.key()).lock(LockType::NoKeyUpdate);
        let row = select.one(self.connection()?).await?;
        row.ok_or_else(|| Failure::internal("a payment that was inserted could not be locked").into())
    }

    /// Inserts what was told, and says whether it is news. Do it under the payment's lock.
    pub async fn hear(&mut self, notice: &Notice) -> Result<Heard, Interrupted> {
        let (provider, reference) = notice.key();
        let row = payment_event::ActiveModel {
            provider: Set(provider.clone()),
            event_id: Set(notice.event_id.clone()),
            reference: Set(reference),
            state: Set(notice.state),
            received_at: Set(self.clock.process_now()),
        };
        // Whichever of the two constraints knows it already.
        let anywhere = OnConflict::new().do_nothing().to_owned();
        let insert = payment_event::Entity::insert(row).on_conflict(anywhere).try_insert();
        if let TryInsertResult::Inserted(1..) = insert.exec_without_returning(self.connection()?).await? {
            return Ok(Heard::First);
        }
        let earlier = payment_event::Entity::find_by_id((provider, notice.event_id.clone()));
        let earlier = earlier.one(self.connection()?).await?;
        let same = earlier.is_none_or(|event| event.reference == notice.reference && event.state == notice.state);
        Ok(if same { Heard::Again } else { Heard::AnotherUnderThisId })
    }

    /// Opens the wallet that had no row when this work was tried before, and the member's own row in front of it: value that
    /// comes from outside may overtake the member's first visit.
    pub async fn welcome(&mut self, member: &Member) -> Result<(), Interrupted> {
        if !self.opens_wallets() {
            return Ok(());
        }
        let row = member::ActiveModel {
            id: Set(member.id()),
            name: Set(member.name().to_owned()),
            created_at: Set(self.clock.process_now()),
        };
        let anywhere = OnConflict::new().do_nothing().to_owned();
        let insert = member::Entity::insert(row).on_conflict(anywhere).try_insert();
        insert.exec_without_returning(self.connection()?).await?;
        self.open_wallets().await
    }

    /// Writes down how far the locked payment has come, and what credited it.
    pub async fn move_payment(
        &mut self,
        payment: &payment::Model,
        state: PaymentState,
        transaction_id: Option<Uuid>,
    ) -> Result<(), Interrupted> {
        let updated = payment::Entity::update_many()
            .col_expr(payment::Column::State, Expr::val(state.to_value()))
            .col_expr(payment::Column::TransactionId, Expr::val(transaction_id))
            .col_expr(payment::Column::UpdatedAt, Expr::val(self.clock.process_now()))
            .filter(payment::Column::Provider.eq(payment.provider.as_str()))
            .filter(payment::Column::Reference.eq(payment.reference.as_str()))
            .exec(self.connection()?)
            .await?;
        if updated.rows_affected == 1 { Ok(()) } else { Err(Failure::internal("a locked payment is gone").into()) }
    }

    async fn insert_conflict(&mut self, notice: &Notice) -> Result<(), Interrupted> {
        let (provider, reference) = notice.key();
        let row = payment_conflict::ActiveModel {
            id: Set(Uuid::now_v7()),
            provider: Set(provider),
            event_id: Set(notice.event_id.clone()),
            reference: Set(reference),
            state: Set(notice.state),
            member: Set(notice.member.name().to_owned()),
            amount: Set(notice.amount.minor_units()),
            currency: Set(notice.currency.to_string()),
            received_at: Set(self.clock.process_now()),
        };
        let anywhere = OnConflict::new().do_nothing().to_owned();
        let insert = payment_conflict::Entity::insert(row).on_conflict(anywhere).try_insert();
        insert.exec_without_returning(self.connection()?).await?;
        Ok(())
    }
}
