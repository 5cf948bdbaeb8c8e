//! What the metrics are told of root fields and of HTTP.
//!
//! A root field's name is a label only if the schema has it, and its outcome is one of a closed set: what its caller was told.
//! The resolver says how money work ended, for a client need not select `userErrors`; the errors of the answer say the rest.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Instant;

use async_graphql::extensions::{Extension, ExtensionContext, ExtensionFactory, NextExecute, NextResolve, ResolveInfo};
use async_graphql::parser::types::{TypeKind, TypeSystemDefinition};
use async_graphql::{PathSegment, Response as Answer, ServerError, ServerResult, Value};
use axum::extract::Request as HttpRequest;
use axum::middleware::Next;
use axum::response::Response;

use super::code::{self, Code};
use super::work::Request;
use crate::config::Settings;
use crate::error::{Deadline, Failure};

/// How a root field ended, as its caller was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Done, or read.
    Done,
    /// A business refusal.
    Refused,
    /// The stored answer of an earlier attempt with the same key.
    Replayed,
    /// The key was used before with other arguments.
    Mismatch,
    /// Arguments that are not acceptable.
    Invalid,
    /// Refused by the cooldown.
    Cooldown,
    /// The same key is at work at this moment.
    Concurrent,
    Unauthenticated,
    Forbidden,
    Unavailable,
    /// Nobody knows yet whether it was done.
    Unknown,
    Internal,
    /// Nobody was told: the caller left before.
    Abandoned,
}

impl Ending {
    const ALL: [Self; 13] = [
        Self::Done,
        Self::Refused,
        Self::Replayed,
        Self::Mismatch,
        Self::Invalid,
        Self::Cooldown,
        Self::Concurrent,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::Unavailable,
        Self::Unknown,
        Self::Internal,
        Self::Abandoned,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Refused => "refused",
            Self::Replayed => "replayed",
            Self::Mismatch => "mismatch",
            Self::Invalid => "invalid",
            Self::Cooldown => "cooldown",
            Self::Concurrent => "concurrent",
            Self::Unauthenticated => "unauthenticated",
            Self::Forbidden => "forbidden",
            Self::Unavailable => "unavailable",
            Self::Unknown => "unknown",
            Self::Internal => "internal",
            Self::Abandoned => "abandoned",
        }
    }

    /// What a field's error means, whether it was made presentable already or not.
    fn of_error(error: &ServerError) -> Self {
        let code = match error.source::<Failure>() {
            Some(failure) => Some(super::boundary::wire(failure).0),
            None => code_of(error),
        };
        match code {
            Some(Code::CooldownActive) => Self::Cooldown,
            Some(Code::KeyInUse) => Self::Concurrent,
            Some(Code::Unauthenticated) => Self::Unauthenticated,
            Some(Code::Forbidden) => Self::Forbidden,
            Some(Code::Unavailable) => Self::Unavailable,
            Some(Code::OutcomeUnknown) => Self::Unknown,
            Some(Code::BadUserInput) => Self::Invalid,
            // An argument that could not be read has no code yet; whatever else has none is a mistake of ours.
            None if super::boundary::of_coercion(error) => Self::Invalid,
            _ => Self::Internal,
        }
    }
}

fn code_of(error: &ServerError) -> Option<Code> {
    match error.extensions.as_ref()?.get("code")? {
        Value::String(name) => Code::named(name),
        _ => None,
    }
}

/// The root fields of the schema, by the type that they stand in.
static ROOT_FIELDS: LazyLock<HashMap<String, Vec<String>>> = LazyLock::new(|| {
    let document = async_graphql::parser::parse_schema(super::sdl()).expect("the schema that we print can be read");
    let mut roots = HashMap::new();
    for definition in document.definitions {
        let TypeSystemDefinition::Type(definition) = definition else { continue };
        let TypeKind::Object(object) = definition.node.kind else { continue };
        let name = definition.node.name.node.to_string();
        if [QUERY, MUTATION, SUBSCRIPTION].contains(&name.as_str()) {
            roots.insert(name, object.fields.iter().map(|field| field.node.name.node.to_string()).collect());
        }
    }
    roots
});

const QUERY: &str = "Query";
const MUTATION: &str = "Mutation";
const SUBSCRIPTION: &str = "Subscription";

/// The schema's own copy of a root field's name; None for what is no field of it.
fn root_field(of: &str, name: &str) -> Option<&'static str> {
    ROOT_FIELDS.get(of)?.iter().find(|field| *field == name).map(String::as_str)
}

/// Begins what can be named before it happens at zero: a rate needs the value before the first event.
pub(super) fn begin(settings: &Settings) {
    for action in super::rules::declared(&super::sdl()).keys() {
        for decision in ["admitted", "refused", "answered"] {
            super::guard::decided(decision, action).increment(0);
        }
        metrics::counter!("largesse_cooldown_fallback_total", "action" => action.clone()).increment(0);
    }
    for provider in &settings.funding.providers {
        super::webhook::begin(&provider.name);
    }
    for reason in ["full", "late"] {
        metrics::counter!("largesse_work_refused_total", "reason" => reason).increment(0);
    }
    for field in ROOT_FIELDS.values().flatten() {
        for ending in Ending::ALL {
            operations(field, ending).increment(0);
        }
    }
    for code in code::names() {
        errors_of(code).increment(0);
    }
}

fn operations(field: &'static str, ending: Ending) -> metrics::Counter {
    metrics::counter!("largesse_operations_total", "operation" => field, "outcome" => ending.name())
}

fn errors_of(code: &'static str) -> metrics::Counter {
    metrics::counter!("largesse_errors_total", "code" => code)
}

/// Counts the errors of an answer by their codes.
pub(super) fn errors(errors: &[ServerError]) {
    for error in errors {
        errors_of(code_of(error).unwrap_or(Code::Internal).name()).increment(1);
    }
}

fn count(field: &'static str, ending: Ending, took: std::time::Duration) {
    operations(field, ending).increment(1);
    if ending != Ending::Cooldown {
        metrics::histogram!("largesse_operation_seconds", "operation" => field).record(took);
    }
}

/// Makes a [`Measuring`] for each request. It stands in front of the guard, whose refusals it counts as well.
pub(super) struct Measure;

impl ExtensionFactory for Measure {
    fn create(&self) -> Arc<dyn Extension> {
        Arc::new(Measuring { seen: Mutex::default() })
    }
}

/// The root fields of one request's query or mutation.
struct Measuring {
    seen: Mutex<Vec<Seen>>,
}

struct Seen {
    field: &'static str,
    response_key: String,
    began: Instant,
    ended: Option<Instant>,
    /// What tells, should the answer never be complete, what its caller was told instead.
    deadline: Deadline,
    work_began: Arc<AtomicBool>,
}

#[async_graphql::async_trait::async_trait]
impl Extension for Measuring {
    async fn execute(&self, context: &ExtensionContext<'_>, operation: Option<&str>, next: NextExecute<'_>) -> Answer {
        let answer = next.run(context, operation).await;
        self.settle(context.data_unchecked(), &answer.errors);
        answer
    }

    async fn resolve(
        &self,
        context: &ExtensionContext<'_>,
        info: ResolveInfo<'_>,
        next: NextResolve<'_>,
    ) -> ServerResult<Option<Value>> {
        // A subscription's events come by here one by one; it is counted where it begins.
        if info.path_node.parent.is_some() || info.parent_type == SUBSCRIPTION {
            return next.run(context, info).await;
        }
        let Some(field) = root_field(info.parent_type, info.name) else { return next.run(context, info).await };
        let response_key = info.alias.unwrap_or(info.name).to_owned();
        let place = self.begin(field, response_key, context.data_unchecked());
        let result = next.run(context, info).await;
        if let Some(seen) = self.seen().get_mut(place) {
            seen.ended = Some(Instant::now());
        }
        result
    }
}

impl Measuring {
    fn begin(&self, field: &'static str, response_key: String, request: &Request) -> usize {
        let mut seen = self.seen();
        let (deadline, work_began) = (request.deadline, request.work_began.clone());
        seen.push(Seen { field, response_key, began: Instant::now(), ended: None, deadline, work_began });
        seen.len() - 1
    }

    /// The answer is complete.
    fn settle(&self, request: &Request, errors: &[ServerError]) {
        for seen in self.seen().drain(..) {
            let of_field = |error: &&ServerError| match error.path.first() {
                Some(PathSegment::Field(key)) => *key == seen.response_key,
                _ => false,
            };
            let ending = request
                .ending(&seen.response_key)
                .unwrap_or_else(|| errors.iter().find(of_field).map_or(Ending::Done, Ending::of_error));
            count(seen.field, ending, seen.ended.unwrap_or_else(Instant::now) - seen.began);
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Vec<Seen>> {
        // No code panics between two states while it holds the lock.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whatever was not settled by now never will be: its answer was given up, by the deadline or by the caller.
impl Drop for Measuring {
    fn drop(&mut self) {
        for seen in self.seen().drain(..) {
            let ending = match (seen.deadline.has_passed(), seen.work_began.load(Ordering::Relaxed)) {
                (true, true) => Ending::Unknown,
                (true, false) => Ending::Unavailable,
                (false, _) => Ending::Abandoned,
            };
            count(seen.field, ending, seen.began.elapsed());
        }
    }
}

/// A subscription, from its beginning to its end.
pub(super) struct Subscribed {
    field: Option<&'static str>,
    began: Instant,
}

impl Subscribed {
    /// It begins. What is no field of the schema is not counted by its name.
    pub(super) fn begin(field: Option<&str>) -> Self {
        metrics::gauge!("largesse_subscriptions").increment(1.0);
        Self { field: field.and_then(|field| root_field(SUBSCRIPTION, field)), began: Instant::now() }
    }

    /// It is answered. Its first answer says how it began, and that is what counts.
    pub(super) fn answered(&mut self, answer: &Answer) {
        if let Some(field) = self.field.take() {
            count(field, answer.errors.first().map_or(Ending::Done, Ending::of_error), self.began.elapsed());
        }
    }
}

impl Drop for Subscribed {
    fn drop(&mut self) {
        metrics::gauge!("largesse_subscriptions").decrement(1.0);
        if let Some(field) = self.field.take() {
            count(field, Ending::Abandoned, self.began.elapsed());
        }
    }
}

/// Counts an HTTP request and its answer.
pub(super) async fn http(request: HttpRequest, next: Next) -> Response {
    let front = front(request.uri().path());
    let flight = Flight::begin(front);
    let response = next.run(request).await;
    drop(flight);
    let class = match response.status().as_u16() {
        ..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    };
    metrics::counter!("largesse_http_requests_total", "front" => front, "class" => class).increment(1);
    response
}

fn front(path: &str) -> &'static str {
    match path {
        "/graphql" => "graphql",
        "/livez" | "/readyz" => "health",
        _ if path.starts_with("/webhooks/funding/") => "funding",
        _ => "other",
    }
}

/// A request that is being answered, or given up by its caller.
struct Flight(&'static str);

impl Flight {
    fn begin(front: &'static str) -> Self {
        metrics::gauge!("largesse_http_requests_in_flight", "front" => front).increment(1.0);
        Self(front)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        metrics::gauge!("largesse_http_requests_in_flight", "front" => self.0).decrement(1.0);
    }
}
