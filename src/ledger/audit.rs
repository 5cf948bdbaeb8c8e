//! Whether the books balance, read from one snapshot while others write.

use std::fmt;

use sea_orm::{
    AccessMode, ConnectionTrait, DatabaseTransaction, DbBackend, IsolationLevel, Statement, TransactionTrait,
};
use secrecy::SecretString;

use super::connect::{ConnectError, unlimited};

/// What the audit found.
#[derive(Debug)]
pub struct Report {
    /// How many rows of each table were read.
    pub counts: Vec<(&'static str, i64)>,
    /// What members hold together, per currency, in minor units.
    pub held: Vec<(String, i128)>,
    /// Each row that breaks a rule, as a sentence.
    pub broken: Vec<String>,
}

impl Report {
    /// Whether every rule holds.
    pub fn books_balance(&self) -> bool {
        self.broken.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> = self.counts.iter().map(|(table, rows)| format!("{rows} {table}")).collect();
        writeln!(f, "read {}", counts.join(", "))?;
        for (currency, sum) in &self.held {
            writeln!(f, "members hold {sum} {currency}")?;
        }
        for broken in &self.broken {
            writeln!(f, "BROKEN: {broken}")?;
        }
        match self.broken.len() {
            0 => write!(f, "the books balance"),
            1 => write!(f, "the books do not balance: 1 broken row"),
            rows => write!(f, "the books do not balance: {rows} broken rows"),
        }
    }
}

/// A rule: what it demands, and a query for the rows that break it. `{hex X}` stands for an id's text.
struct Rule {
    demands: &'static str,
    broken: &'static str,
}

/// The sum of a wallet's entries needs no adding up, and so no 128 bits: each `balance_after` follows from the one
/// before, and the last one is the balance.
const RULES: [Rule; 18] = [
    Rule {
        demands: "the entries of a transaction sum to zero",
        broken: "SELECT {hex transaction_id} AS row FROM entries GROUP BY transaction_id HAVING SUM(amount) <> 0",
    },
    Rule {
        demands: "a transaction has a debit and a credit",
        broken: "SELECT {hex t.id} AS row FROM transactions t LEFT JOIN entries e ON e.transaction_id = t.id \
                 GROUP BY t.id HAVING COUNT(e.line) < 2",
    },
    Rule {
        demands: "an entry's wallet has the transaction's currency",
        broken: "SELECT {hex t.id} AS row FROM entries e JOIN transactions t ON t.id = e.transaction_id \
                 JOIN wallets w ON w.id = e.wallet_id WHERE w.currency <> t.currency",
    },
    Rule {
        demands: "a wallet's entries are numbered from 1 without gaps",
        broken: "SELECT {hex wallet_id} AS row FROM entries WHERE wallet_id IS NOT NULL GROUP BY wallet_id \
                 HAVING MIN(seq) <> 1 OR MAX(seq) <> COUNT(*) OR COUNT(DISTINCT seq) <> COUNT(*)",
    },
    Rule {
        demands: "each balance_after follows from the one before",
        broken: "SELECT {hex transaction_id} AS row FROM (SELECT transaction_id, amount, balance_after, \
                 LAG(balance_after, 1) OVER (PARTITION BY wallet_id ORDER BY seq) AS before \
                 FROM entries WHERE wallet_id IS NOT NULL) chain \
                 WHERE balance_after - amount <> COALESCE(before, 0)",
    },
    Rule {
        demands: "a wallet's balance and version are those of its last entry, and not negative",
        broken: "SELECT {hex w.id} AS row FROM wallets w \
                 LEFT JOIN entries e ON e.wallet_id = w.id AND e.seq = w.version \
                 LEFT JOIN entries later ON later.wallet_id = w.id AND later.seq = w.version + 1 \
                 WHERE w.balance < 0 OR e.balance_after IS NULL OR e.balance_after <> w.balance OR later.seq IS NOT NULL",
    },
    Rule {
        demands: "a claim has its transaction, which credits its amount to its member",
        broken: "SELECT {hex c.id} AS row FROM claims c WHERE NOT EXISTS (SELECT 1 FROM transactions t \
                 JOIN entries e ON e.transaction_id = t.id JOIN wallets w ON w.id = e.wallet_id \
                 WHERE t.id = c.transaction_id AND w.member_id = c.member_id AND e.amount = c.amount \
                 AND t.currency = c.currency)",
    },
    Rule {
        demands: "a bonus has its claim",
        broken: "SELECT {hex t.id} AS row FROM transactions t LEFT JOIN claims c ON c.transaction_id = t.id \
                 WHERE t.kind IN ('daily_bonus', 'signup_bonus') AND c.id IS NULL",
    },
    Rule {
        demands: "a payment that was credited has its transaction, which credits its amount to its member",
        broken: "SELECT p.provider || ' ' || p.reference AS row FROM payments p \
                 WHERE (p.state = 'succeeded' OR p.transaction_id IS NOT NULL) AND NOT EXISTS (SELECT 1 FROM transactions t \
                 JOIN entries e ON e.transaction_id = t.id JOIN wallets w ON w.id = e.wallet_id \
                 JOIN members m ON m.id = w.member_id WHERE t.id = p.transaction_id AND t.kind = 'funding' \
                 AND m.name = p.member AND e.amount = p.amount AND t.currency = p.currency)",
    },
    Rule {
        demands: "a payment that was credited and is reversed was taken back whole",
        broken: "SELECT p.provider || ' ' || p.reference AS row FROM payments p WHERE p.state = 'reversed' \
                 AND p.transaction_id IS NOT NULL AND p.amount <> COALESCE((SELECT SUM(r.amount) FROM reversals r \
                 WHERE r.original_id = p.transaction_id), 0)",
    },
    Rule {
        demands: "funding has its payment",
        broken: "SELECT {hex t.id} AS row FROM transactions t LEFT JOIN payments p ON p.transaction_id = t.id \
                 WHERE t.kind = 'funding' AND p.reference IS NULL",
    },
    Rule {
        demands: "the reversals of a transaction do not exceed what it credited",
        broken: "SELECT {hex r.original_id} AS row FROM reversals r GROUP BY r.original_id HAVING SUM(r.amount) > \
                 COALESCE((SELECT MAX(e.amount) FROM entries e WHERE e.transaction_id = r.original_id \
                 AND e.wallet_id IS NOT NULL), 0)",
    },
    Rule {
        demands: "a reversal takes back what it says, from the receiver or as a debt",
        broken: "SELECT {hex r.transaction_id} AS row FROM reversals r WHERE r.amount <> \
                 COALESCE((SELECT -SUM(e.amount) FROM entries e WHERE e.transaction_id = r.transaction_id \
                 AND e.amount < 0), 0)",
    },
    Rule {
        demands: "a transaction of the kind reversal is one",
        broken: "SELECT {hex t.id} AS row FROM transactions t LEFT JOIN reversals r ON r.transaction_id = t.id \
                 WHERE (t.kind = 'reversal') <> (r.transaction_id IS NOT NULL)",
    },
    Rule {
        demands: "a wallet owes what its debts say, and holds nothing while it owes",
        broken: "SELECT {hex w.id} AS row FROM wallets w LEFT JOIN (SELECT wallet_id, SUM(remaining) AS remaining \
                 FROM debts GROUP BY wallet_id) d ON d.wallet_id = w.id \
                 WHERE w.debt <> COALESCE(d.remaining, 0) OR (w.debt > 0 AND w.balance > 0)",
    },
    Rule {
        demands: "what members owe is what the house has to receive",
        broken: "SELECT w.currency AS row FROM (SELECT currency, SUM(debt) AS debt FROM wallets GROUP BY currency) w \
                 LEFT JOIN (SELECT t.currency, SUM(e.amount) AS amount FROM entries e \
                 JOIN transactions t ON t.id = e.transaction_id WHERE e.house = 'receivable' GROUP BY t.currency) h \
                 ON h.currency = w.currency WHERE w.debt + COALESCE(h.amount, 0) <> 0",
    },
    Rule {
        demands: "what the house owes to senders of reversed transfers is what their debtors owe",
        broken: "SELECT {hex t.id} AS row FROM transactions t JOIN reversals r ON r.transaction_id = t.id \
                 JOIN debts d ON d.reversal_id = r.transaction_id \
                 WHERE (d.creditor_id IS NOT NULL) <> EXISTS (SELECT 1 FROM entries e \
                 WHERE e.transaction_id = t.id AND e.house = 'payable' AND e.amount = d.amount)",
    },
    Rule {
        demands: "an idempotency key points to a transaction or holds a refusal",
        broken: "SELECT k.operation || ' ' || k.key AS row FROM idempotency_keys k \
                 LEFT JOIN transactions t ON t.id = k.transaction_id \
                 WHERE t.id IS NULL AND k.refusal IS NULL",
    },
];

const TABLES: [&str; 11] = [
    "members",
    "wallets",
    "transactions",
    "entries",
    "claims",
    "idempotency_keys",
    "reversals",
    "debts",
    "payments",
    "payment_events",
    "payment_conflicts",
];

/// Checks every rule on one snapshot. It locks nothing, and may run on a replica.
pub async fn audit(url: &SecretString) -> Result<Report, ConnectError> {
    let database = unlimited(url).await?;
    let postgres = database.get_database_backend() == DbBackend::Postgres;
    let snapshot = if postgres {
        database.begin_with_config(Some(IsolationLevel::RepeatableRead), Some(AccessMode::ReadOnly)).await?
    } else {
        // A read transaction of SQLite's write-ahead log is a snapshot.
        database.begin().await?
    };
    let report = read(&snapshot).await?;
    snapshot.rollback().await?;
    database.close().await?;
    Ok(report)
}

async fn read(snapshot: &DatabaseTransaction) -> Result<Report, ConnectError> {
    let backend = snapshot.get_database_backend();
    let mut report = Report { counts: Vec::new(), held: Vec::new(), broken: Vec::new() };
    for table in TABLES {
        let count = Statement::from_string(backend, format!("SELECT COUNT(*) AS rows FROM {table}"));
        if let Some(row) = snapshot.query_one_raw(count).await? {
            report.counts.push((table, row.try_get("", "rows")?));
        }
    }
    // Both halves of a balance are summed apart, for SQLite's SUM ends at 2^63.
    let held = "SELECT currency, CAST(SUM(balance >> 32) AS bigint) AS high, \
                CAST(SUM(balance & 4294967295) AS bigint) AS low FROM wallets GROUP BY currency ORDER BY currency";
    for row in snapshot.query_all_raw(Statement::from_string(backend, held)).await? {
        let (high, low): (i64, i64) = (row.try_get("", "high")?, row.try_get("", "low")?);
        report.held.push((row.try_get("", "currency")?, (i128::from(high) << 32) + i128::from(low)));
    }
    for rule in RULES {
        let query = Statement::from_string(backend, with_id_texts(rule.broken, backend));
        for row in snapshot.query_all_raw(query).await? {
            let id: String = row.try_get("", "row")?;
            report.broken.push(format!("{}: {id}", rule.demands));
        }
    }
    Ok(report)
}

fn with_id_texts(query: &str, backend: DbBackend) -> String {
    let Some((before, rest)) = query.split_once("{hex ") else { return query.to_owned() };
    let Some((column, after)) = rest.split_once('}') else { return query.to_owned() };
    match backend {
        DbBackend::Postgres => format!("{before}CAST({column} AS text){after}"),
        _ => format!("{before}lower(hex({column})){after}"),
    }
}
