//! Every way in which Redis can keep the locks.

use largesse::config::Settings;

use super::redis_cluster::RedisCluster;
use super::redis_majority::RedisMajority;
use super::redis_sentinels::RedisSentinels;
use super::redis_server::RedisServer;

/// Redis servers, as they stand to each other.
pub(crate) enum Store {
    One(RedisServer),
    Sentinels(RedisSentinels),
    Cluster(RedisCluster),
    Majority(RedisMajority),
}

/// Runs a test over every store: `on_every_store!(name, async |store: Store| { … })`.
#[macro_export]
macro_rules! on_every_store {
    ($name:ident, $test:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            use $crate::world::redis_stores::Store as Servers;

            #[tokio::test(flavor = "multi_thread")]
            async fn in_one_redis() {
                ($test)(Servers::one()).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn behind_sentinels() {
                ($test)(Servers::sentinels().await).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn in_a_cluster() {
                ($test)(Servers::cluster().await).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn at_a_majority() {
                ($test)(Servers::majority()).await;
            }
        }
    };
}

impl Store {
    pub(crate) fn one() -> Self {
        Self::One(RedisServer::start())
    }

    pub(crate) async fn sentinels() -> Self {
        Self::Sentinels(RedisSentinels::start().await)
    }

    pub(crate) async fn cluster() -> Self {
        Self::Cluster(RedisCluster::start().await)
    }

    pub(crate) fn majority() -> Self {
        Self::Majority(RedisMajority::of(5))
    }

    /// The settings that name it.
    pub(crate) fn named_in(&self, settings: &mut Settings) {
        match self {
            Self::One(server) => settings.redis_url = Some(server.url().into()),
            Self::Sentinels(sentinels) => sentinels.named_in(settings),
            Self::Cluster(cluster) => cluster.named_in(settings),
            Self::Majority(majority) => majority.named_in(settings),
        }
    }

    /// The locks that servers hold, each once.
    pub(crate) fn locks(&self) -> Vec<String> {
        let servers = match self {
            Self::One(server) => std::slice::from_ref(server),
            Self::Sentinels(sentinels) => &sentinels.servers[sentinels.primary()..][..1],
            Self::Cluster(cluster) => &cluster.servers,
            Self::Majority(majority) => &majority.servers,
        };
        let mut keys: Vec<_> = servers.iter().flat_map(RedisServer::keys).collect();
        keys.sort();
        keys.dedup();
        // What was counted against a budget stays for a minute.
        keys.retain(|key| !key.ends_with(":minute"));
        keys
    }
}
