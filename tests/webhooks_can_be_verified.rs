//! Promise: who reads docs/webhooks.md can receive webhooks: its receivers, run as they stand there, take what Largesse
//! sends, act on each event once, and take nothing else.
//!
//! Guards `signature.rs` and the headers of `workers/post_webhook.rs` by implementations that share nothing with them, and the
//! page itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use chrono::Utc;
use largesse::signature::WebhookSecret;
use sea_orm::ConnectionTrait;

use crate::world::binary::Running;
use crate::world::outbox::{WHSEC, deliver_all, tell_of};
use crate::world::redis_server::free_port;
use crate::world::{Database, Locks, World, token, transfer, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn the_python_receiver_takes_what_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let script = written(folder.path(), "receiver.py", &block("python"));
    let mut python = Command::new("python3");
    python.arg(script);
    takes_what_is_sent(python).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_typescript_receiver_takes_what_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Command::new("node");
    node.arg(runnable(folder.path(), &block("typescript")));
    takes_what_is_sent(node).await;
}

/// The receiver knows one secret; the endpoint has an old one before it, as while secrets are replaced.
async fn takes_what_is_sent(mut receiver: Command) {
    let old = format!("whsec_{}", BASE64_STANDARD.encode([9; 32]));
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}/");
    let running = Running::start(receiver.env("PORT", port.to_string()).env("WEBHOOK_SECRETS", WHSEC));
    wait_until("the receiver listens", async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok())
        .await;

    let world = World::with(Database::Sqlite, Locks::Off, |settings| {
        tell_of(settings, "receiver", &url, &[], &[&old, WHSEC]);
        settings.webhooks.timeout_ms = 15_000;
    })
    .await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let mut body = transfer("bob", 30, "one");
    body["variables"]["input"]["memo"] = "na\u{ef}ve \u{1f389} \"quoted\"".into();
    world.post(Some(&token("alice")), body).await;
    assert_eq!(deliver_all(&world).await.delivered, 3, "{}", running.logged());
    // The answers are lost, and everything goes again.
    let sql = world.sql().await;
    let again = "UPDATE outbox SET next_attempt_at = delivered_at, delivered_at = NULL";
    sql.execute_unprepared(again).await.unwrap();
    assert_eq!(deliver_all(&world).await.delivered, 3, "a repeat is taken");
    let expected = ["bonus.claimed alice 100", "transfer.completed alice -30", "transfer.completed bob 30"];
    wait_until("it acted on each once", async || running.printed().lines().count() >= 3).await;
    assert_eq!(sorted(&running.printed()), expected);

    refuses_what_is_not_ours(&url).await;
    assert_eq!(sorted(&running.printed()), expected, "and on nothing else");
    world.end().await;
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

async fn refuses_what_is_not_ours(url: &str) {
    const BODY: &str = r#"{"type":"made.up","data":{"member":"mallory","amount":"1"}}"#;
    let (now, secret) = (Utc::now().timestamp(), WebhookSecret::parse(WHSEC).unwrap());
    let foreign = WebhookSecret::parse(&format!("whsec_{}", BASE64_STANDARD.encode([8; 32]))).unwrap();
    let cases = [
        ("another's secret", "a", now, foreign.sign("a", now, BODY)),
        ("another's id", "b", now, secret.sign("a", now, BODY)),
        ("another's time", "c", now, secret.sign("c", now - 1, BODY)),
        ("another's body", "d", now, secret.sign("d", now, "{}")),
        ("too old", "e", now - 400, secret.sign("e", now - 400, BODY)),
        ("from the future", "f", now + 400, secret.sign("f", now + 400, BODY)),
        ("no signature", "g", now, String::new()),
        ("another version", "h", now, secret.sign("h", now, BODY).replace("v1,", "v2,")),
    ];
    let client = reqwest::Client::builder().timeout(Duration::from_secs(15)).build().unwrap();
    for (what, id, timestamp, signature) in cases {
        let request = client.post(url).body(BODY).header("webhook-id", id).header("webhook-timestamp", timestamp);
        let response = request.header("webhook-signature", signature).send().await.expect("it answers");
        assert_eq!(response.status(), 401, "{what}");
    }
}

/// The page's one block in a language.
fn block(language: &str) -> String {
    let page = include_str!("../docs/webhooks.md");
    let blocks: Vec<_> = page.split("\n```").filter_map(|part| part.strip_prefix(language)).collect();
    let [block] = blocks[..] else { panic!("one block in {language}, not {}", blocks.len()) };
    block.to_owned()
}

fn written(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Node.js takes types off by itself since version 22.18; for an older one esbuild does.
fn runnable(folder: &Path, text: &str) -> PathBuf {
    let script = written(folder, "receiver.mts", text);
    let version = Command::new("node").arg("--version").output().expect("Node.js");
    let version = String::from_utf8(version.stdout).unwrap();
    let mut numbers = version.trim().trim_start_matches('v').split('.').map(|part| part.parse().unwrap_or(0));
    if (numbers.next(), numbers.next()) >= (Some(22), Some(18)) {
        return script;
    }
    let esbuild = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/receivers/node_modules/.bin/esbuild");
    assert!(esbuild.exists(), "run scripts/web-assets --required tests/receivers first");
    let stripped = folder.join("receiver.mjs");
    let ran = Command::new(esbuild).arg(script).arg(format!("--outfile={}", stripped.display())).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    stripped
}
