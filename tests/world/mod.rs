//! A whole Largesse for one test: a database of its own, a server on a free port, members with tokens.

pub(crate) mod arbitrary;
pub(crate) mod binary;
pub(crate) mod by_hand;
pub(crate) mod collector;
pub(crate) mod distance;
pub(crate) mod identity_provider;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod outbox;
pub(crate) mod provider;
pub(crate) mod proxy;
pub(crate) mod receiver;
pub(crate) mod redis_cluster;
pub(crate) mod redis_majority;
pub(crate) mod redis_sentinels;
pub(crate) mod redis_server;
pub(crate) mod redis_stores;
pub(crate) mod socket;
pub(crate) mod statements;
pub(crate) mod stores;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use largesse::api::token::Tokens;
use largesse::api::{Server, Shutdown};
use largesse::config::Settings;
use largesse::cooldown::Cooldown;
use largesse::ledger::connect::migrate;
use largesse::ledger::{Ledger, audit};
use largesse::member::Member;
use largesse::operations::App;
use sea_orm::{ConnectionTrait, Database as Connect, DatabaseConnection, DbBackend, Statement};
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

/// What the books are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Database {
    Sqlite,
    Postgres,
}

/// Where layer 1 keeps its locks.
#[derive(Debug, Clone)]
pub(crate) enum Locks {
    /// The layer is off: layers 2 and 3 must keep their promises without it.
    Off,
    InProcess,
    /// The Redis that all tests share, under a prefix of this test.
    Redis,
    /// A Redis of the test's own, to be stopped, frozen or lied about.
    RedisAt(String),
    /// One that cannot be used when the server starts.
    RedisAwayAt(String),
    /// Whatever the test's settings name.
    AsSet,
}

/// Runs a test on both databases: `on_both!(name, |database| async move { … })`.
#[macro_export]
macro_rules! on_both {
    ($name:ident, $test:expr) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn on_sqlite() {
                ($test)($crate::world::Database::Sqlite).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn on_postgres() {
                ($test)($crate::world::Database::Postgres).await;
            }
        }
    };
}

pub(crate) const SECRET: &str = "a secret of the tests, 32 bytes or more";

/// A running Largesse.
pub(crate) struct World {
    pub(crate) database: Database,
    pub(crate) url: String,
    pub(crate) app: App,
    pub(crate) settings: Settings,
    address: String,
    client: reqwest::Client,
    shutdown: Shutdown,
    serving: JoinHandle<std::io::Result<()>>,
    /// Keeps SQLite's folder until the test ends.
    folder: Option<std::sync::Arc<tempfile::TempDir>>,
}

/// Time for a slow machine to work a flood off: no promise here is about time.
pub(crate) fn patient(settings: &mut Settings) {
    settings.request.deadline_ms = 20_000;
    settings.database.statement_timeout_ms = 15_000;
    settings.database.lock_timeout_ms = 14_000;
}

/// An HTTP answer.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    /// The value at a JSON pointer below `data`.
    pub(crate) fn data(&self, pointer: &str) -> &Value {
        self.body["data"].pointer(pointer).unwrap_or(&Value::Null)
    }

    /// The codes of the top-level errors.
    pub(crate) fn codes(&self) -> Vec<&str> {
        let errors = self.body["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
        errors.iter().map(|error| error["extensions"]["code"].as_str().unwrap_or("without a code")).collect()
    }

    /// The one top-level code, or `None`.
    pub(crate) fn code(&self) -> Option<&str> {
        self.codes().first().copied()
    }

    /// The code of the first user error of a root field.
    pub(crate) fn user_error(&self, field: &str) -> Option<&str> {
        self.body["data"][field]["userErrors"][0]["code"].as_str()
    }
}

impl World {
    /// The usual one: demo bonuses, signup 100.
    pub(crate) async fn new(database: Database, locks: Locks) -> Self {
        Self::with(database, locks, |_| {}).await
    }

    /// One with settings of its own.
    pub(crate) async fn with(database: Database, locks: Locks, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::default();
        settings.daily_bonus.amounts = vec![10, 15, 20, 25, 30, 40, 50];
        settings.signup_bonus.amount = Some(100);
        settings.cooldown.enabled = !matches!(locks, Locks::Off);
        settings.cooldown.prefix = format!("test{}-{}", std::process::id(), unique());
        let redis_is_there = !matches!(locks, Locks::RedisAwayAt(_));
        settings.redis_url = match locks {
            Locks::Off | Locks::InProcess | Locks::AsSet => None,
            Locks::Redis => Some(servers_url("LARGESSE_TEST_REDIS_URL").into()),
            Locks::RedisAt(url) | Locks::RedisAwayAt(url) => Some(url.into()),
        };
        change(&mut settings);
        settings.check().expect("the test's settings are possible");
        let (url, folder) = fresh_database(database).await;
        Self::start(database, url, settings, folder, redis_is_there).await
    }

    /// One on a database that is there already, with the cooldown off.
    pub(crate) async fn at(database: Database, url: String, folder: Option<std::sync::Arc<tempfile::TempDir>>) -> Self {
        let mut settings = Settings::default();
        settings.cooldown.enabled = false;
        Self::start(database, url, settings, folder, false).await
    }

    /// Another process on the same database and Redis, with the same settings or others.
    pub(crate) async fn another(&self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.settings.clone();
        change(&mut settings);
        Self::start(self.database, self.url.clone(), settings, self.folder.clone(), true).await
    }

    /// The same server seen through another database URL: a proxy's.
    pub(crate) async fn through(&self, url: String) -> Self {
        Self::start(self.database, url, self.settings.clone(), self.folder.clone(), true).await
    }

    async fn start(
        database: Database,
        url: String,
        settings: Settings,
        folder: Option<std::sync::Arc<tempfile::TempDir>>,
        redis_is_there: bool,
    ) -> Self {
        provide_cryptography();
        log::listen();
        let ledger = Ledger::connect(&settings, &SecretString::from(url.clone())).await.expect("the ledger connects");
        let app = App::new(ledger, settings.clone()).expect("the app is put together");
        let cooldown = Cooldown::open(&settings).expect("the cooldown opens");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let server = Server::new(listener, app.clone(), cooldown.clone(), tokens(&settings), &[])
            .expect("the server is possible");
        if settings.names_a_redis() && redis_is_there {
            wait_until("Redis is connected", async || cooldown.answers()).await;
        }
        let address = format!("http://{}", server.address().unwrap());
        let shutdown = Shutdown::new();
        let serving = tokio::spawn(server.run(shutdown.clone()));
        let client = reqwest::Client::builder().timeout(Duration::from_secs(30)).build().unwrap();
        Self { database, url, app, settings, address, client, shutdown, serving, folder }
    }

    /// So many processes on one database and one store.
    pub(crate) async fn several(number: usize, database: Database, change: impl FnOnce(&mut Settings)) -> Vec<Self> {
        let mut worlds = vec![Self::with(database, Locks::AsSet, change).await];
        while worlds.len() < number {
            worlds.push(worlds[0].another(|_| {}).await);
        }
        worlds
    }

    /// Ends processes of one database, and checks the books.
    pub(crate) async fn end_all(worlds: Vec<Self>) {
        let mut worlds = worlds.into_iter();
        let first = worlds.next().expect("one at least");
        for world in worlds {
            world.stop().await;
        }
        first.end().await;
    }

    /// Where the server is.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Sends a member's body, and says how long the answer took.
    pub(crate) async fn timed(&self, member: &str, body: Value) -> (Answer, Duration) {
        let asked = std::time::Instant::now();
        let answer = self.post(Some(&token(member)), body).await;
        (answer, asked.elapsed())
    }

    /// Asks as a member, with a good token.
    pub(crate) async fn ask(&self, member: &str, document: &str, variables: Value) -> Answer {
        self.post(Some(&token(member)), json!({ "query": document, "variables": variables })).await
    }

    /// Sends a body with a token or without.
    pub(crate) async fn post(&self, token: Option<&str>, body: Value) -> Answer {
        self.try_post(token, body).await.expect("the server answers")
    }

    /// Sends a body; the server may be gone.
    pub(crate) async fn try_post(&self, token: Option<&str>, body: Value) -> Result<Answer, reqwest::Error> {
        let mut request = self.client.post(format!("{}/graphql", self.address)).json(&body);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await?;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(Answer { status, headers, body })
    }

    /// Sends a body and does not wait: the answer comes by itself, also while the world is being ended.
    pub(crate) fn begin_post(&self, token: &str, body: &Value) -> JoinHandle<Answer> {
        let request = self.client.post(format!("{}/graphql", self.address)).json(body).bearer_auth(token);
        tokio::spawn(async move {
            let response = request.send().await.expect("the server answers");
            let (status, headers) = (response.status().as_u16(), response.headers().clone());
            Answer { status, headers, body: response.json().await.expect("JSON") }
        })
    }

    /// Asks a path by GET: status and text.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let response = self.client.get(format!("{}{path}", self.address)).send().await.expect("the server answers");
        (response.status().as_u16(), response.text().await.unwrap_or_default())
    }

    /// Sends the same request many times at once, each on a connection of its own, from behind one barrier.
    pub(crate) async fn storm(&self, times: usize, ask: impl Fn(usize) -> (String, Value)) -> Vec<Answer> {
        let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(times));
        let attempts = (0..times).map(|number| {
            let (member, body) = ask(number);
            let (barrier, client, url) = (barrier.clone(), self.client.clone(), format!("{}/graphql", self.address));
            tokio::spawn(async move {
                let request = client.post(url).bearer_auth(token(&member)).json(&body);
                barrier.wait().await;
                let response = request.send().await.expect("the server answers");
                let (status, headers) = (response.status().as_u16(), response.headers().clone());
                Answer { status, headers, body: response.json().await.expect("JSON") }
            })
        });
        let attempts: Vec<_> = attempts.collect();
        let mut answers = Vec::with_capacity(times);
        for attempt in attempts {
            answers.push(attempt.await.unwrap());
        }
        answers
    }

    /// Asks many times at once who the bearer of a token is.
    pub(crate) async fn storm_with(&self, times: usize, token: &str) -> Vec<Answer> {
        let asking = (0..times).map(|_| self.post(Some(token), json!({ "query": "{ viewer { memberId } }" })));
        futures_util::future::join_all(asking).await
    }

    /// Gives a member the signup bonus, whatever the cooldown says.
    pub(crate) async fn fund(&self, member: &str) {
        let member = Member::parse(member).unwrap();
        let deadline = largesse::error::Deadline::within(Duration::from_secs(10));
        let claimed =
            largesse::operations::claim_signup_bonus::claim_signup_bonus(self.app.clone(), member, deadline).await;
        claimed.expect("the claim is answered").expect("the bonus is granted");
    }

    /// Makes a member known without giving anything.
    pub(crate) async fn introduce(&self, member: &str) {
        self.app.ledger.know(&Member::parse(member).unwrap()).await.expect("the member is known");
    }

    /// A member's balance in points.
    pub(crate) async fn balance(&self, member: &str) -> i64 {
        let answer = self.ask(member, "{ viewer { wallet { balance { amount } } } }", json!({})).await;
        answer.data("/viewer/wallet/balance/amount").as_str().expect("a balance").parse().unwrap()
    }

    /// A connection to the database beside the server's, for looking and for holding locks.
    pub(crate) async fn sql(&self) -> DatabaseConnection {
        Connect::connect(&self.url).await.expect("the database answers")
    }

    /// One number from the database.
    pub(crate) async fn count(&self, query: &str) -> i64 {
        count_in(&self.url, query).await
    }

    /// How many sessions of this world's database wait for a lock.
    pub(crate) async fn waiting_for_locks(&self) -> i64 {
        self.waiting_in("%").await
    }

    /// How many sessions wait for a lock in a statement of this form.
    pub(crate) async fn waiting_in(&self, like: &str) -> i64 {
        let name = self.url.rsplit('/').next().unwrap();
        let waiting = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        self.count(&format!("{waiting} AND datname = '{name}' AND query LIKE '{like}'")).await
    }

    /// Ends the server, and checks the books.
    pub(crate) async fn end(self) {
        self.shutdown.cancel();
        self.serving.await.expect("the server does not panic").expect("the server ends well");
        self.app.ledger.close().await;
        books_balance(&self.url).await;
    }

    /// Ends the server as if the process ended, without a look at the books.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.serving.await.expect("the server does not panic").expect("the server ends well");
        self.app.ledger.close().await;
    }
}

/// TLS needs one provider of cryptography for the process, as the command line installs it.
pub(crate) fn provide_cryptography() {
    // It fails where another test has installed it before, and that is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// One number from a database.
pub(crate) async fn count_in(url: &str, query: &str) -> i64 {
    let sql = Connect::connect(url).await.expect("the database answers");
    let row = sql.query_one_raw(Statement::from_string(sql.get_database_backend(), query)).await.unwrap().unwrap();
    let number = row.try_get_by_index::<i64>(0).unwrap();
    sql.close().await.unwrap();
    number
}

/// Every rule of the books holds.
pub(crate) async fn books_balance(url: &str) {
    let report = audit::audit(&SecretString::from(url)).await.expect("the audit runs");
    assert!(report.books_balance(), "{report}");
}

/// The body of `transfer` with everything that tests look at.
pub(crate) fn transfer(to: &str, amount: i64, key: &str) -> Value {
    json!({ "query": TRANSFER, "variables": { "input": {
        "to": to, "amount": amount.to_string(), "currency": "PTS", "idempotencyKey": key } } })
}

pub(crate) const TRANSFER: &str = "mutation Transfer($input: TransferInput!) { transfer(input: $input) { replayed \
    entry { id transactionId amount { amount } balanceAfter { amount } counterparty { memberId } } \
    wallet { balance { amount } version } \
    userErrors { __typename code field message ... on InsufficientFundsError { available { amount } } } } }";

pub(crate) const CLAIM_DAILY: &str = "mutation { claimDailyBonus { claim { id day streak amount { amount } } \
    wallet { balance { amount } } userErrors { code message ... on AlreadyClaimedError { claim { id } nextClaimAt } } } }";

pub(crate) const CLAIM_SIGNUP: &str = "mutation { claimSignupBonus { claim { id amount { amount } } \
    userErrors { code ... on AlreadyClaimedError { claim { id } nextClaimAt } } } }";

/// What reads and signs the tests' tokens.
fn tokens(settings: &Settings) -> Tokens {
    match settings.token.jwks {
        Some(_) => Tokens::open(&settings.token).expect("the key set is good"),
        None => Tokens::new(&SecretString::from(SECRET), &settings.token).expect("the secret is good"),
    }
}

/// A good token for a member.
pub(crate) fn token(member: &str) -> String {
    tokens(&Settings::default()).mint(&Member::parse(member).unwrap(), &[], Duration::from_hours(1)).expect("a token")
}

/// A token with a role, for whoever acts for the app.
pub(crate) fn trusted_token(name: &str, role: &str) -> String {
    let (member, roles) = (Member::parse(name).unwrap(), [role.to_owned()]);
    tokens(&Settings::default()).mint(&member, &roles, Duration::from_hours(1)).expect("a token")
}

/// Waits for a condition, looking often; fails after ten seconds.
pub(crate) async fn wait_until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started = std::time::Instant::now();
    while !condition().await {
        assert!(started.elapsed() < Duration::from_secs(10), "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The address of a server that `make test` has started.
pub(crate) fn servers_url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run the tests with `make test`, or under `scripts/with-servers`")
    })
}

pub(crate) fn unique() -> u32 {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// A database of the test's own, brought up to date.
pub(crate) async fn fresh_database(database: Database) -> (String, Option<std::sync::Arc<tempfile::TempDir>>) {
    match database {
        Database::Sqlite => {
            let folder = tempfile::tempdir().expect("a folder");
            let url = format!("sqlite:{}", folder.path().join("largesse.db").display());
            migrate(&SecretString::from(url.clone())).await.expect("the migrations run");
            (url, Some(std::sync::Arc::new(folder)))
        }
        Database::Postgres => {
            let name = format!("test_{}_{}", std::process::id(), unique());
            let template = TEMPLATE.get_or_init(make_template).await;
            run_on_server(&format!("CREATE DATABASE {name} TEMPLATE {template}")).await;
            (database_url(&name), None)
        }
    }
}

/// A database of the test's own without tables.
pub(crate) async fn empty_database(database: Database) -> (String, Option<std::sync::Arc<tempfile::TempDir>>) {
    match database {
        Database::Sqlite => {
            let folder = tempfile::tempdir().expect("a folder");
            let url = format!("sqlite:{}?mode=rwc", folder.path().join("largesse.db").display());
            (url, Some(std::sync::Arc::new(folder)))
        }
        Database::Postgres => {
            let name = format!("empty_{}_{}", std::process::id(), unique());
            run_on_server(&format!("CREATE DATABASE {name}")).await;
            (database_url(&name), None)
        }
    }
}

/// Migrated once and copied for each test.
static TEMPLATE: OnceCell<String> = OnceCell::const_new();

async fn make_template() -> String {
    let name = format!("template_{}", std::process::id());
    run_on_server(&format!("CREATE DATABASE {name}")).await;
    migrate(&SecretString::from(database_url(&name))).await.expect("the migrations run");
    name
}

/// The URL of a database on the tests' server.
pub(crate) fn database_url(name: &str) -> String {
    let server = servers_url("LARGESSE_TEST_POSTGRES_URL");
    let (base, _) = server.rsplit_once('/').expect("a URL with a database");
    format!("{base}/{name}")
}

pub(crate) async fn run_on_server(statement: &str) {
    let server = Connect::connect(servers_url("LARGESSE_TEST_POSTGRES_URL")).await.expect("PostgreSQL answers");
    server.execute_raw(Statement::from_string(DbBackend::Postgres, statement)).await.expect(statement);
    server.close().await.unwrap();
}
