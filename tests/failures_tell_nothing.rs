//! Promise: whatever fails, a client learns one fixed text, a stable code and a request id; the log has the cause under the
//! same id; and nobody waits for ever.
//!
//! Guards the boundary (what an error looks like, and what is logged), the front (routes, body, deadline, headers) and the
//! sorting of database errors into "away or slow" and "ours".

use std::time::{Duration, Instant};

use sea_orm::{ConnectionTrait, TransactionTrait};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::on_both;
use crate::world::redis_server::free_port;
use crate::world::{
    Answer, CLAIM_DAILY, CLAIM_SIGNUP, Database, Locks, TRANSFER, World, log, token, transfer, unique, wait_until,
};

const UNAVAILABLE: (&str, &str) = ("UNAVAILABLE", "Not available at this moment; ask again.");
const INTERNAL: (&str, &str) = ("INTERNAL_SERVER_ERROR", "Something went wrong on our side.");

/// A read that touches the books.
const WALLET: &str = "{ viewer { wallet { balance { amount } } } }";

/// What belongs to the inside: SQL, tables, drivers, hosts.
const INSIDE: [&str; 21] = [
    "select",
    "insert",
    "update ",
    "relation",
    "column",
    "table",
    "wallets",
    "entries",
    "members",
    "claims",
    "idempotency_",
    "sql",
    "postgres",
    "sea_orm",
    "pool",
    "timeout",
    "connection",
    "127.0.0.1",
    "localhost",
    ".db",
    "src/",
];

/// What is asked in each way to fail: a read, and each kind of work.
fn questions() -> [Value; 4] {
    [
        json!({ "query": WALLET }),
        json!({ "query": CLAIM_DAILY }),
        json!({ "query": CLAIM_SIGNUP }),
        transfer("bob", 1, "k"),
    ]
}

/// Asks under a request id of the test's own, which no word of the inside is part of.
async fn ask(world: &World, member: &str, body: &Value) -> (String, Answer) {
    let id = format!("asked-{}", unique());
    let answer = send(world, body.to_string(), |request| {
        request.bearer_auth(token(member)).header("content-type", "application/json").header("x-request-id", &id)
    });
    (id.clone(), answer.await)
}

/// Sends a body with headers.
async fn send(
    world: &World,
    body: impl Into<reqwest::Body>,
    with: impl FnOnce(reqwest::RequestBuilder) -> reqwest::RequestBuilder,
) -> Answer {
    let request = reqwest::Client::new().post(format!("{}/graphql", world.address())).body(body);
    let response = with(request).send().await.expect("the server answers");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.unwrap();
    Answer { status, headers, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) }
}

/// The answer is one error of this code and text, tells nothing, and its cause is in the log.
async fn fails(world: &World, body: &Value, (code, message): (&str, &str)) {
    fails_for(world, "alice", body, (code, message)).await;
}

async fn fails_for(world: &World, member: &str, body: &Value, expected: (&str, &str)) {
    let (id, answer) = ask(world, member, body).await;
    failed(&id, &answer, expected);
}

fn failed(id: &str, answer: &Answer, (code, message): (&str, &str)) {
    let body = &answer.body;
    assert_eq!((answer.codes(), answer.status), (vec![code], 200), "{body}");
    let error = &body["errors"][0];
    assert_eq!((&error["message"], &error["extensions"]["requestId"]), (&json!(message), &json!(id)), "{body}");
    assert_eq!(answer.headers["x-request-id"], id);
    assert_eq!(answer.headers["cache-control"], "no-store");
    let retries = code == UNAVAILABLE.0;
    assert_eq!(error["extensions"]["retryAfterMs"].is_u64(), retries, "{body}");
    assert_eq!(answer.headers.contains_key("retry-after"), retries);
    // The path is the client's own words, and the id too.
    let text = format!("{} {}", error["message"], error["extensions"]).to_lowercase();
    for word in INSIDE {
        assert!(!text.contains(word), "\"{word}\" stands in {body}");
    }
    let keys: Vec<_> = error.as_object().unwrap().keys().map(String::as_str).collect();
    assert!(keys.iter().all(|key| ["message", "path", "extensions"].contains(key)), "{body}");
    let keys: Vec<_> = error["extensions"].as_object().unwrap().keys().map(String::as_str).collect();
    assert!(keys.iter().all(|key| ["code", "requestId", "retryAfterMs"].contains(key)), "{body}");
    let events = log::of_request(id);
    let told = events.iter().find(|event| event.field("code") == code);
    let told = told.unwrap_or_else(|| panic!("the log has no cause of {id}: {events:?}"));
    assert!(told.field("cause").len() > 5, "{told:?}");
    let level = if retries { tracing::Level::WARN } else { tracing::Level::ERROR };
    assert_eq!(told.level, level);
}

async fn execute(sql: &impl ConnectionTrait, statement: &str) {
    sql.execute_unprepared(statement).await.expect(statement);
}

/// A server whose database is on a port where nobody listens.
#[tokio::test(flavor = "multi_thread")]
async fn the_database_is_down() {
    for locks in [Locks::Off, Locks::InProcess] {
        let world = World::new(Database::Postgres, locks).await;
        let down = world.through(format!("postgres://postgres@127.0.0.1:{}/postgres", free_port())).await;
        for question in questions() {
            fails(&down, &question, UNAVAILABLE).await;
            // The lock was given back, for nothing was done.
            fails(&down, &question, UNAVAILABLE).await;
        }
        let asked = Instant::now();
        assert_eq!(down.get("/readyz").await, (503, "the database does not answer".to_owned()));
        assert!(asked.elapsed() < Duration::from_millis(1500), "{:?}", asked.elapsed());
        assert_eq!(down.get("/livez").await.0, 200, "a restart would mend nothing");
        down.stop().await;
        world.end().await;
    }
}

/// Something listens and never says a word.
#[tokio::test(flavor = "multi_thread")]
async fn the_database_hangs() {
    let world = World::new(Database::Postgres, Locks::InProcess).await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let down = world.through(format!("postgres://postgres@{}/postgres", silent.local_addr().unwrap())).await;
    let asked = Instant::now();
    assert_eq!(down.get("/readyz").await, (503, "the database does not answer".to_owned()));
    assert!(asked.elapsed() < Duration::from_millis(1500), "{:?}", asked.elapsed());
    let asked = Instant::now();
    fails(&down, &json!({ "query": WALLET }), UNAVAILABLE).await;
    assert!(asked.elapsed() < Duration::from_secs(4), "the deadline and its grace: {:?}", asked.elapsed());
    down.stop().await;
    world.end().await;
}

/// A server whose SQLite file was lost and made anew by whoever opened it first: nothing is in it.
#[tokio::test(flavor = "multi_thread")]
async fn the_database_file_is_empty() {
    for locks in [Locks::Off, Locks::InProcess] {
        let world = World::new(Database::Sqlite, locks).await;
        let folder = tempfile::tempdir().unwrap();
        let empty = world.through(format!("sqlite:{}", folder.path().join("books.db").display())).await;
        for question in questions() {
            fails(&empty, &question, INTERNAL).await;
        }
        assert_eq!(empty.get("/readyz").await, (503, "the database does not answer".to_owned()));
        empty.stop().await;
        world.end().await;
    }
}

/// The server ends sessions in the middle of a statement, of a read and of a write.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_ended_in_the_middle() {
    for locks in [Locks::Off, Locks::InProcess] {
        let world = World::new(Database::Postgres, locks).await;
        world.fund("alice").await;
        world.introduce("bob").await;
        for question in [json!({ "query": WALLET }), transfer("bob", 30, "cut")] {
            let held = world.sql().await;
            let holding = held.begin().await.unwrap();
            execute(&holding, "LOCK TABLE wallets IN ACCESS EXCLUSIVE MODE").await;
            let ended = async {
                wait_until("it waits", async || world.waiting_for_locks().await == 1).await;
                execute(&held, TERMINATE).await;
            };
            let ((id, answer), ()) = tokio::join!(ask(&world, "alice", &question), ended);
            failed(&id, &answer, UNAVAILABLE);
            holding.rollback().await.unwrap();
        }
        // The same key, at once: nothing was done, the lock was given back, and the pool works.
        let (_, again) = ask(&world, "alice", &transfer("bob", 30, "cut")).await;
        assert_eq!(again.data("/transfer/replayed"), false, "{}", again.body);
        assert_eq!((world.balance("alice").await, world.balance("bob").await), (70, 30));
        world.end().await;
    }
}

const TERMINATE: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
    AND wait_event_type = 'Lock'";

/// Idle connections that the server ended are found out about by the next request: it fails or not, and tells nothing.
#[tokio::test(flavor = "multi_thread")]
async fn idle_sessions_are_ended() {
    let world = World::new(Database::Postgres, Locks::Off).await;
    world.fund("alice").await;
    let sql = world.sql().await;
    execute(
        &sql,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() \
         AND pid <> pg_backend_pid()",
    )
    .await;
    for _ in 0..20 {
        let (id, answer) = ask(&world, "alice", &json!({ "query": WALLET })).await;
        if !answer.codes().is_empty() {
            failed(&id, &answer, UNAVAILABLE);
        }
    }
    assert_eq!(world.balance("alice").await, 100, "the pool has recovered");
    world.end().await;
}

// A lock that somebody holds for longer than `lock_timeout`, or in SQLite than the busy time-out.
on_both!(a_lock_is_held_for_too_long, async |database| {
    for locks in [Locks::Off, Locks::InProcess] {
        let world = World::new(database, locks).await;
        world.fund("alice").await;
        world.introduce("bob").await;
        let held = world.sql().await;
        let holding = held.begin().await.unwrap();
        execute(&holding, "UPDATE wallets SET opened_at = opened_at").await;
        for _ in 0..2 {
            let asked = Instant::now();
            fails(&world, &transfer("bob", 30, "slow"), UNAVAILABLE).await;
            assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
        }
        fails(&world, &json!({ "query": CLAIM_DAILY }), UNAVAILABLE).await;
        holding.rollback().await.unwrap();
        assert_eq!(world.count("SELECT COUNT(*) FROM idempotency_keys").await, 0, "nothing was written");
        let (_, again) = ask(&world, "alice", &transfer("bob", 30, "slow")).await;
        assert_eq!(again.data("/transfer/replayed"), false, "{}", again.body);
        world.end().await;
    }
});

/// A read waits for a lock, too, where somebody changes the table.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_waits_for_a_table_for_too_long() {
    let world = World::new(Database::Postgres, Locks::InProcess).await;
    world.fund("alice").await;
    let held = world.sql().await;
    let holding = held.begin().await.unwrap();
    execute(&holding, "LOCK TABLE wallets IN ACCESS EXCLUSIVE MODE").await;
    fails(&world, &json!({ "query": WALLET }), UNAVAILABLE).await;
    let asked = Instant::now();
    assert_eq!(world.get("/readyz").await.0, 503, "the tables cannot be read");
    assert!(asked.elapsed() < Duration::from_millis(1500), "{:?}", asked.elapsed());
    holding.rollback().await.unwrap();
    world.end().await;
}

/// A trigger that sleeps stands for a slow disk.
async fn slow_down(sql: &impl ConnectionTrait, table: &str, seconds: f32) {
    execute(
        sql,
        &format!(
            "CREATE FUNCTION slow_{table}() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END $$; \
             CREATE TRIGGER slow BEFORE INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION slow_{table}()"
        ),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_takes_too_long() {
    for locks in [Locks::Off, Locks::InProcess] {
        let world = World::new(Database::Postgres, locks).await;
        world.fund("alice").await;
        world.introduce("bob").await;
        let sql = world.sql().await;
        slow_down(&sql, "transactions", 30.0).await;
        for _ in 0..2 {
            fails(&world, &transfer("bob", 30, "slow"), UNAVAILABLE).await;
        }
        execute(&sql, "DROP TRIGGER slow ON transactions").await;
        let (_, again) = ask(&world, "alice", &transfer("bob", 30, "slow")).await;
        assert_eq!(again.data("/transfer/replayed"), false, "{}", again.body);
        world.end().await;
    }
}

/// No statement is too slow by itself; together they take longer than the deadline, after which none starts.
#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_passes_between_two_statements() {
    for locks in [Locks::Off, Locks::InProcess] {
        let world = World::with(Database::Postgres, locks, |settings| {
            settings.request.deadline_ms = 1200;
            settings.database.statement_timeout_ms = 1200;
        })
        .await;
        world.fund("alice").await;
        world.introduce("bob").await;
        let sql = world.sql().await;
        slow_down(&sql, "idempotency_keys", 0.7).await;
        slow_down(&sql, "entries", 0.52).await;
        let (id, answer) = ask(&world, "alice", &transfer("bob", 30, "slow")).await;
        failed(&id, &answer, UNAVAILABLE);
        assert!(log::of_request(&id)[0].field("cause").contains("deadline"), "{:?}", log::of_request(&id));
        execute(&sql, "DROP TRIGGER slow ON idempotency_keys; DROP TRIGGER slow ON entries").await;
        let (_, again) = ask(&world, "alice", &transfer("bob", 30, "slow")).await;
        assert_eq!(again.data("/transfer/replayed"), false, "{}", again.body);
        world.end().await;
    }
}

on_both!(a_table_is_missing, async |database| {
    for locks in [Locks::Off, Locks::InProcess] {
        let world = World::new(database, locks).await;
        world.fund("alice").await;
        world.introduce("bob").await;
        let sql = world.sql().await;
        for (table, question) in [
            ("wallets", json!({ "query": WALLET })),
            ("claims", json!({ "query": CLAIM_DAILY })),
            ("entries", json!({ "query": TRANSFER, "variables": transfer("bob", 1, "k")["variables"] })),
            ("idempotency_keys", transfer("bob", 1, "k")),
        ] {
            execute(&sql, &format!("ALTER TABLE {table} RENAME TO {table}_away")).await;
            fails(&world, &question, INTERNAL).await;
            fails(&world, &question, INTERNAL).await;
            if table == "wallets" {
                assert_eq!(world.get("/readyz").await.0, 503);
            }
            execute(&sql, &format!("ALTER TABLE {table}_away RENAME TO {table}")).await;
        }
        // A member whom this process has not seen yet is written down first.
        execute(&sql, "ALTER TABLE members RENAME TO members_away").await;
        fails_for(&world, "carol", &json!({ "query": WALLET }), INTERNAL).await;
        execute(&sql, "ALTER TABLE members_away RENAME TO members").await;
        assert_eq!(world.balance("alice").await, 100);
        world.end().await;
    }
});

/// More readers than connections, and nobody gets one: each is answered once the deadline has passed.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_reads_past_the_pool_does_not_wait_for_ever() {
    let world = World::with(Database::Postgres, Locks::InProcess, |settings| {
        settings.database.pool_size = 2;
        settings.request.deadline_ms = 1500;
        settings.database.statement_timeout_ms = 1500;
        settings.database.lock_timeout_ms = 1400;
    })
    .await;
    world.fund("alice").await;
    let held = world.sql().await;
    let holding = held.begin().await.unwrap();
    execute(&holding, "LOCK TABLE wallets IN ACCESS EXCLUSIVE MODE").await;
    let began = Instant::now();
    let answers = world.storm(60, |_| ("alice".to_owned(), json!({ "query": WALLET }))).await;
    let took = began.elapsed();
    for answer in &answers {
        assert_eq!(answer.codes(), ["UNAVAILABLE"], "{}", answer.body);
    }
    // The deadline, its grace, and time for a slow machine to write sixty answers.
    assert!(took < Duration::from_secs(4), "{took:?}");
    holding.rollback().await.unwrap();
    wait_until("the pool works again", async || {
        ask(&world, "alice", &json!({ "query": WALLET })).await.1.codes().is_empty()
    })
    .await;
    world.end().await;
}

/// Whatever is refused, as a whole or in a field, says how to branch and which request it was.
#[tokio::test(flavor = "multi_thread")]
async fn every_error_has_a_code_and_the_requests_id() {
    let world = World::new(Database::Sqlite, Locks::InProcess).await;
    let bodies = [
        json!({ "query": "{ viewer { nothing } }" }),
        json!({ "query": "{ viewer { " }),
        json!({ "query": "" }),
        json!({ "query": "query A { viewer { id } } query B { viewer { id } }" }),
        json!({ "query": "query A { viewer { id } } query B { viewer { id } }", "operationName": "C" }),
        json!({ "query": "mutation { a: claimDailyBonus { claim { id } } a: claimDailyBonus { claim { id } } }" }),
        json!({ "query": TRANSFER }),
        json!({ "query": TRANSFER, "variables": { "input": { "to": "bob" } } }),
        json!({ "query": TRANSFER, "variables": { "input": 5 } }),
        json!({ "query": "{ viewer { wallet(currency: \"x\") { id } } }" }),
        json!({ "query": "{ viewer { wallet(currency: \"EUR\") { id } } }" }),
        json!({ "query": "{ viewer { bonusClaims(first: 1000) { nodes { id } } } }" }),
        json!({ "query": "{ viewer { bonusClaims(after: \"?\") { nodes { id } } } }" }),
        json!({ "query": "subscription { x }" }),
        json!({ "query": "{ nodes(ids: {}) { id } }" }),
    ];
    for body in bodies {
        let (id, answer) = ask(&world, "alice", &body).await;
        coded(&answer, &id);
    }
    let anonymous = send(&world, json!({ "query": WALLET }).to_string(), |request| {
        request.header("content-type", "application/json").header("x-request-id", "anonymous-1")
    });
    let anonymous = anonymous.await;
    coded(&anonymous, "anonymous-1");
    assert_eq!(anonymous.codes(), ["UNAUTHENTICATED"]);
    world.end().await;
}

fn coded(answer: &Answer, id: &str) {
    let errors = answer.body["errors"].as_array().unwrap_or_else(|| panic!("an error: {}", answer.body));
    assert!(!errors.is_empty());
    for error in errors {
        let code = error["extensions"]["code"].as_str().unwrap_or_default();
        assert!(
            !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'),
            "{}",
            answer.body
        );
        assert_eq!(error["extensions"]["requestId"], id, "{}", answer.body);
    }
    assert_eq!(answer.headers["x-request-id"], id);
    assert_eq!(answer.headers["cache-control"], "no-store");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sane_request_id_is_taken_over_and_a_bad_one_replaced() {
    let world = World::new(Database::Sqlite, Locks::InProcess).await;
    let with_id = async |id: &[u8]| {
        let id = reqwest::header::HeaderValue::from_bytes(id).unwrap();
        let answer = send(&world, json!({ "query": "{ nothing }" }).to_string(), |request| {
            request.header("content-type", "application/json").header("x-request-id", id)
        });
        let answer = answer.await;
        let out = answer.headers["x-request-id"].to_str().unwrap().to_owned();
        coded(&answer, &out);
        out
    };
    let longest = "x".repeat(128);
    for sane in ["1", "4bf92f3577b34da6a3ce929d0e0e4736", "a-b_c.d/e:f=g+h", longest.as_str()] {
        assert_eq!(with_id(sane.as_bytes()).await, sane);
    }
    let too_long = "x".repeat(129);
    for bad in ["", "a b", "a\tb", "\u{fc}", too_long.as_str()] {
        let out = with_id(bad.as_bytes()).await;
        assert!(out.len() == 32 && out.bytes().all(|byte| byte.is_ascii_hexdigit()), "{bad:?} became {out:?}");
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_request_is_refused_with_the_right_status() {
    let world = World::new(Database::Sqlite, Locks::InProcess).await;
    let json_body = |body: Vec<u8>| send(&world, body, |request| request.header("content-type", "application/json"));
    let query = json!({ "query": "{ __typename }" }).to_string();

    let mut largest = query.clone().into_bytes();
    largest.resize(1 << 20, b' ');
    assert_eq!(json_body(largest.clone()).await.status, 200, "the limit itself is allowed");
    largest.push(b' ');
    refused(&json_body(largest).await, 413);
    // A body that does not say how long it is meets the same limit.
    let chunks = format!("8000\r\n{}\r\n", " ".repeat(0x8000)).repeat(33);
    let answer = raw(&world, "Transfer-Encoding: chunked", &chunks).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");

    for body in [format!("[{query}]"), format!(" \n[{query},{query}]"), "[]".to_owned()] {
        refused(&json_body(body.into_bytes()).await, 400);
    }
    for body in ["", "{", "null", "5", "\"{ __typename }\"", "{\"query\": 5}", "{} {}", "{\"query\":\"\u{0}\"}"] {
        let status = json_body(body.as_bytes().to_vec()).await;
        refused(&status, 400);
    }
    refused(&json_body(b"{\"query\":\"\xff\"}".to_vec()).await, 400);

    for media_type in ["text/plain", "application/graphql", "multipart/form-data; boundary=x", "application/jsonx", ""]
    {
        refused(&send(&world, query.clone(), |request| request.header("content-type", media_type)).await, 415);
    }
    refused(&send(&world, query.clone(), |request| request).await, 415);
    for media_type in ["application/json; charset=utf-8", "Application/JSON"] {
        assert_eq!(send(&world, query.clone(), |request| request.header("content-type", media_type)).await.status, 200);
    }
    assert_eq!(world.get("/graphql?query=%7B__typename%7D").await.0, 200, "a query may come by GET");
    assert_eq!(world.get("/graphql?query=mutation%7BclaimDailyBonus%7B__typename%7D%7D").await.0, 405);
    world.end().await;
}

/// An error of the request as a whole: nothing was executed, so there is no `data`.
fn refused(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{}", answer.body);
    assert_eq!(answer.codes(), ["BAD_REQUEST"], "{}", answer.body);
    assert!(answer.body.get("data").is_none());
    let id = answer.headers["x-request-id"].to_str().unwrap();
    assert!(!id.is_empty() && answer.body["errors"][0]["extensions"]["requestId"] == id);
    assert_eq!(answer.headers["cache-control"], "no-store");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_health_checks_and_the_schema_are_there() {
    let world = World::new(Database::Postgres, Locks::Redis).await;
    assert_eq!(world.get("/livez").await, (200, "ok".to_owned()));
    assert_eq!(world.get("/readyz").await, (200, "ok".to_owned()));
    assert_eq!(world.get("/schema.graphql").await, (200, include_str!("../schema.graphql").to_owned()));
    let answer = world.ask("alice", WALLET, json!({})).await;
    assert_eq!((answer.status, &answer.headers["cache-control"]), (200, &"no-store".parse().unwrap()));
    assert!(answer.headers["content-type"].to_str().unwrap().starts_with("application/json"));
    world.end().await;
}

/// The headers announce a body that never comes, or that stops half-way.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_never_comes_is_waited_for_until_the_deadline() {
    let world = World::with(Database::Sqlite, Locks::InProcess, |settings| {
        settings.request.deadline_ms = 1000;
    })
    .await;
    for beginning in ["", "{\"query\":"] {
        let asked = Instant::now();
        let answer = raw(&world, "Content-Length: 100", beginning).await;
        let took = asked.elapsed();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert!(answer.contains("\"requestId\"") && answer.contains("BAD_REQUEST"), "{answer}");
        assert!((Duration::from_millis(900)..Duration::from_secs(3)).contains(&took), "{took:?}");
    }
    world.end().await;
}

/// Sends a request whose body is written by hand, and reads the beginning of the answer.
async fn raw(world: &World, header: &str, body: &str) -> String {
    let host = world.address().strip_prefix("http://").unwrap();
    let (mut reading, mut writing) = tokio::net::TcpStream::connect(host).await.unwrap().into_split();
    let request =
        format!("POST /graphql HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{header}\r\n\r\n{body}");
    // The server may answer, and close, before it has read everything.
    let sending = tokio::spawn(async move {
        let _ = writing.write_all(request.as_bytes()).await;
        writing
    });
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(Duration::from_secs(10), reading.read(&mut answer)).await;
    let length = read.expect("it is answered").unwrap();
    drop(sending.await);
    String::from_utf8_lossy(&answer[..length]).into_owned()
}
