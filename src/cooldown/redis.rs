//! Locks in Redis, shared by all processes: in one server, behind sentinels, in a cluster, or at a majority of several.
//!
//! | file | what it is for |
//! |---|---|
//! | this one | which of the four it is |
//! | `node` | one server, and the keeper of its connection |
//! | `breaker` | a server that fails costs a bounded time once |
//! | `ballot`, `scripts` | what one server says of a lock |
//! | `cluster`, `slots` | which server of a cluster holds a lock |
//! | `majority` | what several servers say together |

use std::time::Instant;

use super::cluster::Cluster;
use super::lock::{End, Lock, Verdict};
use super::majority::Majority;
use super::node::{Away, Manners, Node};
use super::scripts::Way;
use crate::config::{ConfigError, Settings};
use crate::redis::{Place, Servers};

/// The servers of the settings. Clones share their connections.
#[derive(Clone)]
pub(super) enum Redis {
    /// One server, or the primary that sentinels name.
    One(&'static str, Node),
    Cluster(Cluster),
    Majority(Majority),
}

impl Redis {
    /// Connects in the background; `None` where the settings name no Redis.
    pub(super) fn open(settings: &Settings) -> Result<Option<Self>, ConfigError> {
        let manners = Manners::of(settings);
        let one = |name, place| Self::One(name, Node::open(place, &manners, manners.trial_write()));
        Ok(Servers::named_by(settings)?.map(|servers| match servers {
            Servers::One(server) => one("redis", Place::fixed(server)),
            Servers::Sentinel(sentinels) => one("sentinel", Place::primary(sentinels)),
            Servers::Cluster(servers) => Self::Cluster(Cluster::open(servers, &manners)),
            Servers::Majority(servers) => Self::Majority(Majority::open(servers, &manners, settings)),
        }))
    }

    /// Takes the lock unless something stands in the way.
    pub(super) async fn take(&self, lock: &Lock) -> Result<Verdict, Away> {
        let asked = Instant::now();
        let verdict = match self {
            Self::One(_, node) => node.take(lock, Way::Plain).await,
            Self::Cluster(cluster) => cluster.take(lock).await,
            Self::Majority(majority) => majority.take(lock).await,
        };
        metrics::histogram!("largesse_cooldown_store_seconds", "store" => self.name()).record(asked.elapsed());
        verdict
    }

    /// Ends the lock. One that cannot be ended ends with its window.
    pub(super) async fn settle(&self, lock: &Lock, end: &End) {
        let settled = match self {
            Self::One(_, node) => node.settle(lock, end, Way::Plain).await,
            Self::Cluster(cluster) => cluster.settle(lock, end).await,
            Self::Majority(majority) => majority.settle(lock, end).await,
        };
        if let Err(cause) = settled {
            tracing::warn!(%cause, "a cooldown's lock stays to the end of its window");
        }
    }

    /// What this store is called in metrics and in the log.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::One(name, _) => name,
            Self::Cluster(_) => "cluster",
            Self::Majority(_) => "majority",
        }
    }

    /// Whether it would decide at this moment: the keepers look all the time.
    pub(super) fn answers(&self) -> bool {
        match self {
            Self::One(_, node) => node.is_there(),
            Self::Cluster(cluster) => cluster.answers(),
            Self::Majority(majority) => majority.answers(),
        }
    }
}
