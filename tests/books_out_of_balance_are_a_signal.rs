//! Promise: books that do not balance are found within the time that the settings say, by one process and not by all, and told
//! by every process: in its metrics, and once in the log.
//!
//! Guards `workers/audit_books.rs` and `ledger/audit_turn.rs`. What the audit notices is tested where money is neither made nor
//! lost.

use chrono::TimeDelta;
use largesse::workers::Shutdown;
use largesse::workers::audit_books::{AuditBooks, Audited};
use sea_orm::{ConnectionTrait, TransactionTrait};

use crate::on_both;
use crate::world::binary::{Running, largesse};
use crate::world::metrics::Scrape;
use crate::world::{Database, Locks, World, wait_until};

const EVERY: TimeDelta = TimeDelta::hours(24);

async fn audit(world: &World) -> Audited {
    AuditBooks::new(&world.app).run_once(&Shutdown::new()).await.expect("the audit runs")
}

/// A wallet has a point that no entry explains.
async fn damage(world: &World) {
    let sql = world.sql().await;
    sql.execute_unprepared("UPDATE wallets SET balance = balance + 1").await.unwrap();
    sql.close().await.unwrap();
}

async fn broken_rows(world: &World) -> Option<u64> {
    world.app.ledger.last_audit().await.expect("the database answers").map(|last| last.broken_rows)
}

on_both!(each_day_has_one_audit_whichever_process_it_is, async |database| {
    let world = World::new(database, Locks::Off).await;
    world.fund("alice").await;
    let another = world.another(|_| {}).await;
    assert_eq!(broken_rows(&another).await, None);
    assert_eq!(audit(&world).await, Audited::Done(0));
    assert_eq!((audit(&world).await, audit(&another).await), (Audited::NotDue, Audited::NotDue));
    assert_eq!(broken_rows(&another).await, Some(0), "every process knows what one has found");
    damage(&world).await;
    another.app.ledger.clock().move_to(EVERY - TimeDelta::minutes(1));
    assert_eq!(audit(&another).await, Audited::NotDue);
    another.app.ledger.clock().move_to(EVERY + TimeDelta::minutes(1));
    assert_eq!(audit(&another).await, Audited::Done(1));
    assert_eq!(broken_rows(&world).await, Some(1));
    another.stop().await;
    world.stop().await;
});

on_both!(two_processes_never_audit_at_once_and_a_dead_one_blocks_none, async |database| {
    let world = World::new(database, Locks::Off).await;
    let another = world.another(|_| {}).await;
    let turn = world.app.ledger.take_audit_turn(EVERY).await.unwrap().expect("it is nobody's turn yet");
    assert_eq!(audit(&another).await, Audited::NotDue);
    // A process that is still at work keeps its turn, however long it takes.
    for minutes in [4, 8] {
        world.app.ledger.clock().move_to(TimeDelta::minutes(minutes));
        another.app.ledger.clock().move_to(TimeDelta::minutes(minutes));
        assert!(world.app.ledger.keep_audit_turn(&turn).await.unwrap());
        assert_eq!(audit(&another).await, Audited::NotDue);
    }
    // It says no more: it is dead, or was asleep.
    another.app.ledger.clock().move_to(TimeDelta::minutes(14));
    assert_eq!(audit(&another).await, Audited::Done(0));
    assert!(!world.app.ledger.keep_audit_turn(&turn).await.unwrap(), "its turn is over");
    assert!(!world.app.ledger.give_audit_turn_back(turn).await.unwrap());
    another.stop().await;
    world.end().await;
});

/// An audit of large books must not hold up a shutdown, nor the next process.
#[tokio::test(flavor = "multi_thread")]
async fn an_audit_that_is_told_to_stop_leaves_its_turn_to_another() {
    let world = World::new(Database::Postgres, Locks::Off).await;
    let sql = world.sql().await;
    let other = sql.begin().await.unwrap();
    other.execute_unprepared("LOCK TABLE entries").await.unwrap();
    let stop = Shutdown::new();
    let (worker, told) = (AuditBooks::new(&world.app), stop.clone());
    let auditing = tokio::spawn(async move { worker.run_once(&told).await });
    wait_until("the audit reads the entries", async || world.waiting_for_locks().await == 1).await;
    stop.cancel();
    assert_eq!(auditing.await.unwrap().unwrap(), Audited::Stopped);
    other.rollback().await.unwrap();
    sql.close().await.unwrap();
    assert_eq!(audit(&world).await, Audited::Done(0));
    world.end().await;
}

on_both!(whoever_wants_none_has_none, async |database| {
    let world = World::with(database, Locks::Off, |settings| settings.workers.audit_every_hours = 0).await;
    assert_eq!((audit(&world).await, broken_rows(&world).await), (Audited::NotDue, None));
    world.end().await;
});

/// The real process, as an operator runs it: `work` serves metrics too.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_finds_the_damage_and_tells_of_it() {
    let world = World::new(Database::Postgres, Locks::Off).await;
    world.fund("alice").await;
    damage(&world).await;
    let folder = tempfile::tempdir().unwrap();
    let mut command = largesse(folder.path(), &["work", "--log-format", "json"]);
    command.env("DATABASE_URL", &world.url).env("LARGESSE_METRICS_LISTEN", "127.0.0.1:0");
    let worker = Running::start(&mut command);
    let address = worker.word_after("\"metrics_address\":\"");
    let told = Scrape::until(&address, "an audit has ended", |told| {
        told.sum("largesse_audit_finished_timestamp_seconds", &[]) > 0.0
    })
    .await;
    assert!((told.sum("largesse_audit_broken_rows", &[]) - 1.0).abs() < 0.1, "{}", told.text);
    let logged = worker.logged();
    let complaints: Vec<_> = logged.lines().filter(|line| line.contains("the books do not balance")).collect();
    assert!(complaints.len() == 1 && complaints[0].contains("\"level\":\"ERROR\""), "{logged}");
    worker.signal("TERM");
    assert_eq!(worker.wait().code, Some(0));
    world.stop().await;
}
