//! Promise: while a Sentinel primary or a master of a Cluster is replaced under load, no error but `COOLDOWN_ACTIVE` reaches a
//! client; where an action must not go without Redis, `UNAVAILABLE` shows for two seconds after the servers have agreed at
//! most, and never for members whose locks live on another master. Nothing is restarted.
//!
//! Guards `redis/sentinel.rs`, `cooldown/cluster.rs` and the keeper in `cooldown/node.rs`: the probe that tells a primary from
//! a replica, the map of slots, a breaker per server.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::world::redis_cluster::RedisCluster;
use crate::world::redis_sentinels::RedisSentinels;
use crate::world::{CLAIM_DAILY, CLAIM_SIGNUP, Database, World, wait_until};
use largesse::config::{Settings, WithoutRedis};
use largesse::member::Member;

/// The longest that an action without Redis may be refused once the servers have agreed on a new primary.
const LONGEST: Duration = Duration::from_secs(2);

const CLIENTS: usize = 4;

/// `claimDailyBonus` goes on without Redis, `claimSignupBonus` does not.
fn by_both_rules(settings: &mut Settings) {
    settings.cooldown.command_timeout_ms = 1000;
    for (action, rule) in [("claimDailyBonus", WithoutRedis::UseProcess), ("claimSignupBonus", WithoutRedis::Refuse)] {
        let action = settings.cooldown.actions.entry(action.to_owned()).or_default();
        (action.window_ms, action.without_redis) = (Some(60_000), rule);
    }
}

/// Clients that ask all the time.
struct Load<'a> {
    worlds: &'a [World],
    /// Whose wishes are sent: each a new member.
    member: &'a (dyn Fn(usize) -> String + Sync),
    over: AtomicBool,
    sent: AtomicUsize,
}

/// What they saw: each code of an error by its document, and when it was seen first and last.
type Errors = Vec<(&'static str, String, Instant)>;

impl<'a> Load<'a> {
    fn new(worlds: &'a [World], member: &'a (dyn Fn(usize) -> String + Sync)) -> Self {
        Self { worlds, member, over: AtomicBool::new(false), sent: AtomicUsize::new(0) }
    }

    async fn run(&self) -> Errors {
        let clients = (0..CLIENTS).map(async |client| {
            let (world, mut errors) = (&self.worlds[client % self.worlds.len()], Errors::new());
            while !self.over.load(Ordering::Relaxed) {
                let member = (self.member)(self.sent.fetch_add(1, Ordering::Relaxed));
                for (rule, document) in [("use-process", CLAIM_DAILY), ("refuse", CLAIM_SIGNUP)] {
                    let answer = world.ask(&member, document, json!({})).await;
                    errors.extend(answer.codes().iter().map(|code| (rule, (*code).to_owned(), Instant::now())));
                }
            }
            errors
        });
        futures_util::future::join_all(clients).await.concat()
    }

    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Lets so many further members come.
    async fn goes_on(&self) {
        let sent = self.sent.load(Ordering::Relaxed);
        wait_until("the load goes on", async || self.sent.load(Ordering::Relaxed) > sent + 20).await;
    }
}

/// No error where the process stands in, and `UNAVAILABLE` alone, and for a short time, where it must not.
fn are_bearable(errors: &Errors, agreed: Instant) {
    let codes: BTreeSet<_> = errors.iter().map(|(rule, code, _)| (*rule, code.as_str())).collect();
    assert!(codes.iter().all(|code| *code == ("refuse", "UNAVAILABLE")), "{codes:?}");
    if let Some(last) = errors.iter().map(|(_, _, at)| *at).max() {
        let since = last.saturating_duration_since(agreed);
        assert!(since < LONGEST, "the last error came {since:?} after the servers had agreed");
    }
}

async fn processes(change: impl FnOnce(&mut Settings)) -> Vec<World> {
    let worlds = World::several(2, Database::Postgres, |settings| {
        by_both_rules(settings);
        change(settings);
    })
    .await;
    for world in &worlds {
        wait_until("the process is ready", async || world.get("/readyz").await == (200, "ok".to_owned())).await;
    }
    worlds
}

/// How the primary goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Going {
    Killed,
    Frozen,
    /// On demand, and alive: it becomes a replica.
    Switched,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_is_replaced() {
    the_primary_goes(Going::Killed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_primary_is_replaced() {
    the_primary_goes(Going::Frozen).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_becomes_a_replica_is_replaced() {
    the_primary_goes(Going::Switched).await;
}

async fn the_primary_goes(going: Going) {
    let mut sentinels = RedisSentinels::start().await;
    let worlds = processes(|settings| sentinels.named_in(settings)).await;
    let member = |number| format!("member {number}");
    let load = Load::new(&worlds, &member);
    let failover = async {
        load.goes_on().await;
        let first = sentinels.primary();
        match going {
            Going::Killed => sentinels.servers[first].stop(),
            Going::Frozen => sentinels.servers[first].freeze(),
            Going::Switched => sentinels.switch(),
        }
        wait_until("the sentinels agree on another", async || sentinels.primary() != first).await;
        let agreed = Instant::now();
        let second = sentinels.primary();
        wait_until("the new primary has the locks", async || {
            let newest = member(load.sent.load(Ordering::Relaxed).saturating_sub(CLIENTS));
            let id = Member::parse(&newest).unwrap().id().simple().to_string();
            sentinels.servers[second].keys().iter().filter(|key| key.contains(&id)).count() == 2
        })
        .await;
        assert!(agreed.elapsed() < LONGEST, "it is used {:?} after the sentinels agreed", agreed.elapsed());
        load.goes_on().await;
        load.end();
        agreed
    };
    let (errors, agreed) = tokio::join!(load.run(), failover);
    are_bearable(&errors, agreed);
    let mut sentinels = sentinels;
    sentinels.servers.iter_mut().for_each(crate::world::redis_server::RedisServer::stop);
    World::end_all(worlds).await;
}

/// The master that holds some members' locks dies. Its members bear it for a while, and the others notice nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_master_is_replaced_and_others_notice_nothing() {
    let mut cluster = RedisCluster::start().await;
    let worlds = processes(|settings| cluster.named_in(settings)).await;
    let names = |holder: usize| -> Vec<String> {
        (0..400).map(|number| cluster.member_of(holder, &format!("{holder} {number}"))).collect()
    };
    let (of_first, of_second) = (names(0), names(1));
    let (concerned, others) =
        (|number: usize| of_first[number % 400].clone(), |number: usize| of_second[number % 400].clone());
    let (load, control) = (Load::new(&worlds, &concerned), Load::new(&worlds, &others));
    let failover = async {
        load.goes_on().await;
        cluster.servers[0].stop();
        let promoted = &cluster.servers[3];
        wait_until("the replica is promoted", async || {
            let told: Option<String> = promoted.try_command(&["INFO", "replication"]);
            told.is_some_and(|text| text.contains("role:master"))
        })
        .await;
        let (agreed, known) = (Instant::now(), promoted.keys().len());
        wait_until("the new master has new locks", async || promoted.keys().len() > known + 2).await;
        assert!(agreed.elapsed() < LONGEST, "it is used {:?} after it was promoted", agreed.elapsed());
        load.goes_on().await;
        load.end();
        control.end();
        agreed
    };
    let (errors, none, agreed) = tokio::join!(load.run(), control.run(), failover);
    let repeated =
        |errors: Errors| errors.into_iter().filter(|(_, code, _)| code != "COOLDOWN_ACTIVE").collect::<Errors>();
    are_bearable(&repeated(errors), agreed);
    assert_eq!(repeated(none).len(), 0, "members of other masters");
    World::end_all(worlds).await;
}
