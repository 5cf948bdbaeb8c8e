//! Promise: `schema.graphql` is the schema: what clients generate their types from is what the server answers with,
//! whatever its settings are, and every part of it says what it is.
//!
//! Guards the types of `api/` and the documents of `operations/`.

use std::collections::{BTreeMap, BTreeSet};

use async_graphql::parser::types::{ServiceDocument, TypeKind, TypeSystemDefinition};
use async_graphql::parser::{parse_query, parse_schema};
use largesse::api::sdl;
use largesse::config::{ActionSettings, Currency};
use serde_json::{Value, json};

use crate::on_both;
use crate::world::socket::Socket;
use crate::world::{Database, Locks, World};

const FILE: &str = include_str!("../schema.graphql");
const OPERATIONS: &str = include_str!("../operations/largesse.graphql");

/// Mutations that layer 1 stands in front of, with their default windows in milliseconds.
const GUARDED: [(&str, u64); 3] = [("claimDailyBonus", 5000), ("claimSignupBonus", 5000), ("transfer", 5000)];

/// What clients rely on: where null may stand and where it may not, and what pages look like. A change here breaks them.
const RELIED_UPON: &[(&str, &str)] = &[
    // A mutation that fails never hides the result of one that was committed.
    ("Mutation.claimDailyBonus", "ClaimDailyBonusPayload"),
    ("Mutation.claimSignupBonus", "ClaimSignupBonusPayload"),
    ("Mutation.grantBonus(input: GrantBonusInput!)", "GrantBonusPayload"),
    ("Mutation.reverseTransaction(input: ReverseTransactionInput!)", "ReverseTransactionPayload"),
    ("Mutation.transfer(input: TransferInput!)", "TransferPayload"),
    ("Subscription.walletChanged(currency: CurrencyCode)", "WalletChangedEvent"),
    ("WalletChangedEvent.entry", "WalletEntry"),
    ("WalletChangedEvent.wallet", "Wallet!"),
    ("Wallet.debt", "Money!"),
    ("ClaimDailyBonusPayload.claim", "BonusClaim"),
    ("ClaimDailyBonusPayload.query", "Query!"),
    ("ClaimDailyBonusPayload.userErrors", "[UserError!]!"),
    ("ClaimDailyBonusPayload.wallet", "Wallet"),
    ("ClaimSignupBonusPayload.claim", "BonusClaim"),
    ("ClaimSignupBonusPayload.query", "Query!"),
    ("ClaimSignupBonusPayload.userErrors", "[UserError!]!"),
    ("ClaimSignupBonusPayload.wallet", "Wallet"),
    ("TransferPayload.entry", "WalletEntry"),
    ("TransferPayload.query", "Query!"),
    ("TransferPayload.replayed", "Boolean!"),
    ("TransferPayload.userErrors", "[UserError!]!"),
    ("TransferPayload.wallet", "Wallet"),
    ("TransferInput.amount", "BigInt!"),
    ("TransferInput.currency", "CurrencyCode!"),
    ("TransferInput.idempotencyKey", "IdempotencyKey!"),
    ("TransferInput.memo", "String"),
    ("TransferInput.to", "String!"),
    ("Query.node(id: ID!)", "Node"),
    ("Query.nodes(ids: [ID!]!)", "[Node]!"),
    ("Query.viewer", "Viewer"),
    ("Viewer.bonusClaims(after: String, before: String, first: Int, last: Int)", "BonusClaimConnection"),
    ("Viewer.dailyBonus", "DailyBonusStatus"),
    ("Viewer.signupBonus", "SignupBonusStatus"),
    ("Viewer.memberId", "String!"),
    ("Viewer.wallet(currency: CurrencyCode)", "Wallet"),
    ("Viewer.wallets", "[Wallet!]"),
    ("Wallet.available", "Money!"),
    ("Wallet.balance", "Money!"),
    ("Wallet.entries(after: String, before: String, first: Int, last: Int)", "WalletEntryConnection"),
    ("Wallet.id", "ID!"),
    ("Wallet.openedAt", "DateTime"),
    ("Wallet.version", "BigInt!"),
    ("Money.amount", "BigInt!"),
    ("Money.currency", "CurrencyCode!"),
    ("Money.decimals", "Int!"),
    ("WalletEntry.amount", "Money!"),
    ("WalletEntry.balanceAfter", "Money!"),
    ("WalletEntry.counterparty", "MemberProfile"),
    ("WalletEntry.createdAt", "DateTime!"),
    ("WalletEntry.kind", "TransactionKind!"),
    ("WalletEntry.memo", "String"),
    ("WalletEntry.transactionId", "ID!"),
    ("WalletEntryConnection.edges", "[WalletEntryEdge!]!"),
    ("WalletEntryConnection.nodes", "[WalletEntry!]!"),
    ("WalletEntryConnection.pageInfo", "PageInfo!"),
    ("WalletEntryEdge.cursor", "String!"),
    ("WalletEntryEdge.node", "WalletEntry!"),
    ("BonusClaimConnection.edges", "[BonusClaimEdge!]!"),
    ("BonusClaimConnection.nodes", "[BonusClaim!]!"),
    ("BonusClaimConnection.pageInfo", "PageInfo!"),
    ("BonusClaimEdge.cursor", "String!"),
    ("BonusClaimEdge.node", "BonusClaim!"),
    ("PageInfo.endCursor", "String"),
    ("PageInfo.hasNextPage", "Boolean!"),
    ("PageInfo.hasPreviousPage", "Boolean!"),
    ("PageInfo.startCursor", "String"),
    ("BonusClaim.amount", "Money!"),
    ("BonusClaim.claimedAt", "DateTime!"),
    ("BonusClaim.day", "LocalDate"),
    ("BonusClaim.entry", "WalletEntry"),
    ("BonusClaim.streak", "Int"),
    ("DailyBonusStatus.amount", "Money!"),
    ("DailyBonusStatus.claim", "BonusClaim"),
    ("DailyBonusStatus.claimable", "Boolean!"),
    ("DailyBonusStatus.day", "LocalDate!"),
    ("DailyBonusStatus.nextClaimAt", "DateTime"),
    ("DailyBonusStatus.nextStreak", "Int!"),
    ("DailyBonusStatus.schedule", "[DailyBonusStep!]!"),
    ("DailyBonusStatus.streak", "Int!"),
    ("DailyBonusStatus.streakEndsAt", "DateTime"),
    ("DailyBonusStatus.timeZone", "String!"),
    ("DailyBonusStep.amount", "Money!"),
    ("DailyBonusStep.streak", "Int!"),
    ("SignupBonusStatus.amount", "Money!"),
    ("SignupBonusStatus.claim", "BonusClaim"),
    ("SignupBonusStatus.claimable", "Boolean!"),
    ("MemberProfile.memberId", "String!"),
    ("UserError.code", "ErrorCode!"),
    ("UserError.field", "[String!]"),
    ("UserError.message", "String!"),
    ("AlreadyClaimedError.claim", "BonusClaim!"),
    ("AlreadyClaimedError.nextClaimAt", "DateTime"),
    ("InsufficientFundsError.available", "Money!"),
];

#[test]
fn the_file_is_what_the_code_prints() {
    let printed = sdl();
    let differs = FILE.lines().zip(printed.lines()).position(|(file, code)| file != code);
    let line = differs.unwrap_or(FILE.lines().count().min(printed.lines().count())) + 1;
    assert!(FILE == printed, "schema.graphql is not what the code prints, from line {line} on: run `make schema`");
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_do_not_change_the_schema() {
    let world = World::with(Database::Sqlite, Locks::InProcess, |settings| {
        let own = ActionSettings { window_ms: Some(60_000), ..ActionSettings::default() };
        settings.cooldown.actions.insert("transfer".to_owned(), own);
        settings.currencies = vec![Currency { decimals: 2, ..settings.currencies[0].clone() }];
        settings.daily_bonus.amounts.clear();
        settings.signup_bonus.amount = None;
        (settings.transfer.enabled, settings.transfer.memo) = (false, false);
    })
    .await;
    let without = world.another(|settings| settings.cooldown.enabled = false).await;
    for server in [&world, &without] {
        let (status, served) = server.get("/schema.graphql").await;
        assert_eq!(status, 200);
        assert!(served == FILE, "the server prints another schema than the file");
    }
    without.stop().await;
    world.end().await;
}

#[test]
fn guarded_mutations_declare_their_windows() {
    let mut windows = BTreeMap::new();
    for (name, kind) in types(&parse_schema(FILE).unwrap()) {
        let TypeKind::Object(object) = kind else { continue };
        for field in object.fields {
            let cooldown = field.node.directives.iter().find(|directive| directive.node.name.node == "cooldown");
            if let Some(cooldown) = cooldown {
                assert_eq!(name, "Mutation", "nothing else is guarded");
                let window = cooldown.node.get_argument("windowMs").unwrap().node.clone().into_json().unwrap();
                windows.insert(field.node.name.node.to_string(), window.as_u64().unwrap());
            }
        }
    }
    let guarded = GUARDED.map(|(mutation, window)| (mutation.to_owned(), window));
    assert_eq!(windows, BTreeMap::from(guarded));
    let directive = "directive @cooldown(windowMs: Int!, per: String, mostPerMinute: Int) on FIELD_DEFINITION";
    assert!(FILE.contains(directive));
    assert!(FILE.contains("): TransferPayload @cooldown(windowMs: 5000, per: \"input.to\", mostPerMinute: 20)\n"));
}

#[test]
fn names_and_nullability_are_what_clients_rely_upon() {
    let declared = declared_fields();
    for (field, of) in RELIED_UPON {
        assert_eq!(declared.get(*field).map(String::as_str), Some(*of), "{field}");
    }
}

/// `Type.field(argument: Type)` and the field's type.
fn declared_fields() -> BTreeMap<String, String> {
    let mut declared = BTreeMap::new();
    for (name, kind) in types(&parse_schema(FILE).unwrap()) {
        let fields = match kind {
            TypeKind::Object(object) => object.fields,
            TypeKind::Interface(interface) => interface.fields,
            TypeKind::InputObject(input) => {
                let fields = input.fields.into_iter().map(|field| field.node);
                declared.extend(fields.map(|field| (format!("{name}.{}", field.name), field.ty.to_string())));
                continue;
            }
            TypeKind::Scalar | TypeKind::Union(_) | TypeKind::Enum(_) => continue,
        };
        for field in fields.into_iter().map(|field| field.node) {
            let arguments: Vec<_> =
                field.arguments.iter().map(|one| format!("{}: {}", one.node.name, one.node.ty)).collect();
            let arguments = if arguments.is_empty() { String::new() } else { format!("({})", arguments.join(", ")) };
            declared.insert(format!("{name}.{}{arguments}", field.name), field.ty.to_string());
        }
    }
    declared
}

fn types(document: &ServiceDocument) -> Vec<(String, TypeKind)> {
    let types = document.definitions.iter().filter_map(|definition| match definition {
        TypeSystemDefinition::Type(of) => Some((of.node.name.node.to_string(), of.node.kind.clone())),
        TypeSystemDefinition::Schema(_) | TypeSystemDefinition::Directive(_) => None,
    });
    types.collect()
}

const INTROSPECTION: &str = "{ __schema { description directives { name description args { name description } } types { \
    name kind description inputFields { name description } enumValues { name description } \
    fields { name description args { name description } } } } }";

/// What these are, the GraphQL specification says.
const OF_THE_SPECIFICATION: [&str; 5] = ["Boolean", "Float", "ID", "Int", "String"];

/// Asks a running server, for that is what GraphiQL and code generators show.
#[tokio::test(flavor = "multi_thread")]
async fn every_type_field_argument_and_value_has_a_description() {
    let world = World::new(Database::Sqlite, Locks::InProcess).await;
    let answer = world.post(None, json!({ "query": INTROSPECTION })).await;
    let mut bare = BTreeSet::new();
    for of in answer.data("/__schema/types").as_array().unwrap() {
        let name = of["name"].as_str().unwrap();
        if name.starts_with("__") || OF_THE_SPECIFICATION.contains(&name) {
            continue;
        }
        missing(name, of, &mut bare);
        for parts in ["fields", "inputFields", "enumValues"] {
            for part in of[parts].as_array().unwrap_or(&Vec::new()) {
                let path = format!("{name}.{}", part["name"].as_str().unwrap());
                missing(&path, part, &mut bare);
                arguments_missing(&path, part, &mut bare);
            }
        }
    }
    let directives = answer.data("/__schema/directives").as_array().unwrap();
    let cooldown = directives.iter().find(|directive| directive["name"] == "cooldown").expect("@cooldown is shown");
    missing("@cooldown", cooldown, &mut bare);
    arguments_missing("@cooldown", cooldown, &mut bare);
    assert_eq!(bare, BTreeSet::new(), "these have no description");
    world.end().await;
}

fn arguments_missing(path: &str, of: &Value, bare: &mut BTreeSet<String>) {
    for argument in of["args"].as_array().unwrap_or(&Vec::new()) {
        missing(&format!("{path}({})", argument["name"].as_str().unwrap()), argument, bare);
    }
}

fn missing(path: &str, of: &Value, bare: &mut BTreeSet<String>) {
    if of["description"].as_str().is_none_or(|text| text.trim().is_empty()) {
        bare.insert(path.to_owned());
    }
}

/// The file is the contract too: its types and scalars say what they are, not the running server alone.
#[test]
fn every_type_of_the_file_has_a_description() {
    for definition in parse_schema(FILE).unwrap().definitions {
        match definition {
            TypeSystemDefinition::Type(of) => assert!(of.node.description.is_some(), "{}", of.node.name),
            TypeSystemDefinition::Directive(of) => assert!(of.node.description.is_some(), "@{}", of.node.name),
            TypeSystemDefinition::Schema(_) => {}
        }
    }
}

on_both!(every_document_runs_for_a_fresh_member, async |database| {
    for locks in [Locks::Off, Locks::InProcess] {
        let world = World::new(database, locks).await;
        let document = parse_query(OPERATIONS).expect("the documents can be read");
        let mut names: Vec<_> =
            document.operations.iter().filter_map(|(name, _)| name).map(ToString::to_string).collect();
        names.sort();
        assert!(names.len() >= 5, "{names:?}");
        for name in &names {
            let variables = variables_of(name);
            let body = json!({ "query": OPERATIONS, "operationName": name, "variables": variables });
            // Nobody before them has touched what a member of this name sees. Over a WebSocket everything runs.
            let mut socket = Socket::of(&world, &format!("fresh-{name}")).await;
            socket.send(json!({ "type": "subscribe", "id": "1", "payload": body })).await;
            let answer = socket.event("1").await;
            assert_eq!(answer["errors"], Value::Null, "{name}: {answer}");
            let data = answer["data"].as_object().unwrap();
            assert!(!data.is_empty() && data.values().all(|value| !value.is_null()), "{name}: {answer}");
        }
        world.end().await;
    }
});

/// What a document needs; one that is new says here with what it is asked.
fn variables_of(operation: &str) -> Value {
    match operation {
        "History" => json!({ "first": 20 }),
        "Transfer" => json!({ "input": {
            "to": "bob", "amount": "5", "currency": "PTS", "idempotencyKey": "one", "memo": "for lunch" } }),
        _ => json!({}),
    }
}
