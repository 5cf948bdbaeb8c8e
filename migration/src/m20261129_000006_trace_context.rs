//! The trace in which an event came true.

use sea_orm_migration::prelude::*;

/// The trace context of an event.
#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const COLUMN: &str = r"
-- W3C traceparent and tracestate with a space between them, so that the trace goes on at the receiver; null without traces.
ALTER TABLE outbox ADD COLUMN trace_context text;
";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        super::run(manager, COLUMN).await
    }
}
