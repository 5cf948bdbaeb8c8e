//! A real OpenTelemetry collector, the spans that it was told, and a server process that tells it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::binary::{Ended, Running, largesse};
use super::{SECRET, provide_cryptography, token, wait_until};

/// A collector on a port of its own, which writes down whatever comes.
pub(crate) struct Collector {
    child: Child,
    port: u16,
    folder: TempDir,
}

/// A span as the collector read it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Span {
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) name: String,
    /// Such as `action` with `Str(transfer)`.
    pub(crate) attributes: BTreeMap<String, String>,
}

impl Span {
    /// An attribute's value; empty where there is none.
    pub(crate) fn attribute(&self, name: &str) -> &str {
        let typed = self.attributes.get(name).map_or("", String::as_str);
        typed.split_once('(').and_then(|(_, value)| value.strip_suffix(')')).unwrap_or_default()
    }
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (port, grpc) = (free_port(), free_port());
        let log = File::create(folder.path().join("log")).expect("a file");
        let child = Command::new(program())
            .args(["start", "--exporter", "blackhole", "--debug-log", "traces", "--debug-log-verbosity", "detailed"])
            .args(["--otlp-http-endpoint", &format!("127.0.0.1:{port}")])
            .args(["--otlp-grpc-endpoint", &format!("127.0.0.1:{grpc}")])
            .arg("--pid-file")
            .arg(folder.path().join("pid"))
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a file"))
            .stdout(log)
            .spawn()
            .expect("the collector starts: scripts/collector fetches it");
        let collector = Self { child, port, folder };
        wait_until("the collector listens", async || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()).await;
        collector
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Everything that it wrote down.
    pub(crate) fn text(&self) -> String {
        let bytes = std::fs::read(self.folder.path().join("log")).expect("the collector's log");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Every span that has come so far.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let text = self.text();
        text.split("\nSpan #").skip(1).map(read_span).collect()
    }

    /// Waits until so many spans have come, and gives them back.
    pub(crate) async fn spans_once_there_are(&self, count: usize) -> Vec<Span> {
        wait_until("the spans are there", async || self.spans().len() >= count).await;
        self.spans()
    }

    /// From here on it takes nothing, and says nothing.
    pub(crate) fn freeze(&self) {
        let stopped = Command::new("kill").args(["-s", "STOP", &self.child.id().to_string()]).status();
        assert!(stopped.expect("kill").success());
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_span(text: &str) -> Span {
    let mut span = Span::default();
    for line in text.lines() {
        if let Some((name, value)) = line.trim().strip_prefix("-> ").and_then(|pair| pair.split_once(": ")) {
            span.attributes.insert(name.to_owned(), value.to_owned());
        } else if let Some((name, value)) = line.trim().split_once(':') {
            let field = match name.trim() {
                "Trace ID" => &mut span.trace,
                "ID" => &mut span.id,
                "Parent ID" => &mut span.parent,
                "Name" => &mut span.name,
                _ => continue,
            };
            value.trim().clone_into(field);
        }
    }
    span
}

/// What scripts/collector has unpacked, in the build folder.
fn program() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the build folder").join("collector/rotel/rotel-agent")
}

/// It was free a moment ago.
pub(crate) fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().unwrap().port()
}

/// A server in a process of its own, which tells a collector.
pub(crate) struct Traced {
    running: Running,
    pub(crate) address: String,
    _folder: TempDir,
}

impl Traced {
    /// One on a database, with further settings of the environment.
    pub(crate) fn start(url: &str, collector: &str, settings: &[(&str, &str)]) -> Self {
        // The tests' own HTTP client wants one, though no TLS is spoken here.
        provide_cryptography();
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = largesse(folder.path(), &["serve", "--listen", "127.0.0.1:0", "--log-format", "json"]);
        command
            .env("DATABASE_URL", url)
            .env("LARGESSE_TOKEN_SECRET", SECRET)
            .env("LARGESSE_SIGNUP_BONUS_AMOUNT", "100")
            .env("LARGESSE_REQUEST_DRAIN_MS", "1")
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector)
            .env("OTEL_BSP_SCHEDULE_DELAY", "100")
            .envs(settings.iter().copied());
        let running = Running::start(&mut command);
        let address = format!("http://{}", running.word_after("\"address\":\""));
        Self { running, address, _folder: folder }
    }

    /// Asks as a member, with further headers.
    pub(crate) async fn ask(&self, member: &str, body: &Value, headers: &[(&str, &str)]) -> Value {
        // Long enough for a slow machine, so that a server that hangs fails the test and does not hang it.
        let client = reqwest::Client::builder().timeout(Duration::from_secs(10)).build().expect("a client");
        let mut request = client.post(format!("{}/graphql", self.address)).bearer_auth(token(member)).json(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.expect("the server answers").json().await.expect("JSON")
    }

    /// Alice has 100 points and Bob is known; whoever asked for that wants no trace of it.
    pub(crate) async fn introduce(&self, alice: &str, bob: &str) {
        let unsampled = [("traceparent", UNSAMPLED)];
        let claim = json!({ "query": "mutation { claimSignupBonus { claim { id } userErrors { code } } }" });
        let claimed = self.ask(alice, &claim, &unsampled).await;
        assert!(claimed["data"]["claimSignupBonus"]["claim"]["id"].is_string(), "{claimed}");
        let known = self.ask(bob, &json!({ "query": "{ viewer { id } }" }), &unsampled).await;
        assert!(known["data"]["viewer"]["id"].is_string(), "{known}");
    }

    /// What it has logged so far.
    pub(crate) fn logged(&self) -> String {
        self.running.logged()
    }

    /// Ends it as a platform does.
    pub(crate) fn end(self) -> Ended {
        self.running.signal("TERM");
        self.running.wait()
    }
}

/// A caller's trace that is not to be exported.
pub(crate) const UNSAMPLED: &str = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-00";
