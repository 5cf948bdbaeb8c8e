//! Promise: a funding webhook is believed if one of its provider's secrets signed it a short while ago, and not otherwise:
//! then it is 401 for everybody alike, before anything of it is read.
//!
//! Guards `signature.rs` and the order of steps in `api/webhook.rs`.

use chrono::Utc;
use serde_json::json;

use crate::on_both;
use crate::world::provider::{ACME, Message, WHSEC, became, fund_by, notice};
use crate::world::statements::statements;
use crate::world::{Answer, Database, Locks, World};

const OLD: &str = "whsec_b2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xk";
const ANOTHERS: &str = "whsec_YW5vdGhlcmFub3RoZXJhbm90aGVyYW5vdGhlcg==";

const NOBODY_SIGNED: &str = "The signature is missing, too old or not the provider's.";

async fn a_world(database: Database) -> World {
    World::with(database, Locks::Off, |settings| {
        fund_by(settings, ACME, &[OLD, WHSEC]);
        fund_by(settings, "another", &[ANOTHERS]);
    })
    .await
}

fn body() -> String {
    notice("p1", "succeeded", "alice", 500).to_string()
}

fn refused(what: &str, answer: &Answer) {
    assert_eq!(answer.status, 401, "{what}: {}", answer.body);
    let id = answer.headers["x-request-id"].to_str().unwrap();
    let error = json!({ "code": "UNAUTHENTICATED", "message": NOBODY_SIGNED, "requestId": id });
    assert_eq!(answer.body, json!({ "error": error }), "{what}: the same for everybody");
    assert_eq!(answer.headers["cache-control"], "no-store");
}

on_both!(what_nobody_signed_is_refused, async |database| {
    let world = a_world(database).await;
    let (now, good) = (Utc::now().timestamp(), Message::new("e1", body()));
    let altered = |place: usize| {
        let mut body = good.body.clone();
        body[place] ^= 1;
        Message { body, ..good.clone() }
    };
    let cases = [
        ("another's secret", Message::signed(ANOTHERS, "e1", now, body())),
        ("another provider's message", Message { provider: "another".to_owned(), ..good.clone() }),
        ("an unknown provider", Message { provider: "nobody".to_owned(), ..good.clone() }),
        ("too old", Message::signed(WHSEC, "e1", now - 310, body())),
        ("from the future", Message::signed(WHSEC, "e1", now + 330, body())),
        ("another time", Message { timestamp: (now - 1).to_string(), ..good.clone() }),
        ("no time", Message { timestamp: String::new(), ..good.clone() }),
        ("another id", Message { id: "e2".to_owned(), ..good.clone() }),
        ("the first byte", altered(0)),
        ("the last byte", altered(good.body.len() - 1)),
        ("a byte more", Message { body: [good.body.clone(), b" ".to_vec()].concat(), ..good.clone() }),
        ("no signature", Message { signatures: String::new(), ..good.clone() }),
        ("another version", Message { signatures: good.signatures.replace("v1,", "v1a,"), ..good.clone() }),
        ("half a signature", Message { signatures: good.signatures[..20].to_owned(), ..good.clone() }),
        ("no base64", Message { signatures: "v1,!".to_owned(), ..good.clone() }),
    ];
    for (what, message) in cases {
        refused(what, &world.deliver(message).await);
    }
    let bare = reqwest::Client::new().post(format!("{}/webhooks/funding/{ACME}", world.address())).body(body());
    assert_eq!(bare.send().await.unwrap().status(), 401, "without any header");
    let (status, _) = world.get(&format!("/webhooks/funding/{ACME}")).await;
    assert_eq!(status, 405, "by POST alone");
    assert_eq!(world.count("SELECT COUNT(*) FROM payments").await, 0);
    assert_eq!(became(&world.deliver(good).await), "credited");
    world.end().await;
});

on_both!(each_secret_of_the_provider_is_good, async |database| {
    let world = a_world(database).await;
    let now = Utc::now().timestamp();
    let told = |secret: &str, id: &str, timestamp: i64| {
        Message::signed(secret, id, timestamp, notice(id, "succeeded", "alice", 10).to_string())
    };
    for (id, secret, timestamp) in [("a", OLD, now), ("b", WHSEC, now), ("c", WHSEC, now - 290), ("d", OLD, now + 290)]
    {
        assert_eq!(became(&world.deliver(told(secret, id, timestamp)).await), "credited", "{id}");
    }
    let (ours, anothers) = (told(WHSEC, "e", now), told(ANOTHERS, "e", now));
    let signatures = format!("v1a,AAAA {} {}", anothers.signatures, ours.signatures);
    assert_eq!(became(&world.deliver(Message { signatures, ..ours }).await), "credited", "one of several is enough");
    let anothers = Message { provider: "another".to_owned(), ..told(ANOTHERS, "f", now) };
    assert_eq!(became(&world.deliver(anothers).await), "credited", "and each provider has its own");
    assert_eq!(world.balance("alice").await, 60);
    world.end().await;
});

on_both!(without_providers_nobody_is_believed, async |database| {
    let world = World::new(database, Locks::Off).await;
    refused("no provider", &world.deliver(Message::new("e1", body())).await);
    world.end().await;
});

/// Bytes that are no JSON at all get the same 401, and no statement ever reaches the database.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_read_before_the_signature() {
    let world = a_world(Database::Postgres).await;
    let begun = statements(&world, "BEGIN%").await;
    for garbage in ["", "{", "[[[[[[[[", "null", "{\"reference\":\"p1\",\"reference\":\"p1\"}"] {
        let message = Message::signed(ANOTHERS, "e1", Utc::now().timestamp(), garbage);
        refused(garbage, &world.deliver(message).await);
        assert_eq!(became(&world.deliver(Message::new("e1", garbage)).await), "400 BAD_REQUEST", "signed it is read");
    }
    refused("a good one", &world.deliver(Message::signed(ANOTHERS, "e1", Utc::now().timestamp(), body())).await);
    assert_eq!(statements(&world, "BEGIN%").await, begun);
    assert_eq!(statements(&world, "%\"payment%").await, 0);
    assert_eq!(became(&world.deliver(Message::new("e1", body())).await), "credited");
    assert!(statements(&world, "BEGIN%").await > begun && statements(&world, "%\"payment%").await > 0);
    world.end().await;
}
