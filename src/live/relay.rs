//! Announcements between processes: one Redis channel that all of them publish to and listen at, at each place where it takes
//! that to reach everybody.

use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::aio::{MultiplexedConnection, PubSubSink, PubSubStream};
use deadpool_redis::redis::{AsyncConnectionConfig, Msg, RedisError, Value, cmd};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc::{self, Receiver, Sender};
use uuid::Uuid;

use super::{Version, Watched};
use crate::config::{ConfigError, Settings};
use crate::redis::{Place, Server, Servers};

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
    /// One for each place where announcements are published.
    outgoing: Arc<[Sender<(Uuid, Version)>]>,
}

impl Relay {
    /// Connects in the background, where the settings name a Redis. Listening and publishing end when the last clone of
    /// the relay is dropped.
    pub(super) fn open(settings: &Settings, watched: &Watched) -> Result<Option<Self>, ConfigError> {
        let Some(servers) = Servers::named_by(settings)? else { return Ok(None) };
        let limit = Duration::from_millis(settings.cooldown.connect_timeout_ms);
        let channel: Arc<str> = format!("{}:moved", settings.cooldown.prefix).into();
        // What is heard twice wakes nobody twice, for it carries its version.
        let places = servers.for_announcements().into_iter().zip(servers.for_announcements());
        let outgoing = places.map(|(to, from)| {
            let (outgoing, queue) = mpsc::channel(MOST_WAITING);
            let publishing = publish(to, limit, channel.clone(), queue);
            let listening = listen(from, limit, channel.clone(), watched.clone());
            tokio::spawn(async move {
                // The publisher ends with its last sender, and the listener with the publisher.
                tokio::select! {
                    () = publishing => {}
                    () = listening => {}
                }
            });
            outgoing
        });
        Ok(Some(Self { outgoing: outgoing.collect() }))
    }

    pub(super) fn send(&self, moved: &[(Uuid, Version)]) {
        for movement in moved {
            for outgoing in self.outgoing.iter() {
                if outgoing.try_send(*movement).is_err() {
                    metrics::counter!("largesse_live_dropped_total").increment(1);
                }
            }
        }
    }
}

/// Publishes what waits, as much of it at once as there is. While Redis is away, what waits is dropped.
async fn publish(mut place: Place, limit: Duration, channel: Arc<str>, mut queue: Receiver<(Uuid, Version)>) {
    let mut open: Option<(Server, MultiplexedConnection)> = None;
    let mut waiting = Vec::with_capacity(MOST_IN_A_MESSAGE);
    while queue.recv_many(&mut waiting, MOST_IN_A_MESSAGE).await > 0 {
        let message = written(&waiting);
        waiting.clear();
        // A server that is no primary any more takes announcements as before, but nobody hears them.
        if let Some((server, _)) = &open
            && place.moved(server).now_or_never().is_some()
        {
            open = None;
        }
        if open.is_none() {
            open = connected(&mut place, limit).await;
        }
        let Some((_, connection)) = &mut open else {
            tokio::time::sleep(RECONNECT_PAUSE).await;
            continue;
        };
        if let Err(error) = cmd("PUBLISH").arg(&*channel).arg(message).query_async::<i64>(connection).await {
            tracing::debug!(%error, "movements of wallets could not be announced");
            place.doubt();
            open = None;
        }
    }
}

async fn connected(place: &mut Place, limit: Duration) -> Option<(Server, MultiplexedConnection)> {
    let server = tokio::time::timeout(limit, place.server()).await.ok()?;
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(limit)).set_connection_timeout(Some(limit));
    let connection = server.client().ok()?.get_multiplexed_async_connection_with_config(&config).await;
    if connection.is_err() {
        place.doubt();
    }
    Some((server, connection.ok()?))
}

async fn listen(mut place: Place, limit: Duration, channel: Arc<str>, watched: Watched) {
    loop {
        let server = place.server().await;
        let subscribed = tokio::time::timeout(limit, subscribe(&server, &channel)).await;
        if let Ok(Ok((mut sink, mut stream))) = subscribed {
            let hearing = async {
                while let Some(message) = heard(&mut sink, &mut stream, limit).await {
                    watched.wake(&read(message.get_payload_bytes()));
                }
            };
            tokio::select! {
                () = hearing => {}
                // Nothing was missed but what the new server said before we are there.
                () = place.moved(&server) => continue,
            }
        }
        place.doubt();
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

async fn subscribe(server: &Server, channel: &str) -> Result<(PubSubSink, PubSubStream), RedisError> {
    let (mut sink, stream) = server.client()?.get_async_pubsub().await?.split();
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
