//! Promise: what a provider signed and Largesse cannot take exactly as it stands is refused with a reason, logged for the
//! operators, and costs nothing: no row is written, and the mended notice is taken.
//!
//! Guards the parsing in `api/webhook.rs` and `ledger/payment.rs`.

use serde_json::{Value, json};

use crate::on_both;
use crate::world::provider::{ACME, Message, WHSEC, fund_by, notice};
use crate::world::{Locks, World, log};

const TABLES: [&str; 6] = ["members", "wallets", "transactions", "payments", "payment_events", "payment_conflicts"];

fn good() -> Value {
    notice("p1", "succeeded", "alice", 500)
}

/// Values of a field that are texts and yet not acceptable: the answer names the field.
fn texts() -> Vec<(&'static str, String)> {
    let mut cases = Vec::new();
    let amounts = ["", "0", "-5", "+5", "05", " 5", "5 ", "1e2", "1.0", "1,000", "0x10", "5\0", "9223372036854775808"];
    cases.extend(amounts.map(|amount| ("amount", amount.to_owned())));
    cases.extend(["", "paid", "SUCCEEDED", "succeeded ", "refunded"].map(|state| ("type", state.to_owned())));
    let long = "x".repeat(256);
    cases.extend(["", "p\u{0}1", "p\n1", &long].map(|reference| ("reference", reference.to_owned())));
    cases.extend(["", "ali\u{0}ce", &long].map(|member| ("member", member.to_owned())));
    // GEM is well formed and not offered.
    cases.extend(["", "pts", "PTS ", "P", "GEM"].map(|currency| ("currency", currency.to_owned())));
    cases
}

/// Bodies that are not an object of five texts.
fn shapes() -> Vec<String> {
    let text = good().to_string();
    let mut cases: Vec<_> = ["", "{", "null", "[]", "\"text\"", "5"].map(str::to_owned).to_vec();
    cases.push(format!("[{text}]"));
    cases.push(format!("{text}{text}"));
    cases.push(json!(["p1", "succeeded", "alice", "500", "PTS"]).to_string());
    for field in ["reference", "type", "member", "amount", "currency"] {
        let mut without = good();
        without.as_object_mut().unwrap().remove(field);
        cases.push(without.to_string());
        for value in [json!(5), json!(null), json!(true), json!(["alice"]), json!({ "of": "alice" })] {
            let mut other = good();
            other[field] = value;
            cases.push(other.to_string());
        }
        // Which of the two would count?
        let twice = format!("{{\"{field}\":{},{}", good()[field], &text[1..]);
        cases.push(twice);
    }
    cases
}

on_both!(what_cannot_be_taken_as_it_stands, async |database| {
    let world = World::with(database, Locks::Off, |settings| fund_by(settings, ACME, &[WHSEC])).await;
    for (field, value) in texts() {
        let mut body = good();
        body[field] = json!(value);
        let answer = world.deliver(Message::new("e1", body.to_string())).await;
        let error = &answer.body["error"];
        assert_eq!((answer.status, &error["code"], &error["field"]), (422, &json!("INVALID_INPUT"), &json!(field)));
        let id = answer.headers["x-request-id"].to_str().unwrap();
        assert_eq!(error["requestId"], id);
        let told = log::of_request(id);
        assert_eq!((told.len(), told[0].level), (1, tracing::Level::WARN), "{told:?}");
        assert_eq!((told[0].field("provider"), told[0].field("event_id")), (ACME, "e1"), "{told:?}");
    }
    for body in shapes() {
        let answer = world.deliver(Message::new("e1", body.clone())).await;
        assert_eq!((answer.status, &answer.body["error"]["code"]), (400, &json!("BAD_REQUEST")), "{body}");
    }
    for id in ["", &"x".repeat(256)] {
        let answer = world.deliver(Message::new(id, good().to_string())).await;
        assert_eq!((answer.status, &answer.body["error"]["field"]), (422, &json!("webhook-id")));
    }
    nothing_was_written(&world).await;
    assert_eq!(world.tell("e1", &good()).await, "credited");
    world.end().await;
});

on_both!(a_body_that_is_too_large, async |database| {
    let world = World::with(database, Locks::Off, |settings| fund_by(settings, ACME, &[WHSEC])).await;
    let large = " ".repeat(2 << 20) + &good().to_string();
    let answer = world.deliver(Message::new("e1", large)).await;
    assert_eq!((answer.status, &answer.body["error"]["code"]), (413, &json!("BAD_REQUEST")));
    nothing_was_written(&world).await;
    world.end().await;
});

// Providers add fields, and their texts are not ours to judge.
on_both!(what_is_unusual_and_right, async |database| {
    let world = World::with(database, Locks::Off, |settings| fund_by(settings, ACME, &[WHSEC])).await;
    // As long as they may be, in the characters that take the most room.
    let member = "🎉".repeat(255);
    let mut body = notice(&"🎁".repeat(255), "succeeded", &member, i64::MAX);
    body["livemode"] = json!(true);
    body["metadata"] = json!({ "amount": 5, "member": null });
    assert_eq!(world.tell(&"e".repeat(255), &body).await, "credited");
    assert_eq!(world.balance(&member).await, i64::MAX);
    body["amount"] = json!("5");
    assert_eq!(world.tell(&"f".repeat(255), &body).await, "conflict");
    world.end().await;
});

async fn nothing_was_written(world: &World) {
    for table in TABLES {
        assert_eq!(world.count(&format!("SELECT COUNT(*) FROM {table}")).await, 0, "{table}");
    }
}
