//! Promise: a client may send a document once with its hash, and name it by the hash from then on, by POST and by GET; and
//! what is not good is never kept, however much of it arrives.
//!
//! Guards `api/persisted.rs` (Apollo's automatic persisted queries), and its place before the limits, which still hold.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::world::{Answer, CLAIM_DAILY, Database, Locks, TRANSFER, World, token, transfer};

const DOCUMENT: &str = "query Who { viewer { memberId } }";

#[tokio::test(flavor = "multi_thread")]
async fn a_document_is_sent_once_and_named_afterwards() {
    let world = World::new(Database::Sqlite, Locks::Off).await;
    not_found(&post(&world, &named(&hash(DOCUMENT))).await);
    let both = post(&world, &sent(DOCUMENT, &hash(DOCUMENT))).await;
    assert_eq!(both.data("/viewer/memberId"), "alice", "{}", both.body);
    let by_id = json!({ "documentId": format!("sha256:{}", hash(DOCUMENT)) });
    for body in [named(&hash(DOCUMENT)), named(&hash(DOCUMENT)), by_id, sent(DOCUMENT, &hash(DOCUMENT))] {
        let answer = post(&world, &body).await;
        assert_eq!(answer.data("/viewer/memberId"), "alice", "{body}: {}", answer.body);
    }
    // A mutation, with variables.
    world.fund("alice").await;
    world.introduce("bob").await;
    let variables = transfer("bob", 5, "one")["variables"].clone();
    for replayed in [false, true] {
        let mut body = if replayed { named(&hash(TRANSFER)) } else { sent(TRANSFER, &hash(TRANSFER)) };
        body["variables"] = variables.clone();
        assert_eq!(post(&world, &body).await.data("/transfer/replayed"), replayed);
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_get_queries_alone_are_run_under_their_hash() {
    let world = World::new(Database::Sqlite, Locks::Off).await;
    for (document, status) in [(DOCUMENT, 200), (CLAIM_DAILY, 405)] {
        let extensions = named(&hash(document))["extensions"].to_string();
        let unknown = get(&world, &[("extensions", &extensions)]).await;
        not_found(&unknown);
        let answer = get(&world, &[("query", document), ("extensions", &extensions)]).await;
        assert_eq!(answer.status, status, "{}", answer.body);
        // By POST, either may run, and is kept.
        assert_eq!(post(&world, &sent(document, &hash(document))).await.codes(), Vec::<&str>::new());
        let claims = world.count("SELECT COUNT(*) FROM claims").await;
        for parameters in
            [[("extensions", extensions.as_str())], [("documentId", &format!("sha256:{}", hash(document)))]]
        {
            let answer = get(&world, &parameters).await;
            assert_eq!(answer.status, status, "{}", answer.body);
        }
        assert_eq!(world.count("SELECT COUNT(*) FROM claims").await, claims, "a link moves no money");
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hash_that_is_not_the_documents_is_refused() {
    let world = World::new(Database::Sqlite, Locks::Off).await;
    let other = hash("{ __typename }");
    let extensions = |persisted: Value| json!({ "query": DOCUMENT, "extensions": { "persistedQuery": persisted } });
    for body in [
        sent(DOCUMENT, &other),
        sent(DOCUMENT, ""),
        sent(DOCUMENT, "hash"),
        json!({ "query": DOCUMENT, "documentId": format!("sha256:{other}") }),
        json!({ "query": DOCUMENT, "documentId": "who" }),
        extensions(json!({ "version": 2, "sha256Hash": hash(DOCUMENT) })),
        extensions(json!({ "version": "1", "sha256Hash": hash(DOCUMENT) })),
        extensions(json!({ "sha256Hash": hash(DOCUMENT) })),
        extensions(json!({ "version": 1 })),
        extensions(json!({ "version": 1, "sha256Hash": 5 })),
        extensions(json!(hash(DOCUMENT))),
        extensions(json!(null)),
        json!({ "documentId": "a", "extensions": named(&other)["extensions"] }),
    ] {
        let answer = post(&world, &body).await;
        assert_eq!((answer.status, answer.codes()), (200, vec!["BAD_USER_INPUT"]), "{body}: {}", answer.body);
        assert!(answer.body.get("data").is_none());
    }
    not_found(&post(&world, &named(&other)).await);
    not_found(&post(&world, &named(&hash(DOCUMENT))).await);
    not_found(&post(&world, &json!({ "documentId": "who" })).await);
    // Nothing names a document here: no GraphQL request at all.
    let nothing = post(&world, &json!({ "variables": {}, "extensions": { "other": 1 } })).await;
    assert_eq!((nothing.status, nothing.code()), (400, Some("BAD_REQUEST")));
    world.end().await;
}

/// Documents that do not parse, ask for too much or do not fit the schema are not kept; nor does the newest of many good
/// ones stay out for them.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_good_is_not_kept_and_what_is_kept_is_bounded() {
    let world = World::with(Database::Sqlite, Locks::Off, |settings| {
        settings.documents.persisted_most = 10;
        settings.documents.persisted_bytes = 1000;
    })
    .await;
    for document in [
        "{ viewer",
        "{ nothing }",
        "query Q($n: Int!) { viewer { id } }",
        "mutation { a: claimDailyBonus { claim { id } } a: claimDailyBonus { claim { id } } }",
        &format!("{{ {} }}", "__typename ".repeat(600)),
    ] {
        assert!(!post(&world, &sent(document, &hash(document))).await.codes().is_empty(), "{document}");
        not_found(&post(&world, &named(&hash(document))).await);
    }
    let document = |number: usize| format!("{{ a{number}: __typename }}");
    for number in 0..20 {
        post(&world, &sent(&document(number), &hash(&document(number)))).await;
        post(&world, &named(&hash(&document(0)))).await;
    }
    let mut kept = Vec::new();
    for number in 0..20 {
        if post(&world, &named(&hash(&document(number)))).await.code().is_none() {
            kept.push(number);
        }
    }
    assert_eq!(kept, [0, 11, 12, 13, 14, 15, 16, 17, 18, 19], "the last ones, and the one in use");
    let long = format!("{{ __typename }}{}", " ".repeat(1000));
    assert_eq!(post(&world, &sent(&long, &hash(&long))).await.data("/__typename"), "Query");
    not_found(&post(&world, &named(&hash(&long))).await);
    world.end().await;
}

async fn post(world: &World, body: &Value) -> Answer {
    world.post(Some(&token("alice")), body.clone()).await
}

async fn get(world: &World, parameters: &[(&str, &str)]) -> Answer {
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    let request = reqwest::Client::new().get(format!("{}/graphql?{query}", world.address()));
    let response = request.bearer_auth(token("alice")).send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Answer { status, headers, body: response.json().await.unwrap() }
}

/// The message is a part of the protocol: Apollo's clients know it.
fn not_found(answer: &Answer) {
    assert_eq!((answer.status, answer.codes()), (200, vec!["PERSISTED_QUERY_NOT_FOUND"]), "{}", answer.body);
    assert_eq!(answer.body["errors"][0]["message"], "PersistedQueryNotFound");
    assert!(answer.body.get("data").is_none());
}

fn named(hash: &str) -> Value {
    json!({ "extensions": { "persistedQuery": { "version": 1, "sha256Hash": hash } } })
}

fn sent(document: &str, hash: &str) -> Value {
    let mut body = named(hash);
    body["query"] = json!(document);
    body
}

fn hash(document: &str) -> String {
    Sha256::digest(document.as_bytes()).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
