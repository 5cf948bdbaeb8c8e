//! One Redis server: a connection that all attempts share, a breaker before it, and a keeper that watches both.
//!
//! One connection of a pool is shared by all attempts: it carries any number of commands at once, so nobody fetches a
//! connection for a command. The keeper opens it, looks at it from time to time and whenever the breaker opened, closes the
//! breaker again, or opens another connection.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use deadpool_redis::redis::aio::MultiplexedConnection;
use deadpool_redis::redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, Value, cmd,
};
use deadpool_redis::{Connection, Manager, Pool, PoolError, Runtime, Timeouts};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::breaker::{Breaker, Link};
use super::scripts;
use crate::config::Settings;
use crate::redis::{Place, Server};

/// How long the keeper waits before it tries to connect again: a server is used again well within two seconds of its return.
const RECONNECT_PAUSE: Duration = Duration::from_millis(250);

/// How often the keeper looks at a server that nobody complains about: one that froze while nobody asked is found frozen
/// before somebody waits for it.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// How long anybody waits, and what stands at the beginning of every key.
#[derive(Debug, Clone)]
pub(super) struct Manners {
    /// The longest a command may take.
    pub(super) command: Duration,
    /// The longest that connecting, and asking in the background, may take.
    pub(super) connect: Duration,
    prefix: String,
}

impl Manners {
    pub(super) fn of(settings: &Settings) -> Self {
        Self {
            command: Duration::from_millis(settings.cooldown.command_timeout_ms),
            connect: Duration::from_millis(settings.cooldown.connect_timeout_ms),
            prefix: settings.cooldown.prefix.clone(),
        }
    }

    /// A write that changes nothing. A server that became a replica still answers PING, and refuses every lock.
    pub(super) fn trial_write(&self) -> Cmd {
        let mut probe = cmd("DEL");
        probe.arg(format!("{}:probe", self.prefix));
        probe
    }
}

/// Why Redis did not decide.
#[derive(Debug, thiserror::Error)]
pub(super) enum Away {
    #[error("there is no connection to Redis")]
    NotConnected,
    #[error("no server of the Redis Cluster holds the key's slot")]
    NoHolder,
    #[error("too few Redis servers answer for a majority")]
    NoMajority,
    #[error("a majority of Redis servers took too long")]
    TooLate,
    #[error("{0}")]
    Failed(#[from] RedisError),
}

/// A server. Clones share its connection; with the last one its keeper ends.
#[derive(Clone)]
pub(super) struct Node {
    breaker: Arc<Breaker>,
    _keeper: Arc<AbortOnDropHandle<()>>,
}

impl Node {
    /// Connects in the background. `probe` is what a server answers well if it can be used.
    pub(super) fn open(place: Place, manners: &Manners, probe: Cmd) -> Self {
        let breaker = Arc::new(Breaker::new());
        let keeper =
            Keeper { place, manners: manners.clone(), probe, breaker: breaker.clone(), warned: HashSet::new() };
        Self { breaker, _keeper: Arc::new(AbortOnDropHandle::new(tokio::spawn(keeper.keep()))) }
    }

    /// What to ask on. Whoever asks says how it went by [`Self::heard`].
    pub(super) fn link(&self) -> Result<Link, Away> {
        self.breaker.link().ok_or(Away::NotConnected)
    }

    /// Whether it answers at this moment, as far as is known without asking.
    pub(super) fn is_there(&self) -> bool {
        self.breaker.link().is_some()
    }

    /// Returns once it answers.
    pub(super) async fn connected(&self) {
        self.breaker.closed().await;
    }

    /// Opens the breaker if this is no answer of a server that can be used.
    pub(super) fn heard<T>(&self, link: &Link, answer: Result<T, RedisError>) -> Result<T, Away> {
        answer.map_err(|error| {
            if !answers_all_the_same(&error) {
                self.breaker.open(link);
            }
            error.into()
        })
    }

    /// Asks what is no lock's taking: nobody needs to give back what it does.
    pub(super) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Away> {
        let link = self.link()?;
        let answer = command.query_async(&mut link.connection.clone()).await;
        self.heard(&link, answer)
    }
}

/// Errors of a server that is well: it does not know a script yet, or another server of the cluster holds the key.
fn answers_all_the_same(error: &RedisError) -> bool {
    error.is_cluster_error() || error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Opens the connection, looks at it, and opens another.
struct Keeper {
    place: Place,
    manners: Manners,
    probe: Cmd,
    breaker: Arc<Breaker>,
    /// The servers whose memory was warned about.
    warned: HashSet<String>,
}

impl Keeper {
    async fn keep(mut self) {
        let mut away = false;
        loop {
            let server = self.place.server().await;
            match self.connect(&server).await {
                Ok(connection) => {
                    if std::mem::take(&mut away) {
                        tracing::info!(%server, "Redis is back");
                    }
                    self.warn_of_evictions(&server, connection.clone()).await;
                    self.watch(&server, connection).await;
                }
                Err(cause) => {
                    if !std::mem::replace(&mut away, true) {
                        tracing::warn!(%cause, %server, "Redis is away");
                    }
                    self.place.doubt();
                    tokio::select! {
                        () = sleep(RECONNECT_PAUSE) => {}
                        () = self.place.moved(&server) => {}
                    }
                }
            }
        }
    }

    /// Keeps the breaker closed as long as the connection can be used.
    async fn watch(&mut self, server: &Server, connection: MultiplexedConnection) {
        let mut link = self.breaker.close_on(connection);
        loop {
            tokio::select! {
                () = self.breaker.opened() => {}
                () = sleep(HEARTBEAT) => {}
                () = self.place.moved(server) => break,
            }
            if !self.answers(&mut link.connection).await {
                break;
            }
            // Whoever opened it was told too late, or something else than what the probe is told.
            if self.breaker.link().is_none() {
                link = self.breaker.close_on(link.connection);
            }
        }
        self.breaker.open(&link);
        self.place.doubt();
    }

    /// Nobody waits for the probe, so it may take its time.
    async fn answers(&self, connection: &mut MultiplexedConnection) -> bool {
        connection.set_response_timeout(self.manners.connect);
        let answer = self.probe.query_async::<Value>(connection).await;
        connection.set_response_timeout(self.manners.command);
        answer.is_ok()
    }
    /// Opens a connection on which the probe is answered. Each try is a new connection, for the same address may lead to
    /// another server by then.
    async fn connect(&self, server: &Server) -> Result<MultiplexedConnection, String> {
        let Manners { command, connect, .. } = self.manners;
        let config =
            AsyncConnectionConfig::new().set_response_timeout(Some(command)).set_connection_timeout(Some(connect));
        let manager = Manager::new_with_config(server.connection_info(), config).map_err(|error| error.to_string())?;
        let timeouts = Timeouts { wait: Some(connect), create: Some(connect), recycle: Some(command) };
        let pool = Pool::builder(manager).max_size(1).runtime(Runtime::Tokio1).timeouts(timeouts).build();
        let pool = pool.expect("a pool with time-outs builds wherever a runtime is named");
        let mut connection = Connection::take(pool.get().await.map_err(|error| describe(&error))?);
        connection.set_response_timeout(connect);
        self.probe.query_async::<Value>(&mut connection).await.map_err(|error| error.to_string())?;
        scripts::load(&mut connection).await;
        connection.set_response_timeout(command);
        Ok(connection)
    }

    /// Says once of each server that it may throw locks away. A server that tells nobody how it is set up is left in peace.
    async fn warn_of_evictions(&mut self, server: &Server, mut connection: MultiplexedConnection) {
        let name = server.to_string();
        if self.warned.contains(&name) {
            return;
        }
        connection.set_response_timeout(self.manners.connect);
        let policy = eviction_policy(&mut connection).await;
        // Locks have an end, so "volatile" policies throw them away as well.
        if let Some(policy) = policy.filter(|policy| policy != "noeviction") {
            tracing::warn!(
                %server,
                policy,
                "this Redis may throw locks away when its memory is full: set its maxmemory-policy to noeviction"
            );
            self.warned.insert(name);
        }
    }
}

/// What a server does when its memory is full, if it says so: managed ones forbid CONFIG, and some INFO as well.
async fn eviction_policy(connection: &mut MultiplexedConnection) -> Option<String> {
    let asked = cmd("CONFIG").arg("GET").arg("maxmemory-policy").query_async::<Vec<String>>(connection).await;
    if let Ok([_, policy]) = asked.as_deref() {
        return Some(policy.clone());
    }
    let told: String = cmd("INFO").arg("memory").query_async(connection).await.ok()?;
    told.lines().find_map(|line| line.strip_prefix("maxmemory_policy:")).map(|policy| policy.trim().to_owned())
}

fn describe(error: &PoolError) -> String {
    match error {
        PoolError::Backend(cause) => cause.to_string(),
        other => other.to_string(),
    }
}
