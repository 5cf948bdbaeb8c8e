//! What the sentinels say: which server is the primary.
//!
//! Each sentinel is listened to on a connection of its own, and asked again often: at once when it announces a switch, ten
//! times a second while the primary is in doubt, and once a second else. Of what they say, the newest holds: sentinels count
//! their decisions (the configuration's epoch), and one that was cut off from the others says what was true before. While no
//! sentinel answers, what was said last holds on: their loss alone stops nothing.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool_redis::redis::aio::{MultiplexedConnection, PubSub};
use deadpool_redis::redis::{AsyncConnectionConfig, ErrorKind, Pipeline, RedisError};
use futures_util::StreamExt;
use futures_util::future::join_all;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::Server;
use crate::config::ConfigError;

/// The longest that a sentinel may take to answer or to be connected.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a sentinel is asked while all is well.
const CALM: Duration = Duration::from_secs(1);

/// How often it is asked while the primary is in doubt, and for how long one doubt holds.
const HASTE: Duration = Duration::from_millis(100);
const DOUBT: Duration = Duration::from_secs(3);

/// How long to wait before a sentinel that is away is connected again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(250);

/// What a sentinel announces when the primary changes: the leader of a failover says the first, each of them the second.
const ANNOUNCEMENTS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// The sentinels, and what they call the primary that we want.
#[derive(Debug, Clone)]
pub(crate) struct Sentinels {
    members: Vec<Server>,
    service: String,
    /// How the primary is reached, but for its address.
    primary: Server,
}

impl Sentinels {
    /// The service is a name, or a URL with the name in place of the host: user, password, TLS and database of the primary
    /// are not those of the sentinels.
    pub(super) fn read(
        sentinels: Vec<Server>,
        service: &SecretString,
        ca_file: Option<&Path>,
    ) -> Result<Self, ConfigError> {
        let service = service.expose_secret();
        let url = if service.contains("://") { service.to_owned() } else { format!("redis://{service}") };
        let primary = Server::read("redis_sentinel_service", &url, ca_file)?;
        Ok(Self { members: sentinels, service: primary.host(), primary })
    }
}

/// The primary, wherever it is now. Dropped, nobody listens to the sentinels any more.
#[derive(Debug)]
pub(crate) struct Primary {
    told: watch::Receiver<Option<Server>>,
    doubted: watch::Sender<Instant>,
    _listening: AbortOnDropHandle<()>,
}

impl Primary {
    pub(super) fn followed(sentinels: Sentinels) -> Self {
        let (telling, told) = watch::channel(None);
        let (doubted, doubts) = watch::channel(Instant::now());
        let words = Mutex::new(vec![Heard::NotYet; sentinels.members.len()]);
        let council = Arc::new(Council { sentinels, words, telling });
        let listening = tokio::spawn(async move {
            let members = 0..council.sentinels.members.len();
            join_all(members.map(|member| council.listen_to(member, doubts.clone()))).await;
        });
        Self { told, doubted, _listening: AbortOnDropHandle::new(listening) }
    }

    pub(super) async fn server(&mut self) -> Server {
        let server = self.told.wait_for(Option::is_some).await.ok().and_then(|server| server.clone());
        match server {
            Some(server) => server,
            // Those who listen end with this value.
            None => std::future::pending().await,
        }
    }

    pub(super) async fn moved(&mut self, from: &Server) {
        let moved = self.told.wait_for(|server| server.as_ref().is_some_and(|server| server != from)).await.is_ok();
        if !moved {
            std::future::pending::<()>().await;
        }
    }

    pub(super) fn doubt(&self) {
        self.doubted.send_replace(Instant::now());
    }
}

/// What one sentinel said. The later decision is the greater one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Word {
    epoch: u64,
    host: String,
    port: u16,
}

/// How far we have come with one sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Heard {
    NotYet,
    /// It is away, or does not know the service.
    Nothing,
    Said(Word),
}

/// All sentinels, and what each has said last.
struct Council {
    sentinels: Sentinels,
    words: Mutex<Vec<Heard>>,
    telling: watch::Sender<Option<Server>>,
}

impl Council {
    async fn listen_to(&self, member: usize, mut doubts: watch::Receiver<Instant>) {
        let sentinel = &self.sentinels.members[member];
        loop {
            if let Ok(Ok(mut line)) = timeout(PATIENCE, Line::open(sentinel)).await {
                while let Ok(word) = line.ask(&self.sentinels.service).await {
                    self.hear(member, word);
                    line.wait(&mut doubts).await;
                }
            }
            self.hear(member, None);
            sleep(RECONNECT_PAUSE).await;
        }
    }

    /// Writes down what a sentinel said, and tells which server is the primary by all that was said.
    fn hear(&self, member: usize, word: Option<Word>) {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let heard = word.map_or(Heard::Nothing, Heard::Said);
        let news = std::mem::replace(&mut words[member], heard.clone()) != heard;
        let said = words.iter().filter_map(|heard| match heard {
            Heard::Said(word) => Some(word),
            Heard::NotYet | Heard::Nothing => None,
        });
        let Some(newest) = said.max() else {
            if news && words.iter().all(|heard| *heard == Heard::Nothing) {
                tracing::warn!(service = self.sentinels.service, "no sentinel answers, or none knows the service");
            }
            return;
        };
        let primary = self.sentinels.primary.at(&newest.host, newest.port);
        self.telling.send_if_modified(|told| {
            let changed = told.as_ref() != Some(&primary);
            if changed {
                tracing::info!(primary = %primary, "the sentinels name the primary");
                *told = Some(primary);
            }
            changed
        });
    }
}

/// A sentinel's two connections: one that asks, and one that hears what it announces.
struct Line {
    asking: MultiplexedConnection,
    hearing: PubSub,
}

impl Line {
    async fn open(sentinel: &Server) -> Result<Self, RedisError> {
        let client = sentinel.client()?;
        let mut hearing = client.get_async_pubsub().await?;
        for announcement in ANNOUNCEMENTS {
            hearing.subscribe(announcement).await?;
        }
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        Ok(Self { asking: client.get_multiplexed_async_connection_with_config(&config).await?, hearing })
    }

    /// Where the primary is, by this sentinel; `None` if it does not know the service. Its address comes from the first
    /// answer, which names a replica as soon as it was promoted, and the age of the decision from the second.
    async fn ask(&mut self, service: &str) -> Result<Option<Word>, RedisError> {
        let mut questions = Pipeline::with_capacity(2);
        questions.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(service);
        questions.cmd("SENTINEL").arg("MASTER").arg(service);
        match questions.query_async::<(Option<(String, u16)>, HashMap<String, String>)>(&mut self.asking).await {
            Ok((Some((host, port)), facts)) => {
                let epoch = facts.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default();
                Ok(Some(Word { epoch, host, port }))
            }
            Ok((None, _)) => Ok(None),
            // It answered, if only that it knows no such service.
            Err(error) if matches!(error.kind(), ErrorKind::Server(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until it is time to ask again.
    async fn wait(&mut self, doubts: &mut watch::Receiver<Instant>) {
        let doubted = doubts.borrow_and_update().elapsed() < DOUBT;
        let mut announced = self.hearing.on_message();
        tokio::select! {
            () = sleep(if doubted { HASTE } else { CALM }) => {}
            // A connection that hears nothing more is noticed by the next question.
            Some(_) = announced.next() => {}
            Ok(()) = doubts.changed(), if !doubted => {}
        }
    }
}
