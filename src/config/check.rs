//! Which settings cannot be, and why: one sentence each.

use std::time::Duration;

use secrecy::ExposeSecret;

use super::{ConfigError, EndpointSettings, Settings};
use crate::address;

/// The shortest secret: RFC 7518, section 3.2, wants a key as long as the hash for HS256.
const SHORTEST_SECRET_BYTES: usize = 32;

/// A key that was withdrawn must be gone within a day.
const LONGEST_JWKS_REFRESH_SECONDS: u64 = 24 * 60 * 60;

/// Clocks that differ by more are broken, and a token would live on long after its end.
const LONGEST_LEEWAY_SECONDS: u64 = 600;

/// What the window leaves for taking and ending a lock and for the network between the parts.
const WINDOW_MARGIN_MS: u64 = 500;

/// With how many servers a majority is worth its cost: two cannot outvote one, and ten are no safer than nine.
const MAJORITY_SIZES: std::ops::RangeInclusive<usize> = 3..=9;

/// Past this, it costs too much to find the one to forget.
const MOST_PERSISTED: usize = 10_000;

/// Further than this nobody plans, and sums of times stay far from their limits.
const LONGEST_BACKOFF_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// An answer must outlive a phone's retries over a day.
const SHORTEST_RETENTION_DAYS: u32 = 1;

/// Whoever audits less often than each month does not rely on it.
const LONGEST_AUDIT_INTERVAL_HOURS: u32 = 31 * 24;
impl Settings {
    /// Says which setting cannot be, if any.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_redis()?;
        self.check_times()?;
        self.check_values()?;
        self.check_webhooks()?;
        self.check_token()?;
        self.check_providers()?;
        demand((0.0..=1.0).contains(&self.traces.sample_ratio), || {
            "traces.sample_ratio must be from 0 to 1".to_owned()
        })?;
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

    /// One way to Redis, and a whole one.
    pub(crate) fn check_redis(&self) -> Result<(), ConfigError> {
        let lists = [&self.redis_sentinel_urls, &self.redis_cluster_urls, &self.redis_majority_urls];
        let ways = lists.iter().filter(|urls| !urls.is_empty()).count() + usize::from(self.redis_url.is_some());
        demand(ways <= 1, || {
            "redis_url, redis_sentinel_urls, redis_cluster_urls and redis_majority_urls exclude each other: set one"
                .to_owned()
        })?;
        demand(self.redis_sentinel_urls.is_empty() == self.redis_sentinel_service.is_none(), || {
            "redis_sentinel_urls and redis_sentinel_service go together: set both".to_owned()
        })?;
        let (size, (smallest, largest)) = (self.redis_majority_urls.len(), MAJORITY_SIZES.into_inner());
        demand(size == 0 || (size % 2 == 1 && MAJORITY_SIZES.contains(&size)), || {
            format!("redis_majority_urls must name an odd number of servers, {smallest} to {largest}")
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
        })?;
        self.check_majority_window(action, window)
    }

    /// What a majority's drift and its asking take off the window must not be what the work needs.
    fn check_majority_window(&self, action: &str, window: Duration) -> Result<(), ConfigError> {
        let applies = self.cooldown.enabled && !self.redis_majority_urls.is_empty();
        let needed = self.work() + self.majority_limit() + drift(window);
        demand(!applies || window >= needed, || {
            format!(
                "the cooldown window of {action} is {} ms, but the clocks of Redis servers drift and a majority takes time: \
                 {} ms or more are needed",
                window.as_millis(),
                needed.as_millis()
            )
        })
    }

    /// The longest that work may run after its request has come.
    pub(crate) fn work(&self) -> Duration {
        Duration::from_millis(self.request.deadline_ms + self.database.statement_timeout_ms)
    }

    /// The longest that a majority may take to decide: one command for each server that may fail, and one for all others.
    pub(crate) fn majority_limit(&self) -> Duration {
        let command = Duration::from_millis(self.cooldown.command_timeout_ms);
        command * u32::try_from(self.redis_majority_urls.len() / 2 + 1).unwrap_or(u32::MAX)
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
        demand(self.workers.audit_every_hours <= LONGEST_AUDIT_INTERVAL_HOURS, || {
            format!(
                "workers.audit_every_hours must be at most {LONGEST_AUDIT_INTERVAL_HOURS}; 0 switches the audit off"
            )
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

fn demand(holds: bool, sentence: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError(sentence())) }
}

/// How much earlier than we think another machine's clock may let a lock end: a hundredth of the window, and the two
/// milliseconds by which Redis rounds.
pub(crate) fn drift(window: Duration) -> Duration {
    window / 100 + Duration::from_millis(2)
}
