//! Promise: an event goes to its endpoint until it is taken or given up, in its wallet's order, by one worker at a time,
//! and no endpoint and no wallet waits for another.
//!
//! Guards `ledger/outbox.rs` (leases, order, parking, dead letters) and `workers/deliver_outbox.rs`.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::TimeDelta;
use largesse::ledger::outbox::Then;
use largesse::workers::deliver_outbox::{DeliverOutbox, Delivered};
use largesse::workers::{Shutdown, Workers};
use sea_orm::ConnectionTrait;

use crate::on_both;
use crate::world::outbox::{deliver, deliver_all, outbox, tell};
use crate::world::receiver::{Receiver, Reply};
use crate::world::statements::rows_read;
use crate::world::{Database, Locks, World, token, transfer, wait_until};

const DELIVERED: Delivered = Delivered { delivered: 1, failed: 0, dead: 0 };
const FAILED: Delivered = Delivered { delivered: 0, failed: 1, dead: 0 };
const DEAD: Delivered = Delivered { delivered: 0, failed: 0, dead: 1 };
const NOTHING: Delivered = Delivered { delivered: 0, failed: 0, dead: 0 };

/// Alice has 100 points, and so one event; each transfer to Bob makes one more of hers and one of his.
async fn world(database: Database, receiver: &Receiver) -> World {
    let world = World::with(database, Locks::Off, |settings| {
        tell(settings, "crm", receiver.url());
        settings.webhooks.attempts = 3;
    })
    .await;
    world.fund("alice").await;
    world.introduce("bob").await;
    world
}

async fn send(world: &World, times: usize) {
    for number in 0..times {
        let answer = world.post(Some(&token("alice")), transfer("bob", 1, &format!("k{number}"))).await;
        assert_eq!(answer.user_error("transfer"), None, "{}", answer.body);
    }
}

/// Later, as far as every clock of the outbox is concerned.
fn later(world: &World, time: TimeDelta) {
    world.app.ledger.clock().move_to(time);
}

fn of(member: &str, versions: std::ops::RangeInclusive<i64>) -> Vec<(String, i64)> {
    versions.map(|version| (member.to_owned(), version)).collect()
}

/// What came of one member's wallet.
fn places_of(receiver: &Receiver, member: &str) -> Vec<(String, i64)> {
    receiver.places().into_iter().filter(|(name, _)| name == member).collect()
}

// The endpoint refuses alice's second event at first. Bob's go all the same, and alice's third waits for her second.
on_both!(a_wallets_events_wait_for_the_one_before, async |database| {
    let refusing = Arc::new(AtomicBool::new(true));
    let asked = refusing.clone();
    let receiver = Receiver::answering(move |event| {
        let refused = asked.load(Ordering::SeqCst) && event.place() == ("alice".to_owned(), 2);
        Reply::Status(if refused { 500 } else { 200 })
    })
    .await;
    let world = world(database, &receiver).await;
    send(&world, 3).await;
    assert_eq!(deliver_all(&world).await, Delivered { delivered: 4, failed: 1, dead: 0 });
    assert_eq!(places_of(&receiver, "alice"), of("alice", 1..=2));
    assert_eq!(places_of(&receiver, "bob"), of("bob", 1..=3));
    assert_eq!(deliver(&world).await, NOTHING, "not before the pause is over");

    refusing.store(false, Ordering::SeqCst);
    later(&world, TimeDelta::seconds(6));
    assert_eq!(deliver_all(&world).await.delivered, 3);
    let came = receiver.received();
    let twice: Vec<_> = came.iter().filter(|event| event.place() == ("alice".to_owned(), 2)).collect();
    assert_eq!((twice.len(), twice[0].id(), twice[0].body.as_str()), (2, twice[1].id(), twice[1].body.as_str()));
    assert_eq!(places_of(&receiver, "alice"), [of("alice", 1..=2), of("alice", 2..=4)].concat());
    world.end().await;
});

// Whoever ends an event wakes the next one, which was put aside for minutes.
on_both!(what_was_parked_goes_as_soon_as_it_may, async |database| {
    let receiver = Receiver::answering(|event| Reply::Status(if event.before == 0 { 503 } else { 200 })).await;
    let world = world(database, &receiver).await;
    send(&world, 1).await;
    assert_eq!(deliver_all(&world).await, Delivered { delivered: 0, failed: 2, dead: 0 });
    let parked = "SELECT COUNT(*) FROM outbox WHERE attempts = 0 AND next_attempt_at > created_at";
    assert_eq!(world.count(parked).await, 1, "alice's second event is put aside");
    later(&world, TimeDelta::seconds(6));
    assert_eq!(deliver_all(&world).await, Delivered { delivered: 2, failed: 1, dead: 0 });
    later(&world, TimeDelta::seconds(12));
    assert_eq!(deliver_all(&world).await, DELIVERED);
    world.end().await;
});

// Many events of one wallet stand behind one that is refused: another wallet's do not wait for them.
on_both!(a_long_queue_of_one_wallet_holds_up_nobody, async |database| {
    let receiver =
        Receiver::answering(|event| Reply::Status(if event.json()["data"]["member"] == "alice" { 500 } else { 200 }))
            .await;
    let world = world(database, &receiver).await;
    let sql = world.sql().await;
    let id = if database == Database::Postgres { "gen_random_uuid()" } else { "randomblob(16)" };
    let many = format!(
        "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) \
         INSERT INTO outbox (id, endpoint, wallet_id, seq, event, payload, created_at, next_attempt_at) \
         SELECT {id}, endpoint, wallet_id, i, event, payload, created_at, next_attempt_at FROM outbox, n"
    );
    sql.execute_unprepared(&many).await.unwrap();
    world.fund("carol").await;
    assert_eq!(deliver(&world).await, Delivered { delivered: 1, failed: 1, dead: 0 }, "in one round");
    assert_eq!(places_of(&receiver, "carol"), of("carol", 1..=1));
    assert_eq!(places_of(&receiver, "alice"), of("alice", 1..=1));
    sql.execute_unprepared("DELETE FROM outbox WHERE seq > 1").await.unwrap();
    world.end().await;
});

// Three workers on one outbox; every attempt is here for a moment, so that two at one event would meet.
on_both!(no_two_workers_send_an_event_at_once, async |database| {
    let receiver = Arc::new(Receiver::answering(|_| Reply::Hold).await);
    let world = world(database, &receiver).await;
    let members: Vec<_> = (0..30).map(|number| format!("member{number}")).collect();
    for member in &members {
        world.fund(member).await;
    }
    let others = [world.another(|_| {}).await, world.another(|_| {}).await];
    let opening = tokio::spawn({
        let receiver = receiver.clone();
        async move {
            loop {
                tokio::time::sleep(Duration::from_millis(5)).await;
                receiver.let_go(1);
            }
        }
    });
    let (one, two, three) = tokio::join!(deliver_all(&world), deliver_all(&others[0]), deliver_all(&others[1]));
    opening.abort();
    assert_eq!(one.delivered + two.delivered + three.delivered, 31);
    assert_eq!((receiver.received().len(), receiver.most_at_once()), (31, 1), "each once");
    for other in others {
        other.stop().await;
    }
    world.end().await;
});

// A worker that was killed writes nothing more; what it held goes again when its lease ends, and not before.
on_both!(what_a_killed_worker_held_goes_again_after_its_lease, async |database| {
    let receiver = Receiver::answering(|event| if event.before == 0 { Reply::Hold } else { Reply::Status(200) }).await;
    let world = world(database, &receiver).await;
    let worker = DeliverOutbox::new(&world.app).unwrap();
    let killed = tokio::spawn(async move { worker.run_once().await });
    wait_until("the event is here", async || receiver.received().len() == 1).await;
    killed.abort();
    assert!(killed.await.unwrap_err().is_cancelled());
    assert_eq!(deliver_all(&world).await, NOTHING, "it is leased");
    later(&world, TimeDelta::seconds(31));
    assert_eq!(deliver_all(&world).await, DELIVERED);
    let ids: Vec<_> = receiver.received().iter().map(|event| event.id().to_owned()).collect();
    assert!(ids.len() == 2 && ids[0] == ids[1], "{ids:?}");
    world.end().await;
});

// It was slower than its lease: another has the event now, and that one alone says what became of it.
on_both!(a_worker_that_lost_its_lease_decides_nothing, async |database| {
    let receiver = Receiver::taking().await;
    let world = world(database, &receiver).await;
    let ledger = &world.app.ledger;
    let lease = TimeDelta::seconds(30);
    let slow = ledger.take_events("crm", 8, lease).await.unwrap().remove(0);
    assert!(ledger.take_events("crm", 8, lease).await.unwrap().is_empty());
    later(&world, TimeDelta::seconds(31));
    let quick = ledger.take_events("crm", 8, lease).await.unwrap().remove(0);
    assert_eq!((slow.id, slow.attempts, quick.attempts), (quick.id, 1, 2));
    assert!(!ledger.event_delivered(&slow).await.unwrap());
    assert!(!ledger.event_failed(&slow, "late", Then::Dead).await.unwrap());
    assert_eq!(outbox(&world, "delivered_at IS NULL AND dead_at IS NULL AND last_error IS NULL").await, 1);
    assert!(ledger.event_failed(&quick, "HTTP 500", Then::Again(TimeDelta::zero())).await.unwrap());
    assert!(!ledger.event_delivered(&quick).await.unwrap(), "a lease decides once");
    world.end().await;
});

on_both!(an_event_that_is_given_up_lets_the_next_go_and_can_be_sent_again, async |database| {
    let refusing = Arc::new(AtomicBool::new(true));
    let asked = refusing.clone();
    let receiver = Receiver::answering(move |event| {
        let refused = asked.load(Ordering::SeqCst) && event.place() == ("alice".to_owned(), 1);
        Reply::Status(if refused { 400 } else { 200 })
    })
    .await;
    let world = world(database, &receiver).await;
    send(&world, 1).await;
    for (attempt, expected) in [(1, FAILED), (2, FAILED), (3, DEAD)] {
        let sum = deliver(&world).await;
        assert_eq!((sum.failed, sum.dead), (expected.failed, expected.dead), "attempt {attempt}");
        later(&world, TimeDelta::hours(attempt));
    }
    assert_eq!(deliver_all(&world).await.dead, 0);
    assert_eq!(places_of(&receiver, "alice"), [of("alice", 1..=1), of("alice", 1..=1), of("alice", 1..=2)].concat());
    let [dead] = &world.app.ledger.undelivered_events(true, 10).await.unwrap()[..] else { panic!("one dead letter") };
    assert_eq!((dead.attempts, dead.last_error.as_deref(), dead.next_attempt_at), (3, Some("HTTP 400"), None));

    refusing.store(false, Ordering::SeqCst);
    assert!(world.app.ledger.resend_event(dead.id).await.unwrap());
    assert!(!world.app.ledger.resend_event(dead.id).await.unwrap(), "it is no dead letter any more");
    assert_eq!(deliver_all(&world).await, DELIVERED);
    assert_eq!(receiver.received().last().unwrap().id(), dead.id.to_string());
    assert!(world.app.ledger.undelivered_events(false, 10).await.unwrap().is_empty());
    world.end().await;
});

on_both!(an_endpoint_that_is_gone_is_asked_once, async |database| {
    let receiver = Receiver::answering(|_| Reply::Status(410)).await;
    let world = world(database, &receiver).await;
    assert_eq!(deliver_all(&world).await, DEAD);
    world.end().await;
});

on_both!(an_endpoint_may_ask_for_time, async |database| {
    let receiver = Receiver::answering(|event| match event.before {
        0 => Reply::With(429, "retry-after", "3600".to_owned()),
        _ => Reply::With(503, "retry-after", "999999999".to_owned()),
    })
    .await;
    let world = world(database, &receiver).await;
    assert_eq!(deliver(&world).await, FAILED);
    later(&world, TimeDelta::seconds(3590));
    assert_eq!(deliver(&world).await, NOTHING);
    later(&world, TimeDelta::seconds(3610));
    assert_eq!(deliver(&world).await, FAILED);
    later(&world, TimeDelta::seconds(3610 + 21_500));
    assert_eq!(deliver(&world).await, NOTHING, "the longest pause is six hours");
    later(&world, TimeDelta::seconds(3610 + 21_700));
    assert_eq!(deliver(&world).await, DEAD);
    world.end().await;
});

// One endpoint hangs, one is not even there: the third has its events at once, and the end does not wait for long.
on_both!(an_endpoint_that_hangs_delays_no_other, async |database| {
    let (hanging, good) = (Receiver::answering(|_| Reply::Hold).await, Receiver::taking().await);
    let world = World::with(database, Locks::Off, |settings| {
        tell(settings, "hanging", hanging.url());
        tell(settings, "nobody", "http://127.0.0.1:1/");
        tell(settings, "good", good.url());
    })
    .await;
    let stop = Shutdown::new();
    let working = tokio::spawn(Workers::new(&world.app).unwrap().run(stop.clone()));
    for number in 0..12 {
        world.fund(&format!("member{number}")).await;
    }
    wait_until("the good one has them all", async || good.received().len() == 12).await;
    wait_until("the hanging one has its places full", async || hanging.received().len() >= 8).await;
    assert_eq!(outbox(&world, "endpoint = 'hanging' AND delivered_at IS NOT NULL").await, 0);
    stop.cancel();
    hanging.let_go(100);
    working.await.unwrap();
    assert_eq!(outbox(&world, "lease IS NOT NULL").await, 0, "what was being sent was finished");
    let came: HashSet<_> = hanging.received().iter().map(|event| event.id().to_owned()).collect();
    let written = outbox(&world, "endpoint = 'hanging' AND (delivered_at IS NOT NULL OR last_error IS NOT NULL)").await;
    assert_eq!(written, i64::try_from(came.len()).unwrap());
    assert_eq!(outbox(&world, "endpoint = 'nobody' AND attempts > 0 AND last_error = 'no connection'").await, 12);
    world.end().await;
});

/// What a claim looks at is bounded by the index of due rows, whatever is parked behind the first of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_does_not_read_the_whole_outbox() {
    let receiver = Receiver::answering(|_| Reply::Status(500)).await;
    let world = world(Database::Postgres, &receiver).await;
    let sql = world.sql().await;
    let many = "INSERT INTO outbox (id, endpoint, wallet_id, seq, event, payload, created_at, next_attempt_at) \
                SELECT gen_random_uuid(), endpoint, wallet_id, i, event, payload, created_at, \
                created_at + interval '1 hour' FROM outbox, generate_series(2, 50000) i";
    sql.execute_unprepared(many).await.unwrap();
    sql.execute_unprepared("ANALYZE outbox").await.unwrap();
    sql.close().await.unwrap();
    assert_eq!(deliver_all(&world).await, FAILED);
    let read = rows_read(&world, "outbox").await;
    assert!(read < 1000, "{read} rows were read to send one");
    world.end().await;
}

/// PostgreSQL knows nothing of a table that was empty a moment ago. Whatever it believes, it must not look for earlier events
/// by reading all that is pending: a backlog would slow down the very workers that should work it off.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_without_statistics_does_not_read_the_backlog_again() {
    let receiver = Receiver::taking().await;
    let world = world(Database::Postgres, &receiver).await;
    let sql = world.sql().await;
    let backlog = "INSERT INTO outbox (id, endpoint, wallet_id, seq, event, payload, created_at, next_attempt_at) \
                   SELECT gen_random_uuid(), endpoint, gen_random_uuid(), 1, event, payload, created_at, created_at \
                   FROM outbox, generate_series(1, 5000)";
    sql.execute_unprepared(backlog).await.unwrap();
    sql.close().await.unwrap();
    assert_eq!(deliver(&world).await.delivered, 32);
    let read = rows_read(&world, "outbox").await;
    assert!(read < 7500, "{read} rows were read to send 32");
    world.end().await;
}
