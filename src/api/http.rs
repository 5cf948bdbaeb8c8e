//! The front: routes, body, deadline, headers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_graphql::{PathSegment, Response as Answer, Value};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request as HttpRequest, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_http::catch_panic::CatchPanicLayer;
use uuid::Uuid;

use super::boundary::{self, failure_error};
use super::graphiql::GraphiQl;
use super::token::Tokens;
use super::work::Request;
use super::{Schema, schema, sdl};
use crate::config::{ConfigError, Settings, WithoutRedis};
use crate::cooldown::Cooldown;
use crate::error::{Deadline, Failure};
use crate::operations::App;

/// The header that names a request, in and out.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id that is taken over from a caller; longer ones are replaced.
const LONGEST_REQUEST_ID: usize = 128;

/// How long after the deadline an answer still waits for reads: longer than the work has to say how it ended.
const GRACE: Duration = Duration::from_millis(500);

/// How long a health check waits for the database or for Redis.
const HEALTH_LIMIT: Duration = Duration::from_secs(1);

/// How long an open connection may hold up the shutdown once new ones are refused.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// A server, ready to be run.
pub struct Server {
    listener: TcpListener,
    front: Arc<Front>,
    page: GraphiQl,
}

/// Tells a server to stop.
pub type Shutdown = CancellationToken;

struct Front {
    schema: Schema,
    app: App,
    cooldown: Cooldown,
    tokens: Tokens,
    tasks: TaskTracker,
    draining: AtomicBool,
}

impl Server {
    /// Puts a server together. `demo_members` are the members and tokens that the page offers; none outside the demo.
    pub fn new(
        listener: TcpListener,
        app: App,
        cooldown: Cooldown,
        tokens: Tokens,
        demo_members: &[(String, String)],
    ) -> Result<Self, ConfigError> {
        let schema = schema(&app, &cooldown)?;
        let (tasks, draining) = (TaskTracker::new(), AtomicBool::new(false));
        let front = Front { schema, app, cooldown, tokens, tasks, draining };
        Ok(Self { listener, front: Arc::new(front), page: GraphiQl::new(demo_members) })
    }

    /// Where it listens.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is told to stop. Then `/readyz` says so for a while, no new connection is taken, and the work under
    /// way is finished.
    pub async fn run(self, shutdown: Shutdown) -> std::io::Result<()> {
        let Self { listener, front, page } = self;
        let routes = Router::new()
            .route("/graphql", post(graphql))
            .route("/schema.graphql", get(async || ([(CONTENT_TYPE, "text/plain; charset=utf-8")], sdl())))
            .route("/docs/scalars", get(async || ([(CONTENT_TYPE, "text/plain; charset=utf-8")], SCALARS)))
            .route("/livez", get(async || "ok"))
            .route("/readyz", get(readyz))
            .with_state(front.clone())
            .merge(page.router())
            .layer(CatchPanicLayer::custom(|_| internal_error()));
        let stop = Shutdown::new();
        let serving = axum::serve(listener, routes).with_graceful_shutdown(stop.clone().cancelled_owned());
        let serving = tokio::spawn(async move { serving.await });
        shutdown.cancelled().await;
        front.draining.store(true, Ordering::Relaxed);
        tracing::info!("stopping: no longer ready, finishing what is under way");
        tokio::time::sleep(Duration::from_millis(front.settings().request.drain_ms)).await;
        stop.cancel();
        if tokio::time::timeout(LAST_ANSWERS, serving).await.is_err() {
            tracing::warn!("a connection did not end by itself");
        }
        front.tasks.close();
        front.tasks.wait().await;
        front.app.ledger.close().await;
        Ok(())
    }
}

impl Front {
    fn settings(&self) -> &Settings {
        &self.app.settings
    }
}

/// What the `@specifiedBy` URLs of the schema point to.
const SCALARS: &str = include_str!("../../docs/scalars.md");

/// `POST /graphql`.
async fn graphql(State(front): State<Arc<Front>>, request: HttpRequest) -> Response {
    let id = request_id(request.headers());
    let mut response = match answer(&front, request, &id).await {
        Ok(answered) | Err(answered) => answered,
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REQUEST_ID, HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("")));
    response
}

/// The answer, or the answer that the request as a whole is refused.
async fn answer(front: &Front, request: HttpRequest, id: &str) -> Result<Response, Response> {
    let deadline = Deadline::within(front.settings().deadline());
    let (parts, body) = request.into_parts();
    if !is_json(&parts.headers) {
        let message = "Send the request as application/json.";
        return Err(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, "BAD_REQUEST", message, id));
    }
    let caller = front.tokens.caller(&parts.headers).map_err(|reason| {
        tracing::info!(%reason, request_id = id, "refused: the token is not good");
        unauthenticated(id)
    })?;
    let graphql = read_body(front, body, deadline, id).await?;
    let request = Request::new(id.to_owned(), caller, deadline, front.tasks.clone());
    Ok(execute(front, graphql, request).await)
}

async fn execute(front: &Front, graphql: async_graphql::Request, request: Request) -> Response {
    let (id, deadline) = (request.id.clone(), request.deadline);
    let work_began = request.work_began.clone();
    let executing = front.schema.execute(graphql.data(request));
    if let Ok(mut answer) = tokio::time::timeout_at((deadline.instant() + GRACE).into(), executing).await {
        boundary::present(&mut answer, &id);
        return to_http(&answer);
    }
    // Reads hang. Whatever work began goes on in its task, so nobody may say that nothing was done.
    let late = "the deadline passed before the answer was complete";
    let began = work_began.load(Ordering::Relaxed);
    let failure = if began { Failure::unknown(late) } else { Failure::unavailable(late) };
    to_http(&Answer::from_errors(vec![failure_error(&failure, Vec::new(), &id)]))
}

/// Reads a request's JSON: an object, never an array, whose operations would run side by side without a limit.
async fn read_body(
    front: &Front,
    body: Body,
    deadline: Deadline,
    id: &str,
) -> Result<async_graphql::Request, Response> {
    let limit = front.settings().request.body_limit_bytes;
    let bad = |message: &str| refusal(StatusCode::BAD_REQUEST, "BAD_REQUEST", message, id);
    let reading = tokio::time::timeout_at(deadline.instant().into(), axum::body::to_bytes(body, limit));
    let bytes = match reading.await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) if is_too_large(&error) => {
            let message = format!("The body is larger than {limit} bytes.");
            return Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, "BAD_REQUEST", &message, id));
        }
        Ok(Err(_)) => return Err(bad("The body could not be read.")),
        Err(_) => {
            let message = "The body did not arrive in time.";
            return Err(refusal(StatusCode::REQUEST_TIMEOUT, "BAD_REQUEST", message, id));
        }
    };
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
        return Err(bad("Batches are not accepted; send one operation in one request."));
    }
    serde_json::from_slice(&bytes).map_err(|_| bad("The body must be a JSON object with a \"query\"."))
}

fn is_too_large(error: &axum::Error) -> bool {
    use std::error::Error;
    error.source().is_some_and(<dyn Error>::is::<http_body_util::LengthLimitError>)
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(media_type)) = headers.get(CONTENT_TYPE).map(HeaderValue::to_str) else { return false };
    media_type.split(';').next().is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

/// The caller's id for the request, if it can stand in a log line; otherwise one of ours.
fn request_id(headers: &HeaderMap) -> String {
    let sent = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    match sent
        .filter(|id| (1..=LONGEST_REQUEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        Some(id) => id.to_owned(),
        None => Uuid::now_v7().simple().to_string(),
    }
}

/// An answer's body. Without `data` where nothing was executed, as the GraphQL specification wants (section 7.1.2).
#[derive(Serialize)]
struct Written<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Value>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [async_graphql::ServerError],
}

fn to_http(answer: &Answer) -> Response {
    let executed = answer.data != Value::Null || answer.errors.iter().any(|error| !error.path.is_empty());
    let written = Written { data: executed.then_some(&answer.data), errors: &answer.errors };
    let mut response = json_response(StatusCode::OK, &written);
    if let Some(seconds) = retry_after(answer) {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// The longest wait that an error of the answer asks for, in whole seconds, rounded up.
fn retry_after(answer: &Answer) -> Option<u64> {
    let wait = |error: &async_graphql::ServerError| match error.extensions.as_ref()?.get("retryAfterMs")? {
        Value::Number(milliseconds) => milliseconds.as_u64(),
        _ => None,
    };
    answer.errors.iter().filter_map(wait).max().map(|milliseconds| milliseconds.div_ceil(1000))
}

fn json_response(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => (status, [(CONTENT_TYPE, "application/json; charset=utf-8")], bytes).into_response(),
        Err(error) => {
            tracing::error!(%error, "an answer could not be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

fn refusal(status: StatusCode, code: &str, message: &str, id: &str) -> Response {
    let error = json!({ "message": message, "extensions": { "code": code, "requestId": id } });
    json_response(status, &json!({ "errors": [error] }))
}

fn unauthenticated(id: &str) -> Response {
    let message = "The bearer token is malformed, expired or not ours.";
    let mut response = refusal(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", message, id);
    // RFC 6750, section 3.1.
    let challenge = HeaderValue::from_static("Bearer error=\"invalid_token\"");
    response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    response
}

fn internal_error() -> Response {
    let id = Uuid::now_v7().simple().to_string();
    let failure = Failure::internal("a request panicked");
    let mut answer = Answer::from_errors(vec![failure_error(&failure, Vec::<PathSegment>::new(), &id)]);
    answer.data = Value::Null;
    let mut response = to_http(&answer);
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

/// Whether this process should get requests. Without the database it cannot work; without Redis it can, unless some action
/// is set to refuse then.
async fn readyz(State(front): State<Arc<Front>>) -> (StatusCode, &'static str) {
    if front.draining.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping");
    }
    let redis = tokio::time::timeout(HEALTH_LIMIT, front.cooldown.answers());
    let (database, redis) = tokio::join!(front.app.ledger.ping(HEALTH_LIMIT), redis);
    let cooldown = &front.settings().cooldown;
    let needed = cooldown.actions.values().any(|action| action.without_redis == WithoutRedis::Refuse);
    match (database, redis.unwrap_or(false) || !cooldown.enabled) {
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "the database does not answer"),
        (true, false) if needed => (StatusCode::SERVICE_UNAVAILABLE, "Redis does not answer"),
        (true, false) => (StatusCode::OK, "degraded: Redis does not answer, cooldowns live in this process"),
        (true, true) => (StatusCode::OK, "ok"),
    }
}
