//! A WebSocket as a client holds it, frame by frame.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::{World, token};

/// Longer than anything takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// An open WebSocket.
pub(crate) struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    /// Opens one that has said nothing yet.
    pub(crate) async fn open(world: &World) -> Self {
        Self::try_open(world, Some("graphql-transport-ws")).await.expect("the handshake succeeds")
    }

    /// Tries to open one under a subprotocol; what the server says instead.
    pub(crate) async fn try_open(world: &World, protocol: Option<&str>) -> Result<Self, String> {
        Self::try_open_at(world.address(), protocol).await
    }

    async fn try_open_at(address: &str, protocol: Option<&str>) -> Result<Self, String> {
        let host = address.strip_prefix("http://").unwrap();
        let mut request = format!("ws://{host}/graphql").into_client_request().unwrap();
        if let Some(protocol) = protocol {
            request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
        }
        let stream = TcpStream::connect(host).await.expect("the server listens");
        let opened = tokio_tungstenite::client_async(request, stream).await;
        opened.map(|(socket, _)| Self(socket)).map_err(|error| error.to_string())
    }

    /// Opens one and says whose it is.
    pub(crate) async fn of(world: &World, member: &str) -> Self {
        Self::with_token(world, &token(member)).await
    }

    pub(crate) async fn with_token(world: &World, token: &str) -> Self {
        Self::at(world.address(), token).await
    }

    /// Opens one at a server's address.
    pub(crate) async fn at(address: &str, token: &str) -> Self {
        let opened = Self::try_open_at(address, Some("graphql-transport-ws")).await;
        let mut socket = opened.expect("the handshake succeeds");
        socket
            .send(json!({ "type": "connection_init", "payload": { "Authorization": format!("Bearer {token}") } }))
            .await;
        assert_eq!(socket.next().await, json!({ "type": "connection_ack" }));
        socket
    }

    /// Sends a message; the server may be gone.
    pub(crate) async fn send(&mut self, message: Value) {
        let _ = self.0.send(Message::text(message.to_string())).await;
    }

    pub(crate) async fn send_raw(&mut self, message: Message) {
        let _ = self.0.send(message).await;
    }

    /// Begins an operation.
    pub(crate) async fn subscribe(&mut self, id: &str, query: &str, variables: Value) {
        self.send(json!({ "id": id, "type": "subscribe", "payload": { "query": query, "variables": variables } }))
            .await;
    }

    /// The next message.
    pub(crate) async fn next(&mut self) -> Value {
        match self.received().await {
            Ok(message) => message,
            Err(close) => panic!("the socket was closed: {close:?}"),
        }
    }

    /// The payload of the next message, which is a `next` of this operation.
    pub(crate) async fn event(&mut self, id: &str) -> Value {
        let message = self.next().await;
        assert_eq!((&message["type"], &message["id"]), (&json!("next"), &json!(id)), "{message}");
        message["payload"].clone()
    }

    /// The code that the server closed with; None if it went without a word.
    pub(crate) async fn closed(&mut self) -> Option<u16> {
        loop {
            if let Err(close) = self.received().await {
                return close;
            }
        }
    }

    /// The next message, or how the socket ended. Pings are no answer, however many come.
    pub(crate) async fn received(&mut self) -> Result<Value, Option<u16>> {
        tokio::time::timeout(PATIENCE, self.next_but_pings()).await.expect("the server says something")
    }

    async fn next_but_pings(&mut self) -> Result<Value, Option<u16>> {
        loop {
            match self.0.next().await {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).expect("JSON")),
                Some(Ok(Message::Close(frame))) => return Err(frame.map(|frame| frame.code.into())),
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(None),
            }
        }
    }

    /// Whether nothing but pings arrives for so long.
    pub(crate) async fn is_silent_for(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.received()).await.is_err()
    }

    /// Cuts the connection as a lost network does: no close frame, and the other side is told that it is reset.
    pub(crate) fn cut(self) {
        let stream = self.0.get_ref();
        let _ = stream.set_zero_linger();
    }
}
