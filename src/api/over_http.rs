//! GraphQL over HTTP, after the GraphQL Foundation's specification: `POST` with JSON, and `GET` for queries.
//!
//! Under `application/graphql-response+json` a request that was not executed gets 400; under `application/json` what is
//! well formed gets 200, since Apollo Client 3 and others repeat whatever is no 2xx.

// An `Err` is a whole answer here, written once for a request and moved on to the client.
#![allow(clippy::result_large_err)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_graphql::parser::types::OperationType;
use async_graphql::{Response as Answer, ServerError, Value};
use axum::body::{Body, Bytes};
use axum::extract::ws::{WebSocketUpgrade, rejection::WebSocketUpgradeRejection};
use axum::extract::{Request as HttpRequest, State};
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, json};
use tracing::Instrument;
use uuid::Uuid;

use super::boundary::{self, failure_error};
use super::code::Code;
use super::http::Front;
use super::media_type::{MediaType, is_json};
use super::parameters::Parameters;
use super::token::{BadToken, NoCaller};
use super::work::Request;
use super::{document, measure, over_websocket, span};
use crate::error::{Deadline, Failure};

/// The header that names a request, in and out.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id that is taken over from a caller; longer ones are replaced.
const LONGEST_REQUEST_ID: usize = 128;

/// How long after the deadline an answer still waits for reads: longer than the work has to say how it ended.
const GRACE: Duration = Duration::from_millis(500);

/// `/graphql`, whatever the method.
pub(super) async fn graphql(
    State(front): State<Arc<Front>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
    request: HttpRequest,
) -> Response {
    if let Ok(upgrade) = upgrade {
        return over_websocket::upgrade(front, upgrade, request.headers());
    }
    let id = request_id(request.headers());
    let span = span::of_http(request.method(), "/graphql", request.headers());
    let exchange = Exchange {
        front: &front,
        id: &id,
        media_type: MediaType::accepted(request.headers()).unwrap_or(MediaType::Json),
        deadline: Deadline::within(front.settings().deadline()),
    };
    let mut response = match exchange.answer(request).instrument(span.clone()).await {
        Ok(answered) | Err(answered) => answered,
    };
    span::answered(&span, response.status());
    finish(&mut response, &id);
    response
}

/// What every answer says about itself, whatever it is.
pub(super) fn finish(response: &mut Response, id: &str) {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REQUEST_ID, HeaderValue::from_str(id).unwrap_or(HeaderValue::from_static("")));
}

/// One request and its answer. A method that gives `Err` has written the answer: the request as a whole is refused.
struct Exchange<'a> {
    front: &'a Front,
    id: &'a str,
    media_type: MediaType,
    deadline: Deadline,
}

impl Exchange<'_> {
    async fn answer(&self, request: HttpRequest) -> Result<Response, Response> {
        let (parts, body) = request.into_parts();
        if MediaType::accepted(&parts.headers).is_none() {
            let message = "Answers are application/graphql-response+json or application/json.";
            return Err(self.refusal(StatusCode::NOT_ACCEPTABLE, message));
        }
        let Ok(_place) = self.front.requests.try_acquire() else {
            let failure = Failure::unavailable("too many requests at once");
            return Err(self.write(&Answer::from_errors(vec![failure_error(&failure, Vec::new(), self.id)])));
        };
        let parameters = match parts.method {
            Method::POST => self.read_body(&parts.headers, body).await?,
            Method::GET | Method::HEAD => self.read_query(&parts.uri)?,
            _ => return Err(self.not_allowed("GET, POST", "Send a POST, or a query by GET.")),
        };
        let caller = self.front.tokens.caller(&parts.headers).await.map_err(|reason| self.no_caller(&reason))?;
        let mut graphql = parameters.into_request().ok_or_else(|| self.bad_request(SHAPE))?;
        if parts.method != Method::POST {
            self.refuse_unless_query(&mut graphql)?;
        }
        let request = Request::new(self.id.to_owned(), caller, self.deadline, self.front.works.clone());
        Ok(self.write(&execute(self.front, graphql, request).await))
    }

    /// Reads a request's JSON: an object, never an array, whose operations would run side by side without a limit.
    async fn read_body(&self, headers: &HeaderMap, body: Body) -> Result<Parameters, Response> {
        // Read it whatever it is: a connection that closes on bytes unread is reset, and the client never sees the answer.
        let bytes =
            whole_body(self.front, body, self.deadline).await.map_err(|(status, why)| self.refusal(status, &why))?;
        if !is_json(headers) {
            let message = "Send the request as application/json in UTF-8.";
            return Err(self.refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
            return Err(self.bad_request("Batches are not accepted; send one operation in one request."));
        }
        serde_json::from_slice(&bytes).map_err(|_| self.bad_request(SHAPE))
    }

    /// Reads a request's parameters from the URL, where those that are no text are JSON.
    fn read_query(&self, uri: &Uri) -> Result<Parameters, Response> {
        let mut parameters = Map::new();
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            let value = match name.as_ref() {
                "variables" | "extensions" => serde_json::from_str(&value).map_err(|_| self.bad_request(SHAPE))?,
                _ => value.into_owned().into(),
            };
            parameters.insert(name.into_owned(), value);
        }
        serde_json::from_value(parameters.into()).map_err(|_| self.bad_request(SHAPE))
    }

    /// A link must not move money: what came by GET is a query, or is not executed.
    fn refuse_unless_query(&self, graphql: &mut async_graphql::Request) -> Result<(), Response> {
        match document::operation_type(graphql, &self.front.persisted, &self.front.settings().limits) {
            // What cannot be read is refused by its own name when it is executed.
            Ok(None | Some(OperationType::Query)) => Ok(()),
            Err(error) => {
                let mut answer = Answer::from_errors(vec![error]);
                boundary::present(&mut answer, self.id);
                Err(self.write(&answer))
            }
            Ok(Some(_)) => Err(self.not_allowed("POST", "Send mutations by POST.")),
        }
    }

    fn write(&self, answer: &Answer) -> Response {
        measure::errors(&answer.errors);
        let executed = was_executed(answer);
        let retry_after = retry_after(answer);
        let status = match (self.media_type, executed) {
            (MediaType::GraphqlResponse, false) if retry_after.is_some() => StatusCode::SERVICE_UNAVAILABLE,
            (MediaType::GraphqlResponse, false) => StatusCode::BAD_REQUEST,
            _ => StatusCode::OK,
        };
        let written = Written { data: executed.then_some(&answer.data), errors: &answer.errors };
        let mut response = self.json(status, &written);
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response
    }

    fn json(&self, status: StatusCode, body: &impl Serialize) -> Response {
        match serde_json::to_vec(body) {
            Ok(bytes) => (status, [(CONTENT_TYPE, self.media_type.content_type())], bytes).into_response(),
            Err(error) => {
                tracing::error!(%error, request_id = self.id, "an answer could not be written");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }

    fn bad_request(&self, message: &str) -> Response {
        self.refusal(StatusCode::BAD_REQUEST, message)
    }

    fn refusal(&self, status: StatusCode, message: &str) -> Response {
        self.coded_refusal(status, Code::BadRequest, message)
    }

    fn coded_refusal(&self, status: StatusCode, code: Code, message: &str) -> Response {
        let error = json!({ "message": message, "extensions": { "code": code.name(), "requestId": self.id } });
        self.json(status, &json!({ "errors": [error] }))
    }

    fn not_allowed(&self, allowed: &'static str, message: &str) -> Response {
        let mut response = self.refusal(StatusCode::METHOD_NOT_ALLOWED, message);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
        response
    }

    fn no_caller(&self, reason: &NoCaller) -> Response {
        match reason {
            NoCaller::BadToken(reason) => self.unauthenticated(reason),
            NoCaller::Unavailable(failure) => {
                self.write(&Answer::from_errors(vec![failure_error(failure, Vec::new(), self.id)]))
            }
        }
    }

    fn unauthenticated(&self, reason: &BadToken) -> Response {
        tracing::info!(%reason, request_id = self.id, "refused: the token is not good");
        let message = "The bearer token is malformed, expired or not ours.";
        let mut response = self.coded_refusal(StatusCode::UNAUTHORIZED, Code::Unauthenticated, message);
        // RFC 6750, section 3.1.
        let challenge = HeaderValue::from_static("Bearer error=\"invalid_token\"");
        response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
        response
    }
}

/// Executes a query or a mutation, within its deadline.
pub(super) async fn execute(front: &Front, graphql: async_graphql::Request, request: Request) -> Answer {
    let (id, deadline, work_began) = (request.id.clone(), request.deadline, request.work_began.clone());
    let executing = front.schema.execute(graphql.data(request));
    if let Ok(mut answer) = tokio::time::timeout_at((deadline.instant() + GRACE).into(), executing).await {
        boundary::present(&mut answer, &id);
        return answer;
    }
    // Reads hang. Whatever work began goes on in its task, so nobody may say that nothing was done.
    let late = "the deadline passed before the answer was complete";
    let began = work_began.load(Ordering::Relaxed);
    let failure = if began { Failure::unknown(late) } else { Failure::unavailable(late) };
    Answer::from_errors(vec![failure_error(&failure, Vec::new(), &id)])
}

/// What a request must look like.
const SHAPE: &str = "Send an object with a \"query\" or a \"documentId\" of text, and perhaps \"operationName\" of text, \
                     \"variables\" and \"extensions\" of objects.";

/// Whether anything was executed: the answer of a request that was not has no `data` (GraphQL specification, 7.1).
pub(super) fn was_executed(answer: &Answer) -> bool {
    answer.data != Value::Null || answer.errors.iter().any(|error| !error.path.is_empty())
}

/// A body, whole; or the status and the sentence that say why not.
pub(super) async fn whole_body(front: &Front, body: Body, deadline: Deadline) -> Result<Bytes, (StatusCode, String)> {
    let limit = front.settings().request.body_limit_bytes;
    let reading = tokio::time::timeout_at(deadline.instant().into(), axum::body::to_bytes(body, limit));
    match reading.await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_too_large(&error) => {
            Err((StatusCode::PAYLOAD_TOO_LARGE, format!("The body is larger than {limit} bytes.")))
        }
        Ok(Err(_)) => Err((StatusCode::BAD_REQUEST, "The body could not be read.".to_owned())),
        Err(_) => Err((StatusCode::REQUEST_TIMEOUT, "The body did not arrive in time.".to_owned())),
    }
}

fn is_too_large(error: &axum::Error) -> bool {
    use std::error::Error;
    error.source().is_some_and(<dyn Error>::is::<http_body_util::LengthLimitError>)
}

/// The caller's id for the request, if it can stand in a log line; otherwise one of ours.
pub(super) fn request_id(headers: &HeaderMap) -> String {
    let fits =
        |id: &&str| (1..=LONGEST_REQUEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    match headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(fits) {
        Some(id) => id.to_owned(),
        None => Uuid::now_v7().simple().to_string(),
    }
}

/// An answer's body.
#[derive(Serialize)]
pub(super) struct Written<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<&'a Value>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) errors: &'a [ServerError],
}

/// The longest wait that an error of the answer asks for, in whole seconds, rounded up.
fn retry_after(answer: &Answer) -> Option<u64> {
    let wait = |error: &ServerError| match error.extensions.as_ref()?.get("retryAfterMs")? {
        Value::Number(milliseconds) => milliseconds.as_u64(),
        _ => None,
    };
    answer.errors.iter().filter_map(wait).max().map(|milliseconds| milliseconds.div_ceil(1000))
}

/// What is left to say where a request panicked: a mistake of ours, of which the panic's own message tells in the log.
pub(super) fn after_panic() -> Response {
    let id = Uuid::now_v7().simple().to_string();
    let error = failure_error(&Failure::internal("a request panicked"), Vec::new(), &id);
    let body = serde_json::to_vec(&Written { data: None, errors: &[error] }).unwrap_or_default();
    let content_type = [(CONTENT_TYPE, MediaType::Json.content_type())];
    (StatusCode::INTERNAL_SERVER_ERROR, content_type, body).into_response()
}
