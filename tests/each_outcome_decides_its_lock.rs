//! Promise: how an attempt ended decides what is stored under its key and what becomes of its lock: one test for each row
//! of the outcome table in `src/api/work.rs`, and for whose lock it is.
//!
//! Guards layer 1, where it meets the work: `api/guard.rs`, `api/work.rs` and both stores of `cooldown/`.

use std::time::{Duration, Instant};

use largesse::config::{Settings, WithoutRedis};
use largesse::cooldown::{Admission, Cooldown, Decision, Ended, Rule, Wish};
use largesse::member::Member;
use serde_json::{Value, json};

use crate::on_each_store;
use crate::world::by_hand::Client;
use crate::world::proxy::{Deed, Proxy};
use crate::world::redis_server::RedisServer;
use crate::world::stores::{Store, WALLETS, execute, holding};
use crate::world::{Answer, Database, Locks, TRANSFER, World, token, transfer, unique, wait_until};

/// The window that `transfer` declares.
const WINDOW_MS: i64 = 5000;

/// What a business refusal shortens it to.
const AFTER_REFUSAL_MS: i64 = 1000;

/// Runs a test with both stores, and on both databases where the database does not matter.
macro_rules! with_each_store {
    ($name:ident, $test:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn in_the_process_on_sqlite() {
                ($test)(Database::Sqlite, Store::InProcess).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn in_the_process_on_postgres() {
                ($test)(Database::Postgres, Store::InProcess).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn in_redis_on_sqlite() {
                ($test)(Database::Sqlite, Store::Redis).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn in_redis_on_postgres() {
                ($test)(Database::Postgres, Store::Redis).await;
            }
        }
    };
}

/// Alice has 100 points, bob is known, and alice's lock can be looked at.
struct Scene {
    world: World,
    redis: Option<RedisServer>,
}

impl Scene {
    async fn new(database: Database, store: Store) -> Self {
        Self::with(database, store, |_| {}).await
    }

    async fn with(database: Database, store: Store, change: impl FnOnce(&mut Settings)) -> Self {
        let redis = (store == Store::Redis).then(RedisServer::start);
        let locks = redis.as_ref().map_or(Locks::InProcess, |redis| Locks::RedisAt(redis.url()));
        let world = World::with(database, locks, change).await;
        world.fund("alice").await;
        world.introduce("bob").await;
        Self { world, redis }
    }

    /// The server of this scene reaches its database through a proxy from here on. One connection is enough, and says by
    /// being free that the work has ended.
    async fn behind_a_proxy(store: Store) -> (Self, Proxy) {
        let Self { world, redis } = Self::with(Database::Postgres, store, |settings| {
            settings.request.deadline_ms = 1000;
            settings.database.statement_timeout_ms = 900;
            settings.database.pool_size = 1;
        })
        .await;
        let proxy = Proxy::in_front_of(&world.url).await;
        let behind = world.through(proxy.url()).await;
        world.stop().await;
        (Self { world: behind, redis }, proxy)
    }

    async fn ask(&self, body: Value) -> Answer {
        self.world.post(Some(&token("alice")), body).await
    }

    /// How long alice's lock lasts, in milliseconds; 0 if there is none.
    ///
    /// The lock itself is looked up in Redis. In both stores it is met as well, by a wish whose amount is no amount, which
    /// leaves the lock as it finds it and touches no database.
    async fn left_ms(&self) -> i64 {
        let left = |redis: &RedisServer| self.lock(redis).map_or(0, |lock| redis.left_ms(&lock).max(0));
        let seen = self.redis.as_ref().map(left);
        let query = "mutation($input: TransferInput!) { transfer(input: $input) { userErrors { code } } }";
        let variables = transfer("bob", 0, "looking")["variables"].clone();
        let answer = self.ask(json!({ "query": query, "variables": variables })).await;
        let told = match answer.code() {
            Some("COOLDOWN_ACTIVE") => answer.body["errors"][0]["extensions"]["retryAfterMs"].as_i64().unwrap(),
            other => {
                assert_eq!((other, answer.user_error("transfer")), (None, Some("INVALID_INPUT")), "{}", answer.body);
                0
            }
        };
        assert!(seen.is_none_or(|seen| told <= seen), "Redis holds the lock for {seen:?} ms, the server told {told}");
        told
    }

    /// The key of alice's lock in Redis, beside what is counted against her budget. No test here pays anyone but bob.
    fn lock(&self, redis: &RedisServer) -> Option<String> {
        let member = Member::parse("alice").unwrap().id().simple().to_string();
        let of_transfer = format!("{}:{{{member}}}:transfer:", self.world.settings.cooldown.prefix);
        redis.keys().into_iter().find(|key| key.starts_with(&of_transfer) && !key.ends_with(":minute"))
    }

    /// The lock that was taken after `since` stays to the end of its window.
    async fn is_kept(&self, since: Instant) {
        let left = self.left_ms().await;
        let least = WINDOW_MS - passed_ms(since) - 1;
        assert!((least.max(1)..=WINDOW_MS).contains(&left), "{left} ms are left, {least} or more were to be");
    }

    /// The lock was shortened after `since`.
    async fn is_shortened(&self, since: Instant) {
        let left = self.left_ms().await;
        let least = AFTER_REFUSAL_MS - passed_ms(since) - 1;
        assert!((least..=AFTER_REFUSAL_MS).contains(&left), "{left} ms are left");
    }

    /// The lock is gone before its time.
    async fn is_released(&self, since: Instant) {
        assert_eq!(self.left_ms().await, 0);
        assert!(passed_ms(since) < WINDOW_MS, "too slow a machine to tell a release from an end");
    }

    /// The lock goes before its time: somebody releases it.
    async fn comes_to_be_released(&self, since: Instant) {
        wait_until("the lock is released", async || self.left_ms().await == 0).await;
        assert!(passed_ms(since) < WINDOW_MS, "the lock was not released, it ended");
    }

    /// How many keys have value that moved as their answer, and how many a refusal.
    async fn stored(&self) -> (i64, i64) {
        let count = "SELECT COUNT(*) FROM idempotency_keys WHERE";
        let moved = self.world.count(&format!("{count} transaction_id IS NOT NULL")).await;
        (moved, self.world.count(&format!("{count} refusal IS NOT NULL")).await)
    }

    /// Another process, on the same books and without the layer, tells what the key's answer is.
    async fn told_elsewhere(&self, body: Value) -> Answer {
        let other = self.world.another(|settings| settings.cooldown.enabled = false).await;
        let answer = other.post(Some(&token("alice")), body).await;
        other.stop().await;
        answer
    }

    /// The wish is made in another process without the layer, so that here it is a repeat under a lock of its own.
    async fn done_elsewhere(&self, body: Value) {
        let answer = self.told_elsewhere(body).await;
        assert_eq!((answer.code(), answer.data("/transfer/replayed")), (None, &json!(false)), "{}", answer.body);
    }

    /// How often Redis was asked to set a lock since [`Self::forget_commands`].
    fn locks_taken(&self) -> Option<u64> {
        self.redis.as_ref().map(|redis| redis.calls("set"))
    }

    fn forget_commands(&self) {
        if let Some(redis) = &self.redis {
            redis.forget_commands();
        }
    }

    async fn end(self) {
        self.world.end().await;
    }
}

fn passed_ms(since: Instant) -> i64 {
    i64::try_from(since.elapsed().as_millis()).unwrap()
}

with_each_store!(a_request_that_is_not_valid_takes_no_lock, async |database, store| {
    let scene = Scene::new(database, store).await;
    let with = |field: &str, value: Value| {
        let mut body = transfer("bob", 1, "k");
        body["variables"]["input"][field] = value;
        body
    };
    let inline = |input: &str| json!({ "query": format!("mutation {{ transfer(input: {input}) {{ replayed }} }}") });
    let two = format!("{TRANSFER} mutation Other {{ claimDailyBonus {{ claim {{ id }} }} }}");
    let bodies = [
        json!({ "query": "mutation { transfer(" }),
        json!({ "query": "mutation { transfer { replayed } }" }),
        json!({ "query": TRANSFER }),
        json!({ "query": TRANSFER, "variables": { "input": null } }),
        json!({ "query": TRANSFER, "variables": { "input": {} } }),
        json!({ "query": two, "operationName": "Transfer" }),
        inline("{}"),
        inline(r#"{ to: "bob", amount: "1e3", currency: "PTS", idempotencyKey: "k" }"#),
        inline(r#"{ to: "bob", amount: "1", currency: "PTS", idempotencyKey: "" }"#),
        with("amount", json!("10x")),
        with("amount", json!("9223372036854775808")),
        with("idempotencyKey", json!("a blank")),
        with("to", json!(null)),
        with("surprise", json!(1)),
    ];
    scene.forget_commands();
    for body in bodies {
        let answer = scene.ask(body.clone()).await;
        let code = answer.code().unwrap_or("none");
        assert!(
            ["GRAPHQL_PARSE_FAILED", "GRAPHQL_VALIDATION_FAILED", "BAD_USER_INPUT"].contains(&code),
            "{body}: {}",
            answer.body
        );
        assert!(scene.locks_taken().is_none_or(|taken| taken == 0), "{body} took the lock");
    }
    assert_eq!((scene.left_ms().await, scene.stored().await), (0, (0, 0)));
    scene.end().await;
});

on_each_store!(done_keeps_the_lock_to_its_end_and_so_does_the_replay, async |store| {
    let scene = Scene::new(Database::Postgres, store).await;
    let since = Instant::now();
    let done = scene.ask(transfer("bob", 30, "one")).await;
    assert_eq!(done.data("/transfer/replayed"), false, "{}", done.body);
    scene.is_kept(since).await;
    assert_eq!(scene.stored().await, (1, 0));
    let other = scene.ask(transfer("bob", 30, "two")).await;
    assert_eq!(other.codes(), ["COOLDOWN_ACTIVE"]);
    wait_until("the window has passed", async || scene.left_ms().await == 0).await;
    assert!(passed_ms(since) >= WINDOW_MS, "the lock ended after {} ms", passed_ms(since));
    let since = Instant::now();
    let replay = scene.ask(transfer("bob", 30, "one")).await;
    assert_eq!(replay.data("/transfer/replayed"), true, "{}", replay.body);
    assert_eq!(replay.data("/transfer/entry"), done.data("/transfer/entry"));
    scene.is_kept(since).await;
    assert_eq!(scene.stored().await, (1, 0));
    scene.end().await;
});

with_each_store!(a_business_refusal_is_stored_and_shortens_the_lock, async |database, store| {
    let scene = Scene::new(database, store).await;
    let since = Instant::now();
    let refused = scene.ask(transfer("bob", 101, "one")).await;
    assert_eq!(refused.user_error("transfer"), Some("INSUFFICIENT_FUNDS"));
    scene.is_shortened(since).await;
    assert_eq!(scene.stored().await, (0, 1));
    wait_until("the shortened window has passed", async || scene.left_ms().await == 0).await;
    let since = Instant::now();
    let replay = scene.ask(transfer("bob", 101, "one")).await;
    assert_eq!(replay.data("/transfer/replayed"), true, "{}", replay.body);
    assert_eq!(replay.data("/transfer/userErrors"), refused.data("/transfer/userErrors"));
    // A repeat of a refusal is a repeat: it decides nothing, so it shortens nothing.
    scene.is_kept(since).await;
    assert_eq!(scene.stored().await, (0, 1));
    scene.end().await;
});

with_each_store!(a_refused_claim_shortens_the_lock, async |database, store| {
    let scene = Scene::new(database, store).await;
    let since = Instant::now();
    let answer = scene.ask(json!({ "query": crate::world::CLAIM_SIGNUP })).await;
    assert_eq!(answer.user_error("claimSignupBonus"), Some("ALREADY_CLAIMED"));
    let again = scene.ask(json!({ "query": crate::world::CLAIM_SIGNUP })).await;
    if again.code() == Some("COOLDOWN_ACTIVE") {
        let left = again.body["errors"][0]["extensions"]["retryAfterMs"].as_i64().unwrap();
        assert!(left <= AFTER_REFUSAL_MS, "{left}");
    } else {
        assert!(passed_ms(since) >= AFTER_REFUSAL_MS, "{}", again.body);
    }
    assert_eq!(scene.left_ms().await, 0, "another action has another lock");
    scene.end().await;
});

with_each_store!(a_replay_keeps_a_lock_of_its_own, async |database, store| {
    let scene = Scene::new(database, store).await;
    scene.done_elsewhere(transfer("bob", 30, "one")).await;
    let since = Instant::now();
    assert_eq!(scene.ask(transfer("bob", 30, "one")).await.data("/transfer/replayed"), true);
    scene.is_kept(since).await;
    assert_eq!((scene.stored().await, scene.world.balance("bob").await), ((1, 0), 30));
    scene.end().await;
});

with_each_store!(a_key_with_other_arguments_keeps_the_lock_and_stores_nothing, async |database, store| {
    let scene = Scene::new(database, store).await;
    scene.done_elsewhere(transfer("bob", 30, "one")).await;
    let since = Instant::now();
    let answer = scene.ask(transfer("bob", 31, "one")).await;
    assert_eq!(answer.user_error("transfer"), Some("IDEMPOTENCY_KEY_PARAMETER_MISMATCH"));
    scene.is_kept(since).await;
    assert_eq!((scene.stored().await, scene.world.balance("bob").await), ((1, 0), 30));
    let first = scene.told_elsewhere(transfer("bob", 30, "one")).await;
    assert_eq!(first.data("/transfer/replayed"), true, "the key keeps its answer: {}", first.body);
    scene.end().await;
});

with_each_store!(invalid_input_releases_the_lock_and_stores_nothing, async |database, store| {
    let scene = Scene::new(database, store).await;
    scene.forget_commands();
    let since = Instant::now();
    let bad = [transfer("bob", 0, "one"), transfer("bob", -1, "one"), transfer("", 1, "one")];
    for body in &bad {
        let answer = scene.ask(body.clone()).await;
        assert_eq!(answer.user_error("transfer"), Some("INVALID_INPUT"), "{}", answer.body);
    }
    // Taken each time: the guard stands in front of the resolver, which reads the input.
    assert!(scene.locks_taken().is_none_or(|taken| taken == bad.len() as u64), "{:?}", scene.locks_taken());
    scene.is_released(since).await;
    assert_eq!(scene.stored().await, (0, 0));
    let corrected = scene.ask(transfer("bob", 1, "one")).await;
    assert_eq!(corrected.data("/transfer/replayed"), false, "admitted at once, with the same key: {}", corrected.body);
    scene.end().await;
});

with_each_store!(forbidden_releases_the_lock_and_stores_nothing, async |database, store| {
    let scene = Scene::with(database, store, |settings| settings.transfer.enabled = false).await;
    let since = Instant::now();
    for _ in 0..2 {
        assert_eq!(scene.ask(transfer("bob", 1, "one")).await.codes(), ["FORBIDDEN"]);
        scene.is_released(since).await;
    }
    assert_eq!(scene.stored().await, (0, 0));
    scene.end().await;
});

on_each_store!(a_key_in_use_releases_the_lock_and_stores_nothing, async |store| {
    let scene = Scene::new(Database::Postgres, store).await;
    let insert = "INSERT INTO idempotency_keys (member_id, operation, key, fingerprint, refusal, created_at) \
        SELECT id, 'transfer', 'one', '\\x00', '{}', now() FROM members WHERE name = 'alice'";
    let rival = holding(&scene.world, insert).await;
    let since = Instant::now();
    assert_eq!(scene.ask(transfer("bob", 1, "one")).await.codes(), ["IDEMPOTENCY_CONCURRENT_REQUEST"]);
    scene.is_released(since).await;
    assert_eq!(scene.stored().await, (0, 0));
    rival.rollback().await.unwrap();
    scene.end().await;
});

// On PostgreSQL a rival holds the sender's row (55P03), on SQLite the whole database (SQLITE_BUSY).
with_each_store!(a_lock_timeout_releases_the_lock_and_stores_nothing, async |database, store| {
    let scene = Scene::new(database, store).await;
    let rival = holding(&scene.world, WALLETS).await;
    let since = Instant::now();
    let answer = scene.ask(transfer("bob", 1, "one")).await;
    assert_eq!(answer.codes(), ["UNAVAILABLE"], "{}", answer.body);
    assert!(since.elapsed() >= Duration::from_millis(scene.world.settings.database.lock_timeout_ms), "it waited");
    scene.is_released(since).await;
    rival.rollback().await.unwrap();
    assert_eq!(scene.stored().await, (0, 0));
    assert_eq!(scene.ask(transfer("bob", 1, "one")).await.data("/transfer/replayed"), false);
    scene.end().await;
});

with_each_store!(a_failure_of_ours_releases_the_lock_and_stores_nothing, async |database, store| {
    let scene = Scene::new(database, store).await;
    execute(&scene.world, "ALTER TABLE entries RENAME TO mislaid").await;
    let since = Instant::now();
    let answer = scene.ask(transfer("bob", 1, "one")).await;
    assert_eq!(answer.codes(), ["INTERNAL_SERVER_ERROR"], "{}", answer.body);
    scene.is_released(since).await;
    assert_eq!(scene.stored().await, (0, 0));
    execute(&scene.world, "ALTER TABLE mislaid RENAME TO entries").await;
    assert_eq!(scene.ask(transfer("bob", 1, "one")).await.data("/transfer/replayed"), false);
    scene.end().await;
});

on_each_store!(done_after_the_deadline_keeps_the_lock, async |store| {
    let (scene, proxy) = Scene::behind_a_proxy(store).await;
    proxy.at_next("COMMIT", Deed::HoldAnswer);
    let since = Instant::now();
    let answer = scene.ask(transfer("bob", 30, "one")).await;
    assert_eq!(answer.codes(), ["OUTCOME_UNKNOWN"], "{}", answer.body);
    scene.is_kept(since).await;
    proxy.let_go();
    assert_eq!(scene.world.balance("bob").await, 30, "the one connection is free, so the task has ended");
    scene.is_kept(since).await;
    assert_eq!(scene.stored().await, (1, 0));
    assert_eq!(scene.told_elsewhere(transfer("bob", 30, "one")).await.data("/transfer/replayed"), true);
    scene.end().await;
});

on_each_store!(refused_after_the_deadline_keeps_the_lock_until_the_task_knows, async |store| {
    let (scene, proxy) = Scene::behind_a_proxy(store).await;
    proxy.at_next("COMMIT", Deed::HoldAnswer);
    let since = Instant::now();
    let answer = scene.ask(transfer("bob", 101, "one")).await;
    assert_eq!(answer.codes(), ["OUTCOME_UNKNOWN"], "{}", answer.body);
    scene.is_kept(since).await;
    proxy.let_go();
    wait_until("the task shortens the lock", async || scene.left_ms().await <= AFTER_REFUSAL_MS).await;
    assert!(passed_ms(since) < WINDOW_MS - AFTER_REFUSAL_MS, "the lock was not shortened, it came to its end");
    assert_eq!(scene.stored().await, (0, 1));
    scene.end().await;
});

on_each_store!(not_done_after_the_deadline_keeps_the_lock_until_the_task_knows, async |store| {
    let (scene, proxy) = Scene::behind_a_proxy(store).await;
    // No statement starts after the deadline, so the one whose answer is late was the last.
    proxy.at_next("INSERT INTO \"idempotency_keys\"", Deed::HoldAnswer);
    let since = Instant::now();
    let answer = scene.ask(transfer("bob", 30, "one")).await;
    assert_eq!(answer.codes(), ["OUTCOME_UNKNOWN"], "{}", answer.body);
    scene.is_kept(since).await;
    proxy.let_go();
    scene.comes_to_be_released(since).await;
    assert_eq!(scene.stored().await, (0, 0));
    scene.end().await;
});

on_each_store!(a_client_that_is_gone_leaves_the_lock_to_the_task, async |store| {
    for (amount, key) in [(101, "refused"), (30, "done")] {
        let (scene, proxy) = Scene::behind_a_proxy(store).await;
        proxy.at_next("COMMIT", Deed::HoldAnswer);
        let since = Instant::now();
        let client = Client::asking(&scene.world, "alice", &transfer("bob", amount, key)).await;
        proxy.carried_out().await;
        client.hang_up().await;
        scene.is_kept(since).await;
        proxy.let_go();
        if key == "done" {
            assert_eq!(scene.world.balance("bob").await, 30, "the one connection is free, so the task has ended");
            scene.is_kept(since).await;
            assert_eq!(scene.stored().await, (1, 0));
        } else {
            wait_until("the task shortens the lock", async || scene.left_ms().await <= AFTER_REFUSAL_MS).await;
            assert!(passed_ms(since) < WINDOW_MS - AFTER_REFUSAL_MS, "it was not shortened, it came to its end");
            assert_eq!(scene.stored().await, (0, 1));
        }
        assert_eq!(scene.told_elsewhere(transfer("bob", amount, key)).await.data("/transfer/replayed"), true);
        scene.end().await;
    }
});

on_each_store!(a_connection_lost_at_commit_keeps_the_lock, async |store| {
    for (deed, stored) in [(Deed::CutAfter, (1, 0)), (Deed::CutBefore, (0, 0))] {
        let (scene, proxy) = Scene::behind_a_proxy(store).await;
        proxy.at_next("COMMIT", deed);
        let since = Instant::now();
        let answer = scene.ask(transfer("bob", 30, "one")).await;
        assert_eq!(answer.codes(), ["OUTCOME_UNKNOWN"], "{deed:?}: {}", answer.body);
        scene.is_kept(since).await;
        assert_eq!(scene.stored().await, stored, "{deed:?}");
        scene.end().await;
    }
});

// A wallet whose number of entries is the largest there is cannot count one more: arithmetic panics, in the middle of the
// work, in the profile that tests are built with.
with_each_store!(a_panic_keeps_the_lock, async |database, store| {
    let scene = Scene::new(database, store).await;
    execute(&scene.world, &format!("UPDATE wallets SET version = {}", i64::MAX)).await;
    let since = Instant::now();
    let answer = scene.ask(transfer("bob", 30, "one")).await;
    assert_eq!(answer.codes(), ["OUTCOME_UNKNOWN"], "{}", answer.body);
    scene.is_kept(since).await;
    execute(&scene.world, "UPDATE wallets SET version = 1").await;
    assert_eq!(scene.stored().await, (0, 0));
    assert_eq!(scene.told_elsewhere(transfer("bob", 30, "one")).await.data("/transfer/replayed"), false);
    scene.end().await;
});

/// A cooldown alone, without a server around it.
struct Alone {
    cooldown: Cooldown,
    member: Member,
    /// Keeps the Redis until the test ends.
    _redis: Option<RedisServer>,
}

/// A window that no test outlasts.
const LONG: Duration = Duration::from_mins(1);

impl Alone {
    async fn new(store: Store) -> Self {
        let redis = (store == Store::Redis).then(RedisServer::start);
        let mut settings = Settings::default();
        settings.cooldown.prefix = format!("alone{}", unique());
        settings.redis_url = redis.as_ref().map(|redis| redis.url().into());
        let cooldown = Cooldown::open(&settings).unwrap();
        wait_until("the store is there", async || cooldown.answers()).await;
        Self { cooldown, member: Member::parse("alice").unwrap(), _redis: redis }
    }

    /// The decision. Without Redis there is to be no cooldown here, so that nothing falls back unseen.
    async fn attempt(&self, window: Duration) -> Decision {
        let wish = Wish { member: &self.member, action: "transfer", resource: None, fingerprint: None };
        let rule = Rule { window, without_redis: WithoutRedis::Refuse, most_per_minute: None };
        self.cooldown.attempt(wish, &rule).await.expect("the store answers")
    }

    async fn admitted(&self, window: Duration) -> Admission {
        match self.attempt(window).await {
            Decision::Admitted(admission) => admission,
            Decision::Refused { left, .. } => panic!("refused, {left:?} left"),
            Decision::Answered(_) => panic!("nobody could ask for an answer"),
        }
    }

    /// For how long others are refused; none if this look was admitted, which gives the lock back.
    async fn refused(&self) -> Option<Duration> {
        match self.attempt(LONG).await {
            Decision::Refused { left, .. } => Some(left),
            Decision::Answered(_) => panic!("nobody could ask for an answer"),
            Decision::Admitted(admission) => {
                admission.give_back().await;
                None
            }
        }
    }
}

on_each_store!(an_attempt_that_is_dropped_keeps_the_lock, async |store| {
    let alone = Alone::new(store).await;
    drop(alone.admitted(LONG).await.begin());
    let since = Instant::now();
    // A release would come from a task of its own, a moment later.
    while since.elapsed() < Duration::from_millis(300) {
        assert!(alone.refused().await.is_some_and(|left| left > LONG / 2), "nobody knows what was done");
    }
});

on_each_store!(an_admission_that_is_dropped_gives_the_lock_back, async |store| {
    let alone = Alone::new(store).await;
    let admission = alone.admitted(LONG).await;
    assert!(alone.refused().await.is_some());
    drop(admission);
    wait_until("the lock is given back", async || alone.refused().await.is_none()).await;
});

on_each_store!(a_lock_is_shortened_and_never_lengthened, async |store| {
    let alone = Alone::new(store).await;
    alone.admitted(LONG).await.begin().end(Ended::Shortened(None)).await;
    assert!(alone.refused().await.is_none_or(|left| left <= Duration::from_secs(1)));
    wait_until("the lock has ended", async || alone.refused().await.is_none()).await;
    let short = Duration::from_millis(300);
    let since = Instant::now();
    alone.admitted(short).await.begin().end(Ended::Shortened(None)).await;
    assert!(alone.refused().await.is_none_or(|left| left <= short));
    wait_until("the lock has ended", async || alone.refused().await.is_none()).await;
    assert!(since.elapsed() >= short);
});

on_each_store!(an_attempt_ends_no_lock_but_its_own, async |store| {
    for ended in [Ended::Released, Ended::Shortened(None), Ended::Kept(None), Ended::Unknown] {
        let alone = Alone::new(store).await;
        let late = alone.admitted(Duration::from_millis(20)).await.begin();
        wait_until("the first lock has ended", async || alone.refused().await.is_none()).await;
        let other = alone.admitted(LONG).await.begin();
        late.end(ended.clone()).await;
        assert!(alone.refused().await.is_some_and(|left| left > LONG / 2), "{ended:?} ended another's lock");
        other.end(Ended::Released).await;
        assert_eq!(alone.refused().await, None, "its own token does end it");
    }
});

on_each_store!(an_admission_given_back_late_ends_no_lock_but_its_own, async |store| {
    let alone = Alone::new(store).await;
    let late = alone.admitted(Duration::from_millis(20)).await;
    wait_until("the first lock has ended", async || alone.refused().await.is_none()).await;
    let other = alone.admitted(LONG).await.begin();
    late.give_back().await;
    assert!(alone.refused().await.is_some_and(|left| left > LONG / 2));
    drop(other);
});
