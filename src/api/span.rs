//! What a request's span is called, and whose trace it goes on with.

use axum::http::{HeaderMap, Method, StatusCode};
use tracing::Span;
use tracing::field::Empty;

use async_graphql::parser::types::{ExecutableDocument, OperationDefinition, OperationType, Selection, SelectionSet};

use crate::traces::{Origin, TRACEPARENT, TRACESTATE, span};

/// How many root fields stand in a span's name; a document may have hundreds.
const MOST_NAMED: usize = 3;

/// The span of an HTTP request. A method that we do not know is not repeated.
pub(super) fn of_http(method: &Method, route: &'static str, headers: &HeaderMap) -> Span {
    let known = [Method::GET, Method::POST, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS, Method::PATCH];
    let method = if known.contains(method) { method.as_str() } else { "_OTHER" };
    let span = span!(
        "request",
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method,
        http.route = route,
        http.response.status_code = Empty,
    );
    if !span.is_disabled()
        && let Some(origin) = of_headers(headers)
    {
        origin.continue_in(&span);
    }
    span
}

/// The span of an operation on a socket.
pub(super) fn of_operation(origin: Option<&Origin>) -> Span {
    let span = span!("operation", otel.kind = "server", network.protocol.name = "websocket");
    if let Some(origin) = origin {
        origin.continue_in(&span);
    }
    span
}

/// What the answer says.
pub(super) fn answered(span: &Span, status: StatusCode) {
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
}

/// The caller's trace. A second `traceparent` makes both worthless; of `tracestate` there may be several.
pub(super) fn of_headers(headers: &HeaderMap) -> Option<Origin> {
    let text = |value: &axum::http::HeaderValue| value.to_str().map(str::to_owned).ok();
    let mut parents = headers.get_all(TRACEPARENT).iter();
    let (Some(parent), None) = (parents.next(), parents.next()) else { return None };
    let states: Option<Vec<_>> = headers.get_all(TRACESTATE).iter().map(text).collect();
    Origin::read(&text(parent)?, &states.unwrap_or_default().join(","))
}

/// What an operation does, by its root fields. Only a document that fits the schema has names of ours.
pub(super) fn name_of(document: &ExecutableDocument, operation: &OperationDefinition) -> String {
    let mut fields = Vec::new();
    root_fields(document, &operation.selection_set.node, &mut fields);
    let kind = match operation.ty {
        OperationType::Query => "query",
        OperationType::Mutation => "mutation",
        OperationType::Subscription => "subscription",
    };
    let more = if fields.len() > MOST_NAMED { " …" } else { "" };
    fields.truncate(MOST_NAMED);
    format!("{kind} {}{more}", fields.join(" "))
}

/// One more than are named is enough; no fragment spreads itself in a document that was let through.
fn root_fields<'a>(document: &'a ExecutableDocument, selections: &'a SelectionSet, fields: &mut Vec<&'a str>) {
    for selection in &selections.items {
        if fields.len() > MOST_NAMED {
            return;
        }
        match &selection.node {
            Selection::Field(field) => {
                let name = field.node.name.node.as_str();
                if !fields.contains(&name) {
                    fields.push(name);
                }
            }
            Selection::InlineFragment(fragment) => {
                root_fields(document, &fragment.node.selection_set.node, fields);
            }
            Selection::FragmentSpread(spread) => {
                if let Some(fragment) = document.fragments.get(&spread.node.fragment_name.node) {
                    root_fields(document, &fragment.node.selection_set.node, fields);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_named_by_its_root_fields() {
        for (text, name) in [
            ("mutation Secret { mine: transfer { x } }", "mutation transfer"),
            (
                "{ viewer { id } ... on Query { node } ...F } fragment F on Query { viewer nodes }",
                "query viewer node nodes",
            ),
            ("{ a b c d e }", "query a b c …"),
            ("subscription { walletChanged { version } }", "subscription walletChanged"),
        ] {
            let document = async_graphql::parser::parse_query(text).unwrap();
            let (_, operation) = document.operations.iter().next().unwrap();
            assert_eq!(name_of(&document, &operation.node), name);
        }
    }

    #[test]
    fn one_parent_is_believed_and_two_are_not() {
        let parent = |last| format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333{last}-01").parse().unwrap();
        let mut headers = HeaderMap::new();
        assert!(of_headers(&headers).is_none());
        headers.append(TRACEPARENT, parent(1));
        headers.append(TRACESTATE, "a=1".parse().unwrap());
        headers.append(TRACESTATE, "b=2".parse().unwrap());
        assert!(of_headers(&headers).unwrap().written().ends_with("-01 a=1,b=2"));
        headers.append(TRACEPARENT, parent(2));
        assert!(of_headers(&headers).is_none());
    }
}
