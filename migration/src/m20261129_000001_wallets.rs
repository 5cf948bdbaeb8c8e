//! Members, wallets, the books and the two kinds of claim that a unique constraint decides.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

/// The first tables.
#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const TABLES: &str = r"
-- Who may receive value. A transfer to a name that never signed in is refused, so a typing error loses nothing.
CREATE TABLE members (
    id         {uuid}   NOT NULL PRIMARY KEY,   -- derived from the name, so no look-up stands before a claim
    name       text     NOT NULL UNIQUE,        -- the public name: one member, one name
    created_at {time}   NOT NULL
) {table};

CREATE TABLE wallets (
    id         {uuid}   NOT NULL PRIMARY KEY,   -- derived from member and currency: the row to lock is known before it exists
    member_id  {uuid}   NOT NULL REFERENCES members (id),
    currency   text     NOT NULL,
    balance    {bigint} NOT NULL CHECK (balance >= 0),  -- no layer above can overdraw a wallet
    version    {bigint} NOT NULL CHECK (version >= 0),  -- the sequence number of its last entry
    opened_at  {time}   NOT NULL,
    UNIQUE (member_id, currency)                -- one wallet per member and currency
) {table};

CREATE TABLE transactions (
    id         {uuid}   NOT NULL PRIMARY KEY,
    kind       text     NOT NULL CHECK (kind IN ('daily_bonus', 'signup_bonus', 'funding', 'transfer')),
    currency   text     NOT NULL,
    memo       text,
    created_at {time}   NOT NULL
) {table};

-- Append-only. A transaction's entries sum to zero; `largesse audit` checks what a row constraint cannot.
CREATE TABLE entries (
    transaction_id {uuid}   NOT NULL REFERENCES transactions (id),
    line           {bigint} NOT NULL,           -- 0 is the debit, 1 the credit
    wallet_id      {uuid}   REFERENCES wallets (id),
    house          text     CHECK (house IN ('issuance', 'funding')),
    amount         {bigint} NOT NULL CHECK (amount <> 0),
    seq            {bigint} CHECK (seq > 0),
    balance_after  {bigint} CHECK (balance_after >= 0),
    PRIMARY KEY (transaction_id, line),
    CHECK ((wallet_id IS NULL) <> (house IS NULL)),                     -- a member's side or the house's, never both
    CHECK ((wallet_id IS NULL) = (seq IS NULL)),                        -- house entries have no sequence
    CHECK ((wallet_id IS NULL) = (balance_after IS NULL))               -- and no balance
) {table};

-- The sequence is taken under the wallet's lock; should a lock ever be missed, the second writer fails here.
CREATE UNIQUE INDEX entries_wallet_seq ON entries (wallet_id, seq) WHERE wallet_id IS NOT NULL;

-- Layer 2 where the client has no key: one bonus per member and period, for ever. No column is nullable, for
-- two NULLs are never equal.
CREATE TABLE claims (
    id             {uuid}   NOT NULL PRIMARY KEY,
    member_id      {uuid}   NOT NULL REFERENCES members (id),
    bonus          text     NOT NULL CHECK (bonus IN ('daily', 'signup')),
    period         text     NOT NULL,           -- the day of a daily bonus, 'once' for the signup bonus
    streak         {bigint} CHECK (streak > 0),
    amount         {bigint} NOT NULL CHECK (amount > 0),
    currency       text     NOT NULL,
    transaction_id {uuid}   NOT NULL UNIQUE REFERENCES transactions (id) DEFERRABLE INITIALLY DEFERRED,
    claimed_at     {time}   NOT NULL,
    UNIQUE (member_id, bonus, period)
) {table};

-- Pages of claims, newest first.
CREATE INDEX claims_member_claimed_at ON claims (member_id, claimed_at, id);

-- Layer 2 where the client names its attempt: the first insert wins, every other reads its answer.
CREATE TABLE idempotency_keys (
    member_id      {uuid}   NOT NULL REFERENCES members (id),
    operation      text     NOT NULL,
    key            text     NOT NULL,
    fingerprint    {bytes}  NOT NULL,           -- of the arguments: the same key never means two things
    transaction_id {uuid}   REFERENCES transactions (id) DEFERRABLE INITIALLY DEFERRED,
    refusal        {json},
    created_at     {time}   NOT NULL,
    expires_at     {time},                      -- refusals may be cleaned then; what moved value stays
    PRIMARY KEY (member_id, operation, key),
    CHECK ((transaction_id IS NULL) <> (refusal IS NULL))               -- a key always has exactly one answer
) {table};
";

/// Balances are not indexed, so an update can stay on its page if the page has room for it.
const POSTGRES_ONLY: &str = "ALTER TABLE wallets SET (fillfactor = 70);\n";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let backend = manager.get_database_backend();
        let extra = if backend == DbBackend::Postgres { POSTGRES_ONLY } else { "" };
        super::run(manager, &format!("{TABLES}{extra}")).await
    }
}
