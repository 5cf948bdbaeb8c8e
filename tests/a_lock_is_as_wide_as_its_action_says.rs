//! Promise: a lock is as wide as its action says: paying two friends is no double click, and no member is admitted more often
//! in a minute than the action's budget allows, whatever about and in whichever process.
//!
//! Guards layer 1: the lock's name and its budget (`cooldown/mod.rs`), both stores of them (`cooldown/memory.rs`,
//! `cooldown/take.lua`), and what schema and settings say (`api/rules.rs`).

use largesse::config::{ActionSettings, Settings};
use serde_json::{Value, json};

use crate::on_each_store;
use crate::world::binary::{largesse, run};
use crate::world::statements::statements;
use crate::world::stores::{Processes, Store, WALLETS, alice, all_refused, holding, refused_ms};
use crate::world::{Answer, CLAIM_DAILY, SECRET, World, token, transfer, wait_until};

/// What `transfer` declares.
const MOST: usize = 20;

/// One point for one of many friends, under a key of its own.
fn to_friend(number: usize) -> Value {
    transfer(&format!("friend {number}"), 1, &format!("key-{number}"))
}

/// Two more friends than the budget admits.
async fn introduce_friends(processes: &Processes) {
    for number in 0..MOST + 2 {
        processes.one.introduce(&format!("friend {number}")).await;
    }
}

async fn is_paid(world: &World, body: &Value) -> Answer {
    let answer = alice(world, body).await;
    assert_eq!((answer.code(), answer.data("/transfer/replayed")), (None, &json!(false)), "{}", answer.body);
    assert!(answer.data("/transfer/entry/id").is_string(), "{}", answer.body);
    answer
}

/// Pays as many friends as the budget admits, in all processes in turn.
async fn spend_the_budget(processes: &Processes) {
    introduce_friends(processes).await;
    let worlds: Vec<_> = processes.all().collect();
    for number in 0..MOST {
        is_paid(worlds[number % worlds.len()], &to_friend(number)).await;
    }
}

on_each_store!(two_friends_are_paid_at_once_and_one_friend_once, async |store| {
    let processes = Processes::new(store).await;
    introduce_friends(&processes).await;
    let answers = processes.one.storm(2, |number| ("alice".to_owned(), to_friend(number))).await;
    let paid = |answers: &[Answer]| answers.iter().filter(|answer| answer.data("/transfer/replayed") == false).count();
    assert_eq!(paid(&answers), 2, "{answers:?}");
    let answers = processes
        .one
        .storm(2, |number| ("alice".to_owned(), transfer("friend 2", 1, &format!("click-{number}"))))
        .await;
    assert_eq!(paid(&answers), 1, "{answers:?}");
    let refused: Vec<_> = answers.into_iter().filter(|answer| answer.code().is_some()).collect();
    all_refused(&refused);
    assert_eq!(processes.one.balance("alice").await, 97);
    processes.end().await;
});

on_each_store!(the_one_after_the_most_in_a_minute_is_refused_before_the_database, async |store| {
    let processes = Processes::new(store).await;
    spend_the_budget(&processes).await;
    let keys = statements(&processes.one, "%idempotency_keys%").await;
    for world in processes.all() {
        let left = refused_ms(&alice(world, &to_friend(MOST)).await);
        assert!((1..=60_000).contains(&left), "{left} ms");
    }
    assert_eq!(statements(&processes.one, "%idempotency_keys%").await, keys, "the database was asked");
    assert_eq!(processes.one.balance("alice").await, 80);
    for world in processes.all() {
        let claim = json!({ "query": CLAIM_DAILY });
        if std::ptr::eq(world, &raw const processes.one) {
            let answer = alice(world, &claim).await;
            assert_eq!(answer.data("/claimDailyBonus/claim/streak"), 1, "another action: {}", answer.body);
        } else {
            refused_ms(&alice(world, &claim).await);
        }
    }
    processes.one.fund("carol").await;
    let other = processes.one.post(Some(&token("carol")), to_friend(MOST)).await;
    assert_eq!(other.data("/transfer/replayed"), false, "another member: {}", other.body);
    processes.end().await;
});

on_each_store!(the_hunt_for_names_ends_with_the_budget, async |store| {
    let processes = Processes::new(store).await;
    processes.one.introduce("friend 0").await;
    let guess = |number: usize| transfer(&format!("nobody {number}"), 1, &format!("guess-{number}"));
    let worlds: Vec<_> = processes.all().collect();
    for number in 0..MOST {
        let answer = alice(worlds[number % worlds.len()], &guess(number)).await;
        assert_eq!(answer.user_error("transfer"), Some("NOT_FOUND"), "{}", answer.body);
    }
    for world in worlds {
        refused_ms(&alice(world, &guess(MOST)).await);
        refused_ms(&alice(world, &to_friend(0)).await);
    }
    processes.end().await;
});

on_each_store!(what_was_released_does_not_count, async |store| {
    let processes = Processes::new(store).await;
    for world in processes.all() {
        for number in 0..MOST + 10 {
            let answer = alice(world, &transfer(&format!("friend {number}"), 0, "one")).await;
            assert_eq!(answer.user_error("transfer"), Some("INVALID_INPUT"), "{}", answer.body);
        }
    }
    spend_the_budget(&processes).await;
    for world in processes.all() {
        refused_ms(&alice(world, &to_friend(MOST)).await);
    }
    processes.end().await;
});

#[tokio::test(flavor = "multi_thread")]
async fn lock_and_budget_are_one_question() {
    let processes = Processes::new(Store::Redis).await;
    introduce_friends(&processes).await;
    processes.redis().forget_commands();
    for number in 0..5 {
        is_paid(&processes.one, &to_friend(number)).await;
    }
    let asked = processes.redis().commands();
    // One before the work, and one after it that ends the lock.
    assert_eq!((asked.get("evalsha"), asked.get("eval")), (Some(&10), None), "{asked:?}");
    processes.end().await;
}

/// Makes the oldest that counts so old that it counts no more.
fn let_a_minute_pass_for_the_oldest(processes: &Processes) {
    let budget = processes.budget("alice");
    let oldest = processes.redis().command(&["ZRANGE", &budget, "0", "0", "WITHSCORES"]);
    let oldest: Vec<String> = redis::from_redis_value(oldest).expect("member and score");
    let [member, score] = &oldest[..] else { panic!("something counts: {oldest:?}") };
    let earlier = score.parse::<i64>().expect("milliseconds") - 60_000;
    processes.redis().command(&["ZADD", &budget, "XX", &earlier.to_string(), member]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_minute_slides() {
    let processes = Processes::with(Store::Redis, |settings| settings.cooldown.remember = 0).await;
    spend_the_budget(&processes).await;
    refused_ms(&alice(&processes.one, &to_friend(MOST)).await);
    let_a_minute_pass_for_the_oldest(&processes);
    is_paid(&processes.one, &to_friend(MOST)).await;
    for world in processes.all() {
        refused_ms(&alice(world, &to_friend(MOST + 1)).await);
    }
    processes.end().await;
}

/// Attempts on ever new recipients, one after the other and then all at once. All are refused.
async fn flood(world: &World) {
    for number in 100..200 {
        refused_ms(&alice(world, &to_friend(number)).await);
    }
    let answers = world.storm(150, |number| ("alice".to_owned(), to_friend(200 + number))).await;
    all_refused(&answers);
}

#[tokio::test(flavor = "multi_thread")]
async fn over_a_spent_budget_a_flood_costs_nothing_and_a_retry_finds_its_answer() {
    let processes = Processes::new(Store::Redis).await;
    introduce_friends(&processes).await;
    let mut paid = Vec::new();
    for number in 0..MOST {
        paid.push(is_paid(&processes.one, &to_friend(number)).await);
    }
    for world in processes.all() {
        processes.redis().forget_commands();
        flood(world).await;
        let asked = processes.redis().commands();
        assert_eq!(asked.get("evalsha"), Some(&1), "a process asks once: {asked:?}");
        for (number, first) in paid.iter().enumerate() {
            let again = alice(world, &to_friend(number)).await;
            assert_eq!((again.code(), again.data("/transfer/replayed")), (None, &json!(true)), "{}", again.body);
            assert_eq!(again.data("/transfer/entry"), first.data("/transfer/entry"));
        }
        // Whose locks are known now, so that the same once more asks nothing.
        processes.redis().forget_commands();
        alice(world, &to_friend(0)).await;
        refused_ms(&alice(world, &transfer("friend 1", 1, "another-key")).await);
        flood(world).await;
        assert_eq!(processes.redis().calls("evalsha"), 0);
    }
    assert_eq!(processes.one.balance("alice").await, 80);
    processes.end().await;
}

/// A retry whose lock has ended is refused by the budget, and asks once.
#[tokio::test(flavor = "multi_thread")]
async fn over_a_spent_budget_a_retry_after_its_window_asks_once() {
    let processes = Processes::with(Store::Redis, |settings| {
        settings.cooldown.actions.get_mut("transfer").unwrap().window_ms = Some(5000);
    })
    .await;
    spend_the_budget(&processes).await;
    wait_until("all locks have ended", async || processes.locks("alice").is_empty()).await;
    for world in processes.all() {
        refused_ms(&alice(world, &to_friend(MOST)).await);
        processes.redis().forget_commands();
        for _ in 0..20 {
            refused_ms(&alice(world, &to_friend(0)).await);
        }
        assert!(processes.redis().calls("evalsha") <= 1, "{:?}", processes.redis().commands());
    }
    processes.end().await;
}

on_each_store!(as_soon_as_one_that_counts_is_released_another_is_admitted, async |store| {
    let processes = Processes::with(store, |settings| {
        settings.request.deadline_ms = 6000;
        settings.database.statement_timeout_ms = 5000;
        settings.database.lock_timeout_ms = 3000;
    })
    .await;
    introduce_friends(&processes).await;
    for number in 1..MOST {
        is_paid(&processes.one, &to_friend(number)).await;
    }
    let rival = holding(&processes.one, WALLETS).await;
    let running = processes.one.begin_post(&token("alice"), &to_friend(0));
    wait_until("the last attempt is at work", async || processes.one.waiting_for_locks().await == 1).await;
    for world in processes.all() {
        for number in MOST..MOST + 2 {
            refused_ms(&alice(world, &to_friend(number)).await);
        }
    }
    let failed = running.await.unwrap();
    assert_eq!(failed.codes(), ["UNAVAILABLE"], "{}", failed.body);
    rival.rollback().await.unwrap();
    let last = processes.all().last().unwrap();
    is_paid(last, &to_friend(MOST)).await;
    for world in processes.all() {
        refused_ms(&alice(world, &to_friend(MOST + 1)).await);
    }
    processes.end().await;
});

fn transfers(settings: &mut Settings, change: impl FnOnce(&mut ActionSettings)) {
    change(settings.cooldown.actions.get_mut("transfer").expect("the windows are set"));
}

on_each_store!(a_setting_says_what_has_locks_of_its_own, async |store| {
    for (per, one_lock) in [("", true), ("input.currency", true), ("input.idempotencyKey", false)] {
        let processes = Processes::with(store, |settings| {
            transfers(settings, |transfer| transfer.per = Some(per.to_owned()));
        })
        .await;
        introduce_friends(&processes).await;
        is_paid(&processes.one, &to_friend(0)).await;
        for world in processes.all() {
            if one_lock {
                refused_ms(&alice(world, &to_friend(1)).await);
            } else {
                let key = format!("another-{}", std::ptr::from_ref(world) as usize);
                is_paid(world, &transfer("friend 0", 1, &key)).await;
            }
            let again = alice(world, &to_friend(0)).await;
            assert_eq!(again.data("/transfer/replayed"), true, "{per:?}: {}", again.body);
        }
        processes.end().await;
    }
});

on_each_store!(a_setting_says_how_many_a_minute, async |store| {
    let processes =
        Processes::with(store, |settings| transfers(settings, |transfer| transfer.most_per_minute = Some(0))).await;
    introduce_friends(&processes).await;
    for number in 0..MOST + 2 {
        is_paid(&processes.one, &to_friend(number)).await;
    }
    processes.end().await;

    let processes =
        Processes::with(store, |settings| transfers(settings, |transfer| transfer.most_per_minute = Some(2))).await;
    introduce_friends(&processes).await;
    let last = processes.all().last().unwrap();
    is_paid(&processes.one, &to_friend(0)).await;
    is_paid(last, &to_friend(1)).await;
    for world in processes.all() {
        refused_ms(&alice(world, &to_friend(2)).await);
    }
    processes.end().await;
});

#[test]
fn an_argument_that_is_none_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    for (action, per) in [("transfer", "input.recipient"), ("transfer", "input"), ("claimDailyBonus", "input.to")] {
        std::fs::write(folder.path().join("largesse.toml"), format!("[cooldown.actions.{action}]\nper = {per:?}\n"))
            .unwrap();
        let mut serve = largesse(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
        serve.env("LARGESSE_TOKEN_SECRET", SECRET).env("DATABASE_URL", "sqlite:books.db?mode=rwc");
        let ended = run(&mut serve);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{}", ended.stderr);
        let sentence = format!("cooldown.actions.{action}.per: there is no argument \"{per}\" that is one value");
        assert!(ended.stderr.contains(&sentence), "{}", ended.stderr);
        assert_eq!(ended.stderr.trim_end().lines().count(), 1, "{}", ended.stderr);
    }
}

#[test]
fn the_schema_shows_the_width() {
    let schema = largesse::api::sdl();
    for line in [
        "): TransferPayload @cooldown(windowMs: 5000, per: \"input.to\", mostPerMinute: 20)",
        "claimDailyBonus: ClaimDailyBonusPayload @cooldown(windowMs: 5000)",
        "claimSignupBonus: ClaimSignupBonusPayload @cooldown(windowMs: 5000)",
        "directive @cooldown(windowMs: Int!, per: String, mostPerMinute: Int) on FIELD_DEFINITION",
    ] {
        assert!(schema.lines().any(|shown| shown.trim() == line), "{line}");
    }
}
