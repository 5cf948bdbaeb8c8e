//! Promise: a bonus is paid once per member and period, whatever arrives at the same time, with the cooldown and without it.
//!
//! Guards layer 1 (the database sees the work of one), layer 2 (the claim row) and layer 3 (the wallet's lock before the
//! clock).

use chrono::{TimeDelta, Utc};
use serde_json::json;

use crate::on_both;
use crate::world::statements::statements;
use crate::world::{Answer, CLAIM_DAILY, CLAIM_SIGNUP, Database, Locks, World, patient, wait_until};

const RIVALS: usize = 200;

on_both!(two_hundred_claims_with_the_cooldown, |database| two_hundred_claims_with(database, Locks::InProcess));

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_claims_with_redis() {
    two_hundred_claims_with(Database::Postgres, Locks::Redis).await;
}

async fn two_hundred_claims_with(database: Database, locks: Locks) {
    let world = World::with(database, locks, |settings| {
        // One Redis command that took longer would be one admission of the process more, and rightly so.
        settings.cooldown.command_timeout_ms = 5000;
    })
    .await;
    world.introduce("alice").await;
    let answers = world.storm(RIVALS, |_| ("alice".to_owned(), json!({ "query": CLAIM_DAILY }))).await;
    let paid: Vec<&Answer> = answers.iter().filter(|answer| answer.codes().is_empty()).collect();
    assert_eq!(paid.len(), 1);
    assert_eq!(paid[0].data("/claimDailyBonus/claim/streak"), 1);
    for answer in answers.iter().filter(|answer| !answer.codes().is_empty()) {
        assert_eq!(answer.codes(), ["COOLDOWN_ACTIVE"]);
        assert_eq!((answer.status, answer.data("/claimDailyBonus")), (200, &serde_json::Value::Null));
        let error = &answer.body["errors"][0];
        assert_eq!(
            (&error["path"], &error["extensions"]["action"]),
            (&json!(["claimDailyBonus"]), &json!("claimDailyBonus"))
        );
        let left = error["extensions"]["retryAfterMs"].as_i64().unwrap();
        assert!((1..=5000).contains(&left), "{left}");
        let seconds: i64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert_eq!(seconds, (left + 999) / 1000, "rounded up");
    }
    paid_once(&world).await;
    if world.database == Database::Postgres {
        // A storm that got through to the database would have begun a transaction for each rival.
        let claims = statements(&world, "INSERT INTO \"claims\"%").await;
        let locks = statements(&world, "%FROM \"wallets\"%FOR NO KEY UPDATE%").await;
        assert_eq!((claims, locks), (1, 2), "one claim; the wallet was looked for, opened, and locked");
    }
    world.end().await;
}

on_both!(two_hundred_claims_without_the_cooldown, async |database| {
    let world = World::with(database, Locks::Off, patient).await;
    let answers = world.storm(RIVALS, |_| ("alice".to_owned(), json!({ "query": CLAIM_DAILY }))).await;
    let (mut paid, mut refused) = (Vec::new(), Vec::new());
    for answer in &answers {
        assert_eq!(answer.codes(), Vec::<&str>::new(), "no other error at all: {}", answer.body);
        let claim = &answer.data("/claimDailyBonus/claim/id");
        match answer.user_error("claimDailyBonus") {
            None => paid.push((*claim).clone()),
            Some("ALREADY_CLAIMED") => refused.push(answer.data("/claimDailyBonus/userErrors/0/claim/id").clone()),
            Some(other) => panic!("{other}"),
        }
    }
    assert_eq!((paid.len(), refused.len()), (1, RIVALS - 1));
    assert!(refused.iter().all(|claim| *claim == paid[0]), "the winning claim is attached");
    paid_once(&world).await;
    world.end().await;
});

on_both!(two_hundred_signup_claims_without_the_cooldown, async |database| {
    let world = World::with(database, Locks::Off, patient).await;
    let answers = world.storm(RIVALS, |_| ("alice".to_owned(), json!({ "query": CLAIM_SIGNUP }))).await;
    for answer in &answers {
        let why = answer.body["errors"][0]["extensions"]["requestId"].as_str().map(crate::world::log::of_request);
        assert_eq!(answer.codes(), Vec::<&str>::new(), "no other error at all: {why:?}");
    }
    let paid = answers.iter().filter(|answer| answer.user_error("claimSignupBonus").is_none()).count();
    assert_eq!((paid, world.balance("alice").await), (1, 100));
    let again = world.ask("alice", CLAIM_SIGNUP, json!({})).await;
    assert_eq!(again.user_error("claimSignupBonus"), Some("ALREADY_CLAIMED"));
    assert!(again.data("/claimSignupBonus/userErrors/0/nextClaimAt").is_null(), "never again");
    world.end().await;
});

const ALIASES: &str = "mutation { a: claimDailyBonus { ...P } b: claimDailyBonus { ...P } c: claimDailyBonus { ...P } } \
    fragment P on ClaimDailyBonusPayload { claim { streak } userErrors { code } }";

const THROUGH_A_FRAGMENT: &str = "mutation { ...Three } fragment Three on Mutation { a: claimDailyBonus { ...P } \
    b: claimDailyBonus { ...P } c: claimDailyBonus { ...P } } \
    fragment P on ClaimDailyBonusPayload { claim { streak } userErrors { code } }";

on_both!(three_aliases_in_one_request_meet_the_cooldown, async |database| {
    for document in [ALIASES, THROUGH_A_FRAGMENT] {
        let world = World::new(database, Locks::InProcess).await;
        let answer = world.ask("alice", document, json!({})).await;
        assert_eq!(answer.data("/a/claim/streak"), 1, "the first is unharmed by the others");
        assert!(answer.data("/b").is_null() && answer.data("/c").is_null());
        assert_eq!(answer.codes(), ["COOLDOWN_ACTIVE", "COOLDOWN_ACTIVE"]);
        assert_eq!(
            (&answer.body["errors"][0]["path"], &answer.body["errors"][1]["path"]),
            (&json!(["b"]), &json!(["c"]))
        );
        paid_once(&world).await;
        world.end().await;
    }
});

on_both!(three_aliases_in_one_request_meet_the_claim, async |database| {
    for document in [ALIASES, THROUGH_A_FRAGMENT] {
        let world = World::new(database, Locks::Off).await;
        let answer = world.ask("alice", document, json!({})).await;
        assert_eq!(answer.codes(), Vec::<&str>::new());
        assert_eq!((answer.data("/a/claim/streak"), answer.user_error("a")), (&json!(1), None));
        assert_eq!(
            (answer.user_error("b"), answer.user_error("c")),
            (Some("ALREADY_CLAIMED"), Some("ALREADY_CLAIMED"))
        );
        paid_once(&world).await;
        world.end().await;
    }
});

on_both!(a_response_key_selected_twice_runs_nothing_twice, async |database| {
    let world = World::new(database, Locks::Off).await;
    let twice = "mutation { claimDailyBonus { claim { id } } claimDailyBonus { claim { streak } } }";
    let answer = world.ask("alice", twice, json!({})).await;
    assert_eq!(answer.code(), Some("GRAPHQL_VALIDATION_FAILED"));
    assert!(answer.body.get("data").is_none());
    assert_eq!(world.count("SELECT COUNT(*) FROM claims").await, 0);
    world.end().await;
});

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_after_redis_lost_all_keys_is_already_claimed() {
    let mut redis = crate::world::redis_server::RedisServer::start();
    let world = World::with(Database::Postgres, Locks::RedisAt(redis.url()), |settings| {
        settings.cooldown.command_timeout_ms = 5000;
    })
    .await;
    assert_eq!(world.ask("alice", CLAIM_DAILY, json!({})).await.user_error("claimDailyBonus"), None);
    redis.command(&["FLUSHALL"]);
    let answers = world.storm(RIVALS, |_| ("alice".to_owned(), json!({ "query": CLAIM_DAILY }))).await;
    for answer in &answers {
        let refused = answer.user_error("claimDailyBonus").or(answer.code());
        assert!(matches!(refused, Some("ALREADY_CLAIMED" | "COOLDOWN_ACTIVE")), "{}", answer.body);
    }
    paid_once(&world).await;
    world.end().await;
    redis.stop();
}

/// The claim of the new day waits for yesterday's, which another process is still committing, and counts it in.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_at_the_edge_of_the_day_sees_yesterdays_that_is_not_yet_committed() {
    let yesterday = World::new(Database::Postgres, Locks::Off).await;
    yesterday.fund("alice").await;
    let today = yesterday.another(|_| {}).await;
    // One process is a moment before midnight, the other a moment after it.
    let midnight = (Utc::now() + TimeDelta::days(1)).date_naive().and_time(chrono::NaiveTime::MIN).and_utc();
    yesterday.app.ledger.clock().move_to(midnight - Utc::now() - TimeDelta::seconds(30));
    today.app.ledger.clock().move_to(midnight - Utc::now() + TimeDelta::seconds(30));

    // Entries cannot be written while this lock is held, so the first claim stops between its lock and its commit.
    let held = yesterday.sql().await;
    let holding = sea_orm::TransactionTrait::begin(&held).await.unwrap();
    sea_orm::ConnectionTrait::execute_unprepared(&holding, "LOCK TABLE entries IN SHARE MODE").await.unwrap();
    let (first, second) = tokio::join!(async { yesterday.ask("alice", CLAIM_DAILY, json!({})).await }, async {
        wait_until("the first claim waits", async || yesterday.waiting_for_locks().await == 1).await;
        let second = tokio::spawn({
            let (url, body) = (format!("{}/graphql", today.address()), json!({ "query": CLAIM_DAILY }));
            let client = reqwest::Client::new();
            async move { client.post(url).bearer_auth(crate::world::token("alice")).json(&body).send().await }
        });
        wait_until("the second claim waits behind it", async || yesterday.waiting_for_locks().await == 2).await;
        holding.rollback().await.unwrap();
        second.await.unwrap().unwrap().json::<serde_json::Value>().await.unwrap()
    });
    assert_eq!(first.data("/claimDailyBonus/claim/streak"), 1);
    assert_eq!(second["data"]["claimDailyBonus"]["claim"]["streak"], 2, "{second}");
    assert_eq!(yesterday.balance("alice").await, 100 + 10 + 15);
    today.stop().await;
    yesterday.end().await;
}

on_both!(the_status_predicts_what_the_claim_does, async |database| {
    let world = World::new(database, Locks::Off).await;
    let status = "{ viewer { dailyBonus { claimable streak nextStreak amount { amount } day nextClaimAt streakEndsAt \
        claim { id } schedule { streak amount { amount } } timeZone } signupBonus { claimable amount { amount } } } }";
    let mut balance = 0;
    for (day, (streak, amount)) in [(1, 10), (2, 15), (3, 20)].into_iter().enumerate() {
        world.app.ledger.clock().move_to(TimeDelta::days(i64::try_from(day).unwrap()));
        let before = world.ask("alice", status, json!({})).await;
        let standing = before.data("/viewer/dailyBonus");
        assert_eq!((&standing["claimable"], &standing["nextStreak"]), (&json!(true), &json!(streak)));
        assert_eq!(standing["amount"]["amount"], amount.to_string());
        assert!(standing["nextClaimAt"].is_null() && standing["claim"].is_null());
        let claimed = world.ask("alice", CLAIM_DAILY, json!({})).await;
        balance += amount;
        assert_eq!(claimed.data("/claimDailyBonus/claim/streak"), streak);
        assert_eq!(*claimed.data("/claimDailyBonus/wallet/balance/amount"), json!(balance.to_string()));
        assert_eq!(claimed.data("/claimDailyBonus/claim/day"), &standing["day"]);
        let after = world.ask("alice", status, json!({})).await;
        let standing = after.data("/viewer/dailyBonus");
        assert_eq!((&standing["claimable"], &standing["streak"]), (&json!(false), &json!(streak)));
        let again = world.ask("alice", CLAIM_DAILY, json!({})).await;
        assert_eq!(again.data("/claimDailyBonus/userErrors/0/nextClaimAt"), &standing["nextClaimAt"]);
        assert_eq!(again.data("/claimDailyBonus/userErrors/0/claim/id"), &standing["claim"]["id"]);
    }
    // A missed day starts again at 1.
    world.app.ledger.clock().move_to(TimeDelta::days(4));
    assert_eq!(world.ask("alice", status, json!({})).await.data("/viewer/dailyBonus/nextStreak"), 1);
    assert_eq!(world.ask("alice", CLAIM_DAILY, json!({})).await.data("/claimDailyBonus/claim/streak"), 1);
    // A clock that went back gives no day twice.
    world.app.ledger.clock().move_to(TimeDelta::days(3));
    assert_eq!(world.ask("alice", CLAIM_DAILY, json!({})).await.user_error("claimDailyBonus"), Some("ALREADY_CLAIMED"));
    world.end().await;
});

on_both!(a_bonus_without_amounts_is_unavailable, async |database| {
    let world = World::with(database, Locks::InProcess, |settings| {
        settings.daily_bonus.amounts.clear();
        settings.signup_bonus.amount = None;
    })
    .await;
    let daily = world.ask("alice", CLAIM_DAILY, json!({})).await;
    assert_eq!(daily.user_error("claimDailyBonus"), Some("BONUS_UNAVAILABLE"));
    let signup = world.ask("alice", CLAIM_SIGNUP, json!({})).await;
    assert_eq!(signup.user_error("claimSignupBonus"), Some("BONUS_UNAVAILABLE"));
    let status = world.ask("alice", "{ viewer { dailyBonus { day } signupBonus { claimable } } }", json!({})).await;
    assert!(status.data("/viewer/dailyBonus").is_null() && status.data("/viewer/signupBonus").is_null());
    assert_eq!(world.count("SELECT COUNT(*) FROM wallets").await, 0, "a refusal opens no wallet");
    world.end().await;
});

/// One claim, one grant, streak 1, the balance of one.
async fn paid_once(world: &World) {
    assert_eq!(world.count("SELECT COUNT(*) FROM claims").await, 1);
    assert_eq!(world.count("SELECT COUNT(*) FROM transactions").await, 1);
    assert_eq!(world.balance("alice").await, 10);
}
