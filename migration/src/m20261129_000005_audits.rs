//! When the books were last audited, and what was found.

use sea_orm_migration::prelude::*;

/// The audit's row.
#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const TABLES: &str = r"
-- One row: whose turn it is to audit, and what the last audit found. It outlives the process that audited, so that neither a
-- restart audits again nor a finding is forgotten by one.
CREATE TABLE audits (
    subject       text     NOT NULL PRIMARY KEY CHECK (subject = 'books'),
    lease         {uuid},                         -- who audits now: only this token may write what was found
    lease_ends_at {time},
    finished_at   {time},
    took_ms       {bigint} CHECK (took_ms >= 0),
    broken_rows   {bigint} CHECK (broken_rows >= 0),
    CHECK ((lease IS NULL) = (lease_ends_at IS NULL)),
    CHECK ((finished_at IS NULL) = (took_ms IS NULL) AND (finished_at IS NULL) = (broken_rows IS NULL))
) {table};

INSERT INTO audits (subject) VALUES ('books');
";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        super::run(manager, TABLES).await
    }
}
