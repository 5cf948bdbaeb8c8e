//! Promise: with locks at a majority of five Redis servers, any two of them may be down, frozen or restarted empty. A lock that
//! was taken before still refuses everybody, and of many new attempts in several processes exactly one is admitted.
//!
//! Guards `cooldown/majority.rs`. Layers 2 and 3 would hide a second admission, so the refusals are counted, not the payments.

use std::time::Duration;

use serde_json::json;

use crate::every_store_admits_one::storm_of;
use crate::world::redis_majority::{Fault, RedisMajority};
use crate::world::{CLAIM_DAILY, Database, Locks, World, wait_until};
use largesse::config::{Settings, WithoutRedis};

const SERVERS: usize = 5;
const PROCESSES: usize = 3;
const RIVALS: usize = 8;

/// The first one, the first two, the last two, and others.
const MINORITIES: [&[usize]; 5] = [&[0], &[0, 1], &[3, 4], &[0, 3], &[1, 2]];

/// Windows that outlast the test, and a rule that shows when the servers decided nothing.
pub(crate) fn long(settings: &mut Settings) {
    settings.cooldown.command_timeout_ms = 1000;
    // What a process remembers would hide what the servers say.
    settings.cooldown.remember = 0;
    for action in ["claimDailyBonus", "claimSignupBonus", "transfer"] {
        let action = settings.cooldown.actions.entry(action.to_owned()).or_default();
        action.window_ms = Some(120_000);
        action.without_redis = WithoutRedis::Refuse;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn down() {
    fails(Fault::Down).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen() {
    fails(Fault::Frozen).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_empty() {
    fails(Fault::RestartedEmpty).await;
}

async fn fails(fault: Fault) {
    let mut servers = RedisMajority::of(SERVERS);
    let worlds = World::several(PROCESSES, Database::Postgres, |settings| {
        servers.named_in(settings);
        long(settings);
    })
    .await;
    for (round, minority) in MINORITIES.into_iter().enumerate() {
        all_are_used(&worlds, &servers, round).await;
        let (before, after) = (format!("before {round}"), format!("after {round}"));
        assert_eq!(admitted(&worlds, &before).await, 1, "all are well");
        servers.fail(minority, fault);
        assert_eq!(admitted(&worlds, &before).await, 0, "{minority:?} {fault:?}: the lock still refuses");
        assert_eq!(admitted(&worlds, &after).await, 1, "{minority:?} {fault:?}: somebody is admitted");
        assert_eq!(admitted(&worlds, &after).await, 0, "{minority:?} {fault:?}: and nobody after that");
        servers.mend(minority, fault);
    }
    World::end_all(worlds).await;
}

/// A majority that fails decides nothing: nobody is admitted, everybody learns so in time, and nothing that the others gave is
/// kept.
#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_majority_admits_nobody() {
    let mut servers = RedisMajority::of(SERVERS);
    let world = World::with(Database::Postgres, Locks::AsSet, |settings| {
        servers.named_in(settings);
        long(settings);
    })
    .await;
    all_are_used(std::slice::from_ref(&world), &servers, 0).await;
    servers.fail(&[1, 2, 4], Fault::Frozen);
    let (answer, took) = world.timed("alice", json!({ "query": CLAIM_DAILY })).await;
    assert_eq!(answer.codes(), ["UNAVAILABLE"], "{}", answer.body);
    assert!(took < Duration::from_secs(5), "three commands of a second each may be waited for, and not {took:?}");
    assert_eq!(servers.locks_of("alice", &[1, 2, 4]), 0, "what two gave was given back");
    servers.mend(&[1, 2, 4], Fault::Frozen);
    wait_until("nothing is kept", async || servers.locks_of("alice", &[]) == 0).await;
    wait_until("it is admitted", async || world.ask("alice", CLAIM_DAILY, json!({})).await.code().is_none()).await;
    world.end().await;
}

/// How many attempts of a member were admitted; all others must be refused by the cooldown.
async fn admitted(worlds: &[World], member: &str) -> usize {
    let answers = storm_of(RIVALS, worlds, member, &json!({ "query": CLAIM_DAILY })).await;
    let codes: Vec<_> = answers.iter().map(crate::world::Answer::code).collect();
    assert!(codes.iter().all(|code| matches!(code, None | Some("COOLDOWN_ACTIVE"))), "{codes:?}");
    codes.iter().filter(|code| code.is_none()).count()
}

/// Waits until every process uses every server.
pub(crate) async fn all_are_used(worlds: &[World], servers: &RedisMajority, round: usize) {
    for (process, world) in worlds.iter().enumerate() {
        let mut number = 0;
        wait_until("the process uses all servers", async || {
            number += 1;
            let member = format!("round {round}, process {process}, number {number}");
            let answer = world.ask(&member, CLAIM_DAILY, json!({})).await;
            assert!(matches!(answer.code(), None | Some("UNAVAILABLE")), "{}", answer.body);
            servers.locks_of(&member, &[]) == SERVERS
        })
        .await;
    }
}
