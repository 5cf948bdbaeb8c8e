//! The front: routes, body, deadline, headers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::routing::{any, get, post};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::graphiql::GraphiQl;
use super::over_websocket::Sockets;
use super::overload::Works;
use super::persisted::Persisted;
use super::token::Tokens;
use super::{Schema, measure, over_http, schema, sdl, webhook};
use crate::config::{ConfigError, Settings, WithoutRedis};
use crate::cooldown::Cooldown;
use crate::operations::App;

/// How long a health check waits for the database or for Redis.
const HEALTH_LIMIT: Duration = Duration::from_secs(1);

/// How long an open connection may hold up the shutdown once new ones are refused.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// How long a browser remembers a preflight; browsers cap it at two hours or less.
const PREFLIGHT_LIFETIME: Duration = Duration::from_hours(1);

/// A server, ready to be run.
pub struct Server {
    listener: TcpListener,
    front: Arc<Front>,
    page: GraphiQl,
}

/// Tells a server to stop.
pub type Shutdown = CancellationToken;

/// What every request is served with.
pub(super) struct Front {
    pub(super) schema: Schema,
    pub(super) persisted: Arc<Persisted>,
    pub(super) app: App,
    pub(super) cooldown: Cooldown,
    pub(super) tokens: Tokens,
    /// The money work under way.
    pub(super) works: Works,
    /// Places for requests, whatever they ask.
    pub(super) requests: Semaphore,
    /// The open WebSockets.
    pub(super) sockets: Sockets,
    /// Told when no answer is begun any more.
    pub(super) stopping: Shutdown,
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
        measure::begin(&app.settings);
        let persisted = Arc::new(Persisted::open(&app.settings)?);
        let schema = schema(&app, &cooldown, persisted.clone())?;
        let works = Works::new(&app.settings);
        let requests = Semaphore::new(app.settings.request.most_at_once as usize);
        let (sockets, stopping) = (Sockets::new(&app.settings.sockets), Shutdown::new());
        let draining = AtomicBool::new(false);
        let front = Front { schema, persisted, app, cooldown, tokens, works, requests, sockets, stopping, draining };
        Ok(Self { listener, front: Arc::new(front), page: GraphiQl::new(demo_members) })
    }

    /// Where it listens.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is told to stop. Then `/readyz` says so for a while, no new connection is taken, and the work under
    /// way is finished. The ledger stays open, for the workers may still write.
    pub async fn run(self, shutdown: Shutdown) -> std::io::Result<()> {
        let Self { listener, front, page } = self;
        let demo = page.is_demo();
        let routes = Router::new()
            .route("/graphql", any(over_http::graphql))
            .route_layer(cross_origin(&front.settings().cors.origins, demo))
            .route("/webhooks/funding/{provider}", post(webhook::funding))
            .route("/schema.graphql", get(async || ([(CONTENT_TYPE, "text/plain; charset=utf-8")], sdl())))
            .route("/docs/scalars", get(async || ([(CONTENT_TYPE, "text/plain; charset=utf-8")], SCALARS)))
            .route("/livez", get(async || "ok"))
            .route("/readyz", get(readyz))
            .with_state(front.clone())
            .merge(page.router())
            .layer(CatchPanicLayer::custom(|_| over_http::after_panic()))
            .layer(axum::middleware::from_fn(measure::http));
        let stop = front.stopping.clone();
        let looking = tokio::spawn(look_at_watched(front.app.clone(), stop.clone()));
        let serving = axum::serve(listener, routes).with_graceful_shutdown(stop.clone().cancelled_owned());
        let serving = tokio::spawn(async move { serving.await });
        let keeping = tokio::spawn({
            let front = front.clone();
            async move { front.tokens.keep_fresh().await }
        });
        shutdown.cancelled().await;
        front.draining.store(true, Ordering::Relaxed);
        tracing::info!("stopping: no longer ready, finishing what is under way");
        tokio::time::sleep(Duration::from_millis(front.settings().request.drain_ms)).await;
        stop.cancel();
        if tokio::time::timeout(LAST_ANSWERS, serving).await.is_err() {
            tracing::warn!("a connection did not end by itself");
        }
        front.sockets.ended().await;
        keeping.abort();
        front.works.finish().await;
        // It ends when it is told to stop, and has nothing to say.
        let _ = looking.await;
        Ok(())
    }
}

impl Front {
    pub(super) fn settings(&self) -> &Settings {
        &self.app.settings
    }
}

/// Which pages of other origins may read answers. Tokens travel in a header that a page must set itself, so no credentials
/// of a visitor's browser are ever allowed.
fn cross_origin(origins: &[String], demo: bool) -> CorsLayer {
    let listed = origins.to_vec();
    let allowed = AllowOrigin::predicate(move |origin: &HeaderValue, _: &Parts| {
        let Ok(origin) = origin.to_str() else { return false };
        listed.iter().any(|listed| listed == origin) || (demo && is_localhost(origin))
    });
    let exposed = [axum::http::header::RETRY_AFTER, over_http::REQUEST_ID];
    let asked = ["content-type", "authorization", "traceparent", "tracestate", "idempotency-key", "x-request-id"];
    CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(asked.map(HeaderName::from_static))
        .expose_headers(exposed)
        .max_age(PREFLIGHT_LIFETIME)
}

/// An origin of this machine, at whatever port a developer's page is served.
fn is_localhost(origin: &str) -> bool {
    let host = origin.strip_prefix("http://").map(|rest| rest.rsplit_once(':').map_or(rest, |(host, _)| host));
    host.is_some_and(|host| ["localhost", "127.0.0.1", "[::1]"].contains(&host))
}

/// Announcements of movements may be lost: so wallets that somebody watches are looked at every few seconds.
async fn look_at_watched(app: App, stop: Shutdown) {
    let mut clock = tokio::time::interval(Duration::from_millis(app.settings.sockets.look_again_ms));
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = clock.tick() => {}
        }
        if let Err(failure) = app.ledger.look_at_watched().await {
            tracing::warn!(?failure, "the watched wallets could not be looked at");
        }
    }
}

/// What the `@specifiedBy` URLs of the schema point to.
const SCALARS: &str = include_str!("../../docs/scalars.md");

/// Whether this process should get requests. Without the database or the keys of tokens it cannot work; without Redis it
/// can, unless some action is set to refuse then.
async fn readyz(State(front): State<Arc<Front>>) -> (StatusCode, &'static str) {
    if front.draining.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "stopping");
    }
    if !front.tokens.can_be_read() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the keys of tokens are not there yet");
    }
    let database = front.app.ledger.ping(HEALTH_LIMIT).await;
    let cooldown = &front.settings().cooldown;
    let needed = cooldown.actions.values().any(|action| action.without_redis == WithoutRedis::Refuse);
    match (database, front.cooldown.answers() || !cooldown.enabled) {
        (false, _) => (StatusCode::SERVICE_UNAVAILABLE, "the database does not answer"),
        (true, false) if needed => (StatusCode::SERVICE_UNAVAILABLE, "Redis does not answer"),
        (true, false) => (StatusCode::OK, "degraded: Redis does not answer, cooldowns live in this process"),
        (true, true) => (StatusCode::OK, "ok"),
    }
}
