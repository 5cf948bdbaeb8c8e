//! Layer 3: transactions and row locks.
//!
//! [`Ledger::transact`] is the one function that begins a money transaction. A [`Tx`] lives only inside it, and whatever
//! waits for another transaction waits in one order: key or claim, then a payment, then the transaction to reverse, then wallets
//! to open in (member, currency) order, then wallets to lock in id order, in one statement. So no two transactions can wait for
//! each other.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use rand::Rng;
use sea_orm::{
    ActiveValue::Set,
    ColumnTrait, ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, EntityTrait, QueryFilter, QueryOrder,
    QuerySelect, RuntimeErr, SqliteTransactionMode, SqlxError, Statement, TransactionOptions, TransactionTrait,
    sea_query::{LockType, OnConflict},
};
use tracing::Instrument;
use tracing::field::Empty;
use uuid::Uuid;

use super::events::Subscription;
use super::post::{LockedWallets, WalletRef};
use super::{Clock, Ledger};
use crate::entity::wallet;
use crate::error::{Deadline, Failure};
use crate::live::Version;
use crate::traces::span;

/// One transaction of the database and of the books, from BEGIN to COMMIT.
pub struct Tx {
    inner: DatabaseTransaction,
    pub(super) clock: Arc<Clock>,
    pub(super) subscriptions: Arc<[Subscription]>,
    /// Names the posting that this transaction makes, if it makes one. Known from the start, so that a key can be
    /// inserted together with its answer.
    pub(super) transaction_id: Uuid,
    deadline: Deadline,
    /// Wallets that had no row when this work was tried before, in the order in which they are opened.
    to_open: Vec<WalletRef>,
    /// Wallets that turned out to be needed when this work was tried before: creditors of those that it credits.
    to_lock: Vec<WalletRef>,
    /// The wallets that this transaction moves, and the versions that they come to.
    pub(super) moved: Vec<(Uuid, Version)>,
    /// How long its wallets were waited for.
    lock_wait: Duration,
}

/// What a transaction's span says of it.
#[derive(Default)]
struct Tally {
    attempts: u32,
    lock_wait: Duration,
}

/// What is done inside a transaction. It may run more than once, each time in a transaction of its own, of which one is
/// committed at most.
pub trait Work: Send + Sync {
    /// What is done when it is done.
    type Done: Send;
    /// Why it may be refused.
    type Refusal: Send;

    /// Does it.
    fn run(&self, tx: &mut Tx) -> impl Future<Output = Result<Self::Done, Stop<Self::Refusal>>> + Send;
}

/// Why work inside a transaction goes no further. Whatever it is, the transaction is rolled back, except that
/// [`Ledger::exactly_once`] stores a refusal as the key's answer.
#[derive(Debug)]
pub enum Stop<Refusal> {
    /// An answer: nothing moves, and this is why.
    Refused(Refusal),
    /// No answer yet, or none at all.
    Interrupted(Interrupted),
}

/// Why a step inside a transaction could not be taken.
#[derive(Debug)]
pub enum Interrupted {
    /// A wallet has no row yet. Begin again and open it before any wallet is locked, to keep the order.
    Open(WalletRef),
    /// Wallets that are owed something must be locked together with the others. Begin again, to keep the order.
    Lock(Vec<WalletRef>),
    /// The database asks to run the whole transaction again.
    Again(DbErr),
    /// No answer.
    Failed(Failure),
}

impl From<DbErr> for Interrupted {
    fn from(error: DbErr) -> Self {
        match sqlstate(&error).as_deref() {
            // Serialization failure and deadlock.
            Some("40001" | "40P01") => Self::Again(error),
            _ => Self::Failed(failure(error)),
        }
    }
}

impl From<Failure> for Interrupted {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl<R> From<Failure> for Stop<R> {
    fn from(failure: Failure) -> Self {
        Self::Interrupted(failure.into())
    }
}

impl<R> From<Interrupted> for Stop<R> {
    fn from(interrupted: Interrupted) -> Self {
        Self::Interrupted(interrupted)
    }
}

/// How many times a whole transaction is begun again after a serialization failure or a deadlock. On one PostgreSQL
/// server at READ COMMITTED with one lock order there are none; a distributed engine has a few under contention.
const MOST_RETRIES: u32 = 4;

impl Ledger {
    /// Runs `work` in one transaction and commits it. Begins again, whole and within the deadline, where the database
    /// or the lock order asks for it. A connection that is lost at COMMIT is never tried again: the outcome is unknown.
    pub(super) async fn transact<W: Work>(
        &self,
        deadline: Deadline,
        work: &W,
    ) -> Result<Result<W::Done, W::Refusal>, Failure> {
        let span = span!("transaction", attempts = Empty, lock_wait_ms = Empty, outcome = Empty);
        let mut tally = Tally::default();
        let ended = self.transact_at_last(deadline, work, &mut tally).instrument(span.clone()).await;
        if !span.is_disabled() {
            span.record("attempts", tally.attempts);
            span.record("lock_wait_ms", tally.lock_wait.as_secs_f64() * 1000.0);
            span.record(
                "outcome",
                match &ended {
                    Ok(Ok(_)) => "committed",
                    Ok(Err(_)) => "rolled back",
                    Err(Failure::OutcomeUnknown(_)) => "unknown",
                    Err(_) => "failed",
                },
            );
        }
        ended
    }

    async fn transact_at_last<W: Work>(
        &self,
        deadline: Deadline,
        work: &W,
        tally: &mut Tally,
    ) -> Result<Result<W::Done, W::Refusal>, Failure> {
        let (mut to_open, mut to_lock): (Vec<WalletRef>, Vec<WalletRef>) = Default::default();
        let mut retries = 0;
        loop {
            let mut tx = self.begin(deadline, to_open.clone(), to_lock.clone()).await?;
            tally.attempts += 1;
            let ran = work.run(&mut tx).await;
            tally.lock_wait += tx.lock_wait;
            let interrupted = match ran {
                Ok(done) => {
                    let moved = std::mem::take(&mut tx.moved);
                    match tx.commit().await? {
                        Committed::Yes => {
                            self.live.announce(&moved);
                            return Ok(Ok(done));
                        }
                        Committed::No(error) => Interrupted::from(error),
                    }
                }
                Err(stop) => {
                    tx.roll_back().await;
                    match stop {
                        Stop::Refused(refusal) => return Ok(Err(refusal)),
                        Stop::Interrupted(interrupted) => interrupted,
                    }
                }
            };
            match interrupted {
                Interrupted::Failed(failure) => return Err(failure),
                Interrupted::Open(wallet) => open_once(&mut to_open, wallet)?,
                Interrupted::Lock(wallets) => lock_too(&mut to_lock, wallets)?,
                Interrupted::Again(error) if retries == MOST_RETRIES => {
                    return Err(Failure::Unavailable(into_cause(error)));
                }
                Interrupted::Again(_) => {
                    retries += 1;
                    metrics::counter!("largesse_transaction_retries_total").increment(1);
                    tokio::time::sleep(jittered_pause(retries)).await;
                }
            }
        }
    }

    async fn begin(&self, deadline: Deadline, to_open: Vec<WalletRef>, to_lock: Vec<WalletRef>) -> Result<Tx, Failure> {
        in_time(deadline)?;
        let options = TransactionOptions {
            // A deferred transaction that reads and then writes fails where another wrote in between.
            sqlite_transaction_mode: (self.backend() == DbBackend::Sqlite).then_some(SqliteTransactionMode::Immediate),
            ..Default::default()
        };
        metrics::counter!("largesse_transactions_begun_total").increment(1);
        let inner = self.write.begin_with_options(options).await.map_err(failure)?;
        if let Some(limits) = &self.limits_with_begin {
            inner.execute_unprepared(limits).await.map_err(failure)?;
        }
        Ok(Tx {
            inner,
            clock: self.clock.clone(),
            subscriptions: self.subscriptions.clone(),
            transaction_id: Uuid::now_v7(),
            deadline,
            to_open,
            to_lock,
            moved: Vec::new(),
            lock_wait: Duration::ZERO,
        })
    }
}

impl Tx {
    /// The connection, as long as there is time: each statement passes here, so none starts after the deadline.
    pub(super) fn connection(&self) -> Result<&DatabaseTransaction, Failure> {
        in_time(self.deadline)?;
        Ok(&self.inner)
    }

    /// Now, in whole milliseconds: the database's clock on PostgreSQL, the process's on SQLite. Read it after the lock;
    /// `now()` would be the transaction's beginning, which may lie before another's commit that was waited for.
    pub async fn now(&self) -> Result<DateTime<Utc>, Interrupted> {
        Ok(self.clock.read(self.connection()?).await?)
    }

    /// Locks the wallets that exist, in id order, in one statement, and reads them as they are under the lock.
    pub async fn lock_wallets(&mut self, wanted: &[&WalletRef]) -> Result<LockedWallets, Interrupted> {
        let mut names: Vec<_> = wanted.iter().copied().chain(&self.to_lock).cloned().collect();
        names.sort_by_key(WalletRef::id);
        names.dedup();
        let select = wallet::Entity::find()
            .filter(wallet::Column::Id.is_in(names.iter().map(WalletRef::id)))
            .order_by_asc(wallet::Column::Id)
            // The key columns of a wallet never change, so the weaker lock is enough, and it lets foreign keys be
            // checked meanwhile. SQLite has no row locks: BEGIN IMMEDIATE has locked everything.
            .lock(LockType::NoKeyUpdate);
        let started = std::time::Instant::now();
        let rows = select.all(self.connection()?).await;
        // A wait that was in vain is the longest of all.
        let lasted = started.elapsed();
        self.lock_wait += lasted;
        metrics::histogram!("largesse_wallet_lock_seconds").record(lasted.as_secs_f64());
        Ok(LockedWallets::of(rows?, names))
    }

    /// Whether this work was tried before and found a wallet without a row.
    pub(super) fn opens_wallets(&self) -> bool {
        !self.to_open.is_empty()
    }

    /// Opens wallets that had no row when work was tried before. It waits for whoever opens the same wallet now.
    pub(super) async fn open_wallets(&mut self) -> Result<(), Interrupted> {
        for wallet in &self.to_open {
            let row = wallet::ActiveModel {
                id: Set(wallet.id()),
                member_id: Set(wallet.member().id()),
                currency: Set(wallet.currency().to_string()),
                balance: Set(0),
                version: Set(0),
                debt: Set(0),
                opened_at: Set(self.clock.process_now()),
            };
            // Whatever constraint says that the wallet is there: two writers at once may meet at either.
            let anywhere = OnConflict::new().do_nothing().to_owned();
            let insert = wallet::Entity::insert(row).on_conflict(anywhere).try_insert();
            insert.exec_without_returning(self.connection()?).await?;
        }
        Ok(())
    }

    /// Takes back the wallets that [`Self::open_wallets`] opened in this transaction: a refusal leaves none behind. Only
    /// an uncommitted row can have version 0, for a wallet is committed together with its first entry.
    pub(super) async fn unopen_wallets(&mut self) -> Result<(), Interrupted> {
        if !self.to_open.is_empty() {
            wallet::Entity::delete_many()
                .filter(wallet::Column::Id.is_in(self.to_open.iter().map(WalletRef::id)))
                .filter(wallet::Column::Version.eq(0))
                .exec(self.connection()?)
                .await?;
        }
        Ok(())
    }

    async fn commit(self) -> Result<Committed, Failure> {
        if self.deadline.has_passed() {
            self.roll_back().await;
            return Err(Failure::unavailable("the deadline passed before COMMIT"));
        }
        match self.inner.commit().await {
            Ok(()) => Ok(Committed::Yes),
            Err(error) if certainly_rolled_back(&error) => Ok(Committed::No(error)),
            Err(error) => Err(Failure::OutcomeUnknown(into_cause(error))),
        }
    }

    async fn roll_back(self) {
        if let Err(error) = self.inner.rollback().await {
            // Without a COMMIT the server rolls back as well, once it sees the connection gone.
            tracing::debug!(%error, "ROLLBACK was not answered");
        }
    }
}

enum Committed {
    Yes,
    No(DbErr),
}

impl Clock {
    pub(super) async fn read(&self, connection: &impl ConnectionTrait) -> Result<DateTime<Utc>, DbErr> {
        if connection.get_database_backend() != DbBackend::Postgres {
            return Ok(self.process_now());
        }
        let ask = Statement::from_string(DbBackend::Postgres, "SELECT clock_timestamp() AS now");
        let row = connection.query_one_raw(ask).await?;
        let row = row.ok_or_else(|| DbErr::RecordNotFound("the database's clock".to_owned()))?;
        Ok(self.shifted(row.try_get("", "now")?))
    }
}

fn in_time(deadline: Deadline) -> Result<(), Failure> {
    if deadline.has_passed() { Err(Failure::unavailable("the deadline passed")) } else { Ok(()) }
}

/// Keeps the wallets to open in (member, currency) order. A wallet that was opened and still is not there would make the
/// loop turn for ever.
fn open_once(to_open: &mut Vec<WalletRef>, wallet: WalletRef) -> Result<(), Failure> {
    match to_open.binary_search_by(|other| other.opening_order().cmp(&wallet.opening_order())) {
        Ok(_) => Err(Failure::internal("a wallet that was opened could not be locked")),
        Err(place) => {
            to_open.insert(place, wallet);
            Ok(())
        }
    }
}

/// A wallet that was locked and still is asked for would make the loop turn for ever.
fn lock_too(to_lock: &mut Vec<WalletRef>, wallets: Vec<WalletRef>) -> Result<(), Failure> {
    if wallets.iter().all(|wallet| to_lock.contains(wallet)) {
        return Err(Failure::internal("a creditor's wallet could not be locked"));
    }
    to_lock.extend(wallets);
    Ok(())
}

/// 5 to 10 ms after the first failure, twice as much after each further one: together far below the deadline.
fn jittered_pause(retries: u32) -> Duration {
    let longest = 10_u64 << (retries - 1).min(6);
    Duration::from_millis(rand::rng().random_range(longest / 2..=longest))
}

/// Sorts a database error into "away or slow" and "ours".
pub(super) fn failure(error: DbErr) -> Failure {
    if is_lock_timeout(&error) || means_away_or_slow(&error) {
        Failure::Unavailable(into_cause(error))
    } else {
        Failure::Internal(into_cause(error))
    }
}

/// 55P03, `lock_not_available`: a row or index entry was locked by another for longer than `lock_timeout`.
pub(super) fn is_lock_timeout(error: &DbErr) -> bool {
    sqlstate(error).as_deref() == Some("55P03")
}

fn means_away_or_slow(error: &DbErr) -> bool {
    let Some(cause) = sqlx_error(error) else {
        return matches!(error, DbErr::ConnectionAcquire(_) | DbErr::Conn(_));
    };
    match cause {
        SqlxError::Io(_)
        | SqlxError::Tls(_)
        | SqlxError::PoolTimedOut
        | SqlxError::PoolClosed
        | SqlxError::WorkerCrashed
        | SqlxError::Protocol(_) => true,
        // 57014 statement timeout; 57P0x the server stops or starts; 53 out of resources; 08 connection; 25P03 idle too
        // long; 25006 a standby after failover; 5 and 6 are SQLite's BUSY and LOCKED, 261 and 517 their extended forms.
        SqlxError::Database(database) => database.code().is_some_and(|code| {
            ["57", "53", "08"].iter().any(|class| code.len() == 5 && code.starts_with(class))
                || ["25P03", "25006", "5", "6", "261", "262", "517"].contains(&code.as_ref())
        }),
        _ => false,
    }
}

/// Whether an error that COMMIT brought means that nothing was stored. The server said so itself, and not because it
/// was told to end the session: that message can overtake the commit's own.
fn certainly_rolled_back(error: &DbErr) -> bool {
    match sqlx_error(error) {
        Some(SqlxError::Database(database)) => {
            database.code().is_some_and(|code| !code.starts_with("57P") && !code.starts_with("08"))
        }
        _ => false,
    }
}

fn sqlstate(error: &DbErr) -> Option<String> {
    match sqlx_error(error)? {
        SqlxError::Database(database) => database.code().map(std::borrow::Cow::into_owned),
        _ => None,
    }
}

fn sqlx_error(error: &DbErr) -> Option<&SqlxError> {
    match error {
        DbErr::Conn(RuntimeErr::SqlxError(cause))
        | DbErr::Exec(RuntimeErr::SqlxError(cause))
        | DbErr::Query(RuntimeErr::SqlxError(cause)) => Some(cause),
        _ => None,
    }
}

pub(super) fn into_cause(error: DbErr) -> crate::error::Cause {
    std::sync::Arc::new(error)
}
