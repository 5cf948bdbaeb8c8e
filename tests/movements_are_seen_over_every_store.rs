//! Promise: a movement that another process committed is seen at once, wherever Redis keeps the locks, also after a failover, and
//! while a minority of servers is down.
//!
//! Guards `live/relay.rs`: at which servers it publishes and listens.

use serde_json::Value;

use crate::a_wallet_is_watched_live::{by_redis, is_announced, seen, watch};
use crate::on_every_store;
use crate::world::redis_majority::{Fault, RedisMajority};
use crate::world::redis_sentinels::RedisSentinels;
use crate::world::redis_stores::Store;
use crate::world::{Database, World, wait_until};

async fn two_processes(store: &Store) -> Vec<World> {
    World::several(2, Database::Postgres, |settings| {
        by_redis(settings);
        store.named_in(settings);
    })
    .await
}

/// What one process commits, the other shows.
async fn is_seen(worlds: &[World], member: &str) {
    let mut socket = watch(&worlds[0], member).await;
    assert_eq!(seen(&mut socket).await, ("0".to_owned(), "0".to_owned(), Value::Null));
    is_announced(&worlds[1], member, &mut socket).await;
}

on_every_store!(another_process_announces, async |store: Store| {
    let worlds = two_processes(&store).await;
    is_seen(&worlds, "alice").await;
    World::end_all(worlds).await;
});

#[tokio::test(flavor = "multi_thread")]
async fn announcements_follow_the_primary() {
    let mut sentinels = RedisSentinels::start().await;
    let first = sentinels.primary();
    let worlds = World::several(2, Database::Postgres, |settings| {
        by_redis(settings);
        sentinels.named_in(settings);
    })
    .await;
    is_seen(&worlds, "alice").await;
    sentinels.servers[first].stop();
    wait_until("another is the primary", async || sentinels.primary() != first).await;
    is_seen(&worlds, "bob").await;
    World::end_all(worlds).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn announcements_go_on_while_a_minority_is_down() {
    let mut servers = RedisMajority::of(3);
    let worlds = World::several(2, Database::Postgres, |settings| {
        by_redis(settings);
        servers.named_in(settings);
    })
    .await;
    is_seen(&worlds, "alice").await;
    servers.fail(&[0], Fault::Down);
    is_seen(&worlds, "bob").await;
    servers.mend(&[0], Fault::Down);
    servers.fail(&[2], Fault::Frozen);
    is_seen(&worlds, "carol").await;
    World::end_all(worlds).await;
}
