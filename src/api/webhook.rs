//! `POST /webhooks/funding/{provider}`: what payment providers tell, signed by the Standard Webhooks scheme.
//!
//! Nothing of a message is read before its signature is verified, and an unknown provider gets the same answer as a wrong
//! signature. 2xx comes after COMMIT and not before: until then a provider goes on telling. `docs/webhooks.md` lists the
//! answers.

// An `Err` is a whole answer here, written once for a request and moved on to the provider.
#![allow(clippy::result_large_err)]

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chrono::Utc;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::Instrument;

use super::code::Code;
use super::http::Front;
use super::over_http::{finish, request_id, whole_body};
use super::work::end_of;
use super::{boundary, span};
use crate::config::{PartnerName, ProviderSettings};
use crate::error::{Deadline, Failure};
use crate::ledger::payment::{Malformed, Notice, Told};
use crate::operations::fund_wallet::{Funded, NotFunded, fund_wallet};
use crate::signature::Signed;
use crate::traces::span;

/// One message and its answer. A method that gives `Err` has written the answer.
struct Exchange<'a> {
    front: &'a Front,
    id: &'a str,
    deadline: Deadline,
}

/// A message's body. Fields that are not known are left alone: providers add some.
#[derive(Deserialize)]
struct Message {
    reference: String,
    #[serde(rename = "type")]
    state: String,
    member: String,
    amount: String,
    currency: String,
}

/// `/webhooks/funding/{provider}`, by POST.
pub(super) async fn funding(State(front): State<Arc<Front>>, request: Request) -> Response {
    let id = request_id(request.headers());
    let deadline = Deadline::within(front.settings().deadline());
    let span = span::of_http(request.method(), "/webhooks/funding/{provider}", request.headers());
    let exchange = Exchange { front: &front, id: &id, deadline };
    let mut response = match exchange.answer(request).instrument(span.clone()).await {
        Ok(answered) | Err(answered) => answered,
    };
    span::answered(&span, response.status());
    finish(&mut response, &id);
    response
}

impl Exchange<'_> {
    async fn answer(&self, request: Request) -> Result<Response, Response> {
        let (parts, body) = request.into_parts();
        let Ok(_place) = self.front.requests.try_acquire() else {
            return Err(self.failed(&Failure::unavailable("too many requests at once")));
        };
        // Whatever it is: the signature is over all of it.
        let body = whole_body(self.front, body, self.deadline).await;
        let body = body.map_err(|(status, why)| self.error(status, Code::BadRequest.name(), &why))?;
        let provider = self.verified(parts.uri.path(), &parts.headers, &body)?;
        let event_id = header(&parts.headers, "webhook-id");
        let notice = self.read(provider, event_id, &body)?;
        let place = self.front.works.enter(self.deadline).await.map_err(|failure| self.failed(&failure))?;
        let (app, deadline) = (self.front.app.clone(), self.deadline);
        let work = async move {
            let result = fund_wallet(app, notice, deadline).await;
            drop(place);
            result
        };
        let task = self.front.works.tasks.spawn(work.instrument(span!("work")));
        match end_of(task, deadline).await {
            Ok(Ok(funded)) => Ok(self.done(provider, event_id, funded)),
            Ok(Err(reason)) => Err(self.unacceptable(provider, event_id, &reason.into())),
            Err(failure) => Err(self.failed(&failure)),
        }
    }

    /// The provider that signed the message. An unknown name takes as long as a known one, so that nobody can find out by the
    /// clock which there are.
    fn verified(&self, path: &str, headers: &HeaderMap, body: &[u8]) -> Result<&ProviderSettings, Response> {
        let name = path.rsplit('/').next().unwrap_or_default();
        let providers = &self.front.settings().funding.providers;
        let named = providers.iter().find(|provider| provider.name.as_str() == name);
        let secrets = named.or(providers.first()).map_or(&[][..], |provider| &provider.secrets);
        let signed = Signed {
            id: header(headers, "webhook-id"),
            timestamp: header(headers, "webhook-timestamp"),
            signatures: header(headers, "webhook-signature"),
            body,
        };
        let reason = match (named, signed.verify(secrets, Utc::now().timestamp())) {
            (Some(provider), Ok(())) => return Ok(provider),
            (Some(_), Err(reason)) => reason.to_string(),
            (None, _) => "there is no such provider".to_owned(),
        };
        let provider = named.map_or("", |provider| provider.name.as_str());
        metrics::counter!("largesse_funding_unauthenticated_total").increment(1);
        tracing::warn!(provider, %reason, request_id = self.id, "refused: a funding webhook that no provider signed");
        let message = "The signature is missing, too old or not the provider's.";
        Err(self.error(StatusCode::UNAUTHORIZED, Code::Unauthenticated.name(), message))
    }

    /// Reads what the provider told.
    fn read(&self, provider: &ProviderSettings, event_id: &str, body: &[u8]) -> Result<Notice, Response> {
        let refused = |refusal: &Refusal| self.unacceptable(provider, event_id, refusal);
        // A list of five texts would be read by their order, which nobody means.
        let is_object = body.trim_ascii_start().starts_with(b"{");
        let message: Option<Message> = serde_json::from_slice(body).ok().filter(|_| is_object);
        let message = message.ok_or_else(|| refused(&Refusal::shape()))?;
        let told = Told {
            event_id,
            reference: &message.reference,
            state: &message.state,
            member: &message.member,
            amount: &message.amount,
            currency: &message.currency,
        };
        Notice::parse(&provider.name, &told).map_err(|malformed| refused(&malformed.into()))
    }

    fn done(&self, provider: &ProviderSettings, event_id: &str, funded: Funded) -> Response {
        let status = word(funded);
        told(&provider.name, status).increment(1);
        if funded == Funded::Conflict {
            let provider = provider.name.as_str();
            tracing::warn!(provider, event_id, request_id = self.id, "a payment was told of in two ways: not credited");
        }
        json(StatusCode::OK, &json!({ "status": status }))
    }

    /// What a provider signed and we cannot take: money may wait there for somebody to look, so the log is told.
    fn unacceptable(&self, provider: &ProviderSettings, event_id: &str, refusal: &Refusal) -> Response {
        told(&provider.name, "refused").increment(1);
        let (provider, reason) = (provider.name.as_str(), refusal.message.as_str());
        tracing::warn!(provider, event_id, reason, request_id = self.id, "a funding webhook was refused");
        let mut error = json!({ "code": refusal.code, "message": refusal.message, "requestId": self.id });
        if let Some(field) = refusal.field {
            error["field"] = field.into();
        }
        json(refusal.status, &json!({ "error": error }))
    }

    fn failed(&self, failure: &Failure) -> Response {
        let (code, retry_after_ms) = boundary::report(failure, &[], self.id);
        let status = match retry_after_ms {
            Some(_) => StatusCode::SERVICE_UNAVAILABLE,
            None => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut response = self.error(status, code.name(), &failure.to_string());
        if let Some(milliseconds) = retry_after_ms {
            response.headers_mut().insert(RETRY_AFTER, milliseconds.div_ceil(1000).into());
        }
        response
    }

    fn error(&self, status: StatusCode, code: &str, message: &str) -> Response {
        json(status, &json!({ "error": { "code": code, "message": message, "requestId": self.id } }))
    }
}

/// Why a message that a provider signed is not taken.
struct Refusal {
    status: StatusCode,
    code: &'static str,
    field: Option<&'static str>,
    message: String,
}

impl Refusal {
    fn shape() -> Self {
        let message = "Send a JSON object in which `reference`, `type`, `member`, `amount` and `currency` stand once each, \
                       each of them a string.";
        Self { status: StatusCode::BAD_REQUEST, code: "BAD_REQUEST", field: None, message: message.to_owned() }
    }
}

impl From<Malformed> for Refusal {
    fn from(Malformed { field, message }: Malformed) -> Self {
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, code: "INVALID_INPUT", field: Some(field), message }
    }
}

impl From<NotFunded> for Refusal {
    fn from(reason: NotFunded) -> Self {
        let (code, field, message) = match reason {
            NotFunded::UnknownCurrency => ("INVALID_INPUT", "currency", "There is no such currency here."),
            NotFunded::TooMuch => ("LIMIT_EXCEEDED", "amount", "The balance, or what is owed, would pass 2^63 - 1."),
        };
        Self { status: StatusCode::UNPROCESSABLE_ENTITY, code, field: Some(field), message: message.to_owned() }
    }
}

fn word(funded: Funded) -> &'static str {
    match funded {
        Funded::Credited => "credited",
        Funded::TakenBack => "taken_back",
        Funded::Noted => "noted",
        Funded::Repeated => "repeated",
        Funded::Conflict => "conflict",
    }
}

/// Begins at zero what somebody is told of when it happens: a rate needs the value before the first event.
pub(super) fn begin(provider: &PartnerName) {
    for outcome in ["refused", word(Funded::Conflict)] {
        told(provider, outcome).increment(0);
    }
}

fn told(provider: &PartnerName, outcome: &'static str) -> metrics::Counter {
    metrics::counter!("largesse_funding_total", "provider" => provider.as_str().to_owned(), "outcome" => outcome)
}

fn json(status: StatusCode, body: &Value) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// A header's text; empty if there is none, which is refused like any other that does not fit.
fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}
