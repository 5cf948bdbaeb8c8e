//! A payment provider: it signs what it tells, by the Standard Webhooks scheme.

use std::sync::Arc;

use chrono::Utc;
use largesse::config::{ProviderSettings, Settings};
use largesse::signature::WebhookSecret;
use serde_json::{Value, json};
use tokio::sync::Barrier;

use super::{Answer, World};

/// The name of the provider that worlds know.
pub(crate) const ACME: &str = "acme";

/// Its secret.
pub(crate) use super::outbox::WHSEC;

/// Lets a provider tell of payments.
pub(crate) fn fund_by(settings: &mut Settings, name: &str, secrets: &[&str]) {
    let name = name.to_owned().try_into().expect("a provider's name");
    let secrets = secrets.iter().map(|text| WebhookSecret::parse(text).expect("a secret")).collect();
    settings.funding.providers.push(ProviderSettings { name, secrets });
}

/// The body of a notice: points for a member.
pub(crate) fn notice(reference: &str, state: &str, member: &str, amount: i64) -> Value {
    json!({ "reference": reference, "type": state, "member": member, "amount": amount.to_string(), "currency": "PTS" })
}

/// What a test may change of a message on its way.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) provider: String,
    pub(crate) id: String,
    pub(crate) timestamp: String,
    pub(crate) signatures: String,
    pub(crate) body: Vec<u8>,
}

impl Message {
    /// One that is signed as it should be, now.
    pub(crate) fn new(id: &str, body: impl Into<Vec<u8>>) -> Self {
        Self::signed(WHSEC, id, Utc::now().timestamp(), body)
    }

    /// One that is signed with this secret, at this time.
    pub(crate) fn signed(secret: &str, id: &str, timestamp: i64, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let text = String::from_utf8(body.clone()).expect("the tests sign texts");
        let signatures = WebhookSecret::parse(secret).expect("a secret").sign(id, timestamp, &text);
        let (provider, id, timestamp) = (ACME.to_owned(), id.to_owned(), timestamp.to_string());
        Self { provider, id, timestamp, signatures, body }
    }

    /// The bytes of the whole request, for a client that hangs up.
    pub(crate) fn by_hand(&self) -> Vec<u8> {
        let head = format!(
            "POST /webhooks/funding/{} HTTP/1.1\r\nhost: localhost\r\nwebhook-id: {}\r\nwebhook-timestamp: {}\r\n\
             webhook-signature: {}\r\ncontent-length: {}\r\n\r\n",
            self.provider,
            self.id,
            self.timestamp,
            self.signatures,
            self.body.len()
        );
        [head.into_bytes(), self.body.clone()].concat()
    }
}

impl World {
    /// Sends a message as it is.
    pub(crate) async fn deliver(&self, message: Message) -> Answer {
        let url = format!("{}/webhooks/funding/{}", self.address, message.provider);
        let request = self.client.post(url).body(message.body).header("webhook-id", message.id);
        let request = request.header("webhook-timestamp", message.timestamp);
        let response =
            request.header("webhook-signature", message.signatures).send().await.expect("the server answers");
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.expect("a whole answer");
        Answer { status, headers, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) }
    }

    /// Tells of a payment, and says what became of it: the status of a 200, or the status code and the error's code.
    pub(crate) async fn tell(&self, id: &str, body: &Value) -> String {
        became(&self.deliver(Message::new(id, body.to_string())).await)
    }
}

/// What became of a message.
pub(crate) fn became(answer: &Answer) -> String {
    match answer.body["status"].as_str() {
        Some(status) if answer.status == 200 => status.to_owned(),
        _ => format!("{} {}", answer.status, answer.body["error"]["code"].as_str().unwrap_or("without a code")),
    }
}

/// Tells all of this at once, each on a connection of its own, from behind one barrier; sorted by what became of them.
pub(crate) async fn tell_at_once(told: Vec<(&World, String, Value)>) -> Vec<String> {
    let barrier = Arc::new(Barrier::new(told.len()));
    let telling = told.into_iter().map(async |(world, id, body)| {
        barrier.wait().await;
        world.tell(&id, &body).await
    });
    let mut all = futures_util::future::join_all(telling).await;
    all.sort();
    all
}
