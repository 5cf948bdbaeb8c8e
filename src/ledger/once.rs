//! Layer 2: claims that a unique constraint decides.
//!
//! Where the client names its attempt, the idempotency key is the claim: [`Ledger::exactly_once`] inserts it first, together
//! with the id of the transaction that will answer it, and does the work only if the insert won. Key, effects and answer
//! commit together, so there is no state "processing", and a crash leaves nothing behind. Where the client has no key, the
//! claim row is the key: [`Ledger::claim_once`] and [`Tx::insert_claim`].

use chrono::TimeDelta;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use sea_orm::{
    ActiveValue::Set, ColumnTrait, EntityTrait, QueryFilter, QueryOrder, QuerySelect, TryInsertResult, sea_query::Expr,
};
use tracing::Instrument;
use tracing::field::Empty;
use uuid::Uuid;

use super::Ledger;
use super::post::Receipt;
use super::tx::{Interrupted, Stop, Tx, Work, is_lock_timeout};
use crate::entity::{Bonus, claim, idempotency_key, member};
use crate::error::{Deadline, Failure};
use crate::member::Member;
use crate::traces::span;

/// The caller's name for one logical attempt: 1 to 255 visible ASCII characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// The longest key. The draft "The Idempotency-Key HTTP Header Field" sets none; large payment APIs take 255.
    pub const LONGEST: usize = 255;

    /// Reads a key; None if it is empty, too long, or holds anything but visible ASCII characters.
    pub fn parse(text: &str) -> Option<Self> {
        let well_formed = (1..=Self::LONGEST).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        well_formed.then(|| Self(text.to_owned()))
    }

    /// The key's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One logical attempt: who, at what, under which key, with which arguments.
#[derive(Debug, Clone)]
pub struct Attempt {
    member: Member,
    operation: String,
    key: IdempotencyKey,
    fingerprint: [u8; 32],
}

impl Attempt {
    /// Changes when fingerprints are made in another way, so that an old one cannot match by accident.
    const FINGERPRINT_VERSION: &'static str = "1";

    /// Names an attempt. `arguments` are the parsed ones, each with its name: nothing derived from them and nothing of
    /// what the client selects, so that a retry may ask for other fields.
    pub fn new(
        member: &Member,
        operation: impl Into<String>,
        key: &IdempotencyKey,
        arguments: &[(&str, &str)],
    ) -> Self {
        let operation = operation.into();
        let mut hash = Sha256::new();
        let mut word = |text: &str| {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text.as_bytes());
        };
        word(Self::FINGERPRINT_VERSION);
        word(&operation);
        for (name, value) in arguments {
            word(name);
            word(value);
        }
        Self { member: member.clone(), operation, key: key.clone(), fingerprint: hash.finalize().into() }
    }

    /// What is attempted, without the ids that some scopes end with.
    fn action(&self) -> &str {
        self.operation.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default()
    }
}

/// How an attempt was answered. Every repeat of it gets the same.
#[derive(Debug, Clone)]
pub enum Answer<Refusal> {
    /// Value moved.
    Done {
        /// What moved.
        receipt: Receipt,
        /// Whether this is the stored answer to an earlier request.
        replayed: bool,
    },
    /// Nothing moved.
    Refused {
        /// Why.
        refusal: Refusal,
        /// Whether this is the stored answer to an earlier request.
        replayed: bool,
    },
    /// The key was used before with other arguments. Nothing moved, and the key keeps its answer.
    Mismatch,
}

/// Why an attempt's transaction stops without an answer of its own.
enum Lost {
    /// Another request inserted the key before; its answer is there.
    ToAnswer(idempotency_key::Model),
    /// The key's row went away between the insert and the reading: its owner rolled back, or it was cleaned.
    ToNobody,
}

impl Ledger {
    /// Does `work` once for an attempt, whoever else tries the same at the same time, and gives everyone the same answer.
    pub async fn exactly_once<W>(
        &self,
        attempt: &Attempt,
        deadline: Deadline,
        work: &W,
    ) -> Result<Answer<W::Refusal>, Failure>
    where
        W: Work<Done = Receipt>,
        W::Refusal: Serialize + DeserializeOwned + Sync,
    {
        let span = span!("claim", operation = attempt.action(), outcome = Empty);
        let answered = self.first_or_stored(attempt, deadline, work).instrument(span.clone()).await;
        span.record("outcome", claimed(&answered));
        answered
    }

    async fn first_or_stored<W>(
        &self,
        attempt: &Attempt,
        deadline: Deadline,
        work: &W,
    ) -> Result<Answer<W::Refusal>, Failure>
    where
        W: Work<Done = Receipt>,
        W::Refusal: Serialize + DeserializeOwned + Sync,
    {
        loop {
            let retention = (self.refusal_retention, self.completed_retention);
            let first = FirstToInsert { attempt, work, retention };
            match self.transact(deadline, &first).await? {
                Ok(answer) => {
                    count("won");
                    return Ok(answer);
                }
                Err(Lost::ToAnswer(stored)) => return stored_answer(attempt, stored),
                Err(Lost::ToNobody) => {}
            }
        }
    }

    /// Does `work`, whose claim row is its own key: a refusal rolls back, for there is nothing to store.
    pub async fn claim_once<W: Work>(
        &self,
        deadline: Deadline,
        work: &W,
    ) -> Result<Result<W::Done, W::Refusal>, Failure> {
        let span = span!("claim", outcome = Empty);
        let claimed = self.transact(deadline, &Opening(work)).instrument(span.clone()).await;
        let outcome = claimed.as_ref().map_or("failed", |claimed| if claimed.is_ok() { "won" } else { "refused" });
        span.record("outcome", outcome);
        claimed
    }
}

/// What a claim's span says of it: whether the work was done, and never which key it was.
fn claimed<R>(answered: &Result<Answer<R>, Failure>) -> &'static str {
    match answered {
        Ok(Answer::Done { replayed: true, .. } | Answer::Refused { replayed: true, .. }) => "replayed",
        Ok(Answer::Done { .. }) => "won",
        Ok(Answer::Refused { .. }) => "refused",
        Ok(Answer::Mismatch) => "mismatch",
        Err(Failure::KeyInUse) => "in_use",
        Err(_) => "failed",
    }
}

/// The answer is ids and a refusal's details, not a rendered response: what a retry selects is read when it is asked for.
fn stored_answer<R: DeserializeOwned>(attempt: &Attempt, stored: idempotency_key::Model) -> Result<Answer<R>, Failure> {
    if stored.fingerprint != attempt.fingerprint {
        count("mismatch");
        return Ok(Answer::Mismatch);
    }
    count("replayed");
    match (stored.transaction_id, stored.refusal) {
        (Some(id), _) => Ok(Answer::Done { receipt: Receipt::stored(id), replayed: true }),
        (None, Some(refusal)) => {
            let refusal = serde_json::from_value(refusal)
                .map_err(|error| Failure::internal(format!("a stored refusal cannot be read: {error}")))?;
            Ok(Answer::Refused { refusal, replayed: true })
        }
        (None, None) => Err(Failure::internal("a key without an answer")),
    }
}

/// An answer as it is kept beside a lock: for whoever repeats the attempt before the lock ends.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Written<Refusal> {
    Transaction(Uuid),
    Refusal(Refusal),
}

impl<R: Serialize> Answer<R> {
    /// Writes a committed answer down. A mismatch is none: the key keeps another.
    pub fn written(&self) -> Option<String> {
        let written = match self {
            Self::Done { receipt, .. } => Written::Transaction(receipt.id),
            Self::Refused { refusal, .. } => Written::Refusal(refusal),
            Self::Mismatch => return None,
        };
        serde_json::to_string(&written).ok()
    }
}

impl<R: DeserializeOwned> Answer<R> {
    /// Reads what [`Self::written`] wrote, as the stored answer that it is.
    pub fn read(written: &str) -> Option<Self> {
        let answer = match serde_json::from_str(written).ok()? {
            Written::Transaction(id) => Self::Done { receipt: Receipt::stored(id), replayed: true },
            Written::Refusal(refusal) => Self::Refused { refusal, replayed: true },
        };
        Some(answer)
    }
}

/// The key first, then the work, and its refusal as the key's answer.
struct FirstToInsert<'a, W> {
    attempt: &'a Attempt,
    work: &'a W,
    /// Of a refusal, and of what moved value.
    retention: (TimeDelta, Option<TimeDelta>),
}

impl<W> Work for FirstToInsert<'_, W>
where
    W: Work<Done = Receipt>,
    W::Refusal: Serialize + Sync,
{
    type Done = Answer<W::Refusal>;
    type Refusal = Lost;

    async fn run(&self, tx: &mut Tx) -> Result<Self::Done, Stop<Lost>> {
        let (refusal_retention, completed_retention) = self.retention;
        if !tx.insert_key(self.attempt, completed_retention).await? {
            return Err(Stop::Refused(tx.read_key(self.attempt).await?));
        }
        tx.open_wallets().await?;
        let refusal = match self.work.run(tx).await {
            Ok(receipt) => return Ok(Answer::Done { receipt, replayed: false }),
            Err(Stop::Refused(refusal)) => refusal,
            Err(Stop::Interrupted(interrupted)) => return Err(interrupted.into()),
        };
        tx.unopen_wallets().await?;
        tx.answer_with_refusal(self.attempt, &refusal, refusal_retention).await?;
        Ok(Answer::Refused { refusal, replayed: false })
    }
}

/// Wallets to open come before whatever the work locks.
struct Opening<'a, W>(&'a W);

impl<W: Work> Work for Opening<'_, W> {
    type Done = W::Done;
    type Refusal = W::Refusal;

    async fn run(&self, tx: &mut Tx) -> Result<W::Done, Stop<W::Refusal>> {
        tx.open_wallets().await?;
        self.0.run(tx).await
    }
}

impl Tx {
    /// Inserts the key as if the work were done. Waits for another transaction that inserts the same key now; false if that
    /// one, or an earlier one, was committed.
    async fn insert_key(&mut self, attempt: &Attempt, retention: Option<TimeDelta>) -> Result<bool, Interrupted> {
        let now = self.clock.process_now();
        let row = idempotency_key::ActiveModel {
            member_id: Set(attempt.member.id()),
            operation: Set(attempt.operation.clone()),
            key: Set(attempt.key.0.clone()),
            fingerprint: Set(attempt.fingerprint.to_vec()),
            transaction_id: Set(Some(self.transaction_id)),
            refusal: Set(None),
            created_at: Set(now),
            expires_at: Set(retention.map(|retention| now + retention)),
        };
        let insert = idempotency_key::Entity::insert(row).on_conflict_do_nothing();
        match insert.exec_without_returning(self.connection()?).await {
            Ok(TryInsertResult::Inserted(rows)) => Ok(rows > 0),
            Ok(TryInsertResult::Conflicted | TryInsertResult::Empty) => Ok(false),
            Err(error) if is_lock_timeout(&error) => {
                count("concurrent");
                Err(Failure::KeyInUse.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the key's row with a statement of its own: the insert's snapshot is older than what it waited for.
    async fn read_key(&mut self, attempt: &Attempt) -> Result<Lost, Interrupted> {
        let id = (attempt.member.id(), attempt.operation.clone(), attempt.key.0.clone());
        let row = idempotency_key::Entity::find_by_id(id).one(self.connection()?).await?;
        Ok(row.map_or(Lost::ToNobody, Lost::ToAnswer))
    }

    async fn answer_with_refusal(
        &mut self,
        attempt: &Attempt,
        refusal: &impl Serialize,
        retention: TimeDelta,
    ) -> Result<(), Interrupted> {
        let stored = serde_json::to_value(refusal)
            .map_err(|error| Failure::internal(format!("a refusal cannot be written: {error}")))?;
        let updated = idempotency_key::Entity::update_many()
            .col_expr(idempotency_key::Column::TransactionId, Expr::val(None::<Uuid>))
            .col_expr(idempotency_key::Column::Refusal, Expr::val(stored))
            .col_expr(idempotency_key::Column::ExpiresAt, Expr::val(self.clock.process_now() + retention))
            .filter(idempotency_key::Column::MemberId.eq(attempt.member.id()))
            .filter(idempotency_key::Column::Operation.eq(attempt.operation.as_str()))
            .filter(idempotency_key::Column::Key.eq(attempt.key.as_str()))
            .exec(self.connection()?)
            .await?;
        if updated.rows_affected == 1 { Ok(()) } else { Err(Failure::internal("the key's own row is gone").into()) }
    }

    /// The member's newest claim of a bonus. Read it under the wallet's lock, in a statement after the locking one.
    pub async fn newest_claim(&mut self, member: &Member, bonus: Bonus) -> Result<Option<claim::Model>, Interrupted> {
        let newest = claim::Entity::find()
            .filter(claim::Column::MemberId.eq(member.id()))
            .filter(claim::Column::Bonus.eq(bonus))
            .order_by_desc(claim::Column::Period)
            .limit(1);
        Ok(newest.one(self.connection()?).await?)
    }

    /// Inserts a claim, which the posting of this transaction will credit; false if the constraint says that another was
    /// there before.
    pub async fn insert_claim(&mut self, claim: &claim::Model) -> Result<bool, Interrupted> {
        let insert = claim::Entity::insert(claim::ActiveModel::from(claim.clone())).on_conflict_do_nothing_on([
            claim::Column::MemberId,
            claim::Column::Bonus,
            claim::Column::Period,
        ]);
        match insert.exec_without_returning(self.connection()?).await? {
            TryInsertResult::Inserted(rows) => Ok(rows > 0),
            TryInsertResult::Conflicted | TryInsertResult::Empty => Ok(false),
        }
    }

    /// The claim that was there when [`Self::insert_claim`] inserted nothing.
    pub async fn winning_claim(&mut self, member: &Member, bonus: Bonus) -> Result<claim::Model, Interrupted> {
        let newest = self.newest_claim(member, bonus).await?;
        newest.ok_or_else(|| Failure::internal("a claim's insert conflicted with no claim").into())
    }

    /// The id of the transaction that this work will post.
    pub fn transaction_id(&self) -> Uuid {
        self.transaction_id
    }

    /// Whether a member of this name was ever here.
    pub async fn is_known(&mut self, member: &Member) -> Result<bool, Interrupted> {
        Ok(member::Entity::find_by_id(member.id()).one(self.connection()?).await?.is_some())
    }
}

fn count(outcome: &'static str) {
    metrics::counter!("largesse_idempotency_total", "outcome" => outcome).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_visible_ascii() {
        for bad in ["", " ", "a b", "a\0", "ü", &"x".repeat(256)] {
            assert_eq!(IdempotencyKey::parse(bad), None, "{bad:?}");
        }
        assert!(IdempotencyKey::parse(&"x".repeat(255)).is_some());
    }

    #[test]
    fn fingerprints_differ_where_arguments_differ() {
        let member = Member::parse("alice").unwrap();
        let key = IdempotencyKey::parse("k").unwrap();
        let print = |arguments: &[(&str, &str)]| Attempt::new(&member, "transfer", &key, arguments).fingerprint;
        assert_eq!(print(&[("to", "bob")]), print(&[("to", "bob")]));
        assert_ne!(print(&[("to", "bob")]), print(&[("to", "bobb")]));
        assert_ne!(print(&[("to", "bob"), ("memo", "")]), print(&[("to", "bob")]));
    }
}
