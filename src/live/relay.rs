//! Announcements between processes: one Redis channel that all of them publish to and listen at.

use std::time::Duration;

use deadpool_redis::redis::aio::{MultiplexedConnection, PubSubSink, PubSubStream};
use deadpool_redis::redis::{AsyncConnectionConfig, Client, Msg, RedisError, Value, cmd};
use futures_util::StreamExt;
use tokio::sync::mpsc::{self, Receiver, Sender};
use uuid::Uuid;

use super::{Version, Watched};
use crate::config::{ConfigError, Settings};
use crate::redis::{server, unusable};

/// How many movements may wait to be published. What does not fit is dropped: whoever watches looks by itself soon.
const MOST_WAITING: usize = 4096;

/// How many movements one message carries at most: about 16 kB.
const MOST_IN_A_MESSAGE: usize = 256;

/// How long to wait before Redis is tried again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// How long a listener that hears nothing waits before it asks whether anybody is still there.
const SILENCE: Duration = Duration::from_secs(5);

/// The way to other processes. Clones share it.
#[derive(Clone)]
pub(super) struct Relay {
    outgoing: Sender<(Uuid, Version)>,
}

impl Relay {
    /// Connects in the background, where the settings name a Redis. Listening and publishing end when the last clone of
    /// the relay is dropped.
    pub(super) fn open(settings: &Settings, watched: Watched) -> Result<Option<Self>, ConfigError> {
        let Some(url) = &settings.redis_url else { return Ok(None) };
        let client = Client::open(server(url, settings.redis_ca_file.as_deref())?).map_err(|error| unusable(&error))?;
        let limit = Duration::from_millis(settings.cooldown.connect_timeout_ms);
        let channel = format!("{}:moved", settings.cooldown.prefix);
        let (outgoing, queue) = mpsc::channel(MOST_WAITING);
        let listening = listen(client.clone(), limit, channel.clone(), watched);
        tokio::spawn(async move {
            // The publisher ends with its last sender, and the listener with the publisher.
            tokio::select! {
                () = publish(client, limit, channel, queue) => {}
                () = listening => {}
            }
        });
        Ok(Some(Self { outgoing }))
    }

    pub(super) fn send(&self, moved: &[(Uuid, Version)]) {
        for movement in moved {
            if self.outgoing.try_send(*movement).is_err() {
                metrics::counter!("largesse_live_dropped_total").increment(1);
            }
        }
    }
}

/// Publishes what waits, as much of it at once as there is. While Redis is away, what waits is dropped.
async fn publish(client: Client, limit: Duration, channel: String, mut queue: Receiver<(Uuid, Version)>) {
    let mut connection: Option<MultiplexedConnection> = None;
    let mut waiting = Vec::with_capacity(MOST_IN_A_MESSAGE);
    while queue.recv_many(&mut waiting, MOST_IN_A_MESSAGE).await > 0 {
        let message = written(&waiting);
        waiting.clear();
        if connection.is_none() {
            connection = connected(&client, limit).await;
        }
        let Some(open) = &mut connection else {
            tokio::time::sleep(RECONNECT_PAUSE).await;
            continue;
        };
        if let Err(error) = cmd("PUBLISH").arg(&channel).arg(message).query_async::<i64>(open).await {
            tracing::debug!(%error, "movements of wallets could not be announced");
            connection = None;
        }
    }
}

async fn connected(client: &Client, limit: Duration) -> Option<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(limit)).set_connection_timeout(Some(limit));
    client.get_multiplexed_async_connection_with_config(&config).await.ok()
}

async fn listen(client: Client, limit: Duration, channel: String, watched: Watched) {
    loop {
        let subscribed = tokio::time::timeout(limit, subscribe(&client, &channel)).await;
        if let Ok(Ok((mut sink, mut stream))) = subscribed {
            while let Some(message) = heard(&mut sink, &mut stream, limit).await {
                watched.wake(&read(message.get_payload_bytes()));
            }
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

async fn subscribe(client: &Client, channel: &str) -> Result<(PubSubSink, PubSubStream), RedisError> {
    let (mut sink, stream) = client.get_async_pubsub().await?.split();
    sink.subscribe(channel).await?;
    Ok((sink, stream))
}

/// The next message; None once the connection is gone. A connection that died without a word is silent for ever, so silence
/// is asked about.
async fn heard(sink: &mut PubSubSink, stream: &mut PubSubStream, limit: Duration) -> Option<Msg> {
    loop {
        if let Ok(message) = tokio::time::timeout(SILENCE, stream.next()).await {
            return message;
        }
        tokio::time::timeout(limit, sink.ping::<Value>()).await.ok()?.ok()?;
    }
}

/// A line for each movement: the wallet's id and its version.
fn written(moved: &[(Uuid, Version)]) -> String {
    use std::fmt::Write;
    moved.iter().fold(String::new(), |mut text, (wallet, version)| {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "{} {version}", wallet.simple());
        text
    })
}

/// Reads a message. What cannot be read is left out: at worst a watcher sees it a few seconds later.
fn read(message: &[u8]) -> Vec<(Uuid, Version)> {
    let lines = std::str::from_utf8(message).unwrap_or_default().lines().take(MOST_IN_A_MESSAGE);
    let movement = |line: &str| {
        let (wallet, version) = line.split_once(' ')?;
        Some((Uuid::try_parse(wallet).ok()?, version.parse().ok()?))
    };
    lines.filter_map(movement).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written_and_nothing_else_is() {
        let moved = [(Uuid::now_v7(), 1), (Uuid::now_v7(), i64::MAX)];
        assert_eq!(read(written(&moved).as_bytes()), moved);
        for other in ["", "x", "x 1", "\u{0} \n \n1 1", &"1".repeat(99_999)] {
            assert_eq!(read(other.as_bytes()), [], "{other:.20}");
        }
        assert_eq!(read(&[0xff, 0xfe]), []);
    }
}
