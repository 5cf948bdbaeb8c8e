//! Promise: a collector that is away or takes nothing costs no request anything, is warned of once, and does not hold up the
//! end of the process.
//!
//! Guards `traces/export.rs`: the batches, their bounds, and what the log is told.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::world::collector::{Collector, Traced, free_port};
use crate::world::{Database, fresh_database, wait_until};

/// A batch has five seconds: whoever had to wait for one would have taken longer than all of these together.
const BATCH_LIMIT: Duration = Duration::from_secs(5);

async fn ask_often(server: &Traced) -> Duration {
    let began = Instant::now();
    for _ in 0..20 {
        let answer = server.ask("alice", &json!({ "query": "{ viewer { memberId } }" }), &[]).await;
        assert_eq!(answer["data"]["viewer"]["memberId"], "alice", "{answer}");
    }
    began.elapsed()
}

/// Ends the server; how often it was told that traces are lost.
fn warnings_at_the_end(server: Traced) -> usize {
    let began = Instant::now();
    let ended = server.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(began.elapsed() < BATCH_LIMIT, "it took {:?} to end", began.elapsed());
    ended.stderr.lines().filter(|line| line.contains("traces are lost")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_there() {
    let (url, _folder) = fresh_database(Database::Sqlite).await;
    let server = Traced::start(&url, &format!("http://127.0.0.1:{}", free_port()), &[]);
    assert!(ask_often(&server).await < BATCH_LIMIT);
    wait_until("it is warned", async || server.logged().contains("traces are lost")).await;
    ask_often(&server).await;
    // Several batches found nobody by now: one is sent each tenth of a second.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(warnings_at_the_end(server), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_is_there_and_takes_nothing() {
    let collector = Collector::start().await;
    let (url, _folder) = fresh_database(Database::Sqlite).await;
    let server = Traced::start(&url, &collector.url(), &[]);
    collector.freeze();
    assert!(ask_often(&server).await < BATCH_LIMIT);
    assert!(warnings_at_the_end(server) <= 1);
}
