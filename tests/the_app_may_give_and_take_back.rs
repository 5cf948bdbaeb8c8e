//! Promise: the app's back end gives each grant once and takes back at most what was given, whichever process asks and how often;
//! what was spent meanwhile becomes a debt that the next credits pay; nobody makes value by it; and no member may ask for it.
//!
//! Guards `operations/grant_bonus.rs`, `operations/reverse_transaction.rs`, `ledger/reverse.rs` (the original's row lock) and
//! `ledger/debt.rs`.

use largesse::member::Member;
use sea_orm::{ConnectionTrait, Database as Connect};
use serde_json::{Value, json};

use crate::on_both;
use crate::world::{
    Answer, Database, Locks, World, empty_database, patient, token, transfer, trusted_token, wait_until,
};

const GRANT: &str = "mutation Grant($input: GrantBonusInput!) { grantBonus(input: $input) { replayed \
    entry { transactionId kind memo amount { amount } } wallet { balance { amount } debt { amount } } \
    userErrors { code field message } } }";

const REVERSE: &str = "mutation Reverse($input: ReverseTransactionInput!) { reverseTransaction(input: $input) { replayed \
    transactionId recovered { amount currency } owed { amount } userErrors { code field message } } }";

fn grant(to: &str, amount: i64, key: &str) -> Value {
    json!({ "query": GRANT, "variables": { "input": { "memberId": to, "amount": amount.to_string(), "currency": "PTS",
        "reason": "a gift", "idempotencyKey": key } } })
}

fn reverse(transaction: &str, amount: Option<i64>, key: &str) -> Value {
    let amount = amount.map(|amount| amount.to_string());
    json!({ "query": REVERSE, "variables": { "input": { "transactionId": transaction, "amount": amount,
        "reason": "a mistake", "idempotencyKey": key } } })
}

async fn granted(world: &World, to: &str, amount: i64, key: &str) -> String {
    let answer = world.post(Some(&trusted_token("backend", "service")), grant(to, amount, key)).await;
    assert_eq!((answer.code(), answer.user_error("grantBonus")), (None, None), "{answer:?}");
    answer.data("/grantBonus/entry/transactionId").as_str().unwrap().to_owned()
}

async fn sent(world: &World, from: &str, to: &str, amount: i64, key: &str) -> String {
    let answer = world.post(Some(&token(from)), transfer(to, amount, key)).await;
    assert_eq!((answer.code(), answer.user_error("transfer")), (None, None), "{answer:?}");
    answer.data("/transfer/entry/transactionId").as_str().unwrap().to_owned()
}

/// What was recovered and what is owed.
async fn reversed(world: &World, transaction: &str, amount: Option<i64>, key: &str) -> (String, String) {
    let answer = world.post(Some(&trusted_token("op", "operator")), reverse(transaction, amount, key)).await;
    assert_eq!((answer.code(), answer.user_error("reverseTransaction")), (None, None), "{answer:?}");
    parts(&answer)
}

fn parts(answer: &Answer) -> (String, String) {
    let part = |name: &str| answer.data(&format!("/reverseTransaction/{name}/amount")).as_str().unwrap().to_owned();
    (part("recovered"), part("owed"))
}

/// Balance and debt of a member.
async fn standing(world: &World, member: &str) -> (String, String) {
    let answer = world.ask(member, "{ viewer { wallet { balance { amount } debt { amount } } } }", json!({})).await;
    let part = |name: &str| answer.data(&format!("/viewer/wallet/{name}/amount")).as_str().unwrap().to_owned();
    (part("balance"), part("debt"))
}

fn of(first: &str, second: &str) -> (String, String) {
    (first.to_owned(), second.to_owned())
}

on_both!(a_member_may_neither_grant_nor_reverse, async |database: Database| {
    let world = World::new(database, Locks::InProcess).await;
    let id = granted(&world, "alice", 10, "first").await;
    for body in [grant("bob", 10, "k"), reverse(&id, None, "k")] {
        for (token, code) in [
            (Some(token("alice")), "FORBIDDEN"),
            (Some(trusted_token("alice", "Service")), "FORBIDDEN"),
            (None, "UNAUTHENTICATED"),
        ] {
            let answer = world.post(token.as_deref(), body.clone()).await;
            assert_eq!(answer.code(), Some(code), "{answer:?}");
        }
    }
    assert_eq!(world.count("SELECT COUNT(*) FROM transactions").await, 1);
    assert_eq!(world.count("SELECT COUNT(*) FROM members WHERE name = 'bob'").await, 0);
    world.end().await;
});

on_both!(one_grant_is_paid_once_whoever_asks_and_however_often, async |database: Database| {
    let world = World::with(database, Locks::Off, patient).await;
    let other = world.another(|_| {}).await;
    let answers = futures_util::future::join_all((0..40).map(|number| {
        let world = if number % 2 == 0 { &world } else { &other };
        let caller = trusted_token(&format!("pod{number}"), if number % 3 == 0 { "operator" } else { "service" });
        async move { world.post(Some(&caller), grant("alice", 25, "welcome")).await }
    }))
    .await;
    let fresh = answers.iter().filter(|answer| answer.data("/grantBonus/replayed") == &json!(false)).count();
    assert_eq!(fresh, 1, "{answers:?}");
    let ids: std::collections::BTreeSet<_> =
        answers.iter().map(|answer| answer.data("/grantBonus/entry/transactionId").to_string()).collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(standing(&world, "alice").await, of("25", "0"));
    let first = &answers[0].body["data"]["grantBonus"]["entry"];
    assert_eq!((&first["kind"], &first["memo"]), (&json!("BONUS_GRANT"), &json!("a gift")));
    let who = world.count("SELECT COUNT(*) FROM transactions WHERE actor LIKE 'pod%'").await;
    assert_eq!(who, 1, "the books say who did it");
    let changed = world.post(Some(&trusted_token("pod", "service")), grant("alice", 26, "welcome")).await;
    assert_eq!(changed.user_error("grantBonus"), Some("IDEMPOTENCY_KEY_PARAMETER_MISMATCH"));
    granted(&world, "bob", 25, "welcome").await;
    assert_eq!(standing(&world, "bob").await, of("25", "0"), "another member's key is another key");
    other.stop().await;
    world.end().await;
});

on_both!(what_is_not_well_formed_is_refused_and_stores_nothing, async |database: Database| {
    let world = World::new(database, Locks::Off).await;
    let id = granted(&world, "alice", 10, "first").await;
    let with = |mut body: Value, field: &str, value: Value| {
        body["variables"]["input"][field] = value;
        body
    };
    for (body, mutation, field) in [
        (grant("alice", 0, "k"), "grantBonus", "amount"),
        (grant("alice", -1, "k"), "grantBonus", "amount"),
        (grant("", 1, "k"), "grantBonus", "memberId"),
        (with(grant("alice", 1, "k"), "currency", json!("USD")), "grantBonus", "currency"),
        (with(grant("alice", 1, "k"), "reason", json!(" ")), "grantBonus", "reason"),
        (with(grant("alice", 1, "k"), "reason", json!("x".repeat(141))), "grantBonus", "reason"),
        (reverse(&id, Some(0), "k"), "reverseTransaction", "amount"),
        (with(reverse(&id, None, "k"), "reason", json!("")), "reverseTransaction", "reason"),
        (with(reverse(&id, None, "k"), "reason", json!("a\nb")), "reverseTransaction", "reason"),
    ] {
        let answer = world.post(Some(&trusted_token("backend", "service")), body).await;
        let error = &answer.body["data"][mutation]["userErrors"][0];
        assert_eq!((&error["code"], &error["field"]), (&json!("INVALID_INPUT"), &json!([field])), "{answer:?}");
    }
    for nothing in ["", "nonsense", "dAAAAAAAAAAAAAAAAAAAAAA"] {
        let answer = world.post(Some(&trusted_token("backend", "service")), reverse(nothing, None, "k")).await;
        assert_eq!(answer.user_error("reverseTransaction"), Some("NOT_FOUND"), "{answer:?}");
    }
    assert_eq!(world.count("SELECT COUNT(*) FROM idempotency_keys").await, 1);
    world.end().await;
});

on_both!(reversals_share_one_remaining_amount, async |database: Database| {
    let world = World::with(database, Locks::Off, patient).await;
    let other = world.another(|_| {}).await;
    let id = granted(&world, "alice", 100, "k").await;
    let answers = futures_util::future::join_all((0..10).map(|number| {
        let world = if number % 2 == 0 { &world } else { &other };
        let body = reverse(&id, Some(30), &format!("r{number}"));
        async move { world.post(Some(&trusted_token("op", "operator")), body).await }
    }))
    .await;
    let refused = answers.iter().filter(|answer| answer.user_error("reverseTransaction") == Some("LIMIT_EXCEEDED"));
    assert_eq!(refused.count(), 7, "{answers:?}");
    assert_eq!(standing(&world, "alice").await, of("10", "0"));
    assert_eq!(reversed(&world, &id, None, "the-rest").await, of("10", "0"));
    assert_eq!(reversed(&world, &id, None, "the-rest").await, of("10", "0"), "a replay");
    let nothing_left = world.post(Some(&trusted_token("op", "operator")), reverse(&id, None, "more")).await;
    assert_eq!(nothing_left.user_error("reverseTransaction"), Some("LIMIT_EXCEEDED"));
    assert_eq!(standing(&world, "alice").await, of("0", "0"));
    other.stop().await;
    world.end().await;
});

#[tokio::test(flavor = "multi_thread")]
async fn a_reversal_waits_for_another_of_the_same_transaction() {
    let world = World::with(Database::Postgres, Locks::Off, patient).await;
    let id = granted(&world, "alice", 100, "k").await;
    let sql = world.sql().await;
    sql.execute_unprepared("BEGIN; SELECT 1 FROM transactions FOR NO KEY UPDATE").await.unwrap();
    let answer = world.begin_post(&trusted_token("op", "operator"), &reverse(&id, None, "r"));
    wait_until("the reversal waits for the original", async || {
        world.waiting_in("SELECT%transactions%FOR NO KEY UPDATE%").await == 1
    })
    .await;
    assert_eq!(standing(&world, "alice").await, of("100", "0"));
    sql.execute_unprepared("COMMIT").await.unwrap();
    assert_eq!(parts(&answer.await.unwrap()), of("100", "0"));
    sql.close().await.unwrap();
    world.end().await;
}

on_both!(a_reversal_cannot_be_reversed, async |database: Database| {
    let world = World::new(database, Locks::Off).await;
    let id = granted(&world, "alice", 100, "k").await;
    let answer = world.post(Some(&trusted_token("op", "operator")), reverse(&id, Some(40), "r")).await;
    let reversal = answer.data("/reverseTransaction/transactionId").as_str().unwrap().to_owned();
    let again = world.post(Some(&trusted_token("op", "operator")), reverse(&reversal, None, "r2")).await;
    let code = again.user_error("reverseTransaction");
    assert!(["NOT_REVERSIBLE", "NOT_FOUND"].contains(&code.unwrap()), "{again:?}");
    // One of a transfer credits the sender, and still is a reversal.
    world.introduce("bob").await;
    let id = sent(&world, "alice", "bob", 10, "t").await;
    let answer = world.post(Some(&trusted_token("op", "operator")), reverse(&id, None, "r")).await;
    let reversal = answer.data("/reverseTransaction/transactionId").as_str().unwrap().to_owned();
    let again = world.post(Some(&trusted_token("op", "operator")), reverse(&reversal, None, "r2")).await;
    assert_eq!(again.user_error("reverseTransaction"), Some("NOT_REVERSIBLE"), "{again:?}");
    assert_eq!(standing(&world, "alice").await, of("60", "0"));
    world.end().await;
});

on_both!(what_was_spent_is_owed_and_the_next_credits_pay_it, async |database: Database| {
    let world = World::new(database, Locks::Off).await;
    world.introduce("bob").await;
    let id = granted(&world, "alice", 100, "k").await;
    sent(&world, "alice", "bob", 80, "t").await;
    assert_eq!(reversed(&world, &id, Some(70), "r1").await, of("20", "50"));
    assert_eq!(standing(&world, "alice").await, of("0", "50"));
    assert_eq!(reversed(&world, &id, None, "r2").await, of("0", "30"), "there is nothing to recover any more");
    assert_eq!(standing(&world, "alice").await, of("0", "80"));
    let id = granted(&world, "alice", 45, "k2").await;
    assert_eq!(standing(&world, "alice").await, of("0", "35"));
    sent(&world, "bob", "alice", 50, "back").await;
    assert_eq!(standing(&world, "alice").await, of("15", "0"), "another member's money pays as well");
    assert_eq!(reversed(&world, &id, None, "r").await, of("15", "30"));
    let history =
        "{ viewer { wallet { version entries { nodes { kind amount { amount } balanceAfter { amount } } } } } }";
    let answer = world.ask("alice", history, json!({})).await;
    let entries: Vec<_> = answer.data("/viewer/wallet/entries/nodes").as_array().unwrap().iter().rev().collect();
    let kinds: Vec<_> = entries
        .iter()
        .map(|entry| (entry["kind"].as_str().unwrap(), entry["amount"]["amount"].as_str().unwrap()))
        .collect();
    let expected = [
        ("BONUS_GRANT", "100"),
        ("TRANSFER", "-80"),
        ("REVERSAL", "-20"),
        ("BONUS_GRANT", "45"),
        ("DEBT_PAYMENT", "-45"),
        ("TRANSFER", "50"),
        ("DEBT_PAYMENT", "-5"),
        ("DEBT_PAYMENT", "-30"),
        ("REVERSAL", "-15"),
    ];
    assert_eq!(kinds, expected);
    world.end().await;
});

on_both!(a_sender_gets_only_what_is_recovered_now_or_later, async |database: Database| {
    let world = World::new(database, Locks::Off).await;
    for member in ["bob", "carol"] {
        world.introduce(member).await;
    }
    granted(&world, "alice", 60, "k").await;
    let id = sent(&world, "alice", "bob", 60, "t").await;
    sent(&world, "bob", "carol", 50, "t").await;
    assert_eq!(reversed(&world, &id, None, "r").await, of("10", "50"));
    assert_eq!(standing(&world, "alice").await, of("10", "0"));
    granted(&world, "bob", 40, "k").await;
    assert_eq!((standing(&world, "alice").await, standing(&world, "bob").await), (of("50", "0"), of("0", "10")));
    granted(&world, "bob", 30, "k2").await;
    assert_eq!((standing(&world, "alice").await, standing(&world, "bob").await), (of("60", "0"), of("20", "0")));
    world.end().await;
});

on_both!(debts_in_a_circle_are_paid_and_end, async |database: Database| {
    let world = World::new(database, Locks::Off).await;
    for member in ["bob", "carol", "dave"] {
        world.introduce(member).await;
    }
    granted(&world, "alice", 30, "k").await;
    let mut ids = Vec::new();
    for (from, to) in [("alice", "bob"), ("bob", "carol"), ("carol", "alice")] {
        ids.push(sent(&world, from, to, 30, "t").await);
    }
    sent(&world, "alice", "dave", 30, "t2").await;
    for id in &ids {
        assert_eq!(reversed(&world, id, None, "r").await, of("0", "30"));
    }
    // bob owes alice, carol owes bob, alice owes carol: what one of them gets goes round once and ends all three.
    granted(&world, "carol", 30, "k").await;
    for member in ["alice", "bob"] {
        assert_eq!(standing(&world, member).await, of("0", "0"), "{member}");
    }
    assert_eq!(standing(&world, "carol").await, of("30", "0"));
    world.end().await;
});

on_both!(reversals_meet_spending_and_credits_in_the_same_moment, async |database: Database| {
    let world = World::with(database, Locks::Off, patient).await;
    for member in ["alice", "bob", "carol"] {
        world.fund(member).await;
    }
    let mut ids = Vec::new();
    for number in 0..8 {
        let (from, to) = [("alice", "bob"), ("bob", "carol"), ("carol", "alice")][number % 3];
        ids.push(sent(&world, from, to, 40, &format!("seed{number}")).await);
    }
    let service = trusted_token("backend", "service");
    let answers = futures_util::future::join_all((0..60).map(|number| {
        let (world, service, id) = (&world, &service, &ids[number % ids.len()]);
        let (from, to) = [("bob", "alice"), ("carol", "bob"), ("alice", "carol")][number % 3];
        async move {
            match number % 4 {
                0 => world.post(Some(service), reverse(id, Some(7), &format!("r{number}"))).await,
                1 => world.post(Some(service), grant(to, 3, &format!("g{number}"))).await,
                _ => world.post(Some(&token(from)), transfer(to, 5, &format!("t{number}"))).await,
            }
        }
    }))
    .await;
    for answer in &answers {
        assert_eq!(answer.code(), None, "no deadlock and no failure reaches a client: {answer:?}");
    }
    let made = world.count("SELECT CAST(SUM(balance - debt) AS bigint) FROM wallets").await;
    let given =
        world.count("SELECT CAST(-SUM(amount) AS bigint) FROM entries WHERE house IN ('issuance', 'payable')").await;
    assert_eq!(made, given, "what members hold and owe is what the house gave and owes");
    world.end().await;
});

on_both!(older_books_are_brought_up_to_date, async |database: Database| {
    use largesse_migration::Migrator;
    use sea_orm_migration::MigratorTrait;

    let (url, folder) = empty_database(database).await;
    let sql = Connect::connect(&url).await.unwrap();
    Migrator::up(&sql, Some(1)).await.unwrap();
    for statement in old_books(database) {
        sql.execute_unprepared(&statement).await.expect(&statement);
    }
    sql.close().await.unwrap();
    largesse::ledger::connect::migrate(&url.clone().into()).await.unwrap();
    let world = World::at(database, url, folder).await;
    assert_eq!(standing(&world, "alice").await, of("7", "0"));
    if database == Database::Sqlite {
        assert_eq!(world.count("SELECT COUNT(*) FROM pragma_foreign_key_check").await, 0);
    }
    let id = granted(&world, "alice", 5, "k").await;
    assert_eq!(reversed(&world, &id, None, "r").await, of("5", "0"));
    world.end().await;
});

/// A member with a bonus, as the first version of the tables held them.
fn old_books(database: Database) -> Vec<String> {
    let alice = Member::parse("alice").unwrap();
    let points = largesse::amount::CurrencyCode::parse("PTS").unwrap();
    let wallet = largesse::ledger::post::WalletRef::new(&alice, &points).id();
    let id = |id: uuid::Uuid| match database {
        Database::Sqlite => format!("X'{}'", id.simple()),
        Database::Postgres => format!("'{id}'"),
    };
    let (alice, wallet, transaction) = (id(alice.id()), id(wallet), id(uuid::Uuid::now_v7()));
    let now = "'2026-11-29 12:00:00.000+00:00'";
    vec![
        format!("INSERT INTO members VALUES ({alice}, 'alice', {now})"),
        format!("INSERT INTO wallets VALUES ({wallet}, {alice}, 'PTS', 7, 1, {now})"),
        format!("INSERT INTO transactions VALUES ({transaction}, 'signup_bonus', 'PTS', NULL, {now})"),
        format!("INSERT INTO entries VALUES ({transaction}, 0, NULL, 'issuance', -7, NULL, NULL)"),
        format!("INSERT INTO entries VALUES ({transaction}, 1, {wallet}, NULL, 7, 1, 7)"),
        format!(
            "INSERT INTO claims VALUES ({transaction}, {alice}, 'signup', 'once', NULL, 7, 'PTS', {transaction}, {now})"
        ),
    ]
}
