//! Promise: the command line does what it says, with exit codes that scripts can use and errors that say what to do.
//!
//! Guards `main.rs` and `demo.rs`, the checks of settings at the start, the lock around migrations, the orderly end, and what
//! the log may hold. Each test runs the real binary.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use largesse::config::Settings;
use sea_orm::{ConnectionTrait, TransactionTrait};
use secrecy::SecretString;
use serde_json::{Value, json};

use crate::on_both;
use crate::world::binary::{Running, largesse, run};
use crate::world::outbox::{WHSEC, deliver, tell};
use crate::world::receiver::{Received, Receiver, Reply};
use crate::world::redis_server::free_port;
use crate::world::{
    CLAIM_DAILY, CLAIM_SIGNUP, Database, Locks, SECRET, World, books_balance, database_url, fresh_database,
    run_on_server, servers_url, token, transfer, unique, wait_until,
};

const COMMANDS: [&str; 8] = ["demo", "serve", "schema", "migrate", "token", "audit", "work", "outbox"];

const ANY_PORT: &str = "127.0.0.1:0";

#[test]
fn no_command_and_help_explain_and_end_well() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&[][..], &["--help"], &["help"]] {
        let ended = run(&mut largesse(folder.path(), arguments));
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{arguments:?}");
        for command in COMMANDS {
            assert!(ended.stdout.contains(&format!("\n  {command} ")), "{command} is listed in {}", ended.stdout);
        }
    }
    for command in COMMANDS {
        let ended = run(&mut largesse(folder.path(), &[command, "--help"]));
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        assert!(ended.stdout.contains(&format!("Usage: largesse {command}")), "{}", ended.stdout);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");
}

#[test]
fn a_mistake_in_the_call_is_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [
        &["serv"][..],
        &["--frobnicate"],
        &["serve", "--listen", "nowhere"],
        &["serve", "--log-format", "xml"],
        &["token"],
        &["token", "alice", "--expires-in", "soon"],
        &["token", "alice", "--expires-in", "5"],
        &["token", "alice", "--expires-in", "-5m"],
        &["token", "alice", "--expires-in", "99999999999999999999d"],
        &["token", "alice", "--expires-in", "9999999999999999999d"],
        &["token", "alice", "--expires-in", "\u{fc}"],
        &["token", ""],
        &["outbox"],
        &["outbox", "resend"],
        &["outbox", "resend", "no-id"],
        &["outbox", "list", "--limit", "few"],
        &["work", "--log-format", "xml"],
    ] {
        let ended = run(largesse(folder.path(), arguments).env("LARGESSE_TOKEN_SECRET", SECRET));
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}: {}", ended.stderr);
        assert!(!ended.stderr.is_empty() && !ended.stderr.contains("panicked"), "{arguments:?}: {}", ended.stderr);
    }
}

#[test]
fn schema_prints_the_file() {
    let folder = tempfile::tempdir().unwrap();
    // Whatever the settings are: the file holds the defaults.
    let ended = run(largesse(folder.path(), &["schema"]).env("LARGESSE_COOLDOWN_ENABLED", "false"));
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(ended.stdout, include_str!("../schema.graphql"));
}

/// Settings that cannot be: what is set, and a word of the sentence that says so.
struct Impossible {
    file: &'static str,
    environment: Vec<(&'static str, &'static str)>,
    word: &'static str,
}

fn in_file(file: &'static str, word: &'static str) -> Impossible {
    Impossible { file, environment: Vec::new(), word }
}

fn in_environment(variable: &'static str, value: &'static str, word: &'static str) -> Impossible {
    Impossible { file: "", environment: vec![(variable, value)], word }
}

#[test]
fn impossible_settings_stop_the_start_with_one_sentence() {
    for impossible in [
        in_environment("LARGESSE_TOKEN_SECRET", "", "32 bytes"),
        in_environment("LARGESSE_TOKEN_SECRET", "hunter2hunter2hunter2hunter2hun", "32 bytes"),
        in_environment("LARGESSE_TOKEN_JWKS", "keys.json", "exclude each other"),
        in_environment("LARGESSE_TOKEN_JWKS_REFRESH_SECONDS", "0", "from 1 to"),
        in_environment("DATABASE_URL", "mysql://root:hunter2@db/x", "postgres:// or sqlite:"),
        in_environment("DATABASE_URL", "books.db", "postgres:// or sqlite:"),
        in_environment("DATABASE_URL", "sqlite::memory:", "in-memory"),
        in_environment("DATABASE_URL", "sqlite:books.db?mode=memory", "in-memory"),
        in_environment("DATABASE_URL", "postgres://root:hunter2@db:x/y", "the database URL: "),
        in_environment("REDIS_URL", "http://redis:6379", "redis_url"),
        in_environment("LARGESSE_REQUEST_DEADLINE_MS", "4000", "must cover the work"),
        in_environment("LARGESSE_REQUEST_DEADLINE_MS", "soon", "deadline_ms"),
        in_environment("LARGESSE_LOG_FILTER", "largesse=loud", "log.filter"),
        in_file("[cooldown.actions.transfer]\nwindow_ms = 4000\n", "must cover the work"),
        in_file("[cooldown.actions.transfers]\nwindow_ms = 9000\n", "transfers"),
        in_file("[request]\ndeadlin_ms = 2000\n", "deadlin_ms"),
        in_file("[daily_bonus]\ntime_zone = \"Mars/Olympus\"\n", "Mars/Olympus"),
        in_file("[request\n", "largesse.toml"),
        in_file("[token]\nsecret = hunter2\n", "line 2"),
        in_file("redis_url = \"rediss://r\"\nredis_ca_file = \"missing.pem\"\n", "missing.pem"),
        in_file("redis_url = \"rediss://r\"\nredis_ca_file = \"largesse.toml\"\n", "no certificate"),
        in_file("redis_url = \"rediss://r/#insecure\"\n", "redis_url"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("largesse.toml"), impossible.file).unwrap();
        let mut serve = serve(folder.path(), "sqlite:books.db");
        let Impossible { environment, word, file } = impossible;
        let ended = run(serve.envs(environment.iter().copied()));
        refused(&ended, word, &format!("{environment:?} {file}"));
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left, ["largesse.toml"], "nothing was begun");
    }
}

#[test]
fn what_is_required_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let without_secret = run(serve(folder.path(), "sqlite:books.db").env_remove("LARGESSE_TOKEN_SECRET"));
    refused(&without_secret, "LARGESSE_TOKEN_SECRET", "no secret");
    refused(&without_secret, "LARGESSE_TOKEN_JWKS", "no keys");
    for (jwks, word) in [
        ("missing.json", "token.jwks: No such file"),
        ("http://id.example/jwks", "must be https"),
        ("https://root:hunter2@id.example/jwks", "no password"),
    ] {
        let mut serve = serve(folder.path(), "sqlite:books.db");
        refused(&run(serve.env_remove("LARGESSE_TOKEN_SECRET").env("LARGESSE_TOKEN_JWKS", jwks)), word, jwks);
    }
    let without_database = run(serve(folder.path(), "sqlite:books.db").env_remove("DATABASE_URL"));
    refused(&without_database, "DATABASE_URL", "no database");
    for command in [&["migrate"][..], &["audit"], &["work"], &["outbox", "list"]] {
        refused(&run(&mut largesse(folder.path(), command)), "DATABASE_URL", command[0]);
    }
    refused(&run(&mut largesse(folder.path(), &["token", "alice"])), "LARGESSE_TOKEN_SECRET", "token");
    let missing = run(serve(folder.path(), "sqlite:books.db").args(["--config", "missing.toml"]));
    refused(&missing, "missing.toml does not exist", "no such file");
}

/// One sentence on stderr, exit code 2, nothing else, and no secret in it.
fn refused(ended: &crate::world::binary::Ended, word: &str, what: &str) {
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{what}: {}", ended.stderr);
    assert!(ended.stderr.starts_with("largesse: ") && ended.stderr.lines().count() == 1, "{what}: {}", ended.stderr);
    assert!(ended.stderr.contains(word), "{what}: {}", ended.stderr);
    assert!(!ended.stderr.contains("hunter2"), "{what}: {}", ended.stderr);
}

/// `largesse serve` on a free port with all that it needs.
fn serve(folder: &Path, database: &str) -> Command {
    let mut command = largesse(folder, &["serve", "--listen", ANY_PORT]);
    command.env("LARGESSE_TOKEN_SECRET", SECRET).env("DATABASE_URL", database).env("LARGESSE_LOG_FORMAT", "json");
    command
}

/// Starts a server, waits until it listens, and says where.
fn started(command: &mut Command) -> (Running, String) {
    let running = Running::start(command);
    let address = running.word_after("\"address\":\"");
    (running, format!("http://{address}"))
}

async fn post(address: &str, token: &str, body: &Value) -> (u16, Value) {
    let request = reqwest::Client::new().post(format!("{address}/graphql")).bearer_auth(token).json(body);
    let response = request.send().await.expect("it answers");
    let status = response.status().as_u16();
    (status, response.json().await.expect("JSON"))
}

/// Status and text of a path, on a connection of its own.
async fn get(url: &str) -> Option<(u16, String)> {
    let response = reqwest::Client::new().get(url).send().await.ok()?;
    Some((response.status().as_u16(), response.text().await.ok()?))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_variable_that_names_no_setting_warns_and_the_server_starts() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = serve(folder.path(), "sqlite:books.db");
    let (running, address) = started(command.arg("--migrate").env("LARGESSE_PORT", "tcp://10.0.0.1:80"));
    assert_eq!(get(&format!("{address}/readyz")).await, Some((200, "ok".to_owned())));
    assert!(running.logged().contains("LARGESSE_PORT"), "{}", running.logged());
    json_lines(&running.logged());
    running.signal("TERM");
    assert_eq!(running.wait().code, Some(0));
    let ended = run(largesse(folder.path(), &["token", "alice"])
        .env("LARGESSE_TOKEN_SECRET", SECRET)
        .env("LARGESSE_PORT", "tcp://10.0.0.1:80"));
    assert_eq!((ended.code, ended.stdout.lines().count()), (Some(0), 1), "a script reads stdout: {}", ended.stdout);
    assert!(ended.stderr.contains("LARGESSE_PORT"));
}

#[test]
fn a_port_in_use_is_exit_code_1() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = largesse(folder.path(), &["serve", "--migrate", "--listen", &address]);
    let ended = run(command.env("LARGESSE_TOKEN_SECRET", SECRET).env("DATABASE_URL", "sqlite:books.db"));
    assert_eq!(ended.code, Some(1));
    let sentence = ended.stderr.lines().last().unwrap();
    assert!(sentence.starts_with(&format!("largesse: cannot listen on {address}")), "{}", ended.stderr);
    let ended = run(&mut largesse(folder.path(), &["demo", "--listen", &address]));
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(1), 1), "{}", ended.stderr);
}

/// A name for a database that nobody has made yet, and its URL.
async fn empty_database(database: Database, folder: &Path) -> String {
    match database {
        Database::Sqlite => format!("sqlite:{}", folder.join("books.db").display()),
        Database::Postgres => {
            let name = format!("empty_{}_{}", std::process::id(), unique());
            run_on_server(&format!("CREATE DATABASE {name}")).await;
            database_url(&name)
        }
    }
}

on_both!(four_processes_migrate_at_once, async |database| {
    let folder = tempfile::tempdir().unwrap();
    let url = empty_database(database, folder.path()).await;
    for _ in 0..2 {
        let processes: Vec<_> =
            (0..4).map(|_| Running::start(largesse(folder.path(), &["migrate"]).env("DATABASE_URL", &url))).collect();
        for process in processes {
            let ended = process.wait();
            assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        }
    }
    let sql = sea_orm::Database::connect(&url).await.unwrap();
    let ask = sea_orm::Statement::from_string(sql.get_database_backend(), "SELECT COUNT(*) FROM seaql_migrations");
    let row = sql.query_one_raw(ask).await.unwrap().unwrap();
    let migrations =
        i64::try_from(<largesse_migration::Migrator as sea_orm_migration::MigratorTrait>::migrations().len());
    assert_eq!(row.try_get_by_index::<i64>(0).unwrap(), migrations.unwrap(), "each migration ran once");
    sql.close().await.unwrap();
    let audit = run(largesse(folder.path(), &["audit"]).env("DATABASE_URL", &url));
    assert_eq!((audit.code, audit.stdout.lines().last()), (Some(0), Some("the books balance")), "{}", audit.stderr);
});

on_both!(serve_with_migrate_works_on_an_empty_database, async |database| {
    let folder = tempfile::tempdir().unwrap();
    let url = empty_database(database, folder.path()).await;
    let (running, address) =
        started(serve(folder.path(), &url).arg("--migrate").env("LARGESSE_SIGNUP_BONUS_AMOUNT", "7"));
    assert_eq!(get(&format!("{address}/readyz")).await, Some((200, "ok".to_owned())));
    let (_, answer) = post(&address, &token("alice"), &json!({ "query": CLAIM_SIGNUP })).await;
    assert_eq!(answer["data"]["claimSignupBonus"]["claim"]["amount"]["amount"], "7", "{answer}");
    let (_, answer) = post(&address, &token("alice"), &json!({ "query": CLAIM_DAILY })).await;
    let code = &answer["data"]["claimDailyBonus"]["userErrors"][0]["code"];
    assert_eq!(code, "BONUS_UNAVAILABLE", "no default pays real points");
    running.signal("TERM");
    assert_eq!(running.wait().code, Some(0));
    books_balance(&url).await;
});

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_the_server_that_has_its_secret() {
    let folder = tempfile::tempdir().unwrap();
    let minted = |arguments: &[&str], secret: &str| {
        let ended =
            run(largesse(folder.path(), &[&["token"], arguments].concat()).env("LARGESSE_TOKEN_SECRET", secret));
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        assert_eq!(ended.stdout.lines().count(), 1);
        ended.stdout.trim().to_owned()
    };
    let roles = ["zo\u{eb}", "--role", "operator", "--role", "auditor", "--expires-in", "15m"];
    let good = minted(&roles, SECRET);
    let claims = claims(&good);
    assert_eq!((&claims["sub"], &claims["roles"]), (&json!("zo\u{eb}"), &json!(["operator", "auditor"])));
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 15 * 60);
    assert!(self::claims(&minted(&["alice"], SECRET)).get("roles").is_none());

    let (running, address) = started(serve(folder.path(), "sqlite:books.db").arg("--migrate"));
    let who = json!({ "query": "{ viewer { memberId } }" });
    assert_eq!(post(&address, &good, &who).await, (200, json!({ "data": { "viewer": { "memberId": "zo\u{eb}" } } })));
    let foreign = minted(&["alice"], "another secret, which is long enough too");
    assert_eq!(post(&address, &foreign, &who).await.0, 401);
    running.signal("TERM");
    assert_eq!(running.wait().code, Some(0));
}

fn claims(token: &str) -> Value {
    let payload = token.split('.').nth(1).expect("three parts");
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap()
}

on_both!(audit_tells_whether_the_books_balance, async |database| {
    let world = World::new(database, Locks::InProcess).await;
    world.fund("alice").await;
    world.introduce("bob").await;
    world.post(Some(&token("alice")), transfer("bob", 30, "one")).await;
    let folder = tempfile::tempdir().unwrap();
    let audit = || run(largesse(folder.path(), &["audit"]).env("DATABASE_URL", &world.url));
    let well = audit();
    assert_eq!((well.code, well.stderr.as_str()), (Some(0), ""));
    assert!(well.stdout.contains("members hold 100 PTS") && well.stdout.ends_with("the books balance\n"));
    assert!(well.stdout.lines().count() < 10, "short: {}", well.stdout);

    let sql = world.sql().await;
    sql.execute_unprepared("UPDATE wallets SET balance = balance + 1 WHERE balance = 30").await.unwrap();
    let damaged = audit();
    assert_eq!((damaged.code, damaged.stderr.as_str()), (Some(1), ""));
    assert_eq!(damaged.stdout.matches("BROKEN: a wallet's balance").count(), 1, "{}", damaged.stdout);
    assert!(damaged.stdout.ends_with("the books do not balance: 1 broken row\n"), "{}", damaged.stdout);
    sql.execute_unprepared("UPDATE wallets SET balance = balance - 1 WHERE balance = 31").await.unwrap();
    world.end().await;
});

on_both!(outbox_lists_what_did_not_arrive_and_sends_it_again, async |database| {
    let receiver = Receiver::answering(|event| Reply::Status(if event.before == 0 { 410 } else { 200 })).await;
    let world = World::with(database, Locks::Off, |settings| tell(settings, "crm", receiver.url())).await;
    world.fund("alice").await;
    deliver(&world).await;
    world.fund("bob").await;
    let folder = tempfile::tempdir().unwrap();
    let outbox = |arguments: &[&str]| {
        run(largesse(folder.path(), &[&["outbox"], arguments].concat()).env("DATABASE_URL", &world.url))
    };
    let (all, dead) = (outbox(&["list"]), outbox(&["list", "--dead"]));
    assert_eq!((all.code, dead.code, all.stderr.as_str(), dead.stderr.as_str()), (Some(0), Some(0), "", ""));
    assert_eq!((all.stdout.lines().count(), dead.stdout.lines().count()), (2, 1), "{}", all.stdout);
    assert_eq!(outbox(&["list", "--limit", "1"]).stdout, dead.stdout, "the oldest first");
    let columns: Vec<_> = dead.stdout.trim_end().split('\t').collect();
    let [id, "crm", "bonus.claimed", _, "1", "dead", "HTTP 410: the endpoint is gone"] = columns[..] else {
        panic!("{columns:?}")
    };
    let again = outbox(&["resend", id]);
    assert_eq!((again.code, again.stdout.as_str(), again.stderr.as_str()), (Some(0), "", ""));
    let nothing = outbox(&["resend", id]);
    assert_eq!((nothing.code, nothing.stderr), (Some(1), format!("largesse: {id} is no dead event\n")));
    assert_eq!(deliver(&world).await.delivered, 1);
    let repeated: Vec<_> = receiver.received().into_iter().filter(|event| event.before == 1).collect();
    assert_eq!(repeated.iter().map(Received::id).collect::<Vec<_>>(), [id]);
    world.end().await;
});

/// The environment in which a process tells an endpoint everything.
fn telling(command: &mut Command, url: &str) {
    let endpoint = format!("[{{name=\"crm\",url=\"{url}\",secrets=[\"{WHSEC}\"]}}]");
    command.env("LARGESSE_WEBHOOKS_ENDPOINTS", endpoint).env("LARGESSE_WEBHOOKS_ALLOW_PRIVATE_ADDRESSES", "true");
}

// A server that leaves the work to others, and a worker beside it; afterwards a server that works itself.
on_both!(events_are_sent_by_work_and_by_serve, async |database| {
    let receiver = Receiver::answering(|event| Reply::Status(if event.before == 0 { 500 } else { 200 })).await;
    let folder = tempfile::tempdir().unwrap();
    let url = empty_database(database, folder.path()).await;
    for (member, in_server) in [("alice", false), ("bob", true)] {
        let mut command = serve(folder.path(), &url);
        telling(&mut command, receiver.url());
        command.arg("--migrate").env("LARGESSE_SIGNUP_BONUS_AMOUNT", "7").env("LARGESSE_WEBHOOKS_BACKOFF_MS", "1");
        let (server, address) = started(command.env("LARGESSE_WORKERS_IN_SERVER", in_server.to_string()));
        post(&address, &token(member), &json!({ "query": CLAIM_SIGNUP })).await;
        let worker = (!in_server).then(|| {
            let mut command = largesse(folder.path(), &["work", "--log-format", "json"]);
            telling(&mut command, receiver.url());
            Running::start(command.env("DATABASE_URL", &url).env("LARGESSE_WEBHOOKS_BACKOFF_MS", "1"))
        });
        let taken = || receiver.places().iter().filter(|(name, _)| name == member).count();
        wait_until("it was refused once and taken once", async || taken() == 2).await;
        let mut log = String::new();
        for running in worker.into_iter().chain([server]) {
            running.signal("TERM");
            let ended = running.wait();
            assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{}", ended.stderr);
            let lines = json_lines(&ended.stderr);
            let works = lines.iter().any(|line| line["message"] == "working");
            let sent = lines.iter().any(|line| line["error"] == "HTTP 500");
            let told_to = in_server || log.is_empty();
            assert_eq!((works, sent), (told_to, told_to), "who works is who was told to: {}", ended.stderr);
            log += &ended.stderr;
        }
        assert!(!log.contains("whsec_") && !log.contains(WHSEC.trim_start_matches("whsec_")), "{log}");
    }
    books_balance(&url).await;
});

#[test]
fn audit_and_migrate_say_that_the_database_is_away() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("postgres://root:hunter2@127.0.0.1:{}/books", free_port());
    for command in ["audit", "migrate"] {
        let ended = run(largesse(folder.path(), &[command]).env("DATABASE_URL", &url));
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{command}: {}", ended.stderr);
        assert!(ended.stderr.starts_with("largesse: the database does not answer"), "{}", ended.stderr);
        assert!(ended.stderr.lines().count() == 1 && !ended.stderr.contains("hunter2"), "{}", ended.stderr);
    }
}

/// A demo that runs: where, and the tokens that it printed.
struct Demo {
    running: Running,
    address: String,
    tokens: Vec<String>,
}

fn demo(folder: &Path, arguments: &[&str]) -> Demo {
    let running = Running::start(&mut largesse(folder, &[&["demo", "--listen", ANY_PORT], arguments].concat()));
    let address = format!("http://{}", running.word_after("GraphQL    http://"));
    running.word_after("Stop with ");
    let printed = running.printed();
    let tokens = printed.lines().map(str::trim).filter(|line| line.starts_with("eyJ")).map(str::to_owned);
    let tokens = tokens.collect();
    Demo { running, address, tokens }
}

impl Demo {
    async fn balance(&self, token: &str) -> (u16, Value) {
        let (status, answer) =
            post(&self.address, token, &json!({ "query": "{ viewer { memberId wallet { balance { amount } } } }" }))
                .await;
        (status, answer["data"]["viewer"]["wallet"]["balance"]["amount"].clone())
    }

    fn end(self) {
        self.running.signal("INT");
        let ended = self.running.wait();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "a quiet first minute");
    }
}

/// Runs the line that the demo tells people to paste.
fn paste(demo: &Demo) -> Value {
    let printed = demo.running.printed();
    let line = printed.lines().find(|line| line.starts_with("curl ")).expect("a line to paste");
    let ran = Command::new("sh").args(["-c", line]).output().unwrap();
    assert!(ran.status.success());
    serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&ran.stdout)))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_is_the_first_minute() {
    let folder = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let demo = demo(folder.path(), &[]);
    assert_eq!(get(&format!("{}/readyz", demo.address)).await, Some((200, "ok".to_owned())));
    // About a second; ten where everything else runs at the same time.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(demo.running.printed().contains(&format!("GraphiQL   {}/\n", demo.address)));
    let page = get(&format!("{}/", demo.address)).await.unwrap();
    assert!(page.0 == 200 && page.1.contains("<html"), "{page:?}");

    let [alice, bob] = &demo.tokens[..] else { panic!("two tokens: {:?}", demo.tokens) };
    assert_eq!(demo.balance(alice).await, (200, json!("100")));
    assert_eq!(demo.balance(bob).await, (200, json!("0")));
    let (_, claimable) =
        post(&demo.address, bob, &json!({ "query": "{ viewer { signupBonus { claimable } } }" })).await;
    assert_eq!(claimable["data"]["viewer"]["signupBonus"]["claimable"], true);
    let (_, claimed) = post(&demo.address, bob, &json!({ "query": CLAIM_SIGNUP })).await;
    assert_eq!(claimed["data"]["claimSignupBonus"]["claim"]["amount"]["amount"], "100", "{claimed}");

    assert_eq!(paste(&demo)["data"]["claimDailyBonus"]["claim"]["streak"], 1);
    assert_eq!(paste(&demo)["errors"][0]["extensions"]["code"], "COOLDOWN_ACTIVE");
    demo.end();
    books_balance(&format!("sqlite:{}", folder.path().join("largesse-demo.db").display())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_keeps_its_secret_and_data_until_it_is_reset() {
    let folder = tempfile::tempdir().unwrap();
    let secret_file = folder.path().join("books.db.secret");
    let first = demo(folder.path(), &["--database", "books.db"]);
    let alice = first.tokens[0].clone();
    assert_eq!(std::fs::metadata(&secret_file).unwrap().permissions().mode() & 0o7777, 0o600);
    let secret = std::fs::read_to_string(&secret_file).unwrap();
    assert!(secret.len() >= 32);
    assert_eq!(paste(&first)["data"]["claimDailyBonus"]["claim"]["streak"], 1);
    first.end();

    let second = demo(folder.path(), &["--database", "books.db"]);
    assert_eq!(std::fs::read_to_string(&secret_file).unwrap(), secret);
    assert_eq!(second.balance(&alice).await, (200, json!("110")), "an old token, and old data");
    second.end();

    let afresh = demo(folder.path(), &["--database", "books.db", "--reset"]);
    assert_ne!(std::fs::read_to_string(&secret_file).unwrap(), secret);
    assert_eq!(std::fs::metadata(&secret_file).unwrap().permissions().mode() & 0o7777, 0o600);
    assert_eq!(afresh.balance(&alice).await.0, 401, "the old token is worth nothing");
    assert_eq!(afresh.balance(&afresh.tokens[0]).await, (200, json!("100")));
    afresh.end();
}

/// Its tokens are on its page: only this machine may see them.
#[tokio::test(flavor = "multi_thread")]
async fn the_demo_is_for_this_machine_alone() {
    let folder = tempfile::tempdir().unwrap();
    for elsewhere in ["0.0.0.0:0", "[::]:0", "192.0.2.1:8080"] {
        let ended = run(&mut largesse(folder.path(), &["demo", "--listen", elsewhere]));
        refused(&ended, "loopback", elsewhere);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
    let demo = demo(folder.path(), &[]);
    for path in ["/", "/graphiql/config.json"] {
        let ask = async |name: &str, value: &str| {
            let request = reqwest::Client::new().get(format!("{}{path}", demo.address)).header(name, value);
            let response = request.send().await.unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        };
        for (name, value) in [
            ("host", "evil.example"),
            ("host", "127.0.0.1.evil.example"),
            ("x-forwarded-for", "1.2.3.4"),
            ("forwarded", ""),
        ] {
            let (status, text) = ask(name, value).await;
            assert_eq!(status, 403, "{path} {name}: {value}");
            assert!(!text.contains("eyJ"), "{text}");
        }
        assert_eq!(ask("host", "localhost:1").await.0, 200);
    }
    let config = get(&format!("{}/graphiql/config.json", demo.address)).await.unwrap().1;
    assert!(demo.tokens.iter().all(|token| config.contains(token)));
    demo.end();
}

/// What is under way when the signal comes is finished and answered, while nobody new is let in.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_lets_money_work_finish() {
    for signal in ["TERM", "INT"] {
        let folder = tempfile::tempdir().unwrap();
        let (url, _) = fresh_database(Database::Postgres).await;
        let (running, address) = started(&mut patient(serve(folder.path(), &url)));
        let (_, claimed) = post(&address, &token("alice"), &json!({ "query": CLAIM_SIGNUP })).await;
        assert_eq!(claimed["data"]["claimSignupBonus"]["userErrors"], json!([]));
        post(&address, &token("bob"), &json!({ "query": "{ viewer { id } }" })).await;

        let held = sea_orm::Database::connect(&url).await.unwrap();
        let holding = held.begin().await.unwrap();
        holding.execute_unprepared("UPDATE wallets SET opened_at = opened_at").await.unwrap();
        let transferring = tokio::spawn({
            let address = address.clone();
            async move { post(&address, &token("alice"), &transfer("bob", 30, "last")).await }
        });
        wait_until("the transfer waits for the row", async || waiting(&url).await == 1).await;
        running.signal(signal);
        let ready = format!("{address}/readyz");
        wait_until("it is no longer ready", async || get(&ready).await == Some((503, "stopping".to_owned()))).await;
        wait_until("nobody new is let in", async || get(&ready).await.is_none()).await;
        assert!(!transferring.is_finished());
        holding.rollback().await.unwrap();

        let (status, answer) = transferring.await.unwrap();
        assert_eq!((status, &answer["data"]["transfer"]["replayed"]), (200, &json!(false)), "{answer}");
        let ended = running.wait();
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{}", ended.stderr);
        books_balance(&url).await;
    }
}

/// Work may wait for a row for longer than the server drains.
fn patient(mut serve: Command) -> Command {
    serve
        .env("LARGESSE_SIGNUP_BONUS_AMOUNT", "100")
        .env("LARGESSE_COOLDOWN_ENABLED", "false")
        .env("LARGESSE_REQUEST_DEADLINE_MS", "9000")
        .env("LARGESSE_REQUEST_DRAIN_MS", "1000")
        .env("LARGESSE_DATABASE_STATEMENT_TIMEOUT_MS", "8000")
        .env("LARGESSE_DATABASE_LOCK_TIMEOUT_MS", "7000");
    serve
}

/// How many sessions of a database wait for a lock.
async fn waiting(url: &str) -> i64 {
    let sql = sea_orm::Database::connect(url).await.unwrap();
    let query = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let row = sql.query_one_raw(sea_orm::Statement::from_string(sql.get_database_backend(), query)).await;
    let waiting = row.unwrap().unwrap().try_get_by_index(0).unwrap();
    sql.close().await.unwrap();
    waiting
}

/// Every line is one JSON object.
fn json_lines(text: &str) -> Vec<Value> {
    let line = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    text.lines().map(line).collect()
}

/// A refusal, a failure, a bad token and a good one leave lines that a collector reads and that may lie about.
#[tokio::test(flavor = "multi_thread")]
async fn log_lines_are_json_and_hold_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let (url, _) = fresh_database(Database::Postgres).await;
    let with_password = url.replacen("postgres@", "postgres:hunter2@", 1);
    assert_ne!(with_password, url);
    let redis = servers_url("LARGESSE_TEST_REDIS_URL");
    let mut command = serve(folder.path(), &with_password);
    command.env("REDIS_URL", &redis).env("LARGESSE_COOLDOWN_PREFIX", format!("log-{}", std::process::id()));
    command.env("LARGESSE_LOG_FILTER", "debug").env("LARGESSE_DAILY_BONUS_AMOUNTS", "[10]");
    let (running, address) = started(&mut command);
    let (member, foreign) = ("zaphod.beeblebrox@example.org", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl");
    let token = token(member);
    for _ in 0..2 {
        post(&address, &token, &json!({ "query": CLAIM_DAILY })).await;
    }
    post(&address, &token, &transfer("trillian.mcmillan", 5, "a key of hers")).await;
    assert_eq!(post(&address, foreign, &json!({ "query": CLAIM_DAILY })).await.0, 401);
    let sql = sea_orm::Database::connect(&url).await.unwrap();
    sql.execute_unprepared("ALTER TABLE wallets RENAME TO wallets_away").await.unwrap();
    let read = json!({ "query": "{ viewer { wallet { id } } }" });
    let (_, failed) = post(&address, &token, &read).await;
    sql.execute_unprepared("ALTER TABLE wallets_away RENAME TO wallets").await.unwrap();
    sql.close().await.unwrap();
    running.signal("TERM");
    let log = running.wait().stderr;

    let lines = json_lines(&log);
    let id = &failed["errors"][0]["extensions"]["requestId"];
    let cause = lines.iter().find(|line| line["request_id"] == *id).expect("the failure is logged");
    assert!(cause["cause"].as_str().unwrap().contains("wallets"), "{cause}");
    assert_eq!(cause["level"], "ERROR");
    assert!(lines.iter().any(|line| line["message"] == "refused: cooldown active"), "{log}");
    for secret in [SECRET, token.as_str(), foreign, "hunter2", member, "zaphod", "trillian", "a key of hers"] {
        assert!(!log.contains(secret), "{secret} stands in the log:\n{log}");
    }
    books_balance(&url).await;
}

#[test]
fn settings_can_be_printed_without_a_secret() {
    let mut settings = Settings::default();
    settings.token.secret = Some(SecretString::from(SECRET));
    settings.database_url = Some(SecretString::from("postgres://root:hunter2@db/books"));
    settings.redis_url = Some(SecretString::from("redis://:hunter2@redis"));
    let printed = format!("{settings:?} {settings:#?}");
    assert!(printed.contains("deadline_ms: 3000"));
    assert!(!printed.contains("hunter2") && !printed.contains(SECRET), "{printed}");
}
