//! Promise: a token that is not good refuses the whole request, and no resolver runs; without a token a caller is anonymous
//! and reads nothing but the schema.
//!
//! Guards `api/token.rs`, the one place that says who the caller is, and its order before everything else.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use serde_json::{Value, json};

use crate::on_both;
use crate::world::redis_server::RedisServer;
use crate::world::{Answer, CLAIM_DAILY, Database, Locks, SECRET, World, transfer};

/// Reads and writes: if any resolver ran, the member would be known at least.
const EVERYTHING: [&str; 3] = ["{ viewer { id memberId } }", CLAIM_DAILY, "{ __typename __schema { types { name } } }"];

on_both!(a_token_that_is_not_good_refuses_the_whole_request, async |database| {
    let world = World::new(database, Locks::InProcess).await;
    for (what, header) in bad_headers() {
        for document in EVERYTHING {
            refused(&ask(&world, &[header.as_slice()], document).await, what);
        }
    }
    let good = bearer(&good_token());
    for document in EVERYTHING {
        refused(&ask(&world, &[&good, &good], document).await, "two headers");
        refused(&ask(&world, &[&good, b"Basic YWxpY2U6YWxpY2U="], document).await, "two headers of two schemes");
    }
    nobody_was_here(&world).await;
    // The same request with a good token is answered, so it was the token alone that was refused.
    let answer = ask(&world, &[&good], CLAIM_DAILY).await;
    assert_eq!(answer.data("/claimDailyBonus/claim/streak"), 1, "{}", answer.body);
    world.end().await;
});

/// What to send in the Authorization header, and why it is not good.
fn bad_headers() -> Vec<(&'static str, Vec<u8>)> {
    let mut headers: Vec<(&str, Vec<u8>)> = Vec::new();
    headers.extend(bad_tokens().into_iter().map(|(what, token)| (what, bearer(&token))));
    let good = good_token();
    headers.extend([
        ("another scheme", b"Basic YWxpY2U6YWxpY2U=".to_vec()),
        ("no scheme", good.clone().into_bytes()),
        ("no token", b"Bearer".to_vec()),
        ("an empty token", b"Bearer ".to_vec()),
        ("an empty header", Vec::new()),
        ("two tokens", format!("Bearer {good} {good}").into_bytes()),
        ("not ASCII", b"Bearer \xff\xfe".to_vec()),
    ]);
    headers
}

fn bad_tokens() -> Vec<(&'static str, String)> {
    let mut tokens = malformed();
    tokens.extend(signed_otherwise());
    let claims = [
        ("expired", json!({ "sub": "alice", "exp": now() - 30 })),
        ("expired a moment beyond the leeway", json!({ "sub": "alice", "exp": now() - 8 })),
        ("not yet good", json!({ "sub": "alice", "exp": now() + 600, "nbf": now() + 60 })),
        ("without exp", json!({ "sub": "alice" })),
        ("exp is null", json!({ "sub": "alice", "exp": null })),
        ("exp is a text", json!({ "sub": "alice", "exp": "never" })),
        ("no sub", json!({ "exp": now() + 600 })),
        ("sub is empty", json!({ "sub": "", "exp": now() + 600 })),
        ("sub is a number", json!({ "sub": 5, "exp": now() + 600 })),
        ("sub is null", json!({ "sub": null, "exp": now() + 600 })),
        ("sub is a list", json!({ "sub": ["alice"], "exp": now() + 600 })),
        ("sub is too long", json!({ "sub": "x".repeat(300), "exp": now() + 600 })),
        ("sub holds a NUL", json!({ "sub": "ali\0ce", "exp": now() + 600 })),
        ("no object", json!(["alice"])),
    ];
    tokens.extend(claims.map(|(what, claims)| (what, signed(&claims))));
    tokens
}

fn malformed() -> Vec<(&'static str, String)> {
    let good = good_token();
    let parts: Vec<_> = good.split('.').collect();
    vec![
        ("one word", "alice".to_owned()),
        ("dots alone", "..".to_owned()),
        ("no signature", format!("{}.{}", parts[0], parts[1])),
        ("an empty signature", format!("{}.{}.", parts[0], parts[1])),
        ("a part too many", format!("{good}.{}", parts[2])),
        (
            "another's claims",
            format!("{}.{}.{}", parts[0], part(&json!({ "sub": "bob", "exp": now() + 600 })), parts[2]),
        ),
        ("a header that is no JSON", format!("{}.{}.{}", URL_SAFE_NO_PAD.encode("alice"), parts[1], parts[2])),
    ]
}

fn signed_otherwise() -> Vec<(&'static str, String)> {
    let claims = json!({ "sub": "alice", "exp": now() + 600 });
    let none = |alg: &str| format!("{}.{}.", part(&json!({ "alg": alg, "typ": "JWT" })), part(&claims));
    let with =
        |alg: &str, by: Algorithm, secret: &str| token(&json!({ "alg": alg, "typ": "JWT" }), &claims, by, secret);
    vec![
        ("alg none", none("none")),
        ("alg None", none("None")),
        ("alg none with a signature", with("none", Algorithm::HS256, SECRET)),
        ("HS384 with the secret", with("HS384", Algorithm::HS384, SECRET)),
        ("HS512 with the secret", with("HS512", Algorithm::HS512, SECRET)),
        ("RS256 with the secret as its key", with("RS256", Algorithm::HS256, SECRET)),
        ("ES256 with the secret as its key", with("ES256", Algorithm::HS256, SECRET)),
        ("no alg", token(&json!({ "typ": "JWT" }), &claims, Algorithm::HS256, SECRET)),
        ("another secret", with("HS256", Algorithm::HS256, "another secret of 32 bytes or more")),
        ("an empty secret", with("HS256", Algorithm::HS256, "")),
    ]
}

fn refused(answer: &Answer, what: &str) {
    assert_eq!((answer.status, answer.codes()), (401, vec!["UNAUTHENTICATED"]), "{what}: {}", answer.body);
    assert!(answer.body.get("data").is_none(), "{what}: {}", answer.body);
    let challenge = answer.headers["www-authenticate"].to_str().unwrap();
    assert!(challenge.starts_with("Bearer"), "{what}: {challenge}");
    assert_eq!(answer.headers["cache-control"], "no-store");
    assert!(answer.body["errors"][0]["extensions"]["requestId"].is_string(), "{what}");
}

async fn nobody_was_here(world: &World) {
    for table in ["members", "wallets", "transactions", "entries", "claims", "idempotency_keys"] {
        assert_eq!(world.count(&format!("SELECT COUNT(*) FROM {table}")).await, 0, "{table}");
    }
}

on_both!(without_a_token_fields_are_null_and_the_schema_can_be_read, async |database| {
    for locks in [Locks::Off, Locks::InProcess] {
        let world = World::new(database, locks).await;
        let fields = "{ viewer { id } again: viewer { wallet { id } } node(id: \"x\") { id } __typename }";
        let answer = world.post(None, json!({ "query": fields })).await;
        assert_eq!((answer.status, answer.codes()), (200, vec!["UNAUTHENTICATED"; 3]), "{}", answer.body);
        let nothing = json!({ "viewer": null, "again": null, "node": null, "__typename": "Query" });
        assert_eq!(answer.body["data"], nothing);
        for document in [CLAIM_DAILY, "mutation { claimSignupBonus { claim { id } } }"] {
            let answer = world.post(None, json!({ "query": document })).await;
            assert_eq!((answer.status, answer.codes()), (200, vec!["UNAUTHENTICATED"]), "{}", answer.body);
        }
        let answer = world.post(None, transfer("bob", 5, "one")).await;
        assert_eq!((answer.codes(), answer.data("/transfer")), (vec!["UNAUTHENTICATED"], &Value::Null));
        let introspection = world.post(None, json!({ "query": "{ __schema { queryType { name } } }" })).await;
        assert_eq!(introspection.body, json!({ "data": { "__schema": { "queryType": { "name": "Query" } } } }));
        nobody_was_here(&world).await;
        world.end().await;
    }
});

/// Who is nobody, or not who they say, locks nobody out.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_signed_in_takes_no_lock() {
    let redis = RedisServer::start();
    let world = World::new(Database::Postgres, Locks::RedisAt(redis.url())).await;
    let before = redis.keys();
    for document in [CLAIM_DAILY, "mutation { claimSignupBonus { claim { id } } }"] {
        world.post(None, json!({ "query": document })).await;
        for (what, token) in bad_tokens() {
            refused(&ask(&world, &[&bearer(&token)], document).await, what);
        }
    }
    world.post(None, transfer("bob", 5, "one")).await;
    assert_eq!(redis.keys(), before, "a lock was taken");
    // A lock that is taken can be seen in this way.
    world.ask("alice", CLAIM_DAILY, json!({})).await;
    assert!(redis.keys().len() > before.len());
    world.end().await;
}

on_both!(clocks_may_differ_by_a_few_seconds, async |database| {
    let world = World::new(database, Locks::Off).await;
    for claims in [
        json!({ "sub": "alice", "exp": now() - 3 }),
        json!({ "sub": "alice", "exp": now() + 600, "nbf": now() + 3 }),
        // The identity provider's other claims are no concern of this server.
        json!({ "sub": "alice", "exp": now() + 600, "aud": "another", "iss": "somebody", "jti": "1" }),
        json!({ "sub": "alice", "exp": now() + 600, "roles": ["operator", "support"] }),
        json!({ "sub": "alice", "exp": now() + 600, "roles": "operator" }),
        json!({ "sub": "alice", "exp": now() + 600, "roles": { "operator": true } }),
    ] {
        let answer = ask(&world, &[&bearer(&signed(&claims))], "{ viewer { memberId } }").await;
        assert_eq!(answer.data("/viewer/memberId"), "alice", "{claims}: {}", answer.body);
    }
    // The scheme's name has no case (RFC 9110, section 11.1).
    let answer = ask(&world, &[format!("bearer {}", good_token()).as_bytes()], "{ viewer { memberId } }").await;
    assert_eq!(answer.data("/viewer/memberId"), "alice");
    world.end().await;
});

on_both!(the_claim_that_names_the_member_is_a_setting, async |database| {
    let world =
        World::with(database, Locks::Off, |settings| settings.token.member_claim = "https://id/name".into()).await;
    let both = signed(&json!({ "sub": "12345", "https://id/name": "alice", "exp": now() + 600 }));
    let answer = ask(&world, &[&bearer(&both)], "{ viewer { memberId } }").await;
    assert_eq!(answer.data("/viewer/memberId"), "alice", "{}", answer.body);
    refused(&ask(&world, &[&bearer(&good_token())], "{ viewer { memberId } }").await, "sub alone");
    assert_eq!(world.count("SELECT COUNT(*) FROM members").await, 1);
    world.end().await;
});

/// Sends a document with these Authorization headers, whatever is in them.
async fn ask(world: &World, headers: &[&[u8]], document: &str) -> Answer {
    let mut request = reqwest::Client::new().post(format!("{}/graphql", world.address()));
    for header in headers {
        request = request.header(AUTHORIZATION, HeaderValue::from_bytes(header).unwrap());
    }
    let response = request.json(&json!({ "query": document })).send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Answer { status, headers, body: response.json().await.unwrap() }
}

fn bearer(token: &str) -> Vec<u8> {
    format!("Bearer {token}").into_bytes()
}

fn good_token() -> String {
    signed(&json!({ "sub": "alice", "exp": now() + 600 }))
}

/// A token with these claims that only its claims can make bad.
fn signed(claims: &Value) -> String {
    token(&json!({ "alg": "HS256", "typ": "JWT" }), claims, Algorithm::HS256, SECRET)
}

/// A token put together by hand: its header may lie about how it was signed.
fn token(header: &Value, claims: &Value, signed_by: Algorithm, secret: &str) -> String {
    let message = format!("{}.{}", part(header), part(claims));
    // The library takes no empty key, though HMAC does; its zero padding makes a NUL the same key.
    let secret = if secret.is_empty() { "\0" } else { secret };
    let key = EncodingKey::from_secret(secret.as_bytes()).unwrap();
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, signed_by).unwrap();
    format!("{message}.{signature}")
}

fn part(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}
