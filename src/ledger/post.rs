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
    /// The entries of members, not of the house.
    pub entries: Vec<EntryRow>,
    /// The wallets as the posting left them; empty when the receipt was read again later.
    pub wallets: Vec<wallet::Model>,
}

impl Receipt {
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
    pub(super) fn of(rows: Vec<wallet::Model>) -> Self {
        Self { rows }
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
    /// Unit of both legs.
    pub currency: CurrencyCode,
    /// The sender's note.
    pub memo: Option<String>,
    /// When it is posted; the process's clock if the operation read none.
    pub at: Option<DateTime<Utc>>,
}

impl Tx {
    /// Moves value from the debit's side to the credit's: balances, transaction, entries, and the events that tell of it.
    /// The wallets are used up, so what was read under the lock is written once.
    ///
    /// # Panics
    ///
    /// If the legs do not sum to zero: a mistake in an operation, which must never reach the books.
    pub async fn post(
        &mut self,
        wallets: LockedWallets,
        debit: Leg,
        credit: Leg,
        purpose: Purpose,
    ) -> Result<Receipt, Interrupted> {
        assert!(debit.amount < 0, "a debit takes");
        assert_eq!(i128::from(debit.amount) + i128::from(credit.amount), 0, "a posting sums to zero");
        let transaction = transaction::Model {
            id: self.transaction_id,
            kind: purpose.kind,
            currency: purpose.currency.to_string(),
            memo: purpose.memo,
            created_at: purpose.at.unwrap_or_else(|| self.clock.process_now()),
        };
        let touched: Vec<_> =
            wallets.rows.into_iter().filter(|row| touches(&debit, row) || touches(&credit, row)).collect();
        let sides = [(&debit, &credit), (&credit, &debit)];
        let line = |(leg, other): (&'_ Leg, _)| Some((leg.member()?.clone(), receipt_line(&transaction, leg, other)?));
        let moved: Vec<_> = sides.into_iter().filter_map(line).collect();
        let told: Vec<_> = moved.iter().map(|(member, entry)| (member, entry)).collect();
        let events = events::stage(&self.subscriptions, &told);
        self.write(&touched, &transaction, [&debit, &credit], events).await?;
        Ok(Receipt { entries: moved.into_iter().map(|(_, entry)| entry).collect(), wallets: touched })
    }

    /// PostgreSQL writes all the tables in one statement, which is one round trip instead of four; SQLite allows no
    /// writing inside WITH and has no round trips to save.
    async fn write(
        &self,
        wallets: &[wallet::Model],
        transaction: &transaction::Model,
        legs: [&Leg; 2],
        events: Option<InsertStatement>,
    ) -> Result<(), Interrupted> {
        let balances = update_balances(wallets);
        let transaction_row =
            transaction::Entity::insert(transaction::ActiveModel::from(transaction.clone())).into_query();
        let entry_rows = insert_entries(transaction.id, legs);
        let connection = self.connection()?;
        let moved = if connection.get_database_backend() == DbBackend::Postgres {
            connection.execute(&in_one_statement(balances, transaction_row, entry_rows, events)).await?;
            wallets.len() as u64
        } else {
            connection.execute(&transaction_row).await?;
            connection.execute(&entry_rows).await?;
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

fn touches(leg: &Leg, row: &wallet::Model) -> bool {
    matches!(&leg.side, Side::Wallet { wallet, .. } if wallet.id == row.id)
}

fn update_balances(wallets: &[wallet::Model]) -> UpdateStatement {
    let by_wallet = |value: fn(&wallet::Model) -> i64| {
        wallets.iter().fold(CaseStatement::new(), |case, row| {
            case.case(Expr::col(wallet::Column::Id).eq(row.id), Expr::val(value(row)))
        })
    };
    wallet::Entity::update_many()
        .col_expr(wallet::Column::Balance, by_wallet(|row| row.balance).into())
        .col_expr(wallet::Column::Version, by_wallet(|row| row.version).into())
        .filter(wallet::Column::Id.is_in(wallets.iter().map(|row| row.id)))
        .into_query()
}

fn insert_entries(transaction_id: Uuid, legs: [&Leg; 2]) -> InsertStatement {
    let row = |(line, leg): (i64, &Leg)| {
        let (wallet_id, house, seq, balance_after) = match &leg.side {
            Side::Wallet { wallet, seq, balance_after } => (Some(wallet.id), None, Some(*seq), Some(*balance_after)),
            Side::House(house) => (None, Some(*house), None, None),
        };
        entry::ActiveModel {
            transaction_id: Set(transaction_id),
            line: Set(line),
            wallet_id: Set(wallet_id),
            house: Set(house),
            amount: Set(leg.amount),
            seq: Set(seq),
            balance_after: Set(balance_after),
        }
    };
    entry::Entity::insert_many((0..).zip(legs).map(row)).into_query()
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

fn receipt_line(transaction: &transaction::Model, leg: &Leg, other: &Leg) -> Option<EntryRow> {
    let Side::Wallet { wallet, seq, balance_after } = &leg.side else { return None };
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
        counterparty: other.member().map(|member| Counterparty { id: member.id(), name: member.name().to_owned() }),
    })
}
