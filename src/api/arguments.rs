//! What a guarded field is asked for, before anything of it is parsed: enough to say what it is about, and whether it is the
//! same as before.

use std::convert::Infallible;

use async_graphql::indexmap::IndexMap;
use async_graphql::parser::types::Field;
use async_graphql::{Name, Value, Variables};
use sha2::{Digest, Sha256};

use crate::cooldown::Fingerprint;

/// Where the idempotency key stands in the arguments of an action that has one.
const KEY: &str = "input.idempotencyKey";

/// The arguments of a field, with the values of its variables.
pub(super) struct Arguments(Value);

impl Arguments {
    /// Reads them. Validation is over, and each variable has a value: its own, its default, or null.
    pub(super) fn of(field: &Field, variables: Option<&Variables>) -> Self {
        let variable = |name: Name| {
            let value = variables.and_then(|variables| variables.get(&name)).cloned();
            Ok::<_, Infallible>(value.unwrap_or_default())
        };
        let mut arguments = IndexMap::new();
        for (name, value) in &field.arguments {
            let Ok(value) = value.node.clone().into_const_with(variable);
            arguments.insert(name.node.clone(), value);
        }
        Self(Value::Object(arguments))
    }

    /// The text of the value at a path such as `input.to`; None where it is left out.
    pub(super) fn text_at(&self, path: &str) -> Option<String> {
        let value = path.split('.').try_fold(&self.0, |value, name| match value {
            Value::Object(fields) => fields.get(name),
            _ => None,
        });
        value.and_then(text)
    }

    /// Names the wish, where it has an idempotency key: two that have the same fingerprint have the same key and the same
    /// arguments. What is equal only once it is parsed may have two, and is then refused like any other.
    pub(super) fn fingerprint(&self, action: &str) -> Option<Fingerprint> {
        self.text_at(KEY)?;
        let mut hash = Sha256::new();
        add_word(&mut hash, b'a', action);
        add(&mut hash, &self.0);
        Some(Fingerprint::of(hash.finalize().into()))
    }
}

/// The one text of a scalar: a `BigInt` may come as a number or as a text.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Enum(name) => Some(name.to_string()),
        Value::Boolean(boolean) => Some(boolean.to_string()),
        Value::Null | Value::Binary(_) | Value::List(_) | Value::Object(_) => None,
    }
}

/// Adds a value so that no two values add the same bytes. A field that is null is a field that is left out, and the order of
/// fields says nothing.
fn add(hash: &mut Sha256, value: &Value) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().filter(|(_, value)| **value != Value::Null).collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            add_count(hash, b'o', fields.len());
            for (name, value) in fields {
                add_word(hash, b'f', name);
                add(hash, value);
            }
        }
        Value::List(items) => {
            add_count(hash, b'l', items.len());
            for item in items {
                add(hash, item);
            }
        }
        Value::Binary(bytes) => {
            add_count(hash, b'x', bytes.len());
            hash.update(bytes);
        }
        Value::Null => hash.update(b"n"),
        scalar => add_word(hash, b's', &text(scalar).unwrap_or_default()),
    }
}

fn add_word(hash: &mut Sha256, kind: u8, word: &str) {
    add_count(hash, kind, word.len());
    hash.update(word);
}

fn add_count(hash: &mut Sha256, kind: u8, count: usize) {
    hash.update([kind]);
    hash.update((count as u64).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use async_graphql::parser::parse_query;
    use async_graphql::parser::types::Selection;
    use serde_json::json;

    use super::*;

    fn arguments(field: &str, variables: serde_json::Value) -> Arguments {
        let document = parse_query(format!("mutation {{ {field} }}")).unwrap();
        let (_, operation) = document.operations.iter().next().unwrap();
        let Selection::Field(field) = &operation.node.selection_set.node.items[0].node else { panic!("a field") };
        Arguments::of(&field.node, Some(&Variables::from_json(variables)))
    }

    fn fingerprint(field: &str, variables: serde_json::Value) -> Option<Fingerprint> {
        arguments(field, variables).fingerprint("transfer")
    }

    #[test]
    fn the_same_wish_has_one_fingerprint_however_it_is_written() {
        let inline = |input: &str| fingerprint(&format!("transfer(input: {{ {input} }})"), json!({}));
        let one = inline(r#"to: "bob", amount: "10", idempotencyKey: "k""#);
        assert!(one.is_some());
        assert_eq!(one, inline(r#"idempotencyKey: "k", amount: 10, memo: null, to: "bob""#));
        let input = json!({ "input": { "amount": "10", "to": "bob", "memo": null, "idempotencyKey": "k" } });
        assert_eq!(one, fingerprint("transfer(input: $input)", input));
        let parts = json!({ "to": "bob", "key": "k", "memo": null });
        let field = r#"transfer(input: { to: $to, memo: $memo, amount: "10", idempotencyKey: $key })"#;
        assert_eq!(one, fingerprint(field, parts));
        for other in [
            r#"to: "bob", amount: "11", idempotencyKey: "k""#,
            r#"to: "bob", amount: "10", idempotencyKey: "l""#,
            r#"to: "bob", amount: "10", idempotencyKey: "k", memo: """#,
            r#"to: "bo", amount: "b10", idempotencyKey: "k""#,
        ] {
            assert_ne!(one, inline(other), "{other}");
        }
        assert_ne!(one, arguments(field, json!({ "to": "bob", "key": "k" })).fingerprint("other"));
    }

    #[test]
    fn what_has_no_key_has_no_fingerprint() {
        assert_eq!(fingerprint("claim", json!({})), None);
        assert_eq!(fingerprint(r#"transfer(input: { to: "bob" })"#, json!({})), None);
        assert_eq!(fingerprint("transfer(input: { idempotencyKey: $key })", json!({ "key": null })), None);
    }

    #[test]
    fn a_path_leads_to_a_scalar_or_nowhere() {
        let arguments = arguments("transfer(input: { to: $to, amount: 7 })", json!({ "to": "bob" }));
        let text = |path| arguments.text_at(path);
        assert_eq!((text("input.to"), text("input.amount")), (Some("bob".to_owned()), Some("7".to_owned())));
        assert_eq!((text("input"), text("input.memo"), text("to"), text("input.to.x")), (None, None, None, None));
    }
}
