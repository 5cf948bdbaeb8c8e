//! Promise: payments and books agree: what a provider paid in is in the books once, what it took back is taken back whole,
//! from the wallet or as a debt, together with what an operator took back; the database refuses anything else, and the audit
//! notices it.
//!
//! Guards `take_back` in `operations/fund_wallet.rs`, the constraints of `m20261129_000004_payments` and the audit's rules of
//! payments.

use largesse::ledger::audit::audit;
use sea_orm::ConnectionTrait;
use secrecy::SecretString;
use serde_json::{Value, json};

use crate::on_both;
use crate::world::outbox;
use crate::world::provider::{ACME, WHSEC, fund_by, notice, tell_at_once};
use crate::world::{Database, Locks, World, patient, token, transfer, trusted_token};

const REVERSE: &str = "mutation($input: ReverseTransactionInput!) { reverseTransaction(input: $input) { \
    recovered { amount } owed { amount } userErrors { code } } }";

async fn a_world(database: Database) -> World {
    World::with(database, Locks::Off, |settings| {
        patient(settings);
        fund_by(settings, ACME, &[WHSEC]);
    })
    .await
}

/// Balance and debt of a member.
async fn standing(world: &World, member: &str) -> (i64, i64) {
    let answer = world.ask(member, "{ viewer { wallet { balance { amount } debt { amount } } } }", json!({})).await;
    let part = |name: &str| answer.data(&format!("/viewer/wallet/{name}/amount")).as_str().unwrap().parse().unwrap();
    (part("balance"), part("debt"))
}

/// The id of the transaction that credited a member's newest entry.
async fn newest_transaction(world: &World, member: &str) -> String {
    let newest = "{ viewer { wallet { entries(first: 1) { nodes { transactionId } } } } }";
    let answer = world.ask(member, newest, json!({})).await;
    answer.data("/viewer/wallet/entries/nodes/0/transactionId").as_str().expect("an entry").to_owned()
}

fn reversal(transaction: &str, amount: Option<i64>, key: &str) -> Value {
    let amount = amount.map(|amount| amount.to_string());
    json!({ "query": REVERSE, "variables": { "input": {
        "transactionId": transaction, "amount": amount, "reason": "a mistake", "idempotencyKey": key } } })
}

on_both!(what_was_spent_before_the_reversal_is_owed, async |database| {
    let world = a_world(database).await;
    world.introduce("bob").await;
    assert_eq!(world.tell("e1", &notice("p1", "succeeded", "alice", 500)).await, "credited");
    let sent = world.post(Some(&token("alice")), transfer("bob", 300, "k")).await;
    assert_eq!(sent.user_error("transfer"), None, "{}", sent.body);
    assert_eq!(world.tell("e2", &notice("p1", "reversed", "alice", 500)).await, "taken_back");
    assert_eq!((standing(&world, "alice").await, standing(&world, "bob").await), ((0, 300), (300, 0)));
    assert_eq!(world.tell("e2", &notice("p1", "reversed", "alice", 500)).await, "repeated");
    assert_eq!(world.tell("e3", &notice("p2", "succeeded", "alice", 400)).await, "credited");
    assert_eq!(standing(&world, "alice").await, (100, 0), "the next payment pays what is owed");
    let by = "SELECT COUNT(*) FROM transactions WHERE actor = 'provider acme' AND kind IN ('funding', 'reversal')";
    assert_eq!(world.count(by).await, 3, "the books say on whose word");
    world.end().await;
});

on_both!(an_operator_and_the_provider_share_what_is_left, async |database| {
    let world = a_world(database).await;
    for (number, (amount, expected)) in [(Some(200), "taken_back"), (None, "noted")].into_iter().enumerate() {
        let reference = format!("p{number}");
        let told = async |state: &str| {
            world.tell(&format!("{reference}-{state}"), &notice(&reference, state, "alice", 500)).await
        };
        assert_eq!(told("succeeded").await, "credited");
        let body = reversal(&newest_transaction(&world, "alice").await, amount, &reference);
        let answer = world.post(Some(&trusted_token("op", "operator")), body).await;
        assert_eq!(answer.user_error("reverseTransaction"), None, "{}", answer.body);
        assert_eq!(told("reversed").await, expected);
        assert_eq!(standing(&world, "alice").await, (0, 0));
    }
    world.end().await;
});

// All three ways in meet: whoever comes first, the sum of what is taken back is what was paid in.
on_both!(an_operator_and_the_provider_at_once, async |database| {
    let world = a_world(database).await;
    for round in 0..10 {
        let reference = format!("p{round}");
        let told = |state: &str| (&world, format!("{reference}-{state}"), notice(&reference, state, "alice", 10));
        assert_eq!(tell_at_once(vec![told("succeeded")]).await, ["credited"]);
        let body = reversal(&newest_transaction(&world, "alice").await, None, &reference);
        let operator = trusted_token("op", "operator");
        let (became, answer) = tokio::join!(tell_at_once(vec![told("reversed")]), world.post(Some(&operator), body));
        let refused = answer.user_error("reverseTransaction");
        let expected = [(["taken_back"], Some("LIMIT_EXCEEDED")), (["noted"], None)];
        assert!(expected.iter().any(|(word, code)| became == word && refused == *code), "{became:?} {refused:?}");
        assert_eq!(standing(&world, "alice").await, (0, 0));
    }
    world.end().await;
});

// Payment and outbox are one transaction: what is told of it is told once, and only of what moved.
on_both!(what_a_payment_moved_is_told_to_the_outside, async |database| {
    let world = World::with(database, Locks::Off, |settings| {
        fund_by(settings, ACME, &[WHSEC]);
        outbox::tell(settings, "crm", "http://127.0.0.1:9/");
    })
    .await;
    for (id, state, amount, became) in [
        ("e1", "pending", 500, "noted"),
        ("e2", "succeeded", 501, "conflict"),
        ("e2", "succeeded", 500, "credited"),
        ("e2", "succeeded", 500, "repeated"),
        ("e3", "reversed", 500, "taken_back"),
        ("e3", "reversed", 500, "repeated"),
    ] {
        assert_eq!(world.tell(id, &notice("p1", state, "alice", amount)).await, became);
    }
    assert_eq!(outbox::outbox(&world, "event = 'wallet.funded' AND seq = 1").await, 1);
    assert_eq!(outbox::outbox(&world, "event = 'transaction.reversed' AND seq = 2").await, 1);
    assert_eq!(outbox::outbox(&world, "attempts = 0").await, 2, "and nothing else");
    world.end().await;
});

/// p1 was credited, p2 is pending, p3 was credited and taken back.
async fn a_small_book(database: Database) -> World {
    let world = a_world(database).await;
    for (reference, state, expected) in [
        ("p1", "succeeded", "credited"),
        ("p2", "pending", "noted"),
        ("p3", "succeeded", "credited"),
        ("p3", "reversed", "taken_back"),
    ] {
        let id = format!("{reference}-{state}");
        assert_eq!(world.tell(&id, &notice(reference, state, "alice", 500)).await, expected);
    }
    world
}

on_both!(the_database_itself_refuses_what_must_not_be, async |database| {
    let world = a_small_book(database).await;
    let sql = world.sql().await;
    let payment =
        "INSERT INTO payments (provider, reference, member, amount, currency, state, created_at, updated_at) SELECT";
    let event = "INSERT INTO payment_events (provider, event_id, reference, state, received_at) SELECT";
    let first = "FROM payment_events WHERE event_id = 'p1-succeeded'";
    let cases = [
        format!(
            "{payment} provider, reference, member, amount, currency, 'pending', created_at, updated_at FROM payments"
        ),
        format!(
            "{payment} provider, 'new', member, 0, currency, state, created_at, updated_at FROM payments WHERE \
                 reference = 'p2'"
        ),
        format!(
            "{payment} provider, 'new', member, amount, currency, 'succeeded', created_at, updated_at FROM payments \
                 WHERE reference = 'p2'"
        ),
        "UPDATE payments SET state = 'refunded' WHERE reference = 'p2'".to_owned(),
        "UPDATE payments SET state = 'succeeded' WHERE reference = 'p2'".to_owned(),
        "UPDATE payments SET state = 'failed' WHERE reference = 'p1'".to_owned(),
        "UPDATE payments SET transaction_id = (SELECT transaction_id FROM payments WHERE reference = 'p1') WHERE \
         reference = 'p3'"
            .to_owned(),
        format!("{event} provider, event_id, 'p2', state, received_at {first}"),
        format!("{event} provider, 'new', reference, state, received_at {first}"),
        format!("{event} provider, 'new', 'nowhere', state, received_at {first}"),
        format!("{event} provider, 'new', reference, 'refunded', received_at {first}"),
        "DELETE FROM payments WHERE reference = 'p2'".to_owned(),
    ];
    for statement in cases {
        let error = sql.execute_unprepared(&statement).await.expect_err(&statement).to_string();
        assert!(error.to_lowercase().contains("constraint"), "{statement}: {error}");
    }
    sql.close().await.unwrap();
    world.end().await;
});

const CREDITED: &str = "a payment that was credited has its transaction, which credits its amount to its member";
const WHOLE: &str = "a payment that was credited and is reversed was taken back whole";
const FUNDING: &str = "funding has its payment";

const DAMAGES: [(&str, &str); 6] = [
    (CREDITED, "UPDATE payments SET amount = 501 WHERE reference = 'p1'"),
    (CREDITED, "UPDATE payments SET member = 'bob' WHERE reference = 'p1'"),
    (CREDITED, "UPDATE payments SET currency = 'EUR' WHERE reference = 'p1'"),
    (CREDITED, "UPDATE transactions SET kind = 'bonus_grant' WHERE kind = 'funding'"),
    (WHOLE, "UPDATE payments SET state = 'reversed' WHERE reference = 'p1'"),
    (FUNDING, "UPDATE payments SET state = 'failed', transaction_id = NULL WHERE reference = 'p1'"),
];

on_both!(the_audit_notices_each_kind_of_damage, async |database| {
    for (rule, damage) in DAMAGES {
        let world = a_small_book(database).await;
        let url = SecretString::from(world.url.clone());
        let report = audit(&url).await.unwrap();
        assert!(report.books_balance(), "{report}");
        let sql = world.sql().await;
        sql.execute_unprepared(damage).await.expect(damage);
        sql.close().await.unwrap();
        let report = audit(&url).await.unwrap();
        assert!(report.broken.iter().any(|broken| broken.starts_with(&format!("{rule}: "))), "{damage}: {report}");
        // The books are damaged on purpose, so nobody asks whether they balance.
        world.stop().await;
    }
});
