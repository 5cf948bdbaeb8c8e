//! Promise: a Redis that froze costs those a time-out who had asked it at that moment, and nobody after them, however many
//! come; one that froze while nobody asked costs nobody anything. One frozen server of a majority, too.
//!
//! Guards `cooldown/breaker.rs` and the keeper in `cooldown/node.rs`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::world::redis_majority::RedisMajority;
use crate::world::redis_server::RedisServer;
use crate::world::{CLAIM_DAILY, Database, Locks, World, wait_until};
use largesse::config::Settings;

/// So long that a slow machine is not taken for it.
const TIME_OUT: Duration = Duration::from_secs(2);

const CLIENTS: usize = 6;

fn slow_to_give_up(settings: &mut Settings) {
    settings.cooldown.command_timeout_ms = 2000;
    for action in ["claimDailyBonus", "claimSignupBonus", "transfer"] {
        settings.cooldown.actions.entry(action.to_owned()).or_default().window_ms = Some(60_000);
    }
}

/// Clients that ask again as soon as they have an answer: how many answers took the time-out, and how many there were.
async fn flood(world: &World, during: Duration) -> (usize, usize) {
    let (slow, all, began) = (AtomicUsize::new(0), AtomicUsize::new(0), Instant::now());
    let client = async |client: usize| {
        while began.elapsed() < during {
            let number = all.fetch_add(1, Ordering::Relaxed);
            let (answer, took) = world.timed(&format!("{client} {number}"), json!({ "query": CLAIM_DAILY })).await;
            assert_eq!(answer.data("/claimDailyBonus/claim/streak"), 1, "{}", answer.body);
            slow.fetch_add(usize::from(took >= TIME_OUT), Ordering::Relaxed);
        }
    };
    futures_util::future::join_all((0..CLIENTS).map(client)).await;
    (slow.into_inner(), all.into_inner())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_flood_those_wait_who_had_asked() {
    let redis = RedisServer::start();
    let world = World::with(Database::Postgres, Locks::RedisAt(redis.url()), slow_to_give_up).await;
    redis.freeze();
    let (slow, all) = flood(&world, 2 * TIME_OUT).await;
    assert!((1..=CLIENTS).contains(&slow) && all > 2 * CLIENTS, "{slow} of {all} waited");
    redis.thaw();
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_a_majority_costs_no_more() {
    let servers = RedisMajority::of(5);
    let world = World::with(Database::Postgres, Locks::AsSet, |settings| {
        servers.named_in(settings);
        slow_to_give_up(settings);
    })
    .await;
    // The gate: everybody asks it first.
    servers.servers[0].freeze();
    let (slow, all) = flood(&world, 2 * TIME_OUT).await;
    assert!((1..=CLIENTS).contains(&slow) && all > 2 * CLIENTS, "{slow} of {all} waited");
    let (answer, took) = world.timed("late", json!({ "query": CLAIM_DAILY })).await;
    assert!(took < TIME_OUT, "{took:?}: {}", answer.body);
    assert_eq!(servers.locks_of("late", &[0]), 4, "the others decide");
    servers.servers[0].thaw();
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_froze_while_nobody_asked_costs_nobody_anything() {
    let redis = RedisServer::start();
    let world = World::with(Database::Postgres, Locks::RedisAt(redis.url()), slow_to_give_up).await;
    redis.freeze();
    wait_until("the keeper has seen it", async || world.get("/readyz").await.1.starts_with("degraded")).await;
    let (slow, all) = flood(&world, Duration::from_millis(300)).await;
    assert!(slow == 0 && all >= CLIENTS, "{slow} of {all} waited");
    redis.thaw();
    world.end().await;
}
