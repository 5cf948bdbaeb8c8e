//! Taking back what was posted, whole or in part. All ways in share one remaining amount, under the original's row lock.

use sea_orm::{
    ActiveValue::Set,
    ColumnTrait, EntityTrait, FromQueryResult, QueryFilter, QueryOrder, QuerySelect,
    sea_query::{Expr, ExprTrait, LockType},
};
use uuid::Uuid;

use super::Ledger;
use super::post::{Leg, Purpose, Receipt, TooMuch, WalletRef};
use super::tx::{Interrupted, Stop, Tx, failure};
use crate::amount::{Amount, CurrencyCode};
use crate::entity::{House, Kind, debt, entry, member, reversal, transaction, wallet};
use crate::error::Failure;
use crate::member::Member;

/// A transaction that stands in the books. It never changes.
#[derive(Debug, Clone)]
pub struct Posted {
    id: Uuid,
    kind: Kind,
    from: Source,
    to: WalletRef,
    amount: Amount,
}

/// Who gave it.
#[derive(Debug, Clone)]
enum Source {
    Wallet(WalletRef),
    House(House),
}

/// A posted transaction under its row lock: no other reversal of it is under way.
#[derive(Debug)]
pub struct Original {
    posted: Posted,
    reversed: i64,
}

/// What a reversal did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reversed {
    /// What it takes back, in minor units.
    pub amount: i64,
    /// As much of it as was spent, and became a debt.
    pub owed: i64,
}

#[derive(FromQueryResult)]
struct Line {
    kind: Kind,
    currency: String,
    amount: i64,
    house: Option<House>,
    name: Option<String>,
}

impl Posted {
    /// What credited a payment from outside, as the payment's locked row has it.
    pub fn of_payment(id: Uuid, to: WalletRef, amount: Amount) -> Self {
        Self { id, kind: Kind::Funding, from: Source::House(House::Funding), to, amount }
    }

    /// Whether it can be reversed at all: a reversal and what follows from one cannot.
    pub fn is_reversible(&self) -> bool {
        !matches!(self.kind, Kind::Reversal | Kind::DebtPayment)
    }

    /// Whom it credited.
    pub fn receiver(&self) -> &Member {
        self.to.member()
    }

    /// The wallet that it credited.
    pub fn wallet(&self) -> &WalletRef {
        &self.to
    }

    /// Its id.
    pub fn id(&self) -> Uuid {
        self.id
    }
}

impl Original {
    /// What is left to reverse, in minor units.
    pub fn remaining(&self) -> i64 {
        self.posted.amount.minor_units() - self.reversed
    }
}

impl Ledger {
    /// Reads a transaction that credited a member; None where there is none.
    pub async fn posted(&self, id: Uuid) -> Result<Option<Posted>, Failure> {
        let lines = entry::Entity::find()
            .select_only()
            .columns([entry::Column::Amount, entry::Column::House])
            .columns([transaction::Column::Kind, transaction::Column::Currency])
            .column(member::Column::Name)
            .filter(entry::Column::TransactionId.eq(id))
            .order_by_asc(entry::Column::Line);
        let lines = with_members(lines).into_model::<Line>().all(&self.read).await.map_err(failure)?;
        posted(id, &lines)
    }

    /// The unit of a transaction; None where there is none.
    pub async fn currency_of(&self, transaction: Uuid) -> Result<Option<String>, Failure> {
        let found = transaction::Entity::find_by_id(transaction).one(&self.read).await.map_err(failure)?;
        Ok(found.map(|row| row.currency))
    }

    /// What a reversal did; None where the transaction is no reversal.
    pub async fn reversed(&self, id: Uuid) -> Result<Option<Reversed>, Failure> {
        let found = reversal::Entity::find_by_id(id).one(&self.read).await.map_err(failure)?;
        let owed = debt::Entity::find_by_id(id).one(&self.read).await.map_err(failure)?;
        Ok(found.map(|row| Reversed { amount: row.amount, owed: owed.map_or(0, |debt| debt.amount) }))
    }
}

fn posted(id: Uuid, lines: &[Line]) -> Result<Option<Posted>, Failure> {
    let wallet = |line: &Line| -> Result<Option<WalletRef>, Failure> {
        let Some(name) = &line.name else { return Ok(None) };
        let member = Member::parse(name).map_err(|error| Failure::internal(format!("a member's name {error}")))?;
        let currency = CurrencyCode::parse(&line.currency);
        let currency = currency.ok_or_else(|| Failure::internal("a currency that is no code"))?;
        Ok(Some(WalletRef::new(&member, &currency)))
    };
    let credit = lines.iter().find(|line| line.amount > 0 && line.name.is_some());
    let debit = lines.iter().find(|line| line.amount < 0);
    let (Some(credit), Some(debit)) = (credit, debit) else { return Ok(None) };
    let (Some(to), Some(amount)) = (wallet(credit)?, Amount::new(credit.amount)) else { return Ok(None) };
    let from = match (wallet(debit)?, debit.house) {
        (Some(wallet), _) => Source::Wallet(wallet),
        (None, Some(house)) => Source::House(house),
        (None, None) => return Err(Failure::internal("an entry of nobody")),
    };
    Ok(Some(Posted { id, kind: credit.kind, from, to, amount }))
}

fn with_members(mut lines: sea_orm::Select<entry::Entity>) -> sea_orm::Select<entry::Entity> {
    use sea_orm::sea_query::JoinType::{InnerJoin, LeftJoin};
    let of_transaction =
        Expr::col((transaction::Entity, transaction::Column::Id)).equals((entry::Entity, entry::Column::TransactionId));
    let of_wallet = Expr::col((wallet::Entity, wallet::Column::Id)).equals((entry::Entity, entry::Column::WalletId));
    let of_member = Expr::col((member::Entity, member::Column::Id)).equals((wallet::Entity, wallet::Column::MemberId));
    QuerySelect::query(&mut lines)
        .join(InnerJoin, transaction::Entity, of_transaction)
        .join(LeftJoin, wallet::Entity, of_wallet)
        .join(LeftJoin, member::Entity, of_member);
    lines
}

impl Tx {
    /// Locks a posted transaction against other reversals, and reads in the next statement what is left of it. Comes before
    /// any wallet is locked.
    pub async fn lock_posted(&mut self, posted: Posted) -> Result<Original, Interrupted> {
        transaction::Entity::find_by_id(posted.id)
            .lock(LockType::NoKeyUpdate)
            .one(self.connection()?)
            .await?
            .ok_or_else(|| Failure::internal("a posted transaction is gone"))?;
        let sum: Option<Option<i64>> = reversal::Entity::find()
            .select_only()
            .column_as(Expr::cust("CAST(SUM(amount) AS bigint)"), "reversed")
            .filter(reversal::Column::OriginalId.eq(posted.id))
            .into_tuple()
            .one(self.connection()?)
            .await?;
        Ok(Original { posted, reversed: sum.flatten().unwrap_or_default() })
    }

    /// Takes back an amount, which is not above what remains: from the receiver's wallet what is there; the rest becomes a
    /// debt. Of a reversed transfer, the sender gets what is recovered and no more.
    pub async fn reverse<R: From<TooMuch>>(
        &mut self,
        original: Original,
        amount: Amount,
        memo: Option<String>,
        actor: String,
    ) -> Result<Receipt, Stop<R>> {
        assert!(amount.minor_units() <= original.remaining(), "a reversal takes back what is left");
        let Posted { id, from, to, .. } = original.posted;
        let wanted: Vec<_> = match &from {
            Source::Wallet(sender) => vec![sender, &to],
            Source::House(_) => vec![&to],
        };
        let mut wallets = self.lock_wallets(&wanted).await?;
        let recovered = Amount::new(Ord::min(amount.minor_units(), wallets.available(&to)));
        let owed = Amount::new(amount.minor_units() - recovered.map_or(0, Amount::minor_units));
        let mut legs = Vec::with_capacity(4);
        if let Some(recovered) = recovered {
            let uncovered = |_| Failure::internal("what is available is not");
            legs.push(wallets.debit(&to, recovered).map_err(uncovered)?);
        }
        if let Some(owed) = owed {
            wallets.owe(&to, owed.minor_units()).map_err(|too_much| Stop::Refused(too_much.into()))?;
            legs.push(Leg::given_by(House::Receivable, owed));
        }
        match &from {
            Source::House(house) => legs.push(Leg::taken_by(*house, amount)),
            Source::Wallet(sender) => {
                if let Some(recovered) = recovered {
                    legs.push(wallets.credit(sender, recovered)?);
                }
                legs.extend(owed.map(|owed| Leg::taken_by(House::Payable, owed)));
            }
        }
        self.record_reversal(id, amount, owed.map(|owed| (owed, &to, &from))).await?;
        let purpose =
            Purpose { kind: Kind::Reversal, currency: to.currency().clone(), memo, actor: Some(actor), at: None };
        Ok(self.post(wallets, legs, purpose).await?)
    }

    async fn record_reversal(
        &mut self,
        original_id: Uuid,
        amount: Amount,
        debt: Option<(Amount, &WalletRef, &Source)>,
    ) -> Result<(), Interrupted> {
        let row = reversal::ActiveModel {
            transaction_id: Set(self.transaction_id),
            original_id: Set(original_id),
            amount: Set(amount.minor_units()),
        };
        reversal::Entity::insert(row).exec_without_returning(self.connection()?).await?;
        let Some((owed, debtor, from)) = debt else { return Ok(()) };
        let creditor_id = match from {
            Source::Wallet(sender) => Some(sender.id()),
            Source::House(_) => None,
        };
        let row = debt::ActiveModel {
            reversal_id: Set(self.transaction_id),
            wallet_id: Set(debtor.id()),
            creditor_id: Set(creditor_id),
            amount: Set(owed.minor_units()),
            remaining: Set(owed.minor_units()),
        };
        debt::Entity::insert(row).exec_without_returning(self.connection()?).await?;
        Ok(())
    }
}
