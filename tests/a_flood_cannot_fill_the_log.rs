//! Promise: each refusal of the cooldown is one event in the log, which says whom it met without a name; of more than the
//! settings allow in a second, the number is told instead, also when the flood has ended, so that none is lost and no disk is filled.
//!
//! Guards `api/refusals.rs`, whose arithmetic is tested beside it, where layer 1 meets the log in `api/guard.rs`.

use std::collections::BTreeSet;
use std::path::Path;

use largesse::member::Member;
use serde_json::{Value, json};

use crate::world::binary::{Running, largesse};
use crate::world::{CLAIM_DAILY, SECRET, provide_cryptography, token, wait_until};

const FLOOD: usize = 300;
const PER_SECOND: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_told_in_a_few_lines_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path(), &[("LARGESSE_LOG_REFUSALS_PER_SECOND", &PER_SECOND.to_string())]);
    let refused = flood(&server, FLOOD).await;
    assert!(refused > FLOOD / 2, "{refused} of {FLOOD} were refused");
    // Nobody asks any more, and still the rest is told.
    wait_until("each refusal is told", async || written(&server).len() + left_out(&server) == refused).await;
    let logged = written(&server);
    let seconds: BTreeSet<_> =
        logged.iter().map(|event| event["timestamp"].as_str().unwrap()[..19].to_owned()).collect();
    // A second of the count may begin in the middle of one of the clock's.
    assert!(logged.len() <= PER_SECOND * (seconds.len() + 1), "{} events in {} seconds", logged.len(), seconds.len());
    let summaries = events(&server, "more refusals of the cooldown within a second, not logged one by one");
    assert!(!summaries.is_empty() && summaries.len() <= seconds.len() + 1, "{summaries:?}");
    assert!(summaries.iter().all(|event| event["action"] == "claimDailyBonus"), "{summaries:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_says_whom_it_met_without_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path(), &[]);
    assert_eq!(flood(&server, 2).await, 1);
    wait_until("the refusal is told", async || written(&server).len() == 1).await;
    let event = &written(&server)[0];
    let member = Member::parse("alice").unwrap().id().to_string();
    assert_eq!((&event["member"], &event["action"]), (&json!(member), &json!("claimDailyBonus")), "{event}");
    assert_eq!((&event["store"], &event["level"]), (&json!("process"), &json!("INFO")), "{event}");
    assert!((1..=5000).contains(&event["remaining_ms"].as_u64().unwrap()), "{event}");
    assert_eq!(event["request_id"].as_str().map(str::len), Some(32), "{event}");
    assert!(!server.logged().contains("alice"), "{}", server.logged());
}

fn serve(folder: &Path, environment: &[(&str, &str)]) -> Running {
    provide_cryptography();
    let mut command = largesse(folder, &["serve", "--migrate", "--listen", "127.0.0.1:0", "--log-format", "json"]);
    command.env("DATABASE_URL", "sqlite:books.db").env("LARGESSE_TOKEN_SECRET", SECRET);
    command.env("LARGESSE_DAILY_BONUS_AMOUNTS", "[10]").envs(environment.iter().copied());
    Running::start(&mut command)
}

/// Alice claims so many times at once; says how many were refused by the cooldown.
async fn flood(server: &Running, times: usize) -> usize {
    let url = format!("http://{}/graphql", server.word_after("\"address\":\""));
    let (client, token) = (reqwest::Client::new(), token("alice"));
    let claims = (0..times).map(|_| async {
        let claim = client.post(&url).bearer_auth(&token).json(&json!({ "query": CLAIM_DAILY }));
        claim.send().await.expect("it answers").json::<Value>().await.expect("JSON")
    });
    let answers = futures_util::future::join_all(claims).await;
    answers.iter().filter(|answer| answer["errors"][0]["extensions"]["code"] == "COOLDOWN_ACTIVE").count()
}

fn events(server: &Running, message: &str) -> Vec<Value> {
    let logged = server.logged();
    let events = logged.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["message"] == message).collect()
}

fn written(server: &Running) -> Vec<Value> {
    events(server, "refused: cooldown active")
}

fn left_out(server: &Running) -> usize {
    let summaries = events(server, "more refusals of the cooldown within a second, not logged one by one");
    summaries.iter().map(|event| usize::try_from(event["left_out"].as_u64().unwrap()).unwrap()).sum()
}
