//! `GraphiQL` at `/`: one tab per documented operation, no outside host, and in the demo the members' tokens filled in.
//!
//! The demo's tokens are as good as passwords, and the demo hands them to whoever opens the page. So there the page
//! answers this machine's browser alone: it must be addressed by a loopback name, which a rebound DNS name is not, and
//! without a header that a proxy or tunnel adds.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Router,
    extract::{Path, Request, State},
    http::{
        HeaderMap, HeaderValue, StatusCode, Uri,
        header::{
            CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HOST, IF_NONE_MATCH, REFERRER_POLICY,
            X_CONTENT_TYPE_OPTIONS,
        },
    },
    middleware::{self, Next},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};
use uuid::Uuid;

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

const PAGE: &str = include_str!("../../web/index.html");
const PAGE_WITHOUT_ASSETS: &str = include_str!("../../web/missing.html");
const OPERATIONS: &str = include_str!("../../operations/largesse.graphql");

/// Nothing from outside. The editor's dialogs write style elements, and its style sheet holds its fonts as `data:`.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; style-src-elem 'self' 'unsafe-inline'; \
                      img-src data:; font-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// A file that the build embedded.
struct Asset {
    name: &'static str,
    content_type: &'static str,
    etag: &'static str,
    bytes: &'static [u8],
}

/// The page and what it shows.
pub(crate) struct GraphiQl {
    members: Vec<(String, String)>,
}

impl GraphiQl {
    /// A page with a token for each of these members; with none of them, the page outside the demo, open to every host.
    pub(crate) fn new(members: &[(String, String)]) -> Self {
        Self { members: members.to_vec() }
    }

    /// The page at `/` and its files under `/graphiql/`.
    pub(crate) fn router(self) -> Router {
        let page = Arc::new(self);
        Router::new()
            .route("/", get(index))
            .route("/graphiql/config.json", get(config))
            .route("/graphiql/{file}", get(asset))
            .route_layer(middleware::from_fn_with_state(Arc::clone(&page), guard))
            .with_state(page)
    }

    /// Whether there are members to show.
    pub(crate) fn is_demo(&self) -> bool {
        !self.members.is_empty()
    }

    fn authorization(&self) -> Option<String> {
        self.members.first().map(|(_, token)| format!("Bearer {token}"))
    }

    fn config(&self) -> Value {
        let headers = self.authorization().map(|bearer| json!({ "Authorization": bearer }));
        let members = self.members.iter().map(|(member, token)| json!({ "member": member, "token": token }));
        let tabs = operations(OPERATIONS).into_iter().map(|(name, query)| {
            json!({ "title": name, "query": query, "variables": example_variables(name), "headers": headers })
        });
        json!({ "demo": self.is_demo(), "members": members.collect::<Vec<_>>(), "tabs": tabs.collect::<Vec<_>>() })
    }

    fn curl(&self, host: Option<&str>) -> String {
        // The host comes from the request and goes into HTML: only what cannot be markup.
        let plain = |host: &&str| host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:[]".contains(&b));
        let host = host.filter(plain).unwrap_or("localhost");
        let authorization = self.authorization().unwrap_or_else(|| "Bearer YOUR_TOKEN".to_owned());
        format!(
            "curl http://{host}/graphql \\\n  \
             -H 'Content-Type: application/json' \\\n  \
             -H 'Authorization: {authorization}' \\\n  \
             -d '{{\"query\": \"{{ viewer {{ memberId wallet {{ available {{ amount currency }} }} }} }}\"}}'"
        )
    }
}

async fn index(State(page): State<Arc<GraphiQl>>, uri: Uri, headers: HeaderMap) -> Html<String> {
    Html(if GRAPHIQL_EMBEDDED {
        PAGE.to_owned()
    } else {
        PAGE_WITHOUT_ASSETS.replace("{curl}", &page.curl(authorities(&uri, &headers).next()))
    })
}

async fn config(State(page): State<Arc<GraphiQl>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], page.config().to_string())
}

async fn asset(Path(file): Path<String>, headers: HeaderMap) -> Response {
    let Some(asset) = ASSETS.iter().find(|asset| asset.name == file) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    // The browser keeps the file and asks each time whether it is still the one: a new build is seen at once.
    let caching = [(CACHE_CONTROL, "no-cache"), (ETAG, asset.etag)];
    if headers.get(IF_NONE_MATCH).is_some_and(|known| known == asset.etag) {
        return (StatusCode::NOT_MODIFIED, caching).into_response();
    }
    (caching, [(CONTENT_TYPE, asset.content_type)], asset.bytes).into_response()
}

/// Turns away from the demo whoever is not at this machine, and puts the headers on every answer.
async fn guard(State(page): State<Arc<GraphiQl>>, request: Request, next: Next) -> Response {
    let mut response = if page.is_demo() && !is_local(request.uri(), request.headers()) {
        let why = "The demo shows its members' tokens on this page, so it opens only at this machine's own address, \
                   such as http://127.0.0.1, and not through a proxy or tunnel.\n";
        (StatusCode::FORBIDDEN, why).into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Whether the request names this machine, every time that it names a host, and shows no sign of a proxy or tunnel.
fn is_local(uri: &Uri, headers: &HeaderMap) -> bool {
    const PROXIED: [&str; 6] = ["forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"];
    let proxied =
        |name: &str| PROXIED.contains(&name) || name.starts_with("x-forwarded") || name.starts_with("x-original");
    let mut named = authorities(uri, headers).peekable();
    named.peek().is_some() && named.all(is_loopback) && !headers.keys().any(|name| proxied(name.as_str()))
}

/// Every host that the request names: in its target, as HTTP/2 does, and in its `Host` headers. One that is not text is
/// empty.
fn authorities<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> impl Iterator<Item = &'a str> {
    let target = uri.authority().map(axum::http::uri::Authority::as_str);
    target.into_iter().chain(headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default()))
}

fn is_loopback(authority: &str) -> bool {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    };
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|name| host.eq_ignore_ascii_case(name))
}

/// Values with which the operation works at once; a transfer gets a new key for each load of the page.
fn example_variables(operation: &str) -> Option<Value> {
    match operation {
        "History" => Some(json!({ "first": 20 })),
        "Transfer" => Some(json!({
            "input": {
                "to": "bob",
                "amount": "5",
                "currency": "PTS",
                "memo": "Thank you!",
                "idempotencyKey": Uuid::new_v4().to_string(),
            }
        })),
        _ => None,
    }
}

/// The document's operations in their order, each with its name and the fragments that it needs, so that it can be sent
/// alone.
///
/// The document is formatted: a definition starts at its keyword and ends with the first `}` at the start of a line.
fn operations(document: &str) -> Vec<(&str, String)> {
    let (fragments, operations): (Vec<_>, Vec<_>) =
        document.split_inclusive("\n}\n").map(definition).partition(|definition| definition.0 == "fragment");
    let fragments = fragments.into_iter().map(|(_, name, text)| (name, text)).collect();
    operations.into_iter().map(|(_, name, text)| (name, with_fragments(text, &fragments))).collect()
}

/// Keyword, name and text of a definition; its text may begin with comments.
fn definition(text: &str) -> (&str, &str, &str) {
    let text = text.trim();
    let head = text.lines().find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or_default();
    let (keyword, rest) = head.split_once(' ').unwrap_or((head, ""));
    (keyword, leading_name(rest), text)
}

/// The operation, then each fragment that it or another fragment spreads, once.
fn with_fragments(operation: &str, fragments: &BTreeMap<&str, &str>) -> String {
    let mut texts = vec![operation];
    let mut next = 0;
    while let Some(text) = texts.get(next) {
        let spread: Vec<_> = spreads(text).filter_map(|name| fragments.get(name).copied()).collect();
        for fragment in spread {
            if !texts.contains(&fragment) {
                texts.push(fragment);
            }
        }
        next += 1;
    }
    texts.join("\n\n")
}

/// Names of the fragments that a definition spreads: what follows `...`, except `on Type` and directives.
fn spreads(text: &str) -> impl Iterator<Item = &str> {
    text.split("...").skip(1).map(|rest| leading_name(rest.trim_start())).filter(|name| !matches!(*name, "" | "on"))
}

fn leading_name(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().expect("a header's name"), HeaderValue::from_static(value)))
            .collect()
    }

    fn demo() -> GraphiQl {
        GraphiQl::new(&[("alice".to_owned(), "a.b.c".to_owned()), ("bob".to_owned(), "d.e.f".to_owned())])
    }

    #[test]
    fn a_loopback_name_is_local_with_any_port() {
        for host in ["localhost", "LocalHost:8080", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:65535"] {
            assert!(is_local(&Uri::from_static("/"), &headers(&[("host", host)])), "{host}");
        }
    }

    #[test]
    fn any_other_name_is_not_local() {
        for host in [
            "",
            ":80",
            "evil.example",
            "evil.example:80",
            "localhost.evil.example",
            "localhost:x",
            "localhost@evil.example",
            "evil@localhost",
            "127.0.0.1.nip.io",
            "[::1",
            "[::1].evil:80",
            "::1",
            "0.0.0.0",
            "192.168.0.1:80",
            "localhost,evil.example",
        ] {
            assert!(!is_local(&Uri::from_static("/"), &headers(&[("host", host)])), "{host}");
        }
        assert!(!is_local(&Uri::from_static("/"), &headers(&[])));
    }

    #[test]
    fn every_host_that_a_request_names_must_be_local() {
        let local = headers(&[("host", "localhost")]);
        assert!(is_local(&Uri::from_static("http://127.0.0.1:80/"), &headers(&[])));
        assert!(!is_local(&Uri::from_static("http://evil.example/"), &local));
        let mut twice = local;
        twice.append(HOST, HeaderValue::from_static("evil.example"));
        assert!(!is_local(&Uri::from_static("/"), &twice));
    }

    #[test]
    fn a_forwarded_request_is_not_local() {
        for name in ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "cf-connecting-ip"] {
            assert!(!is_local(&Uri::from_static("/"), &headers(&[("host", "localhost"), (name, "")])), "{name}");
        }
    }

    #[test]
    fn an_operation_brings_the_fragments_that_it_needs_directly_or_not() {
        let document = "fragment A on T {\n  ...B\n}\n\n\
                        # Reads.\nquery Q($n: Int) {\n  a {\n    ... on T {\n      ...A\n    }\n  }\n}\n\n\
                        fragment B on T {\n  ...A\n  b\n}\n\nfragment C on T {\n  c\n}\n\nmutation M {\n  m\n}\n";
        let [(q, query), (m, mutation)] = &operations(document)[..] else { panic!("two operations") };
        assert_eq!((*q, *m), ("Q", "M"));
        assert!(query.starts_with("# Reads.\nquery Q($n: Int) {"));
        assert_eq!((query.matches("fragment A on").count(), query.matches("fragment B on").count()), (1, 1));
        assert!(!query.contains("fragment C"));
        assert_eq!(mutation, "mutation M {\n  m\n}");
    }

    #[test]
    fn every_operation_of_the_product_can_be_sent_alone() {
        let operations = operations(OPERATIONS);
        let names: Vec<_> = operations.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["Home", "History", "ClaimDailyBonus", "ClaimSignupBonus", "Transfer", "WalletChanged"]);
        for (name, query) in &operations {
            for spread in spreads(query) {
                assert!(query.contains(&format!("fragment {spread} on ")), "{name} lacks {spread}");
            }
        }
    }

    #[test]
    fn only_the_demo_hands_out_tokens() {
        let config = demo().config();
        assert_eq!(config["tabs"][0]["headers"]["Authorization"], "Bearer a.b.c");
        assert_eq!(config["members"][1], json!({ "member": "bob", "token": "d.e.f" }));
        let open = GraphiQl::new(&[]).config();
        assert_eq!(
            (&open["demo"], &open["members"], &open["tabs"][0]["headers"]),
            (&json!(false), &json!([]), &Value::Null)
        );
    }

    #[test]
    fn each_load_suggests_a_new_idempotency_key() {
        let key = |page: &GraphiQl| page.config()["tabs"][4]["variables"]["input"]["idempotencyKey"].clone();
        let page = demo();
        assert!(key(&page).is_string());
        assert_ne!(key(&page), key(&page));
    }

    #[test]
    fn a_host_cannot_write_into_the_page() {
        assert!(demo().curl(Some("127.0.0.1:80")).starts_with("curl http://127.0.0.1:80/graphql"));
        assert!(demo().curl(Some("<script>")).starts_with("curl http://localhost/graphql"));
    }
}
