//! GraphQL over WebSocket, after the protocol graphql-transport-ws: <https://github.com/enisdenjo/graphql-ws/blob/master/PROTOCOL.md>.
//!
//! A socket is one task: [`session`] reads, [`write`] sends what waits in a short queue. Each operation is a task of its own
//! ([`operation`]) that waits while the queue is full, so a slow reader holds up its own operations and nothing else; one
//! that takes nothing for too long is dropped. When the socket ends, its operations end with it, except for money work, which
//! is nobody's to interrupt.
//!
//! A page of another origin may open a socket, as any program may: what opens the books is the token in `connection_init`,
//! and a browser adds none by itself.

mod operation;
mod session;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::stream::SplitSink;
use futures_util::{SinkExt, StreamExt};
use tokio::sync::mpsc::{self, Receiver};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::http::Front;
use super::span;
use crate::config::SocketSettings;
use crate::member::Member;
use crate::traces::Origin;
use session::Session;

/// The subprotocol, as a client must offer it.
const PROTOCOL: &str = "graphql-transport-ws";

/// How many messages may wait for a slow reader before its operations wait as well.
const QUEUE: usize = 16;

/// Buffers of a socket, in bytes. An idle one costs little; a larger message makes them grow.
const BUFFER: usize = 4 << 10;

/// How long a socket may take to hear why it is closed.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Answers a request to become a WebSocket.
pub(super) fn upgrade(front: Arc<Front>, upgrade: WebSocketUpgrade, headers: &HeaderMap) -> Response {
    let upgrade = upgrade.protocols([PROTOCOL]);
    if upgrade.selected_protocol().is_none() {
        return (StatusCode::BAD_REQUEST, "Offer the subprotocol graphql-transport-ws.").into_response();
    }
    let Some(seat) = front.sockets.seat() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "Too many WebSockets are open.").into_response();
    };
    let origin = span::of_headers(headers);
    let largest = front.settings().sockets.message_bytes;
    let upgrade = upgrade.max_message_size(largest).max_frame_size(largest);
    let upgrade = upgrade.read_buffer_size(BUFFER).write_buffer_size(BUFFER);
    upgrade.on_upgrade(|socket| async move {
        let tasks = front.sockets.tasks.clone();
        tasks.track_future(serve(front, socket, seat, origin)).await;
    })
}

/// Why the server closes a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Close(u16, &'static str);

impl Close {
    /// RFC 6455, section 7.4.1.
    const GOING_AWAY: Self = Self(1001, "The server stops.");
    const TOO_LARGE: Self = Self(1009, "The message is too large.");
    /// The protocol's own codes.
    const BAD_MESSAGE: Self = Self(4400, "Send a message of the protocol, as JSON text.");
    const UNAUTHORIZED: Self = Self(4401, "Unauthorized");
    const FORBIDDEN: Self = Self(4403, "Forbidden");
    const TOKEN_EXPIRED: Self = Self(4403, "The token has expired.");
    const NOT_INITIALISED: Self = Self(4408, "Connection initialisation timeout");
    const DUPLICATE: Self = Self(4409, "An operation of this id is running.");
    const INITIALISED_TWICE: Self = Self(4429, "Too many initialisation requests");
    /// The IANA registry's "Try Again Later": clients come back after a pause.
    const TOO_MANY: Self = Self(1013, "The member has too many connections.");
    const UNAVAILABLE: Self = Self(1013, "Nobody can tell now whether the token is good.");

    fn message(self) -> Message {
        Message::Close(Some(CloseFrame { code: self.0, reason: self.1.into() }))
    }
}

/// Serves a socket to its end.
async fn serve(front: Arc<Front>, socket: WebSocket, seat: Seat, origin: Option<Origin>) {
    let send_limit = Duration::from_millis(front.settings().sockets.send_timeout_ms);
    let (sink, mut stream) = socket.split();
    let (out, queue) = mpsc::channel(QUEUE);
    let writing = write(sink, queue, send_limit);
    tokio::pin!(writing);
    let mut session = Session::new(front, out.clone(), seat, origin);
    let close = tokio::select! {
        close = session.listen(&mut stream) => close,
        () = &mut writing => return,
    };
    // Its operations end here.
    drop(session);
    let Some(close) = close else { return };
    let last_word = async {
        // Whether it arrives is the client's affair.
        let _ = out.send(close.message()).await;
        // What the client has still sent is read, for a connection that ends on bytes unread is reset, and the reason lost.
        while let Some(Ok(_)) = stream.next().await {}
    };
    let _ = tokio::time::timeout(LAST_WORD, async { tokio::join!(last_word, writing) }).await;
}

/// Sends what waits, until there is nobody to take it.
async fn write(mut sink: SplitSink<WebSocket, Message>, mut queue: Receiver<Message>, limit: Duration) {
    while let Some(message) = queue.recv().await {
        let last = matches!(message, Message::Close(_));
        match tokio::time::timeout(limit, sink.send(message)).await {
            Ok(Ok(())) if !last => {}
            Ok(_) => return,
            Err(_) => {
                metrics::counter!("largesse_sockets_too_slow_total").increment(1);
                return;
            }
        }
    }
}

/// The sockets of a process: how many there are, and whose.
pub(super) struct Sockets {
    places: Arc<Semaphore>,
    members: Arc<Mutex<HashMap<Uuid, u32>>>,
    most_per_member: u32,
    tasks: TaskTracker,
}

/// A socket's place in the process and, once it is known whose it is, among the member's. Given back when it is dropped.
struct Seat {
    _place: OwnedSemaphorePermit,
    members: Arc<Mutex<HashMap<Uuid, u32>>>,
    most_per_member: u32,
    member: Option<Uuid>,
}

impl Sockets {
    pub(super) fn new(settings: &SocketSettings) -> Self {
        Self {
            places: Arc::new(Semaphore::new(settings.most_at_once as usize)),
            members: Arc::default(),
            most_per_member: settings.most_per_member,
            tasks: TaskTracker::new(),
        }
    }

    fn seat(&self) -> Option<Seat> {
        let place = self.places.clone().try_acquire_owned().ok()?;
        metrics::gauge!("largesse_sockets").increment(1.0);
        let (members, most_per_member) = (self.members.clone(), self.most_per_member);
        Some(Seat { _place: place, members, most_per_member, member: None })
    }

    /// Waits until all have ended, once they were told to.
    pub(super) async fn ended(&self) {
        self.tasks.close();
        if tokio::time::timeout(2 * LAST_WORD, self.tasks.wait()).await.is_err() {
            tracing::warn!("a WebSocket did not end by itself");
        }
    }
}

impl Seat {
    /// Seats the socket among the member's; false where there is no place.
    fn among(&mut self, member: &Member) -> bool {
        let mut members = lock(&self.members);
        let seated = members.get(&member.id()).copied().unwrap_or_default();
        if seated >= self.most_per_member {
            return false;
        }
        members.insert(member.id(), seated + 1);
        self.member = Some(member.id());
        true
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        metrics::gauge!("largesse_sockets").decrement(1.0);
        let Some(member) = self.member else { return };
        let mut members = lock(&self.members);
        match members.get_mut(&member) {
            Some(seated) if *seated > 1 => *seated -= 1,
            _ => drop(members.remove(&member)),
        }
    }
}

fn lock(members: &Mutex<HashMap<Uuid, u32>>) -> MutexGuard<'_, HashMap<Uuid, u32>> {
    // No code panics between two states while it holds the lock.
    members.lock().unwrap_or_else(PoisonError::into_inner)
}
