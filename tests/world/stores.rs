//! Where locks are kept, and the processes that meet there.

use largesse::config::{ActionSettings, Settings};
use largesse::member::Member;
use sea_orm::{ConnectionTrait, DatabaseTransaction, TransactionTrait};
use serde_json::Value;

use super::redis_server::RedisServer;
use super::{Answer, Database, Locks, World, token};

/// Where the locks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    InProcess,
    Redis,
}

/// Runs a test with both stores: `on_each_store!(name, async |store| { … })`.
#[macro_export]
macro_rules! on_each_store {
    ($name:ident, $test:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn in_the_process() {
                ($test)($crate::world::stores::Store::InProcess).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn in_redis() {
                ($test)($crate::world::stores::Store::Redis).await;
            }
        }
    };
}

/// A window that no test outlasts, unless it means to.
pub(crate) const LONG_MS: u64 = 60_000;

/// One process, or two that meet in a Redis of their own. Alice has 100 points; windows are long.
pub(crate) struct Processes {
    pub(crate) one: World,
    two: Option<World>,
    redis: Option<RedisServer>,
}

impl Processes {
    pub(crate) async fn new(store: Store) -> Self {
        Self::with(store, |_| {}).await
    }

    /// With settings of the test's own.
    pub(crate) async fn with(store: Store, change: impl FnOnce(&mut Settings)) -> Self {
        let redis = (store == Store::Redis).then(RedisServer::start);
        let locks = redis.as_ref().map_or(Locks::InProcess, |redis| Locks::RedisAt(redis.url()));
        let one = World::with(Database::Postgres, locks, |settings| {
            // Redis must decide here, also on a machine that is slow at this moment.
            settings.cooldown.command_timeout_ms = 5000;
            settings.cooldown.after_refusal_ms = LONG_MS / 2;
            for action in ["transfer", "claimDailyBonus", "claimSignupBonus"] {
                let long = ActionSettings { window_ms: Some(LONG_MS), ..ActionSettings::default() };
                settings.cooldown.actions.insert(action.to_owned(), long);
            }
            change(settings);
        })
        .await;
        one.fund("alice").await;
        let two = if redis.is_some() { Some(one.another(|_| {}).await) } else { None };
        Self { one, two, redis }
    }

    /// The process that shares the first one's Redis.
    pub(crate) fn two(&self) -> &World {
        self.two.as_ref().expect("the locks are in Redis")
    }

    pub(crate) fn redis(&self) -> &RedisServer {
        self.redis.as_ref().expect("the locks are in Redis")
    }

    /// All there are.
    pub(crate) fn all(&self) -> impl Iterator<Item = &World> {
        std::iter::once(&self.one).chain(&self.two)
    }

    /// The keys of a member's locks on transfers that are there now.
    pub(crate) fn locks(&self, member: &str) -> Vec<String> {
        let budget = self.budget(member);
        let of_transfer = budget.strip_suffix("minute").unwrap();
        self.redis().keys().into_iter().filter(|key| key.starts_with(of_transfer) && *key != budget).collect()
    }

    /// The key of what counts against a member's budget.
    pub(crate) fn budget(&self, member: &str) -> String {
        let (prefix, member) = (&self.one.settings.cooldown.prefix, Member::parse(member).unwrap().id().simple());
        format!("{prefix}:{{{member}}}:transfer:minute")
    }

    pub(crate) async fn end(self) {
        if let Some(two) = self.two {
            two.stop().await;
        }
        self.one.end().await;
    }
}

/// Alice asks.
pub(crate) async fn alice(world: &World, body: &Value) -> Answer {
    world.post(Some(&token("alice")), body.clone()).await
}

/// For how long the one field was refused, in milliseconds. It must have been.
pub(crate) fn refused_ms(answer: &Answer) -> i64 {
    assert_eq!(answer.codes(), ["COOLDOWN_ACTIVE"], "{}", answer.body);
    answer.body["errors"][0]["extensions"]["retryAfterMs"].as_i64().expect("a number")
}

/// Locks every wallet, or on SQLite the database.
pub(crate) const WALLETS: &str = "UPDATE wallets SET balance = balance";

/// All of these were refused.
pub(crate) fn all_refused(answers: &[Answer]) {
    for answer in answers {
        refused_ms(answer);
    }
}

/// Holds what a statement locks, until it is rolled back.
pub(crate) async fn holding(world: &World, statement: &str) -> DatabaseTransaction {
    let transaction = world.sql().await.begin().await.unwrap();
    transaction.execute_unprepared(statement).await.unwrap();
    transaction
}

pub(crate) async fn execute(world: &World, statement: &str) {
    let sql = world.sql().await;
    sql.execute_unprepared(statement).await.unwrap();
    sql.close().await.unwrap();
}
