//! Locked wallets, and the double-entry posting that only they can make.
//!
//! A [`Leg`] comes from [`LockedWallets`] or from the house, and [`Tx::post`] takes legs and the locked wallets
//! themselves: money cannot move unlocked, by type.

use chrono::{DateTime, Utc};
use sea_orm::{
    ActiveValue::Set,
    ColumnTrait, ConnectionTrait, DbBackend, EntityTrait, QueryFilter, QueryTrait,
    sea_query::{CaseStatement, CommonTableExpression, Expr, ExprTrait, InsertStatement, UpdateStatement, WithClause},
};
use uuid::Uuid;

use super::events;
use super::statement::{Counterparty, EntryRow};
use super::tx::{Interrupted, Stop, Tx};
use crate::amount::{Amount, CurrencyCode};
use crate::entity::{House, Kind, entry, transaction, wallet};
use crate::error::Failure;
use crate::member::{Member, derived_id};

/// Names a wallet, whether it has a row yet or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalletRef {
    id: Uuid,
    member: Member,
    currency: CurrencyCode,
}

impl WalletRef {
    /// The wallet of a member in a currency. Its id is derived from both, so it is the same before and after the first
    /// movement.
    pub fn new(member: &Member, currency: &CurrencyCode) -> Self {
        let id = derived_id(&["wallet", &member.id().to_string(), currency.as_str()]);
        Self { id, member: member.clone(), currency: currency.clone() }
    }

    /// The wallet's id.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// The holder.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// The unit.
    pub fn currency(&self) -> &CurrencyCode {
        &self.currency
    }

    /// The order in which wallets are opened.
    pub(super) fn opening_order(&self) -> (Uuid, &CurrencyCode) {
        (self.member.id(), &self.currency)
    }
}

/// Wallets whose rows this transaction has locked, as they are under the lock.
#[derive(Debug)]
pub struct LockedWallets {
    rows: Vec<wallet::Model>,
    /// As they were when they were locked.
    found: Vec<wallet::Model>,
    /// Who they are.
    names: Vec<WalletRef>,
}

/// The wallet does not cover the amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotCovered {
    /// What there is, in minor units.
    pub available: i64,
}

/// The balance would pass 2^63 - 1 minor units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMuch;

/// Why a wallet takes no credit now.
#[derive(Debug)]
pub enum NotCredited {
    /// It has no row yet.
    Unopened(WalletRef),
    /// Its balance would pass the largest one.
    TooMuch,
}

impl<R: From<TooMuch>> From<NotCredited> for Stop<R> {
    fn from(reason: NotCredited) -> Self {
        match reason {
            NotCredited::Unopened(wallet) => Interrupted::Open(wallet).into(),
            NotCredited::TooMuch => Self::Refused(TooMuch.into()),
        }
    }
}

/// One side of a posting.
#[derive(Debug)]
pub struct Leg {
    side: Side,
    amount: i64,
}

#[derive(Debug)]
enum Side {
    Wallet { wallet: WalletRef, seq: i64, balance_after: i64 },
    House(House),
}

/// What a committed posting says: its entries on members' wallets, and those wallets right after it.
#[derive(Debug, Clone)]
pub struct Receipt {
    /// The transaction.
    pub id: Uuid,
    /// The entries of members, not of the house.
    pub entries: Vec<EntryRow>,
    /// The wallets as the posting left them.
    pub wallets: Vec<wallet::Model>,
}

impl Receipt {
    /// The receipt of a transaction that was posted earlier: its entries are to be read, if somebody asks for them.
    pub fn stored(id: Uuid) -> Self {
        Self { id, entries: Vec::new(), wallets: Vec::new() }
    }

    /// The entry on a wallet.
    pub fn entry_of(&self, wallet: Uuid) -> Option<&EntryRow> {
        self.entries.iter().find(|entry| entry.wallet_id == wallet)
    }

    /// The state that the posting left a wallet in.
    pub fn wallet(&self, id: Uuid) -> Option<&wallet::Model> {
        self.wallets.iter().find(|wallet| wallet.id == id)
    }
}

impl LockedWallets {
    pub(super) fn of(rows: Vec<wallet::Model>, names: Vec<WalletRef>) -> Self {
        Self { found: rows.clone(), rows, names }
    }

    /// Whether the wallet has a row.
    pub fn has(&self, wallet: &WalletRef) -> bool {
        self.rows.iter().any(|row| row.id == wallet.id)
    }

    /// What can be spent from the wallet: nothing, if it has no row.
    pub fn available(&self, wallet: &WalletRef) -> i64 {
        self.rows.iter().find(|row| row.id == wallet.id).map_or(0, |row| row.balance)
    }

    /// Takes an amount out of a wallet.
    pub fn debit(&mut self, wallet: &WalletRef, amount: Amount) -> Result<Leg, NotCovered> {
        let available = self.available(wallet);
        match self.rows.iter_mut().find(|row| row.id == wallet.id && row.balance >= amount.minor_units()) {
            Some(row) => Ok(move_by(row, wallet, -amount.minor_units(), row.balance - amount.minor_units())),
            None => Err(NotCovered { available }),
        }
    }

    /// Puts an amount into a wallet. A wallet without a row is opened first, in a transaction begun anew.
    pub fn credit(&mut self, wallet: &WalletRef, amount: Amount) -> Result<Leg, NotCredited> {
        let Some(row) = self.rows.iter_mut().find(|row| row.id == wallet.id) else {
            return Err(NotCredited::Unopened(wallet.clone()));
        };
        match row.balance.checked_add(amount.minor_units()) {
            Some(balance) => Ok(move_by(row, wallet, amount.minor_units(), balance)),
            None => Err(NotCredited::TooMuch),
        }
    }
}

impl LockedWallets {
    /// The wallet owes an amount more.
    pub(super) fn owe(&mut self, wallet: &WalletRef, amount: i64) -> Result<(), TooMuch> {
        let row = self.rows.iter_mut().find(|row| row.id == wallet.id).ok_or(TooMuch)?;
        row.debt = row.debt.checked_add(amount).ok_or(TooMuch)?;
        Ok(())
    }

    /// The wallet owes an amount less.
    pub(super) fn owe_less(&mut self, wallet: &WalletRef, amount: Amount) {
        if let Some(row) = self.rows.iter_mut().find(|row| row.id == wallet.id) {
            row.debt -= amount.minor_units();
        }
    }

    /// A wallet that owes and has something, and how much of its debt it can pay.
    pub(super) fn able_to_pay(&self) -> Option<(WalletRef, i64)> {
        let row = self.rows.iter().find(|row| row.debt > 0 && row.balance > 0)?;
        let wallet = self.names.iter().find(|wallet| wallet.id == row.id)?;
        Some((wallet.clone(), Ord::min(row.balance, row.debt)))
    }

    /// Whether somebody owes more or less than before.
    fn debts_moved(&self) -> bool {
        self.rows.iter().zip(&self.found).any(|(now, found)| now.debt != found.debt)
    }

    /// The wallets that are not as they were found.
    fn changed(self) -> Vec<wallet::Model> {
        self.rows.into_iter().zip(self.found).filter(|(now, found)| now != found).map(|(now, _)| now).collect()
    }
}

fn move_by(row: &mut wallet::Model, wallet: &WalletRef, amount: i64, balance_after: i64) -> Leg {
    row.balance = balance_after;
    row.version += 1;
    Leg { side: Side::Wallet { wallet: wallet.clone(), seq: row.version, balance_after }, amount }
}

impl Leg {
    /// The house gives an amount: the other side of a credit to a member.
    pub fn given_by(house: House, amount: Amount) -> Self {
        Self { side: Side::House(house), amount: -amount.minor_units() }
    }

    /// The house takes an amount.
    pub fn taken_by(house: House, amount: Amount) -> Self {
        Self { side: Side::House(house), amount: amount.minor_units() }
    }

    fn member(&self) -> Option<&Member> {
        match &self.side {
            Side::Wallet { wallet, .. } => Some(wallet.member()),
            Side::House(_) => None,
        }
    }
}

/// What a posting is about.
#[derive(Debug, Clone)]
pub struct Purpose {
    /// What moves the value.
    pub kind: Kind,
    /// Unit of its legs.
    pub currency: CurrencyCode,
    /// The sender's note, or the reason that was given.
    pub memo: Option<String>,
    /// On whose word the house moves it, where no member does.
    pub actor: Option<String>,
    /// When it is posted; the process's clock if the operation read none.
    pub at: Option<DateTime<Utc>>,
}

/// A transaction of the books before it is written: its legs sum to zero.
pub(super) struct Posting {
    transaction: transaction::Model,
    legs: Vec<Leg>,
}

impl Posting {
    /// # Panics
    ///
    /// If the legs do not sum to zero: a mistake in an operation, which must never reach the books.
    pub(super) fn new(id: Uuid, legs: Vec<Leg>, purpose: Purpose, at: DateTime<Utc>) -> Self {
        assert!(legs.iter().any(|leg| leg.amount < 0), "somebody gives");
        assert_eq!(legs.iter().map(|leg| i128::from(leg.amount)).sum::<i128>(), 0, "a posting sums to zero");
        let Purpose { kind, currency, memo, actor, .. } = purpose;
        let transaction = transaction::Model { id, kind, currency: currency.to_string(), memo, actor, created_at: at };
        Self { transaction, legs }
    }

    /// The members' entries.
    fn entries(&self) -> impl Iterator<Item = EntryRow> {
        self.legs.iter().filter_map(|leg| receipt_line(&self.transaction, leg, &self.legs))
    }

    /// The members' entries, each with its member.
    fn told(&self) -> impl Iterator<Item = (&Member, EntryRow)> {
        self.legs.iter().filter_map(|leg| Some((leg.member()?, receipt_line(&self.transaction, leg, &self.legs)?)))
    }
}

impl Tx {
    /// Moves value between the legs' sides: balances, transaction, entries, and the events that tell of it. Wallets that owe and have received pay first.
    /// The locked wallets are used up, so what was read under the lock is written once.
    ///
    /// # Panics
    ///
    /// If the legs do not sum to zero.
    pub async fn post(
        &mut self,
        mut wallets: LockedWallets,
        legs: Vec<Leg>,
        purpose: Purpose,
    ) -> Result<Receipt, Interrupted> {
        let at = purpose.at.unwrap_or_else(|| self.clock.process_now());
        let mut postings = vec![Posting::new(self.transaction_id, legs, purpose, at)];
        self.pay_debts(&mut wallets, &mut postings, at).await?;
        let debts_moved = wallets.debts_moved();
        let touched = wallets.changed();
        let events = events::stage(&self.subscriptions, postings.iter().flat_map(Posting::told));
        self.write(&touched, debts_moved, &postings, events).await?;
        self.moved.extend(touched.iter().map(|row| (row.id, row.version)));
        // What was asked for comes first; the payments of debts after it are transactions of their own.
        Ok(Receipt { id: self.transaction_id, entries: postings[0].entries().collect(), wallets: touched })
    }

    /// PostgreSQL writes all the tables in one statement, which is one round trip instead of four; SQLite allows no
    /// writing inside WITH and has no round trips to save.
    async fn write(
        &self,
        wallets: &[wallet::Model],
        debts_moved: bool,
        postings: &[Posting],
        events: Option<InsertStatement>,
    ) -> Result<(), Interrupted> {
        let transactions = postings.iter().map(|posting| transaction::ActiveModel::from(posting.transaction.clone()));
        let transactions = transaction::Entity::insert_many(transactions).into_query();
        let (entries, balances) = (insert_entries(postings), update_balances(wallets, debts_moved));
        let connection = self.connection()?;
        let on_postgres = connection.get_database_backend() == DbBackend::Postgres;
        let moved = if wallets.is_empty() {
            // The house alone: a reversal of which nothing can be recovered from a wallet that owes already.
            connection.execute(&transactions).await?;
            connection.execute(&entries).await?;
            0
        } else if on_postgres {
            connection.execute(&in_one_statement(balances, transactions, entries, events)).await?;
            wallets.len() as u64
        } else {
            connection.execute(&transactions).await?;
            connection.execute(&entries).await?;
            if let Some(events) = events {
                connection.execute(&events).await?;
            }
            connection.execute(&balances).await?.rows_affected()
        };
        if moved == wallets.len() as u64 {
            Ok(())
        } else {
            Err(Failure::internal("a locked wallet was not updated").into())
        }
    }
}

fn update_balances(wallets: &[wallet::Model], debts_moved: bool) -> UpdateStatement {
    let by_wallet = |value: fn(&wallet::Model) -> i64| {
        wallets.iter().fold(CaseStatement::new(), |case, row| {
            case.case(Expr::col(wallet::Column::Id).eq(row.id), Expr::val(value(row)))
        })
    };
    let mut update = wallet::Entity::update_many()
        .col_expr(wallet::Column::Balance, by_wallet(|row| row.balance).into())
        .col_expr(wallet::Column::Version, by_wallet(|row| row.version).into());
    if debts_moved {
        update = update.col_expr(wallet::Column::Debt, by_wallet(|row| row.debt).into());
    }
    update.filter(wallet::Column::Id.is_in(wallets.iter().map(|row| row.id))).into_query()
}

fn insert_entries(postings: &[Posting]) -> InsertStatement {
    let row = |id: Uuid, line: i64, leg: &Leg| {
        let (wallet_id, house, seq, balance_after) = match &leg.side {
            Side::Wallet { wallet, seq, balance_after } => (Some(wallet.id), None, Some(*seq), Some(*balance_after)),
            Side::House(house) => (None, Some(*house), None, None),
        };
        entry::ActiveModel {
            transaction_id: Set(id),
            line: Set(line),
            wallet_id: Set(wallet_id),
            house: Set(house),
            amount: Set(leg.amount),
            seq: Set(seq),
            balance_after: Set(balance_after),
        }
    };
    let rows = postings
        .iter()
        .flat_map(|posting| (0..).zip(&posting.legs).map(move |(line, leg)| row(posting.transaction.id, line, leg)));
    entry::Entity::insert_many(rows).into_query()
}

fn in_one_statement(
    balances: UpdateStatement,
    transaction: InsertStatement,
    entries: InsertStatement,
    events: Option<InsertStatement>,
) -> sea_orm::sea_query::WithQuery {
    let part = |name: &'static str| {
        let mut part = CommonTableExpression::new();
        part.table_name(name);
        part
    };
    let mut all = WithClause::new();
    all.cte(part("moved").query(balances).to_owned());
    all.cte(part("booked").query(transaction).to_owned());
    if let Some(events) = events {
        all.cte(part("told").query(events).to_owned());
    }
    entries.with(all)
}

fn receipt_line(transaction: &transaction::Model, leg: &Leg, legs: &[Leg]) -> Option<EntryRow> {
    let Side::Wallet { wallet, seq, balance_after } = &leg.side else { return None };
    let other = legs.iter().filter_map(Leg::member).find(|other| *other != wallet.member());
    Some(EntryRow {
        wallet_id: wallet.id,
        seq: *seq,
        amount: leg.amount,
        balance_after: *balance_after,
        currency: transaction.currency.clone(),
        transaction_id: transaction.id,
        kind: transaction.kind,
        memo: transaction.memo.clone(),
        created_at: transaction.created_at,
        counterparty: other.map(|member| Counterparty { id: member.id(), name: member.name().to_owned() }),
    })
}
