//! What the outside is told of a posting: one event for each member's wallet that moved, for each endpoint that wants it,
//! written by the transaction that makes it true.

use chrono::{DateTime, SecondsFormat, Utc};
use sea_orm::{
    ActiveValue::{NotSet, Set},
    EntityTrait, QueryTrait,
    sea_query::InsertStatement,
};
use serde::Serialize;
use uuid::Uuid;

use super::statement::EntryRow;
use crate::config::{EndpointSettings, WebhookSettings};
use crate::entity::{Kind, outbox};
use crate::event::EventType;
use crate::global_id::GlobalId;
use crate::member::Member;
use crate::traces::Origin;

/// Which events an endpoint wants.
#[derive(Debug, Clone)]
pub(super) struct Subscription {
    endpoint: String,
    /// All, if empty.
    events: Vec<EventType>,
}

impl Subscription {
    pub(super) fn all(webhooks: &WebhookSettings) -> Vec<Self> {
        let of = |endpoint: &EndpointSettings| Self {
            endpoint: endpoint.name.as_str().to_owned(),
            events: endpoint.events.clone(),
        };
        webhooks.endpoints.iter().map(of).collect()
    }

    fn wants(&self, event: EventType) -> bool {
        self.events.is_empty() || self.events.contains(&event)
    }
}

/// The body of a webhook, in the form that Standard Webhooks recommend.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Payload<'a> {
    #[serde(rename = "type")]
    event: EventType,
    timestamp: String,
    data: Data<'a>,
}

/// The entry, as the API shows it. 64-bit numbers are texts, for the same reason as there.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Data<'a> {
    member: &'a str,
    wallet_id: String,
    version: String,
    currency: &'a str,
    amount: String,
    balance_after: String,
    entry_id: String,
    transaction_id: String,
    kind: &'static str,
    memo: Option<&'a str>,
    counterparty: Option<&'a str>,
}

/// The statement that stages the events of a posting; none where nobody wants one.
pub(super) fn stage<'a>(
    subscriptions: &[Subscription],
    moved: impl Iterator<Item = (&'a Member, EntryRow)>,
) -> Option<InsertStatement> {
    if subscriptions.is_empty() {
        return None;
    }
    let mut rows = Vec::new();
    let trace = Origin::here().map(|origin| origin.written());
    for (member, entry) in moved {
        let event = event_of(entry.kind);
        let mut payload = None;
        for subscription in subscriptions.iter().filter(|subscription| subscription.wants(event)) {
            let payload = payload.get_or_insert_with(|| body(event, member, &entry));
            rows.push(row(subscription, event, &entry, payload, trace.as_ref()));
        }
    }
    (!rows.is_empty()).then(|| outbox::Entity::insert_many(rows).into_query())
}

/// Every kind of transaction has its event: a new kind does not compile without one.
fn event_of(kind: Kind) -> EventType {
    match kind {
        Kind::DailyBonus | Kind::SignupBonus => EventType::BonusClaimed,
        Kind::Transfer => EventType::TransferCompleted,
        Kind::Funding => EventType::WalletFunded,
        Kind::BonusGrant => EventType::BonusGranted,
        Kind::Reversal => EventType::TransactionReversed,
        Kind::DebtPayment => EventType::DebtPaid,
    }
}

/// The name that the API's enum has for a kind.
fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::DailyBonus => "DAILY_BONUS",
        Kind::SignupBonus => "SIGNUP_BONUS",
        Kind::Transfer => "TRANSFER",
        Kind::Funding => "FUNDING",
        Kind::BonusGrant => "BONUS_GRANT",
        Kind::Reversal => "REVERSAL",
        Kind::DebtPayment => "DEBT_PAYMENT",
    }
}

fn body(event: EventType, member: &Member, entry: &EntryRow) -> String {
    let payload = Payload {
        event,
        timestamp: text_of(entry.created_at),
        data: Data {
            member: member.name(),
            wallet_id: GlobalId::Wallet(entry.wallet_id).encode(),
            version: entry.seq.to_string(),
            currency: &entry.currency,
            amount: entry.amount.to_string(),
            balance_after: entry.balance_after.to_string(),
            entry_id: GlobalId::Entry(entry.wallet_id, entry.seq).encode(),
            transaction_id: GlobalId::Transaction(entry.transaction_id).encode(),
            kind: name_of(entry.kind),
            memo: entry.memo.as_deref(),
            counterparty: entry.counterparty.as_ref().map(|counterparty| counterparty.name.as_str()),
        },
    };
    serde_json::to_string(&payload).expect("a payload of texts is written")
}

fn text_of(instant: DateTime<Utc>) -> String {
    instant.to_rfc3339_opts(SecondsFormat::Millis, true)
}

fn row(
    subscription: &Subscription,
    event: EventType,
    entry: &EntryRow,
    payload: &str,
    trace: Option<&String>,
) -> outbox::ActiveModel {
    outbox::ActiveModel {
        id: Set(Uuid::now_v7()),
        endpoint: Set(subscription.endpoint.clone()),
        wallet_id: Set(entry.wallet_id),
        seq: Set(entry.seq),
        event: Set(event.name().to_owned()),
        payload: Set(payload.to_owned()),
        created_at: Set(entry.created_at),
        attempts: Set(0),
        next_attempt_at: Set(Some(entry.created_at)),
        lease: NotSet,
        last_error: NotSet,
        delivered_at: NotSet,
        dead_at: NotSet,
        // Without traces the statement does not name the column.
        trace_context: trace.map_or(NotSet, |trace| Set(Some(trace.clone()))),
    }
}
