//! Promise: wherever Redis keeps the locks (one server, behind sentinels, in a cluster, at a majority of five), of many attempts
//! at once in several processes one is admitted, and every other one is refused; the lock ends as its attempt ended.
//!
//! Guards layer 1's stores: each one's way of taking a lock and of ending it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::on_every_store;
use crate::world::redis_sentinels::RedisSentinels;
use crate::world::redis_stores::Store;
use crate::world::{Answer, CLAIM_DAILY, Database, World, patient, transfer, wait_until};
use largesse::config::Settings;

const PROCESSES: usize = 3;
const RIVALS: usize = 30;

/// Redis must decide here, also on a machine that is slow at this moment: time-outs are another promise's.
fn unhurried(settings: &mut Settings) {
    patient(settings);
    settings.cooldown.command_timeout_ms = 4000;
    // Each attempt asks the servers, also where its process knows the answer.
    settings.cooldown.remember = 0;
    for action in ["claimDailyBonus", "claimSignupBonus", "transfer"] {
        settings.cooldown.actions.entry(action.to_owned()).or_default().window_ms = Some(60_000);
    }
}

async fn processes(store: &Store) -> Vec<World> {
    let worlds = World::several(PROCESSES, Database::Postgres, |settings| {
        store.named_in(settings);
        unhurried(settings);
    })
    .await;
    for world in &worlds {
        wait_until("the process is ready", async || world.get("/readyz").await == (200, "ok".to_owned())).await;
    }
    worlds
}

/// The same wish at once in all processes.
async fn storm(worlds: &[World], member: &str, body: &Value) -> Vec<Answer> {
    storm_of(RIVALS, worlds, member, body).await
}

/// The same wish so many times at once in each process.
pub(crate) async fn storm_of(rivals: usize, worlds: &[World], member: &str, body: &Value) -> Vec<Answer> {
    let storms = worlds.iter().map(|world| world.storm(rivals, |_| (member.to_owned(), body.clone())));
    futures_util::future::join_all(storms).await.into_iter().flatten().collect()
}

on_every_store!(one_of_many_attempts_is_admitted, async |store: Store| {
    let worlds = processes(&store).await;
    for round in 0..5 {
        let member = format!("member {round}");
        let answers = storm(&worlds, &member, &json!({ "query": CLAIM_DAILY })).await;
        let paid = answers.iter().filter(|answer| answer.data("/claimDailyBonus/claim/streak") == 1).count();
        let refused = answers.iter().filter(|answer| answer.codes() == ["COOLDOWN_ACTIVE"]).count();
        assert_eq!(
            (paid, refused),
            (1, PROCESSES * RIVALS - 1),
            "{:?}",
            answers.iter().map(Answer::codes).collect::<Vec<_>>()
        );
        let waits = answers.iter().filter_map(|answer| answer.body["errors"][0]["extensions"]["retryAfterMs"].as_i64());
        assert!(waits.clone().all(|wait| (1..=60_000).contains(&wait)), "{:?}", waits.collect::<Vec<_>>());
    }
    assert_eq!(store.locks().len(), 5, "each admitted attempt keeps its lock");
    World::end_all(worlds).await;
});

on_every_store!(a_lock_ends_as_its_attempt_ended, async |store: Store| {
    let worlds = processes(&store).await;
    worlds[0].fund("alice").await;
    worlds[0].introduce("bob").await;
    // Nothing was done: the next attempt may come at once, in whichever process.
    for world in &worlds {
        let (answer, _) = world.timed("alice", transfer("", 1, "bad")).await;
        assert_eq!(answer.user_error("transfer"), Some("INVALID_INPUT"), "{}", answer.body);
    }
    assert_eq!(store.locks(), Vec::<String>::new());
    // A business refusal: it may come in a second.
    let (answer, _) = worlds[0].timed("alice", transfer("bob", 101, "too-much")).await;
    let refused = Instant::now();
    assert_eq!(answer.user_error("transfer"), Some("INSUFFICIENT_FUNDS"), "{}", answer.body);
    let (answer, _) = worlds[1].timed("alice", transfer("bob", 30, "right")).await;
    assert_eq!(answer.codes(), ["COOLDOWN_ACTIVE"], "{}", answer.body);
    wait_until("the lock ends", async || store.locks().is_empty()).await;
    assert!(refused.elapsed() > Duration::from_millis(500), "it was shortened, not released");
    let (answer, _) = worlds[2].timed("alice", transfer("bob", 30, "right")).await;
    assert_eq!(answer.data("/transfer/replayed"), false, "{}", answer.body);
    assert_eq!(store.locks().len(), 1, "value moved: the lock stays");
    World::end_all(worlds).await;
});

#[tokio::test(flavor = "multi_thread")]
async fn the_primary_behind_sentinels_is_asked_as_the_user_that_it_knows() {
    let store = Store::Sentinels(RedisSentinels::start_with_user("largesse", "hunter2").await);
    let worlds = processes(&store).await;
    let answers = storm(&worlds, "alice", &json!({ "query": CLAIM_DAILY })).await;
    assert_eq!(answers.iter().filter(|answer| answer.codes() == ["COOLDOWN_ACTIVE"]).count(), PROCESSES * RIVALS - 1);
    World::end_all(worlds).await;
}
