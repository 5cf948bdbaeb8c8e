//! Promise: what a document may ask for is decided before it is executed, in no time, whoever else is being served.
//!
//! Guards the front: limits linear in the document, one request at a time, queries alone by GET, other origins by setting.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::world::{Database, Locks, World, patient, token, transfer, wait_until};

/// `levels` fragments, each of which spreads the next one so many times: under a kilobyte that expands to millions.
fn bomb(levels: usize, spreads: usize) -> String {
    let fragments = (0..levels).map(|level| {
        let next = format!("...F{} ", level + 1).repeat(spreads);
        format!("fragment F{level} on Query {{ {next}}} ")
    });
    let fragments: Vec<_> = fragments.collect();
    format!("{{ ...F0 }} {} fragment F{levels} on Query {{ viewer {{ id }} }}", fragments.concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_fragments_are_refused_at_once_while_others_are_served() {
    let world = World::new(Database::Sqlite, Locks::InProcess).await;
    world.introduce("alice").await;
    for document in [bomb(24, 2), bomb(8, 14)] {
        assert!(document.len() < 2000);
        // The first request of a world opens connections; the second shows what the document costs.
        for attempt in 0..2 {
            let started = Instant::now();
            let (bomb, neighbour) = tokio::join!(
                world.ask("mallory", &document, json!({})),
                world.ask("alice", "{ viewer { memberId } }", json!({})),
            );
            let took = started.elapsed();
            assert_eq!(bomb.code(), Some("GRAPHQL_VALIDATION_FAILED"), "{}", bomb.body);
            assert!(bomb.body.get("data").is_none());
            assert_eq!(neighbour.data("/viewer/memberId"), "alice");
            // A slow machine is allowed ten times what the promise gives a calm one; without the limit it takes minutes.
            assert!(attempt == 0 || took < Duration::from_millis(500), "{took:?}");
        }
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_of_aliases_fields_and_mutations_run_nothing() {
    let world = World::new(Database::Sqlite, Locks::Off).await;
    let many = |times: usize, field: &str| (0..times).map(|n| format!("a{n}: {field} ")).collect::<Vec<_>>().concat();
    for document in [
        format!("{{ {} }}", many(31, "__typename")),
        format!("{{ {} }}", "__typename ".repeat(5000)),
        format!("{{ {} id {} }}", "viewer { ".repeat(500), "}".repeat(500)),
        format!("mutation {{ {} }}", many(6, "claimDailyBonus { claim { id } }")),
        "query { ...A } fragment A on Query { ...B } fragment B on Query { ...A }".to_owned(),
    ] {
        let answer = world.ask("alice", &document, json!({})).await;
        assert!(matches!(answer.code(), Some("GRAPHQL_VALIDATION_FAILED" | "GRAPHQL_PARSE_FAILED")), "{}", answer.body);
        assert_eq!(answer.codes().len(), 1);
        assert!(answer.body.get("data").is_none());
    }
    let five = format!("mutation {{ {} }}", many(5, "claimDailyBonus { claim { id } }"));
    assert_eq!(world.ask("alice", &five, json!({})).await.codes(), Vec::<&str>::new(), "five mutations are allowed");
    assert_eq!(world.count("SELECT COUNT(*) FROM claims").await, 1);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_a_setting() {
    let world = World::with(Database::Sqlite, Locks::Off, |settings| settings.limits.root_mutations = 1).await;
    let two = "mutation { a: claimDailyBonus { claim { id } } b: claimSignupBonus { claim { id } } }";
    assert_eq!(world.ask("alice", two, json!({})).await.code(), Some("GRAPHQL_VALIDATION_FAILED"));
    assert_eq!(world.count("SELECT COUNT(*) FROM claims").await, 0);
    world.end().await;
}

/// A place for money work is taken, and another wish waits for it: the third is told at once, the second never starts to
/// move money once its deadline has passed, and reads go on all the while.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_much_is_told_at_once_and_reads_go_on() {
    let world = World::with(Database::Postgres, Locks::Off, |settings| {
        patient(settings);
        settings.database.pool_size = 1;
        settings.request.most_waiting = 1;
    })
    .await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let held = world.sql().await;
    let holding = sea_orm::TransactionTrait::begin(&held).await.unwrap();
    let lock = "SELECT 1 FROM wallets FOR UPDATE";
    sea_orm::ConnectionTrait::execute_unprepared(&holding, lock).await.unwrap();
    let first = post(&world, transfer("bob", 10, "first"));
    wait_until("the first waits for the row", async || world.waiting_for_locks().await == 1).await;
    // One of these finds the only place to wait, and the other none.
    let (second, third) = (post(&world, transfer("bob", 10, "second")), post(&world, transfer("bob", 10, "third")));
    let asked = Instant::now();
    let (refused, waiting) = futures_util::future::select(second, third).await.factor_first();
    let refused = refused.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(5), "at once, not after the deadline of 20 s");
    assert_eq!(refused["errors"][0]["extensions"]["code"], "UNAVAILABLE", "{refused}");
    assert!(refused["errors"][0]["extensions"]["retryAfterMs"].as_i64().unwrap() > 0);
    let read = world.ask("alice", "{ viewer { wallet { balance { amount } } } }", json!({})).await;
    assert_eq!(read.data("/viewer/wallet/balance/amount"), "100", "a read needs no place at work");
    holding.rollback().await.unwrap();
    for answer in [first.await.unwrap(), waiting.await.unwrap()] {
        assert_eq!(answer["data"]["transfer"]["replayed"], false, "{answer}");
    }
    assert_eq!(world.balance("bob").await, 20);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_may_come_by_get_and_a_mutation_never() {
    let world = World::new(Database::Sqlite, Locks::Off).await;
    let client = reqwest::Client::new();
    let get = |query: &[(&str, &str)]| {
        client.get(format!("{}/graphql", world.address())).query(query).bearer_auth(token("alice")).send()
    };
    let read = get(&[
        ("query", "query Q($id: ID!) { node(id: $id) { id } viewer { memberId } }"),
        ("variables", r#"{"id":"x"}"#),
    ]);
    let read: Value = read.await.unwrap().json().await.unwrap();
    assert_eq!(read["data"]["viewer"]["memberId"], "alice", "{read}");
    let mutation = "mutation M { claimDailyBonus { claim { id } } }";
    let behind_a_query = format!("query Q {{ __typename }} {mutation}");
    for query in [vec![("query", mutation)], vec![("query", behind_a_query.as_str()), ("operationName", "M")]] {
        let refused = get(&query).await.unwrap();
        assert_eq!((refused.status().as_u16(), refused.headers()["allow"].to_str().unwrap()), (405, "POST"));
    }
    assert_eq!(world.count("SELECT COUNT(*) FROM claims").await, 0);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_reads_answers_only_where_it_is_listed() {
    let listed = "https://app.example.com";
    let world =
        World::with(Database::Sqlite, Locks::Off, |settings| settings.cors.origins = vec![listed.to_owned()]).await;
    let client = reqwest::Client::new();
    for (origin, allowed) in
        [(listed, true), ("https://app.example.com.evil.example", false), ("http://localhost:3000", false)]
    {
        let url = format!("{}/graphql", world.address());
        let preflight = client.request(reqwest::Method::OPTIONS, &url).header("origin", origin);
        let preflight = preflight
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "content-type,authorization,traceparent");
        let preflight = preflight.send().await.unwrap();
        let request = client.post(&url).header("origin", origin).json(&json!({ "query": "{ __typename }" }));
        let answer = request.send().await.unwrap();
        for headers in [preflight.headers(), answer.headers()] {
            let echoed = headers.get("access-control-allow-origin").map(|value| value.to_str().unwrap());
            assert_eq!(echoed, allowed.then_some(origin));
            assert!(headers.get("access-control-allow-credentials").is_none());
        }
        let exposed = answer.headers()["access-control-expose-headers"].to_str().unwrap().to_ascii_lowercase();
        assert!(exposed.contains("retry-after") && exposed.contains("x-request-id"), "{exposed}");
    }
    world.end().await;
}

/// Sends a body as Alice, and does not wait.
fn post(world: &World, body: Value) -> tokio::task::JoinHandle<Value> {
    let request = reqwest::Client::new().post(format!("{}/graphql", world.address())).bearer_auth(token("alice"));
    tokio::spawn(async move { request.json(&body).send().await.unwrap().json().await.unwrap() })
}
