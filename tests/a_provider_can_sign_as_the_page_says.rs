//! Promise: who reads docs/webhooks.md can tell Largesse of a payment: its examples, run as they stand there, are believed.
//!
//! Guards `signature.rs` by implementations that share nothing with it, and the page itself.

use std::process::Command;

use crate::world::binary::run;
use crate::world::provider::{ACME, WHSEC, fund_by};
use crate::world::{Database, Locks, World};

#[tokio::test(flavor = "multi_thread")]
async fn the_python_example_is_believed() {
    is_believed("python3", "py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_typescript_example_is_believed() {
    is_believed("node", "ts").await;
}

/// Run twice: the second time it is a repeat. With another secret it is nobody's.
async fn is_believed(program: &'static str, language: &str) {
    let world = World::with(Database::Sqlite, Locks::Off, |settings| fund_by(settings, ACME, &[WHSEC])).await;
    let folder = tempfile::tempdir().unwrap();
    // The example has no types that would have to be taken off, so any Node.js runs it.
    let script = folder.path().join(if language == "ts" { "tell.mjs" } else { "tell.py" });
    std::fs::write(&script, block(language)).unwrap();
    let url = format!("{}/webhooks/funding/{ACME}", world.address());
    let tell = async |secret: &'static str| {
        let (script, url) = (script.clone(), url.clone());
        let told = move || run(Command::new(program).arg(script).env("FUNDING_URL", url).env("FUNDING_SECRET", secret));
        tokio::task::spawn_blocking(told).await.unwrap()
    };
    for expected in ["200 {\"status\":\"credited\"}", "200 {\"status\":\"repeated\"}"] {
        let ended = tell(WHSEC).await;
        assert_eq!((ended.code, ended.stdout.trim()), (Some(0), expected), "{}", ended.stderr);
    }
    assert_eq!(world.balance("alice").await, 500);
    let ended = tell("whsec_YW5vdGhlcmFub3RoZXJhbm90aGVyYW5vdGhlcg==").await;
    assert!(ended.stdout.starts_with("401 "), "{} {}", ended.stdout, ended.stderr);
    world.end().await;
}

/// The page's one block in a language.
fn block(language: &str) -> String {
    let page = include_str!("../docs/webhooks.md");
    let start = format!("{language}\n");
    let blocks: Vec<_> = page.split("\n```").filter_map(|part| part.strip_prefix(&start)).collect();
    let [block] = blocks[..] else { panic!("one block in {language}, not {}", blocks.len()) };
    block.to_owned()
}
