//! The tables of Largesse. Each constraint says which promise it keeps.
//!
//! The statements are written out, since what matters here (deferred references, partial indexes, STRICT tables) is what
//! schema builders leave out. One text serves both databases; the types that differ are filled in by [`dialect`].

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::{ConnectionTrait, DbBackend};

mod m20261129_000001_wallets;
mod m20261129_000002_outbox;
mod m20261129_000003_reversals;
mod m20261129_000004_payments;
mod m20261129_000005_audits;
mod m20261129_000006_trace_context;

/// All migrations, in order. Run them through `largesse migrate`, which takes the lock that they themselves do not.
pub struct Migrator;

#[async_trait::async_trait]
impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        vec![
            Box::new(m20261129_000001_wallets::Migration),
            Box::new(m20261129_000002_outbox::Migration),
            Box::new(m20261129_000003_reversals::Migration),
            Box::new(m20261129_000004_payments::Migration),
            Box::new(m20261129_000005_audits::Migration),
            Box::new(m20261129_000006_trace_context::Migration),
        ]
    }
}

/// Replaces the placeholders of a migration's text by what the database calls them, and splits it into statements.
///
/// SQLite's tables are STRICT: an integer that overflowed in SQL would otherwise be stored as a float without a word.
fn dialect(backend: DbBackend, text: &str) -> Vec<String> {
    let words: [(&str, &str); 6] = match backend {
        DbBackend::Postgres => [
            ("{uuid}", "uuid"),
            ("{bigint}", "bigint"),
            ("{time}", "timestamptz(3)"),
            ("{bytes}", "bytea"),
            ("{json}", "jsonb"),
            ("{table}", ""),
        ],
        _ => [
            ("{uuid}", "blob"),
            ("{bigint}", "integer"),
            ("{time}", "text"),
            ("{bytes}", "blob"),
            ("{json}", "text"),
            ("{table}", "STRICT"),
        ],
    };
    let text = words.iter().fold(text.to_owned(), |text, (placeholder, word)| text.replace(placeholder, word));
    text.split(";\n").map(str::trim).filter(|statement| !statement.is_empty()).map(str::to_owned).collect()
}

/// Runs a migration's text, statement by statement.
async fn run(manager: &SchemaManager<'_>, text: &str) -> Result<(), DbErr> {
    let connection = manager.get_connection();
    for statement in dialect(connection.get_database_backend(), &without_comments(text)) {
        connection.execute_unprepared(&statement).await?;
    }
    Ok(())
}

/// The comments are for readers; statements are split at a semicolon before a line's end, which a comment could hold.
fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("--").next().unwrap_or_default().trim_end()).fold(
        String::new(),
        |mut all, line| {
            all.push_str(line);
            all.push('\n');
            all
        },
    )
}
