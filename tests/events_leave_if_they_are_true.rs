//! Promise: an event leaves if and only if it is true: it is written by the transaction that it tells of, once for each
//! wallet that moved and each endpoint that wants it, and without a further round trip.
//!
//! Guards `ledger/events.rs` and its place in `Tx::post`. The deliveries here are real; how they go on when an endpoint
//! does not take them is `webhooks_arrive_in_order`'s promise.

use sea_orm::{ConnectionTrait, TransactionTrait};
use serde_json::{Value, json};

use crate::on_both;
use crate::world::outbox::{WHSEC, deliver, deliver_all, outbox, tell, tell_of};
use crate::world::proxy::{Deed, Proxy};
use crate::world::receiver::Receiver;
use crate::world::statements::statements;
use crate::world::{CLAIM_DAILY, Database, Locks, World, token, transfer, wait_until};

/// Alice and Bob, and an endpoint that is told everything.
async fn told(database: Database) -> (World, Receiver) {
    let receiver = Receiver::taking().await;
    let world = World::with(database, Locks::Off, |settings| tell(settings, "crm", receiver.url())).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    (world, receiver)
}

on_both!(a_posting_tells_each_wallet_that_moved, async |database| {
    let (world, receiver) = told(database).await;
    let mut body = transfer("bob", 30, "one");
    body["variables"]["input"]["memo"] = json!("for lunch \u{1f35c}");
    let answer = world.post(Some(&token("alice")), body).await;
    let entry = answer.data("/transfer/entry").clone();
    deliver_all(&world).await;
    let events = receiver.received();
    assert_eq!(receiver.places().len(), 3, "{events:?}");

    let of = |member: &str, version: i64| {
        let place = (member.to_owned(), version);
        events.iter().find(|event| event.place() == place).unwrap_or_else(|| panic!("{place:?}")).json()
    };
    let (claimed, sent, got) = (of("alice", 1), of("alice", 2), of("bob", 1));
    assert_eq!((&claimed["type"], &claimed["data"]["kind"]), (&json!("bonus.claimed"), &json!("SIGNUP_BONUS")));
    assert_eq!(claimed["data"]["counterparty"], Value::Null, "the house has no name");
    let data = json!({
        "member": "alice",
        "walletId": claimed["data"]["walletId"],
        "version": "2",
        "currency": "PTS",
        "amount": "-30",
        "balanceAfter": "70",
        "entryId": entry["id"],
        "transactionId": entry["transactionId"],
        "kind": "TRANSFER",
        "memo": "for lunch \u{1f35c}",
        "counterparty": "bob",
    });
    assert_eq!((&sent["type"], &sent["data"]), (&json!("transfer.completed"), &data));
    assert_eq!(got["data"]["amount"], "30");
    assert_eq!(got["data"]["balanceAfter"], "30");
    assert_eq!(got["data"]["counterparty"], "alice");
    assert_eq!(got["data"]["transactionId"], sent["data"]["transactionId"]);
    let seen = world.ask("alice", "{ viewer { wallet { id entries { nodes { createdAt } } } } }", json!({})).await;
    assert_eq!(seen.data("/viewer/wallet/id"), &claimed["data"]["walletId"], "the API's own id");
    assert_eq!(seen.data("/viewer/wallet/entries/nodes/0/createdAt"), &sent["timestamp"]);
    world.end().await;
});

on_both!(refusals_replays_and_what_rolled_back_tell_nobody, async |database| {
    let (world, receiver) = told(database).await;
    deliver_all(&world).await;
    let alice = token("alice");
    for (to, amount, key) in [("bob", 500, "too much"), ("nobody", 1, "nobody"), ("alice", 1, "self")] {
        let key = key.replace(' ', "-");
        let refused = world.post(Some(&alice), transfer(to, amount, &key)).await;
        assert!(refused.user_error("transfer").is_some(), "{}", refused.body);
        world.post(Some(&alice), transfer(to, amount, &key)).await;
    }
    assert_eq!(world.ask("alice", crate::world::CLAIM_SIGNUP, json!({})).await.code(), None);
    assert_eq!(outbox(&world, "delivered_at IS NULL").await, 0);
    for _ in 0..3 {
        world.post(Some(&alice), transfer("bob", 10, "once")).await;
    }
    assert_eq!(outbox(&world, "delivered_at IS NULL").await, 2, "one transfer, two wallets");
    // The row that would make it true cannot be written: nothing of it is.
    let sql = world.sql().await;
    sql.execute_unprepared("DELETE FROM outbox WHERE delivered_at IS NULL").await.unwrap();
    let clash = "INSERT INTO outbox (id, endpoint, wallet_id, seq, event, payload, created_at, next_attempt_at) \
                 SELECT id, 'crm', id, version + 1, 'x', 'x', opened_at, opened_at FROM wallets";
    sql.execute_unprepared(clash).await.unwrap();
    let failed = world.post(Some(&alice), transfer("bob", 10, "twice")).await;
    assert_eq!(failed.code(), Some("INTERNAL_SERVER_ERROR"), "{}", failed.body);
    assert_eq!(world.balance("alice").await, 90, "an entry that cannot be told once is not made");
    sql.execute_unprepared("DELETE FROM outbox WHERE event = 'x'").await.unwrap();
    deliver_all(&world).await;
    assert_eq!(receiver.places(), [("alice".to_owned(), 1)]);
    world.end().await;
});

/// The connection is cut right before COMMIT reaches the server, as when a process dies there, or right after.
#[tokio::test(flavor = "multi_thread")]
async fn at_a_crash_the_event_goes_the_way_of_its_transaction() {
    for (deed, told_of) in [(Deed::CutBefore, 0), (Deed::CutAfter, 2)] {
        let (world, receiver) = told(Database::Postgres).await;
        deliver_all(&world).await;
        let proxy = Proxy::in_front_of(&world.url).await;
        let through = world.through(proxy.url()).await;
        assert_eq!(through.balance("alice").await, 100);
        proxy.at_next("COMMIT", deed);
        let answer = through.post(Some(&token("alice")), transfer("bob", 10, "cut")).await;
        assert_eq!(answer.code(), Some("OUTCOME_UNKNOWN"), "{deed:?}: {}", answer.body);
        through.stop().await;
        let moved = world.count("SELECT COUNT(*) FROM transactions WHERE kind = 'transfer'").await;
        assert_eq!(deliver_all(&world).await.delivered, told_of, "{deed:?}");
        assert_eq!((moved == 1, receiver.received().len()), (told_of > 0, 1 + told_of));
        world.end().await;
    }
}

/// Two wallets' events are committed in another order than they were written: there is no mark that the later one could
/// lie behind.
#[tokio::test(flavor = "multi_thread")]
async fn what_commits_late_is_not_skipped() {
    let (world, receiver) = told(Database::Postgres).await;
    deliver_all(&world).await;
    let held = world.sql().await;
    let late = held.begin().await.unwrap();
    let copy = "INSERT INTO outbox (id, endpoint, wallet_id, seq, event, payload, created_at, next_attempt_at) \
                SELECT gen_random_uuid(), endpoint, gen_random_uuid(), 1, event, payload, created_at, created_at \
                FROM outbox";
    late.execute_unprepared(copy).await.unwrap();
    world.post(Some(&token("alice")), transfer("bob", 10, "later")).await;
    assert_eq!(deliver_all(&world).await.delivered, 2, "what is committed does not wait");
    late.commit().await.unwrap();
    assert_eq!(deliver_all(&world).await.delivered, 1);
    assert_eq!(receiver.received().len(), 4);
    world.end().await;
}

on_both!(an_endpoint_hears_what_it_wants_and_each_of_them_by_an_id_of_its_own, async |database| {
    let (all, some) = (Receiver::taking().await, Receiver::taking().await);
    let world = World::with(database, Locks::Off, |settings| {
        tell(settings, "all", all.url());
        tell_of(settings, "some", some.url(), &["transfer.completed"], &[WHSEC]);
    })
    .await;
    world.fund("alice").await;
    world.introduce("bob").await;
    world.post(Some(&token("alice")), transfer("bob", 10, "one")).await;
    world.ask("bob", CLAIM_DAILY, json!({})).await;
    deliver_all(&world).await;
    assert_eq!((all.received().len(), some.received().len()), (4, 2));
    let types: Vec<_> = some.received().iter().map(|event| event.json()["type"].clone()).collect();
    assert_eq!(types, ["transfer.completed", "transfer.completed"]);
    let mut ids: Vec<_> = all.received().iter().chain(&some.received()).map(|event| event.id().to_owned()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 6, "an id names one event at one endpoint");
    world.end().await;
});

#[tokio::test(flavor = "multi_thread")]
async fn nobody_listens_and_nothing_is_written() {
    let world = World::new(Database::Postgres, Locks::Off).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    world.post(Some(&token("alice")), transfer("bob", 10, "one")).await;
    assert_eq!(outbox(&world, "1 = 1").await, 0);
    assert_eq!(statements(&world, "%outbox\"%").await, 0, "no statement so much as names it");
    assert_eq!(deliver(&world).await.delivered, 0);
    world.end().await;
}

/// Counts what PostgreSQL ran for one transfer between wallets that exist.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_costs_no_further_round_trip() {
    let receiver = Receiver::taking().await;
    let mut costs = Vec::new();
    for endpoints in [0, 2] {
        let world = World::with(Database::Postgres, Locks::Off, |settings| {
            for number in 0..endpoints {
                tell(settings, &format!("crm{number}"), receiver.url());
            }
        })
        .await;
        world.fund("alice").await;
        world.fund("bob").await;
        world.post(Some(&token("alice")), transfer("bob", 10, "warm")).await;
        let before = statements(&world, "%").await;
        let looking = statements(&world, "%").await - before;
        world.post(Some(&token("alice")), transfer("bob", 10, "measured")).await;
        costs.push(statements(&world, "%").await - before - 2 * looking);
        assert_eq!(outbox(&world, "1 = 1").await, endpoints * 6);
        wait_until("the books are told", async || deliver(&world).await.delivered == 0).await;
        world.end().await;
    }
    assert_eq!(costs[0], costs[1], "statements of a transfer without endpoints and with two");
}
