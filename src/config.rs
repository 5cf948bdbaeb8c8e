//! Settings: defaults, then `largesse.toml`, then the environment, then flags. `docs/settings.md` lists each of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono_tz::Tz;
use figment::Figment;
use figment::providers::{Format, Serialized, Toml};
use figment::value::{Tag, Value};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};

use crate::address;
use crate::amount::CurrencyCode;
use crate::event::EventType;
use crate::signature::WebhookSecret;

/// Everything that can be set.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where to listen.
    pub listen: SocketAddr,
    /// `postgres://…` or `sqlite:…`.
    #[serde(serialize_with = "hide")]
    pub database_url: Option<SecretString>,
    /// `redis://…` or `rediss://…`; without it, cooldowns live in the process.
    #[serde(serialize_with = "hide")]
    pub redis_url: Option<SecretString>,
    /// The PEM file of the authority that vouches for a `rediss://` server; without it, the public ones do.
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

/// Layer 1.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CooldownSettings {
    /// Whether the layer is on.
    pub enabled: bool,
    /// What every key in Redis begins with.
    pub prefix: String,
    /// How long the lock lasts after a business refusal.
    pub after_refusal_ms: u64,
    /// The longest a Redis command may take.
    pub command_timeout_ms: u64,
    /// The longest connecting to Redis may take; nobody waits for it.
    pub connect_timeout_ms: u64,
    /// Settings per mutation, by its field name.
    pub actions: BTreeMap<String, ActionSettings>,
}

/// The cooldown of one mutation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ActionSettings {
    /// The window; the schema's default if left out.
    pub window_ms: Option<u64>,
    /// What to do while Redis is away.
    pub without_redis: WithoutRedis,
}

/// What a guarded mutation does while Redis is away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WithoutRedis {
    /// Keep cooldowns inside the process.
    #[default]
    UseProcess,
    /// Answer UNAVAILABLE.
    Refuse,
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

/// What an endpoint or a payment provider is called: 1 to 64 lower-case letters, digits, `-` and `_`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct PartnerName(String);

impl PartnerName {
    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for PartnerName {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        let well_formed = (1..=64).contains(&text.len()) && text.bytes().all(known);
        well_formed.then_some(Self(text)).ok_or("a name is 1 to 64 lower-case letters, digits, - and _")
    }
}

/// An endpoint's address: http or https, with a host. It is not printed, for some carry a token in their path.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct EndpointUrl(reqwest::Url);

impl EndpointUrl {
    /// The URL.
    pub fn url(&self) -> &reqwest::Url {
        &self.0
    }

    /// The address, where the URL names one instead of a host to look up. However it is written, it was read as one.
    pub fn literal_address(&self) -> Option<IpAddr> {
        self.0.host_str().and_then(|host| host.trim_matches(['[', ']']).parse().ok())
    }
}

impl TryFrom<String> for EndpointUrl {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let url = reqwest::Url::parse(&text).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
        let url = url.ok_or("an endpoint's URL begins with https://")?;
        let plain = url.username().is_empty() && url.password().is_none();
        plain.then_some(Self(url)).ok_or("an endpoint's URL holds no user and no password")
    }
}

impl std::fmt::Debug for EndpointUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EndpointUrl([REDACTED])")
    }
}

/// What the clock starts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSettings {
    /// Whether `largesse serve` runs the workers too, or leaves them to `largesse work`.
    pub in_server: bool,
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

/// What the log looks like.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSettings {
    /// One JSON object a line, or lines for people.
    pub format: LogFormat,
    /// What to log, in `tracing`'s filter language.
    pub filter: String,
}

/// What the log looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Pretty,
    /// For collectors.
    Json,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            database_url: None,
            redis_url: None,
            redis_ca_file: None,
            token: TokenSettings {
                secret: None,
                jwks: None,
                jwks_ca_file: None,
                jwks_refresh_seconds: 300,
                member_claim: "sub".to_owned(),
                roles_claim: "roles".to_owned(),
                issuer: None,
                audience: None,
                leeway_seconds: 5,
            },
            request: RequestSettings {
                deadline_ms: 3000,
                body_limit_bytes: 1 << 20,
                drain_ms: 500,
                most_at_once: 2000,
                most_waiting: 500,
            },
            database: DatabaseSettings {
                pool_size: 16,
                read_pool_size: 8,
                statement_timeout_ms: 1000,
                lock_timeout_ms: 750,
                set_local: false,
            },
            cors: CorsSettings { origins: Vec::new() },
            limits: LimitSettings {
                document_bytes: 32 << 10,
                tokens: 4000,
                depth: 20,
                fields: 500,
                aliases: 30,
                directives: 30,
                root_mutations: 5,
                cost: 5000,
                introspection: true,
            },
            sockets: SocketSettings {
                most_at_once: 10_000,
                most_per_member: 10,
                operations: 20,
                message_bytes: 64 << 10,
                init_timeout_ms: 5000,
                ping_ms: 15_000,
                send_timeout_ms: 10_000,
                look_again_ms: 3000,
            },
            documents: DocumentSettings { trusted: None, persisted_most: 1000, persisted_bytes: 4 << 20 },
            cooldown: CooldownSettings {
                enabled: true,
                prefix: "largesse".to_owned(),
                after_refusal_ms: 1000,
                command_timeout_ms: 150,
                connect_timeout_ms: 1000,
                actions: BTreeMap::new(),
            },
            currencies: vec![Currency {
                code: CurrencyCode::parse("PTS").expect("three upper-case letters"),
                decimals: 0,
                transferable: true,
            }],
            daily_bonus: DailyBonusSettings { amounts: Vec::new(), time_zone: "UTC".to_owned(), day_begins_at_hour: 0 },
            signup_bonus: SignupBonusSettings { amount: None },
            transfer: TransferSettings { enabled: true, smallest: 1, largest: None, memo: true },
            keys: KeySettings { refusal_retention_days: 7, completed_retention_days: None },
            webhooks: WebhookSettings {
                endpoints: Vec::new(),
                allow_private_addresses: false,
                timeout_ms: 5000,
                response_bytes: 16 << 10,
                attempts: 16,
                backoff_ms: 5000,
                longest_backoff_ms: 6 * 60 * 60 * 1000,
                concurrency: 8,
                lease_ms: 30_000,
                retention_days: 7,
            },
            workers: WorkerSettings { in_server: true },
            funding: FundingSettings { providers: Vec::new() },
            log: LogSettings { format: LogFormat::Pretty, filter: "info".to_owned() },
        }
    }
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

/// The environment's variables that are read without the prefix, since every platform sets them by these names.
const CUSTOMARY: [(&str, &str); 2] = [("DATABASE_URL", "database_url"), ("REDIS_URL", "redis_url")];

/// The prefix of all others: `cooldown.after_refusal_ms` is `LARGESSE_COOLDOWN_AFTER_REFUSAL_MS`.
const PREFIX: &str = "LARGESSE_";

/// The shortest secret: RFC 7518, section 3.2, wants a key as long as the hash for HS256.
const SHORTEST_SECRET_BYTES: usize = 32;

/// A key that was withdrawn must be gone within a day.
const LONGEST_JWKS_REFRESH_SECONDS: u64 = 24 * 60 * 60;

/// Clocks that differ by more are broken, and a token would live on long after its end.
const LONGEST_LEEWAY_SECONDS: u64 = 600;

/// What the window leaves for taking and ending a lock and for the network between the parts.
const WINDOW_MARGIN_MS: u64 = 500;

/// Past this, it costs too much to find the one to forget.
const MOST_PERSISTED: usize = 10_000;

/// Further than this nobody plans, and sums of times stay far from their limits.
const LONGEST_BACKOFF_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// An answer must outlive a phone's retries over a day.
const SHORTEST_RETENTION_DAYS: u32 = 1;

impl Settings {
    /// Reads the file, if there is one, and the environment over `defaults`. Variables with our prefix that name no
    /// setting are returned, to be warned about: Kubernetes sets some for a service of our name.
    pub fn read(
        defaults: &Settings,
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(Self, Vec<String>), ConfigError> {
        let mut figment = Figment::from(Serialized::defaults(defaults));
        if let Some(file) = file {
            if !file.is_file() {
                return Err(ConfigError(format!("the settings file {} does not exist", file.display())));
            }
            figment = figment.merge(Toml::file_exact(file));
        }
        let names = variables(defaults);
        let mut unknown = Vec::new();
        for (variable, text) in environment {
            match names.get(&variable) {
                Some(setting) => figment = figment.merge((setting.as_str(), value_of(&text, setting))),
                None if variable.starts_with(PREFIX) => unknown.push(variable),
                None => {}
            }
        }
        let mut settings: Self = figment.extract().map_err(|error| ConfigError(one_sentence(&error.to_string())))?;
        settings.keep_secrets_of(defaults);
        settings.check()?;
        Ok((settings, unknown))
    }

    /// Secrets are not written out, so they do not come back through the defaults.
    fn keep_secrets_of(&mut self, defaults: &Settings) {
        self.database_url = self.database_url.take().or_else(|| defaults.database_url.clone());
        self.redis_url = self.redis_url.take().or_else(|| defaults.redis_url.clone());
        self.token.secret = self.token.secret.take().or_else(|| defaults.token.secret.clone());
        if self.webhooks.endpoints.is_empty() {
            self.webhooks.endpoints.clone_from(&defaults.webhooks.endpoints);
        }
        if self.funding.providers.is_empty() {
            self.funding.providers.clone_from(&defaults.funding.providers);
        }
    }

    /// Says which setting cannot be, if any.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_times()?;
        self.check_values()?;
        self.check_webhooks()?;
        self.check_token()?;
        self.check_providers()?;
        let bonuses = self.daily_bonus.amounts.iter().chain(&self.signup_bonus.amount);
        demand(bonuses.copied().all(|amount| amount > 0), || "a bonus must be greater than zero".to_owned())?;
        self.time_zone().map(drop)
    }

    fn check_token(&self) -> Result<(), ConfigError> {
        let secret = self.token.secret.as_ref().map(|secret| secret.expose_secret().len());
        demand(secret.is_none_or(|length| length >= SHORTEST_SECRET_BYTES), || {
            format!("token.secret must have at least {SHORTEST_SECRET_BYTES} bytes")
        })?;
        demand(self.token.secret.is_none() || self.token.jwks.is_none(), || {
            "token.secret and token.jwks exclude each other: set one".to_owned()
        })?;
        demand((1..=LONGEST_JWKS_REFRESH_SECONDS).contains(&self.token.jwks_refresh_seconds), || {
            format!("token.jwks_refresh_seconds must be from 1 to {LONGEST_JWKS_REFRESH_SECONDS}")
        })?;
        demand(self.token.leeway_seconds <= LONGEST_LEEWAY_SECONDS, || {
            format!("token.leeway_seconds must be at most {LONGEST_LEEWAY_SECONDS}")
        })
    }

    fn check_times(&self) -> Result<(), ConfigError> {
        let (request, database) = (&self.request, &self.database);
        demand(database.lock_timeout_ms > 0 && database.lock_timeout_ms < database.statement_timeout_ms, || {
            "database.lock_timeout_ms must be above zero and below database.statement_timeout_ms".to_owned()
        })?;
        demand(database.statement_timeout_ms <= request.deadline_ms, || {
            "database.statement_timeout_ms must not be above request.deadline_ms".to_owned()
        })?;
        let windows = self.cooldown.actions.iter().filter_map(|(action, settings)| Some((action, settings.window_ms?)));
        windows.into_iter().try_for_each(|(action, window)| self.check_window(action, Duration::from_millis(window)))
    }

    /// The window must cover the work: a lock that ended while its attempt still runs would admit a second one beside it.
    pub fn check_window(&self, action: &str, window: Duration) -> Result<(), ConfigError> {
        let work = self.request.deadline_ms + self.database.statement_timeout_ms + WINDOW_MARGIN_MS;
        demand(!self.cooldown.enabled || window >= Duration::from_millis(work), || {
            format!(
                "the cooldown window of {action} is {} ms, but must cover the work: request.deadline_ms + \
                 database.statement_timeout_ms + {WINDOW_MARGIN_MS} ms = {work} ms",
                window.as_millis()
            )
        })
    }

    fn check_values(&self) -> Result<(), ConfigError> {
        demand(!self.currencies.is_empty(), || "currencies must name at least one currency".to_owned())?;
        let mut codes: Vec<_> = self.currencies.iter().map(|currency| &currency.code).collect();
        codes.sort();
        codes.dedup();
        demand(codes.len() == self.currencies.len(), || "currencies must not name a currency twice".to_owned())?;
        demand(self.daily_bonus.day_begins_at_hour < 24, || {
            "daily_bonus.day_begins_at_hour must be an hour from 0 to 23".to_owned()
        })?;
        demand(self.transfer.smallest > 0, || "transfer.smallest must be greater than zero".to_owned())?;
        demand(self.transfer.largest.is_none_or(|largest| largest >= self.transfer.smallest), || {
            "transfer.largest must not be below transfer.smallest".to_owned()
        })?;
        let pools = [self.database.pool_size, self.database.read_pool_size, self.request.most_at_once];
        demand(pools.iter().all(|size| *size > 0), || {
            "database.pool_size, database.read_pool_size and request.most_at_once must be greater than zero".to_owned()
        })?;
        let sockets = &self.sockets;
        let times = [sockets.init_timeout_ms, sockets.ping_ms, sockets.send_timeout_ms, sockets.look_again_ms];
        let numbers = [sockets.most_at_once, sockets.most_per_member, sockets.operations];
        demand(!times.contains(&0) && !numbers.contains(&0) && sockets.message_bytes > 0, || {
            "the settings of sockets must be greater than zero".to_owned()
        })?;
        demand((1..=MOST_PERSISTED).contains(&self.documents.persisted_most), || {
            format!("documents.persisted_most must be from 1 to {MOST_PERSISTED}")
        })?;
        let completed = self.keys.completed_retention_days.unwrap_or(SHORTEST_RETENTION_DAYS);
        demand(self.keys.refusal_retention_days.min(completed) >= SHORTEST_RETENTION_DAYS, || {
            format!(
                "keys.refusal_retention_days and keys.completed_retention_days must be at least \
                 {SHORTEST_RETENTION_DAYS}"
            )
        })
    }

    fn check_webhooks(&self) -> Result<(), ConfigError> {
        let webhooks = &self.webhooks;
        let mut names: Vec<_> = webhooks.endpoints.iter().map(|endpoint| endpoint.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        demand(names.len() == webhooks.endpoints.len(), || {
            "webhooks.endpoints must not name an endpoint twice".to_owned()
        })?;
        webhooks
            .endpoints
            .iter()
            .try_for_each(|endpoint| check_endpoint(endpoint, webhooks.allow_private_addresses))?;
        demand(webhooks.timeout_ms > 0 && webhooks.attempts > 0 && webhooks.concurrency > 0, || {
            "webhooks.timeout_ms, webhooks.attempts and webhooks.concurrency must be greater than zero".to_owned()
        })?;
        // Else the event could go to a second worker while the first still sends it or writes down how that ended.
        demand(webhooks.lease_ms >= 2 * webhooks.timeout_ms, || {
            "webhooks.lease_ms must be at least twice webhooks.timeout_ms".to_owned()
        })?;
        demand((1..=webhooks.longest_backoff_ms).contains(&webhooks.backoff_ms), || {
            "webhooks.backoff_ms must be above zero and not above webhooks.longest_backoff_ms".to_owned()
        })?;
        demand(webhooks.longest_backoff_ms <= LONGEST_BACKOFF_MS && webhooks.lease_ms <= LONGEST_BACKOFF_MS, || {
            "webhooks.longest_backoff_ms and webhooks.lease_ms must not be above a week".to_owned()
        })
    }

    fn check_providers(&self) -> Result<(), ConfigError> {
        let providers = &self.funding.providers;
        let mut names: Vec<_> = providers.iter().map(|provider| provider.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        demand(names.len() == providers.len(), || "funding.providers must not name a provider twice".to_owned())?;
        providers.iter().try_for_each(|provider| {
            demand(!provider.secrets.is_empty(), || format!("the provider {} needs a secret", provider.name.as_str()))
        })
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

/// A private endpoint is refused at the start where its address stands in its URL; a name is looked up at each attempt.
fn check_endpoint(endpoint: &EndpointSettings, private: bool) -> Result<(), ConfigError> {
    let name = endpoint.name.as_str();
    demand(!endpoint.secrets.is_empty(), || format!("the webhook endpoint {name} needs a secret"))?;
    demand(private || endpoint.url.url().scheme() == "https", || {
        format!("the webhook endpoint {name} must begin with https://, unless webhooks.allow_private_addresses is true")
    })?;
    demand(private || endpoint.url.literal_address().is_none_or(address::is_public), || {
        format!("the webhook endpoint {name} has a private address, and webhooks.allow_private_addresses is false")
    })
}

/// TOML's errors span lines and quote the file, where a secret may stand: what remains says where and what.
fn one_sentence(error: &str) -> String {
    let quotes = |line: &&str| line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').starts_with('|');
    let lines: Vec<_> = error.lines().filter(|line| !quotes(line)).map(str::trim).collect();
    without_secrets(&lines.join(", "))
}

/// A text where a list of secrets belongs is quoted by the error that says so.
fn without_secrets(error: &str) -> String {
    let mut parts = error.split("whsec_");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let of_a_secret = |c: char| c.is_ascii_alphanumeric() || "+/=_-".contains(c);
        format!("{text}whsec_…{}", part.trim_start_matches(of_a_secret))
    })
}

fn demand(holds: bool, sentence: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError(sentence())) }
}

/// The name of each variable and the setting that it sets, read off the settings themselves.
pub fn variables(settings: &Settings) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    if let Ok(Value::Dict(_, tree)) = Value::serialize(settings) {
        collect_settings("", &tree, &mut names);
    }
    for (variable, setting) in CUSTOMARY {
        names.retain(|_, other| other != setting);
        names.insert(variable.to_owned(), setting.to_owned());
    }
    names
}

fn collect_settings(path: &str, tree: &figment::value::Dict, names: &mut BTreeMap<String, String>) {
    for (key, value) in tree {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match value {
            // An empty table is a map by action, which is set as a whole: `{transfer = {window_ms = 9000}}`.
            Value::Dict(_, inner) if !inner.is_empty() => collect_settings(&path, inner, names),
            _ => drop(names.insert(format!("{PREFIX}{}", path.replace('.', "_").to_uppercase()), path)),
        }
    }
}

/// Reads a variable as figment reads the environment, except that what is text stays text: a secret of digits is no number.
fn value_of(text: &str, setting: &str) -> Value {
    const TEXTS: [&str; 14] = [
        "database_url",
        "redis_url",
        "redis_ca_file",
        "documents.trusted",
        "token.secret",
        "token.jwks",
        "token.jwks_ca_file",
        "token.member_claim",
        "token.roles_claim",
        "token.issuer",
        "token.audience",
        "cooldown.prefix",
        "log.filter",
        "listen",
    ];
    if TEXTS.contains(&setting) {
        return Value::String(Tag::Default, text.to_owned());
    }
    text.parse().unwrap_or_else(|_| Value::String(Tag::Default, text.to_owned()))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &str, environment: &[(&str, &str)]) -> Result<(Settings, Vec<String>), ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("largesse.toml");
        std::fs::write(&path, file).unwrap();
        let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::read(&Settings::default(), Some(&path), environment)
    }

    #[test]
    fn the_environment_overrides_the_file_which_overrides_the_defaults() {
        let file = "[request]\ndeadline_ms = 2000\nbody_limit_bytes = 5000\n";
        let (settings, unknown) = read(file, &[("LARGESSE_REQUEST_DEADLINE_MS", "2500")]).unwrap();
        assert_eq!((settings.request.deadline_ms, settings.request.body_limit_bytes), (2500, 5000));
        assert_eq!(settings.database.lock_timeout_ms, 750);
        assert!(unknown.is_empty());
    }

    #[test]
    fn customary_names_secrets_lists_and_tables_are_read_from_the_environment() {
        let (settings, _) = read(
            "",
            &[
                ("DATABASE_URL", "postgres://db/x"),
                ("LARGESSE_TOKEN_SECRET", "01234567890123456789012345678901"),
                ("LARGESSE_DAILY_BONUS_AMOUNTS", "[10, 20]"),
                ("LARGESSE_SIGNUP_BONUS_AMOUNT", "100"),
                ("LARGESSE_COOLDOWN_ACTIONS", "{transfer={window_ms=9000,without_redis=\"refuse\"}}"),
            ],
        )
        .unwrap();
        assert_eq!(settings.database_url.unwrap().expose_secret(), "postgres://db/x");
        assert_eq!(settings.token.secret.unwrap().expose_secret(), "01234567890123456789012345678901");
        assert_eq!((settings.daily_bonus.amounts, settings.signup_bonus.amount), (vec![10, 20], Some(100)));
        assert_eq!(settings.cooldown.actions["transfer"].window_ms, Some(9000));
        assert_eq!(settings.cooldown.actions["transfer"].without_redis, WithoutRedis::Refuse);
    }

    #[test]
    fn unknown_variables_are_named_and_unknown_keys_refused() {
        let (_, unknown) = read("", &[("LARGESSE_PORT", "tcp://10.0.0.1:80"), ("HOME", "/")]).unwrap();
        assert_eq!(unknown, ["LARGESSE_PORT"]);
        let error = read("[request]\ndeadlin_ms = 2000\n", &[]).unwrap_err().to_string();
        assert!(error.contains("deadlin_ms"), "{error}");
    }

    /// Secrets that are good.
    const GOOD: &str = "[\"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"]";

    fn endpoint(name: &str, url: &str, secrets: &str) -> String {
        format!("[[webhooks.endpoints]]\nname = \"{name}\"\nurl = \"{url}\"\nsecrets = {secrets}\n")
    }

    #[test]
    fn endpoints_are_read_and_not_shown() {
        let of_file = endpoint("crm", "https://crm.example/hunter2", GOOD) + "events = [\"transfer.completed\"]\n";
        let of_environment = format!("[{{name=\"crm\",url=\"https://crm.example/hunter2\",secrets={GOOD}}}]");
        for (file, environment) in
            [(of_file.as_str(), &[][..]), ("", &[("LARGESSE_WEBHOOKS_ENDPOINTS", of_environment.as_str())])]
        {
            let (settings, _) = read(file, environment).unwrap();
            let [endpoint] = &settings.webhooks.endpoints[..] else { panic!("one endpoint") };
            assert_eq!(endpoint.name.as_str(), "crm");
            assert_eq!(endpoint.events, if file.is_empty() { vec![] } else { vec![EventType::TransferCompleted] });
            let shown = format!("{settings:?} {}", serde_json::to_string(&settings).unwrap());
            assert!(!shown.contains("hunter2") && !shown.contains("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), "{shown}");
        }
        let private = "[webhooks]\nallow_private_addresses = true\n".to_owned();
        assert!(read(&(private + &endpoint("crm", "http://127.0.0.1:9/", GOOD)), &[]).is_ok());
    }

    #[test]
    fn impossible_settings_are_refused_in_one_sentence() {
        for (file, word) in [
            ("[cooldown.actions.transfer]\nwindow_ms = 4000\n", "must cover the work"),
            ("[daily_bonus]\ntime_zone = \"Mars/Olympus\"\n", "no zone \"Mars/Olympus\""),
            ("[daily_bonus]\nday_begins_at_hour = 24\n", "0 to 23"),
            ("[token]\nsecret = \"short\"\n", "at least 32 bytes"),
            ("[token]\nsecret = \"01234567890123456789012345678901\"\njwks = \"keys.json\"\n", "exclude each other"),
            ("[documents]\npersisted_most = 0\n", "from 1 to"),
            ("[token]\njwks_refresh_seconds = 0\n", "from 1 to"),
            ("[token]\nleeway_seconds = 601\n", "at most 600"),
            ("[database]\nlock_timeout_ms = 1000\n", "lock_timeout_ms"),
            ("[signup_bonus]\namount = 0\n", "greater than zero"),
            ("currencies = []\n", "at least one currency"),
            ("[keys]\ncompleted_retention_days = 0\n", "at least 1"),
            ("[webhooks]\nlease_ms = 9000\n", "twice webhooks.timeout_ms"),
            ("[webhooks]\nbackoff_ms = 0\n", "backoff_ms"),
            ("[webhooks]\nconcurrency = 0\n", "concurrency"),
            (&endpoint("Crm", "https://crm.example/", GOOD), "a name is"),
            (&endpoint("crm", "https://user:hunter2@crm.example/", GOOD), "no user and no password"),
            (&endpoint("crm", "ftp://crm.example/", GOOD), "begins with https://"),
            (&endpoint("crm", "http://crm.example/", GOOD), "must begin with https://"),
            (&endpoint("crm", "https://127.0.0.1/", GOOD), "private address"),
            (&endpoint("crm", "https://2130706433/", GOOD), "private address"),
            (&endpoint("crm", "https://[::ffff:10.0.0.1]/", GOOD), "private address"),
            (&endpoint("crm", "https://crm.example/", "[\"whsec_hunter2\"]"), "24 to 64 bytes"),
            (&endpoint("crm", "https://crm.example/", "\"whsec_hunter2\""), "sequence"),
            (&endpoint("crm", "https://crm.example/", "[]"), "needs a secret"),
            (&endpoint("crm", "https://crm.example/", GOOD).repeat(2), "twice"),
            (&provider("Acme", "[]"), "lower-case"),
            (&provider("acme", "[]"), "needs a secret"),
            (&provider("acme", "[\"whsec_hunter2\"]"), "24 to 64 bytes"),
            (&provider("acme", "\"whsec_hunter2\""), "sequence"),
            (&provider("acme", GOOD).repeat(2), "twice"),
        ] {
            let error = read(file, &[]).unwrap_err().to_string();
            assert!(error.contains(word) && error.lines().count() == 1, "{file}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    fn provider(name: &str, secrets: &str) -> String {
        format!("[[funding.providers]]\nname = \"{name}\"\nsecrets = {secrets}\n")
    }

    #[test]
    fn the_secrets_of_providers_are_read_and_never_written() {
        let variable = format!("[{{name=\"acme\",secrets={GOOD}}}]");
        for (file, environment) in
            [(provider("acme", GOOD).as_str(), None), ("", Some(("LARGESSE_FUNDING_PROVIDERS", variable.as_str())))]
        {
            let (settings, unknown) = read(file, environment.as_slice()).unwrap();
            let [provider] = &settings.funding.providers[..] else { panic!("{:?}", settings.funding) };
            assert_eq!((provider.name.as_str(), provider.secrets.len(), unknown.len()), ("acme", 1, 0));
            let written = format!("{settings:?} {:?}", Value::serialize(&settings));
            assert!(!written.contains("MfKQ9r8"), "{written}");
            // What was read keeps its secrets where it becomes the defaults of another reading.
            let again = Settings::read(&settings, None, []).unwrap().0;
            assert_eq!(again.funding.providers[0].secrets, provider.secrets);
        }
    }

    #[test]
    fn the_page_of_settings_lists_each_of_them_and_no_other() {
        let page = include_str!("../docs/settings.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let mut listed: Vec<_> = rows.map(str::to_owned).collect();
        let mut settings: Vec<_> = variables(&Settings::default()).into_values().collect();
        listed.sort();
        settings.sort();
        assert_eq!(listed, settings);
    }
}
