//! Input of every kind: what a client could send by mistake, and what nobody would send by mistake. Each part can be used by
//! itself, whichever way it travels.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Map, Value, json};

use super::{CLAIM_DAILY, CLAIM_SIGNUP, TRANSFER};

/// What a URL may hold behind its question mark.
const URL: &str = "abcxyzABCXYZ0123456789%%%==&&&+/?-._~!$'()*,;:@";

/// Documents that are good, to be damaged.
const GOOD: [&str; 9] = [
    "{ viewer { id memberId wallet { id version balance { amount currency decimals } } } }",
    "query($ids: [ID!]) { nodes(ids: [\"x\"]) { id } node(id: \"y\") { __typename } }",
    "{ viewer { dailyBonus { claimable streak } wallet { entries(first: 2) { nodes { id memo } pageInfo { endCursor } } } } }",
    include_str!("../../operations/largesse.graphql"),
    TRANSFER,
    CLAIM_DAILY,
    CLAIM_SIGNUP,
    "query($n: Int = 5, $c: String) { viewer { id wallet { entries(first: $n, after: $c) { nodes { id } } } } }",
    "{ __schema { types { name fields { name args { name } } } } __type(name: \"Query\") { name } }",
];

/// A document: built by the grammar, a good one that was damaged, or any text.
pub(crate) fn document() -> impl Strategy<Value = String> {
    prop_oneof![3 => grammatical(), 6 => damaged(), 1 => text(), 1 => vec(token(), 0..60).prop_map(|tokens| tokens.join(" "))]
}

/// What stands in `variables`: mostly an object with names that our documents use.
pub(crate) fn variables() -> impl Strategy<Value = Value> {
    let input = (member(), json(), select(vec!["PTS", "XXX", "pts"]), ascii(12), option::of(ascii(12)));
    let input = input.prop_map(|(to, amount, currency, key, memo)| {
        json!({ "to": to, "amount": amount, "currency": currency, "idempotencyKey": key, "memo": memo })
    });
    let input = prop_oneof![3 => input, 1 => json()];
    let named = (input, json(), json()).prop_map(|(input, n, c)| json!({ "input": input, "n": n, "c": c, "ids": c }));
    prop_oneof![3 => named, 1 => json()]
}

/// Any JSON, not too deep.
pub(crate) fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-5_i64..200).prop_map(|small| Value::from(small.to_string())),
        text().prop_map(Value::from),
        select(vec!["a\0b", "9223372036854775808", "\u{202e}", ""]).prop_map(Value::from),
    ];
    let name = prop_oneof![name(), text()].boxed();
    leaf.prop_recursive(3, 24, 6, move |inner| {
        let fields = vec((name.clone(), inner.clone()), 0..5);
        prop_oneof![
            vec(inner, 0..5).prop_map(Value::from),
            fields.prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// The parameters of a request, the names of documents among them.
pub(crate) fn parameters() -> impl Strategy<Value = Value> {
    let extension = prop_oneof![
        Just(json!({ "version": 1, "sha256Hash": "7f56e67dd21ab3f30d1ff8b7bed08893f0a0db86449836189b361dd1e56ddb4b" })),
        vec(select(b"0123456789abcdef".to_vec()).prop_map(char::from), 64)
            .prop_map(String::from_iter)
            .prop_map(|hash| json!({ "version": 1, "sha256Hash": hash })),
        json(),
    ];
    let extensions = prop_oneof![extension.prop_map(|extension| json!({ "persistedQuery": extension })), json()];
    let document = prop_oneof![9 => document().prop_map(Value::from), 1 => json()];
    let parts = (option::weighted(0.95, document), option::of(variables()), option::weighted(0.1, extensions));
    let names = (option::weighted(0.1, prop_oneof![name(), text()]), option::weighted(0.05, text()));
    (parts, names).prop_map(|((query, variables, extensions), (operation, id))| {
        let members = [
            ("query", query),
            ("variables", variables),
            ("extensions", extensions),
            ("operationName", operation.map(Value::from)),
            ("documentId", id.map(Value::from)),
        ];
        members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect::<Map<_, _>>().into()
    })
}

/// A body: parameters, other JSON, JSON that was cut or doubled, or any bytes.
pub(crate) fn body() -> impl Strategy<Value = Vec<u8>> {
    let cut = (parameters(), any::<Index>()).prop_map(|(body, at)| {
        let mut bytes = body.to_string().into_bytes();
        bytes.truncate(at.index(bytes.len() + 1));
        bytes
    });
    prop_oneof![
        9 => parameters().prop_map(|body| body.to_string().into_bytes()),
        1 => json().prop_map(|body| body.to_string().into_bytes()),
        1 => vec(parameters(), 0..3).prop_map(|batch| Value::from(batch).to_string().into_bytes()),
        1 => cut,
        1 => vec(any::<u8>(), 0..200),
        1 => (1_usize..3000).prop_map(|deep| "[".repeat(deep).into_bytes()),
        1 => (1_usize..3000).prop_map(|deep| format!("{{\"query\":{}", "{\"a\":".repeat(deep)).into_bytes()),
    ]
}

/// What a client of graphql-transport-ws may send: messages of the protocol with parts of every kind, and what is none.
pub(crate) fn frames() -> impl Strategy<Value = Vec<Frame>> {
    let id = prop_oneof![3 => select(vec!["1", "2", ""]).prop_map(Value::from), 1 => json()];
    let kind =
        select(vec!["subscribe", "subscribe", "subscribe", "complete", "ping", "pong", "connection_init", "next"]);
    let message =
        (kind, option::weighted(0.95, id), option::weighted(0.95, parameters()), option::weighted(0.1, json()));
    let message = message.prop_map(|(kind, id, payload, other)| {
        let members = [("type", Some(kind.into())), ("id", id), ("payload", payload), ("other", other)];
        let members = members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Frame::Text(Value::Object(members.collect()).to_string())
    });
    let watch = "subscription { walletChanged { entry { id kind } wallet { id version } } }";
    let watch = json!({ "type": "subscribe", "id": "live", "payload": { "query": watch } }).to_string();
    let frame = prop_oneof![
        12 => message,
        2 => Just(Frame::Text(watch)),
        1 => json().prop_map(|json| Frame::Text(json.to_string())),
        1 => text().prop_map(Frame::Text),
        1 => vec(any::<u8>(), 0..40).prop_map(Frame::Binary),
        1 => vec(any::<u8>(), 0..125).prop_map(Frame::Ping),
        1 => vec(any::<u8>(), 1..60).prop_map(Frame::Bytes),
    ];
    vec(frame, 0..8)
}

/// What is sent on a WebSocket.
#[derive(Debug, Clone)]
pub(crate) enum Frame {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    /// Bytes that are no frame, or a broken one.
    Bytes(Vec<u8>),
}

/// What follows the question mark: names and values, well escaped or not.
pub(crate) fn query_string() -> impl Strategy<Value = String> {
    let name = select(vec!["query", "variables", "extensions", "operationName", "documentId", "other"]);
    let value = prop_oneof![document(), variables().prop_map(|value| value.to_string()), text()];
    let written =
        |pairs: Vec<(&str, String)>| form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    let usual = document().prop_map(move |document| written(vec![("query", document)]));
    let raw = vec(select(URL.as_bytes()).prop_map(char::from), 0..80).prop_map(String::from_iter);
    prop_oneof![4 => usual, 2 => vec((name, value), 0..4).prop_map(written), 1 => raw]
}

/// Headers, each of them good, strange or of any bytes that HTTP lets through. `tokens` are good ones.
pub(crate) fn headers(tokens: Vec<String>) -> impl Strategy<Value = Vec<(&'static str, Vec<u8>)>> {
    let usual = tokens.clone();
    let one = move |name: &'static str, usual: Vec<&'static str>| {
        option::weighted(
            0.7,
            prop_oneof![3 => select(usual).prop_map(|text| text.as_bytes().to_vec()), 1 => header_value()],
        )
        .prop_map(move |value| value.map(|value| (name, value)))
    };
    let types = vec![
        "application/json",
        "application/json; charset=utf-8",
        "application/json;charset=utf-16",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/graphql",
    ];
    let accepted = vec![
        "*/*",
        "application/json",
        "application/graphql-response+json",
        "application/*;q=0.5, text/html",
        "application/graphql-response+json;q=0, application/json",
        "text/html",
        "application/json;q=2",
    ];
    let origins = vec!["null", "http://localhost:3000", "https://evil.example"];
    let token = (select(tokens), 0..12_u8, header_value()).prop_map(|(token, kind, any)| match kind {
        0 => any,
        1 => token.into_bytes(),
        2 => format!("Bearer {}", token.replace('a', "b")).into_bytes(),
        3 => [b"Bearer ", any.as_slice()].concat(),
        4 => b"Bearer eyJhbGciOiJub25lIn0.e30.".to_vec(),
        _ => format!("Bearer {token}").into_bytes(),
    });
    let strange = (
        one("content-type", types),
        one("accept", accepted),
        option::weighted(0.9, token.prop_map(|value| ("authorization", value))),
        one("origin", origins),
        one("x-request-id", vec!["a request", "01", ""]),
        one("idempotency-key", vec!["one", ""]),
    );
    let strange = strange.prop_map(|(a, b, c, d, e, f)| [a, b, c, d, e, f].into_iter().flatten().collect());
    let usual = select(usual).prop_map(|token| {
        let token = format!("Bearer {token}").into_bytes();
        vec![("content-type", b"application/json".to_vec()), ("authorization", token)]
    });
    prop_oneof![usual, strange]
}

/// What a header may hold: RFC 9110, section 5.5.
fn header_value() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![8 => 0x20..0x7f_u8, 1 => 0x80..=0xff_u8, 1 => Just(b'\t')];
    prop_oneof![9 => vec(byte.clone(), 0..40), 1 => vec(byte, 400..600)]
}

fn member() -> impl Strategy<Value = String> {
    prop_oneof![select(vec!["alice", "bob", "carol", "nobody"]).prop_map(str::to_owned), text()]
}

/// A document by the grammar; its names are mostly those of the schema, so that some of it fits.
fn grammatical() -> impl Strategy<Value = String> {
    let operation = (operation_head(), selections()).prop_map(|(head, selections)| format!("{head} {selections}"));
    let fragment = (fragment_name(), type_name(), directives(), selections())
        .prop_map(|(name, of, directives, selections)| format!("fragment {name} on {of} {directives} {selections}"));
    (vec(operation, 1..3), vec(fragment, 0..3))
        .prop_map(|(operations, fragments)| [operations, fragments].concat().join("\n"))
}

fn operation_head() -> impl Strategy<Value = String> {
    let variable = (select(vec!["a", "b", "c"]), type_name(), select(vec!["", "!"]), option::weighted(0.3, value()))
        .prop_map(|(name, of, needed, default)| {
            format!("${name}: {of}{needed} {}", default.map_or(String::new(), |value| format!("= {value}")))
        });
    let kind = select(vec!["query", "query", "mutation", "subscription"]);
    let named = (kind, option::of(name()), vec(variable, 0..3), directives()).prop_map(
        |(kind, name, variables, directives)| {
            let variables = if variables.is_empty() { String::new() } else { format!("({})", variables.join(", ")) };
            format!("{kind} {} {variables} {directives}", name.unwrap_or_default())
        },
    );
    prop_oneof![1 => Just(String::new()), 2 => named]
}

fn selections() -> impl Strategy<Value = String> {
    let written = |(alias, name, arguments, directives): (Option<String>, String, String, String)| {
        format!("{}{name}{arguments} {directives}", alias.map_or(String::new(), |alias| format!("{alias}: ")))
    };
    let field = (option::weighted(0.2, name()), name(), arguments(), directives()).prop_map(written).boxed();
    let spread = (fragment_name(), directives()).prop_map(|(name, directives)| format!("...{name} {directives}"));
    let leaf = prop_oneof![8 => field.clone(), 1 => spread];
    let set = |items: Vec<String>| format!("{{ {} }}", items.join(" "));
    // This is called for each case, so it makes nothing that could be made before.
    let nested = leaf.prop_recursive(6, 40, 5, move |inner| {
        let below = vec(inner, 1..5).prop_map(set).boxed();
        prop_oneof![
            4 => (field.clone(), below.clone()).prop_map(|(field, below)| format!("{field} {below}")),
            1 => (type_name(), below).prop_map(|(of, below)| format!("... on {of} {below}")),
        ]
    });
    vec(nested, 0..5).prop_map(set)
}

fn arguments() -> impl Strategy<Value = String> {
    let arguments = vec((name(), value()), 1..3).prop_map(|arguments| {
        let arguments: Vec<_> = arguments.into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
        format!("({})", arguments.join(", "))
    });
    prop_oneof![3 => Just(String::new()), 1 => arguments]
}

fn directives() -> impl Strategy<Value = String> {
    let directive = (select(vec!["skip", "include", "deprecated", "oneOf", "unknown"]), value())
        .prop_map(|(name, value)| format!("@{name}(if: {value})"));
    prop_oneof![6 => Just(String::new()), 1 => vec(directive, 1..3).prop_map(|directives| directives.join(" "))]
}

/// A value as a document writes it.
fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| format!("{number:e}")),
        select(vec!["$a", "$b", "$c", "$input"]).prop_map(str::to_owned),
        select(vec!["PTS", "DAILY", "A"]).prop_map(str::to_owned),
        Just("null".to_owned()),
        any::<bool>().prop_map(|truth| truth.to_string()),
        text().prop_map(|text| Value::from(text).to_string()),
        ascii(9).prop_map(|text| format!("\"\"\"{text}\"\"\"")),
    ];
    let name = name().boxed();
    leaf.prop_recursive(3, 12, 4, move |inner| {
        let fields = vec((name.clone(), inner.clone()), 0..4).prop_map(|fields| {
            let fields: Vec<_> = fields.into_iter().map(|(name, value)| format!("{name}: {value}")).collect();
            format!("{{ {} }}", fields.join(", "))
        });
        prop_oneof![vec(inner, 0..4).prop_map(|items| format!("[{}]", items.join(", "))), fields]
    })
}

fn type_name() -> impl Strategy<Value = String> {
    select(vec![
        "Query",
        "Mutation",
        "Member",
        "Wallet",
        "Entry",
        "Node",
        "TransferInput",
        "BigInt",
        "Int",
        "[ID!]",
        "Nothing",
    ])
    .prop_map(str::to_owned)
}

fn fragment_name() -> impl Strategy<Value = &'static str> {
    select(vec!["F0", "F1", "F2", "F3"])
}

/// A name: one of the schema's, or any.
fn name() -> impl Strategy<Value = String> {
    let any = vec(select(b"abcxyzABCXYZ_".to_vec()).prop_map(char::from), 1..12).prop_map(String::from_iter);
    prop_oneof![9 => select(NAMES.as_slice()), 1 => any]
}

/// Every name that stands in the schema.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let schema = include_str!("../../schema.graphql");
    let code = schema.lines().filter(|line| !line.trim_start().starts_with(['"', '#']));
    let words = code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let names = words.filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase() || c == '_'));
    let names: BTreeSet<_> = names.chain(["__typename", "__schema", "__type"]).map(str::to_owned).collect();
    names.into_iter().collect()
});

/// Text of any characters.
fn text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..16).prop_map(String::from_iter)
}

/// Text that can be typed, of fewer characters than this.
fn ascii(end: usize) -> impl Strategy<Value = String> {
    vec((0x20..0x7f_u8).prop_map(char::from), 0..end).prop_map(String::from_iter)
}

/// A piece of a document.
fn token() -> impl Strategy<Value = String> {
    prop_oneof![
        select(vec![
            "{", "}", "(", ")", "[", "]", "...", "on", "@", "$", ":", "=", "!", "|", "&", "\"", "\"\"\"", "#",
            "\u{feff}", "\\"
        ])
        .prop_map(str::to_owned),
        select(vec!["query", "mutation", "subscription", "fragment", "null", "true", "extend", "schema"])
            .prop_map(str::to_owned),
        name(),
        value(),
    ]
}

/// A good document with a few pieces put in, taken out or doubled.
fn damaged() -> impl Strategy<Value = String> {
    let edit = (any::<Index>(), 0..12_usize, 0..3_u8, token());
    (select(GOOD.to_vec()), prop_oneof![2 => Just(Vec::new()), 1 => vec(edit, 1..4)]).prop_map(|(good, edits)| {
        let mut text: Vec<char> = good.chars().collect();
        for (place, length, kind, token) in edits {
            let start = place.index(text.len() + 1);
            let end = (start + length).min(text.len());
            let piece: Vec<_> = match kind {
                0 => token.chars().collect(),
                1 => Vec::new(),
                _ => text[start..end].repeat(2),
            };
            text.splice(start..end, piece);
        }
        text.into_iter().collect()
    })
}
