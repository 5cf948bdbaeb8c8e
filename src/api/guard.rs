//! Layer 1 in front of the schema: one extension wraps every mutation that declares `@cooldown`.
//!
//! It holds for each field, not for each request: aliases and fragments meet it one by one. A refused field is null, its
//! error stands beside the other fields' results, and its resolver does not run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_graphql::extensions::{Extension, ExtensionContext, ExtensionFactory, NextExecute, NextResolve, ResolveInfo};
use async_graphql::parser::types::{ConstDirective, TypeKind, TypeSystemDefinition};
use async_graphql::{PathSegment, Response, ServerError, ServerResult, Value};

use super::boundary::failure_error;
use super::code::Code;
use super::work::Request;
use crate::config::{ConfigError, Settings, WithoutRedis};
use crate::cooldown::{Cooldown, Decision};

/// The window of each guarded mutation, and what to do there while Redis is away.
pub(super) struct Windows(HashMap<String, (Duration, WithoutRedis)>);

impl Windows {
    /// Puts the settings over the windows that the schema declares. A setting for what is not guarded is a mistake.
    pub(super) fn new(settings: &Settings, declared: HashMap<String, Duration>) -> Result<Self, ConfigError> {
        for action in settings.cooldown.actions.keys() {
            if !declared.contains_key(action) {
                return Err(ConfigError::unknown_action(action));
            }
        }
        let mut windows = HashMap::new();
        for (action, default) in declared {
            let own = settings.cooldown.actions.get(&action).cloned().unwrap_or_default();
            let window = own.window_ms.map_or(default, Duration::from_millis);
            settings.check_window(&action, window)?;
            windows.insert(action, (window, own.without_redis));
        }
        Ok(Self(windows))
    }
}

/// Reads `@cooldown(windowMs:)` off the mutations of a schema's text: where a mutation is defined is the one place that
/// says so.
pub(super) fn declared_windows(sdl: &str) -> HashMap<String, Duration> {
    let document = async_graphql::parser::parse_schema(sdl).expect("the schema that we print can be read");
    let mut windows = HashMap::new();
    for definition in document.definitions {
        let TypeSystemDefinition::Type(definition) = definition else { continue };
        let TypeKind::Object(object) = definition.node.kind else { continue };
        if definition.node.name.node != MUTATION {
            continue;
        }
        for field in object.fields {
            let window = field.node.directives.iter().find_map(|directive| window_of(&directive.node));
            windows.extend(window.map(|window| (field.node.name.node.to_string(), window)));
        }
    }
    windows
}

fn window_of(directive: &ConstDirective) -> Option<Duration> {
    if directive.name.node != "cooldown" {
        return None;
    }
    match &directive.get_argument("windowMs")?.node {
        async_graphql::Value::Number(number) => number.as_u64().map(Duration::from_millis),
        _ => None,
    }
}

/// The schema's mutation type.
const MUTATION: &str = "Mutation";

/// Makes a [`Guarding`] for each request.
pub(super) struct Guard {
    shared: Arc<Shared>,
}

struct Shared {
    cooldown: Cooldown,
    windows: Windows,
    enabled: bool,
}

impl Guard {
    pub(super) fn new(cooldown: Cooldown, windows: Windows, enabled: bool) -> Self {
        Self { shared: Arc::new(Shared { cooldown, windows, enabled }) }
    }
}

impl ExtensionFactory for Guard {
    fn create(&self) -> Arc<dyn Extension> {
        Arc::new(Guarding { shared: self.shared.clone(), refusals: Mutex::default() })
    }
}

/// The guard of one request.
struct Guarding {
    shared: Arc<Shared>,
    /// Errors of refused fields. Returned from `resolve`, they would end the mutations that follow.
    refusals: Mutex<Vec<ServerError>>,
}

#[async_graphql::async_trait::async_trait]
impl Extension for Guarding {
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
        let Some((window, without_redis)) = self.window(&info) else { return next.run(context, info).await };
        let request = context.data_unchecked::<Request>();
        // Who is not signed in has no lock to take; the resolver says so.
        let Ok(member) = request.member() else { return next.run(context, info).await };
        let response_key = info.alias.unwrap_or(info.name).to_owned();
        let decision = self.shared.cooldown.attempt(member, info.name, window, without_redis).await;
        match decision {
            Ok(Decision::Admitted(admission)) => {
                metrics::counter!("largesse_cooldown_admitted_total", "action" => info.name.to_owned()).increment(1);
                request.admit(&response_key, admission);
                let result = next.run(context, info).await;
                // Still here, it began no work: dropping it gives the lock back.
                if let Some(admission) = request.take_admission(&response_key) {
                    admission.give_back().await;
                }
                result
            }
            Ok(Decision::Refused(left)) => {
                Ok(Some(self.refuse(cooldown_active(request, info.name, &response_key, left))))
            }
            Err(failure) => {
                let path = vec![PathSegment::Field(response_key)];
                Ok(Some(self.refuse(failure_error(&failure, path, &request.id))))
            }
        }
    }
}

impl Guarding {
    /// The window, if the field is a root field of the mutation and declares one.
    fn window(&self, info: &ResolveInfo<'_>) -> Option<(Duration, WithoutRedis)> {
        if !self.shared.enabled || info.path_node.parent.is_some() || info.parent_type != MUTATION {
            return None;
        }
        self.shared.windows.0.get(info.name).copied()
    }

    /// Null for the field; the error waits until all fields are done.
    fn refuse(&self, error: ServerError) -> Value {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).push(error);
        Value::Null
    }
}

/// The refusal, told once to the log, once to the counter, and once to the client.
fn cooldown_active(request: &Request, action: &str, response_key: &str, left: Duration) -> ServerError {
    // Rounded up: whoever waits so long is not refused by the rest of a millisecond.
    let retry_after_ms = u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    metrics::counter!("largesse_cooldown_refused_total", "action" => action.to_owned()).increment(1);
    tracing::info!(
        action,
        member = ?request.caller,
        remaining_ms = retry_after_ms,
        request_id = request.id,
        "refused: cooldown active"
    );
    let mut error = ServerError::new("Another attempt was admitted a moment ago; wait before the next one.", None);
    error.path = vec![PathSegment::Field(response_key.to_owned())];
    let extensions = error.extensions.get_or_insert_default();
    extensions.set("code", Code::CooldownActive.name());
    extensions.set("action", action);
    extensions.set("retryAfterMs", retry_after_ms);
    extensions.set("requestId", request.id.as_str());
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_read_where_they_are_declared() {
        let declared = declared_windows(&crate::api::sdl());
        let mut actions: Vec<_> =
            declared.iter().map(|(action, window)| (action.as_str(), window.as_millis())).collect();
        actions.sort_unstable();
        assert_eq!(actions, [("claimDailyBonus", 5000), ("claimSignupBonus", 5000), ("transfer", 5000)]);
    }

    #[test]
    fn a_window_for_what_is_not_guarded_is_a_mistake() {
        let mut settings = Settings::default();
        settings.cooldown.actions.insert("transfers".to_owned(), crate::config::ActionSettings::default());
        let error = Windows::new(&settings, declared_windows(&crate::api::sdl())).err().unwrap();
        assert!(error.to_string().contains("transfers"));
    }
}
