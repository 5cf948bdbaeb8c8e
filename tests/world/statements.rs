//! How often a world's PostgreSQL ran a statement: the only way to see that a layer was not reached.

use sea_orm::ConnectionTrait;

use super::World;

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
