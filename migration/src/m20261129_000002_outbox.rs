//! Events on their way out, and the order in which idempotency keys expire.

use sea_orm_migration::prelude::*;

/// The outbox.
#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const TABLES: &str = r"
-- One row per event and endpoint, written by the transaction that makes the event true: committed with it or not at all.
-- All that is known of a delivery stands in its row; there is no cursor that a late commit could fall behind.
CREATE TABLE outbox (
    id              {uuid}   NOT NULL PRIMARY KEY,  -- the webhook-id, the same in every attempt
    endpoint        text     NOT NULL,              -- its name in the settings
    wallet_id       {uuid}   NOT NULL,              -- no reference: its check would cost every transfer a look-up
    seq             {bigint} NOT NULL CHECK (seq > 0),
    event           text     NOT NULL,
    payload         text     NOT NULL,              -- exactly the bytes that are signed and sent
    created_at      {time}   NOT NULL,
    attempts        {bigint} NOT NULL DEFAULT 0,
    next_attempt_at {time},                         -- when a worker may take it; while it is leased, when the lease ends
    lease           {uuid},                         -- who has it: only this token may write how the attempt ended
    last_error      text,
    delivered_at    {time},
    dead_at         {time},                         -- given up; `largesse outbox resend` takes it back
    UNIQUE (endpoint, wallet_id, seq),              -- an entry is told once
    CHECK (delivered_at IS NULL OR dead_at IS NULL),
    CHECK ((next_attempt_at IS NULL) = (delivered_at IS NOT NULL OR dead_at IS NOT NULL)),  -- what is pending is due some day
    CHECK (lease IS NULL OR next_attempt_at IS NOT NULL)
) {table};

-- What a worker may take next.
CREATE INDEX outbox_due ON outbox (endpoint, next_attempt_at, id) WHERE next_attempt_at IS NOT NULL;

-- Whether an earlier event of the wallet is still pending.
CREATE INDEX outbox_pending ON outbox (endpoint, wallet_id, seq) WHERE delivered_at IS NULL AND dead_at IS NULL;

-- What may be pruned, and what somebody should look at.
CREATE INDEX outbox_delivered ON outbox (delivered_at) WHERE delivered_at IS NOT NULL;
CREATE INDEX outbox_dead ON outbox (dead_at) WHERE dead_at IS NOT NULL;

-- What the cleaner may forget, oldest first.
CREATE INDEX idempotency_keys_expires_at ON idempotency_keys (expires_at) WHERE expires_at IS NOT NULL;
";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        super::run(manager, TABLES).await
    }
}
