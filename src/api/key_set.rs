//! The identity provider's current keys: fetched, kept, and fetched again.
//!
//! One task fetches, [`KeySet::keep_fresh`], so no two fetches run at once and no client that hangs up stops one. Requests
//! read what it published last. Only one whose `kid` is unknown waits: it wishes for a newer set, which is granted once a
//! minute whoever asks, and for a bounded time.

use std::fmt;
use std::future::Future;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jsonwebtoken::Algorithm;
use reqwest::redirect::Policy;
use tokio::sync::{Semaphore, watch};

use super::jwks::{Key, Keys, NoKey, NotKeys};
use crate::config::{ConfigError, TokenSettings};

/// How often tokens with unknown kids may cause a fetch: anybody can make such tokens.
const WISH_INTERVAL: Duration = Duration::from_mins(1);

/// How long a token with an unknown kid waits for a newer set.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// How many such tokens wait at once. More of them are told to come again, lest they take the places of good requests.
const MOST_WAITING: usize = 64;

/// How long a fetch may take, and connecting as its first part.
const FETCH_LIMIT: Duration = Duration::from_secs(5);
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// The largest set. Those of the large providers, certificates included, have a tenth of it.
const LARGEST_SET_BYTES: usize = 256 << 10;

/// After a fetch that failed: the first pause, doubled with each further failure up to the usual interval.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Where a set is published.
enum Source {
    /// Read again like a URL, since whoever mounts a file may replace it.
    File(PathBuf),
    Url(reqwest::Url, reqwest::Client),
}

/// The current keys of an identity provider.
pub(super) struct KeySet {
    source: Source,
    interval: Duration,
    published: watch::Sender<Published>,
    wishes: watch::Sender<Wishes>,
    waiting: Semaphore,
}

/// What the last fetches brought.
#[derive(Clone, Default)]
struct Published {
    /// Of the last fetch that succeeded.
    keys: Option<Arc<Keys>>,
    /// Whether the last one failed.
    failed: bool,
    /// All wishes up to this one are answered by it.
    answered: u64,
}

/// How many newer sets were wished for, and when the last time.
#[derive(Default)]
struct Wishes {
    number: u64,
    last: Option<Instant>,
}

/// Why there is no key to read a token by.
#[derive(Debug)]
pub(super) enum Missing {
    /// The token is not good.
    Key(NoKey),
    /// That cannot be known: the keys are not there, or are old and could not be fetched again.
    Set,
}

/// Why a set could not be fetched. Its text is for the log and names no more of the source than the setting does.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{0}")]
    File(#[from] std::io::Error),
    #[error("{}", causes(.0))]
    Http(#[from] reqwest::Error),
    #[error("the answer's status is {0}")]
    Status(reqwest::StatusCode),
    #[error("it has more than {LARGEST_SET_BYTES} bytes")]
    TooLarge,
    #[error("{0}")]
    NotKeys(#[from] NotKeys),
}

impl KeySet {
    /// Finds the source. A file must be good at once; a URL may be away for a while.
    pub(super) fn open(source: &str, settings: &TokenSettings) -> Result<Self, ConfigError> {
        let source = Source::parse(source, settings.jwks_ca_file.as_deref())?;
        let first = match &source {
            Source::File(path) => Some(read_file(path).map_err(|error| ConfigError::because(SETTING, &error))?),
            Source::Url(..) => None,
        };
        let first = Published { keys: first.map(Arc::new), ..Published::default() };
        Ok(Self {
            source,
            interval: Duration::from_secs(settings.jwks_refresh_seconds),
            published: watch::Sender::new(first),
            wishes: watch::Sender::default(),
            waiting: Semaphore::new(MOST_WAITING),
        })
    }

    /// Fetches the set now, whenever it is wished for, and after each interval, for as long as it is polled.
    pub(super) async fn keep_fresh(&self) {
        let mut wishes = self.wishes.subscribe();
        let mut retry = FIRST_RETRY;
        loop {
            let answers = wishes.borrow_and_update().number;
            let fetched = self.source.fetch().await;
            let outcome = if fetched.is_ok() { "done" } else { "failed" };
            metrics::counter!("largesse_key_set_fetches_total", "outcome" => outcome).increment(1);
            let pause = match fetched {
                Ok(keys) => {
                    self.publish_keys(keys, answers);
                    retry = FIRST_RETRY;
                    self.interval
                }
                Err(error) => {
                    let message = "the keys of tokens could not be fetched; those of before stay";
                    tracing::warn!(source = %self.source, %error, "{message}");
                    self.published.send_modify(|published| (published.failed, published.answered) = (true, answers));
                    let pause = retry;
                    retry = (retry * 2).min(self.interval);
                    pause
                }
            };
            // Either way it is time to fetch.
            let _ = tokio::time::timeout(pause, wishes.wait_for(|wishes| wishes.number > answers)).await;
        }
    }

    fn publish_keys(&self, keys: Keys, answers: u64) {
        tracing::debug!(source = %self.source, keys = keys.len(), left_out = ?keys.left_out(), "the keys of tokens are fetched");
        let keys = Some(Arc::new(keys));
        self.published.send_replace(Published { keys, failed: false, answered: answers });
    }

    /// Whether there are keys at all.
    pub(super) fn is_there(&self) -> bool {
        self.published.borrow().keys.is_some()
    }

    /// Reads something by the key that a token's header names, perhaps after a wait for a newer set.
    pub(super) async fn with_key<T>(
        &self,
        id: Option<&str>,
        algorithm: Algorithm,
        read: impl Fn(&Key) -> T,
    ) -> Result<T, Missing> {
        let look = || {
            let published = self.published.borrow().clone();
            match published.keys.as_ref().map(|keys| keys.find(id, algorithm).map(&read)) {
                Some(Ok(result)) => Ok(result),
                Some(Err(NoKey::UnknownId)) if published.failed => Err(Missing::Set),
                Some(Err(reason)) => Err(Missing::Key(reason)),
                None => Err(Missing::Set),
            }
        };
        match look() {
            Err(Missing::Set | Missing::Key(NoKey::UnknownId)) => {}
            known => return known,
        }
        let found = |published: &Published| {
            published.keys.as_ref().is_some_and(|keys| !matches!(keys.find(id, algorithm), Err(NoKey::UnknownId)))
        };
        match self.newer_set(found).await {
            Waited::Enough => look(),
            Waited::TooLong => look().or(Err(Missing::Set)),
        }
    }

    /// Waits until a newer set is there or the key is found, if a set is being fetched or may be wished for.
    async fn newer_set(&self, found: impl Fn(&Published) -> bool) -> Waited {
        let Some(wish) = self.wish() else { return Waited::Enough };
        let Ok(_place) = self.waiting.try_acquire() else { return Waited::TooLong };
        let mut published = self.published.subscribe();
        let answered = published.wait_for(|published| published.answered >= wish || found(published));
        match within(LONGEST_WAIT, answered).await {
            Some(Ok(_)) => Waited::Enough,
            _ => Waited::TooLong,
        }
    }

    /// The number of the wish to wait for: one that is under way, or a new one if it is time for it.
    fn wish(&self) -> Option<u64> {
        let mut number = None;
        self.wishes.send_if_modified(|wishes| {
            let under_way = wishes.number > self.published.borrow().answered;
            let too_early = wishes.last.is_some_and(|last| last.elapsed() < WISH_INTERVAL);
            if !under_way && too_early {
                return false;
            }
            if !under_way {
                (wishes.number, wishes.last) = (wishes.number + 1, Some(Instant::now()));
            }
            number = Some(wishes.number);
            !under_way
        });
        number
    }
}

enum Waited {
    /// Nothing newer is to be had now.
    Enough,
    /// Something newer may be on its way.
    TooLong,
}

async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

/// The setting that names the source.
const SETTING: &str = "token.jwks";

impl Source {
    /// Reads the setting: what has a scheme is a URL, anything else a file.
    fn parse(text: &str, authorities: Option<&Path>) -> Result<Self, ConfigError> {
        if !text.contains("://") {
            return Ok(Self::File(PathBuf::from(text)));
        }
        let url = reqwest::Url::parse(text).map_err(|error| ConfigError::because(SETTING, &error))?;
        let refuse = |why: &str| Err(ConfigError::because(SETTING, &why));
        match url.scheme() {
            "https" => {}
            "http" if is_loopback(&url) => {}
            "http" => {
                return refuse("a URL must be https, or http to this machine alone (127.0.0.1, [::1] or localhost)");
            }
            _ => return refuse("a URL must be https"),
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("a URL must hold no user and no password: the keys are public");
        }
        let mut client = reqwest::Client::builder()
            .https_only(url.scheme() == "https")
            // Who may say what the keys are is said by the setting, not by an answer.
            .redirect(Policy::none())
            .connect_timeout(CONNECT_LIMIT)
            .timeout(FETCH_LIMIT)
            .user_agent(concat!("largesse/", env!("CARGO_PKG_VERSION")));
        if let Some(path) = authorities {
            let certificates = certificates(path).map_err(|reason| {
                ConfigError::because("token.jwks_ca_file", &format!("{}: {reason}", path.display()))
            })?;
            client = client.tls_built_in_root_certs(false);
            client = certificates.into_iter().fold(client, reqwest::ClientBuilder::add_root_certificate);
        }
        let client = client.build().map_err(|error| ConfigError::because(SETTING, &causes(&error)))?;
        Ok(Self::Url(url, client))
    }

    async fn fetch(&self) -> Result<Keys, FetchError> {
        match self {
            Self::Url(url, client) => fetch(url, client).await,
            // A few kilobytes, every few minutes.
            Self::File(path) => read_file(path),
        }
    }
}

impl fmt::Display for Source {
    /// Without a query, where a secret may stand.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Url(url, _) => write!(f, "{}{}", url.origin().ascii_serialization(), url.path()),
        }
    }
}

/// The authorities of a PEM file: at least one.
fn certificates(path: &Path) -> Result<Vec<reqwest::Certificate>, String> {
    let pem = std::fs::read(path).map_err(|error| error.to_string())?;
    let certificates = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| causes(&error))?;
    if certificates.is_empty() { Err("it holds no certificate".to_owned()) } else { Ok(certificates) }
}

fn is_loopback(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

async fn fetch(url: &reqwest::Url, client: &reqwest::Client) -> Result<Keys, FetchError> {
    let asking = client.get(url.clone()).header(reqwest::header::ACCEPT, "application/json").send();
    let mut response = asking.await.map_err(reqwest::Error::without_url)?;
    if response.status() != reqwest::StatusCode::OK {
        return Err(FetchError::Status(response.status()));
    }
    let mut text = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(reqwest::Error::without_url)? {
        if text.len() + chunk.len() > LARGEST_SET_BYTES {
            return Err(FetchError::TooLarge);
        }
        text.extend_from_slice(&chunk);
    }
    Ok(Keys::parse(&text)?)
}

fn read_file(path: &Path) -> Result<Keys, FetchError> {
    let mut text = Vec::new();
    std::fs::File::open(path)?.take(LARGEST_SET_BYTES as u64 + 1).read_to_end(&mut text)?;
    if text.len() > LARGEST_SET_BYTES { Err(FetchError::TooLarge) } else { Ok(Keys::parse(&text)?) }
}

/// An error with its causes: the first text alone says "error sending request".
fn causes(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn refused(source: &str) -> String {
        KeySet::open(source, &Settings::default().token).err().expect(source).to_string()
    }

    #[test]
    fn a_source_is_a_good_file_or_a_safe_url() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        for (source, why) in [
            ("http://id.example/jwks", "must be https"),
            ("http://127.0.0.1.example/jwks", "must be https"),
            ("http://10.0.0.1/jwks", "must be https"),
            ("ftp://id.example/jwks", "must be https"),
            ("file:///etc/passwd", "must be https"),
            ("https://", "empty host"),
            ("/no/such/file.json", "No such file"),
            ("", "No such file"),
            ("Cargo.toml", "no JSON object"),
        ] {
            let error = refused(source);
            assert!(error.starts_with("token.jwks: ") && error.contains(why), "{source}: {error}");
        }
        let error = refused("https://user:hunter2@id.example/jwks");
        assert!(error.contains("no password") && !error.contains("hunter2"), "{error}");
        for source in ["https://id.example/jwks", "http://127.0.0.1:9/x", "http://[::1]:9/x", "http://localhost/x"] {
            assert!(KeySet::open(source, &Settings::default().token).is_ok(), "{source}");
        }
    }

    #[test]
    fn a_source_is_logged_without_its_query() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let source = Source::parse("https://id.example/jwks?key=hunter2", None).unwrap();
        assert_eq!(source.to_string(), "https://id.example/jwks");
    }

    /// Ten thousand tokens with unknown kids are one wish.
    #[test]
    fn a_flood_wishes_once() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let set = KeySet::open("http://127.0.0.1:9/x", &Settings::default().token).unwrap();
        assert_eq!(set.wish(), Some(1));
        assert_eq!(set.wish(), Some(1), "it is under way");
        set.published.send_modify(|published| published.answered = 1);
        assert_eq!(set.wish(), None, "it was answered a moment ago");
        set.wishes.send_modify(|wishes| wishes.last = Instant::now().checked_sub(WISH_INTERVAL));
        assert_eq!(set.wish(), Some(2), "a minute later");
    }
}
