//! Promise: whatever arrives, the server answers soon, with JSON that a client can read and a code that the catalogue knows;
//! it neither fails nor grows, and the books balance afterwards.
//!
//! Guards the front as a whole, from the socket to the resolvers, against what nobody thought of. The input is made from a
//! seed that is the same each time; LARGESSE_FUZZ_SEED sets another, and LARGESSE_FUZZ_SECONDS how long to go on.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Message, client};

use crate::world::arbitrary::{Frame, body, document, frames, headers, parameters, query_string, variables};
use crate::world::binary::{Running, largesse};
use crate::world::{SECRET, books_balance, token};

/// Answered within this, or not soon: the request's own deadline is three seconds, and the machine may be slow.
const SOON: Duration = Duration::from_secs(8);

/// How long each test goes on, and how many cases it tries at most.
const SECONDS: u64 = 6;
const MOST_CASES: u32 = 3000;

/// How many cases are tried between two looks at the clock.
const ROUND: u32 = 50;

/// What the process may gain after it has warmed up: its memories are bounded, and the allocator keeps some.
const GROWTH_KIB: u64 = 48 << 10;

#[test]
fn documents_and_variables_are_answered() {
    let cases = (document(), variables(), any::<bool>());
    bombard(cases, |server, (document, variables, get)| {
        let members = tokens();
        let member = &members[document.len() % members.len()];
        let authorization = ("authorization", format!("Bearer {member}").into_bytes());
        if *get && document.len() < 4000 {
            let pairs = [("query", document.as_str()), ("variables", &variables.to_string())];
            let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
            return server.ask("GET", &query, &[authorization], b"");
        }
        let body = json!({ "query": document, "variables": variables }).to_string();
        server.ask("POST", "", &[authorization, ("content-type", b"application/json".to_vec())], body.as_bytes())
    });
}

#[test]
fn bodies_and_headers_are_answered() {
    bombard((body(), headers(tokens())), |server, (body, headers)| server.ask("POST", "", headers, body));
}

#[test]
fn methods_and_urls_are_answered() {
    let methods =
        proptest::sample::select(vec!["GET", "GET", "GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST", "QUERY"]);
    let cases = (methods, query_string(), headers(tokens()), parameters());
    bombard(cases, |server, (method, query, headers, parameters)| {
        let body = if ["GET", "HEAD"].contains(method) { String::new() } else { parameters.to_string() };
        server.ask(method, query, headers, body.as_bytes())
    });
}

#[test]
fn frames_are_answered() {
    bombard((any::<u8>(), frames()), |server, (whose, frames)| {
        let members = tokens();
        // One in eight says not whose it is.
        let token = (whose % 8 > 0).then(|| members[usize::from(*whose) % members.len()].as_str());
        server.talk(token, frames)
    });
}

/// Sends cases to a server of the test's own, and looks at the server afterwards.
fn bombard<S: Strategy>(cases: S, ask: impl Fn(&Target, &S::Value) -> Result<(), TestCaseError>) {
    let folder = tempfile::tempdir().unwrap();
    let server = Target::start(folder.path());
    let seed: u64 = variable("LARGESSE_FUZZ_SEED").unwrap_or(1);
    println!("LARGESSE_FUZZ_SEED={seed} makes the same input again");
    let (most, time) = match variable("LARGESSE_FUZZ_SECONDS") {
        Some(seconds) => (u32::MAX, Duration::from_secs(seconds)),
        None => (MOST_CASES, Duration::from_secs(SECONDS)),
    };
    let (started, mut done, mut warm) = (Instant::now(), 0, None);
    while done < most && started.elapsed() < time {
        if let Err(error) = round(seed, done).run(&cases, |case| ask(&server, &case)) {
            let log = server.running.logged();
            let last: Vec<_> = log.lines().rev().take(5).collect();
            panic!(
                "with LARGESSE_FUZZ_SEED={seed}: {error}\nthe server's last lines, the newest first:\n{}",
                last.join("\n")
            );
        }
        done += ROUND;
        warm.get_or_insert_with(|| server.memory_kib());
    }
    println!("{done} cases, {} of them executed, {} KiB", server.executed.get(), server.memory_kib());
    // Input of which nothing is ever executed would prove little.
    assert!(server.executed.get() >= done / 100, "{} of {done} cases were executed", server.executed.get());
    let warm = warm.expect("at least one round");
    assert!(server.memory_kib() < warm + GROWTH_KIB, "it grew from {warm} KiB to {} KiB", server.memory_kib());
    server.end(folder.path());
}

/// The next cases. A runner counts its cases for good, so each round has one of its own.
fn round(seed: u64, done: u32) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..12].copy_from_slice(&done.to_le_bytes());
    let config = Config { cases: ROUND, failure_persistence: None, max_shrink_iters: 500, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Of members with something to lose.
fn tokens() -> Vec<String> {
    ["alice", "bob", "carol"].map(token).to_vec()
}

/// The server that is aimed at: the real binary, on a socket.
struct Target {
    running: Running,
    address: String,
    codes: BTreeSet<String>,
    executed: Cell<u32>,
}

impl Target {
    fn start(folder: &Path) -> Self {
        let mut command = largesse(folder, &["serve", "--migrate", "--listen", "127.0.0.1:0"]);
        command.env("LARGESSE_TOKEN_SECRET", SECRET).env("DATABASE_URL", "sqlite:books.db");
        command.env("LARGESSE_DAILY_BONUS_AMOUNTS", "[10]").env("LARGESSE_SIGNUP_BONUS_AMOUNT", "100");
        // Layer 1 would let one mutation through in five seconds.
        command.env("LARGESSE_COOLDOWN_ENABLED", "false").env("LARGESSE_LOG_FORMAT", "json");
        command.env("LARGESSE_LOG_FILTER", "warn,largesse=info,largesse::api=warn");
        let running = Running::start(&mut command);
        let address = running.word_after("\"address\":\"");
        Self { running, address, codes: catalogue(), executed: Cell::new(0) }
    }

    /// Sends a request on a connection of its own, and judges the answer.
    fn ask(&self, method: &str, query: &str, headers: &[(&str, Vec<u8>)], body: &[u8]) -> Result<(), TestCaseError> {
        let mut request =
            format!("{method} /graphql?{query} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n").into_bytes();
        for (name, value) in headers {
            request.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        if !body.is_empty() {
            request.extend(format!("content-length: {}\r\n", body.len()).into_bytes());
        }
        request.extend(b"\r\n");
        request.extend(body);
        let asked = Instant::now();
        let answer = self.exchange(&request).map_err(|error| TestCaseError::fail(format!("no answer: {error}")))?;
        prop_assert!(asked.elapsed() < SOON, "answered after {:?}", asked.elapsed());
        self.judge(method, &answer)
    }

    /// Sends frames on a WebSocket of its own, and judges what comes back until the server has closed it or has answered a
    /// last ping.
    fn talk(&self, token: Option<&str>, frames: &[Frame]) -> Result<(), TestCaseError> {
        let fail = |error: &dyn std::fmt::Display| TestCaseError::fail(format!("no answer: {error}"));
        let stream = TcpStream::connect(&self.address).map_err(|error| fail(&error))?;
        stream.set_read_timeout(Some(SOON)).map_err(|error| fail(&error))?;
        let mut request = format!("ws://{}/graphql", self.address).into_client_request().expect("a URL");
        request.headers_mut().insert("sec-websocket-protocol", "graphql-transport-ws".parse().expect("a header"));
        let (mut socket, _) = client(request, stream).map_err(|error| fail(&error))?;
        let init = token.map(|token| {
            let payload = json!({ "Authorization": format!("Bearer {token}") });
            Frame::Text(json!({ "type": "connection_init", "payload": payload }).to_string())
        });
        for frame in init.iter().chain(frames).chain([&Frame::Text(r#"{"type":"ping"}"#.to_owned())]) {
            // The server may have closed it by now, and says so below.
            let _ = match frame.clone() {
                Frame::Text(text) => socket.send(Message::text(text)),
                Frame::Binary(bytes) => socket.send(Message::binary(bytes)),
                Frame::Ping(bytes) => socket.send(Message::Ping(bytes.into())),
                Frame::Bytes(bytes) => socket.get_mut().write_all(&bytes).map_err(Into::into),
            };
        }
        let pings = 1 + frames.iter().filter(|frame| is_ping(frame)).count();
        let (asked, mut answered) = (Instant::now(), 0);
        while answered < pings {
            match socket.read() {
                Ok(Message::Text(text)) => answered += usize::from(self.judge_message(&text)?),
                Ok(Message::Close(Some(frame))) => {
                    let code = u16::from(frame.code);
                    prop_assert!(CLOSED_WITH.contains(&code), "closed with {code} {}", frame.reason);
                    break;
                }
                Ok(_) => {}
                // Broken frames end a connection without a word.
                Err(_) => break,
            }
            prop_assert!(asked.elapsed() < SOON, "not answered after {:?}", asked.elapsed());
        }
        prop_assert!(asked.elapsed() < SOON, "not answered after {:?}", asked.elapsed());
        Ok(())
    }

    /// Whether the message is a pong; whatever it is, it is one of the protocol, and its errors are known.
    fn judge_message(&self, text: &str) -> Result<bool, TestCaseError> {
        let message: Value =
            serde_json::from_str(text).map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
        let kind = message["type"].as_str().unwrap_or_default();
        match kind {
            "next" => {
                self.judge_errors(&message["payload"]["errors"], text)?;
                self.executed.set(self.executed.get() + u32::from(message["payload"]["data"].is_object()));
            }
            "error" => {
                prop_assert!(message["payload"].as_array().is_some_and(|errors| !errors.is_empty()), "{text}");
                self.judge_errors(&message["payload"], text)?;
            }
            _ => prop_assert!(["connection_ack", "complete", "pong"].contains(&kind), "{text}"),
        }
        Ok(kind == "pong")
    }

    fn judge_errors(&self, errors: &Value, text: &str) -> Result<(), TestCaseError> {
        for error in errors.as_array().map(Vec::as_slice).unwrap_or_default() {
            let code = error["extensions"]["code"].as_str().unwrap_or_default();
            prop_assert!(self.codes.contains(code) && code != "INTERNAL_SERVER_ERROR", "{text}");
            prop_assert!(error["message"].is_string() && error["extensions"]["requestId"].is_string(), "{text}");
        }
        Ok(())
    }

    fn exchange(&self, request: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SOON))?;
        stream.write_all(request)?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }

    fn judge(&self, method: &str, answer: &[u8]) -> Result<(), TestCaseError> {
        let text = String::from_utf8(answer.to_vec()).map_err(|_| TestCaseError::fail("the answer is not UTF-8"))?;
        let (head, body) =
            text.split_once("\r\n\r\n").ok_or_else(|| TestCaseError::fail(format!("no HTTP: {text}")))?;
        let status = head.split(' ').nth(1).unwrap_or_default();
        prop_assert!(EXPECTED.contains(&status), "{text}");
        // The answer to HEAD has no body, nor has the answer to a preflight.
        if method == "HEAD" || (method == "OPTIONS" && body.is_empty()) {
            return Ok(());
        }
        prop_assert!(head.to_ascii_lowercase().contains("x-request-id: "), "{text}");
        let answer: Value =
            serde_json::from_str(body).map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
        let errors = answer["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
        prop_assert!(answer.get("data").is_some() || !errors.is_empty(), "{text}");
        self.judge_errors(&answer["errors"], &text)?;
        if answer["data"].is_object() {
            self.executed.set(self.executed.get() + 1);
        }
        Ok(())
    }

    /// What the process holds in memory.
    fn memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.running.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says so");
        line.trim_end_matches("kB").trim().parse().expect("a number")
    }

    fn end(self, folder: &Path) {
        self.running.signal("TERM");
        let ended = self.running.wait();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(!ended.stderr.contains("panicked") && !ended.stderr.contains("\"ERROR\""), "{}", ended.stderr);
        let url = format!("sqlite:{}", folder.join("books.db").display());
        tokio::runtime::Runtime::new().unwrap().block_on(books_balance(&url));
    }
}

/// How a server that is well closes a WebSocket: by the protocol's codes, or because a frame was broken or too large.
const CLOSED_WITH: [u16; 9] = [1002, 1007, 1009, 4400, 4401, 4403, 4408, 4409, 4429];

/// Whether the protocol answers it with a pong.
fn is_ping(frame: &Frame) -> bool {
    let Frame::Text(text) = frame else { return false };
    serde_json::from_str::<Value>(text).is_ok_and(|message| message["type"] == "ping")
}

/// No 500, whatever happens; 503 says that something was too much.
const EXPECTED: [&str; 9] = ["200", "400", "401", "405", "406", "408", "413", "415", "503"];

/// The codes of the catalogue's first table.
fn catalogue() -> BTreeSet<String> {
    let page = include_str!("../docs/errors.md").split("## `userErrors`").next().unwrap();
    let codes = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    codes.map(str::to_owned).collect()
}
