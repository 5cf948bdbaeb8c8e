//! What may be taken back, and what is owed where it was spent already.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

/// Reversals and debts.
#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const KINDS: &str = "'daily_bonus', 'signup_bonus', 'bonus_grant', 'funding', 'transfer', 'reversal', 'debt_payment'";
const HOUSE: &str = "'issuance', 'funding', 'receivable', 'payable'";

const TABLES: &str = r"
-- A reversal and what it takes back, for ever. All reversals of a transaction are made under that transaction's row lock,
-- so together they never exceed it.
CREATE TABLE reversals (
    transaction_id {uuid}   NOT NULL PRIMARY KEY REFERENCES transactions (id) DEFERRABLE INITIALLY DEFERRED,
    original_id    {uuid}   NOT NULL REFERENCES transactions (id),
    amount         {bigint} NOT NULL CHECK (amount > 0),
    CHECK (transaction_id <> original_id)
) {table};

-- How much of a transaction is reversed by now.
CREATE INDEX reversals_original ON reversals (original_id);

-- What a reversal could not recover, because it was spent. Written under the lock of the debtor's wallet alone.
CREATE TABLE debts (
    reversal_id {uuid}   NOT NULL PRIMARY KEY REFERENCES reversals (transaction_id) DEFERRABLE INITIALLY DEFERRED,
    wallet_id   {uuid}   NOT NULL REFERENCES wallets (id),
    creditor_id {uuid}   REFERENCES wallets (id),   -- the sender of a reversed transfer; the house if null
    amount      {bigint} NOT NULL CHECK (amount > 0),
    remaining   {bigint} NOT NULL CHECK (remaining >= 0 AND remaining <= amount)    -- nothing is paid twice
) {table};

-- The next debts to pay, oldest first.
CREATE INDEX debts_open ON debts (wallet_id, reversal_id) WHERE remaining > 0;
";

/// PostgreSQL changes a table where it stands.
const POSTGRES: &str = r"
ALTER TABLE wallets ADD COLUMN debt bigint NOT NULL DEFAULT 0 CHECK (debt >= 0);
ALTER TABLE wallets ADD CONSTRAINT wallets_debts_first CHECK (debt = 0 OR balance = 0);
ALTER TABLE transactions ADD COLUMN actor text;
ALTER TABLE transactions DROP CONSTRAINT transactions_kind_check;
ALTER TABLE transactions ADD CONSTRAINT transactions_kind_check CHECK (kind IN ({kinds}));
ALTER TABLE entries DROP CONSTRAINT entries_house_check;
ALTER TABLE entries ADD CONSTRAINT entries_house_check CHECK (house IN ({houses}));
";

/// SQLite can change no CHECK, so a table is made anew: <https://www.sqlite.org/lang_altertable.html>, section 7. References
/// to it go by its name, and are checked again at the end.
const SQLITE: &str = r"
ALTER TABLE wallets ADD COLUMN debt integer NOT NULL DEFAULT 0 CHECK (debt >= 0 AND (debt = 0 OR balance = 0));
CREATE TABLE transactions_anew (
    id         blob NOT NULL PRIMARY KEY,
    kind       text NOT NULL CHECK (kind IN ({kinds})),
    currency   text NOT NULL,
    memo       text,
    actor      text,
    created_at text NOT NULL
) STRICT;
INSERT INTO transactions_anew (id, kind, currency, memo, created_at)
    SELECT id, kind, currency, memo, created_at FROM transactions;
DROP TABLE transactions;
ALTER TABLE transactions_anew RENAME TO transactions;
CREATE TABLE entries_anew (
    transaction_id blob    NOT NULL REFERENCES transactions (id),
    line           integer NOT NULL,
    wallet_id      blob    REFERENCES wallets (id),
    house          text    CHECK (house IN ({houses})),
    amount         integer NOT NULL CHECK (amount <> 0),
    seq            integer CHECK (seq > 0),
    balance_after  integer CHECK (balance_after >= 0),
    PRIMARY KEY (transaction_id, line),
    CHECK ((wallet_id IS NULL) <> (house IS NULL)),
    CHECK ((wallet_id IS NULL) = (seq IS NULL)),
    CHECK ((wallet_id IS NULL) = (balance_after IS NULL))
) STRICT;
INSERT INTO entries_anew SELECT transaction_id, line, wallet_id, house, amount, seq, balance_after FROM entries;
DROP TABLE entries;
ALTER TABLE entries_anew RENAME TO entries;
CREATE UNIQUE INDEX entries_wallet_seq ON entries (wallet_id, seq) WHERE wallet_id IS NOT NULL;
";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let backend = manager.get_database_backend();
        let (changes, before, after) = match backend {
            DbBackend::Postgres => (POSTGRES, "", ""),
            // Its migrations run in no transaction, and references cannot be switched off inside one.
            _ => (SQLITE, "PRAGMA foreign_keys = OFF;\nBEGIN IMMEDIATE;\n", "COMMIT;\nPRAGMA foreign_keys = ON;\n"),
        };
        let changes = changes.replace("{kinds}", KINDS).replace("{houses}", HOUSE);
        super::run(manager, &[before, &changes, TABLES, after].concat()).await
    }
}
