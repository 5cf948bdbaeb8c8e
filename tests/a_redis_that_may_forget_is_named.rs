//! Promise: a Redis whose `maxmemory-policy` may throw locks away is named in the log, once, and one that tells nobody how it is
//! set up is used like any other.
//!
//! Guards the warning of the keeper in `cooldown/node.rs`.

use serde_json::json;

use crate::world::redis_server::RedisServer;
use crate::world::{CLAIM_DAILY, Database, Locks, World, log, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn policies_that_throw_locks_away_are_warned_about() {
    for (options, warned) in [
        ("--maxmemory-policy allkeys-lru", true),
        // Locks have an end, so these may take them as well.
        ("--maxmemory-policy volatile-ttl", true),
        ("--maxmemory-policy noeviction", false),
        // As managed ones do: no CONFIG, or neither.
        ("--maxmemory-policy volatile-lru --user default on nopass ~* &* +@all -config", true),
        ("--maxmemory-policy volatile-lru --user default on nopass ~* &* +@all -config -info", false),
    ] {
        let redis = RedisServer::start_as(&options.split_whitespace().collect::<Vec<_>>());
        let world = World::new(Database::Postgres, Locks::RedisAt(redis.url())).await;
        let (answer, _) = world.timed("alice", json!({ "query": CLAIM_DAILY })).await;
        assert_eq!(answer.data("/claimDailyBonus/claim/streak"), 1, "{}", answer.body);
        assert_eq!(redis.keys().len(), 1, "{options}: it decides");
        assert_eq!(warnings(&redis), usize::from(warned), "{options}");
        reconnect(&world, &redis).await;
        assert_eq!(warnings(&redis), usize::from(warned), "{options}: once");
        world.end().await;
    }
}

/// Cuts the connections, and waits until there is another.
async fn reconnect(world: &World, redis: &RedisServer) {
    redis.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    for number in 0.. {
        let (answer, _) = world.timed(&format!("after {number}"), json!({ "query": CLAIM_DAILY })).await;
        assert_eq!(answer.data("/claimDailyBonus/claim/streak"), 1, "{}", answer.body);
        if redis.keys().len() > 1 {
            return;
        }
        assert!(number < 1000, "Redis is not used again");
        wait_until("it is content", async || world.get("/readyz").await.1 == "ok").await;
    }
}

fn warnings(redis: &RedisServer) -> usize {
    let told = log::messages_with("server", &format!("127.0.0.1:{}", redis.port()));
    told.iter().filter(|message| message.contains("may throw locks away")).count()
}
