//! Largesse pays bonuses and moves points and money between members' wallets, so that **every credit is paid exactly once
//! and the books balance**, whatever clicks, retries, crashes and floods arrive.
//!
//! # Three layers
//!
//! A race is lost where no layer looks. Each layer is one visible place, and keeps its promise without the others.
//!
//! | | layer | stops | lives in |
//! |---|---|---|---|
//! | 1 | cooldown: a lock per member and action, and per recipient of a transfer, with a budget a minute; one round trip takes both | floods, double clicks, two tabs, a new key on each retry; before the database is touched | `api/guard.rs` (an async-graphql extension), [`cooldown`] (the stores) |
//! | 2 | claim: an insert that a unique constraint decides | repeats after the window, after a loss of Redis, from another process, when no row exists yet to lock | [`ledger::once`] |
//! | 3 | transaction and row lock: wallets locked in id order | two writers on one balance | [`ledger::tx`] |
//!
//! # Who may import whom
//!
//! Downwards only; a test reads the `use` lines.
//!
//! ```text
//! main.rs, demo.rs, outbox.rs   the command line
//!   api                 all that knows GraphQL or HTTP requests, and nothing else
//!   workers             what the clock starts: events are sent, and what may be forgotten is forgotten
//!     operations        one verb, one file: claim_daily_bonus, transfer, fund_wallet, …
//!       ledger          layers 2 and 3; the only writer of wallets, entries and the outbox
//!       cooldown        layer 1's stores: Redis (one, behind sentinels, a cluster, a majority), or this process
//!         entity        the tables as sea-orm sees them
//!         live          who waits for a wallet to move, in every process
//!           config, error, amount, member, calendar, event, signature, signals, traces, …
//! ```
//!
//! # One transfer, walked through
//!
//! 1. `api/over_http.rs` reads the body, the token (`api/token.rs`) and the clock: from here on the request has a
//!    [`Deadline`](error::Deadline), after which no statement, retry or COMMIT of it starts.
//! 2. `api/persisted.rs` says whether the document may run, or which one is named. `api/limits.rs` counts what the document asks for, and scalars refuse what is malformed while it is validated: no
//!    resolver runs, no lock is taken.
//! 3. `api/guard.rs` meets the field `transfer` and asks [`Cooldown::attempt`](cooldown::Cooldown::attempt). Refused, the
//!    field is null with `COOLDOWN_ACTIVE` beside it, and that was all. Where the very same was done in this window, its
//!    committed answer stands in the lock, and the work of the next steps is not begun. Admitted, there is an
//!    [`Admission`](cooldown::Admission): a value that somebody has to end.
//! 4. `api/mutation.rs` parses the input into a [`Transfer`](operations::transfer::Transfer), whose fields nobody else can
//!    fill. What is not acceptable is `INVALID_INPUT`, and the admission gives its lock back.
//! 5. `api/overload.rs` finds a place for the work, or says at once that there is none. `api/work.rs` spawns the whole
//!    operation as a task that owns its arguments and the admission. A client that hangs up
//!    stops waiting; it cannot stop the task between two statements. The table at its top says which outcome does what.
//! 6. [`operations::transfer`] calls [`Ledger::exactly_once`](ledger::Ledger::exactly_once): BEGIN, and the idempotency
//!    key's insert, already with the id of the transaction that will answer it. If another inserted it first, its stored
//!    answer is read and given back; nothing else runs.
//! 7. The work locks both wallets in one statement, in id order, and checks what it reads there. Only
//!    [`LockedWallets`](ledger::post::LockedWallets) make the two legs of a posting, and [`Tx::post`](ledger::tx::Tx::post)
//!    takes nothing else: money cannot move unlocked, by type. Balances, transaction, entries, and for each endpoint of the
//!    settings the events that tell of it ([`ledger::outbox`]), are one statement on PostgreSQL.
//! 8. COMMIT. Key, effects and answer are there together or not at all. A connection that is lost at this moment means that
//!    nobody knows: `OUTCOME_UNKNOWN`, the lock stays, and the same key will tell.
//!    Then, and not before, the ledger tells [`live`] which wallets moved, and whoever watches one over a WebSocket
//!    (`api/over_websocket.rs`, `api/subscription.rs`) sees its new state, in whichever process.
//! 9. The task ends its admission as the work ended, which writes the answer into the lock, and the resolvers read from the
//!    receipt what the client selected.
//! 10. Some worker, in whatever process, takes the events by a lease and sends them ([`workers::deliver_outbox`]), each
//!     wallet's in its order, until their endpoints have them.
//!
//! Two ways to end without value moving are kept apart by type. A **refusal** ([`Stop::Refused`](ledger::tx::Stop)) is an
//! answer: data with a stable code, stored under the key. A **failure** ([`Failure`](error::Failure)) is none: masked
//! outside, its cause in the log once, at `api/boundary.rs`.

pub mod address;
pub mod amount;
pub mod api;
pub mod calendar;
pub mod config;
pub mod cooldown;
pub mod entity;
pub mod error;
pub mod event;
pub mod global_id;
pub mod ledger;
pub mod live;
pub mod member;
pub mod operations;
mod redis;
pub mod signals;
pub mod signature;
pub mod traces;
pub mod workers;
