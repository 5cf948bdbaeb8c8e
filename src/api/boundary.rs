//! What an error looks like to a client, and what of it is logged: once, here.
//!
//! Resolvers return [`Failure`]; its public text becomes the message and its cause goes to the log. Whatever else carries no
//! code is a mistake of ours and is masked, so no text of a library or a database can leave.

use std::collections::HashSet;
use std::sync::Arc;

use async_graphql::extensions::{Extension, ExtensionContext, ExtensionFactory, NextParseQuery, NextValidation};
use async_graphql::parser::types::{DocumentOperations, ExecutableDocument, OperationType, Selection, SelectionSet};
use async_graphql::{PathSegment, Response, ServerError, ServerResult, ValidationResult, Variables};

use super::documents::Documents;
use crate::error::Failure;

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

/// Gives codes to errors of the request as a whole, and refuses what would run a mutation twice.
#[derive(Clone, Default)]
pub(super) struct Boundary {
    documents: Arc<Documents>,
}

impl ExtensionFactory for Boundary {
    fn create(&self) -> Arc<dyn Extension> {
        Arc::new(self.clone())
    }
}

#[async_graphql::async_trait::async_trait]
impl Extension for Boundary {
    async fn parse_query(
        &self,
        context: &ExtensionContext<'_>,
        query: &str,
        variables: &Variables,
        next: NextParseQuery<'_>,
    ) -> ServerResult<ExecutableDocument> {
        if let Some(document) = self.documents.find(query) {
            return Ok(document);
        }
        let document =
            next.run(context, query, variables).await.map_err(|error| coded(error, "GRAPHQL_PARSE_FAILED"))?;
        match twice_selected(&document) {
            None => {
                self.documents.remember(query, &document);
                Ok(document)
            }
            Some(key) => {
                let message =
                    format!("\"{key}\" is selected twice in a mutation; select it once, or give it an alias.");
                Err(coded(ServerError::new(message, None), "GRAPHQL_VALIDATION_FAILED"))
            }
        }
    }

    async fn validation(
        &self,
        context: &ExtensionContext<'_>,
        next: NextValidation<'_>,
    ) -> Result<ValidationResult, Vec<ServerError>> {
        next.run(context).await.map_err(|errors| {
            let code = |error: &ServerError| {
                let of_a_value = error.message.starts_with("Invalid value for argument")
                    || error.message.starts_with("Variable \"$") && error.message.contains("is not defined");
                if of_a_value { "BAD_USER_INPUT" } else { "GRAPHQL_VALIDATION_FAILED" }
            };
            errors
                .into_iter()
                .map(|error| {
                    let code = code(&error);
                    coded(error, code)
                })
                .collect()
        })
    }
}

fn coded(mut error: ServerError, code: &str) -> ServerError {
    error.extensions.get_or_insert_default().set("code", code);
    error
}

/// The error as a client may see it.
fn presentable(mut error: ServerError, request_id: &str) -> ServerError {
    if let Some(failure) = error.source::<Failure>() {
        return failure_error(failure, error.path.clone(), request_id);
    }
    let has_code = error.extensions.as_ref().is_some_and(|extensions| extensions.get("code").is_some());
    if !has_code && error.path.is_empty() {
        // Of the request as a whole: an operation name that is not there, a variable that is missing.
        error = coded(error, "BAD_USER_INPUT");
    } else if !has_code {
        return failure_error(&Failure::internal(error.message), error.path, request_id);
    }
    error.source = None;
    error.extensions.get_or_insert_default().set("requestId", request_id);
    error
}

/// A failure as a client may see it. Its cause is logged here and nowhere else.
pub(super) fn failure_error(failure: &Failure, path: Vec<PathSegment>, request_id: &str) -> ServerError {
    let (code, retry_after_ms) = wire(failure);
    match failure {
        Failure::Internal(cause) => tracing::error!(%cause, ?path, request_id, code, "failed"),
        Failure::Unavailable(cause) | Failure::OutcomeUnknown(cause) => {
            tracing::warn!(%cause, ?path, request_id, code, "failed");
        }
        Failure::Unauthenticated | Failure::Forbidden | Failure::BadInput(_) | Failure::KeyInUse => {
            tracing::debug!(?path, request_id, code, "refused");
        }
    }
    let mut error = ServerError::new(failure.to_string(), None);
    error.path = path;
    let extensions = error.extensions.get_or_insert_default();
    extensions.set("code", code);
    extensions.set("requestId", request_id);
    if let Some(retry_after_ms) = retry_after_ms {
        extensions.set("retryAfterMs", retry_after_ms);
    }
    error
}

/// The stable code, and when to ask again.
fn wire(failure: &Failure) -> (&'static str, Option<u64>) {
    match failure {
        Failure::Unauthenticated => ("UNAUTHENTICATED", None),
        Failure::Forbidden => ("FORBIDDEN", None),
        Failure::BadInput(_) => ("BAD_USER_INPUT", None),
        Failure::KeyInUse => ("IDEMPOTENCY_CONCURRENT_REQUEST", Some(RETRY_SOON_MS)),
        Failure::Unavailable(_) => ("UNAVAILABLE", Some(RETRY_SOON_MS)),
        Failure::OutcomeUnknown(_) => ("OUTCOME_UNKNOWN", Some(RETRY_LATER_MS)),
        Failure::Internal(_) => ("INTERNAL_SERVER_ERROR", None),
    }
}

/// A response key that some mutation of the document selects twice at its root. By the specification the field runs once
/// with both selections; async-graphql would run it twice. `@skip` is not counted in: such a document is refused as well.
fn twice_selected(document: &ExecutableDocument) -> Option<String> {
    let operations: Vec<_> = match &document.operations {
        DocumentOperations::Single(operation) => vec![operation],
        DocumentOperations::Multiple(operations) => operations.values().collect(),
    };
    let mutations = operations.into_iter().filter(|operation| operation.node.ty == OperationType::Mutation);
    mutations.into_iter().find_map(|operation| {
        let mut seen = Seen { document, keys: HashSet::new(), fragments: HashSet::new() };
        seen.selects_twice(&operation.node.selection_set.node)
    })
}

struct Seen<'a> {
    document: &'a ExecutableDocument,
    keys: HashSet<&'a str>,
    fragments: HashSet<&'a str>,
}

impl<'a> Seen<'a> {
    /// Linear in the document: a fragment that is spread a second time is not read again, since it repeats its fields.
    fn selects_twice(&mut self, selections: &'a SelectionSet) -> Option<String> {
        selections.items.iter().find_map(|selection| match &selection.node {
            Selection::Field(field) => {
                let key = field.node.response_key().node.as_str();
                (!self.keys.insert(key)).then(|| key.to_owned())
            }
            Selection::InlineFragment(fragment) => self.selects_twice(&fragment.node.selection_set.node),
            Selection::FragmentSpread(spread) => {
                let name = spread.node.fragment_name.node.as_str();
                if !self.fragments.insert(name) {
                    return Some(format!("...{name}"));
                }
                let fragment = self.document.fragments.get(name)?;
                self.selects_twice(&fragment.node.selection_set.node)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(document: &str) -> Option<String> {
        twice_selected(&async_graphql::parser::parse_query(document).unwrap())
    }

    #[test]
    fn a_response_key_stands_once_in_a_mutation() {
        assert_eq!(refused("mutation { a b c: a }"), None);
        assert_eq!(refused("{ a a }"), None, "a query may repeat itself");
        assert_eq!(refused("mutation { a { x } a { y } }").as_deref(), Some("a"));
        assert_eq!(refused("mutation { a: x a: y }").as_deref(), Some("a"));
        assert_eq!(refused("mutation { a ... on Mutation { a } }").as_deref(), Some("a"));
        assert_eq!(
            refused("mutation { a ...F } fragment F on Mutation { ...G } fragment G on Mutation { a }").as_deref(),
            Some("a")
        );
        assert_eq!(refused("mutation { ...F ...F } fragment F on Mutation { a }").as_deref(), Some("...F"));
        assert_eq!(refused("mutation { a @skip(if: true) a }").as_deref(), Some("a"));
        assert_eq!(refused("query Q { a a } mutation M { b b }").as_deref(), Some("b"));
    }
}
