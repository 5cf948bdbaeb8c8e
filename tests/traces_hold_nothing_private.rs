//! Promise: nothing that a client or a member chose is in a trace: no name, key, token, memo, alias, name of an operation,
//! id of a request, and no text of a document that does not fit the schema.
//!
//! Guards every span: all that a real collector was told is searched.

use serde_json::json;

use crate::on_both;
use crate::world::collector::{Collector, Traced};
use crate::world::{Database, books_balance, fresh_database, token};

/// Each stands in one place of a request, and nowhere else on earth.
const CHOSEN: [&str; 10] = [
    "member-zq01",
    "member-zq02",
    "key-zq03",
    "memo zq04",
    "aliaszq05",
    "Operationzq06",
    "request-zq07",
    "unknownzq08",
    "agent-zq09",
    "METHODZQ10",
];

on_both!(all_that_is_exported_is_ours, async |database: Database| {
    let collector = Collector::start().await;
    let (url, _folder) = fresh_database(database).await;
    let server = Traced::start(&url, &collector.url(), &[]);
    let [alice, bob, key, memo, alias, operation, request, unknown, agent, method] = CHOSEN;
    server.introduce(alice, bob).await;
    let headers = [("x-request-id", request), ("user-agent", agent)];
    let document = format!(
        "mutation {operation}($input: TransferInput!) {{ {alias}: transfer(input: $input) {{ entry {{ id }} replayed \
         userErrors {{ code }} }} }}"
    );
    // Done, refused by the guard, done again after a change of mind, and refused for want of money.
    for amount in ["10", "11", "100000"] {
        let input = json!({ "to": bob, "amount": amount, "currency": "PTS", "idempotencyKey": key, "memo": memo });
        server.ask(alice, &json!({ "query": document, "variables": { "input": input } }), &headers).await;
    }
    // What does not fit the schema has names, and they are not ours.
    let answer = server.ask(alice, &json!({ "query": format!("{{ {unknown} }}") }), &headers).await;
    assert_eq!(answer["errors"][0]["extensions"]["code"], "GRAPHQL_VALIDATION_FAILED", "{answer}");
    let strange = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
    let refused = reqwest::Client::new().request(strange, format!("{}/graphql", server.address)).send().await.unwrap();
    assert_eq!(refused.status(), 405);
    let logged = server.end().stderr;
    assert!(logged.contains(request), "the log may hold the request's id: {logged}");

    let spans = collector.spans_once_there_are(5 + 3 + 1 + 1 + 1).await;
    assert!(spans.iter().any(|span| span.name == "mutation transfer"), "{spans:#?}");
    let exported = collector.text();
    for chosen in CHOSEN {
        assert!(!exported.contains(chosen), "{chosen} is in a trace");
    }
    assert!(!exported.contains(token(alice).rsplit('.').next().unwrap()), "a token is in a trace");
    books_balance(&url).await;
});
