//! Promise: whatever happens to a request, a payment or an event is told at `/metrics`, under the names, kinds and labels of
//! docs/metrics.md, as Prometheus wants it; and nothing that a client sends becomes a label.
//!
//! Guards `signals.rs`, `api/measure.rs`, `api/metrics_page.rs` and every place where something is counted. A metric that is kept
//! in a process is read from a process: the real server, driven through every kind of ending.

use std::collections::BTreeMap;
use std::time::Duration;

use largesse::signals::{Kind, METRICS};
use sea_orm::{ConnectionTrait, TransactionTrait};
use serde_json::{Value, json};

use crate::world::binary::{Running, largesse};
use crate::world::identity_provider::{IdentityProvider, KeyPair, Published};
use crate::world::metrics::{Scrape, lint};
use crate::world::outbox::WHSEC;
use crate::world::provider::{ACME, Message, notice};
use crate::world::proxy::{Deed, Proxy};
use crate::world::receiver::{Receiver, Reply};
use crate::world::redis_server::RedisServer;
use crate::world::socket::Socket;
use crate::world::{CLAIM_DAILY, CLAIM_SIGNUP, Database, Locks, World, token, transfer, wait_until};

/// What cannot be brought about here without an hour of it: a reader that is too slow, and a Redis that takes nothing more.
const NOT_DRIVEN: [&str; 2] = ["largesse_sockets_too_slow_total", "largesse_live_dropped_total"];

/// Gauges that are zero when all is well and done. What is at work is looked at while it is.
const MAY_BE_ZERO: [&str; 7] = [
    "largesse_http_requests_in_flight",
    "largesse_work_running",
    "largesse_work_waiting",
    "largesse_work_waiting_limit",
    "largesse_pool_connections_in_use",
    "largesse_audit_broken_rows",
    "largesse_audit_seconds",
];

/// Members of these names, and keys that begin so, must not be found in any metric.
const OF_CLIENTS: [&str; 4] = ["member-", "key-of-a-client", "alias_of_a_client", "field_of_a_client"];

/// Fails the first posting of the trigger's kind so that it is tried again, and every daily bonus so that it is not.
const FAILING: &str = "CREATE SEQUENCE postings;
CREATE FUNCTION fail() RETURNS trigger AS $$ BEGIN
  IF NEW.kind = 'daily_bonus' THEN RAISE EXCEPTION 'broken'; END IF;
  IF NEW.kind = 'bonus_grant' AND nextval('postings') = 1 THEN RAISE EXCEPTION 'again' USING ERRCODE = '40001'; END IF;
  RETURN NEW;
END $$ LANGUAGE plpgsql;
CREATE TRIGGER failing BEFORE INSERT ON transactions FOR EACH ROW EXECUTE FUNCTION fail()";

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_ending_is_told() {
    let scene = Scene::new().await;
    scene.ways_that_a_transfer_ends().await;
    scene.ways_that_other_fields_end().await;
    scene.while_wallets_are_locked().await;
    scene.payments().await;
    let mut socket = scene.subscriptions().await;
    scene.away_from_redis().await;
    let told = scene.told().await;
    socket.send(json!({ "type": "ping" })).await;
    assert_eq!(lint(&told.text), "");
    as_documented(&told);
    assert_eq!(transfers(&told), transfers_as_driven());
    let operations = |operation: &str, outcome: &str| {
        told.sum("largesse_operations_total", &[("operation", operation), ("outcome", outcome)])
    };
    for (operation, outcome, times) in [
        ("claimSignupBonus", "done", 1.0),
        ("claimSignupBonus", "refused", 1.0),
        ("claimDailyBonus", "internal", 1.0),
        ("claimDailyBonus", "unauthenticated", 1.0),
        ("grantBonus", "forbidden", 1.0),
        ("grantBonus", "invalid", 1.0),
        ("grantBonus", "done", 1.0),
        ("reverseTransaction", "refused", 1.0),
        ("viewer", "done", 1.0),
        ("viewer", "invalid", 1.0),
        ("node", "done", 1.0),
        ("walletChanged", "done", 1.0),
        ("walletChanged", "invalid", 1.0),
    ] {
        assert!((operations(operation, outcome) - times).abs() < 0.1, "{operation} {outcome}");
    }
    for text in OF_CLIENTS {
        assert!(!told.text.contains(text), "{text} is in the metrics:\n{}", told.text);
    }
    scene.end().await;
}

/// Names, kinds and labels are those of the list, and all of them are there and have moved.
fn as_documented(told: &Scrape) {
    let families = told.families();
    let unknown: Vec<_> = families.keys().filter(|name| METRICS.iter().all(|metric| metric.name != **name)).collect();
    assert!(unknown.is_empty(), "not in src/signals.rs: {unknown:?}");
    for metric in METRICS {
        let (kind, sample) = match metric.kind {
            Kind::Counter => ("counter", metric.name.to_owned()),
            Kind::Gauge => ("gauge", metric.name.to_owned()),
            Kind::Histogram(_) => ("histogram", format!("{}_count", metric.name)),
        };
        assert_eq!(families.get(metric.name), Some(&kind), "{}", metric.name);
        assert_eq!(told.labels_of(metric.name), metric.labels.iter().copied().collect(), "{}", metric.name);
        let may_be_zero = NOT_DRIVEN.contains(&metric.name) || MAY_BE_ZERO.contains(&metric.name);
        assert!(may_be_zero || told.sum(&sample, &[]) > 0.0, "{} has not moved", metric.name);
    }
    for class in ["1xx", "2xx", "4xx"] {
        assert!(told.sum("largesse_http_requests_total", &[("class", class)]) > 0.0, "{class}");
    }
    for decision in ["admitted", "refused", "answered"] {
        assert!(told.sum("largesse_cooldown_total", &[("decision", decision)]) > 0.0, "{decision}");
    }
    for end in ["kept", "shortened", "released"] {
        assert!(told.sum("largesse_cooldown_ended_total", &[("end", end)]) > 0.0, "{end}");
    }
    for outcome in ["won", "replayed", "mismatch", "concurrent"] {
        assert!(told.sum("largesse_idempotency_total", &[("outcome", outcome)]) > 0.0, "{outcome}");
    }
}

/// Transfers by outcome.
fn transfers(told: &Scrape) -> BTreeMap<String, u32> {
    let of = |outcome: &str| told.sum("largesse_operations_total", &[("operation", "transfer"), ("outcome", outcome)]);
    let outcomes = told.label_values();
    let counted =
        outcomes.into_iter().map(|outcome| (outcome.to_owned(), of(outcome))).filter(|(_, times)| *times > 0.0);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few")]
    counted.map(|(outcome, times)| (outcome, times as u32)).collect()
}

fn transfers_as_driven() -> BTreeMap<String, u32> {
    let driven = [
        ("done", 2),
        ("cooldown", 1),
        ("replayed", 2),
        ("mismatch", 1),
        ("invalid", 1),
        ("refused", 1),
        ("concurrent", 1),
        ("unknown", 1),
        ("unavailable", 1),
        ("abandoned", 1),
    ];
    driven.into_iter().map(|(outcome, times)| (outcome.to_owned(), times)).collect()
}

/// A server with all that it can be connected to.
struct Scene {
    world: World,
    running: Running,
    redis: RedisServer,
    proxy: Proxy,
    key: KeyPair,
    address: String,
    metrics: String,
    _others: (IdentityProvider, [Receiver; 3], tempfile::TempDir),
}

impl Scene {
    async fn new() -> Self {
        let world = books().await;
        let (redis, proxy) = (RedisServer::start(), Proxy::in_front_of(&world.url).await);
        let key = KeyPair::ed25519("k");
        let provider = IdentityProvider::start(Published::keys(&[key.public()])).await;
        let receivers = [
            Receiver::taking().await,
            Receiver::answering(|_| Reply::Status(410)).await,
            Receiver::answering(|_| Reply::Status(500)).await,
        ];
        let endpoints = ["taking", "gone", "failing"].iter().zip(&receivers).map(|(name, receiver)| {
            format!("{{name = \"{name}\", url = \"{}\", secrets = [\"{WHSEC}\"], events = []}}", receiver.url())
        });
        let folder = tempfile::tempdir().unwrap();
        let mut command = largesse(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
        command
            .env("DATABASE_URL", proxy.url())
            .env("REDIS_URL", redis.url())
            .env("LARGESSE_TOKEN_JWKS", &provider.url)
            .env("LARGESSE_DAILY_BONUS_AMOUNTS", "[50]")
            .env("LARGESSE_SIGNUP_BONUS_AMOUNT", "100")
            .env("LARGESSE_DATABASE_POOL_SIZE", "2")
            .env("LARGESSE_REQUEST_MOST_WAITING", "0")
            .env("LARGESSE_LOG_FORMAT", "json")
            // A lock that is gone from Redis is gone.
            .env("LARGESSE_COOLDOWN_REMEMBER", "0")
            .env("LARGESSE_LOG_REFUSALS_PER_SECOND", "0")
            .env("LARGESSE_METRICS_LISTEN", "127.0.0.1:0")
            .env("LARGESSE_WEBHOOKS_ENDPOINTS", format!("[{}]", endpoints.collect::<Vec<_>>().join(", ")))
            .env("LARGESSE_WEBHOOKS_ALLOW_PRIVATE_ADDRESSES", "true")
            .env("LARGESSE_FUNDING_PROVIDERS", format!("[{{name = \"{ACME}\", secrets = [\"{WHSEC}\"]}}]"));
        let running = Running::start(&mut command);
        let metrics = running.word_after("\"metrics_address\":\"");
        let address = format!("http://{}", running.word_after("\"address\":\""));
        let scene =
            Self { world, running, redis, proxy, key, address, metrics, _others: (provider, receivers, folder) };
        wait_until("the server is ready", async || {
            let response = reqwest::get(format!("{}/readyz", scene.address)).await.expect("it answers");
            response.text().await.unwrap() == "ok"
        })
        .await;
        scene
    }

    /// A token of the identity provider.
    fn token(&self, member: &str, roles: &[&str]) -> String {
        let claims = json!({ "sub": member, "roles": roles, "exp": chrono::Utc::now().timestamp() + 600 });
        self.key.token(&claims)
    }

    fn request(&self, token: Option<&str>, body: &Value) -> reqwest::RequestBuilder {
        let request = reqwest::Client::new().post(format!("{}/graphql", self.address)).json(body);
        match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn ask(&self, token: Option<&str>, body: Value) -> Value {
        self.request(token, &body).send().await.expect("it answers").json().await.expect("JSON")
    }

    /// Alice asks, and no lock of an earlier wish is in her way.
    async fn alice(&self, body: Value) -> Value {
        self.redis.command(&["FLUSHALL"]);
        self.ask(Some(&self.token("member-alice", &[])), body).await
    }

    async fn ways_that_a_transfer_ends(&self) {
        let send = |amount: i64, key: &str| transfer("member-bob", amount, &format!("key-of-a-client-{key}"));
        let done = self.alice(send(10, "1")).await;
        assert_eq!(done["data"]["transfer"]["userErrors"], json!([]), "{done}");
        let refused = self.ask(Some(&self.token("member-alice", &[])), send(10, "2")).await;
        assert_eq!(code(&refused), "COOLDOWN_ACTIVE", "{refused}");
        // The same again is answered beside its lock; and, where that is gone, from the books.
        let answered = self.ask(Some(&self.token("member-alice", &[])), send(10, "1")).await;
        assert_eq!(answered["data"]["transfer"]["replayed"], true, "{answered}");
        assert_eq!(self.alice(send(10, "1")).await["data"]["transfer"]["replayed"], true);
        assert_eq!(user_error(&self.alice(send(11, "1")).await), "IDEMPOTENCY_KEY_PARAMETER_MISMATCH");
        assert_eq!(user_error(&self.alice(send(0, "3")).await), "INVALID_INPUT");
        assert_eq!(user_error(&self.alice(send(1_000_000, "4")).await), "INSUFFICIENT_FUNDS");
        // Another process is at work with this key.
        let sql = self.world.sql().await;
        let other = sql.begin().await.unwrap();
        let insert = "INSERT INTO idempotency_keys (member_id, operation, key, fingerprint, transaction_id, created_at) \
                      SELECT member_id, operation, 'key-of-a-client-5', fingerprint, transaction_id, created_at \
                      FROM idempotency_keys WHERE key = 'key-of-a-client-1'";
        other.execute_unprepared(insert).await.unwrap();
        assert_eq!(code(&self.alice(send(10, "5")).await), "IDEMPOTENCY_CONCURRENT_REQUEST");
        other.rollback().await.unwrap();
        sql.close().await.unwrap();
        self.proxy.at_next("COMMIT", Deed::CutAfter);
        assert_eq!(code(&self.alice(send(10, "6")).await), "OUTCOME_UNKNOWN");
    }

    async fn ways_that_other_fields_end(&self) {
        let carol = self.token("member-carol", &[]);
        let signup = json!({ "query": CLAIM_SIGNUP });
        assert_eq!(self.ask(Some(&carol), signup.clone()).await["errors"], Value::Null);
        self.redis.command(&["FLUSHALL"]);
        assert_eq!(self.ask(Some(&carol), signup).await["data"]["claimSignupBonus"]["claim"], Value::Null);
        let daily = json!({ "query": CLAIM_DAILY });
        assert_eq!(code(&self.ask(Some(&carol), daily.clone()).await), "INTERNAL_SERVER_ERROR");
        assert_eq!(code(&self.ask(None, daily).await), "UNAUTHENTICATED");
        assert_eq!(code(&self.ask(Some(&carol), grant(5, "key-of-a-client-7")).await), "FORBIDDEN");
        let service = self.token("member-service", &["service"]);
        let invalid = self.ask(Some(&service), grant(0, "key-of-a-client-8")).await;
        assert_eq!(invalid["data"]["grantBonus"]["userErrors"][0]["code"], "INVALID_INPUT", "{invalid}");
        // The database asks to run this one again.
        let done = self.ask(Some(&service), grant(5, "key-of-a-client-9")).await;
        assert_eq!(done["data"]["grantBonus"]["userErrors"], json!([]), "{done}");
        let reverse = "mutation { reverseTransaction(input: { transactionId: \"key-of-a-client\", reason: \"r\", \
                       idempotencyKey: \"key-of-a-client-10\" }) { userErrors { code } } }";
        self.ask(Some(&service), json!({ "query": reverse })).await;
        let reads = "{ alias_of_a_client: viewer { memberId } node(id: \"member-x\") { id } }";
        self.ask(Some(&carol), json!({ "query": reads })).await;
        let reads = "{ viewer { wallet(currency: \"XXX\") { id } } }";
        assert_eq!(code(&self.ask(Some(&carol), json!({ "query": reads })).await), "BAD_USER_INPUT");
        let invalid = self.ask(Some(&carol), json!({ "query": "{ field_of_a_client }" })).await;
        assert_eq!(code(&invalid), "GRAPHQL_VALIDATION_FAILED");
        assert_eq!(
            code(&self.ask(Some(&token("member-mallory")), json!({ "query": "{ __typename }" })).await),
            "UNAUTHENTICATED"
        );
        reqwest::get(format!("{}/member-path", self.address)).await.unwrap();
    }

    /// Two grants wait for bob's wallet and fill the pool; a third finds no place. A transfer waits in vain; and one more is
    /// given up by a client that does not wait.
    async fn while_wallets_are_locked(&self) {
        let sql = self.world.sql().await;
        let other = sql.begin().await.unwrap();
        other.execute_unprepared("SELECT * FROM wallets FOR UPDATE").await.unwrap();
        let service = self.token("member-service", &["service"]);
        let grants = (0..2).map(|number| self.ask(Some(&service), grant(5, &format!("key-of-a-client-1{number}"))));
        let third = async {
            wait_until("both wait for the wallet", async || self.world.waiting_for_locks().await == 2).await;
            let full = self.ask(Some(&service), grant(5, "key-of-a-client-12")).await;
            assert_eq!(code(&full), "UNAVAILABLE", "{full}");
            let told = Scrape::of(&self.metrics).await;
            let in_flight = told.sum("largesse_http_requests_in_flight", &[("front", "graphql")]);
            let running = told.sum("largesse_work_running", &[]);
            assert_eq!((in_flight.to_string(), running.to_string()), ("2".to_owned(), "2".to_owned()));
        };
        let (both, ()) = tokio::join!(futures_util::future::join_all(grants), third);
        assert!(both.iter().all(|answer| code(answer) == "UNAVAILABLE"), "{both:?}");
        let send = |key: &str| transfer("member-bob", 1, &format!("key-of-a-client-{key}"));
        assert_eq!(code(&self.alice(send("13")).await), "UNAVAILABLE");
        self.redis.command(&["FLUSHALL"]);
        let alice = self.token("member-alice", &[]);
        let given_up = self.request(Some(&alice), &send("14")).timeout(Duration::from_millis(300)).send().await;
        assert!(given_up.is_err_and(|error| error.is_timeout()));
        other.rollback().await.unwrap();
        sql.close().await.unwrap();
    }

    async fn payments(&self) {
        let good =
            Message::new("key-of-a-client-15", notice("key-of-a-client", "succeeded", "member-alice", 5).to_string());
        let mut bad = good.clone();
        bad.signatures.insert_str(0, "v9,");
        for (message, status) in [(good, 200), (bad, 401)] {
            let request = reqwest::Client::new().post(format!("{}/webhooks/funding/{ACME}", self.address));
            let request = request.header("webhook-id", message.id).header("webhook-timestamp", message.timestamp);
            let request = request.header("webhook-signature", message.signatures).body(message.body);
            assert_eq!(request.send().await.unwrap().status().as_u16(), status);
        }
    }

    /// A socket that stays open, with a subscription that runs and one that did not begin.
    async fn subscriptions(&self) -> Socket {
        let mut socket = Socket::at(&self.address, &self.token("member-alice", &[])).await;
        let watch = "subscription { alias_of_a_client: walletChanged { wallet { version } } }";
        socket.subscribe("1", watch, json!({})).await;
        socket.event("1").await;
        let nothing = "subscription { walletChanged(currency: \"XXX\") { wallet { version } } }";
        socket.subscribe("2", nothing, json!({})).await;
        let refused = socket.next().await;
        assert!(refused.to_string().contains("BAD_USER_INPUT"), "{refused}");
        socket
    }

    /// The process decides while Redis is away.
    async fn away_from_redis(&self) {
        self.redis.freeze();
        let alice = self.token("member-alice", &[]);
        let done = self.ask(Some(&alice), transfer("member-bob", 1, "key-of-a-client-16")).await;
        assert_eq!(done["data"]["transfer"]["userErrors"], json!([]), "{done}");
        self.redis.thaw();
    }

    /// What is told once the workers and the probes have been around.
    async fn told(&self) -> Scrape {
        Scrape::until(&self.metrics, "the workers have told of everything", |told| {
            ["largesse_outbox_dead_letters", "largesse_outbox_pending", "largesse_outbox_oldest_pending_seconds"]
                .iter()
                .all(|name| told.sum(name, &[]) > 0.0)
                && told.sum("largesse_webhook_attempts_total", &[("outcome", "delivered")]) > 0.0
                && told.sum("largesse_pool_wait_seconds_count", &[]) > 0.0
                && told.sum("largesse_audit_finished_timestamp_seconds", &[]) > 0.0
                // Whoever scrapes is no request, and the work of those who left ends as well.
                && told.sum("largesse_http_requests_in_flight", &[("front", "graphql")]) == 0.0
                && told.sum("largesse_work_running", &[]) == 0.0
        })
        .await
    }

    async fn end(self) {
        self.running.signal("TERM");
        assert_eq!(self.running.wait().code, Some(0));
        self.world.end().await;
    }
}

/// Alice has 100 points, bob is known; a key and an event wait to be forgotten; and postings fail as the trigger says.
async fn books() -> World {
    let world = World::new(Database::Postgres, Locks::Off).await;
    world.fund("member-alice").await;
    world.introduce("member-bob").await;
    let refused = world.ask(
        "member-alice",
        "mutation($i: TransferInput!) { transfer(input: $i) { replayed } }",
        json!({
        "i": transfer("member-bob", 1_000, "old")["variables"]["input"] }),
    );
    refused.await;
    let sql = world.sql().await;
    for statement in [
        "UPDATE idempotency_keys SET expires_at = created_at",
        "INSERT INTO outbox (id, endpoint, wallet_id, seq, event, payload, created_at, delivered_at) \
         SELECT gen_random_uuid(), 'taking', id, 1, 'e', 'p', now() - interval '30 days', now() - interval '30 days' \
         FROM wallets",
        FAILING,
    ] {
        sql.execute_unprepared(statement).await.unwrap();
    }
    sql.close().await.unwrap();
    world
}

fn grant(amount: i64, key: &str) -> Value {
    let document = "mutation($i: GrantBonusInput!) { grantBonus(input: $i) { userErrors { code } } }";
    json!({ "query": document, "variables": { "i": {
        "memberId": "member-alice", "amount": amount.to_string(), "currency": "PTS", "idempotencyKey": key, "reason": "r" } } })
}

fn code(answer: &Value) -> &str {
    answer["errors"][0]["extensions"]["code"].as_str().unwrap_or("none")
}

fn user_error(answer: &Value) -> &str {
    answer["data"]["transfer"]["userErrors"][0]["code"].as_str().unwrap_or("none")
}
