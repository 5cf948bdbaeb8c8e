//! Layer 1 in front of the schema: one extension wraps every mutation that declares `@cooldown`.
//!
//! It holds for each field, not for each request: aliases and fragments meet it one by one. A refused field is null, its
//! error stands beside the other fields' results, and its resolver does not run.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_graphql::extensions::{
    Extension, ExtensionContext, ExtensionFactory, NextExecute, NextParseQuery, NextResolve, ResolveInfo,
};
use async_graphql::parser::types::{ExecutableDocument, OperationType};
use async_graphql::{PathSegment, Response, ServerError, ServerResult, Value, Variables};

use tracing::Instrument;
use tracing::field::Empty;

use super::arguments::Arguments;
use super::boundary::failure_error;
use super::code::Code;
use super::refusals::Refusals;
use super::rules::{Guarded, MUTATION, Rules};
use super::work::Request;
use crate::config::Settings;
use crate::cooldown::{Cooldown, Decision, Rule, Wish};
use crate::error::Failure;
use crate::traces::span;

/// Makes a [`Guarding`] for each request.
pub(super) struct Guard {
    shared: Arc<Shared>,
}

struct Shared {
    cooldown: Cooldown,
    rules: Rules,
    enabled: bool,
    refusals: Refusals,
}

impl Guard {
    pub(super) fn new(cooldown: Cooldown, rules: Rules, settings: &Settings) -> Self {
        let (enabled, refusals) = (settings.cooldown.enabled, Refusals::new(settings.log.refusals_per_second));
        Self { shared: Arc::new(Shared { cooldown, rules, enabled, refusals }) }
    }
}

impl ExtensionFactory for Guard {
    fn create(&self) -> Arc<dyn Extension> {
        Arc::new(Guarding { shared: self.shared.clone(), variables: OnceLock::new(), refusals: Mutex::default() })
    }
}

/// The guard of one request.
struct Guarding {
    shared: Arc<Shared>,
    /// The values of a mutation's variables.
    variables: OnceLock<Variables>,
    /// Errors of refused fields. Returned from `resolve`, they would end the mutations that follow.
    refusals: Mutex<Vec<ServerError>>,
}

#[async_graphql::async_trait::async_trait]
impl Extension for Guarding {
    async fn parse_query(
        &self,
        context: &ExtensionContext<'_>,
        query: &str,
        variables: &Variables,
        next: NextParseQuery<'_>,
    ) -> ServerResult<ExecutableDocument> {
        let document = next.run(context, query, variables).await?;
        if document.operations.iter().any(|(_, operation)| operation.node.ty == OperationType::Mutation) {
            // An instance serves one request, so there is nothing to replace.
            let _ = self.variables.set(variables.clone());
        }
        Ok(document)
    }

    async fn execute(
        &self,
        context: &ExtensionContext<'_>,
        operation: Option<&str>,
        next: NextExecute<'_>,
    ) -> Response {
        let mut response = next.run(context, operation).await;
        response.errors.append(&mut self.refusals.lock().unwrap_or_else(PoisonError::into_inner));
        response
    }

    async fn resolve(
        &self,
        context: &ExtensionContext<'_>,
        info: ResolveInfo<'_>,
        next: NextResolve<'_>,
    ) -> ServerResult<Option<Value>> {
        let Some(guarded) = self.guarded(&info) else { return next.run(context, info).await };
        let request = context.data_unchecked::<Request>();
        // Who is not signed in has no lock to take; the resolver says so.
        let Ok(member) = request.member() else { return next.run(context, info).await };
        let response_key = info.alias.unwrap_or(info.name).to_owned();
        let arguments = Arguments::of(info.field, self.variables.get());
        let resource = guarded.per.as_ref().and_then(|path| arguments.text_at(path));
        let fingerprint = arguments.fingerprint(info.name);
        let wish = Wish { member, action: info.name, resource: resource.as_deref(), fingerprint };
        match self.decide(wish, &guarded.rule).await {
            Ok(Decision::Admitted(admission)) => {
                decided("admitted", info.name).increment(1);
                request.admit(&response_key, admission);
                let result = next.run(context, info).await;
                // Still here, it began no work: dropping it gives the lock back.
                if let Some(admission) = request.take_admission(&response_key) {
                    admission.give_back().await;
                }
                result
            }
            Ok(Decision::Answered(outcome)) => {
                decided("answered", info.name).increment(1);
                request.answer(&response_key, outcome);
                next.run(context, info).await
            }
            Ok(Decision::Refused { left, store }) => {
                decided("refused", info.name).increment(1);
                let retry_after_ms = milliseconds(left);
                self.shared.refusals.note(info.name, || tell(request, info.name, store, retry_after_ms));
                Ok(Some(self.refuse(cooldown_active(request, info.name, &response_key, retry_after_ms))))
            }
            Err(failure) => {
                let path = vec![PathSegment::Field(response_key)];
                Ok(Some(self.refuse(failure_error(&failure, path, &request.id))))
            }
        }
    }
}

impl Guarding {
    /// The span ends with the decision: what the field does then is the work's, beside it.
    async fn decide(&self, wish: Wish<'_>, rule: &Rule) -> Result<Decision, Failure> {
        let span = span!("guard", action = wish.action, verdict = Empty, store = Empty);
        let decided = self.shared.cooldown.attempt(wish, rule).instrument(span.clone()).await;
        match &decided {
            Ok(Decision::Admitted(admission)) => {
                span.record("verdict", "admitted").record("store", admission.store());
            }
            Ok(Decision::Answered(_)) => {
                span.record("verdict", "answered");
            }
            Ok(Decision::Refused { store, .. }) => {
                span.record("verdict", "refused").record("store", store);
            }
            Err(_) => {
                span.record("verdict", "unavailable");
            }
        }
        decided
    }

    /// The rule, if the field is a root field of the mutation and has one.
    fn guarded(&self, info: &ResolveInfo<'_>) -> Option<&Guarded> {
        if !self.shared.enabled || info.path_node.parent.is_some() || info.parent_type != MUTATION {
            return None;
        }
        self.shared.rules.of(info.name)
    }

    /// Null for the field; the error waits until all fields are done.
    fn refuse(&self, error: ServerError) -> Value {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).push(error);
        Value::Null
    }
}

/// What the guard decided, by action.
pub(super) fn decided(decision: &'static str, action: &str) -> metrics::Counter {
    metrics::counter!("largesse_cooldown_total", "action" => action.to_owned(), "decision" => decision)
}

/// How long is left, in whole milliseconds. Rounded up: whoever waits so long is not refused by the rest of one.
fn milliseconds(left: Duration) -> u64 {
    u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The refusal as an event in the log. A member is named by an id that is a hash of the name.
fn tell(request: &Request, action: &str, store: &str, remaining_ms: u64) {
    let (member, request_id) = (&request.caller, &request.id);
    tracing::info!(action, store, ?member, remaining_ms, request_id, "refused: cooldown active");
}

/// The refusal as its client reads it.
fn cooldown_active(request: &Request, action: &str, response_key: &str, retry_after_ms: u64) -> ServerError {
    let mut error = ServerError::new("Another attempt was admitted a moment ago; wait before the next one.", None);
    error.path = vec![PathSegment::Field(response_key.to_owned())];
    let extensions = error.extensions.get_or_insert_default();
    extensions.set("code", Code::CooldownActive.name());
    extensions.set("action", action);
    extensions.set("retryAfterMs", retry_after_ms);
    extensions.set("requestId", request.id.as_str());
    error
}
