//! Requests that are written by hand on a connection of their own, so that a client can hang up anywhere.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{World, token};

/// A client that is about to hang up.
pub(crate) struct Client {
    stream: TcpStream,
}

impl Client {
    /// Connects to the world's server.
    pub(crate) async fn of(world: &World) -> Self {
        let address = world.address().trim_start_matches("http://");
        let stream = TcpStream::connect(address).await.expect("the server listens");
        // A small request must not wait for the answer to an earlier one.
        stream.set_nodelay(true).expect("a fresh connection");
        Self { stream }
    }

    /// Connects and sends a whole request.
    pub(crate) async fn asking(world: &World, member: &str, body: &Value) -> Self {
        let mut client = Self::of(world).await;
        client.send(&request(member, body)).await;
        client
    }

    /// Sends a request or a part of it.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.expect("the server reads");
    }

    /// Hangs up on a request that is at work, and waits until the server has given it up: it closes without an answer.
    pub(crate) async fn hang_up(self) {
        assert_eq!(self.last_words().await, "", "the server gave the request up");
    }

    /// Hangs up on a request that is not complete. The server may say so, in HTTP, before it closes.
    pub(crate) async fn hang_up_early(self) {
        let words = self.last_words().await;
        assert!(words.is_empty() || words.starts_with("HTTP/1.1 400"), "{words}");
    }

    async fn last_words(mut self) -> String {
        self.stream.shutdown().await.expect("the connection is open");
        let mut words = Vec::new();
        let closing = self.stream.read_to_end(&mut words);
        // A reset is a close as well.
        let _ = tokio::time::timeout(Duration::from_secs(10), closing).await.expect("the server closes");
        String::from_utf8_lossy(&words).into_owned()
    }
}

/// The bytes of a request to `/graphql`.
pub(crate) fn request(member: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let head = format!(
        "POST /graphql HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        token(member),
        body.len()
    );
    (head + &body).into_bytes()
}
