//! Promise: where documents are trusted by a list, those run, by whatever name, and nothing else does; a list with a bad
//! document does not even start.
//!
//! Guards `api/manifest.rs`, and the one place that decides what runs, `api/persisted.rs`.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::on_both;
use crate::world::binary::{largesse, run};
use crate::world::{Answer, CLAIM_DAILY, Database, Locks, SECRET, TRANSFER, World, token, transfer};

const WHO: &str = "query Who { viewer { memberId } }";

on_both!(the_list_runs_and_nothing_else, async |database| {
    let operation = |id: &str, kind: &str, body: &str| json!({ "id": id, "name": "N", "type": kind, "body": body });
    let apollo = json!({ "format": "apollo-persisted-query-manifest", "version": 1, "operations": [
        operation("who", "query", WHO), operation("transfer", "mutation", TRANSFER) ] });
    let plain = json!({ "who": WHO, "transfer": TRANSFER });
    for manifest in [apollo, plain] {
        let (world, _folder) = trusting(database, &manifest).await;
        world.fund("alice").await;
        world.introduce("bob").await;
        what_is_listed_runs(&world).await;
        nothing_else_runs(&world).await;
        world.end().await;
    }
});

async fn what_is_listed_runs(world: &World) {
    let (by_hash, marked) = (apq(&hash(WHO)), format!("sha256:{}", hash(WHO)));
    let mut both = apq(&hash(WHO));
    both["query"] = json!(WHO);
    for body in [
        json!({ "documentId": "who" }),
        json!({ "documentId": hash(WHO) }),
        json!({ "documentId": marked }),
        json!({ "query": WHO }),
        json!({ "query": WHO, "documentId": "who" }),
        by_hash,
        both,
        // Clients whose hashes are those of the list.
        apq("who"),
    ] {
        let answer = post(world, &body).await;
        assert_eq!(answer.data("/viewer/memberId"), "alice", "{body}: {}", answer.body);
    }
    let (status, text) = world.get("/graphql?documentId=who").await;
    assert_eq!((status, text.contains("UNAUTHENTICATED")), (200, true), "it runs, for nobody: {text}");
    let (status, text) = world.get("/graphql?documentId=transfer").await;
    assert_eq!(status, 405, "a link moves no money: {text}");
    let mut body = transfer("bob", 5, "one");
    body["query"] = Value::Null;
    body["documentId"] = json!("transfer");
    let answer = post(world, &body).await;
    assert_eq!(answer.data("/transfer/entry/amount/amount"), "-5", "{}", answer.body);
}

async fn nothing_else_runs(world: &World) {
    let mut unlisted = apq(&hash(CLAIM_DAILY));
    unlisted["query"] = json!(CLAIM_DAILY);
    for body in [
        json!({ "query": CLAIM_DAILY }),
        unlisted,
        apq(&hash(CLAIM_DAILY)),
        apq(""),
        json!({ "documentId": "claim" }),
        json!({ "documentId": "" }),
        json!({ "documentId": "claim", "query": CLAIM_DAILY }),
        json!({ "documentId": "claim", "query": WHO }),
        json!({ "query": "{ viewer { memberId } }" }),
        json!({ "query": format!("{WHO} ") }),
        json!({ "query": format!("{WHO} {CLAIM_DAILY}") }),
        json!({ "query": "{ __schema { queryType { name } } }" }),
        json!({ "query": "{ __typename }" }),
        json!({ "query": "" }),
        json!({ "query": "{" }),
    ] {
        let answer = post(world, &body).await;
        assert_eq!(answer.codes(), ["PERSISTED_QUERY_NOT_IN_LIST"], "{body}: {}", answer.body);
        assert_eq!((answer.status, answer.body.get("data")), (200, None));
    }
    // A good name for another document, and two names.
    let mut twice = apq(&hash(WHO));
    twice["documentId"] = json!("who");
    for body in
        [json!({ "documentId": "who", "query": CLAIM_DAILY }), json!({ "documentId": "who", "query": TRANSFER }), twice]
    {
        assert_eq!(post(world, &body).await.codes(), ["BAD_USER_INPUT"], "{body}");
    }
    // By GET it is refused in the same way.
    let (_, text) = world.get("/graphql?query=%7B__typename%7D").await;
    assert!(text.contains("PERSISTED_QUERY_NOT_IN_LIST"), "{text}");
    assert_eq!(world.count("SELECT COUNT(*) FROM claims").await, 1, "alice's signup bonus alone");
}

/// The documents that the product itself publishes for apps can be trusted.
#[tokio::test(flavor = "multi_thread")]
async fn our_own_operations_can_be_trusted() {
    let document = include_str!("../operations/largesse.graphql");
    let (world, _folder) = trusting(Database::Sqlite, &json!({ "all": document })).await;
    let answer = post(&world, &json!({ "documentId": "all", "operationName": "ClaimSignupBonus" })).await;
    assert_eq!(answer.codes(), Vec::<&str>::new(), "{}", answer.body);
    assert_eq!(world.balance_by(&json!({ "documentId": "all", "operationName": "Home" })).await, "100");
    world.end().await;
}

#[test]
fn a_bad_list_stops_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("documents.json");
    for (text, words) in [
        (json!({ "a": WHO, "b": "{ nothing }" }).to_string(), ["\"b\"", "nothing"]),
        (
            json!({ "a": WHO, "deep": format!("{} id {}", "{ viewer ".repeat(25), "}".repeat(25)) }).to_string(),
            ["\"deep\"", "depth"],
        ),
        ("{}".to_owned(), ["documents.json", "no document"]),
        ("[".to_owned(), ["documents.json", "neither"]),
    ] {
        std::fs::write(&path, text).unwrap();
        let mut serve = largesse(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
        serve.env("LARGESSE_TOKEN_SECRET", SECRET).env("DATABASE_URL", "sqlite:books.db");
        let ended = run(serve.env("LARGESSE_DOCUMENTS_TRUSTED", "documents.json"));
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.starts_with("largesse: documents.trusted: ") && ended.stderr.lines().count() == 1);
        assert!(words.iter().all(|word| ended.stderr.contains(word)), "{}", ended.stderr);
    }
}

async fn trusting(database: Database, manifest: &Value) -> (World, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("documents.json");
    std::fs::write(&path, manifest.to_string()).unwrap();
    let world = World::with(database, Locks::Off, |settings| settings.documents.trusted = Some(path)).await;
    (world, folder)
}

impl World {
    /// Alice's balance as a trusted document tells it.
    async fn balance_by(&self, body: &Value) -> String {
        post(self, body).await.data("/viewer/wallet/available/amount").as_str().unwrap_or_default().to_owned()
    }
}

async fn post(world: &World, body: &Value) -> Answer {
    world.post(Some(&token("alice")), body.clone()).await
}

fn apq(hash: &str) -> Value {
    json!({ "extensions": { "persistedQuery": { "version": 1, "sha256Hash": hash } } })
}

fn hash(document: &str) -> String {
    Sha256::digest(document.as_bytes()).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
