//! Settings: defaults, then `largesse.toml`, then the environment, then flags. `docs/settings.md` lists each of them.
//!
//! | file | what it is for |
//! |---|---|
//! | this one, `cooldown`, `signals` | the settings themselves |
//! | `defaults` | what holds where nothing is set |
//! | `read` | the file and the environment |
//! | `check` | which settings cannot be, and why |
//! | `collector` | where traces are sent |
//! | `partner` | names and addresses of endpoints and providers |

mod check;
mod collector;
mod cooldown;
mod defaults;
mod partner;
mod read;
mod signals;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use chrono_tz::Tz;
use secrecy::SecretString;
use serde::{Deserialize, Serialize, Serializer};

use crate::amount::CurrencyCode;
use crate::event::EventType;
use crate::signature::WebhookSecret;
pub(crate) use check::drift;
pub use collector::CollectorUrl;
pub use cooldown::{ActionSettings, CooldownSettings, WithoutRedis};
pub use partner::{EndpointUrl, PartnerName};
pub use read::variables;
pub use signals::{LogFormat, LogSettings, MetricsSettings, TraceSettings};

/// Everything that can be set.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where to listen.
    pub listen: SocketAddr,
    /// `postgres://…` or `sqlite:…`.
    #[serde(serialize_with = "hide")]
    pub database_url: Option<SecretString>,
    /// One Redis: `redis://…` or `rediss://…`. Without it and the four below, cooldowns live in the process.
    #[serde(serialize_with = "hide")]
    pub redis_url: Option<SecretString>,
    /// Instead, the sentinels that know which server is the primary.
    #[serde(serialize_with = "hide_all")]
    pub redis_sentinel_urls: Vec<SecretString>,
    /// What the sentinels call it: a name, or a URL with the name in place of the host, for user, password, TLS and database.
    #[serde(serialize_with = "hide")]
    pub redis_sentinel_service: Option<SecretString>,
    /// Instead, some servers of a Redis Cluster.
    #[serde(serialize_with = "hide_all")]
    pub redis_cluster_urls: Vec<SecretString>,
    /// Instead, servers that know nothing of each other, of which a majority decides.
    #[serde(serialize_with = "hide_all")]
    pub redis_majority_urls: Vec<SecretString>,
    /// The PEM file of the authority that vouches for `rediss://` servers; without it, the public ones do.
    pub redis_ca_file: Option<PathBuf>,
    /// Whose tokens are good.
    pub token: TokenSettings,
    /// Limits of a request.
    pub request: RequestSettings,
    /// The pool and its time limits.
    pub database: DatabaseSettings,
    /// Which pages of other origins may read answers.
    pub cors: CorsSettings,
    /// What a document may ask for.
    pub limits: LimitSettings,
    /// WebSockets.
    pub sockets: SocketSettings,
    /// Which documents run.
    pub documents: DocumentSettings,
    /// Layer 1.
    pub cooldown: CooldownSettings,
    /// The units of value, the default one first.
    pub currencies: Vec<Currency>,
    /// The daily bonus; off without amounts.
    pub daily_bonus: DailyBonusSettings,
    /// The signup bonus; off without an amount.
    pub signup_bonus: SignupBonusSettings,
    /// Transfers between members.
    pub transfer: TransferSettings,
    /// Idempotency keys.
    pub keys: KeySettings,
    /// Events to endpoints outside.
    pub webhooks: WebhookSettings,
    /// What the clock starts.
    pub workers: WorkerSettings,
    /// Payments from outside.
    pub funding: FundingSettings,
    /// What the log looks like.
    pub log: LogSettings,
    /// What Prometheus scrapes.
    pub metrics: MetricsSettings,
    /// Who is told of traces.
    pub traces: TraceSettings,
}

/// Whose tokens are good.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenSettings {
    /// The HS256 secret, 32 bytes or more.
    #[serde(serialize_with = "hide")]
    pub secret: Option<SecretString>,
    /// Instead of a secret, the file or the URL where the identity provider publishes its public keys.
    pub jwks: Option<String>,
    /// The PEM file of the authority that vouches for the identity provider; without it, the public ones do.
    pub jwks_ca_file: Option<PathBuf>,
    /// How often the keys are fetched again.
    pub jwks_refresh_seconds: u64,
    /// The claim that holds the member's name.
    pub member_claim: String,
    /// The claim that holds the roles, or the path to it.
    pub roles_claim: String,
    /// Who must have issued a token (`iss`); anybody with the secret if left out.
    pub issuer: Option<String>,
    /// Whom a token must be meant for (`aud`); anybody if left out.
    pub audience: Option<String>,
    /// How far two clocks may differ.
    pub leeway_seconds: u64,
}

/// Limits of a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestSettings {
    /// After this, no statement, retry or COMMIT of a request starts.
    pub deadline_ms: u64,
    /// The largest body.
    pub body_limit_bytes: usize,
    /// How many requests a process serves at once, whatever they ask.
    pub most_at_once: u32,
    /// How much money work may wait for a connection.
    pub most_waiting: u32,
    /// How long `/readyz` says "stopping" before new connections are refused.
    pub drain_ms: u64,
}

/// Which pages of other origins may read answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorsSettings {
    /// Their origins, such as `https://app.example.com`.
    pub origins: Vec<String>,
}

/// What a document may ask for. Fragments count where they are spread.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSettings {
    /// Bytes of a document.
    pub document_bytes: u64,
    /// Tokens of a document.
    pub tokens: u64,
    /// Levels of fields.
    pub depth: u64,
    /// Fields.
    pub fields: u64,
    /// Aliased fields.
    pub aliases: u64,
    /// Directives.
    pub directives: u64,
    /// Root fields of a mutation.
    pub root_mutations: u64,
    /// Fields, each multiplied by the sizes of the pages it stands in.
    pub cost: u64,
    /// Whether a document may ask for the schema.
    pub introspection: bool,
}

/// WebSockets.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SocketSettings {
    /// How many a process serves at once.
    pub most_at_once: u32,
    /// How many of them may be one member's.
    pub most_per_member: u32,
    /// How many operations may run on one.
    pub operations: u32,
    /// The largest message a client may send.
    pub message_bytes: usize,
    /// How long a new one may take to say whose it is.
    pub init_timeout_ms: u64,
    /// How often a silent client is asked whether it is still there; after twice as long without a word it is gone.
    pub ping_ms: u64,
    /// How long a client may take to accept a message.
    pub send_timeout_ms: u64,
    /// How often the watched wallets are looked at, should an announcement have been lost.
    pub look_again_ms: u64,
}

/// Which documents run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DocumentSettings {
    /// The file that lists the only documents that run; any document runs without it.
    pub trusted: Option<PathBuf>,
    /// How many documents are kept under their hashes.
    pub persisted_most: usize,
    /// How many bytes they may have together.
    pub persisted_bytes: usize,
}

/// The pool and its time limits.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatabaseSettings {
    /// Connections to PostgreSQL for money work.
    pub pool_size: u32,
    /// Further ones for reads, so that a flood of reads cannot starve the work.
    pub read_pool_size: u32,
    /// The longest a statement may run.
    pub statement_timeout_ms: u64,
    /// The longest a statement may wait for a row.
    pub lock_timeout_ms: u64,
    /// Send the time limits with each BEGIN, for poolers that refuse connect options.
    pub set_local: bool,
}

/// A unit of value.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Currency {
    /// Its code.
    pub code: CurrencyCode,
    /// How many digits stand behind the decimal point.
    pub decimals: u8,
    /// Whether members may send it to each other.
    #[serde(default = "yes")]
    pub transferable: bool,
}

/// The daily bonus.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DailyBonusSettings {
    /// What the days of a streak pay, in minor units of the default currency; later days pay as the last one.
    pub amounts: Vec<i64>,
    /// The IANA zone that decides which day it is.
    pub time_zone: String,
    /// The hour, 0 to 23, at which the day begins there.
    pub day_begins_at_hour: u32,
}

/// The signup bonus.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignupBonusSettings {
    /// Minor units of the default currency.
    pub amount: Option<i64>,
}

/// Transfers between members.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransferSettings {
    /// Whether members may transfer at all.
    pub enabled: bool,
    /// The smallest amount, in minor units.
    pub smallest: i64,
    /// The largest amount, in minor units; none if left out.
    pub largest: Option<i64>,
    /// Whether a note may go with it.
    pub memo: bool,
}

/// Idempotency keys.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeySettings {
    /// How long a refusal is remembered.
    pub refusal_retention_days: u32,
    /// How long the key of an operation that moved value is remembered; for ever if left out.
    pub completed_retention_days: Option<u32>,
}

/// Events to endpoints outside.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookSettings {
    /// Who is told. Without any, no event is written.
    #[serde(serialize_with = "hide_all")]
    pub endpoints: Vec<EndpointSettings>,
    /// Whether an endpoint may lie in a private network, and be reached without TLS.
    pub allow_private_addresses: bool,
    /// The longest that one attempt may take.
    pub timeout_ms: u64,
    /// How much of a response is read before the connection is closed instead of used again.
    pub response_bytes: usize,
    /// After so many attempts an event is a dead letter.
    pub attempts: u32,
    /// The pause after the first attempt; each further one is twice as long.
    pub backoff_ms: u64,
    /// The longest pause.
    pub longest_backoff_ms: u64,
    /// How many events a process sends to one endpoint at once.
    pub concurrency: u32,
    /// For how long an event that is being sent belongs to its worker.
    pub lease_ms: u64,
    /// How long delivered events are kept.
    pub retention_days: u32,
}

/// One endpoint.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointSettings {
    /// What it is called in logs, metrics and the outbox.
    pub name: PartnerName,
    /// Where events are sent by POST.
    pub url: EndpointUrl,
    /// Each signs every event, so that one can be replaced by another.
    pub secrets: Vec<WebhookSecret>,
    /// The types of events that are sent; all if empty.
    #[serde(default)]
    pub events: Vec<EventType>,
}
/// What the clock starts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSettings {
    /// Whether `largesse serve` runs the workers too, or leaves them to `largesse work`.
    pub in_server: bool,
    /// How often the books are audited; never if 0.
    pub audit_every_hours: u32,
}

/// Payments from outside.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FundingSettings {
    /// Who may tell of payments. Without any, nobody may.
    #[serde(serialize_with = "hide_all")]
    pub providers: Vec<ProviderSettings>,
}

/// Who takes money in and tells of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderSettings {
    /// Where its webhooks arrive, and what it is called in the log and in tables.
    pub name: PartnerName,
    /// Each of them may sign, so that one can be replaced by another.
    pub secrets: Vec<WebhookSecret>,
}

/// One sentence that says which setting cannot be, and why.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    /// `cooldown.actions` names a mutation that does not exist or declares no cooldown.
    pub fn unknown_action(action: &str) -> Self {
        Self(format!("cooldown.actions.{action}: there is no mutation of this name with a cooldown"))
    }

    /// What a command needs and was not given.
    pub fn missing(sentence: &str) -> Self {
        Self(sentence.to_owned())
    }

    /// A setting whose value a library refuses.
    pub fn because(setting: &str, reason: &dyn std::fmt::Display) -> Self {
        Self(format!("{setting}: {reason}"))
    }
}
impl Settings {
    /// Whether any Redis is named.
    pub fn names_a_redis(&self) -> bool {
        let lists = [&self.redis_sentinel_urls, &self.redis_cluster_urls, &self.redis_majority_urls];
        self.redis_url.is_some() || lists.iter().any(|urls| !urls.is_empty())
    }

    /// The zone that decides which day it is.
    pub fn time_zone(&self) -> Result<Tz, ConfigError> {
        let name = &self.daily_bonus.time_zone;
        name.parse().map_err(|_| ConfigError(format!("daily_bonus.time_zone: there is no zone \"{name}\"")))
    }

    /// The default currency: the first one.
    pub fn default_currency(&self) -> &Currency {
        &self.currencies[0]
    }

    /// The settings of a currency, if it is offered.
    pub fn currency(&self, code: &str) -> Option<&Currency> {
        self.currencies.iter().find(|currency| currency.code.as_str() == code)
    }

    /// The time a request has.
    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.request.deadline_ms)
    }
}

/// Secrets are read and never written.
#[allow(clippy::ref_option, reason = "serde passes the field as it is")]
fn hide<S: Serializer>(_: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_none()
}

/// Lists that hold secrets are read and never written.
#[allow(clippy::ptr_arg, reason = "serde passes the field as it is")]
fn hide_all<T, S: Serializer>(_: &Vec<T>, serializer: S) -> Result<S::Ok, S::Error> {
    [(); 0].serialize(serializer)
}

fn yes() -> bool {
    true
}
