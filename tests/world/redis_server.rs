//! A Redis of a test's own.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::Commands;

/// A redis-server on loopback, killed when the test ends.
pub(crate) struct RedisServer {
    port: u16,
    folder: tempfile::TempDir,
    child: Option<Child>,
    /// Set if it speaks TLS as well: on a port of its own, so that the test can look in without.
    tls_port: Option<u16>,
    program: &'static str,
    /// What it is started with besides the usual.
    options: Vec<String>,
}

/// A port where nobody listens.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl RedisServer {
    /// Starts one on a free port.
    pub(crate) fn start() -> Self {
        Self::start_with(None, &[])
    }

    /// Starts one with further options, such as `--replicaof`.
    pub(crate) fn start_as(options: &[&str]) -> Self {
        Self::start_with(None, options)
    }

    /// Starts a sentinel of this configuration.
    pub(crate) fn start_sentinel(configuration: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Sentinels write down in their configuration what they learn.
        std::fs::write(folder.path().join("sentinel.conf"), configuration).unwrap();
        let options = vec!["sentinel.conf".to_owned()];
        let mut sentinel =
            Self { port: free_port(), folder, child: None, tls_port: None, program: "redis-sentinel", options };
        sentinel.start_again();
        sentinel
    }

    /// Starts one that speaks TLS as well, with a certificate for `names` that its own authority vouches for.
    pub(crate) fn start_with_tls(names: &str) -> Self {
        Self::start_with(Some(names), &[])
    }

    fn start_with(certified_names: Option<&str>, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if let Some(names) = certified_names {
            certify(folder.path(), names);
        }
        let tls_port = certified_names.map(|_| free_port());
        let usual = ["--save", "", "--appendonly", "no"].iter().chain(options).map(|option| (*option).to_owned());
        let options = usual.chain(tls_port.map(tls_options).unwrap_or_default()).collect();
        let mut server = Self { port: free_port(), folder, child: None, tls_port, program: "redis-server", options };
        server.start_again();
        server
    }

    /// Starts it again after [`Self::stop`], empty, on the same port.
    pub(crate) fn start_again(&mut self) {
        let child = Command::new(self.program)
            .args(&self.options)
            .args(["--bind", "127.0.0.1", "--port", &self.port.to_string()])
            .current_dir(self.folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("scripts/packages installs it");
        self.child = Some(child);
        let started = Instant::now();
        while self.connection().is_none() {
            assert!(started.elapsed() < Duration::from_secs(10), "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Where it speaks TLS.
    pub(crate) fn tls_url(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.tls_port.expect("it was started with TLS"))
    }

    /// The certificate of the authority that vouches for it.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Makes it the replica of a server that is not there: it reads, and refuses to write, as after a failover.
    pub(crate) fn refuse_writes(&self) {
        self.command(&["CONFIG", "SET", "replica-read-only", "yes"]);
        self.command(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]);
    }

    /// Makes it writable again.
    pub(crate) fn accept_writes(&self) {
        self.command(&["REPLICAOF", "NO", "ONE"]);
    }

    /// How many bytes were sent to it that it has not read: more than none only while it is frozen.
    pub(crate) fn unread_bytes(&self) -> u64 {
        let port = format!(":{:04X}", self.port);
        let sockets = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
        let established = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        // Columns: local address, remote address, state (01 is established, 08 closed by the other side), queues.
        let waiting = established.filter(|socket| socket[1].ends_with(&port) && ["01", "08"].contains(&socket[3]));
        waiting.map(|socket| u64::from_str_radix(socket[4].split_once(':').unwrap().1, 16).unwrap()).sum()
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

    /// Counts commands anew from here on.
    pub(crate) fn forget_commands(&self) {
        self.command(&["CONFIG", "RESETSTAT"]);
    }

    /// How often it ran a command since it started, or since [`Self::forget_commands`].
    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.commands().get(command).copied().unwrap_or(0)
    }

    /// How often it ran each command, also inside scripts. What looking takes, what is told to other processes of wallets that
    /// moved, and the DEL by which a server's keeper tries each second whether it takes writes, is left out.
    pub(crate) fn commands(&self) -> BTreeMap<String, u64> {
        let text: String = redis::from_redis_value(self.command(&["INFO", "commandstats"])).expect("INFO is a text");
        let calls = text.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
        let calls = calls.map(|(name, rest)| (name.to_owned(), rest.split(',').next().unwrap().parse().unwrap()));
        let other = ["client", "config", "del", "hello", "info", "ping", "publish"];
        calls.filter(|(name, _)| !other.contains(&name.split('|').next().unwrap())).collect()
    }

    /// Runs a command that may fail.
    pub(crate) fn try_command<T: redis::FromRedisValue>(&self, words: &[&str]) -> Option<T> {
        redis::cmd(words[0]).arg(&words[1..]).query(&mut self.connection()?).ok()
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

fn tls_options(port: u16) -> Vec<String> {
    let options = format!(
        "--tls-port {port} --tls-cert-file server.pem --tls-key-file server.key --tls-ca-cert-file ca.pem \
         --tls-auth-clients no"
    );
    options.split_whitespace().map(str::to_owned).collect()
}

/// Makes an authority, and a certificate for these names (`IP:127.0.0.1`) that it vouches for.
fn certify(folder: &Path, names: &str) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(folder, &format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"));
    openssl(folder, &format!("req {key} -keyout server.key -out server.csr -subj /CN=server"));
    std::fs::write(folder.join("names"), format!("subjectAltName={names}")).unwrap();
    openssl(
        folder,
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 2 -extfile names",
    );
}

fn openssl(folder: &Path, arguments: &str) {
    let mut command = Command::new("openssl");
    let made = command.args(arguments.split_whitespace()).current_dir(folder).output().expect("openssl is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.stop();
    }
}
