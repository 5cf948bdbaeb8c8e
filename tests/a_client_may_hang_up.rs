//! Promise: a client may hang up at any moment, a connection to the database may break at COMMIT, a server may be told to
//! stop: a transfer happens once or not at all, its key tells which, and nothing is left half done.
//!
//! Guards the task of its own in `api/work.rs`, what a failed COMMIT means in `ledger/tx.rs`, and the end of
//! `Server::run`.

use std::time::Duration;

use largesse::config::Settings;
use sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction, TransactionTrait};
use serde_json::json;

use crate::on_both;
use crate::world::by_hand::{Client, request};
use crate::world::proxy::{Deed, Proxy};
use crate::world::{Answer, Database, Locks, World, token, transfer, wait_until};

/// Few connections, so that one that was lost is missed; and long limits, so that no limit frees a session that hangs.
fn few_connections(settings: &mut Settings) {
    settings.database.pool_size = 2;
    settings.request.deadline_ms = 20_000;
    settings.database.statement_timeout_ms = 15_000;
    settings.database.lock_timeout_ms = 14_000;
}

// From at once to 20 ms after the request was sent, in steps of half a millisecond.
on_both!(a_client_that_hangs_up_after_any_delay, async |database| {
    let world = a_world(database, Locks::Off).await;
    let delays: Vec<_> = (0..=40).map(|step| Duration::from_micros(step * 500)).collect();
    for (number, delay) in delays.iter().enumerate() {
        let client = Client::asking(&world, "alice", &transfer("bob", 1, &format!("key{number}"))).await;
        // The moment of hanging up is what is varied; there is no condition to wait for.
        tokio::time::sleep(*delay).await;
        drop(client);
    }
    for number in 0..delays.len() {
        tells_the_truth(&world, 1, &format!("key{number}")).await;
    }
    moved_once_each(&world, delays.len()).await;
    nothing_hangs(&world).await;
    world.end().await;
});

// Anywhere in the request: what did not arrive whole was not done.
on_both!(a_client_that_hangs_up_in_the_middle_of_the_request, async |database| {
    let world = a_world(database, Locks::InProcess).await;
    let body = transfer("bob", 1, "one");
    let whole = request("alice", &body);
    let head = whole.windows(4).position(|part| part == b"\r\n\r\n").unwrap() + 4;
    for sent in [1, 10, head / 2, head - 1, head, head + 1, head + (whole.len() - head) / 2, whole.len() - 1] {
        let mut client = Client::of(&world).await;
        client.send(&whole[..sent]).await;
        client.hang_up_early().await;
    }
    assert_eq!(world.count("SELECT COUNT(*) FROM idempotency_keys").await, 0);
    let answer = world.post(Some(&token("alice")), body).await;
    assert_eq!(answer.data("/transfer/replayed"), false, "and no lock was spent on it: {}", answer.body);
    moved_once_each(&world, 1).await;
    nothing_hangs(&world).await;
    world.end().await;
});

/// More clients than the pool has connections hang up while their work waits for a row: it is done all the same.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_hang_up_while_their_work_waits() {
    const CLIENTS: usize = 12;
    let world = a_world(Database::Postgres, Locks::Off).await;
    let held = world.sql().await;
    let holder = holding_the_wallets(&held).await;
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        clients.push(Client::asking(&world, "alice", &transfer("bob", 1, &format!("key{number}"))).await);
    }
    wait_until("the pool is at work", async || world.waiting_for_locks().await == 2).await;
    for client in clients {
        client.hang_up().await;
    }
    assert_eq!(world.waiting_for_locks().await, 2, "the work goes on without its clients");
    holder.rollback().await.unwrap();
    let moved = "SELECT COUNT(*) FROM transactions WHERE kind = 'transfer'";
    wait_until("what was at work is done", async || world.count(moved).await >= 2).await;
    let mut done_before = 0;
    for number in 0..CLIENTS {
        let answer = tells_the_truth(&world, 1, &format!("key{number}")).await;
        done_before += i32::from(answer.data("/transfer/replayed") == true);
    }
    assert!(done_before >= 2, "{done_before}");
    moved_once_each(&world, CLIENTS).await;
    nothing_hangs(&world).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_is_cut_right_after_commit_was_sent() {
    let answer = cut_at_commit(Deed::CutAfter).await;
    assert_eq!(answer.data("/transfer/replayed"), true, "it was done: {}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_is_cut_right_before_commit_arrives() {
    let answer = cut_at_commit(Deed::CutBefore).await;
    assert_eq!(answer.data("/transfer/replayed"), false, "it was not done, until now: {}", answer.body);
}

/// The client learns that nobody knows, and nobody else of this member is let in. Then the same key tells the truth,
/// through another process at once, and through this one when the lock has ended.
async fn cut_at_commit(deed: Deed) -> Answer {
    let world = World::new(Database::Postgres, Locks::Redis).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let proxy = Proxy::in_front_of(&world.url).await;
    let behind = world.through(proxy.url()).await;
    proxy.at_next("COMMIT", deed);
    let unknown = behind.post(Some(&token("alice")), transfer("bob", 30, "one")).await;
    proxy.carried_out().await;
    assert_eq!(unknown.codes(), ["OUTCOME_UNKNOWN"], "{}", unknown.body);
    assert!(unknown.data("/transfer").is_null());
    assert!(unknown.body["errors"][0]["extensions"]["retryAfterMs"].as_i64().unwrap() > 0);
    for server in [&world, &behind] {
        let refused = server.post(Some(&token("alice")), transfer("bob", 30, "one")).await;
        assert_eq!(refused.codes(), ["COOLDOWN_ACTIVE"], "the lock is kept: {}", refused.body);
    }
    let unguarded = world.another(|settings| settings.cooldown.enabled = false).await;
    let truth = unguarded.post(Some(&token("alice")), transfer("bob", 30, "one")).await;
    assert_eq!((truth.codes(), truth.user_error("transfer")), (vec![], None), "{}", truth.body);
    unguarded.stop().await;
    wait_until("the lock has ended", async || {
        let again = behind.post(Some(&token("alice")), transfer("bob", 30, "one")).await;
        assert!(again.code().is_none_or(|code| code == "COOLDOWN_ACTIVE"), "{}", again.body);
        again.data("/transfer/replayed") == true && again.data("/transfer/entry") == truth.data("/transfer/entry")
    })
    .await;
    moved_once_each(&world, 1).await;
    assert_eq!((world.balance("alice").await, world.balance("bob").await), (70, 30));
    nothing_hangs(&world).await;
    behind.stop().await;
    world.end().await;
    truth
}

/// A claim has no key: its row tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_cut_at_commit_is_paid_once() {
    for (deed, again_is) in [(Deed::CutAfter, Some("ALREADY_CLAIMED")), (Deed::CutBefore, None)] {
        let world = World::new(Database::Postgres, Locks::Off).await;
        let proxy = Proxy::in_front_of(&world.url).await;
        let behind = world.through(proxy.url()).await;
        proxy.at_next("COMMIT", deed);
        let unknown = behind.ask("alice", crate::world::CLAIM_DAILY, json!({})).await;
        assert_eq!(unknown.codes(), ["OUTCOME_UNKNOWN"], "{}", unknown.body);
        let again = behind.ask("alice", crate::world::CLAIM_DAILY, json!({})).await;
        assert_eq!((again.code(), again.user_error("claimDailyBonus")), (None, again_is), "{}", again.body);
        assert_eq!(world.balance("alice").await, 10);
        behind.stop().await;
        world.end().await;
    }
}

/// A connection that is lost before COMMIT is a failure that certainly rolled back, and the next attempt gets another.
#[tokio::test(flavor = "multi_thread")]
async fn the_connection_is_cut_in_the_middle_of_the_work() {
    for statement in ["INSERT INTO \"idempotency_keys\"", "FROM \"wallets\"", "UPDATE \"wallets\""] {
        for deed in [Deed::CutBefore, Deed::CutAfter] {
            let world = a_world(Database::Postgres, Locks::InProcess).await;
            let proxy = Proxy::in_front_of(&world.url).await;
            let behind = world.through(proxy.url()).await;
            proxy.at_next(statement, deed);
            let failed = behind.post(Some(&token("alice")), transfer("bob", 30, "one")).await;
            proxy.carried_out().await;
            assert_eq!(failed.codes(), ["UNAVAILABLE"], "{statement}, {deed:?}: {}", failed.body);
            let again = behind.post(Some(&token("alice")), transfer("bob", 30, "one")).await;
            assert_eq!(again.data("/transfer/replayed"), false, "{statement}, {deed:?}: {}", again.body);
            moved_once_each(&world, 1).await;
            nothing_hangs(&world).await;
            behind.stop().await;
            world.end().await;
        }
    }
}

/// The server is told to stop while one client waits for its answer and another has hung up: both transfers are finished.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_finishes_money_work_under_way() {
    let world = a_world(Database::Postgres, Locks::Off).await;
    let watching = world.another(|_| {}).await;
    let held = watching.sql().await;
    let holder = holding_the_wallets(&held).await;
    let gone = Client::asking(&world, "alice", &transfer("bob", 1, "gone")).await;
    wait_until("the first is at work", async || watching.waiting_for_locks().await == 1).await;
    gone.hang_up().await;
    let asking = world.begin_post(&token("alice"), &transfer("bob", 2, "there"));
    wait_until("both are at work", async || watching.waiting_for_locks().await == 2).await;
    let address = world.address().to_owned();
    let ending = tokio::spawn(world.end());
    wait_until("the server says that it stops", async || {
        reqwest::get(format!("{address}/readyz")).await.is_ok_and(|answer| answer.status() == 503)
    })
    .await;
    wait_until("it takes no new connection", async || reqwest::get(format!("{address}/livez")).await.is_err()).await;
    assert!(!ending.is_finished(), "it waits for the work");
    assert_eq!(watching.waiting_for_locks().await, 2, "which goes on");
    holder.rollback().await.unwrap();
    let answer = asking.await.unwrap();
    assert_eq!((answer.code(), answer.data("/transfer/replayed")), (None, &json!(false)), "{}", answer.body);
    ending.await.expect("the server ends well, and the books balance");
    for (amount, key) in [(1, "gone"), (2, "there")] {
        let answer = tells_the_truth(&watching, amount, key).await;
        assert_eq!(answer.data("/transfer/replayed"), true, "{key}: {}", answer.body);
    }
    assert_eq!(watching.balance("bob").await, 3);
    watching.end().await;
}

/// Nobody is left to ask, and the work is still there when the last connection has ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_waits_for_work_whose_client_is_gone() {
    let world = a_world(Database::Postgres, Locks::Off).await;
    let watching = world.another(|_| {}).await;
    let held = watching.sql().await;
    let holder = holding_the_wallets(&held).await;
    let gone = Client::asking(&world, "alice", &transfer("bob", 1, "gone")).await;
    wait_until("it is at work", async || watching.waiting_for_locks().await == 1).await;
    gone.hang_up().await;
    let address = world.address().to_owned();
    let ending = tokio::spawn(world.end());
    wait_until("it takes no new connection", async || reqwest::get(format!("{address}/livez")).await.is_err()).await;
    assert!(!ending.is_finished(), "it waits for the work");
    holder.rollback().await.unwrap();
    ending.await.expect("the server ends well, and the books balance");
    let answer = tells_the_truth(&watching, 1, "gone").await;
    assert_eq!(answer.data("/transfer/replayed"), true, "{}", answer.body);
    watching.end().await;
}

/// Alice has 100 points, bob is known, and the pool is small.
async fn a_world(database: Database, locks: Locks) -> World {
    let guarded = !matches!(locks, Locks::Off);
    let world = World::with(database, locks, |settings| {
        few_connections(settings);
        if guarded {
            // The window must cover the long deadline.
            let transfer = settings.cooldown.actions.entry("transfer".to_owned()).or_default();
            transfer.window_ms = Some(40_000);
            settings.cooldown.actions.entry("claimDailyBonus".to_owned()).or_default().window_ms = Some(40_000);
            settings.cooldown.actions.entry("claimSignupBonus".to_owned()).or_default().window_ms = Some(40_000);
        }
    })
    .await;
    world.fund("alice").await;
    world.introduce("bob").await;
    world
}

/// The same key again: there is an answer now, and it is that of one transfer.
async fn tells_the_truth(world: &World, amount: i64, key: &str) -> Answer {
    let answer = world.post(Some(&token("alice")), transfer("bob", amount, key)).await;
    assert_eq!((answer.codes(), answer.user_error("transfer")), (vec![], None), "{key}: {}", answer.body);
    assert_eq!(answer.data("/transfer/entry/amount/amount"), &json!((-amount).to_string()));
    answer
}

/// Each key moved its value once.
async fn moved_once_each(world: &World, keys: usize) {
    let keys = i64::try_from(keys).unwrap();
    assert_eq!(world.count("SELECT COUNT(*) FROM transactions WHERE kind = 'transfer'").await, keys);
    assert_eq!(world.count("SELECT COUNT(DISTINCT transaction_id) FROM idempotency_keys").await, keys);
}

/// No session stays inside a transaction, and every connection of the pool is of use.
async fn nothing_hangs(world: &World) {
    if world.database == Database::Postgres {
        let name = world.url.rsplit('/').next().unwrap();
        let inside = format!(
            "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = '{name}' AND state LIKE 'idle in transaction%'"
        );
        wait_until("no session is idle in a transaction", async || world.count(&inside).await == 0).await;
    }
    let reads = world
        .storm(20, |_| ("alice".to_owned(), json!({ "query": "{ viewer { wallet { balance { amount } } } }" })))
        .await;
    assert!(reads.iter().all(|answer| answer.data("/viewer/wallet/balance/amount").is_string()), "{reads:?}");
}

async fn holding_the_wallets(sql: &DatabaseConnection) -> DatabaseTransaction {
    let transaction = sql.begin().await.unwrap();
    transaction.execute_unprepared("SELECT 1 FROM wallets FOR UPDATE").await.unwrap();
    transaction
}
