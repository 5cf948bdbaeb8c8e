//! Promise: while a slot of a Redis Cluster moves from one master to another, and after it, its members' locks are found where
//! they are: of many attempts in several processes one is admitted, and no error but `COOLDOWN_ACTIVE` shows.
//!
//! Guards `cooldown/cluster.rs`: ASK and MOVED are followed within the attempt.

use serde_json::json;

use crate::a_minority_of_redis_servers_may_fail::long;
use crate::every_store_admits_one::storm_of;
use crate::world::redis_cluster::RedisCluster;
use crate::world::{Answer, CLAIM_DAILY, Database, World, wait_until};

const RIVALS: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_moves() {
    let cluster = RedisCluster::start().await;
    let worlds = World::several(2, Database::Postgres, |settings| {
        cluster.named_in(settings);
        long(settings);
    })
    .await;
    for world in &worlds {
        wait_until("the process is ready", async || world.get("/readyz").await == (200, "ok".to_owned())).await;
    }
    let member = cluster.member_of(0, "alice");
    let keys = |server: usize| cluster.servers[server].keys().len();
    cluster.begin_to_move(&member, 0, 1);
    assert_eq!(admitted(&worlds, &member).await, 1, "on its way");
    assert_eq!((keys(0), keys(1)), (0, 1), "what is new goes to the new master");
    cluster.end_move(&member, 0, 1);
    assert_eq!(admitted(&worlds, &member).await, 0, "the lock is found at the new master");
    let other = cluster.member_of(1, "bob");
    assert_eq!((admitted(&worlds, &other).await, keys(1)), (1, 2), "and the others where they were");
    World::end_all(worlds).await;
}

async fn admitted(worlds: &[World], member: &str) -> usize {
    let answers = storm_of(RIVALS, worlds, member, &json!({ "query": CLAIM_DAILY })).await;
    let codes: Vec<_> = answers.iter().map(Answer::code).collect();
    assert!(codes.iter().all(|code| matches!(code, None | Some("COOLDOWN_ACTIVE"))), "{codes:?}");
    codes.iter().filter(|code| code.is_none()).count()
}
