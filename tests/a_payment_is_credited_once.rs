//! Promise: what a payment provider tells is done once, whatever it tells how often, in which order and at the same time: a
//! payment that succeeded and was not reversed is in its member's wallet once, and any other is not.
//!
//! Guards `operations/fund_wallet.rs` (the state table and the one transaction), `ledger/payment.rs` (the insert that a
//! constraint decides, the row's lock) and the task of its own in `api/webhook.rs`.

use std::collections::HashMap;
use std::time::Duration;

use sea_orm::{ConnectionTrait, TransactionTrait};
use serde_json::json;

use crate::on_both;
use crate::world::by_hand::Client;
use crate::world::provider::{ACME, Message, WHSEC, fund_by, notice, tell_at_once};
use crate::world::proxy::{Deed, Proxy};
use crate::world::{Database, Locks, TRANSFER, World, log, patient, transfer, unique, wait_until};

/// As often as a provider that has lost its mind.
const STORM: usize = 50;

/// How often two notices race for one payment.
const ROUNDS: usize = 40;

async fn a_world(database: Database) -> World {
    World::with(database, Locks::Off, |settings| {
        patient(settings);
        fund_by(settings, ACME, &[WHSEC]);
    })
    .await
}

async fn rows(world: &World) -> HashMap<&'static str, i64> {
    let mut rows = HashMap::new();
    for table in ["members", "wallets", "transactions", "entries", "payments", "payment_events", "payment_conflicts"] {
        rows.insert(table, world.count(&format!("SELECT COUNT(*) FROM {table}")).await);
    }
    rows
}

// The payment overtakes the member's first visit, and the member finds it there.
on_both!(a_payment_for_somebody_who_never_came, async |database| {
    let world = a_world(database).await;
    assert_eq!(world.tell("e1", &notice("p1", "pending", "alice", 500)).await, "noted");
    assert_eq!(world.count("SELECT COUNT(*) FROM members").await, 0, "nothing came in yet");
    assert_eq!(world.tell("e2", &notice("p1", "succeeded", "alice", 500)).await, "credited");
    let entry = "{ viewer { wallet { balance { amount } entries { nodes { kind amount { amount } memo counterparty { \
                 memberId } } } } } }";
    let answer = world.ask("alice", entry, json!({})).await;
    let wallet = answer.data("/viewer/wallet");
    assert_eq!(wallet["balance"]["amount"], "500", "{}", answer.body);
    let entry = json!({ "kind": "FUNDING", "amount": { "amount": "500" }, "memo": null, "counterparty": null });
    assert_eq!(wallet["entries"]["nodes"], json!([entry]));
    let paid = world.ask("alice", TRANSFER, transfer("bob", 1, "k")["variables"].clone()).await;
    assert_eq!(paid.user_error("transfer"), Some("NOT_FOUND"), "and nobody else came to be: {}", paid.body);
    world.end().await;
});

// Two deposits at once are both right: no cooldown stands in front of them.
on_both!(two_payments_at_once_are_both_credited, async |database| {
    let world = World::with(database, Locks::InProcess, |settings| fund_by(settings, ACME, &[WHSEC])).await;
    for round in 0..5 {
        let told = |number: i64| {
            let name = format!("{round}-{number}");
            (&world, name.clone(), notice(&name, "succeeded", "alice", 10 + number))
        };
        assert_eq!(tell_at_once(vec![told(0), told(1)]).await, ["credited", "credited"]);
    }
    assert_eq!(world.balance("alice").await, 5 * 21);
    world.end().await;
});

on_both!(the_same_message_fifty_times_at_once, async |database| {
    let world = a_world(database).await;
    let body = notice("p1", "succeeded", "alice", 500);
    let became = tell_at_once((0..STORM).map(|_| (&world, "e1".to_owned(), body.clone())).collect()).await;
    assert_eq!(became.iter().filter(|one| *one == "credited").count(), 1, "{became:?}");
    assert_eq!(became.iter().filter(|one| *one == "repeated").count(), STORM - 1, "{became:?}");
    assert_eq!(world.tell("e1", &body).await, "repeated");
    assert_eq!(world.balance("alice").await, 500);
    assert_eq!(rows(&world).await["payment_events"], 1);
    world.end().await;
});

// The provider has given the same news two ids, and two processes hear of it.
on_both!(the_same_news_under_other_ids_in_two_processes, async |database| {
    let world = a_world(database).await;
    let other = world.another(|_| {}).await;
    for round in 0..ROUNDS / 4 {
        let body = notice(&format!("p{round}"), "succeeded", "alice", 7);
        let servers = [&world, &other];
        let told = (0..8).map(|number| (servers[number % 2], format!("e{round}-{number}"), body.clone()));
        let became = tell_at_once(told.collect()).await;
        assert_eq!(became.iter().filter(|one| *one == "credited").count(), 1, "{became:?}");
        assert_eq!(became.iter().filter(|one| *one == "repeated").count(), 7, "{became:?}");
    }
    assert_eq!(world.balance("alice").await, 7 * i64::try_from(ROUNDS / 4).unwrap());
    other.stop().await;
    world.end().await;
});

// Each order of all four notices, and of the three without the reversal.
on_both!(what_was_told_decides_and_not_the_order, async |database| {
    let world = a_world(database).await;
    let mut held = 0;
    for order in orders(&["pending", "failed", "succeeded"]) {
        tell_in_order(&world, &order).await;
        held += 10;
        assert_eq!(world.balance("alice").await, held, "{order:?}");
    }
    for order in orders(&["pending", "failed", "succeeded", "reversed"]) {
        tell_in_order(&world, &order).await;
        assert_eq!(world.balance("alice").await, held, "{order:?}");
    }
    assert_eq!(world.count("SELECT COUNT(*) FROM payments WHERE state = 'reversed'").await, 24);
    world.end().await;
});

fn orders<'a>(words: &[&'a str]) -> Vec<Vec<&'a str>> {
    if words.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (place, first) in words.iter().enumerate() {
        let rest = [&words[..place], &words[place + 1..]].concat();
        all.extend(orders(&rest).into_iter().map(|rest| [vec![*first], rest].concat()));
    }
    all
}

async fn tell_in_order(world: &World, order: &[&str]) {
    let reference = format!("p{}", unique());
    let mut told: Vec<&str> = Vec::new();
    for state in order {
        let expected = match *state {
            "succeeded" if !told.contains(&"reversed") => "credited",
            "reversed" if told.contains(&"succeeded") => "taken_back",
            _ => "noted",
        };
        let body = notice(&reference, state, "alice", 10);
        assert_eq!(world.tell(&format!("{reference}-{state}"), &body).await, expected, "{state} of {order:?}");
        told.push(state);
    }
}

// The payment is there already, so nobody waits at the insert: the row's lock alone puts them in order.
on_both!(success_and_reversal_at_once_net_to_zero, async |database| {
    let world = a_world(database).await;
    let mut seen = HashMap::new();
    for round in 0..ROUNDS {
        let reference = format!("p{round}");
        assert_eq!(world.tell(&format!("a{round}"), &notice(&reference, "pending", "alice", 10)).await, "noted");
        let told = |state: &str| (&world, format!("{state}{round}"), notice(&reference, state, "alice", 10));
        // Whoever comes to the barrier last is the first to leave it.
        let rivals = if round % 2 == 0 { ["succeeded", "reversed"] } else { ["reversed", "succeeded"] };
        let became = tell_at_once(rivals.map(told).into()).await;
        assert!([["credited", "taken_back"], ["noted", "noted"]].iter().any(|ends| became == ends), "{became:?}");
        *seen.entry(became).or_insert(0) += 1;
        assert_eq!(world.balance("alice").await, 0, "round {round} left money that nobody paid: {seen:?}");
    }
    world.end().await;
});

/// The same race, held open: both wait for the payment's row and neither has looked at it yet.
#[tokio::test(flavor = "multi_thread")]
async fn rivals_wait_for_the_payments_row() {
    let world = a_world(Database::Postgres).await;
    assert_eq!(world.tell("e1", &notice("p1", "pending", "alice", 10)).await, "noted");
    let held = world.sql().await;
    let holder = held.begin().await.unwrap();
    holder.execute_unprepared("SELECT 1 FROM payments FOR UPDATE").await.unwrap();
    let told = |state: &str| (&world, state.to_owned(), notice("p1", state, "alice", 10));
    let rivals = tell_at_once(vec![told("succeeded"), told("reversed")]);
    let release = async {
        let waiting = async || world.waiting_in("%\"payments\"%FOR NO KEY UPDATE%").await == 2;
        wait_until("both wait for the payment", waiting).await;
        assert_eq!(rows(&world).await["payment_events"], 1, "and have written nothing");
        holder.rollback().await.unwrap();
    };
    let (became, ()) = tokio::join!(rivals, release);
    assert!([["credited", "taken_back"], ["noted", "noted"]].iter().any(|ends| became == ends), "{became:?}");
    assert_eq!(world.balance("alice").await, 0);
    world.end().await;
}

on_both!(what_contradicts_a_payment_is_kept_apart, async |database| {
    let world = a_world(database).await;
    assert_eq!(world.tell("e1", &notice("p1", "pending", "alice", 500)).await, "noted");
    let mut euros = notice("p1", "succeeded", "alice", 500);
    euros["currency"] = json!("EUR");
    let contradictions = [notice("p1", "succeeded", "alice", 501), notice("p1", "succeeded", "bob", 500)];
    for (number, body) in contradictions.iter().enumerate() {
        let message = Message::new(&format!("c{number}"), body.to_string());
        for _ in 0..2 {
            let answer = world.deliver(message.clone()).await;
            assert_eq!((answer.status, &answer.body), (200, &json!({ "status": "conflict" })), "the provider stops");
            let told = log::of_request(answer.headers["x-request-id"].to_str().unwrap());
            assert_eq!((told.len(), told[0].level), (1, tracing::Level::WARN), "{told:?}");
        }
    }
    let rows_before = rows(&world).await;
    assert_eq!((rows_before["payment_conflicts"], rows_before["payment_events"]), (2, 1), "{rows_before:?}");
    assert_eq!((rows_before["members"], rows_before["transactions"]), (0, 0), "{rows_before:?}");
    // The contradiction has taken no place of the truth's.
    assert_eq!(world.tell("e2", &notice("p1", "succeeded", "alice", 500)).await, "credited");
    // What was done is not undone by it either.
    assert_eq!(world.tell("e3", &notice("p1", "reversed", "alice", 501)).await, "conflict");
    assert_eq!(
        world.tell("e2", &notice("p1", "succeeded", "alice", 501)).await,
        "conflict",
        "the same id, told otherwise"
    );
    assert_eq!(world.balance("alice").await, 500);
    world.end().await;
});

on_both!(another_currency_contradicts_a_payment, async |database| {
    let world = World::with(database, Locks::Off, |settings| {
        fund_by(settings, ACME, &[WHSEC]);
        let mut gems = settings.currencies[0].clone();
        gems.code = largesse::amount::CurrencyCode::parse("GEMS").unwrap();
        settings.currencies.push(gems);
    })
    .await;
    let mut gems = notice("p1", "succeeded", "alice", 500);
    gems["currency"] = json!("GEMS");
    assert_eq!(world.tell("e1", &notice("p1", "pending", "alice", 500)).await, "noted");
    assert_eq!(world.tell("e2", &gems).await, "conflict");
    assert_eq!(rows(&world).await["transactions"], 0);
    world.end().await;
});

// One id for two payments: the second is no repeat of the first, and is not taken for one.
on_both!(an_id_that_named_another_payment_is_a_conflict, async |database| {
    let world = a_world(database).await;
    assert_eq!(world.tell("e1", &notice("p1", "succeeded", "alice", 500)).await, "credited");
    assert_eq!(world.tell("e1", &notice("p2", "succeeded", "alice", 300)).await, "conflict");
    let rows_now = rows(&world).await;
    assert_eq!((rows_now["payments"], rows_now["payment_conflicts"]), (1, 1), "{rows_now:?}");
    assert_eq!(world.tell("e2", &notice("p2", "succeeded", "alice", 300)).await, "credited");
    assert_eq!(world.balance("alice").await, 800);
    world.end().await;
});

// References and ids belong to their provider.
on_both!(two_providers_may_use_the_same_names, async |database| {
    let world = World::with(database, Locks::Off, |settings| {
        fund_by(settings, ACME, &[WHSEC]);
        fund_by(settings, "other", &[WHSEC]);
    })
    .await;
    let body = notice("p1", "succeeded", "alice", 500);
    assert_eq!(world.tell("e1", &body).await, "credited");
    let message = Message { provider: "other".to_owned(), ..Message::new("e1", body.to_string()) };
    assert_eq!(world.deliver(message).await.body["status"], "credited");
    assert_eq!(world.balance("alice").await, 1000);
    world.end().await;
});

// The entries cannot be written: payment, event, member and wallet are not there either, and the next attempt is paid.
on_both!(a_credit_that_fails_leaves_no_trace, async |database| {
    let world = a_world(database).await;
    let body = notice("p1", "succeeded", "alice", 500);
    let sql = world.sql().await;
    sql.execute_unprepared("ALTER TABLE entries RENAME TO hidden").await.unwrap();
    let answer = world.deliver(Message::new("e1", body.to_string())).await;
    assert_eq!((answer.status, &answer.body["error"]["code"]), (500, &json!("INTERNAL_SERVER_ERROR")));
    assert_eq!(answer.body["error"]["message"], "Something went wrong on our side.", "and no word of the inside");
    let told = log::of_request(answer.headers["x-request-id"].to_str().unwrap());
    assert!(
        told.iter().any(|event| event.level == tracing::Level::ERROR && event.field("cause").len() > 5),
        "{told:?}"
    );
    sql.execute_unprepared("ALTER TABLE hidden RENAME TO entries").await.unwrap();
    sql.close().await.unwrap();
    assert!(rows(&world).await.values().all(|rows| *rows == 0), "{:?}", rows(&world).await);
    assert_eq!(world.tell("e1", &body).await, "credited");
    assert_eq!(world.balance("alice").await, 500);
    world.end().await;
});

on_both!(a_wallet_that_is_full_takes_no_payment_and_leaves_no_trace, async |database| {
    let world = a_world(database).await;
    assert_eq!(world.tell("e1", &notice("p1", "succeeded", "alice", i64::MAX)).await, "credited");
    assert_eq!(world.tell("e2", &notice("p2", "succeeded", "alice", 1)).await, "422 LIMIT_EXCEEDED");
    assert_eq!(rows(&world).await["payments"], 1);
    assert_eq!(world.balance("alice").await, i64::MAX);
    world.end().await;
});

/// Nobody knows whether it was committed. The provider gets no 2xx, tells again, and is paid once.
#[tokio::test(flavor = "multi_thread")]
async fn the_connection_is_cut_at_commit() {
    for (deed, again) in [(Deed::CutAfter, "repeated"), (Deed::CutBefore, "credited")] {
        let world = a_world(Database::Postgres).await;
        let proxy = Proxy::in_front_of(&world.url).await;
        let behind = world.through(proxy.url()).await;
        let body = notice("p1", "succeeded", "alice", 500);
        proxy.at_next("COMMIT", deed);
        let answer = behind.deliver(Message::new("e1", body.to_string())).await;
        proxy.carried_out().await;
        assert_eq!((answer.status, &answer.body["error"]["code"]), (503, &json!("OUTCOME_UNKNOWN")), "{deed:?}");
        assert!(answer.headers.contains_key("retry-after"));
        assert_eq!(behind.tell("e1", &body).await, again, "{deed:?}");
        assert_eq!(world.balance("alice").await, 500);
        behind.stop().await;
        world.end().await;
    }
}

/// The provider gives up waiting, and the work goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_hangs_up_stops_nothing() {
    let world = a_world(Database::Postgres).await;
    world.fund("alice").await;
    let held = world.sql().await;
    let holder = held.begin().await.unwrap();
    holder.execute_unprepared("SELECT 1 FROM wallets FOR UPDATE").await.unwrap();
    let mut client = Client::of(&world).await;
    client.send(&Message::new("e1", notice("p1", "succeeded", "alice", 500).to_string()).by_hand()).await;
    wait_until("the credit waits", async || world.waiting_for_locks().await == 1).await;
    client.hang_up().await;
    assert_eq!(world.waiting_for_locks().await, 1, "it still does");
    holder.rollback().await.unwrap();
    let credited = "SELECT COUNT(*) FROM payments WHERE state = 'succeeded'";
    wait_until("it is done", async || world.count(credited).await == 1).await;
    assert_eq!(world.balance("alice").await, 600);
    world.end().await;
}

/// Nobody waits for ever: not for a row that another holds either.
#[tokio::test(flavor = "multi_thread")]
async fn a_payment_that_stays_locked_is_told_again() {
    let world = World::with(Database::Postgres, Locks::Off, |settings| fund_by(settings, ACME, &[WHSEC])).await;
    assert_eq!(world.tell("e1", &notice("p1", "pending", "alice", 10)).await, "noted");
    let held = world.sql().await;
    let holder = held.begin().await.unwrap();
    holder.execute_unprepared("SELECT 1 FROM payments FOR UPDATE").await.unwrap();
    let asked = std::time::Instant::now();
    assert_eq!(world.tell("e2", &notice("p1", "succeeded", "alice", 10)).await, "503 UNAVAILABLE");
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    holder.rollback().await.unwrap();
    assert_eq!(world.tell("e2", &notice("p1", "succeeded", "alice", 10)).await, "credited");
    assert_eq!(world.balance("alice").await, 10);
    world.end().await;
}

/// No more money work waits than may wait, whoever it comes from; the rest is told at once to come again.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_payments_is_told_to_come_again() {
    let world = World::with(Database::Postgres, Locks::Off, |settings| {
        patient(settings);
        fund_by(settings, ACME, &[WHSEC]);
        (settings.database.pool_size, settings.request.most_waiting) = (1, 0);
    })
    .await;
    world.fund("alice").await;
    let held = world.sql().await;
    let holder = held.begin().await.unwrap();
    holder.execute_unprepared("SELECT 1 FROM wallets FOR UPDATE").await.unwrap();
    let first = notice("p1", "succeeded", "alice", 10);
    let flood = async {
        wait_until("the first one is at work", async || world.waiting_for_locks().await == 1).await;
        let asked = std::time::Instant::now();
        let answer = world.deliver(Message::new("e2", notice("p2", "succeeded", "alice", 20).to_string())).await;
        assert!(asked.elapsed() < Duration::from_secs(5), "at once: {:?}", asked.elapsed());
        assert_eq!((answer.status, &answer.body["error"]["code"]), (503, &json!("UNAVAILABLE")));
        assert_eq!(answer.headers["retry-after"], "1");
        holder.rollback().await.unwrap();
    };
    let (became, ()) = tokio::join!(world.tell("e1", &first), flood);
    assert_eq!(became, "credited");
    assert_eq!(world.tell("e2", &notice("p2", "succeeded", "alice", 20)).await, "credited");
    assert_eq!(world.balance("alice").await, 130);
    world.end().await;
}

// A member comes for the first time while the first payment is on its way.
on_both!(a_first_visit_and_a_first_payment_at_once, async |database| {
    let world = a_world(database).await;
    for round in 0..ROUNDS / 2 {
        let member = format!("member{round}");
        let body = notice(&format!("p{round}"), "succeeded", &member, 10);
        let (id, document) = (format!("e{round}"), crate::world::CLAIM_SIGNUP);
        let (became, claimed) = tokio::join!(world.tell(&id, &body), world.ask(&member, document, json!({})));
        assert_eq!((became.as_str(), claimed.user_error("claimSignupBonus")), ("credited", None), "{}", claimed.body);
        assert_eq!(world.balance(&member).await, 110);
    }
    world.end().await;
});
