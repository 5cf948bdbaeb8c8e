//! Promise: money is neither made nor lost: whoever pays whom at the same time, a wallet pays what it holds and no more,
//! the sum stays the same, and every transfer comes to an end.
//!
//! Guards layer 3 (the wallet's lock, the one order of waiting), the order of refusals in `operations/transfer.rs`, the
//! database's own rules in `migration/`, and `ledger/audit.rs`, on which the end of every other test relies.

use largesse::ledger::audit::audit;
use largesse::member::Member;
use sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction, TransactionTrait};
use secrecy::SecretString;
use serde_json::{Value, json};
use std::collections::HashMap;

use crate::on_both;
use crate::world::{Answer, Database, Locks, TRANSFER, World, patient, token, transfer, wait_until};

/// As many transfers as a flood has.
const FLOOD: usize = 200;

on_both!(of_two_transfers_that_cannot_both_be_paid_one_is, async |database| {
    let world = World::with(database, Locks::Off, |settings| settings.signup_bonus.amount = Some(70)).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let answers = world.storm(2, |number| wish("alice", "bob", 55, number)).await;
    one_paid_one_refused(&answers);
    assert_eq!((world.balance("alice").await, world.balance("bob").await), (15, 55));
    world.end().await;
});

/// The same, with the race held open: both transfers stand before the sender's row, which another transaction holds.
#[tokio::test(flavor = "multi_thread")]
async fn two_transfers_that_wait_for_one_row_go_on_one_after_the_other() {
    let world = World::with(Database::Postgres, Locks::Off, |settings| {
        patient(settings);
        settings.signup_bonus.amount = Some(70);
    })
    .await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let held = world.sql().await;
    let holder = holding_the_wallets(&held).await;
    let storm = world.storm(2, |number| wish("alice", "bob", 55, number));
    let release = async {
        wait_until("both wait for the row", async || world.waiting_in("%FOR NO KEY UPDATE%").await == 2).await;
        assert_eq!(world.count("SELECT COUNT(*) FROM transactions WHERE kind = 'transfer'").await, 0);
        holder.rollback().await.unwrap();
    };
    let (answers, ()) = tokio::join!(storm, release);
    one_paid_one_refused(&answers);
    assert_eq!((world.balance("alice").await, world.balance("bob").await), (15, 55));
    world.end().await;
}

/// Who receives waits as well: the wallet that is paid into is locked like the one that pays.
#[tokio::test(flavor = "multi_thread")]
async fn payments_into_one_wallet_wait_for_each_other() {
    let world = World::with(Database::Postgres, Locks::Off, patient).await;
    for member in ["alice", "bob", "carol"] {
        world.fund(member).await;
    }
    let held = world.sql().await;
    let holder = held.begin().await.unwrap();
    let bob = "(SELECT id FROM members WHERE name = 'bob')";
    holder.execute_unprepared(&format!("SELECT 1 FROM wallets WHERE member_id = {bob} FOR UPDATE")).await.unwrap();
    let storm = world.storm(2, |number| wish(["alice", "carol"][number], "bob", 10, number));
    let release = async {
        wait_until("both wait for bob's row", async || world.waiting_in("%FOR NO KEY UPDATE%").await == 2).await;
        holder.rollback().await.unwrap();
    };
    let (answers, ()) = tokio::join!(storm, release);
    all_done(&answers);
    assert_eq!(world.balance("bob").await, 120);
    world.end().await;
}

on_both!(a_flood_in_both_directions_comes_to_an_end, async |database| {
    let world = World::with(database, Locks::Off, patient).await;
    let members = ["alice", "bob"];
    flood(&world, &members, |number| wish(members[number % 2], members[(number + 1) % 2], 1, number)).await;
    assert_eq!((world.balance("alice").await, world.balance("bob").await), (100, 100));
    ends_without_a_deadlock(world).await;
});

on_both!(a_flood_around_a_ring_comes_to_an_end, async |database| {
    let world = World::with(database, Locks::Off, patient).await;
    let members = ["alice", "bob", "carol"];
    flood(&world, &members, |number| wish(members[number % 3], members[(number + 1) % 3], 1, number)).await;
    assert_eq!(sum(&world, &members).await, 300);
    ends_without_a_deadlock(world).await;
});

// Large amounts, so that wallets run dry: some are refused, and still nothing is made or lost.
on_both!(a_flood_that_empties_wallets_comes_to_an_end, async |database| {
    let world = World::with(database, Locks::Off, patient).await;
    let members = ["alice", "bob", "carol"];
    for member in members {
        world.fund(member).await;
    }
    let answers =
        world.storm(FLOOD, |number| wish(members[number % 3], members[(number * 7 + 1) % 3], 60, number)).await;
    for answer in &answers {
        assert_eq!(answer.codes(), Vec::<&str>::new(), "{}", answer.body);
        let refusal = answer.user_error("transfer");
        assert!([None, Some("INSUFFICIENT_FUNDS"), Some("SELF_TRANSFER")].contains(&refusal), "{}", answer.body);
    }
    assert_eq!(sum(&world, &members).await, 300);
    ends_without_a_deadlock(world).await;
});

// One attempt per member is admitted, the others are told so, and nothing else reaches anybody.
on_both!(a_flood_with_the_cooldown_moves_one_payment_of_each, async |database| {
    let world = World::with(database, Locks::InProcess, |settings| {
        patient(settings);
        // Longer than a slow machine's flood, or a second payment would be admitted, and rightly so.
        for action in ["transfer", "claimDailyBonus", "claimSignupBonus"] {
            settings.cooldown.actions.entry(action.to_owned()).or_default().window_ms = Some(60_000);
        }
    })
    .await;
    let members = ["alice", "bob"];
    for member in members {
        world.fund(member).await;
    }
    let answers = world.storm(FLOOD, |number| wish(members[number % 2], members[(number + 1) % 2], 10, number)).await;
    let (refused, others): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|answer| answer.codes() == ["COOLDOWN_ACTIVE"]);
    all_done(&others);
    assert_eq!((others.len(), refused.len()), (2, FLOOD - 2));
    assert_eq!((world.balance("alice").await, world.balance("bob").await), (100, 100));
    ends_without_a_deadlock(world).await;
});

// Neither has a wallet: both claims open one while the other member already pays into it.
on_both!(two_new_members_pay_each_other_at_once, async |database| {
    let world = World::with(database, Locks::Off, patient).await;
    for round in 0..20 {
        let pair = [format!("left{round}"), format!("right{round}")];
        for member in &pair {
            world.introduce(member).await;
        }
        let answers = world
            .storm(4, |number| {
                let (from, to) = (&pair[number % 2], &pair[(number + 1) % 2]);
                if number < 2 {
                    (from.clone(), json!({ "query": crate::world::CLAIM_SIGNUP }))
                } else {
                    wish(from, to, 10, number)
                }
            })
            .await;
        for answer in &answers {
            assert_eq!(answer.codes(), Vec::<&str>::new(), "{}", answer.body);
        }
        for paid in &answers[2..] {
            assert!([None, Some("INSUFFICIENT_FUNDS")].contains(&paid.user_error("transfer")), "{}", paid.body);
        }
        assert_eq!(sum(&world, &[&pair[0], &pair[1]]).await, 200);
    }
    ends_without_a_deadlock(world).await;
});

// Each of them finds that the recipient has no wallet, and begins again to open it.
on_both!(many_payers_open_one_wallet, async |database| {
    let world = World::with(database, Locks::Off, patient).await;
    let payers: Vec<_> = (0..40).map(|number| format!("payer{number}")).collect();
    for payer in &payers {
        world.fund(payer).await;
    }
    world.introduce("bob").await;
    let answers = world.storm(payers.len(), |number| wish(&payers[number], "bob", 7, number)).await;
    all_done(&answers);
    assert_eq!(world.balance("bob").await, 7 * 40);
    assert_eq!(world.count("SELECT COUNT(*) FROM wallets").await, 41);
    ends_without_a_deadlock(world).await;
});

on_both!(a_receiver_near_the_largest_balance, async |database| {
    let nearly = i64::MAX - 10;
    let world = World::with(database, Locks::Off, |settings| settings.signup_bonus.amount = Some(nearly)).await;
    for member in ["alice", "bob"] {
        world.fund(member).await;
    }
    let refused = send(&world, "alice", "bob", 11, "too-much").await;
    assert_eq!(refused.user_error("transfer"), Some("LIMIT_EXCEEDED"), "{}", refused.body);
    assert_eq!((world.balance("alice").await, world.balance("bob").await), (nearly, nearly));
    let done = send(&world, "alice", "bob", 10, "just-so").await;
    assert_eq!(done.user_error("transfer"), None, "{}", done.body);
    assert_eq!((world.balance("alice").await, world.balance("bob").await), (nearly - 10, i64::MAX));
    let daily = world.ask("bob", crate::world::CLAIM_DAILY, json!({})).await;
    assert_eq!(daily.user_error("claimDailyBonus"), Some("LIMIT_EXCEEDED"), "{}", daily.body);
    assert_eq!(world.balance("bob").await, i64::MAX);
    assert_eq!(world.count("SELECT COUNT(*) FROM claims WHERE bonus = 'daily'").await, 0);
    world.end().await;
});

// 2^53 + 1, which no floating-point number can hold.
on_both!(an_odd_large_amount_goes_in_and_out_unchanged, async |database| {
    const AMOUNT: i64 = 9_007_199_254_740_993;
    let world = World::with(database, Locks::Off, |settings| settings.signup_bonus.amount = Some(AMOUNT)).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let done = send(&world, "alice", "bob", AMOUNT, "all").await;
    assert_eq!(done.data("/transfer/entry/amount/amount"), "-9007199254740993");
    assert_eq!(done.data("/transfer/entry/balanceAfter/amount"), "0");
    let replay = send(&world, "alice", "bob", AMOUNT, "all").await;
    assert_eq!(replay.data("/transfer/entry"), done.data("/transfer/entry"));
    let seen =
        "{ viewer { wallet { balance { amount } entries { nodes { amount { amount } balanceAfter { amount } } } } } }";
    let seen = world.ask("bob", seen, json!({})).await;
    let wallet = seen.data("/viewer/wallet");
    assert_eq!(wallet["balance"]["amount"], "9007199254740993");
    assert_eq!(wallet["entries"]["nodes"][0]["amount"]["amount"], "9007199254740993");
    assert_eq!(wallet["entries"]["nodes"][0]["balanceAfter"]["amount"], "9007199254740993");
    // A JSON number of this size was rounded before it came.
    let mut number = transfer("alice", 1, "number");
    number["variables"]["input"]["amount"] = json!(AMOUNT);
    assert_eq!(world.post(Some(&token("bob")), number).await.codes(), ["BAD_USER_INPUT"]);
    assert_eq!(world.balance("bob").await, AMOUNT);
    world.end().await;
});

on_both!(refusals_come_in_one_order, async |database| {
    let world = World::with(database, Locks::Off, |settings| {
        settings.transfer.smallest = 5;
        settings.transfer.largest = Some(50);
    })
    .await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let cases = [
        // Of all reasons that hold, the first one is told.
        ("alice", "alice", 1_000, "SELF_TRANSFER"),
        ("bob", "bob", 1, "SELF_TRANSFER"),
        ("alice", "nobody", 1_000, "INSUFFICIENT_FUNDS"),
        ("bob", "nobody", 1, "INSUFFICIENT_FUNDS"),
        ("bob", "alice", 1, "INSUFFICIENT_FUNDS"),
        ("alice", "nobody", 60, "NOT_FOUND"),
        ("alice", "nobody", 1, "NOT_FOUND"),
        ("alice", "bob", 4, "LIMIT_EXCEEDED"),
        ("alice", "bob", 51, "LIMIT_EXCEEDED"),
    ];
    for (number, (from, to, amount, code)) in (1..).zip(cases) {
        let answer = send(&world, from, to, amount, &format!("key{number}")).await;
        assert_eq!((answer.code(), answer.user_error("transfer")), (None, Some(code)), "{}", answer.body);
        let rows = rows(&world).await;
        let expected = [("members", 2), ("wallets", 1), ("transactions", 1), ("entries", 2), ("claims", 1)];
        assert_eq!(rows, HashMap::from(expected), "{code} opened a wallet or left a row");
        assert_eq!(world.count("SELECT COUNT(*) FROM idempotency_keys").await, number, "but its key is stored");
    }
    for (number, amount) in [5, 50].into_iter().enumerate() {
        let answer = send(&world, "alice", "bob", amount, &format!("good-{number}")).await;
        assert_eq!(answer.user_error("transfer"), None, "{}", answer.body);
    }
    world.end().await;
});

/// The sender's points go elsewhere while the recipient's wallet is being opened: the refusal takes the wallet back.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_takes_back_the_wallet_that_it_opened() {
    let world = World::with(Database::Postgres, Locks::Off, patient).await;
    for member in ["alice", "carol"] {
        world.fund(member).await;
    }
    world.introduce("bob").await;
    let held = world.sql().await;
    let holder = held.begin().await.unwrap();
    let bob = wallet_id("bob");
    let insert = format!(
        "INSERT INTO wallets (id, member_id, currency, balance, version, opened_at) \
         SELECT '{bob}', id, 'PTS', 0, 0, now() FROM members WHERE name = 'bob'"
    );
    holder.execute_unprepared(&insert).await.unwrap();
    let late = send(&world, "alice", "bob", 60, "late");
    let meanwhile = async {
        wait_until("bob's wallet is being opened", async || world.waiting_in("INSERT INTO \"wallets\"%").await == 1)
            .await;
        let quick = send(&world, "alice", "carol", 60, "quick").await;
        assert_eq!(quick.user_error("transfer"), None, "{}", quick.body);
        holder.rollback().await.unwrap();
    };
    let (late, ()) = tokio::join!(late, meanwhile);
    assert_eq!(late.user_error("transfer"), Some("INSUFFICIENT_FUNDS"), "{}", late.body);
    assert_eq!(world.count(&format!("SELECT COUNT(*) FROM wallets WHERE id = '{bob}'")).await, 0);
    world.end().await;
}

on_both!(the_database_itself_refuses_what_must_not_be, async |database| {
    let world = a_small_book(database).await;
    let sql = world.sql().await;
    let transfer = "(SELECT id FROM transactions WHERE kind = 'transfer' LIMIT 1)";
    let entry = "INSERT INTO entries (transaction_id, line, wallet_id, house, amount, seq, balance_after) SELECT";
    let of_a_wallet = "FROM entries WHERE seq = 3";
    let cases = [
        ("UPDATE wallets SET balance = -1".to_owned(), "balance"),
        ("UPDATE wallets SET version = -1".to_owned(), "version"),
        (
            format!(
                "INSERT INTO wallets (id, member_id, currency, balance, version, opened_at) SELECT {transfer}, member_id, \
                 currency, 0, 0, opened_at FROM wallets"
            ),
            "member_id",
        ),
        (format!("{entry} transaction_id, 7, wallet_id, house, amount, seq, balance_after {of_a_wallet}"), "seq"),
        (format!("{entry} transaction_id, 0, wallet_id, house, amount, 9, balance_after {of_a_wallet}"), "entries"),
        ("UPDATE entries SET amount = 0".to_owned(), "amount"),
        ("UPDATE entries SET balance_after = -1 WHERE seq = 3".to_owned(), "balance_after"),
        ("UPDATE entries SET house = 'issuance' WHERE seq = 3".to_owned(), "entries"),
        ("UPDATE entries SET seq = NULL WHERE seq = 3".to_owned(), "entries"),
        (
            format!(
                "INSERT INTO claims (id, member_id, bonus, period, streak, amount, currency, transaction_id, claimed_at) \
                 SELECT {transfer}, member_id, bonus, period, streak, amount, currency, {transfer}, claimed_at FROM claims"
            ),
            "period",
        ),
        ("UPDATE claims SET amount = -1".to_owned(), "amount"),
        ("UPDATE idempotency_keys SET refusal = '{}'".to_owned(), "idempotency_keys"),
        ("UPDATE idempotency_keys SET transaction_id = NULL".to_owned(), "idempotency_keys"),
        (
            "INSERT INTO idempotency_keys (member_id, operation, key, fingerprint, refusal, created_at) SELECT member_id, \
             operation, key, fingerprint, '{}', created_at FROM idempotency_keys"
                .to_owned(),
            "idempotency_keys",
        ),
        ("DELETE FROM transactions".to_owned(), ""),
        ("DELETE FROM wallets".to_owned(), ""),
        ("DELETE FROM members".to_owned(), ""),
    ];
    let mut accepted = Vec::new();
    for (statement, word) in cases {
        let Err(error) = sql.execute_unprepared(&statement).await else {
            accepted.push(statement);
            continue;
        };
        let error = error.to_string();
        assert!(error.to_lowercase().contains("constraint"), "{statement}: {error}");
        // SQLite shows a check of several columns as its text, which names them and no table.
        assert!(
            error.contains(word) || error.contains(" IS NULL) <> ") || error.contains(" IS NULL) = "),
            "{statement}: {error}"
        );
    }
    assert_eq!(accepted, Vec::<String>::new(), "the database took these");
    sql.close().await.unwrap();
    world.end().await;
});

const ZERO: &str = "the entries of a transaction sum to zero";
const TWO_SIDES: &str = "a transaction has a debit and a credit";
const CURRENCY: &str = "an entry's wallet has the transaction's currency";
const NUMBERED: &str = "a wallet's entries are numbered from 1 without gaps";
const CHAIN: &str = "each balance_after follows from the one before";
const BALANCE: &str = "a wallet's balance and version are those of its last entry, and not negative";
const CLAIM: &str = "a claim has its transaction, which credits its amount to its member";
const BONUS: &str = "a bonus has its claim";
const KEY: &str = "an idempotency key points to a transaction or holds a refusal";

/// The rules of the audit, each with rows that break it. Constraints that would prevent the damage are off.
const DAMAGES: [(&str, &str); 17] = [
    (ZERO, "UPDATE entries SET amount = amount - 1 WHERE house IS NOT NULL"),
    (
        TWO_SIDES,
        "INSERT INTO transactions (id, kind, currency, created_at) \
         SELECT {new id}, 'transfer', currency, created_at FROM transactions WHERE kind = 'signup_bonus'",
    ),
    (TWO_SIDES, "DELETE FROM entries WHERE house IS NOT NULL"),
    (CURRENCY, "UPDATE transactions SET currency = 'EUR' WHERE kind = 'transfer'"),
    (NUMBERED, "UPDATE entries SET seq = 4 WHERE seq = 3; UPDATE wallets SET version = 4 WHERE version = 3"),
    (NUMBERED, "UPDATE entries SET seq = seq + 1 WHERE seq > 0; UPDATE wallets SET version = version + 1"),
    (NUMBERED, "UPDATE entries SET seq = 1 WHERE amount = -30"),
    (CHAIN, "UPDATE entries SET balance_after = 99 WHERE balance_after = 100"),
    (
        CHAIN,
        "UPDATE entries SET balance_after = balance_after + 1 WHERE seq > 0; UPDATE wallets SET balance = balance + 1",
    ),
    (BALANCE, "UPDATE wallets SET balance = balance + 1"),
    (BALANCE, "UPDATE wallets SET version = version - 1"),
    (BALANCE, "UPDATE wallets SET version = version + 1"),
    (
        BALANCE,
        "UPDATE entries SET amount = amount - 100, balance_after = balance_after - 100 WHERE amount = -10; \
         UPDATE entries SET amount = amount + 100, balance_after = balance_after + 100 WHERE amount = 10; \
         UPDATE wallets SET balance = balance - 100 WHERE version = 3; \
         UPDATE wallets SET balance = balance + 100 WHERE version = 2",
    ),
    (CLAIM, "UPDATE claims SET amount = 101"),
    (
        CLAIM,
        "INSERT INTO claims (id, member_id, bonus, period, streak, amount, currency, transaction_id, claimed_at) \
         SELECT {new id}, member_id, 'daily', '2026-01-01', 1, amount, currency, {new id}, claimed_at FROM claims",
    ),
    (BONUS, "DELETE FROM claims"),
    (KEY, "UPDATE idempotency_keys SET transaction_id = {new id}"),
];

on_both!(the_audit_notices_each_kind_of_damage, async |database| {
    let mut unnoticed = Vec::new();
    for (rule, damage) in DAMAGES {
        let world = a_small_book(database).await;
        let url = SecretString::from(world.url.clone());
        let report = audit(&url).await.unwrap();
        assert!(report.books_balance(), "{report}");
        assert_eq!(report.held, [("PTS".to_owned(), 100)]);
        do_damage(&world, damage).await;
        let report = audit(&url).await.unwrap();
        if !report.broken.iter().any(|broken| broken.starts_with(&format!("{rule}: "))) {
            unnoticed.push(format!("{rule}: {damage}: {report}"));
        }
        // The books are damaged on purpose, so nobody asks whether they balance.
        world.stop().await;
    }
    assert_eq!(unnoticed, Vec::<String>::new());
});

/// Alice had a bonus of 100 and sent 30 and 10 of it to bob.
async fn a_small_book(database: Database) -> World {
    let world = World::new(database, Locks::Off).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    for amount in [30, 10] {
        let answer = send(&world, "alice", "bob", amount, &format!("key{amount}")).await;
        assert_eq!(answer.user_error("transfer"), None, "{}", answer.body);
    }
    world
}

/// With the constraints off, in one call and so on one connection, since the switches belong to it.
async fn do_damage(world: &World, damage: &str) {
    let (off, new_id) = match world.database {
        Database::Postgres => (
            "SET session_replication_role = replica; DROP INDEX entries_wallet_seq; \
             ALTER TABLE wallets DROP CONSTRAINT wallets_balance_check; \
             ALTER TABLE entries DROP CONSTRAINT entries_balance_after_check; \
             ALTER TABLE idempotency_keys DROP CONSTRAINT idempotency_keys_check",
            "gen_random_uuid()",
        ),
        Database::Sqlite => (
            "PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON; DROP INDEX entries_wallet_seq",
            "randomblob(16)",
        ),
    };
    let sql = world.sql().await;
    let done = sql.execute_unprepared(&format!("{off}; {}", damage.replace("{new id}", new_id))).await;
    done.unwrap_or_else(|error| panic!("{damage}: {error}"));
    sql.close().await.unwrap();
}

/// Everybody is funded, and every transfer of the flood is paid.
async fn flood(world: &World, members: &[&str], ask: impl Fn(usize) -> (String, Value)) {
    for member in members {
        world.fund(member).await;
    }
    let answers = world.storm(FLOOD, ask).await;
    all_done(&answers);
    let moved = world.count("SELECT COUNT(*) FROM transactions WHERE kind = 'transfer'").await;
    assert_eq!(moved, i64::try_from(FLOOD).unwrap());
}

fn all_done(answers: &[Answer]) {
    for answer in answers {
        assert_eq!((answer.codes(), answer.user_error("transfer")), (vec![], None), "{}", answer.body);
    }
}

fn one_paid_one_refused(answers: &[Answer]) {
    let paid = answers.iter().filter(|answer| answer.data("/transfer/entry/id").is_string()).count();
    let refused: Vec<_> =
        answers.iter().filter(|answer| answer.user_error("transfer") == Some("INSUFFICIENT_FUNDS")).collect();
    assert_eq!((paid, refused.len()), (1, 1), "{answers:?}");
    assert_eq!(refused[0].data("/transfer/userErrors/0/available/amount"), "15");
}

/// Ends the world; its database met no deadlock, not even one that was healed by trying again.
async fn ends_without_a_deadlock(world: World) {
    let (database, url) = (world.database, world.url.clone());
    world.end().await;
    if database == Database::Postgres {
        // The sessions have ended, and with that reported what they met.
        let name = url.rsplit('/').next().unwrap();
        let sql = sea_orm::Database::connect(crate::world::database_url("postgres")).await.unwrap();
        let count = format!("SELECT deadlocks FROM pg_stat_database WHERE datname = '{name}'");
        let row = sql.query_one_raw(sea_orm::Statement::from_string(sea_orm::DbBackend::Postgres, count)).await;
        assert_eq!(row.unwrap().unwrap().try_get_by_index::<i64>(0).unwrap(), 0, "deadlocks");
        sql.close().await.unwrap();
    }
}

async fn sum(world: &World, members: &[&str]) -> i64 {
    let mut sum = 0;
    for member in members {
        sum += world.balance(member).await;
    }
    sum
}

async fn rows(world: &World) -> HashMap<&'static str, i64> {
    let mut rows = HashMap::new();
    for table in ["members", "wallets", "transactions", "entries", "claims"] {
        rows.insert(table, world.count(&format!("SELECT COUNT(*) FROM {table}")).await);
    }
    rows
}

async fn send(world: &World, from: &str, to: &str, amount: i64, key: &str) -> Answer {
    world.ask(from, TRANSFER, transfer(to, amount, key)["variables"].clone()).await
}

/// A transfer of a storm, under a key of its own.
fn wish(from: &str, to: &str, amount: i64, number: usize) -> (String, Value) {
    (from.to_owned(), transfer(to, amount, &format!("key{number}")))
}

fn wallet_id(member: &str) -> String {
    let currency = largesse::amount::CurrencyCode::parse("PTS").unwrap();
    largesse::ledger::post::WalletRef::new(&Member::parse(member).unwrap(), &currency).id().to_string()
}

async fn holding_the_wallets(sql: &DatabaseConnection) -> DatabaseTransaction {
    let transaction = sql.begin().await.unwrap();
    transaction.execute_unprepared("SELECT 1 FROM wallets FOR UPDATE").await.unwrap();
    transaction
}
