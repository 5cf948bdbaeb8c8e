//! Reads of the books. Nothing here locks or writes.

use chrono::{DateTime, Utc};
use sea_orm::{
    ColumnTrait, Condition, EntityTrait, FromQueryResult, JoinType, Order, QueryFilter, QueryOrder, QuerySelect,
    Select,
    sea_query::{Alias, Expr, ExprTrait, IntoCondition, Query},
};
use uuid::Uuid;

use super::Ledger;
use super::post::WalletRef;
use super::tx::failure;
use crate::entity::{Bonus, Kind, claim, entry, member, transaction, wallet};
use crate::error::Failure;
use crate::member::Member;

/// One entry of a member's wallet, with what its transaction says.
#[derive(Debug, Clone)]
pub struct EntryRow {
    /// The wallet.
    pub wallet_id: Uuid,
    /// Place in the wallet, from 1.
    pub seq: i64,
    /// Signed minor units.
    pub amount: i64,
    /// The wallet's balance right after it.
    pub balance_after: i64,
    /// Unit.
    pub currency: String,
    /// The transaction.
    pub transaction_id: Uuid,
    /// What moved the value.
    pub kind: Kind,
    /// The sender's note.
    pub memo: Option<String>,
    /// When it was posted.
    pub created_at: DateTime<Utc>,
    /// The member on the other side; None where the house is.
    pub counterparty: Option<Counterparty>,
}

/// The member on the other side of an entry.
#[derive(Debug, Clone)]
pub struct Counterparty {
    /// The member's id.
    pub id: Uuid,
    /// The member's name.
    pub name: String,
}

/// Which part of a list that is sorted newest first. Cursors are exclusive.
#[derive(Debug, Clone)]
pub struct Page<Cursor> {
    /// Only what is older than this.
    pub after: Option<Cursor>,
    /// Only what is newer than this.
    pub before: Option<Cursor>,
    /// How many at most.
    pub limit: u64,
    /// Count from the oldest end.
    pub from_the_end: bool,
}

/// A part of a list, newest first.
#[derive(Debug, Clone)]
pub struct Slice<Row> {
    /// The rows.
    pub rows: Vec<Row>,
    /// Whether older ones follow.
    pub has_next: bool,
    /// Whether newer ones precede.
    pub has_previous: bool,
}

/// The place of a claim in a member's claims. A member's claims are made one after the other, under the wallet's lock.
pub type ClaimCursor = (DateTime<Utc>, Uuid);

/// How many wallets one statement looks at: a list of a thousand ids is planned and read in a few milliseconds.
const MOST_IN_A_LOOK: usize = 1000;

impl Ledger {
    /// The rows of wallets that have one.
    pub async fn wallets(&self, wallets: &[WalletRef]) -> Result<Vec<wallet::Model>, Failure> {
        let ids = wallets.iter().map(WalletRef::id);
        wallet::Entity::find().filter(wallet::Column::Id.is_in(ids)).all(&self.read).await.map_err(failure)
    }

    /// Reads how far the watched wallets have come, and wakes who has not seen it: an announcement may have been lost.
    pub async fn look_at_watched(&self) -> Result<(), Failure> {
        for wallets in self.live.watched().chunks(MOST_IN_A_LOOK) {
            let versions = wallet::Entity::find()
                .select_only()
                .columns([wallet::Column::Id, wallet::Column::Version])
                .filter(wallet::Column::Id.is_in(wallets.iter().copied()));
            let versions: Vec<(Uuid, i64)> = versions.into_tuple().all(&self.read).await.map_err(failure)?;
            self.live.wake(&versions);
        }
        Ok(())
    }

    /// A page of a wallet's entries.
    pub async fn entries(&self, wallet: Uuid, page: Page<i64>) -> Result<Slice<EntryRow>, Failure> {
        let mut select = entry_rows().filter(entry::Column::WalletId.eq(wallet));
        select = match page.after {
            Some(seq) => select.filter(entry::Column::Seq.lt(seq)),
            None => select,
        };
        select = match page.before {
            Some(seq) => select.filter(entry::Column::Seq.gt(seq)),
            None => select,
        };
        let order = if page.from_the_end { Order::Asc } else { Order::Desc };
        let rows = select.order_by(entry::Column::Seq, order).limit(page.limit + 1);
        let rows = rows.into_model::<FlatEntry>().all(&self.read).await.map_err(failure)?;
        Ok(slice(rows.into_iter().map(EntryRow::from).collect(), &page))
    }

    /// One entry of a wallet.
    pub async fn entry(&self, wallet: Uuid, seq: i64) -> Result<Option<EntryRow>, Failure> {
        let select = entry_rows().filter(entry::Column::WalletId.eq(wallet)).filter(entry::Column::Seq.eq(seq));
        let row = select.into_model::<FlatEntry>().one(&self.read).await.map_err(failure)?;
        Ok(row.map(EntryRow::from))
    }

    /// The members' entries of transactions.
    pub async fn entries_of_transactions(&self, transactions: &[Uuid]) -> Result<Vec<EntryRow>, Failure> {
        let select = entry_rows()
            .filter(entry::Column::TransactionId.is_in(transactions.iter().copied()))
            .filter(entry::Column::WalletId.is_not_null())
            .order_by_asc(entry::Column::Line);
        let rows = select.into_model::<FlatEntry>().all(&self.read).await.map_err(failure)?;
        Ok(rows.into_iter().map(EntryRow::from).collect())
    }

    /// A page of a member's claims.
    pub async fn claims(&self, member: &Member, page: Page<ClaimCursor>) -> Result<Slice<claim::Model>, Failure> {
        let place = || Expr::tuple([Expr::col(claim::Column::ClaimedAt), Expr::col(claim::Column::Id)]);
        let at = |(claimed_at, id): ClaimCursor| Expr::tuple([Expr::val(claimed_at), Expr::val(id)]);
        let mut within = Condition::all().add(claim::Column::MemberId.eq(member.id()));
        if let Some(cursor) = page.after {
            within = within.add(place().lt(at(cursor)).into_condition());
        }
        if let Some(cursor) = page.before {
            within = within.add(place().gt(at(cursor)).into_condition());
        }
        let order = || if page.from_the_end { Order::Asc } else { Order::Desc };
        let rows = claim::Entity::find()
            .filter(within)
            .order_by(claim::Column::ClaimedAt, order())
            .order_by(claim::Column::Id, order())
            .limit(page.limit + 1);
        Ok(slice(rows.all(&self.read).await.map_err(failure)?, &page))
    }

    /// One claim.
    pub async fn claim(&self, id: Uuid) -> Result<Option<claim::Model>, Failure> {
        claim::Entity::find_by_id(id).one(&self.read).await.map_err(failure)
    }

    /// The member's newest claim of a bonus.
    pub async fn newest_claim(&self, member: &Member, bonus: Bonus) -> Result<Option<claim::Model>, Failure> {
        let newest = claim::Entity::find()
            .filter(claim::Column::MemberId.eq(member.id()))
            .filter(claim::Column::Bonus.eq(bonus))
            .order_by_desc(claim::Column::Period)
            .limit(1);
        newest.one(&self.read).await.map_err(failure)
    }

    /// Now, by the clock that claims are measured with.
    pub async fn now(&self) -> Result<DateTime<Utc>, Failure> {
        self.clock.read(&self.read).await.map_err(failure)
    }

    /// The other member, if a transaction of one of these wallets touched that member too. Who never met somebody cannot
    /// ask whether they exist.
    pub async fn acquaintance(&self, wallets: &[WalletRef], other: Uuid) -> Result<Option<Counterparty>, Failure> {
        let (mine, theirs) = (Alias::new("mine"), Alias::new("theirs"));
        let met = Query::select()
            .expr(Expr::val(1))
            .from_as(entry::Entity, theirs.clone())
            .join_as(
                sea_orm::sea_query::JoinType::InnerJoin,
                entry::Entity,
                mine.clone(),
                Expr::col((mine.clone(), entry::Column::TransactionId))
                    .equals((theirs.clone(), entry::Column::TransactionId)),
            )
            .join(
                sea_orm::sea_query::JoinType::InnerJoin,
                wallet::Entity,
                Expr::col((wallet::Entity, wallet::Column::Id)).equals((theirs, entry::Column::WalletId)),
            )
            .and_where(Expr::col((wallet::Entity, wallet::Column::MemberId)).eq(other))
            .and_where(Expr::col((mine, entry::Column::WalletId)).is_in(wallets.iter().map(WalletRef::id)))
            .take();
        let found = member::Entity::find_by_id(other).filter(Expr::exists(met)).one(&self.read).await;
        Ok(found.map_err(failure)?.map(|row| Counterparty { id: row.id, name: row.name }))
    }
}

/// Takes the one row too many off, and turns a page that was read from the oldest end around.
fn slice<Row, Cursor>(mut rows: Vec<Row>, page: &Page<Cursor>) -> Slice<Row> {
    let more = rows.len() as u64 > page.limit;
    if more {
        rows.pop();
    }
    if page.from_the_end {
        rows.reverse();
        Slice { rows, has_next: page.before.is_some(), has_previous: more }
    } else {
        Slice { rows, has_next: more, has_previous: page.after.is_some() }
    }
}

#[derive(FromQueryResult)]
struct FlatEntry {
    wallet_id: Uuid,
    seq: i64,
    amount: i64,
    balance_after: i64,
    currency: String,
    transaction_id: Uuid,
    kind: Kind,
    memo: Option<String>,
    created_at: DateTime<Utc>,
    counterparty_id: Option<Uuid>,
    counterparty_name: Option<String>,
}

/// Entries with their transaction and, through the transaction's other lines, the member on the other side.
fn entry_rows() -> Select<entry::Entity> {
    let other = Alias::new("other");
    let mut select = entry::Entity::find()
        .select_only()
        .columns([
            entry::Column::WalletId,
            entry::Column::Seq,
            entry::Column::Amount,
            entry::Column::BalanceAfter,
            entry::Column::TransactionId,
        ])
        .columns([
            transaction::Column::Currency,
            transaction::Column::Kind,
            transaction::Column::Memo,
            transaction::Column::CreatedAt,
        ])
        .expr_as(Expr::col((member::Entity, member::Column::Id)), "counterparty_id")
        .expr_as(Expr::col((member::Entity, member::Column::Name)), "counterparty_name");
    let joined = QuerySelect::query(&mut select);
    joined
        .join(
            JoinType::InnerJoin,
            transaction::Entity,
            Expr::col((transaction::Entity, transaction::Column::Id))
                .equals((entry::Entity, entry::Column::TransactionId)),
        )
        .join_as(
            JoinType::LeftJoin,
            entry::Entity,
            other.clone(),
            Expr::col((other.clone(), entry::Column::TransactionId))
                .equals((entry::Entity, entry::Column::TransactionId))
                // At most one other member takes part; the house's lines have no wallet, and so are not found.
                .and(
                    Expr::col((other.clone(), entry::Column::WalletId))
                        .not_equals((entry::Entity, entry::Column::WalletId)),
                ),
        )
        .join(
            JoinType::LeftJoin,
            wallet::Entity,
            Expr::col((wallet::Entity, wallet::Column::Id)).equals((other, entry::Column::WalletId)),
        )
        .join(
            JoinType::LeftJoin,
            member::Entity,
            Expr::col((member::Entity, member::Column::Id)).equals((wallet::Entity, wallet::Column::MemberId)),
        );
    select
}

impl From<FlatEntry> for EntryRow {
    fn from(row: FlatEntry) -> Self {
        let counterparty = row.counterparty_id.zip(row.counterparty_name);
        Self {
            wallet_id: row.wallet_id,
            seq: row.seq,
            amount: row.amount,
            balance_after: row.balance_after,
            currency: row.currency,
            transaction_id: row.transaction_id,
            kind: row.kind,
            memo: row.memo,
            created_at: row.created_at,
            counterparty: counterparty.map(|(id, name)| Counterparty { id, name }),
        }
    }
}
