//! Promise: whoever has a token of the identity provider is let in, by RS256, ES256 or EdDSA, also after a change of keys;
//! nobody else is, whatever a token says of itself; and neither floods nor a provider that is away shut members out.
//!
//! Guards `api/jwks.rs` (what is a key), `api/key_set.rs` (fetched when, and kept) and `api/token.rs` (which key decides).

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use jsonwebtoken::{Algorithm, EncodingKey};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::world::identity_provider::{IdentityProvider, KeyPair, Published, TlsProvider, signed};
use crate::world::{Answer, Database, Locks, World, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn each_algorithm_lets_its_member_in() {
    let keys = [KeyPair::rsa("r", 2048), KeyPair::p256("p"), KeyPair::ed25519("e")];
    let publics: Vec<_> = keys.iter().map(KeyPair::public).collect();
    let provider = IdentityProvider::start(Published::keys(&publics)).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    std::fs::write(&file, json!({ "keys": publics }).to_string()).unwrap();
    for source in [provider.url.clone(), file.display().to_string()] {
        let world = world(&source).await;
        for key in &keys {
            let good = claims("alice");
            assert_eq!(member(&ask(&world, &key.token(&good)).await), Some("alice"));
            // One key of the set fits each algorithm, so the header may leave the kid out.
            let algorithm = key.public()["alg"].clone();
            assert_eq!(member(&ask(&world, &key.token_with(&json!({ "alg": algorithm }), &good)).await), Some("alice"));
        }
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_token_says_of_itself_lets_nobody_in() {
    let (rsa, p256, ed) = (KeyPair::rsa("r", 2048), KeyPair::p256("p"), KeyPair::ed25519("e"));
    let (weak, encrypting, twin) = (KeyPair::rsa("weak", 1024), KeyPair::p256("enc"), KeyPair::ed25519("twin"));
    let mut for_encryption = encrypting.public();
    for_encryption["use"] = json!("enc");
    let mut mislabelled = KeyPair::ed25519("label").public();
    mislabelled["alg"] = json!("HS256");
    let label = mislabelled["x"].as_str().unwrap().to_owned();
    let secret =
        json!({ "kty": "oct", "kid": "oct", "alg": "HS256", "k": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE" });
    let set =
        [rsa.public(), p256.public(), ed.public(), twin.public(), weak.public(), for_encryption, mislabelled, secret];
    let provider = IdentityProvider::start(Published::keys(&set)).await;
    let world = world(&provider.url).await;
    let good = claims("alice");
    let by_secret = |kid: &str, alg: &str, secret: &[u8]| {
        let key = EncodingKey::from_secret(secret).unwrap();
        signed(&json!({ "alg": alg, "kid": kid }), &good, Algorithm::HS256, &key)
    };
    let modulus = rsa.public()["n"].as_str().unwrap().to_owned();
    let unsigned = rsa.token_with(&json!({ "alg": "none", "kid": "r" }), &good);
    let stranger = KeyPair::p256("p");
    for (what, token) in [
        ("HS256 with the public key as its secret", by_secret("r", "HS256", modulus.as_bytes())),
        ("HS256 with the public key's JSON", by_secret("r", "HS256", rsa.public().to_string().as_bytes())),
        ("RS256 that is HS256 inside", by_secret("r", "RS256", modulus.as_bytes())),
        ("HS256 with the set's own secret", by_secret("oct", "HS256", b"01234567890123456789012345678901")),
        ("HS256 with a key that is labelled so", by_secret("label", "HS256", label.as_bytes())),
        ("HS256 with the secret of a server that has one", by_secret("r", "HS256", crate::world::SECRET.as_bytes())),
        ("none", format!("{}.", unsigned.rsplit_once('.').unwrap().0)),
        ("none with a signature", unsigned),
        ("another algorithm of the same kind", rsa.token_by(Algorithm::RS512, &good)),
        ("PSS of the same key", rsa.token_by(Algorithm::PS256, &good)),
        ("the kid of a key of another kind", p256.token_with(&json!({ "alg": "ES256", "kid": "r" }), &good)),
        ("the algorithm of another kind", p256.token_with(&json!({ "alg": "RS256", "kid": "p" }), &good)),
        ("another's kid", twin.token_with(&json!({ "alg": "EdDSA", "kid": "e" }), &good)),
        ("no kid where two keys fit", ed.token_with(&json!({ "alg": "EdDSA" }), &good)),
        ("an RSA key that is too short", weak.token(&good)),
        ("a key for encryption", encrypting.token(&good)),
        ("a stranger's key of the same kid", stranger.token(&good)),
        (
            "a key that the token brings along",
            stranger.token_with(
                &json!({ "alg": "ES256", "kid": "p", "jwk": stranger.public(), "jku": provider.url }),
                &good,
            ),
        ),
        ("a critical header", p256.token_with(&json!({ "alg": "ES256", "kid": "p", "crit": ["exp"] }), &good)),
        ("expired", ed.token(&json!({ "sub": "alice", "exp": now() - 60, "iss": ISSUER, "aud": "largesse" }))),
        ("without exp", ed.token(&json!({ "sub": "alice", "iss": ISSUER, "aud": "largesse" }))),
        (
            "not yet good",
            ed.token(
                &json!({ "sub": "alice", "exp": now() + 600, "nbf": now() + 60, "iss": ISSUER, "aud": "largesse" }),
            ),
        ),
        (
            "another issuer",
            ed.token(&json!({ "sub": "alice", "exp": now() + 600, "iss": "https://evil", "aud": "largesse" })),
        ),
        (
            "for somebody else",
            ed.token(&json!({ "sub": "alice", "exp": now() + 600, "iss": ISSUER, "aud": "another" })),
        ),
    ] {
        let answer = ask(&world, &token).await;
        assert_eq!((answer.status, answer.codes()), (401, vec!["UNAUTHENTICATED"]), "{what}: {}", answer.body);
    }
    assert_eq!(world.count("SELECT COUNT(*) FROM members").await, 0, "nobody was here");
    // The keys are good: it was what the tokens said that was refused.
    for key in [&rsa, &p256, &ed, &twin] {
        assert_eq!(member(&ask(&world, &key.token(&good)).await), Some("alice"));
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_key_is_good_at_once_and_a_flood_of_unknown_ones_fetches_once() {
    let (old, new, later) = (KeyPair::ed25519("old"), KeyPair::ed25519("new"), KeyPair::p256("later"));
    let provider = IdentityProvider::start(Published::keys(&[old.public()])).await;
    let world = world(&provider.url).await;
    assert_eq!(provider.fetches(), 1);
    let good = claims("alice");
    provider.publish(Published::keys(&[old.public(), new.public()]));
    // Many at once, and all of them are let in by the one fetch.
    let storm = world.storm_with(50, &new.token(&good)).await;
    assert!(storm.iter().all(|answer| member(answer) == Some("alice")), "{:?}", storm[0].body);
    assert_eq!(provider.fetches(), 2, "one fetch for all");
    provider.publish(Published::keys(&[later.public()]));
    let unknown = world.storm_with(100, &later.token(&good)).await;
    assert!(unknown.iter().all(|answer| answer.code() == Some("UNAUTHENTICATED")), "{:?}", unknown[0].body);
    assert_eq!(provider.fetches(), 2, "no second fetch within the minute");
    assert_eq!(member(&ask(&world, &old.token(&good)).await), Some("alice"));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawn_key_goes_by_itself() {
    let (old, new) = (KeyPair::ed25519("old"), KeyPair::ed25519("new"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    std::fs::write(&file, json!({ "keys": [old.public()] }).to_string()).unwrap();
    let provider = IdentityProvider::start(Published::keys(&[old.public()])).await;
    for source in [provider.url.clone(), file.display().to_string()] {
        let world = world_with(&source, |settings| settings.token.jwks_refresh_seconds = 1).await;
        assert_eq!(member(&ask(&world, &old.token(&claims("alice"))).await), Some("alice"));
        provider.publish(Published::keys(&[new.public()]));
        std::fs::write(&file, json!({ "keys": [new.public()] }).to_string()).unwrap();
        let refused = async || ask(&world, &old.token(&claims("alice"))).await.code() == Some("UNAUTHENTICATED");
        wait_until("the old key is gone", refused).await;
        assert_eq!(member(&ask(&world, &new.token(&claims("alice"))).await), Some("alice"));
        provider.publish(Published::keys(&[old.public()]));
        std::fs::write(&file, json!({ "keys": [old.public()] }).to_string()).unwrap();
        world.end().await;
    }
}

/// Errors, redirects, pages of HTML, floods of bytes and empty sets: whatever the provider answers, the keys of before stay.
#[tokio::test(flavor = "multi_thread")]
async fn keys_stay_while_the_provider_is_broken() {
    let (old, new) = (KeyPair::ed25519("old"), KeyPair::ed25519("new"));
    let good = claims("alice");
    let elsewhere = IdentityProvider::start(Published::keys(&[new.public()])).await;
    let set = json!({ "keys": [new.public()] }).to_string();
    let error = Published { status: StatusCode::INTERNAL_SERVER_ERROR, ..Published::text(set.clone()) };
    let headers = vec![("location", elsewhere.url.clone())];
    let redirect = Published { status: StatusCode::FOUND, headers, ..Published::text(String::new()) };
    let huge = Published::text(format!("{}{set}", " ".repeat(300 << 10)));
    for broken in [error, redirect, huge, Published::text("<html>".to_owned()), Published::keys(&[])] {
        let provider = IdentityProvider::start(Published::keys(&[old.public()])).await;
        let world = world(&provider.url).await;
        provider.publish(broken);
        // Whether the new key is good cannot be known: a client that was told "no" would sign its member out.
        let answer = ask(&world, &new.token(&good)).await;
        assert_eq!((answer.code(), provider.fetches()), (Some("UNAVAILABLE"), 2), "{}", answer.body);
        assert!(answer.headers.contains_key("retry-after"));
        assert_eq!(member(&ask(&world, &old.token(&good)).await), Some("alice"));
        assert_eq!(world.get("/readyz").await.0, 200);
        world.end().await;
    }
    assert_eq!(elsewhere.fetches(), 0, "no redirect was followed");
}

/// A provider that hangs: whoever has a known key does not wait, and nobody waits for long.
#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_hangs_holds_nobody_up() {
    let (old, new) = (KeyPair::ed25519("old"), KeyPair::ed25519("new"));
    let provider = IdentityProvider::start(Published::keys(&[old.public()])).await;
    let world = world(&provider.url).await;
    provider.publish(Published { after: Duration::from_mins(1), ..Published::keys(&[new.public()]) });
    let (new, old) = (new.token(&claims("alice")), old.token(&claims("alice")));
    // More than may wait: the others are answered at once.
    let unknown = world.storm_with(100, &new);
    let known = async {
        wait_until("a fetch is under way", async || provider.fetches() == 2).await;
        let asked = Instant::now();
        assert_eq!(member(&ask(&world, &old).await), Some("alice"));
        asked.elapsed()
    };
    let started = Instant::now();
    let (unknown, known) = tokio::join!(unknown, known);
    assert!(unknown.iter().all(|answer| answer.code() == Some("UNAVAILABLE")), "{:?}", unknown[0].body);
    // A second is given; a slow machine may take a few more, but not the provider's minute or the fetch's five seconds.
    assert!(started.elapsed() < Duration::from_millis(4500), "{:?}", started.elapsed());
    assert!(known < Duration::from_millis(900), "{known:?}");
    assert_eq!(provider.fetches(), 2);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_away_at_the_start_is_asked_again() {
    let key = KeyPair::ed25519("e");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let world = start(&format!("http://{address}/jwks"), |_| {}).await;
    let token = key.token(&claims("alice"));
    let answer = ask(&world, &token).await;
    assert_eq!(answer.code(), Some("UNAVAILABLE"), "{}", answer.body);
    assert_eq!(world.get("/readyz").await, (503, "the keys of tokens are not there yet".to_owned()));
    // Who sends no token needs no keys.
    let anonymous = world.post(None, json!({ "query": "{ __typename }" })).await;
    assert_eq!(anonymous.data("/__typename"), "Query");
    let _provider = IdentityProvider::on(TcpListener::bind(address).await.unwrap(), Published::keys(&[key.public()]));
    wait_until("the keys are there", async || world.get("/readyz").await.0 == 200).await;
    assert_eq!(member(&ask(&world, &token).await), Some("alice"));
    world.end().await;
}

/// Over TLS, a private authority vouches where the setting says so, and nobody else is believed.
#[tokio::test(flavor = "multi_thread")]
async fn a_private_authority_vouches_for_the_provider() {
    let key = KeyPair::ed25519("e");
    let provider = TlsProvider::start(&json!({ "keys": [key.public()] }));
    let token = key.token(&claims("alice"));
    let world = world_with(&provider.url, |settings| settings.token.jwks_ca_file = Some(provider.certificate())).await;
    assert_eq!(member(&ask(&world, &token).await), Some("alice"));
    world.end().await;
    let suspicious = start(&provider.url, |_| {}).await;
    assert_eq!(ask(&suspicious, &token).await.code(), Some("UNAVAILABLE"));
    assert_eq!(suspicious.get("/readyz").await.0, 503);
    suspicious.end().await;
}

const ISSUER: &str = "https://id.example";

/// A server that reads this provider's tokens, and has its keys.
async fn world(source: &str) -> World {
    world_with(source, |_| {}).await
}

async fn world_with(source: &str, change: impl FnOnce(&mut largesse::config::Settings)) -> World {
    let world = start(source, change).await;
    wait_until("the keys are there", async || world.get("/readyz").await.0 == 200).await;
    world
}

async fn start(source: &str, change: impl FnOnce(&mut largesse::config::Settings)) -> World {
    World::with(Database::Sqlite, Locks::Off, |settings| {
        settings.token.jwks = Some(source.to_owned());
        settings.token.issuer = Some(ISSUER.to_owned());
        settings.token.audience = Some("largesse".to_owned());
        change(settings);
    })
    .await
}

async fn ask(world: &World, token: &str) -> Answer {
    world.post(Some(token), json!({ "query": "{ viewer { memberId } }" })).await
}

fn member(answer: &Answer) -> Option<&str> {
    answer.data("/viewer/memberId").as_str()
}

fn claims(member: &str) -> Value {
    json!({ "sub": member, "exp": now() + 600, "iss": ISSUER, "aud": ["largesse", "account"] })
}

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}
