//! Promise: who watches a wallet sees its state at once, and then its state after each committed movement, from whichever
//! process committed it, even if the announcement was lost; and never another's.
//!
//! Guards `live`, the announcement after COMMIT in `ledger/tx.rs`, and `api/subscription.rs`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::on_both;
use crate::world::redis_server::RedisServer;
use crate::world::socket::Socket;
use crate::world::{Database, Locks, World, patient, transfer, wait_until};

const WATCH: &str = "subscription { walletChanged { entry { amount { amount } kind counterparty { memberId } } \
    wallet { id version balance { amount currency } } } }";

/// So rarely that no test waits for it: what is seen was announced.
const NEVER_MS: u64 = 3_600_000;

fn announced_only(settings: &mut largesse::config::Settings) {
    patient(settings);
    settings.sockets.look_again_ms = NEVER_MS;
}

/// The same with a Redis at hand, and the cooldown off.
pub(crate) fn by_redis(settings: &mut largesse::config::Settings) {
    announced_only(settings);
    settings.cooldown.enabled = false;
}

pub(crate) async fn watch(world: &World, member: &str) -> Socket {
    let mut socket = Socket::of(world, member).await;
    socket.subscribe("w", WATCH, json!({})).await;
    socket
}

/// Balance, version and amount of the newest entry, as the next event shows them.
pub(crate) async fn seen(socket: &mut Socket) -> (String, String, Value) {
    let event = socket.event("w").await;
    assert_eq!(event["errors"], Value::Null, "{event}");
    let changed = &event["data"]["walletChanged"];
    let text = |pointer: &str| changed.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    (text("/wallet/balance/amount"), text("/wallet/version"), changed["entry"]["amount"]["amount"].clone())
}

fn state(balance: &str, version: &str, amount: impl Into<Value>) -> (String, String, Value) {
    (balance.to_owned(), version.to_owned(), amount.into())
}

on_both!(first_the_state_then_each_movement, async |database: Database| {
    let world = World::with(database, Locks::Off, announced_only).await;
    world.introduce("bob").await;
    let (mut alice, mut bob) = (watch(&world, "alice").await, watch(&world, "bob").await);
    assert_eq!(seen(&mut alice).await, state("0", "0", Value::Null), "before the first movement");
    assert_eq!(seen(&mut bob).await, state("0", "0", Value::Null));
    world.fund("alice").await;
    assert_eq!(seen(&mut alice).await, state("100", "1", "100"));
    world.ask("alice", crate::world::TRANSFER, transfer("bob", 30, "k")["variables"].clone()).await;
    assert_eq!(seen(&mut alice).await, state("70", "2", "-30"));
    assert_eq!(seen(&mut bob).await, state("30", "1", "30"));
    world.ask("alice", crate::world::TRANSFER, transfer("bob", 71, "too-much")["variables"].clone()).await;
    world.ask("alice", crate::world::TRANSFER, transfer("bob", 30, "k")["variables"].clone()).await;
    world.ask("alice", crate::world::TRANSFER, transfer("bob", 1, "k2")["variables"].clone()).await;
    assert_eq!(seen(&mut alice).await, state("69", "3", "-1"), "a refusal and a replay are no movements");
    world.end().await;
});

#[tokio::test(flavor = "multi_thread")]
async fn a_movement_is_seen_after_its_commit_and_not_before() {
    let world = World::with(Database::Postgres, Locks::Off, announced_only).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let mut alice = watch(&world, "alice").await;
    assert_eq!(seen(&mut alice).await, state("100", "1", Value::Null));
    let sql = world.sql().await;
    // The work has read and will write; its commit waits for the members' table, which its entries' keys refer to.
    sea_orm::ConnectionTrait::execute_unprepared(&sql, "BEGIN; LOCK TABLE transactions IN SHARE MODE").await.unwrap();
    let answer = world.begin_post(&crate::world::token("alice"), &transfer("bob", 30, "k"));
    wait_until("the posting waits", async || world.waiting_for_locks().await == 1).await;
    assert!(alice.is_silent_for(Duration::from_millis(300)).await, "nothing is committed yet");
    sea_orm::ConnectionTrait::execute_unprepared(&sql, "COMMIT").await.unwrap();
    assert_eq!(seen(&mut alice).await, state("70", "2", "-30"));
    assert_eq!(answer.await.unwrap().user_error("transfer"), None);
    sql.close().await.unwrap();
    world.end().await;
}

on_both!(nobody_sees_anothers_movements, async |database: Database| {
    let world = World::with(database, Locks::Off, announced_only).await;
    world.fund("alice").await;
    world.introduce("carol").await;
    let mut bob = watch(&world, "bob").await;
    assert_eq!(seen(&mut bob).await, state("0", "0", Value::Null));
    world.ask("alice", crate::world::TRANSFER, transfer("carol", 30, "k")["variables"].clone()).await;
    world.fund("bob").await;
    assert_eq!(seen(&mut bob).await, state("100", "1", "100"), "the first thing that he sees is his own");
    world.end().await;
});

#[tokio::test(flavor = "multi_thread")]
async fn another_process_announces_through_redis() {
    let world = World::with(Database::Postgres, Locks::Redis, by_redis).await;
    let other = world.another(|_| {}).await;
    world.introduce("bob").await;
    let mut alice = watch(&world, "alice").await;
    assert_eq!(seen(&mut alice).await, state("0", "0", Value::Null));
    is_announced(&other, "alice", &mut alice).await;
    other.stop().await;
    world.end().await;
}

/// Pays a bonus in another process, and sees it here. The listener may not have been there yet, so it is paid to one more
/// member until it is heard.
pub(crate) async fn is_announced(other: &World, member: &str, socket: &mut Socket) {
    other.fund(member).await;
    let mut number = 0;
    while socket.is_silent_for(Duration::from_millis(500)).await {
        number += 1;
        assert!(number < 20, "the other process was not heard");
        other.fund(&format!("payer{number}")).await;
        let paid = transfer(member, 1, "k");
        other.ask(&format!("payer{number}"), crate::world::TRANSFER, paid["variables"].clone()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn announcements_go_on_when_redis_comes_back() {
    let mut redis = RedisServer::start();
    let world = World::with(Database::Postgres, Locks::RedisAt(redis.url()), by_redis).await;
    let other = world.another(|_| {}).await;
    let mut alice = watch(&world, "alice").await;
    assert_eq!(seen(&mut alice).await, state("0", "0", Value::Null));
    is_announced(&other, "alice", &mut alice).await;
    redis.stop();
    redis.start_again();
    let mut bob = watch(&world, "bob").await;
    assert_eq!(seen(&mut bob).await, state("0", "0", Value::Null));
    is_announced(&other, "bob", &mut bob).await;
    other.stop().await;
    world.end().await;
}

on_both!(a_lost_announcement_is_made_good, async |database: Database| {
    let world = World::with(database, Locks::Off, |settings| {
        patient(settings);
        settings.sockets.look_again_ms = 100;
    })
    .await;
    let mut alice = watch(&world, "alice").await;
    assert_eq!(seen(&mut alice).await, state("0", "0", Value::Null));
    // Without Redis, nobody tells this process of what another one commits.
    let other = world.another(|_| {}).await;
    other.fund("alice").await;
    assert_eq!(seen(&mut alice).await, state("100", "1", "100"));
    other.stop().await;
    world.end().await;
});

on_both!(under_load_versions_only_grow_and_the_last_one_is_seen, async |database: Database| {
    let world = World::with(database, Locks::Off, announced_only).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let mut alice = watch(&world, "alice").await;
    let answers = world.storm(60, |number| ("alice".to_owned(), transfer("bob", 1, &format!("k{number}")))).await;
    assert!(answers.iter().all(|answer| answer.code().is_none()), "{answers:?}");
    let (mut last, mut events) = (0, 0);
    while last < 61 {
        let (balance, version, _) = seen(&mut alice).await;
        let version: i64 = version.parse().unwrap();
        assert!(version > last, "{version} after {last}");
        assert_eq!(balance, (101 - version).to_string(), "balance and version belong together");
        (last, events) = (version, events + 1);
    }
    assert!(alice.is_silent_for(Duration::from_millis(200)).await, "61 movements came as {events} events, and no more");
    world.end().await;
});

#[tokio::test(flavor = "multi_thread")]
async fn one_currency_or_all_of_them() {
    let world = World::with(Database::Sqlite, Locks::Off, |settings| {
        announced_only(settings);
        let mut euro = settings.currencies[0].clone();
        euro.code = largesse::amount::CurrencyCode::parse("EUR").unwrap();
        settings.currencies.push(euro);
    })
    .await;
    let mut all = watch(&world, "alice").await;
    let mut codes = Vec::new();
    for _ in 0..2 {
        let event = all.event("w").await;
        codes.push(event["data"]["walletChanged"]["wallet"]["balance"]["currency"].as_str().unwrap().to_owned());
    }
    assert_eq!(codes, ["PTS", "EUR"]);
    let one = WATCH.replace("walletChanged", "walletChanged(currency: \"EUR\")");
    let mut euros = Socket::of(&world, "alice").await;
    euros.subscribe("w", &one, json!({})).await;
    assert_eq!(euros.event("w").await["data"]["walletChanged"]["wallet"]["balance"]["currency"], "EUR");
    world.fund("alice").await;
    assert_eq!(all.event("w").await["data"]["walletChanged"]["entry"]["kind"], "SIGNUP_BONUS");
    assert!(euros.is_silent_for(Duration::from_millis(200)).await, "a bonus in points is no movement in euros");
    let mut none = Socket::of(&world, "alice").await;
    none.subscribe("w", &one.replace("EUR", "USD"), json!({})).await;
    let event = none.event("w").await;
    assert_eq!(event["errors"][0]["extensions"]["code"], "BAD_USER_INPUT", "{event}");
    assert_eq!(none.next().await, json!({ "type": "complete", "id": "w" }));
    world.end().await;
}
