//! Payments that came from outside, what was told of them, and what could not be believed.

use sea_orm_migration::prelude::*;

/// Payments.
#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const TABLES: &str = r"
-- One row per payment, whatever is told of it and how often: the row that everyone who hears of it locks first.
CREATE TABLE payments (
    provider       text     NOT NULL,           -- its name in the settings
    reference      text     NOT NULL,           -- the provider's own name for the payment
    member         text     NOT NULL,           -- a name, no reference: the member exists from the first payment that succeeded
    amount         {bigint} NOT NULL CHECK (amount > 0),
    currency       text     NOT NULL,
    state          text     NOT NULL CHECK (state IN ('pending', 'succeeded', 'failed', 'reversed')),
    transaction_id {uuid}   UNIQUE REFERENCES transactions (id),        -- a credit pays for one payment
    created_at     {time}   NOT NULL,
    updated_at     {time}   NOT NULL,
    PRIMARY KEY (provider, reference),          -- layer 2: a payment is inserted once, and credited under that row's lock
    CHECK (state <> 'succeeded' OR transaction_id IS NOT NULL),         -- what succeeded was credited
    CHECK (transaction_id IS NULL OR state IN ('succeeded', 'reversed'))  -- and nothing else was
) {table};

-- What was told, for ever: a repeat after years changes nothing.
CREATE TABLE payment_events (
    provider    text   NOT NULL,
    event_id    text   NOT NULL,                -- the webhook-id
    reference   text   NOT NULL,
    state       text   NOT NULL CHECK (state IN ('pending', 'succeeded', 'failed', 'reversed')),
    received_at {time} NOT NULL,
    PRIMARY KEY (provider, event_id),           -- the same message, sent again
    UNIQUE (provider, reference, state),        -- the same news under another id
    FOREIGN KEY (provider, reference) REFERENCES payments (provider, reference)
) {table};

-- What contradicts a payment or an event that was there before. It is kept apart, so that it takes no place of the truth's.
CREATE TABLE payment_conflicts (
    id          {uuid}   NOT NULL PRIMARY KEY,
    provider    text     NOT NULL,
    event_id    text     NOT NULL,
    reference   text     NOT NULL,
    state       text     NOT NULL,
    member      text     NOT NULL,
    amount      {bigint} NOT NULL,
    currency    text     NOT NULL,
    received_at {time}   NOT NULL,
    UNIQUE (provider, event_id, reference, state, member, amount, currency)   -- a contradiction, sent again, is one
) {table};
";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        super::run(manager, TABLES).await
    }
}
