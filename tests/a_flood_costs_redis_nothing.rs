//! Promise: a flood on one member costs Redis nothing beyond its first refusals, and keeps nobody out whom Redis would admit.
//!
//! Guards layer 1: what a process knows of locks (`cooldown/memory.rs`), when it asks (`cooldown/asking.rs`), and what it
//! learns from an answer (`cooldown/mod.rs`).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use largesse::config::{Settings, WithoutRedis};
use largesse::cooldown::{Cooldown, Decision, Rule, Wish};
use largesse::member::Member;
use serde_json::{Value, json};

use crate::world::redis_server::RedisServer;
use crate::world::stores::{LONG_MS, Processes, Store, WALLETS, alice, all_refused, holding, refused_ms};
use crate::world::{CLAIM_DAILY, World, patient, token, transfer, wait_until};

/// Attempts of alice on bob, one after the other and then all at once, each with a key of its own. All are refused.
async fn flood(world: &World) {
    for number in 0..100 {
        refused_ms(&alice(world, &transfer("bob", 1, &format!("sequential-{number}"))).await);
    }
    let answers = world.storm(150, |number| ("alice".to_owned(), transfer("bob", 1, &format!("storm-{number}")))).await;
    all_refused(&answers);
}

fn nothing() -> BTreeMap<String, u64> {
    BTreeMap::new()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_has_ended_is_known_where_it_was_made_and_asked_for_once_elsewhere() {
    // Done, and refused as business.
    for amount in [30, 101] {
        let processes = Processes::new(Store::Redis).await;
        processes.one.introduce("bob").await;
        let first = alice(&processes.one, &transfer("bob", amount, "one")).await;
        assert_eq!(first.data("/transfer/replayed"), false, "{}", first.body);

        processes.redis().forget_commands();
        flood(&processes.one).await;
        assert_eq!(processes.redis().commands(), nothing(), "the process that did it asked Redis");

        flood(processes.two()).await;
        let asked = processes.redis().commands();
        assert_eq!(asked.get("evalsha"), Some(&1), "the other process asks once: {asked:?}");
        assert_eq!(processes.one.balance("bob").await, if amount == 30 { 30 } else { 0 });
        processes.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_on_what_has_ended_elsewhere_asks_a_handful_of_times() {
    let processes = Processes::new(Store::Redis).await;
    alice(&processes.one, &json!({ "query": CLAIM_DAILY })).await;
    processes.redis().forget_commands();
    let answers = processes.two().storm(300, |_| ("alice".to_owned(), json!({ "query": CLAIM_DAILY }))).await;
    all_refused(&answers);
    // Those that came during the first question ask once more, and whoever came during that one.
    let asked = processes.redis().calls("evalsha");
    assert!((1..=10).contains(&asked), "300 attempts asked {asked} times");
    processes.end().await;
}

/// The wish of alice to send bob something, met by a cooldown without a server around it, so that a test can say when it
/// has come.
async fn wish(cooldown: &Cooldown) -> Option<Duration> {
    let (member, window) = (Member::parse("alice").unwrap(), Duration::from_millis(LONG_MS));
    let wish = Wish { member: &member, action: "transfer", resource: Some("bob"), fingerprint: None };
    let rule = Rule { window, without_redis: WithoutRedis::Refuse, most_per_minute: None };
    match cooldown.attempt(wish, &rule).await.expect("Redis answers") {
        Decision::Refused { left, .. } => Some(left),
        Decision::Answered(_) => panic!("nobody could ask for an answer"),
        Decision::Admitted(admission) => {
            drop(admission.begin());
            None
        }
    }
}

/// Another process than the world's, on the same Redis.
async fn cooldown_beside(world: &World, change: impl FnOnce(&mut Settings)) -> Cooldown {
    let mut settings = world.settings.clone();
    change(&mut settings);
    let cooldown = Cooldown::open(&settings).unwrap();
    wait_until("Redis is connected", async || cooldown.answers()).await;
    cooldown
}

/// Alice's attempt in the first process, which waits for the wallets.
async fn runs(processes: &Processes, key: &str) -> tokio::task::JoinHandle<crate::world::Answer> {
    let running = processes.one.begin_post(&token("alice"), &transfer("bob", 30, key));
    wait_until("the attempt is at work", async || processes.one.waiting_for_locks().await == 1).await;
    running
}

#[tokio::test(flavor = "multi_thread")]
async fn of_an_attempt_that_runs_elsewhere_a_storm_shares_one_question() {
    let processes = Processes::with(Store::Redis, patient).await;
    processes.one.introduce("bob").await;
    let rival = holding(&processes.one, WALLETS).await;
    let running = runs(&processes, "one").await;
    let elsewhere = cooldown_beside(&processes.one, |settings| settings.cooldown.command_timeout_ms = 20_000).await;

    processes.redis().forget_commands();
    processes.redis().freeze();
    let first = tokio::spawn({
        let elsewhere = elsewhere.clone();
        async move { wish(&elsewhere).await }
    });
    wait_until("the first question is under way", async || processes.redis().unread_bytes() > 0).await;
    // All of them have come before any of them is answered: joined, each is polled once before the first is polled again.
    let storm = async { join_all((0..50).map(|_| wish(&elsewhere))).await };
    let thaw = async {
        tokio::task::yield_now().await;
        processes.redis().thaw();
    };
    let (answers, ()) = tokio::join!(storm, thaw);
    let refused = answers.iter().chain([&first.await.unwrap()]).filter(|left| left.is_some()).count();
    assert_eq!(refused, 51);
    assert_eq!(processes.redis().calls("evalsha"), 2, "the first question, and one for all who came during it");

    // The process whose attempt it is asks nobody.
    processes.redis().forget_commands();
    flood(&processes.one).await;
    assert_eq!(processes.redis().commands(), nothing());
    rival.rollback().await.unwrap();
    assert_eq!(running.await.unwrap().data("/transfer/replayed"), false);
    processes.end().await;
}

/// Makes attempts on bob in the first process and on carol in the second one's sight, and tries each again in a process that
/// has refused it by its own knowledge, as soon as Redis would admit it.
async fn admitted_as_soon_as_redis_would(amount: i64, lasts_ms: u64) {
    let processes = Processes::with(Store::Redis, |settings| {
        settings.cooldown.after_refusal_ms = 3000;
        settings.cooldown.actions.get_mut("transfer").unwrap().window_ms = Some(5000);
    })
    .await;
    let since = Instant::now();
    let mut locks = Vec::new();
    for to in ["bob", "carol"] {
        processes.one.introduce(to).await;
        let first = alice(&processes.one, &transfer(to, amount, &format!("first-{to}"))).await;
        assert_eq!(first.data("/transfer/replayed"), false, "{}", first.body);
        locks.extend(processes.locks("alice").into_iter().find(|lock| !locks.contains(lock)));
    }
    refused_ms(&alice(&processes.one, &transfer("bob", 1, "second-bob")).await);
    refused_ms(&alice(processes.two(), &transfer("carol", 1, "second-carol")).await);
    for ((to, world), lock) in [("bob", &processes.one), ("carol", processes.two())].into_iter().zip(&locks) {
        wait_until("Redis would admit", async || processes.redis().left_ms(lock) == -2).await;
        let next = alice(world, &transfer(to, 1, &format!("third-{to}"))).await;
        assert_eq!((next.code(), next.data("/transfer/replayed")), (None, &json!(false)), "{}", next.body);
    }
    assert_eq!(locks.len(), 2);
    assert!(since.elapsed() >= Duration::from_millis(lasts_ms), "the locks went before their time");
    processes.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_has_come_to_its_end_keeps_nobody_out() {
    Box::pin(admitted_as_soon_as_redis_would(30, 5000)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_shortened_keeps_nobody_out() {
    Box::pin(admitted_as_soon_as_redis_would(101, 3000)).await;
}

/// An attempt that rolled back gives its lock back, and so does one whose key is in use.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_released_keeps_nobody_out() {
    for (code, statement) in [
        ("UNAVAILABLE", WALLETS),
        (
            "IDEMPOTENCY_CONCURRENT_REQUEST",
            "INSERT INTO idempotency_keys (member_id, operation, key, fingerprint, refusal, created_at) \
             SELECT id, 'transfer', 'one', '\\x00', '{}', now() FROM members WHERE name = 'alice'",
        ),
    ] {
        let processes = Processes::with(Store::Redis, |settings| {
            settings.request.deadline_ms = 6000;
            settings.database.statement_timeout_ms = 5000;
            settings.database.lock_timeout_ms = 3000;
        })
        .await;
        processes.one.introduce("bob").await;
        let rival = holding(&processes.one, statement).await;
        let running = runs(&processes, "one").await;
        for world in processes.all() {
            let seen = processes.redis().left_ms(&processes.locks("alice")[0]);
            let told = refused_ms(&alice(world, &transfer("bob", 1, "two")).await);
            assert!(told <= seen, "Redis would say at most {seen} ms, the server said {told}");
        }
        assert_eq!(running.await.unwrap().codes(), [code]);
        rival.rollback().await.unwrap();
        for (number, world) in processes.all().enumerate() {
            // Each in turn: whoever is admitted gives the lock back, for its amount is none.
            let next = alice(world, &transfer("bob", 0, &format!("next-{number}"))).await;
            assert_eq!(next.user_error("transfer"), Some("INVALID_INPUT"), "{code}: {}", next.body);
        }
        assert_eq!(alice(processes.two(), &transfer("bob", 1, "two")).await.data("/transfer/replayed"), false);
        processes.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_refuses_by_itself_never_says_more_than_redis_would() {
    let processes = Processes::new(Store::Redis).await;
    alice(&processes.one, &json!({ "query": CLAIM_DAILY })).await;
    let lock = processes.redis().keys().pop().expect("the lock");
    for world in processes.all() {
        for _ in 0..50 {
            let (since, most) = (Instant::now(), processes.redis().left_ms(&lock));
            let told = refused_ms(&alice(world, &json!({ "query": CLAIM_DAILY })).await);
            let least = most - i64::try_from(since.elapsed().as_millis()).unwrap() - 50;
            assert!((least..=most).contains(&told), "Redis says {least} to {most} ms, the server {told}");
        }
    }
    processes.end().await;
}

/// The members whose daily claims a test looks at.
fn members(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("member {number}")).collect()
}

async fn claim(world: &World, member: &str) -> Value {
    world.post(Some(&token(member)), json!({ "query": CLAIM_DAILY })).await.body
}

/// How often Redis was asked while each of these members was refused once in this process.
async fn questions(redis: &RedisServer, world: &World, members: &[String]) -> u64 {
    redis.forget_commands();
    for member in members {
        let body = claim(world, member).await;
        assert_eq!(body["errors"][0]["extensions"]["code"], "COOLDOWN_ACTIVE", "{body}");
    }
    redis.calls("evalsha")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_remembered_than_the_setting_says() {
    let processes = Processes::new(Store::Redis).await;
    let members = members(10);
    for member in &members {
        claim(&processes.one, member).await;
    }
    for (remember, second_time) in [(0, 10), (4, 6), (10, 0)] {
        let other = processes.one.another(|settings| settings.cooldown.remember = remember).await;
        assert_eq!(questions(processes.redis(), &other, &members).await, 10);
        assert_eq!(questions(processes.redis(), &other, &members).await, second_time, "remember = {remember}");
        other.stop().await;
    }
    processes.end().await;
}

/// What has ended makes room for what is new, however little may be remembered.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_ended_is_not_remembered() {
    let processes = Processes::with(Store::Redis, |settings| {
        settings.cooldown.after_refusal_ms = 1000;
        settings.cooldown.remember = 4;
    })
    .await;
    let redis = processes.redis();
    let four: Vec<_> = members(4);
    for to in &four {
        // Nobody here has anything to send, so these locks are shortened.
        let answer = processes.one.post(Some(&token(to)), transfer("alice", 1, "one")).await;
        assert_eq!(answer.user_error("transfer"), Some("INSUFFICIENT_FUNDS"), "{}", answer.body);
        processes.two().post(Some(&token(to)), transfer("alice", 1, "two")).await;
    }
    wait_until("these locks have ended", async || four.iter().all(|member| processes.locks(member).is_empty())).await;
    for member in &four {
        claim(&processes.one, member).await;
    }
    assert_eq!(questions(redis, processes.two(), &four).await, 4);
    assert_eq!(questions(redis, processes.two(), &four).await, 0, "all four are remembered");
    processes.end().await;
}

/// With nothing to be remembered, the process asks even for what it did itself.
#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_may_be_remembered_each_attempt_asks() {
    let processes = Processes::with(Store::Redis, |settings| settings.cooldown.remember = 0).await;
    alice(&processes.one, &json!({ "query": CLAIM_DAILY })).await;
    for world in processes.all() {
        processes.redis().forget_commands();
        let answers = world.storm(20, |_| ("alice".to_owned(), json!({ "query": CLAIM_DAILY }))).await;
        all_refused(&answers);
        assert_eq!(processes.redis().calls("evalsha"), 20);
    }
    processes.end().await;
}
