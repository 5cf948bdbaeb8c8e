//! Promise: bad input is refused in its place, by an error that names the field, and costs nothing: no row is written and
//! no cooldown is spent, so the mended request is admitted at once.
//!
//! Guards the boundary (scalars, validation, variables), the order "parse, then work" of `transfer`, and layer 1's rows
//! "the request fails validation" and "INVALID_INPUT" of the outcome table.

use serde_json::{Map, Value, json};

use crate::on_both;
use crate::world::{Answer, Database, Locks, TRANSFER, World, transfer};

/// What a type refuses: a request error, before any work.
fn refused_by_their_type() -> Vec<(&'static str, Value)> {
    let mut cases = Vec::new();
    let texts = ["10x", "1e3", "9223372036854775808", "-9223372036854775809", "", " ", " 5", "5 ", "+5", "007", "1.0"];
    cases.extend(texts.map(|amount| ("amount", json!(amount))));
    let values = [
        json!(9_223_372_036_854_775_808_u64),
        json!(9_007_199_254_740_992_i64),
        json!(-9_007_199_254_740_992_i64),
        json!(1.5),
        json!(10.0),
        json!(1e300),
        json!(true),
        json!(null),
        json!([5]),
        json!({ "of": 5 }),
    ];
    cases.extend(values.map(|amount| ("amount", amount)));
    let codes = ["", "P", "pts", "PTS ", "P TS", "PÜS", "ABCDEFGHIJKLM"];
    cases.extend(codes.map(|currency| ("currency", json!(currency))));
    cases.extend([json!(5), json!(null)].map(|currency| ("currency", currency)));
    let keys = ["", " ", "a b", "a\0b", "schlüssel", "🗝"];
    cases.extend(keys.map(|key| ("idempotencyKey", json!(key))));
    cases.extend([json!("x".repeat(256)), json!(5), json!(null)].map(|key| ("idempotencyKey", key)));
    cases.extend([json!(5), json!(null), json!(["bob"])].map(|to| ("to", to)));
    cases.extend([json!(5), json!(["a note"])].map(|memo| ("memo", memo)));
    cases
}

/// What is well formed and not acceptable: an answer, in `userErrors`.
fn refused_by_the_operation() -> Vec<(&'static str, Value)> {
    let mut cases = Vec::new();
    let amounts = [json!("0"), json!("-1"), json!(0), json!(-1), json!("-9223372036854775808")];
    cases.extend(amounts.map(|amount| ("amount", amount)));
    cases.extend([json!(""), json!("x".repeat(300)), json!("bob\0")].map(|to| ("to", to)));
    cases.extend(
        [json!("x".repeat(141)), json!("two\nlines"), json!("a\0b"), json!("\u{7f}")].map(|memo| ("memo", memo)),
    );
    cases.extend(["XXX", "FIX"].map(|currency| ("currency", json!(currency))));
    cases
}

on_both!(bad_input_with_the_cooldown, |database| bad_input_costs_nothing(database, Locks::InProcess));
on_both!(bad_input_without_the_cooldown, |database| bad_input_costs_nothing(database, Locks::Off));

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_with_redis() {
    bad_input_costs_nothing(Database::Postgres, Locks::Redis).await;
}

/// Each case by a member of its own, whose good transfer must be admitted right afterwards.
async fn bad_input_costs_nothing(database: Database, locks: Locks) {
    let world = with_a_fixed_currency(database, locks).await;
    for (number, (field, value)) in refused_by_their_type().into_iter().enumerate() {
        let input = input_with(field, value.clone());
        costs_nothing(&world, &format!("type-{number}"), &input, |answer| refused_as_a_request(answer, field)).await;
    }
    for (number, (field, value)) in refused_by_the_operation().into_iter().enumerate() {
        let input = input_with(field, value.clone());
        costs_nothing(&world, &format!("value-{number}"), &input, |answer| refused_as_an_answer(answer, field)).await;
    }
    for field in ["amount", "currency", "idempotencyKey", "to"] {
        let mut input = good_input();
        input.remove(field);
        costs_nothing(&world, &format!("without-{field}"), &input, |answer| refused_as_a_request(answer, field)).await;
    }
    let input = input_with("amont", json!("5"));
    costs_nothing(&world, "unknown", &input, |answer| refused_as_a_request(answer, "amont")).await;
    world.end().await;
}

/// Asks once with variables and once with literals, looks at the refusals and the tables, and then asks rightly.
async fn costs_nothing(world: &World, member: &str, input: &Map<String, Value>, check: impl Fn(&Answer)) {
    world.fund(member).await;
    let before = written(world).await;
    check(&world.ask(member, TRANSFER, json!({ "input": input })).await);
    check(&world.ask(member, &with_literals(input), json!({})).await);
    assert_eq!(written(world).await, before, "something was written for {input:?}");
    admitted(world, member, &format!("{input:?}")).await;
}

/// A good transfer is admitted at once.
async fn admitted(world: &World, member: &str, after: &str) {
    let good = world.ask(member, TRANSFER, json!({ "input": good_input() })).await;
    assert_eq!(good.data("/transfer/replayed"), false, "after {after}: {}", good.body);
    assert_eq!(good.data("/transfer/entry/amount/amount"), "-5", "after {after}: {}", good.body);
}

fn refused_as_a_request(answer: &Answer, field: &str) {
    assert_eq!((answer.status, answer.code()), (200, Some("BAD_USER_INPUT")), "{field}: {}", answer.body);
    assert!(answer.codes().iter().all(|code| *code == "BAD_USER_INPUT"), "{}", answer.body);
    assert!(answer.body.get("data").is_none(), "nothing was executed: {}", answer.body);
    let message = answer.body["errors"][0]["message"].as_str().unwrap();
    assert!(message.contains(field), "does not name {field}: {message}");
    assert!(answer.body["errors"][0]["extensions"]["requestId"].is_string());
}

fn refused_as_an_answer(answer: &Answer, field: &str) {
    assert_eq!(answer.codes(), Vec::<&str>::new(), "{}", answer.body);
    assert_eq!(answer.user_error("transfer"), Some("INVALID_INPUT"), "{}", answer.body);
    assert_eq!(answer.data("/transfer/userErrors/0/field"), &json!([field]));
    assert!(answer.data("/transfer/entry").is_null());
    assert_eq!(answer.data("/transfer/replayed"), false);
}

on_both!(a_memo_that_is_switched_off_is_invalid, async |database| {
    let world = World::with(database, Locks::InProcess, |settings| settings.transfer.memo = false).await;
    world.introduce("bob").await;
    let input = input_with("memo", json!("a note"));
    costs_nothing(&world, "alice", &input, |answer| refused_as_an_answer(answer, "memo")).await;
    world.end().await;
});

// Variables are the other place where a value can be missing or of a wrong kind.
on_both!(bad_variables_are_refused_before_any_work, async |database| {
    let world = with_a_fixed_currency(database, Locks::InProcess).await;
    world.fund("alice").await;
    let before = written(&world).await;
    for variables in
        [json!({}), json!({ "input": null }), json!({ "input": "text" }), json!({ "input": 5 }), json!({ "input": [] })]
    {
        refused_as_a_request(&world.ask("alice", TRANSFER, variables).await, "input");
    }
    for (declared, given, field) in [
        // A required variable is not there.
        ("$amount: BigInt!", json!({}), "amount"),
        ("$amount: BigInt!", json!({ "amount": null }), "amount"),
        ("$amount: BigInt!", json!({ "amount": "10x" }), "amount"),
        // A variable that may be left out hides no bad value beside it.
        ("$amount: BigInt!, $memo: String", json!({ "amount": "10x" }), "amount"),
        ("$amount: BigInt! = \"10x\"", json!({}), "amount"),
        ("$amount: BigInt! = 1.5", json!({}), "amount"),
    ] {
        let memo = if declared.contains("$memo") { "memo: $memo" } else { "" };
        let document = format!(
            "mutation({declared}) {{ transfer(input: {{ to: \"bob\", amount: $amount, currency: \"PTS\", \
             idempotencyKey: \"one\" {memo} }}) {{ replayed }} }}"
        );
        refused_as_a_request(&world.ask("alice", &document, given).await, field);
    }
    assert_eq!(written(&world).await, before);
    admitted(&world, "alice", "bad variables").await;
    world.end().await;
});

// What is left out, or has a good default, is as good as what is sent.
on_both!(variables_may_be_left_out_where_they_may, async |database| {
    let world = World::new(database, Locks::Off).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    let document = "mutation($amount: BigInt! = \"7\", $memo: String) { transfer(input: { to: \"bob\", amount: $amount, \
        currency: \"PTS\", idempotencyKey: \"one\", memo: $memo }) { entry { memo amount { amount } } userErrors { code } } }";
    let answer = world.ask("alice", document, json!({})).await;
    assert_eq!(
        answer.data("/transfer/entry"),
        &json!({ "memo": null, "amount": { "amount": "-7" } }),
        "{}",
        answer.body
    );
    world.end().await;
});

// The argument as a whole: left out, misspelt, or no object at all.
on_both!(a_bad_argument_is_refused, async |database| {
    let world = with_a_fixed_currency(database, Locks::InProcess).await;
    world.fund("alice").await;
    let before = written(&world).await;
    for (document, name) in [
        ("mutation { transfer { replayed } }", "input"),
        ("mutation { transfer(inputs: 5) { replayed } }", "inputs"),
        ("mutation { transfer(input: $input) { replayed } }", "$input"),
    ] {
        let answer = world.ask("alice", document, json!({})).await;
        assert!(answer.codes().iter().all(|code| *code == "GRAPHQL_VALIDATION_FAILED"), "{}", answer.body);
        let errors = answer.body["errors"].as_array().unwrap();
        let named = |error: &Value| error["message"].as_str().unwrap().contains(&format!("\"{name}\""));
        assert!(errors.iter().any(named), "does not name {name}: {}", answer.body);
        assert!(answer.body.get("data").is_none());
    }
    let answer = world.ask("alice", "mutation { transfer(input: \"text\") { replayed } }", json!({})).await;
    assert_eq!(answer.codes(), ["BAD_USER_INPUT"], "{}", answer.body);
    assert!(answer.body["errors"][0]["message"].as_str().unwrap().contains("TransferInput"), "{}", answer.body);
    assert_eq!(written(&world).await, before);
    admitted(&world, "alice", "a bad argument").await;
    world.end().await;
});

// Reads have arguments as well.
on_both!(a_read_names_what_it_refuses, async |database| {
    let world = World::new(database, Locks::InProcess).await;
    let answer = world.ask("alice", "{ viewer { wallet(currency: \"pts\") { id } } }", json!({})).await;
    refused_as_a_request(&answer, "currency");
    let answer = world.ask("alice", "{ viewer { memberId wallet(currency: \"XXX\") { id } } }", json!({})).await;
    assert_eq!(answer.codes(), ["BAD_USER_INPUT"]);
    assert_eq!(answer.body["errors"][0]["path"], json!(["viewer", "wallet"]));
    assert_eq!(answer.data("/viewer"), &json!({ "memberId": "alice", "wallet": null }), "the rest is unharmed");
    let answer =
        world.ask("alice", "{ viewer { wallet { entries(first: 3000000000) { nodes { id } } } } }", json!({})).await;
    assert_eq!(answer.codes(), ["BAD_USER_INPUT"], "{}", answer.body);
    world.end().await;
});

// Nobody of that name has signed in, or the recipient is oneself: refusals, stored as answers, and nothing moves.
on_both!(a_recipient_that_cannot_be_paid_is_a_refusal, async |database| {
    for locks in [Locks::Off, Locks::InProcess] {
        let world = World::new(database, locks).await;
        for (sender, to, code) in [("alice", "nobody", "NOT_FOUND"), ("bob", "bob", "SELF_TRANSFER")] {
            world.fund(sender).await;
            let moved = world.count("SELECT COUNT(*) FROM entries").await;
            let answer = world.ask(sender, TRANSFER, transfer(to, 5, "one")["variables"].clone()).await;
            assert_eq!((answer.codes(), answer.user_error("transfer")), (vec![], Some(code)), "{}", answer.body);
            assert_eq!(answer.data("/transfer/userErrors/0/field"), &json!(["to"]));
            assert_eq!(answer.data("/transfer/wallet/balance/amount"), "100");
            assert_eq!(world.count("SELECT COUNT(*) FROM entries").await, moved);
        }
        assert_eq!(world.count("SELECT COUNT(*) FROM members").await, 2, "asking for nobody makes nobody");
        world.end().await;
    }
});

/// Points, and a currency that nobody can send.
async fn with_a_fixed_currency(database: Database, locks: Locks) -> World {
    let world = World::with(database, locks, |settings| {
        let mut fixed = settings.currencies[0].clone();
        fixed.code = largesse::amount::CurrencyCode::parse("FIX").unwrap();
        fixed.transferable = false;
        settings.currencies.push(fixed);
    })
    .await;
    world.introduce("bob").await;
    world
}

/// A number that every write changes: rows are only ever added, and a wallet's version grows with each movement.
async fn written(world: &World) -> i64 {
    let rows = "(SELECT COUNT(*) FROM members) + (SELECT COUNT(*) FROM wallets) + (SELECT COUNT(*) FROM transactions) \
        + (SELECT COUNT(*) FROM entries) + (SELECT COUNT(*) FROM claims) + (SELECT COUNT(*) FROM idempotency_keys)";
    let versions = "(SELECT COALESCE(SUM(version), 0) FROM wallets)";
    world.count(&format!("SELECT CAST({rows} + {versions} AS bigint)")).await
}

fn good_input() -> Map<String, Value> {
    let input = json!({ "to": "bob", "amount": "5", "currency": "PTS", "idempotencyKey": "one" });
    input.as_object().unwrap().clone()
}

fn input_with(field: &str, value: Value) -> Map<String, Value> {
    let mut input = good_input();
    input.insert(field.to_owned(), value);
    input
}

/// The same request with the input written into the document.
fn with_literals(input: &Map<String, Value>) -> String {
    let input = literal(&Value::Object(input.clone()));
    TRANSFER.replace("mutation Transfer($input: TransferInput!)", "mutation Transfer").replace("$input", &input)
}

/// A JSON value as GraphQL writes it: names of fields stand without quotes.
fn literal(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<_> = fields.iter().map(|(name, value)| format!("{name}: {}", literal(value))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(literal).collect::<Vec<_>>().join(", ")),
        scalar => scalar.to_string(),
    }
}
