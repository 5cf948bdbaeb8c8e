//! Promise: one idempotency key, one answer, for ever: value moves once, and every repeat gets the stored answer.
//!
//! Guards layer 2: the key's insert, its fingerprint, its scope, and the stored answer.

use serde_json::{Value, json};

use crate::on_both;
use crate::world::redis_server::RedisServer;
use crate::world::{Database, Locks, TRANSFER, World, patient, transfer};

const RIVALS: usize = 100;

on_both!(a_hundred_transfers_with_one_key_without_the_cooldown, async |database| {
    let world = World::with(database, Locks::Off, patient).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let answers = world.storm(RIVALS, |_| ("alice".to_owned(), transfer("bob", 30, "one"))).await;
    let first = answers.iter().find(|answer| answer.data("/transfer/replayed") == false).expect("one is no replay");
    for answer in &answers {
        assert_eq!(answer.codes(), Vec::<&str>::new(), "{}", answer.body);
        assert_eq!(
            answer.data("/transfer/entry"),
            first.data("/transfer/entry"),
            "every answer carries the same entry"
        );
    }
    let replayed = answers.iter().filter(|answer| answer.data("/transfer/replayed") == true).count();
    assert_eq!(replayed, RIVALS - 1);
    assert_eq!((world.balance("alice").await, world.balance("bob").await), (70, 30));
    world.end().await;
});

on_both!(a_hundred_transfers_with_one_key_with_the_cooldown, async |database| {
    let world = World::new(database, Locks::InProcess).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let answers = world.storm(RIVALS, |_| ("alice".to_owned(), transfer("bob", 30, "one"))).await;
    let (done, others): (Vec<_>, Vec<_>) =
        answers.iter().partition(|answer| answer.data("/transfer/replayed") == false);
    assert_eq!(done.len(), 1);
    for other in others {
        // Who comes after the first has ended is told what it did.
        let told = other.data("/transfer/replayed") == true
            && other.data("/transfer/entry") == done[0].data("/transfer/entry");
        assert!(told || other.codes() == ["COOLDOWN_ACTIVE"], "{}", other.body);
    }
    assert_eq!((world.balance("alice").await, world.balance("bob").await), (70, 30));
    world.end().await;
});

on_both!(the_same_key_with_other_arguments_is_refused, async |database| {
    let world = World::new(database, Locks::Off).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    world.introduce("carol").await;
    world.post(Some(&crate::world::token("alice")), transfer("bob", 30, "one")).await;
    let with_memo = json!({ "query": TRANSFER, "variables": { "input": {
        "to": "bob", "amount": "30", "currency": "PTS", "idempotencyKey": "one", "memo": "" } } });
    for other in [transfer("bob", 31, "one"), transfer("carol", 30, "one"), with_memo] {
        let answer = world.post(Some(&crate::world::token("alice")), other).await;
        assert_eq!(answer.user_error("transfer"), Some("IDEMPOTENCY_KEY_PARAMETER_MISMATCH"), "{}", answer.body);
        assert_eq!(answer.data("/transfer/userErrors/0/field"), &json!(["idempotencyKey"]));
        assert!(answer.data("/transfer/entry").is_null());
    }
    assert_eq!((world.balance("alice").await, world.balance("bob").await, world.balance("carol").await), (70, 30, 0));
    world.end().await;
});

on_both!(the_same_key_of_another_member_is_another_key, async |database| {
    let world = World::new(database, Locks::Off).await;
    for member in ["alice", "bob"] {
        world.fund(member).await;
    }
    let first = world.ask("alice", TRANSFER, input("bob", 10, "shared")).await;
    let second = world.ask("bob", TRANSFER, input("alice", 25, "shared")).await;
    assert_eq!((first.data("/transfer/replayed"), second.data("/transfer/replayed")), (&json!(false), &json!(false)));
    assert_eq!((world.balance("alice").await, world.balance("bob").await), (115, 85));
    world.end().await;
});

on_both!(a_refusal_is_an_answer_too, async |database| {
    let world = World::new(database, Locks::Off).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let first = world.ask("bob", TRANSFER, input("alice", 5, "early")).await;
    assert_eq!(first.user_error("transfer"), Some("INSUFFICIENT_FUNDS"));
    assert_eq!(first.data("/transfer/userErrors/0/available/amount"), "0");
    world.fund("bob").await;
    let again = world.ask("bob", TRANSFER, input("alice", 5, "early")).await;
    assert_eq!(again.data("/transfer/replayed"), true);
    assert_eq!(again.data("/transfer/userErrors"), first.data("/transfer/userErrors"), "as it was");
    assert_eq!(again.data("/transfer/wallet/balance/amount"), "100", "read now");
    assert_eq!((world.balance("alice").await, world.balance("bob").await), (100, 100));
    assert_eq!(world.count("SELECT COUNT(*) FROM idempotency_keys WHERE expires_at IS NOT NULL").await, 1);
    world.end().await;
});

/// The window has passed, server and Redis were started anew, and the retry asks for other fields.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_after_a_restart_of_everything_gets_the_stored_answer() {
    let mut redis = RedisServer::start();
    let world = World::new(Database::Postgres, Locks::RedisAt(redis.url())).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let first = world.ask("alice", TRANSFER, input("bob", 30, "one")).await;
    assert_eq!(first.data("/transfer/replayed"), false);
    redis.stop();
    redis.start_again();
    let restarted = world.another(|_| {}).await;
    world.stop().await;
    let other = "mutation($input: TransferInput!) { transfer(input: $input) { replayed \
        entry { id createdAt kind counterparty { memberId } } query { viewer { wallet { version } } } } }";
    let again = restarted.ask("alice", other, input("bob", 30, "one")).await;
    assert_eq!(again.data("/transfer/replayed"), true, "{}", again.body);
    assert_eq!(again.data("/transfer/entry/id"), first.data("/transfer/entry/id"));
    assert_eq!(again.data("/transfer/entry/counterparty/memberId"), "bob");
    assert_eq!(again.data("/transfer/query/viewer/wallet/version"), "2");
    assert_eq!(restarted.balance("alice").await, 70);
    restarted.end().await;
}

/// A rival whose transaction is open holds the key. Who waits longer than the lock time-out is told so, and the lock of
/// layer 1 is given back.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_at_work_elsewhere_is_a_concurrent_request() {
    let world = World::new(Database::Postgres, Locks::InProcess).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let held = world.sql().await;
    let holding = sea_orm::TransactionTrait::begin(&held).await.unwrap();
    let insert = "INSERT INTO idempotency_keys (member_id, operation, key, fingerprint, refusal, created_at) \
        SELECT id, 'transfer', 'one', '\\x00', '{}', now() FROM members WHERE name = 'alice'";
    sea_orm::ConnectionTrait::execute_unprepared(&holding, insert).await.unwrap();
    let answer = world.ask("alice", TRANSFER, input("bob", 30, "one")).await;
    assert_eq!(answer.codes(), ["IDEMPOTENCY_CONCURRENT_REQUEST"]);
    assert!(answer.body["errors"][0]["extensions"]["retryAfterMs"].as_i64().unwrap() > 0);
    holding.rollback().await.unwrap();
    let again = world.ask("alice", TRANSFER, input("bob", 30, "one")).await;
    assert_eq!(
        again.data("/transfer/replayed"),
        false,
        "the rival rolled back, so nothing was done before: {}",
        again.body
    );
    assert_eq!(world.balance("bob").await, 30);
    world.end().await;
}

fn input(to: &str, amount: i64, key: &str) -> Value {
    transfer(to, amount, key)["variables"].clone()
}
