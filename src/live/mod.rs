//! Who waits for a wallet to move, and how they learn of it.
//!
//! [`Live::announce`] is called after COMMIT with the wallets that moved and their versions. It wakes the watchers in this
//! process and, where a Redis is set, tells the other processes. Announcements may be lost: nothing but haste depends on
//! them, for every few seconds a process looks for itself how far the watched wallets have come. They may come twice or out
//! of order, too: a version that is not newer wakes nobody.

mod relay;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use uuid::Uuid;

use crate::config::{ConfigError, Settings};
use relay::Relay;

/// A wallet's version: the sequence number of its newest entry.
pub type Version = i64;

/// The watchers of this process, and the way to those of others. Clones share both.
#[derive(Clone, Default)]
pub struct Live {
    watched: Watched,
    relay: Option<Relay>,
}

/// The watched wallets of this process.
#[derive(Clone, Default)]
struct Watched(Arc<Mutex<HashMap<Uuid, Wallet>>>);

#[derive(Default)]
struct Wallet {
    /// The newest version that watchers were woken for.
    version: Version,
    watchers: Vec<Arc<Notify>>,
}

impl Live {
    /// Opens the way to other processes, where the settings name a Redis. It may be away: it is connected in the background.
    pub fn open(settings: &Settings) -> Result<Self, ConfigError> {
        let watched = Watched::default();
        let relay = Relay::open(settings, &watched)?;
        Ok(Self { watched, relay })
    }

    /// Tells everybody who watches one of these wallets that it has come to this version. Call it after COMMIT. It never
    /// waits.
    pub fn announce(&self, moved: &[(Uuid, Version)]) {
        self.watched.wake(moved);
        if let Some(relay) = &self.relay {
            relay.send(moved);
        }
    }

    /// Wakes the watchers of this process alone: what was announced elsewhere, or read.
    pub fn wake(&self, moved: &[(Uuid, Version)]) {
        self.watched.wake(moved);
    }

    /// Watches wallets until the value is dropped.
    pub fn watch(&self, wallets: Vec<Uuid>) -> Watch {
        let woken = Arc::new(Notify::new());
        let mut watched = self.watched.lock();
        for wallet in &wallets {
            watched.entry(*wallet).or_default().watchers.push(woken.clone());
        }
        drop(watched);
        Watch { watched: self.watched.clone(), wallets, woken }
    }

    /// The wallets that somebody watches.
    pub fn watched(&self) -> Vec<Uuid> {
        self.watched.lock().keys().copied().collect()
    }
}

impl Watched {
    fn wake(&self, moved: &[(Uuid, Version)]) {
        let mut watched = self.lock();
        for (wallet, version) in moved {
            let Some(wallet) = watched.get_mut(wallet).filter(|wallet| wallet.version < *version) else { continue };
            wallet.version = *version;
            wallet.watchers.iter().for_each(|watcher| watcher.notify_one());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Wallet>> {
        // No code panics between two states while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wallets under watch.
pub struct Watch {
    watched: Watched,
    wallets: Vec<Uuid>,
    woken: Arc<Notify>,
}

impl Watch {
    /// Returns once a wallet has moved since the last return. Any number of movements meanwhile are one.
    pub async fn moved(&self) {
        self.woken.notified().await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watched = self.watched.lock();
        for id in &self.wallets {
            let Some(wallet) = watched.get_mut(id) else { continue };
            wallet.watchers.retain(|watcher| !Arc::ptr_eq(watcher, &self.woken));
            if wallet.watchers.is_empty() {
                watched.remove(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn woken(watch: &Watch) -> bool {
        let moved = watch.moved();
        futures_util::FutureExt::now_or_never(moved).is_some()
    }

    #[test]
    fn a_watch_is_woken_once_for_all_that_moved_and_never_by_what_is_old() {
        let (live, a, b) = (Live::default(), Uuid::now_v7(), Uuid::now_v7());
        let (one, both) = (live.watch(vec![a]), live.watch(vec![a, b]));
        live.announce(&[(b, 1)]);
        assert_eq!((woken(&one), woken(&both)), (false, true));
        live.announce(&[(a, 1)]);
        live.announce(&[(a, 3)]);
        assert_eq!((woken(&one), woken(&both)), (true, true));
        live.announce(&[(a, 2)]);
        live.announce(&[(a, 3)]);
        assert_eq!((woken(&one), woken(&both)), (false, false), "nothing new, nothing twice");
    }

    #[test]
    fn who_watches_no_more_leaves_nothing_behind() {
        let (live, wallet) = (Live::default(), Uuid::now_v7());
        let (first, second) = (live.watch(vec![wallet]), live.watch(vec![wallet, Uuid::now_v7()]));
        assert_eq!(live.watched().len(), 2);
        drop(second);
        assert_eq!(live.watched(), [wallet]);
        drop(first);
        assert!(live.watched().is_empty());
    }
}
