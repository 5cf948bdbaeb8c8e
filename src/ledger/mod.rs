//! Layers 2 and 3, and the only writer of wallets and entries.
//!
//! | file | what it is for |
//! |---|---|
//! | [`once`] | layer 2: the insert that a unique constraint decides, and the stored answer for every repeat |
//! | [`tx`] | layer 3: the one function that begins transactions, the lock order, retries, what a failed COMMIT means |
//! | [`post`] | locked wallets, and the double-entry posting that only they can make |
//! | [`payment`] | payments from outside: inserted once, locked before anybody decides |
//! | [`reverse`] | taking back what was posted, whole or in part |
//! | `debt` | what a reversal could not recover, paid by the next credits |
//! | `events` | what the outside is told of a posting, staged in its statement |
//! | [`outbox`] | events on their way: leases, outcomes, dead letters |
//! | [`cleaning`] | what may be forgotten, in small batches |
//! | [`statement`] | reads: wallets, entries, claims |
//! | [`audit`], [`audit_turn`] | whether the books balance; whose turn it is to look, and what was found last |
//! | `pools` | how full the pools of connections are |
//! | [`connect`] | connections with their time limits, and migration |

pub mod audit;
pub mod audit_turn;
pub mod cleaning;
pub mod connect;
mod debt;
mod events;
pub mod once;
pub mod outbox;
pub mod payment;
mod pools;
pub mod post;
pub mod reverse;
pub mod statement;
pub mod tx;

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use sea_orm::{ActiveValue::Set, DatabaseConnection, DbBackend, EntityTrait, sea_query::OnConflict};
use secrecy::SecretString;
use uuid::Uuid;

use crate::entity;
use crate::error::Failure;
use crate::live::Live;
use crate::member::Member;

/// The books: every wallet, entry, claim and key, behind the only code that writes them.
pub struct Ledger {
    /// For money work. SQLite: one connection, for which writers queue. PostgreSQL: a pool.
    write: DatabaseConnection,
    /// For reads, in a pool of their own: a flood of them leaves the work its connections.
    read: DatabaseConnection,
    /// Limits to send with BEGIN where a pooler refuses them as connect options.
    limits_with_begin: Option<String>,
    /// How long the answer "refused" is kept under its key.
    refusal_retention: TimeDelta,
    /// How long the answer "done" is kept under its key; for ever if none.
    completed_retention: Option<TimeDelta>,
    /// Who is told of what.
    subscriptions: Arc<[events::Subscription]>,
    clock: Arc<Clock>,
    /// Told after COMMIT which wallets moved.
    live: Live,
    known_members: Mutex<HashSet<Uuid>>,
    /// For the audit, whose connection is its own.
    url: SecretString,
}

impl Ledger {
    /// How many members a process remembers as known before it forgets them all and asks again: about 9 MB of memory.
    const MOST_KNOWN_MEMBERS: usize = 1 << 18;

    /// Makes the member known, so that others can send value to them. Once per member and process this is one insert
    /// that changes nothing if the member was here before; afterwards it is a look into memory.
    ///
    /// It stands outside the money transaction: a member who was refused exists all the same.
    pub async fn know(&self, member: &Member) -> Result<(), Failure> {
        if self.known_members().contains(&member.id()) {
            return Ok(());
        }
        let row = entity::member::ActiveModel {
            id: Set(member.id()),
            name: Set(member.name().to_owned()),
            created_at: Set(Utc::now().trunc_subsecs(3)),
        };
        // Whatever constraint says that the member is there: the library's own form names the primary key alone.
        let anywhere = OnConflict::new().do_nothing().to_owned();
        let inserted = entity::member::Entity::insert(row).on_conflict(anywhere).try_insert();
        inserted.exec_without_returning(&self.write).await.map_err(tx::failure)?;
        let mut known = self.known_members();
        if known.len() >= Self::MOST_KNOWN_MEMBERS {
            known.clear();
        }
        known.insert(member.id());
        Ok(())
    }

    /// Whether the database answers, and has its tables.
    pub async fn ping(&self, limit: Duration) -> bool {
        let asked = entity::wallet::Entity::find_by_id(Uuid::nil()).one(&self.read);
        matches!(tokio::time::timeout(limit, asked).await, Ok(Ok(_)))
    }

    /// Closes the connections. Work under way must have ended before.
    pub async fn close(&self) {
        // Nothing can be done about a connection that does not close, and the process ends right after.
        let _ = self.write.clone().close().await;
        let _ = self.read.clone().close().await;
    }

    /// The clock of this ledger.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Who waits for wallets to move.
    pub fn live(&self) -> &Live {
        &self.live
    }

    fn backend(&self) -> DbBackend {
        self.write.get_database_backend()
    }

    fn known_members(&self) -> std::sync::MutexGuard<'_, HashSet<Uuid>> {
        // A panic while the lock was held leaves a set that is still a set.
        self.known_members.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Which moment "now" is: the database's or the process's clock, moved by so much.
///
/// Nobody moves it in production. It stands here so that the edge of a day can be met on purpose.
#[derive(Debug, Default)]
pub struct Clock {
    offset_ms: AtomicI64,
}

impl Clock {
    /// Moves the clock so far from the true one, forwards or backwards.
    pub fn move_to(&self, offset: TimeDelta) {
        self.offset_ms.store(offset.num_milliseconds(), Ordering::SeqCst);
    }

    /// Now by the process's clock, in whole milliseconds, as the API shows it.
    fn process_now(&self) -> DateTime<Utc> {
        self.shifted(Utc::now())
    }

    fn shifted(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        (now + TimeDelta::milliseconds(self.offset_ms.load(Ordering::SeqCst))).trunc_subsecs(3)
    }
}
