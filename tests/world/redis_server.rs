//! A Redis of a test's own.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::Commands;

/// A redis-server on loopback, killed when the test ends.
pub(crate) struct RedisServer {
    port: u16,
    folder: tempfile::TempDir,
    child: Option<Child>,
}

impl RedisServer {
    /// Starts one on a free port.
    pub(crate) fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = Self { port, folder: tempfile::tempdir().unwrap(), child: None };
        server.start_again();
        server
    }

    /// Starts it again after [`Self::stop`], empty, on the same port.
    pub(crate) fn start_again(&mut self) {
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &self.port.to_string()])
            .current_dir(self.folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        self.child = Some(child);
        let started = Instant::now();
        while self.connection().is_none() {
            assert!(started.elapsed() < Duration::from_secs(10), "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Ends it at once; its keys are gone.
    pub(crate) fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // A frozen process dies of SIGKILL as well.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops it in the middle of whatever it does: connections stay open and nothing answers.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
    }

    /// Lets it go on: it works off all that it was sent meanwhile.
    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    /// Runs a command.
    pub(crate) fn command(&self, words: &[&str]) -> redis::Value {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.connection().expect("Redis answers")).expect("the command is good")
    }

    /// All keys.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.connection().expect("Redis answers").keys("*").expect("KEYS")
    }

    /// How long a key has left, in milliseconds; -2 if there is none.
    pub(crate) fn left_ms(&self, key: &str) -> i64 {
        self.connection().expect("Redis answers").pttl(key).expect("PTTL")
    }

    fn connection(&self) -> Option<redis::Connection> {
        let client = redis::Client::open(self.url()).ok()?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(2)).ok()?;
        connection.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        redis::cmd("PING").query::<String>(&mut connection).ok().map(|_| connection)
    }

    fn signal(&self, name: &str) {
        let pid = self.child.as_ref().expect("it runs").id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status().expect("kill");
        assert!(sent.success());
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.stop();
    }
}
