//! Promise: with locks at a majority of Redis servers, some attempt is always admitted where none was before: neither two gates
//! nor a lock that nobody stands behind leave all of them refused. What did not help is given back by token.
//!
//! Guards the fixed order, the gate and the giving way in `cooldown/majority.rs`, and its campaigns' ends.

use std::time::Duration;

use secrecy::SecretString;
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::a_minority_of_redis_servers_may_fail::{all_are_used, long};
use crate::every_store_admits_one::storm_of;
use crate::redis_may_fail::raw_post;
use crate::world::distance::Distance;
use crate::world::redis_majority::RedisMajority;
use crate::world::redis_server::RedisServer;
use crate::world::{Answer, CLAIM_DAILY, Database, Locks, World, transfer, wait_until};

const RIVALS: usize = 6;

/// Two processes at two ends of the world, each with two servers at hand, and the fifth down: each takes its own two, and
/// neither has a majority, unless one gives way. That they also begin with different servers is worse than what one
/// setting allows.
#[tokio::test(flavor = "multi_thread")]
async fn two_gates_do_not_leave_everybody_refused() {
    let mut servers = RedisMajority::of(5);
    let mut ways = Vec::new();
    for server in &servers.servers {
        ways.push(Distance::to(server.port(), Duration::from_millis(15)).await);
    }
    let near = |number: usize| SecretString::from(servers.servers[number].url());
    let far = |number: usize| SecretString::from(ways[number].url());
    let here = vec![near(0), near(1), near(2), far(3), far(4)];
    let there = vec![near(4), near(3), near(2), far(1), far(0)];
    let first = World::with(Database::Postgres, Locks::AsSet, |settings| {
        long(settings);
        settings.redis_majority_urls = here;
    })
    .await;
    let second = first.another(|settings| settings.redis_majority_urls = there).await;
    let worlds = vec![first, second];
    all_are_used(&worlds, &servers, 0).await;
    servers.servers[2].stop();
    for round in 0..15 {
        let answers = storm_of(RIVALS, &worlds, &format!("member {round}"), &json!({ "query": CLAIM_DAILY })).await;
        let codes: Vec<_> = answers.iter().map(Answer::code).collect();
        let refused = codes.iter().filter(|code| **code == Some("COOLDOWN_ACTIVE")).count();
        let admitted = codes.iter().filter(|code| code.is_none()).count();
        assert_eq!((admitted, refused), (1, worlds.len() * RIVALS - 1), "round {round}: {codes:?}");
    }
    World::end_all(worlds).await;
}

/// A process that died between the gate and the rest leaves its lock at the gate.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_nobody_stands_behind_stops_nobody_for_long() {
    let servers = RedisMajority::of(5);
    let world = World::with(Database::Postgres, Locks::AsSet, |settings| {
        servers.named_in(settings);
        long(settings);
    })
    .await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let (first, _) = world.timed("alice", transfer("bob", 1, "first")).await;
    assert_eq!(first.data("/transfer/replayed"), false, "{}", first.body);
    assert_eq!(servers.locks_of("alice", &[]), 5);
    for server in &servers.servers[1..] {
        server.command(&["FLUSHALL"]);
    }
    // While it is young, its attempt may be on its way to the rest.
    let (second, _) = world.timed("alice", transfer("bob", 1, "second")).await;
    assert_eq!(second.codes(), ["COOLDOWN_ACTIVE"], "{}", second.body);
    wait_until("it is admitted", async || {
        let (second, _) = world.timed("alice", transfer("bob", 1, "second")).await;
        second.data("/transfer/replayed") == false
    })
    .await;
    let (third, _) = world.timed("alice", transfer("bob", 1, "third")).await;
    assert_eq!(third.codes(), ["COOLDOWN_ACTIVE"], "a majority without the gate is one: {}", third.body);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_minority_gave_is_given_back() {
    let servers = RedisMajority::of(5);
    let world = World::with(Database::Postgres, Locks::AsSet, |settings| {
        servers.named_in(settings);
        long(settings);
    })
    .await;
    let (first, _) = world.timed("alice", json!({ "query": CLAIM_DAILY })).await;
    assert_eq!(first.codes(), Vec::<&str>::new(), "{}", first.body);
    for server in &servers.servers[..2] {
        server.command(&["FLUSHALL"]);
    }
    let (second, _) = world.timed("alice", json!({ "query": CLAIM_DAILY })).await;
    assert_eq!(second.codes(), ["COOLDOWN_ACTIVE"], "{}", second.body);
    assert_eq!(servers.locks_of("alice", &[2, 3, 4]), 0, "it was given there, and given back");
    assert_eq!(servers.locks_of("alice", &[]), 3, "by token: the first one's locks stay");
    world.end().await;
}

/// A frozen server applies late what it was sent. The attempt was decided without it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_whose_answer_did_not_come_is_given_back() {
    let servers = RedisMajority::of(5);
    let world = World::with(Database::Postgres, Locks::AsSet, |settings| {
        servers.named_in(settings);
        long(settings);
    })
    .await;
    let last = &servers.servers[4];
    // Every server knows the scripts from here on.
    world.timed("early", json!({ "query": CLAIM_DAILY })).await;
    wait_until("the last one is used", async || servers.locks_of("early", &[0, 1, 2, 3]) == 1).await;
    let locks_before = ended(last);
    last.freeze();
    let (answer, _) = world.timed("alice", json!({ "query": CLAIM_DAILY })).await;
    assert_eq!(answer.codes(), Vec::<&str>::new(), "four are a majority: {}", answer.body);
    assert!(last.unread_bytes() > 0, "the frozen one was sent the lock");
    last.thaw();
    wait_until("the lock was taken late and given back", async || ended(last) > locks_before).await;
    assert_eq!((servers.locks_of("alice", &[0, 1, 2, 3]), servers.locks_of("alice", &[])), (0, 4));
    world.end().await;
}

/// How many locks were ended at a server by deletion.
fn ended(server: &RedisServer) -> u64 {
    let told: String = server.try_command(&["INFO", "commandstats"]).expect("it answers");
    let line = told.lines().find_map(|line| line.strip_prefix("cmdstat_eval:calls="));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

/// Nobody waits for the rest any more, so the gate's lock must not stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_between_the_gate_and_the_rest_leaves_no_lock() {
    let servers = RedisMajority::of(5);
    let world = World::with(Database::Postgres, Locks::AsSet, |settings| {
        servers.named_in(settings);
        long(settings);
        // Longer than the test: giving back must come from the hanging up, not from the wait's own end.
        settings.cooldown.command_timeout_ms = 30_000;
    })
    .await;
    servers.servers[1..].iter().for_each(RedisServer::freeze);
    let mut client = raw_post(&world, "alice", &json!({ "query": CLAIM_DAILY })).await;
    wait_until("the gate has admitted it", async || servers.locks_of("alice", &[1, 2, 3, 4]) == 1).await;
    client.shutdown().await.unwrap();
    drop(client);
    wait_until("the gate's lock is given back", async || servers.locks_of("alice", &[1, 2, 3, 4]) == 0).await;
    servers.servers[1..].iter().for_each(RedisServer::thaw);
    world.end().await;
}
