//! How full the pools of connections are.

use std::time::{Duration, Instant};

use sea_orm::sqlx::{Database, Pool};
use sea_orm::{DatabaseConnection, DbBackend, SqlxError};

use super::Ledger;

/// How often they are looked at.
const INTERVAL: Duration = Duration::from_secs(5);

impl Ledger {
    /// Tells the metrics now and then how full the pools are, for as long as it is polled.
    pub async fn measure_pools(&self) {
        loop {
            tokio::join!(measure(&self.write, "work"), measure(&self.read, "reads"));
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

async fn measure(connection: &DatabaseConnection, name: &'static str) {
    match connection.get_database_backend() {
        DbBackend::Postgres => measure_pool(connection.get_postgres_connection_pool(), name).await,
        _ => measure_pool(connection.get_sqlite_connection_pool(), name).await,
    }
}

/// The library does not tell how many wait for a connection. So a probe queues like everybody else, and goes as soon as it
/// has one.
async fn measure_pool<D: Database>(pool: &Pool<D>, name: &'static str) {
    let in_use = usize::try_from(pool.size()).unwrap_or(usize::MAX).saturating_sub(pool.num_idle());
    metrics::gauge!("largesse_pool_connections", "pool" => name).set(pool.size());
    #[allow(clippy::cast_precision_loss, reason = "there are no 2^52 connections")]
    metrics::gauge!("largesse_pool_connections_in_use", "pool" => name).set(in_use as f64);
    metrics::gauge!("largesse_pool_connections_limit", "pool" => name).set(pool.options().get_max_connections());
    let asked = Instant::now();
    if let Ok(_) | Err(SqlxError::PoolTimedOut) = pool.acquire().await {
        metrics::histogram!("largesse_pool_wait_seconds", "pool" => name).record(asked.elapsed());
    }
}
