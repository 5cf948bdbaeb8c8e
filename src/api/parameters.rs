//! A request's parameters, as each front reads them.

use async_graphql::{Extensions, Request, Value, Variables};
use serde::Deserialize;
use serde_json::Map;

use super::persisted::{self, DocumentId};

/// What GraphQL over HTTP names, and nothing coerced. A message over a socket holds the same.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Parameters {
    query: Option<String>,
    document_id: Option<String>,
    operation_name: Option<String>,
    variables: Option<Map<String, serde_json::Value>>,
    extensions: Option<Map<String, serde_json::Value>>,
}

impl Parameters {
    /// The request; None if it neither holds a document nor names one.
    pub(super) fn into_request(self) -> Option<Request> {
        let named_by_hash =
            self.extensions.as_ref().is_some_and(|extensions| extensions.contains_key(persisted::EXTENSION));
        if self.query.is_none() && self.document_id.is_none() && !named_by_hash {
            return None;
        }
        let mut request = Request::new(self.query.unwrap_or_default());
        if let Some(id) = self.document_id {
            request = request.data(DocumentId(id));
        }
        request.operation_name = self.operation_name;
        request.variables = Variables::from_json(self.variables.unwrap_or_default().into());
        let extensions = self.extensions.unwrap_or_default().into_iter();
        request.extensions =
            Extensions(extensions.filter_map(|(name, value)| Some((name, Value::from_json(value).ok()?))).collect());
        Some(request)
    }
}
