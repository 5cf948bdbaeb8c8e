//! Connections with their time limits, and migration.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::TimeDelta;
use largesse_migration::Migrator;
use sea_orm::sqlx::postgres::PgConnectOptions;
use sea_orm::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sea_orm::{
    ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbBackend, DbErr, RuntimeErr, SqlxError, Statement,
};
use sea_orm_migration::MigratorTrait;
use secrecy::{ExposeSecret, SecretString};

use super::events::Subscription;
use super::{Clock, Ledger};
use crate::config::{ConfigError, Settings};
use crate::live::Live;

/// Why a database cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The URL names neither database.
    #[error("the database URL must begin with postgres:// or sqlite:")]
    UnknownScheme,
    /// An in-memory database is private to each connection and gone with it.
    #[error("an in-memory SQLite database keeps no books: name a file")]
    InMemory,
    /// The URL begins well and cannot be read.
    #[error("the database URL: {0}")]
    BadUrl(SqlxError),
    /// Nobody answers at the URL.
    #[error("the database does not answer: nothing was heard for {} s", CONNECT_LIMIT.as_secs())]
    Away,
    /// The database did not answer as it should.
    #[error("the database: {0}")]
    Database(#[from] DbErr),
    /// The way to tell other processes of movements cannot be opened.
    #[error(transparent)]
    Live(#[from] ConfigError),
    /// The lock file beside a SQLite database cannot be opened or locked.
    #[error("the lock file {path}: {error}", path = .path.display())]
    LockFile {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        error: std::io::Error,
    },
}

/// Ping a connection that was idle for longer, before use: a firewall may have forgotten it. Busy ones go without, for a
/// ping is a round trip.
const PING_AFTER_IDLE: Duration = Duration::from_secs(30);

/// How many SQLite readers there are. Reads there use the processor, not the network: a few suffice.
const SQLITE_READERS: u32 = 4;

/// How long a command that migrates or audits waits for the database to listen: it may be starting beside us.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// Names the lock that migrating processes take on PostgreSQL: the first eight letters of the product as a number.
const MIGRATION_LOCK: i64 = i64::from_be_bytes(*b"largesse");

/// How often a process asks whether another has finished migrating. `pg_advisory_lock` would wait by itself, but dies of
/// a `lock_timeout` that the database's owner may have set.
const MIGRATION_POLL: Duration = Duration::from_millis(50);

impl Ledger {
    /// Connects lazily: the database may be away at the start, and `/readyz` says so.
    pub async fn connect(settings: &Settings, url: &SecretString) -> Result<Self, ConnectError> {
        let (write, read) = match scheme(url)? {
            Scheme::Postgres => (
                Database::connect(postgres_options(settings, url, settings.database.pool_size)).await?,
                Database::connect(postgres_options(settings, url, settings.database.read_pool_size)).await?,
            ),
            Scheme::Sqlite(_) => (
                Database::connect(sqlite_options(settings, url, 1)).await?,
                Database::connect(sqlite_options(settings, url, SQLITE_READERS)).await?,
            ),
        };
        let with_begin = settings.database.set_local && write.get_database_backend() == DbBackend::Postgres;
        Ok(Self {
            write,
            read,
            limits_with_begin: with_begin
                .then(|| limits(settings).map(|(name, value)| format!("SET LOCAL {name} = '{value}'")).join("; ")),
            refusal_retention: TimeDelta::days(i64::from(settings.keys.refusal_retention_days)),
            completed_retention: settings.keys.completed_retention_days.map(|days| TimeDelta::days(i64::from(days))),
            subscriptions: Subscription::all(&settings.webhooks).into(),
            clock: Arc::new(Clock::default()),
            live: Live::open(settings)?,
            known_members: Mutex::new(HashSet::new()),
            url: url.clone(),
        })
    }
}

/// Brings the database up to date. Several processes may do so at once: one works, the others wait and find it done.
pub async fn migrate(url: &SecretString) -> Result<(), ConnectError> {
    match scheme(url)? {
        Scheme::Postgres => {
            let database = unlimited(url).await?;
            while !holds_migration_lock(&database).await? {
                tokio::time::sleep(MIGRATION_POLL).await;
            }
            let migrated = Migrator::up(&database, None).await;
            // The lock belongs to the session, so closing it gives it back, whatever happened.
            database.close().await?;
            Ok(migrated?)
        }
        Scheme::Sqlite(path) => {
            let lock = lock_file(path).await?;
            let database = unlimited(url).await?;
            let migrated = Migrator::up(&database, None).await;
            database.close().await?;
            drop(lock);
            Ok(migrated?)
        }
    }
}

/// One connection without time limits, for what may take long: migration and audit.
pub(super) async fn unlimited(url: &SecretString) -> Result<DatabaseConnection, ConnectError> {
    let mut options = ConnectOptions::new(url.expose_secret());
    options.max_connections(1).acquire_timeout(CONNECT_LIMIT).sqlx_logging(false).map_sqlx_sqlite_opts(durable);
    // A URL's own settings or the role's may hold limits; none is wanted here.
    options.map_sqlx_postgres_opts(|options| options.options([("lock_timeout", "0"), ("statement_timeout", "0")]));
    let timed_out = |error: &DbErr| match error {
        DbErr::ConnectionAcquire(_) => true,
        DbErr::Conn(RuntimeErr::SqlxError(cause)) => matches!(**cause, SqlxError::PoolTimedOut),
        _ => false,
    };
    let connected = Database::connect(options).await;
    connected.map_err(|error| if timed_out(&error) { ConnectError::Away } else { error.into() })
}

/// Says whether the URL names a database that can keep the books, without asking there.
pub fn check_url(url: &SecretString) -> Result<(), ConnectError> {
    scheme(url).map(drop)
}

async fn holds_migration_lock(database: &DatabaseConnection) -> Result<bool, DbErr> {
    let ask = Statement::from_sql_and_values(
        DbBackend::Postgres,
        "SELECT pg_try_advisory_lock($1) AS held",
        [MIGRATION_LOCK.into()],
    );
    match database.query_one_raw(ask).await? {
        Some(row) => row.try_get("", "held"),
        None => Err(DbErr::RecordNotFound("the migration lock".to_owned())),
    }
}

/// sea-orm-migration takes no lock, and on SQLite no transaction either.
async fn lock_file(database: PathBuf) -> Result<File, ConnectError> {
    let path = database.with_added_extension("migrating");
    let locked = {
        let path = path.clone();
        tokio::task::spawn_blocking(move || {
            let file = File::create(&path)?;
            file.lock()?;
            Ok(file)
        })
    };
    let locked = locked.await.unwrap_or_else(|panic| Err(std::io::Error::other(panic)));
    locked.map_err(|error| ConnectError::LockFile { path, error })
}

enum Scheme {
    Postgres,
    Sqlite(PathBuf),
}

fn scheme(url: &SecretString) -> Result<Scheme, ConnectError> {
    let url = url.expose_secret();
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        PgConnectOptions::from_str(url).map_err(ConnectError::BadUrl)?;
        return Ok(Scheme::Postgres);
    }
    if !url.starts_with("sqlite:") {
        return Err(ConnectError::UnknownScheme);
    }
    let options = SqliteConnectOptions::from_str(url).map_err(ConnectError::BadUrl)?;
    let file = options.get_filename();
    if url.contains(":memory:") || url.contains("mode=memory") || file == Path::new("") {
        return Err(ConnectError::InMemory);
    }
    Ok(Scheme::Sqlite(file.to_owned()))
}

/// What every connection that serves requests is limited by. A session that is idle inside a transaction is one whose
/// process hangs: nothing is waited for there but the next statement.
fn limits(settings: &Settings) -> [(&'static str, String); 3] {
    [
        ("lock_timeout", format!("{}ms", settings.database.lock_timeout_ms)),
        ("statement_timeout", format!("{}ms", settings.database.statement_timeout_ms)),
        ("idle_in_transaction_session_timeout", format!("{}ms", settings.request.deadline_ms)),
    ]
}

fn postgres_options(settings: &Settings, url: &SecretString, connections: u32) -> ConnectOptions {
    let mut options = pool_options(settings, url, connections);
    if !settings.database.set_local {
        let limits = limits(settings);
        options.map_sqlx_postgres_opts(move |options| {
            let isolation = [("default_transaction_isolation", "read committed".to_owned())];
            options.options(limits.clone().into_iter().chain(isolation))
        });
    }
    options
}

fn sqlite_options(settings: &Settings, url: &SecretString, connections: u32) -> ConnectOptions {
    let mut options = pool_options(settings, url, connections);
    let wait_for_other_processes = Duration::from_millis(settings.database.lock_timeout_ms);
    options.map_sqlx_sqlite_opts(move |options| durable(options).busy_timeout(wait_for_other_processes));
    options
}

/// A write-ahead log lets readers go on while one writes; FULL, since a commit that was acknowledged must outlive a
/// power failure.
fn durable(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .foreign_keys(true)
}

fn pool_options(settings: &Settings, url: &SecretString, connections: u32) -> ConnectOptions {
    let mut options = ConnectOptions::new(url.expose_secret());
    options
        .max_connections(connections)
        .connect_lazy(true)
        // Who waits for a connection waits until their deadline at most.
        .acquire_timeout(Duration::from_millis(settings.request.deadline_ms))
        .test_before_acquire_if_idle_for(PING_AFTER_IDLE)
        .sqlx_logging(false);
    options
}
