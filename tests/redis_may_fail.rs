//! Promise: Redis may fail. Every answer still comes within a second, value still moves once, and Redis is used again within
//! two seconds of its return, without a restart and without a lock that no attempt stands behind.
//!
//! Guards layer 1's stores: the bounded wait, the fallback, the keeper of the connection, the release that follows a SET
//! without an answer, and who may vouch for a TLS server.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::on_both;
use crate::world::redis_server::RedisServer;
use crate::world::{Answer, CLAIM_DAILY, CLAIM_SIGNUP, Database, Locks, World, token, transfer, wait_until};
use largesse::config::{ActionSettings, WithoutRedis};

const RIVALS: usize = 50;

/// The longest that anybody waits for an answer while Redis fails.
const PROMPT: Duration = Duration::from_secs(1);

/// Within this, a Redis that has returned is used again.
const RECOVERY: Duration = Duration::from_secs(2);

/// How a Redis can fail, and return.
#[derive(Debug, Clone, Copy)]
enum Failing {
    Stopped,
    Frozen,
    ReadOnly,
}

impl Failing {
    fn begin(self, redis: &mut RedisServer) {
        match self {
            Self::Stopped => redis.stop(),
            Self::Frozen => redis.freeze(),
            Self::ReadOnly => redis.refuse_writes(),
        }
    }

    fn end(self, redis: &mut RedisServer) {
        match self {
            Self::Stopped => redis.start_again(),
            Self::Frozen => redis.thaw(),
            Self::ReadOnly => redis.accept_writes(),
        }
    }
}

on_both!(redis_is_stopped, |database| redis_fails(database, Failing::Stopped));
on_both!(redis_is_frozen, |database| redis_fails(database, Failing::Frozen));
on_both!(redis_is_read_only, |database| redis_fails(database, Failing::ReadOnly));

async fn redis_fails(database: Database, failing: Failing) {
    let mut redis = RedisServer::start();
    let world = World::new(database, Locks::RedisAt(redis.url())).await;
    world.fund("payer").await;
    world.introduce("receiver").await;
    let usual = storm_of_the_usual_kind(&world).await;
    redis.command(&["FLUSHALL"]);
    failing.begin(&mut redis);

    the_process_stands_in(&world).await;
    claims_are_paid_once(&world, usual).await;
    one_key_moves_value_once(&world, usual).await;
    wait_until("the health check has seen it", async || world.get("/readyz").await.1.starts_with("degraded")).await;
    assert_eq!(world.get("/readyz").await.0, 200, "without Redis the work can be done");

    failing.end(&mut redis);
    let returned = Instant::now();
    redis_decides_again(&world, &redis, returned).await;
    // What was admitted by the process still counts.
    let (again, _) = world.timed("fallback", json!({ "query": CLAIM_DAILY })).await;
    assert_eq!(again.codes(), ["COOLDOWN_ACTIVE"], "{}", again.body);
    wait_until("the health check is content", async || world.get("/readyz").await == (200, "ok".to_owned())).await;
    world.end().await;
}

/// The first attempt is admitted, and the second inside the window is refused, by the process alone.
async fn the_process_stands_in(world: &World) {
    let (first, took) = world.timed("fallback", json!({ "query": CLAIM_DAILY })).await;
    assert_eq!(first.data("/claimDailyBonus/claim/streak"), 1, "{}", first.body);
    assert!(took < PROMPT, "{took:?}");
    let (second, took) = world.timed("fallback", json!({ "query": CLAIM_DAILY })).await;
    assert_eq!(second.codes(), ["COOLDOWN_ACTIVE"], "{}", second.body);
    assert!(second.body["errors"][0]["extensions"]["retryAfterMs"].as_i64().unwrap() > 0);
    assert!(took < PROMPT, "{took:?}");
}

/// How long a storm takes here while Redis is well: what a failing Redis adds to it is measured, not the machine.
async fn storm_of_the_usual_kind(world: &World) -> Duration {
    let began = Instant::now();
    world.storm(RIVALS, |_| ("early".to_owned(), json!({ "query": CLAIM_DAILY }))).await;
    began.elapsed()
}

async fn claims_are_paid_once(world: &World, usual: Duration) {
    let answers = storm(world, "claimer", &json!({ "query": CLAIM_DAILY }), usual).await;
    let paid = answers.iter().filter(|answer| answer.data("/claimDailyBonus/claim/streak") == 1).count();
    assert_eq!((paid, world.balance("claimer").await), (1, 10));
}

async fn one_key_moves_value_once(world: &World, usual: Duration) {
    let answers = storm(world, "payer", &transfer("receiver", 30, "one"), usual).await;
    let moved = answers.iter().filter(|answer| answer.data("/transfer/replayed") == false).count();
    assert_eq!((moved, world.balance("payer").await, world.balance("receiver").await), (1, 70, 30));
}

/// Everybody at once, while Redis fails: done once, and everybody else is refused, or told what was done.
async fn storm(world: &World, member: &str, body: &Value, usual: Duration) -> Vec<Answer> {
    let began = Instant::now();
    let answers = world.storm(RIVALS, |_| (member.to_owned(), body.clone())).await;
    let took = began.elapsed();
    assert!(took < usual + PROMPT, "the last answer came after {took:?}; without a failure it comes after {usual:?}");
    let (not_admitted, admitted): (Vec<_>, Vec<_>) = answers
        .iter()
        .partition(|answer| answer.codes() == ["COOLDOWN_ACTIVE"] || answer.data("/transfer/replayed") == true);
    assert_eq!((admitted.len(), not_admitted.len()), (1, RIVALS - 1), "the process admits one and not the others");
    assert_eq!(admitted[0].code(), None);
    answers
}

/// New members come until one's lock appears in Redis.
async fn redis_decides_again(world: &World, redis: &RedisServer, returned: Instant) {
    for number in 0.. {
        assert!(returned.elapsed() < RECOVERY, "Redis returned {:?} ago and is not used", returned.elapsed());
        let member = format!("after {number}");
        let (answer, took) = world.timed(&member, json!({ "query": CLAIM_DAILY })).await;
        assert_eq!(answer.data("/claimDailyBonus/claim/streak"), 1, "{}", answer.body);
        assert!(took < PROMPT, "{took:?}");
        let keys = redis.keys();
        if !keys.is_empty() {
            let id = largesse::member::Member::parse(&member).unwrap().id().simple().to_string();
            assert!(keys.len() == 1 && keys[0].contains(&id), "only who was admitted by Redis has a lock: {keys:?}");
            return;
        }
    }
}

/// Claims that are under way when Redis goes away are decided by Redis or by the process: the claim row still pays once.
mod redis_fails_in_the_middle_of_a_storm {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn stopped() {
        in_the_middle(Failing::Stopped).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn frozen() {
        in_the_middle(Failing::Frozen).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn read_only() {
        in_the_middle(Failing::ReadOnly).await;
    }

    async fn in_the_middle(failing: Failing) {
        let mut redis = RedisServer::start();
        let world = World::new(Database::Postgres, Locks::RedisAt(redis.url())).await;
        let failure = tokio::task::spawn_blocking(move || {
            failing.begin(&mut redis);
            redis
        });
        let answers = world.storm(RIVALS, |_| ("alice".to_owned(), json!({ "query": CLAIM_DAILY }))).await;
        let mut redis = failure.await.unwrap();
        for answer in &answers {
            let refused = answer.user_error("claimDailyBonus").or(answer.code());
            assert!(matches!(refused, None | Some("ALREADY_CLAIMED" | "COOLDOWN_ACTIVE")), "{}", answer.body);
        }
        let paid = answers.iter().filter(|answer| answer.data("/claimDailyBonus/claim/streak") == 1).count();
        assert_eq!((paid, world.balance("alice").await), (1, 10));
        failing.end(&mut redis);
        world.end().await;
    }
}

/// Locks whose SET a frozen Redis applies late are released: their attempts were decided elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_thawed_redis_keeps_no_lock_of_attempts_that_it_did_not_decide() {
    let redis = RedisServer::start();
    let world = World::with(Database::Postgres, Locks::RedisAt(redis.url()), |settings| {
        // Time for all of them to send their SET before the first one gives up.
        settings.cooldown.command_timeout_ms = 800;
        // Longer than the test waits: a lock that goes away was released.
        let action = ActionSettings { window_ms: Some(60_000), ..ActionSettings::default() };
        settings.cooldown.actions.insert("claimDailyBonus".to_owned(), action);
    })
    .await;
    let sets_before = redis.calls("set");
    redis.freeze();
    let answers = world.storm(20, |number| (format!("member {number}"), json!({ "query": CLAIM_DAILY }))).await;
    assert!(answers.iter().all(|answer| answer.data("/claimDailyBonus/claim/streak") == 1), "{answers:?}");
    assert!(redis.unread_bytes() > 0, "the frozen Redis was sent locks");
    redis.thaw();
    wait_until("the locks were set late", async || redis.calls("set") >= sets_before + 20).await;
    wait_until("and released", async || redis.keys().is_empty()).await;
    world.end().await;
}

/// Nobody waits for the answer any more, so nobody else can give the lock back.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_up_while_redis_is_frozen_leaves_no_lock() {
    let redis = RedisServer::start();
    let world = World::with(Database::Postgres, Locks::RedisAt(redis.url()), |settings| {
        // Longer than the test: the release must come from the hanging up, not from the wait's own end.
        settings.cooldown.command_timeout_ms = 30_000;
    })
    .await;
    redis.freeze();
    let mut client = raw_post(&world, "alice", &json!({ "query": CLAIM_DAILY })).await;
    wait_until("the lock is asked for", async || redis.unread_bytes() > 0).await;
    let asked = redis.unread_bytes();
    client.shutdown().await.unwrap();
    drop(client);
    wait_until("the lock is given back", async || redis.unread_bytes() > asked).await;
    redis.thaw();
    wait_until("both were applied", async || redis.calls("set") == 1 && redis.calls("eval") == 1).await;
    assert_eq!(redis.keys(), Vec::<String>::new());
    assert_eq!(world.count("SELECT COUNT(*) FROM claims").await, 0, "the work was never begun");
    world.end().await;
}

/// A request on a connection that can be cut.
pub(crate) async fn raw_post(world: &World, member: &str, body: &Value) -> tokio::net::TcpStream {
    let (body, token) = (body.to_string(), token(member));
    let host = world.address().strip_prefix("http://").unwrap();
    let mut connection = tokio::net::TcpStream::connect(host).await.unwrap();
    let request = format!(
        "POST /graphql HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nAuthorization: Bearer {token}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    connection
}

on_both!(an_action_that_is_set_to_refuse_is_unavailable_without_redis, async |database| {
    for failing in [Failing::Stopped, Failing::Frozen, Failing::ReadOnly] {
        let mut redis = RedisServer::start();
        let world = World::with(database, Locks::RedisAt(redis.url()), |settings| {
            let action = ActionSettings { without_redis: WithoutRedis::Refuse, ..ActionSettings::default() };
            settings.cooldown.actions.insert("transfer".to_owned(), action);
        })
        .await;
        world.fund("alice").await;
        world.introduce("bob").await;
        failing.begin(&mut redis);
        for _ in 0..2 {
            let (answer, took) = world.timed("alice", transfer("bob", 30, "one")).await;
            assert_eq!((answer.codes(), answer.status), (vec!["UNAVAILABLE"], 200), "{}", answer.body);
            assert!(answer.data("/transfer").is_null());
            assert_eq!(answer.body["errors"][0]["path"], json!(["transfer"]));
            assert!(answer.body["errors"][0]["extensions"]["retryAfterMs"].as_i64().unwrap() > 0);
            assert_eq!(answer.headers["retry-after"], "1");
            assert!(took < PROMPT, "{took:?}");
        }
        assert_eq!(world.count("SELECT COUNT(*) FROM idempotency_keys").await, 0, "nothing was written");
        assert_eq!((world.balance("alice").await, world.balance("bob").await), (100, 0));
        let (other, _) = world.timed("bob", json!({ "query": CLAIM_DAILY })).await;
        assert_eq!(other.data("/claimDailyBonus/claim/streak"), 1, "other actions go on: {}", other.body);
        wait_until("the health check has seen it", async || world.get("/readyz").await.0 == 503).await;

        failing.end(&mut redis);
        wait_until("it is ready again", async || world.get("/readyz").await == (200, "ok".to_owned())).await;
        let (answer, _) = world.timed("alice", transfer("bob", 30, "one")).await;
        assert_eq!(answer.data("/transfer/replayed"), false, "{failing:?}: {}", answer.body);
        world.end().await;
    }
});

/// A Redis that is away when the server starts is used once it is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_comes_after_the_server_is_used() {
    let mut redis = RedisServer::start();
    redis.stop();
    let world = World::new(Database::Postgres, Locks::RedisAwayAt(redis.url())).await;
    the_process_stands_in(&world).await;
    redis.start_again();
    redis_decides_again(&world, &redis, Instant::now()).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_spoken_with_a_server_that_the_ca_file_vouches_for() {
    let redis = RedisServer::start_with_tls("IP:127.0.0.1");
    let world = World::with(Database::Postgres, Locks::RedisAt(redis.tls_url()), |settings| {
        settings.redis_ca_file = Some(redis.ca_file());
        // Redis must decide here, also on a machine that is slow at this moment.
        settings.cooldown.command_timeout_ms = 5000;
    })
    .await;
    let answers = world.storm(RIVALS, |_| ("alice".to_owned(), json!({ "query": CLAIM_DAILY }))).await;
    assert_eq!(answers.iter().filter(|answer| answer.codes() == ["COOLDOWN_ACTIVE"]).count(), RIVALS - 1);
    let [key] = &redis.keys()[..] else { panic!("one lock") };
    assert!((1..=5000).contains(&redis.left_ms(key)), "it ends by itself");
    world.end().await;
}

/// An unknown authority, one that vouches for another server, and a certificate for another name: each is refused, and the
/// process stands in.
#[tokio::test(flavor = "multi_thread")]
async fn tls_is_not_spoken_with_a_server_that_nobody_vouches_for() {
    let (redis, other) =
        (RedisServer::start_with_tls("IP:127.0.0.1"), RedisServer::start_with_tls("DNS:redis.example"));
    for (server, ca_file) in [(&redis, None), (&redis, Some(other.ca_file())), (&other, Some(other.ca_file()))] {
        let world = World::with(Database::Postgres, Locks::RedisAwayAt(server.tls_url()), |settings| {
            settings.redis_ca_file.clone_from(&ca_file);
        })
        .await;
        // Long enough for several attempts to connect.
        let connections = connections(server);
        wait_until("it was tried", async || self::connections(server) >= connections + 6).await;
        assert!(world.get("/readyz").await.1.starts_with("degraded"), "{ca_file:?}");
        the_process_stands_in(&world).await;
        assert_eq!(server.keys(), Vec::<String>::new());
        world.end().await;
    }
}

/// How many connections a Redis has accepted. Asking is one of them, and [`RedisServer::command`] makes one more.
fn connections(redis: &RedisServer) -> u64 {
    let redis::Value::BulkString(text) = redis.command(&["INFO", "stats"]) else { panic!("INFO is a text") };
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.expect("the counter").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn deployments_with_prefixes_of_their_own_do_not_meet_on_one_redis() {
    let redis = RedisServer::start();
    let world = |prefix: &'static str| {
        World::with(Database::Postgres, Locks::RedisAt(redis.url()), move |settings| {
            prefix.clone_into(&mut settings.cooldown.prefix);
        })
    };
    let worlds = [world("shop").await, world("shop:eu").await, world("").await];
    for world in &worlds {
        let (first, _) = world.timed("alice", json!({ "query": CLAIM_DAILY })).await;
        assert_eq!(first.data("/claimDailyBonus/claim/streak"), 1, "{}", first.body);
        let (second, _) = world.timed("alice", json!({ "query": CLAIM_DAILY })).await;
        assert_eq!(second.codes(), ["COOLDOWN_ACTIVE"]);
    }
    assert_eq!(redis.keys().len(), worlds.len());
    for world in worlds {
        world.end().await;
    }
}

/// Names that could end a hash tag, name another action, look alike or fold to the same letters.
#[tokio::test(flavor = "multi_thread")]
async fn no_two_members_share_a_key_whatever_their_names_hold() {
    let names = [
        "alice",
        "Alice",
        "alice ",
        " alice",
        "alice:claimDailyBonus",
        "alice}:claimDailyBonus",
        "{alice}",
        "alice}",
        "{",
        "}",
        "{}",
        ":",
        "::",
        "a:b",
        "a",
        "b",
        "*",
        "?",
        "\u{e9}",
        "e\u{301}",
        "\u{130}",
        "i",
        "\u{1f600}",
        "\\",
        "\"",
        "'",
        "alice\u{a0}",
        "alice\u{200b}",
        "../alice",
        "%61lice",
    ];
    let redis = RedisServer::start();
    let world = World::new(Database::Postgres, Locks::RedisAt(redis.url())).await;
    for name in names {
        for (field, document) in [("claimDailyBonus", CLAIM_DAILY), ("claimSignupBonus", CLAIM_SIGNUP)] {
            let (answer, _) = world.timed(name, json!({ "query": document })).await;
            assert!(answer.body["data"][field]["claim"]["id"].is_string(), "{name:?}: {}", answer.body);
        }
    }
    let keys = redis.keys();
    assert_eq!(keys.len(), 2 * names.len());
    for key in keys {
        let (before, rest) = key.split_once('{').expect("one hash tag");
        let (member, action) = rest.split_once('}').expect("one hash tag");
        assert_eq!(before, format!("{}:", world.settings.cooldown.prefix));
        assert!(member.bytes().all(|byte| byte.is_ascii_hexdigit()), "{key}");
        assert!([":claimDailyBonus", ":claimSignupBonus"].contains(&action), "{key}");
    }
    world.end().await;
}
