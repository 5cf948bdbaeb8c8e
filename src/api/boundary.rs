//! What an error looks like to a client, and what of it is logged: once, here.
//!
//! Resolvers return [`Failure`]; its public text becomes the message and its cause goes to the log. Whatever else carries no
//! code is a mistake of ours and is masked, so no text of a library or a database can leave.

use std::sync::{Arc, OnceLock};

use async_graphql::extensions::{Extension, ExtensionContext, ExtensionFactory, NextPrepareRequest, NextValidation};
use async_graphql::{CacheControl, PathSegment, Request, Response, ServerError, ServerResult, ValidationResult};

use tracing::Span;

use super::code::Code;
use super::document;
use super::documents::{Documents, Known};
use super::persisted::{Candidate, Persisted};
use crate::error::Failure;
use crate::operations::App;
use crate::traces;

/// How long a client waits before it asks again: time for a lock to be given back, and for a pool to breathe.
const RETRY_SOON_MS: u64 = 250;

/// How long where the work may still be under way: the statement that was running at the deadline ends within this.
const RETRY_LATER_MS: u64 = 1000;

/// Makes every error of a response presentable. The front calls it, once, on whatever the schema answered.
pub(super) fn present(response: &mut Response, request_id: &str) {
    for error in &mut response.errors {
        let seen = std::mem::replace(error, ServerError::new("", None));
        *error = presentable(seen, request_id);
    }
}

/// Decides which document a request runs, gives codes to errors of the request as a whole, and refuses what would run a
/// mutation twice.
pub(super) struct Boundary {
    /// Shared by all requests.
    persisted: Arc<Persisted>,
    /// Shared by all requests.
    documents: Arc<Documents>,
    /// This request's.
    document: OnceLock<(Arc<Known>, Option<Candidate>)>,
    /// What this request's span is called once the document is known to hold names of ours alone.
    span_name: OnceLock<String>,
}

impl Boundary {
    pub(super) fn new(persisted: Arc<Persisted>) -> Self {
        Self { persisted, documents: Arc::default(), document: OnceLock::new(), span_name: OnceLock::new() }
    }

    /// The request's document fits the schema.
    fn fits(&self) {
        let Some((known, candidate)) = self.document.get() else { return };
        known.fits();
        if let Some(name) = self.span_name.get() {
            traces::rename(&Span::current(), name.clone());
        }
        if let Some(candidate) = candidate {
            self.persisted.keep(candidate);
        }
    }
}

impl ExtensionFactory for Boundary {
    fn create(&self) -> Arc<dyn Extension> {
        let (persisted, documents) = (self.persisted.clone(), self.documents.clone());
        Arc::new(Self { persisted, documents, document: OnceLock::new(), span_name: OnceLock::new() })
    }
}

#[async_graphql::async_trait::async_trait]
impl Extension for Boundary {
    async fn prepare_request(
        &self,
        context: &ExtensionContext<'_>,
        request: Request,
        next: NextPrepareRequest<'_>,
    ) -> ServerResult<Request> {
        let request = next.run(context, request).await?;
        let limits = &context.data_unchecked::<App>().settings.limits;
        let registry = &context.schema_env.registry;
        let prepared = document::prepare(request, &self.persisted, &self.documents, registry, limits)?;
        if !Span::current().is_disabled()
            && let Some(name) = document::span_name(&prepared)
        {
            let _ = self.span_name.set(name);
        }
        // An instance serves one request, so there is nothing to replace.
        let _ = self.document.set((prepared.known, prepared.candidate));
        Ok(prepared.request)
    }

    async fn validation(
        &self,
        context: &ExtensionContext<'_>,
        next: NextValidation<'_>,
    ) -> Result<ValidationResult, Vec<ServerError>> {
        let result = if self.document.get().is_some_and(|(known, _)| known.is_valid_for_ever()) {
            // Neither complexity nor depth is counted by the library, and no answer is cached.
            Ok(ValidationResult { cache_control: CacheControl::default(), complexity: 0, depth: 0 })
        } else {
            next.run(context).await
        };
        match result {
            Ok(result) => {
                self.fits();
                Ok(result)
            }
            Err(errors) => Err(errors.into_iter().map(with_code).collect()),
        }
    }
}

/// The code of an error that validation found.
fn with_code(error: ServerError) -> ServerError {
    let of_a_value = error.message.starts_with("Invalid value for argument")
        || error.message.starts_with("Invalid default value for argument");
    coded(error, if of_a_value { Code::BadUserInput } else { Code::ValidationFailed })
}

pub(super) fn coded(mut error: ServerError, code: Code) -> ServerError {
    error.extensions.get_or_insert_default().set("code", code.name());
    error
}

/// The error as a client may see it.
fn presentable(mut error: ServerError, request_id: &str) -> ServerError {
    if let Some(failure) = error.source::<Failure>() {
        return failure_error(failure, error.path.clone(), request_id);
    }
    let has_code = error.extensions.as_ref().is_some_and(|extensions| extensions.get("code").is_some());
    if !has_code && (error.path.is_empty() || of_coercion(&error)) {
        // Of the request as a whole, such as an operation name that is not there; or of an argument that validation let pass.
        error = coded(error, Code::BadUserInput);
    } else if !has_code {
        return failure_error(&Failure::internal(error.message), error.path, request_id);
    }
    error.source = None;
    error.extensions.get_or_insert_default().set("requestId", request_id);
    error
}

/// Whether an argument could not be read. Such an error comes from async-graphql before the field's resolver runs, and its
/// text holds what the client sent and nothing of ours.
pub(super) fn of_coercion(error: &ServerError) -> bool {
    error.message.starts_with("Failed to parse \"") || error.message.starts_with("Expected input type \"")
}

/// A failure as a client may see it. Its cause is logged here and nowhere else.
pub(super) fn failure_error(failure: &Failure, path: Vec<PathSegment>, request_id: &str) -> ServerError {
    let (code, retry_after_ms) = report(failure, &path, request_id);
    let mut error = ServerError::new(failure.to_string(), None);
    error.path = path;
    let extensions = error.extensions.get_or_insert_default();
    extensions.set("code", code.name());
    extensions.set("requestId", request_id);
    if let Some(retry_after_ms) = retry_after_ms {
        extensions.set("retryAfterMs", retry_after_ms);
    }
    error
}

/// Logs a failure's cause, once, and says what a client learns beside its text: the stable code, and when to ask again.
pub(super) fn report(failure: &Failure, path: &[PathSegment], request_id: &str) -> (Code, Option<u64>) {
    let (code, retry_after_ms) = wire(failure);
    let name = code.name();
    match failure {
        Failure::Internal(cause) => tracing::error!(%cause, ?path, request_id, code = name, "failed"),
        Failure::Unavailable(cause) | Failure::OutcomeUnknown(cause) => {
            tracing::warn!(%cause, ?path, request_id, code = name, "failed");
        }
        Failure::Unauthenticated | Failure::Forbidden | Failure::BadInput(_) | Failure::KeyInUse => {
            tracing::debug!(?path, request_id, code = name, "refused");
        }
    }
    (code, retry_after_ms)
}

/// The stable code, and when to ask again.
pub(super) fn wire(failure: &Failure) -> (Code, Option<u64>) {
    match failure {
        Failure::Unauthenticated => (Code::Unauthenticated, None),
        Failure::Forbidden => (Code::Forbidden, None),
        Failure::BadInput(_) => (Code::BadUserInput, None),
        Failure::KeyInUse => (Code::KeyInUse, Some(RETRY_SOON_MS)),
        Failure::Unavailable(_) => (Code::Unavailable, Some(RETRY_SOON_MS)),
        Failure::OutcomeUnknown(_) => (Code::OutcomeUnknown, Some(RETRY_LATER_MS)),
        Failure::Internal(_) => (Code::Internal, None),
    }
}
