//! The command line as people and scripts meet it: the real binary, in a folder and an environment of the test's own.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer than any command takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The binary with these arguments, in this folder, and with nothing of the surroundings but the search path.
pub(crate) fn largesse(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_largesse"));
    command.args(arguments).current_dir(folder).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit code; none if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Ended {
    Running::start(command).wait()
}

/// A command that runs. It is killed when the test ends.
pub(crate) struct Running {
    child: Child,
    stdout: Reader,
    stderr: Reader,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary");
        let stdout = Reader::start(child.stdout.take().expect("a pipe"));
        let stderr = Reader::start(child.stderr.take().expect("a pipe"));
        Self { child, stdout, stderr }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed so far.
    pub(crate) fn printed(&self) -> String {
        self.stdout.text()
    }

    /// What it has logged so far.
    pub(crate) fn logged(&self) -> String {
        self.stderr.text()
    }

    /// Waits for the first word after `before` on stdout or stderr, and gives it back.
    pub(crate) fn word_after(&self, before: &str) -> String {
        let started = Instant::now();
        loop {
            let text = format!("{}\n{}", self.printed(), self.logged());
            let line = text.lines().find_map(|line| line.split_once(before));
            let end = |c: char| c.is_whitespace() || "\"/,".contains(c);
            if let Some(word) = line.and_then(|(_, after)| after.split(end).next()).filter(|word| !word.is_empty()) {
                return word.to_owned();
            }
            assert!(started.elapsed() < PATIENCE, "nothing follows {before:?} in:\n{text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.pid().to_string()]).status().expect("kill");
        assert!(sent.success());
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Ended {
        let started = Instant::now();
        let code = loop {
            if let Some(status) = self.child.try_wait().expect("the child's status") {
                break status.code();
            }
            let (printed, logged) = (self.printed(), self.logged());
            assert!(started.elapsed() < PATIENCE, "it does not end; it printed:\n{printed}\nand logged:\n{logged}");
            std::thread::sleep(Duration::from_millis(5));
        };
        Ended { code, stdout: self.stdout.rest(), stderr: self.stderr.rest() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a pipe as it fills.
struct Reader {
    text: Arc<Mutex<String>>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    fn start(pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let filled = text.clone();
        let thread = std::thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            while pipe.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                filled.lock().unwrap().push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        });
        Self { text, thread: Some(thread) }
    }

    fn text(&self) -> String {
        self.text.lock().unwrap().clone()
    }

    /// All of it, once the pipe has ended.
    fn rest(&mut self) -> String {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        self.text()
    }
}
