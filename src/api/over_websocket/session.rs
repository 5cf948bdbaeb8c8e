//! What a client says, and when it has been silent for too long.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use chrono::Utc;
use futures_util::StreamExt;
use futures_util::stream::SplitStream;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until};
use tracing::Instrument;

use super::operation::{Operation, Running};
use super::{Close, Seat};
use crate::api::caller::Caller;
use crate::api::http::Front;
use crate::api::parameters::Parameters;
use crate::api::span;
use crate::api::token::NoCaller;
use crate::traces::{Origin, TRACEPARENT, TRACESTATE};

/// The longest id of an operation. The protocol sets none; clients send a UUID or a number.
const LONGEST_ID: usize = 128;

/// Further away than any socket lives, and near enough for a timer.
const LONGEST_SLEEP: Duration = Duration::from_hours(365 * 24);

/// A message of a client.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Received {
    ConnectionInit { payload: Option<Map<String, Value>> },
    Ping,
    Pong,
    Subscribe { id: String, payload: Parameters },
    Complete { id: String },
}

/// A socket's state, as far as its client made it.
pub(super) struct Session {
    front: Arc<Front>,
    out: Sender<Message>,
    seat: Seat,
    caller: Option<Caller>,
    /// The trace that operations go on with, unless they name another.
    origin: Option<Origin>,
    /// When the socket is closed: until it is known whose it is, the end of the client's time to say so; then its token's.
    until: Instant,
    running: Arc<Running>,
    /// Ends the operations when it is dropped.
    tasks: JoinSet<()>,
}

impl Session {
    pub(super) fn new(front: Arc<Front>, out: Sender<Message>, seat: Seat, origin: Option<Origin>) -> Self {
        let settings = &front.settings().sockets;
        let until = Instant::now() + Duration::from_millis(settings.init_timeout_ms);
        let running = Arc::new(Running::new(settings.operations as usize));
        Self { front, out, seat, caller: None, origin, until, running, tasks: JoinSet::new() }
    }

    /// Listens until the client is gone, or there is a reason to close.
    pub(super) async fn listen(&mut self, stream: &mut SplitStream<WebSocket>) -> Option<Close> {
        let period = Duration::from_millis(self.front.settings().sockets.ping_ms);
        let mut ping = interval_at(Instant::now() + period, period);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (stopping, mut heard) = (self.front.stopping.clone(), Instant::now());
        loop {
            tokio::select! {
                frame = stream.next() => {
                    heard = Instant::now();
                    match self.take(frame).await {
                        Ok(()) => {}
                        Err(close) => return close,
                    }
                }
                _ = ping.tick() => {
                    if heard.elapsed() >= 2 * period {
                        return None;
                    }
                    self.out.send(Message::Ping(Vec::new().into())).await.ok()?;
                }
                () = sleep_until(self.until) => {
                    return Some(if self.caller.is_some() { Close::TOKEN_EXPIRED } else { Close::NOT_INITIALISED });
                }
                Some(_) = self.tasks.join_next(), if !self.tasks.is_empty() => {}
                () = stopping.cancelled() => return Some(Close::GOING_AWAY),
            }
        }
    }

    async fn take(&mut self, frame: Option<Result<Message, axum::Error>>) -> Result<(), Option<Close>> {
        match frame {
            Some(Ok(Message::Text(text))) => self.receive(&text).await.map_err(Some),
            Some(Ok(Message::Binary(_))) => Err(Some(Close::BAD_MESSAGE)),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(()),
            Some(Err(error)) if is_too_large(&error) => Err(Some(Close::TOO_LARGE)),
            Some(Ok(Message::Close(_)) | Err(_)) | None => Err(None),
        }
    }

    async fn receive(&mut self, text: &str) -> Result<(), Close> {
        match serde_json::from_str(text).map_err(|_| Close::BAD_MESSAGE)? {
            Received::ConnectionInit { payload } => self.sign_in(payload.unwrap_or_default()).await,
            Received::Ping => self.send(r#"{"type":"pong"}"#).await,
            Received::Pong => Ok(()),
            Received::Subscribe { id, payload } => self.begin(id, payload).await,
            Received::Complete { id } => {
                self.running.cancel(&id);
                Ok(())
            }
        }
    }

    /// Nobody is anonymous here: a client that forgot its token should learn so from the code that makes it fetch one.
    async fn sign_in(&mut self, payload: Map<String, Value>) -> Result<(), Close> {
        if self.caller.is_some() {
            return Err(Close::INITIALISED_TWICE);
        }
        let sent = payload.iter().find(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        let authorization = sent.and_then(|(_, value)| value.as_str()).ok_or(Close::FORBIDDEN)?;
        let caller = self.front.tokens.caller_of(authorization).await.map_err(|reason| not_signed_in(&reason))?;
        let (Some(member), Some(good_until)) = (caller.member(), caller.good_until()) else {
            return Err(Close::FORBIDDEN);
        };
        if !self.seat.among(member) {
            return Err(Close::TOO_MANY);
        }
        // A token that has ended in this very moment is good for no time at all.
        self.until = Instant::now() + (good_until - Utc::now()).to_std().unwrap_or_default().min(LONGEST_SLEEP);
        self.caller = Some(caller);
        let text = |name: &str| payload.get(name).and_then(Value::as_str);
        self.origin = origin_in(text).or(self.origin.take());
        self.send(r#"{"type":"connection_ack"}"#).await
    }

    async fn begin(&mut self, id: String, parameters: Parameters) -> Result<(), Close> {
        let caller = self.caller.clone().ok_or(Close::UNAUTHORIZED)?;
        if id.is_empty() || id.len() > LONGEST_ID {
            return Err(Close::BAD_MESSAGE);
        }
        let graphql = parameters.into_request().ok_or(Close::BAD_MESSAGE)?;
        let own = |name: &str| match graphql.extensions.get(name)? {
            async_graphql::Value::String(text) => Some(text.as_str()),
            _ => None,
        };
        let span = span::of_operation(origin_in(own).as_ref().or(self.origin.as_ref()));
        let place = self.running.begin(&id).map_err(|_| Close::DUPLICATE)?;
        let operation = Operation::new(self.front.clone(), self.out.clone(), self.running.clone(), id);
        match place {
            Some(place) => drop(self.tasks.spawn(operation.run(place, caller, graphql).instrument(span))),
            None => operation.refuse().await,
        }
        Ok(())
    }

    /// If there is nobody to take it, the next read says so.
    async fn send(&self, message: &'static str) -> Result<(), Close> {
        let _ = self.out.send(Message::Text(message.into())).await;
        Ok(())
    }
}

/// A browser can set no header on a socket, so the two stand in `connection_init`, or in an operation's `extensions`.
fn origin_in<'a>(text: impl Fn(&str) -> Option<&'a str>) -> Option<Origin> {
    Origin::read(text(TRACEPARENT)?, text(TRACESTATE).unwrap_or_default())
}

/// Where the keys of tokens cannot be fetched, the client comes back later; a token that is not good, it must replace.
fn not_signed_in(reason: &NoCaller) -> Close {
    tracing::info!(?reason, "refused: a WebSocket's caller is not known");
    match reason {
        NoCaller::BadToken(_) => Close::FORBIDDEN,
        NoCaller::Unavailable(_) => Close::UNAVAILABLE,
    }
}

fn is_too_large(error: &axum::Error) -> bool {
    // The library that reads frames is not imported for this one name.
    std::error::Error::source(error).is_some_and(|cause| cause.to_string().contains("too long"))
}
