//! Promise: what may be forgotten is, in small batches, by any number of processes; what moved value is not, unless a
//! setting says so; and a key is never forgotten under a replay's feet.
//!
//! Guards `ledger/cleaning.rs`, `workers/forget.rs`, `workers/clean_keys.rs`, `workers/prune_outbox.rs` and when keys expire.
//! How long a million keys take, and what transfers notice of it, is in docs/performance.md.

use chrono::TimeDelta;
use largesse::workers::Shutdown;
use largesse::workers::clean_keys::CleanKeys;
use largesse::workers::prune_outbox::PruneOutbox;
use sea_orm::{ConnectionTrait, TransactionTrait};

use crate::on_both;
use crate::world::outbox::{deliver_all, outbox, tell};
use crate::world::receiver::{Receiver, Reply};
use crate::world::statements::rows_read;
use crate::world::{Database, Locks, World, token, transfer};

const KEYS: &str = "SELECT COUNT(*) FROM idempotency_keys";

async fn clean(world: &World) -> usize {
    CleanKeys::new(&world.app).run_once(&Shutdown::new()).await.expect("the keys are read and deleted").rows
}

async fn prune(world: &World) -> usize {
    PruneOutbox::new(&world.app).run_once(&Shutdown::new()).await.expect("the outbox is read and deleted").rows
}

/// Alice, with a transfer that was made and one that was refused.
async fn world_with_two_keys(database: Database, completed_days: Option<u32>) -> World {
    let world = World::with(database, Locks::Off, |settings| {
        settings.keys.refusal_retention_days = 2;
        settings.keys.completed_retention_days = completed_days;
    })
    .await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let alice = token("alice");
    assert_eq!(world.post(Some(&alice), transfer("bob", 10, "done")).await.user_error("transfer"), None);
    let refused = world.post(Some(&alice), transfer("bob", 1_000, "refused")).await;
    assert_eq!(refused.user_error("transfer"), Some("INSUFFICIENT_FUNDS"));
    world
}

/// So many keys of alice's that expired long ago, as refusals leave them.
async fn expired_keys(world: &World, many: u32) {
    let copies = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {many}) \
         INSERT INTO idempotency_keys (member_id, operation, key, fingerprint, refusal, created_at, expires_at) \
         SELECT member_id, operation, 'old' || i, fingerprint, refusal, created_at, created_at \
         FROM idempotency_keys, n WHERE key = 'refused'"
    );
    let sql = world.sql().await;
    sql.execute_unprepared(&copies).await.unwrap();
    sql.close().await.unwrap();
}

on_both!(refusals_are_forgotten_and_payments_are_not, async |database| {
    let world = world_with_two_keys(database, None).await;
    world.app.ledger.clock().move_to(TimeDelta::hours(47));
    assert_eq!(clean(&world).await, 0);
    world.app.ledger.clock().move_to(TimeDelta::hours(49));
    assert_eq!(clean(&world).await, 1);
    assert_eq!(world.count(&format!("{KEYS} WHERE key = 'done'")).await, 1);
    world.app.ledger.clock().move_to(TimeDelta::days(4000));
    assert_eq!(clean(&world).await, 0, "for ever is for ever");
    let replay = world.post(Some(&token("alice")), transfer("bob", 10, "done")).await;
    assert_eq!(replay.data("/transfer/replayed"), true);
    let anew = world.post(Some(&token("alice")), transfer("bob", 20, "refused")).await;
    assert_eq!((anew.user_error("transfer"), world.balance("bob").await), (None, 30), "a forgotten key is a new one");
    world.end().await;
});

on_both!(a_setting_forgets_payments_too, async |database| {
    let world = world_with_two_keys(database, Some(5)).await;
    world.app.ledger.clock().move_to(TimeDelta::hours(49));
    assert_eq!(clean(&world).await, 1, "a refusal keeps its own time");
    world.app.ledger.clock().move_to(TimeDelta::hours(119));
    assert_eq!(clean(&world).await, 0);
    world.app.ledger.clock().move_to(TimeDelta::hours(121));
    assert_eq!(clean(&world).await, 1);
    assert_eq!(world.count(KEYS).await, 0);
    world.end().await;
});

// More than one batch, three cleaners at once, each row once.
on_both!(many_are_forgotten_by_several_at_once, async |database| {
    let world = world_with_two_keys(database, None).await;
    let others = [world.another(|_| {}).await, world.another(|_| {}).await];
    expired_keys(&world, 3000).await;
    let (one, two, three) = tokio::join!(clean(&world), clean(&others[0]), clean(&others[1]));
    // A batch that others' locks make small ends its cleaner's run; what is left is the next run's.
    assert_eq!(one + two + three + clean(&world).await, 3000);
    assert_eq!(world.count(KEYS).await, 2);
    for other in others {
        other.stop().await;
    }
    world.end().await;
});

on_both!(a_cleaner_stops_when_it_is_told_to, async |database| {
    let world = world_with_two_keys(database, None).await;
    expired_keys(&world, 3000).await;
    let stop = Shutdown::new();
    stop.cancel();
    let forgotten = CleanKeys::new(&world.app).run_once(&stop).await.unwrap();
    assert_eq!(forgotten.rows, 200, "the batch at hand is finished");
    world.end().await;
});

/// A row that another transaction holds is left alone, and holds up nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_use_is_skipped() {
    let world = world_with_two_keys(Database::Postgres, None).await;
    expired_keys(&world, 700).await;
    let sql = world.sql().await;
    let holding = sql.begin().await.unwrap();
    holding.execute_unprepared("SELECT 1 FROM idempotency_keys WHERE key = 'old7' FOR SHARE").await.unwrap();
    assert_eq!(clean(&world).await, 699);
    holding.rollback().await.unwrap();
    assert_eq!(clean(&world).await, 1);
    world.end().await;
}

/// An index knows where the expired ones are: rows that stay are not looked at.
#[tokio::test(flavor = "multi_thread")]
async fn what_stays_is_not_looked_at() {
    let world = world_with_two_keys(Database::Postgres, None).await;
    expired_keys(&world, 600).await;
    let sql = world.sql().await;
    let staying = "INSERT INTO idempotency_keys (member_id, operation, key, fingerprint, refusal, created_at, expires_at) \
                   SELECT member_id, operation, 'new' || i, fingerprint, refusal, created_at, \
                   now() + interval '1 day' FROM idempotency_keys, generate_series(1, 50000) i WHERE key = 'refused'";
    sql.execute_unprepared(staying).await.unwrap();
    sql.execute_unprepared("ANALYZE idempotency_keys").await.unwrap();
    sql.close().await.unwrap();
    assert_eq!(clean(&world).await, 600);
    let read = rows_read(&world, "idempotency_keys").await;
    assert!(read < 3_000, "{read} rows were read to delete 600");
    world.end().await;
}

on_both!(delivered_events_are_forgotten_and_no_others, async |database| {
    let receiver = Receiver::answering(|event| {
        Reply::Status(match event.json()["data"]["member"].as_str() {
            Some("alice") => 200,
            Some("bob") => 410,
            _ => 500,
        })
    })
    .await;
    let world = World::with(database, Locks::Off, |settings| {
        tell(settings, "crm", receiver.url());
        settings.webhooks.retention_days = 3;
    })
    .await;
    for member in ["alice", "bob", "carol"] {
        world.fund(member).await;
    }
    deliver_all(&world).await;
    world.app.ledger.clock().move_to(TimeDelta::hours(71));
    assert_eq!(prune(&world).await, 0);
    world.app.ledger.clock().move_to(TimeDelta::hours(73));
    assert_eq!(prune(&world).await, 1);
    assert_eq!(outbox(&world, "dead_at IS NOT NULL").await, 1);
    assert_eq!(outbox(&world, "delivered_at IS NULL AND dead_at IS NULL").await, 1);
    world.end().await;
});
