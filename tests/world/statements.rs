//! What a world's PostgreSQL did: how often it ran a statement, which is the only way to see that a layer was not reached,
//! and how many rows it read for it.

use sea_orm::ConnectionTrait;

use super::{World, wait_until};

/// How often the database ran statements of this form for this world.
pub(crate) async fn statements(world: &World, like: &str) -> i64 {
    let name = world.url.rsplit('/').next().unwrap();
    let asking = format!(
        "SELECT COALESCE(SUM(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid \
         WHERE d.datname = '{name}' AND query LIKE '{like}'"
    );
    let sql = world.sql().await;
    sql.execute_unprepared("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await.unwrap();
    sql.close().await.unwrap();
    world.count(&asking).await
}

/// How many rows of a table were read so far. The world's connections are closed first, since a session tells what it read
/// when it ends.
pub(crate) async fn rows_read(world: &World, table: &str) -> i64 {
    world.app.ledger.close().await;
    let sessions = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database()";
    wait_until("all sessions but the asking one have ended", async || world.count(sessions).await == 1).await;
    let read = "(seq_tup_read + COALESCE(idx_tup_fetch, 0))::bigint";
    world.count(&format!("SELECT {read} FROM pg_stat_user_tables WHERE relname = '{table}'")).await
}
