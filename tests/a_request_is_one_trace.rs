//! Promise: what a request went through is one tree of spans below its client's own, a span for each layer that it reached,
//! and the receiver of a webhook sees the same trace.
//!
//! Guards `traces`, the spans of `api`, `ledger` and `workers`, and the outbox's `trace_context`: through the binary, told to
//! a real collector.

use largesse::traces::Origin;
use serde_json::json;

use crate::on_both;
use crate::world::collector::{Collector, Span, Traced, UNSAMPLED};
use crate::world::outbox::WHSEC;
use crate::world::receiver::Receiver;
use crate::world::socket::Socket;
use crate::world::{Database, books_balance, fresh_database, token, transfer, wait_until};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const OTHER_TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const OTHER_PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn of_trace(spans: &[Span], trace: &str) -> Vec<Span> {
    spans.iter().filter(|span| span.trace == trace).cloned().collect()
}

/// The one span of this name below another.
fn below<'a>(spans: &'a [Span], parent: &str, name: &str) -> &'a Span {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name && span.parent == parent).collect();
    let [one] = found[..] else { panic!("not one {name} below {parent}: {spans:#?}") };
    one
}

fn endpoint(url: &str) -> [(&'static str, String); 2] {
    let endpoint = format!("[{{name=\"crm\",url=\"{url}\",secrets=[\"{WHSEC}\"]}}]");
    [("LARGESSE_WEBHOOKS_ENDPOINTS", endpoint), ("LARGESSE_WEBHOOKS_ALLOW_PRIVATE_ADDRESSES", "true".to_owned())]
}

on_both!(a_transfer_is_one_tree_and_goes_on_at_the_receiver, async |database: Database| {
    let (collector, receiver) = (Collector::start().await, Receiver::taking().await);
    let (url, _folder) = fresh_database(database).await;
    let endpoint = endpoint(receiver.url());
    let server =
        Traced::start(&url, &collector.url(), &endpoint.each_ref().map(|(name, value)| (*name, value.as_str())));
    server.introduce("alice", "bob").await;
    let sampled = [("traceparent", PARENT), ("tracestate", "vendor=opaque")];
    let answer = server.ask("alice", &transfer("bob", 10, "one"), &sampled).await;
    assert!(answer["data"]["transfer"]["entry"]["id"].is_string(), "{answer}");
    wait_until("the events have arrived", async || receiver.received().len() == 3).await;
    assert_eq!(server.end().code, Some(0));

    // A request, guard, work, claim, transaction, and two webhooks; the unsampled requests before left nothing.
    let spans = collector.spans_once_there_are(7).await;
    assert_eq!((spans.len(), of_trace(&spans, TRACE).len()), (7, 7), "{spans:#?}");
    let request = below(&spans, "b7ad6b7169203331", "mutation transfer");
    assert_eq!(request.attribute("http.response.status_code"), "200");
    let guard = below(&spans, &request.id, "guard");
    assert_eq!((guard.attribute("action"), guard.attribute("verdict")), ("transfer", "admitted"));
    assert_eq!(guard.attribute("store"), "process");
    let work = below(&spans, &request.id, "work");
    let claim = below(&spans, &work.id, "claim");
    assert_eq!((claim.attribute("operation"), claim.attribute("outcome")), ("transfer", "won"));
    let transaction = below(&spans, &claim.id, "transaction");
    assert_eq!(transaction.attribute("outcome"), "committed");
    assert!(transaction.attribute("attempts").parse::<u32>().unwrap() >= 1);
    assert!(transaction.attribute("lock_wait_ms").parse::<f64>().unwrap() > 0.0);
    for event in receiver.received() {
        let (parent, state) = (&event.headers["traceparent"], event.headers.get("tracestate"));
        if event.place() == ("alice".to_owned(), 1) {
            assert!(
                parent.starts_with(&UNSAMPLED[..36]) && parent.ends_with("-00"),
                "its caller's wish is told: {parent}"
            );
            continue;
        }
        assert!(Origin::read(parent, "").is_some() && parent[3..].starts_with(TRACE), "{parent}");
        assert_eq!(state.map(String::as_str), Some("vendor=opaque"));
        let sent = spans.iter().find(|span| span.id == parent[36..52]).expect("the span that sent it");
        assert_eq!((sent.name.as_str(), sent.parent.as_str()), ("webhook", transaction.id.as_str()));
        assert_eq!((sent.attribute("endpoint"), sent.attribute("outcome")), ("crm", "delivered"));
    }
    books_balance(&url).await;
});

on_both!(a_refused_attempt_reaches_the_guard_and_nothing_else, async |database: Database| {
    let collector = Collector::start().await;
    let (url, _folder) = fresh_database(database).await;
    let server = Traced::start(&url, &collector.url(), &[]);
    server.introduce("alice", "bob").await;
    server.ask("alice", &transfer("bob", 10, "one"), &[("traceparent", UNSAMPLED)]).await;
    let headers = [("traceparent", PARENT), ("x-request-id", "the-refused-one")];
    let answer = server.ask("alice", &transfer("bob", 10, "two"), &headers).await;
    assert_eq!(answer["errors"][0]["extensions"]["code"], "COOLDOWN_ACTIVE", "{answer}");
    let logged = server.end().stderr;

    let spans = collector.spans_once_there_are(2).await;
    assert_eq!(spans.len(), 2, "{spans:#?}");
    let request = below(&spans, "b7ad6b7169203331", "mutation transfer");
    let guard = below(&spans, &request.id, "guard");
    assert_eq!(guard.attribute("verdict"), "refused");
    let line = logged.lines().find(|line| line.contains("the-refused-one")).expect("the refusal is logged");
    let line: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
    assert_eq!(line["trace_id"], TRACE, "the log and the trace belong together: {line}");
    books_balance(&url).await;
});

on_both!(what_is_malformed_begins_a_trace_of_its_own, async |database: Database| {
    let collector = Collector::start().await;
    let (url, _folder) = fresh_database(database).await;
    let server = Traced::start(&url, &collector.url(), &[]);
    let body = json!({ "query": "{ viewer { id } }" });
    for malformed in ["garbage", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"] {
        let answer = server.ask("alice", &body, &[("traceparent", malformed)]).await;
        assert!(answer["data"]["viewer"]["id"].is_string(), "{answer}");
    }
    let answer = server.ask("alice", &body, &[("traceparent", PARENT), ("traceparent", OTHER_PARENT)]).await;
    assert!(answer["data"]["viewer"]["id"].is_string(), "{answer}");
    server.end();
    let spans = collector.spans_once_there_are(3).await;
    let begun = |span: &Span| span.name == "query viewer" && span.parent.is_empty();
    assert!(spans.len() == 3 && spans.iter().all(begun), "{spans:#?}");
    assert!(of_trace(&spans, TRACE).is_empty() && of_trace(&spans, OTHER_TRACE).is_empty());
});

// A browser can set no header on a socket.
on_both!(an_operation_on_a_socket_goes_on_with_its_own_parent, async |database: Database| {
    let collector = Collector::start().await;
    let (url, _folder) = fresh_database(database).await;
    let server = Traced::start(&url, &collector.url(), &[]);
    let mut socket = Socket::at(&server.address, &token("alice")).await;
    let payload = json!({ "query": "{ viewer { id } }", "extensions": { "traceparent": PARENT } });
    socket.send(json!({ "type": "subscribe", "id": "1", "payload": payload })).await;
    assert_eq!(socket.next().await["type"], "next");
    let spans = collector.spans_once_there_are(1).await;
    let span = below(&spans, "b7ad6b7169203331", "query viewer");
    assert_eq!((spans.len(), span.trace.as_str()), (1, TRACE));
    server.end();
});
