//! Locks in one Redis, shared by all processes.
//!
//! One connection of the pool is shared by all attempts: it carries any number of commands at once, so nobody fetches a
//! connection for a command. A keeper in the background opens it, watches it when a command went wrong, and opens another.
//! While there is none, attempts learn so at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{AsyncConnectionConfig, Cmd, RedisError, cmd};
use deadpool_redis::{Connection, Manager, Pool, PoolError, Runtime, Timeouts};
use secrecy::SecretString;
use tokio::sync::{Notify, watch};

use super::lock::{End, Lock, Verdict};
use super::scripts::{self, Call};
use crate::config::{ConfigError, Settings};
use crate::redis::{server, unusable};

/// How long the keeper waits before it tries to connect again: Redis is used again well within two seconds of its return.
const RECONNECT_PAUSE: Duration = Duration::from_millis(250);

/// A Redis. Clones share its connection.
#[derive(Clone)]
pub(super) struct Redis {
    shared: Arc<Shared>,
}

struct Shared {
    connection: watch::Receiver<Option<MultiplexedConnection>>,
    /// Told when a command went wrong: the keeper looks at the connection.
    suspect: Arc<Notify>,
    probe: Cmd,
}

/// Why Redis did not decide.
#[derive(Debug, thiserror::Error)]
pub(super) enum Away {
    #[error("there is no connection to Redis")]
    NotConnected,
    #[error("{0}")]
    Failed(#[from] RedisError),
}

impl Redis {
    pub(super) fn open(url: &SecretString, settings: &Settings) -> Result<Self, ConfigError> {
        let command = Duration::from_millis(settings.cooldown.command_timeout_ms);
        let connect = Duration::from_millis(settings.cooldown.connect_timeout_ms);
        let config =
            AsyncConnectionConfig::new().set_response_timeout(Some(command)).set_connection_timeout(Some(connect));
        let server = server(url, settings.redis_ca_file.as_deref())?;
        let manager = Manager::new_with_config(server, config).map_err(|error| unusable(&error))?;
        let timeouts = Timeouts { wait: Some(connect), create: Some(connect), recycle: Some(command) };
        let pool = Pool::builder(manager).max_size(1).runtime(Runtime::Tokio1).timeouts(timeouts).build();
        let pool = pool.expect("a pool with time-outs builds wherever a runtime is named");
        let (sender, connection) = watch::channel(None);
        let suspect = Arc::new(Notify::new());
        let probe = probe(&settings.cooldown.prefix);
        tokio::spawn(keep_connected(pool, sender, suspect.clone(), probe.clone()));
        Ok(Self { shared: Arc::new(Shared { connection, suspect, probe }) })
    }

    /// Takes the lock unless something stands in the way, in one round trip.
    pub(super) async fn take(&self, lock: &Lock) -> Result<Verdict, Away> {
        let mut connection = self.connection()?;
        let taking = Taking { redis: self, connection: connection.clone(), lock: Some(lock) };
        let asked = Instant::now();
        let verdict = Call::take(lock).run(&mut connection).await;
        metrics::histogram!("largesse_cooldown_store_seconds", "store" => self.name()).record(asked.elapsed());
        match verdict {
            Ok(verdict) => {
                taking.decided();
                Ok(verdict)
            }
            Err(error) => {
                self.shared.suspect.notify_one();
                Err(error.into())
            }
        }
    }

    /// Ends the lock. One that cannot be ended ends with its window.
    pub(super) async fn settle(&self, lock: &Lock, end: &End) {
        let result = match self.connection() {
            Ok(mut connection) => Call::settle(lock, end).run::<i64>(&mut connection).await.map_err(Away::from),
            Err(away) => Err(away),
        };
        if let Err(cause) = result {
            self.shared.suspect.notify_one();
            tracing::warn!(%cause, "a cooldown's lock stays to the end of its window");
        }
    }

    /// What this store is called in metrics and in the log.
    #[allow(clippy::unused_self, reason = "the kinds of store differ in it")]
    pub(super) fn name(&self) -> &'static str {
        "redis"
    }

    pub(super) async fn answers(&self) -> bool {
        let Ok(mut connection) = self.connection() else { return false };
        let answered = self.shared.probe.query_async::<i64>(&mut connection).await.is_ok();
        if !answered {
            self.shared.suspect.notify_one();
        }
        answered
    }

    fn connection(&self) -> Result<MultiplexedConnection, Away> {
        self.shared.connection.borrow().clone().ok_or(Away::NotConnected)
    }
}

/// An attempt that waits for Redis. A frozen Redis applies late what it was sent: if no answer came, or nobody waits for it
/// any more, the release of the token follows on the same connection, so no lock is left without an attempt behind it.
struct Taking<'a> {
    redis: &'a Redis,
    connection: MultiplexedConnection,
    lock: Option<&'a Lock>,
}

impl Taking<'_> {
    fn decided(mut self) {
        self.lock = None;
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        let Some(lock) = self.lock else { return };
        let (release, mut connection) = (Call::settle(lock, &End::Released), self.connection.clone());
        let suspect = self.redis.shared.suspect.clone();
        tokio::spawn(async move {
            if release.run_whole::<i64>(&mut connection).await.is_err() {
                suspect.notify_one();
            }
        });
    }
}

/// A write that changes nothing. After a failover, a server that became a replica still answers PING and refuses every lock.
fn probe(prefix: &str) -> Cmd {
    let mut probe = cmd("DEL");
    probe.arg(format!("{prefix}:probe"));
    probe
}

/// Publishes a connection as long as it can be used. Ends when nobody listens any more.
async fn keep_connected(
    pool: Pool,
    sender: watch::Sender<Option<MultiplexedConnection>>,
    suspect: Arc<Notify>,
    probe: Cmd,
) {
    let mut away = false;
    while !sender.is_closed() {
        match connect(&pool, &probe).await {
            Ok(pooled) => {
                if std::mem::take(&mut away) {
                    tracing::info!("Redis is back");
                }
                let mut connection = MultiplexedConnection::clone(&pooled);
                sender.send_replace(Some(connection.clone()));
                while probe.query_async::<i64>(&mut connection).await.is_ok() {
                    tokio::select! {
                        () = suspect.notified() => {}
                        () = sender.closed() => return,
                    }
                }
                sender.send_replace(None);
                // Out of the pool with it: the next one is opened anew.
                drop(Connection::take(pooled));
            }
            Err(cause) => {
                if !std::mem::replace(&mut away, true) {
                    tracing::warn!(%cause, "Redis is away");
                }
                tokio::time::sleep(RECONNECT_PAUSE).await;
            }
        }
    }
}

/// Opens a connection that takes writes. Each try is a new connection, for the address of a replica may lead to the new
/// primary by then.
async fn connect(pool: &Pool, probe: &Cmd) -> Result<Connection, String> {
    let mut pooled = pool.get().await.map_err(|error| describe(&error))?;
    match probe.query_async::<i64>(&mut pooled).await {
        Ok(_) => {
            scripts::load(&mut pooled).await;
            Ok(pooled)
        }
        Err(error) => {
            drop(Connection::take(pooled));
            Err(error.to_string())
        }
    }
}

fn describe(error: &PoolError) -> String {
    match error {
        PoolError::Backend(cause) => cause.to_string(),
        other => other.to_string(),
    }
}
